//! PostgreSQL's ways of saying things that DataFusion knows by other words.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType as SqlType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr,
    Ident, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, OrderByKind, Query, Select, SelectItem, SetExpr,
    Statement, TableFactor, TableWithJoins, Value, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion_pg_catalog::pg_catalog::PG_CATALOG_TABLES;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, FixArrayLiteral,
    RewriteArrayAnyAllOperation, RewritePgCatalogOperator, RewriteRegCastToSubquery, SqlStatementRewriteRule,
    StripCollate,
};

use super::rows::Rows;
use super::similar::Patterns;
use crate::SqlError;
use crate::engine::ColumnType;
use crate::engine::direct::{is_name, output_name};
use crate::engine::error;
use crate::engine::parse::parse_one;
use crate::engine::scalar::{built_in_name, fold, without_regclass};
use crate::engine::sequence::Call;
use crate::engine::settings::SERVER_VERSION;
use crate::engine::types::exact_decimal;
use crate::engine::walk;

use super::parameters::to_sql as sql_type;

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
                Arc::new(RewritePgCatalogOperator),
                Arc::new(RewriteRegCastToSubquery::new()),
            ],
        }
    }

    /// The statement in DataFusion's words. A query that reads the catalogs and nothing else gets every rule, some of which
    /// replace whole queries of known clients; all others get those that keep the meaning.
    pub(super) fn rewrite(&self, statement: Statement, sql: &str, user: &str) -> Result<Statement, SqlError> {
        let mut statement = statement;
        if walk::change(&mut statement, &mut SampledTable).is_break() {
            return Err(SqlError::unsupported("TABLESAMPLE"));
        }
        if let ControlFlow::Break(what) = walk::change(&mut statement, &mut MergedColumns) {
            return Err(SqlError::unsupported(what).with_hint("Write ON, and coalesce() for the column of both."));
        }
        if let ControlFlow::Break(error) = walk::change(&mut statement, &mut Patterns) {
            return Err(error);
        }
        let _ = walk::change(&mut statement, &mut AnyOfQuery { queries: 0 });
        let _ = walk::change(&mut statement, &mut SignedRanks);
        let _ = walk::change(&mut statement, &mut OrderedItems);
        let _ = walk::change(&mut statement, &mut ScalarNames { queries: 0 });
        if let ControlFlow::Break(error) = walk::change(&mut statement, &mut Rows::default()) {
            return Err(error);
        }
        let mut calls = SequenceCalls { met: false };
        let _ = walk::change(&mut statement, &mut calls);
        let mut statement = if reads_catalogs_alone(&statement) {
            let text = if calls.met || sql.is_empty() { &statement.to_string() } else { sql };
            self.catalog_query(text)?
        } else {
            let mut names = CatalogNames { defined: defined_names(&statement) };
            let _ = walk::change(&mut statement, &mut names);
            let _ = walk::change(&mut statement, &mut LongNumbers);
            self.rules.iter().fold(statement, |statement, rule| rule.rewrite(statement))
        };
        name_user(&mut statement, user);
        Ok(statement)
    }

    fn catalog_query(&self, sql: &str) -> Result<Statement, SqlError> {
        let text = crate::pg_catalog::rewrite(sql);
        let mut known = self.catalog_queries.parse(&text).map_err(|e| error::from_parser(&e))?;
        let plain = Parser::parse_sql(&PostgreSqlDialect {}, &text).map_err(|e| error::from_parser(&e))?;
        let (Some(known), [plain]) = (known.pop(), plain.as_slice()) else {
            return Err(SqlError::syntax("there is no statement"));
        };
        // Unless parts of it were replaced, the statement is the one that our own dialect reads.
        if known == self.catalog_queries.rewrite(plain.clone()) {
            return Ok(self.catalog_queries.rewrite(parse_one(&text)?));
        }
        Ok(known)
    }
}

/// The names that the WITH clauses of a statement define.
fn defined_names(statement: &Statement) -> HashSet<String> {
    struct Names(HashSet<String>);
    impl Visitor for Names {
        type Break = ();

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
                self.0.insert(fold(&cte.alias.name));
            }
            ControlFlow::Continue(())
        }
    }
    let mut names = Names(HashSet::new());
    let _ = walk::visit(statement, &mut names);
    names.0
}

