//! What a transaction has read and is going to write: rows, the bytes of both, the stamps of ranges.
//!
//! ```text
//!   rows    [ ident │ version │ state │ where the bytes are ] ...        a RowHandle is a position here
//!   bytes   [ key value ][ key value ][ new value ][ key value ] ...     one arena, never moved back before the end
//!   stamps  (table, index) -> leaves whose versions must stand
//!   log     what each write since the first savepoint changed
//! ```
//!
//! All of it is kept from one transaction to the next by the worker: a transaction that is no longer than the longest
//! before it allocates nothing.

use crate::base::ident::Ident;
use crate::base::table::{Index, TableShared};
use crate::protocol::txn::stamps::Stamps;
use crate::protocol::txn::{RowHandle, Savepoint, SharedTable};
use farhold_btree::LeafStamp;
use farhold_fabric::{NodeId, Version};
use farhold_store::Moved;
use farhold_store::index::hash::{BucketStamp, hash_key};
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;

/// What a transaction means to do with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowState {
    /// Looked for and not there: reserved by another, or deleted.
    Absent,
    /// Read.
    Read,
    /// Read, and changed: the new value is in the arena.
    Written,
    /// Read, and to be deleted.
    Deleted,
    /// Made by this transaction: reserved in the store.
    Inserted,
    /// Made by this transaction and deleted by it.
    Gone,
    /// Read on the way to another row: no result of the transaction depends on it.
    Skipped,
}

impl RowState {
    /// Does the transaction itself see a row here?
    #[inline]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Read | Self::Written | Self::Inserted)
    }

    /// Does it change what others see?
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, Self::Written | Self::Deleted | Self::Inserted)
    }

    /// Does the commit have to lock it? A reservation that the transaction has given up changes nothing by itself, but
    /// index entries may lead to it until the commit names the object that takes its place. A transaction that finds it
    /// unlocked would take the key for free after the commit point.
    #[inline]
    pub fn is_locked_by_commit(self) -> bool {
        self.is_write() || self == Self::Gone
    }

    /// Is there no row after the commit?
    #[inline]
    pub fn leaves_nothing(self) -> bool {
        matches!(self, Self::Deleted | Self::Gone)
    }
}

/// No such place in the arena.
const NOWHERE: u32 = u32::MAX;

/// A row of the read or the write set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Which object.
    pub ident: Ident,
    /// The version read; for an insert that of the reserved slot.
    pub version: Version,
    /// Its table, which lives as long as the transaction.
    pub table: NonNull<TableShared>,
    /// Key and value as read (for an insert: as reserved).
    at: u32,
    pub key_len: u32,
    value_len: u32,
    /// The new value.
    new_at: u32,
    new_len: u32,
    pub state: RowState,
}

impl Row {
    /// Has it a value other than the one read (or reserved)?
    #[inline]
    pub fn has_new_value(&self) -> bool {
        self.new_at != NOWHERE
    }

    /// Is it an object that was there before the transaction, and on which it depends?
    pub fn is_of_others(&self) -> bool {
        matches!(self.state, RowState::Read | RowState::Absent | RowState::Written | RowState::Deleted)
    }

    /// The table.
    #[inline]
    pub fn table(&self) -> &TableShared {
        // SAFETY: it came from `SharedTable`: the catalog keeps the table while a transaction runs that began before its drop. A state
        // has rows only while its transaction is counted in, because it is cleared before the transaction is counted out.
        unsafe { self.table.as_ref() }
    }
}

/// Stamps of one index of one table on one node.
#[derive(Debug)]
pub(crate) struct StampGroup {
    pub table: NonNull<TableShared>,
    pub index: crate::base::table::Index,
    pub node: NodeId,
    pub leaves: Stamps<LeafStamp>,
}

impl StampGroup {
    /// The table.
    #[inline]
    pub fn table(&self) -> &TableShared {
        // SAFETY: as for `Row::table`.
        unsafe { self.table.as_ref() }
    }
}

