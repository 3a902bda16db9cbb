//! One table, with all that planning and execution need of it, computed once.

use std::sync::Arc;

use arrow::datatypes::{Schema as ArrowSchema, SchemaRef};
use farhold_store::row::{Column, RowError, Schema, SecondaryKeys};
use farhold_txn::{Index, Table, TxnError};

use super::{Attributes, Check};
use crate::engine::parse::parse_expr;
use crate::engine::scalar::{Binder, ColumnRef, Scalar};
use crate::engine::scan::SampleCache;
use crate::engine::types::to_field;
use crate::engine::{Datum, error};
use crate::value::{Zone, format_datum};
use crate::{SqlError, SqlState};

/// The hidden column of a table without a primary key.
pub(crate) const ROW_NUMBER: &str = "farhold_row_number";

/// A secondary index.
#[derive(Clone, Debug)]
pub(crate) struct IndexInfo {
    pub(crate) index: Index,
    pub(crate) name: String,
    pub(crate) columns: Vec<usize>,
    pub(crate) unique: bool,
    /// False while the index is being filled.
    pub(crate) ready: bool,
    pub(crate) keys: SecondaryKeys,
}

/// A table.
pub(crate) struct TableInfo {
    pub(crate) name: String,
    pub(crate) table: Table,
    /// The number of visible columns, which come first.
    pub(crate) visible: usize,
    pub(crate) hidden_row_number: bool,
    pub(crate) primary_key_name: String,
    /// The DEFAULT of each visible column, as SQL and bound.
    pub(crate) defaults: Vec<Option<(String, Scalar)>>,
    /// Columns that are GENERATED ALWAYS.
    pub(crate) always: Vec<usize>,
    /// The CHECK constraints, in the order of their names.
    pub(crate) checks: Vec<Check>,
    /// What they read.
    pub(super) checked: Wanted,
    /// The table's attributes that this was made from have this version or a later one.
    pub(super) attributes_version: u64,
    pub(crate) indexes: Vec<IndexInfo>,
    /// The schema of the visible columns.
    pub(crate) arrow: SchemaRef,
    /// The schema of all columns.
    pub(crate) arrow_full: SchemaRef,
    /// A sample of its rows, for estimates.
    pub(crate) sample: SampleCache,
}

impl std::fmt::Debug for TableInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TableInfo {
    /// From the node's table.
    pub(in crate::engine) fn new(table: Table) -> Result<Self, SqlError> {
        let name = table.name().to_owned();
        // Read first: a change in between makes this one out of date.
        let attributes_version = table.attributes_version();
        let attributes = Attributes::decode(&table.attributes()).unwrap_or_default();
        let schema = table.schema();
        let all = schema.columns();
        let visible = if attributes.hidden_row_number { all.len() - 1 } else { all.len() };
        let mut indexes = Vec::new();
        for index in table.indexes() {
            let keys = SecondaryKeys::new(schema, &index.definition).map_err(|e| error::from_row(&e))?;
            indexes.push(IndexInfo {
                index: index.index,
                name: index.definition.name,
                columns: index.definition.columns,
                unique: index.definition.unique,
                ready: index.ready,
                keys,
            });
        }
        let mut defaults = vec![None; visible];
        for (column, text) in &attributes.defaults {
            if let Some(slot) = defaults.get_mut(*column) {
                *slot = Some((text.clone(), bind_default(text, &all[*column])?));
            }
        }
        let references = column_refs(&all[..visible], &name);
        let checks = attributes.checks.into_iter().map(|check| Check::new(check, &references));
        let checks = checks.collect::<Result<Vec<_>, _>>()?;
        let fields = |columns: &[Column]| {
            let fields: Vec<_> = columns.iter().map(|c| to_field(&c.name, c.data_type, c.nullable)).collect();
            Arc::new(ArrowSchema::new(fields))
        };
        let (arrow, arrow_full) = (fields(&all[..visible]), fields(all));
        let primary_key_name = match attributes.primary_key_name {
            empty if empty.is_empty() => format!("{name}_pkey"),
            given => given,
        };
        let mut info = Self {
            name,
            visible,
            hidden_row_number: attributes.hidden_row_number,
            primary_key_name,
            defaults,
            always: attributes.always,
            checks,
            checked: Wanted { any_key: false, values: Vec::new() },
            attributes_version,
            indexes,
            arrow,
            arrow_full,
            sample: SampleCache::default(),
            table,
        };
        info.checked = info.wanted(info.checks.iter().flat_map(|check| check.columns.iter().copied()));
        Ok(info)
    }

    pub(crate) fn schema(&self) -> &Schema {
        self.table.schema()
    }

    /// All columns, the hidden one included.
    pub(crate) fn columns(&self) -> &[Column] {
        self.table.schema().columns()
    }

    /// The visible columns.
    pub(crate) fn visible_columns(&self) -> &[Column] {
        &self.columns()[..self.visible]
    }

    /// The visible columns as the binder's column references.
    pub(crate) fn column_refs(&self, qualifier: &str) -> Vec<ColumnRef> {
        column_refs(self.visible_columns(), qualifier)
    }

