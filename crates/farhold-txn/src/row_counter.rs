//! A counter whose word is part of a row: numbers that outlive processes and cost no transaction.
//!
//! ```text
//!   object   header │ key │ value: the word, 8 bytes
//!                              ▲
//!   any thread of any node ────┘ Counter::take, one fetch-and-add a block
//! ```
//!
//! The row is found, or made, by a transaction like any other. Its word then changes under the row protocol's feet, so the rules
//! are: nobody else writes the row while it exists (tables of counters have no other writers), its key and its header leave the
//! word on a multiple of 8, and each instruction happens while a transaction is open that has read the row. That transaction never
//! commits; it is there for the grace period of dropped tables: memory that a counter was in is not given to others while an
//! instruction on it may be under way.
//!
//! What has been taken is never given back, whatever becomes of the taker's transactions. That is what SQL's sequences are, and
//! why they have gaps.

use crate::{Table, TxnError, Worker};
use farhold_fabric::object::HEADER_BYTES;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::sync::{Counter, WordOp, Words, counter};
use farhold_fabric::{Endpoint, FarPtr};

/// Bytes of the word.
const WORD_BYTES: usize = 8;
/// How often a row that others make or drop meanwhile is looked for.
const ATTEMPTS_MAX: u32 = 100;

/// Which row a counter is.
#[derive(Clone, Copy, Debug)]
pub struct RowCounter<'a> {
    /// The table. Nobody but counters writes it.
    pub table: &'a Table,
    /// The row's key, a multiple of 8 bytes long.
    pub key: &'a [u8],
    /// The row's value when it is made: the word, little-endian.
    pub first: [u8; WORD_BYTES],
}

impl Worker {
    /// Takes `count` numbers, each `step` more than the one before, and returns the first. The row is made if it is not there.
    ///
    /// # Errors
    /// A dropped table, an unavailable node; [`TxnError::Corrupt`] for a row that is no counter. After a node has become
    /// unavailable numbers may be lost.
    pub async fn take_numbers(&self, counter: RowCounter<'_>, count: u32, step: i64) -> Result<u64, TxnError> {
        self.with_word(counter, async |words, at| {
            Counter::new(at, counter::Form::Batched(count.max(1))).take(words, count, step).await
        })
        .await
    }

    /// Gives the counter another next number; returns what it was.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn set_number(&self, counter: RowCounter<'_>, next: u64) -> Result<u64, TxnError> {
        self.with_word(counter, async |words, at| words.execute(at, WordOp::Swap(next)).await).await
    }

    /// Gives the counter the next number `new` if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn swap_number(&self, counter: RowCounter<'_>, expected: u64, new: u64) -> Result<u64, TxnError> {
        self.with_word(counter, async |words, at| words.execute(at, WordOp::CompareSwap { expected, new }).await).await
    }

    /// The next number, not taken.
    ///
    /// # Errors
    /// As [`take_numbers`](Self::take_numbers).
    pub async fn next_number(&self, counter: RowCounter<'_>) -> Result<u64, TxnError> {
        self.with_word(counter, async |words, at| words.execute(at, WordOp::Load).await).await
    }

    /// Executes something on the word while a transaction holds its memory.
    async fn with_word(
        &self,
        counter: RowCounter<'_>,
        execute: impl AsyncFn(&Posted<&Endpoint>, FarPtr) -> Result<u64, farhold_fabric::FabricError>,
    ) -> Result<u64, TxnError> {
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
                        outcome => return outcome,
                    }
                }
                Ok(None) => {
                    drop(txn);
                    self.make_row(counter).await?;
                }
                // It is being made.
                Err(TxnError::Conflict) if attempt < ATTEMPTS_MAX => drop(txn),
                Err(error) => return Err(error),
            }
            if attempt >= ATTEMPTS_MAX {
                return Err(TxnError::Conflict);
            }
            self.core.serve_one();
            self.handle().yield_now().await;
        }
        unreachable!("the attempts are limited")
    }

    /// Makes the row, unless somebody else does.
    async fn make_row(&self, counter: RowCounter<'_>) -> Result<(), TxnError> {
        let mut txn = self.begin();
        let made = match txn.insert(counter.table, counter.key, &counter.first).await {
            Ok(_) => txn.commit().await.map(|_| ()),
            Err(error) => Err(error),
        };
        match made {
            Err(TxnError::Conflict | TxnError::DuplicateKey { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Where the word of a row is.
fn word_of(object: FarPtr, key_len: usize, value_len: usize) -> Result<FarPtr, TxnError> {
    let at = object.add((HEADER_BYTES + key_len) as u64);
    if value_len != WORD_BYTES || !at.offset().is_multiple_of(WORD_BYTES as u64) {
        return Err(TxnError::Corrupt { what: "a row that is to be a counter has no word in place of a value" });
    }
    Ok(at)
}
