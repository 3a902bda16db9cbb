//! Intervals as text.
//!
//! They are read as PostgreSQL reads them. Examples are `1 year 2 mons -3 days 04:05:06.7`, `1.5 hours ago`, `2-3` (years and months), `4 05:06` (days before a
//! time), and `P1Y2M3DT4H5M6S`. A final number without a unit counts seconds. The fraction of a unit is carried down:
//! of a year to months, of a month or a week to days, of shorter units to microseconds. Each unit may occur once. Hours
//! have no upper limit of their own.

use std::io::Write as _;

use arrow::datatypes::IntervalMonthDayNano;

use super::datetime::{DAY_MICROSECONDS, HOUR_US, MINUTE_US, SECOND_US, put_time};
use crate::{SqlError, SqlState};

const DAYS_OF_MONTH: f64 = 30.0;

/// Writes an interval as `IntervalStyle = postgres` does: `1 year 2 mons 3 days -04:05:06.7`.
pub(crate) fn put_interval(interval: IntervalMonthDayNano, out: &mut Vec<u8>) {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let micros = nanoseconds / 1000;
    let start = out.len();
    let mut negative_before = false;
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count == 0 {
            continue;
        }
        if out.len() > start {
            out.push(b' ');
        }
        // After a negative field a positive one needs a sign.
        if negative_before && count > 0 {
            out.push(b'+');
        }
        let _ = write!(out, "{count} {unit}");
        if count != 1 {
            out.push(b's');
        }
        negative_before = count < 0;
    }
    if micros != 0 || out.len() == start {
        if out.len() > start {
            out.push(b' ');
        }
        if micros < 0 {
            out.push(b'-');
        } else if negative_before {
            out.push(b'+');
        }
        put_time(micros.saturating_abs(), out);
    }
}

/// Why a text is not an interval.
enum Wrong {
    Syntax,
    Range,
}

/// The fields of `INTERVAL '…' DAY TO HOUR`, from the longest to the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IntervalField {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
}

impl IntervalField {
    fn unit(self) -> Unit {
        match self {
            Self::Year => Unit::Years(1),
            Self::Month => Unit::Month,
            Self::Day => Unit::Day,
            Self::Hour => Unit::HOUR,
            Self::Minute => Unit::MINUTE,
            Self::Second => Unit::SECOND,
        }
    }
}

/// The first and the last field of an interval's type, and the fractional digits of its seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalFields {
    pub fields: Option<(IntervalField, IntervalField)>,
    pub digits: Option<u8>,
}

/// Parses an interval.
///
/// # Errors
/// 22007 if the text is not an interval, 22015 if a number in it does not fit.
pub(crate) fn parse_interval(text: &str) -> Result<IntervalMonthDayNano, SqlError> {
    parse_interval_of(text, IntervalFields::default())
}

/// Parses an interval restricted to some fields. As in PostgreSQL, a number without a unit counts the last field, and
/// shorter units are cut off, but longer ones stay. The seconds are rounded to the digits.
///
/// # Errors
/// As [`parse_interval`].
pub(crate) fn parse_interval_of(text: &str, of: IntervalFields) -> Result<IntervalMonthDayNano, SqlError> {
    let trimmed = text.trim();
    let read = match trimmed.strip_prefix('P') {
        Some(designators) => by_designators(designators),
        None => fields(trimmed).and_then(|fields| by_fields(&fields, of)),
    };
    let read = read.map(|mut sum| {
        sum.cut(of);
        sum
    });
    read.and_then(Sum::finish).map_err(|wrong| match wrong {
        Wrong::Syntax => {
            SqlError::new(SqlState::INVALID_DATETIME, format!("invalid input syntax for type interval: \"{text}\""))
        }
        Wrong::Range => {
            SqlError::new(SqlState::INTERVAL_FIELD_OVERFLOW, format!("interval field value out of range: \"{text}\""))
        }
    })
}

/// A unit of an interval.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// A number of years.
    Years(i32),
    Month,
    Week,
    Day,
    /// A number of microseconds. Units of the same length count as the same unit.
    Time(i64),
}

