//! Tests rows of far scans by the filter of a join, gives scans the filters that they can test themselves, and lets filters test cheap conditions first.
//!
//! ```text
//!   JoinExec ── build side: 2000 keys
//!      └─ probe side: AggregateExec ── … ── SieveExec (key is a build key)  ◀─ inserted here
//!                                              └─ scan
//! ```
//!
//! DataFusion hands a join's dynamic filter down to the scans of its probe side, which skip whole row groups by it. If an aggregate or another join lies
//! between, testing the rows of a scan one by one pays off: the aggregate or join would otherwise compute results that are discarded. Directly below the join
//! itself it does not pay off, because the join's own table answers as fast. But a scan that tests its own filters may skip rows without decoding them, so it
//! gets the filter of each join above ([`FilteredScan`]).
//!
//! DataFusion's filter stops where one of its keys stops: for example at an aggregate whose result is compared (TPC-H's
//! query 2: the least cost of a part). Each of its conditions is on one key, so a runtime filter uses those whose key
//! the scan has.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

use super::JoinConfig;
use super::conditions::ordered;
use super::exec::JoinExec;
use super::origin;
use super::sieve::{NotHere, SieveExec};

/// A scan of the caller's that tests dynamic filters over its columns; `None` if the plan is not such a scan. It may return rows that fail them, and their
/// expressions must be among its own.
pub type FilteredScan = fn(&Arc<dyn ExecutionPlan>, &[PhysicalExprRef]) -> Option<Arc<dyn ExecutionPlan>>;

/// See the module. It belongs behind all rules that push filters down; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug)]
pub struct ReduceRule {
    filtered: FilteredScan,
}

impl ReduceRule {
    /// A rule that gives filters to the scans that `filtered` knows.
    pub fn new(filtered: FilteredScan) -> Self {
        Self { filtered }
    }
}

impl PhysicalOptimizerRule for ReduceRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let config = options.extensions.get::<JoinConfig>().cloned().unwrap_or_default();
        if !config.enabled {
            return Ok(plan);
        }
        let plan = if config.reduce { below(plan, &[], self.filtered)? } else { plan };
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
#[derive(Clone)]
struct Above {
    filter: PhysicalExprRef,
    /// For each of its keys, the column of this plan's output that has it, if any.
    columns: Vec<Option<usize>>,
    /// Whether an aggregate or another join lies between the filter's join and this plan.
    is_far: bool,
}

impl Above {
    /// The filter of the join right above, over its probe side.
    fn own(filter: PhysicalExprRef) -> Self {
        let columns = filter.children().into_iter().map(|key| Some(key.downcast_ref::<Column>()?.index())).collect();
        Self { filter, columns, is_far: false }
    }

    /// The filter in a child of `plan`. `None` if the child has none of its keys, or if other operators would miss rows
    /// that it drops.
    fn below(&self, plan: &Arc<dyn ExecutionPlan>, child: usize) -> Option<Self> {
        let columns: Vec<_> = self.columns.iter().map(|column| origin::of_child(plan, child, (*column)?)).collect();
        let is_between = plan.is::<JoinExec>() || plan.is::<AggregateExec>();
        let filter = Arc::clone(&self.filter);
        let has_some = columns.iter().any(Option::is_some);
        has_some.then_some(Self { filter, columns, is_far: self.is_far || is_between })
    }

    /// The filter as an expression over that schema.
    fn over(&self, schema: &Schema) -> Result<PhysicalExprRef> {
        let key = |column: &Option<usize>| match *column {
            Some(column) => Arc::new(Column::new(schema.field(column).name(), column)) as PhysicalExprRef,
            None => Arc::new(NotHere),
        };
        Arc::clone(&self.filter).with_new_children(self.columns.iter().map(key).collect())
    }
}

fn below(plan: Arc<dyn ExecutionPlan>, above: &[Above], filtered: FilteredScan) -> Result<Arc<dyn ExecutionPlan>> {
    let children = plan.children();
    if children.is_empty() {
        return reduced(plan, above, filtered);
    }
    let mut new_children = Vec::with_capacity(children.len());
    for (number, child) in children.into_iter().enumerate() {
        let mut inside: Vec<Above> = above.iter().filter_map(|above| above.below(&plan, number)).collect();
        if number == 1
            && let Some(join) = plan.downcast_ref::<JoinExec>().filter(|join| join.is_ours())
        {
            inside.extend(join.planned().dynamic_expressions_produced().into_iter().map(Above::own));
        }
        new_children.push(below(Arc::clone(child), &inside, filtered)?);
    }
    let is_same = plan.children().into_iter().zip(&new_children).all(|(old, new)| Arc::ptr_eq(old, new));
    if is_same {
        return Ok(plan);
    }
    plan.replace_children(new_children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// A scan that tests the filters of whose keys it has one, as far as it can. Its rows are also tested by the far filters.
fn reduced(scan: Arc<dyn ExecutionPlan>, above: &[Above], filtered: FilteredScan) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = scan.schema();
    let filters: Vec<_> = above.iter().map(|above| above.over(&schema)).collect::<Result<_>>()?;
    let is_far = |filter: PhysicalExprRef, above: &Above| above.is_far.then_some(filter);
    let scan = if filters.is_empty() { None } else { filtered(&scan, &filters) }.unwrap_or(scan);
    let far: Vec<_> = filters.into_iter().zip(above).filter_map(|(filter, above)| is_far(filter, above)).collect();
    Ok(if far.is_empty() { scan } else { Arc::new(SieveExec::new(far, scan)) })
}
