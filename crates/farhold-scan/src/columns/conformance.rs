//! Columns and rows decide every predicate alike: on random tables of all types, with NULLs and extremes.

use std::cmp::Ordering;

use farhold_store::column::{BLOCK_ROWS, Chunk, ChunkBuilder};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use proptest::prelude::*;

use super::{ColumnFilter, NONE};
use crate::predicate::{Comparison, Condition, Constant, Predicate};
use crate::rows::RowFilter;

const COMPARISONS: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessEqual,
    Comparison::Greater,
    Comparison::GreaterEqual,
];

const TYPES: [ColumnType; 13] = [
    ColumnType::Boolean,
    ColumnType::SmallInt,
    ColumnType::Int,
    ColumnType::BigInt,
    ColumnType::Real,
    ColumnType::Double,
    ColumnType::Decimal { precision: 9, scale: 2 },
    ColumnType::Decimal { precision: 18, scale: 0 },
    ColumnType::Decimal { precision: 38, scale: 3 },
    ColumnType::Char(6),
    ColumnType::Text,
    ColumnType::Bytea,
    ColumnType::Timestamp,
];

/// A value of a column's type: one of few, so that predicates meet it, or an extreme.
fn value(data_type: ColumnType, random: u64) -> Datum {
    let few = (random >> 8) % 9;
    let extreme = random % 16;
    match data_type {
        ColumnType::Boolean => Datum::Boolean(random & 1 == 1),
        ColumnType::SmallInt => Datum::SmallInt(match extreme {
            0 => i16::MIN,
            1 => i16::MAX,
            _ => few as i16 - 4,
        }),
        ColumnType::Int => Datum::Int(match extreme {
            0 => i32::MIN,
            1 => i32::MAX,
            _ => few as i32 * 1000,
        }),
        ColumnType::BigInt => Datum::BigInt(match extreme {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => few as i64 * 1_000_000_007,
        }),
        ColumnType::Timestamp => Datum::Timestamp(match extreme {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => few as i64,
        }),
        ColumnType::Real => Datum::Real(
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 1.5, -1.5, f32::MAX, 1e-40][few as usize],
        ),
        ColumnType::Double => Datum::Double(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.5, -1.5, f64::MAX, 5e-324][few as usize],
        ),
        ColumnType::Decimal { precision, scale } => {
            let limit = 10_i128.pow(u32::from(precision)) - 1;
            let unscaled = match extreme {
                0 => limit,
                1 => -limit,
                _ => i128::from(few) - 4,
            };
            Datum::Decimal { unscaled, scale }
        }
        ColumnType::Char(_) => {
            Datum::Text(["", "a", "ab", "abc", "b", "é", "zzzzzz", "A", "aé"][few as usize].to_owned())
        }
        ColumnType::Bytea => Datum::Bytea(
            [&b""[..], b"\0", b"a", b"a\0", b"ab", b"\xff", b"\xff\xff", b"\xfe\xff", b"b"][few as usize].to_vec(),
        ),
        // Now few texts, now many.
        _ if random & 1 << 40 == 0 => Datum::Text(format!("text {few}")),
        _ => Datum::Text(format!("text {}", random >> 20 & 0xFFF)),
    }
}

fn constant(datum: &Datum) -> Constant {
    match datum {
        Datum::Boolean(value) => Constant::Integer(i64::from(*value)),
        Datum::SmallInt(value) => Constant::Integer(i64::from(*value)),
        Datum::Int(value) => Constant::Integer(i64::from(*value)),
        Datum::BigInt(value) | Datum::Timestamp(value) => Constant::Integer(*value),
        Datum::Real(value) => Constant::Float(f64::from(*value)),
        Datum::Double(value) => Constant::Float(*value),
        Datum::Decimal { unscaled, .. } => {
            i64::try_from(*unscaled).map_or(Constant::Wide(*unscaled), Constant::Integer)
        }
        Datum::Text(text) => Constant::Bytes(text.clone().into_bytes()),
        Datum::Bytea(bytes) => Constant::Bytes(bytes.clone()),
        other => panic!("{other:?}"),
    }
}

/// The expected answer for one comparison, from the values themselves.
fn compares(value: &Datum, comparison: Comparison, with: &Datum) -> bool {
    !value.is_null() && value.compare(with).is_some_and(|order: Ordering| comparison.holds(order))
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn condition(&mut self, depth: u32) -> Condition {
        let column = 1 + (self.next() % TYPES.len() as u64) as usize;
        let data_type = TYPES[column - 1];
        let is_list =
            matches!(data_type, ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt | ColumnType::Timestamp)
                || data_type.is_text();
        match self.next() % 10 {
            0 => Condition::Null(column, self.next() & 1 == 1),
            1 if depth > 0 => Condition::Any(
                (0..2).map(|_| (0..=self.next() % 2).map(|_| self.condition(depth - 1)).collect()).collect(),
            ),
            2 | 3 if is_list => {
                let constants = (0..self.next() % 4).map(|_| constant(&value(data_type, self.next()))).collect();
                Condition::In(column, constants, self.next() & 1 == 1)
            }
            4 if data_type.is_text() => {
                let Constant::Bytes(mut prefix) = constant(&value(data_type, self.next())) else { panic!("a text") };
                prefix.truncate((self.next() % 4) as usize);
                Condition::Prefix(column, prefix, self.next() & 1 == 1)
            }
            _ if data_type == ColumnType::Boolean => {
                Condition::Compare(column, Comparison::Equal, Constant::Integer((self.next() & 1) as i64))
            }
            _ => {
                let comparison = COMPARISONS[(self.next() % 6) as usize];
                Condition::Compare(column, comparison, constant(&value(data_type, self.next())))
            }
        }
    }
}

