//! Stopping a running statement.
//!
//! A statement in progress looks at one flag: between the steps of a transaction, and in scans once a page. The flag is
//! armed for one statement at a time and counts them, so a cancel or a time-out that comes too late hits nothing.
//!
//! ```text
//!   CancelRequest ─┐                     ┌─► work of the session's thread (Pace)
//!   time-out ──────┼─► session's flag ───┤
//!   client gone ───┘   armed while a     └─► BatchStream::next ─► the query's own flag ─► query threads
//!                      statement runs
//! ```
//! A query of a cursor outlives the statement that declared it, and its threads work ahead between two `FETCH`es. So a query has
//! a flag of its own, which only a statement that waits for its rows sets: a cancel while the session is idle hits no cursor.

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

    /// A flag that is armed as long as it lives: a query's own.
    pub(crate) fn running() -> Self {
        let handle = Self::default();
        handle.begin();
        handle
    }

    /// Stops what looks at this flag as `other` was stopped.
    pub(crate) fn stop_as(&self, other: &Self) {
        let why = (other.shared.word.load(Ordering::Relaxed) & STATE).max(CANCELLED);
        self.stop(self.statement(), why);
    }

    /// The number of the statement that runs or ran last.
    fn statement(&self) -> u32 {
        self.shared.word.load(Ordering::Relaxed) >> 2
    }

    /// Arms the flag until what this gives is dropped. Within another statement's span nothing changes: that one's end counts.
    ///
    /// To be called by the session's thread alone.
    pub(crate) fn arm(&self) -> Armed {
        if self.shared.word.load(Ordering::Relaxed) & STATE != IDLE {
            return Armed(None);
        }
        self.begin();
        Armed(Some(self.clone()))
    }

    fn begin(&self) {
        let next = self.statement().wrapping_add(1) << 2;
        self.shared.word.store(next | RUNNING, Ordering::Release);
    }

    fn end(&self) {
        self.shared.word.store(self.statement() << 2 | IDLE, Ordering::Release);
    }

    /// Whether the running statement shall stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.word.load(Ordering::Relaxed) & STATE >= CANCELLED
    }

    /// The error of a statement that was stopped, if it was.
    pub(crate) fn check(&self) -> Result<(), SqlError> {
        if self.is_cancelled() { Err(self.error()) } else { Ok(()) }
    }

    /// The error of a statement that was stopped.
    pub(crate) fn error(&self) -> SqlError {
        SqlError::cancelled(match self.shared.word.load(Ordering::Relaxed) & STATE {
            TIMED_OUT => "canceling statement due to statement timeout",
            _ => "canceling statement due to user request",
        })
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

/// The span of a statement; dropping it disarms the flag.
#[derive(Debug)]
#[must_use]
pub(crate) struct Armed(Option<CancelHandle>);

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.end();
        }
    }
}

/// Long work on the session's thread, in steps: every so many of them it looks at the flag and lets the thread's other
/// connections run, and its timers.
pub(crate) struct Pace {
    cancel: CancelHandle,
    steps: u32,
}

impl Pace {
    /// Steps between two looks. A step is a row, some microseconds; so neighbours wait about a millisecond.
    const STEPS: u32 = 256;

    pub(crate) fn new(cancel: &CancelHandle) -> Self {
        Self { cancel: cancel.clone(), steps: 0 }
    }

    /// A step is done. Tells whether it has let others run.
    ///
    /// # Errors
    /// 57014.
    #[inline]
    pub(crate) async fn step(&mut self) -> Result<bool, SqlError> {
        self.steps += 1;
        if self.steps < Self::STEPS {
            return Ok(false);
        }
        self.steps = 0;
        // The runtime's own: it looks at sockets and timers before it goes on, which a task that wakes itself does not ask for.
        tokio::task::yield_now().await;
        self.cancel.check().map(|()| true)
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
        drop(handle.arm());
        handle.cancel();
        assert!(handle.check().is_ok());
        let armed = handle.arm();
        handle.cancel();
        assert_eq!(handle.check().unwrap_err().state.code(), "57014");
        // The span of a part neither clears the flag nor ends the whole.
        drop(handle.arm());
        assert!(handle.is_cancelled());
        drop(armed);
        assert!(!handle.is_cancelled());
    }

    #[test]
    fn a_query_is_stopped_as_its_statement_was() {
        let (session, query) = (CancelHandle::default(), CancelHandle::running());
        let _armed = session.arm();
        session.time_out();
        query.stop_as(&session);
        assert_eq!(query.check().unwrap_err().message, session.check().unwrap_err().message);
    }
}
