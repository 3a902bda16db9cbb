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

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value, Visitor, VisitorMut,
};

use crate::engine::parse::parse_expr;
use crate::engine::scalar::{built_in_name, fold};
use crate::engine::walk;
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
        match (count(argument), state) {
            (Count::Null, _) => {
                *argument = Expr::value(Value::Number("1".to_owned(), false));
                match never(expr) {
                    Ok(never) => *expr = never,
                    Err(error) => return ControlFlow::Break(error),
                }
                ControlFlow::Continue(())
            }
            (Count::NotPositive, Some(state)) => {
                ControlFlow::Break(SqlError::new(state, format!("argument of {name} must be greater than zero")))
            }
            (Count::Computed, Some(_)) => {
                ControlFlow::Break(SqlError::unsupported(format!("{name} with a number that is not a constant")))
            }
            _ => ControlFlow::Continue(()),
        }
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
enum Count {
    Null,
    NotPositive,
    /// From columns.
    Computed,
    /// A number, or what becomes one before the query runs.
    Constant,
}

fn count(argument: &Expr) -> Count {
    match argument {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => count(inner),
        Expr::Value(value) => match &value.value {
            Value::Null => Count::Null,
            Value::Number(text, _) if text.parse::<i64>() == Ok(0) => Count::NotPositive,
            _ => Count::Constant,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match count(expr) {
            Count::Constant => Count::NotPositive,
            other => other,
        },
        other if has_column(other) => Count::Computed,
        _ => Count::Constant,
    }
}

fn has_column(expr: &Expr) -> bool {
    struct Columns;
    impl Visitor for Columns {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Subquery(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    walk::visit(expr, &mut Columns).is_break()
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
