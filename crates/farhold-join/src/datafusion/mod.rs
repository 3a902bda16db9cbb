//! DataFusion's hash joins, run by [`Join`](crate::Join).
//!
//! ```text
//!   physical planning ── join_selection ── JoinRule: HashJoinExec ─▶ JoinExec ── distribution, filters, … ── SanityCheckPlan
//!
//!   JoinExec:  left partitions ══ drained at once ══▶ one build side (Join)
//!                                                        │ split; dynamic filter published
//!              right partition i ──▶ share i of the join ──▶ output partition i
//! ```
//!
//! A [`JoinExec`] keeps the [`HashJoinExec`](datafusion::physical_plan::joins::HashJoinExec) that it replaces. That operator answers the planner's questions
//! (schema, statistics, which filters and projections may be pushed below), so that plans around the join are DataFusion's own. Only distribution, order and
//! execution are the `JoinExec`'s. Neither side is repartitioned: all left partitions go into one table, which all right partitions probe. A join that
//! farhold-join cannot execute stays with DataFusion's operator, and EXPLAIN says why. Further rules optimise the operators around the joins of an analytical
//! query:
//!
//! - [`CommonRule`]: parts that a plan has twice (aggregates, joins, windows) are computed once.
//! - [`ReduceRule`]: scans that accept filters get those of the joins above, rows of far scans are tested by them, and filters test cheap conditions first.
//! - [`DecimalsRule`]: arithmetic on small decimals is done in 64 bits.
//! - [`TextsRule`]: texts are compared by their views.
//!
//! Files of this machine are read on the calling thread. Each of these has its setting in [`JoinConfig`].
//!
//! All joins of a session, in all plans, share one [`JoinMemory`], which takes its bytes from DataFusion's memory pool. `examples/datafusion.rs` is a complete
//! program.

mod batches;
mod build;
mod common;
mod conditions;
mod decimals;
mod describe;
mod error;
mod exec;
mod explain;
mod fewer;
mod files;
mod filter;
mod held;
mod members;
mod memory;
mod names;
mod once;
mod origin;
#[cfg(debug_assertions)]
mod promises;
mod reduce;
mod rule;
mod sieve;
mod stream;
mod texts;

use std::sync::Arc;

use datafusion::common::extensions_options;
use datafusion::config::ConfigExtension;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

pub use batches::Batches;
pub use common::{CommonRule, SameScan};
pub use decimals::DecimalsRule;
pub use exec::JoinExec;
pub use filter::TestsKeys;
pub use members::{IsMember, Members};
use memory::GivingWay;
pub use memory::JoinMemory;
pub use reduce::{FilteredScan, ReduceRule};
pub use rule::JoinRule;
pub use texts::TextsRule;

extensions_options! {
    /// Settings of the joins, by the prefix `farhold_join` (`SET farhold_join.algorithm = 'radix'`).
    pub struct JoinConfig {
        /// Joins are run by farhold-join. Off: they stay DataFusion's.
        pub enabled: bool, default = true
        /// Rows of scans below an aggregate or another join go through the filter of a join above.
        pub reduce: bool, default = true
        /// Equal parts of a plan are computed once.
        pub common: bool, default = true
        /// Arithmetic on decimals of at most 64 bits does not check for overflows.
        pub decimals: bool, default = true
        /// Filters test cheap conditions first.
        pub cheap_first: bool, default = true
        /// Texts are compared with constants by their views.
        pub texts: bool, default = true
        /// Files of this machine that the kernel has in memory are read on the calling thread.
        pub files: bool, default = true
        /// A plan waits while joins of other plans hold the memory that its joins need to begin. Off: it fails. For a
        /// client that holds unread rows of another plan, and would wait for itself.
        pub waits: bool, default = true
        /// `auto`: the cost model chooses; or the name of an algorithm of `farhold_join::ALL`.
        pub algorithm: String, default = "auto".into()
        /// The directory to which joins spill; empty: DataFusion's directory for temporary files.
        pub spill_directory: String, default = String::new()
        /// `auto`; `shared`: one build side for all partitions; `partitioned`: a join for each pair of hash partitions;
        /// `single`: one partition.
        pub partitioning: String, default = "auto".into()
    }
}

