//! `width_bucket`.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, i256};
use datafusion::error::{DataFusionError, Result};

use super::{external, not_taken};
use crate::SqlState;
use crate::engine::ColumnType;

/// The type in which `width_bucket` calculates. It is a decimal with the largest scale of the arguments if one is a
/// decimal and none is a float; otherwise, also for integers, it is a float.
pub(in crate::engine::query) fn number_of_buckets(arguments: &[DataType]) -> DataType {
    let scale = |argument: &DataType| match argument {
        DataType::Decimal128(_, scale) => Some(*scale),
        _ => None,
    };
    match arguments.iter().filter_map(scale).max() {
        Some(scale) if !arguments.iter().any(DataType::is_floating) => {
            DataType::Decimal128(ColumnType::PRECISION_MAX, scale)
        }
        _ => DataType::Float64,
    }
}

/// The numbers of the buckets that contain the values. The buckets divide the range between two bounds into equal
/// widths. They count from 1; 0 lies before the first bound, and one more than their number after the second.
pub(super) fn buckets(arguments: &[ArrayRef]) -> Result<Int32Array> {
    let [of, low, high, counts] = arguments else { return Err(not_taken("width_bucket")) };
    let counts = counts.as_primitive::<Int32Type>();
    let bucket = |row: usize| -> Result<Option<i32>> {
        if arguments.iter().any(|argument| argument.is_null(row)) {
            return Ok(None);
        }
        let count = counts.value(row);
        if count <= 0 {
            return Err(wrong_bucket("count must be greater than zero"));
        }
        let bucket = if of.data_type().is_floating() {
            let value = |of: &ArrayRef| of.as_primitive::<Float64Type>().value(row);
            bucket_of_floats(value(of), value(low), value(high), count)?
        } else {
            let value = |of: &ArrayRef| of.as_primitive::<Decimal128Type>().value(row);
            bucket_of_decimals(value(of), value(low), value(high), count)?
        };
        let bucket = i32::try_from(bucket);
        bucket.map(Some).map_err(|_| external(SqlState::NUMERIC_OUT_OF_RANGE, "integer out of range"))
    };
    (0..of.len()).map(bucket).collect()
}

fn wrong_bucket(message: &str) -> DataFusionError {
    external(SqlState::INVALID_WIDTH_BUCKET_ARGUMENT, message)
}

fn bucket_of_floats(of: f64, low: f64, high: f64, count: i32) -> Result<i64> {
    if of.is_nan() || low.is_nan() || high.is_nan() {
        return Err(wrong_bucket("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(wrong_bucket("lower and upper bounds must be finite"));
    }
    let (is_before, is_behind) = match low.partial_cmp(&high) {
        Some(Ordering::Less) => (of < low, of >= high),
        Some(Ordering::Greater) => (of > low, of <= high),
        _ => return Err(wrong_bucket("lower bound cannot equal upper bound")),
    };
    Ok(match (is_before, is_behind) {
        (true, _) => 0,
        (_, true) => i64::from(count) + 1,
        _ => {
            let (count, all) = (f64::from(count), high - low);
            let parts = count * (of - low);
            if all.is_finite() && parts.is_finite() {
                // The operations round in PostgreSQL's order: in another order, 29 falls into the 29th of 100 buckets
                // up to 100.
                return Ok((parts / all + 1.0) as i64);
            }
            // Halved, so that no difference becomes infinite.
            let part = (of / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
            // The quotient may be rounded up to 1.
            (count * part).min(count - 1.0) as i64 + 1
        }
    })
}

fn bucket_of_decimals(of: i128, low: i128, high: i128, count: i32) -> Result<i64> {
    if low == high {
        return Err(wrong_bucket("lower bound cannot equal upper bound"));
    }
    let (is_before, is_behind) = if low < high { (of < low, of >= high) } else { (of > low, of <= high) };
    if is_before {
        return Ok(0);
    }
    if is_behind {
        return Ok(i64::from(count) + 1);
    }
    // 38 digits times an integer: 256 bits hold the product.
    let between = |a: i128, b: i128| i256::from_i128(b).wrapping_sub(i256::from_i128(a));
    let parts = between(low, of).wrapping_mul(i256::from_i128(count.into()));
    let before = parts.checked_div(between(low, high)).and_then(i256::to_i128).and_then(|n| i64::try_from(n).ok());
    before.map(|before| before + 1).ok_or_else(|| external(SqlState::NUMERIC_OUT_OF_RANGE, "numeric out of range"))
}
