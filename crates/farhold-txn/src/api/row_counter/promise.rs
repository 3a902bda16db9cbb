//! How far a counter may have come: for a transaction that meets its word again after the word was lost.
//!
//! The word changes without a commit, so copies of its row, journals and checkpoints hold an old one. Beside it is a
//! row that transactions write like any other:
//!
//! ```text
//!   from     no position before it is of this life
//!   next     no position from here on has been given out
//!   offset   how far the numbers are from the word's positions
//!   place    where the word is, and
//!   life     in which configuration and generation: together they are the word's life
//! ```
//!
//! Positions are taken first. They are given out, as numbers, only when the row says that `next` lies behind them. A
//! transaction moves `next` some blocks ahead. A caller that finds the row with another life has met a word that began
//! again: it moves the word to `next`, and `from` as well. So what was given out in two lives never overlaps, and a
//! life costs at most [`BLOCKS_AHEAD`] blocks of numbers.
//!
//! The word itself only grows. A counter that is set gets another offset. If the word were set back, the next life
//! could begin with an earlier copy of it, which is ahead of it.
//!
//! A node that has not heard of a death may still see the dead node's word. What it takes there lies before the `next`
//! of that life, and the transaction that would move `next` further does not commit.

use crate::api::row_counter::{RowCounter, WORD_BYTES, words_of};
use crate::base::error::TxnError;
use crate::protocol::txn::Txn;
use crate::protocol::worker::{Retry, Worker};
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::sync::{WordOp, Words};
use farhold_fabric::{Endpoint, FarPtr};

/// How many blocks a transaction promises.
const BLOCKS_AHEAD: i128 = 8;

/// How far a position may be from the beginning of its life before a new beginning is recorded. Positions are compared as signed numbers,
/// so no two may be further apart than 2^63.
const DISTANCE_MAX: u64 = 1 << 61;

/// Positions that have been taken from the word.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub first: u64,
    pub count: u32,
    pub step: i64,
}

impl Taken {
    fn end(self) -> u64 {
        self.first.wrapping_add(i64::from(self.count).wrapping_mul(self.step).cast_unsigned())
    }

    /// Is `number` at `bound` or behind it, going this way?
    fn reaches(self, number: u64, bound: u64) -> bool {
        let distance = number.wrapping_sub(bound).cast_signed();
        if self.step > 0 { distance >= 0 } else { distance <= 0 }
    }

    /// What to promise next: some blocks ahead, but nothing behind the last number that there is.
    fn ahead(self, last: i64, offset: u64) -> u64 {
        let end = self.end().wrapping_add(offset).cast_signed();
        let (end, step) = (i128::from(end), i128::from(self.step));
        let ahead = end + BLOCKS_AHEAD * i128::from(self.count) * step;
        let behind_last = i128::from(last) + step.signum();
        let ahead = if step > 0 { ahead.min(behind_last).max(end) } else { ahead.max(behind_last).min(end) };
        (ahead as i64).cast_unsigned().wrapping_sub(offset)
    }
}

/// The row.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Promise {
    next: u64,
    from: u64,
    offset: u64,
    life: [u64; 2],
}

impl Promise {
    fn of(value: &[u8]) -> Result<Self, TxnError> {
        let mut words =
            value.chunks_exact(WORD_BYTES).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut word = || words.next().ok_or(TxnError::Corrupt { what: "a row that is to be a counter's is shorter" });
        Ok(Self { next: word()?, from: word()?, offset: word()?, life: [word()?, word()?] })
    }

    fn value(self) -> [u8; super::VALUE_BYTES] {
        words_of(&[self.next, self.from, self.offset, self.life[0], self.life[1]])
    }
}

impl Worker {
    /// May a word be lost while its row is kept?
    pub(super) fn may_forget(&self) -> bool {
        let node = self.node();
        node.replication.is_some() || node.journaling.is_some()
    }

    fn life(&self, at: FarPtr) -> [u64; 2] {
        let node = self.node();
        let configuration = node.replication.as_ref().map_or(0, |it| it.view.configuration().number);
        let generation = node.journaling.as_ref().map_or(0, |it| u64::from(it.generation().number()));
        [u64::from(at.node().0) << 48 | at.offset(), generation << 40 | configuration]
    }

