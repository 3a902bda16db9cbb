//! Rewrites comparisons of rows, `(a, b) = (c, d)`, to comparisons of their columns.
//!
//! DataFusion compares rows as structs, in which NULL is an ordinary value. In SQL the columns are compared one after
//! the other, and a NULL may make the whole result NULL: `(1, NULL) = (1, 2)` is NULL, `(1, NULL) = (2, 2)` is false.
//!
//! IN of a row and a query becomes two EXISTS: whether the query has the row, and whether it has one for which the
//! comparison is NULL. In WHERE and HAVING DataFusion joins both. Elsewhere it joins by equality only, so the second
//! one becomes one EXISTS for each combination of columns that are equal or NULL. Each contains the query once, and row
//! comparisons inside the query multiply, so their number per statement is limited.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, Select, SetExpr,
    TableFactor, TableWithJoins, UnaryOperator, Value, Visit, Visitor, VisitorMut,
};

use super::clauses::{self, Clauses, InClauses};
use super::subqueries::{binary, is_aggregate_expression, nested};
use crate::engine::parse::{SUBQUERIES_MAX, is_subquery, parse_expr};
use crate::engine::scalar::built_in_name;
use crate::engine::walk;
use crate::{SqlError, SqlState};

/// Rewrites comparisons of rows.
pub(super) struct Rows<'a> {
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
    /// The number of queries in which rows have been searched.
    queries: usize,
    /// The number of subqueries made from them, beyond those in the statement.
    made: usize,
    clauses: Clauses,
}

impl<'a> Rows<'a> {
    pub(super) fn new(aggregates: &'a HashSet<String>) -> Self {
        Self { aggregates, queries: 0, made: 0, clauses: Clauses::default() }
    }
}

/// The limit on columns of a row in IN with a query outside of conditions: three columns become 27 queries.
const COLUMNS_OF_VALUE_MAX: usize = 3;

impl InClauses for Rows<'_> {
    fn clauses(&mut self) -> &mut Clauses {
        &mut self.clauses
    }
}

