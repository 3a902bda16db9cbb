//! A prepared statement, and the result of its execution.

use std::cell::RefCell;
use std::rc::Rc;

use arrow::array::RecordBatch;

use super::cancel::Armed;
use super::direct::Program;
use super::parse::{Kept, Parsed};
use super::query::{BatchStream, PlannedQuery};
use super::result::{CommandTag, OutputColumn};
use super::session::{Bound, Plan};
use super::types::datum_at;
use super::{ColumnType, CopyIn, CopyOut, Datum};
use crate::SqlError;
use crate::value::Zone;

/// A statement, parsed and bound.
pub struct Prepared {
    /// The types of `$1`, `$2`, ….
    pub parameters: Vec<ColumnType>,
    /// The columns of its result; `None` for a statement that returns no rows.
    pub columns: Option<Vec<OutputColumn>>,
    source: Kept,
    bound: RefCell<Rc<Bound>>,
    long: RefCell<Option<Long>>,
}

/// The planner's version of a statement that runs on the direct path while it reads few rows.
#[derive(Clone)]
pub(crate) struct Long {
    /// The catalog version for which it was planned.
    pub(crate) version: u64,
    /// The time zone for which it was planned.
    pub(crate) zone: Zone,
    /// `None` if the planned rows would have other types than those announced to the client.
    pub(crate) query: Option<Rc<PlannedQuery>>,
}

impl Prepared {
    pub(crate) fn new(parsed: Parsed, bound: Bound) -> Self {
        Self {
            parameters: bound.parameters.clone(),
            columns: bound.columns.clone(),
            source: parsed.into(),
            bound: RefCell::new(Rc::new(bound)),
            long: RefCell::new(None),
        }
    }

    /// The statement's text, as received; empty for the arguments of an EXECUTE.
    #[must_use]
    pub fn sql(&self) -> &str {
        self.source.sql()
    }

    /// The statement from which it is bound again.
    pub(crate) fn source(&self) -> &Kept {
        &self.source
    }

    /// The planner's version, if it was kept for this version of the catalog and this time zone.
    pub(crate) fn long(&self, version: u64, zone: Zone) -> Option<Long> {
        self.long.borrow().clone().filter(|long| long.version == version && long.zone == zone)
    }

    /// Keeps the planner's version of the statement.
    pub(crate) fn keep_long(&self, long: Long) {
        *self.long.borrow_mut() = Some(long);
    }

    pub(crate) fn bound(&self) -> Rc<Bound> {
        Rc::clone(&self.bound.borrow())
    }

    /// Replaces a binding that a change of the catalog or the time zone made stale.
    pub(crate) fn rebind(&self, bound: Bound) -> Rc<Bound> {
        let bound = Rc::new(bound);
        *self.bound.borrow_mut() = Rc::clone(&bound);
        bound
    }

    /// Whether it is a SELECT or VALUES.
    pub(crate) fn is_query(&self) -> bool {
        let bound = self.bound.borrow();
        matches!(bound.plan, Plan::Query(_) | Plan::Direct(Program::Select(_) | Program::Constant(_)))
    }

    /// Whether it is a query or writes rows. Statements about the session, and definitions, are neither.
    pub(crate) fn is_optimizable(&self) -> bool {
        let bound = self.bound.borrow();
        let writes = matches!(bound.plan, Plan::InsertQuery(_) | Plan::UpdateQuery(_) | Plan::DeleteQuery(_));
        writes || matches!(bound.plan, Plan::Query(_) | Plan::Direct(_))
    }

    /// Whether the statement runs on the session's thread, without the planner.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        matches!(self.bound.borrow().plan, Plan::Direct(_) | Plan::SetConfig(_) | Plan::Utility(_))
    }
}

/// The result of an executed statement.
#[allow(clippy::large_enum_variant, reason = "one a statement, and the small ones are the frequent ones")]
pub enum Output {
    /// Rows.
    Rows(Rows),
    /// The statement has completed.
    Command(CommandTag),
    /// It waits for the data of a COPY … FROM STDIN.
    CopyIn(CopyIn),
    /// It sends the data of a COPY … TO STDOUT: chunks of bytes, each of whole lines.
    CopyOut(CopyOut),
}

/// Rows of a result, each with the columns of [`Prepared::columns`].
pub enum Rows {
    /// A few rows, made by the direct path. Every datum has its column's type or is NULL.
    Direct {
        /// The rows.
        rows: Vec<Vec<Datum>>,
        /// The tag of `CommandComplete`.
        tag: CommandTag,
    },
    /// Rows made by the query threads.
    Batches(QueryRows),
}

/// The rows of a running query. Dropping it stops the query.
pub struct QueryRows {
    stream: BatchStream,
    count: u64,
    /// Keeps the statement armed as long as its rows, unless the caller's span does.
    armed: Option<Armed>,
}

impl QueryRows {
    pub(crate) fn new(stream: BatchStream) -> Self {
        Self { stream, count: 0, armed: None }
    }

    /// Keeps the statement's span open as long as its rows.
    pub(crate) fn hold(&mut self, armed: Armed) {
        self.armed = Some(armed);
    }

    /// The next batch, never empty; `None` after the last one, when [`tag`](Self::tag) is final.
    ///
    /// # Errors
    /// The error that stopped the query. Within a transaction block the caller must report it to the session
    /// ([`report_error`](super::Session::report_error)).
    pub async fn next(&mut self) -> Option<Result<RecordBatch, SqlError>> {
        let batch = self.stream.next().await;
        if let Some(Ok(batch)) = &batch {
            self.count += batch.num_rows() as u64;
        }
        batch
    }

    /// As [`next`](Self::next), with the rows as datums. Lists and records are texts, with timestamps in `zone`.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_rows(&mut self, zone: Zone) -> Option<Result<Vec<Vec<Datum>>, SqlError>> {
        let batch = match self.next().await? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error)),
        };
        let row = |n: usize| batch.columns().iter().map(|column| datum_at(column, n, zone)).collect();
        Some((0..batch.num_rows()).map(row).collect())
    }

    /// The tag of `CommandComplete`, valid once all rows are out.
    #[must_use]
    pub fn tag(&self) -> CommandTag {
        CommandTag::rows("SELECT", self.count)
    }
}
