//! Columns of UNION, EXCEPT and INTERSECT, and the keys of joins; EXCEPT and INTERSECT are planned as joins.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::{Distinct, Expr, ExprSchemable, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Union};

use super::super::functions::{self, type_of};
use super::super::multisets::is_set_operation;
use super::common::{
    Common, bare_string, become_type, check_lists, common_result, common_text, decimal_scalar, is_decimal, is_signed,
    is_untyped_literal, together,
};
use super::external;
use crate::engine::types::{TYPE_KEY, comparable, from_arrow, from_field};
use crate::engine::{ColumnType, Datum};
use crate::value::exact_decimal;
use crate::{SqlError, SqlState};

/// The keys of a join, which are still pairs rather than comparisons. Those of EXCEPT and INTERSECT are the columns of
/// both inputs, which get common types.
pub(super) fn keys(mut join: Join) -> Result<Join> {
    if is_set_operation(&join) {
        let operation = if join.join_type == JoinType::LeftSemi { "INTERSECT" } else { "EXCEPT" };
        let mut wanted = common_columns(&[join.left.as_ref(), join.right.as_ref()], operation)?;
        for (column, wanted) in wanted.iter_mut().enumerate() {
            let is_null = |side: &LogicalPlan| side.schema().field(column).data_type().is_null();
            if is_null(&join.left) && is_null(&join.right) {
                *wanted = Some(Wanted::Type(DataType::Utf8View));
            }
        }
        join.left = with_columns(&join.left, &wanted)?;
        join.right = with_columns(&join.right, &wanted)?;
    }
    for (left, right) in &mut join.on {
        let schema = join.left.schema().join(join.right.schema())?;
        together(&mut [left, right], &schema, Common::Comparison)?;
        compared(&left.get_type(&schema)?, &right.get_type(&schema)?)?;
    }
    Ok(join)
}

/// A union whose inputs have equal types in each column of numbers, of dates and timestamps, or of texts of different
/// types. DataFusion ensures that only after this rule. Until then it takes the first input's types for all, and types
/// the expressions above accordingly. An untyped string literal is converted to the type of the others.
pub(super) fn columns(mut union: Union) -> Result<Union> {
    let inputs: Vec<&LogicalPlan> = union.inputs.iter().map(AsRef::as_ref).collect();
    let wanted = common_columns(&inputs, "UNION")?;
    for input in &mut union.inputs {
        let typed = with_columns(input, &wanted)?;
        *input = Arc::new(with_names(Arc::unwrap_or_clone(typed), &union.schema)?);
    }
    Union::try_new_with_loose_types(union.inputs)
}

/// The conversion of a column of a set operation's inputs.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Type(DataType),
    /// To a text without trailing blanks.
    Char,
    /// None, but an untyped NULL gets this type.
    OfNull(ColumnType),
}

/// The conversions of the columns of a set operation's inputs, where they are known.
fn common_columns(inputs: &[&LogicalPlan], operation: &str) -> Result<Vec<Option<Wanted>>> {
    let count = inputs.first().map_or(0, |input| input.schema().fields().len());
    let inputs: Vec<&LogicalPlan> = inputs.iter().map(|input| as_written(input)).collect();
    let common = |column: usize| -> Result<Option<Wanted>> {
        let fields = || {
            let all = inputs.iter().filter(|input| !is_bare_in(input, column));
            all.map(|input| input.schema().field(column).as_ref()).filter(|field: &&Field| !field.data_type().is_null())
        };
        let known: Vec<DataType> = fields().map(|field| field.data_type().clone()).collect();
        let Some((first, rest)) = known.split_first() else { return Ok(None) };
        check_lists(known.iter())?;
        if let Some((a, b)) = rest.iter().find_map(|other| unlike(first, other)) {
            let message = format!("{operation} types {a} and {b} cannot be matched");
            return Err(external(SqlError::new(SqlState::DATATYPE_MISMATCH, message)));
        }
        let was_char = first_of_type(inputs.iter().copied(), column).is_some_and(|input| was_char(input, column));
        let is_mixed = was_char || known.len() < inputs.len() || common_text(fields()).is_some();
        if is_mixed && (was_char || is_common_char(fields())) && known.iter().all(DataType::is_string) {
            return Ok(Some(Wanted::Char));
        }
        let common = common_result(&with_bare_decimals(known.clone(), &inputs, column))
            .or_else(|| common_text(fields()))
            .or_else(|| rest.iter().all(|other| other == first).then(|| first.clone()).filter(|t| !t.is_string()));
        let of_null = || fields().next().and_then(from_field).filter(|text| text.is_text());
        Ok(common.map(Wanted::Type).or_else(|| of_null().map(Wanted::OfNull)))
    };
    (0..count).map(common).collect()
}