impl Unit {
    const SECOND: Self = Self::Time(SECOND_US);
    const MINUTE: Self = Self::Time(MINUTE_US);
    const HOUR: Self = Self::Time(HOUR_US);

    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "millennium" | "millennia" | "mil" | "mils" => Self::Years(1000),
            "century" | "centuries" | "cent" | "c" => Self::Years(100),
            "decade" | "decades" | "dec" | "decs" => Self::Years(10),
            "year" | "years" | "yr" | "yrs" | "y" => Self::Years(1),
            "month" | "months" | "mon" | "mons" => Self::Month,
            "week" | "weeks" | "w" => Self::Week,
            "day" | "days" | "d" => Self::Day,
            "hour" | "hours" | "hr" | "hrs" | "h" => Self::HOUR,
            "minute" | "minutes" | "min" | "mins" | "m" => Self::MINUTE,
            "second" | "seconds" | "sec" | "secs" | "s" => Self::SECOND,
            "millisecond" | "milliseconds" | "msecond" | "mseconds" | "msec" | "msecs" | "ms" => Self::Time(1000),
            "microsecond" | "microseconds" | "usecond" | "useconds" | "usec" | "usecs" | "us" => Self::Time(1),
            _ => return None,
        })
    }
}

/// A number whose sign is in both parts.
#[derive(Clone, Copy)]
struct Number {
    whole: i64,
    fraction: f64,
}

impl Number {
    /// `-1.5`, `.5`, `3.`
    fn parse(text: &str) -> Result<Self, Wrong> {
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || whole.len() + fraction.len() == 0 {
            return Err(Wrong::Syntax);
        }
        let whole = if whole.is_empty() { 0 } else { whole.parse::<i64>().map_err(|_| Wrong::Range)? };
        let fraction = format!("0.{fraction}").parse::<f64>().map_err(|_| Wrong::Syntax)?;
        let sign = if is_negative { -1 } else { 1 };
        Ok(Self { whole: sign * whole, fraction: sign as f64 * fraction })
    }
}

/// The interval parsed so far.
#[derive(Default)]
struct Sum {
    months: i64,
    days: i64,
    microseconds: i64,
    /// The units that have occurred.
    met: Vec<Unit>,
}

impl Sum {
    fn met(&mut self, unit: Unit) -> Result<(), Wrong> {
        if self.met.contains(&unit) {
            return Err(Wrong::Syntax);
        }
        self.met.push(unit);
        Ok(())
    }

    fn add(&mut self, number: Number, unit: Unit) -> Result<(), Wrong> {
        self.met(unit)?;
        let Number { whole, fraction } = number;
        match unit {
            Unit::Years(years) => {
                let months = (fraction * f64::from(years) * 12.0).round_ties_even();
                self.add_months(whole, i64::from(years) * 12)?;
                self.add_months(months as i64, 1)
            }
            Unit::Month => {
                self.add_months(whole, 1)?;
                self.add_part_of_days(fraction * DAYS_OF_MONTH)
            }
            Unit::Week => {
                self.add_days(whole, 7)?;
                self.add_part_of_days(fraction * 7.0)
            }
            Unit::Day => {
                self.add_days(whole, 1)?;
                self.add_part_of_microseconds(fraction * DAY_MICROSECONDS as f64)
            }
            Unit::Time(microseconds) => {
                self.add_microseconds(whole, microseconds)?;
                self.add_part_of_microseconds(fraction * microseconds as f64)
            }
        }
    }

