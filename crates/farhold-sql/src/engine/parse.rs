//! From text to statements.

use std::fmt::Display;
use std::ops::ControlFlow;

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Query, Select, SelectItem, Statement, Value, ValueWithSpan, VisitMut, Visitor, VisitorMut,
};
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

/// Texts up to here cannot nest more deeply than a thread's stack bears, if they have few brackets.
const SHORT_BYTES: usize = 8_000;
/// The most operators that may hang on each other in a longer one.
const OPERATORS_MAX: usize = 2_000;
/// The most brackets that may be open at a time: more than the parser's own limit, which it keeps everywhere but in types.
const BRACKETS_MAX: usize = 250;

/// The most UNION, INTERSECT and EXCEPT of a statement. Each is a level of the plan, of which 2,000 took more stack than a thread has, and time
/// grows with the square: 500 were planned in 2 s, 1,000 in 7 s, without optimisation.
pub(crate) const SET_OPERATIONS_MAX: usize = 500;

/// Refuses expressions so deep that walking them takes more stack than a thread has: `1 + 1 + 1 + …` for pages. The parser
/// limits parentheses, but not chains of operators, each of which is one level of the tree, and not types within types.
fn check_depth(sql: &str) -> Result<(), SqlError> {
    let few_brackets = || sql.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'<')).count() <= BRACKETS_MAX;
    if sql.len() <= SHORT_BYTES && few_brackets() {
        return Ok(());
    }
    let tokens = Tokenizer::new(&Dialect, sql).tokenize().map_err(|e| SqlError::syntax(e.to_string()))?;
    let too_deep = || SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the statement is nested too deeply");
    // Operators since the last comma: of the innermost brackets, of each pair around them, and of all.
    let (mut depth, mut around, mut all) = (0_usize, Vec::new(), 0_usize);
    let mut set_operations = 0;
    // `ARRAY<`, which PostgreSQL does not have.
    let mut angles = 0_usize;
    // Whether nothing but a number stands behind the last `[`: `int[][3]` is an array of arrays.
    let mut bare = false;
    let mut last_is_array = false;
    for token in &tokens {
        let mut operators = 0;
        let was_bare = bare;
        bare &= matches!(token, Token::Whitespace(_) | Token::Number(..));
        match token {
            Token::LParen | Token::LBracket => {
                around.push(std::mem::take(&mut depth));
                bare = *token == Token::LBracket;
            }
            Token::RParen | Token::RBracket => {
                if let Some(outer) = around.pop() {
                    all -= std::mem::replace(&mut depth, outer);
                }
                operators = usize::from(was_bare && *token == Token::RBracket);
            }
            Token::Comma | Token::SemiColon => all -= std::mem::take(&mut depth),
            Token::Word(word) => {
                operators = usize::from(goes_on(word.keyword));
                set_operations += usize::from(links_queries(word.keyword));
            }
            Token::Whitespace(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Placeholder(_)
            | Token::Period => {}
            Token::Lt => {
                angles += usize::from(last_is_array);
                operators = 1;
            }
            _ => operators = 1,
        }
        depth += operators;
        all += operators;
        if set_operations > SET_OPERATIONS_MAX {
            let message = format!("a statement has at most {SET_OPERATIONS_MAX} UNION, INTERSECT and EXCEPT");
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message);
            return Err(error.with_hint("Rows of constants are a VALUES list."));
        }
        if around.len() > BRACKETS_MAX || angles > BRACKETS_MAX {
            return Err(too_deep());
        }
        if all > OPERATORS_MAX {
            return Err(too_deep().with_hint(format!("At most {OPERATORS_MAX} operators may depend on each other.")));
        }
        if !matches!(token, Token::Whitespace(_)) {
            last_is_array = matches!(token, Token::Word(word) if word.keyword == Keyword::ARRAY);
        }
    }
    Ok(())
}

/// Whether what stands before such a word may become a part of what the word begins. BETWEEN counts with its AND.
fn goes_on(word: Keyword) -> bool {
    matches!(
        word,
        Keyword::AND
            | Keyword::OR
            | Keyword::XOR
            | Keyword::NOT
            | Keyword::IS
            | Keyword::NOTNULL
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::SIMILAR
            | Keyword::RLIKE
            | Keyword::REGEXP
            | Keyword::MATCH
            | Keyword::MEMBER
            | Keyword::OVERLAPS
            | Keyword::OPERATOR
            | Keyword::DIV
            | Keyword::AT
            | Keyword::COLLATE
            | Keyword::CASE
            | Keyword::JOIN
            | Keyword::PIVOT
            | Keyword::UNPIVOT
    ) || links_queries(word)
}

/// Whether such a word stands between two queries. All of them are reserved, but MINUS, which PostgreSQL does not have.
fn links_queries(word: Keyword) -> bool {
    matches!(word, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::MINUS)
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
            check(&statement)?;
            Ok(statement)
        }
        (None, _) => Err(SqlError::syntax("there is no statement")),
        _ => Err(SqlError::syntax("cannot insert multiple commands into a prepared statement")),
    }
}

