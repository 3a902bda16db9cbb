//! Resolves the names of a query to columns, by PostgreSQL's rules.
//!
//! DataFusion looks names up in the schemas of its plans, which mix the names of a query with the columns of its
//! tables. So one walk over the parsed query resolves all names before it is planned:
//!
//! | name | becomes |
//! |---|---|
//! | a column of a table, a query or a function in FROM | `relation.column` |
//! | the merged column of USING and NATURAL | the column of the side that always has it, in the common type; `coalesce` of both for FULL |
//! | `*` and `t.*` | the columns, merged ones first |
//! | ORDER BY, GROUP BY or DISTINCT ON a bare name | for ORDER BY and DISTINCT ON an item of that name before a column, for GROUP BY a column before an item |
//! | an expression that is also an item, in ORDER BY | the item's number |
//! | a subquery that occurs twice in the expressions of a SELECT | the same subquery, whose column has the same name |
//! | an expression that occurs twice in ROLLUP, CUBE or a grouping set | once in each of the sets |
//!
//! USING and NATURAL become ON. All items of a query get unique names; with an ORDER BY they also differ from the names
//! of columns. Clients and enclosing queries still see PostgreSQL's names. A relation whose columns are unknown here (a
//! function's) leaves the scope open: a name that is not found stays as it is.
//!
//! `from` handles the relations and joins, `walk` the expressions; this module handles queries and their items.

mod from;
mod groups;
mod items;
mod orders;
mod walk;

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, GroupByExpr, LimitClause, OrderBy, OrderByExpr, OrderByKind, Query, Select, SetExpr, TableFactor,
    Values, Visitor, With,
};

use super::rewrite::identifiers;
use super::subqueries;
use crate::SqlError;
use crate::engine::ColumnType;
use crate::engine::catalog::Tables;
use crate::engine::scalar::fold;
use crate::engine::walk as tree;
use from::{no_name_twice, renamed};
use groups::{Used, check_grouping_sets, keys_into_sets, listed};
use items::{Item, Output, Outputs, column, number, quoted};
use orders::{distinct_keys, on_in_order, without_constants};

pub(super) use items::output_names;

/// Resolves the names of a query. Returns the names of its columns as clients see them, if they are known.
pub(super) fn resolve(
    query: &mut Query,
    tables: &Tables,
    state: &SessionState,
    aggregates: &HashSet<String>,
) -> Result<Option<Vec<String>>, SqlError> {
    let written = query.clone();
    let mut hidden = HashSet::new();
    loop {
        let mut names = Names {
            tables,
            state,
            aggregates,
            scopes: Vec::new(),
            relations: Vec::new(),
            siblings: Siblings::default(),
            made: 0,
            hidden,
            is_hidden: false,
        };
        let outputs = names.query(query, Naming::Relation)?;
        if !names.is_hidden {
            return Ok(outputs.map(|outputs| outputs.into_iter().map(|output| output.name).collect()));
        }
        // Each round adds at least one name, so the loop ends.
        hidden = names.hidden;
        query.clone_from(&written);
    }
}

/// A relation that may qualify a column name.
#[derive(Clone, Debug)]
struct Relation {
    /// The name in the statement.
    name: String,
    /// The name for the planner.
    planned: String,
    /// The schema of a table without an alias.
    schema: Option<String>,
    columns: Outputs,
    /// The columns of a table's primary key, by the planner's names.
    key: Vec<String>,
}

/// A column that may be named without a qualifier.
#[derive(Clone, Debug)]
struct Visible {
    name: String,
    expr: Expr,
    /// `None` if unknown here.
    data_type: Option<ColumnType>,
}

/// The names of a FROM clause; an empty scope marks the position of a subquery.
#[derive(Clone, Debug, Default)]
struct Scope {
    relations: Vec<Relation>,
    visible: Vec<Visible>,
    /// Whether some columns are unknown.
    is_open: bool,
    /// Whether a name in it, or in an inner scope, refers to an outer scope.
    is_correlated: bool,
    /// Whether its WHERE clause is being visited.
    is_in_where: bool,
}

