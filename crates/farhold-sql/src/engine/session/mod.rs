//! One connection.

mod dml;
mod execute;
mod plan;
mod prepare;
mod transaction;
mod utility;

use std::rc::Rc;
use std::sync::Arc;

use farhold_txn::Worker;

use self::transaction::Transaction;
use super::notices::Notices;
use super::query::Unread;
use super::scalar::ParameterTypes;
use super::sequence::{self, SessionNumbers};
use super::settings::Settings;
use super::{CancelHandle, ColumnType, Datum, Engine, Output, Prepared, parse};
use crate::{SqlError, SqlState};

pub(in crate::engine) use execute::{durable_error, unless_doomed};
use plan::Utility;
pub(crate) use plan::{Bound, Plan};
pub(crate) use transaction::{CopyReturn, Ended, Loan, Mark};

/// Where a session stands: `ReadyForQuery`'s `I`, `T` and `E`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Outside of a transaction block.
    Idle,
    /// In a transaction block.
    Open,
    /// In a transaction block that has failed: only ROLLBACK helps.
    Failed,
}

/// One connection: its settings and its transaction. Dropping it rolls back.
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
    /// Forgets which numbers of sequences it has got.
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

    /// The statements of a simple-query string, each as it stands in the text.
    ///
    /// # Errors
    /// 42601.
    pub fn split(sql: &str) -> Result<Vec<String>, SqlError> {
        parse::split(sql)
    }

    /// Whether a statement can be read; what it names is not looked up.
    ///
    /// # Errors
    /// 42601, 0A000, 54000, 54001, 54011.
    pub(crate) fn check_syntax(sql: &str) -> Result<(), SqlError> {
        match sequence::restart(sql)? {
            Some(_) => Ok(()),
            None => parse::parse_one(sql).map(drop),
        }
    }

    /// Parses and binds a statement. `parameter_types` are the types that the client states for `$1`, `$2`, ….
    ///
    /// # Errors
    /// 42601, 42P01, 42703, 42883, 0A000, 25P02.
    pub async fn prepare(
        &mut self,
        sql: &str,
        parameter_types: &[Option<ColumnType>],
    ) -> Result<Rc<Prepared>, SqlError> {
        let _armed = self.cancel.arm();
        if let Some(restart) = sequence::restart(sql)? {
            if self.transaction_state() == TransactionState::Failed {
                return Err(aborted());
            }
            return Ok(Rc::new(Prepared::new(sql, Bound::utility(Utility::RestartSequence(restart)))));
        }
        let statement = parse::parse_one(sql)?;
        if self.transaction_state() == TransactionState::Failed && !prepare::ends_failure(&statement) {
            return Err(aborted());
        }
        let bound = Box::pin(self.bind(statement, sql, &ParameterTypes::stated(parameter_types))).await?;
        Ok(Rc::new(Prepared::new(sql, bound)))
    }

    /// Runs a statement. Each parameter has the type that `prepared` states, or is null.
    ///
    /// Outside of a transaction block the statement has committed when this returns, unless it is part of an implicit
    /// transaction ([`begin_implicit`](Self::begin_implicit)). It is tried again after a conflict with others, as long as
    /// nobody has seen its rows.
    ///
    /// # Errors
    /// Any; an open transaction has failed then, an implicit one is rolled back.
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

    /// The statements until [`end_implicit`](Self::end_implicit) are one implicit transaction (a simple-query string of
    /// several). Not called: each statement commits by itself.
    pub fn begin_implicit(&mut self) {
        self.transaction.begin_implicit();
    }

    /// Ends the implicit transaction of a multi-statement batch: commits it. Nothing to do: nothing happens.
    ///
    /// # Errors
    /// 40001 and whatever a commit can fail with.
    pub async fn end_implicit(&mut self) -> Result<(), SqlError> {
        let mut outcome = self.transaction.end_implicit().await;
        if let Err(error) = outcome {
            outcome = Err(durable_error(error, &self.worker).await);
        }
        match &outcome {
            // A block that the batch has begun goes on.
            Ok(()) if self.transaction.is_open() => {}
            Ok(()) => self.settings.commit(),
            Err(_) => self.settings.rollback(),
        }
        outcome
    }

    /// `ReadyForQuery`'s status.
    #[must_use]
    pub fn transaction_state(&self) -> TransactionState {
        self.transaction.state()
    }

    /// A statement has failed, in the engine, while its rows were read, or outside (encoding, protocol): so has the open transaction. What its user is to
    /// be told: 40001 where the error may come of values that the transaction would not have read if it could commit.
    pub async fn told(&mut self, error: SqlError) -> SqlError {
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

    /// A statement has failed with `error`, which decides whether a savepoint can bring its transaction back.
    pub(crate) fn failed(&mut self, error: &SqlError) {
        self.transaction.fail(error);
        // A savepoint may bring some of the settings back.
        if self.transaction.depth() == 0 {
            self.settings.rollback();
        }
    }

    /// The mark of what the session makes now.
    pub(crate) fn mark(&self) -> Mark {
        self.transaction.mark()
    }

    /// What has happened to its transactions since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        self.transaction.take_ended()
    }

    /// What stops the running statement, from any thread.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The value of a setting, as SHOW tells it.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        if name.eq_ignore_ascii_case("transaction_read_only") {
            return Some(if self.transaction.is_read_only() { "on" } else { "off" }.to_owned());
        }
        self.settings.get(name)
    }

    /// Sets a setting for the session, as SET does (start-up parameters).
    ///
    /// # Errors
    /// 42704, 22023.
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        self.settings.set(name, Some(value))
    }

    /// The client's start-up parameters are set: RESET goes back to them.
    pub(crate) fn started(&mut self) {
        self.settings.started();
    }

    /// Grows with each change of a setting.
    pub(crate) fn settings_version(&self) -> u64 {
        self.settings.version()
    }

    /// Whether a transaction has begun that outlives its statements.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.is_open()
    }

    /// The settings whose value has changed since the last call and that clients are told of (`ParameterStatus`).
    pub fn changed_parameters(&mut self) -> Vec<(String, String)> {
        self.settings.take_changed()
    }

    /// The notices since the last call, oldest first (`NoticeResponse`): a query's once its last batch is out.
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
