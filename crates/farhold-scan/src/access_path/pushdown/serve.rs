//! The home node's side: scans what a request is about, and makes the replies.

use farhold_fabric::RegionMemory;
use farhold_store::column::{Chunk, Encoding, Nulls, TextValues, encode_integers, encode_texts, encode_wide};
use farhold_store::row::Schema;

use super::super::aggregate::aggregate;
use super::super::stage::{Passed, rows_of};
use super::super::{FarChunk, Pinned, Wanted};
use super::reply::{HEAD_BYTES, Kind, MESSAGE_BYTES, Refusal, Reply, put_bits, put_value};
use super::request::{OwnedWanted, Request, needed};
use super::wire::put_counted;
use crate::columns::ColumnFilter;

/// What a home node knows of a table.
pub trait Home {
    /// The table's columns.
    fn schema(&self) -> &Schema;

    /// The bytes of a chunk that the node keeps; `None` for anything else, whatever a request says.
    fn chunk(&self, chunk: FarChunk) -> Option<&[u8]>;
}

/// A table whose chunks lie in one region of this node, and are kept by a pin.
#[derive(Clone, Copy)]
pub struct RegionHome<'a> {
    /// The table's columns.
    pub schema: &'a Schema,
    /// The region.
    pub memory: &'a RegionMemory,
    /// Keeps the chunks.
    pub pinned: &'a dyn Pinned,
}

impl Home for RegionHome<'_> {
    fn schema(&self) -> &Schema {
        self.schema
    }

    fn chunk(&self, chunk: FarChunk) -> Option<&[u8]> {
        if !chunk.at.is_with(self.memory.origin()) || !self.pinned.covers(chunk) {
            return None;
        }
        // SAFETY: the pin keeps this chunk as long as it exists, which is as long as `self`: no thread writes to its bytes, and its region
        // keeps its length.
        unsafe { self.memory.immutable(chunk.at.offset(), chunk.bytes as usize) }.ok()
    }
}

/// The messages that answer a request, all of them: for a caller that has room for them. See [`Serving`].
#[must_use]
pub fn serve(request: &[u8], home: &dyn Home) -> Vec<Vec<u8>> {
    let mut serving = Serving::new(request);
    std::iter::from_fn(|| serving.next(home)).collect()
}

/// Answers a request message by message, and holds the result of one segment at a time.
#[derive(Debug)]
pub struct Serving {
    number: u64,
    sequence: u32,
    request: Option<Request>,
    needed: Vec<usize>,
    /// The next segment.
    segment: usize,
    /// A record, and how much of it has been sent.
    record: Vec<u8>,
    sent: usize,
    /// Why the request is refused.
    refusal: Option<Refusal>,
}

impl Serving {
    /// Answers this request. One that is none is refused by the first message.
    #[must_use]
    pub fn new(request: &[u8]) -> Self {
        let number = Request::number_of(request);
        let request = Request::read(request).ok();
        let refusal = request.is_none().then_some(Refusal::Malformed);
        let needed = request.as_ref().map(|request| needed(request.wanted.borrowed(), &request.predicate));
        let needed = needed.unwrap_or_default();
        Self { number, sequence: 0, request, needed, segment: 0, record: Vec::new(), sent: 0, refusal }
    }

    /// The next message; `None`: the request has been answered. The home is the same each time.
    #[must_use]
    pub fn next(&mut self, home: &dyn Home) -> Option<Vec<u8>> {
        while self.sent == self.record.len() && self.refusal.is_none() {
            let request = self.request.as_ref()?;
            if self.segment == 0 && !fits(request, home.schema()) {
                self.refusal = Some(Refusal::Misfit);
                break;
            }
            if self.segment == request.segments.len() {
                self.request = None;
                return Some(self.message(Kind::Answered, &[]));
            }
            self.sent = 0;
            match record(request, &self.needed, self.segment, home) {
                Ok(record) => self.record = record,
                Err(refusal) => {
                    self.record.clear();
                    self.refusal = Some(refusal);
                }
            }
            self.segment += 1;
        }
        if let Some(refusal) = self.refusal.take() {
            self.request = None;
            return Some(self.message(Kind::Refused, &refusal.put()));
        }
        let record = std::mem::take(&mut self.record);
        let end = record.len().min(self.sent + MESSAGE_BYTES - HEAD_BYTES);
        let kind = if end == record.len() { Kind::RecordEnd } else { Kind::More };
        let message = self.message(kind, &record[self.sent..end]);
        (self.record, self.sent) = (record, end);
        Some(message)
    }

