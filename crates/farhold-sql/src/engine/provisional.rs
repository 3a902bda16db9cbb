//! Stand-ins for the lower crates' types until those crates are in the tree.
#![allow(missing_docs)]

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    Boolean,
    SmallInt,
    Int,
    BigInt,
    Real,
    Double,
    Decimal { precision: u8, scale: u8 },
    Char(u32),
    Varchar(u32),
    Text,
    Bytea,
    Date,
    Timestamp,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    Null,
    Boolean(bool),
    SmallInt(i16),
    Int(i32),
    BigInt(i64),
    Real(f32),
    Double(f64),
    Decimal(i128),
    Text(String),
    Bytea(Vec<u8>),
    Date(i32),
    Timestamp(i64),
}

/// A node.
pub struct Node;
/// A thread's worker.
pub struct Worker;
