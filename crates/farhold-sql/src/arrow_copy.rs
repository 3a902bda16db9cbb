//! The baseline of the analytical path: DataFusion over a copy of the same rows in Arrow memory.
//!
//! Only the bench uses it. The copy has as many partitions as a scan of the live rows, and the planner has the same
//! settings, so the only difference is the source of the rows: decoded from live objects, or already columnar.

use std::rc::Rc;
use std::sync::Arc;

use datafusion::common::config::Dialect;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use farhold_txn::{Node, Worker};
use tokio::runtime::Runtime;

use crate::engine::{Engine, EngineConfig, Output, Rows};
use crate::{SqlError, SqlState};

/// All tables of a node's database as Arrow batches.
pub struct ArrowCopy {
    context: SessionContext,
    runtime: Runtime,
}

impl ArrowCopy {
    /// Copies every table, each as one snapshot.
    ///
    /// # Errors
    /// Any error of a `SELECT *`; threads that cannot be started.
    pub async fn of(node: &Arc<Node>, worker: &Worker) -> Result<Self, SqlError> {
        let config = EngineConfig::default();
        let threads = config.query_threads;
        let engine = Engine::open(node.clone(), config, worker).await?;
        let mut session = engine.session(Rc::new(worker.clone()), "farhold");
        let mut settings = SessionConfig::new().with_target_partitions(threads);
        settings.options_mut().sql_parser.dialect = Dialect::PostgreSQL;
        settings.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = SessionContext::new_with_config(settings);
        for table in node.tables() {
            let select = session.prepare(&format!("SELECT * FROM \"{}\"", table.name()), &[]).await?;
            let Output::Rows(Rows::Batches(mut rows)) = session.execute(&select, &[]).await? else {
                return Err(SqlError::new(SqlState::INTERNAL_ERROR, "a whole table did not come as batches"));
            };
            let mut partitions = vec![Vec::new(); threads];
            let mut schema = None;
            let mut next = 0;
            while let Some(batch) = rows.next().await {
                let batch = batch?;
                schema.get_or_insert_with(|| batch.schema());
                partitions[next % threads].push(batch);
                next += 1;
            }
            let Some(schema) = schema else { continue };
            let memory = MemTable::try_new(schema, partitions).map_err(|error| refused(&error))?;
            context.register_table(table.name(), Arc::new(memory)).map_err(|error| refused(&error))?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(|error| SqlError::new(SqlState::INTERNAL_ERROR, format!("threads: {error}")))?;
        Ok(Self { context, runtime })
    }

    /// Plans and runs a query to its end. Returns the number of rows.
    ///
    /// # Errors
    /// DataFusion's errors.
    pub fn query(&self, sql: &str) -> Result<u64, SqlError> {
        let context = self.context.clone();
        let sql = sql.to_owned();
        let run = async move {
            // On a worker thread, like the engine's queries.
            let task = tokio::spawn(async move { context.sql(&sql).await?.collect().await });
            let batches = task.await.map_err(|error| SqlError::new(SqlState::INTERNAL_ERROR, error.to_string()))?;
            let batches = batches.map_err(|error| refused(&error))?;
            Ok(batches.iter().map(|batch| batch.num_rows() as u64).sum())
        };
        self.runtime.block_on(run)
    }
}

fn refused(error: &datafusion::error::DataFusionError) -> SqlError {
    SqlError::new(SqlState::INTERNAL_ERROR, format!("DataFusion: {error}"))
}