    fn message(&mut self, kind: Kind, bytes: &[u8]) -> Vec<u8> {
        let message = Reply { number: self.number, sequence: self.sequence, kind, bytes }.put();
        self.sequence += 1;
        message
    }
}

/// Whether a request is one about this table.
fn fits(request: &Request, schema: &Schema) -> bool {
    let wanted = match &request.wanted {
        OwnedWanted::Columns(columns) => columns.iter().all(|column| *column < schema.columns().len()),
        OwnedWanted::Aggregates(aggregates) => aggregates.iter().all(|aggregate| aggregate.fits(schema)),
    };
    wanted && request.predicate.fits(schema).is_ok()
}

/// The record of a segment; empty if no row passes.
fn record(request: &Request, needed: &[usize], segment: usize, home: &dyn Home) -> Result<Vec<u8>, Refusal> {
    let (schema, of) = (home.schema(), &request.segments[segment]);
    let mut chunks: Vec<Option<Chunk<'_>>> = vec![None; schema.columns().len()];
    for (column, chunk) in needed.iter().zip(&of.chunks) {
        let bytes = home.chunk(*chunk).ok_or(Refusal::UnknownChunk { segment })?;
        let chunk = Chunk::open_for(schema.columns()[*column].data_type, of.rows, bytes);
        chunks[*column] = Some(chunk.map_err(|_| Refusal::Damaged { segment })?);
    }
    let filter = ColumnFilter::of_some(schema, &request.predicate, of.rows, chunks.clone());
    let passed = Passed::of(segment, of.rows, &filter);
    let mut to = Vec::new();
    if passed.passing == 0 {
        return Ok(to);
    }
    to.extend((segment as u16).to_le_bytes());
    to.extend((passed.passing as u32).to_le_bytes());
    put_bits(&mut to, &passed);
    let chunk_of = |column: usize| chunks[column].expect("a needed column has been opened");
    match request.wanted.borrowed() {
        Wanted::Columns(columns) => {
            to.extend((columns.len() as u16).to_le_bytes());
            for column in columns {
                put_counted(&mut to, &passing_rows(&chunk_of(*column), &passed));
            }
        }
        Wanted::Aggregates(aggregates) => {
            to.extend((aggregates.len() as u16).to_le_bytes());
            let value = |of: &_| aggregate(*of, schema, &passed, &chunk_of);
            aggregates.iter().map(value).for_each(|value| put_value(&mut to, &value));
        }
    }
    Ok(to)
}

/// A chunk of the rows that pass.
fn passing_rows(chunk: &Chunk<'_>, passed: &Passed) -> Vec<u8> {
    let mut nulls = Nulls::default();
    let is_null = |(n, row): (usize, usize)| chunk.is_null(row).then_some(n);
    rows_of(&passed.bits).enumerate().filter_map(is_null).for_each(|n| nulls.set(n));
    let rows = rows_of(&passed.bits);
    match chunk.encoding() {
        Encoding::Frame | Encoding::Dictionary => {
            let values: Vec<i64> = rows.map(|row| chunk.integer(row).unwrap_or_default()).collect();
            encode_integers(&values, &nulls)
        }
        Encoding::Wide => {
            let values: Vec<i128> = rows.map(|row| chunk.wide(row).unwrap_or_default()).collect();
            encode_wide(&values, &nulls)
        }
        Encoding::Text | Encoding::TextDictionary => {
            let mut values = TextValues::default();
            rows.for_each(|row| values.push(chunk.text(row).unwrap_or_default()));
            encode_texts(&values, &nulls)
        }
    }
}
