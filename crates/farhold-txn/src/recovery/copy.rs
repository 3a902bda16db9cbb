//! A new mirror gets the rows that its node has, while transactions go on. It gets their records already, and of two
//! states of a slot it keeps the newer. For slots that belong to no table it gets the floors of their pages: records
//! from before the mirror may still be redone into it, and must not bring back what was there.

use crate::base::definition::Placement;
use crate::base::error::TxnError;
use crate::cluster::configuration::Mirror;
use crate::cluster::progress::Moving;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use crate::rpc::recovery::{CopyRow, FLOORS_PER_MESSAGE, MESSAGE_BYTES, Message, ROW_BYTES};
use farhold_fabric::{Meta, Version};
use farhold_store::slab::Run;
use farhold_store::{Object, ObjectRef, Store, TableId};

/// Slots between two turns of letting others run.
const SLOTS_PER_TURN: usize = 64;
/// Turns that a slot may stay locked: some 200 ms.
const PATIENCE_MAX: u32 = 10_000;

/// What has been read for a mirror.
struct Copied {
    reference: ObjectRef,
    version: Version,
    table: TableId,
    key_len: usize,
    payload: Vec<u8>,
}

impl Worker {
    /// Sends all rows of this node to a mirror of them.
    ///
    /// # Errors
    /// Its node is unavailable, or does not have this mirror any more; a row stays locked for ever.
    pub(crate) async fn copy_to_mirror(&self, mirror: Mirror) -> Result<(), TxnError> {
        let mut rows: Vec<Copied> = Vec::new();
        let (mut bytes, mut moving) = (0, Moving::default());
        let tables = self.node().tables();
        let mirrored = tables.iter().filter(|table| table.placement() != Placement::Replicated);
        moving.rows_total =
            mirrored.flat_map(|table| table.0.store.pages()).map(|run| run.slots().count() as u64).sum();
        for table in &tables {
            if table.placement() == Placement::Replicated || planted!(NoCatchUp) {
                continue;
            }
            let runs = table.0.store.pages();
            for (count, offset) in runs.iter().flat_map(Run::slots).enumerate() {
                if count.is_multiple_of(SLOTS_PER_TURN) {
                    self.core.handle.yield_now().await;
                }
                if table.is_dropped() {
                    // The other node forgets its rows, and may have done so before it gets these.
                    rows.retain(|row| row.table != table.id());
                    bytes = rows.iter().map(|row| row.payload.len() + ROW_BYTES).sum();
                    break;
                }
                let Some(row) = self.read_settled(table.id(), offset).await? else { continue };
                let row_bytes = row.payload.len() + ROW_BYTES;
                if bytes + row_bytes > MESSAGE_BYTES && !rows.is_empty() {
                    if let Some(replication) = &self.core.node.replication {
                        replication.note(|progress| progress.mirroring = Some((mirror.on, moving)));
                    }
                    self.send_copies(mirror, &rows).await?;
                    (rows, bytes) = (Vec::new(), 0);
                }
                bytes += row_bytes;
                rows.push(row);
                moving.rows += 1;
            }
        }
        self.send_copies(mirror, &rows).await?;
        // Sent after the rows: a run that has left its table since the list of runs was made is covered by its floors.
        self.send_floors(mirror).await?;
        for table in tables.iter().filter(|table| table.is_dropped()) {
            // Its rows may have come to a node that never had the table, and has been told already that the table is
            // released.
            self.core.call(mirror.on, &Request::DropTable { id: table.id() }).await?;
        }
        Ok(())
    }

    async fn send_floors(&self, mirror: Mirror) -> Result<(), TxnError> {
        if planted!(NoTombstones) {
            return Ok(());
        }
        for pages in self.node().store.floors().chunks(FLOORS_PER_MESSAGE) {
            let body = Message::Floors { since: mirror.since, pages: pages.to_vec() }.encode();
            self.core.call(mirror.on, &Request::Recovery { body: &body }).await?;
        }
        Ok(())
    }

    /// What a slot holds, when no transaction is about to change it.
    async fn read_settled(&self, table: TableId, offset: u64) -> Result<Option<Copied>, TxnError> {
        let core = &*self.core;
        for turn in 0..PATIENCE_MAX {
            match look(&core.node.store, table, offset) {
                Ok(found) => return Ok(found),
                Err(Changing) => core.handle.pause(turn).await,
            }
        }
        Err(TxnError::Conflict)
    }

