//! The delta: changes that no segment has, as bytes of rows.

use std::collections::HashMap;
use std::slice::SliceIndex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::RowChange;
use super::segment::NEVER;
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
    /// The state before, as far as the delta has it.
    older: u32,
    at: usize,
    key_len: u32,
    value_len: u32,
    is_row: bool,
}

/// Changes, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Delta {
    states: Vec<State>,
    /// Keys and values.
    bytes: Vec<u8>,
    /// The newest state of each slot.
    newest: HashMap<u32, u32>,
}

/// A delta that one thread adds to while others read it.
#[derive(Debug, Default)]
pub(super) struct SharedDelta {
    delta: RwLock<Delta>,
    /// How many states it has, to be known without waiting for a change that is being applied.
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
}

/// What slots had become by an epoch, in the order of the slots: a copy.
#[derive(Debug, Default)]
pub(super) struct Current {
    slots: Vec<(u32, Option<Place>)>,
    bytes: Vec<u8>,
    /// States of the delta that had ended by then.
    pub ended: usize,
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

impl Current {
    /// The slots, and the bytes of their rows.
    pub fn slots(&self) -> impl Iterator<Item = (u32, usize)> {
        self.slots.iter().map(|(slot, place)| (*slot, place.map_or(0, |it| it.key_len + it.value_len)))
    }

    /// Slots of a range, and their rows; `None`: there is no row any more.
    pub fn range(&self, slots: &std::ops::Range<u64>) -> impl Iterator<Item = (u32, Option<Row<'_>>)> {
        let before = |end: u64| self.slots.partition_point(|(slot, _)| u64::from(*slot) < end);
        self.slots[before(slots.start)..before(slots.end)].iter().map(|(slot, place)| {
            let row = place
                .map(|Place { at, key_len, value_len }| self.bytes[at..at + key_len + value_len].split_at(key_len));
            (*slot, row)
        })
    }
}

impl Delta {
    /// How many states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Bytes that it takes, with room for what is to come.
    pub fn bytes(&self) -> u64 {
        // A map has a byte of its own for each entry.
        let newest = self.newest.capacity() * (size_of::<(u32, u32)>() + 1);
        (self.bytes.capacity() + self.states.capacity() * size_of::<State>() + newest) as u64
    }

    /// Takes a change. True if it is the slot's first one here: then a row of a segment ends by it.
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
        self.states.push(State {
            slot,
            version,
            begin: change.epoch,
            end,
            older,
            at: self.bytes.len(),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
            is_row: change.row.is_some(),
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
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

    /// Shows the rows among some states that hold at an epoch.
    pub fn visit(&self, states: std::ops::Range<usize>, epoch: u32, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for state in &self.states[states] {
            if state.is_row && state.begin <= epoch && epoch < state.end {
                let (key, value) = self.row(state);
                visit(key, value);
            }
        }
    }

    /// What the slots with a change up to `epoch` had become by then.
    pub fn current(&self, epoch: u32) -> Current {
        let mut current = Current::default();
        for state in self.states.iter().filter(|state| state.begin <= epoch) {
            if state.end <= epoch {
                current.ended += 1;
                continue;
            }
            let place = state.is_row.then(|| {
                let (key, value) = self.row(state);
                let at = current.bytes.len();
                current.bytes.extend_from_slice(key);
                current.bytes.extend_from_slice(value);
                Place { at, key_len: key.len(), value_len: value.len() }
            });
            current.slots.push((state.slot, place));
        }
        current.slots.sort_unstable_by_key(|(slot, _)| *slot);
        current
    }

    /// For each slot its first change here: its epoch.
    pub fn firsts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.states.iter().filter(|state| state.older == NONE).map(|state| (state.slot, state.begin))
    }

    /// Whether there are changes of later epochs.
    pub fn has_later(&self, epoch: u32) -> bool {
        self.states.iter().rev().any(|state| state.begin > epoch)
    }

    /// Of some states, what a copy still needs whose views are of `epoch` or later ones, and whose segments have the changes up to it
    /// of the slots for which `is_merged` holds.
    pub fn after(
        &self,
        states: impl SliceIndex<[State], Output = [State]>,
        epoch: u32,
        is_merged: impl Fn(u32) -> bool,
    ) -> Self {
        let mut kept = Self::default();
        let is_needed = |state: &&State| state.begin > epoch || state.end > epoch && !is_merged(state.slot);
        for state in self.states[states].iter().filter(is_needed) {
            kept.insert(state.slot, &self.change(state));
        }
        kept
    }

    /// Adds the states of another delta from a place on.
    pub fn add_from(&mut self, other: &Self, from: usize) {
        for state in &other.states[from..] {
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
        self.bytes[state.at..state.at + key + value].split_at(key)
    }
}
