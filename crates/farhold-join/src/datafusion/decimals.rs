//! Sums, differences and products of decimals with small values.
//!
//! A decimal has 128 bits, and Arrow checks each result of its arithmetic for an overflow, row by row. Numbers that fit 64 bits, as prices and quantities do,
//! have results that cannot overflow: one multiplication of the processor instead of three and their carries. Whether all numbers of a batch fit is found
//! during the calculation. Once a number did not fit, Arrow calculates as it would without this module.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, Decimal128Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use super::JoinConfig;
use super::held::with_promises_of;

/// Replaces arithmetic on decimals in projections and aggregates. It belongs behind all rules that look for a
/// `BinaryExpr`; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct DecimalsRule;

impl PhysicalOptimizerRule for DecimalsRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if options.extensions.get::<JoinConfig>().is_some_and(|config| !config.enabled || !config.decimals) {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
                let new = in_projection(projection)?;
                return Ok(match new {
                    Some(new) => Transformed::yes(with_promises_of(&node, new)),
                    None => Transformed::no(node),
                });
            }
            match node.downcast_ref::<AggregateExec>().map(in_aggregate).transpose()?.flatten() {
                Some(new) => Ok(Transformed::yes(new)),
                None => Ok(Transformed::no(node)),
            }
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_decimals"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn in_projection(projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = projection.input().schema();
    let mut is_new = false;
    let mut expressions = Vec::with_capacity(projection.expr().len());
    for item in projection.expr() {
        let expression = narrowed(&item.expr, &schema)?;
        is_new |= expression.transformed;
        expressions.push(ProjectionExpr { expr: expression.data, alias: item.alias.clone() });
    }
    if !is_new {
        return Ok(None);
    }
    Ok(Some(Arc::new(ProjectionExec::try_new(expressions, Arc::clone(projection.input()))?)))
}

fn in_aggregate(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if aggregate.mode().input_mode() != AggregateInputMode::Raw {
        return Ok(None);
    }
    let schema = aggregate.input().schema();
    let mut is_new = false;
    let mut functions = Vec::with_capacity(aggregate.aggr_expr().len());
    for function in aggregate.aggr_expr() {
        let all = function.all_expressions();
        let mut is_function_new = false;
        let mut arguments = Vec::with_capacity(all.args.len());
        for argument in &all.args {
            let argument = narrowed(argument, &schema)?;
            is_function_new |= argument.transformed;
            arguments.push(argument.data);
        }
        let new = if is_function_new { function.with_new_expressions(arguments, all.order_by_exprs) } else { None };
        is_new |= new.is_some();
        functions.push(new.map_or_else(|| Arc::clone(function), Arc::new));
    }
    if !is_new {
        return Ok(None);
    }
    Ok(Some(Arc::new(aggregate.with_new_aggr_exprs(functions))))
}

fn narrowed(expression: &PhysicalExprRef, schema: &Schema) -> Result<Transformed<PhysicalExprRef>> {
    Arc::clone(expression).transform_up(|expression| {
        Ok(match Narrow::of(&expression, schema) {
            Some(narrow) => Transformed::yes(Arc::new(narrow)),
            None => Transformed::no(expression),
        })
    })
}

/// A [`BinaryExpr`] of decimals.
#[derive(Debug)]
struct Narrow {
    binary: PhysicalExprRef,
    /// Type of the result.
    kind: DataType,
    /// Whether a number did not fit 64 bits.
    is_wide: AtomicBool,
}

impl Narrow {
    /// `None` if it is something else, or if the numbers of a column would first have to be converted to another scale.
    fn of(expression: &PhysicalExprRef, schema: &Schema) -> Option<Self> {
        let binary = expression.downcast_ref::<BinaryExpr>()?;
        let kind = |side: &PhysicalExprRef| side.data_type(schema).ok();
        let (left, right, result) = (kind(binary.left())?, kind(binary.right())?, kind(expression)?);
        let (DataType::Decimal128(_, left), DataType::Decimal128(_, right), DataType::Decimal128(_, scale)) =
            (left, right, &result)
        else {
            return None;
        };
        let fits = match binary.op() {
            Operator::Multiply => left.checked_add(right) == Some(*scale),
            Operator::Plus | Operator::Minus => {
                let is_as_fine =
                    |side: &PhysicalExprRef, its: i8| its == *scale || (its < *scale && side.is::<Literal>());
                is_as_fine(binary.left(), left) && is_as_fine(binary.right(), right)
            }
            _ => false,
        };
        fits.then(|| Self { binary: Arc::clone(expression), kind: result, is_wide: AtomicBool::new(false) })
    }

    fn binary(&self) -> &BinaryExpr {
        self.binary.downcast_ref().expect("made of one")
    }
}

