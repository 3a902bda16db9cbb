//! Compiles a parsed statement to a [`Program`], if the direct path supports it.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    self, Assignment, AssignmentTarget, ConflictTarget, Expr, LimitClause, ObjectName, OnConflictAction, OnInsert,
    OrderByKind, Query, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableObject,
};
use farhold_txn::Index;

use super::access::{choose, conjuncts};
use super::forms::{
    check_delete, check_insert, check_single_table, check_update, check_values, column_name, is_bare, is_default,
    is_name, is_plain, single_name, single_source,
};
use super::insert::OnConflict;
use super::names::output_name;
use super::{Delete, Insert, Program, Returning, Select, Update, output_column, wire_type};
use crate::engine::catalog::{TableInfo, Tables, no_such_table, table_name};
use crate::engine::scalar::{BindError, Binder, ColumnRef, Scalar, fold};
use crate::engine::{ColumnType, Datum, OutputColumn};
use crate::value::Zone;
use crate::{SqlError, SqlState};

/// Compiles statements against one version of the catalog.
pub(crate) struct Compiler<'a> {
    pub(crate) tables: &'a Tables,
    /// The known types of the parameters; compiling adds to them.
    pub(crate) parameters: &'a mut Vec<Option<ColumnType>>,
    /// The session's time zone.
    pub(crate) zone: Zone,
}

type Result<T> = std::result::Result<T, BindError>;

