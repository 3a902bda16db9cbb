//! Rows of other nodes: found by the location cache, by one-sided reads of the hash index, or by asking; then read with
//! `read_object`.

use crate::base::back_off::Patience;
use crate::base::error::TxnError;
use crate::base::ident::{DATA, Ident};
use crate::base::table::{Index, TableShared};
use crate::protocol::core::Core;
use crate::protocol::execute::near::{DOOMED_ROWS_MAX, is_undecided};
use crate::protocol::txn::stamps::Stamps;
use crate::protocol::txn::state::{RowState, State};
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use crate::rpc::message::{Found, Request, Reserved, Taken};
use farhold_btree::{Change, LeafStamp};
use farhold_fabric::object::LOCK;
use farhold_fabric::{Batch, FabricError, FarPtr, Meta, NodeId, RegionId, RegionKey, Version};
use farhold_store::index::hash::{Directory, FarIndex, FarLookup, FarStep, hash_key};
use farhold_store::{Moved, ObjectRef, Owner, Superblock, TableId};
use std::cell::Cell;
use std::ptr::NonNull;

/// What a far object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FarRead {
    /// A row, now in the read set.
    Row(RowHandle),
    /// No row, now in the read set as well.
    Absent,
    /// Another row, or nothing: what led here is out of date.
    Stale,
}

/// How often a row that is being written, or has grown, is read again.
const READS_MAX: u32 = 1_000;
/// Reads of such a row between two looks whether its writer has ended.
const READS_PER_CHECK: u32 = 100;
/// How often a locked row is read again before it is taken as it is.
const LOCKED_READS_MAX: u32 = 3;
/// Hash indexes of other nodes that are kept before a worker looks which of their tables are gone.
pub(crate) const FAR_INDEXES_MIN: usize = 64;
/// How often a lookup begins anew because the index has moved on.
const LOOKUPS_MAX: u32 = 100;
/// Reads of a look-up without a pause: a locked bucket is free again after some of them.
const READS_AT_ONCE: u32 = 100;
/// Pauses of a look-up after that: some 20 ms.
const PAUSES_MAX: u32 = 1_000;

impl Txn {
    /// The row with this key, at its home.
    pub(crate) async fn get_far(
        &mut self,
        table: SharedTable,
        home: NodeId,
        index: Index,
        key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        self.state.far = true;
        self.core.check_served(home)?;
        if index == Index::Primary && table.hash {
            self.get_by_hash(table, home, key).await
        } else {
            self.get_by_message(table, home, index, key).await
        }
    }

    async fn get_by_hash(
        &mut self,
        table: SharedTable,
        home: NodeId,
        key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        let (id, hash) = (table.store.id(), hash_key(key));
        let known = self.core.locations.borrow_mut().get(home, id, hash);
        if let Some(reference) = known {
            match self.read_if_key(table, Ident::new(home, reference), key).await? {
                Some(FarRead::Row(row)) => return self.state.own_view(table, Index::Primary, key, row),
                Some(FarRead::Absent) => {}
                _ => self.core.locations.borrow_mut().forget(home, id, hash),
            }
        }
        for _ in 0..LOOKUPS_MAX {
            let Some(mut far_index) = self.core.far_index(home, id).await? else {
                // The table is on its way to its home, or gone from there, or its home has just started and is opening it: its
                // home says which.
                return self.get_by_message(table, home, Index::Primary, key).await;
            };
            let (mut lookup, mut step) = FarLookup::start(&far_index, hash);
            let mut reads = 0_u32;
            let outcome = loop {
                match step {
                    FarStep::Read { at, bytes } => {
                        reads += 1;
                        if let Some(turn) = reads.checked_sub(READS_AT_ONCE) {
                            // A writer is changing the bucket, or was when its node ended.
                            if turn > PAUSES_MAX {
                                return Err(self.core.busy_or_gone(home));
                            }
                            self.core.handle.pause(turn).await;
                        }
                        let read = self.core.read_far(at, bytes).await?;
                        step = lookup.learn(&mut far_index, &read);
                    }
                    FarStep::Matches(matches) => {
                        let mut found = None;
                        for reference in matches.iter() {
                            found = self.read_if_key(table, Ident::new(home, reference), key).await?;
                            if let Some(FarRead::Row(_)) = found {
                                self.core.locations.borrow_mut().put(home, id, hash, reference);
                            }
                            if found.is_some() {
                                break;
                            }
                        }
                        match found {
                            None => step = lookup.no_match(&far_index),
                            Some(read) => break Some(read),
                        }
                    }
                    FarStep::Missing(stamp) => {
                        self.check_start(home)?;
                        self.core.keep_far_index(home, id, far_index);
                        self.state.buckets.push((home, stamp));
                        return Ok(None);
                    }
                    FarStep::Gone => break None,
                }
            };
            self.check_start(home)?;
            match outcome {
                Some(FarRead::Row(row)) => {
                    self.core.keep_far_index(home, id, far_index);
                    return self.state.own_view(table, Index::Primary, key, row);
                }
                // No row there: the home tells, with a stamp, whether another object has the key, or none.
                Some(FarRead::Absent) => {
                    self.core.keep_far_index(home, id, far_index);
                    return self.get_by_message(table, home, Index::Primary, key).await;
                }
                Some(FarRead::Stale) | None => {}
            }
        }
        Err(TxnError::Conflict)
    }

