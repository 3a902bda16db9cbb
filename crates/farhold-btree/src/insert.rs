//! Inserting, and the splits it may take.
//!
//! ```text
//!  full leaf   a b c d e f g    insert x after d
//!   random     a b c d x | e f g           half each
//!   ascending  a b c d x | e f g           cut where the run goes on: the left leaf keeps room for the run only,
//!   at the end a b c d e f g | x           and what a run leaves behind is full
//!   far off    a b c d e f g | x           or on the left: the key lies 2^64 or more from one of the others, which
//!                                          would no longer all fit in the leaf with it (see `frame`)
//! ```
//!
//! The new key is put in under the same locks as the split, so one call makes one step of each leaf's version.
//! A full parent is split first, on its own; then the insert starts again.

use crate::key::KeyKind;
use crate::node::{INNER_CELLS, Leaf, NodePtr};
use crate::stamp::{Change, Changes, LeafStamp};
use crate::tree::{Parent, Reached, ToKey, Tree};
use crate::version::Backoff;

/// The outcome of an insert.
#[derive(Clone, Copy, Debug)]
pub enum Insert {
    /// The key is in the index now.
    Inserted {
        /// The versions this has moved.
        changes: Changes,
    },
    /// The key was there; nothing has changed.
    Exists {
        /// Its value.
        value: u64,
        /// The leaf it is in.
        leaf: LeafStamp,
    },
}

impl<K: KeyKind> Tree<K> {
    #[inline]
    pub fn insert(&self, key: K::Probe<'_>, value: u64) -> Insert {
        let guard = K::enter();
        let mut backoff = Backoff::default();
        loop {
            let reached = self.reach_leaf(&mut ToKey(key), &guard);
            // SAFETY: reached at level 0.
            let leaf = unsafe { self.leaf(reached.node) };
            match leaf.find(key, &guard) {
                Ok(position) => {
                    let value = leaf.value(position);
                    if leaf.lock.unchanged_since(reached.version) {
                        return Insert::Exists { value, leaf: leaf.stamp(reached.version) };
                    }
                }
                Err(position) if leaf.has_room(position, key) => {
                    if leaf.lock.try_lock(reached.version) {
                        leaf.insert(position, self.own(key), value);
                        return Insert::Inserted { changes: Changes::new(self.unlock_leaf(leaf, reached.version)) };
                    }
                }
                Err(position) => {
                    if let Some(changes) = self.split_and_insert(&reached, position, key, value, &guard) {
                        return Insert::Inserted { changes };
                    }
                }
            }
            backoff.wait();
        }
    }

    /// Splits the leaf without room that was reached and inserts at `position`; `None` if that has to start again.
    #[cold]
    fn split_and_insert(
        &self,
        reached: &Reached<'_, K>,
        position: usize,
        key: K::Probe<'_>,
        value: u64,
        guard: &K::Guard,
    ) -> Option<Changes> {
        // SAFETY: the caller reached it at level 0.
        let leaf = unsafe { self.leaf(reached.node) };
        if reached.parent.as_ref().is_some_and(|parent| parent.inner.count() == INNER_CELLS) {
            self.split_inner(1, key, guard);
            return None;
        }
        if !self.lock_with_parent(reached) {
            return None;
        }
        let (right, right_version) = self.new_leaf();
        let (cut, count) = (leaf.cut_for(position, key), leaf.count());
        leaf.move_tail(cut, right);
        if position < cut || (position == cut && cut < count) {
            leaf.insert(position, self.own(key), value);
        } else {
            right.insert(position - cut, self.own(key), value);
        }
        let separator = K::separator(leaf.key(leaf.count() - 1), right.key(0), guard);
        self.key_bytes_add(separator);
        self.link_right(reached.parent.as_ref(), reached.node, separator, right.as_node(), 0);

        let right_stamp = right.stamp(right.lock.unlock_changed(right_version));
        let left_step = self.unlock_leaf(leaf, reached.version);
        let mut changes = Changes::new(left_step);
        changes.push(Change { before: left_step.before, after: right_stamp });
        Some(changes)
    }

    /// Splits the inner node at `level` on the way to `key` if it is full, or failing room above it, the one above.
    /// Does one step; the caller starts again in any case.
    fn split_inner(&self, level: usize, key: K::Probe<'_>, guard: &K::Guard) {
        let Some(reached) = self.reach_inner(level, &mut ToKey(key), guard) else { return };
        // SAFETY: reached at a level above 0.
        let left = unsafe { self.inner(reached.node) };
        let slot = left.count_to(key, guard);
        if left.count() < INNER_CELLS {
            return;
        }
        if reached.parent.as_ref().is_some_and(|parent| parent.inner.count() == INNER_CELLS) {
            return self.split_inner(level + 1, key, guard);
        }
        if !self.lock_with_parent(&reached) {
            return;
        }
        let (right, right_version) = self.new_inner();
        let separator = left.split(left.middle_for(slot), right);
        self.link_right(reached.parent.as_ref(), reached.node, separator, right.as_node(), level);
        right.lock.unlock_changed(right_version);
        left.lock.unlock_changed(reached.version);
    }

    /// Locks the parent, if there is one, and the node; both or neither.
    #[expect(clippy::unused_self, reason = "the node lives as long as the tree")]
    pub(crate) fn lock_with_parent(&self, reached: &Reached<'_, K>) -> bool {
        // SAFETY: a reached node is a node of this tree.
        let lock = unsafe { &*reached.node };
        let Some(parent) = &reached.parent else { return lock.try_lock(reached.version) };
        if !parent.inner.lock.try_lock(parent.version) {
            return false;
        }
        let locked = lock.try_lock(reached.version);
        if !locked {
            parent.inner.lock.unlock_unchanged(parent.version);
        }
        locked
    }

    /// Makes `right` the next after `left`, a node at `level`: in the locked parent, which it unlocks, or below a new
    /// root.
    fn link_right(&self, parent: Option<&Parent<'_, K>>, left: NodePtr, key: K::Held, right: NodePtr, level: usize) {
        if let Some(parent) = parent {
            parent.inner.insert(parent.slot, key, right);
            parent.inner.lock.unlock_changed(parent.version);
        } else {
            let (root, version) = self.new_inner();
            root.set_first_child(left);
            root.insert(0, key, right);
            root.lock.unlock_changed(version);
            self.set_root(root.as_node(), level + 1);
        }
    }

    fn own(&self, key: K::Probe<'_>) -> K::Held {
        let held = K::own(key);
        self.key_bytes_add(held);
        self.len.add(1);
        held
    }

    fn key_bytes_add(&self, key: K::Held) {
        let bytes = K::bytes(key);
        if bytes != 0 {
            self.key_bytes.add(bytes.cast_signed());
        }
    }

    #[inline]
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests plant a bug in the tree"))]
    fn unlock_leaf(&self, leaf: &Leaf<K>, version: u64) -> Change {
        #[cfg(test)]
        if self.forgets_versions.load(std::sync::atomic::Ordering::Relaxed) {
            leaf.lock.unlock_unchanged(version);
            return Change { before: leaf.stamp(version), after: leaf.stamp(version) };
        }
        let after = leaf.lock.unlock_changed(version);
        Change { before: leaf.stamp(version), after: leaf.stamp(after) }
    }
}
