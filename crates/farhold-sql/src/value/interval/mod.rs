//! Intervals as text.
//!
//! They are read as PostgreSQL reads them. Examples are `1 year 2 mons -3 days 04:05:06.7`, `1.5 hours ago`, `2-3` (years and months), `4 05:06` (days before a
//! time), and `P1Y2M3DT4H5M6S`. A final number without a unit counts seconds. The fraction of a unit is carried down:
//! of a year to months, of a month or a week to days, of shorter units to microseconds. Each unit may occur once. Hours
//! have no upper limit of their own.
//!
//! ```text
//!   text ──► forms ──► numbers with units (unit) ──► sum ──► cut to the fields of a type ──► interval ──► write ──► text
//! ```

mod forms;
mod sum;
#[cfg(test)]
mod tests;
mod unit;
mod write;

use arrow::datatypes::IntervalMonthDayNano;

pub(crate) use write::put_interval;

use forms::{by_designators, by_fields};
use sum::Sum;
use unit::Unit;

use crate::{SqlError, SqlState};

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
        None => by_fields(trimmed, of),
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

/// Why a text is not an interval.
enum Wrong {
    Syntax,
    Range,
}
