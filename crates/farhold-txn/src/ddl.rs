//! Creating and dropping tables and indexes.

use crate::definition::TableDef;
use crate::home::message::Request;
use crate::home::wire::{read_flag, read_u64};
use crate::system;
use crate::table::{Table, TableShared};
use crate::worker::Core;
use crate::{Index, Retry, TableId, TxnError, Worker};
use farhold_fabric::{Executor, Handle};
use farhold_store::StoreError;
use farhold_store::row::SecondaryIndex;
use farhold_store::table::{FillRoom, SECONDARIES_EVER_MAX, SECONDARIES_MAX};

impl Worker {
    /// Creates a table on every node and records it.
    ///
    /// # Errors
    /// [`TxnError::AlreadyExists`]; [`TxnError::Row`] for a definition that makes no sense; an unavailable node.
    pub async fn create_table(&self, definition: TableDef) -> Result<Table, TxnError> {
        let node = self.node();
        definition.check(node.config().nodes)?;
        if definition.name == system::NAME {
            return Err(TxnError::AlreadyExists { name: definition.name.into() });
        }
        let live = vec![true; definition.indexes.len()];
        let bytes = definition.encode(&live)?;
        let id = self.record(&definition.name, &bytes).await?;
        if let Err(error) = system::make(node, id, &bytes) {
            // There is no room for it, say: the name is free again.
            let _ = self.take_record(&definition.name, id).await;
            return Err(error);
        }
        // Gone, if another session has dropped it meanwhile.
        let table = node.table_by_id(id).ok_or(TxnError::SchemaChanged)?;
        match self.on_others(&Request::CreateTable { id, definition: &bytes }).await {
            Ok(()) => Ok(table),
            // It has it when it is back.
            Err(error @ TxnError::NodeUnavailable { .. }) => Err(error),
            Err(error) => {
                let _ = self.drop_table(&table).await;
                Err(error)
            }
        }
    }

    /// Drops a table on every node; transactions that use it fail with [`TxnError::SchemaChanged`].
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node.
    pub async fn drop_table(&self, table: &Table) -> Result<(), TxnError> {
        self.take_record(table.name(), table.id()).await?;
        self.node().catalog.retire(table.id());
        self.core.begin_grace();
        self.on_others(&Request::DropTable { id: table.id() }).await
    }

