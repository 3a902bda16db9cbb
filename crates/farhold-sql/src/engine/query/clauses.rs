//! Visits the conditions of WHERE and HAVING separately.
//!
//! A visitor of a statement does not learn to which clause an expression belongs. One that needs it holds a
//! [`Clauses`]: at the start of a SELECT its conditions are taken out and visited, and at the end of the SELECT they
//! are put back.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Select, VisitorMut};

use crate::engine::walk;

/// See the module.
#[derive(Default)]
pub(super) struct Clauses {
    /// Whether the visitor is inside a condition of WHERE or HAVING.
    pub(super) is_condition: bool,
    /// One entry per enclosing SELECT.
    around: Vec<Conditions>,
}

/// The conditions of a SELECT, and whether the SELECT itself is inside one.
struct Conditions {
    was_condition: bool,
    selection: Option<Expr>,
    having: Option<Expr>,
}

/// A visitor that holds a [`Clauses`].
pub(super) trait InClauses: VisitorMut {
    fn clauses(&mut self) -> &mut Clauses;
}

/// To be called by `pre_visit_select`.
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

/// To be called by `post_visit_select`.
pub(super) fn end<V: InClauses>(visitor: &mut V, select: &mut Select) {
    let clauses = visitor.clauses();
    if let Some(Conditions { was_condition, selection, having }) = clauses.around.pop() {
        clauses.is_condition = was_condition;
        (select.selection, select.having) = (selection, having);
    }
}
