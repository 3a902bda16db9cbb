//! The safety phase: clients run, and faults happen.

use super::clients::Running;
use super::{Cluster, HEALING_NS_MAX, LOOK_NS, RUN_NS_MAX};
use crate::failover::KillAt;
use crate::failover::plan::Blow;
use crate::workload::Ended;
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::Fault;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// How long a session of a host that is cut off may wait for anything: requests without an answer, and the outcome of a
/// commit.
const ANSWER_NS_MAX: u64 = 40_000_000;
/// How long the others may go on with a host that is cut off: requests without an answer, some leases, and a change of
/// the configuration.
const EXPELLED_NS_MAX: u64 = 40_000_000;

impl Cluster {
    /// All clients, and all faults.
    pub(super) async fn everybody(self: &Rc<Self>, broken: &mut Vec<String>) {
        let begun_ns = self.handle.now_ns();
        let clients = self.clients();
        let is_over = Rc::new(Cell::new(false));
        if self.setup.replicas == 1 {
            self.start_the_dead_again(is_over.clone());
        }
        let mut blows = self.setup.blows.clone();
        blows.sort_by_key(|(at_ns, _)| *at_ns);
        for (at_ns, blow) in blows {
            if self.setup.with_returns {
                self.live_until(true, begun_ns + at_ns).await;
            }
            self.handle.sleep_until_ns(begun_ns + at_ns).await;
            if let (true, Blow::Kill(node) | Blow::Crash(node)) = (self.setup.with_returns, blow) {
                self.until_replaceable(NodeId(node)).await;
            }
            self.strike(blow);
        }
        let lost = self.setup.lost_host();
        if let Some(node) = lost {
            self.watch_sessions(node, &clients, broken).await;
        }
        let mut clients = VecDeque::from(clients);
        while let Some(client) = clients.pop_front() {
            let ended = self.end_of(&client).await;
            clients.extend(self.later.take());
            match ended {
                Ended::Done => {}
                Ended::Stuck(what) if self.is_damaged() => {
                    self.tell(&format!("client {} has given up: {what}", client.number));
                }
                Ended::Stuck(_) if lost == Some(client.process.node.id().0) => {
                    self.tell(&format!("client {} has given up", client.number));
                }
                Ended::Stuck(what) => broken.push(format!("client {} does not get on: {what}", client.number)),
                Ended::Gone => self.tell(&format!("client {} went with its node", client.number)),
            }
        }
        is_over.set(true);
        let healed_ns = self.setup.blows.iter().map(|(at_ns, blow)| begun_ns + at_ns + blow.lasts_ns()).max();
        self.handle.sleep_until_ns(healed_ns.unwrap_or(0)).await;
    }

    /// Waits until the node's death loses no rows: nodes that died before it may still be coming back, later than
    /// planned.
    async fn until_replaceable(self: &Rc<Self>, node: NodeId) {
        let until_ns = self.handle.now_ns() + HEALING_NS_MAX;
        let is_so = || self.register().configuration().is_none_or(|now| now.dispensable(&[node], |_| false) == [node]);
        while !is_so() && self.handle.now_ns() < until_ns {
            self.live_until(true, self.handle.now_ns() + LOOK_NS).await;
        }
    }

    /// Checks that every session of a host that is cut off for ever gets an answer in time; then the host is replaced.
    async fn watch_sessions(&self, node: u8, clients: &[Running], broken: &mut Vec<String>) {
        let is_member = || self.register().configuration().is_some_and(|now| now.contains(NodeId(node)));
        if !self.until(EXPELLED_NS_MAX, || !is_member()).await {
            broken.push(format!("the others do not go on without node {node}, which is cut off"));
        }
        let sessions = || clients.iter().filter(|client| client.process.node.id().0 == node);
        let waits = |client: &&Running| {
            let begun_ns = client.attempting.get();
            begun_ns.is_some_and(|begun_ns| self.handle.now_ns() > begun_ns + ANSWER_NS_MAX)
        };
        let waits_for_ever = self.until(2 * ANSWER_NS_MAX, || sessions().any(|client| waits(&client))).await;
        if waits_for_ever {
            let numbers: Vec<usize> = sessions().filter(waits).map(|client| client.number).collect();
            broken.push(format!("clients {numbers:?} of a host that is cut off wait for ever"));
        }
        self.tell(&format!("node {node}, which is cut off, is replaced"));
        self.kill(node, Fault::Kill(NodeId(node)));
        self.end_loss_of(node);
    }

    /// One transaction, and a death at a step of it.
    pub(super) async fn one_transaction(self: &Rc<Self>, kill_at: KillAt, broken: &mut Vec<String>) {
        let before = self.sim().events();
        if let Some(victim) = kill_at.victim {
            let node = NodeId(victim);
            let fault = if kill_at.crash { Fault::Crash(node) } else { Fault::Kill(node) };
            self.sim().inject_after(kill_at.step, fault);
        }
        let client = self.client(0, kill_at.coordinator, 1);
        let mut ended = None;
        // The death comes at an event; here it is noticed at the next moment, and the dead process does nothing any
        // more.
        let limit_ns = self.handle.now_ns() + RUN_NS_MAX;
        while ended.is_none() && self.handle.now_ns() < limit_ns {
            ended = client.task.try_take();
            if let Some(victim) = kill_at.victim
                && self.sim().events() >= before + kill_at.step
                && self.process(victim).alive.get()
            {
                self.process(victim).alive.set(false);
                self.tell(&format!("node {victim} dies at step {}", kill_at.step));
            }
            self.handle.sleep_ns(200).await;
        }
        self.steps.set(self.sim().events() - before);
        match ended {
            Some(Ended::Stuck(what)) => broken.push(format!("the transaction does not get through: {what}")),
            None if client.process.alive.get() => broken.push("the transaction waits for ever".into()),
            _ => {}
        }
    }
}
