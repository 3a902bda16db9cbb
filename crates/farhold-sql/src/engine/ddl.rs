//! CREATE and DROP of tables and indexes.
//!
//! Definitions are not part of transactions: they take effect on every node at once. Inside a transaction block that is
//! said in a warning.

use datafusion::sql::sqlparser::ast::{
    self, ColumnOption, CreateIndex, CreateTable, CreateTableOptions, Expr, Ident, IndexColumn, ObjectName, ObjectType,
    SqlOption, TableConstraint, Value,
};
use farhold_store::row::{Column, Schema, SecondaryIndex};
use farhold_txn::{Placement, Table, TableDef, TxnError, Worker};

use super::catalog::{Attributes, Catalog, ROW_NUMBER, TableInfo, Tables, no_such_table, table_name};
use super::parse::{parse_expr, to_text};
use super::scalar::{BindError, Binder, fold};
use super::sequence::{Owner, Restart, SequenceDef, SequenceInfo, Sequences};
use super::types::{ANY_LENGTH, from_sql};
use super::{ColumnType, error};
use crate::{SqlError, SqlState};

/// What became of a definition: the tag's verb, and a notice if nothing was done.
pub(crate) struct Done {
    pub(crate) verb: &'static str,
    pub(crate) notices: Vec<SqlError>,
}

impl Done {
    fn plain(verb: &'static str) -> Self {
        Self { verb, notices: Vec::new() }
    }

    fn skipped(verb: &'static str, state: SqlState, message: String) -> Self {
        Self { verb, notices: vec![SqlError::new(state, message)] }
    }
}

/// Runs a CREATE TABLE.
pub(crate) async fn create_table(
    catalog: &Catalog,
    worker: &Worker,
    statement: &CreateTable,
) -> Result<Done, SqlError> {
    let Defined { table: mut definition, mut sequences } = define_table(statement)?;
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
    // They stay with a table that there may be.
    if created.as_ref().is_err_and(|error| !is_done(error) && *error != TxnError::OutcomeUnknown) {
        give_up(worker, &named).await;
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
    // All are there before the first goes.
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
            // Another session has been quicker.
            Err(TxnError::NotFound { .. }) if if_exists => done.notices.push(skipped(object, &name)),
            Err(TxnError::NotFound { .. }) => return Err(missing(object, &name)),
            Err(e) => return Err(error::from_txn(&e)),
        }
    }
    Ok(done)
}

