//! CHECK constraints: in CREATE TABLE, ALTER TABLE … ADD, VALIDATE and DROP CONSTRAINT.
//!
//! ```text
//!   ADD ─► recorded NOT VALID ─► all nodes evaluate it ─► a snapshot's rows are checked ─► recorded as validated
//!                                       │ NOT VALID: over         │ a row fails: taken back
//! ```
//! When all nodes have taken over the recorded check, a transaction that commits either evaluates it or is in each later snapshot
//! (`farhold_txn::Worker::change_attributes`). So if the rows of a snapshot satisfy it, all rows do. Writers go on meanwhile.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::Ident;
use farhold_store::row::SecondaryIndex;
use farhold_txn::{Retry, Snapshot, TxnError, Worker};

use super::super::cancel::CancelHandle;
use super::super::catalog::{Attributes, Catalog, Check, TableInfo, Tables};
use super::super::scalar::{ColumnRef, Parameters, Times, fold};
use super::super::{Datum, error};
use super::Done;
use super::conditions::{Condition, Stated, is_constraint};
use super::define::definition_error;
use super::drops::is_committed;
use crate::pg_catalog::CHECKS_MAX;
use crate::value::Zone;
use crate::{SqlError, SqlState};

const VERB: &str = "ALTER TABLE";

/// Waits for a free snapshot slot.
const RETRY: Retry = Retry { attempts_max: 100, backoff_ns: 1_000, backoff_ns_max: 1_000_000 };

/// What a statement about checks works with.
#[derive(Clone, Copy)]
pub(crate) struct Checking<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) worker: &'a Worker,
    pub(crate) cancel: &'a CancelHandle,
    pub(crate) times: Times,
    /// The session's time zone.
    pub(crate) zone: Zone,
}

/// Enters the checks of a CREATE TABLE into the table's attributes. `keys`: its unique indexes, and the name of its primary key.
pub(super) fn define(
    attributes: &mut Attributes,
    (table, columns): (&str, &[ColumnRef]),
    stated: &[Stated],
    (indexes, key): (&[SecondaryIndex], Option<&str>),
    tables: &Tables,
    zone: Zone,
) -> Result<(), SqlError> {
    for stated in stated {
        let condition = Condition::new(&stated.expression, columns, zone)?;
        let checks = &attributes.checks;
        let is_ours = |name: &str| checks.iter().any(|check| check.name == name);
        let is_taken = |name: &str| is_ours(name) || is_constraint(tables, name);
        let name = condition.name(stated.name.as_ref(), table, columns, is_taken);
        if is_ours(&name) {
            let message = format!("check constraint \"{name}\" already exists");
            return Err(SqlError::new(SqlState::DUPLICATE_OBJECT, message));
        }
        if checks.len() >= CHECKS_MAX {
            return Err(too_many());
        }
        attributes.add_check(name, condition.text, true);
    }
    let names = indexes.iter().map(|index| index.name.as_str()).chain(key);
    for name in names {
        if attributes.checks.iter().any(|check| check.name == name) {
            return Err(duplicate(table, name));
        }
    }
    Ok(())
}

/// 42710.
pub(super) fn duplicate(table: &str, name: &str) -> SqlError {
    let message = format!("constraint \"{name}\" for relation \"{table}\" already exists");
    SqlError::new(SqlState::DUPLICATE_OBJECT, message)
}

fn too_many() -> SqlError {
    let message = format!("a table can have at most {CHECKS_MAX} CHECK constraints");
    SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
}

fn missing(table: &str, name: &str) -> SqlError {
    let message = format!("constraint \"{name}\" of relation \"{table}\" does not exist");
    SqlError::new(SqlState::UNDEFINED_OBJECT, message)
}

/// Whether a unique index or the primary key of the table has this name.
fn is_key(table: &TableInfo, name: &str) -> bool {
    table.indexes.iter().any(|index| index.unique && index.name == name)
        || (!table.hidden_row_number && table.primary_key_name == name)
}

