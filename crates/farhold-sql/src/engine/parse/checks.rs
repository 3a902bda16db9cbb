//! Refuses statements that the parser accepts but no planner can handle.

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
use crate::value::{DIMENSIONS_MAX, too_many_dimensions};
use crate::{SqlError, SqlState};

/// The limit on subqueries nested in each other's expressions. DataFusion checks the contents of a subquery once for
/// each subquery around it, and again within each of those: 2^n checks, three times per plan. Twenty levels took 19 s,
/// twelve take 0.1 s.
const SUBQUERY_DEPTH_MAX: u32 = 12;

/// The limit on copies of subexpressions that binding makes: `a BETWEEN b AND c` becomes `a >= b AND a <= c`, with two
/// `a`.
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

/// The limit on subqueries in the expressions of one SELECT. Each becomes a join of the plan: in a debug build 100 took
/// 6 s to plan, 200 more than a minute.
pub(crate) const SUBQUERIES_MAX: usize = 100;

/// The limit on different windows in one SELECT. Each becomes an operator above the others: in a debug build 200 took 3
/// s to plan, 300 took 23 s.
const WINDOWS_MAX: usize = 200;

/// The limit on WITH queries of a statement: a chain of them becomes a chain of operators.
const WITH_MAX: usize = 500;

/// The limit on the relations of a statement after each reference to a WITH query is expanded, as a plan does. If each
/// WITH query refers to the previous one twice, the number doubles each time. In a debug build 2,000 took 7 s to plan.
const WRITTEN_OUT_MAX: u64 = 4_000;

/// The limit on the relations of a FROM clause. A plan has a level for each, and each level has the columns of all
/// levels below. In a debug build on a busy machine 100 relations took 5 s to plan and 200 took 82 s; thousands need
/// more stack than a thread has.
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

/// Refuses statements that the parser accepts but no planner can handle: lists of too many columns, which take minutes
/// to plan; strings as names of items (`SELECT 'a' 'b'`); QUALIFY, which PostgreSQL does not have; FOR UPDATE below the
/// outermost query; FROM clauses of too many relations; subqueries and arrays that nest too deeply; and nested
/// expressions that double in size at each level.
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
    /// The number of enclosing queries.
    queries: u32,
    /// The number of enclosing subqueries in expressions.
    nested: u32,
    /// The number of enclosing arrays.
    dimensions: usize,
    /// For each enclosing expression, the sizes of its operands visited so far.
    around: Vec<Vec<u64>>,
    copies: u64,
    /// See [`joined`].
    joined: HashSet<*const Expr>,
    /// One entry per enclosing SELECT.
    selects: Vec<InSelect>,
    /// The relations of the statement so far, and those of each enclosing WITH query.
    relations: Vec<u64>,
    /// The names of the WITH queries that have not been visited yet.
    named: HashMap<*const Query, String>,
    /// The names and the relation counts of the WITH queries that have been visited and are in scope.
    written_out: Vec<(String, u64)>,
    /// The length of `written_out` when each enclosing query began.
    known: Vec<usize>,
    with: usize,
}

/// The parts of a SELECT that make its plan grow.
#[derive(Default)]
struct InSelect {
    subqueries: usize,
    windows: HashSet<WindowType>,
    /// This entry stands for a VALUES list, whose rows are checked one by one.
    is_list: bool,
}

fn too_many(count: usize, what: &str) -> SqlError {
    SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, format!("at most {count} {what}"))
}

impl Checks {
    /// Called at the start of a query.
    fn begins(&mut self, query: &Query) -> Result<(), SqlError> {
        self.known.push(self.written_out.len());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(std::ptr::from_ref(cte.query.as_ref()), fold(&cte.alias.name));
            self.with += 1;
        }
        if self.with > WITH_MAX {
            return Err(too_many(WITH_MAX, "WITH queries are allowed in a statement"));
        }
        if self.named.contains_key(&std::ptr::from_ref(query)) {
            self.relations.push(0);
        }
        if let SetExpr::Values(values) = query.body.as_ref() {
            self.selects.push(InSelect { is_list: true, ..InSelect::default() });
            if values.rows.iter().any(|row| subqueries_of(&row.content) > SUBQUERIES_MAX) {
                return Err(too_many(SUBQUERIES_MAX, "subqueries are allowed in a row of VALUES"));
            }
        }
        Ok(())
    }

    /// Called at the end of a query.
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

    /// Counts a relation of FROM.
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
                "At most {WRITTEN_OUT_MAX} are allowed; each reference to a WITH query counts all of its relations."
            );
            return Err(error.with_hint(hint));
        }
        Ok(())
    }

    /// Counts an expression of the innermost SELECT.
    fn in_select(&mut self, expression: &Expr) -> Result<(), SqlError> {
        let Some(select) = self.selects.last_mut() else { return Ok(()) };
        select.subqueries += usize::from(is_subquery(expression));
        if select.subqueries > SUBQUERIES_MAX && !select.is_list {
            return Err(too_many(SUBQUERIES_MAX, "subqueries are allowed in the expressions of a SELECT"));
        }
        if let Expr::Function(function @ Function { over: Some(window), .. }) = expression {
            window_places::check_call(function)?;
            if !select.windows.contains(window) {
                select.windows.insert(window.clone());
            }
            if select.windows.len() > WINDOWS_MAX {
                return Err(too_many(WINDOWS_MAX, "different windows are allowed in a SELECT"));
            }
        }
        Ok(())
    }
}

