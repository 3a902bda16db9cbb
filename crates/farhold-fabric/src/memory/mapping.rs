//! Where a region's memory comes from, and how its content is made durable.

use super::{Backing, RegionMemory, round_up};
use crate::address::FarPtr;
use crate::error::FabricError;
use crate::room::Room;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

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
    /// these addresses then: such transfers fail, and never reach memory that is mapped later. It costs address space, of which
    /// there are 128 TiB.
    #[cfg(any(test, feature = "libfabric"))]
    pub(crate) fn keep_addresses(&self) {
        self.keeps_addresses.store(true, std::sync::atomic::Ordering::Relaxed);
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

/// Whether this is a file of memory alone, which nothing makes durable.
fn is_memory(fd: libc::c_int) -> bool {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's descriptor is open, and `found` is exclusively ours.
    unsafe { libc::fstatfs(fd, &raw mut found) == 0 && found.f_type == libc::TMPFS_MAGIC }
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
}
