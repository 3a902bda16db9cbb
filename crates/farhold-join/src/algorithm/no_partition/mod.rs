//! One table for the whole build side, probed at random with prefetches; the probe side is not moved.
//!
//! Keys that fill an interval and are unique index an array (`perfect.rs`). All others go into an unchained table
//! (`unchained.rs`). Being one pass over the probe side, it is the better one wherever the table is near the caches, the
//! probe side is filtered much, or tuples are wide; the radix join wins on big uniform inputs (Bandle, Giceva, Neumann:
//! "To Partition, or Not to Partition", SIGMOD 2021).

mod perfect;
mod unchained;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::dense::Interval;
use super::{Algorithm, Columns, Shape, Sum, Table};
use crate::{JoinError, Run};

/// See the module.
#[derive(Debug)]
pub struct NoPartition;

impl Algorithm for NoPartition {
    fn name(&self) -> &'static str {
        "no_partition"
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        // The array of an interval is at most 17 bytes a key, which is less.
        unchained::memory_bytes(shape.build_rows, shape.threads)
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        if let Some(interval) = Interval::of(build.keys(), run)?
            && let Some(perfect) = perfect::Perfect::build(build, interval, run)?
        {
            return Ok(Box::new(perfect));
        }
        Ok(Box::new(unchained::Unchained::build(build, run)?))
    }
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
