//! Decides whether there is an order in which these transactions, one after the other, would have read the same.
//!
//! ```text
//!   records: which version of which key each transaction read or wrote, what each range read saw and did not
//!      │  versions of a key in order                                                   versions.rs
//!      ▼
//!   dependency graph: writer ─wr─► reader ─rw─► next writer, writer ─ww─► next writer,
//!                     ended ─rt─► begun later (strict serializability)                  graph.rs
//!      ▼
//!   a cycle: no such order; the shortest one is reported in words                       report.rs
//! ```
//!
//! The idea is Adya's ("Weak consistency", 1999) and Elle's (VLDB 2020): every version has one known writer, because every value names its writer. Every write
//! has read its predecessor, so the order of a key's versions need not be guessed. A range read is a read of every key in its range, including keys that it did
//! not return. Of such a key it has read the latest version, before its own place, that the range does not contain. That makes a phantom an ordinary `rw` edge.
//!
//! The one thing taken from the protocol is [`Record::serial`]: a number from one counter, drawn while the transaction held
//! its locks. It orders the versions of a key whose chain was broken by a delete; nothing else relies on it.

mod graph;
mod report;
mod versions;

pub use report::{Anomaly, Edge, EdgeKind};

use std::collections::{BTreeMap, BTreeSet};

/// A row, in all the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its table.
    pub table: u32,
    /// Its primary key.
    pub key: u64,
}

/// A transaction: its position in the history. `Writer(None)` of a version stands for the state before all of them.
pub type TxnIndex = usize;

/// A read of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The row.
    pub key: Key,
    /// What it saw.
    pub saw: Saw,
}

/// What a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// No row.
    Absent,
    /// The row as it was before the history.
    Initial,
    /// The row as the transaction with this [`Record::id`] wrote it.
    By(u64),
}

/// A write of one row. A transaction writes a row once, as far as others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The row.
    pub key: Key,
    /// Its other key, by which [`By::Attribute`] ranges look; `None` after a delete.
    pub row: Option<i64>,
}

/// By which key a range looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The primary key.
    Key,
    /// The attribute.
    Attribute,
}

/// A read of a range. What it saw is in [`Record::reads`] too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRead {
    /// The table.
    pub table: u32,
    /// By which key.
    pub by: By,
    /// First key of the range.
    pub lo: i64,
    /// Last key of the range, included: of the part that the scan really covered, if a limit ended it.
    pub hi: i64,
    /// The primary keys of the rows that it returned (all rows with attributes inside the range if a limit ended it amid
    /// rows of one attribute: then `hi` must be below that attribute).
    pub saw: Vec<u64>,
}

/// One committed transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its number, which its values carry.
    pub id: u64,
    /// For the report: which client ran what.
    pub label: String,
    /// When it began, on the history's clock.
    pub began: u64,
    /// When its commit had returned.
    pub ended: u64,
    /// Drawn while it held its locks (or before a read-only transaction validated).
    pub serial: u64,
    /// Its reads of others' versions.
    pub reads: Vec<Read>,
    /// Its range reads.
    pub ranges: Vec<RangeRead>,
    /// Its writes.
    pub writes: Vec<Write>,
    /// The commit epoch of a writer.
    pub epoch: u32,
    /// Whether it has committed is unknown: its node was lost in the middle.
    pub in_doubt: bool,
    /// For each of these writes separately, it is unknown whether it has been done; the other writes have been, or will
    /// be. A transaction that has such writes is not in doubt as a whole.
    pub loose: BTreeSet<Key>,
    /// It is a read of a snapshot of this epoch: it must have seen the transactions of this epoch and before, and no others.
    pub snapshot: Option<u32>,
}

impl Record {
    /// The end of a transaction of which some writes are done after its commit has returned: after everything.
    pub const NEVER: u64 = u64::MAX / 2;
}

/// A history: the rows before it, and its committed transactions.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Rows before the first transaction, with their attributes.
    pub initial: Vec<(Key, i64)>,
    /// The transactions, in any order.
    pub records: Vec<Record>,
    /// The times from which epochs that a snapshot has had may have been given to later transactions again: power cuts of a lone node,
    /// whose snapshots need not wait for its disk.
    pub epochs_again: Vec<u64>,
}

impl History {
    /// The history without its entries about some rows.
    #[must_use]
    pub fn without(mut self, keys: &BTreeSet<Key>) -> Self {
        self.initial.retain(|(key, _)| !keys.contains(key));
        for record in &mut self.records {
            record.reads.retain(|read| !keys.contains(&read.key));
            record.writes.retain(|write| !keys.contains(&write.key));
        }
        self
    }

    fn without_records(&self) -> Self {
        Self { initial: self.initial.clone(), records: Vec::new(), epochs_again: self.epochs_again.clone() }
    }

    /// Each write of a transaction that may be half done becomes a transaction of its own, in doubt if the write is
    /// [loose](Record::loose). Of its reads, only the one of the written row still counts.
    fn with_halves_apart(&self) -> Self {
        let mut last_id = self.records.iter().map(|record| record.id).max().unwrap_or(0);
        let (mut parts, mut ids) = (Vec::new(), BTreeMap::new());
        for record in self.records.iter().filter(|record| !record.loose.is_empty()) {
            for write in &record.writes {
                last_id += 1;
                ids.insert((record.id, write.key), last_id);
                let reads = record.reads.iter().filter(|read| read.key == write.key).copied().collect();
                let (writes, label) = (vec![*write], format!("{}, its write to {}", record.label, write.key));
                let in_doubt = record.loose.contains(&write.key);
                parts.push(Record {
                    id: last_id,
                    label,
                    reads,
                    writes,
                    in_doubt,
                    ranges: Vec::new(),
                    ..record.clone()
                });
            }
        }
        let whole = self.records.iter().filter(|record| record.loose.is_empty()).cloned();
        let mut records: Vec<Record> = whole.chain(parts).collect();
        for read in records.iter_mut().flat_map(|record| &mut record.reads) {
            if let Saw::By(id) = read.saw
                && let Some(part) = ids.get(&(id, read.key))
            {
                read.saw = Saw::By(*part);
            }
        }
        Self { records, ..self.without_records() }
    }

