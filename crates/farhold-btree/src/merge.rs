//! Removals, and the merges of thin nodes.
//!
//! ```text
//!  empty leaf      goes; a neighbour below the same parent inherits its range, untouched
//!  thin leaf       and a neighbour become one, if they fill at most three quarters of it
//!  thin inner      likewise; or, if it has a single child and its neighbour is full, they share evenly
//!  root, 1 child   goes; the child is the root
//! ```
//!
//! So a queue (inserted at one end, removed at the other) keeps as many leaves as its keys need. A removal looks for a
//! merge when it leaves a multiple of four rows, not each time: the look is a second way down the tree.

use crate::key::KeyKind;
use crate::node::{INNER_CELLS, Inner, Leaf, NodePtr};
use crate::stamp::{Change, Changes};
use crate::tree::{Parent, Reached, ToKey, Tree};
use crate::version::{Backoff, VersionLock};

const THIN_INNER: usize = INNER_CELLS / 4;
/// Merged nodes keep a quarter free, so that the next inserts do not split them again; leaves likewise.
const MERGED_INNER_MAX: usize = INNER_CELLS * 3 / 4;
const LOOK_EVERY: usize = 4;

/// Whether an attempt must be made again.
#[derive(PartialEq, Eq)]
enum Attempt {
    Over,
    Disturbed,
}

/// Two neighbours below one parent, one of them the node that was reached.
struct Pair {
    left_slot: usize,
    left: NodePtr,
    right: NodePtr,
    other: NodePtr,
}

impl<K: KeyKind> Tree<K> {
    pub fn remove(&self, key: K::Probe<'_>, expected: u64) -> Option<Changes> {
        let guard = K::enter();
        let mut backoff = Backoff::default();
        loop {
            let reached = self.reach_leaf(&mut ToKey(key), &guard);
            // SAFETY: reached at level 0.
            let leaf = unsafe { self.leaf(reached.node) };
            let position = leaf.find(key, &guard).ok().filter(|&position| leaf.value(position) == expected);
            if let Some(position) = position {
                if leaf.lock.try_lock(reached.version) {
                    let held = leaf.remove(position);
                    let (count, thin) = (leaf.count(), thin(leaf));
                    let after = leaf.stamp(leaf.lock.unlock_changed(reached.version));
                    let mut changes = Changes::new(Change { before: leaf.stamp(reached.version), after });
                    self.len.add(-1);
                    self.discard(held, &guard);
                    if count <= thin && count.is_multiple_of(LOOK_EVERY) {
                        self.thin_out(key, &mut changes, &guard);
                    }
                    return Some(changes);
                }
            } else if leaf.lock.unchanged_since(reached.version) {
                return None;
            }
            backoff.wait();
        }
    }

    /// Merges the leaf of `key` if it is thin, adding what that does to `changes`.
    #[cold]
    fn thin_out(&self, key: K::Probe<'_>, changes: &mut Changes, guard: &K::Guard) {
        let mut backoff = Backoff::default();
        while self.try_thin_out(key, changes, guard) == Attempt::Disturbed {
            backoff.wait();
        }
    }

    fn try_thin_out(&self, key: K::Probe<'_>, changes: &mut Changes, guard: &K::Guard) -> Attempt {
        let reached = self.reach_leaf(&mut ToKey(key), guard);
        // SAFETY: reached at level 0.
        let leaf = unsafe { self.leaf(reached.node) };
        let count = leaf.count();
        let Some(parent) = &reached.parent else { return Attempt::Over };
        if count > thin(leaf) {
            return Attempt::Over;
        }
        if parent.inner.count() == 0 {
            self.merge_inner(1, key, guard);
            return Attempt::Disturbed;
        }
        let attempt = if count == 0 {
            self.drop_empty(&reached, parent, changes, guard)
        } else {
            self.merge_leaf(&reached, parent, changes, guard)
        };
        if attempt == Attempt::Over && parent.inner.count() <= THIN_INNER {
            self.merge_inner(1, key, guard);
        }
        attempt
    }

