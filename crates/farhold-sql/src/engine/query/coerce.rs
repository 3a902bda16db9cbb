//! PostgreSQL's types for the expressions of a plan, where DataFusion's own rules give others.
//!
//! | expression | DataFusion | here, as in PostgreSQL |
//! |---|---|---|
//! | a float beside a decimal, or a real beside another number | decimal, real | double precision |
//! | a bare string beside a value of another type | the text of the value, or its bytes | the string is read as a value of the type |
//! | CHAR(n) beside a bare string or a VARCHAR(n) | blanks count | blanks at the end do not count |
//! | `+ - *` and negation that pass the end of their type | wrap, or infinity | 22003 |
//! | a quotient of decimals | four digits more than the dividend, truncated | sixteen digits, rounded |
//! | a product of decimals of more than 38 digits together | all digits behind the point, few before it | twenty digits, rounded |
//! | windows by range over bytes and intervals | an error | frames by groups of peers |
//! | a difference of dates, one of which is infinite | days | 22008 |
//! | an interval beside an infinite date or timestamp | an error | the infinity |
//! | a date beside a timestamp | timestamps of nanoseconds | timestamps of microseconds |
//! | a difference of timestamps | a duration | an interval ([`intervals`]) |
//! | an interval times or by a number, or made of `26:00:00` | an error | an interval |
//! | casts between text and other types, and from fractions to integers | Arrow's forms; truncated | PostgreSQL's forms; rounded |
//! | CASE and UNION of exact numbers of several types | the first one's type, for what is calculated with them | the common type |
//! | a bare string in a VALUES list, a UNION or an array beside decimals | rounded to the others' decimals | with the decimals that it has |
//! | `lag` and `lead` of a value and another one of another type | the value's type | the common type |
//! | a UNION of CHAR(n), VARCHAR(n) and TEXT | the last one's length | TEXT, without blanks at the end where the first one is CHAR(n) |
//! | `CAST(x AS NUMERIC)`, `VARCHAR(n)`, `CHAR(n)` | ten digits; not cut | as many digits as x has; cut |
//! | LIKE with a pattern that ends with its escape | the escape is a character | 22025 |
//! | EXTRACT | an integer | numeric ([`parts`]) |
//! | values in `concat` and `concat_ws` | Arrow's forms | the forms that clients get |
//! | a bare string in `encode`, `get_byte`, `age` and `substr` | its bytes, or an error | read as bytea, a timestamp, an integer |
//!
//! The rule runs before DataFusion's own coercion, on every expression of every node, and once more when parameters have been
//! put in: a parameter is a literal by then. It must be idempotent.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{
    Between, Case, GroupingSet, InList, Like, Placeholder, ScalarFunction, Sort, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, TypePlanner};
use datafusion::logical_expr::type_coercion::binary::type_union_coercion;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Distinct, Expr, ExprSchemable, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Operator,
    Subquery, Union, Window, WindowFrame, WindowFrameBound, WindowFrameUnits, lit,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::sql::sqlparser::ast;

use super::functions::{self, cast_value, type_of};
use super::multisets::is_set_operation;
use super::{added, assigned, dates, frames, intervals, moments, parts, quantified, scalars};
use crate::engine::scalar::{Arithmetic, has_digits, is_kept_by_null_if};
use crate::engine::types::{
    INTERVAL, TIMESTAMP, TYPE_KEY, castable, comparable, datum_at, exact_decimal, from_arrow, from_field, from_sql,
    no_cast, parse_datum, round_decimal, timestamp_digits, to_arrow, to_field, to_scalar,
};
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// As which a bare string is read that is a NUMERIC with the digits that it has.
const ANY_DECIMAL: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);

/// What the metadata of a cast says of `NUMERIC` without digits.
const ANY_NUMERIC: &str = "numeric";

/// The types of casts, with what Arrow's types do not tell in their metadata. [`PostgresTypes`] takes it out again.
#[derive(Debug)]
pub(super) struct TypeNames(pub(super) Option<Arc<dyn TypePlanner>>);

impl TypePlanner for TypeNames {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> Result<Option<FieldRef>> {
        use ast::DataType as T;
        use ast::ExactNumberInfo::None as AnyDigits;
        let column_type = match sql_type {
            T::Numeric(_)
            | T::Decimal(_)
            | T::Dec(_)
            | T::Char(_)
            | T::Character(_)
            | T::Varchar(Some(_))
            | T::CharacterVarying(Some(_))
            | T::CharVarying(Some(_))
            // DataFusion's has nanoseconds, and ends in 2262.
            | T::Timestamp(_, ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => from_sql(sql_type),
            T::Custom(name, _) if is_bpchar(name) => from_sql(sql_type),
            other => return self.0.as_ref().map_or(Ok(None), |inner| inner.plan_type_field(other)),
        };
        let field = to_field("", column_type.map_err(external)?, true);
        let name = match sql_type {
            T::Numeric(AnyDigits) | T::Decimal(AnyDigits) | T::Dec(AnyDigits) => Some(ANY_NUMERIC.to_owned()),
            other => timestamp_digits(other).map(|digits| format!("timestamp({digits})")),
        };
        Ok(Some(Arc::new(match name {
            Some(name) => field.with_metadata(HashMap::from([(TYPE_KEY.to_owned(), name)])),
            None => field,
        })))
    }
}

fn is_bpchar(name: &ast::ObjectName) -> bool {
    matches!(name.to_string().to_lowercase().as_str(), "bpchar" | "pg_catalog.bpchar")
}

/// Differences of timestamps, products of decimals and of intervals, while a statement is planned: by then DataFusion asks whether they can be calculated with,
/// and whether a string can be a timestamp's side.
#[derive(Debug)]
pub(super) struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, mut binary: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        if binary.op == ast::BinaryOperator::Multiply && is_long_product(&binary.left, &binary.right, schema) {
            let product = functions::checked(Arithmetic::Multiply, binary.left, binary.right);
            return Ok(PlannerResult::Planned(product));
        }
        let arithmetic = match binary.op {
            ast::BinaryOperator::Multiply => Some(Arithmetic::Multiply),
            ast::BinaryOperator::Divide => Some(Arithmetic::Divide),
            _ => None,
        };
        if let Some(arithmetic) = arithmetic
            && is_of_parameter(&binary.left, &binary.right, schema)
        {
            return Ok(PlannerResult::Planned(functions::checked(arithmetic, binary.left, binary.right)));
        }
        if let Some(arithmetic) = arithmetic
            && is_scaled(arithmetic, &binary.left, &binary.right, schema)
        {
            return scaled(arithmetic, binary.left, binary.right, schema).map(PlannerResult::Planned);
        }
        if matches!(binary.op, ast::BinaryOperator::Plus | ast::BinaryOperator::Minus) {
            let RawBinaryExpr { left, right, .. } = &mut binary;
            if is_interval(left, schema) && is_bare_string(right) {
                become_type(right, &INTERVAL, schema)?;
            } else if is_interval(right, schema) && is_bare_string(left) {
                become_type(left, &INTERVAL, schema)?;
            }
        }
        if is_comparison(&binary.op) {
            let RawBinaryExpr { left, right, .. } = &mut binary;
            read_beside(left, right, schema)?;
            read_beside(right, left, schema)?;
        }
        if binary.op != ast::BinaryOperator::Minus || !is_difference(&binary.left, &binary.right, schema) {
            return Ok(PlannerResult::Original(binary));
        }
        difference(binary.left, binary.right, schema).map(PlannerResult::Planned)
    }
}

