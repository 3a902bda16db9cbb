//! Shared memory: the regions of the processes of one host are files that all of them map.
//!
//! A cluster is a directory, by default below `/dev/shm`. Any path works if its file system maps shared, so a CXL pool or
//! persistent memory by DAX works as it is. Its files:
//!
//! ```text
//! node-003                  the node's entry: incarnation, process, doorbell, and the directory of its regions
//! node-003.region-005       a region's bytes, sparse: memory is taken when asked for (node-003.draft-005 while it is made)
//! node-003.inbox-2-7        inbox of port 7 of the node's 2nd incarnation
//! ```
//!
//! - The directory and its files belong to one user alone: see [`crate::private`].
//! - A process is node 3 while it holds `node-003` locked (flock); the kernel releases the lock when the process dies, whatever
//!   the cause. The entry names the process by number and start time, so that a lock which another process has taken does not
//!   keep a dead node alive. Regions stay: that is the model of non-volatile memory. The next process of node 3 attaches to them.
//! - The directory of regions in the entry has a key for each region, new with each registration. An endpoint remembers the
//!   key it first found, and every instruction compares it with the directory before it touches memory. That is one load of
//!   a word that rarely changes. It cannot stop a store that is already past the check; a fenced process must be killed.
//! - Files are sparse and get memory piece by piece, by [`RegionMemory::reserve`]. So a full file system is an error at the
//!   reservation and not a signal at a touch. A region may be larger than its file system.
//! - The posting thread executes instructions at once, as loads, stores and CPU atomics.

mod fence;
pub(super) mod inbox;

use super::{Inbox, Membership, Posted, Provider, Ticket};
use crate::address::{Address, FarPtr, NodeId, RegionId, RegionKey};
use crate::batch::Batch;
#[cfg(feature = "libfabric")]
use crate::batch::{Buffer, Op};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::{RegionMemory, round_up};
use crate::private;
use crate::room::{allocate, refusal};
use fence::Recorded;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"farhnod1");
const ENTRY_BYTES: u64 = 8192;
/// Why an entry is not used.
const OTHER_VERSION: &str = "it is not a node's entry of this version";
const AT_MAGIC: u64 = 0;
const AT_INCARNATION: u64 = 8;
/// The process: its number, start time and PID namespace. The number is written last.
const AT_PID: u64 = 16;
const AT_STARTED: u64 = 24;
const AT_NAMESPACE: u64 = 32;
/// The birth of the start that holds the lock; 0: it has not been set yet.
const AT_BIRTH: u64 = 40;
/// Grows when the doorbell rings; waiting threads sleep on it.
const AT_RINGS: u64 = 64;
/// Threads that sleep or are about to.
const AT_PARKED: u64 = 128;
const AT_REGIONS: u64 = 4096;
const PAGE: u64 = 4096;

/// The file in a cluster's directory with the secret that its nodes share, if its provider requires one.
pub(crate) const SECRET: &str = "secret";

/// The directory that clusters without a path of their own live in.
#[must_use]
pub fn default_cluster(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(format!("farhold-{name}"))
}

/// Removes a cluster with all its regions.
///
/// # Errors
/// [`FabricError::NodeInUse`] if a process still runs one of its nodes; [`FabricError::Io`]. A cluster that does not exist
/// counts as removed.
pub fn remove(cluster: &Path) -> Result<(), FabricError> {
    let entries = match fs::read_dir(cluster) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FabricError::io("list", cluster, &error)),
    };
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let ours: Vec<&String> = names.iter().filter(|name| node_of_file(name).is_some()).collect();
    for name in &ours {
        if let Some((node, "")) = node_of_file(name)
            && let Some(holder) =
                holder(cluster, node).map_err(|error| FabricError::io("look at", cluster.join(name), &error))?
        {
            return Err(FabricError::NodeInUse { node, holder_pid: holder.pid, path: cluster.join(name).into() });
        }
    }
    for name in ours {
        let path = cluster.join(name);
        fs::remove_file(&path).map_err(|error| FabricError::io("remove", path, &error))?;
    }
    let _ = fs::remove_file(cluster.join(SECRET));
    fs::remove_dir(cluster).map_err(|error| FabricError::io("remove", cluster, &error))
}

/// `node-003.rest` -> (node 3, "rest").
fn node_of_file(name: &str) -> Option<(NodeId, &str)> {
    let (number, rest) = name.strip_prefix("node-")?.split_at_checked(3)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix('.')? };
    Some((NodeId(number.parse().ok()?), rest))
}

fn entry_path(cluster: &Path, node: NodeId) -> PathBuf {
    cluster.join(format!("node-{:03}", node.0))
}

fn region_path(cluster: &Path, node: NodeId, region: RegionId) -> PathBuf {
    cluster.join(format!("node-{:03}.region-{:03}", node.0, region.0))
}

fn inbox_path(cluster: &Path, of: Address, incarnation: u64) -> PathBuf {
    cluster.join(format!("node-{:03}.inbox-{incarnation}-{}", of.node.0, of.port))
}

fn open(path: &Path, create_new: bool) -> io::Result<File> {
    private::open(path, OpenOptions::new().read(true).write(true).create_new(create_new))
}

