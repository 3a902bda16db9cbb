//! DataFusion's session: its options, rules and functions, including our own.

use std::sync::Arc;

use datafusion::catalog::CatalogProvider;
use datafusion::common::config::Dialect;
use datafusion::config::ExtensionOptions;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::optimizer::OptimizerRule;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::{SessionConfig, SessionContext};
use farhold_join::datafusion::{JoinConfig, JoinMemory, Scans, with_joins_over};

use super::{
    BATCH_ROWS, added, aggregates, apart, arrays, assigned, at_homes, at_zone, bounded, casts, catalog, clocks, coerce,
    computed_keys, constants, contradictions, correlated, correlation, dates, dependencies, derived, domains, early,
    equijoins, floats, gathered, halves, laterals, limits, listed, lists, members, moments, multisets, numbers,
    one_step, parts, projections, quantified, regexes, repeated_keys, results, rewrite, scalars, separate, single_rows,
    stopped, texts, variances, volatile,
};
use crate::engine::EngineConfig;
use crate::engine::catalog::Catalog;
use crate::engine::scan::{filtered_scan, is_same_scan, tests_keys};

/// Rules of DataFusion 55 that give wrong results.
///
/// - `aggregate_statistics` counts a constant column as one distinct value, even if it has no row or is NULL. Our scans
///   provide no exact statistics for it anyway.
/// - `FilterPushdown` identifies the columns of a projection and of most other operators only by name, which several
///   columns of a join may share: a condition on one reaches the scan of another. The rule for logical plans, which
///   distinguishes relations, has pushed everything down before.
const DEFECTIVE_RULES: [&str; 2] = ["aggregate_statistics", "FilterPushdown"];

/// The template of each statement's session.
pub(super) fn session_state(
    database: &Arc<catalog::Database>,
    catalog: &Arc<Catalog>,
    config: &EngineConfig,
) -> Result<SessionState, DataFusionError> {
    let mut session = SessionConfig::new()
        .with_default_catalog_and_schema(&config.database, "public")
        .with_create_default_catalog_and_schema(false)
        .with_target_partitions(config.threads_of_queries())
        .with_batch_size(BATCH_ROWS);
    let mut joins = JoinConfig::default();
    joins.spill_directory = config.spill_directory.to_string_lossy().into_owned();
    // They gain nothing over this database's scans, which decide most conditions themselves and read no files (docs/design/0024).
    (joins.texts, joins.cheap_first, joins.files) = (false, false, false);
    for rule in &config.without_rules {
        ExtensionOptions::set(&mut joins, rule, "false")?;
    }
    session = session.with_option_extension(joins);
    let options = session.options_mut();
    options.sql_parser.dialect = Dialect::PostgreSQL;
    options.sql_parser.parse_float_as_decimal = true;
    // If the conditions of a CASE become constant, only one of the two plans may infer that it is not nullable.
    options.execution.skip_physical_aggregate_schema_check = true;
    // It panics if a key is NaN (DataFusion 55).
    options.optimizer.enable_topk_aggregation = false;
    // For stacked windows it uses the larger of their lookaheads instead of the sum (DataFusion 55).
    options.optimizer.enable_window_limits = false;
    let pool = TrackConsumersPool::new(
        GreedyMemoryPool::new(config.query_memory_bytes),
        std::num::NonZeroUsize::MIN.saturating_add(4),
    );
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .build_arc()?;
    let context = SessionContext::new_with_config_rt(session, runtime);
    context.register_catalog(&config.database, Arc::clone(database) as Arc<dyn CatalogProvider>);
    let relations = Arc::clone(catalog) as Arc<dyn crate::pg_catalog::Relations>;
    crate::pg_catalog::register(&context, &config.database, &relations)?;
    rewrite::register_functions(&context);
    scalars::register(&context);
    quantified::register(&context);
    numbers::register(&context);
    moments::register(&context);
    regexes::register(&context);
    bounded::register(&context);
    texts::register(&context);
    dates::register(&context);
    parts::register(&context);
    domains::register(&context);
    halves::register(&context);
    aggregates::register(&context);
    gathered::register(&context);
    assigned::register(&context);
    added::register(&context);
    arrays::register(&context);
    separate::register(&context);
    correlation::register(&context);
    variances::register(&context);
    casts::register(&context);
    clocks::register(&context);
    at_zone::register(&context);
    results::register(&context);
    listed::register(&context);
    let is_kept = |rule: &&Arc<dyn PhysicalOptimizerRule + Send + Sync>| !DEFECTIVE_RULES.contains(&rule.name());
    let rules = context.state().physical_optimizers().iter().filter(is_kept).map(projections::in_place_of).collect();
    let equalities: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(equijoins::Equalities::default());
    let conditions: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(constants::Conditions::default());
    let joins: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(volatile::Joins::default());
    let ours = [equalities, conditions, joins];
    let in_place = |rule: &Arc<dyn OptimizerRule + Send + Sync>| {
        Arc::clone(ours.iter().find(|own| own.name() == rule.name()).unwrap_or(rule))
    };
    let optimizers = early::before_columns(context.state().optimizers().iter().map(in_place).collect());
    let optimizers = apart::with_zones_apart(dependencies::with_dependency_rules(optimizers));
    let mut state = SessionStateBuilder::new_from_existing(context.state())
        .with_optimizer_rules(optimizers)
        .with_physical_optimizer_rules(one_step::before_combining(limits::kept_whole(at_homes::before_distribution(
            contradictions::before_joins(rules),
        ))))
        .with_analyzer_rule(Arc::new(lists::Lists))
        .with_analyzer_rule(Arc::new(separate::SeparatePredicates))
        .with_analyzer_rule(Arc::new(scalars::Nulls))
        .with_analyzer_rule(Arc::new(members::Members))
        .with_analyzer_rule(Arc::new(derived::Derived))
        .with_analyzer_rule(Arc::new(multisets::Multisets))
        .with_analyzer_rule(Arc::new(floats::FloatKeys))
        .with_analyzer_rule(Arc::new(bounded::Concatenations::new(&context.runtime_env().memory_pool)))
        .with_optimizer_rule(Arc::new(floats::FloatKeys))
        .with_optimizer_rule(Arc::new(repeated_keys::RepeatedKeys));
    let type_names = coerce::TypeNames(state.type_planner().take());
    if let Some(analyzer) = state.analyzer() {
        analyzer.rules.insert(0, Arc::new(coerce::PostgresTypes));
        analyzer.rules.insert(0, Arc::new(correlated::Correlated));
        analyzer.rules.insert(0, Arc::new(single_rows::SingleRows));
        analyzer.rules.insert(0, Arc::new(computed_keys::ComputedKeys));
        analyzer.rules.insert(0, Arc::new(laterals::Laterals));
    }
    if let Some(planners) = state.expr_planners() {
        planners.insert(0, Arc::new(coerce::Operators));
        planners.insert(0, Arc::new(arrays::Subscripts));
        if let Some(words) = texts::Words::new(&context) {
            planners.insert(0, Arc::new(words));
        }
    }
    let state = state.with_type_planner(Arc::new(type_names)).build();
    let limit_bytes = config.join_memory_bytes.map(|bytes| bytes as u64);
    let memory = JoinMemory::new(&state.runtime_env().memory_pool, limit_bytes);
    let scans = Scans { same: is_same_scan, filtered: filtered_scan, tests_keys };
    Ok(that_stops(with_joins_over(state, &memory, scans)))
}

