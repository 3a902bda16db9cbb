//! Dates and timestamps as text, in PostgreSQL's format (`DateStyle = ISO`).
//!
//! ```text
//! date:      [-]infinity | epoch | day [clock | blank offset] [BC | AD]
//! day:       YYYY-MM-DD | YYYY/MM/DD | YYYYMMDD
//! clock:     (blank | T) HH:MM[:SS[.digits]] [zone]
//! zone:      Z | UTC | GMT | offset                        parsed and ignored: no type here has one
//! offset:    (+ | -)HH[[:]MM[[:]SS]]
//! ```
//! The infinities are the limits of the integer types, as on the wire. Any other text is an error.

use std::fmt::Write as _;

use super::{civil_from_days, days_from_civil};
use crate::{SqlError, SqlState};

/// Microseconds of a day.
pub(crate) const DAY_MICROSECONDS: i64 = 86_400_000_000;

/// 4714-11-24 BC, the first day of PostgreSQL's dates.
pub(crate) const FIRST_DAY: i32 = -2_440_588;
/// 5874897-12-31.
pub(crate) const LAST_DAY: i32 = 2_145_042_905;

enum ParsedTimestamp {
    Infinity,
    MinusInfinity,
    At { day: i64, microseconds: i64 },
}

/// Days since 1970-01-01; a time of day is ignored.
pub(super) fn parse_date(text: &str) -> Result<i32, SqlError> {
    match parse(text, "date")? {
        ParsedTimestamp::Infinity => Ok(i32::MAX),
        ParsedTimestamp::MinusInfinity => Ok(i32::MIN),
        ParsedTimestamp::At { day, .. } => {
            i32::try_from(day).ok().and_then(date_in_range).ok_or_else(|| out_of_range(text, "date"))
        }
    }
}

/// Microseconds since 1970-01-01.
pub(super) fn parse_timestamp(text: &str) -> Result<i64, SqlError> {
    match parse(text, "timestamp")? {
        ParsedTimestamp::Infinity => Ok(i64::MAX),
        ParsedTimestamp::MinusInfinity => Ok(i64::MIN),
        ParsedTimestamp::At { day, microseconds } => day
            .checked_mul(DAY_MICROSECONDS)
            .and_then(|start| start.checked_add(microseconds))
            .and_then(timestamp_in_range)
            .ok_or_else(|| out_of_range(text, "timestamp")),
    }
}

/// The day, if it is in PostgreSQL's range.
pub(crate) fn date_in_range(day: i32) -> Option<i32> {
    (FIRST_DAY..=LAST_DAY).contains(&day).then_some(day)
}

/// The timestamp, if it is in PostgreSQL's range. The last thirty years of that are missing: microseconds since 1970
/// end in 294247, PostgreSQL's count from 2000 and end in 294276.
pub(crate) fn timestamp_in_range(microseconds: i64) -> Option<i64> {
    (microseconds >= i64::from(FIRST_DAY) * DAY_MICROSECONDS && microseconds != i64::MAX).then_some(microseconds)
}

/// A timestamp rounded to a number of fractional digits of the second. Like PostgreSQL, it rounds half away from the
/// year 2000, the epoch of its timestamps.
pub(crate) fn round_timestamp(microseconds: i64, digits: u8) -> i64 {
    const EPOCH: i64 = 946_684_800_000_000;
    if digits >= 6 || matches!(microseconds, i64::MIN | i64::MAX) {
        return microseconds;
    }
    let unit = 10_i64.pow(u32::from(6 - digits));
    let since = microseconds.saturating_sub(EPOCH);
    EPOCH.saturating_add((since.abs().saturating_add(unit / 2) / unit * unit) * since.signum())
}

fn out_of_range(text: &str, kind: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("{kind} out of range: \"{text}\""))
}

/// A field such as the month has an impossible value.
fn field_range(text: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("date/time field value out of range: \"{text}\""))
}