/// A change of a row, to be taken back by a rollback to a savepoint.
#[derive(Clone, Copy, Debug)]
struct Logged {
    row: u32,
    state: RowState,
    new_at: u32,
    new_len: u32,
}

/// The bytes of a transaction. Initialised as far as they have ever grown, so that a read fills them in place.
#[derive(Debug, Default)]
struct Arena {
    bytes: Vec<u8>,
    used: usize,
}

impl Arena {
    #[inline]
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() - self.used < len {
            self.grow(len);
        }
        &mut self.bytes[self.used..]
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.bytes.resize((self.used + len).max(self.bytes.len() * 2).max(16 << 10), 0);
    }

    #[inline]
    fn take(&mut self, len: usize) -> u32 {
        let at = self.used;
        self.used += len;
        assert!(u32::try_from(self.used).is_ok(), "a transaction of more than 4 GiB");
        at as u32
    }

    #[inline]
    fn get(&self, at: u32, len: u32) -> &[u8] {
        &self.bytes[at as usize..at as usize + len as usize]
    }
}

/// Most bytes that a transaction may hold. Reads are checked once a turn, so it may exceed this by a turn's rows; places in the arena
/// have 32 bits. The limit is low in this crate's own tests, so that reaching it is cheap.
pub(crate) const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 1 << 31 };
/// Memory that is kept when a transaction gives its memory back, so that a large load does not keep its memory for
/// good.
const KEPT_BYTES_MAX: usize = 4 << 20;
const KEPT_ROWS_MAX: usize = 64 << 10;

