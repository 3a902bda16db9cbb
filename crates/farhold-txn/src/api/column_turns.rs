//! The work of the threads of a node's column copies, divided into turns. [`ColumnThreads`](crate::ColumnThreads) execute the turns, and so does a program
//! without threads, such as the simulation.
//!
//! ```text
//!   ApplyTurns   what commits and journals bring ──► the copies
//!   MergeTurns   definitions ──► build: copies begin, and are forgotten ──► merge: deltas go into segments, memory is freed
//! ```

use crate::base::error::TxnError;
use crate::base::slots::WORKERS_MAX;
use crate::base::table::Table;
use crate::columns::ColumnFeed;
use crate::durability::follow::Applied;
use crate::durability::journaling::Journaling;
use crate::node::Node;
use crate::protocol::snapshot::PageTask;
use crate::protocol::worker::Worker;
use farhold_fabric::Handle;
use farhold_store::TableId;
use farhold_store::column::copy::ColumnCopy;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The pause after a failed attempt to build copies. It doubles with each failure, up to the longest.
const AGAIN_NS: u64 = 10_000_000;
const AGAIN_NS_MAX: u64 = 10_000_000_000;
/// The interval at which the building thread checks, while it waits, whether the node is stopping.
const LOOK_NS: u64 = 5_000_000;
/// A delta with more bytes is merged even past open snapshots: a query whose snapshot the merge has passed reads rows.
const DELTA_BYTES_MAX: u64 = 256 << 20;
/// The number of rows after which a build checks whether the copy is still wanted and has room.
const ROWS_PER_LOOK: u64 = 4096;

/// Turns that apply the offered records and those of the other nodes' journals. When this value is dropped, even by a panic, no task keeps waiting for records
/// that are never applied, and no query reads columns that lack changes.
pub struct ApplyTurns {
    node: Arc<Node>,
    feed: Arc<ColumnFeed>,
}

impl ApplyTurns {
    /// Begins the turns; `None`: the node keeps no columns, because its cluster has other nodes and no journals. Only one value may exist at a time.
    #[must_use]
    pub fn begin(node: &Arc<Node>) -> Option<Self> {
        let feed = node.column_feed()?.clone();
        feed.set_applied(true);
        Some(Self { node: node.clone(), feed })
    }

    /// Executes one turn, at this time of the caller's clock, in nanoseconds. False: a file does not show new data yet, or a commit stays open for long, so the
    /// caller should execute the next turn soon.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let node = &self.node;
        match (&node.journaling, &node.own_records) {
            (Some(journaling), _) => journaling.apply_to_columns(now_ns) == Applied::All,
            (None, Some(records)) => records.apply(node.id(), node.store.superblock()),
            (None, None) => true,
        }
    }
}

impl Drop for ApplyTurns {
    fn drop(&mut self) {
        // In this order: the building thread abandons a copy that it begins in between.
        self.feed.set_applied(false);
        self.feed.forget_all();
    }
}

/// Turns that build the copies of new tables, drop those of dropped tables, and merge. Each turn has two halves: [`build`](Self::build), then
/// [`merge`](Self::merge).
pub struct MergeTurns {
    node: Arc<Node>,
    feed: Arc<ColumnFeed>,
    /// The interval at which table definitions are checked, in nanoseconds.
    looks_ns: u64,
    next_look_ns: u64,
    /// This turn checks them.
    is_time: bool,
    failures: Failures,
    losses: u64,
}

impl MergeTurns {
    /// Begins the turns; `None` as for [`ApplyTurns`]. `looks`: the longest time until a new table is found. Only one value may exist at a time.
    #[must_use]
    pub fn begin(node: &Arc<Node>, looks: Duration) -> Option<Self> {
        let feed = node.column_feed()?.clone();
        let (looks_ns, losses) = (looks.as_nanos() as u64, feed.losses());
        let (next_look_ns, is_time, failures) = (0, false, Failures::default());
        Some(Self { node: node.clone(), feed, looks_ns, next_look_ns, is_time, failures, losses })
    }

