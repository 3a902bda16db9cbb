//! Partial aggregates of rows that come in runs.
//!
//! ```text
//!   AggregateExec (final) ◀─ RepartitionExec ◀─ RunsExec ── first rows: are equal keys adjacent? ──┬─ no: a hash table
//!                                                                                                 └─ yes: a row a run
//! ```
//!
//! A table is often written in the order of a key: the items of an order are adjacent. Then a partial aggregate by that
//! key needs no hash table. Each run of equal keys in a batch becomes one row of states, and the final aggregate
//! combines a run that two batches share. For 60 M items of 15 M orders (TPC-H's query 18 at scale factor 10) the table
//! of a partial aggregate takes twice the time of the final one's. Where groups come in many runs, a table makes fewer
//! rows of them, so the first rows must have long runs of different keys. Later rows may differ from them, which costs
//! only time.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{partition, take};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::{Distribution, PhysicalExpr, PhysicalExprRef};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, InputOrderMode, PlanProperties,
};
use futures::{StreamExt, TryStreamExt, stream};

use super::JoinConfig;
use super::batches::Batches;
use super::memory::lock;
use crate::blocks::batch_bytes;

/// The rows by which a partition is judged, and the least number of rows for a judgement.
const SAMPLE_ROWS: usize = 1 << 15;
const SAMPLE_ROWS_MIN: usize = 1 << 12;
/// The most bytes of those rows, which no memory pool counts.
const SAMPLE_BYTES: u64 = 4 << 20;
/// The most bytes of a batch of states.
const STATE_BYTES_MAX: usize = 2 << 20;
/// The least average number of rows of a run.
const RUN_ROWS_MIN: usize = 2;
/// The least number of different keys in ten runs: the measure by which DataFusion judges whether a partial aggregate
/// is worth its table.
const KEYS_IN_TEN_RUNS_MIN: usize = 8;

/// Puts `RunsExec` around partial aggregates. It belongs behind all rules that look for an `AggregateExec`;
/// [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct RunsRule;

