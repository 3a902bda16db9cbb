//! The runtime filter: it tests rows of a far scan by the conditions of joins above, each as long as it keeps few rows.
//!
//! ```text
//!   batch ── condition: how many of 32 K rows does it keep? ──┬─ few: tested on every batch
//!                                                              └─ most: tested again after 64 batches
//! ```
//! The build side of a join does not show how many rows its filter keeps. All items have an order; if the build side has all orders, testing each of 6 M items
//! is useless and takes a tenth of the time of joining them (TPC-H's query 9 at scale factor 1). A batch of which all rows are kept is handed on unchanged.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{and, filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::internal_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, stream};

use super::batches::Batches;
use super::members::IsMember;

/// The number of rows after which a condition is judged.
const JUDGED_ROWS: usize = 1 << 15;
/// Of four of these rows, the most that a condition may keep and still be worth testing: kept rows must be copied when
/// others of their batch are dropped.
const KEPT_OF_FOUR_MAX: usize = 3;
/// The most bytes of a batch of kept rows.
const BATCH_BYTES_MAX: usize = 2 << 20;
/// Batches that pass untested before a condition is judged again.
const RESTING_BATCHES: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct SieveExec {
    input: Arc<dyn ExecutionPlan>,
    filters: Vec<PhysicalExprRef>,
    metrics: ExecutionPlanMetricsSet,
}

impl SieveExec {
    /// `filters`: dynamic filters over the input's columns.
    pub fn new(filters: Vec<PhysicalExprRef>, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, filters, metrics: ExecutionPlanMetricsSet::new() }
    }
}

/// A filter in its present form.
struct Filter {
    whole: PhysicalExprRef,
    /// The expression of which `conditions` are the parts.
    known: Option<PhysicalExprRef>,
    conditions: Vec<Condition>,
}

impl Filter {
    fn new(filter: &PhysicalExprRef) -> Self {
        Self { whole: Arc::clone(filter), known: None, conditions: Vec::new() }
    }

    /// Adds the conditions that the join has published since.
    fn refresh(&mut self) -> Result<()> {
        let now = now(&self.whole)?;
        if self.known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &now)) {
            self.conditions = conditions_of(&now)?.into_iter().map(Condition::new).collect();
            // A condition that knows every value leaves nothing for bounds to drop, so it comes first.
            self.conditions.sort_by_key(|condition| !condition.test.is::<IsMember>());
            self.known = Some(now);
        }
        Ok(())
    }
}

/// The present form of a filter.
fn now(filter: &PhysicalExprRef) -> Result<PhysicalExprRef> {
    match filter.downcast_ref::<DynamicFilterPhysicalExpr>() {
        Some(dynamic) => dynamic.current(),
        None => Ok(Arc::clone(filter)),
    }
}

/// The conditions of a filter, without those on keys that the rows do not have.
fn conditions_of(filter: &PhysicalExprRef) -> Result<Vec<PhysicalExprRef>> {
    let mut conditions = Vec::new();
    for condition in split_conjunction(filter) {
        if !condition.exists(|part| Ok(part.is::<NotHere>()))? {
            conditions.push(Arc::clone(condition));
        }
    }
    Ok(conditions)
}

/// In a filter, a key that the rows do not have: conditions on it are not tested.
#[derive(Debug, Hash, PartialEq, Eq)]
pub struct NotHere;

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not here)")
    }
}

impl PhysicalExpr for NotHere {
    fn children(&self) -> Vec<&PhysicalExprRef> {
        vec![]
    }

    fn with_new_children(self: Arc<Self>, _: Vec<PhysicalExprRef>) -> Result<PhysicalExprRef> {
        Ok(self)
    }

    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Null)
    }

    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(true)
    }

    fn evaluate(&self, _: &RecordBatch) -> Result<ColumnarValue> {
        internal_err!("a key that is not here has been asked for")
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A part of a filter.
struct Condition {
    test: PhysicalExprRef,
    /// Rows since the last judgement that earlier conditions had left, and how many of them this one kept.
    seen: usize,
    kept: usize,
    /// Batches until it is tested again.
    resting: usize,
}

impl Condition {
    fn new(test: PhysicalExprRef) -> Self {
        Self { test, seen: 0, kept: 0, resting: 0 }
    }

    fn is_asked(&mut self) -> bool {
        let is_asked = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        is_asked
    }

    fn judge(&mut self, seen: usize, kept: usize) {
        self.seen += seen;
        self.kept += kept;
        if self.seen >= JUDGED_ROWS {
            if self.kept * 4 > self.seen * KEPT_OF_FOUR_MAX {
                self.resting = RESTING_BATCHES;
            }
            (self.seen, self.kept) = (0, 0);
        }
    }
}

/// The rows that all tested conditions keep; `None`: all rows.
fn kept(filters: &mut [Filter], batch: &RecordBatch, asked: &Count) -> Result<Option<BooleanArray>> {
    let mut keep: Option<BooleanArray> = None;
    let mut left = batch.num_rows();
    for filter in filters {
        filter.refresh()?;
        for condition in &mut filter.conditions {
            if left == 0 || !condition.is_asked() {
                continue;
            }
            asked.add(batch.num_rows());
            let answer = condition.test.evaluate(batch)?.into_array(batch.num_rows())?;
            let answer = answer.as_boolean();
            let answer = if answer.null_count() > 0 { prep_null_mask_filter(answer) } else { answer.clone() };
            let both = match keep {
                Some(keep) => and(&keep, &answer)?,
                None => answer,
            };
            let still = both.true_count();
            condition.judge(left, still);
            left = still;
            keep = Some(both);
        }
    }
    Ok(keep.filter(|_| left < batch.num_rows()))
}

/// One partition.
struct Running {
    input: SendableRecordBatchStream,
    filters: Vec<Filter>,
    output: Batches,
    is_done: bool,
    baseline: BaselineMetrics,
    rows: Count,
    asked: Count,
}

impl Running {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_full() {
                return Ok(Some(batch.record_output(&self.baseline)));
            }
            if self.is_done {
                return Ok(None);
            }
            let Some(batch) = self.input.next().await.transpose()? else {
                self.output.finish()?;
                self.is_done = true;
                continue;
            };
            let _timer = self.baseline.elapsed_compute().timer();
            self.rows.add(batch.num_rows());
            match kept(&mut self.filters, &batch, &self.asked)? {
                Some(keep) => self.output.push(filter_record_batch(&batch, &keep)?)?,
                None => self.output.push(batch)?,
            }
        }
    }
}