/// Takes the lock of an open node entry; false if another has it.
fn lock(file: &File, how: libc::c_int) -> io::Result<bool> {
    // SAFETY: the descriptor is open as long as `file`; flock touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// The process that runs this node, if one lives. A process that is ending, and touches nothing any more, does not count. A lock
/// that is held after the end of the process that the entry names belongs to another process, or to a start which has not touched
/// anything yet. An error says nothing about the node.
fn holder(cluster: &Path, node: NodeId) -> io::Result<Option<Recorded>> {
    let Some(process) = locked_by(cluster, node)? else { return Ok(None) };
    let touches_nothing = process.has_ended()? || fence::is_ending(process.pid)?;
    Ok((!touches_nothing).then_some(process))
}

/// What the node's entry names as its process, if the node's lock is held.
fn locked_by(cluster: &Path, node: NodeId) -> io::Result<Option<Recorded>> {
    let file = match open(&entry_path(cluster, node), false) {
        Ok(file) => file,
        Err(error) if fence::is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if lock(&file, libc::LOCK_SH)? {
        return Ok(None);
    }
    let mut words = [0; (AT_BIRTH + 8 - AT_PID) as usize];
    match std::os::unix::fs::FileExt::read_exact_at(&file, &mut words, AT_PID) {
        Ok(()) => {}
        // A first start that has not written its entry yet.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => words.fill(0),
        Err(error) => return Err(error),
    }
    let word = |at: u64| {
        let bytes = words[(at - AT_PID) as usize..].first_chunk().expect("eight bytes");
        u64::from_le_bytes(*bytes)
    };
    let (pid, started) = (word(AT_PID) as u32, word(AT_STARTED));
    Ok(Some(Recorded { pid, started, namespace: word(AT_NAMESPACE), birth: word(AT_BIRTH) }))
}

/// A node's entry, mapped.
struct Entry(RegionMemory);

impl Entry {
    fn map(cluster: &Path, node: NodeId, file: &File) -> Result<Self, FabricError> {
        let path = entry_path(cluster, node);
        let len = file.metadata().map_err(|error| FabricError::io("look at", &path, &error))?.len();
        if len < ENTRY_BYTES {
            return Err(FabricError::bad_format(path, "it is too short for a node's entry"));
        }
        RegionMemory::file(FarPtr::new(node, RegionId(255), 0), ENTRY_BYTES, file)
            .map(Self)
            .map_err(|error| FabricError::io("map", path, &error))
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at + 8 <= ENTRY_BYTES);
        // SAFETY: the entry is ENTRY_BYTES long, and all offsets in this module are multiples of 8 below that.
        unsafe { self.0.word_unchecked(at) }
    }

    #[inline]
    fn key(&self, region: RegionId) -> &AtomicU64 {
        self.word(AT_REGIONS + u64::from(region.0) * 16)
    }

    fn region_bytes(&self, region: RegionId) -> &AtomicU64 {
        self.word(AT_REGIONS + u64::from(region.0) * 16 + 8)
    }

    fn incarnation(&self) -> u64 {
        self.word(AT_INCARNATION).load(Ordering::Acquire)
    }

    /// The low half of a word, as the kernel's futex requires it.
    fn futex(&self) -> *mut u32 {
        self.word(AT_RINGS).as_ptr().cast::<u32>()
    }

    /// Wakes the threads that wait for messages of this node, if there are any.
    #[inline]
    fn ring(&self) {
        // The sender's ready bit came before by a SeqCst exchange, the sleeper's count before its last look at the bits: one
        // of the two sees the other.
        if self.word(AT_PARKED).load(Ordering::SeqCst) != 0 {
            self.word(AT_RINGS).fetch_add(1, Ordering::SeqCst);
            // SAFETY: the word is mapped as long as `self`; waking touches no memory.
            unsafe { libc::syscall(libc::SYS_futex, self.futex(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Sleeps until the doorbell rings, unless `look` says that there is something already.
    fn park(&self, timeout_ns: u64, look: impl FnOnce() -> bool) {
        let rings = self.word(AT_RINGS).load(Ordering::SeqCst) as u32;
        self.word(AT_PARKED).fetch_add(1, Ordering::SeqCst);
        if !look() {
            let timeout = libc::timespec {
                tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
            };
            // SAFETY: the word is mapped as long as `self` and `timeout` lives through the call.
            unsafe { libc::syscall(libc::SYS_futex, self.futex(), libc::FUTEX_WAIT, rings, &raw const timeout) };
        }
        self.word(AT_PARKED).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Another node's count of starts, as it is now.
#[cfg(feature = "libfabric")]
pub(super) struct Starts(Entry);

#[cfg(feature = "libfabric")]
impl Starts {
    /// None if the node never joined.
    pub(super) fn of(cluster: &Path, node: NodeId) -> Option<Self> {
        let file = open(&entry_path(cluster, node), false).ok()?;
        let entry = Entry::map(cluster, node, &file).ok()?;
        (entry.word(AT_MAGIC).load(Ordering::Acquire) == MAGIC).then_some(Self(entry))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.incarnation()
    }
}

/// This process's membership as one node.
pub(crate) struct Member {
    cluster: PathBuf,
    node: NodeId,
    entry: Arc<Entry>,
    incarnation: u64,
    /// Holds the lock.
    _lock: File,
    own: Mutex<HashMap<RegionId, Arc<RegionMemory>>>,
    home: Mutex<inbox::Receiver>,
    home_memory: RegionMemory,
    ports: Mutex<Ports>,
    serial: AtomicU32,
}

#[derive(Default)]
struct Ports {
    used: std::collections::HashSet<u16>,
    next: u16,
}

impl Ports {
    /// A port that was not used for long.
    fn free(&mut self) -> Option<u16> {
        let port =
            (0..u16::MAX).map(|step| self.next.wrapping_add(step).max(1)).find(|port| !self.used.contains(port))?;
        self.next = port.wrapping_add(1);
        Some(port)
    }

    fn give_back(&mut self, port: u16) {
        self.used.remove(&port);
    }
}

impl Member {
    /// How long a joiner waits for a lock that another process holds only to look.
    const LOCK_TRIES: u32 = 50;

    pub(crate) fn join(cluster: &Path, node: NodeId) -> Result<Arc<Self>, FabricError> {
        private::directory(cluster).map_err(|error| FabricError::io("use the cluster's directory", cluster, &error))?;
        let path = entry_path(cluster, node);
        let file = private::open(&path, OpenOptions::new().read(true).write(true).create(true).truncate(false));
        let file = file.map_err(|error| FabricError::io("open the node's entry", &path, &error))?;
        let mut tries = 0;
        let failed = |error| FabricError::io("lock the node's entry", &path, &error);
        while !lock(&file, libc::LOCK_EX).map_err(failed)? {
            let by = locked_by(cluster, node).map_err(failed)?;
            // A process that is ending will release it, however long that takes.
            if !by.is_some_and(|process| fence::is_ending(process.pid).unwrap_or(false)) {
                if tries == Self::LOCK_TRIES {
                    let holder_pid = by.map_or(0, |process| process.pid);
                    return Err(FabricError::NodeInUse { node, holder_pid, path: path.into() });
                }
                tries += 1;
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
        if file.metadata().is_ok_and(|data| data.len() < ENTRY_BYTES) {
            file.set_len(ENTRY_BYTES).map_err(|error| FabricError::io("make room in", &path, &error))?;
        }
        allocate(&file, 0, ENTRY_BYTES).map_err(|error| refusal(&error, &file, &path, ENTRY_BYTES))?;
        let entry = Entry::map(cluster, node, &file)?;
        match entry.word(AT_MAGIC).load(Ordering::Acquire) {
            0 | MAGIC => {}
            _ => {
                return Err(FabricError::bad_format(path, OTHER_VERSION));
            }
        }
        let this = Recorded::this().map_err(|error| FabricError::io("look at this process for", &path, &error))?;
        entry.word(AT_PID).store(0, Ordering::Release);
        entry.word(AT_STARTED).store(this.started, Ordering::Release);
        entry.word(AT_NAMESPACE).store(this.namespace, Ordering::Release);
        entry.word(AT_BIRTH).store(0, Ordering::Release);
        entry.word(AT_PID).store(u64::from(this.pid), Ordering::Release);
        entry.word(AT_PARKED).store(0, Ordering::Relaxed);
        let incarnation = entry.incarnation() + 1;
        let home_memory = create_inbox(cluster, Address::home(node), incarnation)?;
        entry.word(AT_INCARNATION).store(incarnation, Ordering::Release);
        entry.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        remove_old_inboxes(cluster, node, incarnation);
        Ok(Arc::new(Self {
            cluster: cluster.to_owned(),
            node,
            entry: Arc::new(entry),
            incarnation,
            _lock: file,
            own: Mutex::default(),
            home: Mutex::default(),
            home_memory,
            ports: Mutex::default(),
            serial: AtomicU32::new(1),
        }))
    }
}

/// Bit of a directory's key that means: no region now, or none for others; this was its last key.
const REMOVED: u64 = 1 << 63;

fn create_inbox(cluster: &Path, of: Address, incarnation: u64) -> Result<RegionMemory, FabricError> {
    let path = inbox_path(cluster, of, incarnation);
    let _ = fs::remove_file(&path);
    let len = round_up(inbox::INBOX_BYTES, PAGE);
    let failed = |error| FabricError::io("make the inbox", &path, &error);
    let file = open(&path, true).map_err(failed)?;
    let make = || {
        file.set_len(len).map_err(failed)?;
        allocate(&file, 0, inbox::AT_RINGS).map_err(|error| refusal(&error, &file, &path, inbox::AT_RINGS))?;
        RegionMemory::file(inbox::origin(of), len, &file).map_err(failed)
    };
    let memory = make().inspect_err(|_| drop(fs::remove_file(&path)))?;
    inbox::format(&memory);
    Ok(memory)
}

fn remove_old_inboxes(cluster: &Path, node: NodeId, incarnation: u64) {
    let Ok(entries) = fs::read_dir(cluster) else { return };
    let current = format!("inbox-{incarnation}-");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((of, rest)) = name.to_str().and_then(node_of_file) else { continue };
        if of == node && rest.starts_with("inbox-") && !rest.starts_with(&current) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Membership for Member {
    fn node(&self) -> NodeId {
        self.node
    }

    fn provider(&self) -> &'static str {
        "shm"
    }

    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let mut own = self.own.lock().expect("the regions");
        let path = region_path(&self.cluster, self.node, region);
        let len = round_up(len.max(1), PAGE);
        let failed = |error| FabricError::io("make the region", &path, &error);
        // This process alone makes the node's regions, one at a time.
        if path.symlink_metadata().is_ok() {
            return Err(FabricError::RegionExists { node: self.node, region });
        }
        // Under another name until it has its length: a process may be killed at any moment, and half a region is of no use.
        let draft = path.with_extension(format!("draft-{:03}", region.0));
        let _ = fs::remove_file(&draft);
        let file = open(&draft, true).map_err(failed)?;
        file.set_len(len)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(failed)
            .inspect_err(|_| drop(fs::remove_file(&draft)))?;
        let memory = RegionMemory::growing_file(FarPtr::new(self.node, region, 0), len, file, &path)
            .map_err(|error| FabricError::io("make room for the region", &path, &error))
            .inspect_err(|_| drop(fs::remove_file(&path)))?;
        let memory = Arc::new(memory);
        own.insert(region, memory.clone());
        Ok(memory)
    }

    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        let mut own = self.own.lock().expect("the regions");
        // The key of the process before still opens it.
        self.entry.key(region).fetch_or(REMOVED, Ordering::AcqRel);
        let memory = Arc::new(map_region(&self.cluster, self.node, region, true)?);
        own.insert(region, memory.clone());
        Ok(memory)
    }

    /// With a key that this region never had: its last key plus one. (When a region is closed or removed, its last key stays,
    /// marked.)
    fn open_region(&self, region: RegionId) -> Result<(), FabricError> {
        let own = self.own.lock().expect("the regions");
        let memory = own.get(&region).ok_or(FabricError::NoSuchRegion { node: self.node, region })?;
        let last = self.entry.key(region).load(Ordering::Relaxed) & !REMOVED;
        self.entry.region_bytes(region).store(memory.len(), Ordering::Relaxed);
        self.entry.key(region).store(last + 1, Ordering::Release);
        Ok(())
    }

    fn remove_region(&self, region: RegionId) -> Result<(), FabricError> {
        let mut own = self.own.lock().expect("the regions");
        let path = region_path(&self.cluster, self.node, region);
        self.entry.key(region).fetch_or(REMOVED, Ordering::AcqRel);
        own.remove(&region);
        fs::remove_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FabricError::NoSuchRegion { node: self.node, region },
            _ => FabricError::io("remove the region", path, &error),
        })
    }

    fn endpoint(self: Arc<Self>, _handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError> {
        Ok(Box::new(self.open(port)?))
    }

    fn set_birth(&self, birth: u64) {
        self.entry.word(AT_BIRTH).store(birth, Ordering::Release);
    }

    fn node_is_live(&self, node: NodeId) -> bool {
        // A look that fails says nothing about the node, so it may live.
        node == self.node || holder(&self.cluster, node).map_or(true, |holder| holder.is_some())
    }

    /// Memory that another process has mapped cannot be revoked, so the process is ended.
    fn fence(&self, node: NodeId, birth: u64) -> Result<bool, FabricError> {
        let path = entry_path(&self.cluster, node);
        let look_failed = |error: io::Error| FabricError::io("look at the process of", &path, &error);
        let Some(found) = holder(&self.cluster, node).map_err(look_failed)? else { return Ok(true) };
        if found.birth != 0 && found.birth != birth {
            // Another start of the node holds it, so the one that is meant has ended.
            return Ok(true);
        }
        if found.pid == 0 {
            // It is just beginning.
            return Ok(false);
        }
        if !found.is_known().map_err(look_failed)? {
            return Err(FabricError::Unsupported {
                what: "ending a process of another PID namespace or of an earlier version",
            });
        }
        if found.is_this_process().map_err(look_failed)? {
            return Err(FabricError::Unsupported { what: "shutting out a node that runs in this very process" });
        }
        let failed = |error: io::Error| FabricError::io("end the process of", &path, &error);
        let Some(process) = fence::Process::open(found.pid).map_err(failed)? else { return Ok(false) };
        // The number may have gone to another process before it was opened; its start time, looked at afterwards, says so.
        if !found.has_ended().map_err(look_failed)? {
            process.kill().map_err(failed)?;
        }
        Ok(holder(&self.cluster, node).map_err(look_failed)?.is_none())
    }
}

impl Member {
    /// Opens an endpoint for a provider that is built on this one.
    pub(super) fn open(self: Arc<Self>, port: Option<u16>) -> Result<Shm, FabricError> {
        let port = {
            let mut ports = self.ports.lock().expect("the ports");
            let port = port.or_else(|| ports.free()).ok_or(FabricError::PortInUse { port: u16::MAX })?;
            if port == Address::HOME_PORT || !ports.used.insert(port) {
                return Err(FabricError::PortInUse { port });
            }
            port
        };
        let address = Address { node: self.node, port };
        let inbox = create_inbox(&self.cluster, address, self.incarnation)
            .inspect_err(|_| self.ports.lock().expect("the ports").give_back(port))?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        Ok(Shm {
            address,
            owner: u64::from(self.node.0) << 56 | (self.incarnation & 0xff_ffff) << 32 | u64::from(serial),
            member: self,
            inbox,
            receiver: RefCell::default(),
            peers: RefCell::new((0..256).map(|_| None).collect()),
            empty_polls: Cell::new(0),
            waited: Cell::new(0),
            waits: Cell::new(0),
        })
    }

    /// The key of an own region and its memory now, if it is registered.
    #[cfg(feature = "libfabric")]
    pub(super) fn registered(&self, region: RegionId) -> Option<(u64, Arc<RegionMemory>)> {
        let own = self.own.lock().expect("the regions");
        Some((self.key(region)?, own.get(&region)?.clone()))
    }

    /// The key of an own region now.
    #[cfg(feature = "libfabric")]
    pub(super) fn key(&self, region: RegionId) -> Option<u64> {
        let key = self.entry.key(region).load(Ordering::Acquire);
        (key != 0 && key & REMOVED == 0).then_some(key)
    }

    #[cfg(feature = "libfabric")]
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Wakes the threads of this node that wait for messages.
    #[cfg(feature = "libfabric")]
    pub(super) fn ring(&self) {
        self.entry.ring();
    }
}

fn map_region(cluster: &Path, node: NodeId, region: RegionId, mine: bool) -> Result<RegionMemory, FabricError> {
    let path = region_path(cluster, node, region);
    let file = open(&path, false).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FabricError::NoSuchRegion { node, region },
        _ => FabricError::io("open the region", &path, &error),
    })?;
    let len = file.metadata().map_err(|error| FabricError::io("look at", &path, &error))?.len();
    if len == 0 || len % PAGE != 0 {
        let reason =
            format!("it has {len} bytes, and a region's file a whole number of pages of {PAGE}: it was cut off");
        return Err(FabricError::bad_format(path, reason));
    }
    let origin = FarPtr::new(node, region, 0);
    let memory = if mine {
        RegionMemory::growing_file(origin, len, file, &path)
    } else {
        RegionMemory::file(origin, len, &file)
    };
    memory.map_err(|error| FabricError::io("map the region", path, &error))
}

/// A region of some node as an endpoint knows it.
struct Known {
    /// Dropped when the key is stale: the file may have been removed, and its memory is kept as long as it is mapped.
    memory: Option<Arc<RegionMemory>>,
    key: u64,
}

impl Known {
    /// The memory, if its key is still the region's. Keys never come back.
    #[inline]
    fn open(&mut self, key_now: u64) -> Option<&Arc<RegionMemory>> {
        if self.key != key_now {
            self.memory = None;
        }
        self.memory.as_ref()
    }
}

/// A node as an endpoint knows it.
struct Peer {
    entry: Arc<Entry>,
    regions: Box<[Option<Known>; 256]>,
    /// Lanes in its inboxes, of its incarnation `incarnation`.
    lanes: HashMap<u16, (RegionMemory, inbox::Sender)>,
    incarnation: u64,
}

/// One thread's endpoint.
pub(super) struct Shm {
    member: Arc<Member>,
    address: Address,
    /// The word that marks this endpoint's lanes.
    owner: u64,
    inbox: RegionMemory,
    receiver: RefCell<inbox::Receiver>,
    peers: RefCell<Box<[Option<Peer>]>>,
    empty_polls: Cell<u32>,
    /// Turns that tasks have waited since the last message.
    waited: Cell<u32>,
    /// Sleeps so far.
    waits: Cell<u32>,
}

/// Turns of waiting for a message, some 25 ns each, before the thread offers its processor to others, and between two offers.
/// Without the offer a thread that waits for one that is not running keeps it from running until its time slice is over: with
/// more threads than processors, a question and its answer took milliseconds. The offer does not come sooner, because two threads
/// that exchange messages beside many strangers are quickest while both of them run.
const WAITS_BEFORE_YIELD: u32 = 8192;
const WAITS_PER_YIELD: u32 = 2048;

/// Sleeps between two looks whether a region's key has gone stale: some microseconds with many nodes.
const WAITS_PER_LOOK_AT_KEYS: u32 = 64;

/// Empty looks between two looks that ignore the ready bits: see [`inbox`].
const EMPTY_POLLS_PER_RESCAN: u32 = 100_000;

impl Shm {
    /// The peer, got to know on first use.
    #[inline]
    fn peer<'a>(&self, peers: &'a mut [Option<Peer>], node: NodeId) -> Result<&'a mut Peer, FabricError> {
        let slot = &mut peers[usize::from(node.0)];
        if slot.is_none() {
            *slot = Some(self.meet(node)?);
        }
        Ok(slot.as_mut().expect("just filled"))
    }

    #[cold]
    fn meet(&self, node: NodeId) -> Result<Peer, FabricError> {
        let entry = if node == self.address.node {
            self.member.entry.clone()
        } else {
            let file = open(&entry_path(&self.member.cluster, node), false)
                .map_err(|_| FabricError::NodeUnavailable { node })?;
            let entry =
                Entry::map(&self.member.cluster, node, &file).map_err(|_| FabricError::NodeUnavailable { node })?;
            match entry.word(AT_MAGIC).load(Ordering::Acquire) {
                MAGIC => Arc::new(entry),
                // It has never been there, or is just coming.
                0 => return Err(FabricError::NodeUnavailable { node }),
                _ => {
                    let path = entry_path(&self.member.cluster, node);
                    return Err(FabricError::bad_format(path, OTHER_VERSION));
                }
            }
        };
        let incarnation = entry.incarnation();
        Ok(Peer { entry, regions: Box::new([const { None }; 256]), lanes: HashMap::new(), incarnation })
    }

    /// The memory of a region, if the known key still opens it.
    #[inline]
    fn region<'a>(&self, peers: &'a mut [Option<Peer>], at: FarPtr) -> Result<&'a RegionMemory, FabricError> {
        let (node, region) = (at.node(), at.region());
        let peer = self.peer(peers, node)?;
        let slot = &mut peer.regions[usize::from(region.0)];
        if slot.is_none() {
            *slot = Some(self.learn(&peer.entry, node, region)?);
        }
        let known = slot.as_mut().expect("just filled");
        let open = known.open(peer.entry.key(region).load(Ordering::Acquire));
        open.map(|memory| &**memory).ok_or(FabricError::StaleKey { node, region })
    }

    #[cold]
    fn learn(&self, entry: &Entry, node: NodeId, region: RegionId) -> Result<Known, FabricError> {
        let key = entry.key(region).load(Ordering::Acquire);
        if key == 0 || key & REMOVED != 0 {
            return Err(FabricError::NoSuchRegion { node, region });
        }
        let own = if node == self.address.node {
            self.member.own.lock().expect("the regions").get(&region).cloned()
        } else {
            None
        };
        let memory = match own {
            Some(memory) => memory,
            None => Arc::new(map_region(&self.member.cluster, node, region, false)?),
        };
        Ok(Known { memory: Some(memory), key })
    }

    /// Drops regions with stale keys, for a thread that does not touch them any more.
    #[cold]
    fn let_go_stale(&self) {
        for peer in self.peers.borrow_mut().iter_mut().flatten() {
            let Peer { entry, regions, .. } = peer;
            for (known, region) in regions.iter_mut().zip(0..=u8::MAX) {
                if let Some(known) = known {
                    known.open(entry.key(RegionId(region)).load(Ordering::Acquire));
                }
            }
        }
    }

    /// Takes no message any more.
    #[cfg(feature = "libfabric")]
    pub(super) fn close(&self) {
        inbox::close(&self.inbox);
    }

    /// Executes one instruction on a region of this node.
    #[cfg(feature = "libfabric")]
    pub(super) fn execute(&self, op: &mut Op, data: &mut Buffer) -> Result<(), FabricError> {
        op.execute(data, self.region(&mut self.peers.borrow_mut(), op.at)?)
    }

    /// A lane into an inbox of this node, for messages that come from elsewhere.
    #[cfg(feature = "libfabric")]
    pub(super) fn own_lane(&self, to: Address) -> Result<(RegionMemory, inbox::Sender), FabricError> {
        let mut peers = self.peers.borrow_mut();
        self.open_lane(self.peer(&mut peers, self.address.node)?, to)
    }

    fn open_lane(&self, peer: &Peer, to: Address) -> Result<(RegionMemory, inbox::Sender), FabricError> {
        let path = inbox_path(&self.member.cluster, to, peer.incarnation);
        let file = open(&path, false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FabricError::NoSuchPort { to },
            _ => FabricError::io("open the inbox", &path, &error),
        })?;
        let len = file.metadata().map_err(|error| FabricError::io("look at", &path, &error))?.len();
        if len < inbox::INBOX_BYTES {
            return Err(FabricError::NoSuchPort { to });
        }
        let memory = RegionMemory::file(inbox::origin(to), len, &file)
            .map_err(|error| FabricError::io("map the inbox", &path, &error))?;
        if !inbox::check(&memory) {
            return Err(FabricError::NoSuchPort { to });
        }
        let lane = inbox::Sender::claim(&memory, self.owner, |owner| self.owner_is_dead(owner));
        let lane = lane.ok_or(FabricError::TooManySenders { to })?;
        let (start, bytes) = lane.ring();
        match allocate(&file, start, bytes) {
            Ok(()) => Ok((memory, lane)),
            Err(error) => {
                lane.release(&memory);
                Err(refusal(&error, &file, &path, bytes))
            }
        }
    }

    /// Whether the endpoint that wrote this owner word is gone for good.
    fn owner_is_dead(&self, owner: u64) -> bool {
        let node = NodeId((owner >> 56) as u8);
        let incarnation = owner >> 32 & 0xff_ffff;
        let now = if node == self.address.node {
            self.member.incarnation
        } else {
            match holder(&self.member.cluster, node) {
                Ok(None) => return true,
                Ok(Some(_)) => match self.meet(node) {
                    Ok(peer) => peer.incarnation,
                    Err(_) => return false,
                },
                Err(_) => return false,
            }
        };
        now & 0xff_ffff != incarnation
    }
}

