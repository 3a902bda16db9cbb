//! The tables of `pg_catalog` that describe this database, with the columns of PostgreSQL 15.

pub(super) mod batch;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;

use self::batch::Kind::{Big, Bool, Float, Int, Ints, Oid, Small, Text, Texts};
use self::batch::{Kind, Value, batch};
use super::{
    CheckOf, DATABASE_OID, INFORMATION_SCHEMA_OID, IndexKind, OWNER_OID, PG_CATALOG_OID, PUBLIC_OID, Relation,
    Relations, UTF8, constraint_oid,
};
use crate::engine::ColumnType;
use crate::value::oid;

/// The access method of rows, and of indexes (`pg_am`).
const HEAP_OID: i32 = 2;
const BTREE_OID: i32 = 403;
/// The default collation.
const COLLATION_OID: i32 = 100;

/// A table of the catalog.
pub(super) struct View {
    /// Its name.
    pub(super) name: &'static str,
    columns: &'static [(&'static str, Kind)],
    rows: fn(&Source<'_>) -> Vec<Vec<Value>>,
}

struct Source<'a> {
    relations: &'a dyn Relations,
    tables: Vec<Relation>,
    owner: String,
    database: &'a str,
}

impl View {
    /// Its columns.
    pub(super) fn schema(&self) -> Result<SchemaRef> {
        Ok(batch(self.columns, &[])?.schema())
    }

    /// Its current rows.
    pub(super) fn rows(&self, relations: &dyn Relations, database: &str) -> Result<RecordBatch> {
        let source = Source { relations, tables: relations.relations(), owner: relations.owner(), database };
        batch(self.columns, &(self.rows)(&source))
    }
}

/// In alphabetical order.
pub(super) const VIEWS: &[View] = &[
    View { name: "farhold_columns", columns: FARHOLD_COLUMNS, rows: farhold_columns },
    View { name: "farhold_index_columns", columns: INDEX_COLUMNS, rows: index_columns },
    View { name: "pg_attrdef", columns: PG_ATTRDEF, rows: pg_attrdef },
    View { name: "pg_attribute", columns: PG_ATTRIBUTE, rows: pg_attribute },
    View { name: "pg_class", columns: PG_CLASS, rows: pg_class },
    View { name: "pg_constraint", columns: PG_CONSTRAINT, rows: pg_constraint },
    View { name: "pg_database", columns: PG_DATABASE, rows: pg_database },
    View { name: "pg_description", columns: PG_DESCRIPTION, rows: |_| Vec::new() },
    View { name: "pg_extension", columns: PG_EXTENSION, rows: |_| Vec::new() },
    View { name: "pg_index", columns: PG_INDEX, rows: pg_index },
    View { name: "pg_indexes", columns: PG_INDEXES, rows: pg_indexes },
    View { name: "pg_namespace", columns: PG_NAMESPACE, rows: pg_namespace },
    View { name: "pg_roles", columns: PG_ROLES, rows: pg_roles },
    View { name: "pg_tables", columns: PG_TABLES, rows: pg_tables },
    View { name: "pg_user", columns: PG_USER, rows: pg_user },
];

fn text(value: impl Into<String>) -> Value {
    Value::Text(value.into())
}

/// The tables, and which columns this node keeps of them as columns.
const FARHOLD_COLUMNS: &[(&str, Kind)] = &[
    ("relid", Oid("regclass")),
    ("relname", Text),
    ("option", Text),
    ("state", Text),
    ("table_rows", Big),
    ("table_bytes", Big),
    ("segment_rows", Big),
    ("segments", Int),
    ("delta_rows", Big),
    ("bytes", Big),
];

fn farhold_columns(source: &Source<'_>) -> Vec<Vec<Value>> {
    let row = |table: &Relation| {
        let segments = source.relations.segments(table.number);
        vec![
            Value::Int(table.oid()),
            text(&table.name),
            text(segments.option),
            text(segments.state),
            Value::Big(segments.table_rows.cast_signed()),
            Value::Big(segments.table_bytes.cast_signed()),
            Value::Big(segments.rows.cast_signed()),
            Value::Int(segments.count as i32),
            Value::Big(segments.delta_rows.cast_signed()),
            Value::Big(segments.bytes.cast_signed()),
        ]
    };
    source.tables.iter().map(row).collect()
}

