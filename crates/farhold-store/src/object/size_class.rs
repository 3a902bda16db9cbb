//! Size classes: how long a slot is for a payload, and how slots lie in pages.
//!
//! 64 to 256 bytes in steps of 16, then sixteen steps a doubling (each at most 6.25 % above the last) up to 64 KiB, header
//! included. (Eight steps, 12.5 %, cost TPC-C's customers 5 % more.) Slots are not cache-line aligned: the version check covers any length, and aligned classes would cost TPC-C's
//! order lines a third of their memory. Classes above 4 KiB live in runs of pages, as short as wastes at most 1/16.

use farhold_fabric::object::HEADER_BYTES;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 64 << 10;
/// How many classes there are.
pub const COUNT: usize = SMALL + STEPS * DOUBLINGS;
/// Bytes of the longest slot.
pub const SLOT_BYTES_MAX: usize = 64 << 10;
/// Bytes of the longest payload.
pub const PAYLOAD_BYTES_MAX: usize = SLOT_BYTES_MAX - HEADER_BYTES;
/// Pages of the longest run.
pub const RUN_PAGES_MAX: u32 = 16;

const SMALL: usize = 13; // 64, 80, .. 256
const STEPS: usize = 16;
const DOUBLINGS: usize = 8; // 256 .. 64 KiB

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(pub u8);

impl SizeClass {
    /// The smallest class for a payload, `None` above [`PAYLOAD_BYTES_MAX`].
    #[must_use]
    #[inline]
    pub const fn for_payload(payload_len: usize) -> Option<Self> {
        if payload_len > PAYLOAD_BYTES_MAX {
            return None;
        }
        let bytes = payload_len + HEADER_BYTES;
        let class = if bytes <= 64 {
            0
        } else if bytes <= 256 {
            (bytes - 64).div_ceil(16)
        } else {
            let doubling = (bytes - 1).ilog2() as usize - 8; // 0: 257..=512
            let step = 16 << doubling;
            SMALL - 1 + doubling * STEPS + (bytes - (256 << doubling)).div_ceil(step)
        };
        Some(Self(class as u8))
    }

    /// Bytes of a slot, header included.
    #[must_use]
    #[inline]
    pub const fn slot_bytes(self) -> usize {
        let class = self.0 as usize;
        if class < SMALL {
            return 64 + 16 * class;
        }
        let (doubling, step) = ((class - SMALL) / STEPS, (class - SMALL) % STEPS + 1);
        (256 << doubling) + (16 << doubling) * step
    }

    /// Bytes of the longest payload.
    #[must_use]
    #[inline]
    pub const fn payload_bytes_max(self) -> usize {
        self.slot_bytes() - HEADER_BYTES
    }

    /// Pages of a run of this class.
    #[must_use]
    pub const fn run_pages(self) -> u32 {
        let slot = self.slot_bytes() as u64;
        let mut pages = 1;
        while pages < RUN_PAGES_MAX && (pages as u64 * PAGE_BYTES % slot) * 16 > pages as u64 * PAGE_BYTES {
            pages += 1;
        }
        pages
    }

    /// Slots of a run of this class.
    #[must_use]
    #[inline]
    pub const fn slots(self) -> u32 {
        (self.run_pages() as u64 * PAGE_BYTES / self.slot_bytes() as u64) as u32
    }
}

/// Does a payload of `new_len` fit the slot that was made for one of `old_len`?
#[must_use]
#[inline]
pub const fn fits(old_len: usize, new_len: usize) -> bool {
    match (SizeClass::for_payload(old_len), SizeClass::for_payload(new_len)) {
        (Some(old), Some(new)) => new.0 <= old.0,
        _ => false,
    }
}

const _: () = assert!(SizeClass(COUNT as u8 - 1).slot_bytes() == SLOT_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_has_the_smallest_class_that_holds_it() {
        for payload in 0..=PAYLOAD_BYTES_MAX {
            let class = SizeClass::for_payload(payload).expect("a class");
            assert!(class.payload_bytes_max() >= payload, "{payload}");
            assert!(class.0 == 0 || SizeClass(class.0 - 1).payload_bytes_max() < payload, "{payload}");
        }
        assert_eq!(SizeClass::for_payload(PAYLOAD_BYTES_MAX + 1), None);
    }

    #[test]
    fn classes_grow_by_a_sixteenth_at_most_and_pages_are_used_well() {
        for class in 0..COUNT as u8 {
            let (class, next) = (SizeClass(class), SizeClass(class + 1));
            assert!(class.slot_bytes().is_multiple_of(16));
            if (next.0 as usize) < COUNT {
                let growth = next.slot_bytes() - class.slot_bytes();
                assert!(growth == 16 || growth * 16 <= class.slot_bytes(), "{class:?}");
            }
            let run = u64::from(class.run_pages()) * PAGE_BYTES;
            let used = u64::from(class.slots()) * class.slot_bytes() as u64;
            assert!(used <= run && (run - used) * 16 <= run, "{class:?}: {used} of {run}");
        }
    }

    #[test]
    fn a_row_that_shrinks_keeps_its_slot_only_by_class() {
        assert!(fits(100, 90));
        assert!(fits(100, 112)); // 132 and 144 bytes: one slot of 144
        assert!(!fits(100, 113));
        assert!(!fits(10, PAYLOAD_BYTES_MAX + 1));
    }
}
