//! Queries that need a planner: DataFusion, on its own threads.
//!
//! A front-end thread only parses. Planning and execution happen on the query runtime, whose threads all sessions
//! share. Batches come back through a bounded channel, so a slow client slows its query down and few batches wait in
//! memory.
//!
//! ```text
//!   front end   parse ─┐         ┌─► answer Parse ─┐          ┌─► scans: snapshot, or rows by the Txn ─┐        ┌─► rows
//!   runtime            └─► plan ─┘                 └─► bind ──┘                                        └─► run ─┘
//! ```
//! A query makes these three trips, also without parameters. `plan` and `bind` stay apart because `bind` folds `now()`
//! to the time of a transaction that begins with the execution, and because the errors of constants (`1 / 0`) belong to
//! the execution: Parse and Describe succeed. `bind` and `run` stay apart because only the optimised plan shows what it
//! scans, and the session reads that on its own thread, to which its transaction and its worker belong.

mod added;
mod aggregates;
mod apart;
mod arrays;
mod assigned;
mod at_homes;
mod at_zone;
mod bounded;
mod bounds;
mod casts;
mod catalog;
mod checked;
mod choices;
mod clauses;
mod clocks;
mod coerce;
mod collected;
mod computed_keys;
mod constants;
mod contradictions;
mod correlated;
mod correlation;
mod dates;
mod dependencies;
mod derived;
mod domains;
mod early;
mod equijoins;
mod exchanges;
mod floats;
mod folded;
mod frame_bounds;
mod frames;
mod functions;
mod gathered;
mod guard;
mod halves;
mod held;
mod interval_literals;
mod intervals;
mod laterals;
mod limits;
mod listed;
mod listed_values;
mod lists;
mod loops;
mod members;
mod moments;
mod multisets;
mod named_windows;
mod names;
mod numbers;
mod one_step;
mod parameters;
mod parts;
mod plan_scans;
mod projections;
mod quantified;
mod quantifiers;
mod regexes;
mod repeated_keys;
mod results;
mod rewrite;
mod rows;
mod scalars;
mod separate;
mod series;
mod session;
mod similar;
mod single_rows;
mod slices;
mod stopped;
mod stream;
mod subqueries;
mod texts;
mod variances;
mod volatile;
mod windows;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::TimestampMicrosecondType;
use arrow::temporal_conversions::as_datetime;
use datafusion::common::ScalarValue;
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast;
use farhold_join::datafusion::JoinConfig;
use farhold_txn::Txn;
use tokio::runtime::Runtime;
use tokio::task::JoinError;

use super::cancel::CancelHandle;
use super::catalog::{Catalog, Tables};
use super::notices::Notices;
use super::parse::Origin;
use super::scalar::{ParameterTypes, Parameters};
use super::scan::{BATCH_ROWS, QueryInput, RowSource};
use super::types::{from_field, to_scalar};
use super::{ColumnType, Datum, EngineConfig, OutputColumn, STACK_BYTES, error};
use crate::SqlError;
use crate::value::Zone;
use clocks::Clock;

pub(crate) use assigned::assigned;
pub(crate) use catalog::ROWS_SCHEMA;
pub(in crate::engine) use floats::without_key;
pub(crate) use numbers::NumberSource;
pub(crate) use parameters::to_sql as sql_type;
use plan_scans::gather;
pub(crate) use plan_scans::{PlanScan, all_narrow, scans, snapshot};
use session::session_state;
pub(crate) use stream::{BatchStream, Unread};

/// The capacity of the channel between a query and its reader.
const CHANNEL_BATCHES: usize = 4;

/// How often a statement is planned to infer the types of its parameters; more often with set operations, each of which
/// gives types to the next one.
const PLANS_FOR_TYPES_MAX: usize = 2;
const PLANS_FOR_TYPES_OF_SETS_MAX: usize = 3;

/// How long a closing engine waits for its queries to stop.
const SHUTDOWN: std::time::Duration = std::time::Duration::from_secs(5);

/// The planner with its threads and its memory.
pub(crate) struct QueryEngine {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    state: SessionState,
    database: Arc<catalog::Database>,
    rewriter: Arc<rewrite::Rewriter>,
    nodes: u64,
}

/// A planned query, with its parameters not yet bound.
#[derive(Clone, Debug)]
pub(crate) struct PlannedQuery {
    pub(crate) plan: Arc<LogicalPlan>,
    pub(crate) parameters: Vec<ColumnType>,
    pub(crate) columns: Vec<OutputColumn>,
    /// Whether it advances a sequence.
    pub(crate) takes_numbers: bool,
}

