//! Walks over all of a node's memory, for tests and for looking into a node that hangs or runs full.

use crate::base::definition::Placement;
use crate::base::table::Table;
use crate::node::Node;
use farhold_fabric::Meta;
use farhold_store::TableId;
use farhold_store::slab::PageTable;

impl Node {
    /// How the mirror of `of` on this node differs from what that node has, in words. Rings are applied first. Exact
    /// while no transaction runs. For tests, and for looking into a cluster that misbehaves.
    #[must_use]
    pub fn mirror_differs(&self, of: &Self) -> Vec<String> {
        let Some(replication) = &self.replication else { return Vec::new() };
        let mut applier = replication.applier();
        let mut differences = Vec::new();
        if let Err(error) = applier.apply_all() {
            differences.push(format!("{}: {error}", self.id()));
        }
        let rows = applier.mirror(of.id()).map(|mirror| mirror.rows());
        let Some(rows) = rows else { return vec![format!("{} has no mirror of {}", self.id(), of.id())] };
        let mut copies: std::collections::BTreeMap<u64, _> =
            rows.into_iter().map(|(slot, copy)| (u64::from(slot) * farhold_fabric::object::ALIGN, copy)).collect();
        for table in of.tables().iter().filter(|table| table.placement() != Placement::Replicated) {
            of.visit_rows(table, |offset, version, _, payload| {
                let copy = copies.remove(&offset);
                let same = copy.as_ref().is_some_and(|copy| {
                    copy.version == version
                        && [copy.key(), copy.value()].concat() == payload
                        && copy.table == table.id()
                });
                if !same {
                    let (it, its) = (of.id(), applier.mirror(of.id()).and_then(|mirror| mirror.version_at(offset)));
                    differences
                        .push(format!("{}: the row at {offset:#x} of {it} is at {version:?}, here {its:?}", self.id()));
                }
            });
        }
        let known: Vec<TableId> = of.tables().iter().map(Table::id).collect();
        for (offset, copy) in copies.iter().filter(|(_, copy)| known.contains(&copy.table)) {
            differences.push(format!("{}: {} has no row at {offset:#x} ({:?})", self.id(), of.id(), copy.version));
        }
        differences
    }

    /// How this node's copies of replicated tables differ from those of `of`, in words, table by table. Exact while no
    /// transaction runs, and for tests as [`Self::mirror_differs`] is.
    #[must_use]
    pub fn copies_differ(&self, of: &Self) -> Vec<String> {
        let rows_on = |node: &Self, id: TableId| {
            let table = node.table_by_id(id).filter(|table| table.placement() == Placement::Replicated)?;
            let mut rows = std::collections::BTreeMap::new();
            node.visit_rows(&table, |_, _, key_len, payload| {
                rows.insert(payload[..key_len].to_vec(), payload[key_len..].to_vec());
            });
            Some((table, rows))
        };
        let mut differences = Vec::new();
        for id in self.tables().iter().map(Table::id).chain([crate::node::system::ID]) {
            let (Some((table, here)), Some((_, there))) = (rows_on(self, id), rows_on(of, id)) else { continue };
            let differ = |key: &&Vec<u8>| here.get(*key) != there.get(*key);
            let count = here.keys().chain(there.keys().filter(|key| !here.contains_key(*key))).filter(differ).count();
            if count > 0 {
                let (name, one, other) = (table.name(), self.id(), of.id());
                let (of_one, of_other) = (here.len(), there.len());
                differences
                    .push(format!("{name:?}: {one} has {of_one} rows, {other} {of_other}, of which {count} differ"));
            }
        }
        differences
    }

