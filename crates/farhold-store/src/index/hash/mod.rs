//! A hash index in the region: point look-ups of this node in a few cache lines, and of others in one or two reads.
//!
//! `layout.rs` describes the layout. Readers of this node store nothing; they check the bucket's word before and after what they
//! read. A hit needs no further check: the object's incarnation and key are compared, and neither changes. A miss holds while the
//! bucket's word is unchanged, which is its [`BucketStamp`]. A writer locks one bucket, in its word. Growing splits one bucket at
//! a time, under that bucket's lock and a lock of the growth itself.

mod far;
mod grow;
mod layout;
mod location;

pub use far::{Directory, FarIndex, FarLookup, FarStep, Matches};
pub(crate) use layout::clear_directory;
pub use layout::{
    BUCKET_BYTES, BucketStamp, DIRECTORY_ENTRY_BYTES, ENTRIES, OVERFLOW_BYTES, OVERFLOW_ENTRIES, hash_key,
};
pub use location::{LocationCache, LocationCounts};

use crate::error::{StoreError, TableId};
use crate::object::{Object, ObjectRef};
use crate::store::Store;
use farhold_fabric::RegionMemory;
use grow::Pool;
use layout::{
    BUCKETS_MIN, BucketWord, COUNT, GONE, ROOT, ROOT_BYTES, bucket_of, chunk_of, claim, entry_of, table_word, tag,
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU64, fence};
use std::sync::{Arc, Mutex};

/// The number of entries, counted apart so that inserters seldom share a line.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Count(AtomicI64);

/// One change of a bucket, for transactions that hold stamps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub before: BucketStamp,
    pub after: BucketStamp,
    /// Where some of its keys went, if it was split: a transaction that held the stamp from before needs both.
    pub half: Option<BucketStamp>,
}

/// The hash index of a table of this node.
#[derive(Debug)]
pub(crate) struct HashIndex {
    store: Arc<Store>,
    table: TableId,
    /// Offset of the directory entry.
    entry: u64,
    root: u64,
    counts: [Count; 16],
    /// Held by the thread that grows the index; room for a key.
    growing: Mutex<Vec<u8>>,
    pool: Mutex<Pool>,
}

impl HashIndex {
    /// An empty index, entered in the directory.
    pub fn create(store: &Arc<Store>, table: TableId) -> Result<Self, StoreError> {
        let memory = store.memory();
        let root = store.pages().take_hash(table, 1)?;
        let chunk = root.offset() + ROOT_BYTES;
        for bucket in 0..BUCKETS_MIN {
            let word = BucketWord::new(BUCKETS_MIN.ilog2(), 0).0;
            at(memory, chunk + bucket * BUCKET_BYTES).store(word, Relaxed);
        }
        at(memory, root.offset()).store(chunk, Relaxed);
        let _alone = store.directory_lock();
        let Some(entry) = claim(memory, table) else {
            store.pages().give_back(&root);
            return Err(StoreError::TooMany { what: "hash indexes", limit: layout::DIRECTORY_ENTRIES as usize });
        };
        at(memory, entry + ROOT).store(root.offset(), Relaxed);
        at(memory, entry + COUNT).store(BUCKETS_MIN, Relaxed);
        at(memory, entry).store(table_word(table), Release);
        let pool = Mutex::new(Pool { runs: vec![root], ..Pool::default() });
        let counts = Default::default();
        Ok(Self { store: store.clone(), table, entry, root: root.offset(), counts, growing: Mutex::default(), pool })
    }

    #[inline(always)]
    fn memory(&self) -> &RegionMemory {
        self.store.memory()
    }

    #[inline(always)]
    fn count(&self) -> u64 {
        at(self.memory(), self.entry + COUNT).load(Acquire)
    }

    #[inline(always)]
    fn offset_of(&self, bucket: u64) -> u64 {
        let (chunk, within) = chunk_of(bucket);
        // The pointer was stored before the count that made this bucket one.
        at(self.memory(), self.root + chunk * 8).load(Relaxed) + within
    }

