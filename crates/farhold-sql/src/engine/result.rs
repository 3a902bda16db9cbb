//! The description of a result: its columns, and its final tag.

use std::fmt;

use arrow::datatypes::DataType;

use super::ColumnType;

/// A column of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputColumn {
    /// Its name.
    pub name: String,
    /// Its type on the wire; `Text` if no column type fits (then `arrow_type` is more specific). Values of a `Char`
    /// have no trailing blanks.
    pub data_type: ColumnType,
    /// Its type in [`Rows::Batches`](super::Rows::Batches). A string column is either `Utf8` or `Utf8View`.
    pub arrow_type: DataType,
}

/// The tag in `CommandComplete`: `INSERT 0 3`, `CREATE TABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTag {
    /// The verb.
    pub verb: &'static str,
    /// The number of rows, for verbs that have one.
    pub rows: Option<u64>,
}

impl CommandTag {
    /// A tag without a count.
    #[must_use]
    pub const fn plain(verb: &'static str) -> Self {
        Self { verb, rows: None }
    }

    /// A tag with a count.
    #[must_use]
    pub const fn rows(verb: &'static str, rows: u64) -> Self {
        Self { verb, rows: Some(rows) }
    }
}

impl fmt::Display for CommandTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.verb, self.rows) {
            ("INSERT", Some(rows)) => write!(f, "INSERT 0 {rows}"),
            (verb, Some(rows)) => write!(f, "{verb} {rows}"),
            (verb, None) => f.write_str(verb),
        }
    }
}
