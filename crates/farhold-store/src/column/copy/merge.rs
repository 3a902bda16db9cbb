//! Merging: changes of the delta go into new segments, and rows that have ended go.

use std::ops::Range;
use std::sync::Arc;

use super::delta::{Current, Row, SharedDelta};
use super::segment::{Segment, SegmentBuilder, slot_at};
use super::{ColumnCopy, CopyConfig, end_in, segment_of};
use crate::column::memory::NoMemory;
use farhold_planted::{Defect, may_stop};

/// What a merge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Segments that have been replaced.
    pub replaced: usize,
    /// Segments that have been made.
    pub made: usize,
    /// Rows of these.
    pub rows: u64,
}

/// Segments that are made anew together.
struct Group {
    segments: Range<usize>,
    slots: Range<u64>,
    /// About so many rows are left, or have come.
    rows_max: usize,
}

/// Changed rows of so many bytes are as good as many: a segment of long rows has few.
const CHANGED_BYTES_MIN: usize = 4 << 20;

/// What has changed in the range of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    rows: usize,
    bytes: usize,
}

impl Changes {
    /// Whether a segment of so many rows is made anew.
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
    /// It found no memory, when this often some had become free.
    without_memory: Option<u64>,
}

impl Tried {
    /// Would another attempt at this epoch find little more to do, or as little memory?
    fn is_vain(&self, epoch: u32, frees: u64, (delta_len, delta_bytes): (usize, u64), config: CopyConfig) -> bool {
        if self.without_memory.is_some_and(|then| then != frees) {
            return false;
        }
        let grown = self.delta_len + (config.changes_min / 4).max(self.delta_len / config.changed_part).max(1);
        let is_longer = delta_bytes >= self.delta_bytes + CHANGED_BYTES_MIN as u64;
        epoch == self.epoch || !self.was_limited && delta_len < grown && !is_longer
    }
}

impl ColumnCopy {
    /// Makes segments anew that have changed by an eighth, of the rows at `epoch` or, if it is earlier, at the last complete epoch. Where
    /// half of the delta has ended by then, it goes too. Later views must be of that epoch or a later one: a caller passes no epoch behind
    /// that of a snapshot that may still ask.
    ///
    /// # Errors
    /// [`NoMemory`]: everything is as it was, and later changes make the delta longer.
    pub fn merge(&self, epoch: u32) -> Result<Merged, NoMemory> {
        let mut tried = self.merging();
        let (complete, delta) = {
            let state = self.read();
            (state.complete, (state.delta.len(), state.delta.read().bytes()))
        };
        // Read before the attempt: what becomes free meanwhile is worth another one.
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

    /// As [`Self::merge`], whatever the last attempt found. The caller holds `merging`, or is alone.
    pub(super) fn merge_changed(&self, epoch: u32, config: CopyConfig) -> Result<Merged, NoMemory> {
        let (old, delta) = {
            let state = self.read();
            if !state.is_built {
                return Ok(Merged::default());
            }
            (state.segments.clone(), state.delta.clone())
        };
        may_stop();
        let current = delta.read().current(epoch);
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
            let made = group.make(builder, &old[group.segments.clone()], &current, epoch)?;
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
        // What is there now is copied while others go on, and what comes meanwhile is added while they wait.
        let (mut left, seen) = {
            let delta = delta.read();
            (delta.after(.., epoch, is_merged), delta.len())
        };
        may_stop();
        let mut state = self.write();
        left.add_from(&delta.read(), seen);
        // Changes of later epochs, which have ended rows that the new segments still have.
        for (slot, begin) in left.firsts().filter(|(_, begin)| *begin > epoch) {
            if !farhold_planted::is(Defect::MergedEndsLost) {
                end_in(&segments, slot, begin);
            }
        }
        state.segments = segments.into();
        state.delta = Arc::new(SharedDelta::new(left));
        state.since = state.since.max(epoch);
        Ok(merged)
    }
}

impl Group {
    /// The most rows of each of its segments. Behind the last segment of a copy more rows will come. Others are cut into equal parts, so
    /// that each has room.
    fn segment_rows(&self, rows_max: usize) -> usize {
        let is_last = self.slots.end == u64::MAX;
        if is_last { rows_max } else { self.rows_max.div_ceil(self.rows_max.div_ceil(rows_max).max(1)).max(1) }
    }

    /// Its segments anew: the rows that have not ended at `epoch`, and those of the delta.
    fn make(
        &self,
        builder: SegmentBuilder,
        old: &[Arc<Segment>],
        current: &Current,
        epoch: u32,
    ) -> Result<Vec<Arc<Segment>>, NoMemory> {
        let mut builders = Builders { made: Vec::new(), builder };
        let mut changed = current.range(&self.slots).peekable();
        for segment in old {
            let (chunks, slots) = (segment.chunks(), segment.slots());
            for row in 0..segment.rows() {
                let slot = slot_at(&slots, row);
                while let Some((slot, row)) = changed.next_if(|(changed, _)| *changed < slot) {
                    builders.append_change(slot, row)?;
                }
                if segment.end_of(row) > epoch {
                    builders.room()?.append_stored(slot, &chunks, row);
                }
            }
        }
        for (slot, row) in changed {
            builders.append_change(slot, row)?;
        }
        builders.finish()
    }
}

/// The segments to make anew, neighbours together where both are short.
fn groups_of(old: &[Arc<Segment>], changes: &[Changes], config: CopyConfig) -> Vec<Group> {
    let rows = |place: usize| old.get(place).map_or(0, |segment| segment.rows());
    let is_due = |place: usize| changes[place].are_due(rows(place), config);
    // About, and with those that come: a row that has changed has ended too.
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