    /// Makes it certain that these positions are never given out again. Returns how far their numbers are from them.
    /// `None`: they must not be given out; take others.
    pub(super) async fn keeps_promise(
        &self,
        counter: RowCounter<'_>,
        at: FarPtr,
        taken: Taken,
    ) -> Result<Option<u64>, TxnError> {
        let life = self.life(at);
        self.promising(async |txn| {
            let Some(row) = txn.get(counter.table, counter.promise_key).await? else {
                let first = Promise { next: taken.ahead(counter.last, 0), from: counter.first, offset: 0, life };
                txn.insert(counter.table, counter.promise_key, &first.value()).await?;
                return Ok(Some(0));
            };
            let promise = Promise::of(txn.value(row))?;
            if promise.life != life && !planted!(WordBelieved) {
                let anew = Promise { from: promise.next, life, ..promise };
                self.move_on(counter, promise.next, taken).await?;
                txn.value_mut(row).copy_from_slice(&anew.value());
                return Ok(None);
            }
            if !taken.reaches(taken.first, promise.from) {
                // The caller that set it may not have come to the word.
                self.move_on(counter, promise.from, taken).await?;
                return Ok(None);
            }
            let mut further = promise;
            if !taken.reaches(promise.next, taken.end()) {
                further.next = taken.ahead(counter.last, promise.offset);
            }
            if taken.first.wrapping_sub(promise.from).cast_signed().unsigned_abs() > DISTANCE_MAX {
                further.from = taken.first;
            }
            if further != promise {
                txn.value_mut(row).copy_from_slice(&further.value());
            }
            Ok(Some(promise.offset))
        })
        .await
    }

    /// Gives the counter the next number `to`; with `expected` only if it is that now. Returns what it was.
    pub(super) async fn promise_anew(
        &self,
        counter: RowCounter<'_>,
        expected: Option<u64>,
        to: u64,
    ) -> Result<u64, TxnError> {
        self.promising(async |txn| {
            let found = txn.get(counter.table, counter.promise_key).await?;
            // Loaded after the row was read. A caller that takes this position, or a later one, either does so before
            // this transaction commits, or goes by what it has written.
            let load = async |words: &Posted<&Endpoint>, at| words.execute(at, WordOp::Load).await;
            let (word, at) = self.with_word(Retry::never(), counter, load).await?;
            let first = Promise { next: word, from: word, offset: 0, life: self.life(at) };
            let before = found.map_or(Ok(first), |row| Promise::of(txn.value(row)))?;
            // A word that began again is still to be moved on.
            let from = if before.life == self.life(at) { word } else { before.next };
            let was = from.wrapping_add(before.offset);
            if expected.is_none_or(|expected| expected == was) {
                let value = Promise { next: from, from, offset: to.wrapping_sub(from), ..before }.value();
                match found {
                    Some(row) => txn.value_mut(row).copy_from_slice(&value),
                    None => drop(txn.insert(counter.table, counter.promise_key, &value).await?),
                }
            }
            Ok(was)
        })
        .await
    }

    /// How far the numbers are from the word's positions.
    pub(super) async fn offset(&self, counter: RowCounter<'_>) -> Result<u64, TxnError> {
        self.promising(async |txn| {
            let found = txn.get(counter.table, counter.promise_key).await?;
            found.map_or(Ok(0), |row| Ok(Promise::of(txn.value(row))?.offset))
        })
        .await
    }

    /// Moves the word to `to`, unless it is there or behind it.
    async fn move_on(&self, counter: RowCounter<'_>, to: u64, way: Taken) -> Result<(), TxnError> {
        let load = async |words: &Posted<&Endpoint>, at| words.execute(at, WordOp::Load).await;
        let (mut now, _) = self.with_word(Retry::never(), counter, load).await?;
        while !way.reaches(now, to) {
            let swap = async |words: &Posted<&Endpoint>, at| {
                words.execute(at, WordOp::CompareSwap { expected: now, new: to }).await
            };
            let (was, _) = self.with_word(Retry::never(), counter, swap).await?;
            if was == now {
                break;
            }
            now = was;
        }
        Ok(())
    }

    /// A call that has met a conflict is repeated as a whole, with the words that it concerns.
    async fn promising<T>(&self, mut body: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>) -> Result<T, TxnError> {
        self.run(Retry::default(), async |txn| match body(txn).await {
            // Another transaction made it at the same time.
            Err(TxnError::DuplicateKey { .. }) => Err(TxnError::Conflict),
            outcome => outcome,
        })
        .await
    }
}
