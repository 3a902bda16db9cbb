//! The relations of FROM, and the columns of joins.

use arrow::datatypes::FieldRef;
use datafusion::common::TableReference;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType as SqlType, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, JoinConstraint, JoinOperator, SelectItem, TableAlias, TableAliasColumnDef, TableFactor,
    TableWithJoins, TimezoneInfo, Value, WildcardAdditionalOptions,
};
use futures::FutureExt;

use super::super::rewrite::{identifiers, is_catalog_relation};
use super::super::subqueries::{self, binary};
use super::super::{ROWS_SCHEMA, sql_type};
use super::items::UniqueNames;
use super::{Names, Naming, Output, Outputs, Relation, Scope, Visible, quoted};
use crate::engine::ColumnType;
use crate::engine::catalog::TableInfo;
use crate::engine::parse::unnested;
use crate::engine::scalar::fold;
use crate::engine::types::{from_field, from_sql};
use crate::engine::walk;
use crate::{SqlError, SqlState};

fn table_alias(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: quoted(name), columns: Vec::new(), at: None }
}

/// The columns of a relation after the column list of its alias is applied.
pub(super) fn renamed(alias: &mut TableAlias, outputs: Outputs) -> Result<Outputs, SqlError> {
    if alias.columns.is_empty() {
        return Ok(outputs);
    }
    let given: Vec<String> = alias.columns.iter().map(|column| fold(&column.name)).collect();
    // The planner requires a complete list.
    let Some(outputs) = outputs else { return Ok(Some(given.into_iter().map(Output::plain).collect())) };
    if given.len() > outputs.len() {
        let (name, there, wanted) = (fold(&alias.name), outputs.len(), given.len());
        let message = format!("table \"{name}\" has {there} columns available but {wanted} columns specified");
        return Err(SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message));
    }
    let mut unique = UniqueNames::default();
    let mut given = given.into_iter();
    let called = |output: Output| {
        let name = given.next().unwrap_or(output.name);
        Output { planned: unique.take(&name), name, data_type: output.data_type }
    };
    let outputs: Vec<Output> = outputs.into_iter().map(called).collect();
    alias.columns = outputs.iter().map(|o| TableAliasColumnDef { name: quoted(&o.planned), data_type: None }).collect();
    Ok(Some(outputs))
}

/// A relation's scope.
fn aliased(alias: Option<&mut TableAlias>, default: &str, columns: Outputs) -> Result<Scope, SqlError> {
    let (name, columns) = match alias {
        Some(alias) => (fold(&alias.name), renamed(alias, columns)?),
        None => (default.to_owned(), columns),
    };
    Ok(Scope::of(Relation { planned: name.clone(), name, schema: None, columns, key: Vec::new() }))
}

/// Refuses a name that two relations of a FROM clause share, unless they are tables of different schemas. Queries
/// without an alias have generated names, or none.
pub(super) fn no_name_twice(left: &Scope, right: &Scope) -> Result<(), SqlError> {
    let is_named = |relation: &&Relation| !relation.name.is_empty();
    let is_other = |a: &Relation, b: &Relation| a.schema.is_some() && b.schema.is_some() && a.schema != b.schema;
    let is_before = |relation: &&Relation| {
        left.relations.iter().any(|known| known.name == relation.name && !is_other(known, relation))
    };
    match right.relations.iter().filter(is_named).find(is_before) {
        Some(relation) => {
            let message = format!("table name \"{}\" specified more than once", relation.name);
            Err(SqlError::new(SqlState::DUPLICATE_ALIAS, message))
        }
        None => Ok(()),
    }
}

/// The side of a join that has a value for a merged column in every row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Either,
}

/// Removes the column of USING from the visible columns of one side, and returns it.
fn key(visible: &mut Vec<Visible>, name: &str, side: &str) -> Result<Visible, SqlError> {
    let mut found = (0..visible.len()).filter(|&at| visible[at].name == name);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(visible.remove(at)),
        (Some(_), Some(_)) => {
            let message = format!("common column name \"{name}\" appears more than once in {side} table");
            Err(SqlError::new(SqlState::AMBIGUOUS_COLUMN, message))
        }
        (None, _) => {
            let message = format!("column \"{name}\" specified in USING clause does not exist in {side} table");
            Err(SqlError::new(SqlState::UNDEFINED_COLUMN, message))
        }
    }
}