    /// The position of a visible column.
    pub(crate) fn column(&self, name: &str) -> Result<usize, SqlError> {
        self.visible_columns().iter().position(|c| c.name == name).ok_or_else(|| {
            SqlError::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" of relation \"{}\" does not exist", self.name),
            )
        })
    }

    /// 428C9 if a statement assigns a value to a column that is GENERATED ALWAYS.
    pub(crate) fn check_given(&self, column: usize, verb: &str) -> Result<(), SqlError> {
        if !self.always.contains(&column) {
            return Ok(());
        }
        let name = &self.columns()[column].name;
        let message = format!("{verb} column \"{name}\", which is an identity column defined as GENERATED ALWAYS");
        Err(SqlError::new(SqlState::GENERATED_ALWAYS, message)
            .with_hint("Use DEFAULT, or define the column GENERATED BY DEFAULT."))
    }

    /// The secondary index with this slot.
    pub(crate) fn index_info(&self, index: Index) -> Option<&IndexInfo> {
        self.indexes.iter().find(|i| i.index == index)
    }

    /// The columns of an index.
    pub(crate) fn index_columns(&self, index: Index) -> &[usize] {
        match index {
            Index::Primary => self.schema().key(),
            Index::Secondary(_) => self.index_info(index).map_or(&[], |i| &i.columns),
        }
    }

    /// Encodes the first columns of a key of `index`.
    pub(crate) fn encode_parts(&self, index: Index, parts: &[Datum], out: &mut Vec<u8>) -> Result<(), RowError> {
        match self.index_info(index) {
            None => self.schema().encode_key_parts(parts, out),
            Some(info) => info.keys.encode_parts(self.schema(), parts, out),
        }
    }

    /// Decodes the columns `wanted` of a row into `row`, which has one datum per column of the table.
    pub(crate) fn read(&self, key: &[u8], value: &[u8], wanted: &Wanted, row: &mut [Datum]) -> Result<(), SqlError> {
        let schema = self.schema();
        if wanted.any_key {
            let parts = schema.decode_key(key).map_err(|e| error::from_row(&e))?;
            for (datum, &column) in parts.into_iter().zip(schema.key()) {
                row[column] = datum;
            }
        }
        for &column in &wanted.values {
            row[column] = schema.decode_value_column(value, column).map_err(|e| error::from_row(&e))?;
        }
        Ok(())
    }

    /// Which parts of a row hold `columns`.
    pub(crate) fn wanted(&self, columns: impl IntoIterator<Item = usize>) -> Wanted {
        let key = self.schema().key();
        let mut wanted = Wanted { any_key: false, values: Vec::new() };
        for column in columns {
            if key.contains(&column) {
                wanted.any_key = true;
            } else if !wanted.values.contains(&column) {
                wanted.values.push(column);
            }
        }
        wanted
    }

    /// Every column.
    pub(crate) fn wanted_all(&self) -> Wanted {
        self.wanted(0..self.columns().len())
    }

    /// The SQL error for `txn_error`, which a transaction met while it wrote `row`. Its detail has instants in UTC.
    pub(crate) fn explain(&self, txn_error: &TxnError, row: Option<&[Datum]>) -> SqlError {
        let TxnError::DuplicateKey { index, .. } = txn_error else { return error::from_txn(txn_error) };
        let constraint = match index {
            Index::Primary => self.primary_key_name.clone(),
            Index::Secondary(_) => self.index_info(*index).map_or_else(|| index.to_string(), |i| i.name.clone()),
        };
        let mut sql = SqlError::new(
            SqlState::UNIQUE_VIOLATION,
            format!("duplicate key value violates unique constraint \"{constraint}\""),
        );
        if let Some(row) = row {
            let columns = self.index_columns(*index);
            let names: Vec<_> = columns.iter().map(|&c| self.columns()[c].name.as_str()).collect();
            let text = |&c: &usize| format_datum(&row[c], Zone::UTC).unwrap_or_else(|| "null".to_owned());
            let values: Vec<_> = columns.iter().map(text).collect();
            sql = sql.with_detail(format!("Key ({})=({}) already exists.", names.join(", "), values.join(", ")));
        }
        sql.constraint = Some(constraint.into());
        sql.table = Some(self.name.as_str().into());
        sql
    }
}

/// The parts of a row that hold some columns.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    any_key: bool,
    values: Vec<usize>,
}

/// Columns as the binder's column references.
pub(crate) fn column_refs(columns: &[Column], qualifier: &str) -> Vec<ColumnRef> {
    let reference =
        |c: &Column| ColumnRef { qualifier: qualifier.to_owned(), name: c.name.clone(), data_type: c.data_type };
    columns.iter().map(reference).collect()
}

/// A stored DEFAULT, bound. Its text means the same in every time zone.
fn bind_default(text: &str, column: &Column) -> Result<Scalar, SqlError> {
    let wrong = || {
        SqlError::internal(format!(
            "the stored default of column \"{}\" is not a valid expression: {text}",
            column.name
        ))
    };
    let expression = parse_expr(text).map_err(|_| wrong())?;
    let mut parameters = Vec::new();
    let mut binder = Binder { columns: &[], parameters: &mut parameters, zone: Zone::UTC, is_kept: true };
    binder.bind_to(&expression, column.data_type).map_err(|_| wrong())
}
