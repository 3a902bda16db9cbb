//! Reading a chunk.

use std::ops::{Bound, Range};

use super::pack::{self, Lane, block_bytes, lane_bits, width_of};
use super::{BLOCK_ROWS, CHUNK_ROWS_MAX};
use crate::row::ColumnType;

/// Why bytes are not a chunk, or not a chunk of the given column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a column chunk is damaged: {0}")]
pub struct ChunkError(pub(super) &'static str);

/// How the values of a chunk are computed from its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Integers: the first value plus the code.
    Frame,
    /// Integers: entries of 8 bytes, in order.
    Dictionary,
    /// Decimals of more than 18 digits: 16 bytes per row, without codes.
    Wide,
    /// Texts or byte strings: entries in order.
    TextDictionary,
    /// Texts or byte strings: one entry per row, without codes.
    Text,
}

impl Encoding {
    const ALL: [Self; 5] = [Self::Frame, Self::Dictionary, Self::Wide, Self::TextDictionary, Self::Text];

    pub(super) fn number(self) -> u8 {
        Self::ALL.iter().position(|other| *other == self).unwrap_or_default() as u8
    }

    /// Whether rows have codes, which have the order of the values.
    #[must_use]
    pub const fn has_codes(self) -> bool {
        matches!(self, Self::Frame | Self::Dictionary | Self::TextDictionary)
    }

    /// Whether a column of this type may have this encoding.
    #[must_use]
    pub const fn fits(self, data_type: ColumnType) -> bool {
        match self {
            Self::Frame | Self::Dictionary => !data_type.is_text() && !matches!(data_type, ColumnType::Bytea),
            Self::Wide => matches!(data_type, ColumnType::Decimal { precision: 19.., .. }),
            Self::TextDictionary | Self::Text => data_type.is_text() || matches!(data_type, ColumnType::Bytea),
        }
    }
}

/// The beginning of a chunk. All numbers are little-endian, and all places are counted from the chunk's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) encoding: Encoding,
    pub(super) width: u32,
    pub(super) rows: u32,
    pub(super) nulls: u32,
    /// For a frame, the least value.
    pub(super) first: i64,
    pub(super) greatest_code: u64,
    pub(super) entries: u32,
    /// 0: no row is NULL.
    pub(super) nulls_at: u32,
    pub(super) entries_at: u32,
    pub(super) codes_at: u32,
    pub(super) len: u32,
}

impl Header {
    const MAGIC: u32 = u32::from_le_bytes(*b"FHC1");
    pub(super) const BYTES: usize = 64;
    /// The place of the checksum of all other bytes.
    pub(super) const CHECKSUM_AT: usize = 56;

