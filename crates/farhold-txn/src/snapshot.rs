//! One consistent state of all tables, for analytical scans.
//!
//! Taking it: announce it on every node, then raise the global epoch, then tell every node which epoch it has become. A
//! writer reads the epoch while it holds all its locks, so a row that is found unlocked afterwards is final for this state,
//! and whoever overwrites it later keeps a copy. Reading it: page by page, in place where the memory is mapped; a row that
//! is newer leads to its older copy; a locked row is waited for.

use crate::protocol::ident::DATA;
use crate::{Node, NodeId, Table, TxnError, Worker};
use farhold_fabric::RegionMemory;
use farhold_store::slab::{PageTable, Run};
use farhold_store::snapshot::{Blocked, RunScan};
use farhold_store::{SlotId, StoreError, Superblock};
use std::fmt;
use std::sync::Arc;

/// The state of all tables at one epoch. May be shared by threads; scans never block a writer, never fail because of
/// one, and wait only for rows that are in the middle of a commit. Older copies of rows are kept until it is dropped.
pub struct Snapshot {
    node: Arc<Node>,
    epoch: u32,
    places: Vec<Place>,
}

/// A snapshot's place on one node.
struct Place {
    node: NodeId,
    memory: Arc<RegionMemory>,
    slot: SlotId,
    /// Which start of the node it was announced to: the next one has closed it.
    incarnation: u16,
}

/// A part of a table for one thread to scan.
#[derive(Clone, Debug)]
pub struct PageTask {
    node: NodeId,
    place: usize,
    run: Run,
    /// Its pages are its own while somebody has a handle.
    _table: Table,
}

impl PageTask {
    /// The node whose pages they are.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.run.pages) * farhold_store::object::size_class::PAGE_BYTES
    }
}

/// How often a locked row is looked at before the thread gives up its turn; a commit near by takes some µs.
const LOOKS_PER_TURN: u32 = 1_000;
/// Turns before the row's owner counts as dead: some seconds.
const TURNS_MAX: u32 = 1_000_000;

impl Worker {
    /// The state of all tables at this moment.
    ///
    /// # Errors
    /// An unavailable node; too many snapshots open.
    #[allow(clippy::unused_async, reason = "where memory is not mapped it will ask by message")]
    pub async fn snapshot(&self) -> Result<Snapshot, TxnError> {
        let node = self.node();
        let mut snapshot = Snapshot { node: node.clone(), epoch: 0, places: Vec::new() };
        for id in (0..node.config().nodes).map(NodeId) {
            let memory = if id == node.id() {
                node.store.memory_shared().clone()
            } else {
                self.core.endpoint.mapped(id, DATA).ok_or(TxnError::NodeUnavailable { node: id, committed: false })?
            };
            let superblock = Superblock::of(&memory).map_err(|error| TxnError::store(error, id))?;
            let slot = superblock.announce().map_err(|error| TxnError::store(error, id))?;
            let incarnation = superblock.incarnation();
            snapshot.places.push(Place { node: id, memory, slot, incarnation });
        }
        snapshot.epoch = snapshot.places[0].superblock().advance_epoch();
        for place in &snapshot.places {
            place.superblock().confirm(place.slot, snapshot.epoch);
        }
        Ok(snapshot)
    }
}

impl Place {
    fn superblock(&self) -> Superblock<'_> {
        Superblock::of(&self.memory).expect("checked when the snapshot was taken")
    }
}

impl Snapshot {
    /// Which state: the transactions of all epochs up to this one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Splits a table, on all nodes, into tasks of one run of pages each.
    ///
    /// # Errors
    /// A dropped table; a damaged region.
    pub fn pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        if table.is_dropped() {
            return Err(TxnError::SchemaChanged);
        }
        let mut tasks = Vec::new();
        for (position, place) in self.places.iter().enumerate() {
            let here = place.node == self.node.id();
            if table.0.route.is_local_only() && !here {
                continue;
            }
            let refused = |error: StoreError| TxnError::store(error, place.node);
            let runs = if here {
                table.0.store.pages()
            } else {
                PageTable::of(&place.memory).and_then(|pages| pages.runs_of(table.id())).map_err(refused)?
            };
            tasks.extend(runs.into_iter().map(|run| PageTask {
                node: place.node,
                place: position,
                run,
                _table: table.clone(),
            }));
        }
        Ok(tasks)
    }

    /// Visits (key bytes, value bytes) of every row of this state in these pages, in no order.
    ///
    /// # Errors
    /// [`TxnError::NodeUnavailable`] if a row stays locked for seconds: its owner is dead.
    pub fn scan_page(&self, task: &PageTask, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), TxnError> {
        let place = &self.places[task.place];
        let mut room = Vec::new();
        let mut scan = RunScan::new(&place.memory, task.run, self.epoch);
        let mut looks = 0_u32;
        let mut last = None;
        loop {
            let went = scan.go_on(&mut room, &mut |_, key, value| visit(key, value));
            let Err(blocked) = went.map_err(|error| TxnError::store(error, place.node))? else { return Ok(()) };
            wait_for(blocked, &mut last, &mut looks)
                .map_err(|()| TxnError::NodeUnavailable { node: place.node, committed: false })?;
        }
    }
}

/// Lets a row's owner go on.
fn wait_for(blocked: Blocked, last: &mut Option<Blocked>, looks: &mut u32) -> Result<(), ()> {
    if *last != Some(blocked) {
        (*last, *looks) = (Some(blocked), 0);
    }
    *looks += 1;
    if looks.is_multiple_of(LOOKS_PER_TURN) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
    if *looks / LOOKS_PER_TURN > TURNS_MAX { Err(()) } else { Ok(()) }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        for place in &self.places {
            let superblock = place.superblock();
            if superblock.incarnation() == place.incarnation {
                superblock.release(place.slot);
            }
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot(epoch {})", self.epoch)
    }
}
