//! From text to statements.

mod build;
mod checks;
mod depth;
mod parsed;
mod split;
mod text;
mod window_places;

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, ObjectNamePart, OrderByExpr, OrderByKind, Query, Statement, Value, ValueWithSpan, VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::scalar::fold;
use super::{error, walk};
use crate::engine::dialect::Dialect;
use crate::{SqlError, SqlState};
use checks::check;
use depth::check_depth;

pub(crate) use build::{columns_of, delete_all};
pub(crate) use checks::{SUBQUERIES_MAX, check_count, is_subquery};
pub(crate) use depth::SET_OPERATIONS_MAX;
pub(crate) use parsed::{Kept, Origin, Parsed, Tree};
pub(crate) use split::{Opaque, opaque_end, split};
pub(crate) use text::to_text;

/// The prefix of the names of functions that implement operators. Result columns are not named after them.
pub(super) const OPERATOR_PREFIX: &str = "farhold_operator_";

/// The parser's limit on the nesting of expressions.
const DEPTH_MAX: usize = 200;

/// Parses a text of one statement.
pub(crate) fn parse_one(sql: &str) -> Result<Statement, SqlError> {
    check_depth(sql)?;
    let trimmed = sql.trim().trim_end_matches(';').trim_end();
    let lower = first_words(trimmed);
    let text = match lower.as_str() {
        // Words that the parser does not support.
        word if word == "abort" || word.starts_with("abort ") => format!("ROLLBACK{}", &trimmed["abort".len()..]),
        // VACUUM has nothing to do, whatever its options and tables.
        word if word.split([' ', '(']).next() == Some("vacuum") => "VACUUM".to_owned(),
        word if word.split_whitespace().eq(["reset", "time", "zone"]) => "RESET timezone".to_owned(),
        // The parser expects COPY's data after a semicolon.
        word if word.starts_with("copy ") => format!("{};", super::copy::plain_booleans(trimmed)),
        word if word.starts_with("table") => all_of_table(trimmed).unwrap_or_else(|| trimmed.to_owned()),
        _ => super::sequence::in_order(trimmed).into_owned(),
    };
    let mut statements = Parser::new(&Dialect::new(&text))
        .with_recursion_limit(DEPTH_MAX)
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| parser_error(&text, &error))?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => finished(statement),
        (None, _) => Err(SqlError::syntax("empty statement")),
        _ => Err(SqlError::syntax("cannot insert multiple commands into a prepared statement")),
    }
}

/// The last step for every tree: refuses what no planner can handle, and reduces two forms to one.
fn finished(mut statement: Statement) -> Result<Statement, SqlError> {
    check(&statement)?;
    match walk::change(&mut statement, &mut OneForm) {
        ControlFlow::Continue(()) => Ok(statement),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The error of a text that the parser refuses.
fn parser_error(text: &str, error: &ParserError) -> SqlError {
    if excludes_rows(text) { SqlError::unsupported("EXCLUDE") } else { error::from_parser(error) }
}

/// `TABLE t ORDER BY ...` as a SELECT: the parser accepts TABLE only within a query. Only the clauses after FROM may
/// follow.
fn all_of_table(sql: &str) -> Option<String> {
    let tokens = Tokenizer::new(&Dialect::new(sql), sql).tokenize().ok()?;
    let mut tokens = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).skip(1);
    let mut after = loop {
        match (tokens.next()?, tokens.next()) {
            (Token::Word(_), Some(Token::Period)) => {}
            (Token::Word(_), after) => break after,
            _ => return None,
        }
    };
    if after == Some(&Token::Mul) {
        after = tokens.next();
    }
    let clauses = [Keyword::ORDER, Keyword::LIMIT, Keyword::OFFSET, Keyword::FETCH, Keyword::FOR];
    let sets = [Keyword::UNION, Keyword::INTERSECT, Keyword::EXCEPT];
    match after {
        None => {}
        Some(Token::Word(word)) if clauses.contains(&word.keyword) || sets.contains(&word.keyword) => {}
        _ => return None,
    }
    Some(format!("SELECT * FROM{}", &sql["table".len()..]))
}

/// Whether a text uses the EXCLUDE of a frame, which the parser does not support.
fn excludes_rows(sql: &str) -> bool {
    let Ok(tokens) = Tokenizer::new(&Dialect::new(sql), sql).tokenize() else { return false };
    let words = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).map(|token| match token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_lowercase(),
        _ => String::new(),
    });
    let words: Vec<String> = words.collect();
    words.windows(2).any(|pair| pair[0] == "exclude" && ["current", "group", "ties", "no"].contains(&pair[1].as_str()))
}

