//! Regular expressions: the `~` operators, `regexp_count`, `regexp_instr`, `regexp_like`, `regexp_match` and
//! `regexp_replace`.
//!
//! Rust's `regex` library does the matching; [`pattern`] translates the syntax that it reads differently from PostgreSQL.
//! DataFusion's optimiser turns `x ~ '.*'` into `x IS NOT NULL`, so the operators become calls of `regexp_like`.

mod pattern;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, ListBuilder, StringViewArray, StringViewBuilder,
};
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::DFSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::prelude::SessionContext;
use regex::Regex;

use super::added::{not_taken, on_arrays};
use super::functions::{null_of, type_of};
use crate::{SqlError, SqlState};
use pattern::compile;

pub(super) use pattern::Compiled;

/// Replaces DataFusion's functions.
pub(super) fn register(context: &SessionContext) {
    for kind in [Kind::Count, Kind::Instr, Kind::Like, Kind::Match, Kind::Replace] {
        context.register_udf(ScalarUDF::from(Function::new(kind)));
    }
}

/// The call for `text ~ pattern`, `~*`, `!~` or `!~*`, if both sides are texts.
pub(super) fn operator(binary: BinaryExpr, schema: &DFSchema) -> Result<Expr, BinaryExpr> {
    let (is_negated, any_case) = match binary.op {
        Operator::RegexMatch => (false, false),
        Operator::RegexIMatch => (false, true),
        Operator::RegexNotMatch => (true, false),
        Operator::RegexNotIMatch => (true, true),
        _ => return Err(binary),
    };
    let is_text = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type.is_string());
    if !is_text(&binary.left) || !is_text(&binary.right) {
        return Err(binary);
    }
    let mut arguments = vec![*binary.left, *binary.right];
    if any_case {
        arguments.push(lit("i"));
    }
    let matched = ScalarUDF::from(Function::new(Kind::Like)).call(arguments);
    Ok(if is_negated { Expr::Not(Box::new(matched)) } else { matched })
}

