//! CREATE TABLE and ALTER TABLE.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::{CreateTable, TableConstraint};
use farhold_store::row::SecondaryIndex;
use farhold_txn::{KeptColumns, TxnError, Worker};

use super::super::catalog::{Catalog, no_such_table, table_name};
use super::super::scalar::fold;
use super::conditions::Stated;
use super::define::{Defined, columns_to_keep, define_table, definition_error};
use super::drops::{drop_sequences, is_committed};
use super::indexes::{add_index, check_index_name, index_columns};
use super::sequences::name_sequences;
use super::{Checking, Done, checks};
use crate::value::Zone;
use crate::{SqlError, SqlState};

/// Runs a CREATE TABLE of a session of time zone `zone`.
pub(crate) async fn create_table(
    catalog: &Catalog,
    worker: &Worker,
    statement: &CreateTable,
    columns: &KeptColumns,
    zone: Zone,
) -> Result<Done, SqlError> {
    let Defined { table: mut definition, mut sequences } = define_table(statement, columns, &catalog.tables(), zone)?;
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

/// ALTER TABLE … SET of the columns that are kept as columns; … ADD of a check, of a unique constraint, or of a primary key to a table
/// without one; … VALIDATE of a check; … DROP of a check or a unique constraint. Other forms are refused.
pub(crate) async fn alter_table(with: Checking<'_>, statement: &ast::AlterTable) -> Result<Done, SqlError> {
    let (catalog, worker) = (with.catalog, with.worker);
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
    let (constraint, not_valid) = match operation {
        ast::AlterTableOperation::AddConstraint { constraint, not_valid } => (constraint, *not_valid),
        ast::AlterTableOperation::SetOptionsParens { options } => {
            if let Some(kept) = columns_to_keep(options, table.columns())? {
                worker.keep_columns(&table.table, kept).await.map_err(|e| definition_error(&e))?;
            }
            return Ok(Done::plain("ALTER TABLE"));
        }
        ast::AlterTableOperation::ValidateConstraint { name } => return checks::validate(with, &table, name).await,
        ast::AlterTableOperation::DropConstraint { if_exists, name, .. } => {
            return checks::drop(worker, &table, name, *if_exists).await;
        }
        other => {
            return Err(SqlError::unsupported(format!("ALTER TABLE {other}"))
                .with_hint("Create a table with the new definition, and copy: INSERT INTO new SELECT … FROM old."));
        }
    };
    if let TableConstraint::Check(check) = constraint {
        return checks::add(with, &table, &Stated::new(None, check)?, not_valid).await;
    }
    if not_valid {
        // PostgreSQL takes it for checks and foreign keys only.
        return Err(SqlError::unsupported(format!("ALTER TABLE ADD {constraint} NOT VALID")));
    }
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
    if table.checks.iter().any(|check| check.name == index) {
        return Err(checks::duplicate(&name, &index));
    }
    check_index_name(catalog, &index)?;
    add_index(worker, &table, SecondaryIndex { name: index, columns: positions, unique: true }).await?;
    Ok(Done::plain("ALTER TABLE"))
}
