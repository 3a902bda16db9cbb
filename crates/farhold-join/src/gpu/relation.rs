//! The first pass: a relation in host memory becomes partitions in pages, some in device memory, the others spilled.
//!
//! ```text
//!   host columns ── copy engine ──▶ ring in device memory ── kernel ──▶ [dev][host][dev][host]...  pages of all partitions
//! ```
//!
//! Cached and spilled pages alternate evenly, so that every later partition finds the same share of its pages in the device
//! and the link is busy all the time (paper, section 5.3, figure 12). The paper maps both kinds of pages into one virtual
//! range; here a directory of page addresses does that, which every driver allows.

use std::ops::Range;

use super::context::{COMPUTE, COPY, Context};
use super::device::{Buffer, Event, GpuError, Place};
use super::kernels::{HistogramArguments, PartitionArguments, PrefixSumArguments, Radix, Rows, Source};
use super::options::{Feed, Histogram, Partitioner, Relation};
use super::plan::RING_SLOTS;

/// A page of tuples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub address: u64,
    pub place: Place,
}

/// A relation after the first pass.
pub struct Partitioned<'d> {
    pub begins: Vec<u64>,
    pub counts: Vec<u64>,
    pub pages: Vec<Page>,
    /// Page addresses, in the device.
    directory: Buffer<'d>,
    _cached: Buffer<'d>,
    _spilled: Buffer<'d>,
}

impl Partitioned<'_> {
    /// The positions of a partition.
    pub fn positions(&self, partition: usize) -> Range<u64> {
        self.begins[partition]..self.begins[partition] + self.counts[partition]
    }

    /// Pages that lie in the device.
    pub fn pages_cached(&self) -> u64 {
        self.pages.iter().filter(|page| page.place == Place::Device).count() as u64
    }
}

/// Whether page `i` of `pages` is one of the `cached`, which are spread evenly.
fn is_cached(i: u64, pages: u64, cached: u64) -> bool {
    (i + 1) * cached / pages > i * cached / pages
}

/// Lays out pages for `positions` tuples, at most `cache_bytes` of them in the device.
pub fn lay_out<'d>(
    cx: &Context<'d>,
    begins: Vec<u64>,
    counts: Vec<u64>,
    positions: u64,
    cache_bytes: u64,
) -> Result<Partitioned<'d>, GpuError> {
    let page_bytes = cx.plan.tuple_bytes << cx.options.tuning.page_shift;
    let pages = positions.div_ceil(1 << cx.options.tuning.page_shift).max(1);
    let cached = (cache_bytes / page_bytes).min(pages);
    let cached_buffer = Buffer::new(cx.device, Place::Device, cached * page_bytes)?;
    let spilled_buffer = Buffer::new(cx.device, Place::Host, (pages - cached) * page_bytes)?;
    let (mut device_pages, mut host_pages) = (0, 0);
    let pages: Vec<Page> = (0..pages)
        .map(|i| {
            let (buffer, next, place) = if is_cached(i, pages, cached) {
                (&cached_buffer, &mut device_pages, Place::Device)
            } else {
                (&spilled_buffer, &mut host_pages, Place::Host)
            };
            *next += 1;
            Page { address: buffer.at((*next - 1) * page_bytes, page_bytes), place }
        })
        .collect();
    let directory = Buffer::new(cx.device, Place::Device, pages.len() as u64 * 8)?;
    let mut staging = Buffer::new(cx.device, Place::Host, directory.bytes())?;
    // SAFETY: nothing has been queued on this memory yet.
    let words = unsafe { staging.words_mut(0, pages.len()) };
    words.iter_mut().zip(&pages).for_each(|(word, page)| *word = page.address);
    cx.copy(COMPUTE, directory.address(), staging.address(), directory.bytes())?;
    cx.device.synchronize(COMPUTE)?;
    Ok(Partitioned { begins, counts, pages, directory, _cached: cached_buffer, _spilled: spilled_buffer })
}

/// The ring through which host columns come into the device.
pub struct Ring<'d> {
    slots: Vec<Slot<'d>>,
    next: usize,
}

struct Slot<'d> {
    device: Buffer<'d>,
    bounce: Option<Buffer<'d>>,
    copied: Option<Event>,
    used: Option<Event>,
}

impl<'d> Ring<'d> {
    pub fn new(cx: &Context<'d>, needs_bounce: bool) -> Result<Self, GpuError> {
        let bytes = cx.plan.chunk_tuples * cx.plan.tuple_bytes;
        let slot = || {
            let bounce = if needs_bounce { Some(Buffer::new(cx.device, Place::Host, bytes)?) } else { None };
            Ok(Slot { device: Buffer::new(cx.device, Place::Device, bytes)?, bounce, copied: None, used: None })
        };
        Ok(Self { slots: (0..RING_SLOTS).map(|_| slot()).collect::<Result<_, GpuError>>()?, next: 0 })
    }

