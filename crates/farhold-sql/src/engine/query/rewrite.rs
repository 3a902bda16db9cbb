//! Rewrites PostgreSQL's syntax to equivalent syntax that DataFusion supports.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType as SqlType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr,
    Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, Statement, TableFactor, TimezoneInfo, Value, Visitor,
    VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion_pg_catalog::pg_catalog::PG_CATALOG_TABLES;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, RewritePgCatalogOperator,
    RewriteRegCastToSubquery, SqlStatementRewriteRule, StripCollate,
};

use super::at_zone;
use super::casts;
use super::frame_bounds::FrameBounds;
use super::interval_literals::Intervals;
use super::listed_values::ListedValues;
use super::named_windows::NamedWindows;
use super::names;
use super::quantifiers::Quantifiers;
use super::rows::Rows;
use super::series::Series;
use super::similar::Patterns;
use super::subqueries;
use super::volatile::Aggregates;
use super::windows::WindowArguments;
use crate::SqlError;
use crate::engine::ColumnType;
use crate::engine::catalog::Tables;
use crate::engine::error;
use crate::engine::parse::{Origin, parse_expr, parse_one, to_text, unnested};
use crate::engine::scalar::{built_in_name, fold, without_regclass};
use crate::engine::sequence::Call;
use crate::engine::settings::SERVER_VERSION;
use crate::value::exact_decimal;

use super::parameters::to_sql as sql_type;
use crate::engine::walk;

/// Rewrites statements before they are planned.
pub(super) struct Rewriter {
    catalog_queries: PostgresCompatibilityParser,
    rules: Vec<Arc<dyn SqlStatementRewriteRule>>,
    /// The names of aggregate functions.
    aggregates: HashSet<String>,
}

impl Rewriter {
    pub(super) fn new(state: &SessionState) -> Self {
        Self {
            catalog_queries: PostgresCompatibilityParser::new(),
            rules: vec![
                Arc::new(AliasDuplicatedProjectionRewrite),
                Arc::new(CurrentUserVariableToSessionUserFunctionCall),
                Arc::new(StripCollate),
                Arc::new(RewritePgCatalogOperator),
                Arc::new(RewriteRegCastToSubquery::new()),
            ],
            aggregates: state.aggregate_functions().keys().cloned().collect(),
        }
    }

    /// The rewritten statement, and the names of its columns as clients see them, if they are known. A query that reads
    /// only catalog relations gets every rule, some of which replace whole queries of known clients. Other statements
    /// get only the rules that preserve the meaning.
    pub(super) fn rewrite(
        &self,
        statement: Statement,
        origin: &Origin,
        tables: &Tables,
        state: &SessionState,
        user: &str,
    ) -> Result<(Statement, Option<Vec<String>>), SqlError> {
        let mut statement = statement;
        let reads_catalogs = reads_catalogs_alone(&statement);
        // The rules for catalog queries replace all others. They get the query as parsed, unless a writing statement has
        // changed it already.
        let as_parsed = (reads_catalogs && !matches!(origin, Origin::Made)).then(|| statement.clone());
        if walk::change(&mut statement, &mut SampledTable).is_break() {
            return Err(SqlError::unsupported("TABLESAMPLE"));
        }
        let mut zones = Zones { met: false };
        visited(&mut statement, &mut zones)?;
        visited(&mut statement, &mut Patterns)?;
        visited(&mut statement, &mut NamedWindows)?;
        // This must run before rows with several casts become queries.
        let _ = walk::change(&mut statement, &mut ListedValues);
        if !reads_catalogs {
            visited(&mut statement, &mut Quantifiers::new(&self.aggregates))?;
            visited(&mut statement, &mut Series::new(&self.aggregates))?;
        }
        let names = match &mut statement {
            Statement::Query(query) if reads_catalogs => names::output_names(query),
            Statement::Query(query) => names::resolve(query, tables, state, &self.aggregates)?,
            _ => None,
        };
        visited(&mut statement, &mut Having { aggregates: &self.aggregates })?;
        let _ = walk::change(&mut statement, &mut Aggregates { state, names: &self.aggregates, met: 0 });
        visited(&mut statement, &mut WindowArguments { state })?;
        visited(&mut statement, &mut FrameBounds)?;
        let _ = walk::change(&mut statement, &mut SignedRanks);
        let _ = walk::change(&mut statement, &mut Remainders);
        visited(&mut statement, &mut Ages)?;
        visited(&mut statement, &mut Places)?;
        casts::name(&mut statement, &self.aggregates);
        visited(&mut statement, &mut Rows::new(&self.aggregates))?;
        let mut calls = SequenceCalls { met: false };
        let _ = walk::change(&mut statement, &mut calls);
        let mut statement = if reads_catalogs {
            match (as_parsed.filter(|_| !calls.met && !zones.met), origin) {
                (Some(query), Origin::Text(sql)) => self.catalog_query(query, sql)?,
                (query, _) => {
                    let query = query.unwrap_or(statement);
                    let text = to_text(&query);
                    self.catalog_query(query, &text)?
                }
            }
        } else {
            let mut names = CatalogNames { defined: defined_names(&statement) };
            let _ = walk::change(&mut statement, &mut names);
            let _ = walk::change(&mut statement, &mut LongNumbers);
            visited(&mut statement, &mut Intervals)?;
            self.rules.iter().fold(statement, |statement, rule| rule.rewrite(statement))
        };
        name_user(&mut statement, user);
        Ok((statement, names))
    }

