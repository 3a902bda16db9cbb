//! What is known of the machine that joins.

use std::fs;
use std::sync::OnceLock;

use crate::gpu::{Description, Gpu};

/// The GPU that the model may choose, with the memory that is free now, or why there is none. It is asked only for
/// joins that are long enough, since the first answer may have to open the device.
pub type AskGpu = fn() -> Result<Description, String>;

/// Caches, bandwidth, GPU and budget of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Second-level cache of a core.
    pub l2_bytes: u64,
    /// Last-level cache.
    pub l3_bytes: u64,
    /// Bytes a second that all cores stream, reads and writes together.
    pub bytes_per_s: f64,
    /// How to ask for the GPU.
    pub gpu: AskGpu,
    /// The most bytes of host memory that a join may take; an algorithm of the GPU that needs more is not chosen.
    pub budget_bytes: u64,
}

/// The machine's own GPU, or the one that was handed over. An emulation that was not handed over is refused.
fn gpu_of_this_machine() -> Result<Description, String> {
    let gpu = Gpu::of_this_machine().map_err(|error| error.to_string())?;
    let described = gpu.describe().map_err(|error| error.to_string())?;
    if gpu.may_be_chosen() { Ok(described) } else { Err(format!("the only GPU is an {}", described.name)) }
}

/// For joins that must stay on the CPU.
pub(crate) fn no_gpu_wanted() -> Result<Description, String> {
    Err("GPUs are switched off".into())
}

impl Machine {
    /// Cache sizes as the system reports them, where it does, and a bandwidth of 50 GB/s.
    pub fn detect() -> Self {
        // The system is asked once: every join of every plan needs the sizes.
        static CACHES: OnceLock<[u64; 2]> = OnceLock::new();
        let cache = |index: u32| {
            let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
            let number: u64 = text.trim().trim_end_matches(['K', 'M']).parse().ok()?;
            Some(if text.contains('M') { number << 20 } else { number << 10 })
        };
        let [l2_bytes, l3_bytes] = *CACHES.get_or_init(|| [cache(2).unwrap_or(1 << 20), cache(3).unwrap_or(32 << 20)]);
        Self { l2_bytes, l3_bytes, bytes_per_s: 50e9, gpu: gpu_of_this_machine, budget_bytes: u64::MAX }
    }

    /// Nanoseconds that a random access into `bytes` costs beyond one to the second-level cache. `memory_ns` is the
    /// cost of a miss of all caches with many misses in flight. Half of the last-level cache is left to other programs.
    pub(crate) fn access_ns(&self, bytes: f64, memory_ns: f64) -> f64 {
        let miss_share = |cache: u64| 1.0 - (cache as f64 / bytes.max(1.0)).min(1.0);
        miss_share(self.l2_bytes) * 2.5 + miss_share(self.l3_bytes / 2) * memory_ns
    }
}
