//! This process's membership as one node: its entry, its regions, its inboxes, and who else lives.

use super::super::{Membership, Provider};
use super::endpoint::Shm;
use super::entry::{
    AT_BIRTH, AT_INCARNATION, AT_MAGIC, AT_NAMESPACE, AT_PARKED, AT_PID, AT_STARTED, ENTRY_BYTES, Entry, MAGIC,
    OTHER_VERSION,
};
use super::fence::Recorded;
use super::files::{entry_path, holder, inbox_path, lock, locked_by, node_of_file, open, region_path};
use super::{fence, inbox};
use crate::address::{Address, FarPtr, NodeId, RegionId};
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::{RegionMemory, round_up};
use crate::private;
use crate::room::{allocate, refusal};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

pub(super) const PAGE: u64 = 4096;

/// This process's membership as one node.
pub(crate) struct Member {
    pub(super) cluster: PathBuf,
    node: NodeId,
    pub(super) entry: Arc<Entry>,
    pub(super) incarnation: u64,
    /// Holds the lock.
    _lock: File,
    pub(super) own: Mutex<HashMap<RegionId, Arc<RegionMemory>>>,
    pub(super) home: Mutex<inbox::Receiver>,
    pub(super) home_memory: RegionMemory,
    pub(super) ports: Mutex<Ports>,
    pub(super) serial: AtomicU32,
}

#[derive(Default)]
pub(super) struct Ports {
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

    pub(super) fn give_back(&mut self, port: u16) {
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
            if !by.is_some_and(|process| process.is_ending().unwrap_or(false)) {
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
pub(super) const REMOVED: u64 = 1 << 63;

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
    pub(in crate::provider) fn open(self: Arc<Self>, port: Option<u16>) -> Result<Shm, FabricError> {
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
        Ok(Shm::new(self, address, inbox))
    }

    /// The key of an own region and its memory now, if it is registered.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn registered(&self, region: RegionId) -> Option<(u64, Arc<RegionMemory>)> {
        let own = self.own.lock().expect("the regions");
        Some((self.key(region)?, own.get(&region)?.clone()))
    }

    /// The key of an own region now.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn key(&self, region: RegionId) -> Option<u64> {
        let key = self.entry.key(region).load(Ordering::Acquire);
        (key != 0 && key & REMOVED == 0).then_some(key)
    }

    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Wakes the threads of this node that wait for messages.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn ring(&self) {
        self.entry.ring();
    }
}

pub(super) fn map_region(
    cluster: &Path,
    node: NodeId,
    region: RegionId,
    mine: bool,
) -> Result<RegionMemory, FabricError> {
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

impl Drop for Member {
    fn drop(&mut self) {
        inbox::close(&self.home_memory);
        let _ = fs::remove_file(inbox_path(&self.cluster, Address::home(self.node), self.incarnation));
    }
}
