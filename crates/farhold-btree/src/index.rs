//! The public index: takes keys as bytes, and uses the tree for their shape.

use std::ops::{Bound, ControlFlow};

use crate::insert::Insert;
use crate::key::{KeyKind, Pair, Word};
use crate::lookup::Lookup;
use crate::scan::Span;
use crate::shape::{
    KeyShape, PAIR_BYTES, SHORT_BYTES_MAX, WORD_BYTES, fixed_pair, fixed_word, lower_cut, lower_fitted, short_key,
    upper_cut, upper_fitted,
};
use crate::stamp::{Changes, LeafStamp};
use crate::text::{Text, TextProbe};
use crate::tree::Tree;

/// An ordered map from byte strings to `u64`, shared by threads without an outer lock.
///
/// Keys are ordered as bytes. Every method may be called by any number of threads at once, also from inside a scan's
/// visitor. A key that does not have the shape given to [`OrderedIndex::new`] is a bug of the caller and panics; the
/// bounds of scans may have any length.
pub struct OrderedIndex {
    kind: Kind,
}

enum Kind {
    Word { tree: Tree<Word>, length: usize },
    Pair { tree: Tree<Pair>, length: usize },
    Short { tree: Tree<Pair> },
    Text { tree: Tree<Text> },
}

/// Runs `$body` with the tree and the key as that tree knows it.
macro_rules! with_key {
    ($index:expr, $key:expr, |$tree:ident, $probe:ident| $body:expr) => {
        match &$index.kind {
            Kind::Word { tree: $tree, length } => {
                assert_eq!($key.len(), *length, "a key of another length");
                let $probe = fixed_word($key);
                $body
            }
            Kind::Pair { tree: $tree, length } => {
                assert_eq!($key.len(), *length, "a key of another length");
                let $probe = fixed_pair($key);
                $body
            }
            Kind::Short { tree: $tree } => {
                assert!($key.len() <= SHORT_BYTES_MAX, "a key longer than 15 bytes");
                let $probe = short_key($key);
                $body
            }
            Kind::Text { tree: $tree } => {
                let $probe = TextProbe::new($key);
                $body
            }
        }
    };
}

macro_rules! with_tree {
    ($index:expr, |$tree:ident| $body:expr) => {
        match &$index.kind {
            Kind::Word { tree: $tree, .. } => $body,
            Kind::Pair { tree: $tree, .. } | Kind::Short { tree: $tree } => $body,
            Kind::Text { tree: $tree } => $body,
        }
    };
}

/// Runs one of the two scans of the tree, with bounds and keys translated.
macro_rules! scan_with {
    ($index:expr, $scan:ident, $lo:expr, $hi:expr, $visit:expr, $ahead:expr, $leaves:expr) => {{
        let (mut lo_room, mut hi_room) = ([0; 16], [0; 16]);
        match &$index.kind {
            Kind::Word { tree, length } => {
                let lo = lower_fitted($lo, *length, &mut lo_room).map(fixed_word);
                let hi = upper_fitted($hi, *length, &mut hi_room).map(fixed_word);
                let show = |key: u64, value| $visit(&key.to_be_bytes()[..*length], value);
                tree.$scan(Span { lo, hi }, &Word::enter(), show, $ahead, $leaves);
            }
            Kind::Pair { tree, length } => {
                let lo = lower_fitted($lo, *length, &mut lo_room).map(fixed_pair);
                let hi = upper_fitted($hi, *length, &mut hi_room).map(fixed_pair);
                let show = |key: u128, value| $visit(&key.to_be_bytes()[PAIR_BYTES - *length..], value);
                tree.$scan(Span { lo, hi }, &Pair::enter(), show, $ahead, $leaves);
            }
            Kind::Short { tree } => {
                let (lo, hi) = (lower_cut($lo).map(short_key), upper_cut($hi).map(short_key));
                let show = |key: u128, value| {
                    let bytes = key.to_be_bytes();
                    $visit(&bytes[..usize::from(bytes[SHORT_BYTES_MAX])], value)
                };
                tree.$scan(Span { lo, hi }, &Pair::enter(), show, $ahead, $leaves);
            }
            Kind::Text { tree } => {
                let guard = Text::enter();
                let (lo, hi) = ($lo.map(TextProbe::new), $hi.map(TextProbe::new));
                let show = |key, value| Text::probe(key, &guard).with_bytes(|key| $visit(key, value));
                tree.$scan(Span { lo, hi }, &guard, show, $ahead, $leaves);
            }
        }
    }};
}

impl OrderedIndex {
    /// An empty index for keys of the given shape.
    ///
    /// # Panics
    /// On [`KeyShape::Fixed`] outside 1 to 16 bytes.
    #[must_use]
    pub fn new(shape: KeyShape) -> Self {
        let kind = match shape {
            KeyShape::Fixed(length @ 1..=WORD_BYTES) => Kind::Word { tree: Tree::new(), length },
            KeyShape::Fixed(length @ 1..=PAIR_BYTES) => Kind::Pair { tree: Tree::new(), length },
            KeyShape::Fixed(length) => panic!("fixed keys have 1 to 16 bytes, not {length}"),
            KeyShape::Short => Kind::Short { tree: Tree::new() },
            KeyShape::Bytes => Kind::Text { tree: Tree::new() },
        };
        Self { kind }
    }

