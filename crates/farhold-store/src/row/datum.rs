//! One value of one column, and its fit into a column.

use super::schema::Column;
use super::types::Physical;
use super::{ColumnType, RowError};
use std::cmp::Ordering;

/// One SQL value. Its kind is coarser than [`ColumnType`]: the three string types share `Text`.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// NULL, of any type
    Null,
    /// A boolean
    Boolean(bool),
    /// 16 bits
    SmallInt(i16),
    /// 32 bits
    Int(i32),
    /// 64 bits
    BigInt(i64),
    /// 32-bit float
    Real(f32),
    /// 64-bit float
    Double(f64),
    /// `unscaled / 10^scale`
    Decimal {
        /// The digits, as an integer.
        unscaled: i128,
        /// How many of the digits stand behind the point.
        scale: u8,
    },
    /// `CHAR`, `VARCHAR` and `TEXT`. A `CHAR` comes out of a row without trailing blanks.
    Text(String),
    /// Bytes
    Bytea(Vec<u8>),
    /// Days since 1970-01-01
    Date(i32),
    /// Microseconds since 1970-01-01 00:00
    Timestamp(i64),
    /// Microseconds since 1970-01-01 00:00 in UTC
    Timestamptz(i64),
}

/// A datum that has been checked against its column: what the encoders take.
#[derive(Debug)]
pub(super) enum Fitted<'a> {
    Null,
    Bool(bool),
    I16(i16),
    I32(i32),
    I64(i64),
    I128(i128),
    F32(f32),
    F64(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl Datum {
    /// It is NULL.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The kind's name, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::SmallInt(_) => "smallint",
            Self::Int(_) => "integer",
            Self::BigInt(_) => "bigint",
            Self::Real(_) => "real",
            Self::Double(_) => "double precision",
            Self::Decimal { .. } => "numeric",
            Self::Text(_) => "text",
            Self::Bytea(_) => "bytea",
            Self::Date(_) => "date",
            Self::Timestamp(_) => "timestamp",
            Self::Timestamptz(_) => "timestamp with time zone",
        }
    }

    /// The order of two datums of one column, which is the order of their key bytes: NULL last, NaN above every number,
    /// `-0.0` equal to `0.0`. `None` when the kinds differ.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        Some(match (self, other) {
            (Self::Null, Self::Null) => Ordering::Equal,
            (Self::Null, _) => Ordering::Greater,
            (_, Self::Null) => Ordering::Less,
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::Real(a), Self::Real(b)) => compare_floats(f64::from(*a), f64::from(*b)),
            (Self::Double(a), Self::Double(b)) => compare_floats(*a, *b),
            (Self::Decimal { unscaled: a, scale: s }, Self::Decimal { unscaled: b, scale: t }) => {
                compare_decimals(*a, *s, *b, *t)
            }
            (Self::Text(a), Self::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Self::Bytea(a), Self::Bytea(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::Timestamp(a), Self::Timestamp(b)) | (Self::Timestamptz(a), Self::Timestamptz(b)) => a.cmp(b),
            _ => self.integer()?.cmp(&other.integer()?),
        })
    }

    const fn integer(&self) -> Option<i64> {
        match self {
            Self::SmallInt(v) => Some(*v as i64),
            Self::Int(v) => Some(*v as i64),
            Self::BigInt(v) => Some(*v),
            _ => None,
        }
    }

    /// Checks the datum against its column's type and limits. Integers fit every integer and decimal column that has
    /// room; decimals are rounded half away from zero to the column's scale; excess trailing blanks of strings are cut.
    pub(super) fn fit<'a>(&'a self, column: &Column) -> Result<Fitted<'a>, RowError> {
        let overflow = || RowError::NumericOverflow { column: column.name.clone(), data_type: column.data_type };
        let wrong =
            || RowError::WrongType { column: column.name.clone(), expected: column.data_type, found: self.kind() };
        match (column.data_type, self) {
            (_, Self::Null) if column.nullable => Ok(Fitted::Null),
            (_, Self::Null) => Err(RowError::NullNotAllowed { column: column.name.clone() }),
            (ColumnType::Boolean, Self::Boolean(v)) => Ok(Fitted::Bool(*v)),
            (ColumnType::SmallInt, _) => {
                let v = self.integer().ok_or_else(wrong)?;
                i16::try_from(v).map(Fitted::I16).map_err(|_| overflow())
            }
            (ColumnType::Int, _) => {
                let v = self.integer().ok_or_else(wrong)?;
                i32::try_from(v).map(Fitted::I32).map_err(|_| overflow())
            }
            (ColumnType::BigInt, _) => self.integer().map(Fitted::I64).ok_or_else(wrong),
            (ColumnType::Real, Self::Real(v)) => Ok(Fitted::F32(*v)),
            (ColumnType::Double, Self::Double(v)) => Ok(Fitted::F64(*v)),
            (ColumnType::Double, Self::Real(v)) => Ok(Fitted::F64(f64::from(*v))),
            (ColumnType::Decimal { precision, scale }, _) => {
                let (unscaled, from) = match self {
                    Self::Decimal { unscaled, scale } => (*unscaled, *scale),
                    _ => (i128::from(self.integer().ok_or_else(wrong)?), 0),
                };
                let v = rescale(unscaled, from, scale)
                    .filter(|v| v.unsigned_abs() < 10_u128.pow(u32::from(precision)))
                    .ok_or_else(overflow)?;
                fit_decimal(v, column.data_type).ok_or_else(overflow)
            }
            (ColumnType::Char(n), Self::Text(v)) => fit_text(v.trim_end_matches(' '), Some(n), column),
            (ColumnType::Varchar(n), Self::Text(v)) => fit_text(v, Some(n), column),
            (ColumnType::Text, Self::Text(v)) => fit_text(v, None, column),
            (ColumnType::Bytea, Self::Bytea(v)) => Ok(Fitted::Bytes(v)),
            (ColumnType::Date, Self::Date(v)) => Ok(Fitted::I32(*v)),
            (ColumnType::Timestamp, Self::Timestamp(v)) | (ColumnType::Timestamptz, Self::Timestamptz(v)) => {
                Ok(Fitted::I64(*v))
            }
            _ => Err(wrong()),
        }
    }

    /// Whether a column can hold the datum as it is: a row that is written with it is found by it. One that is too long, has
    /// other digits, or has blanks that would be cut, is in no row.
    #[must_use]
    pub fn is_held_by(&self, column: &Column) -> bool {
        match (self.fit(column), self, column.data_type) {
            (Err(_), ..) => false,
            (Ok(Fitted::Text(held)), Self::Text(given), ColumnType::Varchar(_)) => held.len() == given.len(),
            (Ok(fitted), Self::Decimal { .. }, ColumnType::Decimal { scale, .. }) => {
                let unscaled = match fitted {
                    Fitted::I32(v) => i128::from(v),
                    Fitted::I64(v) => i128::from(v),
                    Fitted::I128(v) => v,
                    _ => return false,
                };
                self.compare(&Self::Decimal { unscaled, scale }) == Some(Ordering::Equal)
            }
            _ => true,
        }
    }

    /// The datum of a column of type `data_type` whose integer form is `v`.
    pub(super) fn from_integer(v: i128, data_type: ColumnType) -> Option<Self> {
        Some(match data_type {
            ColumnType::SmallInt => Self::SmallInt(i16::try_from(v).ok()?),
            ColumnType::Int => Self::Int(i32::try_from(v).ok()?),
            ColumnType::BigInt => Self::BigInt(i64::try_from(v).ok()?),
            ColumnType::Date => Self::Date(i32::try_from(v).ok()?),
            ColumnType::Timestamp => Self::Timestamp(i64::try_from(v).ok()?),
            ColumnType::Timestamptz => Self::Timestamptz(i64::try_from(v).ok()?),
            ColumnType::Decimal { precision, scale } => {
                if v.unsigned_abs() >= 10_u128.pow(u32::from(precision)) {
                    return None;
                }
                Self::Decimal { unscaled: v, scale }
            }
            _ => return None,
        })
    }
}

