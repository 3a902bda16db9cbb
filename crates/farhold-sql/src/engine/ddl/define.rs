//! What CREATE TABLE defines: columns, keys, defaults, and the sequences of serial columns.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::{
    ColumnOption, CreateTable, CreateTableOptions, Expr, Ident, SqlOption, TableConstraint, Value,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Span, Token, Tokenizer};
use farhold_store::row::{Column, Schema, SecondaryIndex};
use farhold_txn::{KeptColumns, Placement, TableDef, TxnError};

use super::super::catalog::{Attributes, ROW_NUMBER, Tables, column_refs, table_name};
use super::super::parse::{parse_expr, to_text};
use super::super::scalar::{BindError, Binder, Scalar, fold};
use super::super::sequence::SequenceDef;
use super::super::types::from_sql;
use super::super::{ColumnType, Datum, error};
use super::checks;
use super::conditions::Stated;
use super::indexes::index_columns;
use crate::value::{ANY_LENGTH, Zone, format_datum};
use crate::{SqlError, SqlState};

pub(super) fn definition_error(e: &TxnError) -> SqlError {
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

/// The definition stated by a CREATE TABLE in a session of time zone `zone`. `columns`: which columns are kept as columns too if it does
/// not say. `tables`: those that exist, whose constraints have names already.
pub(crate) fn define_table(
    statement: &CreateTable,
    columns: &KeptColumns,
    tables: &Tables,
    zone: Zone,
) -> Result<Defined, SqlError> {
    check_form(statement)?;
    let name = table_name(&statement.name)?;
    let mut table = Definition { name: name.clone(), ..Definition::default() };
    for column in &statement.columns {
        table.add_column(column, zone)?;
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
            TableConstraint::Check(check) => table.checks.push(Stated::new(None, check)?),
            other => return Err(SqlError::unsupported(other)),
        }
    }
    let list = match &statement.table_options {
        CreateTableOptions::None => &[][..],
        CreateTableOptions::With(list) => list.as_slice(),
        _ => return Err(SqlError::unsupported("this table option")),
    };
    let Options { placement, hash, columns: kept } = options(list, &table.columns)?;
    let columns = kept.unwrap_or_else(|| columns.clone());
    let mut attributes = Attributes { hidden_row_number: table.key.is_empty(), ..Attributes::default() };
    let default_key_name = format!("{name}_pkey");
    let key_name = table.key_name.as_ref().unwrap_or(&default_key_name);
    let key_name = (!attributes.hidden_row_number).then_some(key_name.as_str());
    let visible = column_refs(&table.columns, &name);
    checks::define(&mut attributes, (&name, &visible), &table.checks, (&table.indexes, key_name), tables, zone)?;
    if attributes.hidden_row_number {
        if placement == Placement::ByInteger {
            return Err(SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                "placement = 'by_integer' needs a primary key that begins with an integer",
            ));
        }
        table.key.push(table.columns.len());
        table.columns.push(Column::new(ROW_NUMBER, ColumnType::BigInt));
    }
    attributes.primary_key_name = table.key_name.unwrap_or_default();
    attributes.defaults = table.defaults;
    attributes.always = table.always;
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
    let (indexes, attributes) = (table.indexes, attributes.encode());
    let table = TableDef { name, schema, placement, hash, columns, indexes, attributes };
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
    checks: Vec<Stated>,
}

impl Definition {
    fn add_column(&mut self, column: &ast::ColumnDef, zone: Zone) -> Result<(), SqlError> {
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
            // `bpchar` without a length, whose trailing blanks a client sees.
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
                    let text = default_text(expression, &name, data_type, zone)?;
                    self.check_plain(position)?;
                    self.defaults.push((position, text));
                }
                ColumnOption::PrimaryKey(_) => {
                    self.set_primary_key(option.name.as_ref(), std::slice::from_ref(&name))?;
                }
                ColumnOption::Unique(_) => self.add_unique(option.name.as_ref(), std::slice::from_ref(&name))?,
                ColumnOption::ForeignKey(_) => return Err(SqlError::unsupported("FOREIGN KEY")),
                ColumnOption::Check(check) => self.checks.push(Stated::new(option.name.as_ref(), check)?),
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

