//! Each encoding against the values that went in, and damaged bytes.

use std::ops::Bound;

use proptest::prelude::*;

use super::*;
use crate::row::{Column, ColumnType, Datum, Schema};

/// Typical contents of a column: few values, a narrow range, or anything.
fn integers() -> impl Strategy<Value = Vec<Option<i64>>> {
    let value = prop_oneof![
        Just(vec![i64::MIN, i64::MAX, 0, -1]),
        prop::collection::vec(any::<i64>(), 1..6),
        (any::<i64>(), 0..40_u32)
            .prop_map(|(first, bits)| (0..64).map(|n| first.wrapping_add((1_i64 << bits).wrapping_mul(n))).collect()),
    ];
    (value, prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 0..2500)).prop_map(|(values, rows)| {
        rows.into_iter().map(|(index, null)| (null > 0).then(|| *index.get(&values))).collect()
    })
}

fn chunk_of(values: &[Option<i64>]) -> Vec<u8> {
    let mut nulls = Nulls::default();
    for row in (0..values.len()).filter(|row| values[*row].is_none()) {
        nulls.set(row);
    }
    // The value in the place of a NULL must not matter.
    let values: Vec<i64> = values.iter().map(|value| value.unwrap_or(77_777)).collect();
    encode_integers(&values, &nulls)
}

fn check_integers(values: &[Option<i64>], bytes: &[u8]) {
    let chunk = Chunk::open(bytes).unwrap();
    chunk.verify().unwrap();
    assert_eq!(
        (chunk.rows(), chunk.null_count()),
        (values.len(), values.iter().filter(|value| value.is_none()).count())
    );
    for (row, value) in values.iter().enumerate() {
        assert_eq!(chunk.integer(row), *value, "row {row}, {:?}", chunk.encoding());
        assert_eq!(chunk.wide(row), value.map(i128::from));
        assert_eq!(
            chunk.nulls(row / BLOCK_ROWS).is_some_and(|nulls| nulls[row % BLOCK_ROWS / 64] >> (row % 64) & 1 == 1),
            value.is_none()
        );
    }
    let mut decoded = [0; BLOCK_ROWS];
    for (block, values) in values.chunks(BLOCK_ROWS).enumerate() {
        chunk.integers(block, &mut decoded);
        for (value, decoded) in values.iter().zip(decoded) {
            assert!(value.is_none_or(|value| value == decoded));
        }
    }
}

