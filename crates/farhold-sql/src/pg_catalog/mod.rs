//! `pg_catalog` and `information_schema`: the relations by which clients inspect a PostgreSQL server.
//!
//! `datafusion-pg-catalog` provides what is the same in every database (types, functions, operators), and rewrites
//! clients' queries to forms that DataFusion can plan. This module adds the database's own tables, columns, indexes and
//! constraints with their definitions, and the functions that return these as text. Psql's `\d`, JDBC's metadata and
//! every tool that shows a schema depend on it.
//!
//! OIDs are computed from the table's number, so that they stay the same for the life of the table:
//! ```text
//! 16384 + 128 * table          the table
//!                    + 1 …     its indexes, primary key first
//!                    + 64 …    the constraints of those indexes
//! 2^30 + 256 * table …         its checks
//! ```

mod functions;
mod information_schema;
mod rewrite;
mod schema;
mod views;

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::catalog::{CatalogProvider, SchemaProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;

use crate::engine::ColumnType;

pub(crate) use rewrite::rewrite;

/// OIDs of database objects begin here; lower ones are PostgreSQL's own.
const FIRST_NORMAL_OID: i32 = 16_384;
const OIDS_PER_TABLE: i32 = 128;
const CONSTRAINT_OFFSET: i32 = 64;
/// OIDs of checks begin here.
const FIRST_CHECK_OID: i32 = 1 << 30;
/// The limit on checks of a table.
pub(crate) const CHECKS_MAX: usize = 256;

/// The role that owns all objects.
const OWNER_OID: i32 = 10;
/// `pg_catalog`
const PG_CATALOG_OID: i32 = 11;
/// `public`
const PUBLIC_OID: i32 = 2200;
/// `information_schema`
const INFORMATION_SCHEMA_OID: i32 = 13_183;
/// The database.
const DATABASE_OID: i32 = 16_383;

/// The number of UTF8 among PostgreSQL's encodings.
const UTF8: i32 = 6;

/// The source of the tables.
pub(crate) trait Relations: Debug + Send + Sync {
    /// All current tables.
    fn relations(&self) -> Vec<Relation>;
    /// The column segments of the table with this number.
    fn segments(&self, _number: u32) -> Segments {
        Segments::default()
    }
    /// The name of the role that owns them.
    fn owner(&self) -> String {
        "farhold".to_owned()
    }
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// Its number, which is never reused.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// The approximate number of rows; -1 if unknown.
    pub(crate) rows: i64,
    /// Its columns.
    pub(crate) columns: Vec<Attribute>,
    /// Its indexes, that of the primary key first.
    pub(crate) indexes: Vec<IndexOf>,
    /// Its CHECK constraints.
    pub(crate) checks: Vec<CheckOf>,
}

/// The column segments of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    /// The option `columns` of the table.
    pub(crate) option: String,
    /// Whether queries read them, or why not.
    pub(crate) state: String,
    /// The rows of the table.
    pub(crate) table_rows: u64,
    /// The bytes of the table's pages of rows.
    pub(crate) table_bytes: u64,
    /// The rows in segments.
    pub(crate) rows: u64,
    /// The number of segments.
    pub(crate) count: usize,
    /// The rows that are in no segment yet.
    pub(crate) delta_rows: u64,
    /// The bytes of segments and delta.
    pub(crate) bytes: u64,
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    /// Its name.
    pub(crate) name: String,
    /// Its type.
    pub(crate) data_type: ColumnType,
    /// Whether it accepts NULL.
    pub(crate) nullable: bool,
    /// Its default, as SQL.
    pub(crate) default: Option<String>,
}

/// An index.
#[derive(Clone, Debug)]
pub(crate) struct IndexOf {
    /// Its name.
    pub(crate) name: String,
    /// Positions of its columns in the table, from 0.
    pub(crate) columns: Vec<usize>,
    /// Its purpose.
    pub(crate) kind: IndexKind,
}

/// A CHECK constraint.
#[derive(Clone, Debug)]
pub(crate) struct CheckOf {
    /// Its name.
    pub(crate) name: String,
    /// Its condition, as SQL.
    pub(crate) condition: String,
    /// Positions of the columns that it reads, from 0.
    pub(crate) columns: Vec<usize>,
    /// Whether all rows are known to satisfy it.
    pub(crate) validated: bool,
}

/// The purpose of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// The primary key.
    PrimaryKey,
    /// A unique constraint.
    Unique,
    /// Access to rows only.
    Plain,
}

impl Relation {
    fn oid(&self) -> i32 {
        FIRST_NORMAL_OID.wrapping_add(OIDS_PER_TABLE.wrapping_mul(self.number.cast_signed()))
    }

    /// Its indexes with their OIDs.
    fn numbered_indexes(&self) -> impl Iterator<Item = (i32, &IndexOf)> {
        let first = self.oid() + 1;
        self.indexes.iter().enumerate().map(move |(at, index)| (first + at as i32, index))
    }

    /// Its checks with their OIDs.
    fn numbered_checks(&self) -> impl Iterator<Item = (i32, &CheckOf)> {
        let first = FIRST_CHECK_OID.wrapping_add((CHECKS_MAX as i32).wrapping_mul(self.number.cast_signed()));
        self.checks.iter().enumerate().map(move |(at, check)| (first.wrapping_add(at as i32), check))
    }

    /// The names of an index's columns, quoted where necessary.
    fn column_list(&self, index: &IndexOf) -> String {
        let names: Vec<String> = index.columns.iter().map(|&column| quoted(&self.columns[column].name)).collect();
        names.join(", ")
    }
}

/// The OID of the constraint that an index implements.
fn constraint_oid(index: i32) -> i32 {
    index - 1 + CONSTRAINT_OFFSET
}

/// An identifier in SQL syntax.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '$');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Adds `pg_catalog` and `information_schema` to the catalog `database`, and their functions to the context.
pub(crate) fn register(context: &SessionContext, database: &str, relations: &Arc<dyn Relations>) -> Result<()> {
    use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
    datafusion_pg_catalog::setup_pg_catalog(context, database, EmptyContextProvider).map_err(|error| *error)?;
    let missing = || DataFusionError::Configuration(format!("no catalog {database}"));
    let catalog: Arc<dyn CatalogProvider> = context.catalog(database).ok_or_else(missing)?;
    let general = catalog.schema("pg_catalog").ok_or_else(missing)?;
    let schema: Arc<dyn SchemaProvider> = Arc::new(schema::PgCatalog::new(general, Arc::clone(relations), database));
    catalog.register_schema("pg_catalog", Arc::clone(&schema))?;
    let catalogs = Arc::clone(context.state().catalog_list());
    let schema = information_schema::InformationSchema::new(catalogs, Arc::clone(relations), schema, database);
    catalog.register_schema(information_schema::NAME, Arc::new(schema))?;
    functions::register(context, relations);
    Ok(())
}
