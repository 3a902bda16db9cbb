//! Replies of an agent, in messages of limited length.
//!
//! ```text
//!   message   magic u32 │ number of the request u64 │ sequence u32 │ kind u8 │ bytes
//!   kind      0: a record goes on    1: a record ends    2: the request is answered    3: it is refused
//!   record    segment u16 │ passing u32 │ bits, where columns are wanted │ values: count u16, each: bytes with their length
//! ```
//!
//! All messages of a record but its last one are full, so a record has few messages. A record has at most [`RECORD_BYTES_MAX`] bytes. A record is one segment
//! with passing rows. Its values are a chunk of the passing rows for each wanted column, or the aggregates.

use farhold_store::column::CHUNK_ROWS_MAX;
use farhold_store::row::Schema;

use super::super::stage::Passed;
use super::super::{Aggregate, Value};
use super::bits::read_bits;
use super::wire::{Cursor, WireError, put_counted};

const MAGIC: u32 = u32::from_le_bytes(*b"FHR2");
/// The header before a message's bytes.
pub(super) const HEAD_BYTES: usize = 17;
/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 60 << 10;
/// The most bytes of a record. They bound the memory that a request can make an agent hold, and a reply an asker. They suffice for sixteen columns, each with
/// the usual limit of a chunk's texts (`CHUNK_TEXT_BYTES_MAX`).
pub(super) const RECORD_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    More,
    RecordEnd,
    Answered,
    Refused,
}

const KINDS: [Kind; 4] = [Kind::More, Kind::RecordEnd, Kind::Answered, Kind::Refused];

/// Why an agent does not scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is not valid.
    #[error("the request is not valid")]
    Malformed,
    /// Its columns, constants or aggregates do not fit the table.
    #[error("the request does not fit the table")]
    Misfit,
    /// The agent keeps no such chunk.
    #[error("it keeps no such chunk of segment {segment}")]
    UnknownChunk {
        /// The segment, by its place in the scan.
        segment: usize,
    },
    /// A chunk is damaged, or belongs to another column.
    #[error("a chunk of segment {segment} is damaged, or belongs to another column")]
    Damaged {
        /// The segment, by its place in the scan.
        segment: usize,
    },
    /// The wanted values of a segment are too long for a reply.
    #[error(
        "what is wanted of segment {segment} is longer than a reply may be; ask for fewer columns, or read them by another path"
    )]
    Long {
        /// The segment, by its place in the scan.
        segment: usize,
    },
}

impl Refusal {
    pub(super) fn put(self) -> Vec<u8> {
        let (kind, segment) = match self {
            Self::Malformed => (0_u8, 0),
            Self::Misfit => (1, 0),
            Self::UnknownChunk { segment } => (2, segment),
            Self::Damaged { segment } => (3, segment),
            Self::Long { segment } => (4, segment),
        };
        let mut bytes = vec![kind];
        bytes.extend((segment as u16).to_le_bytes());
        bytes
    }

    /// `first`: the place in the scan of the request's first segment.
    pub(super) fn read(bytes: &[u8], first: usize) -> Result<Self, WireError> {
        let mut from = Cursor::new(bytes);
        let (kind, segment) = (from.u8("a refusal")?, first + usize::from(from.u16("a refused segment")?));
        from.end()?;
        match kind {
            0 => Ok(Self::Malformed),
            1 => Ok(Self::Misfit),
            2 => Ok(Self::UnknownChunk { segment }),
            3 => Ok(Self::Damaged { segment }),
            4 => Ok(Self::Long { segment }),
            _ => Err(WireError::Unknown { what: "a refusal", number: kind.into() }),
        }
    }
}

/// A message of a reply.
pub(super) struct Reply<'a> {
    pub(super) number: u64,
    pub(super) sequence: u32,
    pub(super) kind: Kind,
    pub(super) bytes: &'a [u8],
}

impl<'a> Reply<'a> {
    pub(super) fn put(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(HEAD_BYTES + self.bytes.len());
        to.extend(MAGIC.to_le_bytes());
        to.extend(self.number.to_le_bytes());
        to.extend(self.sequence.to_le_bytes());
        to.push(KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8);
        to.extend_from_slice(self.bytes);
        to
    }

    /// The number of the request that a message replies to; `None`: the bytes are not a message of a reply.
    pub(super) fn number_of(message: &[u8]) -> Option<u64> {
        Reply::read(message).ok().map(|reply| reply.number)
    }

    pub(super) fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut from = Cursor::new(message);
        let magic = from.u32("its magic number")?;
        if magic != MAGIC {
            return Err(WireError::Unknown { what: "its magic number", number: magic.into() });
        }
        let (number, sequence, kind) = (from.u64("its number")?, from.u32("its place")?, from.u8("its kind")?);
        let unknown = WireError::Unknown { what: "its kind", number: kind.into() };
        let kind = *KINDS.get(usize::from(kind)).ok_or(unknown)?;
        Ok(Self { number, sequence, kind, bytes: from.rest() })
    }
}

/// Appends an aggregate.
pub(super) fn put_value(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => put_counted(to, &[0]),
        Value::Integer(integer) => put_counted(to, &[&[1][..], &integer.to_le_bytes()].concat()),
        Value::Float(float) => put_counted(to, &[&[2][..], &float.to_bits().to_le_bytes()].concat()),
        Value::Bytes(bytes) => put_counted(to, &[&[3][..], bytes].concat()),
        Value::Overflow => put_counted(to, &[4]),
    }
}

/// The reverse of [`put_value`], without the length, for this number of passing rows.
pub(super) fn read_value(
    bytes: &[u8],
    aggregate: Aggregate,
    schema: &Schema,
    passing: usize,
) -> Result<Value, WireError> {
    let mut from = Cursor::new(bytes);
    let value = match from.u8("an aggregate")? {
        0 => Value::Null,
        1 => Value::Integer(from.i128("an integer")?),
        2 => Value::Float(f64::from_bits(from.u64("a float")?)),
        3 => Value::Bytes(from.rest().to_vec()),
        4 => Value::Overflow,
        number => return Err(WireError::Unknown { what: "an aggregate", number: number.into() }),
    };
    from.end()?;
    let may_be = aggregate.may_be(schema, &value, passing);
    if may_be { Ok(value) } else { Err(WireError::Wrong("an aggregate cannot have its value")) }
}

/// A segment with passing rows.
pub(super) struct Record<'a> {
    pub(super) passed: Passed,
    pub(super) values: Vec<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// `rows_of` gives the rows of a request's segment; `first`: the place in the scan of its first one; `has_bits`: columns were wanted.
    pub(super) fn read(
        bytes: &'a [u8],
        first: usize,
        rows_of: impl Fn(usize) -> Option<usize>,
        has_bits: bool,
    ) -> Result<Self, WireError> {
        let from = &mut Cursor::new(bytes);
        let number = usize::from(from.u16("a segment")?);
        let rows = rows_of(number).ok_or(WireError::Wrong("it is about a segment that was not asked for"))?;
        let passing = from.u32("how many rows pass")? as usize;
        if passing == 0 || passing > rows || rows > CHUNK_ROWS_MAX {
            return Err(WireError::Wrong("it has a wrong number of rows"));
        }
        let bits = if has_bits { read_bits(from, rows, passing)? } else { Vec::new() };
        let count = from.count(4, "its values")?;
        let values = (0..count).map(|_| from.counted("a value")).collect::<Result<_, _>>()?;
        Cursor::new(from.rest()).end()?;
        Ok(Self { passed: Passed { segment: first + number, rows, passing, bits }, values })
    }
}