impl Compiler<'_> {
    /// Compiles a SELECT.
    pub(crate) fn select(&mut self, query: &Query) -> Result<Program> {
        let for_update = match query.locks.as_slice() {
            [] => false,
            [lock] if lock.nonblock.is_none() && lock.of.is_none() => true,
            _ => return Err(BindError::Complex),
        };
        let SetExpr::Select(select) = query.body.as_ref() else { return Err(BindError::Complex) };
        if !is_plain(query, select) {
            return Err(BindError::Complex);
        }
        if select.from.is_empty() {
            if select.selection.is_some() || query.order_by.is_some() || query.limit_clause.is_some() {
                return Err(BindError::Complex);
            }
            let mut output = Vec::with_capacity(select.projection.len());
            self.items(&select.projection, &[], &mut output)?;
            return Ok(Program::Constant(output));
        }
        let [from] = select.from.as_slice() else { return Err(BindError::Complex) };
        let (name, qualifier) = single_source(from).ok_or(BindError::Complex)?;
        let table = self.known_table(name)?;
        let columns = table.column_refs(&qualifier);
        let order = order_by(query, &columns)?;
        let mut output = Vec::with_capacity(select.projection.len());
        self.items(&select.projection, &columns, &mut output)?;
        let conditions = self.conditions(select.selection.as_ref(), &columns)?;
        if output.iter().any(|(scalar, _)| scalar.calls_sequences()) {
            return Err(BindError::Complex);
        }
        let (limit, offset) = self.limit(query)?;
        let (access, rest, ordered) = choose(&table, &conditions, &order);
        let filter = join_conditions(rest);
        let stops_early = limit.is_some() && filter.is_none();
        if !ordered || !(access.is_narrow(&table) || stops_early || for_update) {
            return Err(BindError::Complex);
        }
        let mut used = Vec::new();
        for scalar in output.iter().map(|(s, _)| s).chain(&filter) {
            scalar.visit(&mut |s| {
                if let Scalar::Column(c) = s {
                    used.push(*c);
                }
            });
        }
        let wanted = table.wanted(used);
        Ok(Program::Select(Select { table, access, filter, wanted, output, limit, offset, for_update }))
    }

    /// Compiles an INSERT … VALUES.
    pub(crate) fn insert(&mut self, insert: &ast::Insert) -> Result<Program> {
        check_insert(insert)?;
        let (table, targets) = self.insert_target(insert)?;
        let mut rows = Vec::new();
        match insert.source.as_deref() {
            None => rows.push(default_row(&table)),
            Some(query) => {
                let SetExpr::Values(values) = query.body.as_ref() else { return Err(BindError::Complex) };
                if query.with.is_some() || query.order_by.is_some() || query.limit_clause.is_some() {
                    return Err(BindError::Complex);
                }
                check_values(values, &targets, !insert.columns.is_empty())?;
                for expressions in &values.rows {
                    rows.push(self.values_row(&table, &targets, &expressions.content)?);
                }
            }
        }
        let on_conflict = self.conflict(insert, &table)?;
        let returning = self.returning(insert.returning.as_deref(), &table, &insert_qualifier(insert, &table))?;
        Ok(Program::Insert(Insert { table, rows, on_conflict, returning }))
    }

    /// The table of an INSERT and its target columns, in the order given.
    pub(crate) fn insert_target(&self, insert: &ast::Insert) -> Result<(Arc<TableInfo>, Vec<usize>)> {
        let TableObject::TableName(name) = &insert.table else { return Err(BindError::Complex) };
        let table = self.written_table(name)?;
        let mut targets = Vec::with_capacity(insert.columns.len());
        for column in &insert.columns {
            targets.push(table.column(&column_name(column)?)?);
            check_once(&table, &targets)?;
        }
        if insert.columns.is_empty() {
            targets.extend(0..table.visible);
        }
        Ok((table, targets))
    }

    fn values_row(&mut self, table: &TableInfo, targets: &[usize], expressions: &[Expr]) -> Result<Vec<Scalar>> {
        let mut row = default_row(table);
        for (expression, &target) in expressions.iter().zip(targets) {
            if is_default(expression) {
                continue;
            }
            table.check_given(target, "cannot insert a non-DEFAULT value into")?;
            let to = table.columns()[target].data_type;
            row[target] = self.binder(&[]).bind_to(expression, to)?;
        }
        Ok(row)
    }

    /// The ON CONFLICT clause.
    pub(crate) fn conflict(&mut self, insert: &ast::Insert, table: &Arc<TableInfo>) -> Result<OnConflict> {
        let clause = match &insert.on {
            None => return Ok(OnConflict::Fail),
            Some(OnInsert::OnConflict(clause)) => clause,
            Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY").into()),
        };
        let index = match &clause.conflict_target {
            None => None,
            Some(target) => Some(conflict_rule(table, target)?),
        };
        match (&clause.action, index) {
            (OnConflictAction::DoNothing, index) => Ok(OnConflict::Skip(index)),
            (OnConflictAction::DoUpdate(_), None) => {
                Err(SqlError::syntax("ON CONFLICT DO UPDATE requires inference specification or constraint name")
                    .into())
            }
            (OnConflictAction::DoUpdate(update), Some(index)) => {
                let qualifier = insert_qualifier(insert, table);
                let mut columns = table.column_refs(&qualifier);
                columns.extend(table.column_refs("excluded"));
                let not_simple = |e: BindError| match e {
                    BindError::Complex => {
                        BindError::Wrong(SqlError::unsupported("this expression in ON CONFLICT DO UPDATE"))
                    }
                    wrong @ BindError::Wrong(_) => wrong,
                };
                let assignments = self.assignments(&update.assignments, table, &columns).map_err(not_simple)?;
                let filter = match &update.selection {
                    None => None,
                    Some(e) => Some(self.binder(&columns).bind_condition(e).map_err(not_simple)?),
                };
                Ok(OnConflict::Update { index, assignments, filter })
            }
        }
    }

    /// Compiles an UPDATE of one table.
    pub(crate) fn update(&mut self, update: &ast::Update) -> Result<Program> {
        check_update(update)?;
        let (name, qualifier) = check_single_table(&update.table)?;
        let table = self.written_table(name)?;
        let columns = table.column_refs(&qualifier);
        if update.from.is_some() {
            return Err(BindError::Complex);
        }
        let assignments = self.assignments(&update.assignments, &table, &columns)?;
        let (access, filter) = self.where_clause(update.selection.as_ref(), &table, &columns)?;
        let returning = self.returning(update.returning.as_deref(), &table, &qualifier)?;
        Ok(Program::Update(Update { table, access, filter, assignments, returning }))
    }

    /// Compiles a DELETE from one table.
    pub(crate) fn delete(&mut self, delete: &ast::Delete) -> Result<Program> {
        let from = check_delete(delete)?;
        let (name, qualifier) = check_single_table(from)?;
        let table = self.written_table(name)?;
        if delete.using.is_some() {
            return Err(BindError::Complex);
        }
        let columns = table.column_refs(&qualifier);
        let (access, filter) = self.where_clause(delete.selection.as_ref(), &table, &columns)?;
        let returning = self.returning(delete.returning.as_deref(), &table, &qualifier)?;
        Ok(Program::Delete(Delete { table, access, filter, returning }))
    }

    /// The conjuncts of a WHERE clause. A condition that calls a sequence function is left to the planner: direct
    /// filters are evaluated synchronously, and such a call may have to wait.
    fn conditions(&mut self, selection: Option<&Expr>, columns: &[ColumnRef]) -> Result<Vec<Scalar>> {
        let mut conditions = Vec::new();
        if let Some(selection) = selection {
            conjuncts(self.binder(columns).bind_condition(selection)?, &mut conditions);
        }
        if conditions.iter().any(Scalar::calls_sequences) {
            return Err(BindError::Complex);
        }
        Ok(conditions)
    }

    fn where_clause(
        &mut self,
        selection: Option<&Expr>,
        table: &TableInfo,
        columns: &[ColumnRef],
    ) -> Result<(super::Access, Option<Scalar>)> {
        let conditions = self.conditions(selection, columns)?;
        let (access, rest, _) = choose(table, &conditions, &[]);
        Ok((access, join_conditions(rest)))
    }

    /// The assignments of SET, each column once.
    pub(crate) fn assignments(
        &mut self,
        assignments: &[Assignment],
        table: &TableInfo,
        columns: &[ColumnRef],
    ) -> Result<Vec<(usize, Scalar)>> {
        let mut bound = Vec::with_capacity(assignments.len());
        for (column, expression) in assignment_pairs(assignments, table)? {
            let to = table.columns()[column].data_type;
            let scalar = match expression {
                None => default_of(table, column),
                Some(expression) => self.binder(columns).bind_to(expression, to)?,
            };
            bound.push((column, scalar));
        }
        Ok(bound)
    }

    /// The RETURNING clause.
    pub(crate) fn returning(
        &mut self,
        items: Option<&[SelectItem]>,
        table: &TableInfo,
        qualifier: &str,
    ) -> Result<Option<Returning>> {
        bind_returning(self, items, table, qualifier, &[])
    }

    fn items(
        &mut self,
        items: &[SelectItem],
        columns: &[ColumnRef],
        output: &mut Vec<(Scalar, OutputColumn)>,
    ) -> Result<()> {
        for item in items {
            let (expression, alias) = match item {
                SelectItem::UnnamedExpr(e) => (e, None),
                SelectItem::ExprWithAlias { expr, alias } => (expr, Some(fold(alias))),
                SelectItem::Wildcard(options)
                    if *options == ast::WildcardAdditionalOptions::default() || is_bare(options) =>
                {
                    if columns.is_empty() {
                        return Err(BindError::Complex);
                    }
                    output.extend(columns.iter().enumerate().map(|(i, c)| all_item(i, c)));
                    continue;
                }
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                    if is_bare(options) =>
                {
                    let wanted = single_name(name)?;
                    let before = output.len();
                    output.extend(
                        columns.iter().enumerate().filter(|(_, c)| c.qualifier == wanted).map(|(i, c)| all_item(i, c)),
                    );
                    if output.len() == before {
                        return Err(BindError::Complex);
                    }
                    continue;
                }
                _ => return Err(BindError::Complex),
            };
            let bound = self.binder(columns).bind(expression)?;
            let scalar = match bound.data_type {
                None => self.binder(columns).assign(bound.clone(), ColumnType::Text)?,
                Some(_) => bound.scalar,
            };
            let name = alias.unwrap_or_else(|| output_name(expression));
            output.push((scalar, output_column(name, wire_type(bound.data_type))));
        }
        Ok(())
    }

    fn limit(&mut self, query: &Query) -> Result<(Option<Scalar>, Option<Scalar>)> {
        let (limit, offset) = match (&query.limit_clause, &query.fetch) {
            (None, None) => return Ok((None, None)),
            (Some(LimitClause::LimitOffset { limit, offset, limit_by }), None) if limit_by.is_empty() => {
                (limit.as_ref(), offset.as_ref().map(|o| &o.value))
            }
            _ => return Err(BindError::Complex),
        };
        let mut bind = |e: Option<&Expr>| e.map(|e| self.binder(&[]).bind_to(e, ColumnType::BigInt)).transpose();
        let limit = bind(limit)?;
        // LIMIT NULL means no limit.
        let limit = limit.filter(|l| !matches!(l, Scalar::Literal(Datum::Null)));
        Ok((limit, bind(offset)?))
    }

    pub(crate) fn binder<'b>(&'b mut self, columns: &'b [ColumnRef]) -> Binder<'b> {
        Binder { columns, parameters: self.parameters, zone: self.zone, is_kept: false }
    }

    /// A table of this database. Any other name (a view of `pg_catalog`, a CTE) is left to the planner.
    fn known_table(&self, name: &ObjectName) -> Result<Arc<TableInfo>> {
        let name = table_name(name).map_err(|_| BindError::Complex)?;
        self.tables.get(&name).cloned().ok_or(BindError::Complex)
    }

    fn written_table(&self, name: &ObjectName) -> Result<Arc<TableInfo>> {
        let name = table_name(name)?;
        self.tables.get(&name).cloned().ok_or_else(|| no_such_table(&name).into())
    }
}