const PG_CLASS: &[(&str, Kind)] = &[
    ("oid", Oid("oid")),
    ("relname", Text),
    ("relnamespace", Oid("regnamespace")),
    ("reltype", Oid("regtype")),
    ("reloftype", Oid("regtype")),
    ("relowner", Oid("oid")),
    ("relam", Oid("oid")),
    ("relfilenode", Oid("oid")),
    ("reltablespace", Oid("oid")),
    ("relpages", Int),
    ("reltuples", Float),
    ("relallvisible", Int),
    ("reltoastrelid", Oid("regclass")),
    ("relhasindex", Bool),
    ("relisshared", Bool),
    ("relpersistence", Text),
    ("relkind", Text),
    ("relnatts", Small),
    ("relchecks", Small),
    ("relhasrules", Bool),
    ("relhastriggers", Bool),
    ("relhassubclass", Bool),
    ("relrowsecurity", Bool),
    ("relforcerowsecurity", Bool),
    ("relispopulated", Bool),
    ("relreplident", Text),
    ("relispartition", Bool),
    ("relrewrite", Oid("regclass")),
    ("relfrozenxid", Int),
    ("relminmxid", Int),
    ("relacl", Texts),
    ("reloptions", Texts),
    ("relpartbound", Text),
];

fn pg_class(source: &Source<'_>) -> Vec<Vec<Value>> {
    let row = |oid: i32, name: &str, kind: &str, columns: usize, rows: i64, (has_index, checks): (bool, usize)| {
        let access_method = if kind == "i" { BTREE_OID } else { HEAP_OID };
        vec![
            Value::Int(oid),
            text(name),
            Value::Int(PUBLIC_OID),
            Value::Int(0),
            Value::Int(0),
            Value::Int(OWNER_OID),
            Value::Int(access_method),
            Value::Int(oid),
            Value::Int(0),
            Value::Int(0),
            Value::Float(rows as f32),
            Value::Int(0),
            Value::Int(0),
            Value::Bool(has_index),
            Value::Bool(false),
            text("p"),
            text(kind),
            Value::Small(columns as i16),
            Value::Small(checks as i16),
            Value::Bool(false),
            Value::Bool(false),
            Value::Bool(false),
            Value::Bool(false),
            Value::Bool(false),
            Value::Bool(true),
            text(if kind == "i" { "n" } else { "d" }),
            Value::Bool(false),
            Value::Int(0),
            Value::Int(0),
            Value::Int(0),
            Value::Null,
            Value::Null,
            Value::Null,
        ]
    };
    let mut rows = Vec::new();
    for table in &source.tables {
        let has = (!table.indexes.is_empty(), table.checks.len());
        rows.push(row(table.oid(), &table.name, "r", table.columns.len(), table.rows, has));
        for (oid, index) in table.numbered_indexes() {
            rows.push(row(oid, &index.name, "i", index.columns.len(), table.rows, (false, 0)));
        }
    }
    rows
}

const PG_ATTRIBUTE: &[(&str, Kind)] = &[
    ("attrelid", Oid("regclass")),
    ("attname", Text),
    ("atttypid", Oid("regtype")),
    ("attstattarget", Int),
    ("attlen", Small),
    ("attnum", Small),
    ("attndims", Int),
    ("attcacheoff", Int),
    ("atttypmod", Int),
    ("attbyval", Bool),
    ("attalign", Text),
    ("attstorage", Text),
    ("attcompression", Text),
    ("attnotnull", Bool),
    ("atthasdef", Bool),
    ("atthasmissing", Bool),
    ("attidentity", Text),
    ("attgenerated", Text),
    ("attisdropped", Bool),
    ("attislocal", Bool),
    ("attinhcount", Int),
    ("attcollation", Oid("oid")),
    ("attacl", Texts),
    ("attoptions", Texts),
    ("attfdwoptions", Texts),
    ("attmissingval", Texts),
];

