//! The far rows of a commit: locked, validated, published, written.

use crate::base::error::TxnError;
use crate::base::ident::{DATA, Ident};
use crate::base::wire::read_flag;
use crate::protocol::commit::section::{Refused, new_version};
use crate::protocol::commit::silent::unlock_when_reached;
use crate::protocol::commit::steps::Step;
use crate::protocol::core::Core;
use crate::protocol::execute::peer::by_node;
use crate::protocol::txn::Txn;
use crate::protocol::txn::state::{Row, RowState};
use crate::replication::Replication;
use crate::rpc::message::Request;
use farhold_fabric::object::{META, PAYLOAD, VERSION};
use farhold_fabric::{FarPtr, Meta, NodeId, Slot, Version};
use farhold_store::{ObjectRef, Owner, Superblock, TableId};
use std::rc::Rc;

/// Stamps or references in one message.
pub(super) const STAMPS_MAX: usize = 2_000;

/// References in one message at most, of two lists: 62.5 KiB of 65.
const NAMED_MAX: usize = 8_000;

/// Replaced rows that one message names, so that there is room for the rows that replace them.
const REPLACED_MAX: usize = NAMED_MAX - 100;

/// Far rows are written in rounds, because instructions of one batch may overtake each other.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// `version | WRITING`: readers see that the row is torn. (A reservation that was given up gets its last version.)
    Marks,
    /// The payload, and the meta word of an insert.
    Values,
    /// The new version.
    Versions,
    /// 0 into the lock word.
    Locks,
}

impl Txn {
    pub(super) fn far_writes(&self) -> impl Iterator<Item = &Row> {
        let me = self.core.me;
        self.state
            .order
            .iter()
            .map(|position| &self.state.rows[*position as usize])
            .filter(move |row| row.ident.node() != me)
    }

    /// Locks every far row to write, or fails; what it got is in `held`.
    pub(super) async fn lock_far(&mut self, core: &Core) -> Result<(), TxnError> {
        let idents: Vec<Ident> = self.far_writes().map(|row| row.ident).collect();
        if idents.is_empty() || planted!(NoFarLock) {
            return Ok(());
        }
        let has_met = |node| core.has_met_start(node, self.starts_met);
        let is_void = |node| {
            has_met(node) || {
                core.look_if_unknown(node);
                has_met(node)
            }
        };
        if idents.iter().any(|ident| is_void(ident.node())) {
            // Another task of the worker has met a later start: the slots may lie inside other rows by now.
            return Err(self.refused(Refused::Changed));
        }
        let mut batch = core.take_batch();
        let slots: Vec<_> =
            idents.iter().map(|ident| batch.compare_swap(Core::lock_place(*ident), 0, self.owner.word())).collect();
        // Counted as held before it is known: an instruction under way cannot be called back.
        self.held.far.clone_from(&idents);
        self.locked_met = core.starts_met.get();
        let batch = core.endpoint.submit(batch).await;
        self.held.far.clear();
        let mut refused = None;
        for (ident, slot) in idents.iter().zip(slots) {
            match batch.word(slot) {
                Ok(0) => self.held.far.push(*ident),
                Ok(word) if word == Owner::DAMAGED.word() => refused = Some(Some(TxnError::HALF_WRITTEN)),
                Ok(_) => refused = Some(None),
                Err(error) => {
                    // It may have been executed, and its answer lost.
                    self.held.far.push(*ident);
                    refused = Some(Some(core.far_error(error, ident.node())));
                }
            }
        }
        core.give_batch(batch);
        match refused {
            None => Ok(()),
            Some(None) => Err(self.refused(Refused::Locked)),
            Some(Some(error)) => Err(error),
        }
    }

