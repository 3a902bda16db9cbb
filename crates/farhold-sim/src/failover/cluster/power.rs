//! A life of a cluster, which a power failure ends, and the start of all nodes after it.

use super::{Cluster, HEALING_NS_MAX, LOOK_NS, Process, SERVE_NS};
use crate::failover::plan::{Cut, Starts};
use crate::hiccups::Hiccups;
use crate::register::SimRegister;
use crate::workload::Ended;
use farhold_bench::random::Random;
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::Fault;
use std::cell::Cell;
use std::rc::Rc;

/// How long until all are members again after a restart: a node may have to take over all rows of a shop first.
const RESTART_NS_MAX: u64 = 300_000_000;
/// How long a power failure waits for a change of the configuration.
const CHANGE_NS_MAX: u64 = 4_000_000;

impl Cluster {
    /// Runs clients until the power of all nodes is cut, with some faults before; then all nodes start again.
    pub(super) async fn life(self: &Rc<Self>, cut: &Cut, broken: &mut Vec<String>) {
        let begun_ns = self.handle.now_ns();
        let clients = self.clients();
        let mut blows = cut.blows.clone();
        blows.sort_by_key(|(at_ns, _)| *at_ns);
        for (at_ns, blow) in blows {
            self.live_until(cut.with_returns, begun_ns + at_ns).await;
            self.strike(blow);
        }
        self.live_until(cut.with_returns, begun_ns + cut.at_ns).await;
        if let Some(after_ns) = cut.after_change_ns {
            let number = |it: &Self| it.register().configuration().map_or(0, |found| found.number);
            let (before, until_ns) = (number(self), self.handle.now_ns() + CHANGE_NS_MAX);
            while number(self) == before && self.handle.now_ns() < until_ns {
                self.live_until(cut.with_returns, self.handle.now_ns() + LOOK_NS).await;
            }
            self.live_until(cut.with_returns, self.handle.now_ns() + after_ns).await;
        }
        let mut random = Random::new(self.setup.seed ^ begun_ns);
        if let Some(operations) = cut.operations {
            self.disks.borrow().cut_after(operations, random.below(u64::MAX));
            self.until(CHANGE_NS_MAX, || self.disks.borrow().is_cut()).await;
        }
        let mut going = Vec::new();
        for client in clients {
            match client.task.try_take() {
                Some(Ended::Stuck(what)) if !self.is_damaged() => {
                    broken.push(format!("client {} does not get on before a cut of the power: {what}", client.number));
                }
                Some(_) => {}
                None => going.push(client),
            }
        }
        self.tell(&format!("the power of all nodes is cut; journals are on {}", self.disks.borrow().name()));
        for node in 0..self.setup.nodes {
            self.kill(node, Fault::Kill(NodeId(node)));
        }
        let after = self.disks.borrow().cut(&mut || random.below(u64::MAX));
        // Clients learn that the outcome stays unknown.
        for client in going {
            self.until(SERVE_NS, || client.task.try_take().is_some()).await;
        }
        self.disks.replace(after);
        self.begin_a_life();
        if self.setup.nodes == 1 {
            let mut recorder = self.recorder.borrow_mut();
            let now = recorder.now();
            recorder.history.epochs_again.push(now);
        }
        if let Err(error) = self.start_all(&cut.starts).await {
            broken.push(format!("a restart: {error}"));
        }
        self.tell("everybody has started again");
    }

    /// Another network and another register: faults of the earlier ones have ended.
    fn begin_a_life(&self) {
        self.past_trace.set(self.past_trace.get().rotate_left(1) ^ self.sim().trace_hash());
        self.lasting.borrow_mut().clear();
        self.sim.replace(Hiccups::network(self.setup.hiccups, &self.handle));
        self.register.replace(SimRegister::new(self.setup.nodes, &self.handle));
    }

    /// All nodes start after a cut of the power.
    async fn start_all(self: &Rc<Self>, starts: &Starts) -> Result<(), String> {
        let start = |node: u8| self.try_start(node).map_err(|error| error.to_string());
        let (nodes, is_away) = (self.setup.nodes, |node: u8| starts.away == Some(node));
        let mut again: Vec<Option<Process>> = (0..nodes).map(|_| None).collect();
        for node in (0..nodes).map(|step| (starts.first + step) % nodes).filter(|node| !is_away(*node)) {
            again[usize::from(node)] = Some(start(node)?);
        }
        for (process, again) in self.processes.borrow_mut().iter_mut().zip(again) {
            *process = again.unwrap_or_else(|| process.clone());
        }
        if let Some((node, after_ns)) = starts.twice.filter(|(node, _)| !is_away(*node)) {
            self.handle.sleep_ns(after_ns).await;
            self.tell(&format!("node {node} ends and starts again"));
            self.kill(node, Fault::Kill(NodeId(node)));
            self.processes.borrow_mut()[usize::from(node)] = start(node)?;
        }
        let are_in = || self.processes.borrow().iter().all(|it| is_away(it.node.id().0) || it.node.is_member());
        if self.until(HEALING_NS_MAX, are_in).await {
            return Ok(());
        }
        // A node that had left joins when another has taken over its rows. That one may have no room: the node that
        // filled its region ended with the power cut.
        let is_over = Rc::new(Cell::new(false));
        self.begin_to_drop_hogs(is_over.clone());
        let all_are_in = self.until(RESTART_NS_MAX, are_in).await;
        is_over.set(true);
        if all_are_in {
            return Ok(());
        }
        if *starts == Starts::default() {
            return Err(format!("not all are members: {:?}", self.register().configuration()));
        }
        // The absent node is one of the founders, or a node ended after it had founded. As the guide says, all nodes are ended and
        // started again.
        self.tell("all are ended, and start again");
        for node in 0..nodes {
            self.kill(node, Fault::Kill(NodeId(node)));
        }
        self.begin_a_life();
        Box::pin(self.start_all(&Starts::default())).await
    }
}