    async fn get_by_message(
        &mut self,
        table: SharedTable,
        home: NodeId,
        index: Index,
        key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        for _ in 0..LOOKUPS_MAX {
            let request = Request::Lookup { table: table.store.id(), index: index.number() as u16, key };
            self.core.touch(home).await?;
            let found = self.core.clone().ask(home, &request, Found::decode).await?;
            let Some(reference) = found.reference else {
                self.state.group(table.0, index, home).leaves.push(found.leaf);
                return Ok(None);
            };
            match self.read_object_far(table, Ident::new(home, reference), table.payload_hint()).await? {
                FarRead::Row(row) => return self.state.own_view(table, index, key, row),
                FarRead::Absent => {
                    self.state.group(table.0, index, home).leaves.push(found.leaf);
                    return Ok(None);
                }
                FarRead::Stale => {}
            }
        }
        Err(TxnError::Conflict)
    }

    /// Reads an object if it has this key. `None` if it has another: a hash index cannot tell keys with equal hashes
    /// apart.
    async fn read_if_key(&mut self, table: SharedTable, ident: Ident, key: &[u8]) -> Result<Option<FarRead>, TxnError> {
        let known_before = self.state.find(ident).is_some();
        let read = self.read_object_far(table, ident, table.payload_hint()).await?;
        let row = match read {
            FarRead::Row(row) => row,
            FarRead::Absent => match self.state.find(ident) {
                Some(row) => row,
                None => return Ok(None),
            },
            FarRead::Stale => return Ok(None),
        };
        if self.state.key(self.state.row(row)) == key || planted!(StaleLocation) {
            if read == FarRead::Absent && !known_before {
                // The home will be asked which object has the key now; this one is outdated, or will be found again.
                self.state.skip(row);
            }
            return Ok(Some(read));
        }
        if !known_before {
            self.state.skip(row);
        }
        Ok(None)
    }

    /// Brings a far object into the read set.
    pub(crate) async fn read_object_far(
        &mut self,
        table: SharedTable,
        ident: Ident,
        payload_len: usize,
    ) -> Result<FarRead, TxnError> {
        self.state.far = true;
        if let Some(known) = self.state.find(ident) {
            self.state.unskip(known);
            let absent = self.state.row(known).state == RowState::Absent;
            return Ok(if absent { FarRead::Absent } else { FarRead::Row(known) });
        }
        let core = self.core.clone();
        let (mut room, mut patience) = (payload_len, Patience::default());
        for reads in 0..READS_MAX {
            let mut batch = core.take_batch();
            let slot = batch.read_object(ident.far(), room);
            let batch = core.endpoint.submit(batch).await;
            let outcome = match batch.object(slot) {
                Ok(view) if reads < LOCKED_READS_MAX && view.lock != 0 && view.lock != self.owner.word() => None,
                Ok(view) if is_of(ident, &view) && is_undecided(Version(view.version).is_absent(), view.lock) => None,
                Ok(view) => Some(self.state.take_far(table.0, ident, &view)),
                Err(FabricError::Torn { .. }) if planted!(TornRead) => {
                    core.give_batch(batch);
                    return self.read_torn(table, ident, room).await;
                }
                Err(FabricError::Torn { .. }) => None,
                Err(FabricError::ObjectTooLong { payload_len, .. }) => {
                    room = payload_len;
                    table.hint_payload(payload_len);
                    core.give_batch(batch);
                    continue;
                }
                Err(error) => return Err(core.far_error(error, ident.node())),
            };
            core.give_batch(batch);
            if let Some(read) = outcome {
                return Ok(read);
            }
            if reads % READS_PER_CHECK == LOCKED_READS_MAX {
                core.check_damage(ident.far()).await?;
            }
            if !patience.wait(&core.handle).await {
                break;
            }
        }
        Err(TxnError::Conflict)
    }

