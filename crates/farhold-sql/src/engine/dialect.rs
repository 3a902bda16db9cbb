//! PostgreSQL's dialect, corrected where the parser differs from PostgreSQL.
//!
//! - The parser takes everything after `IS [NOT] DISTINCT FROM` as its right operand: `a IS DISTINCT FROM b AND c`
//!   becomes `a IS DISTINCT FROM (b AND c)`. In PostgreSQL the operator has the precedence of every other `IS`.
//! - It gives `^` precedence over a sign, `-2 ^ 2` as `-(2 ^ 2)`; in PostgreSQL a sign binds more strongly.
//! - A string that continues after a line end is one string; the parser took the second part for an alias.
//! - It extends an operator over all characters that an operator may contain: in `a>=-1`, and in `a</* a comment */b`.
//!   PostgreSQL has no operator that ends in a sign and consists of these characters alone, and none that contains the
//!   start of a comment.
//! - It accepts ON, FOR, WINDOW and TO after an expression of the select list as its name; PostgreSQL does so only
//!   after AS.
//! - It treats every IN whose list begins with a query as IN of that query: `x IN ((SELECT 1), 2)`.
//! - It takes VALUES in parentheses for a function: `x = (VALUES (1))`, `x > ANY (VALUES (1))`.
//! - It has neither BETWEEN SYMMETRIC nor `trim(FROM x)`, and loses the side of `trim(LEADING x, y)`.
//! - It loses the digits of `INTERVAL(3) '…'`.
//! - It takes every INTERVAL for the start of a literal, and tries it as a type and as a word, each nested one again.
//!   INTERVAL before anything but a string or a number is a name.
//! - What it cannot parse after NOT, CASE, `ceil(` and some others it tries again as a call of a function, each nested one again:
//!   2^n attempts. The expressions that a text may begin are counted.
//!
//! All else must be as in PostgreSQL: each method that `PostgreSqlDialect` overrides is forwarded, and a test parses
//! all suites with both dialects.

use std::any::TypeId;
use std::cell::Cell;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{BinaryOperator, CastKind, Expr, TrimWhereField, UnaryOperator, Visitor};
use datafusion::sql::sqlparser::dialect::{Dialect as Dialects, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::engine::walk;

const POSTGRESQL: PostgreSqlDialect = PostgreSqlDialect {};

/// See the module. Each text has one of its own.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// How many more expressions the parser may begin, with those that it gives up.
    beginnings: Cell<usize>,
}

/// The limit on the expressions that the parser begins, for each byte of the text and beside.
const BEGINNINGS_PER_BYTE: usize = 4;
const BEGINNINGS: usize = 1_000;

impl Dialect {
    pub(crate) fn new(text: &str) -> Self {
        Self { beginnings: Cell::new(BEGINNINGS + BEGINNINGS_PER_BYTE * text.len()) }
    }
}

macro_rules! as_postgresql {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self $(, $argument: $type)*) -> $result {
            POSTGRESQL.$name($($argument),*)
        }
    )*};
}

impl Dialects for Dialect {
    fn is_custom_operator_part(&self, character: char) -> bool {
        !matches!(character, '+' | '-' | '*' | '/') && POSTGRESQL.is_custom_operator_part(character)
    }

    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn supports_string_literal_concatenation_with_newline(&self) -> bool {
        true
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let Some(left) = self.beginnings.get().checked_sub(1) else {
            return Some(Err(ParserError::RecursionLimitExceeded));
        };
        self.beginnings.set(left);
        if is_named_interval(parser) {
            return Some(parser.parse_identifier().map(Expr::Identifier));
        }
        if let Some(interval) = interval_of_digits(parser) {
            return Some(interval);
        }
        if let Some(trimmed) = trim_from(parser) {
            return Some(trimmed);
        }
        if is_quantified_values(parser) {
            return Some(parser.parse_query().map(Expr::Subquery));
        }
        if is_values(parser) {
            parser.advance_token();
            let query = parser.parse_query();
            return Some(query.and_then(|query| parser.expect_token(&Token::RParen).map(|_| Expr::Subquery(query))));
        }
        let op = match parser.peek_token_ref().token {
            Token::Minus => UnaryOperator::Minus,
            Token::Plus => UnaryOperator::Plus,
            _ => return None,
        };
        parser.advance_token();
        let operand = parser.parse_subexpr(self.prec_value(Precedence::AtTz));
        Some(operand.map(|operand| Expr::UnaryOp { op, expr: Box::new(operand) }))
    }

