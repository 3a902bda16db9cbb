//! INSERT of rows given by expressions, with ON CONFLICT and RETURNING.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use farhold_txn::{Index, RowHandle, Txn, TxnError};

use super::run::{Effect, returned, stored};
use super::write::{Rules, apply_update, check_not_null};
use super::{Returning, unvalidated_duplicate};
use crate::engine::cancel::{CancelHandle, Pace};
use crate::engine::catalog::TableInfo;
use crate::engine::scalar::{Parameters, Scalar};
use crate::engine::sequence::Numbers;
use crate::engine::{Datum, error};
use crate::{SqlError, SqlState};

/// Numbers for the rows of tables without a primary key.
///
/// A number is `node << 56 | counter`. The counter starts at the microseconds since 1970 when the engine opens, so it
/// repeats no earlier number unless the node has inserted more than a million rows per second since then. If it does,
/// the insert meets a duplicate and takes the next number.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    next: AtomicI64,
}

impl RowNumbers {
    /// For this node, starting now.
    pub(crate) fn new(node: u8, microseconds: i64) -> Self {
        Self { next: AtomicI64::new((i64::from(node & 0x7f) << 56) | (microseconds & ((1 << 56) - 1))) }
    }

    pub(crate) fn next(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The action for a row whose key exists.
#[derive(Clone, Debug)]
pub(crate) enum OnConflict {
    /// Fail with 23505.
    Fail,
    /// Skip the row if it conflicts in this index or, with `None`, in any.
    Skip(Option<Index>),
    /// Update the existing row. Expressions see its columns, followed by those of the row to be inserted (`excluded`).
    Update { index: Index, assignments: Vec<(usize, Scalar)>, filter: Option<Scalar> },
}

/// An INSERT.
#[derive(Debug)]
pub(crate) struct Insert {
    pub(crate) table: Arc<TableInfo>,
    /// One expression per visible column.
    pub(crate) rows: Vec<Vec<Scalar>>,
    pub(crate) on_conflict: OnConflict,
    pub(crate) returning: Option<Returning>,
}

/// How many hidden row numbers are tried if they are taken.
const ROW_NUMBER_ATTEMPTS: u32 = 16;

impl Insert {
    pub(super) async fn run(
        &self,
        txn: &mut Txn,
        parameters: Parameters<'_>,
        numbers: Numbers<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let mut writer = Writer::new(self, numbers);
        let mut row = Vec::with_capacity(self.table.columns().len());
        let mut pace = Pace::new(cancel);
        for expressions in &self.rows {
            pace.step().await?;
            row.clear();
            for expression in expressions {
                row.push(numbers.evaluate(expression, &[], parameters).await?);
            }
            writer.write(txn, &mut row, parameters).await?;
        }
        Ok(writer.finish())
    }
}

/// Inserts rows one after the other. Each row has one datum per visible column.
pub(crate) struct Writer<'a> {
    insert: &'a Insert,
    numbers: Numbers<'a>,
    key: Vec<u8>,
    value: Vec<u8>,
    touched: HashSet<RowHandle>,
    effect: Effect,
}

impl<'a> Writer<'a> {
    /// For the rows of `insert`; its field `rows` is not used.
    pub(crate) fn new(insert: &'a Insert, numbers: Numbers<'a>) -> Self {
        let effect = Effect { rows: insert.returning.as_ref().map(|_| Vec::new()), count: 0 };
        Self { insert, numbers, key: Vec::new(), value: Vec::new(), touched: HashSet::new(), effect }
    }

    /// What the writer has done.
    pub(crate) fn finish(self) -> Effect {
        self.effect
    }

