//! The system table: one row a table, its definition. Replicated, so that every node finds it in its own region.
//!
//! ```text
//!   name (primary key) │ id │ definition
//!   ""                 │ last id given │ (empty)
//!   "orders"           │ 7  │ 'T' ...
//! ```

use crate::base::definition::{Placement, Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::route::Cluster;
use crate::base::table::{Coordinator, Open, Table, TableShared};
use crate::node::{Node, Recovered};
use farhold_fabric::Meta;
use farhold_store::object::Words;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_store::slab::Run;
use farhold_store::table::Rebuilt;
use farhold_store::{AllocCache, Holder, Object, ObjectRef, TableId, Version};
use std::sync::Arc;

/// The system table's own number.
pub(crate) const ID: TableId = TableId(1);
/// The system table's own name, which no table of the user can have.
pub(crate) const NAME: &str = "farhold.tables";
/// The first number of a user's table.
pub(crate) const FIRST_ID: u32 = 16;

fn definition() -> Result<TableDef, TxnError> {
    let columns = vec![
        Column::new("name", ColumnType::Text),
        Column::new("id", ColumnType::Int),
        Column::new("definition", ColumnType::Bytea),
    ];
    let schema = Schema::new(columns, vec![0])?;
    Ok(TableDef { placement: Placement::Replicated, hash: false, ..TableDef::new(NAME, schema) })
}

fn cluster_of(node: &Node) -> Cluster {
    let serving = node.replication.as_ref().map(|replication| replication.view.serving.clone());
    Cluster { nodes: node.config.nodes, tag: node.tag, serving }
}

/// Opens the system table of a node and every table that it names; forgets rows of tables that it does not name.
pub(crate) fn open(node: &Node) -> Result<Recovered, TxnError> {
    let mut recovered = Recovered::default();
    let shared = |id, definition, recorded: &[Recorded]| {
        TableShared::open(&node.store, id, definition, recorded, how(node, id), cluster_of(node))
    };
    let (system, mut found) = shared(ID, definition()?, &[])?;
    forget_all_damaged(node, &system, &mut found);
    recovered.add(&system.name, &found);
    let (rows, are_whole) = rows_of(&system)?;
    node.catalog.add(Table(Arc::new(system)))?;
    if are_whole {
        // First: a region that is full may have no room for a hash index beside them.
        discard(node, &rows);
    }
    for (name, id, definition) in rows {
        let opened = TableDef::decode(&definition).and_then(|(definition, recorded)| shared(id, definition, &recorded));
        match opened {
            Ok((table, found)) => {
                recovered.add(&table.name, &found);
                node.catalog.add(Table(Arc::new(table)))?;
            }
            // Where rows are nowhere else, the other rows must not be lost with it. With a journal the files still have
            // all of them.
            Err(error) if node.replication.is_none() && node.journaling.is_none() => {
                recovered.unopened.push((name, id, error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(recovered)
}

/// Releases what the region has of tables that no record names. Not while one is damaged: its table is among those.
fn discard(node: &Node, rows: &Rows) {
    for id in node.store.unclaimed().into_iter().filter(|id| rows.iter().all(|(_, named, _)| named != id)) {
        node.store.discard(id);
    }
}

/// As [`discard`], when all records are again what they are on other nodes.
pub(crate) fn discard_unrecorded(node: &Node) {
    let _turn = node.catalog.turn_of_makers();
    let rows = node.catalog.by_id(ID).map(|system| rows_of(&system.0));
    if let Some(Ok((rows, true))) = rows {
        discard(node, &rows);
    }
}

/// Is there something in the region that is to become the table again?
fn how(node: &Node, id: TableId) -> Open {
    let threads = node.journaling.as_ref().map_or(1, |journaling| journaling.config.threads);
    // A record says which rows are a table's: without it they would be given away.
    let forgets_damaged = node.config.forgets_half_written && id != ID;
    if node.store.unclaimed().contains(&id) { Open::Attach { threads, forgets_damaged } } else { Open::Create }
}

/// Replaces a definition that a dead process has left half written. Another node has the definition: see [`records`](crate::records).
pub(crate) const UNKNOWN: &[u8] = &[0xff];

/// In this node's copy of the system table, a row that a dead owner has left half written is known by its name alone.
pub(crate) fn forget_damaged(node: &Node, system: &TableShared, found: &mut Rebuilt, alloc: &mut AllocCache) {
    if !node.records_may_differ() || system.store.id() != ID {
        return;
    }
    for damaged in found.damaged.drain(..) {
        forget_value(system, damaged.reference, &damaged.key, alloc);
    }
}

fn forget_value(system: &TableShared, reference: ObjectRef, key: &[u8], alloc: &mut AllocCache) {
    let row = system.store.store().object(reference);
    let epoch = row.version().epoch();
    let version = row.version().next(epoch);
    let is_found = system.store.primary().get(key).value == Some(reference.to_bits());
    match encode_row(&system.schema, "", TableId(0), UNKNOWN) {
        Ok((_, value)) if is_found => {
            row.write(&value, version);
            row.unlock();
        }
        // A record that was to move has another place.
        _ => {
            row.restamp(version.with(Version::ABSENT));
            row.unlock();
            system.store.remove(reference, epoch, alloc);
        }
    }
}

/// As [`forget_damaged`], while nothing else uses the node: also for a record of which more than one object is damaged.
fn forget_all_damaged(node: &Node, system: &TableShared, found: &mut Rebuilt) {
    let mut alloc = AllocCache::new(&node.store);
    forget_damaged(node, system, found, &mut alloc);
    if !node.records_may_differ() {
        return;
    }
    for offset in system.store.pages().iter().flat_map(Run::slots) {
        let row = Object::at(node.store.memory(), offset);
        if row.is_damaged() {
            let mut key = vec![0; row.meta().key_len()];
            row.copy_out(&mut key);
            forget_value(system, ObjectRef::new(offset, row.meta().incarnation()), &key, &mut alloc);
        }
    }
}

/// Which start of this node creates an index: the number of its configuration; without copies, how often it has started.
pub(crate) fn start(node: &Node) -> u64 {
    let configuration = node.configuration().map(|installed| installed.number);
    configuration.unwrap_or_else(|| u64::from(node.store.incarnation()))
}

/// Is this start of another node still there, as far as this node knows? True as well while it has not heard of any
/// configuration.
pub(crate) fn is_there(node: &Node, (other, since): Coordinator) -> bool {
    match &node.replication {
        Some(replication) => {
            let view = &replication.view;
            view.is_there(other, since) || !view.present.contains(node.id())
        }
        None => !node.far_holds.is_over(Holder { node: other, incarnation: since as u16 }),
    }
}

/// The number of the configuration, unless that is just changing; 0 without copies.
fn settled(node: &Node) -> Option<u64> {
    let Some(replication) = &node.replication else { return Some(0) };
    let number = replication.view.configuration().number;
    (!replication.view.is_frozen()).then_some(number)
}

/// Makes the tables and indexes of this node those of its system table. For a node that may have missed a coordinator's message,
/// because the coordinator died or because this node has just joined. Returns the indexes that are recorded as dropped and not
/// gone here.
pub(crate) fn reconcile(node: &Node) -> Result<Vec<(Table, u16)>, TxnError> {
    // A joining node may not have all records yet.
    let is_in = node.configuration().is_none_or(|now| now.members.contains(&node.id()));
    reconcile_with(node, is_in)
}

/// As [`reconcile`]. `has_all`: this node has all records, so a table without one here has none anywhere.
fn reconcile_with(node: &Node, has_all: bool) -> Result<Vec<(Table, u16)>, TxnError> {
    let Some(system) = node.catalog.by_id(ID) else { return Ok(Vec::new()) };
    let before = settled(node);
    // Listed first: a table that is made meanwhile has its row already, and coordinators that are gone by now record nothing
    // later.
    let is_there = |coordinator| is_there(node, coordinator);
    let tables: Vec<_> = node.tables().into_iter().map(|table| (table.0.orphans(&is_there), table)).collect();
    let (rows, whole) = rows_of(&system.0)?;
    // While the configuration changes, what dead nodes have recorded is not redone here yet. Its installation looks
    // again.
    let is_redone = before.is_some() && settled(node) == before;
    let mut left = Vec::new();
    for (orphans, table) in tables {
        match rows.iter().find(|(_, id, _)| *id == table.id()) {
            Some((_, _, definition)) => {
                let recorded = TableDef::decode(definition)?.1;
                table.0.follow(&recorded, if is_redone { &orphans } else { &[] });
                left.extend(table.0.closed_of(&recorded).into_iter().map(|slot| (table.clone(), slot)));
            }
            None if whole && has_all => drop(node.catalog.retire(table.id())),
            // A row that is just being written is there.
            None => {}
        }
    }
    if !whole || !left.is_empty() {
        node.catalog.set_behind(true);
    }
    node.catalog.changed();
    let mut made = Ok(());
    for (_, id, definition) in rows {
        made = made.and(make(node, id, &definition));
    }
    made.and(follow_definitions(node)).map(|()| left)
}

/// Gives the tables of this node what the system table says of them, beyond their indexes. Readings of it take turns, so the last of them
/// stands.
pub(crate) fn follow_definitions(node: &Node) -> Result<(), TxnError> {
    let _turn = node.catalog.turn_of_makers();
    let Some(system) = node.catalog.by_id(ID) else { return Ok(()) };
    let (rows, whole) = rows_of(&system.0)?;
    let mut followed = Ok(());
    for (_, id, definition) in rows {
        let Some(table) = node.catalog.by_id(id) else { continue };
        match TableDef::decode(&definition) {
            Ok((definition, _)) => take_over(node, &table.0, definition),
            Err(error) => followed = Err(error),
        }
    }
    if !whole {
        node.catalog.set_behind(true);
    }
    node.catalog.changed();
    followed
}

/// As [`follow_definitions`], of one table, for a coordinator that must know that this node has what is recorded.
///
/// # Errors
/// [`TxnError::Conflict`]: the record is just being written.
pub(crate) fn follow_definition(node: &Node, id: TableId) -> Result<(), TxnError> {
    let _turn = node.catalog.turn_of_makers();
    let (Some(system), Some(table)) = (node.catalog.by_id(ID), node.catalog.by_id(id)) else { return Ok(()) };
    match record_of(&system.0, table.name(), id)? {
        Record::Is(definition) => take_over(node, &table.0, TableDef::decode(&definition)?.0),
        // It has been dropped.
        Record::Missing => {}
        Record::Changing => {
            node.catalog.set_behind(true);
            return Err(TxnError::Conflict);
        }
    }
    node.catalog.changed();
    Ok(())
}

/// Gives a table what its recorded definition says, beyond its indexes.
fn take_over(node: &Node, table: &TableShared, definition: TableDef) {
    table.keep_columns(definition.columns);
    if table.set_attributes(definition.attributes) {
        // For those who prepare statements; and then no transaction commits that may have written by the older attributes.
        node.catalog.changed();
        node.catalog.indexes_changed();
    }
}

/// As [`reconcile`], on a node that has all records; false: one was just being written, so a table may be recorded that is not here.
pub(crate) fn reconcile_all(node: &Node) -> Result<bool, TxnError> {
    reconcile_with(node, true)?;
    let Some(system) = node.catalog.by_id(ID) else { return Ok(true) };
    let (rows, whole) = rows_of(&system.0)?;
    Ok(whole && rows.iter().all(|(_, id, _)| node.catalog.by_id(*id).is_some()))
}

/// Where this node's tables and indexes are not those of its system table, in words. Exact while nothing changes them.
pub(crate) fn differences(node: &Node) -> Vec<String> {
    let Some(system) = node.catalog.by_id(ID) else { return vec!["there is no system table".to_owned()] };
    let rows = match read(&system.0) {
        Ok((rows, _)) => rows,
        Err(error) => return vec![error.to_string()],
    };
    let mut wrong = Vec::new();
    let is_recorded =
        |table: &Table| rows.iter().any(|(_, id, definition)| *id == table.id() && !definition.is_empty());
    for table in node.tables().iter().filter(|table| !is_recorded(table)) {
        wrong.push(format!("table \"{}\" is not recorded", table.name()));
    }
    for (name, id, definition) in rows.into_iter().filter(|(name, _, _)| !name.is_empty()) {
        if definition.is_empty() {
            wrong.push(format!("the drop of table \"{name}\" is recorded and not over"));
            continue;
        }
        let (Some(table), Ok((recorded_definition, live))) = (node.catalog.by_id(id), TableDef::decode(&definition))
        else {
            wrong.push(format!("table \"{name}\" is recorded and not there"));
            continue;
        };
        let (kept, recorded) = (table.kept_columns(), &recorded_definition.columns);
        if kept != *recorded {
            wrong.push(format!("of table \"{name}\", {kept:?} are kept as columns, and {recorded:?} are recorded"));
        }
        if *table.attributes() != *recorded_definition.attributes {
            wrong.push(format!("table \"{name}\" has other attributes than those recorded"));
        }
        let indexes = table.indexes();
        for index in indexes.iter().filter(|index| !index.ready) {
            wrong.push(format!("index \"{}\" of \"{name}\" is neither ready nor gone", index.definition.name));
        }
        let (ready, recorded) =
            (indexes.iter().filter(|it| it.ready).count(), live.iter().filter(|it| **it == Recorded::Live).count());
        if ready != recorded {
            wrong.push(format!("table \"{name}\" has {ready} indexes, of which {recorded} are recorded"));
        }
    }
    wrong
}

/// Makes a table on this node, unless it is there, or was. The creator or a reconciling node may come first. Numbers
/// are never reused.
///
/// # Errors
/// [`TxnError::Conflict`] if another table has this number; there is no room for it.
pub(crate) fn make(node: &Node, id: TableId, definition: &[u8]) -> Result<(), TxnError> {
    let _turn = node.catalog.turn_of_makers();
    if let Some(there) = node.catalog.even_dropped(id) {
        let is_it = TableDef::decode(definition)?.0.name == there.name;
        return if is_it { Ok(()) } else { Err(TxnError::Conflict) };
    }
    if node.recovered().unopened.iter().any(|(_, unopened, _)| *unopened == id) {
        return Ok(());
    }
    if node.replication.as_ref().is_some_and(|it| it.view.is_joining(node.id())) {
        // The sender may have been paused since, and may know nothing of the table's indexes. If the record is still to
        // come, the table is opened then.
        let Some(system) = node.catalog.by_id(ID) else { return Ok(()) };
        let recorded = rows_of(&system.0)?.0.into_iter().find(|(_, recorded, _)| *recorded == id);
        return recorded.map_or(Ok(()), |(_, _, definition)| add(node, id, &definition));
    }
    let (mut definition, recorded) = TableDef::decode(definition)?;
    let name = definition.name.clone();
    let system = node.catalog.by_id(ID);
    let record = || system.as_ref().map_or(Ok(Record::Changing), |system| record_of(&system.0, &name, id));
    // It may have been changed since the message was sent. A coordinator of such a change counts on this node.
    if let Record::Is(now) = record()? {
        let now = TableDef::decode(&now)?.0;
        (definition.columns, definition.attributes) = (now.columns, now.attributes);
    }
    add_decoded(node, id, definition, &recorded)?;
    // Its record may have been taken back meanwhile, by a node that found no table to take out of use. A node that is
    // joining may not have the record yet, and looks again when it is in.
    if node.is_member() && matches!(record()?, Record::Missing) {
        node.catalog.retire(id);
    }
    Ok(())
}

/// As [`make`], of a table that is not there.
pub(crate) fn add(node: &Node, id: TableId, definition: &[u8]) -> Result<(), TxnError> {
    let (definition, recorded) = TableDef::decode(definition)?;
    add_decoded(node, id, definition, &recorded)
}

fn add_decoded(node: &Node, id: TableId, definition: TableDef, recorded: &[Recorded]) -> Result<(), TxnError> {
    let (table, found) = TableShared::open(&node.store, id, definition, recorded, how(node, id), cluster_of(node))?;
    let mut recovered = Recovered::default();
    recovered.add(&table.name, &found);
    node.add_recovered(recovered);
    node.catalog.add(Table(Arc::new(table)))
}

/// What this node's copy of the system table says of a table.
enum Record {
    /// This definition.
    Is(Vec<u8>),
    /// Nothing, or that it is dropped.
    Missing,
    /// The row is just being written, or half written by a dead process.
    Changing,
}

fn record_of(system: &TableShared, name: &str, id: TableId) -> Result<Record, TxnError> {
    let (key, _) = encode_row(&system.schema, name, id, &[])?;
    let mut bytes = vec![0; farhold_store::object::size_class::PAYLOAD_BYTES_MAX];
    let entry = || system.store.primary().get(&key).value;
    let mut word = entry();
    loop {
        let Some(found) = word else { return Ok(Record::Missing) };
        return Ok(match look(system, ObjectRef::from_bits(found), &mut bytes)? {
            Seen::Row((_, _, definition)) if definition == UNKNOWN => Record::Changing,
            Seen::Row((_, found, definition)) if found == id && !definition.is_empty() => Record::Is(definition),
            Seen::Row(_) => Record::Missing,
            Seen::Deleted => {
                let now = entry();
                if now != word {
                    // The row has moved in between.
                    word = now;
                    continue;
                }
                Record::Missing
            }
            Seen::Changing => Record::Changing,
        });
    }
}

/// Name, number and definition of each table.
type Rows = Vec<(String, TableId, Vec<u8>)>;

/// Those of all tables; and whether none was just being written.
fn rows_of(system: &TableShared) -> Result<(Rows, bool), TxnError> {
    let (mut rows, mut whole) = read(system)?;
    whole &= rows.iter().all(|(name, _, definition)| name.is_empty() || definition != UNKNOWN);
    // The row that counts the tables has the number of the last one, which may be gone; one without a definition says that it is dropped.
    rows.retain(|(name, _, definition)| !name.is_empty() && !definition.is_empty() && definition != UNKNOWN);
    Ok((rows, whole))
}

/// All rows that are there, as they are; and whether none was just being written.
fn read(system: &TableShared) -> Result<(Rows, bool), TxnError> {
    let mut whole = true;
    let mut rows = Vec::new();
    let mut bytes = vec![0; farhold_store::object::size_class::PAYLOAD_BYTES_MAX];
    let mut references = Vec::new();
    let all = std::ops::Bound::Unbounded;
    let mut visit = |_: &[u8], word: u64| {
        references.push(ObjectRef::from_bits(word));
        std::ops::ControlFlow::Continue(())
    };
    system.store.primary().scan(all, all, &mut visit, &mut Vec::new());
    for reference in references {
        match look(system, reference, &mut bytes)? {
            Seen::Row(row) => rows.push(row),
            // Its entry leaves the index any moment, or leads to where the row has moved.
            Seen::Deleted | Seen::Changing => whole = false,
        }
    }
    Ok((rows, whole))
}

/// What an entry of the index leads to.
enum Seen {
    Row((String, TableId, Vec<u8>)),
    Deleted,
    /// It is reserved, being written, or not replicated yet.
    Changing,
}

/// `bytes` have room for every row.
fn look(system: &TableShared, reference: ObjectRef, bytes: &mut [u8]) -> Result<Seen, TxnError> {
    let object = system.store.store().object(reference);
    let Ok(read) = object.read(reference.incarnation(), bytes) else { return Ok(Seen::Changing) };
    if read.version.is_odd() {
        return Ok(Seen::Changing);
    }
    if read.is_absent() {
        let is_deleted = read.lock == 0 && read.meta.state() == Meta::ROW;
        return Ok(if is_deleted { Seen::Deleted } else { Seen::Changing });
    }
    let (key, value) = bytes[..read.payload_len()].split_at(read.key_len());
    Ok(Seen::Row(decode_row(&system.schema, key, value)?))
}

/// A row as it lies in the table.
pub(crate) fn encode_row(
    schema: &Schema,
    name: &str,
    id: TableId,
    definition: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), TxnError> {
    let id =
        i32::try_from(id.0).map_err(|_| TxnError::TooMany { what: "tables ever made", limit: i32::MAX as usize })?;
    let row = [Datum::Text(name.to_owned()), Datum::Int(id), Datum::Bytea(definition.to_vec())];
    let (mut key, mut value) = (Vec::new(), Vec::new());
    schema.encode_key(&row, &mut key)?;
    schema.encode_value(&row, &mut value)?;
    Ok((key, value))
}

/// Name, number and definition.
pub(crate) fn decode_row(schema: &Schema, key: &[u8], value: &[u8]) -> Result<(String, TableId, Vec<u8>), TxnError> {
    let mut row = Vec::new();
    schema.decode_row(key, value, &mut row)?;
    match <[Datum; 3]>::try_from(row) {
        Ok([Datum::Text(name), Datum::Int(id), Datum::Bytea(definition)]) if id >= 0 => {
            Ok((name, TableId(id.unsigned_abs()), definition))
        }
        _ => Err(TxnError::Corrupt { what: "a row of the system table" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeConfig;
    use crate::protocol::worker::Retry;
    use farhold_btree::KeyShape;
    use farhold_fabric::{Executor, Fabric, NodeId};
    use farhold_store::object::Words;
    use farhold_store::{Reserve, StoreError, TableStore};

    /// The record of a table was half written when its node ended: the table cannot be opened, and its rows are not those of a dropped one.
    #[test]
    fn a_damaged_record_costs_no_rows() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || {
            let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
            Node::open(fabric, NodeConfig { region_bytes: 2 << 20, ..NodeConfig::default() }).expect("a node")
        };
        let record = |node: &Node| {
            let system = node.catalog.by_id(ID).expect("the system table").0;
            let (key, _) = encode_row(&system.schema, "people", TableId(0), &[]).expect("a key");
            ObjectRef::from_bits(system.store.primary().get(&key).value.expect("recorded"))
        };
        let node = open();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let table = worker.create_table(TableDef::new("people", schema)).await.expect("a table");
            let filled = worker.run(Retry::never(), async |txn| txn.insert(&table, &[0; 4], &[0; 8]).await.map(|_| ()));
            filled.await.expect("filled");
        });
        drop((worker, executor));
        let mark = |node: &Node, marked: bool| {
            let row = node.store.object(record(node));
            let version = row.version().without(farhold_fabric::Version::WRITING);
            let version = if marked { version.with(farhold_fabric::Version::WRITING) } else { version };
            row.store(farhold_store::object::Word::Version, version.0, std::sync::atomic::Ordering::SeqCst);
        };
        mark(&node, true);
        drop(node);
        let node = open();
        assert_eq!(node.recovered().damaged.len(), 1);
        assert!(node.table("people").is_none() && node.store.unclaimed().len() == 1);
        mark(&node, false);
        drop(node);
        let node = open();
        assert_eq!(node.table("people").map(|table| table.row_count()), Some(1));
        drop(node);
    }

    /// A power cut has brought back the rows of a dropped table, but not the event that their pages were given back, after which another
    /// table was made. The pages are given back before that table's hash index is made.
    #[test]
    fn a_start_has_room_where_dropped_tables_had_theirs() {
        let directory = tempfile::tempdir().expect("a directory");
        let (gone, made) = (TableId(FIRST_ID), TableId(FIRST_ID + 1));
        let open = || {
            let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
            Node::open(fabric, NodeConfig { region_bytes: 2 << 20, ..NodeConfig::default() })
        };
        let node = open().expect("a node");
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let system = node.catalog.by_id(ID).expect("the system table");
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let definition = TableDef::new("made", schema).encode(&[]).expect("a definition");
            let (key, value) = encode_row(system.schema(), "made", made, &definition).expect("a row");
            let recorded = worker.run(Retry::never(), async |txn| txn.insert(&system, &key, &value).await.map(|_| ()));
            recorded.await.expect("recorded");
        });
        drop((worker, executor));
        let def = farhold_store::TableDef { id: gone, primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
        let table = TableStore::create(&node.store, def).expect("a table");
        let (mut alloc, mut key) = (node.store.alloc_cache(), 0_u64);
        let full = loop {
            key += 1;
            match table.reserve(&key.to_be_bytes(), &[7; 500], &mut alloc, &|_| false, &mut |_| ()) {
                Ok(Reserve::Reserved { reference, .. }) => {
                    let row = node.store.object(reference);
                    row.write(&[7; 500], row.version().next(1));
                }
                other => break other,
            }
        };
        assert!(matches!(full, Err(StoreError::OutOfMemory { .. })), "{full:?}");
        drop((alloc, table, node));
        let node = open().expect("room for the table that was made");
        assert!(node.catalog.by_id(made).is_some() && node.catalog.by_id(gone).is_none());
        assert!(node.store.unclaimed().is_empty());
        drop(node);
    }
}
