//! Arguments of window functions that DataFusion takes in another way than PostgreSQL.
//!
//! | call | PostgreSQL | DataFusion 55 |
//! |---|---|---|
//! | `lag(x, NULL)`, `lead(x, NULL)` | NULL | as without an offset |
//! | `nth_value(x, 0)` | 22016 | NULL |
//! | `nth_value(x, -1)` | 22016 | the last value |
//! | `ntile(0)` | 22014 | an internal error |
//! | `ntile(NULL)` | NULL | an internal error |
//! | `nth_value(x, a)` of a column | by the row's own value | none; refused here, as `ntile(a)` |
//! | `nth_value(x, 3 - 1)`, `lag(x, '1')` | of the constant's value | what is no literal may be taken for another number, or refused |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value, VisitorMut,
};

use crate::engine::parse::parse_expr;
use crate::engine::scalar::{Binder, Bound, Parameters, built_in_name, fold};
use crate::engine::types::cast;
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// See the module.
pub(super) struct WindowArguments;

impl VisitorMut for WindowArguments {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let Some(name) = built_in_name(function).filter(|_| function.over.is_some()).map(fold) else {
            return ControlFlow::Continue(());
        };
        let (place, state) = match name.as_str() {
            "lag" | "lead" => (1, None),
            "nth_value" => (1, Some(SqlState::INVALID_NTH_VALUE_ARGUMENT)),
            "ntile" => (0, Some(SqlState::INVALID_NTILE_ARGUMENT)),
            _ => return ControlFlow::Continue(()),
        };
        let Some(argument) = argument(function, place) else { return ControlFlow::Continue(()) };
        let number = match number(argument) {
            Ok(number) => number,
            Err(error) => return ControlFlow::Break(error),
        };
        match (number, state) {
            (Number::Null, _) => {
                *argument = Expr::value(Value::Number("1".to_owned(), false));
                match never(expr) {
                    Ok(never) => *expr = never,
                    Err(error) => return ControlFlow::Break(error),
                }
            }
            (Number::Constant(..=0), Some(state)) => {
                let message = format!("argument of {name} must be greater than zero");
                return ControlFlow::Break(SqlError::new(state, message));
            }
            (Number::Constant(number), _) => {
                let digits = Expr::value(Value::Number(number.unsigned_abs().to_string(), false));
                *argument = match number {
                    ..0 => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(digits) },
                    _ => digits,
                };
            }
            (Number::Computed, Some(_)) => {
                let error = SqlError::unsupported(format!("{name} with a number that is not a constant"));
                return ControlFlow::Break(error);
            }
            (Number::Computed, None) | (Number::Parameter, _) => {}
        }
        ControlFlow::Continue(())
    }
}

fn argument(function: &mut Function, place: usize) -> Option<&mut Expr> {
    let FunctionArguments::List(list) = &mut function.args else { return None };
    match list.args.get_mut(place)? {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => Some(argument),
        _ => None,
    }
}

/// What an argument says.
enum Number {
    Null,
    Constant(i64),
    /// It becomes a constant before the query runs.
    Parameter,
    /// From columns, or by what only the planner knows.
    Computed,
}

fn number(argument: &Expr) -> Result<Number, SqlError> {
    let mut parameters = Vec::new();
    let mut binder = Binder { columns: &[], parameters: &mut parameters };
    // What the binder finds wrong may be right to the planner, which knows more functions and the columns.
    let is_integer = |bound: &Bound| {
        matches!(bound.data_type, None | Some(ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt))
    };
    let bound = binder.bind(argument).ok().filter(is_integer);
    let scalar = bound.and_then(|bound| binder.assign(bound, ColumnType::BigInt).ok());
    if !parameters.is_empty() {
        return Ok(if is_parameter(argument) { Number::Parameter } else { Number::Computed });
    }
    let Some(scalar) = scalar.filter(|scalar| !scalar.takes_numbers()) else { return Ok(Number::Computed) };
    let value = scalar.evaluate(&[], Parameters::NONE)?;
    Ok(match cast(value, ColumnType::BigInt)? {
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

/// NULL of an expression's type.
fn never(expr: &Expr) -> Result<Expr, SqlError> {
    let mut case = parse_expr("CASE WHEN false THEN 1 END")?;
    if let Expr::Case { conditions, .. } = &mut case
        && let [when] = conditions.as_mut_slice()
    {
        when.result = expr.clone();
    }
    Ok(case)
}