    /// A planted defect: reads header and payload without a check for tearing.
    async fn read_torn(&mut self, table: SharedTable, ident: Ident, room: usize) -> Result<FarRead, TxnError> {
        let bytes = self.core.clone().read_far(ident.far(), farhold_fabric::object::HEADER_BYTES + room).await?;
        let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let (version, meta) = (word(8) & !Version::WRITING, word(16));
        let payload = &bytes[farhold_fabric::object::HEADER_BYTES..][..Meta(meta).payload_len().min(room)];
        let view = farhold_fabric::ObjectView { lock: word(0), version, meta, prev: 0, payload };
        Ok(self.state.take_far(table.0, ident, &view))
    }

    /// Reserves a row at its home.
    pub(crate) async fn insert_far(
        &mut self,
        table: SharedTable,
        home: NodeId,
        key: &[u8],
        value: &[u8],
    ) -> Result<RowHandle, TxnError> {
        self.state.far = true;
        self.check_room(key.len() + value.len())?;
        self.core.check_served(home)?;
        if !self.state.replacing.is_empty()
            && let Err(taken) = self.state.check_own_replacements(table, home, key, value)
        {
            return Err(self.far_unless_doomed(taken).await);
        }
        let mine = self.state.deleted_with_keys_of(table, home, key, value)?;
        let configuration = self.core.node.configuration().map_or(0, |installed| installed.number);
        let (table_id, owner) = (table.store.id(), self.owner.word());
        let request = Request::Reserve { table: table_id, owner, configuration, key, value, mine };
        // Marked as unanswered until the answer comes: meanwhile this transaction may be dropped, or learn that the
        // node does not answer.
        let unanswered = self.state.reserved_at.insert(home, false);
        let is_posted = Cell::new(false);
        let reserved = self.core.clone().ask_noting(home, &request, Reserved::decode, &is_posted).await;
        match unanswered {
            // A node that has received nothing has reserved nothing.
            None if !is_posted.get() => drop(self.state.reserved_at.remove(&home)),
            Some(before) if reserved.is_ok() || !is_posted.get() => drop(self.state.reserved_at.insert(home, before)),
            None if reserved.is_ok() => drop(self.state.reserved_at.insert(home, true)),
            _ => {}
        }
        let reserved = reserved?;
        self.state.apply_moved(table.0, home, &reserved.moved);
        match reserved.outcome {
            Ok(made) => {
                let ident = Ident::new(home, made.reference);
                Ok(self.state.push_insert(table.0, ident, Version(made.version), key, value, made.replaces))
            }
            Err(taken) => Err(self.key_is_taken_far(table, home, taken).await),
        }
    }

    /// Why an insert is refused: the row in the way, which then counts as read, or another transaction's insert.
    async fn key_is_taken_far(&mut self, table: SharedTable, home: NodeId, taken: Taken) -> TxnError {
        let duplicate = TxnError::DuplicateKey { table: table.store.id(), index: taken.index };
        let ident = Ident::new(home, taken.reference);
        if let Some(known) = self.state.find(ident) {
            // It was skipped on the way to another row, but now it matters.
            self.state.unskip(known);
            let is_live = self.state.row(known).state.is_live();
            return if is_live { self.far_unless_doomed(duplicate).await } else { TxnError::Conflict };
        }
        if !taken.live {
            return self.core.clone().check_damage(ident.far()).await.err().unwrap_or(TxnError::Conflict);
        }
        match self.read_object_far(table, ident, table.payload_hint()).await {
            Ok(FarRead::Row(_)) => self.far_unless_doomed(duplicate).await,
            Ok(_) => TxnError::Conflict,
            Err(error) => error,
        }
    }

    /// Has anything that it has read changed by now, or is it being changed? Then its reads may belong to no single moment, and an error
    /// that follows from them may be wrong. Large transactions skip this check.
    ///
    /// # Errors
    /// [`TxnError::Conflict`].
    pub async fn check_reads(&mut self) -> Result<(), TxnError> {
        let stands = TxnError::ReadOnly;
        let found =
            if self.state.far { Box::pin(self.far_unless_doomed(stands)).await } else { self.unless_doomed(stands) };
        if found == TxnError::Conflict { Err(found) } else { Ok(()) }
    }

