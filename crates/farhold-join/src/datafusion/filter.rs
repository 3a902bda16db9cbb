//! The filter that the build side gives to the scans of the probe side: bounds of each key; the keys themselves if they
//! are few; and the set of values if rows are tested one by one.
//!
//! It is published once, when every build row has been seen. An incomplete filter would lose rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::{Accumulator, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, InListExpr, IsNullExpr, lit};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::NullEquality;

use super::members::{IsMember, Members};
use super::sieve::SieveExec;

/// Whether a scan of the caller's tests a key of its dynamic filters by [`Members`] before it decodes a row.
pub type TestsKeys = fn(&Arc<dyn ExecutionPlan>) -> bool;

/// The filter of a join that some operator of the probe side has requested.
#[derive(Debug, Clone)]
pub struct Filter {
    dynamic: Arc<DynamicFilterPhysicalExpr>,
    build_keys: Vec<PhysicalExprRef>,
    probe_keys: Vec<PhysicalExprRef>,
    build_schema: SchemaRef,
    probe_schema: SchemaRef,
    /// Probe rows with a null key must pass, whatever the build side has.
    needs_nulls: bool,
    /// Probe rows with a null key must pass if the build side has one.
    nulls_match: bool,
    list_rows_max: usize,
    /// Whether an operator tests every row by it: for that, bits of the values are made.
    pub tests_rows: bool,
}

/// A summary of some build rows.
pub struct Seen {
    bounds: Vec<Option<(MinAccumulator, MaxAccumulator)>>,
    /// Key values, for a single key of not too many rows.
    list: Option<Vec<ArrayRef>>,
    rows: usize,
    has_null: bool,
}

impl Filter {
    /// The join's filter, if pushdown has left one and the probe side below holds it.
    pub fn of(planned: &HashJoinExec, tests_keys: TestsKeys, config: &ConfigOptions) -> Result<Option<Self>> {
        let filter = planned.dynamic_expressions_produced().into_iter().next();
        let Some(filter) = filter.and_then(|filter| Arc::downcast::<DynamicFilterPhysicalExpr>(filter).ok()) else {
            return Ok(None);
        };
        let id = filter.expression_id();
        if !holds(planned.right(), id, |_| true)? {
            return Ok(None);
        }
        let tests =
            |node: &Arc<dyn ExecutionPlan>| node.is::<FilterExec>() || node.is::<SieveExec>() || tests_keys(node);
        let tests_rows = holds(planned.right(), id, tests)?;
        let (build_keys, probe_keys) = planned.on().iter().cloned().unzip();
        Ok(Some(Self {
            dynamic: filter,
            build_keys,
            probe_keys,
            build_schema: planned.left().schema(),
            probe_schema: planned.right().schema(),
            needs_nulls: planned.null_aware,
            nulls_match: planned.null_equality() == NullEquality::NullEqualsNull,
            list_rows_max: config.optimizer.hash_join_inlist_pushdown_max_distinct_values,
            tests_rows,
        }))
    }

    /// The state before any row.
    pub fn begin(&self) -> Result<Seen> {
        let bounds = self.build_keys.iter().map(|key| {
            let kind = key.data_type(&self.build_schema)?;
            if !is_ordered(&kind) {
                return Ok(None);
            }
            Ok(Some((MinAccumulator::try_new(&kind)?, MaxAccumulator::try_new(&kind)?)))
        });
        let list = (self.build_keys.len() == 1 && self.list_rows_max > 0).then(Vec::new);
        Ok(Seen { bounds: bounds.collect::<Result<_>>()?, list, rows: 0, has_null: false })
    }

