//! Partial states of aggregates, made from the values that a home computes for a segment.
//!
//! | aggregate | states | computed |
//! |---|---|---|
//! | `count` | bigint | rows, or values |
//! | `sum` of integers, of decimals of up to 33 digits | the type that it is accumulated in | sum |
//! | `sum` of floats | double, and how many are not finite | sum, least and greatest |
//! | `avg` | those of `sum` and `count` | |
//! | `min`, `max` | the value; of floats an integer in their order | least or greatest |
//! The values of a home are validated: a value that its type cannot have is an error.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, i256};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;
use farhold_scan::access_path::{Aggregate, Value};
use farhold_store::column::ordered_double;

use super::super::exec::SnapshotScan;
use crate::engine::ColumnType;
use crate::engine::catalog::TableInfo;
use crate::{SqlError, SqlState};

/// Decimals of this many digits: the sum of a segment, which has at most 65,536 of them, has fewer than 128 bits.
const SUMMED_PRECISION_MAX: u8 = 33;
/// The most aggregates of a request.
const AGGREGATES_MAX: usize = 64;
/// The approximate bytes of an aggregate in a reply.
const VALUE_BYTES: usize = 24;

/// The states of all aggregates of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct States {
    /// The aggregates that homes compute, each once.
    pub(super) wanted: Arc<[Aggregate]>,
    /// How each state is made from these, and its type.
    columns: Arc<[(State, DataType)]>,
    /// The aggregates of the query, as EXPLAIN shows them.
    pub(super) names: Arc<[String]>,
}

/// How a state is made from the aggregates at these positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The same value.
    Same(usize),
    /// For a float, the integer that has its order.
    Ordered(usize),
    /// For floats with these least and greatest values, a lower bound of the number that are not finite.
    NotFinite(usize, usize),
}

/// The table's column that an aggregate reads, and the type of its argument.
struct Argument {
    column: usize,
    stored: ColumnType,
    data_type: DataType,
}

impl States {
    /// The states of a first step over a scan, with projections between them; `None`: homes cannot compute one of the aggregates.
    pub(super) fn of(
        step: &AggregateExec,
        projections: &[&ProjectionExec],
        scan: &SnapshotScan,
    ) -> Result<Option<Self>> {
        let mut wanted = Wanted::default();
        let (mut columns, mut names) = (Vec::new(), Vec::new());
        for aggregate in step.aggr_expr() {
            let types = aggregate.state_fields()?.into_iter().map(|field| field.data_type().clone()).collect();
            let Some((states, name)) = wanted.add(aggregate, types, projections, scan) else { return Ok(None) };
            columns.extend(states);
            names.push(name);
        }
        if names.is_empty() || wanted.0.len() > AGGREGATES_MAX {
            return Ok(None);
        }
        Ok(Some(Self { wanted: wanted.0.into(), columns: columns.into(), names: names.into() }))
    }

    /// The approximate bytes of the result of a segment.
    pub(super) fn bytes(&self) -> usize {
        self.wanted.len() * VALUE_BYTES
    }

    /// The text columns whose values are sent.
    pub(super) fn texts<'a>(&'a self, table: &'a TableInfo) -> impl Iterator<Item = usize> + 'a {
        let is_long = move |column: &usize| {
            let data_type = table.columns()[*column].data_type;
            data_type.is_text() || data_type == ColumnType::Bytea
        };
        let value = |aggregate: &Aggregate| match *aggregate {
            Aggregate::Min(column) | Aggregate::Max(column) => Some(column),
            _ => None,
        };
        self.wanted.iter().filter_map(value).filter(is_long)
    }

    /// One row of states for each of these segments, whose aggregates homes have computed.
    pub(super) fn batch(&self, schema: &SchemaRef, segments: &[&[Value]]) -> Result<RecordBatch> {
        if segments.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(schema)));
        }
        let array = |(state, data_type): &(State, DataType)| -> Result<ArrayRef> {
            let values = segments.iter().map(|values| state.scalar(values, data_type));
            let values: Vec<ScalarValue> = values.collect::<Result<_>>()?;
            ScalarValue::iter_to_array(values)
        };
        let arrays = self.columns.iter().map(array).collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(schema), arrays)?)
    }
}

