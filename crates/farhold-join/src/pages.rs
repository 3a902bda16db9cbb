//! Memory for big arrays: 64-byte aligned, on huge pages where the kernel gives them.
//!
//! A hash table of a gigabyte that is accessed at random costs a TLB miss for each access on 4 KiB pages. So memory of
//! at least one huge page is mapped on its own, aligned to one, and advised. Smaller arrays come from the allocator.
//! Where the kernel should get them back they lie apart from its heap: a heap keeps the pages below memory that is in
//! use.
//!
//! Zeroing a fresh page costs the kernel more than partitioning costs the join: two fifths of a join of 16 M tuples a
//! side. A [`PageStore`] keeps what finished joins have given back, for joins that accept old contents. The kept bytes
//! belong to a pool of its own. That pool may be below another, and returns them to the system when the other is asked
//! for more than it has.

use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::buffer::Buffer;

use crate::{JoinError, MemoryPool, Run};

pub const LINE_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;
pub const PAGE_BYTES: usize = 4 << 10;
/// Below this an array comes from the allocator: mapping it costs as much as writing it, and its last page is half
/// empty.
pub const MAPPED_BYTES_MIN: usize = 32 << 10;

/// Types of which every bit pattern is a value, including all zeroes.
///
/// # Safety
/// Every bit pattern must be a value, and the type must need neither dropping nor an alignment above 64.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: integers.
unsafe impl Plain for u16 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}

/// Memory that finished joins have given back, kept for the next ones while a pool has room for it. The default keeps
/// nothing. Clones share what is kept. It returns to the system with the last of them and of the arrays made from it.
#[derive(Debug, Clone, Default)]
pub struct PageStore(Option<Arc<Kept>>);

#[derive(Debug)]
struct Kept {
    pool: Arc<MemoryPool>,
    /// In the order of their addresses. Their bytes are taken from the pool.
    mappings: Mutex<Vec<Mapping>>,
}

impl PageStore {
    /// Keeps up to `bytes_max` bytes.
    pub fn keeping(bytes_max: usize) -> Self {
        Self::of(MemoryPool::new(bytes_max as u64))
    }

    /// Keeps what `pool` has room for. Nothing else may take from that pool.
    pub fn of(pool: Arc<MemoryPool>) -> Self {
        Self(Some(Arc::new(Kept { pool, mappings: Mutex::default() })))
    }

    /// Bytes that are kept now and not in use.
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |kept| kept.pool.used())
    }

    /// Returns everything that is kept to the system, and its bytes to the pool. True if there was anything.
    pub fn clear(&self) -> bool {
        let Some(kept) = &self.0 else { return false };
        let mut mappings = kept.mappings();
        let bytes: usize = mappings.drain(..).map(|mapping| mapping.bytes).sum();
        kept.pool.give_back(bytes as u64);
        bytes > 0
    }

    /// `bytes` bytes of the smallest kept mapping that is large enough.
    fn take(&self, bytes: usize) -> Option<Mapping> {
        let kept = self.0.as_ref()?;
        let mut mappings = kept.mappings();
        let best = mappings.iter_mut().filter(|mapping| mapping.bytes >= bytes).min_by_key(|mapping| mapping.bytes)?;
        let taken = best.split_off(bytes);
        mappings.retain(|mapping| mapping.bytes > 0);
        kept.pool.give_back(bytes as u64);
        Some(taken)
    }

    fn give(&self, mapping: Mapping) {
        let Some(kept) = &self.0 else { return };
        let mut mappings = kept.mappings();
        if kept.pool.try_take(mapping.bytes as u64) {
            let at = mappings.partition_point(|other| other.start < mapping.start);
            mappings.insert(at, mapping);
            mappings.dedup_by(|next, before| before.join(next));
        }
    }
}

impl Kept {
    fn mappings(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pool.give_back(self.pool.used());
    }
}

