//! Joins on a GPU: the Triton join, the join without partitioning, and the CPU-partitioned join, over the kernels in
//! `kernels/` (Lutz, Breß, Zeuch, Rabl, Markl: "Triton Join", SIGMOD 2022).
//!
//! ```text
//!   triton   cpu_partitioned   no_partition       what is joined how
//!      │            │              │
//!   relation ─── pairs ────────────┤              first pass; second pass and join
//!      │            │              │
//!   context, plan, options ────────┤              sizes, launches
//!      ▼            ▼              ▼
//!   device (the contract) ◀── cuda (feature `gpu`) | emulation (feature `emulation`, tests only)
//! ```
//!
//! The drivers know devices by the trait alone, so that the tests run the very code that runs on a GPU. Every error is a
//! [`GpuError`] after which nothing is left behind: the caller decides whether to join on the CPU, and says so.

mod context;
mod cpu_partitioned;
#[cfg(feature = "gpu")]
mod cuda;
mod device;
#[cfg(feature = "emulation")]
mod emulation;
#[expect(missing_docs, reason = "the words are described where both sides read them: kernels/arguments.h")]
pub mod kernels;
mod no_partition;
mod options;
mod pairs;
mod plan;
mod relation;
#[cfg(all(test, feature = "emulation"))]
mod tests;
mod triton;

use crate::Sum;

pub use cpu_partitioned::cpu_partitioned;
#[cfg(feature = "gpu")]
pub use cuda::Cuda;
pub use device::{Buffer, Device, Event, GpuError, Grid, Place, Properties, STREAMS, Stream};
#[cfg(feature = "emulation")]
pub use emulation::Emulation;
pub use no_partition::no_partition;
pub use options::{Feed, GpuOptions, Histogram, Partitioner, Relation, Scheme, Tuning};
pub use plan::Plan;
pub use triton::triton;

/// What a join on a device gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuAnswer {
    /// Matches and the sums of all payload words of both sides, once a match.
    pub sum: Sum,
    /// With `materialize`: for each match the build side's payload words, then the probe side's. In any order.
    pub rows: Vec<u64>,
    /// Pages of the partitions that lay in device memory.
    pub pages_cached: u64,
    /// Pages that were spilled to host memory.
    pub pages_spilled: u64,
    /// Pieces whose rows had no room and that were cut.
    pub pieces_halved: u64,
}

impl GpuAnswer {
    fn add(&mut self, part: Sum) {
        self.sum = [self.sum, part].into_iter().sum();
    }
}

fn check_widths(build: &Relation<'_>, probe: &Relation<'_>) -> Result<u32, GpuError> {
    match (build.words(), probe.words()) {
        (Some(words), Some(other)) if words == other || build.is_empty() || probe.is_empty() => Ok(words),
        _ => Err(GpuError::Invalid(
            "both sides need the same number of payload columns (1, 3 or 7), each as long as the keys".into(),
        )),
    }
}
