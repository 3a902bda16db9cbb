//! Resolves the names in expressions.

use std::cell::RefCell;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Function, Ident, Query, VisitMut, Visitor, VisitorMut,
};

use super::super::ROWS_SCHEMA;
use super::super::rewrite::{is_catalog_schema, user_word};
use super::super::subqueries;
use super::super::volatile;
use super::{Answered, Names, Naming, Relation, Scope, column};
use crate::engine::scalar::fold;
use crate::engine::walk as tree;
use crate::{SqlError, SqlState};

fn ambiguous(name: &str) -> SqlError {
    SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{name}\" is ambiguous"))
}

/// The one column of a name; 42702 if there are several.
fn the_one<'a, T: 'a>(mut called: impl Iterator<Item = &'a T>, name: &str) -> Result<Option<&'a T>, SqlError> {
    match (called.next(), called.next()) {
        (Some(_), Some(_)) => Err(ambiguous(name)),
        (found, _) => Ok(found),
    }
}

impl Names<'_> {
    /// Resolves the names of an expression, or of another part of a statement.
    pub(super) fn part(&mut self, part: &mut impl VisitMut) -> Result<(), SqlError> {
        let mut walk = Walk { names: self, depth: 0, compared: 0, last: None };
        match part.visit(&mut walk) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(()),
        }
    }

    /// Marks the scopes inside `found` as correlated, since a name in them was found there.
    fn mark(&mut self, found: usize) {
        for scope in &mut self.scopes[found + 1..] {
            scope.is_correlated = true;
        }
    }

    /// Resolves the names of a subquery in an expression. Returns whether it is correlated, and the name that its
    /// column gets in that case.
    fn subquery(&mut self, query: &mut Query, naming: Naming) -> Result<(bool, String), SqlError> {
        let is_sibling = self.siblings.scopes == self.scopes.len();
        let is_same = |known: &&Answered| is_sibling && known.naming == naming && known.asked == *query;
        if let Some(known) = self.siblings.answered.iter().find(is_same) {
            query.clone_from(&known.answer);
            return Ok((known.is_correlated, known.name.clone()));
        }
        let asked = (is_sibling && !volatile::varies(query, self.state)).then(|| query.clone());
        self.scopes.push(Scope::default());
        let outcome = self.query(query, naming);
        let is_correlated = self.scopes.pop().is_some_and(|scope| scope.is_correlated);
        outcome?;
        let name = self.made_up("value");
        if let Some(asked) = asked {
            let (answer, name) = (query.clone(), name.clone());
            self.siblings.answered.push(Answered { asked, naming, answer, is_correlated, name });
        }
        Ok((is_correlated, name))
    }

    fn unqualified(&mut self, name: &str) -> Result<Option<Expr>, SqlError> {
        for at in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[at];
            if let Some(found) = the_one(scope.visible.iter().filter(|c| c.name == name), name)? {
                let expr = found.expr.clone();
                self.mark(at);
                return Ok(Some(expr));
            }
            if scope.is_open {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Refuses names in HAVING that are not columns: the planner would resolve them to items.
    pub(super) fn check_having(&self, having: Option<&Expr>) -> Result<(), SqlError> {
        if self.scopes.iter().any(|scope| scope.is_open) {
            return Ok(());
        }
        let unknown = RefCell::new(None);
        let is_unknown = |expr: &Expr| match expr {
            Expr::Identifier(name) if user_word(expr).is_none() => {
                unknown.replace(Some(fold(name)));
                true
            }
            _ => false,
        };
        if having.is_some_and(|having| tree::exists_outside_queries(having, is_unknown)) {
            let name = unknown.take().unwrap_or_default();
            return Err(SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist")));
        }
        Ok(())
    }

    /// Refuses `schema.relation` if the schema does not exist.
    pub(super) fn check_schema(&self, schema: &str, relation: &str) -> Result<(), SqlError> {
        if schema == "public" || schema == ROWS_SCHEMA || is_catalog_schema(schema) {
            return Ok(());
        }
        Err(self.no_entry(relation))
    }

    fn no_entry(&self, relation: &str) -> SqlError {
        let is_known = self.scopes.iter().flat_map(|scope| &scope.relations).any(|known| known.name == *relation);
        let what = if is_known { "invalid reference to" } else { "missing" };
        let message = format!("{what} FROM-clause entry for table \"{relation}\"");
        SqlError::new(SqlState::UNDEFINED_TABLE, message)
    }

    fn qualified(&mut self, parts: &[Ident]) -> Result<Option<Expr>, SqlError> {
        let names: Vec<String> = parts.iter().map(fold).collect();
        let (has_schema, relation, name) = match names.as_slice() {
            [relation, name] => (false, relation, name),
            [schema, relation, name] | [_, schema, relation, name] if schema == "public" => (true, relation, name),
            [schema, relation, _] => return self.check_schema(schema, relation).map(|()| None),
            _ => return Ok(None),
        };
        for at in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[at];
            let is_it = |known: &&Relation| {
                known.name == *relation && (!has_schema || known.schema.as_deref() == Some("public"))
            };
            let Some(relation) = scope.relations.iter().find(is_it) else { continue };
            let Some(columns) = &relation.columns else { return Ok(None) };
            let found = the_one(columns.iter().filter(|c| c.name == *name), name)?;
            let found = found.map(|found| column(&relation.planned, &found.planned));
            // If an inner scope has a column with the relation's name, the planner would look for a field of that
            // column.
            let is_column =
                |other: &Relation| other.columns.iter().flatten().any(|column| column.planned == relation.planned);
            if found.is_some() && self.scopes[at + 1..].iter().flat_map(|scope| &scope.relations).any(is_column) {
                self.is_hidden = true;
                self.hidden.insert(relation.name.clone());
            }
            if found.is_some() {
                self.mark(at);
            }
            return Ok(found);
        }
        // The planner would find a relation under its original name, although it has an alias here.
        if has_schema && !self.scopes.iter().any(|scope| scope.is_open) {
            return Err(self.no_entry(relation));
        }
        Ok(None)
    }
}

/// Refuses an aggregate in the WHERE clause of its query. An aggregate over outer columns only belongs to the innermost
/// query that has one of them.
fn check_aggregate(scopes: &[Scope], function: &Function) -> Result<(), SqlError> {
    struct Columns<'s> {
        scopes: &'s [Scope],
        /// The innermost query to which a column belongs.
        innermost: Option<usize>,
    }
    impl Visitor for Columns<'_> {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::CompoundIdentifier(parts) = expr
                && let [relation, _] = parts.as_slice()
            {
                let has = |scope: &Scope| scope.relations.iter().any(|known| known.planned == relation.value);
                self.innermost = self.scopes.iter().rposition(has).max(self.innermost);
            }
            ControlFlow::Continue(())
        }
    }
    let mut columns = Columns { scopes, innermost: None };
    let _ = tree::visit(&function.args, &mut columns);
    let own = scopes.len().saturating_sub(1);
    match columns.innermost {
        Some(at) if at < own && scopes[at].is_in_where => {
            Err(SqlError::new(SqlState::GROUPING_ERROR, "aggregate functions are not allowed in WHERE"))
        }
        _ => Ok(()),
    }
}