/// The one expression of a text.
pub(crate) fn parse_expr(text: &str) -> Result<Expr, SqlError> {
    let parsed = Parser::new(&Dialect).try_with_sql(text).and_then(|mut parser| parser.parse_expr());
    parsed.map_err(|e| error::from_parser(&e))
}

/// A text that reads as a statement or an expression does. The parser's own takes `''` and `\'` in a string for what is escaped already, and puts two
/// signs together, which begins a comment.
pub(crate) fn to_text<T: VisitMut + Clone + Display>(tree: &T) -> String {
    struct Plain;
    impl VisitorMut for Plain {
        type Break = ();

        fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
            if let Value::SingleQuotedString(text) | Value::NationalStringLiteral(text) = &mut value.value {
                *text = text.replace('\'', "''");
            }
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            if let Expr::UnaryOp { expr: inner, .. } = expression
                && matches!(**inner, Expr::UnaryOp { .. })
            {
                let signed = std::mem::replace(inner.as_mut(), Expr::value(Value::Null));
                **inner = Expr::Nested(Box::new(signed));
            }
            ControlFlow::Continue(())
        }
    }
    let mut tree = tree.clone();
    let _ = walk::change(&mut tree, &mut Plain);
    tree.to_string()
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

/// The most that is bound of expressions beside what is written: `a BETWEEN b AND c` is `a >= b AND a <= c`, with two `a`.
const COPIES_MAX: u64 = 250_000;

/// PostgreSQL's limit. The protocol counts columns in two bytes.
const COLUMNS_MAX: usize = 1664;

/// Refuses more columns than a query may have.
pub(crate) fn check_count(count: usize) -> Result<(), SqlError> {
    if count > COLUMNS_MAX {
        let message = format!("target lists can have at most {COLUMNS_MAX} entries");
        return Err(SqlError::new(SqlState::TOO_MANY_COLUMNS, message));
    }
    Ok(())
}

/// Refuses what the parser takes and no planner can do: lists of too many columns, which take minutes to plan, strings as names of items
/// (`SELECT 'a' 'b'`), QUALIFY, which PostgreSQL does not have, FOR UPDATE below the outermost query,
/// subqueries and arrays that nest too deeply, and expressions that double at each level in which they nest.
fn check(statement: &Statement) -> Result<(), SqlError> {
    let outermost = match statement {
        Statement::Explain { statement, .. } => statement.as_ref(),
        other => other,
    };
    let queries = u32::from(!matches!(outermost, Statement::Query(_) | Statement::Copy { .. }));
    match walk::visit(outermost, &mut Checks { queries, ..Checks::default() }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[derive(Default)]
struct Checks {
    /// Queries around.
    queries: u32,
    /// Subqueries of expressions around.
    nested: u32,
    /// Arrays around.
    dimensions: u32,
    /// The sizes of the operands that have been visited of each expression around.
    around: Vec<Vec<u64>>,
    copies: u64,
}

impl Visitor for Checks {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        if self.queries > 0 && !query.locks.is_empty() {
            return ControlFlow::Break(SqlError::unsupported("FOR UPDATE in a subquery"));
        }
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<SqlError> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<SqlError> {
        if let Err(error) = check_count(select.projection.len()) {
            return ControlFlow::Break(error);
        }
        if select.qualify.is_some() {
            return ControlFlow::Break(SqlError::syntax("syntax error at or near \"QUALIFY\""));
        }
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { alias, .. } = item
                && alias.quote_style == Some('\'')
            {
                return ControlFlow::Break(SqlError::syntax(format!("syntax error at or near \"{alias}\"")));
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested += u32::from(has_query(expression));
        if self.nested > SUBQUERY_DEPTH_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "subqueries are nested too deeply");
            let hint = format!("At most {SUBQUERY_DEPTH_MAX} may stand in each other; name some by WITH.");
            return ControlFlow::Break(error.with_hint(hint));
        }
        self.dimensions += u32::from(is_array(expression));
        if self.dimensions > DIMENSIONS_MAX {
            let message = format!("number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})");
            return ControlFlow::Break(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        }
        self.around.push(Vec::new());
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested -= u32::from(has_query(expression));
        self.dimensions -= u32::from(is_array(expression));
        let operands = self.around.pop().unwrap_or_default();
        let written = operands.iter().fold(1_u64, |sum, size| sum.saturating_add(*size));
        let first = operands.first().copied().unwrap_or(0);
        let copied = copies(expression, first, written);
        self.copies = self.copies.saturating_add(copied);
        if let Some(operands) = self.around.last_mut() {
            operands.push(written.saturating_add(copied));
        }
        if self.copies > COPIES_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "expressions are nested too deeply");
            return ControlFlow::Break(error.with_hint(
                "What stands before BETWEEN, IN or ANY, or behind CASE, is bound once for each value it is compared with.",
            ));
        }
        ControlFlow::Continue(())
    }
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

/// What is bound of an expression beside what is written. `first` is the size of its first operand, `written` that of all.
fn copies(expression: &Expr, first: u64, written: u64) -> u64 {
    let again = |times: usize| match first {
        // A column that stands before a long list takes no more than the list.
        0 | 1 => 0,
        first => first.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX)),
    };
    match expression {
        Expr::Between { .. } => again(1),
        Expr::InList { list, .. } => again(list.len().saturating_sub(1)),
        Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => match elements(right) {
            Some(count) => again(count),
            None => written.saturating_mul(QUERY_COPIES),
        },
        Expr::InSubquery { expr, .. } if asks(expr) => written.saturating_mul(QUERY_COPIES),
        Expr::Case { operand: Some(_), conditions, .. } => again(conditions.len().saturating_sub(1)),
        // Rows are compared column by column, most of them twice.
        Expr::BinaryOp { left, op, .. } if is_row(left) && !matches!(op, BinaryOperator::And | BinaryOperator::Or) => {
            written
        }
        _ => 0,
    }
}

