//! Records on their way from the queue into the copies.

use farhold_fabric::NodeId;
use farhold_store::TableId;
use farhold_store::column::copy::{ColumnCopy, RowChange};
use farhold_store::log::{Change, Entry, Record};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Records taken from the queue, and the copies to apply them to.
pub(crate) struct Taken {
    pub(super) blocks: Vec<Vec<u8>>,
    /// Of the blocks.
    pub(super) bytes: usize,
    /// All records of this node up to this epoch are here, or were taken before.
    pub closed: u32,
    /// Of the copies.
    pub configuration: Option<u64>,
    pub(super) copies: Vec<(TableId, Arc<ColumnCopy>)>,
    pub(super) has_changes: bool,
}

impl Taken {
    /// Applies this node's own records.
    pub fn apply_own(&mut self, me: NodeId) {
        let blocks = std::mem::take(&mut self.blocks);
        let is_whole = self.apply(me, blocks.iter().flat_map(|block| whole(block)).map(Some));
        debug_assert!(is_whole, "records that this node has made");
    }

    /// Applies records: their changes of rows of `me`. False: a record is damaged, and the copies lack its changes.
    pub fn apply<'r>(&mut self, me: NodeId, records: impl Iterator<Item = Option<Record<'r>>>) -> bool {
        let mut is_whole = true;
        let mut changes: BTreeMap<TableId, Vec<RowChange<'_>>> =
            self.copies.iter().map(|(table, _)| (*table, Vec::new())).collect();
        for record in records {
            let Some(record) = record else {
                is_whole = false;
                continue;
            };
            for entry in record.entries() {
                // A journal's records have whole rows.
                let Some(entry) = entry.ok().filter(|entry| entry.change != Change::Patch) else {
                    is_whole = false;
                    break;
                };
                if let Some(changes) = changes.get_mut(&entry.table).filter(|_| entry.node == me) {
                    changes.push(change_of(&entry, record.epoch()));
                }
            }
        }
        for (table, copy) in &self.copies {
            let changes = changes.remove(table).unwrap_or_default();
            self.has_changes |= !changes.is_empty();
            copy.apply(changes);
        }
        is_whole
    }
}

fn change_of<'r>(entry: &Entry<'r>, epoch: u32) -> RowChange<'r> {
    let row = (entry.change != Change::Delete).then_some((entry.key, entry.value));
    RowChange { reference: entry.reference, version: entry.new, epoch, row }
}

/// The consecutive records in `bytes`. `offer` takes whole records only.
fn whole(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let size = u32::from_le_bytes(*bytes.get(8..12)?.first_chunk()?) as usize;
        let (record, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        Some(Record::of_this_process(record))
    })
}
