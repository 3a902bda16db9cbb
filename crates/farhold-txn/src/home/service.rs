//! Answering requests.

use super::message::{Found, IndexStep, Made, Page, Request, Reserved, encode_ask_again, encode_reply};
use super::reservations::{Reservation, is_earlier};
use super::wire::Writer;
use crate::definition::TableDef;
use crate::membership::View;
use crate::node::Recovered;
use crate::protocol::epoch::KEEPER;
use crate::protocol::ident::DATA;
use crate::slots::Counter;
use crate::snapshot::{first_runs, write_runs};
use crate::table::{Index, Table, TableShared};
use crate::worker::Core;
use crate::{NodeId, TableId, TxnError};
use farhold_fabric::{Address, FabricError, Message, Meta, Version};
use farhold_store::object::RESERVED;
use farhold_store::{Holder, Moved, Object, ObjectRef, Owner, Reserve, Superblock};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// How often a worker looks after dropped tables: the look may ask the kernel about other nodes.
const TIDY_EVERY_NS: u64 = 1_000_000;
/// How often other nodes are asked at least whether they are done with a dropped table: memory waits for it, however patient requests are.
const ASK_EVERY_NS_MAX: u64 = 100_000_000;
/// Most rows and leaves in one page of a scan: what surely fits a message beside the longest key.
const PAGE_ROWS_MAX: usize = 1500;

impl Core {
    /// Answers the next request to this node, if there is one.
    pub fn serve_one(&self) -> bool {
        self.slot.count(Counter::InboxLooks);
        self.tidy_catalog();
        self.apply_now_and_then();
        self.tell_open_snapshots();
        self.send_unsent();
        self.take_late_answers();
        let mut message = self.inbox.take();
        let found = self.endpoint.try_recv_home_into(&mut message);
        if found {
            crate::planted::may_stop();
            self.serve(&message);
        }
        self.inbox.set(message);
        found
    }

    /// Tells the other nodes which of this node's snapshots are open, now and then.
    #[inline]
    fn tell_open_snapshots(&self) {
        let every_ns = self.node.config.request_timeout_ns;
        if let Some(list) = self.node.open_snapshots.to_tell(|| self.handle.now_ns(), every_ns) {
            let (incarnation, open) = (self.node.store.incarnation(), list.open.into_iter().collect());
            let request = Request::StillOpen { incarnation, first: list.first, next: list.next, open };
            for node in self.node.others() {
                self.hint(node, &request);
            }
        }
    }

    /// Releases what snapshots of nodes hold here that have died, where rows have no copies and so nobody is expelled. Only on fabrics
    /// that know for certain that a process has ended: those that map its memory. Elsewhere its next start says so.
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

