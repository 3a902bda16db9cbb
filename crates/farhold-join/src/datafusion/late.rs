//! Scans of Parquet files that decode most columns only for the rows that a filter keeps.
//!
//! ```text
//!   LateScanExec ── the first batch is requested: what do the filters keep? ──┬─ much: every column of every row
//!      └─ DataSourceExec                                                     └─ little: first the filter's columns, then
//!                                                                               the others for the rows that it has kept
//! ```
//!
//! DataFusion does either for all scans of a session (`pushdown_filters`). Reading late pays where hardly any row is
//! left. Where one row in a hundred is left, most pages are decompressed all the same. Processor time of TPC-H at scale
//! factor 10, late and at once, in seconds: 5.5 and 6.8 (query 19, 1 row in 4000), 5.7 and 6.2 (17, in 1000), 9.1 and
//! 7.8 (8, in 150), 6.2 and 4.0 (14, in 80).
//!
//! So each scan chooses for itself: by what statistics say of its own conditions, and by the share of their interval
//! that the keys of a join above fill. That share is known when the scan begins, because a join reads its probe side
//! when it has built. The rows that come out are tested again above, as they would be without this operator.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::utils::{collect_columns, conjunction, conjunction_opt, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, StatisticsArgs};
use futures::{TryStreamExt, stream};

use super::members::IsMember;

/// The greatest share of rows that a filter may keep for the other columns to be read late.
pub const SHARE_MAX: f64 = 0.005;

/// A scan that reads late where its filters keep little.
#[derive(Debug)]
pub struct LateScanExec {
    scan: Arc<dyn ExecutionPlan>,
    /// The share of rows that statistics expect the scan's own conditions to keep.
    share: f64,
    /// Chosen when the first partition begins, for all partitions: they take files from one list.
    chosen: Arc<OnceLock<Chosen>>,
}

/// How a scan reads.
#[derive(Debug)]
struct Chosen {
    scan: Arc<dyn ExecutionPlan>,
    /// The share that the first filter is expected to keep; `None`: every column of every row is read.
    late: Option<f64>,
}

impl LateScanExec {
    /// `scan` as one that chooses, if it reads Parquet files and has conditions. `share`: the share of rows that
    /// statistics expect the conditions other than joins' filters to keep.
    pub fn over(scan: &Arc<dyn ExecutionPlan>, share: f64) -> Option<Self> {
        let (config, source) = parts(scan)?;
        let is_free = config.limit.is_none() && !source.table_parquet_options().global.pushdown_filters;
        let conditions = config.file_source().filter()?;
        let may_be_late = share <= SHARE_MAX || split_conjunction(&conditions).into_iter().any(is_dynamic);
        (is_free && may_be_late).then(|| Self { scan: Arc::clone(scan), share, chosen: Arc::default() })
    }
}

fn parts(scan: &Arc<dyn ExecutionPlan>) -> Option<(&FileScanConfig, &ParquetSource)> {
    scan.downcast_ref::<DataSourceExec>()?.downcast_to_file_source::<ParquetSource>()
}

fn is_dynamic(condition: &PhysicalExprRef) -> bool {
    condition.is::<DynamicFilterPhysicalExpr>()
}

fn choose(scan: &Arc<dyn ExecutionPlan>, share: f64) -> Result<Chosen> {
    let late = late(scan, share)?;
    Ok(match late {
        Some((scan, share)) => Chosen { scan, late: Some(share) },
        None => Chosen { scan: Arc::clone(scan), late: None },
    })
}

/// The scan as one that reads late, and the share of rows that its first filter is expected to keep.
fn late(scan: &Arc<dyn ExecutionPlan>, share: f64) -> Result<Option<(Arc<dyn ExecutionPlan>, f64)>> {
    let (Some(exec), Some((config, source))) = (scan.downcast_ref::<DataSourceExec>(), parts(scan)) else {
        return Ok(None);
    };
    let Some(conditions) = config.file_source().filter() else { return Ok(None) };
    let conditions = split_conjunction(&conditions);
    let (dynamic, own): (Vec<_>, Vec<_>) = conditions.into_iter().cloned().partition(is_dynamic);
    let own = conjunction_opt(own);
    let mut best = own.clone().filter(|_| share <= SHARE_MAX).map(|own| (share, own));
    for filter in &dynamic {
        if let Some(share) = share_of(filter)?.filter(|share| *share <= best.as_ref().map_or(SHARE_MAX, |best| best.0))
        {
            best = Some((share, Arc::clone(filter)));
        }
    }
    let Some((share, first)) = best else { return Ok(None) };
    if scan.schema().fields().len() < 2 * collect_columns(&first).len() {
        return Ok(None);
    }
    let others = own.into_iter().chain(dynamic).filter(|other| !Arc::ptr_eq(other, &first));
    let others = conjunction(others);
    // Statistics of row groups and pages need the conditions too, and treat such a disjunction like its condition. The
    // reader would test each operand of the conjunction on its own, which costs more than testing all at once.
    let predicate = conjunction([at_once(first), at_once(others)]);
    let source = source.with_predicate(predicate).with_pushdown_filters(true);
    let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
    Ok(Some((Arc::new(exec.clone().with_data_source(Arc::new(config))), share)))
}

/// The condition in a form that no reader splits.
fn at_once(condition: PhysicalExprRef) -> PhysicalExprRef {
    Arc::new(BinaryExpr::new(condition, Operator::Or, lit(false)))
}

/// The share of rows that a join's filter is expected to keep, if it knows its keys.
fn share_of(filter: &PhysicalExprRef) -> Result<Option<f64>> {
    let Some(filter) = filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return Ok(None) };
    let mut share: Option<f64> = None;
    filter.current()?.apply(|expression| {
        if let Some(kept) = expression.downcast_ref::<IsMember>().and_then(IsMember::kept) {
            share = Some(share.map_or(kept, |share| share.min(kept)));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(share)
}

impl DisplayAs for LateScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let separator = if format == DisplayFormatType::TreeRender { "" } else { "LateScanExec: " };
        f.write_str(separator)?;
        match self.chosen.get() {
            None => f.write_str("columns=as the filters turn out"),
            Some(Chosen { late: None, .. }) => f.write_str("columns=all at once"),
            Some(Chosen { late: Some(share), .. }) => {
                write!(f, "columns=late (the first filter is expected to keep {:.2} %)", share * 100.0)
            }
        }
    }
}

impl ExecutionPlan for LateScanExec {
    fn name(&self) -> &'static str {
        "LateScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.scan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.scan]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.scan.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = children.pop().unwrap_or_else(|| Arc::clone(&self.scan));
        Ok(Arc::new(Self { scan, share: self.share, chosen: Arc::default() }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = Arc::clone(&self.scan).reset_state()?;
        Ok(Arc::new(Self { scan, share: self.share, chosen: Arc::default() }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (scan, share, chosen) = (Arc::clone(&self.scan), self.share, Arc::clone(&self.chosen));
        let begin = async move {
            let chosen = if let Some(chosen) = chosen.get() {
                chosen
            } else {
                let choice = choose(&scan, share)?;
                chosen.get_or_init(|| choice)
            };
            chosen.scan.execute(partition, context)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream::once(begin).try_flatten())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        None
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }
}