    fn parse_infix(&self, parser: &mut Parser<'_>, left: &Expr, _precedence: u8) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IS, NOT};
        if let Some(list) = list_with_queries(parser, left) {
            return Some(list);
        }
        if let Some(between) = between_symmetric(parser, left) {
            return Some(between);
        }
        let negated = if parser.parse_keywords(&[IS, DISTINCT, FROM]) {
            false
        } else if parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]) {
            true
        } else {
            return None;
        };
        let right = parser.parse_subexpr(self.prec_value(Precedence::Is));
        Some(right.map(|right| {
            let (left, right) = (Box::new(left.clone()), Box::new(right));
            if negated { Expr::IsNotDistinctFrom(left, right) } else { Expr::IsDistinctFrom(left, right) }
        }))
    }

    /// An argument's name is an identifier in PostgreSQL. The parser's PostgreSQL dialect allows an expression there,
    /// and so parses each argument twice: 2^n attempts for nested calls.
    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    /// `SELECT 1 ON CONFLICT`, `SELECT 1 FOR UPDATE`: these words name a column only after AS.
    fn is_column_alias(&self, keyword: &Keyword, parser: &mut Parser<'_>) -> bool {
        let needs_as = matches!(keyword, Keyword::ON | Keyword::FOR | Keyword::WINDOW | Keyword::TO);
        !needs_as && POSTGRESQL.is_column_alias(keyword, parser)
    }

    as_postgresql! {
        identifier_quote_style(identifier: &str) -> Option<char>;
        is_delimited_identifier_start(character: char) -> bool;
        is_identifier_start(character: char) -> bool;
        is_identifier_part(character: char) -> bool;
        supports_unicode_string_literal() -> bool;
        is_reserved_for_identifier(keyword: Keyword) -> bool;
        get_next_precedence(parser: &Parser<'_>) -> Option<Result<u8, ParserError>>;
        supports_filter_during_aggregation() -> bool;
        supports_group_by_expr() -> bool;
        prec_value(precedence: Precedence) -> u8;
        allow_extract_custom() -> bool;
        allow_extract_single_quotes() -> bool;
        supports_create_index_with_clause() -> bool;
        supports_explain_with_utility_options() -> bool;
        supports_listen_notify() -> bool;
        supports_factorial_operator() -> bool;
        supports_bitwise_shift_operators() -> bool;
        supports_comment_on() -> bool;
        supports_load_extension() -> bool;
        supports_named_fn_args_with_colon_operator() -> bool;
        supports_empty_projections() -> bool;
        supports_nested_comments() -> bool;
        supports_string_escape_constant() -> bool;
        supports_numeric_literal_underscores() -> bool;
        supports_array_typedef_with_brackets() -> bool;
        supports_geometric_types() -> bool;
        supports_set_names() -> bool;
        supports_alter_column_type_using() -> bool;
        supports_notnull_operator() -> bool;
        supports_interval_options() -> bool;
        supports_insert_table_alias() -> bool;
        supports_create_table_like_parenthesized() -> bool;
        supports_select_wildcard_with_alias() -> bool;
        supports_comma_separated_trim() -> bool;
        supports_xml_expressions() -> bool;
        supports_comment_optimizer_hint() -> bool;
    }
}

/// `(VALUES (1), (2))`
fn is_values(parser: &Parser<'_>) -> bool {
    let token = |n| &parser.peek_nth_token_ref(n).token;
    *token(0) == Token::LParen && matches!(token(1), Token::Word(word) if word.keyword == Keyword::VALUES)
}

