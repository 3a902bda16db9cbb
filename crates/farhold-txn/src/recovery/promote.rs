//! The rows of a mirror become rows of this node, by ordinary replicated transactions: so each of them has its copies
//! before another transaction can change it.
//!
//! ```text
//!   slots with a row, ascending:  │ part │ part │ part │ part │ ...      a free thread takes the next one
//!                                    ▲      ▲
//!              threads of their own ─┴──────┘  in virtual time: tasks of this worker
//! ```
//!
//! No row is served until the last one is there, so the promotion has threads of its own, as many as the machine has
//! processors. The thread that looks after the membership naps a millisecond at a time while workers run: tasks on that
//! thread took over a warehouse of TPC-C in 8 s, two threads take about one.

use crate::base::definition::Placement;
use crate::base::error::TxnError;
use crate::base::slots::WORKERS_MAX;
use crate::base::table::Table;
use crate::cluster::configuration::{Configuration, Serving};
use crate::cluster::progress::Moving;
use crate::node::Node;
use crate::protocol::txn::SharedTable;
use crate::protocol::worker::{Retry, Worker};
use crate::rpc::recovery::ROW_BYTES;
use farhold_fabric::{Executor, NodeId};
use farhold_store::TableId;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;

/// Transactions under way at a time on a thread: over a network each waits for its record to be at its holders.
const TASKS: usize = 8;
/// Rows in one transaction; bytes of them: [`Node::moved_bytes_max`].
const ROWS_PER_TRANSACTION: usize = 64;
const BYTES_PER_TRANSACTION: usize = 16 << 10;
/// Slots that a thread takes at a time: neighbours have neighbouring keys, so two threads rarely meet in a leaf.
const SLOTS_PER_PART: usize = 2_048;
/// The most threads that take part; this many rings are kept for them. A smaller machine uses as many threads as it has
/// processors: the rows are not served before the promotion ends, and with half of the processors a warehouse took a
/// third longer.
pub(crate) const HELPERS_MAX: usize = 8;
/// How often the task that waits for the threads looks at them.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// The rows of a mirror that are to become rows of this node.
struct Promotion {
    configuration: Arc<Configuration>,
    gone: NodeId,
    /// A table that is not on this node has been dropped.
    has_all_tables: bool,
    slots: Vec<u32>,
    part_len: usize,
    /// The first slot that has not been taken.
    next: AtomicUsize,
    /// Slots that are done.
    done: AtomicU64,
    /// No task waits for it any more.
    stop: AtomicBool,
}

impl Promotion {
    fn new(configuration: &Arc<Configuration>, gone: NodeId, has_all_tables: bool, slots: Vec<u32>) -> Self {
        Self {
            configuration: configuration.clone(),
            gone,
            has_all_tables,
            part_len: slots.len().div_ceil(TASKS).clamp(1, SLOTS_PER_PART),
            slots,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// The next part; `None` when each has been taken.
    fn take_part(&self) -> Option<&[u32]> {
        let from = self.next.fetch_add(self.part_len, Relaxed);
        let part = self.slots.get(from..)?;
        let part = &part[..part.len().min(self.part_len)];
        let part = if planted!(PartsApart) { &part[..part.len().saturating_sub(1)] } else { part };
        (!part.is_empty()).then_some(part)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn is_whole(&self) -> bool {
        self.done.load(SeqCst) == self.slots.len() as u64
    }

    fn moving(&self) -> Moving {
        Moving { rows: self.done.load(Relaxed), rows_total: self.slots.len() as u64 }
    }
}

/// Rows out of a mirror, for one transaction.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    found: Vec<RowAt>,
    /// The table of the last row that was looked at, if it is still there.
    last: Option<(TableId, Option<Table>)>,
}

struct RowAt {
    table: Table,
    at: usize,
    key_len: usize,
    value_len: usize,
}

impl Rows {
    /// Copies rows of the first slots, as many as go into one transaction. Returns how many slots these are.
    ///
    /// # Errors
    /// [`TxnError::Conflict`]: the mirror has gone with its configuration.
    fn fill(&mut self, node: &Node, promotion: &Promotion, slots: &[u32]) -> Result<usize, TxnError> {
        self.bytes.clear();
        self.found.clear();
        let replication = node.replication.as_ref().ok_or(TxnError::Conflict)?;
        let slots = &slots[..slots.len().min(ROWS_PER_TRANSACTION)];
        let bytes_max = node.moved_bytes_max();
        let mut applier = replication.applier();
        // Nothing changes in this mirror any more, because its node is gone.
        let mirror = applier.mirror(promotion.gone).ok_or(TxnError::Conflict)?;
        mirror.prefetch_rows(slots);
        let mut bytes = 0;
        for (count, slot) in slots.iter().enumerate() {
            let Some(row) = mirror.row(*slot) else { continue };
            let Some(table) = self.table(node, promotion, row.table, row.key)? else { continue };
            bytes += row.key.len() + row.value.len() + ROW_BYTES;
            if bytes > bytes_max && !self.found.is_empty() {
                return Ok(count);
            }
            let at = self.bytes.len();
            self.bytes.extend_from_slice(row.key);
            self.bytes.extend_from_slice(row.value);
            self.found.push(RowAt { table, at, key_len: row.key.len(), value_len: row.value.len() });
        }
        Ok(slots.len())
    }

    /// The table of a row to insert. None if the table was dropped, or if the row belongs to another partition: an
    /// earlier successor had begun to insert such rows before it died.
    fn table(
        &mut self,
        node: &Node,
        promotion: &Promotion,
        id: TableId,
        key: &[u8],
    ) -> Result<Option<Table>, TxnError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != id) {
            self.last = Some((id, node.table_by_id(id)));
        }
        let Some(table) = self.last.as_ref().and_then(|(_, table)| table.as_ref()) else {
            return if promotion.has_all_tables { Ok(None) } else { Err(TxnError::Conflict) };
        };
        let partition = usize::from(table.0.route.partition(key).0);
        let is_its = table.placement() != Placement::Replicated
            && promotion.configuration.partitions.get(partition) == Some(&Serving::From(promotion.gone));
        Ok(is_its.then(|| table.clone()))
    }

