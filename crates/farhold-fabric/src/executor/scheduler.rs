//! What an executor consists of: slots of tasks, timers, the ready queue, and wakers, which are numbers.

use super::clock::{machine_ns, process_start};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread::Thread;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Real,
    Virtual,
    Standalone,
}

pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

pub(super) struct Slot {
    pub(super) task: Option<Task>,
    pub(super) machine: u8,
    pub(super) generation: u32,
    pub(super) queued: bool,
    pub(super) live: bool,
}

pub(super) struct Core {
    pub(super) mode: Mode,
    pub(super) id: u32,
    pub(super) start_ns: u64,
    pub(super) now_ns: Cell<u64>,
    /// The state of each machine's clocks. Virtual time only.
    pub(super) clocks: Vec<MachineClocks>,
    pub(super) random: Cell<u64>,
    pub(super) slots: RefCell<Vec<Slot>>,
    pub(super) free: RefCell<Vec<u32>>,
    pub(super) ready: RefCell<VecDeque<u32>>,
    pub(super) root_queued: Cell<bool>,
    /// Waits since the thread has last offered its processor to others.
    pub(super) waits: Cell<u32>,
    pub(super) timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    pub(super) timer_count: Cell<u64>,
    pub(super) remote: Arc<Remote>,
    /// Paused machines, with those of their tasks that are ready. Virtual time only.
    pub(super) paused: RefCell<Vec<Paused>>,
    /// See [`Executor::put_tasks_aside`](super::Executor::put_tasks_aside).
    pub(super) aside: Cell<Option<(u64, u64)>>,
}

/// How far a simulated machine's clocks are from clocks that have never been set.
#[derive(Clone, Default)]
pub(super) struct MachineClocks {
    /// How long the clock for leases has stopped, by itself.
    pub(super) stood_ns: Cell<u64>,
    /// By how much the time of day has been set.
    pub(super) day_set_ns: Cell<i64>,
}

/// A paused machine.
pub(super) struct Paused {
    pub(super) machine: u8,
    pub(super) until_ns: u64,
    pub(super) ready: Vec<u32>,
}

/// What other threads reach of an executor.
pub(super) struct Remote {
    pub(super) woken: Mutex<Vec<u64>>,
    pub(super) any: AtomicBool,
    pub(super) parked: AtomicBool,
    pub(super) thread: Mutex<Option<Thread>>,
    /// The waker of the task that a foreign executor polls to run tasks.
    pub(super) driver: Mutex<Option<Waker>>,
}

impl Remote {
    pub(super) fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.lock().expect("the driver") {
            driver.wake_by_ref();
        }
    }
}