/// `VALUES (1), (2))` after `ANY (`, where the parser expects only SELECT and WITH.
fn is_quantified_values(parser: &Parser<'_>) -> bool {
    let is_values = matches!(&parser.peek_token_ref().token, Token::Word(word) if word.keyword == Keyword::VALUES);
    if !is_values {
        return false;
    }
    let taken = (0..=parser.get_current_index()).rev().map(|at| &parser.token_at(at).token);
    let mut taken = taken.filter(|token| !matches!(token, Token::Whitespace(_)));
    let is_open = matches!(taken.next(), Some(Token::LParen));
    let quantifiers = [Keyword::ANY, Keyword::SOME, Keyword::ALL];
    is_open && matches!(taken.next(), Some(Token::Word(word)) if quantifiers.contains(&word.keyword))
}

/// `IN ((SELECT 1), 2)`: the text after the first element does not belong to a query.
fn list_with_queries(parser: &mut Parser<'_>, left: &Expr) -> Option<Result<Expr, ParserError>> {
    use Keyword::{EXCEPT, FETCH, FOR, IN, INTERSECT, LIMIT, NOT, OFFSET, ORDER, UNION};
    const AFTER_QUERIES: [Keyword; 8] = [UNION, INTERSECT, EXCEPT, ORDER, LIMIT, OFFSET, FETCH, FOR];
    let is_in = |n| matches!(&parser.peek_nth_token_ref(n).token, Token::Word(word) if word.keyword == IN);
    let begin = match &parser.peek_token_ref().token {
        Token::Word(word) if word.keyword == IN => 0,
        Token::Word(word) if word.keyword == NOT && is_in(1) => 1,
        _ => return None,
    };
    let opens = |n| parser.peek_nth_token_ref(n).token == Token::LParen;
    if !opens(begin + 1) || !opens(begin + 2) {
        return None;
    }
    match token_after_group(parser) {
        Token::RParen => return None,
        Token::Word(word) if AFTER_QUERIES.contains(&word.keyword) => return None,
        _ => {}
    }
    for _ in 0..begin + 2 {
        parser.advance_token();
    }
    let list = parser.parse_comma_separated(Parser::parse_expr);
    let list = list.and_then(|list| parser.expect_token(&Token::RParen).map(|_| list));
    Some(list.map(|list| Expr::InList { expr: Box::new(left.clone()), list, negated: begin == 1 }))
}

/// The keyword `ahead` tokens from the current position.
fn keyword(parser: &Parser<'_>, ahead: usize) -> Keyword {
    match &parser.peek_nth_token_ref(ahead).token {
        Token::Word(word) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// The limit on BETWEENs within the operands of BETWEEN SYMMETRIC, each of which is duplicated.
const BETWEENS_MAX: usize = 64;

/// `x BETWEEN SYMMETRIC a AND b` becomes `x BETWEEN a AND b OR x BETWEEN b AND a`, as in PostgreSQL.
fn between_symmetric(parser: &mut Parser<'_>, left: &Expr) -> Option<Result<Expr, ParserError>> {
    let negated = keyword(parser, 0) == Keyword::NOT;
    let begin = usize::from(negated);
    if keyword(parser, begin) != Keyword::BETWEEN {
        return None;
    }
    let is_symmetric = match keyword(parser, begin + 1) {
        Keyword::SYMMETRIC => true,
        Keyword::ASYMMETRIC => false,
        _ => return None,
    };
    for _ in 0..begin + 2 {
        parser.advance_token();
    }
    Some(bounds(parser).and_then(|(low, high)| {
        let between = |low: &Expr, high: &Expr, negated: bool| Expr::Between {
            expr: Box::new(left.clone()),
            negated,
            low: Box::new(low.clone()),
            high: Box::new(high.clone()),
        };
        if !is_symmetric {
            return Ok(between(&low, &high, negated));
        }
        if [left, &low, &high].into_iter().map(betweens).sum::<usize>() > BETWEENS_MAX {
            return Err(ParserError::ParserError("BETWEEN SYMMETRIC of too many others".to_owned()));
        }
        let op = if negated { BinaryOperator::And } else { BinaryOperator::Or };
        let (left, right) = (between(&low, &high, negated), between(&high, &low, negated));
        Ok(Expr::Nested(Box::new(Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) })))
    }))
}

fn bounds(parser: &mut Parser<'_>) -> Result<(Expr, Expr), ParserError> {
    let precedence = POSTGRESQL.prec_value(Precedence::Between);
    let low = parser.parse_subexpr(precedence)?;
    parser.expect_keyword_is(Keyword::AND)?;
    Ok((low, parser.parse_subexpr(precedence)?))
}

