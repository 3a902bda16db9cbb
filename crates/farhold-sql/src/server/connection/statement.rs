//! Prepared statements of the protocol and of SQL, which share their names.

use std::collections::HashMap;
use std::rc::Rc;

use super::command::{Command, Inner};
use crate::engine::{ColumnType, Opaque, Parsed, Prepared, opaque_end};
use crate::error::{SqlError, SqlState};
use crate::server::rows::Shape;
use crate::value::oid;

/// A prepared statement.
#[derive(Debug)]
pub struct Statement {
    /// The action of the statement.
    pub action: Action,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The columns of its result, if it has rows and the columns are known before it runs.
    pub shape: Option<Rc<Shape>>,
}

/// The action of a statement.
pub enum Action {
    /// None: the text has only blanks and comments.
    Empty,
    /// A statement for the engine.
    Engine(Rc<Prepared>),
    /// A statement that the connection executes itself.
    Command(Command),
    /// DECLARE, with its query.
    Declare(Declaration),
}

/// A prepared DECLARE.
#[derive(Debug)]
pub struct Declaration {
    /// The name of the cursor.
    pub cursor: String,
    /// Whether it outlives the transaction.
    pub holds: bool,
    /// Whether its rows are sent in binary.
    pub binary: bool,
    /// The query as parsed, to prepare it again after a change of the catalog.
    pub query: Inner,
    /// The types that the client declares for the query's parameters; the text does not contain them.
    pub types: Vec<u32>,
    /// The query as prepared, for its parameters and for the cursor.
    pub prepared: Rc<Statement>,
}

/// A statement, parsed but not prepared.
pub enum Source {
    /// The text has only blanks and comments.
    Empty,
    /// A statement for the engine.
    Engine(Parsed),
    /// A statement that the connection executes itself.
    Command(Box<Command>),
}

impl Source {
    /// Parses a text of one statement.
    ///
    /// # Errors
    /// 42601, 0A000, 54000, 54001, 54011.
    pub fn parse(sql: &str) -> Result<Self, SqlError> {
        if is_blank(sql) {
            return Ok(Self::Empty);
        }
        let Some(command) = Command::parse(sql)? else { return Ok(Self::Engine(Parsed::new(sql)?)) };
        command.check_syntax()?;
        Ok(Self::Command(Box::new(command)))
    }
}

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The OID of its type for the client.
    pub oid: u32,
    /// The type of its values in the engine.
    pub data_type: ColumnType,
    /// The OID that the client has declared, if the type is not supported here.
    pub foreign: Option<u32>,
}

/// The prepared statements of a connection.
#[derive(Debug, Default)]
pub struct Statements {
    unnamed: Option<Rc<Statement>>,
    named: HashMap<Box<str>, Rc<Statement>>,
}

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Engine(prepared) => f.debug_tuple("Engine").field(&prepared.sql()).finish(),
            Self::Command(command) => f.debug_tuple("Command").field(command).finish(),
            Self::Declare(declaration) => f.debug_tuple("Declare").field(declaration).finish(),
        }
    }
}

impl Statement {
    /// A statement for the engine. `stated` are the parameter types that the client declares; 0 means not declared.
    pub fn of_engine(prepared: Rc<Prepared>, stated: &[u32]) -> Self {
        let shape = prepared.columns.as_ref().map(|columns| Rc::new(Shape::new(columns)));
        // Declared types are returned unchanged; the others are those inferred by the engine.
        let parameter = |(index, &data_type): (usize, &ColumnType)| {
            let stated = stated.get(index).copied().filter(|&oid| oid != 0);
            let known = stated.filter(|&oid| oid::parameter_type(oid).is_some());
            let foreign = stated.filter(|_| known.is_none());
            Parameter { oid: known.unwrap_or_else(|| oid::of(data_type)), data_type, foreign }
        };
        let parameters = prepared.parameters.iter().enumerate().map(parameter).collect();
        Self { action: Action::Engine(prepared), parameters, shape }
    }
}

impl Statements {
    /// Checks that a statement of this name may be created.
    ///
    /// # Errors
    /// 42P05 if it exists, 54000 if there are too many.
    pub fn check_new(&self, name: &str, count_max: usize) -> Result<(), SqlError> {
        if name.is_empty() {
            return Ok(());
        }
        if self.named.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new(SqlState::DUPLICATE_STATEMENT, message));
        }
        if self.named.len() >= count_max {
            let message = format!("a connection may have {count_max} prepared statements");
            return Err(
                SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message).with_hint("Close those that are not used.")
            );
        }
        Ok(())
    }

    /// Stores a statement; an unnamed one replaces the previous one.
    pub fn put(&mut self, name: &str, statement: Rc<Statement>) {
        if name.is_empty() {
            self.unnamed = Some(statement);
        } else {
            self.named.insert(name.into(), statement);
        }
    }

    /// The statement with a name.
    ///
    /// # Errors
    /// 26000.
    pub fn get(&self, name: &str) -> Result<&Rc<Statement>, SqlError> {
        let found = if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) };
        found.ok_or_else(|| {
            let message = if name.is_empty() {
                "unnamed prepared statement does not exist".to_owned()
            } else {
                format!("prepared statement \"{name}\" does not exist")
            };
            SqlError::new(SqlState::INVALID_STATEMENT_NAME, message)
        })
    }

    /// Removes a statement. Returns whether it existed.
    pub fn remove(&mut self, name: &str) -> bool {
        if name.is_empty() { self.unnamed.take().is_some() } else { self.named.remove(name).is_some() }
    }

    /// Removes all statements.
    pub fn clear(&mut self) {
        self.named.clear();
        self.unnamed = None;
    }
}

/// Whether a text contains no statement: only blanks, comments and semicolons.
pub fn is_blank(sql: &str) -> bool {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|character: char| character.is_ascii_whitespace() || character == ';');
        if rest.is_empty() {
            return true;
        }
        match skip_comment(rest) {
            Some(after) => rest = after,
            None => return false,
        }
    }
}

/// The text after the comment at the start of `text`, if there is one. Block comments nest.
pub fn skip_comment(text: &str) -> Option<&str> {
    if !(text.starts_with("--") || text.starts_with("/*")) {
        return None;
    }
    match opaque_end(text, 0) {
        Ok(Some((end, Opaque::Comment))) => Some(&text[end..]),
        // An unterminated comment is left to the engine, which reports the error.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_recognised() {
        for sql in ["", " \n", ";;", "-- only a comment", "/* a /* nested */ one */ ; -- x\n"] {
            assert!(is_blank(sql), "{sql}");
        }
        for sql in ["select 1", "-- x\nselect 1", "/* open", "/**/ - 1"] {
            assert!(!is_blank(sql), "{sql}");
        }
    }

    /// Each level used to search for the ends of all levels within it.
    #[test]
    fn comments_nest_deeply() {
        const LEVELS: usize = 200_000;
        let (open, closed) = ("/*".repeat(LEVELS), "*/".repeat(LEVELS));
        assert!(is_blank(&format!("{open}{closed}")));
        assert!(!is_blank(&format!("{open}{closed} select 1")));
        assert!(!is_blank(&format!("/*{open}{closed}")));
    }
}