    /// The object with this key, and the stamp that covers the answer.
    #[inline]
    pub fn lookup(&self, hash: u64, key: &[u8]) -> (Option<ObjectRef>, BucketStamp) {
        let memory = self.memory();
        loop {
            let bucket = bucket_of(hash, self.count());
            let offset = self.offset_of(bucket);
            let word = at(memory, offset).load(Acquire);
            let word = BucketWord(word);
            if !word.is_locked() && word.covers(hash, bucket) {
                let stamp = BucketStamp { offset, word: word.0 };
                let found = find(memory, offset, word, hash, key);
                if found.is_some() {
                    return (found, stamp);
                }
                fence(Acquire);
                if at(memory, offset).load(Relaxed) == word.0 {
                    return (None, stamp);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Starts loading the bucket of a hash, so that a lookup soon after does not wait for memory.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.memory().prefetch(self.offset_of(bucket_of(hash, self.count())), 1);
    }

    /// Starts loading the first `bytes` bytes of the objects that may have this hash. Its bucket should be loaded.
    #[inline]
    pub fn prefetch_object(&self, hash: u64, bytes: u64) {
        let offset = self.offset_of(bucket_of(hash, self.count()));
        for entry in 1..=ENTRIES as u64 {
            let entry = at(self.memory(), offset + entry * 8).load(Relaxed);
            if entry >> 56 == tag(hash) && entry != 0 {
                self.memory().prefetch(ObjectRef::from_bits(entry).offset(), bytes);
            }
        }
    }

    /// Adds an entry. The caller guarantees, by the primary index, that the key is not there. `moved` receives, in order, the
    /// buckets that this changes.
    pub fn insert(&self, hash: u64, reference: ObjectRef, moved: &mut dyn FnMut(Step)) -> Result<(), StoreError> {
        let (offset, word) = self.lock(hash);
        let entry = entry_of(hash, reference);
        if let Some(place) = self.place(offset, word, |found| found == 0) {
            at(self.memory(), place).store(entry, Relaxed);
            moved(self.unlock(offset, word, word));
            self.counts[hash as usize & 15].0.fetch_add(1, Relaxed);
            // A full bucket: grow, if the index is full on the whole. That check reads all counts, and at this load every third
            // bucket is full, so only one key in eight checks.
            let full = place == offset + ENTRIES as u64 * 8 || word.overflow() != 0;
            if full && (hash >> 48).is_multiple_of(8) {
                self.grow(moved);
            }
            return Ok(());
        }
        match self.add_overflow(word) {
            Ok(overflow) => {
                at(self.memory(), overflow + 8).store(entry, Relaxed);
                moved(self.unlock(offset, word, word.with(word.level(), overflow)));
                self.counts[hash as usize & 15].0.fetch_add(1, Relaxed);
                self.grow(moved);
                Ok(())
            }
            Err(error) => {
                self.unlock(offset, word, word);
                Err(error)
            }
        }
    }

    /// Takes an entry out.
    pub fn remove(&self, hash: u64, reference: ObjectRef) -> Option<Step> {
        let step = self.replace_entry(hash, reference, 0)?;
        self.counts[hash as usize & 15].0.fetch_sub(1, Relaxed);
        Some(step)
    }

    /// Gives an entry to another object with the same key.
    pub fn replace(&self, hash: u64, old: ObjectRef, new: ObjectRef) -> Option<Step> {
        self.replace_entry(hash, old, entry_of(hash, new))
    }

    fn replace_entry(&self, hash: u64, old: ObjectRef, new: u64) -> Option<Step> {
        let (offset, word) = self.lock(hash);
        let entry = entry_of(hash, old);
        let Some(place) = self.place(offset, word, |found| found == entry) else {
            // Nothing changed: the word as it was, so that no stamp is outdated.
            at(self.memory(), offset).store(word.0, Release);
            return None;
        };
        at(self.memory(), place).store(new, Relaxed);
        Some(self.unlock(offset, word, word))
    }

    /// The number of entries; exact while no thread writes.
    pub fn len(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Relaxed)).sum::<i64>().max(0) as u64
    }

    /// Bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.pool().runs.iter().map(|run| u64::from(run.pages) * crate::object::size_class::PAGE_BYTES).sum()
    }

