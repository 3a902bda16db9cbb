//! Computes text functions below joins.
//!
//! `sum(CASE WHEN i_data LIKE 'P%' ...)` above a join of three million order lines with a hundred thousand items computes LIKE three million times, and the
//! join copies as many texts. LIKE of the items alone is computed once per item, and the join copies a boolean. This rule therefore computes such functions
//! where their table is read, if few rows of it are joined with many of another table; both are counted behind their filters. Only functions that cannot fail are moved: below a join they are
//! also computed for rows that the join drops, and the query must not fail because of those. A function is moved only below joins that do not change the values
//! of its side: no value becomes NULL there.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ScalarValue};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Like, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Aggregate, Expr, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Projection};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::engine::scan::FarTable;

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The table with the most rows must have this many times the rows of the table whose function is moved, because the join may drop rows.
const TIMES_ROWS: usize = 2;

/// The rules, with this one before the rule that drops unused columns, because the texts are then unused.
pub(super) fn before_columns(mut rules: Vec<Rule>) -> Vec<Rule> {
    if let Some(columns) = rules.iter().position(|rule| rule.name() == "optimize_projections") {
        rules.insert(columns, Arc::new(Early));
    }
    rules
}

/// See the module.
#[derive(Debug)]
struct Early;

impl OptimizerRule for Early {
    fn name(&self) -> &'static str {
        "early_functions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Aggregate(aggregate) => aggregated(aggregate, config),
            LogicalPlan::Projection(projection) => projected(projection, config),
            LogicalPlan::Join(join) => joined(join, config),
            other => Ok(Transformed::no(other)),
        }
    }
}

fn projected(projection: Projection, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut early = Moved::below(&projection.input, config);
    let exprs = early.taken(projection.expr.clone())?;
    let Some(input) = early.input()? else { return Ok(Transformed::no(LogicalPlan::Projection(projection))) };
    Ok(Transformed::yes(LogicalPlanBuilder::from(input).project(exprs)?.build()?))
}

fn aggregated(aggregate: Aggregate, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let mut early = Moved::below(&aggregate.input, config);
    let keys = early.without_names(aggregate.group_expr.clone())?;
    let values = early.taken(aggregate.aggr_expr.clone())?;
    let Some(input) = early.input()? else { return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate))) };
    let computed = Aggregate::try_new(Arc::new(input), keys, values)?;
    // A key is now a column, and has that column's name.
    let columns = computed.schema.columns().into_iter().zip(aggregate.schema.iter());
    let named: Vec<Expr> = columns
        .map(|(column, (qualifier, field))| {
            let is_same = column.relation.as_ref() == qualifier && column.name == *field.name();
            let column = Expr::Column(column);
            if is_same { column } else { column.alias_qualified(qualifier.cloned(), field.name()) }
        })
        .collect();
    let computed = LogicalPlan::Aggregate(computed);
    if named.iter().all(|expr| matches!(expr, Expr::Column(_))) {
        return Ok(Transformed::yes(computed));
    }
    Ok(Transformed::yes(LogicalPlanBuilder::from(computed).project(named)?.build()?))
}

