//! A statement between its text and its plan.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::Statement;

use super::{build, finished, parse_one};
use crate::SqlError;
use crate::engine::sequence::{Restart, restart};

/// The longest text whose tree is kept for a statement that may be bound again. A tree takes many times the bytes of its
/// text, and an INSERT of many rows may have megabytes of text.
const KEPT_TEXT_BYTES_MAX: usize = 64 << 10;

/// A parsed statement. Clones share the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    sql: Arc<str>,
    tree: Tree,
}

/// The tree of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    Statement(Arc<Statement>),
    /// ALTER SEQUENCE … RESTART, for which the parser has no tree.
    RestartSequence(Restart),
}

/// Where the tree of a query comes from. Only the rules for queries of the catalogs ask: they know clients' queries by
/// their texts.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// It is the tree of this text.
    Text(Arc<str>),
    /// It is a part of a parsed statement, such as the query in an EXPLAIN.
    Part,
    /// It was made of the parts of a writing statement, with casts of their values.
    Made,
}

/// What remains of a parsed statement until it is bound again: its tree, or a long text that is parsed again then.
pub(crate) struct Kept {
    sql: Arc<str>,
    tree: Option<Tree>,
}

impl Kept {
    /// The text, as [`Parsed::sql`].
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    /// The statement as it was parsed.
    ///
    /// # Errors
    /// None: the text has been parsed before.
    pub(crate) fn parsed(&self) -> Result<Parsed, SqlError> {
        match &self.tree {
            Some(tree) => Ok(Parsed { sql: Arc::clone(&self.sql), tree: tree.clone() }),
            None => Parsed::new(&self.sql),
        }
    }
}

impl From<Parsed> for Kept {
    fn from(parsed: Parsed) -> Self {
        let is_short = parsed.sql.len() <= KEPT_TEXT_BYTES_MAX;
        Self { sql: parsed.sql, tree: is_short.then_some(parsed.tree) }
    }
}

impl Parsed {
    /// Parses a text of one statement; names are not resolved.
    ///
    /// # Errors
    /// 42601, 0A000, 54000, 54001, 54011.
    pub(crate) fn new(sql: &str) -> Result<Self, SqlError> {
        let tree = match restart(sql)? {
            Some(restart) => Tree::RestartSequence(restart),
            None => Tree::Statement(Arc::new(parse_one(sql)?)),
        };
        Ok(Self { sql: sql.into(), tree })
    }

    /// `SELECT expression, …`, from the texts of the expressions. A text may contain one expression only.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn row(expressions: &[String]) -> Result<Self, SqlError> {
        Ok(Self::of_tree(finished(build::row(expressions)?.into())?))
    }

    /// `SELECT CAST(NULL AS type), …`, from the texts of the types.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn nulls(types: &[String]) -> Result<Self, SqlError> {
        Ok(Self::of_tree(finished(build::nulls(types)?.into())?))
    }

    /// A statement that no client has written as such.
    pub(crate) fn of_tree(statement: impl Into<Statement>) -> Self {
        Self { sql: "".into(), tree: Tree::Statement(Arc::new(statement.into())) }
    }

    /// The text, as received; empty if the statement was made from parts of one.
    #[cfg(test)]
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    pub(crate) fn origin(&self) -> Origin {
        if self.sql.is_empty() { Origin::Part } else { Origin::Text(Arc::clone(&self.sql)) }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_a_long_text_is_not_kept() {
        let insert = |rows: usize| format!("INSERT INTO t VALUES {}", vec!["(1, 'a', $1)"; rows].join(", "));
        for (sql, is_kept) in [(insert(1), true), (insert(4_000), true), (insert(6_000), false)] {
            let parsed = Parsed::new(&sql).unwrap();
            let kept = Kept::from(parsed.clone());
            assert_eq!(kept.tree.is_some(), is_kept, "{} bytes", sql.len());
            assert_eq!((kept.sql(), kept.parsed().unwrap()), (sql.as_str(), parsed));
        }
        // A statement that was made of a tree has no text to parse.
        let made = Parsed::row(&[format!("'{}'", "x".repeat(KEPT_TEXT_BYTES_MAX))]).unwrap();
        assert_eq!(Kept::from(made.clone()).parsed().unwrap(), made);
    }
}
