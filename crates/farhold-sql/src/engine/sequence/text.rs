//! What the parser does not know of sequences: their options in any order, and ALTER SEQUENCE … RESTART.

use std::borrow::Cow;

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::engine::error;
use crate::{SqlError, SqlState};

/// ALTER SEQUENCE [IF EXISTS] name RESTART [[WITH] number].
#[derive(Clone, Debug)]
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
    let mut parser = Parser::new(&Dialect).try_with_sql(sql).map_err(|e| error::from_parser(&e))?;
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
        let message = format!("{text} is no bigint");
        text.parse().map_err(|_| SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message))
    });
    Ok(Some(Restart { name, if_exists, with: with.transpose()? }))
}

/// A CREATE SEQUENCE or CREATE TABLE with the options of its sequences in the one order that the parser takes.
pub(crate) fn in_order(sql: &str) -> Cow<'_, str> {
    if !sql.get(.."create".len()).is_some_and(|word| word.eq_ignore_ascii_case("create")) {
        return Cow::Borrowed(sql);
    }
    let lower = sql.to_ascii_lowercase();
    if !(lower.contains("sequence") || lower.contains("identity")) {
        return Cow::Borrowed(sql);
    }
    let Ok(tokens) = Tokenizer::new(&Dialect, sql).tokenize() else { return Cow::Borrowed(sql) };
    let words: Vec<&Token> = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect();
    let is_sequence = words.iter().take(4).any(|token| is(token, "sequence"));
    let (mut out, mut at) = (Vec::new(), 0);
    while at < words.len() {
        let opens = at >= 2 && *words[at - 1] == Token::LParen && is(words[at - 2], "identity");
        let (options, end) = if opens || (is_sequence && at > 2) { options(&words, at) } else { (Vec::new(), at) };
        if end == at {
            out.push(words[at].to_string());
            at += 1;
        } else {
            out.extend(options);
            at = end;
        }
    }
    Cow::Owned(out.join(" "))
}

fn is(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// The options from here on, sorted, and where they end.
fn options(words: &[&Token], start: usize) -> (Vec<String>, usize) {
    const ORDER: [&str; 6] = ["increment", "minvalue", "maxvalue", "start", "cache", "cycle"];
    let (mut found, mut at) = (Vec::new(), start);
    loop {
        let no = usize::from(words.get(at).is_some_and(|token| is(token, "no")));
        let Some(word) = words.get(at + no) else { break };
        let Some(rank) = ORDER.iter().position(|option| is(word, option)) else { break };
        let mut end = at + no + 1;
        // BY, WITH, a sign, and the number.
        while no == 0
            && words.get(end).is_some_and(|token| {
                is(token, "by") || is(token, "with") || matches!(token, Token::Minus | Token::Plus | Token::Number(..))
            })
        {
            end += 1;
            if matches!(words[end - 1], Token::Number(..)) {
                break;
            }
        }
        let text: Vec<String> = words[at..end].iter().map(ToString::to_string).collect();
        found.push((rank, text.join(" ")));
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
            "create sequence s AS int INCREMENT BY - 2 MAXVALUE 7 START WITH - 5 CACHE 3 NO CYCLE"
        );
        let given = "CREATE TABLE t (start int, id int GENERATED ALWAYS AS IDENTITY (START 3 INCREMENT 2), b text)";
        assert!(in_order(given).contains("IDENTITY ( INCREMENT 2 START 3 )"), "{}", in_order(given));
        assert_eq!(in_order("SELECT 'identity'"), "SELECT 'identity'");
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
