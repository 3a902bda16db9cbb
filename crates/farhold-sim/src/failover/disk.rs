//! The disks of a simulated cluster: one directory whose power can be cut, as each process has it while it lives.

use farhold_store::durable::files::{Directory, DurableFile};
use farhold_store::durable::power::{Medium, Volatile};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who holds each lock: it is free when its process has ended.
type Locks = Arc<Mutex<BTreeMap<String, Arc<AtomicBool>>>>;

/// What all nodes write to.
#[derive(Clone, Debug)]
pub(super) struct Disks {
    files: Volatile,
    locks: Locks,
}

impl Disks {
    pub fn on(medium: Medium) -> Self {
        Self { files: Volatile::on(medium), locks: Locks::default() }
    }

    pub fn name(&self) -> String {
        self.files.name()
    }

    /// As a process has it until it ends.
    pub fn of_process(&self) -> Arc<ProcessDisk> {
        Arc::new(ProcessDisk { disks: self.clone(), lives: Arc::new(AtomicBool::new(true)) })
    }

    /// What is there after a cut of the power: what was synced or flushed, and of the rest some.
    pub fn cut(&self, random: &mut dyn FnMut() -> u64) -> Self {
        Self { files: self.files.cut(random), locks: Locks::default() }
    }
}

/// A process's way to the disks.
#[derive(Debug)]
pub(super) struct ProcessDisk {
    disks: Disks,
    lives: Arc<AtomicBool>,
}

impl ProcessDisk {
    /// The process ends: what it has written is there, and it writes nothing more.
    pub fn end(&self) {
        self.lives.store(false, SeqCst);
    }

    fn files(&self) -> io::Result<&Volatile> {
        if self.lives.load(SeqCst) { Ok(&self.disks.files) } else { Err(io::Error::other("the process has ended")) }
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<AtomicBool>>> {
        self.disks.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for ProcessDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.files()?.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let (file, lives) = (self.files()?.create(name)?, self.lives.clone());
        Ok(Arc::new(ProcessFile { file, lives }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let (file, lives) = (self.files()?.open(name)?, self.lives.clone());
        Ok(Arc::new(ProcessFile { file, lives }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files()?.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files()?.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.files()?.sync()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        /// A lock for a while, not for the life of its process.
        struct Turn(Locks, String);
        impl Drop for Turn {
            fn drop(&mut self) {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
            }
        }
        let mut locks = self.locks();
        if locks.get(name).is_some_and(|holder| holder.load(SeqCst)) {
            return Ok(None);
        }
        locks.insert(name.into(), self.lives.clone());
        Ok(Some(Box::new(Turn(self.disks.locks.clone(), name.into()))))
    }

    fn name(&self) -> String {
        self.disks.files.name()
    }
}

#[derive(Debug)]
struct ProcessFile {
    file: Arc<dyn DurableFile>,
    lives: Arc<AtomicBool>,
}

impl ProcessFile {
    fn file(&self) -> io::Result<&dyn DurableFile> {
        if self.lives.load(SeqCst) { Ok(&*self.file) } else { Err(io::Error::other("the process has ended")) }
    }
}

impl DurableFile for ProcessFile {
    fn len(&self) -> io::Result<u64> {
        self.file()?.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file()?.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync()
    }
}
