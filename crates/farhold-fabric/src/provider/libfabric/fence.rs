//! Shutting a node out: its sessions end, its hellos are refused until it has started again, and no NIC's key that it may have
//! opens anything any more.
//!
//! The home agent ends sessions, being the only one who acts for them: [`shut_out`] asks it to and waits. What it had begun for
//! that node is done by then; a transfer by a NIC that is under way is cut off with its key and its connection.

use super::channel::Bell;
use super::{Shared, lock, rendezvous};
use crate::address::NodeId;
use crate::error::FabricError;
use crate::provider::Membership as _;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a node's own record is asked for: one that is cut off does not answer.
const RECORD_NS_MAX: u64 = 100_000_000;
/// How long the agent may take. It waits for nobody.
const AGENT_MAX: Duration = Duration::from_secs(10);

/// Whom this node has shut out.
#[derive(Default)]
pub(super) struct Fence {
    state: Mutex<Fenced>,
    done: Condvar,
    /// Orders so far.
    wanted: AtomicU64,
}

#[derive(Default)]
struct Fenced {
    /// The last start of each that is shut out.
    nodes: HashMap<NodeId, u64>,
    /// Those among them that the agent has still to act on. The others may have come back since.
    ordered: Vec<NodeId>,
    done: u64,
}

impl Fence {
    /// Is this start of the node shut out?
    pub fn is_out(&self, node: NodeId, start: u64) -> bool {
        lock(&self.state).nodes.get(&node).is_some_and(|last| start <= *last)
    }

    /// For the agent: has it something to do? Then `end` gets each node that is to be shut out with its last known start, ends its
    /// sessions up to that or any later one that it knows, and returns the latest.
    pub fn work(&self, seen: &mut u64, mut end: impl FnMut(NodeId, u64) -> u64) {
        if *seen == self.wanted.load(Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        for node in std::mem::take(&mut state.ordered) {
            let last = state.nodes.entry(node).or_default();
            *last = end(node, *last);
        }
        *seen = self.wanted.load(Acquire);
        state.done = *seen;
        self.done.notify_all();
    }
}

/// See [`crate::Fabric::fence`].
pub(super) fn shut_out(shared: &Shared, bell: &Bell, node: NodeId) -> Result<bool, FabricError> {
    if node == shared.node() {
        return Err(FabricError::Unsupported { what: "a node cannot shut itself out" });
    }
    let timeout_ns = shared.config.connect_timeout_ns.min(RECORD_NS_MAX);
    let record = rendezvous::find(&shared.cluster, &shared.config.rendezvous, node, timeout_ns);
    let start = record.map_or(0, |record| record.incarnation);
    let fence = &shared.fence;
    let mut state = lock(&fence.state);
    let last = state.nodes.entry(node).or_default();
    *last = start.max(*last);
    state.ordered.push(node);
    let wanted = fence.wanted.fetch_add(1, Release) + 1;
    shared.close_all_to_nics();
    bell.ring();
    let is_waiting = |state: &mut Fenced| state.done < wanted;
    let waited = fence.done.wait_timeout_while(state, AGENT_MAX, is_waiting).unwrap_or_else(PoisonError::into_inner);
    if waited.1.timed_out() {
        return Err(FabricError::Timeout { waited_ns: AGENT_MAX.as_nanos() as u64 });
    }
    // libfabric's `shm` looks at no key: there a process that must not write must end.
    if shared.provider == "shm" { shared.near.fence(node) } else { Ok(true) }
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
