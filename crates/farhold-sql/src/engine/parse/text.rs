//! Turns statements back into text.

use std::fmt::Display;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, JoinConstraint, ObjectName, ObjectNamePart, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, TableAlias, TableFactor, TableWithJoins, UnaryOperator, Value, ValueWithSpan,
    VisitMut, VisitorMut,
};

use super::super::walk;

/// The text of a statement or an expression, which parses to the same tree. The parser's own text takes `''` and `\'`
/// in a string, and `""` and `\"` in a name, for already escaped characters. It also puts two signs next to each other,
/// which begins a comment.
pub(crate) fn to_text<T: VisitMut + Clone + Display>(tree: &T) -> String {
    let mut tree = tree.clone();
    let _ = walk::change(&mut tree, &mut Plain);
    tree.to_string()
}

/// Doubles the quotes in strings and names. Visitors have no method for names, so this lists the nodes that contain
/// them.
struct Plain;

impl Plain {
    fn name(name: &mut Ident) {
        if name.quote_style == Some('"') && name.value.contains('"') {
            name.value = name.value.replace('"', "\"\"");
        }
    }

    fn path(path: &mut ObjectName) {
        for part in &mut path.0 {
            if let ObjectNamePart::Identifier(name) = part {
                Self::name(name);
            }
        }
    }

    fn alias(alias: Option<&mut TableAlias>) {
        let Some(alias) = alias else { return };
        Self::name(&mut alias.name);
        alias.columns.iter_mut().for_each(|column| Self::name(&mut column.name));
    }

    /// The columns of USING.
    fn joins(from: &mut TableWithJoins) {
        for join in &mut from.joins {
            if let Some(JoinConstraint::Using(columns)) = walk::constraint_mut(&mut join.join_operator) {
                columns.iter_mut().for_each(Self::path);
            }
        }
    }
}

impl VisitorMut for Plain {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for cte in query.with.iter_mut().flat_map(|with| &mut with.cte_tables) {
            Self::alias(Some(&mut cte.alias));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            match item {
                SelectItem::ExprWithAlias { alias, .. } => Self::name(alias),
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(path), _) => Self::path(path),
                _ => {}
            }
        }
        select.from.iter_mut().for_each(Self::joins);
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        Self::path(relation);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias } => {
                Self::joins(table_with_joins);
                Self::alias(alias.as_mut());
            }
            TableFactor::Function { name, alias, .. } => {
                Self::path(name);
                Self::alias(alias.as_mut());
            }
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::UNNEST { alias, .. } => Self::alias(alias.as_mut()),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        if let Value::SingleQuotedString(text) | Value::NationalStringLiteral(text) = &mut value.value {
            *text = text.replace('\'', "''");
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        match expression {
            Expr::Identifier(name) => Self::name(name),
            Expr::CompoundIdentifier(names) => names.iter_mut().for_each(Self::name),
            Expr::Function(function) => Self::path(&mut function.name),
            Expr::UnaryOp { op, expr: inner }
                if *op != UnaryOperator::Not && matches!(**inner, Expr::UnaryOp { .. }) =>
            {
                let signed = std::mem::replace(inner.as_mut(), Expr::value(Value::Null));
                **inner = Expr::Nested(Box::new(signed));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