/// The number of BETWEENs in an expression.
fn betweens(expr: &Expr) -> usize {
    struct Count(usize);
    impl Visitor for Count {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            self.0 += usize::from(matches!(expr, Expr::Between { .. }));
            ControlFlow::Continue(())
        }
    }
    let mut count = Count(0);
    let _ = walk::visit(expr, &mut count);
    count.0
}

/// `trim(FROM x)` and `trim(LEADING FROM x)`, which remove blanks, and all forms with a side: the parser loses the side
/// in `trim(LEADING x, y)`. `y` holds the characters to remove.
fn trim_from(parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
    if keyword(parser, 0) != Keyword::TRIM || parser.peek_nth_token_ref(1).token != Token::LParen {
        return None;
    }
    let trim_where = match keyword(parser, 2) {
        Keyword::BOTH => Some(TrimWhereField::Both),
        Keyword::LEADING => Some(TrimWhereField::Leading),
        Keyword::TRAILING => Some(TrimWhereField::Trailing),
        _ => None,
    };
    let begin = 2 + usize::from(trim_where.is_some());
    let is_of_blanks = keyword(parser, begin) == Keyword::FROM;
    if !is_of_blanks && trim_where.is_none() {
        return None;
    }
    for _ in 0..begin + usize::from(is_of_blanks) {
        parser.advance_token();
    }
    let mut trim = || {
        let (mut expr, mut trim_what) = (Box::new(parser.parse_expr()?), None);
        if !is_of_blanks && parser.parse_keyword(Keyword::FROM) {
            trim_what = Some(std::mem::replace(&mut expr, Box::new(parser.parse_expr()?)));
        } else if parser.consume_token(&Token::Comma) {
            trim_what = Some(Box::new(parser.parse_expr()?));
        }
        parser.expect_token(&Token::RParen)?;
        Ok(Expr::Trim { expr, trim_where, trim_what, trim_characters: None })
    };
    Some(trim())
}

