//! Rows of other nodes: found by the location cache, by one-sided reads of the hash index, or by asking; then read with
//! `read_object`. Inserts there are in [`far_insert`](super::far_insert), what a worker knows of other nodes in [`peer`](super::peer).

use crate::base::back_off::Patience;
use crate::base::error::TxnError;
use crate::base::ident::{DATA, Ident};
use crate::base::table::{Index, TableShared};
use crate::protocol::execute::near::{DOOMED_ROWS_MAX, is_undecided};
use crate::protocol::txn::state::{RowState, State};
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use crate::rpc::message::{Found, Request};
use farhold_fabric::{FabricError, FarPtr, Meta, NodeId, Version};
use farhold_store::index::hash::{FarLookup, FarStep, hash_key};
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
    pub(super) async fn far_unless_doomed(&mut self, duplicate: TxnError) -> TxnError {
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
}
