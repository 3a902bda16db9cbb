//! What a transaction has seen of indexes: stamps of the leaves and buckets that it has searched, and how its own
//! writes update them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// A set of stamps, searched by a walk while they are few and by a hash table above that. While they are few, there may
/// be duplicates.
#[derive(Debug)]
pub(crate) struct Stamps<T> {
    held: Vec<T>,
    /// Where each is; empty while they are few.
    places: HashMap<T, usize>,
}

/// Up to this number they are searched by a walk.
const WALK_MAX: usize = 32;

impl<T> Default for Stamps<T> {
    fn default() -> Self {
        Self { held: Vec::new(), places: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Stamps<T> {
    #[inline]
    pub fn clear(&mut self) {
        self.held.clear();
        if !self.places.is_empty() {
            *self = Self::default();
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    #[inline]
    pub fn as_slice(&self) -> &[T] {
        &self.held
    }

    #[inline]
    pub fn push(&mut self, stamp: T) {
        if self.held.len() < WALK_MAX && self.places.is_empty() {
            self.held.push(stamp);
        } else {
            self.push_to_many(stamp);
        }
    }

    fn push_to_many(&mut self, stamp: T) {
        if self.places.is_empty() {
            for stamp in std::mem::take(&mut self.held) {
                self.push_new(stamp);
            }
        }
        self.push_new(stamp);
    }

    fn push_new(&mut self, stamp: T) {
        if let Entry::Vacant(place) = self.places.entry(stamp) {
            place.insert(self.held.len());
            self.held.push(stamp);
        }
    }

    /// A write of the transaction's own has turned the stamp `before` into the stamps `after`: if the set holds
    /// `before`, it holds these instead. Stamps that another transaction had already outdated stay outdated.
    pub fn carry(&mut self, before: T, after: impl IntoIterator<Item = T>) {
        if self.places.is_empty() {
            let count = self.held.len();
            self.held.retain(|stamp| *stamp != before);
            if self.held.len() < count {
                after.into_iter().for_each(|stamp| self.push(stamp));
            }
        } else if let Some(place) = self.places.remove(&before) {
            self.held.swap_remove(place);
            if let Some(moved) = self.held.get(place) {
                self.places.insert(*moved, place);
            }
            after.into_iter().for_each(|stamp| self.push_to_many(stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stamps;
    use std::collections::BTreeSet;

    /// Few and many are the same set as a plain one.
    #[test]
    fn agrees_with_a_set() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| random.u64(..below);
        for distinct in [5, 40, 200] {
            for _ in 0..50 {
                let (mut stamps, mut set) = (Stamps::default(), BTreeSet::new());
                for _ in 0..random(400) {
                    let stamp = random(distinct);
                    if random(3) > 0 {
                        stamps.push(stamp);
                        set.insert(stamp);
                    } else {
                        let after: Vec<u64> = (0..random(3)).map(|_| random(distinct)).collect();
                        stamps.carry(stamp, after.iter().copied());
                        if set.remove(&stamp) {
                            set.extend(after);
                        }
                    }
                    let held: BTreeSet<u64> = stamps.as_slice().iter().copied().collect();
                    assert_eq!(held, set);
                }
                stamps.clear();
                assert!(stamps.is_empty());
            }
        }
    }
}
