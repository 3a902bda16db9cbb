//! Runs statements and sends their results, for both the simple and the extended protocol.

use std::rc::Rc;

use tokio::time::Instant;

use super::command::{Command, Inner, Listed, misplaced};
use super::portal::{Portal, Progress, RowSource};
use super::statement::{Action, Declaration, Parameter, Source, Statement};
use super::wire::deadline_after;
use super::{Connection, Failure, Watch};
use crate::engine::{
    CancelHandle, ColumnType, CommandTag, Datum, Output, OutputColumn, Pace, Parsed, Prepared, Rows, TransactionState,
};
use crate::error::{SqlError, SqlState};
use crate::server::rows::{BatchEncoder, Shape};
use crate::server::wire::frontend::Formats;
use crate::value::oid;

/// The limit on EXECUTEs that run each other. SQL's PREPARE does not accept an EXECUTE, but the protocol's Parse does.
const EXECUTE_DEPTH_MAX: usize = 64;

/// The result of running a statement.
pub enum Outcome {
    /// Its rows are ready to be sent.
    Rows(RowSource),
    /// It has completed.
    Done(CommandTag),
}

/// The progress of sending rows.
pub struct Sent {
    /// The number of rows sent this time.
    pub count: u64,
    /// Whether all rows have been sent.
    pub all: bool,
}

impl Connection {
    /// Prepares a statement. `types` are the parameter types that the client declares; 0 means not declared.
    pub async fn prepare(&mut self, source: Source, types: &[u32]) -> Result<Rc<Statement>, Failure> {
        let command = match source {
            Source::Empty => {
                return Ok(Rc::new(Statement { action: Action::Empty, parameters: Vec::new(), shape: None }));
            }
            Source::Engine(parsed) => {
                #[cfg(test)]
                if parsed.sql() == "SELECT PANIC" {
                    let _ = self.wire.output.open(b'T');
                    panic!("a statement of a test");
                }
                return Ok(Rc::new(Statement::of_engine(self.prepare_in_engine(parsed, types).await?, types)));
            }
            Source::Command(command) => *command,
        };
        let (action, parameters) = match command {
            // The parameters of DECLARE belong to its query.
            Command::Declare { cursor, holds, binary, query } => {
                let prepared = Rc::new(self.prepare_query(&query, types).await?);
                let parameters = prepared.parameters.clone();
                let types = types.to_vec();
                (Action::Declare(Declaration { cursor, holds, binary, query, types, prepared }), parameters)
            }
            other => (Action::Command(other), Vec::new()),
        };
        Ok(Rc::new(Statement { action, parameters, shape: None }))
    }

    /// Prepares the query of a cursor; other statements are refused.
    async fn prepare_query(&mut self, query: &Inner, types: &[u32]) -> Result<Statement, Failure> {
        let Some(parsed) = query.parsed.clone()? else { return Err(misplaced(&query.sql).into()) };
        let prepared = self.prepare_in_engine(parsed, types).await?;
        if prepared.is_query() { Ok(Statement::of_engine(prepared, types)) } else { Err(misplaced(&query.sql).into()) }
    }

