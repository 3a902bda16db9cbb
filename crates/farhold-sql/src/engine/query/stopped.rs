//! Planning that can be cancelled.
//!
//! DataFusion's planner checks no flag, and takes minutes for an expression of a thousand operators. So a rule before
//! each of its rules fails if the statement was stopped, and our own rules check the flag at each operator.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use tokio::runtime::Runtime;

use super::clocks::{self, Clock};
use super::until_cancelled;
use crate::SqlError;
use crate::engine::cancel::CancelHandle;

tokio::task_local! {
    /// The flag of the plan that this task makes.
    static FLAG: CancelHandle;
}

/// Runs a planner of a session on the query threads. It stops soon after its statement is stopped, or after the caller drops this
/// future.
pub(super) async fn stoppable<T: Send + 'static>(
    runtime: &Runtime,
    cancel: &CancelHandle,
    clock: Clock,
    planner: impl Future<Output = std::result::Result<T, SqlError>> + Send + 'static,
) -> std::result::Result<T, SqlError> {
    /// The statement's flag will soon be armed for the next statement, so the planner has its own.
    struct Stop<'a>(CancelHandle, &'a CancelHandle);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop_as(self.1);
        }
    }

    let stop = Stop(CancelHandle::running(), cancel);
    let task = runtime.spawn(clocks::within(clock, FLAG.scope(stop.0.clone(), planner)));
    until_cancelled(cancel, task).await
}

/// Runs a planner that checks `flag`.
pub(super) async fn cancellable<T>(flag: CancelHandle, planner: impl Future<Output = T>) -> T {
    FLAG.scope(flag, planner).await
}

/// An error if planning must stop.
pub(super) fn check() -> Result<()> {
    let checked = FLAG.try_with(CancelHandle::check);
    checked.unwrap_or(Ok(())).map_err(|error| DataFusionError::External(Box::new(error)))
}

/// The rules, with a check before each.
pub(super) fn between_optimizers(
    rules: &[Arc<dyn OptimizerRule + Send + Sync>],
) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    rules.iter().flat_map(|rule| [Arc::new(CancelCheck) as _, Arc::clone(rule)]).collect()
}

/// The rules, with a check before each.
pub(super) fn between_analyzers(
    rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>>,
) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    rules.into_iter().flat_map(|rule| [Arc::new(CancelCheck) as _, rule]).collect()
}

/// The rules, with a check before each.
pub(super) fn between_physical(
    rules: &[Arc<dyn PhysicalOptimizerRule + Send + Sync>],
) -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    rules.iter().flat_map(|rule| [Arc::new(CancelCheck) as _, Arc::clone(rule)]).collect()
}

/// A rule that changes nothing, but fails if the statement was stopped.
#[derive(Debug)]
struct CancelCheck;

impl OptimizerRule for CancelCheck {
    fn name(&self) -> &'static str {
        "cancel_check"
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

impl AnalyzerRule for CancelCheck {
    fn name(&self) -> &'static str {
        "cancel_check"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        check()?;
        Ok(plan)
    }
}

impl PhysicalOptimizerRule for CancelCheck {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        check()?;
        Ok(plan)
    }

    fn name(&self) -> &'static str {
        "cancel_check"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
