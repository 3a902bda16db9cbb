//! Rests between attempts, and how long a reader waits for a writer.

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

/// How long a reader waits for a row that is being written. A far writer takes three round trips over it; the coordinator
/// of a commit may be at other rows first, or dead.
const PATIENCE_NS: u64 = 20_000_000;
/// The least number of looks at the row, however long the thread was not scheduled.
const LOOKS_MIN: u32 = 8;

/// What is left of a reader's time at one row.
#[derive(Default)]
pub(crate) struct Patience {
    turn: u32,
    until_ns: u64,
}

impl Patience {
    /// Lets others run, longer each time; false: it has waited long enough.
    pub async fn wait(&mut self, handle: &Handle) -> bool {
        let now_ns = handle.now_ns();
        if self.turn == 0 {
            self.until_ns = now_ns.saturating_add(PATIENCE_NS);
        }
        if self.turn >= LOOKS_MIN && now_ns >= self.until_ns {
            return false;
        }
        handle.pause(self.turn).await;
        self.turn += 1;
        true
    }
}
