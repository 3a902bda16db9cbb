//! PostgreSQL's ways of saying things that DataFusion knows by other words.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType as SqlType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    ObjectNamePart, Select, SelectItem, Statement, TableFactor, Value, VisitMut, VisitorMut,
};
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, FixArrayLiteral,
    RewriteArrayAnyAllOperation, SqlStatementRewriteRule, StripCollate,
};

use super::rows::Rows;
use crate::SqlError;
use crate::engine::error;
use crate::engine::scalar::{built_in_name, fold, without_regclass};
use crate::engine::sequence::Call;
use crate::engine::settings::SERVER_VERSION;

/// Rewrites statements before they are planned.
pub(super) struct Rewriter {
    catalog_queries: PostgresCompatibilityParser,
    rules: Vec<Arc<dyn SqlStatementRewriteRule>>,
}

impl Rewriter {
    pub(super) fn new() -> Self {
        Self {
            catalog_queries: PostgresCompatibilityParser::new(),
            rules: vec![
                Arc::new(AliasDuplicatedProjectionRewrite),
                Arc::new(RewriteArrayAnyAllOperation),
                Arc::new(FixArrayLiteral),
                Arc::new(CurrentUserVariableToSessionUserFunctionCall),
                Arc::new(StripCollate),
            ],
        }
    }

    /// The statement in DataFusion's words. Queries of the catalogs get every rule, some of which replace whole queries of
    /// known clients; all others get those that keep the meaning.
    pub(super) fn rewrite(&self, statement: Statement, sql: &str, user: &str) -> Result<Statement, SqlError> {
        let mut statement = statement;
        if VisitMut::visit(&mut statement, &mut SampledTable).is_break() {
            return Err(SqlError::unsupported("TABLESAMPLE"));
        }
        let _ = VisitMut::visit(&mut statement, &mut AnyOfQuery);
        let _ = VisitMut::visit(&mut statement, &mut SignedRanks);
        if let ControlFlow::Break(error) = VisitMut::visit(&mut statement, &mut Rows::default()) {
            return Err(error);
        }
        let mut calls = SequenceCalls { met: false };
        let _ = VisitMut::visit(&mut statement, &mut calls);
        let plain = calls.met.then(|| statement.to_string());
        let mut statement = self.in_datafusions_words(statement, plain.as_deref().unwrap_or(sql))?;
        name_user(&mut statement, user);
        Ok(statement)
    }

    fn in_datafusions_words(&self, statement: Statement, sql: &str) -> Result<Statement, SqlError> {
        if is_catalog_query(sql) {
            let mut statements =
                self.catalog_queries.parse(&crate::pg_catalog::rewrite(sql)).map_err(|e| error::from_parser(&e))?;
            if statements.len() == 1 {
                return Ok(statements.remove(0));
            }
        }
        Ok(self.rules.iter().fold(statement, |statement, rule| rule.rewrite(statement)))
    }
}

fn is_catalog_query(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    lower.contains("pg_") || lower.contains("information_schema") || lower.contains("regclass")
}

/// Stops at a table of which a sample is asked for: DataFusion would read all of its rows.
struct SampledTable;

impl VisitorMut for SampledTable {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { sample: Some(_), .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// `x = ANY (SELECT …)` is `x IN (SELECT …)`, `x <> ALL (SELECT …)` is `x NOT IN (SELECT …)`.
struct AnyOfQuery;

impl VisitorMut for AnyOfQuery {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let (left, right, negated) = match expr {
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
            _ => return ControlFlow::Continue(()),
        };
        if let Expr::Subquery(query) = right.as_ref() {
            *expr = Expr::InSubquery { expr: left.clone(), subquery: query.clone(), negated };
        }
        ControlFlow::Continue(())
    }
}

/// The place of a row in its window is an integer in PostgreSQL; DataFusion counts without a sign, which no column's type does.
struct SignedRanks;

impl VisitorMut for SignedRanks {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let name = built_in_name(function).filter(|_| function.over.is_some()).map(fold);
        let data_type = match name.as_deref() {
            Some("row_number" | "rank" | "dense_rank") => SqlType::BigInt(None),
            Some("ntile") => SqlType::Int(None),
            _ => return ControlFlow::Continue(()),
        };
        let inner = Box::new(std::mem::replace(expr, Expr::value(Value::Null)));
        *expr = Expr::Cast { kind: CastKind::Cast, expr: inner, data_type, array: false, format: None };
        ControlFlow::Continue(())
    }
}

/// `pg_catalog.nextval('s'::regclass)` is `nextval('s')`: the name and not the number of the sequence.
struct SequenceCalls {
    met: bool,
}

impl VisitorMut for SequenceCalls {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let called = built_in_name(function).filter(|name| Call::named(&fold(name)).is_some()).cloned();
        if let Some(name) = called {
            self.met = true;
            function.name = vec![name].into();
            if let FunctionArguments::List(list) = &mut function.args {
                for argument in &mut list.args {
                    if let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = argument {
                        *value = without_regclass(value).clone();
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// Puts the user's name in the place of `current_user` and its like: the planner serves all sessions.
fn name_user(statement: &mut Statement, user: &str) {
    let _ = VisitMut::visit(statement, &mut UserNamer { user });
}

struct UserNamer<'a> {
    user: &'a str,
}

impl VisitorMut for UserNamer<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            // The column keeps the word as its name.
            if let SelectItem::UnnamedExpr(expr) = item
                && let Some(word) = user_word(expr)
            {
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', word) };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if user_word(expr).is_some() {
            *expr = Expr::value(Value::SingleQuotedString(self.user.to_owned()));
        }
        ControlFlow::Continue(())
    }
}

/// The word by which an expression asks for the user, if it does.
fn user_word(expr: &Expr) -> Option<&'static str> {
    let word = match expr {
        Expr::Identifier(ident) if ident.quote_style.is_none() => &ident.value,
        Expr::Function(function) => match function.name.0.as_slice() {
            [ObjectNamePart::Identifier(ident)] => &ident.value,
            _ => return None,
        },
        _ => return None,
    };
    ["current_user", "session_user", "current_role", "user"].into_iter().find(|known| word.eq_ignore_ascii_case(known))
}

/// Functions that clients ask for on connecting.
pub(super) fn register_functions(context: &SessionContext) {
    let text = |name: &str, value: String| -> ScalarUDF {
        create_udf(
            name,
            Vec::new(),
            DataType::Utf8,
            Volatility::Stable,
            Arc::new(move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(value.clone()))))),
        )
    };
    context.register_udf(text("version", format!("PostgreSQL {SERVER_VERSION}, an in-memory database for far memory")));
    context.register_udf(text("inet_server_addr", "127.0.0.1".to_owned()));
}
