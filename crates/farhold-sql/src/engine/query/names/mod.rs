//! Which column each name of a query means, as PostgreSQL decides it.
//!
//! DataFusion looks names up in the schemas of its plans, where what a query names and what its tables have lie together. So one walk over the
//! parsed query answers all names before it is planned:
//!
//! | name | becomes |
//! |---|---|
//! | a column of a table, a query or a function in FROM | `relation.column` |
//! | the merged column of USING and NATURAL | the column of the side that always has it, in the type that both have; `coalesce` of both for FULL |
//! | `*` and `t.*` | the columns, merged ones first |
//! | ORDER BY, GROUP BY or DISTINCT ON a bare name | for ORDER BY and DISTINCT ON an item of that name before a column, for GROUP BY after it |
//! | an expression that is also an item, in ORDER BY | the item's number |
//! | a subquery that stands twice in the expressions of a SELECT | the same one, whose column has the same name |
//! | an expression that stands twice in ROLLUP, CUBE or a grouping set | once in each of the sets |
//!
//! USING and NATURAL become ON. All items of a query get names that differ, below an ORDER BY from those of columns, too; what the client sees, and
//! what a query around it says, are the names that PostgreSQL gives. A relation whose columns are not known here (a function's) leaves the scope open: what is not found stays as it is written.
//!
//! `from` has the relations and joins, `walk` the expressions; here is what a query and its items are.

mod from;
mod walk;

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, GroupByExpr, Ident, LimitClause, OrderBy, OrderByExpr, OrderByKind, OrderByOptions, Query, Select,
    SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableFactor, Value, Values, Visitor,
    WildcardAdditionalOptions, With,
};

use super::rewrite::identifiers;
use super::subqueries;
use crate::engine::ColumnType;
use crate::engine::catalog::Tables;
use crate::engine::direct::output_name;
use crate::engine::parse::unnested;
use crate::engine::scalar::fold;
use crate::engine::walk as tree;
use crate::{SqlError, SqlState};
use from::{is_literal, renamed};

/// Answers the names of a query. The names of its columns as clients see them, if they are known.
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
        // Each time there is one name more.
        hidden = names.hidden;
        query.clone_from(&written);
    }
}

/// The names of a query's columns as clients see them, if no wildcard hides how many there are.
pub(super) fn output_names(query: &Query) -> Option<Vec<String>> {
    fn first_select(body: &SetExpr) -> Option<&Select> {
        match body {
            SetExpr::Select(select) => Some(select),
            SetExpr::SetOperation { left, .. } => first_select(left),
            SetExpr::Query(query) => first_select(&query.body),
            _ => None,
        }
    }
    let name = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) => Some(output_name(expr)),
        SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
        _ => None,
    };
    first_select(&query.body)?.projection.iter().map(name).collect()
}

/// A column of a relation or of a query.
#[derive(Clone, Debug)]
struct Output {
    /// As statements call it.
    name: String,
    /// As the planner calls it.
    planned: String,
    /// `None`: not known here.
    data_type: Option<ColumnType>,
}

impl Output {
    fn plain(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { planned: name.clone(), name, data_type: None }
    }

    fn typed(name: impl Into<String>, data_type: Option<ColumnType>) -> Self {
        Self { data_type, ..Self::plain(name) }
    }
}

/// `None`: not known here.
type Outputs = Option<Vec<Output>>;

/// What may stand before a point.
#[derive(Clone, Debug)]
struct Relation {
    /// As statements call it.
    name: String,
    /// As the planner calls it.
    planned: String,
    columns: Outputs,
}

/// What may stand without a point.
#[derive(Clone, Debug)]
struct Visible {
    name: String,
    expr: Expr,
    /// `None`: not known here.
    data_type: Option<ColumnType>,
}

/// The names of a FROM clause; an empty one stands for the place of a subquery.
#[derive(Clone, Debug, Default)]
struct Scope {
    relations: Vec<Relation>,
    visible: Vec<Visible>,
    /// Whether there are columns that are not known.
    is_open: bool,
    /// Whether a name in or below it means something around it.
    is_correlated: bool,
    /// Whether what is visited is its WHERE.
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

