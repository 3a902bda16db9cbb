//! A mover: threads that copy bytes out of mapped memory while the caller computes.
//!
//! ```text
//!   caller:  start(pieces, buffer) ──> Transfer ── computes ── await ──> buffer, filled
//!                  │                       └─ dropped: given up            ▲
//!   queue:         └──────> job ──> thread: a step, a look whether it is given up, a step ...
//! ```
//!
//! On mapped memory the processor that submits a batch executes it at once (see [`crate::provider::shm`]), so nothing is copied while it computes. A mover acts
//! as a second processor. Networks need none: their transfers are asynchronous after `submit`.
//! - A transfer's buffer belongs to the mover until the transfer ends. No buffer is therefore written after it has been freed, whatever the caller drops, and
//!   in any order.
//! - A dropped transfer is cancelled: the mover frees its buffer before the next step.
//! - The bytes must not change meanwhile, or the caller must be able to tell: a copy is no snapshot.
//! - A [`CopyEngine`] executes the steps: [`Processor`] by loads and stores, or a device of the machine. [`choose`] takes the device if there
//!   is one that works: a work queue of Intel's DSA.

#[cfg(test)]
mod conformance;
// Miri has no devices.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod dsa;

use crate::bytes::Bytes;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

/// Bytes that the processor copies between two checks for cancellation: some 10 µs.
pub const STEP_BYTES: usize = 64 << 10;
/// The most transfers that may wait for a thread.
pub const WAITING_MAX: usize = 256;
/// Looks at an empty queue before a thread sleeps, some 20 µs: waking it costs as much, which is the time of a block of 256 KiB.
const SPINS: u32 = 2_000;

/// Executes steps of transfers, on several threads at a time.
pub trait CopyEngine: Send + Sync {
    /// Bytes of a step at most, at least one: what it copies in some 10 µs.
    fn step_bytes(&self) -> usize {
        STEP_BYTES
    }

    /// Copies bytes out of a region. It returns when all of them have been copied.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], or an error of the engine.
    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError>;
}

/// Copies by loads and stores of the mover's own thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processor;

impl CopyEngine for Processor {
    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        from.copy_out(offset, to)
    }
}

impl CopyEngine for Box<dyn CopyEngine> {
    fn step_bytes(&self) -> usize {
        (**self).step_bytes()
    }

    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        (**self).copy(from, offset, to)
    }
}

/// The engine that a node's mover takes.
pub struct Choice {
    /// The engine.
    pub engine: Box<dyn CopyEngine>,
    /// The DSA work queue whose device copies; or the reason why there is none, so that the processor copies.
    pub queue: Result<String, String>,
}

/// The first DSA work queue that this process may use and that copies a pattern without a mistake, or the processor. It opens the queue, which
/// other processes cannot open meanwhile if it is a dedicated one; it takes a millisecond, or 0.1 s for each queue whose device is silent.
#[must_use]
pub fn choose() -> Choice {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    let queue = match dsa::open() {
        Ok((dsa, name)) => return Choice { engine: Box::new(dsa), queue: Ok(name) },
        Err(reason) => reason,
    };
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
    let queue = "there are such devices on Linux for x86-64 only".to_owned();
    Choice { engine: Box::new(Processor), queue: Err(queue) }
}

/// Bytes of a mapped region.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The region. It stays mapped until the transfer ends.
    pub memory: Arc<RegionMemory>,
    /// Where the bytes begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: usize,
}

/// Threads that copy. When it is dropped, the threads end and running transfers are cancelled.
pub struct Mover {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    engine: Box<dyn CopyEngine>,
    queue: Mutex<VecDeque<Job>>,
    is_filled: Condvar,
    /// Jobs in the queue, for threads that look without the lock.
    waiting: AtomicUsize,
    under_way: AtomicUsize,
    stop: AtomicBool,
}

/// The part of a transfer that a thread of the mover owns.
struct Job {
    pieces: Vec<Piece>,
    buffer: Bytes,
    ticket: Arc<Ticket>,
}

/// The part of a transfer that both sides share.
#[derive(Default)]
struct Ticket {
    given_up: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    UnderWay,
    Awaited(Waker),
    Over(Result<Bytes, FabricError>),
    Taken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mover {
    /// A mover with this number of threads, at least one.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn start(threads: usize, engine: impl CopyEngine + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            engine: Box::new(engine),
            queue: Mutex::default(),
            is_filled: Condvar::new(),
            waiting: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let mut mover = Self { shared, threads: Vec::new() };
        for number in 0..threads.max(1) {
            let shared = mover.shared.clone();
            let name = format!("farhold-mover-{number}");
            mover.threads.push(std::thread::Builder::new().name(name).spawn(move || shared.serve())?);
        }
        Ok(mover)
    }

