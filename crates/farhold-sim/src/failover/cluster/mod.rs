//! A cluster from its founding to its end: its nodes, their known states, and the phases of a run.
//!
//! ```text
//!   start.rs ─► clients.rs ─► power.rs ──────────────► safety.rs ─────────► ../heal.rs ─► ../look.rs
//!   nodes       tables        lives, each of which a   clients run, and     (or ../one_copy.rs)
//!                             cut of the power ends    faults happen
//!                                     └── strike.rs: a fault ──┘
//! ```

mod clients;
mod columns;
mod power;
mod safety;
mod start;
mod strike;

use super::Aftermath;
use super::bank::Ledger;
use super::blocking::Aside;
use super::changing::Kept;
use super::columns::Looks;
use super::disk::{Disks, ProcessDisk};
use super::numbers::Given;
use super::plan::{Blow, Failover};
use super::shop::Books;
use crate::hiccups::Hiccups;
use crate::register::SimRegister;
use crate::workload::Recorder;
use clients::Running;
use farhold_fabric::provider::sim::Sim;
use farhold_fabric::{Handle, NodeId};
use farhold_txn::{Node, Statistics, Worker};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(super) const LEASE_NS: u64 = 1_000_000;
pub(super) const SERVE_NS: u64 = 1_000_000;
/// The time that a client may take for all of its transactions.
const RUN_NS_MAX: u64 = 300_000_000;
/// The time within which the cluster must be whole after everything has healed.
pub(super) const HEALING_NS_MAX: u64 = 60_000_000;
/// The interval at which conditions are checked.
const LOOK_NS: u64 = 20_000;

/// A node's process; its tasks check `alive`.
#[derive(Clone)]
pub(super) struct Process {
    pub node: Arc<Node>,
    pub worker: Worker,
    pub alive: Rc<Cell<bool>>,
    /// Its clients that read columns and have not ended.
    lookers: Rc<Cell<u32>>,
    disk: Option<Arc<ProcessDisk>>,
}

pub(super) struct Cluster {
    pub setup: Failover,
    /// The fabric of this generation of the cluster.
    sim: RefCell<Sim>,
    pub handle: Handle,
    register: RefCell<SimRegister>,
    disks: RefCell<Disks>,
    /// The traces of the fabrics of earlier generations.
    past_trace: Cell<u64>,
    pub processes: RefCell<Vec<Process>>,
    /// Ended processes, if rows have one copy. They are kept, because they would release memory that their nodes' next starts use.
    pub gone: RefCell<Vec<Process>>,
    /// When each node may start again, where rows have one copy.
    pub may_start_ns: RefCell<Vec<u64>>,
    /// Clients of such starts.
    pub later: RefCell<Vec<Running>>,
    pub story: RefCell<Vec<String>>,
    /// The node that each node waited for when it was last looked at.
    waiting: RefCell<Vec<Option<NodeId>>>,
    pub recorder: Rc<RefCell<Recorder>>,
    pub ledger: Rc<RefCell<Ledger>>,
    pub given: Rc<RefCell<Given>>,
    pub kept: Rc<RefCell<Kept>>,
    pub books: Rc<RefCell<Books>>,
    pub looks: Rc<Looks>,
    pub steps: Cell<u64>,
    /// The lasting faults, each with the number under which it was begun.
    lasting: RefCell<Vec<(u64, Blow)>>,
    blows_begun: Cell<u64>,
}

/// Runs a setup to its end.
#[must_use]
pub fn run(setup: &Failover) -> Aftermath {
    let _aside = setup.columns.map(|_| Aside::begin(setup.seed));
    let executor = Hiccups::executor(setup.hiccups, setup.seed);
    let handle = executor.handle();
    let cluster = Rc::new(Cluster {
        setup: setup.clone(),
        sim: RefCell::new(Hiccups::network(setup.hiccups, &handle)),
        register: RefCell::new(SimRegister::new(setup.nodes, &handle)),
        disks: RefCell::new(Disks::of(setup.power.as_ref(), setup.seed)),
        past_trace: Cell::new(0),
        handle,
        processes: RefCell::default(),
        gone: RefCell::default(),
        may_start_ns: RefCell::new(vec![0; usize::from(setup.nodes)]),
        later: RefCell::default(),
        story: RefCell::default(),
        waiting: RefCell::default(),
        recorder: Rc::default(),
        ledger: Rc::default(),
        given: Rc::default(),
        kept: Rc::default(),
        books: Rc::default(),
        looks: Rc::default(),
        steps: Cell::new(0),
        lasting: RefCell::default(),
        blows_begun: Cell::new(0),
    });
    let mut broken = Vec::new();
    let statistics = executor.run(cluster.clone().drive(&mut broken));
    let trace_hash = cluster.past_trace.get() ^ cluster.sim().trace_hash();
    let configuration = cluster.register().configuration().map_or(0, |found| found.number);
    drop(executor);
    let mut recorder = cluster.recorder.take();
    recorder.settle_cut_short(|key| cluster.home_of(key));
    let Recorder { history, broken: seen, .. } = recorder;
    let (ledger, books, given) = (cluster.ledger.take(), cluster.books.take(), cluster.given.take());
    let kept = cluster.kept.take();
    let history = history.without(&cluster.damaged_keys());
    let (compared, looked) = (cluster.looks.compared.take(), cluster.looks.broken.take());
    let by_clients = [seen, ledger.broken, books.broken, given.broken, kept.broken, looked];
    broken.extend(by_clients.into_iter().flatten());
    let (story, steps) = (cluster.story.take(), cluster.steps.get());
    let audited_commits = ledger.commits + books.commits + given.blocks + kept.commits;
    Aftermath { trace_hash, history, audited_commits, statistics, broken, story, configuration, steps, compared }
}

