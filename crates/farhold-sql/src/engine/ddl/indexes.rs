//! CREATE INDEX, and the index of a UNIQUE constraint.

use datafusion::sql::sqlparser::ast::{CreateIndex, Expr, IndexColumn};
use farhold_store::row::SecondaryIndex;
use farhold_txn::{TxnError, Worker};

use super::super::catalog::{Catalog, TableInfo, no_such_table, table_name};
use super::super::scalar::fold;
use super::Done;
use super::define::definition_error;
use crate::{SqlError, SqlState};

/// Runs a CREATE INDEX.
pub(crate) async fn create_index(
    catalog: &Catalog,
    worker: &Worker,
    statement: &CreateIndex,
) -> Result<Done, SqlError> {
    if statement.predicate.is_some() {
        return Err(SqlError::unsupported("a partial index"));
    }
    if !statement.include.is_empty() || statement.nulls_distinct == Some(false) || !statement.with.is_empty() {
        return Err(SqlError::unsupported("this form of CREATE INDEX"));
    }
    if let Some(method) = &statement.using
        && !method.to_string().eq_ignore_ascii_case("btree")
    {
        return Err(SqlError::unsupported(format!("an index USING {method}")).with_hint("Use btree."));
    }
    let table = table_name(&statement.table_name)?;
    let table = catalog.tables().get(&table).cloned().ok_or_else(|| no_such_table(&table))?;
    let columns = index_columns(&statement.columns)?;
    let positions = columns.iter().map(|c| table.column(c)).collect::<Result<Vec<_>, _>>()?;
    let name = match &statement.name {
        Some(name) => table_name(name)?,
        None => free_index_name(catalog, &format!("{}_{}_idx", table.name, columns.join("_"))),
    };
    if let Err(duplicate) = check_index_name(catalog, &name) {
        if statement.if_not_exists {
            let message = format!("{}, skipping", duplicate.message);
            return Ok(Done::skipped("CREATE INDEX", SqlState::DUPLICATE_TABLE, message));
        }
        return Err(duplicate);
    }
    add_index(worker, &table, SecondaryIndex { name, columns: positions, unique: statement.unique }).await?;
    Ok(Done::plain("CREATE INDEX"))
}

pub(super) async fn add_index(worker: &Worker, table: &TableInfo, index: SecondaryIndex) -> Result<(), SqlError> {
    let name = index.name.clone();
    worker.create_index(&table.table, index).await.map(|_| ()).map_err(|e| match e {
        TxnError::DuplicateKey { .. } => {
            let mut error =
                SqlError::new(SqlState::UNIQUE_VIOLATION, format!("could not create unique index \"{name}\""))
                    .with_detail("Rows of the table have the same key.");
            error.constraint = Some(name.as_str().into());
            error.table = Some(table.name.as_str().into());
            error
        }
        TxnError::AlreadyExists { .. } => {
            SqlError::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))
        }
        other => definition_error(&other),
    })
}

/// The name, followed by the first number that makes it free if it is taken.
fn free_index_name(catalog: &Catalog, name: &str) -> String {
    let mut free = name.to_owned();
    let mut number = 0;
    while check_index_name(catalog, &free).is_err() {
        number += 1;
        free = format!("{name}{number}");
    }
    free
}

pub(super) fn check_index_name(catalog: &Catalog, name: &str) -> Result<(), SqlError> {
    let tables = catalog.tables();
    let taken = tables.get(name).is_some()
        || tables.sequence(name).is_some()
        || tables.index(name).is_some()
        || tables.iter().any(|t| !t.hidden_row_number && t.primary_key_name == name);
    if taken {
        return Err(SqlError::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists")));
    }
    Ok(())
}

/// The names of the columns of an index; only ascending, NULLS LAST, plain columns are supported.
pub(super) fn index_columns(columns: &[IndexColumn]) -> Result<Vec<String>, SqlError> {
    columns
        .iter()
        .map(|column| {
            let Expr::Identifier(name) = &column.column.expr else {
                return Err(SqlError::unsupported("an index on an expression"));
            };
            let options = &column.column.options;
            if options.asc == Some(false) || options.nulls_first == Some(true) {
                return Err(SqlError::unsupported("a descending index")
                    .with_hint("An index is read in both directions: leave DESC out."));
            }
            if column.operator_class.is_some() {
                return Err(SqlError::unsupported("an operator class"));
            }
            Ok(fold(name))
        })
        .collect()
}
