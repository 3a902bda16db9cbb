//! Dates, timestamps and times of day as text, in PostgreSQL's format (`DateStyle = ISO`).
//!
//! ```text
//! date:      [-]infinity | epoch | day [clock | [blank] zone] [BC | AD]
//! day:       YYYY-MM-DD | YYYY/MM/DD | YYYYMMDD
//! clock:     (blank | T) (HH:MM[:SS[.digits]] | HHMM[SS[.digits]]) [zone]
//! zone:      Z | offset | abbreviation | name              as in [`zone`](super::zone)
//! offset:    (+ | -)HH[[:]MM] | (+ | -)HH:MM:SS            below 16 hours, to the east
//! ```
//! The engine counts from 1970-01-01. The infinities are the limits of the integer types, as on the wire. Any other text
//! is an error. A timestamp with time zone is read in the session's zone if its text has none; other types ignore the zone.

use super::calendar::{civil_from_days, days_from_civil};
use super::integer::put_padded;
use super::zone::{Zone, unknown_zone};
use crate::{SqlError, SqlState};

pub(super) const SECOND_US: i64 = 1_000_000;
pub(super) const MINUTE_US: i64 = 60 * SECOND_US;
pub(super) const HOUR_US: i64 = 60 * MINUTE_US;
/// Microseconds of a day.
pub(crate) const DAY_MICROSECONDS: i64 = 24 * HOUR_US;

/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL begins to count, as does the binary form.
pub(crate) const DAYS_TO_2000: i32 = 10_957;
/// The same in microseconds.
pub(crate) const MICROSECONDS_TO_2000: i64 = DAYS_TO_2000 as i64 * DAY_MICROSECONDS;

/// 4714-11-24 BC, the first day of PostgreSQL's dates.
const FIRST_DAY: i32 = -2_440_588;
/// 5874897-12-31.
const LAST_DAY: i32 = 2_145_042_905;

/// Writes a date.
pub(crate) fn put_date(days: i32, out: &mut Vec<u8>) {
    match days {
        i32::MAX => out.extend_from_slice(b"infinity"),
        i32::MIN => out.extend_from_slice(b"-infinity"),
        _ => {
            let era = put_day(i64::from(days), out);
            out.extend_from_slice(era);
        }
    }
}

/// Writes a timestamp.
pub(crate) fn put_timestamp(micros: i64, out: &mut Vec<u8>) {
    put_moment(micros, None, out);
}

/// Writes a timestamp with time zone, as the local time of a zone and its distance from UTC.
pub(crate) fn put_timestamptz(micros: i64, zone: Zone, out: &mut Vec<u8>) {
    put_moment(micros, Some(zone), out);
}

fn put_moment(micros: i64, zone: Option<Zone>, out: &mut Vec<u8>) {
    match micros {
        i64::MAX => out.extend_from_slice(b"infinity"),
        i64::MIN => out.extend_from_slice(b"-infinity"),
        _ => {
            let ahead = zone.map(|zone| zone.seconds_at(micros));
            // The local time of the last instants is later than all timestamps.
            let local = i128::from(micros) + i128::from(ahead.unwrap_or(0) * SECOND_US);
            let era = put_day(local.div_euclid(DAY_MICROSECONDS.into()) as i64, out);
            out.push(b' ');
            put_time(local.rem_euclid(DAY_MICROSECONDS.into()) as i64, out);
            if let Some(ahead) = ahead {
                put_offset(ahead, out);
            }
            out.extend_from_slice(era);
        }
    }
}

/// Writes the distance from UTC, in seconds to the east: hours, and minutes and seconds if there are some.
fn put_offset(ahead: i64, out: &mut Vec<u8>) {
    let distance = ahead.abs();
    out.push(if ahead < 0 { b'-' } else { b'+' });
    put_padded(distance / 3_600, 2, out);
    if distance % 3_600 != 0 {
        out.push(b':');
        put_padded(distance / 60 % 60, 2, out);
    }
    if distance % 60 != 0 {
        out.push(b':');
        put_padded(distance % 60, 2, out);
    }
}

