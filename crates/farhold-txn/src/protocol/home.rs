//! What a home node does to its rows and tables for transactions of other nodes, and after nodes that are gone.

use crate::base::epoch::KEEPER;
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::base::table::{Index, Table, TableShared};
use crate::base::wire::Writer;
use crate::cluster::view::View;
use crate::node::Recovered;
use crate::node::reservations::{Reservation, is_earlier};
use crate::node::snapshots::Start;
use crate::protocol::core::Core;
use crate::rpc::message::{Found, Made, Page, Request, Reserved};
use farhold_fabric::{Meta, NodeId, Version};
use farhold_store::object::RESERVED;
use farhold_store::{Holder, Moved, Object, ObjectRef, Owner, Reserve, Superblock, TableId};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// How often a worker looks after dropped tables: the look may ask the kernel about other nodes.
const TIDY_EVERY_NS: u64 = 1_000_000;
/// How often other nodes are asked at least whether they are done with a dropped table: memory waits for it, however
/// long the time-out of requests is.
const ASK_EVERY_NS_MAX: u64 = 100_000_000;
/// Most rows and leaves in one page of a scan: what surely fits a message beside the longest key.
const PAGE_ROWS_MAX: usize = 1500;

impl Core {
    /// Releases what the snapshots of dead nodes hold here, where rows have no copies and so no node is expelled. Only
    /// on fabrics that know for certain that a process has ended: those that map its memory. Elsewhere its next start
    /// says so.
    pub fn release_dead_snapshots(&self) {
        if self.node.replication.is_some() || !self.endpoint.maps_others() {
            return;
        }
        let superblock = self.node.store.superblock();
        // Listed before the look whether they live: a start that comes later is another one.
        let mut holders: Vec<Holder> = superblock.holders().filter(|holder| holder.node != self.me).collect();
        holders.dedup();
        holders.retain(|holder| !self.node.fabric.node_is_live(holder.node));
        if !holders.is_empty() {
            self.node.far_holds.release_of(superblock, |holder| holders.contains(&holder));
        }
    }

    /// Releases dropped tables when they are no longer in use.
    #[inline]
    pub fn tidy_catalog(&self) {
        if self.node.catalog.has_retired() {
            self.tidy_catalog_cold();
        }
    }

    #[cold]
    fn tidy_catalog_cold(&self) {
        let now_ns = self.handle.now_ns();
        if now_ns < self.tidy_ns.get() {
            return;
        }
        self.tidy_ns.set(now_ns + TIDY_EVERY_NS);
        self.begin_grace();
        let (node, catalog) = (&*self.node, &self.node.catalog);
        let others: Vec<NodeId> = node.others().collect();
        let every_ns = node.config.request_timeout_ns.min(ASK_EVERY_NS_MAX);
        for (id, other) in catalog.to_ask(now_ns, every_ns, &others) {
            self.hint(other, &Request::AskQuiet { id });
        }
        // A node that no longer belongs to the cluster has been fenced. With copies, what a dead one has left is redone
        // before.
        let is_dead = |other| node.replication.is_none() && !node.fabric.node_is_live(other);
        let is_gone = |other| !node.present.contains(other) || is_dead(other);
        let is_unread = || !node.store.superblock().snapshots_open() || planted!(PagesUnderSnapshot);
        for id in catalog.let_go(self.me, node.config.nodes, is_gone, is_unread) {
            self.forget_mirrored(id);
            self.tell_let_go(id);
        }
    }

    /// Says that a dropped table is released. A node that came when the table was already recorded as dropped never had
    /// it. Such a node then forgets the rows in its mirrors that others had written before, or had sent for a mirror.
    fn tell_let_go(&self, id: TableId) {
        let (Some(replication), Some(core)) = (&self.node.replication, self.this.upgrade()) else { return };
        let number = replication.view.configuration().number;
        self.leave(async move {
            for node in core.node.others() {
                let _ = core.insist_call(node, &Request::DropTable { id }, number).await;
            }
        });
    }