    /// Unlinks an empty leaf. A neighbour inherits its range. A transaction that holds a stamp of the empty leaf must now hold a
    /// stamp of the neighbour, at the version that it has while the parent is locked. An insert into the range comes through the
    /// parent, so it comes later, and moves that version.
    fn drop_empty(
        &self,
        reached: &Reached<'_, K>,
        parent: &Parent<'_, K>,
        changes: &mut Changes,
        guard: &K::Guard,
    ) -> Attempt {
        if !self.lock_with_parent(reached) {
            return Attempt::Disturbed;
        }
        // SAFETY: reached at level 0; and children of its parent, which is locked, are leaves as well.
        let (leaf, heir) = unsafe {
            let heir_slot = if parent.slot == 0 { 1 } else { parent.slot - 1 };
            (self.leaf(reached.node), self.leaf(parent.inner.child(heir_slot)))
        };
        let Some(heir_version) = heir.lock.read() else {
            leaf.lock.unlock_unchanged(reached.version);
            parent.inner.lock.unlock_unchanged(parent.version);
            return Attempt::Disturbed;
        };
        let separator =
            if parent.slot == 0 { parent.inner.remove_first() } else { parent.inner.remove(parent.slot - 1) };
        changes.push(Change { before: leaf.stamp(reached.version), after: heir.stamp(heir_version) });
        leaf.lock.retire(reached.version);
        parent.inner.lock.unlock_changed(parent.version);
        self.leaves.give_back(leaf);
        self.discard(separator, guard);
        Attempt::Over
    }

    /// Moves a thin leaf and a neighbour into one, if they leave room in it.
    fn merge_leaf(
        &self,
        reached: &Reached<'_, K>,
        parent: &Parent<'_, K>,
        changes: &mut Changes,
        guard: &K::Guard,
    ) -> Attempt {
        let Some(pair) = pair_of(reached.node, parent) else { return Attempt::Disturbed };
        // SAFETY: both are children of a parent of leaves: `reached` at level 0, the other its neighbour.
        let (left, right, other) = unsafe { (self.leaf(pair.left), self.leaf(pair.right), self.leaf(pair.other)) };
        let Some(other_version) = other.lock.read() else { return Attempt::Disturbed };
        if left.count() + right.count() > left.cells_joined(right) * 3 / 4 {
            return Attempt::Over;
        }
        if !lock_all([
            (&parent.inner.lock, parent.version),
            // SAFETY: a reached node is a node of this tree.
            (unsafe { &*reached.node }, reached.version),
            (&other.lock, other_version),
        ]) {
            return Attempt::Disturbed;
        }
        right.move_tail(0, left);
        left.forget_newest();
        let separator = parent.inner.remove(pair.left_slot);

        let (left_version, right_version) = if other.as_node() == pair.left {
            (other_version, reached.version)
        } else {
            (reached.version, other_version)
        };
        let after = left.stamp(left.lock.unlock_changed(left_version));
        right.lock.retire(right_version);
        parent.inner.lock.unlock_changed(parent.version);
        changes.push(Change { before: left.stamp(left_version), after });
        changes.push(Change { before: right.stamp(right_version), after });
        self.leaves.give_back(right);
        self.discard(separator, guard);
        Attempt::Over
    }

    /// Merges the inner node at `level` on the way to `key` if it is thin. It tries once: a caller that needs the merge checks
    /// again, and for other callers it only saves memory.
    fn merge_inner(&self, level: usize, key: K::Probe<'_>, guard: &K::Guard) {
        let Some(reached) = self.reach_inner(level, &mut ToKey(key), guard) else { return };
        // SAFETY: reached at a level above 0.
        let node = unsafe { self.inner(reached.node) };
        let count = node.count();
        if count > THIN_INNER {
            return;
        }
        let Some(parent) = &reached.parent else {
            if count == 0 {
                self.drop_root(node, reached.version, level);
            }
            return;
        };
        if parent.inner.count() == 0 {
            return self.merge_inner(level + 1, key, guard);
        }
        let Some(pair) = pair_of(reached.node, parent) else { return };
        // SAFETY: both are children of a parent of inner nodes: `reached` above level 0, the other its neighbour.
        let (left, right, other) = unsafe { (self.inner(pair.left), self.inner(pair.right), self.inner(pair.other)) };
        let Some(other_version) = other.lock.read() else { return };
        let merged = left.count() + 1 + right.count();
        if merged > MERGED_INNER_MAX && count > 0 {
            return;
        }
        if !lock_all([
            (&parent.inner.lock, parent.version),
            (&node.lock, reached.version),
            (&other.lock, other_version),
        ]) {
            return;
        }
        let (left_version, right_version) = if other.as_node() == pair.left {
            (other_version, reached.version)
        } else {
            (reached.version, other_version)
        };
        if merged > INNER_CELLS {
            share_evenly(parent.inner, &pair, left, right);
            right.lock.unlock_changed(right_version);
        } else {
            join(parent.inner, &pair, left, right);
            right.lock.retire(right_version);
            self.inners.give_back(right);
        }
        left.lock.unlock_changed(left_version);
        let parent_count = parent.inner.count();
        parent.inner.lock.unlock_changed(parent.version);
        if parent_count <= THIN_INNER {
            self.merge_inner(level + 1, key, guard);
        }
    }

