//! Time zones: their names, and how far their local time is ahead of UTC.
//!
//! ```text
//! name:    Europe/Berlin          of the IANA database, in any case
//!          [abbreviation](+ | -)HH[:MM[:SS]]      POSIX: hours to the west, so that UTC+3 is behind UTC
//! setting: name | hours | INTERVAL 'hours'        hours to the east, as in SQL
//! ```
//! The database is that of `chrono-tz`, a table of each zone's changes up to the year 2099. It is also the one in the binary's
//! Arrow. PostgreSQL goes on by the rules behind the table, which depend on the kind of a year alone: its length and its first
//! weekday. So here a later year has the offsets of a year of its kind at the end of the table.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use super::calendar::{civil_from_days, days_from_civil};
use super::interval::parse_interval;
use crate::{SqlError, SqlState};

const DAY_SECONDS: i64 = 86_400;
const HOUR_SECONDS: i64 = 3_600;
const SECOND_US: i64 = 1_000_000;

/// 2100-01-01, where the tables end.
const TABLE_END: i64 = 4_102_444_800;
/// The last years of the tables, 28 of them: one of each kind, and an ordinary cycle of leap years.
const LAST_YEARS: (i64, i64) = (2072, 2099);
/// The hours of a POSIX zone end here, as in PostgreSQL.
const POSIX_HOURS_MAX: i64 = 167;

/// A time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Seconds ahead of UTC.
    Fixed(i64),
    Place(Tz),
}

/// The fixed abbreviations of PostgreSQL's set `Default`, by their seconds ahead of UTC.
const ABBREVIATIONS: &[(i64, &str)] = &[
    (-36_000, "hst taht"),
    (-34_200, "mart"),
    (-32_400, "akst gamt"),
    (-28_800, "akdt pst"),
    (-25_200, "mst pdt"),
    (-21_600, "cst galt mdt"),
    (-18_000, "act cdt cot est pet"),
    (-14_400, "amt ast bot edt"),
    (-12_600, "nft nst"),
    (-10_800, "adt bra brt clst gft pmst pyst uyt wgt"),
    (-9_000, "ndt"),
    (-7_200, "brst fnt pmdt uyst wgst"),
    (-3_600, "azot egt fnst"),
    (0, "azost egst gmt uct ut utc wet z zulu"),
    (3_600, "bst cet met mez wat wetdst"),
    (7_200, "bdst cest cetdst eet ist mest mesz metdst sast"),
    (10_800, "eat eest eetdst fet idt"),
    (12_600, "irt"),
    (14_400, "msd mut ret sct"),
    (16_200, "aft"),
    (18_000, "must mvt pkt tft tjt uzt"),
    (20_700, "npt"),
    (21_600, "almt bdt btt kgst pkst uzst xjt yekst"),
    (23_400, "mmt"),
    (25_200, "almst cxt ict wast"),
    (28_800, "awst bnt bort cct hkt myt pht wadt"),
    (31_500, "acwst"),
    (32_400, "awsst jayt jst kst pwt ulast wdt"),
    (34_200, "acst cast"),
    (36_000, "aest chut ddut kdt ligt mpt pgt trut yapt"),
    (37_800, "acdt acsst cadt lhst sadt"),
    (39_600, "aedt aesst pont vut"),
    (43_200, "fjt gilt mht nzst nzt tvt wakt wft"),
    (45_900, "chast"),
    (46_800, "fjst nzdt tot"),
    (49_500, "chadt"),
];

impl Zone {
    /// UTC, the zone of a new session.
    pub const UTC: Self = Self(Kind::Fixed(0));

    /// A zone that is always so many seconds ahead of UTC.
    pub(crate) const fn ahead(seconds: i64) -> Self {
        Self(Kind::Fixed(seconds))
    }