impl Names<'_> {
    /// `before` is the scope of the preceding FROM items, which LATERAL sees.
    #[recursive::recursive]
    pub(super) fn joined(&mut self, from: &mut TableWithJoins, before: &Scope) -> Result<Scope, SqlError> {
        let mut left = self.factor(&mut from.relation, before, None)?;
        for join in &mut from.joins {
            let right = self.factor(&mut join.relation, before, Some(&left))?;
            no_name_twice(&left, &right)?;
            left = self.join(&mut join.join_operator, left, right)?;
        }
        Ok(left)
    }

    /// Runs `of` in a scope that sees the preceding FROM items.
    fn lateral<T>(
        &mut self,
        before: &Scope,
        left: Option<&Scope>,
        of: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let before = before.clone();
        self.scopes.push(match left {
            Some(left) => before.and(left.clone()),
            None => before,
        });
        let outcome = of(self);
        self.scopes.pop();
        outcome
    }

    fn factor(&mut self, factor: &mut TableFactor, before: &Scope, left: Option<&Scope>) -> Result<Scope, SqlError> {
        if let Some(series) = series(factor) {
            *factor = series;
        }
        let scope = self.named_factor(factor, before, left)?;
        Ok(match scope.relations.as_slice() {
            [relation] if relation.columns.is_some() && self.hidden.contains(&relation.name) => {
                let (planned, relation) = (self.made_up("relation"), relation.clone());
                match factor {
                    TableFactor::Table { alias, .. }
                    | TableFactor::Function { alias, .. }
                    | TableFactor::UNNEST { alias, .. }
                    | TableFactor::Derived { alias, .. } => match alias {
                        Some(alias) => alias.name = quoted(&planned),
                        None => *alias = Some(table_alias(&planned)),
                    },
                    // Its relations were handled before.
                    _ => return Ok(scope),
                }
                Scope::of(Relation { planned, ..relation })
            }
            _ => scope,
        })
    }

    fn named_factor(
        &mut self,
        factor: &mut TableFactor,
        before: &Scope,
        left: Option<&Scope>,
    ) -> Result<Scope, SqlError> {
        match factor {
            TableFactor::Table { with_ordinality: true, .. } | TableFactor::Function { with_ordinality: true, .. } => {
                Err(SqlError::unsupported("WITH ORDINALITY"))
            }
            TableFactor::Table { name, alias, args: None, .. } => {
                let path = identifiers(name);
                let (columns, key) = (self.columns_of(&path), self.key_of(&path));
                let own = path.last().cloned().unwrap_or_default();
                let defined = self.defined(&path).map(|relation| relation.planned.clone());
                let schema = match path.as_slice() {
                    _ if alias.is_some() || defined.is_some() => None,
                    [.., schema, _] => Some(schema.clone()),
                    [name] if is_catalog_relation(name) => Some("pg_catalog".to_owned()),
                    _ => Some("public".to_owned()),
                };
                let planned = defined.filter(|planned| *planned != own);
                if columns.is_some() && (path.len() > 1 || planned.is_some()) && alias.is_none() {
                    *alias = Some(table_alias(&own));
                }
                if let Some(planned) = planned {
                    *name = vec![quoted(&planned)].into();
                }
                let mut scope = aliased(alias.as_mut(), &own, columns)?;
                for relation in &mut scope.relations {
                    relation.schema.clone_from(&schema);
                    relation.key = key
                        .iter()
                        .filter_map(|at| Some(relation.columns.as_ref()?.get(*at)?.planned.clone()))
                        .collect();
                }
                Ok(scope)
            }
            TableFactor::Table { name, alias, args: Some(args), .. } => {
                self.lateral(before, left, |names| names.part(&mut args.args))?;
                let own = identifiers(name).pop().unwrap_or_default();
                let mut columns = None;
                if own == SERIES {
                    // Its column has the name of the relation.
                    let alias = alias.get_or_insert_with(|| table_alias(SERIES));
                    let (name, planned) = (fold(&alias.name), "value".to_owned());
                    columns = Some(vec![Output { name, planned, data_type: None }]);
                }
                aliased(alias.as_mut(), &own, columns)
            }
            TableFactor::Function { name, args, alias, .. } => {
                self.lateral(before, left, |names| names.part(args))?;
                aliased(alias.as_mut(), &identifiers(name).pop().unwrap_or_default(), None)
            }
            TableFactor::UNNEST { alias, array_exprs, with_offset: false, with_ordinality: false, .. } => {
                self.lateral(before, left, |names| names.part(array_exprs))?;
                let count = array_exprs.len();
                let alias = alias.get_or_insert_with(|| table_alias("unnest"));
                if alias.columns.is_empty() {
                    let name = if count == 1 { fold(&alias.name) } else { "unnest".to_owned() };
                    alias.columns = vec![TableAliasColumnDef { name: quoted(&name), data_type: None }];
                }
                let columns = Some(vec![Output::plain("unnest"); count]);
                aliased(Some(alias), "", columns)
            }
            TableFactor::Derived { lateral, subquery, alias, .. } => {
                let columns = if *lateral {
                    self.lateral(before, left, |names| names.query(subquery, Naming::Relation))?
                } else {
                    self.query(subquery, Naming::Relation)?
                };
                if columns.is_some() && alias.is_none() {
                    *alias = Some(table_alias(&self.made_up("relation")));
                }
                aliased(alias.as_mut(), "", columns)
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let inner = match left {
                    Some(left) => self.joined(table_with_joins, &before.clone().and(left.clone()))?,
                    None => self.joined(table_with_joins, before)?,
                };
                let Some(mut alias) = alias.take() else { return Ok(inner) };
                // An aliased join has the columns of a query.
                let mut unique = UniqueNames::default();
                let outputs: Vec<Output> = inner
                    .visible
                    .iter()
                    .map(|c| Output { name: c.name.clone(), planned: unique.take(&c.name), data_type: c.data_type })
                    .collect();
                let item = |(c, o): (&Visible, &Output)| SelectItem::ExprWithAlias {
                    expr: c.expr.clone(),
                    alias: quoted(&o.planned),
                };
                let projection = if inner.is_open {
                    vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())]
                } else {
                    inner.visible.iter().zip(&outputs).map(item).collect()
                };
                let subquery = subqueries::select(projection, vec![table_with_joins.as_ref().clone()])?;
                let scope = aliased(Some(&mut alias), "", (!inner.is_open).then_some(outputs))?;
                *factor = TableFactor::Derived { lateral: false, subquery, alias: Some(alias), sample: None };
                Ok(scope)
            }
            _ => Ok(Scope { is_open: true, ..Scope::default() }),
        }
    }

    /// The WITH query to which a name refers.
    fn defined(&self, path: &[String]) -> Option<&Relation> {
        let [name] = path else { return None };
        self.relations.iter().rev().find(|relation| relation.name == *name)
    }

    /// The columns of a table or of a WITH query.
    fn columns_of(&self, path: &[String]) -> Outputs {
        let outputs = |table: &TableInfo, count: usize| -> Vec<Output> {
            let columns = table.columns()[..count].iter();
            columns.map(|column| Output::typed(column.name.as_str(), Some(column.data_type))).collect()
        };
        if let Some(relation) = self.defined(path) {
            return relation.columns.clone();
        }
        if let Some(table) = self.table_of(path) {
            return Some(outputs(table, table.visible));
        }
        match path {
            [name] if is_catalog_relation(name) => self.catalog_columns("pg_catalog", name),
            [schema, name] if schema == ROWS_SCHEMA => {
                self.tables.get(name).map(|table| outputs(table, table.columns().len()))
            }
            [schema, name] | [_, schema, name] if schema != "public" => self.catalog_columns(schema, name),
            _ => None,
        }
    }

    /// The table to which a name refers, unless it refers to a WITH query or a catalog relation.
    fn table_of(&self, path: &[String]) -> Option<&TableInfo> {
        match path {
            [name] if self.defined(path).is_none() && !is_catalog_relation(name) => self.tables.get(name),
            [schema, name] | [_, schema, name] if schema == "public" => self.tables.get(name),
            _ => None,
        }
        .map(AsRef::as_ref)
    }

    /// The positions of a table's primary key among its columns.
    fn key_of(&self, path: &[String]) -> Vec<usize> {
        let table = self.table_of(path).filter(|table| !table.hidden_row_number);
        table.map_or_else(Vec::new, |table| table.table.schema().key().to_vec())
    }

    /// The columns of a relation of `pg_catalog` or `information_schema`.
    fn catalog_columns(&self, schema: &str, name: &str) -> Outputs {
        let relations = self.state.schema_for_ref(TableReference::partial(schema, name)).ok()?;
        // They are in memory, so the future is ready at once.
        let relation = relations.table(name).now_or_never()?.ok()??;
        let output = |field: &FieldRef| Output::typed(field.name().as_str(), from_field(field));
        Some(relation.schema().fields().iter().map(output).collect())
    }

    fn join(&mut self, operator: &mut JoinOperator, mut left: Scope, mut right: Scope) -> Result<Scope, SqlError> {
        let side = match operator {
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => Side::Right,
            JoinOperator::FullOuter(_) => Side::Either,
            _ => Side::Left,
        };
        let Some(constraint) = walk::constraint_mut(operator) else { return Ok(left.and(right)) };
        let keys: Vec<String> = match constraint {
            JoinConstraint::On(condition) => {
                self.scopes.push(left.and(right));
                self.part(condition)?;
                let both = self.scopes.pop().unwrap_or_default();
                return Ok(Scope { is_correlated: false, ..both });
            }
            JoinConstraint::None => return Ok(left.and(right)),
            JoinConstraint::Using(_) | JoinConstraint::Natural if left.is_open || right.is_open => {
                if side != Side::Left {
                    return Err(SqlError::unsupported(
                        "RIGHT or FULL JOIN with USING or NATURAL of a relation whose columns are not known",
                    )
                    .with_hint("Use ON, and coalesce() for the merged column."));
                }
                // Only the planner can tell which columns are merged.
                left.visible.clear();
                right.visible.clear();
                return Ok(left.and(right));
            }
            JoinConstraint::Using(columns) => columns.iter().filter_map(|name| identifiers(name).pop()).collect(),
            JoinConstraint::Natural => {
                let is_common = |name: &str| right.visible.iter().any(|c| c.name == name);
                left.visible.iter().map(|c| c.name.clone()).filter(|name| is_common(name)).collect()
            }
        };
        let mut merged = Vec::with_capacity(keys.len());
        let mut condition: Option<Expr> = None;
        for name in keys {
            let a = key(&mut left.visible, &name, "left")?;
            let b = key(&mut right.visible, &name, "right")?;
            let equal = binary(a.expr.clone(), BinaryOperator::Eq, b.expr.clone());
            condition = Some(match condition {
                Some(before) => binary(before, BinaryOperator::And, equal),
                None => equal,
            });
            let wider = a.data_type.zip(b.data_type).and_then(|(a, b)| wider(a, b));
            let same = a.data_type.filter(|_| a.data_type == b.data_type);
            let (expr, data_type) = match side {
                Side::Left => (with_type(a.expr, a.data_type, wider), wider.or(a.data_type)),
                Side::Right => (with_type(b.expr, b.data_type, wider), wider.or(b.data_type)),
                Side::Either => {
                    let (a, b) = (with_type(a.expr, a.data_type, wider), with_type(b.expr, b.data_type, wider));
                    (either(a, b), wider.or(same))
                }
            };
            merged.push(Visible { name, expr, data_type });
        }
        // A NATURAL join without a common column is a cross join.
        *constraint = JoinConstraint::On(condition.unwrap_or_else(|| Expr::value(Value::Boolean(true))));
        merged.append(&mut left.visible);
        left.visible = merged;
        Ok(left.and(right))
    }
}

