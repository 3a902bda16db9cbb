//! Arguments of window functions for which DataFusion differs from PostgreSQL.
//!
//! | call | PostgreSQL | DataFusion 55 |
//! |---|---|---|
//! | `lag(x, NULL)`, `lead(x, NULL)` | NULL | as without an offset |
//! | `nth_value(x, 0)` | 22016 | NULL |
//! | `nth_value(x, -1)` | 22016 | the last value |
//! | `ntile(0)` | 22014 | an internal error |
//! | `ntile(NULL)` | NULL | an internal error |
//! | `nth_value(x, a)` of a column | uses the row's own value | none; refused here, as `ntile(a)` |
//! | `nth_value(x, 3 - 1)`, `lag(x, '1')` | uses the constant's value | anything but a literal may be read as another number, or refused |
//! | `lag(x, 1.5)` | 42883 | an internal error |
//! | `lag(x, 1, a)` with a non-constant default | the row's own `a` | none; here `CASE WHEN lag(1, 1) IS NULL THEN a ELSE lag(x, 1) END` |
//! | `lower(x) OVER ()`, `rank()` | 42809 | as without OVER; no such function |

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value, VisitorMut,
};

use crate::engine::parse::parse_expr;
use crate::engine::scalar::{BindError, Binder, Bound, Parameters, built_in_name, fold};
use crate::engine::types::cast;
use crate::engine::walk;
use crate::engine::{ColumnType, Datum};
use crate::value::Zone;
use crate::{SqlError, SqlState};

/// See the module.
pub(super) struct WindowArguments<'a> {
    /// Gives access to the functions.
    pub state: &'a SessionState,
}

impl WindowArguments<'_> {
    /// Refuses OVER after a function that is neither a window function nor an aggregate, and a window function without
    /// OVER.
    fn check_kind(&self, function: &Function, name: &str) -> Result<(), SqlError> {
        let is_aggregate = self.state.aggregate_functions().contains_key(name);
        let is_of_windows = self.state.window_functions().contains_key(name);
        let is_scalar = self.state.scalar_functions().contains_key(name);
        let message = match function.over {
            Some(_) if is_scalar && !is_aggregate && !is_of_windows => {
                format!("OVER specified, but {name} is not a window function nor an aggregate function")
            }
            None if is_of_windows && !is_aggregate && !is_scalar && function.within_group.is_empty() => {
                format!("window function {name} requires an OVER clause")
            }
            _ => return Ok(()),
        };
        Err(SqlError::new(SqlState::WRONG_OBJECT_TYPE, message))
    }
}

impl VisitorMut for WindowArguments<'_> {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        self.in_call(expr).map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }
}

impl WindowArguments<'_> {
    fn in_call(&self, expr: &mut Expr) -> Result<(), SqlError> {
        let Expr::Function(function) = expr else { return Ok(()) };
        let Some(name) = built_in_name(function).map(fold) else { return Ok(()) };
        self.check_kind(function, &name)?;
        if function.over.is_none() {
            return Ok(());
        }
        let (place, state) = match name.as_str() {
            "lag" | "lead" => (1, None),
            "nth_value" => (1, Some(SqlState::INVALID_NTH_VALUE_ARGUMENT)),
            "ntile" => (0, Some(SqlState::INVALID_NTILE_ARGUMENT)),
            _ => return Ok(()),
        };
        let Some(argument) = argument(function, place) else { return Ok(()) };
        let is_integer = |bound: &Bound| {
            matches!(bound.data_type, None | Some(ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt))
        };
        match (number(argument, is_integer)?, state) {
            (Number::Null, _) => {
                *argument = Expr::value(Value::Number("1".to_owned(), false));
                *expr = never(expr)?;
                return Ok(());
            }
            (Number::Constant(..=0), Some(state)) => {
                return Err(SqlError::new(state, format!("argument of {name} must be greater than zero")));
            }
            (Number::Constant(number), _) => {
                let digits = Expr::value(Value::Number(number.unsigned_abs().to_string(), false));
                *argument = match number {
                    ..0 => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(digits) },
                    _ => digits,
                };
            }
            (Number::Other(data_type), _) => {
                let message = format!("{name} requires an integer argument, not {data_type}");
                return Err(SqlError::new(SqlState::UNDEFINED_FUNCTION, message));
            }
            (Number::Computed, Some(_)) => {
                return Err(SqlError::unsupported(format!("{name} with a number that is not constant")));
            }
            (Number::Computed, None) | (Number::Parameter, _) => {}
        }
        if let Some(by_rows) = with_default(function)? {
            *expr = by_rows;
        }
        Ok(())
    }
}

