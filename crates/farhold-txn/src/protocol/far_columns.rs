//! Columns of a table on another node: the description of a view, and the pin that protects its chunks while they are read.
//!
//! ```text
//!   reader                                                  home
//!   snapshot S is open there ── ColumnView(table, S) ─────► is S open here? is the copy complete to S?  (no: "ask again")
//!                                                           a view at S, described in column memory
//!   reads the description  ◄─────────── where it is ───────
//!   reads chunks, until the snapshot is closed
//! ```
//! Chunks and the description are kept in place until S is closed on the home: docs/design/0030-columns-of-several-nodes.md.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use crate::base::at_once::{Work, all_at_once};
use crate::base::definition::KeptColumns;
use crate::base::error::TxnError;
use crate::base::ident::COLUMNS;
use crate::base::table::Table;
use crate::base::wire::{GARBAGE, Reader, Writer};
use crate::columns::NoColumns;
use crate::node::parts::Start;
use crate::protocol::columns::reason;
use crate::protocol::core::Core;
use crate::protocol::snapshot::Snapshot;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use farhold_fabric::{FarPtr, Handle, NodeId, RegionMemory};
use farhold_scan::access_path::{FarChunk, Pinned};
use farhold_scan::columns::excludes;
use farhold_scan::predicate::Predicate;
use farhold_store::column::copy::{Asked, ColumnView, FarView, FarViewSegment, NoView};
use farhold_store::row::Schema;
use farhold_store::{Holder, TableId};

/// The longest description. Only a delta makes a description long, and a delta is merged at this size.
const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;
/// The pause between two requests while the home applies committed changes: the first one, and the longest one.
const ASK_NS: u64 = 100_000;
const ASK_NS_MAX: u64 = 5_000_000;
/// How long a query waits for that. Usually it takes some milliseconds; if it takes longer, reading the node's rows is faster.
const COMING_NS_MAX: u64 = 250_000_000;
/// While this part of the column memory is kept only for snapshots, no more views are described: a long query keeps every description that is made while it
/// runs, and merges need the rest.
const HELD_PART: u64 = 4;
/// A longer buffer is not kept for later reads.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The answer to [`Request::ColumnView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewAnswer {
    /// This start of the node has written the description at this place in its column memory.
    There { incarnation: u16, offset: u64, bytes: u64 },
    /// The copy is at this epoch, and further records are being applied: ask again.
    Coming { complete: u32 },
    /// There is no view.
    None(NoColumns),
}

impl ViewAnswer {
    fn encode(self, w: &mut Writer) {
        match self {
            Self::There { incarnation, offset, bytes } => w.u8(0).u16(incarnation).u64(offset).u64(bytes),
            Self::Coming { complete } => w.u8(1).u32(complete),
            Self::None(reason) => {
                let (code, epoch) = reason.code();
                w.u8(2).u8(code).u32(epoch)
            }
        };
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        match r.u8()? {
            0 => Ok(Self::There { incarnation: r.u16()?, offset: r.u64()?, bytes: r.u64()? }),
            1 => Ok(Self::Coming { complete: r.u32()? }),
            2 => NoColumns::of_code(r.u8()?, r.u32()?).map(Self::None).ok_or(GARBAGE),
            _ => Err(GARBAGE),
        }
    }
}

impl Core {
    /// Answers [`Request::ColumnView`] of a node's start. Never waits.
    pub fn describe_columns(
        &self,
        holder: Holder,
        (table, epoch, configuration): (TableId, u32, u64),
        columns: &[u16],
        w: &mut Writer,
    ) -> Result<(), TxnError> {
        // From here on the snapshot keeps the view's extents: an extent that is dropped later gets a later stamp.
        if !self.node.store.superblock().has_open(holder, epoch) {
            return Err(TxnError::Recovering { node: self.me });
        }
        let answer = match self.table_handle(table) {
            Ok(table) => self.describe(&table, (epoch, configuration), columns).unwrap_or_else(ViewAnswer::None),
            Err(_) => ViewAnswer::None(NoColumns::NotKept),
        };
        answer.encode(w);
        Ok(())
    }

