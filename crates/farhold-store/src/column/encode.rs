//! Making a chunk: the encoding that takes the fewest bytes.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::chunk::{Encoding, Header, checksum};
use super::pack::{self, block_bytes, width_of};
use super::{BLOCK_ROWS, CHUNK_ROWS_MAX};

/// Which rows are NULL.
#[derive(Clone, Debug, Default)]
pub struct Nulls {
    /// A bit a row; rows beyond the end are not NULL.
    words: Vec<u64>,
    count: u32,
}

impl Nulls {
    /// Marks a row as NULL.
    pub fn set(&mut self, row: usize) {
        if self.words.len() <= row / 64 {
            self.words.resize(row / 64 + 1, 0);
        }
        let word = &mut self.words[row / 64];
        self.count += u32::from(*word >> (row % 64) & 1 == 0);
        *word |= 1 << (row % 64);
    }

    /// Whether a row is NULL.
    #[must_use]
    pub fn is_set(&self, row: usize) -> bool {
        self.words.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// One more than the last row that is NULL.
    fn end(&self) -> usize {
        let last = self.words.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| (at + 1) * 64 - self.words[at].leading_zeros() as usize)
    }

    /// The number of rows that are NULL.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

/// Texts or byte strings, one per row; that of a NULL is empty.
#[derive(Clone, Debug, Default)]
pub struct TextValues {
    /// Where each ends.
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl TextValues {
    /// Appends the text of a row.
    ///
    /// # Panics
    /// If all texts together have 4 GiB or more.
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(u32::try_from(self.bytes.len()).expect("a chunk has less than 4 GiB of texts"));
    }

    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// No rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn get(&self, row: usize) -> &[u8] {
        let begin = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[begin as usize..self.ends[row] as usize]
    }
}

