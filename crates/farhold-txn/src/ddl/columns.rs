//! Changes of what a table's definition says beyond its indexes: which columns are kept as columns, and the attributes of the layer above.
//!
//! ```text
//!   record the definition ─► this node, then each other one, takes over what is recorded, and answers
//! ```
//! A node that takes over other attributes refuses the commits of transactions that have begun before, if they write. So once all nodes
//! have answered, every transaction that still commits either has begun with the new attributes, or has read its epoch before: a snapshot
//! that is taken from then on has what it writes.

use crate::base::definition::{KeptColumns, TableDef};
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::ddl::ASK_EVERY_NS;
use crate::node::system;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use farhold_store::TableId;

impl Worker {
    /// Changes which columns of a table are kept as columns too, on all nodes. Copies are built and forgotten in the background.
    ///
    /// # Errors
    /// [`TxnError::Row`] for columns that the table does not have; [`TxnError::SchemaChanged`] if it has been dropped; an unavailable node,
    /// with `committed` if it hears of the change later.
    pub async fn keep_columns(&self, table: &Table, columns: KeptColumns) -> Result<(), TxnError> {
        self.change_recorded(table, |definition| {
            definition.columns = columns.clone();
            definition.check_columns()
        })
        .await
    }

    /// Changes the [attributes](Table::attributes) of a table on all nodes: `change` makes them from those that are recorded. It may be
    /// called again after a conflict.
    ///
    /// On each node, the commit of a transaction that writes and has begun before the node took over the change is refused. When this
    /// returns without an error, all nodes have taken it over, and a [`snapshot`](Self::snapshot) that is taken from then on has all rows
    /// of transactions that have found older attributes and commit.
    ///
    /// # Errors
    /// The error of `change`; [`TxnError::SchemaChanged`] if the table has been dropped; [`TxnError::TooLarge`]; an unavailable node, with
    /// `committed` if the change is recorded, and that node hears of it later.
    pub async fn change_attributes(
        &self,
        table: &Table,
        mut change: impl FnMut(&[u8]) -> Result<Vec<u8>, TxnError>,
    ) -> Result<(), TxnError> {
        self.change_recorded(table, |definition| {
            definition.attributes = change(&definition.attributes)?;
            Ok(())
        })
        .await
    }

    /// Has all nodes take over what is recorded of a table, as after [`change_attributes`](Self::change_attributes).
    ///
    /// # Errors
    /// An unavailable node, which hears of it later.
    pub async fn announce_attributes(&self, table: &Table) -> Result<(), TxnError> {
        self.follow_everywhere(table.id()).await
    }

    async fn change_recorded(
        &self,
        table: &Table,
        mut change: impl FnMut(&mut TableDef) -> Result<(), TxnError>,
    ) -> Result<(), TxnError> {
        let id = table.id();
        let follow = move |worker: Self, ()| async move { worker.follow_everywhere(id).await };
        self.record(
            async |txn| {
                let changed = self.change_definition(txn, table, |definition, _| change(definition));
                changed.await.map(drop)
            },
            follow,
        )
        .await
    }

    /// A node answers that its copy of the record is just being written while another change of this table is under way, or while the
    /// record is on its way to its holders; it is asked again.
    async fn follow_everywhere(&self, table: TableId) -> Result<(), TxnError> {
        let until_ns = self.handle().now_ns().saturating_add(self.node().config().request_timeout_ns);
        loop {
            let here = system::follow_definition(self.node(), table);
            let told = here.and(self.tell_others(Request::FollowDefinition { table }).await);
            if told != Err(TxnError::Conflict) {
                return told;
            }
            if self.handle().now_ns() >= until_ns {
                return Err(TxnError::NodeUnavailable { node: self.node().id(), committed: true });
            }
            self.core.serve_one();
            self.handle().sleep_ns(ASK_EVERY_NS).await;
        }
    }
}
