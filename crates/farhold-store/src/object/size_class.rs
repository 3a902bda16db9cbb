//! Size classes: the length of the slot for a payload, and the place of slots in pages.
//!
//! 48 to 1024 bytes in steps of 16, then sixteen steps a doubling (each at most 6.25 % above the last) up to 64 KiB, header
//! included. (Eight steps a doubling from 256 bytes on, 12.5 %, cost TPC-C's customers 5 % more.) Slots are not cache-line
//! aligned: the version check covers any length, and aligned classes would cost TPC-C's order lines a third of their memory.
//!
//! A class lives in runs of pages that waste at most 1/64 (1/16 where slots are long). While a table has few runs of it, they are
//! the shortest such runs, so that a table of one row takes one page, and a hundred lengths of rows do not take a hundred
//! half-empty runs. Later they are runs of 64 KiB, which reduce contention on the lock of the pages and on the list of runs.

use farhold_fabric::object::HEADER_BYTES;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 16 << 10;
/// The least bytes of a run if a table has many of its class.
pub const RUN_BYTES: u64 = 64 << 10;
/// How many classes there are.
pub const COUNT: usize = SMALL + STEPS * DOUBLINGS;
/// Bytes of the longest slot.
pub const SLOT_BYTES_MAX: usize = 64 << 10;
/// Bytes of the longest payload.
pub const PAYLOAD_BYTES_MAX: usize = SLOT_BYTES_MAX - HEADER_BYTES;
/// Pages of the longest run of slots.
pub const RUN_PAGES_MAX: u32 = 64;

const SLOT_BYTES_MIN: usize = 48;
const FINE_BYTES: usize = 1024;
const SMALL: usize = (FINE_BYTES - SLOT_BYTES_MIN) / 16 + 1; // 48, 64, .. 1024
const STEPS: usize = 16;
const DOUBLINGS: usize = 6; // 1 .. 64 KiB

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
        let class = if bytes <= FINE_BYTES {
            bytes.saturating_sub(SLOT_BYTES_MIN).div_ceil(16)
        } else {
            let doubling = (bytes - 1).ilog2() as usize - 10; // 0: 1025..=2048
            let step = (FINE_BYTES / STEPS) << doubling;
            SMALL - 1 + doubling * STEPS + (bytes - (FINE_BYTES << doubling)).div_ceil(step)
        };
        Some(Self(class as u8))
    }

    /// Bytes of a slot, header included.
    #[must_use]
    #[inline]
    pub const fn slot_bytes(self) -> usize {
        let class = self.0 as usize;
        if class < SMALL {
            return SLOT_BYTES_MIN + 16 * class;
        }
        let (doubling, step) = ((class - SMALL) / STEPS, (class - SMALL) % STEPS + 1);
        (FINE_BYTES << doubling) + ((FINE_BYTES / STEPS) << doubling) * step
    }

    /// Bytes of the longest payload.
    #[must_use]
    #[inline]
    pub const fn payload_bytes_max(self) -> usize {
        self.slot_bytes() - HEADER_BYTES
    }

    /// Pages of a run of this class while there are few of them.
    #[must_use]
    pub const fn run_pages_min(self) -> u32 {
        self.run_pages_from(1)
    }

    /// Pages of a run of this class when there are many.
    #[must_use]
    pub const fn run_pages(self) -> u32 {
        self.run_pages_from((RUN_BYTES / PAGE_BYTES) as u32)
    }

    const fn run_pages_from(self, mut pages: u32) -> u32 {
        let slot = self.slot_bytes() as u64;
        let share = if slot <= FINE_BYTES as u64 { 64 } else { 16 };
        while pages < RUN_PAGES_MAX && (pages as u64 * PAGE_BYTES % slot) * share > pages as u64 * PAGE_BYTES {
            pages += 1;
        }
        pages
    }

    /// The number of slots in a run of `pages` pages.
    #[must_use]
    #[inline]
    pub const fn slots(self, pages: u32) -> u32 {
        (pages as u64 * PAGE_BYTES / self.slot_bytes() as u64) as u32
    }
}

/// Whether a payload of `new_len` fits the slot that was made for one of `old_len`.
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
            for pages in [class.run_pages_min(), class.run_pages()] {
                let run = u64::from(pages) * PAGE_BYTES;
                let used = u64::from(class.slots(pages)) * class.slot_bytes() as u64;
                assert!(used > 0 && used <= run && (run - used) * 16 <= run, "{class:?}: {used} of {run}");
                assert!(class.slot_bytes() > 1024 || (run - used) * 64 <= run, "{class:?}: {used} of {run}");
            }
            assert!(u64::from(class.run_pages()) * PAGE_BYTES >= RUN_BYTES);
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