/// The aggregates that homes must compute.
#[derive(Default)]
struct Wanted(Vec<Aggregate>);

impl Wanted {
    fn place(&mut self, aggregate: Aggregate) -> usize {
        let found = self.0.iter().position(|other| *other == aggregate);
        found.unwrap_or_else(|| {
            self.0.push(aggregate);
            self.0.len() - 1
        })
    }

    fn same(&mut self, aggregate: Aggregate) -> State {
        State::Same(self.place(aggregate))
    }

    /// The states of an aggregate, which have these types, and what EXPLAIN calls it.
    fn add(
        &mut self,
        aggregate: &AggregateFunctionExpr,
        types: Vec<DataType>,
        projections: &[&ProjectionExec],
        scan: &SnapshotScan,
    ) -> Option<(Vec<(State, DataType)>, String)> {
        let is_plain = !aggregate.is_distinct() && !aggregate.ignore_nulls() && aggregate.order_bys().is_empty();
        let expressions = aggregate.expressions();
        let [expression] = &expressions[..] else { return None };
        if !is_plain {
            return None;
        }
        let function = aggregate.fun().name();
        if function == "count" && is_constant(expression, projections) {
            let state = self.same(Aggregate::Rows);
            return (types == [DataType::Int64]).then(|| (vec![(state, DataType::Int64)], "count(*)".to_owned()));
        }
        let argument = argument(expression, projections, scan)?;
        let (column, is_float) = (argument.column, argument.is_float());
        let (states, name) = match function {
            "count" => (vec![self.same(Aggregate::Count(column))], "count"),
            "SUM" => (self.sum(&argument)?, "sum"),
            // The average of floats is DataFusion's, which has the count first.
            "AVG" if is_float => {
                let [sum, special] = self.sum(&argument)?[..] else { return None };
                (vec![self.same(Aggregate::Count(column)), sum, special], "avg")
            }
            "AVG" => {
                let [sum] = self.sum(&argument)?[..] else { return None };
                (vec![sum, self.same(Aggregate::Count(column))], "avg")
            }
            "min" if argument.is_exact() => (vec![self.same(Aggregate::Min(column))], "min"),
            "max" if argument.is_exact() => (vec![self.same(Aggregate::Max(column))], "max"),
            "MIN_BY_KEY" if is_float => (vec![State::Ordered(self.place(Aggregate::Min(column)))], "min"),
            "MAX_BY_KEY" if is_float => (vec![State::Ordered(self.place(Aggregate::Max(column)))], "max"),
            _ => return None,
        };
        let fits = |(state, data_type): (&State, &DataType)| match (state, data_type) {
            (State::Same(place), data_type) => match self.0[*place] {
                Aggregate::Rows | Aggregate::Count(_) => matches!(data_type, DataType::Int64 | DataType::UInt64),
                Aggregate::Sum(_) if is_float => *data_type == DataType::Float64,
                Aggregate::Sum(_) => is_sum(data_type),
                Aggregate::Min(_) | Aggregate::Max(_) => *data_type == argument.data_type,
            },
            (State::Ordered(_) | State::NotFinite(..), data_type) => *data_type == DataType::Int64,
        };
        if states.len() != types.len() || !states.iter().zip(&types).all(fits) {
            return None;
        }
        let name = format!("{name}({})", scan.table.columns()[column].name);
        Some((states.into_iter().zip(types).collect(), name))
    }

    fn sum(&mut self, argument: &Argument) -> Option<Vec<State>> {
        let column = argument.column;
        let sum = Aggregate::Sum(column);
        match argument.stored {
            ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt => Some(vec![self.same(sum)]),
            ColumnType::Decimal { precision, .. } if precision <= SUMMED_PRECISION_MAX => Some(vec![self.same(sum)]),
            ColumnType::Real | ColumnType::Double => {
                let (least, greatest) = (self.place(Aggregate::Min(column)), self.place(Aggregate::Max(column)));
                Some(vec![self.same(sum), State::NotFinite(least, greatest)])
            }
            _ => None,
        }
    }
}

impl Argument {
    fn is_float(&self) -> bool {
        matches!(self.stored, ColumnType::Real | ColumnType::Double)
    }

