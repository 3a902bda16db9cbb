//! Limits the shares of a join to the number of threads, and reserves memory for all of them.
//!
//! A share of a join is a partition of its probe side, and takes memory for as long as the build side may spill. A UNION ALL has the partitions of all its
//! inputs. Shares beyond the number of threads are useless, so [`FewerExec`] reads several partitions as one. After that, the least memory of a plan's joins is
//! known, and the rule reports it to `PlanMemory`. If the plan contains a part several times, only the joins of one copy run.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, StatisticsArgs,
};
use futures::stream;

use super::common::CommonExec;
use super::exec::{JoinExec, Way};
use super::memory::PlanMemory;

/// Puts a [`FewerExec`] below joins with more probe partitions than threads, and reports to the joins' memory the needs of all joins that run. It belongs
/// behind all rules that distribute; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct FewerRule;

impl PhysicalOptimizerRule for FewerRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let threads = options.execution.target_partitions.max(1);
        let plan = plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<JoinExec>().filter(|join| join.way() == Some(Way::Shared)) else {
                return Ok(Transformed::no(node));
            };
            let (left, right) = (join.planned().left(), join.planned().right());
            if right.output_partitioning().partition_count() <= threads {
                return Ok(Transformed::no(node));
            }
            let fewer: Arc<dyn ExecutionPlan> = Arc::new(FewerExec::new(Arc::clone(right), threads));
            let children = vec![Arc::clone(left), fewer];
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(Arc::clone(&node).replace_children(children, options)?))
        });
        let plan = plan.data()?;
        let mut floors: Vec<(Arc<PlanMemory>, u64)> = Vec::new();
        let mut run: Vec<&CommonExec> = Vec::new();
        plan.apply(|node| {
            if let Some(common) = node.downcast_ref::<CommonExec>() {
                if run.iter().any(|run| run.is_copy_of(common)) {
                    return Ok(TreeNodeRecursion::Jump);
                }
                run.push(common);
            }
            if let Some((memory, bytes)) = node.downcast_ref::<JoinExec>().and_then(JoinExec::floor) {
                match floors.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
                    Some((_, all)) => *all += bytes,
                    None => floors.push((Arc::clone(memory), bytes)),
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        for (memory, bytes) in floors {
            memory.set_floors(bytes);
        }
        Ok(plan)
    }

    fn name(&self) -> &'static str {
        "farhold_fewer"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Partition `p` of `n` consists of the partitions `p`, `p + n`, `p + 2n`, … of the input, in the order in which their
/// batches arrive.
#[derive(Debug)]
pub struct FewerExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl FewerExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, partitions: usize) -> Self {
        let mut properties = PlanProperties::clone(input.properties());
        let mut equivalences = properties.eq_properties.clone();
        equivalences.clear_orderings();
        equivalences.clear_per_partition_constants();
        properties.set_eq_properties(equivalences);
        properties.partitioning = Partitioning::UnknownPartitioning(partitions);
        Self { input, properties: Arc::new(properties) }
    }

    fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }
}

impl DisplayAs for FewerExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let name = if format == DisplayFormatType::TreeRender { "" } else { "FewerExec: " };
        write!(f, "{name}partitions={}", self.partitions())
    }
}

impl ExecutionPlan for FewerExec {
    fn name(&self) -> &'static str {
        "FewerExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| Arc::clone(&self.input));
        Ok(Arc::new(Self::new(input, self.partitions())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let inputs = (partition..self.input.output_partitioning().partition_count()).step_by(self.partitions());
        let inputs = inputs.map(|input| self.input.execute(input, Arc::clone(&context)));
        let batches = stream::select_all(inputs.collect::<Result<Vec<_>>>()?);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![if partition.is_none() { ChildStats::At(None) } else { ChildStats::Skip }]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }
}
