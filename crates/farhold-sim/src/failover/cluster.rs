//! The safety phase: clients run, and faults happen.

use super::bank::{Ledger, Teller};
use super::blocking;
use super::changing::{self, Changer, Kept};
use super::disk::{Disks, ProcessDisk};
use super::numbers::{self, Given, Taker};
use super::plan::{Blow, Cut, Failover, Load, Starts, Way};
use super::shop::{self, Books, Terminal};
use super::{Aftermath, KillAt};
use crate::hiccups::Hiccups;
use crate::register::SimRegister;
use crate::workload::{Attempting, Client, Ended, Persistent, Recorder, Tables, run_through};
use farhold_bench::random::Random;
use farhold_bench::workload::smallbank;
use farhold_fabric::provider::sim::{Fault, Hop, Sim};
use farhold_fabric::{Handle, JoinHandle, NodeId};
use farhold_txn::{
    Generation, JournalConfig, JournalTurns, Node, NodeConfig, ReplicationConfig, Statistics, TxnError, Worker,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

pub(super) const LEASE_NS: u64 = 1_000_000;
pub(super) const SERVE_NS: u64 = 1_000_000;
/// How long a client may take for all that it does.
pub(super) const RUN_NS_MAX: u64 = 300_000_000;
/// How long the cluster may take to be whole after everything has healed.
pub(super) const HEALING_NS_MAX: u64 = 60_000_000;
/// How long until all are members again after a restart: a node may have to take over all rows of a shop first.
const RESTART_NS_MAX: u64 = 300_000_000;
/// How long a cut of the power waits for a change of the configuration.
const CHANGE_NS_MAX: u64 = 4_000_000;
/// How long a session of a host that is cut off may wait for anything: requests without an answer, and the outcome of a
/// commit.
const ANSWER_NS_MAX: u64 = 40_000_000;
/// How long the others may go on with a host that is cut off: requests without an answer, some leases, and a change of
/// the configuration.
const EXPELLED_NS_MAX: u64 = 40_000_000;
/// Between two looks at whether something has come true.
const LOOK_NS: u64 = 20_000;

/// A node's process: its tasks look at `alive`.
#[derive(Clone)]
pub(super) struct Process {
    pub node: Arc<Node>,
    pub worker: Worker,
    pub alive: Rc<Cell<bool>>,
    /// Tasks that have not ended and may write into the node's memory: its clients and the one that serves.
    pub busy: Rc<Cell<usize>>,
    disk: Option<Arc<ProcessDisk>>,
}

/// A running client, and its node.
pub(super) struct Running {
    number: usize,
    process: Process,
    attempting: Attempting,
    task: JoinHandle<Ended>,
}

/// How a client is started.
struct Spawn<'p> {
    machine: Handle,
    process: &'p Process,
    transactions: usize,
    attempting: &'p Attempting,
}

impl Spawn<'_> {
    fn client(self, client: impl Persistent + 'static) -> JoinHandle<Ended> {
        let (alive, busy) = (self.process.alive.clone(), self.process.busy.clone());
        let running = run_through(client, self.transactions, alive, self.attempting.clone());
        busy.set(busy.get() + 1);
        self.machine.spawn(async move {
            let ended = running.await;
            busy.set(busy.get() - 1);
            ended
        })
    }
}

pub(super) struct Cluster {
    pub setup: Failover,
    /// The fabric of this generation of the cluster.
    sim: RefCell<Sim>,
    pub handle: Handle,
    register: RefCell<SimRegister>,
    disks: RefCell<Disks>,
    /// Of the fabrics of earlier generations.
    past_trace: Cell<u64>,
    pub processes: RefCell<Vec<Process>>,
    /// Those that have ended where rows have one copy: what they would give back at their end is in the memory of their nodes' next starts.
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
    pub steps: Cell<u64>,
}

