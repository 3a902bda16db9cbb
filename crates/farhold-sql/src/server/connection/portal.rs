//! Portals: statements with their parameters, and how far their rows have been read. SQL's cursors are portals with a name.

use std::collections::HashMap;
use std::rc::Rc;

use super::statement::Statement;
use crate::engine::{CommandTag, Datum, Mark, QueryRows};
use crate::error::{SqlError, SqlState};
use crate::server::rows::{BatchEncoder, Shape};
use crate::server::wire::frontend::Formats;

/// A portal.
pub struct Portal {
    /// What it runs.
    pub statement: Rc<Statement>,
    /// With which parameters.
    pub parameters: Vec<Datum>,
    /// The format codes of its columns, as Bind stated them.
    pub formats: Vec<u8>,
    /// How far it has come.
    pub progress: Progress,
    /// It outlives the transaction that made it (`WITH HOLD`).
    pub holds: bool,
    /// When it was made: what undoes that moment closes it.
    mark: Mark,
}

/// How far a portal has come.
pub enum Progress {
    /// It has not begun.
    New,
    /// Its rows are being read.
    Rows(RowSource, Rc<Shape>),
    /// It is done. A statement with rows may be run again, which gives none and says so by this.
    Done(Option<CommandTag>),
}

/// Rows that are not sent yet.
pub enum RowSource {
    /// From the direct path.
    Direct {
        /// What is left.
        rows: std::vec::IntoIter<Vec<Datum>>,
        /// What `CommandComplete` says.
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
    /// What `CommandComplete` says when all rows are out.
    pub fn tag(&self) -> CommandTag {
        match self {
            Self::Direct { tag, .. } => *tag,
            Self::Batches { rows, .. } => rows.tag(),
        }
    }
}

impl Portal {
    /// A portal that has not begun.
    pub fn new(statement: Rc<Statement>, mark: Mark) -> Self {
        Self { statement, parameters: Vec::new(), formats: Vec::new(), progress: Progress::New, holds: false, mark }
    }

    /// It has run to its end, and said `tag`.
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
    /// The unnamed portal of an earlier batch, whose buffers the next one takes over.
    spare: Option<Portal>,
    named: HashMap<Box<str>, Portal>,
}

impl Portals {
    /// A portal for `statement`, with the buffers of an unnamed one that is done with.
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

    /// Whether a portal of this name may be made now.
    ///
    /// # Errors
    /// 42P03 when there is one, 54000 when there are too many.
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

    /// Keeps a portal; the unnamed one is replaced.
    pub fn put(&mut self, name: &str, portal: Portal) {
        if name.is_empty() {
            self.unnamed = Some(portal);
        } else {
            self.named.insert(name.into(), portal);
        }
    }

    /// Keeps the buffers of an unnamed portal that is done.
    pub fn put_spare(&mut self, portal: Portal) {
        self.spare = Some(portal.emptied());
    }

    /// The portal of a name.
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

    /// Closes a portal; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        if name.is_empty() {
            self.spare = self.unnamed.take().map(Portal::emptied);
            self.spare.is_some()
        } else {
            self.named.remove(name).is_some()
        }
    }

    /// Closes all.
    pub fn clear(&mut self) {
        self.named.clear();
        self.remove("");
    }

    /// What was made since `mark` is undone, portals that hold included.
    pub fn undo(&mut self, mark: Mark) {
        if self.unnamed.as_ref().is_some_and(|portal| portal.mark >= mark) {
            self.remove("");
        }
        self.named.retain(|_, portal| portal.mark < mark);
    }

    /// A transaction has ended: its portals are closed, except those that hold.
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
    /// Without what it held of the engine and of the client.
    fn emptied(mut self) -> Self {
        self.progress = Progress::Done(None);
        self.parameters.clear();
        self
    }
}

fn missing(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}
