//! Maps with keys that this program numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with keys that this program numbers itself, and with the few nodes, regions and ports. One multiplication spreads the
/// keys, because no adversary chooses them.
pub(super) type Numbered<K, T> = HashMap<K, T, BuildHasherDefault<NumberHasher>>;

/// See [`Numbered`].
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("for numbers only");
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
