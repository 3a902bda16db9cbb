//! A node joins the cluster, for the first time or again, with an empty region.

use crate::base::definition::Placement;
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::cluster::configuration::Configuration;
use crate::cluster::register::Register;
use crate::protocol::txn::SharedTable;
use crate::protocol::txn::spec::ScanSpec;
use crate::protocol::worker::{Retry, Worker};
use crate::rpc::recovery::ROW_BYTES;
use farhold_fabric::NodeId;
use std::ops::Bound;

/// Rows in one transaction; bytes of them: [`Node::moved_bytes_max`](crate::Node::moved_bytes_max).
const ROWS_PER_TRANSACTION: usize = 32;

/// How long before this node looks again whether all records of tables are unlocked.
const AGAIN_NS: u64 = 3_000;

/// Attempts of a transaction: some milliseconds. Then this node reads the register: the others may have gone on without
/// this node, or without that member, and neither is notified.
const RETRY: Retry = Retry { attempts_max: 24, backoff_ns: 1_000, backoff_ns_max: 1_000_000 };

impl Worker {
    /// Gets this node's copies of the replicated tables, while it is joining, from a member. Writers elsewhere know of it, and their
    /// transactions conflict with these as with any others.
    ///
    /// # Errors
    /// The others go on without that member; there is no room for the rows.
    pub(crate) async fn copy_replicated_tables(&self, from: NodeId) -> Result<(), TxnError> {
        let node = self.node();
        let system = node.table_by_id(crate::node::system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        self.copy_table(&system, from).await?;
        self.open_recorded().await?;
        for table in node.tables() {
            if table.placement() == Placement::Replicated {
                self.copy_table(&table, from).await?;
            }
        }
        if let Some(replication) = &node.replication {
            replication.note(|progress| (progress.joining, progress.refused) = (None, None));
        }
        Ok(())
    }

    /// Opens every table that is recorded, before rows are copied. A table whose record is just being changed would be
    /// opened later, and would lack the rows from before this node came.
    async fn open_recorded(&self) -> Result<(), TxnError> {
        let (node, handle) = (self.node(), self.handle());
        let until_ns = handle.now_ns() + node.config.replication.lease_ns;
        while !crate::node::system::reconcile_all(node)? {
            if handle.now_ns() > until_ns {
                // The node that changes it may have died: only a look at the register can tell.
                return Err(TxnError::Recovering { node: node.id() });
            }
            handle.sleep_ns(AGAIN_NS).await;
        }
        Ok(())
    }

    async fn copy_table(&self, table: &Table, from: NodeId) -> Result<(), TxnError> {
        let bytes_max = self.node().moved_bytes_max();
        let (mut after, mut rows_max) = (None::<Vec<u8>>, ROWS_PER_TRANSACTION);
        loop {
            let copied = self.run(RETRY, async |txn| {
                // The next start of that node has no rows either, until it is a member.
                if !self.has_member(from) {
                    return Err(TxnError::NodeUnavailable { node: from, committed: false });
                }
                txn.copying = true;
                let lo = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let spec = ScanSpec { lo, ..ScanSpec::all() }.limit(rows_max).on(from);
                let rows = txn.scan(table, spec).await?;
                let shared = txn.enter(table)?;
                let (mut last, mut count, mut bytes) = (None, 0, 0);
                for row in &rows {
                    let (key, value) = (txn.key(*row).to_vec(), txn.value(*row).to_vec());
                    bytes += key.len() + value.len() + ROW_BYTES;
                    if bytes > bytes_max && count > 0 {
                        break;
                    }
                    // A writer that knows of this node may have inserted the row already.
                    super::brought(txn.insert_near(SharedTable(shared.0), &key, &value))?;
                    (last, count) = (Some(key), count + 1);
                }
                let are_all = count == rows.len() && rows.len() < rows_max;
                Ok((last.filter(|_| !are_all), count))
            });
            let (last, count) = copied.await?;
            if let Some(replication) = &self.node().replication {
                replication.note(|progress| progress.joining.get_or_insert_default().rows += count as u64);
            }
            self.handle().yield_now().await;
            // Adapts to the rows that fit a transaction, so that rows beyond them are not read again and again.
            rows_max = if count < rows_max { count.max(1) } else { (2 * rows_max).min(ROWS_PER_TRANSACTION) };
            match last {
                Some(last) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    /// Is it a member of the configuration that this node has installed?
    fn has_member(&self, node: NodeId) -> bool {
        self.node().configuration().is_some_and(|installed| installed.members.contains(&node))
    }

    /// Leads all members into a configuration that is in the register, and says so there.
    pub(crate) async fn lead_and_settle(&self, register: &dyn Register, next: &Configuration) -> Result<(), TxnError> {
        self.lead(next).await?;
        // If this is lost, the watch finds it missing and repeats it.
        let _ = register.settle(next.number).await;
        Ok(())
    }

    /// Writes `next` into the register in place of the configuration before it, and leads all members into it.
    ///
    /// # Errors
    /// Another node came first ([`TxnError::Conflict`]); a member or the register does not answer.
    pub(crate) async fn change_to(&self, register: &dyn Register, next: &Configuration) -> Result<(), TxnError> {
        let written = register.compare_and_set(next.number - 1, next).await;
        match written {
            Ok(true) => self.lead_and_settle(register, next).await,
            _ => Err(TxnError::Conflict),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::definition::TableDef;
    use crate::node::{Node, NodeConfig, system};
    use crate::protocol::worker::Retry;
    use farhold_fabric::{Executor, Fabric, NodeId, Version};
    use farhold_store::row::{Column, ColumnType, Schema};
    use farhold_store::{ObjectRef, Owner, TableId};
    use std::task::{Context, Poll, Waker};

    /// An index is being created while a node joins, and its coordinator is changing the table's record. The table is
    /// still opened before rows are copied.
    #[test]
    fn a_table_whose_record_is_being_changed_is_opened_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
        let node = Node::open(fabric, NodeConfig { region_bytes: 2 << 20, ..NodeConfig::default() }).expect("a node");
        let executor = Executor::virtual_time(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        let id = TableId(system::FIRST_ID);
        executor.run(async {
            let system = node.table_by_id(system::ID).expect("the system table");
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let definition = TableDef::new("people", schema).encode(&[]).expect("a definition");
            let (key, value) = system::encode_row(system.schema(), "people", id, &definition).expect("a row");
            let recorded = worker.run(Retry::never(), async |txn| txn.insert(&system, &key, &value).await.map(|_| ()));
            recorded.await.expect("recorded");
            let record = ObjectRef::from_bits(system.0.store.primary().get(&key).value.expect("recorded"));
            let row = node.store.object(record);
            row.lock(record.incarnation(), Owner::new(1, NodeId(1), 0, 1)).expect("free");
            let version = row.version().next(1);
            row.restamp(version.with(Version::ODD));
            let mut opening = Box::pin(worker.open_recorded());
            assert_eq!(opening.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
            assert!(node.table_by_id(id).is_none(), "what stands there is not known yet");
            row.restamp(version.next(1));
            row.unlock();
            assert_eq!(opening.await, Ok(()));
            assert!(node.table_by_id(id).is_some());
        });
        drop((worker, executor, node));
    }
}
