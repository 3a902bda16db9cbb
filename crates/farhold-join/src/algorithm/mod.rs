//! How two columns of 64-bit keys are joined: the contract and the list of algorithms.
//!
//! A join of raw columns has two steps. [`Algorithm::build`] makes a [`Table`] of the build side. The table is then
//! probed, for a [`Sum`] or for the pairs themselves. The table owns what it needs; the probe side is only borrowed.
//!
//! ```text
//!   build keys, payloads ── build ──▶ Table ── sum ───▶ count and sums of the payloads of all pairs (all threads)
//!                                       │
//!   probe keys, payloads ───────────────┴── pairs ──▶ (build payload, probe payload), a limited number a call
//! ```
//!
//! A payload is any 64-bit word; with row numbers as payloads the pairs are pairs of row ids. Keys are compared as
//! words. The meaning of a key, nulls, kinds of join and memory budgets belong to the layer above ([`crate::Join`]).
//!
//! **The caller guarantees** that `memory_bytes` of the shape is free before `build`.
//! **An algorithm guarantees** that every pair comes exactly once, in any order; that the run ends within one morsel of
//! a raised cancel token; that building a table over rows of equal keys does not take quadratic time; and that
//! [`Matches::First`] gives the same build payload for the same key each time a table is asked.

mod dense;
pub mod nested_loop;
pub mod no_partition;
pub mod on_gpu;
pub mod radix;

#[cfg(test)]
mod conformance;

pub use crate::columns::{Columns, Sum};
use std::any::Any;
use std::fmt;

use crate::cost::Expected;
use crate::{JoinError, Run};

/// Every algorithm, the oracle first. The algorithms of a GPU are listed on every machine;
/// [`Algorithm::check_available`] says where they can run.
pub static ALL: [&dyn Algorithm; 6] = [
    &nested_loop::NestedLoop,
    &no_partition::NoPartition,
    &on_gpu::CPU_PARTITIONED,
    &on_gpu::NO_PARTITION,
    &on_gpu::TRITON,
    &radix::Radix,
];

/// The algorithms that can run on this machine.
pub fn available() -> impl Iterator<Item = &'static dyn Algorithm> {
    ALL.into_iter().filter(|algorithm| algorithm.check_available().is_ok())
}

/// The algorithms of the CPU for any number of rows.
pub(crate) fn scalable() -> impl Iterator<Item = &'static dyn Algorithm> {
    let is_scalable = |it: &&dyn Algorithm| !it.is_on_gpu() && it.build_rows_estimated_max() == usize::MAX;
    ALL.into_iter().filter(is_scalable)
}

/// The algorithm with this name.
pub fn by_name(name: &str) -> Option<&'static dyn Algorithm> {
    ALL.into_iter().find(|algorithm| algorithm.name() == name)
}

/// What an algorithm must know to compute its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tuples of the build side.
    pub build_rows: usize,
    /// Tuples of the probe side that are probed in one call.
    pub probe_rows: usize,
    /// Threads of the run.
    pub threads: usize,
}

impl Shape {
    /// A build side of `build_rows` tuples, probed with as many tuples at a time as the algorithm wants.
    pub fn of(algorithm: &dyn Algorithm, build_rows: usize, threads: usize) -> Self {
        Self { build_rows, probe_rows: algorithm.probe_rows_wanted(build_rows), threads }
    }
}

/// As [`Algorithm::memory_bytes`], when each of `probers` threads probes with [`Algorithm::probe_rows_wanted`] tuples
/// at once.
pub(crate) fn memory_bytes_of_all(algorithm: &dyn Algorithm, build_rows: usize, threads: usize, probers: usize) -> u64 {
    let shape = Shape::of(algorithm, build_rows, threads.max(probers));
    let with_one = algorithm.memory_bytes(shape);
    let without = algorithm.memory_bytes(Shape { probe_rows: 0, ..shape });
    with_one + (probers as u64).saturating_sub(1) * with_one.saturating_sub(without)
}

/// Which pairs are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matches {
    /// All pairs.
    All,
    /// At most one pair for each probe tuple; for the same key always the same build tuple.
    First,
}

/// Pairs that a call of [`Table::pairs`] has found: parallel columns, at most `limit` long.
#[derive(Debug)]
pub struct Pairs {
    /// Payloads of the build side.
    pub build: Vec<u64>,
    /// Payloads of the probe side.
    pub probe: Vec<u64>,
    limit: usize,
}

