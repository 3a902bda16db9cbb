//! The home node's side: scans what a request is about, and makes the replies.

use farhold_fabric::RegionMemory;
use farhold_store::column::{Chunk, Encoding, Nulls, TextValues, encode_integers, encode_texts, encode_wide};
use farhold_store::row::Schema;

use super::super::aggregate::aggregate;
use super::super::stage::{Passed, rows_of};
use super::super::{FarChunk, Pinned, Wanted};
use super::bits::put_bits;
use super::reply::{HEAD_BYTES, Kind, MESSAGE_BYTES, RECORD_BYTES_MAX, Refusal, Reply, put_value};
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
    let steps = std::iter::from_fn(|| serving.next(home));
    steps.filter_map(|step| if let Step::Message(message) = step { Some(message) } else { None }).collect()
}

/// What [`Serving::next`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has a message for the asker.
    Message(Vec<u8>),
    /// It has scanned a segment of which no row passes.
    Nothing,
}

/// Answers a request step by step, and holds the result of one segment at a time.
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
    pub(super) record_bytes_max: usize,
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
        let record_bytes_max = RECORD_BYTES_MAX;
        Self {
            number,
            sequence: 0,
            request,
            needed,
            segment: 0,
            record: Vec::new(),
            sent: 0,
            refusal,
            record_bytes_max,
        }
    }

    /// Whether the asker has been given the last message.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.request.is_none() && self.refusal.is_none()
    }

    /// The next step, which scans one segment at most; `None`: the request has been answered. The home is the same each time. An
    /// agent does its other work between two steps.
    #[must_use]
    pub fn next(&mut self, home: &dyn Home) -> Option<Step> {
        if self.sent == self.record.len() && self.refusal.is_none() {
            let request = self.request.as_ref()?;
            if self.segment == request.segments.len() {
                self.request = None;
                return Some(self.message(Kind::Answered, &[]));
            }
            (self.record, self.sent) = (Vec::new(), 0);
            let is_misfit = self.segment == 0 && !fits(request, home.schema());
            let record = if is_misfit { Err(Refusal::Misfit) } else { self.next_record(request, home) };
            self.segment += 1;
            match record {
                Ok(record) if record.is_empty() => return Some(Step::Nothing),
                Ok(record) => self.record = record,
                Err(refusal) => self.refusal = Some(refusal),
            }
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

    fn next_record(&self, request: &Request, home: &dyn Home) -> Result<Vec<u8>, Refusal> {
        record(request, &self.needed, self.segment, home, self.record_bytes_max)
    }

    fn message(&mut self, kind: Kind, bytes: &[u8]) -> Step {
        let message = Reply { number: self.number, sequence: self.sequence, kind, bytes }.put();
        self.sequence += 1;
        Step::Message(message)
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
fn record(
    request: &Request,
    needed: &[usize],
    segment: usize,
    home: &dyn Home,
    bytes_max: usize,
) -> Result<Vec<u8>, Refusal> {
    let (schema, of) = (home.schema(), &request.segments[segment]);
    let mut chunks: Vec<Option<Chunk<'_>>> = vec![None; schema.columns().len()];
    for (column, chunk) in needed.iter().zip(&of.chunks) {
        let bytes = home.chunk(*chunk).ok_or(Refusal::UnknownChunk { segment })?;
        let chunk = Chunk::open_for(schema.columns()[*column].data_type, of.rows, bytes);
        chunks[*column] = Some(chunk.map_err(|_| Refusal::Damaged { segment })?);
    }
    let filter = ColumnFilter::of_some(schema, &request.predicate, of.rows, chunks.clone());
    let passed = Passed::of(segment, of.rows, &filter, &of.ended);
    let mut to = Vec::new();
    if passed.passing == 0 {
        return Ok(to);
    }
    to.extend((segment as u16).to_le_bytes());
    to.extend((passed.passing as u32).to_le_bytes());
    let chunk_of = |column: usize| chunks[column].expect("a needed column has been opened");
    let long = Refusal::Long { segment };
    match request.wanted.borrowed() {
        Wanted::Columns(columns) => {
            put_bits(&mut to, &passed.bits, passed.rows, passed.passing);
            to.extend((columns.len() as u16).to_le_bytes());
            for column in columns {
                let room = bytes_max.saturating_sub(to.len());
                put_counted(&mut to, &passing_rows(&chunk_of(*column), &passed, room).ok_or(long)?);
            }
        }
        Wanted::Aggregates(aggregates) => {
            to.extend((aggregates.len() as u16).to_le_bytes());
            for of in aggregates {
                put_value(&mut to, &aggregate(*of, schema, &passed, &chunk_of));
                if to.len() > bytes_max {
                    return Err(long);
                }
            }
        }
    }
    if to.len() > bytes_max { Err(long) } else { Ok(to) }
}

/// A chunk of the rows that pass; `None`: it would have more than `bytes_max` bytes of texts. The rows of a dictionary may have many
/// more bytes than the dictionary.
fn passing_rows(chunk: &Chunk<'_>, passed: &Passed, bytes_max: usize) -> Option<Vec<u8>> {
    let mut nulls = Nulls::default();
    let is_null = |(n, row): (usize, usize)| chunk.is_null(row).then_some(n);
    rows_of(&passed.bits).enumerate().filter_map(is_null).for_each(|n| nulls.set(n));
    let rows = rows_of(&passed.bits);
    Some(match chunk.encoding() {
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
            for row in rows {
                let text = chunk.text(row).unwrap_or_default();
                if values.bytes() + text.len() > bytes_max {
                    return None;
                }
                values.push(text);
            }
            encode_texts(&values, &nulls)
        }
    })
}
