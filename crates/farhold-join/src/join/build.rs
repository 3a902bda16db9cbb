//! The build side while it comes in: held as it is, and partitioned once it does not fit.

use std::collections::VecDeque;

use arrow::array::RecordBatch;

use super::Context;
use super::partitions::{Partitions, SpilledPart};
use super::resident::{Resident, take_working_bytes, working_bytes};
use crate::JoinError;
use crate::blocks::{batch_bytes, slices};
use crate::bloom::{BloomBuilder, BloomFilter};
use crate::memory::Reservation;
use crate::options::Keep;
use crate::pages::trim_heap;
use crate::planted::{self, Defect};

/// Build rows so far.
pub struct BuildSide {
    round: u32,
    held: VecDeque<RecordBatch>,
    held_bytes: u64,
    held_rows: usize,
    /// Since the rows outgrew the memory.
    spilling: Option<Spilling>,
}

struct Spilling {
    partitions: Partitions,
    bloom: Option<BloomBuilder>,
}

/// The build side's spilled partitions, for the probe side to follow.
pub struct SpilledBuild {
    pub files: Vec<Option<SpilledPart>>,
    pub round: u32,
    /// Knows every build row of the round, the spilled ones too.
    pub bloom: Option<BloomFilter>,
}

impl BuildSide {
    pub fn new(round: u32) -> Self {
        Self { round, held: VecDeque::new(), held_bytes: 0, held_rows: 0, spilling: None }
    }

    pub fn push(&mut self, batch: &RecordBatch, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        // What earlier tables and outputs have left in the heap would be there beside the rows.
        if self.round > 0 && self.held.is_empty() && self.spilling.is_none() && cx.options.pool.gives_back() {
            trim_heap();
        }
        for slice in slices(batch, cx.sizes.slice_bytes) {
            cx.options.run.cancel.check()?;
            let bytes = batch_bytes(&slice);
            // Room is left for the filter, which begins before the first batch goes.
            let has_room = memory.has_room(bytes.saturating_add(cx.sizes.bloom_bytes));
            if self.spilling.is_none() && has_room && memory.try_grow(bytes) {
                self.held_rows += slice.num_rows();
                self.held_bytes += bytes;
                self.held.push_back(slice);
            } else {
                self.spilling(cx, memory)?.add(&slice, cx, memory)?;
            }
        }
        Ok(())
    }

    /// The partitions; the first call distributes what has been held so far.
    fn spilling(&mut self, cx: &Context, memory: &mut Reservation) -> Result<&mut Spilling, JoinError> {
        if self.spilling.is_none() {
            let mut spilling = Spilling::new(self.round, cx, memory)?;
            while let Some(batch) = self.pop_held(memory) {
                spilling.add(&batch, cx, memory)?;
            }
            self.spilling = Some(spilling);
        }
        self.spilling.as_mut().ok_or_else(|| JoinError::Invalid("no partitions".into()))
    }

    /// Oldest first: what is copied of it fills the lower end of the allocator's heap, and the upper end goes back to the kernel.
    fn pop_held(&mut self, memory: &mut Reservation) -> Option<RecordBatch> {
        let batch = self.held.pop_front()?;
        let bytes = batch_bytes(&batch);
        memory.shrink(bytes);
        self.held_bytes -= bytes;
        self.held_rows -= batch.num_rows();
        Some(batch)
    }

    /// Makes the table of what fits, and files of the rest.
    pub fn finish(
        mut self,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(Resident, Option<SpilledBuild>), JoinError> {
        // Only the build side that the caller feeds can be split.
        let probers = if self.round == 0 { cx.options.shares.max(1) } else { 1 };
        if self.spilling.is_none() {
            if let Some((working, choice)) = take_working_bytes(self.held_rows, probers, 0, cx, memory) {
                return Ok((Resident::build(self.held.into(), self.held_bytes, working, choice, cx, memory)?, None));
            }
            self.spilling(cx, memory)?;
        }
        let Some(Spilling { mut partitions, bloom }) = self.spilling else {
            return Err(JoinError::Invalid("no partitions".into()));
        };
        // Room in which the probe side's partitions gather rows worth a write.
        let probe_room = cx.sizes.probe_room_bytes;
        let (rows_bytes, working, choice) = loop {
            let (rows, bytes) = partitions.resident();
            if let Some((working, choice)) = take_working_bytes(rows, probers, probe_room, cx, memory) {
                memory.shrink(probe_room);
                break (bytes, working, choice);
            }
            if !partitions.make_room(cx, memory)? {
                // Nothing is left in memory: the table is of no rows, and small enough for the floor's slack.
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

impl Spilling {
    fn new(round: u32, cx: &Context, memory: &mut Reservation) -> Result<Self, JoinError> {
        let bloom = BloomBuilder::new(cx.sizes.bloom_bytes)?;
        let reserved = cx.sizes.bloom_bytes;
        // The filter saves writes; without room for it the join is right all the same.
        let bloom = (bloom.bytes() <= reserved && memory.try_grow(reserved)).then_some(bloom);
        Ok(Self { partitions: Partitions::new(cx, &cx.spec.build, round), bloom })
    }

    fn add(&mut self, batch: &RecordBatch, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        let codes = cx.build_keys.encode(batch)?;
        if let Some(bloom) = &mut self.bloom {
            let is_lost = |row: usize| {
                planted::is(Defect::EarlyFilter) && self.partitions.is_spilled(self.partitions.of(codes.codes[row]))
            };
            let valid = (0..batch.num_rows()).filter(|&row| codes.is_valid(row) && !is_lost(row));
            valid.for_each(|row| bloom.insert(codes.codes[row]));
        }
        // A row whose key equals nothing matters only where rows without a match do.
        let keeps_invalid = matches!(cx.spec.kind.keep_build(), Keep::Unmatched | Keep::Marked);
        self.partitions.scatter(batch, &codes, keeps_invalid, |_, _| true, cx, memory)
    }
}