    fn describe(
        &self,
        table: &Table,
        (epoch, configuration): (u32, u64),
        columns: &[u16],
    ) -> Result<ViewAnswer, NoColumns> {
        let (feed, copy) = self.node.column_copy_of(table, configuration)?;
        let view = match copy.view(epoch) {
            Err(NoView::Behind { complete }) if feed.is_applied_to(table.id(), &copy) => {
                // A step of each node's journal closes the epoch, because a task waits for it.
                if let Some(journaling) = self.node.journaling.as_ref().filter(|it| it.durable() < epoch) {
                    journaling.wait_for(epoch, Waker::noop());
                }
                feed.bell.ring();
                return Ok(ViewAnswer::Coming { complete });
            }
            found => found.map_err(reason)?,
        };
        let columns: Vec<usize> = columns.iter().map(|column| usize::from(*column)).collect();
        let has = |column: &usize| *column < table.schema().columns().len() && view.kept().has(*column);
        if !columns.iter().all(has) {
            return Err(NoColumns::Lacking);
        }
        let described = view.describe(table.id(), &columns, DESCRIPTION_BYTES_MAX as usize);
        let described = described.ok_or(NoColumns::NoRoom)?;
        let memory = feed.memory().ok_or(NoColumns::NoRoom)?;
        self.node.reclaim_columns(memory);
        let now = memory.statistics();
        if now.held_bytes + described.len() as u64 > now.bytes / HELD_PART {
            return Err(NoColumns::NoRoom);
        }
        // It has no owner here once this returns: only the snapshot keeps it, as it keeps the segments after a merge.
        let place = memory.store([&described[..]]).map_err(|_| NoColumns::NoRoom)?;
        feed.count_view(&view);
        let (incarnation, offset, bytes) = (self.node.store.incarnation(), place.offset(), described.len() as u64);
        Ok(ViewAnswer::There { incarnation, offset, bytes })
    }
}

/// The rows of one node's part of a table at a snapshot, as columns in the memory of that node, which stay there while this value exists.
#[derive(Debug)]
pub struct FarColumns {
    /// The columns that it has, in the order of each segment's chunks.
    columns: Vec<usize>,
    view: FarView,
    pin: ColumnPin,
    /// The node's column memory, if it is mapped here.
    mapped: Option<Arc<RegionMemory>>,
}

/// The rows of one node's part of a table at a snapshot, as columns.
#[derive(Clone, Debug)]
pub enum NodeColumns {
    /// Of this node.
    Own(Arc<ColumnView>),
    /// Of another one.
    Far(Arc<FarColumns>),
}

/// The columns of a table by node, or why a node's rows are read instead.
pub type ColumnsByNode = Vec<(NodeId, Result<NodeColumns, NoColumns>)>;

impl NodeColumns {
    /// Whether it has the column at a position.
    #[must_use]
    pub fn has(&self, column: usize) -> bool {
        match self {
            Self::Own(view) => view.kept().has(column),
            Self::Far(far) => far.place_of(column).is_some(),
        }
    }
}

impl FarColumns {
    /// The segments, in the order of their rows.
    #[must_use]
    pub fn segments(&self) -> &[FarViewSegment] {
        self.view.segments()
    }

    /// The rows that are in no segment, with the bits of the others.
    #[must_use]
    pub fn view(&self) -> &FarView {
        &self.view
    }

