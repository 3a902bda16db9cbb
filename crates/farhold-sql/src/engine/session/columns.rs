//! The names of a query's columns.
//!
//! PostgreSQL calls a column after its expression's last name and lets two have the same name; DataFusion calls it after
//! the whole expression and wants names to differ. So what would clash gets an alias to be planned with, and the names that
//! clients see are worked out here.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Ident, Query, Select, SelectItem, SetExpr, VisitorMut};

use crate::engine::direct::output_name;
use crate::engine::scalar::fold;
use crate::engine::walk;

/// In longer statements only plain columns are compared.
const SHOWN_BYTES_MAX: usize = 4_000;

/// The names that clients see, if no wildcard hides how many there are. Gives items that would clash an alias, in queries within this one
/// too.
pub(super) fn name_columns(query: &mut Query, sql: &str) -> Option<Vec<String>> {
    let names = first_select(&mut query.body).and_then(|select| keep_apart(select, sql));
    let _ = walk::change(query, &mut KeepApart { sql });
    names
}

struct KeepApart<'a> {
    sql: &'a str,
}

impl VisitorMut for KeepApart<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let _ = keep_apart(select, self.sql);
        ControlFlow::Continue(())
    }
}

fn keep_apart(select: &mut Select, sql: &str) -> Option<Vec<String>> {
    let mut names = Vec::with_capacity(select.projection.len());
    let mut hidden = false;
    let mut seen = Vec::with_capacity(select.projection.len());
    for (n, item) in select.projection.iter_mut().enumerate() {
        let (name, identity) = match item {
            SelectItem::UnnamedExpr(expression) => {
                // Showing an expression takes stack for each of its levels.
                let short = sql.len() < SHOWN_BYTES_MAX || matches!(expression, Expr::Identifier(_));
                (output_name(expression), if short { expression.to_string() } else { n.to_string() })
            }
            SelectItem::ExprWithAlias { alias, .. } => (fold(alias), alias.to_string()),
            _ => {
                hidden = true;
                continue;
            }
        };
        let last = identity.rsplit('.').next().unwrap_or_default().to_owned();
        if seen.contains(&last) {
            let expression = match item {
                SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } => {
                    expression.clone()
                }
                _ => continue,
            };
            *item =
                SelectItem::ExprWithAlias { expr: expression, alias: Ident::with_quote('"', format!("{name} {n}")) };
        } else {
            seen.push(last);
        }
        names.push(name);
    }
    (!hidden).then_some(names)
}

fn first_select(body: &mut SetExpr) -> Option<&mut Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::SetOperation { left, .. } => first_select(left),
        SetExpr::Query(query) => first_select(&mut query.body),
        _ => None,
    }
}
