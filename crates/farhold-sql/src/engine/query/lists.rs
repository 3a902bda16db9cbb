//! `x IN (1, y, NULL)`, a list whose elements are not all constants.
//!
//! DataFusion (55) treats a list as constant if an element, such as a CASE, can be evaluated without a row. It turns
//! `x IN (1) AND x NOT IN (NULL)`, which is never true, into the difference of the lists. So each element that is not a
//! plain constant is compared separately, `x IN (1) OR x = y`, and NULLs become one operand: `x IN (1) OR NULL`.

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::AnalyzerRule;

/// See the module.
#[derive(Debug)]
pub(super) struct Lists;

impl AnalyzerRule for Lists {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(expr.transform_up(|expr| Ok(compared(expr)))?.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "lists"
    }
}

fn compared(expr: Expr) -> Transformed<Expr> {
    let InList { expr, list, negated } = match expr {
        // A volatile operand must be evaluated only once.
        Expr::InList(list) if !list.expr.is_volatile() && !list.list.iter().all(is_value) => list,
        other => return Transformed::no(other),
    };
    let count = list.len();
    let list: Vec<Expr> = list.into_iter().filter(|item| !is_null(item)).collect();
    let has_null = list.len() < count;
    let (constants, others): (Vec<Expr>, Vec<Expr>) = list.into_iter().partition(is_value);
    let pair = |other: Expr| {
        let value = expr.as_ref().clone();
        if negated { value.not_eq(other) } else { value.eq(other) }
    };
    let mut parts: Vec<Expr> = others.into_iter().map(pair).collect();
    if !constants.is_empty() {
        parts.insert(0, Expr::InList(InList { expr, list: constants, negated }));
    }
    if has_null {
        parts.push(lit(ScalarValue::Boolean(None)));
    }
    Transformed::yes(linked(parts, if negated { Expr::and } else { Expr::or }))
}

/// Whether the expression is NULL, of whatever type.
fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

/// Whether the expression is a constant.
fn is_value(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => !value.is_null(),
        Expr::Cast(cast) => is_value(&cast.expr),
        Expr::Negative(inner) => is_value(inner),
        _ => false,
    }
}

/// Combines all of them to a tree of few levels.
fn linked(parts: Vec<Expr>, both: fn(Expr, Expr) -> Expr) -> Expr {
    let mut parts = parts;
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        parts = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(one) = rest.next() {
            parts.push(match rest.next() {
                Some(other) => both(one, other),
                None => one,
            });
        }
    }
    parts.swap_remove(0)
}
