//! Statements about the session, its transaction, and definitions.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    ContextModifier, Expr, Set, TransactionAccessMode, TransactionMode, UnaryOperator, Value,
};

use super::plan::Utility;
use super::prepare::read_only_error;
use super::{Session, aborted};
use crate::engine::catalog::TableInfo;
use crate::engine::parse::{Parsed, delete_all};
use crate::engine::{CommandTag, Datum, Output, Rows, ddl};
use crate::{SqlError, SqlState};

fn tag(verb: &'static str) -> Output {
    Output::Command(CommandTag::plain(verb))
}

impl Session {
    pub(super) async fn utility(&mut self, utility: &Utility) -> Result<Output, SqlError> {
        let failed = self.transaction.is_failed();
        if failed && !matches!(utility, Utility::Commit { .. } | Utility::Rollback { .. } | Utility::RollbackTo(_)) {
            return Err(aborted());
        }
        match utility {
            Utility::Begin { verb, modes } => {
                if !self.transaction.begin(&self.worker, wants_read_only(modes))? {
                    self.warn(SqlState::ACTIVE_TRANSACTION, "there is already a transaction in progress");
                }
                Ok(tag(verb))
            }
            Utility::Commit { chain } => {
                if *chain {
                    self.transaction.check_explicit("COMMIT AND CHAIN")?;
                }
                let read_only = self.transaction.is_read_only();
                let outcome = self.transaction.commit().await;
                if matches!(outcome, Ok(None | Some(true))) {
                    self.settings.commit();
                } else {
                    self.settings.rollback();
                }
                let verb = match outcome? {
                    Some(true) => "COMMIT",
                    Some(false) => "ROLLBACK",
                    None => {
                        self.warn(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress");
                        "COMMIT"
                    }
                };
                if *chain {
                    self.transaction.begin(&self.worker, Some(read_only))?;
                }
                Ok(tag(verb))
            }
            Utility::Rollback { chain } => {
                if *chain {
                    self.transaction.check_explicit("ROLLBACK AND CHAIN")?;
                }
                let read_only = self.transaction.is_read_only();
                if !self.transaction.rollback() {
                    self.warn(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress");
                }
                self.settings.rollback();
                if *chain {
                    self.transaction.begin(&self.worker, Some(read_only))?;
                }
                Ok(tag("ROLLBACK"))
            }
            Utility::RollbackTo(name) => {
                let savepoint = self.transaction.rollback_to(name)?;
                self.settings.rollback_to(savepoint);
                Ok(tag("ROLLBACK"))
            }
            Utility::Savepoint(name) => {
                self.transaction.savepoint(name.clone())?;
                self.settings.savepoint();
                Ok(tag("SAVEPOINT"))
            }
            Utility::Release(name) => {
                let left = self.transaction.release(name)?;
                self.settings.release(left);
                Ok(tag("RELEASE"))
            }
            Utility::Set(set) => {
                self.set(set)?;
                Ok(tag("SET"))
            }
            Utility::Show(name) => {
                let value = self.parameter(name).ok_or_else(|| {
                    SqlError::new(
                        SqlState::UNDEFINED_OBJECT,
                        format!("unrecognized configuration parameter \"{name}\""),
                    )
                })?;
                let rows = vec![vec![Datum::Text(value)]];
                Ok(Output::Rows(Rows::Direct { rows, tag: CommandTag::plain("SHOW") }))
            }
            Utility::ShowAll => {
                let rows = self.settings.all().into_iter().map(|(n, v)| vec![Datum::Text(n), Datum::Text(v)]).collect();
                Ok(Output::Rows(Rows::Direct { rows, tag: CommandTag::plain("SHOW") }))
            }
            Utility::Reset(None) => {
                self.reset_all();
                Ok(tag("RESET"))
            }
            Utility::Reset(Some(name)) => {
                self.before_setting();
                self.settings.set(name, None)?;
                Ok(tag("RESET"))
            }
            Utility::Nothing(verb) => Ok(tag(verb)),
            Utility::Truncate { tables, restart } => {
                self.truncate(tables).await?;
                if *restart {
                    let known = self.engine.catalog.tables();
                    for sequence in tables.iter().flat_map(|table| known.sequences_of(&table.name)) {
                        let start = sequence.definition.start;
                        self.engine.sequences.set(sequence, start, &self.worker).await?;
                    }
                }
                Ok(tag("TRUNCATE TABLE"))
            }
            definition => self.define(definition).await,
        }
    }

    /// Deletes the rows of all tables, or of none.
    async fn truncate(&mut self, tables: &[Arc<TableInfo>]) -> Result<(), SqlError> {
        // The DELETE of a single table is a transaction by itself; within a block, all of them are part of it.
        if tables.len() == 1 || self.transaction.is_undecided() {
            return self.delete_all(tables).await;
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.begin_implicit();
            let outcome = match self.delete_all(tables).await {
                Ok(()) => self.end_implicit().await,
                failed => failed,
            };
            let Err(error) = outcome else { return Ok(()) };
            self.failed(&error);
            if !self.again(&error, attempt).await? {
                return Err(error);
            }
        }
    }

    async fn delete_all(&mut self, tables: &[Arc<TableInfo>]) -> Result<(), SqlError> {
        for table in tables {
            let prepared = self.prepare_parsed(Parsed::of_tree(delete_all(&table.name)), &[]).await?;
            Box::pin(self.run(&prepared, &[])).await?;
        }
        Ok(())
    }

    /// RESET ALL, as a part of DISCARD ALL.
    pub(crate) fn reset_all(&mut self) {
        self.transaction.reclaim();
        self.before_setting();
        self.settings.reset_all();
    }

    async fn define(&mut self, utility: &Utility) -> Result<Output, SqlError> {
        if self.transaction.is_read_only() {
            return Err(read_only_error("a definition"));
        }
        let (catalog, worker) = (&self.engine.catalog, &self.worker);
        let done = match utility {
            Utility::CreateTable(statement) => {
                let columns = &self.engine.config.columns;
                ddl::create_table(catalog, worker, statement, columns, self.settings.zone()).await?
            }
            Utility::CreateIndex(statement) => ddl::create_index(catalog, worker, statement).await?,
            Utility::CreateSequence(statement) => ddl::create_sequence(catalog, worker, statement).await?,
            Utility::RestartSequence(restart) => {
                ddl::restart_sequence(catalog, worker, &self.engine.sequences, restart).await?
            }
            Utility::AlterTable(statement) => {
                let times = self.transaction.times();
                let zone = self.settings.zone();
                let with = ddl::Checking { catalog, worker, cancel: &self.cancel, times, zone };
                ddl::alter_table(with, statement).await?
            }
            Utility::Drop { object, names, if_exists } => {
                ddl::drop(catalog, worker, *object, names, *if_exists).await?
            }
            _ => return Err(SqlError::internal("not a definition")),
        };
        // What runs when a definition changes, and writes, does not commit.
        self.transaction.begin_anew_if_unused(&self.worker);
        if self.transaction_state() == super::TransactionState::Open {
            self.warn(
                SqlState::ACTIVE_TRANSACTION,
                format!("{} took effect at once: it is not part of the transaction", done.verb),
            );
        }
        done.notices.into_iter().for_each(|notice| self.notices.push(notice));
        Ok(tag(done.verb))
    }

    fn set(&mut self, set: &Set) -> Result<(), SqlError> {
        match set {
            Set::SingleAssignment { scope, variable, values, .. } => {
                let name = variable.to_string().replace('"', "");
                let value = value_text(values)?;
                self.set_one(&name, value.as_deref(), matches!(scope, Some(ContextModifier::Local)))
            }
            Set::SetTimeZone { local, value } => {
                let value = zone_text(value)?;
                self.set_one("timezone", value.as_deref(), *local)
            }
            Set::SetNames { charset_name, .. } => self.set_one("client_encoding", Some(&charset_name.value), false),
            Set::SetNamesDefault {} => self.set_one("client_encoding", None, false),
            Set::SetTransaction { modes, snapshot: None, session } => match wants_read_only(modes) {
                Some(true) if *session => Err(SqlError::unsupported("SET SESSION CHARACTERISTICS … READ ONLY")),
                Some(read_only) if !*session => self.transaction.set_read_only(&self.worker, read_only),
                _ => Ok(()),
            },
            Set::SetRole { role_name: None, .. } => Ok(()),
            other => Err(SqlError::unsupported(other)),
        }
    }

    /// Called before a setting changes: keeps the values that a ROLLBACK restores.
    fn before_setting(&mut self) {
        if self.transaction.is_undecided() {
            self.settings.begin_transaction(self.transaction.depth());
        }
    }

    pub(super) fn set_one(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<(), SqlError> {
        self.before_setting();
        if !local {
            return self.settings.set(name, value);
        }
        if !self.transaction.is_undecided() {
            self.warn(SqlState::NO_ACTIVE_TRANSACTION, "SET LOCAL can only be used in transaction blocks");
            return Ok(());
        }
        self.settings.set_local(name, value)
    }
}

/// Whether the transaction must be read-only, if `modes` specify it. Every isolation level is served by the strictest
/// one.
fn wants_read_only(modes: &[TransactionMode]) -> Option<bool> {
    modes.iter().rev().find_map(|mode| match mode {
        TransactionMode::AccessMode(mode) => Some(*mode == TransactionAccessMode::ReadOnly),
        // Every transaction is serializable, which satisfies every level.
        TransactionMode::IsolationLevel(_) => None,
    })
}

/// The value of SET TIME ZONE as one of the setting `TimeZone`; `None` for DEFAULT and LOCAL.
fn zone_text(value: &Expr) -> Result<Option<String>, SqlError> {
    match value {
        Expr::Identifier(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("local") => Ok(None),
        Expr::Interval(interval) => match interval.value.as_ref() {
            Expr::Value(text) if matches!(text.value, Value::SingleQuotedString(_)) => {
                Ok(Some(format!("interval {text}")))
            }
            _ => Err(SqlError::unsupported("this value in SET TIME ZONE")),
        },
        value => value_text(std::slice::from_ref(value)),
    }
}

/// The text of a setting's value; `None` for DEFAULT.
fn value_text(values: &[Expr]) -> Result<Option<String>, SqlError> {
    let mut parts = Vec::with_capacity(values.len());
    for value in values {
        let text = match value {
            Expr::Value(v) => match &v.value {
                Value::SingleQuotedString(text)
                | Value::DoubleQuotedString(text)
                | Value::EscapedStringLiteral(text)
                | Value::Number(text, _) => text.clone(),
                Value::Boolean(v) => (if *v { "on" } else { "off" }).to_owned(),
                other => other.to_string(),
            },
            Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default") => {
                return Ok(None);
            }
            Expr::Identifier(ident) => ident.value.clone(),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => format!("-{expr}"),
            Expr::Interval(_) | Expr::Subquery(_) | Expr::Function(_) => {
                return Err(SqlError::unsupported("this value in SET"));
            }
            other => other.to_string(),
        };
        parts.push(text);
    }
    Ok(Some(parts.join(", ")))
}
