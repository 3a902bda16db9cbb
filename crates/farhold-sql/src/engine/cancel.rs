//! Stopping a running statement.
//!
//! A running statement checks one flag: between the steps of a transaction, and in scans once per page. The flag is
//! armed for one statement at a time and carries its number, so a cancel or a time-out that comes too late has no
//! effect.
//!
//! ```text
//!   CancelRequest ─┐                     ┌─► work of the session's thread (Pace)
//!   time-out ──────┼─► session's flag ───┤
//!   client gone ───┘   armed while a     └─► BatchStream::next ─► the query's own flag ─► query threads
//!                      statement runs
//! ```
//! A cursor's query outlives the statement that declared it, and its threads work ahead between two `FETCH`es. So a
//! query has its own flag, which only a statement that waits for its rows can set: a cancel while the session is idle
//! stops no cursor.

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
    /// The statement's number, above two bits of state.
    word: AtomicU32,
    notify: Notify,
}

/// Stops the statement that its session is running, with 57014. It works from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle {
    shared: Arc<Shared>,
}

impl CancelHandle {
    /// Asks the running statement to stop. Without one it does nothing.
    pub fn cancel(&self) {
        self.stop(self.statement(), CANCELLED);
    }

    /// As [`cancel`](Self::cancel), with the message of `statement_timeout`.
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

    /// A flag that stays armed for its whole life, for one query.
    pub(crate) fn running() -> Self {
        let handle = Self::default();
        handle.begin();
        handle
    }

    /// Stops the work that checks this flag, for the reason for which `other` was stopped.
    pub(crate) fn stop_as(&self, other: &Self) {
        let why = (other.shared.word.load(Ordering::Relaxed) & STATE).max(CANCELLED);
        self.stop(self.statement(), why);
    }

    /// The number of the current or last statement.
    fn statement(&self) -> u32 {
        self.shared.word.load(Ordering::Relaxed) >> 2
    }

    /// Arms the flag until the returned guard is dropped. Within another statement's span it changes nothing: the outer
    /// guard disarms.
    ///
    /// Only the session's thread may call it.
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

    /// Whether the running statement must stop.
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

    /// Completes when the running statement must stop.
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

/// Long work on the session's thread, in steps. After every [`STEPS`](Self::STEPS) steps it checks the flag and yields
/// to the thread's other connections and timers.
pub(crate) struct Pace {
    cancel: CancelHandle,
    steps: u32,
}

impl Pace {
    /// Steps between two yields. A step handles one row in some microseconds, so other connections wait about a
    /// millisecond.
    const STEPS: u32 = 256;

    pub(crate) fn new(cancel: &CancelHandle) -> Self {
        Self { cancel: cancel.clone(), steps: 0 }
    }

    /// Counts one step. Returns whether it has yielded.
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
        // The runtime's `yield_now` polls sockets and timers before the task runs again; a task that only wakes itself
        // does not.
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
        // The guard of a nested span neither clears the flag nor ends the outer span.
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
