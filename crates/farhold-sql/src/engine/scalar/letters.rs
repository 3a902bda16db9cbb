//! Upper and lower case as in PostgreSQL's C.UTF-8 locale: each character becomes one character, or stays the same.

/// A text in upper case.
pub(crate) fn upper(text: &str) -> String {
    text.chars().map(upper_of).collect()
}

/// A text in lower case.
pub(crate) fn lower(text: &str) -> String {
    text.chars().map(lower_of).collect()
}

fn upper_of(character: char) -> char {
    let mut letters = character.to_uppercase();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        return letter;
    }
    // Greek letters with iota subscript, which the standard library maps to two characters in upper case.
    let capital = match u32::from(character) {
        code @ (0x1f80..=0x1f87 | 0x1f90..=0x1f97 | 0x1fa0..=0x1fa7) => code + 8,
        code @ (0x1fb3 | 0x1fc3 | 0x1ff3) => code + 9,
        code => code,
    };
    char::from_u32(capital).unwrap_or(character)
}

fn lower_of(character: char) -> char {
    // Only the capital I with a dot becomes two characters in the standard library.
    character.to_lowercase().next().unwrap_or(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of PostgreSQL 15.
    #[test]
    fn characters_stay_single() {
        for (small, capital) in
            [("straße", "STRAßE"), ("ŉǰﬁ", "ŉǰﬁ"), ("ı", "I"), ("ǆ", "Ǆ"), ("ᾳᾀὒ", "ᾼᾈὒ"), ("éż", "ÉŻ")]
        {
            assert_eq!(upper(small), capital);
        }
        for (capital, small) in [("İẞ", "iß"), ("ΑΣ", "ασ"), ("ᾈ", "ᾀ"), ("ÉŻ", "éż")] {
            assert_eq!(lower(capital), small);
        }
    }
}
