//! The radix join: both sides are partitioned until the table of a build partition fits the second-level cache.
//!
//! ```text
//!   build ── partition ──▶ R0 R1 R2 ...          once
//!   probe ── partition ──▶ S0 S1 S2 ...          for each probe
//!                          tasks (Ri, part of Si): a table of Ri in the worker's cache, probed by that part
//! ```
//!
//! Keys that fill an interval are partitioned by offset, and a partition's table is an array (perfect hashing). Other
//! keys are partitioned by hash, and the table holds them in the order of their buckets, as it does where a key of an
//! interval occurs twice. Payloads of 32 bits, such as row numbers, are partitioned as tuples of 8 bytes with an offset
//! of 32 bits, and as tuples of 12 bytes with a hash. All others are tuples of 16 bytes. Hot probe partitions are split
//! among the workers. Each part is at least as long as the build partition, because every part builds its table again.
//! Source: the CPU baseline of the Triton join (SIGMOD 2022, sections 2.2 and 6.1), after Balkesen et al. (ICDE 2013).

mod local;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use self::local::Local;
use super::dense::{ByOffset, Interval};
use super::{Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table, no_partition};
use crate::chunks::{self, Sliced};
use crate::cost::Expected;
use crate::hash::{hash, top};
use crate::partition::{ByHash, MediumTuple, NarrowTuple, Tuple, WideTuple};
use crate::widest::widest;
use crate::{JoinError, Run};

/// See the module.
#[derive(Debug)]
pub struct Radix;

/// Build tuples of a sorted partition: 16 bytes each and 4 to 8 bytes of buckets are 320 to 384 KiB of a second-level
/// cache of 1 MiB.
const SORTED_ROWS_LOG: u32 = 14;
/// Slots of a perfect partition: 128 or 256 KiB of payloads.
const PERFECT_SLOTS_LOG: u32 = 15;
/// The shortest part of a probe partition that is a task.
const TASK_ROWS_MIN: usize = 1 << 16;
/// The cost of histograms and write-combining buffers, however few the rows are.
const START_NS: f64 = 20_000.0;

/// How keys are divided among partitions and found in one.
#[derive(Debug, Clone, Copy)]
enum Scheme {
    Sorted { seed: u64 },
    Perfect { by: ByOffset, seed: u64 },
}

impl Scheme {
    fn bits(self, rows: usize) -> u32 {
        match self {
            Self::Sorted { .. } => sorted_bits(rows),
            Self::Perfect { by, .. } => by.bits_max().saturating_sub(PERFECT_SLOTS_LOG),
        }
    }

    /// `None` if these tuples have no room for all codes or payloads.
    fn partition<T: Tuple>(self, columns: Columns<'_>, bits: u32, run: &Run) -> Result<Option<Sliced<T>>, JoinError> {
        match self {
            Self::Sorted { seed } => chunks::partition(columns, ByHash(seed), bits, run),
            Self::Perfect { by, .. } if T::CODE_MAX < by.code_max() => Ok(None),
            Self::Perfect { by, .. } => chunks::partition(columns, by, bits, run),
        }
    }
}

fn sorted_bits(rows: usize) -> u32 {
    rows.next_power_of_two().trailing_zeros().saturating_sub(SORTED_ROWS_LOG)
}

/// A side of the join, partitioned.
enum Side {
    Narrow(Sliced<NarrowTuple>),
    Medium(Sliced<MediumTuple>),
    Wide(Sliced<WideTuple>),
}

impl Side {
    /// Partitions the columns, in the narrowest tuples in which they fit.
    fn new(columns: Columns<'_>, scheme: Scheme, bits: u32, run: &Run) -> Result<Self, JoinError> {
        let small = match scheme {
            Scheme::Sorted { .. } => scheme.partition(columns, bits, run)?.map(Self::Medium),
            Scheme::Perfect { .. } => scheme.partition(columns, bits, run)?.map(Self::Narrow),
        };
        if let Some(small) = small {
            return Ok(small);
        }
        let wide = scheme.partition(columns, bits, run)?;
        Ok(Self::Wide(wide.expect("wide tuples have room for any code and payload")))
    }
}

impl Algorithm for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        let bits = sorted_bits(shape.build_rows);
        chunks::partition_bytes(shape.build_rows, bits, shape.threads)
            + chunks::partition_bytes(shape.probe_rows, bits, shape.threads)
            + shape.threads as u64 * local::memory_bytes(shape.build_rows)
    }

    fn predicted_ns(&self, join: &Expected<'_>) -> Option<f64> {
        let costs = join.costs_of(self.name())?;
        // Keys are read for the histogram, rows are read, tuples are written and read again.
        let row_bytes = 8.0 + 16.0 + 2.0 * costs.bytes;
        let stream_ns = (join.build_rows as f64 + join.probe_rows as f64) * row_bytes / join.machine.bytes_per_s * 1e9;
        Some(START_NS + join.ns(costs).max(stream_ns))
    }

    fn reason(&self, join: &Expected<'_>) -> String {
        format!("{} cost more than partitioning both sides", no_partition::accesses(join))
    }

    fn probe_rows_wanted(&self, build_rows: usize) -> usize {
        build_rows.clamp(1 << 13, 1 << 22)
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        let seed = run.seed;
        let scheme = match Interval::of(build.keys(), Interval::ARRAY_SPARSITY_MAX, run)? {
            Some(interval) => Scheme::Perfect { by: ByOffset::new(interval), seed },
            None => Scheme::Sorted { seed },
        };
        let bits = scheme.bits(build.len());
        Ok(match Side::new(build, scheme, bits, run)? {
            Side::Narrow(build) => Box::new(RadixTable { build, scheme, bits }),
            Side::Medium(build) => Box::new(RadixTable { build, scheme, bits }),
            Side::Wide(build) => Box::new(RadixTable { build, scheme, bits }),
        })
    }
}

