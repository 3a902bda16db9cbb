//! Passes the batches of a running query to the session.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use farhold_join::datafusion::fallbacks;
use futures::StreamExt;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::collected;
use super::guard::guard;
use super::numbers::{self, NumberRequests, Requests};
use super::slices::{Sliced, slice};
use crate::engine::cancel::CancelHandle;
use crate::engine::error;
use crate::engine::notices::Notices;
use crate::{SqlError, SqlState};

/// Rows passed to a session at a time.
const ROWS_MAX: usize = 256;

/// Plans and runs the query, and sends every batch. Ends early, without an error, when the receiver is gone.
pub(super) async fn run(
    state: &SessionState,
    plan: LogicalPlan,
    number_requests: &NumberRequests,
    cancel: &CancelHandle,
    notices: &Notices,
    sender: &Sender<Result<RecordBatch, SqlError>>,
) -> Result<(), SqlError> {
    let plan = numbers::attach(plan, number_requests)
        .and_then(|plan| collected::attach(plan, &state.runtime_env().memory_pool, cancel));
    let plan = plan.map_err(|e| error::from_datafusion(&e))?;
    let physical = state
        .query_planner()
        .create_physical_plan(&plan, state)
        .await
        .map_err(|e| error::from_optimizer(&e, super::correlated::has_some(&plan)))?;
    let sliced = guard(physical, cancel).and_then(|physical| slice(physical, state, cancel));
    let Sliced { plan: physical, context, room: _room } = sliced.map_err(|e| error::from_datafusion(&e))?;
    let mut stream = execute_stream(Arc::clone(&physical), context).map_err(|e| error::from_datafusion(&e))?;
    while let Some(batch) = stream.next().await {
        let batch = batch.map_err(|e| error::from_datafusion(&e))?;
        if batch.num_rows() > 0 && sender.send(Ok(batch)).await.is_err() {
            return Ok(());
        }
    }
    for fallback in fallbacks(&physical) {
        notices.push(SqlError::new(SqlState::WARNING, fallback));
    }
    Ok(())
}

/// The queries of a session that have unread rows: their joins keep their memory until the rows are read.
#[derive(Clone, Default)]
pub(crate) struct Unread(Rc<Cell<usize>>);

/// Counts one such query while it is alive.
struct Reading(Unread);

impl Unread {
    /// Whether the session has such queries.
    pub(super) fn any(&self) -> bool {
        self.0.get() > 0
    }

    fn begin(&self) -> Reading {
        self.0.set(self.0.get() + 1);
        Reading(self.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let count = &self.0.0;
        count.set(count.get() - 1);
    }
}

/// Batches of a running query. Dropping it stops the query.
pub(crate) struct BatchStream {
    receiver: Receiver<Result<RecordBatch, SqlError>>,
    requests: Requests,
    task: JoinHandle<()>,
    /// The query's own flag.
    stop: CancelHandle,
    /// The session's flag, armed for the statement that currently waits for rows.
    cancel: CancelHandle,
    /// The rest of the last batch.
    rest: Option<RecordBatch>,
    /// `None` after the last row. A task may be awaited only once, but a cursor may ask again.
    reading: Option<Reading>,
}

impl BatchStream {
    pub(super) fn new(
        receiver: Receiver<Result<RecordBatch, SqlError>>,
        requests: Requests,
        task: JoinHandle<()>,
        stop: CancelHandle,
        cancel: CancelHandle,
        unread: &Unread,
    ) -> Self {
        Self { receiver, requests, task, stop, cancel, rest: None, reading: Some(unread.begin()) }
    }

    /// The next batch, never empty; `None` after the last one, on every further call too.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch, SqlError>> {
        self.reading.as_ref()?;
        // The query threads may all be busy with the query to be stopped, so the session does not wait for them.
        let received = tokio::select! {
            biased;
            () = self.cancel.cancelled() => {
                self.stop.stop_as(&self.cancel);
                self.task.abort();
                return Some(Err(self.cancel.error()));
            }
            received = received(self.rest.take(), &mut self.requests, &mut self.receiver) => received,
        };
        if let Some(received) = received {
            return Some(received.map(|batch| self.first_rows(batch)));
        }
        self.reading = None;
        match (&mut self.task).await {
            Err(e) if e.is_panic() => Some(Err(SqlError::internal("the query failed: a thread panicked"))),
            _ => None,
        }
    }
}

impl BatchStream {
    /// The first rows of a batch. Long rows take long to send, and the flag is checked before each call.
    fn first_rows(&mut self, batch: RecordBatch) -> RecordBatch {
        let rows = batch.num_rows();
        if rows <= ROWS_MAX {
            return batch;
        }
        self.rest = Some(batch.slice(ROWS_MAX, rows - ROWS_MAX));
        batch.slice(0, ROWS_MAX)
    }
}

/// The rest of a batch, or the next batch.
async fn received(
    rest: Option<RecordBatch>,
    requests: &mut Requests,
    receiver: &mut Receiver<Result<RecordBatch, SqlError>>,
) -> Option<Result<RecordBatch, SqlError>> {
    match rest {
        Some(rest) => Some(Ok(rest)),
        None => requests.answer_until(receiver.recv()).await,
    }
}

impl Drop for BatchStream {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}
