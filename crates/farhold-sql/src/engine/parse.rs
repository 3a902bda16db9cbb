//! From text to statements.

use std::ops::ControlFlow;

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Query, Select, SelectItem, Statement, Visitor};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::{error, walk};
use crate::{SqlError, SqlState};

/// How deeply expressions may nest.
const DEPTH_MAX: usize = 200;

/// The statements of a simple-query string, each as it stands in the text, without its semicolon. Blank ones are left out.
pub(crate) fn split(sql: &str) -> Result<Vec<String>, SqlError> {
    let bytes = sql.as_bytes();
    let mut statements = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut blank = true;
    let mut push = |from: usize, to: usize, blank: bool| {
        if !blank {
            statements.push(sql[from..to].trim().to_owned());
        }
    };
    while at < bytes.len() {
        if bytes[at] == b';' {
            push(start, at, blank);
            blank = true;
            start = at + 1;
            at += 1;
            continue;
        }
        let end = match opaque_end(sql, at)? {
            Some((end, Opaque::Comment)) => {
                at = end;
                continue;
            }
            Some((end, Opaque::Quoted)) => end,
            None => at + 1,
        };
        blank &= bytes[at..end].iter().all(u8::is_ascii_whitespace);
        at = end;
    }
    push(start, bytes.len(), blank);
    Ok(statements)
}

/// A part of a text whose characters mean nothing by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// A string or a quoted identifier.
    Quoted,
    /// A comment.
    Comment,
}

/// Behind the string, quoted identifier or comment that begins at the byte `at`; `None` when none does.
pub(crate) fn opaque_end(sql: &str, at: usize) -> Result<Option<(usize, Opaque)>, SqlError> {
    let bytes = sql.as_bytes();
    let quoted = |end: Option<usize>, what: &str| match end {
        Some(end) => Ok(Some((end, Opaque::Quoted))),
        None => Err(SqlError::syntax(format!("unterminated quoted {what}"))),
    };
    match bytes[at] {
        b'-' if bytes.get(at + 1) == Some(&b'-') => {
            Ok(Some((sql[at..].find('\n').map_or(bytes.len(), |n| at + n), Opaque::Comment)))
        }
        b'/' if bytes.get(at + 1) == Some(&b'*') => {
            let end = comment_end(bytes, at).ok_or_else(|| SqlError::syntax("unterminated /* comment"))?;
            Ok(Some((end, Opaque::Comment)))
        }
        b'\'' => {
            let escapes = at > 0 && matches!(bytes[at - 1], b'e' | b'E');
            quoted(string_end(bytes, at, escapes), "string")
        }
        b'"' => quoted(string_end(bytes, at, false), "identifier"),
        b'$' => Ok(dollar_end(sql, at)?.map(|end| (end, Opaque::Quoted))),
        _ => Ok(None),
    }
}

/// Behind a quoted thing: a doubled quote goes on, and a backslash takes the next byte if `escapes`.
fn string_end(bytes: &[u8], start: usize, escapes: bool) -> Option<usize> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        if bytes[at] == b'\\' && escapes {
            at += 2;
        } else if bytes[at] == quote {
            if bytes.get(at + 1) != Some(&quote) {
                return Some(at + 1);
            }
            at += 2;
        } else {
            at += 1;
        }
    }
    None
}

/// Behind a block comment; they nest.
fn comment_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, start);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// Behind a dollar-quoted string; `None` when it is none (a parameter).
fn dollar_end(sql: &str, start: usize) -> Result<Option<usize>, SqlError> {
    let rest = &sql[start + 1..];
    let Some(len) = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')) else { return Ok(None) };
    if !rest[len..].starts_with('$') || rest.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let tag = &sql[start..start + len + 2];
    let body = start + tag.len();
    match sql[body..].find(tag) {
        Some(n) => Ok(Some(body + n + tag.len())),
        None => Err(SqlError::syntax("unterminated dollar-quoted string")),
    }
}

/// Texts up to here cannot nest more deeply than a thread's stack bears.
const SHORT_BYTES: usize = 8_000;
/// The most operators that may hang on each other in a longer one.
const OPERATORS_MAX: usize = 2_000;

/// Refuses expressions so deep that walking them takes more stack than a thread has: `1 + 1 + 1 + …` for pages. The parser
/// limits parentheses, but not chains of operators, each of which is one level of the tree.
fn check_depth(sql: &str) -> Result<(), SqlError> {
    if sql.len() <= SHORT_BYTES {
        return Ok(());
    }
    let tokens = Tokenizer::new(&Dialect, sql).tokenize().map_err(|e| SqlError::syntax(e.to_string()))?;
    // Operators since the last comma, one count a level of parentheses.
    let mut levels = vec![0_usize];
    for token in &tokens {
        let depth: &mut usize = levels.last_mut().expect("one level is always there");
        match token {
            Token::LParen | Token::LBracket => levels.push(0),
            Token::RParen | Token::RBracket => {
                if levels.len() > 1 {
                    levels.pop();
                }
            }
            Token::Comma | Token::SemiColon => *depth = 0,
            Token::Word(word) => match word.keyword {
                Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::JOIN
                | Keyword::CASE
                | Keyword::LIKE
                | Keyword::COLLATE => *depth += 1,
                _ => {}
            },
            Token::Whitespace(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Placeholder(_)
            | Token::Period => {}
            _ => *depth += 1,
        }
        if levels.iter().sum::<usize>() > OPERATORS_MAX {
            return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the statement is nested too deeply")
                .with_hint(format!("At most {OPERATORS_MAX} operators may depend on each other.")));
        }
    }
    Ok(())
}

