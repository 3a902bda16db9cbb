//! Where far rows were last seen, so that most far reads need no index (DrTM's location cache).
//!
//! A remembered reference may be stale. The read of the object shows it, by incarnation and key, and the caller then
//! [forgets](LocationCache::forget) it. The cache is one worker's, bounded, and evicts the oldest of some places when it is full.
//!
//! Places are in sets of four, a cache line. A row whose set is full goes into the neighbour, so with half as many rows as places
//! one in a hundred is lost. (With sets of two it was one in ten, and nearly every batch of 32 far reads had to use the index for
//! it.)

use crate::object::ObjectRef;
use farhold_fabric::NodeId;

/// How a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocationCounts {
    /// Asked and known.
    pub hits: u64,
    /// Asked and not known.
    pub misses: u64,
    /// Known but out of date.
    pub stale: u64,
}

/// References of far rows by node, table and key hash.
#[derive(Debug)]
pub struct LocationCache {
    /// Sets of places, the first of them from `skip` on, where a cache line begins.
    places: Vec<Place>,
    skip: usize,
    /// Number of sets, a power of two, less one.
    mask: usize,
    sets_max: usize,
    /// Places that are not empty, about.
    taken: usize,
    counts: LocationCounts,
}

/// A name, which is the hash mixed with node and table (0: empty), and a reference.
type Place = [u64; 2];
const NAME: usize = 0;
const REFERENCE: usize = 1;
const WAYS: usize = 4;
const LINE_BYTES: usize = 64;
const _: () = assert!(WAYS * size_of::<Place>() == LINE_BYTES);
/// The number of sets at the beginning, and the factor of growth when half of the places are taken: most workers see few rows.
const SETS_FIRST: usize = 64;
const GROWTH: usize = 8;

impl LocationCache {
    /// A cache that grows to at least `rows` places, 16 bytes each.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        let sets_max = rows.div_ceil(WAYS).next_power_of_two().max(2);
        Self::with_sets(SETS_FIRST.min(sets_max), sets_max)
    }

    fn with_sets(sets: usize, sets_max: usize) -> Self {
        let places = vec![[0; 2]; (sets + 1) * WAYS];
        let skip = places.as_ptr().align_offset(LINE_BYTES).min(WAYS);
        Self { places, skip, mask: sets - 1, sets_max, taken: 0, counts: LocationCounts::default() }
    }

    #[cold]
    fn grow(&mut self) {
        let grown = Self::with_sets((GROWTH * (self.mask + 1)).min(self.sets_max), self.sets_max);
        let before = std::mem::replace(self, Self { counts: self.counts, ..grown });
        // The newest of a set is its first, and must be put last.
        before.places.into_iter().rev().filter(|place| place[NAME] != 0).for_each(|place| self.put_new(place));
    }

    /// Where the row was seen last.
    #[must_use]
    pub fn get(&mut self, node: NodeId, table: crate::TableId, hash: u64) -> Option<ObjectRef> {
        let name = name(node, table, hash);
        let found = self.place(name).map(|at| ObjectRef::from_bits(self.places[at][REFERENCE]));
        match found {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        found
    }

    /// Remembers where a row is.
    pub fn put(&mut self, node: NodeId, table: crate::TableId, hash: u64, reference: ObjectRef) {
        let name = name(node, table, hash);
        let new = [name, reference.to_bits()];
        if let Some(at) = self.place(name) {
            self.places[at] = new;
            return;
        }
        if 2 * self.taken >= WAYS * (self.mask + 1) && self.mask + 1 < self.sets_max {
            self.grow();
        }
        self.put_new(new);
    }

    fn put_new(&mut self, new: Place) {
        let is_full = |set: &[Place]| set.iter().all(|place| place[NAME] != 0);
        let [first, second] = self.sets(new[NAME]);
        let start = if is_full(&self.places[first..first + WAYS]) && !is_full(&self.places[second..second + WAYS]) {
            second
        } else {
            first
        };
        // The newest is first; an empty place, or else the oldest one, goes.
        let set = &mut self.places[start..start + WAYS];
        let empty = set.iter().position(|place| place[NAME] == 0);
        self.taken += usize::from(empty.is_some());
        let gone = empty.unwrap_or(WAYS - 1);
        set[..=gone].rotate_right(1);
        set[0] = new;
    }

    /// Removes a place that turned out wrong, and counts it.
    pub fn forget(&mut self, node: NodeId, table: crate::TableId, hash: u64) {
        let name = name(node, table, hash);
        while let Some(at) = self.place(name) {
            self.places[at] = Place::default();
            self.taken -= 1;
        }
        self.counts.stale += 1;
    }

    /// Forgets everything of a node: it has restarted.
    pub fn forget_all(&mut self) {
        *self = Self { counts: self.counts, ..Self::with_sets(SETS_FIRST.min(self.sets_max), self.sets_max) };
    }

    /// How it has done.
    #[must_use]
    pub fn counts(&self) -> LocationCounts {
        self.counts
    }

    /// Where a row's set begins, and where the neighbour.
    fn sets(&self, name: u64) -> [usize; 2] {
        let set = (name >> 8) as usize & self.mask;
        [set, set ^ 1].map(|set| self.skip + set * WAYS)
    }

    /// The row's place, if it has one.
    fn place(&self, name: u64) -> Option<usize> {
        let find = |start: usize| {
            let set = &self.places[start..start + WAYS];
            set.iter().position(|place| place[NAME] == name).map(|at| start + at)
        };
        let [first, second] = self.sets(name);
        find(first).or_else(|| find(second))
    }
}

