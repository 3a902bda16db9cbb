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

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Runs the tasks of one thread.
pub struct Executor {
    core: Rc<Core>,
}

/// A task's access to its executor: clock, randomness, timers, spawning. It is cheap to clone, and stays on its thread.
#[derive(Clone)]
pub struct Handle {
    core: Rc<Core>,
    machine: u8,
    /// How much faster this machine's clock runs than true time, in millionths.
    drift_ppm: i32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Real,
    Virtual,
    Standalone,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    task: Option<Task>,
    machine: u8,
    generation: u32,
    queued: bool,
    live: bool,
}

struct Core {
    mode: Mode,
    id: u32,
    start_ns: u64,
    now_ns: Cell<u64>,
    /// By machine, what has become of its clocks. Virtual time only.
    clocks: Vec<MachineClocks>,
    random: Cell<u64>,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<u32>>,
    root_queued: Cell<bool>,
    /// Waits since the thread has last offered its processor to others.
    waits: Cell<u32>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    timer_count: Cell<u64>,
    remote: Arc<Remote>,
    /// Paused machines, with those of their tasks that are ready. Virtual time only.
    paused: RefCell<Vec<Paused>>,
    /// See [`Executor::put_tasks_aside`].
    aside: Cell<Option<(u64, u64)>>,
}

/// How far a simulated machine's clocks are from clocks that have never been set.
#[derive(Clone, Default)]
struct MachineClocks {
    /// How long the clock for leases has stopped, by itself.
    stood_ns: Cell<u64>,
    /// By how much the time of day has been set.
    day_set_ns: Cell<i64>,
}

/// A paused machine.
struct Paused {
    machine: u8,
    until_ns: u64,
    ready: Vec<u32>,
}

/// What other threads reach of an executor.
struct Remote {
    woken: Mutex<Vec<u64>>,
    any: AtomicBool,
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
    /// The waker of the task that a foreign executor polls to run tasks.
    driver: Mutex<Option<Waker>>,
}

impl Remote {
    fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.lock().expect("the driver") {
            driver.wake_by_ref();
        }
    }
}

struct Timer {
    at_ns: u64,
    sequence: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// The machine's clock: it counts from the machine's start, sleep included, so that a lease does not outlive a sleep.
fn machine_ns() -> u64 {
    clock_ns(if cfg!(miri) { libc::CLOCK_MONOTONIC } else { libc::CLOCK_BOOTTIME })
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is exclusively ours; the clocks that are asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Most tasks of an executor; the last number stands for the future that `run` drives.
const TASKS_MAX: u32 = (1 << SLOT_BITS) - 1;
const ROOT: u32 = TASKS_MAX;
/// The machine of tasks that belong to none.
const NO_MACHINE: u8 = u8::MAX;
/// The time of day at the start of virtual time: far enough from 0 to be set back.
const VIRTUAL_DAY_NS: u64 = 1 << 60;
const MILLION: i32 = 1_000_000;
/// Polls between two looks at the real clock for expired timers.
const POLLS_PER_CLOCK: u32 = 32;
/// Empty turns before an idle real executor parks its thread.
const IDLE_SPINS: u32 = 2_000;
/// Longest park of an idle executor, a bound on what a lost wake could cost.
const PARK_MAX: Duration = Duration::from_millis(10);

/// Waits, some 25 ns each, after which a thread offers its processor to others. The thread that it waits for may need this very
/// processor. Without an offer it would have to wait until the waiting thread's time slice is over: milliseconds, for each lock
/// and each answer. An offer that no thread takes costs half a microsecond.
const WAITS_PER_OFFER: u32 = 1024;
/// How many waits an idle turn of a real executor counts for.
const WAITS_PER_IDLE: u32 = 64;

static EXECUTOR_COUNT: AtomicU32 = AtomicU32::new(1);

/// The real time at which the clocks of this process's executors are 0: the same for all, so that threads can compare their
/// times.
fn process_start() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(machine_ns)
}

fn registry() -> &'static Mutex<HashMap<u32, Arc<Remote>>> {
    static REGISTRY: OnceLock<Mutex<HashMap<u32, Arc<Remote>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

thread_local! {
    /// The core that runs on this thread, and its number.
    static CURRENT: Cell<(u32, *const Core)> = const { Cell::new((0, std::ptr::null())) };
}

impl Core {
    fn new(mode: Mode, seed: u64) -> Rc<Self> {
        let id = EXECUTOR_COUNT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let remote = Arc::new(Remote {
            woken: Mutex::default(),
            any: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            thread: Mutex::new(None),
            driver: Mutex::new(None),
        });
        registry().lock().expect("the registry").insert(id, remote.clone());
        let start_ns = process_start();
        Rc::new(Self {
            mode,
            id,
            start_ns,
            now_ns: Cell::new(0),
            clocks: vec![MachineClocks::default(); if mode == Mode::Virtual { 256 } else { 0 }],
            random: Cell::new(seed),
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            root_queued: Cell::new(false),
            waits: Cell::new(0),
            timers: RefCell::default(),
            timer_count: Cell::new(0),
            remote,
            paused: RefCell::default(),
            aside: Cell::new(None),
        })
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        match self.mode {
            Mode::Virtual => self.now_ns.get(),
            Mode::Real | Mode::Standalone => machine_ns() - self.start_ns,
        }
    }

