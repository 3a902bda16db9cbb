//! What a member does when the configuration changes.

use crate::base::error::TxnError;
use crate::base::wire::Writer;
use crate::cluster::configuration::Configuration;
use crate::protocol::core::Core;
use crate::replication::Replication;
use crate::rpc::recovery::{CopyRow, Frozen, Left, LeftEntry, MESSAGE_BYTES, Message};
use farhold_fabric::{NodeId, Version};
use farhold_store::log::{Change, Entry, RecordWriter, patch};
use farhold_store::{Object, Owner};
use std::sync::Arc;

impl Core {
    /// Answers a message of `from`.
    pub fn answer_recovery(&self, from: NodeId, bytes: &[u8], w: &mut Writer) -> Result<(), TxnError> {
        let Some(replication) = &self.node.replication else {
            return Err(TxnError::Corrupt { what: "a message about replication to a node that has none" });
        };
        let message = Message::decode(bytes)?;
        let _turn = message.is_step().then(|| replication.turn());
        match message {
            Message::Apply => drop(self.apply_log()),
            Message::Freeze(next) | Message::Install(next) if self.is_anothers(&next) => {
                // Writes of this start would count as writes of the other start, which is dead.
                return Err(TxnError::Recovering { node: self.me });
            }
            Message::Freeze(next) => self.freeze(replication, &next)?.encode(w),
            Message::Pull { number, from } => pull(replication, number, from, w)?,
            Message::Redo { number, left } => {
                check_frozen_for(replication, number)?;
                for entry in &left {
                    self.redo(replication, entry)?;
                }
                self.write_left(number, &left);
            }
            Message::Settle { number, epoch_min } => {
                let is_closed = self.settle(replication, number, epoch_min)?;
                w.u8(u8::from(is_closed));
            }
            Message::Install(next) => self.install(replication, &next)?,
            Message::Copy { since, rows } => take_copies(replication, from, since, &rows)?,
            Message::Floors { since, pages } => take_floors(replication, from, since, &pages)?,
        }
        Ok(())
    }

    /// Does a configuration name another start of this node?
    fn is_anothers(&self, next: &Configuration) -> bool {
        // A start without a birth has never been in the register.
        let mine = self.node.birth.get().copied().unwrap_or(0);
        next.contains(self.me) && next.births.get(usize::from(self.me.0)) != Some(&mine)
    }

    fn freeze(&self, replication: &Replication, next: &Arc<Configuration>) -> Result<Frozen, TxnError> {
        let view = &replication.view;
        let before = view.configuration();
        let journal_seen = || self.node.journaling.as_ref().map_or(0, |journaling| journaling.epoch());
        let epoch_seen = || view.epoch_seen().max(self.node.store.superblock().epoch()).max(journal_seen());
        if before.number >= next.number {
            return Ok(Frozen { quiet: true, epoch_seen: epoch_seen() });
        }
        // A founder may be frozen before it has heard of the founding, and then already has records.
        let is_first = before.number == 0 && view.proposed().is_none() && next.joining.contains(&self.me);
        let mut is_fenced = true;
        if view.freeze(next, &self.node.catalog) {
            self.node.fabric.admit(next.number, next.admitted());
            if is_first {
                let mut applier = replication.applier();
                applier.begin(next.number);
                // This start's rings may hold records that members wrote for an earlier start before they heard of its
                // end.
                applier.clear_rings(&replication.log, |_| false);
                drop(applier);
                view.begin(next.number);
                self.forget_everybody();
            }
            if let Some(journaling) = &self.node.journaling {
                journaling.freeze(next);
            }
            for gone in before.everybody().filter(|node| !next.contains(*node)) {
                if !planted!(NoFence) {
                    let birth = before.births[usize::from(gone.0)];
                    is_fenced &= self.node.fabric.fence(gone, birth).map_err(|error| TxnError::far(error, gone))?;
                }
            }
            // Redone rows keep no older state. The snapshots of the remaining nodes end with their configuration; those
            // of the nodes that are gone are closed here.
            self.node.far_holds.release_of(self.node.store.superblock(), |holder| !next.contains(holder.node));
        } else {
            // Frozen for a later one.
            return Err(TxnError::Conflict);
        }
        let quiet = (is_fenced || planted!(FenceBelieved)) && (view.is_quiet() || planted!(NoFreeze));
        // Read after the check for commits in flight: they have read their epoch by then.
        Ok(Frozen { quiet, epoch_seen: epoch_seen() })
    }

