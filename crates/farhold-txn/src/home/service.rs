//! Answering requests.

use crate::base::definition::TableDef;
use crate::base::error::TxnError;
use crate::base::slots::Counter;
use crate::base::wire::Writer;
use crate::node::system;
use crate::node::unsent::RETRY_NS;
use crate::protocol::core::Core;
use crate::protocol::home::{look_up, scan};
use crate::protocol::runs::{first_runs, write_runs};
use crate::protocol::worker::Worker;
use crate::rpc::line::Serve;
use crate::rpc::message::{IndexStep, Request};
use crate::rpc::reply::{encode_ask_again, encode_reply};
use farhold_fabric::{Address, FabricError, Message, NodeId};
use farhold_store::Holder;
use std::sync::Arc;

impl Serve for Core {
    fn serve_one(&self) -> bool {
        self.slot.count(Counter::InboxLooks);
        self.tidy_catalog();
        self.apply_now_and_then();
        self.tell_open_snapshots();
        self.send_unsent();
        self.take_late_answers();
        let mut message = self.inbox.take();
        let found = self.endpoint.try_recv_home_into(&mut message);
        if found {
            crate::base::planted::may_stop();
            self.serve(&message);
        }
        self.inbox.set(message);
        found
    }
}

impl Core {
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

    fn serve(&self, message: &Message) {
        self.slot.count(Counter::RequestsServed);
        let Ok((number, request)) = Request::decode(&message.bytes) else {
            // A garbled request gets no answer: its number cannot be trusted either.
            return;
        };
        let sender = message.from.node;
        if !self.node.present.contains(sender) && !matches!(request, Request::Recovery { .. }) {
            // A late message of a node that the others go on without.
            return;
        }
        // A request that wants no answer is done in any case.
        if number != 0 && self.node.unsent.is_full(message.from) {
            self.reply(message.from, number, &encode_ask_again(number));
            return;
        }
        let outcome = self.answer(sender, request);
        if number != 0 {
            self.reply(message.from, number, &encode_reply(number, outcome));
        }
    }