    /// The position of a column's chunk among those of each segment; `None` if the column was not requested.
    #[must_use]
    pub fn place_of(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|asked| *asked == column)
    }

    /// Whether a row of a segment may pass, as the segment's zone maps show.
    ///
    /// # Panics
    /// If there is no such segment, or the predicate does not fit the table ([`Predicate::check`]).
    #[must_use]
    pub fn may_pass(&self, segment: usize, schema: &Schema, predicate: &Predicate) -> bool {
        let zones = self.segments()[segment].zones();
        !excludes(schema, predicate, |column| self.place_of(column).map(|place| &zones[place]))
    }

    /// Whether the node's memory is mapped here, so that [chunks](Self::chunk) are read in place.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// The bytes of a chunk of one of its segments, in place.
    ///
    /// # Errors
    /// [`TxnError::Recovering`]: the memory is not mapped here, or the snapshot is not kept on that node any more.
    pub fn chunk(&self, chunk: FarChunk) -> Result<&[u8], TxnError> {
        let node = self.pin.start.node;
        let gone = TxnError::Recovering { node };
        let Some(memory) = &self.mapped else { return Err(gone) };
        if !self.pin.covers(chunk) {
            return Err(gone);
        }
        // SAFETY: the pin covers these bytes, and was asked after the region had been mapped. So they do not change while the snapshot is open, which `self`
        // owns, and the mapping stays as long as `memory`: docs/design/0030-columns-of-several-nodes.md, claim 9. A process that the others go on without has
        // been killed before its claims are released.
        unsafe { memory.immutable(chunk.at.offset(), chunk.bytes as usize) }.map_err(|_| TxnError::Recovering { node })
    }

    /// The pin that keeps the chunks unchanged.
    #[must_use]
    pub fn pin(&self) -> &ColumnPin {
        &self.pin
    }
}

// SAFETY: what the pin covers is a part of a chunk that the home has described for an open snapshot. The chunk was written before it was described. Its extent
// is used again only behind the last snapshot that may know of it, those of dead nodes included: they are fenced before their claims go. A later start of the
// home has a new file. The snapshot is checked at each call, and a chunk that was covered once stays unchanged until the snapshot, which the pin owns, is
// closed: docs/design/0030-columns-of-several-nodes.md, claims 5 to 9.
unsafe impl Pinned for ColumnPin {
    /// Whether these bytes are a part of a chunk that stays unchanged while this value exists. It must be called after the region has been mapped, and before
    /// it is read. False for another region, and once the snapshot is no longer kept there. A chunk that is then being read still stays unchanged: the node's
    /// next start has another file, and a node that the others go on without is fenced before its claims are released.
    fn covers(&self, chunk: FarChunk) -> bool {
        let (offset, bytes) = (chunk.at.offset(), u64::from(chunk.bytes));
        let behind = self.chunks.partition_point(|(at, _)| *at <= offset);
        let is_inside = behind.checked_sub(1).is_some_and(|number| {
            let (at, all) = self.chunks[number];
            offset - at <= u64::from(all) && bytes <= u64::from(all) - (offset - at)
        });
        chunk.at.is_with(FarPtr::new(self.start.node, COLUMNS, 0)) && is_inside && self.snapshot.stands_on(self.start)
    }
}

/// Keeps chunks of another node unchanged: an open snapshot, and the start of the node on which it is open. It covers the chunks of one [view](FarColumns), and
/// nothing else.
#[derive(Clone)]
pub struct ColumnPin {
    snapshot: Arc<Snapshot>,
    start: Start,
    /// Offset and bytes of each chunk, in order.
    chunks: Arc<[(u64, u32)]>,
}

impl std::fmt::Debug for ColumnPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColumnPin")
            .field("snapshot", &self.snapshot)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

impl ColumnPin {
    /// Whether the data that has been read so far counts. It must be called after a read, as in a scan of rows.
    ///
    /// # Errors
    /// [`TxnError::Recovering`]: the snapshot is not kept any more.
    pub fn check(&self) -> Result<(), TxnError> {
        self.snapshot.check()
    }

    /// The snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The node whose chunks it keeps.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.start.node
    }
}

/// How long to wait for other nodes' columns: a limited time after this node's own columns, which are awaited without a limit.
struct Patience {
    /// This node's columns that are awaited.
    own: Cell<usize>,
    since_ns: Cell<u64>,
}

impl Patience {
    fn of(handle: &Handle, own: usize) -> Self {
        Self { own: Cell::new(own), since_ns: Cell::new(handle.now_ns()) }
    }

    fn has_own(&self, handle: &Handle) {
        self.own.set(self.own.get().saturating_sub(1));
        self.since_ns.set(handle.now_ns());
    }

