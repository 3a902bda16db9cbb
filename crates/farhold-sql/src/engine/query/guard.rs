//! Lets a running plan be cancelled.
//!
//! A join may work for minutes in one poll: a nested loop whose condition never holds produces no batch. A thread that
//! does not return can neither be cancelled nor serve another query. So a join's condition checks the flag at each
//! evaluation, and a join's output yields to the runtime regularly.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec,
};

use farhold_join::datafusion::JoinExec;

use crate::engine::cancel::CancelHandle;

/// The plan with its joins guarded by `cancel`.
pub(super) fn guard(plan: Arc<dyn ExecutionPlan>, cancel: &CancelHandle) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let node = match node.downcast_ref::<NestedLoopJoinExec>() {
            Some(join) => match join.filter() {
                Some(filter) => guard_nested_loop(join, filter, cancel)?,
                None => node,
            },
            None if is_join(node.as_ref()) => node,
            None => return Ok(Transformed::no(node)),
        };
        Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>))
    })
    .data()
}

fn is_join(node: &dyn ExecutionPlan) -> bool {
    node.downcast_ref::<CrossJoinExec>().is_some()
        || node.downcast_ref::<HashJoinExec>().is_some()
        || node.downcast_ref::<JoinExec>().is_some()
        || node.downcast_ref::<SortMergeJoinExec>().is_some()
        || node.downcast_ref::<PiecewiseMergeJoinExec>().is_some()
}

fn guard_nested_loop(
    join: &NestedLoopJoinExec,
    filter: &JoinFilter,
    cancel: &CancelHandle,
) -> Result<Arc<dyn ExecutionPlan>> {
    let condition = Guarded { inner: Arc::clone(filter.expression()), cancel: cancel.clone() };
    let filter = JoinFilter::new(Arc::new(condition), filter.column_indices().to_vec(), Arc::clone(filter.schema()));
    let projection = join.projection().as_ref().map(|p| p.to_vec());
    let guarded = NestedLoopJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        Some(filter),
        join.join_type(),
        projection,
    )?;
    Ok(Arc::new(guarded))
}

/// An expression that fails once its statement is cancelled.
#[derive(Debug)]
struct Guarded {
    inner: Arc<dyn PhysicalExpr>,
    cancel: CancelHandle,
}

impl PartialEq for Guarded {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Guarded {}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for Guarded {
    fn data_type(&self, input_schema: &Schema) -> Result<DataType> {
        self.inner.data_type(input_schema)
    }

    fn nullable(&self, input_schema: &Schema) -> Result<bool> {
        self.inner.nullable(input_schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.cancel.check().map_err(|e| DataFusionError::External(Box::new(e)))?;
        self.inner.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.inner));
        Ok(Arc::new(Self { inner, cancel: self.cancel.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
