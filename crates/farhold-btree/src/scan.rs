//! Scans: each leaf is copied out whole, checked, and only then shown.
//!
//! ```text
//!  lo ..... | leaf | fence | leaf | fence | leaf ..... hi
//!             ^ way down to `lo`   ^ way down to the fence, which the way before has met
//! ```
//!
//! Leaves have no pointers to their neighbours. The key that bounds a leaf, met on the way down to it, leads to the next one, in
//! either direction, and splits and merges have one pointer less to maintain. No lock is held and no copy is half-checked while
//! the visitor runs, so the visitor may use the index itself.

use std::mem::MaybeUninit;
use std::ops::{Bound, ControlFlow};

use crate::key::KeyKind;
use crate::node::{Inner, LEAF_CELLS, Leaf};
use crate::search::prefetch;
use crate::stamp::LeafStamp;
use crate::tree::{Route, Tree};
use crate::version::Backoff;

/// Both ends of a scan.
pub(crate) struct Span<P> {
    pub lo: Bound<P>,
    pub hi: Bound<P>,
}

/// To the leaf with the first key behind a bound; keeps the key that ends that leaf's range.
struct Ascend<'g, K: KeyKind> {
    from: Bound<K::Probe<'g>>,
    /// A leaf has been shown already, so the one after this will probably be wanted as well.
    goes_on: bool,
    fence: Option<K::Held>,
}

/// To the leaf with the last key before a bound; keeps the key that begins that leaf's range.
struct Descend<'g, K: KeyKind> {
    from: Bound<K::Probe<'g>>,
    /// A leaf has been shown already, so the one after this will probably be wanted as well.
    goes_on: bool,
    fence: Option<K::Held>,
}

impl<K: KeyKind> Route<K> for Ascend<'_, K> {
    #[inline]
    fn start(&mut self) {
        self.fence = None;
    }

    #[inline]
    fn child_slot(&mut self, inner: &Inner<K>, level: usize, guard: &K::Guard) -> usize {
        let slot = match self.from {
            Bound::Unbounded => 0,
            Bound::Included(from) | Bound::Excluded(from) => inner.count_to(from, guard),
        };
        if slot < inner.count() {
            self.fence = Some(inner.key(slot));
            if self.goes_on && level == 1 {
                prefetch(inner.child(slot + 1), size_of::<Leaf<K>>());
            }
        }
        slot
    }
}

impl<K: KeyKind> Route<K> for Descend<'_, K> {
    #[inline]
    fn start(&mut self) {
        self.fence = None;
    }

    #[inline]
    fn child_slot(&mut self, inner: &Inner<K>, level: usize, guard: &K::Guard) -> usize {
        let slot = match self.from {
            Bound::Unbounded => inner.count(),
            Bound::Included(from) => inner.count_to(from, guard),
            Bound::Excluded(from) => inner.count_less(from, guard),
        };
        if slot > 0 {
            self.fence = Some(inner.key(slot - 1));
            if self.goes_on && level == 1 {
                prefetch(inner.child(slot - 1), size_of::<Leaf<K>>());
            }
        }
        slot
    }
}

/// The rows of one leaf that lie in the span, copied out.
struct Rows<K: KeyKind> {
    rows: [MaybeUninit<(K::Held, u64)>; LEAF_CELLS],
    count: usize,
}

impl<K: KeyKind> Rows<K> {
    fn new() -> Self {
        Self { rows: [const { MaybeUninit::uninit() }; LEAF_CELLS], count: 0 }
    }

    #[inline]
    fn copy(&mut self, leaf: &Leaf<K>, span: &Span<K::Probe<'_>>, guard: &K::Guard) {
        let begin = match span.lo {
            Bound::Unbounded => 0,
            Bound::Included(lo) => leaf.count_less(lo, guard),
            Bound::Excluded(lo) => leaf.count_to(lo, guard),
        };
        let end = match span.hi {
            Bound::Unbounded => leaf.count(),
            Bound::Included(hi) => leaf.count_to(hi, guard),
            Bound::Excluded(hi) => leaf.count_less(hi, guard),
        };
        self.count = leaf.copy(begin..end.max(begin), &mut self.rows);
    }