/// The number of matches of a pattern.
pub(super) fn count(text: &str, pattern: &str, flags: &str) -> Result<u64> {
    let regex = compile(pattern, flags).map_err(external)?;
    Ok(places(&regex, text, Some(0)).count() as u64)
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn invalid(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Count,
    Instr,
    Like,
    Match,
    Replace,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    kind: Kind,
    signature: Signature,
}

impl Function {
    fn new(kind: Kind) -> Self {
        Self { kind, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl Kind {
    /// The types of the arguments: T for text, N for number. The last ones are optional, beyond the first two, or the
    /// first three of `regexp_replace`.
    fn forms(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["TTNT"],
            Self::Instr => &["TTNNNTN"],
            Self::Like | Self::Match => &["TTT"],
            Self::Replace => &["TTTT", "TTTNNT"],
        }
    }

    fn arguments_min(self) -> usize {
        if self == Self::Replace { 3 } else { 2 }
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Count => "regexp_count",
            Kind::Instr => "regexp_instr",
            Kind::Like => "regexp_like",
            Kind::Match => "regexp_match",
            Kind::Replace => "regexp_replace",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let fits = |of: char, argument: &DataType| {
            argument.is_null() || if of == 'T' { argument.is_string() } else { argument.is_integer() }
        };
        let form = self.kind.forms().iter().find(|form| {
            (self.kind.arguments_min()..=form.len()).contains(&arguments.len())
                && form.chars().zip(arguments).all(|(of, argument)| fits(of, argument))
        });
        let form = form.ok_or_else(|| not_taken(self.name()))?;
        let data_type = |of| if of == 'T' { DataType::Utf8View } else { DataType::Int64 };
        Ok(form.chars().take(arguments.len()).map(data_type).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Count | Kind::Instr => DataType::Int32,
            Kind::Like => DataType::Boolean,
            Kind::Match => DataType::List(Arc::new(Field::new_list_field(DataType::Utf8View, true))),
            Kind::Replace => DataType::Utf8View,
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, |arguments| self.evaluate(&Arguments(arguments)).map_err(external))
    }
}

/// The arguments of a batch.
struct Arguments<'a>(&'a [ArrayRef]);

impl Arguments<'_> {
    /// The index of each row, or `None` if one of its arguments is NULL.
    fn rows(&self) -> impl Iterator<Item = Option<usize>> {
        let rows = 0..self.0.first().map_or(0, Array::len);
        rows.map(|row| self.0.iter().all(|argument| argument.is_valid(row)).then_some(row))
    }

    fn text(&self, place: usize, row: usize) -> &str {
        self.0.get(place).map_or("", |texts| texts.as_string_view().value(row))
    }

    fn number(&self, place: usize, row: usize, default: i64) -> i64 {
        self.0.get(place).map_or(default, |numbers| numbers.as_primitive::<Int64Type>().value(row))
    }

    /// A number with a lower limit.
    fn at_least(&self, least: i64, name: &str, (place, row): (usize, usize), default: i64) -> Result<i64, SqlError> {
        let number = self.number(place, row, default);
        if number < least {
            return Err(invalid(format!("invalid value for parameter \"{name}\": {number}")));
        }
        Ok(number)
    }

    /// The byte position where the search begins; `None` beyond the end.
    fn start(&self, place: usize, row: usize) -> Result<Option<usize>, SqlError> {
        let start = self.at_least(1, "start", (place, row), 1)?;
        let before = usize::try_from(start - 1).unwrap_or(usize::MAX);
        let text = self.text(0, row);
        let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        Ok(if before == 0 { Some(0) } else { ends.take(before.saturating_add(1)).nth(before) })
    }
}

impl Function {
    fn evaluate(&self, arguments: &Arguments<'_>) -> Result<ArrayRef, SqlError> {
        let mut compiled = Compiled::default();
        let has_start = self.kind == Kind::Replace && arguments.0.get(3).is_some_and(|at| !at.data_type().is_string());
        let flags_at = match self.kind {
            Kind::Like | Kind::Match => 2,
            Kind::Count => 3,
            Kind::Replace if !has_start => 3,
            Kind::Replace | Kind::Instr => 5,
        };
        if self.kind != Kind::Replace {
            let mut flags = arguments.rows().flatten().map(|row| arguments.text(flags_at, row));
            if flags.any(|flags| flags.contains('g')) {
                return Err(invalid(format!("{}() does not support the \"global\" option", self.name())));
            }
        }
        let of = |row: usize| (arguments.text(1, row), arguments.text(flags_at, row));
        match self.kind {
            Kind::Like => {
                let mut matched = Vec::new();
                for row in arguments.rows() {
                    matched.push(match row {
                        None => None,
                        Some(row) => Some(compiled.get(of(row))?.is_match(arguments.text(0, row))),
                    });
                }
                Ok(Arc::new(BooleanArray::from(matched)))
            }
            Kind::Count => {
                let mut counts = Vec::new();
                for row in arguments.rows() {
                    counts.push(match row {
                        None => None,
                        Some(row) => {
                            let start = arguments.start(2, row)?;
                            let count = places(compiled.get(of(row))?, arguments.text(0, row), start).count();
                            Some(i32::try_from(count).unwrap_or(i32::MAX))
                        }
                    });
                }
                Ok(Arc::new(Int32Array::from(counts)))
            }
            Kind::Instr => {
                let mut found = Vec::new();
                for row in arguments.rows() {
                    found.push(match row {
                        None => None,
                        Some(row) => {
                            let place = Place::of(arguments, row)?;
                            Some(place.find(compiled.get(of(row))?, arguments.text(0, row)))
                        }
                    });
                }
                Ok(Arc::new(Int32Array::from(found)))
            }
            Kind::Match => {
                let mut lists = ListBuilder::new(StringViewBuilder::new());
                for row in arguments.rows() {
                    let groups = match row {
                        None => None,
                        Some(row) => compiled.get(of(row))?.captures(arguments.text(0, row)),
                    };
                    if let Some(groups) = &groups {
                        // A pattern without groups returns the whole match.
                        let first = usize::from(groups.len() > 1);
                        for group in groups.iter().skip(first) {
                            lists.values().append_option(group.map(|group| group.as_str()));
                        }
                    }
                    lists.append(groups.is_some());
                }
                Ok(Arc::new(lists.finish()))
            }
            Kind::Replace => {
                let mut replaced = Vec::new();
                for row in arguments.rows() {
                    replaced.push(match row {
                        None => None,
                        Some(row) => {
                            let (start, only) = if has_start {
                                (arguments.start(3, row)?, arguments.at_least(0, "n", (4, row), 1)?)
                            } else {
                                (Some(0), i64::from(!arguments.text(3, row).contains('g')))
                            };
                            let parts = parts(arguments.text(2, row));
                            Some(replace(compiled.get(of(row))?, arguments.text(0, row), &parts, start, only))
                        }
                    });
                }
                Ok(Arc::new(replaced.into_iter().collect::<StringViewArray>()))
            }
        }
    }
}

/// The optional arguments of `regexp_instr`.
struct Place {
    start: Option<usize>,
    /// The number of the match, from 1.
    n: usize,
    /// Whether the position after the match is wanted.
    is_end: bool,
    /// The number of the group; 0 for the whole match.
    group: usize,
}

impl Place {
    fn of(arguments: &Arguments<'_>, row: usize) -> Result<Self, SqlError> {
        let start = arguments.start(2, row)?;
        let n = arguments.at_least(1, "n", (3, row), 1)?;
        let end = arguments.at_least(0, "endoption", (4, row), 0)?;
        if end > 1 {
            return Err(invalid(format!("invalid value for parameter \"endoption\": {end}")));
        }
        let group = arguments.at_least(0, "subexpr", (6, row), 0)?;
        let index = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self { start, n: index(n), is_end: end == 1, group: index(group) })
    }

    /// The position in characters, from 1; 0 without a match.
    fn find(&self, regex: &Regex, text: &str) -> i32 {
        let whole = places(regex, text, self.start).nth(self.n - 1);
        let found = whole.and_then(|whole| {
            if self.group == 0 {
                return Some(whole);
            }
            regex.captures_at(text, whole.start)?.get(self.group).map(|group| group.range())
        });
        found.map_or(0, |found| {
            let at = if self.is_end { found.end } else { found.start };
            i32::try_from(text[..at].chars().count() + 1).unwrap_or(i32::MAX)
        })
    }
}

