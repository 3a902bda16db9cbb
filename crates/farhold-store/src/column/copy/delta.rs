//! The delta: changes that no segment contains, as bytes of rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::fast::RandomState;

use super::RowChange;
use super::blocks::{Items, RowBytes, RowPlace};
use super::segment::NEVER;
use super::size::DeltaSize;
use super::view::DELTA_RUN_ROWS;
use crate::object::ObjectRef;
use farhold_fabric::Version;

/// No row.
const NONE: u32 = u32::MAX;

/// The state of a slot from one change to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    slot: u32,
    version: u64,
    /// It holds from this epoch on ...
    begin: u32,
    /// ... and up to before this one.
    end: u32,
    /// The previous state, if the delta has it.
    older: u32,
    place: RowPlace,
    key_len: u32,
    value_len: u32,
    is_row: bool,
}

/// Changes, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Delta {
    states: Items<State>,
    /// Keys and values.
    bytes: RowBytes,
    /// The newest state of each slot.
    newest: HashMap<u32, u32, RandomState>,
}

/// A delta that one thread adds to while others read it.
#[derive(Debug, Default)]
pub(super) struct SharedDelta {
    delta: RwLock<Delta>,
    /// The number of its states, which can be read without waiting for a change that is being applied.
    len: AtomicUsize,
}

impl SharedDelta {
    pub fn new(delta: Delta) -> Self {
        Self { len: AtomicUsize::new(delta.len()), delta: RwLock::new(delta) }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Delta> {
        self.delta.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> Adding<'_> {
        Adding { shared: self, delta: self.delta.write().unwrap_or_else(PoisonError::into_inner) }
    }

    pub fn len(&self) -> usize {
        self.len.load(Acquire)
    }

    /// The states at `epoch` of the slots with a change up to then. All changes up to it must be there: others come while the states are read.
    pub fn current(&self, epoch: u32) -> Current {
        let mut current = Current::default();
        for run in runs(0..self.len()) {
            self.read().add_current(run, epoch, &mut current);
        }
        current.slots.sort_unstable_by_key(|state| state.slot);
        current
    }

    /// The rows of a range of slots.
    pub fn rows(&self, current: &Current, slots: &Range<u64>) -> Rows {
        let before = |end: u64| current.slots.partition_point(|state| u64::from(state.slot) < end);
        let states = &current.slots[before(slots.start)..before(slots.end)];
        let bytes = states.iter().map(|state| state.bytes as usize).sum();
        let mut rows = Rows { slots: Vec::with_capacity(states.len()), bytes: Vec::with_capacity(bytes) };
        for run in states.chunks(DELTA_RUN_ROWS) {
            self.read().add_rows(run, &mut rows);
        }
        rows
    }

    /// The states that a copy still needs if its views are of `epoch` or a later one, and if its segments contain the changes up to `epoch` of the
    /// slots for which `is_merged` is true. Also the number of states that it has looked at: those behind have come meanwhile.
    pub fn after(&self, epoch: u32, is_merged: impl Fn(u32) -> bool) -> (Delta, usize) {
        let (mut kept, mut seen) = (Delta::default(), 0);
        // A thread that adds faster than this one copies would be waited for without end.
        for _ in 0..CATCH_UPS {
            let len = self.len();
            for run in runs(seen..len) {
                self.read().add_needed(run, epoch, &is_merged, &mut kept);
            }
            seen = len;
            if self.len() - seen < DELTA_RUN_ROWS {
                break;
            }
        }
        (kept, seen)
    }
}

/// How often states are copied before the last ones are added while other threads wait.
const CATCH_UPS: usize = 4;

/// The thread that applies changes waits while a run is read, and no longer.
fn runs(states: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = states.end;
    states.step_by(DELTA_RUN_ROWS).map(move |from| from..(from + DELTA_RUN_ROWS).min(end))
}

/// The delta, for the thread that adds to it.
pub(super) struct Adding<'d> {
    shared: &'d SharedDelta,
    delta: RwLockWriteGuard<'d, Delta>,
}

impl Adding<'_> {
    /// As [`Delta::insert`].
    pub fn insert(&mut self, slot: u32, change: &RowChange<'_>) -> bool {
        let is_first = self.delta.insert(slot, change);
        self.shared.len.store(self.delta.len(), Release);
        is_first
    }

    /// As [`Delta::size`].
    pub fn size(&self) -> DeltaSize {
        self.delta.size()
    }
}

/// The slots' states at an epoch, in the order of the slots.
#[derive(Debug, Default)]
pub(super) struct Current {
    slots: Vec<CurrentState>,
    /// States of the delta that had ended by then.
    pub ended: usize,
}

#[derive(Clone, Copy, Debug)]
struct CurrentState {
    slot: u32,
    /// Its place among the states.
    at: u32,
    /// Of the key and the value.
    bytes: u32,
}

impl Current {
    /// The slots, and the bytes of their rows.
    pub fn slots(&self) -> impl Iterator<Item = (u32, usize)> {
        self.slots.iter().map(|state| (state.slot, state.bytes as usize))
    }
}

/// A copy of some slots' rows, in the order of the slots.
#[derive(Debug)]
pub(super) struct Rows {
    slots: Vec<(u32, Option<Place>)>,
    bytes: Vec<u8>,
}

/// Where a row's key and value are.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    key_len: usize,
    value_len: usize,
}

