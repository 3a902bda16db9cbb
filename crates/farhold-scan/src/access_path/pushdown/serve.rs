//! The home node's side: scans the segments of a request, and makes the replies.

use farhold_fabric::RegionMemory;
use farhold_store::column::{Chunk, Encoding, Nulls, TextValues, encode_integers, encode_texts, encode_wide};
use farhold_store::row::Schema;

use super::super::aggregate::Partial;
use super::super::stage::{Passed, rows_of};
use super::super::{FarChunk, Pinned, Wanted};
use super::bits::put_bits;
use super::reply::{HEAD_BYTES, Kind, MESSAGE_BYTES, RECORD_BYTES_MAX, Refusal, Reply, put_value};
use super::request::{OwnedWanted, Request, needed};
use super::wire::put_counted;
use crate::columns::ColumnFilter;

/// A home node's access to a table.
pub trait Home {
    /// The table's columns.
    fn schema(&self) -> &Schema;

    /// The bytes of a chunk that the node keeps; `None` for anything else that a request may name.
    fn chunk(&self, chunk: FarChunk) -> Option<&[u8]>;
}

/// A table whose chunks are in one region of this node and are kept by a pin.
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

/// The result of [`Serving::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is a message for the asker.
    Message(Vec<u8>),
    /// A piece of a segment has been scanned or aggregated.
    Nothing,
}

/// Blocks of rows of which an aggregate is computed in one piece: 16,384 values, which take some 0.1 ms, or 0.5 ms of texts.
pub(super) const PIECE_BLOCKS: usize = 16;

/// Answers a request step by step, and holds the result of one segment at a time.
#[derive(Debug)]
pub struct Serving {
    number: u64,
    sequence: u32,
    request: Option<Request>,
    needed: Vec<usize>,
    /// The next segment, or the one that has begun.
    segment: usize,
    begun: Option<Begun>,
    /// A record, and how much of it has been sent.
    record: Vec<u8>,
    sent: usize,
    /// Why the request is refused.
    refusal: Option<Refusal>,
    pub(super) record_bytes_max: usize,
}

impl Serving {
    /// Answers this request. The first message refuses bytes that are not a valid request.
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
            begun: None,
            record: Vec::new(),
            sent: 0,
            refusal,
            record_bytes_max,
        }
    }

    /// Whether the last message has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.request.is_none() && self.refusal.is_none()
    }

    /// Executes the next step; `None`: the request has been answered. The caller must pass the same home each time. An agent does its other work between two
    /// steps. A step finds out which rows of a segment pass, makes the chunk of one wanted column of these rows, or continues one aggregate by 16 blocks.
    #[must_use]
    pub fn next(&mut self, home: &dyn Home) -> Option<Step> {
        if self.sent == self.record.len() && self.refusal.is_none() {
            let request = self.request.as_ref()?;
            if self.segment == request.segments.len() {
                self.request = None;
                return Some(self.message(Kind::Answered, &[]));
            }
            (self.record, self.sent) = (Vec::new(), 0);
            match self.piece(home) {
                Ok(None) => return Some(Step::Nothing),
                Ok(Some(record)) => self.record = record,
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

    /// Works off a piece of a segment; its record, once that is whole.
    fn piece(&mut self, home: &dyn Home) -> Result<Option<Vec<u8>>, Refusal> {
        let (schema, segment) = (home.schema(), self.segment);
        let Some(request) = &self.request else { return Ok(None) };
        if segment == 0 && self.begun.is_none() && !fits(request, schema) {
            return Err(Refusal::Misfit);
        }
        let chunks = opened(request, &self.needed, segment, home)?;
        let Some(mut begun) = self.begun.take() else {
            let of = &request.segments[segment];
            let filter = ColumnFilter::of_some(schema, &request.predicate, of.rows, chunks);
            let passed = Passed::of(segment, of.rows, &filter, &of.ended);
            if passed.passing == 0 {
                self.segment += 1;
            } else {
                self.begun = Some(Begun::new(passed, request.wanted.borrowed()));
            }
            return Ok(None);
        };
        let is_whole = begun.go_on(request.wanted.borrowed(), schema, &chunks, self.record_bytes_max);
        if is_whole.ok_or(Refusal::Long { segment })? {
            self.segment += 1;
            return Ok(Some(begun.record));
        }
        self.begun = Some(begun);
        Ok(None)
    }

    fn message(&mut self, kind: Kind, bytes: &[u8]) -> Step {
        let message = Reply { number: self.number, sequence: self.sequence, kind, bytes }.put();
        self.sequence += 1;
        Step::Message(message)
    }
}

/// Whether a request fits this table.
fn fits(request: &Request, schema: &Schema) -> bool {
    let wanted = match &request.wanted {
        OwnedWanted::Columns(columns) => columns.iter().all(|column| *column < schema.columns().len()),
        OwnedWanted::Aggregates(aggregates) => aggregates.iter().all(|aggregate| aggregate.fits(schema)),
    };
    wanted && request.predicate.fits(schema).is_ok()
}

/// The needed chunks of a segment, each at its column's place.
fn opened<'h>(
    request: &Request,
    needed: &[usize],
    segment: usize,
    home: &'h dyn Home,
) -> Result<Vec<Option<Chunk<'h>>>, Refusal> {
    let (schema, of) = (home.schema(), &request.segments[segment]);
    let mut chunks: Vec<Option<Chunk<'h>>> = vec![None; schema.columns().len()];
    for (column, chunk) in needed.iter().zip(&of.chunks) {
        let bytes = home.chunk(*chunk).ok_or(Refusal::UnknownChunk { segment })?;
        let chunk = Chunk::open_for(schema.columns()[*column].data_type, of.rows, bytes);
        chunks[*column] = Some(chunk.map_err(|_| Refusal::Damaged { segment })?);
    }
    Ok(chunks)
}