    /// Writes a row as a dead transaction would have written it, if it has not; also in the mirrors.
    fn redo(&self, replication: &Replication, left: &LeftEntry<'_>) -> Result<(), TxnError> {
        let entry = &left.entry;
        if entry.node != self.me {
            replication.applier().take(entry);
            return Ok(());
        }
        if let Some(journaling) = &self.node.journaling {
            journaling.has_done(left.epoch);
        }
        // All rows of the record may have been written long ago, and the page may have another use by now.
        let is_its = self.node.store.table_of(entry.reference.offset()) == Some(entry.table);
        let Some(row) = self.row(entry.reference).filter(|_| is_its) else { return Ok(()) };
        let Ok(table) = self.table_even_dropped(entry.table) else { return Ok(()) };
        let mut alloc = self.alloc.borrow_mut();
        if row.version().number() < entry.new.number() {
            match entry.change {
                Change::Write => row.write(entry.value, entry.new),
                Change::Insert => {
                    // Written first: its coordinator may have left it half written. No transaction that sees the row
                    // meanwhile commits.
                    row.write(entry.value, entry.new);
                    // The rows that it was to delete it has locked, or deleted already.
                    let is_its = |other| self.row(other).is_some_and(|row| row.lock_word() == left.owner);
                    table.store.publish(entry.reference, &is_its, &mut alloc);
                }
                Change::Delete => row.restamp(entry.new),
                Change::Patch => patch(&row, entry)?,
            }
        }
        let is_this = row.version().number() == entry.new.number();
        drop(alloc);
        if is_this && entry.change == Change::Delete {
            self.remove_deleted(&table, entry.reference, left.epoch);
        }
        if let Some(owner) = Owner::from_word(left.owner) {
            // If the row had been written, another transaction may hold the lock by now.
            let _ = row.release_dead(owner);
        }
        Ok(())
    }

