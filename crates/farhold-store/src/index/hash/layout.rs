//! What a hash index looks like in the region: the directory, the root, the buckets.
//!
//! ```text
//!  superblock page, entry of 64 bytes:  table + 1 │ root offset │ N (buckets) │ 0 ...
//!                                                      │
//!  root page:  8192 offsets of chunks  ◀───────────────┘
//!                  │
//!  chunk (1024 buckets; from the 4096th chunk on, 16 times that)
//!                  │
//!  bucket, 64 bytes:  word │ 7 entries  tag:8 (56..64) │ ObjectRef:56, 0 = empty
//!                      └── overflow:30 (34..64, a bucket's offset / 64) │ level:6 │ version:27 │ locked:1
//! ```
//!
//! Linear hashing (Litwin, VLDB 1980): with L = floor(log2 N), a hash belongs to bucket `hash mod 2^(L+1)` if there is one,
//! else to `hash mod 2^L`. Growing by one splits bucket `N - 2^L`. Each bucket says at which level it is, that is how many
//! bits of a hash it stands for; so a reader with an old N, near or far, sees from the bucket alone that its hash has gone
//! elsewhere. The word of the first bucket covers its overflow buckets too, whose words hold nothing but the next link.

use crate::error::TableId;
use crate::object::ObjectRef;
use crate::object::size_class::PAGE_BYTES;
use crate::superblock::DIRECTORY;
use farhold_fabric::RegionMemory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Bytes of a bucket.
pub const BUCKET_BYTES: u64 = 64;
/// Entries of a bucket.
pub const ENTRIES: usize = 7;
/// Bytes of a directory entry.
pub const DIRECTORY_ENTRY_BYTES: u64 = 64;
/// Entries of the directory.
pub const DIRECTORY_ENTRIES: u64 = (PAGE_BYTES - DIRECTORY) / DIRECTORY_ENTRY_BYTES;
/// Offsets of the words of a directory entry.
pub(crate) const ROOT: u64 = 8;
pub(crate) const COUNT: u64 = 16;

const CHUNK_BUCKETS: u64 = PAGE_BYTES / BUCKET_BYTES;
const SMALL_CHUNKS: u64 = 4096;
const LARGE_PAGES: u64 = 16;
/// Chunks that a root page can name.
pub(crate) const CHUNKS: u64 = PAGE_BYTES / 8;
/// Buckets that there can be.
pub(crate) const BUCKETS_MAX: u64 = CHUNK_BUCKETS * (SMALL_CHUNKS + (CHUNKS - SMALL_CHUNKS) * LARGE_PAGES);
/// Buckets of an empty index: one chunk.
pub(crate) const BUCKETS_MIN: u64 = CHUNK_BUCKETS;

/// The hash of a key, the same on every node and in every run: 8 bytes at a time, folded by a 128-bit product (the step of
/// wyhash). It resists bad luck, not an adversary: who can choose keys can make chains long.
#[must_use]
#[inline]
pub fn hash_key(key: &[u8]) -> u64 {
    const STEP: u64 = 0xa076_1d64_78bd_642f;
    const LAST: u64 = 0xe703_7ed1_a0b4_28db;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let chunks = key.chunks_exact(8);
    let rest = chunks.remainder();
    let mut hash = 0x8ebc_6af0_9c88_c6e3 ^ key.len() as u64;
    for chunk in chunks {
        hash = fold(hash ^ u64::from_le_bytes(chunk.try_into().expect("8 bytes")), STEP);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(hash ^ u64::from_le_bytes(last), LAST)
}

/// The tag that an entry carries: bits that no bucket number uses.
#[inline(always)]
pub(crate) fn tag(hash: u64) -> u64 {
    hash >> 56
}

#[inline(always)]
pub(crate) fn entry_of(hash: u64, reference: ObjectRef) -> u64 {
    tag(hash) << 56 | reference.to_bits()
}

/// The bucket of a hash among `count`.
#[inline(always)]
pub(crate) fn bucket_of(hash: u64, count: u64) -> u64 {
    let level = count.ilog2();
    let bucket = hash & ((2 << level) - 1);
    if bucket < count { bucket } else { hash & ((1 << level) - 1) }
}

/// The chunk of a bucket, and the bucket's offset in it.
#[inline(always)]
pub(crate) fn chunk_of(bucket: u64) -> (u64, u64) {
    let small = SMALL_CHUNKS * CHUNK_BUCKETS;
    if bucket < small {
        (bucket / CHUNK_BUCKETS, bucket % CHUNK_BUCKETS * BUCKET_BYTES)
    } else {
        let (bucket, per_chunk) = (bucket - small, CHUNK_BUCKETS * LARGE_PAGES);
        (SMALL_CHUNKS + bucket / per_chunk, bucket % per_chunk * BUCKET_BYTES)
    }
}

/// Pages of a chunk.
pub(crate) fn chunk_pages(chunk: u64) -> u32 {
    if chunk < SMALL_CHUNKS { 1 } else { LARGE_PAGES as u32 }
}

/// A bucket's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketWord(pub u64);

impl BucketWord {
    const VERSION_ONE: u64 = 2;
    const VERSION_BITS: u64 = ((1 << 27) - 1) << 1;
    const LEVEL_SHIFT: u32 = 28;
    const OVERFLOW_SHIFT: u32 = 34;

    pub const fn new(level: u32, overflow: u64) -> Self {
        Self((overflow / BUCKET_BYTES) << Self::OVERFLOW_SHIFT | (level as u64) << Self::LEVEL_SHIFT)
    }
    #[inline(always)]
    pub const fn is_locked(self) -> bool {
        self.0 & 1 != 0
    }
    #[inline(always)]
    pub const fn locked(self) -> Self {
        Self(self.0 | 1)
    }
    #[inline(always)]
    pub const fn level(self) -> u32 {
        (self.0 >> Self::LEVEL_SHIFT) as u32 & 63
    }
    /// Offset of the next bucket of the chain, 0 if there is none.
    #[inline(always)]
    pub const fn overflow(self) -> u64 {
        (self.0 >> Self::OVERFLOW_SHIFT) * BUCKET_BYTES
    }
    /// Unlocked, with the next version.
    pub const fn next(self) -> Self {
        let version = self.0.wrapping_add(Self::VERSION_ONE) & Self::VERSION_BITS;
        Self(self.0 & !Self::VERSION_BITS & !1 | version)
    }
    pub const fn with(self, level: u32, overflow: u64) -> Self {
        Self(self.0 & (Self::VERSION_BITS | 1) | Self::new(level, overflow).0)
    }
    /// Does the bucket, if it is number `bucket`, stand for this hash?
    #[inline(always)]
    pub const fn covers(self, hash: u64, bucket: u64) -> bool {
        hash & ((1 << self.level()) - 1) == bucket
    }
}

/// A bucket at a version: covers what was not found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketStamp {
    /// Its offset in the region.
    pub offset: u64,
    /// Its word.
    pub word: u64,
}

