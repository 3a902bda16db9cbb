//! A replicated cluster whose nodes die, pause, are cut off and come back, while clients run; and what must be true of it.
//!
//! After the faults everything heals. Then there has to be progress: killed nodes come back, every mirror becomes whole, every
//! client commits again. What was acknowledged has to be there, all histories serializable, nothing locked, odd or half
//! written, and each mirror like its node.

use crate::history::History;
use crate::register::SimRegister;
use crate::workload::{Client, Ended, Recorder, Tables, Workload};
use farhold_fabric::provider::sim::{Fault, Faults, Hop, Rdma, Sim};
use farhold_fabric::{Executor, Handle, NodeId};
use farhold_txn::{Node, NodeConfig, ReplicationConfig, Serving, Statistics, Worker};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// One thing that happens to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The node's process dies; it comes back when the others have gone on without it.
    Kill(u8),
    /// The node stands still for so long.
    Pause(u8, u64),
    /// Two nodes cannot reach each other, in one direction or in both, for so long.
    Cut(u8, u8, bool, u64),
    /// Everything from one node to another takes so much longer, for so long.
    Slow(u8, u8, u64, u64),
    /// The node cannot reach the register for so long.
    NoRegister(u8, u64),
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Failover {
    /// Decides every time, every order and every choice.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u8,
    /// Copies of each row.
    pub replicas: u8,
    /// Whether rows are visible before they are replicated.
    pub optimistic: bool,
    /// Clients of each node.
    pub clients: usize,
    /// Transactions that each client tries.
    pub transactions: usize,
    /// What they do.
    pub workload: Workload,
    /// What happens when, after the clients have begun.
    pub blows: Vec<(u64, Blow)>,
    /// Bytes of a ring of the log.
    pub ring_bytes: u64,
}

impl Failover {
    /// Three nodes and some blows, by the seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let replicas = 2 + (seed % 2) as u8;
        let mut blows = Vec::new();
        // As many deaths, at most, as there are copies to lose; a pause may turn into one.
        let first = random.below(3) as u8;
        let at_ns = 20_000 + random.below(400_000);
        let fatal = |node: u8, random: &mut Random| match random.below(4) {
            0 | 1 => Blow::Kill(node),
            2 => Blow::Pause(node, 500_000 + random.below(6_000_000)),
            _ => Blow::NoRegister(node, 500_000 + random.below(20_000_000)),
        };
        if !seed.is_multiple_of(8) {
            blows.push((at_ns, fatal(first, &mut random)));
        }
        if replicas == 3 && seed.is_multiple_of(3) {
            let second = (first + 1 + random.below(2) as u8) % 3;
            blows.push((at_ns + random.below(8_000_000), fatal(second, &mut random)));
        }
        let (from, to) = (random.below(3) as u8, random.below(3) as u8);
        if from != to {
            let for_ns = random.below(2_000_000);
            let at_ns = random.below(1_500_000);
            blows.push((
                at_ns,
                match random.below(3) {
                    0 => Blow::Cut(from, to, false, for_ns),
                    1 => Blow::Cut(from, to, true, for_ns),
                    _ => Blow::Slow(from, to, random.below(60_000), for_ns),
                },
            ));
        }
        Self {
            seed,
            nodes: 3,
            replicas,
            optimistic: !seed.is_multiple_of(5),
            clients: 2,
            transactions: 12,
            workload: Workload::of_seed(seed),
            blows,
            ring_bytes: [96 << 10, 8 << 10, 24 << 10, 32 << 10][(seed % 4) as usize],
        }
    }
}

/// splitmix64: what decides the plan, apart from the run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Aftermath {
    /// A number that two runs share only if they were the same.
    pub trace_hash: u64,
    /// What was seen and written.
    pub history: History,
    /// Of the nodes that lived at the end, summed.
    pub statistics: Statistics,
    /// What must not be.
    pub broken: Vec<String>,
    /// What happened, in words.
    pub story: Vec<String>,
    /// The last configuration's number.
    pub configuration: u64,
}

impl Aftermath {
    /// Is everything in order?
    ///
    /// # Errors
    /// What is not, in words.
    pub fn check(&self) -> Result<(), String> {
        match self.broken.first() {
            Some(broken) => Err(broken.clone()),
            None => self.history.check_with_doubts().map_err(|anomaly| anomaly.to_string()),
        }
    }
}

const LEASE_NS: u64 = 1_000_000;
const SERVE_NS: u64 = 1_000_000;
/// How long a client may take for all that it does.
const RUN_NS_MAX: u64 = 300_000_000;
/// How long the cluster may take to be whole again after everything has healed.
const HEALING_NS_MAX: u64 = 60_000_000;

/// A node's process: its tasks look at `alive`.
#[derive(Clone)]
struct Process {
    node: Arc<Node>,
    worker: Worker,
    alive: Rc<Cell<bool>>,
}

