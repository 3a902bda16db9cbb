//! The start of a node's process, its permanent tasks, and its end.

use super::{Cluster, LEASE_NS, Process, SERVE_NS};
use crate::failover::blocking;
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::Fault;
use farhold_txn::{CopyConfig, Generation, JournalConfig, JournalTurns, Node, NodeConfig, ReplicationConfig, TxnError};
use std::cell::Cell;
use std::rc::Rc;

impl Cluster {
    /// Starts a node with the permanent tasks of its process.
    pub fn start(&self, number: u8) -> Process {
        self.try_start(number).expect("a start")
    }

    /// The same after a power failure: the state of its files may prevent the start.
    pub(super) fn try_start(&self, number: u8) -> Result<Process, TxnError> {
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
            columns: self.setup.columns.map_or_else(CopyConfig::default, |columns| columns.copy),
            columns_bytes_max: if self.setup.columns.is_some() { 4 << 20 } else { 1 << 20 },
            // They abort at unpredictable moments, so a seed would not replay.
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
        let (member, serving) = (server.clone(), alive.clone());
        drop(machine.spawn(async move {
            let _ = server.join_cluster().await;
            while serving.get() {
                server.serve(SERVE_NS, 64).await;
            }
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
        let process = Process { node, worker, alive, lookers: Rc::default(), disk };
        self.keep_columns(&machine, &process);
        Ok(process)
    }

    /// Whether a starting process has room for its files, and need not wait for the turn of another.
    pub fn may_start(&self) -> bool {
        let disks = self.disks.borrow();
        !disks.is_full() && !disks.has_turn()
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
