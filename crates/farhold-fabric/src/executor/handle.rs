//! What a task has of its executor: clocks, randomness, waits, and tasks beside it.

use super::clock::{clock_ns, machine_ns};
use super::scheduler::{Core, Enter, MILLION, MachineClocks, Mode, NO_MACHINE, Paused, ROOT, Task, VIRTUAL_DAY_NS};
use std::cell::Cell;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

/// A task's access to its executor: clock, randomness, timers, spawning. It is cheap to clone, and stays on its thread.
#[derive(Clone)]
pub struct Handle {
    pub(super) core: Rc<Core>,
    pub(super) machine: u8,
    /// How much faster this machine's clock runs than true time, in millionths.
    pub(super) drift_ppm: i32,
}

impl Handle {
    /// A handle for tasks of a foreign executor. Waits wake themselves, so they keep the foreign executor busy polling. Spawned
    /// tasks run while a task polls what [`Self::drive`] gives.
    #[must_use]
    pub fn standalone(seed: u64) -> Self {
        Self { core: Core::new(Mode::Standalone, seed), machine: NO_MACHINE, drift_ppm: 0 }
    }

    /// Nanoseconds: virtual time since the executor was made, or real time since the first executor of the process was made.
    #[must_use]
    #[inline]
    pub fn now_ns(&self) -> u64 {
        if self.machine == NO_MACHINE { self.core.now_ns() } else { self.machine_now_ns() }
    }

    fn machine_now_ns(&self) -> u64 {
        let stood_ns = self.clocks().map_or(0, |clocks| clocks.stood_ns.get());
        self.drifted_ns(self.core.now_ns()).saturating_sub(stood_ns)
    }

    fn clocks(&self) -> Option<&MachineClocks> {
        self.core.clocks.get(usize::from(self.machine))
    }

    /// A handle for the tasks of one machine of a simulation. The machine may be [paused](Self::pause_machine), and its clock
    /// runs faster than true time by `drift_ppm` millionths, or slower if that is negative. In real time it is a handle as any
    /// other.
    ///
    /// # Panics
    /// If the clock would stand or run backwards.
    #[must_use]
    pub fn of_machine(&self, machine: u8, drift_ppm: i32) -> Self {
        assert!(drift_ppm > -MILLION, "a clock goes forwards");
        let (machine, drift_ppm) = if self.is_virtual() { (machine, drift_ppm) } else { (NO_MACHINE, 0) };
        Self { core: self.core.clone(), machine, drift_ppm }
    }

    /// Stops the clock for leases of this handle's machine for `for_ns`, while its time of day goes on, as in a virtual machine
    /// that is stopped. The caller must [pause](Self::pause_machine) the machine for as long. In virtual time only.
    pub fn stand_clock_ns(&self, for_ns: u64) {
        if let Some(clocks) = self.clocks() {
            clocks.stood_ns.set(clocks.stood_ns.get() + self.drifted_ns(for_ns));
        }
    }