    /// The type of an expression over these names, where it is that of a column.
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

/// What the names of a query's items are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// The query is a relation, or the statement.
    Relation,
    /// It stands in an expression.
    Value,
    /// As that, and its column is compared by names with what is around it.
    Compared,
}

/// An item of a SELECT.
#[expect(clippy::large_enum_variant, reason = "most items are known, and none is kept")]
enum Item {
    Known {
        name: String,
        expr: Expr,
        /// The alias that it was written with.
        alias: Option<Ident>,
    },
    /// A wildcard over columns that are not known.
    Other(SelectItem),
}

impl Item {
    fn known(&self) -> Option<(&str, &Expr)> {
        match self {
            Self::Known { name, expr, .. } => Some((name.as_str(), expr)),
            Self::Other(_) => None,
        }
    }
}

/// Names that differ from each other.
#[derive(Default)]
struct Apart(HashSet<String>);

impl Apart {
    /// `name`, or one like it if that is taken. To the planner (DataFusion 55) an item `"a.b"` has the name of a column `b` of `a`, so it is called without
    /// the point.
    fn take(&mut self, name: &str) -> String {
        let name = name.replace('.', " ");
        if self.0.insert(name.clone()) {
            return name;
        }
        let mut number = self.0.len();
        loop {
            let other = format!("{name} {number}");
            if self.0.insert(other.clone()) {
                return other;
            }
            number += 1;
        }
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

fn column(relation: &str, name: &str) -> Expr {
    Expr::CompoundIdentifier(vec![quoted(relation), quoted(name)])
}

/// The name of a bare name.
fn bare_name(expr: &Expr) -> Option<String> {
    match unnested(expr) {
        Expr::Identifier(ident) => Some(fold(ident)),
        _ => None,
    }
}

/// The item that a number means.
fn position(expr: &Expr) -> Option<usize> {
    match unnested(expr) {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse::<usize>().ok()?.checked_sub(1),
            _ => None,
        },
        _ => None,
    }
}

fn number(index: usize) -> Expr {
    Expr::value(Value::Number((index + 1).to_string(), false))
}

/// An item in the place of its number or name, where the planner would take a constant for the number of another one.
fn no_position(item: &Expr) -> Expr {
    match unnested(item) {
        Expr::Value(_) => Expr::Nested(Box::new(item.clone())),
        _ => item.clone(),
    }
}

/// A subquery that was met among the expressions of a SELECT, where an equal one is to be planned as the same: its column has a made-up name.
struct Answered {
    /// As it was written.
    asked: Query,
    naming: Naming,
    answer: Query,
    is_correlated: bool,
    /// For the column that it becomes by [`subqueries::single_value`].
    name: String,
}

/// The subqueries of the expressions that see the same names: those of the innermost SELECT.
#[derive(Default)]
struct Siblings {
    /// How many scopes there are for them.
    scopes: usize,
    answered: Vec<Answered>,
}

struct Names<'a> {
    tables: &'a Tables,
    /// Knows the relations of the catalogs.
    state: &'a SessionState,
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
    /// The innermost last.
    scopes: Vec<Scope>,
    /// Those of WITH clauses, the innermost last.
    relations: Vec<Relation>,
    siblings: Siblings,
    /// Names that were made up.
    made: usize,
    /// The names of relations that the planner is not told: it would take them for columns of a query within.
    hidden: HashSet<String>,
    /// Whether one of them was found out.
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
        // DataFusion has no FETCH FIRST.
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

    /// So many rows of a VALUES list that have become queries. They keep their order, unless the planner has to join them to a query around.
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

