//! CASE, COALESCE, GREATEST and LEAST while a statement is planned: calls whose type is the common type of their results.
//!
//! The planner decides by types, e.g. how it multiplies and which casts a VALUES list needs, before [`coerce`](super::coerce) runs.
//! It gives a CASE the type of its first result (DataFusion 55). So a statement is planned with a call in place of each CASE, and
//! `coerce` replaces the call by a CASE, whose results it converts. The other three are wrapped, and `coerce` unwraps them.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::{
    self, ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{self, CaseWhen, Expr, VisitorMut};

use super::added::not_taken;
use super::coerce::type_of_results;
use super::subqueries::call;
use crate::engine::walk;

/// `CASE WHEN a THEN b … ELSE c END`, of `a, b, …, c`.
const SEARCHED: &str = "farhold_case";
/// `CASE a WHEN b THEN c … ELSE d END`, of `a, b, c, …, d`.
const SIMPLE: &str = "farhold_case_of";

/// Registers the calls.
pub(super) fn register(context: &SessionContext) {
    for of in [Of::Searched, Of::Simple] {
        context.register_udf(ScalarUDF::from(Results::new(of)));
    }
    for name in ["coalesce", "greatest", "least"] {
        if let Some(inner) = context.state().scalar_functions().get(name).cloned() {
            context.register_udf(ScalarUDF::from(Results::new(Of::Function(inner))));
        }
    }
}

/// Puts a call in the place of each CASE.
pub(super) fn mark_cases(statement: &mut ast::Statement) {
    struct Marks;
    impl VisitorMut for Marks {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            let Expr::Case { operand, conditions, else_result, .. } = expr else { return ControlFlow::Continue(()) };
            let name = if operand.is_some() { SIMPLE } else { SEARCHED };
            let whens = std::mem::take(conditions).into_iter();
            let whens = whens.flat_map(|CaseWhen { condition, result }| [condition, result]);
            let arguments = operand.take().map(|of| *of).into_iter().chain(whens);
            *expr = call(name, arguments.chain(else_result.take().map(|of| *of)).collect());
            ControlFlow::Continue(())
        }
    }
    let _ = walk::change(statement, &mut Marks);
}

/// The CASE in whose place a call is; any other call is returned.
pub(super) fn case_of(call: ScalarFunction) -> Result<Case, ScalarFunction> {
    let has_operand = match call.func.inner().downcast_ref::<Results>() {
        Some(Results { of: Of::Searched, .. }) => false,
        Some(Results { of: Of::Simple, .. }) => true,
        _ => return Err(call),
    };
    if call.args.len() < 2 + usize::from(has_operand) {
        return Err(call);
    }
    let mut arguments = call.args.into_iter().map(Box::new);
    let expr = if has_operand { arguments.next() } else { None };
    let mut when_then_expr = Vec::with_capacity(arguments.len() / 2);
    let mut else_expr = None;
    while let Some(when) = arguments.next() {
        match arguments.next() {
            Some(then) => when_then_expr.push((when, then)),
            None => else_expr = Some(when),
        }
    }
    Ok(Case { expr, when_then_expr, else_expr })
}

/// The operand of the CASE in whose place a call is with the values with which it is compared, and the results; `None` for any
/// other call.
pub(super) fn parts_of(call: &ScalarFunction) -> Option<(Vec<&logical_expr::Expr>, Vec<&logical_expr::Expr>)> {
    let results = call.func.inner().downcast_ref::<Results>().filter(|of| !matches!(of.of, Of::Function(_)))?;
    let count = call.args.len();
    let (of_result, others): (Vec<_>, Vec<_>) =
        call.args.iter().enumerate().partition(|(at, _)| results.is_result(*at, count));
    let arguments = |of: Vec<(usize, _)>| of.into_iter().map(|(_, argument)| argument).collect();
    let compared = if results.of == Of::Simple { arguments(others) } else { Vec::new() };
    Some((compared, arguments(of_result)))
}

/// The function that is wrapped, or the same one.
pub(super) fn unwrapped(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    match function.inner().downcast_ref::<Results>() {
        Some(Results { of: Of::Function(inner), .. }) => Arc::clone(inner),
        _ => function,
    }
}

/// Whether an argument is a result: each second one, and one that remains.
fn is_result_of_searched(at: usize, count: usize) -> bool {
    at % 2 == 1 || at + 1 == count
}

fn is_result_of_simple(at: usize, count: usize) -> bool {
    at > 0 && is_result_of_searched(at - 1, count - 1)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Of {
    Searched,
    Simple,
    /// Each argument is a result.
    Function(Arc<ScalarUDF>),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Results {
    of: Of,
    signature: Signature,
}

impl Results {
    fn new(of: Of) -> Self {
        Self { of, signature: Signature::variadic_any(Volatility::Immutable) }
    }

    fn is_result(&self, at: usize, count: usize) -> bool {
        match self.of {
            Of::Searched => is_result_of_searched(at, count),
            Of::Simple => is_result_of_simple(at, count),
            Of::Function(_) => true,
        }
    }
}

impl ScalarUDFImpl for Results {
    fn name(&self) -> &str {
        match &self.of {
            Of::Searched => SEARCHED,
            Of::Simple => SIMPLE,
            Of::Function(inner) => inner.name(),
        }
    }

    fn aliases(&self) -> &[String] {
        match &self.of {
            Of::Function(inner) => inner.aliases(),
            _ => &[],
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {} depends on literals", self.name())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let count = arguments.arg_fields.len();
        if !matches!(self.of, Of::Function(_)) && count < 2 + usize::from(self.of == Of::Simple) {
            return Err(not_taken(self.name()));
        }
        let all = arguments.arg_fields.iter().zip(arguments.scalar_arguments).enumerate();
        let results = all.filter(|(at, _)| self.is_result(*at, count));
        let mut types: Vec<Option<DataType>> = results
            .map(|(_, (field, constant))| {
                let is_untyped = field.data_type().is_string() && constant.is_some();
                (!is_untyped).then(|| field.data_type().clone())
            })
            .collect();
        if count % 2 == usize::from(self.of == Of::Searched) && !matches!(self.of, Of::Function(_)) {
            // PostgreSQL considers ELSE first.
            types.rotate_right(1);
        }
        Ok(Arc::new(Field::new(self.name(), type_of_results(&types), true)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} must be replaced before execution", self.name())
    }
}