    /// splitmix64: one word of state, every seed is good.
    #[inline]
    fn random_u64(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn key(&self, slot: u32, generation: u32) -> u64 {
        u64::from(self.id) << 40 | u64::from(generation & SLOT_MASK as u32) << SLOT_BITS | u64::from(slot)
    }

    /// Queues the task of a waker's key, if it is still the same task.
    #[inline]
    fn wake_local(&self, key: u64) {
        let slot = (key & SLOT_MASK) as u32;
        if slot == ROOT {
            self.queue_root();
            return;
        }
        let mut slots = self.slots.borrow_mut();
        let Some(entry) = slots.get_mut(slot as usize) else { return };
        let same = u64::from(entry.generation) & SLOT_MASK == key >> SLOT_BITS & SLOT_MASK;
        if same && entry.live && !entry.queued {
            entry.queued = true;
            self.ready.borrow_mut().push_back(slot);
        }
    }

    #[inline]
    fn queue_root(&self) {
        if !self.root_queued.replace(true) {
            self.ready.borrow_mut().push_back(ROOT);
        }
    }

    fn take_remote(&self) {
        if self.remote.any.load(Ordering::Relaxed) && self.remote.any.swap(false, Ordering::Acquire) {
            let woken = std::mem::take(&mut *self.remote.woken.lock().expect("the remote queue"));
            for key in woken {
                self.wake_local(key);
            }
        }
    }

    fn add_timer(&self, at_ns: u64, waker: Waker) {
        let sequence = self.timer_count.get();
        self.timer_count.set(sequence + 1);
        self.timers.borrow_mut().push(Reverse(Timer { at_ns, sequence, waker }));
    }

    /// Wakes every task whose time has come.
    fn fire_timers(&self, now_ns: u64) {
        if self.mode == Mode::Virtual && !self.paused.borrow().is_empty() {
            self.resume_machines(now_ns);
        }
        loop {
            let waker = {
                let mut timers = self.timers.borrow_mut();
                match timers.peek() {
                    Some(Reverse(timer)) if timer.at_ns <= now_ns => timers.pop().expect("just seen").0.waker,
                    _ => return,
                }
            };
            waker.wake();
        }
    }

    /// A task has waited.
    #[inline]
    fn count_waits(&self, waits: u32) {
        let waits = self.waits.get() + waits;
        self.waits.set(waits);
        if waits >= WAITS_PER_OFFER {
            self.offer_processor();
        }
    }

    #[cold]
    fn offer_processor(&self) {
        self.waits.set(0);
        std::thread::yield_now();
    }

    fn next_timer_ns(&self) -> Option<u64> {
        self.timers.borrow().peek().map(|Reverse(timer)| timer.at_ns)
    }

    /// Tasks of machines whose pause is over may run again.
    #[cold]
    fn resume_machines(&self, now_ns: u64) {
        let mut paused = self.paused.borrow_mut();
        let mut ready = self.ready.borrow_mut();
        paused.retain_mut(|machine| {
            let is_over = machine.until_ns <= now_ns;
            if is_over {
                ready.extend(machine.ready.drain(..));
            }
            !is_over
        });
    }

    /// Puts a ready task aside if its machine is paused.
    #[cold]
    fn is_paused(&self, slot: u32) -> bool {
        let Some(machine) = self.slots.borrow().get(slot as usize).map(|slot| slot.machine) else { return false };
        let mut paused = self.paused.borrow_mut();
        let Some(found) = paused.iter_mut().find(|paused| paused.machine == machine) else { return false };
        found.ready.push(slot);
        true
    }

    #[inline]
    fn next_ready(&self) -> Option<u32> {
        if self.mode == Mode::Virtual {
            return self.next_ready_by_seed();
        }
        self.ready.borrow_mut().pop_front()
    }

    fn next_ready_by_seed(&self) -> Option<u32> {
        loop {
            let slot = {
                let mut ready = self.ready.borrow_mut();
                if ready.len() > 1 {
                    let index = (self.random_u64() % ready.len() as u64) as usize;
                    ready.swap_remove_back(index)?
                } else {
                    ready.pop_front()?
                }
            };
            let is_aside = self.aside.get().is_some_and(|(one_in, ns_max)| {
                slot != ROOT && self.random_u64().is_multiple_of(one_in) && self.put_aside(slot, ns_max)
            });
            if !is_aside && (self.paused.borrow().is_empty() || !self.is_paused(slot)) {
                return Some(slot);
            }
        }
    }

    /// Delays a ready task of a machine, like a thread that has lost its processor.
    #[cold]
    fn put_aside(&self, slot: u32, ns_max: u64) -> bool {
        let mut slots = self.slots.borrow_mut();
        let Some(entry) = slots.get_mut(slot as usize).filter(|entry| entry.machine != NO_MACHINE) else {
            return false;
        };
        entry.queued = false;
        let waker = waker_of(self.key(slot, entry.generation));
        drop(slots);
        self.add_timer(self.now_ns.get() + 1 + self.random_u64() % ns_max.max(1), waker);
        true
    }

    #[inline]
    fn poll_slot(&self, slot: u32) {
        let (mut task, generation) = {
            let mut slots = self.slots.borrow_mut();
            let entry = &mut slots[slot as usize];
            entry.queued = false;
            match entry.task.take() {
                Some(task) => (task, entry.generation),
                None => return,
            }
        };
        let waker = waker_of(self.key(slot, generation));
        let done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if done {
            // Dropped before the slot is free: a destructor may spawn or wake.
            drop(task);
            let mut slots = self.slots.borrow_mut();
            let entry = &mut slots[slot as usize];
            entry.live = false;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.borrow_mut().push(slot);
        } else {
            self.slots.borrow_mut()[slot as usize].task = Some(task);
        }
    }

    fn spawn(&self, task: Task, machine: u8) {
        let slot = self.free.borrow_mut().pop();
        let mut slots = self.slots.borrow_mut();
        let slot = slot.unwrap_or_else(|| {
            assert!(slots.len() < TASKS_MAX as usize, "an executor has at most {TASKS_MAX} tasks");
            slots.push(Slot { task: None, machine, generation: 0, queued: false, live: false });
            slots.len() as u32 - 1
        });
        let entry = &mut slots[slot as usize];
        (entry.task, entry.live, entry.queued, entry.machine) = (Some(task), true, true, machine);
        self.ready.borrow_mut().push_back(slot);
        if self.mode == Mode::Standalone {
            self.remote.wake_driver();
        }
    }

    /// Tasks hold handles, and handles hold the core: this breaks the cycle. Destructors may spawn again, hence the loop.
    fn drop_tasks(&self) {
        let _enter = Enter::new(self);
        loop {
            let tasks: Vec<Task> = self.slots.borrow_mut().iter_mut().filter_map(|slot| slot.task.take()).collect();
            if tasks.is_empty() {
                break;
            }
        }
        self.timers.borrow_mut().clear();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        registry().lock().expect("the registry").remove(&self.id);
    }
}

/// Makes a core the thread's current one until dropped.
struct Enter(u32, *const Core);

impl Enter {
    fn new(core: &Core) -> Self {
        let (id, before) = CURRENT.replace((core.id, core));
        Self(id, before)
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        CURRENT.set((self.0, self.1));
    }
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

