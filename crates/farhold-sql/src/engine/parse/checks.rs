//! What the parser takes and no planner can do.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FromTable, Function, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectName,
    ObjectNamePart, Query, Select, SelectItem, SetExpr, Statement, TableFactor, TableWithJoins, UpdateTableFromKind,
    Value, Visitor, WindowType,
};

use super::super::scalar::fold;
use super::super::{error, walk};
use super::depth::LEVELS_MAX;
use super::{unnested, window_places};
use crate::{SqlError, SqlState};

/// How deeply subqueries may stand in each other's expressions. DataFusion checks what is in a subquery once for each one around
/// it, and within that again: 2^n looks, three times a plan. Twenty levels took 19 s, twelve take 0.1 s.
const SUBQUERY_DEPTH_MAX: u32 = 12;

/// PostgreSQL's most dimensions. DataFusion's types nest as the arrays do, and 72 levels take more stack than a thread has.
const DIMENSIONS_MAX: u32 = 6;

/// The most that is bound of expressions beside what is written: `a BETWEEN b AND c` is `a >= b AND a <= c`, with two `a`.
const COPIES_MAX: u64 = 250_000;

/// PostgreSQL's limit. The protocol counts columns in two bytes.
const COLUMNS_MAX: usize = 1664;

/// Refuses more columns than a query may have.
pub(crate) fn check_count(count: usize) -> Result<(), SqlError> {
    if count > COLUMNS_MAX {
        let message = format!("target lists can have at most {COLUMNS_MAX} entries");
        return Err(SqlError::new(SqlState::TOO_MANY_COLUMNS, message));
    }
    Ok(())
}

/// The most subqueries in the expressions of one SELECT. Each is a join of its plan: in a debug build 100 took 6 s to plan, 200 more than a minute.
pub(crate) const SUBQUERIES_MAX: usize = 100;

/// The most windows that differ from each other in one SELECT. Each is an operator above the others: in a debug build 200 took 3 s to plan,
/// 300 took 23 s.
const WINDOWS_MAX: usize = 200;

/// The most queries of WITH in a statement: a chain of them is one of operators.
const WITH_MAX: usize = 500;

/// The most relations of a statement where each query of WITH stands wherever it is named, as it does in a plan: when each names the one before
/// twice, their count doubles. In a debug build 2,000 took 7 s to plan.
const WRITTEN_OUT_MAX: u64 = 4_000;

/// The most relations of a FROM clause. A plan has a level for each, and each level the columns of all below: in a
/// debug build on a busy machine 100 relations took 5 s to plan, 200 took 82 s, and thousands are more than a thread's
/// stack has room for.
pub(super) const RELATIONS_MAX: usize = 200;

/// Refuses more relations than a FROM clause may have.
fn check_relations(from: &[TableWithJoins]) -> Result<(), SqlError> {
    fn count(from: &TableWithJoins) -> usize {
        let of = |factor: &TableFactor| match factor {
            TableFactor::NestedJoin { table_with_joins, .. } => count(table_with_joins),
            _ => 1,
        };
        of(&from.relation) + from.joins.iter().map(|join| of(&join.relation)).sum::<usize>()
    }
    if from.iter().map(count).sum::<usize>() > RELATIONS_MAX {
        let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "a FROM clause has too many relations");
        return Err(error.with_hint(format!("It may have at most {RELATIONS_MAX}.")));
    }
    Ok(())
}

/// Refuses what the parser takes and no planner can do: lists of too many columns, which take minutes to plan, strings as names of items
/// (`SELECT 'a' 'b'`), QUALIFY, which PostgreSQL does not have, FOR UPDATE below the outermost query, FROM clauses of too many relations,
/// subqueries and arrays that nest too deeply, and expressions that double at each level in which they nest.
pub(super) fn check(statement: &Statement) -> Result<(), SqlError> {
    let outermost = match statement {
        Statement::Explain { statement, .. } => statement.as_ref(),
        other => other,
    };
    match outermost {
        Statement::Update(update) => {
            if let Some(UpdateTableFromKind::BeforeSet(from) | UpdateTableFromKind::AfterSet(from)) = &update.from {
                check_relations(from)?;
            }
            window_places::check_assignments(&update.assignments)?;
        }
        Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            check_relations(from)?;
            check_relations(delete.using.as_deref().unwrap_or_default())?;
        }
        _ => {}
    }
    let queries = u32::from(!matches!(outermost, Statement::Query(_) | Statement::Copy { .. }));
    let selects = vec![InSelect::default()];
    match walk::visit(outermost, &mut Checks { queries, selects, relations: vec![0], ..Checks::default() }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[derive(Default)]
struct Checks {
    /// Queries around.
    queries: u32,
    /// Subqueries of expressions around.
    nested: u32,
    /// Arrays around.
    dimensions: u32,
    /// The sizes of the operands that have been visited of each expression around.
    around: Vec<Vec<u64>>,
    copies: u64,
    /// See [`joined`].
    joined: HashSet<*const Expr>,
    /// Of each SELECT around.
    selects: Vec<InSelect>,
    /// The relations of the statement so far, and those of each query of WITH around.
    relations: Vec<u64>,
    /// What the queries of WITH are called, as they begin.
    named: HashMap<*const Query, String>,
    /// The relations of the queries of WITH that have been visited and can be named.
    written_out: Vec<(String, u64)>,
    /// How many of them there were when each query around began.
    known: Vec<usize>,
    with: usize,
}

/// What a SELECT has of what makes its plan grow.
#[derive(Default)]
struct InSelect {
    subqueries: usize,
    windows: HashSet<WindowType>,
    /// It stands for the rows of a VALUES list, which are counted one by one.
    is_list: bool,
}

fn too_many(count: usize, what: &str) -> SqlError {
    SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, format!("at most {count} {what}"))
}