    fn iter(&self) -> impl Iterator<Item = (&Table, &[u8], &[u8])> {
        self.found.iter().map(|row| {
            let payload = &self.bytes[row.at..row.at + row.key_len + row.value_len];
            let (key, value) = payload.split_at(row.key_len);
            (&row.table, key, value)
        })
    }
}

impl Node {
    /// Most bytes of rows, each with [`ROW_BYTES`] more, that one transaction takes from elsewhere to this node; a longer row
    /// is taken alone. No more than half of the longest record that rings and journal take.
    pub(crate) fn moved_bytes_max(&self) -> usize {
        let recorded_max = self.replication.as_ref().map_or(u64::MAX, |it| it.layout.record_bytes_max());
        let journaled_max = self.journaling.as_ref().map_or(u64::MAX, |journaling| journaling.item_bytes_max());
        BYTES_PER_TRANSACTION.min(recorded_max.min(journaled_max) as usize / 2)
    }
}

impl Node {
    /// How many workers that stay can write rows beside the [`HomeAgent`](crate::HomeAgent)'s and those that come and go: of
    /// those that have numbers, or, where rows have copies, rings to write by.
    #[must_use]
    pub fn writers_max(&self) -> usize {
        let rings = self.replication.as_ref().map(|replication| usize::from(replication.config.rings));
        rings.unwrap_or(WORKERS_MAX).saturating_sub(crate::recovery::promote::HELPERS_MAX + 2).max(1)
    }
}

impl Worker {
    /// Inserts what the mirror of `gone` has of the partitions that it served. A second run finds the rows there.
    ///
    /// # Errors
    /// Those of a commit.
    pub(crate) async fn promote(&self, configuration: &Arc<Configuration>, gone: NodeId) -> Result<(), TxnError> {
        let Some(replication) = &self.node().replication else { return Ok(()) };
        // A table that is recorded and not here has rows in the mirror, too.
        let has_all_tables = crate::node::system::reconcile_all(self.node())?;
        let slots = match replication.applier().mirror(gone) {
            Some(mirror) if mirror.is_behind(|table| self.node().table_by_id(table).is_some()) => {
                return Err(TxnError::Corrupt { what: "a mirror lacks a version of a row that has a later one" });
            }
            Some(mirror) => mirror.slots(),
            None => return Err(TxnError::Corrupt { what: "the mirror that is to be promoted is not there" }),
        };
        let promotion = Arc::new(Promotion::new(configuration, gone, has_all_tables, slots));
        if !self.handle().is_virtual() {
            Helpers::start(self.node(), &promotion).end(self).await?;
        }
        // All slots that have not been taken: the whole mirror, where there are no threads.
        self.promote_parts(&promotion).await?;
        // The task that reports the end also ends the mirror. A part that a thread took and did not finish raises no
        // error by then.
        if promotion.is_whole() || planted!(ServedTooEarly) { Ok(()) } else { Err(TxnError::Conflict) }
    }

