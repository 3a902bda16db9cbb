//! The threads of a node's journal: one does its steps, one makes segments and checkpoints, and [`ColumnThreads`] keep the columns that are made from it.

use crate::api::column_threads::{ColumnThreads, spawn};
use crate::base::error::TxnError;
use crate::durability::checkpoints::Checkpointed;
use crate::durability::journaling::{Journaling, Step};
use crate::node::Node;
use crate::protocol::worker::Worker;
use farhold_fabric::{Endpoint, Executor, Handle, NodeId};
use farhold_store::durable::DurableError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long it sleeps without a call: on a node that is alone, and with other nodes, whose epochs it has to close too.
const IDLE: Duration = Duration::from_millis(20);
const IDLE_WITH_OTHERS: Duration = Duration::from_millis(1);
/// Between two attempts to make a segment on a full disk, or a checkpoint.
const AGAIN: Duration = Duration::from_millis(50);
/// Looks at an open commit without a pause, and the pause then.
const OPEN_TURNS: u32 = 10_000;
const OPEN_PAUSE: Duration = Duration::from_micros(50);
/// How long the end waits for what is under way.
const END_NS: u64 = 5_000_000_000;

/// The threads. Stopped and joined on drop, when everything that was committed is durable.
pub struct JournalThreads {
    columns: Option<ColumnThreads>,
    stop: Arc<AtomicBool>,
    journaling: Arc<Journaling>,
    threads: Vec<JoinHandle<()>>,
}

impl JournalThreads {
    /// Starts the threads of a node; `None`: it has no journal.
    ///
    /// # Errors
    /// The system has no threads, or the fabric no endpoint.
    pub fn start(node: &Arc<Node>) -> Result<Option<Self>, TxnError> {
        let Some(journaling) = node.journaling.clone() else { return Ok(None) };
        journaling.has_thread.store(true, SeqCst);
        let stop = Arc::new(AtomicBool::new(false));
        let mut this = Self { columns: None, stop: stop.clone(), journaling: journaling.clone(), threads: Vec::new() };
        let steps = {
            let (node, journaling, stop) = (node.clone(), journaling.clone(), stop.clone());
            move || do_steps(&node, &journaling, &stop)
        };
        let checkpoints = {
            let (node, journaling) = (node.clone(), journaling.clone());
            move || make_checkpoints(&node, &journaling, &stop)
        };
        this.threads.push(spawn("farhold-journal", steps)?);
        this.threads.push(spawn("farhold-files", checkpoints)?);
        this.columns = Some(ColumnThreads::spawn(node, &journaling.feed)?);
        Ok(Some(this))
    }
}

