//! Private bytes of this process, in large pages if there are many.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed bytes on the heap. From [`LARGE_PAGE`] on they begin at a multiple of it, and the system is asked for memory in pages
/// of that length. A reader in random order then does not walk the page table for each cache line.
pub struct Bytes {
    base: NonNull<u8>,
    layout: Layout,
}

/// Bytes of a large page of x86-64.
pub const LARGE_PAGE: usize = 2 << 20;

// SAFETY: the bytes are this value's alone, as those of a `Vec<u8>` are.
unsafe impl Send for Bytes {}
// SAFETY: as for `Send`; shared references only read.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `len` zeros; at least one.
    ///
    /// # Panics
    /// If an address cannot express that many. If there is no memory the process ends, as it does for a `Vec`.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { 64 };
        let layout = Layout::from_size_align(len.max(1), align).expect("a length that there can be");
        let base = if align == LARGE_PAGE {
            Self::large(layout)
        } else {
            // SAFETY: the layout's size is not zero.
            unsafe { alloc_zeroed(layout) }
        };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout }
    }

    /// Memory that has not been touched before the advice about its pages.
    fn large(layout: Layout) -> *mut u8 {
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc(layout) };
        if !base.is_null() {
            #[cfg(not(miri))]
            // SAFETY: whole pages inside of the allocation, with content that no thread has seen yet.
            unsafe {
                libc::madvise(base.cast(), layout.size() / LARGE_PAGE * LARGE_PAGE, libc::MADV_HUGEPAGE)
            };
            // SAFETY: the allocation is that long, and this value's alone.
            unsafe { base.write_bytes(0, layout.size()) };
        }
        base
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `size` initialised bytes, this value's alone as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Bytes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: made with this layout by the same allocator, and given back once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_zeros_and_then_what_was_written() {
        for len in [1, 4096, LARGE_PAGE, LARGE_PAGE + 5] {
            let mut bytes = Bytes::zeroed(len);
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert!(len < LARGE_PAGE || bytes.as_ptr().addr().is_multiple_of(LARGE_PAGE));
            *bytes.last_mut().expect("one at least") = 7;
            assert_eq!(bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 7);
        }
    }
}
