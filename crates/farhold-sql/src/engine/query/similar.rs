//! SIMILAR TO: DataFusion treats its pattern as a regular expression.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Value, VisitorMut};

use crate::{SqlError, SqlState};

/// Translates the patterns to regular expressions.
pub(super) struct Patterns;

impl VisitorMut for Patterns {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::SimilarTo { pattern, escape_char, .. } = expr else { return ControlFlow::Continue(()) };
        let escape = match escape_char.take().map(|value| value.value.into_string()) {
            None => Some('\\'),
            Some(Some(text)) if text.chars().count() <= 1 => text.chars().next(),
            Some(_) => {
                let error = SqlError::new(SqlState::INVALID_ESCAPE_SEQUENCE, "invalid escape string");
                return ControlFlow::Break(error.with_hint("Escape string must be empty or one character."));
            }
        };
        let text = match pattern.as_ref() {
            Expr::Value(value) => value.value.clone(),
            _ => return ControlFlow::Break(SqlError::unsupported("SIMILAR TO with a pattern that is not a constant")),
        };
        match text {
            Value::Null => {}
            text => match text.into_string().and_then(|text| regular(&text, escape)) {
                Some(regular) => **pattern = Expr::value(Value::SingleQuotedString(regular)),
                None => return ControlFlow::Break(SqlError::unsupported("this SIMILAR TO pattern")),
            },
        }
        ControlFlow::Continue(())
    }
}

/// The regular expression of a pattern. `None` if the pattern ends in its escape, marks a part for SUBSTRING, or has an
/// escape or a class that the library reads differently from PostgreSQL.
fn regular(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut regular = "(?s)^(?:".to_owned();
    let (mut rest, mut in_class) = (pattern.chars(), false);
    while let Some(next) = rest.next() {
        if Some(next) == escape {
            match rest.next()? {
                class @ ('d' | 'w' | 's' | 'D' | 'W' | 'S') => regular.extend(['\\', class]),
                '"' | '0'..='9' | 'a'..='z' | 'A'..='Z' => return None,
                // With a backslash they would match word boundaries.
                literal @ ('<' | '>') => regular.push(literal),
                literal if literal.is_ascii_punctuation() => regular.extend(['\\', literal]),
                literal => regular.push(literal),
            }
            continue;
        }
        match next {
            '\\' => regular.push_str("\\\\"),
            ']' if in_class => {
                in_class = false;
                regular.push(next);
            }
            '[' if in_class && rest.as_str().starts_with([':', '.', '=']) => {
                let (name, behind) = rest.as_str().strip_prefix(':')?.split_once(":]")?;
                regular.push_str(class(name)?);
                rest = behind.chars();
            }
            // The library has set operators there.
            '[' | '&' | '~' if in_class => regular.extend(['\\', next]),
            _ if in_class => regular.push(next),
            '[' => {
                in_class = true;
                regular.push(next);
            }
            '%' => regular.push_str(".*"),
            '_' => regular.push('.'),
            '(' => regular.push_str("(?:"),
            '.' | '^' | '$' => regular.extend(['\\', next]),
            _ => regular.push(next),
        }
    }
    regular.push_str(")$");
    Some(regular)
}

/// The meaning of `[:name:]` within a class, for all letters rather than only ASCII ones.
pub(super) fn class(name: &str) -> Option<&'static str> {
    Some(match name {
        "alnum" => r"\p{Alphabetic}\p{Nd}",
        "alpha" => r"\p{Alphabetic}",
        "blank" => r" \t",
        "cntrl" => r"\p{Cc}",
        "digit" => r"\d",
        "graph" => r"\p{L}\p{M}\p{N}\p{P}\p{S}",
        "lower" => r"\p{Lowercase}",
        "print" => r"\p{L}\p{M}\p{N}\p{P}\p{S}\p{Zs}",
        "punct" => r"\p{P}\p{S}",
        "space" => r"\s",
        "upper" => r"\p{Uppercase}",
        "xdigit" => "0-9A-Fa-f",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_standard() {
        for (pattern, becomes) in [
            ("a%", "(?s)^(?:a.*)$"),
            ("(a|b)_+", "(?s)^(?:(?:a|b).+)$"),
            ("a.c^$", "(?s)^(?:a\\.c\\^\\$)$"),
            ("100\\%", "(?s)^(?:100\\%)$"),
            ("[%_.(]x", "(?s)^(?:[%_.(]x)$"),
            ("[a[&&b]", "(?s)^(?:[a\\[\\&\\&b])$"),
            ("[[:alpha:]_]+", r"(?s)^(?:[\p{Alphabetic}_]+)$"),
            ("[^[:digit:][:space:]]", r"(?s)^(?:[^\d\s])$"),
            (r"\d\W[\s]", r"(?s)^(?:\d\W[\s])$"),
            (r"\<\>\é\.", r"(?s)^(?:<>é\.)$"),
        ] {
            assert_eq!(regular(pattern, Some('\\')).as_deref(), Some(becomes), "{pattern}");
        }
        assert_eq!(regular("a\\b", None).as_deref(), Some("(?s)^(?:a\\\\b)$"));
        assert_eq!(regular("a!%b", Some('!')).as_deref(), Some("(?s)^(?:a\\%b)$"));
        assert_eq!((regular("a\\", Some('\\')), regular("a\\\"b", Some('\\'))), (None, None));
        for pattern in [r"\b", r"\1", r"\x41", "[[.a.]]", "[[=a=]]", "[[:word:]]", "[[:alpha"] {
            assert_eq!(regular(pattern, Some('\\')), None, "{pattern}");
        }
    }
}
