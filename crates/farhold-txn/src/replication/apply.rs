//! From this node's rings into its mirrors.

use crate::base::error::TxnError;
use crate::cluster::configuration::Configuration;
use crate::replication::Replication;
use crate::replication::mirror::{MirrorRows, Spare};
use farhold_fabric::NodeId;
use farhold_store::log::{Change, Entry, LogError, LogRegion, Record, Records, RingReader};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;

/// This node's readers of all rings, and the mirrors that they fill.
pub(crate) struct Applier {
    readers: Vec<RingReader>,
    mirrors: Mirrors,
    records: Records,
    /// A record that is marked and damaged: nothing behind it can be read.
    damaged: Option<LogError>,
    /// The configuration with which this node came into the cluster, 0 for a founder. A node that had left before knows
    /// nothing of it, and is not fenced here: its late records are for an earlier start of this node.
    since: u64,
    /// The highest epoch of a record that has been applied.
    epoch_seen: u32,
    /// The most turns of [`Self::apply`] at one ring; together they cover a whole ring.
    turns_of_ring: usize,
}

/// By node number, and memory for them.
struct Mirrors(Vec<Option<MirrorRows>>, Spare);

/// Rows of a mirror whose memory is given back by another thread.
const LARGE_MIRROR: usize = 10_000;
/// Bytes of records taken from one ring at a time: enough rows for their cache misses to overlap, and so few that they are still in
/// the first cache when they are applied.
const BYTES_PER_TURN: usize = 16 << 10;

impl Applier {
    pub fn new(log: &LogRegion, spare: Spare) -> Self {
        let layout = log.layout();
        let rings = (0..layout.nodes).flat_map(|node| (0..layout.rings).map(move |ring| (NodeId(node), ring)));
        let readers = rings.map(|(node, ring)| log.reader(node, ring)).collect();
        let mirrors = Mirrors(Vec::new(), spare);
        let turns_of_ring = layout.ring_bytes as usize / BYTES_PER_TURN + 2;
        Self { readers, mirrors, records: Records::default(), damaged: None, since: 0, epoch_seen: 0, turns_of_ring }
    }