/// Binds RETURNING over a table and the columns `beside` it; an expression that needs the planner is refused.
pub(crate) fn bind_returning(
    compiler: &mut Compiler<'_>,
    items: Option<&[SelectItem]>,
    table: &TableInfo,
    qualifier: &str,
    beside: &[ColumnRef],
) -> Result<Option<Returning>> {
    let Some(items) = items else { return Ok(None) };
    let mut columns = table.column_refs(qualifier);
    columns.extend_from_slice(beside);
    let mut output = Vec::with_capacity(items.len());
    match compiler.items(items, &columns, &mut output) {
        Ok(()) => Ok(Some(Returning { items: output })),
        Err(BindError::Complex) => Err(SqlError::unsupported("this expression in RETURNING").into()),
        Err(wrong) => Err(wrong),
    }
}

/// The columns and expressions of SET; `None` for DEFAULT.
pub(crate) fn assignment_pairs<'a>(
    assignments: &'a [Assignment],
    table: &TableInfo,
) -> std::result::Result<Vec<(usize, Option<&'a Expr>)>, SqlError> {
    let mut pairs: Vec<(usize, Option<&Expr>)> = Vec::with_capacity(assignments.len());
    let mut add = |name: &ObjectName, value: &'a Expr| -> std::result::Result<(), SqlError> {
        let name = column_name(name)?;
        let column = table.column(&name)?;
        if pairs.iter().any(|(c, _)| *c == column) {
            return Err(SqlError::syntax(format!("multiple assignments to same column \"{name}\"")));
        }
        if !is_default(value) {
            table.check_given(column, "cannot update")?;
        }
        pairs.push((column, (!is_default(value)).then_some(value)));
        Ok(())
    };
    for assignment in assignments {
        match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => add(name, value)?,
            (AssignmentTarget::Tuple(names), Expr::Tuple(values)) if names.len() == values.len() => {
                for (name, value) in names.iter().zip(values) {
                    add(name, value)?;
                }
            }
            (AssignmentTarget::Tuple(_), Expr::Tuple(_)) => {
                return Err(SqlError::syntax("number of columns does not match number of values"));
            }
            (AssignmentTarget::Tuple(_), _) => {
                return Err(SqlError::unsupported("a subquery as the source of several columns"));
            }
        }
    }
    Ok(pairs)
}

