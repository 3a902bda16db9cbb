//! Creating and dropping tables and indexes.

pub(crate) mod here;
pub(crate) mod records;

use crate::base::back_off::BackOff;
use crate::base::definition::{Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::base::table::Table;
use crate::base::wire::{read_flag, read_u64};
use crate::node::Node;
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use crate::protocol::worker::{Retry, Worker};
use crate::rpc::message::{IndexStep, Request};
use farhold_fabric::NodeId;
use farhold_store::TableId;

use crate::node::system;
use farhold_store::row::SecondaryIndex;
use farhold_store::table::{SECONDARIES_EVER_MAX, SECONDARIES_MAX};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

impl Worker {
    /// Creates a table on every node and records it. Whoever stops waiting may find it created, or not.
    ///
    /// # Errors
    /// [`TxnError::AlreadyExists`]; [`TxnError::Row`] for a definition that makes no sense; an unavailable node.
    pub async fn create_table(&self, definition: TableDef) -> Result<Table, TxnError> {
        definition.check(self.node().config().nodes)?;
        if definition.name == system::NAME {
            return Err(TxnError::AlreadyExists { name: definition.name.into() });
        }
        let bytes = definition.encode(&vec![Recorded::Live; definition.indexes.len()])?;
        let (name, recorded) = (definition.name.clone(), bytes.clone());
        let make = move |worker: Self, id| async move { worker.make_everywhere(&name, id, &recorded).await };
        let made = self.record(async |txn| self.enter(txn, &definition.name, &bytes).await, make).await;
        made.map_err(|error| match self.core.retryable(error) {
            TxnError::DuplicateKey { .. } => TxnError::AlreadyExists { name: definition.name.into() },
            other => other,
        })
    }

    /// What follows from a recorded table.
    async fn make_everywhere(&self, name: &str, id: TableId, definition: &[u8]) -> Result<Table, TxnError> {
        let node = self.node();
        if let Err(error) = system::make(node, id, definition) {
            // There is no room for it, say: the name is free again.
            self.take_back(name, id).await;
            return Err(error);
        }
        // Gone, if another session has dropped it meanwhile.
        let table = node.table_by_id(id).ok_or(TxnError::SchemaChanged)?;
        let mut missed = Ok(());
        for other in node.others() {
            match self.core.call(other, &Request::CreateTable { id, definition }).await {
                Ok(_) => {}
                // It has it when it is back.
                Err(TxnError::NodeUnavailable { node, .. }) => {
                    missed = Err(TxnError::NodeUnavailable { node, committed: true });
                }
                Err(error) => {
                    self.take_back(name, id).await;
                    return Err(error);
                }
            }
        }
        missed.map(|()| table)
    }

    /// Drops a table that could not be made. What is in the way, it waits for: a node, or room for what open snapshots see of its record. For long
    /// it does so beside the client, who has been told by then.
    async fn take_back(&self, name: &str, id: TableId) {
        let until_ns = self.handle().now_ns().saturating_add(self.node().config().request_timeout_ns);
        if !self.take_back_until(name, id, until_ns).await {
            let (worker, name) = (self.clone(), name.to_owned());
            self.core.leave(async move { _ = worker.take_back_until(&name, id, u64::MAX).await });
        }
    }

    /// False: not yet.
    async fn take_back_until(&self, name: &str, id: TableId, until_ns: u64) -> bool {
        let mut again = BackOff::new(TAKE_BACK_EVERY_NS, TAKE_BACK_EVERY_NS_MAX);
        loop {
            let dropped = self.drop_recorded(name, id).await;
            let is_over = match dropped {
                Ok(()) | Err(TxnError::NotFound { .. }) => true,
                Err(ref error) => error.is_committed() || !self.node().is_member(),
            };
            if is_over || self.handle().now_ns() >= until_ns {
                return is_over;
            }
            again.rest(self.handle()).await;
        }
    }

    /// Drops a table on every node; transactions that use it fail with [`TxnError::SchemaChanged`]. Whoever stops waiting may find it dropped,
    /// or not.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node, with `committed` if it has been dropped, and that node hears of it later.
    pub async fn drop_table(&self, table: &Table) -> Result<(), TxnError> {
        self.drop_recorded(table.name(), table.id()).await
    }

    async fn drop_recorded(&self, name: &str, id: TableId) -> Result<(), TxnError> {
        let of = name.to_owned();
        let take = move |worker: Self, ()| async move {
            worker.node().catalog.retire(id);
            worker.core.begin_grace();
            let told = worker.tell_others(Request::DropTable { id }).await;
            worker.forget_dropped(&of, told.is_ok()).await;
            told
        };
        self.record(async |txn| self.take_out(txn, name, id).await, take).await
    }

    /// Deletes the record of a drop that all nodes have heard of; otherwise it goes when those have.
    async fn forget_dropped(&self, name: &str, have_heard: bool) {
        if !self.node().records_may_differ() {
            return;
        }
        if !have_heard || self.make_records_alike(Some(name)).await.is_err() {
            self.node().catalog.set_behind(true);
        }
    }

    /// Changes the system table, and does what follows from that. From the commit on both come to their end, also if whoever waits for it stops, or is
    /// told that the outcome is unknown: into a table that is recorded as dropped and still there clients would write, and lose, rows.
    ///
    /// # Errors
    /// What any of it fails with; [`TxnError::OutcomeUnknown`] when the commit, or what follows, takes longer than the others would take to
    /// go on without a node.
    async fn record<T: 'static, U: 'static, F: Future<Output = Result<U, TxnError>> + 'static>(
        &self,
        mut change: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>,
        then: impl FnOnce(Self, T) -> F + Clone + 'static,
    ) -> Result<U, TxnError> {
        let attempt = async || {
            let mut txn = self.begin();
            txn.is_patient = true;
            let changed = self.told(change(&mut txn).await).await?;
            let (worker, then) = (self.clone(), then.clone());
            let rest = async move {
                let missed = match txn.commit().await {
                    Ok(_) => None,
                    Err(error) if error.is_committed() => {
                        if worker.node().records_may_differ() {
                            worker.node().catalog.set_behind(true);
                        }
                        Some(error)
                    }
                    Err(error) => return Err(error),
                };
                let done = then(worker, changed).await;
                Ok(missed.map_or(done, Err))
            };
            ToItsEnd::of(&self.core, rest).await
        };
        self.run_attempts(Retry::default(), attempt).await?
    }

    /// That something is there already, or is not, may be taken for an answer: it waits until no power cut takes it back.
    async fn told<T>(&self, changed: Result<T, TxnError>) -> Result<T, TxnError> {
        use TxnError::{AlreadyExists, DuplicateKey, NotFound};
        if matches!(changed, Err(AlreadyExists { .. } | DuplicateKey { .. } | NotFound { .. })) {
            self.durable_so_far().await?;
        }
        changed
    }

    /// The table of tables.
    fn system_table(&self) -> Result<Table, TxnError> {
        self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })
    }

    /// Deletes what [`Self::enter`] has written, or has it say that the table is dropped: see [`records`].
    async fn take_out(&self, txn: &mut Txn, name: &str, id: TableId) -> Result<(), TxnError> {
        let system = self.system_table()?;
        let (key, _) = system::encode_row(system.schema(), name, id, &[])?;
        let missing = || TxnError::NotFound { what: format!("table \"{name}\"").into() };
        let row = txn.get(&system, &key).await?.ok_or_else(missing)?;
        let (_, found, definition) = system::decode_row(system.schema(), txn.key(row), txn.value(row))?;
        if definition == system::UNKNOWN {
            return Err(TxnError::Conflict);
        }
        if found != id || definition.is_empty() {
            return Err(missing());
        }
        if self.node().records_may_differ() {
            return txn.update(row, &system::encode_row(system.schema(), name, id, &[])?.1);
        }
        txn.delete(row)
    }

    /// Creates an index and fills it, on every node, while others go on reading and writing the table. Transactions that run
    /// when it begins, and write, are refused at their commit.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] when rows there contradict a unique index; [`TxnError::AlreadyExists`];
    /// [`TxnError::TooMany`] at a time, or over the table's life; [`TxnError::Row`] for a definition that does not fit;
    /// [`TxnError::Recovering`] if a node has come or gone meanwhile; an unavailable node. There is an index only after
    /// [`TxnError::NodeUnavailable`] with `committed`.
    pub async fn create_index(&self, table: &Table, definition: SecondaryIndex) -> Result<Index, TxnError> {
        // Rows that nobody is served yet are in no index: one that they contradict would be complete before they come.
        let configuration = self.node().settled_configuration()?;
        let (slot, recorded) = self.record_index(table, &definition).await?;
        let mut unfinished = Unfinished { core: &self.core, table, slot, is_over: false };
        let filled = self.fill_everywhere(table, slot, &recorded).await.map_err(|error| match error {
            // Taken away meanwhile, by nodes that thought this one gone.
            TxnError::NotFound { .. } if self.node().replication.is_some() => {
                TxnError::Recovering { node: self.core.me }
            }
            error => error,
        });
        unfinished.is_over = true;
        let (worker, table) = (self.clone(), table.clone());
        // What is recorded by then has to be so everywhere.
        let finished = async move { worker.finish_index(&table, slot, configuration, filled).await };
        ToItsEnd::of(&self.core, finished).await.map_err(|error| self.core.retryable(error))
    }

    /// Records that an index is complete, and opens it; one that could not be filled goes.
    async fn finish_index(
        &self,
        table: &Table,
        slot: u16,
        configuration: u64,
        filled: Result<(), TxnError>,
    ) -> Result<Index, TxnError> {
        let recorded = match filled {
            Ok(()) => self.record_live(table, slot, configuration).await,
            refused => refused,
        };
        match recorded {
            // Recorded, but for one node, which cannot be reached.
            Ok(()) | Err(TxnError::NodeUnavailable { committed: true, .. }) => {}
            // The others, or a restart, find out what is recorded.
            Err(error @ (TxnError::OutcomeUnknown | TxnError::NotDurable { committed: true, .. })) => {
                return Err(error);
            }
            Err(error) => {
                // A node that is down will not find it in the definition. One that is there and could not be told has it recorded as dropped.
                if self.step_index(table, slot, IndexStep::Drop).await.is_err() {
                    let _ = self.take_away(table, slot).await;
                }
                return Err(error);
            }
        }
        match self.step_index(table, slot, IndexStep::Open).await {
            Ok(()) => Ok(Index::Secondary(slot)),
            // It has it when it is back.
            Err(error @ TxnError::NodeUnavailable { .. }) => Err(error),
            // Some node has lost it since it was filled there, or somebody has dropped it.
            Err(error) => {
                self.take_away(table, slot).await?;
                Err(error)
            }
        }
    }

    /// Drops the secondary index of this name. Transactions that have read it fail at their commit.
    ///
    /// # Errors
    /// [`TxnError::NotFound`], also for an index that is still being created; an unavailable node. Only after
    /// [`TxnError::NodeUnavailable`] with `committed` it has been dropped, and writers may keep it until that node is back.
    pub async fn drop_index(&self, table: &Table, name: &str) -> Result<(), TxnError> {
        let found = table.indexes().into_iter().find(|index| index.ready && index.definition.name == name);
        let Some(Index::Secondary(slot)) = found.map(|index| index.index) else {
            return Err(TxnError::NotFound { what: format!("index \"{name}\"").into() });
        };
        self.take_away(table, slot).await
    }

    /// Takes an index away that may be read.
    async fn take_away(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        let of = table.clone();
        let take = move |worker: Self, ()| async move { worker.drop_everywhere(&of, slot).await };
        self.record(async |txn| self.enter_drop(txn, table, slot).await, take).await
    }

    /// What follows a recorded drop: first nobody anywhere reads the index any more, and what was read in it counts no more; only then do
    /// writers let it be. In one step a writer of one node would change rows under a reader of another's. Those of this node are the last,
    /// so it knows what others may not have heard, and a worker of it goes on.
    async fn drop_everywhere(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        let told = async {
            self.step_index(table, slot, IndexStep::Close).await?;
            self.tell_others(Request::StepIndex { table: table.id(), slot, step: IndexStep::Drop }).await
        };
        match told.await {
            Ok(()) => self.core.step_index_here(&table.0, slot, IndexStep::Drop),
            error => {
                self.node().catalog.set_behind(true);
                error
            }
        }
    }

    /// Has done to the end what coordinators may have left of changes of tables and indexes, because they have died or could not reach a node, and
    /// what was just being recorded when this node looked. Every node does: one that has missed something knows. One worker of it at a time.
    #[inline]
    pub(crate) fn finish_drops_if_any(&self) {
        if self.node().catalog.is_behind() {
            self.begin_finishing();
        }
    }

    #[cold]
    fn begin_finishing(&self) {
        if self.node().is_member()
            && let Some(turn) = Turn::take(self.node())
        {
            let worker = self.clone();
            drop(self.handle().spawn(async move {
                worker.finish_drops().await;
                drop(turn);
            }));
        }
    }

    /// While this node is no member it goes on later.
    async fn finish_drops(&self) {
        let catalog = &self.node().catalog;
        let mut again = BackOff::new(ASK_EVERY_NS, FINISH_EVERY_NS_MAX);
        while self.node().is_member() {
            // What is left half done from here on is said anew.
            catalog.set_behind(false);
            self.make_all_records_alike().await;
            let left = system::reconcile(self.node());
            if left.is_ok() && !catalog.is_behind() {
                return;
            }
            // For another worker, should this one end.
            catalog.set_behind(true);
            for (table, slot) in left.unwrap_or_default() {
                let _ = self.drop_everywhere(&table, slot).await;
            }
            again.rest(self.handle()).await;
        }
    }

    /// As [`Self::make_records_alike`], if deaths may have left them different. A node that is down is looked at when it is back and says so.
    async fn make_all_records_alike(&self) {
        if !self.node().records_may_differ() {
            return;
        }
        let made = match self.make_records_alike(None).await {
            // The others make of it what is recorded now.
            Ok(true) => self.join_cluster().await.map(drop),
            made => made.map(drop),
        };
        match made {
            Err(TxnError::NodeUnavailable { node, .. }) if !self.node().fabric.node_is_live(node) => {}
            Err(_) => self.node().catalog.set_behind(true),
            Ok(()) => system::discard_unrecorded(self.node()),
        }
    }

    /// Makes an index what it is to be, on every living node.
    async fn step_index(&self, table: &Table, slot: u16, step: IndexStep) -> Result<(), TxnError> {
        let here = self.core.step_index_here(&table.0, slot, step);
        here.and(self.tell_others(Request::StepIndex { table: table.id(), slot, step }).await)
    }

    /// The number of the configuration that this node has installed; 0 without copies.
    fn configuration_number(&self) -> u64 {
        self.node().configuration().map_or(0, |installed| installed.number)
    }

    /// Enters the index into the table's recorded definition, not live yet: which gives it its slot.
    async fn record_index(&self, table: &Table, index: &SecondaryIndex) -> Result<(u16, TableDef), TxnError> {
        let nodes = self.node().config().nodes;
        let change = |definition: &mut TableDef, recorded: &mut Vec<Recorded>| {
            definition.check_index(index, nodes)?;
            let is_live = |recorded: &Recorded| *recorded == Recorded::Live;
            let mut others = definition.indexes.iter().zip(&*recorded);
            if others.any(|(other, recorded)| is_live(recorded) && other.name == index.name) {
                return Err(TxnError::AlreadyExists { name: index.name.as_str().into() });
            }
            let count = recorded.iter().filter(|recorded| is_live(recorded)).count();
            definition.indexes.push(index.clone());
            recorded.push(Recorded::Begun);
            if count >= SECONDARIES_MAX {
                return Err(TxnError::TooMany { what: "indexes of a table", limit: SECONDARIES_MAX });
            }
            if definition.indexes.len() > SECONDARIES_EVER_MAX {
                let what = "indexes of a table, dropped ones included";
                return Err(TxnError::TooMany { what, limit: SECONDARIES_EVER_MAX });
            }
            Ok(())
        };
        let entered = self.run(Retry::default(), async |txn| self.change_definition(txn, table, change).await);
        let entered = self.told(entered.await).await;
        if let Err(TxnError::AlreadyExists { .. }) = entered {
            // Whoever has recorded it may have died before he told this node.
            let _ = system::reconcile(self.node());
        }
        let definition = entered?;
        Ok(((definition.indexes.len() - 1) as u16, definition))
    }

    /// Records that every node has an index complete. Not in a later configuration: a node that has come since has only what was recorded.
    async fn record_live(&self, table: &Table, slot: u16, configuration: u64) -> Result<(), TxnError> {
        let change = |_: &mut TableDef, recorded: &mut Vec<Recorded>| {
            match recorded.get_mut(usize::from(slot)) {
                // A change of the configuration from here on refuses the commit.
                Some(recorded) if *recorded == Recorded::Begun && self.configuration_number() == configuration => {
                    *recorded = Recorded::Live;
                    Ok(())
                }
                _ => Err(TxnError::SchemaChanged),
            }
        };
        let set = self.run(Retry::default(), async |txn| {
            // What follows from it comes to its end with it.
            txn.is_patient = true;
            if self.node().records_may_differ() {
                // A node that has started again since it filled the index has lost it. One that does so from here on refuses the commit.
                self.check_filled(table, slot).await?;
            }
            self.change_definition(txn, table, change).await
        });
        match set.await {
            Err(TxnError::SchemaChanged) if self.configuration_number() != configuration => {
                Err(TxnError::Recovering { node: self.core.me })
            }
            set => set.map(drop),
        }
    }

    async fn enter_drop(&self, txn: &mut Txn, table: &Table, slot: u16) -> Result<(), TxnError> {
        let change = |definition: &mut TableDef, recorded: &mut Vec<Recorded>| {
            records::drop_index(definition, recorded, usize::from(slot))
        };
        self.change_definition(txn, table, change).await.map(drop)
    }

    /// Changes a table's definition as it is recorded.
    async fn change_definition(
        &self,
        txn: &mut Txn,
        table: &Table,
        change: impl FnOnce(&mut TableDef, &mut Vec<Recorded>) -> Result<(), TxnError>,
    ) -> Result<TableDef, TxnError> {
        let system = self.system_table()?;
        let (key, _) = system::encode_row(system.schema(), table.name(), table.id(), &[])?;
        let row = txn.get(&system, &key).await?.ok_or(TxnError::SchemaChanged)?;
        let (name, id, bytes) = system::decode_row(system.schema(), txn.key(row), txn.value(row))?;
        if bytes == system::UNKNOWN {
            return Err(TxnError::Conflict);
        }
        if id != table.id() || bytes.is_empty() {
            return Err(TxnError::SchemaChanged);
        }
        let (mut definition, mut recorded) = TableDef::decode(&bytes)?;
        change(&mut definition, &mut recorded)?;
        let (_, value) = system::encode_row(system.schema(), &name, id, &definition.encode(&recorded)?)?;
        txn.update(row, &value)?;
        Ok(definition)
    }

    /// Adds the index on every node, then has every node make and fill its own. Only when all writers everywhere know of it
    /// may anybody make an entry: a writer elsewhere changes rows here without asking, and would leave the entry behind.
    async fn fill_everywhere(&self, table: &Table, slot: u16, definition: &TableDef) -> Result<(), TxnError> {
        let id = table.id();
        let bytes = definition.encode(&vec![Recorded::Live; definition.indexes.len()])?;
        let since = system::start(self.node());
        self.core.add_index_here(&table.0, slot, definition, (self.core.me, since))?;
        self.on_others(&Request::AddIndex { table: id, slot, since, definition: &bytes }).await?;
        self.core.fill_index_here(table, slot)?;
        self.on_others(&Request::FillIndex { table: id, slot }).await?;
        let configuration = self.configuration_number();
        for node in self.node().everybody() {
            while !self.is_filled(node, table, slot).await? {
                // Then rows of this node, or of another, may stay locked, and the index would be refused.
                if self.configuration_number() != configuration || self.node().is_expelled() {
                    return Err(TxnError::Recovering { node: self.core.me });
                }
                self.core.serve_one();
                self.core.handle.sleep_ns(ASK_EVERY_NS).await;
            }
        }
        Ok(())
    }

    /// Has a node filled an index?
    ///
    /// # Errors
    /// It cannot be complete there, or is not there any more; an unavailable node.
    async fn is_filled(&self, node: NodeId, table: &Table, slot: u16) -> Result<bool, TxnError> {
        if node == self.core.me {
            return table.0.is_filled(slot);
        }
        self.core.ask(node, &Request::IsFilled { table: table.id(), slot }, read_flag).await
    }

    /// That every node has filled an index.
    async fn check_filled(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        for node in self.node().everybody() {
            if !self.is_filled(node, table, slot).await? {
                return Err(TxnError::Recovering { node });
            }
        }
        Ok(())
    }

    /// Live rows of a table on all nodes, about.
    ///
    /// # Errors
    /// An unavailable node.
    pub async fn row_count(&self, table: &Table) -> Result<u64, TxnError> {
        let mut count = table.row_count();
        if !table.0.route.is_local_only() {
            for node in self.node().others() {
                count += self.core.ask(node, &Request::Count { table: table.id() }, read_u64).await?;
            }
        }
        Ok(count)
    }

    /// Asks all other nodes.
    async fn on_others(&self, request: &Request<'_>) -> Result<(), TxnError> {
        for node in self.node().others() {
            self.core.call(node, request).await?;
        }
        Ok(())
    }

    /// Tells all other nodes what is recorded by now. Goes on after an error; a node that is dead, or expelled meanwhile, is none, and one
    /// that is joining goes by what is recorded when it is in.
    ///
    /// # Errors
    /// What a node has answered; [`TxnError::NodeUnavailable`], with `committed`, of one that does not answer.
    async fn tell_others(&self, request: Request<'static>) -> Result<(), TxnError> {
        let (core, mut outcome) = (&*self.core, Ok(()));
        let number = self.configuration_number();
        for node in self.node().others() {
            let told = if self.node().replication.is_some() {
                core.insist_call(node, &request, number).await
            } else {
                core.call(node, &request).await.map(drop)
            };
            outcome = match told {
                Ok(()) | Err(TxnError::Recovering { .. }) => outcome,
                Err(TxnError::NodeUnavailable { .. }) if !self.node().fabric.node_is_live(node) => outcome,
                Err(TxnError::NodeUnavailable { node, .. }) => {
                    self.core.tell_later(node, request.clone());
                    outcome.and(Err(TxnError::NodeUnavailable { node, committed: true }))
                }
                Err(error) => outcome.and(Err(error)),
            };
        }
        outcome
    }

    /// Enters a table into the system table, which gives it its number.
    async fn enter(&self, txn: &mut Txn, name: &str, definition: &[u8]) -> Result<TableId, TxnError> {
        let system = self.system_table()?;
        let schema = system.schema();
        let (counter, nothing) = system::encode_row(schema, "", TableId(system::FIRST_ID), &[])?;
        let id = if let Some(row) = txn.get(&system, &counter).await? {
            let here = system::decode_row(schema, txn.key(row), txn.value(row))?.1;
            let may_differ = self.node().records_may_differ();
            let anywhere = if may_differ { self.last_id_anywhere(txn, &system).await? } else { here };
            let id = TableId(here.max(anywhere).0 + 1);
            let (_, value) = system::encode_row(schema, "", id, &[])?;
            txn.update(row, &value)?;
            id
        } else {
            txn.insert(&system, &counter, &nothing).await?;
            TableId(system::FIRST_ID)
        };
        let (key, value) = system::encode_row(schema, name, id, definition)?;
        if self.node().records_may_differ()
            && let Some(row) = txn.get(&system, &key).await?
        {
            match &*system::decode_row(schema, txn.key(row), txn.value(row))?.2 {
                // A drop that is not over: it says nothing of the table with this number.
                [] => return txn.update(row, &value).map(|()| id),
                system::UNKNOWN => return Err(TxnError::Conflict),
                _ => {}
            }
        }
        txn.insert(&system, &key, &value).await?;
        Ok(id)
    }
}

