//! Separates conditions that DataFusion would merge into one with another meaning (DataFusion 55).
//!
//! | conditions | DataFusion | PostgreSQL |
//! |---|---|---|
//! | `x IN (1) AND x IN (2)` | false | NULL if x is NULL |
//! | `x NOT IN (1) OR x NOT IN (2)` | true | NULL if x is NULL |
//! | `x IN (1, 2) AND x NOT IN (1, 2)` | false | NULL if x is NULL |
//! | `random() >= 0.5 AND random() <= 0.5` | `random() = 0.5` | two different numbers |
//!
//! The second of two such conditions is wrapped in an identity function. Where NULL and false have the same effect, as
//! in WHERE, lists linked by AND stay as they are: an index may answer the merged condition.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionContext;

/// See the module.
#[derive(Debug)]
pub(super) struct SeparatePredicates;

impl AnalyzerRule for SeparatePredicates {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            let is_value = !matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let may_vary = expr.is_volatile();
                Ok(separate(expr, is_value, may_vary)?.0.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "separate_predicates"
    }
}

/// A condition that DataFusion can merge into a list: the needle is in the list, or not in it.
#[derive(PartialEq)]
struct Listed {
    needle: Expr,
    negated: bool,
    /// A list, rather than a comparison with one value.
    is_list: bool,
}

/// Separates the conditions of an expression. Also returns the list that it is, if any. `is_value` tells whether NULL
/// and false differ, and `may_vary` whether a part of it is volatile.
#[recursive::recursive]
fn separate(expr: Expr, is_value: bool, may_vary: bool) -> Result<(Transformed<Expr>, Option<Listed>)> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let (left, one) = separate(*left, is_value, may_vary)?;
            let (right, other) = separate(*right, is_value, may_vary)?;
            let (is_changed, left, right) = (left.transformed || right.transformed, left.data, right.data);
            let both = linked(one, op, other);
            // For NULL, the merged condition is false under AND and true under OR.
            let would_be_one = matches!(both, Linked::Wrongly) && (is_value || op == Operator::Or);
            let vary = may_vary && left.is_volatile() && right.is_volatile();
            let is_hidden = (would_be_one || vary) && !is_separated(&right);
            let right = if is_hidden { SEPARATED.call(vec![right]) } else { right };
            let expr = Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) });
            let list = match both {
                Linked::To(list) => Some(list),
                Linked::Wrongly | Linked::Not => None,
            };
            Ok((Transformed::new_transformed(expr, is_changed || is_hidden), list))
        }
        Expr::Not(inner) => {
            let (inner, list) = separate(*inner, true, may_vary)?;
            let list = list.map(|list| Listed { negated: !list.negated, ..list });
            Ok((inner.update_data(|inner| Expr::Not(Box::new(inner))), list))
        }
        other => {
            let expr = other.map_children(|part| Ok(separate(part, true, may_vary)?.0))?;
            let list = listed(&expr.data);
            Ok((expr, list))
        }
    }
}

fn listed(expr: &Expr) -> Option<Listed> {
    let of = |needle: &Expr, negated, is_list| Some(Listed { needle: without_casts(needle).clone(), negated, is_list });
    match expr {
        Expr::InList(InList { expr, negated, .. }) => of(expr, *negated, true),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
            match (without_casts(left), without_casts(right)) {
                (needle @ Expr::Column(_), Expr::Literal(..)) | (Expr::Literal(..), needle @ Expr::Column(_)) => {
                    of(needle, false, false)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The expression without casts; DataFusion may remove them by casting the constants.
fn without_casts(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) => without_casts(&cast.expr),
        expr => expr,
    }
}

/// What DataFusion makes of two lists.
enum Linked {
    /// One list with the same meaning.
    To(Listed),
    /// One condition that is never NULL.
    Wrongly,
    Not,
}

fn linked(one: Option<Listed>, op: Operator, other: Option<Listed>) -> Linked {
    let Some((one, other)) = one.zip(other).filter(|(one, other)| one.needle == other.needle) else {
        return Linked::Not;
    };
    let is_union = one.negated == other.negated && one.negated == (op == Operator::And);
    match (is_union, one.is_list && other.is_list) {
        (true, _) => Linked::To(Listed { is_list: true, ..one }),
        (false, true) => Linked::Wrongly,
        (false, false) => Linked::Not,
    }
}

fn is_separated(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Identity>().is_some())
}

static SEPARATED: LazyLock<ScalarUDF> = LazyLock::new(|| ScalarUDF::from(Identity::new("farhold_separated", 1)));

/// A function that returns its first argument. The planner treats calls with different numbers as different.
pub(super) const NUMBERED: &str = "farhold_numbered";

/// Registers [`NUMBERED`].
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Identity::new(NUMBERED, 2)));
}

/// Returns its first argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    name: &'static str,
    signature: Signature,
}

impl Identity {
    fn new(name: &'static str, arguments: usize) -> Self {
        Self { name, signature: Signature::any(arguments, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Identity {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::clone(&arguments.arg_fields[0]))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
}
