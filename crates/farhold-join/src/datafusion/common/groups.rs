//! Which parts of a plan are computed once.
//!
//! ```text
//!   costly:  final aggregate, hash join, window, sort with a limit, union of such     two plans of them that are equal
//!      │                                                                              in at least two places
//!      ▼
//!   upwards: filter, projection, exchange, limit, …                                   while they are equal in all places
//! ```
//! Scans, filters and projections alone are not shared: scanning rows takes less time than keeping them. Joins that return more rows than they read are not
//! shared either: joins without keys, and joins for which statistics say so. The largest part comes first. Only one copy of a part within it runs, and counts
//! as one place.
//!
//! Parts below a recursive query are not shared: it resets them for each of its iterations, with the rows that they keep.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs, StatisticsContext, displayable};

use super::SameScan;
use super::equal::{are_equal, is_repeatable};
use crate::datafusion::exec::JoinExec;

/// The most parts of one shape with which others are compared; further parts are not shared. A program's own scans do not show their conditions, so each of 500
/// inputs of a UNION ALL may have the same shape.
const ALIKE_MAX: usize = 32;

/// Equal parts of a plan.
pub struct Group {
    /// The numbers of their roots, in the order in which nodes stand in EXPLAIN.
    pub parts: Vec<usize>,
    /// How many of them are executed. The others lie within parts of another group that are not.
    pub copies: usize,
}

/// The groups of parts that are computed once.
pub fn groups(plan: &Arc<dyn ExecutionPlan>, same_scan: SameScan) -> Result<Vec<Group>> {
    let mut nodes = Nodes { all: Vec::new(), same_scan };
    nodes.add(plan, None, false);
    let mut equal = nodes.equal_costly()?;
    equal.sort_by_key(|parts| Reverse(nodes.all[parts[0]].nodes.len()));
    let mut groups = Vec::new();
    let mut idle: Vec<Range<usize>> = Vec::new();
    for mut parts in equal {
        let is_run = |part: &usize| !idle.iter().any(|nodes| nodes.contains(part));
        if parts.iter().filter(|part| is_run(part)).count() < 2 || !nodes.may_be_kept(parts[0])? {
            continue;
        }
        while let Some(above) = nodes.above(&parts)? {
            parts = above;
        }
        let run: Vec<usize> = parts.iter().copied().filter(is_run).collect();
        idle.extend(run[1..].iter().map(|&part| nodes.all[part].nodes.clone()));
        groups.push(Group { copies: run.len(), parts });
    }
    Ok(groups)
}

struct Node<'p> {
    plan: &'p Arc<dyn ExecutionPlan>,
    parent: Option<usize>,
    /// The numbers of all nodes of its plan, beginning with its own.
    nodes: Range<usize>,
    /// Whether it lies below a recursive query.
    is_iterated: bool,
    /// A hash of its operators. Those of equal plans are equal.
    shape: u64,
}

/// The nodes of a plan, by their numbers.
struct Nodes<'p> {
    all: Vec<Node<'p>>,
    same_scan: SameScan,
}

impl<'p> Nodes<'p> {
    /// Adds a plan; returns its shape.
    fn add(&mut self, plan: &'p Arc<dyn ExecutionPlan>, parent: Option<usize>, is_iterated: bool) -> u64 {
        let number = self.all.len();
        self.all.push(Node { plan, parent, nodes: number..number, is_iterated, shape: 0 });
        let is_iterated = is_iterated || plan.is::<RecursiveQueryExec>();
        let children = plan.children();
        let mut hasher = DefaultHasher::new();
        (plan.name(), plan.schema().fields(), children.len()).hash(&mut hasher);
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            filter.predicate().hash(&mut hasher);
        }
        // Scans of the program's own may show what does not distinguish their rows.
        if plan.is::<DataSourceExec>() {
            displayable(plan.as_ref()).one_line().to_string().hash(&mut hasher);
        }
        for child in children {
            self.add(child, Some(number), is_iterated).hash(&mut hasher);
        }
        let shape = hasher.finish();
        let end = self.all.len();
        let node = &mut self.all[number];
        node.shape = shape;
        node.nodes.end = end;
        shape
    }

    /// The costly parts that the plan has at least twice.
    fn equal_costly(&self) -> Result<Vec<Vec<usize>>> {
        let mut found: Vec<Vec<usize>> = Vec::new();
        // The places in `found` of the parts of each shape.
        let mut by_shape: HashMap<u64, Vec<usize>> = HashMap::new();
        for (number, node) in self.all.iter().enumerate() {
            if node.is_iterated || !self.is_costly(number) {
                continue;
            }
            let alike = by_shape.entry(node.shape).or_default();
            match alike.iter().find(|&&at| self.are_equal(found[at][0], number)) {
                Some(&at) => found[at].push(number),
                None if alike.len() < ALIKE_MAX && is_repeatable(node.plan)? => {
                    alike.push(found.len());
                    found.push(vec![number]);
                }
                None => {}
            }
        }
        found.retain(|parts| parts.len() > 1);
        Ok(found)
    }

    fn are_equal(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.all[one], &self.all[other]);
        one.shape == other.shape && are_equal(one.plan, other.plan, self.same_scan)
    }

    fn is_costly(&self, number: usize) -> bool {
        let Node { plan, nodes, .. } = &self.all[number];
        let is_union = plan.is::<UnionExec>() || plan.is::<InterleaveExec>();
        is_costly_alone(plan) || is_union && self.all[nodes.clone()].iter().any(|below| is_costly_alone(below.plan))
    }

    /// Whether a part has at most as many rows as its scans, according to statistics. Aggregates are not checked: they keep their rows in any case.
    fn may_be_kept(&self, part: usize) -> Result<bool> {
        if self.all[part].plan.is::<AggregateExec>() {
            return Ok(true);
        }
        let rows = |number: usize| -> Result<Option<usize>> {
            let plan = self.all[number].plan.as_ref();
            let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new())?;
            Ok(statistics.num_rows.get_value().copied())
        };
        let Some(made) = rows(part)? else { return Ok(true) };
        let mut read = 0_usize;
        for node in self.all[part].nodes.clone().filter(|&node| self.all[node].nodes.len() == 1) {
            let Some(scanned) = rows(node)? else { return Ok(true) };
            read = read.saturating_add(scanned);
        }
        Ok(made <= read)
    }

    /// The nodes above equal parts, if they are equal parts too. A costly one is in a group of its own.
    fn above(&self, parts: &[usize]) -> Result<Option<Vec<usize>>> {
        let Some(above) = parts.iter().map(|&part| self.all[part].parent).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let plan = self.all[above[0]].plan;
        let is_equal = plan.children().len() == 1
            && !self.is_costly(above[0])
            && above[1..].iter().all(|&other| self.are_equal(above[0], other));
        Ok((is_equal && is_repeatable(plan)?).then_some(above))
    }
}

fn is_costly_alone(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return aggregate.mode().output_mode() == AggregateOutputMode::Final;
    }
    plan.is::<JoinExec>()
        || plan.is::<WindowAggExec>()
        || plan.is::<BoundedWindowAggExec>()
        || plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_some())
}
