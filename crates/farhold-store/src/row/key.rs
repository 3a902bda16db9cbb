//! The key codec: bytes whose order is the order of the datums.
//!
//! | kind | bytes |
//! |---|---|
//! | boolean | one byte, 0 or 1 |
//! | integers, dates, timestamps, decimals | big-endian with the sign bit flipped |
//! | floats | big-endian bits, sign bit flipped when positive, all bits when negative |
//! | text | the bytes, then one zero byte (text holds no NUL) |
//! | bytea | the bytes with `00` as `00 FF`, then `00 00` |
//!
//! A nullable column of a secondary key has a marker byte in front: 1 = a value follows, 2 = NULL (so NULL sorts last).

use super::datum::Fitted;
use super::schema::Column;
use super::types::Physical;
use super::{ColumnType, Datum, RowError};
use std::marker::PhantomData;

pub(super) const VALUE_MARKER: u8 = 1;
pub(super) const NULL_MARKER: u8 = 2;

/// A scalar with a memcomparable form of fixed width.
pub trait KeyScalar: Copy {
    /// Its bytes in a key.
    const BYTES: usize;
    /// Writes the memcomparable form to the first `BYTES` of `to`.
    fn put(self, to: &mut [u8]);
    /// Reads it back.
    fn take(from: &[u8]) -> Self;
}

macro_rules! integer_key {
    ($($int:ty => $unsigned:ty),*) => {$(
        impl KeyScalar for $int {
            const BYTES: usize = size_of::<$int>();
            #[inline]
            fn put(self, to: &mut [u8]) {
                let flipped = self.cast_unsigned() ^ (1 << (<$int>::BITS - 1));
                to[..Self::BYTES].copy_from_slice(&flipped.to_be_bytes());
            }
            #[inline]
            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$int>()];
                bytes.copy_from_slice(&from[..Self::BYTES]);
                (<$unsigned>::from_be_bytes(bytes) ^ (1 << (<$int>::BITS - 1))).cast_signed()
            }
        }
    )*};
}
integer_key!(i16 => u16, i32 => u32, i64 => u64, i128 => u128);

macro_rules! float_key {
    ($($float:ty => $unsigned:ty),*) => {$(
        impl KeyScalar for $float {
            const BYTES: usize = size_of::<$float>();
            #[inline]
            fn put(self, to: &mut [u8]) {
                const SIGN: $unsigned = 1 << (<$unsigned>::BITS - 1);
                // One zero and one NaN, so that equal values are equal keys.
                let bits = if self == 0.0 { 0 } else if self.is_nan() { <$float>::NAN.to_bits() & !SIGN } else { self.to_bits() };
                let ordered = if bits & SIGN == 0 { bits ^ SIGN } else { !bits };
                to[..Self::BYTES].copy_from_slice(&ordered.to_be_bytes());
            }
            #[inline]
            fn take(from: &[u8]) -> Self {
                const SIGN: $unsigned = 1 << (<$unsigned>::BITS - 1);
                let mut bytes = [0; size_of::<$float>()];
                bytes.copy_from_slice(&from[..Self::BYTES]);
                let ordered = <$unsigned>::from_be_bytes(bytes);
                <$float>::from_bits(if ordered & SIGN != 0 { ordered ^ SIGN } else { !ordered })
            }
        }
    )*};
}
float_key!(f32 => u32, f64 => u64);

impl KeyScalar for bool {
    const BYTES: usize = 1;
    #[inline]
    fn put(self, to: &mut [u8]) {
        to[0] = u8::from(self);
    }
    #[inline]
    fn take(from: &[u8]) -> Self {
        from[0] != 0
    }
}

/// A fixed-width column at a fixed offset of a key: reading it is one load and a byte swap.
#[derive(Debug, Clone, Copy)]
pub struct KeyField<T> {
    offset: u32,
    scalar: PhantomData<T>,
}

impl<T: KeyScalar> KeyField<T> {
    pub(super) const fn new(offset: u32) -> Self {
        Self { offset, scalar: PhantomData }
    }

