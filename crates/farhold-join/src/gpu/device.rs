//! The contract of a device for the joins: memory, copies, kernels, streams. There are two devices:
//! [`Cuda`](super::Cuda) (feature `gpu`) and [`Emulation`](super::Emulation) (feature `emulation`), which runs the same
//! kernels on the CPU for tests.

use std::sync::{Arc, MutexGuard};

use crate::JoinError;

/// Why a join on a device did not finish. In every case the inputs are unchanged and the device's memory is released.
/// So the caller may run the join on the CPU instead, and must report that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no device, no driver, or no kernel image for it.
    #[error("no GPU can be used: {0}")]
    Absent(String),
    /// The device has less free memory than the join needs at least, or other users took it meanwhile.
    #[error("the GPU has no room for {wanted_bytes} bytes; {free_bytes} are free")]
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes free when they were asked for.
        free_bytes: u64,
    },
    /// The device failed during the work; it may be unusable until the process ends.
    #[error("the GPU failed ({operation}): {message}")]
    Failed {
        /// The operation that failed.
        operation: &'static str,
        /// The driver's message.
        message: String,
    },
    /// The host's part of the work failed; the device is as it was.
    #[error("the host's part of a GPU join failed: {0}")]
    Host(String),
    /// Perfect hashing was asked for, but build keys repeat or lie outside of the stated interval.
    #[error("the build keys repeat or leave their stated interval; perfect hashing cannot hold them")]
    NotPerfect,
    /// A build key repeats too often for a table of open slots, in which equal keys form a list.
    #[error("a build key repeats too often for a table of open slots")]
    Crowded,
    /// The inputs cannot be joined: columns of different lengths, a width without kernels.
    #[error("invalid GPU join: {0}")]
    Invalid(String),
    /// More rows came out than the caller has room for; none of them is handed over.
    #[error("a GPU join gives more than {rows_max} rows")]
    TooManyRows {
        /// The most that the caller takes.
        rows_max: u64,
    },
    /// The cancel token was raised. After this error alone the join does not continue on the CPU.
    #[error("the join was cancelled")]
    Cancelled,
}

/// Errors of the CPU's part of the work: cancelled, or a worker that panicked.
impl From<JoinError> for GpuError {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Cancelled => Self::Cancelled,
            other => Self::Host(other.to_string()),
        }
    }
}

/// The properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Its name; an emulation says that it is one.
    pub name: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that one block may have, in bytes.
    pub shared_bytes_max: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Free device memory when it was asked, in bytes.
    pub free_bytes: u64,
    /// Whether it is the emulation: its times mean nothing, and it is used only on request.
    pub is_emulation: bool,
}

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the device.
    Device,
    /// In the host, pinned, so that copy engines and kernels reach it under the same address.
    Host,
}

/// A queue of work. Work of one stream runs in order; work of two streams runs in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub u8);

/// The number of streams of every device.
pub const STREAMS: u8 = 4;

/// A point in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// How many threads run a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads a block; whole warps of 32.
    pub threads: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u64,
}

/// A device. Copies and kernels are queued and run later; any later call may report their errors.
///
/// Its streams are shared: a caller must hold the [`Device::turn`] to queue work. Memory may be held between turns.
pub trait Device: Send + Sync {
    /// Waits until no other caller queues work.
    fn turn(&self) -> MutexGuard<'_, ()>;

    /// Its properties, with the memory that is free now.
    ///
    /// # Errors
    /// The device does not answer.
    fn properties(&self) -> Result<Properties, GpuError>;

    /// Allocates memory aligned to 256 bytes, with undefined content.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the device fails.
    fn allocate(&self, place: Place, bytes: u64) -> Result<u64, GpuError>;

    /// Releases memory, after all queued work has ended.
    ///
    /// # Safety
    /// `address` came from [`Device::allocate`] with this place and is not used again.
    unsafe fn release(&self, place: Place, address: u64);

    /// Maps one range of addresses whose pages of `page_bytes` lie in those places in order. `None` where the driver
    /// cannot map them; the caller then keeps the pages' addresses in a directory.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the device fails.
    fn map(&self, places: &[Place], page_bytes: u64) -> Result<Option<u64>, GpuError>;

    /// Releases a range, after all queued work has ended.
    ///
    /// # Safety
    /// `address` came from [`Device::map`] and is not used again.
    unsafe fn unmap(&self, address: u64);

