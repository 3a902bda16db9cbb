//! The layout of a hash index in the region: the directory, the root, the buckets.
//!
//! ```text
//!  superblock, entry of 64 bytes:  table + 1 │ root offset │ N (buckets) │ 0 ...
//!                                                 │
//!  first page:  1024 offsets of chunks  ◀─────────┘ │ chunk 0 (64 buckets)
//!                  │
//!  chunk (a page of 128 buckets; later ones are longer, see `TIERS`)
//!                  │
//!  bucket, 128 bytes:  word │ 15 entries  tag:8 (56..64) │ ObjectRef:56, 0 = empty
//!                       └── overflow:30 (34..64, its offset / 64) │ level:6 │ version:27 │ locked:1
//!  overflow, 64 bytes: word │ 7 entries
//! ```
//!
//! Two cache lines a bucket: the number of keys in a bucket varies less, by its size, so buckets can be fuller. With 15
//! entries at 14 on average a row takes 11 to 12 bytes and a far lookup 1.1 to 1.2 reads. One line of 7 entries at 4 on
//! average took 18 bytes at 1.05 reads, and by calculation 12.9 bytes at 1.2 reads at 6, with overflows of half a line.
//!
//! Linear hashing (Litwin, VLDB 1980): with L = floor(log2 N), a hash belongs to bucket `hash mod 2^(L+1)` if there is one, else
//! to `hash mod 2^L`. Growing by one splits bucket `N - 2^L`. Each bucket stores its level, which is how many bits of a hash it
//! stands for. So a reader with an old N, near or far, sees from the bucket alone that its hash has moved elsewhere. The word of
//! the first bucket covers its overflow buckets too; their words hold only the next link.

use crate::error::TableId;
use crate::object::ObjectRef;
use crate::object::size_class::PAGE_BYTES;
use crate::superblock::{DIRECTORY, SUPERBLOCK_BYTES};
use farhold_fabric::RegionMemory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Bytes of a bucket.
pub const BUCKET_BYTES: u64 = 128;
/// Entries of a bucket.
pub const ENTRIES: usize = 15;
/// Bytes of what a full bucket leads to.
pub const OVERFLOW_BYTES: u64 = 64;
/// Entries of an overflow.
pub const OVERFLOW_ENTRIES: usize = 7;
/// Bytes of a directory entry.
pub const DIRECTORY_ENTRY_BYTES: u64 = 64;
/// Entries of the directory.
pub const DIRECTORY_ENTRIES: u64 = (SUPERBLOCK_BYTES - DIRECTORY) / DIRECTORY_ENTRY_BYTES;
/// Offsets of the words of a directory entry.
pub(crate) const ROOT: u64 = 8;
pub(crate) const COUNT: u64 = 16;

/// Bytes of the root: half of the first page.
pub(crate) const ROOT_BYTES: u64 = PAGE_BYTES / 2;
/// Chunks that a root can name.
pub(crate) const CHUNKS: u64 = ROOT_BYTES / 8;
/// Buckets of an empty index: chunk 0, behind the root.
pub(crate) const BUCKETS_MIN: u64 = (PAGE_BYTES - ROOT_BYTES) / BUCKET_BYTES;

const PAGE_BUCKETS: u64 = PAGE_BYTES / BUCKET_BYTES;

/// Chunks after chunk 0, and pages of each. A chunk is one piece of memory and at most 1/256 of the index before it, or a
/// page; so a small table takes little and a large one does not fill its root before it has 880 million rows.
const TIERS: [(u64, u64); 3] = [(256, 1), (256, 64), (CHUNKS - 513, 1024)];

/// Buckets that there can be.
pub(crate) const BUCKETS_MAX: u64 = {
    let (mut buckets, mut tier) = (BUCKETS_MIN, 0);
    while tier < TIERS.len() {
        buckets += TIERS[tier].0 * TIERS[tier].1 * PAGE_BUCKETS;
        tier += 1;
    }
    buckets
};

