//! The operator that runs a hash join.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{Distribution, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties, StatisticsArgs,
};

use super::JoinConfig;
use super::build::{Building, Plan, threads};
use super::describe::Description;
use super::explain::{Actual, Beside, Prediction};
use super::filter::{Filter, TestsKeys};
use super::held::{fills, without_constants};
use super::memory::{PlanMemory, floor_bytes, lock};
use super::names::{Pushdown, only};
use super::once::Once;
use super::stream::{Metrics, Probe, ProbeSeen};
use crate::model::Width;
use crate::{Algorithm, CancelToken, JoinOptions, MemoryPool, Run};

/// How a join's inputs are divided among instances of [`Join`](crate::Join).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One build side of all left partitions. Every right partition probes it on its own thread.
    Shared,
    /// As `Shared`, with one right partition: for budgets without room for more.
    Single,
    /// A join for each pair of hash partitions: for build sides that will be spilled, so that every thread reads back its own rows.
    Partitioned,
}

/// The implementation that runs a join.
#[derive(Debug, Clone)]
pub enum Runner {
    /// farhold-join.
    Ours {
        description: Arc<Description>,
        way: Way,
        prediction: Box<Prediction>,
        memory: Arc<PlanMemory>,
        algorithm: Option<&'static dyn Algorithm>,
        tests_keys: TestsKeys,
    },
    /// DataFusion's operator, and why.
    Theirs { reason: String },
}

/// A hash join of DataFusion, run by [`Join`](crate::Join).
pub struct JoinExec {
    /// The join that it replaces; planning uses that join.
    planned: Arc<HashJoinExec>,
    runner: Runner,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    running: Mutex<Arc<Mutex<Execution>>>,
    actual: Arc<Actual>,
}

/// An execution, shared by its output partitions.
#[derive(Default)]
struct Execution {
    building: Option<Building>,
    /// Whether the build side must be read after that of another join, whose filter it uses.
    waits_for_others: bool,
    cancel: CancelToken,
    seen: Arc<ProbeSeen>,
    /// Output partitions that have been requested.
    begun: HashSet<usize>,
    /// The number of them that have not ended.
    live: usize,
}

/// An output partition that has not ended.
pub struct Live {
    of: Arc<Mutex<Execution>>,
    partitions: usize,
}

impl Drop for Live {
    /// The last of all partitions ends the execution, so that a plan that is kept holds no memory.
    fn drop(&mut self) {
        let mut execution = lock(&self.of);
        execution.live -= 1;
        if execution.live == 0 && execution.begun.len() == self.partitions {
            let over = std::mem::take(&mut *execution);
            drop(execution);
            drop(over);
        }
    }
}

impl JoinExec {
    /// Runs `planned` by `runner`.
    pub(super) fn new(planned: HashJoinExec, runner: Runner) -> Result<Self> {
        let mode = match &runner {
            Runner::Ours { way: Way::Shared | Way::Single, .. } => PartitionMode::CollectLeft,
            Runner::Ours { way: Way::Partitioned, .. } => PartitionMode::Partitioned,
            Runner::Theirs { .. } => planned.mode,
        };
        let planned =
            if planned.mode == mode { planned } else { planned.builder().with_partition_mode(mode).build()? };
        Self::of(planned, runner)
    }

    fn of(planned: HashJoinExec, runner: Runner) -> Result<Self> {
        let mut properties = PlanProperties::clone(planned.properties());
        if fills(*planned.join_type()) {
            let held = without_constants(&properties.eq_properties)?;
            properties.set_eq_properties(held);
        }
        if let Runner::Ours { way, .. } = &runner {
            // Rows of spilled partitions are returned last.
            let mut equivalence = properties.eq_properties.clone();
            equivalence.clear_orderings();
            if *way != Way::Partitioned {
                // All left partitions go into one table. The last of the joins that share it hands out the spilled rows
                // of all.
                equivalence.clear_per_partition_constants();
                properties.partitioning =
                    Partitioning::UnknownPartitioning(properties.output_partitioning().partition_count());
            }
            properties.set_eq_properties(equivalence);
        }
        Ok(Self {
            planned: Arc::new(planned),
            runner,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            running: Mutex::default(),
            actual: Arc::default(),
        })
    }

