//! How nodes become members when answers are lost, late or slow, and what ends with a node that dies.

use farhold_fabric::provider::sim::{Fault, Faults, Hop, Rdma, Sim};
use farhold_fabric::{Executor, Handle, NodeId};
use farhold_sim::register::{RegisterOf, SimRegister};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{
    Configuration, Node, NodeConfig, Placement, Register, RegisterError, RegisterFuture, Registered, ReplicationConfig,
    Retry, Serving, TableDef,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const LEASE_NS: u64 = 1_000_000;

/// What happens to the answer to a founder's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Heard,
    Lost,
    /// The node gets no answer of the register afterwards, until the test permits it.
    Held,
}

/// A node's way to the register.
struct Way {
    register: RegisterOf,
    claim: Cell<Claim>,
    is_held: Rc<Cell<bool>>,
    handle: Handle,
}

impl Register for Way {
    fn load(&self) -> RegisterFuture<'_, Registered> {
        Box::pin(async move {
            while self.is_held.get() {
                self.handle.sleep_ns(1_000).await;
            }
            self.register.load().await
        })
    }

    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool> {
        Box::pin(async move {
            let is_set = self.register.compare_and_set(expected, next).await?;
            if !is_set || expected == 0 {
                return Ok(is_set);
            }
            match self.claim.replace(Claim::Heard) {
                Claim::Heard => {}
                Claim::Lost => return Err(RegisterError::Unavailable { reason: "the answer is lost".into() }),
                Claim::Held => self.is_held.set(true),
            }
            Ok(true)
        })
    }

    fn settle(&self, number: u64) -> RegisterFuture<'_, ()> {
        self.register.settle(number)
    }

    fn renew<'a>(&'a self, node: NodeId, misses: &'a [NodeId]) -> RegisterFuture<'a, ()> {
        self.register.renew(node, misses)
    }
}

/// A start of a node, and whether its process lives.
type Start = (Arc<Node>, Rc<Cell<bool>>);

struct Cluster {
    handle: Handle,
    sim: Sim,
    register: SimRegister,
    /// The present start of each node.
    nodes: RefCell<Vec<Start>>,
    is_held: Rc<Cell<bool>>,
}

impl Cluster {
    /// Starts `count` nodes, with two copies of each row. The answer to the last node's claim is treated as `claim`
    /// says.
    fn begin(handle: &Handle, count: u8, claim: Claim) -> Self {
        let this = Self {
            handle: handle.clone(),
            sim: Sim::new(handle, Rdma, Faults::default()),
            register: SimRegister::new(count, handle),
            nodes: RefCell::default(),
            is_held: Rc::default(),
        };
        for number in 0..count {
            let node = this.start(number, count, if number + 1 == count { claim } else { Claim::Heard });
            this.nodes.borrow_mut().push(node);
        }
        this
    }

    fn start(&self, number: u8, nodes: u8, claim: Claim) -> Start {
        let (id, handle, alive) = (NodeId(number), &self.handle, Rc::new(Cell::new(true)));
        let replication = ReplicationConfig {
            replicas: 2,
            rings: 3,
            ring_bytes: 16 << 10,
            lease_ns: LEASE_NS,
            clock_skew_ns_max: LEASE_NS / 10,
            ..ReplicationConfig::default()
        };
        // The caller learns of an unknown outcome after this time.
        let request_timeout_ns = 40 * LEASE_NS;
        let config =
            NodeConfig { nodes, region_bytes: 4 << 20, replication, request_timeout_ns, ..NodeConfig::default() };
        let node = Node::open(self.sim.join(id).expect("not running"), config).expect("a node");
        let way = Way {
            register: self.register.of(id, handle, &alive),
            claim: Cell::new(claim),
            is_held: if claim == Claim::Held { self.is_held.clone() } else { Rc::default() },
            handle: handle.clone(),
        };
        let (member, server) = (node.worker(handle).expect("a worker"), node.worker(handle).expect("a worker"));
        drop(handle.spawn(async move {
            let _ = member.keep_membership(Rc::new(way)).await;
        }));
        let serving = alive.clone();
        drop(handle.spawn(async move {
            while serving.get() {
                server.serve(LEASE_NS, 64).await;
            }
        }));
        (node, alive)
    }