    /// In virtual time: one time in `one_in` that a task of a [machine](Handle::of_machine) would run, it is put aside for up to
    /// `ns_max`.
    pub fn put_tasks_aside(&self, one_in: u64, ns_max: u64) {
        self.core.aside.set(Some((one_in.max(1), ns_max)));
    }

    /// For tasks.
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

    /// The machine's time of day, in ns. It may be set, forwards or backwards: use it only to notice that.
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

    /// Lets virtual time pass until `at_ns` if no task has work before: then it returns true.
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
        let state = Rc::new(JoinState { output: Cell::new(None), waiter: Cell::new(None) });
        let task_state: Weak<JoinState<F::Output>> = Rc::downgrade(&state);
        let task: Task = Box::pin(async move {
            let output = future.await;
            if let Some(state) = task_state.upgrade() {
                state.output.set(Some(output));
                if let Some(waiter) = state.waiter.take() {
                    waiter.wake();
                }
            }
        });
        self.core.spawn(task, self.machine);
        JoinHandle { state }
    }

    /// For [`Self::standalone`]: the foreign executor must run this as a task; it runs the tasks spawned here. It never
    /// completes. When it is dropped, it drops them.
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
    waiter: Cell<Option<Waker>>,
}

/// A spawned task's result.
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
        self.state.waiter.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

static WAKER: RawWakerVTable = RawWakerVTable::new(|data| RawWaker::new(data, &WAKER), wake, wake, |_| ());

fn waker_of(key: u64) -> Waker {
    // SAFETY: the data is a number, never dereferenced, so it is valid for ever and on every thread; clone returns the same
    // number, drop does nothing, and `wake` may be called any number of times from anywhere.
    unsafe { Waker::new(std::ptr::without_provenance(key as usize), &WAKER) }
}

#[inline]
fn wake(data: *const ()) {
    let key = data.addr() as u64;
    let id = (key >> 40) as u32;
    let (current, core) = CURRENT.get();
    if current == id && !core.is_null() {
        // SAFETY: `Enter` put the pointer there from a reference that outlives it and takes it back when dropped, on this
        // thread; `Core` is only used through shared references.
        unsafe { &*core }.wake_local(key);
    } else {
        wake_remote(id, key);
    }
}

#[cold]
fn wake_remote(id: u32, key: u64) {
    let Some(remote) = registry().lock().expect("the registry").get(&id).cloned() else { return };
    remote.woken.lock().expect("the remote queue").push(key);
    remote.any.store(true, Ordering::SeqCst);
    if remote.parked.load(Ordering::SeqCst)
        && let Some(thread) = &*remote.thread.lock().expect("the thread")
    {
        thread.unpark();
    }
    remote.wake_driver();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Time stamps that one thread of a process leaves for another may come from either thread's executor.
    #[test]
    fn all_executors_of_a_process_go_by_one_clock() {
        let first = Executor::real(1).handle();
        while first.now_ns() < 1_000_000 {
            std::hint::spin_loop();
        }
        let before_ns = first.now_ns();
        let of_thread = || Executor::real(2).handle().now_ns();
        let on_another = std::thread::scope(|scope| scope.spawn(of_thread).join().expect("a time"));
        let standalone_ns = Handle::standalone(3).now_ns();
        assert!(before_ns <= on_another && on_another <= standalone_ns && standalone_ns <= first.now_ns());
    }

    /// Two threads on one processor that wait for each other by turns: neither waits until the other's time slice is over.
    #[test]
    #[cfg_attr(miri, ignore = "processors")]
    fn who_waits_lets_others_have_the_processor() {
        const ROUNDS: u64 = 200;
        let processor = crate::processor::usable()[0];
        let (turn, waits) = (AtomicU64::new(0), AtomicU64::new(0));
        let waits_of = |me: u64, sleeps: bool| {
            crate::processor::bind_this_thread(processor);
            let executor = Executor::real(me);
            let handle = executor.handle();
            executor.run(async {
                for round in 0..ROUNDS {
                    while turn.load(Ordering::SeqCst) != 2 * round + me {
                        waits.fetch_add(1, Ordering::Relaxed);
                        if sleeps { handle.sleep_ns(1000).await } else { handle.yield_now().await }
                    }
                    turn.fetch_add(1, Ordering::SeqCst);
                }
            });
        };
        for (sleeps, waits_max) in [(false, 20_000), (true, 500)] {
            turn.store(0, Ordering::SeqCst);
            waits.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| waits_of(0, sleeps));
                scope.spawn(|| waits_of(1, sleeps));
            });
            let each = waits.load(Ordering::Relaxed) / (2 * ROUNDS);
            assert!(each < waits_max, "{each} waits for each turn");
        }
    }

    /// Two tasks that take turns by hand: everything spawned runs, and results arrive.
    #[test]
    fn tasks_run_and_join() {
        for executor in [Executor::real(1), Executor::virtual_time(1)] {
            let handle = executor.handle();
            let sum = executor.run(async {
                let tasks: Vec<_> = (0..100u64)
                    .map(|number| {
                        let inner = handle.clone();
                        handle.spawn(async move {
                            for _ in 0..number % 7 {
                                inner.yield_now().await;
                            }
                            number
                        })
                    })
                    .collect();
                let mut sum = 0;
                for task in tasks {
                    sum += task.await;
                }
                sum
            });
            assert_eq!(sum, 4950);
        }
    }

    /// However often a future is woken, it is in the queue once.
    #[test]
    fn wakes_do_not_pile_up() {
        let executor = Executor::real(1);
        executor.run(async {
            for _ in 0..100 {
                let mut polled = false;
                std::future::poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    cx.waker().wake_by_ref();
                    if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
            assert!(executor.core.ready.borrow().len() <= 1);
        });
    }

    #[test]
    fn virtual_time_jumps_and_is_ordered() {
        let executor = Executor::virtual_time(3);
        let handle = executor.handle();
        let order = Rc::new(RefCell::new(Vec::new()));
        executor.run(async {
            let hour_ns = 3_600_000_000_000;
            for number in [3u64, 1, 2] {
                let (order, inner) = (order.clone(), handle.clone());
                drop(handle.spawn(async move {
                    inner.sleep_ns(number * hour_ns).await;
                    order.borrow_mut().push((number, inner.now_ns()));
                }));
            }
            handle.sleep_ns(4 * hour_ns).await;
            assert_eq!(*order.borrow(), [1, 2, 3].map(|number| (number, number * hour_ns)));
        });
    }

    /// In virtual time the order of ready tasks is the seed's; another seed gives another order.
    #[test]
    fn a_seed_is_a_schedule() {
        let order = |seed| {
            let executor = Executor::virtual_time(seed);
            let handle = executor.handle();
            let order = Rc::new(RefCell::new(Vec::new()));
            executor.run(async {
                for number in 0..20 {
                    let (order, inner) = (order.clone(), handle.clone());
                    drop(handle.spawn(async move {
                        inner.yield_now().await;
                        order.borrow_mut().push(number);
                    }));
                }
                handle.sleep_ns(1_000).await;
            });
            Rc::into_inner(order).map(RefCell::into_inner)
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }

    /// A waker works from another thread, after its task is gone, and after its executor is gone.
    #[test]
    fn wakers_go_anywhere() {
        let executor = Executor::real(1);
        let mut kept = None;
        executor.run(async {
            let mut thread = None;
            poll_once_woken(|waker| {
                kept = Some(waker.clone());
                thread = Some(std::thread::spawn(move || waker.wake()));
            })
            .await;
            thread.unwrap().join().unwrap();
        });
        let kept = kept.unwrap();
        kept.wake_by_ref();
        assert_eq!(executor.run(async { 5 }), 5, "a stale wake does no harm");
        drop(executor);
        kept.wake();
    }

    async fn poll_once_woken(mut give: impl FnMut(Waker)) {
        let mut given = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut given, true) {
                return Poll::Ready(());
            }
            give(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    #[test]
    #[should_panic(expected = "nothing will ever wake")]
    fn waiting_for_nothing_is_a_bug() {
        Executor::virtual_time(1).run(std::future::pending::<()>());
    }

    /// A foreign executor: polls its two tasks when they have been woken, and tells whether one was.
    struct Foreign(AtomicBool);

    impl std::task::Wake for Foreign {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Under a foreign executor waits end, and spawned tasks run, as often as it is woken, also by other threads.
    #[test]
    fn standalone_needs_no_executor() {
        let handle = Handle::standalone(1);
        let mut driver = Box::pin(handle.drive());
        let foreign = Arc::new(Foreign(AtomicBool::new(false)));
        let waker = Waker::from(foreign.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(driver.as_mut().poll(&mut cx).is_pending() && !foreign.0.load(Ordering::SeqCst), "nothing to do");

        let (inner, (told, mut hears)) = (handle.clone(), tokens());
        let task = handle.spawn(async move {
            inner.yield_now().await;
            inner.sleep_ns(10).await;
            std::future::poll_fn(|cx| hears.poll(cx)).await;
            3
        });
        let mut run = || {
            let mut polls = 0;
            while foreign.0.swap(false, Ordering::SeqCst) {
                assert!(driver.as_mut().poll(&mut cx).is_pending());
                polls += 1;
            }
            polls
        };
        assert!(run() > 1, "the spawn woke the driver, and the waits did");
        assert!(task.try_take().is_none());
        std::thread::spawn(move || told.tell()).join().expect("told");
        assert!(run() > 0, "another thread woke it");
        assert_eq!(task.try_take(), Some(3));

        let dropped = Rc::new(());
        let held = (dropped.clone(), handle.clone());
        drop(handle.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        }));
        drop(driver);
        assert_eq!(Rc::strong_count(&dropped), 1, "with the driver its tasks go");
    }

    /// One thread sends another task a value, once.
    fn tokens() -> (Token, Token) {
        let shared = Arc::new((AtomicBool::new(false), Mutex::new(None::<Waker>)));
        (Token(shared.clone()), Token(shared))
    }

    struct Token(Arc<(AtomicBool, Mutex<Option<Waker>>)>);

    impl Token {
        fn tell(&self) {
            self.0.0.store(true, Ordering::SeqCst);
            self.0.1.lock().expect("a waker").take().expect("somebody waits").wake();
        }

        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            *self.0.1.lock().expect("a waker") = Some(cx.waker().clone());
            if self.0.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    /// A paused machine runs nothing, and misses nothing.
    #[test]
    fn a_machine_stands_still() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let machine = handle.of_machine(3, 0);
        let (steps, inner) = (Rc::new(Cell::new(0)), machine.clone());
        let counted = steps.clone();
        executor.run(async {
            drop(machine.spawn(async move {
                loop {
                    inner.sleep_ns(1_000).await;
                    counted.set(counted.get() + 1);
                }
            }));
            handle.sleep_ns(10_500).await;
            assert_eq!(steps.get(), 10);
            handle.pause_machine(3, handle.now_ns() + 50_000);
            handle.sleep_ns(49_000).await;
            assert_eq!(steps.get(), 10);
            handle.sleep_ns(10_000).await;
            assert!((18..=20).contains(&steps.get()), "{}", steps.get());
        });
    }

    /// A machine's clock runs at its own speed, and its sleeps follow it.
    #[test]
    fn clocks_drift() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        executor.run(async {
            for drift_ppm in [100_000, -200_000, 0, 3] {
                let (machine, began_ns) = (handle.of_machine(1, drift_ppm), handle.now_ns());
                let began_there_ns = machine.now_ns();
                machine.sleep_ns(1_000_000).await;
                assert!((1_000_000..1_000_003).contains(&(machine.now_ns() - began_there_ns)), "{drift_ppm}");
                let took = (handle.now_ns() - began_ns) as f64 * (1.0 + f64::from(drift_ppm) / 1e6);
                assert!((took - 1e6).abs() < 4.0, "{drift_ppm}: {took}");
            }
        });
    }

    /// While a machine is paused its clock may stop: its sleeps take that much longer, but its time of day does not.
    #[test]
    fn a_clock_stands_while_its_machine_does() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let (machine, other) = (handle.of_machine(3, 0), handle.of_machine(4, 0));
        executor.run(async {
            let (before_ns, day_ns) = (machine.now_ns(), machine.wall_ns());
            let (ended_ns, inner) = (Rc::new(Cell::new(0)), machine.clone());
            let ended = ended_ns.clone();
            drop(machine.spawn(async move {
                inner.sleep_ns(10_000).await;
                ended.set(inner.true_now_ns());
            }));
            handle.sleep_ns(4_000).await;
            handle.pause_machine(3, handle.now_ns() + 50_000);
            machine.stand_clock_ns(50_000);
            handle.sleep_ns(100_000).await;
            assert!((60_000..60_010).contains(&ended_ns.get()), "{}", ended_ns.get());
            assert_eq!((machine.now_ns() - before_ns, machine.wall_ns() - day_ns), (54_000, 104_000));
            assert_eq!(other.now_ns(), handle.now_ns());
            machine.jump_wall_ns(-1_000_000);
            assert_eq!(other.wall_ns() - machine.wall_ns(), 1_000_000);
            assert_eq!(machine.coarse_wall_ns(), machine.wall_ns());
        });
    }

    /// A dropped executor drops its tasks, also those that wait, and they may use it while they go.
    #[test]
    fn tasks_go_with_their_executor() {
        struct Spawns(Handle, Rc<Cell<u32>>);
        impl Drop for Spawns {
            fn drop(&mut self) {
                self.1.set(self.1.get() + 1);
                drop(self.0.spawn(async {}));
            }
        }
        let executor = Executor::real(1);
        let (handle, count) = (executor.handle(), Rc::new(Cell::new(0)));
        for _ in 0..3 {
            let guard = Spawns(handle.clone(), count.clone());
            drop(handle.spawn(async move {
                guard.0.sleep_ns(u64::MAX).await;
            }));
        }
        executor.run(handle.yield_now());
        drop(executor);
        assert_eq!(count.get(), 3);
    }
}