    /// How many tasks of this handle's machine have not ended. A simulated process has ended only when the last of them has, because
    /// until then they may write into its memory.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.core.slots.borrow().iter().filter(|slot| slot.live && slot.machine == self.machine).count()
    }

    /// No task of the machine runs before this true time; wakes of its tasks meanwhile are not lost. In virtual time only.
    pub fn pause_machine(&self, machine: u8, until_ns: u64) {
        if !self.is_virtual() {
            return;
        }
        let mut paused = self.core.paused.borrow_mut();
        match paused.iter_mut().find(|paused| paused.machine == machine) {
            Some(known) => known.until_ns = known.until_ns.max(until_ns),
            None => paused.push(Paused { machine, until_ns, ready: Vec::new() }),
        }
        drop(paused);
        // The executor must notice that the pause is over.
        self.core.add_timer(until_ns, Waker::noop().clone());
    }

    /// The executor's time, whatever this machine's clock says.
    #[inline]
    pub(crate) fn true_now_ns(&self) -> u64 {
        self.core.now_ns()
    }

    /// The machine's time of day, in ns. It may be set forwards or backwards; use it only to detect that.
    #[must_use]
    pub fn wall_ns(&self) -> u64 {
        if self.is_virtual() { self.virtual_wall_ns() } else { clock_ns(libc::CLOCK_REALTIME) }
    }

    /// The time of day at the machine's last tick, up to 10 ms ago: a fifth of the price, some 7 ns.
    #[must_use]
    #[inline]
    pub fn coarse_wall_ns(&self) -> u64 {
        let clock = if cfg!(miri) { libc::CLOCK_REALTIME } else { libc::CLOCK_REALTIME_COARSE };
        if self.is_virtual() { self.virtual_wall_ns() } else { clock_ns(clock) }
    }

    fn virtual_wall_ns(&self) -> u64 {
        let set_ns = self.clocks().map_or(0, |clocks| clocks.day_set_ns.get());
        VIRTUAL_DAY_NS.wrapping_add(self.drifted_ns(self.core.now_ns())).wrapping_add_signed(set_ns)
    }

    /// Sets the time of day of this handle's machine, relative to the present one. In virtual time only.
    pub fn jump_wall_ns(&self, by_ns: i64) {
        if let Some(clocks) = self.clocks() {
            clocks.day_set_ns.set(clocks.day_set_ns.get().wrapping_add(by_ns));
        }
    }

    /// Nanoseconds of a clock that all executors of this machine share, including those of other processes: the clock for leases.
    /// (The kernel's monotonic clock; in virtual time, that of the simulated machine.)
    #[must_use]
    #[inline]
    pub fn shared_now_ns(&self) -> u64 {
        if self.is_virtual() { self.now_ns() } else { machine_ns() }
    }

    /// The time of this machine's clock at a true time.
    fn drifted_ns(&self, true_ns: u64) -> u64 {
        (i128::from(true_ns) * i128::from(MILLION + self.drift_ppm) / i128::from(MILLION)) as u64
    }

    /// The first true time at which this machine's clock shows that time.
    pub(crate) fn true_ns(&self, at_ns: u64) -> u64 {
        let at_ns = at_ns.saturating_add(self.clocks().map_or(0, |clocks| clocks.stood_ns.get()));
        if self.drift_ppm == 0 {
            return at_ns;
        }
        let true_ns = i128::from(at_ns) * i128::from(MILLION) / i128::from(MILLION + self.drift_ppm) + 1;
        u64::try_from(true_ns).unwrap_or(u64::MAX)
    }

    /// Lets virtual time pass until `at_ns`, and returns true, if no task has work before that.
    #[inline]
    pub(crate) fn advance_to(&self, at_ns: u64) -> bool {
        let core = &*self.core;
        let nobody = core.ready.borrow().is_empty() && !core.remote.any.load(Ordering::Relaxed);
        let may = nobody && core.next_timer_ns().is_none_or(|timer_ns| timer_ns > at_ns);
        if may {
            core.now_ns.set(at_ns.max(core.now_ns.get()));
        }
        may
    }

    /// A random number of the executor's seed.
    #[must_use]
    #[inline]
    pub fn random_u64(&self) -> u64 {
        self.core.random_u64()
    }

    /// A random number that no other start of a process draws, whatever their seeds: it comes from the system's randomness. In
    /// virtual time it comes from the executor's seed.
    #[must_use]
    pub fn unrepeated_u64(&self) -> u64 {
        if self.is_virtual() { self.random_u64() } else { RandomState::new().build_hasher().finish() }
    }

    /// Is time only a number here?
    #[must_use]
    #[inline]
    pub fn is_virtual(&self) -> bool {
        self.core.mode == Mode::Virtual
    }

    /// Lets the other tasks run. In virtual time some tens of nanoseconds pass.
    #[inline]
    pub fn yield_now(&self) -> YieldNow {
        let until_ns = self.is_virtual().then(|| self.now_ns() + 20 + self.random_u64() % 61);
        if until_ns.is_none() {
            self.core.count_waits(1);
        }
        YieldNow { yielded: false, timer: until_ns.map(|at_ns| self.sleep_until_ns(at_ns)) }
    }

    /// Lets other tasks run before the `turn`th look at something that they are about to change. At first it only yields; later
    /// it also waits, longer each turn up to [`Self::PAUSE_NS_MAX`].
    pub async fn pause(&self, turn: u32) {
        /// Turns without a wait: the holder of a row needs a few round trips.
        const QUICK_TURNS: u32 = 16;
        match turn.checked_sub(QUICK_TURNS) {
            None => self.yield_now().await,
            Some(turn) => self.sleep_ns((Self::PAUSE_NS_MAX >> 7 << turn.min(7)).min(Self::PAUSE_NS_MAX)).await,
        }
    }

    /// The longest wait of [`Self::pause`]: ten round trips to another machine.
    pub const PAUSE_NS_MAX: u64 = 20_000;

    /// Waits for `ns` nanoseconds.
    pub fn sleep_ns(&self, ns: u64) -> Sleep {
        self.sleep_until_ns(self.now_ns().saturating_add(ns))
    }

    /// Waits until [`Self::now_ns`] is `at_ns` or more.
    pub fn sleep_until_ns(&self, at_ns: u64) -> Sleep {
        Sleep { handle: self.clone(), at_ns, set_for: None }
    }

    /// Wakes a task at a true time, also if the caller has ended.
    pub(crate) fn wake_at_ns(&self, at_ns: u64, waker: &Waker) {
        self.core.add_timer(at_ns, waker.clone());
    }

    /// Runs a task beside the others. It goes on whether or not the caller keeps the returned handle.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let state =
            Rc::new(JoinState { output: Cell::new(None), has_ended: Cell::new(false), waiter: Cell::new(None) });
        let end = End(Rc::downgrade(&state));
        let task: Task = Box::pin(async move {
            let output = future.await;
            if let Some(state) = end.0.upgrade() {
                state.output.set(Some(output));
            }
        });
        self.core.spawn(task, self.machine);
        JoinHandle { state }
    }

    /// For [`Self::standalone`]: the foreign executor must run this as a task; it runs the tasks spawned here. It never
    /// completes. When it is dropped, it drops them. A task that panics ends by itself; the others go on.
    #[must_use]
    pub fn drive(&self) -> Drive {
        Drive { core: self.core.clone() }
    }
}

