//! Plans that stop while they are made.
//!
//! DataFusion's planner looks at no flag, and an expression of a thousand operators takes it minutes. So it is asked to look: before each of its rules
//! there is one that fails if the statement was stopped, and ours ask at each operator.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use tokio::runtime::Runtime;

use super::until_cancelled;
use crate::SqlError;
use crate::engine::cancel::CancelHandle;

tokio::task_local! {
    /// Of the plan that this task makes.
    static FLAG: CancelHandle;
}

/// Runs a planner on the query threads, which stops soon after its statement, or after nobody waits for it.
pub(super) async fn stoppable<T: Send + 'static>(
    runtime: &Runtime,
    cancel: &CancelHandle,
    planner: impl Future<Output = std::result::Result<T, SqlError>> + Send + 'static,
) -> std::result::Result<T, SqlError> {
    /// The statement's flag is armed for the next one soon, so the planner has its own.
    struct Stop<'a>(CancelHandle, &'a CancelHandle);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop_as(self.1);
        }
    }

    let stop = Stop(CancelHandle::running(), cancel);
    let task = runtime.spawn(FLAG.scope(stop.0.clone(), planner));
    until_cancelled(cancel, task).await
}

/// Runs a planner that looks at `flag`.
pub(super) async fn looking_at<T>(flag: CancelHandle, planner: impl Future<Output = T>) -> T {
    FLAG.scope(flag, planner).await
}

/// The error of a plan that shall not be made further.
pub(super) fn check() -> Result<()> {
    let look = FLAG.try_with(CancelHandle::check);
    look.unwrap_or(Ok(())).map_err(|error| DataFusionError::External(Box::new(error)))
}

/// The rules with one that looks before each.
pub(super) fn between_optimizers(
    rules: &[Arc<dyn OptimizerRule + Send + Sync>],
) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    rules.iter().flat_map(|rule| [Arc::new(Look) as _, Arc::clone(rule)]).collect()
}

/// The rules with one that looks before each.
pub(super) fn between_analyzers(
    rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>>,
) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    rules.into_iter().flat_map(|rule| [Arc::new(Look) as _, rule]).collect()
}

/// The rules with one that looks before each.
pub(super) fn between_physical(
    rules: &[Arc<dyn PhysicalOptimizerRule + Send + Sync>],
) -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    rules.iter().flat_map(|rule| [Arc::new(Look) as _, Arc::clone(rule)]).collect()
}

/// Leaves a plan as it is, if it is still wanted.
#[derive(Debug)]
struct Look;

impl OptimizerRule for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        check()?;
        Ok(Transformed::no(plan))
    }
}

impl AnalyzerRule for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        check()?;
        Ok(plan)
    }
}

impl PhysicalOptimizerRule for Look {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        check()?;
        Ok(plan)
    }

    fn name(&self) -> &'static str {
        "look"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
