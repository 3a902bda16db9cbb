//! Growth by one bucket at a time, and the overflow buckets behind full ones.

use super::layout::{BUCKETS_MAX, BucketWord, COUNT, chunk_of, chunk_pages, entry_of, hash_key};
use super::{BucketStamp, ENTRIES, HashIndex, OVERFLOW_BYTES, OVERFLOW_ENTRIES, Step, at, wait};
use crate::error::StoreError;
use crate::object::size_class::PAGE_BYTES;
use crate::object::{Object, ObjectRef, Words};
use crate::slab::Run;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{MutexGuard, PoisonError};

/// The most entries that a bucket should have on average. At 14 of 15, right after a doubling, a bucket in three has an overflow
/// (Poisson) with 7 % of the keys. Between doublings the buckets not yet split have twice the average of the others: at worst 17
/// % of the keys are in an overflow. At 13 it was 13 %, at 0.6 bytes more a row.
const FILL: u64 = 14;

/// The memory of an index. Its lock is taken while holding a bucket, so no thread waits for a bucket while holding it.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub runs: Vec<Run>,
    /// Overflows not in use.
    pub free: Vec<u64>,
}

impl HashIndex {
    /// Splits as many buckets as the number of entries asks for. If another thread is splitting, leaves it to that thread.
    #[cold]
    pub(super) fn grow(&self, moved: &mut dyn FnMut(Step)) {
        let Ok(mut key) = self.growing.try_lock() else { return };
        // At most a few at a time, so that no inserter pays for all.
        for _ in 0..8 {
            let count = self.count();
            if self.len() < count * FILL || count >= BUCKETS_MAX {
                return;
            }
            let Some(step) = self.split(&mut key, count) else { return };
            moved(step);
        }
    }

    /// Splits the next bucket; `None` if there is no memory for another (chains get longer then).
    fn split(&self, key: &mut Vec<u8>, count: u64) -> Option<Step> {
        let memory = self.store.memory();
        let (chunk, within) = chunk_of(count);
        let pointer = at(memory, self.root + chunk * 8);
        if within == 0 && pointer.load(Relaxed) == 0 {
            let run = self.store.pages().take_hash(self.table, chunk_pages(chunk)).ok()?;
            pointer.store(run.offset(), Release);
            self.pool().runs.push(run);
        }
        let (level, new) = (count.ilog2(), self.offset_of(count));
        let old = self.offset_of(count - (1 << level));
        let mut turns = 0;
        let word = loop {
            if let Some(word) = self.try_lock(old, |_| true) {
                break word;
            }
            wait(&mut turns);
        };
        debug_assert_eq!(word.level(), level);
        let (stay, go) = self.sort_out(key, old, word, level);
        // The overflows of the old bucket are enough for both: what is above 15 and 15 fills no more than they hold.
        let mut spare = self.chain(word);
        let overflow = self.lay_out(new, &go, &mut spare);
        let half = BucketStamp { offset: new, word: BucketWord::new(level + 1, overflow).0 };
        at(memory, new).store(half.word, Release);
        // From here on look-ups come to the new bucket; those that came to the old one find it locked, or changed.
        at(memory, self.entry + COUNT).store(count + 1, Release);
        let overflow = self.lay_out(old, &stay, &mut spare);
        let step = self.unlock(old, word, word.with(level + 1, overflow));
        self.pool().free.append(&mut spare);
        Some(Step { half: Some(half), ..step })
    }

    /// The entries of a locked chain that stay in their bucket at the next level, and those that go.
    fn sort_out(&self, key: &mut Vec<u8>, offset: u64, word: BucketWord, level: u32) -> (Vec<u64>, Vec<u64>) {
        let memory = self.store.memory();
        let overflows = self.chain(word).into_iter().map(|offset| (offset, OVERFLOW_ENTRIES as u64));
        let buckets = std::iter::once((offset, ENTRIES as u64)).chain(overflows);
        let entries = buckets.flat_map(|(bucket, count)| (1..=count).map(move |entry| bucket + entry * 8));
        let entries = entries.map(|place| at(memory, place).load(Relaxed)).filter(|entry| *entry != 0);
        entries.partition(|entry| {
            let reference = ObjectRef::from_bits(*entry);
            let object = Object::of(memory, reference);
            // In the index, so neither free nor changing its key: entries leave the index before their objects go.
            key.resize(object.meta().key_len(), 0);
            object.copy_out(key);
            let hash = hash_key(key);
            debug_assert_eq!(entry_of(hash, reference), *entry);
            hash >> level & 1 == 0
        })
    }

    /// The overflows of a locked bucket.
    fn chain(&self, word: BucketWord) -> Vec<u64> {
        let next = |offset: &u64| Some(BucketWord(at(self.store.memory(), *offset).load(Relaxed)).overflow());
        let first = Some(word.overflow()).filter(|offset| *offset != 0);
        std::iter::successors(first, |offset| next(offset).filter(|offset| *offset != 0)).collect()
    }

    /// Fills a bucket and as many spare overflows as it takes; the first of these.
    fn lay_out(&self, offset: u64, entries: &[u64], spare: &mut Vec<u64>) -> u64 {
        let memory = self.store.memory();
        let fill = |offset: u64, part: &[u64], count: usize| {
            for place in 0..count {
                let entry = part.get(place).copied().unwrap_or(0);
                at(memory, offset + 8 + place as u64 * 8).store(entry, Relaxed);
            }
        };
        let (first, rest) = entries.split_at(entries.len().min(ENTRIES));
        fill(offset, first, ENTRIES);
        let mut overflow = 0;
        for part in rest.chunks(OVERFLOW_ENTRIES) {
            let next = spare.pop().expect("as many as before are enough");
            fill(next, part, OVERFLOW_ENTRIES);
            at(memory, next).store(BucketWord::new(0, overflow).0, Release);
            overflow = next;
        }
        overflow
    }

    /// An empty overflow in front of those of a locked bucket.
    pub(super) fn add_overflow(&self, word: BucketWord) -> Result<u64, StoreError> {
        let mut pool = self.pool();
        if pool.free.is_empty() {
            let run = self.store.pages().take_hash(self.table, 1)?;
            pool.free.extend((0..PAGE_BYTES).step_by(OVERFLOW_BYTES as usize).map(|within| run.offset() + within));
            pool.runs.push(run);
        }
        let overflow = pool.free.pop().expect("filled above");
        drop(pool);
        let memory = self.store.memory();
        (1..=OVERFLOW_ENTRIES as u64).for_each(|entry| at(memory, overflow + entry * 8).store(0, Relaxed));
        at(memory, overflow).store(BucketWord::new(0, word.overflow()).0, Release);
        Ok(overflow)
    }

    pub(super) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
