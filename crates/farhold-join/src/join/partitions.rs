//! The partitions of a side that does not fit: some in memory, some in files.
//!
//! Rows go to partitions by a hash of their key code that differs from round to round. A partition stays in memory
//! until room is needed. Then the largest goes to a file, and its later rows follow it there. So memory is always full
//! of partitions that will not be written, and the cost of a smaller budget is a slope, not a cliff (hybrid hash join;
//! DeWitt et al., SIGMOD 1984).
//!
//! ```text
//!   group of batches ─┬─▶ thread: a batch's codes and routes, ─┐   ┌─▶ thread: a partition's rows, in the Bloom filter and ─┐
//!                     │           its rows by partition        │   │           copied; its file                             │
//!                     └─▶ thread: …                            ┴───┴─▶ thread: …                                            ┴─▶
//! ```
//!
//! Copied rows are small arrays. Those of many partitions are mixed in the allocator's heap, which cannot give back
//! what one of them frees. Where the kernel limits the process, they become chunks in pages of their own before they
//! are many.

use std::cmp::Reverse;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::Context;
use crate::JoinError;
use crate::blocks::{batch_bytes, coalesce, copy_ranges, copy_rows, pack};
use crate::bloom::{BloomBuilder, BloomPart};
use crate::hash::{hash, top};
use crate::keys::Codes;
use crate::memory::Reservation;
use crate::pages::trim_heap;
use crate::run::WorkerPool;
use crate::spill::{SharedFile, SpillFile, Writer};
use farhold_planted::Defect;

/// One partition of one side.
pub struct Part {
    chunks: Vec<RecordBatch>,
    /// Rows that are not in a chunk yet.
    pieces: Vec<RecordBatch>,
    /// Bytes of the pieces alone.
    piece_bytes: u64,
    /// Bytes reserved for chunks and pieces.
    bytes: u64,
    file: Arc<SharedFile>,
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
    files: usize,
    bits: u32,
    seed: u64,
    /// Counts the rows without a code, which decides where the next one goes.
    next_without_code: usize,
    /// Bytes of pieces that have become chunks since the allocator was last asked for its free pages.
    packed_bytes: u64,
    /// The threads that copy rows and write files.
    workers: WorkerPool,
}

/// The partitions to which rows of a batch go.
pub struct Routes {
    batch: RecordBatch,
    codes: Codes,
    /// Rows that go to a partition, in the order of partitions.
    rows: Vec<u32>,
    /// The rows of partition `p` are `starts[p]..starts[p + 1]`.
    starts: Vec<u32>,
}

/// Bytes of [`Routes`] for a row.
pub const ROUTE_BYTES: u64 = 12;

/// The pieces of all partitions together are at most this many writes: a sixteenth of a small budget, less of a big
/// one.
const PIECES_WRITES: u64 = 4;

/// The number of times that, while a budget's worth of rows is partitioned, the allocator is asked for the pages that
/// copies and source batches leave free in its heap. With half of them, a budget of 6.4 MiB takes 0.3 MiB more, and one
/// of 64 MiB takes 4 MiB more.
const TRIMS: u64 = 16;

/// The number of files of all partitions: a few, so that threads write beside each other, and the disk gets space back
/// file by file. Where memory is short each partition has its own file, whose pages in memory are freed with it.
const FILES: usize = 8;

/// A partition in a file.
#[derive(Clone)]
pub struct SpilledPart {
    pub file: SpillFile,
    /// All its keys have one code.
    pub is_one_code: bool,
}

impl Routes {
    /// Rows that go to a partition.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The range in `rows` of a partition's rows.
    fn of(&self, part: usize) -> Range<usize> {
        self.starts[part] as usize..self.starts[part + 1] as usize
    }

    /// Replaces the batch by the rows that go to a partition, in the order of their partitions. The rows that a
    /// partition gets of many batches then lie together in each, and a thread that copies them does not fetch a line of
    /// memory for every value.
    pub fn by_partition(self) -> Result<Self, JoinError> {
        let Self { batch, codes, rows, starts } = self;
        let batch = copy_rows(&batch, &rows)?;
        let valid = codes.valid.map(|valid| rows.iter().map(|&row| valid.is_valid(row as usize)).collect());
        let codes = Codes { codes: rows.iter().map(|&row| codes.codes[row as usize]).collect(), valid };
        Ok(Self { batch, codes, rows: (0..rows.len() as u32).collect(), starts })
    }

    /// Bytes of the batch and of the data beside it.
    pub fn bytes(&self) -> u64 {
        batch_bytes(&self.batch) + ROUTE_BYTES * self.rows.len() as u64
    }