impl Pairs {
    /// Room for `limit` pairs, at least one.
    pub fn with_limit(limit: usize) -> Self {
        let limit = limit.max(1);
        Self { build: Vec::with_capacity(limit), probe: Vec::with_capacity(limit), limit }
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.build.len()
    }

    /// Whether it holds no pair.
    pub fn is_empty(&self) -> bool {
        self.build.is_empty()
    }

    /// Whether there is no room for a further pair.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.build.len() >= self.limit
    }

    /// The number of further pairs for which there is room.
    pub fn room(&self) -> usize {
        self.limit - self.build.len()
    }

    /// Forgets the pairs, keeps the room.
    pub fn clear(&mut self) {
        self.build.clear();
        self.probe.clear();
    }

    /// Adds one pair. The caller must have checked [`Pairs::is_full`].
    #[inline(always)]
    pub fn push(&mut self, build: u64, probe: u64) {
        debug_assert!(!self.is_full());
        self.build.push(build);
        self.probe.push(probe);
    }
}

/// The position of an enumeration of pairs. Start with the default; it belongs to one table and one probe side.
#[derive(Default)]
pub struct Cursor {
    /// The probe tuple that is next (or, for an algorithm that reorders them, its position in that order).
    pub row: usize,
    /// The place among that tuple's candidates at which the enumeration continues.
    pub position: usize,
    /// Whether everything has been enumerated.
    pub is_done: bool,
    /// State of the algorithm between calls, such as the partitioned probe side.
    pub kept: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor {{ row: {}, position: {}, is_done: {} }}", self.row, self.position, self.is_done)
    }
}

/// A way to join.
pub trait Algorithm: Send + Sync {
    /// Its name in options, EXPLAIN, benches and documentation.
    fn name(&self) -> &'static str;

    /// An upper bound of all bytes that [`Algorithm::build`], its table and one probe of that shape allocate.
    fn memory_bytes(&self, shape: Shape) -> u64;

    /// Checks that it can run on this machine.
    ///
    /// # Errors
    /// [`JoinError::Unavailable`] says why not; no other algorithm runs in its place.
    fn check_available(&self) -> Result<(), JoinError> {
        Ok(())
    }

    /// The number of probe tuples that are worth gathering for one probe, because every probe rearranges them or goes
    /// past the whole build side; 0 if any number is as good.
    fn probe_rows_wanted(&self, _build_rows: usize) -> usize {
        0
    }

    /// Nanoseconds that building the table and probing it once take, as predicted. `None` where it cannot run: without a
    /// GPU, or without room on it or in the budget.
    fn predicted_ns(&self, join: &Expected<'_>) -> Option<f64>;

    /// Why it is the cheapest, in one sentence, where it is.
    fn reason(&self, join: &Expected<'_>) -> String;

    /// Build rows that it may get where the number of probe rows is an estimate: few if its costs grow with the product.
    fn build_rows_estimated_max(&self) -> usize {
        usize::MAX
    }

    /// Whether it runs on a GPU, which moves keys and row numbers itself.
    fn is_on_gpu(&self) -> bool {
        false
    }

    /// Makes the table of the build side.
    ///
    /// # Errors
    /// Too little memory, a cancelled run, or a device that fails.
    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError>;
}

/// A build side, ready to be probed any number of times, also by several threads at once.
pub trait Table: Send + Sync {
    /// The aggregate over all pairs of the table with `probe`, on all threads of the run.
    ///
    /// # Errors
    /// As for [`Algorithm::build`].
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError>;

    /// Appends pairs until `pairs` is full or the enumeration is done (`cursor.is_done`). Further calls must pass the
    /// same columns.
    ///
    /// # Errors
    /// As for [`Algorithm::build`].
    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError>;

    /// Whether probes of several threads wait for each other, so that each should have all threads of the run.
    fn takes_turns(&self) -> bool {
        false
    }

    /// How the keys are found, for EXPLAIN: "list", "perfect", "ranked", "unchained", "chained".
    fn scheme(&self) -> &'static str;

    /// Bytes of host memory that the table holds.
    fn memory_bytes(&self) -> u64;

    /// Why the table continued elsewhere than its algorithm says: a GPU that was busy, too small, or failed.
    fn fallback(&self) -> Option<&str> {
        None
    }
}

impl fmt::Debug for dyn Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for dyn Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table {{ scheme: {}, memory_bytes: {} }}", self.scheme(), self.memory_bytes())
    }
}