    /// Lets dropped tables go when nobody uses them any more.
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
        // Whoever does not belong to the cluster any more has been shut out.
        // With copies, what is left of a dead one is redone before.
        let is_dead = |other| node.replication.is_none() && !node.fabric.node_is_live(other);
        let is_gone = |other| !node.present.contains(other) || is_dead(other);
        let is_unread = || !node.store.superblock().snapshots_open() || planted!(PagesUnderSnapshot);
        for id in catalog.let_go(self.me, node.config.nodes, is_gone, is_unread) {
            self.forget_mirrored(id);
            self.tell_let_go(id);
        }
    }

    /// Says that a dropped table is let go, so that nodes which never had it, because they came when it was recorded as dropped already, forget the
    /// rows in their mirrors that others had written before, or had sent for a mirror.
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

    fn serve(&self, message: &Message) {
        self.slot.count(Counter::RequestsServed);
        let Ok((number, request)) = Request::decode(&message.bytes) else {
            // Who sends garbage gets no answer: its number cannot be believed either.
            return;
        };
        let sender = message.from.node;
        if !self.node.present.contains(sender) && !matches!(request, Request::Recovery { .. }) {
            // Late words of a node that the others go on without.
            return;
        }
        // One that nobody wants an answer to is done in any case.
        if number != 0 && self.node.unsent.is_full(message.from) {
            self.reply(message.from, number, &encode_ask_again(number));
            return;
        }
        let outcome = self.answer(sender, request);
        if number != 0 {
            self.reply(message.from, number, &encode_reply(number, outcome));
        }
    }

    /// Sends an answer, or has it sent when the caller's inbox has room.
    fn reply(&self, to: Address, number: u64, reply: &[u8]) {
        if let Err(FabricError::MessageTooLong { bytes, bytes_max }) = self.send_or_keep(to, reply) {
            // The caller must hear of it, not wait.
            let refused = Err(TxnError::TooLarge { what: "an answer", bytes, bytes_max });
            let _ = self.send_or_keep(to, &encode_reply(number, refused));
        }
    }

    fn answer(&self, sender: NodeId, request: Request<'_>) -> Result<Writer, TxnError> {
        let mut w = Writer::default();
        match request {
            Request::Lookup { table, index, key } => look_up(&*self.table(table)?, index, key)?.encode(&mut w),
            Request::Scan { table, index, lo, hi, descending, limit } => {
                scan(&*self.table(table)?, index, lo, hi, descending, limit)?.encode(&mut w);
            }
            Request::Reserve { table, owner, configuration, key, value, mine } => {
                self.reserve(&*self.table(table)?, (owner, configuration), key, value, &mine, &mut w)?;
            }
            Request::Cancel { table, references } => {
                let table = self.table_even_dropped(table)?;
                for reference in references {
                    if self.node.reservations.take_once(reference) {
                        self.cancel(&table, reference);
                    }
                }
            }
            Request::Forget { owner, answered } => {
                // A worker that has a message in its hands for longer than its sender waits for the answer has stopped with its process.
                let now_ns = self.handle.now_ns();
                let until_ns = now_ns.saturating_add(2 * self.node.config.request_timeout_ns);
                for it in self.node.reservations.take_of(owner, answered, now_ns, until_ns) {
                    // With a table that is gone its reservations are.
                    if let Ok(table) = self.table_even_dropped(it.table) {
                        self.cancel(&table, it.reference);
                    }
                }
            }
            Request::Remove { table, epoch, references } => {
                let table = self.table_even_dropped(table)?;
                // A checkpoint without these rows waits for the epoch that has deleted them.
                if let Some(journaling) = &self.node.journaling {
                    journaling.has_done(epoch);
                }
                for reference in references {
                    self.remove_deleted(&table, reference, epoch);
                }
            }
            Request::Validate { table, index, leaves } => {
                let table = self.table(table)?;
                let valid =
                    table.store.index(index.into()).is_some_and(|it| leaves.iter().all(|leaf| it.validate(*leaf)));
                w.u8(u8::from(valid));
            }
            Request::SaveUndo { owner, epoch, rows } => {
                for (table, reference) in rows {
                    if self.row(reference).is_some() {
                        let table = self.table_even_dropped(table)?;
                        let saved = table.store.save_undo_for(owner, reference, epoch, &mut self.alloc.borrow_mut());
                        saved.map_err(|error| TxnError::store(error, self.me))?;
                    }
                }
            }
            Request::Publish { table, references, mut replaced } => {
                let table = self.table_even_dropped(table)?;
                replaced.sort_unstable();
                let replaced = Arc::from(replaced);
                for reference in references {
                    self.publish(&table, reference, &replaced);
                }
            }
            Request::Recovery { body } => self.answer_recovery(sender, body, &mut w)?,
            Request::CreateTable { id, definition } => self.create_table_here(id, definition)?,
            Request::DropTable { id } => {
                self.node.catalog.retire(id);
                if self.node.catalog.even_dropped(id).is_none() {
                    // It was dropped before this node came, or has been let go.
                    self.forget_mirrored(id);
                }
            }
            Request::Quiet { id, node } => self.node.catalog.note_quiet(id, node),
            Request::AskQuiet { id } => {
                // Its coordinator may have died before it told this node of the drop.
                if self.node.catalog.by_id(id).is_some() && self.node.is_member() {
                    crate::system::reconcile(&self.node)?;
                }
                if self.node.catalog.is_quiet(id) {
                    self.tell_now(sender, &Request::Quiet { id, node: self.me });
                }
            }
            Request::AddIndex { table, slot, since, definition } => {
                let (definition, _) = TableDef::decode(definition)?;
                self.add_index_here(&*self.table(table)?, slot, &definition, (sender, since))?;
            }
            Request::FillIndex { table, slot } => self.fill_index_here(&self.table_handle(table)?, slot)?,
            Request::IsFilled { table, slot } => {
                w.u8(u8::from(self.table(table)?.is_filled(slot)?));
            }
            Request::StepIndex { table, slot, step } => {
                if self.node.catalog.by_id(table).is_none() {
                    // It has missed its creation.
                    crate::system::reconcile(&self.node)?;
                }
                match self.table(table) {
                    Err(_) if step != IndexStep::Open => {}
                    found => self.step_index_here(&*found?, slot, step)?,
                }
            }
            Request::Count { table } => {
                w.u64(self.table(table)?.store.primary().len() as u64);
            }
            Request::Pages { table, from_page } => {
                let runs = first_runs(self.table(table)?.store.pages(), from_page);
                write_runs(self.node.store.memory(), self.node.store.incarnation(), &runs, &mut w);
            }
            Request::Hello { node, incarnation, epoch } => self.forget_dead(node, incarnation, epoch),
            Request::Announce { incarnation, configuration, number } => {
                let holder = Holder { node: sender, incarnation };
                let is_there = || self.is_there(sender, configuration);
                let announced = self.node.far_holds.announce(self.node.store.superblock(), holder, number, is_there);
                if !announced.map_err(|error| TxnError::store(error, self.me))? {
                    return Err(TxnError::Recovering { node: self.me });
                }
                w.u16(self.node.store.incarnation());
            }
            Request::Confirm { incarnation, number, epoch } => {
                let holder = Holder { node: sender, incarnation };
                if !self.node.far_holds.confirm(self.node.store.superblock(), holder, number, epoch) {
                    return Err(TxnError::Recovering { node: self.me });
                }
            }
            Request::StillOpen { incarnation, first, next, open } => {
                let holder = Holder { node: sender, incarnation };
                self.node.far_holds.keep_open(self.node.store.superblock(), holder, first..next, &open);
            }
        }
        Ok(w)
    }

    /// Does this node know of no end of the start that a node was in the configuration with this number, and of no beginning of its own since
    /// then? True for good without replication: there a start says itself that the one before has ended. True as well while this node has not
    /// heard of any configuration: a founder may hear of the founding after others have begun.
    fn is_there(&self, node: NodeId, since: u64) -> bool {
        let is_there = |view: &View| {
            let (is_there, is_heard_of) = (view.is_there(node, since), view.present.contains(self.me));
            is_there && !view.is_before_this_start(since) || !is_heard_of
        };
        self.node.replication.as_ref().is_none_or(|it| is_there(&it.view))
    }

    fn table(&self, id: TableId) -> Result<Arc<TableShared>, TxnError> {
        self.table_handle(id).map(|table| table.0)
    }

    fn table_handle(&self, id: TableId) -> Result<Table, TxnError> {
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

    /// The object of a reference that came from afar, if it is still that.
    pub fn row(&self, reference: ObjectRef) -> Option<Object<'_>> {
        let object = Object::try_at(self.node.store.memory(), reference.offset())?;
        (object.meta().incarnation() == reference.incarnation()).then_some(object)
    }

    fn reserve(
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
        crate::planted::may_stop();
        let outcome = match reserved.map_err(|error| TxnError::store(error, self.me))? {
            Reserve::Reserved { reference, replaces } => {
                let reservation = Reservation { owner, table: table.store.id(), reference, replaced: Arc::default() };
                // What nodes that leave have reserved is taken back after they count as absent, and what starts have that are over after that is known.
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

    /// Makes the indexes lead to a new row where they lead to one of those, sorted, that its transaction replaces. Twice is once.
    fn publish(&self, table: &TableShared, reference: ObjectRef, replaced: &Arc<[ObjectRef]>) {
        if self.is_reserved(reference) {
            self.node.reservations.publish(reference, replaced);
        }
        // One that is being written has been published before; it cannot be read, and its writer may need this thread.
        if self.row(reference).is_some_and(|row| !row.version().is_writing()) {
            let replaces = |other| replaced.binary_search(&other).is_ok();
            table.store.publish_over(reference, &replaces, &mut self.alloc.borrow_mut());
        }
    }

    /// Takes a deleted row out of the indexes and frees its slot. Twice is once.
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

    fn cancel(&self, table: &TableShared, reference: ObjectRef) {
        // One that was being written when its owner died is no reservation any more, but damage.
        let is_whole = self.row(reference).is_some_and(|row| !row.version().is_writing());
        if is_whole && self.is_reserved(reference) {
            table.store.cancel(reference, &mut self.alloc.borrow_mut());
        }
    }

    /// Opens a table here, with the definition that the system table has. Twice is once.
    pub fn create_table_here(&self, id: TableId, definition: &[u8]) -> Result<(), TxnError> {
        crate::system::make(&self.node, id, definition)
    }

    /// What a dead transaction had reserved goes. If it died after index entries of rows that it would have deleted had been
    /// given to the new row: they go back if the new row has not become one, else the old rows follow them.
    fn undo_or_redo(&self, table: &TableShared, dead: &Reservation) {
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
                table.store.publish(*old, &mut self.alloc.borrow_mut());
            }
        }
        self.cancel(table, dead.reference);
    }

    /// Mirrors keep nothing of a table that has been let go: the records of all transactions that have used it are in the rings.
    fn forget_mirrored(&self, table: TableId) {
        if let Some(replication) = &self.node.replication {
            let mut applier = replication.applier();
            // One that is damaged is told by whoever applies next.
            applier.apply_so_far();
            applier.forget_table(table);
        }
    }

    /// Frees what others have reserved and made here, and what their snapshots hold: all of it, when this start comes into a cluster for the first
    /// time. They do not count it among them yet, but one that they have gone on without may.
    pub fn forget_everybody(&self) {
        let turn = self.node.catalog.turn_of_makers();
        self.node.catalog.forget_all_but(crate::system::ID);
        drop(turn);
        for it in self.node.reservations.take_absent(&|_| false) {
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.cancel(&table, it.reference);
            }
        }
        self.node.far_holds.release_of(self.node.store.superblock(), |holder| holder.node != self.me);
    }

    /// Frees what nodes that are not present have locked and reserved here, and what their snapshots hold, after their records have been redone.
    pub fn forget_absent(&self, is_present: &impl Fn(NodeId) -> bool) {
        for it in self.node.reservations.take_absent(is_present) {
            // With a table that is gone its reservations are.
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.undo_or_redo(&table, &it);
            }
        }
        self.release_locks(|owner| !is_present(owner.node()) && !planted!(LocksStay));
        self.node.far_holds.release_of(self.node.store.superblock(), |holder| !is_present(holder.node));
    }

    /// Frees what dead owners have locked here, in dropped tables as well: a snapshot that is open may still read them, and waits for locks.
    fn release_locks(&self, is_dead: impl Fn(Owner) -> bool) {
        let mut found = Recovered::default();
        self.node.store.release_resting_locks(&is_dead);
        for table in self.node.catalog.all_even_dropped() {
            let mut released = table.store.release_locks(&is_dead);
            crate::system::forget_damaged(&self.node, &table, &mut released, &mut self.alloc.borrow_mut());
            found.add(&table.name, &released);
        }
        self.node.store.release_resting_locks(&is_dead);
        self.node.add_recovered(found);
    }

    /// Frees what earlier starts of a node have locked and reserved here, and what their snapshots hold.
    fn forget_dead(&self, node: NodeId, incarnation: u16, epoch: u32) {
        let its = self.endpoint.mapped(node, DATA);
        let now = its.as_deref().and_then(|memory| Superblock::of(memory).ok()).map(Superblock::incarnation);
        if now.is_some_and(|now| now.wrapping_sub(incarnation) as i16 > 0) {
            // It comes late: the start that said so is over, and what the next one has locked by itself must not be released.
            return;
        }
        if self.me == KEEPER {
            self.node.store.superblock().raise_epoch(epoch);
        }
        // From here on no request of an earlier start reserves anything: it may come after this one, from another inbox of that start.
        self.node.far_holds.release_before(self.node.store.superblock(), Holder { node, incarnation });
        for it in self.node.reservations.take_before(node, incarnation) {
            // With a table that is gone its reservations are.
            if let Ok(table) = self.table_even_dropped(it.table) {
                self.undo_or_redo(&table, &it);
            }
        }
        // A later start may have locked rows by itself before this message was served.
        self.release_locks(|owner| owner.node() == node && is_earlier(owner.incarnation(), incarnation));
        // What it has recorded of tables and indexes, and did not come to say, or to record everywhere.
        let _ = crate::system::reconcile(&self.node);
        if self.node.records_may_differ() {
            self.node.catalog.set_behind(true);
        }
    }
}

