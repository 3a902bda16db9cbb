//! The join without partitioning: one table of the build side in device memory, past which the probe side is streamed
//! (paper, section 6.1, the GPU baseline). It is fast while the table fits; a table that does not fit is refused with a
//! typed error.

use super::context::{COMPUTE, Context, Setup};
use super::device::{Buffer, GpuError, Grid, Place};
use super::kernels::TableArguments;
use super::options::{Relation, Scheme};
use super::relation::Ring;
use super::{Built, GpuAnswer, Wanted, pairs::take_rows};
use crate::Run;
use crate::columns::Sum;

/// A table in device memory. Buckets are not chained here: [`Scheme::Chaining`] means open slots.
pub struct NoPartition {
    setup: Setup,
    arguments: TableArguments,
    /// Aggregate (4 words), row cursor, spare count.
    outcome: Buffer,
    _table: [Buffer; 3],
}

const OUTCOME_WORDS: u64 = 6;
const REFUSED: usize = 3;
const ROWS: usize = 4;

impl NoPartition {
    /// Makes the table.
    pub fn build(setup: Setup, build: &Relation<'_>, run: &Run) -> Result<Self, GpuError> {
        let cx = setup.turn(run);
        let mut ring = Ring::new(&cx, !build.is_pinned)?;
        let words = u64::from(cx.plan.words);
        let (slots, key_bytes) = if let Scheme::Perfect { key_min, key_max } = cx.options.scheme {
            let slots = key_max.wrapping_sub(key_min).saturating_add(1);
            (slots, slots.div_ceil(32).saturating_mul(4))
        } else {
            let slots = (build.len() * 2).next_power_of_two();
            (slots, slots * 8)
        };
        let wanted_bytes = slots.saturating_mul(8 * words).saturating_add(key_bytes);
        let free_bytes = cx.device.properties()?.free_bytes.min(cx.options.device_bytes_max.unwrap_or(u64::MAX));
        if wanted_bytes > free_bytes {
            return Err(GpuError::OutOfMemory { wanted_bytes, free_bytes });
        }
        let keys = Buffer::new(cx.device, Place::Device, key_bytes)?;
        let payloads = Buffer::new(cx.device, Place::Device, wanted_bytes - key_bytes)?;
        // Build tuples whose key is the mark of an empty slot, counted once here.
        let spares = build.keys.iter().filter(|&&key| key == u64::MAX).count() as u64;
        let spare = Buffer::new(cx.device, Place::Device, spares * 8 * words)?;
        let outcome = Buffer::new(cx.device, Place::Device, OUTCOME_WORDS * 8)?;
        let arguments = TableArguments {
            radix: cx.radix(0, 0),
            keys: keys.address(),
            payloads: payloads.address(),
            slots,
            spare: spare.address(),
            spare_count: outcome.at(5 * 8, 8),
            spare_capacity: spares,
            aggregate: outcome.address(),
            rows_cursor: outcome.at(4 * 8, 8),
            ..TableArguments::default()
        };
        cx.fill(COMPUTE, keys.address(), if is_perfect(&cx) { 0 } else { 0xff }, key_bytes)?;
        cx.fill(COMPUTE, outcome.address(), 0, outcome.bytes())?;
        let kernel = format!("table_build_{}", scheme(&cx));
        ring.stream(&cx, build, true, |source, _, _| {
            cx.launch_wide(COMPUTE, &kernel, grid(&cx), &TableArguments { source, ..arguments })
        })?;
        if read(&cx, &outcome)?[REFUSED] > 0 {
            return Err(if is_perfect(&cx) { GpuError::NotPerfect } else { GpuError::Crowded });
        }
        drop((ring, cx));
        Ok(Self { setup, arguments, outcome, _table: [keys, payloads, spare] })
    }
}

impl Built for NoPartition {
    fn probe(&self, probe: Relation<'_>, wanted: Wanted, run: &Run) -> Result<GpuAnswer, GpuError> {
        let mut cx = self.setup.turn(run);
        cx.want(wanted);
        let cx = cx;
        let mut answer = GpuAnswer::default();
        let mut ring = Ring::new(&cx, !probe.is_pinned)?;
        let (row_bytes, rows_capacity) =
            (16 * u64::from(cx.plan.words), if cx.options.materialize { cx.plan.result_rows } else { 0 });
        let rows = Buffer::new(cx.device, Place::Device, rows_capacity * row_bytes)?;
        let rows_host =
            Buffer::new(cx.device, Place::Host, rows_capacity.min(cx.options.tuning.rows_host_max) * row_bytes)?;
        let arguments = TableArguments { rows: rows.address(), rows_capacity, ..self.arguments };
        let result = if cx.options.materialize { "materialize" } else { "sum" };
        let kernel = format!("table_probe_{}_{result}", scheme(&cx));
        cx.fill(COMPUTE, self.outcome.address(), 0, 5 * 8)?; // all but the spare count
        ring.stream(&cx, &probe, true, |source, _, _| {
            cx.launch_wide(COMPUTE, &kernel, grid(&cx), &TableArguments { source, ..arguments })?;
            if !cx.options.materialize {
                return Ok(());
            }
            // Rows of this chunk are taken before the next chunk comes.
            let count = read(&cx, &self.outcome)?[ROWS];
            if count > rows_capacity {
                return Err(GpuError::TooManyRows { rows_max: rows_capacity });
            }
            take_rows(&cx, COMPUTE, &rows, &rows_host, count, &mut answer)?;
            cx.fill(COMPUTE, self.outcome.at(ROWS as u64 * 8, 8), 0, 8)
        })?;
        let [pairs, build_sum, probe_sum, ..] = read(&cx, &self.outcome)?;
        answer.count(Sum { pairs, build: build_sum, probe: probe_sum });
        answer.profile = cx.profile();
        Ok(answer)
    }
}

fn is_perfect(cx: &Context<'_>) -> bool {
    matches!(cx.options.scheme, Scheme::Perfect { .. })
}

fn scheme(cx: &Context<'_>) -> &'static str {
    if is_perfect(cx) { "perfect" } else { "linear" }
}

/// No shared memory: as many blocks as a multiprocessor holds at 512 threads.
fn grid(cx: &Context<'_>) -> Grid {
    let grid = cx.grid(0);
    Grid { blocks: grid.blocks * 4, threads: grid.threads.min(512), ..grid }
}

/// The outcome so far.
fn read(cx: &Context<'_>, outcome: &Buffer) -> Result<[u64; OUTCOME_WORDS as usize], GpuError> {
    let host = Buffer::new(cx.device, Place::Host, outcome.bytes())?;
    cx.copy(COMPUTE, host.address(), outcome.address(), outcome.bytes())?;
    cx.device.synchronize(COMPUTE)?;
    // SAFETY: the copy has ended and wrote all of these words.
    Ok(unsafe { host.words(0, OUTCOME_WORDS as usize) }.try_into().expect("as many words"))
}