impl Checks {
    /// A query begins.
    fn begins(&mut self, query: &Query) -> Result<(), SqlError> {
        self.known.push(self.written_out.len());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(std::ptr::from_ref(cte.query.as_ref()), fold(&cte.alias.name));
            self.with += 1;
        }
        if self.with > WITH_MAX {
            return Err(too_many(WITH_MAX, "queries of WITH may stand in a statement"));
        }
        if self.named.contains_key(&std::ptr::from_ref(query)) {
            self.relations.push(0);
        }
        if let SetExpr::Values(values) = query.body.as_ref() {
            self.selects.push(InSelect { is_list: true, ..InSelect::default() });
            if values.rows.iter().any(|row| subqueries_of(&row.content) > SUBQUERIES_MAX) {
                return Err(too_many(SUBQUERIES_MAX, "subqueries may stand in a row of VALUES"));
            }
        }
        Ok(())
    }

    /// A query ends.
    fn ends(&mut self, query: &Query) {
        if let SetExpr::Values(_) = query.body.as_ref() {
            self.selects.pop();
        }
        self.written_out.truncate(self.known.pop().unwrap_or_default());
        if let Some(name) = self.named.remove(&std::ptr::from_ref(query)) {
            let relations = self.relations.pop().unwrap_or_default();
            self.written_out.push((name, relations));
        }
    }

    /// A relation of FROM.
    fn relation(&mut self, name: &ObjectName) -> Result<(), SqlError> {
        let named = match name.0.as_slice() {
            [ObjectNamePart::Identifier(name)] => {
                let name = fold(name);
                self.written_out.iter().rev().find(|(known, _)| *known == name).map(|(_, relations)| *relations)
            }
            _ => None,
        };
        let Some(relations) = self.relations.last_mut() else { return Ok(()) };
        *relations = relations.saturating_add(named.unwrap_or(0).max(1));
        if *relations > WRITTEN_OUT_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "a statement has too many relations");
            let hint = format!(
                "It may have at most {WRITTEN_OUT_MAX}, and a query of WITH has all of its own wherever it is named."
            );
            return Err(error.with_hint(hint));
        }
        Ok(())
    }

    /// A part of the innermost SELECT.
    fn in_select(&mut self, expression: &Expr) -> Result<(), SqlError> {
        let Some(select) = self.selects.last_mut() else { return Ok(()) };
        select.subqueries += usize::from(asks(expression));
        if select.subqueries > SUBQUERIES_MAX && !select.is_list {
            return Err(too_many(SUBQUERIES_MAX, "subqueries may stand in the expressions of a SELECT"));
        }
        if let Expr::Function(function @ Function { over: Some(window), .. }) = expression {
            window_places::check_call(function)?;
            if !select.windows.contains(window) {
                select.windows.insert(window.clone());
            }
            if select.windows.len() > WINDOWS_MAX {
                return Err(too_many(WINDOWS_MAX, "windows may differ from each other in a SELECT"));
            }
        }
        Ok(())
    }
}