    /// Ends a node's process, and waits until the others have gone on without it.
    async fn end(&self, number: u8) {
        self.nodes.borrow()[usize::from(number)].1.set(false);
        self.sim.inject(Fault::Kill(NodeId(number)));
        self.until("it is not expelled", || self.register.is_free(NodeId(number))).await;
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until_ns = self.handle.now_ns() + 60 * LEASE_NS;
        while !is_so() {
            assert!(self.handle.now_ns() < until_ns, "{what}: {:?}", self.register.configuration());
            self.handle.sleep_ns(1_000).await;
        }
    }

    /// Is each partition served, and are there all copies of its rows?
    fn is_whole(&self) -> bool {
        let now = self.register.configuration().expect("a configuration");
        now.partitions.iter().all(|serving| matches!(serving, Serving::By(_)))
            && now.mirrors.iter().all(|mirror| mirror.whole)
    }

    fn are_members(&self) -> bool {
        self.nodes.borrow().iter().all(|(node, _)| node.is_member())
    }

    fn have_installed(&self, number: u64) -> bool {
        let installed = |node: &Node| node.configuration().map_or(0, |installed| installed.number);
        self.nodes.borrow().iter().all(|(node, _)| installed(node) == number)
    }
}

/// The register takes the claim of a founder, and the answer is lost. The founder is no joining node: no other node
/// gives it anything, and it alone leads itself into the first configuration.
#[test]
fn a_founder_whose_claim_is_not_answered_founds() {
    let executor = Executor::virtual_time(3);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 2, Claim::Lost);
        cluster.until("a founder is no member", || cluster.are_members()).await;
        handle.sleep_ns(5 * LEASE_NS).await;
        assert!(cluster.are_members());
    });
}

/// A founder learns of the founding when the others have already written the next configuration, which its leader has not led them into
/// yet. Only that leader may declare it installed everywhere.
#[test]
fn a_founder_that_hears_late_does_not_say_that_a_later_configuration_is_installed() {
    let executor = Executor::virtual_time(4);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 3, Claim::Held);
        let register = &cluster.register;
        let founded = || register.configuration().filter(Configuration::is_founded);
        cluster.until("nobody founds", || founded().is_some() && cluster.is_held.get()).await;
        let leader = NodeId(1);
        let next = founded().expect("founded").led_by(leader);
        // Its leader does not learn of it for now.
        register.cut(leader, true);
        let looking = register.of(NodeId(0), &handle, &Rc::new(Cell::new(true)));
        assert_eq!(looking.compare_and_set(next.number - 1, &next).await, Ok(true));
        cluster.is_held.set(false);
        handle.sleep_ns(LEASE_NS / 4).await;
        let settled = looking.load().await.expect("the register").settled;
        assert!(settled < next.number, "configuration {} is led by nobody yet", next.number);
        register.cut(leader, false);
        cluster.until("not led on", || cluster.are_members() && cluster.have_installed(next.number)).await;
    });
}

/// A node that joins leads the others into a configuration with it. Where that takes longer than a lease, because they answer slowly or
/// their disks are slow, its own lease goes on.
#[test]
fn a_node_keeps_its_lease_while_it_is_let_in() {
    let executor = Executor::virtual_time(5);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 2, Claim::Heard);
        cluster.until("never founded", || cluster.are_members()).await;
        cluster.end(1).await;
        for (from, to) in [(0, 1), (1, 0)] {
            cluster.sim.inject(Fault::Delay(Hop { from: NodeId(from), to: NodeId(to) }, LEASE_NS / 2));
        }
        let before = cluster.register.configuration().expect("node 0 goes on").number;
        let again = cluster.start(1, 2, Claim::Heard);
        cluster.nodes.borrow_mut()[1] = again;
        cluster.until("it never gets in", || cluster.are_members()).await;
        let now = cluster.register.configuration().expect("together").number;
        // It begins to join, it is a member, and it has the other's rows; the other has had its own.
        assert!(now <= before + 4, "it was expelled on its way: configuration {now} after {before}");
    });
}

