//! The join without partitioning: one table of the build side in device memory, and the probe side streamed past it (paper,
//! section 6.1, the GPU baseline). Fast while the table fits; it is refused with a typed error when it does not.

use super::context::{COMPUTE, Context, Quiesce};
use super::device::{Buffer, Device, GpuError, Place};
use super::kernels::TableArguments;
use super::options::{GpuOptions, Relation, Scheme};
use super::plan::Plan;
use super::relation::Ring;
use super::{GpuAnswer, Sum, check_widths, pairs::take_rows};

/// Joins on equal keys. `build` is the smaller side. Buckets are not chained here: [`Scheme::Chaining`] means open slots.
///
/// # Errors
/// [`GpuError::OutOfMemory`] if the table, or with `materialize` the rows of one chunk, have no room on the device.
pub fn no_partition(
    device: &dyn Device,
    build: Relation<'_>,
    probe: Relation<'_>,
    options: GpuOptions,
) -> Result<GpuAnswer, GpuError> {
    let words = check_widths(&build, &probe)?;
    let mut answer = GpuAnswer::default();
    if build.is_empty() || probe.is_empty() {
        return Ok(answer);
    }
    let plan = Plan::new(&device.properties()?, &options, words, build.len(), probe.len())?;
    let cx = Context { device, options, plan };
    let _quiesce = Quiesce(device);
    let mut ring = Ring::new(&cx, !(build.is_pinned && probe.is_pinned))?;
    let (name, slots, key_bytes) = if let Scheme::Perfect { key_min, key_max } = options.scheme {
        let slots = key_max.wrapping_sub(key_min).saturating_add(1);
        ("perfect", slots, slots.div_ceil(32).saturating_mul(4))
    } else {
        let slots = (build.len() * 2).next_power_of_two();
        ("linear", slots, slots * 8)
    };
    let payload_bytes = slots.saturating_mul(8 * u64::from(words));
    let free_bytes = device.properties()?.free_bytes.min(options.device_bytes_max.unwrap_or(u64::MAX));
    if payload_bytes.saturating_add(key_bytes) > free_bytes {
        return Err(GpuError::OutOfMemory { wanted_bytes: payload_bytes.saturating_add(key_bytes), free_bytes });
    }
    let keys = Buffer::new(device, Place::Device, key_bytes)?;
    let payloads = Buffer::new(device, Place::Device, payload_bytes)?;
    // Build tuples whose key is the mark of an empty slot; they are counted here, once.
    let spares = build.keys.iter().filter(|&&key| key == u64::MAX).count() as u64;
    let spare = Buffer::new(device, Place::Device, spares * 8 * u64::from(words))?;
    // Aggregate (4 words), row cursor, spare count.
    let outcome = Buffer::new(device, Place::Device, 6 * 8)?;
    let outcome_host = Buffer::new(device, Place::Host, 6 * 8)?;
    let row_bytes = 16 * u64::from(words);
    let rows = Buffer::new(device, Place::Device, plan.result_rows * row_bytes)?;
    let rows_host = Buffer::new(device, Place::Host, plan.result_rows.min(1 << 20) * row_bytes)?;
    let arguments = TableArguments {
        radix: cx.radix(0, 0),
        keys: keys.address(),
        payloads: payloads.address(),
        slots,
        spare: spare.address(),
        spare_count: outcome.at(5 * 8, 8),
        spare_capacity: spares,
        aggregate: outcome.address(),
        rows: rows.address(),
        rows_cursor: outcome.at(4 * 8, 8),
        rows_capacity: plan.result_rows,
        ..TableArguments::default()
    };
    cx.fill(COMPUTE, keys.address(), if name == "perfect" { 0 } else { 0xff }, key_bytes)?;
    cx.fill(COMPUTE, outcome.address(), 0, outcome.bytes())?;
    let mut grid = cx.grid(0);
    grid.threads = grid.threads.min(512);
    grid.blocks *= 4; // no shared memory: as many blocks as a multiprocessor holds at 512 threads
    let build_kernel = format!("table_build_{name}");
    ring.stream(&cx, &build, true, |source, _, _| {
        cx.launch_wide(COMPUTE, &build_kernel, grid, &TableArguments { source, ..arguments })
    })?;

    let outcome_now = || {
        cx.copy(COMPUTE, outcome_host.address(), outcome.address(), outcome.bytes())?;
        device.synchronize(COMPUTE)?;
        // SAFETY: the copy has ended and wrote all of these words.
        Ok(<[u64; 6]>::try_from(unsafe { outcome_host.words(0, 6) }).expect("six words"))
    };
    if outcome_now()?[3] > 0 {
        return Err(GpuError::NotPerfect);
    }
    let result = if options.materialize { "materialize" } else { "sum" };
    let probe_kernel = format!("table_probe_{name}_{result}");
    ring.stream(&cx, &probe, true, |source, _, _| {
        cx.launch_wide(COMPUTE, &probe_kernel, grid, &TableArguments { source, ..arguments })?;
        if !options.materialize {
            return Ok(());
        }
        // Rows of this chunk go before the next one comes.
        let count = outcome_now()?[4];
        if count > plan.result_rows {
            return Err(GpuError::OutOfMemory { wanted_bytes: count * row_bytes, free_bytes: rows.bytes() });
        }
        take_rows(&cx, COMPUTE, &rows, &rows_host, count, &mut answer)?;
        cx.fill(COMPUTE, outcome.at(4 * 8, 8), 0, 8)
    })?;
    let [pairs, build_sum, probe_sum, ..] = outcome_now()?;
    answer.add(Sum { pairs, build: build_sum, probe: probe_sum });
    Ok(answer)
}
