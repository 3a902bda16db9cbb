//! Trees of statements that no client has written.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CastKind, Delete, Expr, FromTable, GroupByExpr, Ident, Query, Select, SelectFlavor, SelectItem, SetExpr,
    TableFactor, TableWithJoins, Value,
};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use super::depth::check_depth;
use super::{DEPTH_MAX, parser_error};
use crate::SqlError;
use crate::engine::dialect::Dialect;

/// A quoted identifier.
fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// A table, as a relation of FROM.
fn table(name: &str) -> TableWithJoins {
    let relation = TableFactor::Table {
        name: vec![quoted(name)].into(),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    };
    TableWithJoins { relation, joins: Vec::new() }
}

/// `SELECT column, … FROM table`.
pub(crate) fn columns_of<'a>(columns: impl IntoIterator<Item = &'a str>, name: &str) -> Query {
    let items = columns.into_iter().map(|column| Expr::Identifier(quoted(column))).collect();
    select(items, vec![table(name)])
}

/// `SELECT items FROM from`.
fn select(items: Vec<Expr>, from: Vec<TableWithJoins>) -> Query {
    let select = Select {
        select_token: AttachedToken::empty(),
        optimizer_hints: Vec::new(),
        distinct: None,
        select_modifiers: None,
        top: None,
        top_before_distinct: false,
        projection: items.into_iter().map(SelectItem::UnnamedExpr).collect(),
        exclude: None,
        into: None,
        from,
        lateral_views: Vec::new(),
        prewhere: None,
        selection: None,
        connect_by: Vec::new(),
        group_by: GroupByExpr::Expressions(Vec::new(), Vec::new()),
        cluster_by: Vec::new(),
        distribute_by: Vec::new(),
        sort_by: Vec::new(),
        having: None,
        named_window: Vec::new(),
        qualify: None,
        window_before_qualify: false,
        value_table_mode: None,
        flavor: SelectFlavor::Standard,
    };
    Query {
        with: None,
        body: Box::new(SetExpr::Select(Box::new(select))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

/// `DELETE FROM table`.
pub(crate) fn delete_all(name: &str) -> Delete {
    Delete {
        delete_token: AttachedToken::empty(),
        optimizer_hints: Vec::new(),
        tables: Vec::new(),
        from: FromTable::WithFromKeyword(vec![table(name)]),
        using: None,
        selection: None,
        returning: None,
        output: None,
        order_by: Vec::new(),
        limit: None,
    }
}

/// `SELECT expression, …`, from the texts of the expressions.
pub(super) fn row(expressions: &[String]) -> Result<Query, SqlError> {
    fn whole(parser: &mut Parser<'_>) -> Result<Expr, ParserError> {
        parser.parse_expr()
    }
    select_of(expressions, whole)
}

/// `SELECT CAST(NULL AS type), …`, from the texts of the types.
pub(super) fn nulls(types: &[String]) -> Result<Query, SqlError> {
    select_of(types, |parser| {
        let data_type = parser.parse_data_type()?;
        let expr = Box::new(Expr::value(Value::Null));
        Ok(Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None })
    })
}

fn select_of(texts: &[String], parse: fn(&mut Parser<'_>) -> Result<Expr, ParserError>) -> Result<Query, SqlError> {
    // The limits of a statement hold for all of its parts together.
    // A text may end in a comment that its line ends.
    check_depth(&texts.join(",\n"))?;
    let whole = |text: &String| {
        let dialect = Dialect::new(text);
        let parsed = Parser::new(&dialect).with_recursion_limit(DEPTH_MAX).try_with_sql(text).and_then(|mut parser| {
            let item = parse(&mut parser)?;
            let next = parser.peek_token_ref();
            if next.token == Token::EOF { Ok(item) } else { parser.expected_ref("a comma or )", next) }
        });
        parsed.map_err(|error| parser_error(text, &error))
    };
    Ok(select(texts.iter().map(whole).collect::<Result<_, _>>()?, Vec::new()))
}
