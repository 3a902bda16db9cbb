//! Predicts the time of a join on a device: bytes over the link, bytes through device memory, work of the host,
//! launches.
//!
//! The join is bound by the link (paper, section 6.2.3), so the model counts what crosses it. Kernels are counted by
//! the bytes that they move through device memory, at half of the rate of a copy. **Nothing here has been fitted to a
//! GPU**: `scripts/gpu-suite` prints each prediction beside the measurement, so that it can be fitted.
//!
//! ```text
//!   first pass    host ── keys, if the device counts ──▶ │ host ── tuples ──▶ device ── spilled share ──▶ host
//!   second pass   host ── spilled share ──▶ device: count, partition, join ── rows ──▶ host
//! ```

use super::device::Properties;
use super::machine::Description;
use super::options::{Feed, GpuOptions, Histogram, Partitioner, Scheme, Tuning};
use super::{Driver, GpuError, Plan};

/// The join whose time is predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Tuples of the build side.
    pub build_rows: u64,
    /// Tuples of the probe side.
    pub probe_rows: u64,
    /// The number of pieces in which they come; the second pass goes over the whole build side for each.
    pub probes: u64,
    /// Payload words a tuple.
    pub words: u32,
    /// Rows that come back to the host; 0 for sums.
    pub rows: u64,
    /// Whether the inputs lie in pinned memory; the host copies others there.
    pub is_pinned: bool,
    /// Threads of the host.
    pub threads: usize,
}

/// A predicted time and its phases, which add up to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of each phase.
    pub phases: Vec<(&'static str, f64)>,
    /// Share of the partitions that the device's memory holds.
    pub cached_share: f64,
}

/// Bytes a second that one thread of the host copies, or scatters, between arrays in memory.
const HOST_COPY_BYTES_PER_S: f64 = 8e9;
/// Bytes that a tuple moves in a random access to device memory: a sector of 32 bytes is read, and written again where
/// it changes.
const SECTOR_BYTES: f64 = 32.0;

/// The options that suit the device and the work: the feed, the place of the histogram, and sizes in proportion to the
/// inputs.
pub fn tuned(device: &Description, work: &Work) -> GpuOptions {
    let link = device.to_device_bytes_per_s;
    GpuOptions {
        feed: if device.kernel_read_bytes_per_s > link { Feed::Kernels } else { Feed::CopyEngine },
        histogram: if host_read(device, work) > link { Histogram::Host } else { Histogram::Device },
        materialize: work.rows > 0,
        tuning: Tuning::for_rows(work.build_rows.max(work.probe_rows), device.is_emulation),
        ..GpuOptions::default()
    }
}

fn host_read(device: &Description, work: &Work) -> f64 {
    device.host_read_bytes_per_s.min(work.threads as f64 * HOST_COPY_BYTES_PER_S)
}