    /// Sends an answer, or keeps it to be sent when the caller's inbox has room.
    fn reply(&self, to: Address, number: u64, reply: &[u8]) {
        if let Err(FabricError::MessageTooLong { bytes, bytes_max }) = self.send_or_keep(to, reply) {
            // The caller must get this error instead of waiting.
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
                // The worker has held the message for longer than its sender waits for the answer, so its process was
                // stopped meanwhile.
                let now_ns = self.handle.now_ns();
                let until_ns = now_ns.saturating_add(2 * self.node.config.request_timeout_ns);
                for it in self.node.reservations.take_of(owner, answered, now_ns, until_ns) {
                    // The reservations of a released table are gone with it.
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
            Request::CreateTable { id, definition } => {
                system::make(&self.node, id, definition)?;
                // Its record may have been changed since.
                system::follow_definitions(&self.node)?;
            }
            Request::DropTable { id } => {
                self.node.catalog.retire(id);
                if self.node.catalog.even_dropped(id).is_none() {
                    // It was dropped before this node came, or has been released.
                    self.forget_mirrored(id);
                }
            }
            Request::Quiet { id, node } => self.node.catalog.note_quiet(id, node),
            Request::AskQuiet { id } => {
                // Its coordinator may have died before it told this node of the drop.
                if self.node.catalog.by_id(id).is_some() && self.node.is_member() {
                    crate::node::system::reconcile(&self.node)?;
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
                    crate::node::system::reconcile(&self.node)?;
                }
                match self.table(table) {
                    Err(_) if step != IndexStep::Open => {}
                    found => self.step_index_here(&*found?, slot, step)?,
                }
            }
            Request::FollowDefinition { table } => system::follow_definition(&self.node, table)?,
            Request::Count { table } => {
                w.u64(self.table(table)?.store.primary().len() as u64);
            }
            Request::Pages { table, from_page } => {
                let runs = first_runs(self.table(table)?.store.pages(), from_page);
                write_runs(self.node.store.memory(), self.node.store.incarnation(), &runs, &mut w);
            }
            Request::Hello { node, incarnation, birth, epoch } => {
                self.forget_dead(node, (incarnation, birth), epoch)?;
            }
            Request::Announce { incarnation, configuration, number } => {
                let holder = Holder { node: sender, incarnation };
                let is_there = || self.is_there(sender, configuration);
                let announced = self.node.far_holds.announce(self.node.store.superblock(), holder, number, is_there);
                if !announced.map_err(|error| TxnError::store(error, self.me))? {
                    return Err(TxnError::Recovering { node: self.me });
                }
                w.u16(self.node.store.incarnation());
            }
            Request::ColumnView { incarnation, table, epoch, configuration, columns } => {
                let (holder, at) = (Holder { node: sender, incarnation }, (table, epoch, configuration));
                self.describe_columns(holder, at, &columns, &mut w)?;
            }
            Request::ScanColumns { incarnation, table, epoch, configuration, number, body } => {
                let (holder, at) = (Holder { node: sender, incarnation }, (table, epoch, configuration));
                self.scan_columns(holder, at, number, body, &mut w)?;
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
}

impl Worker {
    /// Serves this node's home inbox, one step; true if there was something to do.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn poll(&self) -> bool {
        self.finish_drops_if_any();
        self.core.serve_one()
    }

    /// Serves this node's home inbox for a while: returns after `timeout_ns` without a request, or when `served_max`
    /// have been answered. For tasks that do nothing else, on an executor where other tasks run meanwhile. What closed
    /// snapshots held back is free afterwards.
    pub async fn serve(&self, timeout_ns: u64, served_max: usize) -> usize {
        let (mut served, mut idle_ns) = (0, 0);
        while served < served_max && idle_ns < timeout_ns {
            // Nothing rings when an inbox of another node has room again.
            let rest_ns = timeout_ns - idle_ns;
            let wait_ns = if self.core.node.unsent.is_empty() { rest_ns } else { rest_ns.min(RETRY_NS) };
            let mut has_served = self.poll();
            if !has_served {
                // A home node under load may never be without a message for `timeout_ns`.
                self.core.alloc.borrow_mut().collect();
                if !self.core.endpoint.arrival(wait_ns).await {
                    idle_ns += wait_ns;
                    continue;
                }
                has_served = self.poll();
            }
            idle_ns = 0;
            if has_served {
                served += 1;
            } else {
                // It was another worker's to take, or an answer.
                self.core.receive();
                self.core.handle.yield_now().await;
            }
        }
        self.core.alloc.borrow_mut().collect();
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::Recorded;
    use crate::base::table::{Index, TableShared};
    use crate::node::{Node, NodeConfig};
    use crate::rpc::message::Reserved;
    use farhold_fabric::{Executor, Fabric, Meta, Version};
    use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
    use farhold_store::{Object, ObjectRef, Owner, TableId};

    /// A transaction of another node has reserved a key in each of two tables. One of them is dropped and gone when the
    /// transaction, or the next start of its node, gives them back.
    #[test]
    fn reservations_are_given_back_although_another_table_is_gone() {
        for (gone, by_next_start) in [(0, false), (1, false), (0, true), (1, true)] {
            let directory = tempfile::tempdir().expect("a directory");
            let fabric = Fabric::join_shm(directory.path(), NodeId(0)).unwrap();
            let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
            let node = Node::open(fabric, config).unwrap();
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).unwrap();
            let core = &*worker.core;
            let (ids, owner) = ([TableId(20), TableId(21)], Owner::new(1, NodeId(1), 0, 1).word());
            for id in ids {
                let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).unwrap();
                let definition = TableDef::new(format!("t{}", id.0), schema);
                crate::node::system::add(&node, id, &definition.encode(&[]).unwrap()).unwrap();
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
                Request::Hello { node: NodeId(1), incarnation: 2, birth: 2, epoch: 1 }
            } else {
                Request::Forget { owner, answered: true }
            };
            assert!(core.answer(NodeId(1), request).is_ok());
            assert_eq!(node.left_behind(), Vec::<String>::new());
            drop((worker, node));
        }
    }

    /// A snapshot has listed the pages of a table when that is dropped, with a row in it that a transaction of another node has
    /// locked. That node ends, and is gone or starts again: the snapshot reads the row.
    #[test]
    fn locks_of_the_dead_are_released_in_a_dropped_table_that_a_snapshot_reads() {
        for by_next_start in [false, true] {
            let directory = tempfile::tempdir().expect("a directory");
            let fabric = Fabric::join_shm(directory.path(), NodeId(0)).unwrap();
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
                    core.forget_dead(NodeId(1), (2, 2), 1).unwrap();
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
        }
    }

    /// What node 1 asks of node 0 by messages, while its own instructions write node 0's memory.
    fn asked(test: impl FnOnce(&Asked<'_>)) {
        let directory = tempfile::tempdir().expect("a directory");
        let fabric = Fabric::join_shm(directory.path(), NodeId(0)).unwrap();
        let node = Node::open(fabric, NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() }).unwrap();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).unwrap();
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Text)];
        let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: true };
        let schema = Schema::new(columns, vec![0]).unwrap();
        let definition = TableDef { indexes: vec![by_name], ..TableDef::new("t", schema) };
        crate::node::system::add(&node, TableId(20), &definition.encode(&[Recorded::Live]).unwrap()).unwrap();
        let table = node.catalog.by_id(TableId(20)).unwrap().0;
        test(&Asked { core: &worker.core, table: &table, owner: Owner::new(1, NodeId(1), 0, 1) });
        drop((table, worker, node));
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
            Reserved::decode(&mut crate::base::wire::Reader(&bytes)).unwrap().outcome.unwrap().reference
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
        asked(|it| {
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
        asked(|it| {
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

    /// A thread of the home held the message while another served it once more, and the row came and went.
    #[test]
    fn a_message_that_comes_again_takes_no_entry_from_a_later_row() {
        asked(|it| {
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
