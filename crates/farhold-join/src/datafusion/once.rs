//! Work that is done once, by a task of its own, for all the streams that wait for it.
//!
//! Every stream that waits is woken by that task alone, which ends with it: a runtime leaves the task that was woken last to the thread that woke
//! it. Were one stream to wake another before it goes on with rows of its own, the other would wait until that one is made to pause.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::build::panicked;
use super::error::to_datafusion;
use super::memory::lock;

type Outcome<T> = Result<Arc<T>, Arc<DataFusionError>>;

/// Begins when it is wanted first. Ends unfinished when the last clone is dropped.
pub struct Once<T>(Arc<Inner<T>>);

struct Inner<T> {
    state: Mutex<State<T>>,
    outcome: watch::Receiver<Option<Outcome<T>>>,
}

enum State<T> {
    Waiting(BoxFuture<'static, Result<T>>, watch::Sender<Option<Outcome<T>>>),
    Begun {
        _task: SpawnedTask<()>,
    },
    /// For the moment in which the task is made; left behind only where there is no runtime to make it in.
    Beginning,
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Once<T> {
    pub fn new(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let (sender, outcome) = watch::channel(None);
        Self(Arc::new(Inner { state: Mutex::new(State::Waiting(work.boxed(), sender)), outcome }))
    }

    pub fn has_ended(&self) -> bool {
        self.0.outcome.borrow().is_some()
    }

    /// From here on it goes on by itself.
    pub fn begin(&self) {
        let mut state = lock(&self.0.state);
        let (work, sender) = match std::mem::replace(&mut *state, State::Beginning) {
            State::Waiting(work, sender) => (work, sender),
            begun => return *state = begun,
        };
        let task = SpawnedTask::spawn(async move {
            let done = AssertUnwindSafe(work).catch_unwind().await;
            let done = done.unwrap_or_else(|panic| Err(to_datafusion(crate::run::panicked(&*panic))));
            sender.send_replace(Some(done.map(Arc::new).map_err(Arc::new)));
        });
        *state = State::Begun { _task: task };
    }

    /// What came of it.
    pub async fn get(&self) -> Result<Arc<T>> {
        self.begin();
        let mut outcome = self.0.outcome.clone();
        let outcome = outcome.wait_for(Option::is_some).await.map_err(|_| panicked("its runtime has ended"))?;
        outcome.clone().expect("waited for").map_err(DataFusionError::Shared)
    }
}