/// Reduces two forms of PostgreSQL's grammar to one: `ORDER BY (1)` sorts by the first item, as without parentheses,
/// and `U&'\0041'` becomes an ordinary string.
struct OneForm;

impl VisitorMut for OneForm {
    type Break = SqlError;

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<SqlError> {
        if let Value::UnicodeStringLiteral(text) = &mut value.value {
            if text.contains('\0') {
                return ControlFlow::Break(SqlError::syntax("invalid Unicode escape value"));
            }
            value.value = Value::SingleQuotedString(std::mem::take(text));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(by) = &mut order.kind
        {
            for OrderByExpr { expr, .. } in by {
                let number = match &*expr {
                    Expr::Nested(inner) => number(inner).cloned(),
                    _ => None,
                };
                if let Some(number) = number {
                    *expr = number;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// The number literal of an expression, without parentheses.
fn number(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::Nested(inner) => number(inner),
        Expr::Value(value) if matches!(value.value, Value::Number(..)) => Some(expression),
        _ => None,
    }
}

/// Parses a text of one expression.
pub(crate) fn parse_expr(text: &str) -> Result<Expr, SqlError> {
    let dialect = Dialect::new(text);
    let parser = Parser::new(&dialect).with_recursion_limit(DEPTH_MAX).try_with_sql(text);
    let parsed = parser.and_then(|mut parser| parser.parse_expr());
    parsed.map_err(|e| error::from_parser(&e))
}

/// The first characters, in lower case.
fn first_words(sql: &str) -> String {
    sql.chars().take(24).collect::<String>().to_ascii_lowercase()
}

/// The expression without enclosing parentheses.
pub(crate) fn unnested(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// The name of a table or index, after checking its schema and database.
pub(crate) fn table_name(name: &ObjectName) -> Result<String, SqlError> {
    let mut parts = Vec::with_capacity(3);
    for part in &name.0 {
        match part {
            ObjectNamePart::Identifier(ident) => parts.push(fold(ident)),
            ObjectNamePart::Function(_) => return Err(SqlError::syntax(format!("improper name: {name}"))),
        }
    }
    match parts.as_slice() {
        [table] => Ok(table.clone()),
        [schema, table] | [_, schema, table] if schema == "public" => Ok(table.clone()),
        [schema, _] | [_, schema, _] => {
            Err(SqlError::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{schema}\" does not exist"))
                .with_hint("There is one schema, public."))
        }
        _ => Err(SqlError::syntax(format!("improper qualified name (too many dotted names): {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::checks::RELATIONS_MAX;
    use super::*;

    /// The parser tried each level in two ways: 2^n attempts.
    #[test]
    fn wrong_texts_are_refused_at_once() {
        let words = [
            "not ",
            "case when ",
            "cast(",
            "ceil(",
            "floor(",
            "extract(day from ",
            "position('a' in ",
            "convert(",
            "overlay(",
        ];
        for word in words {
            for levels in [40, 190, 300] {
                for end in ["", "+", "1 2", "(", "select"] {
                    let code = parse_one(&format!("select {}{end}", word.repeat(levels))).err().map(|e| e.state.code());
                    // The parser takes the last NOT for a name.
                    let is_name = word == "not " && code.is_none();
                    assert!(is_name || matches!(code, Some("42601" | "54001")), "{word}{levels}{end}: {code:?}");
                }
            }
        }
    }

    #[test]
    fn what_doubles_by_nesting_is_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        let nested = |levels: usize, open: &str, close: &str| {
            format!("select {}true{}", open.repeat(levels), close.repeat(levels))
        };
        for (open, close) in [
            ("(", " between false and true)"),
            ("(", " in (false, true))"),
            ("(case ", " when true then true when false then false end)"),
            ("((", ", 1) < (true, 1))"),
            ("(", " = any (array[false, true]))"),
            ("coalesce(", ", 1)"),
            ("nvl(", ", 1)"),
            ("IFNULL(", ", 1)"),
            ("(row(", ", 1) < (true, 1))"),
        ] {
            assert_eq!(state(&nested(8, open, close)), None, "{close}");
            assert_eq!(state(&nested(35, open, close)), Some("54001"), "{close}");
        }
        for open in [
            "1 < any (select 1 where ",
            "(select 1) in (select 1 where ",
            "a in (select ",
            "a not in (select 1 where ",
            "(a, b) = (select 1, 2 where ",
            "(1, 1, 1, 1, 1, 1, 1) = (select 1, 1, 1, 1, 1, 1, 1 where ",
        ] {
            assert_eq!(state(&format!("select {}true{}", open.repeat(4), ")".repeat(4))), None, "{open}");
            assert_eq!(state(&format!("select {}true{}", open.repeat(11), ")".repeat(11))), Some("54001"), "{open}");
        }
        // A query that becomes a join is not copied.
        for (open, close) in
            [("a in (select 1 where ", ")"), ("a in (select 1 where b and a in (select 1 from t having c or ", "))")]
        {
            let sql = format!("select 1 where {}true{}", open.repeat(5), close.repeat(5));
            assert_eq!(state(&sql), None, "{open}");
        }
        // The last argument is not copied.
        assert_eq!(state(&format!("select {}1{}", "coalesce(a, ".repeat(60), ")".repeat(60))), None);
        // Lists may be long.
        assert_eq!(state(&format!("select a in ({}1)", "1, ".repeat(300_000))), None);
        assert_eq!(state(&format!("select a + 1 in ({}1)", "1, ".repeat(50_000))), None);
    }

    #[test]
    fn rows_and_from_clauses_are_not_too_long() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for open in ["(", "row("] {
            let row = |columns: usize| format!("{open}{}1)", "1, ".repeat(columns - 1));
            assert_eq!(state(&format!("select {0} = {0}", row(1664))), None, "{open}");
            assert_eq!(state(&format!("select {0} < {0}", row(1664))), None, "{open}");
            assert_eq!(state(&format!("select {0} = {0}", row(1665))), Some("54011"), "{open}");
        }
        for before in ["select 1 from ", "explain select 1 from ", "delete from t using ", "update t set a = 1 from "] {
            for next in [", t", " cross join t", " join (t join t on true) on true"] {
                let from = |count: usize| format!("{before}t{}", next.repeat(count));
                let each = if next.contains('(') { 2 } else { 1 };
                assert_eq!(state(&from((RELATIONS_MAX - 1) / each)), None, "{before}{next}");
                assert_eq!(state(&from(RELATIONS_MAX / each + 1)), Some("54001"), "{before}{next}");
            }
        }
        // Each SELECT has its own limit.
        let select = format!("select 1 from t{}", ", t".repeat(150));
        assert_eq!(state(&format!("{select} union all {select}")), None);
    }

    #[test]
    fn numbers_of_order_by_have_no_parentheses() {
        for (sql, plain) in [
            ("select a from t order by (1), ((2)) desc", "select a from t order by 1, 2 desc"),
            ("select 1 union select 2 order by (1)", "select 1 union select 2 order by 1"),
            ("select (select b from u order by (1) limit 1)", "select (select b from u order by 1 limit 1)"),
        ] {
            assert_eq!(parse_one(sql).unwrap(), parse_one(plain).unwrap(), "{sql}");
        }
        let other = "select a from t order by (a), (1 + 1), -1";
        assert!(parse_one(other).unwrap().to_string().ends_with("ORDER BY (a), (1 + 1), -1"));
    }

    #[test]
    fn strings_are_no_aliases() {
        for sql in ["select 'foo' 'bar'", "select 1 as 'x'", "select a from (select 1 'a') x"] {
            assert_eq!(parse_one(sql).unwrap_err().state.code(), "42601", "{sql}");
        }
        assert!(parse_one("select 'foo'\n'bar' \"x\"").is_ok());
    }

    #[test]
    fn statements_are_told_apart() {
        let sql = "select ';', E'\\';', \"a;b\"; -- ;\n /* ; /* ; */ */ select $$;$$, $a$;$$;$a$, $1 ;; ; begin";
        assert_eq!(
            split(sql).unwrap(),
            ["select ';', E'\\';', \"a;b\"", "-- ;\n /* ; /* ; */ */ select $$;$$, $a$;$$;$a$, $1", "begin"]
        );
        assert_eq!(split(" ; -- nothing\n ;").unwrap(), Vec::<String>::new());
        assert!(split("select 'abc").is_err());
        assert!(split("select 1 /* ").is_err());
    }

    #[test]
    fn locks_inside() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state("select * from t for update"), None);
        assert_eq!(state("select * from (select * from t for update) x"), Some("0A000"));
        assert_eq!(state("update t set a = (select 1 from u for update)"), Some("0A000"));
        assert_eq!(state("copy (select * from t for update) to stdout"), None);
        assert_eq!(state("copy (select * from (select * from t for update) x) to stdout"), Some("0A000"));
        let nested = |levels: usize, open: &str| format!("{}1{}", open.repeat(levels), ")".repeat(levels));
        for open in ["(select 1 + ", "1 in (select 1 where ", "exists (select "] {
            assert_eq!(state(&format!("select {}", nested(12, open))), None, "{open}");
            assert_eq!(state(&format!("select {}", nested(13, open))), Some("54001"), "{open}");
        }
        // Subqueries side by side do not nest, nor do those of FROM.
        assert_eq!(state(&format!("select {}", vec!["(select 1)"; 30].join(" + "))), None);
        assert_eq!(state(&format!("select 1 from {} x", nested(20, "(select 1 from ").replace('1', "t"))), None);
    }

    /// Whatever the link, each is a level that needs stack when the tree is dropped.
    #[test]
    fn long_chains_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for link in [
            " notnull",
            " is null",
            " not null",
            " in (true)",
            " between 1 and 2",
            " ilike 'a'",
            " similar to 'a'",
            " at time zone 'utc'",
            " xor true",
            " overlaps true",
            " operator(+) 1",
            " + 1",
        ] {
            assert_eq!(state(&format!("select 1{}", link.repeat(100_000))), Some("54001"), "{link}");
        }
        assert_eq!(state(&format!("select null::int{}", "[]".repeat(100_000))), Some("54001"));
        assert_eq!(state(&format!("select null::int{}", "[3]".repeat(100_000))), Some("54001"));
        // Items of a list do not form a chain.
        assert_eq!(state(&format!("select {}1", "array[1], a[1] is null, null::int[], ".repeat(500))), None);
        assert_eq!(state(&format!("select 1 in ({}1)", "(1 between 0 and 2) notnull, ".repeat(3_000))), None);
    }

    /// A comma ends a chain of operators, but not a chain of queries.
    #[test]
    fn long_chains_of_queries_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for link in
            [" union all select 1, 2", " union select 1, 2", " except (select 1, 2)", " intersect all values (1, 2)"]
        {
            let chain = |links: usize| format!("select 1, 2{}", link.repeat(links));
            assert_eq!(state(&chain(SET_OPERATIONS_MAX)), None, "{link}");
            assert_eq!(state(&chain(SET_OPERATIONS_MAX + 1)), Some("54001"), "{link}");
            assert_eq!(state(&chain(100_000)), Some("54001"), "{link}");
            assert_eq!(state(&format!("insert into t {}", chain(100_000))), Some("54001"), "{link}");
        }
    }

    #[test]
    fn qualify_is_no_clause() {
        for sql in ["select a from t qualify a = 1", "select a from (select a from t qualify a = 1) x"] {
            assert_eq!(parse_one(sql).unwrap_err().state.code(), "42601", "{sql}");
        }
    }

    /// The parser does not limit nested types; short texts may contain many.
    #[test]
    fn nested_types_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state(&format!("select cast(1 as {}int", "array<".repeat(1_200))), Some("54001"));
        assert_eq!(state(&format!("select cast(1 as {}int", "table(a ".repeat(900))), Some("54001"));
    }

