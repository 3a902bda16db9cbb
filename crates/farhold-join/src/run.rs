//! The circumstances in which a join runs: threads, hash seed, cancellation. A worker that panics becomes an error of
//! the join.
//!
//! Workers of one long piece of work are started for it ([`Run::on_all`]). Many short pieces have a [`WorkerPool`].

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::JoinError;
use crate::pages::PageStore;

/// A token that any thread may raise. Every worker sees it within one morsel.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Raised>);

#[derive(Debug, Default)]
struct Raised {
    itself: AtomicBool,
    parent: Option<CancelToken>,
}

impl CancelToken {
    /// Asks the join to stop; it then returns [`JoinError::Cancelled`].
    pub fn cancel(&self) {
        self.0.itself.store(true, Ordering::Relaxed);
    }

    /// Whether this token, or one of which it is a child, has been raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.itself.load(Ordering::Relaxed) || self.0.parent.as_ref().is_some_and(Self::is_cancelled)
    }

    /// A child token: it is raised with this one, and can be raised by itself.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(Arc::new(Raised { itself: AtomicBool::new(false), parent: Some(self.clone()) }))
    }

    /// An error once the token has been raised.
    ///
    /// # Errors
    /// [`JoinError::Cancelled`].
    pub fn check(&self) -> Result<(), JoinError> {
        if self.is_cancelled() { Err(JoinError::Cancelled) } else { Ok(()) }
    }
}

/// The circumstances of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Worker threads, at least 1; the calling thread is one of them.
    pub threads: usize,
    /// The seed of the hashes that partitions and tables of the CPU use. Without it keys that collide cannot be
    /// computed. It is random unless it is stated; the rows are the same with any seed.
    pub seed: u64,
    /// Stops the run.
    pub cancel: CancelToken,
    /// The store from which arrays get their memory, and to which they give it back. What it keeps counts in the budget
    /// with which it was made, not in a join's.
    pub pages: PageStore,
}

impl Default for Run {
    fn default() -> Self {
        Self { threads: 1, seed: random_seed(), cancel: CancelToken::default(), pages: PageStore::default() }
    }
}

impl Run {
    /// A run on this many threads, with a random seed.
    pub fn with_threads(threads: usize) -> Self {
        Self { threads: threads.max(1), ..Self::default() }
    }

    /// Runs `work(worker)` on every worker, and returns their results in order. All workers have ended when it returns.
    ///
    /// # Errors
    /// The error of the first worker that failed; [`JoinError::WorkerPanicked`].
    pub fn on_all<T: Send>(&self, work: impl Fn(usize) -> Result<T, JoinError> + Sync) -> Result<Vec<T>, JoinError> {
        let guarded = |worker| {
            panic::catch_unwind(AssertUnwindSafe(|| work(worker))).unwrap_or_else(|panic| Err(panicked(&*panic)))
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads)
                .map(|worker| {
                    let guarded = &guarded;
                    scope.spawn(move || guarded(worker))
                })
                .collect();
            let mut results = vec![guarded(0)];
            results.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| Err(panicked(&*panic)))));
            results.into_iter().collect()
        })
    }

    /// Runs `work(task)` for every task below `tasks`. Each worker takes the next task when it has done one, so that a
    /// slow worker does not hold up all. Returns the results in the order of the tasks.
    ///
    /// # Errors
    /// As for [`Run::on_all`].
    pub fn on_tasks<T: Send>(
        &self,
        tasks: usize,
        work: impl Fn(usize) -> Result<T, JoinError> + Sync,
    ) -> Result<Vec<T>, JoinError> {
        self.on_tasks_with(tasks, || Ok(()), |(), task| work(task))
    }

    /// As [`Run::on_tasks`], with a value that `start` makes for each worker.
    ///
    /// # Errors
    /// As for [`Run::on_all`].
    pub fn on_tasks_with<S, T: Send>(
        &self,
        tasks: usize,
        start: impl Fn() -> Result<S, JoinError> + Sync,
        work: impl Fn(&mut S, usize) -> Result<T, JoinError> + Sync,
    ) -> Result<Vec<T>, JoinError> {
        let next = AtomicUsize::new(0);
        let done = self.on_all(|_| {
            let (mut done, mut state) = (Vec::new(), start()?);
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return Ok(done);
                }
                done.push((task, work(&mut state, task)?));
            }
        })?;
        let mut done: Vec<(usize, T)> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|done| done.0);
        Ok(done.into_iter().map(|done| done.1).collect())
    }

    /// The part of `0..count` that belongs to `worker`: parts are contiguous, in order, of nearly equal length.
    pub fn part(&self, count: usize, worker: usize) -> std::ops::Range<usize> {
        count * worker / self.threads..count * (worker + 1) / self.threads
    }
}

/// Threads that help their owner with one piece of work after another. The owner waits for those that have begun to
/// help, and not for the others: on a machine with other load, a thread may sleep for longer than the work takes. The
/// drop waits for the end of all threads.
pub(crate) struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is new work, or the pool has ended.
    has_changed: Condvar,
    /// No thread helps.
    is_left: Condvar,
}

#[derive(Default)]
struct State {
    work: Option<Work>,
    /// Counts pieces of work, so that no thread takes one twice.
    number: u64,
    /// Threads that are working.
    helping: usize,
    is_over: bool,
}

/// The stack of a helper, and of any thread whose work may compute an expression of thousands of levels. It is address
/// space: only the used part takes memory.
pub const STACK_BYTES: usize = 128 << 20;