impl Provider for Shm {
    fn address(&self) -> Address {
        self.address
    }

    #[inline]
    fn post(&self, batch: &mut Batch) -> Posted {
        let Some(content) = &mut batch.content else { return Posted::Done };
        let mut peers = self.peers.borrow_mut();
        let (mut ops, data, errors) = content.parts();
        while let Some(first) = ops.first() {
            // One look at the directory for all neighbours in the same region: the batch is one instant.
            let (at, count) = (first.at, ops.iter().take_while(|op| op.at.is_with(first.at)).count());
            let (run, rest) = ops.split_at_mut(count);
            let region = self.region(&mut peers, at);
            for op in run {
                let done = match &region {
                    Ok(memory) => op.execute(data, memory),
                    Err(error) => Err(error.clone()),
                };
                if let Err(error) = done {
                    op.fail(errors, error);
                }
            }
            ops = rest;
        }
        Posted::Done
    }

    fn poll(&self, _: Ticket, _: &mut Batch, _: &mut Context<'_>) -> Poll<()> {
        unreachable!("nothing is ever under way")
    }

    fn abandon(&self, _: Ticket) {}

    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        let mut peers = self.peers.borrow_mut();
        self.region(&mut peers, FarPtr::new(node, region, 0)).ok()?;
        peers[usize::from(node.0)].as_ref()?.regions[usize::from(region.0)].as_ref()?.memory.clone()
    }

    fn maps_others(&self) -> bool {
        true
    }

    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        let mut peers = self.peers.borrow_mut();
        let peer = self.peer(&mut peers, node)?;
        let slot = &mut peer.regions[usize::from(region.0)];
        *slot = None;
        let known = self.learn(&peer.entry, node, region)?;
        let key = known.key;
        *slot = Some(known);
        Ok(RegionKey(key))
    }

    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        let mut peers = self.peers.borrow_mut();
        let peer = self.peer(&mut peers, to.node)?;
        let incarnation = peer.entry.incarnation();
        if peer.incarnation != incarnation {
            peer.lanes.clear();
            peer.incarnation = incarnation;
        }
        if !peer.lanes.contains_key(&to.port) {
            // An ended inbox keeps its memory as long as it is mapped, and receives nothing any more.
            peer.lanes.retain(|_, (memory, _)| !inbox::is_closed(memory));
            let lane = self.open_lane(peer, to)?;
            peer.lanes.insert(to.port, lane);
        }
        let (memory, lane) = peer.lanes.get_mut(&to.port).expect("just there");
        let put = lane.put(memory, self.address, to, message);
        match put {
            Ok(()) => peer.entry.ring(),
            Err(FabricError::NoSuchPort { .. }) => drop(peer.lanes.remove(&to.port)),
            Err(_) => {}
        }
        put
    }

    #[inline]
    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool {
        let polls = self.empty_polls.get() + 1;
        self.empty_polls.set(polls % EMPTY_POLLS_PER_RESCAN);
        let rescan = polls >= EMPTY_POLLS_PER_RESCAN - 1;
        if rescan {
            self.let_go_stale();
        }
        let take = |receiver: &mut inbox::Receiver, memory: &RegionMemory| {
            if rescan {
                receiver.rescan();
            }
            receiver.take(memory, &mut message.from, &mut message.bytes)
        };
        let mut take = take;
        let taken = match inbox {
            Inbox::Own => take(&mut self.receiver.borrow_mut(), &self.inbox),
            Inbox::Home => {
                self.member.home.try_lock().is_ok_and(|mut receiver| take(&mut receiver, &self.member.home_memory))
            }
        };
        if taken {
            self.waited.set(0);
        }
        taken
    }

    fn has_arrived(&self) -> bool {
        inbox::has_ready(&self.inbox)
            || inbox::has_ready(&self.member.home_memory)
            || self.receiver.borrow().is_pending()
            || self.member.home.try_lock().is_ok_and(|receiver| receiver.is_pending())
    }

    fn wait(&self, timeout_ns: u64) -> bool {
        self.has_arrived() || {
            let waits = self.waits.get().wrapping_add(1);
            self.waits.set(waits);
            if waits.is_multiple_of(WAITS_PER_LOOK_AT_KEYS) {
                self.let_go_stale();
            }
            self.member.entry.park(timeout_ns, || self.has_arrived());
            self.has_arrived()
        }
    }

    fn wake_on_arrival(&self, cx: &mut Context<'_>) {
        // Senders are in other processes and only wake threads: look again next turn.
        let waited = self.waited.get() + 1;
        self.waited.set(if waited >= WAITS_BEFORE_YIELD { WAITS_BEFORE_YIELD - WAITS_PER_YIELD } else { waited });
        if waited >= WAITS_BEFORE_YIELD {
            std::thread::yield_now();
        }
        cx.waker().wake_by_ref();
    }
}

