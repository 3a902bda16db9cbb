//! Columns of a table at a snapshot.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::base::table::Table;
use crate::columns::{ColumnFeed, NoColumns};
use crate::protocol::snapshot::Snapshot;
use crate::protocol::worker::Worker;
use farhold_store::TableId;
use farhold_store::column::copy::{ColumnCopy, ColumnView, NoView};

impl Worker {
    /// The columns of a table at a snapshot's epoch, with the rows of this node: those that a scan of the snapshot finds in the pages
    /// of this node. Waits until the copy has taken all that was committed up to the epoch, so that it shows what was acknowledged
    /// before the snapshot was taken.
    ///
    /// # Errors
    /// [`NoColumns`]: the caller scans this node's pages.
    pub async fn home_columns(&self, snapshot: &Snapshot, table: &Table) -> Result<ColumnView, NoColumns> {
        let (feed, copy) = self.node().column_copy_of(table, snapshot.configuration())?;
        let found = match copy.view(snapshot.epoch()) {
            Err(NoView::Behind { .. }) => self.catch_up(feed, (table.id(), &copy), snapshot.epoch()).await,
            found => found.map_err(reason),
        };
        found.inspect(|view| {
            feed.count_view(view);
            feed.waits.record_shared(self.handle().shared_now_ns().saturating_sub(snapshot.taken_ns()));
        })
    }

    async fn catch_up(
        &self,
        feed: &ColumnFeed,
        (table, copy): (TableId, &Arc<ColumnCopy>),
        epoch: u32,
    ) -> Result<ColumnView, NoColumns> {
        let behind = || NoColumns::Behind(copy.complete_to());
        match &self.node().journaling {
            Some(journaling) if self.node().config().nodes == 1 && journaling.is_offered(epoch) => feed.close(epoch),
            // A step of each node's journal closes the epoch, also if no node commits anything.
            Some(_) => self.core.durable(epoch).await.map_err(|_| behind())?,
            // The thread that applies closes it, when it is woken.
            None => {}
        }
        let is_coming = || copy.complete_to() < epoch && feed.is_applied_to(table, copy);
        poll_fn(|context| {
            if is_coming() {
                feed.wait(context.waker());
                // Looked at once more, because the thread may have applied it in between.
                if is_coming() {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
        copy.view(epoch).map_err(reason)
    }
}

pub(super) fn reason(error: NoView) -> NoColumns {
    match error {
        NoView::Building => NoColumns::Building,
        NoView::Behind { complete } => NoColumns::Behind(complete),
        NoView::Past { since } => NoColumns::Past(since),
    }
}
