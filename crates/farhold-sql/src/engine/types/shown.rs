//! Formats values of types that no column has, as PostgreSQL does: times, intervals, lists, records.

use std::io::Write as _;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

const HOUR_US: i64 = 3_600_000_000;
const MINUTE_US: i64 = 60_000_000;
const SECOND_US: i64 = 1_000_000;

/// Writes a non-negative number with at least `width` digits.
pub(crate) fn put_padded(value: i64, width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + width, b'0');
    let mut rest = value;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Writes a time of day, or the time part of an interval, given in microseconds.
pub(crate) fn put_time(micros: i64, out: &mut Vec<u8>) {
    let hours = micros / HOUR_US;
    if hours < 100 {
        put_padded(hours, 2, out);
    } else {
        let _ = write!(out, "{hours}");
    }
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

/// Writes an interval as `IntervalStyle = postgres` does: `1 year 2 mons 3 days -04:05:06.7`.
pub(crate) fn put_interval(months: i32, days: i32, micros: i64, out: &mut Vec<u8>) {
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

/// Writes a list as an array literal, `{1,NULL,"a b"}`; `put` writes an element other than NULL.
pub(crate) fn put_list(elements: &ArrayRef, out: &mut Vec<u8>, put: &mut dyn FnMut(&ArrayRef, usize, &mut Vec<u8>)) {
    out.push(b'{');
    for index in 0..elements.len() {
        if index > 0 {
            out.push(b',');
        }
        if elements.is_null(index) || elements.data_type() == &DataType::Null {
            out.extend_from_slice(b"NULL");
            continue;
        }
        let start = out.len();
        put(elements, index, out);
        if !elements.data_type().is_list() {
            quote_element(start, out);
        }
    }
    out.push(b'}');
}

/// Writes a record, `(1,,"a b")`: NULL is written as nothing; an empty field, or one with special characters, is
/// quoted.
pub(crate) fn put_record<'a>(fields: impl Iterator<Item = Option<&'a str>>, out: &mut Vec<u8>) {
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | b'(' | b')' | b',') || byte.is_ascii_whitespace();
    out.push(b'(');
    for (index, field) in fields.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let Some(field) = field else { continue };
        if !field.is_empty() && !field.as_bytes().iter().any(special) {
            out.extend_from_slice(field.as_bytes());
            continue;
        }
        out.push(b'"');
        for &byte in field.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                out.push(byte);
            }
            out.push(byte);
        }
        out.push(b'"');
    }
    out.push(b')');
}

/// Quotes the element of an array literal that begins at `start`, if necessary.
fn quote_element(start: usize, out: &mut Vec<u8>) {
    let element = &out[start..];
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | b'{' | b'}' | b',') || byte.is_ascii_whitespace();
    if !element.is_empty() && !element.iter().any(special) && !element.eq_ignore_ascii_case(b"null") {
        return;
    }
    let element = element.to_vec();
    out.truncate(start);
    out.push(b'"');
    for byte in element {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}
