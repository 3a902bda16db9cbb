//! Checks, while a plan runs, the promises that operators make about their rows.
//!
//! DataFusion's planner omits a sort, a repartitioning or a second aggregate where an operator below promises enough. A broken promise makes the operator above
//! return wrong answers, sometimes and far from the cause. In builds with debug assertions every operator of every plan is therefore checked. An operator that
//! breaks a promise fails its query, and the error names it.
//!
//! | promise | how it is checked |
//! |---|---|
//! | schema, columns without nulls | of every batch |
//! | hash partitioning | every row by the function of DataFusion's `RepartitionExec`, on which joins by partition rely |
//! | orderings | every row with the one before it |
//! | constants, columns that are equal | every row with the first, and column with column |
//! | row counts that are called exact, limits | at the end of each partition and of all partitions |
//!
//! Not checked, since DataFusion's operators do not keep them: constants and equalities above volatile functions (it
//! takes `nextval('s')` for a constant) and of scans of files (they state conditions by which they only skip parts);
//! exact counts above scans with a limit, or with a filter that arrives while they run. Nor orderings by volatile
//! functions, which give other values when they are computed again. A promise that
//! [`HeldRule`](super::held::HeldRule) takes back is not checked at the operator that made it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{ScalarValue, Statistics, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::equivalence::AcrossPartitions;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, UnKnownColumn};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExprRef};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{MetricsSet, Time};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::repartition::BatchPartitioner;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties, StatisticsArgs, StatisticsContext,
};
use futures::{StreamExt, stream};

use super::held::{held, held_partitioning};
use super::memory::lock;

/// Watches every operator of a plan. It belongs behind all other rules; in builds with debug assertions
/// [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct PromisesRule;

impl PhysicalOptimizerRule for PromisesRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| Ok(Transformed::yes(Arc::new(Watched::new(node)) as Arc<dyn ExecutionPlan>))).data()
    }

    fn name(&self) -> &'static str {
        "farhold_promises"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// An operator that is checked. In plans it is shown as the operator below.
#[derive(Debug)]
struct Watched {
    plan: Arc<dyn ExecutionPlan>,
    ended: Arc<Mutex<Ended>>,
}

/// What is known of the partitions that have ended.
#[derive(Debug, Default)]
struct Ended {
    rows: Vec<Option<usize>>,
    /// Values of the constants that are the same in all partitions.
    uniform: HashMap<String, OwnedRow>,
}

impl Watched {
    fn new(plan: Arc<dyn ExecutionPlan>) -> Self {
        Self { plan, ended: Arc::default() }
    }

    fn again(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self::new(plan))
    }
}

impl DisplayAs for Watched {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        self.plan.fmt_as(format, f)
    }
}

impl ExecutionPlan for Watched {
    fn name(&self) -> &str {
        self.plan.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.plan.as_ref())
    }

    fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn dynamic_expressions_produced(&self) -> Vec<PhysicalExprRef> {
        self.plan.dynamic_expressions_produced()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.plan.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.plan.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.plan.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::again(Arc::clone(&self.plan).replace_children(children, options)?))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::again(Arc::clone(&self.plan).reset_state()?))
    }

    fn with_new_state(&self, state: Arc<dyn std::any::Any + Send + Sync>) -> Option<Arc<dyn ExecutionPlan>> {
        self.plan.with_new_state(state).map(Self::again)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.plan.execute(partition, context)?;
        let checks = Checks::new(&self.plan, partition, Arc::clone(&self.ended))?;
        let watched = stream::try_unfold((input, checks), |(mut input, mut checks)| async move {
            match input.next().await.transpose()? {
                Some(batch) => {
                    checks.see(&batch)?;
                    Ok(Some((batch, (input, checks))))
                }
                None => checks.end().map(|()| None),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), watched)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.plan.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.plan.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.plan.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.plan.fetch()
    }
}

/// The checks of a partition while it runs.
struct Checks {
    plan: Arc<dyn ExecutionPlan>,
    partition: usize,
    /// Computes the partition of a row.
    partitioner: Option<BatchPartitioner>,
    orderings: Vec<Ordered>,
    constants: Vec<Constant>,
    equal: Vec<Vec<Comparable>>,
    rows: usize,
    ended: Arc<Mutex<Ended>>,
}