/// A node that joins reaches the register, so its lease goes on, and cannot reach one member, or none. It leads the others into a
/// configuration with it, which they cannot finish without it; another node may die meanwhile. The others miss the joining node
/// and expel it.
#[test]
fn a_joining_node_that_is_cut_off_is_expelled() {
    for (nodes, cut_off_from, dies) in
        [(3, &[1][..], None), (3, &[0], None), (4, &[0, 1, 2], None), (4, &[0, 1, 2], Some(1))]
    {
        let executor = Executor::virtual_time(6);
        let handle = executor.handle();
        executor.run(async {
            let cluster = Cluster::begin(&handle, nodes, Claim::Heard);
            cluster.until("never founded", || cluster.are_members()).await;
            let joining = nodes - 1;
            cluster.end(joining).await;
            cluster.until("not whole without it", || cluster.is_whole()).await;
            for other in cut_off_from {
                for (from, to) in [(joining, *other), (*other, joining)] {
                    cluster.sim.inject(Fault::Cut(Hop { from: NodeId(from), to: NodeId(to) }));
                }
            }
            let again = cluster.start(joining, nodes, Claim::Heard);
            cluster.nodes.borrow_mut()[usize::from(joining)] = again.clone();
            let is_joining = || cluster.register.configuration().is_some_and(|now| now.contains(NodeId(joining)));
            cluster.until("it does not begin to join", is_joining).await;
            if let Some(number) = dies {
                cluster.nodes.borrow()[usize::from(number)].1.set(false);
                cluster.sim.inject(Fault::Kill(NodeId(number)));
            }
            // Three questions without an answer, and ten leases.
            handle.sleep_ns(200 * LEASE_NS).await;
            let now = cluster.register.configuration().expect("a configuration");
            assert!(again.0.is_expelled() && !now.contains(NodeId(joining)), "{now:?}");
            for number in (0..joining).filter(|number| Some(*number) != dies) {
                let node = cluster.nodes.borrow()[usize::from(number)].0.clone();
                assert!(node.is_member(), "node {number} of {nodes}, {cut_off_from:?}, {dies:?}: {now:?}");
            }
            cluster.until("not whole", || cluster.is_whole()).await;
        });
    }
}

/// A transaction writes rows of a node that leaves before the commit. It is refused, and no room in the rings of that
/// node's next start is kept for its record.
#[test]
fn a_commit_promises_nothing_to_a_node_that_is_away() {
    let executor = Executor::virtual_time(10);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 3, Claim::Heard);
        cluster.until("never founded", || cluster.are_members()).await;
        let node = cluster.nodes.borrow()[0].0.clone();
        let schema =
            Schema::new(vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)], vec![0]);
        let worker = node.worker(&handle).expect("a worker");
        let table = worker.create_table(TableDef::new("people", schema.expect("a schema"))).await.expect("a table");
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(0), Datum::Int(30)], &mut value).expect("a value");
        let keys = (1..=30_u32).map(|id| (id ^ 0x8000_0000).to_be_bytes());
        let filled = worker.run(Retry::default(), async |txn| {
            for key in keys.clone() {
                txn.insert(&table, &key, &value).await?;
            }
            Ok(())
        });
        filled.await.expect("rows");
        let mut late = worker.begin();
        for key in keys {
            let row = late.get(&table, &key).await.expect("a row").expect("this row");
            late.update(row, &value).expect("its value");
        }
        cluster.end(1).await;
        let installed =
            |node: usize| cluster.nodes.borrow()[node].0.configuration().map_or(0, |installed| installed.number);
        let are_whole = || {
            let now = cluster.register.configuration().expect("a configuration");
            cluster.is_whole() && [0, 2].into_iter().all(|node: usize| installed(node) == now.number)
        };
        cluster.until("not whole without node 1", are_whole).await;
        let refused = late.commit().await.expect_err("rows of another time");
        assert!(refused.is_retryable(), "{refused}");
        let again = cluster.start(1, 3, Claim::Heard);
        cluster.nodes.borrow_mut()[1] = again;
        cluster.until("node 1 does not come back", || cluster.are_members()).await;
        assert_eq!(node.leaks(), Vec::<String>::new());
    });
}

