//! The load: its tables, its clients, and how each of them ends.

use super::{Cluster, Process, RUN_NS_MAX};
use crate::failover::bank::Teller;
use crate::failover::changing::{self, Changer};
use crate::failover::numbers::{self, Taker};
use crate::failover::plan::Load;
use crate::failover::shop::{self, Terminal};
use crate::workload::{Attempting, Client, Ended, Persistent, Tables, run_through};
use farhold_bench::workload::smallbank;
use farhold_fabric::{Handle, JoinHandle, NodeId};
use farhold_txn::TxnError;

/// A running client, and its node.
pub(in crate::failover) struct Running {
    pub(super) number: usize,
    pub(super) process: Process,
    pub(super) attempting: Attempting,
    pub(super) task: JoinHandle<Ended>,
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
        let alive = self.process.alive.clone();
        self.machine.spawn(run_through(client, self.transactions, alive, self.attempting.clone()))
    }
}

impl Cluster {
    pub(super) async fn load(&self) -> Result<(), TxnError> {
        let first = self.process(0).worker;
        match &self.setup.load {
            Load::Mixed(workload) => {
                Tables::create(&first, workload, &self.recorder).await?;
                self.begin_columns().await
            }
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
    pub(super) fn clients(&self) -> Vec<Running> {
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
}
