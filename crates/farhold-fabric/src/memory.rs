//! The bytes of a region, where this process can load and store them.
//!
//! All access goes through atomic words or through the racing copies of [`crate::copy`], because another thread or process may
//! write the same bytes at any time. Nothing can borrow them as `&[u8]`.

use crate::address::FarPtr;
use crate::copy;
use crate::error::FabricError;
use crate::object::{self, Meta, ObjectHeader, Version};
use crate::room::Room;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Memory of a region, mapped or allocated, shared with any number of threads. `len` is a multiple of 8, and the start is page
/// aligned.
pub struct RegionMemory {
    base: NonNull<u8>,
    len: u64,
    /// The address of the region's first byte, for errors.
    origin: FarPtr,
    backing: Backing,
    /// How its bytes get memory, if it must be requested.
    room: Option<Room>,
    /// See [`Self::keep_addresses`].
    keeps_addresses: AtomicBool,
}

enum Backing {
    /// An allocation of this process.
    #[cfg_attr(not(miri), allow(dead_code, reason = "Miri has no file mappings"))]
    Heap(std::alloc::Layout),
    /// A mapping of this many bytes; `durable`: of something that may outlast the machine's power.
    Mapped {
        bytes: usize,
        #[cfg_attr(miri, allow(dead_code, reason = "Miri has no file mappings"))]
        durable: bool,
    },
}

// SAFETY: the memory is owned by this value (unmapped on drop only) and every access to it is atomic or an opaque copy, so
// the thread does not matter.
unsafe impl Send for RegionMemory {}
// SAFETY: as for `Send`; shared references give only atomic words and racing copies.
unsafe impl Sync for RegionMemory {}

/// The sum of the whole words of private bytes, wrapping: [`RegionMemory::sum_words`] of a copy.
#[must_use]
#[inline]
pub fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.len() / 8;
    if bytes.as_ptr().addr().is_multiple_of(8) {
        // SAFETY: `words` words of the slice, which is aligned and which no thread writes while it is borrowed.
        return unsafe { copy::sum_shared(bytes.as_ptr(), words) };
    }
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    bytes.as_chunks().0.iter().fold(0, |sum: u64, bytes| sum.wrapping_add(word(bytes)))
}

impl RegionMemory {
    const PAGE: u64 = 4096;

    /// Zeroed memory of this process alone, at least `len` bytes long. Pages are taken when first touched.
    ///
    /// # Errors
    /// [`FabricError::Io`] if the system has no memory left.
    pub fn anonymous(origin: FarPtr, len: u64) -> Result<Self, FabricError> {
        let len = round_up(len.max(1), Self::PAGE);
        #[cfg(miri)]
        {
            let layout =
                std::alloc::Layout::from_size_align(len as usize, Self::PAGE as usize).expect("a valid layout");
            // SAFETY: the layout's size is not zero.
            let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
            let backing = Backing::Heap(layout);
            Ok(Self { base, len, origin, backing, room: None, keeps_addresses: AtomicBool::new(false) })
        }
        #[cfg(not(miri))]
        {
            Self::map(origin, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
                .map_err(|e| FabricError::io("map memory for", format!("{origin}"), &e))
        }
    }

    /// Maps a whole file of `len` bytes (a multiple of the page size).
    pub(crate) fn file(origin: FarPtr, len: u64, file: &std::fs::File) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let this = Self::map(origin, len, libc::MAP_SHARED, file.as_raw_fd())?;
        // Rows are read in random order: with 4 KiB pages nearly each costs a walk of the page table. A file system without huge
        // pages (a tmpfs without `huge=advise`) refuses, which is no error.
        // SAFETY: the mapping is ours and new; the advice changes none of its bytes.
        unsafe { libc::madvise(this.base.as_ptr().cast(), len as usize, libc::MADV_HUGEPAGE) };
        Ok(this)
    }

