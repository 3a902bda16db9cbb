//! Binds a parsed statement to a plan.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    self, CascadeOption, CopySource, CopyTarget, LockType, NonBlock, Query, Reset, SetExpr, Statement,
};

use super::plan::{Bound, DeleteQuery, InsertQuery, Plan, UpdateQuery, Utility};
use super::{Session, dml, set_config};
use crate::engine::catalog::{Tables, table_name};
use crate::engine::copy::CopyFormat;
use crate::engine::direct::{
    Compiler, Insert, Program, Select, assignment_pairs, bind_returning, check_delete, check_once, check_single_table,
    check_target_count, check_update, default_row, output_column,
};
use crate::engine::parse::Origin;
use crate::engine::query::PlannedQuery;
use crate::engine::scalar::{BindError, ColumnRef, ParameterTypes as Types, fold};
use crate::engine::{ColumnType, parse};
use crate::{SqlError, SqlState};

/// Whether a statement is allowed in a failed transaction.
pub(super) fn ends_failure(statement: &Statement) -> bool {
    matches!(statement, Statement::Commit { .. } | Statement::Rollback { .. })
}

impl Session {
    /// Binds a statement to the current catalog.
    pub(super) async fn bind(&self, statement: &Statement, origin: &Origin, known: &Types) -> Result<Bound, SqlError> {
        let tables = self.engine.catalog.tables();
        let version = tables.version;
        let mut types = known.clone();
        let plan = Box::pin(self.plan_of(statement, origin, &tables, &mut types)).await?;
        let (parameters, columns) = match &plan {
            Plan::Direct(program) => (finish(&types.known), program.columns()),
            Plan::Query(query) => (query.parameters.clone(), Some(query.columns.clone())),
            Plan::InsertQuery(InsertQuery { query, insert: Insert { returning, .. }, .. })
            | Plan::UpdateQuery(UpdateQuery { query, returning, .. })
            | Plan::DeleteQuery(DeleteQuery { query, returning, .. }) => {
                let columns = returning.as_ref().map(|r| r.items.iter().map(|(_, c)| c.clone()).collect());
                (query.parameters.clone(), columns)
            }
            Plan::Explain { inner, .. } => {
                (inner.parameters.clone(), Some(vec![output_column("QUERY PLAN".to_owned(), ColumnType::Text)]))
            }
            Plan::CopyOut { inner, .. } => (inner.parameters.clone(), None),
            Plan::Utility(Utility::Show(name)) => {
                (Vec::new(), Some(vec![output_column(name.clone(), ColumnType::Text)]))
            }
            Plan::Utility(Utility::ShowAll) => {
                let column = |name: &str| output_column(name.to_owned(), ColumnType::Text);
                (Vec::new(), Some(vec![column("name"), column("setting")]))
            }
            Plan::SetConfig(call) => {
                (finish(&types.known), Some(vec![output_column(call.column.clone(), ColumnType::Text)]))
            }
            Plan::CopyIn { .. } | Plan::Utility(_) => (Vec::new(), None),
        };
        parse::check_count(columns.as_ref().map_or(0, Vec::len))?;
        let zone = self.settings.zone();
        Ok(Bound { version, zone, parameters, stated: types.stated, columns, plan })
    }

