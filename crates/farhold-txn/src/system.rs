//! The system table: one row a table, its definition. Replicated, so that every node finds it in its own region.
//!
//! ```text
//!   name (primary key) │ id │ definition
//!   ""                 │ last id given │ (empty)
//!   "orders"           │ 7  │ 'T' ...
//! ```

use crate::definition::{Placement, TableDef};
use crate::node::{Node, Recovered};
use crate::table::{Cluster, Open, Table, TableShared};
use crate::{TableId, TxnError};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
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

/// Opens the system table of a node and every table that it names; forgets rows of tables that it does not name.
pub(crate) fn open(node: &Node) -> Result<Recovered, TxnError> {
    let mut recovered = Recovered::default();
    let threads = node.journaling.as_ref().map_or(1, |journaling| journaling.config.threads);
    let how = |id| if node.store.unclaimed().contains(&id) { Open::Attach { threads } } else { Open::Create };
    let mut shared = |id, definition, live: &[bool]| {
        let (table, found) = TableShared::open(&node.store, id, definition, live, how(id), Cluster::of(node))?;
        recovered.add(&table.name, &found);
        Ok::<_, TxnError>(table)
    };
    let system = shared(ID, definition()?, &[])?;
    let (rows, _) = read(&system)?;
    node.catalog.add(Table(Arc::new(system)))?;
    for (_, id, definition) in rows.into_iter().filter(|(name, _, _)| !name.is_empty()) {
        let (definition, live) = TableDef::decode(&definition)?;
        node.catalog.add(Table(Arc::new(shared(id, definition, &live)?)))?;
    }
    for id in node.store.unclaimed() {
        node.store.discard(id);
    }
    Ok(recovered)
}

/// Makes the tables of this node those of its system table: for a node that may have missed what a coordinator told, because
/// it died, or because this node has just come.
pub(crate) fn reconcile(node: &Node) -> Result<(), TxnError> {
    let Some(system) = node.catalog.by_id(ID) else { return Ok(()) };
    let (rows, whole) = read(&system.0)?;
    for table in node.tables() {
        // A row that is just being written is there.
        if whole && !rows.iter().any(|(_, id, _)| *id == table.id()) {
            node.catalog.retire(table.id());
        }
    }
    for (_, id, definition) in rows.into_iter().filter(|(name, _, _)| !name.is_empty()) {
        make(node, id, &definition)?;
    }
    Ok(())
}

/// Makes a table on this node, unless it is there: whoever comes first may be its creator, or who reconciles.
pub(crate) fn make(node: &Node, id: TableId, definition: &[u8]) -> Result<(), TxnError> {
    let _turn = node.catalog.turn_of_makers();
    if node.catalog.by_id(id).is_some() {
        return Ok(());
    }
    let (definition, live) = TableDef::decode(definition)?;
    let (table, _) = TableShared::open(&node.store, id, definition, &live, Open::Create, Cluster::of(node))?;
    node.catalog.add(Table(Arc::new(table)))
}

/// Name, number and definition of each table.
type Rows = Vec<(String, TableId, Vec<u8>)>;

/// All rows that are there, as they are; and whether none was just being written.
fn read(system: &TableShared) -> Result<(Rows, bool), TxnError> {
    let mut whole = true;
    let mut rows = Vec::new();
    let mut bytes = vec![0; farhold_store::object::size_class::PAYLOAD_BYTES_MAX];
    let mut references = Vec::new();
    let all = std::ops::Bound::Unbounded;
    let mut visit = |_: &[u8], word: u64| {
        references.push(farhold_store::ObjectRef::from_bits(word));
        std::ops::ControlFlow::Continue(())
    };
    system.store.primary().scan(all, all, &mut visit, &mut Vec::new());
    for reference in references {
        let object = system.store.store().object(reference);
        let Ok(read) = object.read(reference.incarnation(), &mut bytes) else {
            whole = false;
            continue;
        };
        if !read.is_absent() {
            let (key, value) = bytes[..read.payload_len()].split_at(read.key_len());
            rows.push(decode_row(&system.schema, key, value)?);
        }
    }
    Ok((rows, whole))
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
