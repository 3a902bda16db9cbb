//! PostgreSQL's types for the expressions of a plan, where DataFusion's own rules differ.
//!
//! | expression | DataFusion | here, as in PostgreSQL |
//! |---|---|---|
//! | a float beside a decimal, or a real beside another number | decimal, real | double precision |
//! | an untyped string literal beside a value of another type | the text of the value, or its bytes | the literal is converted to the value's type |
//! | CHAR(n) beside an untyped string literal or a VARCHAR(n) | trailing blanks count | they do not count |
//! | `+ - *` and negation that exceed their type | wrap, or infinity | 22003 |
//! | a quotient of decimals | four digits more than the dividend, truncated | sixteen digits, rounded |
//! | a product of decimals of more than 38 digits together | all fractional digits, few others | twenty fractional digits, rounded |
//! | windows by range over bytes and intervals | an error | frames by groups of peers |
//! | a difference of dates, one of which is infinite | days | 22008 |
//! | an interval beside an infinite date or timestamp | an error | the infinity |
//! | a date beside a timestamp | timestamps of nanoseconds | timestamps of microseconds |
//! | a difference of timestamps | a duration | an interval ([`intervals`](super::intervals)) |
//! | an interval times or divided by a number, or given as `26:00:00` | an error | an interval |
//! | casts between text and other types, and from fractions to integers | Arrow's formats; truncated | PostgreSQL's formats; rounded |
//! | CASE, VALUES and UNION of several types | their first type, for expressions over them | the common type |
//! | an untyped string literal in a VALUES list, a UNION or an array beside decimals | rounded to the scale of the others | with its own scale |
//! | `lag` and `lead` with a default of another type | the value's type | the common type |
//! | a UNION of CHAR(n), VARCHAR(n) and TEXT | the last one's length | TEXT, without trailing blanks if the first one is CHAR(n) |
//! | `CAST(x AS NUMERIC)`, `VARCHAR(n)`, `CHAR(n)` | ten digits; not cut | as many digits as x has; cut |
//! | LIKE with a pattern that ends with its escape | the escape is a character | 22025 |
//! | `~` and its variants | a point matches no line end; `~ '.*'` of NULL is false | calls of [`regexes`](super::regexes) |
//! | EXTRACT | an integer | numeric ([`parts`](super::parts)) |
//! | subscripts, comparisons, casts and `unnest` of arrays | DataFusion's | see [`arrays`] |
//! | values in `concat` and `concat_ws` | Arrow's formats | the formats that clients receive |
//! | an untyped string literal in `encode`, `get_byte`, `age` and `substr` | its bytes, or an error | converted to bytea, a timestamp, an integer |
//!
//! The rule runs before DataFusion's own coercion, on every expression of every plan node, and again after parameters
//! are bound, when they are literals. So it must be idempotent.

mod arithmetic;
mod calls;
mod casts;
mod common;
mod planning;
mod set_operations;
mod windows;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{Between, Case, GroupingSet, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::functions::type_of;
use super::{added, arrays, functions, listed, quantified, regexes, results, stopped};
use arithmetic::binary_typed;
use calls::{call_typed, like_typed};
use casts::cast_typed;
use common::{
    Common, become_cast, become_char, become_type, common_exact, common_float, common_moment, is_of_chars, is_signed,
    is_untyped, limited_text, together, without_blanks,
};
use set_operations::{columns, compared, keys, matched};
use windows::{by_sort_keys, window_typed};

use crate::engine::ColumnType;
use crate::engine::scalar::{Arithmetic, has_digits};
use crate::engine::types::{TYPE_KEY, from_arrow, from_field, round_decimal};
use crate::{SqlError, SqlState};

pub(super) use common::{bare_string, common_type, decimal_scalar, is_char, is_untyped_literal, type_of_results};
pub(super) use planning::{ANY_NUMERIC, Operators, TypeNames};
pub(super) use set_operations::{is_bare_in, item_of};
pub(super) use windows::is_of_place;

/// See the module.
#[derive(Debug)]
pub(super) struct PostgresTypes;

impl AnalyzerRule for PostgresTypes {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(node).data()
    }