    /// Locks the bucket of a hash; its offset and its word before.
    fn lock(&self, hash: u64) -> (u64, BucketWord) {
        let mut turns = 0_u32;
        loop {
            let bucket = bucket_of(hash, self.count());
            let offset = self.offset_of(bucket);
            if let Some(word) = self.try_lock(offset, |word| word.covers(hash, bucket)) {
                return (offset, word);
            }
            wait(&mut turns);
        }
    }

    fn try_lock(&self, offset: u64, suits: impl FnOnce(BucketWord) -> bool) -> Option<BucketWord> {
        let place = at(self.memory(), offset);
        let word = BucketWord(place.load(Relaxed));
        if word.is_locked() || !suits(word) {
            return None;
        }
        place.compare_exchange(word.0, word.locked().0, SeqCst, Relaxed).ok()?;
        // A reader that meets a store after this fence meets the lock bit as well.
        fence(Release);
        Some(word)
    }

    fn unlock(&self, offset: u64, before: BucketWord, after: BucketWord) -> Step {
        let after = after.next();
        at(self.memory(), offset).store(after.0, SeqCst);
        let [before, after] = [before, after].map(|word| BucketStamp { offset, word: word.0 });
        Step { before, after, half: None }
    }

    /// The first entry of a locked chain that suits.
    fn place(&self, offset: u64, word: BucketWord, suits: impl Fn(u64) -> bool) -> Option<u64> {
        let (mut offset, mut overflow, mut count) = (offset, word.overflow(), ENTRIES as u64);
        loop {
            for entry in 1..=count {
                if suits(at(self.memory(), offset + entry * 8).load(Relaxed)) {
                    return Some(offset + entry * 8);
                }
            }
            if overflow == 0 {
                return None;
            }
            (offset, count) = (overflow, OVERFLOW_ENTRIES as u64);
            overflow = BucketWord(at(self.memory(), offset).load(Relaxed)).overflow();
        }
    }
}

impl Drop for HashIndex {
    fn drop(&mut self) {
        let _alone = self.store.directory_lock();
        at(self.memory(), self.entry).store(GONE, SeqCst);
        for run in &self.pool().runs {
            self.store.pages().give_back(run);
        }
    }
}

/// An entry of an unlocked chain with an object that has the key. What it reads may be changing; the object decides about a hit.
#[inline(always)]
fn find(memory: &RegionMemory, offset: u64, word: BucketWord, hash: u64, key: &[u8]) -> Option<ObjectRef> {
    let (mut offset, mut overflow, mut count) = (offset, word.overflow(), ENTRIES as u64);
    // A chain that is being changed could lead in circles; a true one is never nearly this long.
    for _ in 0..1 << 20 {
        for entry in 1..=count {
            let entry = at(memory, offset + entry * 8).load(Acquire);
            if entry >> 56 == tag(hash) && entry != 0 {
                let reference = ObjectRef::from_bits(entry);
                if Object::of(memory, reference).has_key(reference.incarnation(), key) {
                    return Some(reference);
                }
            }
        }
        if overflow == 0 {
            return None;
        }
        (offset, count) = (overflow, OVERFLOW_ENTRIES as u64);
        overflow = BucketWord(at(memory, offset).load(Acquire)).overflow();
    }
    None
}

/// A word of the index.
#[inline(always)]
fn at(memory: &RegionMemory, offset: u64) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset < memory.len());
    // SAFETY: the line above; regions are whole words long.
    unsafe { memory.word_unchecked(offset) }
}

fn wait(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(128) { std::thread::yield_now() } else { std::hint::spin_loop() }
}
