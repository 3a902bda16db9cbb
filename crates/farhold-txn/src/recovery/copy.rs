//! A new mirror gets the rows that its node has, while transactions go on: it gets their records already, and of two states
//! of a slot the newer stays.

use super::Moving;
use super::message::{CopyRow, MESSAGE_BYTES, Message, ROW_BYTES};
use crate::home::message::Request;
use crate::{NodeId, Placement, TableId, TxnError, Worker};
use farhold_fabric::{Meta, Version};
use farhold_store::slab::Run;
use farhold_store::{Object, ObjectRef, ReadError};

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
    /// Sends all rows of this node to `on`.
    ///
    /// # Errors
    /// It is unavailable; a row stays locked for ever.
    pub(crate) async fn copy_to_mirror(&self, on: NodeId) -> Result<(), TxnError> {
        let mut rows: Vec<Copied> = Vec::new();
        let (mut bytes, mut moving) = (0, Moving::default());
        let tables = self.node().tables();
        let mirrored = tables.iter().filter(|table| table.placement() != Placement::Replicated);
        moving.rows_total =
            mirrored.flat_map(|table| table.0.store.pages()).map(|run| run.slots().count() as u64).sum();
        for table in tables {
            if table.placement() == Placement::Replicated || planted!(NoCatchUp) {
                continue;
            }
            let runs = table.0.store.pages();
            for (count, offset) in runs.iter().flat_map(Run::slots).enumerate() {
                if count.is_multiple_of(SLOTS_PER_TURN) {
                    self.core.handle.yield_now().await;
                }
                let Some(row) = self.read_settled(table.id(), offset).await? else { continue };
                let row_bytes = row.payload.len() + ROW_BYTES;
                if bytes + row_bytes > MESSAGE_BYTES && !rows.is_empty() {
                    if let Some(replication) = &self.core.node.replication {
                        replication.note(|progress| progress.mirroring = Some((on, moving)));
                    }
                    self.send_copies(on, &rows).await?;
                    (rows, bytes) = (Vec::new(), 0);
                }
                bytes += row_bytes;
                rows.push(row);
                moving.rows += 1;
            }
        }
        self.send_copies(on, &rows).await
    }

    /// What a slot holds, when nobody is about to change it: who holds its lock, or has not replicated it yet, may have got his
    /// room in the rings before this mirror was one. Also of a slot without a row the version: a record from before the mirror, redone
    /// into it, would bring back a row that has been deleted since. `None`: the slot has never held a row.
    async fn read_settled(&self, table: TableId, offset: u64) -> Result<Option<Copied>, TxnError> {
        let core = &*self.core;
        let memory = core.node.store.memory();
        let mut payload = Vec::new();
        for turn in 0..PATIENCE_MAX {
            let object = Object::at(memory, offset);
            let (meta, version) = (object.meta(), object.version());
            let reference = ObjectRef::new(offset, meta.incarnation());
            let is_settled = |version: Version| !version.is_odd() && !version.is_writing();
            if object.lock_word() != 0 || !is_settled(version) {
                core.handle.pause(turn).await;
                continue;
            }
            if meta.state() == Meta::ROW {
                payload.resize(meta.payload_len(), 0);
                match object.read(meta.incarnation(), &mut payload) {
                    Ok(read) if read.lock == 0 && is_settled(read.version) => {
                        payload.truncate(read.payload_len());
                        let (version, key_len) = (read.version, read.key_len());
                        return Ok(Some(Copied { reference, version, table, key_len, payload }));
                    }
                    Ok(_) | Err(ReadError::Torn | ReadError::Stale | ReadError::TooShort { .. }) => {}
                }
            } else if version.number() == 0 || planted!(NoTombstones) {
                return Ok(None);
            } else if object.meta() == meta && object.version() == version && object.lock_word() == 0 {
                let version = version.with(Version::ABSENT);
                return Ok(Some(Copied { reference, version, table, key_len: 0, payload: Vec::new() }));
            }
            core.handle.pause(turn).await;
        }
        Err(TxnError::Conflict)
    }

    async fn send_copies(&self, on: NodeId, rows: &[Copied]) -> Result<(), TxnError> {
        if rows.is_empty() {
            return Ok(());
        }
        let row =
            |it: &Copied| -> (ObjectRef, Version, TableId, usize) { (it.reference, it.version, it.table, it.key_len) };
        let rows = rows.iter().map(|it| {
            let (reference, version, table, key_len) = row(it);
            CopyRow { reference, version, table, key: &it.payload[..key_len], value: &it.payload[key_len..] }
        });
        let body = Message::Copy { rows: rows.collect() }.encode();
        self.core.call(on, &Request::Recovery { body: &body }).await.map(|_| ())
    }
}
