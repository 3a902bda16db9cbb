//! Merging: changes of the delta are moved into new segments, and rows that have ended are removed.

use std::ops::Range;
use std::sync::Arc;

use super::delta::{Row, Rows, SharedDelta};
use super::segment::{Segment, SegmentBuilder};
use super::{ColumnCopy, CopyConfig, end_in, segment_of};
use crate::column::BLOCK_ROWS;
use crate::column::build::StoredBlock;
use crate::column::memory::NoMemory;
use farhold_planted::{Defect, may_stop};

/// The result of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Segments that have been replaced.
    pub replaced: usize,
    /// Segments that have been made.
    pub made: usize,
    /// Rows of these.
    pub rows: u64,
}

/// Segments that are rebuilt together.
struct Group {
    segments: Range<usize>,
    slots: Range<u64>,
    /// An estimate of the rows that are left or have been added.
    rows_max: usize,
}

/// Changed rows with this many bytes count as many rows, because a segment of long rows has few rows.
const CHANGED_BYTES_MIN: usize = 4 << 20;

/// The changes in the range of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    rows: usize,
    bytes: usize,
}

impl Changes {
    /// Whether a segment with this number of rows must be rebuilt.
    fn are_due(self, rows: usize, config: CopyConfig) -> bool {
        let is_all = rows > 0 && self.rows >= rows;
        let are_many = self.rows >= config.changes_min || is_all || self.bytes >= CHANGED_BYTES_MIN;
        self.rows >= (rows / config.changed_part).max(1) && are_many
    }
}

/// How the last attempt ended.
#[derive(Debug, Default)]
pub(super) struct Tried {
    epoch: u32,
    /// There were changes of later epochs.
    was_limited: bool,
    /// States that the delta had afterwards, and its bytes.
    delta_len: usize,
    delta_bytes: u64,
    /// It found no memory; the number of times that memory had become free by then.
    without_memory: Option<u64>,
}

impl Tried {
    /// Whether another attempt at this epoch would find little more to do, or no more memory.
    fn is_vain(&self, epoch: u32, frees: u64, (delta_len, delta_bytes): (usize, u64), config: CopyConfig) -> bool {
        if self.without_memory.is_some_and(|then| then != frees) {
            return false;
        }
        let grown = self.delta_len + (config.changes_min / 4).max(self.delta_len / config.changed_part).max(1);
        let bytes_min = (CHANGED_BYTES_MIN as u64 / 4).max(self.delta_bytes / config.changed_part as u64);
        let is_longer = delta_bytes >= self.delta_bytes + bytes_min;
        epoch == self.epoch || !self.was_limited && delta_len < grown && !is_longer
    }
}

impl ColumnCopy {
    /// Rebuilds the segments of which an eighth has changed, from the rows at `epoch` or at the last complete epoch, if that is earlier. If half of the delta
    /// has ended by then, the ended states are removed too. Later views must be of that epoch or a later one: the caller must not pass an epoch after that of a
    /// snapshot that may still request a view.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing has changed, and later changes make the delta longer.
    pub fn merge(&self, epoch: u32) -> Result<Merged, NoMemory> {
        let mut tried = self.merging();
        let (complete, delta) = {
            let state = self.read();
            (state.complete, (state.delta.len(), state.delta.read().bytes()))
        };
        // Read before the attempt: if memory becomes free meanwhile, another attempt is worthwhile.
        let frees = self.memory.frees();
        if tried.is_vain(epoch.min(complete), frees, delta, self.config) {
            return Ok(Merged::default());
        }
        let merged = self.merge_changed(epoch.min(complete), self.config);
        let delta = self.read().delta.clone();
        let was_limited = delta.read().has_later(epoch.min(complete));
        let delta_bytes = delta.read().bytes();
        let without_memory = merged.is_err().then_some(frees);
        *tried = Tried { epoch: epoch.min(complete), was_limited, delta_len: delta.len(), delta_bytes, without_memory };
        merged
    }

    /// As [`Self::merge`], regardless of the last attempt. The caller holds `merging`, or has the only access.
    pub(super) fn merge_changed(&self, epoch: u32, config: CopyConfig) -> Result<Merged, NoMemory> {
        let (old, delta) = {
            let state = self.read();
            if !state.is_built {
                return Ok(Merged::default());
            }
            (state.segments.clone(), state.delta.clone())
        };
        may_stop();
        let current = delta.current(epoch);
        let mut changes = vec![Changes::default(); old.len().max(1)];
        for (slot, bytes) in current.slots() {
            let changes = &mut changes[segment_of(&old, slot).unwrap_or(0)];
            changes.rows += 1;
            changes.bytes += bytes;
        }
        let groups = groups_of(&old, &changes, config);
        let has_much_ended = current.ended >= config.changes_min.max(current.slots().count());
        if groups.is_empty() && !has_much_ended {
            return Ok(Merged::default());
        }
        let mut merged = Merged::default();
        let mut segments = Vec::with_capacity(old.len() + 1);
        let mut next = 0;
        for group in &groups {
            let builder = self.builder(group.segment_rows(config.segment_rows));
            let rows = delta.rows(&current, &group.slots);
            let made = Group::make(builder, &old[group.segments.clone()], &rows, epoch)?;
            may_stop();
            merged.replaced += group.segments.len();
            merged.made += made.len();
            merged.rows += made.iter().map(|segment| segment.rows() as u64).sum::<u64>();
            segments.extend_from_slice(&old[next..group.segments.start]);
            segments.extend(made);
            next = group.segments.end;
        }
        segments.extend_from_slice(&old[next..]);
        let is_merged = |slot: u32| {
            let group = groups.partition_point(|group| group.slots.end <= u64::from(slot));
            groups.get(group).is_some_and(|group| group.slots.contains(&u64::from(slot)))
        };
        // The present states are copied while other threads go on. Those that arrive meanwhile are added while the others wait.
        let (mut left, seen) = delta.after(epoch, is_merged);
        // Changes of later epochs end rows that the new segments still have.
        let end = |(slot, begin): (u32, u32)| {
            if begin > epoch && !farhold_planted::is(Defect::MergedEndsLost) {
                end_in(&segments, slot, begin);
            }
        };
        left.firsts(0).for_each(end);
        may_stop();
        let mut state = self.write();
        let known = left.len();
        left.add_from(&delta.read(), seen);
        left.firsts(known).for_each(end);
        state.segments = segments.into();
        state.delta = Arc::new(SharedDelta::new(left));
        state.since = state.since.max(epoch);
        self.known.set(&state.segments, state.delta.read().size());
        Ok(merged)
    }
}

