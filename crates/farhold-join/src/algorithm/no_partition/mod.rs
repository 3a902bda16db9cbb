//! One table for the whole build side, probed at random with prefetches; the probe side is not moved.
//!
//! Unique keys that fill an interval index an array of payloads (`perfect.rs`, and `narrow.rs` where payloads are row
//! numbers). Keys in an interval with holes, or that occur more than once, are counted by bits in it (`ranked.rs`). All
//! others go into an unchained table (`unchained.rs`). The join makes one pass over the probe side. It is therefore the
//! better one wherever the table is near the caches, few probe rows have a match, or tuples are wide. The radix join
//! wins on big uniform inputs (Bandle, Giceva, Neumann: "To Partition, or Not to Partition", SIGMOD 2021).

mod narrow;
mod perfect;
mod ranked;
mod unchained;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::dense::Interval;
use super::{Algorithm, Columns, Cursor, Pairs, Shape, Sum, Table};
use crate::cost::Expected;
use crate::{JoinError, Run};

/// See the module.
#[derive(Debug)]
pub struct NoPartition;

impl Algorithm for NoPartition {
    fn name(&self) -> &'static str {
        "no_partition"
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        // An array of payloads is smaller than the larger of these two.
        unchained::memory_bytes(shape.build_rows, shape.threads).max(ranked::memory_bytes(shape.build_rows))
    }

    fn predicted_ns(&self, join: &Expected<'_>) -> Option<f64> {
        Some(join.ns(join.costs_of(self.name())?))
    }

    fn reason(&self, join: &Expected<'_>) -> String {
        format!("{} cost less than partitioning both sides", accesses(join))
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        let Some(interval) = Interval::of(build.keys(), Interval::BITS_SPARSITY_MAX, run)? else {
            return Ok(Box::new(unchained::Unchained::build(build, run)?));
        };
        let is_array = interval.is_filled(build.len(), Interval::ARRAY_SPARSITY_MAX);
        if narrow::holds(build.payloads(), run)? {
            return match is_array.then(|| narrow::Narrow::build(build, interval, run)).transpose()?.flatten() {
                Some(table) => Ok(Box::new(table)),
                None => Ok(Box::new(ranked::Ranked::<u32>::build(build, interval, run)?)),
            };
        }
        match is_array.then(|| perfect::Perfect::build(build, interval, run)).transpose()?.flatten() {
            Some(table) => Ok(Box::new(table)),
            None => Ok(Box::new(ranked::Ranked::<u64>::build(build, interval, run)?)),
        }
    }
}

/// What its table costs, in words, for the reason why it is chosen or not.
pub(super) fn accesses(join: &Expected<'_>) -> String {
    let table_bytes = join.costs_of(NoPartition.name()).map_or(0.0, |costs| costs.bytes * join.build_rows as f64);
    let (mib, l3_mib) = ((table_bytes as u64) >> 20, join.machine.l3_bytes >> 20);
    format!("random accesses to a table of {mib} MiB beside {l3_mib} MiB of cache")
}

/// Enumerates the pairs of a table in which a key has at most one payload. `find` returns whether the key is present,
/// and its payload. No branch depends on the result.
#[inline(always)]
fn unique_pairs(
    find: impl Fn(u64) -> (bool, u64),
    probe: Columns<'_>,
    cursor: &mut Cursor,
    pairs: &mut Pairs,
    run: &Run,
) -> Result<(), JoinError> {
    while cursor.row < probe.len() && !pairs.is_full() {
        run.cancel.check()?;
        let start = pairs.len();
        let rows = cursor.row..(cursor.row + pairs.room().min(MORSEL)).min(probe.len());
        pairs.build.resize(start + rows.len(), 0);
        pairs.probe.resize(start + rows.len(), 0);
        let mut at = start;
        for (&key, &payload) in probe.keys()[rows.clone()].iter().zip(&probe.payloads()[rows.clone()]) {
            let (is_found, build) = find(key);
            pairs.build[at] = build;
            pairs.probe[at] = payload;
            at += usize::from(is_found);
        }
        pairs.build.truncate(at);
        pairs.probe.truncate(at);
        cursor.row = rows.end;
    }
    cursor.is_done = cursor.row == probe.len();
    Ok(())
}

/// Probe tuples that a worker takes at once.
const MORSEL: usize = 1 << 15;

/// Sums over morsels of the probe side, which the workers take in turn.
fn sum_in_morsels(rows: usize, run: &Run, sum_of: impl Fn(Range<usize>) -> Sum + Sync) -> Result<Sum, JoinError> {
    let next = AtomicUsize::new(0);
    let sums = run.on_all(|_| {
        let mut sums = Vec::new();
        loop {
            run.cancel.check()?;
            let start = next.fetch_add(MORSEL, Ordering::Relaxed);
            if start >= rows {
                return Ok(sums.into_iter().sum::<Sum>());
            }
            sums.push(sum_of(start..(start + MORSEL).min(rows)));
        }
    })?;
    Ok(sums.into_iter().sum())
}