    /// What dead nodes have left goes into this node's journal: their own may end before it.
    fn write_left(&self, number: u64, left: &[LeftEntry<'_>]) {
        let Some(journaling) = self.node.journaling.as_ref().filter(|_| !planted!(RedoUnwritten)) else { return };
        let mut record = RecordWriter::default();
        for of_one in left.chunk_by(|one, next| (one.owner, one.epoch) == (next.owner, next.epoch)) {
            let LeftEntry { owner, epoch, .. } = of_one[0];
            record.begin(owner, number, epoch);
            for left in of_one {
                record.add(&left.entry);
            }
            record.end();
            let (behind, mark) = record.place(0, 0);
            journaling.append_left(self.slot.number(), behind, mark, epoch);
        }
    }

    /// True when everything from before is in the journal, if there is one.
    fn settle(&self, replication: &Replication, number: u64, epoch_min: u32) -> Result<bool, TxnError> {
        let installed = replication.view.configuration();
        let proposed = replication.view.proposed();
        let keeper = proposed.as_ref().map_or(installed.keeper, |proposed| proposed.keeper);
        if installed.number >= number {
            // Other nodes have not installed it yet, and must not see an epoch that is over for them.
            if installed.number == number && installed.keeper == self.me {
                self.node.store.superblock().raise_epoch(epoch_min);
            }
            return Ok(true);
        }
        check_frozen_for(replication, number)?;
        if keeper == self.me {
            self.node.store.superblock().raise_epoch(epoch_min);
        }
        let is_closed = self.node.journaling.as_ref().is_none_or(|journaling| journaling.settle(epoch_min));
        if !is_closed && !planted!(SettledTooEarly) {
            return Ok(false);
        }
        let present = |node: NodeId| replication.view.present.contains(node);
        let mut applier = replication.applier();
        // A node that has just come has written nothing yet, but a late record of its earlier start may be there. A
        // node that has been joining for a while may have written records, and continues after them.
        let comes =
            |node| !installed.contains(node) && proposed.as_ref().is_some_and(|next| next.joining.contains(&node));
        applier.clear_rings(&replication.log, |node| present(node) && !comes(node));
        if let Some(next) = &proposed {
            applier.begin_mirrors(next, self.me);
        }
        drop(applier);
        self.forget_absent(&present);
        Ok(true)
    }

    fn install(&self, replication: &Replication, next: &Arc<Configuration>) -> Result<(), TxnError> {
        if replication.view.configuration().number >= next.number {
            return Ok(());
        }
        if replication.view.proposed().is_some_and(|proposed| proposed.number > next.number) {
            // Frozen for a later one.
            return Err(TxnError::Conflict);
        }
        if next.keeper == self.me && planted!(EpochFalls) {
            if let Ok(word) = self.node.store.memory().word(farhold_store::Superblock::EPOCH) {
                word.store(1, std::sync::atomic::Ordering::SeqCst);
            }
        } else if next.keeper == self.me {
            self.node.store.superblock().raise_epoch(next.epoch_min);
        }
        let mut applier = replication.applier();
        applier.begin_mirrors(next, self.me);
        applier.end_mirrors(next, self.me);
        drop(applier);
        self.node.present.set(next.everybody());
        if let Some(journaling) = &self.node.journaling {
            journaling.install(next);
        }
        replication.view.install(next, &self.node.catalog);
        self.node.fabric.admit(next.number, next.admitted());
        replication.forget_rings_of_the_gone();
        self.node.catalog.changed();
        if next.members.contains(&self.me) && crate::node::system::reconcile(&self.node).is_err() {
            // There may be no room. A worker tries again; no mirror is promoted before it succeeds.
            self.node.catalog.set_behind(true);
        }
        Ok(())
    }
}

/// Changes parts of a row that is at the version before, or half written by a dead owner.
fn patch(row: &Object<'_>, entry: &Entry<'_>) -> Result<(), TxnError> {
    let damaged = TxnError::Corrupt { what: "a record of the log changes a version of a row that is not there" };
    if row.version().number() != entry.old.number() {
        return Err(damaged);
    }
    let runs = patch::runs(entry.value, row.meta().payload_len()).collect::<Result<Vec<_>, _>>();
    row.patch(&runs.map_err(|_| damaged)?, entry.new);
    Ok(())
}

fn check_frozen_for(replication: &Replication, number: u64) -> Result<(), TxnError> {
    let here = replication.view.proposed().is_some_and(|proposed| proposed.number == number);
    if here { Ok(()) } else { Err(TxnError::Conflict) }
}

/// Lists what dead nodes have left here, when everything of living nodes is in the mirrors.
fn pull(replication: &Replication, number: u64, from: u32, w: &mut Writer) -> Result<(), TxnError> {
    if replication.view.configuration().number >= number {
        // It has all been done before.
        Left { count: 0, epoch_seen: 0, entries: Vec::new() }.encode(w);
        return Ok(());
    }
    check_frozen_for(replication, number)?;
    let mut applier = replication.applier();
    applier.apply_all()?;
    let (mut entries, mut bytes, mut count, mut is_full) = (Vec::new(), 0, 0_u32, false);
    let mut visit = |configuration, owner, epoch, entry: &Entry<'_>| {
        if !replication.view.is_same_start(entry.node, configuration) {
            return;
        }
        let one = LeftEntry { owner, epoch, entry: *entry }.to_bytes();
        is_full |= !entries.is_empty() && bytes + one.len() > MESSAGE_BYTES;
        // The rest in the next message, in order.
        if count >= from && !is_full {
            bytes += one.len();
            entries.push(one);
        }
        count += 1;
    };
    if !planted!(NoDrain) {
        applier.left_behind(|node| replication.view.present.contains(node), &mut visit)?;
    }
    let entries = entries.iter().map(|bytes| LeftEntry::of_bytes(bytes)).collect::<Result<_, _>>()?;
    Left { count, epoch_seen: applier.epoch_seen(), entries }.encode(w);
    Ok(())
}

fn take_floors(replication: &Replication, from: NodeId, since: u64, pages: &[(u32, Version)]) -> Result<(), TxnError> {
    let mut applier = replication.applier();
    let mirror = applier.mirror_since(from, since).ok_or(TxnError::Conflict)?;
    for (page, floor) in pages {
        mirror.raise_floor(*page, *floor);
    }
    Ok(())
}

/// A node that sends rows to a mirror that is gone must get an error; otherwise it would report the mirror as whole.
fn take_copies(replication: &Replication, from: NodeId, since: u64, rows: &[CopyRow<'_>]) -> Result<(), TxnError> {
    let mut applier = replication.applier();
    let mirror = applier.mirror_since(from, since).ok_or(TxnError::Conflict)?;
    for row in rows {
        mirror.take(row.reference, row.version, row.table, row.key, row.value);
    }
    Ok(())
}
