//! Patterns: compiled, after their syntax has been translated.
//!
//! Rust's `regex` library reads some syntax differently from PostgreSQL. That is translated first: a point matches any
//! character including line ends, unless an option says otherwise; `\y`, `\m`, `\M` and `\Z` have other names; `\b`, `\B`
//! and `\<` have other meanings; brackets have no set operators.

use std::fmt::Write as _;
use std::str::Chars;

use regex::Regex;

use super::super::similar::class;
use super::invalid;
use crate::{SqlError, SqlState};

/// The limit on compiled patterns kept per batch. One takes up to 10 MB.
const PATTERNS_MAX: usize = 16;

/// The compiled patterns of a batch.
#[derive(Default)]
pub(in crate::engine::query) struct Compiled {
    /// Pattern, flags, and the compiled expression.
    kept: Vec<(String, String, Regex)>,
    last: usize,
}

impl Compiled {
    /// A pattern with its flags, compiled.
    ///
    /// # Errors
    /// 2201B for an invalid regular expression, 22023 for an unknown flag.
    pub(in crate::engine::query) fn get(&mut self, (pattern, flags): (&str, &str)) -> Result<&Regex, SqlError> {
        let is = |kept: &(String, String, Regex)| kept.0 == pattern && kept.1 == flags;
        if !self.kept.get(self.last).is_some_and(is) {
            self.last = if let Some(at) = self.kept.iter().position(is) {
                at
            } else {
                let regex = compile(pattern, flags)?;
                if self.kept.len() == PATTERNS_MAX {
                    self.kept.clear();
                }
                self.kept.push((pattern.to_owned(), flags.to_owned(), regex));
                self.kept.len() - 1
            };
        }
        Ok(&self.kept[self.last].2)
    }
}

pub(super) fn compile(pattern: &str, flags: &str) -> Result<Regex, SqlError> {
    let mut options = Options::default();
    for flag in flags.chars().filter(|flag| *flag != 'g') {
        if !options.take(flag)? {
            let error = invalid(format!("invalid regular expression option: \"{flag}\""));
            return Err(if flag.is_ascii_digit() {
                error.with_hint("Cast the argument to integer if it is the start position.")
            } else {
                error
            });
        }
    }
    Regex::new(&translated(pattern, options)?).map_err(|error| wrong(error.to_string()))
}

fn wrong(detail: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression").with_detail(detail.into())
}

/// The options of a pattern.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Copy)]
struct Options {
    any_case: bool,
    is_literal: bool,
    is_expanded: bool,
    /// Whether a point and a negated bracket expression match a line end.
    spans_lines: bool,
    /// Whether `^` and `$` match at each line.
    has_lines: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { any_case: false, is_literal: false, is_expanded: false, spans_lines: true, has_lines: false }
    }
}

