//! Where far rows were last seen, so that most far reads need no index at all (DrTM's location cache).
//!
//! A remembered reference may be out of date; the read of the object tells, by incarnation and key, and the caller then
//! [forgets](LocationCache::forget) it. The cache is one worker's, bounded, and loses the older of two places when full.

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
    /// Pairs of places; a key has two neighbouring ones.
    places: Vec<[Place; 2]>,
    counts: LocationCounts,
}

/// A name, which is the hash mixed with node and table (0: empty), and a reference. Plain words, so that a new cache is
/// memory that the system has zeroed and nobody has touched.
type Place = [u64; 2];
const NAME: usize = 0;
const REFERENCE: usize = 1;

impl LocationCache {
    /// A cache of at least `rows` places, 16 bytes each.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        let pairs = rows.div_ceil(2).next_power_of_two();
        Self { places: vec![[[0; 2]; 2]; pairs], counts: LocationCounts::default() }
    }

    /// Where the row was seen last.
    #[must_use]
    pub fn get(&mut self, node: NodeId, table: crate::TableId, hash: u64) -> Option<ObjectRef> {
        let name = name(node, table, hash);
        let pair = self.pair(name);
        let found = pair.iter().find(|place| place[NAME] == name).map(|place| ObjectRef::from_bits(place[REFERENCE]));
        match found {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        found
    }

    /// Remembers where a row is.
    pub fn put(&mut self, node: NodeId, table: crate::TableId, hash: u64, reference: ObjectRef) {
        let name = name(node, table, hash);
        let pair = self.pair(name);
        if pair[0][NAME] != name {
            pair[1] = pair[0];
        }
        pair[0] = [name, reference.to_bits()];
    }

    /// Takes a place out that turned out wrong, and counts it.
    pub fn forget(&mut self, node: NodeId, table: crate::TableId, hash: u64) {
        let name = name(node, table, hash);
        for place in self.pair(name).iter_mut().filter(|place| place[NAME] == name) {
            *place = Place::default();
        }
        self.counts.stale += 1;
    }

    /// Forgets everything of a node: it has started anew.
    pub fn forget_all(&mut self) {
        self.places.fill(Default::default());
    }

    /// How it has done.
    #[must_use]
    pub fn counts(&self) -> LocationCounts {
        self.counts
    }

    fn pair(&mut self, name: u64) -> &mut [Place; 2] {
        let mask = self.places.len() - 1;
        &mut self.places[(name >> 8) as usize & mask]
    }
}

/// Two rows may share a name; then they push each other out, and reads find the other's key: slow, never wrong.
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
        assert_eq!(cache.get(NodeId(2), table, hash(999)), None);
        cache.forget(node, table, hash(999));
        assert_eq!(cache.get(node, table, hash(999)), None);
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses, counts.stale), (known as u64, 1002 - known as u64, 1));
    }
}
