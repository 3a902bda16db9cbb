//! Messages: their order, the limits of an inbox, and the doorbell.

use super::{Start, check};
use crate::provider::{LANE_BYTES_MAX, LANES, MESSAGE_BYTES_MAX};
use crate::{Address, FabricError, NodeId};

#[test]
fn messages_arrive_in_order() {
    check(|bed| {
        let count = if cfg!(miri) { 20 } else { 2_000u32 };
        let sender = |to: Address| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    for number in 0..count {
                        let mut message = number.to_le_bytes().to_vec();
                        message.resize(4 + number as usize * 37 % 700, number as u8);
                        while let Err(error) = endpoint.send(to, &message) {
                            // Not there yet, or not keeping up.
                            let passes =
                                matches!(error, FabricError::QueueFull { .. } | FabricError::NoSuchPort { .. });
                            assert!(passes, "{error}");
                            endpoint.handle().yield_now().await;
                        }
                    }
                })
            })
        };
        let receiver = |port: u16| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    let mut next = std::collections::BTreeMap::<Address, u32>::new();
                    for _ in 0..2 * count {
                        let message = loop {
                            let message = if port == 0 { endpoint.try_recv_home() } else { endpoint.try_recv() };
                            match message {
                                Some(message) => break message,
                                None => _ = endpoint.arrival(1_000_000).await,
                            }
                        };
                        let number = u32::from_le_bytes(message.bytes[..4].try_into().unwrap());
                        let expected = next.entry(message.from).or_default();
                        assert_eq!(number, *expected);
                        assert_eq!(message.bytes.len(), 4 + number as usize * 37 % 700);
                        assert!(message.bytes[4..].iter().all(|&byte| byte == number as u8));
                        *expected += 1;
                    }
                    assert_eq!(next.len(), 2);
                })
            })
        };
        let senders = bed.join(1).unwrap();
        // Port 1 is the first that a fresh node hands out.
        for (node, port) in [(2, Address::HOME_PORT), (3, 1)] {
            let to = Address { node: NodeId(node), port };
            let bodies = [(bed.join(node).unwrap(), receiver(port))];
            bed.together(bodies.into_iter().chain((0..2).map(|_| (senders.clone(), sender(to)))).collect());
        }
    });
}

#[test]
fn an_inbox_fills_and_empties() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let (a, b) = (a.endpoint(&bed.handle()).unwrap(), b.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let message = vec![7; 1000];
            for _ in 0..3 {
                let mut count = 0;
                let full = loop {
                    match a.send(b.address(), &message) {
                        Ok(()) => count += 1,
                        Err(error) => break error,
                    }
                };
                assert_eq!(full, FabricError::QueueFull { to: b.address() });
                assert_eq!(count, LANE_BYTES_MAX / 1024);
                for _ in 0..count {
                    assert_eq!(b.recv().await, crate::Message { from: a.address(), bytes: message.clone() });
                }
                assert_eq!(b.try_recv(), None);
            }
        });
    });
}

#[test]
fn wrong_messages_are_refused() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let (a, b_endpoint) = (a.endpoint(&bed.handle()).unwrap(), b.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let long = vec![1; MESSAGE_BYTES_MAX];
            let to = b_endpoint.address();
            a.send(to, &long).unwrap();
            assert_eq!(b_endpoint.recv().await.bytes, long, "the longest is allowed");
            a.send(to, b"").unwrap();
            assert_eq!(b_endpoint.recv().await.bytes, b"", "the shortest, too");
            let too_long = FabricError::MessageTooLong { bytes: MESSAGE_BYTES_MAX + 1, bytes_max: MESSAGE_BYTES_MAX };
            assert_eq!(a.send(to, &[&long[..], b"x"].concat()), Err(too_long));
            let nobody = Address { node: NodeId(2), port: 999 };
            assert_eq!(a.send(nobody, b"?"), Err(FabricError::NoSuchPort { to: nobody }));
            assert_eq!(a.send(Address::home(NodeId(9)), b"?"), Err(FabricError::NodeUnavailable { node: NodeId(9) }));
            assert_eq!(b.endpoint_at(&bed.handle(), to.port).err(), Some(FabricError::PortInUse { port: to.port }));
            assert_eq!(b.endpoint_at(&bed.handle(), 0).err(), Some(FabricError::PortInUse { port: 0 }));
            drop(b_endpoint);
            assert_eq!(a.send(to, b"?"), Err(FabricError::NoSuchPort { to }));
            let again = b.endpoint_at(&bed.handle(), to.port).unwrap();
            a.send(to, b"!").unwrap();
            assert_eq!(again.recv().await.bytes, b"!");
            assert_eq!(again.recv_timeout(1000).await, Err(FabricError::Timeout { waited_ns: 1000 }));
            drop(again);
            // No endpoint has used the closed port.
            let again = b.endpoint_at(&bed.handle(), to.port).unwrap();
            a.send(to, b"once more").unwrap();
            assert_eq!(again.recv().await.bytes, b"once more");
        });
    });
}

/// An inbox has room for `LANES` senders, and an endpoint that is dropped makes room.
#[test]
fn senders_are_limited() {
    if cfg!(miri) {
        return;
    }
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let b = b.endpoint(&bed.handle()).unwrap();
        let mut senders: Vec<_> = (0..=LANES).map(|_| a.endpoint(&bed.handle()).unwrap()).collect();
        let last = senders.pop().unwrap();
        bed.executor.run(async {
            for sender in &senders {
                sender.send(b.address(), b"x").unwrap();
            }
            assert_eq!(last.send(b.address(), b"y"), Err(FabricError::TooManySenders { to: b.address() }));
            for _ in 0..LANES {
                assert_eq!(b.recv().await.bytes, b"x");
            }
            senders.clear();
            last.send(b.address(), b"y").unwrap();
            assert_eq!(b.recv().await.bytes, b"y");
        });
    });
}

/// A waiting thread is woken by its doorbell: for its own inbox and for the home inbox.
#[test]
fn waiting_ends_with_a_message() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        assert!(!a.endpoint(&bed.handle()).unwrap().wait(1), "nobody sent");
        let receiver: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for number in 0..10u8 {
                    let message = loop {
                        if let Some(message) = endpoint.try_recv_home() {
                            break message;
                        }
                        // In virtual time `wait` returns at once: let time pass.
                        let _ = endpoint.wait(10_000_000_000);
                        endpoint.handle().yield_now().await;
                    };
                    assert_eq!(message.bytes, [number]);
                    endpoint.send(message.from, &message.bytes).unwrap();
                }
            })
        });
        let sender: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for number in 0..10u8 {
                    endpoint.send(Address::home(NodeId(2)), &[number]).unwrap();
                    let back = loop {
                        if let Some(message) = endpoint.try_recv() {
                            break message;
                        }
                        let _ = endpoint.wait(10_000_000_000);
                        endpoint.handle().yield_now().await;
                    };
                    assert_eq!(back.bytes, [number]);
                }
            })
        });
        bed.together(vec![(b, receiver), (a, sender)]);
    });
}