    /// `4:05`, `4:05:06.7`, or `5:06.7`, which means minutes and seconds.
    fn add_time(&mut self, text: &str, of: IntervalFields) -> Result<(), Wrong> {
        let is_short = of.fields == Some((IntervalField::Minute, IntervalField::Second));
        for unit in [Unit::HOUR, Unit::MINUTE, Unit::SECOND] {
            self.met(unit)?;
        }
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(unsigned) => (true, unsigned),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        // A point in the last part marks it as seconds.
        let (before_last, last) = unsigned.rsplit_once(':').ok_or(Wrong::Syntax)?;
        if unsigned.contains(['+', '-']) || before_last.contains('.') {
            return Err(Wrong::Syntax);
        }
        let parts = unsigned.split(':').map(Number::parse).collect::<Result<Vec<Number>, Wrong>>()?;
        let none = Number { whole: 0, fraction: 0.0 };
        let (hours, minutes, seconds) = match parts.as_slice() {
            [minutes, seconds] if is_short || last.contains('.') => (none, *minutes, *seconds),
            [hours, minutes] => (*hours, *minutes, none),
            [hours, minutes, seconds] => (*hours, *minutes, *seconds),
            _ => return Err(Wrong::Syntax),
        };
        if minutes.whole > 59 || seconds.whole > 60 {
            return Err(Wrong::Range);
        }
        let sign = if is_negative { -1 } else { 1 };
        for (number, microseconds) in [(hours, HOUR_US), (minutes, MINUTE_US), (seconds, SECOND_US)] {
            self.add_microseconds(number.whole, sign * microseconds)?;
            self.add_part_of_microseconds(number.fraction * (sign * microseconds) as f64)?;
        }
        Ok(())
    }

    /// `2-3`: years and months.
    fn add_years_and_months(&mut self, text: &str) -> Result<(), Wrong> {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let (years, months) = digits.split_once('-').ok_or(Wrong::Syntax)?;
        let (years, months) = (Number::parse(years)?, Number::parse(months)?);
        if years.fraction != 0.0 || months.fraction != 0.0 {
            return Err(Wrong::Syntax);
        }
        if !(0..12).contains(&months.whole) {
            return Err(Wrong::Range);
        }
        self.met(Unit::Month)?;
        self.add_months(years.whole, sign * 12)?;
        self.add_months(months.whole, sign)
    }

    fn add_months(&mut self, count: i64, months: i64) -> Result<(), Wrong> {
        added(&mut self.months, count, months)
    }

    fn add_days(&mut self, count: i64, days: i64) -> Result<(), Wrong> {
        added(&mut self.days, count, days)
    }

    fn add_microseconds(&mut self, count: i64, microseconds: i64) -> Result<(), Wrong> {
        added(&mut self.microseconds, count, microseconds)
    }

    fn add_part_of_days(&mut self, days: f64) -> Result<(), Wrong> {
        self.add_days(days.trunc() as i64, 1)?;
        self.add_part_of_microseconds(days.fract() * DAY_MICROSECONDS as f64)
    }

    /// Half a microsecond is rounded towards zero.
    fn add_part_of_microseconds(&mut self, microseconds: f64) -> Result<(), Wrong> {
        let rest = microseconds.fract();
        let more = i64::from(rest > 0.5) - i64::from(rest < -0.5);
        self.add_microseconds(microseconds.trunc() as i64 + more, 1)
    }

    /// Cuts off fields that the type does not have, and rounds the seconds half away from zero.
    fn cut(&mut self, of: IntervalFields) {
        let unit = match of.fields.map(|(_, last)| last) {
            Some(IntervalField::Year) => {
                (self.months, self.days, self.microseconds) = (self.months / 12 * 12, 0, 0);
                return;
            }
            Some(IntervalField::Month) => {
                (self.days, self.microseconds) = (0, 0);
                return;
            }
            Some(IntervalField::Day) => DAY_MICROSECONDS,
            Some(IntervalField::Hour) => HOUR_US,
            Some(IntervalField::Minute) => MINUTE_US,
            Some(IntervalField::Second) | None => 1,
        };
        self.microseconds = if unit == DAY_MICROSECONDS { 0 } else { self.microseconds / unit * unit };
        if let Some(digits) = of.digits.filter(|digits| *digits < 6) {
            let step = 10_i64.pow(6 - u32::from(digits));
            let half = self.microseconds.signum() * step / 2;
            self.microseconds = self.microseconds.saturating_add(half) / step * step;
        }
    }