/// How often the planner's form of `x < ANY (SELECT …)` has the query beside the first time.
const QUERY_COPIES: u64 = 3;

/// The elements of what ANY and ALL compare with; `None` for a query.
fn elements(array: &Expr) -> Option<usize> {
    match array {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => elements(inner),
        Expr::Array(array) => Some(array.elem.len()),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.matches(',').count() + 1),
            _ => Some(1),
        },
        other => (!asks(other)).then_some(1),
    }
}

/// Whether there is a query in an expression.
fn asks(expression: &Expr) -> bool {
    struct Queries;
    impl Visitor for Queries {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    walk::visit(expression, &mut Queries).is_break()
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
        ] {
            assert_eq!(state(&nested(8, open, close)), None, "{close}");
            assert_eq!(state(&nested(35, open, close)), Some("54001"), "{close}");
        }
        for open in ["1 < any (select 1 where ", "(select 1) in (select 1 where "] {
            assert_eq!(state(&format!("select {}true{}", open.repeat(4), ")".repeat(4))), None, "{open}");
            assert_eq!(state(&format!("select {}true{}", open.repeat(11), ")".repeat(11))), Some("54001"), "{open}");
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
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state("select * from t for update"), None);
        assert_eq!(state("select * from (select * from t for update) x"), Some("0A000"));
        assert_eq!(state("update t set a = (select 1 from u for update)"), Some("0A000"));
        assert_eq!(state("copy (select * from t for update) to stdout"), None);
        assert_eq!(state("copy (select * from (select * from t for update) x) to stdout"), Some("0A000"));
        let nested = |levels: usize, open: &str| format!("{}1{}", open.repeat(levels), ")".repeat(levels));
        for open in ["(select 1 + ", "1 in (select ", "exists (select "] {
            assert_eq!(state(&format!("select {}", nested(12, open))), None, "{open}");
            assert_eq!(state(&format!("select {}", nested(13, open))), Some("54001"), "{open}");
        }
        // Those beside each other do not nest, nor do those of FROM.
        assert_eq!(state(&format!("select {}", vec!["(select 1)"; 30].join(" + "))), None);
        assert_eq!(state(&format!("select 1 from {} x", nested(20, "(select 1 from ").replace('1', "t"))), None);
    }

    /// Whatever links it, each link is a level that takes stack when the tree is dropped.
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
            assert_eq!(state(&format!("select 1{}", link.repeat(100_000))), Some("54000"), "{link}");
        }
        assert_eq!(state(&format!("select null::int{}", "[]".repeat(100_000))), Some("54000"));
        assert_eq!(state(&format!("select null::int{}", "[3]".repeat(100_000))), Some("54000"));
        // Items of lists hang on nothing.
        assert_eq!(state(&format!("select {}1", "array[1], a[1] is null, null::int[], ".repeat(500))), None);
        assert_eq!(state(&format!("select 1 in ({}1)", "(1 between 0 and 2) notnull, ".repeat(3_000))), None);
    }

    /// A comma ends a chain of operators, and no chain of queries.
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

    /// The parser does not count types within types, also in short texts.
    #[test]
    fn nested_types_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state(&format!("select cast(1 as {}int", "array<".repeat(1_200))), Some("54000"));
        assert_eq!(state(&format!("select cast(1 as {}int", "table(a ".repeat(900))), Some("54000"));
    }

    #[test]
    fn a_million_brackets_are_refused_at_once() {
        for bracket in ["(", "[", "array["] {
            let refused = parse_one(&format!("select {}", bracket.repeat(1_000_000))).unwrap_err();
            assert_eq!(refused.state.code(), "54000", "{bracket}");
        }
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
        let query = parse_one("select 'a''''b' from t where x = '\\'''").unwrap();
        assert_eq!(parse_one(&to_text(&query)).unwrap(), query);
    }

    #[test]
    fn one_statement_only() {
        assert_eq!(parse_one("select 1; select 2").unwrap_err().state.code(), "42601");
        assert_eq!(parse_one("selec 1").unwrap_err().state.code(), "42601");
        assert!(parse_one("abort work").is_ok());
        assert!(parse_one("copy t (a, b) from stdin with (format csv, header)").is_ok());
    }
}