/// The hash of a key, the same on every node and in every run: 8 bytes at a time, folded by a 128-bit product (the step of
/// wyhash). It resists bad luck, not an adversary: an adversary that can choose keys can make chains long.
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
    if bucket < BUCKETS_MIN {
        return (0, bucket * BUCKET_BYTES);
    }
    let (mut bucket, mut first) = (bucket - BUCKETS_MIN, 1);
    for (chunks, pages) in TIERS {
        let per_chunk = PAGE_BUCKETS * pages;
        if bucket < chunks * per_chunk {
            return (first + bucket / per_chunk, bucket % per_chunk * BUCKET_BYTES);
        }
        (bucket, first) = (bucket - chunks * per_chunk, first + chunks);
    }
    unreachable!("there are no more than BUCKETS_MAX")
}

/// Pages of a chunk from chunk 1 on.
pub(crate) fn chunk_pages(chunk: u64) -> u32 {
    let mut first = 1;
    for (chunks, pages) in TIERS {
        if chunk < first + chunks {
            return pages as u32;
        }
        first += chunks;
    }
    unreachable!("there are no more than CHUNKS")
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
        Self((overflow / OVERFLOW_BYTES) << Self::OVERFLOW_SHIFT | (level as u64) << Self::LEVEL_SHIFT)
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
    /// Offset of the next overflow of the chain, 0 if there is none.
    #[inline(always)]
    pub const fn overflow(self) -> u64 {
        (self.0 >> Self::OVERFLOW_SHIFT) * OVERFLOW_BYTES
    }
    /// Unlocked, with the next version.
    pub const fn next(self) -> Self {
        let version = self.0.wrapping_add(Self::VERSION_ONE) & Self::VERSION_BITS;
        Self(self.0 & !Self::VERSION_BITS & !1 | version)
    }
    pub const fn with(self, level: u32, overflow: u64) -> Self {
        Self(self.0 & (Self::VERSION_BITS | 1) | Self::new(level, overflow).0)
    }
    /// Whether the bucket, if it is number `bucket`, stands for this hash.
    #[inline(always)]
    pub const fn covers(self, hash: u64, bucket: u64) -> bool {
        hash & ((1 << self.level()) - 1) == bucket
    }
}

/// A bucket at a version: it covers what was not found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketStamp {
    /// Its offset in the region.
    pub offset: u64,
    /// Its word.
    pub word: u64,
}

impl BucketStamp {
    /// Whether the bucket is unchanged. (False while a writer changes it.)
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
    for at in (DIRECTORY..SUPERBLOCK_BYTES).step_by(8) {
        memory.word(at).expect("the superblock").store(0, Relaxed);
    }
}

/// Takes a directory entry for a table. Returns its offset, or `None` if all are taken. The caller excludes other threads.
pub(crate) fn claim(memory: &RegionMemory, table: TableId) -> Option<u64> {
    (0..DIRECTORY_ENTRIES).map(|probe| directory_entry(table, probe)).find(|at| {
        let word = memory.word(*at).expect("the superblock");
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
        let bytes_of = |chunk| if chunk == 0 { ROOT_BYTES } else { u64::from(chunk_pages(chunk)) * PAGE_BYTES };
        let second_tier = PAGE_BUCKETS * (257 + 256 * 64);
        let count = if cfg!(miri) { 300 } else { second_tier + 500_000 };
        for bucket in (0..count).chain(BUCKETS_MAX - 1..BUCKETS_MAX) {
            let (chunk, at) = chunk_of(bucket);
            assert!(chunk < CHUNKS && at < bytes_of(chunk));
            if bucket < BUCKETS_MAX - 1 {
                assert_eq!((chunk, at), expected);
                let next = at + BUCKET_BYTES;
                expected = if next == bytes_of(chunk) { (chunk + 1, 0) } else { (chunk, next) };
            }
        }
        assert_eq!(chunk_of(BUCKETS_MAX - 1).0, CHUNKS - 1);
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
