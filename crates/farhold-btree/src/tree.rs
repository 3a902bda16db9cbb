//! The tree: its root, and the way down to a node.
//!
//! ```text
//!  root word = address | height      (nodes are 64-byte aligned, so six bits are free; height 0: the root is a leaf)
//! ```
//!
//! Going down, a reader notes a node's version, finds the child in it, and notes the child's version. Only then it checks that
//! the parent still has its version. So the child was the right one when its version was noted. Whatever happens to the child
//! later shows in that version, its removal and reuse included. Writers come down in the same way, and lock by moving a word from
//! the version that they have noted.
//!
//! Invariants:
//! - The root word changes only under the lock of the root it replaces, whose version then moves. A node that was the
//!   root at a version is the root while it stands at that version.
//! - A thread never waits for a lock while it holds another. If it finds one taken, it releases all and starts again. So there is
//!   no deadlock.
//! - A leaf's range of keys shrinks only in a change of that leaf, so a version covers a range as well. The range may grow
//!   without a change (`merge` drops an empty neighbour), which does not invalidate what was seen.

use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::arena::Arena;
use crate::counter::Counter;
use crate::key::KeyKind;
use crate::node::{Inner, Leaf, NodePtr};
use crate::search::prefetch;
use crate::stamp::LeafStamp;
use crate::version::Backoff;

const HEIGHT_MASK: usize = 63;

pub(crate) struct Tree<K: KeyKind> {
    root: AtomicPtr<u8>,
    pub leaves: Arena<Leaf<K>>,
    pub inners: Arena<Inner<K>>,
    /// Keys in the tree.
    pub len: Counter,
    /// Bytes of keys that do not fit their cells.
    pub key_bytes: Counter,
    /// Tests plant a bug here: inserts leave the version as it was.
    #[cfg(test)]
    pub forgets_versions: std::sync::atomic::AtomicBool,
}

/// A node reached from above, at the version it had while it was where the way led.
pub(crate) struct Reached<'t, K: KeyKind> {
    pub node: NodePtr,
    pub version: u64,
    pub parent: Option<Parent<'t, K>>,
}

/// The node above, and which child of it was taken.
pub(crate) struct Parent<'t, K: KeyKind> {
    pub inner: &'t Inner<K>,
    pub version: u64,
    pub slot: usize,
}

/// Chooses the child at each inner node on the way down. What it reads there may be torn; the tree checks, and calls
/// `start` again if it was.
pub(crate) trait Route<K: KeyKind> {
    fn start(&mut self) {}
    fn child_slot(&mut self, inner: &Inner<K>, level: usize, guard: &K::Guard) -> usize;
}

/// To the node whose range contains a key.
#[derive(Clone, Copy)]
pub(crate) struct ToKey<P>(pub P);

impl<K: KeyKind> Route<K> for ToKey<K::Probe<'_>> {
    #[inline]
    fn child_slot(&mut self, inner: &Inner<K>, _: usize, guard: &K::Guard) -> usize {
        inner.count_to(self.0, guard)
    }
}

impl<K: KeyKind> Tree<K> {
    pub fn new() -> Self {
        let tree = Self {
            root: AtomicPtr::default(),
            leaves: Arena::new(),
            inners: Arena::new(),
            len: Counter::default(),
            key_bytes: Counter::default(),
            #[cfg(test)]
            forgets_versions: false.into(),
        };
        let (leaf, version) = tree.new_leaf();
        leaf.lock.unlock_changed(version);
        tree.set_root(leaf.as_node(), 0);
        tree
    }

