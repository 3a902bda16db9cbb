//! How a cluster is founded when the register's answers are lost or late.

use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, Handle, NodeId};
use farhold_sim::register::{RegisterOf, SimRegister};
use farhold_txn::{
    Configuration, Node, NodeConfig, Register, RegisterError, RegisterFuture, Registered, ReplicationConfig,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const LEASE_NS: u64 = 1_000_000;

/// What becomes of the answer to a node's claim of its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Heard,
    Lost,
    /// The node hears nothing of the register until it is let.
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

/// A cluster that is being founded.
struct Founding {
    handle: Handle,
    register: SimRegister,
    alive: Rc<Cell<bool>>,
    nodes: Vec<Arc<Node>>,
    is_held: Rc<Cell<bool>>,
}

impl Founding {
    /// Starts so many nodes; the last one's claim is answered like this.
    fn begin(handle: &Handle, count: u8, claim: Claim) -> Self {
        let sim = Sim::new(handle, Rdma, Faults::default());
        let (register, alive) = (SimRegister::new(count, handle), Rc::new(Cell::new(true)));
        let is_held = Rc::new(Cell::new(false));
        let replication = ReplicationConfig {
            replicas: 2,
            rings: 3,
            ring_bytes: 16 << 10,
            lease_ns: LEASE_NS,
            clock_skew_ns_max: LEASE_NS / 10,
            ..ReplicationConfig::default()
        };
        let start = |number: u8| {
            let id = NodeId(number);
            let config = NodeConfig {
                nodes: count,
                region_bytes: 4 << 20,
                replication: replication.clone(),
                ..NodeConfig::default()
            };
            let node = Node::open(sim.join(id).expect("not running"), config).expect("a node");
            let is_last = number + 1 == count;
            let way = Way {
                register: register.of(id, handle, &alive),
                claim: Cell::new(if is_last { claim } else { Claim::Heard }),
                is_held: if is_last { is_held.clone() } else { Rc::default() },
                handle: handle.clone(),
            };
            let (member, server) = (node.worker(handle).expect("a worker"), node.worker(handle).expect("a worker"));
            drop(handle.spawn(async move {
                let _ = member.keep_membership(Rc::new(way)).await;
            }));
            drop(handle.spawn(async move {
                loop {
                    server.serve(LEASE_NS, 64).await;
                }
            }));
            node
        };
        let nodes = (0..count).map(start).collect();
        Self { handle: handle.clone(), register, alive, nodes, is_held }
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until_ns = self.handle.now_ns() + 20 * LEASE_NS;
        while !is_so() {
            assert!(self.handle.now_ns() < until_ns, "{what}: {:?}", self.register.configuration());
            self.handle.sleep_ns(1_000).await;
        }
    }

    fn are_members(&self) -> bool {
        self.nodes.iter().all(|node| node.is_member())
    }
}

/// The register takes the claim of a founder, and the answer is lost. The founder is no node that joins: nobody gives it anything, and
/// nobody leads it into the first configuration but itself.
#[test]
fn a_founder_whose_claim_is_not_answered_founds() {
    let executor = Executor::virtual_time(3);
    let handle = executor.handle();
    executor.run(async {
        let founding = Founding::begin(&handle, 2, Claim::Lost);
        founding.until("a founder is no member", || founding.are_members()).await;
        handle.sleep_ns(5 * LEASE_NS).await;
        assert!(founding.are_members());
    });
}

/// A founder hears of the founding when the others have gone on to the next configuration, which is still to be led into. To say that it
/// is installed everywhere is up to its leader.
#[test]
fn a_founder_that_hears_late_does_not_say_that_a_later_configuration_is_installed() {
    let executor = Executor::virtual_time(4);
    let handle = executor.handle();
    executor.run(async {
        let founding = Founding::begin(&handle, 3, Claim::Held);
        let register = &founding.register;
        let founded = || register.configuration().filter(|now| now.is_founded());
        founding.until("nobody founds", || founded().is_some() && founding.is_held.get()).await;
        let leader = NodeId(1);
        let next = founded().expect("founded").led_by(leader);
        // Its leader does not hear of it for now.
        register.cut(leader, true);
        let looking = register.of(NodeId(0), &handle, &founding.alive);
        assert_eq!(looking.compare_and_set(next.number - 1, &next).await, Ok(true));
        founding.is_held.set(false);
        handle.sleep_ns(LEASE_NS / 4).await;
        let settled = looking.load().await.expect("the register").settled;
        assert!(settled < next.number, "configuration {} is led by nobody yet", next.number);
        register.cut(leader, false);
        let is_installed = |node: &Arc<Node>| node.configuration().is_some_and(|now| now.number == next.number);
        founding.until("not led on", || founding.are_members() && founding.nodes.iter().all(is_installed)).await;
    });
}
