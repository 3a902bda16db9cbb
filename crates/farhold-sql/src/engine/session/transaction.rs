//! A session's transaction.
//!
//! ```text
//!            BEGIN / begin_implicit + statement                     error
//!   (none) ─────────────────────────────────────► open ──────────────────────────► failed
//!      ▲                                            │ ▲                               │ │
//!      │  COMMIT, ROLLBACK, end_implicit            │ └── ROLLBACK TO, if the error ──┘ │
//!      └────────────────────────────────────────────┘     left the transaction whole    │
//!      └────────────────────────── COMMIT (says ROLLBACK), ROLLBACK ────────────────────┘
//! ```
//! A failed transaction is dropped at once, so that it holds nothing that others need, unless a savepoint may restore
//! it. A COPY borrows the transaction while its data arrives.
//!
//! Each block and each savepoint has a [`Mark`], and marks only grow: an object whose mark is at least that of a
//! savepoint was created after it. So a ROLLBACK TO can tell which cursors it must close, whatever savepoints were
//! released meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use farhold_txn::{Savepoint, Txn, Worker};

use super::TransactionState;
use crate::engine::error;
use crate::engine::scalar::{Times, wall_clock_us};
use crate::{SqlError, SqlState};

/// Where a COPY returns the transaction that it has borrowed.
#[derive(Default)]
pub(crate) struct Loan {
    back: RefCell<CopyReturn>,
}

/// The state of a borrowed transaction.
#[derive(Default)]
pub(crate) enum CopyReturn {
    /// Not returned yet, or the COPY was dropped.
    #[default]
    Out,
    /// Returned intact.
    Whole(Txn),
    /// Returned after a failure.
    Failed(Option<Txn>),
}

impl Loan {
    /// Gives the transaction back.
    pub(crate) fn give_back(&self, back: CopyReturn) {
        *self.back.borrow_mut() = back;
    }
}

#[allow(clippy::struct_excessive_bools, reason = "they are independent")]
struct Block {
    /// Begun by BEGIN; otherwise it ends with its batch.
    explicit: bool,
    failed: bool,
    /// `None` while it is lent, and in a failed block that cannot be restored.
    txn: Option<Txn>,
    lent: Option<Rc<Loan>>,
    read_only: bool,
    /// Whether a statement has run in it.
    used: bool,
    mark: Mark,
    /// The start time, which is the value of `now()` in it.
    began_us: i64,
    savepoints: Vec<Named>,
}

/// A savepoint, and the state of the transaction at that time.
struct Named {
    name: String,
    savepoint: Savepoint,
    mark: Mark,
    read_only: bool,
}

/// A point in time of a session's transactions. Later marks are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// Changes of a session's transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    /// A transaction has ended, by commit or rollback.
    pub(crate) transaction: bool,
    /// Objects created since this mark are undone.
    pub(crate) undone_since: Option<Mark>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Transaction {
    block: Option<Block>,
    implicit: bool,
    mark: Mark,
    ended: Ended,
}

impl Transaction {
    /// The status for `ReadyForQuery`. An implicit transaction is not shown.
    pub(crate) fn state(&self) -> TransactionState {
        match &self.block {
            Some(block) if block.explicit => {
                let lost = block.lent.as_ref().is_some_and(|loan| !matches!(*loan.back.borrow(), CopyReturn::Whole(_)));
                if block.failed || lost { TransactionState::Failed } else { TransactionState::Open }
            }
            _ => TransactionState::Idle,
        }
    }

    /// Takes back a lent transaction.
    pub(crate) fn reclaim(&mut self) {
        let Some(block) = &mut self.block else { return };
        let Some(loan) = block.lent.take() else { return };
        let back = std::mem::take(&mut *loan.back.borrow_mut());
        match back {
            CopyReturn::Whole(txn) => block.txn = Some(txn),
            CopyReturn::Failed(txn) => {
                block.txn = txn.filter(|_| !block.savepoints.is_empty());
                block.failed = true;
            }
            CopyReturn::Out => block.failed = true,
        }
        if block.failed && !block.explicit {
            self.drop_block();
        }
    }