/// Something that is there and may be dropped.
enum Dropping<'t> {
    Table(&'t Table),
    Sequence(&'t Table),
    Index(&'t Table, &'t str),
}

/// What a DROP means by a name.
///
/// # Errors
/// 2BP01 for what others depend on; 0A000 for an index that is a primary key.
fn dropping<'t>(tables: &'t Tables, object: ObjectType, name: &str) -> Result<Option<Dropping<'t>>, SqlError> {
    Ok(match object {
        ObjectType::Table => {
            let read = tables.get(name);
            let table = read.map(|table| &table.table).or_else(|| tables.unread(name));
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

fn skipped(object: ObjectType, name: &str) -> SqlError {
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
    if dropped.as_ref().is_err_and(|error| !is_done(error)) {
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

/// Is it recorded all the same?
fn is_done(error: &TxnError) -> bool {
    matches!(error, TxnError::NodeUnavailable { committed: true, .. } | TxnError::NotDurable { committed: true, .. })
}

/// Drops sequences of a table that there will not be.
async fn give_up(worker: &Worker, sequences: &[Table]) {
    for sequence in sequences {
        // What cannot be dropped now stays as a sequence that belongs to nobody.
        let _ = worker.drop_table(sequence).await;
    }
}

/// Refuses to take a sequence away from the columns whose default it is. Those of `going` go with it.
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

/// OWNED BY table.column, or NONE.
fn owner_of(catalog: &Catalog, owner: &ObjectName) -> Result<Option<Owner>, SqlError> {
    let mut parts = owner.0.clone();
    let Some(ast::ObjectNamePart::Identifier(column)) = parts.pop() else {
        return Err(SqlError::syntax("OWNED BY names a column of a table"));
    };
    if parts.is_empty() {
        let none = column.quote_style.is_none() && column.value.eq_ignore_ascii_case("none");
        return if none { Ok(None) } else { Err(SqlError::syntax("OWNED BY names a column of a table")) };
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

/// Makes the sequences of a table's columns, under names that are free, and their columns' defaults.
async fn name_sequences(
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
                give_up(worker, &made).await;
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

/// How many names for a sequence are tried.
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

async fn add_index(worker: &Worker, table: &super::catalog::TableInfo, index: SecondaryIndex) -> Result<(), SqlError> {
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

/// ALTER TABLE … ADD of a unique constraint or of a primary key to a table that has none; all else is refused.
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

/// The name, with the first number behind it that makes it free.
fn free_index_name(catalog: &Catalog, name: &str) -> String {
    let mut free = name.to_owned();
    let mut number = 0;
    while check_index_name(catalog, &free).is_err() {
        number += 1;
        free = format!("{name}{number}");
    }
    free
}

fn check_index_name(catalog: &Catalog, name: &str) -> Result<(), SqlError> {
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

fn definition_error(e: &TxnError) -> SqlError {
    let error = error::from_txn(e);
    if error.state == SqlState::INVALID_TABLE_DEFINITION && error.message.contains("unique") {
        return SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, error.message)
            .with_hint("Use placement = 'replicated', or begin the unique key with the placement column.");
    }
    error
}

/// A table, and the sequences that number its columns.
pub(crate) struct Defined {
    pub(crate) table: TableDef,
    pub(crate) sequences: Vec<(usize, SequenceDef)>,
}

/// The definition that a CREATE TABLE states.
pub(crate) fn define_table(statement: &CreateTable) -> Result<Defined, SqlError> {
    check_form(statement)?;
    let name = table_name(&statement.name)?;
    let mut table = Definition { name: name.clone(), ..Definition::default() };
    for column in &statement.columns {
        table.add_column(column)?;
    }
    for constraint in &statement.constraints {
        match constraint {
            TableConstraint::PrimaryKey(p) => {
                let columns = index_columns(&p.columns)?;
                table.set_primary_key(p.name.as_ref(), &columns)?;
            }
            TableConstraint::Unique(u) => {
                let columns = index_columns(&u.columns)?;
                table.add_unique(u.name.as_ref(), &columns)?;
            }
            TableConstraint::ForeignKey(_) => return Err(SqlError::unsupported("FOREIGN KEY")),
            TableConstraint::Check(_) => return Err(SqlError::unsupported("CHECK")),
            other => return Err(SqlError::unsupported(other)),
        }
    }
    let (placement, hash) = options(&statement.table_options)?;
    let hidden_row_number = table.key.is_empty();
    if hidden_row_number {
        if placement == Placement::ByInteger {
            return Err(SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                "placement = 'by_integer' needs a primary key that begins with an integer",
            ));
        }
        table.key.push(table.columns.len());
        table.columns.push(Column::new(ROW_NUMBER, ColumnType::BigInt));
    }
    let attributes = Attributes {
        hidden_row_number,
        primary_key_name: table.key_name.unwrap_or_default(),
        defaults: table.defaults,
        always: table.always,
    };
    let schema = Schema::new(table.columns, table.key).map_err(|e| error::from_row(&e))?;
    if placement == Placement::ByInteger {
        let first = schema.columns()[schema.key()[0]].data_type;
        if !matches!(first, ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt) {
            return Err(SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                "placement = 'by_integer' needs a primary key that begins with an integer",
            ));
        }
    }
    let sequences = table.sequences;
    let table = TableDef { name, schema, placement, hash, indexes: table.indexes, attributes: attributes.encode() };
    Ok(Defined { table, sequences })
}

#[derive(Default)]
struct Definition {
    name: String,
    columns: Vec<Column>,
    key: Vec<usize>,
    key_name: Option<String>,
    indexes: Vec<SecondaryIndex>,
    defaults: Vec<(usize, String)>,
    sequences: Vec<(usize, SequenceDef)>,
    always: Vec<usize>,
}

impl Definition {
    fn add_column(&mut self, column: &ast::ColumnDef) -> Result<(), SqlError> {
        let name = fold(&column.name);
        if name == ROW_NUMBER {
            return Err(SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("the column name {name} is reserved"),
            ));
        }
        if self.columns.iter().any(|c| c.name == name) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(SqlState::DUPLICATE_COLUMN, message));
        }
        let serial = serial_type(&column.data_type);
        let data_type = match serial.map_or_else(|| from_sql(&column.data_type), Ok)? {
            // A `bpchar`, whose blanks a client sees.
            ColumnType::Char(ANY_LENGTH) => ColumnType::Text,
            data_type => data_type,
        };
        let position = self.columns.len();
        self.columns.push(Column { name: name.clone(), data_type, nullable: true });
        if serial.is_some() {
            self.number(position, SequenceDef::new(data_type, &[])?)?;
        }
        for option in &column.options {
            match &option.option {
                ColumnOption::Null => {}
                ColumnOption::NotNull => self.columns[position].nullable = false,
                ColumnOption::Default(expression) => {
                    let text = default_text(expression, &name, data_type)?;
                    self.check_plain(position)?;
                    self.defaults.push((position, text));
                }
                ColumnOption::PrimaryKey(_) => {
                    self.set_primary_key(option.name.as_ref(), std::slice::from_ref(&name))?;
                }
                ColumnOption::Unique(_) => self.add_unique(option.name.as_ref(), std::slice::from_ref(&name))?,
                ColumnOption::ForeignKey(_) => return Err(SqlError::unsupported("FOREIGN KEY")),
                ColumnOption::Check(_) => return Err(SqlError::unsupported("CHECK")),
                ColumnOption::Generated { generated_as, sequence_options: Some(options), .. } => {
                    self.number(position, SequenceDef::new(data_type, options)?)?;
                    if *generated_as == ast::GeneratedAs::Always {
                        self.always.push(position);
                    }
                }
                ColumnOption::Generated { generation_expr: None, generated_as, .. } => {
                    self.number(position, SequenceDef::new(data_type, &[])?)?;
                    if *generated_as == ast::GeneratedAs::Always {
                        self.always.push(position);
                    }
                }
                ColumnOption::Generated { .. } => {
                    return Err(SqlError::unsupported("a column generated by an expression"));
                }
                other => return Err(SqlError::unsupported(format!("the column option {other}"))),
            }
        }
        Ok(())
    }

    /// A sequence numbers the column.
    fn number(&mut self, column: usize, sequence: SequenceDef) -> Result<(), SqlError> {
        self.check_plain(column)?;
        self.columns[column].nullable = false;
        self.sequences.push((column, sequence));
        Ok(())
    }

    /// A column has one default, a sequence's or another.
    fn check_plain(&self, column: usize) -> Result<(), SqlError> {
        if self.sequences.iter().any(|(c, _)| *c == column) || self.defaults.iter().any(|(c, _)| *c == column) {
            let message = format!("multiple default values specified for column \"{}\"", self.columns[column].name);
            return Err(SqlError::syntax(message));
        }
        Ok(())
    }

    fn positions(&self, columns: &[String]) -> Result<Vec<usize>, SqlError> {
        columns
            .iter()
            .map(|name| {
                self.columns.iter().position(|c| c.name == *name).ok_or_else(|| {
                    SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" named in key does not exist"))
                })
            })
            .collect()
    }

    fn set_primary_key(&mut self, name: Option<&Ident>, columns: &[String]) -> Result<(), SqlError> {
        if !self.key.is_empty() {
            let message = format!("multiple primary keys for table \"{}\" are not allowed", self.name);
            return Err(SqlError::new(SqlState::INVALID_TABLE_DEFINITION, message));
        }
        self.key = self.positions(columns)?;
        for &column in &self.key {
            self.columns[column].nullable = false;
        }
        self.key_name = name.map(fold);
        Ok(())
    }

    fn add_unique(&mut self, name: Option<&Ident>, columns: &[String]) -> Result<(), SqlError> {
        let positions = self.positions(columns)?;
        let name = name.map_or_else(|| format!("{}_{}_key", self.name, columns.join("_")), fold);
        if self.indexes.iter().any(|i| i.name == name) {
            return Err(SqlError::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists")));
        }
        self.indexes.push(SecondaryIndex { name, columns: positions, unique: true });
        Ok(())
    }
}

/// The type behind `serial` and its like.
fn serial_type(data_type: &ast::DataType) -> Option<ColumnType> {
    let ast::DataType::Custom(name, modifiers) = data_type else { return None };
    match (name.to_string().to_lowercase().as_str(), modifiers.as_slice()) {
        ("smallserial" | "serial2", []) => Some(ColumnType::SmallInt),
        ("serial" | "serial4", []) => Some(ColumnType::Int),
        ("bigserial" | "serial8", []) => Some(ColumnType::BigInt),
        _ => None,
    }
}

/// The text of a column's DEFAULT, from which it is bound wherever the table is opened.
fn default_text(expression: &Expr, column: &str, data_type: ColumnType) -> Result<String, SqlError> {
    let refused = || {
        SqlError::unsupported(format!("this DEFAULT of column \"{column}\""))
            .with_hint("Use a literal, now() or nextval().")
    };
    let bound = |expression: &Expr| {
        let mut parameters = Vec::new();
        let mut binder = Binder { columns: &[], parameters: &mut parameters };
        match binder.bind_to(expression, data_type) {
            Ok(scalar) if parameters.is_empty() => Ok(format!("{scalar:?}")),
            Err(BindError::Wrong(error)) => Err(error),
            _ => Err(refused()),
        }
    };
    let text = to_text(expression);
    let meant = bound(expression)?;
    match parse_expr(&text) {
        Ok(read) if bound(&read)? == meant => Ok(text),
        _ => Err(refused()),
    }
}

/// The names of the columns of an index: ascending, nulls last, plain columns.
fn index_columns(columns: &[IndexColumn]) -> Result<Vec<String>, SqlError> {
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

fn check_form(statement: &CreateTable) -> Result<(), SqlError> {
    let refused = [
        (statement.temporary, "a temporary table"),
        (statement.or_replace, "CREATE OR REPLACE TABLE"),
        (statement.external, "an external table"),
        (statement.query.is_some(), "CREATE TABLE AS"),
        (statement.like.is_some(), "CREATE TABLE (LIKE …)"),
        (statement.inherits.is_some(), "INHERITS"),
        (statement.partition_by.is_some() || statement.partition_of.is_some(), "PARTITION"),
        (statement.on_commit.is_some(), "ON COMMIT"),
        (statement.clone.is_some(), "CLONE"),
    ];
    match refused.iter().find(|(there, _)| *there) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}

/// `WITH (placement = …, hash = …)`.
fn options(options: &CreateTableOptions) -> Result<(Placement, bool), SqlError> {
    let list = match options {
        CreateTableOptions::None => &[][..],
        CreateTableOptions::With(list) => list.as_slice(),
        _ => return Err(SqlError::unsupported("this table option")),
    };
    let (mut placement, mut hash) = (Placement::ByHash, true);
    for option in list {
        let SqlOption::KeyValue { key, value } = option else {
            return Err(SqlError::unsupported(format!("the table option {option}")));
        };
        let value = option_text(value)?;
        let bad = |allowed: &str| {
            SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"{key}\": \"{value}\""),
            )
            .with_hint(allowed)
        };
        match fold(key).as_str() {
            "placement" => {
                placement = match value.as_str() {
                    "replicated" => Placement::Replicated,
                    "by_integer" => Placement::ByInteger,
                    "by_hash" => Placement::ByHash,
                    _ => return Err(bad("One of 'replicated', 'by_integer', 'by_hash'.")),
                }
            }
            "hash" => {
                hash = match value.as_str() {
                    "true" | "on" | "1" => true,
                    "false" | "off" | "0" => false,
                    _ => return Err(bad("true or false.")),
                }
            }
            // How full PostgreSQL fills its pages means nothing here.
            "fillfactor" => {}
            other => {
                let message = format!("unrecognized parameter \"{other}\"");
                return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
                    .with_hint("There are placement and hash."));
            }
        }
    }
    Ok((placement, hash))
}

fn option_text(value: &Expr) -> Result<String, SqlError> {
    match value {
        Expr::Value(v) => match &v.value {
            Value::SingleQuotedString(text) => Ok(text.to_lowercase()),
            Value::Boolean(v) => Ok(v.to_string()),
            Value::Number(text, _) => Ok(text.clone()),
            other => Err(SqlError::syntax(format!("invalid option value: {other}"))),
        },
        Expr::Identifier(ident) => Ok(ident.value.to_lowercase()),
        other => Err(SqlError::syntax(format!("invalid option value: {other}"))),
    }
}