    fn negate(&mut self) {
        for part in [&mut self.months, &mut self.days, &mut self.microseconds] {
            *part = part.saturating_neg();
        }
    }

    fn finish(self) -> Result<IntervalMonthDayNano, Wrong> {
        let months = i32::try_from(self.months).map_err(|_| Wrong::Range)?;
        let days = i32::try_from(self.days).map_err(|_| Wrong::Range)?;
        let nanoseconds = self.microseconds.checked_mul(1000).ok_or(Wrong::Range)?;
        Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
    }
}

fn added(part: &mut i64, count: i64, units: i64) -> Result<(), Wrong> {
    let more = count.checked_mul(units).ok_or(Wrong::Range)?;
    *part = part.checked_add(more).ok_or(Wrong::Range)?;
    Ok(())
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

/// Processes the fields from the last to the first, because a unit follows its number.
fn by_fields(fields: &[String], of: IntervalFields) -> Result<Sum, Wrong> {
    let (fields, is_ago) = match fields {
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

/// Parses the part of an ISO 8601 duration after the P.
fn by_designators(text: &str) -> Result<Sum, Wrong> {
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
    if sum.met.is_empty() && !is_time { Err(Wrong::Syntax) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::written;

    fn shown(text: &str) -> String {
        shown_of(text, IntervalFields::default())
    }

    fn shown_of(text: &str, of: IntervalFields) -> String {
        match parse_interval_of(text, of) {
            Ok(interval) => written(|out| put_interval(interval, out)),
            Err(error) => error.state.to_string(),
        }
    }

    /// The expected results are those of PostgreSQL 15.
    #[test]
    fn fields_cut_what_is_shorter() {
        use IntervalField::{Day, Hour, Minute, Month, Second, Year};
        for (text, first, last, expected) in [
            ("1.6", Hour, Hour, "01:00:00"),
            ("-1.6", Hour, Hour, "-01:00:00"),
            ("1.5", Day, Day, "1 day"),
            ("1.6", Minute, Minute, "00:01:00"),
            ("1.9", Month, Month, "1 mon"),
            ("1.9", Year, Year, "1 year"),
            ("1.7", Second, Second, "00:00:01.7"),
            ("1 day 2:03:04.56", Hour, Hour, "1 day 02:00:00"),
            ("1:30", Minute, Minute, "01:30:00"),
            ("1.5", Year, Month, "1 mon"),
            ("1-2", Year, Month, "1 year 2 mons"),
            ("1 2", Day, Hour, "1 day 02:00:00"),
            ("1 2", Hour, Hour, "1 day 02:00:00"),
            ("1 2", Day, Day, "22007"),
            ("1 2", Minute, Minute, "22007"),
            ("1 2:03", Day, Minute, "1 day 02:03:00"),
            ("1:02:03.5", Hour, Minute, "01:02:00"),
            ("1:02", Minute, Second, "00:01:02"),
            ("5", Day, Hour, "05:00:00"),
            ("1 year 2 days", Month, Month, "1 year"),
            ("2 hours 3 min", Day, Day, "00:00:00"),
        ] {
            let of = IntervalFields { fields: Some((first, last)), digits: None };
            assert_eq!(shown_of(text, of), expected, "{text} {first:?} {last:?}");
        }
        for (text, digits, expected) in
            [("1.236 seconds", 2, "00:00:01.24"), ("-1.235", 2, "-00:00:01.24"), ("1.5", 0, "00:00:02")]
        {
            assert_eq!(shown_of(text, IntervalFields { fields: None, digits: Some(digits) }), expected, "{text}");
        }
    }

    /// The expected results are those of PostgreSQL 15.
    #[test]
    fn texts_are_read() {
        for (text, expected) in [
            ("26:00:00", "26:00:00"),
            ("1 day 25:00:00", "1 day 25:00:00"),
            ("-1 day -02:03:04", "-1 days -02:03:04"),
            ("-1 days +02:03:04", "-1 days +02:03:04"),
            ("1 year 2 mons -3 days +04:05:06.7", "1 year 2 mons -3 days +04:05:06.7"),
            ("1 day 02:03:10.5", "1 day 02:03:10.5"),
            ("1.5 days", "1 day 12:00:00"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 years", "1 year 6 mons"),
            ("1.5 weeks", "10 days 12:00:00"),
            ("1.55 mons", "1 mon 16 days 12:00:00"),
            ("0.3 decades", "3 years"),
            ("-1.5 hours", "-01:30:00"),
            ("1.5 hours ago", "-01:30:00"),
            ("1 day ago", "-1 days"),
            ("@ 1 day, 2 hours", "1 day 02:00:00"),
            ("2-3", "2 years 3 mons"),
            ("-2-3", "-2 years -3 mons"),
            ("+2-3", "2 years 3 mons"),
            ("2-13", "22015"),
            ("4 05:06", "4 days 05:06:00"),
            ("5", "00:00:05"),
            ("1 day 5", "1 day 00:00:05"),
            ("5.5", "00:00:05.5"),
            (".5", "00:00:00.5"),
            ("1.", "00:00:01"),
            ("- 1 day", "-1 days"),
            ("1h30m", "01:30:00"),
            ("1h 1h", "22007"),
            ("1 day 2 days", "22007"),
            ("1 2", "22007"),
            ("1 2 hours", "1 day 02:00:00"),
            ("1 2 hours 3 min", "1 day 02:03:00"),
            ("day", "22007"),
            ("", "22007"),
            ("  ", "22007"),
            ("ago", "22007"),
            ("1 fortnight", "22007"),
            ("00:60:00", "22015"),
            ("00:59:60", "01:00:00"),
            ("00:00:61", "22015"),
            ("5:06.7", "00:05:06.7"),
            ("5:06.0", "00:05:06"),
            ("59:30.", "00:59:30"),
            ("-5:06.5", "-00:05:06.5"),
            ("70:30.5", "22015"),
            ("1:-30", "22007"),
            ("1:+30", "22007"),
            ("1:2:3:4", "22007"),
            ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
            ("P1W", "7 days"),
            ("P", "22007"),
            ("PT", "00:00:00"),
            ("P1H", "22007"),
            ("PT36H", "36:00:00"),
            ("P-1DT-2H", "-1 days -02:00:00"),
            ("p1d", "22007"),
            ("1 millennium 2 centuries 3 decades", "1230 years"),
            ("1 ms 2 us", "00:00:00.001002"),
            ("1.5 us", "00:00:00.000001"),
            ("2.5 us", "00:00:00.000002"),
            ("1500 ms", "00:00:01.5"),
            ("999999999999 days", "22015"),
            ("3000000000 mons", "22015"),
            ("infinity", "22007"),
            ("1 mon -1 days", "1 mon -1 days"),
            ("1e3 days", "22007"),
            ("0.0000005", "00:00:00"),
            ("0.0000015 s", "00:00:00.000001"),
            ("1 day +5:00", "1 day 05:00:00"),
            ("-5:00", "-05:00:00"),
            ("1.2.3 days", "22007"),
            ("--1 day", "22007"),
            ("1 quarter", "22007"),
            ("1 y 1 mon 1 w 1 d 1 hr 1 min 1 sec", "1 year 1 mon 8 days 01:01:01"),
            ("100:00", "100:00:00"),
            ("1 year 2-3", "3 years 3 mons"),
            ("1 ünit", "22007"),
            ("1 DAY", "1 day"),
            ("99999999999999999999 days", "22015"),
            ("1 day -00:00:01", "1 day -00:00:01"),
            ("24:00", "24:00:00"),
            ("-24:00:00.000001", "-24:00:00.000001"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    /// Time is kept in nanoseconds here.
    #[test]
    fn time_ends_after_292_years() {
        assert_eq!(shown("2562047:00:00"), "2562047:00:00");
        assert_eq!(shown("2562048:00:00"), "22015");
        assert_eq!(shown("9223372036854775807 us"), "22015");
    }
}
