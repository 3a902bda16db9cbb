//! Decides whether two plans return the same rows, in the same partitions. Only operators that are listed here can be equal: an operator that has not been
//! examined may have its own state.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::SameScan;
use crate::datafusion::exec::JoinExec;
use crate::datafusion::held::HeldExec;

type Plan = Arc<dyn ExecutionPlan>;

/// Whether two plans are the same at every level.
pub fn are_equal(one: &Plan, other: &Plan, same_scan: SameScan) -> bool {
    let (below_one, below_other) = (one.children(), other.children());
    below_one.len() == below_other.len()
        && is_same_operator(one, other, same_scan)
        && one.schema() == other.schema()
        && one.output_partitioning().partition_count() == other.output_partitioning().partition_count()
        && below_one.into_iter().zip(below_other).all(|(one, other)| are_equal(one, other, same_scan))
}

/// Whether a plan returns the same rows at each execution: it has no random numbers, and no filter that an operator outside of it fills. The filters that its
/// operators have for operators below them have not been handed down yet.
pub fn is_repeatable(plan: &Plan) -> Result<bool> {
    let mut is_repeatable = true;
    plan.apply(|node| {
        let own = node.dynamic_expressions_produced();
        node.apply_expressions(&mut |root| {
            if own.iter().any(|own| Arc::ptr_eq(own, root)) {
                return Ok(TreeNodeRecursion::Continue);
            }
            root.apply(|expression| {
                is_repeatable &= !expression.is_volatile_node() && !expression.is::<DynamicFilterPhysicalExpr>();
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_repeatable)
}

/// Both plans as operators of one type.
fn both<'a, T: ExecutionPlan>(one: &'a Plan, other: &'a Plan) -> Option<(&'a T, &'a T)> {
    one.downcast_ref::<T>().zip(other.downcast_ref::<T>())
}

fn is_same_operator(one: &Plan, other: &Plan, same_scan: SameScan) -> bool {
    if let Some((one, other)) = both::<AggregateExec>(one, other) {
        return is_same_aggregate(one, other);
    }
    if let Some((one, other)) = both::<ProjectionExec>(one, other) {
        return one.expr() == other.expr();
    }
    if let Some((one, other)) = both::<FilterExec>(one, other) {
        return one.predicate() == other.predicate()
            && one.projection() == other.projection()
            && one.fetch() == other.fetch();
    }
    if let Some((one, other)) = both::<RepartitionExec>(one, other) {
        return one.partitioning() == other.partitioning() && one.preserve_order() == other.preserve_order();
    }
    if let Some((one, other)) = both::<CoalescePartitionsExec>(one, other) {
        return one.fetch() == other.fetch();
    }
    if let Some((one, other)) = both::<SortExec>(one, other) {
        return one.expr() == other.expr()
            && one.fetch() == other.fetch()
            && one.preserve_partitioning() == other.preserve_partitioning();
    }
    if let Some((one, other)) = both::<SortPreservingMergeExec>(one, other) {
        return one.expr() == other.expr() && one.fetch() == other.fetch();
    }
    if let Some((one, other)) = both::<GlobalLimitExec>(one, other) {
        return one.skip() == other.skip() && one.fetch() == other.fetch();
    }
    if let Some((one, other)) = both::<LocalLimitExec>(one, other) {
        return one.fetch() == other.fetch();
    }
    if let Some((one, other)) = both::<JoinExec>(one, other) {
        return one.way() == other.way() && is_same_join(one.planned(), other.planned());
    }
    if let Some((one, other)) = both::<NestedLoopJoinExec>(one, other) {
        return is_same_condition(one.filter(), other.filter())
            && one.join_type() == other.join_type()
            && one.projection() == other.projection();
    }
    if let Some((one, other)) = both::<WindowAggExec>(one, other) {
        return windows::are_same(one.window_expr(), other.window_expr());
    }
    if let Some((one, other)) = both::<BoundedWindowAggExec>(one, other) {
        return one.input_order_mode == other.input_order_mode
            && one.state_observer().is_none()
            && other.state_observer().is_none()
            && windows::are_same(one.window_expr(), other.window_expr());
    }
    if let Some((one, other)) = both::<DataSourceExec>(one, other) {
        return is_same_scan(one, other);
    }
    // These are equal if their inputs are equal.
    both::<UnionExec>(one, other).is_some()
        || both::<InterleaveExec>(one, other).is_some()
        || both::<CrossJoinExec>(one, other).is_some()
        || both::<HeldExec>(one, other).is_some()
        || one.children().is_empty() && same_scan(one, other)
}

fn is_same_aggregate(one: &AggregateExec, other: &AggregateExec) -> bool {
    one.mode() == other.mode()
        && one.group_expr() == other.group_expr()
        && one.aggr_expr().len() == other.aggr_expr().len()
        && one.aggr_expr().iter().zip(other.aggr_expr()).all(|(one, other)| is_same_function(one, other))
        && one.filter_expr() == other.filter_expr()
        && one.limit_options() == other.limit_options()
        && one.input_order_mode() == other.input_order_mode()
}

fn is_same_function(one: &AggregateFunctionExpr, other: &AggregateFunctionExpr) -> bool {
    one == other
        && one.is_distinct() == other.is_distinct()
        && one.ignore_nulls() == other.ignore_nulls()
        && one.is_reversed() == other.is_reversed()
        && one.order_bys() == other.order_bys()
}

fn is_same_join(one: &HashJoinExec, other: &HashJoinExec) -> bool {
    one.on() == other.on()
        && is_same_condition(one.filter(), other.filter())
        && one.join_type() == other.join_type()
        && one.partition_mode() == other.partition_mode()
        && one.projection == other.projection
        && one.null_equality() == other.null_equality()
        && one.null_aware == other.null_aware
        && one.fetch() == other.fetch()
}

fn is_same_condition(one: Option<&JoinFilter>, other: Option<&JoinFilter>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            one.expression() == other.expression()
                && one.column_indices() == other.column_indices()
                && one.schema() == other.schema()
        }
        _ => false,
    }
}

fn is_same_scan(one: &DataSourceExec, other: &DataSourceExec) -> bool {
    let (one, other) = (one.data_source(), other.data_source());
    if let Some((one, other)) = one.downcast_ref::<MemorySourceConfig>().zip(other.downcast_ref()) {
        return is_same_memory(one, other);
    }
    #[cfg(feature = "parquet")]
    if let Some((one, other)) = one.downcast_ref().zip(other.downcast_ref()) {
        return files::are_same(one, other);
    }
    false
}

/// Whether both hold identical arrays, not only equal ones. Batches without columns are compared by their number of rows.
fn is_same_memory(one: &MemorySourceConfig, other: &MemorySourceConfig) -> bool {
    type Place = (usize, Vec<*const ()>);
    let place = |column: &Arc<dyn Array>| Arc::as_ptr(column).cast::<()>();
    let batch = |batch: &RecordBatch| -> Place { (batch.num_rows(), batch.columns().iter().map(place).collect()) };
    let places = |source: &MemorySourceConfig| -> Vec<Vec<Place>> {
        source.partitions().iter().map(|batches| batches.iter().map(batch).collect()).collect()
    };
    one.projection() == other.projection()
        && one.sort_information() == other.sort_information()
        && one.fetch() == other.fetch()
        && places(one) == places(other)
}

mod windows {
    use std::sync::Arc;

    use datafusion::physical_expr::window::{
        PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
    };
    use datafusion::physical_plan::windows::WindowUDFExpr;

    use super::is_same_function;

    pub fn are_same(one: &[Arc<dyn WindowExpr>], other: &[Arc<dyn WindowExpr>]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one.as_ref(), other.as_ref()))
    }

    fn is_same(one: &dyn WindowExpr, other: &dyn WindowExpr) -> bool {
        one.name() == other.name()
            && one.partition_by() == other.partition_by()
            && one.order_by() == other.order_by()
            && one.get_window_frame() == other.get_window_frame()
            && one.expressions() == other.expressions()
            && is_same_call(one, other)
    }

    fn is_same_call(one: &dyn WindowExpr, other: &dyn WindowExpr) -> bool {
        let (any_one, any_other) = (one.as_any(), other.as_any());
        if let Some((one, other)) = any_one.downcast_ref::<StandardWindowExpr>().zip(any_other.downcast_ref()) {
            return is_same_standard(one, other);
        }
        let aggregate = |window: &dyn WindowExpr| {
            let any = window.as_any();
            let plain = any.downcast_ref().map(PlainAggregateWindowExpr::get_aggregate_expr);
            let sliding = || any.downcast_ref().map(SlidingAggregateWindowExpr::get_aggregate_expr);
            // DataFusion shows the condition of a FILTER nowhere else.
            let has_filter = !format!("{window:?}").ends_with("filter: None }");
            plain.or_else(sliding).filter(|_| !has_filter).cloned()
        };
        let is_plain = |window: &dyn std::any::Any| window.is::<PlainAggregateWindowExpr>();
        is_plain(any_one) == is_plain(any_other)
            && aggregate(one).zip(aggregate(other)).is_some_and(|(one, other)| is_same_function(&one, &other))
    }

    fn is_same_standard(one: &StandardWindowExpr, other: &StandardWindowExpr) -> bool {
        let function = |window: &StandardWindowExpr| {
            window.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>().cloned()
        };
        function(one).zip(function(other)).is_some_and(|(one, other)| {
            // `IGNORE NULLS` and the direction are shown nowhere else.
            one.fun() == other.fun() && one.args() == other.args() && format!("{one:?}") == format!("{other:?}")
        })
    }
}

