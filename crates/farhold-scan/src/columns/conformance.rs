//! Columns and rows decide every predicate alike: on random tables of all types, with NULLs and extremes.

use std::cmp::Ordering;

use farhold_store::column::{BLOCK_ROWS, CHUNK_ROWS_MAX, Chunk, ChunkBuilder, Zone, double_of, real_of};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use proptest::prelude::*;

use super::{ColumnFilter, NONE, Term, excludes};
use crate::kernels::Range;
use crate::predicate::{Comparison, Condition, Constant, Predicate, compare_floats};
use crate::rows::RowFilter;

pub(crate) const TYPES: [ColumnType; 16] = [
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
    ColumnType::Varchar(9),
    ColumnType::Text,
    ColumnType::Bytea,
    ColumnType::Date,
    ColumnType::Timestamp,
    ColumnType::Timestamptz,
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
        ColumnType::Date => Datum::Date(match extreme {
            0 => i32::MIN,
            1 => i32::MAX,
            _ => few as i32 - 4,
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
        ColumnType::Timestamptz => Datum::Timestamptz(match extreme {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => few as i64 * 3_600_000_000,
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
        Datum::Int(value) | Datum::Date(value) => Constant::Integer(i64::from(*value)),
        Datum::BigInt(value) | Datum::Timestamp(value) | Datum::Timestamptz(value) => Constant::Integer(*value),
        Datum::Real(value) => Constant::Float(f64::from(*value)),
        Datum::Double(value) => Constant::Float(*value),
        Datum::Decimal { unscaled, .. } => {
            i64::try_from(*unscaled).map_or(Constant::Wide(*unscaled), Constant::Integer)
        }
        Datum::Text(text) => Constant::Bytes(text.clone().into_bytes()),
        Datum::Bytea(bytes) => Constant::Bytes(bytes.clone()),
        Datum::Null => panic!("no constant is NULL"),
    }
}

/// The expected answer for one comparison, from the values themselves.
fn compares(value: &Datum, comparison: Comparison, with: &Datum) -> bool {
    !value.is_null() && value.compare(with).is_some_and(|order: Ordering| comparison.holds(order))
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A constant for a column: mostly a value that it may have, now and then one beside it that it cannot have.
    fn constant(&mut self, data_type: ColumnType) -> Constant {
        let random = self.next();
        match (constant(&value(data_type, self.next())), random % 8) {
            (Constant::Integer(integer), 0) => Constant::Wide(i128::from(integer)),
            (Constant::Integer(_), 1) => {
                let beyond = [i128::MIN, i128::from(i64::MIN) - 1, i128::from(i64::MAX) + 1, i128::MAX];
                Constant::Wide(beyond[(random >> 8) as usize % beyond.len()])
            }
            // Between two reals, mostly.
            (Constant::Float(float), 0) => Constant::Float(float.next_up()),
            (Constant::Float(float), 1) => Constant::Float(float.next_down()),
            (constant, _) => constant,
        }
    }

    fn condition(&mut self, depth: u32) -> Condition {
        self.condition_on(&TYPES, depth)
    }

    /// A condition on one of these columns, which stand behind the key.
    pub(crate) fn condition_on(&mut self, types: &[ColumnType], depth: u32) -> Condition {
        let column = 1 + (self.next() % types.len() as u64) as usize;
        let data_type = types[column - 1];
        match self.next() % 10 {
            0 => Condition::Null(column, self.next() & 1 == 1),
            1 if depth > 0 => Condition::Any(
                (0..2).map(|_| (0..=self.next() % 2).map(|_| self.condition_on(types, depth - 1)).collect()).collect(),
            ),
            2 | 3 => {
                let constants = (0..self.next() % 4).map(|_| self.constant(data_type)).collect();
                Condition::In(column, constants, self.next() & 1 == 1)
            }
            4 if data_type.is_text() => {
                let Constant::Bytes(mut prefix) = constant(&value(data_type, self.next())) else { panic!("a text") };
                prefix.truncate((self.next() % 4) as usize);
                Condition::Prefix(column, prefix, self.next() & 1 == 1)
            }
            _ => {
                let comparison = Comparison::ALL[(self.next() % 6) as usize];
                Condition::Compare(column, comparison, self.constant(data_type))
            }
        }
    }
}

/// Which columns are the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Id,
    /// All, the one of different integers last: texts and wide decimals are read from behind others.
    All,
}

fn schema(key: Key, types: &[ColumnType]) -> Schema {
    let mut columns = vec![Column::new("id", ColumnType::Int)];
    columns.extend(types.iter().enumerate().map(|(n, data_type)| Column::new(format!("c{n}"), *data_type).nullable()));
    let key = match key {
        Key::Id => vec![0],
        Key::All => (1..=types.len()).chain([0]).collect(),
    };
    Schema::new(columns, key).unwrap()
}

pub(crate) struct Table {
    pub(crate) schema: Schema,
    pub(crate) datums: Vec<Vec<Datum>>,
    /// The bytes of keys and values.
    pub(crate) rows: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) chunks: Vec<Vec<u8>>,
}

fn table(random: &mut Random, key: Key, rows: usize) -> Table {
    table_of(random, key, &TYPES, rows)
}

/// A table with an id and these columns behind it.
pub(crate) fn table_of(random: &mut Random, key: Key, types: &[ColumnType], rows: usize) -> Table {
    let schema = schema(key, types);
    let mut builder = ChunkBuilder::new(&schema);
    let mut table = Table { datums: Vec::new(), rows: Vec::new(), chunks: Vec::new(), schema };
    // Some columns without a NULL, some with nothing else.
    let kinds: Vec<u64> = types.iter().map(|_| random.next() % 8).collect();
    for id in 0..rows {
        let mut row = vec![Datum::Int(id as i32)];
        for (data_type, kind) in types.iter().zip(&kinds) {
            let null = match kind {
                _ if key == Key::All => false,
                0 => true,
                1 | 2 => false,
                _ => random.next().is_multiple_of(5),
            };
            row.push(match (data_type, kind) {
                _ if null => Datum::Null,
                // Hardly one twice, so that a dictionary does not pay.
                (ColumnType::Varchar(_) | ColumnType::Text, 2 | 3) => {
                    Datum::Text(format!("{:09}", random.next() % 1_000_000_000))
                }
                _ => value(*data_type, random.next()),
            });
        }
        table.push(row, &mut builder);
    }
    table.chunks = builder.finish();
    table
}

impl Table {
    /// Appends a row, and its bytes to the chunks that are made.
    fn push(&mut self, row: Vec<Datum>, builder: &mut ChunkBuilder) {
        let (mut key, mut bytes) = (Vec::new(), Vec::new());
        self.schema.encode_key(&row, &mut key).unwrap();
        self.schema.encode_value(&row, &mut bytes).unwrap();
        builder.append(&key, &bytes);
        self.rows.push((key, bytes));
        self.datums.push(row);
    }
}

pub(super) fn open(table: &Table) -> Vec<Chunk<'_>> {
    let columns = table.schema.columns().iter().zip(&table.chunks);
    columns.map(|(column, bytes)| Chunk::open_for(column.data_type, table.rows.len(), bytes).unwrap()).collect()
}

