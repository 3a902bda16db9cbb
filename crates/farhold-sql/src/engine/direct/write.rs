//! UPDATE and DELETE of the rows that an index and a filter find.

use std::collections::HashSet;
use std::sync::Arc;

use farhold_txn::{Index, RowHandle, Txn, TxnError};

use super::Returning;
use super::access::Access;
use super::run::{Effect, returned, txn_error};
use crate::engine::cancel::{CancelHandle, Pace};
use crate::engine::catalog::TableInfo;
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

/// A row whose primary key an UPDATE changed: deleted already, to be inserted again.
pub(crate) struct Moved {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// 23502 for the first NOT NULL column that is null.
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

/// Gives the row at `handle` the columns `row`. When its primary key changes the row is deleted, and what is to be
/// inserted in its place comes back: all deletes of a statement go before its inserts, so keys may move along.
pub(crate) fn apply_update(
    txn: &mut Txn,
    table: &TableInfo,
    handle: RowHandle,
    row: &[Datum],
) -> Result<Option<Moved>, SqlError> {
    check_not_null(table, row)?;
    let schema = table.schema();
    let (mut key, mut value) = (Vec::with_capacity(32), Vec::with_capacity(128));
    schema.encode_key(row, &mut key).map_err(|e| error::from_row(&e))?;
    schema.encode_value(row, &mut value).map_err(|e| error::from_row(&e))?;
    if txn.key(handle) != key {
        txn.delete(handle).map_err(txn_error)?;
        return Ok(Some(Moved { key, value }));
    }
    txn.update(handle, &value).map_err(|e| table.explain(&e, Some(row)))?;
    Ok(None)
}

/// The error of an insert that puts a moved row in its place.
pub(crate) fn unsafe_duplicate(table: &TableInfo, e: &TxnError, row: &[Datum]) -> SqlError {
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
        let mut unique = UniqueCheck::new(table, self.assignments.iter().map(|(column, _)| *column));
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
            match apply_update(txn, table, handle, &row)? {
                Some(again) => moved.push((again, row.clone())),
                None => unique.changed(handle, &row),
            }
            effect.count += 1;
            if let (Some(rows), Some(returning)) = (&mut effect.rows, &self.returning) {
                rows.push(returned(table, returning, &row, parameters)?);
            }
        }
        insert_moved(txn, table, moved, &mut pace).await?;
        unique.check(txn, table, &mut pace).await?;
        Ok(effect)
    }
}

/// Watches an UPDATE for rows that come to share the key of a unique index. The commit would find them too, but then the
/// statement would have seemed to succeed. Checked when all rows have their values, so keys may trade places.
pub(crate) struct UniqueCheck {
    /// The unique indexes on an assigned column.
    indexes: Vec<Index>,
    changed: Vec<(RowHandle, Vec<Datum>)>,
}

impl UniqueCheck {
    /// For an UPDATE of the columns `assigned`.
    pub(crate) fn new(table: &TableInfo, assigned: impl Iterator<Item = usize>) -> Self {
        let assigned: Vec<usize> = assigned.collect();
        let touched = |columns: &[usize]| assigned.iter().any(|column| columns.contains(column));
        let indexes =
            table.indexes.iter().filter(|i| i.unique && i.ready && touched(&i.columns)).map(|i| i.index).collect();
        Self { indexes, changed: Vec::new() }
    }

    /// A row has its new values.
    pub(crate) fn changed(&mut self, handle: RowHandle, row: &[Datum]) {
        if !self.indexes.is_empty() {
            self.changed.push((handle, row.to_vec()));
        }
    }

    /// All rows have.
    pub(crate) async fn check(self, txn: &mut Txn, table: &TableInfo, pace: &mut Pace) -> Result<(), SqlError> {
        let mut key = Vec::new();
        for index in self.indexes {
            let mut seen = HashSet::new();
            for (handle, row) in &self.changed {
                pace.step().await?;
                let parts: Vec<Datum> = table.index_columns(index).iter().map(|&c| row[c].clone()).collect();
                if parts.iter().any(Datum::is_null) {
                    continue;
                }
                table.encode_parts(index, &parts, &mut key).map_err(|e| error::from_row(&e))?;
                let found = txn.get_by(&table.table, index, &key).await.map_err(txn_error)?;
                if !seen.insert(key.clone()) || found.is_some_and(|other| other != *handle) {
                    let duplicate = TxnError::DuplicateKey { table: table.table.id(), index };
                    return Err(table.explain(&duplicate, Some(row)));
                }
            }
        }
        Ok(())
    }
}

/// Inserts the rows whose primary key changed.
pub(crate) async fn insert_moved(
    txn: &mut Txn,
    table: &TableInfo,
    moved: Vec<(Moved, Vec<Datum>)>,
    pace: &mut Pace,
) -> Result<(), SqlError> {
    for (again, row) in moved {
        pace.step().await?;
        txn.insert(&table.table, &again.key, &again.value).await.map_err(|e| unsafe_duplicate(table, &e, &row))?;
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
                rows.push(returned(table, returning, &row, parameters)?);
            }
        }
        Ok(effect)
    }
}
