//! `corr`, `covar_pop`, `covar_samp` and `regr_*`, computed as in PostgreSQL.
//!
//! DataFusion 55 returns NULL if a number is NaN, and NaN or infinity if a sum overflows (22003 here). For groups it
//! subtracts sums of squares, which cancels all digits of the difference of `1e9 + 1` and `1e9 + 2`. Here, as in
//! PostgreSQL, sums of squared distances are updated by the distance of each number from the current mean (Youngs and
//! Cramer, 1971).

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::correlation::corr_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature};
use datafusion::prelude::SessionContext;

use crate::{SqlError, SqlState};

/// Replaces DataFusion's functions. `regr_count` only counts, and stays.
pub(super) fn register(context: &SessionContext) {
    let all = [
        ("corr", Of::Correlation),
        ("covar_pop", Of::Covariance { is_sample: false }),
        ("covar_samp", Of::Covariance { is_sample: true }),
        ("regr_avgx", Of::Average(X)),
        ("regr_avgy", Of::Average(Y)),
        ("regr_sxx", Of::Squares(X)),
        ("regr_syy", Of::Squares(Y)),
        ("regr_sxy", Of::Products),
        ("regr_slope", Of::Slope),
        ("regr_intercept", Of::Intercept),
        ("regr_r2", Of::Determination),
    ];
    for (name, of) in all {
        let signature = corr_udaf().signature().clone();
        // All names must be registered: any other would still refer to DataFusion's function.
        let aliases = if name == "covar_samp" { vec!["covar".to_owned()] } else { Vec::new() };
        context.register_udaf(AggregateUDF::from(OfPairs { name, of, aliases, signature }));
    }
}

/// The positions of a pair's numbers: `regr_slope(y, x)`.
const Y: usize = 0;
const X: usize = 1;

/// The statistic that is computed from the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Correlation,
    Covariance { is_sample: bool },
    Average(usize),
    Squares(usize),
    Products,
    Slope,
    Intercept,
    Determination,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfPairs {
    name: &'static str,
    of: Of,
    aliases: Vec<String>,
    signature: Signature,
}

impl AggregateUDFImpl for OfPairs {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let field = |part: usize| Arc::new(Field::new(format!("{}[{part}]", arguments.name), DataType::Float64, false));
        Ok((0..Sums::PARTS).map(field).collect())
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(All { of: self.of, sums: Sums::default() }))
    }

    fn create_sliding_accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Sliding { of: self.of, pairs: VecDeque::new() }))
    }
}

/// The pairs of the rows in which neither number is NULL.
fn pairs(values: &[ArrayRef]) -> impl Iterator<Item = (f64, f64)> {
    let (a, b) = (values[0].as_primitive::<Float64Type>(), values[1].as_primitive::<Float64Type>());
    a.iter().zip(b).filter_map(|(a, b)| a.zip(b))
}

/// For two columns of numbers: their sums, the sums of squared distances from their means, and the sum of the products
/// of these distances.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    sum: [f64; 2],
    squares: [f64; 2],
    products: f64,
}

impl Sums {
    const PARTS: usize = 6;