struct Cluster {
    setup: Failover,
    sim: Sim,
    handle: Handle,
    register: SimRegister,
    processes: RefCell<Vec<Process>>,
    story: RefCell<Vec<String>>,
    recorder: Rc<RefCell<Recorder>>,
}

/// Runs a setup to its end.
#[must_use]
pub fn run(setup: &Failover) -> Aftermath {
    let executor = Executor::virtual_time(setup.seed);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let cluster = Rc::new(Cluster {
        setup: setup.clone(),
        sim: sim.clone(),
        handle,
        register: SimRegister::new(setup.nodes),
        processes: RefCell::default(),
        story: RefCell::default(),
        recorder: Rc::default(),
    });
    let mut broken = Vec::new();
    let statistics = executor.run(cluster.clone().drive(&mut broken));
    let trace_hash = sim.trace_hash();
    let configuration = cluster.register.configuration().map_or(0, |found| found.number);
    drop(executor);
    let Recorder { history, broken: seen, .. } = cluster.recorder.take();
    broken.extend(seen);
    let story = cluster.story.take();
    Aftermath { trace_hash, history, statistics, broken, story, configuration }
}

impl Cluster {
    fn tell(&self, what: &str) {
        self.story.borrow_mut().push(format!("{:>9} µs  {what}", self.handle.now_ns() / 1_000));
    }

    fn process(&self, node: u8) -> Process {
        self.processes.borrow()[usize::from(node)].clone()
    }

    /// Starts a node: what its process does for ever.
    fn start(&self, number: u8) -> Process {
        let fabric = self.sim.join(NodeId(number)).expect("a node that does not run");
        let replication = ReplicationConfig {
            replicas: self.setup.replicas,
            optimistic: self.setup.optimistic,
            rings: 4,
            ring_bytes: self.setup.ring_bytes,
            lease_ns: LEASE_NS,
            clock_skew_ns_max: LEASE_NS / 10,
        };
        let config = NodeConfig {
            nodes: self.setup.nodes,
            region_bytes: 4 << 20,
            request_timeout_ns: 2_000_000,
            replication,
            ..NodeConfig::default()
        };
        let node = Node::open(fabric, config).expect("a fresh region");
        let worker = node.worker(&self.handle).expect("a worker");
        let alive = Rc::new(Cell::new(true));
        let server = node.worker(&self.handle).expect("a worker");
        let serving = alive.clone();
        drop(self.handle.spawn(async move {
            while serving.get() {
                server.serve(SERVE_NS, 64).await;
            }
        }));
        let register = Rc::new(self.register.of(NodeId(number), &self.handle, &alive));
        let member = node.worker(&self.handle).expect("a worker");
        drop(self.handle.spawn(async move {
            let _ = member.keep_membership(register).await;
        }));
        Process { node, worker, alive }
    }

    async fn until(&self, limit_ns: u64, mut is_so: impl FnMut() -> bool) -> bool {
        let until_ns = self.handle.now_ns() + limit_ns;
        while !is_so() {
            if self.handle.now_ns() > until_ns {
                return false;
            }
            self.handle.sleep_ns(50_000).await;
        }
        true
    }

