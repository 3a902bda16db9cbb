//! Column copies: the tables of this node that are also kept as columns, and the records of the commit log that update them.
//!
//! ```text
//!   a step of the journal ── offer: records ──► queue ──────┐
//!          └── close: an epoch whose records are all there  ├─ apply ──► copies of tables (farhold_store::column::copy)
//!   the other nodes' journals ── durability/follow.rs ──────┘     └── complete: views of an epoch that all have closed can be had
//! ```
//! One record has several consumers: the journal's file, the mirrors on other nodes, and these copies. A copy uses the records that the journal writes, so a
//! commit does no extra work for it. On a node that is alone and has no journal, commits leave records for the columns (`own.rs`). The chunks of copies are in
//! a region of the node, which other nodes read. Copies are rebuilt when the node starts.

pub(crate) mod own;
pub(crate) mod report;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::base::bell::Bell;
use crate::base::definition::KeptColumns;
use crate::base::table::Table;
use farhold_fabric::latencies::LatencyRecorder;
use farhold_store::TableId;
use farhold_store::column::copy::{ColumnCopy, ColumnView, CopySize, Kept};
use farhold_store::column::memory::ColumnMemory;
use taken::Taken;

/// Why a query reads the rows of a table and not its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoColumns {
    /// The table has none: it is not kept as columns, or it is [small](KeptColumns::Auto).
    #[error("the table has none")]
    NotKept,
    /// The query needs a column that they do not have.
    #[error("they lack a column that the query needs")]
    Lacking,
    /// There is no room for them within [`NodeConfig::columns_bytes_max`](crate::NodeConfig), or none in the memory of the system.
    #[error("there is no room for them")]
    NoRoom,
    /// Those of several nodes are made from the journals, and this cluster has none.
    #[error("those of several nodes are made from their journals, and they have none")]
    NoJournal,
    /// The nodes that have the rows are changing, or have changed since the snapshot.
    #[error("the cluster's configuration is changing")]
    Changing,
    /// They are being built.
    #[error("they are being built")]
    Building,
    /// The copy is behind the snapshot, and no thread applies further records.
    #[error("they are at epoch {0}, before the snapshot")]
    Behind(u32),
    /// The copy has been merged past the snapshot.
    #[error("they are past the snapshot, at epoch {0}")]
    Past(u32),
    /// The session requires rows.
    #[error("the session requires rows")]
    NotWanted,
    /// The node that has them does not answer, or does not keep the snapshot.
    #[error("the node that has them does not answer for the snapshot")]
    Unreachable,
    /// The data that the node with the columns has sent is invalid.
    #[error("the data read from another node is damaged")]
    Damaged,
}

impl NoColumns {
    /// Its encoding in messages.
    pub(crate) fn code(self) -> (u8, u32) {
        match self {
            Self::NotKept => (0, 0),
            Self::Lacking => (1, 0),
            Self::NoRoom => (2, 0),
            Self::NoJournal => (3, 0),
            Self::Changing => (4, 0),
            Self::Building => (5, 0),
            Self::Behind(epoch) => (6, epoch),
            Self::Past(epoch) => (7, epoch),
            Self::Unreachable => (8, 0),
            Self::Damaged => (9, 0),
            Self::NotWanted => (10, 0),
        }
    }

    /// The reverse of [`Self::code`].
    pub(crate) fn of_code(code: u8, epoch: u32) -> Option<Self> {
        Some(match code {
            0 => Self::NotKept,
            1 => Self::Lacking,
            2 => Self::NoRoom,
            3 => Self::NoJournal,
            4 => Self::Changing,
            5 => Self::Building,
            6 => Self::Behind(epoch),
            7 => Self::Past(epoch),
            8 => Self::Unreachable,
            9 => Self::Damaged,
            10 => Self::NotWanted,
            _ => return None,
        })
    }

    /// One of each.
    #[cfg(test)]
    pub(crate) const EXAMPLES: [Self; 11] = [
        Self::NotKept,
        Self::Lacking,
        Self::NoRoom,
        Self::NoJournal,
        Self::Building,
        Self::Behind(5),
        Self::Past(6),
        Self::Unreachable,
        Self::Damaged,
        Self::NotWanted,
        Self::Changing,
    ];
}