    /// Of each row of a table here: where it is, its version, the length of its key, and key and value.
    fn visit_rows(&self, table: &Table, mut visit: impl FnMut(u64, farhold_fabric::Version, usize, &[u8])) {
        let mut payload = Vec::new();
        for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
            let object = farhold_store::Object::at(self.store.memory(), offset);
            let (meta, version) = (object.meta(), object.version());
            if meta.state() == farhold_store::Meta::ROW && !version.is_absent() {
                payload.resize(meta.payload_len(), 0);
                let _ = object.read(meta.incarnation(), &mut payload);
                visit(offset, version, meta.key_len(), &payload);
            }
        }
    }

    /// Locks, reservations and places of snapshots in its region, and rows that some index does not know, in words: none when
    /// no transaction runs and no snapshot is open. A walk over all pages, for tests and for looking into a node that hangs.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let mut left: Vec<String> =
            self.store.superblock().holders().map(|holder| format!("a snapshot of {holder:?}")).collect();
        for table in self.catalog.all() {
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                if let Some(owner) = farhold_store::Owner::from_word(object.lock_word()) {
                    left.push(format!("{table:?}, offset {offset:#x}: locked by {owner:?}"));
                }
                if object.meta().state() == farhold_store::object::RESERVED {
                    left.push(format!("{table:?}, offset {offset:#x}: reserved"));
                }
                if object.version().is_odd() {
                    left.push(format!("{table:?}, offset {offset:#x}: not replicated"));
                }
                if object.version().is_writing() {
                    left.push(format!("{table:?}, offset {offset:#x}: being written"));
                }
                left.extend(
                    table
                        .0
                        .missing_in(object)
                        .map(|index| format!("{table:?}, offset {offset:#x}: a row that {index} does not lead to")),
                );
            }
        }
        left
    }

    /// Rows that are half written, by table and key: those that commits are at, and those that dead owners have left,
    /// also where they [count](crate::Recovered::damaged) as damaged. A walk over all pages, as [`Self::left_behind`].
    #[must_use]
    pub fn half_written(&self) -> Vec<(String, Vec<u8>)> {
        let mut half = Vec::new();
        for table in self.catalog.all() {
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                if object.version().is_writing() {
                    let mut key = vec![0; object.meta().key_len()];
                    farhold_store::object::Words::copy_out(&object, &mut key);
                    half.push((table.name().to_owned(), key));
                }
            }
        }
        half
    }

    /// What is kept although it can no longer be needed, and what is inconsistent, in words. It finds older copies of
    /// rows, deleted rows, and pages and mirrored rows of tables that are gone. It finds index entries that lead
    /// nowhere, room that was promised in logs, and indexes that no coordinator finishes. The answer is empty when no
    /// transaction runs, no snapshot is open, and all nodes have heard of both and of dropped tables. A walk over all
    /// pages, for tests and for looking into a node that runs full.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = self.store.inconsistencies();
        let open = self.open_snapshots.count();
        if open > 0 {
            leaks.push(format!("{open} snapshots of its own are open"));
        }
        leaks.extend(crate::node::system::differences(self));
        for table in self.catalog.all() {
            let mut rows = 0;
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                match (object.meta().state(), object.version().is_absent()) {
                    (Meta::ROW | farhold_store::object::RESERVED, false) => rows += 1,
                    (Meta::ROW, true) => leaks.push(format!("{table:?}, offset {offset:#x}: a deleted row")),
                    (Meta::UNDO, _) => leaks.push(format!("{table:?}, offset {offset:#x}: an older copy of a row")),
                    _ => {}
                }
            }
            let entries = table.0.store.entries().into_iter().filter(|(_, entries)| *entries != rows);
            leaks.extend(entries.map(|(index, entries)| format!("{table:?}: {index} has {entries} of {rows} rows")));
        }
        let runs = PageTable::of(self.store.memory()).and_then(|pages| pages.runs()).unwrap_or_default();
        let mut gone: Vec<TableId> = runs.iter().map(|run| run.table).collect();
        gone.sort_unstable();
        gone.dedup();
        gone.retain(|id| self.catalog.by_id(*id).is_none());
        leaks.extend(gone.into_iter().map(|id| format!("pages of {id}, which is no table any more")));
        let mirrored = self.replication.as_ref().map(|it| it.applier().tables()).unwrap_or_default();
        let nobodys = mirrored.into_iter().filter(|id| self.catalog.even_dropped(*id).is_none());
        leaks.extend(nobodys.map(|id| format!("rows of {id} in a mirror, which is no table any more")));
        leaks.extend(self.unfinished_records());
        leaks
    }

    /// Rings of other nodes in which a record of this one is not finished, or room is promised. With a journal they are finished later.
    fn unfinished_records(&self) -> Vec<String> {
        let Some(replication) = self.replication.as_ref().filter(|_| self.journaling.is_none()) else {
            return Vec::new();
        };
        let mut unfinished = Vec::new();
        for worker in 0..replication.config.rings {
            let Ok(writers) = replication.writers(worker) else { continue };
            let busy = writers.iter().filter(|(holder, it)| self.present.contains(*holder) && !it.is_quiet());
            unfinished
                .extend(busy.map(|(holder, _)| format!("a record of worker {worker} for {holder} is unfinished")));
        }
        unfinished
    }
}