impl Scope {
    fn of(relation: Relation) -> Self {
        let visible = |c: &Output| {
            let expr = column(&relation.planned, &c.planned);
            Visible { name: c.name.clone(), expr, data_type: c.data_type }
        };
        let visible = relation.columns.iter().flatten().map(visible).collect();
        Self { visible, is_open: relation.columns.is_none(), relations: vec![relation], ..Self::default() }
    }

    /// The type of an expression over these names, if it is a column.
    fn type_of(&self, expr: &Expr) -> Option<ColumnType> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let [relation, column] = parts.as_slice()
        {
            let relation = self.relations.iter().find(|known| known.planned == relation.value)?;
            return relation.columns.as_ref()?.iter().find(|known| known.planned == column.value)?.data_type;
        }
        self.visible.iter().find(|merged| merged.expr == *expr)?.data_type
    }

    fn and(mut self, other: Self) -> Self {
        self.relations.extend(other.relations);
        self.visible.extend(other.visible);
        self.is_open |= other.is_open;
        self
    }
}

/// The use of a query's result, which decides the names of its items.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// As a relation, or as the statement.
    Relation,
    /// As a value in an expression.
    Value,
    /// As a value, whose column is compared with outer columns by name.
    Compared,
}

/// A subquery already resolved among the expressions of a SELECT. An equal one must be planned as the same subquery,
/// since its column has a generated name.
struct Answered {
    /// The subquery as written.
    asked: Query,
    naming: Naming,
    answer: Query,
    is_correlated: bool,
    /// The name of the column to which [`subqueries::single_value`] turns it.
    name: String,
}

/// The subqueries of expressions in the same scope: those of the innermost SELECT.
#[derive(Default)]
struct Siblings {
    /// The number of scopes that these subqueries see.
    scopes: usize,
    answered: Vec<Answered>,
}

struct Names<'a> {
    tables: &'a Tables,
    /// Gives access to the catalog relations.
    state: &'a SessionState,
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
    /// The scopes, the innermost last.
    scopes: Vec<Scope>,
    /// The WITH queries in scope, the innermost last.
    relations: Vec<Relation>,
    siblings: Siblings,
    /// The number of generated names.
    made: usize,
    /// Names of relations to be replaced by generated ones, because the planner would take them for columns of an inner
    /// query.
    hidden: HashSet<String>,
    /// Whether the walk has found another such name.
    is_hidden: bool,
}