impl Cluster {
    pub fn sim(&self) -> Sim {
        self.sim.borrow().clone()
    }

    pub fn register(&self) -> SimRegister {
        self.register.borrow().clone()
    }

    pub fn tell(&self, what: &str) {
        let line = |at_ns: u64, what: &str| format!("{:>9} µs  {what}", at_ns / 1_000);
        let written = self.register().take_story();
        let mut story = self.story.borrow_mut();
        story.extend(written.into_iter().map(|(at_ns, what)| line(at_ns, &what)));
        story.push(line(self.handle.now_ns(), what));
    }

    pub fn process(&self, node: u8) -> Process {
        self.processes.borrow()[usize::from(node)].clone()
    }

    /// The tasks of a node's machine, with its clock.
    pub fn machine(&self, node: u8) -> Handle {
        self.handle.of_machine(node, self.setup.drift_ppm.get(usize::from(node)).copied().unwrap_or(0))
    }

    pub async fn until(&self, limit_ns: u64, mut is_so: impl FnMut() -> bool) -> bool {
        let until_ns = self.handle.now_ns() + limit_ns;
        while !is_so() {
            if self.handle.now_ns() > until_ns {
                return false;
            }
            self.handle.sleep_ns(LOOK_NS).await;
            self.tell_who_waits();
        }
        true
    }

    fn tell_who_waits(&self) {
        let now: Vec<_> = self.processes.borrow().iter().map(|process| process.node.progress().waiting).collect();
        let before = self.waiting.replace(now.clone());
        for (node, (before, now)) in before.iter().zip(&now).enumerate().filter(|(_, (before, now))| before != now) {
            match (before, now) {
                (_, Some(it)) => {
                    self.tell(&format!("{} waits for {it}, which alone has some rows", NodeId(node as u8)));
                }
                (Some(it), None) => self.tell(&format!("{} has heard of {it} again", NodeId(node as u8))),
                (None, None) => {}
            }
        }
    }

    /// Lets time pass.
    async fn live_until(self: &Rc<Self>, with_returns: bool, until_ns: u64) {
        while self.handle.now_ns() < until_ns {
            for node in (0..self.setup.nodes).filter(|_| with_returns) {
                self.comes_back(node);
            }
            self.handle.sleep_ns(LOOK_NS.min(until_ns - self.handle.now_ns())).await;
        }
    }

    async fn drive(self: Rc<Self>, broken: &mut Vec<String>) -> Statistics {
        self.register().slow(self.setup.founding_slow_ns);
        let started = (0..self.setup.nodes).map(|node| self.start(node)).collect();
        self.processes.replace(started);
        // The tables are made and filled as soon as one node may do so: the others learn later that the cluster is founded.
        let (first_in, all_in) = (
            || self.process(0).node.is_member(),
            || self.processes.borrow().iter().all(|process| process.node.is_member()),
        );
        if self.setup.replicas == 1 {
            // Journals must know each other before the first commit.
            self.handle.sleep_ns(SERVE_NS).await;
        }
        if !self.until(HEALING_NS_MAX, first_in).await {
            broken.push("the cluster was never founded".into());
            return Statistics::default();
        }
        self.load().await.expect("the tables");
        if !self.until(HEALING_NS_MAX, all_in).await {
            broken.push("some node never heard that the cluster was founded".into());
            return Statistics::default();
        }
        self.register().slow(0);
        self.disks.borrow().slow();
        self.looks.has_begun.set(true);
        self.tell("clients begin");
        if let Some(kill_at) = self.setup.kill_at {
            self.one_transaction(kill_at, broken).await;
        } else if let Some(power) = &self.setup.power {
            for cut in &power.cuts {
                self.life(cut, broken).await;
                if !broken.is_empty() {
                    return Statistics::default();
                }
            }
        }
        if self.setup.columns.is_some() && self.setup.replicas > 1 {
            // After a restart mirrors are filled anew, and until they are whole each death may lose rows.
            self.until(HEALING_NS_MAX, || self.is_whole()).await;
        }
        if self.setup.kill_at.is_none() && (self.setup.power.is_none() || !self.setup.blows.is_empty()) {
            self.everybody(broken).await;
        }
        if self.setup.replicas == 1 {
            self.heal_one_copy(broken).await;
        } else {
            self.heal(broken).await;
        }
        self.look(broken).await;
        for process in self.processes.borrow().iter() {
            process.alive.set(false);
        }
        self.processes.borrow().iter().fold(Statistics::default(), |sum, process| sum + process.node.statistics())
    }
}
