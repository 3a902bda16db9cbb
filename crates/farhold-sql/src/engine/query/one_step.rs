//! Aggregates in one step if queries have one thread.
//!
//! DataFusion (55) groups each input of a UNION by itself, and then all of them together. With one thread that saves nothing, and a first step that reaches the
//! memory limit returns all of its groups as one batch, which no reservation counts. This rule therefore gathers the inputs first; DataFusion's rule then
//! combines the two steps.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Puts the rule before DataFusion's that combines two neighbouring steps.
pub(super) fn before_combining(mut rules: Vec<Rule>) -> Vec<Rule> {
    if let Some(combining) = rules.iter().position(|rule| rule.name() == "CombinePartialFinalAggregate") {
        rules.insert(combining, Arc::new(GatheredInputs));
    }
    rules
}

#[derive(Debug)]
struct GatheredInputs;

impl PhysicalOptimizerRule for GatheredInputs {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if config.execution.target_partitions > 1 {
            return Ok(plan);
        }
        plan.transform_up(gathered_first).data()
    }

    fn name(&self) -> &'static str {
        "gathered_inputs"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Gathers the input of a first step instead of its groups. A step without groups returns a single row, and stays.
fn gathered_first(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(gather) = plan.downcast_ref::<CoalescePartitionsExec>() else { return Ok(Transformed::no(plan)) };
    let Some(step) = gather.input().downcast_ref::<AggregateExec>() else { return Ok(Transformed::no(plan)) };
    // Gathered rows have no order.
    let needs_order = step.required_input_ordering().iter().any(Option::is_some);
    let is_first = *step.mode() == AggregateMode::Partial && !step.group_expr().is_empty();
    if !is_first || needs_order || gather.fetch().is_some() {
        return Ok(Transformed::no(plan));
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let input: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(Arc::clone(step.input())));
    Arc::clone(gather.input()).replace_children(vec![input], options).map(Transformed::yes)
}