    async fn plan_of(
        &self,
        statement: &Statement,
        origin: &Origin,
        tables: &Arc<Tables>,
        types: &mut Types,
    ) -> Result<Plan, SqlError> {
        match statement {
            Statement::Query(query) => self.plan_query(query, origin, tables, types).await,
            Statement::Insert(insert) => self.plan_insert(insert, tables, types).await,
            Statement::Update(update) => self.plan_update(update, tables, types).await,
            Statement::Delete(delete) => self.plan_delete(delete, tables, types).await,
            Statement::Explain { analyze, statement, options, format, .. } => {
                let mut analyze = *analyze;
                for option in options.iter().flatten() {
                    let on = option
                        .arg
                        .as_ref()
                        .is_none_or(|a| !matches!(a.to_string().to_lowercase().as_str(), "false" | "off" | "0"));
                    match option.name.value.to_lowercase().as_str() {
                        "analyze" => analyze = on,
                        "format" => return Err(SqlError::unsupported("EXPLAIN (FORMAT …)")),
                        // These options do not affect the plan shown.
                        "verbose" | "costs" | "buffers" | "timing" | "summary" | "settings" | "wal" => {}
                        other => {
                            let message = format!("unrecognized EXPLAIN option \"{other}\"");
                            return Err(SqlError::syntax(message));
                        }
                    }
                }
                if format.is_some() {
                    return Err(SqlError::unsupported("EXPLAIN (FORMAT …)"));
                }
                if !matches!(
                    statement.as_ref(),
                    Statement::Query(_) | Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_)
                ) {
                    return Err(SqlError::unsupported("EXPLAIN of this statement"));
                }
                let inner = Box::pin(self.bind(statement, &Origin::Part, types)).await?;
                Ok(Plan::Explain { inner: Box::new(inner), analyze })
            }
            Statement::Copy { source, to, target, options, legacy_options, .. } => {
                if !legacy_options.is_empty() {
                    return Err(SqlError::syntax("COPY options must be in parentheses: WITH (FORMAT csv, HEADER)"));
                }
                self.plan_copy(source, *to, target, CopyFormat::new(options)?, tables).await
            }
            other => utility(other.clone(), tables).map(Plan::Utility),
        }
    }

    async fn plan_query(
        &self,
        query: &Query,
        origin: &Origin,
        tables: &Arc<Tables>,
        types: &mut Types,
    ) -> Result<Plan, SqlError> {
        refuse_select_into(query)?;
        let (query, locked) = with_plain_locks(query)?;
        if let Some(call) = set_config::called(&query, types, self.settings.zone())? {
            return Ok(Plan::SetConfig(call));
        }
        let before = types.clone();
        match (Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() }).select(&query) {
            Ok(program) => return Ok(Plan::Direct(program)),
            Err(BindError::Wrong(error)) => return Err(error),
            Err(BindError::Complex) if locked => {
                return Err(SqlError::unsupported("FOR UPDATE with this query")
                    .with_hint("FOR UPDATE requires a SELECT of one table, ordered by one of its indexes."));
            }
            Err(BindError::Complex) => *types = before,
        }
        self.by_planner(&query, origin, tables, types).await.map(Plan::Query)
    }

    /// Plans a query with the planner, even if the direct path could execute it.
    pub(super) async fn by_planner(
        &self,
        query: &Query,
        origin: &Origin,
        tables: &Arc<Tables>,
        types: &Types,
    ) -> Result<PlannedQuery, SqlError> {
        let query = with_plain_locks(query)?.0.into_owned();
        let (user, zone, cancel) = (self.settings.user(), self.settings.zone(), &self.cancel);
        self.engine.queries.plan(query.into(), origin, (tables, types), (user, zone), cancel).await
    }

    async fn planned(&self, query: Query, tables: &Arc<Tables>, types: &Types) -> Result<PlannedQuery, SqlError> {
        let (user, zone, cancel) = (self.settings.user(), self.settings.zone(), &self.cancel);
        self.engine.queries.plan(query.into(), &Origin::Made, (tables, types), (user, zone), cancel).await
    }

    async fn plan_insert(
        &self,
        insert: &ast::Insert,
        tables: &Arc<Tables>,
        types: &mut Types,
    ) -> Result<Plan, SqlError> {
        let before = types.clone();
        match (Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() }).insert(insert) {
            Ok(program) => return Ok(Plan::Direct(program)),
            Err(BindError::Wrong(error)) => return Err(error),
            Err(BindError::Complex) => *types = before,
        }
        let mut compiler = Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() };
        let (table, mut targets) = compiler.insert_target(insert).map_err(not_simple)?;
        let on_conflict = compiler.conflict(insert, &table).map_err(not_simple)?;
        let qualifier = insert.table_alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.alias));
        let returning =
            bind_returning(&mut compiler, insert.returning.as_deref(), &table, &qualifier, &[]).map_err(not_simple)?;
        let Some(mut source) = insert.source.clone() else { return Err(SqlError::unsupported("this form of INSERT")) };
        let given: Vec<bool> = (0..targets.len()).map(|column| dml::gives(&source, column)).collect();
        dml::type_values(&mut source, &table, &targets)?;
        let query = self.planned(*source, tables, types).await?;
        check_target_count(query.columns.len(), targets.len(), !insert.columns.is_empty())?;
        targets.truncate(query.columns.len());
        dml::check_types(&table, &targets, &query.columns)?;
        for (&column, _) in targets.iter().zip(given).filter(|(_, given)| *given) {
            table.check_given(column, "cannot insert a non-DEFAULT value into")?;
        }
        let rows = vec![default_row(&table)];
        Ok(Plan::InsertQuery(InsertQuery { insert: Insert { table, rows, on_conflict, returning }, targets, query }))
    }

    async fn plan_update(
        &self,
        update: &ast::Update,
        tables: &Arc<Tables>,
        types: &mut Types,
    ) -> Result<Plan, SqlError> {
        let before = types.clone();
        match (Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() }).update(update) {
            Ok(program) => return Ok(Plan::Direct(program)),
            Err(BindError::Wrong(error)) => return Err(error),
            Err(BindError::Complex) => *types = before,
        }
        check_update(update)?;
        let (name, qualifier) = check_single_table(&update.table)?;
        let table = written_table(tables, name)?;
        let pairs = assignment_pairs(&update.assignments, &table)?;
        let from = match &update.from {
            None => &[][..],
            Some(ast::UpdateTableFromKind::BeforeSet(from) | ast::UpdateTableFromKind::AfterSet(from)) => from,
        };
        let items = update.returning.as_deref();
        let beside = dml::columns_beside(from, items, tables)?;
        let mut compiler = Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() };
        let returning = bind_returning(&mut compiler, items, &table, &qualifier, &beside).map_err(not_simple)?;
        let query = dml::update_query(&table, &qualifier, &pairs, (from, &beside), update.selection.as_ref());
        let query = self.planned(query, tables, types).await?;
        let assigned: Vec<usize> = pairs.iter().map(|(column, _)| *column).collect();
        dml::check_types(&table, &assigned, &query.columns[table.schema().key().len()..])?;
        let defaults = pairs.iter().filter(|(_, e)| e.is_none()).map(|(column, _)| *column).collect();
        Ok(Plan::UpdateQuery(UpdateQuery { table, assigned, defaults, query, returning, beside: types_of(&beside) }))
    }

    async fn plan_delete(
        &self,
        delete: &ast::Delete,
        tables: &Arc<Tables>,
        types: &mut Types,
    ) -> Result<Plan, SqlError> {
        let before = types.clone();
        match (Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() }).delete(delete) {
            Ok(program) => return Ok(Plan::Direct(program)),
            Err(BindError::Wrong(error)) => return Err(error),
            Err(BindError::Complex) => *types = before,
        }
        let (name, qualifier) = check_single_table(check_delete(delete)?)?;
        let table = written_table(tables, name)?;
        let using = delete.using.as_deref().unwrap_or_default();
        let items = delete.returning.as_deref();
        let beside = dml::columns_beside(using, items, tables)?;
        let mut compiler = Compiler { tables, parameters: &mut types.known, zone: self.settings.zone() };
        let returning = bind_returning(&mut compiler, items, &table, &qualifier, &beside).map_err(not_simple)?;
        let query = dml::update_query(&table, &qualifier, &[], (using, &beside), delete.selection.as_ref());
        let query = self.planned(query, tables, types).await?;
        Ok(Plan::DeleteQuery(DeleteQuery { table, query, returning, beside: types_of(&beside) }))
    }

    async fn plan_copy(
        &self,
        source: &CopySource,
        to: bool,
        target: &CopyTarget,
        format: CopyFormat,
        tables: &Tables,
    ) -> Result<Plan, SqlError> {
        match (target, to) {
            (CopyTarget::Stdin, false) | (CopyTarget::Stdout, true) => {}
            _ => {
                return Err(SqlError::unsupported("COPY with a file or program on the server")
                    .with_hint("Use STDIN or STDOUT; psql's \\copy reads and writes files of the client."));
            }
        }
        if to {
            let statement = match source {
                CopySource::Query(query) => Statement::Query(query.clone()),
                CopySource::Table { table_name: name, columns } => {
                    let table = written_table(tables, name)?;
                    let list: Vec<String> = if columns.is_empty() {
                        table.visible_columns().iter().map(|c| c.name.clone()).collect()
                    } else {
                        columns.iter().map(fold).collect()
                    };
                    parse::columns_of(list.iter().map(String::as_str), &table.name).into()
                }
            };
            let mut inner = Box::pin(self.bind(&statement, &Origin::Part, &Types::default())).await?;
            let is_long = matches!(&inner.plan, Plan::Direct(Program::Select(select)) if select.may_be_long())
                && !self.transaction.is_open();
            if is_long && let Statement::Query(query) = &statement {
                let tables = self.engine.catalog.tables();
                let query = Box::pin(self.by_planner(query, &Origin::Part, &tables, &Types::default())).await?;
                inner = Bound { columns: Some(query.columns.clone()), plan: Plan::Query(query), ..inner };
            }
            return Ok(Plan::CopyOut { inner: Box::new(inner), format });
        }
        let CopySource::Table { table_name: name, columns } = source else {
            return Err(SqlError::syntax("COPY FROM needs a table"));
        };
        let table = written_table(tables, name)?;
        let mut targets = Vec::with_capacity(table.visible);
        for column in columns {
            targets.push(table.column(&fold(column))?);
            check_once(&table, &targets)?;
        }
        if columns.is_empty() {
            targets.extend(0..table.visible);
        }
        Ok(Plan::CopyIn { table, columns: targets, format })
    }
}

