//! What durability requires of a file system, and no more; and the real file system.

use farhold_fabric::private;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of flat names.
///
/// Names and bytes are durable only when [`sync`](Directory::sync) or the file's own [`sync`](DurableFile::sync) has returned.
/// Before that, each sector of 512 bytes, or cache line of 64, may have been written or not.
pub trait Directory: Send + Sync + Debug {
    /// All names.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new empty file, in place of one of this name.
    ///
    /// # Errors
    /// No room, or the directory cannot be written.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>>;
    /// A file that is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none, or it cannot be read.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>>;
    /// Renames a file, over an existing one if there is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or the directory cannot be written.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a name away.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or the directory cannot be written.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all changes of names durable.
    ///
    /// # Errors
    /// The disk has failed: which changes are durable is unknown.
    fn sync(&self) -> io::Result<()>;
    /// Locks a name until the returned value is dropped or the process ends; `None`: a living process holds it.
    ///
    /// # Errors
    /// The file system has no locks, or the file cannot be made.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>>;
    /// For messages.
    fn name(&self) -> String;
}

/// A file.
#[allow(clippy::len_without_is_empty, reason = "no caller asks")]
pub trait DurableFile: Send + Sync + Debug {
    /// Its bytes.
    ///
    /// # Errors
    /// The file cannot be asked.
    fn len(&self) -> io::Result<u64>;
    /// Reads exactly `into.len()` bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file is shorter, or it cannot be read.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes, and extends the file if necessary.
    ///
    /// # Errors
    /// No room, or the disk has failed: any part of the bytes may have been written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is durable.
    ///
    /// # Errors
    /// The disk has failed: which bytes are durable is unknown.
    fn sync(&self) -> io::Result<()>;
}

/// A directory on a disk: `fdatasync` makes bytes durable.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// This directory; it is made if it does not exist.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let missing: Vec<&Path> = path.ancestors().take_while(|it| !it.exists()).collect();
        private::directory(&path)?;
        // A directory is durable when the one above it is, in which its name is.
        for above in missing.iter().filter_map(|made| made.parent()) {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            File::open(above)?.sync_all()?;
        }
        Ok(Self { path })
    }

    /// A new file, or an old one emptied.
    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = private::open(&self.path.join(name), options.read(true).write(true).create(true).truncate(false))?;
        file.set_len(0)?;
        Ok(file)
    }

    /// A file that is there.
    pub(super) fn open_file(&self, name: &str) -> io::Result<File> {
        private::open(&self.path.join(name), OpenOptions::new().read(true).write(true))
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
        Ok(Arc::new(DiskFile(self.create_file(name)?)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        Ok(Arc::new(DiskFile(self.open_file(name)?)))
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
        let file = private::open(&path, OpenOptions::new().create(true).truncate(false).write(true))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Journals hold rows: other users must not read them.
    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_journal_is_its_user_s_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let disk = Disk::open(&path).unwrap();
        disk.create("journal").unwrap().write_at(0, b"rows").unwrap();
        assert_eq!(disk.create("journal").unwrap().len().unwrap(), 0, "in place of one of this name");
        drop(disk.lock("lock").unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&path), mode(&path.join("journal")), mode(&path.join("lock"))], [0o700, 0o600, 0o600]);
        std::os::unix::fs::symlink(path.join("journal"), path.join("planted")).unwrap();
        assert!(disk.create("planted").is_err() && disk.open("planted").is_err() && disk.lock("planted").is_err());
    }
}
