//! Turns the rows of a view into an Arrow batch.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Int16Array, Int32Array, Int32Builder, Int64Array, ListBuilder, RecordBatch,
    RecordBatchOptions, StringArray, StringBuilder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::Result;
use datafusion_pg_catalog::pg_catalog::oid_field::oid_field;

/// The type of a view's column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Bool,
    Small,
    Int,
    Big,
    Float,
    /// An OID of this kind (`regclass`, …).
    Oid(&'static str),
    Text,
    Ints,
    Texts,
}

/// A value of a view.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Small(i16),
    Int(i32),
    Big(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i32>),
}

/// The batch of the rows, each of which has a value for every column.
pub(crate) fn batch(columns: &[(&str, Kind)], rows: &[Vec<Value>]) -> Result<RecordBatch> {
    debug_assert!(rows.iter().all(|row| row.len() == columns.len()));
    let fields: Vec<Field> = columns.iter().map(|(name, kind)| field(name, *kind)).collect();
    let arrays: Vec<ArrayRef> =
        columns.iter().enumerate().map(|(at, (_, kind))| array(*kind, rows.iter().map(|row| &row[at]))).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}

fn field(name: &str, kind: Kind) -> Field {
    let list = |element| DataType::List(Arc::new(Field::new("item", element, true)));
    match kind {
        Kind::Oid(alias) => oid_field(name, alias, true),
        Kind::Bool => Field::new(name, DataType::Boolean, true),
        Kind::Small => Field::new(name, DataType::Int16, true),
        Kind::Int => Field::new(name, DataType::Int32, true),
        Kind::Big => Field::new(name, DataType::Int64, true),
        Kind::Float => Field::new(name, DataType::Float32, true),
        Kind::Text => Field::new(name, DataType::Utf8, true),
        Kind::Ints => Field::new(name, list(DataType::Int32), true),
        Kind::Texts => Field::new(name, list(DataType::Utf8), true),
    }
}

fn array<'a>(kind: Kind, values: impl Iterator<Item = &'a Value>) -> ArrayRef {
    macro_rules! collect {
        ($array:ty, $variant:ident) => {
            Arc::new(
                values
                    .map(|value| if let Value::$variant(value) = value { Some(value.clone()) } else { None })
                    .collect::<$array>(),
            )
        };
    }
    match kind {
        Kind::Bool => collect!(BooleanArray, Bool),
        Kind::Small => collect!(Int16Array, Small),
        Kind::Int | Kind::Oid(_) => collect!(Int32Array, Int),
        Kind::Big => collect!(Int64Array, Big),
        Kind::Float => collect!(Float32Array, Float),
        Kind::Text => collect!(StringArray, Text),
        Kind::Ints => {
            let mut lists = ListBuilder::new(Int32Builder::new());
            for value in values {
                if let Value::Ints(numbers) = value {
                    lists.values().append_slice(numbers);
                    lists.append(true);
                } else {
                    lists.append(false);
                }
            }
            Arc::new(lists.finish())
        }
        // Privileges and options, which no object here has.
        Kind::Texts => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for _ in values {
                lists.append(false);
            }
            Arc::new(lists.finish())
        }
    }
}
