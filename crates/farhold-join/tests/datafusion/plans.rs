//! What plans look like, and what they do beyond rows: explanations, limits, filters for scans.

use std::fmt;
use std::sync::{Arc, Mutex};

use arrow::array::{AsArray, RecordBatch};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_join::datafusion::JoinConfig;
use futures::{StreamExt, TryStreamExt};

use super::bed::{Bed, MIB, Table, config, keys, on_runtime, plain, rows, text_of};

fn tables() -> [Table; 3] {
    let table = |name, seed, rows| Table {
        name,
        keys: keys(rows, seed, 9, |random| random % 400),
        text_bytes: 8,
        partitions: 2,
    };
    [table("l", 1, 500), table("r", 2, 900), table("s", 3, 300)]
}

#[test]
fn explain_shows_who_runs_a_join_and_why_and_analyze_what_came_of_it() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "SELECT l.id FROM l JOIN r ON l.k64 = r.k64";
        let plan = bed.explain(query).await;
        for part in ["JoinExec: partitioning=shared, algorithm=", "reason=", "predicted=[500 x 900 rows in "] {
            assert!(plan.contains(part), "{part} in {plan}");
        }
        assert!(plan.contains("device=cpu (1400 tuples are too few for a GPU), reason="), "{plan}");
        assert!(!plan.contains("actual=") && !plan.contains("RepartitionExec: partitioning=Hash"), "{plan}");
        let plan = bed.explain(&format!("ANALYZE {query}")).await;
        for part in [
            "predicted=[500 x 900 rows in ",
            "actual=[",
            " 500 x 900 rows, built in ",
            "0 bytes spilled",
            "build_time=",
        ] {
            assert!(plan.contains(part), "{part} in {plan}");
        }

        bed.context.sql("SET farhold_join.algorithm = 'radix'").await.unwrap();
        let plan = bed.explain(&format!("ANALYZE {query}")).await;
        assert!(plan.contains("algorithm=radix, device=cpu, reason=asked for"), "{plan}");
        assert!(plan.contains("actual=[radix/"), "{plan}");
        bed.context.sql("SET farhold_join.algorithm = 'triton'").await.unwrap();
        if farhold_join::by_name("triton").unwrap().check_available().is_err() {
            let plan = bed.explain(query).await;
            assert!(plan.contains("algorithm=triton, device=none (no GPU can be used: "), "{plan}");
            let error = bed.rows(query).await.unwrap_err().to_string();
            assert!(error.contains("no GPU can be used"), "{error}");
        }
        bed.context.sql("SET farhold_join.algorithm = 'none'").await.unwrap();
        let error = bed.rows(query).await.unwrap_err().to_string();
        assert!(error.contains("farhold_join.algorithm cannot be \"none\""), "{error}");
        bed.context.sql("SET farhold_join.enabled = false").await.unwrap();
        assert!(bed.explain(query).await.contains("HashJoinExec: mode="));
    });
}

#[test]
fn what_cannot_be_ours_is_theirs_and_says_why() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "SELECT a.id, b.id FROM (SELECT id, [k64] AS k FROM l) a JOIN (SELECT id, [k64] AS k FROM r) b ON a.k = b.k";
        let plan = bed.explain(query).await;
        assert!(plan.contains("JoinExec: run by DataFusion (not ours: keys of type List"), "{plan}");
        let expected = rows(&plain(&tables(), 2), query).await.unwrap();
        assert!(!expected.is_empty() && bed.rows(query).await.unwrap() == expected);
    });
}

#[test]
fn plans_of_several_joins_with_orders_groups_and_limits() {
    let queries = [
        "SELECT l.k64, count(*), sum(r.id) FROM l JOIN r ON l.k64 = r.k64 JOIN s ON s.k32 = r.k32 GROUP BY l.k64",
        "SELECT l.id, r.id, s.id FROM l LEFT JOIN r ON l.k64 = r.k64 FULL JOIN s ON s.text = l.text AND s.id > r.id",
        "SELECT count(*) FROM (SELECT r.k64 FROM l JOIN r ON l.k64 = r.k64 GROUP BY r.k64) x JOIN s ON s.k64 = x.k64",
        "SELECT l.id, r.id FROM l JOIN r ON l.k64 = r.k64 WHERE l.id IN (SELECT id FROM s) ORDER BY r.id DESC, l.id LIMIT 20",
        "SELECT count(*) FROM (SELECT l.id FROM l JOIN r ON l.k64 = r.k64 LIMIT 13) x",
        "SELECT count(*) FROM (SELECT l.id FROM l LEFT JOIN r ON l.k64 = r.k64 WHERE l.id > 3 LIMIT 450) x",
        "SELECT x.id, y.id FROM l x JOIN l y ON x.k64 = y.k64 UNION ALL SELECT r.id, s.id FROM r JOIN s ON r.day = s.day",
        "WITH j AS (SELECT l.id AS a, r.id AS b FROM l JOIN r ON l.k64 = r.k64) SELECT * FROM j x JOIN j y ON x.a = y.b",
        "SELECT l.id, (SELECT max(r.id) FROM r WHERE r.k64 = l.k64) FROM l",
    ];
    on_runtime(async {
        for threads in [1, 2, 5] {
            let plain = plain(&tables(), threads);
            for budget in [None, Some(24 << 20)] {
                let bed = Bed::new(&tables(), threads, budget, JoinConfig::default());
                for query in queries {
                    let expected = rows(&plain, query).await.unwrap();
                    let answer = bed.rows(query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
                    assert!(answer == expected, "{threads} threads, {budget:?}: {query}");
                }
                bed.assert_clean();
            }
        }
    });
}

#[test]
fn a_plan_that_is_reset_runs_again() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "SELECT l.id, r.id FROM l FULL JOIN r ON l.k64 = r.k64";
        let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
        let mut counts = Vec::new();
        for _ in 0..3 {
            let plan = datafusion::physical_plan::execution_plan::reset_plan_states(Arc::clone(&plan)).unwrap();
            let batches = datafusion::physical_plan::collect(plan, bed.context.task_ctx()).await.unwrap();
            counts.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert!(counts[0] > 500 && counts.iter().all(|&count| count == counts[0]), "{counts:?}");
        bed.assert_clean();
    });
}

