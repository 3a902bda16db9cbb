//! What durability asks of a file system, and no more; and the real one.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of flat names.
///
/// Names and bytes are durable only when [`sync`](Directory::sync) or the file's own [`sync`](DurableFile::sync) has returned; before, each
/// sector of 512 bytes, or cache line of 64, may have been written or not.
pub trait Directory: Send + Sync + Debug {
    /// All names.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new empty file, in place of one of this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>>;
    /// A file that is there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>>;
    /// Gives a file another name, which may be taken.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a name away.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all changes of names durable.
    fn sync(&self) -> io::Result<()>;
    /// Holds a name until the answer is dropped or the process ends; `None`: a living process holds it.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>>;
    /// For messages.
    fn name(&self) -> String;
}

/// A file.
#[allow(clippy::len_without_is_empty, reason = "nobody asks")]
pub trait DurableFile: Send + Sync + Debug {
    /// Its bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads exactly so many.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes, and makes the file longer if need be.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is durable.
    fn sync(&self) -> io::Result<()>;
}

/// A directory on a disk: `fdatasync` makes durable.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// This directory, made if it is not there.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Directory for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(self.path.join(name))?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

#[derive(Debug)]
struct DiskFile(File);

impl DurableFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
