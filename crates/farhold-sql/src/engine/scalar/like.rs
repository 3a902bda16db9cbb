//! LIKE.

/// Whether `text` matches `pattern` (`%` any string, `_` any character, `escape` takes the next one literally).
pub(crate) fn like(text: &str, pattern: &str, escape: Option<char>) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut items = Vec::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        items.push(match c {
            c if Some(c) == escape => Item::Char(chars.next().unwrap_or(c)),
            '%' => Item::Any,
            '_' => Item::One,
            c => Item::Char(c),
        });
    }
    matches(&text, &items)
}

enum Item {
    Any,
    One,
    Char(char),
}

/// Greedy with one point to go back to: the last `%`.
fn matches(text: &[char], items: &[Item]) -> bool {
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
            _ => {}
        }
        let Some((from, any)) = back else { return false };
        back = Some((from + 1, any));
        at = from + 1;
        item = any + 1;
    }
    items[item..].iter().all(|i| matches!(i, Item::Any))
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
            assert_eq!(like(text, pattern, Some('\\')), expected, "{text} LIKE {pattern}");
        }
    }
}
