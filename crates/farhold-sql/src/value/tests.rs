//! Tests of the formats against each other, against written examples, and (binary) against the rules of
//! `postgres-types` through pgwire.

use arrow::datatypes::IntervalMonthDayNano;
use farhold_store::row::{ColumnType, Datum};

use super::datetime::parse_timestamptz;
use super::numeric::{self, Decimal};
use super::*;
use crate::SqlError;

/// In UTC.
fn parse_datum(text: &str, data_type: ColumnType) -> Result<Datum, SqlError> {
    super::parse_datum(text, data_type, Zone::UTC)
}

#[test]
fn floats_are_written_as_postgresql_writes_them() {
    let cases: &[(f64, &str)] = &[
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (-1234.5, "-1234.5"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1e14, "100000000000000"),
        (1e15, "1e+15"),
        (123_456_789_012_345.6, "123456789012345.6"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "Infinity"),
        (f64::NEG_INFINITY, "-Infinity"),
    ];
    for (value, expected) in cases {
        assert_eq!(format_datum(&Datum::Double(*value), Zone::UTC).as_deref(), Some(*expected));
    }
    assert_eq!(format_datum(&Datum::Real(0.1), Zone::UTC).as_deref(), Some("0.1"));
    assert_eq!(format_datum(&Datum::Real(1e6), Zone::UTC).as_deref(), Some("1e+06"));
    assert_eq!(format_datum(&Datum::Real(999_999.0), Zone::UTC).as_deref(), Some("999999"));
}

/// A client may declare a type that no column here has: its bytes are then read as text of that type, or refused.
#[test]
fn parameters_of_other_types_are_texts_or_refused() {
    let uuid = *b"Hello, World!!!!";
    let cases: &[(u32, &[u8], &str)] = &[
        (oid::UUID, &uuid, "48656c6c-6f2c-2057-6f72-6c6421212121"),
        (oid::JSONB, b"\x01{\"a\": 1}", "{\"a\": 1}"),
        (oid::JSON, b"{\"a\": 1}", "{\"a\": 1}"),
        (oid::UNKNOWN, b"as it is", "as it is"),
    ];
    for (oid, bytes, expected) in cases {
        assert_eq!(binary::text_of(*oid, bytes).as_deref(), Ok(*expected), "type {oid}");
    }
    let refused: &[(u32, &[u8], &str)] = &[
        (oid::TIME, b"12345678", "0A000"),
        (oid::INTERVAL, b"1234567812345678", "0A000"),
        (oid::UUID, b"short", "22P03"),
        (oid::JSONB, b"{}", "22P03"),
        (oid::XML, b"\xff", "22021"),
    ];
    for (oid, bytes, state) in refused {
        let error = binary::text_of(*oid, bytes).expect_err("refused");
        assert_eq!(error.state.code(), *state, "type {oid}: {error}");
    }
}

#[test]
fn decimals_are_written_plainly() {
    let cases = [
        (0, 0, "0"),
        (0, 2, "0.00"),
        (5, 2, "0.05"),
        (-5, 2, "-0.05"),
        (12345, 2, "123.45"),
        (-100, 0, "-100"),
        (i128::MAX, 0, "170141183460469231731687303715884105727"),
        (i128::MIN, 0, "-170141183460469231731687303715884105728"),
        (1, 38, "0.00000000000000000000000000000000000001"),
    ];
    for (unscaled, scale, expected) in cases {
        assert_eq!(written(|out| put_decimal(Decimal { unscaled, scale }, out)), expected);
    }
}

#[test]
fn decimals_survive_the_binary_form() {
    let mut magnitude = 1_i128;
    for digits in 0..38 {
        for unscaled in
            [0, magnitude, magnitude - 1, magnitude + 1, -magnitude, magnitude * 9, 12_345 * (magnitude / 100_000)]
        {
            for scale in 0..=38 {
                let decimal = Decimal { unscaled, scale };
                let mut bytes = Vec::new();
                numeric::put_binary(decimal, &mut bytes);
                assert_eq!(numeric::parse_binary(&bytes), Ok(decimal), "{decimal:?} {digits}");
            }
        }
        magnitude = magnitude.saturating_mul(10);
    }
}

