//! ANY and ALL over arrays and queries.
//!
//! | written | planned as |
//! |---|---|
//! | `x = ANY (SELECT …)`, `x <> ALL (SELECT …)` | IN, NOT IN |
//! | `x op ANY (SELECT …)` in WHERE and HAVING | unchanged: DataFusion joins it |
//! | `x op ANY (SELECT …)` as a value, for which DataFusion has no join | a comparison with the least and the greatest value: [`by_extremes`] |
//! | `x IN (SELECT …)`, where `x` is a subquery | a comparison of the number of equal values |
//! | `x = ANY (ARRAY[a, b])`, `x <> ALL ('{a, b}')` | `x IN (a, b)`, `x NOT IN (a, b)`; for a typed array, [marked](quantified::mark) |
//! | `x op ANY (ARRAY[a, b])` | `x op a OR x op b`, likewise; with AND for ALL |
//! | many elements, or `x op ANY (array)` of any other array | one of our functions: [`quantified`] |

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, BinaryOperator, CastKind, DataType as SqlType, Expr, Function, FunctionArguments, Ident, Query,
    Select, SelectItem, SetExpr, TableAlias, TableAliasColumnDef, TableFactor, TableWithJoins, UnaryOperator, Value,
    Visitor, VisitorMut,
};

use super::clauses::{self, Clauses, InClauses};
use super::quantified;
use super::rows::{check_made, linked, subqueries_in};
use super::scalars::EXTREME;
use super::subqueries::{self, binary, call, nested};
use crate::engine::parse::unnested;
use crate::engine::walk;
use crate::value::read_list;
use crate::{SqlError, SqlState};

/// See the module.
pub(super) struct Quantifiers<'a> {
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
    /// The number of subqueries made from rows that are compared with queries.
    made: usize,
    clauses: Clauses,
}

impl<'a> Quantifiers<'a> {
    pub(super) fn new(aggregates: &'a HashSet<String>) -> Self {
        Self { aggregates, made: 0, clauses: Clauses::default() }
    }
}

impl InClauses for Quantifiers<'_> {
    fn clauses(&mut self) -> &mut Clauses {
        &mut self.clauses
    }
}

impl VisitorMut for Quantifiers<'_> {
    type Break = SqlError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        clauses::begin(self, select)
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        clauses::end(self, select);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let replaced = match &*expr {
            Expr::AnyOp { left, compare_op, right, .. } => self.quantified(left, compare_op, right, false),
            Expr::AllOp { left, compare_op, right } => self.quantified(left, compare_op, right, true),
            Expr::InSubquery { expr: left, subquery, negated } if is_of_queries(left) => {
                by_count(left, subquery, *negated).map(Some)
            }
            Expr::BinaryOp { left, op, right } => match (width(left), unnested(right)) {
                (Some(width), Expr::Subquery(query)) => {
                    self.items(query, width).map(|row| Some(binary(*left.clone(), op.clone(), row)))
                }
                _ => Ok(None),
            },
            _ => return ControlFlow::Continue(()),
        };
        match replaced {
            Ok(Some(replaced)) => *expr = replaced,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

impl Quantifiers<'_> {
    /// See [`items`]. Each of the subqueries contains all nested subqueries of the query.
    fn items(&mut self, query: &Query, width: usize) -> Result<Expr, SqlError> {
        self.made += (subqueries_in(query) + 1).saturating_mul(width);
        check_made(self.made)?;
        items(query, width, self.aggregates)
    }

    fn quantified(
        &self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        is_all: bool,
    ) -> Result<Option<Expr>, SqlError> {
        let right = unnested(right);
        let Some((query, is_array)) = query_of(right) else {
            return of_array(left, op, right, is_all).map(Some);
        };
        let is_of_queries = is_of_queries(left);
        if is_row(left) && !is_list(op, is_all) {
            let quantifier = if is_all { "ALL" } else { "ANY" };
            return Err(SqlError::unsupported(format!("{op} {quantifier} of a row and a query")));
        }
        if is_list(op, is_all) {
            if is_of_queries {
                return by_count(left, query, is_all).map(Some);
            }
            let (expr, subquery) = (Box::new(left.clone()), Box::new(query.clone()));
            return Ok(Some(Expr::InSubquery { expr, subquery, negated: is_all }));
        }
        if self.clauses.is_condition && !is_array && !is_of_queries {
            return Ok(None);
        }
        by_extremes(left, op, query, is_all)
    }
}