    fn is_over(&self, handle: &Handle, limit_ns: u64) -> bool {
        self.own.get() == 0 && handle.now_ns() >= self.since_ns.get() + limit_ns
    }
}

impl Worker {
    /// The columns of a table at a snapshot's epoch, by the nodes that have rows of it, this node first. If each node has columns, together they are the rows
    /// that a scan of the snapshot finds. For a node without columns, the caller scans that node's pages.
    pub async fn columns_by_node(&self, snapshot: &Arc<Snapshot>, table: &Table) -> ColumnsByNode {
        self.columns_of_tables(snapshot, &[table]).await.pop().unwrap_or_default()
    }

    /// As [`Self::columns_by_node`], for several tables, in their order. All nodes are asked about all tables at the same time, so this takes as long as the
    /// slowest answer. If there are very many requests, the last ones are sent when the first ones have been answered.
    pub async fn columns_of_tables(&self, snapshot: &Arc<Snapshot>, tables: &[&Table]) -> Vec<ColumnsByNode> {
        let me = self.node().id();
        let nodes_of = |table: &Table| -> Vec<NodeId> {
            let others = snapshot.nodes().filter(|node| *node != me && !table.0.route.is_local_only());
            std::iter::once(me).chain(others).collect()
        };
        let nodes: Vec<Vec<NodeId>> = tables.iter().map(|table| nodes_of(table)).collect();
        let patience = Patience::of(&self.core.handle, tables.len());
        let mut questions: Vec<Work<'_, Result<NodeColumns, NoColumns>>> = Vec::new();
        for (table, nodes) in tables.iter().zip(&nodes) {
            for node in nodes {
                questions.push(Box::pin(self.columns_on(snapshot, table, *node, &patience)));
            }
        }
        let mut answers = all_at_once(questions).await.into_iter();
        nodes.into_iter().map(|nodes| nodes.into_iter().zip(answers.by_ref()).collect()).collect()
    }

    /// The columns of the rows that a node has of a table, this node or another.
    async fn columns_on(
        &self,
        snapshot: &Arc<Snapshot>,
        table: &Table,
        node: NodeId,
        patience: &Patience,
    ) -> Result<NodeColumns, NoColumns> {
        if node == self.node().id() {
            let own = self.home_columns(snapshot, table).await;
            patience.has_own(&self.core.handle);
            return own.map(|view| NodeColumns::Own(Arc::new(view)));
        }
        // If this node does not make columns, other nodes keep none either.
        let makes_columns = self.node().column_feed().is_some();
        let columns: Vec<usize> = match table.kept_columns() {
            kept if !makes_columns || kept == KeptColumns::None => {
                let here = self.node().column_copy_of(table, snapshot.configuration());
                return Err(here.err().unwrap_or(NoColumns::NotKept));
            }
            KeptColumns::These(columns) => columns.into_iter().map(usize::from).collect(),
            KeptColumns::None | KeptColumns::Auto | KeptColumns::All => (0..table.schema().columns().len()).collect(),
        };
        let far = self.columns_within(snapshot, table, node, &columns, patience).await;
        far.map(|far| NodeColumns::Far(Arc::new(far)))
    }

    /// The columns of the rows that a node has of a table, at a snapshot's epoch, for [immutable reads](farhold_fabric::Batch::read_immutable) of their chunks.
    /// Waits until the node's copy has every commit up to that epoch, but at most as long as a request may take.
    ///
    /// # Errors
    /// [`NoColumns`]: the caller scans rows.
    pub async fn columns_of(
        &self,
        snapshot: &Arc<Snapshot>,
        table: &Table,
        node: NodeId,
        columns: &[usize],
    ) -> Result<FarColumns, NoColumns> {
        self.columns_within(snapshot, table, node, columns, &Patience::of(&self.core.handle, 0)).await
    }

