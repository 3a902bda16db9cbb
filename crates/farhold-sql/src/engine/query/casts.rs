//! Aggregates and windows that differ by casts alone.
//!
//! DataFusion (55) calls a cast as what is cast. So `sum(a)` and `sum(CAST(a AS NUMERIC))` have one name, and one plan must not have both: the casts
//! become arguments of a function that is named after their types and gives what it is given.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr as PlanExpr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{Expr, Function, Statement, Value, Visitor, VisitorMut};

use super::subqueries::{call, is_aggregate};
use crate::engine::walk;

/// `farhold_cast(CAST(a AS t), 't')`
const CAST: &str = "farhold_cast";

/// Makes the function known.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Named { signature: Signature::any(2, Volatility::Immutable) }));
}

/// Gives names to the casts of a statement's aggregates and windows where others have all but these.
pub(super) fn name(statement: &mut Statement, aggregates: &HashSet<String>) {
    struct Calls<'a> {
        aggregates: &'a HashSet<String>,
        /// Each once, without its casts and as it is.
        found: Vec<(Expr, Expr)>,
    }
    impl Visitor for Calls<'_> {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr
                && is_summary(function, self.aggregates)
                && !self.found.iter().any(|(_, known)| known == expr)
            {
                let mut bare = expr.clone();
                let _ = walk::change(&mut bare, &mut NoCasts);
                self.found.push((bare, expr.clone()));
            }
            ControlFlow::Continue(())
        }
    }
    let mut calls = Calls { aggregates, found: Vec::new() };
    let _ = walk::visit(statement, &mut calls);
    let has_twin =
        |n: usize| (0..calls.found.len()).any(|other| other != n && calls.found[other].0 == calls.found[n].0);
    let twins: Vec<Expr> = (0..calls.found.len()).filter(|n| has_twin(*n)).map(|n| calls.found[n].1.clone()).collect();
    if !twins.is_empty() {
        let _ = walk::change(statement, &mut Namer { twins });
    }
}

fn is_summary(function: &Function, aggregates: &HashSet<String>) -> bool {
    function.over.is_some() || is_aggregate(function, aggregates)
}

/// Takes casts away.
struct NoCasts;

impl VisitorMut for NoCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: inner, .. } = expr {
            *expr = inner.as_ref().clone();
        }
        ControlFlow::Continue(())
    }
}

/// Names the casts of some calls.
struct Namer {
    twins: Vec<Expr>,
}

impl VisitorMut for Namer {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.twins.contains(expr)
            && let Expr::Function(function) = expr
        {
            let _ = walk::change(&mut function.args, &mut NamedCasts);
        }
        ControlFlow::Continue(())
    }
}

struct NamedCasts;

impl VisitorMut for NamedCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { data_type, .. } = expr {
            let name = Expr::value(Value::SingleQuotedString(data_type.to_string()));
            *expr = call(CAST, vec![expr.clone(), name]);
        }
        ControlFlow::Continue(())
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    signature: Signature,
}

impl ScalarUDFImpl for Named {
    fn name(&self) -> &'static str {
        CAST
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(arguments.arg_fields[0].clone())
    }

    fn simplify(&self, mut arguments: Vec<PlanExpr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Simplified(arguments.swap_remove(0)))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
}
