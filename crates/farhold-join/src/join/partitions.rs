//! The partitions of a side that does not fit: some in memory, some in files.
//!
//! Rows go to partitions by a hash of their key's code that differs from round to round. A partition stays in memory until
//! room is wanted; then the largest goes to a file, and its later rows follow it there. So memory is always full of
//! partitions that will not be written: a slope, not a cliff (hybrid hash join; DeWitt et al., SIGMOD 1984).
//!
//! Copied rows are small arrays. Those of many partitions lie across each other in the allocator's heap, which cannot give back
//! what one of them frees. Where the kernel limits the process they become chunks in pages of their own, before they are many.

use std::mem;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::datatypes::SchemaRef;

use super::Context;
use crate::blocks::{batch_bytes, coalesce, copy_rows, pack};
use crate::hash::{hash, top};
use crate::keys::Codes;
use crate::memory::Reservation;
use crate::pages::trim_heap;
use crate::spill::{SpillFile, Writer};
use crate::{CancelToken, JoinError};

/// One partition of one side.
#[derive(Default)]
pub struct Part {
    chunks: Vec<RecordBatch>,
    /// Rows that are not in a chunk yet.
    pieces: Vec<RecordBatch>,
    /// Of the pieces alone.
    piece_bytes: u64,
    /// Reserved for all.
    bytes: u64,
    writer: Option<Writer>,
    sameness: Sameness,
}

/// Whether all keys of a partition have one code, so that no hash can split it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Sameness {
    #[default]
    Empty,
    One(u64),
    Many,
}

/// The partitions of one side.
pub struct Partitions {
    schema: SchemaRef,
    parts: Vec<Part>,
    bits: u32,
    seed: u64,
    /// Where the next row without a code goes.
    next_without_code: usize,
    /// Bytes of pieces that have become chunks since the allocator was asked for its free pages.
    packed_bytes: u64,
}

/// The pieces of all partitions together are so many writes at most: a sixteenth of a small budget, less of a big one.
const PIECES_WRITES: u64 = 4;

/// So often, while a budget's worth of rows is partitioned, the allocator is asked for the pages that their copies and the
/// batches that they come from leave free in its heap. Half as often a budget of 6.4 MiB takes 0.3 MiB more, one of 64 takes 4.
const TRIMS: u64 = 16;

/// A partition in a file.
#[derive(Clone)]
pub struct SpilledPart {
    pub file: SpillFile,
    /// All its keys have one code.
    pub is_one_code: bool,
}

impl Partitions {
    pub fn new(cx: &Context, schema: &SchemaRef, round: u32) -> Self {
        let bits = cx.sizes.fan_out_bits;
        Self {
            schema: schema.clone(),
            parts: (0..1 << bits).map(|_| Part::default()).collect(),
            bits,
            seed: hash(u64::from(round), cx.options.run.seed ^ 0x7269_6464_6c65_0001),
            next_without_code: 0,
            packed_bytes: 0,
        }
    }

    pub fn count(&self) -> usize {
        self.parts.len()
    }

    #[inline(always)]
    pub fn of(&self, code: u64) -> usize {
        top(hash(code, self.seed), self.bits)
    }

    /// Whether a partition has a file.
    pub fn is_spilled(&self, part: usize) -> bool {
        self.parts[part].writer.is_some()
    }