/// A table is dropped. No mirror keeps its rows, neither those of the node that drops it nor those of the others.
#[test]
fn mirrors_keep_nothing_of_a_dropped_table() {
    let executor = Executor::virtual_time(8);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 3, Claim::Heard);
        cluster.until("never founded", || cluster.are_members()).await;
        let nodes: Vec<Arc<Node>> = cluster.nodes.borrow().iter().map(|(node, _)| node.clone()).collect();
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let worker = nodes[0].worker(&handle).expect("a worker");
        let table = worker.create_table(TableDef::new("people", schema)).await.expect("a table");
        let mut value = Vec::new();
        table.schema().encode_value(&[farhold_store::row::Datum::Int(0)], &mut value).expect("a value");
        let filled = worker.run(farhold_txn::Retry::default(), async |txn| {
            for id in 1..=30_u32 {
                txn.insert(&table, &(id ^ 0x8000_0000).to_be_bytes(), &value).await?;
            }
            Ok(())
        });
        filled.await.expect("rows");
        for mirror in cluster.register.configuration().expect("together").mirrors {
            let [on, of] = [mirror.on, mirror.of].map(|node| &nodes[usize::from(node.0)]);
            assert_eq!(on.mirror_differs(of), Vec::<String>::new());
        }
        assert!(nodes.iter().all(|node| node.table("people").expect("the table").row_count() > 0));
        worker.drop_table(&table).await.expect("dropped");
        drop(table);
        let is_kept = |node: &Arc<Node>| node.leaks().iter().any(|what| what.contains("no table any more"));
        cluster.until("pages and copies stay", || !nodes.iter().any(is_kept)).await;
    });
}

/// The ways between two nodes are cut, and those to the register, while a table is dropped. Its session hears in time
/// that the outcome is unknown. When all links are whole again no node has been expelled, and the table is on both
/// nodes what is recorded.
#[test]
fn a_drop_whose_outcome_is_unknown_comes_to_its_end() {
    let mut unknown = 0;
    for steps in 0..12 {
        let executor = Executor::virtual_time(9);
        let handle = executor.handle();
        unknown += executor.run(async {
            let cluster = Cluster::begin(&handle, 2, Claim::Heard);
            cluster.until("never founded", || cluster.are_members()).await;
            let nodes: Vec<Arc<Node>> = cluster.nodes.borrow().iter().map(|(node, _)| node.clone()).collect();
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let worker = nodes[0].worker(&handle).expect("a worker");
            let table = worker.create_table(TableDef::new("people", schema)).await.expect("a table");
            let number = cluster.register.configuration().expect("together").number;
            let dropping = worker.clone();
            let dropped = handle.spawn(async move { dropping.drop_table(&table).await });
            handle.sleep_ns(steps * 2_000).await;
            for node in [0, 1] {
                cluster.register.cut(NodeId(node), true);
                cluster.sim.inject(Fault::Cut(Hop { from: NodeId(node), to: NodeId(1 - node) }));
            }
            let outcome = loop {
                handle.sleep_ns(LEASE_NS).await;
                if let Some(outcome) = dropped.try_take() {
                    break outcome;
                }
            };
            for node in [0, 1] {
                cluster.register.cut(NodeId(node), false);
                cluster.sim.inject(Fault::Heal(Hop { from: NodeId(node), to: NodeId(1 - node) }));
            }
            let is_wrong = |node: &Arc<Node>| node.leaks().iter().any(|what| what.contains("recorded"));
            cluster.until("it stays half dropped", || cluster.are_members() && !nodes.iter().any(is_wrong)).await;
            assert!(cluster.have_installed(number), "nobody had to go");
            let are_there = [0, 1].map(|node: usize| nodes[node].table("people").is_some());
            assert_eq!(are_there[0], are_there[1], "{outcome:?}");
            u32::from(outcome == Err(farhold_txn::TxnError::OutcomeUnknown))
        });
    }
    assert!(unknown > 0);
}

