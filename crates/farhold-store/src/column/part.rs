//! A chunk in parts: for a reader that fetches some blocks of rows at a time. A part has the NULL bits and the codes of some blocks. All parts share the
//! entries. Texts without codes and wide decimals have no codes; a part of such a chunk has the places of its texts, or its decimals.

use std::ops::Range;

use super::chunk::{Chunk, ChunkError, Encoding, Header};
use super::{BLOCK_ROWS, CHUNK_ROWS_MAX};
use crate::row::ColumnType;

/// The places of a chunk's parts, from the chunk's first bytes.
#[derive(Clone, Copy, Debug)]
pub struct Outline {
    header: Header,
}

impl Outline {
    /// The number of bytes at a chunk's start that state the places.
    pub const BYTES: usize = Header::BYTES;

    /// The outline of a chunk of `len` bytes that begins with `head`. The chunk must be of a column of this type and have this number of rows.
    ///
    /// # Errors
    /// As [`Chunk::open_for`].
    pub fn open_for(data_type: ColumnType, rows: usize, len: usize, head: &[u8]) -> Result<Self, ChunkError> {
        let header = Header::read(head)?;
        header.check(len)?;
        if !header.encoding.fits(data_type) {
            return Err(ChunkError("its encoding does not fit its column's type"));
        }
        if header.rows as usize != rows {
            return Err(ChunkError("its number of rows is another"));
        }
        Ok(Self { header })
    }

    /// Blocks of rows.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.header.blocks()
    }

    /// The place in the chunk of the entries that all parts share.
    #[must_use]
    pub fn shared(&self) -> Range<usize> {
        if self.header.encoding == Encoding::Wide { 0..0 } else { self.header.entries() }
    }

    /// The place in the chunk of the NULL bits of some blocks; empty if no row is NULL.
    #[must_use]
    pub fn nulls(&self, blocks: Range<usize>) -> Range<usize> {
        self.header.nulls_of(blocks)
    }

    /// The place in the chunk of the codes of some blocks, or of their decimals; empty if everything of the blocks is shared.
    #[must_use]
    pub fn codes(&self, blocks: Range<usize>) -> Range<usize> {
        if self.header.encoding != Encoding::Wide {
            return self.header.codes_of(blocks);
        }
        let (at, rows) = (self.header.entries_at as usize, self.rows_of(blocks));
        at + rows.start * 16..at + rows.end * 16
    }

    /// The chunk of the rows of some blocks, from the bytes at [`nulls`](Self::nulls), [`codes`](Self::codes) and [`shared`](Self::shared).
    ///
    /// # Errors
    /// They are not as long as those.
    ///
    /// # Panics
    /// If there are no such blocks.
    pub fn part<'a>(
        &self,
        blocks: Range<usize>,
        nulls: &'a [u8],
        codes: &'a [u8],
        shared: &'a [u8],
    ) -> Result<Chunk<'a>, ChunkError> {
        assert!(blocks.start <= blocks.end && blocks.end <= self.blocks(), "{blocks:?} of {} blocks", self.blocks());
        let lens = [self.nulls(blocks.clone()), self.codes(blocks.clone()), self.shared()].map(|range| range.len());
        if lens != [nulls.len(), codes.len(), shared.len()] {
            return Err(ChunkError("a part of it has another length"));
        }
        let rows = self.rows_of(blocks);
        let mut header = self.header;
        header.rows = rows.len() as u32;
        header.nulls = nulls.iter().map(|byte| byte.count_ones()).sum::<u32>().min(header.rows);
        if header.encoding == Encoding::Wide {
            header.entries = header.rows;
            return Ok(Chunk { header, bytes: &[], nulls, codes: &[], entries: codes, texts: &[] });
        }
        let (mut entries, texts) = shared.split_at(header.entry_bytes());
        if header.encoding == Encoding::Text {
            header.entries = header.rows;
            entries = &entries[rows.start * 4..(rows.end + 1) * 4];
        }
        Ok(Chunk { header, bytes: &[], nulls, codes, entries, texts })
    }

    fn rows_of(&self, blocks: Range<usize>) -> Range<usize> {
        const { assert!(CHUNK_ROWS_MAX.is_multiple_of(BLOCK_ROWS)) };
        let rows = self.header.rows as usize;
        (blocks.start * BLOCK_ROWS).min(rows)..(blocks.end * BLOCK_ROWS).min(rows)
    }
}
