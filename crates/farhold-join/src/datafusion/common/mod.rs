//! Computes a part that a plan contains several times only once.
//!
//! ```text
//!   ScalarSubqueryExec
//!      ├─ … ── FilterExec ─────── CommonExec ─┐  the first that is asked runs its copy and keeps the rows in memory,
//!      └─ AggregateExec (max) ─── CommonExec ─┴─ and in files those for which there is no room; the other reads them
//!                                    └─ AggregateExec (sum by supplier) ── … ── scan, once in each copy, run in one
//! ```
//! A view or a common table expression that a query names twice is two plans after DataFusion has planned it (TPC-H's query 15). Joins that differ only in
//! their columns are made equal ([`narrower`]). [`groups`] decides which parts are worth sharing; two parts are equal only if [`equal`] knows every operator of
//! them. All rows are kept before the first one is returned. The order in which the copies are read therefore does not matter, and neither does whether a copy
//! is read to its end. Filters of joins above must not reach the parts: such a filter of one copy would remove rows that the other needs. The rule therefore
//! belongs before these filters are handed down, and `CommonExec` hands none down.

mod equal;
mod exec;
mod groups;
mod narrower;

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::JoinConfig;
pub use exec::CommonExec;
use exec::{Common, PlanRows};
use groups::{Group, groups};

/// Whether two scans of one type of the caller's read the same rows, in the same partitions.
pub type SameScan = fn(&Arc<dyn ExecutionPlan>, &Arc<dyn ExecutionPlan>) -> bool;

/// Puts a `CommonExec` above each of several equal parts. It belongs behind all rules that distribute and sort,
/// and before dynamic filters are handed down; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug)]
pub struct CommonRule {
    same_scan: SameScan,
}

impl CommonRule {
    /// A rule that knows scans of memory and of Parquet files, and those that `same_scan` compares.
    pub fn new(same_scan: SameScan) -> Self {
        Self { same_scan }
    }
}

impl PhysicalOptimizerRule for CommonRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if options.extensions.get::<JoinConfig>().is_some_and(|config| !config.enabled || !config.common) {
            return Ok(plan);
        }
        let (mut plan, mut groups) = (Arc::clone(&plan), groups(&plan, self.same_scan)?);
        let mut narrower = 0;
        while let Some(wider) = narrower::with_wider_join(&plan, narrower, self.same_scan)? {
            // Wider rows are worthwhile only if they are computed once.
            let of_wider = self::groups::groups(&wider, self.same_scan)?;
            let shared = |groups: &[Group]| groups.iter().map(|group| group.parts.len()).sum::<usize>();
            if shared(&of_wider) > shared(&groups) {
                (plan, groups) = (wider, of_wider);
            } else {
                narrower += 1;
            }
        }
        if groups.is_empty() {
            return Ok(plan);
        }
        let rows = Arc::new(PlanRows::default());
        let common = |copies| Arc::new(Common::new(copies, Arc::clone(&rows)));
        let parts: Vec<_> = groups.into_iter().map(|group| (group.parts, common(group.copies))).collect();
        with_common(&plan, &mut 0, &parts)
    }

    fn name(&self) -> &'static str {
        "farhold_common"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with a `CommonExec` above each of the parts. `number`: that of the plan's root, in the order in which nodes
/// stand in EXPLAIN.
fn with_common(
    plan: &Arc<dyn ExecutionPlan>,
    number: &mut usize,
    parts: &[(Vec<usize>, Arc<Common>)],
) -> Result<Arc<dyn ExecutionPlan>> {
    let own = *number;
    *number += 1;
    let old = plan.children();
    let new: Vec<_> = old.iter().map(|child| with_common(child, number, parts)).collect::<Result<_>>()?;
    let plan = if old.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new)) {
        Arc::clone(plan)
    } else {
        Arc::clone(plan).replace_children(new, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?
    };
    Ok(match parts.iter().find(|(numbers, _)| numbers.contains(&own)) {
        Some((_, common)) => Arc::new(CommonExec::new(plan, Arc::clone(common))),
        None => plan,
    })
}
