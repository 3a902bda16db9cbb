//! What the threads of a node's column copies do, in turns. [`ColumnThreads`](crate::ColumnThreads) take them, and so does a program without
//! threads, such as the simulation.
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

/// Between two attempts to build a copy, after the first that failed; it doubles up to the longest.
const AGAIN_NS: u64 = 10_000_000;
const AGAIN_NS_MAX: u64 = 10_000_000_000;
/// Between two looks whether the node is stopping, while the thread that builds waits.
const LOOK_NS: u64 = 5_000_000;
/// A delta of more bytes is merged whatever snapshots are open: a query that comes too late for its columns reads rows.
const DELTA_BYTES_MAX: u64 = 256 << 20;
/// Rows between two looks whether a copy that is built is still wanted and has room.
const ROWS_PER_LOOK: u64 = 4096;

/// Turns that apply what is offered, and what the other nodes' journals have. At their end, also by a panic, nobody waits for what is never
/// applied, and no query reads columns that lack changes.
pub struct ApplyTurns {
    node: Arc<Node>,
    feed: Arc<ColumnFeed>,
}

impl ApplyTurns {
    /// Begins with them; `None`: the node keeps no columns, because it has others beside it and no journal. One value at a time.
    #[must_use]
    pub fn begin(node: &Arc<Node>) -> Option<Self> {
        let feed = node.column_feed()?.clone();
        feed.set_applied(true);
        Some(Self { node: node.clone(), feed })
    }

    /// Takes one, at this time of the caller's clock, in nanoseconds. False: a file does not show yet what was written into it, or a commit is
    /// open for long, so the caller takes the next one soon.
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
        // In this order: a copy that is begun in between is given up by whoever builds it.
        self.feed.set_applied(false);
        self.feed.forget_all();
    }
}

/// Turns that build the copies of new tables, forget those of dropped ones, and merge. Each has two halves: [`build`](Self::build), then
/// [`merge`](Self::merge).
pub struct MergeTurns {
    node: Arc<Node>,
    feed: Arc<ColumnFeed>,
    /// Between two looks at the definitions of tables, in nanoseconds.
    looks_ns: u64,
    next_look_ns: u64,
    /// This turn looks at them.
    is_time: bool,
    failures: Failures,
    losses: u64,
}

impl MergeTurns {
    /// Begins with them; `None` as for [`ApplyTurns`]. `looks`: how long it takes at most until a new table is found. One value at a time.
    #[must_use]
    pub fn begin(node: &Arc<Node>, looks: Duration) -> Option<Self> {
        let feed = node.column_feed()?.clone();
        let (looks_ns, losses) = (looks.as_nanos() as u64, feed.losses());
        let (next_look_ns, is_time, failures) = (0, false, Failures::default());
        Some(Self { node: node.clone(), feed, looks_ns, next_look_ns, is_time, failures, losses })
    }

