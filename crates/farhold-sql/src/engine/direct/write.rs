//! UPDATE and DELETE of the rows found by an index and a filter.

use std::sync::Arc;

use farhold_txn::{RowHandle, Txn, TxnError};

use super::Returning;
use super::access::Access;
use super::run::{Effect, returned, txn_error};
use crate::engine::cancel::{CancelHandle, Pace};
use crate::engine::catalog::{Check, IndexInfo, TableInfo};
use crate::engine::scalar::{Parameters, Scalar};
use crate::engine::sequence::Numbers;
use crate::engine::{Datum, error};
use crate::{SqlError, SqlState};

/// An UPDATE.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) access: Access,
    pub(crate) filter: Option<Scalar>,
    pub(crate) assignments: Vec<(usize, Scalar)>,
    pub(crate) returning: Option<Returning>,
}

/// A DELETE.
#[derive(Debug)]
pub(crate) struct Delete {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) access: Access,
    pub(crate) filter: Option<Scalar>,
    pub(crate) returning: Option<Returning>,
}

/// A row whose primary key or unique index key an UPDATE has changed: it is already deleted, and is to be inserted
/// again.
pub(crate) struct Moved {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// 23502 for the first NOT NULL column whose value is NULL.
pub(crate) fn check_not_null(table: &TableInfo, row: &[Datum]) -> Result<(), SqlError> {
    for (column, datum) in table.visible_columns().iter().zip(row) {
        if datum.is_null() && !column.nullable {
            let mut error = SqlError::new(
                SqlState::NOT_NULL_VIOLATION,
                format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    column.name, table.name
                ),
            );
            error.table = Some(table.name.as_str().into());
            return Err(error);
        }
    }
    Ok(())
}

/// Gives the row at `handle` the values `row`. If its primary key or the key of a unique index changes, the row is
/// deleted, and the row to insert in its place is returned. All deletes of a statement precede its inserts, so rows may
/// exchange keys: uniqueness is checked when the statement ends.
pub(crate) fn apply_update(
    txn: &mut Txn,
    rules: &Rules<'_>,
    handle: RowHandle,
    row: &[Datum],
    parameters: Parameters<'_>,
) -> Result<Option<Moved>, SqlError> {
    let table = rules.table;
    table.check_current()?;
    check_not_null(table, row)?;
    let schema = table.schema();
    let (mut key, mut value) = (Vec::with_capacity(32), Vec::with_capacity(128));
    schema.encode_key(row, &mut key).map_err(|e| error::from_row(&e))?;
    schema.encode_value(row, &mut value).map_err(|e| error::from_row(&e))?;
    table.check_written(rules.checks.iter().copied(), (&key, &value), parameters)?;
    if txn.key(handle) != key || rules.moves(&key, txn.value(handle), &value)? {
        txn.delete(handle).map_err(txn_error)?;
        return Ok(Some(Moved { key, value }));
    }
    txn.update(handle, &value).map_err(|e| table.explain(&e, Some(row)))?;
    Ok(None)
}

/// The error of an insert that replaces a moved row.
pub(crate) fn unvalidated_duplicate(table: &TableInfo, e: &TxnError, row: &[Datum]) -> SqlError {
    table.explain(e, Some(row))
}

impl Update {
    pub(super) async fn run(
        &self,
        txn: &mut Txn,
        parameters: Parameters<'_>,
        numbers: Numbers<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let table = &self.table;
        let wanted = table.wanted_all();
        let mut effect = Effect { rows: self.returning.as_ref().map(|_| Vec::new()), count: 0 };
        let mut moved = Vec::new();
        let mut row = vec![Datum::Null; table.columns().len()];
        let rules = Rules::new(table, self.assignments.iter().map(|(column, _)| *column));
        let handles = self.access.rows(txn, table, parameters, usize::MAX, cancel).await?;
        let mut pace = Pace::new(cancel);
        for handle in handles {
            pace.step().await?;
            table.read(txn.key(handle), txn.value(handle), &wanted, &mut row)?;
            if let Some(filter) = &self.filter
                && !filter.holds(&row, parameters)?
            {
                continue;
            }
            let mut values = Vec::with_capacity(self.assignments.len());
            for (column, value) in &self.assignments {
                values.push((*column, numbers.evaluate(value, &row, parameters).await?));
            }
            for (column, value) in values {
                row[column] = value;
            }
            if let Some(again) = apply_update(txn, &rules, handle, &row, parameters)? {
                moved.push((again, row.clone()));
            }
            effect.count += 1;
            if let (Some(rows), Some(returning)) = (&mut effect.rows, &self.returning) {
                rows.push(returned(table, returning, &row, Vec::new(), parameters)?);
            }
        }
        insert_moved(txn, table, moved, &mut pace).await?;
        Ok(effect)
    }
}

/// What an UPDATE of some columns has to look at.
pub(crate) struct Rules<'a> {
    table: &'a TableInfo,
    /// The unique indexes whose keys it may change.
    unique: Vec<&'a IndexInfo>,
    /// The checks that it may violate.
    checks: Vec<&'a Check>,
}

impl<'a> Rules<'a> {
    /// For an UPDATE of the columns `assigned`.
    pub(crate) fn new(table: &'a TableInfo, assigned: impl Iterator<Item = usize>) -> Self {
        let assigned: Vec<usize> = assigned.collect();
        let is_touched = |index: &&IndexInfo| assigned.iter().any(|column| index.columns.contains(column));
        let unique = table.indexes.iter().filter(|index| index.unique && index.ready).filter(is_touched).collect();
        let checks = table.checks.iter().filter(|check| check.may_be_broken_by(&assigned)).collect();
        Self { table, unique, checks }
    }

    /// Whether the new value changes the row's key in one of the unique indexes.
    fn moves(&self, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool, SqlError> {
        for index in &self.unique {
            if !index.keys.same(self.table.schema(), key, old, new).map_err(|e| error::from_row(&e))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Inserts the rows whose keys changed.
pub(crate) async fn insert_moved(
    txn: &mut Txn,
    table: &TableInfo,
    moved: Vec<(Moved, Vec<Datum>)>,
    pace: &mut Pace,
) -> Result<(), SqlError> {
    for (again, row) in moved {
        pace.step().await?;
        txn.insert(&table.table, &again.key, &again.value).await.map_err(|e| unvalidated_duplicate(table, &e, &row))?;
    }
    Ok(())
}

impl Delete {
    pub(super) async fn run(
        &self,
        txn: &mut Txn,
        parameters: Parameters<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let table = &self.table;
        let wanted = table.wanted_all();
        let mut effect = Effect { rows: self.returning.as_ref().map(|_| Vec::new()), count: 0 };
        let mut row = vec![Datum::Null; table.columns().len()];
        let handles = self.access.rows(txn, table, parameters, usize::MAX, cancel).await?;
        let mut pace = Pace::new(cancel);
        for handle in handles {
            pace.step().await?;
            if self.filter.is_some() || self.returning.is_some() {
                table.read(txn.key(handle), txn.value(handle), &wanted, &mut row)?;
            }
            if let Some(filter) = &self.filter
                && !filter.holds(&row, parameters)?
            {
                continue;
            }
            txn.delete(handle).map_err(txn_error)?;
            effect.count += 1;
            if let (Some(rows), Some(returning)) = (&mut effect.rows, &self.returning) {
                rows.push(returned(table, returning, &row, Vec::new(), parameters)?);
            }
        }
        Ok(effect)
    }
}