/// The token after the first parenthesised group nested in another.
fn token_after_group<'p>(parser: &'p Parser<'_>) -> &'p Token {
    let mut depth = 0;
    // The current token is the last one consumed.
    let mut at = parser.get_current_index() + 1;
    let mut is_closed = false;
    loop {
        match &parser.token_at(at).token {
            Token::Whitespace(_) => {}
            token if is_closed || *token == Token::EOF => return token,
            Token::LParen => depth += 1,
            Token::RParen => {
                depth -= 1;
                is_closed = depth == 1;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether INTERVAL is a name here: PostgreSQL has interval literals of strings only; the parser also accepts numbers.
fn is_named_interval(parser: &Parser<'_>) -> bool {
    let token = |n| &parser.peek_nth_token_ref(n).token;
    if !matches!(token(0), Token::Word(word) if word.keyword == Keyword::INTERVAL) {
        return false;
    }
    match token(1) {
        Token::Number(..)
        | Token::Placeholder(_)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::UnicodeStringLiteral(_)
        | Token::NationalStringLiteral(_)
        | Token::DollarQuotedString(_) => false,
        Token::LParen => !has_digits(parser),
        _ => true,
    }
}

/// `INTERVAL(3) '...'`
fn has_digits(parser: &Parser<'_>) -> bool {
    let token = |n| &parser.peek_nth_token_ref(n).token;
    matches!(
        (token(1), token(2), token(3), token(4)),
        (
            Token::LParen,
            Token::Number(..),
            Token::RParen,
            Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_)
        )
    )
}

/// `INTERVAL(3) '...'` becomes `CAST('...' AS INTERVAL(3))`: the parser loses the digits.
fn interval_of_digits(parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
    if keyword(parser, 0) != Keyword::INTERVAL || !has_digits(parser) {
        return None;
    }
    let mut cast = || {
        let data_type = parser.parse_data_type()?;
        let expr = Box::new(Expr::Value(parser.parse_value()?));
        Ok(Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None })
    };
    Some(cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(sql: &str) -> String {
        let dialect = Dialect::new(sql);
        let mut parser = Parser::new(&dialect).try_with_sql(sql).expect("tokens");
        grouped(&parser.parse_expr().expect("an expression"))
    }

    /// An expression with every operator that the test uses in parentheses.
    fn grouped(expression: &Expr) -> String {
        match expression {
            Expr::IsDistinctFrom(a, b) => format!("({} <> {})", grouped(a), grouped(b)),
            Expr::IsNotDistinctFrom(a, b) => format!("({} = {})", grouped(a), grouped(b)),
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", grouped(left), grouped(right)),
            Expr::UnaryOp { op, expr } => format!("({op} {})", grouped(expr)),
            other => other.to_string(),
        }
    }

    #[test]
    fn distinct_from_binds_as_is_does() {
        for (sql, read) in [
            ("a IS DISTINCT FROM b AND c", "((a <> b) AND c)"),
            ("a IS NOT DISTINCT FROM b OR c", "((a = b) OR c)"),
            ("a IS DISTINCT FROM b AND c IS DISTINCT FROM d OR e", "(((a <> b) AND (c <> d)) OR e)"),
            ("NOT a IS DISTINCT FROM b AND c", "((NOT (a <> b)) AND c)"),
            ("a + 1 IS DISTINCT FROM b + 2 AND c", "(((a + 1) <> (b + 2)) AND c)"),
            ("a IS DISTINCT FROM b = c", "(a <> (b = c))"),
        ] {
            assert_eq!(expression(sql), read, "{sql}");
        }
    }

    #[test]
    fn signs_bind_more_strongly_than_powers() {
        for (sql, read) in [
            ("-2 ^ 2", "((- 2) ^ 2)"),
            ("2 ^ -2", "(2 ^ (- 2))"),
            ("-a * b", "((- a) * b)"),
            ("- - a + b", "((- (- a)) + b)"),
            ("+a ^ b", "((+ a) ^ b)"),
            ("-a::int", "(- a::INT)"),
            ("NOT -a = b", "(NOT ((- a) = b))"),
        ] {
            assert_eq!(expression(sql), read, "{sql}");
        }
    }

    /// The parser tried each of them twice, as a type and as a word: 2^n attempts.
    #[test]
    fn intervals_of_intervals_are_names() {
        for link in ["interval ", "interval -", "interval second "] {
            let sql = format!("{}(", link.repeat(60));
            let dialect = Dialect::new(&sql);
            let mut parser = Parser::new(&dialect).try_with_sql(&sql).expect("tokens");
            assert!(parser.parse_expr().is_err() || parser.peek_token_ref().token != Token::EOF, "{link}");
        }
        for (sql, read) in [
            ("interval '1 day' + interval", "(INTERVAL '1 day' + interval)"),
            ("interval(3) '1 day' - interval.a", "(CAST('1 day' AS INTERVAL(3)) - interval.a)"),
            ("interval 1 day + interval", "(INTERVAL 1 DAY + interval)"),
        ] {
            assert_eq!(expression(sql), read, "{sql}");
        }
    }

    #[test]
    fn operators_end_before_signs_and_comments() {
        for (sql, read) in [
            ("a>=-1", "(a >= (- 1))"),
            ("a>-5 AND b<>-c", "((a > (- 5)) AND (b <> (- c)))"),
            ("count(*)>-1", "(count(*) > (- 1))"),
            ("a<=+1 OR a>-(1)", "((a <= (+ 1)) OR (a > (- (1))))"),
            ("5-/* c */3", "(5 - 3)"),
            ("2</*c*/3", "(2 < 3)"),
            ("2>--c\n1", "(2 > 1)"),
            ("a->>'b'", "(a ->> 'b')"),
            ("a !~* 'b'", "(a !~* 'b')"),
        ] {
            assert_eq!(expression(sql), read, "{sql}");
        }
    }

    #[test]
    fn what_needs_as_is_no_alias() {
        for sql in
            ["INSERT INTO t SELECT 1 ON CONFLICT DO NOTHING", "SELECT 1 FOR UPDATE", "SELECT a AS on, b AS to FROM t"]
        {
            let read = Parser::parse_sql(&Dialect::new(sql), sql).expect("a statement");
            assert_eq!(read[0].to_string(), sql);
        }
    }

    #[test]
    fn lists_may_begin_with_queries() {
        for (sql, is_list) in [
            ("x IN ((SELECT 1), 2)", true),
            ("x NOT IN ((SELECT (1)) + 1, (2))", true),
            ("x IN ((SELECT 1))", false),
            ("x IN (((SELECT 1)), 2)", true),
            ("x NOT IN ((SELECT 1) UNION (SELECT 2))", false),
            ("x IN ((SELECT 1) ORDER BY 1)", false),
            ("x IN ((1), 2)", true),
        ] {
            let dialect = Dialect::new(sql);
            let mut parser = Parser::new(&dialect).try_with_sql(sql).expect("tokens");
            let read = parser.parse_expr().expect("an expression");
            assert_eq!(matches!(read, Expr::InList { .. }), is_list, "{sql}");
            assert_eq!(read.to_string(), sql);
        }
    }

    #[test]
    fn values_in_parentheses_are_queries() {
        for sql in [
            "x = (VALUES (1), (2))",
            "x > ANY(VALUES (1), (2))",
            "x IN (2, (VALUES (1)))",
            "((VALUES (1) ORDER BY 1 LIMIT 1)) + 1",
        ] {
            let dialect = Dialect::new(sql);
            let mut parser = Parser::new(&dialect).try_with_sql(sql).expect("tokens");
            let read = parser.parse_expr().expect("an expression");
            assert!(walk::has_query(&read), "{sql}");
            assert_eq!(read.to_string(), sql);
        }
    }

    #[test]
    fn bounds_may_be_in_either_order() {
        for (sql, read) in [
            ("a BETWEEN SYMMETRIC 5 AND 1 AND b", "((a BETWEEN 5 AND 1 OR a BETWEEN 1 AND 5) AND b)"),
            ("a NOT BETWEEN symmetric 5 AND 1", "(a NOT BETWEEN 5 AND 1 AND a NOT BETWEEN 1 AND 5)"),
            ("a NOT BETWEEN ASYMMETRIC 1 AND 5", "a NOT BETWEEN 1 AND 5"),
            ("NOT trim(FROM a) = trim(leading from b)", "(NOT (TRIM(a) = TRIM(LEADING b)))"),
        ] {
            assert_eq!(expression(sql), read, "{sql}");
        }
        let nested = format!("{}1{}", "1 BETWEEN SYMMETRIC (".repeat(20), ") AND 2".repeat(20));
        let dialect = Dialect::new(&nested);
        let mut parser = Parser::new(&dialect).try_with_sql(&nested).expect("tokens");
        assert!(parser.parse_expr().is_err());
    }

    #[test]
    fn strings_go_on_behind_a_line_end() {
        assert_eq!(expression("'foo'\n  'bar' || 'x'"), "('foobar' || 'x')");
        assert_eq!(expression("'foo'\n'bar'\n'it''s'"), "'foobarit''s'");
    }

    /// If a new version of `PostgreSqlDialect` overrides a method that [`Dialect`] does not forward, a statement is
    /// parsed differently.
    #[test]
    fn everything_else_is_as_postgresql() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
        let mut compared = 0;
        for file in std::fs::read_dir(folder).expect("the suites") {
            let text = std::fs::read_to_string(file.expect("a suite").path()).expect("a suite");
            for record in text.split("\n\n") {
                let Some((head, rest)) = record.split_once('\n') else { continue };
                if !(head.starts_with("statement") || head.starts_with("query")) {
                    continue;
                }
                let sql = rest.split("\n----").next().unwrap_or_default();
                let lower = sql.to_ascii_lowercase();
                let own = [
                    "distinct from",
                    " in ((",
                    "= (values",
                    "select (values",
                    "interval(",
                    "symmetric ",
                    "(from ",
                    "ing from ",
                    "both from ",
                ];
                let quantified = ["any (values", "some (values", "all (values"];
                if own.iter().chain(&quantified).any(|own| lower.contains(own)) {
                    continue;
                }
                let with = |dialect: &dyn Dialects| Parser::parse_sql(dialect, sql).map_err(|e| e.to_string());
                assert_eq!(with(&Dialect::new(sql)), with(&POSTGRESQL), "{sql}");
                compared += 1;
            }
        }
        assert!(compared > 500, "{compared} statements compared");
    }
}