/// The unique index that a conflict target denotes.
fn conflict_rule(table: &TableInfo, target: &ConflictTarget) -> std::result::Result<Index, SqlError> {
    match target {
        ConflictTarget::Columns(names) => {
            let mut wanted =
                names.iter().map(|n| table.column(&fold(n))).collect::<std::result::Result<Vec<_>, _>>()?;
            wanted.sort_unstable();
            wanted.dedup();
            let same = |columns: &[usize]| {
                let mut columns = columns.to_vec();
                columns.sort_unstable();
                columns == wanted
            };
            if !table.hidden_row_number && same(table.schema().key()) {
                return Ok(Index::Primary);
            }
            table.indexes.iter().find(|i| i.unique && i.ready && same(&i.columns)).map(|i| i.index).ok_or_else(|| {
                SqlError::new(
                    SqlState::INVALID_COLUMN_REFERENCE,
                    "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                )
            })
        }
        ConflictTarget::OnConstraint(name) => {
            let name = single_name(name)?;
            if !table.hidden_row_number && name == table.primary_key_name {
                return Ok(Index::Primary);
            }
            table.indexes.iter().find(|i| i.unique && i.ready && i.name == name).map(|i| i.index).ok_or_else(|| {
                SqlError::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("constraint \"{name}\" for table \"{}\" does not exist", table.name),
                )
            })
        }
    }
}