/// Refuses a whole row as a value: DataFusion takes `count(t.*)` for `count(*)`, and `t.* IS NULL` for false. Also
/// refuses stars where PostgreSQL does not allow them.
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

/// The number of subqueries in the expressions of a row, without nested ones.
fn subqueries_of(row: &[Expr]) -> usize {
    let count = std::cell::Cell::new(0);
    for value in row {
        walk::exists_outside_queries(value, |expr| {
            count.set(count.get() + usize::from(is_subquery(expr)));
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
        self.nested += u32::from(is_subquery(expression));
        if self.nested > SUBQUERY_DEPTH_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "subqueries are nested too deeply");
            let hint = format!("At most {SUBQUERY_DEPTH_MAX} levels of nesting are allowed; move some to WITH.");
            return ControlFlow::Break(error.with_hint(hint));
        }
        self.dimensions += usize::from(is_array(expression));
        if self.dimensions > DIMENSIONS_MAX {
            return ControlFlow::Break(too_many_dimensions());
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
        self.nested -= u32::from(is_subquery(expression));
        self.dimensions -= usize::from(is_array(expression));
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
                "The operand of BETWEEN, IN, ANY or CASE is expanded once for each value it is compared with, and each \
                 argument of coalesce() except the last is expanded twice.",
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

/// Whether an expression is a subquery.
pub(crate) fn is_subquery(expression: &Expr) -> bool {
    matches!(expression, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. })
}

/// Finds `x IN (SELECT …)` in a condition of WHERE or HAVING where only AND and OR are above it: these become joins,
/// which contain the query once. Whether NOT IN does is not known before names are resolved.
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

/// The size of the copies that binding adds to an expression. `operands` holds the sizes of its operands, and `written`
/// the size of the whole expression.
fn copies(expression: &Expr, operands: &[u64], written: u64) -> u64 {
    let first = operands.first().copied().unwrap_or(0);
    let again = |times: usize| match first {
        // Copies of a column before a long list take no more room than the list.
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
        // Rows are compared column by column. Most columns are compared twice, and those of long rows once more each
        // time that a row is halved. A query is copied for each column.
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
        // DataFusion turns `coalesce(x, y)` into `CASE WHEN x IS NOT NULL THEN x ELSE y END`.
        Expr::Function(function) if is_coalesce(function) => match operands {
            [tested @ .., _] => sum(tested).saturating_mul(COPY_WEIGHT),
            [] => 0,
        },
        _ => 0,
    }
}

/// The longest list that DataFusion expands to one comparison per element.
const WRITTEN_OUT_LIST: usize = 3;

/// The cost of a copy, relative to its size. In a debug build 14 levels of `x IN (a, b)`, 16,000 copies of x, took 7 s
/// to plan. Ten levels of `coalesce(x, a)`, whose nullability is computed several times at each level, took 9 s.
const COPY_WEIGHT: u64 = 3;

/// The number of additional copies of the query in the planner's form of `x < ANY (SELECT …)`.
const QUERY_COPIES: u64 = 3;

/// The same for `x IN (SELECT …)` as a value, where x and the query's values may be NULL.
const MEMBER_COPIES: u64 = 2;

/// The number of elements that ANY or ALL compares with; `None` for a query.
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

/// Whether the expression is a row: `(a, b)` or `ROW(a, b)`.
fn is_row(expression: &Expr) -> bool {
    columns_of_row(unnested(expression)) > 0
}

/// The number of columns of a row; 0 if the expression is none.
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
