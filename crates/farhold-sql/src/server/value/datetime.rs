//! Dates and timestamps: ISO text, and PostgreSQL's epoch.
//!
//! The engine counts from 1970-01-01, the wire from 2000-01-01. Years before 1 have PostgreSQL's format:
//! `0044-03-15 BC` is year -43.

use super::text::put_integer;
use crate::engine::{civil_from_days, put_padded};
pub(crate) use crate::engine::{put_interval, put_time};

/// Days from 1970-01-01 to 2000-01-01.
pub const EPOCH_SHIFT_DAYS: i32 = 10_957;
/// The same in microseconds.
pub const EPOCH_SHIFT_US: i64 = EPOCH_SHIFT_DAYS as i64 * DAY_US;

const DAY_US: i64 = 86_400_000_000;

/// The representation of `infinity` as a timestamp: the largest integer, both here and on the wire.
const TIMESTAMP_INFINITY: i64 = i64::MAX;
const TIMESTAMP_MINUS_INFINITY: i64 = i64::MIN;
const DATE_INFINITY: i32 = i32::MAX;
const DATE_MINUS_INFINITY: i32 = i32::MIN;

/// Writes a date.
pub fn put_date(days: i32, out: &mut Vec<u8>) {
    match days {
        DATE_INFINITY => out.extend_from_slice(b"infinity"),
        DATE_MINUS_INFINITY => out.extend_from_slice(b"-infinity"),
        _ => {
            let before_christ = put_day(i64::from(days), out);
            if before_christ {
                out.extend_from_slice(b" BC");
            }
        }
    }
}

/// Writes a timestamp; `zone` is appended (`+00` for a timestamp with time zone, all of which are UTC here).
pub fn put_timestamp(micros: i64, zone: &str, out: &mut Vec<u8>) {
    match micros {
        TIMESTAMP_INFINITY => out.extend_from_slice(b"infinity"),
        TIMESTAMP_MINUS_INFINITY => out.extend_from_slice(b"-infinity"),
        _ => {
            let before_christ = put_day(micros.div_euclid(DAY_US), out);
            out.push(b' ');
            put_time(micros.rem_euclid(DAY_US), out);
            out.extend_from_slice(zone.as_bytes());
            if before_christ {
                out.extend_from_slice(b" BC");
            }
        }
    }
}

fn put_day(days: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = civil_from_days(days);
    let before_christ = year <= 0;
    let year = if before_christ { 1 - year } else { year };
    if year < 10_000 {
        put_padded(year, 4, out);
    } else {
        put_integer(year, out);
    }
    out.push(b'-');
    put_padded(i64::from(month), 2, out);
    out.push(b'-');
    put_padded(i64::from(day), 2, out);
    before_christ
}