/// Moves functions in the keys of a join below the joins of their side.
fn joined(join: Join, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut sides = [Moved::below(&join.left, config), Moved::below(&join.right, config)];
    let [left, right] = &mut sides;
    let (of_left, of_right): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
    let on = left.without_names(of_left)?.into_iter().zip(right.without_names(of_right)?).collect();
    let [left, right] = [left.input()?, right.input()?];
    if left.is_none() && right.is_none() {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    // The added columns end here: the operators above expect the previous columns.
    let wanted: Vec<Expr> = join.schema.columns().into_iter().map(Expr::Column).collect();
    let [left, right] =
        [(left, &join.left), (right, &join.right)].map(|(new, old)| new.map_or_else(|| Arc::clone(old), Arc::new));
    let with_keys = Join::try_new(
        left,
        right,
        on,
        join.filter.clone(),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    Ok(Transformed::yes(LogicalPlanBuilder::from(LogicalPlan::Join(with_keys)).project(wanted)?.build()?))
}

/// The functions that are moved below the joins of an operator's input.
struct Moved<'a> {
    input: &'a Arc<LogicalPlan>,
    config: &'a dyn OptimizerConfig,
    /// The rows of the table of the input that has the most, once they have been needed.
    rows_max: Option<usize>,
    /// Each function with the name of its column.
    functions: Vec<(Expr, String)>,
}

impl<'a> Moved<'a> {
    fn below(input: &'a Arc<LogicalPlan>, config: &'a dyn OptimizerConfig) -> Self {
        Self { input, config, rows_max: None, functions: Vec::new() }
    }

    /// The expressions with columns in place of the moved functions. They keep their names.
    fn taken(&mut self, exprs: Vec<Expr>) -> Result<Vec<Expr>> {
        let names = NamePreserver::new_for_projection();
        let named = exprs.iter().map(|expr| names.save(expr)).collect::<Vec<_>>();
        let taken = self.without_names(exprs)?;
        Ok(named.into_iter().zip(taken).map(|(name, expr)| name.restore(expr)).collect())
    }

    fn without_names(&mut self, exprs: Vec<Expr>) -> Result<Vec<Expr>> {
        if !has_join(self.input) {
            return Ok(exprs);
        }
        exprs.into_iter().map(|expr| Ok(expr.transform_down(|inner| Ok(self.column_for(inner)))?.data)).collect()
    }

    fn column_for(&mut self, expr: Expr) -> Transformed<Expr> {
        if !cannot_fail(&expr) || !self.is_of_a_small_table(&expr) {
            return Transformed::no(expr);
        }
        let known = self.functions.iter().find(|(known, _)| *known == expr).map(|(_, name)| name.clone());
        let name = known.unwrap_or_else(|| {
            let name = self.name_of(&expr);
            self.functions.push((expr, name.clone()));
            name
        });
        Transformed::new(Expr::Column(Column::new_unqualified(name)), true, TreeNodeRecursion::Jump)
    }

    /// The name is the same for the same function, so that equal parts of a plan stay equal.
    fn name_of(&self, function: &Expr) -> String {
        let name = format!("__early {}", function.schema_name());
        let is_free = self.input.schema().fields().iter().all(|field| *field.name() != name);
        if is_free { name } else { self.config.alias_generator().next("__early") }
    }

    fn is_of_a_small_table(&mut self, expr: &Expr) -> bool {
        let columns = expr.column_refs();
        if columns.is_empty() {
            return false;
        }
        let (input, config) = (self.input, self.config);
        let Some(small) = leaf_of(input, &columns).and_then(|leaf| rows(leaf, config)) else { return false };
        let rows_max = || leaves(input).into_iter().filter_map(|leaf| rows(leaf, config)).max().unwrap_or(0);
        small.saturating_mul(TIMES_ROWS) <= *self.rows_max.get_or_insert_with(rows_max)
    }

    /// The input with the functions as columns; `None` if no function is moved.
    fn input(&self) -> Result<Option<LogicalPlan>> {
        if self.functions.is_empty() {
            return Ok(None);
        }
        let mut input = self.input.as_ref().clone();
        for (function, name) in &self.functions {
            input = computed_in(&input, function, &function.column_refs(), name)?;
        }
        Ok(Some(input))
    }
}

/// Adds a function's column to the leaf that has its columns.
#[recursive::recursive]
fn computed_in(plan: &LogicalPlan, function: &Expr, columns: &HashSet<&Column>, name: &str) -> Result<LogicalPlan> {
    let Some(side) = side_of(plan, columns) else {
        let all = plan.schema().columns().into_iter().map(Expr::Column);
        let function = function.clone().alias(name);
        return LogicalPlanBuilder::from(plan.clone()).project(all.chain([function]))?.build();
    };
    let mut inputs: Vec<LogicalPlan> = plan.inputs().into_iter().cloned().collect();
    inputs[side] = computed_in(&inputs[side], function, columns, name)?;
    plan.with_new_exprs(plan.expressions(), inputs)
}

/// The part of a plan without joins that has all these columns and whose values reach the top unchanged.
#[recursive::recursive]
fn leaf_of<'a>(plan: &'a LogicalPlan, columns: &HashSet<&Column>) -> Option<&'a LogicalPlan> {
    if !columns.iter().all(|column| plan.schema().has_column(column)) {
        return None;
    }
    match side_of(plan, columns) {
        Some(side) => leaf_of(plan.inputs()[side], columns),
        None => (!has_join(plan)).then_some(plan),
    }
}