/// The query with at most one lock, and whether it has one: see [`plain_locks`].
fn with_plain_locks(query: &Query) -> Result<(Cow<'_, Query>, bool), SqlError> {
    let mut query = Cow::Borrowed(query);
    let locked = !query.locks.is_empty() && plain_locks(query.to_mut())?;
    Ok((query, locked))
}

/// Reduces the locks of a query to one FOR UPDATE, if there is one. Returns whether there is.
fn plain_locks(query: &mut Query) -> Result<bool, SqlError> {
    let mut locked = false;
    for lock in &mut query.locks {
        match lock.nonblock {
            Some(NonBlock::SkipLocked) => return Err(SqlError::unsupported("SKIP LOCKED")),
            // Reading a row never waits.
            Some(NonBlock::Nowait) | None => lock.nonblock = None,
        }
        lock.of = None;
        locked |= lock.lock_type == LockType::Update;
    }
    if !locked {
        // All reads of a transaction are validated at commit, so FOR SHARE adds nothing.
        query.locks.clear();
    }
    query.locks.truncate(1);
    Ok(locked)
}

/// The error of a statement that neither the direct path nor the planner supports.
pub(super) fn not_simple(error: BindError) -> SqlError {
    match error {
        BindError::Wrong(error) => error,
        BindError::Complex => SqlError::unsupported("this statement"),
    }
}