/// The chunk of integers. The value of a NULL has no meaning.
///
/// # Panics
/// If there are more than 65,536, or a row beyond them is NULL.
#[must_use]
pub fn encode_integers(values: &[i64], nulls: &Nulls) -> Vec<u8> {
    let present = || values.iter().enumerate().filter(|(row, _)| !nulls.is_set(*row)).map(|(_, value)| *value);
    let (first, last) = present().fold((i64::MAX, i64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (first, last) = if first > last { (0, 0) } else { (first, last) };
    let span = last.wrapping_sub(first) as u64;
    let head = Head { rows: values.len(), nulls };
    if let Some(entries) = few_integers(present(), width_of(span), values.len()) {
        let code = |row: usize| entries.partition_point(|entry| *entry < values[row]) as u64;
        let write = |to: &mut Vec<u8>| to.extend(entries.iter().flat_map(|entry| entry.to_le_bytes()));
        let codes = Some((entries.len() as u64 - 1, &code as &dyn Fn(usize) -> u64));
        let entries = Entries { count: entries.len(), bytes: entries.len() * 8, write: &write };
        return head.encode(Encoding::Dictionary, 0, &entries, codes);
    }
    let code = |row: usize| values[row].wrapping_sub(first) as u64;
    head.encode(Encoding::Frame, first, &Entries { count: 0, bytes: 0, write: &|_| () }, Some((span, &code)))
}

/// The most entries of a dictionary of integers: a code of two bytes less than half the bits of what it replaces.
const INTEGER_ENTRIES_MAX: usize = 4096;

/// The distinct integers in order, if a dictionary of them and its codes take less room than codes of `width` bits.
fn few_integers(values: impl Iterator<Item = i64>, width: u32, rows: usize) -> Option<Vec<i64>> {
    // A dictionary saves nothing where codes are this short.
    const WIDTH_MIN: u32 = 8;
    if width <= WIDTH_MIN {
        return None;
    }
    let mut different: HashSet<i64, RandomState> = HashSet::default();
    for value in values {
        different.insert(value);
        if different.len() > INTEGER_ENTRIES_MAX {
            return None;
        }
    }
    let bits = u64::from(width_of(different.len() as u64 - 1));
    let blocks = rows.div_ceil(BLOCK_ROWS) as u64;
    let saved = blocks * pack::ROW_BYTES as u64 * (u64::from(width).saturating_sub(bits));
    if saved <= different.len() as u64 * 8 {
        return None;
    }
    let mut entries: Vec<i64> = different.into_iter().collect();
    entries.sort_unstable();
    Some(entries)
}

/// The chunk of decimals with up to 38 digits; integers, if all of them fit. The value of a NULL has no meaning.
///
/// # Panics
/// If there are more than 65,536, or a row beyond them is NULL.
#[must_use]
pub fn encode_wide(values: &[i128], nulls: &Nulls) -> Vec<u8> {
    let short = |(row, value): (usize, &i128)| if nulls.is_set(row) { Some(0) } else { i64::try_from(*value).ok() };
    if let Some(values) = values.iter().enumerate().map(short).collect::<Option<Vec<i64>>>() {
        return encode_integers(&values, nulls);
    }
    let write = |to: &mut Vec<u8>| to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let entries = Entries { count: values.len(), bytes: values.len() * 16, write: &write };
    Head { rows: values.len(), nulls }.encode(Encoding::Wide, 0, &entries, None)
}

/// The chunk of texts or byte strings.
///
/// # Panics
/// If there are more than 65,536, a row beyond them is NULL, or the chunk would have 4 GiB.
#[must_use]
pub fn encode_texts(values: &TextValues, nulls: &Nulls) -> Vec<u8> {
    let rows = values.len();
    let head = Head { rows, nulls };
    let plain_bytes = values.bytes.len() + 4 * rows;
    let plain = || {
        let write = |to: &mut Vec<u8>| write_texts(to, || (0..rows).map(|row| values.get(row)));
        head.encode(Encoding::Text, 0, &Entries { count: rows, bytes: plain_bytes + 4, write: &write }, None)
    };
    if !may_repeat(values, nulls) {
        return plain();
    }
    let mut codes: HashMap<&[u8], u32, RandomState> = HashMap::default();
    let mut dictionary_bytes = 0;
    for row in (0..rows).filter(|row| !nulls.is_set(*row)) {
        let text = values.get(row);
        codes.entry(text).or_insert_with(|| {
            dictionary_bytes += text.len() + 4;
            0
        });
    }
    let width = width_of((codes.len() as u64).saturating_sub(1));
    if rows > 0 && dictionary_bytes + rows.div_ceil(BLOCK_ROWS) * block_bytes(width) >= plain_bytes.max(1) {
        return plain();
    }
    let mut entries: Vec<&[u8]> = codes.keys().copied().collect();
    entries.sort_unstable();
    for (code, entry) in entries.iter().enumerate() {
        codes.insert(entry, code as u32);
    }
    let code = |row: usize| u64::from(codes[values.get(row)]);
    let greatest = (entries.len() as u64).saturating_sub(1);
    let write = |to: &mut Vec<u8>| write_texts(to, || entries.iter().copied());
    let entries = Entries { count: entries.len(), bytes: dictionary_bytes + 4, write: &write };
    head.encode(Encoding::TextDictionary, 0, &entries, Some((greatest, &code)))
}

/// Whether a dictionary may save anything, by a sample: rows that follow each other, and rows from everywhere. If 65,536 different texts are as likely
/// each, one row in 32 of a sample of this size repeats another one.
fn may_repeat(values: &TextValues, nulls: &Nulls) -> bool {
    const SAMPLE_ROWS: usize = 2048;
    let rows = values.len();
    if rows < 4 * SAMPLE_ROWS {
        return true;
    }
    let near = rows / 2..rows / 2 + SAMPLE_ROWS;
    let spread = (0..rows).step_by(rows / SAMPLE_ROWS).filter(|row| !near.contains(row));
    let mut different: HashSet<&[u8], RandomState> =
        HashSet::with_capacity_and_hasher(2 * SAMPLE_ROWS, RandomState::default());
    let (mut seen, mut repeated) = (0, 0);
    for row in near.clone().chain(spread) {
        seen += 1;
        // A NULL has no text, and costs a dictionary nothing.
        repeated += usize::from(nulls.is_set(row) || !different.insert(values.get(row)));
    }
    repeated * 64 >= seen
}

/// Appends where each text begins and where the last one ends, then their bytes.
fn write_texts<'t, I: Iterator<Item = &'t [u8]>>(to: &mut Vec<u8>, texts: impl Fn() -> I) {
    let mut end = 0;
    to.extend_from_slice(&[0; 4]);
    for text in texts() {
        end += text.len() as u32;
        to.extend_from_slice(&end.to_le_bytes());
    }
    texts().for_each(|text| to.extend_from_slice(text));
}

/// The last part of a chunk.
struct Entries<'a> {
    count: usize,
    /// Bytes that `write` appends.
    bytes: usize,
    write: &'a dyn Fn(&mut Vec<u8>),
}

/// The fields that every chunk has.
struct Head<'a> {
    rows: usize,
    nulls: &'a Nulls,
}

