//! ORDER BY and DISTINCT ON: items by name and number.

use datafusion::sql::sqlparser::ast::{Expr, OrderBy, OrderByExpr, OrderByKind, OrderByOptions};

use super::Names;
use super::from::is_literal;
use super::items::{Item, Output, bare_name, called, no_position, number, position};
use crate::engine::parse::unnested;
use crate::{SqlError, SqlState};

impl Names<'_> {
    /// Resolves an ORDER BY after a set operation, which refers to the names of the result.
    pub(super) fn ordered_by_outputs(order: &mut OrderBy, outputs: &[Output]) -> Result<(), SqlError> {
        let OrderByKind::Expressions(by) = &mut order.kind else { return Ok(()) };
        for OrderByExpr { expr, .. } in by {
            let Some(name) = bare_name(expr) else { continue };
            let mut called = (0..outputs.len()).filter(|&at| outputs[at].name == name);
            match (called.next(), called.next()) {
                (Some(at), None) => *expr = number(at),
                (Some(_), Some(_)) => return Err(ambiguous_order(&name)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Resolves an item of DISTINCT ON. DataFusion does not accept numbers there.
    pub(super) fn distinct_on(&mut self, expr: &mut Expr, items: &[Item]) -> Result<(), SqlError> {
        let item = match bare_name(expr) {
            Some(name) => called(items, &name, "DISTINCT ON")?,
            None => position(expr),
        };
        match item.and_then(|item| items.get(item)?.known()) {
            Some((_, item)) => *expr = no_position(item),
            None => self.part(expr)?,
        }
        Ok(())
    }

    /// Resolves an item of ORDER BY: only a bare name may refer to an item of the SELECT.
    pub(super) fn ordered_by(
        &mut self,
        expr: &mut Expr,
        items: &[Item],
        is_known: bool,
        is_distinct_on: bool,
    ) -> Result<(), SqlError> {
        let item = match bare_name(expr) {
            Some(name) => called(items, &name, "ORDER BY")?,
            None if position(expr).is_some() => {
                // DISTINCT ON is planned as an aggregate, in which the number of an expression cannot be resolved.
                let item = position(expr).filter(|_| is_distinct_on).and_then(|item| items.get(item)?.known());
                if let Some((_, item)) = item {
                    *expr = no_position(item);
                }
                return Ok(());
            }
            None => None,
        };
        let item = match item {
            // The planner resolves the item by its name.
            Some(_) if !is_known => return Ok(()),
            Some(item) => Some(item),
            None => {
                self.part(expr)?;
                items.iter().position(|item| item.known().is_some_and(|(_, item)| item == unnested(expr)))
            }
        };
        match item.filter(|_| is_known) {
            Some(item) if is_distinct_on => {
                if let Some((_, item)) = items[item].known() {
                    *expr = no_position(item);
                }
            }
            Some(item) => *expr = number(item),
            None => {}
        }
        Ok(())
    }
}

/// Removes repeated keys, which have no effect.
pub(super) fn distinct_keys<T>(keys: &mut Vec<T>, expr: impl Fn(&T) -> &Expr) {
    let mut next = 0;
    while next < keys.len() {
        let (before, key) = (&keys[..next], unnested(expr(&keys[next])));
        if before.iter().any(|before| unnested(expr(before)) == key) {
            keys.remove(next);
        } else {
            next += 1;
        }
    }
}

/// Removes constants, which have no effect, but keeps one if there are no other keys. The planner folds constants, and
/// fails if two become equal.
pub(super) fn without_constants<T>(keys: &mut Vec<T>, expr: impl Fn(&T) -> &Expr) {
    if keys.iter().all(|key| is_constant(expr(key))) {
        keys.truncate(1);
    } else {
        keys.retain(|key| !is_constant(expr(key)));
    }
}

/// Whether an expression is a constant, but not the number of an item.
fn is_constant(expr: &Expr) -> bool {
    !matches!(expr, Expr::Value(_)) && is_literal(expr)
}

/// Puts the expressions of DISTINCT ON into the order of ORDER BY, which may begin with any of them, and appends
/// missing ones to ORDER BY. DataFusion compares both lists one by one, and requires ORDER BY to contain all of
/// DISTINCT ON. If the lists do not match, it reports the error.
pub(super) fn on_in_order(on: &mut Vec<Expr>, by: &mut Vec<OrderByExpr>) {
    let place = |key: &Expr, by: &[OrderByExpr]| by.iter().position(|by| unnested(&by.expr) == unnested(key));
    let is_key = |by: &OrderByExpr| on.iter().any(|key| unnested(key) == unnested(&by.expr));
    let begin = by.iter().take_while(|by| is_key(by)).count();
    if begin < on.len() && begin < by.len() {
        return;
    }
    on.sort_by_key(|key| place(key, by).unwrap_or(begin));
    for key in &on[begin..] {
        let options = OrderByOptions { asc: None, nulls_first: None };
        by.push(OrderByExpr { expr: key.clone(), options, with_fill: None });
    }
    without_constants(on, |expr| expr);
    match on.as_slice() {
        [only] if is_constant(only) => {
            let only = place(only, by).map(|at| by.remove(at));
            by.retain(|by| !is_constant(&by.expr));
            if let Some(only) = only {
                by.insert(0, only);
            }
        }
        _ => by.retain(|by| !is_constant(&by.expr)),
    }
}

fn ambiguous_order(name: &str) -> SqlError {
    SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("ORDER BY \"{name}\" is ambiguous"))
}