/// The one statement of a text.
pub(crate) fn parse_one(sql: &str) -> Result<Statement, SqlError> {
    check_depth(sql)?;
    let trimmed = sql.trim().trim_end_matches(';').trim_end();
    let lower = first_words(trimmed);
    let text = match lower.as_str() {
        // Words that the parser does not know.
        word if word == "abort" || word.starts_with("abort ") => format!("ROLLBACK{}", &trimmed["abort".len()..]),
        // There is nothing to vacuum, whatever the options and tables.
        word if word.split([' ', '(']).next() == Some("vacuum") => "VACUUM".to_owned(),
        // The parser reads COPY's data behind a semicolon.
        word if word.starts_with("copy ") => format!("{};", super::copy::plain_booleans(trimmed)),
        _ => super::sequence::in_order(trimmed).into_owned(),
    };
    let mut statements = Parser::new(&Dialect)
        .with_recursion_limit(DEPTH_MAX)
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|e| error::from_parser(&e))?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => {
            check_aliases(&statement)?;
            Ok(statement)
        }
        (None, _) => Err(SqlError::syntax("there is no statement")),
        _ => Err(SqlError::syntax("cannot insert multiple commands into a prepared statement")),
    }
}

/// Refuses strings as names of items, which the parser takes: `SELECT 'a' 'b'`.
fn check_aliases(statement: &Statement) -> Result<(), SqlError> {
    struct Quoted;
    impl Visitor for Quoted {
        type Break = String;

        fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
            for item in &select.projection {
                if let SelectItem::ExprWithAlias { alias, .. } = item
                    && alias.quote_style == Some('\'')
                {
                    return ControlFlow::Break(alias.to_string());
                }
            }
            ControlFlow::Continue(())
        }
    }
    match walk::visit(statement, &mut Quoted) {
        ControlFlow::Break(alias) => Err(SqlError::syntax(format!("syntax error at or near \"{alias}\""))),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The one expression of a text.
pub(crate) fn parse_expr(text: &str) -> Result<Expr, SqlError> {
    let parsed = Parser::new(&Dialect).try_with_sql(text).and_then(|mut parser| parser.parse_expr());
    parsed.map_err(|e| error::from_parser(&e))
}

/// The beginning in lower case.
fn first_words(sql: &str) -> String {
    sql.chars().take(24).collect::<String>().to_ascii_lowercase()
}

/// How deeply subqueries may stand in each other's expressions. DataFusion checks what is in a subquery once for each one around
/// it, and within that again: 2^n looks, three times a plan. Twenty levels took 19 s, twelve take 0.1 s.
const SUBQUERY_DEPTH_MAX: u32 = 12;

/// PostgreSQL's most dimensions. DataFusion's types nest as the arrays do, and 72 levels take more stack than a thread has.
const DIMENSIONS_MAX: u32 = 6;

/// Refuses what no planner can do: FOR UPDATE below the outermost query, and subqueries and arrays that nest too deeply.
pub(crate) fn check_nesting(statement: &Statement) -> Result<(), SqlError> {
    struct Finder {
        depth: u32,
        locked: bool,
        nested: u32,
        nested_max: u32,
        dimensions: u32,
        dimensions_max: u32,
    }
    fn is_array(expression: &Expr) -> bool {
        match expression {
            Expr::Array(_) => true,
            Expr::Function(function) => function.name.to_string().eq_ignore_ascii_case("make_array"),
            _ => false,
        }
    }
    fn has_query(expression: &Expr) -> bool {
        matches!(expression, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. })
    }
    impl Visitor for Finder {
        type Break = ();

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            self.locked |= self.depth > 0 && !query.locks.is_empty();
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            self.nested += u32::from(has_query(expression));
            self.nested_max = self.nested_max.max(self.nested);
            self.dimensions += u32::from(is_array(expression));
            self.dimensions_max = self.dimensions_max.max(self.dimensions);
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            self.nested -= u32::from(has_query(expression));
            self.dimensions -= u32::from(is_array(expression));
            ControlFlow::Continue(())
        }
    }
    let depth = u32::from(!matches!(statement, Statement::Query(_)));
    let mut finder = Finder { depth, locked: false, nested: 0, nested_max: 0, dimensions: 0, dimensions_max: 0 };
    let _ = walk::visit(statement, &mut finder);
    if finder.locked {
        return Err(SqlError::unsupported("FOR UPDATE in a subquery"));
    }
    if finder.nested_max > SUBQUERY_DEPTH_MAX {
        return Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "subqueries are nested too deeply")
            .with_hint(format!("At most {SUBQUERY_DEPTH_MAX} may stand in each other; name some by WITH.")));
    }
    if finder.dimensions_max > DIMENSIONS_MAX {
        let message = format!("number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})");
        return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
    }
    Ok(())
}