fn pg_attribute(source: &Source<'_>) -> Vec<Vec<Value>> {
    let row = |relation: i32, name: &str, data_type: ColumnType, number: usize, not_null: bool, has_default: bool| {
        let type_oid = oid::of(data_type);
        let size = oid::size_of(type_oid);
        let collation = if data_type.is_text() { COLLATION_OID } else { 0 };
        vec![
            Value::Int(relation),
            text(name),
            Value::Int(type_oid.cast_signed()),
            Value::Int(-1),
            Value::Small(size),
            Value::Small(number as i16),
            Value::Int(0),
            Value::Int(-1),
            Value::Int(oid::modifier_of(data_type)),
            Value::Bool(matches!(size, 1..=8)),
            text(match size {
                1 => "c",
                2 => "s",
                8 => "d",
                _ => "i",
            }),
            text(match data_type {
                ColumnType::Decimal { .. } => "m",
                _ if size < 0 => "x",
                _ => "p",
            }),
            text(""),
            Value::Bool(not_null),
            Value::Bool(has_default),
            Value::Bool(false),
            text(""),
            text(""),
            Value::Bool(false),
            Value::Bool(true),
            Value::Int(0),
            Value::Int(collation),
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Null,
        ]
    };
    let mut rows = Vec::new();
    for table in &source.tables {
        for (at, column) in table.columns.iter().enumerate() {
            rows.push(row(
                table.oid(),
                &column.name,
                column.data_type,
                at + 1,
                !column.nullable,
                column.default.is_some(),
            ));
        }
        for (oid, index) in table.numbered_indexes() {
            for (at, &column) in index.columns.iter().enumerate() {
                let column = &table.columns[column];
                rows.push(row(oid, &column.name, column.data_type, at + 1, false, false));
            }
        }
    }
    rows
}

const PG_ATTRDEF: &[(&str, Kind)] =
    &[("oid", Oid("oid")), ("adrelid", Oid("regclass")), ("adnum", Small), ("adbin", Text)];

fn pg_attrdef(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for table in &source.tables {
        for (at, column) in table.columns.iter().enumerate() {
            if let Some(default) = &column.default {
                let number = i32::try_from(rows.len()).unwrap_or(0);
                rows.push(vec![
                    Value::Int(number + 1),
                    Value::Int(table.oid()),
                    Value::Small(at as i16 + 1),
                    text(default),
                ]);
            }
        }
    }
    rows
}

const PG_INDEX: &[(&str, Kind)] = &[
    ("indexrelid", Oid("regclass")),
    ("indrelid", Oid("regclass")),
    ("indnatts", Small),
    ("indnkeyatts", Small),
    ("indisunique", Bool),
    ("indnullsnotdistinct", Bool),
    ("indisprimary", Bool),
    ("indisexclusion", Bool),
    ("indimmediate", Bool),
    ("indisclustered", Bool),
    ("indisvalid", Bool),
    ("indcheckxmin", Bool),
    ("indisready", Bool),
    ("indislive", Bool),
    ("indisreplident", Bool),
    ("indkey", Ints),
    ("indcollation", Ints),
    ("indclass", Ints),
    ("indoption", Ints),
    ("indexprs", Text),
    ("indpred", Text),
];

fn pg_index(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for table in &source.tables {
        for (oid, index) in table.numbered_indexes() {
            let count = index.columns.len();
            let numbers = index.columns.iter().map(|&column| column as i32 + 1).collect();
            let zeros = || Value::Ints(vec![0; count]);
            rows.push(vec![
                Value::Int(oid),
                Value::Int(table.oid()),
                Value::Small(count as i16),
                Value::Small(count as i16),
                Value::Bool(index.kind != IndexKind::Plain),
                Value::Bool(false),
                Value::Bool(index.kind == IndexKind::PrimaryKey),
                Value::Bool(false),
                Value::Bool(true),
                Value::Bool(false),
                Value::Bool(true),
                Value::Bool(false),
                Value::Bool(true),
                Value::Bool(true),
                Value::Bool(false),
                Value::Ints(numbers),
                zeros(),
                zeros(),
                zeros(),
                Value::Null,
                Value::Null,
            ]);
        }
    }
    rows
}

