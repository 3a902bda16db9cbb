//! Faults beyond what a cluster tolerates: it waits, reports why, and loses nothing. Fewer survivors than the rows have
//! copies; two processes with one node number.

use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, FabricError, NodeId};
use farhold_sim::failover::{Blow, Failover, run};
use farhold_sim::register::SimRegister;
use farhold_txn::{Node, NodeConfig, ReplicationConfig};
use std::cell::Cell;
use std::rc::Rc;

fn both(blow: impl Fn(u8) -> Blow, seed: u64) -> Failover {
    let blows = vec![(500_000, blow(1)), (500_000, blow(2))];
    Failover { replicas: 2, blows, drift_ppm: vec![0; 3], ..Failover::of_seed(seed) }
}

/// Both holders of two copies are silent. The third node does not go on without the rows; when they speak again, all is
/// there.
#[test]
fn fewer_survivors_than_the_rows_need_are_waited_for() {
    let mut waited = 0;
    for seed in 0..24 {
        let aftermath = run(&both(|node| Blow::Pause(node, 4_000_000), seed));
        let story = aftermath.story.join("\n");
        aftermath.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{story}"));
        let expelled = |node| story.contains(&format!("expels node {node}"));
        waited += u32::from(story.contains("waits for node"));
        assert!(!(expelled(1) && expelled(2)) || story.contains("whole copy"), "seed {seed}\n{story}");
    }
    assert!(waited > 0, "nobody ever waited");
}

/// Both are dead for good: the third waits for ever and reports for which node. What it has acknowledged stays valid.
#[test]
fn without_the_only_copies_of_some_rows_nobody_goes_on() {
    for seed in [0, 4] {
        let aftermath = run(&both(Blow::Kill, seed));
        let story = aftermath.story.join("\n");
        assert!(story.contains("waits for node"), "seed {seed}\n{story}");
        assert!(aftermath.broken.iter().any(|what| what.starts_with("not whole again")), "seed {seed}\n{story}");
        let is_a_wait = |what: &String| what.starts_with("not whole again") || what.contains("does not get on");
        assert!(aftermath.broken.iter().all(is_a_wait), "seed {seed}: {:?}", aftermath.broken);
        let history = aftermath.history.check_with_doubts();
        history.unwrap_or_else(|anomaly| panic!("seed {seed}: {anomaly}\n{story}"));
    }
}

/// The fabric refuses a second process of a node; another one that reaches the register by itself waits there, however long,
/// and the cluster does not notice.
#[test]
fn of_two_processes_with_one_name_one_is_the_node() {
    let executor = Executor::virtual_time(5);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let register = SimRegister::new(2, &handle);
    let alive = Rc::new(Cell::new(true));
    let lease_ns = 1_000_000;
    let replication = ReplicationConfig {
        replicas: 2,
        rings: 3,
        ring_bytes: 16 << 10,
        lease_ns,
        clock_skew_ns_max: lease_ns / 10,
        ..ReplicationConfig::default()
    };
    executor.run(async {
        let mut nodes = Vec::new();
        for number in 0..2 {
            let config = NodeConfig {
                nodes: 2,
                region_bytes: 4 << 20,
                replication: replication.clone(),
                ..NodeConfig::default()
            };
            let node = Node::open(sim.join(NodeId(number)).expect("not running"), config).expect("a node");
            for is_member in [false, true] {
                let worker = node.worker(&handle).expect("a worker");
                let register = Rc::new(register.of(NodeId(number), &handle, &alive));
                drop(handle.spawn(async move {
                    if is_member {
                        let _ = worker.keep_membership(register).await;
                    }
                    loop {
                        worker.serve(lease_ns, 64).await;
                    }
                }));
            }
            nodes.push(node);
        }
        handle.sleep_ns(3 * lease_ns).await;
        assert!(nodes.iter().all(|node| node.is_member()));
        let again = sim.join(NodeId(1)).map(drop);
        assert!(matches!(again, Err(FabricError::NodeInUse { node: NodeId(1), .. })), "{again:?}");

        let before = register.configuration().expect("founded");
        let second = nodes[1].worker(&handle).expect("a worker");
        let way = Rc::new(register.of(NodeId(1), &handle, &alive));
        let second = handle.spawn(async move { second.keep_membership(way).await });
        handle.sleep_ns(20 * lease_ns).await;
        assert!(second.try_take().is_none(), "it waits");
        assert_eq!(register.configuration().as_ref(), Some(&before), "nobody has noticed");
        assert!(nodes.iter().all(|node| node.is_member() && !node.is_expelled()));
    });
}
