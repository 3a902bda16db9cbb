//! Functional dependencies above aggregates of joins.
//!
//! A key of one side of a join determines the other columns of that side, but may occur in several rows. If such a key
//! is among the keys of an aggregate above the join, DataFusion 55 assumes that it determines all columns of the
//! aggregate and occurs in one row. Then it removes later keys of ORDER BY and GROUP BY, DISTINCT, and joins that could
//! only find such a row. So this rule declares that only all keys of the aggregate together determine its rows.
//!
//! DataFusion's SQL planner makes the same assumption, and adds the columns that a key of GROUP BY determines to the
//! keys. A marker after the written keys separates them from the added ones, which are removed.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Dependency, FunctionalDependence, FunctionalDependencies};
use datafusion::error::Result;
use datafusion::logical_expr::{self, Aggregate, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::sql::sqlparser::ast::{self, Expr, GroupByExpr, Select, Value, VisitorMut};

use crate::engine::walk;

/// The marker at the end of a GROUP BY's keys.
const END: &str = "end of the keys that are written";

/// DataFusion's rules that use functional dependencies. Each rebuilds plans, and so computes the dependencies again.
const ASKING: [&str; 4] =
    ["eliminate_duplicated_expr", "eliminate_join", "optimize_projections", "replace_distinct_aggregate"];

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules, with [`Dependencies`] before each one that uses them.
pub(super) fn with_dependency_rules(rules: Vec<Rule>) -> Vec<Rule> {
    let before = |rule: &Rule| ASKING.contains(&rule.name()).then(|| Arc::new(Dependencies) as Rule);
    rules.into_iter().flat_map(|rule| before(&rule).into_iter().chain([rule])).collect()
}

/// See the module.
#[derive(Debug)]
struct Dependencies;

impl OptimizerRule for Dependencies {
    fn name(&self) -> &'static str {
        "dependencies"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if has_aggregate_of_join(&plan)? { corrected(plan) } else { Ok(Transformed::no(plan)) }
    }
}

/// Whether there may be something to correct. Most plans need no correction and are not rebuilt.
fn has_aggregate_of_join(plan: &LogicalPlan) -> Result<bool> {
    let is_join = |node: &LogicalPlan| Ok(matches!(node, LogicalPlan::Join(_)));
    let mut has = false;
    plan.apply_with_subqueries(|node| {
        has |= matches!(node, LogicalPlan::Aggregate(_)) && node.exists(is_join)?;
        Ok(if has { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(has)
}

/// Puts a marker after the keys of each GROUP BY.
pub(super) fn mark_keys(statement: &mut ast::Statement) {
    struct Marks;
    impl VisitorMut for Marks {
        type Break = ();

        fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
            let is_set =
                |key: &Expr| matches!(key, Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) | Expr::Tuple(_));
            if let GroupByExpr::Expressions(keys, _) = &mut select.group_by
                && !keys.is_empty()
                && !keys.iter().any(is_set)
            {
                keys.push(Expr::Value(Value::SingleQuotedString(END.to_owned()).into()));
            }
            ControlFlow::Continue(())
        }
    }
    let _ = walk::change(statement, &mut Marks);
}

/// A plan without the markers and without the keys after them.
#[recursive::recursive]
pub(super) fn own_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let plan = plan.map_subqueries(own_keys)?;
    let mut plan = plan.transform_data(|plan| plan.map_children(own_keys))?;
    if plan.transformed {
        plan.data = plan.data.recompute_schema()?;
    }
    let LogicalPlan::Aggregate(aggregate) = &plan.data else { return Ok(plan) };
    let is_end = |key: &logical_expr::Expr| matches!(key, logical_expr::Expr::Literal(value, _) if value.try_as_str() == Some(Some(END)));
    let Some(end) = aggregate.group_expr.iter().position(is_end) else { return Ok(plan) };
    let keys = aggregate.group_expr[..end].to_vec();
    let aggregate = Aggregate::try_new(Arc::clone(&aggregate.input), keys, aggregate.aggr_expr.clone())?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

#[recursive::recursive]
fn corrected(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let plan = plan.map_subqueries(corrected)?;
    let plan = plan.transform_data(|plan| plan.map_children(corrected))?;
    if plan.transformed {
        // Nodes above a corrected one must be recomputed.
        return Ok(Transformed::yes(keys_decide(plan.data.recompute_schema()?)?.data));
    }
    keys_decide(plan.data)
}

fn keys_decide(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Aggregate(mut aggregate) = plan else { return Ok(Transformed::no(plan)) };
    // Grouping sets determine nothing.
    let is_decided = aggregate.schema.functional_dependencies().is_empty();
    let below = aggregate.input.schema().functional_dependencies();
    if is_decided || below.iter().all(|dependency| dependency.mode == Dependency::Single) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let schema = aggregate.schema.as_ref().clone().with_functional_dependencies(of_keys(&aggregate)?)?;
    aggregate.schema = Arc::new(schema);
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

fn of_keys(aggregate: &Aggregate) -> Result<FunctionalDependencies> {
    let keys: Vec<usize> = (0..aggregate.group_expr_len()?).collect();
    if keys.is_empty() {
        return Ok(FunctionalDependencies::empty());
    }
    let fields = aggregate.schema.fields();
    let may_be_null = keys.iter().any(|key| fields[*key].is_nullable());
    let all = (0..fields.len()).collect();
    let decides = FunctionalDependence::new(keys, all, may_be_null).with_mode(Dependency::Single);
    Ok(FunctionalDependencies::new(vec![decides]))
}
