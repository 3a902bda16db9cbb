//! The schema `pg_catalog`: our own views, and otherwise those of `datafusion-pg-catalog`.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{MemTable, SchemaProvider, Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use super::Relations;
use super::views::{VIEWS, View};

/// See the module.
pub(super) struct PgCatalog {
    general: Arc<dyn SchemaProvider>,
    relations: Arc<dyn Relations>,
    database: String,
}

impl PgCatalog {
    pub(super) fn new(general: Arc<dyn SchemaProvider>, relations: Arc<dyn Relations>, database: &str) -> Self {
        Self { general, relations, database: database.to_owned() }
    }
}

impl fmt::Debug for PgCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgCatalog").finish_non_exhaustive()
    }
}

fn view(name: &str) -> Option<&'static View> {
    VIEWS.iter().find(|view| view.name.eq_ignore_ascii_case(name))
}

#[async_trait]
impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.general.table_names();
        names.extend(VIEWS.iter().map(|view| view.name.to_owned()));
        names.sort();
        names.dedup();
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(view) = view(name) else { return self.general.table(name).await };
        let (relations, database) = (Arc::clone(&self.relations), self.database.clone());
        Ok(Some(Arc::new(ViewTable { view, schema: view.schema()?, relations, database })))
    }

    fn table_exist(&self, name: &str) -> bool {
        view(name).is_some() || self.general.table_exist(name)
    }
}

/// A view. Its rows are those of the moment when a statement is executed: a prepared one is planned once.
struct ViewTable {
    view: &'static View,
    schema: SchemaRef,
    relations: Arc<dyn Relations>,
    database: String,
}

impl fmt::Debug for ViewTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewTable").field("name", &self.view.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for ViewTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let batch = self.view.rows(self.relations.as_ref(), &self.database)?;
        let rows = MemTable::try_new(Arc::clone(&self.schema), vec![vec![batch]])?;
        rows.scan(state, projection, filters, limit).await
    }
}
