//! SQL whose joins run on a GPU, an emulated one. The rows are those of DataFusion's own joins, and EXPLAIN names the
//! device. A device that fails in the middle leaves the query to the CPU, as EXPLAIN ANALYZE reports, and is not used
//! later.
//!
//! Alone in its program: the device that joins use belongs to the process.

#[path = "../datafusion/bed.rs"]
#[allow(dead_code, reason = "the tests of DataFusion without a GPU use all of it")]
mod bed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::prelude::SessionContext;
use farhold_join::datafusion::JoinConfig;
use farhold_join::gpu::{Description, Device, Driver, Emulation, Fault, Gpu};

use self::bed::{Bed, Table, config, keys, on_runtime, plain, rows, text_of};

/// The process's device for the duration of a test, or of a part of one.
struct Turn {
    device: Arc<Emulation>,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    /// Hands over a device that the model believes to cost almost nothing. So the model sends joins there although the
    /// emulation is slow; its speed means nothing.
    fn on(device: Emulation) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = Gpu::new(Arc::new(emulation())).unwrap().describe().unwrap();
        let description = Description {
            to_device_bytes_per_s: 1e13,
            from_device_bytes_per_s: 1e13,
            both_bytes_per_s: 1e13,
            kernel_read_bytes_per_s: 1e13,
            device_bytes_per_s: 1e13,
            host_read_bytes_per_s: 1e13,
            launch_s: 0.0,
            ..measured
        };
        let device = Arc::new(device);
        Arc::new(Gpu::described(Arc::clone(&device) as Arc<dyn Device>, description)).hand_over();
        Self { device, _turn: turn }
    }

    fn assert_clean(&self, bed: &Bed) {
        bed.assert_clean();
        assert_eq!(self.device.live_allocations(), 0, "memory is left in the device");
    }
}

fn emulation() -> Emulation {
    Emulation::new(64 << 20, 1).mapping()
}

const NAME: &str = "emulation on the CPU (no GPU)";

fn tables() -> [Table; 2] {
    let table = |name, seed, rows| Table {
        name,
        keys: keys(rows, seed, 9, |random| random % 200),
        text_bytes: 8,
        partitions: 2,
    };
    [table("l", 1, 300), table("r", 2, 500)]
}

/// Twelve million rows, of which the condition of [`FEW_OF_MANY`] leaves three thousand, while statistics expect a
/// fifth. So the model sends a join to the device, which has little to do.
fn many() -> MemTable {
    let ids = 0..100_000_i64;
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(ids.clone().collect::<Int64Array>())),
        ("k64", Arc::new(ids.map(|id| (id % 7 > 0).then_some(id / 4000 * 10)).collect::<Int64Array>())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    MemTable::try_new(batch.schema(), vec![vec![batch.clone(); 60], vec![batch; 60]]).unwrap()
}

const FEW_OF_MANY: &str = "SELECT l.id FROM l JOIN (SELECT k64 FROM many WHERE id % 4000 = 3) m ON l.k64 = m.k64";

/// A session with farhold-join's joins, and one without.
fn sessions(config: JoinConfig) -> (Bed, SessionContext) {
    let (bed, plain) = (Bed::new(&tables(), 2, None, config), plain(&tables(), 2));
    for context in [&bed.context, &plain] {
        context.register_table("many", Arc::new(many())).unwrap();
    }
    (bed, plain)
}

/// The rows of a query, and the plan after the same execution.
async fn run(bed: &Bed, query: &str) -> (Vec<String>, String) {
    let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), bed.context.task_ctx()).await.unwrap();
    (text_of(&batches), DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(true).to_string())
}

#[test]
fn every_join_of_the_gpu_gives_the_rows_of_plain_datafusion() {
    let queries = [
        "SELECT l.id, r.id, r.pad FROM l JOIN r ON l.k64 = r.k64",
        "SELECT l.id, r.id FROM l JOIN r ON l.k64 = r.k64 AND (l.id + r.id) % 3 <> 0",
        "SELECT l.id, r.id FROM l LEFT JOIN r ON l.text = r.text AND l.day = r.day",
        "SELECT l.pad, r.id FROM l RIGHT JOIN r ON l.price = r.price",
        "SELECT l.id, r.id, l.k64, r.k64 FROM l FULL JOIN r ON l.k32 = r.k32",
        "SELECT l.id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE l.k64 = r.k64)",
        "SELECT l.id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE l.k64 = r.k64 AND l.id > r.id)",
        "SELECT l.id FROM l WHERE l.id % 3 = 0 OR EXISTS (SELECT 1 FROM r WHERE l.view = r.view)",
        "SELECT l.id FROM l WHERE l.k64 NOT IN (SELECT r.k64 FROM r WHERE r.k64 IS NOT NULL)",
        "SELECT x.k64, count(*), sum(r.id) FROM l x JOIN l y ON x.k64 = y.k64 JOIN r ON y.k64 = r.k64 GROUP BY x.k64",
    ];
    on_runtime(async {
        for driver in Driver::ALL {
            for partitioning in ["shared", "partitioned"] {
                let turn = Turn::on(emulation());
                let (bed, plain) = sessions(config(partitioning, driver.name()));
                for query in queries {
                    let calls = turn.device.calls();
                    let (answer, plan) = run(&bed, query).await;
                    assert!(answer == rows(&plain, query).await.unwrap(), "{}, {partitioning}: {query}", driver.name());
                    assert!(turn.device.calls() > calls + 50, "{query}: the device has done nothing");
                    for part in [
                        format!("algorithm={}, device={NAME}, reason=asked for", driver.name()),
                        format!("actual=[{} on {NAME}/", driver.name()),
                    ] {
                        assert!(plan.contains(&part), "{part} in {plan}");
                    }
                    assert!(!plan.contains("joined on the CPU"), "{plan}");
                    turn.assert_clean(&bed);
                }
            }
        }
    });
}

