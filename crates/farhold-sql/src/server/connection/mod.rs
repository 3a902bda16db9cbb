//! One connection, from its first byte to its last.
//!
//! ```text
//!  opening ──TLS?──► start-up ──► authentication ──► ready ◄──────────────┐
//!     │ cancel request                                 │ messages          │ Sync, end of a simple query
//!     ▼                                                ▼                   │
//!   end                                   error: skip until Sync ──────────┘
//! ```
//! There are three kinds of failures ([`Failure`]): of a statement (the client gets an error and continues), of the
//! connection (the client gets an error and the connection ends), and the loss of the client (there is no receiver for
//! an error). When the connection ends, its session is dropped, which rolls its transaction back.

mod command;
mod copy;
mod extended;
#[cfg(test)]
mod panics;
mod portal;
mod run;
mod simple;
mod socket;
mod startup;
mod statement;
mod wire;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;

use crate::engine::{CancelHandle, Session, TransactionState};
use crate::error::{SqlError, SqlState};

use super::acceptor::{Arrival, Place};
use super::cancel::Registration;
use super::front_end::FrontEnd;
use super::wire::backend::{Severity, Status};
use super::wire::input::Frame;
use portal::Portals;
use socket::Socket;
use statement::Statements;
use wire::{Watch, Wire};

/// Why an operation was not completed.
#[derive(Debug)]
pub enum Failure {
    /// The statement has failed.
    Statement(SqlError),
    /// The connection ends, after an error to the client.
    Fatal(SqlError),
    /// The client has disconnected.
    Gone,
}

impl Failure {
    fn shutdown() -> Self {
        let message = "terminating connection due to administrator command";
        Self::Fatal(SqlError::new(SqlState::ADMIN_SHUTDOWN, message))
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Self::Statement(error)
    }
}

/// A connection with an open session.
struct Connection {
    wire: Wire,
    front_end: FrontEnd,
    session: Session,
    cancel: CancelHandle,
    statements: Statements,
    portals: Portals,
    /// After an error in the extended protocol, all messages until Sync are skipped.
    skips_until_sync: bool,
    /// Whether the statements since the last Sync form one implicit transaction.
    is_batch: bool,
    /// Whether the client waits for the buffered output.
    flush_wanted: bool,
    settings: Settings,
    /// The session's version of these settings.
    settings_version: u64,
    /// The entry by which `CancelRequest` finds the session.
    _registration: Registration,
    /// Dropped at the end.
    _place: Place,
}

/// The session's settings that the connection itself applies.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    statement_time: Option<Duration>,
    silence_in_transaction: Option<Duration>,
    silence: Option<Duration>,
}

/// Serves a connection to its end.
pub async fn serve(front_end: FrontEnd, arrival: Arrival) {
    let Arrival { socket, place, opening: opens } = arrival;
    let Ok(socket) = Socket::new(socket) else { return };
    let timeout = front_end.shared.config.limits.startup_timeout;
    let opening = startup::open(&front_end, socket, place);
    // As in PostgreSQL, a client that does not authenticate in time gets no message.
    let opened = tokio::time::timeout(timeout, opening);
    let opened = match opens {
        None => opened.await,
        Some(mut opens) => tokio::select! {
            biased;
            opened = opened => opened,
            () = opens.displaced() => return,
        },
    };
    let Ok(Some(mut connection)) = opened else { return };
    let failure = connection.run().await;
    connection.end(failure).await;
}

impl Connection {
    async fn run(&mut self) -> Failure {
        loop {
            if let Err(failure) = self.turn().await {
                return failure;
            }
        }
    }

    /// Answers every complete message that has arrived, then waits for more.
    async fn turn(&mut self) -> Result<(), Failure> {
        while let Some(frame) = self.wire.frame()? {
            match AssertUnwindSafe(self.answer(&frame)).catch_unwind().await {
                Ok(answered) => answered?,
                Err(panic) => self.after_panic(frame.tag, panic.as_ref()).await?,
            }
            self.wire.input.release();
            self.wire.flush_if_full().await?;
        }
        self.flush_if_wanted().await?;
        self.wait().await
    }

