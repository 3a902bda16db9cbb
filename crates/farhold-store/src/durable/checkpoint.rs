//! A checkpoint: the live rows of a region, run of pages by run of pages, while transactions go on.
//!
//! ```text
//!  +0     magic │ version │ cluster │ node │ nodes │ start, epoch │ last page event │ region bytes │ checksum
//!  +4096  block: size │ page, pages │ table, class │ rows │ body checksum │ checksum; rows: offset │ version │ meta │ payload
//!  ...
//!  index  for each block: where │ size │ page, pages │ table, class
//!  end    magic, index at, blocks, rows, epoch max, index checksum │ checksum
//! ```
//!
//! When a checkpoint begins, every change up to the header's epoch has been made in the region, so it contains at least those. It
//! may contain some later changes, each row at one whole state. So it is valid as soon as all epochs up to its latest are
//! durable, and gets its name only then. Together with the records after the header's epoch it then gives the exact state.

use super::files::{Directory, DurableFile};
use super::{DurableError, Identity, Inventory, check_words, seal, unseal, word};
use crate::error::TableId;
use crate::log::record::hash;
use crate::object::size_class::SizeClass;
use crate::object::{Object, ReadError};
use crate::slab::{PageKind, Run};
use crate::store::Store;
use farhold_fabric::{Meta, NodeId, Version};
use std::sync::Arc;

const MAGIC: u64 = u64::from_le_bytes(*b"FARHCHK1");
const VERSION: u64 = 1;
const END_MAGIC: u64 = u64::from_le_bytes(*b"1KHCHRAF");
const HEADER_BYTES: u64 = 4096;
const BLOCK_HEADER: usize = 48;
const END_BYTES: u64 = 56;
const ROW_HEADER: usize = 24;
const INDEX_ENTRY: usize = 32;
/// How many times a row that is being written is read: some milliseconds.
const PATIENCE: u32 = 100_000;
/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// What a checkpoint's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The node and its cluster.
    pub identity: Identity,
    /// Made in this start of the node.
    pub start: u32,
    /// Contains everything up to this epoch.
    pub epoch: u32,
    /// The page events of its start up to this one are in it.
    pub event: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
}

/// One that has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its head.
    pub head: Head,
    /// The latest epoch of a row in it.
    pub epoch_max: u32,
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

pub(super) fn name(node: NodeId, start: u32, epoch: u32) -> String {
    format!("node-{}.checkpoint-{start:08}-{epoch:010}", node.0)
}

fn part(node: NodeId) -> String {
    format!("node-{}.checkpoint.part", node.0)
}

/// A node's checkpoints: start and epoch, ascending.
#[must_use]
pub fn checkpoints(names: &[String], node: NodeId) -> Vec<(u32, u32)> {
    let prefix = format!("node-{}.checkpoint-", node.0);
    let parse = |name: &String| {
        let (start, epoch) = name.strip_prefix(&prefix)?.split_once('-')?;
        Some((start.parse().ok()?, epoch.parse().ok()?))
    };
    let mut found: Vec<(u32, u32)> = names.iter().filter_map(parse).collect();
    found.sort_unstable();
    found
}

struct Out<'d> {
    file: &'d dyn DurableFile,
    at: u64,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn position(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_at(self.at, &self.bytes)?;
        self.at += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }
}

/// Writes a checkpoint of a node's rows, without a name yet. Every change up to `epoch` has been made. `pause` is called between
/// runs, and may end the checkpoint.
///
/// # Errors
/// [`DurableError::Io`]; nothing of the checkpoint is left then.
pub fn write(
    store: &Store,
    directory: &dyn Directory,
    (identity, start, epoch): (Identity, u32, u32),
    pause: &mut dyn FnMut() -> bool,
) -> Result<Option<Written>, DurableError> {
    let part = part(identity.node);
    let done = write_part(store, directory, &part, (identity, start, epoch), pause);
    if !matches!(done, Ok(Some(_))) {
        let _ = directory.remove(&part);
    }
    done.map_err(|error| DurableError::io(&format!("write a checkpoint into {}", directory.name()), &error))
}