    /// Is every far row and stamp as it was? Returns the nodes of far writes where snapshots are open.
    pub(super) async fn validate_far(&mut self, core: &Core) -> Result<Vec<NodeId>, TxnError> {
        // Without copies first, because these are messages: a home that ends meanwhile and starts again has freed its
        // locks, which shows in the headers. With copies a new configuration shows it, and stopped homes are noticed
        // last.
        let has_copies = core.node.replication.is_some();
        if !has_copies {
            self.validate_far_stamps(core).await?;
        }
        let mut batch = core.take_batch();
        let me = core.me;
        let locks_all = self.state.writes > 0 && !has_copies;
        let counts = |state: RowState| state != RowState::Skipped && (locks_all || state != RowState::Gone);
        let read = |row: &&Row| row.ident.node() != me && counts(row.state);
        let rows: Vec<Row> = self.state.rows.iter().filter(read).copied().collect();
        // Lock and version are neighbours: 16 aligned bytes, never torn apart by any fabric.
        let headers: Vec<_> = rows.iter().map(|row| batch.read(row.ident.far(), 16)).collect();
        let buckets: Vec<_> = self.state.buckets.as_slice().iter().filter(|(node, _)| *node != me).copied().collect();
        let words: Vec<_> =
            buckets.iter().map(|(node, it)| batch.read(FarPtr::new(*node, DATA, it.offset), 8)).collect();
        let mut nodes: Vec<NodeId> = self.far_writes().map(|row| row.ident.node()).collect();
        nodes.dedup();
        let open: Vec<_> =
            nodes.iter().map(|node| batch.read(FarPtr::new(*node, DATA, Superblock::ACTIVE), 8)).collect();
        let homes = if has_copies { Vec::new() } else { self.homes_of_ranges_alone(&rows) };
        let starts: Vec<_> =
            homes.iter().map(|node| batch.read(FarPtr::new(*node, DATA, Superblock::STARTS), 8)).collect();
        let batch = if batch.is_empty() { batch } else { core.endpoint.submit(batch).await };
        let mut outcome = Ok(());
        for (node, slot) in homes.into_iter().zip(starts) {
            outcome = outcome.and(batch.done(slot).map_err(|error| Ok(core.far_error(error, node))));
        }
        for (row, slot) in rows.iter().zip(headers) {
            outcome = outcome.and(match batch.bytes(slot) {
                Ok(header) => check_header(row, header, self.owner.word(), locks_all).map_err(Err),
                Err(error) => Err(Ok(core.far_error(error, row.ident.node()))),
            });
        }
        for ((node, bucket), slot) in buckets.iter().zip(words) {
            outcome = outcome.and(match batch.bytes(slot) {
                Ok(word) if word == bucket.word.to_le_bytes() => Ok(()),
                Ok(_) => Err(Err(Refused::Changed)),
                Err(error) => Err(Ok(core.far_error(error, *node))),
            });
        }
        let mut snapshots_at = Vec::new();
        for (node, slot) in nodes.into_iter().zip(open) {
            match batch.bytes(slot) {
                Ok(count) if count.iter().any(|byte| *byte != 0) => snapshots_at.push(node),
                Ok(_) => {}
                Err(error) => outcome = outcome.and(Err(Ok(core.far_error(error, node)))),
            }
        }
        core.give_batch(batch);
        outcome.map_err(|error| error.unwrap_or_else(|refused| self.refused(refused)))?;
        if has_copies {
            self.validate_far_stamps(core).await?;
        }
        if core.starts_met.get() > self.starts_met {
            let read_at = self.state.groups().iter().map(|group| group.node);
            let mut nodes = read_at.chain(self.state.buckets.as_slice().iter().map(|(node, _)| *node));
            if nodes.any(|node| core.has_met_start(node, self.starts_met)) {
                // Another task of the worker has met a later start: the stamps of an earlier start may be those of other
                // leaves and buckets.
                return Err(self.refused(Refused::Changed));
            }
        }
        Ok(snapshots_at)
    }