    /// The leaf the route leads to.
    #[inline]
    pub fn reach_leaf(&self, route: &mut impl Route<K>, guard: &K::Guard) -> Reached<'_, K> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(reached) = self.try_reach(0, route, guard) {
                return reached;
            }
            backoff.wait();
        }
    }

    /// The inner node at `level` the route leads to (leaves are level 0), or `None` if the tree is not that high.
    pub fn reach_inner(&self, level: usize, route: &mut impl Route<K>, guard: &K::Guard) -> Option<Reached<'_, K>> {
        let mut backoff = Backoff::default();
        while level <= self.root().1 {
            if let Some(reached) = self.try_reach(level, route, guard) {
                return Some(reached);
            }
            backoff.wait();
        }
        None
    }

    /// One way down; `None` if something changed on it.
    #[expect(clippy::inline_always, reason = "left to itself it is a call with its result in memory")]
    #[inline(always)]
    fn try_reach(&self, level: usize, route: &mut impl Route<K>, guard: &K::Guard) -> Option<Reached<'_, K>> {
        route.start();
        let (root, height) = self.root();
        // SAFETY: the root word always holds a node of this tree, and nodes live as long as it does.
        let mut version = unsafe { &*root }.read()?;
        if self.root() != (root, height) || height < level {
            return None;
        }
        let (mut node, mut parent) = (root, None);
        for level in (level + 1..=height).rev() {
            // SAFETY: a node more than `level` above the leaves, as checked for the root and for each child below.
            let inner = unsafe { self.inner(node) };
            let slot = route.child_slot(inner, level, guard);
            let child = inner.child(slot);
            // All of a leaf, values too: 75 to 105 ns a get against 155 to 180 with its keys alone and 220 to 250
            // without (1 M keys; a value is the third miss in a row then).
            let bytes = if level == 1 { size_of::<Leaf<K>>() } else { Inner::<K>::SEARCHED_BYTES };
            prefetch(child, bytes);
            if child.is_null() {
                return None;
            }
            // SAFETY: a child pointer that is not null points at a node (see `node`), and nodes live as long as the
            // tree. It may be the wrong one until the check two lines down.
            let child_version = unsafe { &*child }.read();
            if !inner.lock.unchanged_since(version) {
                return None;
            }
            parent = Some(Parent { inner, version, slot });
            (node, version) = (child, child_version?);
        }
        Some(Reached { node, version, parent })
    }

    #[inline]
    pub fn root(&self) -> (NodePtr, usize) {
        let word = self.root.load(Acquire);
        (word.map_addr(|address| address & !HEIGHT_MASK).cast(), word.addr() & HEIGHT_MASK)
    }

    /// The caller holds the lock of the root this replaces, or the tree is new.
    pub fn set_root(&self, node: NodePtr, height: usize) {
        assert!(height <= HEIGHT_MASK, "62-way nodes 63 levels high: more than memory holds");
        self.root.store(node.cast::<u8>().map_addr(|address| address | height), Release);
    }

    /// # Safety
    /// `node` is a leaf of this tree.
    #[expect(clippy::unused_self, reason = "the node lives as long as the tree")]
    #[inline]
    pub unsafe fn leaf(&self, node: NodePtr) -> &Leaf<K> {
        // SAFETY: the caller's promise; leaves live as long as the tree.
        unsafe { &*node.cast() }
    }

    /// # Safety
    /// `node` is an inner node of this tree.
    #[expect(clippy::unused_self, reason = "the node lives as long as the tree")]
    #[inline]
    pub unsafe fn inner(&self, node: NodePtr) -> &Inner<K> {
        // SAFETY: the caller's promise; inner nodes live as long as the tree.
        unsafe { &*node.cast() }
    }

    /// A locked, empty leaf in no tree, and the version to unlock it from.
    pub fn new_leaf(&self) -> (&Leaf<K>, u64) {
        let (leaf, id) = self.leaves.take();
        let version = leaf.lock.adopt();
        if let Some(id) = id {
            leaf.begin(id);
        }
        leaf.forget_newest();
        (leaf, version)
    }

    /// A locked, empty inner node in no tree, and the version to unlock it from.
    pub fn new_inner(&self) -> (&Inner<K>, u64) {
        let (inner, first_use) = self.inners.take();
        let version = inner.lock.adopt();
        if first_use.is_some() {
            inner.begin();
        }
        inner.set_newest(usize::MAX);
        (inner, version)
    }

    pub fn validate(&self, stamp: LeafStamp) -> bool {
        // Version 0 belongs to a place in the arena that has never been used.
        stamp.version != 0 && self.leaves.get(stamp.leaf).is_some_and(|leaf| leaf.lock.is(stamp.version))
    }

    /// The rows that fit in all leaves in use as they are.
    #[cfg(test)]
    pub fn leaf_cells(&mut self) -> usize {
        // A leaf on the free list is locked.
        self.leaves.nodes().filter(|leaf| leaf.lock.read().is_some()).map(Leaf::cells).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.leaves.bytes() + self.inners.bytes() + self.key_bytes.sum()
    }
}

impl<K: KeyKind> Drop for Tree<K> {
    fn drop(&mut self) {
        if !std::mem::needs_drop::<K::Guard>() {
            return; // No guard, so nothing behind the cells.
        }
        let leaf_keys = self.leaves.nodes().flat_map(|leaf| (0..leaf.count()).map(|position| leaf.key(position)));
        leaf_keys.for_each(K::free);
        let inner_keys = self.inners.nodes().flat_map(|inner| (0..inner.count()).map(|slot| inner.key(slot)));
        inner_keys.for_each(K::free);
    }
}