/// The input of a join, or of a filter above one, whose columns all pass through unchanged.
fn side_of(plan: &LogicalPlan, columns: &HashSet<&Column>) -> Option<usize> {
    let has = |input: &LogicalPlan| columns.iter().all(|column| input.schema().has_column(column));
    match plan {
        LogicalPlan::Filter(filter) if has_join(&filter.input) => Some(0),
        LogicalPlan::Join(join) => {
            use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
            let keeps_left = matches!(join.join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark);
            let keeps_right = matches!(join.join_type, Inner | Right | RightSemi | RightAnti | RightMark);
            if keeps_left && has(&join.left) { Some(0) } else { (keeps_right && has(&join.right)).then_some(1) }
        }
        _ => None,
    }
}

/// Whether a join is at the top, or below filters.
fn has_join(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(_) => true,
        LogicalPlan::Filter(filter) => has_join(&filter.input),
        _ => false,
    }
}

/// The inputs of the joins at the top.
#[recursive::recursive]
fn leaves(plan: &LogicalPlan) -> Vec<&LogicalPlan> {
    if has_join(plan) { plan.inputs().into_iter().flat_map(leaves).collect() } else { vec![plan] }
}

/// The approximate number of rows of the single table of a leaf, behind its filters; `None` if the leaf has another form.
fn rows(leaf: &LogicalPlan, config: &dyn OptimizerConfig) -> Option<usize> {
    // What a `FilterExec` assumes of conditions that it cannot estimate. Scans leave it only such.
    let filtered = |rows: usize| {
        let percent = usize::from(config.options().optimizer.default_filter_selectivity);
        (rows.saturating_mul(percent) / 100).max(1)
    };
    match leaf {
        LogicalPlan::TableScan(scan) => {
            let provider = source_as_provider(&scan.source).ok()?;
            let Some(table) = provider.downcast_ref::<FarTable>() else {
                return provider.statistics()?.num_rows.get_value().copied();
            };
            let (rows, has_others) = table.rows_passing(&scan.filters);
            Some(if has_others { filtered(rows) } else { rows })
        }
        LogicalPlan::Filter(filter) => rows(&filter.input, config).map(filtered),
        LogicalPlan::Projection(projection) => rows(&projection.input, config),
        LogicalPlan::SubqueryAlias(alias) => rows(&alias.input, config),
        _ => None,
    }
}

/// Whether this is a text function with constants that returns a value for every text, and its arguments are such functions or columns.
fn cannot_fail(expr: &Expr) -> bool {
    let is_text = |expr: &Expr| matches!(expr, Expr::Column(_)) || cannot_fail(expr);
    match expr {
        Expr::Like(Like { expr, pattern, escape_char: None, .. }) => is_text(expr) && pattern_of(pattern).is_some(),
        Expr::ScalarFunction(ScalarFunction { func, args }) => match (func.name(), args.as_slice()) {
            ("ascii" | "character_length" | "octet_length", [text]) => is_text(text),
            ("substr", [text, from]) => is_text(text) && integer(from).is_some(),
            ("substr", [text, from, length]) => {
                is_text(text) && integer(from).is_some() && integer(length).is_some_and(|length| length >= 0)
            }
            _ => false,
        },
        _ => false,
    }
}

/// A pattern without escapes, because escapes may be invalid.
fn pattern_of(expr: &Expr) -> Option<&str> {
    let Expr::Literal(value, _) = expr else { return None };
    value.try_as_str().flatten().filter(|pattern| !pattern.contains('\\'))
}

/// A constant that cannot overflow when it is added to a position in a text.
fn integer(expr: &Expr) -> Option<i64> {
    let Expr::Literal(ScalarValue::Int64(Some(value)), _) = expr else { return None };
    (0..=i64::from(i32::MAX)).contains(value).then_some(*value)
}