    /// Other nodes where it has read ranges but no rows. Nothing else is read there that the fabric would refuse if
    /// they had started again. The stamps of leaves, which only these nodes know, may occur again in the indexes of
    /// their next start.
    fn homes_of_ranges_alone(&self, rows: &[Row]) -> Vec<NodeId> {
        let mut homes: Vec<NodeId> = self.state.groups().iter().map(|group| group.node).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|home| *home != self.core.me && rows.iter().all(|row| row.ident.node() != *home));
        homes
    }

    pub(crate) async fn validate_far_stamps(&mut self, core: &Core) -> Result<(), TxnError> {
        if planted!(NoPhantomCheck) {
            return Ok(());
        }
        for position in 0..self.state.groups().len() {
            let group = &self.state.groups()[position];
            if group.node == core.me {
                continue;
            }
            let mut leaves = group.leaves.as_slice().to_vec();
            leaves.sort_unstable();
            leaves.dedup();
            let (node, table, index) = (group.node, group.table().store.id(), group.index.number() as u16);
            for leaves in leaves.chunks(STAMPS_MAX) {
                let request = Request::Validate { table, index, leaves: leaves.to_vec() };
                let valid = core.ask(node, &request, read_flag).await?;
                if !valid {
                    return Err(self.refused(Refused::Changed));
                }
            }
        }
        Ok(())
    }

    /// As [`Self::save_undo_far`]; a home that has started again meanwhile has freed its locks.
    pub(super) async fn prepare_snapshots(
        &self,
        core: &Core,
        epoch: u32,
        snapshots_at: &[NodeId],
    ) -> Result<(), TxnError> {
        if snapshots_at.is_empty() {
            return Ok(());
        }
        self.save_undo_far(core, epoch, snapshots_at).await?;
        if core.node.replication.is_some() {
            return Ok(());
        }
        let locks = self.look_at_locks(core, |_| true).await;
        if locks.are_held() || planted!(NoFarLock) { Ok(()) } else { Err(self.refused(Refused::Changed)) }
    }

    /// Makes the homes of far writes save what snapshots need. Harmless if the commit fails after all.
    async fn save_undo_far(&self, core: &Core, epoch: u32, snapshots_at: &[NodeId]) -> Result<(), TxnError> {
        for &node in snapshots_at {
            if planted!(NoUndo) {
                continue;
            }
            let wanted = |row: &&Row| {
                let is_new = matches!(row.state, RowState::Inserted | RowState::Gone);
                row.ident.node() == node && !is_new && row.version.epoch() < epoch
            };
            let rows = self.far_writes().filter(wanted).map(|row| (row.table().store.id(), row.ident.reference()));
            let rows: Vec<(TableId, ObjectRef)> = rows.collect();
            for rows in rows.chunks(STAMPS_MAX) {
                let request = Request::SaveUndo { owner: self.owner.word(), epoch, rows: rows.to_vec() };
                core.call(node, &request).await?;
            }
        }
        Ok(())
    }

    /// Makes the homes of rows that moved swing the index entries, while the old rows are locked. Past the commit
    /// point: an entry that had been swung for a transaction that then fails would leave a row that no index leads to.
    /// Returns the nodes, of those that are `asked`, that have not answered: no row there may be written yet
    /// (`silent.rs`).
    pub(super) async fn publish_far(&self, core: &Core, number: u64, asked: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut silent = Vec::new();
        let replacing = self.replacing_far().into_iter().filter(|(node, _, _)| asked(*node));
        for (node, table, references) in replacing {
            let replaced: Vec<ObjectRef> = self.replaced_at(node, table).collect();
            for references in references.chunks(STAMPS_MAX.min(NAMED_MAX - replaced.len())) {
                if silent.contains(&node) {
                    break;
                }
                let request = Request::Publish { table, references: references.to_vec(), replaced: replaced.clone() };
                if core.node.replication.is_some() {
                    let _ = core.insist_call(node, &request, number).await;
                } else if !matches!(core.call(node, &request).await, Ok(_) | Err(TxnError::SchemaChanged)) {
                    // The node has not, or not certainly, received the request. (A table that is gone needs nothing.)
                    silent.push(node);
                }
            }
        }
        silent
    }

    /// The far rows that take the places of others.
    pub(super) fn replacing_far(&self) -> Vec<(NodeId, TableId, Vec<ObjectRef>)> {
        let me = self.core.me;
        let replacing = self.state.replacing.iter().map(|position| &self.state.rows[*position as usize]);
        let inserted = replacing.filter(|row| row.state == RowState::Inserted && row.ident.node() != me);
        by_node(inserted.map(|row| (row.ident.node(), row.table().store.id(), row.ident.reference())))
    }

    /// The objects that their index entries may lead to until then.
    fn replaced_at(&self, node: NodeId, table: TableId) -> impl Iterator<Item = ObjectRef> {
        let is_of = move |row: &&Row| row.ident.node() == node && row.table().store.id() == table;
        let replaced = self.state.rows.iter().filter(|row| row.state.leaves_nothing()).filter(is_of);
        replaced.map(|row| row.ident.reference())
    }

    /// Can a message tell each home which rows are replaced there? Asked before the commit point: past it the commit
    /// cannot be refused.
    pub(super) fn check_replaced(&self) -> Result<(), TxnError> {
        const REFERENCE_BYTES: usize = size_of::<ObjectRef>();
        let counts = self.replacing_far().into_iter().map(|(node, table, _)| self.replaced_at(node, table).count());
        match counts.max().filter(|count| *count > REPLACED_MAX) {
            Some(count) => Err(TxnError::TooLarge {
                what: "the list of rows of one table that a transaction deletes on another node, beside some that move there,",
                bytes: count * REFERENCE_BYTES,
                bytes_max: REPLACED_MAX * REFERENCE_BYTES,
            }),
            None => Ok(()),
        }
    }

    /// Writes and unlocks some of the far rows; names the nodes whose rows could not be written. After a lost step, no further step is
    /// executed there: a row whose value is missing must not get its version.
    pub(super) async fn write_far(&self, core: &Core, epoch: u32, is_one: impl Fn(Ident) -> bool) -> Vec<NodeId> {
        let mut rows: Vec<&Row> = self.far_writes().filter(|row| is_one(row.ident)).collect();
        let mut lost = Vec::new();
        for round in [Round::Marks, Round::Values] {
            core.try_once(&self.steps(round, &rows, epoch), &mut lost).await;
            self.keep_reached(core, &mut rows, &mut lost);
        }
        // A transaction that gets the lock before the version has landed finds the mark.
        let mut last = self.steps(Round::Versions, &rows, epoch);
        last.extend(self.steps(Round::Locks, &rows, epoch));
        core.try_once(&last, &mut lost).await;
        lost
    }

    /// As [`Self::write_far`], but an instruction whose answer is lost is repeated, so the row stays locked until its version
    /// is known to be there. `number` is the configuration in which the transaction passed its commit point.
    pub(super) async fn write_far_insisting(
        &self,
        core: &Core,
        replication: &Replication,
        epoch: u32,
        number: u64,
    ) -> Option<()> {
        let rows: Vec<&Row> = self.far_writes().collect();
        for round in [Round::Marks, Round::Values, Round::Versions, Round::Locks] {
            core.insist(replication, self.steps(round, &rows, epoch), number).await?;
        }
        Some(())
    }

    /// The instructions of a round.
    fn steps<'t>(&'t self, round: Round, rows: &[&'t Row], epoch: u32) -> Vec<Step<'t>> {
        let mut steps = Vec::with_capacity(2 * rows.len());
        for row in rows {
            let at = row.ident.far();
            match round {
                Round::Marks => {
                    steps.push(Step::swap(at.add(VERSION), first_version(row, epoch).0));
                    if planted!(EarlyUnlock) {
                        steps.push(Step::release(Core::lock_place(row.ident), self.owner.word()));
                        steps.push(Step::swap(at.add(VERSION), row.version.0));
                    }
                }
                Round::Values if row.state.leaves_nothing() => {}
                Round::Values if row.has_new_value() || row.state == RowState::Inserted => {
                    let (key, value) = (self.state.key(row), self.state.value(row));
                    let incarnation = row.ident.reference().incarnation();
                    let meta = Meta::new(incarnation, Meta::ROW, key.len(), key.len() + value.len());
                    steps.push(Step::swap(at.add(META), meta.0));
                    steps.push(Step::write(at.add(PAYLOAD + key.len() as u64), value));
                }
                Round::Values => {}
                Round::Versions => {
                    steps.push(Step::swap(at.add(VERSION), new_version(row.state, row.version, epoch).0));
                }
                Round::Locks => steps.push(Step::release(Core::lock_place(row.ident), self.owner.word())),
            }
        }
        steps
    }

    /// Leaves out rows of homes where a step is lost, or that have started again meanwhile, which another task of the worker may have
    /// met: the slots there hold other rows by now.
    fn keep_reached(&self, core: &Core, rows: &mut Vec<&Row>, lost: &mut Vec<NodeId>) {
        for node in rows.iter().map(|row| row.ident.node()) {
            if core.has_met_start(node, self.locked_met) && !lost.contains(&node) {
                lost.push(node);
            }
        }
        rows.retain(|row| !lost.contains(&row.ident.node()));
    }
}