fn is_comparison(op: &ast::BinaryOperator) -> bool {
    use ast::BinaryOperator as O;
    matches!(op, O::Eq | O::NotEq | O::Lt | O::LtEq | O::Gt | O::GtEq)
}

/// Reads a bare string beside what DataFusion compares with no string.
fn read_beside(side: &Expr, string: &mut Expr, schema: &DFSchema) -> Result<()> {
    match side.get_type(schema) {
        Ok(data_type @ (DataType::Boolean | DataType::Interval(_))) if is_bare_string(string) => {
            become_type(string, &data_type, schema)
        }
        _ => Ok(()),
    }
}

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
    let names = NamePreserver::new(&plan);
    let named = |expression: Expr| -> Result<Expr> {
        let name = names.save(&expression);
        Ok(name.restore(expression.transform_up(|e| typed(e, &schema))?.data))
    };
    let each = |expressions: Vec<Expr>| expressions.into_iter().map(named).collect::<Result<Vec<Expr>>>();
    let plan = plan
        .map_expressions(|expression| {
            // What is grouped by keeps its names one by one.
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
        // Its schema is made of its values.
        LogicalPlan::Values(values) => LogicalPlanBuilder::values(nameless(values.values)?)?.build()?,
        plan => plan.recompute_schema()?,
    };
    Ok(Transformed::yes(plan))
}

/// The windows of an operator, which has one order for all of them, as several operators if their keys have become of several types.
fn by_sort_keys(window: Window) -> Result<LogicalPlan> {
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

/// The rows of a VALUES list without the lengths of CHAR(n) and VARCHAR(n), which may differ from row to row, and with texts of one Arrow type: which
/// one a CASE has is decided behind this rule.
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

/// The keys of a join, which are pairs and no comparison yet. Those of EXCEPT and INTERSECT are the columns of both, which have one type each.
fn keys(mut join: Join) -> Result<Join> {
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

/// A union whose inputs have the same types in a column, where they are numbers, moments, or texts of different names. DataFusion sees to that
/// behind this rule; until then the first input's types count for all, and what stands above is typed by them. A bare string is
/// read as the type of the others.
fn columns(mut union: Union) -> Result<Union> {
    let inputs: Vec<&LogicalPlan> = union.inputs.iter().map(AsRef::as_ref).collect();
    let wanted = common_columns(&inputs, "UNION")?;
    for input in &mut union.inputs {
        let typed = with_columns(input, &wanted)?;
        *input = Arc::new(with_names(Arc::unwrap_or_clone(typed), &union.schema)?);
    }
    Union::try_new_with_loose_types(union.inputs)
}

/// What a column of a set operation's inputs becomes.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Type(DataType),
    /// A text without the blanks at its end.
    Char,
    /// What it is, and of a NULL that has no type yet this one.
    OfNull(ColumnType),
}

/// What the columns of a set operation's inputs become, where that is known.
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

/// The types of a set operation's column, and where they are exact numbers with decimals, those of the bare strings in it: they have digits of their own.
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

/// The query that was written, below what the planner puts above those of EXCEPT and INTERSECT.
fn as_written(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => as_written(input),
        LogicalPlan::SubqueryAlias(alias) => as_written(&alias.input),
        other => other,
    }
}

/// Whether the type of a set operation's column of texts is CHAR: it is the first one's.
fn is_common_char<'a>(mut fields: impl Iterator<Item = &'a Field>) -> bool {
    fields.next().is_some_and(|field| matches!(from_field(field), Some(ColumnType::Char(_))))
}

/// The first input of a set operation whose column is neither a bare string nor NULL.
fn first_of_type<'a>(mut inputs: impl Iterator<Item = &'a LogicalPlan>, column: usize) -> Option<&'a LogicalPlan> {
    inputs.find(|input| !is_bare_in(as_written(input), column) && !input.schema().field(column).data_type().is_null())
}

/// Whether a column is a CHAR that a set operation has made a text without blanks: [`Wanted::Char`].
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

/// An input of a set operation with these types. Rows that differ may be equal as these, so they come before DISTINCT.
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

/// The item that gives a plan's column, if it is known here.
pub(super) fn item_of(plan: &LogicalPlan, column: usize) -> Option<&Expr> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let mut item = projection.expr.get(column)?;
    while let Expr::Alias(alias) = item {
        item = &alias.expr;
    }
    Some(item)
}

pub(super) fn is_bare_in(plan: &LogicalPlan, column: usize) -> bool {
    item_of(plan, column).is_some_and(is_bare_string)
}

/// A plan whose bare strings are read as other types.
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

/// Two types, if they are ours and none that can be compared.
fn unlike(a: &DataType, b: &DataType) -> Option<(ColumnType, ColumnType)> {
    from_arrow(a).zip(from_arrow(b)).filter(|(a, b)| !comparable(*a, *b))
}

fn compared(a: &DataType, b: &DataType) -> Result<()> {
    let Some((a, b)) = unlike(a, b) else { return Ok(()) };
    let message = format!("operator does not exist: {a} = {b}");
    let error = SqlError::new(SqlState::UNDEFINED_FUNCTION, message);
    Err(external(error.with_hint("You might need to add explicit type casts.")))
}

/// An input of a union with the union's names: of a union with one input that is not empty, DataFusion (55) looks its columns up by them.
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

/// A plan with some of its columns as another type.
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

/// A column of a set operation's input as it is wanted. A CHAR(n) or VARCHAR(n) that becomes text loses its name.
fn become_wanted(mut item: Expr, field: &Field, wanted: &Wanted, schema: &DFSchema) -> Result<Expr> {
    let has_name = field.metadata().contains_key(TYPE_KEY);
    let is_null = field.data_type().is_null();
    if is_null && matches!(wanted, Wanted::OfNull(_) | Wanted::Char) {
        item = item.cast_to(&DataType::Utf8View, schema)?;
    }
    match wanted {
        // The type of a set operation is its first input's, for the next one as well: there, a NULL must have the type of the others.
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

/// A needle, and the query that it is looked for in or compared with.
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
    } else if is_bare_string(needle) {
        become_type(needle, &listed, schema)?;
    } else {
        if !is_untyped(needle) {
            compared(&both[0], &listed)?;
        }
        if is_char(needle, schema) {
            // Blanks at the end of a VARCHAR(n) do not count.
            query.subquery = Arc::new(compared_as(LogicalPlan::clone(&query.subquery), become_char)?);
        }
    }
    Ok(())
}