/// The most that is bound of expressions beside what is written: `a BETWEEN b AND c` is `a >= b AND a <= c`, with two `a`.
const COPIES_MAX: u64 = 250_000;

/// Refuses expressions that double at each level in which they nest.
pub(crate) fn check_copies(statement: &Statement) -> Result<(), SqlError> {
    struct Counter {
        /// The sizes of the operands that have been visited of each expression around.
        around: Vec<Vec<u64>>,
        copies: u64,
    }
    impl Visitor for Counter {
        type Break = ();

        fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
            self.around.push(Vec::new());
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            let operands = self.around.pop().unwrap_or_default();
            let written = operands.iter().fold(1_u64, |sum, size| sum.saturating_add(*size));
            let first = operands.first().copied().unwrap_or(0);
            let again = |times: usize| first.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX));
            let mut copied = match expression {
                Expr::Between { .. } => again(1),
                Expr::InList { list, .. } => again(list.len().saturating_sub(1)),
                Expr::Case { operand: Some(_), conditions, .. } => again(conditions.len().saturating_sub(1)),
                // Rows are compared column by column, most of them twice.
                Expr::BinaryOp { left, op, .. }
                    if is_row(left) && !matches!(op, BinaryOperator::And | BinaryOperator::Or) =>
                {
                    written
                }
                _ => 0,
            };
            // A column that stands before a long list takes no more than the list.
            if first <= 1 {
                copied = 0;
            }
            self.copies = self.copies.saturating_add(copied);
            if let Some(operands) = self.around.last_mut() {
                operands.push(written.saturating_add(copied));
            }
            if self.copies > COPIES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if walk::visit(statement, &mut Counter { around: Vec::new(), copies: 0 }).is_break() {
        return Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "expressions are nested too deeply").with_hint(
            "What stands before BETWEEN or IN, or behind CASE, is bound once for each value it is compared with.",
        ));
    }
    Ok(())
}

/// Whether it is a row: `(a, b)`.
fn is_row(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_row(inner),
        Expr::Tuple(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_doubles_by_nesting_is_refused() {
        let state = |sql: &str| check_copies(&parse_one(sql).unwrap()).err().map(|e| e.state.code());
        let nested = |levels: usize, open: &str, close: &str| {
            format!("select {}true{}", open.repeat(levels), close.repeat(levels))
        };
        for (open, close) in [
            ("(", " between false and true)"),
            ("(", " in (false, true))"),
            ("(case ", " when true then true when false then false end)"),
            ("((", ", 1) < (true, 1))"),
        ] {
            assert_eq!(state(&nested(8, open, close)), None, "{close}");
            assert_eq!(state(&nested(35, open, close)), Some("54001"), "{close}");
        }
        // Lists may be long.
        assert_eq!(state(&format!("select a in ({}1)", "1, ".repeat(300_000))), None);
        assert_eq!(state(&format!("select a + 1 in ({}1)", "1, ".repeat(50_000))), None);
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
        let state = |sql: &str| check_nesting(&parse_one(sql).unwrap()).err().map(|e| e.state.code());
        assert_eq!(state("select * from t for update"), None);
        assert_eq!(state("select * from (select * from t for update) x"), Some("0A000"));
        assert_eq!(state("update t set a = (select 1 from u for update)"), Some("0A000"));
        let nested = |levels: usize, open: &str| format!("{}1{}", open.repeat(levels), ")".repeat(levels));
        for open in ["(select 1 + ", "1 in (select ", "exists (select "] {
            assert_eq!(state(&format!("select {}", nested(12, open))), None, "{open}");
            assert_eq!(state(&format!("select {}", nested(13, open))), Some("54001"), "{open}");
        }
        // Those beside each other do not nest, nor do those of FROM.
        assert_eq!(state(&format!("select {}", vec!["(select 1)"; 30].join(" + "))), None);
        assert_eq!(state(&format!("select 1 from {} x", nested(20, "(select 1 from ").replace('1', "t"))), None);
    }

    /// Each level was parsed twice.
    #[test]
    fn nested_calls_are_parsed_once() {
        for call in ["abs(", "coalesce(", "f(x => ", "f(x := "] {
            assert!(parse_one(&format!("select {}1{}", call.repeat(60), ")".repeat(60))).is_ok(), "{call}");
        }
    }

    #[test]
    fn arrays_have_six_dimensions() {
        let state = |sql: &str| check_nesting(&parse_one(sql).unwrap()).err().map(|e| e.state.code());
        for (open, close) in [("array[", "]"), ("make_array(", ")")] {
            let nested = |levels: usize| format!("select {}1{}", open.repeat(levels), close.repeat(levels));
            assert_eq!(state(&nested(6)), None, "{open}");
            assert_eq!(state(&nested(7)), Some("54000"), "{open}");
            assert_eq!(state(&nested(100)), Some("54000"), "{open}");
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
