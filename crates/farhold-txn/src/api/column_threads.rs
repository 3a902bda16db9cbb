//! The threads of a node's column copies: one applies what the journal offers, one builds copies and merges them.

use crate::base::error::TxnError;
use crate::columns::ColumnFeed;
use crate::durability::journaling::Journaling;
use crate::node::Node;
use crate::protocol::snapshot::PageTask;
use crate::protocol::worker::Worker;
use farhold_fabric::Executor;
use farhold_store::TableId;
use farhold_store::column::copy::ColumnCopy;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long the thread that applies sleeps without a call.
const IDLE: Duration = Duration::from_millis(20);
/// Between two looks for tables to build, ...
const LOOK: Duration = Duration::from_millis(5);
/// ... and looks between two for copies to merge.
const LOOKS_PER_MERGE: u32 = 10;
/// A delta of more bytes is merged whatever snapshots are open: a query that comes too late for its columns reads rows.
const DELTA_BYTES_MAX: u64 = 256 << 20;
/// Rows between two looks whether the node is stopping.
const ROWS_PER_LOOK: u64 = 4096;

/// Applies what is offered, until `stop`.
pub(super) fn apply(node: &Node, journaling: &Journaling, stop: &AtomicBool) {
    let mut seen = 0;
    let feed = &journaling.feed;
    feed.set_applied(true);
    while !stop.load(SeqCst) {
        feed.bell.wait(&mut seen, IDLE);
        if !feed.apply(node.id()) {
            feed.must_build.store(true, SeqCst);
        }
    }
    feed.set_applied(false);
}

/// Builds the copies of new tables, forgets those of dropped ones, and merges, until `stop`.
pub(super) fn build_and_merge(node: &Arc<Node>, journaling: &Journaling, stop: &AtomicBool) {
    let executor = Executor::real(u64::from(node.id().0));
    let feed = &journaling.feed;
    // Looks again after a failure, not before the next change of a table or the next look.
    let (mut seen_version, mut looks) = (None, 0_u32);
    while !stop.load(SeqCst) {
        let version = node.catalog_version();
        if feed.must_build.swap(false, SeqCst) {
            seen_version = None;
        }
        if seen_version != Some(version) {
            feed.retain(|table| node.table_by_id(table).is_some());
            if build_new(node, feed, &executor, stop).is_ok() {
                seen_version = Some(version);
            }
        }
        looks = looks.wrapping_add(1);
        let copies = if looks.is_multiple_of(LOOKS_PER_MERGE) { feed.copies() } else { Vec::new() };
        for (_, copy) in copies {
            // A snapshot that may still ask for columns finds them, unless it is open for so long that the delta grows too large.
            let is_large = copy.size().delta_bytes > DELTA_BYTES_MAX;
            copy.merge(if is_large { u32::MAX } else { node.store.superblock().oldest_snapshot() });
        }
        std::thread::park_timeout(LOOK);
    }
}

fn build_new(node: &Arc<Node>, feed: &ColumnFeed, executor: &Executor, stop: &AtomicBool) -> Result<(), TxnError> {
    let wanted: Vec<_> =
        node.tables().into_iter().filter(|table| table.has_columns() && feed.copy(table.id()).is_none()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let worker = node.worker(&executor.handle())?;
    for table in wanted {
        let copy = Arc::new(ColumnCopy::new(table.schema()));
        feed.add(table.id(), copy.clone());
        let built = executor.run(build(&worker, table.id(), &copy, stop));
        if built != Ok(true) {
            feed.retain(|other| other != table.id());
            built?;
        }
    }
    Ok(())
}

/// Makes the first segments of the rows of a snapshot; false if the node is stopping or the table has been dropped.
async fn build(worker: &Worker, table: TableId, copy: &ColumnCopy, stop: &AtomicBool) -> Result<bool, TxnError> {
    let Some(table) = worker.node().table_by_id(table) else { return Ok(false) };
    let snapshot = worker.snapshot().await?;
    let mut tasks = snapshot.pages(&table)?;
    tasks.sort_by_key(PageTask::first_page);
    let (mut builder, mut rows) = (copy.build(), 0);
    for task in &tasks {
        if rows >= ROWS_PER_LOOK && stop.load(SeqCst) {
            return Ok(false);
        }
        snapshot.scan_objects(task, &mut |reference, key, value| {
            builder.append(reference, key, value);
            rows += 1;
        })?;
    }
    copy.install(builder, snapshot.epoch());
    Ok(true)
}
