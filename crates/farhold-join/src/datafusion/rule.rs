//! Which joins become ours, and how each is divided among threads.

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
use super::memory::{JoinMemory, PlanMemory, floor_bytes};
use super::{JoinConfig, memory};
use crate::model::Width;
use crate::options::Origin;
use crate::{Algorithm, by_name};

/// Swaps every `HashJoinExec` for a [`JoinExec`]. It belongs right after `join_selection`, which has decided by then what
/// is on which side; [`with_joins`](super::with_joins) puts it there.
#[derive(Debug)]
pub struct JoinRule {
    memory: Arc<JoinMemory>,
}

impl JoinRule {
    /// A rule whose joins all take their memory from `memory`.
    pub fn new(memory: Arc<JoinMemory>) -> Self {
        Self { memory }
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
            memory: PlanMemory::new(Arc::clone(&self.memory), joins, shares),
            joins: joins as u64,
            threads,
            shares,
            asked,
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

/// What the session's settings ask for.
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
    /// Threads that the floors of all joins have room for.
    shares: usize,
    asked: Asked,
}

impl Planning {
    fn swap(&self, node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
        let runner = match describe(join) {
            Err(reason) => Runner::Theirs { reason },
            Ok(description) => {
                let (build, probe) = (Size::of(join.left())?, Size::of(join.right())?);
                let spec = &description.spec;
                let probe_columns = spec.output_columns().into_iter().filter_map(|origin| match origin {
                    Origin::Probe(column) => Some(spec.probe.field(column).data_type()),
                    Origin::Build(_) | Origin::Mark => None,
                });
                let way = self.way(&build, description.null_aware);
                let by = Circumstances {
                    probe: Width::of(probe_columns),
                    threads: self.threads,
                    probers: if way == Way::Shared { self.threads } else { 1 },
                    budget_bytes: self.memory.limit(),
                    given: self.asked.algorithm,
                };
                Runner::Ours {
                    way,
                    description: Arc::new(description),
                    prediction: Box::new(Prediction::new(build.rows, probe.rows, &by)),
                    memory: Arc::clone(&self.memory),
                    algorithm: self.asked.algorithm,
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
        // A build side that will not fit is read back by all threads only if each has its own; every one needs a floor.
        let limit = self.memory.limit();
        let will_spill = build.bytes.is_some_and(|bytes| bytes > limit / 8 * 7);
        let has_room = self.joins * self.threads as u64 * floor_bytes(1) <= limit / 2;
        if will_spill && has_room && !null_aware { Way::Partitioned } else { Way::Shared }
    }
}

/// What statistics say of an input.
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
