//! Random transactions over a few rows, and the record of their reads and writes.
//!
//! Two tables: `spread`, placed by its integer key, so that each transaction meets rows of several nodes; and `copied`,
//! replicated. Every value names its writer and carries a checksum over all of its parts, so that a read detects a row
//! made of pieces of two.

mod client;
mod persist;
mod record;

pub use client::{Client, CutShort, is_of_a_death};
pub(crate) use persist::{Attempting, Ended, Persistent, run_through};
pub use record::{Recorder, Row};

use crate::history::Key;
use farhold_store::row::{Column, ColumnType, Schema, SecondaryIndex};
use farhold_txn::{Index, Placement, Table, TableDef, TxnError, Worker};
use std::cell::RefCell;
use std::rc::Rc;

/// What transactions do: percentages of the operations, and how many rows there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Keys are 1 to this.
    pub keys: u32,
    /// Of these, how many have a row at the start.
    pub rows: u32,
    /// Attributes are below this.
    pub attributes: u32,
    /// Most operations of a transaction.
    pub operations: u32,
    /// Of 100 operations: point reads.
    pub reads: u32,
    /// Reads that then write.
    pub updates: u32,
    /// Inserts.
    pub inserts: u32,
    /// Deletes.
    pub deletes: u32,
    /// Ranges by key; the rest are ranges by attribute.
    pub ranges: u32,
    /// Of 100 operations: on the replicated table.
    pub on_copies: u32,
    /// Of 100 transactions: read-only.
    pub read_only: u32,
    /// Of 100 transactions: a snapshot of everything.
    pub snapshots: u32,
    /// Longest padding of a value in bytes: long ones are torn more often, and change their slots.
    pub padding: u32,
    /// Shortest padding of a value that is written.
    pub padding_min: u32,
    /// Whether the spread table has a hash index.
    pub hash: bool,
}

impl Workload {
    /// The longest padding: a row with it is the longest that there can be, less than a hundred bytes.
    pub const PADDING_MAX: u32 = 65_400;

    /// One of a few kinds, by the seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mixed = Self {
            keys: 18,
            rows: 12,
            attributes: 4,
            operations: 5,
            reads: 30,
            updates: 30,
            inserts: 10,
            deletes: 10,
            ranges: 10,
            on_copies: 15,
            read_only: 15,
            snapshots: 1,
            padding: 300,
            padding_min: 0,
            hash: !seed.is_multiple_of(3),
        };
        match seed % 4 {
            // Few rows, points alone: many conflicts on rows.
            0 => Self {
                keys: 6,
                rows: 6,
                reads: 45,
                updates: 55,
                inserts: 0,
                deletes: 0,
                ranges: 0,
                operations: 4,
                padding: 1_500,
                ..mixed
            },
            // Rows come and go, ranges look: phantoms.
            1 => Self { keys: 12, reads: 15, updates: 10, inserts: 25, deletes: 20, ranges: 20, padding: 40, ..mixed },
            // Snapshots against writers.
            2 => Self { snapshots: 6, updates: 45, reads: 15, ..mixed },
            _ => mixed,
        }
    }
}

/// The number of the table `spread` in histories.
pub const SPREAD: u32 = 1;
/// The number of the table `copied` in histories.
pub const COPIED: u32 = 2;
/// The index by attribute.
pub const BY_ATTRIBUTE: Index = Index::Secondary(0);

/// The two tables, as one node knows them.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Placed by key.
    pub spread: Table,
    /// Replicated.
    pub copied: Table,
}

impl Tables {
    /// A table of such [rows](Row), with an index by attribute.
    pub(crate) fn definition(name: &str, placement: Placement, hash: bool) -> TableDef {
        let columns = vec![
            Column::new("key", ColumnType::Int),
            Column::new("writer", ColumnType::BigInt),
            Column::new("attribute", ColumnType::Int),
            Column::new("checksum", ColumnType::BigInt),
            Column::new("padding", ColumnType::Bytea),
        ];
        let by_attribute = SecondaryIndex { name: format!("{name}_attribute"), columns: vec![2], unique: false };
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        TableDef { placement, hash, indexes: vec![by_attribute], ..TableDef::new(name, schema) }
    }

    /// Creates and fills them.
    ///
    /// # Errors
    /// Whatever keeps the cluster from it.
    pub async fn create(
        worker: &Worker,
        workload: &Workload,
        recorder: &Rc<RefCell<Recorder>>,
    ) -> Result<Self, TxnError> {
        let spread = Self::definition("spread", Placement::ByInteger, workload.hash);
        let spread = worker.create_table(spread).await?;
        let copied = worker.create_table(Self::definition("copied", Placement::Replicated, false)).await?;
        let this = Self { spread, copied };
        for (number, table) in [(SPREAD, &this.spread), (COPIED, &this.copied)] {
            let mut txn = worker.begin();
            for key in 1..=workload.rows {
                let attribute = key % workload.attributes;
                let row = Row { writer: 0, attribute: attribute.cast_signed(), padding: key * 7 % 50 };
                txn.insert(table, &Row::key(key), &row.value(table, key)).await?;
                let key = Key { table: number, key: u64::from(key) };
                recorder.borrow_mut().history.initial.push((key, i64::from(attribute)));
            }
            txn.commit().await?;
        }
        Ok(this)
    }

    /// As another node knows them.
    ///
    /// # Panics
    /// If they have not been created.
    #[must_use]
    pub fn of(worker: &Worker) -> Self {
        let table = |name| worker.node().table(name).expect("created before");
        Self { spread: table("spread"), copied: table("copied") }
    }

    /// By its number in histories.
    #[must_use]
    pub fn get(&self, number: u32) -> &Table {
        if number == SPREAD { &self.spread } else { &self.copied }
    }
}