/// ALTER TABLE … ADD CHECK.
pub(super) async fn add(
    with: Checking<'_>,
    table: &TableInfo,
    stated: &Stated,
    not_valid: bool,
) -> Result<Done, SqlError> {
    let columns = table.column_refs(&table.name);
    let condition = Condition::new(&stated.expression, &columns, with.zone)?;
    let tables = with.catalog.tables();
    let name = condition.name(stated.name.as_ref(), &table.name, &columns, |name| is_constraint(&tables, name));
    if is_key(table, &name) {
        return Err(duplicate(&table.name, &name));
    }
    let number = Cell::new(0);
    let added = with.worker.change_attributes(&table.table, |recorded| {
        let mut attributes = decoded(recorded)?;
        if attributes.checks.iter().any(|check| check.name == name) {
            return Err(TxnError::AlreadyExists { name: name.as_str().into() });
        }
        if attributes.checks.len() >= CHECKS_MAX {
            return Err(TxnError::TooMany { what: "checks of a table", limit: CHECKS_MAX });
        }
        number.set(attributes.checks_made);
        attributes.add_check(name.clone(), condition.text.clone(), false);
        Ok(attributes.encode())
    });
    added.await.map_err(|e| match e {
        TxnError::AlreadyExists { .. } => duplicate(&table.name, &name),
        TxnError::TooMany { .. } => too_many(),
        e if is_committed(&e) => left_not_valid(definition_error(&e)),
        e => definition_error(&e),
    })?;
    if not_valid {
        return Ok(Done::plain(VERB));
    }
    let number = number.get();
    let validated = match check_rows(with, table, (number, &name)).await {
        Ok(()) => set_validated(with.worker, table, number).await,
        Err(error) => return Err(take_back(with.worker, table, number, error).await),
    };
    match validated {
        Ok(()) => Ok(Done::plain(VERB)),
        Err(TxnError::NotFound { .. }) => Err(missing(&table.name, &name)),
        Err(e) if is_committed(&e) || e == TxnError::OutcomeUnknown => Err(definition_error(&e)),
        Err(e) => Err(take_back(with.worker, table, number, definition_error(&e)).await),
    }
}

/// ALTER TABLE … VALIDATE CONSTRAINT.
pub(super) async fn validate(with: Checking<'_>, table: &TableInfo, name: &Ident) -> Result<Done, SqlError> {
    let name = fold(name);
    let Some(check) = table.checks.iter().find(|check| check.name == name) else {
        if is_key(table, &name) {
            let message = format!(
                "constraint \"{name}\" of relation \"{}\" is not a foreign key or check constraint",
                table.name
            );
            return Err(SqlError::new(SqlState::WRONG_OBJECT_TYPE, message));
        }
        return Err(missing(&table.name, &name));
    };
    if !check.validated {
        // The session that added it may have ended before all nodes had heard of it.
        with.worker.announce_attributes(&table.table).await.map_err(|e| definition_error(&e))?;
        check_rows(with, table, (check.number, &name)).await?;
        set_validated(with.worker, table, check.number).await.map_err(|e| match e {
            TxnError::NotFound { .. } => missing(&table.name, &name),
            e => definition_error(&e),
        })?;
    }
    Ok(Done::plain(VERB))
}

/// ALTER TABLE … DROP CONSTRAINT of a check or a unique constraint.
pub(super) async fn drop(worker: &Worker, table: &TableInfo, name: &Ident, if_exists: bool) -> Result<Done, SqlError> {
    let name = fold(name);
    let dropped = if let Some(check) = table.checks.iter().find(|check| check.name == name) {
        remove(worker, table, check.number).await
    } else if table.indexes.iter().any(|index| index.unique && index.name == name) {
        worker.drop_index(&table.table, &name).await
    } else if is_key(table, &name) {
        return Err(SqlError::unsupported(format!("dropping the primary key \"{name}\"")));
    } else {
        Err(TxnError::NotFound { what: "constraint".into() })
    };
    match dropped {
        Ok(()) => Ok(Done::plain(VERB)),
        Err(TxnError::NotFound { .. }) if if_exists => {
            let message = format!("{}, skipping", missing(&table.name, &name).message);
            Ok(Done::skipped(VERB, SqlState::UNDEFINED_OBJECT, message))
        }
        Err(TxnError::NotFound { .. }) => Err(missing(&table.name, &name)),
        Err(e) => Err(definition_error(&e)),
    }
}

/// The attributes that are recorded of a table.
fn decoded(recorded: &[u8]) -> Result<Attributes, TxnError> {
    let none = || recorded.is_empty().then(Attributes::default);
    let foreign = TxnError::Corrupt { what: "the table's attributes are not those of a table of SQL" };
    Attributes::decode(recorded).or_else(none).ok_or(foreign)
}

