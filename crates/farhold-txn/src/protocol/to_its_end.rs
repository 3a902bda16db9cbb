//! Work that completes although its caller is gone: the part of a commit past its commit point, a change of tables.

use crate::base::error::TxnError;
use crate::protocol::core::Core;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What is to be done.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = Result<T, TxnError>>>>;

/// The caller does the work while it polls this. The executor goes on with it once this is dropped, or is told that it takes too long: then
/// the outcome is unknown to the caller.
pub(crate) struct ToItsEnd<T: 'static> {
    work: Option<Work<T>>,
    core: Rc<Core>,
    until_ns: u64,
}

impl<T: 'static> ToItsEnd<T> {
    /// The node may be cut off, and never hear what has become of it: so the caller waits until `until_ns`.
    pub fn of(core: &Rc<Core>, work: Work<T>, until_ns: u64) -> Self {
        Self { work: Some(work), core: core.clone(), until_ns }
    }
}

impl<T: 'static> Future for ToItsEnd<T> {
    type Output = Result<T, TxnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("not polled again after its end");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        } else if self.core.handle.now_ns() >= self.until_ns && !planted!(OutcomeWaitedFor) {
            // What waits here looks again by itself every few microseconds, so this comes in time.
            return Poll::Ready(Err(TxnError::OutcomeUnknown));
        }
        done
    }
}

impl<T: 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.core.leave(async move { drop(work.await) });
        }
    }
}
