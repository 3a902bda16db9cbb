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

use std::cell::RefCell;
use std::rc::Rc;

use farhold_txn::{Savepoint, Txn, Worker};

use super::TransactionState;
use crate::engine::error;
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
    savepoints: Vec<(String, Savepoint)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Transaction {
    block: Option<Block>,
    implicit: bool,
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
            self.block = None;
        }
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
            self.block = Some(Block::new(false, worker.begin(), false));
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
        let Some(block) = &mut self.block else { return };
        if !block.explicit {
            self.block = None;
            self.implicit = false;
            return;
        }
        block.failed = true;
        if block.savepoints.is_empty() || !error::txn_survives(error) {
            block.txn = None;
        }
    }

    /// BEGIN; whether there was no block before.
    pub(crate) fn begin(&mut self, worker: &Worker, read_only: bool) -> bool {
        match &mut self.block {
            Some(block) if block.explicit => false,
            Some(block) => {
                // The statements of the batch before it are part of the block, as in PostgreSQL.
                block.explicit = true;
                true
            }
            None => {
                let txn = if read_only { worker.begin_read_only() } else { worker.begin() };
                self.block = Some(Block::new(true, txn, read_only));
                true
            }
        }
    }

    /// SET TRANSACTION READ ONLY: only before anything was read or written. Outside of a block it means nothing.
    pub(crate) fn set_read_only(&mut self, worker: &Worker) -> bool {
        let Some(block) = &mut self.block else { return true };
        if block.used {
            return block.read_only;
        }
        block.txn = Some(worker.begin_read_only());
        block.read_only = true;
        true
    }

    /// COMMIT. `Ok(true)`: it has committed; `Ok(false)`: it had failed and is rolled back. `None`: there was none.
    pub(crate) async fn commit(&mut self) -> Result<Option<bool>, SqlError> {
        let Some(block) = self.block.take() else { return Ok(None) };
        let explicit = block.explicit;
        if block.failed {
            return Ok(Some(false));
        }
        if let Some(txn) = block.txn {
            txn.commit().await.map_err(|e| error::from_txn(&e))?;
        }
        Ok(explicit.then_some(true))
    }

    /// ROLLBACK; whether there was a block.
    pub(crate) fn rollback(&mut self) -> bool {
        self.block.take().is_some_and(|block| block.explicit)
    }

    /// The end of a batch.
    pub(crate) async fn end_implicit(&mut self) -> Result<(), SqlError> {
        self.reclaim();
        self.implicit = false;
        match self.block.take_if(|block| !block.explicit) {
            Some(Block { txn: Some(txn), .. }) => txn.commit().await.map(|_| ()).map_err(|e| error::from_txn(&e)),
            _ => Ok(()),
        }
    }

    /// SAVEPOINT.
    pub(crate) fn savepoint(&mut self, name: String) -> Result<(), SqlError> {
        let block = self.explicit("SAVEPOINT")?;
        if let Some(txn) = &mut block.txn {
            let savepoint = txn.savepoint();
            block.savepoints.push((name, savepoint));
        }
        Ok(())
    }

    /// RELEASE: the savepoint and all after it are gone, what was done since stays.
    pub(crate) fn release(&mut self, name: &str) -> Result<(), SqlError> {
        let block = self.explicit("RELEASE SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|(n, _)| n == name).ok_or_else(|| no_savepoint(name))?;
        block.savepoints.truncate(at);
        Ok(())
    }

    /// ROLLBACK TO: what was done since is undone, the savepoint stays.
    pub(crate) fn rollback_to(&mut self, name: &str) -> Result<(), SqlError> {
        let block = self.explicit("ROLLBACK TO SAVEPOINT")?;
        let at = block.savepoints.iter().rposition(|(n, _)| n == name).ok_or_else(|| no_savepoint(name))?;
        let Some(txn) = &mut block.txn else {
            return Err(SqlError::new(
                SqlState::SERIALIZATION_FAILURE,
                "the transaction conflicts with another one: no savepoint can bring it back",
            )
            .with_hint("Roll back the whole transaction and try it again."));
        };
        txn.rollback_to(block.savepoints[at].1);
        block.savepoints.truncate(at + 1);
        block.failed = false;
        Ok(())
    }

    fn explicit(&mut self, command: &str) -> Result<&mut Block, SqlError> {
        self.block.as_mut().filter(|block| block.explicit).ok_or_else(|| {
            let message = format!("{command} can only be used in transaction blocks");
            SqlError::new(SqlState::NO_ACTIVE_TRANSACTION, message)
        })
    }
}

impl Block {
    fn new(explicit: bool, txn: Txn, read_only: bool) -> Self {
        Self { explicit, failed: false, txn: Some(txn), lent: None, read_only, used: false, savepoints: Vec::new() }
    }
}

fn no_savepoint(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"))
}
