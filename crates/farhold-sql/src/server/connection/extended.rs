//! The extended protocol: Parse, Bind, Describe, Execute, Close, until Sync.

use std::rc::Rc;

use super::command::Command;
use super::portal::{Portal, Progress};
use super::run::Outcome;
use super::statement::{Action, Source, Statement};
use super::wire::deadline_after;
use super::{Connection, Failure};
use crate::engine::{Datum, TransactionState};
use crate::error::{SqlError, SqlState};
use crate::server::wire::frontend::{Bind, Format, Formats, Message, Target, message};
use crate::server::wire::input::Frame;
use crate::value::binary::{self, utf8};
use crate::value::{oid, parse_datum};

impl Connection {
    /// Answers a message of the extended protocol other than Sync.
    pub async fn extended(&mut self, frame: &Frame) -> Result<(), Failure> {
        match self.extended_step(frame).await {
            Err(Failure::Statement(error)) => {
                self.statement_failed(error).await;
                self.skips_until_sync = true;
                Ok(())
            }
            done => done,
        }
    }

    async fn extended_step(&mut self, frame: &Frame) -> Result<(), Failure> {
        let _armed = self.cancel.arm();
        match message(frame.tag, self.wire.input.body(frame))? {
            Message::Parse(parse) => {
                let name = utf8(parse.statement)?.to_owned();
                let sql = utf8(parse.sql)?.to_owned();
                let types: Vec<u32> = parse.types().collect();
                self.statements.check_new(&name, self.front_end.shared.config.limits.statements_max)?;
                let statement = self.prepare(Source::parse(&sql)?, &types).await?;
                self.statements.put(&name, statement);
                self.wire.output.parse_complete();
            }
            Message::Bind(_) => self.bind(frame)?,
            Message::Describe(target) => {
                let (statement, formats) = match target {
                    Target::Statement(name) => (Rc::clone(self.statements.get(utf8(name)?)?), None),
                    Target::Portal(name) => {
                        let portal = self.portals.get(utf8(name)?)?;
                        (Rc::clone(&portal.statement), Some(portal.formats.clone()))
                    }
                };
                self.describe(&statement, formats.as_deref());
            }
            Message::Execute { portal, rows_max } => {
                let name = utf8(portal)?.to_owned();
                self.execute(&name, u64::try_from(rows_max).ok().filter(|&count| count > 0)).await?;
            }
            Message::Close(Target::Statement(name)) => {
                let name = utf8(name)?;
                self.statements.remove(name);
                self.wire.output.close_complete();
            }
            Message::Close(Target::Portal(name)) => {
                let name = utf8(name)?;
                self.portals.remove(name);
                self.wire.output.close_complete();
            }
            Message::Flush => self.flush_wanted = true,
            _ => return Err(crate::server::wire::Malformed("unexpected message").into()),
        }
        Ok(())
    }

    /// Sync: ends the batch, and the skipping of messages.
    pub async fn sync(&mut self) -> Result<(), Failure> {
        let failed = std::mem::take(&mut self.skips_until_sync);
        self.finish_batch(failed).await?;
        self.ready();
        Ok(())
    }

    fn bind(&mut self, frame: &Frame) -> Result<(), Failure> {
        // The message is borrowed from the input buffer while other fields of the connection change.
        let Message::Bind(bind) = message(frame.tag, self.wire.input.body(frame))? else {
            return Err(crate::server::wire::Malformed("unexpected message").into());
        };
        let name = utf8(bind.portal)?;
        if !name.is_empty() {
            self.portals.check_new(name, self.front_end.shared.config.limits.statements_max)?;
        }
        let statement = Rc::clone(self.statements.get(utf8(bind.statement)?)?);
        check_counts(&bind, &statement)?;
        if !statement.parameters.is_empty() {
            self.session.check_not_failed()?;
        }
        let zone = self.session.zone();
        let mut portal = self.portals.recycle(name, &statement, self.session.mark());
        for ((value, format), parameter) in bind.parameters().zip(&statement.parameters) {
            portal.parameters.push(match value {
                None => Datum::Null,
                Some(bytes) if format == Format::Binary => match parameter.foreign {
                    Some(oid) => parse_datum(&binary::text_of(oid, bytes)?, parameter.data_type, zone)?,
                    None => binary::parse_parameter(parameter.oid, parameter.data_type, bytes)?,
                },
                Some(bytes) => {
                    let text = utf8(bytes)?;
                    match parameter.oid {
                        oid::BPCHAR => Datum::Text(text.trim_end_matches(' ').to_owned()),
                        _ => parse_datum(text, parameter.data_type, zone)?,
                    }
                }
            });
        }
        portal.formats.extend_from_slice(bind.result_formats.codes());
        self.portals.put(name, portal);
        self.wire.output.bind_complete();
        Ok(())
    }

    /// `formats` are those of a portal; those of a statement are not known yet.
    fn describe(&mut self, statement: &Statement, formats: Option<&[u8]>) {
        if formats.is_none() {
            self.wire.output.parameter_description(statement.parameters.iter().map(|parameter| parameter.oid));
        }
        let mut formats = Formats::of_codes(formats.unwrap_or_default());
        let cursor_codes;
        let shape = self.shape_of(statement);
        if let Action::Command(command) = &statement.action {
            cursor_codes = self.fetch_formats(command, formats).codes().to_vec();
            formats = Formats::of_codes(&cursor_codes);
        }
        match shape {
            Some(shape) => shape.describe(formats, &mut self.wire.output),
            None => self.wire.output.no_data(),
        }
    }