/// Is there a row in it?
fn is_live(row: Object<'_>) -> bool {
    row.meta().state() == Meta::ROW && !row.version().is_absent() && !row.version().is_writing()
}

/// What an ordered index knows of a key.
fn look_up(table: &TableShared, index: u16, key: &[u8]) -> Result<Found, TxnError> {
    table.check_index_key(Index::from_number(index), key)?;
    let ordered = table.store.index(index.into()).ok_or(TxnError::SchemaChanged)?;
    let found = ordered.get(key);
    Ok(Found { reference: found.value.map(ObjectRef::from_bits), leaf: found.leaf })
}

/// A page of a range.
fn scan(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Recorded;
    use crate::{Node, NodeConfig};
    use farhold_fabric::{Executor, Fabric};
    use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};

    /// A transaction of another node has reserved a key in each of two tables. One of them is dropped and gone when the transaction, or the next start of
    /// its node, gives them back.
    #[test]
    fn reservations_are_given_back_although_another_table_is_gone() {
        for (gone, by_next_start) in [(0, false), (1, false), (0, true), (1, true)] {
            let name = format!("farhold-given-back-{}-{gone}-{by_next_start}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let fabric = Fabric::join_shm(&directory, NodeId(0)).unwrap();
            let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
            let node = Node::open(fabric, config).unwrap();
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).unwrap();
            let core = &*worker.core;
            let (ids, owner) = ([TableId(20), TableId(21)], Owner::new(1, NodeId(1), 0, 1).word());
            for id in ids {
                let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).unwrap();
                let definition = TableDef::new(format!("t{}", id.0), schema);
                crate::system::add(&node, id, &definition.encode(&[]).unwrap()).unwrap();
                let mut value = Vec::new();
                definition.schema.encode_value(&[Datum::Int(0)], &mut value).unwrap();
                let key = 0x8000_0001_u32.to_be_bytes();
                let (table, mine) = (id, Vec::new());
                let request = Request::Reserve { table, owner, configuration: 0, key: &key, value: &value, mine };
                assert!(core.answer(NodeId(1), request).is_ok());
            }
            assert_eq!(node.left_behind().len(), 2);
            node.catalog.retire(ids[gone]);
            assert!(node.catalog.look_at_retired(&node.slots).is_empty());
            assert_eq!(node.catalog.look_at_retired(&node.slots), [ids[gone]]);
            node.catalog.let_go(NodeId(0), 2, |_| true, || true);
            assert!(node.catalog.even_dropped(ids[gone]).is_none());
            assert_eq!(node.left_behind().len(), 1);
            let request = if by_next_start {
                Request::Hello { node: NodeId(1), incarnation: 2, epoch: 1 }
            } else {
                Request::Forget { owner, answered: true }
            };
            assert!(core.answer(NodeId(1), request).is_ok());
            assert_eq!(node.left_behind(), Vec::<String>::new());
            drop((worker, node));
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }

    /// A snapshot has listed the pages of a table when that is dropped, with a row in it that a transaction of another node has locked. That node ends,
    /// and is gone or starts again: the snapshot reads the row.
    #[test]
    fn locks_of_the_dead_are_released_in_a_dropped_table_that_a_snapshot_reads() {
        for by_next_start in [false, true] {
            let name = format!("farhold-locked-and-dropped-{}-{by_next_start}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let fabric = Fabric::join_shm(&directory, NodeId(0)).unwrap();
            let node = Node::open(fabric, NodeConfig { region_bytes: 8 << 20, ..NodeConfig::default() }).unwrap();
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).unwrap();
            let core = &*worker.core;
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).unwrap();
            let mut value = Vec::new();
            schema.encode_value(&[Datum::Int(0)], &mut value).unwrap();
            executor.run(async {
                let table = worker.create_table(TableDef::new("t", schema)).await.unwrap();
                let mut txn = worker.begin();
                txn.insert(&table, &0x8000_0001_u32.to_be_bytes(), &value).await.unwrap();
                txn.commit().await.unwrap();
                let snapshot = worker.snapshot().await.unwrap();
                let tasks = worker.snapshot_pages(&snapshot, &table).await.unwrap();
                let slots = || table.0.store.pages().into_iter().flat_map(|run| run.slots());
                let rows = slots().map(|offset| Object::at(node.store.memory(), offset));
                let row = rows.into_iter().find(|row| row.meta().state() == Meta::ROW).unwrap();
                row.lock(row.meta().incarnation(), Owner::new(1, NodeId(1), 0, 1)).unwrap();
                worker.drop_table(&table).await.unwrap();
                assert!(node.catalog.has_retired() && row.lock_word() != 0);
                if by_next_start {
                    core.forget_dead(NodeId(1), 2, 1);
                } else {
                    core.forget_absent(&|present| present == NodeId(0));
                }
                assert_eq!(row.lock_word(), 0);
                let mut count = 0;
                for task in &tasks {
                    worker.scan_page(&snapshot, task, &mut |_, _| count += 1).await.unwrap();
                }
                assert_eq!(count, 1);
            });
            drop((worker, node));
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }

    /// What node 1 asks of node 0 by messages, while its own instructions write node 0's memory.
    fn asked(name: &str, test: impl FnOnce(&Asked<'_>)) {
        let directory = std::env::temp_dir().join(format!("farhold-asked-{name}-{}", std::process::id()));
        let fabric = Fabric::join_shm(&directory, NodeId(0)).unwrap();
        let node = Node::open(fabric, NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() }).unwrap();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).unwrap();
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Text)];
        let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: true };
        let schema = Schema::new(columns, vec![0]).unwrap();
        let definition = TableDef { indexes: vec![by_name], ..TableDef::new("t", schema) };
        crate::system::add(&node, TableId(20), &definition.encode(&[Recorded::Live]).unwrap()).unwrap();
        let table = node.catalog.by_id(TableId(20)).unwrap().0;
        test(&Asked { core: &worker.core, table: &table, owner: Owner::new(1, NodeId(1), 0, 1) });
        drop((table, worker, node));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    struct Asked<'a> {
        core: &'a Core,
        table: &'a TableShared,
        owner: Owner,
    }

    impl Asked<'_> {
        fn answer(&self, request: Request<'_>) -> Vec<u8> {
            self.core.answer(NodeId(1), request).unwrap().0
        }

        fn key(id: u32) -> [u8; 4] {
            (id | 0x8000_0000).to_be_bytes()
        }

        fn value(&self, name: &str) -> Vec<u8> {
            let (row, mut value) = ([Datum::Int(0), Datum::Text(name.into())], Vec::new());
            self.table.schema.encode_value(&row, &mut value).unwrap();
            value
        }

        fn reserve(&self, id: u32, name: &str, mine: Vec<ObjectRef>) -> ObjectRef {
            let (key, value, owner) = (Self::key(id), self.value(name), self.owner.word());
            let (table, configuration) = (TableId(20), 0);
            let bytes = self.answer(Request::Reserve { table, owner, configuration, key: &key, value: &value, mine });
            Reserved::decode(&mut super::super::wire::Reader(&bytes)).unwrap().outcome.unwrap().reference
        }

        fn publish(&self, new: ObjectRef, old: ObjectRef) {
            self.answer(Request::Publish { table: TableId(20), references: vec![new], replaced: vec![old] });
        }

        fn remove(&self, reference: ObjectRef) {
            self.answer(Request::Remove { table: TableId(20), epoch: 2, references: vec![reference] });
        }

        fn row(&self, reference: ObjectRef) -> Object<'_> {
            self.core.node.store.object(reference)
        }

        /// By instructions: a reservation becomes a row.
        fn make_row(&self, reference: ObjectRef) {
            let (row, memory) = (self.row(reference), self.core.node.store.memory());
            let (key_len, payload_len) = (row.meta().key_len(), row.meta().payload_len());
            let meta = Meta::new(reference.incarnation(), Meta::ROW, key_len, payload_len);
            let word = memory.word(reference.offset() + farhold_fabric::object::META).unwrap();
            word.store(meta.0, std::sync::atomic::Ordering::SeqCst);
            row.restamp(row.version().next(2));
        }

        /// By instructions.
        fn delete(&self, reference: ObjectRef) {
            let row = self.row(reference);
            row.restamp(row.version().next(2).with(Version::ABSENT));
        }

        fn by_key(&self, id: u32) -> [Option<ObjectRef>; 2] {
            let key = Self::key(id);
            [self.table.store.lookup(&key).found, self.table.store.primary().get(&key).value.map(ObjectRef::from_bits)]
        }

        fn by_name(&self, name: &str) -> Option<ObjectRef> {
            let (keys, mut key) = (self.table.any_keys_of(Index::Secondary(0)).unwrap(), Vec::new());
            keys.make(&self.table.schema, &Self::key(0), &self.value(name), &mut key).unwrap();
            self.table.store.lookup_secondary(1, &key).unwrap().found
        }
    }

    /// A row moves to another slot. Its new slot is written, by instructions, before this message is served.
    #[test]
    fn a_row_that_moved_is_found_although_its_home_hears_of_it_late() {
        asked("late", |it| {
            let old = it.reserve(1, "ann", Vec::new());
            it.make_row(old);
            let new = it.reserve(1, "ann", vec![old]);
            assert_eq!(it.by_key(1), [Some(old); 2]);
            it.make_row(new);
            it.delete(old);
            it.publish(new, old);
            assert_eq!(it.by_key(1), [Some(new); 2]);
            it.remove(old);
            // Said twice it changes nothing.
            it.publish(new, old);
            assert_eq!(it.by_key(1), [Some(new); 2]);
            assert_eq!(it.by_name("ann"), Some(new));
        });
    }

    /// The primary index has led to the new row from the start, because its key is new; the unique value is another row's.
    #[test]
    fn a_late_message_is_judged_for_each_index_by_itself() {
        asked("each-index", |it| {
            let old = it.reserve(1, "ann", Vec::new());
            it.make_row(old);
            let new = it.reserve(2, "ann", vec![old]);
            assert_eq!((it.by_key(2), it.by_name("ann")), ([Some(new); 2], Some(old)));
            it.make_row(new);
            it.delete(old);
            it.publish(new, old);
            assert_eq!((it.by_key(2), it.by_name("ann")), ([Some(new); 2], Some(new)));
        });
    }

    /// A thread of the home had the message in its hands while another served it once more, and the row came and went.
    #[test]
    fn a_message_that_comes_again_takes_no_entry_from_a_later_row() {
        asked("again", |it| {
            let old = it.reserve(1, "ann", Vec::new());
            it.make_row(old);
            let new = it.reserve(2, "ann", vec![old]);
            it.publish(new, old);
            it.make_row(new);
            it.delete(old);
            it.remove(old);
            it.delete(new);
            let later = it.reserve(2, "ann", Vec::new());
            it.publish(new, old);
            assert_eq!((it.by_key(2), it.by_name("ann")), ([Some(later); 2], Some(later)));
            it.remove(new);
            it.publish(new, old);
            assert_eq!((it.by_key(2), it.by_name("ann")), ([Some(later); 2], Some(later)));
        });
    }
}
