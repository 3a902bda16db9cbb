//! A request to an agent to scan.
//!
//! ```text
//!   magic u32 │ number u64 │ wanted │ conditions │ segments: count u16, each
//!
//!   wanted      0, count u16, columns u16 ...    1, count u16, each: kind u8, column u16
//!   conditions  count u16, each: kind u8, column u16, comparison u8 and constants
//!   segment     rows u32 │ rows that have ended: count u32, and which (`bits`), if there are any │ chunks: pointer u64, bytes u32
//! ```
//! All numbers are little-endian. The needed columns are those of the predicate and the wanted ones, in order. Each wanted column or aggregate is named once,
//! in order, so that duplicates do not make a record longer. The asker repeats them for its sink.

use farhold_fabric::FarPtr;
use farhold_store::column::CHUNK_ROWS_MAX;

use super::super::stage::count;
use super::super::{Aggregate, FarChunk, FarSegment, Wanted};
use super::bits::{bits_bytes, put_bits, read_bits};
use super::wire::{Cursor, WireError, put_counted};
use crate::predicate::{Comparison, Condition, Constant, Predicate};

const MAGIC: u32 = u32::from_le_bytes(*b"FHQ2");
/// The greatest nesting depth of conditions.
const DEPTH_MAX: usize = 16;

/// The most segments of one request: some 16 million rows, which bounds the agent's work for it.
pub(super) const SEGMENTS_MAX: usize = 256;

/// An owned [`Wanted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnedWanted {
    Columns(Vec<usize>),
    Aggregates(Vec<Aggregate>),
}

impl OwnedWanted {
    pub(super) fn borrowed(&self) -> Wanted<'_> {
        match self {
            Self::Columns(columns) => Wanted::Columns(columns),
            Self::Aggregates(aggregates) => Wanted::Aggregates(aggregates),
        }
    }
}

/// A request, decoded by the agent.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) wanted: OwnedWanted,
    pub(super) predicate: Predicate,
    /// Each has chunks of the needed columns only.
    pub(super) segments: Vec<FarSegment>,
}

/// The wanted columns or aggregates as a request names them: each once, in order.
pub(super) fn distinct(wanted: Wanted<'_>) -> OwnedWanted {
    fn sorted<T: Copy + Ord>(wanted: &[T]) -> Vec<T> {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }
    match wanted {
        Wanted::Columns(columns) => OwnedWanted::Columns(sorted(columns)),
        Wanted::Aggregates(aggregates) => OwnedWanted::Aggregates(sorted(aggregates)),
    }
}

/// The needed columns of a request: those of the predicate and the wanted ones, in order.
pub(super) fn needed(wanted: Wanted<'_>, predicate: &Predicate) -> Vec<usize> {
    let mut needed = predicate.columns();
    match wanted {
        Wanted::Columns(columns) => needed.extend(columns),
        Wanted::Aggregates(aggregates) => needed.extend(aggregates.iter().filter_map(|aggregate| aggregate.column())),
    }
    needed.sort_unstable();
    needed.dedup();
    needed
}

/// The part of a request that is the same for all requests of a scan: everything but number and segments. `None`: it has numbers that do not fit in a request.
pub(super) fn put_head(wanted: Wanted<'_>, predicate: &Predicate) -> Option<Vec<u8>> {
    let mut to = Vec::new();
    to.extend(MAGIC.to_le_bytes());
    to.extend(0_u64.to_le_bytes());
    match &distinct(wanted) {
        OwnedWanted::Columns(columns) => {
            to.push(0);
            put_u16(&mut to, columns.len())?;
            columns.iter().try_for_each(|column| put_u16(&mut to, *column))?;
        }
        OwnedWanted::Aggregates(aggregates) => {
            to.push(1);
            put_u16(&mut to, aggregates.len())?;
            for aggregate in aggregates {
                to.push(match aggregate {
                    Aggregate::Rows => 0,
                    Aggregate::Count(_) => 1,
                    Aggregate::Sum(_) => 2,
                    Aggregate::Min(_) => 3,
                    Aggregate::Max(_) => 4,
                });
                put_u16(&mut to, aggregate.column().unwrap_or(0))?;
            }
        }
    }
    put_conditions(&mut to, predicate.conditions(), 0)?;
    Some(to)
}

/// A request with this head, for segments with chunks of the needed columns only.
pub(super) fn put(head: &[u8], number: u64, segments: &[FarSegment]) -> Vec<u8> {
    let mut to = head.to_vec();
    to[4..12].copy_from_slice(&number.to_le_bytes());
    to.extend((segments.len() as u16).to_le_bytes());
    for FarSegment { rows, chunks, ended } in segments {
        to.extend((*rows as u32).to_le_bytes());
        let count = count(ended);
        to.extend((count as u32).to_le_bytes());
        if count > 0 {
            put_bits(&mut to, ended, *rows, count);
        }
        for chunk in chunks {
            to.extend(chunk.at.to_bits().to_le_bytes());
            to.extend(chunk.bytes.to_le_bytes());
        }
    }
    to
}