    /// The zone of a name; `None` if there is none. A POSIX zone must have no daylight-saving time.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::with_name(name).map(|(zone, _)| zone)
    }

    /// The zone of an abbreviation or a name, as AT TIME ZONE takes it.
    ///
    /// # Errors
    /// 22023.
    pub(crate) fn of_text(text: &str) -> Result<Self, SqlError> {
        let abbreviated = Self::abbreviated(&text.to_ascii_lowercase());
        abbreviated.or_else(|| Self::named(text)).ok_or_else(|| unknown_zone(text))
    }

    /// The zone of an abbreviation in lower case.
    pub(crate) fn abbreviated(word: &str) -> Option<Self> {
        let is_among = |words: &str| words.split(' ').any(|other| other == word);
        ABBREVIATIONS.iter().find(|(_, words)| is_among(words)).map(|(seconds, _)| Self::ahead(*seconds))
    }

    /// The zone of a value of the setting `TimeZone`, and the value as SHOW returns it.
    pub(crate) fn of_setting(value: &str) -> Option<(Self, String)> {
        let interval = value.get(..8).filter(|word| word.eq_ignore_ascii_case("interval"));
        if interval.is_some() {
            let text = value[8..].trim().strip_prefix('\'')?.strip_suffix('\'')?;
            return Self::of_interval_text(text).map(Self::with_offset_name);
        }
        if let Some(seconds) = hours(value) {
            return Some(Self::with_offset_name(seconds));
        }
        Self::with_name(value)
    }

    /// The seconds of an interval without months and days.
    fn of_interval_text(text: &str) -> Option<i64> {
        let interval = parse_interval(text).ok()?;
        let is_time = interval.months == 0 && interval.days == 0;
        let seconds = interval.nanoseconds / 1_000_000_000;
        (is_time && seconds.abs() <= POSIX_HOURS_MAX * HOUR_SECONDS).then_some(seconds)
    }

    /// A zone as PostgreSQL names an offset: `<+02>-02` is ahead of UTC.
    fn with_offset_name(seconds: i64) -> (Self, String) {
        let (hours, minutes, rest) = (seconds.abs() / 3_600, seconds.abs() / 60 % 60, seconds.abs() % 60);
        let offset = match (minutes, rest) {
            (0, 0) => format!("{hours:02}"),
            (minutes, 0) => format!("{hours:02}:{minutes:02}"),
            (minutes, rest) => format!("{hours:02}:{minutes:02}:{rest:02}"),
        };
        let name = if seconds < 0 { format!("<-{offset}>+{offset}") } else { format!("<+{offset}>-{offset}") };
        (Self::ahead(seconds), name)
    }

    fn with_name(name: &str) -> Option<(Self, String)> {
        let exact = name.parse::<Tz>().ok();
        let found = exact.or_else(|| TZ_VARIANTS.iter().copied().find(|tz| tz.name().eq_ignore_ascii_case(name)));
        if let Some(tz) = found {
            let zone = if is_constant(tz) { Self::ahead(at(tz, 0)) } else { Self(Kind::Place(tz)) };
            return Some((zone, tz.name().to_owned()));
        }
        posix(name).map(|seconds| (Self::ahead(seconds), name.to_ascii_uppercase()))
    }

    /// Whether its offset never changes.
    pub(crate) const fn is_fixed(self) -> bool {
        matches!(self.0, Kind::Fixed(_))
    }

    /// The local time of an instant, both in microseconds since 1970; infinity stays the same. `None` if 64 bits cannot hold
    /// it.
    pub(crate) fn to_local(self, instant: i64) -> Option<i64> {
        if matches!(instant, i64::MIN | i64::MAX) {
            return Some(instant);
        }
        instant.checked_add(self.seconds_at(instant) * SECOND_US)
    }

    /// The instant of a local time, both in microseconds since 1970; infinity stays the same. `None` if 64 bits cannot hold it.
    /// A time that the clocks skip is read by the offset before, one that they repeat by the offset after the change.
    pub(crate) fn to_instant(self, local: i64) -> Option<i64> {
        if matches!(local, i64::MIN | i64::MAX) {
            return Some(local);
        }
        let seconds = match self.0 {
            Kind::Fixed(seconds) => seconds,
            Kind::Place(tz) => of_local(tz, local.div_euclid(SECOND_US)),
        };
        local.checked_sub(seconds * SECOND_US)
    }

    /// The seconds by which it is ahead of UTC at an instant, in microseconds since 1970.
    pub(crate) fn seconds_at(self, instant: i64) -> i64 {
        match self.0 {
            Kind::Fixed(seconds) => seconds,
            Kind::Place(tz) => at(tz, instant.div_euclid(SECOND_US)),
        }
    }
}

/// 22023 for a zone that does not exist.
pub(super) fn unknown_zone(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("time zone \"{name}\" not recognized"))
}

