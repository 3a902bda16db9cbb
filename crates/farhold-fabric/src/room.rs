//! Memory for the bytes of a sparse file, taken before they are touched.
//!
//! A page of a mapped file that has no memory yet gets it at the first touch. If the file system is full then, the kernel kills
//! the process (SIGBUS). So a caller must reserve bytes here before it uses them for the first time; here a full file system is
//! an ordinary error. Once an extent has its memory, a call costs a bit test.
//!
//! Two cases stay uncovered. A file system may be unable to allocate ahead; it says so, and files grow by touch as before (tmpfs,
//! ext4, xfs and btrfs can allocate ahead). And at a control group's memory limit the kernel kills, whatever the file system
//! says.

use crate::error::FabricError;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory is reserved in pieces of this size, if there is that much: 64 runs of slots a call. Its last piece is what a region may
/// hold beyond what it uses.
const EXTENT_BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A file that grows, and which of its extents have memory.
pub(crate) struct Room {
    file: File,
    path: PathBuf,
    /// One bit an extent.
    extents: Box<[AtomicU64]>,
}

impl Room {
    pub fn new(file: File, path: &Path, bytes: u64) -> Self {
        let words = bytes.div_ceil(EXTENT_BYTES).div_ceil(64) as usize;
        Self { file, path: path.to_owned(), extents: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves memory for `offset..offset + len`, inside a file of `file_bytes`. Returns the part that has just got it.
    pub fn reserve(&self, offset: u64, len: u64, file_bytes: u64) -> Result<Range<u64>, FabricError> {
        if len == 0 {
            return Ok(0..0);
        }
        let extents = offset / EXTENT_BYTES..(offset + len).div_ceil(EXTENT_BYTES);
        let bit = |extent: u64| (&self.extents[(extent / 64) as usize], 1 << (extent % 64));
        let missing = |extent: &u64| {
            let (word, bit) = bit(*extent);
            word.load(Relaxed) & bit == 0
        };
        if !extents.clone().any(|extent| missing(&extent)) {
            return Ok(0..0);
        }
        let (start, end) = (extents.start * EXTENT_BYTES, (extents.end * EXTENT_BYTES).min(file_bytes));
        if allocate(&self.file, start, end - start).is_ok() {
            for (word, bit) in extents.map(bit) {
                word.fetch_or(bit, Relaxed);
            }
            return Ok(start..end);
        }
        // There is not that much left: reserve what is needed, and try again next time.
        let start = offset / PAGE * PAGE;
        let end = (offset + len).next_multiple_of(PAGE).min(file_bytes);
        let allocated = allocate(&self.file, start, end - start);
        allocated.map_err(|error| refusal(&error, &self.file, &self.path, end - start)).map(|()| start..end)
    }
}

/// Gives memory to all of a part of a file, or to nothing of it. The file's length and content stay as they are.
pub(crate) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open as long as `file`; the call touches no memory of ours.
        let done = unsafe {
            libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, offset.cast_signed(), len.cast_signed())
        };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // A file system, or a device, that cannot allocate ahead: see the module.
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// What a refused [`allocate`] means.
pub(crate) fn refusal(error: &io::Error, file: &File, path: &Path, wanted_bytes: u64) -> FabricError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => {
            FabricError::file_system_full(path, wanted_bytes, free_bytes(file))
        }
        _ => FabricError::io("make room in", path, error),
    }
}

/// Bytes that the file's file system has left for this user.
fn free_bytes(file: &File) -> u64 {
    // SAFETY: all-zero bytes are a valid statvfs.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as `file`, and `found` is exclusively ours.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) } == 0 { found.f_bavail * found.f_frsize } else { 0 }
}