    /// The column's value in `key`.
    ///
    /// # Panics
    /// When `key` is too short to be a key of this table.
    #[inline]
    #[must_use]
    pub fn get(self, key: &[u8]) -> T {
        T::take(&key[self.offset as usize..])
    }
}

/// A key built on the stack, column by column, for code that knows its table.
///
/// ```
/// use farhold_store::row::StackKey;
/// let key = StackKey::<8>::new().with(7_i32).with(-1_i32);
/// assert_eq!(key.as_slice(), [0x80, 0, 0, 7, 0x7f, 0xff, 0xff, 0xff]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StackKey<const BYTES_MAX: usize> {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl<const BYTES_MAX: usize> Default for StackKey<BYTES_MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES_MAX: usize> StackKey<BYTES_MAX> {
    /// An empty key.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; BYTES_MAX], len: 0 }
    }

    /// Appends a fixed-width column.
    ///
    /// # Panics
    /// When the key does not fit `BYTES_MAX`.
    #[inline]
    #[must_use]
    pub fn with<T: KeyScalar>(mut self, scalar: T) -> Self {
        scalar.put(&mut self.bytes[self.len..]);
        self.len += T::BYTES;
        self
    }

    /// Appends a text column. `CHAR(n)` must come without trailing blanks.
    ///
    /// # Panics
    /// When the key does not fit `BYTES_MAX`, or (debug builds) when the text holds a NUL.
    #[inline]
    #[must_use]
    pub fn with_text(mut self, text: &[u8]) -> Self {
        debug_assert!(!text.contains(&0), "text holds no NUL");
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
        self.bytes[self.len + text.len()] = 0;
        self.len += text.len() + 1;
        self
    }

    /// The smallest key above every key that starts with this one; empty when there is none.
    #[inline]
    #[must_use]
    pub fn next_prefix(mut self) -> Self {
        while self.len > 0 && self.bytes[self.len - 1] == 0xff {
            self.len -= 1;
        }
        if self.len > 0 {
            self.bytes[self.len - 1] += 1;
        }
        self
    }

    /// The key's bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const BYTES_MAX: usize> std::ops::Deref for StackKey<BYTES_MAX> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl<const BYTES_MAX: usize> AsRef<[u8]> for StackKey<BYTES_MAX> {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// The key of a row whose primary key is one column of fixed width.
#[inline]
#[must_use]
pub fn key_of<T: KeyScalar>(scalar: T) -> StackKey<8> {
    StackKey::new().with(scalar)
}

fn put_scalar<T: KeyScalar>(scalar: T, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + T::BYTES, 0);
    scalar.put(&mut out[at..]);
}

/// Appends a text column's key form. The text must hold no NUL.
pub fn put_text(text: &[u8], out: &mut Vec<u8>) {
    debug_assert!(!text.contains(&0), "text holds no NUL");
    out.extend_from_slice(text);
    out.push(0);
}