    async fn send_copies(&self, mirror: Mirror, rows: &[Copied]) -> Result<(), TxnError> {
        if rows.is_empty() {
            return Ok(());
        }
        let row =
            |it: &Copied| -> (ObjectRef, Version, TableId, usize) { (it.reference, it.version, it.table, it.key_len) };
        let rows = rows.iter().map(|it| {
            let (reference, version, table, key_len) = row(it);
            CopyRow { reference, version, table, key: &it.payload[..key_len], value: &it.payload[key_len..] }
        });
        let body = Message::Copy { since: mirror.since, rows: rows.collect() }.encode();
        self.core.call(mirror.on, &Request::Recovery { body: &body }).await.map(|_| ())
    }
}

/// A transaction is about to change the slot.
struct Changing;

/// What a slot holds, if no transaction is about to change it. A transaction that holds its lock, or has not replicated
/// it yet, may have got its room in the rings before this mirror existed. The version is returned for a slot without a
/// row too: a record from before the mirror, redone into it, would bring back a row that has been deleted since.
/// `None`: the slot has never held a row, or is not the table's any more.
fn look(store: &Store, table: TableId, offset: u64) -> Result<Option<Copied>, Changing> {
    let object = Object::at(store.memory(), offset);
    let (meta, version) = (object.meta(), object.version());
    let reference = ObjectRef::new(offset, meta.incarnation());
    let is_settled = |version: Version| !version.is_odd() && !version.is_writing();
    if object.lock_word() != 0 || !is_settled(version) {
        return Err(Changing);
    }
    let found = if meta.state() == Meta::ROW {
        let mut payload = vec![0; meta.payload_len()];
        let read = object.read(meta.incarnation(), &mut payload).map_err(|_| Changing)?;
        if read.lock != 0 || !is_settled(read.version) {
            return Err(Changing);
        }
        payload.truncate(read.payload_len());
        Copied { reference, version: read.version, table, key_len: read.key_len(), payload }
    } else if version.number() == 0 || planted!(NoTombstones) {
        return Ok(None);
    } else if object.meta() == meta && object.version() == version && object.lock_word() == 0 {
        Copied { reference, version: version.with(Version::ABSENT), table, key_len: 0, payload: Vec::new() }
    } else {
        return Err(Changing);
    };
    // Checked after the read: the run may have gone to another table since the list of runs was made. Then the floors
    // of its pages cover what was there, and new rows arrive by records.
    Ok((store.table_of(offset) == Some(table)).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_btree::KeyShape;
    use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};
    use farhold_store::{AllocCache, Owner, Reserve, TableStore};
    use std::sync::Arc;

    /// Reserves and commits.
    fn insert(table: &TableStore, alloc: &mut AllocCache) -> ObjectRef {
        let reserved = table.reserve(&[7; 8], &[1; 100], alloc, &|_| false, &mut |_| ()).expect("room");
        let Reserve::Reserved { reference, .. } = reserved else { panic!("taken") };
        let object = table.store().object(reference);
        let owner = Owner::new(1, NodeId(0), 0, 1);
        let version = object.lock(reference.incarnation(), owner).expect("free");
        assert!(look(table.store(), table.id(), reference.offset()).is_err(), "it is locked");
        object.restamp(version.next(1));
        object.unlock();
        reference
    }

    /// While a mirror is filled, a run that the copier has in its list is given back, and taken by another table.
    #[test]
    fn a_row_is_copied_as_one_of_its_own_table() {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let mut alloc = store.alloc_cache();
        let [one, other] = [TableId(7), TableId(8)].map(|id| {
            let def = farhold_store::TableDef { id, primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
            TableStore::create(&store, def).expect("a table")
        });
        let copied = |id: TableId, offset: u64| look(&store, id, offset).ok().flatten();
        let row = insert(&one, &mut alloc);
        let is_row = |row: &Copied| !row.version.is_absent();
        assert!(copied(one.id(), row.offset()).is_some_and(|row| is_row(&row) && row.key_len == 8));
        let object = store.object(row);
        object.restamp(object.version().next(1).with(Version::ABSENT));
        one.remove(row, 1, &mut alloc);
        assert!(copied(one.id(), row.offset()).is_some_and(|row| !is_row(&row)));
        let runs = one.pages();
        alloc.flush();
        assert!(store.release_empty_pages() > 0);
        let there = insert(&other, &mut alloc);
        assert!(runs.iter().flat_map(Run::slots).any(|offset| offset == there.offset()), "it has the run");
        assert!(runs.iter().flat_map(Run::slots).all(|offset| copied(one.id(), offset).is_none()));
        assert!(copied(other.id(), there.offset()).is_some_and(|row| is_row(&row) && row.table == other.id()));
    }
}