/// How far query threads stand back, if processors are short: commits, and the threads that write journals and feed columns, go first.
const QUERIES_NICE: u8 = 5;

impl QueryEngine {
    /// Starts the threads.
    pub(crate) fn new(catalog: &Arc<Catalog>, config: &EngineConfig, nodes: u64) -> Result<Self, SqlError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads_of_queries())
            .thread_name("farhold-query")
            .thread_stack_size(STACK_BYTES)
            .on_thread_start(|| farhold_fabric::processor::stand_back(QUERIES_NICE))
            .enable_time()
            .build()
            .map_err(|e| SqlError::internal(format!("the query threads cannot be started: {e}")))?;
        let database = Arc::new(catalog::Database::new(Arc::clone(catalog), nodes));
        let state = session_state(&database, catalog, config).map_err(|e| error::from_datafusion(&e))?;
        let rewriter = Arc::new(rewrite::Rewriter::new(&state));
        Ok(Self { runtime: Some(runtime), state, database, rewriter, nodes })
    }

    /// The query threads.
    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime lives as long as the engine")
    }

    fn state_with(&self, rows: RowSource, cancel: CancelHandle) -> SessionState {
        let mut state = self.state.clone();
        state.config_mut().set_extension(Arc::new(QueryInput { rows, cancel }));
        state
    }

    /// The state for a query that runs while its session has unread rows of others: it must not wait for memory that
    /// their joins hold.
    fn state_beside(&self, unread: &Unread, rows: RowSource, cancel: CancelHandle) -> SessionState {
        let mut state = self.state_with(rows, cancel);
        if unread.any() {
            let joins = state.config_mut().options_mut().extensions.get_mut::<JoinConfig>();
            joins.expect("the joins' settings").waits = false;
        }
        state
    }

    /// Plans a query over `tables`, for a user in a time zone. `types` are the known types of parameters; the others are
    /// inferred. A cancelled statement does not wait for the planner, which stops before its next step.
    pub(crate) async fn plan(
        &self,
        query: ast::Statement,
        origin: &Origin,
        (tables, types): (&Arc<Tables>, &ParameterTypes),
        (user, zone): (&str, Zone),
        cancel: &CancelHandle,
    ) -> Result<PlannedQuery, SqlError> {
        let state = self.state_with(RowSource::Nothing, CancelHandle::default());
        let rewriter = Arc::clone(&self.rewriter);
        let (origin, tables, types, user) = (origin.clone(), Arc::clone(tables), types.clone(), user.to_owned());
        let planner = async move {
            let (statement, names) = rewriter.rewrite(query, &origin, &tables, &state, &user)?;
            let mut planned = Box::pin(plan(&state, statement, &types)).await?;
            if let Some(names) = names.filter(|names| names.len() == planned.columns.len()) {
                for (column, name) in planned.columns.iter_mut().zip(names) {
                    column.name = name;
                }
            }
            Ok(planned)
        };
        stopped::stoppable(self.runtime(), cancel, Clock { zone, times: None }, planner).await
    }

    /// Binds the parameters and optimises.
    pub(crate) async fn bind(
        &self,
        query: &PlannedQuery,
        parameters: Parameters<'_>,
        cancel: &CancelHandle,
    ) -> Result<LogicalPlan, SqlError> {
        let mut scalars = Vec::with_capacity(parameters.values.len());
        for (datum, data_type) in parameters.values.iter().zip(&query.parameters) {
            scalars.push(match (datum, data_type) {
                // The value has its own precision and scale; the parameter's type has none.
                (Datum::Decimal { unscaled, scale }, ColumnType::Decimal { .. }) => {
                    coerce::decimal_scalar(*unscaled, *scale)
                }
                // Beside other decimals it takes no digits.
                (Datum::Null, ColumnType::Decimal { .. }) => ScalarValue::Decimal128(None, 1, 0),
                (Datum::Text(text), ColumnType::Char(_)) => {
                    to_scalar(&Datum::Text(text.trim_end_matches(' ').to_owned()), *data_type, parameters.zone)?
                }
                _ => to_scalar(datum, *data_type, parameters.zone)?,
            });
        }
        let mut state = self.state_with(RowSource::Nothing, CancelHandle::default());
        let now = as_datetime::<TimestampMicrosecondType>(parameters.times.transaction_us);
        state.execution_props_mut().query_execution_start_time = now.map(|now| now.and_utc());
        let plan = LogicalPlan::clone(&query.plan);
        let clock = Clock { zone: parameters.zone, times: Some(parameters.times) };
        let planner = async move {
            let plan = if scalars.is_empty() { plan } else { parameters::bind_values(plan, scalars)? };
            let optimized = folded::while_planning(|| state.optimize(&plan));
            let bound = optimized.and_then(|plan| equijoins::with_null_keys(plan, &state));
            bound.map_err(|e| error::from_optimizer(&e, correlated::has_some(&plan)))
        };
        stopped::stoppable(self.runtime(), cancel, clock, planner).await
    }

    /// Reads the rows that a plan scans through a transaction. They include its own writes, and everything is validated
    /// at commit. The columns that the plan uses are reserved in the queries' memory until the query ends.
    pub(crate) async fn gather(
        &self,
        scans: &[PlanScan],
        txn: &mut Txn,
        cancel: &CancelHandle,
    ) -> Result<RowSource, SqlError> {
        let room = MemoryConsumer::new("rows of the transaction").register(&self.state.runtime_env().memory_pool);
        let mut gathered = HashMap::with_capacity(scans.len());
        for scan in scans {
            gathered.insert(scan.key.clone(), gather(scan, txn, cancel, &room, self.nodes).await?);
        }
        Ok(RowSource::Gathered(gathered, Some(room)))
    }

    /// Runs a bound plan; the returned stream delivers its batches.
    pub(crate) fn run(
        &self,
        plan: LogicalPlan,
        rows: RowSource,
        number_source: NumberSource,
        cancel: &CancelHandle,
        notices: &Notices,
        unread: &Unread,
    ) -> BatchStream {
        let (number_requests, requests) = numbers::request_channel(number_source);
        let stop = CancelHandle::running();
        let state = self.state_beside(unread, rows, stop.clone());
        let (sender, receiver) = tokio::sync::mpsc::channel(CHANNEL_BATCHES);
        let (flag, notices) = (stop.clone(), notices.clone());
        let task = self.runtime().spawn(async move {
            let run = stopped::cancellable(
                flag.clone(),
                stream::run(&state, plan, &number_requests, &flag, &notices, &sender),
            );
            let outcome = tokio::select! {
                biased;
                () = flag.cancelled() => flag.check(),
                outcome = run => outcome,
            };
            if let Err(error) = outcome {
                // A scan that notices the flag first reports another error.
                let error = flag.check().err().unwrap_or(error);
                let _ = sender.send(Err(error)).await;
            }
        });
        BatchStream::new(receiver, requests, task, stop, cancel.clone(), unread)
    }

    /// The physical plan as text; with `analyze`, after running it.
    pub(crate) async fn explain(
        &self,
        plan: LogicalPlan,
        rows: RowSource,
        number_source: NumberSource,
        cancel: &CancelHandle,
        unread: &Unread,
        analyze: bool,
    ) -> Result<Vec<String>, SqlError> {
        let (number_requests, mut requests) = numbers::request_channel(number_source);
        let stop = CancelHandle::running();
        let state = self.state_beside(unread, rows, stop.clone());
        let flag = stop.clone();
        let task = self.runtime().spawn(async move {
            let explain = stopped::cancellable(flag.clone(), async {
                let plan = numbers::attach(plan, &number_requests)?;
                let plan = collected::attach(plan, &state.runtime_env().memory_pool, &flag)?;
                let physical = state.query_planner().create_physical_plan(&plan, &state).await?;
                let mut text = displayable(physical.as_ref()).indent(false).to_string();
                if analyze {
                    let slices::Sliced { plan: physical, context, room: _room } =
                        slices::slice(guard::guard(physical, &flag)?, &state, &flag)?;
                    let mut stream = execute_stream(Arc::clone(&physical), context)?;
                    while let Some(batch) = futures::StreamExt::next(&mut stream).await {
                        batch?;
                    }
                    let shown: Arc<dyn ExecutionPlan> = physical;
                    text = datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(shown.as_ref())
                        .indent(false)
                        .to_string();
                }
                Ok(text)
            });
            // The caller has its answer by then, but without this the plan would keep running.
            tokio::select! {
                biased;
                () = flag.cancelled() => Err(flag.error()),
                outcome = explain => outcome.map_err(|e: datafusion::error::DataFusionError| error::from_datafusion(&e)),
            }
        });
        let outcome = until_cancelled(cancel, requests.answer_until(task)).await;
        if cancel.is_cancelled() {
            stop.stop_as(cancel);
        }
        let text = outcome?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// The result of a task on the query threads, unless the statement is stopped first.
async fn until_cancelled<T>(
    cancel: &CancelHandle,
    task: impl Future<Output = Result<Result<T, SqlError>, JoinError>>,
) -> Result<T, SqlError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(cancel.error()),
        outcome = task => outcome.map_err(|e| SqlError::internal(format!("a query thread failed: {e}")))?,
    }
}