    /// The rows that a partition gets of all these.
    fn copy(routes: &[Self], part: usize) -> Result<Option<RecordBatch>, JoinError> {
        if let [Self { batch, rows, .. }] = routes {
            let rows = &rows[routes[0].of(part)];
            return (!rows.is_empty()).then(|| copy_rows(batch, rows)).transpose();
        }
        let ranges = routes.iter().map(|routes| (&routes.batch, routes.of(part)));
        let ranges: Vec<_> = ranges.filter(|(_, rows)| !rows.is_empty()).collect();
        (!ranges.is_empty()).then(|| copy_ranges(&ranges)).transpose()
    }
}

impl Partitions {
    pub fn new(cx: &Context, schema: &SchemaRef, round: u32, threads: usize) -> Self {
        let bits = cx.sizes.fan_out_bits;
        let gives_back = cx.options.pool.gives_back();
        let files = if gives_back { 1 << bits } else { FILES.min(1 << bits) };
        let shared: Vec<_> = (0..files).map(|_| SharedFile::new(&cx.options.spill_directory, gives_back)).collect();
        Self {
            schema: schema.clone(),
            parts: shared.iter().cycle().map(Part::new).take(1 << bits).collect(),
            files,
            bits,
            seed: hash(u64::from(round), cx.options.run.seed ^ 0x7269_6464_6c65_0001),
            next_without_code: 0,
            packed_bytes: 0,
            workers: WorkerPool::new(threads),
        }
    }

    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The partitions in the order of their files.
    pub fn by_file(&self) -> impl Iterator<Item = usize> {
        let (count, files) = (self.count(), self.files);
        (0..files).flat_map(move |file| (file..count).step_by(files))
    }

    #[inline(always)]
    fn of(&self, code: u64) -> usize {
        top(hash(code, self.seed), self.bits)
    }

    /// The threads that copy rows and write files.
    pub fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    /// The routes of the rows for which `wants(code, partition)` holds. With `keeps_invalid`, rows without a valid code
    /// go to one partition after the other.
    pub fn routes(
        &self,
        batch: RecordBatch,
        codes: Codes,
        keeps_invalid: bool,
        wants: impl Fn(u64, usize) -> bool,
    ) -> Routes {
        const NOWHERE: u8 = u8::MAX;
        let mut next_without_code = self.next_without_code;
        let mut next = || {
            next_without_code += 1;
            if keeps_invalid { (next_without_code % self.parts.len()) as u8 } else { NOWHERE }
        };
        let part_of = |(row, &code): (usize, &u64)| {
            if !codes.is_valid(row) {
                return next();
            }
            let part = self.of(code);
            if wants(code, part) { part as u8 } else { NOWHERE }
        };
        let places: Vec<u8> = codes.codes.iter().enumerate().map(part_of).collect();
        let mut ends = [0_u32; NOWHERE as usize + 1];
        for &part in &places {
            ends[part as usize] += 1;
        }
        let mut starts = vec![0; self.parts.len() + 1];
        for part in 0..self.parts.len() {
            starts[part + 1] = starts[part] + mem::replace(&mut ends[part], starts[part]);
        }
        let mut rows = vec![0; starts[self.parts.len()] as usize];
        for (&part, row) in places.iter().zip(0..).filter(|(part, _)| **part != NOWHERE) {
            let end = &mut ends[part as usize];
            rows[*end as usize] = row;
            *end += 1;
        }
        Routes { batch, codes, rows, starts }
    }