/// The positions of all matches. After an empty match the search continues at the next character. A match may directly
/// follow another.
fn places<'a>(regex: &'a Regex, text: &'a str, start: Option<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
    let mut next = start;
    std::iter::from_fn(move || {
        let place = regex.find_at(text, next.take()?)?.range();
        next = match text[place.end..].chars().next() {
            _ if !place.is_empty() => Some(place.end),
            Some(character) => Some(place.end + character.len_utf8()),
            None => None,
        };
        Some(place)
    })
}

/// A part of the replacement.
#[derive(Debug, PartialEq)]
enum Part<'a> {
    Text(&'a str),
    /// A group's match; 0 for the whole match.
    Group(usize),
}

/// `\1` to `\9` and `\&` stand for groups and `\\` for a backslash. A backslash before any other character stands for
/// itself.
fn parts(replacement: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = replacement;
    while let Some(at) = rest.find('\\') {
        let (part, taken) = match rest[at + 1..].bytes().next() {
            Some(digit @ b'1'..=b'9') => (Part::Group(usize::from(digit - b'0')), 2),
            Some(b'&') => (Part::Group(0), 2),
            Some(b'\\') => (Part::Text("\\"), 2),
            _ => (Part::Text("\\"), 1),
        };
        parts.extend([Part::Text(&rest[..at]), part]);
        rest = &rest[at + taken..];
    }
    parts.push(Part::Text(rest));
    parts
}

/// Replaces all matches, or only the match number `only` if that is not 0.
fn replace(regex: &Regex, text: &str, parts: &[Part<'_>], start: Option<usize>, only: i64) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut copied = 0;
    let (skipped, taken) = match usize::try_from(only) {
        Ok(0) => (0, usize::MAX),
        only => (only.map_or(usize::MAX, |only| only - 1), 1),
    };
    let has_groups = parts.iter().any(|part| matches!(part, Part::Group(1..)));
    for place in places(regex, text, start).skip(skipped).take(taken) {
        replaced.push_str(&text[copied..place.start]);
        let groups = if has_groups { regex.captures_at(text, place.start) } else { None };
        for part in parts {
            replaced.push_str(match part {
                Part::Text(text) => text,
                Part::Group(0) => &text[place.clone()],
                Part::Group(group) => {
                    groups.as_ref().and_then(|groups| groups.get(*group)).map_or("", |group| group.as_str())
                }
            });
        }
        copied = place.end;
    }
    replaced.push_str(&text[copied..]);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of PostgreSQL 15.
    #[test]
    fn matches_are_replaced() {
        for (text, pattern, replacement, only, expected) in [
            ("cost X", "X", "$10", 1, "cost $10"),
            ("abc", "(b)", r"<\&>", 1, "a<b>c"),
            ("x", "x", r"a\\b", 1, r"a\b"),
            ("x", "x", r"a\", 1, r"a\"),
            ("x", "x", r"a\q\0b", 1, r"a\q\0b"),
            ("abc", "(b)", r"\2|\1", 1, "a|bc"),
            ("aaa", "a", "b", 2, "aba"),
            ("aaa", "a", "b", 4, "aaa"),
            ("abc", "", "-", 0, "-a-b-c-"),
            ("abc", "b*", "-", 0, "-a--c-"),
        ] {
            let regex = compile(pattern, "").unwrap();
            assert_eq!(replace(&regex, text, &parts(replacement), Some(0), only), expected, "{text}, {pattern}");
        }
    }
}