    /// Prepares a statement in the engine.
    async fn prepare_in_engine(&mut self, parsed: Parsed, types: &[u32]) -> Result<Rc<Prepared>, Failure> {
        #[cfg(test)]
        if parsed.sql().contains("/* counted */") {
            super::panics::COUNTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let types: Vec<Option<ColumnType>> = types.iter().map(|&oid| oid::parameter_type(oid)).collect();
        let deadline = deadline_after(self.settings.statement_time);
        let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
        Ok(self.wire.drive(&watch, self.session.prepare_parsed(parsed, &types)).await??)
    }

    /// The statement that finally runs: for an EXECUTE, the prepared statement that it names.
    fn resolved<'a>(&'a self, mut statement: &'a Statement) -> Option<&'a Statement> {
        for _ in 0..EXECUTE_DEPTH_MAX {
            match &statement.action {
                Action::Command(Command::Execute { statement: name, .. }) => {
                    statement = self.statements.get(name).ok()?;
                }
                _ => return Some(statement),
            }
        }
        None
    }

    /// The columns of a statement's result: for a FETCH those of its cursor, for an EXECUTE those of its statement.
    pub fn shape_of(&self, statement: &Statement) -> Option<Rc<Shape>> {
        let statement = self.resolved(statement)?;
        match &statement.action {
            Action::Command(Command::Fetch { cursor, skips: false, .. }) => {
                let portal = self.portals.get(cursor).ok()?;
                match &portal.progress {
                    Progress::Rows(_, shape) => Some(Rc::clone(shape)),
                    _ => portal.statement.shape.clone(),
                }
            }
            _ => statement.shape.clone(),
        }
    }

    /// Starts a statement of the engine: runs it until its first rows are ready, or to its end.
    pub async fn begin(
        &mut self,
        prepared: &Rc<Prepared>,
        parameters: &[Datum],
        deadline: Option<Instant>,
    ) -> Result<Outcome, Failure> {
        let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
        // Boxed; otherwise every enclosing future would be as large.
        let output = self.wire.drive(&watch, Box::pin(self.session.execute(prepared, parameters))).await??;
        Ok(match output {
            Output::Rows(Rows::Direct { rows, tag }) => {
                Outcome::Rows(RowSource::Direct { rows: rows.into_iter(), tag })
            }
            Output::Rows(Rows::Batches(rows)) => Outcome::Rows(RowSource::Batches { rows, current: None }),
            Output::Command(tag) => {
                self.after_transactions();
                self.tell_settings();
                Outcome::Done(tag)
            }
            Output::CopyIn(copy) => Outcome::Done(Box::pin(self.copy_in(copy, deadline)).await?),
            Output::CopyOut(copy) => Outcome::Done(Box::pin(self.copy_out(copy, deadline)).await?),
        })
    }

    /// Sends at most `count_max` rows; without `formats` it skips them.
    pub async fn send_rows(
        &mut self,
        source: &mut RowSource,
        shape: &Shape,
        formats: Option<Formats<'_>>,
        count_max: u64,
        deadline: Option<Instant>,
    ) -> Result<Sent, Failure> {
        let mut count = 0;
        // There is no limit on waiting for a client that does not read: see docs/design/0016-waits.md.
        let (mut pace, zone) = (Pace::new(&self.cancel), self.session.zone());
        match source {
            RowSource::Direct { rows, tag } => {
                // A committed statement cannot be cancelled any more: all of its rows are sent.
                let is_over = tag.verb != "SELECT" && self.session.transaction_state() == TransactionState::Idle;
                if is_over {
                    pace = Pace::new(&CancelHandle::default());
                }
                while count < count_max {
                    if pace.step().await? && !is_over {
                        self.time_out_after(deadline);
                    }
                    let Some(row) = rows.next() else { return Ok(Sent { count, all: true }) };
                    if let Some(formats) = formats {
                        shape.put_row(&row, formats, zone, &mut self.wire.output)?;
                        self.wire.flush_if_full().await?;
                    }
                    count += 1;
                }
            }
            RowSource::Batches { rows, current } => {
                while count < count_max {
                    let Some(batch) = current.as_mut().filter(|batch| batch.left() > 0) else {
                        let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
                        match self.wire.drive(&watch, rows.next()).await? {
                            Some(batch) => *current = Some(BatchEncoder::new(&batch?, zone)?),
                            None => return Ok(Sent { count, all: true }),
                        }
                        continue;
                    };
                    pace.step().await?;
                    match formats {
                        Some(formats) => {
                            batch.put_row(shape, formats, zone, &mut self.wire.output)?;
                            self.wire.flush_if_full().await?;
                        }
                        None => batch.skip_row(),
                    }
                    count += 1;
                }
            }
        }
        Ok(Sent { count, all: false })
    }

    /// Marks the statement as timed out if its deadline has passed.
    fn time_out_after(&self, deadline: Option<Instant>) {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.cancel.time_out();
        }
    }