/// DataFusion's nested loops run an input again that did not fit, while they still hold the streams of the first time.
#[test]
fn a_partition_runs_again_while_its_former_stream_goes() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 1, None, JoinConfig::default());
        let query = "SELECT l.id, r.id, s.id FROM l JOIN r ON l.k64 = r.k64 FULL JOIN s ON s.k32 = r.k32";
        let expected = rows(&plain(&tables(), 1), query).await.unwrap();
        let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
        let begin = || datafusion::physical_plan::execute_stream(Arc::clone(&plan), bed.context.task_ctx()).unwrap();
        let mut former = begin();
        let first = former.next().await.unwrap().unwrap();
        let again: Vec<RecordBatch> = begin().try_collect().await.unwrap();
        assert!(text_of(&again) == expected);
        let mut all: Vec<RecordBatch> = former.try_collect().await.unwrap();
        all.push(first);
        assert!(text_of(&all) == expected, "the former has its own");
        let last: Vec<RecordBatch> = begin().try_collect().await.unwrap();
        assert!(text_of(&last) == expected);
        bed.assert_clean();
    });
}

/// A table that takes every filter that a join offers it, and records the filter at the begin of its scan.
#[derive(Debug)]
struct Watched {
    batch: RecordBatch,
    told: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl TableProvider for Watched {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.batch.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns: Vec<usize> = projection.cloned().unwrap_or_else(|| (0..self.batch.num_columns()).collect());
        let batch = self.batch.project(&columns)?;
        Ok(Arc::new(WatchedScan::new(batch, Arc::clone(&self.told), Vec::new())))
    }
}

#[derive(Debug)]
struct WatchedScan {
    batch: RecordBatch,
    told: Arc<Mutex<Vec<String>>>,
    filters: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl WatchedScan {
    fn new(batch: RecordBatch, told: Arc<Mutex<Vec<String>>>, filters: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(batch.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { batch, told, filters, properties: Arc::new(properties) }
    }
}

impl DisplayAs for WatchedScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("WatchedScan")
    }
}

impl ExecutionPlan for WatchedScan {
    fn name(&self) -> &'static str {
        "WatchedScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.filters.iter().try_for_each(|filter| f(filter).map(|_| ()))?;
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (batch, told, filters) = (self.batch.clone(), Arc::clone(&self.told), self.filters.clone());
        let scan = futures::stream::once(async move {
            let mut batch = batch;
            for filter in &filters {
                told.lock().unwrap().push(filter.to_string());
                let keep = filter.evaluate(&batch)?.into_array(batch.num_rows())?;
                let keep = keep.as_boolean().clone();
                batch = arrow::compute::filter_record_batch(&batch, &keep)?;
            }
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.batch.schema(), scan)))
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut filters = self.filters.clone();
        filters.extend(result.parent_filters.iter().map(|filter| Arc::clone(&filter.filter)));
        let mut propagation: FilterPushdownPropagation<Arc<dyn ExecutionPlan>> =
            FilterPushdownPropagation::with_parent_pushdown_result(vec![PushedDown::Yes; result.parent_filters.len()]);
        propagation.updated_node =
            Some(Arc::new(WatchedScan::new(self.batch.clone(), Arc::clone(&self.told), filters)));
        Ok(propagation)
    }
}

