//! A device for tests: the same kernels, run on the CPU by `kernels/simt`. **It is an emulation**: its speed says
//! nothing about a GPU, and its name says so wherever a result is printed.
//!
//! Streams are queues that run only when the host waits. They are interleaved at random (seeded) as far as streams and
//! events allow, so that a missing event shows as a wrong result. A test can make the n-th call fail.

use std::alloc::Layout;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::{Device, Event, GpuError, Grid, Place, Properties, STREAMS, Stream};

unsafe extern "C" {
    fn farhold_emulate(
        name: *const c_char,
        arguments: *const c_void,
        argument_bytes: usize,
        blocks: u32,
        threads: u32,
        shared_bytes: usize,
        seed: u64,
        os_threads: c_int,
    ) -> c_int;
}

const ALIGNMENT: usize = 256;

enum Operation {
    Copy { to: u64, from: u64, bytes: u64 },
    Fill { at: u64, byte: u8, bytes: u64 },
    Launch { kernel: CString, grid: Grid, arguments: Vec<u8> },
    Record(Event),
    Wait(Event),
}

#[derive(Default)]
struct State {
    streams: [VecDeque<Operation>; STREAMS as usize],
    recorded: HashSet<Event>,
    events: u64,
    allocations: HashMap<u64, Allocation>,
    device_bytes: u64,
    host_bytes: u64,
    host_bytes_peak: u64,
    random: u64,
}

struct Allocation {
    /// None: a mapping of both.
    place: Option<Place>,
    bytes: u64,
    /// The part of these bytes in the device.
    device_bytes: u64,
}

/// The fate of the call that [`Emulation::failing_at`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device is lost: that call and all later ones fail, and queued work is dropped.
    Lost,
    /// Another process has taken the memory: from then on no allocation in the device succeeds.
    Busy,
    /// That call fails and does nothing. The device continues, also with work that was queued before.
    Once,
}

/// The emulated device.
pub struct Emulation {
    state: Mutex<State>,
    turn: Mutex<()>,
    memory_bytes: u64,
    calls: AtomicU64,
    fail_at_call: Option<(u64, Fault)>,
    ignores_events: bool,
    can_map: bool,
    is_lost: AtomicBool,
    is_busy: AtomicBool,
}