const INDEX_COLUMNS: &[(&str, Kind)] =
    &[("indexrelid", Oid("regclass")), ("indrelid", Oid("regclass")), ("position", Int), ("attnum", Small)];

/// One row per column of each index, as `unnest(indkey) WITH ORDINALITY` in PostgreSQL.
fn index_columns(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for table in &source.tables {
        for (oid, index) in table.numbered_indexes() {
            for (at, &column) in index.columns.iter().enumerate() {
                let (position, number) = (Value::Int(at as i32 + 1), Value::Small(column as i16 + 1));
                rows.push(vec![Value::Int(oid), Value::Int(table.oid()), position, number]);
            }
        }
    }
    rows
}

const PG_CONSTRAINT: &[(&str, Kind)] = &[
    ("oid", Oid("oid")),
    ("conname", Text),
    ("connamespace", Oid("regnamespace")),
    ("contype", Text),
    ("condeferrable", Bool),
    ("condeferred", Bool),
    ("convalidated", Bool),
    ("conrelid", Oid("regclass")),
    ("contypid", Oid("regtype")),
    ("conindid", Oid("regclass")),
    ("conparentid", Oid("oid")),
    ("confrelid", Oid("regclass")),
    ("confupdtype", Text),
    ("confdeltype", Text),
    ("confmatchtype", Text),
    ("conislocal", Bool),
    ("coninhcount", Int),
    ("connoinherit", Bool),
    ("conkey", Ints),
    ("confkey", Ints),
    ("conpfeqop", Ints),
    ("conppeqop", Ints),
    ("conffeqop", Ints),
    ("confdelsetcols", Ints),
    ("conexclop", Ints),
    ("conbin", Text),
];

fn pg_constraint(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for table in &source.tables {
        // A key has an index, a check a condition.
        let mut add = |oid: i32, name: &str, index: Option<i32>, check: Option<&CheckOf>, columns: &[usize]| {
            let numbers = columns.iter().map(|&column| column as i32 + 1).collect();
            let mut row = vec![
                Value::Int(oid),
                text(name),
                Value::Int(PUBLIC_OID),
                text(if check.is_some() { "c" } else { "p" }),
                Value::Bool(false),
                Value::Bool(false),
                Value::Bool(check.is_none_or(|check| check.validated)),
                Value::Int(table.oid()),
                Value::Int(0),
                Value::Int(index.unwrap_or(0)),
                Value::Int(0),
                Value::Int(0),
                text(" "),
                text(" "),
                text(" "),
                Value::Bool(true),
                Value::Int(0),
                Value::Bool(check.is_none()),
                Value::Ints(numbers),
            ];
            row.resize(PG_CONSTRAINT.len() - 1, Value::Null);
            row.push(check.map_or(Value::Null, |check| text(&check.condition)));
            rows.push(row);
        };
        for (oid, index) in table.numbered_indexes().filter(|(_, index)| index.kind == IndexKind::PrimaryKey) {
            add(constraint_oid(oid), &index.name, Some(oid), None, &index.columns);
        }
        for (oid, check) in table.numbered_checks() {
            add(oid, &check.name, None, Some(check), &check.columns);
        }
    }
    rows
}

const PG_NAMESPACE: &[(&str, Kind)] =
    &[("oid", Oid("oid")), ("nspname", Text), ("nspowner", Oid("oid")), ("nspacl", Texts)];

fn pg_namespace(_: &Source<'_>) -> Vec<Vec<Value>> {
    [(PG_CATALOG_OID, "pg_catalog"), (PUBLIC_OID, "public"), (INFORMATION_SCHEMA_OID, "information_schema")]
        .into_iter()
        .map(|(oid, name)| vec![Value::Int(oid), text(name), Value::Int(OWNER_OID), Value::Null])
        .collect()
}