    #[test]
    fn a_million_brackets_are_refused_at_once() {
        for bracket in ["(", "[", "array["] {
            let refused = parse_one(&format!("select {}", bracket.repeat(1_000_000))).unwrap_err();
            assert_eq!(refused.state.code(), "54001", "{bracket}");
        }
    }

    /// Each level used to be parsed twice.
    #[test]
    fn nested_calls_are_parsed_once() {
        for call in ["abs(", "coalesce(", "f(x => ", "f(x := "] {
            assert!(parse_one(&format!("select {}1{}", call.repeat(60), ")".repeat(60))).is_ok(), "{call}");
        }
    }

    #[test]
    fn arrays_have_six_dimensions() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for (open, close) in [("array[", "]"), ("make_array(", ")")] {
            let nested = |levels: usize| format!("select {}1{}", open.repeat(levels), close.repeat(levels));
            assert_eq!(state(&nested(6)), None, "{open}");
            assert_eq!(state(&nested(7)), Some("54000"), "{open}");
            assert_eq!(state(&nested(100)), Some("54000"), "{open}");
        }
    }

    #[test]
    fn texts_of_trees_read_as_they_do() {
        for sql in [
            "'a''''b'",
            "'\\'''",
            "'\\'",
            "''''",
            "- -1",
            "- - + 1",
            "-(-1)",
            "$$a'b$$",
            "E'a\\'b\\\\c\\n'",
            "'it''s' || 'x'''",
        ] {
            let tree = parse_expr(sql).unwrap();
            let text = to_text(&tree);
            let plain = |expr: &Expr| to_text(expr).replace(['(', ')'], "");
            assert_eq!(plain(&parse_expr(&text).unwrap()), plain(&tree), "{text}");
            if let Expr::Value(_) = tree {
                assert_eq!(parse_expr(&text).unwrap(), tree, "{text}");
            }
        }
        for sql in [
            r"select 'a''''b' from t where x = '\'''",
            r#"select "x\""y", "a""""b", t."c""" from t"#,
            r#"with "w""\""" ("c""") as (select 1) select "w""\"""."c""" as "d\""" from "w""\""" as "v""" ("e""""")"#,
            r#"select "f"""(1), "v""".* from "f"""(1) "v""", (select 1) "u\""" ("c""")"#,
            r#"select 1 from "s"""."t""" join (u join v using ("b\"""))  "w""" using ("a""""b")"#,
        ] {
            let query = parse_one(sql).unwrap();
            assert_eq!(parse_one(&to_text(&query)).unwrap(), query, "{sql}");
        }
    }

    #[test]
    fn one_statement_only() {
        assert_eq!(parse_one("select 1; select 2").unwrap_err().state.code(), "42601");
        assert_eq!(parse_one("selec 1").unwrap_err().state.code(), "42601");
        assert!(parse_one("abort work").is_ok());
        assert!(parse_one("copy t (a, b) from stdin with (format csv, header)").is_ok());
    }
}
