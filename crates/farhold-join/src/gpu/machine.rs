//! The GPU of this machine, if it has one. It is opened once per process, calibrated, and not used again after it has
//! failed. A program may hand over another device, which joins then use instead.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Buffer, Device, GpuError, Grid, Place, Stream};
use super::kernels::{AccessArguments, bytes_of};
use crate::Run;
use crate::stopwatch::Stopwatch;

/// The cost model's knowledge of a device: sizes as the driver states them, rates as a short calibration found them.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Whether it is the emulation, whose rates mean nothing.
    pub is_emulation: bool,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that one block may have, in bytes.
    pub shared_bytes_max: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// The part of it that was free when the device was asked, in bytes.
    pub free_bytes: u64,
    /// Copy engine, pinned host memory to the device, in bytes a second.
    pub to_device_bytes_per_s: f64,
    /// Copy engine, device to pinned host memory.
    pub from_device_bytes_per_s: f64,
    /// Copy engines in both directions at once, the sum.
    pub both_bytes_per_s: f64,
    /// Kernels that read pinned host memory in order.
    pub kernel_read_bytes_per_s: f64,
    /// Copies within device memory: bytes read and bytes written.
    pub device_bytes_per_s: f64,
    /// Threads of the host that read its memory in order, all of them together.
    pub host_read_bytes_per_s: f64,
    /// From queueing a small piece of work to its end, in seconds.
    pub launch_s: f64,
}

impl Description {
    /// An H100 on `PCIe` 5 in a host of 16 cores, **from published figures, not measured here**. Link rates are those
    /// for reading; the rate of both directions at once and the host's rate are assumptions. For predictions where no
    /// GPU is present.
    pub fn published_h100() -> Self {
        Self {
            name: "H100 (published figures)".into(),
            is_emulation: false,
            multiprocessors: 132,
            shared_bytes_max: 227 << 10,
            memory_bytes: 80 << 30,
            free_bytes: 79 << 30,
            to_device_bytes_per_s: 55e9,
            from_device_bytes_per_s: 53e9,
            both_bytes_per_s: 90e9,
            kernel_read_bytes_per_s: 35e9,
            device_bytes_per_s: 2.0e12,
            host_read_bytes_per_s: 120e9,
            launch_s: 5e-6,
        }
    }

    fn measure(device: &Arc<dyn Device>) -> Result<Self, GpuError> {
        let properties = device.properties()?;
        // Long enough for the link, short enough for a query that waits. The emulation has nothing to measure.
        let bytes: u64 = if properties.is_emulation { 1 << 16 } else { 64 << 20 };
        let turn = device.turn();
        let new = |place| Buffer::new(device, place, bytes);
        let (host, other_host) = (new(Place::Host)?, new(Place::Host)?);
        let (near, other_near) = (new(Place::Device)?, new(Place::Device)?);
        let sink = Buffer::new(device, Place::Device, 8)?;
        let (one, two) = (Stream(0), Stream(1));
        let copy = |stream, to: &Buffer, from: &Buffer| {
            // SAFETY: both buffers live until every copy has been waited for: `seconds` synchronizes, buffers on release.
            unsafe { device.copy(stream, to.address(), from.address(), bytes) }
        };
        let seconds = |work: &dyn Fn() -> Result<(), GpuError>| -> Result<f64, GpuError> {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let clock = Stopwatch::start();
                work()?;
                device.synchronize(one)?;
                device.synchronize(two)?;
                best = best.min(clock.ns() as f64 / 1e9);
            }
            Ok(best.max(1e-9))
        };
        let launch_s = seconds(&|| copy_small(&**device, &sink))?;
        let to_device = seconds(&|| copy(one, &near, &host))?;
        let from_device = seconds(&|| copy(one, &host, &near))?;
        let both = seconds(&|| copy(one, &near, &host).and_then(|()| copy(two, &other_host, &other_near)))?;
        let within = seconds(&|| copy(one, &other_near, &near))?;
        let grid = Grid { blocks: 2 * properties.multiprocessors, threads: 256, shared_bytes: 0 };
        let arguments = AccessArguments {
            at: host.address(),
            bytes,
            accesses: bytes / 16,
            granularity_bytes: 16,
            is_sequential: 1,
            sink: sink.address(),
            ..AccessArguments::default()
        };
        // SAFETY: the kernel reads `bytes` of `host` and writes the word of `sink`; both outlive the launch.
        let kernel_read = seconds(&|| unsafe { device.launch(one, "read_16", grid, bytes_of(&arguments)) })?;
        drop(turn);
        Ok(Self {
            name: properties.name,
            is_emulation: properties.is_emulation,
            multiprocessors: properties.multiprocessors,
            shared_bytes_max: properties.shared_bytes_max,
            memory_bytes: properties.memory_bytes,
            free_bytes: properties.free_bytes,
            to_device_bytes_per_s: bytes as f64 / to_device,
            from_device_bytes_per_s: bytes as f64 / from_device,
            both_bytes_per_s: 2.0 * bytes as f64 / both,
            kernel_read_bytes_per_s: bytes as f64 / kernel_read,
            device_bytes_per_s: 2.0 * bytes as f64 / within,
            host_read_bytes_per_s: host_read_bytes_per_s(if properties.is_emulation { 1 << 12 } else { 16 << 20 }),
            launch_s,
        })
    }
}