    /// Lets a sequence number the column.
    fn number(&mut self, column: usize, sequence: SequenceDef) -> Result<(), SqlError> {
        self.check_plain(column)?;
        self.columns[column].nullable = false;
        self.sequences.push((column, sequence));
        Ok(())
    }

    /// A column may have only one default, a sequence's or another.
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

/// The integer type of `serial` and its variants.
fn serial_type(data_type: &ast::DataType) -> Option<ColumnType> {
    let ast::DataType::Custom(name, modifiers) = data_type else { return None };
    match (name.to_string().to_lowercase().as_str(), modifiers.as_slice()) {
        ("smallserial" | "serial2", []) => Some(ColumnType::SmallInt),
        ("serial" | "serial4", []) => Some(ColumnType::Int),
        ("bigserial" | "serial8", []) => Some(ColumnType::BigInt),
        _ => None,
    }
}

/// The text of a column's DEFAULT; each load of the table binds it again, in no session's time zone.
fn default_text(expression: &Expr, column: &str, data_type: ColumnType, zone: Zone) -> Result<String, SqlError> {
    let refused = || {
        SqlError::unsupported(format!("this DEFAULT of column \"{column}\""))
            .with_hint("Use a literal, now() or nextval().")
    };
    let bound = |expression: &Expr, zone: Zone| {
        let mut parameters = Vec::new();
        let mut binder = Binder { columns: &[], parameters: &mut parameters, zone, is_kept: true };
        match binder.bind_to(expression, data_type) {
            Ok(scalar) if parameters.is_empty() => Ok(scalar),
            Err(BindError::Wrong(error)) => Err(error),
            _ => Err(refused()),
        }
    };
    let meant = bound(expression, zone)?;
    let is_meant = |text: &str| -> Result<bool, SqlError> {
        let Ok(read) = parse_expr(text) else { return Ok(false) };
        Ok(format!("{:?}", bound(&read, Zone::UTC)?) == format!("{meant:?}"))
    };
    let text = to_text(expression);
    if is_meant(&text)? {
        return Ok(text);
    }
    // A literal of this session's time zone.
    if let Scalar::Literal(instant @ Datum::Timestamptz(_)) = &meant
        && let Some(instant) = format_datum(instant, Zone::UTC)
    {
        let text = format!("'{instant}'::{}", ColumnType::Timestamptz);
        if is_meant(&text)? {
            return Ok(text);
        }
    }
    Err(refused())
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

/// The options of `WITH (placement = …, hash = …, columns = …)`.
struct Options {
    placement: Placement,
    hash: bool,
    columns: Option<KeptColumns>,
}

/// Refuses an option that is given twice.
fn check_options(list: &[SqlOption]) -> Result<(), SqlError> {
    let mut seen = Vec::with_capacity(list.len());
    for option in list {
        let name = fold(key_and_value(option)?.0);
        if seen.contains(&name) {
            let message = format!("parameter \"{name}\" specified more than once");
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
        seen.push(name);
    }
    Ok(())
}

fn options(list: &[SqlOption], columns: &[Column]) -> Result<Options, SqlError> {
    check_options(list)?;
    let (mut placement, mut hash, mut kept) = (Placement::ByHash, true, None);
    for option in list {
        let (key, value) = key_and_value(option)?;
        let stated = value;
        let value = option_text(value)?.to_lowercase();
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
            "columns" => kept = Some(kept_columns(stated, columns)?),
            // PostgreSQL's fill factor of pages has no meaning here.
            "fillfactor" => {}
            other => {
                let message = format!("unrecognized parameter \"{other}\"");
                return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
                    .with_hint("The options are placement, hash and columns."));
            }
        }
    }
    Ok(Options { placement, hash, columns: kept })
}

fn key_and_value(option: &SqlOption) -> Result<(&Ident, &Expr), SqlError> {
    match option {
        SqlOption::KeyValue { key, value } => Ok((key, value)),
        other => Err(SqlError::unsupported(format!("the table option {other}"))),
    }
}

/// The value of `ALTER TABLE … SET (columns = …)`, of a table with these columns; `None`: it sets only what has no meaning here.
pub(super) fn columns_to_keep(list: &[SqlOption], columns: &[Column]) -> Result<Option<KeptColumns>, SqlError> {
    check_options(list)?;
    let mut kept = None;
    for option in list {
        let (key, value) = key_and_value(option)?;
        match fold(key).as_str() {
            "columns" => kept = Some(kept_columns(value, columns)?),
            "fillfactor" => {}
            name @ ("placement" | "hash") => {
                return Err(SqlError::unsupported(format!("ALTER TABLE SET ({name} = …)")).with_hint(
                    "Create a table with the new definition, and copy: INSERT INTO new SELECT … FROM old.",
                ));
            }
            other => {
                let message = format!("unrecognized parameter \"{other}\"");
                return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
                    .with_hint("The option that can be set is columns."));
            }
        }
    }
    Ok(kept)
}