    pub(super) fn write(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[4] = self.encoding.number();
        bytes[5] = self.width as u8;
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.greatest_code.to_le_bytes());
        let words = [self.rows, self.nulls, self.entries, self.nulls_at, self.entries_at, self.codes_at, self.len];
        for (to, word) in bytes[24..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, ChunkError> {
        let head = bytes.first_chunk::<{ Self::BYTES }>().ok_or(ChunkError("it is shorter than a header"))?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != Self::MAGIC {
            return Err(ChunkError("it does not begin like one"));
        }
        let encoding = Encoding::ALL.get(usize::from(head[4])).ok_or(ChunkError("its encoding is unknown"))?;
        Ok(Self {
            encoding: *encoding,
            width: u32::from(head[5]),
            first: long(8) as i64,
            greatest_code: long(16),
            rows: word(24),
            nulls: word(28),
            entries: word(32),
            nulls_at: word(36),
            entries_at: word(40),
            codes_at: word(44),
            len: word(48),
        })
    }

    pub(super) fn blocks(self) -> usize {
        (self.rows as usize).div_ceil(BLOCK_ROWS)
    }

    /// Checks that its parts lie within a chunk of `len` bytes.
    pub(super) fn check(self, len: usize) -> Result<(), ChunkError> {
        if self.len as usize != len {
            return Err(ChunkError("its length is another"));
        }
        if self.rows as usize > CHUNK_ROWS_MAX || self.nulls > self.rows || self.width > u64::BITS {
            return Err(ChunkError("its numbers are out of range"));
        }
        let greatest_code_fits = match self.encoding {
            Encoding::Frame => self.entries == 0 && self.first.checked_add_unsigned(self.greatest_code).is_some(),
            Encoding::Dictionary | Encoding::TextDictionary => {
                self.greatest_code == u64::from(self.entries.saturating_sub(1))
            }
            Encoding::Wide | Encoding::Text => self.greatest_code == 0,
        };
        if !greatest_code_fits || self.width != width_of(self.greatest_code) {
            return Err(ChunkError("its codes do not fit its encoding"));
        }
        let fits = |at: u32, bytes: usize| {
            (at as usize).checked_add(bytes).is_some_and(|end| at as usize >= Self::BYTES && end <= len)
        };
        let nulls_fit = match self.nulls_at {
            0 => self.nulls == 0,
            at => self.nulls > 0 && fits(at, self.blocks() * pack::ROW_BYTES),
        };
        if !nulls_fit {
            return Err(ChunkError("its NULLs lie outside"));
        }
        if self.encoding.has_codes() && !fits(self.codes_at, self.blocks() * block_bytes(self.width)) {
            return Err(ChunkError("its codes lie outside"));
        }
        let entries = self.entries as usize;
        let inside = match self.encoding {
            Encoding::Frame => true,
            Encoding::Dictionary => fits(self.entries_at, entries * 8),
            Encoding::Wide => self.entries == self.rows && fits(self.entries_at, entries * 16),
            Encoding::Text | Encoding::TextDictionary => fits(self.entries_at, (entries + 1) * 4),
        };
        if !inside || (self.encoding == Encoding::Text && self.entries != self.rows) {
            return Err(ChunkError("its entries lie outside"));
        }
        Ok(())
    }

    /// The place of the NULL bits of some blocks; empty if no row is NULL.
    pub(super) fn nulls_of(self, blocks: Range<usize>) -> Range<usize> {
        let at = self.nulls_at as usize;
        if at == 0 { 0..0 } else { at + blocks.start * pack::ROW_BYTES..at + blocks.end * pack::ROW_BYTES }
    }

    /// The place of the codes of some blocks; empty if there are no codes.
    pub(super) fn codes_of(self, blocks: Range<usize>) -> Range<usize> {
        let (at, bytes) = (self.codes_at as usize, block_bytes(self.width));
        if self.encoding.has_codes() { at + blocks.start * bytes..at + blocks.end * bytes } else { 0..0 }
    }

    /// The place of the entries, including the bytes of their texts.
    pub(super) fn entries(self) -> Range<usize> {
        let at = self.entries_at as usize;
        match self.encoding {
            Encoding::Frame => 0..0,
            Encoding::Dictionary | Encoding::Wide => at..at + self.entry_bytes(),
            Encoding::Text | Encoding::TextDictionary => at..self.len as usize,
        }
    }

    /// The number of bytes of the entries, without those of their texts, which follow.
    pub(super) fn entry_bytes(self) -> usize {
        let entries = self.entries as usize;
        match self.encoding {
            Encoding::Frame => 0,
            Encoding::Dictionary => entries * 8,
            Encoding::Wide => entries * 16,
            Encoding::Text | Encoding::TextDictionary => (entries + 1) * 4,
        }
    }
}

/// Texts or byte strings one after another.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// Where each begins among `bytes`, and where the last one ends.
    offsets: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> Texts<'a> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them; empty if its place is damaged.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> &'a [u8] {
        let [begin, end] = [index, index + 1].map(|at| u32::from_le_bytes(self.offsets[at]) as usize);
        self.bytes.get(begin..end).unwrap_or_default()
    }

