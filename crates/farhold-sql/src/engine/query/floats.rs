//! Equality and order of floating-point numbers and intervals in planned queries.
//!
//! In PostgreSQL, 0.0 equals -0.0, every NaN equals every other, and NaN is above all numbers. Arrow compares, hashes and sorts floats by
//! their bits. So whatever is compared, grouped, joined or sorted by goes through `float_key(x)` first, which is one number for all that are
//! equal. It is put in twice: before the optimiser, whose own reasoning (constants, pushed-down conditions) must see it, and after it, for
//! the joins and groups that the optimiser makes of subqueries, set operations and DISTINCT. What a scan decides by itself
//! ([`RowFilter`](farhold_scan::rows::RowFilter)) and indexes know the order of PostgreSQL.
//!
//! An interval is compared as so many microseconds, where a month has 30 days and a day 24 hours; Arrow compares months, days and nanoseconds one
//! after the other. Its key has fewer than 30 days and fewer than 24 hours. Groups show the first of their equal intervals, not the key.

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

/// Puts `float_key` where floats are compared; see the module.
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

/// What is inside `float_key(…)`, or the expression itself.
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

/// One operator.
fn with_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    // A literal or a reference to an outer query is a float without any column of that type.
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
            // As what is sorted by, which DataFusion looks up among them.
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

/// The groups by intervals, with their places.
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

/// How often groups have been shown by these aggregates before: the optimiser makes two aggregates of one of distinct values, and groups by the values.
fn pass(functions: &[Expr]) -> usize {
    let is_taken = |pass: &usize| {
        let prefix = shown_name(*pass, 0);
        let prefix = prefix.trim_end_matches('0');
        functions.iter().any(|function| matches!(function, Expr::Alias(alias) if alias.name.starts_with(prefix)))
    };
    let pass = (0..functions.len()).find(|pass| !is_taken(pass));
    pass.unwrap_or(functions.len())
}

/// An aggregate whose groups by intervals show a value of theirs. `schema` is what it is to have. Where `is_set`, a row
/// may be of more than one group, and then shows none.
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

/// What is sorted by. A key that was there before decides nothing, and DataFusion (55) panics at one.
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

/// Every comparison inside an expression.
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
                // The extreme of distinct values is that of all, and shown as it is.
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

/// What takes the place of `min` and `max` of a float or an interval.
fn extreme(name: &str, arguments: &[Expr], schema: &DFSchema) -> Option<Arc<AggregateUDF>> {
    let extreme = match name {
        "min" => &LEAST,
        "max" => &GREATEST,
        _ => return None,
    };
    let is_keyed = arguments.first()?.get_type(schema).is_ok_and(|data_type| has_key(&data_type));
    is_keyed.then(|| Arc::clone(extreme))
}

/// Refuses aggregates of distinct intervals that show them: what goes into an aggregate of distinct values are keys, and 36 hours are not shown as
/// a day and 12 hours.
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

/// `float_key(expr)` if it is a float or an interval that is not known to be its own key.
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

/// The values that stand for those of an array; of a type whose equal values are alike they are themselves.
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
    // The sum of the two zeros is the positive one.
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
    // Only beyond 178 million years it does not fit.
    let months = days.div_euclid(30).clamp(i32::MIN.into(), i32::MAX.into());
    IntervalMonthDayNano::new(months as i32, days.rem_euclid(30) as i32, nanoseconds as i64)
}

/// The value that stands for all that are equal to one.
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

    /// With a cast in it, of which names say nothing otherwise: keys of a join that differ by that alone would have one name.
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
