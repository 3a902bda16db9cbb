//! Other nodes' memory, for scans on threads that have no worker: one thread of the node asks for it.
//!
//! ```text
//!   query threads ──Question──> farhold-far (a worker, many questions at a time) ──batches──> home agents
//!        └───────rows of a run of pages, columns──────┘
//! ```
//!
//! The thread starts with the first question. It ends when there has been none for a while or the node closes; it holds the node open as
//! long. A question waits for nothing but far nodes, each of which answers within the fabric's time-out, or counts as unavailable.

use crate::base::error::TxnError;
use crate::base::slots::WORKERS_MAX;
use crate::node::Node;
use crate::node::far_reads::{FarReads, FarTask, FarTools, IDLE, Question, Rows, next_question};
use crate::node::parts::{AsOf, Part, Start};
use crate::protocol::worker::Worker;
use farhold_fabric::Executor;
use farhold_fabric::mover::{Mover, choose};
use farhold_store::TableId;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Questions under way at a time: enough to keep the way to some nodes full, each answer being a run of pages.
const QUESTIONS_MAX: usize = 16;

impl FarReads {
    /// A table's runs of pages on another node. Blocks the thread.
    pub fn runs(&self, asker: &Arc<Node>, start: Start, table: TableId) -> Result<Vec<Part>, TxnError> {
        let (answer, answered) = channel();
        self.ask(asker, Question::Runs { start, table, answer }, run)?;
        answered.recv().unwrap_or(Err(TxnError::NodeUnavailable { node: start.node, committed: false }))
    }

    /// The rows of a run of pages of another node. Blocks the thread.
    pub fn rows(&self, asker: &Arc<Node>, start: Start, part: Part, as_of: AsOf) -> Result<Rows, TxnError> {
        let (answer, answered) = channel();
        self.ask(asker, Question::Rows { start, part, as_of, answer }, run)?;
        answered.recv().unwrap_or(Err(TxnError::NodeUnavailable { node: start.node, committed: false }))
    }

    /// Runs a task beside the others.
    pub fn run(&self, asker: &Arc<Node>, task: FarTask) -> Result<(), TxnError> {
        self.ask(asker, Question::Other(task), run)
    }
}

/// The thread.
fn run(node: Arc<Node>, asked: Receiver<Question>, started: &Sender<Result<(), TxnError>>) {
    let executor = Executor::real(u64::from(node.id().0));
    // It writes nothing, so it needs no ring.
    let slot = node.slots.take_last(WORKERS_MAX);
    match slot.and_then(|slot| Worker::with_slot(&node, &executor.handle(), slot)) {
        Ok(worker) => {
            drop(node);
            let _ = started.send(Ok(()));
            answer_all(&executor, &worker, asked);
        }
        Err(error) => drop(started.send(Err(error))),
    }
}

fn answer_all(executor: &Executor, worker: &Worker, mut asked: Receiver<Question>) {
    let mover = Rc::new(OnceCell::new());
    while let Some((first, rest)) = next_question(asked, IDLE, &worker.node().far_reads.running) {
        asked = rest;
        executor.run(async {
            let under_way = Rc::new(Cell::new(0));
            let mut next = Some(first);
            loop {
                while let Some(question) = next.take() {
                    let (worker, mover, answered) = (worker.clone(), mover.clone(), under_way.clone());
                    under_way.set(under_way.get() + 1);
                    drop(executor.handle().spawn(async move {
                        answer(&worker, &mover, question).await;
                        answered.set(answered.get() - 1);
                    }));
                    if under_way.get() < QUESTIONS_MAX {
                        next = asked.try_recv().ok();
                    }
                }
                executor.handle().yield_now().await;
                match under_way.get() {
                    0 => return,
                    count if count < QUESTIONS_MAX => next = asked.try_recv().ok(),
                    _ => {}
                }
            }
        });
    }
}

/// The caller may be gone: then the answer is lost.
async fn answer(worker: &Worker, mover: &OnceCell<Option<Mover>>, question: Question) {
    match question {
        Question::Runs { start, table, answer } => {
            let _ = answer.send(worker.ask_runs(start, table).await);
        }
        Question::Rows { start, part, as_of, answer } => {
            let mut rows = Rows::default();
            let read = worker.scan_run(start, part, as_of, &mut |key, value| rows.push(key, value)).await;
            let _ = answer.send(read.map(|()| rows));
        }
        Question::Other(task) => {
            let endpoint = &worker.core.endpoint;
            // Without a thread for it, the paths that need one cannot be used, and say so.
            let start = || if endpoint.maps_others() { Mover::start(1, choose().engine).ok() } else { None };
            task(FarTools { endpoint, mover: mover.get_or_init(start).as_ref(), lines: &*worker.core }).await;
        }
    }
}