    fn name(&self) -> &'static str {
        "postgres_types"
    }
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut schema = merge_schema(&plan.inputs());
    if let LogicalPlan::TableScan(scan) = &plan {
        schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
    }
    let mut plan = plan;
    let listed = match &mut plan {
        LogicalPlan::Values(values) => listed_taken(&mut values.values),
        _ => Vec::new(),
    };
    let names = NamePreserver::new(&plan);
    let named = |expression: Expr| -> Result<Expr> {
        let name = names.save(&expression);
        Ok(name.restore(expression.transform_up(|e| typed(e, &schema))?.data))
    };
    let each = |expressions: Vec<Expr>| expressions.into_iter().map(named).collect::<Result<Vec<Expr>>>();
    let plan = plan
        .map_expressions(|expression| {
            // Each grouping key keeps its own name.
            let typed = match expression {
                Expr::GroupingSet(GroupingSet::Rollup(by)) => Expr::GroupingSet(GroupingSet::Rollup(each(by)?)),
                Expr::GroupingSet(GroupingSet::Cube(by)) => Expr::GroupingSet(GroupingSet::Cube(each(by)?)),
                Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
                    let sets = sets.into_iter().map(each).collect::<Result<_>>()?;
                    Expr::GroupingSet(GroupingSet::GroupingSets(sets))
                }
                expression => named(expression)?,
            };
            Ok(Transformed::yes(typed))
        })?
        .data;
    let plan = match plan {
        LogicalPlan::Join(join) => LogicalPlan::Join(keys(join)?).recompute_schema()?,
        LogicalPlan::Union(union) => LogicalPlan::Union(columns(union)?),
        LogicalPlan::Window(window) => by_sort_keys(window)?,
        LogicalPlan::Unnest(_) => match plan.recompute_schema()? {
            LogicalPlan::Unnest(unnest) => arrays::unnested(unnest)?,
            plan => plan,
        },
        // The schema follows from the values.
        LogicalPlan::Values(mut values) => {
            for column in listed {
                let mut items: Vec<&mut Expr> =
                    values.values.iter_mut().filter_map(|row| row.get_mut(column)).collect();
                results_typed(&mut items, "VALUES", &schema)?;
                of_one_length(&mut items, &schema);
            }
            LogicalPlanBuilder::values(nameless(values.values)?)?.build()?
        }
        plan => plan.recompute_schema()?,
    };
    Ok(Transformed::yes(plan))
}

/// Texts of several lengths become TEXT.
fn of_one_length(items: &mut [&mut Expr], schema: &DFSchema) {
    let mut lengths = items.iter().map(|item| limited_text(item, schema));
    let first = lengths.next().flatten();
    if lengths.all(|length| length == first) {
        return;
    }
    for item in items.iter_mut().filter(|item| limited_text(item, schema).is_some()) {
        become_cast(item, ColumnType::Text);
    }
}

/// Takes the values of a VALUES list out of the calls in which they were planned. Returns the columns of these.
fn listed_taken(rows: &mut [Vec<Expr>]) -> Vec<usize> {
    let is_listed = |column: &usize| rows.iter().any(|row| row.get(*column).and_then(listed::value_of).is_some());
    let columns: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).filter(is_listed).collect();
    for row in rows {
        for column in &columns {
            if let Some(item) = row.get_mut(*column)
                && let Some(value) = listed::value_of(item).cloned()
            {
                *item = value;
            }
        }
    }
    columns
}