fn written_table(tables: &Tables, name: &ast::ObjectName) -> Result<Arc<crate::engine::catalog::TableInfo>, SqlError> {
    let name = table_name(name)?;
    tables.get(&name).cloned().ok_or_else(|| crate::engine::catalog::no_such_table(&name))
}

/// A parameter of unknown type becomes text.
fn finish(types: &[Option<ColumnType>]) -> Vec<ColumnType> {
    types.iter().map(|t| t.unwrap_or(ColumnType::Text)).collect()
}

fn refuse_select_into(query: &Query) -> Result<(), SqlError> {
    match query.body.as_ref() {
        SetExpr::Select(select) if select.into.is_some() => Err(SqlError::unsupported("SELECT INTO")),
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
            Err(SqlError::unsupported("WITH before a writing statement"))
        }
        _ => {
            let writes = |with: &ast::With| {
                with.cte_tables.iter().any(|cte| {
                    matches!(
                        cte.query.body.as_ref(),
                        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_)
                    )
                })
            };
            match &query.with {
                Some(with) if writes(with) => Err(SqlError::unsupported("a writing statement in WITH")),
                _ => Ok(()),
            }
        }
    }
}

fn utility(statement: Statement, tables: &Tables) -> Result<Utility, SqlError> {
    Ok(match statement {
        Statement::StartTransaction { modes, begin, statements, modifier, .. } => {
            if !statements.is_empty() || modifier.is_some() {
                return Err(SqlError::unsupported("this form of BEGIN"));
            }
            Utility::Begin { verb: if begin { "BEGIN" } else { "START TRANSACTION" }, modes }
        }
        Statement::Commit { chain, .. } => Utility::Commit { chain },
        Statement::Rollback { savepoint: Some(name), .. } => Utility::RollbackTo(fold(&name)),
        Statement::Rollback { chain, savepoint: None } => Utility::Rollback { chain },
        Statement::Savepoint { name } => Utility::Savepoint(fold(&name)),
        Statement::ReleaseSavepoint { name } => Utility::Release(fold(&name)),
        Statement::Set(set) => Utility::Set(Box::new(set)),
        Statement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|i| i.value.to_lowercase()).collect();
            match words.join(" ").as_str() {
                "all" => Utility::ShowAll,
                "transaction isolation level" => Utility::Show("transaction_isolation".to_owned()),
                "time zone" => Utility::Show("TimeZone".to_owned()),
                "session authorization" => Utility::Show("session_authorization".to_owned()),
                _ => Utility::Show(words.join(".").replace(" . ", ".")),
            }
        }
        Statement::Reset(reset) => match reset.reset {
            Reset::ALL => Utility::Reset(None),
            Reset::ConfigurationParameter(name) => Utility::Reset(Some(name.to_string())),
        },
        Statement::CreateTable(table) => Utility::CreateTable(Box::new(table)),
        Statement::CreateIndex(index) => Utility::CreateIndex(Box::new(index)),
        sequence @ Statement::CreateSequence { .. } => Utility::CreateSequence(Box::new(sequence)),
        Statement::AlterTable(alter) => Utility::AlterTable(Box::new(alter)),
        Statement::Drop { object_type: object, names, if_exists, temporary: false, .. } => {
            Utility::Drop { object, names, if_exists }
        }
        Statement::Truncate(truncate) => {
            if truncate.cascade == Some(CascadeOption::Cascade) || truncate.partitions.is_some() {
                return Err(SqlError::unsupported("this form of TRUNCATE"));
            }
            let list = truncate.table_names.iter().map(|t| written_table(tables, &t.name));
            let restart = truncate.identity == Some(ast::TruncateIdentityOption::Restart);
            Utility::Truncate { tables: list.collect::<Result<_, _>>()?, restart }
        }
        Statement::Analyze(_) => Utility::Nothing("ANALYZE"),
        Statement::Vacuum(_) => Utility::Nothing("VACUUM"),
        Statement::Discard { object_type: ast::DiscardObject::ALL } => Utility::Reset(None),
        other => {
            let text = other.to_string();
            let words: Vec<&str> = text.split_whitespace().take(2).collect();
            return Err(SqlError::unsupported(words.join(" ")));
        }
    })
}