    /// Looks how far the dropped tables have come: the next transactions that begin are not waited for.
    pub fn begin_grace(&self) {
        for id in self.node.catalog.look_at_retired(&self.node.slots) {
            for node in self.node.others() {
                // Lost, or there before the drop is known there, it is asked for.
                self.tell_now(node, &Request::Quiet { id, node: self.me });
            }
        }
    }

    /// Does the start still run that a node had in the configuration with this number, as far as this node knows? A configuration from
    /// before this node's own start does not count. Always true without replication: there the next start itself says that the one before
    /// has ended. True as well while this node has not heard of any configuration: a founder may hear of the founding after others have
    /// begun.
    pub fn is_there(&self, node: NodeId, since: u64) -> bool {
        let is_there = |view: &View| {
            let (is_there, is_heard_of) = (view.is_there(node, since), view.present.contains(self.me));
            is_there && !view.is_before_this_start(since) || !is_heard_of
        };
        self.node.replication.as_ref().is_none_or(|it| is_there(&it.view))
    }

    pub fn table(&self, id: TableId) -> Result<Arc<TableShared>, TxnError> {
        self.table_handle(id).map(|table| table.0)
    }

    pub fn table_handle(&self, id: TableId) -> Result<Table, TxnError> {
        self.node.catalog.by_id(id).ok_or_else(|| self.unknown_table())
    }

    pub fn table_even_dropped(&self, id: TableId) -> Result<Arc<TableShared>, TxnError> {
        self.node.catalog.even_dropped(id).ok_or_else(|| self.unknown_table())
    }

    /// A node that is joining may not have been given its tables yet.
    fn unknown_table(&self) -> TxnError {
        let is_member = self.node.configuration().is_none_or(|configuration| configuration.members.contains(&self.me));
        if is_member { TxnError::SchemaChanged } else { TxnError::Recovering { node: self.me } }
    }