    #[inline]
    fn get(&self) -> &[(K::Held, u64)] {
        // SAFETY: `copy` has written the first `count` rows.
        unsafe { &*(&raw const self.rows[..self.count] as *const [(K::Held, u64)]) }
    }
}

/// How many rows before its turn a value is announced: some eight rows of a few lines each are what a core can load at once.
const AHEAD: usize = 8;

/// Shows rows of one leaf, each announced before.
#[inline]
fn show<'r, H: Copy + 'r>(
    rows: impl Iterator<Item = &'r (H, u64)> + Clone,
    visit: &mut impl FnMut(H, u64) -> ControlFlow<()>,
    ahead: &mut dyn FnMut(u64),
) -> ControlFlow<()> {
    let mut announced = rows.clone();
    announced.by_ref().take(AHEAD).for_each(|(_, value)| ahead(*value));
    for &(key, value) in rows {
        visit(key, value)?;
        if let Some((_, value)) = announced.next() {
            ahead(*value);
        }
    }
    ControlFlow::Continue(())
}

impl<K: KeyKind> Tree<K> {
    pub fn scan<'g>(
        &self,
        mut span: Span<K::Probe<'g>>,
        guard: &'g K::Guard,
        mut visit: impl FnMut(K::Held, u64) -> ControlFlow<()>,
        ahead: &mut dyn FnMut(u64),
        leaves: &mut Vec<LeafStamp>,
    ) {
        let mut rows = Rows::<K>::new();
        let mut goes_on = false;
        loop {
            let mut route = Ascend::<K> { from: span.lo, goes_on, fence: None };
            leaves.push(self.copy_leaf(&mut route, &span, guard, &mut rows));
            if show(rows.get().iter(), &mut visit, ahead).is_break() {
                return;
            }
            let Some(fence) = route.fence.map(|fence| K::probe(fence, guard)) else { return };
            let over = match span.hi {
                Bound::Unbounded => false,
                Bound::Included(hi) => hi < fence,
                Bound::Excluded(hi) => hi <= fence,
            };
            if over {
                return;
            }
            span.lo = Bound::Included(fence);
            goes_on = true;
        }
    }

    pub fn scan_rev<'g>(
        &self,
        mut span: Span<K::Probe<'g>>,
        guard: &'g K::Guard,
        mut visit: impl FnMut(K::Held, u64) -> ControlFlow<()>,
        ahead: &mut dyn FnMut(u64),
        leaves: &mut Vec<LeafStamp>,
    ) {
        let mut rows = Rows::<K>::new();
        let mut goes_on = false;
        loop {
            let mut route = Descend::<K> { from: span.hi, goes_on, fence: None };
            leaves.push(self.copy_leaf(&mut route, &span, guard, &mut rows));
            if show(rows.get().iter().rev(), &mut visit, ahead).is_break() {
                return;
            }
            let Some(fence) = route.fence.map(|fence| K::probe(fence, guard)) else { return };
            let over = match span.lo {
                Bound::Unbounded => false,
                Bound::Included(lo) | Bound::Excluded(lo) => fence <= lo,
            };
            if over {
                return;
            }
            span.hi = Bound::Excluded(fence);
            goes_on = true;
        }
    }

    /// The rows in the span of the leaf the route leads to, all of one version, which is returned.
    #[inline]
    fn copy_leaf(
        &self,
        route: &mut impl Route<K>,
        span: &Span<K::Probe<'_>>,
        guard: &K::Guard,
        rows: &mut Rows<K>,
    ) -> LeafStamp {
        let mut backoff = Backoff::default();
        loop {
            let reached = self.reach_leaf(route, guard);
            // SAFETY: reached at level 0.
            let leaf = unsafe { self.leaf(reached.node) };
            rows.copy(leaf, span, guard);
            if leaf.lock.unchanged_since(reached.version) {
                return leaf.stamp(reached.version);
            }
            backoff.wait();
        }
    }
}
