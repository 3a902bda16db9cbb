//! Equality and order of floating-point numbers and intervals in planned queries.
//!
//! In PostgreSQL, 0.0 equals -0.0, every NaN equals every other, and NaN is above all numbers. Arrow compares, hashes
//! and sorts floats by their bits. So each float that is compared, grouped, joined or sorted is first mapped by
//! `float_key(x)`, which returns the same number for all equal ones. The function is added twice: before the optimiser,
//! whose rules (constants, pushed-down conditions) must see it, and after it, for the joins and groups that the
//! optimiser makes of subqueries, set operations and DISTINCT. Conditions inside a scan
//! ([`RowFilter`](farhold_scan::rows::RowFilter)) and indexes already use PostgreSQL's order.
//!
//! Intervals are compared by their length in microseconds, with 30 days per month and 24 hours per day. Arrow compares
//! months, then days, then nanoseconds. An interval's key has fewer than 30 days and fewer than 24 hours. A group shows
//! the first of its equal intervals, not the key.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Field, FieldRef, Float32Type, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::expr_fn::first_value;
use datafusion::logical_expr::expr::{
    AggregateFunctionParams, Case, GroupingSet, InList, ScalarFunction, Sort, WindowFunctionParams,
    schema_name_from_exprs,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::utils::{grouping_set_to_exprlist, merge_schema};
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, ColumnarValue, Distinct, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator,
    ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, WindowFunctionDefinition,
    when,
};
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

use super::aggregates::{GREATEST, LEAST};
use super::bounds::with_bounds;
use super::choices;
use crate::SqlError;

/// Adds `float_key` where floats are compared; see the module.
#[derive(Debug)]
pub(super) struct FloatKeys;

impl AnalyzerRule for FloatKeys {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(with_keys).data()
    }

    fn name(&self) -> &'static str {
        "float_keys"
    }
}

impl OptimizerRule for FloatKeys {
    fn name(&self) -> &'static str {
        "float_keys"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(with_keys)
    }
}

/// The argument of `float_key(…)`, or the expression itself.
pub(in crate::engine) fn without_key(expr: &Expr) -> &Expr {
    match expr {
        Expr::ScalarFunction(function) if is_key(function) => &function.args[0],
        other => other,
    }
}

fn is_key(function: &ScalarFunction) -> bool {
    function.func.inner().downcast_ref::<FloatKey>().is_some()
}

type Change<'a> = dyn Fn(Expr) -> Result<Transformed<Expr>> + 'a;

