//! Sequences, including those of serial columns.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::ObjectName;
use farhold_txn::{Table, TableDef, TxnError, Worker};

use super::super::ColumnType;
use super::super::catalog::{Attributes, Catalog, no_such_table, table_name};
use super::super::scalar::fold;
use super::super::sequence::{Owner, Restart, SequenceDef, Sequences};
use super::super::types::from_sql;
use super::Done;
use super::define::definition_error;
use super::drops::drop_sequences;
use super::indexes::check_index_name;
use crate::{SqlError, SqlState};

/// Runs a CREATE SEQUENCE.
pub(crate) async fn create_sequence(
    catalog: &Catalog,
    worker: &Worker,
    statement: &ast::Statement,
) -> Result<Done, SqlError> {
    let ast::Statement::CreateSequence { temporary, if_not_exists, name, data_type, sequence_options, owned_by } =
        statement
    else {
        return Err(SqlError::internal("not a CREATE SEQUENCE"));
    };
    if *temporary {
        return Err(SqlError::unsupported("a temporary sequence"));
    }
    let data_type = data_type.as_ref().map_or(Ok(ColumnType::BigInt), from_sql)?;
    let mut definition = SequenceDef::new(data_type, sequence_options)?;
    definition.owner = owned_by.as_ref().map_or(Ok(None), |owner| owner_of(catalog, owner))?;
    let name = table_name(name)?;
    if let Err(duplicate) = check_index_name(catalog, &name) {
        if *if_not_exists {
            let message = format!("{}, skipping", duplicate.message);
            return Ok(Done::skipped("CREATE SEQUENCE", SqlState::DUPLICATE_TABLE, message));
        }
        return Err(duplicate);
    }
    worker.create_table(definition.table(&name)?).await.map_err(|e| definition_error(&e))?;
    Ok(Done::plain("CREATE SEQUENCE"))
}

/// The table and column of OWNED BY; `None` for OWNED BY NONE.
fn owner_of(catalog: &Catalog, owner: &ObjectName) -> Result<Option<Owner>, SqlError> {
    let mut parts = owner.0.clone();
    let Some(ast::ObjectNamePart::Identifier(column)) = parts.pop() else {
        return Err(SqlError::syntax("OWNED BY requires table.column or NONE"));
    };
    if parts.is_empty() {
        let none = column.quote_style.is_none() && column.value.eq_ignore_ascii_case("none");
        return if none { Ok(None) } else { Err(SqlError::syntax("OWNED BY requires table.column or NONE")) };
    }
    let name = table_name(&ObjectName(parts))?;
    let table = catalog.tables().get(&name).cloned().ok_or_else(|| no_such_table(&name))?;
    let column = fold(&column);
    table.column(&column)?;
    Ok(Some(Owner { table: name, column }))
}

/// Runs an ALTER SEQUENCE … RESTART.
pub(crate) async fn restart_sequence(
    catalog: &Catalog,
    worker: &Worker,
    sequences: &Sequences,
    restart: &Restart,
) -> Result<Done, SqlError> {
    let name = table_name(&restart.name)?;
    let tables = catalog.tables();
    let Some(sequence) = tables.sequence(&name) else {
        if restart.if_exists {
            let message = format!("relation \"{name}\" does not exist, skipping");
            return Ok(Done::skipped("ALTER SEQUENCE", SqlState::UNDEFINED_TABLE, message));
        }
        return Err(no_such_table(&name));
    };
    let definition = &sequence.definition;
    let start = restart.with.unwrap_or(definition.start);
    if !(definition.min..=definition.max).contains(&start) {
        let message = format!(
            "RESTART value ({start}) must be between MINVALUE ({}) and MAXVALUE ({})",
            definition.min, definition.max
        );
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    sequences.set(sequence, start, worker).await?;
    Ok(Done::plain("ALTER SEQUENCE"))
}

/// The DEFAULT of a column that a sequence numbers.
fn next_of(sequence: &str) -> String {
    let plain = sequence.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && sequence.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let name = if plain { sequence.to_owned() } else { format!("\"{}\"", sequence.replace('"', "\"\"")) };
    format!("nextval('{}')", name.replace('\'', "''"))
}

/// Creates the sequences of a table's columns under free names, and sets the columns' defaults.
pub(super) async fn name_sequences(
    catalog: &Catalog,
    worker: &Worker,
    table: &mut TableDef,
    sequences: &mut Vec<(usize, SequenceDef)>,
) -> Result<Vec<Table>, SqlError> {
    if sequences.is_empty() {
        return Ok(Vec::new());
    }
    if catalog.tables().get(&table.name).is_some() {
        return Err(SqlError::new(SqlState::DUPLICATE_TABLE, format!("relation \"{}\" already exists", table.name)));
    }
    let mut attributes = Attributes::decode(&table.attributes).unwrap_or_default();
    let mut made = Vec::new();
    for (column, mut definition) in sequences.drain(..) {
        let column_name = table.schema.columns()[column].name.clone();
        let base = format!("{}_{column_name}_seq", table.name);
        definition.owner = Some(Owner { table: table.name.clone(), column: column_name });
        let sequence = match free_sequence(catalog, worker, &base, &definition).await {
            Ok(sequence) => sequence,
            Err(error) => {
                drop_sequences(worker, &made).await;
                return Err(error);
            }
        };
        attributes.defaults.push((column, next_of(sequence.name())));
        made.push(sequence);
    }
    attributes.defaults.sort();
    table.attributes = attributes.encode();
    Ok(made)
}

/// How many names are tried for a sequence.
const NAMES_TRIED_MAX: u32 = 100;

async fn free_sequence(
    catalog: &Catalog,
    worker: &Worker,
    base: &str,
    definition: &SequenceDef,
) -> Result<Table, SqlError> {
    let mut name = base.to_owned();
    for attempt in 1.. {
        match check_index_name(catalog, &name) {
            Ok(()) => match worker.create_table(definition.table(&name)?).await {
                Ok(table) => return Ok(table),
                Err(TxnError::AlreadyExists { .. }) if attempt < NAMES_TRIED_MAX => {}
                Err(e) => return Err(definition_error(&e)),
            },
            Err(_) if attempt < NAMES_TRIED_MAX => {}
            Err(e) => return Err(e),
        }
        name = format!("{base}{attempt}");
    }
    unreachable!("the attempts are limited")
}
