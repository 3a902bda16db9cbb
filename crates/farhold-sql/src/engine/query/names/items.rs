//! The items of a SELECT, and the names of its columns.

use std::collections::HashSet;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Value, WildcardAdditionalOptions,
};

use super::super::rewrite::identifiers;
use super::{Names, Naming};
use crate::engine::ColumnType;
use crate::engine::direct::output_name;
use crate::engine::parse::unnested;
use crate::engine::scalar::fold;
use crate::{SqlError, SqlState};

impl Names<'_> {
    pub(super) fn items(&mut self, projection: Vec<SelectItem>) -> Result<Vec<Item>, SqlError> {
        let mut items = Vec::with_capacity(projection.len());
        for item in projection {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = &item
                && let [schema, relation] = identifiers(name).as_slice()
            {
                self.check_schema(schema, relation)?;
            }
            match item {
                SelectItem::UnnamedExpr(mut expr) => {
                    let name = output_name(&expr);
                    self.part(&mut expr)?;
                    items.push(Item::Known { name, expr, alias: None });
                }
                SelectItem::ExprWithAlias { mut expr, alias } => {
                    self.part(&mut expr)?;
                    items.push(Item::Known { name: fold(&alias), expr, alias: Some(alias) });
                }
                other => match self.wildcard(&other) {
                    Some(columns) => items.extend(columns),
                    None => items.push(Item::Other(other)),
                },
            }
        }
        Ok(items)
    }

    /// The columns of a wildcard, if they are known.
    pub(super) fn wildcard(&self, item: &SelectItem) -> Option<Vec<Item>> {
        let is_plain = |options: &WildcardAdditionalOptions| *options == WildcardAdditionalOptions::default();
        let known = |name: &str, expr: Expr| Item::Known { name: name.to_owned(), expr, alias: None };
        let scope = self.scopes.last()?;
        match item {
            SelectItem::Wildcard(options) if is_plain(options) && !scope.is_open && !scope.relations.is_empty() => {
                Some(scope.visible.iter().map(|c| known(&c.name, c.expr.clone())).collect())
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if is_plain(options) =>
            {
                let wanted = identifiers(name).pop()?;
                let relation = scope.relations.iter().find(|relation| relation.name == wanted)?;
                let columns = relation.columns.as_ref()?;
                Some(columns.iter().map(|c| known(&c.name, column(&relation.planned, &c.planned))).collect())
            }
            _ => None,
        }
    }

    /// The items under unique names. With an ORDER BY, computed items get names that no column has: DataFusion adds
    /// sort keys to the items and finds an item by its name, which in a query with groups refers to a column first.
    pub(super) fn named(&mut self, items: Vec<Item>, naming: Naming, is_ordered: bool) -> (Vec<SelectItem>, Outputs) {
        let is_known = items.iter().all(|item| item.known().is_some());
        let is_value = naming != Naming::Relation && items.len() == 1;
        let mut unique = UniqueNames::default();
        let mut outputs = Vec::with_capacity(items.len());
        let mut projection = Vec::with_capacity(items.len());
        for (n, item) in items.into_iter().enumerate() {
            let (name, expr, alias) = match item {
                Item::Known { name, expr, alias } => (name, expr, alias),
                Item::Other(item) => {
                    projection.push(item);
                    continue;
                }
            };
            if !is_known {
                projection.push(match alias {
                    Some(alias) => SelectItem::ExprWithAlias { expr, alias },
                    None => SelectItem::UnnamedExpr(expr),
                });
                continue;
            }
            let data_type = self.scopes.last().and_then(|scope| scope.type_of(&expr));
            // A column of an outer query has another name there.
            let is_own = |relation: &Ident| {
                self.scopes.last().is_some_and(|scope| scope.relations.iter().any(|own| own.planned == relation.value))
            };
            let is_column = match &expr {
                Expr::CompoundIdentifier(parts) => {
                    parts.last().is_some_and(|last| last.value == name) && is_own(&parts[0])
                }
                _ => false,
            };
            let planned = if is_value && (!is_column || naming == Naming::Compared) {
                self.made_up("value")
            } else if is_ordered && !is_column {
                unique.take(&format!("{name} {n}"))
            } else {
                unique.take(&name)
            };
            projection.push(if is_column && planned == name {
                SelectItem::UnnamedExpr(expr)
            } else {
                SelectItem::ExprWithAlias { expr, alias: quoted(&planned) }
            });
            outputs.push(Output { name, planned, data_type });
        }
        (projection, is_known.then_some(outputs))
    }
}