/// A plan of one column that is changed. It has a name of its own then: the planner puts the columns that correlate the query beside it.
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
    Ok(Transformed::yes(match expression {
        Expr::BinaryExpr(binary) => binary_typed(binary, schema)?,
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
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let is_array = quantified::take_mark(&mut expr);
            if is_array && is_char(&expr, schema) && list.iter().all(is_untyped) {
                return Ok(Transformed::yes(Expr::InList(InList { expr, list, negated })));
            }
            // Several constants have one type with what is before them: numbers that are exact become REAL by that, and a TEXT a CHAR.
            let is_list = !is_array && list.len() > 1 && !list.iter().any(Expr::any_column_refs);
            if is_list && is_char(&expr, schema) {
                let is_text = |element: &Expr| element.get_type(schema).is_ok_and(|data_type| data_type.is_string());
                for element in &mut list {
                    if is_text(element) && !is_bare_string(element) && !is_char(element, schema) {
                        become_cast(element, ColumnType::Char(ColumnType::CHARACTERS_MAX));
                    }
                }
            }
            if is_list && matches!(limited_text(&expr, schema), Some(ColumnType::Varchar(_))) {
                for element in &mut list {
                    if is_char(element, schema) {
                        become_cast(element, ColumnType::Text);
                    }
                }
            }
            let is_real = is_list && expr.get_type(schema).is_ok_and(|data_type| data_type == DataType::Float32);
            let mut all: Vec<&mut Expr> = std::iter::once(expr.as_mut()).chain(&mut list).collect();
            together(&mut all, schema, if is_real { Common::Result } else { Common::Comparison })?;
            Expr::InList(InList { expr, list, negated })
        }
        Expr::Case(case) => Expr::Case(case_typed(case, schema)?),
        Expr::AggregateFunction(function) => {
            added::check_aggregate(function.func.name(), &function.params.args, function.params.distinct, schema)?;
            Expr::AggregateFunction(function)
        }
        Expr::ScalarFunction(mut function) => {
            if let Some((value, to)) = assigned::taken(&function, schema)? {
                return explicit_cast(value, to, &to_arrow(to), schema).map(Transformed::yes);
            }
            if let Some(element) = quantified::type_of_elements(&function, schema)?
                && is_bare_string(&function.args[0])
            {
                become_type(&mut function.args[0], &element, schema)?;
            }
            let ScalarFunction { func, mut args } = function;
            if func.name() == moments::SERIES {
                let types = args.iter().map(|argument| type_of(argument, schema)).collect::<Result<Vec<_>>>()?;
                for (argument, of) in args.iter_mut().zip(moments::types_of_arguments(&types).iter().flatten()) {
                    become_type(argument, of, schema)?;
                }
            }
            let common = match func.name() {
                "coalesce" | "greatest" | "least" => Some(Common::Result),
                "nullif" => Some(Common::Equality),
                _ => None,
            };
            let kept = if common == Some(Common::Equality) { kept_by_null_if(&args, schema) } else { None };
            if let Some(common) = common {
                together(&mut args.iter_mut().collect::<Vec<_>>(), schema, common)?;
                if func.name() == "coalesce" {
                    no_texts_with_others(&args, schema)?;
                }
                if kept.is_some()
                    && let [first, second] = args.as_mut_slice()
                {
                    become_type(first, &type_of(second, schema)?, schema)?;
                }
            }
            if func.name() == "make_array" && args.iter().any(|of| type_of(of, schema).is_ok_and(|t| is_decimal(&t))) {
                together(&mut args.iter_mut().collect::<Vec<_>>(), schema, Common::Result)?;
            }
            rounded(func.name(), &mut args, schema)?;
            if matches!(func.name(), "concat" | "concat_ws") {
                args.iter_mut().try_for_each(|argument| printed(argument, schema))?;
            }
            untyped_read(func.name(), &mut args, schema)?;
            let func = added::in_place_of(func, &args, schema)?;
            let func = scalars::in_place_of(parts::in_place_of(func), &args);
            let call = Expr::ScalarFunction(ScalarFunction { func, args });
            match kept {
                Some(to) => explicit_cast(call, to, &to_arrow(to), schema)?,
                None => call,
            }
        }
        Expr::Cast(cast) => cast_typed(cast, schema)?,
        Expr::Like(like) => like_typed(like, schema),
        Expr::WindowFunction(mut function) => {
            check_place(&function)?;
            added::check_aggregate(function.fun.name(), &function.params.args, function.params.distinct, schema)?;
            with_another(function.fun.name(), &mut function.params.args, schema)?;
            let WindowFunctionParams { order_by, window_frame, .. } = &mut function.params;
            let has_no_distance =
                |by: &Sort| by.expr.get_type(schema).is_ok_and(|t| t.is_binary() || matches!(t, DataType::Interval(_)));
            let is_by_peers = window_frame.units == WindowFrameUnits::Range && !has_distance(window_frame);
            if is_by_peers && order_by.iter().any(has_no_distance) {
                // By groups it is the same, of types that have no distance as well.
                let (start, end) = (window_frame.start_bound.clone(), window_frame.end_bound.clone());
                *window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, start, end);
            }
            if let [by] = order_by.as_mut_slice()
                && has_distance(window_frame)
            {
                match by.expr.get_type(schema) {
                    Ok(data_type) if is_signed(&data_type) && frames::longer_scale(window_frame, 0).is_some() => {
                        return Err(external(SqlError::unsupported(
                            "RANGE with a distance in decimals from an integer",
                        )));
                    }
                    // Where key and distance have no sum in the key's type, the frame would take in NULLs.
                    Ok(DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64) => {
                        let wider = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);
                        become_type(&mut by.expr, &wider, schema)?;
                    }
                    Ok(DataType::Date32 | DataType::Timestamp(..)) => frames::over_moments(&mut by.expr, window_frame)?,
                    // A distance, and its sum with a key, may have more digits than the key's type.
                    Ok(DataType::Decimal128(_, scale)) => {
                        let scale = frames::longer_scale(window_frame, scale).unwrap_or(scale);
                        let wider = DataType::Decimal128(ColumnType::PRECISION_MAX, scale);
                        become_type(&mut by.expr, &wider, schema)?;
                    }
                    _ => {}
                }
            }
            Expr::WindowFunction(function)
        }
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

