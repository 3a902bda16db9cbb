//! The delta: changes that no segment has, as bytes of rows.

use std::collections::HashMap;

use super::RowChange;
use super::segment::NEVER;

/// No row.
const NONE: u32 = u32::MAX;

/// The state of a slot from one change to the next.
#[derive(Clone, Copy, Debug)]
struct State {
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

/// What a slot has become by an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current<'d> {
    pub slot: u32,
    /// Key and value, or no row.
    pub row: Option<(&'d [u8], &'d [u8])>,
}

impl Delta {
    /// How many states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Bytes, without those of the map.
    pub fn bytes(&self) -> u64 {
        (self.bytes.len() + self.states.len() * size_of::<State>()) as u64
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

    /// What the slots with a change up to `epoch` had become by then, in the order of the slots.
    pub fn current(&self, epoch: u32) -> Vec<Current<'_>> {
        let holds = |state: &&State| state.begin <= epoch && epoch < state.end;
        let current = |state: &State| Current { slot: state.slot, row: state.is_row.then(|| self.row(state)) };
        let mut found: Vec<Current<'_>> = self.states.iter().filter(holds).map(current).collect();
        found.sort_unstable_by_key(|current| current.slot);
        found
    }

    /// For each slot its first change here: its epoch.
    pub fn firsts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.states.iter().filter(|state| state.older == NONE).map(|state| (state.slot, state.begin))
    }

    /// The changes for which `stays` holds, by slot and epoch.
    pub fn filtered(&self, stays: impl Fn(u32, u32) -> bool) -> Self {
        let mut kept = Self::default();
        for state in self.states.iter().filter(|state| stays(state.slot, state.begin)) {
            let change = RowChange {
                reference: crate::object::ObjectRef::NONE,
                version: farhold_fabric::Version(state.version),
                epoch: state.begin,
                row: state.is_row.then(|| self.row(state)),
            };
            kept.insert(state.slot, &change);
        }
        kept
    }

    fn row(&self, state: &State) -> (&[u8], &[u8]) {
        let (key, value) = (state.key_len as usize, state.value_len as usize);
        self.bytes[state.at..state.at + key + value].split_at(key)
    }
}