    /// The formats of the rows of a FETCH: a binary cursor has its own.
    pub fn fetch_formats<'a>(&'a self, command: &Command, asked: Formats<'a>) -> Formats<'a> {
        match command {
            Command::Fetch { cursor, .. } => match self.portals.get(cursor) {
                Ok(portal) if !portal.formats.is_empty() => portal.formats(),
                _ => asked,
            },
            _ => asked,
        }
    }

    async fn execute(&mut self, name: &str, rows_max: Option<u64>) -> Result<(), Failure> {
        let mut portal = self.portals.take(name)?;
        let is_query = matches!(&portal.statement.action, Action::Engine(prepared) if prepared.is_optimizable());
        if is_query && self.is_settled() {
            self.wait_for_next().await?;
        }
        // The usual batch is a single Execute followed by Sync. It commits here, and a failed commit is reported
        // instead of CommandComplete. In any other batch the statements form one transaction, which ends at Sync.
        let is_last = self.wire.input.next_tag() == Some(b'S');
        if !is_last && !self.is_batch {
            self.begin_batch();
        }
        let again = self.execute_portal(name, &mut portal, rows_max, is_last).await?;
        if again || !name.is_empty() || !self.is_settled() {
            self.portals.put(name, portal);
        } else {
            self.portals.put_spare(portal);
        }
        Ok(())
    }

    /// Waits for the first byte of the next message. The client expects no answer before its Sync or Flush, which may
    /// arrive separately.
    async fn wait_for_next(&mut self) -> Result<(), Failure> {
        while self.wire.input.next_tag().is_none() {
            self.flush_if_wanted().await?;
            self.wait().await?;
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        !self.is_batch && self.session.transaction_state() == TransactionState::Idle
    }

    /// Runs a portal from its current position. Returns whether it has more rows.
    async fn execute_portal(
        &mut self,
        name: &str,
        portal: &mut Portal,
        rows_max: Option<u64>,
        is_last: bool,
    ) -> Result<bool, Failure> {
        let deadline = deadline_after(self.settings.statement_time);
        self.unfold(portal, deadline).await?;
        let statement = Rc::clone(&portal.statement);
        // The error is reported before the batch commits, and rolls it back.
        let mut tag = match &portal.progress {
            Progress::Done(None) => {
                let message = format!("portal \"{name}\" cannot be run");
                return Err(SqlError::new(SqlState::OBJECT_NOT_IN_STATE, message).into());
            }
            Progress::Done(again) => *again,
            Progress::New | Progress::Rows(..) => None,
        };
        if let Progress::New = portal.progress {
            match &statement.action {
                Action::Empty => {
                    self.wire.output.empty_query();
                    return Ok(false);
                }
                Action::Command(command) => {
                    let done = self.command(command, portal.formats(), deadline).await?;
                    tag = Some(done);
                }
                Action::Declare(declaration) => {
                    tag = Some(self.declare(declaration, &portal.parameters, deadline).await?);
                }
                Action::Engine(prepared) => match self.begin(prepared, &portal.parameters, deadline).await? {
                    Outcome::Done(done) => tag = Some(done),
                    Outcome::Rows(source) => {
                        let Some(shape) = &statement.shape else {
                            return Err(SqlError::internal("rows of a statement without columns").into());
                        };
                        portal.progress = Progress::Rows(source, Rc::clone(shape));
                    }
                },
            }
        }
        let formats = Formats::of_codes(&portal.formats);
        if let Progress::Rows(source, shape) = &mut portal.progress {
            let sent = self.send_rows(source, shape, Some(formats), rows_max.unwrap_or(u64::MAX), deadline).await?;
            if !sent.all && rows_max.is_some() {
                self.wire.output.portal_suspended();
                return Ok(true);
            }
            let mut done = source.tag();
            // The tag of each Execute counts only its own rows.
            if done.verb == "SELECT" {
                done.rows = Some(sent.count);
            }
            tag = Some(done);
        }
        let tag = tag.ok_or_else(|| SqlError::internal("statement returned no completion tag"))?;
        portal.finish(tag, self.shape_of(&statement).is_some());
        if is_last {
            self.end_batch(false).await?;
        }
        self.tell_notices();
        self.wire.output.command_complete(tag);
        if self.is_settled() {
            self.portals.end_of_transaction();
        }
        Ok(false)
    }
}

fn check_counts(bind: &Bind<'_>, statement: &Statement) -> Result<(), SqlError> {
    if let Some(code) = bind.parameter_formats.unsupported().or(bind.result_formats.unsupported()) {
        let message = format!("unsupported format code: {code}");
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    let formats = bind.parameter_formats.count();
    if formats > 1 && formats != bind.parameter_count {
        let count = bind.parameter_count;
        let message = format!("bind message has {formats} parameter formats but {count} parameters");
        return Err(SqlError::new(SqlState::PROTOCOL_VIOLATION, message));
    }
    if bind.parameter_count != statement.parameters.len() {
        let message = format!(
            "bind message supplies {} parameters, but prepared statement requires {}",
            bind.parameter_count,
            statement.parameters.len()
        );
        return Err(SqlError::new(SqlState::PROTOCOL_VIOLATION, message));
    }
    let columns = statement.shape.as_ref().map_or(0, |shape| shape.len());
    let formats = bind.result_formats.count();
    // The columns of a FETCH or EXECUTE are known only when it runs.
    let is_known = !matches!(statement.action, Action::Command(_) | Action::Declare(_));
    if formats > 1 && formats != columns && is_known {
        let message = format!("bind message has {formats} result formats but query has {columns} columns");
        return Err(SqlError::new(SqlState::PROTOCOL_VIOLATION, message));
    }
    Ok(())
}
