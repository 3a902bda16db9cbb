//! Joins that differ only in their output columns.
//!
//! The main query and a scalar subquery of TPC-H's query 11 join the same tables by the same keys, but the subquery needs fewer columns. Both joins are equal
//! once the narrower join is a projection of the wider one.

use std::cmp::Reverse;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::JoinSide;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::JoinType;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};

use super::SameScan;
use super::equal::are_equal;
use crate::datafusion::exec::JoinExec;

type Plan = Arc<dyn ExecutionPlan>;

/// The most joins that are compared with each other; plans with more joins are not changed.
const JOINS_MAX: usize = 32;

/// The plan in which a projection of the widest covering join replaces a narrower join: the `number`th narrower join, counted from the root.
pub fn with_wider_join(plan: &Plan, number: usize, same_scan: SameScan) -> Result<Option<Plan>> {
    let mut joins = Vec::new();
    add_joins(plan, &mut joins);
    if joins.len() < 2 || joins.len() > JOINS_MAX {
        return Ok(None);
    }
    joins.sort_by_key(|join| Reverse(join.schema().fields().len()));
    let mut wider = Wider { joins, same_scan, number };
    let plan = wider.in_place(Arc::clone(plan))?;
    Ok(plan.transformed.then_some(plan.data))
}

/// Parts below a recursive query are not shared.
fn add_joins(plan: &Plan, joins: &mut Vec<Plan>) {
    if plan.is::<RecursiveQueryExec>() {
        return;
    }
    if plan.is::<JoinExec>() {
        joins.push(Arc::clone(plan));
    }
    plan.children().into_iter().for_each(|child| add_joins(child, joins));
}

struct Wider {
    joins: Vec<Plan>,
    same_scan: SameScan,
    /// Narrower joins that stay before the one that is replaced.
    number: usize,
}

impl Wider {
    fn in_place(&mut self, plan: Plan) -> Result<Transformed<Plan>> {
        if plan.is::<RecursiveQueryExec>() {
            return Ok(Transformed::no(plan));
        }
        if plan.is::<JoinExec>()
            && let Some(projected) = self.joins.iter().find_map(|wide| self.projected(wide, &plan).transpose())
        {
            if self.number == 0 {
                return projected.map(|plan| Transformed::new(plan, true, TreeNodeRecursion::Stop));
            }
            self.number -= 1;
        }
        let mut is_over = false;
        plan.map_children(|child| {
            if is_over {
                return Ok(Transformed::no(child));
            }
            let child = self.in_place(child)?;
            is_over = child.transformed;
            Ok(child)
        })
    }

    /// The columns of a narrower join, taken from a wider one.
    fn projected(&self, wide: &Plan, narrow: &Plan) -> Result<Option<Plan>> {
        let (wide_schema, narrow_schema) = (wide.schema(), narrow.schema());
        if wide_schema.fields().len() <= narrow_schema.fields().len()
            || wide.output_partitioning().partition_count() != narrow.output_partitioning().partition_count()
        {
            return Ok(None);
        }
        let Some(places) = covers(wide, narrow, self.same_scan) else { return Ok(None) };
        let column = |(place, field): (&usize, &FieldRef)| {
            let column = Column::new(wide_schema.field(*place).name(), *place);
            ProjectionExpr { expr: Arc::new(column), alias: field.name().clone() }
        };
        let columns: Vec<ProjectionExpr> = places.iter().zip(narrow_schema.fields()).map(column).collect();
        let projected = ProjectionExec::try_new(columns, again(wide)?)?;
        Ok((projected.schema() == narrow_schema).then(|| Arc::new(projected) as Plan))
    }
}