/// The types of a set operation's column. If they are exact numbers with decimals, also the types of its untyped string
/// literals, which have their own digits.
fn with_bare_decimals(mut known: Vec<DataType>, inputs: &[&LogicalPlan], column: usize) -> Vec<DataType> {
    if known.iter().any(is_decimal) && known.iter().all(|t| is_signed(t) || is_decimal(t)) {
        let bare = inputs.iter().filter_map(|input| item_of(input, column).and_then(bare_string));
        known.extend(bare.filter_map(|text| match exact_decimal(text.trim()) {
            Some(Datum::Decimal { unscaled, scale }) => Some(decimal_scalar(unscaled, scale).data_type()),
            _ => None,
        }));
    }
    known
}

/// The query as written, below the nodes that the planner adds for EXCEPT and INTERSECT.
fn as_written(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => as_written(input),
        LogicalPlan::SubqueryAlias(alias) => as_written(&alias.input),
        other => other,
    }
}

/// Whether the type of a set operation's text column is CHAR, which depends on the first input.
fn is_common_char<'a>(mut fields: impl Iterator<Item = &'a Field>) -> bool {
    fields.next().is_some_and(|field| matches!(from_field(field), Some(ColumnType::Char(_))))
}

/// The first input of a set operation whose column is neither an untyped string literal nor NULL.
fn first_of_type<'a>(mut inputs: impl Iterator<Item = &'a LogicalPlan>, column: usize) -> Option<&'a LogicalPlan> {
    inputs.find(|input| !is_bare_in(as_written(input), column) && !input.schema().field(column).data_type().is_null())
}

/// Whether a column is a CHAR that a set operation has turned into a text without blanks: [`Wanted::Char`].
fn was_char(plan: &LogicalPlan, column: usize) -> bool {
    match as_written(plan) {
        LogicalPlan::Union(union) => {
            first_of_type(union.inputs.iter().map(AsRef::as_ref), column).is_some_and(|of| was_char(of, column))
        }
        LogicalPlan::Join(join) if is_set_operation(join) => was_char(&join.left, column),
        plan => match (item_of(plan, column), plan) {
            (Some(Expr::Column(of)), LogicalPlan::Projection(renamed)) => {
                let place = renamed.input.schema().maybe_index_of_column(of);
                place.is_some_and(|place| was_char(&renamed.input, place))
            }
            (item, _) => item.is_some_and(functions::is_cast_from_char),
        },
    }
}

/// An input of a set operation with these types. Rows that differ may become equal, so the conversion comes before
/// DISTINCT.
fn with_columns(input: &Arc<LogicalPlan>, types: &[Option<Wanted>]) -> Result<Arc<LogicalPlan>> {
    Ok(Arc::new(match input.as_ref() {
        LogicalPlan::Distinct(Distinct::All(rows)) => LogicalPlan::Distinct(Distinct::All(with_columns(rows, types)?)),
        LogicalPlan::SubqueryAlias(alias) => {
            let rows = LogicalPlan::clone(with_columns(&alias.input, types)?.as_ref());
            LogicalPlanBuilder::from(rows).alias(alias.alias.clone())?.build()?
        }
        input => projected(bare_read(input.clone(), types)?, types)?,
    }))
}

/// The item of a projection that gives a plan's column.
pub(in crate::engine::query) fn item_of(plan: &LogicalPlan, column: usize) -> Option<&Expr> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let mut item = projection.expr.get(column)?;
    while let Expr::Alias(alias) = item {
        item = &alias.expr;
    }
    Some(item)
}

pub(in crate::engine::query) fn is_bare_in(plan: &LogicalPlan, column: usize) -> bool {
    item_of(plan, column).is_some_and(is_untyped_literal)
}

/// A plan whose untyped string literals are converted to other types.
fn bare_read(plan: LogicalPlan, types: &[Option<Wanted>]) -> Result<LogicalPlan> {
    let is_read = |column: usize| {
        let is_other = matches!(&types[column], Some(Wanted::Type(data_type)) if !data_type.is_string());
        is_other && is_bare_in(&plan, column)
    };
    if !(0..types.len()).any(is_read) {
        return Ok(plan);
    }
    let LogicalPlan::Projection(projection) = &plan else { return Ok(plan) };
    let mut items = Vec::with_capacity(types.len());
    for (column, (qualifier, field)) in plan.schema().iter().enumerate() {
        items.push(match (item_of(&plan, column), &types[column]) {
            (Some(item), Some(Wanted::Type(data_type))) if is_read(column) => {
                let mut item = item.clone();
                become_type(&mut item, data_type, projection.input.schema())?;
                item.alias_qualified(qualifier.cloned(), field.name())
            }
            _ => projection.expr[column].clone(),
        });
    }
    LogicalPlanBuilder::from(LogicalPlan::clone(&projection.input)).project(items)?.build()
}