    async fn drive(self: Rc<Self>, broken: &mut Vec<String>) -> Statistics {
        let started = (0..self.setup.nodes).map(|node| self.start(node)).collect();
        self.processes.replace(started);
        // The tables are made and filled as soon as one node may: the others hear later that the cluster is founded.
        let (first_in, all_in) = (
            || self.process(0).node.is_member(),
            || self.processes.borrow().iter().all(|process| process.node.is_member()),
        );
        if !self.until(HEALING_NS_MAX, first_in).await {
            broken.push("the cluster was never founded".into());
            return Statistics::default();
        }
        let first = self.process(0).worker;
        Tables::create(&first, &self.setup.workload, &self.recorder).await.expect("the tables");
        if !self.until(HEALING_NS_MAX, all_in).await {
            broken.push("some node never heard that the cluster was founded".into());
            return Statistics::default();
        }
        self.tell("clients begin");
        let begun_ns = self.handle.now_ns();
        let clients: Vec<_> = (0..usize::from(self.setup.nodes) * self.setup.clients)
            .map(|number| {
                let process = self.process((number % usize::from(self.setup.nodes)) as u8);
                let client = Client::new(number, &process.worker, &self.setup.workload, self.recorder.clone());
                self.handle.spawn(client.run_through(self.setup.transactions, process.alive))
            })
            .collect();
        let mut blows = self.setup.blows.clone();
        blows.sort_by_key(|(at_ns, _)| *at_ns);
        for (at_ns, blow) in blows {
            self.handle.sleep_until_ns(begun_ns + at_ns).await;
            self.strike(blow);
        }
        for (number, client) in clients.into_iter().enumerate() {
            let mut ended = None;
            self.until(RUN_NS_MAX, || {
                ended = ended.take().or_else(|| client.try_take());
                ended.is_some()
            })
            .await;
            match ended.unwrap_or_else(|| Ended::Stuck("it waits for ever".into())) {
                Ended::Done => {}
                Ended::Stuck(what) => broken.push(format!("client {number} does not get on: {what}")),
                Ended::Gone => self.tell(&format!("client {number} went with its node")),
            }
        }
        self.heal(broken).await;
        self.look(broken).await;
        for process in self.processes.borrow().iter() {
            process.alive.set(false);
        }
        self.processes.borrow().iter().fold(Statistics::default(), |sum, process| sum + process.node.statistics())
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
            Blow::Kill(node) => self.kill(node),
            Blow::Pause(node, for_ns) => self.sim.inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns)),
            Blow::Cut(from, to, both, for_ns) => {
                let hops = if both { vec![hop(from, to), hop(to, from)] } else { vec![hop(from, to)] };
                for hop in &hops {
                    self.sim.inject(Fault::Cut(*hop));
                }
                later(
                    for_ns,
                    Box::new(move |this| {
                        for hop in &hops {
                            this.sim.inject(Fault::Heal(*hop));
                        }
                        this.tell(&format!("{from} and {to} are together again"));
                    }),
                );
            }
            Blow::Slow(from, to, delay_ns, for_ns) => {
                self.sim.inject(Fault::Delay(hop(from, to), delay_ns));
                later(for_ns, Box::new(move |this| this.sim.inject(Fault::Heal(hop(from, to)))));
            }
            Blow::NoRegister(node, for_ns) => {
                self.register.cut(NodeId(node), true);
                later(for_ns, Box::new(move |this| this.register.cut(NodeId(node), false)));
            }
        }
    }

    fn kill(&self, node: u8) {
        self.process(node).alive.set(false);
        self.sim.inject(Fault::Kill(NodeId(node)));
    }

    /// Everything comes back, and then all must be well within a time.
    async fn heal(self: &Rc<Self>, broken: &mut Vec<String>) {
        // What lasts for a time ends by itself.
        self.handle.sleep_ns(22_000_000).await;
        let mut back = Vec::new();
        for number in 0..self.setup.nodes {
            let process = self.process(number);
            let is_gone = || self.register.is_free(NodeId(number));
            if process.alive.get() && !process.node.is_expelled() {
                continue;
            }
            if !self.until(HEALING_NS_MAX, is_gone).await {
                broken.push(format!("nobody goes on without node {number}, which is dead"));
                return;
            }
            if process.alive.get() {
                self.kill(number);
            }
            self.tell(&format!("node {number} comes back"));
            let again = self.start(number);
            back.push(number);
            self.processes.borrow_mut()[usize::from(number)] = again;
        }
        let whole = || {
            let all_in = self.processes.borrow().iter().all(|process| process.node.is_member());
            all_in
                && self.register.configuration().is_some_and(|it| {
                    it.members.len() == usize::from(self.setup.nodes)
                        && it.mirrors.iter().all(|mirror| mirror.whole)
                        && it.partitions.iter().all(|serving| matches!(serving, Serving::By(_)))
                        && self.processes.borrow().iter().all(|process| {
                            process.node.configuration().is_some_and(|installed| installed.number == it.number)
                        })
                })
        };
        if !self.until(HEALING_NS_MAX, whole).await {
            broken.push(format!("not whole again: {:?}", self.register.configuration()));
            return;
        }
        self.tell(&format!("whole again; {back:?} came back"));
        let mut clients = Vec::new();
        for number in 0..self.setup.nodes {
            let process = self.process(number);
            let client =
                Client::new(100 + usize::from(number), &process.worker, &self.setup.workload, self.recorder.clone());
            clients.push(self.handle.spawn(client.run_through(3, process.alive)));
        }
        for client in clients {
            let mut ended = None;
            self.until(RUN_NS_MAX, || {
                ended = ended.take().or_else(|| client.try_take());
                ended.is_some()
            })
            .await;
            if let Ended::Stuck(what) = ended.unwrap_or_else(|| Ended::Stuck("it waits for ever".into())) {
                broken.push(format!("no progress after everything has healed: {what}"));
            }
        }
    }

    async fn look(&self, broken: &mut Vec<String>) {
        if !broken.is_empty() {
            return;
        }
        // What was told without an answer is on its way.
        self.handle.sleep_ns(2 * SERVE_NS).await;
        let worker = self.process(0).worker;
        let last = Client::new(usize::MAX, &worker, &self.setup.workload, self.recorder.clone());
        last.look_at_everything().await;
        let processes = self.processes.borrow();
        for process in processes.iter() {
            broken.extend(process.node.left_behind().into_iter().map(|left| format!("left behind: {left}")));
        }
        let Some(configuration) = self.register.configuration() else { return };
        for mirror in &configuration.mirrors {
            let (of, on) = (&processes[usize::from(mirror.of.0)].node, &processes[usize::from(mirror.on.0)].node);
            broken.extend(on.mirror_differs(of));
        }
        for process in processes.iter() {
            let same = process.node.tables().len() == processes[0].node.tables().len();
            if !same {
                broken.push(format!("{} has other tables", process.node.id()));
            }
        }
    }
}
