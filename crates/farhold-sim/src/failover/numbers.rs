//! Clients that take numbers from counters in rows: nobody ever gets a number that another has been given.

use crate::cluster::is_expected;
use crate::workload::{Ended, is_of_a_death};
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_txn::{Placement, RowCounter, Table, TableDef, TxnError, Worker};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// One counter on each of three nodes.
const COUNTERS: i64 = 3;
const BLOCK: u32 = 4;
const TABLE: &str = "counters";

/// What was given out.
#[derive(Default)]
pub(super) struct Given {
    /// By counter and number: to whom.
    to: HashMap<(i64, u64), String>,
    pub blocks: u64,
    pub broken: Vec<String>,
}

/// Makes the table.
pub(super) async fn create(worker: &Worker) -> Result<(), TxnError> {
    let column = |name: &str| Column { name: name.into(), data_type: ColumnType::BigInt, nullable: false };
    let columns = std::iter::once("number").chain(RowCounter::COLUMNS).map(column).collect();
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    let table = TableDef { placement: Placement::ByInteger, hash: false, ..TableDef::new(TABLE, schema) };
    worker.create_table(table).await.map(drop)
}

fn key(number: i64) -> [u8; 8] {
    (number.cast_unsigned() ^ 1 << 63).to_be_bytes()
}

/// A client.
pub(super) struct Taker {
    name: String,
    worker: Worker,
    given: Rc<RefCell<Given>>,
}

impl Taker {
    pub fn new(number: usize, node: u8, worker: &Worker, given: Rc<RefCell<Given>>) -> Self {
        Self { name: format!("taker {number} of node {node}"), worker: worker.clone(), given }
    }

    /// Takes so many blocks, whatever happens to the cluster.
    pub async fn run_through(self, blocks: usize, alive: Rc<Cell<bool>>) -> Ended {
        /// With the waits some tens of milliseconds, far longer than any recovery.
        const ATTEMPTS: u32 = 600;
        let (node, handle) = (self.worker.node().clone(), self.worker.handle().clone());
        for _ in 0..blocks {
            let counter = (handle.random_u64() % COUNTERS.cast_unsigned()).cast_signed();
            let mut last = None;
            for attempt in 0..ATTEMPTS {
                if !alive.get() || node.is_expelled() {
                    return Ended::Gone;
                }
                let Some(table) = node.table(TABLE) else { return Ended::Stuck("the table is gone".into()) };
                match self.take(&table, counter).await {
                    Ok(()) => {
                        last = None;
                        break;
                    }
                    // Numbers may be lost.
                    Err(error) if is_expected(&error) || is_of_a_death(&error) || error == TxnError::OutcomeUnknown => {
                        last = Some(error);
                        handle.sleep_ns(handle.random_u64() % (2_000 << attempt.min(6))).await;
                    }
                    Err(error) => {
                        self.given.borrow_mut().broken.push(format!("{}: {error}", self.name));
                        return Ended::Done;
                    }
                }
            }
            if let Some(error) = last {
                return Ended::Stuck(format!("{}: {error}", self.name));
            }
            handle.sleep_ns(handle.random_u64() % 60_000).await;
        }
        Ended::Done
    }

    async fn take(&self, table: &Table, counter: i64) -> Result<(), TxnError> {
        let (key, promise_key) = (key(counter), key(counter + COUNTERS));
        let it = RowCounter { table, key: &key, promise_key: &promise_key, first: 1, last: i64::MAX };
        let first = self.worker.take_numbers(it, BLOCK, 1).await?;
        let given = &mut *self.given.borrow_mut();
        given.blocks += 1;
        for number in first..first + u64::from(BLOCK) {
            if let Some(before) = given.to.insert((counter, number), self.name.clone()) {
                let who = &self.name;
                given.broken.push(format!("{who} was given number {number} of counter {counter}, which {before} had"));
            }
        }
        Ok(())
    }
}
