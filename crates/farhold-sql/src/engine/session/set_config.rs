//! `SELECT set_config(name, value, is_local)`: a SET with computed values, which clients use for the time zone. It is the only
//! item of its query: within others the planner, which has no session, does not know the function.

use datafusion::sql::sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, FunctionArguments, Query, SelectItem, SetExpr,
};

use super::Session;
use super::prepare::not_simple;
use crate::engine::direct::is_plain;
use crate::engine::scalar::{Binder, ParameterTypes, Parameters, Scalar, built_in_name, fold};
use crate::engine::{ColumnType, CommandTag, Datum, Output, Rows};
use crate::value::Zone;
use crate::{SqlError, SqlState};

/// A call of the function.
#[derive(Debug)]
pub(crate) struct SetConfig {
    name: Scalar,
    value: Scalar,
    is_local: Scalar,
    /// The name of the column of its result.
    pub(crate) column: String,
}

/// The call, if the query is one.
///
/// # Errors
/// 42883, 42804 for other arguments.
pub(super) fn called(query: &Query, types: &mut ParameterTypes, zone: Zone) -> Result<Option<SetConfig>, SqlError> {
    let SetExpr::Select(select) = query.body.as_ref() else { return Ok(None) };
    let is_alone = select.from.is_empty() && select.selection.is_none() && is_plain(query, select);
    let is_whole = query.order_by.is_none() && query.limit_clause.is_none() && query.locks.is_empty();
    let (call, alias) = match select.projection.as_slice() {
        [SelectItem::UnnamedExpr(ast::Expr::Function(call))] => (call, None),
        [SelectItem::ExprWithAlias { expr: ast::Expr::Function(call), alias }] => (call, Some(fold(alias))),
        _ => return Ok(None),
    };
    let is_called = built_in_name(call).is_some_and(|name| fold(name) == "set_config");
    if !(is_alone && is_whole && is_called) {
        return Ok(None);
    }
    let wrong =
        || SqlError::new(SqlState::UNDEFINED_FUNCTION, "set_config takes a name, a value and whether it is local");
    let FunctionArguments::List(list) = &call.args else { return Err(wrong()) };
    let mut scalars = Vec::with_capacity(list.args.len());
    let mut binder = Binder { columns: &[], parameters: &mut types.known, zone, is_kept: false };
    for (argument, to) in list.args.iter().zip([ColumnType::Text, ColumnType::Text, ColumnType::Boolean]) {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) = argument else { return Err(wrong()) };
        scalars.push(binder.bind_to(argument, to).map_err(not_simple)?);
    }
    let count = list.args.len();
    match <[Scalar; 3]>::try_from(scalars) {
        Ok([name, value, is_local]) if count == 3 => {
            let column = alias.unwrap_or_else(|| "set_config".to_owned());
            Ok(Some(SetConfig { name, value, is_local, column }))
        }
        _ => Err(wrong()),
    }
}

impl Session {
    /// Sets the setting, and returns its value in the format of SHOW.
    pub(super) fn set_config(&mut self, call: &SetConfig, parameters: Parameters<'_>) -> Result<Output, SqlError> {
        let text = |scalar: &Scalar| match scalar.evaluate(&[], parameters)? {
            Datum::Text(text) => Ok(Some(text)),
            _ => Ok::<_, SqlError>(None),
        };
        let name = text(&call.name)?
            .ok_or_else(|| SqlError::new(SqlState::NULL_VALUE_NOT_ALLOWED, "SET requires parameter name"))?;
        let value = text(&call.value)?;
        let is_local = call.is_local.holds(&[], parameters)?;
        let shown = if is_local && !self.transaction.is_undecided() {
            // The transaction is this statement.
            let mut settings = self.settings.clone();
            settings.set_local(&name, value.as_deref())?;
            settings.get(&name)
        } else {
            self.set_one(&name, value.as_deref(), is_local)?;
            self.parameter(&name)
        };
        let rows = vec![vec![Datum::Text(shown.unwrap_or_default())]];
        Ok(Output::Rows(Rows::Direct { rows, tag: CommandTag::rows("SELECT", 1) }))
    }
}