/// The value of the option `columns`: `'auto'`, `'all'`, `'none'`, or names of columns.
fn kept_columns(value: &Expr, columns: &[Column]) -> Result<KeptColumns, SqlError> {
    let text = option_text(value)?;
    match text.trim().to_lowercase().as_str() {
        "auto" => return Ok(KeptColumns::Auto),
        "all" => return Ok(KeptColumns::All),
        "none" => return Ok(KeptColumns::None),
        _ => {}
    }
    let bad = || {
        SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid value for parameter \"columns\": \"{text}\""))
            .with_hint("One of 'auto', 'all', 'none', or the names of columns: 'a, b'.")
    };
    let names = names_of(&text).ok_or_else(bad)?;
    let mut positions = Vec::with_capacity(names.len());
    for name in names {
        let position = columns.iter().position(|column| column.name == name && name != ROW_NUMBER);
        let position = position.ok_or_else(|| {
            SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
                .with_hint("The option columns is 'auto', 'all', 'none', or names of columns: 'a, b'.")
        })?;
        if positions.contains(&position) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(SqlState::DUPLICATE_COLUMN, message));
        }
        positions.push(position);
    }
    positions.sort_unstable();
    let narrow = |position: usize| u16::try_from(position).map_err(|_| SqlError::internal("too many columns"));
    Ok(KeptColumns::These(positions.into_iter().map(narrow).collect::<Result<_, _>>()?))
}

/// Names between commas, folded to lower case where they are not quoted.
fn names_of(text: &str) -> Option<Vec<String>> {
    let mut tokens = Tokenizer::new(&GenericDialect {}, text).tokenize().ok()?.into_iter();
    let mut names = Vec::new();
    loop {
        let mut next = || tokens.by_ref().find(|token| !matches!(token, Token::Whitespace(_)));
        let Some(Token::Word(word)) = next() else { return None };
        names.push(fold(&word.into_ident(Span::empty())));
        match next() {
            Some(Token::Comma) => {}
            None => return Some(names),
            Some(_) => return None,
        }
    }
}

fn option_text(value: &Expr) -> Result<String, SqlError> {
    match value {
        Expr::Value(v) => match &v.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => Ok(text.clone()),
            Value::Boolean(v) => Ok(v.to_string()),
            other => Err(SqlError::syntax(format!("invalid option value: {other}"))),
        },
        Expr::Identifier(ident) => Ok(ident.to_string()),
        other => Err(SqlError::syntax(format!("invalid option value: {other}"))),
    }
}
