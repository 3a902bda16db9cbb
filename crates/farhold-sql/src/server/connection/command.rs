//! Statements that concern only the connection: cursors and SQL's prepared statements, which share their names with the
//! protocol.
//!
//! ```sql
//! DECLARE c [NO SCROLL] CURSOR [WITH HOLD] FOR SELECT …;   FETCH [FORWARD] [n | ALL | NEXT] [FROM] c;   MOVE …;   CLOSE c | ALL
//! PREPARE p [(types)] AS …;   EXECUTE p [(values)];   DEALLOCATE [PREPARE] p | ALL;   DISCARD ALL
//! ```
//! Cursors only move forward, as in PostgreSQL without SCROLL.
//!
//! The words around the statements and expressions are parsed here: sqlparser 0.62 parses too few of these commands
//! (`docs/design/0026-own-code.md`). What they contain is parsed by sqlparser, once, as any other statement.

use super::statement::{is_blank, skip_comment};
use crate::engine::{Parsed, opaque_end};
use crate::error::{SqlError, SqlState};

/// A statement that the connection executes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a cursor.
    Declare {
        /// Its name.
        cursor: String,
        /// Whether it outlives the transaction.
        holds: bool,
        /// Whether its rows are sent in binary.
        binary: bool,
        /// Its query.
        query: Inner,
    },
    /// Reads from a cursor.
    Fetch {
        /// Its name.
        cursor: String,
        /// The number of rows; `None` for all remaining ones.
        count: Option<u64>,
        /// Whether the rows are skipped (`MOVE`).
        skips: bool,
    },
    /// Closes a cursor; `None` for all.
    Close(Option<String>),
    /// Creates a prepared statement.
    Prepare {
        /// Its name.
        statement: String,
        /// The types of its parameters.
        types: Listed,
        /// The statement that it prepares.
        query: Inner,
    },
    /// Runs a prepared statement.
    Execute {
        /// Its name.
        statement: String,
        /// The expressions of its parameters.
        arguments: Listed,
    },
    /// Removes a prepared statement; `None` for all.
    Deallocate(Option<String>),
    /// Restores the session's initial state.
    DiscardAll,
    /// There are no listeners, so it does nothing.
    Unlisten,
}

/// Expressions or types in parentheses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Each of them, as written.
    pub texts: Vec<String>,
    /// A SELECT of the expressions, or of a NULL of each type.
    pub select: Result<Parsed, SqlError>,
}

impl Listed {
    fn expressions(texts: Vec<String>) -> Self {
        let select = Parsed::row(&texts);
        Self { texts, select }
    }

    fn types(texts: Vec<String>) -> Self {
        let select = Parsed::nulls(&texts);
        Self { texts, select }
    }
}

/// The statement in a DECLARE or a PREPARE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Its text.
    pub sql: String,
    /// Its tree; `None` if it is not allowed there: it is blank or one of the commands here.
    pub parsed: Result<Option<Parsed>, SqlError>,
}

impl Inner {
    fn unparsed(sql: String) -> Self {
        Self { sql, parsed: Ok(None) }
    }

    fn parse(&mut self) {
        self.parsed = Command::split(&self.sql).and_then(|command| match command {
            None if !is_blank(&self.sql) => Parsed::new(&self.sql).map(Some),
            _ => Ok(None),
        });
    }
}

impl Command {
    /// Parses `sql` if it is one of these; `None` leaves it to the engine.
    ///
    /// # Errors
    /// 42601, 0A000.
    pub fn parse(sql: &str) -> Result<Option<Self>, SqlError> {
        let mut command = Self::split(sql)?;
        if let Some(Self::Declare { query, .. } | Self::Prepare { query, .. }) = &mut command {
            query.parse();
        }
        Ok(command)
    }