/// `lag` and `lead` with a default that is not constant, which is the value if the other row does not exist.
fn with_default(function: &mut Function) -> Result<Option<Expr>, SqlError> {
    let varies = |part: &Expr| {
        matches!(part, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Function(_) | Expr::Subquery(_))
    };
    let FunctionArguments::List(list) = &mut function.args else { return Ok(None) };
    match list.args.get(2) {
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(default))) if walk::exists_outside_queries(default, varies) => {
        }
        _ => return Ok(None),
    }
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(default))) = list.args.pop() else { return Ok(None) };
    let value = function.clone();
    if let Some(value) = argument(function, 0) {
        *value = Expr::value(Value::Number("1".to_owned(), false));
    }
    let mut case = parse_expr("CASE WHEN 1 IS NULL THEN 1 ELSE 1 END")?;
    if let Expr::Case { conditions, else_result: Some(other), .. } = &mut case
        && let [when] = conditions.as_mut_slice()
    {
        when.condition = Expr::IsNull(Box::new(Expr::Function(function.clone())));
        when.result = default;
        **other = Expr::Function(value);
    }
    Ok(Some(case))
}

fn argument(function: &mut Function, place: usize) -> Option<&mut Expr> {
    let FunctionArguments::List(list) = &mut function.args else { return None };
    match list.args.get_mut(place)? {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => Some(argument),
        _ => None,
    }
}

/// The value of an argument.
pub(super) enum Number {
    Null,
    Constant(i64),
    /// A constant once the parameters are bound.
    Parameter,
    /// Computed from columns, or only the planner can evaluate it.
    Computed,
    /// A constant of a type that was not accepted.
    Other(ColumnType),
}

/// The number in an argument of an accepted type.
pub(super) fn number(argument: &Expr, accepts: impl Fn(&Bound) -> bool) -> Result<Number, SqlError> {
    let mut parameters = Vec::new();
    let mut binder = Binder { columns: &[], parameters: &mut parameters, zone: Zone::UTC, is_kept: false };
    // An error of the binder is not final: the planner supports more functions, and columns.
    let bound = binder.bind(argument).ok();
    if let Some(Bound { data_type: Some(data_type), .. }) = bound.as_ref().filter(|bound| !accepts(bound)) {
        return Ok(Number::Other(*data_type));
    }
    let scalar = match bound.map(|bound| binder.assign(bound, ColumnType::BigInt)) {
        Some(Err(BindError::Wrong(error))) => return Err(error),
        assigned => assigned.and_then(Result::ok),
    };
    if !parameters.is_empty() {
        return Ok(if is_parameter(argument) { Number::Parameter } else { Number::Computed });
    }
    let Some(scalar) = scalar.filter(|scalar| !scalar.takes_numbers()) else { return Ok(Number::Computed) };
    let value = scalar.evaluate(&[], Parameters::NONE)?;
    Ok(match cast(value, ColumnType::BigInt, Zone::UTC)? {
        Datum::BigInt(number) => Number::Constant(number),
        _ => Number::Null,
    })
}

fn is_parameter(argument: &Expr) -> bool {
    match argument {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => is_parameter(inner),
        Expr::Value(value) => matches!(value.value, Value::Placeholder(_)),
        _ => false,
    }
}

/// A NULL of an expression's type.
pub(super) fn never(expr: &Expr) -> Result<Expr, SqlError> {
    let mut case = parse_expr("CASE WHEN false THEN 1 END")?;
    if let Expr::Case { conditions, .. } = &mut case
        && let [when] = conditions.as_mut_slice()
    {
        when.result = expr.clone();
    }
    Ok(case)
}
