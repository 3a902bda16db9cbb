//! A CUDA device. The driver library is loaded when asked for; without one, [`Cuda::open`] says [`GpuError::Absent`].
//!
//! The kernels come as a cubin: from the folder that `FARHOLD_CUBINS` names (`farhold_sm_90.cubin`, from
//! `scripts/gpu-kernels`), else compiled from the sources in this library by NVRTC where that is installed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;

use cudarc::driver::{result, sys};

use super::device::{Device, Event, GpuError, Grid, Place, Properties, STREAMS, Stream};

/// A CUDA device, with its primary context current on the thread that opened it (it is not `Send`).
pub struct Cuda {
    name: String,
    multiprocessors: u32,
    shared_bytes_max: u64,
    module: sys::CUmodule,
    streams: Vec<sys::CUstream>,
    functions: RefCell<HashMap<String, sys::CUfunction>>,
    events: RefCell<HashMap<Event, sys::CUevent>>,
    next_event: RefCell<u64>,
    device: sys::CUdevice,
}

fn failed(operation: &'static str) -> impl Fn(result::DriverError) -> GpuError {
    move |error| GpuError::Failed { operation, message: error.to_string() }
}

impl Cuda {
    /// Opens the `ordinal`-th device, with kernels from `cubins` (a folder) or, without one, compiled now.
    ///
    /// # Errors
    /// [`GpuError::Absent`]: no driver, no such device, or no kernels for it.
    pub fn open(ordinal: i32, cubins: Option<&Path>) -> Result<Self, GpuError> {
        let absent = |error: result::DriverError| GpuError::Absent(error.to_string());
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::Absent("the CUDA driver library is not installed".into()));
        }
        result::init().map_err(absent)?;
        let device = result::device::get(ordinal).map_err(absent)?;
        // SAFETY: `device` came from the driver.
        let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(absent);
        use sys::CUdevice_attribute_enum as Attribute;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u64;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let name = result::device::get_name(device).map_err(absent)?;
        // SAFETY: `device` came from the driver; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(absent)?;
        // Built before anything else can fail, so that `drop` gives the context back.
        let mut cuda = Self {
            name,
            multiprocessors,
            shared_bytes_max: shared,
            module: std::ptr::null_mut(),
            streams: Vec::new(),
            functions: RefCell::default(),
            events: RefCell::default(),
            next_event: RefCell::default(),
            device,
        };
        // SAFETY: the context has just been retained.
        unsafe { result::ctx::set_current(context) }.map_err(absent)?;
        let image = image(cubins, major, minor)?;
        // SAFETY: a whole cubin or PTX with a zero at its end.
        cuda.module = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(absent)?;
        for _ in 0..STREAMS {
            cuda.streams.push(
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("create a stream"))?,
            );
        }
        Ok(cuda)
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        self.streams[usize::from(stream.0)]
    }

    fn event(&self, event: Event) -> sys::CUevent {
        self.events.borrow()[&event]
    }

    fn function(&self, kernel: &str) -> Result<sys::CUfunction, GpuError> {
        if let Some(&function) = self.functions.borrow().get(kernel) {
            return Ok(function);
        }
        let name = CString::new(kernel).expect("kernel names have no zero");
        // SAFETY: the module is loaded as long as `self` lives.
        let function = unsafe { result::module::get_function(self.module, name) }.map_err(failed("find a kernel"))?;
        let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, most, self.shared_bytes_max as i32) }
            .map_err(failed("ask for shared memory"))?;
        self.functions.borrow_mut().insert(kernel.into(), function);
        Ok(function)
    }
}

