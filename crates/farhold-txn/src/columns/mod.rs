//! Column copies: the tables of this node that are kept as columns too, and what the commit log brings them.
//!
//! ```text
//!   a step of the journal ── offer: records ──► queue ── apply ──► copies of tables (farhold_store::column::copy)
//!          └── close: an epoch whose records have all been offered ──► complete: views of that epoch can be had
//! ```
//!
//! One record has several consumers: the journal's file, the mirrors on other nodes, and these copies. A copy takes what the journal
//! takes, so a commit does nothing for it. Copies are in this process's memory, and are built anew when the node starts.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::base::bell::Bell;
use farhold_fabric::NodeId;
use farhold_store::TableId;
use farhold_store::column::copy::{ColumnCopy, RowChange};
use farhold_store::log::{Change, Entry, Record};

/// Why a query reads the rows of a table and not its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoColumns {
    /// The table has none.
    #[error("the table has none")]
    NotKept,
    /// They are made from the journal, and this node has none.
    #[error("they are made from the journal, and the node has none")]
    NoJournal,
    /// They are made for clusters of one node.
    #[error("they are made on clusters of one node")]
    ManyNodes,
    /// They are being built.
    #[error("they are being built")]
    Building,
    /// The copy is behind the snapshot, and nothing brings it further.
    #[error("they are at epoch {0}, before the snapshot")]
    Behind(u32),
    /// The copy has been merged past the snapshot.
    #[error("they are past the snapshot, at epoch {0}")]
    Past(u32),
}

/// The copies of a node, and the records that they are to take.
#[derive(Default)]
pub(crate) struct ColumnFeed {
    /// There is a copy: records are wanted.
    is_wanted: AtomicBool,
    queue: Mutex<Queue>,
    copies: Mutex<BTreeMap<TableId, Arc<ColumnCopy>>>,
    waiters: Mutex<Vec<Waker>>,
    /// Wakes the thread that applies.
    pub bell: Bell,
    /// That thread runs.
    has_thread: AtomicBool,
    /// Copies have been dropped that are still wanted.
    pub must_build: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// Records, one behind the other, as a journal has them.
    records: Vec<u8>,
    /// All records of this epoch and earlier ones have been offered.
    closed: u32,
    /// Records have been dropped, because too many were waiting: all copies lack them.
    has_lost: bool,
}

/// Bytes of records that may wait to be applied.
const QUEUE_BYTES_MAX: usize = 256 << 20;

impl ColumnFeed {
    /// Takes a copy of records, each complete with its mark. Called for all that the journal takes, and before their epoch is closed.
    pub fn offer(&self, records: &[u8]) {
        if self.is_wanted.load(SeqCst) && !records.is_empty() {
            let mut queue = held(&self.queue);
            if queue.records.len() + records.len() > QUEUE_BYTES_MAX {
                queue.records = Vec::new();
                queue.has_lost = true;
            }
            queue.records.extend_from_slice(records);
        }
    }

    /// All records up to this epoch have been offered.
    pub fn close(&self, epoch: u32) {
        if self.is_wanted.load(SeqCst) {
            let mut queue = held(&self.queue);
            queue.closed = queue.closed.max(epoch);
            drop(queue);
            self.bell.ring();
        }
    }

    /// Begins a copy. It takes the records of all commits whose epoch is raised from here on, and perhaps earlier ones.
    pub fn add(&self, table: TableId, copy: Arc<ColumnCopy>) {
        held(&self.copies).insert(table, copy);
        self.is_wanted.store(true, SeqCst);
    }

    /// Forgets the copies of tables for which `stays` does not hold.
    pub fn retain(&self, stays: impl Fn(TableId) -> bool) {
        let mut copies = held(&self.copies);
        copies.retain(|table, _| stays(*table));
        if copies.is_empty() {
            self.is_wanted.store(false, SeqCst);
            *held(&self.queue) = Queue::default();
        }
        drop(copies);
        self.wake();
    }

    fn wake(&self) {
        for waker in std::mem::take(&mut *held(&self.waiters)) {
            waker.wake();
        }
    }

    /// A table's copy.
    pub fn copy(&self, table: TableId) -> Option<Arc<ColumnCopy>> {
        held(&self.copies).get(&table).cloned()
    }

    /// All copies.
    pub fn copies(&self) -> Vec<(TableId, Arc<ColumnCopy>)> {
        held(&self.copies).iter().map(|(table, copy)| (*table, copy.clone())).collect()
    }

    /// Applies what has been offered. One thread does so. False: records have been dropped, and so all copies, which are to be built
    /// again.
    pub fn apply(&self, me: NodeId) -> bool {
        let (records, closed, has_lost) = {
            let mut queue = held(&self.queue);
            (std::mem::take(&mut queue.records), queue.closed, std::mem::take(&mut queue.has_lost))
        };
        if has_lost {
            held(&self.copies).clear();
        }
        let mut changes: BTreeMap<TableId, Vec<RowChange<'_>>> = BTreeMap::new();
        for record in whole(&records) {
            for entry in record.entries().filter_map(Result::ok).filter(|entry| entry.node == me) {
                changes.entry(entry.table).or_default().push(change_of(&entry, record.epoch()));
            }
        }
        for (table, copy) in self.copies() {
            if let Some(changes) = changes.remove(&table) {
                copy.apply(changes);
            }
            copy.complete(closed);
        }
        self.wake();
        !has_lost
    }

    /// Wakes `waker` when more has been applied.
    pub fn wait(&self, waker: &Waker) {
        held(&self.waiters).push(waker.clone());
        self.bell.ring();
    }

    /// Whether a thread applies what is offered to this copy: it is still the table's.
    pub fn is_applied_to(&self, table: TableId, copy: &Arc<ColumnCopy>) -> bool {
        self.has_thread.load(SeqCst) && self.copy(table).is_some_and(|now| Arc::ptr_eq(&now, copy))
    }

    /// That a thread does so, or does so no more.
    pub fn set_applied(&self, is_applied: bool) {
        self.has_thread.store(is_applied, SeqCst);
        self.wake();
    }
}

fn change_of<'r>(entry: &Entry<'r>, epoch: u32) -> RowChange<'r> {
    // A journal's records have whole rows, and no patches.
    let row = (entry.change != Change::Delete).then_some((entry.key, entry.value));
    RowChange { reference: entry.reference, version: entry.new, epoch, row }
}

/// The records one behind the other in `bytes`, which `offer` took whole.
fn whole(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let size = u32::from_le_bytes(*bytes.get(8..12)?.first_chunk()?) as usize;
        let (record, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        Some(Record::check(record, 0).expect("a record that this node has made"))
    })
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
