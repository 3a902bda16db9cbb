//! Values: the text and the binary form of every type, written and read as by PostgreSQL 15.
//!
//! | type | text | binary |
//! |---|---|---|
//! | boolean | `t` | one byte |
//! | integers | decimal | big-endian |
//! | floats | the shortest digits that parse to the same value ([`float`]) | IEEE 754, big-endian |
//! | numeric | decimal | digits to the base of 10 000 ([`numeric`]) |
//! | strings | themselves | themselves |
//! | bytea | `\x` and hex ([`bytea`]) | themselves |
//! | date, timestamp | ISO ([`datetime`]) | days, microseconds since 2000-01-01 |
//! | timestamp with time zone | ISO, in the session's zone ([`zone`]) | microseconds since 2000-01-01 in UTC |
//! | time, interval, lists, records (no column has them) | [`datetime`], [`interval`], [`nested`] | times, intervals, lists |
//!
//! Literals, casts and COPY in the engine and the wire in the server share these forms. A `put` appends to a buffer; an
//! unqualified one writes text. NULL has no form here: each place marks it in its own way.

pub(crate) mod binary;
mod bytea;
mod calendar;
mod datetime;
mod float;
mod integer;
mod interval;
mod nested;
pub(crate) mod numeric;
pub(crate) mod oid;
mod text;
mod zone;

#[cfg(test)]
mod tests;

use farhold_store::row::ColumnType;

pub(crate) use bytea::{decode_escape, decode_hex, put_bytea, put_hex};
pub(crate) use calendar::{civil_from_days, days_from_civil};
pub(crate) use datetime::{
    DAY_MICROSECONDS, DAYS_TO_2000, MICROSECONDS_TO_2000, date_in_range, put_date, put_time, put_timestamp,
    put_timestamptz, round_timestamp, timestamp_in_range,
};
pub(crate) use float::{put_float4, put_float8};
pub(crate) use integer::put_integer;
pub(crate) use interval::{IntervalField, IntervalFields, parse_interval, parse_interval_of, put_interval};
pub(crate) use nested::{DIMENSIONS_MAX, put_list, put_record, read_list, too_many_dimensions};
pub(crate) use numeric::{exact_decimal, put_decimal};
pub(crate) use text::{base_name, parse_stored, put, put_string, written};
pub use text::{format_datum, parse_datum};
pub use zone::Zone;

/// Precision and scale of a NUMERIC without them.
pub(crate) const ANY_DIGITS: (u8, u8) = (38, 16);

/// The length of a CHAR or VARCHAR without one: `bpchar`, and parameters. Such a CHAR is sent without trailing blanks.
pub(crate) const ANY_LENGTH: u32 = ColumnType::CHARACTERS_MAX;
