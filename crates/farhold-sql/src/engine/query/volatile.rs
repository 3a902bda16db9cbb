//! Volatile expressions, such as `random()` and `nextval`.
//!
//! - In a condition, they must be evaluated for each input row. DataFusion moves a condition without columns below
//!   aggregates, DISTINCT, windows and joins.
//! - Among the items of a DISTINCT, they forbid replacing a join below by a semi join.
//! - Two aggregates or window functions over them stay separate: DataFusion computes `max(random()) = max(random())`
//!   from one.
//! - Two conditions over them stay separate: [`separate`](super::separate).

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Filter, LogicalPlan, Volatility};
use datafusion::optimizer::eliminate_join::EliminateJoin;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::sql::sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, FunctionArguments, Value, Visit, Visitor, VisitorMut,
};

use super::separate::NUMBERED;
use super::subqueries;
use crate::engine::scalar::fold;
use crate::engine::walk;

/// Whether a filter's condition is volatile, or that of a filter directly below.
pub(super) fn is_volatile(filter: &Filter) -> bool {
    filter.predicate.is_volatile() || matches!(filter.input.as_ref(), LogicalPlan::Filter(below) if is_volatile(below))
}

/// DataFusion's rule that turns joins into semi joins, applied only to plans without volatile expressions.
#[derive(Debug, Default)]
pub(super) struct Joins(EliminateJoin);

impl OptimizerRule for Joins {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut is_volatile = false;
        plan.apply_with_subqueries(|node| {
            node.apply_expressions(|expr| {
                is_volatile |= expr.is_volatile();
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        if is_volatile { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}

/// Whether a part of a statement calls a volatile function.
pub(super) fn varies(part: &impl Visit, state: &SessionState) -> bool {
    struct Calls<'s>(&'s SessionState);
    impl Visitor for Calls<'_> {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            let ast::Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
            let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
            let called = self.0.scalar_functions().get(&name);
            let varies = called.is_some_and(|called| called.signature().volatility == Volatility::Volatile);
            if varies { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    walk::visit(part, &mut Calls(state)).is_break()
}

/// Numbers the aggregates and window functions with volatile arguments or filters.
pub(super) struct Aggregates<'a> {
    pub(super) state: &'a SessionState,
    /// The names of aggregate functions.
    pub(super) names: &'a HashSet<String>,
    pub(super) met: u64,
}

impl VisitorMut for Aggregates<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        if let ast::Expr::Function(function) = expr
            && (function.over.is_some() || subqueries::is_aggregate(function, self.names))
            && let Some(varying) = self.varying(function)
        {
            self.met += 1;
            let number = ast::Expr::value(Value::Number(self.met.to_string(), false));
            let value = std::mem::replace(varying, ast::Expr::value(Value::Null));
            *varying = subqueries::call(NUMBERED, vec![value, number]);
        }
        ControlFlow::Continue(())
    }
}

impl Aggregates<'_> {
    /// A volatile part of a call.
    fn varying<'f>(&self, function: &'f mut ast::Function) -> Option<&'f mut ast::Expr> {
        let arguments = match &mut function.args {
            FunctionArguments::List(list) => list.args.as_mut_slice(),
            _ => &mut [],
        };
        let arguments = arguments.iter_mut().filter_map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => Some(argument),
            _ => None,
        });
        let mut parts = arguments.chain(function.filter.as_deref_mut());
        parts.find(|part| varies(&**part, self.state))
    }
}