/// The copies of a node, and the records that wait to be applied to them.
pub(crate) struct ColumnFeed {
    /// The memory for the chunks of copies. None before the node is open, and if there was no room for its region.
    memory: OnceLock<Arc<ColumnMemory>>,
    is_wanted: Wanted,
    queue: Mutex<Queue>,
    /// Records have been applied.
    applied: Condvar,
    copies: Mutex<Copies>,
    /// Tables whose columns have no room.
    without_room: Mutex<BTreeMap<TableId, Need>>,
    waiters: Mutex<Vec<Waker>>,
    /// Wakes the thread that applies.
    pub bell: Bell,
    /// That thread is running.
    has_thread: AtomicBool,
    /// Wakes the thread that builds and merges.
    pub merge_bell: Bell,
    /// The number of views of segments that queries have obtained.
    views: AtomicU64,
    losses: AtomicU64,
    /// From a snapshot to each view of it.
    pub waits: LatencyRecorder,
}

/// Whether there is a copy, so that records are wanted. It has a cache line of its own, because each commit of a node without a journal reads it.
#[derive(Default)]
#[repr(align(128))]
struct Wanted(AtomicBool);

/// Statistics of a node's column copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnStatistics {
    /// Tables that have a copy.
    pub tables: usize,
    /// Tables that are to have a copy whose segments have not been made yet.
    pub building: usize,
    /// Tables that are to have a copy for which there is no room.
    pub without_room: usize,
    /// The size of all copies together.
    pub size: CopySize,
    /// How often a query has read segments.
    pub views: u64,
    /// The number of times that all copies were dropped and rebuilt, because records arrived faster than they were applied, or because files were removed
    /// before they were read.
    pub losses: u64,
    /// Whether every committed and durable change is in a segment, except where an open snapshot prevents the merge.
    pub is_merged: bool,
}

/// The copies. All belong to one configuration.
#[derive(Default)]
struct Copies {
    /// The number of the configuration whose nodes' records they receive. `None`: it is changing, and no copy may begin.
    of: Option<u64>,
    tables: BTreeMap<TableId, Arc<ColumnCopy>>,
}

/// A copy that had no room: the columns that it would keep, the bytes that it needs (an estimate), and when it may be tried again.
struct Need {
    kept: Kept,
    bytes: u64,
    not_before_ns: u64,
}

/// A table whose copy had no room is not tried again within this time.
const WITHOUT_ROOM_NS: u64 = 10_000_000_000;

#[derive(Default)]
struct Queue {
    /// Consecutive records in the format of a journal; one block for each call that offered them.
    blocks: Vec<Vec<u8>>,
    /// Bytes of these records, and of records that have been taken and are not applied yet.
    bytes: usize,
    /// All records of this epoch and earlier ones have been offered.
    closed: u32,
    /// Records have been dropped because too many were waiting, so all copies lack them.
    has_lost: bool,
}

impl Queue {
    fn lose(&mut self) {
        (self.blocks, self.bytes) = (Vec::new(), 0);
        self.has_lost = true;
    }
}

/// Bytes of records that may wait to be applied.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// While more bytes than these wait, workers that leave records wait for the thread that applies them, each for at most `BACKLOG_WAIT`.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
const BACKLOG_WAIT: Duration = Duration::from_millis(100);

impl ColumnFeed {
    /// A feed without copies. If the cluster has configurations, no copy begins before the node is in one.
    pub fn new(is_replicated: bool) -> Self {
        let of = (!is_replicated).then_some(0);
        Self {
            memory: OnceLock::new(),
            is_wanted: Wanted::default(),
            queue: Mutex::default(),
            applied: Condvar::new(),
            copies: Mutex::new(Copies { of, tables: BTreeMap::new() }),
            without_room: Mutex::default(),
            waiters: Mutex::default(),
            bell: Bell::default(),
            has_thread: AtomicBool::new(false),
            merge_bell: Bell::default(),
            views: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            waits: LatencyRecorder::default(),
        }
    }