impl Group {
    /// The most rows of each of its segments. Rows will be added behind the last segment of a copy. Other segments are cut into equal parts, so that each has
    /// room.
    fn segment_rows(&self, rows_max: usize) -> usize {
        let is_last = self.slots.end == u64::MAX;
        if is_last { rows_max } else { self.rows_max.div_ceil(self.rows_max.div_ceil(rows_max).max(1)).max(1) }
    }

    /// The new segments of a group: the rows that have not ended at `epoch`, and those of the delta.
    fn make(
        builder: SegmentBuilder,
        old: &[Arc<Segment>],
        changed: &Rows,
        epoch: u32,
    ) -> Result<Vec<Arc<Segment>>, NoMemory> {
        let mut builders = Builders { made: Vec::new(), builder };
        let mut changed = changed.iter().peekable();
        let (mut rows, mut slots) = (Vec::with_capacity(BLOCK_ROWS), Vec::with_capacity(BLOCK_ROWS));
        let mut slots_of_block = [0; BLOCK_ROWS];
        for segment in old {
            let (chunks, all_slots) = (segment.chunks(), segment.slots());
            let mut stored = builders.builder.stored(&chunks);
            for block in 0..all_slots.blocks() {
                stored.go_to(block);
                all_slots.integers(block, &mut slots_of_block);
                let mut valid = [u64::MAX; BLOCK_ROWS / 64];
                segment.without_ended(block, epoch, &mut valid);
                let count = (segment.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS);
                for (row, slot) in slots_of_block[..count].iter().map(|slot| *slot as u32).enumerate() {
                    if changed.peek().is_some_and(|(changed, _)| *changed < slot) {
                        builders.append_stored(&stored, &mut rows, &mut slots)?;
                        while let Some((slot, row)) = changed.next_if(|(changed, _)| *changed < slot) {
                            builders.append_change(slot, row)?;
                        }
                    }
                    if valid[row / 64] >> (row % 64) & 1 == 1 {
                        rows.push(row as u16);
                        slots.push(slot);
                    }
                }
                builders.append_stored(&stored, &mut rows, &mut slots)?;
            }
        }
        for (slot, row) in changed {
            builders.append_change(slot, row)?;
        }
        builders.finish()
    }
}

/// The segments to rebuild; neighbours are rebuilt together if both are short.
fn groups_of(old: &[Arc<Segment>], changes: &[Changes], config: CopyConfig) -> Vec<Group> {
    let rows = |place: usize| old.get(place).map_or(0, |segment| segment.rows());
    let is_due = |place: usize| changes[place].are_due(rows(place), config);
    // An estimate that includes the added rows: a row that has changed has also ended.
    let rows_after = |place: usize| {
        let ended = old.get(place).map_or(0, |segment| segment.ended());
        (rows(place) + changes[place].rows).saturating_sub(ended)
    };
    let mut groups = Vec::new();
    let mut place = 0;
    while place < changes.len() {
        let from = place;
        place += 1;
        if !is_due(from) {
            continue;
        }
        let mut all = rows_after(from);
        while place < old.len() && all + rows_after(place) <= config.segment_rows / 2 {
            all += rows_after(place);
            place += 1;
        }
        let begin = if from == 0 { 0 } else { u64::from(old[from].first_slot()) };
        let end = old.get(place).map_or(u64::MAX, |next| u64::from(next.first_slot()));
        groups.push(Group { segments: from..place.min(old.len()), slots: begin..end, rows_max: all });
    }
    groups
}

/// The segments of a group, while they are made.
struct Builders {
    made: Vec<Arc<Segment>>,
    builder: SegmentBuilder,
}

impl Builders {
    fn append_change(&mut self, slot: u32, row: Option<Row<'_>>) -> Result<(), NoMemory> {
        if let Some((key, value)) = row {
            self.room()?.append(slot, key, value);
        }
        Ok(())
    }

    /// Appends rows of a block and their slots, of which there are none afterwards.
    fn append_stored(
        &mut self,
        stored: &StoredBlock<'_>,
        rows: &mut Vec<u16>,
        slots: &mut Vec<u32>,
    ) -> Result<(), NoMemory> {
        let mut done = 0;
        while done < rows.len() {
            done += self.room()?.append_stored(stored, &rows[done..], &slots[done..]);
        }
        rows.clear();
        slots.clear();
        Ok(())
    }

    /// The builder, with room for a row.
    fn room(&mut self) -> Result<&mut SegmentBuilder, NoMemory> {
        self.made.extend(self.builder.finish_if_full()?);
        Ok(&mut self.builder)
    }

    fn finish(mut self) -> Result<Vec<Arc<Segment>>, NoMemory> {
        self.made.extend(self.builder.finish()?);
        Ok(self.made)
    }
}
