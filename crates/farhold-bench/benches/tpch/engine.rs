//! DataFusion over the files, as it is or with Farhold's joins.

use std::path::Path;
use std::time::Instant;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use farhold_bench::workload::tpch;
use farhold_join::datafusion::{JoinMemory, with_joins};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::answer::Answer;

/// Whose joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Joins {
    /// DataFusion's own.
    Plain,
    /// Farhold's, by its rule.
    Farhold,
}

/// DataFusion with its threads and its memory.
pub struct Engine {
    joins: Joins,
    context: SessionContext,
    runtime: Runtime,
}

impl Engine {
    /// Opens the tables in `folder`; a setting is `name=value`, and the plain engine ignores those of Farhold's joins.
    pub fn open(
        folder: &Path,
        joins: Joins,
        threads: usize,
        memory: usize,
        settings: &[String],
    ) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let environment = RuntimeEnvBuilder::new().with_memory_limit(memory, 1.0).build_arc()?;
        let mut config = SessionConfig::new().with_target_partitions(threads);
        // The specification's numbers are decimals: 0.06 + 0.01 is 0.07.
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = match joins {
            Joins::Plain => SessionContext::new_with_config_rt(config, environment),
            Joins::Farhold => {
                let memory = JoinMemory::new(&environment.memory_pool, None);
                let state = SessionStateBuilder::new()
                    .with_config(config)
                    .with_runtime_env(environment)
                    .with_default_features()
                    .build();
                SessionContext::new_with_state(with_joins(state, &memory))
            }
        };
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting} is not NAME=VALUE"))?;
            if joins == Joins::Farhold || !name.starts_with("farhold_join.") {
                runtime.block_on(context.sql(&format!("SET {name} = '{value}'")))?;
            }
        }
        for table in tpch::TABLES {
            let path = folder.join(table);
            let path = path.to_str().ok_or("the folder's name is not UTF-8")?;
            runtime.block_on(context.register_parquet(table, path, ParquetReadOptions::default()))?;
        }
        Ok(Self { joins, context, runtime })
    }

    /// What the record calls it.
    pub fn name(&self) -> &'static str {
        match self.joins {
            Joins::Plain => "plain",
            Joins::Farhold => "farhold",
        }
    }

    /// Plans and runs a query to its end: seconds and rows.
    pub fn run(&self, sql: &str) -> Result<(f64, Answer), String> {
        let context = self.context.clone();
        let sql = sql.to_owned();
        #[expect(clippy::disallowed_methods, reason = "a bench measures time")]
        let start = Instant::now();
        let task = self.runtime.spawn(async move { context.sql(&sql).await?.collect().await });
        let batches =
            self.runtime.block_on(task).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((seconds, cells(&batches)?))
    }
}

fn cells(batches: &[RecordBatch]) -> Result<Answer, String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| column.value(row).to_string()).collect());
        }
    }
    Ok(Answer::new(rows))
}
