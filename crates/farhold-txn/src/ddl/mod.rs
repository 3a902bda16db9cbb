//! Creating and dropping tables and indexes.

mod columns;
pub(crate) mod here;
mod index;
pub(crate) mod records;
mod unfinished;

#[cfg(test)]
mod tests;

use crate::base::back_off::BackOff;
use crate::base::definition::{Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::base::wire::read_u64;
use crate::protocol::to_its_end::ToItsEnd;
use crate::protocol::txn::Txn;
use crate::protocol::worker::{Retry, Worker};
use crate::rpc::message::Request;
use farhold_fabric::NodeId;
use farhold_store::TableId;

use crate::node::system;

impl Worker {
    /// Creates a table on every node and records it. A caller that stops waiting may find it created, or not.
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
                // The node makes it when it is back, or when the repeated request reaches it.
                Err(TxnError::NodeUnavailable { node, .. }) => {
                    self.make_later(node, id, definition);
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

    /// Has a node make a table as soon as it answers.
    fn make_later(&self, node: NodeId, id: TableId, definition: &[u8]) {
        let (core, number, definition) = (self.core.clone(), self.configuration_number(), definition.to_vec());
        self.core.leave(async move {
            let request = Request::CreateTable { id, definition: &definition };
            let _ = match core.node.replication {
                Some(_) => core.insist_call(node, &request, number).await,
                None => core.tell_until_heard(vec![node], &request).await,
            };
        });
    }

    /// Drops a table that could not be made. It waits for what is in the way: a node, or room for the copy of its
    /// record that open snapshots need. A long wait goes on in the background; the client has its answer by then.
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
                Err(ref error) => error.is_committed() || self.node().is_expelled(),
            };
            if is_over || self.handle().now_ns() >= until_ns {
                return is_over;
            }
            again.rest(self.handle()).await;
        }
    }

    /// Drops a table on every node; transactions that use it fail with [`TxnError::SchemaChanged`]. A caller that stops
    /// waiting may find it dropped, or not.
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

    /// Deletes the record of a drop that all nodes know; otherwise the record is deleted once they do.
    async fn forget_dropped(&self, name: &str, have_heard: bool) {
        if !self.node().records_may_differ() {
            return;
        }
        if !have_heard || self.make_records_alike(Some(name)).await.is_err() {
            self.node().catalog.set_behind(true);
        }
    }

    /// Changes the system table, and does what follows from that. From the commit on both complete, even if the caller
    /// stops waiting or is told that the outcome is unknown. Otherwise clients would write rows into a table that is
    /// recorded as dropped but still there, and lose them.
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
            ToItsEnd::of(&self.core, Box::pin(rest), self.core.outcome_until_ns()).await
        };
        self.run_attempts(Retry::default(), attempt).await?
    }

    /// A caller may rely on the error that something exists already, or does not exist. So the error waits until no
    /// power cut can undo its reason.
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

    /// Deletes what [`Self::enter`] has written, or marks it as dropped: see [`records`].
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

    /// Tells all other nodes what is recorded by now. Goes on after an error. A node that is dead, or expelled
    /// meanwhile, is no error; a joining node reads what is recorded when it is in.
    ///
    /// # Errors
    /// The error that a node has answered; [`TxnError::NodeUnavailable`], with `committed`, for one that does not
    /// answer.
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
                // A drop that is not over: the record says nothing of the table with this number.
                [] => return txn.update(row, &value).map(|()| id),
                system::UNKNOWN => return Err(TxnError::Conflict),
                _ => {}
            }
        }
        txn.insert(&system, &key, &value).await?;
        Ok(id)
    }
}

/// How often a node that fills an index is asked whether it is done, and how often a drop is repeated to a node that
/// may not know it.
pub(super) const ASK_EVERY_NS: u64 = 200_000;

/// The first and the longest pause before the drop of a table that could not be made is tried again.
const TAKE_BACK_EVERY_NS: u64 = 1_000_000;
const TAKE_BACK_EVERY_NS_MAX: u64 = 128_000_000;
