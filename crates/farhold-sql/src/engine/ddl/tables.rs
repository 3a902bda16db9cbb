//! CREATE TABLE and ALTER TABLE.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::{CreateTable, TableConstraint};
use farhold_store::row::SecondaryIndex;
use farhold_txn::{KeptColumns, TxnError, Worker};

use super::super::catalog::{Catalog, no_such_table, table_name};
use super::super::scalar::fold;
use super::Done;
use super::define::{Defined, columns_to_keep, define_table, definition_error};
use super::drops::{drop_sequences, is_committed};
use super::indexes::{add_index, check_index_name, index_columns};
use super::sequences::name_sequences;
use crate::{SqlError, SqlState};

/// Runs a CREATE TABLE.
pub(crate) async fn create_table(
    catalog: &Catalog,
    worker: &Worker,
    statement: &CreateTable,
    columns: &KeptColumns,
) -> Result<Done, SqlError> {
    let Defined { table: mut definition, mut sequences } = define_table(statement, columns)?;
    let name = definition.name.clone();
    let exists = || format!("relation \"{name}\" already exists");
    if statement.if_not_exists && catalog.tables().get(&name).is_some() {
        return Ok(Done::skipped("CREATE TABLE", SqlState::DUPLICATE_TABLE, format!("{}, skipping", exists())));
    }
    for index in &definition.indexes {
        check_index_name(catalog, &index.name)?;
    }
    let named = name_sequences(catalog, worker, &mut definition, &mut sequences).await?;
    let created = worker.create_table(definition).await;
    // The sequences are kept if the table exists or may exist.
    if created.as_ref().is_err_and(|error| !is_committed(error) && *error != TxnError::OutcomeUnknown) {
        drop_sequences(worker, &named).await;
    }
    match created {
        Ok(_) => Ok(Done::plain("CREATE TABLE")),
        Err(TxnError::AlreadyExists { .. }) if statement.if_not_exists => {
            Ok(Done::skipped("CREATE TABLE", SqlState::DUPLICATE_TABLE, format!("{}, skipping", exists())))
        }
        Err(TxnError::AlreadyExists { .. }) => Err(SqlError::new(SqlState::DUPLICATE_TABLE, exists())),
        Err(e) => Err(definition_error(&e)),
    }
}

/// ALTER TABLE … SET of the columns that are kept as columns, and … ADD of a unique constraint, or of a primary key to a table without
/// one; other forms are refused.
pub(crate) async fn alter_table(
    catalog: &Catalog,
    worker: &Worker,
    statement: &ast::AlterTable,
) -> Result<Done, SqlError> {
    let name = table_name(&statement.name)?;
    let Some(table) = catalog.tables().get(&name).cloned() else {
        if statement.if_exists {
            let message = format!("relation \"{name}\" does not exist, skipping");
            return Ok(Done::skipped("ALTER TABLE", SqlState::UNDEFINED_TABLE, message));
        }
        return Err(no_such_table(&name));
    };
    let [operation] = statement.operations.as_slice() else {
        return Err(SqlError::unsupported("ALTER TABLE with several actions"));
    };
    if let ast::AlterTableOperation::SetOptionsParens { options } = operation {
        if let Some(kept) = columns_to_keep(options, table.columns())? {
            worker.keep_columns(&table.table, kept).await.map_err(|e| definition_error(&e))?;
        }
        return Ok(Done::plain("ALTER TABLE"));
    }
    let ast::AlterTableOperation::AddConstraint { constraint, .. } = operation else {
        let text = operation.to_string();
        return Err(SqlError::unsupported(format!("ALTER TABLE {text}"))
            .with_hint("Create a table with the new definition, and copy: INSERT INTO new SELECT … FROM old."));
    };
    let (given, columns, primary) = match constraint {
        TableConstraint::Unique(u) => (u.name.as_ref(), index_columns(&u.columns)?, false),
        TableConstraint::PrimaryKey(p) => (p.name.as_ref(), index_columns(&p.columns)?, true),
        other => return Err(SqlError::unsupported(format!("ALTER TABLE ADD {other}"))),
    };
    if primary && !table.hidden_row_number {
        let message = format!("multiple primary keys for table \"{name}\" are not allowed");
        return Err(SqlError::new(SqlState::INVALID_TABLE_DEFINITION, message));
    }
    let positions = columns.iter().map(|c| table.column(c)).collect::<Result<Vec<_>, _>>()?;
    if primary && positions.iter().any(|&c| table.columns()[c].nullable) {
        return Err(SqlError::unsupported("ALTER TABLE ADD PRIMARY KEY over columns that are not declared NOT NULL")
            .with_hint("Declare the primary key in CREATE TABLE."));
    }
    let index = given.map_or_else(
        || if primary { format!("{name}_pkey") } else { format!("{name}_{}_key", columns.join("_")) },
        fold,
    );
    check_index_name(catalog, &index)?;
    add_index(worker, &table, SecondaryIndex { name: index, columns: positions, unique: true }).await?;
    Ok(Done::plain("ALTER TABLE"))
}