fn write_part(
    store: &Store,
    directory: &dyn Directory,
    part: &str,
    (identity, start, epoch): (Identity, u32, u32),
    pause: &mut dyn FnMut() -> bool,
) -> std::io::Result<Option<Written>> {
    let file = directory.create(part)?;
    let corrupt = |error: crate::StoreError| std::io::Error::other(error.to_string());
    let (runs, event) = store.pages().runs_of_slots().map_err(corrupt)?;
    let head = Head { identity, start, epoch, event, region_bytes: store.memory().len() };
    let mut out = Out { file: &*file, at: 0, bytes: Vec::new() };
    let Identity { cluster, node, nodes } = identity;
    let when = u64::from(start) << 32 | u64::from(epoch);
    let words = [MAGIC, VERSION, cluster, u64::from(node.0), u64::from(nodes), when, head.event, head.region_bytes];
    out.put(&seal(&words))?;
    out.put(&vec![0; HEADER_BYTES as usize - out.bytes.len()])?;
    let (mut index, mut rows, mut epoch_max) = (Vec::new(), 0, 0);
    let mut block = Block::default();
    for run in &runs {
        if !pause() {
            return Ok(None);
        }
        if !block.take(store, run) {
            return Ok(None);
        }
        let at = out.position();
        let what = [at, block.bytes.len() as u64, run.page_word(), run.use_word()];
        index.extend(what.iter().flat_map(|word| word.to_le_bytes()));
        rows += block.rows;
        epoch_max = epoch_max.max(block.epoch_max);
        out.put(&block.bytes)?;
    }
    let index_at = out.position();
    let sum = hash(index_at, &index);
    out.put(&index)?;
    let counts = u64::from(epoch_max) << 32 | runs.len() as u64;
    out.put(&seal(&[END_MAGIC, index_at, counts, rows, when, sum]))?;
    out.flush()?;
    file.sync()?;
    Ok(Some(Written { head, epoch_max, rows, bytes: out.at }))
}

impl Run {
    fn page_word(&self) -> u64 {
        u64::from(self.page) << 32 | u64::from(self.pages)
    }

    fn use_word(&self) -> u64 {
        u64::from(self.table.0) << 32 | u64::from(self.class.0)
    }

    fn of_words(page: u64, what: u64) -> Self {
        let (class, kind) = (SizeClass(what as u8), PageKind::Slots);
        Self { page: (page >> 32) as u32, pages: page as u32, table: TableId((what >> 32) as u32), class, kind }
    }
}

/// The rows of a run.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    rows: u64,
    epoch_max: u32,
    payload: Vec<u8>,
}

impl Block {
    /// False: a row is being written for longer than that. Its writer may be dead, or may have to run first.
    fn take(&mut self, store: &Store, run: &Run) -> bool {
        self.bytes.clear();
        self.bytes.resize(BLOCK_HEADER, 0);
        (self.rows, self.epoch_max) = (0, 0);
        let is_there = || matches!(store.pages().table().run_at(run.page), Ok(Some(found)) if found == *run);
        if is_there() {
            for offset in run.slots() {
                if !self.take_row(store, run, offset) {
                    return false;
                }
            }
        }
        if !is_there() {
            // The run was given back meanwhile, after all its rows had been deleted: the journal says so.
            self.bytes.truncate(BLOCK_HEADER);
            (self.rows, self.epoch_max) = (0, 0);
        }
        let sum = hash(self.rows, &self.bytes[BLOCK_HEADER..]);
        let words = [self.bytes.len() as u64, run.page_word(), run.use_word(), self.rows, sum];
        self.bytes[..BLOCK_HEADER].copy_from_slice(&seal(&words));
        true
    }

    /// A deleted row is not in the checkpoint, which is valid only once the delete counts. The version of a slot says when that
    /// was, also when the slot is free by now, or reserved for another row.
    fn take_row(&mut self, store: &Store, run: &Run, offset: u64) -> bool {
        let object = Object::at(store.memory(), offset);
        for _ in 0..PATIENCE {
            let (meta, version) = (object.meta(), object.version());
            // The words of a run that has been given back may be those of another layout.
            if meta.payload_len() > run.class.payload_bytes_max() {
                return true;
            }
            let found = if meta.state() == Meta::ROW && !version.is_absent() {
                self.payload.resize(meta.payload_len(), 0);
                object.read(meta.incarnation(), &mut self.payload).map(|read| (read.version, Some(read)))
            } else {
                Ok((version, None))
            };
            match found {
                Ok((version, read)) => {
                    self.epoch_max = self.epoch_max.max(version.epoch());
                    if let Some(read) = read.filter(|read| !read.is_absent()) {
                        let version = Version(version.number());
                        let meta = Meta::new(meta.incarnation(), Meta::ROW, read.key_len(), read.payload_len());
                        let payload = &self.payload[..read.payload_len()];
                        for word in [offset, version.0, meta.0] {
                            self.bytes.extend(word.to_le_bytes());
                        }
                        self.bytes.extend_from_slice(payload);
                        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
                        self.rows += 1;
                    }
                    return true;
                }
                // A writer is changing it, or has just made another slot of it.
                Err(ReadError::Torn | ReadError::Stale | ReadError::TooShort { .. }) => std::hint::spin_loop(),
            }
        }
        false
    }
}