/// A segment of which rows pass, while its record is made.
#[derive(Debug)]
struct Begun {
    passed: Passed,
    record: Vec<u8>,
    /// The next one of the columns or aggregates that are wanted, and what has been computed of it, if it is an aggregate.
    next: usize,
    partial: Option<Partial>,
}

impl Begun {
    fn new(passed: Passed, wanted: Wanted<'_>) -> Self {
        let mut record = Vec::new();
        record.extend((passed.segment as u16).to_le_bytes());
        record.extend((passed.passing as u32).to_le_bytes());
        if let Wanted::Columns(_) = wanted {
            put_bits(&mut record, &passed.bits, passed.rows, passed.passing);
        }
        record.extend((count_of(wanted) as u16).to_le_bytes());
        Self { passed, record, next: 0, partial: None }
    }

    /// Goes on by one piece. True: the record is whole. `None`: it is longer than it may be.
    fn go_on(
        &mut self,
        wanted: Wanted<'_>,
        schema: &Schema,
        chunks: &[Option<Chunk<'_>>],
        bytes_max: usize,
    ) -> Option<bool> {
        let chunk_of = |column: usize| chunks[column].expect("a needed column has been opened");
        match wanted {
            Wanted::Columns(columns) => {
                if let Some(column) = columns.get(self.next) {
                    let room = bytes_max.saturating_sub(self.record.len());
                    put_counted(&mut self.record, &passing_rows(&chunk_of(*column), &self.passed, room)?);
                    self.next += 1;
                }
            }
            Wanted::Aggregates(aggregates) => {
                if let Some(of) = aggregates.get(self.next) {
                    let partial = self.partial.get_or_insert_with(|| Partial::new(*of));
                    if let Some(value) = partial.go_on(PIECE_BLOCKS, schema, &self.passed, &chunk_of) {
                        put_value(&mut self.record, &value);
                        (self.next, self.partial) = (self.next + 1, None);
                    }
                }
            }
        }
        (self.record.len() <= bytes_max).then_some(self.next == count_of(wanted))
    }
}

fn count_of(wanted: Wanted<'_>) -> usize {
    match wanted {
        Wanted::Columns(columns) => columns.len(),
        Wanted::Aggregates(aggregates) => aggregates.len(),
    }
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
