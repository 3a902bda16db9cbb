//! The stamps of the leaves that a transaction has read, and how its own writes update them.
//!
//! A transaction that looked for keys remembers the leaf and its version for every leaf that it searched. While all those
//! versions stand, no key has come into or left the ranges that it saw: no phantom (Silo, Tu et al., SOSP 2013, section 4.6). Its
//! own inserts move versions too. [`Changes`] says from which version to which, so that a transaction can tell its own changes
//! from others'.

/// A leaf at a version, as a search saw it. `OrderedIndex::validate` compares it with the present.
///
/// A stamp is plain data: it may go to another process and come back. A stamp made up from other numbers is merely invalid (or,
/// by accident, valid). Validating it is always safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct LeafStamp {
    /// Which leaf: its number in its index.
    pub leaf: u64,
    /// Which state of it.
    pub version: u64,
}

const _: () = assert!(size_of::<LeafStamp>() == 16);

/// One step of a leaf's version, caused by the call that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The stamp this call found.
    pub before: LeafStamp,
    /// The stamp that now covers the keys `before` covered, or a part of them.
    pub after: LeafStamp,
}

/// What one write did to the versions of leaves, in order.
///
/// Neighbouring entries with the same `before` belong together: a leaf was split, and a transaction that held `before` must now
/// hold every `after`. Two entries may share an `after`: leaves were merged.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    steps: [Change; Self::STEPS_MAX],
    count: usize,
}

impl Changes {
    /// A removal (one step) and the merge that follows it (one step for each of two leaves) are the longest.
    const STEPS_MAX: usize = 3;

    pub(crate) fn new(first: Change) -> Self {
        Self { steps: [first; Self::STEPS_MAX], count: 1 }
    }

    pub(crate) fn push(&mut self, next: Change) {
        self.steps[self.count] = next;
        self.count += 1;
    }

    /// These steps, for example as another node has sent them; `None` for a number of steps that no write takes.
    #[must_use]
    pub fn from_steps(steps: &[Change]) -> Option<Self> {
        let (first, others) = steps.split_first().filter(|_| steps.len() <= Self::STEPS_MAX)?;
        let mut changes = Self::new(*first);
        for step in others {
            changes.push(*step);
        }
        Some(changes)
    }

    /// The steps, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Change] {
        &self.steps[..self.count]
    }

    /// Carries a transaction's stamps over this write of its own: valid stamps stay valid, and stamps that another thread had
    /// already outdated stay outdated.
    pub fn apply(&self, stamps: &mut Vec<LeafStamp>) {
        for split in self.as_slice().chunk_by(|one, next| one.before == next.before) {
            let mut held = false;
            for stamp in stamps.iter_mut().filter(|stamp| **stamp == split[0].before) {
                *stamp = split[0].after;
                held = true;
            }
            if held {
                stamps.extend(split[1..].iter().map(|step| step.after));
            }
        }
    }
}
