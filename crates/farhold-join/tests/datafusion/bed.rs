//! Sessions with and without the rule over the same tables, and their answers.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, StringViewArray,
};
use arrow::datatypes::Int32Type;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use farhold_join::datafusion::{JoinConfig, JoinMemory, with_joins};

pub const MIB: u64 = 1 << 20;

/// A bijection of 64-bit words.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ word >> 32
}

/// A table: its keys, in every type, and for each row its number and a text.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: &'static str,
    pub keys: Vec<Option<u64>>,
    pub text_bytes: usize,
    pub partitions: usize,
}

impl Table {
    pub fn batch(&self) -> RecordBatch {
        let keys = || self.keys.iter().copied();
        let text = |key: u64| format!("the key {key}");
        let words: Vec<Option<String>> = keys().map(|key| key.map(text)).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new((0..self.keys.len() as i64).map(Some).collect::<Int64Array>())),
            ("k64", Arc::new(keys().map(|key| key.map(|key| key as i64 - 5)).collect::<Int64Array>())),
            ("k32", Arc::new(keys().map(|key| key.map(|key| key as i32)).collect::<Int32Array>())),
            ("text", Arc::new(keys().map(|key| key.map(text)).collect::<StringArray>())),
            ("view", Arc::new(keys().map(|key| key.map(text)).collect::<StringViewArray>())),
            ("day", Arc::new(keys().map(|key| key.map(|key| key as i32)).collect::<Date32Array>())),
            (
                "price",
                Arc::new(
                    keys()
                        .map(|key| key.map(|key| i128::from(key) << 70))
                        .collect::<Decimal128Array>()
                        .with_precision_and_scale(38, 2)
                        .unwrap(),
                ),
            ),
            ("real", Arc::new(keys().map(|key| key.map(|key| key as f64 / 4.0)).collect::<Float64Array>())),
            ("word", Arc::new(words.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>())),
            (
                "pad",
                Arc::new(StringArray::from_iter_values(
                    (0..self.keys.len()).map(|row| format!("{row:0width$}", width = self.text_bytes)),
                )),
            ),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    fn register(&self, context: &SessionContext) {
        let batch = self.batch();
        let partitions = self.partitions.max(1);
        let rows = batch.num_rows().div_ceil(partitions).max(1);
        let part = |number: usize| {
            let start = (number * rows).min(batch.num_rows());
            let end = (start + rows).min(batch.num_rows());
            // Batches of uneven length.
            let middle = start + (end - start) / 3;
            vec![batch.slice(start, middle - start), batch.slice(middle, end - middle)]
        };
        let parts = (0..partitions).map(part).collect();
        context.register_table(self.name, Arc::new(MemTable::try_new(batch.schema(), parts).unwrap())).unwrap();
    }
}

/// Settings of the joins.
pub fn config(partitioning: &str, algorithm: &str) -> JoinConfig {
    let mut config = JoinConfig::default();
    config.partitioning = partitioning.into();
    config.algorithm = algorithm.into();
    config
}

/// A session, its runtime and the memory of its joins.
pub struct Bed {
    pub context: SessionContext,
    pub runtime: Arc<RuntimeEnv>,
    pub memory: Arc<JoinMemory>,
}

impl Bed {
    /// A session with the rule; `budget` bytes for everything.
    pub fn new(tables: &[Table], threads: usize, budget: Option<u64>, config: JoinConfig) -> Self {
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(bytes) = budget {
            runtime = runtime.with_memory_limit(bytes as usize, 1.0);
        }
        Self::with_runtime(tables, threads, runtime, None, config)
    }

    pub fn with_runtime(
        tables: &[Table],
        threads: usize,
        runtime: RuntimeEnvBuilder,
        join_bytes: Option<u64>,
        config: JoinConfig,
    ) -> Self {
        let runtime = runtime.build_arc().unwrap();
        let session = session(threads).with_option_extension(config);
        let state = SessionStateBuilder::new()
            .with_config(session)
            .with_runtime_env(Arc::clone(&runtime))
            .with_default_features()
            .build();
        let memory = JoinMemory::new(&runtime.memory_pool, join_bytes);
        let context = SessionContext::new_with_state(with_joins(state, &memory));
        for table in tables {
            table.register(&context);
        }
        Self { context, runtime, memory }
    }

    /// Rows of a query, as text, sorted.
    pub async fn rows(&self, query: &str) -> Result<Vec<String>> {
        rows(&self.context, query).await
    }

    /// The plan of a query, as EXPLAIN shows it.
    pub async fn explain(&self, query: &str) -> String {
        rows(&self.context, &format!("EXPLAIN {query}")).await.unwrap().join("\n")
    }

    pub fn assert_clean(&self) {
        assert_eq!(self.memory.used(), 0, "memory is back");
        self.memory.give_up_kept();
        assert_eq!(self.runtime.memory_pool.reserved(), 0, "DataFusion's memory is back");
        for directory in self.runtime.disk_manager.temp_dir_paths() {
            let Ok(here) = directory.canonicalize() else { continue };
            assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "no file is left");
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            assert_eq!(open.filter(|path| path.starts_with(&here) && *path != here).count(), 0, "no file is open");
        }
    }
}

fn session(threads: usize) -> SessionConfig {
    // Batches and thresholds are so small that a small input takes every path, and sides stay as they are written.
    let mut session = SessionConfig::new().with_target_partitions(threads).with_batch_size(700);
    let optimizer = &mut session.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = 1000;
    optimizer.hash_join_single_partition_threshold_rows = 10;
    optimizer.join_reordering = false;
    session
}

/// The same tables without the rule.
pub fn plain(tables: &[Table], threads: usize) -> SessionContext {
    let context = SessionContext::new_with_config(session(threads));
    for table in tables {
        table.register(&context);
    }
    context
}

pub async fn rows(context: &SessionContext, query: &str) -> Result<Vec<String>> {
    Ok(text_of(&context.sql(query).await?.collect().await?))
}

/// Rows as text, sorted.
pub fn text_of(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("null");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        rows.extend(
            (0..batch.num_rows())
                .map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|")),
        );
    }
    rows.sort_unstable();
    rows
}

/// Keys of `rows` rows, of which every `nulls`-th is null.
pub fn keys(rows: u64, seed: u64, nulls: u64, key: impl Fn(u64) -> u64) -> Vec<Option<u64>> {
    let random = (0..rows).map(|row| mix(row ^ seed << 40));
    random.map(|random| (nulls == 0 || !random.is_multiple_of(nulls)).then(|| key(random / 13))).collect()
}

/// A multi-threaded runtime for a test; when it returns, every task of the runtime has ended.
pub fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap().block_on(future)
}
