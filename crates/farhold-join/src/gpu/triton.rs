//! The Triton join: both relations radix-partitioned by the device into pages that spill to host memory, then joined pair by
//! pair (Lutz, Breß, Zeuch, Rabl, Markl: "Triton Join", SIGMOD 2022).

use super::context::{Context, Quiesce};
use super::device::{Device, GpuError, Place};
use super::options::{GpuOptions, Relation};
use super::plan::Plan;
use super::{GpuAnswer, check_widths, pairs, relation};

/// Joins on equal keys. `build` is the smaller side.
///
/// # Errors
/// [`GpuError`]; nothing is left behind, and the caller may join on the CPU instead.
pub fn triton(
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
    let mut ring = relation::Ring::new(&cx, !(build.is_pinned && probe.is_pinned))?;
    let radix = cx.radix(0, plan.first_bits);
    // The cache is shared in proportion to the tuples.
    let build_cache =
        (u128::from(plan.cache_bytes) * u128::from(build.len()) / u128::from(build.len() + probe.len())) as u64;
    let build = relation::partition(&cx, &mut ring, &build, radix, build_cache)?;
    let probe = relation::partition(&cx, &mut ring, &probe, radix, plan.cache_bytes - build_cache)?;
    drop(ring);
    for side in [&build, &probe] {
        answer.pages_cached += side.pages_cached();
        answer.pages_spilled += side.pages.iter().filter(|page| page.place == Place::Host).count() as u64;
    }
    pairs::join(&cx, &build, &probe, &mut answer)?;
    Ok(answer)
}
