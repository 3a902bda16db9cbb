//! Memory instructions, gathered in batches.
//!
//! A [`Batch`] owns the bytes it writes and the room for the bytes it reads, so that a copy engine or a NIC may work on them
//! while the thread does other things. [`Batch::clear`] keeps the memory: a batch that is used again does not allocate.

use crate::address::FarPtr;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::object::ObjectHeader;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which instruction of its batch: what the `Batch` methods hand out and the result is asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

/// Gathered instructions with their results. Instructions of one batch may take effect in any order, also those on the same
/// words: what must come later goes into a later batch, submitted when the first is done.
#[derive(Default)]
pub struct Batch {
    pub(crate) ops: Vec<Op>,
    /// Bytes to write and room for bytes read. Only the first `used` count; the rest is kept, initialised, for later.
    pub(crate) data: Buffer,
    used: usize,
}

/// Bytes that start on a cache line: a copy into them then has aligned stores.
#[derive(Default)]
pub(crate) struct Buffer(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "reached by the bytes of the vector")] [u8; 64]);

impl Buffer {
    #[inline]
    fn len(&self) -> usize {
        self.0.len() * 64
    }

    /// Zeroed bytes, as many.
    pub(crate) fn same_size(&self) -> Self {
        Self(vec![Line([0; 64]); self.0.len()])
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.0.resize(len.div_ceil(64), Line([0; 64]));
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a `Line` is 64 bytes without padding, so the vector is `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.len()) }
    }

    #[inline]
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and every byte value is a valid one; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.len()) }
    }

    #[inline]
    pub(crate) fn bytes(&self, start: usize, len: usize) -> &[u8] {
        &self.as_bytes()[start..start + len]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        &mut self.as_bytes_mut()[start..start + len]
    }
}

/// One instruction.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    pub(crate) at: FarPtr,
    /// First operand of a word instruction; what `compare_swap` expects.
    pub(crate) a: u64,
    /// What `compare_swap` stores.
    pub(crate) b: u64,
    /// Where in `data` its bytes are.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) outcome: Outcome,
}

/// The memory instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Bulk copy to here.
    Read,
    /// Bulk copy to there.
    Write,
    /// Header and payload of one state of an object.
    ReadObject,
    /// Adds to a word (wrapping), returns the old value.
    FetchAdd,
    /// Stores if the word is as expected, returns the old value.
    CompareSwap,
    /// Stores, returns the old value.
    Swap,
    /// Bitwise and, returns the old value.
    And,
    /// Bitwise or, returns the old value.
    Or,
    /// Bitwise exclusive or, returns the old value.
    Xor,
    /// Stores 0, returns the old value.
    Clear,
    /// Earlier completed writes of these bytes are durable when it completes.
    Flush,
}

#[derive(Clone)]
pub(crate) enum Outcome {
    Pending,
    Word(u64),
    Bytes,
    Object(ObjectHeader),
    Failed(FabricError),
}

/// What [`Batch::read_object`] brought: one state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectView<'a> {
    /// 0 = free; else the owner. The one word that may be newer than the others.
    pub lock: u64,
    /// The version.
    pub version: u64,
    /// What the slot holds.
    pub meta: u64,
    /// 0, or where an older copy lies.
    pub prev: u64,
    /// Key bytes, then value bytes.
    pub payload: &'a [u8],
}

impl Batch {
    /// Most bytes of all its reads and writes together.
    pub const BYTES_MAX: usize = 1 << 30;

    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of instructions.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// No instruction yet?
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Forgets instructions and results, keeps the memory. Slots handed out before are void.
    #[inline]
    pub fn clear(&mut self) {
        self.ops.clear();
        self.used = 0;
    }

    #[inline]
    fn push(&mut self, kind: OpKind, at: FarPtr, a: u64, b: u64, start: usize, len: usize) -> Slot {
        let slot = Slot(self.ops.len() as u32);
        self.ops.push(Op { kind, at, a, b, start, len, outcome: Outcome::Pending });
        slot
    }

    /// Room for `len` bytes in `data`, aligned as far as it pays; not cleared.
    #[inline]
    fn take_room(&mut self, len: usize) -> usize {
        let start = if len < 64 { self.used } else { (self.used + 63) & !63 };
        assert!(
            len <= Self::BYTES_MAX && start + len <= Self::BYTES_MAX,
            "a batch carries at most {} bytes",
            Self::BYTES_MAX
        );
        self.used = (start + len + 15) & !15;
        if self.used > self.data.len() {
            self.data.grow(self.used);
        }
        start
    }

    /// Copies `len` bytes from `at` to here.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn read(&mut self, at: FarPtr, len: usize) -> Slot {
        let start = self.take_room(len);
        self.push(OpKind::Read, at, 0, 0, start, len)
    }

    /// Copies `bytes` to `at`. They are taken now, so the caller may change them at once.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn write(&mut self, at: FarPtr, bytes: &[u8]) -> Slot {
        let start = self.take_room(bytes.len());
        self.data.bytes_mut(start, bytes.len()).copy_from_slice(bytes);
        self.push(OpKind::Write, at, 0, 0, start, bytes.len())
    }

    /// Reads one state of the object at `at`, with at most `payload_len_max` bytes of payload.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn read_object(&mut self, at: FarPtr, payload_len_max: usize) -> Slot {
        let start = self.take_room(payload_len_max);
        self.push(OpKind::ReadObject, at, 0, 0, start, payload_len_max)
    }

    /// Adds `operand` to the word at `at`, wrapping; the result is the old value.
    #[inline]
    pub fn fetch_add(&mut self, at: FarPtr, operand: u64) -> Slot {
        self.push(OpKind::FetchAdd, at, operand, 0, 0, 8)
    }

    /// Stores `new` if the word is `expected`; the result is the old value.
    #[inline]
    pub fn compare_swap(&mut self, at: FarPtr, expected: u64, new: u64) -> Slot {
        self.push(OpKind::CompareSwap, at, expected, new, 0, 8)
    }

    /// Stores `operand`; the result is the old value.
    #[inline]
    pub fn swap(&mut self, at: FarPtr, operand: u64) -> Slot {
        self.push(OpKind::Swap, at, operand, 0, 0, 8)
    }

    /// Bitwise and; the result is the old value.
    #[inline]
    pub fn and(&mut self, at: FarPtr, operand: u64) -> Slot {
        self.push(OpKind::And, at, operand, 0, 0, 8)
    }

    /// Bitwise or; the result is the old value.
    #[inline]
    pub fn or(&mut self, at: FarPtr, operand: u64) -> Slot {
        self.push(OpKind::Or, at, operand, 0, 0, 8)
    }

    /// Bitwise exclusive or; the result is the old value.
    #[inline]
    pub fn xor(&mut self, at: FarPtr, operand: u64) -> Slot {
        self.push(OpKind::Xor, at, operand, 0, 0, 8)
    }

    /// Stores 0 in the word; the result is the old value.
    #[inline]
    pub fn clear_word(&mut self, at: FarPtr) -> Slot {
        self.push(OpKind::Clear, at, 0, 0, 0, 8)
    }

    /// Makes earlier completed writes of `len` bytes at `at` durable, as far as the memory there is.
    #[inline]
    pub fn flush(&mut self, at: FarPtr, len: usize) -> Slot {
        self.push(OpKind::Flush, at, 0, 0, 0, len)
    }

    /// The old value that a word instruction returned.
    ///
    /// # Errors
    /// Whatever kept the instruction from being done.
    ///
    /// # Panics
    /// If the slot is not a word instruction, or the batch has not been submitted.
    #[inline]
    pub fn word(&self, slot: Slot) -> Result<u64, FabricError> {
        match &self.op(slot).outcome {
            Outcome::Word(value) => Ok(*value),
            other => Err(self.failure(slot, other, "a word")),
        }
    }

    /// The bytes that a read brought (none for a write or a flush, where it says whether they were done).
    ///
    /// # Errors
    /// Whatever kept the instruction from being done.
    ///
    /// # Panics
    /// If the slot is a word instruction or an object, or the batch has not been submitted.
    #[inline]
    pub fn bytes(&self, slot: Slot) -> Result<&[u8], FabricError> {
        let op = self.op(slot);
        match &op.outcome {
            Outcome::Bytes if op.kind == OpKind::Read => Ok(self.data.bytes(op.start, op.len)),
            Outcome::Bytes => Ok(&[]),
            other => Err(self.failure(slot, other, "bytes")),
        }
    }

    /// The state of an object that `read_object` brought.
    ///
    /// # Errors
    /// [`FabricError::Torn`] if a writer was at work; or whatever kept the instruction from being done.
    ///
    /// # Panics
    /// If the slot is another instruction, or the batch has not been submitted.
    #[inline]
    pub fn object(&self, slot: Slot) -> Result<ObjectView<'_>, FabricError> {
        let op = self.op(slot);
        match &op.outcome {
            Outcome::Object(header) => Ok(ObjectView {
                lock: header.lock,
                version: header.version.0,
                meta: header.meta.0,
                prev: header.prev,
                payload: self.data.bytes(op.start, header.meta.payload_len()),
            }),
            other => Err(self.failure(slot, other, "an object")),
        }
    }

    /// Was the instruction done, whatever it is?
    ///
    /// # Errors
    /// Whatever kept it from being done.
    ///
    /// # Panics
    /// If the batch has not been submitted.
    #[inline]
    pub fn done(&self, slot: Slot) -> Result<(), FabricError> {
        match &self.op(slot).outcome {
            Outcome::Failed(error) => Err(error.clone()),
            Outcome::Pending => panic!("instruction {} was never submitted", slot.0),
            _ => Ok(()),
        }
    }

    /// The first failure among all instructions, for callers to whom one is as bad as all.
    ///
    /// # Errors
    /// That failure.
    ///
    /// # Panics
    /// If the batch has not been submitted.
    #[inline]
    pub fn all_done(&self) -> Result<(), FabricError> {
        (0..self.ops.len()).try_for_each(|i| self.done(Slot(i as u32)))
    }

    #[inline]
    fn op(&self, slot: Slot) -> &Op {
        &self.ops[slot.0 as usize]
    }

    #[cold]
    fn failure(&self, slot: Slot, outcome: &Outcome, wanted: &str) -> FabricError {
        let kind = self.op(slot).kind;
        match outcome {
            Outcome::Failed(error) => error.clone(),
            Outcome::Pending => panic!("instruction {} ({kind:?}) was never submitted", slot.0),
            _ => panic!("instruction {} is a {kind:?} and has no {wanted} as its result", slot.0),
        }
    }
}

impl Op {
    /// Does the instruction on memory that this thread can reach. The target's side of every provider.
    #[inline]
    pub(crate) fn execute(&mut self, data: &mut Buffer, memory: &RegionMemory) {
        let offset = self.at.offset();
        let done = match self.kind {
            OpKind::Read => memory.copy_out(offset, data.bytes_mut(self.start, self.len)).map(|()| Outcome::Bytes),
            OpKind::Write => memory.copy_in(offset, data.bytes(self.start, self.len)).map(|()| Outcome::Bytes),
            OpKind::ReadObject => memory.read_object(offset, data.bytes_mut(self.start, self.len)).map(Outcome::Object),
            OpKind::Flush => memory.check(offset, self.len as u64).map(|()| Outcome::Bytes),
            _ => memory.word(offset).map(|word| Outcome::Word(self.execute_word(word))),
        };
        self.outcome = done.unwrap_or_else(Outcome::Failed);
    }

    #[inline]
    fn execute_word(&self, word: &AtomicU64) -> u64 {
        let order = Ordering::SeqCst;
        match self.kind {
            OpKind::FetchAdd => word.fetch_add(self.a, order),
            OpKind::CompareSwap => match word.compare_exchange(self.a, self.b, order, order) {
                Ok(old) | Err(old) => old,
            },
            OpKind::Swap => word.swap(self.a, order),
            OpKind::And => word.fetch_and(self.a, order),
            OpKind::Or => word.fetch_or(self.a, order),
            OpKind::Xor => word.fetch_xor(self.a, order),
            OpKind::Clear => word.swap(0, order),
            OpKind::Read | OpKind::Write | OpKind::ReadObject | OpKind::Flush => unreachable!("not a word instruction"),
        }
    }
}