fn parse(text: &str, kind: &str) -> Result<ParsedTimestamp, SqlError> {
    let bad = || SqlError::new(SqlState::INVALID_DATETIME, format!("invalid input syntax for type {kind}: \"{text}\""));
    // PostgreSQL ignores punctuation around the text, except characters of times and zones.
    let is_silent = |c: char| c.is_whitespace() || c.is_ascii_punctuation() && !"+-.:/".contains(c);
    let lower = text.trim_matches(is_silent).to_ascii_lowercase();
    match lower.as_str() {
        "infinity" => return Ok(ParsedTimestamp::Infinity),
        "-infinity" => return Ok(ParsedTimestamp::MinusInfinity),
        "epoch" => return Ok(ParsedTimestamp::At { day: 0, microseconds: 0 }),
        _ => {}
    }
    let era = |word: &str| lower.strip_suffix(word).filter(|rest| rest.ends_with(char::is_whitespace));
    let (rest, before_christ) = match (era("bc"), era("ad")) {
        (Some(rest), _) => (rest.trim_end(), true),
        (_, Some(rest)) => (rest.trim_end(), false),
        _ => (lower.as_str(), false),
    };
    let (day, clock) = rest.split_once(|c: char| c.is_whitespace() || c == 't').unwrap_or((rest, ""));
    let (year, month, day) = parse_day(day).ok_or_else(bad)?;
    let year = if before_christ { 1 - i64::from(year) } else { i64::from(year) };
    // There is no year 0: 1 AD follows 1 BC, which is the internal year 0.
    let day =
        days_from_civil(year, month, day).filter(|_| year > 0 || before_christ).ok_or_else(|| field_range(text))?;
    let clock = clock.trim();
    let microseconds = if clock.is_empty() {
        // After a `T` a time is required.
        if rest.contains('t') {
            return Err(bad());
        }
        0
    } else if clock.starts_with(['+', '-']) && is_zone(clock) && !rest.contains('t') {
        // A day with a zone begins at midnight.
        0
    } else {
        let fields = parse_clock(clock).ok_or_else(bad)?;
        fields.microseconds().ok_or_else(|| field_range(text))?
    };
    Ok(ParsedTimestamp::At { day, microseconds })
}

fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.len() <= 7 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Year, month and day as written.
fn parse_day(text: &str) -> Option<(u32, u32, u32)> {
    if text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit()) {
        return Some((number(&text[..4])?, number(&text[4..6])?, number(&text[6..])?));
    }
    let mut parts = text.split(['-', '/']);
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    // A shorter first number would be a month or a day.
    if parts.next().is_some() || year.len() < 3 {
        return None;
    }
    Some((number(year)?, number(month)?, number(day)?))
}

struct Clock {
    hour: i64,
    minute: i64,
    second: i64,
    microseconds: i64,
}

impl Clock {
    /// `None` if there is no such time of day.
    fn microseconds(&self) -> Option<i64> {
        let Self { hour, minute, second, microseconds } = *self;
        if hour > 24 || minute > 59 || second > 60 || (hour == 24 && (minute, second, microseconds) != (0, 0, 0)) {
            return None;
        }
        Some(((hour * 60 + minute) * 60 + second) * 1_000_000 + microseconds)
    }
}

fn parse_clock(text: &str) -> Option<Clock> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.'))).unwrap_or(text.len());
    let (clock, zone) = text.split_at(end);
    if !is_zone(zone.trim_start()) {
        return None;
    }
    let mut parts = clock.split(':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let (second, fraction) = match parts.next() {
        None => ("0", ""),
        Some(second) => second.split_once('.').unwrap_or((second, "")),
    };
    if parts.next().is_some() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let six: i64 = format!("{fraction:0<6}")[..6].parse().ok()?;
    let round = i64::from(fraction.as_bytes().get(6).is_some_and(|b| *b >= b'5'));
    Some(Clock { hour: hour.into(), minute: minute.into(), second: number(second)?.into(), microseconds: six + round })
}

fn is_zone(text: &str) -> bool {
    if matches!(text, "" | "z" | "utc" | "gmt") {
        return true;
    }
    let Some(offset) = text.strip_prefix(['+', '-']) else { return false };
    let digits = |part: &str, most: usize| (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    match offset.split_once(':') {
        None => digits(offset, 6),
        Some((hours, rest)) => {
            let (minutes, seconds) = rest.split_once(':').unwrap_or((rest, "00"));
            digits(hours, 2) && digits(minutes, 2) && digits(seconds, 2)
        }
    }
}

/// A date as text.
pub(super) fn format_date(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        i32::MIN => "-infinity".to_owned(),
        days => {
            let mut text = String::with_capacity(13);
            let era = write_day(&mut text, i64::from(days));
            text.push_str(era);
            text
        }
    }
}

