//! Failures: a typed error, and nothing left behind.

use std::error::Error;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::execute_stream;
use farhold_join::JoinError;
use farhold_join::datafusion::JoinConfig;
use futures::{StreamExt, TryStreamExt};

use super::bed::{Bed, MIB, Table, config, keys, on_runtime};

fn tables() -> [Table; 2] {
    let table = |name, seed| Table {
        name,
        keys: keys(20_000, seed, 0, |random| random % 30_000),
        text_bytes: 150,
        partitions: 3,
    };
    [table("l", 1), table("r", 2)]
}

const QUERY: &str = "SELECT l.id, r.id, l.pad, r.pad FROM l FULL JOIN r ON l.k64 = r.k64";

/// The join's own error in a chain of others.
fn join_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a JoinError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref() {
            Some(DataFusionError::External(inner)) => Some(&**inner),
            _ => error.source(),
        };
    }
    None
}

#[test]
fn a_budget_below_the_minimum() {
    let bed = on_runtime(async {
        let bed = Bed::new(&tables(), 2, Some(MIB / 2), JoinConfig::default());
        let error = bed.rows(QUERY).await.unwrap_err();
        assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
        assert!(
            error.to_string().contains("a join needs at least 1048576 bytes of memory; 524288 are free"),
            "{error}"
        );
        bed
    });
    bed.assert_clean();
}

#[test]
fn a_spill_directory_that_is_gone() {
    let bed = on_runtime(async {
        let directory = tempfile::tempdir().unwrap();
        let disk =
            DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![directory.path().to_path_buf()]));
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(4 << 20, 1.0).with_disk_manager_builder(disk);
        // Shared: DataFusion repartitions nothing. A repartitioning would need the directory too, and might fail first.
        let bed = Bed::with_runtime(&tables(), 2, runtime, None, config("shared", "auto"));
        std::fs::remove_dir_all(directory.path()).unwrap();
        let error = bed.rows(QUERY).await.unwrap_err();
        assert!(matches!(join_error(&error), Some(JoinError::Spill(_))), "{error:?}");
        bed
    });
    bed.assert_clean();
}

#[test]
fn no_spill_directory_is_an_error_only_if_something_is_spilled() {
    on_runtime(async {
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(256 << 20, 1.0).with_disk_manager_builder(disk);
        let bed = Bed::with_runtime(&tables(), 2, runtime.clone(), Some(4 * MIB), JoinConfig::default());
        let error = bed.rows(QUERY).await.unwrap_err();
        assert!(matches!(join_error(&error), Some(JoinError::Spill(_))), "{error:?}");
        let bed = Bed::with_runtime(&tables(), 2, runtime, None, JoinConfig::default());
        assert!(bed.rows(QUERY).await.unwrap().len() > 20_000);
    });
}

#[test]
fn a_query_that_is_cancelled_leaves_nothing() {
    for partitioning in ["shared", "partitioned", "single"] {
        for batches in [0, 1, 5, 30] {
            let bed = on_runtime(async {
                let bed = Bed::new(&tables(), 2, Some(6 * MIB), config(partitioning, "auto"));
                let plan = bed.context.sql(QUERY).await.unwrap().create_physical_plan().await.unwrap();
                let mut stream = execute_stream(plan, bed.context.task_ctx()).unwrap();
                for _ in 0..batches {
                    stream.next().await.unwrap().unwrap();
                }
                bed
            });
            bed.assert_clean();
        }
    }
}

#[test]
fn a_panic_is_an_error_of_the_query() {
    let bed = on_runtime(async {
        let bed = Bed::new(&tables(), 2, Some(16 * MIB), JoinConfig::default());
        let panic = |arguments: &[ColumnarValue]| -> Result<ColumnarValue> {
            assert!(arguments.is_empty(), "planted");
            Ok(arguments[0].clone())
        };
        let types = vec![DataType::Int64, DataType::Int64];
        bed.context.register_udf(create_udf("boom", types, DataType::Boolean, Volatility::Volatile, Arc::new(panic)));
        for query in [
            "SELECT l.id FROM l LEFT JOIN r ON l.k64 = r.k64 AND boom(l.id, r.id)",
            "SELECT l.id FROM l JOIN r ON l.k64 = r.k64 WHERE boom(l.id, l.id)",
        ] {
            let error = bed.rows(query).await.unwrap_err();
            let found = join_error(&error);
            assert!(matches!(found, Some(JoinError::WorkerPanicked(why)) if why.contains("planted")), "{error:?}");
        }
        bed
    });
    bed.assert_clean();
}

#[test]
fn a_join_has_its_floor_before_other_operators_take_memory() {
    let bed = on_runtime(async {
        let bed = Bed::new(&tables(), 2, Some(2 * MIB), config("single", "auto"));
        let plan = bed.context.sql("SELECT l.id FROM l JOIN r ON l.k64 = r.k64 WHERE l.id < 10").await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let rows = execute_stream(plan, bed.context.task_ctx()).unwrap();
        assert_eq!(bed.memory.used(), MIB, "of a query that has not been asked for rows");
        // An operator that runs ahead of the join, as one that repartitions its input does.
        let other = MemoryConsumer::new("other").register(&bed.runtime.memory_pool);
        other.try_grow(MIB as usize - (64 << 10)).unwrap();
        let batches: Vec<_> = rows.try_collect().await.unwrap();
        assert!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() > 0);
        other.free();
        bed.memory.give_up_kept();
        let full = MemoryConsumer::new("full").register(&bed.runtime.memory_pool);
        full.try_grow((MIB + MIB / 2) as usize).unwrap();
        let error = bed.rows(QUERY).await.unwrap_err();
        assert!(error.to_string().contains("1048576 bytes of memory; 524288 are free"), "{error}");
        drop(full);
        bed
    });
    bed.assert_clean();
}

#[test]
fn an_expression_that_fails_keeps_its_error() {
    let bed = on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "SELECT l.id FROM l LEFT JOIN r ON l.k64 = r.k64 AND l.id / (r.id - r.id) = 1";
        let error = bed.rows(query).await.unwrap_err();
        assert!(error.to_string().contains("Divide by zero"), "{error}");
        bed
    });
    bed.assert_clean();
}
