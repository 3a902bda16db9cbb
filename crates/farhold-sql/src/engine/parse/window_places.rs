//! Where window functions may stand: in the items of a SELECT and in its ORDER BY, and not in each other.

use datafusion::sql::sqlparser::ast::{Expr, Function, GroupByExpr, JoinConstraint, JoinOperator, Select, Visit};

use crate::engine::walk;
use crate::{SqlError, SqlState};

fn refused(what: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::WINDOWING_ERROR, what)
}

fn not_in(part: &impl Visit, clause: &str) -> Result<(), SqlError> {
    let is_window = |expr: &Expr| matches!(expr, Expr::Function(Function { over: Some(_), .. }));
    if walk::exists_outside_queries(part, is_window) {
        return Err(refused(format!("window functions are not allowed in {clause}")));
    }
    Ok(())
}

/// Refuses a window function in the assignments of an UPDATE.
pub(super) fn check_assignments(assignments: &impl Visit) -> Result<(), SqlError> {
    not_in(assignments, "UPDATE")
}

/// Refuses window functions in the clauses of a SELECT that come before them.
pub(super) fn check_select(select: &Select) -> Result<(), SqlError> {
    not_in(&select.selection, "WHERE")?;
    not_in(&select.having, "HAVING")?;
    if let GroupByExpr::Expressions(keys, _) = &select.group_by {
        not_in(keys, "GROUP BY")?;
    }
    for join in select.from.iter().flat_map(|from| &from.joins) {
        if let Some(JoinConstraint::On(condition)) = constraint(&join.join_operator) {
            not_in(condition, "JOIN conditions")?;
        }
    }
    Ok(())
}

fn constraint(join: &JoinOperator) -> Option<&JoinConstraint> {
    match join {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint) => Some(constraint),
        _ => None,
    }
}

/// Refuses a window function in another one, or in its window.
pub(super) fn check_call(function: &Function) -> Result<(), SqlError> {
    let Some(over) = &function.over else { return Ok(()) };
    not_in(over, "window definitions")?;
    if not_in(&function.args, "").is_err() {
        return Err(refused("window function calls cannot be nested"));
    }
    Ok(())
}