/// The column types of two types that cannot be compared; `None` if they can be, or have no column types.
fn unlike(a: &DataType, b: &DataType) -> Option<(ColumnType, ColumnType)> {
    from_arrow(a).zip(from_arrow(b)).filter(|(a, b)| !comparable(*a, *b))
}

pub(super) fn compared(a: &DataType, b: &DataType) -> Result<()> {
    let Some((a, b)) = unlike(a, b) else { return Ok(()) };
    let message = format!("operator does not exist: {a} = {b}");
    let error = SqlError::new(SqlState::UNDEFINED_FUNCTION, message);
    Err(external(error.with_hint("You might need to add explicit type casts.")))
}

/// Refuses values of CASE, COALESCE and similar expressions that have no common type.
pub(super) fn matched<'a>(name: &str, values: impl Iterator<Item = &'a Expr>, schema: &DFSchema) -> Result<()> {
    let typed = values.filter(|value| !is_untyped_literal(value)).filter_map(|value| type_of(value, schema).ok());
    let types: Vec<DataType> = typed.filter(|of| !of.is_null()).collect();
    let Some((first, rest)) = types.split_first() else { return Ok(()) };
    let is_interval = |of: &DataType| matches!(of, DataType::Interval(_));
    let differs = |other: &&DataType| unlike(first, other).is_some() || is_interval(first) != is_interval(other);
    let Some(other) = rest.iter().find(differs) else { return Ok(()) };
    let named = |of: &DataType| from_arrow(of).map_or_else(|| "interval".to_owned(), |of| of.to_string());
    let message = format!("{name} types {} and {} cannot be matched", named(first), named(other));
    Err(external(SqlError::new(SqlState::DATATYPE_MISMATCH, message)))
}

/// An input of a union with the union's names: if only one input is not empty, DataFusion (55) looks up its columns by
/// these names.
fn with_names(input: LogicalPlan, union: &DFSchema) -> Result<LogicalPlan> {
    let names: Vec<&String> = union.fields().iter().map(|field| field.name()).collect();
    let has_names = input.schema().fields().iter().map(|field| field.name()).eq(names.iter().copied());
    let differ = names.iter().enumerate().all(|(n, name)| !names[..n].contains(name));
    if has_names || !differ {
        return Ok(input);
    }
    let columns = input.schema().iter().map(|column| Expr::Column(Column::from(column)));
    let named: Vec<Expr> = columns.zip(names).map(|(column, name)| column.alias(name)).collect();
    LogicalPlanBuilder::from(input).project(named)?.build()
}

/// A plan with some columns converted to another type.
fn projected(plan: LogicalPlan, types: &[Option<Wanted>]) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let mut changed = false;
    let mut items = Vec::with_capacity(types.len());
    for ((qualifier, field), wanted) in schema.iter().zip(types) {
        let mut item = Expr::Column(Column::from((qualifier, field)));
        if let Some(wanted) = wanted {
            item = become_wanted(item, field, wanted, &schema)?;
            if !matches!(item, Expr::Column(_)) {
                item = item.alias_qualified(qualifier.cloned(), field.name());
                changed = true;
            }
        }
        items.push(item);
    }
    if changed { LogicalPlanBuilder::from(plan).project(items)?.build() } else { Ok(plan) }
}

/// A column of a set operation's input, converted as wanted. A CHAR(n) or VARCHAR(n) that becomes TEXT loses the type
/// name in its metadata.
fn become_wanted(mut item: Expr, field: &Field, wanted: &Wanted, schema: &DFSchema) -> Result<Expr> {
    let has_name = field.metadata().contains_key(TYPE_KEY);
    let is_null = field.data_type().is_null();
    if is_null && matches!(wanted, Wanted::OfNull(_) | Wanted::Char) {
        item = item.cast_to(&DataType::Utf8View, schema)?;
    }
    match wanted {
        // A set operation has its first input's type, which the next set operation sees. So a NULL there must have the
        // type of the others.
        Wanted::OfNull(of) if is_null => Ok(functions::cast(item, *of)),
        Wanted::Char if field.data_type().is_string() || is_null => {
            let without_blanks = functions::cast(item, ColumnType::Char(ColumnType::CHARACTERS_MAX));
            Ok(functions::cast(without_blanks, ColumnType::Text))
        }
        Wanted::OfNull(_) | Wanted::Char => Ok(item),
        Wanted::Type(data_type) if data_type.is_string() && has_name => Ok(functions::cast(item, ColumnType::Text)),
        Wanted::Type(data_type) if is_null => item.cast_to(data_type, schema),
        Wanted::Type(data_type) => {
            become_type(&mut item, data_type, schema)?;
            Ok(item)
        }
    }
}