pub(super) fn check(table: &Table, predicate: &Predicate) {
    let chunks = open(table);
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
    let zones: Vec<Zone> = chunks.iter().map(Zone::of).collect();
    let is_nothing = excludes(&table.schema, predicate, |column| zones.get(column));
    assert!(!(is_nothing && any), "{predicate:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn columns_and_rows_decide_alike(
        seed in any::<u64>(),
        key in prop_oneof![Just(Key::Id), Just(Key::All)],
        rows in prop_oneof![1..70_usize, 1000..2600_usize],
    ) {
        let mut random = Random(seed);
        let table = table(&mut random, key, rows);
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
    fn comparisons_are_those_of_the_values(seed in any::<u64>(), key in prop_oneof![Just(Key::Id), Just(Key::All)]) {
        let mut random = Random(seed);
        let table = table(&mut random, key, 300);
        let chunks = open(&table);
        for (column, data_type) in TYPES.iter().enumerate() {
            for comparison in Comparison::ALL {
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
    for key in [Key::Id, Key::All] {
        let table = table(&mut Random(7), key, 3000);
        // A key has one zero and one NaN.
        let same = |back: f64, value: f64| {
            let is_key = key == Key::All && compare_floats(back, value).is_eq();
            is_key || back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan()
        };
        for (column, chunk) in open(&table).iter().enumerate() {
            for (n, row) in table.datums.iter().enumerate() {
                let datum = &row[column];
                assert_eq!(chunk.is_null(n), datum.is_null());
                match datum {
                    Datum::Null => assert_eq!((chunk.integer(n), chunk.wide(n), chunk.text(n)), (None, None, None)),
                    Datum::Text(text) => assert_eq!(chunk.text(n), Some(text.as_bytes())),
                    Datum::Bytea(bytes) => assert_eq!(chunk.text(n), Some(bytes.as_slice())),
                    Datum::Decimal { unscaled, .. } => assert_eq!(chunk.wide(n), Some(*unscaled)),
                    Datum::Double(value) => assert!(same(double_of(chunk.integer(n).unwrap()), *value)),
                    Datum::Real(value) => {
                        assert!(same(real_of(chunk.integer(n).unwrap()).into(), f64::from(*value)));
                    }
                    other => assert_eq!(chunk.integer(n).map(Constant::Integer), Some(constant(other))),
                }
            }
        }
    }
}

/// No rows, which every condition may be compiled for, and as many as a chunk has.
#[test]
fn no_rows_and_as_many_as_a_chunk_has() {
    let mut random = Random(11);
    for rows in [0, CHUNK_ROWS_MAX] {
        let table = table(&mut random, Key::Id, rows);
        assert_eq!(table.rows.len(), rows);
        for _ in 0..if rows == 0 { 400 } else { 8 } {
            let mut predicate = Predicate::everything();
            predicate.push(random.condition(2), 0.5);
            check(&table, &predicate);
        }
    }
}

/// A table of one column beside its key, with these values.
pub(super) fn one_column(data_type: ColumnType, values: &[Datum]) -> Table {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("c", data_type).nullable()];
    let schema = Schema::new(columns, vec![0]).unwrap();
    let mut builder = ChunkBuilder::new(&schema);
    let mut table = Table { datums: Vec::new(), rows: Vec::new(), chunks: Vec::new(), schema };
    for (id, value) in values.iter().enumerate() {
        let row = vec![Datum::Int(id as i32), value.clone()];
        table.push(row, &mut builder);
    }
    table.chunks = builder.finish();
    table
}

pub(super) fn on_one_column(condition: Condition) -> Predicate {
    let mut predicate = Predicate::everything();
    predicate.push(condition, 0.5);
    predicate
}

/// The rows that pass, of at most 64.
fn selected(table: &Table, predicate: &Predicate) -> u64 {
    check(table, predicate);
    let chunks = open(table);
    let mut bits = NONE;
    ColumnFilter::new(&table.schema, predicate, &chunks).select(0, &mut bits);
    bits[0]
}

/// A double between two neighbouring reals is equal to neither, and above one of them.
#[test]
fn reals_beside_doubles_between_them() {
    let reals =
        [f32::NEG_INFINITY, f32::MIN, -0.1, -1e-45, -0.0, 0.0, 1e-45, 0.1, 1.5, f32::MAX, f32::INFINITY, f32::NAN];
    let table = one_column(ColumnType::Real, &reals.map(Datum::Real));
    let least = f64::from(f32::from_bits(1));
    let between = [-1e39, -0.1, least / -2.0, 1e-50, least / 2.0, 0.1, 1.5_f64.next_up(), 1.5_f64.next_down(), 1e39];
    for double in between {
        for comparison in Comparison::ALL {
            let predicate = on_one_column(Condition::Compare(1, comparison, Constant::Float(double)));
            let passing = selected(&table, &predicate);
            for (n, real) in reals.iter().enumerate() {
                assert!(f64::from(*real).partial_cmp(&double).is_none_or(|order: Ordering| order.is_ne()), "between");
                let expected = comparison.holds(compare_floats(f64::from(*real), double));
                assert_eq!(passing >> n & 1 == 1, expected, "{real} {} {double}", comparison.sign());
            }
        }
    }
}

/// What lies beyond 64 bits is beside every value of a column of integers; what lies within is as any other constant.
#[test]
fn wide_constants_beside_integers() {
    let ints = [i32::MIN, -1, 0, 7, i32::MAX];
    let bigints = [i64::MIN, -1, 0, 7, i64::MAX];
    let tables = [
        one_column(ColumnType::Int, &ints.map(Datum::Int)),
        one_column(ColumnType::BigInt, &bigints.map(Datum::BigInt)),
    ];
    let values = [ints.map(i128::from), bigints.map(i128::from)];
    let [low, high] = [i64::MIN, i64::MAX].map(i128::from);
    for (table, values) in tables.iter().zip(values) {
        for wide in [i128::MIN, low - 1, low, -1, 0, 7, 8, high, high + 1, i128::MAX] {
            let passing = |holds: &dyn Fn(i128) -> bool| {
                values.iter().enumerate().fold(0, |bits, (n, value)| bits | u64::from(holds(*value)) << n)
            };
            for comparison in Comparison::ALL {
                let predicate = on_one_column(Condition::Compare(1, comparison, Constant::Wide(wide)));
                let expected = passing(&|value| comparison.holds(value.cmp(&wide)));
                assert_eq!(selected(table, &predicate), expected, "{} {wide}", comparison.sign());
            }
            for negated in [false, true] {
                let list = vec![Constant::Wide(wide), Constant::Integer(7)];
                let expected = passing(&|value| (value == wide || value == 7) != negated);
                assert_eq!(selected(table, &on_one_column(Condition::In(1, list, negated))), expected, "{wide}");
            }
        }
    }
}

/// A kernel runs once for neighbours in a list, and not at all for no list.
#[test]
fn the_codes_of_a_list_are_merged() {
    let table = one_column(ColumnType::Int, &[0, 1, 2, 3, 9].map(Datum::Int));
    let chunks = open(&table);
    for negated in [false, true] {
        let list = |integers: &[i64]| {
            let constants = integers.iter().map(|integer| Constant::Integer(*integer)).collect();
            on_one_column(Condition::In(1, constants, negated))
        };
        let filter = ColumnFilter::new(&table.schema, &list(&[3, 1, 2, 9, 2, 77]), &chunks);
        let [Term::Codes(1, ranges, is_negated)] = filter.terms.as_slice() else { panic!("{:?}", filter.terms) };
        assert_eq!(
            (ranges.as_slice(), *is_negated),
            (&[Range::new(1, 3).unwrap(), Range::new(9, 9).unwrap()][..], negated)
        );
    }
}

/// Nothing is in an empty list; what is not NULL is not in it. So in every encoding, of rows as of columns.
#[test]
fn empty_lists() {
    let text = |n: usize| Datum::Text(format!("text {n}"));
    let wide = |n: usize| Datum::Decimal { unscaled: i128::MAX / 10 - n as i128, scale: 0 };
    let tables = [
        (ColumnType::Int, [Datum::Int(5), Datum::Null, Datum::Int(6)]),
        (ColumnType::Double, [Datum::Double(5.0), Datum::Null, Datum::Double(f64::NAN)]),
        (ColumnType::Boolean, [Datum::Boolean(true), Datum::Null, Datum::Boolean(false)]),
        (ColumnType::Decimal { precision: 38, scale: 0 }, [wide(1), Datum::Null, wide(2)]),
        (ColumnType::Text, [text(1), Datum::Null, text(2)]),
    ];
    for (data_type, values) in tables {
        let table = one_column(data_type, &values);
        let chunks = open(&table);
        let [in_none, not_in_none] = [false, true].map(|negated| on_one_column(Condition::In(1, Vec::new(), negated)));
        assert!(ColumnFilter::new(&table.schema, &in_none, &chunks).is_nothing(), "{data_type}");
        assert_eq!(selected(&table, &in_none), 0, "{data_type}");
        assert!(!ColumnFilter::new(&table.schema, &not_in_none, &chunks).is_nothing(), "{data_type}");
        assert_eq!(selected(&table, &not_in_none), 0b101, "{data_type}");
    }
}

fn panics<T>(call: impl FnOnce() -> T) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
}

#[test]
fn chunks_that_are_not_the_tables_are_refused() {
    let ints = one_column(ColumnType::Int, &[1, 2, 3].map(Datum::Int));
    let texts = one_column(ColumnType::Text, &["a", "b", "c"].map(|text| Datum::Text(text.to_owned())));
    let fewer = one_column(ColumnType::Int, &[1, 2].map(Datum::Int));
    let (own, others, fewer) = (open(&ints), open(&texts), open(&fewer));
    let new = |chunks: &[Chunk<'_>]| {
        panics(|| ColumnFilter::new(&ints.schema, &Predicate::everything(), chunks).is_nothing())
    };
    assert!(!new(&own));
    assert!(new(&others), "texts for integers");
    assert!(new(&own[..1]), "too few");
    assert!(new(&[own[0], fewer[1]]), "another number of rows");
}

#[test]
fn constants_of_another_kind_are_refused_by_rows_and_columns() {
    let table = one_column(ColumnType::Int, &[1, 2, 3].map(Datum::Int));
    let chunks = open(&table);
    for condition in [
        Condition::In(1, vec![Constant::Bytes(vec![1])], false),
        Condition::Compare(1, Comparison::Less, Constant::Float(1.0)),
        Condition::Prefix(1, vec![1], false),
        Condition::Null(2, true),
    ] {
        let predicate = on_one_column(condition);
        assert!(panics(|| RowFilter::new(&table.schema, &predicate)), "{predicate:?}");
        assert!(panics(|| ColumnFilter::new(&table.schema, &predicate, &chunks)), "{predicate:?}");
    }
}

/// Chunks of another encoding than they had: what opens may be scanned.
#[test]
fn damaged_encodings_are_no_panic() {
    let mut random = Random(3);
    let mut opened = 0;
    for rows in [1, 2, 40] {
        let table = table(&mut random, Key::Id, rows);
        let types = table.schema.columns().iter().map(|column| column.data_type);
        for (column, data_type) in types.enumerate() {
            for encoding in (0..5).filter(|encoding| *encoding != table.chunks[column][4]) {
                let mut damaged = table.chunks[column].clone();
                damaged[4] = encoding;
                let Ok(chunk) = Chunk::open_for(data_type, rows, &damaged) else { continue };
                opened += 1;
                let mut chunks = open(&table);
                chunks[column] = chunk;
                for _ in 0..60 {
                    let predicate = on_one_column(random.condition(1));
                    ColumnFilter::new(&table.schema, &predicate, &chunks).select(0, &mut [0; BLOCK_ROWS / 64]);
                }
            }
        }
    }
    assert!(opened > 0, "at least one is taken for another");
}
