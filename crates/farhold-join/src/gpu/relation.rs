//! The first pass: a relation in host memory becomes partitions in pages, some in device memory, the others spilled.
//!
//! ```text
//!   host columns ── copy engine ──▶ ring in device memory ── kernel ──▶ [dev][host][dev][host]...  pages of all partitions
//! ```
//!
//! Cached and spilled pages alternate evenly, so that every later partition finds the same share of its pages in the
//! device and the link is always busy (paper, section 5.3, figure 12). The paper maps both kinds of pages into one
//! virtual range, as [`Layout::Mapped`] does. A directory of page addresses has the same effect with every driver.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::context::{COMPUTE, COPY, Context};
use super::device::{Buffer, Event, GpuError, Mapping, Place, Stream};
use super::kernels::{HistogramArguments, PartitionArguments, PrefixSumArguments, Radix, Rows, Source};
use super::options::{Feed, Histogram, Layout, Partitioner, Relation};
use super::plan::RING_SLOTS;
use crate::Run;

/// A page of tuples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub address: u64,
    pub place: Place,
}

/// A relation after the first pass.
pub struct Partitioned {
    pub begins: Vec<u64>,
    pub counts: Vec<u64>,
    pub pages: Vec<Page>,
    /// The description by which kernels find its tuples.
    rows: Rows,
    page_bytes: u64,
    _memory: Memory,
}

/// The memory of the pages.
enum Memory {
    /// Page addresses in the device, and the pages themselves.
    Directory {
        _addresses: Buffer,
        _cached: Buffer,
        _spilled: Buffer,
    },
    Mapped(#[expect(dead_code, reason = "held until the relation is dropped")] Mapping),
}

impl Partitioned {
    /// The positions of a partition.
    pub fn positions(&self, partition: usize) -> Range<u64> {
        self.begins[partition]..self.begins[partition] + self.counts[partition]
    }

    /// Bytes of the pages that lie in the host.
    pub fn host_bytes(&self) -> u64 {
        (self.pages.len() as u64 - self.pages_cached()) * self.page_bytes
    }

    /// Pages that lie in the device.
    pub fn pages_cached(&self) -> u64 {
        self.pages.iter().filter(|page| page.place == Place::Device).count() as u64
    }
}

/// Whether page `i` of `pages` is one of the `cached` pages, which are spread evenly.
fn is_cached(i: u64, pages: u64, cached: u64) -> bool {
    (i + 1) * cached / pages > i * cached / pages
}

/// Lays out pages for `positions` tuples, with at most `cache_bytes` of them in the device.
pub fn lay_out(
    cx: &Context<'_>,
    begins: Vec<u64>,
    counts: Vec<u64>,
    positions: u64,
    cache_bytes: u64,
) -> Result<Partitioned, GpuError> {
    let page_shift = cx.options.tuning.page_shift;
    let page_bytes = cx.plan.tuple_bytes << page_shift;
    let pages = positions.div_ceil(1 << page_shift).max(1);
    let cached = (cache_bytes / page_bytes).min(pages);
    let places: Vec<Place> =
        (0..pages).map(|i| if is_cached(i, pages, cached) { Place::Device } else { Place::Host }).collect();
    if cx.options.layout == Layout::Mapped
        && cached > 0
        && let Some(mapping) = Mapping::new(cx.device, &places, page_bytes)?
    {
        let at = |i| mapping.address() + i * page_bytes;
        let pages = (0..).zip(places).map(|(i, place)| Page { address: at(i), place }).collect();
        let rows = Rows { base: mapping.address(), ..Rows::default() };
        return Ok(Partitioned { begins, counts, pages, rows, page_bytes, _memory: Memory::Mapped(mapping) });
    }
    let cached_buffer = Buffer::new(cx.device, Place::Device, cached * page_bytes)?;
    let spilled_buffer = Buffer::new(cx.device, Place::Host, (pages - cached) * page_bytes)?;
    let (mut device_pages, mut host_pages) = (0, 0);
    let pages: Vec<Page> = places
        .into_iter()
        .map(|place| {
            let (buffer, next) = match place {
                Place::Device => (&cached_buffer, &mut device_pages),
                Place::Host => (&spilled_buffer, &mut host_pages),
            };
            *next += 1;
            Page { address: buffer.at((*next - 1) * page_bytes, page_bytes), place }
        })
        .collect();
    let addresses = Buffer::new(cx.device, Place::Device, pages.len() as u64 * 8)?;
    let mut staging = Buffer::new(cx.device, Place::Host, addresses.bytes())?;
    // SAFETY: nothing has been queued on this memory yet.
    let words = unsafe { staging.words_mut(0, pages.len()) };
    words.iter_mut().zip(&pages).for_each(|(word, page)| *word = page.address);
    cx.copy(COMPUTE, addresses.address(), staging.address(), addresses.bytes())?;
    cx.device.synchronize(COMPUTE)?;
    let rows = Rows { base: 0, pages: addresses.address(), page_shift, reserved: 0 };
    let memory = Memory::Directory { _addresses: addresses, _cached: cached_buffer, _spilled: spilled_buffer };
    Ok(Partitioned { begins, counts, pages, rows, page_bytes, _memory: memory })
}

/// The ring through which host columns come into the device.
pub struct Ring {
    slots: Vec<Slot>,
    next: usize,
}

struct Slot {
    device: Buffer,
    bounce: Option<Buffer>,
    copied: Option<Event>,
    used: Option<Event>,
}

impl Ring {
    pub fn new(cx: &Context<'_>, needs_bounce: bool) -> Result<Self, GpuError> {
        let bytes = cx.plan.chunk_tuples * cx.plan.tuple_bytes;
        let slot = || {
            let bounce = if needs_bounce { Some(Buffer::new(cx.device, Place::Host, bytes)?) } else { None };
            Ok(Slot { device: Buffer::new(cx.device, Place::Device, bytes)?, bounce, copied: None, used: None })
        };
        Ok(Self { slots: (0..RING_SLOTS).map(|_| slot()).collect::<Result<_, GpuError>>()?, next: 0 })
    }

