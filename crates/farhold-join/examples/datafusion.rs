//! Any DataFusion program with Farhold's joins: `cargo run -p farhold-join --features datafusion --example datafusion`.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use farhold_join::datafusion::{JoinMemory, with_joins};

#[tokio::main]
async fn main() -> datafusion::error::Result<()> {
    // One limit for the whole process, joins included. What does not fit is spilled.
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(256 << 20, 1.0).build_arc()?;
    let state = SessionStateBuilder::new()
        .with_config(SessionConfig::new().with_target_partitions(4))
        .with_runtime_env(Arc::clone(&runtime))
        .with_default_features()
        .build();
    let memory = JoinMemory::new(&runtime.memory_pool, None);
    let context = SessionContext::new_with_state(with_joins(state, &memory));

    context.sql("CREATE TABLE part AS SELECT value AS id, value % 10 AS kind FROM range(1000)").await?;
    context.sql("CREATE TABLE sale AS SELECT value % 1000 AS part, value AS price FROM range(100000)").await?;
    let query = "SELECT kind, count(*), sum(price) FROM sale JOIN part ON part = id GROUP BY kind ORDER BY kind";
    context.sql(query).await?.show().await?;
    context.sql(&format!("EXPLAIN ANALYZE {query}")).await?.show().await
}