    /// Drops the copies that are no longer wanted, and builds the missing ones, if it is time for that. Ends early once `is_over` returns true.
    pub async fn build(&mut self, handle: &Handle, is_over: &dyn Fn() -> bool) {
        let now_ns = handle.now_ns();
        self.is_time = now_ns >= self.next_look_ns;
        if !self.is_time {
            return;
        }
        self.next_look_ns = now_ns + self.looks_ns;
        let (node, feed) = (&self.node, &self.feed);
        follow_definitions(node, feed);
        // No copy begins while the configuration is changing or some rows have no home.
        let configuration = node.settled_configuration().ok();
        self.failures.forget_other(configuration);
        let losses_before = std::mem::replace(&mut self.losses, feed.losses());
        if self.losses != losses_before {
            // Copies that were rebuilt at once would be lost again under the same load.
            self.failures.note_failure(now_ns);
        }
        if let Some(configuration) = configuration
            && now_ns >= self.failures.until_ns
            && self.may_build()
        {
            let built = build_new(node, feed, configuration, handle, is_over).await;
            let ended_ns = handle.now_ns();
            match built {
                Ok(()) => self.failures.note_success(now_ns, ended_ns),
                Err(_) => self.failures.note_failure(ended_ns),
            }
        }
    }

    fn may_build(&self) -> bool {
        // All other nodes must have been heard, because each is needed; with replicas, the nodes of the configuration have been.
        let has_all = |journaling: &Journaling| self.node.replication.is_some() || journaling.unknown().is_empty();
        let is_ready = |journaling: &Journaling| journaling.failure().is_none() && has_all(journaling);
        self.feed.has_thread() && self.node.journaling.as_deref().is_none_or(is_ready)
    }

    /// Merges the copies that are due, and frees the memory of dropped extents.
    pub fn merge(&mut self, handle: &Handle) {
        let (node, feed, now_ns) = (&self.node, &self.feed, handle.now_ns());
        for (table, copy) in feed.copies() {
            // Open snapshots may still request columns, so merges do not pass them, unless the delta has grown too large.
            let is_large = self.is_time && copy.size().delta_bytes > DELTA_BYTES_MAX;
            let merged = copy.merge(if is_large { u32::MAX } else { node.store.superblock().oldest_snapshot() });
            if merged.is_err() && is_large {
                // Its delta would grow for ever.
                feed.set_without_room(table, &copy, copy.size().segment_bytes, now_ns);
            }
        }
        reclaim(node, feed, handle.shared_now_ns());
        if self.is_time {
            make_room(feed, node.config.columns_bytes_max, now_ns);
        }
    }
}

/// Frees the memory of dropped segments that no snapshot of any node may read. Before that, abandoned scans of other nodes release their segments.
fn reclaim(node: &Node, feed: &ColumnFeed, now_ns: u64) {
    let (superblock, timeout_ns) = (node.store.superblock(), node.config.request_timeout_ns);
    node.column_scans.retain(|scan| scan.is_wanted(superblock, now_ns, timeout_ns));
    if let Some(memory) = feed.memory() {
        node.reclaim_columns(memory);
    }
}

/// Drops the copies that are no longer wanted, or that are wanted with other columns.
fn follow_definitions(node: &Arc<Node>, feed: &ColumnFeed) {
    let tables = node.tables();
    let wanted: HashMap<_, _> =
        tables.iter().filter_map(|table| feed.wanted(table).map(|kept| (table.id(), kept))).collect();
    feed.retain(|table, copy| wanted.get(&table) == Some(copy.kept()));
    feed.retain_needs(|table| wanted.contains_key(&table));
    // Only this thread begins copies, so none begins in between.
    for table in tables.iter().filter(|table| feed.copy(table.id()).is_none()) {
        table.0.set_copied(false);
    }
}