    /// The number of texts before the first for which `before` is false.
    fn partition_point(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if before(self.get(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// The values of one column of some rows. [`encode_integers`](super::encode_integers) and similar functions make it.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub(super) header: Header,
    /// The whole chunk; empty for a part of a chunk.
    pub(super) bytes: &'a [u8],
    /// The bits of NULLs; empty if no row is NULL.
    pub(super) nulls: &'a [u8],
    /// The codes of all blocks; empty if there are no codes.
    pub(super) codes: &'a [u8],
    /// Entries; for texts, the place at which each begins in `texts`, and the place at which the last one ends.
    pub(super) entries: &'a [u8],
    pub(super) texts: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// The chunk in `bytes`.
    ///
    /// # Errors
    /// They are no chunk.
    pub fn open(bytes: &'a [u8]) -> Result<Self, ChunkError> {
        let header = Header::read(bytes)?;
        header.check(bytes.len())?;
        let blocks = 0..header.blocks();
        let (nulls, codes) = (&bytes[header.nulls_of(blocks.clone())], &bytes[header.codes_of(blocks)]);
        let (entries, texts) = bytes[header.entries()].split_at(header.entry_bytes());
        Ok(Self { header, bytes, nulls, codes, entries, texts })
    }

    /// The chunk in `bytes`, which must be of a column of this type and have this number of rows.
    ///
    /// # Errors
    /// The bytes are not a chunk, its encoding does not fit the type, or it has another number of rows.
    pub fn open_for(data_type: ColumnType, rows: usize, bytes: &'a [u8]) -> Result<Self, ChunkError> {
        let chunk = Self::open(bytes)?;
        if !chunk.encoding().fits(data_type) {
            return Err(ChunkError("its encoding does not fit its column's type"));
        }
        if chunk.rows() != rows {
            return Err(ChunkError("its number of rows is another"));
        }
        Ok(chunk)
    }

    /// Compares the checksum.
    ///
    /// # Errors
    /// It does not match; or this is a part of a chunk, which has no checksum of its own.
    pub fn verify(&self) -> Result<(), ChunkError> {
        if self.bytes.is_empty() {
            return Err(ChunkError("a part of it has no checksum"));
        }
        let stands = self.bytes[Header::CHECKSUM_AT..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if stands == Some(checksum(self.bytes)) { Ok(()) } else { Err(ChunkError("its checksum is wrong")) }
    }

    /// All bytes of the chunk; empty for a part of a chunk.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How its values are held.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.header.encoding
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.header.rows as usize
    }

    /// Rows that are NULL.
    #[must_use]
    pub fn null_count(&self) -> usize {
        self.header.nulls as usize
    }

    /// Blocks of rows; the last may have fewer than 1,024.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.header.blocks()
    }

    /// Bits of a code.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.header.width
    }

    /// The number of bytes of the chunk; for a part, that of the whole chunk.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.len as usize
    }