    /// Deletes what [`Self::record`] has written.
    async fn take_record(&self, name: &str, id: TableId) -> Result<(), TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let (key, _) = system::encode_row(system.schema(), name, id, &[])?;
        let missing = || TxnError::NotFound { what: format!("table \"{name}\"").into() };
        let removed = self.run(Retry::default(), async |txn| {
            let row = txn.get(&system, &key).await?.ok_or_else(missing)?;
            if system::decode_row(system.schema(), txn.key(row), txn.value(row))?.1 != id {
                return Err(missing());
            }
            txn.delete(row)
        });
        removed.await
    }

    /// Creates an index and fills it, on every node, while others go on reading and writing the table. Transactions that run
    /// when it begins, and write, are refused at their commit.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] when rows there contradict a unique index; [`TxnError::AlreadyExists`];
    /// [`TxnError::TooMany`] at a time, or over the table's life; [`TxnError::Row`] for a definition that does not fit; an unavailable
    /// node.
    pub async fn create_index(&self, table: &Table, definition: SecondaryIndex) -> Result<Index, TxnError> {
        let (slot, recorded) = self.record_index(table, &definition).await?;
        let mut unfinished = Unfinished { core: &self.core, table, slot, is_over: false };
        let filled = match self.fill_everywhere(table, slot, &recorded).await {
            Ok(()) => self.set_live(table, slot, true).await,
            Err(error) => Err(error),
        };
        match filled {
            // Recorded, but for one node, which cannot be reached.
            Ok(()) | Err(TxnError::NodeUnavailable { committed: true, .. }) => {}
            Err(error) => {
                // A node that is down will not find it in the definition.
                let _ = self.step_down(table, slot).await;
                unfinished.is_over = true;
                return Err(error);
            }
        }
        unfinished.is_over = true;
        let opened = self.core.finish_index_here(&table.0, slot, true);
        let told = self.on_all_others(&Request::FinishIndex { table: table.id(), slot, ready: true }).await;
        match opened.and(told) {
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
    /// [`TxnError::NotFound`], also for an index that is still being created; an unavailable node.
    pub async fn drop_index(&self, table: &Table, name: &str) -> Result<(), TxnError> {
        let found = table.indexes().into_iter().find(|index| index.ready && index.definition.name == name);
        let Some(Index::Secondary(slot)) = found.map(|index| index.index) else {
            return Err(TxnError::NotFound { what: format!("index \"{name}\"").into() });
        };
        self.take_away(table, slot).await
    }

    /// Takes an index away that may be read: first nobody anywhere reads it any more, and what was read in it counts no more;
    /// only then do writers let it be. In one step a writer of one node would change rows under a reader of another's.
    async fn take_away(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        self.set_live(table, slot, false).await?;
        self.step_down(table, slot).await?;
        self.step_down(table, slot).await
    }

    /// Takes an index a step out of use on every living node.
    async fn step_down(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        self.core.step_down_here(&table.0, slot);
        self.on_all_others(&Request::FinishIndex { table: table.id(), slot, ready: false }).await
    }

    /// Enters the index into the table's recorded definition, not live yet: which gives it its slot.
    async fn record_index(&self, table: &Table, index: &SecondaryIndex) -> Result<(u16, TableDef), TxnError> {
        let nodes = self.node().config().nodes;
        let entered = self.change_definition(table, async |definition, live| {
            definition.check_index(index, nodes)?;
            let taken = definition.indexes.iter().zip(&*live).any(|(other, live)| *live && other.name == index.name);
            if taken {
                return Err(TxnError::AlreadyExists { name: index.name.as_str().into() });
            }
            let count = live.iter().filter(|live| **live).count();
            definition.indexes.push(index.clone());
            live.push(false);
            if count >= SECONDARIES_MAX {
                return Err(TxnError::TooMany { what: "indexes of a table", limit: SECONDARIES_MAX });
            }
            if definition.indexes.len() > SECONDARIES_EVER_MAX {
                let what = "indexes of a table, dropped ones included";
                return Err(TxnError::TooMany { what, limit: SECONDARIES_EVER_MAX });
            }
            Ok(())
        });
        let definition = entered.await?;
        Ok(((definition.indexes.len() - 1) as u16, definition))
    }

    async fn set_live(&self, table: &Table, slot: u16, is_live: bool) -> Result<(), TxnError> {
        let set = self.change_definition(table, async |definition, live| {
            let slot = usize::from(slot);
            *live.get_mut(slot).ok_or(TxnError::SchemaChanged)? = is_live;
            if !is_live {
                // The number alone is kept: the definition is one row, with all indexes that there ever were.
                let columns = definition.schema.key()[..1].to_vec();
                definition.indexes[slot] = SecondaryIndex { name: DROPPED.into(), columns, unique: false };
            }
            Ok(())
        });
        set.await.map(|_| ())
    }

    /// Changes a table's definition as it is recorded.
    async fn change_definition(
        &self,
        table: &Table,
        mut change: impl AsyncFnMut(&mut TableDef, &mut Vec<bool>) -> Result<(), TxnError>,
    ) -> Result<TableDef, TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let (key, _) = system::encode_row(system.schema(), table.name(), table.id(), &[])?;
        let changed = self.run(Retry::default(), async |txn| {
            let row = txn.get(&system, &key).await?.ok_or(TxnError::SchemaChanged)?;
            let (name, id, bytes) = system::decode_row(system.schema(), txn.key(row), txn.value(row))?;
            if id != table.id() {
                return Err(TxnError::SchemaChanged);
            }
            let (mut definition, mut live) = TableDef::decode(&bytes)?;
            change(&mut definition, &mut live).await?;
            let (_, value) = system::encode_row(system.schema(), &name, id, &definition.encode(&live)?)?;
            txn.update(row, &value)?;
            Ok(definition)
        });
        changed.await
    }

    /// Adds the index on every node, then has every node make and fill its own. Only when all writers everywhere know of it
    /// may anybody make an entry: a writer elsewhere changes rows here without asking, and would leave the entry behind.
    async fn fill_everywhere(&self, table: &Table, slot: u16, definition: &TableDef) -> Result<(), TxnError> {
        let id = table.id();
        let bytes = definition.encode(&vec![true; definition.indexes.len()])?;
        self.core.add_index_here(&table.0, slot, definition)?;
        self.on_others(&Request::AddIndex { table: id, slot, definition: &bytes }).await?;
        self.core.fill_index_here(table, slot)?;
        self.on_others(&Request::FillIndex { table: id, slot }).await?;
        for node in self.node().everybody() {
            loop {
                let filled = if node == self.core.me {
                    table.0.is_filled(slot)?
                } else {
                    self.core.ask(node, &Request::IsFilled { table: id, slot }, read_flag).await?
                };
                if filled {
                    break;
                }
                self.core.serve_one();
                self.core.handle.sleep_ns(ASK_EVERY_NS).await;
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

    /// As [`Self::on_others`], but goes on after an error; a node that is dead is none.
    async fn on_all_others(&self, request: &Request<'_>) -> Result<(), TxnError> {
        let mut outcome = Ok(());
        for node in self.node().others() {
            outcome = match self.core.call(node, request).await {
                Err(TxnError::NodeUnavailable { .. }) if !self.node().fabric.node_is_live(node) => outcome,
                Err(error) => outcome.and(Err(error)),
                Ok(_) => outcome,
            };
        }
        outcome
    }

    /// Enters a table into the system table, which gives it its number.
    async fn record(&self, name: &str, definition: &[u8]) -> Result<TableId, TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let entered = self.run(Retry::default(), async |txn| {
            let schema = system.schema();
            let (counter, nothing) = system::encode_row(schema, "", TableId(system::FIRST_ID), &[])?;
            let id = if let Some(row) = txn.get(&system, &counter).await? {
                let id = TableId(system::decode_row(schema, txn.key(row), txn.value(row))?.1.0 + 1);
                let (_, value) = system::encode_row(schema, "", id, &[])?;
                txn.update(row, &value)?;
                id
            } else {
                txn.insert(&system, &counter, &nothing).await?;
                TableId(system::FIRST_ID)
            };
            let (key, value) = system::encode_row(schema, name, id, definition)?;
            txn.insert(&system, &key, &value).await?;
            Ok(id)
        });
        entered.await.map_err(|error| match error {
            TxnError::DuplicateKey { .. } => TxnError::AlreadyExists { name: name.into() },
            other => other,
        })
    }
}

/// What is recorded as the name of an index that was dropped. A live one may be called so, too.
const DROPPED: &str = "-";
/// How often a node that fills an index is asked whether it is done.
const ASK_EVERY_NS: u64 = 200_000;
/// Slots between two turns of letting others run.
const SLOTS_PER_TURN: usize = 256;
/// How long a filler waits for one row that stays locked: then its owner is dead.
const LOCKED_NS_MAX: u64 = 10_000_000_000;

impl Core {
    /// Lets this node's writers know of an index. Transactions that have begun before will be refused at their commit, or hold
    /// the locks of what they write.
    pub fn add_index_here(&self, table: &TableShared, slot: u16, definition: &TableDef) -> Result<(), TxnError> {
        table.add_index(slot, definition)?;
        self.node.catalog.indexes_changed();
        self.node.catalog.changed();
        Ok(())
    }

    /// Makes it and begins to fill it: on a thread of its own, or in virtual time as a task.
    pub fn fill_index_here(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        table.0.begin_filling(slot)?;
        let table = table.clone();
        if self.handle.is_virtual() {
            drop(self.handle.spawn(fill(table, slot, self.handle.clone())));
            return Ok(());
        }
        let run = move || {
            let executor = Executor::real(u64::from(slot));
            executor.run(fill(table, slot, executor.handle()));
        };
        let spawned = std::thread::Builder::new().name("farhold-index".into()).spawn(run);
        spawned.map(|_| ()).map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })
    }

    /// Makes it readable, or takes it a step out of use.
    pub fn finish_index_here(&self, table: &TableShared, slot: u16, ready: bool) -> Result<(), TxnError> {
        if ready {
            table.open_index(slot)?;
            self.node.catalog.changed();
        } else {
            self.step_down_here(table, slot);
        }
        Ok(())
    }

    /// Takes it a step out of use.
    pub fn step_down_here(&self, table: &TableShared, slot: u16) {
        table.step_down(slot);
        self.node.catalog.changed();
    }
}

