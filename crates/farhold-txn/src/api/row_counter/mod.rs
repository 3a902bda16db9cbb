//! A counter whose word is part of a row: numbers that outlive processes and cost no transaction.
//!
//! ```text
//!   object   header │ key │ value: the word, 8 bytes
//!                              ▲
//!   any thread of any node ────┘ Counter::take, one fetch-and-add a block
//! ```
//!
//! The row is found, or made, by a transaction like any other. Its word then changes outside of the row protocol, so
//! three rules hold. Nothing else writes the row while it exists: tables of counters have no other writers. The row's
//! key and header leave the word on a multiple of 8. Each instruction happens while a transaction is open that has read
//! the row. That transaction never commits; it is there for the grace period of dropped tables: memory that a counter
//! was in is not reused while an instruction on it may be under way.
//!
//! Numbers that have been taken are never given back, whatever the outcome of the caller's transactions. SQL's
//! sequences work so, and therefore have gaps. Where rows have copies or a journal, [`promise`] keeps numbers apart
//! that were taken before and after the word has been lost.

mod promise;

use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::protocol::worker::{Retry, Worker};
use farhold_fabric::object::HEADER_BYTES;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::sync::{Counter, WordOp, Words, counter};
use farhold_fabric::{Endpoint, FabricError, FarPtr};
use promise::Taken;

/// Bytes of the word.
const WORD_BYTES: usize = 8;
/// Bytes of a row's value.
const VALUE_BYTES: usize = RowCounter::COLUMNS.len() * WORD_BYTES;

/// Which row a counter is.
#[derive(Clone, Copy, Debug)]
pub struct RowCounter<'a> {
    /// The table. Only counters write it.
    pub table: &'a Table,
    /// The row's key, a multiple of 8 bytes long.
    pub key: &'a [u8],
    /// The key of the row that remembers how far the counter may have come.
    pub promise_key: &'a [u8],
    /// The first number.
    pub first: u64,
    /// The last number that it may give, whichever way it goes. Taken numbers may lie behind it.
    pub last: i64,
}

impl RowCounter<'_> {
    /// The columns of its table that are no key, `BIGINT NOT NULL` each: the word, and four more of the row that remembers.
    pub const COLUMNS: [&'static str; 5] = ["next", "from", "offset", "place", "life"];
}

impl Worker {
    /// Takes `count` numbers, each `step` more than the one before, and returns the first. The row is made if it is not there.
    ///
    /// # Errors
    /// A dropped table, an unavailable node; [`TxnError::Corrupt`] for a row that is no counter. After a node has become
    /// unavailable numbers may be lost.
    pub async fn take_numbers(&self, counter: RowCounter<'_>, count: u32, step: i64) -> Result<u64, TxnError> {
        let take = async |words: &Posted<&Endpoint>, at| {
            Counter::new(at, counter::Form::Batched(count.max(1))).take(words, count, step).await
        };
        loop {
            let (first, at) = self.with_word(Retry::default(), counter, take).await?;
            // The word first, then what is known of it.
            if !self.may_forget() {
                return Ok(first);
            }
            if let Some(offset) = self.keeps_promise(counter, at, Taken { first, count, step }).await? {
                return Ok(first.wrapping_add(offset));
            }
        }
    }

    /// Gives the counter another next number; returns what it was.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn set_number(&self, counter: RowCounter<'_>, next: u64) -> Result<u64, TxnError> {
        if self.may_forget() {
            return self.promise_anew(counter, None, next).await;
        }
        let swap = async |words: &Posted<&Endpoint>, at| words.execute(at, WordOp::Swap(next)).await;
        self.with_word(Retry::default(), counter, swap).await.map(|(was, _)| was)
    }

    /// Gives the counter the next number `new` if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn swap_number(&self, counter: RowCounter<'_>, expected: u64, new: u64) -> Result<u64, TxnError> {
        if self.may_forget() {
            return self.promise_anew(counter, Some(expected), new).await;
        }
        let swap = async |words: &Posted<&Endpoint>, at| words.execute(at, WordOp::CompareSwap { expected, new }).await;
        self.with_word(Retry::default(), counter, swap).await.map(|(was, _)| was)
    }

    /// The next number, not taken.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn next_number(&self, counter: RowCounter<'_>) -> Result<u64, TxnError> {
        let load = async |words: &Posted<&Endpoint>, at| words.execute(at, WordOp::Load).await;
        let (next, _) = self.with_word(Retry::default(), counter, load).await?;
        Ok(if self.may_forget() { next.wrapping_add(self.offset(counter).await?) } else { next })
    }

    /// Executes something on the word while a transaction holds its memory; returns the word's place as well. Other
    /// transactions may make or drop the row meanwhile; `retry` says how often it is looked for again.
    async fn with_word(
        &self,
        retry: Retry,
        counter: RowCounter<'_>,
        execute: impl AsyncFn(&Posted<&Endpoint>, FarPtr) -> Result<u64, FabricError>,
    ) -> Result<(u64, FarPtr), TxnError> {
        for attempt in 1.. {
            let mut txn = self.begin();
            let found = txn.get(counter.table, counter.key).await;
            match found {
                Ok(Some(row)) => {
                    let row = txn.state.row(row);
                    let at = word_of(row.ident.far(), row.key_len as usize, txn.state.value(row).len())?;
                    let words = Posted::through(&self.core.endpoint);
                    match execute(&words, at).await.map_err(|error| self.core.far_error(error, at.node())) {
                        // The node has been taken over since its key was learned.
                        Err(TxnError::Conflict) => drop(txn),
                        outcome => return outcome.map(|value| (value, at)),
                    }
                }
                Ok(None) => {
                    drop(txn);
                    self.make_row(counter).await?;
                }
                // It is being made.
                Err(TxnError::Conflict) => drop(txn),
                Err(error) => return Err(error),
            }
            if !self.may_come_right(retry, attempt) {
                return Err(TxnError::Conflict);
            }
            self.back_off(retry, attempt).await;
        }
        unreachable!("the attempts are limited")
    }

    /// Makes the row, unless another transaction does.
    async fn make_row(&self, counter: RowCounter<'_>) -> Result<(), TxnError> {
        let mut txn = self.begin();
        let value = words_of(&[counter.first, 0, 0, 0, 0]);
        let made = match txn.insert(counter.table, counter.key, &value).await {
            Ok(_) => txn.commit().await.map(|_| ()),
            Err(error) => Err(error),
        };
        match made {
            Err(TxnError::Conflict | TxnError::DuplicateKey { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A row's value.
fn words_of(words: &[u64; RowCounter::COLUMNS.len()]) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (place, word) in value.chunks_exact_mut(WORD_BYTES).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    value
}

/// Where the word of a row is.
fn word_of(object: FarPtr, key_len: usize, value_len: usize) -> Result<FarPtr, TxnError> {
    let at = object.add((HEADER_BYTES + key_len) as u64);
    if value_len != VALUE_BYTES || !at.offset().is_multiple_of(WORD_BYTES as u64) {
        return Err(TxnError::Corrupt { what: "a row that is to be a counter has no word in place of a value" });
    }
    Ok(at)
}
