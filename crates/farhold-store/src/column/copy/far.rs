//! A view as another node receives it: a description in column memory, which names the view's chunks.
//!
//! ```text
//!   magic u64 │ table u32 │ epoch u32 │ columns u32 │ segments u32
//!   for each segment:  rows u32 │ for each column: offset u64, bytes u32, zone map │ blocks u32
//!                      for each block with rows that are none of the view's: block u32, a bit a row
//!   delta: rows u32 │ for each row: bytes of key u32, of value u32, key, value
//!   checksum of all that u64
//!
//!   zone map: NULLs u32 │ 0 u8                                            no values
//!                       │ 1 u8 │ least i64 │ greatest i64                 integers
//!                       │ 2 u8 │ least i128 │ greatest i128               decimals of more than 18 digits
//!                       │ 3 u8 │ bytes u8, least │ bytes u8, greatest     texts; 255: any above the least
//! ```
//! All integers are little-endian. A reader validates everything: the chunks must be in the region that it has asked about, and any mismatch is [`Damaged`].

use std::ops::Range;

use farhold_fabric::FarPtr;

use super::view::{ColumnView, ViewPart};
use crate::TableId;
use crate::column::{BLOCK_ROWS, CHUNK_ROWS_MAX, Zone, ZoneValues};
use crate::row::Schema;

const MAGIC: u64 = u64::from_le_bytes(*b"FARVIEW2");
const CHECKSUM_BYTES: usize = 8;
/// The fewest bytes of a segment without columns and blocks, of each of its columns (place and zone map), and of each of its blocks.
const SEGMENT_BYTES_MIN: usize = 4 + 4;
const COLUMN_BYTES_MIN: usize = 8 + 4 + 5;
const BLOCK_BYTES: usize = 4 + size_of::<BlockBits>();
/// The length that stands for a missing text.
const NO_TEXT: u8 = u8::MAX;

/// The rows of a block, one bit per row.
pub type BlockBits = [u64; BLOCK_ROWS / 64];

/// Bytes that do not describe a view, or that describe another view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the description of a view is damaged: {what}")]
pub struct Damaged {
    /// What is wrong with them.
    pub what: &'static str,
}

/// A chunk in a region, usually in that of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FarChunk {
    /// Its first byte.
    pub at: FarPtr,
    /// Its bytes.
    pub bytes: u32,
}

/// Some rows of a view of another node, as columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarViewSegment {
    rows: usize,
    chunks: Vec<FarChunk>,
    zones: Vec<Zone>,
    ended: Vec<(u32, BlockBits)>,
}

impl FarViewSegment {
    /// Rows, including those that are not in the view.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The chunks of the requested columns, in the order of the request.
    #[must_use]
    pub fn chunks(&self) -> &[FarChunk] {
        &self.chunks
    }

    /// The zone maps of these chunks.
    #[must_use]
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Bytes of all these chunks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// Clears in `bits` the rows of a block that are not in the view.
    pub fn select(&self, block: usize, bits: &mut BlockBits) {
        if let Ok(found) = self.ended.binary_search_by_key(&block, |(block, _)| *block as usize) {
            bits.iter_mut().zip(&self.ended[found].1).for_each(|(word, stays)| *word &= stays);
        }
    }

    /// The rows that are not in the view: one bit per row, one array of words per block; empty if there are none.
    #[must_use]
    pub fn ended(&self) -> Vec<BlockBits> {
        let blocks = if self.ended.is_empty() { 0 } else { self.rows.div_ceil(BLOCK_ROWS) };
        let of_block = |block: usize| {
            let mut ended = rows_of_block(self.rows, block);
            let mut stays = ended;
            self.select(block, &mut stays);
            ended.iter_mut().zip(stays).for_each(|(ended, stays)| *ended &= !stays);
            ended
        };
        (0..blocks).map(of_block).collect()
    }
}

/// The rows of another node's copy at an epoch.
#[derive(Debug)]
pub struct FarView {
    epoch: u32,
    segments: Vec<FarViewSegment>,
    /// Key and value of each row of the delta, in `bytes`.
    delta: Vec<(Range<usize>, Range<usize>)>,
    bytes: Vec<u8>,
}

/// A reader's request.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The first byte of the region of the node's column memory.
    pub origin: FarPtr,
    /// The table.
    pub table: TableId,
    /// Its schema.
    pub schema: &'a Schema,
    /// The epoch.
    pub epoch: u32,
    /// The number of columns.
    pub columns: usize,
}

