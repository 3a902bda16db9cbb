//! Measures the joins on a GPU and prints one JSON object a line: `scripts/gpu-suite` runs it and draws the plots.
//!
//! `gpu_suite CUBINS SECONDS`: kernels from the folder CUBINS (`-`: those of this binary, or compiled by NVRTC), and no
//! new measurement after SECONDS. `gpu_suite --small SECONDS` runs every section with tiny inputs, and on the emulation
//! where it is built in and no GPU is present. It shows that the suite works, and measures nothing.
//! `gpu_suite --modelled` prints what the cost model predicts for an H100 from published rates, and asks no device.
//! Exit status 3: no GPU is present, and nothing was measured. Exit status 1: a section failed; the results of the
//! others are printed.

mod modelled;
mod suite;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use farhold_join::gpu::{Device, Gpu, GpuError};

use suite::{Sizes, measure};

fn open(cubins: Option<&Path>) -> Result<Arc<dyn Device>, GpuError> {
    #[cfg(feature = "gpu")]
    return Ok(Arc::new(farhold_join::gpu::Cuda::open(0, cubins)?));
    #[cfg(not(feature = "gpu"))]
    Err(GpuError::Absent(format!("this binary was built without the feature `gpu` (kernels: {cubins:?})")))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--modelled") {
        modelled::print();
        return ExitCode::SUCCESS;
    }
    let is_small = arguments.first().is_some_and(|first| first == "--small");
    let cubins = arguments.first().filter(|folder| *folder != "-" && !is_small).map(Path::new);
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(480.0);
    let device = if is_small { Gpu::of_this_machine().map(|gpu| Arc::clone(gpu.device())) } else { open(cubins) };
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu_suite: {error}; nothing was measured");
            return ExitCode::from(3);
        }
    };
    let sizes = if is_small { Sizes::small() } else { Sizes::of_this_host() };
    let failed = measure(&device, &sizes, seconds, &mut |line| println!("{line}"));
    if failed > 0 {
        eprintln!("gpu_suite: {failed} sections failed");
    }
    ExitCode::from(u8::from(failed > 0))
}