/// Gives a checkpoint its name, when everything in it is durable. Older checkpoints are removed.
///
/// # Errors
/// [`DurableError::Io`]. If the list cannot be written, the older checkpoints are removed all the same: the new one stands for
/// those that are listed, and repeated attempts do not fill the disk.
pub fn publish(directory: &dyn Directory, inventory: &Inventory, written: &Written) -> Result<(), DurableError> {
    let Head { identity, start, epoch, .. } = written.head;
    let node = identity.node;
    let io = |error: std::io::Error| DurableError::io("publish a checkpoint", &error);
    directory.rename(&part(node), &name(node, start, epoch)).map_err(io)?;
    directory.sync().map_err(io)?;
    let listed = inventory.set_checkpoint(start, epoch);
    let names = directory.list().map_err(io)?;
    for (older, at) in checkpoints(&names, node).into_iter().filter(|found| *found < (start, epoch)) {
        directory.remove(&name(node, older, at)).map_err(io)?;
    }
    listed
}

/// A checkpoint to restore from.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its head.
    pub head: Head,
    /// How many rows it has.
    pub rows: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
    file: Arc<dyn DurableFile>,
    name: String,
    index: Vec<u8>,
}

/// A row of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointRow<'a> {
    /// Where in the region.
    pub offset: u64,
    /// Its version.
    pub version: Version,
    /// Its lengths and incarnation.
    pub meta: Meta,
    /// Key and value.
    pub payload: &'a [u8],
}

impl Checkpoint {
    /// The node's latest checkpoint, whole as far as its head, index and end say.
    ///
    /// # Errors
    /// [`DurableError::Damaged`], [`DurableError::Foreign`], [`DurableError::Io`].
    pub fn open(
        directory: &dyn Directory,
        identity: &Identity,
        names: &[String],
    ) -> Result<Option<Self>, DurableError> {
        let Some((start, epoch)) = checkpoints(names, identity.node).pop() else { return Ok(None) };
        let name = name(identity.node, start, epoch);
        let io = |error: std::io::Error| DurableError::io(&format!("read {name}"), &error);
        let file = directory.open(&name).map_err(io)?;
        let len = file.len().map_err(io)?;
        let damaged = |at, what| Err(DurableError::damaged(&name, at, what));
        if len < HEADER_BYTES + END_BYTES {
            return damaged(len, "it is cut off");
        }
        let mut bytes = vec![0; HEADER_BYTES as usize];
        file.read_at(0, &mut bytes).map_err(io)?;
        check_words(&name, &[word(&bytes, 0), word(&bytes, 8)], &[("magic number", MAGIC), ("version", VERSION)])?;
        let Some(head) = unseal::<8>(&bytes) else { return damaged(0, "its header's checksum is another") };
        let when = u64::from(start) << 32 | u64::from(epoch);
        let expected = [
            ("cluster", identity.cluster),
            ("node", u64::from(identity.node.0)),
            ("number of nodes", u64::from(identity.nodes)),
            ("start and epoch", when),
        ];
        check_words(&name, &head[2..], &expected)?;
        let mut end = vec![0; END_BYTES as usize];
        file.read_at(len - END_BYTES, &mut end).map_err(io)?;
        let words = unseal::<6>(&end);
        let Some([END_MAGIC, index_at, counts, rows, found, sum]) = words.filter(|words| words[4] == when) else {
            return damaged(len - END_BYTES, "its end is not there");
        };
        debug_assert_eq!(found, when);
        let blocks = u64::from(counts as u32);
        if index_at.checked_add(blocks * INDEX_ENTRY as u64 + END_BYTES) != Some(len) || index_at < HEADER_BYTES {
            return damaged(len - END_BYTES, "its length is another");
        }
        let mut index = vec![0; blocks as usize * INDEX_ENTRY];
        file.read_at(index_at, &mut index).map_err(io)?;
        if hash(index_at, &index) != sum {
            return damaged(index_at, "its index's checksum is another");
        }
        let head = Head { identity: *identity, start, epoch, event: head[6], region_bytes: head[7] };
        Ok(Some(Self { head, rows, bytes: index_at, file, name, index }))
    }

