//! Lets rows of far scans go through the filter of a join; and puts late scans and the better order of conditions in.
//!
//! ```text
//!   JoinExec ── build side: 2000 keys
//!      └─ probe side: AggregateExec ── … ── SieveExec (key is a build key)  ◀─ put in here
//!                                              └─ scan
//! ```
//!
//! DataFusion hands a join's dynamic filter down to the scans of its probe side, which skip whole row groups by it. Where an
//! aggregate or another join lies between, its rows are worth looking at one by one: what they would be aggregated or joined
//! to is thrown away. Right above the join itself they are not, since the join's own table answers as fast.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::{StatisticsArgs, StatisticsContext};

use super::JoinConfig;
use super::conditions::ordered;
use super::exec::JoinExec;
use super::sieve::SieveExec;

/// See the module. It belongs behind all rules that push filters down; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct ReduceRule;

impl PhysicalOptimizerRule for ReduceRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let config = options.extensions.get::<JoinConfig>().cloned().unwrap_or_default();
        if !config.enabled {
            return Ok(plan);
        }
        let plan = if config.reduce { below(plan, &[], config.late.then_some(1.0))? } else { plan };
        if !config.cheap_first {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            let filter = node.downcast_ref::<FilterExec>();
            let better =
                filter.and_then(|filter| Some((filter, ordered(filter.predicate(), &filter.input().schema())?)));
            Ok(match better {
                Some((filter, better)) => {
                    Transformed::yes(Arc::new(FilterExecBuilder::from(filter).with_predicate(better).build()?))
                }
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_reduce"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The dynamic filter of a join above.
#[derive(Clone, Copy)]
struct Above {
    id: u64,
    /// An aggregate or another join lies between it and here.
    is_far: bool,
}

/// `share`: of the rows of `plan` that the conditions right above it are expected to keep; `None` where no scan is to read late.
fn below(plan: Arc<dyn ExecutionPlan>, above: &[Above], share: Option<f64>) -> Result<Arc<dyn ExecutionPlan>> {
    let children = plan.children();
    if children.is_empty() {
        return reduced(plan, above, share);
    }
    let join = plan.downcast_ref::<JoinExec>();
    let is_between = join.is_some() || plan.is::<AggregateExec>();
    let mut inside: Vec<Above> =
        above.iter().map(|above| Above { is_far: above.is_far || is_between, ..*above }).collect();
    let mut new_children = Vec::with_capacity(children.len());
    for (number, child) in children.into_iter().enumerate() {
        if number == 1
            && let Some(join) = join.filter(|join| join.is_ours())
        {
            let own = join.planned().dynamic_expressions_produced();
            inside.extend(own.iter().filter_map(|filter| Some(Above { id: filter.expression_id()?, is_far: false })));
        }
        let share = share.map(|_| share_of(&plan)).transpose()?;
        new_children.push(below(Arc::clone(child), &inside, share)?);
    }
    let is_same = plan.children().into_iter().zip(&new_children).all(|(old, new)| Arc::ptr_eq(old, new));
    if is_same {
        return Ok(plan);
    }
    plan.replace_children(new_children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// Of its input's rows, those that statistics expect a filter to keep; all of them where it is none.
fn share_of(plan: &Arc<dyn ExecutionPlan>) -> Result<f64> {
    if !plan.is::<FilterExec>() {
        return Ok(1.0);
    }
    let statistics = StatisticsContext::new();
    let rows = |plan: &Arc<dyn ExecutionPlan>| -> Result<Option<usize>> {
        Ok(statistics.compute(plan.as_ref(), &StatisticsArgs::new())?.num_rows.get_value().copied())
    };
    let kept_of = rows(plan)?.zip(rows(plan.children()[0])?);
    Ok(kept_of.map_or(1.0, |(kept, all)| kept as f64 / all.max(1) as f64))
}

/// A scan whose rows go through the far filters that it holds, and that may read columns late.
fn reduced(scan: Arc<dyn ExecutionPlan>, above: &[Above], share: Option<f64>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut filters: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
    scan.apply_expressions(&mut |root| {
        root.apply(|expression| {
            let is_far = |id| above.iter().any(|above| above.id == id && above.is_far);
            let is_new = |id| filters.iter().all(|filter| filter.expression_id() != Some(id));
            if expression.is::<DynamicFilterPhysicalExpr>()
                && expression.expression_id().is_some_and(|id| is_far(id) && is_new(id))
                && let Some(filter) = of_output(expression, &scan)?
            {
                filters.push(filter);
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    let scan = if let Some(share) = share { late(scan, share) } else { scan };
    Ok(if filters.is_empty() { scan } else { Arc::new(SieveExec::new(filters, scan)) })
}

#[cfg(feature = "parquet")]
fn late(scan: Arc<dyn ExecutionPlan>, share: f64) -> Arc<dyn ExecutionPlan> {
    match super::late::LateScanExec::over(&scan, share) {
        Some(late) => Arc::new(late),
        None => scan,
    }
}

#[cfg(not(feature = "parquet"))]
fn late(scan: Arc<dyn ExecutionPlan>, _: f64) -> Arc<dyn ExecutionPlan> {
    scan
}

/// The filter over what the scan hands out, which has the columns of its file in another order; `None` if one is not there.
fn of_output(filter: &Arc<dyn PhysicalExpr>, scan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let schema = scan.schema();
    let column = |child: &Arc<dyn PhysicalExpr>| {
        let name = child.downcast_ref::<Column>()?.name();
        let mut places = schema.fields().iter().enumerate().filter(|(_, field)| field.name() == name);
        let (place, _) = places.next()?;
        places.next().is_none().then(|| Arc::new(Column::new(name, place)) as Arc<dyn PhysicalExpr>)
    };
    let columns: Option<Vec<_>> = filter.children().into_iter().map(column).collect();
    columns.map(|columns| Arc::clone(filter).with_new_children(columns)).transpose()
}