    /// The join as DataFusion has planned it.
    pub fn planned(&self) -> &HashJoinExec {
        &self.planned
    }

    /// Whether farhold-join runs it.
    pub fn is_ours(&self) -> bool {
        matches!(self.runner, Runner::Ours { .. })
    }

    /// After it has run: why it continued elsewhere than its algorithm says, on the CPU in place of a GPU.
    pub fn fallback(&self) -> Option<String> {
        self.actual.fallback()
    }

    /// How it is divided, if farhold-join runs it.
    pub(super) fn way(&self) -> Option<Way> {
        match &self.runner {
            Runner::Ours { way, .. } => Some(*way),
            Runner::Theirs { .. } => None,
        }
    }

    /// The memory that it takes part in, and the least that it needs of it, if farhold-join runs it.
    pub(super) fn floor(&self) -> Option<(&Arc<PlanMemory>, u64)> {
        let Runner::Ours { way, memory, .. } = &self.runner else { return None };
        let shares = self.planned.right().output_partitioning().partition_count();
        let bytes = match way {
            Way::Shared => floor_bytes(shares),
            Way::Single => floor_bytes(1),
            Way::Partitioned => shares as u64 * floor_bytes(1),
        };
        Some((memory, bytes))
    }

    /// Begins an output partition. A repeated request for a partition begins a new execution: an operator that runs its
    /// input again may still hold the streams of the last time, which keep their execution.
    fn begin(&self, partition: usize, partitions: usize) -> Live {
        let mut running = lock(&self.running);
        if lock(&running).begun.contains(&partition) {
            *running = Arc::default();
        }
        let mut execution = lock(&running);
        execution.begun.insert(partition);
        execution.live += 1;
        Live { of: Arc::clone(&running), partitions }
    }

    /// The plan into which planning has turned the planned join, with its hash joins replaced by `JoinExec` again.
    fn again(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            return Ok(Arc::new(Self::of(join.builder().build()?, self.redescribed(join))?));
        }
        // A projection may remain above the join.
        let children: Result<Vec<_>> = plan.children().into_iter().map(|child| self.again(child)).collect();
        Arc::clone(plan).replace_children(children?, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    /// Describes the join again, since its columns may have moved.
    fn redescribed(&self, planned: &HashJoinExec) -> Runner {
        let Runner::Ours { way, prediction, memory, algorithm, tests_keys, .. } = &self.runner else {
            return self.runner.clone();
        };
        match super::describe::describe(planned) {
            Ok(description) => Runner::Ours {
                prediction: Box::new(prediction.with_width(Width::of(description.spec.probe_columns_of_pairs()))),
                description: Arc::new(description),
                way: *way,
                memory: Arc::clone(memory),
                algorithm: *algorithm,
                tests_keys: *tests_keys,
            },
            Err(reason) => Runner::Theirs { reason },
        }
    }
}

impl fmt::Debug for JoinExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinExec").field("planned", &self.planned).field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl DisplayAs for JoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let separator = if format == DisplayFormatType::TreeRender { "" } else { "JoinExec: " };
        match &self.runner {
            Runner::Theirs { reason } => write!(f, "{separator}run by DataFusion (not ours: {reason}), ")?,
            Runner::Ours { way, prediction, .. } => {
                write!(
                    f,
                    "{separator}partitioning={}, {prediction}{}, ",
                    format!("{way:?}").to_lowercase(),
                    Beside(&self.actual, prediction)
                )?;
            }
        }
        self.planned.fmt_as(format, f)
    }
}

