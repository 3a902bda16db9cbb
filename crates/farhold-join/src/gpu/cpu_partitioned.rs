//! The join whose first pass the CPU does (Sioulas et al.; paper, section 3.1): partitions lie in host memory, and the device
//! fetches, partitions again and joins them pair by pair. The CPU's pass runs on one thread and scatters tuple by tuple.

use super::context::{Context, Quiesce};
use super::device::{Device, GpuError};
use super::kernels::Radix;
use super::options::{GpuOptions, Relation};
use super::plan::Plan;
use super::relation::{Partitioned, lay_out};
use super::{GpuAnswer, check_widths, pairs};

/// Joins on equal keys. `build` is the smaller side.
///
/// # Errors
/// As for [`triton`](super::triton()).
pub fn cpu_partitioned(
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
    let radix = cx.radix(0, plan.first_bits);
    let build = scatter(&cx, &build, radix)?;
    let probe = scatter(&cx, &probe, radix)?;
    answer.pages_spilled = (build.pages.len() + probe.pages.len()) as u64;
    pairs::join(&cx, &build, &probe, &mut answer)?;
    Ok(answer)
}

fn scatter<'d>(cx: &Context<'d>, relation: &Relation<'_>, radix: Radix) -> Result<Partitioned<'d>, GpuError> {
    let mut counts = vec![0u64; 1 << radix.bits];
    relation.keys.iter().for_each(|&key| counts[radix.partition(key)] += 1);
    let mut end = 0;
    let mut begins = Vec::with_capacity(counts.len());
    for count in &counts {
        begins.push(end);
        end += count.next_multiple_of(cx.plan.align_tuples());
    }
    let mut places = begins.clone();
    let partitioned = lay_out(cx, begins, counts, end, 0)?;
    let (shift, words) = (cx.options.tuning.page_shift, cx.plan.words as usize);
    for (row, &key) in relation.keys.iter().enumerate() {
        let place = &mut places[radix.partition(key)];
        let page = partitioned.pages[(*place >> shift) as usize];
        let at = (page.address + (*place & ((1 << shift) - 1)) * cx.plan.tuple_bytes) as *mut u64;
        *place += 1;
        // SAFETY: every page lies in host memory (no cache was given) that this function alone knows, nothing is queued on it,
        // and a page holds `1 << shift` tuples.
        unsafe {
            at.write(key);
            for word in 0..words {
                let payload = if relation.payloads.is_empty() {
                    row as u64
                } else {
                    relation.payloads[word * relation.keys.len() + row]
                };
                at.add(1 + word).write(payload);
            }
        }
    }
    Ok(partitioned)
}