    fn add(&mut self, pair: [f64; 2]) -> Result<()> {
        let before = *self;
        self.count += 1.0;
        for (sum, value) in self.sum.iter_mut().zip(pair) {
            *sum += value;
        }
        if before.count == 0.0 {
            for (square, value) in self.squares.iter_mut().zip(pair) {
                *square = if value.is_finite() { 0.0 } else { f64::NAN };
            }
            self.products = if pair.iter().all(|value| value.is_finite()) { 0.0 } else { f64::NAN };
            return Ok(());
        }
        let distance = |side: usize| pair[side] * self.count - self.sum[side];
        let (distances, scale) = ([distance(0), distance(1)], 1.0 / (self.count * before.count));
        for (square, distance) in self.squares.iter_mut().zip(distances) {
            *square += distance * distance * scale;
        }
        self.products += distances[0] * distances[1] * scale;
        let was_finite = |side: usize| !before.sum[side].is_infinite() && !pair[side].is_infinite();
        let is_over =
            |side: usize| (self.sum[side].is_infinite() || self.squares[side].is_infinite()) && was_finite(side);
        if is_over(0) || is_over(1) || self.products.is_infinite() && was_finite(0) && was_finite(1) {
            return Err(overflow());
        }
        for sum in self.squares.iter_mut().chain([&mut self.products]) {
            if sum.is_infinite() {
                *sum = f64::NAN;
            }
        }
        Ok(())
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        if self.count == 0.0 || other.count == 0.0 {
            *self = if self.count == 0.0 { *other } else { *self };
            return Ok(());
        }
        let one = *self;
        self.count += other.count;
        let apart = |side: usize| one.sum[side] / one.count - other.sum[side] / other.count;
        let (apart, weight) = ([apart(0), apart(1)], one.count * other.count / self.count);
        let summed = |a: f64, b: f64, more: f64| {
            let sum = a + b + more;
            let is_over = sum.is_infinite() && !a.is_infinite() && !b.is_infinite();
            if is_over { Err(overflow()) } else { Ok(sum) }
        };
        for (side, apart) in apart.into_iter().enumerate() {
            self.sum[side] = summed(one.sum[side], other.sum[side], 0.0)?;
            self.squares[side] = summed(one.squares[side], other.squares[side], apart * apart * weight)?;
        }
        self.products = summed(one.products, other.products, apart[0] * apart[1] * weight)?;
        Ok(())
    }

    /// NULL for no rows, and if the statistic needs different values where all are equal.
    fn result(&self, of: Of) -> Option<f64> {
        let Self { count, sum, squares, products } = *self;
        if count == 0.0 {
            return None;
        }
        let differs = |side: usize| squares[side] != 0.0;
        match of {
            Of::Correlation => (differs(X) && differs(Y)).then(|| products / (squares[Y] * squares[X]).sqrt()),
            Of::Covariance { is_sample: false } => Some(products / count),
            Of::Covariance { is_sample: true } => (count > 1.0).then(|| products / (count - 1.0)),
            Of::Average(side) => Some(sum[side] / count),
            Of::Squares(side) => Some(squares[side]),
            Of::Products => Some(products),
            Of::Slope => differs(X).then(|| products / squares[X]),
            Of::Intercept => differs(X).then(|| (sum[Y] - sum[X] * products / squares[X]) / count),
            Of::Determination if differs(X) && !differs(Y) => Some(1.0),
            Of::Determination => differs(X).then(|| products * products / (squares[X] * squares[Y])),
        }
    }

    fn parts(&self) -> [f64; Self::PARTS] {
        let ([a, b], [a_squares, b_squares]) = (self.sum, self.squares);
        [self.count, a, b, a_squares, b_squares, self.products]
    }

    fn of([count, a, b, a_squares, b_squares, products]: [f64; Self::PARTS]) -> Self {
        Self { count, sum: [a, b], squares: [a_squares, b_squares], products }
    }
}

pub(super) fn overflow() -> DataFusionError {
    let error = SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow");
    DataFusionError::External(Box::new(error))
}

#[derive(Debug)]
struct All {
    of: Of,
    sums: Sums,
}

impl Accumulator for All {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        pairs(values).try_for_each(|(a, b)| self.sums.add([a, b]))
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.sums.result(self.of)))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(self.sums.parts().into_iter().map(ScalarValue::from).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let parts: Vec<&Float64Array> = states.iter().map(AsArray::as_primitive::<Float64Type>).collect();
        let of_row = |row: usize| Sums::of(std::array::from_fn(|part| parts[part].value(row)));
        (0..states[0].len()).try_for_each(|row| self.sums.merge(&of_row(row)))
    }
}

/// For sliding frames: subtracting a number would leave rounding errors, so the sums are computed anew.
#[derive(Debug)]
struct Sliding {
    of: Of,
    pairs: VecDeque<(f64, f64)>,
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.pairs.extend(pairs(values));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let leaving = pairs(values).count();
        self.pairs.drain(..leaving);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut sums = Sums::default();
        self.pairs.iter().try_for_each(|(a, b)| sums.add([*a, *b]))?;
        Ok(ScalarValue::Float64(sums.result(self.of)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.pairs.capacity() * size_of::<(f64, f64)>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }
}