    /// The object of a reference from another node, if it is still that object.
    pub fn row(&self, reference: ObjectRef) -> Option<Object<'_>> {
        let object = Object::try_at(self.node.store.memory(), reference.offset())?;
        (object.meta().incarnation() == reference.incarnation()).then_some(object)
    }

    pub fn reserve(
        &self,
        table: &TableShared,
        (owner, configuration): (u64, u64),
        key: &[u8],
        value: &[u8],
        mine: &[ObjectRef],
        w: &mut Writer,
    ) -> Result<(), TxnError> {
        table.check_key(key)?;
        let mut moved: Vec<Moved> = Vec::new();
        let mine = |reference| mine.contains(&reference);
        let mut alloc = self.alloc.borrow_mut();
        let reserved = table.store.reserve(key, value, &mut alloc, &mine, &mut |step| moved.push(step));
        drop(alloc);
        crate::base::planted::may_stop();
        let outcome = match reserved.map_err(|error| TxnError::store(error, self.me))? {
            Reserve::Reserved { reference, replaces } => {
                let reservation = Reservation { owner, table: table.store.id(), reference, replaced: Arc::default() };
                // Reservations of leaving nodes are taken back after these count as absent, and those of ended starts after their end is
                // known.
                let is_present = |owner: Owner| {
                    let holder = Holder { node: owner.node(), incarnation: owner.incarnation() };
                    self.is_there(owner.node(), configuration)
                        && (self.node.replication.is_some() || !self.node.far_holds.is_over(holder))
                };
                if !self.node.reservations.add(reservation, is_present, |it| self.is_reserved(it.reference)) {
                    self.cancel(table, reference);
                    return Err(TxnError::Conflict);
                }
                let version = self.node.store.object(reference).version().0;
                Ok(Made { reference, version, replaces })
            }
            Reserve::Exists { index, reference, occupant } => Err((index, reference, occupant)),
        };
        Reserved::encode(outcome, &moved, w);
        Ok(())
    }

    /// Makes the indexes lead to a new row where they lead to one of those, sorted, that its transaction replaces. A
    /// repeated call has no further effect.
    pub fn publish(&self, table: &TableShared, reference: ObjectRef, replaced: &Arc<[ObjectRef]>) {
        if self.is_reserved(reference) {
            self.node.reservations.publish(reference, replaced);
        }
        // One that is being written has been published before; it cannot be read, and its writer may need this thread.
        if self.row(reference).is_some_and(|row| !row.version().is_writing()) {
            let replaces = |other| replaced.binary_search(&other).is_ok();
            table.store.publish_over(reference, &replaces, &mut self.alloc.borrow_mut());
        }
    }

    /// Takes a deleted row out of the indexes and frees its slot. A repeated call has no further effect.
    pub fn remove_deleted(&self, table: &TableShared, reference: ObjectRef, epoch: u32) {
        let is_held = |reference| {
            let is_deleted = |row: Object<'_>| row.version().is_absent() && row.meta().state() == Meta::ROW;
            self.row(reference).is_some_and(is_deleted)
        };
        if is_held(reference) && self.node.reservations.remove_once(reference, is_held) {
            table.store.remove(reference, epoch, &mut self.alloc.borrow_mut());
        }
    }

    fn is_reserved(&self, reference: ObjectRef) -> bool {
        self.row(reference).is_some_and(|row| row.meta().state() == RESERVED)
    }

    fn is_live(&self, reference: ObjectRef) -> bool {
        self.row(reference).is_some_and(is_live)
    }

    pub fn cancel(&self, table: &TableShared, reference: ObjectRef) {
        // An object that was being written when its owner died is no reservation any more; it is damaged.
        let is_whole = self.row(reference).is_some_and(|row| !row.version().is_writing());
        if is_whole && self.is_reserved(reference) {
            table.store.cancel(reference, &mut self.alloc.borrow_mut());
        }
    }

    /// Removes what a dead transaction had reserved. It may have died after the new row had been given the index
    /// entries of rows that it would have deleted. Then these go back if the new row has not become a row; else the old
    /// rows are removed too.
    pub fn undo_or_redo(&self, table: &TableShared, dead: &Reservation) {
        let became_row = self.is_live(dead.reference);
        for old in &*dead.replaced {
            let Some(row) = self.row(*old).filter(|row| row.lock_word() == dead.owner && is_live(*row)) else {
                continue;
            };
            if became_row {
                let epoch = row.version().epoch();
                row.restamp(row.version().next(epoch).with(Version::ABSENT));
                row.unlock();
                table.store.remove(*old, epoch, &mut self.alloc.borrow_mut());
            } else {
                table.store.publish(*old, &|other| other == dead.reference, &mut self.alloc.borrow_mut());
            }
        }
        self.cancel(table, dead.reference);
    }

    /// Mirrors keep nothing of a table that has been released: the records of all transactions that have used it are in
    /// the rings.
    pub fn forget_mirrored(&self, table: TableId) {
        if let Some(replication) = &self.node.replication {
            let mut applier = replication.applier();
            // A damaged one is reported by the thread that applies next.
            applier.apply_so_far();
            applier.forget_table(table);
        }
    }

    /// Frees what others have reserved and made here, and what their snapshots hold: all of it, when this start joins a cluster for the
    /// first time. The members do not count this node as one of theirs yet, but an expelled node still may.
    pub fn forget_everybody(&self) {
        let turn = self.node.catalog.turn_of_makers();
        self.node.catalog.forget_all_but(crate::node::system::ID);
        drop(turn);
        for it in self.node.reservations.take_absent(&|_| false) {
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.cancel(&table, it.reference);
            }
        }
        self.node.far_holds.release_of(self.node.store.superblock(), |holder| holder.node != self.me);
    }

    /// Frees what nodes that are not present have locked and reserved here, and what their snapshots hold, after their records
    /// have been redone.
    pub fn forget_absent(&self, is_present: &impl Fn(NodeId) -> bool) {
        for it in self.node.reservations.take_absent(is_present) {
            // The reservations of a released table are gone with it.
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.undo_or_redo(&table, &it);
            }
        }
        self.release_locks(|owner| !is_present(owner.node()) && !planted!(LocksStay));
        self.node.far_holds.release_of(self.node.store.superblock(), |holder| !is_present(holder.node));
    }

    /// Frees what dead owners have locked here, in dropped tables as well: a snapshot that is open may still read them, and
    /// waits for locks.
    fn release_locks(&self, is_dead: impl Fn(Owner) -> bool) {
        let mut found = Recovered::default();
        self.node.store.release_resting_locks(&is_dead);
        for table in self.node.catalog.all_even_dropped() {
            let mut released = table.store.release_locks(&is_dead);
            crate::node::system::forget_damaged(&self.node, &table, &mut released, &mut self.alloc.borrow_mut());
            found.add(&table.name, &released);
        }
        self.node.store.release_resting_locks(&is_dead);
        self.node.add_recovered(found);
    }

    /// Frees what earlier starts of a node have locked and reserved here, and what their snapshots hold.
    ///
    /// # Errors
    /// [`TxnError::OtherCluster`] for a start whose memory does not record an earlier start that was here: its start
    /// count would repeat that of another start.
    pub fn forget_dead(&self, node: NodeId, (incarnation, birth): (u16, u64), epoch: u32) -> Result<(), TxnError> {
        let its = self.endpoint.mapped(node, DATA);
        let now = its.as_deref().and_then(|memory| Superblock::of(memory).ok()).map(Superblock::incarnation);
        if now.is_some_and(|now| now.wrapping_sub(incarnation) as i16 > 0) {
            // The message comes late: the start that sent it is over, and what the next one has locked by itself must
            // not be released.
            return Ok(());
        }
        // From here on no request of an earlier start reserves anything: it may come after this one, from another inbox of that start.
        let start = Start { incarnation, birth };
        if !self.node.far_holds.begin(self.node.store.superblock(), node, start) {
            let reason = format!(
                "the memory of {node} was lost while other nodes went on, and with it what tells its starts apart. End all nodes of the \
                 cluster, then start them again: the other nodes keep their rows"
            );
            return Err(TxnError::OtherCluster { reason: reason.into() });
        }
        if self.me == KEEPER {
            self.node.store.superblock().raise_epoch(epoch);
        }
        for it in self.node.reservations.take_before(node, incarnation) {
            // The reservations of a released table are gone with it.
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.undo_or_redo(&table, &it);
            }
        }
        // A later start may have locked rows by itself before this message was served.
        self.release_locks(|owner| owner.node() == node && is_earlier(owner.incarnation(), incarnation));
        // The earlier start may have recorded changes of tables and indexes without telling all nodes, or without
        // recording them everywhere.
        let _ = crate::node::system::reconcile(&self.node);
        if self.node.records_may_differ() {
            self.node.catalog.set_behind(true);
        }
        Ok(())
    }
}

