//! Runs in which rows have one copy: a node that dies starts again with the rows in its memory, and until then the others go on without its rows.
//!
//! The guarantees are weaker than with copies (0017, 0018, 0005). A commit that misses a node past its commit point
//! reports that, and its rows there are written in the end. If its coordinator or that node ends first, its rows there
//! may be as they were ([`CutShort`]): all of them if it was the coordinator. Rows that a coordinator was writing as it
//! ended, or as their node did, are reported as damaged: a transaction that reads one must get that error.

use super::cluster::{Cluster, HEALING_NS_MAX, LEASE_NS};
use super::plan::{Blow, Failover};
use crate::history::Key;
use crate::workload::{CutShort, Row, SPREAD};
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::Fault;
use farhold_txn::{Node, Retry, TxnError};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Transactions of each client of a start.
const TRANSACTIONS_LATER: usize = 20;
/// How long what a machine has posted lingers in the network when it dies: a node whose rows have no copies is never
/// fenced.
const LINGERS_NS: u64 = 4_000_000;
/// Reads of a reported row: a node may not know yet that another one has started again.
const LOOKS_MAX: u32 = 10;
/// Interval at which dead nodes are checked.
const LOOK_NS: u64 = 20_000;

impl Failover {
    /// The outcome of commits that miss a node.
    pub(super) fn cut_short(&self) -> CutShort {
        let kills = |(_, blow): &(u64, Blow)| matches!(blow, Blow::Kill(_) | Blow::Crash(_));
        match &self.power {
            Some(_) => CutShort::InDoubt,
            None if self.blows.iter().any(kills) => CutShort::Half,
            None => CutShort::Late,
        }
    }
}

impl Cluster {
    /// A process has ended.
    pub fn note_death(&self, node: u8, how: Fault) {
        if self.setup.replicas > 1 {
            return;
        }
        let mut recorder = self.recorder.borrow_mut();
        let now = recorder.now();
        recorder.deaths.push((NodeId(node), now));
        let at_least_ns = if matches!(how, Fault::Crash(_)) { LINGERS_NS } else { 0 };
        let later_ns = self.handle.random_u64() % [50_000, 5_000_000][(self.handle.random_u64() % 2) as usize];
        // What it had posted when it died first may linger yet.
        let may_start_ns = &mut self.may_start_ns.borrow_mut()[usize::from(node)];
        *may_start_ns = (*may_start_ns).max(self.handle.now_ns() + at_least_ns + later_ns);
    }

    /// Starts nodes that have died, from time to time, until `is_over`.
    pub fn start_the_dead_again(self: &Rc<Self>, is_over: Rc<Cell<bool>>) {
        let this = self.clone();
        drop(self.handle.spawn(async move {
            while !is_over.get() {
                for node in 0..this.setup.nodes {
                    if this.starts_again(node) {
                        let clients =
                            (0..this.setup.clients).map(|client| this.client(200 + client, node, TRANSACTIONS_LATER));
                        this.later.borrow_mut().extend(clients);
                    }
                }
                this.handle.sleep_ns(LOOK_NS).await;
            }
        }));
    }

    /// Starts a node that has died, when its time has come and its tasks have noticed that they are dead. A real
    /// process that has ended writes nothing into its memory; here its tasks go on until they notice.
    pub fn starts_again(&self, number: u8) -> bool {
        let process = self.process(number);
        let is_due = self.may_start_ns.borrow()[usize::from(number)] <= self.handle.now_ns();
        if process.alive.get() || self.machine(number).tasks() > 0 || !is_due || self.setup.power.is_some() {
            return false;
        }
        self.tell(&format!("node {number} starts again"));
        let again = self.start(number);
        let before = std::mem::replace(&mut self.processes.borrow_mut()[usize::from(number)], again);
        self.gone.borrow_mut().push(before);
        true
    }

    /// Where a row is.
    pub fn home_of(&self, key: Key) -> NodeId {
        let spread = self.process(0).node.table("spread").expect("created before");
        spread.home_of(&Row::key(key.key as u32))
    }

    fn may_be_damaged(&self) -> bool {
        self.setup.replicas == 1 && self.setup.cut_short() == CutShort::Half
    }

    /// Whether there are rows that a coordinator was writing as it ended. A machine that crashes may lose the version that it has posted, but not the release
    /// of the lock beside it: such a row is unreadable too, but is not reported.
    pub fn is_damaged(&self) -> bool {
        let is_damaged = |node: &Node| !node.recovered().damaged.is_empty() || !node.half_written().is_empty();
        self.may_be_damaged() && self.processes.borrow().iter().any(|process| is_damaged(&process.node))
    }

    /// The keys of such rows; the checks skip them.
    pub fn damaged_keys(&self) -> BTreeSet<Key> {
        if !self.may_be_damaged() {
            return BTreeSet::new();
        }
        let (processes, gone) = (self.processes.borrow(), self.gone.borrow());
        let reported = processes.iter().chain(gone.iter()).flat_map(|process| process.node.recovered().damaged);
        let damaged = reported.chain(processes.iter().flat_map(|process| process.node.half_written()));
        damaged.filter_map(|(_, key)| Row::key_of(&key)).map(|key| Key { table: SPREAD, key: u64::from(key) }).collect()
    }

    /// A transaction that reads a row which a living node has reported gets that error, and no advice to run again.
    /// (Where only its coordinator has died, another row may have its key by then.)
    pub async fn check_reported(&self, broken: &mut Vec<String>) {
        let worker = self.process(0).worker;
        let reported: Vec<_> =
            self.processes.borrow().iter().flat_map(|process| process.node.recovered().damaged).collect();
        for (name, key) in reported {
            let Some(table) = self.process(0).node.table(&name) else { continue };
            let mut read = Err(TxnError::Conflict);
            for attempt in 1..=LOOKS_MAX {
                read = worker.begin_read_only().get(&table, &key).await.map(drop);
                if matches!(read, Ok(()) | Err(TxnError::Corrupt { .. })) {
                    break;
                }
                worker.back_off(Retry::default(), attempt).await;
            }
            // Its key may also be that of a row which is half written and not locked.
            let count_of = |rows: &[(String, Vec<u8>)]| rows.iter().filter(|row| row.1 == key && row.0 == name).count();
            let is_also_unlocked = || {
                let count = |node: &Node| count_of(&node.half_written()) > count_of(&node.recovered().damaged);
                self.processes.borrow().iter().any(|process| count(&process.node))
            };
            if let Err(error) = read
                && error != TxnError::HALF_WRITTEN
                && !(error == TxnError::Conflict && is_also_unlocked())
            {
                broken.push(format!("a row of \"{name}\" that is reported as damaged: {error}"));
            }
        }
    }

    /// Waits until all nodes are there and the remaining work of commits is done, and until every node's client
    /// commits.
    pub async fn heal_one_copy(self: &Rc<Self>, broken: &mut Vec<String>) {
        let are_there = || {
            for number in 0..self.setup.nodes {
                self.starts_again(number);
            }
            self.processes.borrow().iter().all(|process| process.alive.get())
        };
        if !self.until(HEALING_NS_MAX, are_there).await {
            broken.push("a node does not start again".into());
            return;
        }
        self.handle.sleep_ns(2 * LEASE_NS).await;
        let processes = self.processes.borrow().clone();
        for process in processes {
            if !process.worker.drain(HEALING_NS_MAX).await {
                broken.push(format!("what commits of {} have left is not done", process.node.id()));
            }
        }
        if self.is_damaged() {
            return;
        }
        self.commit_after_all(broken).await;
    }
}
