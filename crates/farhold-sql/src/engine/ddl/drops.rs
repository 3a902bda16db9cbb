//! DROP.

use datafusion::sql::sqlparser::ast::{ObjectName, ObjectType};
use farhold_txn::{Table, TxnError, Worker};

use super::super::catalog::{Catalog, TableInfo, Tables, table_name};
use super::super::error;
use super::super::sequence::SequenceInfo;
use super::Done;
use crate::{SqlError, SqlState};

/// Runs a DROP TABLE or DROP INDEX.
pub(crate) async fn drop(
    catalog: &Catalog,
    worker: &Worker,
    object: ObjectType,
    names: &[ObjectName],
    if_exists: bool,
) -> Result<Done, SqlError> {
    let verb = match object {
        ObjectType::Table => "DROP TABLE",
        ObjectType::Index => "DROP INDEX",
        ObjectType::Sequence => "DROP SEQUENCE",
        other => return Err(SqlError::unsupported(format!("DROP {other}"))),
    };
    let mut done = Done::plain(verb);
    let tables = catalog.tables();
    // All objects must exist before the first one is dropped.
    let mut found: Vec<(String, Dropping<'_>)> = Vec::with_capacity(names.len());
    for name in names {
        let name = table_name(name)?;
        match dropping(&tables, object, &name)? {
            Some(_) if found.iter().any(|(other, _)| *other == name) => {}
            Some(dropping) => found.push((name, dropping)),
            None if if_exists => done.notices.push(skipped(object, &name)),
            None => return Err(missing(object, &name)),
        }
    }
    for (name, dropping) in found {
        let dropped = match dropping {
            Dropping::Table(table) => drop_with_sequences(worker, &tables, table, &name).await,
            Dropping::Sequence(sequence) => worker.drop_table(sequence).await,
            Dropping::Index(table, index) => worker.drop_index(table, index).await,
        };
        match dropped {
            Ok(()) => {}
            // Another session has dropped it first.
            Err(TxnError::NotFound { .. }) if if_exists => done.notices.push(skipped(object, &name)),
            Err(TxnError::NotFound { .. }) => return Err(missing(object, &name)),
            Err(e) => return Err(error::from_txn(&e)),
        }
    }
    Ok(done)
}

/// An object that exists and may be dropped.
enum Dropping<'t> {
    Table(&'t Table),
    Sequence(&'t Table),
    Index(&'t Table, &'t str),
}

/// The object that a name of a DROP denotes.
///
/// # Errors
/// 2BP01 if other objects depend on it; 0A000 for an index of a primary key.
fn dropping<'t>(tables: &'t Tables, object: ObjectType, name: &str) -> Result<Option<Dropping<'t>>, SqlError> {
    Ok(match object {
        ObjectType::Table => {
            let read = tables.get(name);
            let table = read.map(|table| &table.table).or_else(|| tables.unreadable(name));
            if table.is_some() {
                for sequence in tables.sequences_of(name) {
                    check_unused(tables, sequence, read.map(AsRef::as_ref))?;
                }
            }
            table.map(Dropping::Table)
        }
        ObjectType::Sequence => match tables.sequence(name) {
            Some(sequence) => {
                check_unused(tables, sequence, None)?;
                Some(Dropping::Sequence(&sequence.table))
            }
            None => None,
        },
        _ => match tables.index(name) {
            Some((table, index)) => Some(Dropping::Index(&table.table, &index.name)),
            None if tables.iter().any(|t| !t.hidden_row_number && t.primary_key_name == name) => {
                return Err(SqlError::unsupported(format!("dropping the primary key \"{name}\"")));
            }
            None => None,
        },
    })
}

pub(super) fn skipped(object: ObjectType, name: &str) -> SqlError {
    let kind = kind_of(object);
    SqlError::new(SqlState::UNDEFINED_TABLE, format!("{kind} \"{name}\" does not exist, skipping"))
}

fn missing(object: ObjectType, name: &str) -> SqlError {
    let state = if object == ObjectType::Index { SqlState::UNDEFINED_OBJECT } else { SqlState::UNDEFINED_TABLE };
    SqlError::new(state, format!("{} \"{name}\" does not exist", kind_of(object)))
}

fn kind_of(object: ObjectType) -> &'static str {
    match object {
        ObjectType::Table => "table",
        ObjectType::Sequence => "sequence",
        _ => "index",
    }
}

/// Drops a table and the sequences that were made for its columns.
async fn drop_with_sequences(worker: &Worker, tables: &Tables, table: &Table, name: &str) -> Result<(), TxnError> {
    let mut dropped = worker.drop_table(table).await;
    if dropped.as_ref().is_err_and(|error| !is_committed(error)) {
        return dropped;
    }
    for sequence in tables.sequences_of(name) {
        match worker.drop_table(&sequence.table).await {
            Ok(()) | Err(TxnError::NotFound { .. }) => {}
            Err(error) => dropped = dropped.and(Err(error)),
        }
    }
    dropped
}

/// Whether the change was recorded in spite of the error.
pub(super) fn is_committed(error: &TxnError) -> bool {
    matches!(error, TxnError::NodeUnavailable { committed: true, .. } | TxnError::NotDurable { committed: true, .. })
}

/// Drops the sequences of a table that will not be created.
pub(super) async fn drop_sequences(worker: &Worker, sequences: &[Table]) {
    for sequence in sequences {
        // A sequence that cannot be dropped now remains, without an owner.
        let _ = worker.drop_table(sequence).await;
    }
}

/// Refuses to drop a sequence that is the default of a column, except of the table `going`, which is dropped too.
fn check_unused(tables: &Tables, sequence: &SequenceInfo, going: Option<&TableInfo>) -> Result<(), SqlError> {
    for table in tables.iter().filter(|table| going.is_none_or(|going| going.name != table.name)) {
        let user = table
            .defaults
            .iter()
            .zip(table.columns())
            .find(|(default, _)| default.as_ref().is_some_and(|(_, scalar)| scalar.names_sequence(&sequence.name)));
        if let Some((_, column)) = user {
            let message = format!("cannot drop sequence {} because other objects depend on it", sequence.name);
            return Err(SqlError::new(SqlState::DEPENDENT_OBJECTS, message).with_detail(format!(
                "default value for column {} of table {} depends on sequence {}",
                column.name, table.name, sequence.name
            )));
        }
    }
    Ok(())
}