/// Whether it is a zone of a fixed offset and no place.
fn is_constant(tz: Tz) -> bool {
    let name = tz.name();
    name.starts_with("Etc/")
        || name.starts_with("GMT")
        || matches!(name, "UTC" | "UCT" | "Universal" | "Greenwich" | "Zulu")
}

/// An offset in a table, at seconds since 1970 in UTC.
fn in_table(tz: Tz, seconds: i64) -> i64 {
    i64::from(tz.offset_from_utc_datetime(&naive(seconds)).fix().local_minus_utc())
}

fn naive(seconds: i64) -> NaiveDateTime {
    DateTime::<Utc>::from_timestamp(seconds, 0).unwrap_or(DateTime::<Utc>::MIN_UTC).naive_utc()
}

fn at(tz: Tz, seconds: i64) -> i64 {
    in_table(tz, within_table(tz, seconds))
}

/// The offset of a local time, in seconds.
fn of_local(tz: Tz, seconds: i64) -> i64 {
    let seconds = within_table(tz, seconds);
    match tz.offset_from_local_datetime(&naive(seconds)) {
        MappedLocalTime::Single(offset) | MappedLocalTime::Ambiguous(_, offset) => {
            i64::from(offset.fix().local_minus_utc())
        }
        MappedLocalTime::None => in_table(tz, seconds - DAY_SECONDS),
    }
}

/// The same moment of a year in the table that has the same offsets.
fn within_table(tz: Tz, seconds: i64) -> i64 {
    if seconds < TABLE_END {
        return seconds;
    }
    let months = [(2099, 1), (2099, 7)].map(|(year, month)| days_from_civil(year, month, 1).unwrap_or(0) * DAY_SECONDS);
    if in_table(tz, months[0]) == in_table(tz, months[1]) {
        // Its offset has ceased to change, though it may still have changed some years before.
        return TABLE_END - 1;
    }
    let first = |year: i64| days_from_civil(year, 1, 1).unwrap_or(0);
    let (year, ..) = civil_from_days(seconds.div_euclid(DAY_SECONDS));
    let kind = |year: i64| (first(year + 1) - first(year), first(year).rem_euclid(7));
    let alike = (LAST_YEARS.0..=LAST_YEARS.1).find(|other| kind(*other) == kind(year)).unwrap_or(LAST_YEARS.0);
    seconds - (first(year) - first(alike)) * DAY_SECONDS
}

/// A number of hours to the east, possibly with a fraction, as seconds.
fn hours(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    let hours: f64 = text.parse().ok().filter(|_| is_number)?;
    (hours.abs() <= POSIX_HOURS_MAX as f64).then_some((hours * 3_600.0) as i64)
}

