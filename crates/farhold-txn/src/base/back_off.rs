//! Rests between attempts.

use farhold_fabric::Handle;

/// Rests that double from the first one up to a longest one.
pub(crate) struct BackOff {
    next_ns: u64,
    ns_max: u64,
}

impl BackOff {
    pub const fn new(first_ns: u64, ns_max: u64) -> Self {
        Self { next_ns: first_ns, ns_max }
    }

    /// Waits, longer each time.
    pub async fn rest(&mut self, handle: &Handle) {
        let ns = self.next_ns;
        self.next_ns = ns.saturating_mul(2).min(self.ns_max);
        handle.sleep_ns(ns).await;
    }
}
