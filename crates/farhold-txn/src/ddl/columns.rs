//! Changes of which columns of a table are kept as columns.

use crate::base::definition::KeptColumns;
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::node::system;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;

impl Worker {
    /// Changes which columns of a table are kept as columns too, on all nodes. Copies are built and forgotten in the background.
    ///
    /// # Errors
    /// [`TxnError::Row`] for columns that the table does not have; [`TxnError::SchemaChanged`] if it has been dropped; an unavailable node,
    /// with `committed` if it hears of the change later.
    pub async fn keep_columns(&self, table: &Table, columns: KeptColumns) -> Result<(), TxnError> {
        let follow = |worker: Self, ()| async move {
            system::follow_columns(worker.node())?;
            worker.tell_others(Request::FollowColumns).await
        };
        self.record(
            async |txn| {
                let changed = self.change_definition(txn, table, |definition, _| {
                    definition.columns = columns.clone();
                    definition.check_columns()
                });
                changed.await.map(drop)
            },
            follow,
        )
        .await
    }
}