impl Options {
    /// Applies an option letter. Returns whether it is known.
    fn take(&mut self, letter: char) -> Result<bool, SqlError> {
        match letter {
            'b' | 'e' => return Err(SqlError::unsupported("basic and extended regular expressions")),
            'c' => self.any_case = false,
            'i' => self.any_case = true,
            'm' | 'n' => (self.spans_lines, self.has_lines) = (false, true),
            'p' => (self.spans_lines, self.has_lines) = (false, false),
            'q' => self.is_literal = true,
            's' => (self.spans_lines, self.has_lines) = (true, false),
            't' => self.is_expanded = false,
            'w' => (self.spans_lines, self.has_lines) = (true, true),
            'x' => self.is_expanded = true,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The pattern in the syntax of Rust's library.
fn translated(pattern: &str, mut options: Options) -> Result<String, SqlError> {
    let mut rest = pattern;
    if let Some(literal) = pattern.strip_prefix("***=") {
        (rest, options.is_literal) = (literal, true);
    } else if let Some(advanced) = pattern.strip_prefix("***:") {
        rest = advanced;
    }
    if !options.is_literal
        && let Some((letters, behind)) = rest.strip_prefix("(?").and_then(|embedded| embedded.split_once(')'))
        && !letters.is_empty()
        && letters.bytes().all(|letter| letter.is_ascii_alphabetic())
    {
        for letter in letters.chars() {
            if !options.take(letter)? {
                return Err(wrong("invalid embedded option"));
            }
        }
        rest = behind;
    }
    let letters = [
        ('i', options.any_case),
        ('m', options.has_lines),
        ('s', options.spans_lines),
        ('x', options.is_expanded && !options.is_literal),
    ];
    let letters: String = letters.iter().filter(|(_, is_on)| *is_on).map(|(letter, _)| letter).collect();
    let regular = if letters.is_empty() { String::new() } else { format!("(?{letters})") };
    if options.is_literal {
        return Ok(regular + &regex::escape(rest));
    }
    let mut translation = Translation { rest: rest.chars(), regular, options };
    translation.run()?;
    Ok(translation.regular)
}

struct Translation<'p> {
    rest: Chars<'p>,
    regular: String,
    options: Options,
}

/// An item of a bracket expression.
enum Item {
    Character(char),
    Class(&'static str),
}

impl Translation<'_> {
    fn run(&mut self) -> Result<(), SqlError> {
        while let Some(next) = self.rest.next() {
            match next {
                '\\' => self.escape()?,
                '[' => self.bracket()?,
                // Before anything but a number it does not start a bound.
                '{' if !self.rest.as_str().starts_with(|c: char| c.is_ascii_digit()) => self.regular.push_str("\\{"),
                '(' if self.rest.as_str().starts_with("?#") => self.skip_to(')'),
                '#' if self.options.is_expanded => self.skip_to('\n'),
                next => self.regular.push(next),
            }
        }
        Ok(())
    }

    fn skip_to(&mut self, end: char) {
        let _ = self.rest.find(|c| *c == end);
    }

    fn literal(&mut self, character: char) {
        if character.is_whitespace() || character.is_control() {
            let _ = write!(self.regular, "\\x{{{:x}}}", u32::from(character));
        } else {
            self.regular.push_str(&regex::escape(character.encode_utf8(&mut [0; 4])));
        }
    }

    /// An escape outside of brackets.
    fn escape(&mut self) -> Result<(), SqlError> {
        let place = match self.rest.as_str().chars().next() {
            Some('m') => "\\b{start}",
            Some('M') => "\\b{end}",
            Some('y') => "\\b",
            Some('Y') => "\\B",
            Some('A') => "\\A",
            Some('Z') => "\\z",
            _ => {
                match self.escaped()? {
                    Item::Character(character) => self.literal(character),
                    Item::Class(class) => self.regular.push_str(class),
                }
                return Ok(());
            }
        };
        self.rest.next();
        self.regular.push_str(place);
        Ok(())
    }

    /// An escape that is allowed everywhere.
    fn escaped(&mut self) -> Result<Item, SqlError> {
        let invalid = || wrong("invalid escape \\ sequence");
        let next = self.rest.next().ok_or_else(invalid)?;
        let character = match next {
            'd' => return Ok(Item::Class("\\d")),
            's' => return Ok(Item::Class("\\s")),
            'w' => return Ok(Item::Class("\\w")),
            'D' => return Ok(Item::Class("\\D")),
            'S' => return Ok(Item::Class("\\S")),
            'W' => return Ok(Item::Class("\\W")),
            'a' => '\x07',
            'b' => '\x08',
            'B' => '\\',
            'c' => {
                let of = self.rest.next().ok_or_else(invalid)?;
                char::from_u32(u32::from(of) & 0x1f).ok_or_else(invalid)?
            }
            'e' => '\x1b',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            'u' => self.code(16, 4..=4)?,
            'U' => self.code(16, 8..=8)?,
            'x' => self.code(16, 1..=255)?,
            '0' if !self.rest.as_str().starts_with(|c: char| c.is_digit(8)) => '\0',
            '0' => self.code(8, 1..=2)?,
            '1'..='7' if self.rest.as_str().starts_with(|c: char| c.is_digit(8)) => {
                let before = self.rest.as_str().len();
                let more = self.code(8, 1..=2)?;
                let digits = (before - self.rest.as_str().len()) as u32;
                char::from_u32((u32::from(next) - u32::from('0')) * 8_u32.pow(digits) + u32::from(more))
                    .ok_or_else(invalid)?
            }
            '1'..='9' => return Err(wrong("back-references are not supported")),
            'A'..='Z' | 'a'..='z' => return Err(invalid()),
            other => other,
        };
        Ok(Item::Character(character))
    }

    /// A character given by its code with a number of digits.
    fn code(&mut self, radix: u32, digits: std::ops::RangeInclusive<usize>) -> Result<char, SqlError> {
        let (mut code, mut count) = (0_u32, 0);
        while count < *digits.end()
            && let Some(digit) = self.rest.as_str().chars().next().and_then(|c| c.to_digit(radix))
        {
            code = code.saturating_mul(radix).saturating_add(digit);
            count += 1;
            self.rest.next();
        }
        let code = if digits.contains(&count) { char::from_u32(code) } else { None };
        code.ok_or_else(|| wrong("invalid escape \\ sequence"))
    }

    /// A bracket expression, from behind its opening bracket.
    fn bracket(&mut self) -> Result<(), SqlError> {
        for (name, place) in [("[:<:]]", "\\b{start}"), ("[:>:]]", "\\b{end}")] {
            if let Some(behind) = self.rest.as_str().strip_prefix(name) {
                self.rest = behind.chars();
                self.regular.push_str(place);
                return Ok(());
            }
        }
        self.regular.push('[');
        let is_negated = self.rest.as_str().starts_with('^');
        if is_negated {
            self.rest.next();
            self.regular.push('^');
            if !self.options.spans_lines {
                self.regular.push_str("\\n");
            }
        }
        let mut is_first = true;
        while is_first || !self.rest.as_str().starts_with(']') {
            is_first = false;
            match self.item()? {
                Item::Class(class) => self.regular.push_str(class),
                Item::Character(character) => {
                    self.literal(character);
                    let rest = self.rest.as_str();
                    if rest.starts_with('-') && !rest.starts_with("-]") {
                        self.rest.next();
                        self.regular.push('-');
                        match self.item()? {
                            Item::Character(last) => self.literal(last),
                            Item::Class(_) => return Err(wrong("invalid character range")),
                        }
                    }
                }
            }
        }
        self.rest.next();
        self.regular.push(']');
        Ok(())
    }

    fn item(&mut self) -> Result<Item, SqlError> {
        let unbalanced = || wrong("brackets [] not balanced");
        let next = self.rest.next().ok_or_else(unbalanced)?;
        let rest = self.rest.as_str();
        match next {
            '\\' => self.escaped(),
            '[' if rest.starts_with(':') => {
                let (name, behind) = rest[1..].split_once(":]").ok_or_else(unbalanced)?;
                self.rest = behind.chars();
                let class = if name == "word" { Some("\\w") } else { class(name) };
                class.map(Item::Class).ok_or_else(|| wrong("invalid character class"))
            }
            '[' if rest.starts_with(['.', '=']) => {
                let end = if rest.starts_with('.') { ".]" } else { "=]" };
                let (name, behind) = rest[1..].split_once(end).ok_or_else(unbalanced)?;
                self.rest = behind.chars();
                let mut characters = name.chars();
                match (characters.next(), characters.next()) {
                    (Some(character), None) => Ok(Item::Character(character)),
                    _ => Err(wrong("invalid collating element")),
                }
            }
            other => Ok(Item::Character(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(text: &str, pattern: &str, flags: &str) -> Result<bool, String> {
        let regex = compile(pattern, flags).map_err(|error| error.state.code().to_owned())?;
        Ok(regex.is_match(text))
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn patterns_are_read_as_postgresql_reads_them() {
        for (text, pattern, flags, expected) in [
            ("a\nb", "a.b", "", true),
            ("a\nb", "a.b", "n", false),
            ("a\nb", "(?p)a.b", "", false),
            ("a\nb", "(?w)^b", "", true),
            ("a\nb", "(?s)^b", "", false),
            ("a\nb", "(?p)^b", "", false),
            ("a\nb", "(?n)a[^x]b", "", false),
            ("a\nb", "a[^x]b", "", true),
            ("a", "A", "ci", true),
            ("a", "A", "ic", false),
            ("AB", "(?c)b", "i", false),
            ("a.b", "a.b", "q", true),
            ("a.b", "***=a.b", "", true),
            ("axb", "***=a.b", "", false),
            ("X", "***:(?i)x", "", true),
            ("a b", "(?x)a[ ]b", "", true),
            ("ab", "(?x)a b # [", "", true),
            ("ab", "a(?#foo)b", "", true),
            ("a<b", r"\<", "", true),
            ("a b", r"\mb", "", true),
            ("ab", r"b\M", "", true),
            ("a b", r"\yb\y", "", true),
            ("ab", r"a\Yb", "", true),
            (r"a\b", r"a\Bb", "", true),
            ("ab", r"b\Z", "", true),
            ("A", r"\x41", "", true),
            ("A", r"\101", "", true),
            ("x", r"\101", "", false),
            ("\x08", r"\b", "", true),
            ("é", "[[:alpha:]]", "", true),
            ("a{,5}", "a{,5}", "", true),
            ("a{", "a{", "", true),
            ("&", "[a&&b]", "", true),
            ("[", "[a[]", "", true),
            ("]", "[]a]", "", true),
            ("-", "[a-]", "", true),
            (".", "[--/]", "", true),
            ("~", "[~]", "", true),
            ("x", "[[.x.]]", "", true),
            ("a b", "[[:<:]]b", "", true),
            ("1", r"[\d]", "", true),
        ] {
            assert_eq!(is_match(text, pattern, flags), Ok(expected), "{text:?} ~ {pattern}, {flags}");
        }
        for pattern in ["a\\", r"\q", "[[:foo:]]", "[a", "(", "a**b)", "(?z)a", r"(a)\1", "***a"] {
            assert_eq!(is_match("a", pattern, ""), Err("2201B".to_owned()), "{pattern}");
        }
        assert_eq!(is_match("a", "a", "z"), Err("22023".to_owned()));
    }
}