/// Writes the day; returns the era that must end the text. The year before 1 is `0001 BC`.
fn put_day(days: i64, out: &mut Vec<u8>) -> &'static [u8] {
    let (year, month, day) = civil_from_days(days);
    let (shown, era): (i64, &[u8]) = if year > 0 { (year, b"") } else { (1 - year, b" BC") };
    put_padded(shown, 4, out);
    out.push(b'-');
    put_padded(i64::from(month), 2, out);
    out.push(b'-');
    put_padded(i64::from(day), 2, out);
    era
}

/// Writes a time of day, or the time part of an interval, given in microseconds.
pub(crate) fn put_time(micros: i64, out: &mut Vec<u8>) {
    put_padded(micros / HOUR_US, 2, out);
    out.push(b':');
    put_padded(micros / MINUTE_US % 60, 2, out);
    out.push(b':');
    put_padded(micros / SECOND_US % 60, 2, out);
    let mut fraction = micros % SECOND_US;
    if fraction != 0 {
        let mut width = 6;
        while fraction % 10 == 0 {
            fraction /= 10;
            width -= 1;
        }
        out.push(b'.');
        put_padded(fraction, width, out);
    }
}

/// What a text says.
enum Parsed {
    Infinity,
    MinusInfinity,
    /// A day, the microseconds since it began, and the zone if the text has one.
    At {
        day: i64,
        of_day: i64,
        zone: Option<Zone>,
    },
}

/// Days since 1970-01-01; a time of day is ignored.
pub(super) fn parse_date(text: &str) -> Result<i32, SqlError> {
    match parse(text, "date")? {
        Parsed::Infinity => Ok(i32::MAX),
        Parsed::MinusInfinity => Ok(i32::MIN),
        Parsed::At { day, .. } => {
            i32::try_from(day).ok().and_then(date_in_range).ok_or_else(|| out_of_range(text, "date"))
        }
    }
}

/// Microseconds since 1970-01-01; a zone is ignored.
pub(super) fn parse_timestamp(text: &str) -> Result<i64, SqlError> {
    timestamp(text, "timestamp", |local, _| Some(local))
}

/// Parses a timestamp with time zone, as microseconds since 1970-01-01 in UTC. `session` is the zone of a text without one.
///
/// # Errors
/// 22007, 22008, 22009, 22023.
pub(super) fn parse_timestamptz(text: &str, session: Zone) -> Result<i64, SqlError> {
    timestamp(text, "timestamp with time zone", |local, zone| zone.unwrap_or(session).to_instant(local))
}

fn timestamp(text: &str, kind: &str, instant: impl Fn(i64, Option<Zone>) -> Option<i64>) -> Result<i64, SqlError> {
    match parse(text, kind)? {
        Parsed::Infinity => Ok(i64::MAX),
        Parsed::MinusInfinity => Ok(i64::MIN),
        Parsed::At { day, of_day, zone } => day
            .checked_mul(DAY_MICROSECONDS)
            .and_then(|start| start.checked_add(of_day))
            // The last number is infinity.
            .filter(|local| *local != i64::MAX)
            .and_then(|local| instant(local, zone))
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
/// year 2000.
pub(crate) fn round_timestamp(microseconds: i64, digits: u8) -> i64 {
    if digits >= 6 || matches!(microseconds, i64::MIN | i64::MAX) {
        return microseconds;
    }
    let unit = 10_i64.pow(u32::from(6 - digits));
    let since = microseconds.saturating_sub(MICROSECONDS_TO_2000);
    let rounded = since.abs().saturating_add(unit / 2) / unit * unit;
    MICROSECONDS_TO_2000.saturating_add(rounded * since.signum())
}

fn out_of_range(text: &str, kind: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("{kind} out of range: \"{text}\""))
}

/// A field such as the month has an impossible value.
fn field_range(text: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("date/time field value out of range: \"{text}\""))
}

