//! Remote look-ups in another node's hash index, by reads alone.
//!
//! This module does no input or output: [`FarLookup`] says what to read next, and the caller reads it.
//!
//! ```text
//!  Directory (once a table and node) ──▶ FarIndex { N, chunk pointers }
//!  FarLookup: [chunk pointer, first time] ─▶ bucket ─▶ matches ─▶ (objects: caller) ─▶ [overflow ─▶ matches ...] ─▶ miss + stamp
//!                         ▲                    │ level says: moved
//!                         └── directory again ◀┘
//! ```
//!
//! Requirements on the reads: each aligned 8-byte word is whole, and the words of a bucket come in ascending order or all at
//! once. The bucket's word comes first, so a miss cannot be judged from entries older than its word. A match is only a tag and a
//! reference: the caller must read the object and compare incarnation and key. A miss is final if the stamp still holds
//! ([`BucketStamp::is_still`], or a read of its word) when the transaction validates.

use super::layout::{
    BUCKET_BYTES, BUCKETS_MAX, BucketStamp, BucketWord, CHUNKS, DIRECTORY_ENTRIES, DIRECTORY_ENTRY_BYTES, ENTRIES,
    OVERFLOW_BYTES, OVERFLOW_ENTRIES, bucket_of, chunk_of, directory_entry, table_word, tag,
};
use crate::error::TableId;
use crate::object::ObjectRef;
use farhold_fabric::{FarPtr, NodeId, RegionId};

/// Finds a table's entry in another node's directory.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    node: NodeId,
    region: RegionId,
    table: TableId,
    probe: u64,
}

impl Directory {
    /// Begins.
    #[must_use]
    pub fn new(node: NodeId, region: RegionId, table: TableId) -> Self {
        Self { node, region, table, probe: 0 }
    }

    /// What to read next: the place and the number of bytes. `None`: the table has no hash index there.
    #[must_use]
    pub fn next(&self) -> Option<(FarPtr, usize)> {
        let at = FarPtr::new(self.node, self.region, directory_entry(self.table, self.probe));
        (self.probe < DIRECTORY_ENTRIES).then_some((at, DIRECTORY_ENTRY_BYTES as usize))
    }

    /// Judges what was read; `Some` if it is the table's index. Otherwise [`next`](Self::next) says how to go on.
    ///
    /// # Panics
    /// If it is less than was asked for.
    pub fn learn(&mut self, bytes: &[u8]) -> Option<FarIndex> {
        let entry = word_at(bytes, 0);
        if entry == table_word(self.table) {
            let entry = FarPtr::new(self.node, self.region, directory_entry(self.table, self.probe));
            let (root, count) = root_and_count(bytes)?;
            return Some(FarIndex { entry, table: self.table, root, count, chunks: Vec::new() });
        }
        self.probe = if entry == 0 { DIRECTORY_ENTRIES } else { self.probe + 1 };
        None
    }
}

/// The known state of another node's index: enough to reach a bucket with one read.
#[derive(Clone, Debug)]
pub struct FarIndex {
    entry: FarPtr,
    table: TableId,
    root: u64,
    count: u64,
    /// Offsets of chunks, 0 where not known yet.
    chunks: Vec<u64>,
}

impl FarIndex {
    fn at(&self, offset: u64) -> FarPtr {
        FarPtr::new(self.entry.node(), self.entry.region(), offset & FarPtr::OFFSET_MAX)
    }

    /// Takes over the directory's present content; `false` if the index is not in it any more.
    fn refresh(&mut self, bytes: &[u8]) -> bool {
        if word_at(bytes, 0) != table_word(self.table) {
            return false;
        }
        let Some((root, count)) = root_and_count(bytes) else { return false };
        if root != self.root {
            self.chunks.clear();
        }
        (self.root, self.count) = (root, count);
        true
    }
}

/// Of an entry of the directory, if an index can have them.
fn root_and_count(entry: &[u8]) -> Option<(u64, u64)> {
    let (root, count) = (word_at(entry, 1), word_at(entry, 2));
    (root <= FarPtr::OFFSET_MAX - CHUNKS * 8 && (1..=BUCKETS_MAX).contains(&count)).then_some((root, count))
}

/// Objects that may have the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    refs: [u64; ENTRIES],
    count: usize,
}

impl Matches {
    /// The objects.
    pub fn iter(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        self.refs[..self.count].iter().map(|bits| ObjectRef::from_bits(*bits))
    }
}

