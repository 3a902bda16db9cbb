//! Conditions beside each other that DataFusion would make one of, where together they mean something else (DataFusion 55).
//!
//! | conditions | DataFusion | PostgreSQL |
//! |---|---|---|
//! | `x IN (1) AND x IN (2)` | false | NULL where x is |
//! | `x NOT IN (1) OR x NOT IN (2)` | true | NULL where x is |
//! | `x IN (1, 2) AND x NOT IN (1, 2)` | false | NULL where x is |
//! | `random() >= 0.5 AND random() <= 0.5` | `random() = 0.5` | two numbers |
//!
//! The second one of two stands in a function that gives it back. Where NULL and false are the same, as in WHERE, lists linked by AND are left as they are:
//! an index may answer what is made of them.

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
pub(super) struct Apart;

impl AnalyzerRule for Apart {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            let is_value = !matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let may_vary = expr.is_volatile();
                Ok(kept_apart(expr, is_value, may_vary)?.0.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "apart"
    }
}

/// Whether a value is one of a list's, or none of them, as DataFusion can put it into one list.
#[derive(PartialEq)]
struct Listed {
    needle: Expr,
    negated: bool,
    /// Rather than one value that it is compared with.
    is_list: bool,
}

/// An expression whose conditions are kept apart, and which list it is. `is_value` says whether NULL and false differ, `may_vary` whether some part of
/// it may have another value each time.
#[recursive::recursive]
fn kept_apart(expr: Expr, is_value: bool, may_vary: bool) -> Result<(Transformed<Expr>, Option<Listed>)> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let (left, one) = kept_apart(*left, is_value, may_vary)?;
            let (right, other) = kept_apart(*right, is_value, may_vary)?;
            let (is_changed, left, right) = (left.transformed || right.transformed, left.data, right.data);
            let both = linked(one, op, other);
            // Of NULL, AND makes false, OR true.
            let would_be_one = matches!(both, Linked::Wrongly) && (is_value || op == Operator::Or);
            let vary = may_vary && left.is_volatile() && right.is_volatile();
            let is_hidden = (would_be_one || vary) && !is_apart(&right);
            let right = if is_hidden { APART.call(vec![right]) } else { right };
            let expr = Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) });
            let list = match both {
                Linked::To(list) => Some(list),
                Linked::Wrongly | Linked::Not => None,
            };
            Ok((Transformed::new_transformed(expr, is_changed || is_hidden), list))
        }
        Expr::Not(inner) => {
            let (inner, list) = kept_apart(*inner, true, may_vary)?;
            let list = list.map(|list| Listed { negated: !list.negated, ..list });
            Ok((inner.update_data(|inner| Expr::Not(Box::new(inner))), list))
        }
        other => {
            let expr = other.map_children(|part| Ok(kept_apart(part, true, may_vary)?.0))?;
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

/// What may be left when constants have been cast instead.
fn without_casts(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) => without_casts(&cast.expr),
        expr => expr,
    }
}

/// What two lists are together.
enum Linked {
    /// One that means the same.
    To(Listed),
    /// One that is never NULL.
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

fn is_apart(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Identity>().is_some())
}

static APART: LazyLock<ScalarUDF> = LazyLock::new(|| ScalarUDF::from(Identity::new("farhold_apart", 1)));

/// The function that gives back its first argument. Two with other numbers behind it are two to the planner.
pub(super) const NUMBERED: &str = "farhold_numbered";

/// Makes [`NUMBERED`] known.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Identity::new(NUMBERED, 2)));
}

/// Gives back its first argument.
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
