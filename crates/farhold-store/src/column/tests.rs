//! Each encoding against the values that went in, and damaged bytes.

use std::ops::Bound;

use proptest::prelude::*;

use super::*;

/// What a load of one column looks like: few values, a narrow range, or anything.
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
    // What a NULL's place holds must not matter.
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

/// Each byte of a chunk changed, and each shorter piece of it: an error, or other values, but no panic.
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
