//! Nodes and their regions: who holds them, which keys open them, and what outlives what.

use super::{REGION, at, check, word};
use crate::{Address, FabricError, NodeId};
use std::sync::atomic::Ordering;

/// The key of a region changes whenever it is registered, and the old one gives no access.
#[test]
fn keys_go_stale() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let stale = Err(FabricError::StaleKey { node: NodeId(2), region: REGION });
            let add = || word(&endpoint, |b| b.fetch_add(at(2, 0), 1));
            assert_eq!(add().await, Ok(0));
            let first = endpoint.refresh(NodeId(2), REGION).unwrap();
            b.attach_region(REGION).unwrap();
            assert_eq!(add().await, stale);
            assert_eq!(add().await, stale, "stale until refreshed");
            let second = endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_ne!(first, second);
            assert_eq!(add().await, Ok(1), "attached with its content");

            assert_eq!(
                b.create_region(REGION, 1).err(),
                Some(FabricError::RegionExists { node: NodeId(2), region: REGION })
            );
            b.remove_region(REGION).unwrap();
            assert_eq!(add().await, stale);
            let missing = || FabricError::NoSuchRegion { node: NodeId(2), region: REGION };
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()));
            let refused = [b.attach_region(REGION).err(), b.remove_region(REGION).err(), b.open_region(REGION).err()];
            assert_eq!(refused, [Some(missing()), Some(missing()), Some(missing())]);

            b.create_closed_region(REGION, 8192).unwrap();
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()), "not open yet");
            b.open_region(REGION).unwrap();
            let third = endpoint.refresh(NodeId(2), REGION).unwrap();
            assert!(third != second && third != first);
            assert_eq!(add().await, Ok(0), "created anew, zeroed");

            // An owner that starts again and has to change what is there before others may look.
            let memory = b.attach_closed_region(REGION).unwrap();
            assert_eq!(add().await, stale, "the key of before opens nothing");
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()));
            memory.word(0).unwrap().store(7, Ordering::SeqCst);
            b.open_region(REGION).unwrap();
            endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_eq!(add().await, Ok(7));
        });
    });
}

#[test]
fn a_node_is_one_process() {
    check(|bed| {
        let a = bed.join(1).unwrap();
        match bed.join(1).err().expect("taken") {
            FabricError::NodeInUse { node, holder_pid, .. } => {
                assert_eq!((node, holder_pid), (NodeId(1), std::process::id()));
            }
            other => panic!("{other}"),
        }
        let b = bed.join(2).unwrap();
        assert!(a.node_is_live(NodeId(1)) && a.node_is_live(NodeId(2)) && !a.node_is_live(NodeId(3)));
        drop(b);
        assert!(!a.node_is_live(NodeId(2)));
        bed.join(2).unwrap();
    });
}

/// A node comes back: its regions are as it left them, and its old inboxes are gone.
#[test]
fn regions_outlive_their_node() {
    check(|bed| {
        let a = bed.join(1).unwrap();
        let b = bed.join(2).unwrap();
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            assert_eq!(word(&endpoint, |b| b.swap(at(2, 8), 42)).await, Ok(0));
            endpoint.send(Address::home(NodeId(2)), b"too late").unwrap();
            drop(b);
            let b = bed.join(2).unwrap();
            assert_eq!(b.attach_region(REGION).unwrap().word(8).unwrap().load(Ordering::SeqCst), 42);
            assert!(matches!(word(&endpoint, |b| b.clear_word(at(2, 8))).await, Err(FabricError::StaleKey { .. })));
            endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_eq!(word(&endpoint, |b| b.clear_word(at(2, 8))).await, Ok(42));
            let there = b.endpoint(&bed.handle()).unwrap();
            endpoint.send(Address::home(NodeId(2)), b"hello").unwrap();
            let message = loop {
                assert!(there.arrival(10_000_000_000).await);
                if let Some(message) = there.try_recv_home() {
                    break message;
                }
            };
            assert_eq!(message.bytes, b"hello", "what was sent to the dead is gone");
        });
    });
}