fn schema() -> Schema {
    let mut columns = vec![Column::new("id", ColumnType::Int)];
    columns.extend(TYPES.iter().enumerate().map(|(n, data_type)| Column::new(format!("c{n}"), *data_type).nullable()));
    Schema::new(columns, vec![0]).unwrap()
}

struct Table {
    schema: Schema,
    datums: Vec<Vec<Datum>>,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    chunks: Vec<Vec<u8>>,
}

fn table(random: &mut Random, rows: usize) -> Table {
    let schema = schema();
    let mut builder = ChunkBuilder::new(&schema);
    let mut table = Table { datums: Vec::new(), rows: Vec::new(), chunks: Vec::new(), schema };
    // Some columns without a NULL, some with nothing else.
    let kinds: Vec<u64> = TYPES.iter().map(|_| random.next() % 8).collect();
    for id in 0..rows {
        let mut row = vec![Datum::Int(id as i32)];
        for (data_type, kind) in TYPES.iter().zip(&kinds) {
            let null = match kind {
                0 => true,
                1 | 2 => false,
                _ => random.next().is_multiple_of(5),
            };
            row.push(if null { Datum::Null } else { value(*data_type, random.next()) });
        }
        let (mut key, mut bytes) = (Vec::new(), Vec::new());
        table.schema.encode_key(&row, &mut key).unwrap();
        table.schema.encode_value(&row, &mut bytes).unwrap();
        builder.append(&key, &bytes);
        table.rows.push((key, bytes));
        table.datums.push(row);
    }
    table.chunks = builder.finish();
    table
}

fn check(table: &Table, predicate: &Predicate) {
    let chunks: Vec<Chunk<'_>> = table.chunks.iter().map(|bytes| Chunk::open(bytes).unwrap()).collect();
    let columns = ColumnFilter::new(&table.schema, predicate, &chunks);
    let rows = RowFilter::new(&table.schema, predicate);
    let mut scratch = Vec::new();
    let mut any = false;
    for (block, some) in table.rows.chunks(BLOCK_ROWS).enumerate() {
        let mut bits = [u64::MAX; BLOCK_ROWS / 64];
        columns.select(block, &mut bits);
        for (n, (key, value)) in some.iter().enumerate() {
            let passes = bits[n / 64] >> (n % 64) & 1 == 1;
            any |= passes;
            assert_eq!(
                passes,
                rows.matches(key, value, &mut scratch),
                "{:?}: {predicate:?}",
                table.datums[block * BLOCK_ROWS + n]
            );
        }
        assert!((some.len()..BLOCK_ROWS).all(|n| bits[n / 64] >> (n % 64) & 1 == 0), "rows beyond the last one");
        if columns.is_nothing() {
            assert_eq!(bits, NONE);
        }
    }
    assert!(!(columns.is_nothing() && any));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn columns_and_rows_decide_alike(seed in any::<u64>(), rows in prop_oneof![1..70_usize, 1000..2600_usize]) {
        let mut random = Random(seed);
        let table = table(&mut random, rows);
        for _ in 0..60 {
            let mut predicate = Predicate::everything();
            for _ in 0..=random.next() % 3 {
                predicate.push(random.condition(2), 0.5);
            }
            check(&table, &predicate);
        }
    }

    /// Each comparison by itself, beside the order of the values.
    #[test]
    fn comparisons_are_those_of_the_values(seed in any::<u64>()) {
        let mut random = Random(seed);
        let table = table(&mut random, 300);
        let chunks: Vec<Chunk<'_>> = table.chunks.iter().map(|bytes| Chunk::open(bytes).unwrap()).collect();
        for (column, data_type) in TYPES.iter().enumerate() {
            for comparison in COMPARISONS {
                if *data_type == ColumnType::Boolean && comparison != Comparison::Equal {
                    continue;
                }
                let with = value(*data_type, random.next());
                let mut predicate = Predicate::everything();
                predicate.push(Condition::Compare(column + 1, comparison, constant(&with)), 0.5);
                let mut bits = NONE;
                ColumnFilter::new(&table.schema, &predicate, &chunks).select(0, &mut bits);
                for (n, row) in table.datums.iter().enumerate() {
                    let passes = bits[n / 64] >> (n % 64) & 1 == 1;
                    assert_eq!(passes, compares(&row[column + 1], comparison, &with), "{:?} {} {with:?}", row[column + 1], comparison.sign());
                }
            }
        }
    }
}

/// Every row's values come back from the chunks.
#[test]
fn chunks_hold_what_the_rows_held() {
    let table = table(&mut Random(7), 3000);
    for (column, bytes) in table.chunks.iter().enumerate().skip(1) {
        let chunk = Chunk::open(bytes).unwrap();
        for (n, row) in table.datums.iter().enumerate() {
            let datum = &row[column];
            assert_eq!(chunk.is_null(n), datum.is_null());
            match datum {
                Datum::Null => assert_eq!((chunk.integer(n), chunk.wide(n), chunk.text(n)), (None, None, None)),
                Datum::Text(text) => assert_eq!(chunk.text(n), Some(text.as_bytes())),
                Datum::Bytea(bytes) => assert_eq!(chunk.text(n), Some(bytes.as_slice())),
                Datum::Decimal { unscaled, .. } => assert_eq!(chunk.wide(n), Some(*unscaled)),
                Datum::Double(value) => {
                    let back = farhold_store::column::double_of(chunk.integer(n).unwrap());
                    assert!(back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan());
                }
                Datum::Real(value) => {
                    let back = farhold_store::column::real_of(chunk.integer(n).unwrap());
                    assert!(back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan());
                }
                other => assert_eq!(chunk.integer(n).map(Constant::Integer), Some(constant(other))),
            }
        }
    }
}