impl PhysicalOptimizerRule for RunsRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if options.extensions.get::<JoinConfig>().is_some_and(|config| !config.enabled || !config.runs) {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            Ok(match RunsExec::of(&node) {
                Some(runs) => Transformed::yes(Arc::new(runs)),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_runs"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A partial aggregate that makes a row of each run of equal keys, where its table would do no more than that.
#[derive(Debug)]
pub struct RunsExec {
    aggregate: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl RunsExec {
    /// `aggregate` as one that looks for runs, if it is a partial aggregate whose functions allow it.
    pub fn of(aggregate: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let node = aggregate.downcast_ref::<AggregateExec>()?;
        let by = node.group_expr();
        let is_simple = |function: &Arc<AggregateFunctionExpr>| {
            function.groups_accumulator_supported() && !function.is_distinct() && function.order_bys().is_empty()
        };
        let fits = *node.mode() == AggregateMode::Partial
            && *node.input_order_mode() == InputOrderMode::Linear
            && by.is_single()
            && !by.is_empty()
            && node.limit_options().is_none()
            && node.dynamic_expressions_produced().is_empty()
            && node.aggr_expr().iter().all(is_simple);
        fits.then(|| Self { aggregate: Arc::clone(aggregate), metrics: ExecutionPlanMetricsSet::new() })
    }

    fn again(aggregate: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        match Self::of(&aggregate) {
            Some(runs) => Arc::new(runs),
            None => aggregate,
        }
    }
}

/// One partition.
struct Running {
    aggregate: Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    /// Rows that went in and rows that came out, where runs were found.
    rows: Count,
    runs: Count,
}

impl Running {
    async fn begin(self) -> Result<SendableRecordBatchStream> {
        let node = self.aggregate.downcast_ref::<AggregateExec>().expect("made of an aggregate");
        let mut input = node.input().execute(self.partition, Arc::clone(&self.context))?;
        let (mut sample, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < SAMPLE_ROWS
            && bytes < SAMPLE_BYTES
            && let Some(batch) = input.next().await.transpose()?
        {
            rows += batch.num_rows();
            bytes += batch_bytes(&batch);
            sample.push(batch);
        }
        let schema = input.schema();
        let by: Vec<PhysicalExprRef> = node.group_expr().input_exprs();
        let comes_in_runs = comes_in_runs(&sample, &by)?;
        let all = stream::iter(sample.into_iter().map(Ok)).chain(input);
        let all: SendableRecordBatchStream = Box::pin(RecordBatchStreamAdapter::new(schema, all));
        if !comes_in_runs {
            let hashed = Arc::clone(&self.aggregate).replace_children(
                vec![Replay::plan(all)?],
                ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
            )?;
            return hashed.execute(0, self.context);
        }
        let runs = Runs { by, functions: Function::all(node)?, schema: self.aggregate.schema() };
        let output =
            Batches::new(Arc::clone(&runs.schema), self.context.session_config().batch_size(), STATE_BYTES_MAX);
        let schema = Arc::clone(&runs.schema);
        let state = (runs, output, all, (self.rows, self.runs), false);
        let batches = stream::try_unfold(state, |(mut runs, mut output, mut input, counts, mut is_done)| async move {
            loop {
                if let Some(batch) = output.next_full() {
                    return Ok(Some((batch, (runs, output, input, counts, is_done))));
                }
                if is_done {
                    return Ok::<_, DataFusionError>(None);
                }
                if let Some(batch) = input.next().await.transpose()? {
                    let states = runs.states(&batch)?;
                    counts.0.add(batch.num_rows());
                    counts.1.add(states.num_rows());
                    output.push(states)?;
                } else {
                    output.finish()?;
                    is_done = true;
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// An aggregate function over runs.
struct Function {
    accumulator: Box<dyn GroupsAccumulator>,
    arguments: Vec<PhysicalExprRef>,
    filter: Option<PhysicalExprRef>,
}

impl Function {
    fn all(aggregate: &AggregateExec) -> Result<Vec<Self>> {
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        let function = |(function, filter): (&Arc<AggregateFunctionExpr>, &Option<PhysicalExprRef>)| {
            Ok(Self {
                accumulator: function.create_groups_accumulator()?,
                arguments: function.expressions(),
                filter: filter.clone(),
            })
        };
        functions.map(function).collect()
    }
}

struct Runs {
    by: Vec<PhysicalExprRef>,
    functions: Vec<Function>,
    /// Keys, then the states of each function.
    schema: SchemaRef,
}

impl Runs {
    /// Makes a row for each run of a batch.
    fn states(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        if batch.num_rows() == 0 {
            return Ok(RecordBatch::new_empty(Arc::clone(&self.schema)));
        }
        let keys = values(&self.by, batch)?;
        let ranges = partition(&keys)?.ranges();
        let firsts = UInt32Array::from_iter_values(ranges.iter().map(|range| range.start as u32));
        let mut run_of_row = Vec::with_capacity(batch.num_rows());
        for (run, range) in ranges.iter().enumerate() {
            run_of_row.resize(range.end, run);
        }
        let mut columns: Vec<ArrayRef> = keys.iter().map(|key| take(key, &firsts, None)).collect::<Result<_, _>>()?;
        for function in &mut self.functions {
            let arguments = values(&function.arguments, batch)?;
            let filter = function.filter.as_ref().map(|filter| value(filter, batch)).transpose()?;
            let filter = filter.as_ref().map(AsArray::as_boolean);
            function.accumulator.update_batch(&arguments, &run_of_row, filter, ranges.len())?;
            columns.extend(function.accumulator.state(EmitTo::All)?);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

fn value(expression: &PhysicalExprRef, batch: &RecordBatch) -> Result<ArrayRef> {
    expression.evaluate(batch)?.into_array(batch.num_rows())
}

fn values(expressions: &[PhysicalExprRef], batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
    expressions.iter().map(|expression| value(expression, batch)).collect()
}

/// Whether equal keys are adjacent, and hardly any key comes again.
fn comes_in_runs(sample: &[RecordBatch], by: &[PhysicalExprRef]) -> Result<bool> {
    let rows: usize = sample.iter().map(RecordBatch::num_rows).sum();
    if rows < SAMPLE_ROWS_MIN {
        return Ok(false);
    }
    let (mut runs, mut firsts) = (0, Vec::new());
    for batch in sample.iter().filter(|batch| batch.num_rows() > 0) {
        let keys = values(by, batch)?;
        let starts = partition(&keys)?.ranges().into_iter().map(|range| range.start as u32);
        let starts = UInt32Array::from_iter_values(starts);
        runs += starts.len();
        if runs * RUN_ROWS_MIN > rows {
            return Ok(false);
        }
        firsts.push(keys.iter().map(|key| take(key, &starts, None)).collect::<Result<Vec<_>, _>>()?);
    }
    let Some(kinds) = firsts.first() else { return Ok(false) };
    let kinds = kinds.iter().map(|key| SortField::new(key.data_type().clone())).collect();
    let converter = RowConverter::new(kinds)?;
    let mut different = HashSet::new();
    for keys in &firsts {
        let rows = converter.convert_columns(keys)?;
        different.extend(rows.iter().map(|row| row.owned()));
    }
    Ok(different.len() * 10 >= runs * KEYS_IN_TEN_RUNS_MIN)
}

impl DisplayAs for RunsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if format != DisplayFormatType::TreeRender {
            f.write_str("RunsExec: ")?;
        }
        match self.aggregate.downcast_ref::<AggregateExec>() {
            Some(aggregate) => aggregate.fmt_as(format, f),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for RunsExec {
    fn name(&self) -> &'static str {
        "RunsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.aggregate.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::UnspecifiedDistribution])
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.aggregate.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.aggregate.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::again(Arc::clone(&self.aggregate).replace_children(children, options)?))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::again(Arc::clone(&self.aggregate).reset_state()?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let running = Running {
            aggregate: Arc::clone(&self.aggregate),
            partition,
            context,
            rows: MetricBuilder::new(&self.metrics).counter("rows_in_runs", partition),
            runs: MetricBuilder::new(&self.metrics).counter("runs", partition),
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let batches = stream::once(running.begin()).try_flatten();
        let batches = batches.inspect_ok(move |batch| baseline.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// A partition whose first rows have been read, as an operator's input.
struct Replay {
    schema: SchemaRef,
    batches: Mutex<Option<SendableRecordBatchStream>>,
}

impl Replay {
    fn plan(batches: SendableRecordBatchStream) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = batches.schema();
        let replay = Self { schema: Arc::clone(&schema), batches: Mutex::new(Some(batches)) };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(replay)], None, None, false, None)?))
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

impl PartitionStream for Replay {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        lock(&self.batches).take().expect("a plan of one execution, which asks its input once")
    }
}
