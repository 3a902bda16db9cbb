//! Constants that DataFusion (55) takes for each other: `ScalarValue` compares timestamps without their time zones, so the
//! number of microseconds of a TIMESTAMP and of a TIMESTAMPTZ may be equal where neither their types nor their meanings are.
//! A rule that replaces one of two equal expressions by the other would then give one column the values of the other one.
//! A plan that has such a pair of constants is left by these rules as it is.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// DataFusion's rules that look for equal expressions.
const MERGING: [&str; 3] =
    ["common_sub_expression_eliminate", "eliminate_duplicated_expr", "single_distinct_aggregation_to_group_by"];

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules; those that look for equal expressions leave plans with such constants alone.
pub(super) fn with_zones_apart(rules: Vec<Rule>) -> Vec<Rule> {
    let apart = |rule: Rule| -> Rule { if MERGING.contains(&rule.name()) { Arc::new(Apart(rule)) } else { rule } };
    rules.into_iter().map(apart).collect()
}

#[derive(Debug)]
struct Apart(Rule);

impl OptimizerRule for Apart {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut constants = Constants::default();
        match self.apply_order() {
            // The rule is called for each operator.
            Some(_) => constants.of_operator(&plan)?,
            None => plan.apply_with_subqueries(|operator| constants.of_operator(operator))?,
        };
        if constants.have_pair { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}

/// The timestamps in a plan.
#[derive(Default)]
struct Constants {
    /// For each number, whether it is that of a constant with a time zone.
    met: HashMap<Option<i64>, bool>,
    /// Whether two differ in their time zones alone.
    have_pair: bool,
}

impl Constants {
    fn of_operator(&mut self, operator: &LogicalPlan) -> Result<TreeNodeRecursion> {
        operator.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(ScalarValue::TimestampMicrosecond(number, zone), _) = part {
                    self.have_pair |= *self.met.entry(*number).or_insert(zone.is_some()) != zone.is_some();
                }
                Ok(if self.have_pair { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit, when};
    use datafusion::optimizer::OptimizerContext;
    use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;

    #[test]
    fn equal_numbers_with_and_without_a_zone_stay_apart() {
        let moment = |zone: Option<&str>| lit(ScalarValue::TimestampMicrosecond(Some(7), zone.map(Arc::from)));
        let plan = |zones: [Option<&str>; 2]| {
            let rows = LogicalPlanBuilder::values(vec![vec![lit(1)], vec![lit(2)]]).unwrap();
            let of = |zone| when(datafusion::prelude::col("column1").eq(lit(1)), moment(zone)).end().unwrap();
            rows.project([of(zones[0]).alias("a"), of(zones[1]).alias("b")]).unwrap().build().unwrap()
        };
        let rules = with_zones_apart(vec![Arc::new(CommonSubexprEliminate::new())]);
        let merges = |zones| rules[0].rewrite(plan(zones), &OptimizerContext::new()).unwrap().transformed;
        assert!(!merges([None, Some("UTC")]) && !merges([Some("UTC"), None]));
        assert!(merges([None, None]) && merges([Some("UTC"), Some("UTC")]));
        // The mistake of DataFusion's.
        let plain = CommonSubexprEliminate::new();
        assert!(plain.rewrite(plan([None, Some("UTC")]), &OptimizerContext::new()).unwrap().transformed);
    }
}