    /// Calls `kernel` with each piece of the relation as a source, and whether it is the first and whether it is the
    /// last. Work that `kernel` queues goes to [`COMPUTE`].
    pub fn stream(
        &mut self,
        cx: &Context<'_>,
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
        cx: &Context<'_>,
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
                    copy_on_all(unsafe { bounce.words_mut(offset, from.len()) }, from, cx.run)?;
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

/// The number of words below which another thread costs more than it gains.
const WORDS_A_THREAD_MIN: usize = 1 << 16;

/// Copies on all threads of the run: a single thread does not keep up with the link.
fn copy_on_all(to: &mut [u64], from: &[u64], run: &Run) -> Result<(), GpuError> {
    if from.len() < WORDS_A_THREAD_MIN * 2 || run.threads == 1 {
        to.copy_from_slice(from);
        return Ok(());
    }
    let each = from.len().div_ceil(run.threads);
    let parts: Vec<Mutex<_>> = to.chunks_mut(each).zip(from.chunks(each)).map(|part| Mutex::new(Some(part))).collect();
    run.on_all(|worker| {
        let part = parts.get(worker).and_then(|part| part.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some((to, from)) = part {
            to.copy_from_slice(from);
        }
        Ok(())
    })?;
    Ok(())
}

/// For each worker's part of the column, the number of keys in each partition.
pub fn count_on_host(keys: &[u64], radix: Radix, run: &Run) -> Result<Vec<Vec<u64>>, GpuError> {
    Ok(run.on_all(|worker| {
        run.cancel.check()?;
        let mut counts = vec![0; 1 << radix.bits];
        keys[run.part(keys.len(), worker)].iter().for_each(|&key| counts[radix.partition(key)] += 1);
        Ok(counts)
    })?)
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
pub fn partition(
    cx: &Context<'_>,
    ring: &mut Ring,
    relation: &Relation<'_>,
    radix: Radix,
    cache_bytes: u64,
) -> Result<Partitioned, GpuError> {
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
            for part in count_on_host(relation.keys, radix, cx.run)? {
                words.iter_mut().zip(part).for_each(|(word, count)| *word += count);
            }
            cx.copy(COMPUTE, places.counts(), counts.address(), counts.bytes())?;
            cx.device.synchronize(COMPUTE)?;
        }
    }
    let (begins, counts, positions) = places.settle(cx)?;
    let relation_pages = lay_out(cx, begins, counts, positions, cache_bytes)?;
    partition_columns(cx, ring, relation, radix, &places, relation_pages.rows)?;
    cx.device.synchronize(COMPUTE)?;
    Ok(relation_pages)
}

/// Runs the partitioner over the relation. `places` must be settled, and `out` must have room for its positions.
fn partition_columns(
    cx: &Context<'_>,
    ring: &mut Ring,
    relation: &Relation<'_>,
    radix: Radix,
    places: &Places,
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
    stream: Stream,
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
pub struct Places {
    memory: Buffer,
    pub partitions: u64,
}

impl Places {
    pub fn new(cx: &Context<'_>, bits: u32) -> Result<Self, GpuError> {
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
    pub fn place(&self, cx: &Context<'_>, stream: Stream) -> Result<(), GpuError> {
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

    /// Brings begins, counts and the end of all partitions to the host.
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
