//! A statement between its text and its plan.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::Statement;

use super::{build, finished, parse_one};
use crate::SqlError;
use crate::engine::sequence::{Restart, restart};

/// A parsed statement. Clones share the tree, so a statement whose plan has become stale is bound again without its
/// text.
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
