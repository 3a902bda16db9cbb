//! Rows as bytes: the columns of a table, and how a row becomes a key and a value.
//!
//! ```text
//!  row = datums, one a column
//!    │ primary-key columns                        │ all other columns
//!    ▼                                            ▼
//!  key: memcomparable bytes                     value: [null bits] fixed columns │ u16 ends │ variable bytes
//!  `a < b` as rows  ⇔  `a < b` as bytes           └ offsets known from the schema alone ┘
//! ```
//!
//! - A column is stored once: key columns live in the key, the others in the value.
//! - The null bits (one per *nullable* value column) are there only when some value column is nullable, so a table of
//!   NOT NULL columns pays nothing. A NULL fixed column keeps its (zeroed) room, so every offset stays fixed.
//! - `CHAR(n)` is stored without its trailing blanks, which is also how it compares; the front end restores them.
//! - Text holds no NUL character (as in PostgreSQL), so its key form is the bytes and one zero; only `BYTEA` is escaped.
//! - NULL sorts last and appears only in secondary keys: primary-key columns are NOT NULL.
//!
//! Order is by bytes (the C collation). `-0.0` and `0.0` are one key, and so are all NaNs, above every number.
//! Nothing here is `unsafe`, and every decoder returns [`RowError::Corrupt`] for invalid bytes.

mod datum;
mod definition;
mod error;
mod key;
mod layout;
mod reader;
mod schema;
mod secondary;
mod types;
mod value;

#[cfg(test)]
mod tests;

pub use datum::Datum;
pub use definition::{decode_definition, encode_definition};
pub use error::RowError;
pub use key::{KeyField, KeyScalar, StackKey, key_of, next_prefix, put_bytes, put_text};
pub use layout::{Field, FixedScalar, Layout, NullBit, NullableField, Place, ValueBuilder, VarField};
pub use reader::{ColumnReader, Stored};
pub use schema::{Column, KeyShape, Schema};
pub use secondary::{SecondaryIndex, SecondaryKeys};
pub use types::ColumnType;
