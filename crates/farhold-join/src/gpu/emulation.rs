//! A device for tests: the same kernels, run on the CPU by `kernels/simt`. **It is an emulation**: nothing about its speed
//! says anything about a GPU, and its name says so wherever a result is printed.
//!
//! Streams are queues that run only when the host waits, interleaved at random (seeded) as far as streams and events allow,
//! so that a missing event shows as a wrong result. It can be told to fail at its n-th call.

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_char, c_int, c_void};

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
    allocations: HashMap<u64, (Place, u64)>,
    device_bytes: u64,
    random: u64,
}

/// The emulated device.
pub struct Emulation {
    state: RefCell<State>,
    memory_bytes: u64,
    calls: Cell<u64>,
    fail_at_call: Option<u64>,
    ignores_events: bool,
    is_lost: Cell<bool>,
}

impl Emulation {
    /// An emulated device with `memory_bytes` of device memory, whose streams interleave by `seed`.
    pub fn new(memory_bytes: u64, seed: u64) -> Self {
        let state = State { random: seed.wrapping_mul(2).wrapping_add(1), ..State::default() };
        Self {
            state: RefCell::new(state),
            memory_bytes,
            calls: Cell::new(0),
            fail_at_call: None,
            ignores_events: false,
            is_lost: Cell::new(false),
        }
    }

    /// Is lost at the `call`-th call that can fail (from 0): that call and all later ones fail, and queued work is dropped.
    #[must_use]
    pub fn failing_at(mut self, call: u64) -> Self {
        self.fail_at_call = Some(call);
        self
    }

    /// Lets streams run past the events they should wait for: a mistake planted on purpose.
    #[must_use]
    pub fn ignoring_events(mut self) -> Self {
        self.ignores_events = true;
        self
    }

    /// Calls that could have failed so far.
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Allocations that have not been released.
    pub fn live_allocations(&self) -> usize {
        self.state.borrow().allocations.len()
    }

    fn may_fail(&self, operation: &'static str) -> Result<(), GpuError> {
        let call = self.calls.replace(self.calls.get() + 1);
        if self.is_lost.get() || self.fail_at_call == Some(call) {
            self.is_lost.set(true);
            return Err(GpuError::Failed { operation, message: format!("emulated fault at call {call}") });
        }
        Ok(())
    }

    fn queue(&self, stream: Stream, what: &'static str, operation: Operation) -> Result<(), GpuError> {
        self.may_fail(what)?;
        self.state.borrow_mut().streams[usize::from(stream.0)].push_back(operation);
        Ok(())
    }

    /// Runs one operation of a stream that can go on; false when there is none.
    fn step(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if self.is_lost.get() {
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
        if let Operation::Record(event) = operation {
            state.recorded.insert(event);
            return true;
        }
        drop(state);
        run(&operation, random);
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
                    2,
                )
            };
            assert!(answer == 0, "emulation: kernel {kernel:?} with {grid:?}: refused ({answer})");
        }
        Operation::Record(_) | Operation::Wait(_) => {}
    }
}

impl Device for Emulation {
    fn properties(&self) -> Result<Properties, GpuError> {
        self.may_fail("properties")?;
        Ok(Properties {
            name: "emulation on the CPU (no GPU)".into(),
            multiprocessors: 2,
            shared_bytes_max: 160 << 10,
            memory_bytes: self.memory_bytes,
            free_bytes: self.memory_bytes - self.state.borrow().device_bytes,
        })
    }

    fn allocate(&self, place: Place, bytes: u64) -> Result<u64, GpuError> {
        self.may_fail("allocate")?;
        let mut state = self.state.borrow_mut();
        let free_bytes = self.memory_bytes - state.device_bytes;
        if place == Place::Device && bytes > free_bytes {
            return Err(GpuError::OutOfMemory { wanted_bytes: bytes, free_bytes });
        }
        let layout = Layout::from_size_align(bytes as usize, ALIGNMENT).expect("a size that fits");
        // SAFETY: `Buffer` asks for at least one byte.
        let address = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        assert!(address != 0, "no host memory for the emulation");
        // SAFETY: just allocated. Rubbish instead of zeroes: nobody may count on content.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0x5a, bytes as usize) };
        state.allocations.insert(address, (place, bytes));
        state.device_bytes += if place == Place::Device { bytes } else { 0 };
        Ok(address)
    }

    unsafe fn release(&self, place: Place, address: u64) {
        while self.step() {}
        let mut state = self.state.borrow_mut();
        let (kept, bytes) = state.allocations.remove(&address).expect("released memory was allocated");
        assert!(kept == place, "released where it was allocated");
        state.device_bytes -= if place == Place::Device { bytes } else { 0 };
        let layout = Layout::from_size_align(bytes as usize, ALIGNMENT).expect("as when it was allocated");
        // SAFETY: allocated above with this layout, and removed from the list, so released once.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
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
            let mut state = self.state.borrow_mut();
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
        while !self.state.borrow().recorded.contains(&event) {
            assert!(self.step(), "emulation: the host waits for an event that never comes");
        }
        Ok(())
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        self.may_fail("synchronize")?;
        while !self.state.borrow().streams[usize::from(stream.0)].is_empty() {
            self.step();
        }
        Ok(())
    }

    fn quiesce(&self) {
        while self.step() {}
        self.state.borrow_mut().recorded.clear();
    }

    fn elapsed_ms(&self, _from: Event, _to: Event) -> Option<f32> {
        None
    }
}
