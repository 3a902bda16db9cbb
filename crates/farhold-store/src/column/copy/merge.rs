//! Merging: changes of the delta go into new segments, and rows that have ended go.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use super::segment::{Segment, SegmentBuilder, slot_at};
use super::{ColumnCopy, end_in, finished, read_delta, segment_of};
use crate::column::CHUNK_ROWS_MAX;

/// A segment is made anew when this part of its rows has ended or come: so a row is copied about so many times for each change of its segment.
const CHANGED_PART: usize = 8;
/// Fewer changes than this are not worth a segment of their own.
const CHANGES_MIN: usize = 1024;

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
    /// At most so many rows are left, and rows that have come.
    rows_max: usize,
}

impl ColumnCopy {
    /// Makes segments anew that have changed by an eighth, of the rows at `epoch` or, if it is earlier, at the last complete epoch.
    /// Later views must be of that epoch or a later one: a caller passes no epoch behind that of a snapshot that may still ask.
    pub fn merge(&self, epoch: u32) -> Merged {
        self.merge_changed(epoch, CHANGED_PART, CHANGES_MIN)
    }

    pub(super) fn merge_changed(&self, epoch: u32, changed_part: usize, changes_min: usize) -> Merged {
        let _merging = self.merging();
        let (old, delta, epoch) = {
            let state = self.read();
            if !state.is_built {
                return Merged::default();
            }
            (state.segments.clone(), state.delta.clone(), epoch.min(state.complete))
        };
        let mut merged = Merged::default();
        let mut made: Vec<(Range<usize>, Vec<Arc<Segment>>)> = Vec::new();
        let groups;
        {
            let delta = read_delta(&delta);
            if delta.len() < changes_min {
                return merged;
            }
            let current = delta.current(epoch);
            let mut changes = vec![0; old.len().max(1)];
            for change in &current {
                changes[segment_of(&old, change.slot).unwrap_or(0)] += 1;
            }
            groups = groups_of(&old, &changes, changed_part, changes_min);
            for group in &groups {
                let in_range = |slot: u32| group.slots.contains(&u64::from(slot));
                let from = current.partition_point(|change| u64::from(change.slot) < group.slots.start);
                let to = from + current[from..].partition_point(|change| in_range(change.slot));
                let mut builders = Builders::new(SegmentBuilder::new(&self.schema), group);
                let mut changed = current[from..to].iter().peekable();
                for segment in &old[group.segments.clone()] {
                    let (chunks, slots) = (segment.chunks(), segment.slots());
                    for row in 0..segment.rows() {
                        let slot = slot_at(&slots, row);
                        while let Some(change) = changed.next_if(|change| change.slot < slot) {
                            builders.append_change(change.slot, change.row);
                        }
                        if segment.end_of(row) > epoch {
                            builders.room().append_stored(slot, &chunks, row);
                        }
                    }
                }
                for change in changed {
                    builders.append_change(change.slot, change.row);
                }
                let segments = builders.finish();
                merged.replaced += group.segments.len();
                merged.made += segments.len();
                merged.rows += segments.iter().map(|segment| segment.rows() as u64).sum::<u64>();
                made.push((group.segments.clone(), segments));
            }
        }
        if groups.is_empty() {
            return merged;
        }
        let mut segments = Vec::with_capacity(old.len() + 1);
        let mut next = 0;
        for (replaced, new) in made {
            segments.extend_from_slice(&old[next..replaced.start]);
            segments.extend(new);
            next = replaced.end;
        }
        segments.extend_from_slice(&old[next..]);
        let mut state = self.write();
        let is_merged = |slot: u32| groups.iter().any(|group| group.slots.contains(&u64::from(slot)));
        let left = read_delta(&state.delta).filtered(|slot, begin| begin > epoch || !is_merged(slot));
        // Changes of later epochs, which have ended rows that the new segments still have.
        for (slot, begin) in left.firsts().filter(|(_, begin)| *begin > epoch) {
            end_in(&segments, slot, begin);
        }
        state.segments = segments.into();
        state.delta = Arc::new(RwLock::new(left));
        state.since = state.since.max(epoch);
        merged
    }
}

/// The segments to make anew, neighbours together where both are short.
fn groups_of(old: &[Arc<Segment>], changes: &[usize], changed_part: usize, changes_min: usize) -> Vec<Group> {
    let rows = |place: usize| old.get(place).map_or(0, |segment| segment.rows());
    let is_due = |place: usize| changes[place] >= changes_min.max(rows(place) / changed_part).max(1);
    let mut groups = Vec::new();
    let mut place = 0;
    while place < changes.len() {
        let from = place;
        place += 1;
        if !is_due(from) {
            continue;
        }
        let mut all = rows(from) + changes[from];
        while place < old.len() && all + rows(place) + changes[place] <= CHUNK_ROWS_MAX / 2 {
            all += rows(place) + changes[place];
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
    full: Vec<SegmentBuilder>,
    last: SegmentBuilder,
    rows_each: usize,
}

impl Builders {
    fn new(empty: SegmentBuilder, group: &Group) -> Self {
        // Behind the last segment more rows will come. Others are cut into equal parts, so that each has room.
        let is_last = group.slots.end == u64::MAX;
        let parts = if is_last { 1 } else { group.rows_max.div_ceil(CHUNK_ROWS_MAX).max(1) };
        let rows_each = if is_last { CHUNK_ROWS_MAX } else { group.rows_max.div_ceil(parts).max(1) };
        Self { full: Vec::new(), last: empty, rows_each }
    }

    fn append_change(&mut self, slot: u32, row: Option<(&[u8], &[u8])>) {
        if let Some((key, value)) = row {
            self.room().append(slot, key, value);
        }
    }

    /// The builder that has room.
    fn room(&mut self) -> &mut SegmentBuilder {
        if self.last.is_full() || self.last.rows() >= self.rows_each {
            let next = self.last.another();
            self.full.push(std::mem::replace(&mut self.last, next));
        }
        &mut self.last
    }

    fn finish(mut self) -> Vec<Arc<Segment>> {
        self.full.push(self.last);
        finished(self.full)
    }
}
