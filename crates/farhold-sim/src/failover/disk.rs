//! The disks of a simulated cluster: one directory whose power can be cut, as each process has it while it lives.

use farhold_store::durable::files::{Directory, DurableFile};
use farhold_store::durable::power::{Medium, Volatile};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether the process that holds each lock has ended: then it is free.
type Locks = Arc<Mutex<BTreeMap<String, Arc<AtomicBool>>>>;

/// What all nodes write to.
#[derive(Clone, Debug)]
pub(super) struct Disks {
    files: Volatile,
    locks: Locks,
    is_full: Arc<AtomicBool>,
}

impl Disks {
    pub fn on(medium: Medium) -> Self {
        Self::of(Volatile::on(medium))
    }

    fn of(files: Volatile) -> Self {
        Self { files, locks: Locks::default(), is_full: Arc::default() }
    }

    pub fn name(&self) -> String {
        self.files.name()
    }

    /// As a process has it until it ends.
    pub fn of_process(&self) -> Arc<ProcessDisk> {
        Arc::new(ProcessDisk { disks: self.clone(), process: Arc::default() })
    }

    /// What is there after a cut of the power: what was synced or flushed, and of the rest some.
    pub fn cut(&self, random: &mut dyn FnMut() -> u64) -> Self {
        Self::of(self.files.survivor().unwrap_or_else(|| self.files.cut(random)))
    }

    /// The power goes before the operation on files after so many others, in the middle of whatever a process is writing.
    pub fn cut_after(&self, operations: u64, seed: u64) {
        self.files.cut_after(operations, seed);
    }

    /// Has it gone?
    pub fn is_cut(&self) -> bool {
        self.files.survivor().is_some()
    }

    /// Says whether there is room for another byte.
    pub fn fill(&self, is_full: bool) {
        self.files.limit(u64::from(is_full));
        self.is_full.store(is_full, SeqCst);
    }

    pub fn is_full(&self) -> bool {
        self.is_full.load(SeqCst)
    }
}

/// What the disk knows of a process.
#[derive(Debug, Default)]
struct Process {
    has_ended: Arc<AtomicBool>,
    /// The next operation that changes something fails.
    fails: AtomicBool,
}

impl Process {
    fn check(&self) -> io::Result<()> {
        if self.has_ended.load(SeqCst) { Err(io::Error::other("the process has ended")) } else { Ok(()) }
    }

    /// An operation that changes something. Without power no process hears that anything has been done.
    fn change<T>(&self, files: &Volatile, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.check()?;
        if self.fails.swap(false, SeqCst) {
            return Err(io::Error::other("the disk reports an error"));
        }
        let done = operation();
        if files.survivor().is_some() { Err(io::Error::other("the power is gone")) } else { done }
    }
}

/// A process's way to the disks.
#[derive(Debug)]
pub(super) struct ProcessDisk {
    disks: Disks,
    process: Arc<Process>,
}

impl ProcessDisk {
    /// The process ends: what it has written is there, and it writes nothing more.
    pub fn end(&self) {
        self.process.has_ended.store(true, SeqCst);
    }

    /// The next write or sync of the process fails.
    pub fn fail(&self) {
        self.process.fails.store(true, SeqCst);
    }

    fn files(&self) -> io::Result<&Volatile> {
        self.process.check().map(|()| &self.disks.files)
    }

    fn change<T>(&self, operation: impl FnOnce(&Volatile) -> io::Result<T>) -> io::Result<T> {
        self.process.change(&self.disks.files, || operation(&self.disks.files))
    }

    fn file(&self, file: Arc<dyn DurableFile>) -> Arc<dyn DurableFile> {
        Arc::new(ProcessFile { file, files: self.disks.files.clone(), process: self.process.clone() })
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
        self.change(|files| files.create(name)).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.files()?.open(name).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|files| files.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|files| files.remove(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.change(Directory::sync)
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
        if locks.get(name).is_some_and(|holder| !holder.load(SeqCst)) {
            return Ok(None);
        }
        locks.insert(name.into(), self.process.has_ended.clone());
        Ok(Some(Box::new(Turn(self.disks.locks.clone(), name.into()))))
    }

    fn name(&self) -> String {
        self.disks.files.name()
    }
}

#[derive(Debug)]
struct ProcessFile {
    file: Arc<dyn DurableFile>,
    files: Volatile,
    process: Arc<Process>,
}

impl DurableFile for ProcessFile {
    fn len(&self) -> io::Result<u64> {
        self.process.check()?;
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.process.check()?;
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.process.change(&self.files, || self.file.write_at(at, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.process.change(&self.files, || self.file.sync())
    }
}