/// The rows of a VALUES list without the lengths of CHAR(n) and VARCHAR(n), which may differ from row to row, and with
/// one Arrow type for texts: that of a CASE is decided only after this rule.
fn nameless(rows: Vec<Vec<Expr>>) -> Result<Vec<Vec<Expr>>> {
    let schema = DFSchema::empty();
    let of_any_length = |expression: Expr| -> Result<Expr> {
        let Ok((_, field)) = expression.to_field(&schema) else { return Ok(expression) };
        let has_name = field.metadata().contains_key(TYPE_KEY);
        if let Some(text) = bare_string(&expression) {
            return Ok(lit(ScalarValue::Utf8View(Some(text))));
        }
        let data_type = if field.data_type().is_string() { &DataType::Utf8View } else { field.data_type() };
        let is_cast = matches!(expression, Expr::Cast(_)) && data_type == field.data_type();
        Ok(if has_name || data_type.is_string() && !is_cast {
            Expr::Cast(Cast::new(Box::new(expression), data_type.clone()))
        } else {
            expression
        })
    };
    rows.into_iter().map(|row| row.into_iter().map(of_any_length).collect()).collect()
}

/// A needle, and the query in which it is searched or with which it is compared.
fn with_query_typed(needle: &mut Expr, query: &mut Subquery, schema: &DFSchema) -> Result<()> {
    let field = query.subquery.schema().field(0);
    let (listed, is_char_listed) = (field.data_type().clone(), matches!(from_field(field), Some(ColumnType::Char(_))));
    let Ok(data_type) = needle.get_type(schema) else { return Ok(()) };
    let both = [data_type, listed.clone()];
    if let Some(common) = common_float(&both, Common::Comparison).or_else(|| common_moment(&both)) {
        become_type(needle, &common, schema)?;
        let as_common = |item: &mut Expr, schema: &DFSchema| become_type(item, &common, schema);
        query.subquery = Arc::new(compared_as(LogicalPlan::clone(&query.subquery), as_common)?);
    } else if is_char_listed {
        become_char(needle, schema)?;
    } else if is_untyped_literal(needle) {
        become_type(needle, &listed, schema)?;
    } else {
        if !is_untyped(needle) {
            compared(&both[0], &listed)?;
        }
        if is_char(needle, schema) {
            // Trailing blanks of a VARCHAR(n) do not count.
            query.subquery = Arc::new(compared_as(LogicalPlan::clone(&query.subquery), become_char)?);
        }
    }
    Ok(())
}

/// A plan of one column with this column changed. A changed column gets a new name: the planner adds the columns that
/// correlate the query beside it.
fn compared_as(plan: LogicalPlan, change: impl Fn(&mut Expr, &DFSchema) -> Result<()>) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let mut item = Expr::Column(Column::from(schema.qualified_field(0)));
    change(&mut item, &schema)?;
    if matches!(item, Expr::Column(_)) {
        return Ok(plan);
    }
    LogicalPlanBuilder::from(plan).project([item.alias("__compared")])?.build()
}

