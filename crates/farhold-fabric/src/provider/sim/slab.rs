//! Items with small, reused numbers. A number includes how often its place has been used, so an old number finds nothing.

/// See the module.
pub(super) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub fn insert(&mut self, thing: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (uses, held) = &mut self.places[place as usize];
        *held = Some(thing);
        u64::from(*uses) << 32 | u64::from(place)
    }

    #[inline]
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (uses, held) = self.places.get_mut(number as u32 as usize)?;
        if u64::from(*uses) == number >> 32 { held.as_mut() } else { None }
    }

    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (uses, held) = self.places.get_mut(number as u32 as usize)?;
        if u64::from(*uses) != number >> 32 {
            return None;
        }
        let thing = held.take()?;
        *uses = uses.wrapping_add(1);
        self.free.push(number as u32);
        Some(thing)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, held)| held.as_mut())
    }
}