/// A timestamp as text.
pub(super) fn format_timestamp(microseconds: i64) -> String {
    match microseconds {
        i64::MAX => return "infinity".to_owned(),
        i64::MIN => return "-infinity".to_owned(),
        _ => {}
    }
    let of_day = microseconds.rem_euclid(DAY_MICROSECONDS);
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    let mut text = String::with_capacity(26);
    let era = write_day(&mut text, microseconds.div_euclid(DAY_MICROSECONDS));
    let _ = write!(text, " {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    text.push_str(era);
    text
}

/// Writes the day; returns the era that must end the text.
fn write_day(to: &mut String, days: i64) -> &'static str {
    let (year, month, day) = civil_from_days(days);
    let (shown, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    let _ = write!(to, "{shown:04}-{month:02}-{day:02}");
    era
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of PostgreSQL 15.
    #[test]
    fn dates_as_postgresql_reads_them() {
        for (text, expected) in [
            ("0044-03-15 BC", "0044-03-15 BC"),
            ("0001-12-31 BC", "0001-12-31 BC"),
            ("2020-01-01 AD", "2020-01-01"),
            ("4714-11-24 BC", "4714-11-24 BC"),
            ("5874897-12-31", "5874897-12-31"),
            (" Infinity ", "infinity"),
            ("-INFINITY", "-infinity"),
            ("epoch", "1970-01-01"),
            ("20200102", "2020-01-02"),
            ("2020/1/2", "2020-01-02"),
            ("2020-01-01 10:00:00+02", "2020-01-01"),
            ("2020-01-01 +00", "2020-01-01"),
            ("0044-03-15 -05:30 BC", "0044-03-15 BC"),
        ] {
            assert_eq!(parse_date(text).map(format_date).map_err(|e| e.message), Ok(expected.to_owned()), "{text}");
        }
        for (text, state) in [
            ("2020-01-01x", "22007"),
            ("2020-01-01 garbage", "22007"),
            ("2020-01-01-", "22007"),
            ("2020-01-01T", "22007"),
            ("2020-01-01 -", "22007"),
            ("2020-01-01T+00", "22007"),
            ("2020-01-01 +00 10:00", "22007"),
            ("2020-01-01 10", "22007"),
            ("inf", "22007"),
            ("+infinity", "22007"),
            ("", "22007"),
            ("BC", "22007"),
            ("0000-01-01", "22008"),
            ("2023-02-29", "22008"),
            ("5874898-01-01", "22008"),
            ("4714-11-23 BC", "22008"),
        ] {
            assert_eq!(parse_date(text).map_err(|e| e.state.code().to_owned()), Err(state.to_owned()), "{text}");
        }
    }

    #[test]
    fn timestamps_as_postgresql_reads_them() {
        for (text, expected) in [
            ("2020-01-01 10:00 BC", "2020-01-01 10:00:00 BC"),
            ("0044-03-15 10:00:00.5 BC", "0044-03-15 10:00:00.5 BC"),
            ("2020-01-01T10:00:00Z", "2020-01-01 10:00:00"),
            ("2020-01-01 10:00:00.1234567", "2020-01-01 10:00:00.123457"),
            ("2020-01-01 10:00:60", "2020-01-01 10:01:00"),
            ("2020-01-01 24:00:00", "2020-01-02 00:00:00"),
            ("4713-01-01 BC", "4713-01-01 00:00:00 BC"),
            ("294246-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999"),
            ("2020-01-01 10:00:00 +0200", "2020-01-01 10:00:00"),
            ("2020-01-01 10:00:00-05:30", "2020-01-01 10:00:00"),
            ("2020-01-01 10:00 UTC", "2020-01-01 10:00:00"),
            ("2020-01-01 +02", "2020-01-01 00:00:00"),
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
        ] {
            let shown = parse_timestamp(text).map(format_timestamp).map_err(|e| e.message);
            assert_eq!(shown, Ok(expected.to_owned()), "{text}");
        }
        for (text, state) in [
            ("2020-01-01 10:00:00-", "22007"),
            ("2020-01-01 10:00:00x", "22007"),
            ("2020-01-01 10:00:00.5.5", "22007"),
            ("2020-01-01 10:00:00:00", "22007"),
            ("2020-01-01 25:00", "22008"),
            ("2020-01-01 24:00:01", "22008"),
            ("294277-01-01", "22008"),
        ] {
            assert_eq!(parse_timestamp(text).map_err(|e| e.state.code().to_owned()), Err(state.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_ends_are_where_postgresql_has_them() {
        assert_eq!(days_from_civil(-4713, 11, 24), Some(FIRST_DAY.into()));
        assert_eq!(days_from_civil(5_874_897, 12, 31), Some(LAST_DAY.into()));
    }
}
