//! Executes a bound statement.

use std::rc::Rc;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast;
use farhold_txn::{Retry, Txn, Worker};

use super::plan::{Bound, Plan};
use super::prepare::{read_only_error, verb_of, writes};
use super::{Session, TransactionState, aborted};
use crate::engine::copy::{CopyIn, CopyOut, CopyTxn};
use crate::engine::direct::{Effect, Program, ROWS_MAX};
use crate::engine::output::{Long, Prepared, QueryRows};
use crate::engine::parse::Tree;
use crate::engine::query::{NumberSource, PlanScan, PlannedQuery, all_narrow, scans, snapshot};
use crate::engine::scalar::{ParameterTypes, Parameters, cut_to};
use crate::engine::scan::{PathsOf, RowSource};
use crate::engine::types::cast;
use crate::engine::{ColumnType, CommandTag, Datum, Output, OutputColumn, Rows, error};
use crate::value::Zone;
use crate::{SqlError, SqlState};

/// How often a statement outside of a transaction block is retried after conflicts before it fails.
const RETRY: Retry = Retry { attempts_max: 100, backoff_ns: 1_000, backoff_ns_max: 1_000_000 };

/// Whether an error depends on the values of rows, such as a division by zero or a duplicate key.
fn is_of_values(error: &SqlError) -> bool {
    ["21", "22", "23"].iter().any(|class| error.state.code().starts_with(class))
}

/// A statement's error, replaced by 40001 if it may come from values that its transaction would not have read if it
/// could commit.
pub(in crate::engine) async fn unless_doomed(error: SqlError, txn: &mut Txn) -> SqlError {
    if !is_of_values(&error) {
        return error;
    }
    match txn.check_reads().await {
        Ok(()) => error,
        Err(conflict) => error::from_txn(&conflict),
    }
}

/// An error may reveal committed data: a client may take a duplicate key as the confirmation of its own earlier insert,
/// and a division by zero reveals the value in a row. So the data must be durable before the error is reported.
pub(in crate::engine) async fn durable_error(error: SqlError, worker: &Worker) -> SqlError {
    if !is_of_values(&error) {
        return error;
    }
    match Box::pin(worker.durable_so_far()).await {
        Ok(()) => error,
        Err(lost) => error::from_txn(&lost),
    }
}

/// What came of a statement.
#[expect(clippy::large_enum_variant, reason = "nearly every execution is done, and would pay for a box")]
enum Ran {
    Done(Output),
    /// It met a conflict, and the catalog has changed since it was bound: an index may be gone, or its table have another check.
    Outdated(SqlError),
}

