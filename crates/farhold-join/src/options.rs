//! The means that a join may use.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Algorithm, MemoryPool, Run};

/// The progress of a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows taken from the build side.
    pub build_rows: u64,
    /// Rows taken from the probe side.
    pub probe_rows: u64,
    /// Rows handed out.
    pub output_rows: u64,
    /// Bytes written to spill files, of both sides and all rounds.
    pub spilled_bytes: u64,
    /// Pairs of spilled partitions still to be joined.
    pub pending_partitions: u64,
}

/// Called with the progress of a join, after every batch and at its end.
pub type OnProgress = dyn Fn(Progress) + Send + Sync;

/// Where the cost model may place a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Devices {
    /// On the CPU only; no GPU is looked for.
    Cpu,
    /// On this machine's GPU too, if there is one (feature `gpu`).
    #[default]
    Any,
}

/// The means of a join.
#[derive(Clone)]
pub struct JoinOptions {
    /// Threads, hash seed, cancel token.
    pub run: Run,
    /// The memory budget, which other joins may share.
    pub pool: Arc<MemoryPool>,
    /// The directory to which partitions are spilled. Files have no name there: they are gone when they are closed,
    /// however the process ends.
    pub spill_directory: PathBuf,
    /// The algorithm. Without one, the cost model chooses.
    pub algorithm: Option<&'static dyn Algorithm>,
    /// Where the cost model may place it. A given algorithm runs on its own device.
    pub devices: Devices,
    /// The expected number of probe rows, for the cost model.
    pub probe_rows_expected: Option<u64>,
    /// The most rows of an output batch.
    pub batch_rows_max: usize,
    /// The most bytes of an output batch, unless a single row is longer. At most `i32::MAX`, so that 32-bit offsets hold.
    pub batch_bytes_max: usize,
    /// Called after every batch and at the end.
    pub on_progress: Option<Arc<OnProgress>>,
    /// The most joins into which [`Join::split`](crate::Join::split) divides it. Each beyond the first takes
    /// [`SHARE_BYTES_MIN`](crate::SHARE_BYTES_MIN) of the budget from the start, until it is known that nothing spills.
    pub shares: usize,
}

impl JoinOptions {
    /// One thread, the system's directory for temporary files, the model's choice, batches of 8192 rows.
    pub fn new(pool: Arc<MemoryPool>) -> Self {
        Self {
            run: Run::default(),
            pool,
            spill_directory: std::env::temp_dir(),
            algorithm: None,
            devices: Devices::default(),
            probe_rows_expected: None,
            batch_rows_max: 8192,
            batch_bytes_max: i32::MAX as usize,
            on_progress: None,
            shares: 1,
        }
    }
}

impl fmt::Debug for JoinOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinOptions")
            .field("run", &self.run)
            .field("pool", &self.pool)
            .field("spill_directory", &self.spill_directory)
            .field("algorithm", &self.algorithm)
            .field("devices", &self.devices)
            .field("probe_rows_expected", &self.probe_rows_expected)
            .field("batch_rows_max", &self.batch_rows_max)
            .field("batch_bytes_max", &self.batch_bytes_max)
            .field("shares", &self.shares)
            .finish_non_exhaustive()
    }
}
