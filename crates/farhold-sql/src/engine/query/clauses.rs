//! Conditions of WHERE and HAVING, visited by themselves.
//!
//! A visitor of a statement is not told which clause an expression is in. One that has to know holds a [`Clauses`]: where a SELECT begins it takes the
//! conditions out of it and visits them, and where the SELECT ends it puts them back.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Select, VisitorMut};

use crate::engine::walk;

/// See the module.
#[derive(Default)]
pub(super) struct Clauses {
    /// Whether what is visited is a condition of WHERE or HAVING.
    pub(super) is_condition: bool,
    /// Of each SELECT around.
    around: Vec<Conditions>,
}

/// The conditions of a SELECT, and whether it is in one itself.
struct Conditions {
    was_condition: bool,
    selection: Option<Expr>,
    having: Option<Expr>,
}

/// A visitor that holds one.
pub(super) trait InClauses: VisitorMut {
    fn clauses(&mut self) -> &mut Clauses;
}

/// For `pre_visit_select`.
pub(super) fn begin<V: InClauses>(visitor: &mut V, select: &mut Select) -> ControlFlow<V::Break> {
    let (mut selection, mut having) = (select.selection.take(), select.having.take());
    let was_condition = std::mem::replace(&mut visitor.clauses().is_condition, true);
    walk::change(&mut selection, visitor)?;
    walk::change(&mut having, visitor)?;
    let clauses = visitor.clauses();
    clauses.is_condition = false;
    clauses.around.push(Conditions { was_condition, selection, having });
    ControlFlow::Continue(())
}

/// For `post_visit_select`.
pub(super) fn end<V: InClauses>(visitor: &mut V, select: &mut Select) {
    let clauses = visitor.clauses();
    if let Some(Conditions { was_condition, selection, having }) = clauses.around.pop() {
        clauses.is_condition = was_condition;
        (select.selection, select.having) = (selection, having);
    }
}
