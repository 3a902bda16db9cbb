//! One connection.

mod dml;
mod execute;
mod plan;
mod prepare;
mod set_config;
mod transaction;
mod utility;

use std::rc::Rc;
use std::sync::Arc;

use farhold_txn::Worker;

use self::transaction::Transaction;
use super::notices::Notices;
use super::parse::{Parsed, Tree};
use super::query::Unread;
use super::scalar::ParameterTypes;
use super::sequence::SessionNumbers;
use super::settings::Settings;
use super::{CancelHandle, ColumnType, Datum, Engine, Output, Prepared, parse};
use crate::value::Zone;
use crate::{SqlError, SqlState};

pub(in crate::engine) use execute::{durable_error, unless_doomed};
use plan::Utility;
pub(crate) use plan::{Bound, Plan};
pub(crate) use transaction::{CopyReturn, Ended, Loan, Mark};

/// The transaction state of a session: `I`, `T` and `E` of `ReadyForQuery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Outside of a transaction block.
    Idle,
    /// In a transaction block.
    Open,
    /// In a transaction block that has failed: it can only be rolled back.
    Failed,
}

/// One connection, with its settings and its transaction. Dropping it rolls back.
pub struct Session {
    engine: Arc<Engine>,
    worker: Rc<Worker>,
    cancel: CancelHandle,
    settings: Settings,
    numbers: Rc<SessionNumbers>,
    transaction: Transaction,
    notices: Notices,
    unread: Unread,
}

impl Session {
    /// Forgets the sequence numbers that the session has received.
    pub(crate) fn forget_numbers(&self) {
        self.numbers.forget();
    }

    pub(super) fn new(engine: Arc<Engine>, worker: Rc<Worker>, user: &str) -> Self {
        Self {
            engine,
            worker,
            cancel: CancelHandle::default(),
            settings: Settings::new(user),
            numbers: Rc::default(),
            transaction: Transaction::default(),
            notices: Notices::default(),
            unread: Unread::default(),
        }
    }

    /// The statements of a simple-query string, each as written.
    ///
    /// # Errors
    /// 42601.
    pub fn split(sql: &str) -> Result<Vec<String>, SqlError> {
        parse::split(sql)
    }

    /// Parses and binds a statement. `parameter_types` are the types that the client declares for `$1`, `$2`, ….
    ///
    /// # Errors
    /// 42601, 42P01, 42703, 42883, 0A000, 25P02.
    pub async fn prepare(
        &mut self,
        sql: &str,
        parameter_types: &[Option<ColumnType>],
    ) -> Result<Rc<Prepared>, SqlError> {
        let _armed = self.cancel.arm();
        self.prepare_parsed(Parsed::new(sql)?, parameter_types).await
    }

    /// As [`prepare`](Self::prepare), of a statement that is parsed already.
    ///
    /// # Errors
    /// 42P01, 42703, 42883, 0A000, 25P02.
    pub(crate) async fn prepare_parsed(
        &mut self,
        parsed: Parsed,
        parameter_types: &[Option<ColumnType>],
    ) -> Result<Rc<Prepared>, SqlError> {
        let _armed = self.cancel.arm();
        let failed = self.transaction_state() == TransactionState::Failed;
        let bound = match parsed.tree() {
            Tree::RestartSequence(_) if failed => return Err(aborted()),
            Tree::RestartSequence(restart) => Bound::utility(Utility::RestartSequence(restart.clone())),
            Tree::Statement(statement) if failed && !prepare::ends_failure(statement) => return Err(aborted()),
            Tree::Statement(statement) => {
                let types = ParameterTypes::stated(parameter_types);
                Box::pin(self.bind(statement, &parsed.origin(), &types)).await?
            }
        };
        Ok(Rc::new(Prepared::new(parsed, bound)))
    }

    /// Executes a statement. Each parameter must have the type in `prepared`, or be NULL.
    ///
    /// Outside of a transaction block the statement has committed when this returns, unless it is part of an implicit
    /// transaction ([`begin_implicit`](Self::begin_implicit)). It is retried after a conflict, as long as no row of its
    /// result has been returned.
    ///
    /// # Errors
    /// Any error; then an open transaction has failed, and an implicit one is rolled back.
    pub async fn execute(&mut self, prepared: &Rc<Prepared>, parameters: &[Datum]) -> Result<Output, SqlError> {
        let armed = self.cancel.arm();
        let mut outcome = self.run(prepared, parameters).await;
        if let Err(error) = outcome {
            outcome = Err(durable_error(error, &self.worker).await);
        }
        match &mut outcome {
            Ok(Output::Rows(super::Rows::Batches(rows))) => rows.hold(armed),
            Ok(Output::CopyIn(copy)) => copy.hold(armed),
            Ok(Output::CopyOut(copy)) => copy.hold(armed),
            Ok(_) => {}
            Err(error) => self.failed(error),
        }
        outcome
    }