    async fn flush_if_wanted(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.flush_wanted) { self.wire.flush().await } else { Ok(()) }
    }

    async fn answer(&mut self, frame: &Frame) -> Result<(), Failure> {
        match frame.tag {
            b'X' => return Err(Failure::Gone),
            b'S' => self.sync().await?,
            _ if self.skips_until_sync => {}
            b'Q' => self.simple_query(frame).await?,
            // The rest of a COPY that has failed.
            b'd' | b'c' | b'f' => {}
            b'p' => return Err(super::wire::Malformed("unexpected password message").into()),
            b'F' => self.function_call().await?,
            _ => self.extended(frame).await?,
        }
        Ok(())
    }

    /// A panic is a bug, and fails its statement like any other error: the client keeps its session. Unwinding has
    /// dropped what the statement held; its transaction is lost, in spite of savepoints.
    async fn after_panic(&mut self, tag: u8, panic: &(dyn Any + Send)) -> Result<(), Failure> {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("internal error: panic in the statement: {}", text.unwrap_or("without a message"));
        let error = SqlError::internal(message);
        self.wire.output.drop_unfinished();
        self.session.failed(&error);
        self.statement_failed(error).await;
        match tag {
            b'Q' | b'F' | b'S' => {
                self.finish_batch(true).await?;
                self.ready();
            }
            _ => self.skips_until_sync = true,
        }
        Ok(())
    }

    /// Waits for the client, within the idle time limits.
    async fn wait(&mut self) -> Result<(), Failure> {
        let (limit, state, message) = match self.session.transaction_state() {
            TransactionState::Idle => {
                let limit = self.settings.silence.or(self.front_end.shared.config.limits.idle_timeout);
                (limit, SqlState::IDLE_SESSION_TIMEOUT, "terminating connection due to idle-session timeout")
            }
            _ => (
                self.settings.silence_in_transaction,
                SqlState::IDLE_IN_TRANSACTION_TIMEOUT,
                "terminating connection due to idle-in-transaction timeout",
            ),
        };
        let stopping = std::rc::Rc::clone(&self.front_end.stopping);
        let waiting = async {
            tokio::select! {
                biased;
                filled = self.wire.fill() => filled,
                () = stopping.stopped() => Err(Failure::shutdown()),
            }
        };
        match limit {
            None => waiting.await,
            Some(limit) => tokio::time::timeout(limit, waiting)
                .await
                .unwrap_or_else(|_| Err(Failure::Fatal(SqlError::new(state, message)))),
        }
    }

    /// Sends the final message, if the client is still connected.
    async fn end(mut self, failure: Failure) {
        let error = match failure {
            Failure::Gone => return,
            Failure::Statement(error) | Failure::Fatal(error) => error,
        };
        self.wire.output.report(Severity::Fatal, &error);
        startup::close_gracefully(&mut self.wire).await;
    }

    /// Refuses the function call message. Like Sync, the message ends a batch.
    async fn function_call(&mut self) -> Result<(), Failure> {
        self.statement_failed(SqlError::unsupported("the function call message")).await;
        self.finish_batch(true).await?;
        self.ready();
        Ok(())
    }

    /// Reports the error of a statement; an open transaction has failed with it.
    async fn statement_failed(&mut self, error: SqlError) {
        let error = self.session.report_error(error).await;
        self.after_transactions();
        self.tell_notices();
        self.wire.output.report(Severity::Error, &error);
        self.tell_settings();
        // The client may already be waiting: its Flush will be skipped.
        self.flush_wanted = true;
    }

    fn tell_notices(&mut self) {
        for notice in self.session.notices() {
            let warning = notice.state.code().starts_with("01") || notice.state.code().starts_with("25");
            let severity = if warning { Severity::Warning } else { Severity::Notice };
            self.wire.output.report(severity, &notice);
        }
    }

    /// Closes the portals whose transactions have ended.
    fn after_transactions(&mut self) {
        let ended = self.session.take_ended();
        if let Some(mark) = ended.undone_since {
            self.portals.undo(mark);
        }
        if ended.transaction {
            self.portals.end_of_transaction();
        }
    }

    /// Reports changed settings, and applies them.
    fn tell_settings(&mut self) {
        let version = self.session.settings_version();
        if version == self.settings_version {
            return;
        }
        self.settings_version = version;
        for (name, value) in self.session.changed_parameters() {
            self.wire.output.parameter_status(&name, &value);
        }
        self.settings = Settings::of(&self.session);
    }

    /// Ends a batch or a simple query.
    fn ready(&mut self) {
        let status = match self.session.transaction_state() {
            TransactionState::Idle => Status::Idle,
            TransactionState::Open => Status::Open,
            TransactionState::Failed => Status::Failed,
        };
        self.after_transactions();
        self.tell_settings();
        if status == Status::Idle {
            self.portals.end_of_transaction();
        }
        self.wire.output.ready_for_query(status);
        self.flush_wanted = true;
    }
}

impl Settings {
    fn of(session: &Session) -> Self {
        let milliseconds = |name| {
            let value = session.parameter(name)?;
            setting_duration(&value).filter(|span| !span.is_zero())
        };
        Self {
            statement_time: milliseconds("statement_timeout"),
            silence_in_transaction: milliseconds("idle_in_transaction_session_timeout"),
            silence: milliseconds("idle_session_timeout"),
        }
    }
}

/// A duration in the format of SHOW: `0`, `1500ms`, `10s`, `5min`; a bare number counts milliseconds.
fn setting_duration(value: &str) -> Option<Duration> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit_ms = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_come_with_and_without_a_unit() {
        let cases = [("0", 0), ("250", 250), ("250ms", 250), ("2s", 2000), ("5min", 300_000), ("1h", 3_600_000)];
        for (text, expected) in cases {
            assert_eq!(setting_duration(text), Some(Duration::from_millis(expected)), "{text}");
        }
        assert_eq!(setting_duration("soon"), None);
    }
}
