//! LIKE.

use crate::{SqlError, SqlState};

/// Whether `text` matches `pattern`: `%` matches any string, `_` any character, and `escape` makes the next character
/// literal. With `any_case`, letters match in any case.
///
/// # Errors
/// 22025 if matching reaches the end of a pattern that ends with its escape character.
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

impl Item {
    /// Whether the item matches the character.
    fn takes(&self, character: char) -> bool {
        match self {
            Self::One => true,
            Self::Char(wanted) => *wanted == character,
            Self::Any | Self::Escape => false,
        }
    }
}

/// Searches the segments between `%` from left to right, each after the one before. The first must be at the start of
/// the text, and the last at its end.
fn matches(text: &[char], items: &[Item]) -> Result<bool, SqlError> {
    let (items, is_cut) = match items.split_last() {
        Some((Item::Escape, before)) => (before, true),
        _ => (items, false),
    };
    let cut = || {
        let message = "LIKE pattern must not end with escape character";
        Err(SqlError::new(SqlState::INVALID_ESCAPE_SEQUENCE, message))
    };
    let segments: Vec<&[Item]> = items.split(|item| matches!(item, Item::Any)).collect();
    let [first, middle @ .., last] = segments.as_slice() else {
        if text.len() < items.len() || !fits(&text[..items.len()], items) {
            return Ok(false);
        }
        let is_whole = text.len() == items.len();
        return if is_cut && !is_whole { cut() } else { Ok(is_whole && !is_cut) };
    };
    if text.len() < first.len() || !fits(&text[..first.len()], first) {
        return Ok(false);
    }
    let mut rest = &text[first.len()..];
    for segment in middle {
        let Some(at) = find(rest, segment)? else { return Ok(false) };
        rest = &rest[at + segment.len()..];
    }
    if is_cut {
        return match find(rest, last)? {
            Some(at) if at + last.len() < rest.len() => cut(),
            _ => Ok(false),
        };
    }
    Ok(rest.len() >= last.len() && fits(&rest[rest.len() - last.len()..], last))
}

/// Whether the characters match a segment of the same length.
fn fits(text: &[char], segment: &[Item]) -> bool {
    text.iter().zip(segment).all(|(character, item)| item.takes(*character))
}

/// The limit on comparisons in the search for one segment that contains `_` between other characters: some tenths of a
/// second.
const STEPS_MAX: usize = 100_000_000;

/// The first position of a segment.
fn find(text: &[char], segment: &[Item]) -> Result<Option<usize>, SqlError> {
    let is_one = |item: &&Item| matches!(item, Item::One);
    // `_` at either end only needs a character to be there.
    let before = segment.iter().take_while(is_one).count();
    let behind = segment[before..].iter().rev().take_while(is_one).count();
    let core = &segment[before..segment.len() - behind];
    if text.len() < segment.len() {
        return Ok(None);
    }
    let text = &text[before..text.len() - behind];
    let characters = core.iter().map(|item| match item {
        Item::Char(character) => Some(*character),
        _ => None,
    });
    if let Some(characters) = characters.collect::<Option<Vec<char>>>() {
        return Ok(find_characters(text, &characters));
    }
    let mut steps = 0;
    for (at, window) in text.windows(core.len()).enumerate() {
        let same = window.iter().zip(core).take_while(|(character, item)| item.takes(**character)).count();
        if same == core.len() {
            return Ok(Some(at));
        }
        steps += same + 1;
        if steps > STEPS_MAX {
            return Err(SqlError::new(
                SqlState::STATEMENT_TOO_COMPLEX,
                "LIKE pattern too complex for a text of this length",
            )
            .with_hint("Long parts of a pattern without _ are fast."));
        }
    }
    Ok(None)
}

/// The first position of some characters, by the algorithm of Knuth, Morris and Pratt: no character of the text is read
/// twice.
fn find_characters(text: &[char], wanted: &[char]) -> Option<usize> {
    if wanted.is_empty() || wanted.len() > text.len() {
        return wanted.is_empty().then_some(0);
    }
    // For each prefix, the length of its longest proper suffix that is also a prefix.
    let mut borders = vec![0; wanted.len()];
    let mut same = 0;
    for at in 1..wanted.len() {
        while same > 0 && wanted[at] != wanted[same] {
            same = borders[same - 1];
        }
        same += usize::from(wanted[at] == wanted[same]);
        borders[at] = same;
    }
    let mut same = 0;
    for (at, character) in text.iter().enumerate() {
        while same > 0 && *character != wanted[same] {
            same = borders[same - 1];
        }
        same += usize::from(*character == wanted[same]);
        if same == wanted.len() {
            return Some(at + 1 - same);
        }
    }
    None
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
            ("aab", "%aab", true),
            ("aaab", "%aab%", true),
            ("aaab", "a%aab", true),
            ("aab", "aa%ab", false),
            ("abcabd", "%ab_", true),
            ("abcabd", "%_b%_d", true),
            ("ab", "%_%_%_%", false),
            ("abxcd", "%b_c%", true),
            ("abxxcd", "%b_c%", false),
        ] {
            assert_eq!(like(text, pattern, false, Some('\\')).unwrap(), expected, "{text} LIKE {pattern}");
        }
    }

    /// Each of these compared every character with every other.
    #[test]
    fn long_patterns_take_as_many_steps_as_they_are_long() {
        let (text, part) = ("a".repeat(2_000_000), "a".repeat(1_000_000));
        let is_like = |pattern: String| like(&text, &pattern, false, Some('\\')).map_err(|e| e.state.code());
        assert_eq!(is_like(format!("%{part}b%")), Ok(false));
        assert_eq!(is_like(format!("%{part}%_{part}")), Ok(false));
        assert_eq!(is_like(format!("%{part}%{part}%")), Ok(true));
        assert_eq!(is_like(format!("%a_{part}b%")), Err("54001"));
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
