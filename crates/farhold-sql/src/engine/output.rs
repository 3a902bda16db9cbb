//! What a statement is once prepared, and what it gives when executed.

use std::fmt;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;

use super::{ColumnType, CopyIn, Datum};
use crate::SqlError;

/// A column of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputColumn {
    /// Its name.
    pub name: String,
    /// Its type on the wire; `Text` where none of ours fits (then `arrow_type` says more).
    pub data_type: ColumnType,
    /// Its type in [`Rows::Batches`]. A string may come as `Utf8` or `Utf8View`.
    pub arrow_type: DataType,
}

/// A statement, parsed and bound.
pub struct Prepared {
    /// The statement as it came.
    pub sql: String,
    /// The types of `$1`, `$2`, ….
    pub parameters: Vec<ColumnType>,
    /// The columns of its result; `None` for a statement that returns no rows.
    pub columns: Option<Vec<OutputColumn>>,
}

impl Prepared {
    /// Whether the statement runs without a planner, on the session's thread.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        false
    }
}

/// What an executed statement gives.
pub enum Output {
    /// Rows.
    Rows(Rows),
    /// It is done.
    Command(CommandTag),
    /// It waits for the data of a COPY … FROM STDIN.
    CopyIn(CopyIn),
    /// It sends the data of a COPY … TO STDOUT: chunks of bytes, each of whole lines.
    CopyOut(CopyOut),
}

/// Rows of a result, each with the columns of [`Prepared::columns`].
pub enum Rows {
    /// A few, made by the direct path. Every datum has its column's type or is null.
    Direct {
        /// The rows.
        rows: Vec<Vec<Datum>>,
        /// What CommandComplete says.
        tag: CommandTag,
    },
    /// Made by the query threads.
    Batches(QueryRows),
}

/// The rows of a running query. Dropping it stops the query.
pub struct QueryRows {}

impl QueryRows {
    /// The next batch; `None` after the last one, and then [`tag`](Self::tag) holds.
    ///
    /// # Errors
    /// What stopped the query; the session's transaction, if one was open, has failed then.
    #[allow(clippy::unused_async)]
    pub async fn next(&mut self) -> Option<Result<RecordBatch, SqlError>> {
        None
    }

    /// What CommandComplete says, once all rows are out.
    #[must_use]
    pub fn tag(&self) -> CommandTag {
        CommandTag::rows("SELECT", 0)
    }
}

/// The bytes of a COPY … TO STDOUT.
pub struct CopyOut {
    /// How many columns a line has.
    pub columns: usize,
}

impl CopyOut {
    /// The next chunk, whole lines; `None` after the last one, and then [`tag`](Self::tag) holds.
    ///
    /// # Errors
    /// What stopped the query.
    #[allow(clippy::unused_async)]
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, SqlError>> {
        None
    }

    /// What CommandComplete says, once all lines are out.
    #[must_use]
    pub fn tag(&self) -> CommandTag {
        CommandTag::rows("COPY", 0)
    }
}

/// What CommandComplete says: `INSERT 0 3`, `CREATE TABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTag {
    /// The verb.
    pub verb: &'static str,
    /// The rows it concerned, where the verb has that.
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
