//! Clients that take numbers from counters in rows: no number is ever given out twice.

use crate::workload::Persistent;
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_txn::{Placement, RowCounter, Table, TableDef, TxnError, Worker};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// One counter on each of three nodes.
const COUNTERS: i64 = 3;
const BLOCK: u32 = 4;
const TABLE: &str = "counters";

/// What was given out.
#[derive(Default)]
pub(super) struct Given {
    /// By counter and number: the client that got it.
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

    /// Takes a block from some counter.
    pub async fn take_some(&self) -> Result<(), TxnError> {
        let table = self.worker.node().table(TABLE).ok_or(TxnError::SchemaChanged)?;
        let counter = self.worker.handle().random_u64() % COUNTERS.cast_unsigned();
        self.take(&table, counter.cast_signed()).await
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

impl Persistent for Taker {
    /// The counter's number.
    type Asked = i64;

    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }

    fn draw(&mut self) -> i64 {
        self.below(COUNTERS.cast_unsigned()).cast_signed()
    }

    async fn attempt(&mut self, counter: &i64) -> Result<(), TxnError> {
        let table = self.worker.node().table(TABLE).ok_or(TxnError::SchemaChanged)?;
        self.take(&table, *counter).await?;
        let pause_ns = self.below(60_000);
        self.worker.handle().sleep_ns(pause_ns).await;
        Ok(())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.worker.handle().random_u64() % limit
    }

    fn broken(&mut self, what: String) {
        self.given.borrow_mut().broken.push(what);
    }
}
