//! Stopping a running statement.
//!
//! A statement in progress looks at one flag: between the steps of a transaction, and in scans once a page. The flag is
//! armed for one statement at a time and counts them, so a cancel or a time-out that comes too late hits nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

use crate::SqlError;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const CANCELLED: u32 = 2;
const TIMED_OUT: u32 = 3;
const STATE: u32 = 3;

#[derive(Debug, Default)]
struct Shared {
    /// The statement's number, then two bits of state.
    word: AtomicU32,
    notify: Notify,
}

/// Stops the statement that its session is running, with 57014; from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle {
    shared: Arc<Shared>,
}

impl CancelHandle {
    /// Asks the running statement to stop. Nothing runs: nothing happens.
    pub fn cancel(&self) {
        self.stop(self.statement(), CANCELLED);
    }

    /// As [`cancel`](Self::cancel), in the words of `statement_timeout`.
    pub fn time_out(&self) {
        self.stop(self.statement(), TIMED_OUT);
    }

    fn stop(&self, statement: u32, why: u32) {
        let word = &self.shared.word;
        let running = statement << 2 | RUNNING;
        if word.compare_exchange(running, statement << 2 | why, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.shared.notify.notify_waiters();
        }
    }

    /// The number of the statement that runs or ran last.
    pub(crate) fn statement(&self) -> u32 {
        self.shared.word.load(Ordering::Relaxed) >> 2
    }

    /// Arms the flag: a statement begins.
    pub(crate) fn begin(&self) {
        let next = self.statement().wrapping_add(1) << 2;
        self.shared.word.store(next | RUNNING, Ordering::Release);
    }

    /// Disarms the flag if the statement of this number is still the one.
    pub(crate) fn end_statement(&self, statement: u32) {
        let word = &self.shared.word;
        let seen = word.load(Ordering::Relaxed);
        if seen >> 2 == statement {
            let _ = word.compare_exchange(seen, statement << 2 | IDLE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Disarms the flag: the statement is done.
    pub(crate) fn end(&self) {
        self.end_statement(self.statement());
    }

    /// Whether the running statement shall stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.word.load(Ordering::Relaxed) & STATE >= CANCELLED
    }

    /// The error of a statement that was stopped, if it was.
    pub(crate) fn check(&self) -> Result<(), SqlError> {
        match self.shared.word.load(Ordering::Relaxed) & STATE {
            CANCELLED => Err(SqlError::cancelled("canceling statement due to user request")),
            TIMED_OUT => Err(SqlError::cancelled("canceling statement due to statement timeout")),
            _ => Ok(()),
        }
    }

    /// Completes when the running statement shall stop.
    pub(crate) async fn cancelled(&self) {
        loop {
            let notified = self.shared.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_cancel_hits_nothing() {
        let handle = CancelHandle::default();
        handle.cancel();
        assert!(handle.check().is_ok());
        handle.begin();
        let first = handle.statement();
        handle.end();
        handle.begin();
        handle.cancel();
        assert_eq!(handle.check().unwrap_err().state.code(), "57014");
        handle.end_statement(first);
        assert!(handle.is_cancelled());
        handle.end();
        assert!(!handle.is_cancelled());
    }
}