/// Refuses a whole row as a value: DataFusion takes `count(t.*)` for `count(*)`, and `t.* IS NULL` for false. And stars where PostgreSQL has none.
fn check_rows(expression: &Expr) -> Result<(), SqlError> {
    let whole_row = || Err(SqlError::unsupported("a whole row (t.*) as a value"));
    match expression {
        Expr::QualifiedWildcard(..) => whole_row(),
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) => {
            for argument in &list.args {
                let (FunctionArg::Unnamed(argument)
                | FunctionArg::Named { arg: argument, .. }
                | FunctionArg::ExprNamed { arg: argument, .. }) = argument;
                match argument {
                    FunctionArgExpr::QualifiedWildcard(_) => return whole_row(),
                    FunctionArgExpr::Wildcard | FunctionArgExpr::WildcardWithOptions(_)
                        if list.duplicate_treatment.is_some() || list.args.len() > 1 =>
                    {
                        return Err(SqlError::syntax("syntax error at or near \"*\""));
                    }
                    _ => {}
                }
            }
            let is_count = matches!(name.0.as_slice(), [ObjectNamePart::Identifier(name)] if fold(name) == "count");
            if is_count && list.args.is_empty() {
                let message = "count(*) must be used to call a parameterless aggregate function";
                return Err(SqlError::new(SqlState::WRONG_OBJECT_TYPE, message));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The subqueries in the expressions of a row, those in them aside.
fn subqueries_of(row: &[Expr]) -> usize {
    let count = std::cell::Cell::new(0);
    for value in row {
        walk::exists_outside_queries(value, |expr| {
            count.set(count.get() + usize::from(asks(expr)));
            false
        });
    }
    count.get()
}

fn broken(outcome: Result<(), SqlError>) -> ControlFlow<SqlError> {
    outcome.map_or_else(ControlFlow::Break, ControlFlow::Continue)
}

impl Visitor for Checks {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        if self.queries > 0 && !query.locks.is_empty() {
            return ControlFlow::Break(SqlError::unsupported("FOR UPDATE in a subquery"));
        }
        self.queries += 1;
        broken(self.begins(query))
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        self.queries -= 1;
        self.ends(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<SqlError> {
        match factor {
            TableFactor::Table { name, .. } => broken(self.relation(name)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_select(&mut self, _: &Select) -> ControlFlow<SqlError> {
        self.selects.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<SqlError> {
        self.selects.push(InSelect::default());
        let checked = check_count(select.projection.len())
            .and_then(|()| check_relations(&select.from))
            .and_then(|()| window_places::check_select(select));
        if let Err(error) = checked {
            return ControlFlow::Break(error);
        }
        if select.qualify.is_some() {
            return ControlFlow::Break(SqlError::syntax("syntax error at or near \"QUALIFY\""));
        }
        for condition in select.selection.iter().chain(&select.having) {
            joined(condition, &mut self.joined);
        }
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { alias, .. } = item
                && alias.quote_style == Some('\'')
            {
                return ControlFlow::Break(SqlError::syntax(format!("syntax error at or near \"{alias}\"")));
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested += u32::from(asks(expression));
        if self.nested > SUBQUERY_DEPTH_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "subqueries are nested too deeply");
            let hint = format!("At most {SUBQUERY_DEPTH_MAX} may stand in each other; name some by WITH.");
            return ControlFlow::Break(error.with_hint(hint));
        }
        self.dimensions += u32::from(is_array(expression));
        if self.dimensions > DIMENSIONS_MAX {
            let message = format!("number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})");
            return ControlFlow::Break(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        }
        if columns_of_row(expression) > COLUMNS_MAX {
            let message = format!("ROW expressions can have at most {COLUMNS_MAX} entries");
            return ControlFlow::Break(SqlError::new(SqlState::TOO_MANY_COLUMNS, message));
        }
        if let Err(error) = check_rows(expression) {
            return ControlFlow::Break(error);
        }
        self.around.push(Vec::new());
        if self.around.len() > LEVELS_MAX {
            let hint = format!("An expression has at most {LEVELS_MAX} levels, and each operator of a chain is one.");
            return ControlFlow::Break(error::too_deep().with_hint(hint));
        }
        broken(self.in_select(expression))
    }

    fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested -= u32::from(asks(expression));
        self.dimensions -= u32::from(is_array(expression));
        let operands = self.around.pop().unwrap_or_default();
        let written = sum(&operands).saturating_add(1);
        let is_joined = self.joined.remove(&std::ptr::from_ref(expression));
        let copied = if is_joined { 0 } else { copies(expression, &operands, written) };
        self.copies = self.copies.saturating_add(copied);
        if let Some(operands) = self.around.last_mut() {
            operands.push(written.saturating_add(copied));
        }
        if self.copies > COPIES_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "expressions are nested too deeply");
            return ControlFlow::Break(error.with_hint(
                "What stands before BETWEEN, IN or ANY, or behind CASE, is bound once for each value it is compared \
                 with, and what coalesce() has before its last argument twice.",
            ));
        }
        ControlFlow::Continue(())
    }
}

fn is_array(expression: &Expr) -> bool {
    match expression {
        Expr::Array(_) => true,
        Expr::Function(function) => function.name.to_string().eq_ignore_ascii_case("make_array"),
        _ => false,
    }
}

/// Whether an expression is one of a subquery.
pub(crate) fn asks(expression: &Expr) -> bool {
    matches!(expression, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. })
}

/// Finds `x IN (SELECT …)` below nothing but AND and OR in a condition of WHERE or HAVING: those are joins, which have the query once. Of NOT IN that
/// is not known before names are.
fn joined(condition: &Expr, found: &mut HashSet<*const Expr>) {
    match condition {
        Expr::Nested(inner) => joined(inner, found),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            joined(left, found);
            joined(right, found);
        }
        Expr::InSubquery { expr, negated: false, .. } if !walk::has_query(expr.as_ref()) => {
            found.insert(std::ptr::from_ref(condition));
        }
        _ => {}
    }
}

fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
}

/// What is bound of an expression beside what is written: `operands` are the sizes of its operands, `written` is that
/// of all.
fn copies(expression: &Expr, operands: &[u64], written: u64) -> u64 {
    let first = operands.first().copied().unwrap_or(0);
    let again = |times: usize| match first {
        // A column that stands before a long list takes no more than the list.
        0 | 1 => 0,
        first => first.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX)),
    };
    match expression {
        Expr::Between { .. } => again(1).saturating_mul(COPY_WEIGHT),
        Expr::InList { list, .. } if list.len() > WRITTEN_OUT_LIST => 0,
        Expr::InList { list, .. } => again(list.len().saturating_sub(1)).saturating_mul(COPY_WEIGHT),
        Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => match elements(right) {
            Some(count) => again(count),
            None => written.saturating_mul(QUERY_COPIES),
        },
        Expr::InSubquery { expr, .. } if walk::has_query(expr.as_ref()) => written.saturating_mul(QUERY_COPIES),
        Expr::InSubquery { .. } => written.saturating_mul(MEMBER_COPIES * COPY_WEIGHT),
        Expr::Case { operand: Some(_), conditions, .. } => again(conditions.len().saturating_sub(1)),
        // Rows are compared column by column, most of them twice, and those of long rows once more each time that a row
        // is halved. A query is asked for each column.
        Expr::BinaryOp { left, op, right }
            if is_row(left) && !matches!(op, BinaryOperator::And | BinaryOperator::Or) =>
        {
            let columns = columns_of_row(unnested(left));
            let halvings = u64::from(columns.checked_ilog2().unwrap_or(0).max(1));
            written.saturating_mul(match unnested(right) {
                Expr::Subquery(_) if matches!(op, BinaryOperator::Eq | BinaryOperator::NotEq) => columns as u64,
                Expr::Subquery(_) => (halvings + 1).saturating_mul(columns as u64),
                _ => halvings,
            })
        }
        // DataFusion makes `CASE WHEN x IS NOT NULL THEN x ELSE y END` of `coalesce(x, y)`.
        Expr::Function(function) if is_coalesce(function) => match operands {
            [tested @ .., _] => sum(tested).saturating_mul(COPY_WEIGHT),
            [] => 0,
        },
        _ => 0,
    }
}