/// Adds keys to the expressions of one operator.
fn with_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    // Other operators may compare floats without a column of that type: literals, or references to an outer query.
    if matches!(plan, LogicalPlan::TableScan(_)) {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    let compared = |expr: Expr| -> Result<Transformed<Expr>> { in_expression(expr, &schema) };
    let by_key =
        |expr: Expr| -> Result<Transformed<Expr>> { compared(expr)?.transform_data(|expr| key(expr, &schema)) };
    let named = |expr: Expr, change: &Change| -> Result<Transformed<Expr>> {
        let name = names.save(&expr);
        Ok(change(expr)?.update_data(|expr| name.restore(expr)))
    };
    let each = |exprs: Vec<Expr>, change: &Change| -> Result<Transformed<Vec<Expr>>> {
        all(exprs, |expr| named(expr, change))
    };
    match plan {
        LogicalPlan::Aggregate(aggregate) => {
            let group = |expr: Expr| -> Result<Transformed<Expr>> {
                match expr {
                    Expr::GroupingSet(set) => {
                        let sets = match set {
                            GroupingSet::Rollup(by) => each(by, &by_key)?.update_data(GroupingSet::Rollup),
                            GroupingSet::Cube(by) => each(by, &by_key)?.update_data(GroupingSet::Cube),
                            GroupingSet::GroupingSets(sets) => {
                                all(sets, |by| each(by, &by_key))?.update_data(GroupingSet::GroupingSets)
                            }
                        };
                        Ok(sets.update_data(Expr::GroupingSet))
                    }
                    expr => named(expr, &by_key),
                }
            };
            let is_set = matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]);
            let shown = intervals(grouping_set_to_exprlist(&aggregate.group_expr)?, &schema);
            let groups = all(aggregate.group_expr, group)?;
            let mut functions = each(aggregate.aggr_expr, &compared)?;
            if !shown.is_empty() {
                let pass = pass(&functions.data);
                let first =
                    |(n, expr): &(usize, Expr)| first_value(expr.clone(), Vec::new()).alias(shown_name(pass, *n));
                functions.data.extend(shown.iter().map(first));
                let grouped = Aggregate::try_new(aggregate.input, groups.data, functions.data)?;
                return Ok(Transformed::yes(with_shown(grouped, &shown, (pass, is_set), &aggregate.schema)?));
            }
            let is_changed = groups.transformed || functions.transformed;
            let aggregate = if is_changed {
                Aggregate::try_new(aggregate.input, groups.data, functions.data)?
            } else {
                Aggregate::try_new_with_schema(aggregate.input, groups.data, functions.data, aggregate.schema)?
            };
            Ok(Transformed::new_transformed(LogicalPlan::Aggregate(aggregate), is_changed))
        }
        LogicalPlan::Sort(mut sort) => {
            let by = sort_keys(sort.expr, &by_key, &schema)?;
            sort.expr = by.data;
            Ok(Transformed::new_transformed(LogicalPlan::Sort(sort), by.transformed))
        }
        LogicalPlan::Distinct(Distinct::On(mut distinct)) => {
            // Treated like sort keys, since DataFusion looks them up among these.
            let on = all(distinct.on_expr, |expr| by_key(expr)?.transform_data(|expr| with_bounds(expr, &schema)))?;
            let select = each(distinct.select_expr, &compared)?;
            let sort = distinct.sort_expr.map(|sort| sort_keys(sort, &by_key, &schema)).transpose()?;
            let is_changed = on.transformed || select.transformed || sort.as_ref().is_some_and(|sort| sort.transformed);
            distinct.on_expr = on.data;
            distinct.select_expr = select.data;
            distinct.sort_expr = sort.map(|sort| sort.data);
            Ok(Transformed::new_transformed(LogicalPlan::Distinct(Distinct::On(distinct)), is_changed))
        }
        LogicalPlan::Join(mut join) => {
            let on = all(join.on, |(left, right)| {
                let (left, right) = (by_key(left)?, by_key(right)?);
                let is_changed = left.transformed || right.transformed;
                Ok(Transformed::new_transformed((left.data, right.data), is_changed))
            })?;
            let filter = join.filter.map(compared).transpose()?;
            let is_changed = on.transformed || filter.as_ref().is_some_and(|filter| filter.transformed);
            join.on = on.data;
            join.filter = filter.map(|filter| filter.data);
            Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_changed))
        }
        other => {
            let changed = other.map_expressions(|expr| named(expr, &compared))?;
            if changed.transformed { changed.map_data(LogicalPlan::recompute_schema) } else { Ok(changed) }
        }
    }
}

/// The grouping keys that are intervals, with their positions.
fn intervals(groups: Vec<&Expr>, schema: &DFSchema) -> Vec<(usize, Expr)> {
    let plain = |expr: &Expr| expr.clone().unalias();
    let is_interval = |expr: &Expr| matches!(expr.get_type(schema), Ok(DataType::Interval(_)));
    let is_keyed = |expr: &Expr| matches!(expr, Expr::ScalarFunction(function) if is_key(function));
    let groups = groups.into_iter().map(plain).enumerate();
    groups.filter(|(_, expr)| is_interval(expr) && !is_keyed(expr)).collect()
}

fn shown_name(pass: usize, group: usize) -> String {
    format!("__shown_{pass}_{group}")
}

/// The number of times that this function has already handled the aggregate: the optimiser splits an aggregate of
/// distinct values into two, and groups by these values.
fn pass(functions: &[Expr]) -> usize {
    let is_taken = |pass: &usize| {
        let prefix = shown_name(*pass, 0);
        let prefix = prefix.trim_end_matches('0');
        functions.iter().any(|function| matches!(function, Expr::Alias(alias) if alias.name.starts_with(prefix)))
    };
    let pass = (0..functions.len()).find(|pass| !is_taken(pass));
    pass.unwrap_or(functions.len())
}