    /// Applies what is marked, some of each ring; true if there was something.
    pub fn apply(&mut self) -> bool {
        let Self { readers, mirrors, records, damaged, since, epoch_seen, .. } = self;
        let mut any = false;
        for reader in readers.iter_mut().filter(|reader| reader.is_marked()) {
            let before = reader.applied();
            records.clear();
            while records.len() < BYTES_PER_TURN {
                match reader.next(records) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        *damaged = Some(error);
                        break;
                    }
                }
            }
            *epoch_seen = records.iter().map(|record| record.epoch()).fold(*epoch_seen, u32::max);
            crate::base::planted::may_stop();
            mirrors.take_all(records, *since);
            crate::base::planted::may_stop();
            if reader.applied() != before {
                reader.publish();
                any = true;
            }
        }
        any
    }

    /// The highest epoch of what has been applied: a dead node may have read it from a keeper that is dead as well; then no other node
    /// has seen it.
    pub fn epoch_seen(&self) -> u32 {
        self.epoch_seen
    }

    /// Applies what has been marked so far, and maybe more: writers go on meanwhile.
    pub fn apply_so_far(&mut self) {
        for _ in 0..self.turns_of_ring {
            if !self.apply() {
                break;
            }
        }
    }

    /// Applies until nothing is marked. To be called while nothing writes.
    ///
    /// # Errors
    /// [`TxnError::Corrupt`] if a record is damaged.
    pub fn apply_all(&mut self) -> Result<(), TxnError> {
        while self.apply() {}
        if self.damaged.is_some() {
            Err(TxnError::Corrupt { what: "a marked record of the log is damaged" })
        } else {
            Ok(())
        }
    }

    /// The node comes into the cluster with this configuration.
    pub fn begin(&mut self, number: u64) {
        self.since = number;
    }

    /// Takes a row into the mirror that wants it.
    pub fn take(&mut self, entry: &Entry<'_>) {
        self.mirrors.take(entry);
    }

    /// The mirror of a node.
    pub fn mirror(&mut self, of: NodeId) -> Option<&mut MirrorRows> {
        self.mirrors.of_mut(of)
    }

    /// The mirror of a node, if it is the one that has been wanted since this configuration.
    pub fn mirror_since(&mut self, of: NodeId, since: u64) -> Option<&mut MirrorRows> {
        self.mirror(of).filter(|mirror| mirror.since() == since)
    }

    /// Forgets the rows of a table that has been dropped.
    pub fn forget_table(&mut self, table: farhold_store::TableId) {
        self.mirrors.0.iter_mut().flatten().for_each(|mirror| mirror.forget_table(table));
    }

    /// The tables of all rows in its mirrors.
    pub fn tables(&self) -> BTreeSet<farhold_store::TableId> {
        self.mirrors.0.iter().flatten().flat_map(MirrorRows::tables).collect()
    }

    /// Visits the entries of every record that nodes which are not present have left: configuration, owner, epoch, row.
    ///
    /// # Errors
    /// [`TxnError::Corrupt`].
    pub fn left_behind(
        &self,
        is_present: impl Fn(NodeId) -> bool,
        visit: &mut dyn FnMut(u64, u64, u32, &Entry<'_>),
    ) -> Result<(), TxnError> {
        for reader in self.readers.iter().filter(|reader| !is_present(reader.writer())) {
            let found = reader.left_behind(&mut |record: &Record<'_>| {
                if record.configuration() < self.since {
                    return;
                }
                for entry in record.entries().filter_map(Result::ok) {
                    visit(record.configuration(), record.owner(), record.epoch(), &entry);
                }
            });
            found.map_err(|_| TxnError::Corrupt { what: "a marked record of the log is damaged" })?;
        }
        Ok(())
    }

    /// Empties the rings of nodes that are not present.
    pub fn clear_rings(&mut self, log: &LogRegion, is_present: impl Fn(NodeId) -> bool) {
        for node in (0..log.layout().nodes).map(NodeId).filter(|node| !is_present(*node)) {
            log.clear(node);
            for ring in 0..log.layout().rings {
                let place = usize::from(node.0) * usize::from(log.layout().rings) + usize::from(ring);
                self.readers[place] = log.reader(node, ring);
            }
        }
    }

    /// Begins the mirrors that a configuration wants here. It must be called before any node commits in it: a record
    /// that comes before its mirror is lost.
    pub fn begin_mirrors(&mut self, configuration: &Configuration, me: NodeId) {
        let wanted = configuration.mirrors.iter().filter(|mirror| mirror.on == me);
        forget(wanted.filter_map(|mirror| self.mirrors.begin(mirror.of, mirror.since)).collect());
    }

    /// Forgets the mirrors that a configuration does not want here.
    pub fn end_mirrors(&mut self, configuration: &Configuration, me: NodeId) {
        let wanted = |of: NodeId| configuration.mirrors.iter().any(|mirror| (mirror.of, mirror.on) == (of, me));
        let unwanted = (0..).map(NodeId).zip(&mut self.mirrors.0).filter(|(of, _)| !wanted(*of));
        forget(unwanted.filter_map(|(_, mirror)| mirror.take()).collect());
    }
}

/// Gives back the memory of mirrors that have ended.
fn forget(ended: Vec<MirrorRows>) {
    if ended.iter().any(|rows| rows.len() > LARGE_MIRROR) {
        // With millions of rows this takes longer than a lease.
        drop(std::thread::spawn(move || drop(ended)));
    }
}

impl Mirrors {
    #[inline]
    fn of(&self, node: NodeId) -> Option<&MirrorRows> {
        self.0.get(usize::from(node.0))?.as_ref()
    }

