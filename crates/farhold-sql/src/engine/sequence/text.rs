//! Sequence syntax that the parser does not support: options in any order, and ALTER SEQUENCE … RESTART.

use std::borrow::Cow;
use std::ops::Range;

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

use crate::engine::error;
use crate::{SqlError, SqlState};

/// ALTER SEQUENCE [IF EXISTS] name RESTART [[WITH] number].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    pub(crate) name: ObjectName,
    pub(crate) if_exists: bool,
    pub(crate) with: Option<i64>,
}

/// The statement, if it is an ALTER SEQUENCE.
pub(crate) fn restart(sql: &str) -> Result<Option<Restart>, SqlError> {
    let mut words = sql.split_ascii_whitespace();
    let mut next_is = |word: &str| words.next().is_some_and(|found| found.eq_ignore_ascii_case(word));
    if !(next_is("alter") && next_is("sequence")) {
        return Ok(None);
    }
    let dialect = Dialect::new(sql);
    let mut parser = Parser::new(&dialect).try_with_sql(sql).map_err(|e| error::from_parser(&e))?;
    let mut parse = || {
        parser.next_token();
        parser.next_token();
        let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
        let name = parser.parse_object_name(false)?;
        if !parser.parse_keyword(Keyword::RESTART) {
            return Ok(None);
        }
        let _ = parser.parse_keyword(Keyword::WITH);
        let negative = parser.consume_token(&Token::Minus);
        let with = match parser.peek_token().token {
            Token::Number(text, _) => {
                parser.next_token();
                Some(format!("{}{text}", if negative { "-" } else { "" }))
            }
            _ => None,
        };
        let _ = parser.consume_token(&Token::SemiColon);
        let ended = parser.peek_token().token == Token::EOF;
        Ok(ended.then_some((name, if_exists, with)))
    };
    let parsed = parse().map_err(|e| error::from_parser(&e))?;
    let Some((name, if_exists, with)) = parsed else {
        return Err(SqlError::unsupported("this form of ALTER SEQUENCE").with_hint("RESTART [WITH number] works."));
    };
    let with = with.map(|text| {
        let message = format!("{text} is not a valid bigint");
        text.parse().map_err(|_| SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message))
    });
    Ok(Some(Restart { name, if_exists, with: with.transpose()? }))
}

/// A CREATE SEQUENCE or CREATE TABLE with its sequence options in the only order that the parser accepts. The rest of
/// the text is unchanged.
pub(crate) fn in_order(sql: &str) -> Cow<'_, str> {
    if !sql.get(.."create".len()).is_some_and(|word| word.eq_ignore_ascii_case("create")) {
        return Cow::Borrowed(sql);
    }
    let lower = sql.to_ascii_lowercase();
    if !(lower.contains("sequence") || lower.contains("identity")) {
        return Cow::Borrowed(sql);
    }
    let Some(words) = words(sql) else { return Cow::Borrowed(sql) };
    let is_sequence = words.iter().take(4).any(|(token, _)| is(token, "sequence"));
    let (mut out, mut copied, mut at) = (String::with_capacity(sql.len()), 0, 0);
    while at < words.len() {
        let opens = at >= 2 && words[at - 1].0 == Token::LParen && is(&words[at - 2].0, "identity");
        let (options, end) = if opens || (is_sequence && at > 2) { options(sql, &words, at) } else { (Vec::new(), at) };
        if end == at {
            at += 1;
            continue;
        }
        out.push_str(&sql[copied..words[at].1.start]);
        out.push_str(&options.join(" "));
        copied = words[end - 1].1.end;
        at = end;
    }
    out.push_str(&sql[copied..]);
    Cow::Owned(out)
}

/// A token other than whitespace, and its position in the text.
type Word = (Token, Range<usize>);

fn words(sql: &str) -> Option<Vec<Word>> {
    let tokens = Tokenizer::new(&Dialect::new(sql), sql).tokenize_with_location().ok()?;
    // The parser gives positions as lines and columns.
    let mut characters = sql.char_indices().peekable();
    let mut here = Location { line: 1, column: 1 };
    let mut offset_of = |to: Location| {
        while here < to
            && let Some((_, character)) = characters.next()
        {
            here = match character {
                '\n' => Location { line: here.line + 1, column: 1 },
                _ => Location { line: here.line, column: here.column + 1 },
            };
        }
        characters.peek().map_or(sql.len(), |(offset, _)| *offset)
    };
    let mut words = Vec::with_capacity(tokens.len());
    for token in tokens {
        let place = offset_of(token.span.start)..offset_of(token.span.end);
        if !matches!(token.token, Token::Whitespace(_)) {
            words.push((token.token, place));
        }
    }
    Some(words)
}

fn is(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// The options that start here, sorted, and the index of the token after them.
fn options<'a>(sql: &'a str, words: &[Word], start: usize) -> (Vec<&'a str>, usize) {
    const ORDER: [&str; 6] = ["increment", "minvalue", "maxvalue", "start", "cache", "cycle"];
    let (mut found, mut at) = (Vec::new(), start);
    loop {
        let no = usize::from(words.get(at).is_some_and(|(token, _)| is(token, "no")));
        let Some((word, _)) = words.get(at + no) else { break };
        let Some(rank) = ORDER.iter().position(|option| is(word, option)) else { break };
        let mut end = at + no + 1;
        // BY, WITH, a sign, and the number.
        while no == 0
            && words.get(end).is_some_and(|(token, _)| {
                is(token, "by") || is(token, "with") || matches!(token, Token::Minus | Token::Plus | Token::Number(..))
            })
        {
            end += 1;
            if matches!(words[end - 1].0, Token::Number(..)) {
                break;
            }
        }
        found.push((rank, &sql[words[at].1.start..words[end - 1].1.end]));
        at = end;
    }
    found.sort_by_key(|(rank, _)| *rank);
    (found.into_iter().map(|(_, text)| text).collect(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_in_the_parsers_order() {
        let given = "create sequence s AS int START WITH -5 NO CYCLE INCREMENT BY -2 MAXVALUE 7 CACHE 3";
        assert_eq!(
            in_order(given),
            "create sequence s AS int INCREMENT BY -2 MAXVALUE 7 START WITH -5 CACHE 3 NO CYCLE"
        );
        let given = "CREATE TABLE t (start int, id int GENERATED ALWAYS AS IDENTITY (START 3 INCREMENT 2), b text)";
        assert!(in_order(given).contains("IDENTITY (INCREMENT 2 START 3)"), "{}", in_order(given));
        assert_eq!(in_order("SELECT 'identity'"), "SELECT 'identity'");
        // Text other than options is unchanged, strings above all.
        let given = "CREATE TABLE t (\n  \"ü identity\" text DEFAULT 'it''s', e text DEFAULT E'a\\\\b' -- sequence\n)";
        assert_eq!(in_order(given), given);
    }

    #[test]
    fn restarts() {
        let with = |sql: &str| restart(sql).unwrap().unwrap().with;
        assert_eq!(with("ALTER SEQUENCE s RESTART"), None);
        assert_eq!(with("alter sequence if exists s restart with -7"), Some(-7));
        assert!(restart("ALTER SEQUENCE s INCREMENT 3").is_err());
        assert!(restart("ALTER TABLE s").unwrap().is_none());
    }
}
