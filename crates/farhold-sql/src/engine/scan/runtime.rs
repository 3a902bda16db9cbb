//! Filters that joins above a scan publish while the query runs: bounds of their keys, the keys themselves if they are few, and bits of the keys. A row that
//! fails them has no match. The scan tests the conditions that it can evaluate before it decodes a row; the join tests all conditions again.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr as Comparison, Expr};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, DynamicFilterPhysicalExpr, InListExpr, Literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use farhold_join::datafusion::IsMember;

use super::filter::ScanFilter;
use super::keys::KeySets;
use crate::engine::ColumnType;
use crate::engine::catalog::TableInfo;

/// The filters over the columns of a scan, in the form that one of its partitions knows.
pub(super) struct RuntimeFilters {
    filters: Arc<[PhysicalExprRef]>,
    /// The last form of each filter.
    known: Vec<Option<PhysicalExprRef>>,
}

impl RuntimeFilters {
    pub(super) fn new(filters: Arc<[PhysicalExprRef]>) -> Self {
        Self { known: vec![None; filters.len()], filters }
    }

    /// The conditions that are known now, and the bits for chunks of columns; `None` if nothing has changed since the last call. `columns`: the table's
    /// columns, in the order of the scan's. `bounds`: whether bounds are worth testing, because chunks of columns have bounds too.
    pub(super) fn refresh(
        &mut self,
        table: &TableInfo,
        columns: &[usize],
        bounds: bool,
    ) -> Result<Option<(ScanFilter, KeySets)>> {
        let mut has_changed = false;
        for (filter, known) in self.filters.iter().zip(&mut self.known) {
            let now = match filter.downcast_ref::<DynamicFilterPhysicalExpr>() {
                Some(dynamic) => dynamic.current()?,
                None => Arc::clone(filter),
            };
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &now)) {
                *known = Some(now);
                has_changed = true;
            }
        }
        if !has_changed {
            return Ok(None);
        }
        let conditions = || self.known.iter().flatten().flat_map(split_conjunction);
        let sets = KeySets::new(conditions().filter_map(|condition| {
            let keys = condition.downcast_ref::<IsMember>()?;
            Some((exact_column(keys.key(), table, columns)?, keys.members()?))
        }));
        let conditions = conditions().filter(|condition| bounds || !condition.is::<BinaryExpr>());
        let conditions: Vec<Expr> = conditions.filter_map(|condition| on_table(condition, table, columns)).collect();
        Ok(Some((ScanFilter::split(table, &conditions).0, sets)))
    }
}

/// A condition as an expression over the table; `None` if a scan does not test it.
fn on_table(condition: &PhysicalExprRef, table: &TableInfo, columns: &[usize]) -> Option<Expr> {
    if let Some(literal) = condition.downcast_ref::<Literal>() {
        return Some(Expr::Literal(literal.value().clone(), None));
    }
    if let Some(binary) = condition.downcast_ref::<BinaryExpr>() {
        let column = column_of(binary.left(), table, columns)?;
        let literal = Expr::Literal(literal_of(binary.right())?, None);
        return Some(Expr::BinaryExpr(Comparison::new(Box::new(column), *binary.op(), Box::new(literal))));
    }
    let list = condition.downcast_ref::<InListExpr>().filter(|list| !list.negated())?;
    let column = column_of(list.expr(), table, columns)?;
    // A key that several rows of the build side have occurs several times.
    let values: HashSet<ScalarValue> = list.list().iter().map(literal_of).collect::<Option<_>>()?;
    let values = values.into_iter().map(|value| Expr::Literal(value, None)).collect();
    Some(Expr::InList(InList::new(Box::new(column), values, false)))
}

fn literal_of(expression: &Arc<dyn PhysicalExpr>) -> Option<ScalarValue> {
    expression.downcast_ref::<Literal>().map(|literal| literal.value().clone())
}

fn column_of(expression: &Arc<dyn PhysicalExpr>, table: &TableInfo, columns: &[usize]) -> Option<Expr> {
    let name = &table.columns()[exact_column(expression, table, columns)?].name;
    Some(Expr::Column(datafusion::common::Column::new_unqualified(name)))
}

/// The table's column, if joins compare its values as scans do. Texts of a CHAR column have blanks that only one of the two ignores.
pub(super) fn exact_column(expression: &Arc<dyn PhysicalExpr>, table: &TableInfo, columns: &[usize]) -> Option<usize> {
    let column = *columns.get(expression.downcast_ref::<Column>()?.index())?;
    let is_exact = matches!(
        table.columns().get(column)?.data_type,
        ColumnType::SmallInt
            | ColumnType::Int
            | ColumnType::BigInt
            | ColumnType::Date
            | ColumnType::Timestamp
            | ColumnType::Timestamptz
            | ColumnType::Decimal { .. }
    );
    is_exact.then_some(column)
}