/// A POSIX zone without daylight-saving time: an abbreviation, which may be absent or in angle brackets, and the distance to
/// the west. As seconds ahead of UTC.
fn posix(text: &str) -> Option<i64> {
    let offset = match text.strip_prefix('<') {
        Some(quoted) => quoted.split_once('>')?.1,
        None => &text[text.find(|c: char| c.is_ascii_digit() || matches!(c, ',' | '-' | '+'))?..],
    };
    let (sign, offset) = match offset.strip_prefix('-') {
        Some(east) => (1, east),
        None => (-1, offset.strip_prefix('+').unwrap_or(offset)),
    };
    let mut parts = offset.split(':');
    let mut part = |max: i64, is_required: bool| match parts.next() {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse::<i64>().ok().filter(|number| *number <= max)
        }
        None if !is_required => Some(0),
        _ => None,
    };
    let seconds = part(POSIX_HOURS_MAX, true)? * 3_600 + part(59, false)? * 60 + part(60, false)?;
    parts.next().is_none().then_some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use super::super::datetime::parse_timestamp;
    use super::*;

    fn local(text: &str) -> i64 {
        parse_timestamp(text).unwrap()
    }

    fn place(name: &str) -> Zone {
        Zone::named(name).unwrap()
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn local_times_are_instants() {
        for (zone, text, in_utc) in [
            ("Europe/Berlin", "2026-01-15 12:00", "2026-01-15 11:00"),
            ("Europe/Berlin", "2026-07-15 12:00", "2026-07-15 10:00"),
            // The gap of spring, and the hour that autumn repeats.
            ("Europe/Berlin", "2026-03-29 01:59:59", "2026-03-29 00:59:59"),
            ("Europe/Berlin", "2026-03-29 02:30", "2026-03-29 01:30"),
            ("Europe/Berlin", "2026-03-29 03:00", "2026-03-29 01:00"),
            ("Europe/Berlin", "2026-10-25 01:59:59", "2026-10-24 23:59:59"),
            ("Europe/Berlin", "2026-10-25 02:30", "2026-10-25 01:30"),
            ("Europe/Berlin", "2026-10-25 03:00", "2026-10-25 02:00"),
            ("Europe/Berlin", "1890-01-01 00:00", "1889-12-31 23:06:32"),
            ("Europe/Moscow", "2014-10-26 01:30", "2014-10-25 22:30"),
            ("Asia/Kolkata", "2026-01-01 00:00", "2025-12-31 18:30"),
            ("Asia/Kolkata", "1850-01-01 00:00", "1849-12-31 18:06:32"),
            ("America/St_Johns", "2026-01-01 00:00", "2026-01-01 03:30"),
            ("America/St_Johns", "1900-01-01 00:00", "1900-01-01 03:30:52"),
            // A day that was skipped, as a whole.
            ("Pacific/Apia", "2011-12-30 12:00", "2011-12-30 22:00"),
            ("Europe/Berlin", "2150-01-15 12:00", "2150-01-15 11:00"),
            ("Europe/Berlin", "2150-07-15 12:00", "2150-07-15 10:00"),
            ("Africa/Casablanca", "2150-07-15 12:00", "2150-07-15 11:00"),
            ("Europe/Berlin", "4000-01-01 00:00 BC", "4001-12-31 23:06:32 BC"),
        ] {
            assert_eq!(place(zone).to_instant(local(text)), Some(local(in_utc)), "{text} {zone}");
        }
    }

    /// Behind the tables the clocks go on to change, on the last Sunday of March at one o'clock in UTC.
    #[test]
    fn changes_go_on_behind_the_tables() {
        let berlin = place("Europe/Berlin");
        for seconds in [4_109_878_800_i64, 5_687_802_000, 13_576_813_200, 95_625_190_800] {
            let instant = seconds * SECOND_US;
            assert_eq!((berlin.seconds_at(instant - 1), berlin.seconds_at(instant)), (3_600, 7_200), "{seconds}");
        }
    }

    #[test]
    fn instants_there_and_back() {
        for name in ["America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "<-04:30>+4:30"] {
            let zone = place(name);
            for day in (-60_000..60_000).step_by(37) {
                let instant = day * DAY_SECONDS * SECOND_US + 43_200 * SECOND_US + 1;
                let local = zone.to_local(instant).unwrap();
                assert_eq!(zone.to_instant(local), Some(instant), "{name} {day}");
            }
        }
        assert_eq!(place("Europe/Berlin").to_local(i64::MAX), Some(i64::MAX));
        assert_eq!(place("Europe/Berlin").to_local(i64::MAX - 1), None);
        assert_eq!(place("Europe/Berlin").to_instant(i64::MIN), Some(i64::MIN));
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn names_are_those_of_postgresql() {
        for (value, seconds, shown) in [
            ("europe/berlin", 3_600, "Europe/Berlin"),
            ("UTC", 0, "UTC"),
            ("+02", 7_200, "<+02>-02"),
            ("-7", -25_200, "<-07>+07"),
            ("5.5", 19_800, "<+05:30>-05:30"),
            ("0", 0, "<+00>-00"),
            ("interval '-03:30'", -12_600, "<-03:30>+03:30"),
            ("utc+3", -10_800, "UTC+3"),
            ("<abc>-1:30:15", 5_415, "<ABC>-1:30:15"),
            ("etc/gmt-14", 50_400, "Etc/GMT-14"),
        ] {
            let (zone, name) = Zone::of_setting(value).unwrap();
            assert_eq!((zone.seconds_at(0), name.as_str()), (seconds, shown), "{value}");
        }
        for value in
            ["", "Europe/Nowhere", "PST", "168", "+02:30x", "UTC+168", "EST5EDT,M3.2.0,M11.1.0", "<x>", "nan", "x"]
        {
            assert_eq!(Zone::of_setting(value), None, "{value}");
        }
        assert_eq!(["Etc/UTC", "gmt", "Zulu"].map(Zone::named), [Some(Zone::UTC); 3]);
        assert_eq!(Zone::abbreviated("pst"), Some(Zone::ahead(-28_800)));
        assert_eq!(Zone::abbreviated("pacific"), None);
    }
}