impl VisitorMut for Rows<'_> {
    type Break = SqlError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        if let Some(condition) = &mut select.selection {
            self.conjunct(condition)?;
        }
        clauses::begin(self, select)
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        clauses::end(self, select);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        match self.expanded(expr) {
            Ok(Some(parts)) => *expr = parts,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

impl Rows<'_> {
    /// In a conjunct of a WHERE clause NULL is equivalent to false, so IN of a row and a query becomes a semi join.
    fn conjunct(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        match expr {
            Expr::Nested(inner) => self.conjunct(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                self.conjunct(left)?;
                self.conjunct(right)
            }
            Expr::InSubquery { expr: row, subquery, negated: false } => {
                let found = columns(row).map(|row| self.found(&row, subquery, true));
                match found.transpose() {
                    Ok(Some((found, _))) => *expr = found,
                    Ok(None) => {}
                    Err(error) => return ControlFlow::Break(error),
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn expanded(&mut self, expr: &Expr) -> Result<Option<Expr>, SqlError> {
        match expr {
            Expr::BinaryOp { left, op, right } => match (columns(left), columns(right)) {
                (Some(left), Some(right)) => compare(&left, op, &right),
                _ => Ok(None),
            },
            Expr::IsNull(row) => Ok(columns(row).and_then(|row| each(&row, Expr::IsNull))),
            Expr::IsNotNull(row) => Ok(columns(row).and_then(|row| each(&row, Expr::IsNotNull))),
            Expr::IsDistinctFrom(left, right) => distinct(left, right),
            Expr::IsNotDistinctFrom(left, right) => Ok(distinct(left, right)?.map(|expr| not(expr, true))),
            Expr::Between { expr, negated, low, high } => {
                let (Some(row), Some(low), Some(high)) = (columns(expr), columns(low), columns(high)) else {
                    return Ok(None);
                };
                let above = compare(&row, &BinaryOperator::GtEq, &low)?;
                let below = compare(&row, &BinaryOperator::LtEq, &high)?;
                Ok(above.zip(below).map(|(above, below)| not(binary(above, BinaryOperator::And, below), *negated)))
            }
            Expr::InList { expr, list, negated } => {
                let Some(row) = columns(expr) else { return Ok(None) };
                let mut equal = Vec::with_capacity(list.len());
                for item in list {
                    let Some(item) = columns(item) else { return Ok(None) };
                    let Some(one) = compare(&row, &BinaryOperator::Eq, &item)? else { return Ok(None) };
                    equal.push(one);
                }
                Ok(linked(equal, &BinaryOperator::Or).map(|any| not(any, *negated)))
            }
            Expr::InSubquery { expr, subquery, negated } => {
                let Some(row) = columns(expr) else { return Ok(None) };
                self.count(&row, subquery)?;
                let (found, unknown) = self.found(&row, subquery, self.clauses.is_condition)?;
                let mut case =
                    parse_expr(&format!("CASE WHEN a THEN {} WHEN b THEN NULL ELSE {negated} END", !negated))?;
                if let Expr::Case { conditions, .. } = &mut case {
                    for (when, condition) in conditions.iter_mut().zip([found, unknown]) {
                        when.condition = condition;
                    }
                }
                Ok(Some(case))
            }
            _ => Ok(None),
        }
    }

    /// Refuses a row with too many columns outside of conditions, and a statement that would get too many subqueries.
    fn count(&mut self, row: &[Expr], query: &Query) -> Result<(), SqlError> {
        if !self.clauses.is_condition && row.len() > COLUMNS_OF_VALUE_MAX {
            let what = format!(
                "IN of a row of more than {COLUMNS_OF_VALUE_MAX} columns and a query, outside WHERE and HAVING,"
            );
            return Err(SqlError::unsupported(what));
        }
        let inside = row.iter().map(subqueries_in).sum::<usize>() + subqueries_in(query);
        self.made += if self.clauses.is_condition {
            // The two EXISTS replace one subquery of the statement; only the nested ones are duplicated.
            2 * inside
        } else {
            3_usize.pow(row.len() as u32) * (inside + 1)
        };
        check_made(self.made)
    }

    /// Whether the query has the row, and whether it has one for which the comparison is NULL. Aggregates over the row
    /// are refused: the comparison moves to the WHERE clause of another query, where they have no value.
    fn found(&mut self, row: &[Expr], query: &Query, is_condition: bool) -> Result<(Expr, Expr), SqlError> {
        if row.iter().any(|column| is_aggregate_expression(column, self.aggregates)) {
            return Err(SqlError::unsupported("IN of a row with an aggregate or a window function and a query"));
        }
        self.queries += 1;
        let names: Vec<String> = (0..row.len()).map(|n| format!("__row_{}_{n}", self.queries)).collect();
        let pairs = row.iter().zip(&names).map(|(column, name)| {
            binary(column.clone(), BinaryOperator::Eq, Expr::Identifier(Ident::new(name.as_str())))
        });
        let equal = linked(pairs.collect(), &BinaryOperator::And);
        let equal = equal.ok_or_else(|| SqlError::syntax("a row without columns"))?;
        // The EXISTS is parsed from a template; the user's expressions are inserted as parsed.
        let frame =
            format!("EXISTS (SELECT 1 FROM (SELECT 1) AS __rows_{} ({}) WHERE true)", self.queries, names.join(", "));
        let frame = parse_expr(&frame)?;
        let exists = |condition: Expr| {
            let mut exists = frame.clone();
            if let Expr::Exists { subquery, .. } = &mut exists
                && let SetExpr::Select(select) = subquery.body.as_mut()
                && let [TableWithJoins { relation: TableFactor::Derived { subquery, .. }, .. }] =
                    select.from.as_mut_slice()
            {
                **subquery = query.clone();
                select.selection = Some(condition);
            }
            exists
        };
        let unknown = if is_condition {
            exists(nested(Expr::IsNull(Box::new(equal.clone()))))
        } else {
            unknown(row, &names, exists)?
        };
        Ok((exists(equal), unknown))
    }
}

/// Refuses a statement if rows that are searched in queries, or compared with them, would become too many subqueries.
pub(super) fn check_made(subqueries: usize) -> Result<(), SqlError> {
    if subqueries <= SUBQUERIES_MAX {
        return Ok(());
    }
    let message = "too many subqueries after expanding row comparisons";
    let hint = format!(
        "At most {SUBQUERIES_MAX} are allowed. Outside WHERE and HAVING, IN of a row of n columns and a query becomes \
         3^n subqueries; another comparison of a row with a query becomes n. Each contains all subqueries of its query."
    );
    Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message).with_hint(hint))
}

/// Whether a query has a row whose columns each are equal or NULL in the comparison, with at least one NULL.
fn unknown(row: &[Expr], names: &[String], exists: impl Fn(Expr) -> Expr) -> Result<Expr, SqlError> {
    let is_null = |of: Expr| nested(Expr::IsNull(Box::new(of)));
    let all = |parts: Vec<Expr>| linked(parts, &BinaryOperator::And);
    let mut ways = Vec::new();
    // Each column has three cases: the values are equal, the query's is NULL, or the row's is NULL.
    for way in 1..3_usize.pow(row.len() as u32) {
        let (mut within, mut outside) = (Vec::new(), Vec::new());
        for (n, (column, name)) in row.iter().zip(names).enumerate() {
            let of_query = Expr::Identifier(Ident::new(name.as_str()));
            match way / 3_usize.pow(n as u32) % 3 {
                0 => within.push(binary(column.clone(), BinaryOperator::Eq, of_query)),
                1 => within.push(is_null(of_query)),
                _ => outside.push(is_null(column.clone())),
            }
        }
        let found = exists(all(within).unwrap_or_else(|| Expr::value(Value::Boolean(true))));
        outside.push(found);
        ways.extend(all(outside));
    }
    linked(ways, &BinaryOperator::Or).ok_or_else(|| SqlError::syntax("a row without columns"))
}

/// The number of subqueries in the expressions of a tree.
pub(super) fn subqueries_in(tree: &impl Visit) -> usize {
    struct Count(usize);
    impl Visitor for Count {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            self.0 += usize::from(is_subquery(expr));
            ControlFlow::Continue(())
        }
    }
    let mut count = Count(0);
    let _ = walk::visit(tree, &mut count);
    count.0
}

/// The columns of `(a, b)` or `ROW(a, b)`.
fn columns(expr: &Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Nested(inner) => columns(inner),
        Expr::Tuple(columns) => Some(columns.iter().map(closed).collect()),
        Expr::Function(function) => arguments_of_row(function),
        _ => None,
    }
}