fn parse(text: &str, kind: &str) -> Result<Parsed, SqlError> {
    let bad = || SqlError::new(SqlState::INVALID_DATETIME, format!("invalid input syntax for type {kind}: \"{text}\""));
    // PostgreSQL ignores punctuation around the text, except characters of times and zones.
    let is_silent = |c: char| c.is_whitespace() || c.is_ascii_punctuation() && !"+-.:/".contains(c);
    let lower = text.trim_matches(is_silent).to_ascii_lowercase();
    match lower.as_str() {
        "infinity" => return Ok(Parsed::Infinity),
        "-infinity" => return Ok(Parsed::MinusInfinity),
        "epoch" => return Ok(Parsed::At { day: 0, of_day: 0, zone: Some(Zone::UTC) }),
        _ => {}
    }
    let era = |word: &str| lower.strip_suffix(word).filter(|rest| rest.ends_with(char::is_whitespace));
    let (rest, before_christ) = match (era("bc"), era("ad")) {
        (Some(rest), _) => (rest.trim_end(), true),
        (_, Some(rest)) => (rest.trim_end(), false),
        _ => (lower.as_str(), false),
    };
    let end = rest.find(|c: char| c.is_whitespace() || c.is_ascii_alphabetic() || c == '+').unwrap_or(rest.len());
    let (day, clock) = rest.split_at(end);
    let (year, month, day) = parse_day(day).ok_or_else(bad)?;
    // A day alone begins at midnight, even if it has a zone. After a `T` a time is required.
    let clock = clock.trim();
    let (clock, needs_time) = match clock.strip_prefix('t') {
        Some(time) if !time.starts_with(|c: char| c.is_ascii_alphabetic()) => (time, true),
        _ => (clock, false),
    };
    let has_time = needs_time || clock.starts_with(|c: char| c.is_ascii_digit());
    let (of_day, zone) = if has_time {
        let (clock, zone) = parse_clock(clock).ok_or_else(bad)?;
        let zone = parse_zone(zone)?.ok_or_else(bad)?;
        (clock.microseconds().ok_or_else(|| field_range(text))?, zone)
    } else {
        (0, parse_zone(clock)?.ok_or_else(bad)?)
    };
    let zone = match zone {
        Written::Nothing => None,
        Written::Zone(zone) => Some(zone),
        Written::Offset(offset) => Some(Zone::ahead(offset.seconds().ok_or_else(|| {
            SqlError::new(SqlState::INVALID_TIME_ZONE, format!("time zone displacement out of range: \"{text}\""))
        })?)),
    };
    // PostgreSQL checks the day last. There is no year 0: 1 AD follows 1 BC, which is the internal year 0.
    let internal_year = if before_christ { 1 - i64::from(year) } else { i64::from(year) };
    let day = days_from_civil(internal_year, month, day).filter(|_| year > 0).ok_or_else(|| field_range(text))?;
    Ok(Parsed::At { day, of_day, zone })
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
        Some(((hour * 60 + minute) * 60 + second) * SECOND_US + microseconds)
    }
}

/// A time of day, and the text of the zone after it.
fn parse_clock(text: &str) -> Option<(Clock, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.'))).unwrap_or(text.len());
    let (clock, zone) = text.split_at(end);
    let together = clock.split('.').next().unwrap_or_default();
    let apart = if !clock.contains(':') && matches!(together.len(), 4 | 6) {
        // `hhmm` or `hhmmss`, as ISO 8601 writes it.
        &[&clock[..2], ":", &clock[2..4], if together.len() == 6 { ":" } else { "" }, &clock[4..]].concat()
    } else {
        clock
    };
    let mut parts = apart.split(':');
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
    let (hour, minute, second) = (hour.into(), minute.into(), number(second)?.into());
    Some((Clock { hour, minute, second, microseconds: six + round }, zone.trim_start()))
}

/// A zone as written.
enum Written {
    Nothing,
    Offset(Offset),
    Zone(Zone),
}