/// The hash of a key in an index of some table on a node.
fn hash_of(node: NodeId, index: Index, key: &[u8]) -> u64 {
    hash_key(key) ^ (u64::from(node.0) << 32 | index.number() as u64)
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each looked at alone")]
pub(crate) struct State {
    pub rows: Vec<Row>,
    places: Places,
    arena: Arena,
    groups: Vec<StampGroup>,
    groups_used: usize,
    log: Vec<Logged>,
    logging: bool,
    /// What the arena had at the last savepoint, or at the last rollback to one. A rollback may want it again.
    saved_to: u32,
    /// Buckets of hash indexes that covered a search, with their nodes.
    pub buckets: Stamps<(NodeId, BucketStamp)>,
    /// Nodes that were asked to reserve something, and whether they have answered each time.
    pub reserved_at: BTreeMap<NodeId, bool>,
    /// How many rows are to be written: zero means that the commit takes the way without locks.
    pub writes: u32,
    /// Some row was not of this node, or the commit has to ask others for another reason.
    pub far: bool,
    /// Rows have copies on other nodes.
    pub replicated: bool,
    /// Whether nothing else can change anything while it looks.
    pub alone: bool,
    /// Some row of this node was read while a commit held its lock: that commit may have been seen elsewhere already.
    pub met_lock: bool,
    /// Some written row has secondary indexes.
    pub written_with_indexes: bool,
    /// Inserts that some index does not name yet, because it still names a row that this transaction deletes.
    pub replacing: Vec<u32>,
    /// The same, by the [hashes](hash_of) of their keys in all indexes.
    replacing_by_key: HashMap<u64, Vec<u32>>,
    /// Rows to write, in address order: the commit's, kept here for its memory.
    pub order: Vec<u32>,
    /// Steps of stamps: kept here for its memory.
    pub moved: Vec<Moved>,
    /// What a scan sees: kept here for its memory.
    pub leaves: Vec<LeafStamp>,
}

impl State {
    /// An empty one; `replicated` if rows have copies on other nodes, `alone` if no other thread runs while this one
    /// does.
    pub fn new(replicated: bool, alone: bool) -> Self {
        Self { replicated, alone, ..Self::default() }
    }

    /// Ready for the next transaction.
    pub fn clear(&mut self) {
        if self.rows.len() > KEPT_ROWS_MAX || self.arena.bytes.len() > KEPT_BYTES_MAX {
            *self = Self::new(self.replicated, self.alone);
            return;
        }
        self.rows.clear();
        self.places.clear();
        self.arena.used = 0;
        self.groups_used = 0;
        self.log.clear();
        self.logging = false;
        self.saved_to = 0;
        self.writes = 0;
        self.far = false;
        self.met_lock = false;
        self.written_with_indexes = false;
        self.replacing.clear();
        self.replacing_by_key.clear();
        self.buckets.clear();
        self.reserved_at.clear();
    }

    /// Bytes held.
    #[inline]
    pub fn bytes_used(&self) -> usize {
        self.arena.used
    }

    /// At least `len` bytes for a read to fill; [`Self::push`] then takes what it filled.
    #[inline]
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        self.arena.room(len)
    }

    /// The handle of an object that is already in the set.
    #[inline]
    pub fn find(&self, ident: Ident) -> Option<RowHandle> {
        self.places.find(&self.rows, ident)
    }

    /// Is it a row of which nothing is left when this transaction commits?
    pub fn is_given_up(&self, ident: Ident) -> bool {
        self.find(ident).is_some_and(|known| self.row(known).state.leaves_nothing())
    }

    /// Adds a row whose key and value have been put into [`Self::room`].
    #[inline]
    pub fn push(
        &mut self,
        table: NonNull<TableShared>,
        ident: Ident,
        version: Version,
        state: RowState,
        key_len: usize,
        payload_len: usize,
    ) -> RowHandle {
        let at = self.arena.take(payload_len);
        let row = Row {
            ident,
            version,
            table,
            at,
            key_len: key_len as u32,
            value_len: (payload_len - key_len) as u32,
            new_at: NOWHERE,
            new_len: 0,
            state,
        };
        let position = self.rows.len() as u32;
        self.rows.push(row);
        self.places.add(&self.rows, ident, position);
        RowHandle(position)
    }

    #[inline]
    pub fn row(&self, row: RowHandle) -> &Row {
        &self.rows[row.0 as usize]
    }

    /// The primary key.
    #[inline]
    pub fn key(&self, row: &Row) -> &[u8] {
        self.arena.get(row.at, row.key_len)
    }

    /// The value as read or reserved.
    #[inline]
    pub fn old_value(&self, row: &Row) -> &[u8] {
        self.arena.get(row.at + row.key_len, row.value_len)
    }

    /// The value as this transaction sees it.
    #[inline]
    pub fn value(&self, row: &Row) -> &[u8] {
        if row.new_at == NOWHERE { self.old_value(row) } else { self.arena.get(row.new_at, row.new_len) }
    }

    /// The value to change in place; copied on the first change (after each savepoint).
    #[inline]
    pub fn value_mut(&mut self, handle: RowHandle) -> &mut [u8] {
        let row = self.rows[handle.0 as usize];
        debug_assert!(row.state.is_live());
        if !self.is_own_place(&row) {
            let (from, len) = if row.has_new_value() {
                (row.new_at as usize, row.new_len)
            } else {
                ((row.at + row.key_len) as usize, row.value_len)
            };
            self.arena.room(len as usize);
            let at = self.arena.take(len as usize);
            self.arena.bytes.copy_within(from..from + len as usize, at as usize);
            self.set_new_value(handle, at, len);
        }
        let row = &self.rows[handle.0 as usize];
        &mut self.arena.bytes[row.new_at as usize..(row.new_at + row.new_len) as usize]
    }

    /// Does it have a new value that no rollback needs again?
    #[inline]
    fn is_own_place(&self, row: &Row) -> bool {
        row.has_new_value() && (!self.logging || row.new_at >= self.saved_to)
    }

    /// Another value; the row lives, whether or not it did before.
    pub fn set_value(&mut self, handle: RowHandle, value: &[u8]) {
        let row = self.rows[handle.0 as usize];
        if self.is_own_place(&row) && value.len() <= row.new_len as usize {
            self.arena.bytes[row.new_at as usize..][..value.len()].copy_from_slice(value);
            return self.set_new_value(handle, row.new_at, value.len() as u32);
        }
        self.arena.room(value.len())[..value.len()].copy_from_slice(value);
        let at = self.arena.take(value.len());
        self.set_new_value(handle, at, value.len() as u32);
    }

    fn set_new_value(&mut self, handle: RowHandle, at: u32, len: u32) {
        self.log(handle);
        let row = &mut self.rows[handle.0 as usize];
        (row.new_at, row.new_len) = (at, len);
        let state = match row.state {
            RowState::Inserted | RowState::Gone => RowState::Inserted,
            _ => RowState::Written,
        };
        self.written_with_indexes |= row.table().has_secondary();
        self.set_state(handle, state);
    }

    pub fn delete(&mut self, handle: RowHandle) {
        self.log(handle);
        let state = if self.row(handle).state == RowState::Inserted { RowState::Gone } else { RowState::Deleted };
        self.set_state(handle, state);
    }

    /// The row counts as never read.
    pub fn skip(&mut self, handle: RowHandle) {
        debug_assert!(matches!(self.row(handle).state, RowState::Read | RowState::Absent));
        self.rows[handle.0 as usize].state = RowState::Skipped;
    }

    /// A row that was skipped is wanted after all.
    pub fn unskip(&mut self, handle: RowHandle) {
        let row = &mut self.rows[handle.0 as usize];
        if row.state == RowState::Skipped {
            row.state = if row.version.is_absent() { RowState::Absent } else { RowState::Read };
        }
    }

    /// Changes the state and the count of writes with it.
    #[inline]
    fn set_state(&mut self, handle: RowHandle, state: RowState) {
        let row = &mut self.rows[handle.0 as usize];
        self.far |= state.is_write() && row.table().route.writes_everywhere();
        self.writes = self.writes + u32::from(state.is_write()) - u32::from(row.state.is_write());
        row.state = state;
    }

    /// Adds a row that the transaction has reserved.
    pub fn push_insert(
        &mut self,
        table: NonNull<TableShared>,
        ident: Ident,
        version: Version,
        key: &[u8],
        value: &[u8],
        replaces: bool,
    ) -> RowHandle {
        let (key_len, payload_len) = (key.len(), key.len() + value.len());
        let room = self.arena.room(payload_len);
        room[..key_len].copy_from_slice(key);
        room[key_len..payload_len].copy_from_slice(value);
        // Taken back by a rollback, it is what it was before: nothing, and reserved.
        let handle = self.push(table, ident, version, RowState::Gone, key_len, payload_len);
        self.log(handle);
        self.set_state(handle, RowState::Inserted);
        if replaces {
            self.note_replacing(SharedTable(table), ident.node(), key, value, handle);
        }
        handle
    }

    #[cold]
    fn note_replacing(&mut self, table: SharedTable, node: NodeId, key: &[u8], value: &[u8], handle: RowHandle) {
        self.replacing.push(handle.0);
        let mut note = |index, key: &[u8]| {
            self.replacing_by_key.entry(hash_of(node, index, key)).or_default().push(handle.0);
        };
        note(Index::Primary, key);
        let mut made = Vec::new();
        for (index, keys) in table.all_keys() {
            // It has been reserved by these keys.
            if keys.make(&table.schema, key, value, &mut made).is_ok() {
                note(index, &made);
            }
        }
    }

    /// The inserts of [`Self::replacing`] that may have this key in the index of a table on a node.
    pub fn replacing_with(&self, node: NodeId, index: Index, key: &[u8]) -> &[u32] {
        self.replacing_by_key.get(&hash_of(node, index, key)).map_or(&[], Vec::as_slice)
    }

    #[inline]
    fn log(&mut self, handle: RowHandle) {
        if self.logging {
            let row = &self.rows[handle.0 as usize];
            self.log.push(Logged { row: handle.0, state: row.state, new_at: row.new_at, new_len: row.new_len });
        }
    }

    pub fn savepoint(&mut self) -> Savepoint {
        self.logging = true;
        self.saved_to = self.arena.used as u32;
        Savepoint { mark: self.log.len() as u32 }
    }

    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        while self.log.len() > savepoint.mark as usize {
            let Some(logged) = self.log.pop() else { break };
            self.set_state(RowHandle(logged.row), logged.state);
            let row = &mut self.rows[logged.row as usize];
            (row.new_at, row.new_len) = (logged.new_at, logged.new_len);
        }
        self.saved_to = self.arena.used as u32;
    }

    /// Where the stamps of an index go.
    #[inline]
    pub fn group(
        &mut self,
        table: NonNull<TableShared>,
        index: crate::base::table::Index,
        node: NodeId,
    ) -> &mut StampGroup {
        let same = |group: &StampGroup| group.table == table && group.index == index && group.node == node;
        let position = self.groups[..self.groups_used].iter().position(same);
        let position = position.unwrap_or_else(|| {
            let position = self.groups_used;
            self.groups_used += 1;
            if let Some(group) = self.groups.get_mut(position) {
                (group.table, group.index, group.node) = (table, index, node);
                group.leaves.clear();
            } else {
                self.groups.push(StampGroup { table, index, node, leaves: Stamps::default() });
            }
            position
        });
        &mut self.groups[position]
    }

    /// All stamps.
    #[inline]
    pub fn groups(&self) -> &[StampGroup] {
        &self.groups[..self.groups_used]
    }

    /// All stamps, to carry them over a write of the transaction's own.
    #[inline]
    pub fn groups_mut(&mut self) -> &mut [StampGroup] {
        &mut self.groups[..self.groups_used]
    }
}