    /// ORDER BY behind a set operation, which knows the names of the result.
    fn ordered_by_outputs(order: &mut OrderBy, outputs: &[Output]) -> Result<(), SqlError> {
        let OrderByKind::Expressions(by) = &mut order.kind else { return Ok(()) };
        for OrderByExpr { expr, .. } in by {
            let Some(name) = bare_name(expr) else { continue };
            let mut called = (0..outputs.len()).filter(|&at| outputs[at].name == name);
            match (called.next(), called.next()) {
                (Some(at), None) => *expr = number(at),
                (Some(_), Some(_)) => return Err(ambiguous_order(&name)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn with(&mut self, with: &mut With) -> Result<(), SqlError> {
        let recursive = with.recursive;
        let outside = self.relations.len();
        for cte in &mut with.cte_tables {
            let name = fold(&cte.alias.name);
            // The planner takes no name twice, not even within another one's query.
            let is_taken = self.relations[..outside].iter().any(|known| known.name == name);
            let planned = if is_taken { self.made_up("with") } else { name.clone() };
            let query = cte.query.as_mut();
            let is_recursive = recursive && recursion(query, &name)?;
            let columns = if is_recursive {
                // The first arm says the columns of what the second one reads.
                let around = self.relations.len();
                if let Some(with) = &mut query.with {
                    self.with(with)?;
                }
                let SetExpr::SetOperation { left, right, .. } = query.body.as_mut() else { continue };
                let outputs = self.body(left, None, Naming::Relation)?;
                let columns = renamed(&mut cte.alias, outputs)?;
                let itself = Relation { name: name.clone(), planned: planned.clone(), columns: columns.clone() };
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
            self.relations.push(Relation { name, planned, columns });
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
            scope = scope.and(next);
        }
        self.scopes.push(scope);
        let siblings = Siblings { scopes: self.scopes.len(), answered: Vec::new() };
        let around = std::mem::replace(&mut self.siblings, siblings);
        self.in_where(true);
        self.part(&mut select.selection)?;
        self.in_where(false);
        self.part(&mut select.having)?;
        self.part(&mut select.named_window)?;
        let items = self.items(std::mem::take(&mut select.projection))?;
        let is_known = items.iter().all(|item| item.known().is_some());
        if let GroupByExpr::Expressions(by, _) = &mut select.group_by {
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

    // Items

    fn items(&mut self, projection: Vec<SelectItem>) -> Result<Vec<Item>, SqlError> {
        let mut items = Vec::with_capacity(projection.len());
        for item in projection {
            match item {
                SelectItem::UnnamedExpr(mut expr) => {
                    let name = output_name(&expr);
                    self.part(&mut expr)?;
                    items.push(Item::Known { name, expr, alias: None });
                }
                SelectItem::ExprWithAlias { mut expr, alias } => {
                    self.part(&mut expr)?;
                    items.push(Item::Known { name: fold(&alias), expr, alias: Some(alias) });
                }
                other => match self.wildcard(&other) {
                    Some(columns) => items.extend(columns),
                    None => items.push(Item::Other(other)),
                },
            }
        }
        Ok(items)
    }

    /// The columns that a wildcard means, if they are known.
    fn wildcard(&self, item: &SelectItem) -> Option<Vec<Item>> {
        let is_plain = |options: &WildcardAdditionalOptions| *options == WildcardAdditionalOptions::default();
        let known = |name: &str, expr: Expr| Item::Known { name: name.to_owned(), expr, alias: None };
        let scope = self.scopes.last()?;
        match item {
            SelectItem::Wildcard(options) if is_plain(options) && !scope.is_open && !scope.relations.is_empty() => {
                Some(scope.visible.iter().map(|c| known(&c.name, c.expr.clone())).collect())
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if is_plain(options) =>
            {
                let wanted = identifiers(name).pop()?;
                let relation = scope.relations.iter().find(|relation| relation.name == wanted)?;
                let columns = relation.columns.as_ref()?;
                Some(columns.iter().map(|c| known(&c.name, column(&relation.planned, &c.planned))).collect())
            }
            _ => None,
        }
    }

    /// An item of GROUP BY. A bare name is a column's before it is an item's.
    fn grouped_by(&mut self, expr: &mut Expr, items: &[Item], is_known: bool) -> Result<(), SqlError> {
        if let Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) = expr {
            for expr in sets.iter_mut().flatten() {
                match self.item_of_group(expr, items)? {
                    Some(item) => *expr = items[item].known().map_or_else(|| number(item), |(_, e)| e.clone()),
                    None => self.part(expr)?,
                }
            }
            if !are_plain(sets) {
                *expr = Expr::GroupingSets(written_out(expr));
            }
            return Ok(());
        }
        match self.item_of_group(expr, items)? {
            Some(item) if is_known => *expr = number(item),
            // The planner knows the item by its name.
            Some(_) => {}
            None => self.part(expr)?,
        }
        Ok(())
    }

    fn item_of_group(&self, expr: &Expr, items: &[Item]) -> Result<Option<usize>, SqlError> {
        let Some(name) = bare_name(expr) else { return Ok(None) };
        let is_column = self.scopes.last().is_some_and(|scope| scope.visible.iter().any(|c| c.name == name));
        if is_column { Ok(None) } else { called(items, &name, "GROUP BY") }
    }

    /// An item of DISTINCT ON. DataFusion has no numbers there.
    fn distinct_on(&mut self, expr: &mut Expr, items: &[Item]) -> Result<(), SqlError> {
        let item = match bare_name(expr) {
            Some(name) => called(items, &name, "DISTINCT ON")?,
            None => position(expr),
        };
        match item.and_then(|item| items.get(item)?.known()) {
            Some((_, item)) => *expr = no_position(item),
            None => self.part(expr)?,
        }
        Ok(())
    }

    /// An item of ORDER BY: only a bare name means an item of SELECT.
    fn ordered_by(
        &mut self,
        expr: &mut Expr,
        items: &[Item],
        is_known: bool,
        is_distinct_on: bool,
    ) -> Result<(), SqlError> {
        let item = match bare_name(expr) {
            Some(name) => called(items, &name, "ORDER BY")?,
            None if position(expr).is_some() => {
                // DISTINCT ON is planned as an aggregate, which does not know the number of an expression.
                let item = position(expr).filter(|_| is_distinct_on).and_then(|item| items.get(item)?.known());
                if let Some((_, item)) = item {
                    *expr = no_position(item);
                }
                return Ok(());
            }
            None => None,
        };
        let item = match item {
            // The planner knows the item by its name.
            Some(_) if !is_known => return Ok(()),
            Some(item) => Some(item),
            None => {
                self.part(expr)?;
                items.iter().position(|item| item.known().is_some_and(|(_, item)| item == unnested(expr)))
            }
        };
        match item.filter(|_| is_known) {
            Some(item) if is_distinct_on => {
                if let Some((_, item)) = items[item].known() {
                    *expr = no_position(item);
                }
            }
            Some(item) => *expr = number(item),
            None => {}
        }
        Ok(())
    }

    /// The items with names that differ. Below an ORDER BY, computed ones have names that no column has: DataFusion adds what it sorts by to them,
    /// and knows an item by its name, which in a query with groups is a column's first.
    fn named(&mut self, items: Vec<Item>, naming: Naming, is_ordered: bool) -> (Vec<SelectItem>, Outputs) {
        let is_known = items.iter().all(|item| item.known().is_some());
        let is_value = naming != Naming::Relation && items.len() == 1;
        let mut apart = Apart::default();
        let mut outputs = Vec::with_capacity(items.len());
        let mut projection = Vec::with_capacity(items.len());
        for (n, item) in items.into_iter().enumerate() {
            let (name, expr, alias) = match item {
                Item::Known { name, expr, alias } => (name, expr, alias),
                Item::Other(item) => {
                    projection.push(item);
                    continue;
                }
            };
            if !is_known {
                projection.push(match alias {
                    Some(alias) => SelectItem::ExprWithAlias { expr, alias },
                    None => SelectItem::UnnamedExpr(expr),
                });
                continue;
            }
            let data_type = self.scopes.last().and_then(|scope| scope.type_of(&expr));
            // One of a query around has another name there.
            let is_own = |relation: &Ident| {
                self.scopes.last().is_some_and(|scope| scope.relations.iter().any(|own| own.planned == relation.value))
            };
            let is_column = match &expr {
                Expr::CompoundIdentifier(parts) => {
                    parts.last().is_some_and(|last| last.value == name) && is_own(&parts[0])
                }
                _ => false,
            };
            let planned = if is_value && (!is_column || naming == Naming::Compared) {
                self.made_up("value")
            } else if is_ordered && !is_column {
                apart.take(&format!("{name} {n}"))
            } else {
                apart.take(&name)
            };
            projection.push(if is_column && planned == name {
                SelectItem::UnnamedExpr(expr)
            } else {
                SelectItem::ExprWithAlias { expr, alias: quoted(&planned) }
            });
            outputs.push(Output { name, planned, data_type });
        }
        (projection, is_known.then_some(outputs))
    }
}

/// Whether the query of a WITH RECURSIVE reads itself. One that does has an order and a limit only outside, as in PostgreSQL.
///
/// One that does not is put in parentheses: DataFusion takes every UNION there for a recursion and leaves out what stands behind it.
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

/// Whether a relation of that name is read.
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

/// Refuses more grouping sets than PostgreSQL takes.
fn check_grouping_sets(by: &[Expr]) -> Result<(), SqlError> {
    const CUBE_MAX: usize = 12;
    const SETS_MAX: usize = 1 << CUBE_MAX;
    let mut sets = 1_usize;
    for expr in by {
        let own = match expr {
            Expr::Cube(elements) if elements.len() > CUBE_MAX => {
                return Err(SqlError::new(
                    SqlState::TOO_MANY_COLUMNS,
                    format!("CUBE is limited to {CUBE_MAX} elements"),
                ));
            }
            Expr::Cube(elements) => 1 << elements.len(),
            Expr::Rollup(elements) => elements.len() + 1,
            Expr::GroupingSets(sets) => sets.len(),
            _ => 1,
        };
        sets = sets.saturating_mul(own);
    }
    if sets > SETS_MAX {
        let message = format!("too many grouping sets present (maximum {SETS_MAX})");
        return Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message));
    }
    Ok(())
}

/// Puts keys that stand beside grouping sets into each of the sets. Beside them the planner adds the columns that such a key decides, which
/// sets may leave out.
fn keys_into_sets(by: &mut Vec<Expr>, items: &[Item]) {
    let is_set = |expr: &Expr| matches!(expr, Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_));
    if by.len() < 2 || !by.iter().any(is_set) {
        return;
    }
    let mut sets = vec![Vec::new()];
    for expr in by.iter() {
        let own = match position(expr) {
            _ if is_set(expr) => written_out(expr),
            None => vec![vec![expr.clone()]],
            Some(item) => match items.get(item).and_then(Item::known) {
                Some((_, item)) => vec![vec![item.clone()]],
                // The planner knows it, or says that there is none.
                None => return,
            },
        };
        sets = sets.iter().flat_map(|set: &Vec<Expr>| own.iter().map(|more| [&set[..], more].concat())).collect();
    }
    for set in &mut sets {
        distinct_keys(set, |expr| expr);
    }
    *by = vec![Expr::GroupingSets(sets)];
}

/// Whether elements are expressions that differ. DataFusion takes no others in ROLLUP and CUBE, and none twice in a grouping set.
fn are_plain(elements: &[Vec<Expr>]) -> bool {
    let is_same = |a: &[Expr], b: &[Expr]| a.iter().map(unnested).eq(b.iter().map(unnested));
    let is_repeated = |n: usize| elements[..n].iter().any(|before| is_same(before, &elements[n]));
    (0..elements.len()).all(|n| elements[n].len() == 1 && !is_repeated(n))
}

/// The sets of ROLLUP, CUBE or GROUPING SETS, each expression once in a set.
fn written_out(expr: &Expr) -> Vec<Vec<Expr>> {
    let mut sets: Vec<Vec<Expr>> = match expr {
        Expr::GroupingSets(sets) => sets.clone(),
        Expr::Rollup(elements) => (0..=elements.len()).rev().map(|count| elements[..count].concat()).collect(),
        Expr::Cube(elements) => {
            let of = |set: usize| (0..elements.len()).filter(move |n| set >> n & 1 == 1);
            (0..1 << elements.len()).map(|set| of(set).flat_map(|n| elements[n].clone()).collect()).collect()
        }
        _ => Vec::new(),
    };
    for set in &mut sets {
        distinct_keys(set, |expr| expr);
    }
    sets
}

/// Drops the keys that stand before already: they decide nothing.
fn distinct_keys<T>(keys: &mut Vec<T>, expr: impl Fn(&T) -> &Expr) {
    let mut next = 0;
    while next < keys.len() {
        let (before, key) = (&keys[..next], unnested(expr(&keys[next])));
        if before.iter().any(|before| unnested(expr(before)) == key) {
            keys.remove(next);
        } else {
            next += 1;
        }
    }
}

/// Drops constants, which decide nothing, but for one where there is nothing else. The planner folds them, and fails at two that are one.
fn without_constants<T>(keys: &mut Vec<T>, expr: impl Fn(&T) -> &Expr) {
    if keys.iter().all(|key| is_constant(expr(key))) {
        keys.truncate(1);
    } else {
        keys.retain(|key| !is_constant(expr(key)));
    }
}

/// Whether an expression is a constant and no number of an item.
fn is_constant(expr: &Expr) -> bool {
    !matches!(expr, Expr::Value(_)) && is_literal(expr)
}

/// Puts the expressions of DISTINCT ON into the order of ORDER BY, which may begin with any of them: DataFusion compares them one by one, and has to
/// have all of them there. It refuses what does not match.
fn on_in_order(on: &mut Vec<Expr>, by: &mut Vec<OrderByExpr>) {
    let place = |key: &Expr, by: &[OrderByExpr]| by.iter().position(|by| unnested(&by.expr) == unnested(key));
    let is_key = |by: &OrderByExpr| on.iter().any(|key| unnested(key) == unnested(&by.expr));
    let begin = by.iter().take_while(|by| is_key(by)).count();
    if begin < on.len() && begin < by.len() {
        return;
    }
    on.sort_by_key(|key| place(key, by).unwrap_or(begin));
    for key in &on[begin..] {
        let options = OrderByOptions { asc: None, nulls_first: None };
        by.push(OrderByExpr { expr: key.clone(), options, with_fill: None });
    }
    without_constants(on, |expr| expr);
    match on.as_slice() {
        [only] if is_constant(only) => {
            let only = place(only, by).map(|at| by.remove(at));
            by.retain(|by| !is_constant(&by.expr));
            if let Some(only) = only {
                by.insert(0, only);
            }
        }
        _ => by.retain(|by| !is_constant(&by.expr)),
    }
}

fn ambiguous_order(name: &str) -> SqlError {
    SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("ORDER BY \"{name}\" is ambiguous"))
}

/// The item of a name. Several must be the same.
fn called(items: &[Item], name: &str, clause: &str) -> Result<Option<usize>, SqlError> {
    let mut found: Option<(usize, &Expr)> = None;
    for (n, (own, expr)) in items.iter().enumerate().filter_map(|(n, item)| Some((n, item.known()?))) {
        if own != name {
            continue;
        }
        match found {
            None => found = Some((n, expr)),
            Some((_, first)) if first == expr => {}
            Some(_) => {
                let message = format!("{clause} \"{name}\" is ambiguous");
                return Err(SqlError::new(SqlState::AMBIGUOUS_COLUMN, message));
            }
        }
    }
    Ok(found.map(|(n, _)| n))
}