fn arguments_of_row(function: &Function) -> Option<Vec<Expr>> {
    built_in_name(function).filter(|name| name.quote_style.is_none() && name.value.eq_ignore_ascii_case("row"))?;
    let FunctionArguments::List(list) = &function.args else { return None };
    let column = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(column)) => Some(closed(column)),
        _ => None,
    };
    list.args.iter().map(column).collect()
}

/// Adds parentheses if an operator beside the expression could take a part of it as its operand in the text.
fn closed(column: &Expr) -> Expr {
    match column {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) | Expr::Nested(_) | Expr::Tuple(_) => {
            column.clone()
        }
        other => nested(other.clone()),
    }
}

fn same_length(left: &[Expr], right: &[Expr]) -> Result<(), SqlError> {
    if left.len() == right.len() {
        return Ok(());
    }
    Err(SqlError::syntax("unequal number of entries in row expressions"))
}

/// `None` if the operator is not a comparison.
fn compare(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Result<Option<Expr>, SqlError> {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let strict = match op {
        Eq | NotEq => op.clone(),
        Lt | LtEq => Lt,
        Gt | GtEq => Gt,
        _ => return Ok(None),
    };
    same_length(left, right)?;
    let pairs: Vec<(&Expr, &Expr)> = left.iter().zip(right).collect();
    let each = |op: &BinaryOperator| pairs.iter().map(|(a, b)| pair(a, op, b)).collect();
    Ok(match op {
        Eq => linked(each(op), &And),
        NotEq => linked(each(op), &Or),
        op => ordered(&pairs, &strict, op),
    })
}

fn pair(a: &Expr, op: &BinaryOperator, b: &Expr) -> Expr {
    binary(a.clone(), op.clone(), b.clone())
}

/// The limit on columns of rows for which each column adds a level to the tree.
const COLUMNS_IN_CHAIN: usize = 8;

/// Whether one row precedes another: the first differing columns decide by `strict`, and the last ones by `op`. For
/// long rows the first half decides, or the second half if the first halves are equal.
fn ordered(pairs: &[(&Expr, &Expr)], strict: &BinaryOperator, op: &BinaryOperator) -> Option<Expr> {
    use BinaryOperator::{And, Eq, Or};
    if pairs.len() > COLUMNS_IN_CHAIN {
        let (first, second) = pairs.split_at(pairs.len() / 2);
        let equal = linked(first.iter().map(|(a, b)| pair(a, &Eq, b)).collect(), &And)?;
        let before = ordered(first, strict, strict)?;
        return Some(binary(before, Or, binary(equal, And, ordered(second, strict, op)?)));
    }
    pairs.iter().rev().fold(None, |rest, (a, b)| {
        Some(match rest {
            None => pair(a, op, b),
            Some(rest) => binary(pair(a, strict, b), Or, binary(pair(a, &Eq, b), And, rest)),
        })
    })
}

/// Combines all expressions by AND or OR to a tree of few levels: each level of a chain needs stack.
pub(super) fn linked(mut parts: Vec<Expr>, op: &BinaryOperator) -> Option<Expr> {
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        parts = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(one) = rest.next() {
            parts.push(match rest.next() {
                Some(other) => binary(one, op.clone(), other),
                None => one,
            });
        }
    }
    parts.pop()
}

/// A condition that must hold for all columns.
fn each(row: &[Expr], holds: fn(Box<Expr>) -> Expr) -> Option<Expr> {
    linked(row.iter().map(|column| nested(holds(Box::new(column.clone())))).collect(), &BinaryOperator::And)
}

/// Whether at least one column is distinct.
fn distinct(left: &Expr, right: &Expr) -> Result<Option<Expr>, SqlError> {
    let (Some(left), Some(right)) = (columns(left), columns(right)) else { return Ok(None) };
    same_length(&left, &right)?;
    let pair = |(a, b): (&Expr, &Expr)| nested(Expr::IsDistinctFrom(Box::new(a.clone()), Box::new(b.clone())));
    Ok(linked(left.iter().zip(&right).map(pair).collect(), &BinaryOperator::Or))
}

fn not(expr: Expr, negated: bool) -> Expr {
    if negated { nested(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) }) } else { expr }
}
