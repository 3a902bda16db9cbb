//! UPDATE and DELETE that need the planner: a SELECT of primary keys and new values, then writes by key.
//!
//! DataFusion's own interfaces for them lose predicates such as `WHERE false` or `IN (SELECT …)` on the way to the
//! table, so they are not used. The WHERE clause is planned as part of a query, and each row of its result is written.

use std::collections::HashSet;

use crate::engine::dialect::Dialect;
use arrow::array::RecordBatch;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr, Ident, ObjectName, ObjectNamePart, Query, SelectItem, SetExpr,
    TableWithJoins, Value,
};
use datafusion::sql::sqlparser::parser::Parser;
use farhold_txn::{RowHandle, Txn};

use super::plan::{DeleteQuery, InsertQuery, UpdateQuery};
use crate::engine::cancel::Pace;
use crate::engine::catalog::{TableInfo, Tables, table_name};
use crate::engine::direct::{Effect, Rules, Writer, apply_update, default_of, insert_moved, is_default, returned};
use crate::engine::parse::parse_expr;
use crate::engine::query::{BatchStream, ROWS_SCHEMA, assigned, sql_type};
use crate::engine::scalar::{ColumnRef, Parameters, assignable, fold};
use crate::engine::sequence::Numbers;
use crate::engine::types::{cast, datum_at, from_arrow};
use crate::engine::{CancelHandle, ColumnType, Datum, OutputColumn, error, walk};
use crate::value::Zone;
use crate::{SqlError, SqlState};

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// `CAST(expression AS type)`.
fn cast_to(expression: Expr, data_type: ColumnType) -> Expr {
    // The planner needs texts of one type in a list, whatever their length; the column checks the length.
    let data_type = if data_type.is_text() { ColumnType::Text } else { data_type };
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(expression),
        data_type: sql_type(data_type),
        array: false,
        format: None,
    }
}

/// `CAST($n AS type)` if the expression is just `$n`.
pub(super) fn typed_parameter(expression: &Expr, data_type: ColumnType) -> Option<Expr> {
    match expression {
        Expr::Nested(inner) => typed_parameter(inner, data_type),
        Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => {
            Some(cast_to(expression.clone(), data_type))
        }
        _ => None,
    }
}

/// An item of a query that assigns values to columns, with a cast if it is untyped.
fn typed_item(expression: &Expr, data_type: ColumnType) -> Option<Expr> {
    let is_bare = is_untyped_literal(expression) && !data_type.is_text();
    if is_bare { Some(cast_to(expression.clone(), data_type)) } else { typed_parameter(expression, data_type) }
}

fn is_untyped_literal(expression: &Expr) -> bool {
    use Value::{DollarQuotedString, EscapedStringLiteral, Null, SingleQuotedString};
    match expression {
        Expr::Nested(inner) => is_untyped_literal(inner),
        Expr::Value(value) => {
            matches!(value.value, SingleQuotedString(_) | EscapedStringLiteral(_) | DollarQuotedString(_) | Null)
        }
        _ => false,
    }
}

/// Checks that the columns of a query's result can be assigned to their target columns.
pub(super) fn check_types(table: &TableInfo, targets: &[usize], given: &[OutputColumn]) -> Result<(), SqlError> {
    for (column, given) in targets.iter().map(|column| &table.columns()[*column]).zip(given) {
        let is_known = from_arrow(&given.arrow_type).is_some();
        if is_known && !assignable(given.data_type, column.data_type) {
            let message = format!(
                "column \"{}\" is of type {} but expression is of type {}",
                column.name, column.data_type, given.data_type
            );
            return Err(SqlError::new(SqlState::DATATYPE_MISMATCH, message)
                .with_hint("You will need to rewrite or cast the expression."));
        }
    }
    Ok(())
}

/// Whether the rows of an INSERT assign a value other than DEFAULT to one of its columns.
pub(super) fn gives(source: &Query, column: usize) -> bool {
    let SetExpr::Values(values) = source.body.as_ref() else { return true };
    values.rows.iter().any(|row| row.content.get(column).is_some_and(|value| !is_default(value)))
}

