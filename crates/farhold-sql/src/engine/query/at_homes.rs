//! Aggregates at the homes of columns ([`at_homes`]).

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::engine::scan::at_homes;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Puts the rule before the one that decides how the inputs of an operator are distributed: there are more of them behind it.
pub(super) fn before_distribution(mut rules: Vec<Rule>) -> Vec<Rule> {
    if let Some(distribution) = rules.iter().position(|rule| rule.name() == "EnsureRequirements") {
        rules.insert(distribution, Arc::new(AtHomes));
    }
    rules
}

#[derive(Debug)]
struct AtHomes;

impl PhysicalOptimizerRule for AtHomes {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        at_homes(plan)
    }

    fn name(&self) -> &'static str {
        "aggregates_at_homes"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