/// An aggregate that shows a value of each group by intervals instead of its key. `schema` is the original schema. With
/// grouping sets (`is_set`), a row may not be grouped by a key, and then shows none.
fn with_shown(
    grouped: Aggregate,
    shown: &[(usize, Expr)],
    (pass, is_set): (usize, bool),
    schema: &DFSchema,
) -> Result<LogicalPlan> {
    let column = |(n, (qualifier, field)): (usize, (Option<&TableReference>, &FieldRef))| {
        if !shown.iter().any(|(group, _)| *group == n) {
            return Ok(Expr::Column(Column::from((qualifier, field))));
        }
        let mut value = Expr::Column(Column::new_unqualified(shown_name(pass, n)));
        if is_set {
            let key = Expr::Column(Column::from(grouped.schema.qualified_field(n)));
            value = when(key.is_not_null(), value).end()?;
        }
        Ok(value.alias_qualified(qualifier.cloned(), field.name()))
    };
    let columns = schema.iter().enumerate().map(column).collect::<Result<Vec<Expr>>>()?;
    LogicalPlanBuilder::from(LogicalPlan::Aggregate(grouped)).project(columns)?.build()
}

fn all<T>(items: Vec<T>, change: impl Fn(T) -> Result<Transformed<T>>) -> Result<Transformed<Vec<T>>> {
    let mut is_changed = false;
    let changed = items.into_iter().map(|item| {
        let item = change(item)?;
        is_changed |= item.transformed;
        Ok(item.data)
    });
    let changed = changed.collect::<Result<Vec<T>>>()?;
    Ok(Transformed::new_transformed(changed, is_changed))
}

fn sort_by(by: Sort, change: &Change) -> Result<Transformed<Sort>> {
    let Sort { expr, asc, nulls_first } = by;
    Ok(change(expr)?.update_data(|expr| Sort { expr, asc, nulls_first }))
}

/// The sort keys, without repeated ones: they have no effect, and DataFusion (55) panics on them.
fn sort_keys(by: Vec<Sort>, change: &Change, schema: &DFSchema) -> Result<Transformed<Vec<Sort>>> {
    let change = |expr: Expr| change(expr)?.transform_data(|expr| with_bounds(expr, schema));
    let by = all(by, |by| sort_by(by, &change))?;
    let count = by.data.len();
    let mut keys: Vec<Sort> = Vec::with_capacity(count);
    for key in by.data {
        if keys.iter().all(|before| before.expr != key.expr) {
            keys.push(key);
        }
    }
    let is_changed = by.transformed || keys.len() < count;
    Ok(Transformed::new_transformed(keys, is_changed))
}

