//! Windows that refer to another one, `OVER (w ORDER BY a)` and `WINDOW v AS (w)`, and `OVER w` in ORDER BY.
//!
//! The planner (DataFusion 55) ignores a name within parentheses, so that the window has all rows. It does not resolve
//! names in ORDER BY and DISTINCT ON. So all references are expanded before the statement is planned.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Ident, NamedWindowDefinition, NamedWindowExpr, OrderBy, Query, Select, SetExpr, VisitorMut,
    WindowSpec, WindowType,
};

use super::frame_bounds::check_ends;
use crate::engine::scalar::fold;
use crate::engine::{error, walk};
use crate::{SqlError, SqlState};

/// See the module.
pub(super) struct NamedWindows;

impl VisitorMut for NamedWindows {
    type Break = SqlError;

    /// Inner queries come first: the names of outer windows are not visible there.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        match in_body(&mut query.body, query.order_by.as_mut()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

#[recursive::recursive]
fn in_body(body: &mut SetExpr, order: Option<&mut OrderBy>) -> Result<(), SqlError> {
    match body {
        SetExpr::Select(select) => in_select(select, order),
        SetExpr::SetOperation { left, right, .. } => {
            in_body(left, None)?;
            in_body(right, None)
        }
        // Nested queries are visited separately.
        _ => Ok(()),
    }
}

fn in_select(select: &mut Select, order: Option<&mut OrderBy>) -> Result<(), SqlError> {
    let mut windows = Windows::default();
    for NamedWindowDefinition(name, window) in &mut select.named_window {
        let spec = match window {
            NamedWindowExpr::WindowSpec(spec) => spec,
            NamedWindowExpr::NamedWindow(other) => {
                return Err(SqlError::syntax(format!("syntax error at or near \"{other}\"")));
            }
        };
        windows.complete(spec)?;
        if let Some(frame) = &spec.window_frame {
            check_ends(frame)?;
        }
        if windows.known.insert(fold(name), spec.clone()).is_some() {
            return Err(error::windowing(format!("window \"{}\" is already defined", fold(name))));
        }
    }
    let stopped = [
        walk::change(&mut select.projection, &mut windows),
        walk::change(&mut select.distinct, &mut windows),
        order.map_or(ControlFlow::Continue(()), |order| walk::change(order, &mut windows)),
    ];
    stopped.into_iter().find_map(ControlFlow::break_value).map_or(Ok(()), Err)
}

/// The expanded windows of a SELECT, by name.
#[derive(Default)]
struct Windows {
    known: HashMap<String, WindowSpec>,
}

impl Windows {
    fn named(&self, name: &Ident) -> Result<&WindowSpec, SqlError> {
        let name = fold(name);
        let undefined = || SqlError::new(SqlState::UNDEFINED_OBJECT, format!("window \"{name}\" does not exist"));
        self.known.get(&name).ok_or_else(undefined)
    }

    /// Replaces the reference to another window by that window's clauses.
    fn complete(&self, window: &mut WindowSpec) -> Result<(), SqlError> {
        let Some(name) = window.window_name.take() else { return Ok(()) };
        let (base, shown) = (self.named(&name)?, fold(&name));
        if !window.partition_by.is_empty() {
            return Err(error::windowing(format!("cannot override PARTITION BY clause of window \"{shown}\"")));
        }
        if !window.order_by.is_empty() && !base.order_by.is_empty() {
            return Err(error::windowing(format!("cannot override ORDER BY clause of window \"{shown}\"")));
        }
        if base.window_frame.is_some() {
            let error = error::windowing(format!("cannot copy window \"{shown}\" because it has a frame clause"));
            let is_name_alone = window.order_by.is_empty() && window.window_frame.is_none();
            return Err(if is_name_alone {
                error.with_hint("Omit the parentheses in this OVER clause.")
            } else {
                error
            });
        }
        window.partition_by.clone_from(&base.partition_by);
        if window.order_by.is_empty() {
            window.order_by.clone_from(&base.order_by);
        }
        Ok(())
    }
}

impl VisitorMut for Windows {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Function(Function { over: Some(over), .. }) = expr else { return ControlFlow::Continue(()) };
        let completed = match over {
            WindowType::WindowSpec(window) => self.complete(window),
            WindowType::NamedWindow(name) => self.named(name).cloned().map(|window| {
                *over = WindowType::WindowSpec(window);
            }),
        };
        completed.map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }
}
