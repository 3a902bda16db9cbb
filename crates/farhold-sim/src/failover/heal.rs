//! The liveness phase: all faults end, and then the cluster must be whole within a time limit.

use super::changing::HOG;
use super::cluster::{Cluster, HEALING_NS_MAX, LEASE_NS, Process};
use super::plan::Load;
use crate::workload::Ended;
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::Fault;
use farhold_txn::Serving;
use std::cell::Cell;
use std::rc::Rc;

/// Transactions of each node's client after everything has healed.
const TRANSACTIONS_AFTER: usize = 3;

impl Cluster {
    pub async fn heal(self: &Rc<Self>, broken: &mut Vec<String>) {
        // The node that filled a region may be gone.
        self.begin_to_drop_hogs(Rc::default());
        let mut back = Vec::new();
        let mut whole = || {
            for number in 0..self.setup.nodes {
                if self.comes_back(number) {
                    back.push(number);
                }
            }
            self.is_whole()
        };
        // Twice: a node that was cut off until now may be about to be expelled.
        let mut is_whole = self.until(HEALING_NS_MAX, &mut whole).await;
        self.handle.sleep_ns(2 * LEASE_NS).await;
        is_whole &= self.until(HEALING_NS_MAX, whole).await;
        if !is_whole {
            for process in self.processes.borrow().iter() {
                let node = &process.node;
                let number = node.configuration().map(|installed| installed.number);
                self.tell(&format!("{}: configuration {number:?}, doing {}", node.id(), node.progress()));
                let left = node.left_behind().into_iter().chain(node.leaks());
                left.for_each(|what| self.tell(&format!("left behind: {what}")));
            }
            broken.push(format!("not whole again: {:?}", self.register().configuration()));
            return;
        }
        self.tell(&format!("whole again; {back:?} came back"));
        self.commit_after_all(broken).await;
    }

    /// Every node's client commits, when everything has healed.
    pub(super) async fn commit_after_all(self: &Rc<Self>, broken: &mut Vec<String>) {
        let clients: Vec<_> =
            (0..self.setup.nodes).map(|node| self.client(100 + usize::from(node), node, TRANSACTIONS_AFTER)).collect();
        for client in clients {
            match self.end_of(&client).await {
                Ended::Stuck(what) => broken.push(format!("no progress after everything has healed: {what}")),
                Ended::Gone => broken.push("a node is lost after everything has healed".into()),
                Ended::Done => {}
            }
        }
    }

    /// Drops the tables that fill regions, if the workload has any, concurrently with everything else: a node with a full region takes over no rows.
    pub fn begin_to_drop_hogs(self: &Rc<Self>, is_over: Rc<Cell<bool>>) {
        if self.setup.load == Load::Tables {
            let this = self.clone();
            drop(self.handle.spawn(async move { this.drop_hogs(&is_over).await }));
        }
    }

    /// Drops them from any member, until there are none and the cluster is whole, or it `is_over`.
    async fn drop_hogs(&self, is_over: &Cell<bool>) {
        let until_ns = self.handle.now_ns() + HEALING_NS_MAX;
        while !is_over.get() && self.handle.now_ns() < until_ns {
            let processes = self.processes.borrow().clone();
            let mut is_any = false;
            for Process { node, worker, .. } in processes.iter().filter(|it| it.alive.get() && it.node.is_member()) {
                for table in node.tables().into_iter().filter(|table| table.name().starts_with(HOG)) {
                    is_any = true;
                    // Another client has dropped it, or the configuration is changing.
                    let _ = worker.drop_table(&table).await;
                }
            }
            if !is_any && self.is_whole() {
                return;
            }
            self.handle.sleep_ns(LEASE_NS).await;
        }
    }

    /// Starts a node again that is dead or has been expelled, once the others have gone on without it.
    pub fn comes_back(&self, number: u8) -> bool {
        if self.setup.replicas == 1 {
            return self.starts_again(number);
        }
        let process = self.process(number);
        let is_well = process.alive.get() && !process.node.is_expelled();
        if is_well || !self.register().is_free(NodeId(number)) || !self.may_start() {
            return false;
        }
        if process.alive.get() {
            self.kill(number, Fault::Kill(NodeId(number)));
        }
        self.tell(&format!("node {number} comes back"));
        let again = self.start(number);
        self.processes.borrow_mut()[usize::from(number)] = again;
        true
    }

    /// Is every node a member that knows the last configuration, with all partitions served and all mirrors whole?
    pub(super) fn is_whole(&self) -> bool {
        let processes = self.processes.borrow();
        let Some(last) = self.register().configuration() else { return false };
        processes.iter().all(|process| process.alive.get() && process.node.is_member())
            && last.members.len() == usize::from(self.setup.nodes)
            && last.mirrors.iter().all(|mirror| mirror.whole)
            && last.partitions.iter().all(|serving| matches!(serving, Serving::By(_)))
            && processes
                .iter()
                .all(|process| process.node.configuration().is_some_and(|installed| installed.number == last.number))
    }
}