    /// Adds build rows to the summary.
    pub fn see(&self, seen: &mut Seen, batch: &RecordBatch) -> Result<()> {
        seen.rows += batch.num_rows();
        for (key, bounds) in self.build_keys.iter().zip(&mut seen.bounds) {
            let values = key.evaluate(batch)?.into_array(batch.num_rows())?;
            seen.has_null |= values.logical_null_count() > 0;
            if let Some((min, max)) = bounds {
                min.update_batch(std::slice::from_ref(&values))?;
                max.update_batch(std::slice::from_ref(&values))?;
            }
            if let Some(list) = &mut seen.list {
                list.push(values);
            }
        }
        if seen.rows > self.list_rows_max {
            seen.list = None;
        }
        Ok(())
    }

    /// Publishes the filter of all build rows, which may have been seen in several parts. `members`: for each key, its values if they are known.
    pub fn publish(&self, parts: Vec<Seen>, members: &[Option<Arc<Members>>]) -> Result<()> {
        if let Some(filter) = self.expression(parts, members)? {
            self.dynamic.update(filter)?;
        }
        self.dynamic.mark_complete();
        Ok(())
    }

    fn expression(
        &self,
        mut parts: Vec<Seen>,
        members: &[Option<Arc<Members>>],
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let has_null = parts.iter().any(|part| part.has_null);
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let mut conditions: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        for (at, key) in self.probe_keys.iter().enumerate() {
            let Some((mut min, mut max)) = parts.first_mut().and_then(|part| part.bounds[at].take()) else { continue };
            for part in &mut parts[1..] {
                if let Some((other_min, other_max)) = &mut part.bounds[at] {
                    min.update_batch(&[other_min.evaluate()?.to_array()?])?;
                    max.update_batch(&[other_max.evaluate()?.to_array()?])?;
                }
            }
            let (min, max) = (min.evaluate()?, max.evaluate()?);
            if min.is_null() {
                // No build row has this key, so no probe row has a match.
                conditions = vec![lit(false)];
                break;
            }
            for (operator, bound) in [(Operator::GtEq, min), (Operator::LtEq, max)] {
                conditions.push(Arc::new(BinaryExpr::new(Arc::clone(key), operator, lit(bound))));
            }
        }
        let lists: Option<Vec<Vec<ArrayRef>>> = parts.into_iter().map(|part| part.list).collect();
        if let Some(lists) = lists.filter(|_| rows > 0 && rows <= self.list_rows_max) {
            let arrays: Vec<&dyn Array> = lists.iter().flatten().map(AsRef::as_ref).collect();
            let key = Arc::clone(&self.probe_keys[0]);
            conditions.push(Arc::new(InListExpr::try_new_from_array(
                key,
                concat(&arrays)?,
                false,
                &self.probe_schema,
            )?));
        }
        for (key, members) in self.probe_keys.iter().zip(members) {
            if let Some(members) = members {
                conditions.push(Arc::new(IsMember::new(Arc::clone(key), members)));
            }
        }
        let and = |one, other| Arc::new(BinaryExpr::new(one, Operator::And, other)) as Arc<dyn PhysicalExpr>;
        let Some(mut filter) = conditions.into_iter().reduce(and) else { return Ok(None) };
        if self.needs_nulls || (self.nulls_match && has_null) {
            for key in &self.probe_keys {
                if key.nullable(&self.probe_schema)? {
                    let is_null = Arc::new(IsNullExpr::new(Arc::clone(key)));
                    filter = Arc::new(BinaryExpr::new(is_null, Operator::Or, filter));
                }
            }
        }
        Ok(Some(filter))
    }
}

/// Whether the accumulators find the bounds of a type, and its comparison agrees with the join's equality.
fn is_ordered(kind: &DataType) -> bool {
    !kind.is_floating() && (kind.is_primitive() || kind.is_string() || matches!(kind, DataType::Boolean))
}

/// Whether an operator in `plan` that counts holds the expression.
fn holds(
    plan: &Arc<dyn ExecutionPlan>,
    id: Option<u64>,
    counts: impl Fn(&Arc<dyn ExecutionPlan>) -> bool,
) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        node.apply_expressions(&mut |root| {
            root.apply(|expression| {
                found |= id.is_some() && expression.expression_id() == id && counts(node);
                Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