/// A value of a VALUES list in the type of its column, if it is DEFAULT or untyped.
fn typed_value(expression: &Expr, table: &TableInfo, column: usize) -> Result<Option<Expr>, SqlError> {
    let data_type = table.columns()[column].data_type;
    if is_default(expression) {
        let default = match table.defaults.get(column) {
            Some(Some((text, _))) => parse_expr(text)?,
            _ => Expr::Value(Value::Null.into()),
        };
        return Ok(Some(cast_to(default, data_type)));
    }
    if is_untyped_literal(expression) && !data_type.is_text() {
        return Ok(Some(cast_to(expression.clone(), data_type)));
    }
    let may_have_length = matches!(expression, Expr::Cast { .. } | Expr::TypedString(_) | Expr::Nested(_));
    if may_have_length && data_type.is_text() {
        // The planner needs texts of one type, and VARCHAR(3) differs from VARCHAR(4). Concatenated with an empty
        // string, the value is TEXT.
        let left = Box::new(Expr::Nested(Box::new(expression.clone())));
        let right = Box::new(Expr::Value(Value::SingleQuotedString(String::new()).into()));
        return Ok(Some(Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right }));
    }
    Ok(typed_parameter(expression, data_type))
}

/// Gives untyped values in an INSERT's rows the types of their columns.
pub(super) fn type_values(query: &mut Query, table: &TableInfo, targets: &[usize]) -> Result<(), SqlError> {
    match query.body.as_mut() {
        SetExpr::Values(values) => {
            for row in &mut values.rows {
                for (expression, &column) in row.content.iter_mut().zip(targets) {
                    if let Some(typed) = typed_value(expression, table, column)? {
                        *expression = typed;
                    } else if let data_type @ ColumnType::Decimal { .. } = table.columns()[column].data_type {
                        // Gives all numbers one type, also those that are untyped.
                        *expression = assigned(expression.clone(), &table.columns()[column].name, data_type);
                    }
                }
            }
        }
        SetExpr::Select(select) => {
            // The number of columns of a wildcard is not known here, so the target columns of later items are not
            // either.
            let is_plain =
                |item: &&mut SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
            for (item, &column) in select.projection.iter_mut().take_while(is_plain).zip(targets) {
                if let SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } = item
                    && let Some(typed) = typed_item(expression, table.columns()[column].data_type)
                {
                    *expression = typed;
                }
            }
        }
        SetExpr::Query(query) => type_values(query, table, targets)?,
        _ => {}
    }
    Ok(())
}

/// The columns of the relations beside the written table to which RETURNING may refer.
pub(super) fn columns_beside(
    others: &[TableWithJoins],
    returning: Option<&[SelectItem]>,
    tables: &Tables,
) -> Result<Vec<ColumnRef>, SqlError> {
    let Some(items) = returning.filter(|_| !others.is_empty()) else { return Ok(Vec::new()) };
    let of = |relation: &ast::TableFactor| -> Option<Vec<ColumnRef>> {
        let ast::TableFactor::Table { name, alias, args: None, .. } = relation else { return None };
        let table = tables.get(&table_name(name).ok()?)?;
        let alias = alias.as_ref();
        let has_own_names = alias.is_some_and(|alias| !alias.columns.is_empty());
        let qualifier = alias.map_or_else(|| table.name.clone(), |alias| fold(&alias.name));
        (!has_own_names).then(|| table.column_refs(&qualifier))
    };
    let merges = |join: &ast::Join| {
        use ast::JoinConstraint::{Natural, Using};
        matches!(walk::constraint(&join.join_operator), Some(Using(_) | Natural))
    };
    let mut columns = Vec::new();
    for other in others {
        for relation in std::iter::once(&other.relation).chain(other.joins.iter().map(|join| &join.relation)) {
            match of(relation).filter(|_| !other.joins.iter().any(merges)) {
                Some(more) => columns.extend(more),
                None if items.iter().any(|item| matches!(item, SelectItem::Wildcard(_))) => {
                    return Err(SqlError::unsupported("RETURNING * with sources other than tables"));
                }
                None => {}
            }
        }
    }
    Ok(columns)
}

