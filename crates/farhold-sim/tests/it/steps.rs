//! A node dies at every step of a commit. One transaction that updates, deletes and inserts rows of all nodes runs
//! alone. An event is a line touched, an instruction completed or a message delivered. For each event from the
//! transaction's beginning to its end, there are runs in which the coordinator, the primary of a far row, or a backup
//! dies at that event. Afterwards the cluster heals, goes on, and is looked at.

use farhold_sim::failover::{Failover, KillAt, Load, run};
use farhold_sim::workload::Workload;

fn setup(replicas: u8, optimistic: bool, kill_at: KillAt) -> Failover {
    Failover {
        replicas,
        optimistic,
        load: Load::Mixed(Workload { padding: 100, snapshots: 0, ..Workload::of_seed(7) }),
        blows: Vec::new(),
        drift_ppm: vec![0; 3],
        kill_at: Some(kill_at),
        ring_bytes: 24 << 10,
        ..Failover::of_seed(7)
    }
}

#[test]
fn a_node_may_die_at_every_step_of_a_commit() {
    let mut bad = Vec::new();
    let mut deaths = 0;
    for (replicas, optimistic) in [(3, true), (2, true), (2, false)] {
        let coordinator = 0;
        let alone = KillAt { coordinator, victim: None, step: 0, crash: false };
        let whole = run(&setup(replicas, optimistic, alone));
        whole.check().unwrap_or_else(|what| panic!("nobody dies: {what}\n{}", whole.story.join("\n")));
        assert!(whole.steps > 60, "a transaction of {} steps is no test", whole.steps);
        // Of two copies, node 1 is the backup of node 0 and the primary of far rows, node 2 a primary alone; of three, both
        // are both.
        for victim in 0..3 {
            for crash in [false, true] {
                for step in 1..=whole.steps {
                    let at = KillAt { coordinator, victim: Some(victim), step, crash };
                    let aftermath = run(&setup(replicas, optimistic, at));
                    deaths += 1;
                    if let Err(what) = aftermath.check() {
                        println!("{replicas} copies, optimistic {optimistic}, {at:?}: {what}");
                        aftermath.story.iter().for_each(|line| println!("{line}"));
                        bad.push(at);
                    }
                }
            }
        }
        println!("{replicas} copies, optimistic {optimistic}: {} steps", whole.steps);
    }
    assert!(bad.is_empty(), "{} of {deaths}: {bad:?}", bad.len());
}
