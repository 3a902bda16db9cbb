//! The tables of a node.

use crate::table::{Table, TableShared};
use crate::{TableId, TxnError};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Finds tables by name and number. Transactions do not come here: they are given handles.
#[derive(Default)]
pub(crate) struct Catalog {
    tables: RwLock<Tables>,
    version: AtomicU64,
    indexes_version: AtomicU64,
}

#[derive(Default)]
struct Tables {
    by_name: HashMap<String, TableId>,
    by_id: BTreeMap<TableId, Table>,
    /// Dropped, and kept while a transaction may still use them.
    retired: Vec<Arc<TableShared>>,
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

    /// Takes a table out; it stays alive until [`Self::forget_retired`].
    pub fn retire(&self, id: TableId) -> Option<Table> {
        let mut tables = self.write();
        let table = tables.by_id.remove(&id)?;
        tables.by_name.remove(table.name());
        table.0.mark_dropped();
        tables.retired.push(table.0.clone());
        drop(tables);
        self.changed();
        Some(table)
    }

    /// Lets go of a dropped table: no transaction, here or elsewhere, uses it any more.
    pub fn forget_retired(&self, id: TableId) {
        let mut tables = self.write();
        let (gone, kept) = tables.retired.drain(..).partition(|table| table.store.id() == id);
        tables.retired = kept;
        drop(tables);
        let _: Vec<Arc<TableShared>> = gone;
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
        live.or_else(|| tables.retired.iter().find(|table| table.store.id() == id)).cloned()
    }

    pub fn all(&self) -> Vec<Table> {
        self.read().by_id.values().cloned().collect()
    }

    /// Grows with every index that writers must know of: a transaction that began before must not commit after.
    #[inline]
    pub fn indexes_version(&self) -> u64 {
        self.indexes_version.load(SeqCst)
    }

    /// Makes every transaction that began before fail at its commit.
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

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}
