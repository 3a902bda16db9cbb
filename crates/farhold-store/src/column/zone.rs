//! The zone map of a chunk: the range of its values, and the number of NULLs. It may show, without the chunk, that no row passes a condition.

use super::chunk::{Chunk, Encoding};

/// A summary of the values of a chunk. It may be imprecise, but it never excludes a value of the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The number of rows that are NULL.
    pub nulls: u32,
    /// The range of the other rows' values.
    pub values: ZoneValues,
}

/// The least and the greatest of some values, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneValues {
    /// There are none: each row is NULL.
    None,
    /// Integers, and types that are stored as integers.
    Integers(i64, i64),
    /// Decimals of more than 18 digits.
    Wide(i128, i128),
    /// Texts or byte strings, none below the first and none above the second; `None`: there is no upper bound. Long texts are [cut](Zone::TEXT_BYTES_MAX).
    Texts(Vec<u8>, Option<Vec<u8>>),
}

impl Zone {
    /// Bytes that are kept of a text. 32 bytes distinguish most texts, and are few compared with a chunk.
    pub const TEXT_BYTES_MAX: usize = 32;

    /// The zone map of a whole chunk. For a chunk without codes it reads all entries.
    #[must_use]
    pub fn of(chunk: &Chunk<'_>) -> Self {
        let present = || (0..chunk.rows()).filter(|row| !chunk.is_null(*row));
        let values = match chunk.encoding() {
            _ if chunk.null_count() == chunk.rows() => None,
            Encoding::Frame | Encoding::Dictionary => {
                chunk.least_and_greatest_integer().map(|(least, greatest)| ZoneValues::Integers(least, greatest))
            }
            Encoding::Wide => {
                least_and_greatest(present().filter_map(|row| chunk.wide(row))).map(|(a, b)| ZoneValues::Wide(a, b))
            }
            Encoding::TextDictionary => {
                let texts = chunk.texts();
                texts.len().checked_sub(1).map(|last| texts_between(texts.get(0), texts.get(last)))
            }
            Encoding::Text => {
                least_and_greatest(present().filter_map(|row| chunk.text(row))).map(|(a, b)| texts_between(a, b))
            }
        };
        Self { nulls: chunk.null_count() as u32, values: values.unwrap_or(ZoneValues::None) }
    }
}

fn least_and_greatest<V: Ord + Copy>(mut values: impl Iterator<Item = V>) -> Option<(V, V)> {
    let first = values.next()?;
    Some(values.fold((first, first), |(least, greatest), value| (least.min(value), greatest.max(value))))
}

fn texts_between(least: &[u8], greatest: &[u8]) -> ZoneValues {
    let cut = |text: &[u8]| text[..text.len().min(Zone::TEXT_BYTES_MAX)].to_vec();
    let is_whole = greatest.len() <= Zone::TEXT_BYTES_MAX;
    let greatest = if is_whole { Some(greatest.to_vec()) } else { after_prefix(&cut(greatest)) };
    ZoneValues::Texts(cut(least), greatest)
}

/// The least byte string that is above all byte strings that begin with `prefix`; `None` if there is none.
#[must_use]
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut after = prefix.to_vec();
    while let Some(last) = after.pop() {
        if last < u8::MAX {
            after.push(last + 1);
            return Some(after);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{Nulls, TextValues, encode_integers, encode_texts, encode_wide};

    /// The zone map of the chunk that `encode` makes, of every other row NULL if `has_nulls`.
    fn zone(rows: usize, has_nulls: bool, encode: impl Fn(&Nulls) -> Vec<u8>) -> (Encoding, Zone) {
        let mut nulls = Nulls::default();
        if has_nulls {
            (0..rows).step_by(2).for_each(|row| nulls.set(row));
        }
        let bytes = encode(&nulls);
        let chunk = Chunk::open(&bytes).expect("a chunk");
        (chunk.encoding(), Zone::of(&chunk))
    }

    fn texts(texts: &[&[u8]]) -> TextValues {
        let mut values = TextValues::default();
        for text in texts {
            values.push(text);
        }
        values
    }

    /// The first row is NULL where some are, and would be the least or the greatest.
    #[test]
    fn of_every_encoding() {
        let far_apart: Vec<i64> = (0..2000).map(|n| if n % 4 == 1 { i64::MIN } else { 7 - n % 2 }).collect();
        for (values, nulls, encoding, expected) in [
            (vec![-9, 5, 8, 3], false, Encoding::Frame, (-9, 8)),
            (vec![-9, 5, 8, 3], true, Encoding::Frame, (3, 5)),
            (far_apart.clone(), false, Encoding::Dictionary, (i64::MIN, 7)),
            (far_apart, true, Encoding::Dictionary, (i64::MIN, 6)),
        ] {
            let found = zone(values.len(), nulls, |nulls| encode_integers(&values, nulls));
            let count = if nulls { values.len() / 2 } else { 0 } as u32;
            assert_eq!(found, (encoding, Zone { nulls: count, values: ZoneValues::Integers(expected.0, expected.1) }));
        }
        let wide = [i128::MIN, 5, 6, i128::MAX - 1];
        for (nulls, expected) in [(false, (i128::MIN, i128::MAX - 1)), (true, (5, i128::MAX - 1))] {
            let (encoding, found) = zone(4, nulls, |nulls| encode_wide(&wide, nulls));
            assert_eq!((encoding, found.values), (Encoding::Wide, ZoneValues::Wide(expected.0, expected.1)));
        }
        let many = texts(&[b"a", b"d", b"c", b"b"]);
        let few = texts(&[&b"long text"[..]; 900]);
        let between = |least: &[u8], greatest: &[u8]| ZoneValues::Texts(least.to_vec(), Some(greatest.to_vec()));
        for (values, nulls, encoding, expected) in [
            (&many, false, Encoding::Text, between(b"a", b"d")),
            (&many, true, Encoding::Text, between(b"b", b"d")),
            (&few, true, Encoding::TextDictionary, between(b"long text", b"long text")),
        ] {
            let (found, zone) = zone(values.len(), nulls, |nulls| encode_texts(values, nulls));
            assert_eq!((found, zone.values), (encoding, expected));
        }
    }

    #[test]
    fn of_nothing_but_nulls() {
        let mut nulls = Nulls::default();
        (0..3).for_each(|row| nulls.set(row));
        let bytes = [
            encode_integers(&[0; 3], &nulls),
            encode_wide(&[0; 3], &nulls),
            encode_texts(&texts(&[&b""[..]; 3]), &nulls),
        ];
        for bytes in &bytes {
            let chunk = Chunk::open(bytes).expect("a chunk");
            assert_eq!(Zone::of(&chunk), Zone { nulls: 3, values: ZoneValues::None });
        }
    }

    /// Long texts are cut so that none of them is outside.
    #[test]
    fn of_long_texts() {
        let long = |byte: u8, len: usize| vec![byte; len];
        let cut = |byte| long(byte, Zone::TEXT_BYTES_MAX);
        let mut above = cut(b'z');
        *above.last_mut().expect("some bytes") += 1;
        for (greatest, expected) in
            [(long(b'z', 90), Some(above)), (long(b'z', Zone::TEXT_BYTES_MAX), Some(cut(b'z'))), (long(0xff, 33), None)]
        {
            let values = texts(&[&long(b'b', 40), &greatest]);
            let (_, zone) = zone(2, false, |nulls| encode_texts(&values, nulls));
            assert_eq!(zone.values, ZoneValues::Texts(cut(b'b'), expected));
        }
    }
}