/// How often a node that fills an index is asked whether it is done, and one that has not heard of a drop is told.
const ASK_EVERY_NS: u64 = 200_000;
/// How long what is recorded and not done here has rest before it is tried again, at most.
const FINISH_EVERY_NS_MAX: u64 = 64 * ASK_EVERY_NS;
/// How long a table that could not be made has rest before its drop is tried again, at first and at most.
const TAKE_BACK_EVERY_NS: u64 = 1_000_000;
const TAKE_BACK_EVERY_NS_MAX: u64 = 128_000_000;

/// A node's turn to drop indexes to the end.
struct Turn(Arc<Node>);

impl Turn {
    fn take(node: &Arc<Node>) -> Option<Self> {
        node.catalog.begin_finishing().then(|| Self(node.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.catalog.end_finishing();
    }
}

type Work<T> = Pin<Box<dyn Future<Output = Result<T, TxnError>>>>;

/// Work that comes to its end: whoever waits for it does it, and the executor goes on with it if nobody does any more, or when it takes too
/// long: then the outcome is unknown to whoever waits.
struct ToItsEnd<T: 'static> {
    work: Option<Work<T>>,
    core: Rc<Core>,
    until_ns: u64,
}

impl<T: 'static> ToItsEnd<T> {
    fn of(core: &Rc<Core>, work: impl Future<Output = Result<T, TxnError>> + 'static) -> Self {
        Self { work: Some(Box::pin(work)), core: core.clone(), until_ns: core.outcome_until_ns() }
    }
}

