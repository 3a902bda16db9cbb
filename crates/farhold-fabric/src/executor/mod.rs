//! The poll-driven executor: one a thread, and the only source of time, randomness and tasks.
//!
//! ```text
//!   wake ──> ready queue ──> poll ──> Pending: waits for a wake
//!    ^                        └─────> Ready: the slot is free again
//!    └── timer heap: (time, sequence) smallest first
//! ```
//!
//! Two clocks: `real` (the monotonic clock; the ready queue is first in, first out) and `virtual_time` (time stands still
//! while anything is ready, then jumps to the next timer; the ready queue gives a seeded random task, so a seed is a schedule).
//! In virtual time [`Handle::yield_now`] costs some tens of nanoseconds of it, so that a task that polls lets time pass.
//!
//! A waker is a number (`executor:24 | generation:20 | slot:20`), no pointer: cloning and dropping it is free, waking on the
//! executor's own thread is a thread-local look-up and a push, and waking from another thread goes through a registry.

mod clock;
mod handle;
mod scheduler;
#[cfg(test)]
mod tests;

pub use handle::{Drive, Handle, JoinHandle, Sleep, YieldNow};

use scheduler::{Core, Enter, Mode, NO_MACHINE, ROOT, waker_of};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

/// Polls between two looks at the real clock for expired timers.
const POLLS_PER_CLOCK: u32 = 32;
/// Empty turns before an idle real executor parks its thread.
const IDLE_SPINS: u32 = 2_000;
/// Longest park of an idle executor. It bounds the delay that a lost wake could cause.
const PARK_MAX: Duration = Duration::from_millis(10);
/// How many waits an idle turn of a real executor counts for.
const WAITS_PER_IDLE: u32 = 64;

/// Runs the tasks of one thread.
pub struct Executor {
    core: Rc<Core>,
}

impl Executor {
    /// An executor with the machine's clock. The seed is for [`Handle::random_u64`].
    #[must_use]
    pub fn real(seed: u64) -> Self {
        Self { core: Core::new(Mode::Real, seed) }
    }

    /// An executor with a virtual clock; its schedule follows from the seed.
    #[must_use]
    pub fn virtual_time(seed: u64) -> Self {
        Self { core: Core::new(Mode::Virtual, seed) }
    }

    /// In virtual time: each time that a task of a [machine](Handle::of_machine) would run, it is delayed by up to `ns_max` with
    /// a probability of one in `one_in`.
    pub fn put_tasks_aside(&self, one_in: u64, ns_max: u64) {
        self.core.aside.set(Some((one_in.max(1), ns_max)));
    }

    /// A handle for tasks.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { core: self.core.clone(), machine: NO_MACHINE, drift_ppm: 0 }
    }

    /// Runs `root`, and every spawned task beside it, until `root` is done. Other tasks stay as they are, and go on with the next
    /// `run`.
    ///
    /// # Panics
    /// In virtual time, if nothing is ready and no timer is set: then nothing can ever happen again.
    pub fn run<F: Future>(&self, root: F) -> F::Output {
        let core = &*self.core;
        let _enter = Enter::new(core);
        let mut root = pin!(root);
        let waker = waker_of(core.key(ROOT, 0));
        let mut polls_left = 0;
        core.queue_root();
        loop {
            if polls_left == 0 {
                polls_left = POLLS_PER_CLOCK;
                core.take_remote();
                if core.mode == Mode::Real && !core.timers.borrow().is_empty() {
                    core.fire_timers(core.now_ns());
                }
            }
            match core.next_ready() {
                Some(ROOT) => {
                    core.root_queued.set(false);
                    if let Poll::Ready(output) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return output;
                    }
                }
                Some(slot) => core.poll_slot(slot),
                None => {
                    self.idle();
                    polls_left = 1;
                }
            }
            polls_left -= 1;
        }
    }

    /// Nothing is ready: let time pass.
    fn idle(&self) {
        let core = &*self.core;
        core.take_remote();
        if !core.ready.borrow().is_empty() {
            return;
        }
        let next_ns = core.next_timer_ns();
        if core.mode == Mode::Virtual {
            let next_ns = next_ns.expect("no task is ready and no timer is set: nothing will ever wake a task again");
            core.now_ns.set(next_ns.max(core.now_ns.get()));
            core.fire_timers(core.now_ns.get());
            return;
        }
        core.count_waits(WAITS_PER_IDLE);
        for _ in 0..IDLE_SPINS {
            std::hint::spin_loop();
            if core.remote.any.load(Ordering::Relaxed) || next_ns.is_some_and(|at| at <= core.now_ns()) {
                core.take_remote();
                core.fire_timers(core.now_ns());
                return;
            }
        }
        *core.remote.thread.lock().expect("the thread") = Some(std::thread::current());
        core.remote.parked.store(true, Ordering::SeqCst);
        if !core.remote.any.load(Ordering::SeqCst) {
            let until = next_ns.map_or(PARK_MAX, |at| Duration::from_nanos(at.saturating_sub(core.now_ns())));
            std::thread::park_timeout(until.min(PARK_MAX));
        }
        core.remote.parked.store(false, Ordering::Relaxed);
        core.take_remote();
        core.fire_timers(core.now_ns());
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.core.drop_tasks();
    }
}