impl ExecutionPlan for JoinExec {
    fn name(&self) -> &'static str {
        "JoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let (left, right) = (Distribution::UnspecifiedDistribution, Distribution::UnspecifiedDistribution);
        match &self.runner {
            Runner::Ours { way: Way::Shared, .. } => InputDistributionRequirements::new(vec![left, right]),
            Runner::Ours { way: Way::Single, .. } => {
                InputDistributionRequirements::new(vec![left, Distribution::SinglePartition])
            }
            _ => self.planned.input_distribution_requirements(),
        }
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        if self.is_ours() { vec![false, false] } else { self.planned.maintains_input_order() }
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.planned.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.planned.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.planned.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = Arc::clone(&self.planned).replace_children(children, options)?;
        self.again(&planned)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = Arc::clone(&self.planned).reset_state()?;
        self.again(&planned)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Runner::Ours { description, way, memory, prediction, algorithm, tests_keys } = &self.runner else {
            return self.planned.execute(partition, context);
        };
        let (left, right) = (self.planned.left(), self.planned.right());
        let partitions = right.output_partitioning().partition_count();
        let live = self.begin(partition, partitions);
        let (building, cancel, seen, is_first) = {
            let mut execution = lock(&live.of);
            let is_first = execution.building.is_none();
            let building = if let Some(building) = &execution.building {
                building.clone()
            } else {
                // Before the inputs are executed: they may begin at once, and hold memory that the floors need.
                let reserved = memory.reserve();
                let inputs = 0..left.output_partitioning().partition_count();
                let plan = Plan {
                    description: Arc::clone(description),
                    memory: Arc::clone(memory),
                    reserved,
                    waits: settings(&context).is_none_or(|settings| settings.waits),
                    options: {
                        let run = Run { cancel: execution.cancel.clone(), pages: memory.pages(), ..Run::default() };
                        options(&context, run, prediction, *algorithm, *way, partitions)?
                    },
                    cancel: execution.cancel.clone(),
                    inputs: inputs.map(|input| left.execute(input, Arc::clone(&context))).collect::<Result<_>>()?,
                    is_partitioned: *way == Way::Partitioned,
                    shares: partitions,
                    filter: Filter::of(&self.planned, *tests_keys, context.session_config().options())?,
                    rows: MetricBuilder::new(&self.metrics).counter("build_input_rows", partition),
                    time: MetricBuilder::new(&self.metrics).subset_time("build_time", partition),
                    actual: Arc::clone(&self.actual),
                };
                execution.waits_for_others = waits_for_others(left)?;
                execution.building.insert(Once::new(plan.run())).clone()
            };
            (building, execution.cancel.clone(), Arc::clone(&execution.seen), is_first)
        };
        let metric = || MetricBuilder::new(&self.metrics);
        let input = right.execute(partition, Arc::clone(&context))?;
        let probe = Probe {
            description: Arc::clone(description),
            partition,
            building,
            ahead: if is_first { builds_ahead(right)? } else { Vec::new() },
            input,
            schema: self.schema(),
            batch_rows: context.session_config().batch_size(),
            batch_bytes: output_bytes_max(memory.limit()),
            fetch: self.planned.fetch(),
            cancel,
            seen,
            metrics: Metrics {
                baseline: BaselineMetrics::new(&self.metrics, partition),
                probe_rows: metric().counter("input_rows", partition),
                spilled_bytes: metric().spilled_bytes(partition),
                spilled_partitions: metric().spill_count(partition),
            },
            actual: Arc::clone(&self.actual),
            _live: live,
        };
        Ok(probe.stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        if self.is_ours() { Some(self.metrics.clone_inner()) } else { self.planned.metrics() }
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.planned.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.statistics_from_inputs(inputs, args)
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        self.planned.try_swapping_with_projection(projection)?.map(|plan| self.again(&plan)).transpose()
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let pushdown = Pushdown { phase, config };
        let planned: Arc<dyn ExecutionPlan> = Arc::<HashJoinExec>::clone(&self.planned);
        let filters = only(parent_filters, |filter| pushdown.finds_columns(&planned, filter))?;
        let mut offers_own = true;
        for (_, key) in self.planned.on() {
            offers_own &= pushdown.finds_columns(self.planned.right(), key)?;
        }
        // In this phase the planned join would only make its own filter.
        let phase = if offers_own { phase } else { FilterPushdownPhase::Pre };
        self.planned.gather_filters_for_pushdown(phase, filters, config)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut propagation = self.planned.handle_child_pushdown_result(phase, result, config)?;
        propagation.updated_node = propagation.updated_node.map(|node| self.again(&node)).transpose()?;
        Ok(propagation)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.planned.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.planned.fetch()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let planned = self.planned.with_fetch(limit)?;
        self.again(&planned).ok()
    }
}