    /// Begins a change of the configuration: of the rows that this node has, and of the nodes whose records change them. All copies are dropped, and none
    /// begins until the node is in another configuration.
    pub fn leave_configuration(&self) {
        self.change_configuration(None);
    }

    /// The node is in this configuration, and may begin copies for it.
    pub fn enter_configuration(&self, number: u64) {
        self.change_configuration(Some(number));
    }

    fn change_configuration(&self, of: Option<u64>) {
        let mut copies = held(&self.copies);
        if copies.of == of {
            return;
        }
        copies.of = of;
        if !planted!(ColumnsNotForgotten) {
            copies.tables.clear();
            self.want_nothing();
        }
        drop(copies);
        self.wake();
    }

    /// Notes that there are no copies any more. The caller holds their lock; otherwise a new copy would miss records.
    fn want_nothing(&self) {
        self.is_wanted.0.store(false, SeqCst);
        *held(&self.queue) = Queue::default();
    }

    /// The configuration that copies belong to; `None` while it is changing.
    pub fn configuration(&self) -> Option<u64> {
        held(&self.copies).of
    }

    /// Queues a copy of records, each complete with its mark. The journal calls this for all records that it takes, before their epoch is closed.
    pub fn offer(&self, records: &[u8]) {
        if self.is_wanted() {
            self.hand_over(records.to_vec());
        }
    }

    /// As [`Self::offer`], but takes ownership of the records.
    fn hand_over(&self, records: Vec<u8>) {
        if self.is_wanted() && !records.is_empty() {
            let mut queue = held(&self.queue);
            if queue.bytes + records.len() > QUEUE_BYTES_MAX {
                queue.lose();
            }
            queue.bytes += records.len();
            queue.blocks.push(records);
        }
    }

    /// Waits while a long backlog is applied. If workers committed faster than one thread applies, the copies would be lost again and again. The wait is short,
    /// because the system may not schedule that thread.
    pub fn wait_for_backlog(&self) {
        let is_long = |queue: &mut Queue| queue.bytes > BACKLOG_BYTES_MAX && self.has_thread();
        drop(self.applied.wait_timeout_while(held(&self.queue), BACKLOG_WAIT, is_long));
    }

    /// Notes that a record is missing that belongs before the next epoch that is closed. It is called once the record's rows are written, or while they are
    /// locked: if there is no copy now, the snapshot of a later copy contains them.
    pub fn miss(&self) {
        let mut queue = held(&self.queue);
        // Under the lock: when the last copy is forgotten, the queue is emptied afterwards.
        if self.is_wanted() {
            queue.lose();
        }
    }

    /// All records up to this epoch have been offered.
    pub fn close(&self, epoch: u32) {
        if self.set_closed(epoch) {
            self.bell.ring();
        }
    }

    /// As [`Self::close`], for the thread that applies; false: there are no copies.
    fn set_closed(&self, epoch: u32) -> bool {
        let is_wanted = self.is_wanted();
        if is_wanted {
            let mut queue = held(&self.queue);
            queue.closed = queue.closed.max(epoch);
        }
        is_wanted
    }

    /// The last epoch of which all records have been offered.
    pub fn closed(&self) -> u32 {
        held(&self.queue).closed
    }

    /// Bytes of records that have been offered and are not applied yet.
    pub fn waiting_bytes(&self) -> u64 {
        held(&self.queue).bytes as u64
    }

    /// The memory for the chunks of copies, if there is any.
    pub fn memory(&self) -> Option<&Arc<ColumnMemory>> {
        self.memory.get()
    }

    /// Gives the copies their memory.
    pub fn set_memory(&self, memory: Arc<ColumnMemory>) {
        let _ = self.memory.set(memory);
    }