    /// Calls `kernel` with each piece of the relation as a source, and whether it is the first and the last. Work that
    /// `kernel` queues goes to [`COMPUTE`].
    pub fn stream(
        &mut self,
        cx: &Context<'d>,
        relation: &Relation<'_>,
        with_payloads: bool,
        mut kernel: impl FnMut(Source, bool, bool) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let len = relation.len();
        if relation.is_pinned && cx.options.feed == Feed::Kernels {
            return kernel(in_place(relation), true, true);
        }
        let mut begin = 0;
        loop {
            let count = cx.plan.chunk_tuples.min(len - begin);
            let source = self.fill(cx, relation, begin, count, with_payloads)?;
            kernel(source, begin == 0, begin + count == len)?;
            let slot = (self.next + self.slots.len() - 1) % self.slots.len();
            self.slots[slot].used = Some(cx.device.record(COMPUTE)?);
            begin += count;
            if begin == len {
                return Ok(());
            }
        }
    }

    fn fill(
        &mut self,
        cx: &Context<'d>,
        relation: &Relation<'_>,
        begin: u64,
        count: u64,
        with_payloads: bool,
    ) -> Result<Source, GpuError> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % RING_SLOTS as usize;
        if let Some(used) = slot.used {
            cx.device.wait(COPY, used)?;
        }
        if let (Some(copied), Some(_)) = (slot.copied, &slot.bounce) {
            cx.device.wait_on_host(copied)?;
        }
        let payload_columns = if with_payloads { relation.payloads.len() / relation.keys.len().max(1) } else { 0 };
        let stride = cx.plan.chunk_tuples;
        for column in 0..=payload_columns {
            let from = match column {
                0 => &relation.keys[begin as usize..][..count as usize],
                _ => &relation.payloads[(column - 1) * relation.keys.len() + begin as usize..][..count as usize],
            };
            let offset = column as u64 * stride * 8;
            let to = slot.device.at(offset, count * 8);
            let address = match &mut slot.bounce {
                Some(bounce) => {
                    // SAFETY: the last copy out of this slot has ended (waited for above).
                    unsafe { bounce.words_mut(offset, from.len()) }.copy_from_slice(from);
                    bounce.at(offset, count * 8)
                }
                None => from.as_ptr() as u64,
            };
            if count > 0 {
                cx.copy(COPY, to, address, count * 8)?;
            }
        }
        let copied = cx.device.record(COPY)?;
        slot.copied = Some(copied);
        cx.device.wait(COMPUTE, copied)?;
        let keys = slot.device.address();
        let payloads = if payload_columns > 0 { keys + stride * 8 } else { 0 };
        Ok(Source { keys, payloads, payload_stride: stride, rows: Rows::default(), first: begin, count })
    }
}

fn in_place(relation: &Relation<'_>) -> Source {
    let payloads = if relation.payloads.is_empty() { 0 } else { relation.payloads.as_ptr() as u64 };
    let count = relation.len();
    Source {
        keys: relation.keys.as_ptr() as u64,
        payloads,
        payload_stride: count,
        rows: Rows::default(),
        first: 0,
        count,
    }
}

/// Partitions a relation by the radix.
pub fn partition<'d>(
    cx: &Context<'d>,
    ring: &mut Ring<'d>,
    relation: &Relation<'_>,
    radix: Radix,
    cache_bytes: u64,
) -> Result<Partitioned<'d>, GpuError> {
    let places = Places::new(cx, radix.bits)?;
    match cx.options.histogram {
        Histogram::Device => {
            cx.fill(COMPUTE, places.counts(), 0, places.partitions * 8)?;
            ring.stream(cx, relation, false, |source, _, _| {
                count_on_device(cx, COMPUTE, "histogram_columns", source, radix, places.counts())
            })?;
        }
        Histogram::Host => {
            let mut counts = Buffer::new(cx.device, Place::Host, places.partitions * 8)?;
            // SAFETY: nothing has been queued on this memory yet.
            let words = unsafe { counts.words_mut(0, places.partitions as usize) };
            words.fill(0);
            relation.keys.iter().for_each(|&key| words[radix.partition(key)] += 1);
            cx.copy(COMPUTE, places.counts(), counts.address(), counts.bytes())?;
            cx.device.synchronize(COMPUTE)?;
        }
    }
    let (begins, counts, positions) = places.settle(cx)?;
    let relation_pages = lay_out(cx, begins, counts, positions, cache_bytes)?;
    let out = Rows {
        base: 0,
        pages: relation_pages.directory.address(),
        page_shift: cx.options.tuning.page_shift,
        reserved: 0,
    };
    partition_columns(cx, ring, relation, radix, &places, out)?;
    cx.device.synchronize(COMPUTE)?;
    Ok(relation_pages)
}

