//! Memory instructions, gathered in batches.
//!
//! A [`Batch`] owns the bytes it writes and the room for the bytes it reads, so that a copy engine or a NIC may work on them
//! while the thread does other things. [`Batch::clear`] keeps the memory: a batch that is used again does not allocate.

use crate::address::FarPtr;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::object::{HEADER_BYTES, Meta, ObjectHeader, Version};
use std::sync::atomic::{AtomicU64, Ordering};

/// An instruction of a batch: the `Batch` methods return it, and the caller asks for the result by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

/// Gathered instructions with their results. Instructions of one batch may take effect in any order, also those on the same
/// words. An instruction that must come later belongs in a later batch, submitted when the first has completed.
///
/// It is one pointer wide. Every round moves it into `submit` and back out, and a wide value that is moved in pieces stalls on
/// its own stores (20 ns a round when this was three vectors).
#[derive(Default)]
pub struct Batch {
    pub(crate) content: Option<Box<Content>>,
}

/// What a batch holds; an unused batch has none.
#[derive(Default)]
pub(crate) struct Content {
    pub(crate) ops: Vec<Op>,
    /// Bytes to write and room for bytes read. Only the first `used` count; the rest is kept, initialised, for later.
    pub(crate) data: Buffer,
    used: usize,
    /// The errors of failed instructions; these instructions hold the index.
    errors: Vec<FabricError>,
}

impl Content {
    #[cold]
    pub(crate) fn fail(&mut self, index: usize, error: FabricError) {
        self.ops[index].fail(&mut self.errors, error);
    }

    /// The same instructions, each failed with this error.
    pub(crate) fn all_failed(&self, error: &FabricError) -> Self {
        let mut ops = self.ops.clone();
        let mut errors = Vec::new();
        for op in &mut ops {
            op.fail(&mut errors, error.clone());
        }
        Self { ops, data: self.data.same_size(), used: self.used, errors }
    }

    /// The same instructions with their bytes, unchanged.
    pub(crate) fn copy(&self) -> Self {
        Self { ops: self.ops.clone(), data: Buffer(self.data.0.clone()), used: self.used, errors: Vec::new() }
    }

    /// All parts that the execution of instructions needs.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut [Op], &mut Buffer, &mut Vec<FabricError>) {
        (&mut self.ops, &mut self.data, &mut self.errors)
    }
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

    /// As many zeroed bytes.
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

    /// Where the bytes start, for a device that moves them without the compiler's knowledge.
    #[cfg(feature = "libfabric")]
    pub(crate) fn start_of(&mut self, start: usize, len: usize) -> *mut u8 {
        assert!(start + len <= self.len());
        // SAFETY: inside the vector's memory.
        unsafe { self.0.as_mut_ptr().cast::<u8>().add(start) }
    }

    /// As a copy into [`Self::bytes_mut`], beside others that a NIC may be writing.
    #[cfg(feature = "libfabric")]
    pub(crate) fn put(&mut self, start: usize, bytes: &[u8]) {
        let to = self.start_of(start, bytes.len());
        // SAFETY: `start_of` checked the room; `bytes` is borrowed from elsewhere while `self` is borrowed exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

/// Marks a read of bytes that no thread changes, in the operand that reads do not use.
const IMMUTABLE: u64 = 1;

/// One instruction.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) at: FarPtr,
    /// First operand of a word instruction, then its result; what `compare_swap` expects; the index of the error.
    pub(crate) a: u64,
    /// What `compare_swap` stores; of a read, [`IMMUTABLE`] or 0.
    b: u64,
    /// Where in `data` its bytes are. An object's header comes first there.
    pub(crate) start: u32,
    /// How many bytes it reads or writes; of an object, how long the payload may be.
    pub(crate) len: u32,
    pub(crate) kind: OpKind,
    pub(crate) state: State,
}

/// How far an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    Done,
    Failed,
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