const PG_DATABASE: &[(&str, Kind)] = &[
    ("oid", Oid("oid")),
    ("datname", Text),
    ("datdba", Oid("oid")),
    ("encoding", Int),
    ("datlocprovider", Text),
    ("datistemplate", Bool),
    ("datallowconn", Bool),
    ("datconnlimit", Int),
    ("datfrozenxid", Int),
    ("datminmxid", Int),
    ("dattablespace", Oid("oid")),
    ("datcollate", Text),
    ("datctype", Text),
    ("daticulocale", Text),
    ("datcollversion", Text),
    ("datacl", Texts),
];

/// `pg_default`
const TABLESPACE_OID: i32 = 1663;

fn pg_database(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut row = vec![
        Value::Int(DATABASE_OID),
        text(source.database),
        Value::Int(OWNER_OID),
        Value::Int(UTF8),
        text("c"),
        Value::Bool(false),
        Value::Bool(true),
        Value::Int(-1),
        Value::Int(0),
        Value::Int(0),
        Value::Int(TABLESPACE_OID),
        text("C"),
        text("C"),
    ];
    row.resize(PG_DATABASE.len(), Value::Null);
    vec![row]
}

const PG_ROLES: &[(&str, Kind)] = &[
    ("rolname", Text),
    ("rolsuper", Bool),
    ("rolinherit", Bool),
    ("rolcreaterole", Bool),
    ("rolcreatedb", Bool),
    ("rolcanlogin", Bool),
    ("rolreplication", Bool),
    ("rolconnlimit", Int),
    ("rolpassword", Text),
    ("rolvaliduntil", Text),
    ("rolbypassrls", Bool),
    ("rolconfig", Texts),
    ("oid", Oid("oid")),
];

fn pg_roles(source: &Source<'_>) -> Vec<Vec<Value>> {
    let yes = || Value::Bool(true);
    vec![vec![
        text(&source.owner),
        yes(),
        yes(),
        yes(),
        yes(),
        yes(),
        Value::Bool(false),
        Value::Int(-1),
        Value::Null,
        Value::Null,
        yes(),
        Value::Null,
        Value::Int(OWNER_OID),
    ]]
}

const PG_USER: &[(&str, Kind)] =
    &[("usename", Text), ("usesysid", Oid("oid")), ("usecreatedb", Bool), ("usesuper", Bool)];

fn pg_user(source: &Source<'_>) -> Vec<Vec<Value>> {
    vec![vec![text(&source.owner), Value::Int(OWNER_OID), Value::Bool(true), Value::Bool(true)]]
}

const PG_DESCRIPTION: &[(&str, Kind)] =
    &[("objoid", Oid("oid")), ("classoid", Oid("oid")), ("objsubid", Int), ("description", Text)];

const PG_EXTENSION: &[(&str, Kind)] = &[
    ("oid", Oid("oid")),
    ("extname", Text),
    ("extowner", Oid("oid")),
    ("extnamespace", Oid("regnamespace")),
    ("extrelocatable", Bool),
    ("extversion", Text),
    ("extconfig", Texts),
    ("extcondition", Texts),
];

const PG_TABLES: &[(&str, Kind)] = &[
    ("schemaname", Text),
    ("tablename", Text),
    ("tableowner", Text),
    ("tablespace", Text),
    ("hasindexes", Bool),
    ("hasrules", Bool),
    ("hastriggers", Bool),
    ("rowsecurity", Bool),
];

fn pg_tables(source: &Source<'_>) -> Vec<Vec<Value>> {
    let row = |table: &Relation| {
        let no = || Value::Bool(false);
        let has_indexes = Value::Bool(!table.indexes.is_empty());
        vec![text("public"), text(&table.name), text(&source.owner), Value::Null, has_indexes, no(), no(), no()]
    };
    source.tables.iter().map(row).collect()
}

const PG_INDEXES: &[(&str, Kind)] =
    &[("schemaname", Text), ("tablename", Text), ("indexname", Text), ("tablespace", Text), ("indexdef", Text)];

fn pg_indexes(source: &Source<'_>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for table in &source.tables {
        for index in &table.indexes {
            let definition = super::functions::index_definition(table, index);
            rows.push(vec![text("public"), text(&table.name), text(&index.name), Value::Null, text(definition)]);
        }
    }
    rows
}
