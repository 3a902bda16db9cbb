//! Files whose bytes are persistent memory: written by stores, made durable by flushing cache lines.
//!
//! `clwb` (or `clflushopt`, or `clflush` if the processor has neither) writes a line back, and `sfence` waits until it is in the
//! **persistence domain**. The file system promises that this domain is the medium: `MAP_SYNC` is granted on DAX mounts alone,
//! and says that the file's blocks are where the mapping says whenever a line arrives there. Without that promise the file is
//! refused, unless the caller makes it ([`Domain::Assumed`]: a machine with battery-backed caches or DRAM, or a test).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The source of the promise that flushed lines are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// The file system, by `MAP_SYNC`.
    Asserted,
    /// The caller.
    Assumed,
}

/// How lines are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    WriteBack,
    Optimised,
    Plain,
}

impl Flush {
    fn of_this_processor() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        #[expect(clippy::disallowed_methods, reason = "once for a mapped file")]
        {
            let bits = std::arch::x86_64::__cpuid_count(7, 0).ebx;
            if bits & 1 << 24 != 0 {
                return Self::WriteBack;
            }
            if bits & 1 << 23 != 0 {
                return Self::Optimised;
            }
        }
        Self::Plain
    }
}

/// A file mapped as persistent memory. One thread writes at a time.
#[derive(Debug)]
pub struct PersistentFile {
    base: NonNull<u8>,
    len: usize,
    flush: Flush,
}

// SAFETY: the mapping is owned by this value and reached through `&mut self` alone.
unsafe impl Send for PersistentFile {}

impl PersistentFile {
    /// Maps a whole file of `len` bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] with [`Domain::Asserted`] on a file system that does not promise that flushed lines are durable,
    /// and on a processor for which this module knows no flush instruction.
    pub fn map(file: &File, len: u64, domain: Domain) -> io::Result<Self> {
        if domain == Domain::Asserted && !cfg!(all(target_arch = "x86_64", not(miri))) {
            let what = "cache lines are flushed on x86-64 processors only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let flags = match domain {
            Domain::Asserted => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            Domain::Assumed => libc::MAP_SHARED,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) {
                let what =
                    "this file system does not promise that flushed cache lines are durable (no DAX, so no MAP_SYNC)";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            return Err(error);
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { base, len, flush: Flush::of_this_processor() })
    }

    /// Bytes of it.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty file is not mapped")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Writes; durable after [`Self::persist`] of the same bytes.
    ///
    /// # Panics
    /// If the bytes leave the file.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = self.check(at, bytes.len());
        // SAFETY: `check` has found the bytes inside of the mapping. No borrow of it exists, because it is reached through this
        // value alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    /// Returns when the bytes are in the persistence domain.
    ///
    /// # Panics
    /// If the bytes leave the file.
    pub fn persist(&mut self, at: u64, len: usize) {
        let at = self.check(at, len);
        let first = at / LINE * LINE;
        for line in (first..at + len).step_by(LINE) {
            // SAFETY: the line begins inside of the mapping, and the mapping's start is page aligned.
            unsafe { self.flush_line(self.base.as_ptr().add(line)) };
        }
        fence();
    }

    fn check(&self, at: u64, len: usize) -> usize {
        let end = at.checked_add(len as u64).filter(|end| *end <= self.len as u64);
        assert!(end.is_some(), "{len} bytes at {at} of a file of {}", self.len);
        at as usize
    }

    /// # Safety
    /// `line` lies in the mapping.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn flush_line(&self, line: *mut u8) {
        use std::arch::asm;
        // SAFETY: the caller's promise; the instructions read and write no register but the address, and the processor was asked
        // whether it has them (`clflush` every x86-64 has).
        unsafe {
            match self.flush {
                Flush::WriteBack => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                Flush::Optimised => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                Flush::Plain => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    unsafe fn flush_line(&self, _line: *mut u8) {
        let _ = self.flush;
    }
}

fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

impl Drop for PersistentFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no other pointer into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_persisted_is_in_the_file_and_a_disk_is_refused() {
        let (file, path) = tempfile::NamedTempFile::new().expect("a file").into_parts();
        file.set_len(8192).expect("a length");
        match PersistentFile::map(&file, 8192, Domain::Asserted) {
            // A DAX mount.
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains("does not promise"), "{error}"),
        }
        let mut mapped = PersistentFile::map(&file, 8192, Domain::Assumed).expect("a mapping");
        mapped.write(100, b"durable");
        mapped.persist(100, 7);
        assert_eq!(&std::fs::read(&path).expect("a file")[100..107], b"durable");
    }
}
