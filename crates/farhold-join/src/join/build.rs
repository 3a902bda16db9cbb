//! The build side while its rows come in: held as it is, and partitioned once it does not fit.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;

use super::Context;
use super::partitions::{Partitions, ROUTE_BYTES, SpilledPart};
use super::resident::{Resident, take_working_bytes, working_bytes};
use crate::JoinError;
use crate::blocks::{batch_bytes, copies_alone, slices};
use crate::bloom::{BloomBuilder, BloomFilter};
use crate::memory::Reservation;
use crate::pages::trim_heap;
use crate::spec::Keep;
use farhold_planted::Defect;

/// Build rows so far.
pub struct BuildSide {
    round: u32,
    held: VecDeque<RecordBatch>,
    held_bytes: u64,
    held_rows: usize,
    /// The partitions, once the rows have outgrown the memory.
    spilling: Option<Spilling>,
}

struct Spilling {
    partitions: Partitions,
    bloom: Option<BloomBuilder>,
    /// Batches that are distributed together, by all threads.
    group: Vec<RecordBatch>,
    group_bytes: u64,
    group_bytes_max: u64,
}

/// The build side's spilled partitions, which the probe side follows.
pub struct SpilledBuild {
    pub files: Vec<Option<SpilledPart>>,
    pub round: u32,
    /// Contains every build row of the round, the spilled ones too.
    pub bloom: Option<BloomFilter>,
}

impl BuildSide {
    pub fn new(round: u32) -> Self {
        Self { round, held: VecDeque::new(), held_bytes: 0, held_rows: 0, spilling: None }
    }

    pub fn push(&mut self, batch: &RecordBatch, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        // Otherwise what earlier tables and outputs have left in the heap would add to the rows.
        if self.round > 0 && self.held.is_empty() && self.spilling.is_none() && cx.options.pool.gives_back() {
            trim_heap();
        }
        for slice in slices(batch, cx.sizes.slice_bytes) {
            cx.options.run.cancel.check()?;
            let bytes = batch_bytes(&slice);
            // Room is kept for the filter and for a group, which are allocated before the first batch is written.
            let beside = cx.sizes.bloom_bytes + 2 * group_bytes_max(cx);
            let has_room = memory.room() >= bytes.saturating_add(beside);
            if self.spilling.is_none() && has_room && memory.try_grow(bytes) {
                self.held_rows += slice.num_rows();
                self.held_bytes += bytes;
                self.held.push_back(slice);
            } else {
                self.spilling(cx, memory)?.push(slice, cx, memory)?;
            }
        }
        Ok(())
    }

    /// The partitions. The first call distributes what has been held so far.
    fn spilling(&mut self, cx: &Context, memory: &mut Reservation) -> Result<&mut Spilling, JoinError> {
        if self.spilling.is_none() {
            let mut spilling = Spilling::new(self.round, cx, memory)?;
            while let Some(batch) = self.pop_held(memory) {
                spilling.push(batch, cx, memory)?;
            }
            self.spilling = Some(spilling);
        }
        self.spilling.as_mut().ok_or_else(|| JoinError::Invalid("no partitions".into()))
    }

    /// The oldest first: its copies fill the lower end of the allocator's heap, and the upper end returns to the
    /// kernel.
    fn pop_held(&mut self, memory: &mut Reservation) -> Option<RecordBatch> {
        let batch = self.held.pop_front()?;
        let bytes = batch_bytes(&batch);
        memory.shrink(bytes);
        self.held_bytes -= bytes;
        self.held_rows -= batch.num_rows();
        Some(batch)
    }

