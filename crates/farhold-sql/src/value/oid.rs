//! PostgreSQL's OIDs of types.

use farhold_store::row::ColumnType;

use super::{ANY_DIGITS, ANY_LENGTH};

/// `boolean`
pub const BOOL: u32 = 16;
/// `bytea`
pub const BYTEA: u32 = 17;
/// `"char"`, one byte
pub const CHAR: u32 = 18;
/// `name`
pub const NAME: u32 = 19;
/// `bigint`
pub const INT8: u32 = 20;
/// `smallint`
pub const INT2: u32 = 21;
/// `integer`
pub const INT4: u32 = 23;
/// `text`
pub const TEXT: u32 = 25;
/// `oid`
pub const OID: u32 = 26;
/// `real`
pub const FLOAT4: u32 = 700;
/// `double precision`
pub const FLOAT8: u32 = 701;
/// `character(n)`
pub const BPCHAR: u32 = 1042;
/// `character varying(n)`
pub const VARCHAR: u32 = 1043;
/// `date`
pub const DATE: u32 = 1082;
/// `timestamp without time zone`
pub const TIMESTAMP: u32 = 1114;
/// `time without time zone`
pub const TIME: u32 = 1083;
/// `interval`
pub const INTERVAL: u32 = 1186;
/// `timestamp with time zone`
pub const TIMESTAMPTZ: u32 = 1184;
/// `numeric`
pub const NUMERIC: u32 = 1700;
/// `json`; no column has it
pub const JSON: u32 = 114;
/// `xml`; no column has it
pub const XML: u32 = 142;
/// The type of an untyped string literal.
pub const UNKNOWN: u32 = 705;
/// `uuid`; no column has it
pub const UUID: u32 = 2950;
/// `jsonb`; no column has it
pub const JSONB: u32 = 3802;
/// `regclass`, an OID that is shown as a table's name
pub const REGCLASS: u32 = 2205;

/// The OID of a column's type.
pub fn of(data_type: ColumnType) -> u32 {
    match data_type {
        ColumnType::Boolean => BOOL,
        ColumnType::SmallInt => INT2,
        ColumnType::Int => INT4,
        ColumnType::BigInt => INT8,
        ColumnType::Real => FLOAT4,
        ColumnType::Double => FLOAT8,
        ColumnType::Decimal { .. } => NUMERIC,
        ColumnType::Char(_) => BPCHAR,
        ColumnType::Varchar(_) => VARCHAR,
        ColumnType::Text => TEXT,
        ColumnType::Bytea => BYTEA,
        ColumnType::Date => DATE,
        ColumnType::Timestamp => TIMESTAMP,
        ColumnType::Timestamptz => TIMESTAMPTZ,
    }
}

/// The size of the type's values in bytes, -1 if it varies (`typlen` of `RowDescription`).
pub fn size_of(oid: u32) -> i16 {
    match oid {
        BOOL | CHAR => 1,
        INT2 => 2,
        INT4 | FLOAT4 | DATE | OID | REGCLASS => 4,
        INT8 | FLOAT8 | TIME | TIMESTAMP | TIMESTAMPTZ => 8,
        INTERVAL => 16,
        NAME => 64,
        _ => -1,
    }
}

/// `atttypmod` of `RowDescription`: the length of a string, or the precision and scale of a decimal, each plus 4 for
/// PostgreSQL's header.
pub fn modifier_of(data_type: ColumnType) -> i32 {
    match data_type {
        ColumnType::Char(ANY_LENGTH) | ColumnType::Varchar(ANY_LENGTH) => -1,
        ColumnType::Char(length) | ColumnType::Varchar(length) => i32::try_from(length).map_or(-1, |length| length + 4),
        ColumnType::Decimal { precision, scale } => (i32::from(precision) << 16 | i32::from(scale)) + 4,
        _ => -1,
    }
}

/// The array type of an element type, if PostgreSQL has one and its binary format is supported here.
pub fn array_of(element: u32) -> Option<u32> {
    Some(match element {
        BOOL => 1000,
        BYTEA => 1001,
        INT2 => 1005,
        INT4 => 1007,
        TEXT => 1009,
        INT8 => 1016,
        FLOAT4 => 1021,
        FLOAT8 => 1022,
        TIMESTAMP => 1115,
        DATE => 1182,
        TIME => 1183,
        TIMESTAMPTZ => 1185,
        INTERVAL => 1187,
        NUMERIC => 1231,
        _ => return None,
    })
}

/// The column type of a parameter that a client declares with this OID; `None` leaves the choice to the statement.
pub fn parameter_type(oid: u32) -> Option<ColumnType> {
    Some(match oid {
        BOOL => ColumnType::Boolean,
        INT2 => ColumnType::SmallInt,
        INT4 => ColumnType::Int,
        INT8 | OID | REGCLASS => ColumnType::BigInt,
        FLOAT4 => ColumnType::Real,
        FLOAT8 => ColumnType::Double,
        // A parameter has no scale of its own; each value has one.
        NUMERIC => ColumnType::Decimal { precision: ANY_DIGITS.0, scale: ANY_DIGITS.1 },
        TEXT | NAME | CHAR => ColumnType::Text,
        // The type decides whether trailing blanks count.
        VARCHAR => ColumnType::Varchar(ANY_LENGTH),
        BPCHAR => ColumnType::Char(ANY_LENGTH),
        BYTEA => ColumnType::Bytea,
        DATE => ColumnType::Date,
        TIMESTAMP => ColumnType::Timestamp,
        TIMESTAMPTZ => ColumnType::Timestamptz,
        _ => return None,
    })
}
