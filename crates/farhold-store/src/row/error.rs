//! The errors of a row or a schema.

use super::ColumnType;

/// A row that does not fit its table, a schema that is inconsistent, or bytes that are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A string is longer than its column allows (PostgreSQL's 22001). Counted in characters.
    #[error("value too long for column \"{column}\": {found} characters, the limit is {limit}")]
    TooLong {
        /// The column's name.
        column: String,
        /// Characters allowed.
        limit: u32,
        /// Characters given.
        found: usize,
    },
    /// A number does not fit its column (22003).
    #[error("number out of range for column \"{column}\" of type {data_type}")]
    NumericOverflow {
        /// The column's name.
        column: String,
        /// The column's type, which names the limit.
        data_type: ColumnType,
    },
    /// A datum of another kind than the column's type (42804).
    #[error("column \"{column}\" is of type {expected} but the value is of type {found}")]
    WrongType {
        /// The column's name.
        column: String,
        /// The column's type.
        expected: ColumnType,
        /// The kind of datum given.
        found: &'static str,
    },
    /// NULL for a NOT NULL column (23502).
    #[error("null value in column \"{column}\" violates not-null constraint")]
    NullNotAllowed {
        /// The column's name.
        column: String,
    },
    /// Text with a NUL character (22021).
    #[error("text for column \"{column}\" contains a NUL character")]
    InvalidText {
        /// The column's name.
        column: String,
    },
    /// A key or value longer than a row may be (54000).
    #[error("row needs {bytes} bytes, the limit is {limit}")]
    RowTooLarge {
        /// Bytes needed.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A bound of a range of keys that no row can have.
    #[error("no row can have the key {key}")]
    NoSuchKey {
        /// The key's values.
        key: String,
    },
    /// A row or key with another number of datums than it has columns.
    #[error("{found} values for {expected} columns")]
    ColumnCount {
        /// Columns of the table or key.
        expected: usize,
        /// Datums given.
        found: usize,
    },
    /// The schema has no such column.
    #[error("column \"{column}\" does not exist")]
    NoSuchColumn {
        /// What was asked for.
        column: String,
    },
    /// A typed accessor was asked for a column of another type or nullability.
    #[error("column \"{column}\" cannot be read as {accessor}")]
    WrongAccessor {
        /// The column's name.
        column: String,
        /// What was asked for.
        accessor: &'static str,
    },
    /// A schema or an index definition that makes no sense (42611, 42701, 42P16).
    #[error("{reason}")]
    InvalidSchema {
        /// Why.
        reason: String,
    },
    /// Stored bytes that no encoder of this version wrote.
    #[error("corrupt row bytes: {what}")]
    Corrupt {
        /// Which rule the bytes break.
        what: &'static str,
    },
}