/// Refuses the number of a row or of parts that is not above zero. DataFusion counts from the end, or fails.
fn check_place(function: &WindowFunction) -> Result<()> {
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

/// Gives `lag` and `lead` the common type of their values and of what stands where there is no row. DataFusion gives the latter the type of the values.
fn with_another(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
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

/// LIKE with a pattern that is no constant, that ends with its escape or has another one than DataFusion's, by our own function.
fn like_typed(like: Like, schema: &DFSchema) -> Expr {
    let escape = like.escape_char.unwrap_or('\\');
    let is_plain = match like.pattern.as_ref() {
        Expr::Placeholder(_) => true,
        Expr::Literal(value, _) if value.is_null() => true,
        pattern => bare_string(pattern).is_some_and(|pattern| {
            let escapes = pattern.chars().rev().take_while(|c| *c == '\\').count();
            escape == '\\' && escapes % 2 == 0
        }),
    };
    let is_text = |expression: &Expr| type_of(expression, schema).is_ok_and(|t| t.is_string());
    if is_plain || !is_text(&like.expr) || !is_text(&like.pattern) {
        return Expr::Like(like);
    }
    let matched = functions::like(*like.expr, *like.pattern, like.case_insensitive, escape);
    if like.negated { Expr::Not(Box::new(matched)) } else { matched }
}

/// Whether an expression may stand before `IS TRUE`.
fn is_boolean(expression: &Expr, schema: &DFSchema) -> bool {
    matches!(type_of(expression, schema), Ok(DataType::Boolean | DataType::Null))
}

/// `inner IS TRUE` and its like in the words that DataFusion's physical plan has for them. By those they may be NULL, by the logical plan they may
/// not, and an aggregate's input has to be the same in both.
fn known_boolean(inner: Box<Expr>, op: Operator, wanted: bool) -> Expr {
    Expr::BinaryExpr(BinaryExpr { left: inner, op, right: Box::new(lit(wanted)) })
}

/// Functions that PostgreSQL has of double precision, beside those of decimals, and that DataFusion has of single precision as well.
const OF_DOUBLES: [&str; 26] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "cot", "degrees", "exp",
    "floor", "ln", "log", "log10", "power", "radians", "round", "sin", "sqrt", "tan", "tanh", "trunc",
];

/// The arguments of functions that calculate: a REAL is one of double precision there, and so is an integer that is rounded, which with a number of digits
/// is a decimal.
fn rounded(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    if OF_DOUBLES.contains(&name) {
        let is_rounded = matches!(name, "ceil" | "floor" | "round" | "trunc");
        let digits = arguments.len() > 1;
        for argument in arguments.iter_mut().take(if is_rounded { 1 } else { usize::MAX }) {
            match type_of(argument, schema) {
                Ok(DataType::Float32) => become_type(argument, &DataType::Float64, schema)?,
                Ok(integer) if is_rounded && is_signed(&integer) && digits => become_decimal(argument, schema)?,
                Ok(integer) if is_rounded && is_signed(&integer) => become_type(argument, &DataType::Float64, schema)?,
                _ => {}
            }
        }
    }
    match (name, arguments) {
        // Rounded up, a number may have a digit more.
        ("ceil" | "floor", [argument]) => match type_of(argument, schema) {
            Ok(DataType::Decimal128(_, scale)) => {
                become_type(argument, &DataType::Decimal128(ColumnType::PRECISION_MAX, scale), schema)
            }
            _ => Ok(()),
        },
        // By a literal of another type than DataFusion's own, the type of the result would change when that is cast.
        ("round", [_, places]) => {
            if let Expr::Literal(ScalarValue::Int64(Some(count)), _) = places
                && let Ok(count) = i32::try_from(*count)
            {
                *places = lit(count);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A date where a function takes timestamps, which it becomes by our own cast: DataFusion's has no infinity.
fn date_as_timestamp(moment: &mut Expr, schema: &DFSchema) -> Result<()> {
    let is_date = type_of(moment, schema).is_ok_and(|data_type| data_type == DataType::Date32);
    if is_date { become_type(moment, &TIMESTAMP, schema) } else { Ok(()) }
}

/// The bare strings among the arguments of functions that take another type there. Texts are refused.
fn untyped_read(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    let read = |argument: &mut Expr, data_type: &DataType| {
        if is_bare_string(argument) {
            return become_type(argument, data_type, schema);
        }
        let is_text = type_of(argument, schema).is_ok_and(|data_type| data_type.is_string());
        if is_text { Err(added::not_taken(name)) } else { Ok(()) }
    };
    match (name, arguments) {
        ("encode", [bytes, _]) => read(bytes, &DataType::Binary),
        ("get_byte", [bytes, place]) => {
            read(bytes, &DataType::Binary)?;
            read(place, &DataType::Int32)
        }
        ("age", [a, b]) => {
            for moment in [a, b] {
                read(moment, &TIMESTAMP)?;
                date_as_timestamp(moment, schema)?;
            }
            Ok(())
        }
        ("date_trunc", [_, moment]) => date_as_timestamp(moment, schema),
        ("width_bucket", [_, thresholds]) if type_of(thresholds, schema).is_ok_and(|of| of.is_list()) => {
            Err(external(SqlError::unsupported("width_bucket of an array")))
        }
        ("width_bucket", [of, low, high, count]) => {
            let mut numbers = [of, low, high];
            let known = numbers.iter().filter(|of| !is_untyped(of)).filter_map(|of| type_of(of, schema).ok());
            // A string has digits of its own.
            let number = match added::number_of_buckets(&known.collect::<Vec<_>>()) {
                DataType::Decimal128(..) => ANY_DECIMAL,
                float => float,
            };
            numbers.iter_mut().try_for_each(|argument| read(argument, &number))?;
            read(count, &DataType::Int32)
        }
        ("substr" | "substring", [of, places @ ..]) => {
            let is = |argument: &Expr, is_one: fn(&DataType) -> bool| {
                type_of(argument, schema).is_ok_and(|data_type| is_one(&data_type))
            };
            let is_by_place = name == "substr"
                || is(of, DataType::is_binary)
                || places.iter().any(|place| is(place, DataType::is_integer));
            let mut places = places.iter_mut().filter(|_| is_by_place);
            places.try_for_each(|place| read(place, &DataType::Int32))
        }
        _ => Ok(()),
    }
}

/// The text of a value as clients get it, which of a boolean is not that of a cast.
fn printed(argument: &mut Expr, schema: &DFSchema) -> Result<()> {
    // A parameter may have no type yet.
    let Ok(data_type) = type_of(argument, schema) else { return Ok(()) };
    let from = from_arrow(&data_type);
    if from.is_some_and(ColumnType::is_text) {
        return Ok(());
    }
    let inner = std::mem::replace(argument, lit(ScalarValue::Null));
    *argument = match from {
        Some(ColumnType::Boolean) => {
            let word = |value: bool, word: &str| (Box::new(lit(value)), Box::new(lit(word)));
            let when_then_expr = vec![word(true, "t"), word(false, "f")];
            Expr::Case(Case { expr: Some(Box::new(inner)), when_then_expr, else_expr: None })
        }
        _ => explicit_cast(inner, ColumnType::Text, &DataType::Utf8View, schema)?,
    };
    Ok(())
}

/// Whether a frame goes by range up to some distance from its row.
fn has_distance(frame: &WindowFrame) -> bool {
    let is_distance = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => !value.is_null(),
        WindowFrameBound::CurrentRow => false,
    };
    frame.units == WindowFrameUnits::Range && (is_distance(&frame.start_bound) || is_distance(&frame.end_bound))
}

/// A number literal as a value of a type that PostgreSQL gives it: the parser makes decimals of negative scale and
/// unsigned integers, too.
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

fn case_typed(case: Case, schema: &DFSchema) -> Result<Case> {
    let Case { expr: mut operand, mut when_then_expr, mut else_expr } = case;
    if let Some(operand) = &mut operand {
        let whens = when_then_expr.iter_mut().map(|(when, _)| when.as_mut());
        together(&mut std::iter::once(operand.as_mut()).chain(whens).collect::<Vec<_>>(), schema, Common::Comparison)?;
    }
    let thens = when_then_expr.iter_mut().map(|(_, then)| then.as_mut());
    let mut results: Vec<&mut Expr> = thens.chain(else_expr.iter_mut().map(AsMut::as_mut)).collect();
    together(&mut results, schema, Common::Result)?;
    // What is calculated with it sees the type of the first result, until DataFusion has found the common one.
    let types = results.iter().map(|result| type_of(result, schema)).collect::<Result<Vec<_>>>();
    let known: Vec<DataType> = types.into_iter().flatten().filter(|data_type| !data_type.is_null()).collect();
    if let Some(exact) = common_exact(&known) {
        for result in results {
            *result = std::mem::replace(result, lit(ScalarValue::Null)).cast_to(&exact, schema)?;
        }
    }
    Ok(Case { expr: operand, when_then_expr, else_expr })
}

fn binary_typed(binary: BinaryExpr, schema: &DFSchema) -> Result<Expr> {
    use Operator as O;
    let BinaryExpr { mut left, op, mut right } = binary;
    if quantified::take_mark(&mut left) && is_char(&left, schema) && is_untyped(&right) {
        return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
    }
    let arithmetic = match op {
        O::Eq | O::NotEq | O::Lt | O::LtEq | O::Gt | O::GtEq | O::IsDistinctFrom | O::IsNotDistinctFrom => {
            together(&mut [&mut left, &mut right], schema, Common::Comparison)?;
            return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
        }
        O::StringConcat => {
            concatenated(&mut [&mut left, &mut right], schema)?;
            return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
        }
        O::Plus => Arithmetic::Add,
        O::Minus => Arithmetic::Subtract,
        O::Multiply => Arithmetic::Multiply,
        O::Divide => Arithmetic::Divide,
        O::Modulo => Arithmetic::Remainder,
        _ => return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right })),
    };
    if op == O::Minus && is_difference(&left, &right, schema) {
        return difference(*left, *right, schema);
    }
    let is_date = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type == DataType::Date32);
    let is_moment = |side: &Expr| type_of(side, schema).is_ok_and(|t| t == DataType::Date32 || t == TIMESTAMP);
    let is_interval = |side: &Expr| is_interval(side, schema);
    let is_days = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type.is_integer());
    match op {
        O::Plus | O::Minus if is_date(&left) && is_days(&right) => {
            return Ok(dates::plus_days(arithmetic, *left, *right));
        }
        O::Plus if is_days(&left) && is_date(&right) => return Ok(dates::plus_days(arithmetic, *right, *left)),
        O::Minus if is_date(&left) && is_date(&right) => return Ok(dates::days_between(*left, *right)),
        O::Plus | O::Minus if is_moment(&left) && is_interval(&right) => {
            return Ok(dates::plus_interval(arithmetic, *left, *right));
        }
        O::Plus if is_interval(&left) && is_moment(&right) => {
            return Ok(dates::plus_interval(arithmetic, *right, *left));
        }
        O::Multiply | O::Divide if is_scaled(arithmetic, &left, &right, schema) => {
            return scaled(arithmetic, *left, *right, schema);
        }
        _ => {}
    }
    let numbers = [&left, &right]
        .iter()
        .all(|e| is_bare_string(e) || type_of(e, schema).is_ok_and(|data_type| data_type.is_numeric()));
    if !numbers {
        return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
    }
    together(&mut [&mut left, &mut right], schema, Common::Arithmetic)?;
    for side in [&mut left, &mut right] {
        // DataFusion's functions give types that PostgreSQL does not have.
        let data_type = match type_of(side, schema)? {
            DataType::Int8 | DataType::UInt8 => DataType::Int16,
            DataType::UInt16 => DataType::Int32,
            DataType::UInt32 | DataType::UInt64 => DataType::Int64,
            _ => continue,
        };
        become_type(side, &data_type, schema)?;
    }
    let (a, b) = (type_of(&left, schema)?, type_of(&right, schema)?);
    let mut is_checked = a.is_floating() && a == b && arithmetic != Arithmetic::Remainder;
    if is_signed(&a) && is_signed(&b) {
        let wider = if a.primitive_width() >= b.primitive_width() { a } else { b };
        become_type(&mut left, &wider, schema)?;
        become_type(&mut right, &wider, schema)?;
        // Arrow's own division fails as it should.
        is_checked = !matches!(arithmetic, Arithmetic::Divide | Arithmetic::Remainder);
    } else if arithmetic == Arithmetic::Divide && [&a, &b].into_iter().all(|t| is_signed(t) || is_decimal(t)) {
        for side in [&mut left, &mut right] {
            become_decimal(side, schema)?;
        }
        is_checked = true;
    } else if matches!(arithmetic, Arithmetic::Multiply | Arithmetic::Remainder) {
        is_checked |= arithmetic == Arithmetic::Multiply && is_long_product(&left, &right, schema);
        // DataFusion 55 makes a factor of `a * 0` and `a * 1`, whose type is another one, and 0 of `a % 1`.
        let are_decimals = [&a, &b].into_iter().all(|t| is_signed(t) || is_decimal(t));
        if are_decimals && [&left, &right].into_iter().any(|side| side.column_refs().is_empty()) {
            for side in [&mut left, &mut right] {
                become_decimal(side, schema)?;
            }
            is_checked = true;
        }
    }
    Ok(if is_checked {
        functions::checked(arithmetic, *left, *right)
    } else {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
    })
}

