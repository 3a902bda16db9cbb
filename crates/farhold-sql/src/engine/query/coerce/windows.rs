//! Window functions and their frames.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Sort, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, Window, WindowFrame, WindowFrameBound, WindowFrameUnits,
};

use super::super::functions::type_of;
use super::super::{added, frames};
use super::common::{Common, become_type, common_result, is_signed, together};
use super::external;
use crate::engine::ColumnType;
use crate::engine::types::{from_arrow, is_timestamptz};
use crate::{SqlError, SqlState};

/// Splits a window operator into one per set of keys. An operator has one order for all its windows, but coercion may
/// have given their keys different types.
pub(super) fn by_sort_keys(window: Window) -> Result<LogicalPlan> {
    let order_of = |expr: &Expr| match expr.clone().unalias() {
        Expr::WindowFunction(function) => Some((function.params.partition_by, function.params.order_by)),
        _ => None,
    };
    let mut orders: Vec<(_, Vec<Expr>)> = Vec::new();
    for expr in window.window_expr {
        let order = order_of(&expr);
        match orders.iter_mut().find(|(known, _)| *known == order) {
            Some((_, windows)) => windows.push(expr),
            None => orders.push((order, vec![expr])),
        }
    }
    let mut plan = Arc::unwrap_or_clone(window.input);
    for (_, windows) in orders {
        plan = LogicalPlan::Window(Window::try_new(windows, Arc::new(plan))?);
    }
    Ok(plan)
}

pub(super) fn window_typed(mut function: Box<WindowFunction>, schema: &DFSchema) -> Result<Box<WindowFunction>> {
    check_place(&function)?;
    added::check_aggregate(function.fun.name(), &function.params.args, function.params.distinct, schema)?;
    with_another(function.fun.name(), &mut function.params.args, schema)?;
    let is_of_place = is_of_place(function.fun.name());
    let WindowFunctionParams { partition_by, order_by, window_frame, .. } = &mut function.params;
    let has_no_distance =
        |by: &Sort| by.expr.get_type(schema).is_ok_and(|t| t.is_binary() || matches!(t, DataType::Interval(_)));
    let is_by_peers = window_frame.units == WindowFrameUnits::Range && !has_distance(window_frame);
    if is_by_peers && order_by.iter().any(has_no_distance) {
        // GROUPS gives the same frame, and also works for types without distances.
        let (start, end) = (window_frame.start_bound.clone(), window_frame.end_bound.clone());
        *window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, start, end);
    }
    if let [by] = order_by.as_mut_slice()
        && has_distance(window_frame)
    {
        let (key, frame, apart) = with_distance(by.expr.clone(), window_frame.clone(), schema)?;
        if is_of_place {
            *window_frame = WindowFrame::new(Some(false));
        } else {
            (by.expr, *window_frame) = (key, frame);
            partition_by.extend(apart);
        }
    }
    Ok(function)
}

/// Whether a function's result does not depend on the frame.
pub(in crate::engine::query) fn is_of_place(name: &str) -> bool {
    matches!(name, "row_number" | "rank" | "dense_rank" | "percent_rank" | "cume_dist" | "ntile" | "lag" | "lead")
}

/// The key and the frame, converted such that distances can be added to the key; also an additional partition key, if
/// one is needed.
fn with_distance(
    mut key: Expr,
    mut frame: WindowFrame,
    schema: &DFSchema,
) -> Result<(Expr, WindowFrame, Option<Expr>)> {
    frames::check_distances(&frame)?;
    let mut apart = None;
    match key.get_type(schema) {
        Ok(data_type) if is_signed(&data_type) && frames::longer_scale(&frame, 0).is_some() => {
            return Err(external(SqlError::unsupported("RANGE with a decimal offset for an integer key")));
        }
        // If the sum of key and distance exceeded the key's type, the frame would include NULLs.
        Ok(DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64) => {
            let wider = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);
            become_type(&mut key, &wider, schema)?;
        }
        Ok(of @ (DataType::Date32 | DataType::Timestamp(..))) => {
            apart = frames::over_moments(&mut key, &mut frame, is_timestamptz(&of))?;
        }
        Ok(DataType::Float32 | DataType::Float64) => apart = frames::over_floats(&mut key, &mut frame, schema)?,
        // A distance, and its sum with a key, may have more digits than the key's type.
        Ok(DataType::Decimal128(_, scale)) => {
            let scale = frames::longer_scale(&frame, scale).unwrap_or(scale);
            let wider = DataType::Decimal128(ColumnType::PRECISION_MAX, scale);
            become_type(&mut key, &wider, schema)?;
        }
        Ok(DataType::Null) | Err(_) => {}
        Ok(other) => {
            let name = from_arrow(&other).map_or_else(|| other.to_string(), |other| other.to_string());
            return Err(external(SqlError::unsupported(format!("RANGE with a distance from a key of type {name}"))));
        }
    }
    Ok((key, frame, apart))
}

/// Refuses a row number of `nth_value` or a number of parts of `ntile` that is not positive. DataFusion counts from the
/// end, or fails.
pub(super) fn check_place(function: &WindowFunction) -> Result<()> {
    let name = function.fun.name();
    let (place, state) = match name {
        "nth_value" => (1, SqlState::INVALID_NTH_VALUE_ARGUMENT),
        "ntile" => (0, SqlState::INVALID_NTILE_ARGUMENT),
        _ => return Ok(()),
    };
    let Some(Expr::Literal(value, _)) = function.params.args.get(place) else { return Ok(()) };
    match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(..=0))) => {
            Err(external(SqlError::new(state, format!("argument of {name} must be greater than zero"))))
        }
        _ => Ok(()),
    }
}

/// Gives `lag` and `lead` the common type of their value and their default. DataFusion converts the default to the type
/// of the value.
pub(super) fn with_another(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    let [value, _, other] = arguments else { return Ok(()) };
    if !matches!(name, "lag" | "lead") {
        return Ok(());
    }
    together(&mut [&mut *value, &mut *other], schema, Common::Result)?;
    let (Ok(of_value), Ok(of_other)) = (type_of(value, schema), type_of(other, schema)) else { return Ok(()) };
    let Some(common) = common_result(&[of_value, of_other]) else { return Ok(()) };
    become_type(value, &common, schema)?;
    become_type(other, &common, schema)
}

/// Whether a frame is a RANGE that is bounded by a distance from its row.
pub(super) fn has_distance(frame: &WindowFrame) -> bool {
    let is_distance = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => !value.is_null(),
        WindowFrameBound::CurrentRow => false,
    };
    frame.units == WindowFrameUnits::Range && (is_distance(&frame.start_bound) || is_distance(&frame.end_bound))
}
