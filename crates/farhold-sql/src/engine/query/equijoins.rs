//! Joins by IS NOT DISTINCT FROM.
//!
//! DataFusion (55) turns them into equal keys of a join for which NULL equals NULL. That setting applies to all keys of
//! the join, but its rules add keys of other joins and conditions of WHERE, for which NULL equals nothing. So the
//! optimiser sees these conditions as written, and they become keys after it has finished.

use datafusion::common::NullEquality;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// DataFusion's rule of the same name, applied to `=` only.
#[derive(Debug, Default)]
pub(super) struct Equalities(ExtractEquijoinPredicate);

impl OptimizerRule for Equalities {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if equals_nulls(&plan) {
            return self.0.rewrite(plan, config);
        }
        let before = plan.clone();
        let after = self.0.rewrite(plan, config)?;
        Ok(if equals_nulls(&after.data) { Transformed::no(before) } else { after })
    }
}

/// An optimised plan in which such conditions have become keys.
pub(super) fn with_null_keys(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<LogicalPlan> {
    let rule = ExtractEquijoinPredicate;
    plan.transform_up_with_subqueries(|plan| rule.rewrite(plan, config)).data()
}

fn equals_nulls(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNull)
}