    /// Copies the rows for which `wants(row, partition)` into their partitions, and spills where there is no room. Rows
    /// without a valid code go to one after the other, if `keeps_invalid`.
    pub fn scatter(
        &mut self,
        batch: &RecordBatch,
        codes: &Codes,
        keeps_invalid: bool,
        wants: impl Fn(usize, usize) -> bool,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.parts.len()];
        for row in 0..batch.num_rows() {
            if codes.is_valid(row) {
                let part = self.of(codes.codes[row]);
                if wants(row, part) {
                    self.parts[part].sameness = self.parts[part].sameness.and(codes.codes[row]);
                    rows[part].push(row as u32);
                }
            } else if keeps_invalid {
                let part = self.next_without_code % self.parts.len();
                self.next_without_code += 1;
                self.parts[part].sameness = Sameness::Many;
                rows[part].push(row as u32);
            }
        }
        for (part, rows) in rows.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            let piece = copy_rows(batch, &UInt32Array::from(rows))?;
            self.add(part, piece, cx, memory)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        part: usize,
        piece: RecordBatch,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        let bytes = batch_bytes(&piece);
        while !memory.try_grow(bytes) {
            if !self.make_room(cx, memory)? {
                return self.writer(part, cx)?.push(&piece);
            }
        }
        let gives_back = cx.options.pool.gives_back();
        let pieces_bytes_max = cx.sizes.chunk_bytes * PIECES_WRITES / self.parts.len() as u64;
        let to = &mut self.parts[part];
        to.pieces.push(piece);
        to.piece_bytes += bytes;
        to.bytes += bytes;
        if gives_back && to.piece_bytes >= pieces_bytes_max {
            self.packed_bytes += mem::take(&mut to.piece_bytes);
            to.chunks.push(pack(&mem::take(&mut to.pieces))?);
            if self.packed_bytes >= cx.options.pool.limit() / TRIMS {
                self.packed_bytes = 0;
                trim_heap();
            }
        }
        let to = &mut self.parts[part];
        if to.writer.is_some() && to.bytes >= cx.sizes.chunk_bytes {
            self.flush(part, cx, memory)?;
        }
        Ok(())
    }

    /// Writes out what frees most: the longest tail of a file if one is worth a write, or else the largest partition.
    /// False if nothing is left.
    pub fn make_room(&mut self, cx: &Context, memory: &mut Reservation) -> Result<bool, JoinError> {
        let largest = |spilled: bool| {
            let parts =
                self.parts.iter().enumerate().filter(|(_, part)| part.bytes > 0 && part.writer.is_some() == spilled);
            parts.max_by_key(|(_, part)| part.bytes).map(|(at, part)| (at, part.bytes))
        };
        let (tail, whole) = (largest(true), largest(false));
        let Some((part, _)) = tail.filter(|(_, bytes)| whole.is_none() || *bytes >= cx.sizes.chunk_bytes / 2).or(whole)
        else {
            return Ok(false);
        };
        self.flush(part, cx, memory)?;
        Ok(true)
    }

    fn writer(&mut self, part: usize, cx: &Context) -> Result<&mut Writer, JoinError> {
        let writer = &mut self.parts[part].writer;
        match writer {
            Some(writer) => Ok(writer),
            None => Ok(writer.insert(Writer::create(
                &cx.options.spill_directory,
                &self.schema,
                cx.options.pool.gives_back(),
            )?)),
        }
    }

    fn flush(&mut self, part: usize, cx: &Context, memory: &mut Reservation) -> Result<(), JoinError> {
        self.writer(part, cx)?;
        let Part { chunks, pieces, piece_bytes, bytes, writer, .. } = &mut self.parts[part];
        *piece_bytes = 0;
        if let Some(writer) = writer {
            let cancel: &CancelToken = &cx.options.run.cancel;
            coalesce(
                chunks.drain(..).chain(pieces.drain(..)),
                cx.sizes.chunk_bytes,
                cx.options.pool.gives_back(),
                |chunk| {
                    cancel.check()?;
                    writer.push(&chunk)
                },
            )?;
        }
        memory.shrink(mem::take(bytes));
        Ok(())
    }

    /// Rows and bytes of the partitions in memory.
    pub fn resident(&self) -> (usize, u64) {
        let parts = self.parts.iter().filter(|part| part.writer.is_none());
        parts.fold((0, 0), |(rows, bytes), part| {
            (
                rows + part.chunks.iter().chain(&part.pieces).map(RecordBatch::num_rows).sum::<usize>(),
                bytes + part.bytes,
            )
        })
    }

    /// Takes the pieces of the partitions in memory; what was reserved for them is the caller's now.
    pub fn take_resident(&mut self) -> Vec<RecordBatch> {
        let parts = self.parts.iter_mut().filter(|part| part.writer.is_none());
        parts
            .flat_map(|part| {
                (part.bytes, part.piece_bytes) = (0, 0);
                mem::take(&mut part.chunks).into_iter().chain(mem::take(&mut part.pieces))
            })
            .collect()
    }

    /// Writes the rest of every spilled partition and closes its file; none for partitions without a file.
    pub fn finish_spilled(
        &mut self,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<Vec<Option<SpilledPart>>, JoinError> {
        let mut files = Vec::with_capacity(self.parts.len());
        for part in 0..self.parts.len() {
            if !self.is_spilled(part) {
                files.push(None);
                continue;
            }
            self.flush(part, cx, memory)?;
            let file = self.parts[part].writer.take().map(Writer::finish).transpose()?;
            let is_one_code = self.parts[part].sameness != Sameness::Many;
            files.push(file.map(|file| SpilledPart { file, is_one_code }));
        }
        if cx.options.pool.gives_back() {
            trim_heap();
        }
        Ok(files)
    }

    /// Marks a partition as spilled, with an empty file if need be.
    pub fn open(&mut self, part: usize, cx: &Context) -> Result<(), JoinError> {
        self.writer(part, cx).map(|_| ())
    }
}

impl Sameness {
    fn and(self, code: u64) -> Self {
        match self {
            Self::Empty => Self::One(code),
            Self::One(one) if one == code => self,
            _ => Self::Many,
        }
    }
}