/// Two rows may share a name; then they evict each other, and reads find the other row's key: slow, never wrong.
fn name(node: NodeId, table: crate::TableId, hash: u64) -> u64 {
    let place = u64::from(table.0) << 8 | u64::from(node.0);
    (hash ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableId;

    #[test]
    fn remembers_a_bounded_number_and_counts() {
        let mut cache = LocationCache::new(64);
        let (node, table) = (NodeId(1), TableId(5));
        let reference = |i: u64| ObjectRef::new(i * 64 + 64, 3);
        for i in 0..1000_u64 {
            cache.put(node, table, super::super::hash_key(&i.to_le_bytes()), reference(i));
        }
        let hash = |i: u64| super::super::hash_key(&i.to_le_bytes());
        let known = (0..1000).filter(|i| cache.get(node, table, hash(*i)) == Some(reference(*i))).count();
        assert!((30..=64).contains(&known), "{known}");
        assert_eq!(cache.get(node, table, hash(999)), Some(reference(999)), "the newest is known");
        assert_eq!(cache.get(NodeId(2), table, hash(999)), None);
        cache.forget(node, table, hash(999));
        assert_eq!(cache.get(node, table, hash(999)), None);
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses, counts.stale), (known as u64 + 1, 1002 - known as u64, 1));
    }

    /// Twice as many places as rows lose few of them.
    #[test]
    fn rows_that_have_room_are_kept() {
        let rows = 1 << 15;
        let mut cache = LocationCache::new(2 * rows);
        let (node, table) = (NodeId(1), TableId(5));
        let hash = |i: usize| super::super::hash_key(&i.to_le_bytes());
        let reference = |i: usize| ObjectRef::new(i as u64 * 64 + 64, 3);
        for i in (0..rows).chain(0..rows) {
            cache.put(node, table, hash(i), reference(i));
        }
        let known = (0..rows).filter(|i| cache.get(node, table, hash(*i)) == Some(reference(*i))).count();
        assert!(known > rows - rows / 80, "{known} of {rows}");
        // An entry that is there twice is evicted once.
        cache.put(node, table, hash(7), reference(8));
        assert_eq!(cache.get(node, table, hash(7)), Some(reference(8)));
        cache.forget(node, table, hash(7));
        assert_eq!(cache.get(node, table, hash(7)), None);
    }
}