/// While the copies take more than `bytes_max`, drops the smallest copy that makes enough room, or the largest if none does.
fn make_room(feed: &ColumnFeed, bytes_max: u64, now_ns: u64) {
    let mut sizes: Vec<_> = feed.copies().into_iter().map(|(table, copy)| (copy.size().bytes(), table, copy)).collect();
    sizes.sort_by_key(|(bytes, table, _)| (*bytes, *table));
    let mut bytes: u64 = sizes.iter().map(|(bytes, ..)| bytes).sum();
    while bytes > bytes_max && !sizes.is_empty() {
        let enough = sizes.partition_point(|(size, ..)| *size < bytes - bytes_max).min(sizes.len() - 1);
        let (size, table, copy) = sizes.remove(enough);
        // Once its changes are merged, it will need about as much as its segments take now.
        feed.set_without_room(table, &copy, copy.size().segment_bytes, now_ns);
        bytes -= size;
    }
}

/// When to try again.
#[derive(Default)]
struct Failures {
    /// The configuration in which they occurred.
    of: Option<u64>,
    count: u32,
    /// Not before this time, by the clock of the turns.
    until_ns: u64,
}

impl Failures {
    /// Forgets failures of another configuration: a build may now succeed at once.
    fn forget_other(&mut self, configuration: Option<u64>) {
        if self.of != configuration {
            *self = Self { of: configuration, ..Self::default() };
        }
    }

    fn note_failure(&mut self, now_ns: u64) {
        self.count = self.count.saturating_add(1);
        let pause_ns = AGAIN_NS.saturating_mul(1 << (self.count - 1).min(10)).min(AGAIN_NS_MAX);
        self.until_ns = now_ns + pause_ns;
    }

    /// Built copies may be lost again soon. A success alone therefore does not clear the failures: they are cleared after a time without failures, not counting
    /// the time of building.
    fn note_success(&mut self, began_ns: u64, ended_ns: u64) {
        if began_ns.saturating_sub(self.until_ns) >= AGAIN_NS_MAX {
            self.count = 0;
        } else {
            self.until_ns += ended_ns.saturating_sub(began_ns);
        }
    }
}