impl ColumnView {
    /// Describes it for another node, with the chunks of these columns; `None` if that takes more than `bytes_max`, because of the delta.
    #[must_use]
    pub fn describe(&self, table: TableId, columns: &[usize], bytes_max: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        put(&mut out, MAGIC.to_le_bytes());
        for number in [table.0, self.epoch, columns.len() as u32, self.segments.len() as u32] {
            put(&mut out, number.to_le_bytes());
        }
        for segment in &*self.segments {
            put(&mut out, (segment.rows() as u32).to_le_bytes());
            for column in columns {
                let place = segment.chunk_place(*column);
                put(&mut out, place.at.to_le_bytes());
                put(&mut out, place.bytes.to_le_bytes());
                put_zone(&mut out, segment.zone(*column));
            }
            let blocks = out.len();
            put(&mut out, 0_u32.to_le_bytes());
            let mut count = 0_u32;
            for block in 0..segment.rows().div_ceil(BLOCK_ROWS) {
                let all = rows_of_block(segment.rows(), block);
                let mut bits = all;
                self.select(segment, block, &mut bits);
                if bits != all {
                    count += 1;
                    put(&mut out, (block as u32).to_le_bytes());
                    for word in bits {
                        put(&mut out, word.to_le_bytes());
                    }
                }
            }
            out[blocks..blocks + 4].copy_from_slice(&count.to_le_bytes());
        }
        let rows = out.len();
        put(&mut out, 0_u32.to_le_bytes());
        let mut count = 0_u32;
        for part in self.parts() {
            let ViewPart::Delta(part) = part else { continue };
            self.visit_delta(part, &mut |key, value| {
                count += 1;
                put(&mut out, (key.len() as u32).to_le_bytes());
                put(&mut out, (value.len() as u32).to_le_bytes());
                put(&mut out, key);
                put(&mut out, value);
            });
            if out.len() > bytes_max {
                return None;
            }
        }
        out[rows..rows + 4].copy_from_slice(&count.to_le_bytes());
        let sum = checksum(&out);
        put(&mut out, sum.to_le_bytes());
        (out.len() <= bytes_max).then_some(out)
    }
}

impl FarView {
    /// Reads a description that was received from another node.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn read(bytes: Vec<u8>, asked: &Asked<'_>) -> Result<Self, Damaged> {
        let Some((described, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(Damaged { what: "it is too short" });
        };
        if checksum(described) != u64::from_le_bytes(*sum) {
            return Err(Damaged { what: "its checksum" });
        }
        Self::read_checked(described.len(), bytes, asked)
    }

    /// As [`Self::read`], for the bytes before the checksum.
    pub(super) fn read_checked(len: usize, bytes: Vec<u8>, asked: &Asked<'_>) -> Result<Self, Damaged> {
        let mut reader = Reader { bytes: &bytes[..len], at: 0 };
        let r = &mut reader;
        let head = (r.u64()?, r.u32()?, r.u32()?, r.u32()?);
        if head != (MAGIC, asked.table.0, asked.epoch, asked.columns as u32) {
            return Err(Damaged { what: "it is of something else" });
        }
        let count = r.count(SEGMENT_BYTES_MIN + asked.columns * COLUMN_BYTES_MIN)?;
        let segments = (0..count).map(|_| read_segment(r, asked)).collect::<Result<Vec<_>, _>>()?;
        let rows = r.count(8)?;
        let mut delta = Vec::with_capacity(rows);
        let mut datums = Vec::new();
        for _ in 0..rows {
            let (key_len, value_len) = (r.u32()? as usize, r.u32()? as usize);
            let (key, value) = (r.range(key_len)?, r.range(value_len)?);
            let decoded = asked.schema.decode_row(&bytes[key.clone()], &bytes[value.clone()], &mut datums);
            decoded.map_err(|_| Damaged { what: "a row is none of its table" })?;
            delta.push((key, value));
        }
        if r.at != len {
            return Err(Damaged { what: "it is too long" });
        }
        Ok(Self { epoch: asked.epoch, segments, delta, bytes })
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Its rows that are columns.
    #[must_use]
    pub fn segments(&self) -> &[FarViewSegment] {
        &self.segments
    }

    /// The number of its rows that are in no segment.
    #[must_use]
    pub fn delta_rows(&self) -> usize {
        self.delta.len()
    }

    /// The rows that are in no segment: keys and values.
    pub fn delta(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.delta_part(0..self.delta.len())
    }

    /// Some of them.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn delta_part(&self, part: Range<usize>) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.delta[part].iter().map(|(key, value)| (&self.bytes[key.clone()], &self.bytes[value.clone()]))
    }
}