    /// A query of the catalogs after all rules. `sql` is its text: clients' queries and parts of them are known by their
    /// texts, here (`pg_catalog::rewrite`) and in `datafusion-pg-catalog`, whose list of them is private and compared
    /// with the tokens of a text. So its parser is the only one that parses a usual query again.
    fn catalog_query(&self, query: Statement, sql: &str) -> Result<Statement, SqlError> {
        let rewritten = crate::pg_catalog::rewrite(sql);
        let text = &rewritten.text;
        let known = self.catalog_queries.parse(text).map_err(|e| error::from_parser(&e))?.pop();
        let known = known.ok_or_else(|| SqlError::syntax("empty statement"))?;
        let own = if rewritten.has_replacements { parse_one(text) } else { Ok(query) };
        let own = own.map(|query| self.catalog_queries.rewrite(query));
        if own.as_ref().is_ok_and(|own| *own == known) {
            return own;
        }
        // Either a known query was replaced, or PostgreSQL's dialect parses it otherwise than ours, which is right.
        let plain = Parser::parse_sql(&PostgreSqlDialect {}, text).map_err(|e| error::from_parser(&e))?;
        let [plain] = plain.as_slice() else { return Err(SqlError::syntax("empty statement")) };
        if known == self.catalog_queries.rewrite(plain.clone()) { own } else { Ok(known) }
    }
}

/// Runs a visitor, whose break value is an error.
fn visited(statement: &mut Statement, visitor: &mut impl VisitorMut<Break = SqlError>) -> Result<(), SqlError> {
    match walk::change(statement, visitor) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
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
pub(super) fn identifiers(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(ObjectNamePart::as_ident).map(fold).collect()
}

pub(super) fn is_catalog_schema(name: &str) -> bool {
    matches!(name, "pg_catalog" | "information_schema")
}

/// Whether it is a relation of `pg_catalog`, which needs no qualifying schema.
pub(super) fn is_catalog_relation(name: &str) -> bool {
    PG_CATALOG_TABLES.contains(&name)
}

/// Whether a statement reads catalog relations and no others.
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

/// Adapts catalog names to DataFusion: `pg_class` becomes `pg_catalog.pg_class`, `pg_catalog.length(x)` becomes
/// `length(x)`.
struct CatalogNames {
    /// The names of WITH queries, which hide relations of the same names.
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

/// Stops at TABLESAMPLE: DataFusion would read all rows of the table.
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

/// `moment AT TIME ZONE zone` becomes `timezone(zone, moment)`: DataFusion plans it as a cast, which has one direction where
/// PostgreSQL's operator has two. `current_timestamp(p)` becomes a cast of the function to p digits.
struct Zones {
    met: bool,
}

impl VisitorMut for Zones {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if let Expr::AtTimeZone { timestamp, time_zone } = expr {
            let take = |of: &mut Expr| std::mem::replace(of, Expr::value(Value::Null));
            self.met = true;
            *expr = subqueries::call(at_zone::NAME, vec![take(time_zone), take(timestamp)]);
            return ControlFlow::Continue(());
        }
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let name = built_in_name(function).map(fold);
        let zone = match name.as_deref() {
            Some("current_timestamp") => TimezoneInfo::WithTimeZone,
            Some("localtimestamp") => TimezoneInfo::None,
            _ => return ControlFlow::Continue(()),
        };
        let FunctionArguments::List(list) = &function.args else { return ControlFlow::Continue(()) };
        let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(digits)))] = list.args.as_slice() else {
            return ControlFlow::Continue(());
        };
        let Value::Number(digits, _) = &digits.value else { return ControlFlow::Continue(()) };
        // PostgreSQL warns that six digits are the maximum.
        let digits = digits.parse::<u64>().map_or(6, |digits| digits.min(6));
        self.met = true;
        let mut inner = function.clone();
        inner.args = FunctionArguments::None;
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(Expr::Function(inner)),
            data_type: SqlType::Timestamp(Some(digits), zone),
            array: false,
            format: None,
        };
        ControlFlow::Continue(())
    }
}

