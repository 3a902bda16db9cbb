//! One connection.

use std::rc::Rc;
use std::sync::Arc;

use super::{CancelHandle, ColumnType, Datum, Engine, Output, Prepared, Worker};
use crate::SqlError;

/// Where a session stands: ReadyForQuery's `I`, `T` and `E`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Outside of a transaction block.
    Idle,
    /// In a transaction block.
    Open,
    /// In a transaction block that has failed: only ROLLBACK helps.
    Failed,
}

/// One connection: its settings, its transaction, its cursors. Dropping it rolls back.
pub struct Session {
    #[allow(dead_code)]
    engine: Arc<Engine>,
    #[allow(dead_code)]
    worker: Rc<Worker>,
    cancel: CancelHandle,
}

impl Session {
    pub(super) fn new(engine: Arc<Engine>, worker: Rc<Worker>, user: &str) -> Self {
        let _ = user;
        Self { engine, worker, cancel: CancelHandle::default() }
    }

    /// The statements of a simple-query string, each as it stands in the text.
    ///
    /// # Errors
    /// 42601.
    pub fn split(sql: &str) -> Result<Vec<String>, SqlError> {
        Ok(vec![sql.to_owned()])
    }

    /// Parses and binds a statement. `parameter_types` are the types that the client states for `$1`, `$2`, ….
    ///
    /// # Errors
    /// 42601, 42P01, 42703, 42883, 0A000, 25P02.
    #[allow(clippy::unused_async)]
    pub async fn prepare(
        &mut self,
        sql: &str,
        parameter_types: &[Option<ColumnType>],
    ) -> Result<Rc<Prepared>, SqlError> {
        let _ = (sql, parameter_types);
        Err(SqlError::unsupported("this statement"))
    }

    /// Runs a statement. Each parameter has the type that `prepared` states, or is null.
    ///
    /// A statement outside of a transaction block commits at [`end_implicit`](Self::end_implicit) or when the next one begins if it was
    /// started by [`begin_implicit`](Self::begin_implicit), else before this returns.
    ///
    /// # Errors
    /// Any; an open transaction has failed then, an implicit one is rolled back.
    #[allow(clippy::unused_async)]
    pub async fn execute(&mut self, prepared: &Rc<Prepared>, parameters: &[Datum]) -> Result<Output, SqlError> {
        let _ = (prepared, parameters);
        Err(SqlError::unsupported("this statement"))
    }

    /// The statements until [`end_implicit`](Self::end_implicit) are one implicit transaction (a simple-query string of several).
    /// Not called: each statement commits by itself.
    pub fn begin_implicit(&mut self) {}

    /// Ends the implicit transaction of a multi-statement batch: commits it. Nothing to do: nothing happens.
    ///
    /// # Errors
    /// 40001 and whatever a commit can fail with.
    #[allow(clippy::unused_async)]
    pub async fn end_implicit(&mut self) -> Result<(), SqlError> {
        Ok(())
    }

    /// ReadyForQuery's status.
    #[must_use]
    pub fn transaction_state(&self) -> TransactionState {
        TransactionState::Idle
    }

    /// An error outside of the engine (encoding, protocol): the open transaction has failed.
    pub fn fail_transaction(&mut self) {}

    /// What stops the running statement, from any thread.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The value of a setting, as SHOW tells it.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// Sets a setting for the session, as SET does (start-up parameters).
    ///
    /// # Errors
    /// 42704, 22023.
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        let _ = (name, value);
        Ok(())
    }

    /// The settings whose value has changed since the last call and that clients are told of (ParameterStatus).
    pub fn changed_parameters(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The notices since the last call, oldest first (NoticeResponse).
    pub fn notices(&mut self) -> Vec<SqlError> {
        Vec::new()
    }
}