/// A row's key and value.
pub(super) type Row<'r> = (&'r [u8], &'r [u8]);

impl Rows {
    /// The slots, and their rows; `None`: the row has been deleted.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<Row<'_>>)> {
        self.slots.iter().map(|(slot, place)| {
            let row = place
                .map(|Place { at, key_len, value_len }| self.bytes[at..at + key_len + value_len].split_at(key_len));
            (*slot, row)
        })
    }
}

impl Delta {
    /// The number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Bytes that it takes, including spare room.
    pub fn bytes(&self) -> u64 {
        // A map has one additional byte per entry.
        let newest = self.newest.capacity() * (size_of::<(u32, u32)>() + 1);
        (self.bytes.bytes() + self.states.bytes() + newest) as u64
    }

    /// How many states, and bytes.
    pub fn size(&self) -> DeltaSize {
        (self.len(), self.bytes())
    }

    /// Adds a change. True if it is the slot's first change in the delta: it then ends the slot's row in a segment.
    pub fn insert(&mut self, slot: u32, change: &RowChange<'_>) -> bool {
        let version = change.version.0;
        let (mut newer, mut older) = (NONE, self.newest.get(&slot).copied().unwrap_or(NONE));
        while older != NONE && self.states[older as usize].version > version {
            newer = older;
            older = self.states[older as usize].older;
        }
        if older != NONE && self.states[older as usize].version == version {
            return false;
        }
        let place = u32::try_from(self.states.len()).expect("a delta is merged long before");
        let end = if newer == NONE { NEVER } else { self.states[newer as usize].begin };
        let (key, value) = change.row.unwrap_or_default();
        let row = self.bytes.append([key, value]);
        self.states.push(State {
            slot,
            version,
            begin: change.epoch,
            end,
            older,
            place: row,
            key_len: key.len() as u32,
            value_len: value.len() as u32,
            is_row: change.row.is_some(),
        });
        if newer == NONE {
            self.newest.insert(slot, place);
        } else {
            self.states[newer as usize].older = place;
        }
        if older == NONE {
            return true;
        }
        self.states[older as usize].end = change.epoch;
        false
    }

    /// Visits those rows of some states that are valid at an epoch.
    pub fn visit(&self, states: Range<usize>, epoch: u32, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for state in self.states.range(states) {
            if state.is_row && state.begin <= epoch && epoch < state.end {
                let (key, value) = self.row(state);
                visit(key, value);
            }
        }
    }

    /// Adds those of some states that hold at `epoch`.
    fn add_current(&self, states: Range<usize>, epoch: u32, current: &mut Current) {
        for (state, at) in self.states.range(states.clone()).zip(states) {
            if state.begin > epoch {
                continue;
            }
            if state.end <= epoch {
                current.ended += 1;
                continue;
            }
            current.slots.push(CurrentState {
                slot: state.slot,
                at: at as u32,
                bytes: state.key_len + state.value_len,
            });
        }
    }

    /// Adds the rows of some states.
    fn add_rows(&self, states: &[CurrentState], rows: &mut Rows) {
        for CurrentState { slot, at, .. } in states {
            let state = &self.states[*at as usize];
            let place = state.is_row.then(|| {
                let (key, value) = self.row(state);
                let at = rows.bytes.len();
                rows.bytes.extend_from_slice(key);
                rows.bytes.extend_from_slice(value);
                Place { at, key_len: key.len(), value_len: value.len() }
            });
            rows.slots.push((*slot, place));
        }
    }

    /// Each slot whose first change in the delta is one of the states from a position on, with the epoch of that.
    pub fn firsts(&self, from: usize) -> impl Iterator<Item = (u32, u32)> {
        self.states.range(from..self.len()).filter(|state| state.older == NONE).map(|state| (state.slot, state.begin))
    }

    /// Whether there are changes of later epochs.
    pub fn has_later(&self, epoch: u32) -> bool {
        self.states.iter().rev().any(|state| state.begin > epoch)
    }

    /// As [`SharedDelta::after`], of all states.
    pub fn after(&self, epoch: u32, is_merged: impl Fn(u32) -> bool) -> Self {
        let mut kept = Self::default();
        self.add_needed(0..self.states.len(), epoch, is_merged, &mut kept);
        kept
    }

    /// Adds those of some states that are still needed.
    fn add_needed(&self, states: Range<usize>, epoch: u32, is_merged: impl Fn(u32) -> bool, kept: &mut Self) {
        let is_needed = |state: &&State| state.begin > epoch || state.end > epoch && !is_merged(state.slot);
        for state in self.states.range(states).filter(is_needed) {
            kept.insert(state.slot, &self.change(state));
        }
    }

    /// Adds the states of another delta, from a position on.
    pub fn add_from(&mut self, other: &Self, from: usize) {
        for state in other.states.range(from..other.len()) {
            self.insert(state.slot, &other.change(state));
        }
    }

    fn change(&self, state: &State) -> RowChange<'_> {
        RowChange {
            reference: ObjectRef::NONE,
            version: Version(state.version),
            epoch: state.begin,
            row: state.is_row.then(|| self.row(state)),
        }
    }

    fn row(&self, state: &State) -> (&[u8], &[u8]) {
        let (key, value) = (state.key_len as usize, state.value_len as usize);
        self.bytes.get(state.place, key + value).split_at(key)
    }
}