impl Checks {
    fn new(plan: &Arc<dyn ExecutionPlan>, partition: usize, ended: Arc<Mutex<Ended>>) -> Result<Self> {
        let (schema, equivalences) = (plan.schema(), plan.equivalence_properties());
        // The operator above takes back a promise that does not hold.
        let partitioner = match held_partitioning(plan) {
            Partitioning::Hash(by, count) if count > 1 && by.iter().all(is_here) => {
                Some(BatchPartitioner::new_hash_partitioner(by, count, Time::new())?)
            }
            _ => None,
        };
        let equivalences = held(plan)?.unwrap_or_else(|| equivalences.clone());
        let mut orderings = Vec::new();
        for ordering in equivalences.oeq_class().iter() {
            if ordering.iter().any(|by| is_volatile(&by.expr)) {
                continue;
            }
            let by = ordering.iter().map(|by| (Arc::clone(&by.expr), by.options));
            orderings.extend(Comparable::new(by, &schema)?.map(|by| Ordered { by, last: None }));
        }
        let (mut constants, mut equal) = (Vec::new(), Vec::new());
        let plain = |expression: &PhysicalExprRef| (Arc::clone(expression), SortOptions::default());
        let has_volatile = holds(plan, |expression| expression.is_volatile_node())?;
        let is_pruned = plan.name() == "DataSourceExec";
        let is_exempt = has_volatile || is_pruned;
        let equivalences = if is_exempt { EquivalenceProperties::new(plan.schema()) } else { equivalences };
        for class in equivalences.eq_group().iter() {
            let mut members = Vec::new();
            for expression in class.iter() {
                members.extend(Comparable::new([plain(expression)], &schema)?);
            }
            members.retain({
                let kind = members.first().map(|first| first.kinds.clone());
                move |member| Some(&member.kinds) == kind.as_ref()
            });
            if members.len() > 1 {
                equal.push(members);
            }
        }
        for constant in equivalences.constants() {
            let Some(by) = Comparable::new([plain(&constant.expr)], &schema)? else { continue };
            let value = match &constant.across_partitions {
                // DataFusion may give a constant the value of one that differs in its time zone alone.
                AcrossPartitions::Uniform(Some(value)) if !has_other_zone(value, &by.kinds[0]) => {
                    let value = value.cast_to(&by.kinds[0])?.to_array()?;
                    Some(by.converter.convert_columns(&[value])?.row(0).owned())
                }
                _ => None,
            };
            let is_uniform = matches!(constant.across_partitions, AcrossPartitions::Uniform(_));
            constants.push(Constant { by, value, is_uniform });
        }
        Ok(Self { plan: Arc::clone(plan), partition, partitioner, orderings, constants, equal, rows: 0, ended })
    }

    /// The error that names the operator and its broken promise.
    fn broken<T>(&self, promise: impl fmt::Display) -> Result<T> {
        let shown = datafusion::physical_plan::displayable(self.plan.as_ref()).one_line().to_string();
        internal_err!("partition {} of {} is not as promised: {promise}", self.partition, shown.trim())
    }