/// The names of a query's columns as clients see them, unless a wildcard makes their number unknown.
pub(in crate::engine::query) fn output_names(query: &Query) -> Option<Vec<String>> {
    fn first_select(body: &SetExpr) -> Option<&Select> {
        match body {
            SetExpr::Select(select) => Some(select),
            SetExpr::SetOperation { left, .. } => first_select(left),
            SetExpr::Query(query) => first_select(&query.body),
            _ => None,
        }
    }
    let name = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) => Some(output_name(expr)),
        SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
        _ => None,
    };
    first_select(&query.body)?.projection.iter().map(name).collect()
}

/// A column of a relation or of a query.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// The name in the statement.
    pub(super) name: String,
    /// The name for the planner.
    pub(super) planned: String,
    /// `None` if unknown here.
    pub(super) data_type: Option<ColumnType>,
}

impl Output {
    pub(super) fn plain(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { planned: name.clone(), name, data_type: None }
    }

    pub(super) fn typed(name: impl Into<String>, data_type: Option<ColumnType>) -> Self {
        Self { data_type, ..Self::plain(name) }
    }
}

/// `None` if unknown here.
pub(super) type Outputs = Option<Vec<Output>>;

/// An item of a SELECT.
#[expect(clippy::large_enum_variant, reason = "most items are known, and none is kept")]
pub(super) enum Item {
    Known {
        name: String,
        expr: Expr,
        /// The alias as written.
        alias: Option<Ident>,
    },
    /// A wildcard over unknown columns.
    Other(SelectItem),
}

impl Item {
    pub(super) fn known(&self) -> Option<(&str, &Expr)> {
        match self {
            Self::Known { name, expr, .. } => Some((name.as_str(), expr)),
            Self::Other(_) => None,
        }
    }
}

/// Makes names unique.
#[derive(Default)]
pub(super) struct UniqueNames(HashSet<String>);

impl UniqueNames {
    /// `name`, or a variant if it is taken. The planner (DataFusion 55) reads an item name `"a.b"` as a column `b` of
    /// `a`, so dots are replaced.
    pub(super) fn take(&mut self, name: &str) -> String {
        let name = name.replace('.', " ");
        if self.0.insert(name.clone()) {
            return name;
        }
        let mut number = self.0.len();
        loop {
            let other = format!("{name} {number}");
            if self.0.insert(other.clone()) {
                return other;
            }
            number += 1;
        }
    }
}

pub(super) fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

pub(super) fn column(relation: &str, name: &str) -> Expr {
    Expr::CompoundIdentifier(vec![quoted(relation), quoted(name)])
}

/// The name, if the expression is a bare name.
pub(super) fn bare_name(expr: &Expr) -> Option<String> {
    match unnested(expr) {
        Expr::Identifier(ident) => Some(fold(ident)),
        _ => None,
    }
}

/// The item to which a number refers.
pub(super) fn position(expr: &Expr) -> Option<usize> {
    match unnested(expr) {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse::<usize>().ok()?.checked_sub(1),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn number(index: usize) -> Expr {
    Expr::value(Value::Number((index + 1).to_string(), false))
}

/// An item that replaces its number or name, written so that the planner does not take a constant for another item's
/// number.
pub(super) fn no_position(item: &Expr) -> Expr {
    match unnested(item) {
        Expr::Value(_) => Expr::Nested(Box::new(item.clone())),
        _ => item.clone(),
    }
}

/// The item with a name. If several have it, they must be equal.
pub(super) fn called(items: &[Item], name: &str, clause: &str) -> Result<Option<usize>, SqlError> {
    let mut found: Option<(usize, &Expr)> = None;
    for (n, (own, expr)) in items.iter().enumerate().filter_map(|(n, item)| Some((n, item.known()?))) {
        if own != name {
            continue;
        }
        match found {
            None => found = Some((n, expr)),
            Some((_, first)) if first == expr => {}
            Some(_) => {
                let message = format!("{clause} \"{name}\" is ambiguous");
                return Err(SqlError::new(SqlState::AMBIGUOUS_COLUMN, message));
            }
        }
    }
    Ok(found.map(|(n, _)| n))
}