    /// As [`Self::file`], for the owner of the file: [`Self::reserve`] gives its bytes memory.
    pub(crate) fn growing_file(
        origin: FarPtr,
        len: u64,
        file: std::fs::File,
        path: &std::path::Path,
    ) -> std::io::Result<Self> {
        let mut this = Self::file(origin, len, &file)?;
        this.room = Some(Room::new(file, path, len));
        Ok(this)
    }

    /// For messages: its file, if it is a file of this node; otherwise its region and node.
    #[must_use]
    pub fn file_name(&self) -> String {
        match &self.room {
            Some(room) => room.path().display().to_string(),
            None => format!("{} of {}", self.origin.region(), self.origin.node()),
        }
    }

    /// Provides memory for the bytes `offset..offset + len`, if they have none yet. A caller must do this before it uses bytes of
    /// a region for the first time, and the call may fail. Touching such bytes without it can end the process if the file system
    /// of the `shm` provider is full. A second call for the same bytes is cheap. Other providers' memory needs no such call, and
    /// neither does a region of another node, because its owner makes the call.
    ///
    /// # Errors
    /// [`FabricError::FileSystemFull`]: nothing was changed. [`FabricError::OutOfBounds`], [`FabricError::Io`].
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), FabricError> {
        self.check(offset, len)?;
        let Some(room) = &self.room else { return Ok(()) };
        let fresh = room.reserve(offset, len, self.len)?;
        // At once for all of it: touched one by one, each page is a trap. A refusal here shows at the first touch.
        let _ = self.touch(fresh.start, fresh.end - fresh.start);
        Ok(())
    }

    /// Provides memory for the first `len` bytes now and keeps their content, so that no thread that touches them later waits for
    /// the system to find and clear a page.
    ///
    /// # Errors
    /// As [`Self::reserve`]; [`FabricError::Io`] if the system has no memory left.
    pub fn populate(&self, len: u64) -> Result<(), FabricError> {
        self.reserve(0, len)?;
        self.touch(0, len)
    }

    /// Makes the system find and clear pages for bytes that begin at a page, and keeps their content.
    #[cfg_attr(miri, allow(unused_variables, clippy::unused_self, reason = "Miri has no file mappings"))]
    fn touch(&self, offset: u64, len: u64) -> Result<(), FabricError> {
        #[cfg(not(miri))]
        if len > 0 && matches!(self.backing, Backing::Mapped { .. }) {
            // SAFETY: pages of our own mapping, inside of it as the callers have checked; the call changes none of their bytes.
            let done = unsafe {
                let start_ptr = self.base.as_ptr().add(offset as usize).cast();
                libc::madvise(start_ptr, len as usize, libc::MADV_POPULATE_WRITE)
            };
            let error = std::io::Error::last_os_error();
            // Linux before 5.14 does not know the advice: pages are then taken when first touched.
            if done != 0 && error.raw_os_error() != Some(libc::EINVAL) {
                return Err(FabricError::io("take memory for", format!("{}", self.name(offset)), &error));
            }
        }
        Ok(())
    }

    /// Makes what was written to these bytes durable, as far as their medium is: persistent memory and files of a disk are,
    /// memory that loses its content with the machine's power is not.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`]; [`FabricError::Io`] if the device refuses.
    pub fn flush(&self, offset: u64, len: u64) -> Result<(), FabricError> {
        self.check(offset, len)?;
        #[cfg(not(miri))]
        if let Backing::Mapped { durable: true, .. } = self.backing
            && len > 0
        {
            let start = offset / Self::PAGE * Self::PAGE;
            // SAFETY: whole pages of our own mapping; flushing changes none of their bytes.
            let done = unsafe {
                let start_ptr = self.base.as_ptr().add(start as usize).cast();
                libc::msync(start_ptr, (offset + len - start) as usize, libc::MS_SYNC)
            };
            if done != 0 {
                let what = format!("{}", self.name(offset));
                return Err(FabricError::io("flush", what, &std::io::Error::last_os_error()));
            }
        }
        Ok(())
    }

    fn map(origin: FarPtr, len: u64, flags: libc::c_int, fd: libc::c_int) -> std::io::Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self {
            base,
            len,
            origin,
            backing: Backing::Mapped { bytes, durable: fd >= 0 && !is_memory(fd) },
            room: None,
            keeps_addresses: AtomicBool::new(false),
        })
    }

    /// Keeps the addresses taken, without memory, after the end of this value. It is for a provider whose transfers may still use
    /// them then: such transfers fail, and never reach what would be mapped there next. It costs address space, of which there
    /// are 128 TiB.
    #[cfg(any(test, feature = "libfabric"))]
    pub(crate) fn keep_addresses(&self) {
        self.keeps_addresses.store(true, Ordering::Relaxed);
    }

    /// Bytes of the region.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What the region's first byte is called.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> FarPtr {
        self.origin
    }

    /// The far pointer of an offset of this region.
    ///
    /// # Panics
    /// If the offset leaves its 48 bits.
    #[must_use]
    #[inline]
    pub fn far_ptr(&self, offset: u64) -> FarPtr {
        self.origin.add(offset)
    }

    /// Are `offset..offset + bytes` inside?
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`] if not.
    #[inline]
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), FabricError> {
        if bytes <= self.len && offset <= self.len - bytes { Ok(()) } else { Err(self.out_of_bounds(offset, bytes)) }
    }

    #[cold]
    fn out_of_bounds(&self, offset: u64, bytes: u64) -> FabricError {
        FabricError::OutOfBounds { at: self.name(offset), bytes, region_bytes: self.len }
    }

    #[cold]
    fn misaligned(&self, offset: u64, align: u64) -> FabricError {
        FabricError::Misaligned { at: self.name(offset), align }
    }

    /// For errors: also for offsets that no far pointer can express.
    fn name(&self, offset: u64) -> FarPtr {
        FarPtr::new(self.origin.node(), self.origin.region(), offset.min(FarPtr::OFFSET_MAX))
    }

    /// The 8-byte word at `offset`.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, FabricError> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: checked in the two lines above.
        Ok(unsafe { self.word_unchecked(offset) })
    }

    /// The 8-byte word at `offset`.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and `offset + 8 <= len`.
    #[inline]
    #[must_use]
    pub unsafe fn word_unchecked(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        #[expect(clippy::cast_ptr_alignment, reason = "the start is page aligned and the offset a multiple of 8")]
        // SAFETY: inside the memory that lives as long as `self` and aligned, by the caller's promise; every other access to it
        // is atomic or an opaque copy.
        unsafe {
            &*self.base.as_ptr().add(offset as usize).cast::<AtomicU64>()
        }
    }

    /// Starts loading the cache lines of `offset..offset + len`, for a caller that will read them some 100 ns later. A hint: it
    /// reads nothing, and does nothing outside the region.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64, len: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        self.hint::<{ std::arch::x86_64::_MM_HINT_T0 }>(offset, len);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (offset, len);
    }

    /// As [`Self::prefetch`], for a caller that will write them: lines that another processor has are requested at once.
    #[inline(always)]
    pub fn prefetch_to_write(&self, offset: u64, len: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        self.hint::<{ std::arch::x86_64::_MM_HINT_ET0 }>(offset, len);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (offset, len);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn hint<const HINT: i32>(&self, offset: u64, len: u64) {
        const LINE_BYTES: u64 = 64;
        let end = offset.saturating_add(len).min(self.len);
        let mut at = offset & !(LINE_BYTES - 1);
        while at < end {
            // SAFETY: a prefetch changes nothing and faults on nothing; the address is inside the region all the same.
            unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(self.base.as_ptr().add(at as usize).cast()) };
            at += LINE_BYTES;
        }
    }

    /// Copies bytes out. A word that another thread changes meanwhile is either old or new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    #[inline]
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        self.check(offset, to.len() as u64)?;
        // SAFETY: checked in the line above.
        unsafe { self.copy_out_unchecked(offset, to) };
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Safety
    /// `offset + to.len() <= len`.
    #[inline]
    pub unsafe fn copy_out_unchecked(&self, offset: u64, to: &mut [u8]) {
        debug_assert!(offset + to.len() as u64 <= self.len);
        // SAFETY: the source is inside the region by the caller's promise, which is a whole number of words; `to` is
        // exclusive, so it is private and does not overlap.
        unsafe { copy::copy_from_shared(self.base.as_ptr().add(offset as usize), to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes out of lines of 64 bytes, each of which begins with a word that does not belong to them: 56 bytes a line,
    /// fewer of the last. Returns how these words differ from `expected`, all differences together. It is for layouts that keep a
    /// version in every line; these versions must tell what other threads changed meanwhile.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn copy_out_lines(&self, offset: u64, expected: u64, to: &mut [u8]) -> Result<u64, FabricError> {
        let (whole, last) = to.as_chunks_mut::<56>();
        let bytes = whole.len() as u64 * 64;
        self.check(offset, bytes)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: the lines are inside, which is checked above, and aligned; `whole` is exclusive, so it does not overlap.
        let mut differences = unsafe {
            let lines = self.base.as_ptr().add(offset as usize);
            copy::copy_lines_from_shared(lines, expected, whole.as_mut_ptr().cast(), whole.len())
        };
        if !last.is_empty() {
            differences |= self.word(offset + bytes)?.load(Ordering::Relaxed) ^ expected;
            self.copy_out(offset + bytes + 8, last)?;
        }
        Ok(differences)
    }

    /// The wrapping sum of the words from `offset`, computed in place: nothing is copied. A word that another thread changes
    /// meanwhile is either old or new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn sum_words(&self, offset: u64, words: usize) -> Result<u64, FabricError> {
        self.check(offset, words as u64 * 8)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: the words are inside, which is checked above, and aligned.
        Ok(unsafe { copy::sum_shared(self.base.as_ptr().add(offset as usize), words) })
    }

    /// Copies bytes in; concurrent readers see each word old or new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    #[inline]
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), FabricError> {
        self.check(offset, from.len() as u64)?;
        // SAFETY: checked in the line above.
        unsafe { self.copy_in_unchecked(offset, from) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// `offset + from.len() <= len`.
    #[inline]
    pub unsafe fn copy_in_unchecked(&self, offset: u64, from: &[u8]) {
        debug_assert!(offset + from.len() as u64 <= self.len);
        // SAFETY: the target is inside the region by the caller's promise. `from` is Rust memory that no thread changes, so it is
        // not part of the region.
        unsafe { copy::copy_to_shared(from.as_ptr(), self.base.as_ptr().add(offset as usize), from.len()) }
    }

    /// As [`Self::copy_in_unchecked`], by moves that a hardware transaction may make.
    ///
    /// # Safety
    /// `offset + from.len() <= len`.
    #[inline]
    pub unsafe fn copy_in_narrow_unchecked(&self, offset: u64, from: &[u8]) {
        debug_assert!(offset + from.len() as u64 <= self.len);
        // SAFETY: as in `copy_in_unchecked`.
        unsafe { copy::copy_to_shared_narrow(from.as_ptr(), self.base.as_ptr().add(offset as usize), from.len()) }
    }

    /// Makes the page of a word present and marked as written, and changes nothing. Any other thread may use the word meanwhile.
    ///
    /// # Safety
    /// As [`Self::word_unchecked`].
    #[inline]
    pub unsafe fn touch_unchecked(&self, offset: u64) {
        // SAFETY: the caller's promise.
        let word = unsafe { self.word_unchecked(offset) };
        // An atomic `or` of 0 that is written in Rust becomes a load, which LLVM may do, and does on x86: nothing would be marked.
        // SAFETY: an atomic instruction on a word that is mapped and aligned by the caller's promise; it stores what is there.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::asm!("lock or qword ptr [{word}], 0", word = in(reg) word.as_ptr(), options(nostack));
        }
        // Hardware transactions, which need this, are x86's alone.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        word.fetch_or(0, std::sync::atomic::Ordering::Relaxed);
    }

    /// One state of the object at `offset`: its header, and its payload in `to[..payload_len]`. It ignores the lock.
    ///
    /// # Errors
    /// [`FabricError::Torn`] if a writer is or was at work; [`FabricError::ObjectTooLong`] if `to` is too short;
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn read_object(&self, offset: u64, to: &mut [u8]) -> Result<ObjectHeader, FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        unsafe { self.read_object_unchecked(offset, to) }
    }

    /// As [`Self::read_object`], without the checks of the offset. (The payload is still checked against the region.)
    ///
    /// # Errors
    /// As [`Self::read_object`].
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and `offset + 32 <= len`.
    #[inline]
    pub unsafe fn read_object_unchecked(&self, offset: u64, to: &mut [u8]) -> Result<ObjectHeader, FabricError> {
        // SAFETY: the caller promises the same.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() {
            return Err(self.torn(offset));
        }
        let payload_len = header.meta.payload_len();
        let fits = payload_len <= to.len() && payload_len as u64 <= self.len - offset - object::PAYLOAD;
        if fits {
            // SAFETY: `fits` says that the payload ends inside the region and inside `to`.
            unsafe { self.copy_out_unchecked(offset + object::PAYLOAD, to.get_unchecked_mut(..payload_len)) };
        }
        // SAFETY: the caller's promise, again.
        if unsafe { self.version_now_unchecked(offset) } != header.version {
            return Err(self.torn(offset));
        }
        if fits { Ok(header) } else { Err(self.object_too_long(offset, payload_len, to.len())) }
    }

    /// Uses an object's payload in place: its header, and the sum of the payload's words (without an incomplete last one), of one
    /// state. It is the cost of `read_object`'s promise for a reader that needs no copy.
    ///
    /// # Errors
    /// As [`Self::read_object`].
    #[inline]
    pub fn sum_object(&self, offset: u64, payload_len_max: usize) -> Result<(ObjectHeader, u64), FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() {
            return Err(self.torn(offset));
        }
        let payload_len = header.meta.payload_len();
        let fits = payload_len <= payload_len_max && payload_len as u64 <= self.len - offset - object::PAYLOAD;
        let start = self.base.as_ptr().wrapping_add((offset + object::PAYLOAD) as usize);
        // SAFETY: `fits` says that the payload ends inside the region; it starts at a multiple of 8.
        let sum = if fits { unsafe { copy::sum_shared(start, payload_len / 8) } } else { 0 };
        // SAFETY: checked in the first lines.
        if unsafe { self.version_now_unchecked(offset) } != header.version {
            return Err(self.torn(offset));
        }
        if fits { Ok((header, sum)) } else { Err(self.object_too_long(offset, payload_len, payload_len_max)) }
    }

    /// The first step of reading an object: its header, unless a writer is at work.
    pub(crate) fn read_header(&self, offset: u64) -> Result<ObjectHeader, FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() { Err(self.torn(offset)) } else { Ok(header) }
    }

    /// Whether a payload of that length may be read into that much room.
    pub(crate) fn payload_fits(&self, offset: u64, payload_len: usize, room: usize) -> Result<(), FabricError> {
        let inside = payload_len as u64 <= self.len - offset - object::PAYLOAD;
        if inside && payload_len <= room { Ok(()) } else { Err(self.object_too_long(offset, payload_len, room)) }
    }

    /// The last step of reading an object: whether it still has the version of its header.
    pub(crate) fn recheck_version(&self, offset: u64, version: Version) -> Result<(), FabricError> {
        self.check(offset, object::PAYLOAD)?;
        // SAFETY: checked in the line above; aligned because `read_header` came before with the same offset.
        if unsafe { self.version_now_unchecked(offset) } == version { Ok(()) } else { Err(self.torn(offset)) }
    }

    /// # Safety
    /// As [`Self::read_object_unchecked`].
    #[inline]
    unsafe fn header_unchecked(&self, offset: u64) -> ObjectHeader {
        // SAFETY: all four words are inside and aligned by the caller's promise.
        let [lock, version, meta, prev] = unsafe {
            [object::LOCK, object::VERSION, object::META, object::PREV].map(|at| self.word_unchecked(offset + at))
        };
        // The version first: what is loaded after it is at least as new.
        let version = Version(version.load(Ordering::Acquire));
        ObjectHeader {
            lock: lock.load(Ordering::Relaxed),
            version,
            meta: Meta(meta.load(Ordering::Relaxed)),
            prev: prev.load(Ordering::Relaxed),
        }
    }

    /// The version after everything read so far: if one of the loads met a writer, this load meets the writer's mark.
    ///
    /// # Safety
    /// As [`Self::read_object_unchecked`].
    #[inline]
    unsafe fn version_now_unchecked(&self, offset: u64) -> Version {
        fence(Ordering::Acquire);
        // SAFETY: inside and aligned by the caller's promise.
        Version(unsafe { self.word_unchecked(offset + object::VERSION) }.load(Ordering::Relaxed))
    }

    #[cold]
    fn torn(&self, offset: u64) -> FabricError {
        FabricError::Torn { at: self.name(offset) }
    }

    #[cold]
    fn object_too_long(&self, offset: u64, payload_len: usize, payload_len_max: usize) -> FabricError {
        if payload_len as u64 > self.len - offset - object::PAYLOAD {
            return self.out_of_bounds(offset + object::PAYLOAD, payload_len as u64);
        }
        FabricError::ObjectTooLong { at: self.name(offset), payload_len, payload_len_max }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: allocated with this layout, and no borrow of it is left.
            Backing::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) },
            // SAFETY: mapped with this length by `map`, and no borrow of it is left; the new mapping replaces this one alone.
            Backing::Mapped { bytes, .. } if *self.keeps_addresses.get_mut() => unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                libc::mmap(self.base.as_ptr().cast(), bytes, libc::PROT_NONE, flags, -1, 0);
            },
            // SAFETY: mapped with this length by `map`, and no borrow of it is left.
            Backing::Mapped { bytes, .. } => unsafe {
                libc::munmap(self.base.as_ptr().cast(), bytes);
            },
        }
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMemory").field("origin", &self.origin).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Whether this is a file of memory alone, which nothing makes durable.
fn is_memory(fd: libc::c_int) -> bool {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's descriptor is open, and `found` is exclusively ours.
    unsafe { libc::fstatfs(fd, &raw mut found) == 0 && found.f_type == libc::TMPFS_MAGIC }
}

pub(crate) fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer that comes too late never writes to memory that was mapped afterwards.
    #[test]
    #[cfg_attr(miri, ignore = "mappings")]
    fn addresses_that_are_kept_are_not_mapped_anew() {
        let origin = FarPtr::new(crate::NodeId(0), crate::RegionId(0), 0);
        for keeps in [false, true] {
            let memory = RegionMemory::anonymous(origin, 1 << 20).unwrap();
            memory.copy_in(0, b"content").unwrap();
            if keeps {
                memory.keep_addresses();
            }
            let at: *mut libc::c_void = memory.base.as_ptr().cast();
            drop(memory);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a mapping that replaces none touches no memory that is in use.
            let mapped = unsafe { libc::mmap(at, 4096, libc::PROT_READ, flags, -1, 0) };
            let is_taken = mapped == libc::MAP_FAILED;
            // Other threads map as well, and may take what is given back.
            assert!(is_taken || !keeps);
            if !is_taken {
                // SAFETY: mapped four lines above, and used by no other code.
                unsafe { libc::munmap(mapped, 4096) };
            }
        }
    }

    /// Of a disk's file, flushed bytes are in the file; of memory, flushing does nothing; outside, it is refused.
    #[test]
    #[cfg_attr(miri, ignore = "file mappings")]
    fn flushed_bytes_are_in_the_file() {
        let origin = FarPtr::new(crate::NodeId(0), crate::RegionId(0), 0);
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            let (file, path) = tempfile::NamedTempFile::new_in(folder).unwrap().into_parts();
            file.set_len(8192).unwrap();
            let memory = RegionMemory::file(origin, 8192, &file).unwrap();
            memory.copy_in(5000, b"durable").unwrap();
            memory.flush(5000, 7).unwrap();
            assert_eq!(&std::fs::read(&path).unwrap()[5000..5007], b"durable");
            assert!(matches!(memory.flush(8190, 3), Err(FabricError::OutOfBounds { .. })));
            memory.flush(8192, 0).unwrap();
        }
        let durable = |memory: &RegionMemory| matches!(memory.backing, Backing::Mapped { durable: true, .. });
        assert!(!durable(&RegionMemory::anonymous(origin, 4096).unwrap()));
    }

    /// Two threads on the memory itself: a reader of an object gets one state of it or `Torn`. Miri runs it with the
    /// portable copies, which shows that they and the fences are enough for Rust's memory model.
    #[test]
    fn a_racing_reader_sees_one_state() {
        let memory = RegionMemory::anonymous(FarPtr::default(), 4096).unwrap();
        let rounds = if cfg!(miri) { 12 } else { 50_000u64 };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let version = memory.word(object::VERSION).unwrap();
                for round in 1..=rounds {
                    let number = round * Version::ONE;
                    version.store((number - Version::ONE) | Version::WRITING, Ordering::Relaxed);
                    fence(Ordering::Release);
                    let len = 8 + (round % 5) as usize * 24;
                    memory.word(object::META).unwrap().store(Meta::new(1, Meta::ROW, 0, len).0, Ordering::Relaxed);
                    memory.copy_in(object::PAYLOAD, &number.to_le_bytes().repeat(len / 8)).unwrap();
                    version.store(number, Ordering::Release);
                }
                done.store(true, Ordering::Release);
            });
            let mut last = 0;
            loop {
                let finished = done.load(Ordering::Acquire);
                let mut payload = [0; 128];
                match memory.read_object(0, &mut payload) {
                    Ok(header) => {
                        assert!(header.version.0 >= last);
                        last = header.version.0;
                        let expected = if last == 0 { 0 } else { 8 + (last / Version::ONE % 5) as usize * 24 };
                        assert_eq!(header.meta.payload_len(), expected);
                        assert!(payload[..expected].chunks(8).all(|word| word == last.to_le_bytes()), "a mix");
                    }
                    Err(error) => assert!(matches!(error, FabricError::Torn { .. }), "{error}"),
                }
                if finished {
                    break;
                }
            }
            assert_eq!(last, rounds * Version::ONE);
        });
    }

    #[test]
    fn nothing_outside_is_touched() {
        let memory = RegionMemory::anonymous(FarPtr::default(), 4096).unwrap();
        for (offset, bytes) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 3, 8), (0, 4097)] {
            let error = memory.check(offset, bytes).unwrap_err();
            assert!(matches!(error, FabricError::OutOfBounds { region_bytes: 4096, .. }), "{error}");
            assert!(memory.copy_out(offset, &mut vec![0; bytes as usize]).is_err());
            assert!(memory.copy_in(offset, &vec![0; bytes as usize]).is_err());
        }
        assert!(memory.word(4092).is_err() && memory.word(u64::MAX - 7).is_err() && memory.word(4088).is_ok());
        assert!(matches!(memory.word(4), Err(FabricError::Misaligned { align: 8, .. })));
    }
}