/// Adds keys to every comparison inside an expression.
fn in_expression(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let by_key = |expr: Expr| key(expr, schema);
    let boxed = |expr: Box<Expr>| -> Result<Transformed<Box<Expr>>> { Ok(key(*expr, schema)?.update_data(Box::new)) };
    let pair = |left: Box<Expr>, right: Box<Expr>| -> Result<(bool, Box<Expr>, Box<Expr>)> {
        let (left, right) = (boxed(left)?, boxed(right)?);
        Ok((left.transformed || right.transformed, left.data, right.data))
    };
    expr.transform_up(|expr| match expr {
        Expr::BinaryExpr(mut binary) if compares(binary.op) => {
            let (is_changed, left, right) = pair(binary.left, binary.right)?;
            (binary.left, binary.right) = (left, right);
            Ok(Transformed::new_transformed(Expr::BinaryExpr(binary), is_changed))
        }
        Expr::Between(mut between) => {
            let value = boxed(between.expr)?;
            let (is_changed, low, high) = pair(between.low, between.high)?;
            (between.expr, between.low, between.high) = (value.data, low, high);
            Ok(Transformed::new_transformed(Expr::Between(between), is_changed || value.transformed))
        }
        Expr::InList(InList { expr, list, negated }) => {
            let (expr, list) = (boxed(expr)?, all(list, by_key)?);
            let is_changed = expr.transformed || list.transformed;
            let list = Expr::InList(InList { expr: expr.data, list: list.data, negated });
            Ok(Transformed::new_transformed(list, is_changed))
        }
        Expr::Case(Case { expr: Some(base), when_then_expr, else_expr }) => {
            let base = boxed(base)?;
            let ways = all(when_then_expr, |(when, then)| Ok(boxed(when)?.update_data(|when| (when, then))))?;
            let is_changed = base.transformed || ways.transformed;
            let case = Case { expr: Some(base.data), when_then_expr: ways.data, else_expr };
            Ok(Transformed::new_transformed(Expr::Case(case), is_changed))
        }
        Expr::ScalarFunction(mut function) => {
            let choice = choices::in_place_of(&function, schema);
            let is_changed = choice.is_some();
            function.func = choice.unwrap_or(function.func);
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), is_changed))
        }
        Expr::AggregateFunction(mut function) => {
            let AggregateFunctionParams { args, distinct, order_by, .. } = &mut function.params;
            let mut is_changed = false;
            if let Some(extreme) = extreme(function.func.name(), args, schema) {
                function.func = extreme;
                // DISTINCT does not change an extreme value, and the value must be shown unchanged.
                *distinct = false;
                is_changed = true;
            }
            if *distinct {
                check_distinct(function.func.name(), args, schema)?;
                let keys = all(std::mem::take(args), by_key)?;
                is_changed |= keys.transformed;
                *args = keys.data;
            }
            let by = sort_keys(std::mem::take(order_by), &by_key, schema)?;
            *order_by = by.data;
            Ok(Transformed::new_transformed(Expr::AggregateFunction(function), is_changed || by.transformed))
        }
        Expr::WindowFunction(mut function) => {
            let WindowFunctionParams { args, partition_by, order_by, distinct, .. } = &mut function.params;
            let mut is_changed = false;
            if let Some(extreme) = extreme(function.fun.name(), args, schema) {
                function.fun = WindowFunctionDefinition::AggregateUDF(extreme);
                *distinct = false;
                is_changed = true;
            }
            if *distinct {
                check_distinct(function.fun.name(), args, schema)?;
                let keys = all(std::mem::take(args), by_key)?;
                is_changed |= keys.transformed;
                *args = keys.data;
            }
            let part = |expr: Expr| by_key(expr)?.transform_data(|expr| with_bounds(expr, schema));
            let parts = all(std::mem::take(partition_by), part)?;
            let by = sort_keys(std::mem::take(order_by), &by_key, schema)?;
            is_changed |= parts.transformed || by.transformed;
            (*partition_by, *order_by) = (parts.data, by.data);
            Ok(Transformed::new_transformed(Expr::WindowFunction(function), is_changed))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// The replacement of `min` and `max` of a float or an interval.
fn extreme(name: &str, arguments: &[Expr], schema: &DFSchema) -> Option<Arc<AggregateUDF>> {
    let extreme = match name {
        "min" => &LEAST,
        "max" => &GREATEST,
        _ => return None,
    };
    let is_keyed = arguments.first()?.get_type(schema).is_ok_and(|data_type| has_key(&data_type));
    is_keyed.then(|| Arc::clone(extreme))
}

/// Refuses aggregates of distinct intervals that show these intervals: the input of such an aggregate consists of keys,
/// and a key shows 36 hours as a day and 12 hours.
fn check_distinct(name: &str, arguments: &[Expr], schema: &DFSchema) -> Result<()> {
    let is_interval = |argument: &Expr| matches!(argument.get_type(schema), Ok(DataType::Interval(_)));
    if name == "count" || !arguments.iter().any(is_interval) {
        return Ok(());
    }
    let error = SqlError::unsupported(format!("{}(DISTINCT ...) of intervals", name.to_lowercase()));
    Err(DataFusionError::External(Box::new(error)))
}

fn compares(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// `float_key(expr)`, if the expression is a float or an interval and not known to be its own key.
fn key(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let expr = match expr {
        Expr::Alias(mut alias) => {
            let inner = key(*alias.expr, schema)?;
            alias.expr = Box::new(inner.data);
            return Ok(Transformed::new_transformed(Expr::Alias(alias), inner.transformed));
        }
        other => other,
    };
    let is_own_key = match &expr {
        Expr::ScalarFunction(function) => is_key(function),
        Expr::Literal(value, _) => match value {
            ScalarValue::Float32(Some(value)) => key_of_f32(*value).to_bits() == value.to_bits(),
            ScalarValue::Float64(Some(value)) => key_of_f64(*value).to_bits() == value.to_bits(),
            ScalarValue::IntervalMonthDayNano(Some(value)) => key_of_interval(*value) == *value,
            _ => true,
        },
        Expr::Cast(cast) => cast.expr.get_type(schema).is_ok_and(|kind| kind.is_integer()),
        _ => false,
    };
    if is_own_key || !expr.get_type(schema).is_ok_and(|data_type| has_key(&data_type)) {
        return Ok(Transformed::no(expr));
    }
    let function = ScalarFunction::new_udf(Arc::clone(&FLOAT_KEY), vec![expr]);
    Ok(Transformed::yes(Expr::ScalarFunction(function)))
}

pub(super) fn has_key(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64 | DataType::Interval(IntervalUnit::MonthDayNano))
}

static FLOAT_KEY: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(ScalarUDF::from(FloatKey::new())));

