//! A directory on persistent memory: what has its length is written by stores and made durable by flushing cache lines.

use super::files::{Directory, Disk, DurableFile};
use farhold_fabric::persist::{Domain, PersistentFile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A directory on a DAX mount.
#[derive(Debug)]
pub struct Nvm {
    names: Disk,
    domain: Domain,
}

impl Nvm {
    /// This directory, made if it is not there.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if `domain` is to be asserted by the file system and it does not. The file system's own.
    pub fn open(path: impl Into<PathBuf>, domain: Domain) -> io::Result<Self> {
        let this = Self { names: Disk::open(path)?, domain };
        // Asked now, not at the first commit.
        let probe = "probe";
        let file = this.create(probe)?;
        let promised = file.write_at(0, &[0; 4096]).and_then(|()| file.sync());
        this.remove(probe)?;
        promised?;
        Ok(this)
    }

    fn file(&self, file: File) -> Arc<dyn DurableFile> {
        Arc::new(NvmFile { inner: Mutex::default(), file, domain: self.domain })
    }
}

impl Directory for Nvm {
    fn list(&self) -> io::Result<Vec<String>> {
        self.names.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let path = self.names.path().join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        Ok(self.file(OpenOptions::new().read(true).write(true).open(self.names.path().join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.names.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.names.sync()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.names.lock(name)
    }

    fn name(&self) -> String {
        self.names.name()
    }
}

#[derive(Debug)]
struct NvmFile {
    inner: Mutex<Mapped>,
    file: File,
    domain: Domain,
}

#[derive(Debug, Default)]
struct Mapped {
    map: Option<PersistentFile>,
    /// Ranges written since the last sync: where and how many bytes.
    written: Vec<(u64, usize)>,
    /// It was made longer: the kernel has to write that down.
    grown: bool,
}

impl DurableFile for NvmFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *inner;
        match &mut inner.map {
            Some(map) if at + bytes.len() as u64 <= map.len() => {
                map.write(at, bytes);
                inner.written.push((at, bytes.len()));
                Ok(())
            }
            _ => {
                inner.grown = true;
                self.file.write_all_at(bytes, at)
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.grown || inner.map.is_none() {
            self.file.sync_all()?;
            let len = self.file.metadata()?.len();
            if len > 0 {
                inner.map = Some(PersistentFile::map(&self.file, len, self.domain)?);
            }
            inner.grown = false;
        }
        let Mapped { map, written, .. } = &mut *inner;
        if let Some(map) = map {
            for (at, len) in written.drain(..) {
                map.persist(at, len);
            }
        }
        Ok(())
    }
}