    /// The first error of syntax in what it contains. If a statement is not allowed there, that is reported when the
    /// command runs.
    ///
    /// # Errors
    /// 42601, 0A000, 54000, 54001, 54011.
    pub fn check_syntax(&self) -> Result<(), SqlError> {
        let listed = |listed: &Listed| listed.select.as_ref().map(drop).map_err(Clone::clone);
        let inner = |inner: &Inner| inner.parsed.as_ref().map(drop).map_err(Clone::clone);
        match self {
            Self::Declare { query, .. } => inner(query),
            Self::Prepare { types, query, .. } => listed(types).and_then(|()| inner(query)),
            Self::Execute { arguments, .. } => listed(arguments),
            _ => Ok(()),
        }
    }

    /// Parses the command itself, but not the statement in it, which may be as deep as `DECLARE c CURSOR FOR DECLARE c
    /// CURSOR FOR …`.
    fn split(sql: &str) -> Result<Option<Self>, SqlError> {
        let mut words = Words { rest: sql };
        // Nearly every statement returns here.
        let first = words.peek_keyword();
        let parse: fn(&mut Words<'_>) -> Result<Self, SqlError> = match first.as_deref() {
            Some("DECLARE") => declare,
            Some("FETCH") => |words| fetch(words, false),
            Some("MOVE") => |words| fetch(words, true),
            Some("CLOSE") => |words| words.name_or_all().map(Self::Close),
            Some("PREPARE") => {
                // PREPARE TRANSACTION is left to the engine, which refuses it.
                let mut ahead = words;
                ahead.skip_word();
                if ahead.accept("TRANSACTION") {
                    return Ok(None);
                }
                prepare
            }
            Some("EXECUTE") => execute,
            Some("DEALLOCATE") => |words| {
                words.accept("PREPARE");
                words.name_or_all().map(Self::Deallocate)
            },
            Some("DISCARD") => |words| {
                if words.accept("ALL") { Ok(Self::DiscardAll) } else { Err(SqlError::unsupported("DISCARD of a part")) }
            },
            Some("UNLISTEN") => |words| {
                if !words.accept_symbol('*') {
                    words.name()?;
                }
                Ok(Self::Unlisten)
            },
            _ => return Ok(None),
        };
        words.skip_word();
        let command = parse(&mut words)?;
        words.end()?;
        Ok(Some(command))
    }
}

/// 42601 for `sql`, which begins with a statement that is not allowed in its place.
pub fn misplaced(sql: &str) -> SqlError {
    Words { rest: sql }.unexpected()
}

fn declare(words: &mut Words<'_>) -> Result<Command, SqlError> {
    let cursor = words.name()?;
    let mut binary = false;
    loop {
        if words.accept("BINARY") {
            binary = true;
        } else if words.accept("NO") {
            words.expect("SCROLL")?;
        } else if words.accept("SCROLL") {
            return Err(SqlError::unsupported("a scrollable cursor"));
        } else if !words.accept("INSENSITIVE") && !words.accept("ASENSITIVE") {
            break;
        }
    }
    words.expect("CURSOR")?;
    let holds = words.accept("WITH");
    if holds || words.accept("WITHOUT") {
        words.expect("HOLD")?;
    }
    words.expect("FOR")?;
    Ok(Command::Declare { cursor, holds, binary, query: Inner::unparsed(words.take_rest()) })
}

fn fetch(words: &mut Words<'_>, skips: bool) -> Result<Command, SqlError> {
    let forward_only = || {
        SqlError::new(SqlState::OBJECT_NOT_IN_STATE, "cursor can only scan forward")
            .with_hint("Cursors here are declared with NO SCROLL.")
    };
    for direction in ["BACKWARD", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE"] {
        // A cursor may have such a name; then no word follows.
        let mut ahead = *words;
        if ahead.accept(direction) && !ahead.is_at_end() {
            return Err(forward_only());
        }
    }
    let mut count = Some(1);
    let mut ahead = *words;
    if ahead.accept("NEXT") && !ahead.is_at_end() {
        *words = ahead;
    } else {
        let mut ahead = *words;
        if ahead.accept("FORWARD") && !ahead.is_at_end() {
            *words = ahead;
        }
        let mut ahead = *words;
        if ahead.accept("ALL") && !ahead.is_at_end() {
            *words = ahead;
            count = None;
        } else if words.accept_symbol('-') {
            return Err(forward_only());
        } else if let Some(number) = words.number()? {
            count = Some(number);
        }
    }
    let _ = words.accept("FROM") || words.accept("IN");
    Ok(Command::Fetch { cursor: words.name()?, count, skips })
}