/// What a lookup wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarStep {
    /// Read these bytes and give them to [`FarLookup::learn`].
    Read {
        /// Where.
        at: FarPtr,
        /// How many.
        bytes: usize,
    },
    /// Read these objects. If one has the key, it is the answer. If none has, call [`FarLookup::no_match`].
    Matches(Matches),
    /// The key is not there, as long as the stamp holds.
    Missing(BucketStamp),
    /// The index is gone: the table was dropped, or its node has restarted. Begin with its [`Directory`].
    Gone,
}

/// One lookup on its way.
#[derive(Clone, Copy, Debug)]
pub struct FarLookup {
    hash: u64,
    state: State,
    stamp: BucketStamp,
    overflow: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Chunk(u64),
    Bucket { bucket: u64 },
    Overflow,
    Directory,
}

impl FarLookup {
    /// Begins a lookup.
    #[must_use]
    pub fn start(index: &FarIndex, hash: u64) -> (Self, FarStep) {
        let mut this = Self { hash, state: State::Directory, stamp: BucketStamp { offset: 0, word: 0 }, overflow: 0 };
        let step = this.go_to_bucket(index);
        (this, step)
    }

    fn go_to_bucket(&mut self, index: &FarIndex) -> FarStep {
        let bucket = bucket_of(self.hash, index.count);
        let (chunk, within) = chunk_of(bucket);
        match index.chunks.get(chunk as usize).copied().unwrap_or(0) {
            0 => {
                self.state = State::Chunk(chunk);
                FarStep::Read { at: index.at(index.root + chunk * 8), bytes: 8 }
            }
            start => {
                self.state = State::Bucket { bucket };
                self.stamp.offset = start + within;
                FarStep::Read { at: index.at(start + within), bytes: BUCKET_BYTES as usize }
            }
        }
    }

    fn go_to_directory(&mut self, index: &FarIndex) -> FarStep {
        self.state = State::Directory;
        FarStep::Read { at: index.entry, bytes: DIRECTORY_ENTRY_BYTES as usize }
    }

    /// Goes on with what was read.
    ///
    /// # Panics
    /// If it is less than was asked for.
    pub fn learn(&mut self, index: &mut FarIndex, bytes: &[u8]) -> FarStep {
        match self.state {
            State::Directory => {
                if index.refresh(bytes) {
                    self.go_to_bucket(index)
                } else {
                    FarStep::Gone
                }
            }
            State::Chunk(chunk) => {
                let start = word_at(bytes, 0);
                if start == 0 || start > FarPtr::OFFSET_MAX {
                    return self.go_to_directory(index);
                }
                if index.chunks.len() <= chunk as usize {
                    index.chunks.resize(chunk as usize + 1, 0);
                }
                index.chunks[chunk as usize] = start;
                self.go_to_bucket(index)
            }
            State::Bucket { bucket } => {
                let word = BucketWord(word_at(bytes, 0));
                if word.level() == 0 {
                    // No bucket has this form: the pages have another use by now.
                    index.chunks.clear();
                    return self.go_to_directory(index);
                }
                if !word.covers(self.hash, bucket) {
                    return self.go_to_directory(index);
                }
                self.stamp.word = word.0;
                self.overflow = word.overflow();
                self.judge(index, bytes, ENTRIES)
            }
            State::Overflow => {
                self.overflow = BucketWord(word_at(bytes, 0)).overflow();
                self.judge(index, bytes, OVERFLOW_ENTRIES)
            }
        }
    }

    fn judge(&mut self, index: &FarIndex, bytes: &[u8], count: usize) -> FarStep {
        let mut matches = Matches::default();
        for entry in (1..=count).map(|place| word_at(bytes, place)) {
            if entry != 0 && entry >> 56 == tag(self.hash) {
                matches.refs[matches.count] = entry & ObjectRef::BITS;
                matches.count += 1;
            }
        }
        if matches.count > 0 { FarStep::Matches(matches) } else { self.no_match(index) }
    }

    /// Goes on when no match had the key.
    pub fn no_match(&mut self, index: &FarIndex) -> FarStep {
        if self.overflow != 0 {
            self.state = State::Overflow;
            return FarStep::Read { at: index.at(self.overflow), bytes: OVERFLOW_BYTES as usize };
        }
        if BucketWord(self.stamp.word).is_locked() {
            return self.go_to_bucket(index); // A writer was at it: read it again.
        }
        FarStep::Missing(self.stamp)
    }
}

fn word_at(bytes: &[u8], word: usize) -> u64 {
    u64::from_le_bytes(bytes[word * 8..word * 8 + 8].try_into().expect("8 bytes"))
}