/// A mapping that is unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping owns its memory, and gives no access to it by itself.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Splits off the last `bytes` bytes, which this mapping then no longer owns.
    fn split_off(&mut self, bytes: usize) -> Self {
        self.bytes -= bytes;
        // SAFETY: inside the mapping, or at its start.
        Self { start: unsafe { self.start.add(self.bytes) }, bytes }
    }

    /// Takes `next` over if it begins where this one ends. Returns whether it does.
    fn join(&mut self, next: &mut Self) -> bool {
        // SAFETY: one past the end of the mapping.
        let is_next = unsafe { self.start.add(self.bytes) } == next.start;
        if is_next {
            self.bytes += mem::take(&mut next.bytes);
        }
        is_next
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped by `map` or `map_huge`, in one piece or several, and no longer borrowed. The kernel may
            // refuse to cut a mapping in two where a process has tens of thousands of mappings. Then it takes the
            // memory, and the addresses stay.
            unsafe {
                if libc::munmap(self.start.as_ptr().cast(), self.bytes) != 0 {
                    libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED);
                }
            }
        }
    }
}

/// An array of fixed length.
#[derive(Debug)]
pub struct Pages<T: Plain> {
    start: NonNull<T>,
    len: usize,
    /// The mapping that holds it; none if it is the allocator's.
    mapping: Option<Mapping>,
    store: PageStore,
}

// SAFETY: it owns its memory, as a boxed slice of `T` does, and `T: Plain` is Send and Sync.
unsafe impl<T: Plain> Send for Pages<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Plain> Sync for Pages<T> {}

impl<T: Plain> Pages<T> {
    /// `len` zeroes.
    pub fn new(len: usize) -> Result<Self, JoinError> {
        Self::stale(len, &PageStore::default())
    }

    /// `len` values, each arbitrary: zeroes, or what an earlier join has left in memory of `store`, to which the memory
    /// returns.
    pub fn stale(len: usize, store: &PageStore) -> Result<Self, JoinError> {
        let refused = JoinError::OutOfMemory { wanted_bytes: len as u64 * size_of::<T>() as u64 };
        let Ok(layout) = Layout::array::<T>(len).and_then(|layout| layout.align_to(LINE_BYTES)) else {
            return Err(refused);
        };
        if layout.size() == 0 {
            let start = NonNull::<Line>::dangling().cast();
            return Ok(Self { start, len, mapping: None, store: PageStore::default() });
        }
        if layout.size() < HUGE_PAGE_BYTES {
            // SAFETY: the size is not zero.
            let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(refused)?;
            return Ok(Self { start: start.cast(), len, mapping: None, store: PageStore::default() });
        }
        let bytes = layout.size().next_multiple_of(HUGE_PAGE_BYTES);
        let mapping = match store.take(bytes) {
            Some(mapping) => mapping,
            None => Mapping { start: map_huge(bytes).ok_or(refused)?, bytes },
        };
        Ok(Self { start: mapping.start.cast(), len, mapping: Some(mapping), store: store.clone() })
    }

    /// `len` zeroes in pages that return to the kernel when they are dropped, unless the array is too short for that.
    pub fn apart(len: usize) -> Result<Self, JoinError> {
        let bytes = (len * size_of::<T>()).next_multiple_of(PAGE_BYTES);
        if (MAPPED_BYTES_MIN..HUGE_PAGE_BYTES).contains(&bytes)
            && let Some(start) = map(bytes)
        {
            let mapping = Some(Mapping { start, bytes });
            return Ok(Self { start: start.cast(), len, mapping, store: PageStore::default() });
        }
        Self::new(len)
    }

