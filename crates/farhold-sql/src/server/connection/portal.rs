//! Portals: statements with their parameters, and the position in their rows. SQL's cursors are named portals.

use std::collections::HashMap;
use std::rc::Rc;

use super::statement::Statement;
use crate::engine::{CommandTag, Datum, Mark, QueryRows};
use crate::error::{SqlError, SqlState};
use crate::server::rows::{BatchEncoder, Shape};
use crate::server::wire::frontend::Formats;

/// A portal.
pub struct Portal {
    /// The statement that it runs.
    pub statement: Rc<Statement>,
    /// The values of the statement's parameters.
    pub parameters: Vec<Datum>,
    /// The format codes of its columns, as given in Bind.
    pub formats: Vec<u8>,
    /// How far it has run.
    pub progress: Progress,
    /// Whether it outlives the transaction that made it (`WITH HOLD`).
    pub holds: bool,
    /// The time of its creation; undoing changes since then closes it.
    mark: Mark,
}

/// How far a portal has run.
pub enum Progress {
    /// It has not started.
    New,
    /// Its rows are being read.
    Rows(RowSource, Rc<Shape>),
    /// It has ended. If the statement has rows, it may be run again, which returns no rows and this tag.
    Done(Option<CommandTag>),
}

/// Rows that have not been sent yet.
pub enum RowSource {
    /// From the direct path.
    Direct {
        /// The remaining rows.
        rows: std::vec::IntoIter<Vec<Datum>>,
        /// The tag of `CommandComplete`.
        tag: CommandTag,
    },
    /// From the query threads.
    Batches {
        /// The query.
        rows: QueryRows,
        /// The batch that is being sent.
        current: Option<BatchEncoder>,
    },
}

impl RowSource {
    /// The tag of `CommandComplete`, valid when all rows are out.
    pub fn tag(&self) -> CommandTag {
        match self {
            Self::Direct { tag, .. } => *tag,
            Self::Batches { rows, .. } => rows.tag(),
        }
    }
}

impl Portal {
    /// A portal that has not started.
    pub fn new(statement: Rc<Statement>, mark: Mark) -> Self {
        Self { statement, parameters: Vec::new(), formats: Vec::new(), progress: Progress::New, holds: false, mark }
    }

    /// Marks the portal as ended with `tag`.
    pub fn finish(&mut self, tag: CommandTag, has_rows: bool) {
        self.progress = Progress::Done(has_rows.then(|| CommandTag { rows: tag.rows.map(|_| 0), ..tag }));
    }

    /// The formats of its columns.
    pub fn formats(&self) -> Formats<'_> {
        Formats::of_codes(&self.formats)
    }
}

/// The portals of a connection.
#[derive(Default)]
pub struct Portals {
    unnamed: Option<Portal>,
    /// The unnamed portal of an earlier batch, whose buffers the next one reuses.
    spare: Option<Portal>,
    named: HashMap<Box<str>, Portal>,
}

impl Portals {
    /// A portal for `statement`, reusing the buffers of an unnamed portal that has ended.
    pub fn recycle(&mut self, name: &str, statement: &Rc<Statement>, mark: Mark) -> Portal {
        let old = if name.is_empty() { self.unnamed.take().or_else(|| self.spare.take()) } else { None };
        match old {
            Some(mut portal) => {
                portal.parameters.clear();
                portal.formats.clear();
                portal.progress = Progress::New;
                portal.statement.clone_from(statement);
                portal.mark = mark;
                portal
            }
            None => Portal::new(Rc::clone(statement), mark),
        }
    }

    /// Checks that a portal of this name may be created.
    ///
    /// # Errors
    /// 42P03 if it exists, 54000 if there are too many.
    pub fn check_new(&self, name: &str, count_max: usize) -> Result<(), SqlError> {
        if self.named.contains_key(name) {
            return Err(SqlError::new(SqlState::DUPLICATE_CURSOR, format!("cursor \"{name}\" already exists")));
        }
        if self.named.len() >= count_max {
            let message = format!("a connection may have {count_max} open cursors");
            return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        }
        Ok(())
    }

    /// Stores a portal; an unnamed one replaces the previous one.
    pub fn put(&mut self, name: &str, portal: Portal) {
        if name.is_empty() {
            self.unnamed = Some(portal);
        } else {
            self.named.insert(name.into(), portal);
        }
    }

    /// Keeps the buffers of an unnamed portal that has ended.
    pub fn put_spare(&mut self, portal: Portal) {
        self.spare = Some(portal.emptied());
    }

    /// The portal with a name.
    ///
    /// # Errors
    /// 34000.
    pub fn get(&self, name: &str) -> Result<&Portal, SqlError> {
        let found = if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) };
        found.ok_or_else(|| missing(name))
    }

    /// Takes a portal out, to run it.
    ///
    /// # Errors
    /// 34000.
    pub fn take(&mut self, name: &str) -> Result<Portal, SqlError> {
        let found = if name.is_empty() { self.unnamed.take() } else { self.named.remove(name) };
        found.ok_or_else(|| missing(name))
    }

    /// Closes a portal. Returns whether it existed.
    pub fn remove(&mut self, name: &str) -> bool {
        if name.is_empty() {
            self.spare = self.unnamed.take().map(Portal::emptied);
            self.spare.is_some()
        } else {
            self.named.remove(name).is_some()
        }
    }

    /// Closes all portals.
    pub fn clear(&mut self) {
        self.named.clear();
        self.remove("");
    }

    /// Closes the portals created since `mark`, including those WITH HOLD.
    pub fn undo(&mut self, mark: Mark) {
        if self.unnamed.as_ref().is_some_and(|portal| portal.mark >= mark) {
            self.remove("");
        }
        self.named.retain(|_, portal| portal.mark < mark);
    }

    /// Called when a transaction has ended: closes its portals, except those WITH HOLD.
    pub fn end_of_transaction(&mut self) {
        if self.unnamed.is_some() {
            self.remove("");
        }
        if !self.named.is_empty() {
            self.named.retain(|_, portal| portal.holds);
        }
    }
}

impl Portal {
    /// The portal without its rows and parameters.
    fn emptied(mut self) -> Self {
        self.progress = Progress::Done(None);
        self.parameters.clear();
        self
    }
}

fn missing(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}