    fn see(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        if let Some(fetch) = self.plan.fetch().filter(|&fetch| self.rows > fetch) {
            return self.broken(format!("more than {fetch} rows"));
        }
        let schema = self.plan.schema();
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            // Rows of a placeholder are never read.
            if self.plan.is::<PlaceholderRowExec>() {
                break;
            }
            if field.data_type() != column.data_type() {
                return self.broken(format!("column {field} is of type {}", column.data_type()));
            }
            if !field.is_nullable() && column.logical_null_count() > 0 {
                return self.broken(format!("null in column {}", field.name()));
            }
        }
        if batch.num_columns() != schema.fields().len() {
            return self.broken(format!("{} columns", batch.num_columns()));
        }
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if let Some(mut partitioner) = self.partitioner.take() {
            let (mut strangers, partition) = (0, self.partition);
            partitioner.partition(batch.clone(), |to, rows| {
                strangers += if to == partition { 0 } else { rows.num_rows() };
                Ok(())
            })?;
            self.partitioner = Some(partitioner);
            if strangers > 0 {
                let of = batch.num_rows();
                return self.broken(format!("by {} {strangers} rows of {of}", self.plan.output_partitioning()));
            }
        }
        let mut orderings = std::mem::take(&mut self.orderings);
        for ordering in &mut orderings {
            if !ordering.see(batch)? {
                return self.broken(format!("rows ordered by {}", ordering.by));
            }
        }
        self.orderings = orderings;
        let mut constants = std::mem::take(&mut self.constants);
        for constant in &mut constants {
            if !constant.see(batch)? {
                return self.broken(format!("{} is one value", constant.by));
            }
        }
        self.constants = constants;
        for members in &self.equal {
            let first = members[0].rows(batch)?;
            for other in &members[1..] {
                if members[0].converter.convert_columns(&other.columns(batch)?)?.iter().ne(first.iter()) {
                    return self.broken(format!("{} equals {other}", members[0]));
                }
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let partitions = self.plan.output_partitioning().partition_count();
        let all = {
            let mut ended = lock(&self.ended);
            ended.rows.resize(partitions, None);
            ended.rows[self.partition] = Some(self.rows);
            for constant in self.constants.iter().filter(|constant| constant.is_uniform) {
                if let Some(value) = &constant.value {
                    let first = ended.uniform.entry(constant.by.to_string()).or_insert_with(|| value.clone());
                    if first != value {
                        return self.broken(format!("{} is one value in all partitions", constant.by));
                    }
                }
            }
            let all: Option<usize> = ended.rows.iter().copied().sum();
            if all.is_some() {
                *ended = Ended::default();
            }
            all
        };
        // DataFusion's exact counts ignore the rows that a filter removes later.
        let is_filtered = holds(&self.plan, |expression| expression.is::<DynamicFilterPhysicalExpr>())?;
        // They also ignore the rows that a limit removes in each partition.
        let is_cut = self.plan.exists(|node| Ok(node.children().is_empty() && node.fetch().is_some()))?;
        for (of, rows) in [(Some(self.partition), Some(self.rows)), (None, all)] {
            let Some(rows) = rows.filter(|_| !is_filtered) else { continue };
            let args = StatisticsArgs::new().with_partition(of);
            let promised = StatisticsContext::new().compute(self.plan.as_ref(), &args)?.num_rows;
            if let Precision::Exact(promised) = promised
                && promised != rows
                && !(is_cut && promised > rows)
            {
                return self.broken(format!("{promised} rows exactly, of {of:?}; found {rows}"));
            }
        }
        Ok(())
    }
}

/// Whether the plan contains an expression of this kind.
fn holds(plan: &Arc<dyn ExecutionPlan>, kind: impl Fn(&PhysicalExprRef) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        node.apply_expressions(&mut |root| {
            found |= root.exists(|expression| Ok(kind(expression)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether a value and a type are timestamps of which one has a time zone.
fn has_other_zone(value: &ScalarValue, kind: &DataType) -> bool {
    let (DataType::Timestamp(_, of_value), DataType::Timestamp(_, of_kind)) = (value.data_type(), kind) else {
        return false;
    };
    of_value.is_some() != of_kind.is_some()
}

/// Whether all columns of an expression still exist; a promise may name one that a projection has left out.
fn is_here(expression: &PhysicalExprRef) -> bool {
    !expression.exists(|part| Ok(part.is::<UnKnownColumn>())).unwrap_or(false)
}

/// Whether an expression has other values each time that it is computed.
fn is_volatile(expression: &PhysicalExprRef) -> bool {
    expression.exists(|part| Ok(part.is_volatile_node())).unwrap_or(true)
}

/// Expressions whose values can be compared row by row.
struct Comparable {
    by: Vec<PhysicalExprRef>,
    kinds: Vec<DataType>,
    converter: RowConverter,
}

impl Comparable {
    /// `None` where Arrow's row format does not support a type, or a column no longer exists.
    fn new(by: impl IntoIterator<Item = (PhysicalExprRef, SortOptions)>, schema: &Schema) -> Result<Option<Self>> {
        let (mut expressions, mut kinds, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        for (expression, options) in by {
            if !is_here(&expression) {
                return Ok(None);
            }
            let kind = expression.data_type(schema)?;
            fields.push(SortField::new_with_options(kind.clone(), options));
            kinds.push(kind);
            expressions.push(expression);
        }
        if !RowConverter::supports_fields(&fields) {
            return Ok(None);
        }
        Ok(Some(Self { by: expressions, kinds, converter: RowConverter::new(fields)? }))
    }

    fn columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.by.iter().map(|by| by.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    fn rows(&self, batch: &RecordBatch) -> Result<arrow::row::Rows> {
        Ok(self.converter.convert_columns(&self.columns(batch)?)?)
    }
}

impl fmt::Display for Comparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by: Vec<String> = self.by.iter().map(ToString::to_string).collect();
        f.write_str(&by.join(", "))
    }
}

/// An ordering, and the row before.
struct Ordered {
    by: Comparable,
    last: Option<OwnedRow>,
}

impl Ordered {
    fn see(&mut self, batch: &RecordBatch) -> Result<bool> {
        let rows = self.by.rows(batch)?;
        let follows = self.last.as_ref().is_none_or(|last| last.row() <= rows.row(0));
        self.last = Some(rows.row(rows.num_rows() - 1).owned());
        Ok(follows && (1..rows.num_rows()).all(|row| rows.row(row - 1) <= rows.row(row)))
    }
}

/// A constant, and its value once that is known.
struct Constant {
    by: Comparable,
    value: Option<OwnedRow>,
    /// Whether all partitions must have the same value.
    is_uniform: bool,
}

impl Constant {
    fn see(&mut self, batch: &RecordBatch) -> Result<bool> {
        let rows = self.by.rows(batch)?;
        let value = self.value.get_or_insert_with(|| rows.row(0).owned());
        Ok(rows.iter().all(|row| row == value.row()))
    }
}

#[cfg(test)]
mod tests;