/// An index on its way. Dropped before it is over, because nobody waits for it any more, it takes the index away everywhere.
struct Unfinished<'w> {
    core: &'w Core,
    table: &'w Table,
    slot: u16,
    is_over: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let core = self.core;
        core.step_down_here(&self.table.0, self.slot);
        for node in core.node.others() {
            core.tell_now(node, &Request::FinishIndex { table: self.table.id(), slot: self.slot, ready: false });
        }
    }
}

/// Brings all rows of this node into an index.
async fn fill(table: Table, slot: u16, handle: Handle) {
    let shared = &table.0;
    let outcome = fill_slots(shared, slot, &handle).await;
    shared.end_filling(slot, outcome);
}

async fn fill_slots(shared: &TableShared, slot: u16, handle: &Handle) -> Result<(), TxnError> {
    let index = Index::Secondary(slot);
    let refused = |error| match error {
        StoreError::Duplicate { .. } => TxnError::DuplicateKey { table: shared.store.id(), index },
        other => TxnError::store(other, shared.store.store().node()),
    };
    let mut room = FillRoom::default();
    let runs = shared.store.pages();
    for (count, offset) in runs.iter().flat_map(farhold_store::Run::slots).enumerate() {
        if count.is_multiple_of(SLOTS_PER_TURN) {
            handle.yield_now().await;
        }
        let until_ns = handle.now_ns() + LOCKED_NS_MAX;
        while !shared.store.fill_slot(index.number(), offset, &mut room).map_err(refused)? {
            if handle.now_ns() > until_ns {
                return Err(TxnError::Conflict);
            }
            handle.yield_now().await;
        }
    }
    Ok(())
}