impl Head<'_> {
    /// `codes`: the greatest code, and the codes of the rows that are not NULL.
    fn encode(
        &self,
        encoding: Encoding,
        first: i64,
        entries: &Entries<'_>,
        codes: Option<(u64, &dyn Fn(usize) -> u64)>,
    ) -> Vec<u8> {
        assert!(self.rows <= CHUNK_ROWS_MAX, "a chunk has at most {CHUNK_ROWS_MAX} rows");
        assert!(self.nulls.end() <= self.rows, "row {} is NULL, of {} rows", self.nulls.end() - 1, self.rows);
        let greatest_code = codes.map_or(0, |(greatest, _)| greatest);
        let mut header = Header {
            encoding,
            width: width_of(greatest_code),
            rows: self.rows as u32,
            nulls: self.nulls.count() as u32,
            first,
            greatest_code,
            entries: entries.count as u32,
            nulls_at: 0,
            entries_at: 0,
            codes_at: 0,
            len: 0,
        };
        let blocks = header.blocks();
        let null_bytes = if header.nulls > 0 { blocks * pack::ROW_BYTES } else { 0 };
        let code_bytes = if codes.is_some() { blocks * block_bytes(header.width) } else { 0 };
        let len = Header::BYTES + null_bytes + code_bytes + entries.bytes;
        header.len = u32::try_from(len).expect("a chunk has less than 4 GiB");
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(Header::BYTES, 0);
        if header.nulls > 0 {
            header.nulls_at = bytes.len() as u32;
            bytes.extend(self.nulls.words.iter().flat_map(|word| word.to_le_bytes()));
            bytes.resize(header.nulls_at as usize + null_bytes, 0);
        }
        if let Some((_, code)) = codes {
            header.codes_at = bytes.len() as u32;
            let block_len = block_bytes(header.width);
            bytes.resize(bytes.len() + code_bytes, 0);
            for block in 0..blocks {
                let rows = block * BLOCK_ROWS..self.rows.min((block + 1) * BLOCK_ROWS);
                let mut unpacked = [0; BLOCK_ROWS];
                for (to, row) in unpacked.iter_mut().zip(rows) {
                    *to = if self.nulls.is_set(row) { 0 } else { code(row) };
                }
                let packed = &mut bytes[header.codes_at as usize + block * block_len..][..block_len];
                pack::pack(&unpacked, header.width, packed);
            }
        }
        header.entries_at = bytes.len() as u32;
        (entries.write)(&mut bytes);
        assert_eq!(bytes.len(), len, "a chunk's entries have as many bytes as they said");
        header.write(&mut bytes);
        let sum = checksum(&bytes);
        bytes[Header::CHECKSUM_AT..Header::CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}