/// A walk over an expression. A subquery is resolved as a query of its own; the walk skips its contents.
struct Walk<'n, 'a> {
    names: &'n mut Names<'a>,
    /// The number of enclosing queries within the expression.
    depth: usize,
    /// The number of enclosing ANY and ALL that compare by name.
    compared: usize,
    /// The name that the last subquery's column gets, if the subquery is correlated.
    last: Option<String>,
}

fn is_compared(expr: &Expr) -> bool {
    matches!(expr, Expr::AnyOp { compare_op, .. } if *compare_op != BinaryOperator::Eq)
        || matches!(expr, Expr::AllOp { compare_op, .. } if *compare_op != BinaryOperator::NotEq)
}

/// Joins the parts of a name before a subscript: the parser reads `t.a[1]` as `t` followed by the accesses `.a` and
/// `[1]`.
fn join_name(expr: &mut Expr) {
    let Expr::CompoundFieldAccess { root, access_chain } = expr else { return };
    let Expr::Identifier(first) = root.as_ref() else { return };
    let part = |access: &AccessExpr| match access {
        AccessExpr::Dot(Expr::Identifier(part)) => Some(part.clone()),
        _ => None,
    };
    let parts: Vec<Ident> = access_chain.iter().map_while(part).collect();
    if !parts.is_empty() {
        access_chain.drain(..parts.len());
        **root = Expr::CompoundIdentifier(std::iter::once(first.clone()).chain(parts).collect());
    }
}

impl VisitorMut for Walk<'_, '_> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        if self.depth == 0 {
            let naming = if self.compared > 0 { Naming::Compared } else { Naming::Value };
            match self.names.subquery(query, naming) {
                Ok((is_correlated, name)) => self.last = is_correlated.then_some(name),
                Err(error) => return ControlFlow::Break(error),
            }
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if self.depth == 0 {
            self.compared += usize::from(is_compared(expr));
            join_name(expr);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let replaced = match &*expr {
            Expr::Identifier(ident) if user_word(expr).is_none() => self.names.unqualified(&fold(ident)),
            Expr::CompoundIdentifier(parts) => self.names.qualified(parts),
            Expr::Function(function)
                if function.over.is_none() && subqueries::is_aggregate(function, self.names.aggregates) =>
            {
                check_aggregate(&self.names.scopes, function).map(|()| None)
            }
            // A subquery of ANY or ALL may have any number of rows.
            Expr::Subquery(query) if self.compared == 0 => match self.last.take() {
                Some(name) => match subqueries::single_value(query, &name, self.names.aggregates) {
                    None if subqueries::unnests(query) => {
                        Err(SqlError::unsupported("unnest in this correlated subquery"))
                    }
                    value => Ok(value),
                },
                None => Ok(None),
            },
            other => {
                self.compared -= usize::from(is_compared(other));
                Ok(None)
            }
        };
        match replaced {
            Ok(Some(replaced)) => *expr = replaced,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}