/// The rank of a type among those with implicit casts to each other: numbers, or dates and timestamps.
fn rank(data_type: ColumnType) -> Option<(u8, u8)> {
    Some(match data_type {
        ColumnType::SmallInt => (0, 0),
        ColumnType::Int => (0, 1),
        ColumnType::BigInt => (0, 2),
        ColumnType::Decimal { .. } => (0, 3),
        ColumnType::Real => (0, 4),
        ColumnType::Double => (0, 5),
        ColumnType::Date => (1, 0),
        ColumnType::Timestamp => (1, 1),
        ColumnType::Timestamptz => (1, 2),
        _ => return None,
    })
}

/// The type of a merged column, if one side is implicitly cast to the type of the other.
fn wider(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    let ((kind, rank_of_a), (other_kind, rank_of_b)) = (rank(a)?, rank(b)?);
    (kind == other_kind && rank_of_a != rank_of_b).then_some(if rank_of_a > rank_of_b { a } else { b })
}

/// One side of a merged column in the type of the merged column.
fn with_type(expr: Expr, from: Option<ColumnType>, to: Option<ColumnType>) -> Expr {
    let Some(to) = to.filter(|to| from.and_then(rank) != rank(*to)) else { return expr };
    let data_type = match to {
        // A number keeps its own scale.
        ColumnType::Decimal { .. } => SqlType::Numeric(ExactNumberInfo::None),
        ColumnType::Timestamp => SqlType::Timestamp(None, TimezoneInfo::None),
        ColumnType::Timestamptz => SqlType::Timestamp(None, TimezoneInfo::WithTimeZone),
        other => sql_type(other),
    };
    let cast = |expr: Expr| Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(expr),
        data_type: data_type.clone(),
        array: false,
        format: None,
    };
    match expr {
        // With a cast around a `coalesce`, `either` could not take its arguments.
        Expr::Function(Function { args: FunctionArguments::List(_), .. }) => {
            subqueries::call("coalesce", arguments(expr).into_iter().map(cast).collect())
        }
        column => cast(column),
    }
}