/// The result of [`Batch::read_object`]: one state of an object.
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
        self.content.as_ref().map_or(0, |content| content.ops.len())
    }

    /// No instruction yet?
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes instructions and results, and keeps the memory. Slots returned before are void.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(content) = &mut self.content {
            content.ops.clear();
            content.used = 0;
            content.errors.clear();
        }
    }

    /// Bytes that its instructions read and write.
    #[inline]
    pub(crate) fn bytes_used(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.used)
    }

    #[inline]
    fn push(&mut self, kind: OpKind, at: FarPtr, a: u64, b: u64, start: usize, len: usize) -> Slot {
        let ops = &mut self.content.get_or_insert_default().ops;
        let slot = Slot(ops.len() as u32);
        ops.push(Op { at, a, b, start: start as u32, len: len as u32, kind, state: State::Pending });
        slot
    }

    /// Room for `len` bytes in `data`, aligned as far as it is worth it; not cleared.
    #[inline]
    fn take_room(&mut self, len: usize) -> usize {
        let content = &mut **self.content.get_or_insert_default();
        let start = if len < 64 { content.used } else { (content.used + 63) & !63 };
        assert!(
            len <= Self::BYTES_MAX && start + len <= Self::BYTES_MAX,
            "a batch carries at most {} bytes",
            Self::BYTES_MAX
        );
        content.used = (start + len + 15) & !15;
        if content.used > content.data.len() {
            content.data.grow(content.used);
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

    /// As [`Self::read`], of bytes that no thread changes. They cannot be torn, so the provider may choose the fastest way for any
    /// length: over libfabric the NIC reads them, where it can, and the home agent only gives its key.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn read_immutable(&mut self, at: FarPtr, len: usize) -> Slot {
        let start = self.take_room(len);
        self.push(OpKind::Read, at, 0, IMMUTABLE, start, len)
    }

    /// Copies `bytes` to `at`. They are taken now, so the caller may change them at once.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn write(&mut self, at: FarPtr, bytes: &[u8]) -> Slot {
        let start = self.take_room(bytes.len());
        if let Some(content) = &mut self.content {
            content.data.bytes_mut(start, bytes.len()).copy_from_slice(bytes);
        }
        self.push(OpKind::Write, at, 0, 0, start, bytes.len())
    }

    /// Reads one state of the object at `at`, with at most `payload_len_max` bytes of payload.
    ///
    /// # Panics
    /// If the batch grows above [`Self::BYTES_MAX`].
    #[inline]
    pub fn read_object(&mut self, at: FarPtr, payload_len_max: usize) -> Slot {
        let start = self.take_room(HEADER_BYTES + payload_len_max);
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

    /// Makes earlier completed writes of `len` bytes at `at` durable, as far as the memory there is durable.
    ///
    /// # Panics
    /// If they are 4 GiB or more.
    #[inline]
    pub fn flush(&mut self, at: FarPtr, len: usize) -> Slot {
        assert!(u32::try_from(len).is_ok(), "{len} bytes are too many for one flush");
        self.push(OpKind::Flush, at, 0, 0, 0, len)
    }

    /// Cancels an instruction before it is submitted: it becomes a flush of no bytes, which every provider knows and which
    /// changes nothing. Its slot says [`done`](Self::done). An instruction that is under way cannot be cancelled.
    ///
    /// # Panics
    /// If the batch has been submitted with it.
    pub fn cancel(&mut self, slot: Slot) {
        let op = self.content.as_mut().and_then(|content| content.ops.get_mut(slot.0 as usize));
        let op = op.expect("a slot of this batch");
        assert!(op.state == State::Pending, "instruction {} ({:?}) has been submitted", slot.0, op.kind);
        (op.kind, op.len) = (OpKind::Flush, 0);
    }

    /// The old value that a word instruction returned.
    ///
    /// # Errors
    /// What prevented the instruction.
    ///
    /// # Panics
    /// If the slot is not a word instruction, or the batch has not been submitted.
    #[inline]
    pub fn word(&self, slot: Slot) -> Result<u64, FabricError> {
        let (op, _) = self.op(slot);
        if op.state == State::Done && op.kind.is_word() { Ok(op.a) } else { Err(self.refuse(slot, "word")) }
    }

    /// The bytes of a read. For a write or a flush they are empty, and the result says whether it was done.
    ///
    /// # Errors
    /// What prevented the instruction.
    ///
    /// # Panics
    /// If the slot is a word instruction or an object, or the batch has not been submitted.
    #[inline]
    pub fn bytes(&self, slot: Slot) -> Result<&[u8], FabricError> {
        let (op, content) = self.op(slot);
        match op.kind {
            OpKind::Read if op.state == State::Done => Ok(content.data.bytes(op.start as usize, op.len as usize)),
            OpKind::Write | OpKind::Flush if op.state == State::Done => Ok(&[]),
            _ => Err(self.refuse(slot, "bytes")),
        }
    }

    /// The state of an object that `read_object` brought.
    ///
    /// # Errors
    /// [`FabricError::Torn`] if a writer was at work; otherwise what prevented the instruction.
    ///
    /// # Panics
    /// If the slot is another instruction, or the batch has not been submitted.
    #[inline]
    pub fn object(&self, slot: Slot) -> Result<ObjectView<'_>, FabricError> {
        let (op, content) = self.op(slot);
        if op.state != State::Done || op.kind != OpKind::ReadObject {
            return Err(self.refuse(slot, "object"));
        }
        let start = op.start as usize;
        let header = header_of(content.data.bytes(start, HEADER_BYTES));
        let payload = content.data.bytes(start + HEADER_BYTES, header.meta.payload_len());
        let ObjectHeader { lock, version, meta, prev } = header;
        Ok(ObjectView { lock, version: version.0, meta: meta.0, prev, payload })
    }

    /// Whether the instruction was done, of whatever kind it is.
    ///
    /// # Errors
    /// What prevented it.
    ///
    /// # Panics
    /// If the batch has not been submitted.
    #[inline]
    pub fn done(&self, slot: Slot) -> Result<(), FabricError> {
        if self.op(slot).0.state == State::Done { Ok(()) } else { Err(self.refuse(slot, "result")) }
    }

    /// The first failure among all instructions, for a caller that treats any failure as a failure of all.
    ///
    /// # Errors
    /// The first failure.
    ///
    /// # Panics
    /// If the batch has not been submitted.
    #[inline]
    pub fn all_done(&self) -> Result<(), FabricError> {
        (0..self.len()).try_for_each(|index| self.done(Slot(index as u32)))
    }

    #[inline]
    fn op(&self, slot: Slot) -> (&Op, &Content) {
        let content = self.content.as_deref().expect("a slot of this batch, which is empty");
        (&content.ops[slot.0 as usize], content)
    }

    /// Why there is no such result.
    #[cold]
    fn refuse(&self, slot: Slot, wanted: &str) -> FabricError {
        let (op, content) = self.op(slot);
        match op.state {
            State::Failed => content.errors[op.a as usize].clone(),
            State::Pending => panic!("instruction {} ({:?}) was never submitted", slot.0, op.kind),
            State::Done => panic!("instruction {} is a {:?} and has no {wanted} as its result", slot.0, op.kind),
        }
    }
}