/// Runs the partitioner over the relation; `places` are settled and `out` has room for its positions.
fn partition_columns<'d>(
    cx: &Context<'d>,
    ring: &mut Ring<'d>,
    relation: &Relation<'_>,
    radix: Radix,
    places: &Places<'_>,
    out: Rows,
) -> Result<(), GpuError> {
    let plan = &cx.plan;
    let second_level_buffers = match cx.options.partitioner {
        Partitioner::Hierarchical => u64::from(plan.blocks) * (places.partitions + u64::from(plan.threads / 32)),
        _ => 0,
    };
    let second_level = Buffer::new(
        cx.device,
        Place::Device,
        second_level_buffers * u64::from(plan.second_level_tuples) * plan.tuple_bytes,
    )?;
    let state = Buffer::new(cx.device, Place::Device, second_level_buffers * 4)?;
    let shared_bytes = match cx.options.partitioner {
        Partitioner::Standard => 0,
        Partitioner::Linear => cx.linear_batch_bytes() + places.partitions * 16 + 16,
        Partitioner::Shared => places.partitions * (u64::from(plan.first_buffer_tuples) * plan.tuple_bytes + 8),
        Partitioner::Hierarchical => places.partitions * (u64::from(plan.first_buffer_tuples) * plan.tuple_bytes + 12),
    };
    let kernel = format!("partition_{}_columns", cx.options.partitioner.name());
    ring.stream(cx, relation, true, |source, is_first, is_last| {
        let arguments = PartitionArguments {
            source,
            radix,
            out,
            fronts: places.fronts(),
            backs: places.backs(),
            second_level: second_level.address(),
            second_level_state: state.address(),
            buffer_tuples: plan.first_buffer_tuples,
            second_level_tuples: plan.second_level_tuples,
            resume: u32::from(!is_first),
            keep: u32::from(!is_last),
        };
        cx.launch_wide(COMPUTE, &kernel, cx.grid(shared_bytes), &arguments)
    })?;
    cx.device.synchronize(COMPUTE)
}

/// Queues a histogram of the source.
pub fn count_on_device(
    cx: &Context<'_>,
    stream: super::device::Stream,
    kernel: &str,
    source: Source,
    radix: Radix,
    counts: u64,
) -> Result<(), GpuError> {
    let partitions = 1u64 << radix.bits;
    let replicas = ((32 << 10) / (partitions * 4)).clamp(1, u64::from(cx.plan.threads / 32));
    let arguments = HistogramArguments { source, radix, counts, replicas: replicas as u32, reserved: 0 };
    cx.launch_wide(stream, kernel, cx.grid(replicas * partitions * 4), &arguments)
}

/// Counts, begins, fronts and backs of the partitions of one pass, in the device.
pub struct Places<'d> {
    memory: Buffer<'d>,
    pub partitions: u64,
}

impl<'d> Places<'d> {
    pub fn new(cx: &Context<'d>, bits: u32) -> Result<Self, GpuError> {
        let partitions = 1 << bits;
        Ok(Self { memory: Buffer::new(cx.device, Place::Device, (4 * partitions + 1) * 8)?, partitions })
    }
    pub fn counts(&self) -> u64 {
        self.memory.address()
    }
    pub fn begins(&self) -> u64 {
        self.memory.at(self.partitions * 8, (self.partitions + 1) * 8)
    }
    pub fn fronts(&self) -> u64 {
        self.memory.at((2 * self.partitions + 1) * 8, self.partitions * 8)
    }
    pub fn backs(&self) -> u64 {
        self.memory.at((3 * self.partitions + 1) * 8, self.partitions * 8)
    }

    /// Queues the prefix sum of the counts.
    pub fn place(&self, cx: &Context<'_>, stream: super::device::Stream) -> Result<(), GpuError> {
        let arguments = PrefixSumArguments {
            counts: self.counts(),
            begins: self.begins(),
            fronts: self.fronts(),
            backs: self.backs(),
            partitions: self.partitions as u32,
            align_tuples: cx.plan.align_tuples() as u32,
        };
        let grid =
            super::device::Grid { blocks: 1, threads: cx.plan.threads, shared_bytes: u64::from(cx.plan.threads) * 8 };
        cx.launch(stream, "prefix_sum", grid, &arguments)
    }

    /// Begins, counts and the end of all partitions, on the host.
    fn settle(&self, cx: &Context<'_>) -> Result<(Vec<u64>, Vec<u64>, u64), GpuError> {
        self.place(cx, COMPUTE)?;
        let words = (2 * self.partitions + 1) as usize;
        let host = Buffer::new(cx.device, Place::Host, words as u64 * 8)?;
        cx.copy(COMPUTE, host.address(), self.memory.address(), host.bytes())?;
        cx.device.synchronize(COMPUTE)?;
        // SAFETY: the copy has ended.
        let words = unsafe { host.words(0, words) };
        let (counts, begins) = words.split_at(self.partitions as usize);
        Ok((begins[..counts.len()].to_vec(), counts.to_vec(), begins[counts.len()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_are_spread_evenly() {
        for pages in 1..60 {
            for cached in 0..=pages {
                let places: Vec<bool> = (0..pages).map(|i| is_cached(i, pages, cached)).collect();
                assert_eq!(places.iter().filter(|&&is| is).count() as u64, cached);
                for window in 1..=pages {
                    let counts = places.windows(window as usize).map(|w| w.iter().filter(|&&is| is).count());
                    let (min, max) = counts.fold((usize::MAX, 0), |(min, max), n| (min.min(n), max.max(n)));
                    assert!(max - min <= 1, "{cached} of {pages}, window {window}");
                }
            }
        }
    }
}
