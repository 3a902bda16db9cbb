//! Is a step of the journal's thread stuck at its disk?

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

/// After how long a step counts as stuck. It is longer than a commit waits: all nodes may share a disk that comes back.
pub(super) const HANG_NS_MAX: u64 = 300_000_000_000;
/// Most time that counts between two looks: a machine or a process that was paused between them says nothing about its
/// disk.
pub(super) const HANG_LOOK_NS_MAX: u64 = 1_000_000_000;

/// Watches the steps of a thread, from another one.
#[derive(Default)]
pub(crate) struct StepWatch {
    /// Since when the thread is in a step; 0: it is in none.
    since_ns: AtomicU64,
    seen: Mutex<Seen>,
}

/// How long a step has been looked at.
#[derive(Default)]
struct Seen {
    since_ns: u64,
    looked_ns: u64,
    ns: u64,
}

impl StepWatch {
    /// The thread begins a step, or has done it.
    pub fn note(&self, since_ns: Option<u64>) {
        self.since_ns.store(since_ns.map_or(0, |since_ns| since_ns.max(1)), SeqCst);
    }

    /// Has the step that is under way been seen for too long?
    pub fn is_stuck(&self, now_ns: u64) -> bool {
        let since_ns = self.since_ns.load(SeqCst);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if since_ns == 0 || seen.since_ns != since_ns {
            *seen = Seen { since_ns, looked_ns: now_ns, ns: 0 };
            return false;
        }
        seen.ns += now_ns.saturating_sub(seen.looked_ns).min(HANG_LOOK_NS_MAX);
        seen.looked_ns = now_ns;
        seen.ns > HANG_NS_MAX
    }
}
