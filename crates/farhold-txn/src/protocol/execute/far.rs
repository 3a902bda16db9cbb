//! Rows of other nodes.

use crate::protocol::ident::Ident;
use crate::txn::{CommitInfo, RowHandle, SharedTable, Txn};
use crate::{Index, NodeId, TxnError};

impl Txn {
    /// The row with this key, at its home.
    pub(crate) async fn get_far(
        &mut self,
        table: SharedTable,
        home: NodeId,
        index: Index,
        key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        let _ = (table, index, key, Ident::far);
        Err(TxnError::NodeUnavailable { node: home, committed: false })
    }

    /// Reserves a row at its home.
    pub(crate) async fn insert_far(
        &mut self,
        table: SharedTable,
        home: NodeId,
        key: &[u8],
        value: &[u8],
    ) -> Result<RowHandle, TxnError> {
        let _ = (table, key, value);
        Err(TxnError::NodeUnavailable { node: home, committed: false })
    }

    /// Commits a transaction that has rows on other nodes.
    pub(crate) async fn commit_far(&mut self) -> Result<CommitInfo, TxnError> {
        Err(TxnError::NodeUnavailable { node: self.core.me, committed: false })
    }
}
