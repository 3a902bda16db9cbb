//! What a worker knows of another node: the hash indexes there, which start of the node it has met, and what an error there means.

use crate::base::error::TxnError;
use crate::base::ident::{DATA, Ident};
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use farhold_fabric::object::LOCK;
use farhold_fabric::{Batch, FabricError, FarPtr, NodeId, RegionId, RegionKey};
use farhold_store::index::hash::{Directory, FarIndex};
use farhold_store::{ObjectRef, Owner, Superblock, TableId};

/// Hash indexes of other nodes that are kept before a worker looks which of their tables are gone.
pub(crate) const FAR_INDEXES_MIN: usize = 64;

/// A later start of a node, as a worker has met it.
pub struct Met {
    /// Which of the worker's meetings with later starts this was.
    at: u64,
    /// The key of the region of rows, if that was there.
    key: Option<RegionKey>,
}

impl Txn {
    /// Another task of the worker may meanwhile have met a later start of a node. The hash indexes of that start are at
    /// other places.
    pub(super) fn check_start(&self, node: NodeId) -> Result<(), TxnError> {
        if self.core.has_met_start(node, self.starts_met) { Err(TxnError::Conflict) } else { Ok(()) }
    }
}

impl Core {
    /// Reads bytes of another node.
    pub async fn read_far(&self, at: FarPtr, len: usize) -> Result<Vec<u8>, TxnError> {
        let mut batch = self.take_batch();
        let slot = batch.read(at, len);
        let batch = self.endpoint.submit(batch).await;
        let bytes = batch.bytes(slot).map(<[u8]>::to_vec).map_err(|error| self.far_error(error, at.node()));
        self.give_batch(batch);
        bytes
    }

    /// Is a far row half written, and its writer dead? [`TxnError::HALF_WRITTEN`] then.
    #[cold]
    pub async fn check_damage(&self, object: FarPtr) -> Result<(), TxnError> {
        if self.node.replication.is_some() {
            // The other nodes have the whole row.
            return Ok(());
        }
        let lock = self.read_far(object.add(LOCK), size_of::<u64>()).await?;
        if lock == Owner::DAMAGED.word().to_le_bytes() { Err(TxnError::HALF_WRITTEN) } else { Ok(()) }
    }