    /// Begins to copy the pieces into the buffer, one after the other.
    ///
    /// # Errors
    /// The buffer, if [`WAITING_MAX`] transfers wait already: try again later.
    ///
    /// # Panics
    /// If the buffer is shorter than the pieces together.
    pub fn copy(&self, pieces: Vec<Piece>, buffer: Bytes) -> Result<Transfer<'_>, Bytes> {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        assert!(bytes <= buffer.len(), "{bytes} bytes into a buffer of {}", buffer.len());
        let ticket = Arc::new(Ticket::default());
        let mut queue = lock(&self.shared.queue);
        if queue.len() >= WAITING_MAX {
            return Err(buffer);
        }
        self.shared.under_way.fetch_add(1, Ordering::Relaxed);
        queue.push_back(Job { pieces, buffer, ticket: ticket.clone() });
        self.shared.waiting.store(queue.len(), Ordering::Release);
        drop(queue);
        self.shared.is_filled.notify_one();
        Ok(Transfer { ticket, mover: PhantomData })
    }

    /// Transfers that hold a buffer here: those that wait, and those that a thread executes.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.under_way.load(Ordering::Acquire)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Under the lock: a thread that has just seen no stop is asleep by then, or has not looked yet.
        drop(lock(&self.shared.queue));
        self.shared.is_filled.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover")
            .field("threads", &self.threads.len())
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn serve(&self) {
        while let Some(job) = self.next() {
            let Job { pieces, buffer, ticket } = job;
            let copied = catch_unwind(AssertUnwindSafe(|| self.execute(&pieces, buffer, &ticket)));
            let copied = copied.unwrap_or_else(|panic| {
                // The payload of an engine's panic may panic when it is dropped.
                std::mem::forget(panic);
                Err(FabricError::Unsupported { what: "copying bytes: the copy engine panicked" })
            });
            // Unmapped before the caller can see the end.
            drop(pieces);
            // A waker is the caller's: it must not end this thread.
            if let Some(waker) = ticket.end(copied, &self.under_way)
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake()))
            {
                std::mem::forget(panic);
            }
        }
    }

    /// The next job; `None`: the mover ends.
    fn next(&self) -> Option<Job> {
        for _ in 0..SPINS {
            if self.waiting.load(Ordering::Acquire) > 0 || self.stop.load(Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut queue = lock(&self.queue);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if let Some(job) = queue.pop_front() {
                self.waiting.store(queue.len(), Ordering::Release);
                return Some(job);
            }
            queue = self.is_filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies step by step. A cancelled transfer ends early, and its buffer has no meaning.
    fn execute(&self, pieces: &[Piece], mut buffer: Bytes, ticket: &Ticket) -> Result<Bytes, FabricError> {
        let step_bytes = self.engine.step_bytes();
        let mut rest: &mut [u8] = &mut buffer;
        for piece in pieces {
            let (to, behind) = rest.split_at_mut(piece.bytes);
            rest = behind;
            let mut offset = piece.offset;
            for step in to.chunks_mut(step_bytes) {
                if ticket.given_up.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire) {
                    return Err(FabricError::Unsupported { what: "going on with a transfer that has been given up" });
                }
                self.engine.copy(&piece.memory, offset, step)?;
                offset += step.len() as u64;
            }
        }
        Ok(buffer)
    }
}

impl Ticket {
    /// Hands the result over, and gives the waker of the caller that awaits it. The transfer stops counting as running once the mover no longer has the buffer,
    /// and before the caller can see the result.
    fn end(&self, result: Result<Bytes, FabricError>, under_way: &AtomicUsize) -> Option<Waker> {
        let mut state = lock(&self.state);
        // The caller cancels before it takes this lock for the last time. Either this code sees that, or the caller sees the result.
        if self.given_up.load(Ordering::Acquire) {
            drop(state);
            drop(result);
            under_way.fetch_sub(1, Ordering::Release);
            return None;
        }
        under_way.fetch_sub(1, Ordering::Release);
        match std::mem::replace(&mut *state, State::Over(result)) {
            State::Awaited(waker) => Some(waker),
            _ => None,
        }
    }
}

/// A running copy: awaiting it completes it, and dropping it cancels it.
#[must_use = "a transfer that is dropped is given up"]
pub struct Transfer<'a> {
    ticket: Arc<Ticket>,
    mover: PhantomData<&'a Mover>,
}