/// Ranges of codes hold the rows whose values are in the range, and no others.
fn check_range(values: &[Option<i64>], chunk: &Chunk<'_>, least: i64, greatest: i64) {
    let range = chunk.integer_range(least, greatest);
    for (row, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let found = range.is_some_and(|(first, last)| (first..=last).contains(&chunk.code(row)));
        assert_eq!(
            found,
            (least..=greatest).contains(value),
            "{least} to {greatest}: {value} by {:?}",
            chunk.encoding()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 96 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integers_come_back_and_ranges_hold(values in integers(), bounds in prop::collection::vec(any::<i64>(), 4)) {
        let bytes = chunk_of(&values);
        check_integers(&values, &bytes);
        let chunk = Chunk::open(&bytes).unwrap();
        let there = values.iter().flatten().take(4).flat_map(|value| [value.saturating_sub(1), *value, value.saturating_add(1)]);
        let bounds: Vec<i64> = bounds.into_iter().chain([i64::MIN, 0, i64::MAX]).chain(there).collect();
        for least in &bounds {
            for greatest in &bounds {
                check_range(&values, &chunk, *least, *greatest);
            }
        }
    }

    #[test]
    fn texts_come_back_and_ranges_hold(
        values in prop::collection::vec(prop_oneof![Just(None), "[ab]{0,3}".prop_map(Some), "\\PC{0,20}".prop_map(Some)], 0..1500),
    ) {
        let (mut texts, mut nulls) = (TextValues::default(), Nulls::default());
        for (row, value) in values.iter().enumerate() {
            texts.push(value.as_deref().unwrap_or_default().as_bytes());
            if value.is_none() {
                nulls.set(row);
            }
        }
        let bytes = encode_texts(&texts, &nulls);
        let chunk = Chunk::open(&bytes).unwrap();
        chunk.verify().unwrap();
        for (row, value) in values.iter().enumerate() {
            assert_eq!(chunk.text(row), value.as_deref().map(str::as_bytes));
        }
        if chunk.encoding() == Encoding::TextDictionary {
            for bound in ["", "a", "ab", "b", "ÿ", "zzz"] {
                let with = |bounds: (Bound<&[u8]>, Bound<&[u8]>)| chunk.text_range(bounds.0, bounds.1);
                let bytes = bound.as_bytes();
                let ranges = [
                    (with((Bound::Included(bytes), Bound::Included(bytes))), &(|value: &str| value == bound) as &dyn Fn(&str) -> bool),
                    (with((Bound::Unbounded, Bound::Excluded(bytes))), &|value: &str| value < bound),
                    (with((Bound::Excluded(bytes), Bound::Unbounded)), &|value: &str| value > bound),
                    (with((Bound::Included(bytes), Bound::Unbounded)), &|value: &str| value >= bound),
                ];
                for (range, holds) in ranges {
                    for (row, value) in values.iter().enumerate() {
                        let Some(value) = value else { continue };
                        let found = range.is_some_and(|(first, last)| (first..=last).contains(&chunk.code(row)));
                        assert_eq!(found, holds(value), "{bound:?}: {value:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn each_encoding_is_taken_where_it_is_the_shortest() {
    let no_nulls = Nulls::default();
    let encoding = |bytes: &[u8]| Chunk::open(bytes).map(|chunk| (chunk.encoding(), chunk.width())).unwrap();
    let rows = 0..CHUNK_ROWS_MAX as i64;
    assert_eq!(encoding(&encode_integers(&[5; 2000], &no_nulls)), (Encoding::Frame, 0));
    assert_eq!(
        encoding(&encode_integers(&rows.clone().map(|n| 1_000_000 + n % 1000).collect::<Vec<_>>(), &no_nulls)),
        (Encoding::Frame, 10)
    );
    assert_eq!(
        encoding(&encode_integers(&rows.clone().map(|n| n % 1000 * 1_000_003).collect::<Vec<_>>(), &no_nulls)),
        (Encoding::Dictionary, 10)
    );
    let spread: Vec<i64> = rows.clone().map(|n| n.wrapping_mul(0x1234_5678_9ABC_DEF1)).collect();
    assert_eq!(encoding(&encode_integers(&spread, &no_nulls)).0, Encoding::Frame);
    let wide: Vec<i128> = (0..100).map(|n| i128::from(i64::MAX) + n).collect();
    let bytes = encode_wide(&wide, &no_nulls);
    assert_eq!(encoding(&bytes), (Encoding::Wide, 0));
    let chunk = Chunk::open(&bytes).unwrap();
    assert!((0..100).all(|row| chunk.wide(row) == Some(wide[row])));
    let texts = |text: &dyn Fn(usize) -> String| {
        let mut texts = TextValues::default();
        for row in 0..CHUNK_ROWS_MAX {
            texts.push(text(row).as_bytes());
        }
        encode_texts(&texts, &no_nulls)
    };
    assert_eq!(encoding(&texts(&|row| format!("city {}", row % 300))), (Encoding::TextDictionary, 9));
    assert_eq!(encoding(&texts(&|row| format!("row {row}"))).0, Encoding::Text);
    // A sample finds texts that are repeated by their neighbours, and those that are repeated far away.
    assert_eq!(encoding(&texts(&|row| format!("a pair of rows {}", row / 2))).0, Encoding::TextDictionary);
    assert_eq!(encoding(&texts(&|row| format!("one row in {}", row % 9973))).0, Encoding::TextDictionary);
}

#[test]
fn no_rows_and_only_nulls() {
    for rows in [0, 1, 1024, 1025] {
        let mut nulls = Nulls::default();
        (0..rows).for_each(|row| nulls.set(row));
        let mut texts = TextValues::default();
        (0..rows).for_each(|_| texts.push(b""));
        for bytes in [
            encode_integers(&vec![3; rows], &nulls),
            encode_texts(&texts, &nulls),
            encode_wide(&vec![i128::MAX; rows], &nulls),
        ] {
            let chunk = Chunk::open(&bytes).unwrap();
            assert_eq!((chunk.rows(), chunk.null_count(), chunk.is_empty()), (rows, rows, rows == 0));
            assert!(
                (0..rows).all(|row| chunk.is_null(row) && chunk.integer(row).is_none() && chunk.text(row).is_none())
            );
            match chunk.encoding() {
                Encoding::TextDictionary => assert_eq!(chunk.text_range(Bound::Unbounded, Bound::Unbounded), None),
                _ => assert_eq!(chunk.integer_range(i64::MIN, i64::MAX), None),
            }
        }
    }
}

/// Each byte of a chunk is changed, and each shorter prefix is opened: an error, or other values, but no panic.
#[test]
fn damaged_chunks_are_noticed() {
    let mut nulls = Nulls::default();
    nulls.set(3);
    let mut texts = TextValues::default();
    for row in 0..40 {
        texts.push(["one", "two", "three"][row % 3].as_bytes());
    }
    let wide: Vec<i128> = (0..20).map(|n| i128::MAX - n).collect();
    let integers: Vec<i64> = (0..2000).map(|n| n % 9 * 1_000_000_007).collect();
    for bytes in [encode_integers(&integers, &nulls), encode_texts(&texts, &nulls), encode_wide(&wide, &nulls)] {
        for at in (0..bytes.len()).filter(|at| !cfg!(miri) || at % 37 == 0) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            let Ok(chunk) = Chunk::open(&damaged) else { continue };
            assert!(chunk.verify().is_err(), "byte {at}");
            for row in 0..chunk.rows().min(64) {
                let _ = (chunk.is_null(row), chunk.integer(row), chunk.wide(row), chunk.text(row));
            }
            assert!(Chunk::open(&bytes[..at]).is_err());
        }
    }
}

/// Three rows in each encoding.
fn one_of_each_encoding() -> [(Encoding, Vec<u8>); 5] {
    let nulls = Nulls::default();
    let texts = |values: &[&str]| {
        let mut texts = TextValues::default();
        for value in values {
            texts.push(value.as_bytes());
        }
        encode_texts(&texts, &nulls)
    };
    let long = "a text that is longer than its code";
    [
        (Encoding::Frame, encode_integers(&[1, 2, 3], &nulls)),
        (Encoding::Dictionary, encode_integers(&[i64::MIN, 0, i64::MAX], &nulls)),
        (Encoding::Wide, encode_wide(&[i128::MIN, 0, i128::MAX], &nulls)),
        (Encoding::TextDictionary, texts(&[long; 100])),
        (Encoding::Text, texts(&["a", "b", "c"])),
    ]
}

#[test]
fn a_chunk_is_opened_for_its_column_only() {
    let decimal = |precision| ColumnType::Decimal { precision, scale: 2 };
    let types = |encoding| match encoding {
        Encoding::Frame | Encoding::Dictionary => {
            vec![ColumnType::Boolean, ColumnType::Date, ColumnType::Double, decimal(18), decimal(38)]
        }
        Encoding::Wide => vec![decimal(19), decimal(38)],
        Encoding::TextDictionary | Encoding::Text => {
            vec![ColumnType::Char(9), ColumnType::Varchar(9), ColumnType::Text, ColumnType::Bytea]
        }
    };
    let all = [
        ColumnType::Boolean,
        ColumnType::SmallInt,
        ColumnType::Date,
        ColumnType::Double,
        decimal(18),
        decimal(19),
        decimal(38),
        ColumnType::Char(9),
        ColumnType::Varchar(9),
        ColumnType::Text,
        ColumnType::Bytea,
    ];
    for (encoding, bytes) in one_of_each_encoding() {
        let rows = Chunk::open(&bytes).unwrap().rows();
        assert_eq!(Chunk::open(&bytes).unwrap().encoding(), encoding);
        for data_type in types(encoding) {
            assert!(Chunk::open_for(data_type, rows, &bytes).is_ok(), "{encoding:?} for {data_type}");
            assert!(Chunk::open_for(data_type, rows + 1, &bytes).is_err(), "{encoding:?}: rows");
        }
        let integers = matches!(encoding, Encoding::Frame | Encoding::Dictionary);
        for data_type in all {
            let fits = types(encoding).contains(&data_type)
                || integers && matches!(data_type, ColumnType::SmallInt | ColumnType::Decimal { .. });
            assert_eq!(Chunk::open_for(data_type, rows, &bytes).is_ok(), fits, "{encoding:?} for {data_type}");
        }
    }
}

/// The byte of the encoding is set to each other encoding: an error, or other values, but no panic.
#[test]
fn another_encoding_is_no_panic() {
    let mut nulls = Nulls::default();
    nulls.set(0);
    let mut texts = TextValues::default();
    texts.push(b"");
    let chunks = one_of_each_encoding().map(|(_, bytes)| bytes).into_iter();
    // With no row, one row, or one NULL row, most numbers of a header are 0 for every encoding.
    let chunks = chunks.chain([
        encode_integers(&[], &Nulls::default()),
        encode_integers(&[5], &Nulls::default()),
        encode_integers(&[5], &nulls),
        encode_wide(&[i128::MAX], &Nulls::default()),
        encode_texts(&TextValues::default(), &Nulls::default()),
        encode_texts(&texts, &Nulls::default()),
        encode_texts(&texts, &nulls),
    ]);
    let mut opened = 0;
    for bytes in chunks {
        for number in (0..=u8::MAX).filter(|number| *number != bytes[4]) {
            let mut damaged = bytes.clone();
            damaged[4] = number;
            let Ok(chunk) = Chunk::open(&damaged) else { continue };
            opened += 1;
            assert!(chunk.verify().is_err());
            for row in 0..chunk.rows() {
                let _ = (chunk.is_null(row), chunk.integer(row), chunk.wide(row), chunk.text(row));
            }
            match chunk.encoding() {
                Encoding::Frame | Encoding::Dictionary => {
                    let _ = chunk.integer_range(i64::MIN, 0);
                    (0..chunk.blocks()).for_each(|block| chunk.integers(block, &mut [0; BLOCK_ROWS]));
                }
                Encoding::TextDictionary => {
                    let _ = chunk.text_range(Bound::Included(b"a"), Bound::Unbounded);
                }
                Encoding::Wide | Encoding::Text => {}
            }
        }
    }
    assert!(opened > 0, "at least one is taken for another");
}

#[test]
fn a_width_that_is_not_that_of_the_codes_is_an_error() {
    for (encoding, bytes) in one_of_each_encoding() {
        let width = Chunk::open(&bytes).unwrap().width();
        for other in (0..=64).filter(|other| u32::from(*other) != width) {
            let mut damaged = bytes.clone();
            damaged[5] = other;
            assert!(Chunk::open(&damaged).is_err(), "{encoding:?}: width {other}");
        }
        // The greatest code: one more has the same width where the width is 2.
        let mut damaged = bytes.clone();
        damaged[16] = damaged[16].wrapping_add(1);
        let greatest_fits = encoding == Encoding::Frame;
        assert_eq!(Chunk::open(&damaged).is_ok(), greatest_fits, "{encoding:?}: greatest code {}", damaged[16]);
    }
}

#[test]
fn what_is_not_there_is_not_read() {
    let chunks = one_of_each_encoding();
    for (encoding, bytes) in &chunks {
        let chunk = Chunk::open(bytes).unwrap();
        let panics = |read: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err();
        let integers = matches!(encoding, Encoding::Frame | Encoding::Dictionary);
        assert_eq!(panics(&|| chunk.integers(0, &mut [0; BLOCK_ROWS])), !integers, "{encoding:?}");
        // No integer is in this range, whatever the encoding.
        assert_eq!(panics(&|| assert_eq!(chunk.integer_range(1, 0), None)), !integers, "{encoding:?}");
    }
}

#[test]
#[should_panic(expected = "row 3 is NULL, of 3 rows")]
fn a_null_beyond_the_last_row_is_refused() {
    let mut nulls = Nulls::default();
    nulls.set(3);
    let _ = encode_integers(&[1, 2, 3], &nulls);
}

/// A chunk is full of texts before it is full of rows; one row of any length is taken.
#[test]
fn texts_fill_a_chunk() {
    let schema =
        Schema::new(vec![Column::new("id", ColumnType::Int), Column::new("t", ColumnType::Text)], vec![0]).unwrap();
    let mut builder = ChunkBuilder::new(&schema);
    let text = "x".repeat(60_000);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut rows = 0;
        while !builder.is_full() {
            let row = [Datum::Int(rows), Datum::Text(text.clone())];
            schema.encode_key(&row, &mut key).unwrap();
            schema.encode_value(&row, &mut value).unwrap();
            builder.append(&key, &value);
            rows += 1;
        }
        assert_eq!(rows as usize, CHUNK_TEXT_BYTES_MAX.div_ceil(text.len()));
        let chunks = builder.finish();
        let chunk = Chunk::open_for(ColumnType::Text, rows as usize, &chunks[1]).unwrap();
        assert_eq!(chunk.text(rows as usize - 1), Some(text.as_bytes()));
        assert!(!builder.is_full(), "an empty builder takes rows");
    }
}

/// Every encoding, NULLs among the rows, in parts of every size: the values of a part are those of the chunk.
#[test]
fn a_part_has_the_values_of_its_rows() {
    let rows = 5 * BLOCK_ROWS - 700;
    let mut nulls = Nulls::default();
    (0..rows).filter(|row| row % 7 == 3).for_each(|row| nulls.set(row));
    let text = |of: &dyn Fn(usize) -> String| {
        let mut values = TextValues::default();
        (0..rows).for_each(|row| values.push(if nulls.is_set(row) { String::new() } else { of(row) }.as_bytes()));
        encode_texts(&values, &nulls)
    };
    let integers = |of: &dyn Fn(usize) -> i64| encode_integers(&(0..rows).map(of).collect::<Vec<_>>(), &nulls);
    let wide: Vec<i128> = (0..rows).map(|row| i128::from(i64::MAX) * (row as i128 + 2)).collect();
    let (decimal, int) = (ColumnType::Decimal { precision: 38, scale: 0 }, ColumnType::BigInt);
    let chunks = [
        (Encoding::Frame, int, integers(&|row| row as i64 * 3 - 1000)),
        (Encoding::Dictionary, int, integers(&|row| (row as i64 % 5) << 40)),
        (Encoding::Wide, decimal, encode_wide(&wide, &nulls)),
        (Encoding::TextDictionary, ColumnType::Text, text(&|row| format!("few {}", row % 9))),
        (Encoding::Text, ColumnType::Text, text(&|row| format!("one of many {row}"))),
    ];
    for (encoding, data_type, bytes) in &chunks {
        let whole = Chunk::open(bytes).unwrap();
        assert_eq!(whole.encoding(), *encoding);
        let outline = Outline::open_for(*data_type, rows, bytes.len(), &bytes[..Outline::BYTES]).unwrap();
        assert_eq!(outline.blocks(), whole.blocks());
        for (start, end) in (0..=whole.blocks()).flat_map(|start| (start..=whole.blocks()).map(move |end| (start, end)))
        {
            let at = [outline.nulls(start..end), outline.codes(start..end), outline.shared()];
            let [nulls, codes, shared] = at.map(|range| &bytes[range]);
            let part = outline.part(start..end, nulls, codes, shared).unwrap();
            let first = start * BLOCK_ROWS;
            assert_eq!(part.rows(), rows.min(end * BLOCK_ROWS) - first.min(rows));
            for row in (0..part.rows()).step_by(11) {
                let row_of_whole = first + row;
                assert_eq!(part.is_null(row), whole.is_null(row_of_whole));
                assert_eq!(part.integer(row), whole.integer(row_of_whole));
                assert_eq!(part.wide(row), whole.wide(row_of_whole));
                assert_eq!(part.text(row), whole.text(row_of_whole));
            }
            for block in 0..part.blocks() {
                assert_eq!(part.nulls(block), whole.nulls(start + block));
                assert!(!encoding.has_codes() || part.codes(block) == whole.codes(start + block));
            }
            assert!(part.verify().is_err());
            if !nulls.is_empty() {
                assert!(outline.part(start..end, &nulls[1..], codes, shared).is_err());
            }
        }
        assert!(Outline::open_for(*data_type, rows + 1, bytes.len(), bytes).is_err());
        assert!(Outline::open_for(*data_type, rows, bytes.len() - 1, bytes).is_err());
        assert!(Outline::open_for(ColumnType::Bytea, rows, bytes.len(), &bytes[..10]).is_err());
    }
}