impl BucketStamp {
    /// Is the bucket as it was? (False while a writer is at it.)
    #[must_use]
    #[inline(always)]
    pub fn is_still(&self, memory: &RegionMemory) -> bool {
        memory.word(self.offset).is_ok_and(|word| word.load(SeqCst) == self.word)
    }
}

/// Offset of the `probe`th directory entry where a table may be.
pub(crate) fn directory_entry(table: TableId, probe: u64) -> u64 {
    DIRECTORY + (u64::from(table.0) + probe) % DIRECTORY_ENTRIES * DIRECTORY_ENTRY_BYTES
}

pub(crate) fn table_word(table: TableId) -> u64 {
    u64::from(table.0) + 1
}

/// Forgets all indexes of the region.
pub(crate) fn clear_directory(memory: &RegionMemory) {
    for at in (DIRECTORY..PAGE_BYTES).step_by(8) {
        memory.word(at).expect("the first page").store(0, Relaxed);
    }
}

/// Takes a directory entry for a table; its offset, `None` if all are taken. The caller excludes others.
pub(crate) fn claim(memory: &RegionMemory, table: TableId) -> Option<u64> {
    (0..DIRECTORY_ENTRIES).map(|probe| directory_entry(table, probe)).find(|at| {
        let word = memory.word(*at).expect("the first page");
        matches!(word.load(Acquire), 0 | GONE)
    })
}

/// A directory entry that was in use: probing goes on behind it.
pub(crate) const GONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hash_has_one_bucket_and_keeps_it_until_that_splits() {
        for count in BUCKETS_MIN..BUCKETS_MIN * 4 {
            let level = count.ilog2();
            for hash in (0..50).map(|i: u64| hash_key(&i.to_le_bytes())) {
                let (now, later) = (bucket_of(hash, count), bucket_of(hash, count + 1));
                assert!(now < count);
                assert!(now == later || (now == count - (1 << level) && later == count), "{count}");
            }
        }
    }

    #[test]
    fn chunks_follow_one_another() {
        let mut expected = (0, 0);
        for bucket in (0..SMALL_CHUNKS * CHUNK_BUCKETS + 100_000).chain(BUCKETS_MAX - 1..BUCKETS_MAX) {
            let (chunk, at) = chunk_of(bucket);
            assert!(chunk < CHUNKS && at < u64::from(chunk_pages(chunk)) * PAGE_BYTES);
            if bucket < BUCKETS_MAX - 1 {
                assert_eq!((chunk, at), expected);
                let next = at + BUCKET_BYTES;
                let full = next == u64::from(chunk_pages(chunk)) * PAGE_BYTES;
                expected = if full { (chunk + 1, 0) } else { (chunk, next) };
            }
        }
    }

    #[test]
    fn the_parts_of_a_word_do_not_touch() {
        let word = BucketWord::new(27, 64 * ((1 << 30) - 1));
        assert_eq!((word.level(), word.overflow(), word.is_locked()), (27, 64 * ((1 << 30) - 1), false));
        let next = BucketWord(word.locked().0 | BucketWord::VERSION_BITS).next();
        assert_eq!(next, word, "the version wraps within its bits");
        let moved = word.next().with(3, 64);
        assert_eq!((moved.level(), moved.overflow()), (3, 64));
        assert_eq!(moved.0 & BucketWord::VERSION_BITS, 2);
    }
}
