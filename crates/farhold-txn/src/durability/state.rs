//! What all threads know of a node's journal.

use crate::durability::journaling::held;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// How far this node's journal is, and the others'.
pub(super) struct Epochs {
    /// The epoch of the last step, which began to close everything below it: commits that open now have at least this
    /// one.
    pub(super) target: AtomicU32,
    /// What this node has closed.
    pub(super) closed: AtomicU32,
    /// What all have.
    pub(super) durable: AtomicU32,
    /// The keeper's epoch, as it was last heard.
    pub(super) heard: AtomicU32,
    /// The latest epoch of a commit that has changed a row here.
    pub(super) done: AtomicU32,
}

impl Epochs {
    /// The state of a start before which everything up to `closed` was durable.
    pub(super) fn after(closed: u32) -> Self {
        let of = AtomicU32::new;
        Self { target: of(closed + 1), closed: of(closed), durable: of(closed), heard: of(0), done: of(0) }
    }
}

/// Why the journal can never be written again, if it cannot.
#[derive(Default)]
pub(super) struct GivenUp {
    reason: Mutex<Option<Box<str>>>,
    is_so: AtomicBool,
}

impl GivenUp {
    pub(super) fn is_so(&self) -> bool {
        self.is_so.load(SeqCst)
    }

    pub(super) fn reason(&self) -> Option<Box<str>> {
        held(&self.reason).clone()
    }

    /// The first reason stays.
    pub(super) fn note(&self, reason: &str) {
        held(&self.reason).get_or_insert_with(|| reason.into());
        self.is_so.store(true, SeqCst);
    }
}