struct RadixTable<B: Tuple> {
    build: Sliced<B>,
    scheme: Scheme,
    bits: u32,
}

/// A build partition, and the slices of the probe partition with which a worker probes it.
struct Task {
    partition: usize,
    slices: Range<usize>,
}

impl<B: Tuple> RadixTable<B> {
    fn tasks<P: Tuple>(&self, probe: &Sliced<P>, threads: usize) -> Vec<Task> {
        let total = probe.rows(0..probe.slices(probe.count() - 1).end);
        let share = (total / threads / 4).max(TASK_ROWS_MIN);
        let mut tasks = Vec::with_capacity(self.build.count());
        for partition in 0..self.build.count() {
            let build_rows = self.build.rows(self.build.slices(partition));
            if build_rows == 0 {
                continue;
            }
            let step = share.max(build_rows);
            let slices = probe.slices(partition);
            let (mut start, mut rows) = (slices.start, 0);
            for slice in slices.clone() {
                rows += probe.len_of(slice);
                if rows >= step || slice + 1 == slices.end {
                    tasks.push(Task { partition, slices: start..slice + 1 });
                    (start, rows) = (slice + 1, 0);
                }
            }
        }
        tasks
    }

    /// Makes `local` the table of a partition.
    fn build_local(&self, local: &mut Local<B>, partition: usize) {
        let slices = self.build.slices(partition);
        let rows = self.build.rows(slices.clone());
        widest!(|_| local.build(self.build.each(slices), rows, self.scheme, partition, self.bits));
    }

    fn sum_of<P: Tuple>(&self, probe: &Sliced<P>, run: &Run) -> Result<Sum, JoinError> {
        let (tasks, next) = (self.tasks(probe, run.threads), AtomicUsize::new(0));
        let sums = run.on_all(|_| {
            let (mut local, mut sum) = (Local::default(), Sum::default());
            while let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) {
                run.cancel.check()?;
                self.build_local(&mut local, task.partition);
                let of_task = widest!(|vectors| {
                    probe.each(task.slices.clone()).try_fold(Sum::default(), |sum, slice| {
                        run.cancel.check()?;
                        Ok::<_, JoinError>([sum, local.sum(slice, vectors)].into_iter().sum())
                    })
                })?;
                sum = [sum, of_task].into_iter().sum();
            }
            Ok(sum)
        })?;
        Ok(sums.into_iter().sum())
    }

    fn pairs_of<P: Tuple>(
        &self,
        probe: &Sliced<P>,
        matches: Matches,
        (at, local): (&mut At, &mut Local<B>),
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<bool, JoinError> {
        while at.partition < self.build.count() {
            let slices = if self.build.slices(at.partition).is_empty() { 0..0 } else { probe.slices(at.partition) };
            let slice = slices.start + at.slice;
            if slice >= slices.end {
                *at = At { partition: at.partition + 1, ..At::default() };
                continue;
            }
            run.cancel.check()?;
            if !at.is_built {
                self.build_local(local, at.partition);
                at.is_built = true;
            }
            if !local.pairs(probe.slice(slice), matches, (&mut at.row, &mut at.position), pairs) {
                return Ok(false);
            }
            (at.slice, at.row, at.position) = (at.slice + 1, 0, 0);
        }
        Ok(true)
    }
}

/// The position of an enumeration of pairs.
#[derive(Default)]
struct At {
    partition: usize,
    /// Whether the worker's table is that of the partition.
    is_built: bool,
    /// Number of a slice of the probe partition.
    slice: usize,
    /// Number of a row of the slice.
    row: usize,
    /// Place in the bucket.
    position: usize,
}

/// State of `pairs` between calls.
struct Probing<B: Tuple> {
    probe: Side,
    at: At,
    local: Local<B>,
}

impl<B: Tuple> Table for RadixTable<B> {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        run.cancel.check()?;
        match Side::new(probe, self.scheme, self.bits, run)? {
            Side::Narrow(probe) => self.sum_of(&probe, run),
            Side::Medium(probe) => self.sum_of(&probe, run),
            Side::Wide(probe) => self.sum_of(&probe, run),
        }
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        run.cancel.check()?;
        if cursor.kept.is_none() {
            let probe = Side::new(probe, self.scheme, self.bits, run)?;
            cursor.kept = Some(Box::new(Probing { probe, at: At::default(), local: Local::<B>::default() }));
        }
        let Some(probing) = cursor.kept.as_mut().and_then(|kept| kept.downcast_mut::<Probing<B>>()) else {
            return Err(JoinError::Invalid("a cursor of another table".into()));
        };
        let place = (&mut probing.at, &mut probing.local);
        cursor.is_done = match &probing.probe {
            Side::Narrow(probe) => self.pairs_of(probe, matches, place, pairs, run)?,
            Side::Medium(probe) => self.pairs_of(probe, matches, place, pairs, run)?,
            Side::Wide(probe) => self.pairs_of(probe, matches, place, pairs, run)?,
        };
        Ok(())
    }

    fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::Sorted { .. } => "sorted",
            Scheme::Perfect { .. } => "perfect",
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.build.bytes()
    }
}
