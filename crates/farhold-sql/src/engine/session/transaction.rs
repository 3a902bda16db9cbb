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
//! A failed transaction is dropped at once, so that it keeps nothing from others, unless a savepoint may bring it back.
//! A COPY borrows the transaction while its data comes in.
//!
//! Each block and each savepoint has a [`Mark`], and marks only grow: what a session has made under a mark of at least that of
//! a savepoint was made after it. So a ROLLBACK TO knows the cursors that it takes along, whatever was released meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use farhold_txn::{Savepoint, Txn, Worker};

use super::TransactionState;
use crate::engine::error;
use crate::engine::scalar::{Times, wall_clock_us};
use crate::{SqlError, SqlState};

/// Where a COPY puts the transaction that it had borrowed.
#[derive(Default)]
pub(crate) struct Loan {
    back: RefCell<CopyReturn>,
}

/// What came back of a borrowed transaction.
#[derive(Default)]
pub(crate) enum CopyReturn {
    /// Nothing yet, or the COPY was dropped.
    #[default]
    Out,
    /// All is well.
    Whole(Txn),
    /// The COPY failed.
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
    /// By BEGIN; else it ends with its batch.
    explicit: bool,
    failed: bool,
    /// `None` in a failed block without a way back, and while it is lent.
    txn: Option<Txn>,
    lent: Option<Rc<Loan>>,
    read_only: bool,
    /// A statement has run in it.
    used: bool,
    mark: Mark,
    /// When it began: what `now()` says in it.
    began_us: i64,
    savepoints: Vec<Named>,
}

/// A savepoint and what its transaction was then.
struct Named {
    name: String,
    savepoint: Savepoint,
    mark: Mark,
    read_only: bool,
}

/// A moment of a session's transactions. Later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// What has happened to a session's transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    /// A transaction has ended, well or not.
    pub(crate) transaction: bool,
    /// What was made since this mark is undone.
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
    /// `ReadyForQuery`'s status. An implicit transaction is nobody's business.
    pub(crate) fn state(&self) -> TransactionState {
        match &self.block {
            Some(block) if block.explicit => {
                let lost = block.lent.as_ref().is_some_and(|loan| !matches!(*loan.back.borrow(), CopyReturn::Whole(_)));
                if block.failed || lost { TransactionState::Failed } else { TransactionState::Open }
            }
            _ => TransactionState::Idle,
        }
    }

    /// Takes back what was lent.
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

    /// The latest mark: that of what is made now.
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// What has happened since the last call.
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

    /// The block ends without a commit.
    fn drop_block(&mut self) -> Option<Block> {
        let block = self.block.take()?;
        self.ended.transaction = true;
        self.undone(block.mark);
        Some(block)
    }

    /// When a statement that begins now, and its transaction, began.
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

    /// Before a statement: within a batch there is a transaction.
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

    /// Whether what a statement does may yet be undone: in a block, or in a batch that has no block yet.
    pub(crate) fn is_undecided(&self) -> bool {
        self.block.is_some() || self.implicit
    }

    /// How many savepoints there are.
    pub(crate) fn depth(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.savepoints.len())
    }

    /// Whether it is a block that failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.failed)
    }

    /// Whether it is a block of BEGIN … READ ONLY.
    pub(crate) fn is_read_only(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.read_only)
    }

    /// A statement failed.
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

    /// BEGIN; whether there was no block before. `read_only` is `None` if the statement does not say.
    ///
    /// # Errors
    /// As [`set_read_only`](Self::set_read_only).
    pub(crate) fn begin(&mut self, worker: &Worker, read_only: Option<bool>) -> Result<bool, SqlError> {
        let Some(block) = &mut self.block else {
            self.open(true, read_only.unwrap_or(false), worker);
            return Ok(true);
        };
        // The statements of the batch before it are part of the block, as in PostgreSQL.
        let is_new = !std::mem::replace(&mut block.explicit, true);
        if let Some(read_only) = read_only {
            self.set_read_only(worker, read_only)?;
        }
        Ok(is_new)
    }

    /// SET TRANSACTION READ ONLY, at any time, or READ WRITE, before anything was read. Outside of a block it means nothing.
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
        // A transaction that has read is kept: statements that write are refused from here on.
        if !block.used && block.savepoints.is_empty() {
            block.txn = Some(if read_only { worker.begin_read_only() } else { worker.begin() });
        }
        block.read_only = read_only;
        Ok(())
    }

    /// COMMIT. `Ok(true)`: it has committed; `Ok(false)`: it had failed and is rolled back. `None`: there was none.
    pub(crate) async fn commit(&mut self) -> Result<Option<bool>, SqlError> {
        // Until it has committed it counts as undone.
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

    /// ROLLBACK; whether there was a block.
    pub(crate) fn rollback(&mut self) -> bool {
        self.drop_block().is_some_and(|block| block.explicit)
    }

    /// The end of a batch.
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

    /// RELEASE: the savepoint and all after it are gone, what was done since stays. Gives the number of those that are left.
    pub(crate) fn release(&mut self, name: &str) -> Result<usize, SqlError> {
        let block = self.explicit("RELEASE SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|s| s.name == name).ok_or_else(|| no_savepoint(name))?;
        block.savepoints.truncate(at);
        Ok(at)
    }

    /// ROLLBACK TO: what was done since is undone, the savepoint stays. Gives its place.
    pub(crate) fn rollback_to(&mut self, name: &str) -> Result<usize, SqlError> {
        let block = self.explicit("ROLLBACK TO SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|s| s.name == name).ok_or_else(|| no_savepoint(name))?;
        let Some(txn) = &mut block.txn else {
            return Err(SqlError::new(
                SqlState::SERIALIZATION_FAILURE,
                "the transaction conflicts with another one: no savepoint can bring it back",
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

    /// Refuses a command that has a meaning only in a block that BEGIN has begun.
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