    /// Forgets the copies that are no longer wanted, and makes those that are missing, if it is time for that. Ends early once `is_over`.
    pub async fn build(&mut self, handle: &Handle, is_over: &dyn Fn() -> bool) {
        let now_ns = handle.now_ns();
        self.is_time = now_ns >= self.next_look_ns;
        if !self.is_time {
            return;
        }
        self.next_look_ns = now_ns + self.looks_ns;
        let (node, feed) = (&self.node, &self.feed);
        follow_definitions(node, feed);
        // None are begun while the configuration changes, nor while some rows have no home.
        let configuration = node.settled_configuration().ok();
        self.failures.forget_other(configuration);
        let losses_before = std::mem::replace(&mut self.losses, feed.losses());
        if self.losses != losses_before {
            // What is built again at once would be lost again under the same load.
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
        // The other nodes, where each is needed; with replicas those of the configuration are there.
        let has_all = |journaling: &Journaling| self.node.replication.is_some() || journaling.unknown().is_empty();
        let is_ready = |journaling: &Journaling| journaling.failure().is_none() && has_all(journaling);
        self.feed.has_thread() && self.node.journaling.as_deref().is_none_or(is_ready)
    }

    /// Merges what is due, and frees the memory of what is gone.
    pub fn merge(&mut self, handle: &Handle) {
        let (node, feed, now_ns) = (&self.node, &self.feed, handle.now_ns());
        for (table, copy) in feed.copies() {
            // A snapshot that may still ask for columns finds them, unless it is open for so long that the delta grows too large.
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

/// Frees the memory of segments that are gone, as far as no snapshot of any node may read them. Scans of other nodes that nobody asks for
/// any more give theirs up before.
fn reclaim(node: &Node, feed: &ColumnFeed, now_ns: u64) {
    let (superblock, timeout_ns) = (node.store.superblock(), node.config.request_timeout_ns);
    node.column_scans.retain(|scan| scan.is_wanted(superblock, now_ns, timeout_ns));
    if let Some(memory) = feed.memory() {
        node.reclaim_columns(memory);
    }
}

/// Forgets the copies that are no longer wanted as they are.
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

/// While the copies take more than `bytes_max`, forgets the smallest that makes enough room, or else the largest.
fn make_room(feed: &ColumnFeed, bytes_max: u64, now_ns: u64) {
    let mut sizes: Vec<_> = feed.copies().into_iter().map(|(table, copy)| (copy.size().bytes(), table, copy)).collect();
    sizes.sort_by_key(|(bytes, table, _)| (*bytes, *table));
    let mut bytes: u64 = sizes.iter().map(|(bytes, ..)| bytes).sum();
    while bytes > bytes_max && !sizes.is_empty() {
        let enough = sizes.partition_point(|(size, ..)| *size < bytes - bytes_max).min(sizes.len() - 1);
        let (size, table, copy) = sizes.remove(enough);
        // Once its changes are merged, it needs about as much as its segments do now.
        feed.set_without_room(table, &copy, copy.size().segment_bytes, now_ns);
        bytes -= size;
    }
}

/// When to try again.
#[derive(Default)]
struct Failures {
    /// The configuration in which they were.
    of: Option<u64>,
    count: u32,
    /// Not before this time, by the clock of the turns.
    until_ns: u64,
}

impl Failures {
    /// In another configuration it may succeed at once.
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

    /// What was built may be lost soon afterwards. So a success alone does not end the row of failures: they are forgotten after a quiet
    /// time, to which the time of building does not count.
    fn note_success(&mut self, began_ns: u64, ended_ns: u64) {
        if began_ns.saturating_sub(self.until_ns) >= AGAIN_NS_MAX {
            self.count = 0;
        } else {
            self.until_ns += ended_ns.saturating_sub(began_ns);
        }
    }
}

/// Makes the copies that are wanted and not there. A table that cannot be read does not keep the others from theirs.
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
            // It writes nothing, so it leaves the numbers with rings to others.
            none => none.insert(Worker::with_slot(node, handle, node.slots.take_last(WORKERS_MAX)?)?),
        };
        let copy = Arc::new(ColumnCopy::new(table.schema(), kept, node.config.columns, memory));
        // Before its snapshot raises the epoch: the snapshot has the commits that do not see this.
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
            // All copies have been forgotten.
            Err(_) if node.settled_configuration() != Ok(configuration) => return Ok(()),
            Err(error) => {
                feed.retain(|other, _| other != table.id());
                result = Err(error);
            }
        }
    }
    result
}

/// How building a copy has ended.
enum Built {
    Complete,
    /// It needs about so many bytes, for which there is no room.
    NoRoom {
        bytes: u64,
    },
    /// The node is stopping, or the copy is not wanted any more, or has been forgotten and lacks changes.
    GivenUp,
}

/// Makes the first segments of this node's rows of a snapshot.
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
            // No merge takes anything out of the delta meanwhile.
            let delta_bytes = copy.size().delta_bytes;
            if is_full || delta_bytes > DELTA_BYTES_MAX || builder.bytes() + delta_bytes > room() {
                // All of its rows take about so many times as much as those that it has.
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

/// What a future gives; `None` if it is over before. A snapshot may wait for a journal that nobody writes any more.
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
