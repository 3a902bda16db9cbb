//! Joins on a GPU: the Triton join, the join without partitioning, and the CPU-partitioned join, over the kernels in
//! `kernels/` (Lutz, Breß, Zeuch, Rabl, Markl: "Triton Join", SIGMOD 2022).
//!
//! ```text
//!   triton   cpu_partitioned   no_partition       the kinds of join
//!      │            │              │
//!   relation ─── pairs ────────────┤              first pass; second pass and join
//!      │            │              │
//!   context, plan, options ────────┤              sizes, launches
//!      ▼            ▼              ▼
//!   device (the contract) ◀── cuda (feature `gpu`) | emulation (feature `emulation`, tests only)
//! ```
//!
//! The drivers use devices only through the trait, so that the tests run the very code that runs on a GPU. Every error
//! is a [`GpuError`] after which nothing is left behind. The caller decides whether to join on the CPU, and must report
//! it.

mod context;
mod cpu_partitioned;
#[cfg(feature = "gpu")]
mod cuda;
mod device;
#[cfg(feature = "emulation")]
mod emulation;
#[expect(missing_docs, reason = "the words are documented where both sides read them: kernels/arguments.h")]
pub mod kernels;
mod machine;
mod model;
mod no_partition;
mod options;
mod pairs;
mod plan;
mod relation;
#[cfg(all(test, feature = "emulation"))]
mod tests;
mod triton;

use std::sync::Arc;

use self::context::Setup;
use crate::{Run, Sum};

#[cfg(feature = "gpu")]
pub use cuda::Cuda;
pub use device::{Buffer, Device, Event, GpuError, Grid, Mapping, Place, Properties, STREAMS, Stream};
#[cfg(feature = "emulation")]
pub use emulation::{Emulation, Fault};
pub use machine::{Description, Gpu};
pub use model::{Prediction, Work, predict, tuned};
pub use options::{Feed, GpuOptions, Histogram, Layout, Partitioner, Relation, Scheme, Tuning};
pub use plan::Plan;

/// A way to join on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The device partitions both sides, spilling to host memory, and joins them pair by pair.
    Triton,
    /// One table in device memory.
    NoPartition,
    /// The CPU partitions, the device joins.
    CpuPartitioned,
}

impl Driver {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Triton, Self::NoPartition, Self::CpuPartitioned];

    /// Its name among all algorithms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Triton => "triton",
            Self::NoPartition => "gpu_no_partition",
            Self::CpuPartitioned => "cpu_partitioned",
        }
    }

    /// Brings the build side to the device, for a probe side of about `probe_rows`.
    ///
    /// # Errors
    /// [`GpuError`]; nothing is left behind, and the caller may join on the CPU instead.
    pub fn build(
        self,
        device: &Arc<dyn Device>,
        build: Relation<'_>,
        probe_rows: u64,
        options: GpuOptions,
        run: &Run,
    ) -> Result<Box<dyn Built>, GpuError> {
        let Some(words) = build.words() else { return Err(wrong_width()) };
        let plan = Plan::new(&device.properties()?, &options, words, build.len(), probe_rows)?;
        let setup = Setup { device: Arc::clone(device), options, plan };
        let built: Box<dyn Built> = match self {
            _ if build.is_empty() => return Ok(Box::new(Nothing)),
            Self::Triton => Box::new(triton::Triton::build(setup, &build, probe_rows, run)?),
            Self::NoPartition => Box::new(no_partition::NoPartition::build(setup, &build, run)?),
            Self::CpuPartitioned => Box::new(cpu_partitioned::CpuPartitioned::build(setup, &build, run)?),
        };
        Ok(Box::new(Checked { built, words, gives_rows: options.materialize }))
    }

    /// Joins on equal keys, all at once. `build` is the smaller side.
    ///
    /// # Errors
    /// As for [`Driver::build`].
    pub fn join(
        self,
        device: &Arc<dyn Device>,
        build: Relation<'_>,
        probe: Relation<'_>,
        options: GpuOptions,
        run: &Run,
    ) -> Result<GpuAnswer, GpuError> {
        if build.is_empty() || probe.is_empty() {
            return if probe.words().is_some() { Ok(GpuAnswer::default()) } else { Err(wrong_width()) };
        }
        let wanted = if options.materialize { Wanted::Rows { max: u64::MAX } } else { Wanted::Sum };
        let built = self.build(device, build, probe.len(), options, run)?;
        let mut answer = built.probe(probe, wanted, run)?;
        answer.profile.extend_from_slice(built.profile());
        Ok(answer)
    }
}

/// The result that a probe must give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Sums only.
    Sum,
    /// Rows, for a build side that was planned for them (`GpuOptions::materialize`).
    Rows {
        /// The most rows; with more, the probe fails with [`GpuError::TooManyRows`].
        max: u64,
    },
}

/// A build side on a device. It holds memory there until it is dropped.
pub trait Built: Send + Sync {
    /// Joins with a probe side that is not empty and has as many payload columns.
    ///
    /// # Errors
    /// [`GpuError`]; after [`GpuError::TooManyRows`] and [`GpuError::Cancelled`] it may be probed again.
    fn probe(&self, probe: Relation<'_>, wanted: Wanted, run: &Run) -> Result<GpuAnswer, GpuError>;

    /// With `profile`: milliseconds of each kernel that brought it to the device.
    fn profile(&self) -> &[(String, f64)] {
        &[]
    }

    /// Bytes of host memory that it holds.
    fn host_bytes(&self) -> u64 {
        0
    }
}

/// Refuses probes for which its build side has no kernels and no room.
struct Checked {
    built: Box<dyn Built>,
    words: u32,
    gives_rows: bool,
}

impl Built for Checked {
    fn probe(&self, probe: Relation<'_>, wanted: Wanted, run: &Run) -> Result<GpuAnswer, GpuError> {
        if probe.words() != Some(self.words) {
            return Err(wrong_width());
        }
        if matches!(wanted, Wanted::Rows { .. }) && !self.gives_rows {
            return Err(GpuError::Invalid("the build side was not planned for rows (`materialize`)".into()));
        }
        self.built.probe(probe, wanted, run)
    }

    fn profile(&self) -> &[(String, f64)] {
        self.built.profile()
    }

    fn host_bytes(&self) -> u64 {
        self.built.host_bytes()
    }
}

/// A build side without tuples.
struct Nothing;

impl Built for Nothing {
    fn probe(&self, _: Relation<'_>, _: Wanted, _: &Run) -> Result<GpuAnswer, GpuError> {
        Ok(GpuAnswer::default())
    }
}

/// The result of a join on a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuAnswer {
    /// Matches and the sums of all payload words of both sides, once a match.
    pub sum: Sum,
    /// With `materialize`: for each match the build side's payload words, then the probe side's. Matches come in any
    /// order.
    pub rows: Vec<u64>,
    /// Pages of the partitions that lay in device memory.
    pub pages_cached: u64,
    /// Pages that were spilled to host memory.
    pub pages_spilled: u64,
    /// Pieces that were cut because their rows had no room.
    pub pieces_halved: u64,
    /// With `profile`: milliseconds of each kernel, those of the probe before those of the build side; 0 where times
    /// mean nothing (the emulation).
    pub profile: Vec<(String, f64)>,
}

impl GpuAnswer {
    fn count(&mut self, part: Sum) {
        self.sum = [self.sum, part].into_iter().sum();
    }
}

fn wrong_width() -> GpuError {
    GpuError::Invalid("both sides need the same number of payload columns (1, 3 or 7), each as long as the keys".into())
}