/// Whether scans of a build side use the filter of a join, which is known once that join has its build rows.
fn waits_for_others(build: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut waits = false;
    build.apply(|node| {
        node.apply_expressions(&mut |root| {
            waits |= root.exists(|expression| Ok(expression.is::<DynamicFilterPhysicalExpr>()))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if waits { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(waits)
}

/// The build sides below a probe side that can begin before the probe side is read. While a build side leaves processors idle, because few threads read it or
/// its table is being made, they can work on the next one. All of these build sides are in memory together in any case.
fn builds_ahead(probe: &Arc<dyn ExecutionPlan>) -> Result<Vec<Building>> {
    let mut builds = Vec::new();
    probe.apply(|node| {
        if let Some(join) = node.downcast_ref::<JoinExec>() {
            let running = Arc::clone(&lock(&join.running));
            let execution = lock(&running);
            builds.extend(execution.building.clone().filter(|_| !execution.waits_for_others));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(builds)
}

/// The options of every join of an execution; this function sets the threads of `run`.
fn options(
    context: &TaskContext,
    run: Run,
    prediction: &Prediction,
    algorithm: Option<&'static dyn Algorithm>,
    way: Way,
    partitions: usize,
) -> Result<Box<dyn Fn(Arc<MemoryPool>) -> JoinOptions + Send + Sync>> {
    let (threads, shares) = if way == Way::Partitioned { (1, 1) } else { (threads(context), partitions) };
    let run = Run { threads, ..run };
    let divided = if way == Way::Partitioned { partitions as u64 } else { 1 };
    let probe_rows_expected = prediction.probe_rows.map(|rows| rows / divided);
    let batch_rows_max = context.session_config().batch_size();
    let spill_directory = spill_directory(context)?;
    Ok(Box::new(move |pool| JoinOptions {
        run: run.clone(),
        spill_directory: spill_directory.clone(),
        algorithm,
        probe_rows_expected,
        batch_rows_max,
        batch_bytes_max: output_bytes_max(pool.limit()),
        shares,
        ..JoinOptions::new(pool)
    }))
}

/// Bytes of an output batch, for which nothing is reserved: batches of long rows have fewer rows.
fn output_bytes_max(limit: u64) -> usize {
    (limit / 64).clamp(1 << 20, 16 << 20) as usize
}

fn settings(context: &TaskContext) -> Option<&JoinConfig> {
    context.session_config().options().extensions.get::<JoinConfig>()
}

/// The directory of the settings, or DataFusion's for temporary files, which DataFusion creates for the first file. In
/// a session without any, the join that must spill fails with an error.
pub(super) fn spill_directory(context: &TaskContext) -> Result<PathBuf> {
    let asked = settings(context).map(|settings| &settings.spill_directory);
    if let Some(directory) = asked.filter(|directory| !directory.is_empty()) {
        return Ok(PathBuf::from(directory));
    }
    let disk = &context.runtime_env().disk_manager;
    if disk.tmp_files_enabled() && disk.temp_dir_paths().is_empty() {
        disk.create_tmp_file("joins")?;
    }
    Ok(disk.temp_dir_paths().into_iter().next().unwrap_or_else(|| PathBuf::from("/no directory for temporary files")))
}