fn read_segment(r: &mut Reader<'_>, asked: &Asked<'_>) -> Result<FarViewSegment, Damaged> {
    let rows = r.u32()? as usize;
    if !(1..=CHUNK_ROWS_MAX).contains(&rows) {
        return Err(Damaged { what: "a segment's rows" });
    }
    let (mut chunks, mut zones) = (Vec::with_capacity(asked.columns), Vec::with_capacity(asked.columns));
    for _ in 0..asked.columns {
        let (offset, bytes) = (r.u64()?, r.u32()?);
        let end = asked.origin.offset().checked_add(offset).and_then(|at| at.checked_add(u64::from(bytes)));
        if bytes == 0 || end.is_none_or(|end| end > FarPtr::OFFSET_MAX) {
            return Err(Damaged { what: "a chunk's place" });
        }
        chunks.push(FarChunk { at: asked.origin.add(offset), bytes });
        zones.push(read_zone(r, rows)?);
    }
    let (count, blocks) = (r.count(BLOCK_BYTES)?, rows.div_ceil(BLOCK_ROWS) as u32);
    if count > blocks as usize {
        return Err(Damaged { what: "the bits of a segment" });
    }
    let mut ended: Vec<(u32, BlockBits)> = Vec::with_capacity(count);
    for _ in 0..count {
        let block = r.u32()?;
        let is_next = ended.last().is_none_or(|(last, _)| *last < block);
        let mut bits = BlockBits::default();
        for word in &mut bits {
            *word = r.u64()?;
        }
        let is_inside = || bits.iter().zip(rows_of_block(rows, block as usize)).all(|(bits, all)| bits & !all == 0);
        if block >= blocks || !is_next || !is_inside() {
            return Err(Damaged { what: "the bits of a segment" });
        }
        ended.push((block, bits));
    }
    Ok(FarViewSegment { rows, chunks, zones, ended })
}

fn put_zone(out: &mut Vec<u8>, zone: &Zone) {
    put(out, zone.nulls.to_le_bytes());
    match &zone.values {
        ZoneValues::None => put(out, [0]),
        ZoneValues::Integers(least, greatest) => {
            put(out, [1]);
            put(out, least.to_le_bytes());
            put(out, greatest.to_le_bytes());
        }
        ZoneValues::Wide(least, greatest) => {
            put(out, [2]);
            put(out, least.to_le_bytes());
            put(out, greatest.to_le_bytes());
        }
        ZoneValues::Texts(least, greatest) => {
            const { assert!(Zone::TEXT_BYTES_MAX < NO_TEXT as usize) };
            put(out, [3, least.len() as u8]);
            put(out, least);
            put(out, [greatest.as_ref().map_or(NO_TEXT, |text| text.len() as u8)]);
            put(out, greatest.as_deref().unwrap_or_default());
        }
    }
}

/// The zone map of a chunk with this number of rows.
fn read_zone(r: &mut Reader<'_>, rows: usize) -> Result<Zone, Damaged> {
    let nulls = r.u32()?;
    let values = match r.u8()? {
        0 => ZoneValues::None,
        1 => ZoneValues::Integers(r.u64()? as i64, r.u64()? as i64),
        2 => ZoneValues::Wide(i128::from_le_bytes(r.take()?), i128::from_le_bytes(r.take()?)),
        3 => {
            let mut text = || match r.u8()? {
                NO_TEXT => Ok(None),
                len => r.range(usize::from(len)).map(|range| Some(r.bytes[range].to_vec())),
            };
            let (least, greatest) = (text()?, text()?);
            ZoneValues::Texts(least.unwrap_or_default(), greatest)
        }
        _ => return Err(Damaged { what: "a zone map" }),
    };
    let is_in_order = match &values {
        ZoneValues::None => nulls as usize == rows,
        ZoneValues::Integers(least, greatest) => least <= greatest,
        ZoneValues::Wide(least, greatest) => least <= greatest,
        ZoneValues::Texts(least, greatest) => greatest.as_ref().is_none_or(|greatest| least <= greatest),
    };
    if is_in_order && nulls as usize <= rows { Ok(Zone { nulls, values }) } else { Err(Damaged { what: "a zone map" }) }
}

/// All rows of a segment's block.
fn rows_of_block(rows: usize, block: usize) -> BlockBits {
    let here = (rows - block * BLOCK_ROWS).min(BLOCK_ROWS);
    std::array::from_fn(|word| match here.saturating_sub(word * 64) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    })
}

fn put(out: &mut Vec<u8>, bytes: impl AsRef<[u8]>) {
    out.extend_from_slice(bytes.as_ref());
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(bytes);
    digest.sum64()
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn range(&mut self, len: usize) -> Result<Range<usize>, Damaged> {
        if len > self.bytes.len() - self.at {
            return Err(Damaged { what: "it is cut off" });
        }
        let range = self.at..self.at + len;
        self.at = range.end;
        Ok(range)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let range = self.range(N)?;
        Ok(*self.bytes[range].first_chunk().expect("so many bytes"))
    }

    fn u8(&mut self) -> Result<u8, Damaged> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number of items, each of which takes at least this number of bytes.
    fn count(&mut self, bytes_min: usize) -> Result<usize, Damaged> {
        let count = self.u32()? as usize;
        let fits = count <= (self.bytes.len() - self.at) / bytes_min;
        if fits { Ok(count) } else { Err(Damaged { what: "it is cut off" }) }
    }
}
