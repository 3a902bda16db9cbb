//! The tables of a node.

use crate::base::error::TxnError;
use crate::base::slots::Slots;
use crate::base::table::{Table, TableShared};
use farhold_fabric::NodeId;
use farhold_store::TableId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Finds tables by name and number. Transactions do not come here: they are given handles.
#[derive(Default)]
pub(crate) struct Catalog {
    tables: RwLock<Tables>,
    version: AtomicU64,
    indexes_version: AtomicU64,
    any_retired: AtomicBool,
    making: Mutex<()>,
    /// Indexes of this node may be recorded as dropped and not be gone.
    behind: AtomicBool,
    /// A worker drops them to the end.
    finishing: AtomicBool,
}

#[derive(Default)]
struct Tables {
    by_name: HashMap<String, TableId>,
    by_id: BTreeMap<TableId, Table>,
    /// Dropped, and kept while a transaction may still use them.
    retired: Vec<Retired>,
    /// When nodes that have said nothing of their transactions are to be asked.
    ask_ns: u64,
}

/// A dropped table on its way out. Its pages are given back when no transaction that has begun before the drop runs on any
/// node (they may hold locks in it, or be about to), and no snapshot is open.
struct Retired {
    table: Arc<TableShared>,
    /// Of this node's transactions.
    grace: Grace,
    /// Nodes whose transactions from before the drop have ended.
    quiet: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Grace {
    /// Another table's is being waited for.
    Waiting,
    /// Until all transactions of this phase are over.
    Phase(u64),
    Over,
}

impl Catalog {
    pub fn add(&self, table: Table) -> Result<(), TxnError> {
        let mut tables = self.write();
        if tables.by_name.contains_key(table.name()) {
            return Err(TxnError::AlreadyExists { name: table.name().into() });
        }
        tables.by_name.insert(table.name().to_owned(), table.id());
        tables.by_id.insert(table.id(), table);
        drop(tables);
        self.changed();
        Ok(())
    }

    /// Held by a caller that makes a table that may be there.
    pub fn turn_of_makers(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a table out of the catalog; it stays alive until [`Self::let_go`].
    pub fn retire(&self, id: TableId) -> Option<Table> {
        let mut tables = self.write();
        let table = tables.by_id.remove(&id)?;
        tables.by_name.remove(table.name());
        table.0.mark_dropped();
        tables.retired.push(Retired { table: table.0.clone(), grace: Grace::Waiting, quiet: BTreeSet::new() });
        self.any_retired.store(true, Release);
        drop(tables);
        self.changed();
        Some(table)
    }

    /// Forgets all tables but one, as if they had never been. They must not be in use.
    pub fn forget_all_but(&self, id: TableId) {
        let mut tables = self.write();
        let kept = tables.by_id.remove(&id);
        let forgotten = std::mem::take(&mut tables.by_id);
        tables.by_name.retain(|_, named| *named == id);
        tables.by_id.extend(kept.map(|table| (id, table)));
        drop(tables);
        for table in forgotten.values() {
            table.0.mark_dropped();
        }
        self.changed();
    }

    /// Is some dropped table still kept?
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.any_retired.load(Relaxed)
    }

    /// Checks how far the dropped tables have come. Returns those whose transactions on this node have ended since the
    /// last look, so that the other nodes can be told.
    pub fn look_at_retired(&self, slots: &Slots) -> Vec<TableId> {
        let mut over = Vec::new();
        let mut tables = self.write();
        for retired in &mut tables.retired {
            if let Grace::Phase(phase) = retired.grace
                && slots.is_over(phase)
            {
                retired.grace = Grace::Over;
                over.push(retired.table.store.id());
            }
        }
        // One phase at a time: to turn it again would make this one's transactions look like the next one's.
        let in_phase = tables.retired.iter().any(|retired| matches!(retired.grace, Grace::Phase(_)));
        if !in_phase && tables.retired.iter().any(|retired| retired.grace == Grace::Waiting) {
            let phase = Grace::Phase(slots.turn_phase());
            tables.retired.iter_mut().filter(|it| it.grace == Grace::Waiting).for_each(|it| it.grace = phase);
        }
        over
    }

    /// The tables and nodes to ask about now. A node's own report may have been lost, or may have come before this node heard of the
    /// drop.
    pub fn to_ask(&self, now_ns: u64, every_ns: u64, others: &[NodeId]) -> Vec<(TableId, NodeId)> {
        let mut tables = self.write();
        if now_ns < tables.ask_ns {
            return Vec::new();
        }
        tables.ask_ns = now_ns.saturating_add(every_ns);
        let mut unheard = Vec::new();
        for retired in &tables.retired {
            let id = retired.table.store.id();
            unheard.extend(others.iter().filter(|node| !retired.quiet.contains(*node)).map(|node| (id, *node)));
        }
        unheard
    }

    /// Have all transactions of this node ended that may use this table? The table has been dropped, here or before this
    /// node began.
    pub fn is_quiet(&self, id: TableId) -> bool {
        let tables = self.read();
        let mut retired = tables.retired.iter().filter(|retired| retired.table.store.id() == id);
        !tables.by_id.contains_key(&id) && retired.all(|retired| retired.grace == Grace::Over)
    }

