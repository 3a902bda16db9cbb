//! The database as a DataFusion catalog: the schema `public`, and the schemas that are registered beside it
//! (`pg_catalog`).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider};
use datafusion::datasource::TableProvider;
use datafusion::error::{DataFusionError, Result};

use crate::engine::catalog::Catalog;
use crate::engine::scan::FarTable;

/// The schema whose tables show their hidden row numbers. It is not listed; only internal plans name it.
pub(crate) const ROWS_SCHEMA: &str = "farhold_rows";

/// The database.
#[derive(Debug)]
pub(super) struct Database {
    public: Arc<Tables>,
    rows: Arc<Tables>,
    others: RwLock<BTreeMap<String, Arc<dyn SchemaProvider>>>,
}

impl Database {
    pub(super) fn new(catalog: Arc<Catalog>, nodes: u64) -> Self {
        Self {
            public: Arc::new(Tables { catalog: Arc::clone(&catalog), with_row_number: false, nodes }),
            rows: Arc::new(Tables { catalog, with_row_number: true, nodes }),
            others: RwLock::default(),
        }
    }
}

impl Database {
    /// Drops the schemas that were registered.
    pub(super) fn forget_others(&self) {
        self.others.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl CatalogProvider for Database {
    fn schema_names(&self) -> Vec<String> {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        std::iter::once("public".to_owned()).chain(others.keys().cloned()).collect()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        match name {
            "public" => Some(Arc::clone(&self.public) as Arc<dyn SchemaProvider>),
            ROWS_SCHEMA => Some(Arc::clone(&self.rows) as Arc<dyn SchemaProvider>),
            other => self.others.read().unwrap_or_else(PoisonError::into_inner).get(other).cloned(),
        }
    }

    fn register_schema(&self, name: &str, schema: Arc<dyn SchemaProvider>) -> Result<Option<Arc<dyn SchemaProvider>>> {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        Ok(others.insert(name.to_owned(), schema))
    }
}

/// A schema of the database's tables.
struct Tables {
    catalog: Arc<Catalog>,
    with_row_number: bool,
    nodes: u64,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.catalog.tables().iter().map(|t| t.name.clone()).collect();
        names.sort();
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let tables = self.catalog.tables();
        Ok(tables.get(name).map(|info| {
            Arc::new(FarTable::new(Arc::clone(info), self.with_row_number, self.nodes)) as Arc<dyn TableProvider>
        }))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.catalog.tables().get(name).is_some()
    }
}
