//! Nodes that keep columns: the tasks that update the columns and compare them with rows, and the checks at the end.

use super::{Cluster, HEALING_NS_MAX, Process, SERVE_NS};
use crate::failover::blocking;
use crate::failover::columns::{Looker, TABLES, may_come_right};
use crate::failover::plan::Columns;
use farhold_fabric::Handle;
use farhold_txn::{ApplyTurns, KeptColumns, MergeTurns, TxnError};
use std::time::Duration;

/// The number of clients of a node that read columns.
const LOOKERS: u32 = 2;
/// Between two looks at the definitions of tables.
const LOOKS: Duration = Duration::from_micros(500);
/// The time within which all nodes must have columns after everything has healed: after some failures a node waits before it rebuilds them.
const BUILT_NS_MAX: u64 = 400_000_000;

impl Cluster {
    /// The permanent tasks of a node with columns, and its clients that read them. In a real node, threads execute the same turns.
    pub(super) fn keep_columns(&self, machine: &Handle, process: &Process) {
        let Process { node, worker, alive, lookers, .. } = process;
        let Some(Columns { apply_ns_max, merge_ns_max, .. }) = self.setup.columns else { return };
        if let Some(mut turns) = ApplyTurns::begin(node) {
            let (clock, alive) = (machine.clone(), alive.clone());
            drop(machine.spawn(async move {
                while alive.get() {
                    turns.take(clock.now_ns());
                    clock.sleep_ns(1 + clock.random_u64() % apply_ns_max).await;
                }
            }));
        }
        if let Some(mut turns) = MergeTurns::begin(node, LOOKS) {
            let (clock, alive) = (machine.clone(), alive.clone());
            drop(machine.spawn(async move {
                while alive.get() {
                    turns.build(&clock, &|| !alive.get()).await;
                    let handle = clock.clone();
                    let merge = move || {
                        turns.merge(&handle);
                        turns
                    };
                    turns = blocking::run(&clock, merge).await;
                    clock.sleep_ns(1 + clock.random_u64() % merge_ns_max).await;
                }
            }));
        }
        for number in 0..LOOKERS {
            let looker = Looker::new(number, worker, &self.looks, alive).expect("an endpoint");
            drop(machine.spawn(looker.run(lookers.clone())));
        }
    }

    /// From here on all tables are kept as columns.
    pub(super) async fn begin_columns(&self) -> Result<(), TxnError> {
        if self.setup.columns.is_none() {
            return Ok(());
        }
        let worker = self.process(0).worker;
        for name in TABLES {
            let table = worker.node().table(name).expect("created before");
            worker.keep_columns(&table, KeptColumns::All).await?;
        }
        Ok(())
    }

    /// Checks that each node has the columns of its rows, that each other node reads the same, and that all of their memory is free once they are no longer
    /// kept.
    pub async fn look_at_columns(&self, broken: &mut Vec<String>) {
        if self.setup.columns.is_none() {
            return;
        }
        self.looks.is_over.set(true);
        let running = || self.processes.borrow().iter().any(|process| process.lookers.get() > 0);
        if !self.until(HEALING_NS_MAX, || !running()).await {
            broken.push("a client waits for columns for ever".into());
            return;
        }
        let looked = async {
            self.compare_at_the_end().await?;
            self.drop_columns().await
        };
        if let Err(what) = looked.await {
            broken.push(what);
        }
    }

    async fn compare_at_the_end(&self) -> Result<(), String> {
        self.keep_all(&KeptColumns::All).await?;
        let processes = self.processes.borrow().clone();
        for Process { node, worker, alive, .. } in &processes {
            let looker = Looker::new(LOOKERS, worker, &self.looks, alive).map_err(|error| error.to_string())?;
            let until_ns = self.handle.now_ns() + BUILT_NS_MAX;
            loop {
                match looker.look_at_all().await {
                    Ok(true) => break,
                    Err(error) if !may_come_right(&error) => return Err(format!("columns at the end: {error}")),
                    looked if self.handle.now_ns() > until_ns => {
                        let refused = &self.looks.compared.borrow().refused;
                        let has = node.columns();
                        return Err(format!(
                            "{} reads no columns of some node: {looked:?}, {has:?}, {refused:?}",
                            node.id()
                        ));
                    }
                    _ => self.handle.sleep_ns(SERVE_NS / 4).await,
                }
            }
        }
        Ok(())
    }

    /// Changes the kept columns of all tables.
    async fn keep_all(&self, columns: &KeptColumns) -> Result<(), String> {
        let worker = self.process(0).worker;
        let until_ns = self.handle.now_ns() + HEALING_NS_MAX;
        for name in TABLES {
            let table = worker.node().table(name).expect("created before");
            loop {
                match worker.keep_columns(&table, columns.clone()).await {
                    Ok(()) => break,
                    Err(error) if may_come_right(&error) && self.handle.now_ns() < until_ns => {
                        self.handle.sleep_ns(SERVE_NS / 4).await;
                    }
                    Err(error) => return Err(format!("{columns:?} of {name} at the end: {error}")),
                }
            }
        }
        Ok(())
    }

    async fn drop_columns(&self) -> Result<(), String> {
        self.keep_all(&KeptColumns::None).await?;
        let held = || {
            let processes = self.processes.borrow();
            let memory = |process: &Process| process.node.column_memory();
            let is_free = |process: &Process| {
                memory(process).is_some_and(|it| it.free_bytes == it.bytes) && process.node.columns().tables == 0
            };
            let held = processes.iter().filter(|process| !is_free(process));
            held.map(|it| format!("{}: {:?} {:?}", it.node.id(), memory(it), it.node.columns())).collect::<Vec<_>>()
        };
        // Nodes learn with a delay that snapshots of others are closed.
        if self.until(HEALING_NS_MAX, || held().is_empty()).await {
            return Ok(());
        }
        Err(format!("memory of columns that are kept no longer does not come back: {:?}", held()))
    }
}
