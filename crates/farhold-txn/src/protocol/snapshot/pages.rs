//! The pages of a table at a snapshot, as tasks for threads.

use super::{MappedPlace, Snapshot};
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::node::parts::{Part, Start};
use crate::protocol::runs::{RUNS_MAX, read_runs, used_slots};
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use farhold_fabric::NodeId;
use farhold_store::slab::PageTable;
use farhold_store::{StoreError, TableId};

/// A part of a table for one thread to scan.
#[derive(Clone, Debug)]
pub struct PageTask {
    pub(super) node: NodeId,
    pub(super) place: usize,
    pub(super) part: Part,
    /// Its pages are its own while a handle exists.
    table: Table,
}

impl PageTask {
    /// The table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The node whose pages they are.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The first of its pages.
    pub(crate) fn first_page(&self) -> u32 {
        self.part.run.page
    }

    /// Bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.part.run.pages) * farhold_store::object::size_class::PAGE_BYTES
    }
}

impl Snapshot {
    /// Splits a table into tasks of one run of pages each. Blocks the thread where a node's memory is not mapped here:
    /// [`Worker::snapshot_pages`] does not.
    ///
    /// # Errors
    /// A dropped table; a damaged region; an unavailable node.
    pub fn pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = self.mapped_pages(table)?;
        for (position, place) in self.places.iter().enumerate() {
            if place.mapped.is_none() && !table.0.route.is_local_only() {
                let runs = self.node.far_reads.runs(&self.node, place.start, table.id());
                let runs = runs.map_err(|error| self.node.retryable(error))?;
                let task = |part| PageTask { node: place.start.node, place: position, part, table: table.clone() };
                tasks.extend(runs.into_iter().map(task));
            }
        }
        Ok(tasks)
    }

    /// The tasks of a table's pages on this node.
    pub(crate) fn own_pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = self.mapped_pages(table)?;
        tasks.retain(|task| task.node == self.node.id());
        Ok(tasks)
    }

    fn mapped_pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        if table.is_dropped() {
            return Err(TxnError::SchemaChanged);
        }
        let mut tasks = Vec::new();
        for (position, place) in self.places.iter().enumerate() {
            let (node, here) = (place.start.node, place.start.node == self.node.id());
            let Some(MappedPlace { memory, .. }) = &place.mapped else { continue };
            if table.0.route.is_local_only() && !here {
                continue;
            }
            let refused = |error: StoreError| TxnError::store(error, node);
            let runs = if here {
                table.0.store.pages()
            } else {
                PageTable::of(memory).and_then(|pages| pages.runs_of(table.id())).map_err(refused)?
            };
            tasks.extend(runs.into_iter().map(|run| PageTask {
                node,
                place: position,
                part: Part { slots: used_slots(memory, &run), run },
                table: table.clone(),
            }));
        }
        self.check()?;
        Ok(tasks)
    }
}

impl Worker {
    /// The tasks of a table, also for nodes whose memory is not mapped here.
    ///
    /// # Errors
    /// An unavailable node, a dropped table, a damaged region.
    pub async fn snapshot_pages(&self, snapshot: &Snapshot, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = snapshot.mapped_pages(table)?;
        for (position, place) in snapshot.places.iter().enumerate() {
            if place.mapped.is_none() && !table.0.route.is_local_only() {
                let runs = self.ask_runs(place.start, table.id()).await;
                let runs = runs.map_err(|error| self.core.retryable(error))?;
                let task = |part| PageTask { node: place.start.node, place: position, part, table: table.clone() };
                tasks.extend(runs.into_iter().map(task));
            }
        }
        Ok(tasks)
    }

    /// The runs of pages of a table on another node, in the order of their pages. As many questions as it takes: a message carries
    /// those of some hundred megabytes.
    pub(crate) async fn ask_runs(&self, start: Start, table: TableId) -> Result<Vec<Part>, TxnError> {
        let mut runs: Vec<Part> = Vec::new();
        loop {
            let from_page = runs.last().map_or(0, |last| last.run.page.saturating_add(last.run.pages));
            let request = Request::Pages { table, from_page };
            let answer = self.core.ask(start.node, &request, |r| Ok((r.u16()?, read_runs(r)?)));
            let (incarnation, more) = answer.await?;
            start.check(incarnation)?;
            let are_all = more.len() < RUNS_MAX;
            runs.extend(more);
            if are_all {
                return Ok(runs);
            }
        }
    }
}