/// A distance from UTC.
struct Offset {
    is_behind: bool,
    hours: u32,
    minutes: u32,
    seconds: u32,
}

impl Offset {
    /// The seconds by which it is ahead of UTC; `None` if there is no such zone.
    fn seconds(&self) -> Option<i64> {
        let Self { is_behind, hours, minutes, seconds } = *self;
        let distance = i64::from((hours * 60 + minutes) * 60 + seconds);
        (hours < 16 && minutes < 60 && seconds < 60).then_some(if is_behind { -distance } else { distance })
    }
}

/// A zone in lower case; `None` if it is none.
fn parse_zone(text: &str) -> Result<Option<Written>, SqlError> {
    if text.is_empty() {
        return Ok(Some(Written::Nothing));
    }
    if text.starts_with(['+', '-']) {
        return Ok(parse_offset(text).map(Written::Offset));
    }
    if text.bytes().all(|b| b.is_ascii_alphabetic()) {
        return Ok(Zone::abbreviated(text).map(Written::Zone));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '/' | '_' | '.' | ':');
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) || !text.chars().all(is_part) {
        return Ok(None);
    }
    Zone::named(text).map(|zone| Some(Written::Zone(zone))).ok_or_else(|| unknown_zone(text))
}

fn parse_offset(text: &str) -> Option<Offset> {
    let offset = &text[1..];
    let part = |part: &str, digits_max: usize| number(part).filter(|_| part.len() <= digits_max);
    let (hours, minutes, seconds) = match offset.split_once(':') {
        // Without colons, the last two of at least three digits are minutes.
        None if offset.len() > 2 => part(offset, 6).map(|digits| (digits / 100, digits % 100, 0))?,
        None => (part(offset, 2)?, 0, 0),
        Some((hours, rest)) => {
            let (minutes, seconds) = rest.split_once(':').unwrap_or((rest, "0"));
            (part(hours, 2)?, part(minutes, 2)?, part(seconds, 2)?)
        }
    };
    Some(Offset { is_behind: text.starts_with('-'), hours, minutes, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::written;

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
            let shown = parse_date(text).map(|date| written(|out| put_date(date, out))).map_err(|e| e.message);
            assert_eq!(shown, Ok(expected.to_owned()), "{text}");
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
            ("0000-01-01 BC", "22008"),
            ("0000-12-31 AD", "22008"),
            ("0000-12-31 BC x", "22007"),
            ("2020-01-01 +16", "22009"),
            ("2023-02-29 +16", "22009"),
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
            ("20200101T100203Z", "2020-01-01 10:02:03"),
            ("2020-01-01 100203.5+02", "2020-01-01 10:02:03.5"),
            ("20200101 1002", "2020-01-01 10:02:00"),
            ("4713-01-01 BC", "4713-01-01 00:00:00 BC"),
            ("294246-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999"),
            ("2020-01-01 10:00:00 +0200", "2020-01-01 10:00:00"),
            ("2020-01-01 10:00:00-05:30", "2020-01-01 10:00:00"),
            ("2020-01-01 10:00 UTC", "2020-01-01 10:00:00"),
            ("2020-01-01 +02", "2020-01-01 00:00:00"),
            ("2020-01-01+02", "2020-01-01 00:00:00"),
            ("2020-01-01Z", "2020-01-01 00:00:00"),
            ("20200101EST", "2020-01-01 00:00:00"),
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
        ] {
            let shown = parse_timestamp(text).map(|micros| written(|out| put_timestamp(micros, out)));
            let shown = shown.map_err(|e| e.message);
            assert_eq!(shown, Ok(expected.to_owned()), "{text}");
        }
        for (text, state) in [
            ("2020-01-01 10:00:00-", "22007"),
            ("2020-01-01 10:00:00x", "22007"),
            ("2020-01-01 10:00:00.5.5", "22007"),
            ("2020-01-01 10:00:00:00", "22007"),
            ("2020-01-01 10", "22007"),
            ("2020-01-01T10020", "22007"),
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
