//! The bounds of frames: refuses those that PostgreSQL refuses, and makes distances in rows and groups constants.
//!
//! | frame | PostgreSQL | DataFusion 55 |
//! |---|---|---|
//! | invalid bounds, such as `UNBOUNDED FOLLOWING` as the start | 42P20 | a plan error |
//! | `ROWS 1 + 1 PRECEDING`, `ROWS 1.5 PRECEDING`, `ROWS '1' PRECEDING` | 2, 2, 1 | a plan error |
//! | `ROWS -1 PRECEDING`, `ROWS NULL PRECEDING` | 22013, 22004 | a plan error |
//! | `ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING` | no rows | a plan error |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Interval, UnaryOperator, Value, VisitorMut, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowSpec, WindowType,
};

use super::coerce::is_of_place;
use super::frames::invalid_size;
use super::windows::{Number, never, number};
use crate::engine::parse::parse_expr;
use crate::engine::scalar::{Bound, built_in_name, fold};
use crate::engine::{ColumnType, error, walk};
use crate::{SqlError, SqlState};

/// See the module. Named windows must have been expanded before (`named_windows`).
pub(super) struct FrameBounds;

impl VisitorMut for FrameBounds {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        match in_call(expr) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

fn in_call(expr: &mut Expr) -> Result<(), SqlError> {
    let Expr::Function(function) = expr else { return Ok(()) };
    let Some(WindowType::WindowSpec(window)) = &mut function.over else { return Ok(()) };
    let orders = window.order_by.len();
    let Some(frame) = &mut window.window_frame else { return Ok(()) };
    check_ends(frame)?;
    let range = frame.units == WindowFrameUnits::Range;
    if range && orders != 1 && ends(frame).into_iter().any(|end| distance(end).is_some()) {
        return Err(error::windowing("RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column"));
    }
    if frame.units == WindowFrameUnits::Groups && orders == 0 {
        return Err(error::windowing("GROUPS mode requires an ORDER BY clause"));
    }
    let units = frame.units.to_string();
    let mut places = Vec::new();
    for (end, which) in ends(frame).into_iter().zip(["starting", "ending"]) {
        let place = match end {
            WindowFrameBound::CurrentRow => Some(0),
            WindowFrameBound::Preceding(None) => Some(i64::MIN),
            WindowFrameBound::Following(None) => Some(i64::MAX),
            WindowFrameBound::Preceding(Some(distance)) => in_rows(distance, range, which, &units)?.map(|far| -far),
            WindowFrameBound::Following(Some(distance)) => in_rows(distance, range, which, &units)?,
        };
        places.push(place);
    }
    if let [Some(start), Some(end)] = places[..]
        && start > end
    {
        *expr = over_nothing(function)?;
    }
    Ok(())
}

/// The start of a frame, and its end if it has one.
fn ends(frame: &mut WindowFrame) -> Vec<&mut WindowFrameBound> {
    std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound).collect()
}

fn distance(end: &WindowFrameBound) -> Option<&Expr> {
    match end {
        WindowFrameBound::Preceding(distance) | WindowFrameBound::Following(distance) => distance.as_deref(),
        WindowFrameBound::CurrentRow => None,
    }
}

/// Refuses bounds that PostgreSQL's grammar refuses.
pub(super) fn check_ends(frame: &WindowFrame) -> Result<(), SqlError> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let message = match (&frame.start_bound, &frame.end_bound) {
        (Following(None), _) => "frame start cannot be UNBOUNDED FOLLOWING",
        (Following(Some(_)), None) => "frame starting from following row cannot end with current row",
        (_, Some(Preceding(None))) => "frame end cannot be UNBOUNDED PRECEDING",
        (CurrentRow, Some(Preceding(Some(_)))) => "frame starting from current row cannot have preceding rows",
        (Following(Some(_)), Some(Preceding(Some(_)) | CurrentRow)) => {
            "frame starting from following row cannot have preceding rows"
        }
        _ => return Ok(()),
    };
    Err(error::windowing(message))
}

/// Makes a distance in rows or groups a constant, and returns it; `None` for a distance in values of the key.
fn in_rows(distance: &mut Expr, by_range: bool, which: &str, units: &str) -> Result<Option<i64>, SqlError> {
    // The parser takes every string in this position for an interval.
    if let Expr::Interval(Interval { value, leading_field: None, .. }) = distance
        && !by_range
    {
        *distance = std::mem::replace(value.as_mut(), Expr::value(Value::Null));
    }
    if by_range {
        return match distance {
            distance if is_null(distance) => Err(must_not_be_null(which)),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } if matches!(expr.as_ref(), Expr::Value(_)) => {
                Err(invalid_size())
            }
            _ => Ok(None),
        };
    }
    let is_number = |bound: &Bound| {
        use ColumnType::{BigInt, Decimal, Double, Int, Real, SmallInt};
        matches!(bound.data_type, None | Some(SmallInt | Int | BigInt | Real | Double | Decimal { .. }))
    };
    match number(distance, is_number)? {
        Number::Null => Err(must_not_be_null(which)),
        Number::Other(data_type) => {
            let message = format!("argument of {units} must be type bigint, not type {data_type}");
            Err(SqlError::new(SqlState::DATATYPE_MISMATCH, message))
        }
        Number::Constant(..0) => {
            let message = format!("frame {which} offset must not be negative");
            Err(SqlError::new(SqlState::INVALID_PRECEDING_OR_FOLLOWING_SIZE, message))
        }
        Number::Constant(rows) => {
            *distance = Expr::value(Value::Number(rows.to_string(), false));
            Ok(Some(rows))
        }
        _ if walk::exists_outside_queries(distance, |part| {
            matches!(part, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        }) =>
        {
            let message = format!("argument of {units} must not contain variables");
            Err(SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message))
        }
        _ => Err(SqlError::unsupported("a frame whose distance is not a constant")),
    }
}

fn must_not_be_null(which: &str) -> SqlError {
    SqlError::new(SqlState::NULL_VALUE_NOT_ALLOWED, format!("frame {which} offset must not be null"))
}

fn is_null(distance: &Expr) -> bool {
    match distance {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => is_null(inner),
        Expr::Value(value) => matches!(value.value, Value::Null),
        _ => false,
    }
}

/// The result of a function over a frame without rows.
fn over_nothing(function: &mut Function) -> Result<Expr, SqlError> {
    if let Some(WindowType::WindowSpec(WindowSpec { window_frame, .. })) = &mut function.over {
        *window_frame = None;
    }
    let name = built_in_name(function).map(fold).unwrap_or_default();
    let call = Expr::Function(function.clone());
    match name.as_str() {
        name if is_of_place(name) => Ok(call),
        "count" | "regr_count" => parse_expr("CAST(0 AS BIGINT)"),
        _ => never(&call),
    }
}
