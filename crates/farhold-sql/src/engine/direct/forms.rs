//! The supported forms of a statement: forms of other databases are refused, and forms that only the planner supports
//! are recognised.

use datafusion::sql::sqlparser::ast::{
    self, Expr, FromTable, GroupByExpr, ObjectName, ObjectNamePart, Query, TableFactor, TableWithJoins,
};

use crate::engine::scalar::fold;
use crate::{SqlError, SqlState};

/// 42601 unless a query of `count` columns fits the target columns. If the targets are `listed`, the query must give
/// all of them.
pub(crate) fn check_target_count(count: usize, targets: usize, listed: bool) -> Result<(), SqlError> {
    if count > targets {
        return Err(SqlError::syntax("INSERT has more expressions than target columns"));
    }
    if count < targets && listed {
        return Err(SqlError::syntax("INSERT has more target columns than expressions"));
    }
    Ok(())
}

/// As [`check_target_count`], for the rows of VALUES.
pub(super) fn check_values(values: &ast::Values, targets: &[usize], listed: bool) -> Result<(), SqlError> {
    let mut counts = values.rows.iter().map(|row| row.content.len());
    let first = counts.next().unwrap_or(0);
    if counts.any(|count| count != first) {
        return Err(SqlError::syntax("VALUES lists must all be the same length"));
    }
    check_target_count(first, targets.len(), listed)
}

/// Whether the expression is the word DEFAULT.
pub(crate) fn is_default(expression: &Expr) -> bool {
    matches!(expression, Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// The column named by an INSERT or an UPDATE; `t.c` would be a field of a column `t`.
pub(super) fn column_name(name: &ObjectName) -> Result<String, SqlError> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident), ObjectNamePart::Identifier(_)] => {
            Err(SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column \"{}\" does not exist", fold(ident)))
                .with_hint("Name the target columns without their table."))
        }
        _ => single_name(name),
    }
}

pub(super) fn single_name(name: &ObjectName) -> Result<String, SqlError> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] | [_, ObjectNamePart::Identifier(ident)] => Ok(fold(ident)),
        _ => Err(SqlError::syntax(format!("improper name: {name}"))),
    }
}

/// The table and its name in expressions, if a FROM item is one plain table.
pub(super) fn single_source(from: &TableWithJoins) -> Option<(&ObjectName, String)> {
    if !from.joins.is_empty() {
        return None;
    }
    match &from.relation {
        TableFactor::Table { name, alias, args: None, version: None, sample: None, with_ordinality: false, .. } => {
            let qualifier = match alias {
                Some(alias) if alias.columns.is_empty() => fold(&alias.name),
                Some(_) => return None,
                None => match name.0.last()? {
                    ObjectNamePart::Identifier(ident) => fold(ident),
                    ObjectNamePart::Function(_) => return None,
                },
            };
            Some((name, qualifier))
        }
        _ => None,
    }
}

/// As [`single_source`], for the target of a write, which must be one plain table.
pub(crate) fn check_single_table(from: &TableWithJoins) -> Result<(&ObjectName, String), SqlError> {
    single_source(from).ok_or_else(|| SqlError::syntax("the target of UPDATE and DELETE must be a single table"))
}

pub(super) fn check_insert(insert: &ast::Insert) -> Result<(), SqlError> {
    let plain = insert.or.is_none()
        && !insert.ignore
        && !insert.overwrite
        && insert.assignments.is_empty()
        && insert.partitioned.is_none()
        && insert.after_columns.is_empty()
        && !insert.replace_into
        && insert.output.is_none();
    if plain { Ok(()) } else { Err(SqlError::unsupported("this form of INSERT")) }
}

/// Refuses clauses of UPDATE that only other databases have.
pub(crate) fn check_update(update: &ast::Update) -> Result<(), SqlError> {
    if update.or.is_some() || update.output.is_some() || !update.order_by.is_empty() || update.limit.is_some() {
        return Err(SqlError::unsupported("this form of UPDATE"));
    }
    Ok(())
}

/// Refuses clauses of DELETE that only other databases have. Returns the target.
pub(crate) fn check_delete(delete: &ast::Delete) -> Result<&TableWithJoins, SqlError> {
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
    match from.as_slice() {
        [from]
            if delete.tables.is_empty()
                && delete.output.is_none()
                && delete.order_by.is_empty()
                && delete.limit.is_none() =>
        {
            Ok(from)
        }
        _ => Err(SqlError::unsupported("this form of DELETE")),
    }
}

pub(crate) fn is_plain(query: &Query, select: &ast::Select) -> bool {
    let ungrouped = match &select.group_by {
        GroupByExpr::Expressions(expressions, modifiers) => expressions.is_empty() && modifiers.is_empty(),
        GroupByExpr::All(_) => false,
    };
    ungrouped
        && query.with.is_none()
        && query.fetch.is_none()
        && query.for_clause.is_none()
        && query.settings.is_none()
        && query.format_clause.is_none()
        && query.pipe_operators.is_empty()
        && select.distinct.is_none()
        && select.select_modifiers.is_none()
        && select.top.is_none()
        && select.exclude.is_none()
        && select.into.is_none()
        && select.lateral_views.is_empty()
        && select.prewhere.is_none()
        && select.connect_by.is_empty()
        && select.cluster_by.is_empty()
        && select.distribute_by.is_empty()
        && select.sort_by.is_empty()
        && select.having.is_none()
        && select.named_window.is_empty()
        && select.qualify.is_none()
        && select.value_table_mode.is_none()
}

/// Whether the expression is just the name of a column.
pub(super) fn is_name(expression: &Expr) -> bool {
    match expression {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => true,
        Expr::Nested(inner) => is_name(inner),
        _ => false,
    }
}

pub(super) fn is_bare(options: &ast::WildcardAdditionalOptions) -> bool {
    options.opt_ilike.is_none()
        && options.opt_exclude.is_none()
        && options.opt_except.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
}