#[test]
fn binary_decimals_by_example() {
    // The results of PostgreSQL 15's numeric_send.
    let cases: [(i128, u8, &[i16]); 6] = [
        (0, 0, &[0, 0, 0, 0]),
        (0, 2, &[0, 0, 0, 2]),
        (1, 0, &[1, 0, 0, 0, 1]),
        (-12_345_678, 3, &[3, 1, 0x4000, 3, 1, 2345, 6780]),
        (10_000, 0, &[1, 1, 0, 0, 1]),
        (1, 4, &[1, -1, 0, 4, 1]),
    ];
    for (unscaled, scale, words) in cases {
        let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut bytes = Vec::new();
        numeric::put_binary(Decimal { unscaled, scale }, &mut bytes);
        assert_eq!(bytes, expected, "{unscaled} / 10^{scale}");
    }
}

#[test]
fn malformed_binary_decimals_are_refused() {
    let words = |words: &[i16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    for bytes in [
        vec![],
        vec![0; 7],
        words(&[1, 0, 0, 0]),
        words(&[1, 0, 0, 0, 10_000]),
        words(&[1, 0, 0x1234, 0, 1]),
        words(&[0, 0, 0xc000_u16.cast_signed(), 0]),
        words(&[1, 20_000, 0, 0, 1]),
        words(&[1, -20_000, 0, 0, 1]),
    ] {
        assert!(numeric::parse_binary(&bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn dates_and_timestamps() {
    let date = |days| written(|out| put_date(days, out));
    assert_eq!(date(0), "1970-01-01");
    assert_eq!(date(-719_528), "0001-01-01 BC");
    assert_eq!(date(2_932_897), "10000-01-01");
    assert_eq!(date(i32::MAX), "infinity");
    let timestamp = |micros| written(|out| put_timestamp(micros, out));
    assert_eq!(timestamp(-1), "1969-12-31 23:59:59.999999");
    assert_eq!(timestamp(1_500_000), "1970-01-01 00:00:01.5");
    assert_eq!(timestamp(i64::MIN), "-infinity");
}

/// The results are those of PostgreSQL 15. Only a timestamp with time zone counts the zone, but all types check it.
#[test]
fn zones_are_offsets_with_and_without_colons() {
    let at = |text: &str| parse_timestamptz(text, Zone::UTC).map_err(|e| e.state.code());
    for (zone, minutes) in [
        ("", 600),
        ("Z", 600),
        (" utc", 600),
        ("+05", 300),
        ("+05:30", 270),
        ("+0530", 270),
        ("+530", 270),
        ("+000530", 270),
        ("-0530", 930),
        (" -05:30:00", 930),
        ("-15:59", 1559),
    ] {
        let text = format!("1970-01-01 10:00:00{zone}");
        assert_eq!(at(&text), Ok(minutes * 60_000_000), "{zone}");
        assert_eq!(parse_datum(&text, ColumnType::Timestamp), Ok(Datum::Timestamp(600 * 60_000_000)), "{zone}");
    }
    for (text, minutes) in [
        ("1970-01-02 +05", 1140),
        ("1970-01-02 -05:30", 1770),
        ("1970-01-02", 1440),
        // Punctuation around the text.
        (", 1970-01-02 10:00-05)", 2340),
    ] {
        assert_eq!(at(text), Ok(minutes * 60_000_000), "{text}");
    }
    for zone in ["+16", "-16:00", "+1560", "+05:60", "+05:30:60", "-053000"] {
        let text = format!(" 1970-01-01 10:00:00{zone}");
        let message = format!("time zone displacement out of range: \"{text}\"");
        assert_eq!(
            parse_timestamptz(&text, Zone::UTC).map_err(|e| (e.state.code(), e.message)),
            Err(("22009", message))
        );
        for ignored in [ColumnType::Timestamp, ColumnType::Date] {
            assert_eq!(parse_datum(&text, ignored).map_err(|e| e.state.code()), Err("22009"), "{zone}");
        }
    }
    let era = at("0001-01-01 00:00:00+01:00 BC").map(Datum::Timestamp);
    assert_eq!(era, Ok(parse_datum("0002-12-31 23:00:00 BC", ColumnType::Timestamp).unwrap()));
    // The range is that of the time in UTC.
    let first = parse_datum("4714-11-24 04:00 BC", ColumnType::Timestamp).unwrap();
    assert_eq!(at("4714-11-23 23:00-05 BC").map(Datum::Timestamp), Ok(first));
    assert_eq!(at("4714-11-24 00:00+05 BC"), Err("22008"));
}

/// The results are those of PostgreSQL 15.
#[test]
fn instants_are_read_and_written_in_the_session_s_zone() {
    for (zone, text, shown) in [
        ("UTC", "2026-11-30 12:00", "2026-11-30 12:00:00+00"),
        ("Europe/Berlin", "2026-11-30 12:00", "2026-11-30 12:00:00+01"),
        ("Europe/Berlin", "2026-07-01 12:00:00.5Z", "2026-07-01 14:00:00.5+02"),
        ("Europe/Berlin", "2026-03-29 02:30", "2026-03-29 03:30:00+02"),
        ("Europe/Berlin", "2026-10-25 02:30", "2026-10-25 02:30:00+01"),
        ("Europe/Berlin", "2026-10-25 02:30 CEST", "2026-10-25 02:30:00+02"),
        ("Europe/Berlin", "1890-01-01", "1890-01-01 00:00:00+00:53:28"),
        ("Asia/Kolkata", "2026-01-01 10:00 America/New_York", "2026-01-01 20:30:00+05:30"),
        ("America/St_Johns", "2026-01-01 00:00 utc", "2025-12-31 20:30:00-03:30"),
        ("America/St_Johns", "1900-01-01", "1900-01-01 00:00:00-03:30:52"),
        ("America/St_Johns", "2026-01-01 Asia/Tokyo", "2025-12-31 11:30:00-03:30"),
        ("<+02>-02", "2026-01-01 10:00 UTC+3", "2026-01-01 15:00:00+02"),
        ("Europe/Berlin", "0001-01-01 00:00 BC", "0001-01-01 00:00:00+00:53:28 BC"),
        ("Europe/Berlin", "epoch", "1970-01-01 01:00:00+01"),
        ("Europe/Berlin", "-infinity", "-infinity"),
    ] {
        let zone = Zone::named(zone).unwrap();
        let datum = super::parse_datum(text, ColumnType::Timestamptz, zone).map_err(|e| e.message);
        assert_eq!(datum.map(|datum| format_datum(&datum, zone)), Ok(Some(shown.to_owned())), "{text}");
    }
    // The local time of the last instants has no timestamp.
    let last = Datum::Timestamptz(i64::MAX - 1);
    let shown = format_datum(&last, Zone::named("Asia/Tokyo").unwrap()).unwrap();
    assert_eq!(shown, "294247-01-10 13:00:54.775806+09");
    for (text, state) in [
        ("2026-01-01 10:00 Europe/Nowhere", "22023"),
        ("2026-01-01 10:00 nowhere", "22007"),
        ("2026-01-01 10:00 Europe/Berlin x", "22007"),
        ("2026-01-01T", "22007"),
        ("4714-11-24 00:00+05 BC", "22008"),
    ] {
        let read = parse_datum(text, ColumnType::Timestamptz).map_err(|e| e.state.code());
        assert_eq!(read, Err(state), "{text}");
    }
    // Other types check the zone too.
    assert_eq!(parse_datum("2026-01-01 10:00 a/b", ColumnType::Date).map_err(|e| e.state.code()), Err("22023"));
}

#[test]
fn intervals() {
    let interval = |months, days, micros: i64| {
        written(|out| put_interval(IntervalMonthDayNano::new(months, days, micros * 1000), out))
    };
    assert_eq!(interval(0, 0, 0), "00:00:00");
    assert_eq!(interval(14, 3, 14_706_700_000), "1 year 2 mons 3 days 04:05:06.7");
    assert_eq!(interval(-1, 1, -1_000_000), "-1 mons +1 day -00:00:01");
    assert_eq!(interval(0, 0, 360_000_000_000), "100:00:00");
}

#[test]
fn every_datum_survives_the_binary_form() {
    let cases = [
        (ColumnType::Boolean, Datum::Boolean(true)),
        (ColumnType::SmallInt, Datum::SmallInt(-2)),
        (ColumnType::Int, Datum::Int(i32::MIN)),
        (ColumnType::BigInt, Datum::BigInt(i64::MAX)),
        (ColumnType::Real, Datum::Real(0.1)),
        (ColumnType::Double, Datum::Double(-0.5)),
        (ColumnType::Decimal { precision: 10, scale: 2 }, Datum::Decimal { unscaled: -12_345, scale: 2 }),
        (ColumnType::Text, Datum::Text("zwölf".to_owned())),
        (ColumnType::Bytea, Datum::Bytea(vec![0, 1, 255])),
        (ColumnType::Date, Datum::Date(-1)),
        (ColumnType::Date, Datum::Date(i32::MAX)),
        (ColumnType::Timestamp, Datum::Timestamp(1)),
        (ColumnType::Timestamp, Datum::Timestamp(i64::MIN)),
        (ColumnType::Timestamptz, Datum::Timestamptz(-1)),
        (ColumnType::Timestamptz, Datum::Timestamptz(i64::MAX)),
    ];
    for (data_type, datum) in cases {
        let mut bytes = Vec::new();
        binary::put(&datum, data_type, &mut bytes);
        assert_eq!(binary::parse(data_type, &bytes).unwrap(), datum);
        bytes.push(0);
        if !matches!(data_type, ColumnType::Text | ColumnType::Bytea) {
            assert!(binary::parse(data_type, &bytes).is_err(), "{data_type:?} is one byte too long");
        }
    }
}

/// Values that have no text format.
#[test]
fn binary_dates_and_timestamps_have_a_range() {
    let date = |wire: i32| binary::parse(ColumnType::Date, &wire.to_be_bytes()).map_err(|e| e.state.code());
    let timestamp = |wire: i64| binary::parse(ColumnType::Timestamp, &wire.to_be_bytes()).map_err(|e| e.state.code());
    // From 4714-11-24 BC to 5874897-12-31, counted from 2000.
    let (first, last) = (-2_451_545, 2_145_031_948);
    assert_eq!(date(first), Ok(parse_datum("4714-11-24 BC", ColumnType::Date).unwrap()));
    assert_eq!(date(last), Ok(parse_datum("5874897-12-31", ColumnType::Date).unwrap()));
    for beyond in [first - 1, last + 1, i32::MIN + 1, i32::MAX - 1] {
        assert_eq!(date(beyond), Err("22008"), "{beyond}");
    }
    let first_us = i64::from(first) * DAY_MICROSECONDS;
    assert_eq!(timestamp(first_us), Ok(parse_datum("4714-11-24 00:00 BC", ColumnType::Timestamp).unwrap()));
    // The last one would become infinity.
    for beyond in [first_us - 1, i64::MIN + 1, i64::MAX - 1, i64::MAX - MICROSECONDS_TO_2000] {
        assert_eq!(timestamp(beyond), Err("22008"), "{beyond}");
    }
    assert_eq!((date(i32::MAX), timestamp(i64::MIN)), (Ok(Datum::Date(i32::MAX)), Ok(Datum::Timestamp(i64::MIN))));
}

#[test]
fn a_char_is_padded() {
    let padded = |width| written(|out| put(&Datum::Text("ä".to_owned()), ColumnType::Char(width), Zone::UTC, out));
    assert_eq!((padded(3).as_str(), padded(1).as_str(), padded(ANY_LENGTH).as_str()), ("ä  ", "ä", "ä"));
}

#[test]
fn text_must_be_utf8_without_zero() {
    for bytes in [&[0xff][..], b"a\0b"] {
        assert_eq!(binary::utf8(bytes).unwrap_err().state.code(), "22021");
    }
}
