//! The mix is the sources', accounts lie where placement puts them, and the audit finds what is missing.

use super::input::{Inputs, Kind};
use super::run::{Plan, run};
use super::*;
use crate::random::Random;
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, NodeId};
use farhold_txn::NodeConfig;

fn plan() -> Plan {
    Plan {
        scale: Scale { nodes: 2, accounts: 200, hot: 10 },
        working_nodes: 2,
        workers: 1,
        in_flight: 2,
        distributed_percent: 30,
        hot_percent: 90,
        replicas: 1,
        optimistic: true,
        span_ns: 100_000_000,
        seed: 5,
        pin: false,
        provider: "shm".to_owned(),
        hardware: true,
    }
}

#[test]
fn inputs_follow_the_mix() {
    let inputs = Inputs { scale: Scale::full(3), node: 1, distributed_percent: 20, hot_percent: 90 };
    let mut random = Random::new(1);
    let drawn: Vec<_> = (0..100_000).map(|_| inputs.draw(&mut random)).collect();
    for kind in Kind::ALL {
        let count = drawn.iter().filter(|input| input.kind == kind).count() as u64;
        assert!(count.abs_diff(kind.percent() * 1_000) < 600, "{kind:?}: {count}");
    }
    let two: Vec<_> = drawn.iter().filter(|input| input.kind.has_two()).collect();
    let distributed = two.iter().filter(|input| (input.to - 1) % 3 != 1).count();
    assert!((distributed * 100).abs_diff(two.len() * 20) < two.len() * 2, "{distributed} of {}", two.len());
    let hot = drawn.iter().filter(|input| (input.from - 1) / 3 < 4_000).count();
    assert!(hot.abs_diff(90_000) < 600, "{hot}");
    assert!(drawn.iter().all(|input| (input.from - 1) % 3 == 1 && (input.from != input.to) == input.kind.has_two()));
}

#[test]
fn money_is_conserved_by_threads() {
    for (replicas, optimistic) in [(1, true), (2, true), (2, false)] {
        let outcome = run(&Plan { replicas, optimistic, workers: 2, ..plan() });
        let outcome = outcome.unwrap_or_else(|error| panic!("{replicas} copies: {error}"));
        assert!(outcome.totals.committed() > 1_000, "{outcome:?}");
        assert!(outcome.totals.commits.iter().all(|count| *count > 0), "{outcome:?}");
    }
}

/// Accounts lie on the nodes of their numbers, and an audit that expects one cent more fails.
#[test]
fn an_audit_counts_cents() {
    let executor = Executor::virtual_time(3);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let scale = Scale { nodes: 2, accounts: 30, hot: 3 };
    let open = |node| {
        let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
        Node::open(sim.join(NodeId(node)).unwrap(), config).unwrap()
    };
    let nodes = [open(0), open(1)];
    executor.run(async {
        let workers = [0, 1].map(|node: usize| nodes[node].worker(&handle).unwrap());
        let server = workers[1].clone();
        drop(handle.spawn(async move {
            loop {
                server.serve(1_000_000, usize::MAX).await;
            }
        }));
        let tables = Tables::create(&workers[0]).await.unwrap();
        for node in 0..2 {
            tables.load(&workers[0], scale, node, 0..scale.accounts).await.unwrap();
            for number in 0..scale.accounts {
                let account = scale.account(node, number);
                assert_eq!(tables.savings.home_of(key(account).as_slice()), NodeId(node), "account {account}");
            }
        }
        assert_eq!(audit(&workers[0], &tables, scale, 0).await, Ok(()));
        assert!(audit(&workers[0], &tables, scale, 1).await.unwrap_err().contains("cents"));
        let mut random = Random::new(9);
        let inputs = Inputs { scale, node: 0, distributed_percent: 50, hot_percent: 90 };
        let mut added = 0;
        for _ in 0..300 {
            let input = inputs.draw(&mut random);
            let mut txn = workers[0].begin();
            let effect = procedure::run(&mut txn, &tables, &input).await.unwrap();
            if effect.refused {
                txn.abort();
            } else {
                txn.commit().await.unwrap();
                added += effect.added();
            }
        }
        assert_eq!(audit(&workers[0], &tables, scale, added).await, Ok(()));
    });
}