impl Future for Transfer<'_> {
    type Output = Result<Bytes, FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.ticket.state);
        if let State::Over(_) = *state {
            let State::Over(result) = std::mem::replace(&mut *state, State::Taken) else { unreachable!("just seen") };
            return Poll::Ready(result);
        }
        assert!(!matches!(*state, State::Taken), "a transfer is awaited once");
        *state = State::Awaited(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.ticket.given_up.store(true, Ordering::Release);
        // A buffer that was handed over is freed here, after the lock, and so is the waker, which is no longer needed.
        let state = std::mem::replace(&mut *lock(&self.ticket.state), State::Taken);
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FarPtr, NodeId, RegionId};
    use std::sync::mpsc::{Receiver, Sender, channel};

    pub(super) fn region(bytes: usize) -> Arc<RegionMemory> {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(1), RegionId(1), 0), bytes as u64).unwrap();
        let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
        memory.copy_in(0, &content).unwrap();
        Arc::new(memory)
    }

    pub(super) fn piece(memory: &Arc<RegionMemory>, offset: u64, bytes: usize) -> Piece {
        Piece { memory: memory.clone(), offset, bytes }
    }

    pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
        crate::Executor::real(1).run(future)
    }

    /// An engine that says when it begins a step, and waits until it may go on.
    struct Gate {
        begun: Mutex<Sender<u64>>,
        go: Mutex<Receiver<()>>,
    }

    impl CopyEngine for Gate {
        fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
            lock(&self.begun).send(offset).unwrap();
            // A test that has ended lets everything go.
            let _ = lock(&self.go).recv();
            from.copy_out(offset, to)
        }
    }

    fn gate() -> (Gate, Receiver<u64>, Sender<()>) {
        let ((begun, has_begun), (may_go, go)) = (channel(), channel());
        (Gate { begun: Mutex::new(begun), go: Mutex::new(go) }, has_begun, may_go)
    }

    /// A transfer that is dropped in the middle of a step ends after that step, and one that waits does not begin.
    #[test]
    fn a_transfer_that_is_dropped_is_given_up() {
        let (gate, begun, go) = gate();
        let mover = Mover::start(1, gate).unwrap();
        let memory = region(4 * STEP_BYTES);
        let all = || mover.copy(vec![piece(&memory, 0, 4 * STEP_BYTES)], Bytes::zeroed(4 * STEP_BYTES)).unwrap();
        let (running, waiting, last) =
            (all(), all(), mover.copy(vec![piece(&memory, 9, 1)], Bytes::zeroed(1)).unwrap());
        assert_eq!(begun.recv(), Ok(0));
        drop((running, waiting));
        assert_eq!(mover.under_way(), 3);
        go.send(()).unwrap();
        // The next step that begins is that of the third transfer.
        assert_eq!(begun.recv(), Ok(9));
        assert_eq!(mover.under_way(), 1, "the mover has freed both buffers");
        go.send(()).unwrap();
        assert_eq!(wait(last).map(|buffer| buffer[0]), Ok((9 * 31 % 251) as u8));
        assert_eq!(Arc::strong_count(&memory), 1, "no piece is held");
    }

    #[test]
    fn a_full_queue_gives_the_buffer_back() {
        let (gate, begun, go) = gate();
        let mover = Mover::start(1, gate).unwrap();
        let memory = region(4096);
        let mut transfers = vec![mover.copy(vec![piece(&memory, 0, 1)], Bytes::zeroed(1)).unwrap()];
        assert_eq!(begun.recv(), Ok(0));
        transfers.extend((0..WAITING_MAX).map(|_| mover.copy(vec![], Bytes::zeroed(1)).unwrap()));
        let Err(buffer) = mover.copy(vec![], Bytes::zeroed(7)) else { panic!("there is no room") };
        assert_eq!(buffer.len(), 7);
        drop(go);
        for transfer in transfers {
            wait(transfer).unwrap();
        }
    }

    struct Faulty;

    impl CopyEngine for Faulty {
        fn copy(&self, _: &RegionMemory, _: u64, _: &mut [u8]) -> Result<(), FabricError> {
            panic!("a fault of the engine, on purpose")
        }
    }

    #[test]
    fn an_engine_that_panics_fails_its_transfers_only() {
        let mover = Mover::start(1, Faulty).unwrap();
        let memory = region(4096);
        for _ in 0..2 {
            let transfer = mover.copy(vec![piece(&memory, 0, 8)], Bytes::zeroed(8)).unwrap();
            assert!(matches!(wait(transfer), Err(FabricError::Unsupported { .. })));
            assert!(wait(mover.copy(vec![], Bytes::zeroed(8)).unwrap()).is_ok());
        }
    }

    struct Bad;

    impl std::task::Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("a fault of the caller's waker, on purpose")
        }
    }

    /// The thread of a mover lives on after a waker that panics.
    #[test]
    fn a_waker_that_panics_does_not_end_the_thread() {
        let (gate, begun, go) = gate();
        let mover = Mover::start(1, gate).unwrap();
        let memory = region(4096);
        let mut transfer = mover.copy(vec![piece(&memory, 0, 8)], Bytes::zeroed(8)).unwrap();
        assert_eq!(begun.recv(), Ok(0));
        let waker = Waker::from(Arc::new(Bad));
        assert!(Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(go);
        let next = mover.copy(vec![piece(&memory, 1, 8)], Bytes::zeroed(8)).unwrap();
        assert_eq!(begun.recv_timeout(std::time::Duration::from_secs(30)), Ok(1), "the thread has ended");
        assert!(wait(next).is_ok());
        assert!(wait(transfer).is_ok());
    }
}
