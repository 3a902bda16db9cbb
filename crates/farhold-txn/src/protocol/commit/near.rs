//! The commit of a transaction whose rows are all on this node. Synchronous: it waits for nothing but a long backlog of column copies.

use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::planted::{last_epoch, next_serial};
use crate::columns::own::{OwnRecords, RECORD_BYTES_MAX, Recording};
use crate::protocol::commit::section::{Near, Refused, latch, validate};
use crate::protocol::core::Core;
use crate::protocol::txn::state::{RowState, State};
use crate::protocol::txn::{CommitInfo, Txn};

/// The memory of longer records is given back.
const RECORD_BYTES_KEPT: u64 = 1 << 20;

impl Txn {
    /// Commits it, or leaves everything as it was (reservations are then taken back by the drop).
    #[inline]
    pub(crate) fn commit_near(&mut self) -> Result<CommitInfo, TxnError> {
        if self.state.writes == 0 {
            return self.commit_reads();
        }
        self.prepare()?;
        self.order_writes();
        let core = self.core.clone();
        let near = self.all_near(&core, 0);
        let indexes_version = self.indexes_version;
        let recording = core.begin_record();
        let serial = std::cell::Cell::new(0);
        let epoch = || {
            serial.set(next_serial());
            last_epoch(core.me, core.epoch.near().unwrap_or(0))
        };
        let is_recorded = || recording.is_some() || !core.wants_record();
        let before_write = |epoch| {
            // The first copy of columns begins: what this transaction writes would be missing there.
            if is_recorded() { before_write(&core, &near, indexes_version, epoch) } else { Err(Refused::Changed) }
        };
        let is_plain = || is_recorded() && is_plain(&core, indexes_version);
        let in_hardware = if self.state.replacing.is_empty() && core.tries_hardware(near.order.len()) {
            core.commit_in_hardware(&near, epoch, is_plain)
        } else {
            None
        };
        let committed = in_hardware.unwrap_or_else(|| latch::commit(&near, epoch, before_write));
        let epoch = committed.map_err(|refused| self.refused(refused))?;
        if let Some(recording) = recording {
            self.leave_record(&core, recording, epoch);
        }
        self.tidy_up(epoch);
        Ok(CommitInfo { epoch, rows_written: self.state.writes, serial: serial.get() })
    }

    /// Leaves the record of what has been written for the columns. Of tables without a copy it has nothing: one that begins after this look
    /// takes its snapshot later, at this epoch or a later one.
    fn leave_record(&self, core: &Core, recording: Recording<'_>, epoch: u32) {
        if self.written().next().is_none() {
            return;
        }
        if self.record_bytes() > RECORD_BYTES_MAX {
            return recording.miss();
        }
        let mut writer = core.record.take();
        self.make_record(&mut writer, 0, epoch);
        let (behind, mark) = writer.place(0, 0);
        recording.leave(behind, mark, epoch);
        if writer.len() <= RECORD_BYTES_KEPT {
            core.record.replace(writer);
        }
    }

    /// All its rows, of which all are near; the rows to write get `odd` as well.
    #[inline]
    pub(crate) fn all_near<'t>(&'t self, core: &'t Core, odd: u64) -> Near<'t> {
        let (store, state) = (&*core.node.store, &*self.state);
        Near { store, node: core.me, state, order: &state.order, owner: self.owner, odd }
    }

    /// Nothing to write: all reads together must be of one moment. A single row that was unlocked when it was read
    /// needs no check: a commit locks all its rows before it writes the first, so no other transaction can have seen a
    /// commit that this read has missed.
    #[inline]
    fn commit_reads(&mut self) -> Result<CommitInfo, TxnError> {
        self.serial = next_serial();
        if self.state.rows.len() > 1
            || self.state.met_lock
            || !self.state.groups().is_empty()
            || !self.state.buckets.is_empty()
        {
            let core = &*self.core;
            let near = Near {
                store: &core.node.store,
                node: core.me,
                state: &self.state,
                order: &[],
                owner: self.owner,
                odd: 0,
            };
            validate(&near).map_err(|refused| self.refused(refused))?;
        }
        self.tidy_up(0);
        Ok(CommitInfo { serial: self.serial, ..CommitInfo::default() })
    }

    /// The rows to lock, by node and address. A transaction that writes nothing locks nothing.
    #[inline]
    pub(crate) fn order_writes(&mut self) {
        let state: &mut State = &mut self.state;
        let mut order = std::mem::take(&mut state.order);
        order.clear();
        if state.writes > 0 {
            let locked = (0..).zip(&state.rows).filter(|(_, row)| row.state.is_locked_by_commit());
            order.extend(locked.map(|(position, _)| position as u32));
        }
        order.sort_unstable_by_key(|position| state.rows[*position as usize].ident);
        state.order = order;
    }
}

impl Core {
    /// A commit begins that leaves a record for the columns of a node without a journal. Before it reads its epoch.
    #[inline]
    fn begin_record(&self) -> Option<Recording<'_>> {
        let records = self.node.own_records.as_ref()?;
        records.begin(self.slot.number(), || self.node.store.superblock().epoch())
    }

    /// Whether such a commit must leave one. After it has read its epoch.
    #[inline]
    fn wants_record(&self) -> bool {
        !planted!(CopyBegunUnseen) && self.node.own_records.as_ref().is_some_and(OwnRecords::is_wanted)
    }
}

/// Has [`before_write`] nothing to do? A hardware transaction asks this inside of itself.
#[inline]
pub(crate) fn is_plain(core: &Core, indexes_version: u64) -> bool {
    core.node.catalog.indexes_version() == indexes_version && !core.node.store.superblock().snapshots_open()
}

/// The last step that can refuse, while the rows to write are locked and validated: older copies for snapshots, then
/// index entries of rows that replace others.
#[inline]
pub(crate) fn before_write(core: &Core, near: &Near<'_>, indexes_version: u64, epoch: u32) -> Result<(), Refused> {
    if core.node.catalog.indexes_version() != indexes_version && !planted!(IndexUnseen) {
        // A new index is being filled: what this transaction writes may be missing there.
        return Err(Refused::Changed);
    }
    if core.node.store.superblock().snapshots_open() && !planted!(NoUndo) {
        save_undo(core, near, epoch)?;
    }
    if !near.state.replacing.is_empty() {
        publish(core, near);
    }
    Ok(())
}

#[cold]
fn save_undo(core: &Core, near: &Near<'_>, epoch: u32) -> Result<(), Refused> {
    let mut alloc = core.alloc.borrow_mut();
    for &position in near.order {
        let row = &near.state.rows[position as usize];
        row.table().store.save_undo(row.ident.reference(), epoch, &mut alloc).map_err(|_| Refused::Memory)?;
    }
    Ok(())
}

#[cold]
fn publish(core: &Core, near: &Near<'_>) {
    let replaces = |reference| near.state.is_given_up(Ident::new(near.node, reference));
    for &position in &near.state.replacing {
        let row = &near.state.rows[position as usize];
        if row.state == RowState::Inserted && row.ident.node() == near.node {
            row.table().store.publish(row.ident.reference(), &replaces, &mut core.alloc.borrow_mut());
        }
    }
}
