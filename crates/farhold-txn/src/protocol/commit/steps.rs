//! Instructions and requests that may be repeated: tried once, or repeated until they are certainly done.

use crate::base::back_off::BackOff;
use crate::base::error::TxnError;
use crate::protocol::core::Core;
use crate::replication::Replication;
use crate::rpc::message::Request;
use farhold_fabric::{FabricError, FarPtr, NodeId};
use std::borrow::Cow;

/// How long a coordinator waits before it asks a silent node again, or looks again at a ring without room.
pub(super) const AGAIN_NS: u64 = 2_000;

/// The longest such wait for a node that does not answer calls: it may be silent for a lease.
const AGAIN_NS_MAX: u64 = 64_000;

/// One instruction that may be done twice.
#[derive(Clone, Debug)]
pub(crate) struct Step<'t> {
    at: FarPtr,
    what: What<'t>,
}

#[derive(Clone, Debug)]
enum What<'t> {
    Write(Cow<'t, [u8]>),
    Swap(u64),
    /// The word becomes 0, if it is this.
    Release(u64),
}

impl<'t> Step<'t> {
    pub fn write(at: FarPtr, bytes: impl Into<Cow<'t, [u8]>>) -> Self {
        Self { at, what: What::Write(bytes.into()) }
    }

    pub fn swap(at: FarPtr, word: u64) -> Self {
        Self { at, what: What::Swap(word) }
    }

    pub fn release(at: FarPtr, word: u64) -> Self {
        Self { at, what: What::Release(word) }
    }

    pub fn add_to(&self, batch: &mut farhold_fabric::Batch) -> farhold_fabric::Slot {
        match &self.what {
            What::Write(bytes) => batch.write(self.at, bytes),
            What::Swap(word) => batch.swap(self.at, *word),
            What::Release(word) => batch.compare_swap(self.at, *word, 0),
        }
    }
}

impl Core {
    /// Does instructions on other nodes once, and names the nodes where one of them is lost.
    pub async fn try_once(&self, steps: &[Step<'_>], lost: &mut Vec<NodeId>) {
        if steps.is_empty() {
            return;
        }
        let mut batch = self.take_batch();
        let slots: Vec<_> = steps.iter().map(|step| step.add_to(&mut batch)).collect();
        let batch = self.endpoint.submit(batch).await;
        for (step, slot) in steps.iter().zip(slots) {
            if batch.done(slot).is_err() && !lost.contains(&step.at.node()) {
                lost.push(step.at.node());
            }
        }
        self.give_batch(batch);
        crate::base::planted::may_stop();
    }

    /// Does instructions on other nodes until each is done or its node has left the cluster as it was in the configuration
    /// with the number `since`. `None`: this node has left, or is dead.
    pub async fn insist(&self, replication: &Replication, mut steps: Vec<Step<'_>>, since: u64) -> Option<()> {
        let is_there = |node| replication.view.present.contains(node) && replication.view.is_same_start(node, since);
        let mut again = BackOff::new(AGAIN_NS, AGAIN_NS_MAX);
        loop {
            steps.retain(|step| is_there(step.at.node()));
            if steps.is_empty() {
                return (!replication.view.is_gone()).then_some(());
            }
            let mut batch = self.take_batch();
            let slots: Vec<_> = steps.iter().map(|step| step.add_to(&mut batch)).collect();
            let batch = self.endpoint.submit(batch).await;
            let mut slots = slots.into_iter();
            let (mut is_dead, mut strange) = (false, Vec::new());
            steps.retain(|step| {
                let done = batch.done(slots.next().expect("one for each"));
                is_dead |= done == Err(FabricError::NodeUnavailable { node: self.me });
                // A region registered anew, or one that this endpoint had never met. A node that does not answer is not
                // asked: that would hold up this thread, and with it commits that wait for nodes that do answer.
                if !matches!(done, Ok(()) | Err(FabricError::NodeUnavailable { .. } | FabricError::Timeout { .. })) {
                    strange.push((step.at.node(), step.at.region()));
                }
                done.is_err()
            });
            self.give_batch(batch);
            if steps.is_empty() {
                continue;
            }
            if is_dead || replication.view.is_gone() {
                return None;
            }
            for (node, region) in strange {
                let _ = self.look_again(node, region);
            }
            again.rest(&self.handle).await;
        }
    }

    /// Asks a node until it has answered, or has left the cluster as it was in the configuration with the number `since`.
    ///
    /// # Errors
    /// The error that it has answered; [`TxnError::NodeUnavailable`] of this node if it has been expelled, or has ended.
    pub async fn insist_call(&self, node: NodeId, request: &Request<'_>, since: u64) -> Result<(), TxnError> {
        let Some(replication) = &self.node.replication else { return Ok(()) };
        let view = &replication.view;
        let unavailable = TxnError::NodeUnavailable { node: self.me, committed: false };
        let mut again = BackOff::new(AGAIN_NS, AGAIN_NS_MAX);
        loop {
            if view.is_gone() {
                return Err(unavailable);
            }
            if !view.present.contains(node) || !view.is_same_start(node, since) {
                return Ok(());
            }
            match self.call(node, request).await {
                Err(error @ TxnError::NodeUnavailable { .. }) if error != unavailable => {}
                // It could not be sent.
                Err(TxnError::Fabric(_)) => {}
                answered => return answered.map(drop),
            }
            if !self.node.fabric.node_is_live(self.me) {
                return Err(unavailable);
            }
            again.rest(&self.handle).await;
        }
    }
}
