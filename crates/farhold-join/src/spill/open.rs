//! The files in which spilled rows lie. They take at most half of the process's descriptors, unless a directory has no
//! file yet.
//!
//! Each thread of a join spills each side to some files of its own, and a plan has several joins. With a hundred
//! processors that is more than the thousand descriptors that a process usually has. Once half of them are taken, and
//! whenever the system gives no more, a request gets a file to which others write as well. The disk gets the parts of
//! such a file back as each of them ends.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

/// A file without a name. A writer locks its end to append.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    pub end: Mutex<u64>,
    directory: PathBuf,
    /// Whether the kernel reads nothing of it ahead.
    is_random: bool,
}

static OPEN: Mutex<Open> = Mutex::new(Open { files: Vec::new(), making: 0 });

/// The open files of all joins.
struct Open {
    files: Vec<Weak<OpenFile>>,
    /// Files that are being created.
    making: usize,
}

impl Open {
    /// The file in this directory that is shared least.
    fn shared(&self, directory: &Path, is_random: bool) -> Option<Arc<OpenFile>> {
        let files = self.files.iter().filter_map(Weak::upgrade);
        let files = files.filter(|file| file.is_random == is_random && file.directory == directory);
        files.min_by_key(Arc::strong_count)
    }
}

fn lock() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// A file in this directory: a new one, or a shared one.
    pub fn of(directory: &Path, is_random: bool) -> io::Result<Arc<Self>> {
        loop {
            let mut open = lock();
            open.files.retain(|file| file.strong_count() > 0);
            if open.files.len() + open.making >= files_max()
                && let Some(file) = open.shared(directory, is_random)
            {
                return Ok(file);
            }
            // Creating a file may take long, where many have just been deleted.
            open.making += 1;
            drop(open);
            let made = Self::make(directory, is_random);
            let mut open = lock();
            open.making -= 1;
            match made {
                Ok(file) => {
                    open.files.push(Arc::downgrade(&file));
                    return Ok(file);
                }
                Err(error) if is_out_of_descriptors(&error) => match open.shared(directory, is_random) {
                    Some(file) => return Ok(file),
                    // The last descriptor belongs to a file that will be in the list at once.
                    None if open.making > 0 => {}
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
            drop(open);
            thread::yield_now();
        }
    }

    fn make(directory: &Path, is_random: bool) -> io::Result<Arc<Self>> {
        let file = tempfile::tempfile_in(directory)?;
        if is_random {
            // The kernel reads ahead by megabytes, into pages that it cannot take back before the disk has answered.
            // Under a memory limit of the kernel, that ends processes. Each part is requested as a whole, one part
            // ahead of its reader.
            // SAFETY: advice about an open file; it touches no memory. It may be refused.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        }
        Ok(Arc::new(Self { file, end: Mutex::new(0), directory: directory.into(), is_random }))
    }

    /// Returns these parts to the disk. A file system without holes gets them back with the file.
    pub fn free(&self, parts: &[Range<u64>]) {
        for part in parts {
            let (start, length) = (part.start as libc::off_t, (part.end - part.start) as libc::off_t);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: an open file; it touches no memory. These parts are no longer read.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, length) };
        }
    }
}

/// The number of files that all joins may have. A limit that cannot be read is taken for the usual one.
fn files_max() -> usize {
    const USUAL: libc::rlim_t = 1024;
    let mut limit = libc::rlimit { rlim_cur: USUAL, rlim_max: USUAL };
    // SAFETY: the limits are written into a structure of this function.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let descriptors = if read == 0 { limit.rlim_cur } else { USUAL };
    usize::try_from(descriptors / 2).unwrap_or(usize::MAX)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn the_disk_has_parts_of_a_file_back() {
        let directory = tempfile::tempdir().unwrap();
        let open = OpenFile::of(directory.path(), false).unwrap();
        open.file.write_all_at(&vec![7; 4 << 20], 0).unwrap();
        open.file.sync_all().unwrap();
        let blocks = || open.file.metadata().unwrap().blocks();
        let before = blocks();
        open.free(&[0..1 << 20, 2 << 20..3 << 20]);
        let freed = before - blocks();
        // A file system without holes loses nothing either.
        assert!(freed == 0 || freed * 512 >= 2 << 20, "{freed} blocks of {before}");
        let mut left = [0; 16];
        open.file.read_exact_at(&mut left, 1 << 20).unwrap();
        assert_eq!(left, [7; 16]);
    }
}