/// Is there a row in it?
fn is_live(row: Object<'_>) -> bool {
    row.meta().state() == Meta::ROW && !row.version().is_absent() && !row.version().is_writing()
}

/// What an ordered index has for a key.
pub(crate) fn look_up(table: &TableShared, index: u16, key: &[u8]) -> Result<Found, TxnError> {
    table.check_index_key(Index::from_number(index), key)?;
    let ordered = table.store.index(index.into()).ok_or(TxnError::SchemaChanged)?;
    let found = ordered.get(key);
    Ok(Found { reference: found.value.map(ObjectRef::from_bits), leaf: found.leaf })
}

/// A page of a range.
pub(crate) fn scan(
    table: &TableShared,
    index: u16,
    lo: Bound<&[u8]>,
    hi: Bound<&[u8]>,
    descending: bool,
    limit: u32,
) -> Result<Page, TxnError> {
    let ordered = table.store.index(index.into()).ok_or(TxnError::SchemaChanged)?;
    let store = table.store.store();
    let mut page = Page::default();
    let mut live = 0;
    let mut rows = std::mem::take(&mut page.rows);
    let mut last = None;
    let mut visit = |key: &[u8], word: u64| {
        let reference = ObjectRef::from_bits(word);
        let object = store.object(reference);
        live += u32::from(!object.version().is_absent());
        rows.push((reference, object.meta().payload_len() as u32));
        if live >= limit || rows.len() >= PAGE_ROWS_MAX {
            last = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    if limit > 0 {
        if descending {
            ordered.scan_rev(lo, hi, &mut visit, &mut page.leaves);
        } else {
            ordered.scan(lo, hi, &mut visit, &mut page.leaves);
        }
    }
    (page.rows, page.last) = (rows, last);
    Ok(page)
}