/// The kernels for a device: a cubin as it lies in the folder (8.x takes the one for 8.0, 9.x the one for 9.0), or NVRTC's.
fn image(cubins: Option<&Path>, major: i32, minor: i32) -> Result<Vec<u8>, GpuError> {
    if let Some(folder) = cubins {
        let file = folder.join(format!("farhold_sm_{major}0.cubin"));
        return std::fs::read(&file).map_err(|error| GpuError::Absent(format!("{}: {error}", file.display())));
    }
    // SAFETY: only looks for the library.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(GpuError::Absent(
            "there are neither prebuilt kernels (scripts/gpu-kernels) nor NVRTC to compile them".into(),
        ));
    }
    let options = cudarc::nvrtc::CompileOptions {
        // -default-device: a lambda in a kernel has no annotation.
        options: vec![
            "--std=c++17".into(),
            "-default-device".into(),
            format!("--gpu-architecture=compute_{major}{minor}"),
        ],
        ..Default::default()
    };
    let ptx = cudarc::nvrtc::compile_ptx_with_opts(source(), options)
        .map_err(|error| GpuError::Absent(format!("NVRTC: {error:?}")))?;
    let mut image = ptx.to_src().into_bytes();
    image.push(0);
    Ok(image)
}

/// All kernel sources as one text: every quoted `#include` is replaced by its file, once.
fn source() -> String {
    const FILES: [(&str, &str); 16] = [
        ("farhold.cu", include_str!("../../kernels/farhold.cu")),
        ("all.cuh", include_str!("../../kernels/all.cuh")),
        ("kernels.def", include_str!("../../kernels/kernels.def")),
        ("world.cuh", include_str!("../../kernels/world.cuh")),
        ("arguments.h", include_str!("../../kernels/arguments.h")),
        ("tuple.cuh", include_str!("../../kernels/tuple.cuh")),
        ("histogram.cuh", include_str!("../../kernels/histogram.cuh")),
        ("access.cuh", include_str!("../../kernels/access.cuh")),
        ("standard.cuh", include_str!("../../kernels/partition/standard.cuh")),
        ("linear.cuh", include_str!("../../kernels/partition/linear.cuh")),
        ("buffers.cuh", include_str!("../../kernels/partition/buffers.cuh")),
        ("shared.cuh", include_str!("../../kernels/partition/shared.cuh")),
        ("hierarchical.cuh", include_str!("../../kernels/partition/hierarchical.cuh")),
        ("result.cuh", include_str!("../../kernels/join/result.cuh")),
        ("table.cuh", include_str!("../../kernels/join/table.cuh")),
        ("partitioned.cuh", include_str!("../../kernels/join/partitioned.cuh")),
    ];
    fn add(name: &str, seen: &mut Vec<String>, out: &mut String) {
        if seen.iter().any(|one| one == name) {
            return;
        }
        seen.push(name.into());
        let no_partition = ("no_partition.cuh", include_str!("../../kernels/join/no_partition.cuh"));
        let Some((_, text)) = FILES.iter().chain([&no_partition]).find(|(file, _)| *file == name) else { return };
        for line in text.lines().filter(|line| line.trim() != "#pragma once") {
            if let Some(path) = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next()) {
                add(path.rsplit('/').next().unwrap_or(path), seen, out);
            } else {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    let mut out = String::new();
    add("farhold.cu", &mut Vec::new(), &mut out);
    out
}

impl Device for Cuda {
    fn properties(&self) -> Result<Properties, GpuError> {
        let (free, total) = result::mem_get_info().map_err(failed("ask for free memory"))?;
        Ok(Properties {
            name: self.name.clone(),
            multiprocessors: self.multiprocessors,
            shared_bytes_max: self.shared_bytes_max,
            memory_bytes: total as u64,
            free_bytes: free as u64,
        })
    }

    fn allocate(&self, place: Place, bytes: u64) -> Result<u64, GpuError> {
        let answer = match place {
            // SAFETY: the context is current; `Buffer` asks for at least one byte.
            Place::Device => unsafe { result::malloc_sync(bytes as usize) },
            Place::Host => {
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                // SAFETY: as above. Mapped: with unified addressing kernels use the same address.
                unsafe { result::malloc_host(bytes as usize, flags) }.map(|at| at as u64)
            }
        };
        answer.map_err(|error| {
            if error.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return failed("allocate")(error);
            }
            let free_bytes = result::mem_get_info().map_or(0, |(free, _)| free as u64);
            GpuError::OutOfMemory { wanted_bytes: bytes, free_bytes }
        })
    }

    unsafe fn release(&self, place: Place, address: u64) {
        // A device that failed fails here too; there is nothing more to give back then.
        let _ = result::ctx::synchronize();
        let _ = match place {
            // SAFETY: allocated by `allocate` with this place, released once (the caller).
            Place::Device => unsafe { result::free_sync(address) },
            // SAFETY: as above.
            Place::Host => unsafe { result::free_host(address as *mut c_void) },
        };
    }

    unsafe fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: the contract of `Device::copy`; with unified addressing the driver tells host from device by address.
        unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, self.stream(stream)) }.result().map_err(failed("copy"))
    }

    unsafe fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: the contract of `Device::fill`.
        unsafe { result::memset_d8_async(at, byte, bytes as usize, self.stream(stream)) }.map_err(failed("fill"))
    }

    unsafe fn launch(&self, stream: Stream, kernel: &str, grid: Grid, arguments: &[u8]) -> Result<(), GpuError> {
        let function = self.function(kernel)?;
        let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
        let (blocks, threads) = ((grid.blocks, 1, 1), (grid.threads, 1, 1));
        // SAFETY: the kernel takes one structure, of which `arguments` are the bytes (`Arguments`, asserted in size on both
        // sides); the addresses in it are the caller's contract.
        unsafe {
            result::launch_kernel(
                function,
                blocks,
                threads,
                grid.shared_bytes as u32,
                self.stream(stream),
                &mut parameters,
            )
        }
        .map_err(failed("launch"))
    }

    fn record(&self, stream: Stream) -> Result<Event, GpuError> {
        let event =
            result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT).map_err(failed("create an event"))?;
        *self.next_event.borrow_mut() += 1;
        let id = Event(*self.next_event.borrow());
        self.events.borrow_mut().insert(id, event);
        // SAFETY: both live as long as `self`.
        unsafe { result::event::record(event, self.stream(stream)) }.map_err(failed("record"))?;
        Ok(id)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live as long as `self`.
        unsafe { result::stream::wait_event(self.stream(stream), self.event(event), flags) }.map_err(failed("wait"))
    }

    fn wait_on_host(&self, event: Event) -> Result<(), GpuError> {
        // SAFETY: the event lives until `quiesce`.
        unsafe { result::event::synchronize(self.event(event)) }.map_err(failed("wait on the host"))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream(stream)) }.map_err(failed("synchronize"))
    }

    fn quiesce(&self) {
        let _ = result::ctx::synchronize();
        for (_, event) in self.events.borrow_mut().drain() {
            // SAFETY: taken out of the list, so destroyed once; an event of a device that failed may refuse.
            let _ = unsafe { result::event::destroy(event) };
        }
    }

    fn elapsed_ms(&self, from: Event, to: Event) -> Option<f32> {
        // SAFETY: both live until `quiesce`.
        unsafe { result::event::elapsed(self.event(from), self.event(to)) }.ok()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.quiesce();
        for &stream in &self.streams {
            // SAFETY: created in `open`, destroyed once.
            let _ = unsafe { result::stream::destroy(stream) };
        }
        if !self.module.is_null() {
            // SAFETY: loaded in `open`, unloaded once.
            let _ = unsafe { result::module::unload(self.module) };
        }
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_nvrtc_is_whole() {
        let source = source();
        assert!(!source.contains("#include \"") || source.contains("simt/simt.hpp"), "an include is left");
        for part in ["partition_hierarchical", "table_probe_linear", "struct TableArguments", "FARHOLD_WIDTH(7, 512)"] {
            assert!(source.contains(part), "{part}");
        }
        // SAFETY: only looks for the library.
        if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            image(None, 9, 0).expect("NVRTC compiles the text");
        }
    }

    #[test]
    fn without_a_driver_the_error_says_so() {
        // SAFETY: only looks for the library.
        if unsafe { sys::is_culib_present() } {
            return; // the suite for GPUs opens the device (scripts/gpu-suite)
        }
        assert!(matches!(Cuda::open(0, None), Err(GpuError::Absent(_))));
    }
}
