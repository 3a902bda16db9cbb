//! SET, SHOW and RESET: the settings of a session.

use std::collections::BTreeMap;

use farhold_scan::model::PathKind;

use crate::value::Zone;
use crate::{SqlError, SqlState};

/// The kind of values that SET accepts for a setting of PostgreSQL's clients.
#[derive(Clone, Copy)]
enum Kind {
    /// Any text; it is kept and shown, but has no effect here.
    Text,
    /// Only these words.
    OneOf(&'static [&'static str]),
    /// Milliseconds, or a number with a time unit.
    Milliseconds,
    /// A number of rows.
    Count,
    /// A time zone.
    Zone,
    /// Can be shown, but not set.
    ReadOnly,
}

struct Setting {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    /// Whether changes are reported to the client (`ParameterStatus`).
    reported: bool,
}

const fn setting(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, reported: false }
}

const fn reported(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, reported: true }
}

const BOOLEANS: &[&str] = &["on", "off"];
const ACCESS_PATHS: &[&str] = &["auto", "rows", "direct", "offload", "pushdown", "relaxed"];
const ISOLATION: &[&str] = &["serializable", "repeatable read", "read committed", "read uncommitted"];

/// In alphabetical order.
const SETTINGS: &[Setting] = &[
    reported("application_name", "", Kind::Text),
    setting("bytea_output", "hex", Kind::OneOf(&["hex"])),
    reported("client_encoding", "UTF8", Kind::OneOf(&["utf8", "unicode", "sqlascii"])),
    setting("client_min_messages", "notice", Kind::Text),
    reported("datestyle", "ISO, MDY", Kind::Text),
    setting("default_transaction_isolation", "serializable", Kind::OneOf(ISOLATION)),
    setting("default_transaction_read_only", "off", Kind::OneOf(&["off"])),
    setting("extra_float_digits", "1", Kind::Text),
    // How scans read columns of other nodes; 'auto': each takes the path that is predicted to be the fastest.
    setting("farhold.access_path", "auto", Kind::OneOf(ACCESS_PATHS)),
    // Rows after which COPY … FROM STDIN outside of a transaction block commits; 0 means all rows or none.
    setting("farhold.copy_chunk_rows", "0", Kind::Count),
    setting("idle_in_transaction_session_timeout", "0", Kind::Milliseconds),
    setting("idle_session_timeout", "0", Kind::Milliseconds),
    reported("in_hot_standby", "off", Kind::ReadOnly),
    reported("integer_datetimes", "on", Kind::ReadOnly),
    reported("intervalstyle", "postgres", Kind::OneOf(&["postgres"])),
    reported("is_superuser", "on", Kind::ReadOnly),
    setting("jit", "off", Kind::OneOf(BOOLEANS)),
    setting("lock_timeout", "0", Kind::Milliseconds),
    setting("max_identifier_length", "255", Kind::ReadOnly),
    setting("role", "none", Kind::Text),
    setting("row_security", "on", Kind::OneOf(BOOLEANS)),
    setting("search_path", "\"$user\", public", Kind::Text),
    reported("server_encoding", "UTF8", Kind::ReadOnly),
    reported("server_version", SERVER_VERSION, Kind::ReadOnly),
    setting("server_version_num", SERVER_VERSION_NUMBER, Kind::ReadOnly),
    reported("session_authorization", "", Kind::ReadOnly),
    reported("standard_conforming_strings", "on", Kind::OneOf(&["on"])),
    setting("statement_timeout", "0", Kind::Milliseconds),
    setting("synchronous_commit", "on", Kind::Text),
    reported("timezone", "UTC", Kind::Zone),
    setting("transaction_isolation", "serializable", Kind::OneOf(ISOLATION)),
    // Set by BEGIN READ ONLY and SET TRANSACTION READ ONLY.
    setting("transaction_read_only", "off", Kind::OneOf(&["off"])),
    setting("work_mem", "0", Kind::Text),
];