    /// Queues a copy in any direction; host memory should be pinned.
    ///
    /// # Safety
    /// Both ranges are live until the copy has ended, and nothing else changes them meanwhile.
    ///
    /// # Errors
    /// The device fails, maybe by earlier work.
    unsafe fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), GpuError>;

    /// Queues the filling of a range with a byte.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    ///
    /// # Errors
    /// As for [`Device::copy`].
    unsafe fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError>;

    /// Queues a kernel of `kernels/kernels.def`.
    ///
    /// # Safety
    /// The addresses in `arguments` name live memory of the extents that the kernel works on, until it has ended.
    ///
    /// # Errors
    /// There is no such kernel, or the device fails.
    unsafe fn launch(&self, stream: Stream, kernel: &str, grid: Grid, arguments: &[u8]) -> Result<(), GpuError>;

    /// Returns an event that marks the work queued on the stream so far.
    ///
    /// # Errors
    /// As for [`Device::copy`].
    fn record(&self, stream: Stream) -> Result<Event, GpuError>;

    /// Makes work that is queued on the stream from now on start after the event.
    ///
    /// # Errors
    /// As for [`Device::copy`].
    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError>;

    /// Waits on the host for the event.
    ///
    /// # Errors
    /// The device fails: also an error of the work that is waited for.
    fn wait_on_host(&self, event: Event) -> Result<(), GpuError>;

    /// Waits on the host for all that is queued on the stream.
    ///
    /// # Errors
    /// As for [`Device::wait_on_host`].
    fn synchronize(&self, stream: Stream) -> Result<(), GpuError>;

    /// Waits for everything, whatever its outcome, and forgets all events.
    fn quiesce(&self);

    /// Milliseconds between two events that have ended; none where times mean nothing (the emulation).
    fn elapsed_ms(&self, from: Event, to: Event) -> Option<f32>;
}

/// Memory of a device, released when dropped.
pub struct Buffer {
    device: Arc<dyn Device>,
    place: Place,
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// Room for `bytes` (at least one).
    ///
    /// # Errors
    /// As for [`Device::allocate`].
    pub fn new(device: &Arc<dyn Device>, place: Place, bytes: u64) -> Result<Self, GpuError> {
        let bytes = bytes.max(1);
        let address = device.allocate(place, bytes)?;
        Ok(Self { device: Arc::clone(device), place, address, bytes })
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address `offset` bytes from the start. `len` bytes from there must lie inside.
    pub fn at(&self, offset: u64, len: u64) -> u64 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.bytes),
            "{offset} + {len} of {} bytes",
            self.bytes
        );
        self.address + offset
    }

    /// The words of pinned host memory.
    ///
    /// # Safety
    /// No queued work writes the range now or while the slice lives, and the words have been written.
    pub unsafe fn words(&self, offset: u64, count: usize) -> &[u64] {
        assert!(self.place == Place::Host && offset.is_multiple_of(8), "words are read from aligned host memory");
        let at = self.at(offset, count as u64 * 8) as *const u64;
        // SAFETY: inside of the allocation (`at` checks), aligned, and not written meanwhile (the caller).
        unsafe { std::slice::from_raw_parts(at, count) }
    }

    /// The words of pinned host memory, for writing.
    ///
    /// # Safety
    /// No queued work reads or writes the range while the slice lives.
    pub unsafe fn words_mut(&mut self, offset: u64, count: usize) -> &mut [u64] {
        assert!(self.place == Place::Host && offset.is_multiple_of(8), "words are written to aligned host memory");
        let at = self.at(offset, count as u64 * 8) as *mut u64;
        // SAFETY: inside of the allocation (`at` checks), aligned, borrowed mutably; u64 has no invalid values; devices give
        // zeroed or previously written host memory, which the contract of `allocate` leaves undefined only in content.
        unsafe { std::slice::from_raw_parts_mut(at, count) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this place; the address is not used after the drop.
        unsafe { self.device.release(self.place, self.address) }
    }
}

/// Pages in device and host memory under one range of addresses, released when dropped.
pub struct Mapping {
    device: Arc<dyn Device>,
    address: u64,
}

impl Mapping {
    /// Maps pages in those places; `None` where the driver cannot map them.
    ///
    /// # Errors
    /// As for [`Device::map`].
    pub fn new(device: &Arc<dyn Device>, places: &[Place], page_bytes: u64) -> Result<Option<Self>, GpuError> {
        let address = device.map(places, page_bytes)?;
        Ok(address.map(|address| Self { device: Arc::clone(device), address }))
    }

    /// The address of the first page.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the address is not used after the drop.
        unsafe { self.device.unmap(self.address) }
    }
}
