//! GROUP BY: items by name and number, and grouping sets.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Function, Visit, Visitor};

use super::super::subqueries::is_aggregate;
use super::Names;
use super::items::{Item, bare_name, called, column, number, position};
use super::orders::distinct_keys;
use crate::engine::parse::unnested;
use crate::engine::walk as tree;
use crate::{SqlError, SqlState};

impl Names<'_> {
    /// Resolves an item of GROUP BY. A bare name refers to a column first, and to a select item only otherwise.
    pub(super) fn grouped_by(&mut self, expr: &mut Expr, items: &[Item], is_known: bool) -> Result<(), SqlError> {
        if let Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) = expr {
            for expr in sets.iter_mut().flatten() {
                match self.item_of_group(expr, items)? {
                    Some(item) => *expr = items[item].known().map_or_else(|| number(item), |(_, e)| e.clone()),
                    None => self.part(expr)?,
                }
            }
            if !are_plain(sets) {
                *expr = Expr::GroupingSets(written_out(expr));
            }
            return Ok(());
        }
        match self.item_of_group(expr, items)? {
            Some(item) if is_known => *expr = number(item),
            // The planner resolves the item by its name.
            Some(_) => {}
            None => self.part(expr)?,
        }
        Ok(())
    }

    /// If the primary key of a table is among the keys, adds the table's other columns that are used outside
    /// aggregates.
    pub(super) fn add_decided(&self, by: &mut Vec<Expr>, items: &[Item], used: &[Expr]) {
        let is_set = |expr: &Expr| matches!(expr, Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_));
        if by.iter().any(is_set) {
            return;
        }
        let item = |expr: &Expr| position(expr).and_then(|item| Some(items.get(item)?.known()?.1.clone()));
        let mut keys: Vec<Expr> = by.iter().map(|expr| item(expr).unwrap_or_else(|| unnested(expr).clone())).collect();
        for relation in self.scopes.last().iter().flat_map(|scope| &scope.relations) {
            let is_key = |name: &String| keys.contains(&column(&relation.planned, name));
            if relation.key.is_empty() || !relation.key.iter().all(is_key) {
                continue;
            }
            for other in relation.columns.iter().flatten().map(|other| column(&relation.planned, &other.planned)) {
                if used.contains(&other) && !keys.contains(&other) {
                    keys.push(other.clone());
                    by.push(other);
                }
            }
        }
    }

    pub(super) fn item_of_group(&self, expr: &Expr, items: &[Item]) -> Result<Option<usize>, SqlError> {
        let Some(name) = bare_name(expr) else { return Ok(None) };
        let is_column = self.scopes.last().is_some_and(|scope| scope.visible.iter().any(|c| c.name == name));
        if is_column { Ok(None) } else { called(items, &name, "GROUP BY") }
    }
}

/// The columns that parts of a SELECT use outside aggregates.
pub(super) struct Used<'a> {
    aggregates: &'a HashSet<String>,
    /// The number of enclosing aggregates.
    around: usize,
    pub columns: Vec<Expr>,
}

impl<'a> Used<'a> {
    pub(super) fn new(aggregates: &'a HashSet<String>) -> Self {
        Self { aggregates, around: 0, columns: Vec::new() }
    }

    pub(super) fn look(&mut self, part: &impl Visit) {
        let _ = tree::visit(part, self);
    }

    fn is_aggregate(&self, expr: &Expr) -> bool {
        matches!(expr, Expr::Function(function @ Function { over: None, .. }) if is_aggregate(function, self.aggregates))
    }
}

impl Visitor for Used<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.around += usize::from(self.is_aggregate(expr));
        if self.around == 0 && matches!(expr, Expr::CompoundIdentifier(_)) && !self.columns.contains(expr) {
            self.columns.push(expr.clone());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.around -= usize::from(self.is_aggregate(expr));
        ControlFlow::Continue(())
    }
}

/// The keys of an item of GROUP BY: `(a, b)` has two.
pub(super) fn listed(expr: Expr) -> Vec<Expr> {
    match expr {
        Expr::Tuple(list) => list.into_iter().flat_map(listed).collect(),
        expr => vec![expr],
    }
}

/// Refuses more grouping sets than PostgreSQL allows.
pub(super) fn check_grouping_sets(by: &[Expr]) -> Result<(), SqlError> {
    const CUBE_MAX: usize = 12;
    const SETS_MAX: usize = 1 << CUBE_MAX;
    let mut sets = 1_usize;
    for expr in by {
        let own = match expr {
            Expr::Cube(elements) if elements.len() > CUBE_MAX => {
                return Err(SqlError::new(
                    SqlState::TOO_MANY_COLUMNS,
                    format!("CUBE is limited to {CUBE_MAX} elements"),
                ));
            }
            Expr::Cube(elements) => 1 << elements.len(),
            Expr::Rollup(elements) => elements.len() + 1,
            Expr::GroupingSets(sets) => sets.len(),
            _ => 1,
        };
        sets = sets.saturating_mul(own);
    }
    if sets > SETS_MAX {
        let message = format!("too many grouping sets present (maximum {SETS_MAX})");
        return Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message));
    }
    Ok(())
}

/// Moves keys beside grouping sets into each of the sets. For a key beside them, the planner would add the columns that
/// the key determines, which a set may leave out.
pub(super) fn keys_into_sets(by: &mut Vec<Expr>, items: &[Item]) {
    let is_set = |expr: &Expr| matches!(expr, Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_));
    if by.len() < 2 || !by.iter().any(is_set) {
        return;
    }
    let mut sets = vec![Vec::new()];
    for expr in by.iter() {
        let own = match position(expr) {
            _ if is_set(expr) => written_out(expr),
            None => vec![vec![expr.clone()]],
            Some(item) => match items.get(item).and_then(Item::known) {
                Some((_, item)) => vec![vec![item.clone()]],
                // The planner resolves it, or reports an error.
                None => return,
            },
        };
        sets = sets.iter().flat_map(|set: &Vec<Expr>| own.iter().map(|more| [&set[..], more].concat())).collect();
    }
    for set in &mut sets {
        distinct_keys(set, |expr| expr);
    }
    *by = vec![Expr::GroupingSets(sets)];
}

/// Whether the elements are distinct single expressions. DataFusion accepts only these in ROLLUP and CUBE, and no
/// repetition in a grouping set.
fn are_plain(elements: &[Vec<Expr>]) -> bool {
    let is_same = |a: &[Expr], b: &[Expr]| a.iter().map(unnested).eq(b.iter().map(unnested));
    let is_repeated = |n: usize| elements[..n].iter().any(|before| is_same(before, &elements[n]));
    (0..elements.len()).all(|n| elements[n].len() == 1 && !is_repeated(n))
}

/// The expanded sets of ROLLUP, CUBE or GROUPING SETS, with each expression at most once per set.
fn written_out(expr: &Expr) -> Vec<Vec<Expr>> {
    let mut sets: Vec<Vec<Expr>> = match expr {
        Expr::GroupingSets(sets) => sets.clone(),
        Expr::Rollup(elements) => (0..=elements.len()).rev().map(|count| elements[..count].concat()).collect(),
        Expr::Cube(elements) => {
            let of = |set: usize| (0..elements.len()).filter(move |n| set >> n & 1 == 1);
            (0..1 << elements.len()).map(|set| of(set).flat_map(|n| elements[n].clone()).collect()).collect()
        }
        _ => Vec::new(),
    };
    for set in &mut sets {
        distinct_keys(set, |expr| expr);
    }
    sets
}