    /// Copies rows into their partitions, and spills where there is no room. The rows of several batches must lie in
    /// the order of their partitions. The batches must be few: the caller must have room for them and for the copies
    /// until these are in their partitions. Meanwhile each partition belongs to one thread.
    pub fn scatter(
        &mut self,
        routes: &[Routes],
        bloom: Option<&mut BloomBuilder>,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        if routes.is_empty() {
            return Ok(());
        }
        self.next_without_code += routes.iter().map(|routes| routes.rows.len()).sum::<usize>();
        let (before, expected) = (self.bytes(), self.copies_bytes(routes));
        let (mut grown, mut leaving) = (expected, Vec::new());
        let mut has_room = memory.try_grow(grown);
        if !has_room {
            // A pool above this one may have none either.
            let missing = expected.checked_sub(memory.room()).filter(|&bytes| bytes > 0).unwrap_or(expected);
            leaving = self.largest(missing, cx);
            grown = expected.saturating_sub(leaving.iter().map(|&part| self.parts[part].bytes).sum());
            has_room = memory.try_grow(grown);
            grown = if has_room { grown } else { 0 };
        }
        let mut blooms: Vec<Mutex<Option<BloomPart<'_>>>> =
            bloom.into_iter().flat_map(BloomBuilder::parts).map(Some).map(Mutex::new).collect();
        blooms.resize_with(self.parts.len(), Mutex::default);
        let (schema, parts) = (&self.schema, self.parts.iter_mut().map(Mutex::new).collect::<Vec<_>>());
        let done = self.workers.on_tasks(parts.len(), |number| {
            cx.options.run.cancel.check()?;
            let mut part = lock(&parts[number]);
            if leaving.contains(&number) {
                part.flush(schema, cx)?;
            }
            part.note(number, routes, lock(&blooms[number]).as_mut());
            let Some(piece) = Routes::copy(routes, number)? else { return Ok((0, None)) };
            if has_room { Ok((part.add(piece, schema, cx)?, None)) } else { Ok((0, Some(piece))) }
        })?;
        drop(parts);
        let (reserved, after) = (before + grown, self.bytes());
        memory.shrink(reserved.saturating_sub(after));
        let missing = after.saturating_sub(reserved);
        if !memory.try_grow(missing) {
            let freed = self.flush(&self.largest(missing, cx), cx)?;
            memory.shrink(freed - missing);
        }
        for (part, (packed, piece)) in done.into_iter().enumerate() {
            self.packed_bytes += packed;
            if let Some(piece) = piece {
                self.squeeze(part, piece, cx, memory)?;
            }
        }
        if self.packed_bytes >= cx.options.pool.limit() / TRIMS {
            self.packed_bytes = 0;
            trim_heap();
        }
        Ok(())
    }

    /// Adds a piece after there was no room for all, or writes it to its file at once.
    fn squeeze(
        &mut self,
        part: usize,
        piece: RecordBatch,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        let bytes = batch_bytes(&piece);
        while !memory.try_grow(bytes) {
            if !self.make_room(cx, memory)? {
                return self.parts[part].writer(&self.schema)?.push(&piece);
            }
        }
        let reserved = self.parts[part].bytes + bytes;
        self.packed_bytes += self.parts[part].add(piece, &self.schema, cx)?;
        memory.shrink(reserved - self.parts[part].bytes);
        Ok(())
    }

    /// Bytes reserved for all partitions.
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// An estimate of the bytes of the copies.
    fn copies_bytes(&self, routes: &[Routes]) -> u64 {
        let of = |routes: &Routes| {
            batch_bytes(&routes.batch) * routes.rows.len() as u64 / routes.batch.num_rows().max(1) as u64
        };
        let rows: u64 = routes.iter().map(of).sum();
        rows + self.parts.len() as u64 * batch_bytes(&RecordBatch::new_empty(self.schema.clone()))
    }

    /// Partitions that free `wanted` bytes. First tails of files that are worth a write, then whole partitions, then
    /// the other tails, the largest of each first.
    fn largest(&self, wanted: u64, cx: &Context) -> Vec<usize> {
        let rank = |part: usize| {
            let Part { bytes, writer, .. } = &self.parts[part];
            let class = if writer.is_none() { 1 } else { 2 * u32::from(*bytes < cx.sizes.chunk_bytes / 2) };
            (class, Reverse(*bytes))
        };
        let mut ranked: Vec<usize> = (0..self.parts.len()).filter(|&part| self.parts[part].bytes > 0).collect();
        ranked.sort_by_key(|&part| rank(part));
        let mut freed = 0;
        ranked.retain(|&part| {
            let is_wanted = freed < wanted;
            freed += self.parts[part].bytes;
            is_wanted
        });
        ranked
    }

    /// Writes out the partition that comes first in `largest`. False if nothing is left.
    pub fn make_room(&mut self, cx: &Context, memory: &mut Reservation) -> Result<bool, JoinError> {
        let largest = self.largest(1, cx);
        memory.shrink(self.flush(&largest, cx)?);
        Ok(!largest.is_empty())
    }