    /// Inserts `row`, or applies ON CONFLICT.
    pub(crate) async fn write(
        &mut self,
        txn: &mut Txn,
        row: &mut Vec<Datum>,
        parameters: Parameters<'_>,
    ) -> Result<(), SqlError> {
        let table = &self.insert.table;
        table.check_current()?;
        check_not_null(table, row)?;
        if table.hidden_row_number {
            row.push(Datum::BigInt(self.numbers.rows.next()));
        }
        let arbiter = match self.insert.on_conflict {
            OnConflict::Fail => None,
            OnConflict::Skip(index) => index,
            OnConflict::Update { index, .. } => Some(index),
        };
        if !matches!(self.insert.on_conflict, OnConflict::Fail) {
            // Conflicts and `excluded` concern the row as its columns store it.
            *row = stored(table, row)?;
        }
        let schema = table.schema();
        if !table.checks.is_empty() {
            schema.encode_key(row, &mut self.key).map_err(|e| error::from_row(&e))?;
            schema.encode_value(row, &mut self.value).map_err(|e| error::from_row(&e))?;
            table.check_written(&table.checks, (&self.key, &self.value), parameters)?;
        }
        if let OnConflict::Update { index, assignments, filter } = &self.insert.on_conflict {
            let old = self.existing(txn, *index, row).await?;
            if let Some(old) = old {
                let (assignments, filter) = (assignments, filter.as_ref());
                return self.update_existing(txn, old, row, (assignments, filter), parameters).await;
            }
        }
        if let OnConflict::Skip(Some(index)) = &self.insert.on_conflict
            && self.existing(txn, *index, row).await?.is_some()
        {
            return Ok(());
        }
        schema.encode_value(row, &mut self.value).map_err(|e| error::from_row(&e))?;
        for attempt in 1.. {
            schema.encode_key(row, &mut self.key).map_err(|e| error::from_row(&e))?;
            match txn.insert(&table.table, &self.key, &self.value).await {
                Ok(handle) => {
                    self.touched.insert(handle);
                    break;
                }
                Err(TxnError::DuplicateKey { index: Index::Primary, .. })
                    if table.hidden_row_number && attempt < ROW_NUMBER_ATTEMPTS =>
                {
                    row[table.visible] = Datum::BigInt(self.numbers.rows.next());
                }
                Err(TxnError::DuplicateKey { .. }) if matches!(self.insert.on_conflict, OnConflict::Skip(None)) => {
                    return Ok(());
                }
                // The key did not exist a moment ago: another transaction has inserted it since.
                Err(TxnError::DuplicateKey { index, .. }) if arbiter == Some(index) => {
                    return Err(error::from_txn(&TxnError::Conflict));
                }
                Err(e) => return Err(table.explain(&e, Some(row))),
            }
        }
        self.done(row, parameters)
    }

    fn done(&mut self, row: &[Datum], parameters: Parameters<'_>) -> Result<(), SqlError> {
        self.effect.count += 1;
        if let (Some(rows), Some(returning)) = (&mut self.effect.rows, &self.insert.returning) {
            rows.push(returned(&self.insert.table, returning, row, Vec::new(), parameters)?);
        }
        Ok(())
    }

    /// The existing row whose key in `index` is that of `row`.
    async fn existing(&mut self, txn: &mut Txn, index: Index, row: &[Datum]) -> Result<Option<RowHandle>, SqlError> {
        let table = &self.insert.table;
        let parts: Vec<Datum> = table.index_columns(index).iter().map(|&c| row[c].clone()).collect();
        if parts.iter().any(Datum::is_null) {
            return Ok(None);
        }
        table.encode_parts(index, &parts, &mut self.key).map_err(|e| error::from_row(&e))?;
        let found = match index {
            Index::Primary => txn.get(&table.table, &self.key).await,
            index @ Index::Secondary(_) => txn.get_by(&table.table, index, &self.key).await,
        };
        found.map_err(|e| error::from_txn(&e))
    }

    async fn update_existing(
        &mut self,
        txn: &mut Txn,
        old: RowHandle,
        excluded: &[Datum],
        (assignments, filter): (&[(usize, Scalar)], Option<&Scalar>),
        parameters: Parameters<'_>,
    ) -> Result<(), SqlError> {
        let table = &self.insert.table;
        // A row that this command has inserted or updated, even if the filter does not match it.
        if self.touched.contains(&old) {
            return Err(SqlError::new(
                SqlState::CARDINALITY_VIOLATION,
                "ON CONFLICT DO UPDATE command cannot affect row a second time",
            )
            .with_hint(
                "Ensure that no rows proposed for insertion within the same command have duplicate constrained values.",
            ));
        }
        let mut row = vec![Datum::Null; table.columns().len()];
        table.read(txn.key(old), txn.value(old), &table.wanted_all(), &mut row)?;
        let mut both = row[..table.visible].to_vec();
        both.extend_from_slice(&excluded[..table.visible]);
        if let Some(filter) = filter
            && !filter.holds(&both, parameters)?
        {
            return Ok(());
        }
        self.touched.insert(old);
        for (column, value) in assignments {
            row[*column] = self.numbers.evaluate(value, &both, parameters).await?;
        }
        let rules = Rules::new(table, assignments.iter().map(|(column, _)| *column));
        if let Some(moved) = apply_update(txn, &rules, old, &row, parameters)? {
            let handle = txn
                .insert(&table.table, &moved.key, &moved.value)
                .await
                .map_err(|e| unvalidated_duplicate(table, &e, &row))?;
            self.touched.insert(handle);
        }
        self.done(&row, parameters)
    }
}
