//! How an interval is written.

use std::io::Write as _;

use arrow::datatypes::IntervalMonthDayNano;

use crate::value::datetime::put_time;

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