fn fit_decimal(v: i128, data_type: ColumnType) -> Option<Fitted<'static>> {
    match data_type.physical() {
        Physical::I32 => i32::try_from(v).ok().map(Fitted::I32),
        Physical::I64 => i64::try_from(v).ok().map(Fitted::I64),
        _ => Some(Fitted::I128(v)),
    }
}

fn fit_text<'a>(text: &'a str, limit: Option<u32>, column: &Column) -> Result<Fitted<'a>, RowError> {
    let mut text = text;
    if let Some(limit) = limit
        && text.len() > limit as usize
        && let Some((cut, _)) = text.char_indices().nth(limit as usize)
    {
        if !text[cut..].bytes().all(|b| b == b' ') {
            return Err(RowError::TooLong { column: column.name.clone(), limit, found: text.chars().count() });
        }
        text = &text[..cut];
    }
    if text.as_bytes().contains(&0) {
        return Err(RowError::InvalidText { column: column.name.clone() });
    }
    Ok(Fitted::Text(text))
}

/// `unscaled / 10^from` as an integer over `10^to`, rounded half away from zero; `None` when it does not fit 128 bits.
fn rescale(unscaled: i128, from: u8, to: u8) -> Option<i128> {
    if unscaled == 0 {
        return Some(0);
    }
    if from <= to {
        return unscaled.checked_mul(10_i128.checked_pow(u32::from(to - from))?);
    }
    let Some(divisor) = 10_i128.checked_pow(u32::from(from - to)) else {
        return Some(0); // more than 38 digits behind the last kept one: less than half a unit
    };
    let (quotient, rest) = (unscaled / divisor, unscaled % divisor);
    let away = rest.unsigned_abs() >= divisor.unsigned_abs() - divisor.unsigned_abs() / 2;
    Some(if away { quotient + unscaled.signum() } else { quotient })
}

fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn compare_decimals(a: i128, a_scale: u8, b: i128, b_scale: u8) -> Ordering {
    let scale = a_scale.max(b_scale);
    match (rescale(a, a_scale, scale), rescale(b, b_scale, scale)) {
        (Some(a), Some(b)) => a.cmp(&b),
        // Only one of them can overflow, the one with the smaller scale: it is then the larger in magnitude.
        (None, _) => a.signum().cmp(&0),
        (_, None) => 0.cmp(&b.signum()),
    }
}