/// Whether two factors are decimals whose product has more digits than fit. Arrow's product is exact, and an error where its digits do not fit.
fn is_long_product(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    match (type_of(left, schema), type_of(right, schema)) {
        (Ok(DataType::Decimal128(p, s)), Ok(DataType::Decimal128(q, t))) => {
            p + q > ColumnType::PRECISION_MAX && s + t > functions::PRODUCT_SCALE.cast_signed()
        }
        _ => false,
    }
}

/// Whether two decimals are made of a parameter, whose value has digits of its own: DataFusion asks for the type of what is calculated with it right when it is
/// put in, and Arrow may have none for so many digits.
fn is_of_parameter(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_decimal = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| is_decimal(&data_type));
    let has_parameter = |side: &Expr| side.exists(|part| Ok(matches!(part, Expr::Placeholder(_)))).unwrap_or(false);
    is_decimal(left) && is_decimal(right) && (has_parameter(left) || has_parameter(right))
}

/// Whether one side is a timestamp, and the other one is that too, a date, or a string that is read as one.
fn is_difference(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_timestamp = |side: &Expr| matches!(type_of(side, schema), Ok(DataType::Timestamp(..)));
    let is_moment = |side: &Expr| is_bare_string(side) || matches!(type_of(side, schema), Ok(DataType::Date32));
    match (is_timestamp(left), is_timestamp(right)) {
        (true, true) => true,
        (true, false) => is_moment(right),
        (false, true) => is_moment(left),
        (false, false) => false,
    }
}

