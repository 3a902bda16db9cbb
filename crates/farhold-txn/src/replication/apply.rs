//! From this node's rings into its mirrors.

use super::mirror::MirrorRows;
use crate::membership::Configuration;
use crate::worker::Core;
use crate::{NodeId, TxnError};
use farhold_store::log::{Entry, LogError, LogRegion, Record, RingReader};
use std::collections::BTreeMap;

/// This node's readers of all rings, and what they have brought.
pub(crate) struct Applier {
    readers: Vec<RingReader>,
    mirrors: BTreeMap<NodeId, MirrorRows>,
    bytes: Vec<u8>,
    /// A record that is marked and damaged: nothing behind it can be read.
    damaged: Option<LogError>,
}

/// Rows of a mirror whose memory is given back by another thread.
const LARGE_MIRROR: usize = 10_000;
/// Records taken from one ring before the next has its turn.
const RECORDS_PER_TURN: usize = 256;

impl Applier {
    pub fn new(log: &LogRegion) -> Self {
        let layout = log.layout();
        let rings = (0..layout.nodes).flat_map(|node| (0..layout.rings).map(move |ring| (NodeId(node), ring)));
        let readers = rings.map(|(node, ring)| log.reader(node, ring)).collect();
        Self { readers, mirrors: BTreeMap::new(), bytes: Vec::new(), damaged: None }
    }

    /// Applies what is marked; true if there was something.
    pub fn apply(&mut self) -> bool {
        let Self { readers, mirrors, bytes, damaged } = self;
        let mut any = false;
        for reader in readers.iter_mut().filter(|reader| reader.is_marked()) {
            let before = reader.applied();
            for _ in 0..RECORDS_PER_TURN {
                match reader.next(bytes) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        *damaged = Some(error);
                        break;
                    }
                }
                if bytes.is_empty() {
                    continue;
                }
                if let Ok(record) = Record::check(bytes, reader.applied() - bytes.len() as u64) {
                    record.entries().filter_map(Result::ok).for_each(|entry| take(mirrors, &entry));
                }
            }
            if reader.applied() != before {
                reader.publish();
                any = true;
            }
        }
        any
    }

    /// Applies until nothing is marked.
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

    /// Takes a row into the mirror that wants it.
    pub fn take(&mut self, entry: &Entry<'_>) {
        take(&mut self.mirrors, entry);
    }

    /// The mirror of a node.
    pub fn mirror(&mut self, of: NodeId) -> Option<&mut MirrorRows> {
        self.mirrors.get_mut(&of)
    }

    /// Forgets the rows of a table that has been dropped.
    pub fn forget_table(&mut self, table: crate::TableId) {
        self.mirrors.values_mut().for_each(|mirror| mirror.forget_table(table));
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
            let found = reader.left_behind(&mut |lsn, bytes| {
                if let Ok(record) = Record::check(bytes, lsn) {
                    for entry in record.entries().filter_map(Result::ok) {
                        visit(record.configuration(), record.owner(), record.epoch(), &entry);
                    }
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

    /// Begins the mirrors that a configuration wants here. Before anybody commits in it: a record that comes before its mirror is lost.
    pub fn begin_mirrors(&mut self, configuration: &Configuration, me: NodeId) {
        for mirror in configuration.mirrors.iter().filter(|mirror| mirror.on == me) {
            self.mirrors.entry(mirror.of).or_default();
        }
    }

    /// Forgets the mirrors that a configuration does not want here.
    pub fn end_mirrors(&mut self, configuration: &Configuration, me: NodeId) {
        let wanted = |of: &NodeId| configuration.mirrors.iter().any(|mirror| (mirror.of, mirror.on) == (*of, me));
        let ended: Vec<MirrorRows> = self.mirrors.extract_if(.., |of, _| !wanted(of)).map(|(_, rows)| rows).collect();
        if ended.iter().any(|rows| rows.len() > LARGE_MIRROR) {
            // To give back the memory of millions of rows takes longer than a lease.
            drop(std::thread::spawn(move || drop(ended)));
        }
    }
}

fn take(mirrors: &mut BTreeMap<NodeId, MirrorRows>, entry: &Entry<'_>) {
    if entry.mirrored
        && let Some(mirror) = mirrors.get_mut(&entry.node)
    {
        mirror.take(entry.reference, entry.new, entry.table, entry.key, entry.value);
    }
}

/// Looks of a worker into the inbox between two into the rings: those are first of all the home agent's, which has a thread of its
/// own; a ring that is nearly full says so by a message.
const LOOKS_PER_APPLY: u32 = 64;

impl Core {
    /// Called with each look into the inbox.
    #[inline]
    pub fn apply_now_and_then(&self) {
        if self.node.replication.is_some() {
            let looks = self.looks.get().wrapping_add(1);
            self.looks.set(looks);
            if looks.is_multiple_of(LOOKS_PER_APPLY) {
                self.apply_log();
            }
        }
    }

    /// Brings what is in this node's rings into its mirrors, if nobody else is at it; true if there was something.
    #[inline]
    pub fn apply_log(&self) -> bool {
        self.node.replication.as_ref().is_some_and(|it| it.try_applier().is_some_and(|mut applier| applier.apply()))
    }
}
