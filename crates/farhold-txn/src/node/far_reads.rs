//! Reads of other nodes' memory for threads that have no worker: one thread of the node does all of them. The thread reads pages only over fabrics that map no
//! other node's memory, and columns if a scan copies them. It starts with the first request. It ends when there has been no request for a while, or when the
//! node closes; until then it keeps the node open.

use crate::base::error::TxnError;
use crate::node::Node;
use crate::node::parts::{AsOf, Part, Start};
use farhold_fabric::Endpoint;
use farhold_fabric::mover::Mover;
use farhold_scan::access_path::pushdown::Line;
use farhold_store::TableId;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread lives without a request. An endpoint of a network takes milliseconds to open and megabytes to keep.
pub(crate) const IDLE: Duration = Duration::from_secs(1);
/// A request to the thread.
pub(crate) enum Question {
    /// The runs of pages of a table.
    Runs { start: Start, table: TableId, answer: Sender<Result<Vec<Part>, TxnError>> },
    /// The rows of a run in a state.
    Rows { start: Start, part: Part, as_of: AsOf, answer: Sender<Result<Rows, TxnError>> },
    /// Another task that needs an endpoint; it sends its own answer.
    Other(FarTask),
}

/// The thread's resources, which a [`FarTask`] borrows.
pub(crate) struct FarTools<'t> {
    pub endpoint: &'t Endpoint,
    /// Copies mapped memory; none if other nodes' memory is not mapped.
    pub mover: Option<&'t Mover>,
    /// Leads to home nodes.
    pub lines: &'t dyn Lines,
}

/// Lines to the home nodes of columns.
pub(crate) trait Lines {
    /// For a scan of a table at the epoch of an open snapshot, which was taken in this configuration. Once `is_given_up` is set, the line
    /// puts no further question to a home.
    fn line(&self, table: TableId, epoch: u32, configuration: u64, is_given_up: &Arc<AtomicBool>) -> Box<dyn Line>;
}

/// Reads other nodes' memory beside other tasks of the thread. It is bounded by the fabric's time-outs.
pub(crate) type FarTask = Box<dyn for<'t> FnOnce(FarTools<'t>) -> Pin<Box<dyn Future<Output = ()> + 't>> + Send>;

/// Rows, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// Bytes of each key and each value.
    lens: Vec<(u32, u32)>,
}

impl Rows {
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lens.push((key.len() as u32, value.len() as u32));
    }

    /// Visits the key and value of each row.
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

/// The body of the thread: it reports whether it has started, then answers requests. It releases the node once it has what it needs from it.
type Answerer = fn(Arc<Node>, Receiver<Question>, &Sender<Result<(), TxnError>>);

/// A node's thread for far reads, if it is running.
#[derive(Default)]
pub(crate) struct FarReads {
    pub running: Mutex<Option<Running>>,
    /// The node is closed: none starts any more.
    is_closed: AtomicBool,
}

pub(crate) struct Running {
    questions: Sender<Question>,
    thread: JoinHandle<()>,
}

impl FarReads {
    /// Sends a request to the thread; if there is none, starts one that runs `answer`.
    pub fn ask(&self, asker: &Arc<Node>, mut question: Question, answer: Answerer) -> Result<(), TxnError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(it) = &*running {
            match it.questions.send(question) {
                Ok(()) => return Ok(()),
                // The thread has just ended because it had no requests.
                Err(unsent) => question = unsent.0,
            }
        }
        if self.is_closed.load(Acquire) {
            return Err(TxnError::Corrupt { what: "the node is closed" });
        }
        let (questions, asked) = channel();
        let _ = questions.send(question);
        let (started, report) = channel();
        let node = asker.clone();
        let run = move || answer(node, asked, &started);
        let spawned = std::thread::Builder::new().name("farhold-far".into()).spawn(run);
        let thread = spawned.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        report.recv().unwrap_or(Err(TxnError::Corrupt { what: "the thread of far reads ended at its start" }))?;
        *running = Some(Running { questions, thread });
        Ok(())
    }

    /// Ends the thread, if there is one.
    pub fn close(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_closed.store(true, Release);
        let running = {
            let taken = running.take();
            drop(running);
            taken
        };
        if let Some(Running { questions, thread }) = running {
            drop(questions);
            let _ = thread.join();
        }
    }
}

/// Waits for a request; `None`: the thread has had no request for a while, ends, and accepts no more. It decides this under the lock under which callers look
/// for the thread, so no request is sent to a thread that has ended.
pub(crate) fn next_question<L>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::NodeId;

    /// The thread has waited long enough, and a caller sends a request before it has ended.
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
