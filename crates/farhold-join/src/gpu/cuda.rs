//! A CUDA device. The driver library is loaded on request; without one, [`Cuda::open`] returns [`GpuError::Absent`].
//!
//! The kernels come as a cubin from a folder (`farhold_sm_90.cubin`, from `scripts/gpu-kernels`). Otherwise they come
//! out of this library, if it was built with such a folder (`FARHOLD_CUBINS`, see `build.rs`). Otherwise NVRTC, where
//! it is installed, compiles them from the sources in this library.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::device::{Device, Event, GpuError, Grid, Place, Properties, STREAMS, Stream};

/// A CUDA device. Every call makes its primary context current on the calling thread.
pub struct Cuda {
    name: String,
    multiprocessors: u32,
    shared_bytes_max: u64,
    module: sys::CUmodule,
    streams: Vec<sys::CUstream>,
    context: sys::CUcontext,
    handles: Mutex<Handles>,
    turn: Mutex<()>,
    device: sys::CUdevice,
    /// Whether the device maps memory of the host's NUMA nodes beside its own.
    can_map: bool,
}

#[derive(Default)]
struct Handles {
    functions: HashMap<String, sys::CUfunction>,
    events: HashMap<Event, sys::CUevent>,
    last_event: u64,
    mappings: HashMap<u64, Mapped>,
}

/// A reserved range and what lies in it.
struct Mapped {
    bytes: usize,
    pages: Vec<sys::CUmemGenericAllocationHandle>,
    page_bytes: usize,
}

// SAFETY: the handles are names that the driver looks up, and the driver may be called from any thread. Nothing behind
// them belongs to a thread. Every call first makes the context current on its thread (`enter`).
unsafe impl Send for Cuda {}
// SAFETY: as above; the tables of handles are behind a mutex.
unsafe impl Sync for Cuda {}

fn failed(operation: &'static str) -> impl Fn(result::DriverError) -> GpuError {
    move |error| GpuError::Failed { operation, message: error.to_string() }
}

impl Cuda {
    /// Opens device number `ordinal`, with kernels from the folder `cubins` or, without one, from this library or
    /// NVRTC.
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
        let can_map = attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? != 0
            && attribute(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED).unwrap_or(0)
                != 0;
        let name = result::device::get_name(device).map_err(absent)?;
        // SAFETY: `device` came from the driver; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(absent)?;
        // Constructed before anything else can fail, so that `drop` releases the context.
        let mut cuda = Self {
            name,
            multiprocessors,
            shared_bytes_max: shared,
            module: std::ptr::null_mut(),
            streams: Vec::new(),
            context,
            handles: Mutex::default(),
            turn: Mutex::default(),
            device,
            can_map,
        };
        cuda.enter().map_err(|error| GpuError::Absent(error.to_string()))?;
        let image = image(cubins, major, minor)?;
        // SAFETY: `image` is a whole cubin or PTX with a zero at its end.
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

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event(&self, event: Event) -> sys::CUevent {
        self.handles().events[&event]
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("enter the context"))
    }

    fn function(&self, kernel: &str) -> Result<sys::CUfunction, GpuError> {
        if let Some(&function) = self.handles().functions.get(kernel) {
            return Ok(function);
        }
        let name = CString::new(kernel).expect("kernel names have no zero");
        // SAFETY: the module is loaded as long as `self` lives.
        let function = unsafe { result::module::get_function(self.module, name) }.map_err(failed("find a kernel"))?;
        let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, most, self.shared_bytes_max as i32) }
            .map_err(failed("ask for shared memory"))?;
        self.handles().functions.insert(kernel.into(), function);
        Ok(function)
    }
}

// `EMBEDDED`: for every cubin that the build was given, the major number of its architecture, and the cubin.
include!(concat!(env!("OUT_DIR"), "/cubins.rs"));