/// Bytes of a segment in a request.
pub(super) fn segment_bytes(segment: &FarSegment, needed: usize) -> usize {
    let count = count(&segment.ended);
    segment_bytes_min(needed) + if count > 0 { bits_bytes(segment.rows, count) } else { 0 }
}

/// Without rows that have ended.
const fn segment_bytes_min(needed: usize) -> usize {
    4 + 4 + needed * 12
}

fn put_u16(to: &mut Vec<u8>, number: usize) -> Option<()> {
    to.extend(u16::try_from(number).ok()?.to_le_bytes());
    Some(())
}

fn put_conditions(to: &mut Vec<u8>, conditions: &[Condition], depth: usize) -> Option<()> {
    put_u16(to, conditions.len())?;
    conditions.iter().try_for_each(|condition| put_condition(to, condition, depth))
}

fn put_condition(to: &mut Vec<u8>, condition: &Condition, depth: usize) -> Option<()> {
    match condition {
        Condition::Compare(column, comparison, constant) => {
            to.push(0);
            put_u16(to, *column)?;
            to.push(Comparison::ALL.iter().position(|other| other == comparison)? as u8);
            put_constant(to, constant);
        }
        Condition::In(column, constants, negated) => {
            to.push(1);
            put_u16(to, *column)?;
            to.push(u8::from(*negated));
            put_u16(to, constants.len())?;
            for constant in constants {
                put_constant(to, constant);
            }
        }
        Condition::Prefix(column, prefix, negated) => {
            to.push(2);
            put_u16(to, *column)?;
            to.push(u8::from(*negated));
            put_counted(to, prefix);
        }
        Condition::Null(column, wanted) => {
            to.push(3);
            put_u16(to, *column)?;
            to.push(u8::from(*wanted));
        }
        Condition::Any(ways) => {
            if depth == DEPTH_MAX {
                return None;
            }
            to.push(4);
            put_u16(to, ways.len())?;
            ways.iter().try_for_each(|way| put_conditions(to, way, depth + 1))?;
        }
        Condition::Never => to.push(5),
    }
    Some(())
}

fn put_constant(to: &mut Vec<u8>, constant: &Constant) {
    match constant {
        Constant::Integer(integer) => {
            to.push(0);
            to.extend(integer.to_le_bytes());
        }
        Constant::Wide(wide) => {
            to.push(1);
            to.extend(wide.to_le_bytes());
        }
        Constant::Float(float) => {
            to.push(2);
            to.extend(float.to_bits().to_le_bytes());
        }
        Constant::Bytes(bytes) => {
            to.push(3);
            put_counted(to, bytes);
        }
    }
}

impl Request {
    /// The number by which the asker distinguishes the replies to its requests. It is read even from bytes that may not be a valid request, so that a refusal
    /// can name it.
    pub(super) fn number_of(bytes: &[u8]) -> u64 {
        let mut cursor = Cursor::new(bytes);
        cursor.u32("its magic number").and_then(|_| cursor.u64("its number")).unwrap_or_default()
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let from = &mut Cursor::new(bytes);
        let magic = from.u32("its magic number")?;
        if magic != MAGIC {
            return Err(WireError::Unknown { what: "its magic number", number: magic.into() });
        }
        from.u64("its number")?;
        let wanted = read_wanted(from)?;
        let mut predicate = Predicate::everything();
        // The selectivity is not estimated here.
        read_conditions(from, 0)?.into_iter().for_each(|condition| predicate.push(condition, 1.0));
        let needed = needed(wanted.borrowed(), &predicate).len();
        let count = from.count(segment_bytes_min(needed), "its segments")?;
        if count > SEGMENTS_MAX {
            return Err(WireError::Wrong("it is about too many segments"));
        }
        let mut segments = Vec::with_capacity(count);
        for _ in 0..count {
            let rows = from.u32("the rows of a segment")? as usize;
            if rows > CHUNK_ROWS_MAX {
                return Err(WireError::Wrong("a segment has more rows than a chunk"));
            }
            let count = from.u32("how many rows have ended")? as usize;
            if count > rows {
                return Err(WireError::Wrong("more rows of a segment have ended than it has"));
            }
            let ended = if count > 0 { read_bits(from, rows, count)? } else { Vec::new() };
            let chunk = |_| {
                let at = FarPtr::from_bits(from.u64("the place of a chunk")?);
                Ok(FarChunk { at, bytes: from.u32("the length of a chunk")? })
            };
            let chunks = (0..needed).map(chunk).collect::<Result<_, WireError>>()?;
            segments.push(FarSegment { rows, chunks, ended });
        }
        Cursor::new(from.rest()).end()?;
        Ok(Self { wanted, predicate, segments })
    }
}