/// Appends a bytea column's key form.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.split_inclusive(|b| *b == 0) {
        out.extend_from_slice(part);
        if part.ends_with(&[0]) {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

/// Turns `key` into the smallest key above every key that starts with it; false (and `key` is left empty) when there is
/// none because all its bytes are 0xff.
pub fn next_prefix(key: &mut Vec<u8>) -> bool {
    while let Some(last) = key.last_mut() {
        if *last < 0xff {
            *last += 1;
            return true;
        }
        key.pop();
    }
    false
}

/// Appends the key form of a datum that fits `column`.
pub(super) fn put_fitted(fitted: &Fitted<'_>, column: &Column, marked: bool, out: &mut Vec<u8>) {
    if marked {
        out.push(if matches!(fitted, Fitted::Null) { NULL_MARKER } else { VALUE_MARKER });
    }
    let wide = column.data_type.key_physical() == Physical::I64;
    match fitted {
        Fitted::Null => {}
        Fitted::Bool(v) => put_scalar(*v, out),
        Fitted::I16(v) => put_scalar(*v, out),
        Fitted::I32(v) if wide => put_scalar(i64::from(*v), out),
        Fitted::I32(v) => put_scalar(*v, out),
        Fitted::I64(v) => put_scalar(*v, out),
        Fitted::I128(v) => put_scalar(*v, out),
        Fitted::F32(v) => put_scalar(*v, out),
        Fitted::F64(v) => put_scalar(*v, out),
        Fitted::Text(v) => put_text(v.as_bytes(), out),
        Fitted::Bytes(v) => put_bytes(v, out),
    }
}

/// The bytes of the first column of `key`, and the rest. `marked` = a NULL marker comes first.
pub(super) fn split_column(key: &[u8], data_type: ColumnType, marked: bool) -> Result<(&[u8], &[u8]), RowError> {
    const SHORT: RowError = RowError::Corrupt { what: "key is too short" };
    let mut start = 0;
    if marked {
        match key.first() {
            Some(&VALUE_MARKER) => start = 1,
            Some(&NULL_MARKER) => return Ok(key.split_at(1)),
            Some(_) => return Err(RowError::Corrupt { what: "unknown NULL marker in a key" }),
            None => return Err(SHORT),
        }
    }
    let body = &key[start..];
    let len = match data_type.key_physical() {
        Physical::Text => body.iter().position(|b| *b == 0).ok_or(SHORT)? + 1,
        Physical::Bytes => {
            let mut at = 0;
            loop {
                at += body.get(at..).and_then(|rest| rest.iter().position(|b| *b == 0)).ok_or(SHORT)? + 1;
                match body.get(at) {
                    Some(0) => break at + 1,
                    Some(0xff) => at += 1,
                    Some(_) => return Err(RowError::Corrupt { what: "bad escape in a key" }),
                    None => return Err(SHORT),
                }
            }
        }
        fixed => fixed.bytes().unwrap_or(0),
    };
    if body.len() < len {
        return Err(SHORT);
    }
    Ok(key.split_at(start + len))
}

/// Decodes one column's key form, as [`split_column`] cut it.
pub(super) fn decode_column(bytes: &[u8], data_type: ColumnType, marked: bool) -> Result<Datum, RowError> {
    const RANGE: RowError = RowError::Corrupt { what: "number out of its column's range in a key" };
    let body = if marked {
        if bytes == [NULL_MARKER] {
            return Ok(Datum::Null);
        }
        bytes.get(1..).unwrap_or_default()
    } else {
        bytes
    };
    let physical = data_type.key_physical();
    if physical.bytes().is_some_and(|len| body.len() != len) {
        return Err(RowError::Corrupt { what: "key column of a wrong width" });
    }
    match physical {
        Physical::Bool => match body[0] {
            0 => Ok(Datum::Boolean(false)),
            1 => Ok(Datum::Boolean(true)),
            _ => Err(RowError::Corrupt { what: "boolean neither 0 nor 1" }),
        },
        Physical::I16 => Datum::from_integer(i128::from(i16::take(body)), data_type).ok_or(RANGE),
        Physical::I32 => Datum::from_integer(i128::from(i32::take(body)), data_type).ok_or(RANGE),
        Physical::I64 => Datum::from_integer(i128::from(i64::take(body)), data_type).ok_or(RANGE),
        Physical::I128 => Datum::from_integer(i128::take(body), data_type).ok_or(RANGE),
        Physical::F32 => Ok(Datum::Real(f32::take(body))),
        Physical::F64 => Ok(Datum::Double(f64::take(body))),
        Physical::Text => {
            let [text @ .., 0] = body else { return Err(RowError::Corrupt { what: "text without its end in a key" }) };
            let text = std::str::from_utf8(text).map_err(|_| RowError::Corrupt { what: "text is not UTF-8" })?;
            Ok(Datum::Text(text.to_owned()))
        }
        Physical::Bytes => {
            let [escaped @ .., 0, 0] = body else {
                return Err(RowError::Corrupt { what: "bytea without its end in a key" });
            };
            let mut plain = Vec::with_capacity(escaped.len());
            let mut escape = false;
            for byte in escaped {
                if !escape {
                    plain.push(*byte);
                }
                escape = *byte == 0 && !escape;
            }
            Ok(Datum::Bytea(plain))
        }
    }
}