    /// It has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.rows == 0
    }

    /// The packed codes of a block. Those beyond the last row are 0.
    ///
    /// # Panics
    /// If there is no such block, or the encoding has no codes.
    #[must_use]
    pub fn codes(&self, block: usize) -> &'a [u8] {
        assert!(self.header.encoding.has_codes() && block < self.blocks(), "a block of codes");
        let bytes = block_bytes(self.header.width);
        &self.codes[block * bytes..][..bytes]
    }

    /// The rows of a block that are NULL: one bit per row, from the lowest bit of the first word on. `None`: the whole chunk has no NULL.
    ///
    /// # Panics
    /// If there is no such block.
    #[must_use]
    pub fn nulls(&self, block: usize) -> Option<[u64; BLOCK_ROWS / 64]> {
        assert!(block < self.blocks(), "a block");
        if self.nulls.is_empty() {
            return None;
        }
        let bytes = &self.nulls[block * pack::ROW_BYTES..][..pack::ROW_BYTES];
        let mut nulls = [0; BLOCK_ROWS / 64];
        for (to, word) in nulls.iter_mut().zip(bytes.as_chunks().0) {
            *to = u64::from_le_bytes(*word);
        }
        Some(nulls)
    }

    /// Whether a row is NULL.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn is_null(&self, row: usize) -> bool {
        assert!(row < self.rows(), "a row");
        !self.nulls.is_empty() && self.nulls[row / 8] >> (row % 8) & 1 == 1
    }

    /// A row's code.
    ///
    /// # Panics
    /// If there is no such row, or the encoding has no codes.
    #[must_use]
    pub fn code(&self, row: usize) -> u64 {
        pack::get(self.codes(row / BLOCK_ROWS), self.header.width, row % BLOCK_ROWS)
    }

    /// A row's integer; `None` if the row is NULL or not an integer.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn integer(&self, row: usize) -> Option<i64> {
        if self.is_null(row) {
            return None;
        }
        match self.header.encoding {
            Encoding::Frame => Some(self.header.first.wrapping_add(self.code(row) as i64)),
            Encoding::Dictionary => {
                self.integer_entries().get(self.code(row) as usize).map(|entry| i64::from_le_bytes(*entry))
            }
            _ => None,
        }
    }

    /// A row's decimal of more than 18 digits, or its integer; `None` if the row is NULL or has neither.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn wide(&self, row: usize) -> Option<i128> {
        if self.header.encoding != Encoding::Wide {
            return self.integer(row).map(i128::from);
        }
        if self.is_null(row) {
            return None;
        }
        Some(i128::from_le_bytes(self.entry_bytes::<16>()[row]))
    }

    /// A row's text or byte string; `None` if it is NULL or neither.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn text(&self, row: usize) -> Option<&'a [u8]> {
        if self.is_null(row) {
            return None;
        }
        match self.header.encoding {
            Encoding::Text => Some(self.texts().get(row)),
            Encoding::TextDictionary => {
                let (texts, code) = (self.texts(), self.code(row) as usize);
                (code < texts.len()).then(|| texts.get(code))
            }
            _ => None,
        }
    }

    /// The codes of a block of texts in a dictionary; those of NULLs and beyond the last row have no meaning.
    ///
    /// # Panics
    /// If there is no such block, or the encoding is another.
    pub fn text_codes(&self, block: usize, out: &mut [u32; BLOCK_ROWS]) {
        assert!(
            self.header.encoding == Encoding::TextDictionary,
            "{:?} has no dictionary of texts",
            self.header.encoding
        );
        // No dictionary has so many entries.
        self.decode(block, out, |code| u32::try_from(code).unwrap_or(u32::MAX));
    }

    /// The integers of a block; those of NULLs and beyond the last row have no meaning.
    ///
    /// # Panics
    /// If there is no such block, or the encoding is neither a frame nor a dictionary of integers.
    pub fn integers(&self, block: usize, out: &mut [i64; BLOCK_ROWS]) {
        self.assert_integers();
        if self.header.encoding == Encoding::Frame {
            let first = self.header.first;
            self.decode(block, out, |code| first.wrapping_add(code as i64));
        } else {
            let entries = self.integer_entries();
            self.decode(block, out, |code| entries.get(code as usize).map_or(0, |entry| i64::from_le_bytes(*entry)));
        }
    }

    /// The values of all codes of a block.
    fn decode<V>(&self, block: usize, out: &mut [V; BLOCK_ROWS], value: impl Fn(u64) -> V) {
        let (packed, width) = (self.codes(block), self.header.width);
        match lane_bits(width) {
            8 => decode_lanes::<u8, V>(packed, width, out, value),
            16 => decode_lanes::<u16, V>(packed, width, out, value),
            32 => decode_lanes::<u32, V>(packed, width, out, value),
            _ => decode_lanes::<u64, V>(packed, width, out, value),
        }
    }

    fn assert_integers(&self) {
        let encoding = self.header.encoding;
        assert!(
            matches!(encoding, Encoding::Frame | Encoding::Dictionary),
            "{encoding:?} holds no integers with codes"
        );
    }

    /// The texts: of a dictionary in order, otherwise a row's each.
    ///
    /// # Panics
    /// If the encoding has none.
    #[must_use]
    pub fn texts(&self) -> Texts<'a> {
        let encoding = self.header.encoding;
        assert!(matches!(encoding, Encoding::Text | Encoding::TextDictionary), "{encoding:?} holds no texts");
        Texts { offsets: self.entries.as_chunks().0, bytes: self.texts }
    }

    fn integer_entries(&self) -> &'a [[u8; 8]] {
        self.entry_bytes::<8>()
    }

    fn entry_bytes<const N: usize>(&self) -> &'a [[u8; N]] {
        self.entries.as_chunks().0
    }

    /// The least and the greatest integer of rows that are not NULL, of which there are some.
    pub(super) fn least_and_greatest_integer(&self) -> Option<(i64, i64)> {
        self.assert_integers();
        if self.header.encoding == Encoding::Frame {
            let first = self.header.first;
            return Some((first, first.wrapping_add(self.header.greatest_code as i64)));
        }
        let (first, last) = self.integer_entries().first().zip(self.integer_entries().last())?;
        Some((i64::from_le_bytes(*first), i64::from_le_bytes(*last)))
    }

    /// The codes of all integers from `least` to `greatest`, both included: the first and the last; `None` if there is none. NULLs have code 0, too.
    ///
    /// # Panics
    /// If the encoding is neither a frame nor a dictionary of integers.
    #[must_use]
    pub fn integer_range(&self, least: i64, greatest: i64) -> Option<(u64, u64)> {
        self.assert_integers();
        if self.header.nulls == self.header.rows || least > greatest {
            return None;
        }
        if self.header.encoding == Encoding::Dictionary {
            let entries = self.integer_entries();
            let below = entries.partition_point(|entry| i64::from_le_bytes(*entry) < least);
            let upto = entries.partition_point(|entry| i64::from_le_bytes(*entry) <= greatest);
            return codes_between(below, upto);
        }
        let first = self.header.first;
        let last = first.wrapping_add(self.header.greatest_code as i64);
        if least > last || greatest < first {
            return None;
        }
        Some((least.max(first).wrapping_sub(first) as u64, greatest.min(last).wrapping_sub(first) as u64))
    }

    /// The codes of all entries between two texts: the first and the last; `None` if there is none. NULLs have code 0, too.
    ///
    /// # Panics
    /// If its encoding is no dictionary of texts.
    #[must_use]
    pub fn text_range(&self, least: Bound<&[u8]>, greatest: Bound<&[u8]>) -> Option<(u64, u64)> {
        assert!(self.header.encoding == Encoding::TextDictionary, "a dictionary of texts");
        let texts = self.texts();
        let below = match least {
            Bound::Included(least) => texts.partition_point(|entry| entry < least),
            Bound::Excluded(least) => texts.partition_point(|entry| entry <= least),
            Bound::Unbounded => 0,
        };
        let upto = match greatest {
            Bound::Included(greatest) => texts.partition_point(|entry| entry <= greatest),
            Bound::Excluded(greatest) => texts.partition_point(|entry| entry < greatest),
            Bound::Unbounded => texts.len(),
        };
        codes_between(below, upto)
    }
}

/// The values of all codes of a packed block, whose lanes are of this type.
fn decode_lanes<T: Lane, V>(packed: &[u8], width: u32, out: &mut [V; BLOCK_ROWS], value: impl Fn(u64) -> V) {
    let mut codes = [T::default(); BLOCK_ROWS];
    T::unpack(packed, width, &mut codes);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = value(code.into());
    }
}

fn codes_between(below: usize, upto: usize) -> Option<(u64, u64)> {
    (below < upto).then(|| (below as u64, upto as u64 - 1))
}

/// Of all bytes but its own.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(&bytes[..Header::CHECKSUM_AT]);
    digest.write(&bytes[Header::CHECKSUM_AT + 8..]);
    digest.sum64()
}
