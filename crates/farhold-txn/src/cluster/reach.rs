//! The nodes that do not answer a node although their leases go on: a host may reach the register and not the others,
//! and a node that hangs may renew.
//!
//! ```text
//!   every member asks every other one, once a lease ──► it answers
//!                                                  └──► it does not, often enough, for long enough: missed, as the register says beside the lease
//! ```

use farhold_fabric::NodeId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A node that has not answered `FAILED_MIN` questions in a row, for `MISSED_LEASES` leases, is missed. A node that is
/// descheduled for a while is not.
const FAILED_MIN: u32 = 3;
const MISSED_LEASES: u64 = 2;

/// What a node knows of its way to the others: those that did not answer last.
#[derive(Debug, Default)]
pub(crate) struct Reach(Mutex<BTreeMap<NodeId, Doubt>>);

#[derive(Debug, Default)]
struct Doubt {
    /// Of which start of the node.
    birth: u64,
    /// The first question without an answer.
    since_ns: u64,
    failed: u32,
}

impl Reach {
    fn doubts(&self) -> MutexGuard<'_, BTreeMap<NodeId, Doubt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has answered, or is gone.
    pub fn answered(&self, node: NodeId) {
        self.doubts().remove(&node);
    }

    /// This start of it did not answer.
    pub fn failed(&self, node: NodeId, birth: u64, now_ns: u64) {
        let mut doubts = self.doubts();
        let doubt = doubts.entry(node).or_default();
        if doubt.birth != birth {
            *doubt = Doubt { birth, since_ns: now_ns, failed: 0 };
        }
        doubt.failed += 1;
    }

    /// Starts of nodes that have not answered for too long.
    pub fn missed(&self, now_ns: u64, lease_ns: u64) -> Vec<(NodeId, u64)> {
        let is_missed =
            |doubt: &Doubt| doubt.failed >= FAILED_MIN && now_ns > doubt.since_ns + MISSED_LEASES * lease_ns;
        self.doubts().iter().filter(|(_, doubt)| is_missed(doubt)).map(|(node, doubt)| (*node, doubt.birth)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_once_is_not_missed() {
        let (reach, node, lease_ns) = (Reach::default(), NodeId(1), 100);
        let fails = |birth, times: &[u64]| times.iter().for_each(|now_ns| reach.failed(node, birth, *now_ns));
        fails(7, &[10, 20, 30]);
        assert_eq!(reach.missed(210, lease_ns), [], "not for long enough");
        assert_eq!(reach.missed(211, lease_ns), [(node, 7)]);
        reach.answered(node);
        assert_eq!(reach.missed(1_000, lease_ns), []);
        fails(7, &[500, 950]);
        assert_eq!(reach.missed(1_000, lease_ns), [], "not often enough");
        fails(8, &[960, 970]);
        assert_eq!(reach.missed(1_165, lease_ns), [], "another start of it");
        fails(8, &[980]);
        assert_eq!(reach.missed(1_165, lease_ns), [(node, 8)]);
    }
}