    /// Writes out these partitions, each by one thread. Returns the bytes that this frees.
    fn flush(&mut self, parts: &[usize], cx: &Context) -> Result<u64, JoinError> {
        let of_parts = self.parts.iter_mut().enumerate().filter(|(part, _)| parts.contains(part));
        let of_parts: Vec<Mutex<&mut Part>> = of_parts.map(|(_, part)| Mutex::new(part)).collect();
        let freed = self.workers.on_tasks(of_parts.len(), |task| lock(&of_parts[task]).flush(&self.schema, cx))?;
        Ok(freed.into_iter().sum())
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

    /// Takes the pieces of the partitions in memory. The bytes reserved for them are then the caller's.
    pub fn take_resident(&mut self) -> Vec<RecordBatch> {
        let parts = self.parts.iter_mut().filter(|part| part.writer.is_none());
        parts
            .flat_map(|part| {
                (part.bytes, part.piece_bytes) = (0, 0);
                mem::take(&mut part.chunks).into_iter().chain(mem::take(&mut part.pieces))
            })
            .collect()
    }

    /// Writes the rest of every spilled partition and closes its file. None for partitions without a file.
    pub fn finish_spilled(
        &mut self,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<Vec<Option<SpilledPart>>, JoinError> {
        let spilled: Vec<usize> = (0..self.parts.len()).filter(|&part| self.parts[part].writer.is_some()).collect();
        memory.shrink(self.flush(&spilled, cx)?);
        let finished = self.parts.iter_mut().map(|part| {
            let file = part.writer.take().map(Writer::finish).transpose()?;
            Ok(file.map(|file| SpilledPart { file, is_one_code: part.sameness != Sameness::Many }))
        });
        let files = finished.collect::<Result<_, JoinError>>()?;
        if cx.options.pool.gives_back() {
            trim_heap();
        }
        Ok(files)
    }

    /// Marks a partition as spilled, with an empty file if necessary.
    pub fn open(&mut self, part: usize) -> Result<(), JoinError> {
        self.parts[part].writer(&self.schema).map(|_| ())
    }
}

impl Part {
    fn new(file: &Arc<SharedFile>) -> Self {
        let (chunks, pieces, file) = (Vec::new(), Vec::new(), Arc::clone(file));
        Self { chunks, pieces, piece_bytes: 0, bytes: 0, file, writer: None, sameness: Sameness::default() }
    }

    fn writer(&mut self, schema: &SchemaRef) -> Result<&mut Writer, JoinError> {
        match &mut self.writer {
            Some(writer) => Ok(writer),
            none => Ok(none.insert(Writer::create(Arc::clone(&self.file), schema)?)),
        }
    }

    /// Takes note of rows that will be added to this partition, which has this `number`.
    fn note(&mut self, number: usize, routes: &[Routes], mut bloom: Option<&mut BloomPart<'_>>) {
        let is_lost = farhold_planted::is(Defect::EarlyFilter) && self.writer.is_some();
        for routes in routes {
            for &row in &routes.rows[routes.of(number)] {
                let (codes, row) = (&routes.codes, row as usize);
                if !codes.is_valid(row) {
                    self.sameness = Sameness::Many;
                    continue;
                }
                self.sameness = self.sameness.and(codes.codes[row]);
                if let Some(bloom) = bloom.as_mut().filter(|_| !is_lost) {
                    bloom.insert(codes.codes[row]);
                }
            }
        }
    }

    /// Adds a piece. A spilled partition writes everything out once that is worth a write. Returns the bytes that have
    /// become a chunk.
    fn add(&mut self, piece: RecordBatch, schema: &SchemaRef, cx: &Context) -> Result<u64, JoinError> {
        let bytes = batch_bytes(&piece);
        self.pieces.push(piece);
        self.piece_bytes += bytes;
        self.bytes += bytes;
        let is_packed = cx.options.pool.gives_back()
            && self.piece_bytes >= (cx.sizes.chunk_bytes * PIECES_WRITES) >> cx.sizes.fan_out_bits;
        let packed = if is_packed { mem::take(&mut self.piece_bytes) } else { 0 };
        if is_packed {
            self.chunks.push(pack(&mem::take(&mut self.pieces))?);
        }
        if self.writer.is_some() && self.bytes >= cx.sizes.chunk_bytes {
            self.flush(schema, cx)?;
        }
        Ok(packed)
    }

    /// Writes all of it to its file. Returns the bytes that this frees.
    fn flush(&mut self, schema: &SchemaRef, cx: &Context) -> Result<u64, JoinError> {
        let (chunks, pieces) = (mem::take(&mut self.chunks), mem::take(&mut self.pieces));
        let writer = self.writer(schema)?;
        coalesce(chunks.into_iter().chain(pieces), cx.sizes.chunk_bytes, cx.options.pool.gives_back(), |chunk| {
            cx.options.run.cancel.check()?;
            writer.push(&chunk)
        })?;
        self.piece_bytes = 0;
        Ok(mem::take(&mut self.bytes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