impl Session {
    /// Runs a statement, bound to the current catalog. After a conflict it is bound again if the catalog has changed.
    pub(super) async fn run(&mut self, prepared: &Rc<Prepared>, values: &[Datum]) -> Result<Output, SqlError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.run_once(prepared, values).await? {
                Ran::Done(output) => return Ok(output),
                Ran::Outdated(error) if self.again(&error, attempt).await? => {}
                Ran::Outdated(error) => return Err(error),
            }
        }
    }

    async fn run_once(&mut self, prepared: &Rc<Prepared>, values: &[Datum]) -> Result<Ran, SqlError> {
        self.transaction.reclaim();
        let bound = self.current(prepared).await?;
        if let Plan::Utility(utility) = &bound.plan {
            return Box::pin(self.utility(utility)).await.map(Ran::Done);
        }
        if self.transaction_state() == TransactionState::Failed {
            return Err(aborted());
        }
        let given;
        let values = if types_match(&bound, values) {
            values
        } else {
            given = coerce(&bound, values, self.settings.zone())?;
            &given
        };
        if self.transaction.is_read_only() && writes(&bound.plan) {
            return Err(read_only_error(verb_of(&bound.plan)));
        }
        self.transaction.enter(&self.worker);
        let parameters = Parameters { values, times: self.transaction.times(), zone: self.settings.zone() };
        let outcome = match &bound.plan {
            Plan::Direct(program) => {
                let may_be_long =
                    !self.transaction.is_open() && matches!(program, Program::Select(select) if select.may_be_long());
                let is_long = matches!(program, Program::Select(select) if may_be_long && select.is_long(parameters)?);
                let rows_max = if may_be_long { ROWS_MAX } else { usize::MAX };
                let outcome = if is_long {
                    Ok(None)
                } else {
                    self.direct_up_to(program, parameters, rows_max, Some(bound.version)).await
                };
                match outcome {
                    Ok(Some(output)) => Ok(output),
                    Ok(None) => match Box::pin(self.long_query(prepared, &bound)).await? {
                        Some(query) => return Box::pin(self.query(&query, parameters)).await.map(Ran::Done),
                        None => self.direct(program, parameters).await,
                    },
                    Err(error) => Err(error),
                }
            }
            // Slow paths are boxed, so that the future of a direct statement, which is part of every execution, stays
            // small.
            Plan::Query(query) => return Box::pin(self.query(query, parameters)).await.map(Ran::Done),
            Plan::Explain { inner, analyze } => {
                return Box::pin(self.explain(inner, parameters, *analyze)).await.map(Ran::Done);
            }
            Plan::InsertQuery(_) | Plan::UpdateQuery(_) | Plan::DeleteQuery(_) => {
                let effect = Box::pin(self.in_transaction(&bound.plan, parameters, Some(bound.version))).await;
                effect.map(|effect| Self::output_of(effect, verb_of(&bound.plan)))
            }
            Plan::CopyIn { table, columns, format } => {
                let txn = match self.transaction.lend() {
                    Some((txn, loan)) => CopyTxn::Borrowed(txn, loan),
                    None => CopyTxn::Own { txn: self.worker.begin(), chunk_rows: self.settings.copy_chunk_rows() },
                };
                let copy = CopyIn::new(
                    &self.engine,
                    &self.worker,
                    (table.clone(), columns.clone()),
                    format.clone(),
                    txn,
                    (&self.cancel, Rc::clone(&self.numbers)),
                    (parameters.times, parameters.zone),
                );
                Ok(Output::CopyIn(copy))
            }
            Plan::CopyOut { inner, format } => {
                let names: Vec<String> = inner.columns.iter().flatten().map(|c| c.name.clone()).collect();
                let rows = match &inner.plan {
                    Plan::Direct(program) => Box::pin(self.direct(program, parameters)).await?,
                    Plan::Query(query) => Box::pin(self.query(query, parameters)).await?,
                    _ => return Err(SqlError::unsupported("COPY of this statement")),
                };
                let Output::Rows(rows) = rows else { return Err(SqlError::unsupported("COPY of this statement")) };
                Ok(Output::CopyOut(CopyOut::new(
                    rows,
                    &names,
                    inner.columns.clone().unwrap_or_default(),
                    format.clone(),
                    parameters.zone,
                )))
            }
            Plan::SetConfig(call) => self.set_config(call, parameters),
            Plan::Utility(_) => Err(SqlError::internal("unexpected utility statement")),
        };
        match outcome {
            Ok(output) => Ok(Ran::Done(output)),
            Err(error) if self.is_outdated(&bound, &error) => Ok(Ran::Outdated(error)),
            Err(error) => Err(error),
        }
    }

    /// The statement, bound to the current catalog and time zone.
    async fn current(&self, prepared: &Prepared) -> Result<Rc<Bound>, SqlError> {
        let bound = prepared.bound();
        let is_current = bound.version == self.engine.catalog.version() && bound.zone == self.settings.zone();
        if is_current || !bound.plan.reads_catalog() {
            return Ok(bound);
        }
        let parsed = prepared.source().parsed()?;
        let Tree::Statement(statement) = parsed.tree() else { return Ok(bound) };
        let types = ParameterTypes::found(&bound.parameters, &bound.stated);
        let again = Box::pin(self.bind(statement, &parsed.origin(), &types)).await?;
        let same = |a: &Bound, b: &Bound| {
            let shape = |bound: &Bound| {
                bound.columns.as_ref().map(|c| c.iter().map(|c| (c.name.clone(), c.data_type)).collect::<Vec<_>>())
            };
            shape(a) == shape(b) && a.parameters == b.parameters
        };
        if !same(&bound, &again) {
            return Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, "cached plan must not change result type"));
        }
        Ok(prepared.rebind(again))
    }

    /// The planner's query for a direct SELECT of many rows, whose batches come from a snapshot. `None` if the planned
    /// rows would have other types than those announced to the client. It is planned once per version of the catalog and time
    /// zone.
    async fn long_query(&self, prepared: &Prepared, bound: &Bound) -> Result<Option<Rc<PlannedQuery>>, SqlError> {
        if let Some(long) = prepared.long(bound.version, bound.zone) {
            return Ok(long.query);
        }
        let parsed = prepared.source().parsed()?;
        let Tree::Statement(statement) = parsed.tree() else { return Ok(None) };
        let ast::Statement::Query(query) = statement.as_ref() else { return Ok(None) };
        let types = ParameterTypes::found(&bound.parameters, &bound.stated);
        let tables = self.engine.catalog.tables();
        let query = self.by_planner(query, &parsed.origin(), &tables, &types).await?;
        let types = |columns: &[OutputColumn]| columns.iter().map(|c| c.data_type).collect::<Vec<_>>();
        let same = bound.columns.as_ref().is_some_and(|columns| types(columns) == types(&query.columns));
        let query = same.then(|| Rc::new(query));
        prepared.keep_long(Long { version: tables.version, zone: bound.zone, query: query.clone() });
        Ok(query)
    }

    /// Whether a statement is bound to the current catalog.
    pub(crate) fn is_current(&self, prepared: &Prepared) -> bool {
        prepared.bound().version == self.engine.catalog.version()
    }

    /// Whether a statement that has met a conflict is its own transaction, and bound to an outdated catalog.
    fn is_outdated(&self, bound: &Bound, error: &SqlError) -> bool {
        error.state == SqlState::SERIALIZATION_FAILURE
            && !self.transaction.is_open()
            && bound.version != self.engine.catalog.version()
    }

    fn output_of(effect: Effect, verb: &'static str) -> Output {
        let tag = CommandTag::rows(verb, effect.count);
        match effect.rows {
            Some(rows) => Output::Rows(Rows::Direct { rows, tag }),
            None => Output::Command(tag),
        }
    }

    async fn direct(&mut self, program: &Program, parameters: Parameters<'_>) -> Result<Output, SqlError> {
        let output = self.direct_up_to(program, parameters, usize::MAX, None).await?;
        output.ok_or_else(|| SqlError::internal("a SELECT without a limit has read too much"))
    }

    /// `None` if it is a SELECT of more rows, and nothing has been done. `version`: of the catalog to which the statement is bound, if
    /// the caller binds it again after a conflict.
    async fn direct_up_to(
        &mut self,
        program: &Program,
        parameters: Parameters<'_>,
        rows_max: usize,
        version: Option<u64>,
    ) -> Result<Option<Output>, SqlError> {
        let verb = match program {
            Program::Constant(_) | Program::Select(_) => "SELECT",
            Program::Insert(_) => "INSERT",
            Program::Update(_) => "UPDATE",
            Program::Delete(_) => "DELETE",
        };
        let numbers = self.engine.numbers(&self.numbers, &self.worker);
        if let Some(txn) = self.transaction.txn() {
            return match program.run(txn, parameters, numbers, rows_max, &self.cancel).await {
                Ok(effect) => Ok(effect.map(|effect| Self::output_of(effect, verb))),
                Err(e) => Err(unless_doomed(e, txn).await),
            };
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut txn = if program.is_read_only() { self.worker.begin_read_only() } else { self.worker.begin() };
            let outcome = match program.run(&mut txn, parameters, numbers, rows_max, &self.cancel).await {
                Ok(None) => return Ok(None),
                Ok(Some(effect)) => match txn.commit().await {
                    Ok(_) => Ok(effect),
                    Err(e) => Err(Self::commit_error(program, &e)),
                },
                Err(e) => {
                    let e = unless_doomed(e, &mut txn).await;
                    drop(txn);
                    Err(e)
                }
            };
            match outcome {
                Ok(effect) => return Ok(Some(Self::output_of(effect, verb))),
                Err(e) if self.again_as_bound(&e, attempt, version).await? => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn commit_error(program: &Program, e: &farhold_txn::TxnError) -> SqlError {
        match program {
            Program::Insert(insert) => insert.table.explain(e, None),
            Program::Update(update) => update.table.explain(e, None),
            Program::Delete(_) | Program::Select(_) | Program::Constant(_) => error::from_txn(e),
        }
    }

    /// Whether to retry after `error`; if so, waits for the back-off first.
    pub(super) async fn again(&self, error: &SqlError, attempt: u32) -> Result<bool, SqlError> {
        if error.state != SqlState::SERIALIZATION_FAILURE || attempt >= RETRY.attempts_max {
            return Ok(false);
        }
        self.cancel.check()?;
        self.worker.back_off(RETRY, attempt).await;
        Ok(true)
    }

    /// As [`again`](Self::again), unless the statement is to be bound again first, because the catalog is no longer of this version.
    async fn again_as_bound(&self, error: &SqlError, attempt: u32, version: Option<u64>) -> Result<bool, SqlError> {
        if version.is_some_and(|version| version != self.engine.catalog.version()) {
            return Ok(false);
        }
        self.again(error, attempt).await
    }

    /// A snapshot of the database; waits a little while all snapshot slots are taken.
    async fn snapshot(&self, scans: &[PlanScan]) -> Result<RowSource, SqlError> {
        for attempt in 1..RETRY.attempts_max {
            match self.snapshot_unless_cancelled(scans).await {
                Err(e) if e.state == SqlState::TOO_MANY_CONNECTIONS => {
                    self.cancel.check()?;
                    self.worker.back_off(RETRY, attempt).await;
                }
                outcome => return outcome,
            }
        }
        self.snapshot_unless_cancelled(scans).await
    }

    /// Taking a snapshot may wait for a disk, or for a node that does not answer.
    async fn snapshot_unless_cancelled(&self, scans: &[PlanScan]) -> Result<RowSource, SqlError> {
        let paths = PathsOf { paths: Arc::clone(&self.engine.paths), forced: self.settings.access_path() };
        tokio::select! {
            biased;
            taken = snapshot(scans, &self.worker, paths) => taken,
            () = self.cancel.cancelled() => Err(self.cancel.error()),
        }
    }

    fn number_source(&self) -> NumberSource {
        NumberSource {
            engine: Arc::clone(&self.engine),
            worker: Rc::clone(&self.worker),
            session: Rc::clone(&self.numbers),
        }
    }

    async fn query(&mut self, query: &PlannedQuery, parameters: Parameters<'_>) -> Result<Output, SqlError> {
        let plan = self.engine.queries.bind(query, parameters, &self.cancel).await?;
        self.cancel.check()?;
        let scans = scans(&plan)?;
        let rows = if scans.is_empty() {
            RowSource::none()
        } else if let Some(txn) = self.transaction.txn() {
            self.engine.queries.gather(&scans, txn, &self.cancel).await?
        } else if all_narrow(&scans) {
            let mut attempt = 0;
            loop {
                attempt += 1;
                let mut txn = self.worker.begin_read_only();
                let outcome = match self.engine.queries.gather(&scans, &mut txn, &self.cancel).await {
                    Ok(rows) => txn.commit().await.map(|_| rows).map_err(|e| error::from_txn(&e)),
                    Err(e) => Err(e),
                };
                match outcome {
                    Ok(rows) => break rows,
                    Err(e) if self.again(&e, attempt).await? => {}
                    Err(e) => return Err(e),
                }
            }
        } else {
            self.snapshot(&scans).await?
        };
        let stream =
            self.engine.queries.run(plan, rows, self.number_source(), &self.cancel, &self.notices, &self.unread);
        Ok(Output::Rows(Rows::Batches(QueryRows::new(stream))))
    }

    /// Runs a writing plan in the open transaction, or in one of its own that is retried after conflicts. `version`: see
    /// [`direct_up_to`](Self::direct_up_to).
    async fn in_transaction(
        &mut self,
        plan: &Plan,
        parameters: Parameters<'_>,
        version: Option<u64>,
    ) -> Result<Effect, SqlError> {
        let engine = Arc::clone(&self.engine);
        let query = match plan {
            Plan::InsertQuery(p) => &p.query,
            Plan::UpdateQuery(p) => &p.query,
            Plan::DeleteQuery(p) => &p.query,
            _ => return Err(SqlError::internal("not a writing plan")),
        };
        let logical = engine.queries.bind(query, parameters, &self.cancel).await?;
        let scans = scans(&logical)?;
        let (cancel, notices, unread) = (self.cancel.clone(), self.notices.clone(), self.unread.clone());
        let number_source = self.number_source();
        let numbers = number_source.numbers();
        let body = async |txn: &mut Txn| -> Result<Effect, SqlError> {
            let rows = engine.queries.gather(&scans, txn, &cancel).await?;
            // All scans have been read, so rows can be written while the query still runs.
            let mut batches =
                engine.queries.run(logical.clone(), rows, number_source.clone(), &cancel, &notices, &unread);
            match plan {
                Plan::InsertQuery(p) => p.apply(txn, &mut batches, parameters, numbers, &cancel).await,
                Plan::UpdateQuery(p) => p.apply(txn, &mut batches, parameters, numbers, &cancel).await,
                Plan::DeleteQuery(p) => p.apply(txn, &mut batches, parameters, &cancel).await,
                _ => Err(SqlError::internal("not a writing plan")),
            }
        };
        if let Some(txn) = self.transaction.txn() {
            return match body(txn).await {
                Ok(effect) => Ok(effect),
                Err(e) => Err(unless_doomed(e, txn).await),
            };
        }
        let table = match plan {
            Plan::InsertQuery(p) => &p.insert.table,
            Plan::UpdateQuery(p) => &p.table,
            Plan::DeleteQuery(p) => &p.table,
            _ => return Err(SqlError::internal("not a writing plan")),
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut txn = self.worker.begin();
            let outcome = match body(&mut txn).await {
                Ok(effect) => txn.commit().await.map(|_| effect).map_err(|e| table.explain(&e, None)),
                Err(e) => {
                    let e = unless_doomed(e, &mut txn).await;
                    drop(txn);
                    Err(e)
                }
            };
            match outcome {
                Ok(effect) => return Ok(effect),
                Err(e) if self.again_as_bound(&e, attempt, version).await? => {}
                Err(e) => return Err(e),
            }
        }
    }

    async fn explain(&mut self, inner: &Bound, parameters: Parameters<'_>, analyze: bool) -> Result<Output, SqlError> {
        let mut lines = Vec::new();
        let clock = self.worker.handle().clone();
        let start = clock.now_ns();
        match &inner.plan {
            Plan::Direct(program) => {
                lines.extend(program.explain());
                if analyze
                    && let Output::Rows(Rows::Direct { tag, .. }) | Output::Command(tag) =
                        self.direct(program, parameters).await?
                {
                    lines.push(format!("  Rows: {}", tag.rows.unwrap_or(0)));
                }
            }
            plan => {
                let query = match plan {
                    Plan::Query(query) => query,
                    Plan::InsertQuery(p) => &p.query,
                    Plan::UpdateQuery(p) => &p.query,
                    Plan::DeleteQuery(p) => &p.query,
                    _ => return Err(SqlError::unsupported("EXPLAIN of this statement")),
                };
                let writes = !matches!(plan, Plan::Query(_));
                if writes {
                    lines.push(format!("{} by primary key, of the rows of:", verb_of(plan)));
                }
                let logical = self.engine.queries.bind(query, parameters, &self.cancel).await?;
                let scans = scans(&logical)?;
                let transactional = writes || self.transaction.is_open() || all_narrow(&scans);
                let rows = if scans.is_empty() {
                    RowSource::none()
                } else if let Some(txn) = self.transaction.txn().filter(|_| analyze && !writes) {
                    self.engine.queries.gather(&scans, txn, &self.cancel).await?
                } else {
                    self.snapshot(&scans).await?
                };
                if !scans.is_empty() {
                    lines.push(
                        if transactional {
                            "Rows: read through the transaction, by index where one helps, and validated at commit"
                        } else {
                            "Rows: one snapshot of the database"
                        }
                        .to_owned(),
                    );
                }
                let shown = self
                    .engine
                    .queries
                    .explain(logical, rows, self.number_source(), &self.cancel, &self.unread, analyze && !writes)
                    .await?;
                lines.extend(shown);
                if analyze && writes {
                    let effect = self.in_transaction(plan, parameters, None).await?;
                    lines.push(format!("Rows written: {}", effect.count));
                }
            }
        }
        if analyze {
            #[allow(clippy::cast_precision_loss)]
            lines.push(format!("Execution Time: {:.3} ms", (clock.now_ns() - start) as f64 / 1e6));
        }
        let count = lines.len() as u64;
        let rows = lines.into_iter().map(|line| vec![Datum::Text(line)]).collect();
        Ok(Output::Rows(Rows::Direct { rows, tag: CommandTag::rows("EXPLAIN", count) }))
    }
}

fn types_match(bound: &Bound, parameters: &[Datum]) -> bool {
    parameters.len() == bound.parameters.len()
        && parameters.iter().zip(&bound.parameters).all(|(datum, to)| fits(datum, *to))
}

/// Whether a parameter's value needs no conversion. A decimal keeps its own scale. A CHAR has no trailing blanks.
fn fits(datum: &Datum, to: ColumnType) -> bool {
    use crate::engine::scalar::same_kind;
    use crate::engine::types::type_of;
    let has_blanks = matches!((datum, to), (Datum::Text(text), ColumnType::Char(_)) if text.ends_with(' '));
    datum.is_null() || (same_kind(type_of(datum), to) && !has_blanks)
}

fn coerce(bound: &Bound, parameters: &[Datum], zone: Zone) -> Result<Vec<Datum>, SqlError> {
    if parameters.len() != bound.parameters.len() {
        return Err(SqlError::new(
            SqlState::PROTOCOL_VIOLATION,
            format!("the statement needs {} parameters, {} are given", bound.parameters.len(), parameters.len()),
        ));
    }
    let given = parameters.iter().zip(&bound.parameters);
    let given =
        given.map(
            |(datum, to)| {
                if fits(datum, *to) { Ok(datum.clone()) } else { Ok(cut_to(cast(datum.clone(), *to, zone)?, *to)) }
            },
        );
    given.collect()
}
