//! What wakes a thread of the node.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Counts its rings, so that none is missed between two waits.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.rung.notify_all();
    }

    /// Waits for a ring since the one with the number `seen`.
    pub fn wait(&self, seen: &mut u64, timeout: Duration) {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(rings, timeout, |rings| *rings == *seen);
        *seen = *waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}
