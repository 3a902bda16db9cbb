//! Creating and dropping tables and indexes.

use crate::definition::TableDef;
use crate::home::message::Request;
use crate::system;
use crate::table::{Open, Table, TableShared};
use crate::worker::Core;
use crate::{Index, NodeId, Retry, TableId, TxnError, Worker};
use farhold_store::row::SecondaryIndex;
use std::sync::Arc;

impl Worker {
    /// Creates a table on every node and records it.
    ///
    /// # Errors
    /// [`TxnError::AlreadyExists`]; [`TxnError::Row`] for a definition that makes no sense; an unavailable node.
    pub async fn create_table(&self, definition: TableDef) -> Result<Table, TxnError> {
        let node = self.node();
        definition.check(node.config().nodes)?;
        if definition.name == system::NAME {
            return Err(TxnError::AlreadyExists { name: definition.name.into() });
        }
        let live = vec![true; definition.indexes.len()];
        let bytes = definition.encode(&live)?;
        let id = self.record(&definition.name, &bytes).await?;
        let shared =
            TableShared::open(&node.store, id, definition, &live, Open::Create, (node.config().nodes, node.tag))?;
        let table = Table(Arc::new(shared));
        node.catalog.add(table.clone())?;
        self.on_others(&Request::CreateTable { id, definition: &bytes }).await?;
        Ok(table)
    }

    /// Drops a table on every node; transactions that use it fail with [`TxnError::SchemaChanged`].
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node.
    pub async fn drop_table(&self, table: &Table) -> Result<(), TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let (key, _) = system::encode_row(system.schema(), table.name(), table.id(), &[])?;
        let missing = || TxnError::NotFound { what: format!("table \"{}\"", table.name()).into() };
        let removed = self.run(Retry::default(), async |txn| {
            let row = txn.get(&system, &key).await?.ok_or_else(missing)?;
            if system::decode_row(system.schema(), txn.key(row), txn.value(row))?.1 != table.id() {
                return Err(missing());
            }
            txn.delete(row)
        });
        removed.await?;
        self.node().catalog.retire(table.id());
        self.on_others(&Request::DropTable { id: table.id() }).await
    }

    /// Creates an index and fills it, on every node, while others go on reading and writing the table.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] when rows there contradict a unique index; [`TxnError::AlreadyExists`]; an unavailable node.
    pub async fn create_index(&self, table: &Table, definition: SecondaryIndex) -> Result<Index, TxnError> {
        let _ = (table, definition);
        Err(TxnError::TooMany { what: "indexes created after their table", limit: 0 })
    }

    /// Drops the secondary index of this name.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node.
    pub async fn drop_index(&self, table: &Table, name: &str) -> Result<(), TxnError> {
        let _ = table;
        Err(TxnError::NotFound { what: format!("index \"{name}\"").into() })
    }

    /// Live rows of a table on all nodes, about.
    ///
    /// # Errors
    /// An unavailable node.
    pub async fn row_count(&self, table: &Table) -> Result<u64, TxnError> {
        let mut count = table.row_count();
        if !table.0.route.is_local_only() {
            for node in (0..self.node().config().nodes).map(NodeId).filter(|node| *node != self.core.me) {
                count += self.core.ask(node, &Request::Count { table: table.id() }, |r| r.u64()).await?;
            }
        }
        Ok(count)
    }

    /// Asks all other nodes.
    async fn on_others(&self, request: &Request<'_>) -> Result<(), TxnError> {
        for node in (0..self.node().config().nodes).map(NodeId).filter(|node| *node != self.core.me) {
            self.core.call(node, request).await?;
        }
        Ok(())
    }

    /// Enters a table into the system table, which gives it its number.
    async fn record(&self, name: &str, definition: &[u8]) -> Result<TableId, TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let entered = self.run(Retry::default(), async |txn| {
            let schema = system.schema();
            let (counter, nothing) = system::encode_row(schema, "", TableId(system::FIRST_ID), &[])?;
            let id = match txn.get(&system, &counter).await? {
                Some(row) => {
                    let id = TableId(system::decode_row(schema, txn.key(row), txn.value(row))?.1.0 + 1);
                    let (_, value) = system::encode_row(schema, "", id, &[])?;
                    txn.update(row, &value)?;
                    id
                }
                None => {
                    txn.insert(&system, &counter, &nothing).await?;
                    TableId(system::FIRST_ID)
                }
            };
            let (key, value) = system::encode_row(schema, name, id, definition)?;
            txn.insert(&system, &key, &value).await?;
            Ok(id)
        });
        entered.await.map_err(|error| match error {
            TxnError::DuplicateKey { .. } => TxnError::AlreadyExists { name: name.into() },
            other => other,
        })
    }
}

impl Core {
    /// Adds an index here, empty; writers keep it from now on.
    pub fn add_index_here(&self, table: &TableShared, definition: &[u8]) -> Result<u16, TxnError> {
        let _ = (table, definition);
        Err(TxnError::TooMany { what: "indexes created after their table", limit: 0 })
    }

    /// Begins to fill it.
    pub fn fill_index_here(&self, table: &TableShared, slot: u16) -> Result<(), TxnError> {
        let _ = (table, slot);
        Err(TxnError::TooMany { what: "indexes created after their table", limit: 0 })
    }
}