/// See [`super::ALL`].
pub(super) const KIND: super::Kind = super::Kind {
    name: "shm",
    about: "files mapped by every process of a host; also CXL or DAX memory, by path",
    does: |_| super::Doer::Cpu,
    here: || vec![super::Here { name: "shm".into(), about: "files below /dev/shm, unless told otherwise".into() }],
    join: Some(super::Join {
        usage: "shm",
        member: |cluster, node, settings| match settings {
            None => Ok(Member::join(cluster, node)?),
            Some(_) => Err(FabricError::unfit_provider("shm", "it has no settings")),
        },
    }),
    #[cfg(test)]
    beds: &[super::conformance::Bed::shm],
};

impl Drop for Shm {
    fn drop(&mut self) {
        inbox::close(&self.inbox);
        let _ = fs::remove_file(inbox_path(&self.member.cluster, self.address, self.member.incarnation));
        self.member.ports.lock().expect("the ports").give_back(self.address.port);
        for peer in self.peers.get_mut().iter_mut().flatten() {
            for (_, (memory, lane)) in peer.lanes.drain() {
                lane.release(&memory);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        inbox::close(&self.home_memory);
        let _ = fs::remove_file(inbox_path(&self.cluster, Address::home(self.node), self.incarnation));
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Removed files of that kind which this process still maps.
    fn removed_but_mapped(cluster: &Path, kind: &str) -> usize {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_cluster = format!("{}/", cluster.display());
        maps.lines().filter(|it| it.contains(&of_cluster) && it.contains(kind) && it.ends_with("(deleted)")).count()
    }

    /// The memory of a removed region is free when the threads that have used it have slept for a while.
    #[test]
    fn a_sleeper_lets_go_of_a_removed_region() {
        let cluster = cluster("removed-regions");
        let (one, two) = (Member::join(&cluster, NodeId(1)).unwrap(), Member::join(&cluster, NodeId(2)).unwrap());
        let region = RegionId(5);
        drop(two.create_region(region, PAGE).unwrap());
        two.open_region(region).unwrap();
        let endpoint = one.clone().open(None).unwrap();
        assert!(endpoint.mapped(NodeId(2), region).is_some());
        two.remove_region(region).unwrap();
        drop(two.create_region(region, PAGE).unwrap());
        two.open_region(region).unwrap();
        assert_eq!(removed_but_mapped(&cluster, ".region-"), 1);
        for _ in 0..WAITS_PER_LOOK_AT_KEYS {
            assert!(!endpoint.wait(0));
        }
        assert_eq!(removed_but_mapped(&cluster, ".region-"), 0);
        assert!(endpoint.mapped(NodeId(2), region).is_none(), "its key is stale");
        endpoint.refresh(NodeId(2), region).unwrap();
        assert!(endpoint.mapped(NodeId(2), region).is_some());
        drop((endpoint, one, two));
        remove(&cluster).unwrap();
    }

    fn cluster(test: &str) -> PathBuf {
        default_cluster(&format!("{test}-{}", std::process::id()))
    }

    /// A sender that never sends to an ended port again does not keep its inbox, 64 MiB of addresses, for ever.
    #[test]
    fn lanes_into_ended_inboxes_are_let_go() {
        let cluster = cluster("ended-inboxes");
        let member = Member::join(&cluster, NodeId(1)).unwrap();
        let sender = member.clone().open(None).unwrap();
        for _ in 0..10 {
            let ended = member.clone().open(None).unwrap();
            sender.send(ended.address(), b"a last word").unwrap();
        }
        let last = member.clone().open(None).unwrap();
        sender.send(last.address(), b"and a first one").unwrap();
        assert_eq!(removed_but_mapped(&cluster, ".inbox-"), 0);
        drop((sender, last, member));
        remove(&cluster).unwrap();
    }

    /// A process may end at any moment: a region's name never leads to a file that is no region yet.
    #[test]
    fn a_region_has_its_length_when_it_has_its_name() {
        let cluster = cluster("half-regions");
        let member = Member::join(&cluster, NodeId(1)).unwrap();
        let region = RegionId(5);
        let (path, done) = (region_path(&cluster, NodeId(1), region), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let mut found = std::collections::BTreeSet::new();
                while !done.load(Ordering::SeqCst) {
                    found.extend(fs::metadata(&path).map(|data| data.len()));
                }
                found
            });
            for _ in 0..5000 {
                member.create_region(region, 2 * PAGE).unwrap();
                member.remove_region(region).unwrap();
            }
            done.store(true, Ordering::SeqCst);
            let found = looker.join().unwrap();
            assert!(found.iter().all(|len| *len == 2 * PAGE), "{found:?}");
        });
        // A draft that a killed process has left does no harm.
        let draft = path.with_extension("draft-005");
        fs::write(&draft, b"half").unwrap();
        member.create_region(region, PAGE).unwrap();
        assert_eq!(
            member.create_region(region, PAGE).err(),
            Some(FabricError::RegionExists { node: NodeId(1), region })
        );
        assert_eq!(member.attach_region(region).map(|memory| memory.len()), Ok(PAGE));
        let name = member.attach_region(region).unwrap().file_name();
        assert_eq!(name, path.display().to_string());
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(PAGE - 1)).unwrap();
        let error = member.attach_region(region).map(drop).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("4095 bytes") && error.contains("4096"), "{error}");
        drop(member);
        remove(&cluster).unwrap();
    }
}