    /// `len` zeroes, in memory of the run's store, written by all its workers.
    pub fn zeroed(len: usize, run: &Run) -> Result<Self, JoinError> {
        let mut array = Self::stale(len, &run.pages)?;
        if array.mapping.is_some() {
            let all = array.shared();
            run.on_all(|worker| {
                // SAFETY: the workers' parts are disjoint, and all bits zero are a value of any plain type.
                unsafe { ptr::write_bytes(all.at(run.part(len, worker).start), 0, run.part(len, worker).len()) };
                Ok(())
            })?;
        }
        Ok(array)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.mapping.as_ref().map_or(self.len * size_of::<T>(), |mapping| mapping.bytes) as u64
    }

    /// The values' bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the array's own memory, borrowed exclusively; any byte is a part of a plain value.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len * size_of::<T>()) }
    }

    /// The array for several writers, which divide it among themselves.
    pub fn shared(&mut self) -> Shared<'_, T> {
        Shared { start: self.start, len: self.len, borrowed: PhantomData }
    }
}

/// The first `bytes` bytes of the array, for Arrow.
pub fn buffer_of(pages: Pages<u64>, bytes: usize) -> Buffer {
    let start = NonNull::from(&*pages).cast::<u8>();
    // SAFETY: the array owns these bytes at this place, wherever it is moved, until the last clone of the buffer drops it.
    unsafe { Buffer::from_custom_allocation(start, bytes, Arc::new(pages)) }
}

/// Asks the allocator to release the free pages of its heap. Otherwise glibc keeps what lies below memory in use,
/// however much it is.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Stands for any array of no bytes.
#[repr(align(64))]
struct Line;
const _: () = assert!(align_of::<Line>() == LINE_BYTES);

/// A fresh anonymous mapping; `None` if the kernel has no memory.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let raw = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (raw != libc::MAP_FAILED).then(|| NonNull::new(raw.cast())).flatten()
}

/// As [`map`], aligned to a huge page.
fn map_huge(bytes: usize) -> Option<NonNull<u8>> {
    let with_slack = bytes.checked_add(HUGE_PAGE_BYTES)?;
    let raw = map(with_slack)?.as_ptr().cast::<libc::c_void>();
    let head = raw.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: head <= HUGE_PAGE_BYTES and head + bytes <= with_slack, so all three parts lie in the mapping made above.
    // No other code has the two parts that are unmapped. The advice may be refused; then the pages stay small.
    unsafe {
        let start = raw.cast::<u8>().add(head);
        if head > 0 {
            libc::munmap(raw, head);
        }
        if with_slack > head + bytes {
            libc::munmap(start.add(bytes).cast(), with_slack - head - bytes);
        }
        libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        NonNull::new(start)
    }
}

impl<T: Plain> Drop for Pages<T> {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<T>();
        if let Some(mapping) = self.mapping.take() {
            self.store.give(mapping);
        } else if bytes > 0 {
            // SAFETY: allocated in `stale` with this size and alignment.
            unsafe { alloc::dealloc(self.start.as_ptr().cast(), Layout::from_size_align_unchecked(bytes, LINE_BYTES)) };
        }
    }
}