/// The keys of an array's values; the values themselves if their type needs no keys.
pub(super) fn keys(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float32 => Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(key_of_f32)),
        DataType::Float64 => Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(key_of_f64)),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let intervals = values.as_primitive::<IntervalMonthDayNanoType>();
            Arc::new(intervals.unary::<_, IntervalMonthDayNanoType>(key_of_interval))
        }
        _ => Arc::clone(values),
    }
}

fn key_of_f32(value: f32) -> f32 {
    // Adding 0.0 turns -0.0 into 0.0.
    if value.is_nan() { f32::NAN } else { value + 0.0 }
}

fn key_of_f64(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

pub(super) fn key_of_interval(value: IntervalMonthDayNano) -> IntervalMonthDayNano {
    const DAY: i128 = 86_400_000_000_000;
    let days = i128::from(value.months) * 30 + i128::from(value.days);
    let nanoseconds = days * DAY + i128::from(value.nanoseconds);
    let (days, nanoseconds) = (nanoseconds.div_euclid(DAY), nanoseconds.rem_euclid(DAY));
    // It does not fit only beyond 178 million years.
    let months = days.div_euclid(30).clamp(i32::MIN.into(), i32::MAX.into());
    IntervalMonthDayNano::new(months as i32, days.rem_euclid(30) as i32, nanoseconds as i64)
}

/// Maps all equal values to the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FloatKey {
    signature: Signature,
}

impl FloatKey {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for FloatKey {
    fn name(&self) -> &'static str {
        "float_key"
    }

    /// The name contains the cast, which names usually omit: join keys that differ only in casts would have the same
    /// name.
    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        let is_cast = |argument: &Expr| matches!(argument, Expr::Cast(_) | Expr::TryCast(_));
        match arguments {
            [argument] if is_cast(argument) => Ok(format!("{}({argument})", self.name())),
            arguments => Ok(format!("{}({})", self.name(), schema_name_from_exprs(arguments)?)),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let of = &arguments.arg_fields[0];
        Ok(Arc::new(Field::new(self.name(), of.data_type().clone(), of.is_nullable())))
    }

    fn evaluate_bounds(&self, arguments: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(&arguments[0].data_type())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match &arguments.args[0] {
            ColumnarValue::Array(values) => ColumnarValue::Array(keys(values)),
            ColumnarValue::Scalar(value) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&keys(&value.to_array()?), 0)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_equal_by_their_length() {
        let key = |months, days, hours: i64| {
            let key = key_of_interval(IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000));
            assert_eq!(key_of_interval(key), key);
            key
        };
        assert_eq!(key(1, 0, 0), key(0, 30, 0));
        assert_eq!(key(0, 1, 0), key(0, 0, 24));
        assert_eq!(key(-1, 29, 24), key(0, 0, 0));
        let negative = [key(0, -31, 0), key(-1, 0, 0), key(0, 0, -1)];
        let ordered = [&negative[..], &[key(0, 0, 0), key(0, 1, 1), key(0, 29, 0), key(1, -1, 25)]].concat();
        assert!(ordered.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