fn is_interval(side: &Expr, schema: &DFSchema) -> bool {
    type_of(side, schema).is_ok_and(|data_type| matches!(data_type, DataType::Interval(_)))
}

/// Whether one side is an interval and the other one can be a factor of it.
fn is_scaled(op: Arithmetic, left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_factor = |side: &Expr| {
        let is_number = |data_type: DataType| data_type.is_numeric() || data_type.is_null();
        is_bare_string(side) || is_untyped_parameter(side) || type_of(side, schema).is_ok_and(is_number)
    };
    is_interval(left, schema) && is_factor(right)
        || op == Arithmetic::Multiply && is_interval(right, schema) && is_factor(left)
}

fn is_untyped_parameter(side: &Expr) -> bool {
    matches!(side, Expr::Placeholder(parameter) if parameter.field.is_none())
}

/// The product or the quotient of an interval.
fn scaled(op: Arithmetic, left: Expr, right: Expr, schema: &DFSchema) -> Result<Expr> {
    let (interval, mut factor) = if is_interval(&left, schema) { (left, right) } else { (right, left) };
    match &mut factor {
        Expr::Placeholder(Placeholder { field: field @ None, .. }) => {
            *field = Some(Arc::new(Field::new("factor", DataType::Float64, true)));
        }
        factor => become_type(factor, &DataType::Float64, schema)?,
    }
    Ok(intervals::scaled(op, interval, factor))
}

fn difference(mut left: Expr, mut right: Expr, schema: &DFSchema) -> Result<Expr> {
    for side in [&mut left, &mut right] {
        become_type(side, &TIMESTAMP, schema)?;
    }
    Ok(intervals::difference(left, right))
}

/// The sides of `||`: bytes with bytes, everything else as its text.
fn concatenated(sides: &mut [&mut Expr; 2], schema: &DFSchema) -> Result<()> {
    if sides.iter().any(|side| type_of(side, schema).is_ok_and(|t| t.is_binary())) {
        return together(sides, schema, Common::Result);
    }
    let texts = sides.iter().filter(|side| type_of(side, schema).is_ok_and(|t| t.is_string())).count();
    for side in sides {
        let data_type = type_of(side, schema)?;
        let is_other = from_arrow(&data_type).is_none_or(|t| !t.is_text());
        // A list takes the text as one more element.
        if texts == 1 && is_other && !data_type.is_null() && !data_type.is_list() {
            let inner = std::mem::replace(*side, lit(ScalarValue::Null));
            **side = explicit_cast(inner, ColumnType::Text, &DataType::Utf8View, schema)?;
        }
    }
    Ok(())
}

/// Refuses texts beside what is read of no text unless it is a bare string, where one of them is the result.
fn no_texts_with_others(arguments: &[Expr], schema: &DFSchema) -> Result<()> {
    let known = || arguments.iter().filter(|of| !is_bare_string(of)).filter_map(|of| type_of(of, schema).ok());
    let other = known().find(added::is_read_of_bare_strings);
    let Some(other) = other.filter(|_| known().any(|of| of.is_string())) else { return Ok(()) };
    let name = from_arrow(&other).map_or_else(|| "interval".to_owned(), |other| other.to_string());
    let message = format!("COALESCE types text and {name} cannot be matched");
    Err(external(SqlError::new(SqlState::DATATYPE_MISMATCH, message)))
}

/// The type of NULLIF where its first argument becomes another one only to be compared, and the value becomes again what it was. PostgreSQL has an `=`
/// of integers of several sizes, of a REAL beside other numbers and of a DATE beside a TIMESTAMP.
fn kept_by_null_if(arguments: &[Expr], schema: &DFSchema) -> Option<ColumnType> {
    let [first, second] = arguments else { return None };
    let type_of = |of: &Expr| type_of(of, schema).ok().as_ref().and_then(from_arrow);
    let (first, second) = (type_of(first)?, type_of(second)?);
    is_kept_by_null_if(first, second).then_some(first)
}

/// Why expressions have one type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Common {
    /// They are compared.
    Comparison,
    /// They are compared, and the first one is the result.
    Equality,
    /// They are calculated with.
    Arithmetic,
    /// One of them is the result.
    Result,
}

fn is_signed(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int16 | DataType::Int32 | DataType::Int64)
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..))
}

/// A string literal without a type of its own.
pub(super) fn is_bare_string(expression: &Expr) -> bool {
    matches!(
        expression,
        Expr::Literal(ScalarValue::Utf8(Some(_)) | ScalarValue::Utf8View(Some(_)) | ScalarValue::LargeUtf8(Some(_)), _)
    )
}

/// Whether an element of an array has no type of its own. An array of such ones is one of TEXT, whose blanks count beside a CHAR.
fn is_untyped(element: &Expr) -> bool {
    is_bare_string(element) || matches!(element, Expr::Literal(value, _) if value.is_null())
}

/// The type of an expression that is a CHAR(n) or VARCHAR(n).
fn limited_text(expression: &Expr, schema: &DFSchema) -> Option<ColumnType> {
    let (_, field) = expression.to_field(schema).ok()?;
    from_field(&field).filter(|of| matches!(of, ColumnType::Char(_) | ColumnType::Varchar(_)))
}

/// Whether an expression has the type CHAR(n).
pub(super) fn is_char(expression: &Expr, schema: &DFSchema) -> bool {
    matches!(limited_text(expression, schema), Some(ColumnType::Char(_)))
}

/// Puts a cast of an expression in its place.
fn become_cast(expression: &mut Expr, to: ColumnType) {
    let inner = std::mem::replace(expression, lit(ScalarValue::Null));
    *expression = functions::cast(inner, to);
}