/// The version of PostgreSQL whose behaviour is offered to clients.
pub(crate) const SERVER_VERSION: &str = concat!("15.0 (Farhold ", env!("CARGO_PKG_VERSION"), ")");
const SERVER_VERSION_NUMBER: &str = "150000";

/// The settings of one session.
///
/// ```text
///   SET         values, kept      COMMIT        values = kept
///   SET LOCAL   values            ROLLBACK      values = before
///                                 ROLLBACK TO   values, kept = those of the savepoint
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    user: String,
    values: Values,
    /// The client's start-up values, to which RESET returns.
    at_start: Values,
    /// Reported settings that have changed since they were last reported.
    changed: Vec<&'static str>,
    /// Present in a transaction that has changed a setting.
    layers: Option<Box<Layers>>,
    /// The number of changes.
    version: u64,
}

/// The values that differ from the built-in defaults.
#[derive(Clone, Debug, Default)]
struct Values {
    known: BTreeMap<&'static str, String>,
    /// That of `timezone` among the known ones, if it has a value there: each statement asks for it.
    zone: Option<Zone>,
    /// Unknown names with a dot, kept as set.
    custom: BTreeMap<String, String>,
}

/// The values that the end of a transaction, or a rollback to a savepoint, restores.
#[derive(Clone, Debug)]
struct Layers {
    /// The values before the transaction.
    before: Values,
    /// The values after a commit: without the effects of SET LOCAL.
    kept: Values,
    /// The values and `kept` of each savepoint.
    savepoints: Vec<(Values, Values)>,
}

fn find(name: &str) -> Option<&'static Setting> {
    let name = match name.to_ascii_lowercase() {
        alias if alias == "time zone" => "timezone".to_owned(),
        other => other,
    };
    SETTINGS.iter().find(|s| s.name == name)
}