/// Whether a program or plan writes.
pub(super) fn writes(plan: &Plan) -> bool {
    match plan {
        Plan::Direct(Program::Constant(output)) => output.iter().any(|(scalar, _)| scalar.takes_numbers()),
        Plan::Direct(program) => !program.is_read_only(),
        Plan::InsertQuery(_) | Plan::UpdateQuery(_) | Plan::DeleteQuery(_) | Plan::CopyIn { .. } => true,
        Plan::Explain { inner, analyze } => *analyze && writes(&inner.plan),
        Plan::Query(query) => query.takes_numbers,
        Plan::SetConfig(_) => false,
        Plan::CopyOut { inner, .. } => writes(&inner.plan),
        Plan::Utility(utility) => matches!(
            utility,
            Utility::CreateTable(_)
                | Utility::CreateIndex(_)
                | Utility::CreateSequence(_)
                | Utility::RestartSequence(_)
                | Utility::AlterTable(_)
                | Utility::Drop { .. }
                | Utility::Truncate { .. }
        ),
    }
}

/// 25006.
pub(super) fn read_only_error(verb: &str) -> SqlError {
    SqlError::new(SqlState::READ_ONLY_TRANSACTION, format!("cannot execute {verb} in a read-only transaction"))
}

/// The SQL verb of a plan, for messages.
pub(super) fn verb_of(plan: &Plan) -> &'static str {
    match plan {
        Plan::Direct(Program::Insert(_)) | Plan::InsertQuery(_) => "INSERT",
        Plan::Direct(Program::Update(_)) | Plan::UpdateQuery(_) => "UPDATE",
        Plan::Direct(Program::Delete(_)) | Plan::DeleteQuery(_) => "DELETE",
        Plan::Direct(Program::Select(Select { for_update: true, .. })) => "SELECT FOR UPDATE",
        Plan::Explain { inner, .. } | Plan::CopyOut { inner, .. } => verb_of(&inner.plan),
        Plan::CopyIn { .. } => "COPY FROM",
        Plan::Utility(_) => "a definition",
        _ => "SELECT",
    }
}

fn types_of(columns: &[ColumnRef]) -> Vec<ColumnType> {
    columns.iter().map(|column| column.data_type).collect()
}