    /// Begins a copy. It receives the records of all commits that read their epoch from now on, and perhaps of earlier ones. False: the node is no longer in
    /// this configuration.
    pub fn add(&self, table: TableId, copy: Arc<ColumnCopy>, configuration: u64) -> bool {
        let mut copies = held(&self.copies);
        let is_of_it = copies.of == Some(configuration);
        if is_of_it {
            copies.tables.insert(table, copy);
            self.is_wanted.0.store(true, SeqCst);
        }
        is_of_it
    }

    /// Drops the copies for which `stays` is false.
    pub fn retain(&self, stays: impl Fn(TableId, &ColumnCopy) -> bool) {
        let mut copies = held(&self.copies);
        let before = copies.tables.len();
        copies.tables.retain(|table, copy| stays(*table, copy));
        if copies.tables.len() == before && before > 0 {
            return;
        }
        if copies.tables.is_empty() {
            self.want_nothing();
        }
        drop(copies);
        self.wake();
    }

    /// Whether there is no room for a table's columns.
    pub fn is_without_room(&self, table: TableId) -> bool {
        held(&self.without_room).contains_key(&table)
    }

    /// Notes that there is no room for a copy that needs about this many bytes. The copy is dropped.
    pub fn set_without_room(&self, table: TableId, copy: &ColumnCopy, bytes: u64, now_ns: u64) {
        // A little more, so that it is not tried again and again with slightly too little room.
        let bytes = bytes + bytes / 8;
        let need = Need { kept: copy.kept().clone(), bytes, not_before_ns: now_ns + WITHOUT_ROOM_NS };
        held(&self.without_room).insert(table, need);
        self.retain(|other, _| other != table);
    }

    /// Whether a copy may be tried within `room` bytes: an earlier attempt with the same columns did not need more.
    pub fn may_have_room(&self, table: TableId, kept: &Kept, room: u64, now_ns: u64) -> bool {
        let is_enough = |need: &Need| need.bytes <= room && now_ns >= need.not_before_ns;
        held(&self.without_room).get(&table).is_none_or(|need| need.kept != *kept || is_enough(need))
    }

    /// Forgets that there was no room for a copy of this table.
    pub fn forget_need(&self, table: TableId) {
        held(&self.without_room).remove(&table);
    }

    /// Forgets the noted needs of tables for which `stays` is false.
    pub fn retain_needs(&self, stays: impl Fn(TableId) -> bool) {
        held(&self.without_room).retain(|table, _| stays(*table));
    }

    /// Bytes of all copies except that of one table.
    pub fn bytes_without(&self, table: Option<TableId>) -> u64 {
        let others = self.copies().into_iter().filter(|(other, _)| Some(*other) != table);
        others.map(|(_, copy)| copy.size().bytes()).sum()
    }

    /// The columns of a table that this node must keep.
    pub fn wanted(&self, table: &Table) -> Option<Kept> {
        match table.kept_columns() {
            KeptColumns::None => None,
            KeptColumns::All => Some(Kept::All),
            KeptColumns::These(columns) => Some(Kept::These(columns.into_iter().map(usize::from).collect())),
            KeptColumns::Auto => {
                // A table that shrinks by a few rows keeps its copy.
                let has_copy = self.copy(table.id()).is_some();
                let rows_min = if has_copy { KeptColumns::AUTO_ROWS / 2 } else { KeptColumns::AUTO_ROWS };
                (table.row_count() >= rows_min).then_some(Kept::All)
            }
        }
    }

    fn wake(&self) {
        for waker in std::mem::take(&mut *held(&self.waiters)) {
            waker.wake();
        }
    }

    /// A table's copy.
    pub fn copy(&self, table: TableId) -> Option<Arc<ColumnCopy>> {
        held(&self.copies).tables.get(&table).cloned()
    }

    /// A table's copy, if it is of this configuration.
    pub fn copy_of(&self, table: TableId, configuration: u64) -> Option<Arc<ColumnCopy>> {
        let copies = held(&self.copies);
        copies.tables.get(&table).filter(|_| copies.of == Some(configuration)).cloned()
    }

    /// All copies.
    pub fn copies(&self) -> Vec<(TableId, Arc<ColumnCopy>)> {
        held(&self.copies).all()
    }