fn unknown(name: &str) -> SqlError {
    SqlError::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

impl Settings {
    pub(crate) fn new(user: &str) -> Self {
        Self { user: user.to_owned(), ..Self::default() }
    }

    /// The session's user.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// A counter that grows with each change of a setting.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The value, in the format of SHOW.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let Some(setting) = find(name) else { return self.values.custom.get(&name.to_ascii_lowercase()).cloned() };
        if setting.name == "session_authorization" {
            return Some(self.user.clone());
        }
        let value = self.values.known.get(setting.name).map_or(setting.default, String::as_str);
        Some(match setting.kind {
            Kind::Milliseconds => format_milliseconds(value),
            _ => value.to_owned(),
        })
    }

    /// The time zone.
    pub(crate) fn zone(&self) -> Zone {
        self.values.zone.unwrap_or(Zone::UTC)
    }

    /// All settings with their values, for SHOW ALL.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        SETTINGS.iter().map(|s| (s.name.to_owned(), self.get(s.name).unwrap_or_default())).collect()
    }

    /// The access path that scans of other nodes' columns must take.
    pub(crate) fn access_path(&self) -> Option<PathKind> {
        self.values.known.get("farhold.access_path").and_then(|name| PathKind::named(name))
    }

    /// Rows after which a COPY in its own transaction commits; 0 means all rows or none.
    pub(crate) fn copy_chunk_rows(&self) -> u64 {
        self.values.known.get("farhold.copy_chunk_rows").and_then(|rows| rows.parse().ok()).unwrap_or(0)
    }

    /// Marks the end of the client's start-up parameters.
    pub(crate) fn started(&mut self) {
        self.at_start = self.values.clone();
    }

    /// SET; with `None` RESET. A value is refused if it would change the meaning of statements and is not supported.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), SqlError> {
        self.set_local(name, value)?;
        if let Some(layers) = &mut self.layers {
            layers.kept.copy(name, &self.values);
        }
        Ok(())
    }

    /// SET LOCAL: until the end of the transaction.
    pub(crate) fn set_local(&mut self, name: &str, value: Option<&str>) -> Result<(), SqlError> {
        let Some(setting) = find(name) else {
            // The settings of joins (`farhold_join.`) are for programs; set here, they would have no effect.
            let lower = name.to_ascii_lowercase();
            if !name.contains('.') || lower.starts_with("farhold.") || lower.starts_with("farhold_join.") {
                return Err(unknown(name));
            }
            match value {
                Some(value) => self.values.custom.insert(lower, value.to_owned()),
                None => match self.at_start.custom.get(&lower) {
                    Some(value) => self.values.custom.insert(lower, value.clone()),
                    None => self.values.custom.remove(&lower),
                },
            };
            return Ok(());
        };
        let bad = |value: &str| {
            SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"{}\": \"{value}\"", setting.name),
            )
        };
        let stored = match (setting.kind, value) {
            (Kind::ReadOnly, _) => {
                let message = format!("parameter \"{}\" cannot be changed", setting.name);
                return Err(SqlError::new(SqlState::CANNOT_CHANGE_PARAMETER, message));
            }
            (_, None) => self.at_start.known.get(setting.name).map_or(setting.default, String::as_str).to_owned(),
            (Kind::Text, Some(value)) => {
                if setting.name == "datestyle" && !value.to_ascii_lowercase().contains("iso") {
                    return Err(SqlError::unsupported(format!("datestyle \"{value}\"")).with_hint("Use ISO."));
                }
                value.to_owned()
            }
            (Kind::OneOf(words), Some(value)) => {
                // Clients write the name of the encoding in different ways: UTF-8, 'utf8', SQL_ASCII.
                let name: String = value.chars().filter(char::is_ascii_alphanumeric).collect();
                let value = if setting.name == "client_encoding" { name.as_str() } else { value };
                let lower = match value.to_ascii_lowercase().as_str() {
                    "true" | "yes" | "1" if words.contains(&"on") => "on".to_owned(),
                    "false" | "no" | "0" if words.contains(&"off") => "off".to_owned(),
                    other => other.to_owned(),
                };
                if !words.contains(&lower.as_str()) {
                    return Err(bad(value).with_hint(format!("Available values: {}.", words.join(", "))));
                }
                match setting.name {
                    "client_encoding" => "UTF8".to_owned(),
                    // Every transaction is serializable, whatever level is requested.
                    "transaction_isolation" | "default_transaction_isolation" => "serializable".to_owned(),
                    _ => lower,
                }
            }
            (Kind::Zone, Some(value)) => Zone::of_setting(value).ok_or_else(|| bad(value))?.1,
            (Kind::Milliseconds, Some(value)) => parse_milliseconds(value).ok_or_else(|| bad(value))?.to_string(),
            (Kind::Count, Some(value)) => value.trim().parse::<u64>().map_err(|_| bad(value))?.to_string(),
        };
        self.version += 1;
        let old = self.get(setting.name).unwrap_or_default();
        if let Kind::Zone = setting.kind {
            self.values.zone = Zone::of_setting(&stored).map(|(zone, _)| zone);
        }
        if stored == setting.default {
            self.values.known.remove(setting.name);
        } else {
            self.values.known.insert(setting.name, stored);
        }
        if setting.reported && self.get(setting.name).unwrap_or_default() != old {
            self.changed.push(setting.name);
        }
        Ok(())
    }

    /// Called before a transaction with this number of savepoints changes a setting.
    pub(crate) fn begin_transaction(&mut self, savepoints: usize) {
        let values = &self.values;
        self.layers.get_or_insert_with(|| {
            let savepoints = vec![(values.clone(), values.clone()); savepoints];
            Box::new(Layers { before: values.clone(), kept: values.clone(), savepoints })
        });
    }

    /// The transaction has committed.
    pub(crate) fn commit(&mut self) {
        if let Some(layers) = self.layers.take() {
            self.become_these(layers.kept);
        }
    }

    /// The transaction was rolled back.
    pub(crate) fn rollback(&mut self) {
        if let Some(layers) = self.layers.take() {
            self.become_these(layers.before);
        }
    }

    /// SAVEPOINT.
    pub(crate) fn savepoint(&mut self) {
        if let Some(layers) = &mut self.layers {
            layers.savepoints.push((self.values.clone(), layers.kept.clone()));
        }
    }

    /// RELEASE: `left` savepoints remain.
    pub(crate) fn release(&mut self, left: usize) {
        if let Some(layers) = &mut self.layers {
            layers.savepoints.truncate(left);
        }
    }

    /// ROLLBACK TO the savepoint with this index.
    pub(crate) fn rollback_to(&mut self, savepoint: usize) {
        let Some(layers) = &mut self.layers else { return };
        layers.savepoints.truncate(savepoint + 1);
        if let Some((values, kept)) = layers.savepoints.last().cloned() {
            layers.kept = kept;
            self.become_these(values);
        }
    }

    fn become_these(&mut self, values: Values) {
        self.version += 1;
        let old = std::mem::replace(&mut self.values, values);
        for setting in SETTINGS.iter().filter(|setting| setting.reported) {
            if old.known.get(setting.name) != self.values.known.get(setting.name) {
                self.changed.push(setting.name);
            }
        }
    }

    /// RESET ALL.
    pub(crate) fn reset_all(&mut self) {
        for setting in SETTINGS {
            if !matches!(setting.kind, Kind::ReadOnly) {
                let _ = self.set(setting.name, None);
            }
        }
        self.values.custom.clone_from(&self.at_start.custom);
        if let Some(layers) = &mut self.layers {
            layers.kept.custom.clone_from(&self.at_start.custom);
        }
    }

    /// The reported settings that have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<(String, String)> {
        let mut names = std::mem::take(&mut self.changed);
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|name| (reported_name(name), self.get(name).unwrap_or_default())).collect()
    }
}