/// The version that a far row gets first. A reservation that was given up has nothing that could be half written: without
/// the mark, it can be taken back if its coordinator dies.
fn first_version(row: &Row, epoch: u32) -> Version {
    if row.state == RowState::Gone {
        new_version(row.state, row.version, epoch)
    } else {
        row.version.with(Version::WRITING)
    }
}

/// Is the row at its version, and its lock as it must be? A row that the transaction locks must have its lock; another
/// row must be free, or have its lock too.
fn check_header(row: &Row, header: &[u8], owner: u64, locks_all: bool) -> Result<(), Refused> {
    let word = |at: usize| header[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    let (lock, version) = (word(0), word(8));
    if version != row.version.0 && !planted!(NoValidation) {
        return Err(Refused::Changed);
    }
    let is_locked = row.state.is_write() || (locks_all && row.state.is_locked_by_commit());
    let free = if is_locked && !planted!(NoFarLock) { lock == owner } else { lock == 0 || lock == owner };
    let free = free || planted!(NoValidation) || planted!(NoFarLock) || planted!(LockIgnored) || planted!(EarlyUnlock);
    if free { Ok(()) } else { Err(Refused::Locked) }
}

/// Frees far locks that are this owner's; at homes that are cut off, as soon as they can be reached.
pub(crate) async fn unlock_far(core: &Rc<Core>, idents: &[Ident], owner: u64) {
    if idents.is_empty() {
        return;
    }
    let mut batch = core.take_batch();
    let slots: Vec<Slot> = idents.iter().map(|ident| batch.compare_swap(Core::lock_place(*ident), owner, 0)).collect();
    let batch = core.endpoint.submit(batch).await;
    let failed: Vec<Ident> =
        idents.iter().zip(slots).filter(|(_, slot)| batch.done(*slot).is_err()).map(|(ident, _)| *ident).collect();
    core.give_batch(batch);
    if failed.is_empty() {
        return;
    }
    // No other node may free the lock of a living node. The transaction need not wait for it.
    if let Some(replication) = core.node.replication.clone() {
        let insisting = core.clone();
        let steps = failed.iter().map(|ident| Step::release(Core::lock_place(*ident), owner)).collect();
        let number = replication.view.configuration().number;
        core.leave_owed(async move {
            let _ = insisting.insist(&replication, steps, number).await;
        });
    } else {
        core.leave(unlock_when_reached(core.clone(), failed, owner));
    }
}