fn typed(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    stopped::check()?;
    Ok(Transformed::yes(match expression {
        Expr::BinaryExpr(binary) => match regexes::operator(binary, schema) {
            Ok(matched) => matched,
            Err(binary) => binary_typed(binary, schema)?,
        },
        Expr::Negative(inner) => match type_of(&inner, schema) {
            Ok(data_type) if is_signed(&data_type) => {
                let zero = lit(ScalarValue::new_zero(&data_type)?);
                functions::checked(Arithmetic::Subtract, zero, *inner)
            }
            _ => Expr::Negative(inner),
        },
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            together(&mut [&mut expr, &mut low, &mut high], schema, Common::Comparison)?;
            Expr::Between(Between { expr, negated, low, high })
        }
        Expr::InList(list) => Expr::InList(list_typed(list, schema)?),
        Expr::Case(case) => Expr::Case(case_typed(case, schema)?),
        Expr::AggregateFunction(function) => {
            added::check_aggregate(function.func.name(), &function.params.args, function.params.distinct, schema)?;
            if let Some(filter) = &function.params.filter {
                check_condition(filter, "FILTER", schema)?;
            }
            Expr::AggregateFunction(function)
        }
        Expr::ScalarFunction(call) => match results::case_of(call) {
            Ok(case) => Expr::Case(case_typed(case, schema)?),
            Err(call) => call_typed(call, schema)?,
        },
        Expr::Cast(cast) => cast_typed(cast, schema)?,
        Expr::Like(like) => like_typed(like, schema),
        Expr::WindowFunction(function) => Expr::WindowFunction(window_typed(function, schema)?),
        Expr::Literal(value, metadata) => Expr::Literal(number(value)?, metadata),
        Expr::InSubquery(mut query) => {
            with_query_typed(&mut query.expr, &mut query.subquery, schema)?;
            Expr::InSubquery(query)
        }
        Expr::SetComparison(mut comparison) => {
            with_query_typed(&mut comparison.expr, &mut comparison.subquery, schema)?;
            Expr::SetComparison(comparison)
        }
        Expr::IsTrue(of) if is_boolean(&of, schema) => known_boolean(of, Operator::IsNotDistinctFrom, true),
        Expr::IsNotTrue(of) if is_boolean(&of, schema) => known_boolean(of, Operator::IsDistinctFrom, true),
        Expr::IsFalse(of) if is_boolean(&of, schema) => known_boolean(of, Operator::IsNotDistinctFrom, false),
        Expr::IsNotFalse(of) if is_boolean(&of, schema) => known_boolean(of, Operator::IsDistinctFrom, false),
        Expr::IsUnknown(of) if is_boolean(&of, schema) => Expr::IsNull(of),
        Expr::IsNotUnknown(of) if is_boolean(&of, schema) => Expr::IsNotNull(of),
        other => return Ok(Transformed::no(other)),
    }))
}

/// Whether `IS TRUE` can be applied to an expression.
fn is_boolean(expression: &Expr, schema: &DFSchema) -> bool {
    matches!(type_of(expression, schema), Ok(DataType::Boolean | DataType::Null))
}

/// `inner IS TRUE` and its variants in the form that DataFusion's physical plan uses. This form is nullable and the
/// original is not, but an aggregate's input must be equal in both plans.
fn known_boolean(inner: Box<Expr>, op: Operator, wanted: bool) -> Expr {
    Expr::BinaryExpr(BinaryExpr { left: inner, op, right: Box::new(lit(wanted)) })
}

/// A number literal in a type that PostgreSQL gives it: the parser also makes unsigned integers, and decimals of
/// negative scale.
fn number(value: ScalarValue) -> Result<ScalarValue> {
    let decimal = match &value {
        ScalarValue::UInt64(Some(value)) => Some((i128::from(*value), 0)),
        ScalarValue::Decimal128(Some(value), _, scale) if *scale < 0 => {
            round_decimal(*value, 0, scale.unsigned_abs()).map(|value| (value, 0))
        }
        _ => return Ok(value),
    };
    let (unscaled, scale) = decimal
        .filter(|(unscaled, _)| has_digits(*unscaled))
        .ok_or_else(|| external(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "a number of more than 38 digits")))?;
    Ok(decimal_scalar(unscaled, scale))
}