#[test]
fn the_model_sends_a_join_to_the_gpu_and_explain_says_so() {
    on_runtime(async {
        let turn = Turn::on(emulation());
        let (bed, plain) = sessions(JoinConfig::default());
        let expected = rows(&plain, FEW_OF_MANY).await.unwrap();
        assert!(expected.len() > 1000, "{} rows", expected.len());
        let of_device = format!("device={NAME}, reason=moving 36 MiB over a link of 10000 GB/s costs less than");
        let explained = bed.explain(FEW_OF_MANY).await;
        assert!(explained.contains(&of_device) && !explained.contains("actual="), "{explained}");
        let (answer, plan) = run(&bed, FEW_OF_MANY).await;
        assert!(answer == expected);
        let analyzed = bed.explain(&format!("ANALYZE {FEW_OF_MANY}")).await;
        for plan in [plan, analyzed] {
            assert!(plan.contains(&of_device) && plan.contains("actual=["), "{plan}");
            assert!(
                Driver::ALL.iter().any(|driver| plan.contains(&format!("actual=[{} on {NAME}/", driver.name()))),
                "{plan}"
            );
            assert!(!plan.contains("joined on the CPU"), "{plan}");
        }
        // A join of few rows stays on the CPU while the same device is present.
        let calls = turn.device.calls();
        let few = bed.explain("ANALYZE SELECT l.id FROM l JOIN r ON l.k64 = r.k64").await;
        assert!(few.contains("device=cpu (800 tuples are too few for a GPU)"), "{few}");
        assert_eq!(turn.device.calls(), calls);
        turn.assert_clean(&bed);
    });
}

/// The device fails at one of many places, in each way. The query that is running and the next one give the right rows.
#[test]
fn a_gpu_that_fails_in_the_middle_leaves_the_query_to_the_cpu_and_is_left_alone() {
    on_runtime(async {
        let (calls, expected) = {
            let turn = Turn::on(emulation());
            let (bed, plain) = sessions(JoinConfig::default());
            run(&bed, FEW_OF_MANY).await;
            (turn.device.calls(), rows(&plain, FEW_OF_MANY).await.unwrap())
        };
        assert!(calls > 200, "{calls}");
        let mut said = 0;
        for fault in [Fault::Lost, Fault::Once, Fault::Busy] {
            // The threads' shares vary between runs, and so do the probes of two threads: not every run makes as many
            // calls as the first.
            for at in (0..calls * 3 / 4).step_by(calls as usize / 9) {
                let turn = Turn::on(emulation().failing_at(at, fault));
                let (bed, _) = sessions(JoinConfig::default());
                let context = format!("{fault:?} at call {at} of {calls}");
                let (answer, plan) = run(&bed, FEW_OF_MANY).await;
                assert!(answer == expected, "{context}");
                turn.assert_clean(&bed);
                if fault == Fault::Busy {
                    // A busy device may have room the next time.
                    said += usize::from(plan.contains("joined on the CPU: the GPU has no room"));
                    continue;
                }
                // The device fails in the join, or before it when it is asked for its memory: as the join was planned,
                // or as it began.
                let of_join = "joined on the CPU: the GPU failed (";
                assert!(plan.contains("emulated fault") && plan.contains("the GPU failed ("), "{context}: {plan}");
                let is_left_alone = plan.contains("cpu (") && plan.contains("the GPU failed (properties)");
                assert!(plan.contains(of_join) || is_left_alone, "{context}: {plan}");
                said += usize::from(plan.contains(of_join) && plan.contains(&format!("device={NAME}, reason=moving")));
                let calls = turn.device.calls();
                let (answer, later) = run(&bed, FEW_OF_MANY).await;
                assert!(answer == expected, "{context}, later");
                let gone = "device=cpu (no GPU can be used: it has failed before: the GPU failed (";
                assert!(later.contains(gone) && !later.contains("joined on the CPU"), "{context}: {later}");
                assert_eq!(turn.device.calls(), calls, "{context}: the device is asked again");
            }
        }
        assert!(said > 15, "{said}");
    });
}

#[test]
fn explain_analyze_tells_of_the_fault_and_whoever_names_the_lost_device_hears_an_error() {
    on_runtime(async {
        for driver in Driver::ALL {
            let turn = Turn::on(emulation().failing_at(60, Fault::Lost));
            let (bed, _) = sessions(config("shared", driver.name()));
            let query = "SELECT l.id, r.id FROM l JOIN r ON l.k64 = r.k64";
            let analyzed = bed.explain(&format!("ANALYZE {query}")).await;
            let name = driver.name();
            for part in [
                format!("algorithm={name}, device={NAME}, reason=asked for"),
                format!("actual=[{name} on {NAME}/"),
                "joined on the CPU: the GPU failed (".into(),
                "emulated fault, seen at call ".into(),
            ] {
                assert!(analyzed.contains(&part), "{part} in {analyzed}");
            }
            let calls = turn.device.calls();
            let error = bed.rows(query).await.unwrap_err().to_string();
            assert!(error.contains("no GPU can be used: it has failed before: the GPU failed"), "{error}");
            assert!(
                bed.explain(query)
                    .await
                    .contains(&format!("algorithm={name}, device=none (no GPU can be used: it has failed before"))
            );
            bed.context.sql("SET farhold_join.algorithm = 'auto'").await.unwrap();
            assert!(bed.rows(query).await.unwrap().len() > 300);
            assert_eq!(turn.device.calls(), calls);
            turn.assert_clean(&bed);
        }
    });
}