/// The longest list that DataFusion makes comparisons of, one for each element.
const WRITTEN_OUT_LIST: usize = 3;

/// How much more than its size a copy costs: 14 levels of `x IN (a, b)`, 16,000 copies of x, took 7 s to plan in a debug build, and ten of
/// `coalesce(x, a)`, whose NULLs are asked for several times at each level, 9 s.
const COPY_WEIGHT: u64 = 3;

/// How often the planner's form of `x < ANY (SELECT …)` has the query beside the first time.
const QUERY_COPIES: u64 = 3;

/// As that, of `x IN (SELECT …)` as a value, where x and what is looked in may be NULL.
const MEMBER_COPIES: u64 = 2;

/// The elements of what ANY and ALL compare with; `None` for a query.
fn elements(array: &Expr) -> Option<usize> {
    match array {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => elements(inner),
        Expr::Array(array) => Some(array.elem.len()),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.matches(',').count() + 1),
            _ => Some(1),
        },
        other => (!walk::has_query(other)).then_some(1),
    }
}

/// Whether a function is `coalesce`, under any of its names.
fn is_coalesce(function: &Function) -> bool {
    let name = function.name.0.last().and_then(ObjectNamePart::as_ident);
    name.is_some_and(|name| ["coalesce", "nvl", "ifnull"].iter().any(|known| name.value.eq_ignore_ascii_case(known)))
}

/// Whether it is a row: `(a, b)` or `ROW(a, b)`.
fn is_row(expression: &Expr) -> bool {
    columns_of_row(unnested(expression)) > 0
}

/// The columns of a row.
fn columns_of_row(expression: &Expr) -> usize {
    match expression {
        Expr::Tuple(columns) => columns.len(),
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) => match name.0.as_slice() {
            [ObjectNamePart::Identifier(name)] if name.value.eq_ignore_ascii_case("row") => list.args.len(),
            _ => 0,
        },
        _ => 0,
    }
}
