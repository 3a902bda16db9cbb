//! Shared memory: the regions of the processes of one host are files that all of them map.
//!
//! A cluster is a directory, by default below `/dev/shm`. Any path works if its file system maps shared, so a CXL pool or
//! persistent memory by DAX works as it is. Its files:
//!
//! ```text
//! node-003                  the node's entry: incarnation, process, doorbell, and the directory of its regions
//! node-003.region-005       a region's bytes, sparse: memory is taken when asked for (node-003.draft-005 while it is made)
//! node-003.inbox-2-7        inbox of port 7 of the node's 2nd incarnation
//! ```
//!
//! - The directory and its files belong to one user alone: see [`crate::private`].
//! - A process is node 3 while it holds `node-003` locked (flock); the kernel releases the lock when the process dies, whatever
//!   the cause. The entry names the process by number and start time, so that a lock which another process has taken does not
//!   keep a dead node alive. Regions stay: that is the model of non-volatile memory. The next process of node 3 attaches to them.
//! - The directory of regions in the entry has a key for each region, new with each registration. An endpoint remembers the
//!   key it first found, and every instruction compares it with the directory before it touches memory. That is one load of
//!   a word that rarely changes. It cannot stop a store that is already past the check; a fenced process must be killed.
//! - Files are sparse and get memory piece by piece, by [`reserve`](crate::memory::RegionMemory::reserve). So a full file system is
//!   an error at the reservation and not a signal at a touch. A region may be larger than its file system.
//! - The posting thread executes instructions at once, as loads, stores and CPU atomics.

mod endpoint;
mod entry;
mod fence;
mod files;
pub(super) mod inbox;
mod member;

use crate::error::FabricError;

pub use files::remove;
pub(crate) use member::Member;
#[cfg(feature = "libfabric")]
pub(super) use {endpoint::Shm, entry::Starts, files::SECRET};

/// See [`super::ALL`].
pub(super) const KIND: super::Kind = super::Kind {
    name: "shm",
    about: "files mapped by every process of a host; also CXL or DAX memory, by path",
    does: |_| super::Doer::Cpu,
    here: || vec![super::Here { name: "shm".into(), about: "files below /dev/shm, unless told otherwise".into() }],
    join: Some(super::Join {
        usage: "shm",
        member: |cluster, node, settings| match settings {
            None => Ok(Member::join(cluster, node)?),
            Some(_) => Err(FabricError::unfit_provider("shm", "it has no settings")),
        },
    }),
    #[cfg(test)]
    beds: &[super::conformance::Bed::shm],
};

#[cfg(all(test, not(miri)))]
pub(super) mod tests {
    use super::endpoint::WAITS_PER_LOOK_AT_KEYS;
    use super::files::region_path;
    use super::member::PAGE;
    use super::*;
    use crate::address::{NodeId, RegionId};
    use crate::provider::{Membership, Provider};
    use farhold_testkit::memory_directory;
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Removed files of that kind which this process still maps.
    fn removed_but_mapped(cluster: &Path, kind: &str) -> usize {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_cluster = format!("{}/", cluster.display());
        maps.lines().filter(|it| it.contains(&of_cluster) && it.contains(kind) && it.ends_with("(deleted)")).count()
    }

    /// The memory of a removed region is free when the threads that have used it have slept for a while.
    #[test]
    fn a_sleeper_lets_go_of_a_removed_region() {
        let cluster = memory_directory();
        let cluster = cluster.path();
        let (one, two) = (Member::join(cluster, NodeId(1)).unwrap(), Member::join(cluster, NodeId(2)).unwrap());
        let region = RegionId(5);
        drop(two.create_region(region, PAGE).unwrap());
        two.open_region(region).unwrap();
        let endpoint = one.clone().open(None).unwrap();
        assert!(endpoint.mapped(NodeId(2), region).is_some());
        two.remove_region(region).unwrap();
        drop(two.create_region(region, PAGE).unwrap());
        two.open_region(region).unwrap();
        assert_eq!(removed_but_mapped(cluster, ".region-"), 1);
        for _ in 0..WAITS_PER_LOOK_AT_KEYS {
            assert!(!endpoint.wait(0));
        }
        assert_eq!(removed_but_mapped(cluster, ".region-"), 0);
        assert!(endpoint.mapped(NodeId(2), region).is_none(), "its key is stale");
        endpoint.refresh(NodeId(2), region).unwrap();
        assert!(endpoint.mapped(NodeId(2), region).is_some());
    }

    /// A sender that never sends to an ended port again does not keep its inbox, 64 MiB of addresses, for ever.
    #[test]
    fn lanes_into_ended_inboxes_are_let_go() {
        let cluster = memory_directory();
        let member = Member::join(cluster.path(), NodeId(1)).unwrap();
        let sender = member.clone().open(None).unwrap();
        for _ in 0..10 {
            let ended = member.clone().open(None).unwrap();
            sender.send(ended.address(), b"a last word").unwrap();
        }
        let last = member.clone().open(None).unwrap();
        sender.send(last.address(), b"and a first one").unwrap();
        assert_eq!(removed_but_mapped(cluster.path(), ".inbox-"), 0);
    }

    /// A process may end at any moment: a region's name never leads to a file that is no region yet.
    #[test]
    fn a_region_has_its_length_when_it_has_its_name() {
        let cluster = memory_directory();
        let member = Member::join(cluster.path(), NodeId(1)).unwrap();
        let region = RegionId(5);
        let (path, done) = (region_path(cluster.path(), NodeId(1), region), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let mut found = std::collections::BTreeSet::new();
                while !done.load(Ordering::SeqCst) {
                    found.extend(fs::metadata(&path).map(|data| data.len()));
                }
                found
            });
            for _ in 0..5000 {
                member.create_region(region, 2 * PAGE).unwrap();
                member.remove_region(region).unwrap();
            }
            done.store(true, Ordering::SeqCst);
            let found = looker.join().unwrap();
            assert!(found.iter().all(|len| *len == 2 * PAGE), "{found:?}");
        });
        // A draft that a killed process has left does no harm.
        let draft = path.with_extension("draft-005");
        fs::write(&draft, b"half").unwrap();
        member.create_region(region, PAGE).unwrap();
        assert_eq!(
            member.create_region(region, PAGE).err(),
            Some(FabricError::RegionExists { node: NodeId(1), region })
        );
        assert_eq!(member.attach_region(region).map(|memory| memory.len()), Ok(PAGE));
        let name = member.attach_region(region).unwrap().file_name();
        assert_eq!(name, path.display().to_string());
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(PAGE - 1)).unwrap();
        let error = member.attach_region(region).map(drop).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("4095 bytes") && error.contains("4096"), "{error}");
    }
}