impl OpKind {
    #[inline]
    pub(crate) fn is_word(self) -> bool {
        !matches!(self, Self::Read | Self::Write | Self::ReadObject | Self::Flush)
    }
}

/// Puts an object's header into its 32 bytes of the buffer.
#[inline]
pub(crate) fn put_header(header: &ObjectHeader, to: &mut [u8]) {
    for (word, to) in [header.lock, header.version.0, header.meta.0, header.prev].iter().zip(to.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Back from [`put_header`].
#[inline]
pub(crate) fn header_of(from: &[u8]) -> ObjectHeader {
    let word = |index: usize| u64::from_ne_bytes(from[index * 8..index * 8 + 8].try_into().expect("8 bytes"));
    ObjectHeader { lock: word(0), version: Version(word(1)), meta: Meta(word(2)), prev: word(3) }
}

impl Op {
    /// Whether it reads bytes that no thread changes.
    #[cfg(feature = "libfabric")]
    pub(crate) fn is_of_immutable(&self) -> bool {
        self.kind == OpKind::Read && self.b == IMMUTABLE
    }

    /// What a word instruction is given.
    #[cfg(feature = "libfabric")]
    pub(crate) fn operands(&self) -> (u64, u64) {
        (self.a, self.b)
    }

    /// An instruction by itself, as another node requested it.
    #[cfg(feature = "libfabric")]
    pub(crate) fn word(kind: OpKind, at: FarPtr, a: u64, b: u64) -> Self {
        Self { at, a, b, start: 0, len: 8, kind, state: State::Pending }
    }

    #[cold]
    pub(crate) fn fail(&mut self, errors: &mut Vec<FabricError>, error: FabricError) {
        self.state = State::Failed;
        self.a = errors.len() as u64;
        errors.push(error);
    }

    /// Executes the instruction on memory that this thread can reach. It is the target's side of every provider.
    #[inline]
    pub(crate) fn execute(&mut self, data: &mut Buffer, memory: &RegionMemory) -> Result<(), FabricError> {
        let offset = self.at.offset();
        let (start, len) = (self.start as usize, self.len as usize);
        match self.kind {
            OpKind::Read => memory.copy_out(offset, data.bytes_mut(start, len))?,
            OpKind::Write => memory.copy_in(offset, data.bytes(start, len))?,
            OpKind::ReadObject => {
                let (header, payload) = data.bytes_mut(start, HEADER_BYTES + len).split_at_mut(HEADER_BYTES);
                put_header(&memory.read_object(offset, payload)?, header);
            }
            OpKind::Flush => memory.flush(offset, len as u64)?,
            _ => self.a = self.execute_word(memory.word(offset)?),
        }
        self.state = State::Done;
        Ok(())
    }

    /// Executes a word instruction, and returns the old value.
    #[inline]
    pub(crate) fn execute_word(&self, word: &AtomicU64) -> u64 {
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