/// IN with a list, or with the elements of an array.
fn list_typed(InList { mut expr, mut list, negated }: InList, schema: &DFSchema) -> Result<InList> {
    let is_array = quantified::take_mark(&mut expr);
    if is_array && is_char(&expr, schema) && list.iter().all(is_untyped) {
        return Ok(InList { expr, list, negated });
    }
    // A list of several constants has one type together with the left operand: exact numbers become REAL, and a TEXT
    // becomes a CHAR.
    let is_list = !is_array && list.len() > 1 && !list.iter().any(Expr::any_column_refs);
    if is_list && is_char(&expr, schema) {
        let is_string = |element: &Expr| element.get_type(schema).is_ok_and(|data_type| data_type.is_string());
        for element in &mut list {
            if is_string(element) && !is_untyped_literal(element) && !is_char(element, schema) {
                become_cast(element, ColumnType::Char(ColumnType::CHARACTERS_MAX));
            }
        }
    }
    let is_varchar = matches!(limited_text(&expr, schema), Some(ColumnType::Varchar(_)));
    let is_char_array =
        is_array && list.iter().find(|of| !is_untyped(of)).is_some_and(|first| is_of_chars(first, schema));
    if is_char_array {
        list.iter_mut().for_each(without_blanks);
    }
    if is_varchar && is_list || is_text(&expr, schema) {
        for element in &mut list {
            become_text(element, schema);
        }
    }
    let is_real = is_list && expr.get_type(schema).is_ok_and(|data_type| data_type == DataType::Float32);
    let mut all: Vec<&mut Expr> = std::iter::once(expr.as_mut()).chain(&mut list).collect();
    together(&mut all, schema, if is_real { Common::Result } else { Common::Comparison })?;
    Ok(InList { expr, list, negated })
}

/// Whether an expression is a TEXT. Then each CHAR compared with it becomes a TEXT, and untyped string literals keep
/// their blanks.
fn is_text(expression: &Expr, schema: &DFSchema) -> bool {
    type_of(expression, schema).is_ok_and(|of| of.is_string())
        && limited_text(expression, schema).is_none()
        && !is_of_chars(expression, schema)
}

fn become_text(expression: &mut Expr, schema: &DFSchema) {
    if is_of_chars(expression, schema) {
        become_cast(expression, ColumnType::Text);
    }
}

/// Refuses a condition that is not a boolean.
fn check_condition(condition: &Expr, of: &str, schema: &DFSchema) -> Result<()> {
    let known = type_of(condition, schema).ok().filter(|of| !of.is_null() && !is_untyped_literal(condition));
    match known.as_ref().and_then(from_arrow) {
        Some(other) if other != ColumnType::Boolean => {
            let message = format!("argument of {of} must be type boolean, not type {other}");
            Err(external(SqlError::new(SqlState::DATATYPE_MISMATCH, message)))
        }
        _ => Ok(()),
    }
}

fn case_typed(case: Case, schema: &DFSchema) -> Result<Case> {
    let Case { expr: mut operand, mut when_then_expr, mut else_expr } = case;
    if let Some(operand) = &mut operand {
        if is_text(operand, schema) {
            for (when, _) in &mut when_then_expr {
                become_text(when, schema);
            }
        }
        let whens = when_then_expr.iter_mut().map(|(when, _)| when.as_mut());
        together(&mut std::iter::once(operand.as_mut()).chain(whens).collect::<Vec<_>>(), schema, Common::Comparison)?;
    } else {
        when_then_expr.iter().try_for_each(|(when, _)| check_condition(when, "CASE/WHEN", schema))?;
    }
    let thens = when_then_expr.iter_mut().map(|(_, then)| then.as_mut());
    // PostgreSQL considers ELSE first.
    let mut results: Vec<&mut Expr> = else_expr.iter_mut().map(AsMut::as_mut).chain(thens).collect();
    results_typed(&mut results, "CASE", schema)?;
    Ok(Case { expr: operand, when_then_expr, else_expr })
}

/// Gives the results of a CASE, or the values of a column of VALUES, their common type.
fn results_typed(results: &mut [&mut Expr], of: &str, schema: &DFSchema) -> Result<()> {
    together(results, schema, Common::Result)?;
    matched(of, results.iter().map(|result| &**result), schema)?;
    // Until DataFusion computes the common type, expressions over these see the type of the first one.
    let types = results.iter().map(|result| type_of(result, schema)).collect::<Result<Vec<_>>>();
    let known: Vec<DataType> = types.into_iter().flatten().filter(|data_type| !data_type.is_null()).collect();
    if let Some(exact) = common_exact(&known) {
        for result in results {
            **result = std::mem::replace(*result, lit(ScalarValue::Null)).cast_to(&exact, schema)?;
        }
    }
    Ok(())
}
