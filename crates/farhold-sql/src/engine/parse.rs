//! From text to statements.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, Statement, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::error;
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
        let escapes = bytes[at] == b'\'' && at > 0 && matches!(bytes[at - 1], b'e' | b'E');
        let end = match bytes[at] {
            b';' => {
                push(start, at, blank);
                blank = true;
                start = at + 1;
                at += 1;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at = sql[at..].find('\n').map_or(bytes.len(), |n| at + n);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at = comment_end(bytes, at).ok_or_else(|| SqlError::syntax("unterminated /* comment"))?;
                continue;
            }
            b'\'' => string_end(bytes, at, escapes).ok_or_else(|| SqlError::syntax("unterminated quoted string"))?,
            b'"' => string_end(bytes, at, false).ok_or_else(|| SqlError::syntax("unterminated quoted identifier"))?,
            b'$' => dollar_end(sql, at)?.unwrap_or(at + 1),
            _ => at + 1,
        };
        blank &= bytes[at..end].iter().all(u8::is_ascii_whitespace);
        at = end;
    }
    push(start, bytes.len(), blank);
    Ok(statements)
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
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize().map_err(|e| SqlError::syntax(e.to_string()))?;
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
    let mut statements = Parser::new(&PostgreSqlDialect {})
        .with_recursion_limit(DEPTH_MAX)
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|e| error::from_parser(&e))?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement),
        (None, _) => Err(SqlError::syntax("there is no statement")),
        _ => Err(SqlError::syntax("cannot insert multiple commands into a prepared statement")),
    }
}

/// The beginning in lower case.
fn first_words(sql: &str) -> String {
    sql.chars().take(24).collect::<String>().to_ascii_lowercase()
}

/// Whether a query below the outermost one has FOR UPDATE.
pub(crate) fn has_inner_locks(statement: &Statement) -> bool {
    struct Finder {
        depth: u32,
        found: bool,
    }
    impl Visitor for Finder {
        type Break = ();

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            self.found |= self.depth > 0 && !query.locks.is_empty();
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }
    }
    let depth = u32::from(!matches!(statement, Statement::Query(_)));
    let mut finder = Finder { depth, found: false };
    let _ = Visit::visit(statement, &mut finder);
    finder.found
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!has_inner_locks(&parse_one("select * from t for update").unwrap()));
        assert!(has_inner_locks(&parse_one("select * from (select * from t for update) x").unwrap()));
        assert!(has_inner_locks(&parse_one("update t set a = (select 1 from u for update)").unwrap()));
    }

    #[test]
    fn one_statement_only() {
        assert_eq!(parse_one("select 1; select 2").unwrap_err().state.code(), "42601");
        assert_eq!(parse_one("selec 1").unwrap_err().state.code(), "42601");
        assert!(parse_one("abort work").is_ok());
        assert!(parse_one("copy t (a, b) from stdin with (format csv, header)").is_ok());
    }
}