    /// The latest mark, which new objects get.
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// The changes since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        std::mem::take(&mut self.ended)
    }

    fn next_mark(&mut self) -> Mark {
        self.mark.0 += 1;
        self.mark
    }

    fn open(&mut self, explicit: bool, read_only: bool, worker: &Worker) {
        let txn = if read_only { worker.begin_read_only() } else { worker.begin() };
        let mark = self.next_mark();
        self.block = Some(Block {
            explicit,
            failed: false,
            txn: Some(txn),
            lent: None,
            read_only,
            used: false,
            mark,
            began_us: wall_clock_us(),
            savepoints: Vec::new(),
        });
    }

    fn undone(&mut self, since: Mark) {
        self.ended.undone_since = Some(self.ended.undone_since.map_or(since, |other| other.min(since)));
    }

    /// Begins the transaction of a block anew, unless a statement has run in it.
    pub(crate) fn begin_anew_if_unused(&mut self, worker: &Worker) {
        let is_unused = |block: &&mut Block| !block.used && block.savepoints.is_empty() && block.txn.is_some();
        if let Some(block) = self.block.as_mut().filter(is_unused) {
            block.txn = Some(if block.read_only { worker.begin_read_only() } else { worker.begin() });
        }
    }

    /// Ends the block without a commit.
    fn drop_block(&mut self) -> Option<Block> {
        let block = self.block.take()?;
        self.ended.transaction = true;
        self.undone(block.mark);
        Some(block)
    }

    /// The start times of a statement that begins now, and of its transaction.
    pub(crate) fn times(&self) -> Times {
        let statement_us = wall_clock_us();
        Times { statement_us, transaction_us: self.block.as_ref().map_or(statement_us, |block| block.began_us) }
    }

    /// Lends the open transaction to a COPY.
    pub(crate) fn lend(&mut self) -> Option<(Txn, Rc<Loan>)> {
        let block = self.block.as_mut()?;
        let txn = block.txn.take()?;
        let loan = Rc::new(Loan::default());
        block.lent = Some(Rc::clone(&loan));
        Some((txn, loan))
    }

    pub(crate) fn begin_implicit(&mut self) {
        self.implicit = true;
    }

    /// Called before a statement: opens a transaction if one is needed for the batch.
    pub(crate) fn enter(&mut self, worker: &Worker) {
        if self.implicit && self.block.is_none() {
            self.open(false, false, worker);
        }
        if let Some(block) = &mut self.block {
            block.used = true;
        }
    }

    /// The open transaction.
    pub(crate) fn txn(&mut self) -> Option<&mut Txn> {
        self.block.as_mut().and_then(|block| block.txn.as_mut())
    }

    /// Whether statements run in a transaction that outlives them.
    pub(crate) fn is_open(&self) -> bool {
        self.block.is_some()
    }

    /// Whether the effects of a statement may still be undone: in a block, or in a batch that has no block yet.
    pub(crate) fn is_undecided(&self) -> bool {
        self.block.is_some() || self.implicit
    }

    /// The number of savepoints.
    pub(crate) fn depth(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.savepoints.len())
    }

    /// Whether the block has failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.failed)
    }

    /// Whether the block is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.read_only)
    }

    /// Called after a statement has failed.
    pub(crate) fn fail(&mut self, error: &SqlError) {
        self.reclaim();
        let Some(block) = self.block.as_mut().filter(|block| block.explicit) else {
            self.drop_block();
            self.implicit = false;
            return;
        };
        block.failed = true;
        if block.savepoints.is_empty() || !error::txn_survives(error) {
            block.txn = None;
        }
    }

    /// BEGIN. Returns whether there was no explicit block before. `read_only` is `None` if the statement does not
    /// specify it.
    ///
    /// # Errors
    /// As [`set_read_only`](Self::set_read_only).
    pub(crate) fn begin(&mut self, worker: &Worker, read_only: Option<bool>) -> Result<bool, SqlError> {
        let Some(block) = &mut self.block else {
            self.open(true, read_only.unwrap_or(false), worker);
            return Ok(true);
        };
        // As in PostgreSQL, the preceding statements of the batch become part of the block.
        let is_new = !std::mem::replace(&mut block.explicit, true);
        if let Some(read_only) = read_only {
            self.set_read_only(worker, read_only)?;
        }
        Ok(is_new)
    }

    /// SET TRANSACTION READ ONLY, at any time, or READ WRITE, before the first statement. Outside of a block it has no
    /// effect.
    ///
    /// # Errors
    /// 25001.
    pub(crate) fn set_read_only(&mut self, worker: &Worker, read_only: bool) -> Result<(), SqlError> {
        if self.implicit && self.block.is_none() {
            self.open(false, false, worker);
        }
        let Some(block) = &mut self.block else { return Ok(()) };
        if block.read_only == read_only {
            return Ok(());
        }
        if !read_only && (block.used || !block.savepoints.is_empty()) {
            let message = "transaction read-write mode must be set before any query";
            return Err(SqlError::new(SqlState::ACTIVE_TRANSACTION, message));
        }
        // A transaction that has run statements is kept; from here on, statements that write are refused.
        if !block.used && block.savepoints.is_empty() {
            block.txn = Some(if read_only { worker.begin_read_only() } else { worker.begin() });
        }
        block.read_only = read_only;
        Ok(())
    }

    /// COMMIT. `Ok(true)` if it has committed, `Ok(false)` if it had failed and is rolled back, `None` if there was no
    /// block.
    pub(crate) async fn commit(&mut self) -> Result<Option<bool>, SqlError> {
        // Until the commit succeeds, the block counts as undone.
        let before = self.ended;
        let Some(block) = self.drop_block() else { return Ok(None) };
        if block.failed {
            return Ok(Some(false));
        }
        if let Some(txn) = block.txn {
            txn.commit().await.map_err(|e| error::from_txn(&e))?;
        }
        self.ended = Ended { transaction: true, ..before };
        Ok(block.explicit.then_some(true))
    }

    /// ROLLBACK. Returns whether there was a block.
    pub(crate) fn rollback(&mut self) -> bool {
        self.drop_block().is_some_and(|block| block.explicit)
    }

    /// Called at the end of a batch.
    pub(crate) async fn end_implicit(&mut self) -> Result<(), SqlError> {
        self.reclaim();
        self.implicit = false;
        match &self.block {
            Some(block) if !block.explicit => self.commit().await.map(|_| ()),
            _ => Ok(()),
        }
    }

    /// SAVEPOINT.
    pub(crate) fn savepoint(&mut self, name: String) -> Result<(), SqlError> {
        let mark = self.next_mark();
        let block = self.explicit("SAVEPOINT")?;
        if let Some(txn) = &mut block.txn {
            let savepoint = txn.savepoint();
            block.savepoints.push(Named { name, savepoint, mark, read_only: block.read_only });
        }
        Ok(())
    }

    /// RELEASE: removes the savepoint and all later ones; changes since then stay. Returns the number of those left.
    pub(crate) fn release(&mut self, name: &str) -> Result<usize, SqlError> {
        let block = self.explicit("RELEASE SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|s| s.name == name).ok_or_else(|| no_savepoint(name))?;
        block.savepoints.truncate(at);
        Ok(at)
    }

    /// ROLLBACK TO: undoes all changes since the savepoint, which stays. Returns its index.
    pub(crate) fn rollback_to(&mut self, name: &str) -> Result<usize, SqlError> {
        let block = self.explicit("ROLLBACK TO SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|s| s.name == name).ok_or_else(|| no_savepoint(name))?;
        let Some(txn) = &mut block.txn else {
            return Err(SqlError::new(
                SqlState::SERIALIZATION_FAILURE,
                "the transaction conflicts with another one: a savepoint cannot resolve the conflict",
            )
            .with_hint("Roll back the whole transaction and try it again."));
        };
        let named = &block.savepoints[at];
        let mark = named.mark;
        txn.rollback_to(named.savepoint);
        block.read_only = named.read_only;
        block.savepoints.truncate(at + 1);
        block.failed = false;
        self.undone(mark);
        Ok(at)
    }

    /// Refuses a command that is allowed only in a block begun by BEGIN.
    pub(crate) fn check_explicit(&mut self, command: &str) -> Result<(), SqlError> {
        self.explicit(command).map(|_| ())
    }

    fn explicit(&mut self, command: &str) -> Result<&mut Block, SqlError> {
        self.block.as_mut().filter(|block| block.explicit).ok_or_else(|| {
            let message = format!("{command} can only be used in transaction blocks");
            SqlError::new(SqlState::NO_ACTIVE_TRANSACTION, message)
        })
    }
}

fn no_savepoint(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"))
}