    /// What is known of a table's hash index on another node; learned on the first use.
    pub(super) async fn far_index(&self, node: NodeId, table: TableId) -> Result<Option<FarIndex>, TxnError> {
        if let Some(known) = self.far_indexes.borrow().get(&(node, table)) {
            return Ok(Some(known.clone()));
        }
        let mut directory = Directory::new(node, DATA, table);
        while let Some((at, bytes)) = directory.next() {
            let read = self.read_far(at, bytes).await?;
            if let Some(index) = directory.learn(&read) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    pub(super) fn keep_far_index(&self, node: NodeId, table: TableId, index: FarIndex) {
        let mut known = self.far_indexes.borrow_mut();
        if known.len() >= self.far_indexes_max.get() {
            // Tables come and go, and their numbers are never reused.
            known.retain(|(_, table), _| self.node.catalog.by_id(*table).is_some());
            self.far_indexes_max.set(2 * known.len().max(FAR_INDEXES_MIN));
        }
        known.insert((node, table), index);
    }

    /// The error for something there that has been locked for longer than any thread of that node needs.
    #[cold]
    pub(super) fn busy_or_gone(&self, node: NodeId) -> TxnError {
        let is_gone = self.node.replication.is_none() && !self.node.fabric.node_is_live(node);
        if is_gone { TxnError::NodeUnavailable { node, committed: false } } else { TxnError::Conflict }
    }

    /// What a refusal of the fabric means. A region registered anew is one that a node has taken over: what was known of it
    /// is void, and so is whatever the transaction has read there.
    #[cold]
    pub fn far_error(&self, error: FabricError, node: NodeId) -> TxnError {
        if let FabricError::StaleKey { .. } | FabricError::NoSuchRegion { .. } = error
            && self.look_again(node, DATA)
        {
            return TxnError::Conflict;
        }
        TxnError::far(error, node)
    }

    /// Makes the endpoint look for a region again, because another one may have replaced it; true if it has found one. What this worker
    /// knows of the node's rows is void then; only this call detects that.
    ///
    /// When a node starts again, several tasks may have instructions under way and call this one after the other. Only the first call
    /// counts as having met the start: between two calls a transaction may have locked rows of that start.
    #[cold]
    pub fn look_again(&self, node: NodeId, region: RegionId) -> bool {
        let found = self.endpoint.refresh(node, region);
        if region == DATA {
            self.locations.borrow_mut().forget_all();
            self.far_indexes.borrow_mut().retain(|(of, _), _| *of != node);
            let mut met_at = self.met_at.borrow_mut();
            let before = met_at.get(&node).and_then(|met| met.key);
            let key = found.as_ref().ok().copied();
            let is_later = match found {
                Ok(_) => key != before,
                // The endpoint finds a region that appears later by itself.
                Err(FabricError::NoSuchRegion { .. }) => {
                    self.touched.borrow_mut().remove(&node);
                    true
                }
                // The endpoint keeps its old key; the next use of that key leads here again.
                Err(_) => false,
            };
            if is_later {
                let at = self.starts_met.get() + 1;
                self.starts_met.set(at);
                met_at.insert(node, Met { at, key });
            }
        }
        found.is_ok()
    }

    /// Looks again at a node whose region was missing at the last look. What is locked there from now on is then locked in a known
    /// start.
    pub fn look_if_unknown(&self, node: NodeId) {
        let is_unknown = || self.met_at.borrow().get(&node).is_some_and(|met| met.key.is_none());
        if self.starts_met.get() > 0 && is_unknown() {
            self.look_again(node, DATA);
        }
    }

    /// Before the first message about a range. Where rows have no copies, the stamps that it brings are of this start
    /// of the home or of a later one. The fabric reports a later one to an endpoint that has touched an earlier one.
    #[inline]
    pub async fn touch(&self, node: NodeId) -> Result<(), TxnError> {
        if self.node.replication.is_none() && !self.touched.borrow().contains(&node) {
            self.read_far(FarPtr::new(node, DATA, Superblock::STARTS), 8).await?;
            self.touched.borrow_mut().insert(node);
        }
        Ok(())
    }

    /// Has it met a later start of this node since `starts_met` was `since`?
    pub fn has_met_start(&self, node: NodeId, since: u64) -> bool {
        self.starts_met.get() > since && self.met_at.borrow().get(&node).is_some_and(|met| met.at > since)
    }

    /// Does a node serve the row?
    #[inline]
    pub fn check_served(&self, home: NodeId) -> Result<(), TxnError> {
        if home.0 == crate::base::nodes::NOBODY { Err(TxnError::Recovering { node: self.me }) } else { Ok(()) }
    }

    /// What an error before the commit point means where other nodes take over from one that is gone.
    #[cold]
    pub fn retryable(&self, error: TxnError) -> TxnError {
        self.node.retryable(error)
    }

    /// An empty batch whose memory has been used before.
    pub fn take_batch(&self) -> Batch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a batch's memory for [`Self::take_batch`].
    pub fn give_batch(&self, mut batch: Batch) {
        batch.clear();
        self.batches.borrow_mut().push(batch);
    }

    /// The object that a far reference names, for a lock.
    pub fn lock_place(ident: Ident) -> FarPtr {
        ident.far().add(farhold_fabric::object::LOCK)
    }
}

/// References by node, to be told in one message each.
pub(crate) fn by_node(
    rows: impl Iterator<Item = (NodeId, TableId, ObjectRef)>,
) -> Vec<(NodeId, TableId, Vec<ObjectRef>)> {
    let mut lists: Vec<(NodeId, TableId, Vec<ObjectRef>)> = Vec::new();
    for (node, table, reference) in rows {
        match lists.iter_mut().find(|(n, t, _)| (*n, *t) == (node, table)) {
            Some((_, _, list)) => list.push(reference),
            None => lists.push((node, table, vec![reference])),
        }
    }
    lists
}