    /// Makes the statements until [`end_implicit`](Self::end_implicit) one implicit transaction (for a simple-query
    /// string of several statements). Otherwise each statement commits separately.
    pub fn begin_implicit(&mut self) {
        self.transaction.begin_implicit();
    }

    /// Commits the implicit transaction of a batch of statements. Without one it does nothing.
    ///
    /// # Errors
    /// 40001, and every other error of a commit.
    pub async fn end_implicit(&mut self) -> Result<(), SqlError> {
        let mut outcome = self.transaction.end_implicit().await;
        if let Err(error) = outcome {
            outcome = Err(durable_error(error, &self.worker).await);
        }
        match &outcome {
            // A block that the batch has begun stays open.
            Ok(()) if self.transaction.is_open() => {}
            Ok(()) => self.settings.commit(),
            Err(_) => self.settings.rollback(),
        }
        outcome
    }

    /// The status for `ReadyForQuery`.
    #[must_use]
    pub fn transaction_state(&self) -> TransactionState {
        self.transaction.state()
    }

    /// Reports that a statement has failed in the engine, while its rows were read, or outside (encoding, protocol); so
    /// an open transaction has failed too. Returns the error for the client: 40001 if the error may come from values
    /// that the transaction would not have read if it could commit.
    pub async fn report_error(&mut self, error: SqlError) -> SqlError {
        let error = match self.transaction.txn() {
            Some(txn) => unless_doomed(error, txn).await,
            None => error,
        };
        if error.state == SqlState::SERIALIZATION_FAILURE {
            self.failed(&error);
        } else {
            self.failed(&SqlError::cancelled("the statement failed"));
        }
        error
    }

    /// Reports that a statement has failed with `error`, which decides whether a savepoint can restore its transaction.
    pub(crate) fn failed(&mut self, error: &SqlError) {
        self.transaction.fail(error);
        // Rolling back to a savepoint may restore some of the settings.
        if self.transaction.depth() == 0 {
            self.settings.rollback();
        }
    }

    /// The mark of objects that the session creates now.
    pub(crate) fn mark(&self) -> Mark {
        self.transaction.mark()
    }

    /// What has happened to the session's transactions since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        self.transaction.take_ended()
    }

    /// A handle that stops the running statement, from any thread.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The value of a setting, in the format of SHOW.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        if name.eq_ignore_ascii_case("transaction_read_only") {
            return Some(if self.transaction.is_read_only() { "on" } else { "off" }.to_owned());
        }
        self.settings.get(name)
    }

    /// Sets a setting for the session, as SET does (for start-up parameters).
    ///
    /// # Errors
    /// 42704, 22023.
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        self.settings.set(name, Some(value))
    }

    /// Marks the end of the client's start-up parameters, to which RESET returns.
    pub(crate) fn started(&mut self) {
        self.settings.started();
    }

    /// The session's time zone.
    #[must_use]
    pub fn zone(&self) -> Zone {
        self.settings.zone()
    }

    /// A counter that grows with each change of a setting.
    pub(crate) fn settings_version(&self) -> u64 {
        self.settings.version()
    }

    /// Whether a transaction is open that outlives its statements.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.is_open()
    }

    /// The reported settings (`ParameterStatus`) that have changed since the last call.
    pub fn changed_parameters(&mut self) -> Vec<(String, String)> {
        self.settings.take_changed()
    }

    /// The notices since the last call, oldest first (`NoticeResponse`). Those of a query are complete after its last
    /// batch.
    pub fn notices(&mut self) -> Vec<SqlError> {
        self.notices.take()
    }

    /// # Errors
    /// 25P02 in a block that has failed.
    pub(crate) fn check_not_failed(&self) -> Result<(), SqlError> {
        if self.transaction_state() == TransactionState::Failed { Err(aborted()) } else { Ok(()) }
    }

    fn warn(&mut self, state: SqlState, message: impl Into<String>) {
        self.notices.push(SqlError::new(state, message));
    }
}

/// 25P02.
fn aborted() -> SqlError {
    SqlError::new(
        SqlState::IN_FAILED_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}