/// `SELECT key…, value…, beside… FROM table, others WHERE …`. The items have unique names.
pub(super) fn update_query(
    table: &TableInfo,
    qualifier: &str,
    pairs: &[(usize, Option<&Expr>)],
    (others, beside): (&[TableWithJoins], &[ColumnRef]),
    selection: Option<&Expr>,
) -> Query {
    // Parsed from a template; the user's expressions are inserted as parsed.
    let frame = "SELECT 1 FROM a.b AS c";
    let mut query = match Parser::new(&Dialect::new(frame)).try_with_sql(frame).and_then(|mut p| p.parse_query()) {
        Ok(query) => *query,
        Err(_) => unreachable!("the frame parses"),
    };
    let SetExpr::Select(select) = query.body.as_mut() else { unreachable!("the frame is a SELECT") };
    let item = |expr: Expr, name: String| SelectItem::ExprWithAlias { expr, alias: quoted(&name) };
    select.projection = table
        .schema()
        .key()
        .iter()
        .enumerate()
        .map(|(n, &column)| {
            let name = &table.columns()[column].name;
            item(Expr::CompoundIdentifier(vec![quoted(qualifier), quoted(name)]), format!("farhold key {n}"))
        })
        .collect();
    for (n, (column, expression)) in pairs.iter().enumerate() {
        let expression = match expression {
            // DEFAULT is evaluated when the row is written.
            None => cast_to(Expr::Value(Value::Null.into()), table.columns()[*column].data_type),
            Some(expression) => {
                typed_item(expression, table.columns()[*column].data_type).unwrap_or_else(|| (*expression).clone())
            }
        };
        select.projection.push(item(expression, format!("farhold value {n}")));
    }
    for (n, column) in beside.iter().enumerate() {
        let expression = Expr::CompoundIdentifier(vec![quoted(&column.qualifier), quoted(&column.name)]);
        select.projection.push(item(expression, format!("farhold beside {n}")));
    }
    if let Some(TableWithJoins { relation: ast::TableFactor::Table { name, alias: Some(alias), .. }, .. }) =
        select.from.first_mut()
    {
        *name = ObjectName(vec![
            ObjectNamePart::Identifier(quoted(ROWS_SCHEMA)),
            ObjectNamePart::Identifier(quoted(&table.name)),
        ]);
        alias.name = quoted(qualifier);
    }
    select.from.extend(others.iter().cloned());
    select.selection = selection.cloned();
    query
}

/// Finds rows by the keys that a query returned.
struct Finder<'a> {
    table: &'a TableInfo,
    seen: HashSet<RowHandle>,
    key: Vec<u8>,
}

impl<'a> Finder<'a> {
    fn new(table: &'a TableInfo) -> Self {
        Self { table, seen: HashSet::new(), key: Vec::new() }
    }

    /// `None` for a row that was found before: a join may return it twice, but PostgreSQL writes it only once.
    async fn find(&mut self, txn: &mut Txn, batch: &RecordBatch, row: usize) -> Result<Option<RowHandle>, SqlError> {
        let schema = self.table.schema();
        let mut parts = Vec::with_capacity(schema.key().len());
        for (n, &column) in schema.key().iter().enumerate() {
            parts.push(cast(
                datum_at(batch.column(n), row, Zone::UTC)?,
                schema.columns()[column].data_type,
                Zone::UTC,
            )?);
        }
        schema.encode_key_parts(&parts, &mut self.key).map_err(|e| error::from_row(&e))?;
        let found = txn.get(&self.table.table, &self.key).await.map_err(|e| error::from_txn(&e))?;
        Ok(found.filter(|handle| self.seen.insert(*handle)))
    }
}

