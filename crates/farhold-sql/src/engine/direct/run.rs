//! Runs a program in a transaction.

use farhold_txn::{RowHandle, Txn};

use super::{Program, Select, to_output};
use crate::engine::cancel::{CancelHandle, Pace};
use crate::engine::scalar::{Parameters, Scalar};
use crate::engine::sequence::Numbers;
use crate::engine::{ColumnType, Datum, error, types};
use crate::{SqlError, SqlState};

/// What a program did.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// Rows of the result, if the statement has one.
    pub(crate) rows: Option<Vec<Vec<Datum>>>,
    /// Rows read or written.
    pub(crate) count: u64,
}

impl Program {
    /// Runs the program. `None` means that it is a SELECT of more than `rows_max` rows and has done nothing.
    pub(crate) async fn run(
        &self,
        txn: &mut Txn,
        parameters: Parameters<'_>,
        numbers: Numbers<'_>,
        rows_max: usize,
        cancel: &CancelHandle,
    ) -> Result<Option<Effect>, SqlError> {
        let effect = match self {
            Self::Constant(output) => {
                let mut row = Vec::with_capacity(output.len());
                for (scalar, column) in output {
                    row.push(to_output(numbers.evaluate(scalar, &[], parameters).await?, column, parameters.zone)?);
                }
                Ok(Effect { rows: Some(vec![row]), count: 1 })
            }
            Self::Select(select) => return select.run(txn, parameters, rows_max, cancel).await,
            Self::Insert(insert) => insert.run(txn, parameters, numbers, cancel).await,
            Self::Update(update) => update.run(txn, parameters, numbers, cancel).await,
            Self::Delete(delete) => delete.run(txn, parameters, cancel).await,
        };
        effect.map(Some)
    }
}

/// A clause with a number of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clause {
    Limit,
    Offset,
}

impl Clause {
    const fn word(self) -> &'static str {
        match self {
            Self::Limit => "LIMIT",
            Self::Offset => "OFFSET",
        }
    }

    const fn negative(self) -> SqlState {
        match self {
            Self::Limit => SqlState::INVALID_LIMIT,
            Self::Offset => SqlState::INVALID_OFFSET,
        }
    }
}

/// The value of LIMIT or OFFSET.
pub(crate) fn count_of(
    scalar: Option<&Scalar>,
    parameters: Parameters<'_>,
    clause: Clause,
) -> Result<Option<usize>, SqlError> {
    let Some(scalar) = scalar else { return Ok(None) };
    match types::cast(scalar.evaluate(&[], parameters)?, ColumnType::BigInt, parameters.zone)? {
        Datum::BigInt(count) => usize::try_from(count)
            .map(Some)
            .map_err(|_| SqlError::new(clause.negative(), format!("{} must not be negative", clause.word()))),
        _ => Ok(None),
    }
}

/// A SELECT of more rows belongs to the query path: the direct path holds all rows in memory and validates each.
pub(crate) const ROWS_MAX: usize = 10_000;

impl Select {
    /// Whether it may read many rows: a non-unique index may have any number of rows per key.
    pub(crate) fn may_be_long(&self) -> bool {
        !self.for_update && !self.access.point
    }

    /// Whether only its LIMIT bounds the number of rows it reads, and the bound is above [`ROWS_MAX`].
    pub(crate) fn is_long(&self, parameters: Parameters<'_>) -> Result<bool, SqlError> {
        if self.for_update || self.access.is_narrow(&self.table) {
            return Ok(false);
        }
        let limit = count_of(self.limit.as_ref(), parameters, Clause::Limit)?.unwrap_or(usize::MAX);
        let offset = count_of(self.offset.as_ref(), parameters, Clause::Offset)?.unwrap_or(0);
        Ok(limit > 0 && limit.saturating_add(offset) > ROWS_MAX)
    }