impl Drop for JournalThreads {
    fn drop(&mut self) {
        // A snapshot of theirs waits for the journal.
        self.columns = None;
        self.stop.store(true, SeqCst);
        self.journaling.bell.ring();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The journal has an endpoint of its own. If it shared a worker's endpoint, the endpoint would learn of a node's later
/// start without the worker noticing (`Core::look_again`).
fn endpoint_of(node: &Node, journaling: &Journaling, handle: &Handle) -> Option<Endpoint> {
    let made = node.fabric.endpoint(handle);
    made.map_err(|error| journaling.fail(&format!("the journal has no endpoint: {error}"))).ok()
}

fn do_steps(node: &Arc<Node>, journaling: &Journaling, stop: &AtomicBool) {
    let executor = Executor::real(u64::from(node.id().0));
    let handle = executor.handle();
    let Some(endpoint) = endpoint_of(node, journaling, &handle) else { return };
    let idle = if node.config.nodes > 1 { IDLE_WITH_OTHERS } else { IDLE };
    let (mut seen, mut stopped_ns, mut open_turns) = (0, None, 0_u32);
    loop {
        executor.run(journaling.look(&endpoint));
        crate::base::planted::may_stop();
        expect_all(node, journaling);
        let began_ns = handle.now_ns();
        if stop.load(SeqCst) {
            let end_ns = *stopped_ns.get_or_insert(began_ns + END_NS);
            if !journaling.is_wanted() || began_ns > end_ns || journaling.failure().is_some() {
                break;
            }
        }
        journaling.steps.note(Some(began_ns));
        journaling.make_spare_if_nobody_does();
        let step = journaling.step(&node.store);
        journaling.steps.note(None);
        open_turns = if matches!(step, Step::Open) { open_turns + 1 } else { 0 };
        match step {
            Step::Closed => {
                // Others gather meanwhile.
                let spent = Duration::from_nanos(handle.now_ns() - began_ns);
                std::thread::park_timeout(Duration::from_nanos(journaling.config.step_ns).saturating_sub(spent));
            }
            // A commit takes microseconds, unless it waits for a node that is silent.
            Step::Open if open_turns < OPEN_TURNS => std::thread::yield_now(),
            Step::Open => std::thread::park_timeout(OPEN_PAUSE),
            Step::Nothing => journaling.bell.wait(&mut seen, idle),
            Step::Stuck => std::thread::park_timeout(Duration::from_millis(1)),
        }
    }
    journaling.close();
}

/// With one copy of each row, no node can tell which of the last epochs count once a node is gone.
fn expect_all(node: &Node, journaling: &Journaling) {
    if node.replication.is_some() {
        return;
    }
    let others = (0..node.config.nodes).map(NodeId).filter(|other| *other != node.id());
    let unknown = journaling.unknown();
    for other in others.filter(|other| !unknown.contains(other)) {
        if !node.fabric.node_is_live(other) {
            journaling.fail(&format!(
                "{other} has ended: without replicas what it had not written is lost, so every node of the cluster has to end, \
                 and to start again from the journals"
            ));
        }
    }
}

/// A simulated checkpoint checks after this many slots whether it may go on.
const PATIENCE: u32 = 1_000_000;

/// What [`JournalThreads`] do with the files of a node's journal, in turns: for a program without threads.
pub struct JournalTurns {
    node: Arc<Node>,
    journaling: Arc<Journaling>,
    /// A checkpoint is due when the journal has this many bytes.
    at_bytes: u64,
    /// One that has no name yet.
    written: Option<Checkpointed>,
}

impl JournalTurns {
    /// Takes one: makes a segment, does a step, goes on with a checkpoint, as far as that is due. Waits for the disk.
    pub fn take(&mut self) {
        let (node, journaling) = (&self.node, &self.journaling);
        // The reason why there is none goes to the callers that want one.
        let _ = journaling.make_spare();
        journaling.step(&node.store);
        if let Some(good) = self.written.take_if(|written| journaling.is_good(written)) {
            let _ = journaling.publish_checkpoint(&good);
            self.at_bytes = journaling.bytes() + journaling.config.checkpoint_bytes;
        } else if self.written.is_none() && (journaling.bytes() >= self.at_bytes || journaling.owes_checkpoint()) {
            let mut left = PATIENCE;
            let mut go_on = || {
                left -= 1;
                left > 0
            };
            self.written = journaling.write_checkpoint(&node.store, &mut go_on).ok().flatten();
        }
    }
}

impl Worker {
    /// Does for the journal what [`JournalThreads`] do, as a task: for a program without threads. Ends when the journal has failed.
    pub async fn keep_journal(&self) {
        let in_place = async |mut turns: JournalTurns| {
            turns.take();
            turns
        };
        self.keep_journal_in_turns(in_place).await;
    }

    /// As [`Self::keep_journal`], with turns that the caller [takes](JournalTurns::take): no thread of the node waits
    /// for the disk, not even a commit for which there is no room.
    pub async fn keep_journal_by(&self, take: impl AsyncFn(JournalTurns) -> JournalTurns) {
        if let Some(journaling) = &self.node().journaling {
            journaling.has_thread.store(true, SeqCst);
        }
        self.keep_journal_in_turns(take).await;
    }

    async fn keep_journal_in_turns(&self, take: impl AsyncFn(JournalTurns) -> JournalTurns) {
        let node = self.node().clone();
        let Some(journaling) = node.journaling.clone() else { return };
        let at_bytes = if node.needs_checkpoint { 0 } else { journaling.config.checkpoint_bytes };
        let Some(endpoint) = endpoint_of(&node, &journaling, self.handle()) else { return };
        let mut turns = JournalTurns { node: node.clone(), journaling: journaling.clone(), at_bytes, written: None };
        while journaling.failure().is_none() {
            journaling.look(&endpoint).await;
            if !node.fabric.node_is_live(node.id()) {
                return journaling.fail("this node has ended");
            }
            turns = take(turns).await;
            self.handle().sleep_ns(journaling.config.step_ns).await;
        }
    }
}

fn make_checkpoints(node: &Arc<Node>, journaling: &Journaling, stop: &AtomicBool) {
    let mut at_bytes = journaling.bytes() + journaling.config.checkpoint_bytes;
    let mut seen = 0;
    let mut first = node.needs_checkpoint;
    while !stop.load(SeqCst) {
        let made = journaling.make_spare();
        if journaling.bytes() >= at_bytes || journaling.owes_checkpoint() || first {
            let mut go_on = || {
                crate::base::planted::may_stop();
                // Meanwhile the journal goes on. Made here, no step waits for the next segment.
                let _ = journaling.make_spare();
                !stop.load(SeqCst)
            };
            match journaling.checkpoint(&node.store, &mut go_on) {
                Ok(true) => {
                    first = false;
                    at_bytes = journaling.bytes() + journaling.config.checkpoint_bytes;
                }
                // Each attempt writes all rows. A disk that is not full but fails gets the next one when the journal has grown.
                Err(DurableError::Io { is_full: false, .. }) => {
                    first = false;
                    at_bytes = journaling.bytes() + journaling.config.segment_bytes;
                    journaling.owe_no_checkpoint();
                }
                Ok(false) | Err(_) => {}
            }
        }
        if made.is_err() {
            std::thread::park_timeout(AGAIN);
        } else {
            journaling.bell.wait(&mut seen, AGAIN);
        }
    }
}