/// A node dies while it creates an index. The others keep no half of it, and the name is free.
#[test]
fn an_index_goes_with_the_node_that_was_creating_it() {
    let executor = Executor::virtual_time(6);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 3, Claim::Heard);
        cluster.until("never founded", || cluster.are_members()).await;
        let nodes: Vec<Arc<Node>> = cluster.nodes.borrow().iter().map(|(node, _)| node.clone()).collect();
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let people = TableDef::new("people", Schema::new(columns, vec![0]).expect("a schema"));
        let by_age = || SecondaryIndex { name: "by_age".into(), columns: vec![1], unique: false };
        let indexes = |node: usize| nodes[node].table("people").map_or(0, |table| table.indexes().len());
        let coordinator = nodes[2].worker(&handle).expect("a worker");
        let table = coordinator.create_table(people).await.expect("a table");
        drop(handle.spawn(async move { drop(coordinator.create_index(&table, by_age()).await) }));
        cluster.until("nobody hears of the index", || indexes(0) == 1).await;
        cluster.end(2).await;
        cluster.until("it stays", || indexes(0) == 0 && indexes(1) == 0).await;
        let other = nodes[0].worker(&handle).expect("a worker");
        let table = nodes[0].table("people").expect("the table");
        // The dead node's partition must be taken over first.
        while let Err(error) = other.create_index(&table, by_age()).await {
            assert!(error.is_retryable(), "{error}");
            handle.sleep_ns(LEASE_NS / 4).await;
        }
        assert!(table.indexes()[0].ready && nodes[1].table("people").expect("the table").indexes()[0].ready);
    });
}

/// The member from which a node that joins copies the replicated tables dies in the middle of that. The others go on, and the
/// node joins with them: it does not wait until the dead one is back.
#[test]
fn a_node_that_copies_from_one_that_dies_joins_all_the_same() {
    const ROWS: u32 = 1_000;
    let executor = Executor::virtual_time(7);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::begin(&handle, 3, Claim::Heard);
        cluster.until("never founded", || cluster.are_members()).await;
        let nodes: Vec<Arc<Node>> = cluster.nodes.borrow().iter().map(|(node, _)| node.clone()).collect();
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let people = TableDef { placement: Placement::Replicated, ..TableDef::new("people", schema) };
        let worker = nodes[0].worker(&handle).expect("a worker");
        let table = worker.create_table(people).await.expect("a table");
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(0), Datum::Int(30)], &mut value).expect("a value");
        for first in (0..ROWS).step_by(10) {
            let filled = worker.run(Retry::default(), async |txn| {
                for id in first..first + 10 {
                    txn.insert(&table, &(id ^ 0x8000_0000).to_be_bytes(), &value).await?;
                }
                Ok(())
            });
            filled.await.expect("rows");
        }
        cluster.end(2).await;
        cluster.until("not whole without node 2", || cluster.is_whole()).await;
        let again = cluster.start(2, 3, Claim::Heard);
        cluster.nodes.borrow_mut()[2] = again.clone();
        let joins = || again.0.progress().joining.is_some_and(|moving| moving.rows > 0);
        cluster.until("it copies nothing", joins).await;
        assert!(!again.0.is_member());
        cluster.end(0).await;
        cluster.until("it does not join", || again.0.is_member()).await;
        assert_eq!(again.0.table("people").map(|table| table.row_count()), Some(u64::from(ROWS)));
        assert_eq!(again.0.progress().refused, None);
    });
}