impl Drop for QueryEngine {
    fn drop(&mut self) {
        // The registered schemas refer to the list of catalogs, which refers to this catalog: the cycle must be broken.
        self.database.forget_others();
        // A runtime must not be shut down from within a runtime, so a thread does it; queries stop at their next page.
        if let Some(runtime) = self.runtime.take() {
            let _ = std::thread::spawn(move || runtime.shutdown_timeout(SHUTDOWN)).join();
        }
    }
}

async fn plan(
    state: &SessionState,
    mut statement: ast::Statement,
    known: &ParameterTypes,
) -> Result<PlannedQuery, SqlError> {
    let count = parameters::count(&statement).max(known.known.len());
    if count == 0 {
        let plan = to_plan(state, statement).await?;
        return finish(state, plan, Vec::new());
    }
    let mut types = known.known.clone();
    types.resize(count, None);
    if types.iter().any(Option::is_none) {
        parameters::infer_by_syntax(&statement, &mut types);
        // A plan reveals the types of most other parameters, and the next plan some more; the rest become text.
        let mut plans_max = PLANS_FOR_TYPES_MAX;
        let mut plans = 0;
        while plans < plans_max {
            plans += 1;
            let open = types.iter().filter(|data_type| data_type.is_none()).count();
            let mut known = statement.clone();
            parameters::cast_known(&mut known, &types);
            match to_plan(state, known).await {
                Ok(plan) if parameters::infer(&plan, &mut types) => plans_max = PLANS_FOR_TYPES_OF_SETS_MAX,
                Ok(_) => {}
                Err(_) => parameters::infer_by_columns(&statement, &mut types),
            }
            let still_open = types.iter().filter(|data_type| data_type.is_none()).count();
            if still_open == 0 || still_open == open {
                break;
            }
        }
        parameters::infer_by_literals(&statement, &mut types);
    }
    let types: Vec<ColumnType> = types.into_iter().map(|t| t.unwrap_or(ColumnType::Text)).collect();
    let texts = parameters::stated_texts(known);
    parameters::cast_known(&mut statement, &texts);
    // A parameter declared as text gets its type by a cast.
    let is_text = |index: usize| texts.get(index).is_some_and(Option::is_some);
    let planned = |(index, of): (usize, &ColumnType)| if is_text(index) { ColumnType::Text } else { *of };
    let prepare = ast::Statement::Prepare {
        name: ast::Ident::new("statement"),
        data_types: types.iter().enumerate().map(planned).map(parameters::to_sql).collect(),
        statement: Box::new(statement),
    };
    let plan = match to_plan(state, prepare).await? {
        LogicalPlan::Statement(datafusion::logical_expr::Statement::Prepare(prepare)) => {
            Arc::unwrap_or_clone(prepare.input)
        }
        other => other,
    };
    finish(state, plan, types)
}

