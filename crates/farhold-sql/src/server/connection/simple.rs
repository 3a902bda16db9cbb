//! The simple protocol: a string of statements, answered in text format.

use super::portal::Portal;
use super::run::Outcome;
use super::statement::{Action, Source};
use super::wire::deadline_after;
use super::{Connection, Failure};
use crate::engine::{Pace, Session, TransactionState};
use crate::error::SqlError;
use crate::server::wire::Fields;
use crate::server::wire::frontend::Formats;
use crate::server::wire::input::Frame;
use crate::value::binary::utf8;

/// The longest string whose trees are all kept until its statements run: they may take some hundred times as much.
const TREES_TEXT_MAX: usize = 1 << 20;

impl Connection {
    /// Answers a Query.
    pub async fn simple_query(&mut self, frame: &Frame) -> Result<(), Failure> {
        let mut fields = Fields::new(self.wire.input.body(frame));
        let text = fields.c_string()?;
        fields.end()?;
        // A Query removes the unnamed statement and portal.
        let sql = utf8(text).map(str::to_owned);
        self.statements.remove("");
        self.portals.remove("");
        let outcome = match sql {
            Ok(sql) => self.simple_statements(&sql).await,
            Err(error) => Err(error.into()),
        };
        let failed = match outcome {
            Ok(()) => false,
            Err(Failure::Statement(error)) => {
                self.statement_failed(error).await;
                true
            }
            Err(failure) => return Err(failure),
        };
        self.finish_batch(failed).await?;
        self.ready();
        Ok(())
    }

    async fn simple_statements(&mut self, sql: &str) -> Result<(), Failure> {
        let statements = Session::split(sql)?;
        if statements.is_empty() {
            self.wire.output.empty_query();
            return Ok(());
        }
        let starts = places(sql, &statements);
        // A syntax error in any statement is reported before the first one runs.
        let keeps_trees = sql.len() <= TREES_TEXT_MAX;
        let mut parsed = Vec::new();
        if statements.len() > 1 {
            let _armed = self.cancel.arm();
            let mut pace = Pace::new(&self.cancel);
            for (statement, &start) in statements.iter().zip(&starts) {
                let source = Source::parse(statement);
                let source = source.map_err(|error| shifted(error, &sql[..start]))?;
                parsed.push(keeps_trees.then_some(source));
                pace.step().await?;
            }
        }
        let mut parsed = parsed.into_iter();
        for (index, (statement, start)) in statements.iter().zip(starts).enumerate() {
            let is_last = index + 1 == statements.len();
            if !is_last {
                self.begin_batch();
            }
            self.simple_statement(statement, parsed.next().flatten(), is_last).await.map_err(
                |failure| match failure {
                    Failure::Statement(error) => Failure::Statement(shifted(error, &sql[..start])),
                    other => other,
                },
            )?;
        }
        Ok(())
    }

    /// Runs a statement. `parsed` is its tree, if that is known.
    async fn simple_statement(&mut self, sql: &str, parsed: Option<Source>, is_last: bool) -> Result<(), Failure> {
        let deadline = deadline_after(self.settings.statement_time);
        let _armed = self.cancel.arm();
        let source = match parsed {
            Some(source) => source,
            None => Source::parse(sql)?,
        };
        let statement = self.prepare(source, &[]).await?;
        let mut portal = Portal::new(statement, self.session.mark());
        self.unfold(&mut portal, deadline).await?;
        let statement = std::rc::Rc::clone(&portal.statement);
        let tag = match &statement.action {
            Action::Empty => {
                self.wire.output.empty_query();
                return Ok(());
            }
            Action::Command(command) => {
                if let Some(shape) = self.shape_of(&statement) {
                    let codes = self.fetch_formats(command, Formats::TEXT).codes().to_vec();
                    shape.describe(Formats::of_codes(&codes), &mut self.wire.output);
                }
                self.command(command, Formats::TEXT, deadline).await?
            }
            Action::Declare(declaration) => self.declare(declaration, &portal.parameters, deadline).await?,
            Action::Engine(prepared) => match self.begin(prepared, &portal.parameters, deadline).await? {
                Outcome::Done(tag) => tag,
                Outcome::Rows(mut source) => {
                    let Some(shape) = &statement.shape else {
                        return Err(SqlError::internal("rows of a statement without columns").into());
                    };
                    shape.describe(Formats::TEXT, &mut self.wire.output);
                    self.send_rows(&mut source, shape, Some(Formats::TEXT), u64::MAX, deadline).await?;
                    source.tag()
                }
            },
        };
        // A failed commit is reported instead of CommandComplete.
        if is_last {
            self.end_batch(false).await?;
        }
        self.tell_notices();
        self.wire.output.command_complete(tag);
        if !self.is_batch && self.session.transaction_state() == TransactionState::Idle {
            self.portals.end_of_transaction();
        }
        Ok(())
    }

    /// From here to the end of the batch, statements outside of a transaction block form one transaction.
    pub fn begin_batch(&mut self) {
        self.is_batch = true;
        self.session.begin_implicit();
    }

    /// Ends a batch after which only `ReadyForQuery` follows: a failed commit is reported as a separate error.
    pub async fn finish_batch(&mut self, failed: bool) -> Result<(), Failure> {
        match self.end_batch(failed).await {
            Err(Failure::Statement(error)) => {
                self.statement_failed(error).await;
                Ok(())
            }
            done => done,
        }
    }

    /// Ends a batch: commits it, or rolls it back if it `failed`.
    pub async fn end_batch(&mut self, failed: bool) -> Result<(), Failure> {
        if !self.is_batch {
            return Ok(());
        }
        self.is_batch = false;
        let watch = super::Watch { cancel: &self.cancel, deadline: None, stopping: &self.front_end.stopping };
        match self.wire.drive(&watch, self.session.end_implicit()).await? {
            // The failure has already been reported.
            Err(_) if failed => Ok(()),
            done => Ok(done?),
        }
    }
}

/// The positions of the statements in their string, for the positions of errors.
fn places(sql: &str, statements: &[String]) -> Vec<usize> {
    let mut searched = 0;
    let mut starts = Vec::with_capacity(statements.len());
    for statement in statements {
        let start = sql[searched..].find(statement.as_str()).map_or(searched, |at| searched + at);
        searched = (start + statement.len()).min(sql.len());
        starts.push(start);
    }
    starts
}

/// Adjusts the position of an error in a statement that follows `before`.
fn shifted(mut error: SqlError, before: &str) -> SqlError {
    if let Some(position) = &mut error.position {
        *position += before.chars().count();
    }
    error
}
