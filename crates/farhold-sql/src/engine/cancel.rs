//! Stopping a running statement.
//!
//! A statement in progress looks at one flag: between the steps of a transaction, and in scans once a page. The flag is
//! armed for one statement: a cancel that arrives while nothing runs is forgotten, as PostgreSQL does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

use crate::SqlError;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const CANCELLED: u32 = 2;
const TIMED_OUT: u32 = 3;

#[derive(Debug, Default)]
struct Shared {
    state: AtomicU32,
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
        self.stop(CANCELLED);
    }

    /// As [`cancel`](Self::cancel), in the words of `statement_timeout`.
    pub fn time_out(&self) {
        self.stop(TIMED_OUT);
    }

    fn stop(&self, why: u32) {
        let armed = self.shared.state.compare_exchange(RUNNING, why, Ordering::AcqRel, Ordering::Relaxed);
        if armed.is_ok() {
            self.shared.notify.notify_waiters();
        }
    }

    /// Arms the flag: a statement begins.
    pub(crate) fn begin(&self) {
        self.shared.state.store(RUNNING, Ordering::Release);
    }

    /// Disarms the flag: the statement and its rows are done.
    pub(crate) fn end(&self) {
        self.shared.state.store(IDLE, Ordering::Release);
    }

    /// Whether the running statement shall stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) >= CANCELLED
    }

    /// The error of a statement that was stopped, if it was.
    pub(crate) fn check(&self) -> Result<(), SqlError> {
        match self.shared.state.load(Ordering::Relaxed) {
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
