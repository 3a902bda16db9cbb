//! Spilled pairs, joined by several threads at once, each within a part of the join's memory.
//!
//! ```text
//!   pairs ─┬─▶ thread: a join of one pair after the other ─┬─▶ batches in no order, and figures ─▶ the join that the caller has
//!          └─▶ thread: …                                   ┘
//!                  └─▶ pairs that no hash splits: kept for the end, when one join has all the memory
//! ```

use std::mem;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use arrow::array::RecordBatch;

use super::level::SpilledPair;
use super::{Context, Join, JoinReport, Step};
use crate::memory::{BUDGET_BYTES_MIN, Reservation};
use crate::run::{STACK_BYTES, panicked};
use crate::{Above, CancelToken, JoinError};
use farhold_planted::Defect;

/// The threads. Its drop waits until they have ended, which they do at their next check of the cancel token.
pub struct ReadBack {
    said: Option<Receiver<Result<Said, JoinError>>>,
    threads: Vec<JoinHandle<()>>,
    cancel: CancelToken,
    pairs: Arc<Queue>,
    memory: Arc<Mutex<Reservation>>,
}

/// The work of a thread since its last message.
pub struct Said {
    pub batch: Option<RecordBatch>,
    pub report: JoinReport,
}

/// The pairs of all threads.
pub struct Queue {
    ahead: Mutex<Vec<SpilledPair>>,
    left: Mutex<Vec<SpilledPair>>,
}

/// The join's memory as a thread's pool sees it.
struct OfJoin(Arc<Mutex<Reservation>>);

impl ReadBack {
    /// Begins, if there are threads, memory and pairs for at least two. `memory` must not be in use.
    pub fn start(
        cx: &Context,
        memory: &mut Reservation,
        pairs: &mut Vec<SpilledPair>,
    ) -> Result<Option<Self>, JoinError> {
        let parts = cx.options.pool.limit() / PART_BYTES_MIN;
        let pairs_to_share = pairs.iter().filter(|pair| pair.can_be_split()).count();
        let threads = cx.options.run.threads.min(pairs_to_share).min(usize::try_from(parts).unwrap_or(usize::MAX));
        // Each thread has a heap of its own, which keeps freed memory.
        if threads < 2 || cx.options.pool.gives_back() {
            return Ok(None);
        }
        let shared = Arc::new(Mutex::new(mem::replace(memory, Reservation::empty(&cx.options.pool))));
        let cancel = cx.options.run.cancel.child();
        let queue = Arc::new(Queue { ahead: Mutex::new(mem::take(pairs)), left: Mutex::default() });
        let (say, said) = mpsc::sync_channel(1);
        let mut back = Self { said: Some(said), threads: Vec::new(), cancel, pairs: queue, memory: shared };
        for thread in 0..threads {
            let above = OfJoin(Arc::clone(&back.memory));
            let cx = cx.part(threads as u64, Box::new(above), back.cancel.clone())?;
            let memory = match cx.reserve() {
                // Other joins of the pool have taken what was free beyond this join's floor.
                Err(_) if thread > 0 => break,
                memory => memory?,
            };
            let (pairs, say) = (Arc::clone(&back.pairs), say.clone());
            // It computes conditions, which may be deep.
            let builder = thread::Builder::new().name("join-read-back".into()).stack_size(STACK_BYTES);
            let Ok(begun) = builder.spawn(move || work(Join::of_pairs(cx, memory, pairs), &say)) else { break };
            back.threads.push(begun);
        }
        if back.threads.is_empty() {
            // The system gives no threads. What the one that was to begin had reserved is given back.
            *memory = lock(&back.memory).take();
            *pairs = mem::take(&mut *lock(&back.pairs.ahead));
            return Ok(None);
        }
        Ok(Some(back))
    }

    /// The next message of one of the threads; `None` once all have ended.
    pub fn next(&mut self) -> Result<Option<Said>, JoinError> {
        self.said.as_ref().and_then(|said| said.recv().ok()).transpose()
    }

    /// The memory, and the pairs that were kept for the end. Call once [`ReadBack::next`] has returned `None`.
    pub fn end(mut self) -> Result<(Reservation, Vec<SpilledPair>), JoinError> {
        for thread in self.threads.drain(..) {
            thread.join().map_err(|panic| panicked(&*panic))?;
        }
        let mut pairs = mem::take(&mut *lock(&self.pairs.left));
        if farhold_planted::is(Defect::LostPair) {
            pairs.clear();
        }
        Ok((lock(&self.memory).take(), pairs))
    }

    /// Pairs that no thread has begun.
    pub fn pending(&self) -> usize {
        lock(&self.pairs.ahead).len() + lock(&self.pairs.left).len()
    }
}

/// The least memory of a thread: with less it would write most of its pairs to files once more.
const PART_BYTES_MIN: u64 = 2 * BUDGET_BYTES_MIN;

impl Drop for ReadBack {
    fn drop(&mut self) {
        self.cancel.cancel();
        // A thread that waits to send then fails to, and ends.
        self.said = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    pub fn next(&self) -> Option<SpilledPair> {
        lock(&self.ahead).pop()
    }

    /// Keeps a pair for the end.
    pub fn leave(&self, pair: SpilledPair) {
        lock(&self.left).push(pair);
    }
}

impl Above for OfJoin {
    fn try_take(&self, bytes: u64) -> bool {
        lock(&self.0).try_grow(bytes)
    }

    fn give_back(&self, bytes: u64) {
        lock(&self.0).shrink(bytes);
    }
}

fn work(mut join: Join, say: &SyncSender<Result<Said, JoinError>>) {
    loop {
        let batch = match join.step() {
            Ok(Step::Working) => continue,
            Ok(Step::Output(batch)) => Ok(Some(batch)),
            Ok(Step::Hungry | Step::Done) => Ok(None),
            Err(error) => Err(error),
        };
        let is_last = !matches!(batch, Ok(Some(_)));
        let said = batch.map(|batch| Said { batch, report: mem::take(&mut join.report) });
        // Sending fails once the join that receives has ended.
        if say.send(said).is_err() || is_last {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
