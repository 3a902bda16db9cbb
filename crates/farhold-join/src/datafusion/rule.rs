//! Decides which joins farhold-join runs, and how each is divided among threads.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs, StatisticsContext};

use super::describe::describe;
use super::exec::{JoinExec, Runner, Way};
use super::explain::{Circumstances, Prediction};
use super::filter::TestsKeys;
use super::memory::{JoinMemory, PlanMemory, floor_bytes};
use super::{JoinConfig, memory};
use crate::model::Width;
use crate::{Algorithm, by_name};

/// Replaces every `HashJoinExec` by a [`JoinExec`]. It belongs right after `join_selection`, which has decided which
/// input is on which side; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug)]
pub struct JoinRule {
    memory: Arc<JoinMemory>,
    tests_keys: TestsKeys,
}

impl JoinRule {
    /// A rule whose joins all take their memory from `memory`.
    pub fn new(memory: Arc<JoinMemory>) -> Self {
        Self::over(memory, |_| false)
    }

    /// As [`Self::new`], for a program with scans that test keys.
    pub fn over(memory: Arc<JoinMemory>, tests_keys: TestsKeys) -> Self {
        Self { memory, tests_keys }
    }
}

impl PhysicalOptimizerRule for JoinRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let config = options.extensions.get::<JoinConfig>().cloned().unwrap_or_default();
        if !config.enabled {
            return Ok(plan);
        }
        let joins = count(&plan)?;
        if joins == 0 {
            return Ok(plan);
        }
        let threads = options.execution.target_partitions.max(1);
        let asked = Asked::of(&config)?;
        let shares = if joins as u64 * floor_bytes(threads) <= self.memory.limit() { threads } else { 1 };
        let planning = Planning {
            memory: PlanMemory::new(Arc::clone(&self.memory), joins as u64 * floor_bytes(shares)),
            joins: joins as u64,
            threads,
            shares,
            asked,
            tests_keys: self.tests_keys,
        };
        plan.transform_up(|node| planning.swap(node)).data()
    }

    fn name(&self) -> &'static str {
        "farhold_join"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn count(plan: &Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut joins = 0;
    plan.apply(|node| {
        joins += usize::from(node.is::<HashJoinExec>());
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(joins)
}

/// The session's settings.
struct Asked {
    algorithm: Option<&'static dyn Algorithm>,
    way: Option<Way>,
}

impl Asked {
    fn of(config: &JoinConfig) -> Result<Self> {
        let wrong = |setting: &str, value: &str| {
            DataFusionError::Configuration(format!("farhold_join.{setting} cannot be {value:?}"))
        };
        let algorithm = match config.algorithm.as_str() {
            "auto" => None,
            name => Some(by_name(name).ok_or_else(|| wrong("algorithm", name))?),
        };
        let way = match config.partitioning.as_str() {
            "auto" => None,
            "shared" => Some(Way::Shared),
            "single" => Some(Way::Single),
            "partitioned" => Some(Way::Partitioned),
            other => return Err(wrong("partitioning", other)),
        };
        Ok(Self { algorithm, way })
    }
}

struct Planning {
    memory: Arc<memory::PlanMemory>,
    joins: u64,
    threads: usize,
    /// Threads for which the floors of all joins have room.
    shares: usize,
    asked: Asked,
    tests_keys: TestsKeys,
}

impl Planning {
    fn swap(&self, node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
        let runner = match describe(join) {
            Err(reason) => Runner::Theirs { reason },
            Ok(description) => {
                let (build, probe) = (Size::of(join.left())?, Size::of(join.right())?);
                let spec = &description.spec;
                let way = self.way(&build, description.null_aware);
                let by = Circumstances {
                    probe: Width::of(spec.probe_columns_of_pairs()),
                    threads: self.threads,
                    probers: if way == Way::Shared { self.threads } else { 1 },
                    budget_bytes: self.memory.limit(),
                    given: self.asked.algorithm,
                };
                Runner::Ours {
                    way,
                    description: Arc::new(description),
                    prediction: Box::new(Prediction::new(build.rows, probe.rows, by)),
                    memory: Arc::clone(&self.memory),
                    algorithm: self.asked.algorithm,
                    tests_keys: self.tests_keys,
                }
            }
        };
        let planned = join.builder().build()?;
        Ok(Transformed::yes(Arc::new(JoinExec::new(planned, runner)?)))
    }

    fn way(&self, build: &Size, null_aware: bool) -> Way {
        if let Some(way) = self.asked.way {
            return if way == Way::Partitioned && null_aware { Way::Shared } else { way };
        }
        if self.shares == 1 {
            return Way::Single;
        }
        // A build side that will not fit is divided by its keys from the start, so that every thread builds, probes and
        // reads back its own part.
        let will_spill = build.bytes.is_some_and(|bytes| bytes > self.memory.limit() / 8 * 7);
        if will_spill && self.has_room_for_partitions() && !null_aware { Way::Partitioned } else { Way::Shared }
    }

    /// Whether the floors fit: every partition of every join needs one.
    fn has_room_for_partitions(&self) -> bool {
        self.joins * self.threads as u64 * floor_bytes(1) <= self.memory.limit() / 2
    }
}

/// The size of an input by statistics.
struct Size {
    rows: Option<u64>,
    bytes: Option<u64>,
}

impl Size {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
        let number = |value: Option<&usize>| value.map(|&value| value as u64);
        Ok(Self {
            rows: number(statistics.num_rows.get_value()),
            bytes: number(statistics.total_byte_size.get_value()),
        })
    }
}
