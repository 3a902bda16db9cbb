//! Hands out the numbers of sequences.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farhold_txn::{TableId, Worker};

use super::SequenceInfo;
use super::call::SequenceCall;
use crate::engine::catalog::{Catalog, no_such_table};
use crate::engine::direct::RowNumbers;
use crate::engine::scalar::{Parameters, Scalar};
use crate::engine::{Datum, error};
use crate::{SqlError, SqlState};

/// The rest of a block.
#[derive(Debug)]
struct Block {
    next: i64,
    left: u32,
}

/// The node's blocks of all sequences.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    blocks: Mutex<HashMap<TableId, Blocks>>,
}

#[derive(Debug, Default)]
struct Blocks {
    queue: VecDeque<Block>,
    /// How often the sequence has been set on this node; a block that was fetched before the last one is obsolete.
    sets: u64,
    /// Held while a block is fetched, so that a node's blocks arrive in the order of their numbers.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

/// The numbers that a session has received, for `currval` and `lastval`.
#[derive(Debug, Default)]
pub(crate) struct SessionNumbers {
    inner: RefCell<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    current: HashMap<TableId, i64>,
    last: Option<TableId>,
}

/// The sources of the numbers that a statement's expressions use.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) sequences: &'a Sequences,
    pub(crate) rows: &'a RowNumbers,
    pub(crate) session: &'a SessionNumbers,
    pub(crate) worker: &'a Worker,
}

impl Sequences {
    fn blocks(&self) -> MutexGuard<'_, HashMap<TableId, Blocks>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number from the node's blocks.
    fn take(&self, sequence: &SequenceInfo) -> Option<i64> {
        let mut blocks = self.blocks();
        let queue = &mut blocks.get_mut(&sequence.table.id())?.queue;
        let block = queue.front_mut()?;
        let number = block.next;
        block.left -= 1;
        if block.left == 0 {
            queue.pop_front();
        } else {
            block.next += sequence.definition.increment;
        }
        Some(number)
    }

    /// Drops the node's blocks of a sequence that has been set.
    pub(crate) fn forget(&self, sequence: &SequenceInfo) {
        let mut blocks = self.blocks();
        let blocks = blocks.entry(sequence.table.id()).or_default();
        blocks.queue.clear();
        blocks.sets += 1;
    }

    /// How often a sequence has been set on this node.
    fn sets(&self, sequence: &SequenceInfo) -> u64 {
        self.blocks().get(&sequence.table.id()).map_or(0, |blocks| blocks.sets)
    }

    /// Adds a block, unless the sequence has been set since `sets` was read.
    fn put(&self, sequence: &SequenceInfo, block: Block, sets: u64) {
        let mut blocks = self.blocks();
        let blocks = blocks.entry(sequence.table.id()).or_default();
        if blocks.sets == sets {
            blocks.queue.push_back(block);
        }
    }

    /// The next number of a sequence.
    pub(crate) async fn next(&self, sequence: &SequenceInfo, worker: &Worker) -> Result<i64, SqlError> {
        loop {
            if let Some(number) = self.take(sequence) {
                return Ok(number);
            }
            let fetching = Arc::clone(&self.blocks().entry(sequence.table.id()).or_default().fetching);
            let _turn = fetching.lock().await;
            // Another session may have fetched one meanwhile.
            if let Some(number) = self.take(sequence) {
                return Ok(number);
            }
            let sets = self.sets(sequence);
            if let Some(block) = fetch(sequence, worker).await? {
                self.put(sequence, block, sets);
            }
        }
    }

    /// Sets the next number of the sequence.
    pub(crate) async fn set(&self, sequence: &SequenceInfo, next: i64, worker: &Worker) -> Result<(), SqlError> {
        worker.set_number(sequence.counter(), next.cast_unsigned()).await.map_err(|e| error::from_txn(&e))?;
        self.forget(sequence);
        Ok(())
    }
}

/// Fetches a block from the counter. `None` if the counter has reached its limit and restarts; the caller must try
/// again.
async fn fetch(sequence: &SequenceInfo, worker: &Worker) -> Result<Option<Block>, SqlError> {
    let definition = &sequence.definition;
    let step = definition.increment;
    let taken = worker.take_numbers(sequence.counter(), definition.cache, step).await;
    let taken = taken.map_err(|e| error::from_txn(&e))?;
    let next = taken.cast_signed();
    // The numbers of the block that are within the limits.
    let (room, steps) = if step > 0 {
        (i128::from(definition.max) - i128::from(next), i128::from(step))
    } else {
        (i128::from(next) - i128::from(definition.min), -i128::from(step))
    };
    if room >= 0 && (definition.min..=definition.max).contains(&next) {
        let left = u32::try_from((room / steps + 1).min(definition.cache.into())).unwrap_or(definition.cache);
        return Ok(Some(Block { next, left }));
    }
    // Resets the counter to its last value, or to the start of the cycle, unless it has been changed meanwhile.
    let moved = taken.wrapping_add(i64::from(definition.cache).wrapping_mul(step).cast_unsigned());
    let begin = if step > 0 { definition.min } else { definition.max };
    let to = if definition.cycle { begin.cast_unsigned() } else { taken };
    worker.swap_number(sequence.counter(), moved, to).await.map_err(|e| error::from_txn(&e))?;
    if definition.cycle {
        return Ok(None);
    }
    let (limit, value) = if step > 0 { ("maximum", definition.max) } else { ("minimum", definition.min) };
    let message = format!("nextval: reached {limit} value of sequence \"{}\" ({value})", sequence.name);
    Err(SqlError::new(SqlState::SEQUENCE_LIMIT, message))
}

