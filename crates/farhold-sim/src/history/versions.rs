//! The versions of each key in their order.

use super::{Anomaly, By, History, Key, RangeRead, Saw, TxnIndex};
use std::collections::{BTreeMap, HashMap};

/// One state of a row, or of its absence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    /// Its writer; `None`: it was there before the history.
    pub writer: Option<TxnIndex>,
    /// Drawn under the writer's locks; 0 before the history.
    pub serial: u64,
    /// The writer's epoch; 0 before the history.
    pub epoch: u32,
    /// The attribute, `None` if there is no row.
    pub row: Option<i64>,
}

/// All keys with all their versions.
pub(super) struct Versions {
    pub by_key: BTreeMap<Key, Vec<Version>>,
    by_id: HashMap<u64, TxnIndex>,
}

impl Versions {
    pub fn new(history: &History) -> Self {
        let mut by_id = HashMap::new();
        let mut by_key: BTreeMap<Key, Vec<Version>> = BTreeMap::new();
        for &(key, row) in &history.initial {
            by_key.insert(key, vec![Version { writer: None, serial: 0, epoch: 0, row: Some(row) }]);
        }
        for (index, record) in history.records.iter().enumerate() {
            by_id.insert(record.id, index);
            for write in &record.writes {
                let versions = by_key
                    .entry(write.key)
                    .or_insert_with(|| vec![Version { writer: None, serial: 0, epoch: 0, row: None }]);
                versions.push(Version {
                    writer: Some(index),
                    serial: record.serial,
                    epoch: record.epoch,
                    row: write.row,
                });
            }
        }
        for versions in by_key.values_mut() {
            versions.sort_by_key(|version| version.serial);
        }
        Self { by_key, by_id }
    }

    /// Which version of `key` a read saw: its position in the row of versions.
    pub fn seen(&self, history: &History, reader: TxnIndex, key: Key, saw: Saw) -> Result<usize, Box<Anomaly>> {
        let Some(versions) = self.by_key.get(&key) else {
            // No transaction ever wrote it.
            return if saw == Saw::Absent { Ok(0) } else { Err(Anomaly::unknown(history, reader, key, saw)) };
        };
        let position = match saw {
            Saw::Absent => return Ok(Self::latest(versions, history.records[reader].serial, |row| row.is_none())),
            Saw::Initial => versions.iter().position(|v| v.writer.is_none() && v.row.is_some()),
            Saw::By(id) => self
                .by_id
                .get(&id)
                .and_then(|txn| versions.iter().position(|v| v.writer == Some(*txn) && v.row.is_some())),
        };
        position.ok_or_else(|| Anomaly::unknown(history, reader, key, saw))
    }

    /// The keys that a range read has not returned. For each: the version that had taken it out of the range, or kept
    /// it out from the beginning, and the next one that is in it. Changes in between, outside of the range, do not
    /// concern the read. No first one: the row has been in the range from the beginning.
    pub fn unseen<'a>(
        &'a self,
        history: &'a History,
        reader: TxnIndex,
        range: &'a RangeRead,
    ) -> impl Iterator<Item = (Key, Option<usize>, Option<usize>)> + 'a {
        let serial = history.records[reader].serial;
        let first = Key { table: range.table, key: 0 };
        let last = Key { table: range.table, key: u64::MAX };
        self.by_key.range(first..=last).filter(|(key, _)| !range.saw.contains(&key.key)).filter_map(
            move |(key, versions)| {
                let inside = |row: Option<i64>| row.is_some_and(|attribute| range.contains(*key, attribute));
                if !versions.iter().any(|version| inside(version.row)) {
                    return None;
                }
                let seen = Self::latest(versions, serial, |row| !inside(row));
                if inside(versions[seen].row) {
                    return Some((*key, None, None));
                }
                let out = versions[..seen].iter().rposition(|version| inside(version.row)).map_or(0, |last| last + 1);
                let back = (seen..versions.len()).find(|position| inside(versions[*position].row));
                Some((*key, Some(out), back))
            },
        )
    }

    /// A snapshot of an epoch must be exactly what the transactions up to it have left.
    pub fn check_snapshots(&self, history: &History) -> Result<(), Box<Anomaly>> {
        for (reader, record) in history.records.iter().enumerate() {
            let Some(epoch) = record.snapshot else { continue };
            let is_of_another_life =
                |began: u64| history.epochs_again.iter().any(|at| (record.ended..began).contains(at));
            let is_later =
                |it: &Version| it.writer.is_some_and(|writer| is_of_another_life(history.records[writer].began));
            let is_of_its_time = |it: &&Version| it.epoch <= epoch && !is_later(it);
            for read in &record.reads {
                let expected = self.by_key.get(&read.key).and_then(|all| all.iter().rfind(is_of_its_time));
                let expected = expected.map_or(Saw::Absent, |version| Self::as_seen(history, version));
                if expected != read.saw {
                    return Err(Anomaly::snapshot(history, reader, read.key, read.saw, expected));
                }
            }
            for range in &record.ranges {
                let (first, last) = (Key { table: range.table, key: 0 }, Key { table: range.table, key: u64::MAX });
                for (key, all) in self.by_key.range(first..=last).filter(|(key, _)| !range.saw.contains(&key.key)) {
                    let version = all.iter().rfind(is_of_its_time);
                    let expected = version.map_or(Saw::Absent, |version| Self::as_seen(history, version));
                    if expected != Saw::Absent {
                        return Err(Anomaly::snapshot(history, reader, *key, Saw::Absent, expected));
                    }
                }
            }
        }
        Ok(())
    }

    fn as_seen(history: &History, version: &Version) -> Saw {
        match (version.row, version.writer) {
            (None, _) => Saw::Absent,
            (Some(_), None) => Saw::Initial,
            (Some(_), Some(writer)) => Saw::By(history.records[writer].id),
        }
    }

    /// The latest version before `serial` that satisfies `fits`; if there is none, the first one after it that does.
    fn latest(versions: &[Version], serial: u64, fits: impl Fn(Option<i64>) -> bool) -> usize {
        let before = versions.iter().rposition(|version| version.serial < serial && fits(version.row));
        before.or_else(|| versions.iter().position(|version| fits(version.row))).unwrap_or(0)
    }
}

impl RangeRead {
    fn contains(&self, key: Key, attribute: i64) -> bool {
        let at = match self.by {
            By::Key => i64::try_from(key.key).unwrap_or(i64::MAX),
            By::Attribute => attribute,
        };
        self.lo <= at && at <= self.hi
    }
}