pub(super) struct Timer {
    pub(super) at_ns: u64,
    pub(super) sequence: u64,
    pub(super) waker: Waker,
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

pub(super) const SLOT_BITS: u32 = 20;
pub(super) const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Most tasks of an executor; the last number stands for the future that `run` drives.
pub(super) const TASKS_MAX: u32 = (1 << SLOT_BITS) - 1;
pub(super) const ROOT: u32 = TASKS_MAX;
/// The machine of tasks that belong to none.
pub(super) const NO_MACHINE: u8 = u8::MAX;
/// The time of day at the start of virtual time: far enough from 0 to be set back.
pub(super) const VIRTUAL_DAY_NS: u64 = 1 << 60;
pub(super) const MILLION: i32 = 1_000_000;

/// Waits, some 25 ns each, after which a thread offers its processor to others. The thread that it waits for may need this very
/// processor. Without an offer it would have to wait until the waiting thread's time slice is over: milliseconds, for each lock
/// and each answer. An offer that no thread takes costs half a microsecond.
pub(super) const WAITS_PER_OFFER: u32 = 1024;

pub(super) static EXECUTOR_COUNT: AtomicU32 = AtomicU32::new(1);
pub(super) fn registry() -> &'static Mutex<HashMap<u32, Arc<Remote>>> {
    static REGISTRY: OnceLock<Mutex<HashMap<u32, Arc<Remote>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// Gives an executor a number that no living one has. Numbers are reused: wakers have 24 bits for them.
fn register(remote: &Arc<Remote>) -> u32 {
    let mut registry = registry().lock().expect("the registry");
    loop {
        let id = EXECUTOR_COUNT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        if let Entry::Vacant(place) = registry.entry(id) {
            place.insert(remote.clone());
            return id;
        }
    }
}

thread_local! {
    /// The core that runs on this thread, and its number.
    static CURRENT: Cell<(u32, *const Core)> = const { Cell::new((0, std::ptr::null())) };
}

impl Core {
    pub(super) fn new(mode: Mode, seed: u64) -> Rc<Self> {
        let remote = Arc::new(Remote {
            woken: Mutex::default(),
            any: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            thread: Mutex::new(None),
            driver: Mutex::new(None),
        });
        let id = register(&remote);
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
    pub(super) fn now_ns(&self) -> u64 {
        match self.mode {
            Mode::Virtual => self.now_ns.get(),
            Mode::Real | Mode::Standalone => machine_ns() - self.start_ns,
        }
    }

    /// splitmix64: one word of state, every seed is good.
    #[inline]
    pub(super) fn random_u64(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(super) fn key(&self, slot: u32, generation: u32) -> u64 {
        u64::from(self.id) << 40 | u64::from(generation & SLOT_MASK as u32) << SLOT_BITS | u64::from(slot)
    }

    /// Queues the task of a waker's key, if it is still the same task.
    #[inline]
    pub(super) fn wake_local(&self, key: u64) {
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
    pub(super) fn queue_root(&self) {
        if !self.root_queued.replace(true) {
            self.ready.borrow_mut().push_back(ROOT);
        }
    }

    pub(super) fn take_remote(&self) {
        if self.remote.any.load(Ordering::Relaxed) && self.remote.any.swap(false, Ordering::Acquire) {
            let woken = std::mem::take(&mut *self.remote.woken.lock().expect("the remote queue"));
            for key in woken {
                self.wake_local(key);
            }
        }
    }

    pub(super) fn add_timer(&self, at_ns: u64, waker: Waker) {
        let sequence = self.timer_count.get();
        self.timer_count.set(sequence + 1);
        self.timers.borrow_mut().push(Reverse(Timer { at_ns, sequence, waker }));
    }

    /// Wakes every task whose time has come.
    pub(super) fn fire_timers(&self, now_ns: u64) {
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
    pub(super) fn count_waits(&self, waits: u32) {
        let waits = self.waits.get() + waits;
        self.waits.set(waits);
        if waits >= WAITS_PER_OFFER {
            self.offer_processor();
        }
    }

    #[cold]
    pub(super) fn offer_processor(&self) {
        self.waits.set(0);
        std::thread::yield_now();
    }

    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.timers.borrow().peek().map(|Reverse(timer)| timer.at_ns)
    }

    /// Tasks of machines whose pause is over may run again.
    #[cold]
    pub(super) fn resume_machines(&self, now_ns: u64) {
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
    pub(super) fn is_paused(&self, slot: u32) -> bool {
        let Some(machine) = self.slots.borrow().get(slot as usize).map(|slot| slot.machine) else { return false };
        let mut paused = self.paused.borrow_mut();
        let Some(found) = paused.iter_mut().find(|paused| paused.machine == machine) else { return false };
        found.ready.push(slot);
        true
    }

    #[inline]
    pub(super) fn next_ready(&self) -> Option<u32> {
        if self.mode == Mode::Virtual {
            return self.next_ready_by_seed();
        }
        self.ready.borrow_mut().pop_front()
    }

    pub(super) fn next_ready_by_seed(&self) -> Option<u32> {
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
    pub(super) fn put_aside(&self, slot: u32, ns_max: u64) -> bool {
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
    pub(super) fn poll_slot(&self, slot: u32) {
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
        let mut context = Context::from_waker(&waker);
        let done = match self.mode {
            Mode::Real | Mode::Virtual => task.as_mut().poll(&mut context).is_ready(),
            Mode::Standalone => poll_apart(&mut task, &mut context).is_ready(),
        };
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

    pub(super) fn spawn(&self, task: Task, machine: u8) {
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
    pub(super) fn drop_tasks(&self) {
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

/// Polls a task of a foreign executor. If the task panics, it has ended, and the other tasks go on. The panic hook has reported the
/// panic, and the waiter of the task [learns of it](super::JoinHandle).
fn poll_apart(task: &mut Task, context: &mut Context<'_>) -> Poll<()> {
    std::panic::catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
}

impl Drop for Core {
    fn drop(&mut self) {
        registry().lock().expect("the registry").remove(&self.id);
    }
}

/// Makes a core the thread's current one until dropped.
pub(super) struct Enter(u32, *const Core);

impl Enter {
    pub(super) fn new(core: &Core) -> Self {
        let (id, before) = CURRENT.replace((core.id, core));
        Self(id, before)
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        CURRENT.set((self.0, self.1));
    }
}
pub(super) static WAKER: RawWakerVTable = RawWakerVTable::new(|data| RawWaker::new(data, &WAKER), wake, wake, |_| ());

pub(super) fn waker_of(key: u64) -> Waker {
    // SAFETY: the data is a number, never dereferenced, so it is valid for ever and on every thread; clone returns the same
    // number, drop does nothing, and `wake` may be called any number of times from anywhere.
    unsafe { Waker::new(std::ptr::without_provenance(key as usize), &WAKER) }
}

#[inline]
pub(super) fn wake(data: *const ()) {
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
pub(super) fn wake_remote(id: u32, key: u64) {
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