fn read_wanted(from: &mut Cursor<'_>) -> Result<OwnedWanted, WireError> {
    match from.u8("what is wanted")? {
        0 => {
            let count = from.count(2, "the wanted columns")?;
            let column = |_| from.u16("a wanted column").map(usize::from);
            once((0..count).map(column).collect::<Result<_, _>>()?).map(OwnedWanted::Columns)
        }
        1 => {
            let count = from.count(3, "the aggregates")?;
            let aggregate = |_| {
                let (kind, column) = (from.u8("an aggregate")?, usize::from(from.u16("an aggregate's column")?));
                match kind {
                    0 => Ok(Aggregate::Rows),
                    1 => Ok(Aggregate::Count(column)),
                    2 => Ok(Aggregate::Sum(column)),
                    3 => Ok(Aggregate::Min(column)),
                    4 => Ok(Aggregate::Max(column)),
                    _ => Err(WireError::Unknown { what: "an aggregate", number: kind.into() }),
                }
            };
            once((0..count).map(aggregate).collect::<Result<_, _>>()?).map(OwnedWanted::Aggregates)
        }
        number => Err(WireError::Unknown { what: "what is wanted", number: number.into() }),
    }
}

/// Refuses wanted columns or aggregates that are named twice, or not in order.
fn once<T: Ord>(wanted: Vec<T>) -> Result<Vec<T>, WireError> {
    let is_once = wanted.is_sorted_by(|one, next| one < next);
    is_once.then_some(wanted).ok_or(WireError::Wrong("what is wanted stands twice, or in no order"))
}

fn read_conditions(from: &mut Cursor<'_>, depth: usize) -> Result<Vec<Condition>, WireError> {
    let count = from.count(1, "the conditions")?;
    (0..count).map(|_| read_condition(from, depth)).collect()
}

fn read_condition(from: &mut Cursor<'_>, depth: usize) -> Result<Condition, WireError> {
    let kind = from.u8("a condition")?;
    let mut column = || from.u16("a condition's column").map(usize::from);
    match kind {
        0 => {
            let column = column()?;
            let number = from.u8("a comparison")?;
            let unknown = WireError::Unknown { what: "a comparison", number: number.into() };
            let comparison = Comparison::ALL.get(usize::from(number)).ok_or(unknown)?;
            Ok(Condition::Compare(column, *comparison, read_constant(from)?))
        }
        1 => {
            let (column, negated) = (column()?, read_bool(from)?);
            let count = from.count(5, "the constants of a list")?;
            let constants = (0..count).map(|_| read_constant(from)).collect::<Result<_, _>>()?;
            Ok(Condition::In(column, constants, negated))
        }
        2 => {
            let (column, negated) = (column()?, read_bool(from)?);
            Ok(Condition::Prefix(column, from.counted("a prefix")?.to_vec(), negated))
        }
        3 => Ok(Condition::Null(column()?, read_bool(from)?)),
        4 if depth == DEPTH_MAX => Err(WireError::Wrong("its conditions stand too deep in each other")),
        4 => {
            let count = from.count(2, "the ways of a condition")?;
            let ways = (0..count).map(|_| read_conditions(from, depth + 1)).collect::<Result<_, _>>()?;
            Ok(Condition::Any(ways))
        }
        5 => Ok(Condition::Never),
        _ => Err(WireError::Unknown { what: "a condition", number: kind.into() }),
    }
}

fn read_bool(from: &mut Cursor<'_>) -> Result<bool, WireError> {
    match from.u8("yes or no")? {
        0 => Ok(false),
        1 => Ok(true),
        number => Err(WireError::Unknown { what: "yes or no", number: number.into() }),
    }
}

fn read_constant(from: &mut Cursor<'_>) -> Result<Constant, WireError> {
    match from.u8("a constant")? {
        0 => from.u64("an integer").map(|bits| Constant::Integer(bits as i64)),
        1 => from.i128("a wide integer").map(Constant::Wide),
        2 => from.u64("a float").map(|bits| Constant::Float(f64::from_bits(bits))),
        3 => from.counted("bytes").map(|bytes| Constant::Bytes(bytes.to_vec())),
        number => Err(WireError::Unknown { what: "a constant", number: number.into() }),
    }
}
