//! Simulation: a whole cluster in one thread, in virtual time.
//!
//! ```text
//!   post ──(request)──> line, line, line ... ──(response)──> done     each arrow and each line is an event at its own time
//!   send ──(message)──> inbox
//! ```
//!
//! The engine, one task of the executor, executes the events in the order of their time. Bulk transfers touch memory one 64-byte
//! line an event, so a read that meets a write is torn as on hardware. Instructions of one batch are under way independently of
//! each other and may overtake. All randomness (jitter, fates) comes from the executor, so the seed of
//! [`crate::Executor::virtual_time`] decides every time and every order; [`Sim::trace_hash`] tells whether two runs were the
//! same.
//!
//! A killed node's posted instructions still happen, its endpoints return [`FabricError::NodeUnavailable`] for their own node,
//! and its regions stay for the next join.
//!
//! An event costs some 50 ns: while only the engine has work, it goes from event to event by itself, without the executor's
//! timers.

mod endpoint;
mod faults;
mod member;
mod model;
mod slab;
mod state;
#[cfg(test)]
mod tests;
mod touch;
mod trace;

pub use faults::{Fault, Faults};
pub use model::{Hop, LatencyModel, Numa, Rdma};

use crate::address::{Address, NodeId};
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Fabric;
use member::Member;
use state::{Effects, InboxState, State};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use trace::What;

/// A simulated cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
    handle: Handle,
}

struct World {
    state: Mutex<State>,
}

impl Sim {
    /// A cluster without nodes on a machine of the given model, with a plan of faults.
    ///
    /// # Panics
    /// If the handle is not of an [`crate::Executor::virtual_time`].
    #[must_use]
    pub fn new(handle: &Handle, model: impl LatencyModel + 'static, faults: Faults) -> Self {
        assert!(handle.is_virtual(), "a simulation runs in virtual time only: Executor::virtual_time");
        let mut state = State::new(Box::new(model), handle.random_u64(), handle.true_now_ns());
        for (at_ns, fault) in faults.plan {
            state.schedule_fault(at_ns, fault);
        }
        let world = Arc::new(World { state: Mutex::new(state) });
        let (weak, engine_handle) = (Arc::downgrade(&world), handle.clone());
        drop(handle.spawn(async move {
            let mut effects = Effects::default();
            poll_fn(|cx| match weak.upgrade() {
                Some(world) => world.run_due(&engine_handle, &mut effects, cx),
                None => Poll::Ready(()),
            })
            .await;
        }));
        Self { world, handle: handle.clone() }
    }

    /// Starts a node.
    ///
    /// # Errors
    /// [`FabricError::NodeInUse`] if it runs.
    pub fn join(&self, node: NodeId) -> Result<Fabric, FabricError> {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let entry = state.node_or_new(node);
        if entry.live {
            return Err(FabricError::NodeInUse {
                node,
                holder_pid: std::process::id(),
                path: Path::new("(simulated)").into(),
            });
        }
        entry.incarnation += 1;
        entry.live = true;
        entry.births.push(None);
        entry.admitted = (0, None);
        state.forget_fences_of_the_living(node);
        let entry = state.node_or_new(node);
        entry.inboxes = BTreeMap::from([(Address::HOME_PORT, InboxState::default())]);
        let incarnation = entry.incarnation;
        state.trace.event(now_ns, What::Join, [u64::from(node.0), incarnation]);
        Ok(Fabric::new(Arc::new(Member { world: self.world.clone(), node, incarnation })))
    }

    /// Makes a fault happen now.
    pub fn inject(&self, fault: Fault) {
        let mut effects = Effects::default();
        self.world.lock().fault(fault, &mut effects);
        effects.happen(&self.handle);
    }

    /// Makes a fault happen after `events` more [events](Self::events).
    pub fn inject_after(&self, events: u64, fault: Fault) {
        let mut state = self.world.lock();
        let at = state.trace.count + events;
        state.after.push((at, fault));
    }

    /// The number of events so far: lines touched, instructions completed, messages delivered.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.world.lock().trace.count
    }

    /// From now on new regions have a memory behind their caches, as NVM has: [`Fault::PowerCut`] leaves of a line the content
    /// that was flushed last, or any newer one.
    pub fn keep_durable(&self) {
        self.world.lock().keeps_durable = true;
    }

    /// A number that two runs share only if all events happened in both at the same time in the same order.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.world.lock().trace.hash
    }

    /// Keeps the trace in words from now on.
    pub fn record_lines(&self) {
        self.world.lock().trace.lines.get_or_insert_default();
    }

    /// The trace in words, since [`Self::record_lines`].
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.world.lock().trace.lines.clone().unwrap_or_default()
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the simulation")
    }

    /// The engine: does what is due, lets time pass while no task has work, and sets a timer for the next event.
    fn run_due(&self, handle: &Handle, effects: &mut Effects, cx: &mut Context<'_>) -> Poll<()> {
        let mut now_ns = handle.true_now_ns();
        loop {
            let next_ns = {
                let mut state = self.lock();
                state.begin_turn(now_ns, cx.waker());
                while let Some(event) = state.next_due(now_ns) {
                    state.handle(event, effects);
                }
                state.next_ns()
            };
            effects.happen(handle);
            let Some(next_ns) = next_ns else { return Poll::Pending };
            if !handle.advance_to(next_ns) {
                if self.lock().arm(next_ns) {
                    handle.wake_at_ns(next_ns, cx.waker());
                }
                return Poll::Pending;
            }
            now_ns = next_ns;
        }
    }
}

/// See [`super::ALL`].
pub(super) const KIND: super::Kind = super::Kind {
    name: "sim",
    about: "a cluster in one thread, in virtual time, from a seed",
    does: |_| super::Doer::Simulation,
    here: Vec::new,
    // Its nodes are those of one `Sim`.
    join: None,
    #[cfg(test)]
    beds: &[super::conformance::Bed::sim],
};
