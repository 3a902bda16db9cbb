//! Keeps sorts from being moved below limits.
//!
//! A sort above `LIMIT n OFFSET m` does not decide which rows remain. DataFusion (55) moves it below the limit if it
//! knows no order of the limit's rows: because there is none, or because a projection in between has dropped the keys.
//! There the sort keeps n rows in its own order, and the limit skips m of them:
//! `SELECT ... FROM (SELECT ... LIMIT 8 OFFSET 2) ORDER BY ...` returned six rows.
//!
//! So a limit is first moved below projections, to the sort that it cuts. While sorts and partitioning are decided, a
//! [`WholeExec`] replaces it. That node requires the order of its input, and preserves none for the nodes above.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, OrderingRequirements, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Puts the two rules around the one that decides on sorts.
pub(super) fn kept_whole(mut rules: Vec<Rule>) -> Vec<Rule> {
    if let Some(sorts) = rules.iter().position(|rule| rule.name() == "EnsureRequirements") {
        rules.insert(sorts + 1, Arc::new(Limits { are_whole: false }));
        rules.insert(sorts, Arc::new(Limits { are_whole: true }));
    }
    rules
}

/// Replaces limits by [`WholeExec`], or back.
#[derive(Debug)]
struct Limits {
    are_whole: bool,
}

impl PhysicalOptimizerRule for Limits {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            if let (true, Some(limit)) = (self.are_whole, node.downcast_ref::<GlobalLimitExec>()) {
                return below_projections(limit.skip(), limit.fetch(), limit.input()).map(Transformed::yes);
            }
            match node.downcast_ref::<WholeExec>() {
                Some(whole) if !self.are_whole => Ok(Transformed::yes(whole.limit())),
                _ => Ok(Transformed::no(node)),
            }
        })
        .data()
    }

    fn name(&self) -> &'static str {
        if self.are_whole { "limits_that_are_whole" } else { "limits_again" }
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn below_projections(
    skip: usize,
    fetch: Option<usize>,
    input: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match input.downcast_ref::<ProjectionExec>() {
        Some(projection) => {
            let below = below_projections(skip, fetch, projection.input())?;
            Arc::clone(input)
                .replace_children(vec![below], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }
        None => Ok(Arc::new(WholeExec::new(skip, fetch, Arc::clone(input)))),
    }
}

/// A limit below which no sort is moved.
#[derive(Debug)]
struct WholeExec {
    skip: usize,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    /// The order in which rows are counted; a sort below that establishes it must stay.
    order: Option<OrderingRequirements>,
    properties: Arc<PlanProperties>,
}

impl WholeExec {
    fn new(skip: usize, fetch: Option<usize>, input: Arc<dyn ExecutionPlan>) -> Self {
        // A sort promises no order by what it takes for a constant, and each input of a UNION may have another one.
        let sorted = input.downcast_ref::<SortExec>().map(SortExec::expr);
        let order = sorted.or(input.properties().output_ordering()).cloned().map(OrderingRequirements::from);
        let properties = Arc::clone(GlobalLimitExec::new(Arc::clone(&input), skip, fetch).properties());
        Self { skip, fetch, input, order, properties }
    }

    fn limit(&self) -> Arc<dyn ExecutionPlan> {
        Arc::new(GlobalLimitExec::new(Arc::clone(&self.input), self.skip, self.fetch))
    }
}

impl DisplayAs for WholeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "WholeExec: skip={}, fetch={:?}", self.skip, self.fetch)
    }
}

impl ExecutionPlan for WholeExec {
    fn name(&self) -> &'static str {
        "WholeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.order.clone()]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| Arc::clone(&self.input));
        let order = self.order.clone();
        Ok(Arc::new(Self { order, ..Self::new(self.skip, self.fetch, input) }))
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(DataFusionError::Internal("a limit that is whole is only planned with".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use datafusion::common::ScalarValue;
    use datafusion::physical_expr::expressions::{Literal, col};
    use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
    use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
    use datafusion::physical_plan::union::UnionExec;

    #[test]
    fn a_limit_wants_the_order_of_a_sort_by_a_column_that_each_input_of_a_union_has_as_a_constant() {
        let row = || Arc::new(PlaceholderRowExec::new(Arc::new(Schema::empty()))) as Arc<dyn ExecutionPlan>;
        let constant = |n: i64| {
            let literal: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::Int64(Some(n))));
            Arc::new(ProjectionExec::try_new([(literal, "n".to_owned())], row()).expect("a projection")) as _
        };
        let union = UnionExec::try_new(vec![constant(3), constant(1)]).expect("a union");
        let by = PhysicalSortExpr::new_default(col("n", &union.schema()).expect("the column"));
        let sort = SortExec::new(LexOrdering::new([by]).expect("an order"), union);
        assert!(sort.properties().output_ordering().is_none(), "DataFusion takes the column for a constant");
        assert!(WholeExec::new(1, None, Arc::new(sort)).required_input_ordering()[0].is_some());
    }
}
