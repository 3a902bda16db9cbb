//! Bound statements.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast;

use super::set_config::SetConfig;
use crate::engine::catalog::TableInfo;
use crate::engine::copy::CopyFormat;
use crate::engine::direct::{Insert, Program, Returning};
use crate::engine::query::PlannedQuery;
use crate::engine::sequence::Restart;
use crate::engine::{ColumnType, OutputColumn};
use crate::value::Zone;

/// A statement bound to one version of the catalog, and to a time zone.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) version: u64,
    /// The zone in which it reads its literals. In another one it is bound again.
    pub(crate) zone: Zone,
    pub(crate) parameters: Vec<ColumnType>,
    /// Which of their types the client has declared; those beyond the end of this list are inferred.
    pub(crate) stated: Vec<bool>,
    pub(crate) columns: Option<Vec<OutputColumn>>,
    pub(crate) plan: Plan,
}

impl Bound {
    /// A utility statement that refers to nothing in the catalog.
    pub(super) fn utility(utility: Utility) -> Self {
        let plan = Plan::Utility(utility);
        Self { version: 0, zone: Zone::UTC, parameters: Vec::new(), stated: Vec::new(), columns: None, plan }
    }
}

/// How a statement is executed.
#[derive(Debug)]
pub(crate) enum Plan {
    /// On the direct path, without the planner.
    Direct(Program),
    /// A planned query.
    Query(PlannedQuery),
    /// A planned query whose rows are inserted one by one.
    InsertQuery(InsertQuery),
    /// A planned query for keys and new values, which are written by key.
    UpdateQuery(UpdateQuery),
    /// A planned query for keys, whose rows are deleted.
    DeleteQuery(DeleteQuery),
    Explain {
        inner: Box<Bound>,
        analyze: bool,
    },
    CopyIn {
        table: Arc<TableInfo>,
        columns: Vec<usize>,
        format: CopyFormat,
    },
    CopyOut {
        inner: Box<Bound>,
        format: CopyFormat,
    },
    /// `SELECT set_config(…)`.
    SetConfig(SetConfig),
    Utility(Utility),
}

/// INSERT … SELECT.
#[derive(Debug)]
pub(crate) struct InsertQuery {
    pub(crate) insert: Insert,
    /// The target column of each column of the query.
    pub(crate) targets: Vec<usize>,
    pub(crate) query: PlannedQuery,
}

/// An UPDATE whose query returns the primary key, then a value for each assigned column, then the columns of other
/// relations that RETURNING uses.
#[derive(Debug)]
pub(crate) struct UpdateQuery {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) assigned: Vec<usize>,
    /// The assigned columns that get their DEFAULT.
    pub(crate) defaults: Vec<usize>,
    pub(crate) query: PlannedQuery,
    pub(crate) returning: Option<Returning>,
    /// The types of the columns of other relations.
    pub(crate) beside: Vec<ColumnType>,
}

/// A DELETE whose query returns the primary key, then the columns of other relations that RETURNING uses.
#[derive(Debug)]
pub(crate) struct DeleteQuery {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) query: PlannedQuery,
    pub(crate) returning: Option<Returning>,
    pub(crate) beside: Vec<ColumnType>,
}

/// A statement about the session, a transaction or a definition.
#[derive(Debug)]
pub(crate) enum Utility {
    Begin {
        verb: &'static str,
        modes: Vec<ast::TransactionMode>,
    },
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    RollbackTo(String),
    Savepoint(String),
    Release(String),
    Set(Box<ast::Set>),
    Show(String),
    ShowAll,
    Reset(Option<String>),
    CreateTable(Box<ast::CreateTable>),
    CreateIndex(Box<ast::CreateIndex>),
    CreateSequence(Box<ast::Statement>),
    RestartSequence(Restart),
    AlterTable(Box<ast::AlterTable>),
    Drop {
        object: ast::ObjectType,
        names: Vec<ast::ObjectName>,
        if_exists: bool,
    },
    Truncate {
        tables: Vec<Arc<TableInfo>>,
        restart: bool,
    },
    /// A statement that needs no action: ANALYZE, VACUUM.
    Nothing(&'static str),
}

impl Plan {
    /// Whether the plan refers to tables or has expressions, so that a change of the catalog or of the time zone makes it
    /// stale.
    pub(crate) fn reads_catalog(&self) -> bool {
        !matches!(self, Self::Utility(utility) if !matches!(utility, Utility::Truncate { .. }))
    }
}
