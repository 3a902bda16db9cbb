//! Variances and standard deviations, computed as in PostgreSQL.
//!
//! DataFusion 55 returns 0 for a single NaN or infinity, and infinity if a sum of squares overflows (22003 here). Here,
//! as in PostgreSQL, the sum of squared distances is updated by the distance of each number from the current mean
//! (Youngs and Cramer, 1971).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

use super::correlation::overflow;

/// Replaces DataFusion's functions, under all of its names and PostgreSQL's.
pub(super) fn register(context: &SessionContext) {
    let all: [(&'static str, Of, &[&str]); 4] = [
        ("var", Of { is_sample: true, is_root: false }, &["var_samp", "var_sample", "variance"]),
        ("var_pop", Of { is_sample: false, is_root: false }, &["var_population"]),
        ("stddev", Of { is_sample: true, is_root: true }, &["stddev_samp"]),
        ("stddev_pop", Of { is_sample: false, is_root: true }, &[]),
    ];
    for (name, of, aliases) in all {
        let signature = Signature::exact(vec![DataType::Float64], Volatility::Immutable);
        let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
        context.register_udaf(AggregateUDF::from(Variance { name, of, aliases, signature }));
    }
}

/// The statistic that is computed from the squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Of {
    is_sample: bool,
    is_root: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Variance {
    name: &'static str,
    of: Of,
    aliases: Vec<String>,
    signature: Signature,
}

impl AggregateUDFImpl for Variance {
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
        if arguments.is_distinct {
            let item = Field::new_list_field(DataType::Float64, true);
            let name = format!("{}[values]", arguments.name);
            return Ok(vec![Arc::new(Field::new_list(name, item, false))]);
        }
        let field = |part: usize| Arc::new(Field::new(format!("{}[{part}]", arguments.name), DataType::Float64, false));
        Ok((0..Squares::PARTS).map(field).collect())
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(if arguments.is_distinct {
            Box::new(Different { of: self.of, bits: BTreeSet::new() })
        } else {
            Box::new(All { of: self.of, squares: Squares::default() })
        })
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if arguments.is_distinct {
            return self.accumulator(arguments);
        }
        Ok(Box::new(Sliding { of: self.of, values: VecDeque::new() }))
    }
}

fn numbers(values: &[ArrayRef]) -> impl Iterator<Item = f64> {
    values[0].as_primitive::<Float64Type>().iter().flatten()
}

/// The count and sum of numbers, and the sum of the squared distances from their mean (`apart`).
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    count: f64,
    sum: f64,
    apart: f64,
}

impl Squares {
    const PARTS: usize = 3;

    fn of(mut values: impl Iterator<Item = f64>) -> Result<Self> {
        values.try_fold(Self::default(), Self::with)
    }

    fn with(self, value: f64) -> Result<Self> {
        let (count, sum) = (self.count + 1.0, self.sum + value);
        if self.count == 0.0 {
            let apart = if value.is_finite() { 0.0 } else { f64::NAN };
            return Ok(Self { count, sum, apart });
        }
        let distance = value * count - sum;
        let apart = self.apart + distance * distance / (count * self.count);
        let is_infinite = sum.is_infinite() || apart.is_infinite();
        if is_infinite && !self.sum.is_infinite() && !value.is_infinite() {
            return Err(overflow());
        }
        Ok(Self { count, sum, apart: if is_infinite { f64::NAN } else { apart } })
    }

    fn merged(self, other: Self) -> Result<Self> {
        if self.count == 0.0 || other.count == 0.0 {
            return Ok(if self.count == 0.0 { other } else { self });
        }
        let (count, sum) = (self.count + other.count, self.sum + other.sum);
        let means = self.sum / self.count - other.sum / other.count;
        let apart = self.apart + other.apart + self.count * other.count * means * means / count;
        let were_finite = |one: f64, other: f64| !one.is_infinite() && !other.is_infinite();
        let is_over = sum.is_infinite() && were_finite(self.sum, other.sum)
            || apart.is_infinite() && were_finite(self.apart, other.apart);
        if is_over { Err(overflow()) } else { Ok(Self { count, sum, apart }) }
    }

    fn result(&self, of: Of) -> ScalarValue {
        let count = if of.is_sample { self.count - 1.0 } else { self.count };
        let variance = (count > 0.0).then(|| self.apart / count);
        ScalarValue::Float64(if of.is_root { variance.map(f64::sqrt) } else { variance })
    }
}

#[derive(Debug)]
struct All {
    of: Of,
    squares: Squares,
}

impl Accumulator for All {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.squares = numbers(values).try_fold(self.squares, Squares::with)?;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.squares.result(self.of))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let Squares { count, sum, apart } = self.squares;
        Ok([count, sum, apart].into_iter().map(ScalarValue::from).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let parts: Vec<&Float64Array> = states.iter().map(AsArray::as_primitive::<Float64Type>).collect();
        let of_row = |row: usize| {
            let [count, sum, apart] = std::array::from_fn(|part| parts[part].value(row));
            Squares { count, sum, apart }
        };
        self.squares = (0..states[0].len()).map(of_row).try_fold(self.squares, Squares::merged)?;
        Ok(())
    }
}

/// For DISTINCT numbers, compared by their bits: `float_key` has been applied to them.
#[derive(Debug)]
struct Different {
    of: Of,
    bits: BTreeSet<u64>,
}

impl Accumulator for Different {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.bits.extend(numbers(values).map(f64::to_bits));
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(Squares::of(self.bits.iter().copied().map(f64::from_bits))?.result(self.of))
    }

    fn size(&self) -> usize {
        // The nodes of a B-tree set are at least half full.
        size_of_val(self) + 2 * size_of::<u64>() * self.bits.len()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values: Vec<ScalarValue> = self.bits.iter().map(|bits| ScalarValue::from(f64::from_bits(*bits))).collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &DataType::Float64))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }
}

/// For sliding frames: subtracting a number would leave rounding errors, so the sums are computed anew.
#[derive(Debug)]
struct Sliding {
    of: Of,
    values: VecDeque<f64>,
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.extend(numbers(values));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let leaving = numbers(values).count();
        self.values.drain(..leaving);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(Squares::of(self.values.iter().copied())?.result(self.of))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<f64>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }
}
