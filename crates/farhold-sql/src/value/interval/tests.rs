//! Texts of intervals, read and written, against what PostgreSQL answers.

use super::*;
use crate::value::written;

fn shown(text: &str) -> String {
    shown_of(text, IntervalFields::default())
}

fn shown_of(text: &str, of: IntervalFields) -> String {
    match parse_interval_of(text, of) {
        Ok(interval) => written(|out| put_interval(interval, out)),
        Err(error) => error.state.to_string(),
    }
}

/// The expected results are those of PostgreSQL 15.
#[test]
fn fields_cut_what_is_shorter() {
    use IntervalField::{Day, Hour, Minute, Month, Second, Year};
    for (text, first, last, expected) in [
        ("1.6", Hour, Hour, "01:00:00"),
        ("-1.6", Hour, Hour, "-01:00:00"),
        ("1.5", Day, Day, "1 day"),
        ("1.6", Minute, Minute, "00:01:00"),
        ("1.9", Month, Month, "1 mon"),
        ("1.9", Year, Year, "1 year"),
        ("1.7", Second, Second, "00:00:01.7"),
        ("1 day 2:03:04.56", Hour, Hour, "1 day 02:00:00"),
        ("1:30", Minute, Minute, "01:30:00"),
        ("1.5", Year, Month, "1 mon"),
        ("1-2", Year, Month, "1 year 2 mons"),
        ("1 2", Day, Hour, "1 day 02:00:00"),
        ("1 2", Hour, Hour, "1 day 02:00:00"),
        ("1 2", Day, Day, "22007"),
        ("1 2", Minute, Minute, "22007"),
        ("1 2:03", Day, Minute, "1 day 02:03:00"),
        ("1:02:03.5", Hour, Minute, "01:02:00"),
        ("1:02", Minute, Second, "00:01:02"),
        ("5", Day, Hour, "05:00:00"),
        ("1 year 2 days", Month, Month, "1 year"),
        ("2 hours 3 min", Day, Day, "00:00:00"),
    ] {
        let of = IntervalFields { fields: Some((first, last)), digits: None };
        assert_eq!(shown_of(text, of), expected, "{text} {first:?} {last:?}");
    }
    for (text, digits, expected) in
        [("1.236 seconds", 2, "00:00:01.24"), ("-1.235", 2, "-00:00:01.24"), ("1.5", 0, "00:00:02")]
    {
        assert_eq!(shown_of(text, IntervalFields { fields: None, digits: Some(digits) }), expected, "{text}");
    }
}

/// The expected results are those of PostgreSQL 15.
#[test]
fn texts_are_read() {
    for (text, expected) in [
        ("26:00:00", "26:00:00"),
        ("1 day 25:00:00", "1 day 25:00:00"),
        ("-1 day -02:03:04", "-1 days -02:03:04"),
        ("-1 days +02:03:04", "-1 days +02:03:04"),
        ("1 year 2 mons -3 days +04:05:06.7", "1 year 2 mons -3 days +04:05:06.7"),
        ("1 day 02:03:10.5", "1 day 02:03:10.5"),
        ("1.5 days", "1 day 12:00:00"),
        ("1.5 months", "1 mon 15 days"),
        ("1.5 years", "1 year 6 mons"),
        ("1.5 weeks", "10 days 12:00:00"),
        ("1.55 mons", "1 mon 16 days 12:00:00"),
        ("0.3 decades", "3 years"),
        ("-1.5 hours", "-01:30:00"),
        ("1.5 hours ago", "-01:30:00"),
        ("1 day ago", "-1 days"),
        ("@ 1 day, 2 hours", "1 day 02:00:00"),
        ("2-3", "2 years 3 mons"),
        ("-2-3", "-2 years -3 mons"),
        ("+2-3", "2 years 3 mons"),
        ("2-13", "22015"),
        ("4 05:06", "4 days 05:06:00"),
        ("5", "00:00:05"),
        ("1 day 5", "1 day 00:00:05"),
        ("5.5", "00:00:05.5"),
        (".5", "00:00:00.5"),
        ("1.", "00:00:01"),
        ("- 1 day", "-1 days"),
        ("1h30m", "01:30:00"),
        ("1h 1h", "22007"),
        ("1 day 2 days", "22007"),
        ("1 2", "22007"),
        ("1 2 hours", "1 day 02:00:00"),
        ("1 2 hours 3 min", "1 day 02:03:00"),
        ("day", "22007"),
        ("", "22007"),
        ("  ", "22007"),
        ("ago", "22007"),
        ("1 fortnight", "22007"),
        ("00:60:00", "22015"),
        ("00:59:60", "01:00:00"),
        ("00:00:61", "22015"),
        ("5:06.7", "00:05:06.7"),
        ("5:06.0", "00:05:06"),
        ("59:30.", "00:59:30"),
        ("-5:06.5", "-00:05:06.5"),
        ("70:30.5", "22015"),
        ("1:-30", "22007"),
        ("1:+30", "22007"),
        ("1:2:3:4", "22007"),
        ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
        ("P1W", "7 days"),
        ("P", "22007"),
        ("PT", "00:00:00"),
        ("P1H", "22007"),
        ("PT36H", "36:00:00"),
        ("P-1DT-2H", "-1 days -02:00:00"),
        ("p1d", "22007"),
        ("1 millennium 2 centuries 3 decades", "1230 years"),
        ("1 ms 2 us", "00:00:00.001002"),
        ("1.5 us", "00:00:00.000001"),
        ("2.5 us", "00:00:00.000002"),
        ("1500 ms", "00:00:01.5"),
        ("999999999999 days", "22015"),
        ("3000000000 mons", "22015"),
        ("infinity", "22007"),
        ("1 mon -1 days", "1 mon -1 days"),
        ("1e3 days", "22007"),
        ("0.0000005", "00:00:00"),
        ("0.0000015 s", "00:00:00.000001"),
        ("1 day +5:00", "1 day 05:00:00"),
        ("-5:00", "-05:00:00"),
        ("1.2.3 days", "22007"),
        ("--1 day", "22007"),
        ("1 quarter", "22007"),
        ("1 y 1 mon 1 w 1 d 1 hr 1 min 1 sec", "1 year 1 mon 8 days 01:01:01"),
        ("100:00", "100:00:00"),
        ("1 year 2-3", "3 years 3 mons"),
        ("1 ünit", "22007"),
        ("1 DAY", "1 day"),
        ("99999999999999999999 days", "22015"),
        ("1 day -00:00:01", "1 day -00:00:01"),
        ("24:00", "24:00:00"),
        ("-24:00:00.000001", "-24:00:00.000001"),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

/// Time is kept in nanoseconds here.
#[test]
fn time_ends_after_292_years() {
    assert_eq!(shown("2562047:00:00"), "2562047:00:00");
    assert_eq!(shown("2562048:00:00"), "22015");
    assert_eq!(shown("9223372036854775807 us"), "22015");
}
