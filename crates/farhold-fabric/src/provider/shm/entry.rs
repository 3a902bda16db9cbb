//! A node's entry, as every process of the host maps it: its words, and the doorbell.

use super::files::entry_path;
#[cfg(feature = "libfabric")]
use super::files::open;
use crate::address::{FarPtr, NodeId, RegionId};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"farhnod1");
pub(super) const ENTRY_BYTES: u64 = 8192;
/// Why an entry is not used.
pub(super) const OTHER_VERSION: &str = "it is not a node's entry of this version";
pub(super) const AT_MAGIC: u64 = 0;
pub(super) const AT_INCARNATION: u64 = 8;
/// The process: its number, start time and PID namespace. The number is written last.
pub(super) const AT_PID: u64 = 16;
pub(super) const AT_STARTED: u64 = 24;
pub(super) const AT_NAMESPACE: u64 = 32;
/// The birth of the start that holds the lock; 0: it has not been set yet.
pub(super) const AT_BIRTH: u64 = 40;
/// Grows when the doorbell rings; waiting threads sleep on it.
pub(super) const AT_RINGS: u64 = 64;
/// Threads that sleep or are about to.
pub(super) const AT_PARKED: u64 = 128;
const AT_REGIONS: u64 = 4096;

/// A node's entry, mapped.
pub(super) struct Entry(RegionMemory);

impl Entry {
    pub(super) fn map(cluster: &Path, node: NodeId, file: &File) -> Result<Self, FabricError> {
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
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at + 8 <= ENTRY_BYTES);
        // SAFETY: the entry is ENTRY_BYTES long, and all offsets in this module are multiples of 8 below that.
        unsafe { self.0.word_unchecked(at) }
    }

    #[inline]
    pub(super) fn key(&self, region: RegionId) -> &AtomicU64 {
        self.word(AT_REGIONS + u64::from(region.0) * 16)
    }

    pub(super) fn region_bytes(&self, region: RegionId) -> &AtomicU64 {
        self.word(AT_REGIONS + u64::from(region.0) * 16 + 8)
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.word(AT_INCARNATION).load(Ordering::Acquire)
    }

    /// The low half of a word, as the kernel's futex requires it.
    fn futex(&self) -> *mut u32 {
        self.word(AT_RINGS).as_ptr().cast::<u32>()
    }

    /// Wakes the threads that wait for messages of this node, if there are any.
    #[inline]
    pub(super) fn ring(&self) {
        // The sender's ready bit came before by a SeqCst exchange, the sleeper's count before its last look at the bits: one
        // of the two sees the other.
        if self.word(AT_PARKED).load(Ordering::SeqCst) != 0 {
            self.word(AT_RINGS).fetch_add(1, Ordering::SeqCst);
            // SAFETY: the word is mapped as long as `self`; waking touches no memory.
            unsafe { libc::syscall(libc::SYS_futex, self.futex(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Sleeps until the doorbell rings, unless `look` says that there is something already.
    pub(super) fn park(&self, timeout_ns: u64, look: impl FnOnce() -> bool) {
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
pub(in crate::provider) struct Starts(Entry);

#[cfg(feature = "libfabric")]
impl Starts {
    /// None if the node never joined.
    pub(in crate::provider) fn of(cluster: &Path, node: NodeId) -> Option<Self> {
        let file = open(&entry_path(cluster, node), false).ok()?;
        let entry = Entry::map(cluster, node, &file).ok()?;
        (entry.word(AT_MAGIC).load(Ordering::Acquire) == MAGIC).then_some(Self(entry))
    }

    pub(in crate::provider) fn count(&self) -> u64 {
        self.0.incarnation()
    }
}