fn prepare(words: &mut Words<'_>) -> Result<Command, SqlError> {
    let statement = words.name()?;
    let types = Listed::types(words.list()?);
    words.expect("AS")?;
    Ok(Command::Prepare { statement, types, query: Inner::unparsed(words.take_rest()) })
}

fn execute(words: &mut Words<'_>) -> Result<Command, SqlError> {
    Ok(Command::Execute { statement: words.name()?, arguments: Listed::expressions(words.list()?) })
}

/// Parses a statement word by word.
#[derive(Clone, Copy)]
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            match skip_comment(self.rest) {
                Some(after) => self.rest = after,
                None => return,
            }
        }
    }

    /// The next plain word.
    fn peek(&mut self) -> &'a str {
        self.skip_blanks();
        let end = self.rest.find(|character: char| !is_word(character)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn peek_keyword(&mut self) -> Option<String> {
        const LONGEST: usize = 10;
        let word = self.peek();
        (!word.is_empty() && word.len() <= LONGEST).then(|| word.to_ascii_uppercase())
    }

    fn skip_word(&mut self) {
        let word = self.peek();
        self.rest = &self.rest[word.len()..];
    }

    fn accept(&mut self, keyword: &str) -> bool {
        let found = self.peek().eq_ignore_ascii_case(keyword);
        if found {
            self.skip_word();
        }
        found
    }

    fn expect(&mut self, keyword: &str) -> Result<(), SqlError> {
        if self.accept(keyword) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn accept_symbol(&mut self, symbol: char) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// An identifier, folded to lower case unless it is in double quotes.
    fn name(&mut self) -> Result<String, SqlError> {
        if self.accept_symbol('"') {
            let mut name = String::new();
            loop {
                let (part, rest) =
                    self.rest.split_once('"').ok_or_else(|| SqlError::syntax("unterminated quoted identifier"))?;
                name.push_str(part);
                self.rest = rest;
                match self.rest.strip_prefix('"') {
                    Some(rest) => {
                        name.push('"');
                        self.rest = rest;
                    }
                    None => break,
                }
            }
            return if name.is_empty() { Err(SqlError::syntax("zero-length delimited identifier")) } else { Ok(name) };
        }
        let word = self.peek();
        if word.is_empty() || word.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(self.unexpected());
        }
        self.skip_word();
        Ok(word.to_lowercase())
    }

    fn name_or_all(&mut self) -> Result<Option<String>, SqlError> {
        if self.accept("ALL") { Ok(None) } else { self.name().map(Some) }
    }

    fn number(&mut self) -> Result<Option<u64>, SqlError> {
        let word = self.peek();
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(None);
        }
        let number = word.parse().map_err(|_| self.unexpected())?;
        self.skip_word();
        Ok(Some(number))
    }

    /// `( a, b, … )`, split at the outermost commas; empty if there is no parenthesis.
    fn list(&mut self) -> Result<Vec<String>, SqlError> {
        if !self.accept_symbol('(') {
            return Ok(Vec::new());
        }
        let rest = self.rest;
        let mut parts = Vec::new();
        let (mut start, mut at, mut depth) = (0, 0, 0_usize);
        while let Some(character) = rest[at..].chars().next() {
            if let Some((end, _)) = opaque_end(rest, at)? {
                at = end;
                continue;
            }
            match character {
                '(' | '[' => depth += 1,
                ')' if depth == 0 => {
                    parts.push(rest[start..at].trim().to_owned());
                    self.rest = &rest[at + 1..];
                    return Ok(parts);
                }
                ')' | ']' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(rest[start..at].trim().to_owned());
                    start = at + 1;
                }
                _ => {}
            }
            at += character.len_utf8();
        }
        Err(SqlError::syntax("syntax error at end of input"))
    }

    fn take_rest(&mut self) -> String {
        self.skip_blanks();
        std::mem::take(&mut self.rest).to_owned()
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.trim_start_matches(';').trim().is_empty()
    }

    fn end(&mut self) -> Result<(), SqlError> {
        if self.is_at_end() { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&mut self) -> SqlError {
        let word = self.peek();
        let near =
            if word.is_empty() { &self.rest[..self.rest.chars().next().map_or(0, char::len_utf8)] } else { word };
        if near.is_empty() {
            SqlError::syntax("syntax error at end of input")
        } else {
            SqlError::syntax(format!("syntax error at or near \"{near}\""))
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(sql: &str) -> Option<Command> {
        Command::parse(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn inner(sql: &str) -> Inner {
        Inner { sql: sql.to_owned(), parsed: Parsed::new(sql).map(Some) }
    }

    fn fetched(cursor: &str, count: Option<u64>) -> Command {
        Command::Fetch { cursor: cursor.to_owned(), count, skips: false }
    }

    #[test]
    fn other_statements_are_the_engines() {
        for sql in ["select 1", "", "  -- fetch\n select 1", "closet", "prepare transaction 'x'", "(select 1)", "äé"]
        {
            assert_eq!(parsed(sql), None, "{sql}");
        }
    }

    #[test]
    fn cursors() {
        assert_eq!(
            parsed("/* psycopg */ DECLARE \"a \"\"b\" BINARY NO SCROLL CURSOR WITH HOLD FOR SELECT 1 -- x"),
            Some(Command::Declare {
                cursor: "a \"b".to_owned(),
                holds: true,
                binary: true,
                query: inner("SELECT 1 -- x"),
            })
        );
        assert_eq!(parsed("fetch c"), Some(fetched("c", Some(1))));
        assert_eq!(parsed("FETCH FORWARD 100 FROM \"C\";"), Some(fetched("C", Some(100))));
        assert_eq!(parsed("FETCH ALL IN c"), Some(fetched("c", None)));
        assert_eq!(parsed("FETCH FORWARD ALL FROM c"), Some(fetched("c", None)));
        assert_eq!(parsed("FETCH NEXT c"), Some(fetched("c", Some(1))));
        assert_eq!(parsed("FETCH next"), Some(fetched("next", Some(1))));
        assert_eq!(parsed("FETCH 7 forward"), Some(fetched("forward", Some(7))));
        assert_eq!(
            parsed("MOVE 3 FROM c"),
            Some(Command::Fetch { cursor: "c".to_owned(), count: Some(3), skips: true })
        );
        assert_eq!(parsed("CLOSE ALL"), Some(Command::Close(None)));
        for sql in
            ["FETCH BACKWARD 1 FROM c", "FETCH -1 FROM c", "FETCH PRIOR c", "FETCH", "CLOSE", "CLOSE a b", "FETCH 1x c"]
        {
            assert!(Command::parse(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn prepared_statements() {
        assert_eq!(
            parsed("PREPARE p (int, numeric(10, 2)) AS SELECT $1, $2"),
            Some(Command::Prepare {
                statement: "p".to_owned(),
                types: Listed::types(vec!["int".to_owned(), "numeric(10, 2)".to_owned()]),
                query: inner("SELECT $1, $2")
            })
        );
        assert_eq!(
            parsed("execute p('a, ''b'')', f(1, 2))"),
            Some(Command::Execute {
                statement: "p".to_owned(),
                arguments: Listed::expressions(vec!["'a, ''b'')'".to_owned(), "f(1, 2)".to_owned()])
            })
        );
        for argument in ["$$a,b)$$", "$t$')$t$", "E'\\',('", "'a' /* , ) */", "'é, )'"] {
            assert_eq!(
                parsed(&format!("EXECUTE p({argument}, 1)")),
                Some(Command::Execute {
                    statement: "p".to_owned(),
                    arguments: Listed::expressions(vec![argument.to_owned(), "1".to_owned()])
                })
            );
        }
        assert_eq!(parsed("DEALLOCATE PREPARE ALL"), Some(Command::Deallocate(None)));
        assert_eq!(parsed("DEALLOCATE p"), Some(Command::Deallocate(Some("p".to_owned()))));
        assert!(Command::parse("EXECUTE p(1").is_err());
    }
}
