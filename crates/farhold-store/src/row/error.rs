//! The errors of a row or a schema.

use super::ColumnType;
use std::fmt;

/// A row that does not fit its table, a schema that is inconsistent, or bytes that are not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowError {
    /// A string is longer than its column allows (PostgreSQL's 22001). Counted in characters.
    TooLong {
        /// The column's name.
        column: String,
        /// Characters allowed.
        limit: u32,
        /// Characters given.
        found: usize,
    },
    /// A number does not fit its column (22003).
    NumericOverflow {
        /// The column's name.
        column: String,
        /// The column's type, which names the limit.
        data_type: ColumnType,
    },
    /// A datum of another kind than the column's type (42804).
    WrongType {
        /// The column's name.
        column: String,
        /// The column's type.
        expected: ColumnType,
        /// The kind of datum given.
        found: &'static str,
    },
    /// NULL for a NOT NULL column (23502).
    NullNotAllowed {
        /// The column's name.
        column: String,
    },
    /// Text with a NUL character (22021).
    InvalidText {
        /// The column's name.
        column: String,
    },
    /// A key or value longer than a row may be (54000).
    RowTooLarge {
        /// Bytes needed.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A row or key with another number of datums than it has columns.
    ColumnCount {
        /// Columns of the table or key.
        expected: usize,
        /// Datums given.
        found: usize,
    },
    /// The schema has no such column.
    NoSuchColumn {
        /// What was asked for.
        column: String,
    },
    /// A typed accessor was asked for a column of another type or nullability.
    WrongAccessor {
        /// The column's name.
        column: String,
        /// What was asked for.
        accessor: &'static str,
    },
    /// A schema or an index definition that makes no sense (42611, 42701, 42P16).
    InvalidSchema {
        /// Why.
        reason: String,
    },
    /// Stored bytes that no encoder of this version wrote.
    Corrupt {
        /// Which rule the bytes break.
        what: &'static str,
    },
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { column, limit, found } => {
                write!(f, "value too long for column \"{column}\": {found} characters, the limit is {limit}")
            }
            Self::NumericOverflow { column, data_type } => {
                write!(f, "number out of range for column \"{column}\" of type {data_type}")
            }
            Self::WrongType { column, expected, found } => {
                write!(f, "column \"{column}\" is of type {expected} but the value is of type {found}")
            }
            Self::NullNotAllowed { column } => {
                write!(f, "null value in column \"{column}\" violates not-null constraint")
            }
            Self::InvalidText { column } => write!(f, "text for column \"{column}\" contains a NUL character"),
            Self::RowTooLarge { bytes, limit } => write!(f, "row needs {bytes} bytes, the limit is {limit}"),
            Self::ColumnCount { expected, found } => write!(f, "{found} values for {expected} columns"),
            Self::NoSuchColumn { column } => write!(f, "column \"{column}\" does not exist"),
            Self::WrongAccessor { column, accessor } => write!(f, "column \"{column}\" cannot be read as {accessor}"),
            Self::InvalidSchema { reason } => f.write_str(reason),
            Self::Corrupt { what } => write!(f, "corrupt row bytes: {what}"),
        }
    }
}

impl std::error::Error for RowError {}