/// Builds the copies that are wanted and missing. A table that cannot be read does not prevent the copies of others.
async fn build_new(
    node: &Arc<Node>,
    feed: &ColumnFeed,
    configuration: u64,
    handle: &Handle,
    is_over: &dyn Fn() -> bool,
) -> Result<(), TxnError> {
    let Some(memory) = feed.memory() else { return Ok(()) };
    let is_missing = |table: &Table| feed.copy(table.id()).is_none();
    let tables = node.tables().into_iter().filter(is_missing);
    let wanted: Vec<_> = tables.filter_map(|table| feed.wanted(&table).map(|kept| (table, kept))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let of = node.configuration().filter(|of| of.number == configuration);
    if node.replication.is_some() && of.is_none() {
        return Ok(());
    }
    let mut worker = None;
    let mut result = Ok(());
    for (table, kept) in wanted {
        let room = node.config.columns_bytes_max.saturating_sub(feed.bytes_without(None));
        let now_ns = handle.now_ns();
        if !feed.may_have_room(table.id(), &kept, room, now_ns) {
            continue;
        }
        let worker = match &mut worker {
            Some(worker) => worker,
            // It writes nothing, so it leaves the worker numbers that have rings to others.
            none => none.insert(Worker::with_slot(node, handle, node.slots.take_last(WORKERS_MAX)?)?),
        };
        let copy = Arc::new(ColumnCopy::new(table.schema(), kept, node.config.columns, memory));
        // Before its snapshot raises the epoch: the snapshot contains the commits that do not see the mark.
        table.0.set_copied(true);
        if !feed.add(table.id(), copy.clone(), configuration) {
            return Ok(());
        }
        let followed = node.journaling.as_ref().map_or(Ok(()), |journaling| journaling.follow(of.as_deref()));
        let built = match followed {
            Ok(()) => build(worker, feed, (table.id(), configuration), &copy, is_over).await,
            Err(error) => Err(error),
        };
        match built {
            Ok(Built::Complete) => feed.forget_need(table.id()),
            Ok(Built::NoRoom { bytes }) => {
                feed.set_without_room(table.id(), &copy, bytes, handle.now_ns());
            }
            Ok(Built::GivenUp) => feed.retain(|other, _| other != table.id()),
            // All copies have been dropped.
            Err(_) if node.settled_configuration() != Ok(configuration) => return Ok(()),
            Err(error) => {
                feed.retain(|other, _| other != table.id());
                result = Err(error);
            }
        }
    }
    result
}

/// The outcome of building a copy.
enum Built {
    Complete,
    /// It needs about this many bytes, for which there is no room.
    NoRoom {
        bytes: u64,
    },
    /// The node is stopping, or the copy is no longer wanted, or it has been dropped and lacks changes.
    GivenUp,
}

/// Builds the first segments from this node's rows of a snapshot.
async fn build(
    worker: &Worker,
    feed: &ColumnFeed,
    (table, configuration): (TableId, u64),
    copy: &Arc<ColumnCopy>,
    is_over: &dyn Fn() -> bool,
) -> Result<Built, TxnError> {
    let node = worker.node();
    let Some(table) = node.table_by_id(table) else { return Ok(Built::GivenUp) };
    let Some(snapshot) = until(is_over, worker.handle(), worker.snapshot()).await else { return Ok(Built::GivenUp) };
    let snapshot = snapshot?;
    if snapshot.configuration() != configuration {
        return Ok(Built::GivenUp);
    }
    let room = || node.config().columns_bytes_max.saturating_sub(feed.bytes_without(Some(table.id())));
    let is_wanted = || {
        let is_defined = !table.is_dropped() && feed.wanted(&table).as_ref() == Some(copy.kept());
        is_defined && feed.is_applied_to(table.id(), copy) && !is_over()
    };
    let mut tasks = snapshot.own_pages(&table)?;
    tasks.sort_by_key(PageTask::first_page);
    let (mut builder, mut rows, mut next_look, mut is_full) = (copy.build(), 0, 0, false);
    for task in &tasks {
        if rows >= next_look {
            next_look = rows + ROWS_PER_LOOK;
            if !is_wanted() {
                return Ok(Built::GivenUp);
            }
            // Merges remove nothing from the delta meanwhile.
            let delta_bytes = copy.size().delta_bytes;
            if is_full || delta_bytes > DELTA_BYTES_MAX || builder.bytes() + delta_bytes > room() {
                // The estimate is in proportion to the rows that have been read.
                let times = table.row_count().div_ceil(rows.max(1)).max(1);
                return Ok(Built::NoRoom { bytes: builder.bytes().saturating_mul(times) });
            }
        }
        snapshot.scan_objects(task, &mut |reference, key, value| {
            is_full = is_full || builder.append(reference, key, value).is_err();
            rows += 1;
        })?;
    }
    if !is_wanted() {
        return Ok(Built::GivenUp);
    }
    let bytes = builder.bytes();
    if is_full || copy.install(builder, snapshot.epoch()).is_err() {
        return Ok(Built::NoRoom { bytes });
    }
    let size = copy.size();
    let has_room = size.bytes() <= room();
    Ok(if has_room { Built::Complete } else { Built::NoRoom { bytes: size.segment_bytes } })
}

/// The result of a future; `None` if `is_over` returns true first. A snapshot may wait for a journal that is no longer written.
async fn until<T>(is_over: &dyn Fn() -> bool, handle: &Handle, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut pause = Box::pin(handle.sleep_ns(LOOK_NS));
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        loop {
            if is_over() {
                return Poll::Ready(None);
            }
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            pause = Box::pin(handle.sleep_ns(LOOK_NS));
        }
    })
    .await
}