    /// Notes that another node's transactions from before the drop have ended.
    pub fn note_quiet(&self, id: TableId, node: NodeId) {
        if let Some(retired) = self.write().retired.iter_mut().find(|retired| retired.table.store.id() == id) {
            retired.quiet.insert(node);
        }
    }

    /// Releases the dropped tables that are no longer in use; `is_gone` says whether a node has no transactions left,
    /// `is_unread` whether no snapshot is open. `is_unread` is called once the tables are known to be out of use. By
    /// then no node lists their pages for a scan any more, so a scan that still reads them has its snapshot open.
    /// Returns those tables.
    pub fn let_go(
        &self,
        me: NodeId,
        nodes: u8,
        is_gone: impl Fn(NodeId) -> bool,
        is_unread: impl FnOnce() -> bool,
    ) -> Vec<TableId> {
        let mut tables = self.write();
        let is_over = |retired: &Retired| {
            let mut others = (0..nodes).map(NodeId).filter(|node| *node != me);
            retired.grace == Grace::Over && others.all(|node| retired.quiet.contains(&node) || is_gone(node))
        };
        let (mut gone, kept): (Vec<_>, Vec<_>) = tables.retired.drain(..).partition(is_over);
        tables.retired = kept;
        if !gone.is_empty() && !is_unread() {
            tables.retired.append(&mut gone);
        }
        self.any_retired.store(!tables.retired.is_empty(), Release);
        drop(tables);
        crate::base::planted::may_stop();
        // Rows and indexes go with the last handle, without the lock.
        gone.into_iter().map(|retired| retired.table.store.id()).collect()
    }

    pub fn by_name(&self, name: &str) -> Option<Table> {
        let tables = self.read();
        tables.by_id.get(tables.by_name.get(name)?).cloned()
    }

    pub fn by_id(&self, id: TableId) -> Option<Table> {
        self.read().by_id.get(&id).cloned()
    }

    /// As [`Self::by_id`], of dropped tables as well, while they are kept.
    pub fn even_dropped(&self, id: TableId) -> Option<Arc<TableShared>> {
        let tables = self.read();
        let live = tables.by_id.get(&id).map(|table| &table.0);
        live.or_else(|| tables.retired.iter().map(|it| &it.table).find(|it| it.store.id() == id)).cloned()
    }

    pub fn all(&self) -> Vec<Table> {
        self.read().by_id.values().cloned().collect()
    }

    /// As [`Self::all`], and the dropped ones that are kept.
    pub fn all_even_dropped(&self) -> Vec<Arc<TableShared>> {
        let tables = self.read();
        let live = tables.by_id.values().map(|table| &table.0);
        live.chain(tables.retired.iter().map(|retired| &retired.table)).cloned().collect()
    }

    /// Grows with every index, and every change of a table's attributes, that writers must know of: a transaction that began before must
    /// not commit after.
    #[inline]
    pub fn indexes_version(&self) -> u64 {
        self.indexes_version.load(SeqCst)
    }

    /// Makes every transaction that began before, and writes, fail at its commit.
    pub fn indexes_changed(&self) {
        self.indexes_version.fetch_add(1, SeqCst);
    }

    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Something about a table is another than before.
    pub fn changed(&self) {
        self.version.fetch_add(1, Release);
    }

    /// Notes, for the worker that looks next, whether recorded changes of tables and indexes may still have to be done
    /// here.
    pub fn set_behind(&self, may_be: bool) {
        self.behind.store(may_be, SeqCst);
    }

    /// May a recorded change still have to be done here?
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.behind.load(Relaxed)
    }

    /// Takes the turn to bring it to its end; false: another worker has it.
    pub fn begin_finishing(&self) -> bool {
        !self.finishing.swap(true, SeqCst)
    }

    /// Gives the turn back.
    pub fn end_finishing(&self) {
        self.finishing.store(false, SeqCst);
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::TableDef;
    use crate::node::{Node, NodeConfig};
    use farhold_fabric::{Executor, Fabric};
    use farhold_store::row::{Column, ColumnType, Schema};

    /// A worker that looks for snapshots first, and is held up then, misses one that lists the table's pages before the table
    /// is dropped and its last transaction ends.
    #[test]
    fn snapshots_are_looked_for_once_a_dropped_table_is_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let fabric = Fabric::join_shm(directory.path(), NodeId(0)).unwrap();
        let node = Node::open(fabric, NodeConfig { region_bytes: 8 << 20, ..NodeConfig::default() }).unwrap();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).unwrap();
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).unwrap();
        let id = executor.run(worker.create_table(TableDef::new("t", schema))).unwrap().id();
        let catalog = &node.catalog;
        catalog.retire(id);
        let let_go = |is_unread: &dyn Fn() -> bool| catalog.let_go(NodeId(0), 1, |_| false, is_unread);
        let_go(&|| panic!("transactions that use it may still run"));
        // The first look begins to wait for them, the second one finds that they are over.
        assert!(catalog.look_at_retired(&node.slots).is_empty());
        assert_eq!(catalog.look_at_retired(&node.slots), [id]);
        let_go(&|| false);
        assert!(catalog.even_dropped(id).is_some() && catalog.has_retired(), "a snapshot is open");
        let_go(&|| true);
        assert!(catalog.even_dropped(id).is_none() && !catalog.has_retired());
        drop((worker, node));
    }
}