    /// Makes a table of what fits, and files of the rest.
    pub fn finish(
        mut self,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(Resident, Option<SpilledBuild>), JoinError> {
        // Only the build side of round 0, which the caller feeds, can be split.
        let probers = if self.round == 0 { cx.options.shares.max(1) } else { 1 };
        if self.spilling.is_none() {
            if let Some((working, choice)) = take_working_bytes(self.held_rows, probers, 0, cx, memory) {
                return Ok((Resident::build(self.held.into(), self.held_bytes, working, choice, cx, memory)?, None));
            }
            self.spilling(cx, memory)?;
        }
        let Some(spilling) = self.spilling else { return Err(JoinError::Invalid("no partitions".into())) };
        let (mut partitions, bloom) = spilling.finish(cx, memory)?;
        // Room in which the probe side's partitions gather enough rows for a write.
        let probe_room = cx.sizes.probe_room_bytes;
        let (rows_bytes, working, choice) = loop {
            let (rows, bytes) = partitions.resident();
            if let Some((working, choice)) = take_working_bytes(rows, probers, probe_room, cx, memory) {
                memory.shrink(probe_room);
                break (bytes, working, choice);
            }
            if !partitions.make_room(cx, memory)? {
                // Nothing is left in memory. The table has no rows, and fits in the slack of the floor.
                break (0, 0, working_bytes(0, probers, cx).1);
            }
        };
        let resident = partitions.take_resident();
        let files = partitions.finish_spilled(cx, memory)?;
        let resident = Resident::build(resident, rows_bytes, working, choice, cx, memory)?;
        let bloom = bloom.map(BloomBuilder::publish);
        Ok((resident, Some(SpilledBuild { files, round: self.round, bloom })))
    }
}

/// The most bytes of batches that are distributed together; 0: each is distributed by itself.
fn group_bytes_max(cx: &Context) -> u64 {
    let is_worth = !cx.options.pool.gives_back() && copies_alone(&cx.spec.build);
    if is_worth { cx.sizes.group_bytes } else { 0 }
}

impl Spilling {
    fn new(round: u32, cx: &Context, memory: &mut Reservation) -> Result<Self, JoinError> {
        let bloom = BloomBuilder::new(cx.sizes.bloom_bytes, cx.sizes.fan_out_bits)?;
        let reserved = cx.sizes.bloom_bytes;
        // The filter saves writes. Without room for it the join is still correct.
        let bloom = (bloom.bytes() <= reserved && memory.try_grow(reserved)).then_some(bloom);
        let group_bytes_max = Some(group_bytes_max(cx)).filter(|bytes| memory.try_grow(2 * bytes)).unwrap_or(0);
        let threads = if group_bytes_max > 0 { cx.options.run.threads } else { 1 };
        let partitions = Partitions::new(cx, &cx.spec.build, round, threads);
        Ok(Self { partitions, bloom, group: Vec::new(), group_bytes: 0, group_bytes_max })
    }

    /// Takes a batch, which has been in flight or held so far.
    fn push(&mut self, batch: RecordBatch, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        let bytes = batch_bytes(&batch) + ROUTE_BYTES * batch.num_rows() as u64;
        self.group_bytes += bytes;
        self.group.push(batch);
        if self.group_bytes >= self.group_bytes_max { self.distribute(cx, memory) } else { Ok(()) }
    }

    /// Copies the group's rows into partitions.
    fn distribute(&mut self, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        self.group_bytes = 0;
        let group = mem::take(&mut self.group);
        // A row whose key equals nothing matters only where rows without a match are handed out.
        let keeps_invalid = matches!(cx.spec.kind.keep_build(), Keep::Unmatched | Keep::Marked);
        let (partitions, is_group) = (&self.partitions, group.len() > 1);
        let batches: Vec<Mutex<Option<RecordBatch>>> = group.into_iter().map(Some).map(Mutex::new).collect();
        let routes = partitions.workers().on_tasks(batches.len(), |task| {
            cx.options.run.cancel.check()?;
            let batch = batches[task].lock().unwrap_or_else(PoisonError::into_inner).take();
            let batch = batch.ok_or_else(|| JoinError::Invalid("a batch is distributed once".into()))?;
            let codes = cx.build_keys.encode(&batch)?;
            let routes = partitions.routes(batch, codes, keeps_invalid, |_, _| true);
            if is_group { routes.by_partition() } else { Ok(routes) }
        })?;
        self.partitions.scatter(&routes, self.bloom.as_mut(), cx, memory)
    }

    /// Distributes the rest, and gives back the room of groups.
    fn finish(
        mut self,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(Partitions, Option<BloomBuilder>), JoinError> {
        if !farhold_planted::is(Defect::LostGroup) {
            self.distribute(cx, memory)?;
        }
        memory.shrink(2 * self.group_bytes_max);
        Ok((self.partitions, self.bloom))
    }
}