    /// The key's value, and the stamp of the leaf that says so.
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    #[must_use]
    #[inline]
    pub fn get(&self, key: &[u8]) -> Lookup {
        with_key!(self, key, |tree, probe| tree.get(probe))
    }

    /// Starts loading the leaf where the key is or would be, for an operation some 100 ns later. A hint: nothing depends on it.
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        with_key!(self, key, |tree, probe| tree.prefetch(probe));
    }

    /// Adds the key, unless it is there.
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    #[inline]
    pub fn insert(&self, key: &[u8], value: u64) -> Insert {
        with_key!(self, key, |tree, probe| tree.insert(probe, value))
    }

    /// Gives the key the value `new` if it has the value `expected`; `None` if its value is another, or it is not there.
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    pub fn replace(&self, key: &[u8], expected: u64, new: u64) -> Option<Changes> {
        with_key!(self, key, |tree, probe| tree.replace(probe, expected, new))
    }

    /// Takes the key out if it has the value `expected`; `None` if its value is another, or it is not there.
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    pub fn remove(&self, key: &[u8], expected: u64) -> Option<Changes> {
        with_key!(self, key, |tree, probe| tree.remove(probe, expected))
    }

    /// Shows the rows between the bounds in ascending order until the visitor breaks.
    ///
    /// The rows of one leaf are of one moment; those of different leaves may be of different ones. The stamp of every leaf
    /// searched is added to `leaves` before its rows are shown, also if it has no rows in the range. While all these stamps are
    /// valid, the range is as it was shown, up to where the visitor stopped.
    pub fn scan(
        &self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
        leaves: &mut Vec<LeafStamp>,
    ) {
        self.scan_ahead(lo, hi, visit, &mut |_| (), leaves);
    }

    /// As [`OrderedIndex::scan`]. `ahead` receives the values that will be shown soon, so that it can begin to load what they
    /// name. The visitor may break before they are shown.
    pub fn scan_ahead(
        &self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
        ahead: &mut dyn FnMut(u64),
        leaves: &mut Vec<LeafStamp>,
    ) {
        scan_with!(self, scan, lo, hi, visit, ahead, leaves);
    }

    /// As [`OrderedIndex::scan`], in descending order, from `hi` down to `lo`.
    pub fn scan_rev(
        &self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
        leaves: &mut Vec<LeafStamp>,
    ) {
        self.scan_rev_ahead(lo, hi, visit, &mut |_| (), leaves);
    }

    /// As [`OrderedIndex::scan_ahead`], in descending order.
    pub fn scan_rev_ahead(
        &self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
        ahead: &mut dyn FnMut(u64),
        leaves: &mut Vec<LeafStamp>,
    ) {
        scan_with!(self, scan_rev, lo, hi, visit, ahead, leaves);
    }

    /// Whether the leaf still has the stamp's version. Any stamp may be passed, also one of another index or of a leaf that is
    /// gone. For a stamp of this index the answer is never a false yes.
    #[must_use]
    pub fn validate(&self, stamp: LeafStamp) -> bool {
        with_tree!(self, |tree| tree.validate(stamp))
    }

    /// The number of keys; exact while no thread writes.
    #[must_use]
    pub fn len(&self) -> usize {
        with_tree!(self, |tree| tree.len.sum())
    }

    /// Whether there are no keys; exact while no thread writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all nodes ever used (they are reused, not returned) and of all long keys.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        with_tree!(self, |tree| tree.memory_bytes())
    }

    /// Of these the bytes of long keys.
    #[cfg(test)]
    pub(crate) fn key_bytes(&self) -> usize {
        with_tree!(self, |tree| tree.key_bytes.sum())
    }
}

#[cfg(test)]
pub(crate) mod for_tests {
    //! Access of the tests below the public methods.

    use std::sync::atomic::Ordering::Relaxed;

    use super::{Kind, OrderedIndex};

    /// Plants the bug of inserts that leave the version as it was (only where nothing else runs at the same time).
    pub(crate) fn forget_versions(index: &OrderedIndex, forget: bool) {
        with_tree!(index, |tree| tree.forgets_versions.store(forget, Relaxed));
    }

    /// The rows that fit in all leaves as they are.
    pub(crate) fn cells_in_use(index: &mut OrderedIndex) -> usize {
        match &mut index.kind {
            Kind::Word { tree, .. } => tree.leaf_cells(),
            Kind::Pair { tree, .. } | Kind::Short { tree } => tree.leaf_cells(),
            Kind::Text { tree } => tree.leaf_cells(),
        }
    }

    pub(crate) fn leaves_in_use(index: &OrderedIndex) -> usize {
        with_tree!(index, |tree| tree.leaves.in_use())
    }
}