impl Numbers<'_> {
    /// The value of `scalar` on `row`. All calls of sequence functions are made first, in the order in which they
    /// occur. Each takes new numbers, even in a branch of a CASE that is not taken.
    pub(crate) async fn evaluate(
        &self,
        scalar: &Scalar,
        row: &[Datum],
        parameters: Parameters<'_>,
    ) -> Result<Datum, SqlError> {
        if matches!(scalar, Scalar::Literal(_) | Scalar::Parameter(_) | Scalar::Column(_)) || !scalar.calls_sequences()
        {
            return scalar.evaluate(row, parameters);
        }
        let mut calls = Vec::new();
        scalar.visit(&mut |inner| {
            if let Scalar::Sequence(call, arguments) = inner {
                let values = arguments.iter().map(|a| a.evaluate(row, parameters)).collect::<Result<Vec<_>, _>>();
                calls.push(values.and_then(|values| SequenceCall::of(*call, &values)));
            }
        });
        let mut values = Vec::with_capacity(calls.len());
        for call in calls {
            values.push(match call? {
                None => Datum::Null,
                Some(asked) => Datum::BigInt(self.call(asked).await?),
            });
        }
        let mut values = values.into_iter();
        let mut called = scalar.clone();
        called.visit_mut(&mut |inner| {
            if matches!(inner, Scalar::Sequence(..)) {
                *inner = Scalar::Literal(values.next().unwrap_or(Datum::Null));
            }
        });
        called.evaluate(row, parameters)
    }

    /// The value of one call.
    pub(crate) async fn call(&self, asked: SequenceCall) -> Result<i64, SqlError> {
        let tables = self.catalog.tables();
        let known = |name: &str| tables.sequence(name).ok_or_else(|| no_such_table(name));
        match asked {
            SequenceCall::Next(name) => {
                let sequence = known(&name)?;
                let number = self.sequences.next(sequence, self.worker).await?;
                self.session.remember(sequence.table.id(), number);
                Ok(number)
            }
            SequenceCall::Current(name) => {
                let sequence = known(&name)?;
                self.session.inner.borrow().current.get(&sequence.table.id()).copied().ok_or_else(|| {
                    let message = format!("currval of sequence \"{name}\" is not yet defined in this session");
                    SqlError::new(SqlState::OBJECT_NOT_IN_STATE, message)
                })
            }
            SequenceCall::Last => {
                let remembered = self.session.inner.borrow();
                remembered.last.and_then(|id| remembered.current.get(&id)).copied().ok_or_else(|| {
                    let message = "lastval is not yet defined in this session";
                    SqlError::new(SqlState::OBJECT_NOT_IN_STATE, message)
                })
            }
            SequenceCall::Set { sequence, to, is_called } => {
                let sequence = known(&sequence)?;
                let (min, max) = (sequence.definition.min, sequence.definition.max);
                if !(min..=max).contains(&to) {
                    let name = &sequence.name;
                    let message = format!("setval: value {to} is out of bounds for sequence \"{name}\" ({min}..{max})");
                    return Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message));
                }
                let next = if is_called { to.wrapping_add(sequence.definition.increment) } else { to };
                self.sequences.set(sequence, next, self.worker).await?;
                if is_called {
                    self.session.inner.borrow_mut().current.insert(sequence.table.id(), to);
                }
                Ok(to)
            }
        }
    }
}

impl SessionNumbers {
    /// For DISCARD.
    pub(crate) fn forget(&self) {
        self.inner.take();
    }

    fn remember(&self, sequence: TableId, number: i64) {
        let mut remembered = self.inner.borrow_mut();
        remembered.current.insert(sequence, number);
        remembered.last = Some(sequence);
    }
}

impl Scalar {
    /// Whether it calls a sequence function, so that only [`Numbers::evaluate`] can evaluate it.
    pub(crate) fn calls_sequences(&self) -> bool {
        let mut calls = false;
        self.visit(&mut |scalar| calls |= matches!(scalar, Self::Sequence(..)));
        calls
    }
}

impl Scalar {
    /// Whether it calls a function on the sequence `name`, in whatever form the call writes that name.
    pub(crate) fn names_sequence(&self, name: &str) -> bool {
        let mut found = false;
        self.visit(&mut |scalar| {
            if let Self::Sequence(call, arguments) = scalar {
                let values = arguments.iter().map(|a| a.evaluate(&[], Parameters::NONE)).collect::<Result<Vec<_>, _>>();
                let asked = values.and_then(|values| SequenceCall::of(*call, &values));
                found |= matches!(asked, Ok(Some(
                    SequenceCall::Next(named) | SequenceCall::Current(named) | SequenceCall::Set { sequence: named, .. }
                )) if named == name);
            }
        });
        found
    }

    /// Whether it advances a sequence, which a read-only transaction must not do.
    pub(crate) fn takes_numbers(&self) -> bool {
        let mut takes = false;
        self.visit(&mut |scalar| takes |= matches!(scalar, Self::Sequence(call, _) if call.takes_numbers()));
        takes
    }
}