/// Runs a setup to its end.
#[must_use]
pub fn run(setup: &Failover) -> Aftermath {
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
        steps: Cell::new(0),
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
    let by_clients = [seen, ledger.broken, books.broken, given.broken, kept.broken];
    broken.extend(by_clients.into_iter().flatten());
    let (story, steps) = (cluster.story.take(), cluster.steps.get());
    let audited_commits = ledger.commits + books.commits + given.blocks + kept.commits;
    Aftermath { trace_hash, history, audited_commits, statistics, broken, story, configuration, steps }
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
    fn machine(&self, node: u8) -> Handle {
        self.handle.of_machine(node, self.setup.drift_ppm.get(usize::from(node)).copied().unwrap_or(0))
    }

    /// Starts a node: what its process does for ever.
    pub fn start(&self, number: u8) -> Process {
        self.try_start(number).expect("a start")
    }

    /// The same after a cut of the power: its files may be such that it cannot.
    fn try_start(&self, number: u8) -> Result<Process, TxnError> {
        let disk = self.setup.power.as_ref().map(|_| self.disks.borrow().of_process());
        let fabric = self.sim().join(NodeId(number)).expect("a node that does not run");
        let replication = ReplicationConfig {
            replicas: self.setup.replicas,
            optimistic: self.setup.optimistic,
            rings: 3,
            ring_bytes: self.setup.ring_bytes,
            lease_ns: LEASE_NS,
            clock_skew_ns_max: LEASE_NS / 10,
        };
        let journal = disk.as_ref().zip(self.setup.power.as_ref()).map(|(disk, power)| JournalConfig {
            segment_bytes: power.segment_bytes,
            checkpoint_bytes: 2 * power.segment_bytes,
            step_ns: power.step_ns,
            threads: 1,
            ..JournalConfig::new(disk.clone())
        });
        let begin = |journal| Generation::begin(journal, NodeId(number), self.setup.nodes, &replication);
        let generation = journal.as_ref().map(begin).transpose()?;
        let config = NodeConfig {
            nodes: self.setup.nodes,
            region_bytes: self.setup.region_bytes,
            populate_bytes: 0,
            request_timeout_ns: 2_000_000,
            replication,
            journal,
            // They abort when they like: a seed would not replay.
            hardware_transactions: false,
            forgets_half_written: false,
        };
        let node = match generation {
            Some(generation) => Node::open_durable(fabric, config, generation),
            None => Node::open(fabric, config),
        };
        let node = node?;
        let machine = self.machine(number);
        let worker = node.worker(&machine).expect("a worker");
        let alive = Rc::new(Cell::new(true));
        // As a home agent, it serves, and looks after the membership.
        let server = node.worker(&machine).expect("a worker");
        let busy = Rc::new(Cell::new(1));
        let (member, serving, is_busy) = (server.clone(), alive.clone(), busy.clone());
        drop(machine.spawn(async move {
            let _ = server.join_cluster().await;
            while serving.get() {
                server.serve(SERVE_NS, 64).await;
            }
            is_busy.set(is_busy.get() - 1);
        }));
        if self.setup.replicas > 1 {
            let register = Rc::new(self.register().of(NodeId(number), &machine, &alive));
            drop(machine.spawn(async move {
                let _ = member.keep_membership(register).await;
            }));
        }
        if disk.is_some() {
            let keeper = node.worker(&machine).expect("a worker");
            if self.setup.power.as_ref().is_some_and(|power| power.delays.is_some()) {
                let clock = machine.clone();
                drop(machine.spawn(async move {
                    let take = async |mut turns: JournalTurns| {
                        let work = move || {
                            turns.take();
                            turns
                        };
                        blocking::run(&clock, work).await
                    };
                    keeper.keep_journal_by(take).await;
                }));
            } else {
                drop(machine.spawn(async move { keeper.keep_journal().await }));
            }
        }
        Ok(Process { node, worker, alive, busy, disk })
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

    async fn drive(self: Rc<Self>, broken: &mut Vec<String>) -> Statistics {
        self.register().slow(self.setup.founding_slow_ns);
        let started = (0..self.setup.nodes).map(|node| self.start(node)).collect();
        self.processes.replace(started);
        // The tables are made and filled as soon as one node may: the others hear later that the cluster is founded.
        let (first_in, all_in) = (
            || self.process(0).node.is_member(),
            || self.processes.borrow().iter().all(|process| process.node.is_member()),
        );
        if self.setup.replicas == 1 {
            // Journals have to hear of each other before the first commit.
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

    async fn load(&self) -> Result<(), TxnError> {
        let first = self.process(0).worker;
        match &self.setup.load {
            Load::Mixed(workload) => Tables::create(&first, workload, &self.recorder).await.map(drop),
            Load::Bank(scale) => {
                let tables = smallbank::Tables::create(&first).await?;
                for node in 0..scale.nodes {
                    tables.load(&first, *scale, node, 0..scale.accounts).await?;
                }
                Ok(())
            }
            Load::Numbers => numbers::create(&first).await,
            Load::Tables => changing::create(&first).await,
            Load::Shop => shop::load(&first).await,
        }
    }

    /// Starts a client of a node.
    pub fn client(&self, number: usize, node: u8, transactions: usize) -> Running {
        let process = self.process(node);
        let attempting = Attempting::default();
        let spawn = Spawn { machine: self.machine(node), process: &process, transactions, attempting: &attempting };
        let cut_short = self.setup.cut_short();
        let task = match &self.setup.load {
            Load::Mixed(workload) => {
                let client = Client::new(number, &process.worker, workload, self.recorder.clone());
                let is_script = self.setup.kill_at.is_some() && number == 0;
                let client = if is_script { client.scripted() } else { client };
                spawn.client(client.with_cut_short(cut_short))
            }
            Load::Bank(scale) => {
                let teller = Teller::new(number, node, &process.worker, *scale, self.ledger.clone());
                spawn.client(teller.with_cut_short(cut_short))
            }
            Load::Numbers => {
                let taker = Taker::new(number, node, &process.worker, self.given.clone());
                spawn.client(taker)
            }
            Load::Tables => {
                let taker = Taker::new(number, node, &process.worker, self.given.clone());
                let changer = Changer::new(number, &process.worker, taker, self.kept.clone());
                spawn.client(changer)
            }
            Load::Shop => {
                let terminal = Terminal::new(number, NodeId(node), &process.worker, self.books.clone());
                spawn.client(terminal)
            }
        };
        Running { number, process, attempting, task }
    }

    /// Those of all nodes.
    fn clients(&self) -> Vec<Running> {
        let of_node = |node: u8| match self.setup.idle {
            Some((idle, transactions)) if idle == node => transactions,
            _ => self.setup.transactions,
        };
        let nodes = usize::from(self.setup.nodes);
        let node_of = |number: usize| (number % nodes) as u8;
        (0..nodes * self.setup.clients)
            .filter(|number| self.process(node_of(*number)).alive.get())
            .map(|number| self.client(number, node_of(number), of_node(node_of(number))))
            .collect()
    }

    /// How a client has ended, if it has within the time.
    pub async fn end_of(&self, client: &Running) -> Ended {
        let mut ended = None;
        let is_dead = || !client.process.alive.get();
        self.until(RUN_NS_MAX, || {
            ended = ended.take().or_else(|| client.task.try_take());
            ended.is_some()
        })
        .await;
        match ended {
            Some(ended) => ended,
            // It waits for answers, and a dead node gets none.
            None if is_dead() => Ended::Gone,
            None => Ended::Stuck(format!("client {} waits for ever", client.number)),
        }
    }

    /// All clients, and all faults.
    async fn everybody(self: &Rc<Self>, broken: &mut Vec<String>) {
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

    /// Sees to it that every session of a host that is cut off for ever hears something in time; then the host is replaced.
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
        for other in (0..self.setup.nodes).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                self.sim().inject(Fault::Heal(Hop { from: NodeId(from), to: NodeId(to) }));
            }
        }
        self.register().cut(NodeId(node), false);
    }

    /// One transaction, and a death at a step of it.
    async fn one_transaction(self: &Rc<Self>, kill_at: KillAt, broken: &mut Vec<String>) {
        let before = self.sim().events();
        if let Some(victim) = kill_at.victim {
            let node = NodeId(victim);
            let fault = if kill_at.crash { Fault::Crash(node) } else { Fault::Kill(node) };
            self.sim().inject_after(kill_at.step, fault);
        }
        let client = self.client(0, kill_at.coordinator, 1);
        let mut ended = None;
        // The death comes at an event; here it is noticed in the next moment, and its process does nothing any more.
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

    fn strike(self: &Rc<Self>, blow: Blow) {
        self.tell(&format!("{blow:?}"));
        let later = |for_ns: u64, what: Box<dyn FnOnce(&Self)>| {
            let this = self.clone();
            drop(self.handle.spawn(async move {
                this.handle.sleep_ns(for_ns).await;
                what(&this);
            }));
        };
        let hop = |from: u8, to: u8| Hop { from: NodeId(from), to: NodeId(to) };
        match blow {
            Blow::Kill(node) => self.kill(node, Fault::Kill(NodeId(node))),
            Blow::Crash(node) => self.kill(node, Fault::Crash(NodeId(node))),
            Blow::Pause(node, for_ns) => self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns)),
            Blow::Stop(node, for_ns) => {
                self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns));
                self.machine(node).stand_clock_ns(for_ns);
            }
            Blow::SetDay(node, by_ns) => self.machine(node).jump_wall_ns(by_ns),
            Blow::Cut(from, to, both, for_ns) => {
                let hops = if both { vec![hop(from, to), hop(to, from)] } else { vec![hop(from, to)] };
                for hop in &hops {
                    self.sim().inject(Fault::Cut(*hop));
                }
                later(
                    for_ns,
                    Box::new(move |this| {
                        for hop in &hops {
                            this.sim().inject(Fault::Heal(*hop));
                        }
                        this.tell(&format!("{from} and {to} are together again"));
                    }),
                );
            }
            Blow::Slow(from, to, delay_ns, for_ns) => {
                self.sim().inject(Fault::Delay(hop(from, to), delay_ns));
                later(for_ns, Box::new(move |this| this.sim().inject(Fault::Heal(hop(from, to)))));
            }
            Blow::Disorder(percent, for_ns) => {
                self.sim().inject(Fault::Jitter(percent));
                later(for_ns, Box::new(move |this| this.sim().inject(Fault::Jitter(0))));
            }
            Blow::SlowRegister(slow_ns_max, for_ns) => {
                self.register().slow(slow_ns_max);
                later(for_ns, Box::new(|this| this.register().slow(0)));
            }
            Blow::SlowFence(fence_ns) => self.sim().inject(Fault::SlowFence(fence_ns)),
            Blow::Late(percent) => self.sim().inject(Fault::Late(percent)),
            Blow::Lose(node, way) | Blow::Isolate(node, way) => {
                self.register().cut(NodeId(node), matches!(blow, Blow::Lose(..)));
                for other in (0..self.setup.nodes).filter(|other| *other != node) {
                    let hops = [(Way::Out, hop(node, other)), (Way::In, hop(other, node))];
                    for (_, hop) in hops.into_iter().filter(|(it, _)| way == Way::Both || way == *it) {
                        self.sim().inject(Fault::Cut(hop));
                    }
                }
            }
            Blow::FailDisk(node) => {
                if let Some(disk) = &self.process(node).disk {
                    disk.fail();
                }
            }
            Blow::FillDisks(for_ns) => {
                let disks = self.disks.borrow().clone();
                disks.fill(true);
                later(for_ns, Box::new(move |_| disks.fill(false)));
            }
            Blow::NoRegister(node, for_ns) => {
                self.register().cut(NodeId(node), true);
                later(for_ns, Box::new(move |this| this.register().cut(NodeId(node), false)));
            }
        }
    }

    /// Runs clients until the power of all nodes is cut, with some faults before; then all nodes start again.
    async fn life(self: &Rc<Self>, cut: &Cut, broken: &mut Vec<String>) {
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
        self.tell(&format!("the power of all nodes is cut; journals are on {}", self.disks.borrow().name()));
        for node in 0..self.setup.nodes {
            self.kill(node, Fault::Kill(NodeId(node)));
        }
        let after = self.disks.borrow().cut(&mut || random.below(u64::MAX));
        // Clients hear that they will never know.
        for client in clients {
            self.until(SERVE_NS, || client.task.try_take().is_some()).await;
        }
        self.past_trace.set(self.past_trace.get().rotate_left(1) ^ self.sim().trace_hash());
        self.disks.replace(after);
        self.sim.replace(Hiccups::network(self.setup.hiccups, &self.handle));
        self.register.replace(SimRegister::new(self.setup.nodes, &self.handle));
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
        // filled its region went with the power.
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
        // The node that is away belongs to them, or one ended when it had founded: as the guide says, all are ended and started again.
        self.tell("all are ended, and start again");
        for node in 0..nodes {
            self.kill(node, Fault::Kill(NodeId(node)));
        }
        self.past_trace.set(self.past_trace.get().rotate_left(1) ^ self.sim().trace_hash());
        self.sim.replace(Hiccups::network(self.setup.hiccups, &self.handle));
        self.register.replace(SimRegister::new(nodes, &self.handle));
        Box::pin(self.start_all(&Starts::default())).await
    }

    /// Has a process that starts room for its files, and need not wait for the turn of another?
    pub fn may_start(&self) -> bool {
        let disks = self.disks.borrow();
        !disks.is_full() && !disks.has_turn()
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

    pub fn kill(&self, node: u8, how: Fault) {
        self.process(node).alive.set(false);
        if let Some(disk) = &self.process(node).disk {
            disk.end();
        }
        self.sim().inject(how);
        self.note_death(node, how);
    }
}