/// The predicted time of the join.
///
/// # Errors
/// [`GpuError::OutOfMemory`] if the join has no room on the device.
pub fn predict(
    driver: Driver,
    device: &Description,
    work: &Work,
    options: &GpuOptions,
) -> Result<Prediction, GpuError> {
    let properties = Properties {
        name: String::new(),
        multiprocessors: device.multiprocessors,
        shared_bytes_max: device.shared_bytes_max,
        memory_bytes: device.memory_bytes,
        free_bytes: device.free_bytes,
        is_emulation: device.is_emulation,
    };
    let plan = Plan::new(&properties, options, work.words, work.build_rows, work.probe_rows)?;
    let (build, tuples) = (work.build_rows as f64, (work.build_rows + work.probe_rows) as f64);
    let input_bytes = tuples * plan.tuple_bytes as f64;
    let launches =
        tuples / plan.chunk_tuples as f64 * 2.0 + (1u64 << plan.first_bits) as f64 * 12.0 * work.probes.max(1) as f64;

    let staging_rate = (work.threads as f64 * HOST_COPY_BYTES_PER_S).min(device.host_read_bytes_per_s / 2.0);
    // The host copies unpinned input while the link transfers, so the slower of the two counts.
    let over_link = |bytes: f64| {
        let link = match options.feed {
            Feed::Kernels if work.is_pinned => device.kernel_read_bytes_per_s,
            _ => device.to_device_bytes_per_s,
        };
        bytes / if work.is_pinned { link } else { link.min(staging_rate) }
    };
    let counting = match options.histogram {
        Histogram::Device => over_link(8.0 * tuples),
        Histogram::Host => 8.0 * tuples / host_read(device, work),
    };
    let kernel_rate = device.device_bytes_per_s / 2.0;
    let rows_out = (work.rows * 16 * u64::from(work.words)) as f64 / device.from_device_bytes_per_s;
    // Bytes of the second pass, which goes over the build side at every probe. Kernels count, partition (read and
    // write) and join.
    let second_bytes = input_bytes + plan.tuple_bytes as f64 * build * work.probes.saturating_sub(1) as f64;
    let second_kernels = 4.0 * second_bytes / kernel_rate;

    let (mut phases, cached_share) = match driver {
        Driver::Triton => {
            let cached_share = (plan.cache_bytes as f64 / input_bytes).min(1.0);
            let spilled = input_bytes * (1.0 - cached_share);
            let second_level = if options.partitioner == Partitioner::Hierarchical { 2.0 } else { 0.0 };
            let first = over_link(input_bytes)
                .max(spilled / device.from_device_bytes_per_s)
                .max((input_bytes + spilled) / device.both_bytes_per_s)
                .max((2.0 + second_level) * input_bytes / kernel_rate);
            let second = ((1.0 - cached_share) * second_bytes / device.to_device_bytes_per_s).max(second_kernels);
            (vec![("count", counting), ("first pass", first), ("second pass and join", second)], cached_share)
        }
        Driver::CpuPartitioned => {
            let scattering = 2.0 * input_bytes / staging_rate;
            let second = (second_bytes / device.to_device_bytes_per_s).max(second_kernels);
            let counting = 8.0 * tuples / host_read(device, work);
            (vec![("count", counting), ("first pass", scattering), ("second pass and join", second)], 0.0)
        }
        Driver::NoPartition => {
            let slots = match options.scheme {
                Scheme::Perfect { key_min, key_max } => key_max.wrapping_sub(key_min) as f64 + 1.0,
                _ => (work.build_rows * 2).next_power_of_two() as f64,
            };
            let table_bytes = slots * plan.tuple_bytes as f64;
            if table_bytes > device.free_bytes as f64 {
                return Err(GpuError::OutOfMemory { wanted_bytes: table_bytes as u64, free_bytes: device.free_bytes });
            }
            let sectors = 1.0 + (8.0 * f64::from(work.words) / SECTOR_BYTES).ceil();
            let building = 2.0 * build * sectors * SECTOR_BYTES / kernel_rate;
            let probing = (tuples - build) * sectors * SECTOR_BYTES / kernel_rate;
            let link_share = |rows: f64| over_link(rows * plan.tuple_bytes as f64);
            (vec![("table", link_share(build).max(building)), ("probe", link_share(tuples - build).max(probing))], 1.0)
        }
    };
    phases.push(("rows", rows_out));
    phases.push(("launches", launches * device.launch_s));
    Ok(Prediction { seconds: phases.iter().map(|phase| phase.1).sum(), phases, cached_share })
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn predicted(
        driver: Driver,
        build_rows: u64,
        probe_rows: u64,
        cache_gib: Option<u64>,
    ) -> Result<Prediction, GpuError> {
        let device = Description::published_h100();
        let work = Work { build_rows, probe_rows, probes: 1, words: 1, rows: 0, is_pinned: true, threads: 16 };
        let options = GpuOptions { cache_bytes_max: cache_gib.map(|gib| gib << 30), ..tuned(&device, &work) };
        predict(driver, &device, &work, &options)
    }

    #[test]
    fn no_join_is_faster_than_the_link() {
        for size in [128, 512, 2048] {
            for driver in Driver::ALL {
                let Ok(whole) = predicted(driver, size * M, size * M, None) else {
                    assert_eq!((driver, size), (Driver::NoPartition, 2048), "the one table that has no room");
                    continue;
                };
                let link_bound = (2 * size * M * 16) as f64 / 55e9;
                assert!(whole.seconds >= link_bound, "{driver:?} {size} M: {whole:?}");
            }
        }
    }

    #[test]
    fn more_cache_is_never_slower_and_more_rows_never_faster() {
        let seconds: Vec<f64> = [0, 8, 16, 32, 64]
            .map(|gib| predicted(Driver::Triton, 2048 * M, 2048 * M, Some(gib)).unwrap().seconds)
            .into();
        assert!(seconds.windows(2).all(|pair| pair[1] <= pair[0]), "{seconds:?}");
        assert!(seconds[4] < seconds[0] * 0.8, "spilling costs something: {seconds:?}");
        let grown: Vec<f64> =
            [1, 16, 128, 1024].map(|size| predicted(Driver::Triton, size * M, size * M, None).unwrap().seconds).into();
        assert!(grown.windows(2).all(|pair| pair[1] > pair[0]), "{grown:?}");
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused() {
        let device = Description { free_bytes: 40 << 30, ..Description::published_h100() };
        let work = Work {
            build_rows: 2048 * M,
            probe_rows: 2048 * M,
            probes: 1,
            words: 1,
            rows: 0,
            is_pinned: true,
            threads: 16,
        };
        let refused = predict(Driver::NoPartition, &device, &work, &tuned(&device, &work));
        assert!(matches!(refused, Err(GpuError::OutOfMemory { .. })), "{refused:?}");
    }

    #[test]
    fn a_slow_host_lets_the_device_count() {
        let work = Work { build_rows: M, probe_rows: M, probes: 1, words: 1, rows: 0, is_pinned: true, threads: 16 };
        let fast = Description::published_h100();
        let slow = Description { host_read_bytes_per_s: 20e9, ..fast.clone() };
        assert_eq!(tuned(&fast, &work).histogram, Histogram::Host);
        assert_eq!(tuned(&slow, &work).histogram, Histogram::Device);
    }
}
