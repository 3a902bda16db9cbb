//! Filters that DataFusion would hand down to another column.
//!
//! DataFusion's operators look the columns of a filter up in their children by name. They take the first column with that name, projections the last. A schema
//! may have a name twice, as the output of a join of two tables with an `id` has. The filter may then reach a scan of the wrong table, which drops rows that
//! others need. This occurs in DataFusion 55 for repartitioning and projections; filters, unions and joins use the same look-up. A filter is therefore offered
//! only where its columns are found.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPhase, PushedDown};
use datafusion::physical_plan::projection::ProjectionExec;

use super::exec::JoinExec;
use super::origin;

/// One pass in which filters are handed down.
#[derive(Clone, Copy)]
pub struct Pushdown<'a> {
    pub phase: FilterPushdownPhase,
    pub config: &'a ConfigOptions,
}

impl Pushdown<'_> {
    /// Whether a filter on these columns of `plan` remains a filter on the same values, wherever below `plan` it is
    /// handed to.
    pub fn finds_columns(self, plan: &Arc<dyn ExecutionPlan>, filter: &PhysicalExprRef) -> Result<bool> {
        for column in collect_columns(filter) {
            if !self.finds(plan, column.index())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn finds(self, plan: &Arc<dyn ExecutionPlan>, column: usize) -> Result<bool> {
        let schema = plan.schema();
        let name = schema.field(column).name();
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            // A projection looks the name up among its own columns, and replaces it by the expression of the last
            // column with that name.
            return Ok(
                is_only(&schema, name) && self.finds_columns(projection.input(), &projection.expr()[column].expr)?
            );
        }
        let filter: PhysicalExprRef = Arc::new(Column::new(name, column));
        let handed = match plan.downcast_ref::<JoinExec>() {
            // A `JoinExec` would examine everything below once more.
            Some(join) => join.planned().gather_filters_for_pushdown(self.phase, vec![filter], self.config)?,
            None => plan.gather_filters_for_pushdown(self.phase, vec![filter], self.config)?,
        };
        for (number, (child, handed)) in plan.children().into_iter().zip(handed.parent_filters()).enumerate() {
            let handed = handed.into_iter().find(|filter| matches!(filter.discriminant, PushedDown::Yes));
            let found = handed.and_then(|filter| Some(filter.predicate.downcast_ref::<Column>()?.index()));
            let Some(found) = found else { continue };
            let is_same = match origin::of_child(plan, number, column) {
                Some(own) => own == found,
                // For an operator that is not known here, the names must show it. An aggregate may give a column the
                // name of an expression.
                None => !plan.is::<AggregateExec>() && is_only(&schema, name) && is_only(&child.schema(), name),
            };
            if !is_same || !self.finds(child, found)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Replaces each unwanted filter by one that no operator hands down, because no child has its column. Results are
/// identified by the positions of the filters, so unwanted ones cannot be left out.
pub fn only(
    filters: Vec<PhysicalExprRef>,
    wanted: impl Fn(&PhysicalExprRef) -> Result<bool>,
) -> Result<Vec<PhysicalExprRef>> {
    let nowhere = || Arc::new(Column::new("", usize::MAX)) as PhysicalExprRef;
    filters.into_iter().map(|filter| Ok(if wanted(&filter)? { filter } else { nowhere() })).collect()
}

/// Whether a look-up by the name finds the column.
pub fn is_first(schema: &Schema, name: &str, column: usize) -> bool {
    schema.index_of(name).is_ok_and(|first| first == column)
}

fn is_only(schema: &Schema, name: &str) -> bool {
    schema.fields().iter().filter(|field| field.name() == name).count() == 1
}
