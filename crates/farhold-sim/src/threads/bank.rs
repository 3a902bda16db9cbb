//! Transfers between accounts, and reads of all accounts: the sum is always the same.

use super::{may_happen, pause};
use crate::workload::Row;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{PageTask, Placement, Retry, ScanSpec, Snapshot, Table, TableDef, TxnError, Worker};

const NAME: &str = "bank";
const ACCOUNTS: u32 = 40;
const EACH: i64 = 100;
/// Attempts of one transfer.
pub(super) const RETRY: Retry = Retry { attempts_max: 8, backoff_ns: 1_000, backoff_ns_max: 1_000_000 };

/// The accounts, as one node knows them.
pub(super) struct Bank {
    worker: Worker,
    table: Table,
}

impl Bank {
    /// Opens the accounts.
    ///
    /// # Errors
    /// Whatever keeps the cluster from it.
    pub async fn create(worker: &Worker) -> Result<(), TxnError> {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("balance", ColumnType::BigInt)];
        let schema = Schema::new(columns, vec![0])?;
        let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new(NAME, schema) };
        let table = worker.create_table(definition).await?;
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(0), Datum::BigInt(EACH)], &mut value)?;
        let mut txn = worker.begin();
        for id in 1..=ACCOUNTS {
            txn.insert(&table, &Row::key(id), &value).await?;
        }
        txn.commit().await.map(|_| ())
    }

    /// Those of the worker's node.
    ///
    /// # Panics
    /// If they have not been opened.
    pub fn of(worker: &Worker) -> Self {
        Self { worker: worker.clone(), table: worker.node().table(NAME).expect("created before") }
    }

    /// Moves something from one account to another.
    ///
    /// # Errors
    /// What must not happen to it.
    pub async fn transfer(&self) -> Result<(), TxnError> {
        let balance = self.table.layout().i64("balance")?;
        let handle = self.worker.handle();
        let account = || 1 + (handle.random_u64() % u64::from(ACCOUNTS)) as u32;
        let (from, to, amount) = (account(), account(), (handle.random_u64() % 7) as i64);
        let moved = self.worker.run(RETRY, async |txn| {
            for (id, change) in [(from, -amount), (to, amount)] {
                let row = txn.get(&self.table, &Row::key(id)).await?;
                let row = row.ok_or(TxnError::Corrupt { what: "an account is not there" })?;
                let value = txn.value_mut(row);
                balance.set(value, balance.get(value) + change);
            }
            Ok(())
        });
        moved.await.or_else(|error| if may_happen(&error) { Ok(()) } else { Err(error) })
    }

    /// Looks at all accounts in a snapshot, twice.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub async fn look(&self, snapshot: &Snapshot) -> Result<(), String> {
        let tasks = self.worker.snapshot_pages(snapshot, &self.table).await.map_err(|error| error.to_string())?;
        for look in ["first", "second"] {
            let found = sum_of(&self.worker, snapshot, &tasks, "balance").await;
            let expected = (u64::from(ACCOUNTS), i64::from(ACCOUNTS) * EACH);
            let found =
                found.map_err(|error| format!("the bank in a snapshot of epoch {}: {error}", snapshot.epoch()))?;
            if found != expected {
                let epoch = snapshot.epoch();
                return Err(format!(
                    "{look} look at a snapshot of epoch {epoch}: {found:?}, not {expected:?} (accounts, sum)"
                ));
            }
            pause(&self.worker).await;
        }
        Ok(())
    }

    /// Looks at all accounts in a transaction.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub async fn look_now(&self) -> Result<(), String> {
        let failed = |error: TxnError| format!("the bank: {error}");
        let balance = self.table.layout().i64("balance").map_err(|error| failed(error.into()))?;
        let found = self.worker.run(Retry::default(), async |txn| {
            let rows = txn.scan(&self.table, ScanSpec::all()).await?;
            Ok((rows.len(), rows.iter().map(|row| balance.get(txn.value(*row))).sum::<i64>()))
        });
        let found = found.await.map_err(failed)?;
        let expected = (ACCOUNTS as usize, i64::from(ACCOUNTS) * EACH);
        if found == expected {
            Ok(())
        } else {
            Err(format!("the bank has {found:?}, not {expected:?} (accounts, sum)"))
        }
    }
}

/// Rows of these pages in a snapshot, and the sum of a column.
///
/// # Errors
/// Those of a scan.
pub(super) async fn sum_of(
    worker: &Worker,
    snapshot: &Snapshot,
    tasks: &[PageTask],
    column: &str,
) -> Result<(u64, i64), TxnError> {
    let (mut rows, mut sum) = (0, 0);
    for task in tasks {
        let field = task.table().layout().i64(column)?;
        let mut visit = |_: &[u8], value: &[u8]| {
            rows += 1;
            sum += field.get(value);
        };
        worker.scan_page(snapshot, task, &mut visit).await?;
    }
    Ok((rows, sum))
}
