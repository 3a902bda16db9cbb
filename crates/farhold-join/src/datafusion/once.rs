//! Work that is done once, by its own task, for all streams that wait for it.
//!
//! That task alone wakes every stream that waits, and then ends: a runtime leaves the task that was woken last to the
//! thread that woke it. If one stream woke another before continuing with rows of its own, the other would wait until
//! the first pauses.

use std::future::{Future, poll_fn};
use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::build::panicked;
use super::error::to_datafusion;
use super::memory::lock;

type Outcome<T> = Result<Arc<T>, Arc<DataFusionError>>;

/// The work begins when it is first requested. It ends unfinished when the last clone is dropped.
pub struct Once<T>(Arc<Inner<T>>);

struct Inner<T> {
    stage: Mutex<Stage<T>>,
    end: Arc<Mutex<End<T>>>,
}

enum Stage<T> {
    /// The work has not been requested yet.
    Idle(BoxFuture<'static, Result<T>>),
    /// Set while the task is created; it remains only where there is no runtime for the task.
    Beginning,
    Begun {
        _task: SpawnedTask<()>,
    },
}

/// The outcome that the task leaves.
struct End<T> {
    is_over: bool,
    /// None after the end: the runtime has dropped the task.
    outcome: Option<Outcome<T>>,
    waiting: Vec<Waker>,
}

/// The task's handle on its end, which also reports the end of a task that is dropped.
struct Ending<T>(Option<Arc<Mutex<End<T>>>>);

impl<T> Drop for Ending<T> {
    /// A stream that is woken may be the last holder of the outcome, and expects that the outcome ends with it. The task therefore drops its own reference
    /// first.
    fn drop(&mut self) {
        let Some(all) = self.0.take() else { return };
        let mut end = lock(&all);
        end.is_over = true;
        let waiting = mem::take(&mut end.waiting);
        drop(end);
        drop(all);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Once<T> {
    pub fn new(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let end = Arc::new(Mutex::new(End { is_over: false, outcome: None, waiting: Vec::new() }));
        Self(Arc::new(Inner { stage: Mutex::new(Stage::Idle(work.boxed())), end }))
    }

    pub fn has_ended(&self) -> bool {
        lock(&self.0.end).is_over
    }

    /// Begins the work, which then continues by itself.
    pub fn begin(&self) {
        let mut stage = lock(&self.0.stage);
        let work = match mem::replace(&mut *stage, Stage::Beginning) {
            Stage::Idle(work) => work,
            begun => return *stage = begun,
        };
        let ending = Ending(Some(Arc::clone(&self.0.end)));
        let task = SpawnedTask::spawn(async move {
            let done = AssertUnwindSafe(work).catch_unwind().await;
            let done = done.unwrap_or_else(|panic| Err(to_datafusion(crate::run::panicked(&*panic))));
            if let Some(end) = &ending.0 {
                lock(end).outcome = Some(done.map(Arc::new).map_err(Arc::new));
            }
        });
        *stage = Stage::Begun { _task: task };
    }

    /// The outcome of the work.
    pub async fn get(&self) -> Result<Arc<T>> {
        self.begin();
        let outcome = poll_fn(|context| {
            let mut end = lock(&self.0.end);
            if end.is_over {
                return Poll::Ready(end.outcome.clone());
            }
            if !end.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                end.waiting.push(context.waker().clone());
            }
            Poll::Pending
        });
        let outcome = outcome.await.ok_or_else(|| panicked("its runtime has ended"))?;
        outcome.map_err(DataFusionError::Shared)
    }
}