/// An aggregate lies between the join and the scan, so that rows of the scan go through the join's filter.
#[test]
fn rows_of_far_scans_go_through_the_filter_of_the_join_above() {
    on_runtime(async {
        let build = Table { name: "l", keys: keys(100, 7, 5, |random| random % 9000), text_bytes: 4, partitions: 2 };
        let probe = Table { name: "r", keys: keys(3000, 8, 6, |random| random % 9000), text_bytes: 4, partitions: 1 };
        let query = "SELECT l.id, a.n FROM l JOIN (SELECT k64, count(*) AS n FROM r GROUP BY k64) a ON l.k64 = a.k64";
        let plain = plain(&[build.clone(), probe.clone()], 2);
        for partitioning in ["shared", "partitioned"] {
            for reduce in [true, false] {
                let mut config = config(partitioning, "auto");
                config.reduce = reduce;
                let bed = Bed::new(std::slice::from_ref(&build), 2, None, config);
                let watched = Watched { batch: probe.batch(), told: Arc::default() };
                bed.context.register_table("r", Arc::new(watched)).unwrap();
                assert!(
                    bed.rows(query).await.unwrap() == rows(&plain, query).await.unwrap(),
                    "{partitioning}, {reduce}"
                );
                let analyzed = bed.rows(&format!("EXPLAIN ANALYZE {query}")).await.unwrap();
                assert_eq!(format!("{analyzed:?}").contains("is a build key"), reduce, "{partitioning}: {analyzed:?}");
            }
        }
    });
}

#[test]
fn scans_of_the_probe_side_are_told_what_the_build_side_has() {
    on_runtime(async {
        for (distinct, partitioning) in [(50, "shared"), (50, "partitioned"), (3000, "shared"), (3000, "partitioned")] {
            let build = Table {
                name: "l",
                keys: keys(2000, 4, 5, |random| 1000 + random % distinct),
                text_bytes: 4,
                partitions: 2,
            };
            let probe =
                Table { name: "r", keys: keys(3000, 5, 6, |random| random % 9000), text_bytes: 4, partitions: 1 };
            let few = Table { keys: vec![Some(17), None, Some(19), Some(17)], ..build.clone() };
            for build in [few, Table { keys: vec![], ..build.clone() }, build] {
                let bed = Bed::new(std::slice::from_ref(&build), 2, None, config(partitioning, "auto"));
                let told = Arc::new(Mutex::new(Vec::new()));
                let watched = Watched { batch: probe.batch(), told: Arc::clone(&told) };
                bed.context.register_table("r", Arc::new(watched)).unwrap();
                let plain = plain(&[build.clone(), probe.clone()], 2);
                for query in [
                    "SELECT l.id, r.id FROM l JOIN r ON l.k64 = r.k64",
                    "SELECT l.id FROM l LEFT JOIN r ON l.k64 = r.k64",
                    "SELECT l.id, r.id FROM l JOIN r ON l.k64 IS NOT DISTINCT FROM r.k64",
                    "SELECT l.id FROM l WHERE l.k64 NOT IN (SELECT r.k64 FROM r WHERE r.id > 100)",
                    "SELECT l.id, r.id FROM l JOIN r ON l.text = r.text AND l.day = r.day",
                ] {
                    let answer = bed.rows(query).await.unwrap();
                    assert!(answer == rows(&plain, query).await.unwrap(), "{distinct}, {partitioning}: {query}");
                }
                let told = told.lock().unwrap().join("\n");
                let expected = match build.keys.len() {
                    0 => None,
                    4 => Some("k64@1 >= 12 AND k64@1 <= 14"),
                    _ => Some("k64@1 >= 995 AND"),
                };
                if let Some(expected) = expected {
                    let told = told.replace("@0", "@1");
                    assert!(told.contains(expected), "{expected} in {told}");
                    assert!(told.contains("text@1 >= the key"), "{told}");
                }
            }
        }
    });
}

/// Pages that a join has used are kept and counted. A consumer that finds the session's pool empty gets them.
#[test]
fn kept_pages_are_the_pools_and_give_way_in_the_session() {
    on_runtime(async {
        let table = |name| Table { name, keys: (0..300_000).map(Some).collect(), text_bytes: 1, partitions: 2 };
        let bed = Bed::new(&[table("l"), table("r")], 2, Some(256 * MIB), config("shared", "no_partition"));
        let query = "SELECT count(*), sum(l.id) FROM l JOIN r ON l.k64 = r.k64";
        for _ in 0..2 {
            assert_eq!(bed.rows(query).await.unwrap().len(), 1);
            assert!(bed.memory.kept() >= 2 * MIB && bed.memory.kept() <= 32 * MIB, "{}", bed.memory.kept());
            assert_eq!((bed.memory.used(), bed.runtime.memory_pool.reserved() as u64), (0, bed.memory.kept()));
        }
        let everything = MemoryConsumer::new("a sort").register(&bed.context.runtime_env().memory_pool);
        everything.try_grow(256 << 20).unwrap();
        assert_eq!(bed.memory.kept(), 0);
        drop(everything);
        bed.assert_clean();
    });
}
