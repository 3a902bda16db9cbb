//! The schema `information_schema`: our own `columns`, with PostgreSQL's types and positions, and the relations of
//! DataFusion.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::{CatalogProviderList, MemTable, SchemaProvider, TableProvider};
use datafusion::error::Result;

use super::Relations;
use super::views::batch::Kind::{Int, Text};
use super::views::batch::{Kind, Value, batch};
use crate::engine::ColumnType;
use crate::engine::from_field;

/// The name of the schema.
pub(super) const NAME: &str = "information_schema";
const COLUMNS: &str = "columns";

/// PostgreSQL's maximum size in bytes of a text without a length, and of a character of other texts.
const TEXT_BYTES_MAX: i32 = 1 << 30;
const CHARACTER_BYTES_MAX: i32 = 4;

/// See the module.
pub(super) struct InformationSchema {
    general: InformationSchemaProvider,
    relations: Arc<dyn Relations>,
    pg_catalog: Arc<dyn SchemaProvider>,
    database: String,
}

impl InformationSchema {
    pub(super) fn new(
        catalogs: Arc<dyn CatalogProviderList>,
        relations: Arc<dyn Relations>,
        pg_catalog: Arc<dyn SchemaProvider>,
        database: &str,
    ) -> Self {
        let general = InformationSchemaProvider::new(catalogs);
        Self { general, relations, pg_catalog, database: database.to_owned() }
    }

    /// The columns of all tables.
    async fn columns(&self) -> Result<Arc<dyn TableProvider>> {
        let mut rows = Vec::new();
        for table in self.relations.relations() {
            for (at, column) in table.columns.iter().enumerate() {
                rows.push(self.row(&Described {
                    schema: "public",
                    table: &table.name,
                    name: &column.name,
                    position: at + 1,
                    default: column.default.as_deref(),
                    nullable: column.nullable,
                    data_type: Some(column.data_type),
                }));
            }
        }
        for name in self.pg_catalog.table_names() {
            let Some(table) = self.pg_catalog.table(&name).await? else { continue };
            for (at, field) in table.schema().fields().iter().enumerate() {
                rows.push(self.row(&Described {
                    schema: "pg_catalog",
                    table: &name,
                    name: field.name(),
                    position: at + 1,
                    default: None,
                    nullable: field.is_nullable(),
                    data_type: column_type(field),
                }));
            }
        }
        let batch = batch(COLUMNS_OF_COLUMNS, &rows)?;
        Ok(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?))
    }

    fn row(&self, column: &Described<'_>) -> Vec<Value> {
        let shape = column.data_type.map_or(Shape::ARRAY, Shape::of);
        let mut row = vec![
            text(&self.database),
            text(column.schema),
            text(column.table),
            text(column.name),
            Value::Int(column.position as i32),
            column.default.map_or(Value::Null, text),
            text(if column.nullable { "YES" } else { "NO" }),
            text(shape.name),
            int(shape.characters),
            int(shape.bytes),
            int(shape.precision),
            int(shape.radix),
            int(shape.scale),
            int(shape.datetime_precision),
        ];
        // Intervals, character sets, collations, domains.
        row.resize(row.len() + 11, Value::Null);
        row.extend([text(&self.database), text("pg_catalog"), text(shape.internal_name)]);
        // Scopes, elements of arrays.
        row.resize(row.len() + 4, Value::Null);
        row.extend([text(&column.position.to_string()), text("NO"), text("NO")]);
        // Identity columns.
        row.resize(row.len() + 5, Value::Null);
        row.extend([text("NO"), text("NEVER"), Value::Null]);
        row.push(text(if column.schema == "public" { "YES" } else { "NO" }));
        row
    }
}

impl fmt::Debug for InformationSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformationSchema").finish_non_exhaustive()
    }
}

#[async_trait]
impl SchemaProvider for InformationSchema {
    fn table_names(&self) -> Vec<String> {
        self.general.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if name.eq_ignore_ascii_case(COLUMNS) {
            return self.columns().await.map(Some);
        }
        self.general.table(name).await
    }