impl ConfigExtension for JoinConfig {
    const PREFIX: &'static str = "farhold_join";
}

/// Where the joins of a plan that has run continued elsewhere than their algorithms say, the reasons:
/// [`JoinExec::fallback`] of each join.
pub fn fallbacks(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let of_children = plan.children().into_iter().flat_map(fallbacks);
    plan.downcast_ref::<JoinExec>().and_then(JoinExec::fallback).into_iter().chain(of_children).collect()
}

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The session state with these rules:
///
/// - [`JoinRule`] right after DataFusion's `join_selection`;
/// - rules that correct wrong promises of DataFusion's operators, before and during the decision about sorts;
/// - [`CommonRule`] before DataFusion hands dynamic filters down;
/// - [`ReduceRule`], and the one that limits the number of probe partitions, behind DataFusion's other rules and before
///   its `SanityCheckPlan`;
/// - [`DecimalsRule`] and [`TextsRule`] behind all of them;
/// - with debug assertions, one that checks every operator for what it promises of its rows (partitioning, order,
///   constants, exact counts).
///
/// [`JoinConfig`] is added unless the state has one. Unless its setting says otherwise, files of this machine are read another way from now on, in all sessions
/// of the state's runtime environment. The joins of every session that is made with the same `memory` share its limit. The state's memory pool is wrapped in
/// one that releases the joins' kept pages when it needs room.
pub fn with_joins(state: SessionState, memory: &Arc<JoinMemory>) -> SessionState {
    with_joins_over(state, memory, Scans { same: |_, _| false, filtered: |_, _| None, tests_keys: |_| false })
}

/// The rules' questions about scans that only the program knows.
#[derive(Debug, Clone, Copy)]
pub struct Scans {
    /// For [`CommonRule`].
    pub same: SameScan,
    /// For [`ReduceRule`].
    pub filtered: FilteredScan,
    /// For [`JoinRule`], of scans that `filtered` has returned.
    pub tests_keys: TestsKeys,
}

/// [`with_joins`] for a program with scans of its own.
pub fn with_joins_over(state: SessionState, memory: &Arc<JoinMemory>, scans: Scans) -> SessionState {
    let mut rules: Vec<Rule> = state.physical_optimizers().to_vec();
    let at = rules.iter().position(|rule| rule.name() == "join_selection").map_or(0, |at| at + 1);
    rules.insert(at, Arc::new(JoinRule::over(Arc::clone(memory), scans.tests_keys)));
    let before = |name, rules: &[Rule]| rules.iter().position(|rule| rule.name() == name).unwrap_or(rules.len());
    let sorts = before("EnsureRequirements", &rules);
    rules.insert(sorts, Arc::new(held::HeldRule));
    if let Some(rule) = rules.get_mut(sorts + 1) {
        *rule = Arc::new(held::SortsRule::default());
    }
    // `EnsureCooperative` is the last of DataFusion's rules before dynamic filters are handed down.
    rules.insert(before("EnsureCooperative", &rules), Arc::new(CommonRule::new(scans.same)));
    rules.insert(before("SanityCheckPlan", &rules), Arc::new(ReduceRule::new(scans.filtered)));
    rules.insert(before("SanityCheckPlan", &rules), Arc::new(fewer::FewerRule));
    rules.push(Arc::new(DecimalsRule));
    rules.push(Arc::new(TextsRule));
    #[cfg(debug_assertions)]
    rules.push(Arc::new(promises::PromisesRule));
    let mut config = state.config().clone();
    if config.options().extensions.get::<JoinConfig>().is_none() {
        config.options_mut().extensions.insert(JoinConfig::default());
    }
    if config.options().extensions.get::<JoinConfig>().is_some_and(|config| config.enabled && config.files) {
        files::install(state.runtime_env());
    }
    let mut environment = RuntimeEnv::clone(state.runtime_env());
    environment.memory_pool = Arc::new(GivingWay { pool: environment.memory_pool, memory: Arc::clone(memory) });
    SessionStateBuilder::new_from_existing(state)
        .with_config(config)
        .with_runtime_env(Arc::new(environment))
        .with_physical_optimizer_rules(rules)
        .build()
}
