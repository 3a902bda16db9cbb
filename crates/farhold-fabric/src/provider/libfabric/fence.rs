//! Fencing of a start of a node: its sessions end, its hellos are refused, and no NIC's key that it may have gives access any
//! more.
//!
//! Only the home agent acts for sessions, so it also ends them: [`shut_out`] asks it to and waits. What the agent had begun for
//! that node is done by then. A NIC's write that is under way ends with its key, or could not begin: see
//! [`Traits::stops_writes`](super::channel::Traits::stops_writes).

use super::channel::Bell;
use super::{Shared, lock};
use crate::address::NodeId;
use crate::error::FabricError;
use crate::provider::Membership as _;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long the agent may take. It waits for no peer.
const AGENT_MAX: Duration = Duration::from_secs(10);

/// The starts of nodes that this node has fenced.
#[derive(Default)]
pub(super) struct Fence {
    state: Mutex<Fenced>,
    done: Condvar,
    /// Orders so far.
    wanted: AtomicU64,
}

#[derive(Default)]
struct Fenced {
    /// Births that are fenced: one for each that the cluster has expelled.
    births: HashSet<(NodeId, u64)>,
    /// Those among them on which the agent has not acted yet.
    ordered: Vec<(NodeId, u64)>,
    done: u64,
}

impl Fence {
    /// Whether this start of the node is fenced.
    pub fn is_out(&self, node: NodeId, birth: u64) -> bool {
        lock(&self.state).births.contains(&(node, birth))
    }

    /// For the agent: carries out new orders, if there are any. `end` gets each start that is to be fenced, and ends its
    /// sessions.
    pub fn work(&self, seen: &mut u64, mut end: impl FnMut(NodeId, u64)) {
        if *seen == self.wanted.load(Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        for (node, birth) in std::mem::take(&mut state.ordered) {
            end(node, birth);
        }
        *seen = self.wanted.load(Acquire);
        state.done = *seen;
        self.done.notify_all();
    }
}

/// See [`crate::Fabric::fence`].
pub(super) fn shut_out(shared: &Shared, bell: &Bell, node: NodeId, birth: u64) -> Result<bool, FabricError> {
    if node == shared.node() {
        return Err(FabricError::Unsupported { what: "a node cannot shut itself out" });
    }
    let fence = &shared.fence;
    let mut state = lock(&fence.state);
    state.births.insert((node, birth));
    state.ordered.push((node, birth));
    let wanted = fence.wanted.fetch_add(1, Release) + 1;
    bell.ring();
    let is_waiting = |state: &mut Fenced| state.done < wanted;
    let waited = fence.done.wait_timeout_while(state, AGENT_MAX, is_waiting).unwrap_or_else(PoisonError::into_inner);
    // Not before: until it has ended the sessions, the agent may open a region anew for them.
    shared.close_all_to_nics();
    if waited.1.timed_out() {
        return Err(FabricError::Timeout { waited_ns: AGENT_MAX.as_nanos() as u64 });
    }
    // libfabric's `shm` checks no key: there the process must end to stop its writes.
    if shared.provider == "shm" { shared.near.fence(node, birth) } else { Ok(true) }
}

/// Microseconds since 1970.
pub(super) fn unix_us() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "starts of a node are told apart by when they were, also after its disk was lost"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
