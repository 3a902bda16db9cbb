//! A part that a plan has twice is computed once.
//!
//! ```text
//!   ScalarSubqueryExec
//!      ├─ … ── FilterExec ─────── CommonExec ─┐  the first that is asked runs its copy and keeps the rows in memory,
//!      └─ AggregateExec (max) ─── CommonExec ─┴─ and in files those for which there is no room; the other reads them
//!                                    └─ AggregateExec (sum by supplier) ── … ── scan, once in each copy, run in one
//! ```
//!
//! A view or a common table expression that a query names twice is two plans after DataFusion has planned it (TPC-H's
//! query 15). Only aggregates are combined, since they make few rows of many, and only where [`equal`] knows every
//! operator below them. Filters of joins above must not reach them: such a filter would keep rows from one of the two
//! that the other needs. So the rule belongs before these filters are handed down.

mod equal;
mod exec;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};

use super::JoinConfig;
use equal::{are_equal, is_repeatable};
use exec::{Common, CommonExec};

/// Whether two scans of one type of the caller's read the same rows, in the same partitions.
pub type SameScan = fn(&Arc<dyn ExecutionPlan>, &Arc<dyn ExecutionPlan>) -> bool;

/// Puts a `CommonExec` above each of several equal aggregates. It belongs behind all rules that distribute and sort,
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
        let groups = Group::of(&plan, self.same_scan)?;
        if groups.is_empty() {
            return Ok(plan);
        }
        plan.transform_down(|node| {
            Ok(match groups.iter().find(|group| group.has(&node)) {
                // The part below runs once, so nothing in it can occur twice.
                Some(group) => {
                    let common = CommonExec::new(node, Arc::clone(&group.common));
                    Transformed::new(Arc::new(common), true, TreeNodeRecursion::Jump)
                }
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_common"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Equal parts of a plan.
struct Group {
    parts: Vec<Arc<dyn ExecutionPlan>>,
    common: Arc<Common>,
}

impl Group {
    /// The groups of at least two equal parts. No part of a group lies in a part of another.
    fn of(plan: &Arc<dyn ExecutionPlan>, same_scan: SameScan) -> Result<Vec<Self>> {
        let all = equal_parts(plan, same_scan, |_| false)?;
        let is_twice = |node: &Arc<dyn ExecutionPlan>| {
            all.iter().any(|parts| parts.len() > 1 && parts.iter().any(|part| Arc::ptr_eq(part, node)))
        };
        let outermost = equal_parts(plan, same_scan, is_twice)?;
        let groups = outermost.into_iter().filter(|parts| parts.len() > 1);
        Ok(groups.map(|parts| Self { common: Arc::new(Common::new(parts.len())), parts }).collect())
    }

    fn has(&self, node: &Arc<dyn ExecutionPlan>) -> bool {
        self.parts.iter().any(|part| Arc::ptr_eq(part, node))
    }
}

/// The aggregates of a plan, grouped by equality. The search does not go below an aggregate for which `is_whole` is
/// true.
fn equal_parts(
    plan: &Arc<dyn ExecutionPlan>,
    same_scan: SameScan,
    is_whole: impl Fn(&Arc<dyn ExecutionPlan>) -> bool,
) -> Result<Vec<Vec<Arc<dyn ExecutionPlan>>>> {
    let mut found: Vec<Vec<Arc<dyn ExecutionPlan>>> = Vec::new();
    plan.apply(|node| {
        let aggregate = node.downcast_ref::<AggregateExec>();
        if aggregate.is_some_and(|aggregate| aggregate.mode().output_mode() == AggregateOutputMode::Final) {
            match found.iter_mut().find(|parts| are_equal(&parts[0], node, same_scan)) {
                Some(parts) => parts.push(Arc::clone(node)),
                None if is_repeatable(node)? => found.push(vec![Arc::clone(node)]),
                None => {}
            }
        }
        Ok(if is_whole(node) { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
