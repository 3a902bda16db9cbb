//! A directory on persistent memory: a file with its final length is written by stores and made durable by flushing cache lines.

use super::files::{Directory, Disk, DurableFile};
use farhold_fabric::persist::{Domain, PersistentFile};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Directories that were asked.
static PROBES: AtomicU32 = AtomicU32::new(0);

/// A directory on a DAX mount.
#[derive(Debug)]
pub struct Nvm {
    names: Disk,
    domain: Domain,
}

impl Nvm {
    /// This directory; it is made if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the file system must assert `domain` and does not; the file system's errors.
    pub fn open(path: impl Into<PathBuf>, domain: Domain) -> io::Result<Self> {
        let this = Self { names: Disk::open(path)?, domain };
        // Checked now, not at the first commit; other nodes check at the same time.
        let probe = format!("probe-{}-{}", std::process::id(), PROBES.fetch_add(1, Relaxed));
        let file = this.create(&probe)?;
        let promised = file.write_at(0, &[0; 4096]).and_then(|()| file.sync());
        this.remove(&probe)?;
        promised?;
        Ok(this)
    }

    fn file(&self, file: File) -> Arc<dyn DurableFile> {
        Arc::new(NvmFile::<PersistentFile>::new(file, self.domain))
    }
}

impl Directory for Nvm {
    fn list(&self) -> io::Result<Vec<String>> {
        self.names.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        Ok(self.file(self.names.create_file(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        Ok(self.file(self.names.open_file(name)?))
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

/// Cache lines of a file.
trait Lines: Send + fmt::Debug + Sized {
    fn map(file: &File, len: u64, domain: Domain) -> io::Result<Self>;
    fn len(&self) -> u64;
    fn write(&mut self, at: u64, bytes: &[u8]);
    fn persist(&mut self, at: u64, len: usize);
}

impl Lines for PersistentFile {
    fn map(file: &File, len: u64, domain: Domain) -> io::Result<Self> {
        Self::map(file, len, domain)
    }

    fn len(&self) -> u64 {
        self.len()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.write(at, bytes);
    }

    fn persist(&mut self, at: u64, len: usize) {
        self.persist(at, len);
    }
}

#[derive(Debug)]
struct NvmFile<L> {
    inner: Mutex<Mapped<L>>,
    file: File,
    domain: Domain,
}

#[derive(Debug)]
struct Mapped<L> {
    map: Option<L>,
    /// Ranges written since the last sync: where and how many bytes.
    written: Vec<(u64, usize)>,
    /// It was extended: the kernel must record that.
    grown: bool,
}

impl<L> NvmFile<L> {
    fn new(file: File, domain: Domain) -> Self {
        Self { inner: Mutex::new(Mapped { map: None, written: Vec::new(), grown: false }), file, domain }
    }
}

impl<L: Lines> DurableFile for NvmFile<L> {
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
                inner.map = Some(L::map(&self.file, len, self.domain)?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const LINE: u64 = 64;

    thread_local! {
        /// Bytes that are in caches alone, for all mappings of the file.
        static CACHED: std::cell::RefCell<BTreeMap<u64, u8>> = const { std::cell::RefCell::new(BTreeMap::new()) };
    }

    /// A processor whose caches write nothing back by themselves: the file has what was flushed.
    #[derive(Debug)]
    struct Lazy {
        file: File,
        len: u64,
    }

    impl Lines for Lazy {
        fn map(file: &File, len: u64, _: Domain) -> io::Result<Self> {
            Ok(Self { file: file.try_clone()?, len })
        }

        fn len(&self) -> u64 {
            self.len
        }

        fn write(&mut self, at: u64, bytes: &[u8]) {
            CACHED.with_borrow_mut(|cached| cached.extend((at..).zip(bytes.iter().copied())));
        }

        fn persist(&mut self, at: u64, len: usize) {
            let lines = at / LINE * LINE..(at + len as u64).next_multiple_of(LINE);
            let flushed: Vec<_> = CACHED.with_borrow_mut(|cached| cached.extract_if(lines, |_, _| true).collect());
            for (at, byte) in flushed {
                self.file.write_all_at(&[byte], at).expect("a byte of the file");
            }
        }
    }

    #[test]
    fn what_is_synced_is_flushed() {
        let (file, path) = tempfile::NamedTempFile::new().expect("a file").into_parts();
        let nvm = NvmFile::<Lazy>::new(file, Domain::Assumed);
        let (mut model, mut random) = (Vec::new(), fastrand::Rng::with_seed(7));
        let mut below = |limit: u64| random.u64(..limit);
        let mut lost_without_sync = 0;
        for round in 0..500_u64 {
            for _ in 0..below(6) {
                let bytes: Vec<u8> = (0..=below(300)).map(|_| below(256) as u8).collect();
                // Somewhere inside, or behind everything.
                let inside = below(4) > 0 && model.len() > bytes.len();
                let at = if inside { below((model.len() - bytes.len()) as u64) as usize } else { model.len() };
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                nvm.write_at(at as u64, &bytes).expect("written");
            }
            lost_without_sync += u32::from(std::fs::read(&path).expect("a file") != model);
            nvm.sync().expect("synced");
            assert_eq!(std::fs::read(&path).expect("a file"), model, "after sync {round}");
        }
        assert!(lost_without_sync > 100, "what is not flushed is not there: {lost_without_sync}");
    }
}