impl UpdateQuery {
    /// Writes the query's rows.
    pub(super) async fn apply(
        &self,
        txn: &mut Txn,
        batches: &mut BatchStream,
        parameters: Parameters<'_>,
        numbers: Numbers<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let table = &self.table;
        let keys = table.schema().key().len();
        let mut effect = Effect { rows: self.returning.as_ref().map(|_| Vec::new()), count: 0 };
        let mut finder = Finder::new(table);
        let mut moved = Vec::new();
        let rules = Rules::new(table, self.assigned.iter().copied());
        let mut row = vec![Datum::Null; table.columns().len()];
        let wanted = table.wanted_all();
        let mut pace = Pace::new(cancel);
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            for n in 0..batch.num_rows() {
                pace.step().await?;
                let Some(handle) = finder.find(txn, &batch, n).await? else { continue };
                table.read(txn.key(handle), txn.value(handle), &wanted, &mut row)?;
                for (value, &column) in self.assigned.iter().enumerate() {
                    let data_type = table.columns()[column].data_type;
                    row[column] = if self.defaults.contains(&column) {
                        numbers.evaluate(&default_of(table, column), &[], parameters).await?
                    } else {
                        cast(datum_at(batch.column(keys + value), n, parameters.zone)?, data_type, parameters.zone)?
                    };
                }
                if let Some(again) = apply_update(txn, &rules, handle, &row, parameters)? {
                    moved.push((again, row.clone()));
                }
                effect.count += 1;
                if let (Some(rows), Some(returning)) = (&mut effect.rows, &self.returning) {
                    let from = keys + self.assigned.len();
                    let beside = beside(&batch, from, &self.beside, n, parameters.zone)?;
                    rows.push(returned(table, returning, &row, beside, parameters)?);
                }
            }
        }
        insert_moved(txn, table, moved, &mut pace).await?;
        Ok(effect)
    }
}

/// The values of the columns beside the table, from the query's column `from` on.
fn beside(
    batch: &RecordBatch,
    from: usize,
    types: &[ColumnType],
    row: usize,
    zone: Zone,
) -> Result<Vec<Datum>, SqlError> {
    let columns = batch.columns().iter().skip(from).zip(types);
    columns.map(|(column, data_type)| cast(datum_at(column, row, zone)?, *data_type, zone)).collect()
}

impl DeleteQuery {
    /// Deletes the query's rows.
    pub(super) async fn apply(
        &self,
        txn: &mut Txn,
        batches: &mut BatchStream,
        parameters: Parameters<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let table = &self.table;
        let mut effect = Effect { rows: self.returning.as_ref().map(|_| Vec::new()), count: 0 };
        let mut finder = Finder::new(table);
        let mut row = vec![Datum::Null; table.columns().len()];
        let wanted = table.wanted_all();
        let mut pace = Pace::new(cancel);
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            for n in 0..batch.num_rows() {
                pace.step().await?;
                let Some(handle) = finder.find(txn, &batch, n).await? else { continue };
                if let (Some(rows), Some(returning)) = (&mut effect.rows, &self.returning) {
                    table.read(txn.key(handle), txn.value(handle), &wanted, &mut row)?;
                    let from = table.schema().key().len();
                    let beside = beside(&batch, from, &self.beside, n, parameters.zone)?;
                    rows.push(returned(table, returning, &row, beside, parameters)?);
                }
                txn.delete(handle).map_err(|e| error::from_txn(&e))?;
                effect.count += 1;
            }
        }
        Ok(effect)
    }
}

impl InsertQuery {
    /// Inserts the query's rows.
    pub(super) async fn apply(
        &self,
        txn: &mut Txn,
        batches: &mut BatchStream,
        parameters: Parameters<'_>,
        numbers: Numbers<'_>,
        cancel: &CancelHandle,
    ) -> Result<Effect, SqlError> {
        let table = &self.insert.table;
        let mut writer = Writer::new(&self.insert, numbers);
        let defaults = self.insert.rows.first().map_or(&[][..], Vec::as_slice);
        let mut pace = Pace::new(cancel);
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            for n in 0..batch.num_rows() {
                pace.step().await?;
                let mut row = Vec::with_capacity(table.columns().len());
                for (column, default) in defaults.iter().enumerate() {
                    // A column with a given value needs no default, which would waste a number of a sequence.
                    let given = self.targets.contains(&column);
                    row.push(if given { Datum::Null } else { numbers.evaluate(default, &[], parameters).await? });
                }
                for (column, &target) in batch.columns().iter().zip(&self.targets) {
                    let datum = datum_at(column, n, parameters.zone)?;
                    row[target] = cast(datum, table.columns()[target].data_type, parameters.zone)?;
                }
                writer.write(txn, &mut row, parameters).await?;
            }
        }
        Ok(writer.finish())
    }
}
