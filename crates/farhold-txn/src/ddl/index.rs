//! Creating and dropping indexes: recorded, made on all nodes, filled, opened; and taken away again.

use crate::base::definition::{Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::table::{Index, Table};
use crate::base::wire::read_flag;
use crate::ddl::{ASK_EVERY_NS, records};
use crate::node::system;
use crate::protocol::core::Core;
use crate::protocol::to_its_end::ToItsEnd;
use crate::protocol::txn::Txn;
use crate::protocol::worker::{Retry, Worker};
use crate::rpc::message::{IndexStep, Request};
use farhold_fabric::NodeId;
use farhold_store::row::SecondaryIndex;
use farhold_store::table::{SECONDARIES_EVER_MAX, SECONDARIES_MAX};
use std::rc::Rc;

/// Is there room for one more index that may be read, and none of this name?
fn check_others(definition: &TableDef, recorded: &[Recorded], name: &str) -> Result<(), TxnError> {
    let all = definition.indexes.iter().zip(recorded);
    let live: Vec<_> = all.filter(|(_, recorded)| **recorded == Recorded::Live).map(|(index, _)| index).collect();
    if live.iter().any(|other| other.name == name) {
        return Err(TxnError::AlreadyExists { name: name.into() });
    }
    if live.len() >= SECONDARIES_MAX {
        return Err(TxnError::TooMany { what: "indexes of a table", limit: SECONDARIES_MAX });
    }
    Ok(())
}

impl Worker {
    /// Creates an index and fills it, on every node, while others go on reading and writing the table. Transactions that run
    /// when it begins, and write, are refused at their commit.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] when rows there contradict a unique index; [`TxnError::AlreadyExists`];
    /// [`TxnError::TooMany`] at a time, or over the table's life; [`TxnError::Row`] for a definition that does not fit;
    /// [`TxnError::Recovering`] if a node has come or gone meanwhile; an unavailable node. Of these errors, only
    /// [`TxnError::NodeUnavailable`] with `committed` leaves an index.
    pub async fn create_index(&self, table: &Table, definition: SecondaryIndex) -> Result<Index, TxnError> {
        // Rows that are not served yet are in no index: an index that they contradict would be complete before they
        // come.
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
        // What is recorded by then must hold on all nodes.
        let finished = async move { worker.finish_index(&table, slot, configuration, filled).await };
        ToItsEnd::of(&self.core, Box::pin(finished), self.core.outcome_until_ns())
            .await
            .map_err(|error| self.core.retryable(error))
    }

    /// Records that an index is complete, and opens it; an index that could not be filled is removed.
    pub(super) async fn finish_index(
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
                // A node that is down will not find it in the definition. One that is there and could not be told has it
                // recorded as dropped.
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
            // Some node has lost it since it was filled there, or it was dropped.
            Err(error) => {
                self.take_away(table, slot).await?;
                Err(error)
            }
        }
    }

    /// Drops the secondary index of this name. Transactions that have read it fail at their commit.
    ///
    /// # Errors
    /// [`TxnError::NotFound`], also for an index that is still being created; an unavailable node. Of these errors,
    /// only after [`TxnError::NodeUnavailable`] with `committed` has it been dropped, and writers may keep it until
    /// that node is back.
    pub async fn drop_index(&self, table: &Table, name: &str) -> Result<(), TxnError> {
        let found = table.indexes().into_iter().find(|index| index.ready && index.definition.name == name);
        let Some(Index::Secondary(slot)) = found.map(|index| index.index) else {
            return Err(TxnError::NotFound { what: format!("index \"{name}\"").into() });
        };
        self.take_away(table, slot).await
    }

    /// Removes an index that may be read.
    pub(super) async fn take_away(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        let of = table.clone();
        let take = move |worker: Self, ()| async move { worker.drop_everywhere(&of, slot).await };
        self.record(async |txn| self.enter_drop(txn, table, slot).await, take).await
    }

    /// What follows a recorded drop. First all nodes stop reading the index, and reads of it no longer validate; only
    /// then do writers stop maintaining it. In a single step, a writer of one node would change rows under a reader on
    /// another. The writers of this node stop last, so this node still knows of a drop that others may have missed, and
    /// one of its workers completes it.
    pub(super) async fn drop_everywhere(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
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

    /// Brings an index into its intended state on every living node.
    pub(super) async fn step_index(&self, table: &Table, slot: u16, step: IndexStep) -> Result<(), TxnError> {
        let here = self.core.step_index_here(&table.0, slot, step);
        here.and(self.tell_others(Request::StepIndex { table: table.id(), slot, step }).await)
    }

    /// The number of the configuration that this node has installed; 0 without copies.
    pub(super) fn configuration_number(&self) -> u64 {
        self.node().configuration().map_or(0, |installed| installed.number)
    }

    /// Enters the index into the table's recorded definition, not live yet. This gives it its slot.
    pub(super) async fn record_index(
        &self,
        table: &Table,
        index: &SecondaryIndex,
    ) -> Result<(u16, TableDef), TxnError> {
        let nodes = self.node().config().nodes;
        let change = |definition: &mut TableDef, recorded: &mut Vec<Recorded>| {
            definition.check_index(index, nodes)?;
            check_others(definition, recorded, &index.name)?;
            definition.indexes.push(index.clone());
            recorded.push(Recorded::Begun);
            if definition.indexes.len() > SECONDARIES_EVER_MAX {
                let what = "indexes of a table, dropped ones included";
                return Err(TxnError::TooMany { what, limit: SECONDARIES_EVER_MAX });
            }
            Ok(())
        };
        let entered = self.run(Retry::default(), async |txn| self.change_definition(txn, table, change).await);
        let entered = self.told(entered.await).await;
        if let Err(TxnError::AlreadyExists { .. }) = entered {
            // The coordinator that recorded it may have died before it told this node.
            let _ = system::reconcile(self.node());
        }
        let definition = entered?;
        Ok(((definition.indexes.len() - 1) as u16, definition))
    }

    /// Records that every node has an index complete. Not in a later configuration: a node that has come since has only what was recorded.
    pub(super) async fn record_live(&self, table: &Table, slot: u16, configuration: u64) -> Result<(), TxnError> {
        let place = usize::from(slot);
        let change = |definition: &mut TableDef, recorded: &mut Vec<Recorded>| {
            // A change of the configuration from here on refuses the commit.
            if recorded.get(place) != Some(&Recorded::Begun) || self.configuration_number() != configuration {
                return Err(TxnError::SchemaChanged);
            }
            // Others may have become complete while it was filled.
            check_others(definition, recorded, &definition.indexes[place].name)?;
            recorded[place] = Recorded::Live;
            Ok(())
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

    pub(super) async fn enter_drop(&self, txn: &mut Txn, table: &Table, slot: u16) -> Result<(), TxnError> {
        let change = |definition: &mut TableDef, recorded: &mut Vec<Recorded>| {
            records::drop_index(definition, recorded, usize::from(slot))
        };
        self.change_definition(txn, table, change).await.map(drop)
    }

    /// Changes a table's definition as it is recorded.
    pub(super) async fn change_definition(
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

    /// Adds the index on every node, then has every node make and fill its own. A node may make an entry only when all
    /// writers on all nodes know of the index: a writer elsewhere changes rows here without asking, and would leave the
    /// entry behind.
    pub(super) async fn fill_everywhere(
        &self,
        table: &Table,
        slot: u16,
        definition: &TableDef,
    ) -> Result<(), TxnError> {
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
                // After such a change rows of this node, or of another, may stay locked, and the index would be
                // refused.
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
    /// It cannot be complete there, or is gone; an unavailable node.
    pub(super) async fn is_filled(&self, node: NodeId, table: &Table, slot: u16) -> Result<bool, TxnError> {
        if node == self.core.me {
            return table.0.is_filled(slot);
        }
        self.core.ask(node, &Request::IsFilled { table: table.id(), slot }, read_flag).await
    }

    /// That every node has filled an index.
    pub(super) async fn check_filled(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        for node in self.node().everybody() {
            if !self.is_filled(node, table, slot).await? {
                return Err(TxnError::Recovering { node });
            }
        }
        Ok(())
    }
}

/// An index on its way. If it is dropped before it is over, because its caller has stopped waiting, it removes the
/// index everywhere.
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