    async fn run(
        &self,
        txn: &mut Txn,
        parameters: Parameters<'_>,
        rows_max: usize,
        cancel: &CancelHandle,
    ) -> Result<Option<Effect>, SqlError> {
        let table = &self.table;
        let limit = count_of(self.limit.as_ref(), parameters, Clause::Limit)?.unwrap_or(usize::MAX);
        let offset = count_of(self.offset.as_ref(), parameters, Clause::Offset)?.unwrap_or(0);
        let wanted = limit.saturating_add(offset);
        // A filter may drop rows, so the number of rows to scan is not known.
        let scanned = if self.filter.is_some() { usize::MAX } else { wanted };
        let mut row = vec![Datum::Null; table.columns().len()];
        let mut rows = Vec::new();
        if limit == 0 {
            return Ok(Some(Effect { rows: Some(rows), count: 0 }));
        }
        let handles = if self.access.point {
            // The hot path avoids a list of rows.
            let mut key = Vec::with_capacity(64);
            match self.access.row(txn, table, parameters, &mut key).await? {
                Some(handle) if offset == 0 => {
                    table.read(txn.key(handle), txn.value(handle), &self.wanted, &mut row)?;
                    if self.matches(&row, parameters)? {
                        rows.push(self.project(&row, parameters)?);
                        if self.for_update {
                            mark_written(txn, handle)?;
                        }
                    }
                    Vec::new()
                }
                _ => Vec::new(),
            }
        } else {
            let handles =
                self.access.rows(txn, table, parameters, scanned.min(rows_max.saturating_add(1)), cancel).await?;
            if handles.len() > rows_max {
                return Ok(None);
            }
            handles
        };
        let mut skip = offset;
        let mut pace = Pace::new(cancel);
        for handle in handles {
            pace.step().await?;
            table.read(txn.key(handle), txn.value(handle), &self.wanted, &mut row)?;
            if !self.matches(&row, parameters)? {
                continue;
            }
            if skip > 0 {
                skip -= 1;
                continue;
            }
            rows.push(self.project(&row, parameters)?);
            if self.for_update {
                mark_written(txn, handle)?;
            }
            if rows.len() == limit {
                break;
            }
        }
        let count = rows.len() as u64;
        Ok(Some(Effect { rows: Some(rows), count }))
    }

    fn matches(&self, row: &[Datum], parameters: Parameters<'_>) -> Result<bool, SqlError> {
        self.filter.as_ref().map_or(Ok(true), |filter| filter.holds(row, parameters))
    }

    fn project(&self, row: &[Datum], parameters: Parameters<'_>) -> Result<Vec<Datum>, SqlError> {
        self.output
            .iter()
            .map(|(scalar, column)| match scalar {
                Scalar::Column(index) => Ok(row[*index].clone()),
                scalar => to_output(scalar.evaluate(row, parameters)?, column, parameters.zone),
            })
            .collect()
    }
}

/// Writes a row unchanged, so that it conflicts with any other write before this transaction's commit.
fn mark_written(txn: &mut Txn, handle: RowHandle) -> Result<(), SqlError> {
    let value = txn.value(handle).to_vec();
    txn.update(handle, &value).map_err(txn_error)
}

/// A row as it is stored: decimals rounded, trailing blanks of strings removed.
///
/// # Errors
/// Values that its columns do not accept.
pub(crate) fn stored(table: &super::TableInfo, row: &[Datum]) -> Result<Vec<Datum>, SqlError> {
    let (mut key, mut value, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    let schema = table.schema();
    schema
        .encode_key(row, &mut key)
        .and_then(|()| schema.encode_value(row, &mut value))
        .and_then(|()| schema.decode_row(&key, &value, &mut stored))
        .map_err(|e| error::from_row(&e))?;
    Ok(stored)
}

/// The items of a RETURNING clause over one row, as [`stored`], and over the values `beside` it.
pub(crate) fn returned(
    table: &super::TableInfo,
    returning: &super::Returning,
    row: &[Datum],
    beside: Vec<Datum>,
    parameters: Parameters<'_>,
) -> Result<Vec<Datum>, SqlError> {
    let mut stored = stored(table, row)?;
    if !beside.is_empty() {
        stored.truncate(table.visible_columns().len());
        stored.extend(beside);
    }
    let item =
        |(scalar, column): &(Scalar, _)| to_output(scalar.evaluate(&stored, parameters)?, column, parameters.zone);
    returning.items.iter().map(item).collect()
}

/// A transaction's error that concerns no particular row.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn txn_error(e: farhold_txn::TxnError) -> SqlError {
    error::from_txn(&e)
}