/// `= ANY` is IN, and `<> ALL` is NOT IN.
fn is_list(op: &BinaryOperator, is_all: bool) -> bool {
    if is_all { *op == BinaryOperator::NotEq } else { *op == BinaryOperator::Eq }
}

fn is_row(expr: &Expr) -> bool {
    width(expr).is_some()
}

/// The number of columns of a row.
fn width(expr: &Expr) -> Option<usize> {
    match unnested(expr) {
        Expr::Tuple(columns) => Some(columns.len()),
        _ => None,
    }
}

/// Turns `(SELECT a, b …)`, compared with a row, into a row with one subquery per column. All must select the same row.
/// So LIMIT is refused, since each subquery may take another row; and so is DISTINCT, which leaves fewer rows of one
/// column than of all.
fn items(query: &Query, width: usize, aggregates: &HashSet<String>) -> Result<Expr, SqlError> {
    let is_whole = query.limit_clause.is_none() && query.fetch.is_none();
    let select = match query.body.as_ref() {
        SetExpr::Select(select) if is_whole && subqueries::is_plain(select) && select.distinct.is_none() => select,
        _ => return Err(SqlError::unsupported("this form of row comparison with a subquery")),
    };
    let is_column = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
    if !select.projection.iter().all(is_column) {
        return Err(SqlError::unsupported("a comparison of a row with a subquery of *"));
    }
    if select.projection.len() != width {
        let few = if select.projection.len() < width { "few" } else { "many" };
        return Err(SqlError::syntax(format!("subquery has too {few} columns")));
    }
    // An aggregate makes one row of all rows; a column beside it would belong to another row.
    let value_of = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } => Some(value.clone()),
        _ => None,
    };
    let values: Vec<Expr> = select.projection.iter().filter_map(value_of).collect();
    let is_aggregate = |value: &Expr| match unnested(value) {
        Expr::Function(function) => function.over.is_none() && subqueries::is_aggregate(function, aggregates),
        _ => false,
    };
    if values.len() > 1 && values.iter().any(calls) && !values.iter().all(is_aggregate) {
        return Err(SqlError::unsupported("a comparison of a row with a subquery that calls functions"));
    }
    let one = |item: &SelectItem| {
        let mut query = query.clone();
        query.order_by = None;
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.projection = vec![item.clone()];
        }
        Expr::Subquery(Box::new(query))
    };
    Ok(Expr::Tuple(select.projection.iter().map(one).collect()))
}

/// The query of `(SELECT …)` or `ARRAY(SELECT …)`, and whether it is the latter.
fn query_of(expr: &Expr) -> Option<(&Query, bool)> {
    match expr {
        Expr::Subquery(query) => Some((query.as_ref(), false)),
        Expr::Function(Function { name, args: FunctionArguments::Subquery(query), .. })
            if name.to_string().eq_ignore_ascii_case("array") =>
        {
            Some((query.as_ref(), true))
        }
        _ => None,
    }
}

/// The elements of an array written as a list or as a text, including those of nested arrays.
fn elements(expr: &Expr) -> Result<Option<Vec<Expr>>, SqlError> {
    Ok(match expr {
        Expr::Array(array) => listed(&array.elem),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(read_list(text)?.0.into_iter().map(bare).collect()),
            _ => None,
        },
        Expr::Cast { expr, data_type, .. } => {
            let Some(data_type) = element_type(data_type) else { return Ok(None) };
            let typed = |element: Expr| cast(element, data_type.clone());
            elements(unnested(expr))?.map(|elements| elements.into_iter().map(typed).collect())
        }
        _ => None,
    })
}

/// The elements of a list; `None` if it mixes arrays and other elements.
fn listed(elements: &[Expr]) -> Option<Vec<Expr>> {
    let inner = |element: &Expr| match unnested(element) {
        Expr::Array(array) => Some(array.elem.clone()),
        _ => None,
    };
    let arrays: Vec<Vec<Expr>> = elements.iter().filter_map(inner).collect();
    match arrays.first() {
        None => Some(elements.to_vec()),
        Some(first) => {
            let is_alike = arrays.len() == elements.len() && arrays.iter().all(|array| array.len() == first.len());
            if is_alike { listed(&arrays.concat()) } else { None }
        }
    }
}