/// HAVING makes one group of all rows, even without GROUP BY or an aggregate; in that case an aggregate is added.
struct Having<'a> {
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
}

impl VisitorMut for Having<'_> {
    type Break = SqlError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
        let Some(condition) = &mut select.having else { return ControlFlow::Continue(()) };
        let items = select.projection.iter().filter_map(subqueries::item_value);
        let has_aggregate =
            items.chain([&*condition]).any(|of| subqueries::is_aggregate_expression(of, self.aggregates));
        if is_grouped || has_aggregate {
            return ControlFlow::Continue(());
        }
        match parse_expr("count(*) IS NOT NULL") {
            Ok(always) => {
                let asked = Expr::Nested(Box::new(condition.clone()));
                let (left, right) = (Box::new(always), Box::new(asked));
                *condition = Expr::BinaryOp { left, op: BinaryOperator::And, right };
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// The rank of a row in its window is a signed integer in PostgreSQL; DataFusion's is unsigned, which no column type
/// is.
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

/// `mod(a, b)` is `a % b`.
struct Remainders;

impl VisitorMut for Remainders {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        if built_in_name(function).is_none_or(|name| fold(name) != "mod") {
            return ControlFlow::Continue(());
        }
        if let FunctionArguments::List(list) = &function.args
            && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(a)), FunctionArg::Unnamed(FunctionArgExpr::Expr(b))] =
                list.args.as_slice()
        {
            let side = |side: &Expr| Box::new(Expr::Nested(Box::new(side.clone())));
            let remainder = Expr::BinaryOp { left: side(a), op: BinaryOperator::Modulo, right: side(b) };
            *expr = Expr::Nested(Box::new(remainder));
        }
        ControlFlow::Continue(())
    }
}

/// `age(moment)` counts from today. A string literal is no timestamp here: PostgreSQL refuses to choose among several
/// types.
struct Ages;

impl VisitorMut for Ages {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let is_age = built_in_name(function).is_some_and(|name| fold(name) == "age");
        if is_age
            && let FunctionArguments::List(list) = &mut function.args
            && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(moment))] = list.args.as_slice()
            && !matches!(unnested(moment), Expr::Value(_))
        {
            match parse_expr("CAST(current_date AS timestamp)") {
                Ok(today) => list.args.insert(0, FunctionArg::Unnamed(FunctionArgExpr::Expr(today))),
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

/// `substr(text, place)`, which takes no patterns, differs from `substring`; the parser has one node for both.
struct Places;

impl VisitorMut for Places {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Substring { expr: of, substring_from: Some(from), substring_for, shorthand: true, .. } = expr else {
            return ControlFlow::Continue(());
        };
        // The call is parsed from a template; the user's expressions are inserted as parsed.
        let mut call = match parse_expr("called(1)") {
            Ok(call) => call,
            Err(error) => return ControlFlow::Break(error),
        };
        if let Expr::Function(function) = &mut call
            && let FunctionArguments::List(list) = &mut function.args
        {
            function.name = vec![Ident::new("substr")].into();
            let arguments = [&*of, &*from].into_iter().chain(substring_for.as_ref());
            let arguments = arguments.map(|of| FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::clone(of))));
            list.args = arguments.collect();
        }
        *expr = call;
        ControlFlow::Continue(())
    }
}

/// A number with more digits than a decimal can hold becomes a double, as on the direct path.
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

/// `pg_catalog.nextval('s'::regclass)` becomes `nextval('s')`, with the name instead of the OID of the sequence.
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

/// Replaces `current_user` and its variants by the user's name: the planner serves all sessions.
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
            // The column keeps the original word as its name.
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

/// The word for the user, such as `current_user`, if the expression is one.
pub(super) fn user_word(expr: &Expr) -> Option<&'static str> {
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

/// Functions that clients call when they connect.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A query of the catalogs is parsed a third time only if the two trees differ.
    #[test]
    fn both_dialects_make_one_tree_of_usual_catalog_queries() {
        let queries = PostgresCompatibilityParser::new();
        for sql in [
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') ORDER BY 1",
            "SELECT n.nspname, c.relname, CASE c.relkind WHEN 'r' THEN 'table' ELSE 'view' END AS kind \
             FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default \
             AND n.nspname !~ '^pg_toast' AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1, 2",
            "SELECT typname FROM pg_type t WHERE t.oid = 'pg_class'::regclass AND typlen > -1 LIMIT 1",
        ] {
            let own = queries.rewrite(parse_one(sql).unwrap());
            assert_eq!(queries.parse(sql).unwrap(), [own], "{sql}");
        }
    }
}