/// Gives expressions that are compared, or that stand for each other, the type that PostgreSQL gives them. What DataFusion
/// resolves in the same way stays as it is.
fn together(expressions: &mut [&mut Expr], schema: &DFSchema, common: Common) -> Result<()> {
    let is_compared = matches!(common, Common::Comparison | Common::Equality);
    if is_compared && expressions.iter().any(|e| !is_bare_string(e) && is_char(e, schema)) {
        let types = expressions.iter().filter(|e| !is_untyped(e)).filter_map(|e| type_of(e, schema).ok());
        let types: Vec<DataType> = types.filter(|data_type| !data_type.is_null()).collect();
        if let Some((first, rest)) = types.split_first() {
            rest.iter().try_for_each(|other| compared(first, other))?;
        }
        return expressions.iter_mut().try_for_each(|expression| become_char(expression, schema));
    }
    let is_first_char = expressions.iter().find(|e| !is_untyped(e)).is_some_and(|first| is_char(first, schema));
    if common == Common::Result && is_first_char {
        // As CHARs the others have no blanks at their ends.
        for expression in expressions.iter_mut().filter(|e| !is_untyped(e) && limited_text(e, schema).is_none()) {
            if type_of(expression, schema)?.is_string() {
                become_cast(expression, ColumnType::Char(ColumnType::CHARACTERS_MAX));
                become_cast(expression, ColumnType::Text);
            }
        }
    }
    let mut known = Vec::with_capacity(expressions.len());
    for expression in expressions.iter().filter(|e| !is_untyped(e)) {
        match type_of(expression, schema) {
            Ok(DataType::Null) => {}
            Ok(data_type) => known.push(data_type),
            // A parameter whose type is not known yet.
            Err(_) => return Ok(()),
        }
    }
    if let Some((first, rest)) = known.split_first().filter(|_| is_compared) {
        rest.iter().try_for_each(|other| compared(first, other))?;
    }
    if let Some(float) = common_float(&known, common) {
        let float = if float == DataType::Float64 && common == Common::Comparison && all_exact(expressions, schema) {
            DataType::Float32
        } else {
            float
        };
        for expression in expressions.iter_mut() {
            become_type(expression, &float, schema)?;
        }
        return Ok(());
    }
    if let Some(moment) = common_moment(&known) {
        for expression in expressions.iter_mut() {
            become_type(expression, &moment, schema)?;
        }
        return Ok(());
    }
    let Some(data_type) = widest(&known) else { return Ok(()) };
    for expression in expressions.iter_mut().filter(|e| is_bare_string(e)) {
        become_type(expression, &data_type, schema)?;
    }
    Ok(())
}

/// The float that numbers of several types become.
fn common_float(known: &[DataType], common: Common) -> Option<DataType> {
    let any = |data_type: &DataType| known.contains(data_type);
    let first = known.first()?;
    if !known.iter().all(DataType::is_numeric) || !(any(&DataType::Float32) || any(&DataType::Float64)) {
        return None;
    }
    if known.iter().all(|t| t == first) {
        return Some(first.clone());
    }
    Some(if any(&DataType::Float64) || common != Common::Result { DataType::Float64 } else { DataType::Float32 })
}

/// The exact number that exact numbers of several types become, as DataFusion will have it.
fn common_exact(known: &[DataType]) -> Option<DataType> {
    let (first, rest) = known.split_first()?;
    if !known.iter().all(|t| is_signed(t) || is_decimal(t)) || rest.iter().all(|t| t == first) {
        return None;
    }
    rest.iter().try_fold(first.clone(), |common, other| type_union_coercion(&common, other))
}

/// TEXT, where texts of several types stand in a column.
fn common_text<'a>(fields: impl Iterator<Item = &'a Field>) -> Option<DataType> {
    let types: Option<Vec<ColumnType>> = fields.map(from_field).collect();
    let types = types?;
    let is_mixed = types.iter().all(|t| t.is_text()) && types.iter().any(|t| t != &types[0]);
    is_mixed.then_some(DataType::Utf8View)
}

/// The type that numbers or moments of several types become where one of them is the result.
fn common_result(known: &[DataType]) -> Option<DataType> {
    common_float(known, Common::Result).or_else(|| common_moment(known)).or_else(|| common_exact(known))
}

/// The type of a parameter that stands among expressions of these types and may be the result as they are; `None` if they have none in common.
pub(super) fn common_type(known: &[DataType]) -> Option<DataType> {
    let (first, rest) = known.split_first()?;
    if rest.iter().all(|other| other == first) {
        return Some(first.clone());
    }
    common_result(known).or_else(|| known.iter().all(DataType::is_string).then_some(DataType::Utf8View))
}

/// The timestamp that dates beside timestamps become, which has microseconds.
fn common_moment(known: &[DataType]) -> Option<DataType> {
    let is_mixed = known.contains(&DataType::Date32) && known.contains(&TIMESTAMP);
    (is_mixed && known.iter().all(|t| matches!(t, DataType::Date32) || *t == TIMESTAMP)).then_some(TIMESTAMP)
}

/// Whether all are of single precision, or literals that single precision holds exactly: then they compare in it as they do
/// in double precision, and a table's rows can be compared in place.
fn all_exact(expressions: &[&mut Expr], schema: &DFSchema) -> bool {
    expressions.iter().all(|expression| match expression {
        Expr::Literal(value, _) => {
            let double = literal(value).and_then(|datum| cast_value(datum, ColumnType::Double).ok());
            let exact = |v: f64| f64::from(v as f32).to_bits() == v.to_bits();
            matches!(double, Some(Datum::Double(v)) if exact(v))
        }
        other => other.get_type(schema).is_ok_and(|data_type| data_type == DataType::Float32),
    })
}

/// The type among those known that a bare string beside them is read as.
fn widest(known: &[DataType]) -> Option<DataType> {
    let first = known.first()?;
    if known.iter().all(|t| t == first) {
        return Some(first.clone());
    }
    if known.iter().all(is_signed) {
        return known.iter().max_by_key(|t| t.primitive_width()).cloned();
    }
    if known.iter().all(|t| is_signed(t) || is_decimal(t)) {
        return known.iter().find(|t| is_decimal(t)).cloned();
    }
    None
}

fn bare_string(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Literal(value, _) if is_bare_string(expression) => value.try_as_str().flatten().map(str::to_owned),
        _ => None,
    }
}

/// A literal's value, if it has one of our types.
fn literal(value: &ScalarValue) -> Option<Datum> {
    from_arrow(&value.data_type())?;
    datum_at(&value.to_array().ok()?, 0).ok()
}

/// The literal of a value. A decimal has its own digits.
fn literal_of(datum: &Datum, data_type: ColumnType) -> Result<Expr> {
    let scalar = match datum {
        Datum::Decimal { unscaled, scale } => decimal_scalar(*unscaled, *scale),
        datum => to_scalar(datum, data_type).map_err(external)?,
    };
    Ok(lit(scalar))
}

/// A decimal of no more digits than it needs.
pub(super) fn decimal_scalar(unscaled: i128, scale: u8) -> ScalarValue {
    let digits = unscaled.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
    let precision = u8::try_from(digits).unwrap_or(ColumnType::PRECISION_MAX).max(scale);
    ScalarValue::Decimal128(Some(unscaled), precision.clamp(1, ColumnType::PRECISION_MAX), scale.cast_signed())
}

