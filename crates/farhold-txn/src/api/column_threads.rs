//! The threads of a node's column copies: one applies the records of commits and journals, one builds copies and merges them. `column_turns.rs` has their work.

use crate::api::column_turns::{ApplyTurns, MergeTurns};
use crate::base::error::TxnError;
use crate::columns::ColumnFeed;
use crate::node::Node;
use farhold_fabric::Executor;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the threads sleep without a call; a new table is found within this time.
const IDLE: Duration = Duration::from_millis(20);
/// How far the thread that builds and merges stands back.
const MERGES_NICE: u8 = 10;
/// The pause between two looks at a file that does not show new data yet, or at a commit that stays open for long.
const UNSEEN: Duration = Duration::from_millis(1);

/// The threads that also keep a node's tables as columns. They are stopped and joined on drop; queries then read rows.
pub struct ColumnThreads {
    stop: Arc<AtomicBool>,
    feed: Arc<ColumnFeed>,
    threads: Vec<JoinHandle<()>>,
}

impl ColumnThreads {
    /// Starts the threads of a node without a journal; `None`: it keeps no columns, because it is not alone, or
    /// [`JournalThreads`](crate::JournalThreads) keep them.
    ///
    /// # Errors
    /// The system has no threads.
    pub fn start(node: &Arc<Node>) -> Result<Option<Self>, TxnError> {
        node.own_records.as_ref().map(|records| Self::spawn(node, &records.feed)).transpose()
    }

    pub(super) fn spawn(node: &Arc<Node>, feed: &Arc<ColumnFeed>) -> Result<Self, TxnError> {
        let mut this = Self { stop: Arc::default(), feed: feed.clone(), threads: Vec::new() };
        for (name, run) in [
            ("farhold-columns", apply as fn(&Arc<Node>, &ColumnFeed, &AtomicBool)),
            ("farhold-merges", build_and_merge),
        ] {
            let (node, feed, stop) = (node.clone(), feed.clone(), this.stop.clone());
            this.threads.push(spawn(name, move || run(&node, &feed, &stop))?);
        }
        Ok(this)
    }
}

impl Drop for ColumnThreads {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        self.feed.bell.ring();
        self.feed.merge_bell.ring();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // A copy may have begun after the applying thread had ended.
        self.feed.forget_all();
    }
}

/// Starts a thread of the node.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, TxnError> {
    let hand_on = crate::base::planted::hand_on();
    let run = move || {
        hand_on();
        run();
    };
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })
}

/// Applies the offered records and those of the other nodes' journals, until `stop`.
fn apply(node: &Arc<Node>, feed: &ColumnFeed, stop: &AtomicBool) {
    let executor = Executor::real(u64::from(node.id().0));
    let Some(mut turns) = ApplyTurns::begin(node) else { return };
    let mut seen = 0;
    while !stop.load(SeqCst) {
        feed.bell.wait(&mut seen, IDLE);
        if !turns.take(executor.handle().now_ns()) {
            // Not on the bell: waiting tasks ring it at once.
            std::thread::park_timeout(UNSEEN);
        }
    }
}

/// Builds the copies of new tables, drops those of dropped tables, and merges, until `stop`. If processors are short, commits
/// and queries go first.
fn build_and_merge(node: &Arc<Node>, feed: &ColumnFeed, stop: &AtomicBool) {
    farhold_fabric::processor::stand_back(MERGES_NICE);
    let executor = Executor::real(u64::from(node.id().0));
    let Some(mut turns) = MergeTurns::begin(node, IDLE) else { return };
    let mut seen = 0;
    while !stop.load(SeqCst) {
        executor.run(turns.build(&executor.handle(), &|| stop.load(SeqCst)));
        turns.merge(&executor.handle());
        feed.merge_bell.wait(&mut seen, IDLE);
    }
}
