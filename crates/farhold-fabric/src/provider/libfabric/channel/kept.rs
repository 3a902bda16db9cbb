//! Channels that are never closed: those of libfabric's `shm`.
//!
//! Its endpoints of one process reach into each other's memory (seen in 1.17), so closing one harms the others. A channel that
//! is dropped is kept, and used again.

use super::{Channel, Open, Size};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

pub(super) const NEVER_CLOSED: &str = "shm";
/// The tag of frames of the channel's earlier owner. It is no session's tag: it would be of node 255, and not a stranger's.
pub(super) const NOBODY: u64 = 0xffff_ffff_7fff_ffff;
/// How long a channel that is given up may take to send its frames.
const DRAIN_TURNS_MAX: u32 = 10_000;

/// The channels that are not in use.
static KEPT: Mutex<Vec<Open>> = Mutex::new(Vec::new());
/// The segments that never closed channels leave in /dev/shm, 16 MiB each: libfabric 1.17 does not clean up when the process
/// ends.
static SEGMENTS: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// A channel of this size that is not in use.
pub(super) fn take(size: Size) -> Option<Open> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|open| open.size == size)?;
    Some(kept.swap_remove(at))
}

/// Registers the removal of a channel's segment at the end of the process.
pub(super) fn remove_at_end(name: &[u8]) {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let Ok(segment) = CString::new(name.rsplit('/').next().unwrap_or_default()) else { return };
    let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if segments.is_empty() {
        // SAFETY: the function needs nothing that is gone at the end of a process.
        unsafe { libc::atexit(remove_segments) };
    }
    segments.push(segment);
}

extern "C" fn remove_segments() {
    for segment in SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // SAFETY: a terminated string; peers keep the mappings that they have.
        unsafe { libc::shm_unlink(segment.as_ptr()) };
    }
}

impl Channel {
    /// Whether it goes on after its end, with what is under way.
    pub fn is_never_closed(&self) -> bool {
        self.open.traits.provider == NEVER_CLOSED
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.is_never_closed() {
            return;
        }
        for _ in 0..DRAIN_TURNS_MAX {
            if !self.is_sending() {
                break;
            }
            self.poll(|_| {});
            std::thread::yield_now();
        }
        let Open { raw, size, traits, .. } = &self.open;
        if self.open.unposted.borrow().len() == size.rx as usize {
            // Its opening failed, so no later owner can use it.
            std::mem::forget(raw.clone());
            return;
        }
        let peers = self.open.peers.take();
        let open = Open {
            raw: raw.clone(),
            size: *size,
            traits: traits.clone(),
            free_tx: RefCell::new(self.open.free_tx.take()),
            free_bulk: RefCell::new(self.open.free_bulk.take()),
            // What was not drained ends when the channel is used again.
            sending: Cell::new(self.open.sending.get()),
            // What was under way may still fail while the channel has its next owner, to whom the failure means nothing.
            tags: RefCell::new(self.open.tags.take().into_iter().map(|tag| tag.and(Some(NOBODY))).collect()),
            unposted: RefCell::new(self.open.unposted.take()),
            forgotten: RefCell::new(peers.keys().cloned().collect()),
            peers: RefCell::new(peers),
        };
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }
}
