//! The disks of a simulated cluster: one directory whose power can be cut, and each process's access to it.

use super::blocking;
use super::plan::{Delays, Power};
use farhold_bench::random::Random;
use farhold_store::durable::files::{Directory, DurableFile};
use farhold_store::durable::power::{Medium, Volatile};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether the process that holds each lock has ended: then it is free.
type Locks = Arc<Mutex<BTreeMap<String, Arc<AtomicBool>>>>;

/// The lock that a process holds for a while, not for its life.
const TURN: &str = "cluster.lock";
/// How long a process waits before it looks at a lock again.
const LOCK_LOOK_NS: u64 = 5_000;

/// The disks that all nodes write to.
#[derive(Clone, Debug)]
pub(super) struct Disks {
    files: Volatile,
    locks: Locks,
    is_full: Arc<AtomicBool>,
    delays: Option<Delays>,
    /// Whether operations take time now. They do not while tables are filled, because journals that do not keep up
    /// refuse commits.
    is_slow: Arc<AtomicBool>,
    /// Draws how long each operation takes.
    random: Arc<Mutex<Random>>,
}

/// An operation that changes something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Write,
    Sync,
}

impl Disks {
    pub fn of(power: Option<&Power>, seed: u64) -> Self {
        let files = Volatile::on(power.map_or(Medium::Disk, |power| power.medium));
        let (delays, random) = (power.and_then(|power| power.delays), Arc::new(Mutex::new(Random::new(seed))));
        Self { files, locks: Locks::default(), is_full: Arc::default(), delays, is_slow: Arc::default(), random }
    }

    /// From here on operations take time, if these disks have delays.
    pub fn slow(&self) {
        self.is_slow.store(true, SeqCst);
    }

    /// How long an operation takes until it is done, and then until its process gets the result.
    fn takes_ns(&self, change: Change) -> (u64, u64) {
        let Some(delays) = self.delays.filter(|_| self.is_slow.load(SeqCst)) else { return (0, 0) };
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let usual_ns_max = if change == Change::Sync { delays.sync_ns_max } else { delays.write_ns_max };
        let is_slow = random.below(delays.slow_one_in) == 0;
        let ns = random.below(if is_slow { delays.slow_ns_max } else { usual_ns_max });
        if random.below(2) == 0 { (ns, 0) } else { (0, ns) }
    }

    /// Does a living process hold the lock that a start waits for?
    pub fn has_turn(&self) -> bool {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.get(TURN).is_some_and(|holder| !holder.load(SeqCst))
    }

    pub fn name(&self) -> String {
        self.files.name()
    }

    /// The disks as a process accesses them until it ends.
    pub fn of_process(&self) -> Arc<ProcessDisk> {
        Arc::new(ProcessDisk { disks: self.clone(), process: Arc::default() })
    }

    /// The content after a power failure: everything that was synced or flushed, and some of the rest.
    pub fn cut(&self, random: &mut dyn FnMut() -> u64) -> Self {
        let files = self.files.survivor().unwrap_or_else(|| self.files.cut(random));
        let (delays, is_slow, random) = (self.delays, self.is_slow.clone(), self.random.clone());
        Self { files, locks: Locks::default(), is_full: Arc::default(), delays, is_slow, random }
    }

    /// The power fails after `operations` further file operations, before the next one, in the middle of a process's
    /// writes.
    pub fn cut_after(&self, operations: u64, seed: u64) {
        self.files.cut_after(operations, seed);
    }

    /// Whether the power has failed.
    pub fn is_cut(&self) -> bool {
        self.files.survivor().is_some()
    }

    /// Sets whether the disks are full.
    pub fn fill(&self, is_full: bool) {
        self.files.limit(u64::from(is_full));
        self.is_full.store(is_full, SeqCst);
    }

    pub fn is_full(&self) -> bool {
        self.is_full.load(SeqCst)
    }
}

/// The disk's state for a process.
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

    /// Executes an operation that changes something. Without power no process learns of its result.
    fn change<T>(&self, disks: &Disks, change: Change, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (before_ns, after_ns) = disks.takes_ns(change);
        self.wait(before_ns)?;
        if self.fails.swap(false, SeqCst) {
            return Err(io::Error::other("the disk reports an error"));
        }
        let done = operation();
        self.wait(after_ns)?;
        if disks.is_cut() { Err(io::Error::other("the power is gone")) } else { done }
    }

    /// Waits for the disk, as long as the process lives.
    fn wait(&self, ns: u64) -> io::Result<()> {
        self.check()?;
        if ns > 0 {
            blocking::wait_ns(ns)?;
        }
        self.check()
    }
}

/// A process's access to the disks.
#[derive(Debug)]
pub(super) struct ProcessDisk {
    disks: Disks,
    process: Arc<Process>,
}

impl ProcessDisk {
    /// Ends the process: its earlier writes remain, and it writes nothing more.
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

    fn change<T>(&self, change: Change, operation: impl FnOnce(&Volatile) -> io::Result<T>) -> io::Result<T> {
        self.process.change(&self.disks, change, || operation(&self.disks.files))
    }

    fn file(&self, file: Arc<dyn DurableFile>) -> Arc<dyn DurableFile> {
        Arc::new(ProcessFile { file, disks: self.disks.clone(), process: self.process.clone() })
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
        self.change(Change::Write, |files| files.create(name)).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.files()?.open(name).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(Change::Write, |files| files.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(Change::Write, |files| files.remove(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.change(Change::Sync, Directory::sync)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        /// Until its end, or that of the process.
        struct Held(Locks, String, Arc<AtomicBool>);
        impl Drop for Held {
            fn drop(&mut self) {
                let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                // If the process has ended, another one may hold the lock by now.
                if locks.get(&self.1).is_some_and(|holder| Arc::ptr_eq(holder, &self.2)) {
                    locks.remove(&self.1);
                }
            }
        }
        let mut locks = self.locks();
        if locks.get(name).is_some_and(|holder| !holder.load(SeqCst)) {
            drop(locks);
            // Its holder may be waiting for the disk, and looks are made until it is free.
            return self.process.wait(LOCK_LOOK_NS).map(|()| None);
        }
        let process = self.process.has_ended.clone();
        locks.insert(name.into(), process.clone());
        Ok(Some(Box::new(Held(self.disks.locks.clone(), name.into(), process))))
    }

    fn name(&self) -> String {
        self.disks.files.name()
    }
}

#[derive(Debug)]
struct ProcessFile {
    file: Arc<dyn DurableFile>,
    disks: Disks,
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
        self.process.change(&self.disks, Change::Write, || self.file.write_at(at, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.process.change(&self.disks, Change::Sync, || self.file.sync())
    }
}