    /// Runs a statement that the connection executes itself. The rows of a FETCH are sent in `formats`.
    pub async fn command(
        &mut self,
        command: &Command,
        formats: Formats<'_>,
        deadline: Option<Instant>,
    ) -> Result<CommandTag, Failure> {
        // A failed transaction accepts only statements that end it; for its own statements the engine checks this.
        self.session.check_not_failed()?;
        let tag = match command {
            // It is prepared as `Action::Declare`.
            Command::Declare { .. } => return Err(SqlError::internal("unprepared DECLARE").into()),
            Command::Fetch { cursor, count, skips } => {
                let mut portal = self.portals.take(cursor).map_err(|_| missing_cursor(cursor))?;
                let formats = if portal.formats.is_empty() { formats } else { Formats::of_codes(&portal.formats) };
                let sent = match &mut portal.progress {
                    Progress::Rows(source, shape) => {
                        let formats = (!skips).then_some(formats);
                        self.send_rows(source, shape, formats, count.unwrap_or(u64::MAX), deadline).await?.count
                    }
                    _ => 0,
                };
                self.portals.put(cursor, portal);
                CommandTag::rows(if *skips { "MOVE" } else { "FETCH" }, sent)
            }
            Command::Close(Some(cursor)) => {
                if !self.portals.remove(cursor) {
                    return Err(missing_cursor(cursor).into());
                }
                CommandTag::plain("CLOSE CURSOR")
            }
            Command::Close(None) => {
                self.portals.clear();
                CommandTag::plain("CLOSE CURSOR ALL")
            }
            Command::Prepare { statement, types, query } => {
                self.statements.check_new(statement, self.front_end.shared.config.limits.statements_max)?;
                let types = self.type_oids(types).await?;
                let Some(parsed) = query.parsed.clone()? else {
                    // The errors of a command in its place come first.
                    self.prepare(Source::parse(&query.sql)?, &types).await?;
                    return Err(misplaced(&query.sql).into());
                };
                let prepared = self.prepare_in_engine(parsed, &types).await?;
                if !prepared.is_optimizable() {
                    return Err(misplaced(&query.sql).into());
                }
                self.statements.put(statement, Rc::new(Statement::of_engine(prepared, &types)));
                CommandTag::plain("PREPARE")
            }
            // Its rows are sent through a portal: see `unfold`.
            Command::Execute { .. } => return Err(SqlError::internal("unresolved EXECUTE").into()),
            Command::Deallocate(Some(name)) => {
                if !self.statements.remove(name) {
                    self.statements.get(name)?;
                }
                CommandTag::plain("DEALLOCATE")
            }
            Command::Deallocate(None) => {
                self.statements.clear();
                CommandTag::plain("DEALLOCATE ALL")
            }
            Command::DiscardAll => {
                if self.session.is_in_transaction() {
                    let message = "DISCARD ALL cannot run inside a transaction block";
                    return Err(SqlError::new(SqlState::ACTIVE_TRANSACTION, message).into());
                }
                self.portals.clear();
                self.statements.clear();
                self.session.forget_numbers();
                self.session.reset_all();
                self.after_transactions();
                self.tell_settings();
                CommandTag::plain("DISCARD ALL")
            }
            Command::Unlisten => CommandTag::plain("UNLISTEN"),
        };
        Ok(tag)
    }

