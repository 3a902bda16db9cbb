//! The two forms of an interval's text: words and numbers (`1 day 02:03`), and the designators of ISO 8601 (`P1DT2H3M`).

use super::sum::Sum;
use super::unit::{Number, Unit};
use super::{IntervalFields, Wrong};

/// Parses words and numbers. It processes them from the last to the first, because a unit follows its number.
pub(super) fn by_fields(text: &str, of: IntervalFields) -> Result<Sum, Wrong> {
    let fields = fields(text)?;
    let (fields, is_ago) = match fields.as_slice() {
        [before @ .., last] if last == "ago" => (before, true),
        all => (all, false),
    };
    if fields.is_empty() {
        return Err(Wrong::Syntax);
    }
    let mut sum = Sum::default();
    // The unit of the next number, and whether it was written.
    let last = of.fields.map_or(Unit::SECOND, |(_, last)| last.unit());
    let (mut unit, mut is_written) = (Some(last), false);
    for field in fields.iter().rev() {
        if field.contains(':') && !is_written {
            sum.add_time(field, of)?;
            unit = Some(Unit::Day);
        } else if field.trim_start_matches(['+', '-']).contains('-') && !is_written {
            sum.add_years_and_months(field)?;
            unit = None;
        } else if field.ends_with(|c: char| c.is_ascii_alphabetic()) {
            if is_written {
                return Err(Wrong::Syntax);
            }
            (unit, is_written) = (Some(Unit::of(field).ok_or(Wrong::Syntax)?), true);
        } else {
            let counted = unit.take().ok_or(Wrong::Syntax)?;
            sum.add(Number::parse(field)?, counted)?;
            // A number before hours counts days.
            if counted == Unit::HOUR {
                unit = Some(Unit::Day);
            }
            is_written = false;
        }
    }
    if is_written {
        return Err(Wrong::Syntax);
    }
    if is_ago {
        sum.negate();
    }
    Ok(sum)
}

/// The words and the signed numbers of a text. Other punctuation counts as blanks.
fn fields(text: &str) -> Result<Vec<String>, Wrong> {
    let mut fields = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let sign = match first {
            '+' | '-' => {
                rest = rest[1..].trim_start();
                first.to_string()
            }
            _ => String::new(),
        };
        let is_word = |c: char| c.is_ascii_alphabetic();
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ':' | '-');
        let length = |is_part: &dyn Fn(char) -> bool| rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let end = match rest.chars().next() {
            Some(c) if c.is_ascii_digit() || c == '.' => length(&is_number),
            Some(c) if is_word(c) && sign.is_empty() => length(&is_word),
            Some(c) if c.is_ascii_punctuation() && sign.is_empty() => {
                rest = rest[1..].trim_start();
                continue;
            }
            _ => return Err(Wrong::Syntax),
        };
        fields.push(sign + &rest[..end].to_ascii_lowercase());
        rest = rest[end..].trim_start();
    }
    Ok(fields)
}

/// Parses the part of an ISO 8601 duration after the P.
pub(super) fn by_designators(text: &str) -> Result<Sum, Wrong> {
    let mut sum = Sum::default();
    let mut rest = text;
    let mut is_time = false;
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix('T').filter(|_| !is_time) {
            (rest, is_time) = (time, true);
            continue;
        }
        let end = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or(Wrong::Syntax)?;
        let unit = match (&rest[end..=end], is_time) {
            ("Y", false) => Unit::Years(1),
            ("M", false) => Unit::Month,
            ("W", false) => Unit::Week,
            ("D", false) => Unit::Day,
            ("H", true) => Unit::HOUR,
            ("M", true) => Unit::MINUTE,
            ("S", true) => Unit::SECOND,
            _ => return Err(Wrong::Syntax),
        };
        sum.add(Number::parse(&rest[..end])?, unit)?;
        rest = &rest[end + 1..];
    }
    if sum.is_empty() && !is_time { Err(Wrong::Syntax) } else { Ok(sum) }
}
