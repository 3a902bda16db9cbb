//! `pg_catalog` and `information_schema`: what clients ask a PostgreSQL server about itself.
//!
//! `datafusion-pg-catalog` brings the parts that are the same in every database (types, functions, operators) and the rewriting of
//! clients' queries into what DataFusion plans. Here is what it cannot know: our tables, columns, indexes and constraints with their
//! real definitions, and the functions that spell them out. Psql's `\d`, JDBC's metadata and everything that draws a schema live on it.
//!
//! Object numbers come from the table's own number, so that they stay the same as long as the table does:
//! ```text
//! 16384 + 128 * table          the table
//!                    + 1 …     its indexes, primary key first
//!                    + 64 …    the constraints of those indexes
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

/// Objects of a database begin here; lower numbers are PostgreSQL's own.
const FIRST_NORMAL_OID: i32 = 16_384;
const OIDS_A_TABLE: i32 = 128;
const CONSTRAINT_OFFSET: i32 = 64;

/// The role that owns everything.
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

/// Where the tables are told from.
pub(crate) trait Relations: Debug + Send + Sync {
    /// All tables as they are now.
    fn relations(&self) -> Vec<Relation>;
    /// The name of the role that owns them.
    fn owner(&self) -> String {
        "farhold".to_owned()
    }
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// Its number, which no other table ever had.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// About how many rows it has; -1 when nobody knows.
    pub(crate) rows: i64,
    /// Its columns.
    pub(crate) columns: Vec<Attribute>,
    /// Its indexes, the primary key's first.
    pub(crate) indexes: Vec<IndexOf>,
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    /// Its name.
    pub(crate) name: String,
    /// Its type.
    pub(crate) data_type: ColumnType,
    /// It takes NULL.
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
    /// What it is for.
    pub(crate) kind: IndexKind,
}

/// What an index is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// The primary key.
    PrimaryKey,
    /// No two rows are equal in it.
    Unique,
    /// Finding rows.
    Plain,
}

impl Relation {
    fn oid(&self) -> i32 {
        FIRST_NORMAL_OID.wrapping_add(OIDS_A_TABLE.wrapping_mul(self.number.cast_signed()))
    }

    /// Its indexes with their numbers.
    fn numbered_indexes(&self) -> impl Iterator<Item = (i32, &IndexOf)> {
        let first = self.oid() + 1;
        self.indexes.iter().enumerate().map(move |(at, index)| (first + at as i32, index))
    }

    /// The names of an index's columns, quoted where SQL needs it.
    fn column_list(&self, index: &IndexOf) -> String {
        let names: Vec<String> = index.columns.iter().map(|&column| quoted(&self.columns[column].name)).collect();
        names.join(", ")
    }
}

/// The number of the constraint that an index of that number stands for.
fn constraint_oid(index: i32) -> i32 {
    index - 1 + CONSTRAINT_OFFSET
}

/// An identifier as SQL takes it back.
fn quoted(name: &str) -> String {
    let plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '$');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Puts `pg_catalog` and `information_schema` into the catalog `database`, and their functions into the context.
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