/// Lives for as long as a thread helps, whatever its type says.
type Work = &'static (dyn Fn() + Sync);

impl WorkerPool {
    /// A pool of `workers` workers, with the caller as one of them; fewer if the system gives no more threads.
    pub fn new(workers: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |_| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("join-helper".into()).stack_size(STACK_BYTES).spawn(move || shared.help()).ok()
        };
        let threads = (1..workers).map_while(start).collect();
        Self { shared, threads }
    }

    /// Runs `work(task)` for every task below `tasks`, and returns the results in order. The error of the first task
    /// that failed is returned; a panic is [`JoinError::WorkerPanicked`].
    pub fn on_tasks<T: Send>(
        &self,
        tasks: usize,
        work: impl Fn(usize) -> Result<T, JoinError> + Sync,
    ) -> Result<Vec<T>, JoinError> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(tasks)));
        let some = || {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                let answer = panic::catch_unwind(AssertUnwindSafe(|| work(task)));
                let answer = answer.unwrap_or_else(|panic| Err(panicked(&*panic)));
                if answer.is_err() {
                    next.store(tasks, Ordering::Relaxed);
                }
                lock(&done).push((task, answer));
            }
        };
        if tasks > 1 && !self.threads.is_empty() {
            self.with_help(&some);
        } else {
            some();
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|done| done.0);
        done.into_iter().map(|done| done.1).collect()
    }

    /// `work` is called by the caller, and by every thread that wakes before the caller's call returns.
    fn with_help<'a>(&self, work: &'a (dyn Fn() + Sync + 'a)) {
        /// Ends the work, also where the caller panics.
        struct End<'a>(&'a Shared);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                let mut state = lock(&self.0.state);
                state.work = None;
                while state.helping > 0 {
                    state = self.0.is_left.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        let end = End(&self.shared);
        // SAFETY: only the lifetime changes. A thread takes the work, under the lock, only while it is set, and counts
        // as helping from then until it has returned from it. `end` removes the work and waits for all threads that
        // help, before `work` can be dropped.
        let work_of_all: Work = unsafe { std::mem::transmute::<&'a (dyn Fn() + Sync + 'a), Work>(work) };
        {
            let mut state = lock(&self.shared.state);
            state.number += 1;
            state.work = Some(work_of_all);
        }
        self.shared.has_changed.notify_all();
        work();
        drop(end);
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.has_changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn help(&self) {
        let mut seen = 0;
        let mut state = lock(&self.state);
        while !state.is_over {
            let Some(work) = state.work.filter(|_| state.number != seen) else {
                state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            seen = state.number;
            state.helping += 1;
            drop(state);
            // `work` catches the panics of its tasks.
            work();
            state = lock(&self.state);
            state.helping -= 1;
            if state.helping == 0 {
                self.is_left.notify_one();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A different seed each time, from `std`'s `RandomState`.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// The error for a caught panic.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> JoinError {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    JoinError::WorkerPanicked(
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for threads in 1..6 {
            for count in [0, 1, 5, 64, 1001] {
                let run = Run::with_threads(threads);
                let rows: Vec<_> = (0..threads).flat_map(|worker| run.part(count, worker)).collect();
                assert!(rows.into_iter().eq(0..count));
            }
        }
    }

    #[test]
    fn each_run_draws_its_own_seed() {
        assert_ne!(Run::default().seed, Run::with_threads(1).seed);
    }

    #[test]
    fn a_child_is_cancelled_with_its_parent_and_not_the_other_way_round() {
        let parent = CancelToken::default();
        let [one, other] = [parent.child(), parent.child()];
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !parent.is_cancelled());
        parent.cancel();
        assert!(matches!(other.check(), Err(JoinError::Cancelled)));
    }

    #[test]
    fn a_panic_is_an_error_and_the_other_workers_end() {
        let run = Run::with_threads(3);
        let answer = run.on_all(|worker| if worker == 1 { panic!("planted") } else { Ok(worker) });
        assert!(matches!(answer, Err(JoinError::WorkerPanicked(message)) if message == "planted"));
        assert_eq!(run.on_all(Ok).unwrap(), [0, 1, 2]);
        assert_eq!(run.on_tasks(10, Ok).unwrap(), (0..10).collect::<Vec<_>>());
        assert!(matches!(
            run.on_tasks(10, |task| if task == 7 { Err(JoinError::Cancelled) } else { Ok(()) }),
            Err(JoinError::Cancelled)
        ));
    }

    #[test]
    fn a_worker_pool_does_every_task_once_and_survives_a_panic() {
        for workers in 1..5 {
            let pool = WorkerPool::new(workers);
            for tasks in (0..40).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let answers = pool.on_tasks(tasks, |task| Ok((counts[task].fetch_add(1, Ordering::Relaxed), task)));
                assert!(answers.unwrap().into_iter().eq((0..tasks).map(|task| (0, task))));
            }
            let answer = pool.on_tasks(9, |task| if task == 4 { panic!("planted") } else { Ok(()) });
            assert!(matches!(answer, Err(JoinError::WorkerPanicked(message)) if message == "planted"));
            let answer = pool.on_tasks(9, |task| if task == 7 { Err(JoinError::Cancelled) } else { Ok(()) });
            assert!(matches!(answer, Err(JoinError::Cancelled)));
            assert_eq!(pool.on_tasks(3, Ok).unwrap(), [0, 1, 2]);
        }
    }
}