    #[inline]
    fn of_mut(&mut self, node: NodeId) -> Option<&mut MirrorRows> {
        self.0.get_mut(usize::from(node.0))?.as_mut()
    }

    /// Begins one, if it is not there. Returns the earlier mirror that it replaces, which lacks the records of a time
    /// in which no configuration wanted it.
    fn begin(&mut self, of: NodeId, since: u64) -> Option<MirrorRows> {
        let place = usize::from(of.0);
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        let Self(mirrors, spare) = self;
        let is_there = mirrors[place].as_ref().is_some_and(|mirror| mirror.since() == since);
        if is_there { None } else { mirrors[place].replace(MirrorRows::new(since, spare.clone())) }
    }

    #[inline]
    fn take(&mut self, entry: &Entry<'_>) {
        if entry.mirrored
            && let Some(mirror) = self.of_mut(entry.node)
        {
            match entry.change {
                Change::Patch => mirror.patch(entry),
                _ => mirror.take(entry.reference, entry.new, entry.table, entry.key, entry.value),
            }
        }
    }

    fn take_all(&mut self, records: &Records, since: u64) {
        let records = || records.iter().filter(|record| record.configuration() >= since);
        let entries = || records().flat_map(|record| record.entries().filter_map(Result::ok));
        for entry in entries() {
            if let Some(mirror) = self.of(entry.node) {
                mirror.prefetch(entry.reference);
            }
        }
        for entry in entries() {
            if let Some(mirror) = self.of(entry.node) {
                mirror.prefetch_row(&entry);
            }
        }
        for entry in entries() {
            self.take(&entry);
        }
    }
}

/// How long the keeper of mirrors sleeps between two walks through the rings. A ring of 2 MiB takes some ms to fill.
const NAP: Duration = Duration::from_millis(1);

/// A thread that brings the node's rings into its mirrors. Stopped and joined on drop.
///
/// It takes many records at a time and sleeps in between. A reader close behind the writer would take cache lines from
/// the writer that it is about to write. It has a worker's scheduling priority. With a tenth of a share (`nice` 10),
/// rings filled up on an overloaded machine. No other thread could help, because this one was descheduled while it held
/// the lock of the mirrors. A writer whose ring is full asks by a message, and any thread of the node that finds the
/// message acts upon it.
#[derive(Debug)]
pub(crate) struct MirrorKeeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MirrorKeeper {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(replication: &Arc<Replication>) -> Result<Self, TxnError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, replication) = (stop.clone(), replication.clone());
        let hand_on = crate::base::planted::hand_on();
        let keep = move || {
            hand_on();
            while !stopped.load(Acquire) {
                while !stopped.load(Acquire) && replication.try_applier().is_some_and(|mut applier| applier.apply()) {}
                std::thread::park_timeout(NAP);
            }
        };
        let thread = std::thread::Builder::new().name("farhold-mirror".into()).spawn(keep);
        let thread = thread.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for MirrorKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::Version;
    use farhold_store::{ObjectRef, TableId};

    #[test]
    fn a_mirror_that_is_wanted_anew_begins_empty() {
        let (of, mut mirrors) = (NodeId(1), Mirrors(Vec::new(), Spare::default()));
        let count = |mirrors: &Mirrors| mirrors.of(of).map(MirrorRows::len);
        assert!(mirrors.begin(of, 2).is_none());
        let mirror = mirrors.of_mut(of).expect("begun");
        mirror.take(ObjectRef::new(64, 1), Version(Version::ONE), TableId(20), b"key", b"value");
        assert!(mirrors.begin(of, 2).is_none());
        assert_eq!(count(&mirrors), Some(1), "the same goes on");
        // A configuration that this node has never installed did not want it.
        assert_eq!(mirrors.begin(of, 5).map(|before| before.len()), Some(1));
        assert_eq!(count(&mirrors), Some(0));
        assert_eq!(mirrors.of(of).map(MirrorRows::since), Some(5));
    }
}