fn copy_small(device: &dyn Device, sink: &Buffer) -> Result<(), GpuError> {
    // SAFETY: the buffer lives until the work has been waited for.
    unsafe { device.fill(Stream(0), sink.address(), 0, sink.bytes()) }
}

/// The rate at which all threads of the host together sum up words, each its own part; the better of two rounds.
fn host_read_bytes_per_s(words: usize) -> f64 {
    let run = Run::with_threads(std::thread::available_parallelism().map_or(1, usize::from));
    let column = vec![1_u64; words];
    let round = || {
        let clock = Stopwatch::start();
        let sums = run.on_all(|worker| Ok(column[run.part(words, worker)].iter().sum::<u64>()));
        std::hint::black_box(&sums);
        clock.ns().max(1)
    };
    let ns = round().min(round());
    (words * 8) as f64 / ns as f64 * 1e9
}

/// A device that joins may use.
pub struct Gpu {
    device: Arc<dyn Device>,
    description: Description,
    /// Why joins may no longer use it.
    lost: Mutex<Option<String>>,
}

impl Gpu {
    /// Calibrates the device.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: Arc<dyn Device>) -> Result<Self, GpuError> {
        Ok(Self { description: Description::measure(&device)?, device, lost: Mutex::default() })
    }

    /// The device as described, without a calibration: for tests, and for rates that are known.
    pub fn described(device: Arc<dyn Device>, description: Description) -> Self {
        Self { description, device, lost: Mutex::default() }
    }

    /// The GPU of this machine: the device that was handed over ([`Gpu::hand_over`]). Otherwise, with the feature
    /// `gpu`, the first CUDA device. Otherwise, with the feature `emulation`, an emulated one, whose name says so. The
    /// first call that looks for one opens and calibrates it (a CUDA context: some tenths of a second). A device whose
    /// memory others have taken is calibrated by a later call.
    ///
    /// # Errors
    /// [`GpuError`]: usually [`GpuError::Absent`], and the same each time unless the device was busy.
    pub fn of_this_machine() -> Result<Arc<Self>, GpuError> {
        static FOUND: Mutex<Found> = Mutex::new(Found { device: None, gpu: None, busy: None });
        let given = handed_over().clone();
        given.map_or_else(|| FOUND.lock().unwrap_or_else(PoisonError::into_inner).gpu(open), Ok)
    }

    /// Makes joins of this process that begin from now on use this device and look for none. It may be one of several,
    /// one in place of another that failed, or an emulation. The model may choose an emulation that was handed over
    /// like any other device, since the program has named it.
    pub fn hand_over(self: &Arc<Self>) {
        *handed_over() = Some(Arc::clone(self));
    }

    /// Whether the model may choose it. An emulation that was not handed over is for tests that name its algorithms.
    pub(crate) fn may_be_chosen(&self) -> bool {
        !self.description.is_emulation || handed_over().as_deref().is_some_and(|gpu| std::ptr::eq(gpu, self))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Its description, with the memory that is free now.
    ///
    /// # Errors
    /// [`GpuError::Absent`] if it has failed before.
    pub fn describe(&self) -> Result<Description, GpuError> {
        if let Some(why) = &*self.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(GpuError::Absent(format!("it has failed before: {why}")));
        }
        let properties = self.device.properties().inspect_err(|error| self.note(error))?;
        Ok(Description { free_bytes: properties.free_bytes, ..self.description.clone() })
    }

    /// Records an error: a device that failed is not used again in this process.
    pub fn note(&self, error: &GpuError) {
        if let GpuError::Failed { .. } = error {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }
    }
}

