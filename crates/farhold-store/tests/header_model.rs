//! The header protocol under loom: every interleaving, and every stale value that relaxed atomics may give, of two writers
//! and a reader. The functions are those of `object/protocol.rs`, on loom's atomics instead of mapped memory.
//!
//! Planted defects show that the model notices errors: without the second load of the version, or without one of the fences, it
//! finds a torn read. (loom is used without `--cfg loom`, so it stands beside the other suites.)
#![cfg(not(miri))]

use farhold_fabric::{Meta, Version};
use farhold_store::object::{self, Read, ReadError, Word, Words};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    SecondLook,
    WriterFence,
    ReaderFence,
}

struct Memory {
    header: [AtomicU64; 4],
    payload: [AtomicU64; 2],
    planted: Planted,
}

/// One thread's view.
struct View {
    memory: Arc<Memory>,
    version_seen: Cell<Option<u64>>,
}

impl Memory {
    fn new(planted: Planted) -> Arc<Self> {
        let header = [0, Version::of_epoch(1).0, Meta::new(5, Meta::ROW, 0, 16).0, 0].map(AtomicU64::new);
        Arc::new(Self { header, payload: [1, 1].map(AtomicU64::new), planted })
    }
}

impl View {
    fn of(memory: &Arc<Memory>) -> Self {
        Self { memory: memory.clone(), version_seen: Cell::new(None) }
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        &self.memory.header[word as usize / 8]
    }

    fn read(&self) -> Result<(Read, [u64; 2]), ReadError> {
        let mut into = [0; 16];
        self.version_seen.set(None);
        let read = object::read(self, 5, &mut into)?;
        let word = |at: usize| u64::from_ne_bytes(into[at..at + 8].try_into().expect("8 bytes"));
        Ok((read, [word(0), word(8)]))
    }

    /// The steps of a writer: lock, write both words, unlock.
    fn write(&self, number: u64) -> bool {
        let Ok(version) = object::lock(self, 5, number) else { return false };
        let bytes = [number.to_ne_bytes(), number.to_ne_bytes()].concat();
        object::write(self, Meta::new(5, Meta::ROW, 0, 16), version.next(1), |view| view.copy_in(0, &bytes));
        object::unlock(self);
        true
    }
}

impl Words for View {
    fn load(&self, word: Word, order: Ordering) -> u64 {
        if let (Word::Version, Planted::SecondLook, Some(seen)) = (word, self.memory.planted, self.version_seen.get()) {
            return seen;
        }
        let value = self.word(word).load(order);
        if word == Word::Version {
            self.version_seen.set(Some(value));
        }
        value
    }
    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }
    fn compare_exchange(&self, word: Word, expected: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.version_seen.set(None);
        self.word(word).compare_exchange(expected, new, order, Ordering::Relaxed)
    }
    fn fence(&self, order: Ordering) {
        match (order, self.memory.planted) {
            (Ordering::Release, Planted::WriterFence) | (Ordering::Acquire, Planted::ReaderFence) => {}
            _ => fence(order),
        }
    }
    fn copy_out(&self, into: &mut [u8]) {
        for (to, word) in into.chunks_exact_mut(8).zip(&self.memory.payload) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
    fn copy_in(&self, at: usize, from: &[u8]) {
        for (bytes, word) in from.chunks_exact(8).zip(&self.memory.payload[at / 8..]) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
    }
    fn room(&self) -> usize {
        16
    }
}

/// One reader against writers: what it reads is one state, and that of its version.
fn check(planted: Planted, writers: u64) {
    let mut model = loom::model::Builder::new();
    // Two writers and a reader with every interleaving of three preemptions take half a minute; of two, a second.
    model.preemption_bound = Some(if writers > 1 { 2 } else { 3 });
    model.check(move || {
        let memory = Memory::new(planted);
        let threads: Vec<_> = (2..2 + writers)
            .map(|number| {
                let view = View::of(&memory);
                loom::thread::spawn(move || view.write(number))
            })
            .collect();
        let view = View::of(&memory);
        for _ in writers..3 {
            if let Ok((read, [first, second])) = view.read() {
                assert_eq!(first, second, "torn at {:?}", read.version);
                assert_eq!(first == 1, read.version == Version::of_epoch(1), "the version of another state");
            }
        }
        let written = threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|wrote| *wrote).count();
        let (read, _) = view.read().expect("nobody writes");
        let counted = (read.version.0 - Version::of_epoch(1).0) / Version::ONE;
        assert_eq!((counted, read.lock), (written as u64, 0), "every write counts once");
    });
}

#[test]
fn a_read_is_one_state_of_its_version() {
    check(Planted::Nothing, 1);
    check(Planted::Nothing, 2);
}

#[test]
fn planted_bugs_are_found() {
    for planted in [Planted::SecondLook, Planted::WriterFence, Planted::ReaderFence] {
        let found = std::panic::catch_unwind(|| check(planted, 1));
        assert!(found.is_err(), "{planted:?} left out, and the model saw nothing");
    }
}
