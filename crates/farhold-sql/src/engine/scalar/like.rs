//! LIKE.

use crate::{SqlError, SqlState};

/// Whether `text` matches `pattern` (`%` any string, `_` any character, `escape` takes the next one literally), in any case of
/// its letters if `any_case`.
///
/// # Errors
/// 22025: the match comes to the end of a pattern that ends with its escape character.
pub(crate) fn like(text: &str, pattern: &str, any_case: bool, escape: Option<char>) -> Result<bool, SqlError> {
    let lower = |c: char| c.to_lowercase();
    let text: Vec<char> = if any_case { text.chars().flat_map(lower).collect() } else { text.chars().collect() };
    let mut items = Vec::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let literal = match c {
            c if Some(c) == escape => {
                let Some(c) = chars.next() else {
                    items.push(Item::Escape);
                    break;
                };
                c
            }
            '%' => {
                items.push(Item::Any);
                continue;
            }
            '_' => {
                items.push(Item::One);
                continue;
            }
            c => c,
        };
        if any_case {
            items.extend(lower(literal).map(Item::Char));
        } else {
            items.push(Item::Char(literal));
        }
    }
    matches(&text, &items)
}

enum Item {
    Any,
    One,
    Char(char),
    /// The escape character at the pattern's end.
    Escape,
}

/// Greedy with one point to go back to: the last `%`.
fn matches(text: &[char], items: &[Item]) -> Result<bool, SqlError> {
    let (mut at, mut item) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while at < text.len() {
        match items.get(item) {
            Some(Item::Any) => {
                back = Some((at, item));
                item += 1;
                continue;
            }
            Some(Item::One) => {
                at += 1;
                item += 1;
                continue;
            }
            Some(Item::Char(c)) if *c == text[at] => {
                at += 1;
                item += 1;
                continue;
            }
            Some(Item::Escape) => {
                let message = "LIKE pattern must not end with escape character";
                return Err(SqlError::new(SqlState::INVALID_ESCAPE_SEQUENCE, message));
            }
            _ => {}
        }
        let Some((from, any)) = back else { return Ok(false) };
        back = Some((from + 1, any));
        at = from + 1;
        item = any + 1;
    }
    Ok(items[item..].iter().all(|i| matches!(i, Item::Any)))
}

#[cfg(test)]
mod tests {
    use super::like;

    #[test]
    fn patterns() {
        for (text, pattern, expected) in [
            ("", "", true),
            ("", "%", true),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("abc", "a_", false),
            ("aXbXc", "a%X_", true),
            ("100%", "100\\%", true),
            ("1000", "100\\%", false),
            ("größe", "gr__e", true),
        ] {
            assert_eq!(like(text, pattern, false, Some('\\')).unwrap(), expected, "{text} LIKE {pattern}");
        }
    }

    #[test]
    fn any_case_lowers_the_letters_and_not_the_escape() {
        assert!(like("A%", "aX%", true, Some('X')).unwrap());
        assert!(!like("AB", "aX%", true, Some('X')).unwrap());
        assert!(like("axy", "aXy", true, Some('\\')).unwrap());
        assert!(like("\u{39f}\u{394}\u{39f}\u{3a3}", "\u{3bf}\u{3b4}\u{3bf}\u{3c3}", true, None).unwrap());
    }

    #[test]
    fn an_escape_at_the_end_is_an_error_where_the_match_comes_to_it() {
        let state = |text, pattern| like(text, pattern, false, Some('\\')).map_err(|e| e.state.code());
        assert_eq!(state("abcd", "abc\\"), Err("22025"));
        assert_eq!(state("abcd", "%\\"), Err("22025"));
        assert_eq!(state("abc", "x\\"), Ok(false));
        assert_eq!(state("abc", "abc\\"), Ok(false));
    }
}
