//! CHECK constraints of a table, bound once for each version of its definition.
//!
//! ```text
//!   a row to write ─► NOT NULL ─► encoded ─► checks, in the order of their names, on the row as it is encoded ─► the transaction
//! ```
//! A check sees a row as its columns store it: 0.999 in a NUMERIC(5,2) is 1.00. NULL passes.
//!
//! A statement that was bound before a check was added must not write by its older [`TableInfo`]. Transactions that began before
//! are refused at their commit (`farhold_txn::Worker::change_attributes`). For those that begin later, every write first compares the
//! version of the table's attributes with that of the `TableInfo`.

use farhold_txn::TxnError;

use super::attributes::CheckDef;
use super::table::TableInfo;
use crate::engine::parse::parse_expr;
use crate::engine::scalar::{Binder, ColumnRef, Function, Parameters, Scalar};
use crate::engine::{Datum, error};
use crate::value::{Zone, put, written};
use crate::{SqlError, SqlState};

/// A CHECK constraint.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// The condition as SQL.
    pub(crate) text: String,
    pub(crate) validated: bool,
    /// The columns that it reads, ascending.
    pub(crate) columns: Vec<usize>,
    condition: Scalar,
    /// Whether its value for one row may change with time, or with the session's time zone.
    varies: bool,
}

/// PostgreSQL's limit on the bytes of a value in a message.
const SHOWN_BYTES_MAX: usize = 64;

impl Check {
    /// A stored check of a table with these columns. Its text means the same in every time zone.
    pub(super) fn new(stored: CheckDef, columns: &[ColumnRef]) -> Result<Self, SqlError> {
        let wrong = || {
            SqlError::internal(format!(
                "the stored check \"{}\" is not a valid condition: {}",
                stored.name, stored.text
            ))
        };
        let expression = parse_expr(&stored.text).map_err(|_| wrong())?;
        let mut parameters = Vec::new();
        let mut binder = Binder { columns, parameters: &mut parameters, zone: Zone::UTC, is_kept: true };
        let condition = binder.bind_check(&expression).map_err(|_| wrong())?;
        let (columns, varies) = (columns_of(&condition), varies(&condition));
        let CheckDef { number, name, text, validated } = stored;
        Ok(Self { number, name, text, validated, columns, condition, varies })
    }

    /// Whether an UPDATE of the columns `assigned` may violate it, for rows that a validated check holds for.
    pub(crate) fn may_be_broken_by(&self, assigned: &[usize]) -> bool {
        !self.validated || self.varies || self.columns.iter().any(|column| assigned.contains(column))
    }

    /// Whether a row passes. It needs the values of [`columns`](Self::columns).
    ///
    /// # Errors
    /// Those of the condition.
    pub(crate) fn passes(&self, row: &[Datum], parameters: Parameters<'_>) -> Result<bool, SqlError> {
        Ok(self.condition.evaluate(row, parameters)? != Datum::Boolean(false))
    }
}

/// The columns that an expression reads, ascending.
pub(crate) fn columns_of(condition: &Scalar) -> Vec<usize> {
    let mut columns = Vec::new();
    condition.visit(&mut |scalar| {
        if let Scalar::Column(column) = scalar {
            columns.push(*column);
        }
    });
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Casts and `||` may convert timestamps.
fn varies(condition: &Scalar) -> bool {
    let mut found = false;
    condition.visit(&mut |scalar| {
        let is_time = |function: &Function| {
            matches!(
                function,
                Function::TransactionTime | Function::StatementTime | Function::ClockTime | Function::Concat
            )
        };
        found |= match scalar {
            Scalar::Cast { .. } => true,
            Scalar::Call(function, _) => is_time(function),
            _ => false,
        };
    });
    found
}

impl TableInfo {
    /// Called before each row is written.
    ///
    /// # Errors
    /// 40001 if the table's definition has changed since the statement was bound: it must be bound again.
    pub(crate) fn check_current(&self) -> Result<(), SqlError> {
        if self.table.attributes_version() == self.attributes_version {
            return Ok(());
        }
        Err(error::from_txn(&TxnError::SchemaChanged))
    }

    /// Evaluates checks on an encoded row.
    ///
    /// # Errors
    /// 23514 for the first check that is false, and the errors of their conditions.
    pub(crate) fn check_written<'c>(
        &self,
        checks: impl IntoIterator<Item = &'c Check>,
        (key, value): (&[u8], &[u8]),
        parameters: Parameters<'_>,
    ) -> Result<(), SqlError> {
        let mut row = Vec::new();
        for check in checks {
            if row.is_empty() {
                row.resize(self.columns().len(), Datum::Null);
                self.read(key, value, &self.checked, &mut row)?;
            }
            if !check.passes(&row, parameters)? {
                self.read(key, value, &self.wanted_all(), &mut row)?;
                return Err(self.violation(check, &row, parameters.zone));
            }
        }
        Ok(())
    }

    /// 23514 for a new row.
    fn violation(&self, check: &Check, row: &[Datum], zone: Zone) -> SqlError {
        let message = format!("new row for relation \"{}\" violates check constraint \"{}\"", self.name, check.name);
        let values = row.iter().zip(self.visible_columns());
        let values: Vec<String> = values.map(|(datum, column)| shown(datum, column.data_type, zone)).collect();
        let error = SqlError::new(SqlState::CHECK_VIOLATION, message)
            .with_detail(format!("Failing row contains ({}).", values.join(", ")));
        self.of_check(error, &check.name)
    }

    /// An error with the names of this table and of a check.
    pub(crate) fn of_check(&self, mut error: SqlError, check: &str) -> SqlError {
        error.constraint = Some(check.into());
        error.table = Some(self.name.as_str().into());
        error
    }
}

/// A value as PostgreSQL shows it in "Failing row contains".
fn shown(datum: &Datum, data_type: crate::engine::ColumnType, zone: Zone) -> String {
    if datum.is_null() {
        return "null".to_owned();
    }
    let mut text = written(|out| put(datum, data_type, zone, out));
    if text.len() > SHOWN_BYTES_MAX {
        let cut = (0..=SHOWN_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ColumnType;

    /// As PostgreSQL 15 shows them.
    #[test]
    fn values_of_a_failing_row() {
        let text = |text: &str, data_type| shown(&Datum::Text(text.to_owned()), data_type, Zone::UTC);
        assert_eq!(shown(&Datum::Null, ColumnType::Int, Zone::UTC), "null");
        assert_eq!(shown(&Datum::Boolean(true), ColumnType::Boolean, Zone::UTC), "t");
        assert_eq!(text("ab", ColumnType::Char(4)), "ab  ");
        assert_eq!(text(&"x".repeat(64), ColumnType::Text), "x".repeat(64));
        assert_eq!(text(&"x".repeat(65), ColumnType::Text), format!("{}...", "x".repeat(64)));
        // Whole characters within 64 bytes.
        assert_eq!(text(&format!("x{}", "ä".repeat(40)), ColumnType::Text), format!("x{}...", "ä".repeat(31)));
    }
}