    /// How many blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.index.len() / INDEX_ENTRY
    }

    /// The run of a block.
    #[must_use]
    pub fn run(&self, block: usize) -> Run {
        let at = block * INDEX_ENTRY;
        Run::of_words(word(&self.index, at + 16), word(&self.index, at + 24))
    }

    /// Reads a block; the number of its bytes.
    ///
    /// # Errors
    /// [`DurableError::Damaged`], [`DurableError::Io`].
    pub fn read(
        &self,
        block: usize,
        bytes: &mut Vec<u8>,
        visit: &mut dyn FnMut(&CheckpointRow<'_>) -> Result<(), &'static str>,
    ) -> Result<u64, DurableError> {
        let (at, size) = (word(&self.index, block * INDEX_ENTRY), word(&self.index, block * INDEX_ENTRY + 8));
        let damaged = |what| DurableError::damaged(&self.name, at, what);
        if size < BLOCK_HEADER as u64 || at.checked_add(size).is_none_or(|end| end > self.bytes) {
            return Err(damaged("a block lies outside of it"));
        }
        bytes.resize(size as usize, 0);
        let io = |error: std::io::Error| DurableError::io(&format!("read {}", self.name), &error);
        self.file.read_at(at, bytes).map_err(io)?;
        let run = self.run(block);
        let (head, mut body) = bytes.split_at(BLOCK_HEADER);
        let Some([found, page, what, rows, sum]) = unseal::<5>(head) else {
            return Err(damaged("a block's header has another checksum"));
        };
        if (found, page, what) != (size, run.page_word(), run.use_word()) || hash(rows, body) != sum {
            return Err(damaged("a block's checksum is another"));
        }
        for _ in 0..rows {
            let Some((head, rest)) = body.split_at_checked(ROW_HEADER) else {
                return Err(damaged("a row is cut off"));
            };
            let (offset, version, meta) = (word(head, 0), Version(word(head, 8)), Meta(word(head, 16)));
            let padded = meta.payload_len().next_multiple_of(8);
            let Some((payload, next)) = rest.split_at_checked(padded) else {
                return Err(damaged("a row is cut off"));
            };
            body = next;
            let row = CheckpointRow { offset, version, meta, payload: &payload[..meta.payload_len()] };
            visit(&row).map_err(damaged)?;
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::super::inventory;
    use super::super::power::Volatile;
    use super::*;
    use crate::object::Owner;
    use crate::table::{Reserve, TableDef, TableStore};
    use farhold_btree::KeyShape;
    use farhold_fabric::{FarPtr, RegionId, RegionMemory};

    /// The row is not in the checkpoint. So its delete must be durable before the checkpoint replaces the files that have the
    /// row.
    #[test]
    fn a_checkpoint_is_as_late_as_the_deletes_of_the_rows_that_it_lacks() {
        const ME: Owner = Owner::new(1, NodeId(0), 0, 1);
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 4 << 20).unwrap();
        let store = Store::format(Arc::new(memory), NodeId(0)).unwrap();
        let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: false, secondaries: Vec::new() };
        let table = TableStore::create(&store, def).unwrap();
        let mut alloc = store.alloc_cache();
        let references = [1_u64, 2].map(|key| {
            let reserved = table.reserve(&key.to_be_bytes(), b"a value", &mut alloc, &|_| false, &mut |_| ()).unwrap();
            let Reserve::Reserved { reference, .. } = reserved else { panic!("{reserved:?}") };
            reference
        });
        let commit = |reference, epoch, flags| {
            let object = store.object(reference);
            let version = object.lock(reference.incarnation(), ME).unwrap();
            object.restamp(version.next(epoch).with(flags));
            object.unlock();
        };
        for reference in references {
            commit(reference, 5, 0);
        }
        let identity = Identity { cluster: 1, node: NodeId(0), nodes: 1 };
        let write = || write(&store, &Volatile::default(), (identity, 1, 5), &mut || true).unwrap().unwrap();
        assert_eq!((write().rows, write().epoch_max), (2, 5));
        commit(references[1], 9, Version::ABSENT);
        assert_eq!((write().rows, write().epoch_max), (1, 9));
    }

    /// The list of files cannot be written, and checkpoint after checkpoint is made: only the last one stays, and a start misses
    /// nothing.
    #[test]
    fn checkpoints_that_cannot_be_listed_do_not_fill_the_disk() {
        let directory = Volatile::default();
        let identity = Identity { cluster: 1, node: NodeId(0), nodes: 1 };
        let inventory = Inventory::open(&directory, &identity).unwrap();
        let publish = |epoch| {
            directory.create(&part(NodeId(0))).unwrap();
            let head = Head { identity, start: 1, epoch, event: 0, region_bytes: 0 };
            let published = publish(&directory, &inventory, &Written { head, epoch_max: epoch, rows: 0, bytes: 0 });
            let names = directory.list().unwrap();
            assert_eq!(checkpoints(&names, NodeId(0)), [(1, epoch)]);
            inventory::check(&directory, &identity, &names).unwrap();
            published
        };
        publish(5).unwrap();
        directory.break_file("node-0.files", true);
        for epoch in 6..20 {
            publish(epoch).expect_err("a list that cannot be written");
        }
        directory.break_file("node-0.files", false);
        publish(20).unwrap();
    }
}