impl<T: Plain> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values, zeroed or written since; `T: Plain` makes either a value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// An array borrowed by several writers at once, each of which must access only elements of its own.
#[derive(Debug)]
pub struct Shared<'a, T> {
    start: NonNull<T>,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: all access is through the unsafe functions below, whose callers promise disjointness.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Plain> Shared<'a, T> {
    /// The number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// The address of element `index`.
    ///
    /// # Safety
    /// `index <= len`. Writes through the pointer touch only elements that no other thread touches meanwhile.
    #[inline(always)]
    pub unsafe fn at(self, index: usize) -> *mut T {
        debug_assert!(index <= self.len);
        // SAFETY: inside the array, or one past its end.
        unsafe { self.start.as_ptr().add(index) }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// `range` lies in the array, and no other thread touches these elements while the result lives.
    pub unsafe fn slice(self, range: std::ops::Range<usize>) -> &'a mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds and exclusive, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_big_arrays_are_zeroed_aligned_and_writable() {
        for len in [
            0,
            1,
            1000,
            MAPPED_BYTES_MIN / 8 - 1,
            MAPPED_BYTES_MIN / 8 + 1,
            (HUGE_PAGE_BYTES / 8) - 1,
            HUGE_PAGE_BYTES / 8,
            700_001,
        ] {
            let mut pages = Pages::<u64>::new(len).unwrap();
            assert!(pages.iter().all(|&word| word == 0));
            assert_eq!(pages.as_ptr() as usize % LINE_BYTES, 0);
            if len * 8 >= HUGE_PAGE_BYTES {
                assert_eq!(pages.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            }
            assert!(pages.bytes() >= len as u64 * 8);
            pages.fill(u64::MAX);
            assert_eq!(pages.len(), len);
        }
    }

    #[test]
    fn a_store_keeps_what_it_may_and_hands_it_out_again() {
        let store = PageStore::keeping(3 * HUGE_PAGE_BYTES);
        let words = 2 * HUGE_PAGE_BYTES / 8;
        let mut first = Pages::<u64>::stale(words, &store).unwrap();
        let second = Pages::<u64>::stale(words, &store).unwrap();
        first.fill(7);
        let place = first.as_ptr();
        assert_eq!(store.bytes(), 0);
        drop(first);
        drop(second);
        assert_eq!(store.bytes(), 2 * HUGE_PAGE_BYTES as u64, "there was room for one of them");
        assert!(Pages::<u64>::stale(2 * words, &store).unwrap().iter().all(|&word| word == 0), "too small to be given");
        let again = Pages::<u64>::stale(words - 1, &store).unwrap();
        assert_eq!((again.as_ptr(), again[words - 2], store.bytes()), (place, 7, 0));
        assert_eq!(Pages::<u64>::new(words).unwrap()[0], 0, "new arrays are zeroed");
    }

    #[test]
    fn what_is_kept_is_handed_out_in_parts_and_grows_together_again() {
        let store = PageStore::keeping(4 * HUGE_PAGE_BYTES);
        let page_words = HUGE_PAGE_BYTES / 8;
        let whole = Pages::<u64>::stale(4 * page_words, &store).unwrap();
        let places = whole.as_ptr_range();
        drop(whole);
        let mut parts: Vec<_> = (0..4).map(|_| Pages::<u64>::stale(page_words, &store).unwrap()).collect();
        for (part, value) in parts.iter_mut().zip(1..) {
            part.fill(value);
        }
        for (part, value) in parts.iter().zip(1..) {
            assert!(part.iter().all(|&word| word == value) && places.contains(&part.as_ptr()));
        }
        assert_eq!(store.bytes(), 0);
        let last = parts.pop();
        drop(parts);
        drop(last);
        assert_eq!(Pages::<u64>::stale(4 * page_words, &store).unwrap().as_ptr(), places.start);
        assert_eq!(store.bytes(), 4 * HUGE_PAGE_BYTES as u64);
        assert!(store.clear() && !store.clear());
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn what_is_kept_is_the_pools_until_the_store_ends() {
        let pool = MemoryPool::new(8 * HUGE_PAGE_BYTES as u64);
        let store = PageStore::of(Arc::clone(&pool));
        let array = Pages::<u64>::stale(HUGE_PAGE_BYTES / 8, &store).unwrap();
        drop(store);
        assert_eq!(pool.used(), 0);
        drop(array);
        assert_eq!((pool.used(), pool.peak()), (0, HUGE_PAGE_BYTES as u64), "the array was the last to know of it");
    }

    #[test]
    fn more_memory_than_there_are_addresses_is_an_error() {
        assert!(matches!(Pages::<u64>::new(usize::MAX / 8), Err(JoinError::OutOfMemory { .. })));
        assert!(matches!(Pages::<u64>::new(1 << 58), Err(JoinError::OutOfMemory { .. })));
    }
}