/// `coalesce(a, b)`. The arguments of a `coalesce` that a FULL JOIN below has made are merged in: nested ones, as CASE,
/// double in size at each level.
fn either(a: Expr, b: Expr) -> Expr {
    subqueries::call("coalesce", [a, b].into_iter().flat_map(arguments).collect())
}

/// The arguments of a merged column's `coalesce`, or the column itself.
fn arguments(side: Expr) -> Vec<Expr> {
    match side {
        Expr::Function(Function { args: FunctionArguments::List(list), .. }) => {
            let value = |argument: FunctionArg| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
                _ => None,
            };
            list.args.into_iter().filter_map(value).collect()
        }
        column => vec![column],
    }
}

/// The table function for which DataFusion requires literals as arguments.
const SERIES: &str = "generate_series";

/// `generate_series` of expressions other than literals: unnests the array that the scalar function of the same name
/// returns.
fn series(factor: &TableFactor) -> Option<TableFactor> {
    let (name, args, alias) = match factor {
        TableFactor::Table { name, args: Some(args), alias, with_ordinality: false, .. } => (name, &args.args, alias),
        TableFactor::Function { name, args, alias, with_ordinality: false, .. } => (name, args, alias),
        _ => return None,
    };
    let values: Option<Vec<&Expr>> = args
        .iter()
        .map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
            _ => None,
        })
        .collect();
    // The planner also accepts the end alone, which PostgreSQL does not.
    let is_planners = |values: &Vec<&Expr>| {
        matches!(values.len(), 2 | 3) && values.iter().all(|value| is_literal(value) && !is_moment(value))
    };
    let values = values.filter(|values| !is_planners(values))?;
    if identifiers(name).last().is_none_or(|name| name != SERIES) {
        return None;
    }
    let is_of = |of: ColumnType| values.iter().any(|value| stated_type(value) == Some(of));
    // PostgreSQL prefers a time zone, unless there is a timestamp without.
    let of = if !values.iter().any(|value| is_moment(value)) {
        ColumnType::BigInt
    } else if is_of(ColumnType::Timestamp) && !is_of(ColumnType::Timestamptz) {
        ColumnType::Timestamp
    } else {
        ColumnType::Timestamptz
    };
    let typed = |value: &Expr| match unnested(value) {
        Expr::Value(literal) if matches!(literal.value, Value::Placeholder(_)) => Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(value.clone()),
            data_type: sql_type(of),
            array: false,
            format: None,
        },
        _ => value.clone(),
    };
    let array = subqueries::call(SERIES, values.into_iter().map(typed).collect());
    let alias = alias.clone().unwrap_or_else(|| table_alias(SERIES));
    Some(TableFactor::UNNEST {
        alias: Some(alias),
        array_exprs: vec![array],
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    })
}