/// One side of the operator.
enum Side<'a> {
    Numbers(&'a Decimal128Array),
    Number(i128),
}

impl<'a> Side<'a> {
    /// `None` for a null, and for a value that is no decimal.
    fn of(value: &'a ColumnarValue) -> Option<Self> {
        match value {
            ColumnarValue::Array(array) => Some(Self::Numbers(array.as_any().downcast_ref()?)),
            ColumnarValue::Scalar(ScalarValue::Decimal128(Some(number), ..)) => Some(Self::Number(*number)),
            ColumnarValue::Scalar(_) => None,
        }
    }
}

/// A constant with the scale of the other side; `None` where it does not fit in that scale.
fn with_scale(value: ColumnarValue, kind: &DataType) -> Option<ColumnarValue> {
    match (value, kind) {
        (
            ColumnarValue::Scalar(ScalarValue::Decimal128(Some(number), precision, its)),
            DataType::Decimal128(_, scale),
        ) => {
            let factor = 10_i128.checked_pow(u32::try_from(scale.checked_sub(its)?).ok()?)?;
            let number = number.checked_mul(factor)?;
            Some(ColumnarValue::Scalar(ScalarValue::Decimal128(Some(number), precision, *scale)))
        }
        (value, _) => Some(value),
    }
}

/// The result, if all numbers fit 64 bits and at least one side is an array. Constants in sums must have the result's
/// scale.
fn calculate(
    operator: Operator,
    left: &ColumnarValue,
    right: &ColumnarValue,
    kind: &DataType,
) -> Option<Decimal128Array> {
    let (left, right) = (Side::of(left)?, Side::of(right)?);
    let (numbers, nulls) = match operator {
        Operator::Multiply => each(&left, &right, |left, right| i128::from(left) * i128::from(right)),
        Operator::Plus => each(&left, &right, |left, right| i128::from(left) + i128::from(right)),
        Operator::Minus => each(&left, &right, |left, right| i128::from(left) - i128::from(right)),
        _ => None,
    }?;
    Some(Decimal128Array::new(numbers.into(), nulls).with_data_type(kind.clone()))
}

fn each(left: &Side, right: &Side, result: impl Fn(i64, i64) -> i128) -> Option<(Vec<i128>, Option<NullBuffer>)> {
    let mut excess = 0;
    let mut both = |left: i128, right: i128| {
        excess |= excess_of(left) | excess_of(right);
        result(left as i64, right as i64)
    };
    let (numbers, nulls) = match (left, right) {
        (Side::Numbers(left), Side::Numbers(right)) if left.len() == right.len() => {
            let pairs = left.values().iter().zip(right.values());
            (pairs.map(|(&left, &right)| both(left, right)).collect(), NullBuffer::union(left.nulls(), right.nulls()))
        }
        (Side::Numbers(left), &Side::Number(right)) => {
            (left.values().iter().map(|&left| both(left, right)).collect(), left.nulls().cloned())
        }
        (&Side::Number(left), Side::Numbers(right)) => {
            (right.values().iter().map(|&right| both(left, right)).collect(), right.nulls().cloned())
        }
        _ => return None,
    };
    (excess == 0).then_some((numbers, nulls))
}

/// Zero for a number that fits 64 bits: its upper half repeats the sign of the lower.
#[inline(always)]
fn excess_of(number: i128) -> i64 {
    (number >> 64) as i64 ^ (number as i64 >> 63)
}

impl PhysicalExpr for Narrow {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if !self.is_wide.load(Ordering::Relaxed) {
            let binary = self.binary();
            let (left, right) = (binary.left().evaluate(batch)?, binary.right().evaluate(batch)?);
            let (left, right) = match binary.op() {
                Operator::Multiply => (Some(left), Some(right)),
                _ => (with_scale(left, &self.kind), with_scale(right, &self.kind)),
            };
            if let (Some(left), Some(right)) = (left, right)
                && let Some(result) = calculate(*binary.op(), &left, &right, &self.kind)
            {
                return Ok(ColumnarValue::Array(Arc::new(result)));
            }
            self.is_wide.store(true, Ordering::Relaxed);
        }
        self.binary.evaluate(batch)
    }

    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.binary.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.binary.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.binary.return_field(schema)
    }

    fn children(&self) -> Vec<&PhysicalExprRef> {
        self.binary.children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<PhysicalExprRef>) -> Result<PhysicalExprRef> {
        let binary = Arc::clone(&self.binary).with_new_children(children)?;
        Ok(Arc::new(Self { binary, kind: self.kind.clone(), is_wide: AtomicBool::new(false) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.binary.fmt_sql(f)
    }
}

impl fmt::Display for Narrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.binary.fmt(f)
    }
}

