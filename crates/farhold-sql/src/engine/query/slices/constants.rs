//! Constants that an operator could copy to every row, and their sizes.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, InListExpr, Literal};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::unnest::UnnestExec;

use super::super::BATCH_ROWS;
use super::BATCH_BYTES;

/// Shorter constants make no batch larger than [`BATCH_BYTES`].
pub(in crate::engine::query) const CONSTANT_BYTES_MIN: usize = BATCH_BYTES / BATCH_ROWS;

/// The projection that makes the arrays of an `unnest`, and the partitioning of an exchange between them, if it
/// distributes rows in turn. Then the exchange may come before the projection instead.
pub(super) fn arrays_of(unnest: &UnnestExec) -> Option<(&ProjectionExec, Option<Partitioning>)> {
    let input = unnest.input();
    let Some(repartition) = input.downcast_ref::<RepartitionExec>() else {
        return input.downcast_ref().map(|projection| (projection, None));
    };
    let partitioning = repartition.partitioning();
    let projection = repartition.input().downcast_ref::<ProjectionExec>()?;
    let is_dealt = matches!(partitioning, Partitioning::RoundRobinBatch(_)) && !repartition.preserve_order();
    is_dealt.then(|| (projection, Some(partitioning.clone())))
}

/// The size of the constants that an operator copies to each of its rows, for the operator that copies most. Rows above
/// an `unnest` do not contain the unnested arrays.
#[recursive::recursive]
pub(super) fn longest_constants(plan: &Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut bytes = 0;
    let mut inputs = plan.children();
    plan.apply_expressions(&mut |expression| {
        bytes += constant_bytes(expression);
        Ok(TreeNodeRecursion::Continue)
    })?;
    if let Some(unnest) = plan.downcast_ref::<UnnestExec>()
        && let Some((projection, _)) = arrays_of(unnest)
    {
        let lists = unnest.list_column_indices();
        let stays = |n: usize| lists.iter().all(|list| list.index_in_input_schema != n);
        let items = projection.expr().iter().enumerate().filter(|(n, _)| stays(*n));
        bytes += items.map(|(_, item)| constant_bytes(&item.expr)).sum::<usize>();
        inputs = vec![projection.input()];
    }
    for input in inputs {
        bytes = bytes.max(longest_constants(input)?);
    }
    Ok(bytes)
}

/// The size of the constants that an expression puts into each row.
pub(super) fn constant_bytes(expression: &Arc<dyn PhysicalExpr>) -> usize {
    match constants(expression) {
        Constants::All => evaluated_bytes(expression),
        Constants::Some(bytes) => bytes,
    }
}

/// The constant parts of an expression.
enum Constants {
    All,
    /// Parts with this total size in bytes.
    Some(usize),
}

#[recursive::recursive]
pub(super) fn constants(expression: &Arc<dyn PhysicalExpr>) -> Constants {
    let children = expression.children();
    if children.is_empty() {
        let is_constant = expression.downcast_ref::<Literal>().is_some();
        return if is_constant { Constants::All } else { Constants::Some(0) };
    }
    let parts: Vec<Constants> = children.iter().map(|child| constants(child)).collect();
    if !expression.is_volatile_node() && parts.iter().all(|part| matches!(part, Constants::All)) {
        return Constants::All;
    }
    // A constant used only in a comparison is not copied to the rows.
    let compares = expression.downcast_ref::<InListExpr>().is_some()
        || expression.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
            let operator = binary.op();
            operator.supports_propagation() || matches!(operator, Operator::NotEq | Operator::IsDistinctFrom)
        });
    let bytes = |(child, part)| match part {
        Constants::Some(bytes) => bytes,
        Constants::All if compares => 0,
        Constants::All => evaluated_bytes(child),
    };
    Constants::Some(children.into_iter().zip(parts).map(bytes).sum())
}

/// The size of a constant's value. The planner keeps functions whose values are too long for a plan:
/// [`folded`](super::folded). A constant that cannot be evaluated, for lack of memory or otherwise, counts as 0.
fn evaluated_bytes(constant: &Arc<dyn PhysicalExpr>) -> usize {
    let of_scalar = |value: &ScalarValue| value.size().saturating_sub(size_of::<ScalarValue>());
    let bytes = if let Some(literal) = constant.downcast_ref::<Literal>() {
        of_scalar(literal.value())
    } else {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
        match row.map(|row| constant.evaluate(&row)) {
            Ok(Ok(ColumnarValue::Scalar(value))) => of_scalar(&value),
            Ok(Ok(ColumnarValue::Array(values))) => values.get_array_memory_size(),
            _ => 0,
        }
    };
    if bytes < CONSTANT_BYTES_MIN { 0 } else { bytes }
}