/// Finds a row by its object: by a walk while there are few, by a hash table above that.
#[derive(Debug, Default)]
struct Places {
    /// Positions plus one; 0 is empty. Its length is a power of two, at least twice the number of rows; empty while unused.
    table: Vec<u32>,
    in_use: bool,
}

/// Up to this number of rows, a walk over them is faster than a table that must be cleared (a walk over 32 takes some
/// 10 ns).
const WALK_MAX: usize = 32;

impl Places {
    #[inline]
    fn clear(&mut self) {
        if self.in_use {
            self.table.fill(0);
            self.in_use = false;
        }
    }

    #[inline]
    fn find(&self, rows: &[Row], ident: Ident) -> Option<RowHandle> {
        if !self.in_use {
            return rows.iter().position(|row| row.ident == ident).map(|position| RowHandle(position as u32));
        }
        let mask = self.table.len() - 1;
        let mut at = ident.hash() & mask;
        loop {
            match self.table[at] {
                0 => return None,
                position if rows[position as usize - 1].ident == ident => return Some(RowHandle(position - 1)),
                _ => at = (at + 1) & mask,
            }
        }
    }

    #[inline]
    fn add(&mut self, rows: &[Row], ident: Ident, position: u32) {
        if self.in_use && rows.len() * 2 <= self.table.len() {
            self.put(ident, position);
        } else if rows.len() > WALK_MAX {
            self.build(rows);
        }
    }

    fn put(&mut self, ident: Ident, position: u32) {
        let mask = self.table.len() - 1;
        let mut at = ident.hash() & mask;
        while self.table[at] != 0 {
            at = (at + 1) & mask;
        }
        self.table[at] = position + 1;
    }

    #[cold]
    fn build(&mut self, rows: &[Row]) {
        let len = (rows.len() * 4).next_power_of_two().max(self.table.len());
        self.table.clear();
        self.table.resize(len, 0);
        self.in_use = true;
        for (position, row) in rows.iter().enumerate() {
            self.put(row.ident, position as u32);
        }
    }
}
