//! Orders and constants that DataFusion's operators promise but do not keep.
//!
//! The planner omits a sort, or columns of it, where an operator below promises enough. Some promises are wrong in
//! DataFusion 55:
//!
//! | operator | it promises | and hands out |
//! |---|---|---|
//! | outer joins | the constants of both inputs | NULL for the constants of an input whose row is missing |
//! | UNION ALL | each input's constants, which the merge of sorted partitions omits from its key | partitions with different values |
//! | grouping sets | constants, orders and partitioning of their input | NULL for what a set does not group by, in every partition |
//! | windows of `min` and `max` | results in order, NULLs last | NULL until the frame has a value |
//! | windows over frames that slide | results in order where the arguments are | the opposite order, where the order is descending |
//! | aggregates | that their keys are unique | keys whose place a projection moves: another column counts as unique, a sort by it as enough |
//! | merges of sorted partitions | every order of each partition | the order by which they merge: rows equal in it are in no other |
//! [`HeldRule`] puts a [`HeldExec`] above such an operator. It passes the rows on, and repeats only those promises of order and partitioning that hold. Sorts
//! stay above it: below it, they would see the wrong promise again. A [`JoinExec`](super::JoinExec) promises nothing wrong by itself.
//!
//! The rule that decides on sorts is also the one that adds merges, so [`SortsRule`] replaces it. Where that rule has
//! relied on a merge's wrong promise, it runs again with windows, unions and sorts of limits that promise one order
//! each, which a merge can keep.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{Constraints, JoinType, Statistics};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::SetMonotonicity;
use datafusion::physical_expr::equivalence::AcrossPartitions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, WindowExpr};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    StatisticsArgs,
};

use super::names::{is_first, only};

/// Puts a [`HeldExec`] above operators that promise too much. It belongs before DataFusion decides on sorts;
/// [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct HeldRule;