    /// As [`Self::check`], with transactions in doubt: those that another transaction has seen have committed. Of the
    /// others, there must be a choice that yields an order. If a transaction has [loose](Record::loose) writes, this
    /// holds for each write by itself.
    ///
    /// # Errors
    /// What is wrong if none of the unseen transactions has committed, in words.
    pub fn check_with_doubts(&self) -> Result<(), Box<Anomaly>> {
        if self.records.iter().any(|record| !record.loose.is_empty()) {
            return Self::check_whole_with_doubts(&self.with_halves_apart());
        }
        self.check_whole_with_doubts()
    }

    /// Whether a write that no transaction names may have been done. Only a deletion may have been: other writes would have been seen. While it was in progress
    /// its row was locked, so a transaction that has committed later shows it.
    fn was_done(decided: &[&Record], half: &Record) -> Option<bool> {
        let write = half.writes.first()?;
        if write.row.is_some() {
            return Some(false);
        }
        let later = || decided.iter().filter(|it| it.serial > half.serial && it.snapshot.is_none());
        let writes = |record: &&&Record| record.writes.iter().any(|it| it.key == write.key);
        let saw = |record: &Record| record.reads.iter().find(|read| read.key == write.key).map(|read| read.saw);
        let next = later().filter(writes).min_by_key(|record| record.serial);
        let last = later().filter(|record| saw(record).is_some()).max_by_key(|record| record.serial);
        next.or(last).and_then(|record| saw(record)).map(|saw| saw == Saw::Absent)
    }

    /// Has a later transaction found a row that this one writes as it was before? Then this transaction has not committed. Serials are
    /// drawn under the rows' locks, so they tell which is later.
    fn is_refuted(serials: &BTreeMap<u64, u64>, decided: &[&Record], doubt: &Record) -> bool {
        let is_later = |it: &Record| match it.snapshot {
            None => !it.writes.is_empty() && it.serial > doubt.serial,
            Some(epoch) => epoch >= doubt.epoch && it.ended > doubt.began,
        };
        let is_written = |key: Key| doubt.writes.iter().any(|write| write.key == key);
        let is_earlier = |saw: Saw| match saw {
            Saw::Initial => true,
            Saw::Absent => false,
            Saw::By(id) => serials.get(&id).is_some_and(|serial| *serial < doubt.serial),
        };
        let is_before = |read: &Read| is_written(read.key) && is_earlier(read.saw);
        decided.iter().any(|it| is_later(it) && it.reads.iter().any(is_before))
    }

    fn check_whole_with_doubts(&self) -> Result<(), Box<Anomaly>> {
        /// Choices of up to this many transactions are tried; if there are more, none is taken to have committed.
        const DOUBTS_MAX: usize = 8;
        let mut decided: Vec<&Record> = self.records.iter().filter(|record| !record.in_doubt).collect();
        let mut open: Vec<&Record> = self.records.iter().filter(|record| record.in_doubt).collect();
        // A transaction that a committed one has seen has committed.
        loop {
            let is_seen =
                |record: &&Record| decided.iter().any(|it| it.reads.iter().any(|read| read.saw == Saw::By(record.id)));
            let (seen, left): (Vec<_>, Vec<_>) = open.iter().copied().partition(is_seen);
            open = left;
            if seen.is_empty() {
                break;
            }
            decided.extend(seen);
        }
        // A transaction that only reads, or whose writes no other could see, changes nothing.
        open.retain(|record| !record.writes.is_empty());
        let serials = self.records.iter().map(|record| (record.id, record.serial)).collect();
        open.retain(|record| !Self::is_refuted(&serials, &decided, record));
        // The next writer of a row, or its last reader, tells whether a half transaction has written it.
        let (halves, whole): (Vec<_>, Vec<_>) = open.into_iter().partition(|record| !record.loose.is_empty());
        open = whole;
        for half in halves {
            match Self::was_done(&decided, half) {
                Some(true) => decided.push(half),
                Some(false) => {}
                None => open.push(half),
            }
        }
        open.truncate(DOUBTS_MAX);
        let mut first = None;
        for choice in 0_u32..1 << open.len() {
            let chosen = (0..).zip(&open).filter(|(bit, _)| choice & 1 << bit != 0).map(|(_, record)| *record);
            let records = decided.iter().copied().chain(chosen).cloned();
            // Its end is unknown, too.
            let records =
                records.map(|record| if record.in_doubt { Record { ended: Record::NEVER, ..record } } else { record });
            match (Self { records: records.collect(), ..self.without_records() }).check() {
                Ok(()) => return Ok(()),
                Err(anomaly) => first = first.or(Some(anomaly)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Looks for a cycle.
    ///
    /// # Errors
    /// What is wrong with the history, in words.
    pub fn check(&self) -> Result<(), Box<Anomaly>> {
        let versions = versions::Versions::new(self);
        versions.check_snapshots(self)?;
        graph::Graph::new(self, &versions)?.check(self)
    }
}

#[cfg(test)]
mod tests;