/// Adds a check of the statement's flag before each rule.
fn that_stops(state: SessionState) -> SessionState {
    let optimizers = stopped::between_optimizers(state.optimizers());
    let physical = stopped::between_physical(state.physical_optimizers());
    let mut state = SessionStateBuilder::new_from_existing(state);
    if let Some(analyzer) = state.analyzer() {
        analyzer.rules = stopped::between_analyzers(std::mem::take(&mut analyzer.rules));
    }
    state.with_optimizer_rules(optimizers).with_physical_optimizer_rules(physical).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqlState;
    use crate::engine::cancel::CancelHandle;
    use crate::engine::error;
    use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
    use datafusion::common::ScalarValue;
    use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
    use datafusion::logical_expr::{
        ColumnarValue, LogicalPlanBuilder, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, lit,
    };
    use datafusion::optimizer::AnalyzerRule;
    use farhold_fabric::{Fabric, NodeId};
    use farhold_txn::{Node, NodeConfig};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// How the planner and queries may call a function.
    #[derive(Clone, Copy, Debug)]
    enum Shape {
        NoRows,
        AllNull,
        Null,
    }

    /// Functions that the planner replaces before they run.
    const REPLACED: [&str; 24] = [
        "cast_to_type",
        "coalesce",
        "current_date",
        "current_time",
        "current_timestamp",
        "farhold_assigned",
        "farhold_case",
        "farhold_case_of",
        "farhold_listed",
        "farhold_single_value",
        "greatest",
        "ifnull",
        "least",
        "localtime",
        "localtimestamp",
        "now",
        "nvl",
        "nvl2",
        "statement_timestamp",
        "today",
        "transaction_timestamp",
        "try_cast_to_type",
        // Functions of `datafusion-pg-catalog` that report an internal error for an untyped NULL.
        "array_lower",
        "array_upper",
    ];
    /// Functions that return a single value for any number of rows if they have only constant arguments, or none: they
    /// are evaluated before there are rows.
    const OF_CONSTANTS: [&str; 15] = [
        "array_append",
        "array_prepend",
        "array_push_back",
        "array_push_front",
        "current_database",
        "current_schema",
        "current_schemas",
        "list_append",
        "list_prepend",
        "list_push_back",
        "list_push_front",
        "make_array",
        "make_list",
        "pg_backend_pid",
        "session_user",
    ];

    fn call(function: &ScalarUDF, fields: &[FieldRef], shape: Shape) -> Result<Option<String>, DataFusionError> {
        // A function of constants returns a single value.
        let rows = match shape {
            Shape::NoRows => 0,
            Shape::AllNull => 3,
            Shape::Null => 1,
        };
        let nulls: Vec<ScalarValue> =
            fields.iter().map(|it| ScalarValue::try_from(it.data_type())).collect::<Result<_, _>>()?;
        let scalars: Vec<Option<&ScalarValue>> =
            nulls.iter().map(|null| matches!(shape, Shape::Null).then_some(null)).collect();
        let args = nulls.iter().map(|null| match shape {
            Shape::Null => Ok(ColumnarValue::Scalar(null.clone())),
            Shape::NoRows | Shape::AllNull => null.to_array_of_size(rows).map(ColumnarValue::Array),
        });
        let return_field =
            function.return_field_from_args(ReturnFieldArgs { arg_fields: fields, scalar_arguments: &scalars })?;
        let promised = return_field.data_type().clone();
        let made = function.invoke_with_args(ScalarFunctionArgs {
            args: args.collect::<Result<_, _>>()?,
            arg_fields: fields.to_vec(),
            number_rows: rows,
            return_field,
            config_options: Arc::default(),
        })?;
        if made.data_type() != promised {
            return Ok(Some(format!("{} for {promised}", made.data_type())));
        }
        match made {
            ColumnarValue::Array(made) if made.len() != rows => Ok(Some(format!("{} rows for {rows}", made.len()))),
            _ => Ok(None),
        }
    }

    fn state() -> SessionState {
        let directory = tempfile::tempdir().expect("a directory");
        let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
        let config = NodeConfig { region_bytes: 8 << 20, ..NodeConfig::default() };
        let catalog = Arc::new(Catalog::new(Node::open(fabric, config).expect("a node")));
        let database = Arc::new(catalog::Database::new(Arc::clone(&catalog), 1));
        session_state(&database, &catalog, &EngineConfig::default()).expect("a session")
    }

    #[test]
    fn no_rule_changes_the_plan_of_a_stopped_statement() {
        let state = state();
        let optimizers = state.optimizers().iter().map(|rule| rule.name());
        let analyzers = state.analyzer().rules.iter().map(|rule| rule.name());
        let rules = optimizers.chain(analyzers).chain(state.physical_optimizers().iter().map(|rule| rule.name()));
        let names: Vec<&str> = rules.collect();
        assert!(names.chunks(2).all(|pair| pair[0] == "cancel_check" && pair[1] != "cancel_check"), "{names:?}");
        let plan =
            LogicalPlanBuilder::empty(true).project([lit(1)]).and_then(LogicalPlanBuilder::build).expect("a plan");
        let flag = CancelHandle::running();
        let planned = || {
            futures::executor::block_on(stopped::cancellable(flag.clone(), async {
                let analyzed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {});
                let typed = coerce::PostgresTypes.analyze(plan.clone(), state.config_options());
                [analyzed, typed, state.optimizer().optimize(plan.clone(), &state, |_, _| {})]
            }))
        };
        assert!(planned().iter().all(Result::is_ok));
        flag.cancel();
        for stopped in planned() {
            let error = error::from_datafusion(&stopped.expect_err("it was stopped"));
            assert_eq!(error.state, SqlState::QUERY_CANCELED, "{error}");
        }
    }

    /// The planner evaluates functions on constants, on batches without rows, and on NULLs of any type.
    #[test]
    fn every_function_takes_nulls_and_batches_without_rows() {
        let state = state();
        let types = [
            DataType::Null,
            DataType::Boolean,
            DataType::Int32,
            DataType::Int64,
            DataType::Float64,
            DataType::Decimal128(12, 2),
            DataType::Utf8View,
            DataType::Binary,
            DataType::Date32,
            DataType::Timestamp(TimeUnit::Microsecond, None),
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::new_list(DataType::Int32, true),
        ];
        let field = |data_type: &DataType| Arc::new(Field::new("argument", data_type.clone(), true));
        let mut lists: Vec<Vec<FieldRef>> = vec![vec![]];
        let mut longest = lists.clone();
        for _ in 0..3 {
            longest = longest
                .iter()
                .flat_map(|list| types.iter().map(|it| list.iter().cloned().chain([field(it)]).collect()))
                .collect();
            lists.extend(longest.iter().cloned());
        }
        let is_asked = |name: &str| !REPLACED.contains(&name) && !OF_CONSTANTS.contains(&name);
        let mut functions: Vec<_> = state.scalar_functions().iter().filter(|(name, _)| is_asked(name)).collect();
        functions.sort_by_key(|(name, _)| *name);
        let mut wrong = Vec::new();
        for (name, function) in functions {
            for list in &lists {
                let Ok(fields) = fields_with_udf(list, function.as_ref()) else { continue };
                for shape in [Shape::NoRows, Shape::AllNull, Shape::Null] {
                    let done = catch_unwind(AssertUnwindSafe(|| call(function, &fields, shape)));
                    let what = match done {
                        Ok(Ok(what)) => what,
                        Ok(Err(DataFusionError::Internal(what))) => Some(what),
                        Ok(Err(_)) => None,
                        Err(_) => Some("a panic".to_owned()),
                    };
                    let types: Vec<String> = list.iter().map(|it| it.data_type().to_string()).collect();
                    wrong.extend(what.map(|what| format!("{name}({}), {shape:?}: {what}", types.join(", "))));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