/// The identifiers of a name, folded.
fn identifiers(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(ObjectNamePart::as_ident).map(fold).collect()
}

fn is_catalog_schema(name: &str) -> bool {
    matches!(name, "pg_catalog" | "information_schema")
}

/// A relation of `pg_catalog`, which needs no schema before its name.
fn is_catalog_relation(name: &str) -> bool {
    PG_CATALOG_TABLES.contains(&name)
}

/// Whether a statement reads relations of the catalogs and no others.
fn reads_catalogs_alone(statement: &Statement) -> bool {
    struct Relations {
        defined: HashSet<String>,
        catalogs: bool,
        others: bool,
    }
    impl Visitor for Relations {
        type Break = ();

        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            let TableFactor::Table { name, args: None, .. } = factor else { return ControlFlow::Continue(()) };
            match identifiers(name).as_slice() {
                [name] if self.defined.contains(name) => {}
                [name] if is_catalog_relation(name) => self.catalogs = true,
                [.., schema, _] if is_catalog_schema(schema) => self.catalogs = true,
                _ => self.others = true,
            }
            ControlFlow::Continue(())
        }
    }
    let mut relations = Relations { defined: defined_names(statement), catalogs: false, others: false };
    let _ = walk::visit(statement, &mut relations);
    relations.catalogs && !relations.others
}

/// Names of the catalogs as DataFusion knows them: `pg_class` is `pg_catalog.pg_class`, `pg_catalog.length(x)` is `length(x)`.
struct CatalogNames {
    /// By WITH clauses, which hide relations of the same names.
    defined: HashSet<String>,
}

impl CatalogNames {
    fn unqualify(name: &mut ObjectName) {
        if identifiers(name).first().is_some_and(|schema| is_catalog_schema(schema))
            && let Some(last) = name.0.pop()
        {
            *name = ObjectName(vec![last]);
        }
    }
}