impl PartialEq for Narrow {
    fn eq(&self, other: &Self) -> bool {
        self.binary.eq(&other.binary)
    }
}

impl Eq for Narrow {}

impl Hash for Narrow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.binary.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Decimal128Type;
    use datafusion::physical_expr::expressions::{col, lit};

    const SMALL: [Option<i128>; 8] =
        [Some(0), Some(-1), None, Some(i64::MAX as i128), Some(i64::MIN as i128), Some(10_494_950), Some(-7), None];

    fn decimals(numbers: impl IntoIterator<Item = Option<i128>>, scale: i8) -> ArrayRef {
        let array: Decimal128Array = numbers.into_iter().collect();
        Arc::new(array.with_precision_and_scale(38, scale).unwrap())
    }

    fn batch(left: ArrayRef, right: ArrayRef) -> RecordBatch {
        let number: ArrayRef = Arc::new(Int64Array::from_iter_values(0..left.len() as i64));
        RecordBatch::try_from_iter_with_nullable([("l", left, true), ("r", right, true), ("n", number, true)]).unwrap()
    }

    fn pairs(numbers: &[Option<i128>], scales: (i8, i8)) -> RecordBatch {
        let each = |number: &Option<i128>| std::iter::repeat_n(*number, numbers.len());
        let left: Vec<_> = numbers.iter().flat_map(each).collect();
        let right: Vec<_> = numbers.iter().cycle().take(left.len()).copied().collect();
        batch(decimals(left, scales.0), decimals(right, scales.1))
    }

    /// The expression as it is, and as a narrow one if possible.
    fn both(
        left: PhysicalExprRef,
        operator: Operator,
        right: PhysicalExprRef,
        schema: &Schema,
    ) -> (PhysicalExprRef, Option<Narrow>) {
        let binary: PhysicalExprRef = Arc::new(BinaryExpr::new(left, operator, right));
        let narrow = Narrow::of(&binary, schema);
        (binary, narrow)
    }

    #[test]
    fn results_are_arrows() {
        let columns = |schema: &Schema| ["l", "r"].map(|name| col(name, schema).unwrap());
        for operator in [Operator::Multiply, Operator::Plus, Operator::Minus] {
            for is_wide in [false, true] {
                let mut numbers = SMALL.to_vec();
                numbers.extend(is_wide.then_some(Some(1_i128 << 63)));
                let batch = pairs(&numbers, (2, 2));
                let schema = batch.schema();
                let [left, right] = columns(&schema);
                let constant = lit(ScalarValue::Decimal128(Some(-105), 38, 2));
                // As `1 - discount` is planned.
                let whole = lit(ScalarValue::Decimal128(Some(1), 20, 0));
                for (left, right) in [
                    (left.clone(), right),
                    (left.clone(), constant.clone()),
                    (constant, left.clone()),
                    (left.clone(), whole.clone()),
                    (whole, left),
                ] {
                    let (binary, narrow) = both(left, operator, right, &schema);
                    let narrow = narrow.unwrap();
                    for _ in 0..2 {
                        let rows = batch.num_rows();
                        let theirs = binary.evaluate(&batch).unwrap().into_array(rows).unwrap();
                        let ours = narrow.evaluate(&batch).unwrap().into_array(rows).unwrap();
                        assert_eq!(ours.as_ref(), theirs.as_ref(), "{binary}");
                        assert_eq!(ours.data_type(), theirs.data_type(), "{binary}");
                    }
                    assert_eq!(narrow.is_wide.into_inner(), is_wide, "{binary}");
                }
            }
        }
    }

    #[test]
    fn an_overflow_stays_an_error() {
        let batch = pairs(&[Some(i128::from(i64::MAX) << 50)], (0, 0));
        let schema = batch.schema();
        let [left, right] = ["l", "r"].map(|name| col(name, &schema).unwrap());
        let (binary, narrow) = both(left, Operator::Multiply, right, &schema);
        assert!(binary.evaluate(&batch).is_err());
        assert!(narrow.unwrap().evaluate(&batch).is_err());
    }

    #[test]
    fn other_arithmetic_stays_as_it_is() {
        let batch = pairs(&SMALL, (2, 3));
        let schema = batch.schema();
        let [left, right, number] = ["l", "r", "n"].map(|name| col(name, &schema).unwrap());
        assert!(both(left.clone(), Operator::Plus, right.clone(), &schema).1.is_none(), "scales differ");
        assert!(both(left.clone(), Operator::Divide, right.clone(), &schema).1.is_none());
        assert!(both(number.clone(), Operator::Multiply, number, &schema).1.is_none());
        let product = both(left, Operator::Multiply, right, &schema).1.unwrap();
        let rows = product.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
        assert_eq!(rows.as_primitive::<Decimal128Type>().scale(), 5);
    }
}
