//! Projections above filters that have a projection themselves.
//!
//! DataFusion (55) moves a projection below a filter if it contains the columns of the filter's condition. It looks
//! them up by name and position in the filter's output. But the condition refers to positions in the filter's input,
//! which may differ. So a filter below a projection must not have one itself.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::ProjectionExec;

/// The rule, or our replacement of the same name.
pub(super) fn in_place_of(
    rule: &Arc<dyn PhysicalOptimizerRule + Send + Sync>,
) -> Arc<dyn PhysicalOptimizerRule + Send + Sync> {
    let own = Projections::default();
    if rule.name() == own.name() { Arc::new(own) } else { Arc::clone(rule) }
}

/// DataFusion's rule, run after its input is corrected.
#[derive(Debug, Default)]
struct Projections(ProjectionPushdown);

impl PhysicalOptimizerRule for Projections {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.optimize(plan.transform_up(above_whole_filter).data()?, config)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Merges the filter's projection into the one above.
fn above_whole_filter(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(projection) = plan.downcast_ref::<ProjectionExec>() else { return Ok(Transformed::no(plan)) };
    let Some(filter) = projection.input().downcast_ref::<FilterExec>() else { return Ok(Transformed::no(plan)) };
    let Some(kept) = filter.projection().as_ref() else { return Ok(Transformed::no(plan)) };
    let fields = filter.input().schema();
    let items = projection.expr().iter().map(|item| {
        let of_input = Arc::clone(&item.expr).transform_up(|expr| {
            Ok(match expr.downcast_ref::<Column>() {
                Some(column) => {
                    let place = kept[column.index()];
                    Transformed::yes(Arc::new(Column::new(fields.field(place).name(), place)) as _)
                }
                None => Transformed::no(expr),
            })
        });
        Ok(ProjectionExpr { expr: of_input.data()?, alias: item.alias.clone() })
    });
    let items = items.collect::<Result<Vec<_>>>()?;
    let whole = FilterExecBuilder::from(filter).apply_projection(None)?.build()?;
    Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(items, Arc::new(whole))?)))
}