    /// As [`Self::unless_doomed`], of what was read on other nodes as well.
    async fn far_unless_doomed(&mut self, duplicate: TxnError) -> TxnError {
        let (core, me) = (self.core.clone(), self.core.me);
        let duplicate = self.unless_doomed(duplicate);
        if duplicate == TxnError::Conflict || self.state.rows.len() > DOOMED_ROWS_MAX {
            return duplicate;
        }
        let rows = self.state.rows.iter().filter(|row| row.ident.node() != me && row.is_of_others());
        let buckets = self.state.buckets.as_slice().iter().filter(|(node, _)| *node != me);
        let mut batch = core.take_batch();
        // Lock and version at once, as for validation: in whichever order a writer changes them, one of them shows it.
        let headers: Vec<_> = rows.map(|row| (row.version, batch.read(row.ident.far(), 16))).collect();
        let buckets: Vec<_> =
            buckets.map(|(node, it)| (it.word, batch.read(FarPtr::new(*node, DATA, it.offset), 8))).collect();
        let batch = if batch.is_empty() { batch } else { core.endpoint.submit(batch).await };
        let word =
            |bytes: &[u8], at: usize| bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let has_changed = headers.into_iter().any(|(version, slot)| {
            let header = batch.bytes(slot).ok();
            header.is_some_and(|it| word(it, 0) != 0 || Version(word(it, 8)).number() != version.number())
        });
        let is_doomed = has_changed
            || buckets.into_iter().any(|(stamp, slot)| batch.bytes(slot).is_ok_and(|bytes| word(bytes, 0) != stamp));
        core.give_batch(batch);
        if is_doomed {
            return TxnError::Conflict;
        }
        self.validate_far_stamps(&core).await.err().unwrap_or(duplicate)
    }
}

/// Is it still the object that this names?
fn is_of(ident: Ident, view: &farhold_fabric::ObjectView<'_>) -> bool {
    Meta(view.meta).incarnation() == ident.reference().incarnation()
}

impl State {
    /// Takes one state of a far object into the read set.
    pub(crate) fn take_far(
        &mut self,
        table: NonNull<TableShared>,
        ident: Ident,
        view: &farhold_fabric::ObjectView<'_>,
    ) -> FarRead {
        let (meta, version) = (Meta(view.meta), Version(view.version));
        let is_row = matches!(meta.state(), Meta::ROW | farhold_store::object::RESERVED);
        let same = is_of(ident, view) || planted!(StaleLocation);
        if !same || !is_row || meta.key_len() > view.payload.len() {
            return FarRead::Stale;
        }
        self.room(view.payload.len())[..view.payload.len()].copy_from_slice(view.payload);
        let state = if version.is_absent() { RowState::Absent } else { RowState::Read };
        let row = self.push(table, ident, version, state, meta.key_len(), view.payload.len());
        if version.is_absent() { FarRead::Absent } else { FarRead::Row(row) }
    }

    /// Carries the stamps of a node over a reservation of the transaction's own there.
    pub(crate) fn apply_moved(&mut self, table: NonNull<TableShared>, node: NodeId, moved: &[Moved]) {
        for moved in moved {
            match moved {
                Moved::Leaves { index, changes } => {
                    let groups = self.groups_mut().iter_mut();
                    for group in groups
                        .filter(|it| it.table == table && it.node == node && it.index.number() == usize::from(*index))
                    {
                        carry_leaves(changes.as_slice(), &mut group.leaves);
                    }
                }
                Moved::Bucket { before, after, half } => {
                    let after = std::iter::once(*after).chain(*half);
                    self.buckets.carry((node, *before), after.map(|bucket| (node, bucket)));
                }
            }
        }
    }
}

/// As [`farhold_btree::Changes::apply`].
fn carry_leaves(changes: &[Change], stamps: &mut Stamps<LeafStamp>) {
    for split in changes.chunk_by(|one, next| one.before == next.before) {
        stamps.carry(split[0].before, split.iter().map(|step| step.after));
    }
}

impl Txn {
    /// Another task of the worker may meanwhile have met a later start of a node. The hash indexes of that start are at
    /// other places.
    fn check_start(&self, node: NodeId) -> Result<(), TxnError> {
        if self.core.has_met_start(node, self.starts_met) { Err(TxnError::Conflict) } else { Ok(()) }
    }
}

/// A later start of a node, as a worker has met it.
pub struct Met {
    /// Which of the worker's meetings with later starts this was.
    at: u64,
    /// The key of the region of rows, if that was there.
    key: Option<RegionKey>,
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
    async fn far_index(&self, node: NodeId, table: TableId) -> Result<Option<FarIndex>, TxnError> {
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

    fn keep_far_index(&self, node: NodeId, table: TableId, index: FarIndex) {
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
    fn busy_or_gone(&self, node: NodeId) -> TxnError {
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
