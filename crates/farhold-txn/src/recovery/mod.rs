//! From one configuration to the next: what dead nodes have left is redone or undone, their rows get another home node,
//! and a node that comes back gets what it needs.
//!
//! ```text
//!   lead.rs      freeze ─► drain ─► settle ─► install      (every member, led by one of them)
//!   answer.rs    what a member does for each of these
//!   promote.rs   the rows of a mirror become rows
//!   copy.rs      a new mirror gets the rows there are
//!   join.rs      a node comes (back)
//! ```
//!
//! `cluster/progress.rs` reports its progress to operators.

pub(crate) mod answer;
pub(crate) mod copy;
pub(crate) mod join;
pub(crate) mod lead;
pub(crate) mod promote;

use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::protocol::txn::RowHandle;

/// Whether a row of another node is now here, including the case that it was here before. A unique index that is being
/// filled may refuse the row, because another row has its value. The index is then given up, and the row can be
/// inserted.
fn brought(inserted: Result<RowHandle, TxnError>) -> Result<(), TxnError> {
    match inserted {
        Ok(_) | Err(TxnError::DuplicateKey { index: Index::Primary, .. }) => Ok(()),
        Err(TxnError::DuplicateKey { .. }) => Err(TxnError::Conflict),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_store::TableId;

    #[test]
    fn a_row_is_here_only_if_its_primary_key_is() {
        let taken = |index| brought(Err(TxnError::DuplicateKey { table: TableId(17), index }));
        assert_eq!(brought(Ok(RowHandle(0))), Ok(()));
        assert_eq!(taken(Index::Primary), Ok(()));
        assert_eq!(taken(Index::Secondary(0)), Err(TxnError::Conflict), "another row has its value");
        assert_eq!(brought(Err(TxnError::SchemaChanged)), Err(TxnError::SchemaChanged));
    }
}