/// A second instance of the same operators: an operator that occurs twice in a plan would share its state.
fn again(plan: &Plan) -> Result<Plan> {
    let children = plan.children();
    if children.is_empty() {
        return Ok(Arc::clone(plan));
    }
    let children = children.into_iter().map(again).collect::<Result<_>>()?;
    Arc::clone(plan).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// The positions in `wide` of the columns of `narrow`, if both return the same rows otherwise.
fn covers(wide: &Plan, narrow: &Plan, same_scan: SameScan) -> Option<Vec<usize>> {
    if are_equal(wide, narrow, same_scan) {
        return Some((0..narrow.schema().fields().len()).collect());
    }
    if let Some((wide, narrow)) = wide.downcast_ref::<ProjectionExec>().zip(narrow.downcast_ref::<ProjectionExec>()) {
        let below = covers(wide.input(), narrow.input(), same_scan)?;
        let place = |narrow: &ProjectionExpr| {
            let expr = moved(&narrow.expr, &below)?;
            wide.expr().iter().position(|wide| wide.expr.eq(&expr))
        };
        return narrow.expr().iter().map(place).collect();
    }
    if let Some((wide, narrow)) = wide.downcast_ref::<RepartitionExec>().zip(narrow.downcast_ref::<RepartitionExec>()) {
        let below = covers(wide.input(), narrow.input(), same_scan)?;
        let is_same = match (wide.partitioning(), narrow.partitioning()) {
            (Partitioning::Hash(wide, count), Partitioning::Hash(narrow, other)) => {
                let keys: Option<Vec<_>> = narrow.iter().map(|key| moved(key, &below)).collect();
                count == other && keys.as_ref() == Some(wide)
            }
            (Partitioning::RoundRobinBatch(count), Partitioning::RoundRobinBatch(other)) => count == other,
            _ => false,
        };
        return (is_same && wide.preserve_order() == narrow.preserve_order()).then_some(below);
    }
    let (wide, narrow) = wide.downcast_ref::<JoinExec>().zip(narrow.downcast_ref::<JoinExec>())?;
    if wide.way() != narrow.way() {
        return None;
    }
    let (wide, narrow) = (wide.planned(), narrow.planned());
    let left = covers(wide.left(), narrow.left(), same_scan)?;
    let right = covers(wide.right(), narrow.right(), same_scan)?;
    is_same_join(wide, narrow, &left, &right).then(|| places(wide, narrow, &left, &right)).flatten()
}

/// Whether two joins of such sides have the same rows. This holds only for inner joins, because other joins also return rows without a partner.
fn is_same_join(wide: &HashJoinExec, narrow: &HashJoinExec, left: &[usize], right: &[usize]) -> bool {
    let is_same_key = |(wide, narrow): (&(PhysicalExprRef, PhysicalExprRef), &(PhysicalExprRef, PhysicalExprRef))| {
        moved(&narrow.0, left).is_some_and(|key| key.eq(&wide.0))
            && moved(&narrow.1, right).is_some_and(|key| key.eq(&wide.1))
    };
    let is_same_filter = match (wide.filter(), narrow.filter()) {
        (None, None) => true,
        (Some(wide), Some(narrow)) => {
            let columns = wide.column_indices().iter().zip(narrow.column_indices());
            wide.expression() == narrow.expression()
                && wide.schema() == narrow.schema()
                && wide.column_indices().len() == narrow.column_indices().len()
                && columns.into_iter().all(|(wide, narrow)| {
                    let place = match narrow.side {
                        JoinSide::Left => left.get(narrow.index),
                        JoinSide::Right => right.get(narrow.index),
                        JoinSide::None => None,
                    };
                    wide.side == narrow.side && place == Some(&wide.index)
                })
        }
        _ => false,
    };
    *wide.join_type() == JoinType::Inner
        && *narrow.join_type() == JoinType::Inner
        && wide.on().len() == narrow.on().len()
        && wide.on().iter().zip(narrow.on()).all(is_same_key)
        && is_same_filter
        && wide.partition_mode() == narrow.partition_mode()
        && wide.null_equality() == narrow.null_equality()
        && wide.null_aware == narrow.null_aware
        && wide.fetch().is_none()
        && narrow.fetch().is_none()
}

/// The positions in the wide join of the columns of the narrow one.
fn places(wide: &HashJoinExec, narrow: &HashJoinExec, left: &[usize], right: &[usize]) -> Option<Vec<usize>> {
    let lefts = |join: &HashJoinExec| join.left().schema().fields().len();
    let all = |join: &HashJoinExec| -> Vec<usize> {
        let columns = lefts(join) + join.right().schema().fields().len();
        join.projection.as_ref().map_or_else(|| (0..columns).collect(), |kept| kept.to_vec())
    };
    let handed_out = all(wide);
    let place = |column: usize| {
        let of_wide = match column.checked_sub(lefts(narrow)) {
            None => *left.get(column)?,
            Some(column) => lefts(wide) + right.get(column)?,
        };
        handed_out.iter().position(|column| *column == of_wide)
    };
    all(narrow).into_iter().map(place).collect()
}

/// An expression whose columns have other positions.
fn moved(expr: &PhysicalExprRef, places: &[usize]) -> Option<PhysicalExprRef> {
    let mut has_all = true;
    let moved = Arc::clone(expr)
        .transform(|inner: Arc<dyn PhysicalExpr>| {
            let Some(column) = inner.downcast_ref::<Column>() else { return Ok(Transformed::no(inner)) };
            let Some(place) = places.get(column.index()) else {
                has_all = false;
                return Ok(Transformed::no(inner));
            };
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), *place)) as PhysicalExprRef))
        })
        .data();
    moved.ok().filter(|_| has_all)
}