    /// Whether there is a copy, or one begins.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.0.load(SeqCst)
    }

    /// Takes the offered records. Only one thread calls this. If records were dropped, all copies are dropped too, and are rebuilt.
    pub fn take(&self) -> Taken {
        let (blocks, closed, has_lost) = {
            let mut queue = held(&self.queue);
            (std::mem::take(&mut queue.blocks), queue.closed, std::mem::take(&mut queue.has_lost))
        };
        if has_lost {
            self.lose();
        }
        let bytes = blocks.iter().map(Vec::len).sum();
        // Last: a copy that begins later needs none of these records.
        let copies = held(&self.copies);
        Taken { blocks, bytes, closed, configuration: copies.of, copies: copies.all(), has_changes: false }
    }

    /// Notes that everything in `taken` has been applied, and all records up to this epoch.
    pub fn complete(&self, taken: &Taken, closed: u32) {
        {
            let mut queue = held(&self.queue);
            // They may have been forgotten meanwhile.
            queue.bytes = queue.bytes.saturating_sub(taken.bytes);
            self.applied.notify_all();
        }
        for (_, copy) in &taken.copies {
            copy.complete(closed);
        }
        self.wake();
        if taken.has_changes {
            self.merge_bell.ring();
        }
    }

    /// Records are missing.
    pub fn lose(&self) {
        self.losses.fetch_add(1, Relaxed);
        self.forget_all();
        self.wake();
    }

    /// Drops all copies, because they lack changes. Queries read rows.
    pub fn forget_all(&self) {
        let mut copies = held(&self.copies);
        copies.tables.clear();
        self.want_nothing();
    }

    /// Counts a view that a query has obtained.
    pub fn count_view(&self, view: &ColumnView) {
        self.views.fetch_add(u64::from(view.has_segments()), Relaxed);
    }

    /// The statistics of the copies. `building`: the number of copies that are wanted and not built yet.
    pub fn statistics(&self, building: usize, has_snapshots: bool) -> ColumnStatistics {
        let copies = self.copies();
        let (closed, is_empty) = {
            let queue = held(&self.queue);
            (queue.closed, queue.blocks.is_empty())
        };
        // First: the sizes below have what was applied.
        let is_applied = is_empty && copies.iter().all(|(_, copy)| copy.complete_to() >= closed);
        let mut size = CopySize::default();
        for (_, copy) in &copies {
            size += copy.size();
        }
        ColumnStatistics {
            tables: copies.len(),
            building,
            without_room: held(&self.without_room).len(),
            size,
            views: self.views.load(Relaxed),
            losses: self.losses(),
            is_merged: is_applied && building == 0 && (size.delta_rows == 0 || has_snapshots),
        }
    }

    /// Wakes `waker` when more has been applied.
    pub fn wait(&self, waker: &Waker) {
        let mut waiters = held(&self.waiters);
        // A task that also waits for other events calls this each time that one of them wakes it.
        if !waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            waiters.push(waker.clone());
            drop(waiters);
            self.bell.ring();
        }
    }

    /// Whether a thread applies records to this copy, which must still be the table's.
    pub fn is_applied_to(&self, table: TableId, copy: &Arc<ColumnCopy>) -> bool {
        self.has_thread() && self.copy(table).is_some_and(|now| Arc::ptr_eq(&now, copy))
    }

    /// Whether a thread applies records to copies.
    pub fn has_thread(&self) -> bool {
        self.has_thread.load(SeqCst)
    }

    /// The number of times that all copies were dropped because records were missing.
    pub fn losses(&self) -> u64 {
        self.losses.load(Relaxed)
    }

    /// Notes whether a thread applies records.
    pub fn set_applied(&self, is_applied: bool) {
        self.has_thread.store(is_applied, SeqCst);
        self.wake();
    }
}

impl Copies {
    fn all(&self) -> Vec<(TableId, Arc<ColumnCopy>)> {
        self.tables.iter().map(|(table, copy)| (*table, copy.clone())).collect()
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