#[cfg(feature = "parquet")]
mod files {
    use datafusion::datasource::listing::PartitionedFile;
    use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};

    /// The same parts of the same Parquet files, with the same conditions. The readers are not compared: every scan has
    /// a reader of its own, for the files of the one store.
    pub fn are_same(one: &FileScanConfig, other: &FileScanConfig) -> bool {
        let parquet = |config: &FileScanConfig| config.file_source().downcast_ref::<ParquetSource>().cloned();
        let (Some(parquet_one), Some(parquet_other)) = (parquet(one), parquet(other)) else { return false };
        let (source_one, source_other) = (one.file_source(), other.file_source());
        one.object_store_url == other.object_store_url
            && one.file_groups.len() == other.file_groups.len()
            && one.file_groups.iter().zip(&other.file_groups).all(|(one, other)| {
                one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| is_same_file(one, other))
            })
            && one.limit == other.limit
            && one.preserve_order == other.preserve_order
            && one.output_ordering == other.output_ordering
            && one.file_compression_type == other.file_compression_type
            && one.batch_size == other.batch_size
            && one.expr_adapter_factory.is_none() == other.expr_adapter_factory.is_none()
            && source_one.table_schema().table_schema() == source_other.table_schema().table_schema()
            && parquet_one.table_parquet_options() == parquet_other.table_parquet_options()
            && source_one.projection() == source_other.projection()
            && source_one.filter() == source_other.filter()
    }

    fn is_same_file(one: &PartitionedFile, other: &PartitionedFile) -> bool {
        one.object_meta == other.object_meta
            && one.partition_values == other.partition_values
            && one.range == other.range
            && one.extensions.is_empty()
            && other.extensions.is_empty()
    }
}