impl DisplayAs for SieveExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let separator = if format == DisplayFormatType::TreeRender { "" } else { "SieveExec: " };
        f.write_str(separator)?;
        for (number, filter) in self.filters.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { " AND " })?;
            let conditions = now(filter).and_then(|now| conditions_of(&now)).map_err(|_| fmt::Error)?;
            write!(f, "{}", conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" AND "))?;
        }
        Ok(())
    }
}

impl ExecutionPlan for SieveExec {
    fn name(&self) -> &'static str {
        "SieveExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut go_on = TreeNodeRecursion::Continue;
        for filter in &self.filters {
            go_on = go_on.visit_sibling(|| f(filter))?;
        }
        Ok(go_on)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| Arc::clone(&self.input));
        Ok(Arc::new(Self::new(self.filters.clone(), input)))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batch_rows = context.session_config().batch_size();
        let running = Running {
            input: self.input.execute(partition, context)?,
            filters: self.filters.iter().map(Filter::new).collect(),
            output: Batches::new(self.schema(), batch_rows, BATCH_BYTES_MAX),
            is_done: false,
            baseline: BaselineMetrics::new(&self.metrics, partition),
            rows: MetricBuilder::new(&self.metrics).counter("input_rows", partition),
            asked: MetricBuilder::new(&self.metrics).counter("asked_rows", partition),
        };
        let batches = stream::try_unfold(running, |mut running| async move {
            let batch = running.next().await?;
            Ok::<_, datafusion::error::DataFusionError>(batch.map(|batch| (batch, running)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, col, lit};

    /// Batches of 8192 numbers, beginning with `first`; the third of each thousand is null.
    fn batches(first: i64, count: i64) -> impl Iterator<Item = RecordBatch> {
        (0..count).map(move |batch| {
            let rows = (0..8192).map(|row| first + batch * 8192 + row);
            let numbers: Int64Array = rows.map(|number| (number % 1000 != 2).then_some(number)).collect();
            RecordBatch::try_from_iter_with_nullable([("n", Arc::new(numbers) as ArrayRef, true)]).unwrap()
        })
    }

    fn compared(operator: Operator, number: i64) -> PhysicalExprRef {
        let schema = batches(0, 1).next().unwrap().schema();
        Arc::new(BinaryExpr::new(col("n", &schema).unwrap(), operator, lit(number)))
    }

    fn both(one: PhysicalExprRef, other: PhysicalExprRef) -> PhysicalExprRef {
        Arc::new(BinaryExpr::new(one, Operator::And, other))
    }

    #[test]
    fn what_keeps_most_rests_and_what_keeps_few_is_asked() {
        let bounds = both(compared(Operator::GtEq, 0), compared(Operator::Lt, 500));
        let mut filters = [Filter::new(&bounds)];
        let asked = Count::new();
        for batch in batches(0, 40) {
            let keep = kept(&mut filters, &batch, &asked).unwrap();
            let first = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().value(0);
            assert_eq!(keep.unwrap().true_count(), if first == 0 { 499 } else { 0 }, "a null is not kept");
        }
        let resting: Vec<bool> = filters[0].conditions.iter().map(|condition| condition.resting > 0).collect();
        assert_eq!(resting, [true, false]);
        assert!((40 * 8192..46 * 8192).contains(&asked.value()), "{}", asked.value());
    }

    #[test]
    fn what_rests_is_asked_again() {
        let mut filters = [Filter::new(&compared(Operator::Lt, 8192 * 5))];
        let asked = Count::new();
        let dropped = batches(0, 80).filter(|batch| kept(&mut filters, batch, &asked).unwrap().is_some()).count();
        assert_eq!(
            dropped,
            4 + 80 - 4 - RESTING_BATCHES,
            "a null in each of the first four, then as soon as it is asked again"
        );
        assert_eq!(asked.value(), (80 - RESTING_BATCHES) * 8192);
    }

    #[test]
    fn conditions_are_those_that_were_published_last() {
        let schema = batches(0, 1).next().unwrap().schema();
        let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![col("n", &schema).unwrap()], lit(true)));
        let mut filters = [Filter::new(&(Arc::clone(&dynamic) as PhysicalExprRef))];
        let asked = Count::new();
        let batch = batches(0, 1).next().unwrap();
        assert!(kept(&mut filters, &batch, &asked).unwrap().is_none(), "nothing is known yet");
        dynamic.update(compared(Operator::Lt, 2)).unwrap();
        assert_eq!(kept(&mut filters, &batch, &asked).unwrap().unwrap().true_count(), 2);
    }
}