/// Takes the blanks at the end of what is compared with a CHAR(n): a bare string or a VARCHAR(n). Those of a TEXT count. A constant that is a CHAR(n)
/// becomes a text, which has no blanks then: DataFusion takes equal constants for different ones if one of them has a type of ours.
fn become_char(expression: &mut Expr, schema: &DFSchema) -> Result<()> {
    if let Some(text) = bare_string(expression) {
        *expression = lit(ScalarValue::Utf8View(Some(text.trim_end_matches(' ').to_owned())));
    } else if matches!(limited_text(expression, schema), Some(ColumnType::Varchar(_)))
        && !scalars::become_char(expression)?
    {
        become_cast(expression, ColumnType::Char(ColumnType::CHARACTERS_MAX));
    }
    if is_char(expression, schema) && expression.column_refs().is_empty() {
        become_cast(expression, ColumnType::Text);
    }
    Ok(())
}

/// Gives an expression a type to which it can be cast without being asked.
fn become_type(expression: &mut Expr, data_type: &DataType, schema: &DFSchema) -> Result<()> {
    let from = match bare_string(expression) {
        Some(text) if *data_type == INTERVAL => {
            *expression = intervals::literal(&text)?;
            return Ok(());
        }
        Some(text) => {
            let Some(to) = from_arrow(data_type).filter(|to| !to.is_text() && to_arrow(*to) == *data_type) else {
                return Ok(());
            };
            let datum = parse_datum(&text, to).map_err(external)?;
            *expression = literal_of(&datum, to)?;
            return Ok(());
        }
        None => type_of(expression, schema)?,
    };
    if from == *data_type || from.is_null() {
        return Ok(());
    }
    let to = from_arrow(data_type);
    if let (Expr::Literal(value, _), Some(to)) = (&*expression, to)
        && let Some(datum) = literal(value)
    {
        *expression = lit(to_scalar(&cast_value(datum, to)?, to).map_err(external)?);
        return Ok(());
    }
    let inner = std::mem::replace(expression, lit(ScalarValue::Null));
    *expression = match to {
        Some(to) if is_decimal(&from) && data_type.is_floating() => functions::cast(inner, to),
        Some(to @ ColumnType::Timestamp) if from == DataType::Date32 => functions::cast(inner, to),
        _ => inner.cast_to(data_type, schema)?,
    };
    Ok(())
}

/// An integer as a decimal of as many digits.
fn become_decimal(expression: &mut Expr, schema: &DFSchema) -> Result<()> {
    let digits = match type_of(expression, schema)? {
        DataType::Int16 => 5,
        DataType::Int32 => 10,
        DataType::Int64 => 19,
        _ => return Ok(()),
    };
    become_type(expression, &DataType::Decimal128(digits, 0), schema)
}

fn cast_typed(cast: Cast, schema: &DFSchema) -> Result<Expr> {
    let name = cast.field.metadata().get(TYPE_KEY);
    let digits = name.and_then(|name| name.strip_prefix("timestamp(")?.strip_suffix(')')?.parse().ok());
    let cast = any_cast_typed(cast, schema)?;
    Ok(match digits {
        Some(digits) => functions::with_digits(cast, digits),
        None => cast,
    })
}

fn any_cast_typed(cast: Cast, schema: &DFSchema) -> Result<Expr> {
    let Cast { expr: inner, field } = cast;
    let from = type_of(&inner, schema)?;
    let any_digits = field.metadata().get(TYPE_KEY).is_some_and(|name| name == ANY_NUMERIC);
    let plain = |inner: Box<Expr>, field: &Field| Ok(Expr::Cast(Cast::new(inner, field.data_type().clone())));
    if from.is_null() {
        return plain(inner, &field);
    }
    if *field.data_type() == INTERVAL && from.is_string() {
        return match bare_string(&inner) {
            Some(text) => intervals::literal(&text),
            None => Ok(intervals::read(*inner)),
        };
    }
    if any_digits {
        if is_decimal(&from) {
            return Ok(*inner);
        }
        if is_signed(&from) {
            let mut decimal = *inner;
            become_decimal(&mut decimal, schema)?;
            return Ok(decimal);
        }
        if let Some(text) = bare_string(&inner) {
            let to = ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale: 0 };
            return literal_of(&parse_datum(&text, to).map_err(external)?, to);
        }
    }
    let to = if any_digits { from_arrow(field.data_type()) } else { from_field(&field) };
    match to.filter(|to| to_arrow(*to) == *field.data_type() || to.is_text()) {
        Some(to) => explicit_cast(*inner, to, field.data_type(), schema),
        None => plain(inner, &field),
    }
}

/// `CAST(inner AS to)`: by our own function where Arrow's cast gives something else.
fn explicit_cast(inner: Expr, to: ColumnType, arrow_type: &DataType, schema: &DFSchema) -> Result<Expr> {
    use ColumnType as T;
    let plain = |inner: Expr| Ok(Expr::Cast(Cast::new(Box::new(inner), arrow_type.clone())));
    let data_type = type_of(&inner, schema)?;
    let known = from_arrow(&data_type);
    if known.is_none() && to.is_text() {
        // Lists, intervals and times in Arrow's forms are not PostgreSQL's.
        return Ok(functions::cast(inner, to));
    }
    let Some(from) = known.filter(|from| from.is_text() || to_arrow(*from) == data_type) else {
        return plain(inner);
    };
    if !castable(from, to) {
        return Err(external(no_cast(from, to)));
    }
    #[expect(clippy::match_same_arms, reason = "they are asked in this order")]
    let arrow_is_right = match (from, to) {
        (from, T::Char(_) | T::Varchar(_)) if from.is_text() => false,
        // A text that was a CHAR(n) or VARCHAR(n) is compared as a text.
        (from, T::Text) if from.is_text() => limited_text(&inner, schema).is_none(),
        (from, to) if from.is_text() => to.is_text(),
        (T::Boolean | T::SmallInt | T::Int | T::BigInt, T::Text) => true,
        (_, to) if to.is_text() => false,
        (T::Real | T::Double | T::Decimal { .. }, T::SmallInt | T::Int | T::BigInt | T::Boolean) => false,
        (T::Real | T::Double, T::Decimal { .. }) | (T::Decimal { .. } | T::Double, T::Real) => false,
        (T::Decimal { .. }, T::Double) | (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => false,
        // DataFusion compares what is cast with a constant, and not the cast, as if it lost no decimals (55).
        (T::Decimal { scale, .. }, T::Decimal { scale: wanted, .. }) => wanted >= scale,
        _ => true,
    };
    if arrow_is_right {
        return plain(inner);
    }
    match &inner {
        Expr::Literal(value, _) if !matches!(to, T::Char(_)) => match literal(value) {
            Some(datum) => {
                let datum = cast_value(datum, to)?;
                Ok(lit(to_scalar(&datum, to).map_err(external)?))
            }
            None => plain(inner),
        },
        _ => Ok(functions::cast(inner, to)),
    }
}