async fn set_validated(worker: &Worker, table: &TableInfo, number: u32) -> Result<(), TxnError> {
    let change = |recorded: &[u8]| -> Result<Vec<u8>, TxnError> {
        let mut attributes = decoded(recorded)?;
        let check = attributes.checks.iter_mut().find(|check| check.number == number);
        check.ok_or(TxnError::NotFound { what: "constraint".into() })?.validated = true;
        Ok(attributes.encode())
    };
    worker.change_attributes(&table.table, change).await
}

async fn remove(worker: &Worker, table: &TableInfo, number: u32) -> Result<(), TxnError> {
    let change = |recorded: &[u8]| -> Result<Vec<u8>, TxnError> {
        let mut attributes = decoded(recorded)?;
        let place = attributes.checks.iter().position(|check| check.number == number);
        attributes.checks.remove(place.ok_or(TxnError::NotFound { what: "constraint".into() })?);
        Ok(attributes.encode())
    };
    worker.change_attributes(&table.table, change).await
}

/// Removes a check that could not be added. Returns the reason.
async fn take_back(worker: &Worker, table: &TableInfo, number: u32, reason: SqlError) -> SqlError {
    match remove(worker, table, number).await {
        Ok(()) | Err(TxnError::NotFound { .. } | TxnError::SchemaChanged) => reason,
        Err(_) => left_not_valid(reason),
    }
}

fn left_not_valid(error: SqlError) -> SqlError {
    error.with_hint("The constraint may have been left as NOT VALID: VALIDATE or DROP it.")
}

/// That the rows of a snapshot satisfy the check of this number and name. All nodes must evaluate it already.
///
/// # Errors
/// 23514 if one does not; the errors of the condition; 42704 if the check has been dropped meanwhile; an unavailable node.
async fn check_rows(with: Checking<'_>, table: &TableInfo, (number, name): (u32, &str)) -> Result<(), SqlError> {
    let now = with.catalog.tables().get(&table.name).cloned();
    let now: Option<Arc<TableInfo>> = now.filter(|now| now.table.id() == table.table.id());
    let found = now.as_ref().and_then(|now| Some((now, now.checks.iter().find(|check| check.number == number)?)));
    let Some((table, check)) = found else { return Err(missing(&table.name, name)) };
    let snapshot = snapshot(with).await?;
    for task in with.worker.snapshot_pages(&snapshot, &table.table).await.map_err(|e| error::from_txn(&e))? {
        with.cancel.check()?;
        let parameters = Parameters { values: &[], times: with.times, zone: with.zone };
        let row = vec![Datum::Null; table.columns().len()];
        let mut rows = Rows { table, check, parameters, row, outcome: Ok(()) };
        let scanned = with.worker.scan_page(&snapshot, &task, &mut |key, value| rows.see(key, value)).await;
        scanned.map_err(|e| error::from_txn(&e))?;
        rows.outcome?;
        // Other connections of this thread have their turns.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn snapshot(with: Checking<'_>) -> Result<Snapshot, SqlError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match with.worker.snapshot().await {
            // Running queries end.
            Err(TxnError::TooMany { .. }) if attempt < RETRY.attempts_max => {
                with.cancel.check()?;
                with.worker.back_off(RETRY, attempt).await;
            }
            taken => return taken.map_err(|e| error::from_txn(&e)),
        }
    }
}

/// Evaluates a check on rows, up to the first that fails.
struct Rows<'a> {
    table: &'a TableInfo,
    check: &'a Check,
    parameters: Parameters<'static>,
    row: Vec<Datum>,
    outcome: Result<(), SqlError>,
}

impl Rows<'_> {
    fn see(&mut self, key: &[u8], value: &[u8]) {
        if self.outcome.is_ok() {
            self.outcome = self.passes(key, value);
        }
    }

    fn passes(&mut self, key: &[u8], value: &[u8]) -> Result<(), SqlError> {
        let wanted = self.table.wanted(self.check.columns.iter().copied());
        self.table.read(key, value, &wanted, &mut self.row)?;
        if self.check.passes(&self.row, self.parameters)? {
            return Ok(());
        }
        let (name, table) = (&self.check.name, &self.table.name);
        let message = format!("check constraint \"{name}\" of relation \"{table}\" is violated by some row");
        Err(self.table.of_check(SqlError::new(SqlState::CHECK_VIOLATION, message), name))
    }
}
