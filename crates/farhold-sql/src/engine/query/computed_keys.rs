//! GROUP BY, ORDER BY and DISTINCT ON a correlated subquery, and windows by a subquery or by a volatile function such
//! as `random()`.
//!
//! DataFusion joins correlated subqueries below a projection or a filter, but only some of those in an aggregate, and
//! none below a sort. It computes a window's keys again in each operator that needs rows ordered or partitioned by
//! them. And it cannot sort rows of which it needs no columns. So a projection below computes such keys.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, Expr, LogicalPlan, LogicalPlanBuilder, Projection, Sort, Window,
};
use datafusion::optimizer::AnalyzerRule;

use super::correlated::{outer_columns, subquery};
use super::laterals::replaced;

/// See the module.
#[derive(Debug)]
pub(super) struct ComputedKeys;

impl AnalyzerRule for ComputedKeys {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| match plan {
            LogicalPlan::Aggregate(aggregate) => grouped(aggregate),
            LogicalPlan::Distinct(Distinct::On(distinct)) => distinct_on(distinct),
            LogicalPlan::Sort(sort) => sorted(sort),
            LogicalPlan::Window(window) => windowed(window),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "computed_keys"
    }
}

fn is_correlated(key: &Expr) -> Result<bool> {
    key.exists(|inner| match subquery(inner) {
        Some(asked) => Ok(!outer_columns(&asked.subquery)?.is_empty()),
        None => Ok(false),
    })
}

/// Keys that a projection computes, each only once.
#[derive(Default)]
struct Keys(Vec<Expr>);

impl Keys {
    fn name(index: usize) -> String {
        format!("__key_{index}")
    }

    /// The key, or the column that replaces it.
    fn taken(&mut self, key: Expr) -> Result<Expr> {
        if matches!(key, Expr::GroupingSet(_)) || !is_correlated(&key)? {
            return Ok(key);
        }
        Ok(self.column(key))
    }

    /// The column that replaces a key.
    fn column(&mut self, key: Expr) -> Expr {
        let index = self.0.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.0.push(key);
            self.0.len() - 1
        });
        Expr::Column(Column::new_unqualified(Self::name(index)))
    }

    /// The keys, with their names.
    fn named(self) -> impl Iterator<Item = Expr> {
        self.0.into_iter().enumerate().map(|(index, key)| key.alias(Self::name(index)))
    }

    /// A projection of a query's items and the keys. The keys refer to the columns of the items; the result refers to
    /// their input.
    fn among_items(mut self, items: &Projection) -> Result<Arc<LogicalPlan>> {
        let values: Vec<Expr> = items.expr.iter().map(|item| item.clone().unalias_nested().data).collect();
        for key in &mut self.0 {
            *key = replaced(key.clone(), &items.schema, &values)?;
        }
        let wanted = items.expr.iter().cloned().chain(self.named());
        Ok(Arc::new(LogicalPlanBuilder::from(Arc::clone(&items.input)).project(wanted)?.build()?))
    }

    /// The rows of `input` with the keys added.
    fn computed(self, input: &Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
        let columns = input.schema().columns().into_iter().map(Expr::Column);
        let plan = LogicalPlanBuilder::from(Arc::clone(input)).project(columns.chain(self.named()))?.build()?;
        Ok(Arc::new(plan))
    }
}

fn grouped(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let mut keys = Keys::default();
    let by = aggregate.group_expr.iter().map(|key| keys.taken(key.clone())).collect::<Result<Vec<Expr>>>()?;
    if keys.0.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let names = Arc::clone(&aggregate.schema);
    let computed = Aggregate::try_new(keys.computed(&aggregate.input)?, by, aggregate.aggr_expr)?;
    let columns = computed.schema.columns().into_iter().zip(names.iter());
    let items: Vec<Expr> = columns
        .map(|(column, (qualifier, field))| Expr::Column(column).alias_qualified(qualifier.cloned(), field.name()))
        .collect();
    let plan = LogicalPlanBuilder::from(LogicalPlan::Aggregate(computed)).project(items)?.build()?;
    Ok(Transformed::yes(plan))
}

fn sorted(mut sort: Sort) -> Result<Transformed<LogicalPlan>> {
    let mut keys = Keys::default();
    for by in &mut sort.expr {
        by.expr = keys.taken(by.expr.clone())?;
    }
    if keys.0.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Sort(sort)));
    }
    let wanted = sort.input.schema().columns().into_iter().map(Expr::Column);
    sort.input = match sort.input.as_ref() {
        LogicalPlan::Projection(items) => keys.among_items(items)?,
        _ => keys.computed(&sort.input)?,
    };
    let plan = LogicalPlanBuilder::from(LogicalPlan::Sort(sort)).project(wanted)?.build()?;
    Ok(Transformed::yes(plan))
}

fn windowed(window: Window) -> Result<Transformed<LogicalPlan>> {
    let mut keys = Keys::default();
    let has_subquery = |key: &Expr| key.exists(|inner| Ok(subquery(inner).is_some())).unwrap_or(false);
    let mut computed = |key: &mut Expr| {
        if key.is_volatile() || has_subquery(key) {
            let taken = std::mem::take(key);
            *key = keys.column(taken);
        }
    };
    let names = NamePreserver::new_for_projection();
    let mut windows = Vec::with_capacity(window.window_expr.len());
    for expr in &window.window_expr {
        let name = names.save(expr);
        let with_columns = expr.clone().transform_up(|mut inner| {
            if let Expr::WindowFunction(function) = &mut inner {
                function.params.partition_by.iter_mut().for_each(&mut computed);
                function.params.order_by.iter_mut().for_each(|by| computed(&mut by.expr));
            }
            Ok(Transformed::yes(inner))
        });
        windows.push(name.restore(with_columns.data()?));
    }
    if keys.0.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    let wanted: Vec<Expr> = window.schema.columns().into_iter().map(Expr::Column).collect();
    let plan = LogicalPlan::Window(Window::try_new(windows, keys.computed(&window.input)?)?);
    Ok(Transformed::yes(LogicalPlanBuilder::from(plan).project(wanted)?.build()?))
}

fn distinct_on(distinct: DistinctOn) -> Result<Transformed<LogicalPlan>> {
    let mut keys = Keys::default();
    let on = distinct.on_expr.iter().map(|key| keys.taken(key.clone())).collect::<Result<Vec<Expr>>>()?;
    let mut by = distinct.sort_expr.clone();
    for sort in by.iter_mut().flatten() {
        sort.expr = keys.taken(sort.expr.clone())?;
    }
    if keys.0.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Distinct(Distinct::On(distinct))));
    }
    let distinct = DistinctOn::try_new(on, distinct.select_expr, by, keys.computed(&distinct.input)?)?;
    Ok(Transformed::yes(LogicalPlan::Distinct(Distinct::On(distinct))))
}
