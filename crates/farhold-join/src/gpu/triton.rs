//! The Triton join: the device radix-partitions both relations into pages that spill to host memory, then joins them
//! pair by pair (Lutz, Breß, Zeuch, Rabl, Markl: "Triton Join", SIGMOD 2022).

use super::context::Setup;
use super::device::{GpuError, Place};
use super::options::Relation;
use super::relation::{Partitioned, Ring, partition};
use super::{Built, GpuAnswer, Wanted, pairs};
use crate::Run;

/// A build side in partitions.
pub struct Triton {
    setup: Setup,
    build: Partitioned,
    profile: Vec<(String, f64)>,
    /// The most device memory for the probe side's partitions.
    probe_cache_bytes: u64,
}

impl Triton {
    /// Partitions the build side. The cache is shared in proportion to the tuples, of which `probe_rows` are expected
    /// on the probe side.
    pub fn build(setup: Setup, build: &Relation<'_>, probe_rows: u64, run: &Run) -> Result<Self, GpuError> {
        let cx = setup.turn(run);
        let cache_bytes = cx.plan.cache_bytes;
        let share = u128::from(build.len()) * u128::from(cache_bytes) / u128::from(build.len() + probe_rows);
        let mut ring = Ring::new(&cx, !build.is_pinned)?;
        let partitioned = partition(&cx, &mut ring, build, cx.radix(0, cx.plan.first_bits), share as u64)?;
        let profile = cx.profile();
        drop((ring, cx));
        Ok(Self { setup, build: partitioned, profile, probe_cache_bytes: cache_bytes - share as u64 })
    }
}

impl Built for Triton {
    fn probe(&self, probe: Relation<'_>, wanted: Wanted, run: &Run) -> Result<GpuAnswer, GpuError> {
        let mut cx = self.setup.turn(run);
        cx.want(wanted);
        let mut answer = GpuAnswer::default();
        // Others may have taken some of what was left.
        let free_bytes = cx.device.properties()?.free_bytes.saturating_sub(cx.plan.needed_bytes);
        let cache_bytes = self.probe_cache_bytes.min(free_bytes);
        let mut ring = Ring::new(&cx, !probe.is_pinned)?;
        let radix = cx.radix(0, cx.plan.first_bits);
        let probe = partition(&cx, &mut ring, &probe, radix, cache_bytes)?;
        drop(ring);
        for side in [&self.build, &probe] {
            answer.pages_cached += side.pages_cached();
            answer.pages_spilled += side.pages.iter().filter(|page| page.place == Place::Host).count() as u64;
        }
        pairs::join(&cx, &self.build, &probe, &mut answer)?;
        answer.profile = cx.profile();
        Ok(answer)
    }

    fn profile(&self) -> &[(String, f64)] {
        &self.profile
    }

    fn host_bytes(&self) -> u64 {
        self.build.host_bytes()
    }
}