impl Names<'_> {
    fn made_up(&mut self, what: &str) -> String {
        self.made += 1;
        format!("__{what}_{}", self.made)
    }

    // Queries

    #[recursive::recursive]
    fn query(&mut self, query: &mut Query, naming: Naming) -> Result<Outputs, SqlError> {
        let around = self.relations.len();
        if let Some(with) = &mut query.with {
            self.with(with)?;
        }
        let outputs = self.body(&mut query.body, query.order_by.as_mut(), naming)?;
        // DataFusion does not support FETCH FIRST.
        if let Some(fetch) = query.fetch.take_if(|fetch| !fetch.with_ties && !fetch.percent) {
            let none = LimitClause::LimitOffset { limit: None, offset: None, limit_by: Vec::new() };
            match query.limit_clause.get_or_insert(none) {
                LimitClause::LimitOffset { limit, .. } if limit.is_none() => {
                    *limit = Some(fetch.quantity.unwrap_or_else(|| number(0)));
                }
                _ => return Err(SqlError::syntax("multiple LIMIT clauses not allowed")),
            }
        }
        self.part(&mut query.limit_clause)?;
        self.relations.truncate(around);
        Ok(outputs)
    }

    #[recursive::recursive]
    fn body(&mut self, body: &mut SetExpr, order: Option<&mut OrderBy>, naming: Naming) -> Result<Outputs, SqlError> {
        let mut count = None;
        if let SetExpr::Values(values) = &*body
            && let Some(query) = subqueries::rows_as_queries(values)?
        {
            count = Some(values.rows.len());
            *body = SetExpr::Query(query);
        }
        if let SetExpr::Values(values) = body
            && naming != Naming::Relation
        {
            let values = Values { rows: std::mem::take(&mut values.rows), ..*values };
            *body = subqueries::select_of(values)?;
        }
        let outputs = match body {
            SetExpr::Select(select) => return self.select(select, order, naming),
            SetExpr::Query(query) => match count {
                Some(count) => self.rows(query, count, naming)?,
                None => self.query(query, naming)?,
            },
            SetExpr::SetOperation { left, right, .. } => {
                let mut outputs = self.body(left, None, naming)?;
                let others = self.body(right, None, naming)?;
                for (n, output) in outputs.iter_mut().flatten().enumerate() {
                    let other = others.as_ref().and_then(|others| others.get(n)?.data_type);
                    output.data_type = output.data_type.filter(|data_type| other == Some(*data_type));
                }
                outputs
            }
            SetExpr::Values(values) => self.values(values)?,
            _ => return Ok(None),
        };
        if let (Some(order), Some(outputs)) = (order, &outputs) {
            Self::ordered_by_outputs(order, outputs)?;
        }
        Ok(outputs)
    }

    /// The `count` rows of a VALUES list that has become a union of queries. They keep their order, unless the planner
    /// must join them to an outer query.
    fn rows(&mut self, rows: &mut Query, count: usize, naming: Naming) -> Result<Outputs, SqlError> {
        self.scopes.push(Scope::default());
        let outputs = self.query(rows, naming);
        let is_correlated = self.scopes.pop().is_some_and(|scope| scope.is_correlated);
        if !is_correlated && !self.scopes.iter().any(|scope| scope.is_open) {
            subqueries::keep_order(rows, count);
        }
        outputs
    }

    fn values(&mut self, values: &mut Values) -> Result<Outputs, SqlError> {
        self.part(values)?;
        let columns = values.rows.first().map_or(0, |row| row.content.len());
        Ok(Some((1..=columns).map(|n| Output::plain(format!("column{n}"))).collect()))
    }

    fn with(&mut self, with: &mut With) -> Result<(), SqlError> {
        let recursive = with.recursive;
        let outside = self.relations.len();
        for cte in &mut with.cte_tables {
            let name = fold(&cte.alias.name);
            // The planner accepts no name twice, not even in a nested query.
            let is_taken = self.relations[..outside].iter().any(|known| known.name == name);
            let planned = if is_taken { self.made_up("with") } else { name.clone() };
            let query = cte.query.as_mut();
            let is_recursive = recursive && recursion(query, &name)?;
            let columns = if is_recursive {
                // The first arm defines the columns that the second one reads.
                let around = self.relations.len();
                if let Some(with) = &mut query.with {
                    self.with(with)?;
                }
                let SetExpr::SetOperation { left, right, .. } = query.body.as_mut() else { continue };
                let outputs = self.body(left, None, Naming::Relation)?;
                let columns = renamed(&mut cte.alias, outputs)?;
                let (name_of, planned_of) = (name.clone(), planned.clone());
                let itself = Relation {
                    name: name_of,
                    planned: planned_of,
                    schema: None,
                    columns: columns.clone(),
                    key: Vec::new(),
                };
                self.relations.push(itself);
                self.body(right, None, Naming::Relation)?;
                self.relations.truncate(around);
                columns
            } else {
                let outputs = self.query(query, Naming::Relation)?;
                renamed(&mut cte.alias, outputs)?
            };
            if is_taken {
                cte.alias.name = quoted(&planned);
            }
            self.relations.push(Relation { name, planned, schema: None, columns, key: Vec::new() });
        }
        Ok(())
    }

    fn select(
        &mut self,
        select: &mut Select,
        order: Option<&mut OrderBy>,
        naming: Naming,
    ) -> Result<Outputs, SqlError> {
        let mut scope = Scope::default();
        for from in &mut select.from {
            let next = self.joined(from, &scope)?;
            no_name_twice(&scope, &next)?;
            scope = scope.and(next);
        }
        self.scopes.push(scope);
        let siblings = Siblings { scopes: self.scopes.len(), answered: Vec::new() };
        let around = std::mem::replace(&mut self.siblings, siblings);
        self.in_where(true);
        self.part(&mut select.selection)?;
        self.in_where(false);
        self.part(&mut select.having)?;
        self.check_having(select.having.as_ref())?;
        self.part(&mut select.named_window)?;
        let items = self.items(std::mem::take(&mut select.projection))?;
        let is_known = items.iter().all(|item| item.known().is_some());
        if let GroupByExpr::Expressions(by, _) = &mut select.group_by {
            *by = by.drain(..).flat_map(listed).collect();
            check_grouping_sets(by)?;
            for expr in by.iter_mut() {
                self.grouped_by(expr, &items, is_known)?;
            }
            keys_into_sets(by, &items);
        }
        let mut is_on = false;
        if let Some(Distinct::On(on)) = &mut select.distinct {
            is_on = true;
            for expr in on.iter_mut() {
                self.distinct_on(expr, &items)?;
            }
            distinct_keys(on, |expr| expr);
            if order.is_none() {
                without_constants(on, |expr| expr);
            }
        }
        let mut is_ordered = false;
        // Columns determined by a primary key are needed only if there is a GROUP BY.
        let is_grouped = matches!(&select.group_by, GroupByExpr::Expressions(by, _) if !by.is_empty());
        let mut used = Used::new(self.aggregates);
        if let Some(order) = order
            && let OrderByKind::Expressions(by) = &mut order.kind
        {
            is_ordered = true;
            for OrderByExpr { expr, .. } in by.iter_mut() {
                self.ordered_by(expr, &items, is_known, is_on)?;
            }
            distinct_keys(by, |by| &by.expr);
            if let Some(Distinct::On(on)) = &mut select.distinct {
                on_in_order(on, by);
            }
            if is_grouped {
                used.look(by);
            }
        }
        if is_grouped && let GroupByExpr::Expressions(by, _) = &mut select.group_by {
            used.look(&select.having);
            used.look(&select.distinct);
            used.look(&select.named_window);
            items.iter().filter_map(Item::known).for_each(|(_, item)| used.look(item));
            self.add_decided(by, &items, &used.columns);
        }
        let (projection, outputs) = self.named(items, naming, is_ordered);
        select.projection = projection;
        self.siblings = around;
        self.scopes.pop();
        Ok(outputs)
    }

    fn in_where(&mut self, is_in_where: bool) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.is_in_where = is_in_where;
        }
    }
}

