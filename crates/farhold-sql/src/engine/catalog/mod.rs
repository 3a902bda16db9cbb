//! The catalog of tables.
//!
//! The authoritative catalog is `farhold-txn`'s system table, which every node keeps and which survives a restart. What
//! SQL adds (defaults, checks, constraint names, the hidden row number) is stored in a table's attributes. This module caches
//! it, and reloads the cache when the node's catalog version has changed.

mod attributes;
mod check;
mod relations;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use farhold_txn::{Node, Table};

pub(crate) use attributes::{Attributes, put_text, take, take_text};
pub(crate) use check::{Check, columns_of};
pub(crate) use table::{IndexInfo, ROW_NUMBER, TableInfo, Wanted, column_refs};

pub(crate) use super::error::no_such_table;
pub(crate) use super::parse::table_name;
use super::sequence::SequenceInfo;

/// All tables at one version of the catalog.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) version: u64,
    by_name: HashMap<String, Arc<TableInfo>>,
    sequences: HashMap<String, Arc<SequenceInfo>>,
    /// Tables whose SQL attributes cannot be used. They can only be dropped.
    unreadable: HashMap<String, Table>,
}

impl Tables {
    /// The table called `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<TableInfo>> {
        self.by_name.get(name)
    }

    /// The table called `name`, if its SQL attributes cannot be used: it can only be dropped.
    pub(crate) fn unreadable(&self, name: &str) -> Option<&Table> {
        self.unreadable.get(name)
    }

    /// All tables, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<TableInfo>> {
        self.by_name.values()
    }

    /// The sequence called `name`.
    pub(crate) fn sequence(&self, name: &str) -> Option<&Arc<SequenceInfo>> {
        self.sequences.get(name)
    }

    /// The sequences that a table's columns own.
    pub(crate) fn sequences_of<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a Arc<SequenceInfo>> {
        let owned = move |it: &&Arc<SequenceInfo>| it.definition.owner.as_ref().is_some_and(|o| o.table == table);
        self.sequences.values().filter(owned)
    }

    /// The table and the index called `name`.
    pub(crate) fn index(&self, name: &str) -> Option<(&Arc<TableInfo>, &IndexInfo)> {
        self.iter().find_map(|table| table.indexes.iter().find(|i| i.name == name).map(|index| (table, index)))
    }
}

/// The cache.
pub(crate) struct Catalog {
    node: Arc<Node>,
    cached: RwLock<Arc<Tables>>,
}

impl Catalog {
    /// A cache of the tables of `node`.
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let tables = Arc::new(load(&node));
        Self { node, cached: RwLock::new(tables) }
    }

    /// The current version of the catalog.
    pub(crate) fn version(&self) -> u64 {
        self.node.catalog_version()
    }

    /// All current tables.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        let version = self.version();
        {
            let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
            if cached.version == version {
                return Arc::clone(&cached);
            }
        }
        let loaded = Arc::new(load(&self.node));
        let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
        *cached = Arc::clone(&loaded);
        loaded
    }
}

/// The version is read first: after a change in between, the next access loads again.
fn load(node: &Node) -> Tables {
    let version = node.catalog_version();
    let mut tables = Tables { version, ..Tables::default() };
    for table in node.tables() {
        if let Some(sequence) = SequenceInfo::of(&table) {
            tables.sequences.insert(sequence.name.clone(), Arc::new(sequence));
            continue;
        }
        match TableInfo::new(table.clone()) {
            Ok(info) => {
                tables.by_name.insert(info.name.clone(), Arc::new(info));
            }
            Err(_) => {
                tables.unreadable.insert(table.name().to_owned(), table);
            }
        }
    }
    tables
}