/// What this process has found of a device of its machine.
struct Found {
    device: Option<Arc<dyn Device>>,
    /// What does not change any more.
    gpu: Option<Result<Arc<Gpu>, GpuError>>,
    /// When it was found busy, and how.
    busy: Option<(Stopwatch, GpuError)>,
}

/// How long a busy device is left alone: a calibration takes room, and some time of a query.
const BUSY_NS: u64 = 5_000_000_000;

impl Found {
    fn gpu(&mut self, open: impl FnOnce() -> Result<Arc<dyn Device>, GpuError>) -> Result<Arc<Gpu>, GpuError> {
        if let Some(gpu) = &self.gpu {
            return gpu.clone();
        }
        if let Some((since, error)) = &self.busy
            && since.ns() < BUSY_NS
        {
            return Err(error.clone());
        }
        let device = self.device.take().map_or_else(open, Ok);
        let gpu = device.and_then(|device| {
            self.device = Some(Arc::clone(&device));
            Gpu::new(device).map(Arc::new)
        });
        match &gpu {
            Err(error @ GpuError::OutOfMemory { .. }) => self.busy = Some((Stopwatch::start(), error.clone())),
            _ => self.gpu = Some(gpu.clone()),
        }
        gpu
    }
}

/// The device that a program has handed over.
fn handed_over() -> MutexGuard<'static, Option<Arc<Gpu>>> {
    static GPU: Mutex<Option<Arc<Gpu>>> = Mutex::new(None);
    GPU.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(any(feature = "gpu", feature = "emulation"))]
fn open() -> Result<Arc<dyn Device>, GpuError> {
    #[cfg(feature = "gpu")]
    let cuda = {
        let cubins = std::env::var_os("FARHOLD_CUBINS").map(std::path::PathBuf::from);
        super::Cuda::open(0, cubins.as_deref()).map(|cuda| Arc::new(cuda) as Arc<dyn Device>)
    };
    #[cfg(all(feature = "gpu", not(feature = "emulation")))]
    return cuda;
    #[cfg(feature = "emulation")]
    {
        let emulation = || Arc::new(super::Emulation::new(64 << 20, 1).mapping()) as Arc<dyn Device>;
        #[cfg(feature = "gpu")]
        return cuda.or_else(|_| Ok(emulation()));
        #[cfg(not(feature = "gpu"))]
        Ok(emulation())
    }
}

#[cfg(not(any(feature = "gpu", feature = "emulation")))]
fn open() -> Result<Arc<dyn Device>, GpuError> {
    Err(GpuError::Absent("this build has no GPU support (feature `gpu` of farhold-join)".into()))
}

#[cfg(all(test, feature = "emulation"))]
mod tests {
    use super::super::{Emulation, Fault};
    use super::*;

    #[test]
    fn a_device_that_is_busy_at_first_is_used_when_it_is_free() {
        let device = Arc::new(Emulation::new(64 << 20, 1).failing_at(1, Fault::Busy));
        let mut found = Found { device: None, gpu: None, busy: None };
        let first = found.gpu(|| Ok(device.clone()));
        assert!(matches!(first, Err(GpuError::OutOfMemory { .. })), "{:?}", first.err());
        device.free();
        let again = || -> Result<Arc<dyn Device>, GpuError> { panic!("it is open") };
        let calls = device.calls();
        assert!(found.gpu(again).is_err() && device.calls() == calls, "it is left alone");
        found.busy = None;
        assert!(found.gpu(again).is_ok());
        assert!(found.gpu(again).is_ok());
        let mut none = Found { device: None, gpu: None, busy: None };
        for _ in 0..2 {
            let absent = none.gpu(|| Err(GpuError::Absent("none".into())));
            assert_eq!(absent.err(), Some(GpuError::Absent("none".into())));
        }
    }

    #[test]
    fn a_failure_of_the_host_leaves_the_device_in_use() {
        let gpu = Gpu::new(Arc::new(Emulation::new(64 << 20, 1))).unwrap();
        gpu.note(&GpuError::from(crate::JoinError::WorkerPanicked("a worker".into())));
        assert!(gpu.describe().is_ok());
    }
}
