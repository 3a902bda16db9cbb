//! Rows that name their writers, and the growing history.

use crate::history::{History, Key, Record, Saw};
use farhold_fabric::NodeId;
use farhold_store::row::Datum;
use farhold_txn::Table;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The history of a run so far.
#[derive(Debug, Default)]
pub struct Recorder {
    /// What has committed.
    pub history: History,
    /// Violations.
    pub broken: Vec<String>,
    /// The last transaction number given.
    pub last_id: u64,
    /// Commits that missed a node that may have died, by number, with their coordinators.
    pub cut_short: Vec<(u64, NodeId)>,
    /// Nodes that have died, and when, on the history's clock.
    pub deaths: Vec<(NodeId, u64)>,
    /// Counts beginnings and ends, of all recorders that are to be merged.
    pub clock: Arc<AtomicU64>,
}

impl Recorder {
    /// The next transaction's number.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The next moment.
    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Marks, for each commit that was cut short, the writes that may not have been done: those at homes that died after it began, and
    /// all of them if its coordinator died.
    pub fn settle_cut_short(&mut self, home: impl Fn(Key) -> NodeId) {
        let coordinators: BTreeMap<u64, NodeId> = self.cut_short.drain(..).collect();
        for record in &mut self.history.records {
            let Some(coordinator) = coordinators.get(&record.id) else { continue };
            let has_died = |node| self.deaths.iter().any(|(dead, at)| *dead == node && *at > record.began);
            let is_loose = |key: &Key| has_died(*coordinator) || has_died(home(*key));
            record.loose = record.writes.iter().map(|write| write.key).filter(is_loose).collect();
        }
    }

    /// Adds a committed transaction.
    pub fn add(&mut self, record: Record) {
        self.history.records.push(record);
    }
}

/// A row of either table, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The transaction that wrote it, 0 before the history.
    pub writer: u64,
    /// Its other key.
    pub attribute: i32,
    /// Bytes of padding.
    pub padding: u32,
}

impl Row {
    /// The key's bytes.
    #[must_use]
    pub fn key(key: u32) -> [u8; 4] {
        (key ^ 0x8000_0000).to_be_bytes()
    }

    /// The reverse of [`Self::key`].
    #[must_use]
    pub fn key_of(bytes: &[u8]) -> Option<u32> {
        Some(u32::from_be_bytes(bytes.try_into().ok()?) ^ 0x8000_0000)
    }

    /// The value's bytes.
    ///
    /// # Panics
    /// If it does not fit the table (a bug of the workload).
    #[must_use]
    pub fn value(&self, table: &Table, key: u32) -> Vec<u8> {
        let padding = (0..self.padding).map(|i| self.padding_byte(key, i)).collect();
        let row = [
            Datum::Int(key.cast_signed()),
            Datum::BigInt(self.writer.cast_signed()),
            Datum::Int(self.attribute),
            Datum::BigInt(self.checksum(key)),
            Datum::Bytea(padding),
        ];
        let mut value = Vec::new();
        table.schema().encode_value(&row, &mut value).expect("a row of the table");
        value
    }

    /// The row of these bytes.
    ///
    /// # Errors
    /// How the bytes differ from any row that a transaction has written.
    pub fn of(table: &Table, key: u32, value: &[u8]) -> Result<Self, String> {
        let mut row = Vec::new();
        table.schema().decode_row(&Self::key(key), value, &mut row).map_err(|error| error.to_string())?;
        let [_, Datum::BigInt(writer), Datum::Int(attribute), Datum::BigInt(checksum), Datum::Bytea(padding)] =
            &row[..]
        else {
            return Err(format!("{row:?}"));
        };
        let this = Self { writer: writer.cast_unsigned(), attribute: *attribute, padding: padding.len() as u32 };
        if *checksum != this.checksum(key) {
            return Err(format!("the checksum is not that of {this:?}"));
        }
        let wrong = (0..).zip(padding).find(|(i, byte)| **byte != this.padding_byte(key, *i));
        match wrong {
            Some((i, _)) => Err(format!("byte {i} of the padding is not that of {this:?}")),
            None => Ok(this),
        }
    }

    /// The observation of a reader of this row.
    #[must_use]
    pub fn saw(&self) -> Saw {
        if self.writer == 0 { Saw::Initial } else { Saw::By(self.writer) }
    }

    fn checksum(&self, key: u32) -> i64 {
        let words = [u64::from(key), self.writer, u64::from(self.attribute.cast_unsigned()), u64::from(self.padding)];
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        words.into_iter().fold(0x1234, mix).cast_signed()
    }

    fn padding_byte(&self, key: u32, i: u32) -> u8 {
        (self.checksum(key).cast_unsigned() >> (i % 8 * 8)) as u8 ^ i as u8
    }
}