/// The kernels for a device: the cubin in the folder or in this library (8.x takes the one for 8.0, 9.x the one for
/// 9.0), or NVRTC's.
fn image(cubins: Option<&Path>, major: i32, minor: i32) -> Result<Vec<u8>, GpuError> {
    if let Some(folder) = cubins {
        let file = folder.join(format!("farhold_sm_{major}0.cubin"));
        return std::fs::read(&file).map_err(|error| GpuError::Absent(format!("{}: {error}", file.display())));
    }
    if let Some((_, cubin)) = EMBEDDED.iter().find(|(architecture, _)| *architecture == major) {
        return Ok(cubin.to_vec());
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

/// The properties of one page: pinned memory of the device, or of the host's first NUMA node.
fn page_properties(place: Place, device: sys::CUdevice) -> sys::CUmemAllocationProp {
    let (type_, id) = match place {
        Place::Device => (sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, device),
        Place::Host => (sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
    };
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation { type_, id },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Mapped {
    /// Creates the pages and maps them one by one into the reserved range. `self` records what must be undone.
    fn fill(&mut self, at: u64, places: &[Place], device: sys::CUdevice) -> Result<(), result::DriverError> {
        for (&place, i) in places.iter().zip(0..) {
            let (mut handle, properties) = (0, page_properties(place, device));
            // SAFETY: the out pointer and the properties live during the call.
            unsafe { sys::cuMemCreate(&raw mut handle, self.page_bytes, &raw const properties, 0) }.result()?;
            // SAFETY: the page lies inside the reserved range, at a place where nothing is mapped.
            let mapped = unsafe { sys::cuMemMap(at + i * self.page_bytes as u64, self.page_bytes, 0, handle, 0) };
            if let Err(error) = mapped.result() {
                // SAFETY: created above and not mapped.
                let _ = unsafe { sys::cuMemRelease(handle) };
                return Err(error);
            }
            self.pages.push(handle);
        }
        let access = sys::CUmemAccessDesc {
            location: page_properties(Place::Device, device).location,
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the whole range is mapped.
        unsafe { sys::cuMemSetAccess(at, self.bytes, &raw const access, 1) }.result()
    }

    /// Unmaps, releases and unreserves everything. A device that failed may refuse.
    fn undo(self, at: u64) {
        for (handle, i) in self.pages.into_iter().zip(0..) {
            // SAFETY: mapped and created in `fill`, undone once.
            let _ = unsafe { sys::cuMemUnmap(at + i * self.page_bytes as u64, self.page_bytes) };
            // SAFETY: as above.
            let _ = unsafe { sys::cuMemRelease(handle) };
        }
        // SAFETY: reserved in `Cuda::map`; nothing is mapped there now.
        let _ = unsafe { sys::cuMemAddressFree(at, self.bytes) };
    }
}

impl Device for Cuda {
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn properties(&self) -> Result<Properties, GpuError> {
        self.enter()?;
        let (free, total) = result::mem_get_info().map_err(failed("ask for free memory"))?;
        Ok(Properties {
            name: self.name.clone(),
            multiprocessors: self.multiprocessors,
            shared_bytes_max: self.shared_bytes_max,
            memory_bytes: total as u64,
            free_bytes: free as u64,
            is_emulation: false,
        })
    }

    fn allocate(&self, place: Place, bytes: u64) -> Result<u64, GpuError> {
        self.enter()?;
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
        // A device that failed also fails here; nothing more can be released then.
        let _ = self.enter();
        let _ = result::ctx::synchronize();
        let _ = match place {
            // SAFETY: allocated by `allocate` with this place, released once (the caller).
            Place::Device => unsafe { result::free_sync(address) },
            // SAFETY: as above.
            Place::Host => unsafe { result::free_host(address as *mut c_void) },
        };
    }

    fn map(&self, places: &[Place], page_bytes: u64) -> Result<Option<u64>, GpuError> {
        self.enter()?;
        if !self.can_map || places.is_empty() {
            return Ok(None);
        }
        let mut granularity = 1;
        for place in [Place::Device, Place::Host] {
            let mut of_place = 0;
            let which = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            let properties = page_properties(place, self.device);
            // SAFETY: both pointers live during the call.
            unsafe { sys::cuMemGetAllocationGranularity(&raw mut of_place, &raw const properties, which) }
                .result()
                .map_err(failed("ask for the granularity of pages"))?;
            granularity = granularity.max(of_place as u64);
        }
        if !page_bytes.is_multiple_of(granularity) {
            return Ok(None);
        }
        let bytes = places.len() * page_bytes as usize;
        let mut at = 0;
        // SAFETY: the out pointer lives during the call.
        unsafe { sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) }
            .result()
            .map_err(failed("reserve addresses"))?;
        let mut mapped = Mapped { bytes, pages: Vec::with_capacity(places.len()), page_bytes: page_bytes as usize };
        match mapped.fill(at, places, self.device) {
            Ok(()) => {
                self.handles().mappings.insert(at, mapped);
                Ok(Some(at))
            }
            Err(error) => {
                mapped.undo(at);
                // Whatever the driver refuses about a mixture of pages, a directory does not need it.
                match error.0 {
                    sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
                    | sys::CUresult::CUDA_ERROR_NOT_SUPPORTED
                    | sys::CUresult::CUDA_ERROR_INVALID_VALUE
                    | sys::CUresult::CUDA_ERROR_INVALID_DEVICE
                    | sys::CUresult::CUDA_ERROR_NOT_PERMITTED => Ok(None),
                    _ => Err(failed("map pages")(error)),
                }
            }
        }
    }

    unsafe fn unmap(&self, address: u64) {
        let _ = self.enter();
        let _ = result::ctx::synchronize();
        let mapped = self.handles().mappings.remove(&address);
        if let Some(mapped) = mapped {
            mapped.undo(address);
        }
    }

    unsafe fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the contract of `Device::copy`; with unified addressing the driver tells host from device by address.
        unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, self.stream(stream)) }.result().map_err(failed("copy"))
    }

    unsafe fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the contract of `Device::fill`.
        unsafe { result::memset_d8_async(at, byte, bytes as usize, self.stream(stream)) }.map_err(failed("fill"))
    }

    unsafe fn launch(&self, stream: Stream, kernel: &str, grid: Grid, arguments: &[u8]) -> Result<(), GpuError> {
        self.enter()?;
        let function = self.function(kernel)?;
        let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
        let (blocks, threads) = ((grid.blocks, 1, 1), (grid.threads, 1, 1));
        // SAFETY: the kernel takes one structure, whose bytes are `arguments` (`Arguments`, asserted in size on both
        // sides). The caller guarantees the addresses in it.
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
        self.enter()?;
        let event =
            result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT).map_err(failed("create an event"))?;
        let id = {
            let mut handles = self.handles();
            handles.last_event += 1;
            let id = Event(handles.last_event);
            handles.events.insert(id, event);
            id
        };
        // SAFETY: both live as long as `self`.
        unsafe { result::event::record(event, self.stream(stream)) }.map_err(failed("record"))?;
        Ok(id)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        self.enter()?;
        let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live as long as `self`.
        unsafe { result::stream::wait_event(self.stream(stream), self.event(event), flags) }.map_err(failed("wait"))
    }

    fn wait_on_host(&self, event: Event) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the event lives until `quiesce`.
        unsafe { result::event::synchronize(self.event(event)) }.map_err(failed("wait on the host"))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream(stream)) }.map_err(failed("synchronize"))
    }

    fn quiesce(&self) {
        let _ = self.enter();
        let _ = result::ctx::synchronize();
        for (_, event) in self.handles().events.drain() {
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