impl Emulation {
    /// An emulated device with `memory_bytes` of device memory, whose streams interleave by `seed`.
    pub fn new(memory_bytes: u64, seed: u64) -> Self {
        let state = State { random: seed.wrapping_mul(2).wrapping_add(1), ..State::default() };
        Self {
            state: Mutex::new(state),
            turn: Mutex::new(()),
            memory_bytes,
            calls: AtomicU64::new(0),
            fail_at_call: None,
            ignores_events: false,
            can_map: false,
            is_lost: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Injects the fault at the `call`-th call that can fail (from 0).
    #[must_use]
    pub fn failing_at(mut self, call: u64, fault: Fault) -> Self {
        self.fail_at_call = Some((call, fault));
        self
    }

    /// Lets it map pages of both kinds of memory into one range.
    #[must_use]
    pub fn mapping(mut self) -> Self {
        self.can_map = true;
        self
    }

    /// Lets streams run past the events for which they should wait: a mistake planted on purpose.
    #[must_use]
    pub fn ignoring_events(mut self) -> Self {
        self.ignores_events = true;
        self
    }

    /// The other process gives back what [`Fault::Busy`] took.
    pub fn free(&self) {
        self.is_busy.store(false, Relaxed);
    }

    /// The number of calls so far that could have failed.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// The most bytes of pinned host memory that were held at once.
    pub fn host_bytes_peak(&self) -> u64 {
        self.state().host_bytes_peak
    }

    /// Resets [`Emulation::host_bytes_peak`].
    pub fn forget_peak(&self) {
        let mut state = self.state();
        state.host_bytes_peak = state.host_bytes;
    }

    /// Allocations that have not been released.
    pub fn live_allocations(&self) -> usize {
        self.state().allocations.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_fail(&self, operation: &'static str) -> Result<(), GpuError> {
        let call = self.calls.fetch_add(1, Relaxed);
        match self.fail_at_call {
            Some((at, Fault::Lost)) if at == call => self.is_lost.store(true, Relaxed),
            Some((at, Fault::Busy)) if at == call => self.is_busy.store(true, Relaxed),
            Some((at, Fault::Once)) if at == call => {
                return Err(GpuError::Failed { operation, message: format!("emulated fault of call {call} alone") });
            }
            _ => {}
        }
        if self.is_lost.load(Relaxed) {
            return Err(GpuError::Failed { operation, message: format!("emulated fault, seen at call {call}") });
        }
        Ok(())
    }

    fn queue(&self, stream: Stream, what: &'static str, operation: Operation) -> Result<(), GpuError> {
        self.may_fail(what)?;
        self.state().streams[usize::from(stream.0)].push_back(operation);
        Ok(())
    }

    /// Takes `place`'s share of `bytes` from the device's memory, and allocates on the host, where all memory of the
    /// emulation lies.
    fn hold(&self, place: Option<Place>, bytes: u64, device_bytes: u64) -> Result<u64, GpuError> {
        let mut state = self.state();
        let is_busy = self.is_busy.load(Relaxed);
        let free_bytes = if is_busy { 0 } else { self.memory_bytes - state.device_bytes };
        if device_bytes > free_bytes {
            return Err(GpuError::OutOfMemory { wanted_bytes: device_bytes, free_bytes });
        }
        let layout = Layout::from_size_align(bytes as usize, ALIGNMENT).expect("a size that fits");
        // SAFETY: `Buffer` asks for at least one byte, and a mapping has at least a page.
        let address = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        assert!(address != 0, "no host memory for the emulation");
        // SAFETY: just allocated. A pattern in place of zeroes: callers must not rely on the content.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0x5a, bytes as usize) };
        state.allocations.insert(address, Allocation { place, bytes, device_bytes });
        state.device_bytes += device_bytes;
        state.host_bytes += bytes - device_bytes;
        state.host_bytes_peak = state.host_bytes_peak.max(state.host_bytes);
        Ok(address)
    }

    fn give_back(&self, place: Option<Place>, address: u64) {
        let mut state = self.state();
        while self.step(&mut state) {}
        let held = state.allocations.remove(&address).expect("released memory was allocated");
        assert!(held.place == place, "released where it was allocated");
        state.device_bytes -= held.device_bytes;
        state.host_bytes -= held.bytes - held.device_bytes;
        let layout = Layout::from_size_align(held.bytes as usize, ALIGNMENT).expect("as when it was allocated");
        // SAFETY: allocated in `hold` with this layout, and removed from the list, so released once.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
    }

    /// Runs one operation of a stream that can continue; false when there is none.
    fn step(&self, state: &mut State) -> bool {
        if self.is_lost.load(Relaxed) {
            state.streams.iter_mut().for_each(VecDeque::clear); // a lost device drops its work
            return false;
        }
        let ready: Vec<usize> = (0..usize::from(STREAMS))
            .filter(|&s| match state.streams[s].front() {
                None => false,
                Some(Operation::Wait(event)) => self.ignores_events || state.recorded.contains(event),
                Some(_) => true,
            })
            .collect();
        if ready.is_empty() {
            assert!(
                state.streams.iter().all(VecDeque::is_empty),
                "emulation: every stream waits for an event that never comes"
            );
            return false;
        }
        state.random = state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state.random >> 33;
        let operation = state.streams[ready[random as usize % ready.len()]].pop_front().expect("the stream is ready");
        match operation {
            Operation::Record(event) => {
                state.recorded.insert(event);
            }
            operation => run(&operation, random),
        }
        true
    }
}

fn run(operation: &Operation, seed: u64) {
    match operation {
        // SAFETY: the contract of `Device::copy`: both ranges are live and nothing else changes them.
        Operation::Copy { to, from, bytes } => unsafe {
            std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes as usize);
        },
        // SAFETY: the contract of `Device::fill`.
        Operation::Fill { at, byte, bytes } => unsafe { std::ptr::write_bytes(*at as *mut u8, *byte, *bytes as usize) },
        Operation::Launch { kernel, grid, arguments } => {
            // SAFETY: the name is a C string, the arguments are as long as said, and the contract of `Device::launch` covers
            // the addresses in them.
            let answer = unsafe {
                farhold_emulate(
                    kernel.as_ptr(),
                    arguments.as_ptr().cast(),
                    arguments.len(),
                    grid.blocks,
                    grid.threads,
                    grid.shared_bytes as usize,
                    seed,
                    // Sometimes on two OS threads: the tests of the kernels always use two.
                    if seed.is_multiple_of(8) { 2 } else { 1 },
                )
            };
            assert!(answer == 0, "emulation: kernel {kernel:?} with {grid:?}: refused ({answer})");
        }
        Operation::Record(_) | Operation::Wait(_) => {}
    }
}

impl Device for Emulation {
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn properties(&self) -> Result<Properties, GpuError> {
        self.may_fail("properties")?;
        Ok(Properties {
            name: "emulation on the CPU (no GPU)".into(),
            multiprocessors: 2,
            shared_bytes_max: 160 << 10,
            memory_bytes: self.memory_bytes,
            free_bytes: self.memory_bytes - self.state().device_bytes,
            is_emulation: true,
        })
    }

    fn allocate(&self, place: Place, bytes: u64) -> Result<u64, GpuError> {
        self.may_fail("allocate")?;
        self.hold(Some(place), bytes, if place == Place::Device { bytes } else { 0 })
    }

    unsafe fn release(&self, place: Place, address: u64) {
        self.give_back(Some(place), address);
    }

    fn map(&self, places: &[Place], page_bytes: u64) -> Result<Option<u64>, GpuError> {
        self.may_fail("map")?;
        if !self.can_map || places.is_empty() {
            return Ok(None);
        }
        let in_device = places.iter().filter(|place| **place == Place::Device).count() as u64;
        self.hold(None, places.len() as u64 * page_bytes, in_device * page_bytes).map(Some)
    }

    unsafe fn unmap(&self, address: u64) {
        self.give_back(None, address);
    }

    unsafe fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.queue(stream, "copy", Operation::Copy { to, from, bytes })
    }

    unsafe fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError> {
        self.queue(stream, "fill", Operation::Fill { at, byte, bytes })
    }

    unsafe fn launch(&self, stream: Stream, kernel: &str, grid: Grid, arguments: &[u8]) -> Result<(), GpuError> {
        let kernel = CString::new(kernel).expect("kernel names have no zero");
        self.queue(stream, "launch", Operation::Launch { kernel, grid, arguments: arguments.to_vec() })
    }

    fn record(&self, stream: Stream) -> Result<Event, GpuError> {
        let event = {
            let mut state = self.state();
            state.events += 1;
            Event(state.events)
        };
        self.queue(stream, "record", Operation::Record(event))?;
        Ok(event)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        self.queue(stream, "wait", Operation::Wait(event))
    }

    fn wait_on_host(&self, event: Event) -> Result<(), GpuError> {
        self.may_fail("wait on the host")?;
        let mut state = self.state();
        while !state.recorded.contains(&event) {
            assert!(self.step(&mut state), "emulation: the host waits for an event that never comes");
        }
        Ok(())
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        self.may_fail("synchronize")?;
        let mut state = self.state();
        while !state.streams[usize::from(stream.0)].is_empty() {
            self.step(&mut state);
        }
        Ok(())
    }

    fn quiesce(&self) {
        let mut state = self.state();
        while self.step(&mut state) {}
        state.recorded.clear();
    }

    fn elapsed_ms(&self, _from: Event, _to: Event) -> Option<f32> {
        None
    }
}
