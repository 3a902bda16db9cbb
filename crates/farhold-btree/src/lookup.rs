//! The look-up of one key, and the replacement of its value.

use crate::key::KeyKind;
use crate::node::Leaf;
use crate::search::prefetch;
use crate::stamp::{Change, Changes, LeafStamp};
use crate::tree::{ToKey, Tree};
use crate::version::Backoff;

/// What a lookup saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The key's value, if the key is there.
    pub value: Option<u64>,
    /// The leaf where it is or would be: while this stamp is valid, `value` holds, `None` included.
    pub leaf: LeafStamp,
}

impl<K: KeyKind> Tree<K> {
    #[inline]
    pub fn get(&self, key: K::Probe<'_>) -> Lookup {
        let guard = K::enter();
        let mut backoff = Backoff::default();
        loop {
            let reached = self.reach_leaf(&mut ToKey(key), &guard);
            // SAFETY: reached at level 0.
            let leaf = unsafe { self.leaf(reached.node) };
            let value = leaf.find(key, &guard).ok().map(|position| leaf.value(position));
            if leaf.lock.unchanged_since(reached.version) {
                return Lookup { value, leaf: leaf.stamp(reached.version) };
            }
            backoff.wait();
        }
    }

    /// Starts loading the leaf that `get` would read.
    #[inline]
    pub fn prefetch(&self, key: K::Probe<'_>) {
        let guard = K::enter();
        if let Some(reached) = self.reach_inner(1, &mut ToKey(key), &guard) {
            // SAFETY: reached at level 1.
            let inner = unsafe { self.inner(reached.node) };
            prefetch(inner.child(inner.count_to(key, &guard)), size_of::<Leaf<K>>());
        }
    }

    pub fn replace(&self, key: K::Probe<'_>, expected: u64, new: u64) -> Option<Changes> {
        let guard = K::enter();
        let mut backoff = Backoff::default();
        loop {
            let reached = self.reach_leaf(&mut ToKey(key), &guard);
            // SAFETY: reached at level 0.
            let leaf = unsafe { self.leaf(reached.node) };
            let position = leaf.find(key, &guard).ok().filter(|&position| leaf.value(position) == expected);
            if let Some(position) = position {
                if leaf.lock.try_lock(reached.version) {
                    leaf.set_value(position, new);
                    let after = leaf.stamp(leaf.lock.unlock_changed(reached.version));
                    return Some(Changes::new(Change { before: leaf.stamp(reached.version), after }));
                }
            } else if leaf.lock.unchanged_since(reached.version) {
                return None;
            }
            backoff.wait();
        }
    }
}
