//! Was there an order in which these transactions, one after the other, would have seen what they saw?
//!
//! ```text
//!   records: who read which version of which key, who wrote which, what each range read saw and did not see
//!      │  versions of a key in order                                                   versions.rs
//!      ▼
//!   dependency graph: writer ─wr─► reader ─rw─► next writer, writer ─ww─► next writer,
//!                     ended ─rt─► begun later (strict serializability)                  graph.rs
//!      ▼
//!   a cycle: no such order; the shortest one is reported in words                       report.rs
//! ```
//!
//! The idea is Adya's ("Weak consistency", 1999) and Elle's (VLDB 2020): every version has one known writer, because every
//! value says who wrote it, and every write has read its predecessor, so the order of a key's versions need not be guessed.
//! A range read is a read of every key in its range, also of those that it did not see: of these it has read the latest
//! version, before its own place, that the range does not contain. That makes a phantom an ordinary `rw` edge.
//!
//! The one thing taken from the protocol is [`Record::serial`]: a number from one counter, drawn while the transaction held
//! its locks. It orders the versions of a key whose chain was broken by a delete; nothing else relies on it.

mod graph;
mod report;
mod versions;

pub use report::{Anomaly, Edge, EdgeKind};

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
    /// For the report: who ran what.
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
    /// Whether it has committed is not known: its node was lost in the middle.
    pub in_doubt: bool,
    /// It is a look at a snapshot of this epoch: it must have seen the transactions of this epoch and before, and no others.
    pub snapshot: Option<u32>,
}

/// A history: the rows before it, and its committed transactions.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Rows before the first transaction, with their attributes.
    pub initial: Vec<(Key, i64)>,
    /// The transactions, in any order.
    pub records: Vec<Record>,
}

impl History {
    /// As [`Self::check`], with transactions in doubt: those that somebody has seen have committed; of the others there must be a
    /// choice that makes an order.
    ///
    /// # Errors
    /// What is wrong when none of those that are not seen has committed, in words.
    pub fn check_with_doubts(&self) -> Result<(), Box<Anomaly>> {
        /// Choices of so many transactions are tried; of more than that, none is believed to have committed.
        const DOUBTS_MAX: usize = 8;
        let mut decided: Vec<&Record> = self.records.iter().filter(|record| !record.in_doubt).collect();
        let mut open: Vec<&Record> = self.records.iter().filter(|record| record.in_doubt).collect();
        // Who was seen by one who has committed has committed.
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
        // One that only reads, or of which nobody could know, changes nothing.
        open.retain(|record| !record.writes.is_empty());
        open.truncate(DOUBTS_MAX);
        let mut first = None;
        for choice in 0_u32..1 << open.len() {
            let chosen = (0..).zip(&open).filter(|(bit, _)| choice & 1 << bit != 0).map(|(_, record)| *record);
            let records = decided.iter().copied().chain(chosen).cloned();
            // Its end is not known either.
            let last = self.records.iter().map(|record| record.ended).max().unwrap_or(0);
            let records =
                records.map(|record| if record.in_doubt { Record { ended: last + 1, ..record } } else { record });
            match (Self { initial: self.initial.clone(), records: records.collect() }).check() {
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
