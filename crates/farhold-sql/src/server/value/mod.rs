//! Values on the wire: reading and writing PostgreSQL's text and binary formats.
//!
//! | type | text | binary |
//! |---|---|---|
//! | boolean | `t` | one byte |
//! | integers | decimal | big-endian |
//! | floats | the shortest digits that parse to the same value | IEEE 754, big-endian |
//! | numeric | decimal | digits to the base of 10 000 ([`numeric`]) |
//! | strings | themselves | themselves |
//! | bytea | `\x` and hex | themselves |
//! | date, timestamp | ISO ([`datetime`]) | days, microseconds since 2000-01-01 |

pub mod binary;
pub mod datetime;
pub mod numeric;
pub mod text;

pub(crate) use crate::engine::oid;

#[cfg(test)]
mod tests;