    async fn columns_within(
        &self,
        snapshot: &Arc<Snapshot>,
        table: &Table,
        node: NodeId,
        columns: &[usize],
        patience: &Patience,
    ) -> Result<FarColumns, NoColumns> {
        let start = snapshot.start_on(node).ok_or(NoColumns::Unreachable)?;
        let (incarnation, offset, bytes) = self.ask_for_columns(snapshot, table, node, columns, patience).await?;
        // A description by another start is about other memory.
        if incarnation != start.incarnation || !snapshot.stands_on(start) {
            return Err(NoColumns::Unreachable);
        }
        let origin = FarPtr::new(node, COLUMNS, 0);
        let is_address = offset.checked_add(bytes).is_some_and(|end| end <= FarPtr::OFFSET_MAX);
        if bytes > DESCRIPTION_BYTES_MAX || !is_address {
            return Err(NoColumns::Damaged);
        }
        let bytes = self.read_description(origin.add(offset), bytes as usize).await?;
        let mapped = self.core.endpoint.mapped(node, COLUMNS);
        if !snapshot.stands_on(start) {
            return Err(NoColumns::Unreachable);
        }
        let schema = table.schema();
        let asked = Asked { origin, table: table.id(), schema, epoch: snapshot.epoch(), columns: columns.len() };
        let view = FarView::read(bytes, &asked).map_err(|_| NoColumns::Damaged)?;
        let chunks = view.segments().iter().flat_map(FarViewSegment::chunks);
        let mut chunks: Vec<_> = chunks.map(|chunk| (chunk.at.offset(), chunk.bytes)).collect();
        chunks.sort_unstable();
        let pin = ColumnPin { snapshot: snapshot.clone(), start, chunks: chunks.into() };
        Ok(FarColumns { columns: columns.to_vec(), view, pin, mapped })
    }

    /// The place of the description, once the home has made it.
    async fn ask_for_columns(
        &self,
        snapshot: &Snapshot,
        table: &Table,
        node: NodeId,
        columns: &[usize],
        patience: &Patience,
    ) -> Result<(u16, u64, u64), NoColumns> {
        let core = &*self.core;
        let incarnation = self.node().store.incarnation();
        let columns = columns.iter().map(|column| u16::try_from(*column)).collect::<Result<Vec<_>, _>>();
        let columns = columns.map_err(|_| NoColumns::Lacking)?;
        let (epoch, configuration) = (snapshot.epoch(), snapshot.configuration());
        let request = Request::ColumnView { incarnation, table: table.id(), epoch, configuration, columns };
        let limit_ns = self.node().config.request_timeout_ns.min(COMING_NS_MAX);
        let mut pause_ns = ASK_NS;
        loop {
            let answer = core.ask(node, &request, ViewAnswer::decode).await;
            match answer.map_err(|_| NoColumns::Unreachable)? {
                ViewAnswer::There { incarnation, offset, bytes } => return Ok((incarnation, offset, bytes)),
                ViewAnswer::None(reason) => return Err(reason),
                ViewAnswer::Coming { complete } if patience.is_over(&core.handle, limit_ns) => {
                    return Err(NoColumns::Behind(complete));
                }
                ViewAnswer::Coming { .. } => {
                    while core.serve_one() {}
                    core.handle.sleep_ns(pause_ns).await;
                    pause_ns = (pause_ns * 2).min(ASK_NS_MAX);
                }
            }
        }
    }

    async fn read_description(&self, at: FarPtr, bytes: usize) -> Result<Vec<u8>, NoColumns> {
        let core = &*self.core;
        // The region may have been registered after this endpoint looked for it.
        for _ in 0..2 {
            let mut batch = core.take_batch();
            let slot = batch.read_immutable(at, bytes);
            let batch = core.endpoint.submit(batch).await;
            if let Ok(read) = batch.bytes(slot) {
                let read = read.to_vec();
                if bytes <= KEPT_BYTES_MAX {
                    core.give_batch(batch);
                }
                return Ok(read);
            }
            let _ = core.endpoint.refresh(at.node(), COLUMNS);
        }
        Err(NoColumns::Unreachable)
    }
}

#[cfg(test)]
mod tests;