    /// Whether the least and greatest values of this type are those of its column, in the type in which they are sent.
    fn is_exact(&self) -> bool {
        match self.stored {
            ColumnType::Boolean => false,
            _ if self.is_float() => false,
            ColumnType::Decimal { scale, .. } => {
                matches!(self.data_type, DataType::Decimal128(_, of) if of.unsigned_abs() == scale && of >= 0)
            }
            _ => true,
        }
    }
}

fn is_sum(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int64 | DataType::Decimal128(..) | DataType::Decimal256(..))
}

/// Whether `count` of it counts all rows.
fn is_constant(expression: &Arc<dyn PhysicalExpr>, projections: &[&ProjectionExec]) -> bool {
    if let Some(literal) = expression.downcast_ref::<Literal>() {
        return !literal.value().is_null();
    }
    match (expression.downcast_ref::<Column>(), projections.split_first()) {
        (Some(column), Some((projection, below))) => is_constant(&projection.expr()[column.index()].expr, below),
        _ => false,
    }
}

/// The column of the table that an expression over these projections stands for, perhaps widened to a larger number type.
fn argument(
    expression: &Arc<dyn PhysicalExpr>,
    projections: &[&ProjectionExec],
    scan: &SnapshotScan,
) -> Option<Argument> {
    if let Some(cast) = expression.downcast_ref::<CastExpr>() {
        use DataType::{Float32, Float64, Int16, Int32, Int64};
        let inner = argument(cast.expr(), projections, scan)?;
        let data_type = cast.cast_type().clone();
        let is_wider =
            matches!((&inner.data_type, &data_type), (Int16, Int32 | Int64) | (Int32, Int64) | (Float32, Float64));
        return is_wider.then_some(Argument { data_type, ..inner });
    }
    let place = expression.downcast_ref::<Column>()?.index();
    if let Some((projection, below)) = projections.split_first() {
        return argument(&projection.expr().get(place)?.expr, below, scan);
    }
    let column = *scan.columns.get(place)?;
    let stored = scan.table.columns().get(column)?.data_type;
    Some(Argument { column, stored, data_type: scan.schema.field(place).data_type().clone() })
}

impl State {
    fn scalar(self, values: &[Value], data_type: &DataType) -> Result<ScalarValue> {
        let value = |place: usize| values.get(place).ok_or_else(wrong);
        match self {
            Self::Same(place) => of_type(value(place)?, data_type),
            Self::Ordered(place) => match value(place)? {
                Value::Null => Ok(ScalarValue::Int64(None)),
                Value::Float(float) => Ok(ScalarValue::Int64(Some(ordered_double(*float)))),
                _ => Err(wrong()),
            },
            Self::NotFinite(least, greatest) => match (value(least)?, value(greatest)?) {
                (Value::Null, Value::Null) => Ok(ScalarValue::Int64(Some(0))),
                // NaN is the greatest.
                (Value::Float(least), Value::Float(greatest)) => {
                    Ok(ScalarValue::Int64(Some(i64::from(!least.is_finite() || !greatest.is_finite()))))
                }
                _ => Err(wrong()),
            },
        }
    }
}

/// A value as a scalar of a type.
fn of_type(value: &Value, data_type: &DataType) -> Result<ScalarValue> {
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).map_err(|_| wrong());
    Ok(match (value, data_type) {
        (Value::Null, _) => ScalarValue::try_from(data_type)?,
        (Value::Float(float), DataType::Float64) => ScalarValue::Float64(Some(*float)),
        (Value::Integer(value), DataType::Int16) => ScalarValue::Int16(Some(number(*value)?)),
        (Value::Integer(value), DataType::Int32) => ScalarValue::Int32(Some(number(*value)?)),
        (Value::Integer(value), DataType::Int64) => ScalarValue::Int64(Some(number(*value)?)),
        (Value::Integer(value), DataType::UInt64) => ScalarValue::UInt64(Some(number(*value)?)),
        (Value::Integer(value), DataType::Date32) => ScalarValue::Date32(Some(number(*value)?)),
        (Value::Integer(value), DataType::Timestamp(TimeUnit::Microsecond, zone)) => {
            ScalarValue::TimestampMicrosecond(Some(number(*value)?), zone.clone())
        }
        (Value::Integer(value), DataType::Decimal128(precision, scale)) if has_digits(*value, *precision) => {
            ScalarValue::Decimal128(Some(*value), *precision, *scale)
        }
        (Value::Integer(value), DataType::Decimal256(precision, scale)) => {
            ScalarValue::Decimal256(Some(i256::from_i128(*value)), *precision, *scale)
        }
        (Value::Bytes(bytes), DataType::Utf8View) => ScalarValue::Utf8View(Some(text(bytes)?)),
        (Value::Bytes(bytes), DataType::Utf8) => ScalarValue::Utf8(Some(text(bytes)?)),
        (Value::Bytes(bytes), DataType::Binary) => ScalarValue::Binary(Some(bytes.clone())),
        _ => return Err(wrong()),
    })
}

