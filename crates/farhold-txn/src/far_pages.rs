//! Other nodes' pages, for scans on threads that have no worker: one thread of the node asks for them all.
//!
//! ```text
//!   query threads ──Question──> farhold-pages (a worker, many questions at a time) ──batches──> home agents
//!        └────────────rows of a run of pages──────────┘
//! ```
//!
//! Only for fabrics that map nobody else's memory. The thread starts with the first question, and ends when nobody has asked
//! for a while or the node closes; it holds the node open as long. A question waits for nothing but far nodes, each of which
//! answers within the fabric's time-out, or counts as unavailable.

use crate::slots::WORKERS_MAX;
use crate::snapshot::{AsOf, Part, Start};
use crate::{Node, TableId, TxnError, Worker};
use farhold_fabric::Executor;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread stays without a question. An endpoint of a network takes milliseconds to open and megabytes to keep.
const IDLE: Duration = Duration::from_secs(1);
/// Questions under way at a time: enough to keep the way to some nodes full, each answer being a run of pages.
const QUESTIONS_MAX: usize = 16;

/// What is asked for.
enum Question {
    /// The runs of pages of a table.
    Runs { start: Start, table: TableId, answer: Sender<Result<Vec<Part>, TxnError>> },
    /// The rows of a run in a state.
    Rows { start: Start, part: Part, as_of: AsOf, answer: Sender<Result<Rows, TxnError>> },
}

/// Rows, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// Bytes of each key and each value.
    lens: Vec<(u32, u32)>,
}

impl Rows {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lens.push((key.len() as u32, value.len() as u32));
    }

    /// Shows key and value of each.
    pub fn visit(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let mut rest = &self.bytes[..];
        for &(key_len, value_len) in &self.lens {
            let (key, behind) = rest.split_at(key_len as usize);
            let (value, behind) = behind.split_at(value_len as usize);
            visit(key, value);
            rest = behind;
        }
    }
}

/// A node's thread for this, if it runs.
#[derive(Default)]
pub(crate) struct FarPages(Mutex<Option<Running>>);

struct Running {
    questions: Sender<Question>,
    thread: JoinHandle<()>,
}

impl FarPages {
    /// A table's runs of pages on another node. Blocks the thread.
    pub fn runs(&self, asker: &Arc<Node>, start: Start, table: TableId) -> Result<Vec<Part>, TxnError> {
        let (answer, answered) = channel();
        self.ask(asker, Question::Runs { start, table, answer })?;
        answered.recv().unwrap_or(Err(TxnError::NodeUnavailable { node: start.node, committed: false }))
    }

    /// The rows of a run of pages of another node. Blocks the thread.
    pub fn rows(&self, asker: &Arc<Node>, start: Start, part: Part, as_of: AsOf) -> Result<Rows, TxnError> {
        let (answer, answered) = channel();
        self.ask(asker, Question::Rows { start, part, as_of, answer })?;
        answered.recv().unwrap_or(Err(TxnError::NodeUnavailable { node: start.node, committed: false }))
    }

    fn ask(&self, asker: &Arc<Node>, mut question: Question) -> Result<(), TxnError> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(it) = &*running {
            match it.questions.send(question) {
                Ok(()) => return Ok(()),
                // It has just gone for want of questions.
                Err(unsent) => question = unsent.0,
            }
        }
        let (questions, asked) = channel();
        let _ = questions.send(question);
        let (started, report) = channel();
        let node = asker.clone();
        let run = move || {
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
        };
        let spawned = std::thread::Builder::new().name("farhold-pages".into()).spawn(run);
        let thread = spawned.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        report.recv().unwrap_or(Err(TxnError::Corrupt { what: "the thread of far pages ended at its start" }))?;
        *running = Some(Running { questions, thread });
        Ok(())
    }

    /// Ends the thread, if there is one.
    pub fn close(&self) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { questions, thread }) = running {
            drop(questions);
            let _ = thread.join();
        }
    }
}

/// Waits for a question; `None`: for want of questions nobody can be asked any more. That is so under the lock under which whoever has a
/// question looks for somebody to ask, so none is sent to a thread that has gone.
fn next_question<L>(
    asked: Receiver<Question>,
    idle: Duration,
    lock: &Mutex<L>,
) -> Option<(Question, Receiver<Question>)> {
    match asked.recv_timeout(idle) {
        Ok(question) => Some((question, asked)),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            let nobody_asks = lock.lock().unwrap_or_else(PoisonError::into_inner);
            // Without one the receiver goes here.
            let heard = asked.try_recv().ok().map(|question| (question, asked));
            drop(nobody_asks);
            heard
        }
    }
}

fn answer_all(executor: &Executor, worker: &Worker, mut asked: Receiver<Question>) {
    while let Some((first, rest)) = next_question(asked, IDLE, &worker.node().far_pages.0) {
        asked = rest;
        executor.run(async {
            let under_way = Rc::new(Cell::new(0));
            let mut next = Some(first);
            loop {
                while let Some(question) = next.take() {
                    let (worker, answered) = (worker.clone(), under_way.clone());
                    under_way.set(under_way.get() + 1);
                    drop(executor.handle().spawn(async move {
                        answer(&worker, question).await;
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

/// Who asked may be gone: then nobody hears the answer.
async fn answer(worker: &Worker, question: Question) {
    match question {
        Question::Runs { start, table, answer } => {
            let _ = answer.send(worker.ask_runs(start, table).await);
        }
        Question::Rows { start, part, as_of, answer } => {
            let mut rows = Rows::default();
            let read = worker.scan_run(start, part, as_of, &mut |key, value| rows.push(key, value)).await;
            let _ = answer.send(read.map(|()| rows));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    /// The thread has waited long enough, and somebody has a question before it is gone.
    #[test]
    fn a_question_to_a_thread_that_is_about_to_go_is_heard() {
        let (questions, asked) = channel();
        let lock = Arc::new(Mutex::new(()));
        let asking = lock.lock().expect("nobody panics");
        let waits = lock.clone();
        let thread = std::thread::spawn(move || {
            next_question(asked, Duration::ZERO, &waits).map(|(question, _)| matches!(question, Question::Runs { .. }))
        });
        let (answer, _answered) = channel();
        let start = Start { node: NodeId(1), incarnation: 1 };
        let sent = questions.send(Question::Runs { start, table: TableId(7), answer });
        assert!(sent.is_ok(), "the thread is there");
        drop(asking);
        assert_eq!(thread.join().expect("no panic"), Some(true));
        let (_questions, asked) = channel();
        assert!(next_question(asked, Duration::ZERO, &lock).is_none());
    }
}