    /// Makes the single child of the root the root.
    fn drop_root(&self, root: &Inner<K>, version: u64, level: usize) {
        if !root.lock.try_lock(version) {
            return;
        }
        self.set_root(root.child(0), level - 1);
        root.lock.retire(version);
        self.inners.give_back(root);
    }

    fn discard(&self, key: K::Held, guard: &K::Guard) {
        let bytes = K::bytes(key);
        if bytes != 0 {
            self.key_bytes.add(-bytes.cast_signed());
        }
        K::retire(key, guard);
    }
}

/// A leaf with at most this many rows is thin.
fn thin<K: KeyKind>(leaf: &Leaf<K>) -> usize {
    leaf.cells() / 4
}

/// The neighbour to merge with: the left one, for the leftmost the right one. What is read here may be torn; the
/// parent's lock decides.
fn pair_of<K: KeyKind>(node: NodePtr, parent: &Parent<'_, K>) -> Option<Pair> {
    let left_slot = parent.slot.saturating_sub(1);
    let (left, right) =
        if parent.slot == 0 { (node, parent.inner.child(1)) } else { (parent.inner.child(left_slot), node) };
    let other = if parent.slot == 0 { right } else { left };
    let right_order = parent.inner.lock.unchanged_since(parent.version);
    (right_order && !other.is_null()).then_some(Pair { left_slot, left, right, other })
}

/// Locks every node at its version, or none.
fn lock_all(locks: [(&VersionLock, u64); 3]) -> bool {
    for (taken, (lock, version)) in locks.into_iter().enumerate() {
        if !lock.try_lock(version) {
            locks[..taken].iter().for_each(|(lock, version)| lock.unlock_unchanged(*version));
            return false;
        }
    }
    true
}

/// All keys of two locked neighbours, the one between them included, and all their children, in order.
fn contents<K: KeyKind>(
    parent: &Inner<K>,
    pair: &Pair,
    left: &Inner<K>,
    right: &Inner<K>,
) -> (Vec<K::Held>, Vec<NodePtr>) {
    let keys = |inner: &Inner<K>| (0..inner.count()).map(|slot| inner.key(slot)).collect::<Vec<_>>();
    let children = |inner: &Inner<K>| (0..=inner.count()).map(|slot| inner.child(slot)).collect::<Vec<_>>();
    let between = vec![parent.key(pair.left_slot)];
    ([keys(left), between, keys(right)].concat(), [children(left), children(right)].concat())
}

fn join<K: KeyKind>(parent: &Inner<K>, pair: &Pair, left: &Inner<K>, right: &Inner<K>) {
    let (keys, children) = contents(parent, pair, left, right);
    right.fill(&[], &[]);
    parent.remove(pair.left_slot);
    left.fill(&keys, &children);
}

fn share_evenly<K: KeyKind>(parent: &Inner<K>, pair: &Pair, left: &Inner<K>, right: &Inner<K>) {
    let (keys, children) = contents(parent, pair, left, right);
    let middle = keys.len() / 2;
    left.fill(&keys[..middle], &children[..=middle]);
    parent.set_key(pair.left_slot, keys[middle]);
    right.fill(&keys[middle + 1..], &children[middle + 1..]);
}