impl Values {
    /// Copies one setting from `other`.
    fn copy(&mut self, name: &str, other: &Self) {
        if let Some(setting) = find(name) {
            if let Kind::Zone = setting.kind {
                self.zone = other.zone;
            }
            match other.known.get(setting.name) {
                Some(value) => self.known.insert(setting.name, value.clone()),
                None => self.known.remove(setting.name),
            };
            return;
        }
        let name = name.to_ascii_lowercase();
        match other.custom.get(&name) {
            Some(value) => self.custom.insert(name, value.clone()),
            None => self.custom.remove(&name),
        };
    }
}

/// The names in the case that clients expect.
fn reported_name(name: &str) -> String {
    match name {
        "datestyle" => "DateStyle",
        "intervalstyle" => "IntervalStyle",
        "timezone" => "TimeZone",
        other => other,
    }
    .to_owned()
}

fn parse_milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A time as PostgreSQL shows it: in the largest unit without a remainder.
fn format_milliseconds(value: &str) -> String {
    let milliseconds: u64 = value.parse().unwrap_or(0);
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    let unit = units.iter().find(|(unit, _)| milliseconds != 0 && milliseconds.is_multiple_of(*unit));
    unit.map_or_else(|| value.to_owned(), |(unit, name)| format!("{}{name}", milliseconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_show_reset() {
        let mut settings = Settings::new("ada");
        assert_eq!(settings.get("TimeZone").as_deref(), Some("UTC"));
        settings.set("statement_timeout", Some("2s")).unwrap();
        assert_eq!(settings.get("statement_timeout").as_deref(), Some("2s"));
        settings.set("application_name", Some("x")).unwrap();
        assert_eq!(settings.take_changed(), [("application_name".to_owned(), "x".to_owned())]);
        settings.set("transaction_isolation", Some("read committed")).unwrap();
        assert_eq!(settings.get("transaction_isolation").as_deref(), Some("serializable"));
        for name in ["nothing", "farhold.nothing", "farhold_join.algorithm"] {
            assert_eq!(settings.set(name, Some("1")).unwrap_err().state.code(), "42704");
        }
        assert_eq!(settings.set("server_version", Some("1")).unwrap_err().state.code(), "55P02");
        assert_eq!(settings.zone(), Zone::UTC);
        settings.set("timezone", Some("europe/berlin")).unwrap();
        assert_eq!(settings.get("TimeZone").as_deref(), Some("Europe/Berlin"));
        assert_eq!(settings.take_changed(), [("TimeZone".to_owned(), "Europe/Berlin".to_owned())]);
        assert_eq!(settings.set("timezone", Some("Europe/Nowhere")).unwrap_err().state.code(), "22023");
        assert_eq!(Some(settings.zone()), Zone::named("Europe/Berlin"));
        settings.set("time zone", Some("-7")).unwrap();
        assert_eq!((settings.get("timezone").as_deref(), settings.zone()), (Some("<-07>+07"), Zone::ahead(-25_200)));
        settings.begin_transaction(0);
        settings.set_local("timezone", Some("UTC")).unwrap();
        assert_eq!(settings.zone(), Zone::UTC);
        settings.commit();
        assert_eq!(settings.zone(), Zone::ahead(-25_200), "SET LOCAL has ended");
        settings.begin_transaction(0);
        settings.set("timezone", Some("Europe/Berlin")).unwrap();
        settings.commit();
        assert_eq!(Some(settings.zone()), Zone::named("Europe/Berlin"));
        assert_eq!(settings.set("transaction_read_only", Some("on")).unwrap_err().state.code(), "22023");
        settings.reset_all();
        assert_eq!(settings.zone(), Zone::UTC);
        assert_eq!(settings.get("statement_timeout").as_deref(), Some("0"));
        assert!(SETTINGS.is_sorted_by_key(|s| s.name));
    }

    #[test]
    fn reset_goes_back_to_the_start() {
        let mut settings = Settings::new("ada");
        settings.set("statement_timeout", Some("2s")).unwrap();
        settings.set("my.name", Some("x")).unwrap();
        settings.started();
        let names = ["statement_timeout", "work_mem", "my.name", "my.other"];
        for each in [false, true] {
            for name in names {
                settings.set(name, Some("7")).unwrap();
            }
            for name in names.into_iter().filter(|_| each) {
                settings.set(name, None).unwrap();
            }
            if !each {
                settings.reset_all();
            }
            assert_eq!(settings.get("statement_timeout").as_deref(), Some("2s"));
            assert_eq!(settings.get("work_mem").as_deref(), Some("0"));
            assert_eq!(settings.get("my.name").as_deref(), Some("x"));
            assert_eq!(settings.get("my.other"), None);
        }
    }

    #[test]
    fn a_transaction_takes_its_settings_along() {
        let mut settings = Settings::new("ada");
        let is = |settings: &Settings, value: &str| assert_eq!(settings.get("work_mem").as_deref(), Some(value));
        settings.begin_transaction(0);
        settings.set("work_mem", Some("1")).unwrap();
        settings.set("a.b", Some("x")).unwrap();
        settings.set_local("application_name", Some("local")).unwrap();
        settings.rollback();
        is(&settings, "0");
        assert_eq!(settings.get("a.b"), None);
        // A change that was undone before it was reported is reported with its current value.
        assert_eq!(settings.take_changed(), [("application_name".to_owned(), String::new())]);

        // One savepoint existed before the first change of a setting.
        settings.begin_transaction(1);
        settings.set_local("work_mem", Some("2")).unwrap();
        settings.set("work_mem", Some("3")).unwrap();
        settings.set_local("work_mem", Some("4")).unwrap();
        settings.savepoint();
        settings.set("work_mem", Some("5")).unwrap();
        settings.rollback_to(1);
        is(&settings, "4");
        settings.savepoint();
        settings.set_local("work_mem", Some("6")).unwrap();
        settings.release(2);
        is(&settings, "6");
        settings.commit();
        is(&settings, "3");

        settings.begin_transaction(1);
        settings.set("work_mem", Some("7")).unwrap();
        settings.rollback_to(0);
        is(&settings, "3");
        settings.commit();
        is(&settings, "3");
    }
}