/// The type of an array type's innermost elements.
fn element_type(data_type: &SqlType) -> Option<&SqlType> {
    let SqlType::Array(ArrayElemTypeDef::SquareBracket(of, _) | ArrayElemTypeDef::AngleBracket(of)) = data_type else {
        return None;
    };
    Some(element_type(of).unwrap_or(of))
}

/// An untyped element of an array's text.
fn bare(element: Option<String>) -> Expr {
    Expr::value(element.map_or(Value::Null, Value::SingleQuotedString))
}

fn cast(expr: Expr, data_type: SqlType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

/// The limit on elements that are compared one by one. More elements stay an array, which the planner cannot analyse.
const COMPARED_MAX: usize = 16;

/// The limit for operators that [`quantified`] does not support, and for rows.
const LINKED_MAX: usize = 1_000;

fn of_array(left: &Expr, op: &BinaryOperator, array: &Expr, is_all: bool) -> Result<Expr, SqlError> {
    let function = quantified::function_of(op, is_all).filter(|_| !is_row(left));
    if let Some(elements) = elements(array)?
        && (is_list(op, is_all) || elements.len() <= COMPARED_MAX || function.is_none())
    {
        // The elements of an untyped text have the type of `left`.
        let has_own_type = !matches!(array, Expr::Value(_));
        return of_elements(left, op, elements, is_all, has_own_type);
    }
    let Some(function) = function else {
        let quantifier = if is_all { "ALL" } else { "ANY" };
        return Err(SqlError::unsupported(format!("{op} {quantifier} of an array whose elements are not listed")));
    };
    let arguments = match array {
        // A cast text or parameter does not have an array type in the plan; its element type is passed as an argument.
        Expr::Cast { expr, data_type, .. } if matches!(unnested(expr), Expr::Value(_)) => match element_type(data_type)
        {
            Some(element) => vec![unnested(expr).clone(), cast(Expr::value(Value::Null), element.clone())],
            None => vec![array.clone()],
        },
        array => vec![array.clone()],
    };
    Ok(call(&function, std::iter::once(left.clone()).chain(arguments).collect()))
}

fn of_elements(
    left: &Expr,
    op: &BinaryOperator,
    elements: Vec<Expr>,
    is_all: bool,
    has_own_type: bool,
) -> Result<Expr, SqlError> {
    if elements.is_empty() {
        // The left operand stays, for its names and parameters, but has no effect.
        let nothing = Expr::value(Value::Boolean(is_all));
        let op = if is_all { BinaryOperator::Or } else { BinaryOperator::And };
        return Ok(binary(nested(Expr::IsNull(Box::new(nested(left.clone())))), op, nothing));
    }
    let compares = !is_row(left) && quantified::function_of(op, is_all).is_some();
    // A constant or a parameter has no type other than that of the elements.
    let is_marked = compares && has_own_type && !matches!(unnested(left), Expr::Value(_));
    let left = if is_marked { call(&quantified::mark(), vec![left.clone()]) } else { left.clone() };
    if is_list(op, is_all) {
        return Ok(Expr::InList { expr: Box::new(left), list: elements, negated: is_all });
    }
    if elements.len() > LINKED_MAX {
        let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "an array has too many elements for its operator");
        return Err(error.with_hint(format!("{op} accepts at most {LINKED_MAX} elements here.")));
    }
    let both = if is_all { BinaryOperator::And } else { BinaryOperator::Or };
    let compared = elements.into_iter().map(|element| binary(left.clone(), op.clone(), element));
    linked(compared.collect(), &both).ok_or_else(|| SqlError::internal("an array without elements"))
}

/// `x op ANY (SELECT c …)` with three-valued logic, from aggregates over all `c`:
///
/// ```text
///   (x op the greatest or the least c) IS TRUE OR NULL AND (some c is NULL OR x is NULL and there is some c)
/// ```
///
/// `<` and `<=` need the greatest, `>` and `>=` the least, `<>` both. ALL is the negation of ANY with the negated
/// operator. `None` for other operators.
fn by_extremes(left: &Expr, op: &BinaryOperator, query: &Query, is_all: bool) -> Result<Option<Expr>, SqlError> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let op = match (is_all, op) {
        (false, op) => op.clone(),
        (true, Eq) => NotEq,
        (true, Lt) => GtEq,
        (true, LtEq) => Gt,
        (true, Gt) => LtEq,
        (true, GtEq) => Lt,
        (true, _) => return Ok(None),
    };
    let extreme = |name: &str| -> Result<Expr, SqlError> {
        let extreme = aggregate(query, |value| call(name, vec![value]))?;
        Ok(binary(left.clone(), op.clone(), call(EXTREME, vec![extreme])))
    };
    let holds = match &op {
        NotEq => binary(extreme("min")?, Or, extreme("max")?),
        Lt | LtEq => extreme("max")?,
        Gt | GtEq => extreme("min")?,
        _ => return Ok(None),
    };
    any(holds, left, query, is_all).map(Some)
}

