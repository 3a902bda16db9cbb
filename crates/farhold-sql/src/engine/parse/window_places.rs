//! Where window functions are allowed: in the items of a SELECT and in its ORDER BY, but not nested in each other.

use datafusion::sql::sqlparser::ast::{Expr, Function, GroupByExpr, JoinConstraint, Select, Visit};

use crate::SqlError;
use crate::engine::{error, walk};

fn has_window(part: &impl Visit) -> bool {
    walk::exists_outside_queries(part, |expr| matches!(expr, Expr::Function(Function { over: Some(_), .. })))
}

fn not_in(part: &impl Visit, clause: &str) -> Result<(), SqlError> {
    if has_window(part) {
        return Err(error::windowing(format!("window functions are not allowed in {clause}")));
    }
    Ok(())
}

/// Refuses a window function in the assignments of an UPDATE.
pub(super) fn check_assignments(assignments: &impl Visit) -> Result<(), SqlError> {
    not_in(assignments, "UPDATE")
}

/// Refuses window functions in the clauses of a SELECT that are evaluated before them.
pub(super) fn check_select(select: &Select) -> Result<(), SqlError> {
    not_in(&select.selection, "WHERE")?;
    not_in(&select.having, "HAVING")?;
    if let GroupByExpr::Expressions(keys, _) = &select.group_by {
        not_in(keys, "GROUP BY")?;
    }
    for join in select.from.iter().flat_map(|from| &from.joins) {
        if let Some(JoinConstraint::On(condition)) = walk::constraint(&join.join_operator) {
            not_in(condition, "JOIN conditions")?;
        }
    }
    Ok(())
}

/// Refuses a window function nested in another one's arguments or window.
pub(super) fn check_call(function: &Function) -> Result<(), SqlError> {
    let Some(over) = &function.over else { return Ok(()) };
    not_in(over, "window definitions")?;
    if has_window(&function.args) {
        return Err(error::windowing("window function calls cannot be nested"));
    }
    Ok(())
}
