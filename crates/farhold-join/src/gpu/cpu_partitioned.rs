//! The join whose first pass runs on the CPU (Sioulas et al.; paper, section 3.1). Partitions lie in host memory. The
//! device fetches them, partitions them again and joins them pair by pair. All threads of the run scatter tuples one by
//! one, each to places of its own.

use super::context::{Context, Setup};
use super::device::GpuError;
use super::options::Relation;
use super::relation::{Partitioned, count_on_host, lay_out};
use super::{Built, GpuAnswer, Wanted, pairs};
use crate::Run;

/// A build side in partitions in host memory.
pub struct CpuPartitioned {
    setup: Setup,
    build: Partitioned,
}

impl CpuPartitioned {
    /// Partitions the build side.
    pub fn build(setup: Setup, build: &Relation<'_>, run: &Run) -> Result<Self, GpuError> {
        let cx = setup.turn(run);
        let build = scatter(&cx, build)?;
        drop(cx);
        Ok(Self { setup, build })
    }
}

impl Built for CpuPartitioned {
    fn probe(&self, probe: Relation<'_>, wanted: Wanted, run: &Run) -> Result<GpuAnswer, GpuError> {
        let mut cx = self.setup.turn(run);
        cx.want(wanted);
        let probe = scatter(&cx, &probe)?;
        let pages_spilled = (self.build.pages.len() + probe.pages.len()) as u64;
        let mut answer = GpuAnswer { pages_spilled, ..GpuAnswer::default() };
        pairs::join(&cx, &self.build, &probe, &mut answer)?;
        answer.profile = cx.profile();
        Ok(answer)
    }

    fn host_bytes(&self) -> u64 {
        self.build.host_bytes()
    }
}

fn scatter(cx: &Context<'_>, relation: &Relation<'_>) -> Result<Partitioned, GpuError> {
    let radix = cx.radix(0, cx.plan.first_bits);
    let of_workers = count_on_host(relation.keys, radix, cx.run)?;
    let (mut begins, mut counts, mut end) = (Vec::new(), Vec::new(), 0);
    let mut places = vec![Vec::with_capacity(1 << radix.bits); of_workers.len()];
    for partition in 0..1 << radix.bits {
        begins.push(end);
        let mut place = end;
        for (places, of_worker) in places.iter_mut().zip(&of_workers) {
            places.push(place);
            place += of_worker[partition];
        }
        counts.push(place - end);
        end += (place - end).next_multiple_of(cx.plan.align_tuples());
    }
    let partitioned = lay_out(cx, begins, counts, end, 0)?;
    let (shift, words) = (cx.options.tuning.page_shift, cx.plan.words as usize);
    cx.run.on_all(|worker| {
        cx.run.cancel.check()?;
        let mut places = places[worker].clone();
        for row in cx.run.part(relation.keys.len(), worker) {
            let key = relation.keys[row];
            let place = &mut places[radix.partition(key)];
            let page = partitioned.pages[(*place >> shift) as usize];
            let at = (page.address + (*place & ((1 << shift) - 1)) * cx.plan.tuple_bytes) as *mut u64;
            *place += 1;
            // SAFETY: every page lies in host memory (no cache was given) that only this function knows, and nothing is
            // queued on it. A page holds `1 << shift` tuples, and no two workers have a place in common (`places`).
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
        Ok(())
    })?;
    Ok(partitioned)
}