/// `x IN (SELECT c …)` where `x` is a subquery, which cannot be a join key: compares the number of equal values with 0.
fn by_count(left: &Expr, query: &Query, negated: bool) -> Result<Expr, SqlError> {
    let (relation, value) = relation(query.clone());
    let equal = binary(left.clone(), BinaryOperator::Eq, value);
    let found = over(relation, call("count", vec![number("1")]), Some(equal))?;
    any(binary(found, BinaryOperator::Gt, number("0")), left, query, negated)
}

/// `holds IS TRUE OR NULL AND (some c is NULL OR x is NULL and there is some c)`, negated if `negated`.
fn any(holds: Expr, left: &Expr, query: &Query, negated: bool) -> Result<Expr, SqlError> {
    use BinaryOperator::{And, Gt, Minus, Or};
    let count = |value: Expr| call("count", vec![value]);
    let rows = aggregate(query, |_| count(number("1")))?;
    let nulls = aggregate(query, |value| binary(count(number("1")), Minus, count(value)))?;
    let left_is_null = nested(Expr::IsNull(Box::new(nested(left.clone()))));
    let null_of_some = binary(left_is_null, And, binary(rows, Gt, number("0")));
    let null = cast(Expr::value(Value::Null), SqlType::Boolean);
    let unknown = binary(null, And, binary(binary(nulls, Gt, number("0")), Or, null_of_some));
    let any = binary(nested(Expr::IsTrue(Box::new(holds))), Or, unknown);
    Ok(if negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(any) } } else { any })
}

fn number(text: &str) -> Expr {
    Expr::value(Value::Number(text.to_owned(), false))
}

/// A subquery with an aggregate of the only column of `query`.
fn aggregate(query: &Query, of: impl Fn(Expr) -> Expr) -> Result<Expr, SqlError> {
    let mut inner = query.clone();
    let is_whole = inner.limit_clause.is_none() && inner.fetch.is_none();
    if let SetExpr::Select(select) = inner.body.as_mut()
        && is_whole
        && subqueries::is_plain(select)
        && let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] =
            select.projection.as_mut_slice()
        && !calls(value)
    {
        select.projection = vec![SelectItem::UnnamedExpr(of(value.clone()))];
        select.distinct = None;
        inner.order_by = None;
        return Ok(Expr::Subquery(Box::new(inner)));
    }
    let (relation, value) = relation(inner);
    over(relation, of(value), None)
}

/// A query as a relation, and its only column.
fn relation(query: Query) -> (TableWithJoins, Expr) {
    let name = |name: &str| Ident::with_quote('"', name);
    let columns = vec![TableAliasColumnDef { name: name("__value"), data_type: None }];
    let alias = Some(TableAlias { explicit: true, name: name("__all"), columns, at: None });
    let relation = TableFactor::Derived { lateral: false, subquery: Box::new(query), alias, sample: None };
    let value = Expr::CompoundIdentifier(vec![name("__all"), name("__value")]);
    (TableWithJoins { relation, joins: Vec::new() }, value)
}

/// `(SELECT item FROM relation WHERE selection)`.
fn over(relation: TableWithJoins, item: Expr, selection: Option<Expr>) -> Result<Expr, SqlError> {
    let mut query = subqueries::select(vec![SelectItem::UnnamedExpr(item)], vec![relation])?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.selection = selection;
    }
    Ok(Expr::Subquery(query))
}

/// Whether an expression other than a row contains a subquery, and no columns outside of it.
fn is_of_queries(expr: &Expr) -> bool {
    let is_column = |expr: &Expr| matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
    !is_row(expr) && walk::has_query(expr) && !walk::exists_outside_queries(expr, is_column)
}

/// Whether an expression calls a function, which may be an aggregate.
fn calls(expr: &Expr) -> bool {
    struct Calls;
    impl Visitor for Calls {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if matches!(expr, Expr::Function(_)) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    walk::visit(expr, &mut Calls).is_break()
}
