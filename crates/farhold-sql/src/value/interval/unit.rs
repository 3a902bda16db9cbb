//! What an interval counts: its units, by the names that texts give them, and the number before a unit.

use super::Wrong;
use crate::value::datetime::{HOUR_US, MINUTE_US, SECOND_US};

/// A unit of an interval.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// A number of years.
    Years(i32),
    Month,
    Week,
    Day,
    /// A number of microseconds. Units of the same length count as the same unit.
    Time(i64),
}

impl Unit {
    pub(super) const SECOND: Self = Self::Time(SECOND_US);
    pub(super) const MINUTE: Self = Self::Time(MINUTE_US);
    pub(super) const HOUR: Self = Self::Time(HOUR_US);

    pub(super) fn of(word: &str) -> Option<Self> {
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
pub(super) struct Number {
    pub(super) whole: i64,
    pub(super) fraction: f64,
}

impl Number {
    /// `-1.5`, `.5`, `3.`
    pub(super) fn parse(text: &str) -> Result<Self, Wrong> {
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
