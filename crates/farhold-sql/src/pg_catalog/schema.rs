//! The schema `pg_catalog`: our own views, and otherwise those of `datafusion-pg-catalog`.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use datafusion::error::Result;

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

pub(super) fn view(name: &str) -> Option<&'static View> {
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
        let batch = view.rows(self.relations.as_ref(), &self.database)?;
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        view(name).is_some() || self.general.table_exist(name)
    }
}