fn number<T: TryFrom<i128>>(value: i128) -> Result<T> {
    T::try_from(value).map_err(|_| wrong())
}

fn has_digits(value: i128, precision: u8) -> bool {
    10_u128.checked_pow(precision.into()).is_none_or(|limit| value.unsigned_abs() < limit)
}

fn wrong() -> DataFusionError {
    let message = "another node has sent an impossible aggregate";
    DataFusionError::External(Box::new(SqlError::new(SqlState::DATA_CORRUPTED, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_type_cannot_have_are_errors() {
        use DataType::{Binary, Date32, Decimal128, Decimal256, Float64, Int16, Int32, Int64, UInt64, Utf8View};
        let integer = |value: i128| Value::Integer(value);
        for (value, data_type) in [
            (integer(40_000), Int16),
            (integer(1 << 40), Int32),
            (integer(1 << 40), Date32),
            (integer(1 << 80), Int64),
            (integer(-1), UInt64),
            (integer(1000), Decimal128(3, 0)),
            (integer(-1000), Decimal128(3, 2)),
            (Value::Overflow, Decimal256(48, 0)),
            (Value::Float(1.0), Int64),
            (Value::Bytes(vec![0xff]), Utf8View),
            (integer(1), Utf8View),
        ] {
            assert!(of_type(&value, &data_type).is_err(), "{value:?} as {data_type}");
        }
        for (value, data_type, scalar) in [
            (integer(-7), Int16, ScalarValue::Int16(Some(-7))),
            (integer(999), Decimal128(3, 1), ScalarValue::Decimal128(Some(999), 3, 1)),
            (integer(i128::MAX), Decimal128(38, 0), ScalarValue::Decimal128(Some(i128::MAX), 38, 0)),
            (Value::Float(2.5), Float64, ScalarValue::Float64(Some(2.5))),
            (Value::Bytes(b"text".to_vec()), Utf8View, ScalarValue::Utf8View(Some("text".to_owned()))),
            (Value::Bytes(vec![0xff]), Binary, ScalarValue::Binary(Some(vec![0xff]))),
            (Value::Null, Date32, ScalarValue::Date32(None)),
        ] {
            let found = of_type(&value, &data_type);
            if data_type == Decimal128(38, 0) {
                // 39 digits.
                assert!(found.is_err());
            } else {
                assert_eq!(found.expect("fits"), scalar, "{value:?} as {data_type}");
            }
        }
    }

    #[test]
    fn floats_that_are_not_finite_are_counted() {
        let special = |least: f64, greatest: f64| {
            State::NotFinite(0, 1).scalar(&[Value::Float(least), Value::Float(greatest)], &DataType::Int64)
        };
        assert_eq!(special(1.0, 2.0).expect("floats"), ScalarValue::Int64(Some(0)));
        for (least, greatest) in [(1.0, f64::NAN), (f64::NEG_INFINITY, 1.0), (0.0, f64::INFINITY), (f64::NAN, f64::NAN)]
        {
            assert_eq!(special(least, greatest).expect("floats"), ScalarValue::Int64(Some(1)));
        }
        let none = State::NotFinite(0, 1).scalar(&[Value::Null, Value::Null], &DataType::Int64);
        assert_eq!(none.expect("no floats"), ScalarValue::Int64(Some(0)));
        assert!(State::Ordered(0).scalar(&[Value::Integer(1)], &DataType::Int64).is_err());
    }
}