/// Whether the query of a WITH RECURSIVE refers to itself. As in PostgreSQL, only the query around such a query may
/// have an order and a limit.
///
/// A query without such a reference is put in parentheses: DataFusion treats every UNION there as a recursion and drops
/// the clauses after it.
fn recursion(query: &mut Query, name: &str) -> Result<bool, SqlError> {
    let SetExpr::SetOperation { right, .. } = query.body.as_ref() else { return Ok(false) };
    if !reads(right, name) {
        let with = query.with.take();
        let whole = query.clone();
        (query.order_by, query.limit_clause, query.fetch) = (None, None, None);
        query.locks.clear();
        *query.body = SetExpr::Query(Box::new(Query { with, ..whole }));
        return Ok(false);
    }
    let refused = if query.order_by.is_some() {
        "ORDER BY"
    } else if query.limit_clause.is_some() || query.fetch.is_some() {
        "LIMIT"
    } else {
        return Ok(true);
    };
    Err(SqlError::unsupported(format_args!("{refused} in a recursive query")))
}

/// Whether the query reads a relation of that name.
fn reads(body: &SetExpr, name: &str) -> bool {
    struct Relations<'a>(&'a str);
    impl Visitor for Relations<'_> {
        type Break = ();

        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            match factor {
                TableFactor::Table { name, args: None, .. } if identifiers(name) == [self.0] => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    tree::visit(body, &mut Relations(name)).is_break()
}