/// The type that an expression states.
fn stated_type(expr: &Expr) -> Option<ColumnType> {
    match unnested(expr) {
        Expr::Cast { data_type, .. } => from_sql(data_type).ok(),
        Expr::TypedString(typed) => from_sql(&typed.data_type).ok(),
        _ => None,
    }
}

/// Whether a constant has an explicit type that is no integer, such as a timestamp or an interval.
fn is_moment(expr: &Expr) -> bool {
    match unnested(expr) {
        Expr::Cast { data_type, .. } => {
            let is_integer = |of| matches!(of, ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt);
            !from_sql(data_type).is_ok_and(is_integer)
        }
        Expr::BinaryOp { left, right, .. } => is_moment(left) || is_moment(right),
        Expr::TypedString(_) | Expr::Interval(_) => true,
        // The function refuses these.
        Expr::Value(value) => matches!(&value.value, Value::Number(text, _) if text.contains(['.', 'e', 'E'])),
        _ => false,
    }
}

/// Whether an expression is made of constants, none of which is a parameter.
pub(super) fn is_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => !matches!(value.value, Value::Placeholder(_)),
        Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } | Expr::Cast { expr: inner, .. } => is_literal(inner),
        // The planner evaluates it before it calls the function.
        Expr::BinaryOp { left, right, .. } => is_literal(left) && is_literal(right),
        Expr::TypedString(_) | Expr::Interval(_) => true,
        _ => false,
    }
}
