//! Describes the errors of a history in words.

use super::{History, Key, Saw, TxnIndex};
use std::fmt;

/// Why one transaction must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// It wrote what the other read.
    WriteRead(Key),
    /// It wrote what the other overwrote.
    WriteWrite(Key),
    /// It read what the other overwrote.
    ReadWrite(Key),
    /// Its range did not contain the row that the other put there.
    Phantom(Key),
    /// It had ended before the other began.
    Time,
}

/// One step of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The transaction that comes first.
    pub from: TxnIndex,
    /// The transaction that comes later.
    pub to: TxnIndex,
    /// Why.
    pub kind: EdgeKind,
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The cycle, if it is one.
    pub cycle: Vec<Edge>,
    words: String,
}

#[allow(clippy::unnecessary_box_returns, reason = "the checks' error, boxed because it is larger than their result")]
impl Anomaly {
    pub(super) fn cycle(history: &History, cycle: Vec<Edge>) -> Box<Self> {
        let mut words = String::from("no serial order explains this history:\n");
        for edge in &cycle {
            words += &in_words(history, edge);
        }
        Box::new(Self { cycle, words })
    }

    pub(super) fn epochs(history: &History, edge: Edge) -> Box<Self> {
        let (before, after) = (history.records[edge.from].epoch, history.records[edge.to].epoch);
        let words = format!("epochs fall from {before} to {after}:\n{}", in_words(history, &edge));
        Box::new(Self { cycle: vec![edge], words })
    }

    pub(super) fn snapshot(history: &History, reader: TxnIndex, key: Key, saw: Saw, expected: Saw) -> Box<Self> {
        let name = name(history, reader);
        Box::new(Self {
            cycle: Vec::new(),
            words: format!("{name} saw {saw:?} in {key}, where it should have seen {expected:?}\n"),
        })
    }

    pub(super) fn unknown(history: &History, reader: TxnIndex, key: Key, saw: Saw) -> Box<Self> {
        let record = &history.records[reader];
        let what = match saw {
            Saw::Absent => "no row".to_owned(),
            Saw::Initial => "the row as it was before all transactions, but there was none".to_owned(),
            Saw::By(id) => format!("what T{id} wrote, which has not committed it"),
        };
        Box::new(Self {
            cycle: Vec::new(),
            words: format!("T{} ({}) read {key} and saw {what}\n", record.id, record.label),
        })
    }
}

fn name(history: &History, txn: TxnIndex) -> String {
    let record = &history.records[txn];
    format!("T{} ({})", record.id, record.label)
}

fn in_words(history: &History, edge: &Edge) -> String {
    let (from, to) = (name(history, edge.from), name(history, edge.to));
    match edge.kind {
        EdgeKind::WriteRead(key) => format!("  {from} wrote {key} as {to} read it\n"),
        EdgeKind::WriteWrite(key) => format!("  {from} wrote {key} before {to} overwrote it\n"),
        EdgeKind::ReadWrite(key) => format!("  {from} read {key} before {to} overwrote it\n"),
        EdgeKind::Phantom(key) => format!("  {from} read a range without {key} before {to} changed that\n"),
        EdgeKind::Time => format!("  {from} had ended before {to} began\n"),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of table {}", self.key, self.table)
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Anomaly {}
