//! Statements that need no planner.
//!
//! A SELECT that a key or an index answers, and every single-table INSERT, UPDATE and DELETE whose expressions are
//! [`Scalar`](super::scalar::Scalar)s, becomes a [`Program`]. It is bound to its table once, and runs in the session's
//! transaction on the session's thread.

mod access;
mod compile;
mod forms;
mod insert;
mod names;
mod run;
mod write;

pub(crate) use access::{Access, choose, scan};
pub(crate) use compile::{Compiler, assignment_pairs, bind_returning, check_once, default_of, default_row};
pub(crate) use forms::{check_delete, check_single_table, check_target_count, check_update, is_default, is_plain};
pub(crate) use insert::{Insert, OnConflict, RowNumbers, Writer};
pub(crate) use names::output_name;
pub(crate) use run::{Effect, ROWS_MAX, returned};
pub(crate) use write::{Delete, Rules, Update, apply_update, insert_moved, unvalidated_duplicate};

use std::sync::Arc;

use super::OutputColumn;
use super::catalog::{TableInfo, Wanted};
use super::scalar::Scalar;
use super::types::to_arrow;
use super::{ColumnType, types};
use crate::value::Zone;

/// A compiled statement.
#[derive(Debug)]
pub(crate) enum Program {
    /// One row that reads no table.
    Constant(Vec<(Scalar, OutputColumn)>),
    Select(Select),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
}

/// The rows of one table by one of its indexes.
#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) access: Access,
    pub(crate) filter: Option<Scalar>,
    /// The columns that are read.
    pub(crate) wanted: Wanted,
    pub(crate) output: Vec<(Scalar, OutputColumn)>,
    pub(crate) limit: Option<Scalar>,
    pub(crate) offset: Option<Scalar>,
    /// Mark the rows as written. If another transaction changes one of them and commits first, this one fails.
    pub(crate) for_update: bool,
}

/// The items of a RETURNING clause, over the row as the statement left it.
#[derive(Clone, Debug)]
pub(crate) struct Returning {
    pub(crate) items: Vec<(Scalar, OutputColumn)>,
}

/// A column of a result.
pub(crate) fn output_column(name: String, data_type: ColumnType) -> OutputColumn {
    OutputColumn { name, data_type, arrow_type: to_arrow(data_type) }
}

impl Program {
    /// The columns of its result, if it returns rows.
    pub(crate) fn columns(&self) -> Option<Vec<OutputColumn>> {
        let items = match self {
            Self::Constant(output) => output,
            Self::Select(select) => &select.output,
            Self::Insert(Insert { returning, .. })
            | Self::Update(Update { returning, .. })
            | Self::Delete(Delete { returning, .. }) => &returning.as_ref()?.items,
        };
        Some(items.iter().map(|(_, column)| column.clone()).collect())
    }

    /// Whether it writes nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::Constant(_) | Self::Select(Select { for_update: false, .. }))
    }

    /// The lines of an EXPLAIN, one per step.
    pub(crate) fn explain(&self) -> Vec<String> {
        match self {
            Self::Constant(_) => vec!["Direct: Result".to_owned()],
            Self::Select(select) => {
                let mut lines = vec![format!("Direct: {}", select.access.describe(&select.table))];
                if select.filter.is_some() {
                    lines.push("  Filter: evaluated on each row".to_owned());
                }
                if select.limit.is_some() || select.offset.is_some() {
                    lines.push("  Limit: the scan stops there".to_owned());
                }
                if select.for_update {
                    lines.push("  For update: rows are validated and locked at commit".to_owned());
                }
                lines
            }
            Self::Insert(insert) => vec![format!(
                "Direct: Insert into {} ({} row{})",
                insert.table.name,
                insert.rows.len(),
                if insert.rows.len() == 1 { "" } else { "s" }
            )],
            Self::Update(update) => {
                let mut lines = vec![format!("Direct: Update {}", update.table.name)];
                lines.push(format!("  -> {}", update.access.describe(&update.table)));
                if update.filter.is_some() {
                    lines.push("     Filter: evaluated on each row".to_owned());
                }
                lines
            }
            Self::Delete(delete) => {
                let mut lines = vec![format!("Direct: Delete from {}", delete.table.name)];
                lines.push(format!("  -> {}", delete.access.describe(&delete.table)));
                if delete.filter.is_some() {
                    lines.push("     Filter: evaluated on each row".to_owned());
                }
                lines
            }
        }
    }
}

/// The type on the wire of a bound expression: an unknown type becomes text.
pub(crate) fn wire_type(data_type: Option<ColumnType>) -> ColumnType {
    data_type.unwrap_or(ColumnType::Text)
}

/// A datum as a value of its output column's type. A decimal keeps its scale.
pub(crate) fn to_output(
    datum: super::Datum,
    column: &OutputColumn,
    zone: Zone,
) -> Result<super::Datum, crate::SqlError> {
    match (column.data_type, &datum) {
        (ColumnType::Decimal { .. }, super::Datum::Decimal { .. }) => Ok(datum),
        (data_type, _) => types::cast(datum, data_type, zone),
    }
}