fn insert_qualifier(insert: &ast::Insert, table: &TableInfo) -> String {
    insert.table_alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.alias))
}

fn all_item(index: usize, column: &ColumnRef) -> (Scalar, OutputColumn) {
    (Scalar::Column(index), output_column(column.name.clone(), column.data_type))
}

fn join_conditions(conditions: Vec<Scalar>) -> Option<Scalar> {
    conditions.into_iter().reduce(|a, b| Scalar::And(Box::new(a), Box::new(b)))
}

pub(crate) fn default_of(table: &TableInfo, column: usize) -> Scalar {
    table.defaults[column].as_ref().map_or(Scalar::Literal(Datum::Null), |(_, scalar)| scalar.clone())
}

pub(crate) fn default_row(table: &TableInfo) -> Vec<Scalar> {
    (0..table.visible).map(|column| default_of(table, column)).collect()
}

/// 42701 if the last of the columns to be written also occurs before.
pub(crate) fn check_once(table: &TableInfo, columns: &[usize]) -> std::result::Result<(), SqlError> {
    let Some((last, _)) = columns.split_last().filter(|(last, before)| before.contains(last)) else { return Ok(()) };
    let message = format!("column \"{}\" specified more than once", table.columns()[*last].name);
    Err(SqlError::new(SqlState::DUPLICATE_COLUMN, message))
}

/// ORDER BY of plain columns, with NULLs where both PostgreSQL and the indexes place them.
fn order_by(query: &Query, columns: &[ColumnRef]) -> Result<Vec<(usize, bool)>> {
    let Some(order_by) = &query.order_by else { return Ok(Vec::new()) };
    let OrderByKind::Expressions(expressions) = &order_by.kind else { return Err(BindError::Complex) };
    let mut order = Vec::with_capacity(expressions.len());
    let mut bare = Vec::new();
    for item in expressions {
        let (qualifier, name) = match &item.expr {
            Expr::Identifier(ident) => {
                bare.push(fold(ident));
                (None, fold(ident))
            }
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [qualifier, name] => (Some(fold(qualifier)), fold(name)),
                _ => return Err(BindError::Complex),
            },
            _ => return Err(BindError::Complex),
        };
        let is_meant = |c: &ColumnRef| c.name == name && qualifier.as_ref().is_none_or(|q| c.qualifier == *q);
        let column = columns.iter().position(is_meant).ok_or(BindError::Complex)?;
        let descending = item.options.asc == Some(false);
        if item.options.nulls_first.is_some_and(|first| first != descending) || item.with_fill.is_some() {
            return Err(BindError::Complex);
        }
        order.push((column, descending));
    }
    // A bare name would refer to an item of the select list with that name, if it is not the column itself.
    if let SetExpr::Select(select) = query.body.as_ref() {
        for item in &select.projection {
            let name = match item {
                SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                SelectItem::UnnamedExpr(expression) if !is_name(expression) => output_name(expression),
                _ => continue,
            };
            if bare.contains(&name) {
                return Err(BindError::Complex);
            }
        }
    }
    Ok(order)
}