    fn table_exist(&self, name: &str) -> bool {
        self.general.table_exist(name)
    }
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn int(value: Option<i32>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

/// `None` for an array.
fn column_type(field: &FieldRef) -> Option<ColumnType> {
    match field.data_type() {
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => None,
        _ => Some(from_field(field).unwrap_or(ColumnType::Text)),
    }
}

/// The description of a column.
struct Described<'a> {
    schema: &'a str,
    table: &'a str,
    name: &'a str,
    position: usize,
    default: Option<&'a str>,
    nullable: bool,
    /// `None` for an array.
    data_type: Option<ColumnType>,
}

/// The description of a type.
struct Shape {
    name: &'static str,
    internal_name: &'static str,
    characters: Option<i32>,
    bytes: Option<i32>,
    precision: Option<i32>,
    radix: Option<i32>,
    scale: Option<i32>,
    datetime_precision: Option<i32>,
}

impl Shape {
    const ARRAY: Self = Self::plain("ARRAY", "_text");

    const fn plain(name: &'static str, internal_name: &'static str) -> Self {
        Self {
            name,
            internal_name,
            characters: None,
            bytes: None,
            precision: None,
            radix: None,
            scale: None,
            datetime_precision: None,
        }
    }

    fn of(data_type: ColumnType) -> Self {
        let integer = |name, internal_name, bits| Self {
            precision: Some(bits),
            radix: Some(2),
            scale: Some(0),
            ..Self::plain(name, internal_name)
        };
        let float = |name, internal_name, bits| Self {
            precision: Some(bits),
            radix: Some(2),
            ..Self::plain(name, internal_name)
        };
        let characters = |name, internal_name, length: u32| {
            let length = i32::try_from(length).unwrap_or(i32::MAX);
            Self {
                characters: Some(length),
                bytes: Some(length.saturating_mul(CHARACTER_BYTES_MAX)),
                ..Self::plain(name, internal_name)
            }
        };
        let moment =
            |name, internal_name, digits| Self { datetime_precision: Some(digits), ..Self::plain(name, internal_name) };
        match data_type {
            ColumnType::Boolean => Self::plain("boolean", "bool"),
            ColumnType::SmallInt => integer("smallint", "int2", 16),
            ColumnType::Int => integer("integer", "int4", 32),
            ColumnType::BigInt => integer("bigint", "int8", 64),
            ColumnType::Real => float("real", "float4", 24),
            ColumnType::Double => float("double precision", "float8", 53),
            ColumnType::Decimal { precision, scale } => Self {
                precision: Some(precision.into()),
                radix: Some(10),
                scale: Some(scale.into()),
                ..Self::plain("numeric", "numeric")
            },
            ColumnType::Char(length) => characters("character", "bpchar", length),
            ColumnType::Varchar(length) => characters("character varying", "varchar", length),
            ColumnType::Text => Self { bytes: Some(TEXT_BYTES_MAX), ..Self::plain("text", "text") },
            ColumnType::Bytea => Self::plain("bytea", "bytea"),
            ColumnType::Date => moment("date", "date", 0),
            ColumnType::Timestamp => moment("timestamp without time zone", "timestamp", 6),
            ColumnType::Timestamptz => moment("timestamp with time zone", "timestamptz", 6),
        }
    }
}

/// The columns of PostgreSQL 15.
const COLUMNS_OF_COLUMNS: &[(&str, Kind)] = &[
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("column_name", Text),
    ("ordinal_position", Int),
    ("column_default", Text),
    ("is_nullable", Text),
    ("data_type", Text),
    ("character_maximum_length", Int),
    ("character_octet_length", Int),
    ("numeric_precision", Int),
    ("numeric_precision_radix", Int),
    ("numeric_scale", Int),
    ("datetime_precision", Int),
    ("interval_type", Text),
    ("interval_precision", Int),
    ("character_set_catalog", Text),
    ("character_set_schema", Text),
    ("character_set_name", Text),
    ("collation_catalog", Text),
    ("collation_schema", Text),
    ("collation_name", Text),
    ("domain_catalog", Text),
    ("domain_schema", Text),
    ("domain_name", Text),
    ("udt_catalog", Text),
    ("udt_schema", Text),
    ("udt_name", Text),
    ("scope_catalog", Text),
    ("scope_schema", Text),
    ("scope_name", Text),
    ("maximum_cardinality", Int),
    ("dtd_identifier", Text),
    ("is_self_referencing", Text),
    ("is_identity", Text),
    ("identity_generation", Text),
    ("identity_start", Text),
    ("identity_increment", Text),
    ("identity_maximum", Text),
    ("identity_minimum", Text),
    ("identity_cycle", Text),
    ("is_generated", Text),
    ("generation_expression", Text),
    ("is_updatable", Text),
];
