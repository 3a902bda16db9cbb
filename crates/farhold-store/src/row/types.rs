//! Column types: their limits and their widths.

use std::fmt;

/// A column's SQL type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// `BOOLEAN`
    Boolean,
    /// `SMALLINT`, 16 bits
    SmallInt,
    /// `INTEGER`, 32 bits
    Int,
    /// `BIGINT`, 64 bits
    BigInt,
    /// `REAL`, 32-bit float
    Real,
    /// `DOUBLE PRECISION`, 64-bit float
    Double,
    /// `DECIMAL(precision, scale)`: `precision` decimal digits in all (1 to 38), `scale` of them behind the point
    Decimal {
        /// Digits in all, 1 to 38.
        precision: u8,
        /// Digits behind the point, at most `precision`.
        scale: u8,
    },
    /// `CHAR(n)`: at most `n` characters, trailing blanks without meaning
    Char(u32),
    /// `VARCHAR(n)`: at most `n` characters
    Varchar(u32),
    /// `TEXT`
    Text,
    /// `BYTEA`
    Bytea,
    /// `DATE`: days since 1970-01-01
    Date,
    /// `TIMESTAMP` without time zone: microseconds since 1970-01-01 00:00
    Timestamp,
    /// `TIMESTAMP WITH TIME ZONE`: microseconds since 1970-01-01 00:00 in UTC
    Timestamptz,
}

/// How a type's values are held, once its limits have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Physical {
    Bool,
    I16,
    I32,
    I64,
    I128,
    F32,
    F64,
    Text,
    Bytes,
}

impl ColumnType {
    /// The longest `CHAR` and `VARCHAR`, as in PostgreSQL.
    pub const CHARACTERS_MAX: u32 = 10_485_760;
    /// The most digits of a `DECIMAL`.
    pub const PRECISION_MAX: u8 = 38;

    /// Bytes in the value part of a row, or `None` when they vary.
    #[must_use]
    pub const fn value_bytes(self) -> Option<usize> {
        self.physical().bytes()
    }

    /// Bytes in a key (without the marker of a nullable secondary-key column), or `None` when they vary.
    #[must_use]
    pub const fn key_bytes(self) -> Option<usize> {
        self.key_physical().bytes()
    }

    /// The type is one of `CHAR`, `VARCHAR` and `TEXT`.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Char(_) | Self::Varchar(_) | Self::Text)
    }

    /// How the value part holds it.
    pub(super) const fn physical(self) -> Physical {
        match self {
            Self::Boolean => Physical::Bool,
            Self::SmallInt => Physical::I16,
            Self::Int | Self::Date | Self::Decimal { precision: 0..=9, .. } => Physical::I32,
            Self::BigInt | Self::Timestamp | Self::Timestamptz | Self::Decimal { precision: 10..=18, .. } => {
                Physical::I64
            }
            Self::Decimal { .. } => Physical::I128,
            Self::Real => Physical::F32,
            Self::Double => Physical::F64,
            Self::Char(_) | Self::Varchar(_) | Self::Text => Physical::Text,
            Self::Bytea => Physical::Bytes,
        }
    }

    /// How a key holds it: as the value does, but small decimals are widened, so that precision may grow within a key.
    pub(super) const fn key_physical(self) -> Physical {
        match self {
            Self::Decimal { precision: 0..=18, .. } => Physical::I64,
            other => other.physical(),
        }
    }
}

impl Physical {
    pub(super) const fn bytes(self) -> Option<usize> {
        match self {
            Self::Bool => Some(1),
            Self::I16 => Some(2),
            Self::I32 | Self::F32 => Some(4),
            Self::I64 | Self::F64 => Some(8),
            Self::I128 => Some(16),
            Self::Text | Self::Bytes => None,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("boolean"),
            Self::SmallInt => f.write_str("smallint"),
            Self::Int => f.write_str("integer"),
            Self::BigInt => f.write_str("bigint"),
            Self::Real => f.write_str("real"),
            Self::Double => f.write_str("double precision"),
            Self::Decimal { precision, scale } => write!(f, "numeric({precision},{scale})"),
            Self::Char(n) => write!(f, "character({n})"),
            Self::Varchar(n) => write!(f, "character varying({n})"),
            Self::Text => f.write_str("text"),
            Self::Bytea => f.write_str("bytea"),
            Self::Date => f.write_str("date"),
            Self::Timestamp => f.write_str("timestamp without time zone"),
            Self::Timestamptz => f.write_str("timestamp with time zone"),
        }
    }
}