impl VisitorMut for CatalogNames {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { name, args: Some(_), .. } => Self::unqualify(name),
            TableFactor::Table { name, args: None, .. } => {
                if let [relation] = identifiers(name).as_slice()
                    && is_catalog_relation(relation)
                    && !self.defined.contains(relation)
                {
                    name.0.insert(0, ObjectNamePart::Identifier(Ident::new("pg_catalog")));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            Self::unqualify(&mut function.name);
        }
        ControlFlow::Continue(())
    }
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

/// The planner takes the left side's for a column that a join has merged: it must be the right one's for RIGHT, and of either for FULL.
struct MergedColumns;

impl MergedColumns {
    fn check(table: &mut TableWithJoins, has_wildcard: bool) -> ControlFlow<&'static str> {
        let count = table.joins.len();
        for join in &mut table.joins {
            use JoinConstraint::{Natural, Using};
            match &mut join.join_operator {
                JoinOperator::FullOuter(Using(_) | Natural) => {
                    return ControlFlow::Break("FULL JOIN with USING or NATURAL");
                }
                JoinOperator::Right(constraint @ (Using(_) | Natural))
                | JoinOperator::RightOuter(constraint @ (Using(_) | Natural)) => {
                    if count > 1 || has_wildcard {
                        return ControlFlow::Break("RIGHT JOIN with USING or NATURAL beside other joins or *");
                    }
                    let constraint = std::mem::replace(constraint, JoinConstraint::None);
                    join.join_operator = JoinOperator::LeftOuter(constraint);
                    std::mem::swap(&mut join.relation, &mut table.relation);
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for MergedColumns {
    type Break = &'static str;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<&'static str> {
        let has_wildcard = select.projection.iter().any(|item| matches!(item, SelectItem::Wildcard(_)));
        select.from.iter_mut().try_for_each(|table| Self::check(table, has_wildcard))
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<&'static str> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, .. } => Self::check(table_with_joins, true),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// `x = ANY (SELECT …)` is `x IN (SELECT …)`, `x <> ALL (SELECT …)` is `x NOT IN (SELECT …)`. Beside other operators the query's column gets a name
/// that nothing else has: the planner compares it with `x` by names.
struct AnyOfQuery {
    queries: usize,
}

impl VisitorMut for AnyOfQuery {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let (left, right, negated) = match expr {
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
            Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => {
                if let Expr::Subquery(query) = right.as_mut() {
                    self.queries += 1;
                    named(query, &format!("__any_{}", self.queries));
                }
                return ControlFlow::Continue(());
            }
            _ => return ControlFlow::Continue(()),
        };
        if let Expr::Subquery(query) = right.as_ref() {
            *expr = Expr::InSubquery { expr: left.clone(), subquery: query.clone(), negated };
        }
        ControlFlow::Continue(())
    }
}

/// Names the column of a query: its expression, or as `SELECT name FROM (query) AS name(name)`, which a correlated one is not taken as.
fn named(query: &mut Box<Query>, name: &str) {
    let is_ordered = query.order_by.is_some();
    if let SetExpr::Select(select) = query.body.as_mut() {
        let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty());
        match select.projection.as_mut_slice() {
            [item @ SelectItem::UnnamedExpr(_)] => {
                if let SelectItem::UnnamedExpr(expr) = item {
                    *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
                }
                return;
            }
            [SelectItem::ExprWithAlias { alias, .. }] if !is_ordered && !is_grouped => {
                *alias = Ident::with_quote('"', name);
                return;
            }
            _ => {}
        }
    }
    let text = format!("SELECT \"{name}\".\"{name}\" FROM (SELECT 1) AS \"{name}\"(\"{name}\")");
    if let Ok(Statement::Query(mut outer)) = parse_one(&text)
        && let SetExpr::Select(select) = outer.body.as_mut()
        && let [TableWithJoins { relation: TableFactor::Derived { subquery, .. }, .. }] = select.from.as_mut_slice()
    {
        std::mem::swap(subquery, query);
        *query = outer;
    }
}

/// The column of a subquery in an expression gets a name that nothing else has: it is not visible, and DataFusion joins it to the columns around.
struct ScalarNames {
    queries: usize,
}

impl VisitorMut for ScalarNames {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let (Expr::Subquery(query) | Expr::InSubquery { subquery: query, .. }) = expr else {
            return ControlFlow::Continue(());
        };
        // What is ordered or grouped may be so by the name.
        let is_plain = query.order_by.is_none();
        if let SetExpr::Select(select) = query.body.as_mut()
            && is_plain
            && matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty())
            && let [SelectItem::ExprWithAlias { alias, .. }] = select.projection.as_mut_slice()
        {
            self.queries += 1;
            *alias = Ident::with_quote('"', format!("__scalar_{}", self.queries));
        }
        ControlFlow::Continue(())
    }
}

/// `ORDER BY id` means the item that is called so, as `id::text` is, before a column of the tables.
struct OrderedItems;

impl VisitorMut for OrderedItems {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let (Some(order), SetExpr::Select(select)) = (&query.order_by, query.body.as_mut()) else {
            return ControlFlow::Continue(());
        };
        let OrderByKind::Expressions(order) = &order.kind else { return ControlFlow::Continue(()) };
        for by in order {
            let Expr::Identifier(ident) = &by.expr else { continue };
            let name = fold(ident);
            let mut called = select.projection.iter_mut().filter(|item| match item {
                SelectItem::UnnamedExpr(expr) => output_name(expr) == name,
                SelectItem::ExprWithAlias { alias, .. } => fold(alias) == name,
                _ => false,
            });
            if let (Some(item), None) = (called.next(), called.next())
                && let SelectItem::UnnamedExpr(expr) = item
                && !is_name(expr)
            {
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
            }
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

/// A number of more digits than a decimal holds is one of double precision, as the direct path reads it.
struct LongNumbers;

impl VisitorMut for LongNumbers {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Value(value) = expr else { return ControlFlow::Continue(()) };
        let Value::Number(text, _) = &value.value else { return ControlFlow::Continue(()) };
        if exact_decimal(text).is_none() {
            *expr = Expr::Cast {
                kind: CastKind::Cast,
                expr: Box::new(Expr::value(Value::SingleQuotedString(text.clone()))),
                data_type: sql_type(ColumnType::Double),
                array: false,
                format: None,
            };
        }
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
    let _ = walk::change(statement, &mut UserNamer { user });
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