async fn to_plan(state: &SessionState, mut statement: ast::Statement) -> Result<LogicalPlan, SqlError> {
    dependencies::mark_keys(&mut statement);
    results::mark_cases(&mut statement);
    let statement = DataFusionStatement::Statement(Box::new(statement));
    let plan = state.statement_to_plan(statement).await.and_then(dependencies::own_keys);
    match plan.map_err(|e| error::from_datafusion(&e))?.data {
        LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => {
            Err(SqlError::unsupported("this statement"))
        }
        plan => Ok(plan),
    }
}

fn finish(state: &SessionState, plan: LogicalPlan, parameters: Vec<ColumnType>) -> Result<PlannedQuery, SqlError> {
    // The result types are those of the analysed plan. The plan that is kept is analysed again when its parameters are
    // known.
    let typed = state
        .analyzer()
        .execute_and_check(plan.clone(), state.config_options(), |_, _| {})
        .map_err(|e| error::from_datafusion(&e))?;
    let columns = typed
        .schema()
        .fields()
        .iter()
        .map(|field| OutputColumn {
            name: field.name().clone(),
            data_type: from_field(field).unwrap_or(ColumnType::Text),
            arrow_type: field.data_type().clone(),
        })
        .collect();
    let takes_numbers = numbers::takes_numbers(&plan).map_err(|e| error::from_datafusion(&e))?;
    Ok(PlannedQuery { plan: Arc::new(plan), parameters, columns, takes_numbers })
}