    /// Takes parts until there are none left, in several transactions at a time.
    async fn promote_parts(&self, promotion: &Arc<Promotion>) -> Result<(), TxnError> {
        let take_part = || {
            let (worker, promotion) = (self.clone(), promotion.clone());
            self.handle().spawn(async move { worker.promote_some(&promotion).await })
        };
        let tasks: Vec<_> = (0..TASKS).map(|_| take_part()).collect();
        let mut done = Ok(());
        for task in tasks {
            if planted!(ServedTooEarly) {
                break;
            }
            done = done.and(task.await);
        }
        done
    }

    async fn promote_some(&self, promotion: &Promotion) -> Result<(), TxnError> {
        let node = self.node();
        let mut rows = Rows::default();
        while let Some(part) = promotion.take_part() {
            let mut left = part;
            while !left.is_empty() && !promotion.is_stopped() {
                let filled = rows.fill(node, promotion, left);
                let count = filled.inspect_err(|_| promotion.stop.store(true, SeqCst))?;
                let inserted = self.run(Retry::default(), async |txn| {
                    for (table, key, value) in rows.iter() {
                        let shared = txn.enter(table)?;
                        super::brought(txn.insert_near(SharedTable(shared.0), key, value))?;
                    }
                    Ok(())
                });
                if let Err(error) = inserted.await {
                    promotion.stop.store(true, SeqCst);
                    return Err(error);
                }
                left = &left[count..];
                promotion.done.fetch_add(count as u64, SeqCst);
                if let Some(replication) = &node.replication {
                    replication.note(|progress| progress.promoting = Some((promotion.gone, promotion.moving())));
                }
                // On mapped memory nothing waits, so the lease of this node must be renewed meanwhile.
                self.handle().yield_now().await;
            }
        }
        Ok(())
    }
}

/// Threads that take part in a promotion. Those that have not ended are stopped and joined on drop.
struct Helpers {
    promotion: Arc<Promotion>,
    threads: Vec<JoinHandle<Result<(), TxnError>>>,
}

impl Helpers {
    /// Starts as many as there are processors. It does without threads that the system refuses or that have no ring.
    fn start(node: &Arc<Node>, promotion: &Arc<Promotion>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let parts = promotion.slots.len().div_ceil(promotion.part_len);
        let count = processors.min(HELPERS_MAX).min(parts);
        let threads = (0..count).filter_map(|number| {
            let (node, promotion) = (node.clone(), promotion.clone());
            let thread = std::thread::Builder::new().name("farhold-promote".into());
            thread.spawn(move || help(&node, &promotion, number as u64)).ok()
        });
        Self { promotion: promotion.clone(), threads: threads.collect() }
    }

    /// Waits until all have ended.
    async fn end(mut self, worker: &Worker) -> Result<(), TxnError> {
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            worker.handle().sleep_ns(LOOK_EVERY_NS).await;
        }
        let mut done = Ok(());
        for thread in self.threads.drain(..) {
            let panicked = Err(TxnError::Corrupt { what: "a thread that takes over rows has panicked" });
            done = done.and(thread.join().unwrap_or(panicked));
        }
        done
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.promotion.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread's part of a promotion, until there is nothing left to take.
fn help(node: &Arc<Node>, promotion: &Arc<Promotion>, seed: u64) -> Result<(), TxnError> {
    let Some(replication) = &node.replication else { return Ok(()) };
    let executor = Executor::real(seed);
    // The last ring that is free: the first ones are for threads that stay.
    let worker = node.slots.take_last(usize::from(replication.config.rings));
    let Ok(worker) = worker.and_then(|slot| Worker::with_slot(node, &executor.handle(), slot)) else { return Ok(()) };
    executor.run(async {
        let (taking, its, handle) = (worker.clone(), promotion.clone(), executor.handle());
        let all = handle.spawn(async move { taking.promote_parts(&its).await });
        let mut until_ns = None;
        let done = loop {
            if let Some(done) = all.try_take() {
                break Some(done);
            }
            // A stopped thread takes no more rows, and finishes what it has begun: if a commit is abandoned past its
            // commit point, the rest of it is never written.
            let now_ns = handle.now_ns();
            if promotion.is_stopped() && now_ns > *until_ns.get_or_insert(worker.core.outcome_until_ns()) {
                break None;
            }
            handle.sleep_ns(LOOK_EVERY_NS).await;
        };
        let left_ns = until_ns.unwrap_or_else(|| worker.core.outcome_until_ns()).saturating_sub(handle.now_ns());
        if !worker.drain(left_ns).await || done.is_none() {
            worker.core.give_up_journal();
        }
        done.unwrap_or(Err(TxnError::OutcomeUnknown))
    })
}