impl PhysicalOptimizerRule for HeldRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let has_orders = has_several_orders(&plan)?;
        plan.transform_up(|node| match held(&node)? {
            Some(held) => Ok(Transformed::yes(Arc::new(HeldExec::new(node, held)) as Arc<dyn ExecutionPlan>)),
            None if has_orders && has_keys(&node) => {
                let held = without_keys(&node);
                Ok(Transformed::yes(Arc::new(HeldExec { promise: Promise::NoKeys, ..HeldExec::new(node, held) }) as _))
            }
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_held"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether one order may be enough for another: unique keys matter only then.
fn has_several_orders(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut orders = 0;
    plan.apply(|node| {
        let is_wanted = node.is::<SortExec>()
            || !node.is::<OutputRequirementExec>() && node.required_input_ordering().iter().any(Option::is_some);
        orders += usize::from(is_wanted);
        Ok(if orders > 1 { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(orders > 1)
}

/// Whether it is an aggregate that promises that its keys are unique.
fn has_keys(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let aggregate: Option<&AggregateExec> = plan.downcast_ref();
    aggregate.is_some_and(|aggregate| *aggregate.mode() != AggregateMode::Partial)
        && plan.equivalence_properties().constraints().iter().next().is_some()
}

fn without_keys(plan: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    plan.equivalence_properties().clone().with_constraints(Constraints::default())
}

/// DataFusion's rule that decides on sorts and partitioning, prevented from relying on orders that a merge has lost.
#[derive(Debug, Default)]
pub struct SortsRule {
    decides: EnsureRequirements,
}

impl PhysicalOptimizerRule for SortsRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let decided = with_merges_held(self.decides.optimize(Arc::clone(&plan), config)?)?;
        if is_ordered(&decided)? {
            return Ok(decided);
        }
        let one_order =
            plan.transform_up(|node| match one_order(&node) {
                Some(held) => {
                    Ok(Transformed::yes(
                        Arc::new(HeldExec { promise: Promise::OneOrder, ..HeldExec::new(node, held) }) as _
                    ))
                }
                None => Ok(Transformed::no(node)),
            });
        with_merges_held(self.decides.optimize(one_order.data()?, config)?)
    }

    fn name(&self) -> &'static str {
        "farhold_sorts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn with_merges_held(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match merges_by(&node).map_or(Ok(None), |by| merged(&node, by))? {
        Some(held) => Ok(Transformed::yes(Arc::new(HeldExec::new(node, held)) as _)),
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// Whether the plan needs none of the orders that its merges do not keep. A sort may have been omitted below a limit
/// because of such an order.
fn is_ordered(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut orders = Orders { limits: 0, are_kept: true };
    plan.visit(&mut orders)?;
    Ok(orders.are_kept)
}

/// A walk through a plan, until it meets an operator whose order is not kept.
struct Orders {
    /// Limits at and above the operator.
    limits: usize,
    are_kept: bool,
}

fn is_limit(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.fetch().is_some() && !plan.is::<SortExec>()
}

impl<'n> TreeNodeVisitor<'n> for Orders {
    type Node = Arc<dyn ExecutionPlan>;

    fn f_down(&mut self, plan: &'n Self::Node) -> Result<TreeNodeRecursion> {
        self.limits += usize::from(is_limit(plan));
        self.are_kept &= self.limits == 0 || !is_held_merge(plan);
        for (child, required) in plan.children().into_iter().zip(plan.required_input_ordering()) {
            let Some(required) = required else { continue };
            self.are_kept &= child.equivalence_properties().ordering_satisfy_requirement(required.into_single())?;
        }
        Ok(if self.are_kept { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    }

    fn f_up(&mut self, plan: &'n Self::Node) -> Result<TreeNodeRecursion> {
        self.limits -= usize::from(is_limit(plan));
        Ok(TreeNodeRecursion::Continue)
    }
}

fn is_held_merge(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<HeldExec>().is_some_and(|held| merges_by(&held.input).is_some())
}

/// The order by which an operator merges its input's partitions.
fn merges_by(plan: &Arc<dyn ExecutionPlan>) -> Option<LexOrdering> {
    let input = plan.children().first()?.output_partitioning().partition_count();
    if input <= 1 {
        return None;
    }
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        return Some(merge.expr().clone());
    }
    let repartition = plan.downcast_ref::<RepartitionExec>().filter(|repartition| repartition.preserve_order())?;
    repartition.input().output_ordering().cloned()
}

/// The promises that hold for a merge by this order, if it promises more.
fn merged(plan: &Arc<dyn ExecutionPlan>, by: LexOrdering) -> Result<Option<EquivalenceProperties>> {
    let promised = plan.equivalence_properties();
    let mut held = promised.clone();
    held.clear_orderings();
    held.add_ordering(by);
    for order in promised.oeq_class().iter() {
        if !held.ordering_satisfy(order.clone())? {
            return Ok(Some(held));
        }
    }
    Ok(None)
}

/// For an operator that can have several orders, its promises with the one order that a merge above it keeps; `None`
/// for all others. A sort of a limit promises its own order: a sort above it would go into it, and no merge keeps that.
fn one_order(plan: &Arc<dyn ExecutionPlan>) -> Option<EquivalenceProperties> {
    let promised = plan.equivalence_properties();
    if plan.is::<UnionExec>() {
        let mut one = promised.clone();
        one.clear_per_partition_constants();
        let order = one.oeq_class().iter().next().cloned();
        one.clear_orderings();
        one.add_orderings(order);
        return Some(one);
    }
    if plan.is::<SortExec>() && plan.fetch().is_some() {
        return Some(promised.clone());
    }
    windows(plan).map(|windows| without_columns(promised, plan.schema().fields().len() - windows.len()))
}

fn windows(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    let plain = plan.downcast_ref().map(WindowAggExec::window_expr);
    plain.or_else(|| plan.downcast_ref().map(BoundedWindowAggExec::window_expr))
}

/// The promises that hold, for an operator that promises too much; `None` for all others.
pub(super) fn held(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<EquivalenceProperties>> {
    let promised = plan.equivalence_properties();
    if let Some(by) = merges_by(plan) {
        return merged(plan, by);
    }
    if plan.is::<UnionExec>() {
        let differ = promised.constants().iter().any(|c| c.across_partitions == AcrossPartitions::Heterogeneous);
        let mut held = promised.clone();
        held.clear_per_partition_constants();
        return Ok(differ.then_some(held));
    }
    if has_sets(plan) {
        let has_more = !promised.eq_group().is_empty()
            || !promised.oeq_class().is_empty()
            || is_hashed(plan)
            || wants_order(plan)?;
        return Ok(has_more.then(|| EquivalenceProperties::new(Arc::clone(promised.schema()))));
    }
    if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        let has_more = fills(*join.join_type()) && !promised.eq_group().is_empty();
        return if has_more { without_constants(promised).map(Some) } else { Ok(None) };
    }
    let Some(windows) = windows(plan) else { return Ok(None) };
    let is_doubtful = windows.iter().any(is_doubtful);
    Ok(is_doubtful.then(|| without_columns(promised, plan.schema().fields().len() - windows.len())))
}

/// The promises of the first operator that promises too much below one that hands on its rows, perhaps in another order.
fn held_below(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<EquivalenceProperties>> {
    let mut node = plan;
    loop {
        let children = node.children();
        let [child] = children.as_slice() else { return Ok(None) };
        if child.schema() != plan.schema() {
            return Ok(None);
        }
        node = child;
        if let Some(mut held) = held(node)? {
            held.clear_orderings();
            held.clear_per_partition_constants();
            held.add_orderings(plan.equivalence_properties().oeq_class().iter().cloned());
            return Ok(Some(held));
        }
    }
}

fn has_sets(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref().is_some_and(|aggregate: &AggregateExec| aggregate.group_expr().has_grouping_set())
}

/// Whether an operator, or one below it, wants its rows in an order: the rule that decides on sorts may still put a
/// sort below, whose order is promised then.
fn wants_order(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| Ok(node.required_input_ordering().iter().any(Option::is_some)))
}

fn is_hashed(plan: &Arc<dyn ExecutionPlan>) -> bool {
    matches!(plan.output_partitioning(), Partitioning::Hash(_, count) if *count > 1)
}

/// The part that holds of the partitioning that an operator promises.
pub(super) fn held_partitioning(plan: &Arc<dyn ExecutionPlan>) -> Partitioning {
    let promised = plan.output_partitioning();
    if has_sets(plan) && is_hashed(plan) {
        Partitioning::UnknownPartitioning(promised.partition_count())
    } else {
        promised.clone()
    }
}

/// Whether a join hands out rows without a partner, with NULLs for the other side.
pub(super) fn fills(kind: JoinType) -> bool {
    matches!(kind, JoinType::Left | JoinType::Right | JoinType::Full)
}

/// The promises of a join that fills rows with NULLs: equal columns stay equal, constants may become NULL.
pub(super) fn without_constants(promised: &EquivalenceProperties) -> Result<EquivalenceProperties> {
    let mut held = EquivalenceProperties::new(Arc::clone(promised.schema()));
    for class in promised.eq_group().iter() {
        let mut columns = class.iter().filter(|expression| expression.is::<Column>());
        let Some(first) = columns.next() else { continue };
        for other in columns {
            held.add_equal_conditions(Arc::clone(first), Arc::clone(other))?;
        }
    }
    held.add_orderings(promised.oeq_class().iter().cloned());
    Ok(held)
}

/// Whether DataFusion may be wrong about the order of a window's results.
fn is_doubtful(window: &Arc<dyn WindowExpr>) -> bool {
    let is_monotonic = |kind: SetMonotonicity| kind != SetMonotonicity::NotMonotonic;
    if let Some(plain) = window.as_any().downcast_ref::<PlainAggregateWindowExpr>() {
        let aggregate = plain.get_aggregate_expr();
        return is_monotonic(aggregate.set_monotonicity()) && aggregate.field().is_nullable();
    }
    let sliding = window.as_any().downcast_ref::<SlidingAggregateWindowExpr>();
    sliding.is_some_and(|sliding| is_monotonic(sliding.get_aggregate_expr().set_monotonicity()))
}

/// The promises, with each ordering cut to its part on the first `count` columns.
fn without_columns(promised: &EquivalenceProperties, count: usize) -> EquivalenceProperties {
    let mut held = promised.clone();
    held.clear_orderings();
    let is_kept = |by: &Arc<dyn PhysicalExpr>| collect_columns(by).iter().all(|column| column.index() < count);
    let orderings = promised.oeq_class().iter();
    held.add_orderings(orderings.map(|by| by.iter().take_while(|by| is_kept(&by.expr)).cloned().collect::<Vec<_>>()));
    held
}

/// An operator with other expressions of the same values, above which nothing changes. DataFusion knows neither
/// constants nor orders of these expressions, and operators above may rely on them in place of a sort.
pub(super) fn with_promises_of(old: &Arc<dyn ExecutionPlan>, new: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let promised = old.equivalence_properties();
    if new.equivalence_properties().to_string() == promised.to_string() {
        return new;
    }
    Arc::new(HeldExec { promise: Promise::Kept, ..HeldExec::new(new, promised.clone()) })
}

/// What a [`HeldExec`] promises of the order of its input's rows.
#[derive(Clone, Copy, Debug)]
enum Promise {
    /// The part of the input's promises that holds.
    Held,
    /// One order, though the input may have more.
    OneOrder,
    /// Everything except that keys are unique.
    NoKeys,
    /// The promises of the operator that the input has replaced.
    Kept,
}

/// Passes on the rows of an operator that promises too much or too little.
#[derive(Debug)]
pub struct HeldExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    promise: Promise,
}

impl HeldExec {
    fn new(input: Arc<dyn ExecutionPlan>, held: EquivalenceProperties) -> Self {
        let mut properties = PlanProperties::clone(input.properties());
        properties.set_eq_properties(held);
        properties.partitioning = held_partitioning(&input);
        Self { input, properties: Arc::new(properties), promise: Promise::Held }
    }
}

impl DisplayAs for HeldExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if format == DisplayFormatType::TreeRender { Ok(()) } else { f.write_str("HeldExec") }
    }
}

impl ExecutionPlan for HeldExec {
    fn name(&self) -> &'static str {
        "HeldExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
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
        let known = match self.promise {
            Promise::Held => held(&input)?,
            Promise::OneOrder => one_order(&input),
            Promise::NoKeys => Some(without_keys(&input)),
            Promise::Kept => Some(self.properties.equivalence_properties().clone()),
        };
        let held = match known {
            Some(held) => held,
            // A merge, or a window that the rule has turned round: nothing of their promises is wrong.
            None if merges_by(&input).is_some() || windows(&input).is_some() => input.equivalence_properties().clone(),
            // A rule has inserted an operator between them.
            None => match held_below(&input)? {
                Some(held) => held,
                None => without_constants(input.equivalence_properties())?,
            },
        };
        Ok(Arc::new(Self { promise: self.promise, ..Self::new(input, held) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let schema = self.schema();
        let is_found = |column: &Column| is_first(&schema, column.name(), column.index());
        let filters = only(filters, |filter| Ok(collect_columns(filter).iter().all(is_found)))?;
        FilterDescription::from_children(filters, &self.children())
    }
}