    /// Replaces an EXECUTE in a portal by the statement that it names, with its arguments as parameters.
    pub async fn unfold(&mut self, portal: &mut Portal, deadline: Option<Instant>) -> Result<(), Failure> {
        for _ in 0..EXECUTE_DEPTH_MAX {
            let Action::Command(Command::Execute { statement, arguments }) = &portal.statement.action else {
                return Ok(());
            };
            let target = Rc::clone(self.statements.get(statement)?);
            if arguments.texts.len() != target.parameters.len() {
                let message = format!("wrong number of parameters for prepared statement \"{statement}\"");
                let detail =
                    format!("Expected {} parameters but got {}.", target.parameters.len(), arguments.texts.len());
                return Err(SqlError::syntax(message).with_detail(detail).into());
            }
            portal.parameters = self.evaluate(arguments, &target.parameters, deadline).await?;
            portal.statement = target;
        }
        Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "EXECUTE is recursive or nested too deeply")
            .with_detail(format!("At most {EXECUTE_DEPTH_MAX} levels are allowed."))
            .into())
    }

    /// The values of the arguments of an EXECUTE.
    async fn evaluate(
        &mut self,
        arguments: &Listed,
        parameters: &[Parameter],
        deadline: Option<Instant>,
    ) -> Result<Vec<Datum>, Failure> {
        if arguments.texts.is_empty() {
            return Ok(Vec::new());
        }
        let select = self.prepare_in_engine(arguments.select.clone()?, &[]).await?;
        let zone = self.session.zone();
        let mut values = match self.begin(&select, &[], deadline).await? {
            Outcome::Rows(RowSource::Direct { mut rows, .. }) => rows.next().unwrap_or_default(),
            Outcome::Rows(RowSource::Batches { mut rows, .. }) => {
                let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
                let mut values = Vec::new();
                while let Some(batch) = self.wire.drive(&watch, rows.next()).await? {
                    let batch = batch?;
                    if batch.num_rows() > 0 && values.is_empty() {
                        values = batch
                            .columns()
                            .iter()
                            .map(|column| crate::engine::datum_at(column, 0, zone))
                            .collect::<Result<_, _>>()?;
                    }
                }
                values
            }
            Outcome::Done(_) => Vec::new(),
        };
        if values.len() != parameters.len() {
            return Err(SqlError::internal("an argument of EXECUTE has no value").into());
        }
        for (value, parameter) in values.iter_mut().zip(parameters) {
            // A decimal keeps its own scale, since a parameter's type has none.
            if matches!((&*value, parameter.data_type), (Datum::Decimal { .. }, ColumnType::Decimal { .. })) {
                continue;
            }
            *value = crate::engine::cast_datum(std::mem::replace(value, Datum::Null), parameter.data_type, zone)?;
        }
        Ok(values)
    }

    /// The OIDs of the types written in a PREPARE: the engine determines them from casts of `NULL`.
    async fn type_oids(&mut self, types: &Listed) -> Result<Vec<u32>, Failure> {
        if types.texts.is_empty() {
            return Ok(Vec::new());
        }
        let select = self.prepare_in_engine(types.select.clone()?, &[]).await?;
        let is_varchar =
            |name: &String| ["varchar", "character varying"].contains(&name.trim().to_lowercase().as_str());
        let number = |(column, name): (&OutputColumn, &String)| match column.data_type {
            // Without a length the engine treats it as TEXT.
            ColumnType::Text if is_varchar(name) => oid::VARCHAR,
            data_type => oid::of(data_type),
        };
        Ok(select.columns.iter().flatten().zip(&types.texts).map(number).collect())
    }

    /// Runs a DECLARE: opens its cursor.
    pub async fn declare(
        &mut self,
        declaration: &Declaration,
        parameters: &[Datum],
        deadline: Option<Instant>,
    ) -> Result<CommandTag, Failure> {
        self.session.check_not_failed()?;
        let Declaration { cursor, holds, binary, query, types, prepared } = declaration;
        if !holds && !self.is_batch && self.session.transaction_state() == crate::engine::TransactionState::Idle {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(SqlError::new(SqlState::NO_ACTIVE_TRANSACTION, message).into());
        }
        self.portals.check_new(cursor, self.front_end.shared.config.limits.statements_max)?;
        // After a change of the catalog the cursor may have other columns: nothing has told the client of the earlier
        // ones.
        let statement = match &prepared.action {
            Action::Engine(engine) if self.session.is_current(engine) => Rc::clone(prepared),
            _ => Rc::new(self.prepare_query(query, types).await?),
        };
        let (Action::Engine(prepared), Some(shape)) = (&statement.action, &statement.shape) else {
            return Err(SqlError::new(SqlState::INVALID_CURSOR_STATE, "DECLARE CURSOR must be of a query").into());
        };
        let Outcome::Rows(source) = self.begin(prepared, parameters, deadline).await? else {
            return Err(SqlError::new(SqlState::INVALID_CURSOR_STATE, "DECLARE CURSOR must be of a query").into());
        };
        let progress = Progress::Rows(source, Rc::clone(shape));
        let mut portal = Portal::new(Rc::clone(&statement), self.session.mark());
        portal.progress = progress;
        portal.holds = *holds;
        if *binary {
            portal.formats.extend_from_slice(&1_i16.to_be_bytes());
        }
        self.portals.put(cursor, portal);
        Ok(CommandTag::plain("DECLARE CURSOR"))
    }
}

fn missing_cursor(cursor: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_CURSOR_NAME, format!("cursor \"{cursor}\" does not exist"))
}