impl<T: 'static> Future for ToItsEnd<T> {
    type Output = Result<T, TxnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("not polled again after its end");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        } else if self.core.handle.now_ns() >= self.until_ns {
            // The drop has it go on.
            return Poll::Ready(Err(TxnError::OutcomeUnknown));
        }
        done
    }
}

impl<T: 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.core.leave(async move { drop(work.await) });
        }
    }
}

/// An index on its way. Dropped before it is over, because nobody waits for it any more, it takes the index away everywhere.
struct Unfinished<'w> {
    core: &'w Rc<Core>,
    table: &'w Table,
    slot: u16,
    is_over: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (core, slot, step) = (self.core, self.slot, IndexStep::Drop);
        let _ = core.step_index_here(&self.table.0, slot, step);
        for node in core.node.others() {
            core.tell_all_the_same(node, Request::StepIndex { table: self.table.id(), slot, step });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::Placement;
    use crate::cluster::configuration::Configuration;
    use crate::cluster::settings::ReplicationConfig;
    use crate::cluster::view::Moment;
    use crate::ddl::here::fill;
    use crate::node::NodeConfig;
    use farhold_fabric::Executor;
    use farhold_fabric::NodeId;
    use farhold_fabric::{Fabric, Version};
    use farhold_store::ObjectRef;
    use farhold_store::row::{Column, ColumnType, Datum, Schema};
    use std::cell::Cell;

    /// Longer than any machine takes.
    const PATIENCE_NS: u64 = 60_000_000_000;

    /// Runs a test on two nodes of this process that have a table of two integers.
    fn with_two(name: &str, test: impl AsyncFnOnce(&[Worker; 2], Table)) {
        with_two_served(name, async |workers, table, _| test(workers, table).await);
    }

    /// The same; what node 1 is asked it answers only while it may.
    fn with_two_served(name: &str, test: impl AsyncFnOnce(&[Worker; 2], Table, &Cell<bool>)) {
        let directory = std::env::temp_dir().join(format!("farhold-ddl-{name}-{}", std::process::id()));
        let executor = Executor::real(1);
        let workers = [0, 1].map(|number| {
            let fabric = Fabric::join_shm(&directory, NodeId(number)).expect("the fabric");
            let config = NodeConfig {
                nodes: 2,
                region_bytes: 16 << 20,
                request_timeout_ns: 1_000_000_000,
                ..NodeConfig::default()
            };
            Node::open(fabric, config).expect("a node").worker(&executor.handle()).expect("a worker")
        });
        let is_served = Rc::new(Cell::new(true));
        for worker in workers.clone() {
            let is_served = is_served.clone();
            drop(executor.handle().spawn(async move {
                loop {
                    if worker.core.me == NodeId(0) || is_served.get() {
                        worker.poll();
                    }
                    worker.handle().yield_now().await;
                }
            }));
        }
        executor.run(async {
            let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
            let schema = Schema::new(columns, vec![0]).expect("a schema");
            let table = workers[0].create_table(TableDef::new("people", schema)).await.expect("a table");
            test(&workers, table, &is_served).await;
        });
        drop(executor);
        drop(workers);
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    fn by_age() -> SecondaryIndex {
        SecondaryIndex { name: "by_age".into(), columns: vec![1], unique: false }
    }

    /// A node starts again after it has filled an index, and before all know of that: it has the index no more, and looks at no value.
    #[test]
    fn an_index_that_a_node_has_lost_is_none() {
        with_two("lost-index", async |[one, two], table| {
            let (slot, recorded) = one.record_index(&table, &by_age()).await.expect("recorded");
            one.fill_everywhere(&table, slot, &recorded).await.expect("filled");
            let there = two.node().table("people").expect("the table");
            there.0.drop_index(slot);
            let recorded = one.record_live(&table, slot, 0).await;
            assert!(matches!(recorded, Err(TxnError::NotFound { .. })), "{recorded:?}");
            let slot = one.create_index(&table, by_age()).await.expect("created");
            assert_eq!(slot, Index::Secondary(1));
        });
    }

    /// Nodes that differ in what is recorded, because a coordinator died between them, have the same afterwards: tables, indexes, and numbers.
    #[test]
    fn records_that_differ_become_alike() {
        with_two("alike", async |[one, two], table| {
            let system = one.system_table().expect("the system table");
            let index = one.create_index(&table, by_age()).await.expect("created");
            let definition = |name: &str| TableDef { name: name.into(), ..TableDef::new("", table.schema().clone()) };
            let bytes = |name: &str| definition(name).encode(&[]).expect("encoded");
            // Only here: a table, an index that is recorded as dropped, the last number; another's drop.
            let dropped = one.create_table(definition("dropped")).await.expect("created");
            let changed = one.run(Retry::never(), async |txn| {
                txn.copying = true;
                let (key, value) = system::encode_row(system.schema(), "new", TableId(40), &bytes("new"))?;
                txn.insert_on(NodeId(0), &system, &key, &value).await?;
                let (counter, value) = system::encode_row(system.schema(), "", TableId(40), &[])?;
                let row = txn.get(&system, &counter).await?.expect("the last number");
                txn.update(row, &value)?;
                let Index::Secondary(slot) = index else { panic!("{index:?}") };
                one.enter_drop(txn, &table, slot).await?;
                one.take_out(txn, "dropped", dropped.id()).await
            });
            changed.await.expect("changed");
            two.join_cluster().await.expect("answers");
            let is_alike = |worker: &Worker| {
                let names: Vec<String> = worker.node().tables().iter().map(|it| it.name().to_owned()).collect();
                let has_no_index = worker.node().table("people").is_some_and(|it| it.indexes().is_empty());
                names == ["people", "new"] && has_no_index && system::differences(worker.node()).is_empty()
            };
            let until_ns = one.handle().now_ns() + PATIENCE_NS;
            while !is_alike(one) || !is_alike(two) {
                let state = || [one, two].map(|it| (it.node().tables(), system::differences(it.node())));
                assert!(one.handle().now_ns() < until_ns, "{:?}", state());
                one.handle().yield_now().await;
            }
            let next = two.create_table(definition("next")).await.expect("created");
            assert_eq!(next.id(), TableId(41));
            one.drop_table(&one.node().table("next").expect("there")).await.expect("dropped");
            assert!(two.node().table("next").is_none());
            let left = one.run(Retry::never(), async |txn| {
                Ok(txn.scan(&system, crate::protocol::txn::scan::ScanSpec::all()).await?.len())
            });
            assert_eq!(left.await, Ok(3), "the last number and two tables: of the dropped ones nothing is left");
        });
    }

    /// The coordinator of a drop dies as soon as it has recorded it.
    async fn record_drop(worker: &Worker, table: &Table, slot: u16) {
        let recorded = worker.run(Retry::default(), async |txn| worker.enter_drop(txn, table, slot).await);
        recorded.await.expect("recorded");
    }

    /// Node 0 starts again, as far as node 1 hears.
    async fn start_again(workers: &[Worker; 2]) {
        let incarnation = workers[0].node().store.incarnation() + 1;
        let hello = Request::Hello { node: NodeId(0), incarnation, epoch: 1 };
        workers[0].core.call(NodeId(1), &hello).await.expect("heard");
    }

    async fn until(worker: &Worker, what: &str, is_so: impl Fn() -> bool) {
        let until_ns = worker.handle().now_ns() + PATIENCE_NS;
        while !is_so() {
            assert!(worker.handle().now_ns() < until_ns, "{what}");
            worker.handle().yield_now().await;
        }
    }

    /// The coordinator of a drop dies when it has told node 1 alone. Node 0 still has the table, so nobody hears that its transactions are
    /// over, and the pages would be held back for ever.
    #[test]
    fn what_was_not_told_of_a_drop_is_asked_for() {
        with_two("quiet", async |workers, table| {
            let nodes = workers.each_ref().map(|worker| worker.node().clone());
            let id = table.id();
            let taken = workers[1].run(Retry::default(), async |txn| workers[1].take_out(txn, table.name(), id).await);
            taken.await.expect("deleted");
            drop((table, nodes[1].catalog.retire(id)));
            until(&workers[0], "node 0 still has it", || nodes[0].table_by_id(id).is_none()).await;
            let is_held = |node: &Arc<Node>| node.catalog.has_retired();
            until(&workers[0], "its pages are held back", || !nodes.iter().any(is_held)).await;
        });
    }

    /// A node looks for what is recorded and not done while another change of the table is on its way: the row that says it is odd. It looks
    /// again.
    #[test]
    fn a_drop_is_seen_whose_record_was_just_being_written() {
        with_two("changing", async |workers, table| {
            let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
            let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else {
                panic!("no index")
            };
            record_drop(&workers[0], &table, slot).await;
            for (worker, table) in workers.iter().zip(&tables) {
                worker.core.step_index_here(&table.0, slot, IndexStep::Close).expect("closed");
            }
            let system = workers[0].system_table().expect("it is there");
            let (key, _) = system::encode_row(system.schema(), table.name(), table.id(), &[]).expect("a key");
            let word = system.0.store.primary().get(&key).value.expect("recorded");
            let reference = farhold_store::ObjectRef::from_bits(word);
            let (node, handle) = (workers[0].node().clone(), workers[0].handle().clone());
            let version = node.store.object(reference).version();
            let version = version.next(version.epoch());
            node.store.object(reference).restamp(version.with(farhold_fabric::Version::ODD));
            drop(workers[0].handle().spawn(async move {
                handle.sleep_ns(10 * ASK_EVERY_NS).await;
                node.store.object(reference).settle(version);
            }));
            workers[0].finish_drops().await;
            let left = tables.each_ref().map(|table| (table.indexes().len(), table.0.has_secondary()));
            assert_eq!(left, [(0, false); 2]);
        });
    }

    /// A node has begun to drop a table when it reads that it is recorded. And a node that has missed a table has no index of it to drop.
    #[test]
    fn a_table_that_is_going_or_gone_holds_nobody_up() {
        with_two("going", async |workers, table| {
            let node = workers[1].node();
            node.catalog.retire(table.id());
            assert_eq!(system::reconcile(node).map(drop), Ok(()));
            let tell = async |step| {
                let request = Request::StepIndex { table: TableId(1 << 20), slot: 0, step };
                workers[0].core.call(NodeId(1), &request).await.map(drop)
            };
            assert_eq!(tell(IndexStep::Close).await, Ok(()));
            assert_eq!(tell(IndexStep::Drop).await, Ok(()));
            assert_eq!(tell(IndexStep::Open).await, Err(TxnError::SchemaChanged));
        });
    }

    /// A commit that changes a replicated table holds the rows of each node's copy as well.
    #[test]
    fn a_commit_is_refused_whose_copies_need_more_memory_than_a_transaction_may() {
        with_two("copies", async |workers, _| {
            let columns = vec![Column::new("id", ColumnType::Int), Column::new("body", ColumnType::Bytea)];
            let schema = Schema::new(columns, vec![0]).expect("a schema");
            let definition = TableDef { placement: Placement::Replicated, ..TableDef::new("replicated", schema) };
            let table = workers[0].create_table(definition).await.expect("a table");
            let insert = async |count: i32| {
                let mut txn = workers[0].begin();
                for id in 0..count {
                    let row = [Datum::Int(id), Datum::Bytea(vec![7; 50_000])];
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    table.schema().encode_key(&row, &mut key).expect("a key");
                    table.schema().encode_value(&row, &mut value).expect("a value");
                    txn.insert(&table, &key, &value).await.expect("room");
                }
                txn.commit().await
            };
            let refused = insert(12).await;
            assert!(matches!(refused, Err(TxnError::TooLarge { what: "a transaction", .. })), "{refused:?}");
            assert!(insert(8).await.is_ok(), "and nothing is left of it");
        });
    }

    /// Where rows have one copy a death leaves a replicated row on one node and not on the other. Every write of it makes them alike; it is refused nowhere.
    #[test]
    fn a_write_makes_copies_alike_that_a_death_has_left_different() {
        with_two("differ", async |workers, _| {
            let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
            let schema = Schema::new(columns, vec![0]).expect("a schema");
            let definition = TableDef { placement: Placement::Replicated, ..TableDef::new("replicated", schema) };
            let table = workers[0].create_table(definition).await.expect("a table");
            let row = |age: i32| {
                let (mut key, mut value, row) = (Vec::new(), Vec::new(), [Datum::Int(7), Datum::Int(age)]);
                table.schema().encode_key(&row, &mut key).expect("a key");
                table.schema().encode_value(&row, &mut value).expect("a value");
                (key, value)
            };
            let (key, _) = row(0);
            let lose = |node: &Node| {
                let (table, mut alloc) = (node.table("replicated").expect("it"), node.store.alloc_cache());
                let reference = ObjectRef::from_bits(table.0.store.primary().get(&key).value.expect("there"));
                let object = node.store.object(reference);
                object.restamp(object.version().next(1).with(Version::ABSENT));
                table.0.store.remove(reference, 1, &mut alloc);
            };
            let is = async |age: Option<i32>| {
                for worker in workers {
                    let mut txn = worker.begin_read_only();
                    let found = txn.get(&worker.node().table("replicated").expect("it"), &key).await.expect("read");
                    assert_eq!(found.map(|found| txn.value(found).to_vec()), age.map(|age| row(age).1));
                    txn.commit().await.expect("read");
                }
            };
            for (turn, (loser, writer)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
                let [first, changed] = [10, 20].map(|age| age + turn as i32);
                let (lost, writing) = (workers[loser].node(), &workers[writer]);
                let here = writing.node().table("replicated").expect("it");
                let insert = async |age| {
                    let write = async |txn: &mut Txn| txn.insert(&here, &key, &row(age).1).await.map(drop);
                    writing.run(Retry::never(), write).await
                };
                let change = async |age: Option<i32>| {
                    let write = async |txn: &mut Txn| {
                        let found = txn.get(&here, &key).await?.expect("there");
                        match age {
                            Some(age) => txn.update(found, &row(age).1),
                            None => txn.delete(found),
                        }
                    };
                    writing.run(Retry::never(), write).await
                };
                assert_eq!(insert(first).await, Ok(()));
                lose(lost);
                let written = if loser == writer { insert(changed).await } else { change(Some(changed)).await };
                assert_eq!(written, Ok(()), "lost by {loser}, written by {writer}");
                is(Some(changed)).await;
                lose(lost);
                if loser == writer {
                    assert_eq!(insert(first).await, Ok(()));
                }
                assert_eq!(change(None).await, Ok(()));
                is(None).await;
            }
        });
    }

    /// The coordinator of a drop dies when it has recorded it and closed the index on its own node, where nobody can name it any more. It may
    /// be dropped again from the other, and each node does it to the end that knows of it. However often it is told to be closed, writers
    /// keep it until all have heard that.
    #[test]
    fn a_drop_that_was_told_in_part_comes_to_its_end() {
        with_two("dropped", async |workers, table| {
            let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
            let count = || tables.each_ref().map(|table| (table.indexes().len(), table.0.has_secondary()));
            for is_retried in [true, false] {
                let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else {
                    panic!("no index")
                };
                record_drop(&workers[0], &table, slot).await;
                workers[0].core.step_index_here(&table.0, slot, IndexStep::Close).expect("closed");
                assert!(workers[0].drop_index(&table, "by_age").await.is_err(), "there is none of this name here");
                assert!(tables[1].indexes()[0].ready, "it has not heard of it");
                if is_retried {
                    for _ in 0..2 {
                        workers[1].step_index(&tables[1], slot, IndexStep::Close).await.expect("closed");
                        assert_eq!(count(), [(1, true); 2], "writers keep it");
                    }
                    workers[1].drop_everywhere(&tables[1], slot).await.expect("dropped");
                } else {
                    system::reconcile(workers[1].node()).expect("definitions");
                    assert!(
                        !tables[1].indexes()[0].ready && tables[1].0.has_secondary(),
                        "others may still read theirs"
                    );
                    workers[1].finish_drops().await;
                }
                assert_eq!(count(), [(0, false); 2]);
            }
        });
    }

    /// The coordinator of a drop dies when all have closed the index, and starts again; rows have no copies, so nobody is expelled. The drop comes to
    /// its end on all nodes: a closed index goes on refusing keys that it has, and cannot be named.
    #[test]
    fn a_drop_whose_coordinator_starts_again_comes_to_its_end() {
        with_two("hello", async |workers, table| {
            let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
            let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else {
                panic!("no index")
            };
            record_drop(&workers[0], &table, slot).await;
            workers[0].step_index(&table, slot, IndexStep::Close).await.expect("closed");
            start_again(workers).await;
            let is_left = || tables.iter().any(|table| !table.indexes().is_empty() || table.0.has_secondary());
            until(&workers[0], "the index is only closed", || !is_left()).await;
        });
    }

    /// A node does not answer in time while an index is dropped, and is back a little later. It hears of the drop then, and nobody keeps the index.
    #[test]
    fn a_drop_that_a_node_does_not_hear_in_time_is_told_again() {
        with_two_served("told-again", async |workers, table, is_served| {
            let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
            let index = workers[0].create_index(&table, by_age()).await.expect("an index");
            let Index::Secondary(slot) = index else { panic!("{index}") };
            record_drop(&workers[0], &table, slot).await;
            is_served.set(false);
            let dropped = workers[0].drop_everywhere(&table, slot).await;
            assert_eq!(dropped, Err(TxnError::NodeUnavailable { node: NodeId(1), committed: true }));
            assert!(tables.iter().all(|table| table.0.has_secondary()), "node 1 may still read its index");
            is_served.set(true);
            let is_left = || tables.iter().any(|table| !table.indexes().is_empty() || table.0.has_secondary());
            until(&workers[0], "writers keep it", || !is_left()).await;
        });
    }

    /// The coordinator of an index dies when all have filled it, and starts again; rows have no copies. Nobody keeps the index, and what its earlier start
    /// has said comes too late.
    #[test]
    fn an_index_goes_when_its_coordinator_starts_again() {
        with_two("again", async |workers, table| {
            let other = workers[1].node().table_by_id(table.id()).expect("the table");
            let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
            workers[0].fill_everywhere(&table, slot, &definition).await.expect("filled");
            assert_eq!(other.0.is_filled(slot), Ok(true));
            start_again(workers).await;
            assert!(other.indexes().is_empty() && !other.0.has_secondary());
            let all = definition.encode(&vec![Recorded::Live; definition.indexes.len()]).expect("bytes");
            let since = system::start(workers[0].node());
            let late = Request::AddIndex { table: table.id(), slot, since, definition: &all };
            let refused = workers[0].core.call(NodeId(1), &late).await;
            assert!(matches!(refused, Err(TxnError::Recovering { .. })), "{refused:?}");
            assert!(other.indexes().is_empty() && !other.0.has_secondary());
        });
    }

    /// While a configuration without the coordinator of an index begins, what that has recorded may still be redone here. The index waits for that, also
    /// when a node that waits for a table to be over has this one look at what is recorded.
    #[test]
    fn an_index_waits_until_what_its_coordinator_has_recorded_is_redone() {
        let directory = std::env::temp_dir().join(format!("farhold-ddl-frozen-{}", std::process::id()));
        let executor = Executor::real(1);
        let fabric = Fabric::join_shm(&directory, NodeId(0)).expect("the fabric");
        let replication =
            ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
        let node = Node::open(fabric, config).expect("a node");
        let worker = node.worker(&executor.handle()).expect("a worker");
        let view = &node.replication.as_ref().expect("copies").view;
        let install = |next: &Configuration| {
            view.install(&Arc::new(next.clone()), &node.catalog);
            node.present.set(next.everybody());
        };
        let (me, other) = (NodeId(0), NodeId(1));
        let alone = Configuration::first(2, 2).without(&[other], me).promoted(other, me);
        let together = alone.with_joining(other, 7).joined(other);
        let without = together.without(&[other], me);
        executor.run(async {
            install(&alone);
            view.set_lease(Moment::exactly_now(worker.handle()), PATIENCE_NS);
            let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
            let people = TableDef::new("people", Schema::new(columns, vec![0]).expect("a schema"));
            let table = worker.create_table(people).await.expect("a table");
            let (slot, definition) = worker.record_index(&table, &by_age()).await.expect("recorded");
            install(&together);
            worker.core.add_index_here(&table.0, slot, &definition, (other, together.number)).expect("kept");
            assert!(view.freeze(&Arc::new(without.clone()), &node.catalog));
            system::reconcile(&node).expect("definitions");
            assert_eq!(table.indexes().len(), 1, "it may be recorded as complete");
            install(&without);
            system::reconcile(&node).expect("definitions");
            assert!(table.indexes().is_empty(), "it is not");
        });
        drop((worker, node, executor));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    /// A node that is joining is told to make a table, and asked about one that it does not have, before it has been given the table of tables.
    #[test]
    fn a_node_that_is_joining_goes_by_its_records() {
        let directory = std::env::temp_dir().join(format!("farhold-ddl-joining-{}", std::process::id()));
        let executor = Executor::real(1);
        let fabric = Fabric::join_shm(&directory, NodeId(0)).expect("the fabric");
        let replication =
            ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
        let node = Node::open(fabric, config).expect("a node");
        let view = &node.replication.as_ref().expect("copies").view;
        let install = |next: &Configuration| view.install(&Arc::new(next.clone()), &node.catalog);
        let (me, other) = (NodeId(0), NodeId(1));
        let joining = Configuration::first(2, 2).without(&[me], other).promoted(me, other).with_joining(me, 7);
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let definition = TableDef::new("people", schema).encode(&[]).expect("bytes");
        let worker = node.worker(&executor.handle()).expect("a worker");
        // It was told just before it came.
        system::make(&node, TableId(98), &definition).expect("there is room");
        install(&joining);
        assert_eq!(system::make(worker.node(), TableId(99), &definition), Ok(()));
        assert!(
            node.catalog.by_id(TableId(99)).is_none(),
            "its record is still to come, and may say something else by then"
        );
        system::reconcile(&node).expect("definitions");
        assert!(node.catalog.by_id(TableId(98)).is_some(), "its record may be still to come");
        assert_eq!(system::reconcile_all(&node), Ok(true));
        assert!(node.catalog.by_id(TableId(98)).is_none(), "its drop was not told here");
        system::add(&node, TableId(97), &definition).expect("there is room");
        worker.core.forget_everybody();
        assert!(node.catalog.even_dropped(TableId(97)).is_none() && node.catalog.by_id(system::ID).is_some());
        system::add(&node, TableId(97), &definition).expect("it has never been");
        drop((worker, node, executor));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    /// A node has come when a table was recorded as dropped, so that it never had it, and mirrors rows of it: of records, and of one who filled the
    /// mirror before he had heard of the drop. It forgets them when the others let the table go.
    #[test]
    fn a_table_that_is_let_go_is_forgotten_by_a_node_that_never_had_it() {
        let directory = std::env::temp_dir().join(format!("farhold-ddl-never-had-{}", std::process::id()));
        let executor = Executor::real(1);
        let together = Configuration::first(2, 2);
        let workers = [0, 1].map(|number| {
            let fabric = Fabric::join_shm(&directory, NodeId(number)).expect("the fabric");
            let replication = ReplicationConfig { replicas: 2, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
            let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
            let node = Node::open(fabric, config).expect("a node");
            let worker = node.worker(&executor.handle()).expect("a worker");
            let replication = node.replication.as_ref().expect("copies");
            replication.view.install(&Arc::new(together.clone()), &node.catalog);
            replication.view.set_lease(Moment::exactly_now(worker.handle()), PATIENCE_NS);
            node.present.set(together.everybody());
            replication.applier().begin_mirrors(&together, NodeId(number));
            worker
        });
        for worker in workers.clone() {
            drop(executor.handle().spawn(async move {
                loop {
                    worker.poll();
                    worker.handle().yield_now().await;
                }
            }));
        }
        executor.run(async {
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let definition = TableDef::new("people", schema).encode(&[]).expect("bytes");
            let (node, id) = (workers[0].node(), TableId(99));
            system::add(node, id, &definition).expect("there is room");
            let applier = || workers[1].node().replication.as_ref().expect("copies").applier();
            let (reference, version) = (farhold_store::ObjectRef::new(64, 1), farhold_fabric::Version::ONE);
            let version = farhold_fabric::Version(version);
            applier().mirror(NodeId(0)).expect("begun").take(reference, version, id, b"key!", b"value");
            assert!(applier().tables().contains(&id));
            node.catalog.retire(id);
            until(&workers[0], "its rows are kept", || applier().tables().is_empty()).await;
            assert!(!node.catalog.has_retired());
        });
        drop(executor);
        drop(workers);
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    /// Whoever makes a table because it is recorded is held up until that has been taken back by somebody who has found no table here. Nobody would take
    /// it out of use any more.
    #[test]
    fn a_table_whose_record_is_gone_is_not_made() {
        with_two("taken-back", async |workers, table| {
            let node = workers[1].node();
            let definition = TableDef { name: "gone".into(), ..table.definition() };
            let bytes = definition.encode(&[]).expect("bytes");
            system::make(node, TableId(99), &bytes).expect("there is room");
            assert!(node.table("gone").is_none() && node.table("people").is_some());
        });
    }

    /// Whoever fills an index ends before it is full. Its coordinator hears that, where it would ask for ever.
    #[test]
    fn an_index_whose_filler_ends_early_is_refused() {
        with_two("given-up", async |workers, table| {
            let mut value = Vec::new();
            table.schema().encode_value(&[Datum::Int(1), Datum::Int(30)], &mut value).expect("a value");
            let filled = workers[0].run(Retry::never(), async |txn| {
                for id in 1..=16_u32 {
                    txn.insert(&table, &(id ^ 0x8000_0000).to_be_bytes(), &value).await?;
                }
                Ok(())
            });
            filled.await.expect("rows");
            let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
            let coordinator = (NodeId(0), system::start(workers[0].node()));
            workers[0].core.add_index_here(&table.0, slot, &definition, coordinator).expect("kept");
            table.0.begin_filling(slot).expect("begun");
            let mut filling = Box::pin(fill(table.clone(), slot, workers[0].handle().clone()));
            assert!(futures::poll!(&mut filling).is_pending() && table.0.is_filled(slot) == Ok(false));
            drop(filling);
            assert!(matches!(table.0.is_filled(slot), Err(TxnError::Corrupt { .. })));
        });
    }

    /// An index whose coordinator has died goes, but for one that is recorded as complete: that one is opened.
    #[test]
    fn an_index_whose_coordinator_is_gone_is_what_is_recorded() {
        with_two("orphan", async |workers, table| {
            let state = || table.indexes().first().map(|index| index.ready);
            for recorded in [Recorded::Begun, Recorded::Live] {
                let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
                let all = vec![recorded; usize::from(slot) + 1];
                workers[0].fill_everywhere(&table, slot, &definition).await.expect("filled");
                assert_eq!(table.0.orphans(&|_| true), []);
                table.0.follow(&all, &[]);
                assert_eq!(state(), Some(recorded == Recorded::Live), "its coordinator goes on");
                let orphans = table.0.orphans(&|_| false);
                assert_eq!(orphans.is_empty(), recorded == Recorded::Live);
                table.0.follow(&all, &orphans);
                assert_eq!(state(), (recorded == Recorded::Live).then_some(true));
            }
        });
    }
}