/// See [`Handle::drive`].
pub struct Drive {
    core: Rc<Core>,
}

impl Future for Drive {
    type Output = std::convert::Infallible;

    /// Polls every spawned task that is ready once.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &*self.core;
        let _enter = Enter::new(core);
        // The waker is stored before the look at the woken tasks: a thread that wakes a task records it first, and then looks for
        // the waker.
        core.remote.driver.lock().expect("the driver").get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        core.take_remote();
        core.fire_timers(core.now_ns());
        let count = core.ready.borrow().len();
        for _ in 0..count {
            let Some(slot) = core.next_ready() else { break };
            if slot != ROOT {
                core.poll_slot(slot);
            }
        }
        if !core.ready.borrow().is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.core.drop_tasks();
    }
}

/// See [`Handle::yield_now`].
pub struct YieldNow {
    yielded: bool,
    timer: Option<Sleep>,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.timer {
            return Pin::new(timer).poll(cx);
        }
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// See [`Handle::sleep_ns`].
pub struct Sleep {
    handle: Handle,
    at_ns: u64,
    /// The waker that the timer wakes, once it is set, and the true time of the timer.
    set_for: Option<(Waker, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = &self.handle.core;
        if self.handle.now_ns() >= self.at_ns {
            return Poll::Ready(());
        }
        if core.mode == Mode::Standalone {
            core.count_waits(1);
            cx.waker().wake_by_ref();
        } else {
            // A clock that has been stopped gets there later.
            let true_ns = self.handle.true_ns(self.at_ns);
            let is_set = |(waker, at_ns): &(Waker, u64)| *at_ns == true_ns && waker.will_wake(cx.waker());
            if !self.set_for.as_ref().is_some_and(is_set) {
                core.add_timer(true_ns, cx.waker().clone());
                self.set_for = Some((cx.waker().clone(), true_ns));
            }
        }
        Poll::Pending
    }
}

struct JoinState<T> {
    output: Cell<Option<T>>,
    has_ended: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

/// Notifies the waiter of a task that the task has ended, even if the task is dropped before it is done.
struct End<T>(Weak<JoinState<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        if let Some(state) = self.0.upgrade() {
            state.has_ended.set(true);
            if let Some(waiter) = state.waiter.take() {
                waiter.wake();
            }
        }
    }
}

/// A spawned task's result. As a future it panics if the task ends without one: because it has panicked, or its executor has been
/// dropped.
pub struct JoinHandle<T> {
    state: Rc<JoinState<T>>,
}

impl<T> JoinHandle<T> {
    /// The result, if the task is done and the result has not been taken.
    #[must_use]
    pub fn try_take(&self) -> Option<T> {
        self.state.output.take()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(output) = self.state.output.take() {
            return Poll::Ready(output);
        }
        assert!(!self.state.has_ended.get(), "the task has ended without a result");
        self.state.waiter.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}
