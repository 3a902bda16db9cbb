//! The radix join: both sides are partitioned until the table of a build partition fits the second level of cache.
//!
//! ```text
//!   build ── partition ──▶ R0 R1 R2 ...          once
//!   probe ── partition ──▶ S0 S1 S2 ...          for each probe
//!                          tasks (Ri, part of Si): a table of Ri in the worker's cache, probed by that part
//! ```
//!
//! Keys that fill an interval are partitioned by offset, and a partition's table is an array (perfect hashing); others by
//! hash, with bucket chaining. A partition whose keys occur twice is chained. Hot probe partitions are split among the
//! workers, each part at least as long as the build partition, whose table every part builds again.
//! Source: the CPU baseline of the Triton join (SIGMOD 2022, sections 2.2 and 6.1), after Balkesen et al. (ICDE 2013).

mod local;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use self::local::Local;
use super::dense::{ByOffset, Interval};
use super::{Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table};
use crate::hash::{hash, top};
use crate::partition::{self, Partitioned, Partitioner, Tuple};
use crate::widest::widest;
use crate::{JoinError, Run};

/// See the module.
#[derive(Debug)]
pub struct Radix;

/// Build tuples of a chained partition: 16 bytes each, 4 of links and 8 to 16 of buckets are 448 to 576 KiB of a second
/// level of 1 MiB.
const CHAINED_ROWS_LOG: u32 = 14;
/// Slots of a perfect partition: 256 KiB of payloads.
const PERFECT_SLOTS_LOG: u32 = 15;
/// The shortest part of a probe partition that is a task.
const TASK_ROWS_MIN: usize = 1 << 16;

/// How keys are spread over partitions and found in one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scheme {
    Chained { seed: u64 },
    Perfect { by: ByOffset, seed: u64 },
}

impl Scheme {
    fn bits(self, rows: usize) -> u32 {
        match self {
            Self::Chained { .. } => chained_bits(rows),
            Self::Perfect { by, .. } => by.bits_max().saturating_sub(PERFECT_SLOTS_LOG),
        }
    }

    fn partition(self, columns: Columns<'_>, bits: u32, run: &Run) -> Result<Partitioned, JoinError> {
        match self {
            Self::Chained { seed } => partition::partition(columns, ByHash(seed), bits, run),
            Self::Perfect { by, .. } => partition::partition(columns, by, bits, run),
        }
    }
}

fn chained_bits(rows: usize) -> u32 {
    rows.next_power_of_two().trailing_zeros().saturating_sub(CHAINED_ROWS_LOG)
}

#[derive(Clone, Copy)]
struct ByHash(u64);

impl Partitioner for ByHash {
    #[inline(always)]
    fn partition(&self, key: u64, bits: u32) -> usize {
        top(hash(key, self.0), bits)
    }
}

impl Algorithm for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        let bits = chained_bits(shape.build_rows);
        partition::partition_bytes(shape.build_rows, bits, shape.threads)
            + partition::partition_bytes(shape.probe_rows, bits, shape.threads)
            + shape.threads as u64 * local::memory_bytes(shape.build_rows)
    }

    fn probe_rows_wanted(&self, build_rows: usize) -> usize {
        build_rows.clamp(1 << 13, 1 << 22)
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        let seed = run.seed;
        let scheme = match Interval::of(build.keys(), Interval::ARRAY_SPARSITY_MAX, run)? {
            Some(interval) => Scheme::Perfect { by: ByOffset::new(interval), seed },
            None => Scheme::Chained { seed },
        };
        let bits = scheme.bits(build.len());
        Ok(Box::new(RadixTable { build: scheme.partition(build, bits, run)?, scheme, bits }))
    }
}

struct RadixTable {
    build: Partitioned,
    scheme: Scheme,
    bits: u32,
}

/// A build partition and the tuples of the probe partition that a worker probes it with.
struct Task {
    partition: usize,
    rows: Range<usize>,
}

impl RadixTable {
    fn tasks(&self, probe: &Partitioned, threads: usize) -> Vec<Task> {
        let total = probe.range(probe.count() - 1).end;
        let share = (total / threads / 4).max(TASK_ROWS_MIN);
        let mut tasks = Vec::with_capacity(self.build.count());
        for partition in 0..self.build.count() {
            let (build_rows, probe_rows) = (self.build.range(partition).len(), probe.range(partition).len());
            if build_rows == 0 || probe_rows == 0 {
                continue;
            }
            let step = share.max(build_rows);
            tasks.extend(
                (0..probe_rows)
                    .step_by(step)
                    .map(|start| Task { partition, rows: start..(start + step).min(probe_rows) }),
            );
        }
        tasks
    }
}

/// What `pairs` keeps between calls.
struct Probing {
    probe: Partitioned,
    partition: usize,
    /// The table of `partition`, once it has been built.
    local: Local,
    is_built: bool,
}

/// Tuples between two looks at the cancel token.
const MORSEL: usize = 1 << 15;

impl Table for RadixTable {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        run.cancel.check()?;
        let probe = self.scheme.partition(probe, self.bits, run)?;
        let (tasks, next) = (self.tasks(&probe, run.threads), AtomicUsize::new(0));
        let sums = run.on_all(|_| {
            let (mut local, mut sums) = (Local::default(), Vec::new());
            while let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) {
                run.cancel.check()?;
                let build = self.build.tuples(task.partition);
                widest(|_| local.build(build, self.scheme, task.partition, self.bits));
                for morsel in probe.tuples(task.partition)[task.rows.clone()].chunks(MORSEL) {
                    run.cancel.check()?;
                    sums.push(widest(|_| local.sum(build, morsel)));
                }
            }
            Ok(sums.into_iter().sum::<Sum>())
        })?;
        Ok(sums.into_iter().sum())
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
            let probe = self.scheme.partition(probe, self.bits, run)?;
            cursor.kept = Some(Box::new(Probing { probe, partition: 0, local: Local::default(), is_built: false }));
        }
        let Some(probing) = cursor.kept.as_mut().and_then(|kept| kept.downcast_mut::<Probing>()) else {
            return Err(JoinError::Invalid("a cursor of another table".into()));
        };
        while probing.partition < self.build.count() {
            let build = self.build.tuples(probing.partition);
            let tuples: &[Tuple] = if build.is_empty() { &[] } else { probing.probe.tuples(probing.partition) };
            if cursor.row < tuples.len() {
                run.cancel.check()?;
                if !probing.is_built {
                    probing.local.build(build, self.scheme, probing.partition, self.bits);
                    probing.is_built = true;
                }
                let place = (&mut cursor.row, &mut cursor.position);
                if !probing.local.pairs(build, tuples, matches, place, pairs, run)? {
                    return Ok(());
                }
            }
            (cursor.row, cursor.position) = (0, 0);
            probing.partition += 1;
            probing.is_built = false;
        }
        cursor.is_done = true;
        Ok(())
    }

    fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::Chained { .. } => "chained",
            Scheme::Perfect { .. } => "perfect",
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.build.bytes()
    }
}
