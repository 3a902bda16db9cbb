//! Order, round trips, limits, and garbage. The oracle of the key order is [`Datum::compare`].

use super::*;
use proptest::prelude::*;
use std::cmp::Ordering;

const NULLABLE_EVERY: usize = 2;

fn any_type() -> impl Strategy<Value = ColumnType> {
    prop_oneof![
        Just(ColumnType::Boolean),
        Just(ColumnType::SmallInt),
        Just(ColumnType::Int),
        Just(ColumnType::BigInt),
        Just(ColumnType::Real),
        Just(ColumnType::Double),
        (1_u8..=38)
            .prop_flat_map(|p| (Just(p), 0..=p))
            .prop_map(|(precision, scale)| ColumnType::Decimal { precision, scale }),
        (1_u32..8).prop_map(ColumnType::Char),
        (1_u32..8).prop_map(ColumnType::Varchar),
        Just(ColumnType::Text),
        Just(ColumnType::Bytea),
        Just(ColumnType::Date),
        Just(ColumnType::Timestamp),
        Just(ColumnType::Timestamptz),
    ]
}

/// A datum as it comes out of a row of a column of this type: no NULL, canonical.
fn datum_of(data_type: ColumnType) -> BoxedStrategy<Datum> {
    let text = |max: u32| {
        proptest::collection::vec(
            proptest::sample::select(vec!['\u{1}', ' ', 'a', 'b', 'é', '\u{10ffff}']),
            0..max as usize,
        )
    };
    match data_type {
        ColumnType::Boolean => any::<bool>().prop_map(Datum::Boolean).boxed(),
        ColumnType::SmallInt => any::<i16>().prop_map(Datum::SmallInt).boxed(),
        ColumnType::Int => any::<i32>().prop_map(Datum::Int).boxed(),
        ColumnType::BigInt => any::<i64>().prop_map(Datum::BigInt).boxed(),
        ColumnType::Real => prop_oneof![any::<f32>(), Just(0.0), Just(f32::INFINITY), Just(f32::NEG_INFINITY)]
            .prop_map(Datum::Real)
            .boxed(),
        ColumnType::Double => {
            prop_oneof![any::<f64>(), Just(0.0), Just(f64::MIN_POSITIVE / 2.0)].prop_map(Datum::Double).boxed()
        }
        ColumnType::Decimal { precision, scale } => {
            let limit = 10_i128.pow(u32::from(precision)) - 1;
            prop_oneof![-limit..=limit, -9_i128.min(limit)..=9_i128.min(limit), Just(limit), Just(-limit)]
                .prop_map(move |unscaled| Datum::Decimal { unscaled, scale })
                .boxed()
        }
        ColumnType::Char(n) => text(n + 1)
            .prop_map(|v| Datum::Text(v.into_iter().collect::<String>().trim_end_matches(' ').to_owned()))
            .boxed(),
        ColumnType::Varchar(n) => text(n + 1).prop_map(|v| Datum::Text(v.into_iter().collect())).boxed(),
        ColumnType::Text => text(12).prop_map(|v| Datum::Text(v.into_iter().collect())).boxed(),
        ColumnType::Bytea => proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()], 0..8)
            .prop_map(Datum::Bytea)
            .boxed(),
        ColumnType::Date => any::<i32>().prop_map(Datum::Date).boxed(),
        ColumnType::Timestamp => any::<i64>().prop_map(Datum::Timestamp).boxed(),
        ColumnType::Timestamptz => any::<i64>().prop_map(Datum::Timestamptz).boxed(),
    }
}

/// A schema (every second value column nullable) and two rows of it.
fn schema_and_rows() -> impl Strategy<Value = (Schema, Vec<Datum>, Vec<Datum>)> {
    proptest::collection::vec(any_type(), 1..8)
        .prop_flat_map(|types| {
            let columns = types.len();
            let key = Just((0..columns).collect::<Vec<_>>()).prop_shuffle();
            (Just(types), key, 1..=columns)
        })
        .prop_flat_map(|(types, mut key, key_len)| {
            key.truncate(key_len);
            let column = |(i, t): (usize, &ColumnType)| Column {
                name: format!("c{i}"),
                data_type: *t,
                nullable: i % NULLABLE_EVERY == 0,
            };
            let schema = Schema::new(types.iter().enumerate().map(column).collect(), key).unwrap();
            let datum = |c: &Column| {
                if c.nullable {
                    prop_oneof![1 => Just(Datum::Null), 3 => datum_of(c.data_type)].boxed()
                } else {
                    datum_of(c.data_type)
                }
            };
            let row = || schema.columns().iter().map(datum).collect::<Vec<_>>();
            (row(), row(), Just(schema.clone())).prop_map(|(a, b, s)| (s, a, b))
        })
}

fn same_row(a: &[Datum], b: &[Datum]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.compare(b) == Some(Ordering::Equal))
}

fn compare_parts(columns: &[usize], a: &[Datum], b: &[Datum]) -> Ordering {
    columns.iter().map(|&i| a[i].compare(&b[i]).unwrap()).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_order_as_rows_and_rows_come_back((schema, a, b) in schema_and_rows()) {
        let (mut key_a, mut key_b, mut value, mut row) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        schema.encode_key(&a, &mut key_a).unwrap();
        schema.encode_key(&b, &mut key_b).unwrap();
        prop_assert_eq!(key_a.cmp(&key_b), compare_parts(schema.key(), &a, &b));
        match schema.key_shape() {
            KeyShape::Fixed(len) => prop_assert_eq!(key_a.len(), len),
            KeyShape::Variable { fixed_prefix } => prop_assert!(key_a.len() > fixed_prefix),
        }
        let parts: Vec<Datum> = schema.key().iter().map(|&k| a[k].clone()).collect();
        schema.encode_key_parts(&parts, &mut key_b).unwrap();
        prop_assert_eq!(&key_b, &key_a);
        schema.encode_key_parts(&parts[..parts.len() - 1], &mut key_b).unwrap();
        prop_assert!(key_a.starts_with(&key_b));

        schema.encode_value(&a, &mut value).unwrap();
        schema.decode_row(&key_a, &value, &mut row).unwrap();
        prop_assert!(same_row(&row, &a), "{:?} became {:?}", a, row);
        let mut again = Vec::new();
        schema.encode_value(&row, &mut again).unwrap();
        prop_assert_eq!(&again, &value);
    }

    #[test]
    fn secondary_keys_order_as_columns_then_key((schema, a, b) in schema_and_rows(), unique in any::<bool>(), pick in any::<prop::sample::Selector>()) {
        let count = 1 + schema.columns().len() / 2;
        let mut columns: Vec<usize> = (0..schema.columns().len()).collect();
        columns.sort_by_key(|i| pick.select(0..100 + i));
        columns.truncate(count);
        let index = SecondaryIndex { name: "i".to_owned(), columns, unique };
        let keys = SecondaryKeys::new(&schema, &index).unwrap();
        let make = |row: &[Datum]| {
            let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
            schema.encode_key(row, &mut key).unwrap();
            schema.encode_value(row, &mut value).unwrap();
            keys.make(&schema, &key, &value, &mut out).unwrap();
            (key, out)
        };
        let ((key_a, index_a), (_, index_b)) = (make(&a), make(&b));
        let with_null = index.columns.iter().any(|&i| a[i].is_null());
        let expected = compare_parts(&index.columns, &a, &b);
        let expected = if unique && !with_null { expected } else { expected.then(compare_parts(schema.key(), &a, &b)) };
        prop_assert_eq!(index_a.cmp(&index_b), expected);

        let (datums, primary) = keys.decode(&index_a).unwrap();
        let expected: Vec<Datum> = index.columns.iter().map(|&i| a[i].clone()).collect();
        prop_assert!(same_row(&datums, &expected));
        prop_assert_eq!(primary, if unique && !with_null { &[][..] } else { &key_a[..] });

        let mut prefix = Vec::new();
        keys.encode_parts(&schema, &expected, &mut prefix).unwrap();
        prop_assert!(index_a.starts_with(&prefix));
        let equal = same_row(&expected, &index.columns.iter().map(|&i| b[i].clone()).collect::<Vec<_>>());
        prop_assert_eq!(index_b.starts_with(&prefix), equal);
    }

    #[test]
    fn definitions_come_back((schema, _, _) in schema_and_rows(), unique in any::<bool>()) {
        let index = SecondaryIndex { name: "by_first".to_owned(), columns: vec![0], unique };
        let mut bytes = Vec::new();
        encode_definition(&schema, std::slice::from_ref(&index), &mut bytes).unwrap();
        bytes.push(42);
        let (decoded, indexes, rest) = decode_definition(&bytes).unwrap();
        prop_assert_eq!(&decoded, &schema);
        prop_assert_eq!(indexes, vec![index]);
        prop_assert_eq!(rest, [42]);
        for cut in 0..bytes.len() - 1 {
            prop_assert!(decode_definition(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    /// Decoders answer garbage with a row or an error, never a panic, and what they accept is canonical: it encodes again
    /// (NaNs and zeros apart) to what it was.
    #[test]
    fn garbage_is_an_error((schema, a, _) in schema_and_rows(), noise in proptest::collection::vec(any::<u8>(), 0..64), flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 0..4)) {
        let (mut key, mut value, mut row) = (Vec::new(), Vec::new(), Vec::new());
        schema.encode_key(&a, &mut key).unwrap();
        schema.encode_value(&a, &mut value).unwrap();
        let mut definition = Vec::new();
        encode_definition(&schema, &[], &mut definition).unwrap();
        for bytes in [&mut key, &mut value, &mut definition] {
            for (at, bit) in &flips {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] ^= 1 << bit;
                }
            }
        }
        let index = SecondaryKeys::new(&schema, &SecondaryIndex { name: "i".to_owned(), columns: vec![0], unique: true }).unwrap();
        let _ = decode_definition(&definition);
        let _ = decode_definition(&noise);
        for (key, value) in [(&key, &value), (&noise, &value), (&key, &noise), (&noise, &noise)] {
            let _ = index.decode(key);
            let mut out = Vec::new();
            let _ = index.make(&schema, key, value, &mut out);
            if schema.decode_row(key, value, &mut row).is_ok() {
                for i in 0..row.len() {
                    if schema.check_value(value).is_ok() && !schema.key().contains(&i) {
                        prop_assert!(schema.decode_value_column(value, i).is_ok());
                    }
                }
            }
        }
    }
}

fn one(data_type: ColumnType) -> Schema {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("v", data_type).nullable()];
    Schema::new(columns, vec![0]).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "a table of cases reads better without borrows")]
fn check(data_type: ColumnType, given: Datum, stored: Result<Datum, RowError>) {
    let schema = one(data_type);
    let row = [Datum::Int(1), given.clone()];
    let (mut value, mut back) = (Vec::new(), Vec::new());
    let found = schema.encode_value(&row, &mut value).map(|()| {
        schema.decode_row(&[0x80, 0, 0, 1], &value, &mut back).unwrap();
        back[1].clone()
    });
    assert_eq!(found, stored, "{given:?} into {data_type}");
}

fn decimal(unscaled: i128, scale: u8) -> Datum {
    Datum::Decimal { unscaled, scale }
}

#[test]
fn limits_name_the_column_and_the_limit() {
    let text = |s: &str| Datum::Text(s.to_owned());
    let too_long = |limit, found| Err(RowError::TooLong { column: "v".to_owned(), limit, found });
    let overflow = |data_type| Err(RowError::NumericOverflow { column: "v".to_owned(), data_type });
    check(ColumnType::Char(3), text("ab "), Ok(text("ab")));
    check(ColumnType::Char(3), text("abc   "), Ok(text("abc")));
    check(ColumnType::Char(3), text("abcd"), too_long(3, 4));
    check(ColumnType::Varchar(3), text("ab "), Ok(text("ab ")));
    check(ColumnType::Varchar(3), text("abc  "), Ok(text("abc")));
    check(ColumnType::Varchar(3), text("éàü"), Ok(text("éàü")));
    check(ColumnType::Varchar(3), text("éàüo"), too_long(3, 4));
    check(ColumnType::Text, text("a\0b"), Err(RowError::InvalidText { column: "v".to_owned() }));
    check(ColumnType::SmallInt, Datum::Int(32767), Ok(Datum::SmallInt(32767)));
    check(ColumnType::SmallInt, Datum::Int(32768), overflow(ColumnType::SmallInt));
    check(ColumnType::Int, Datum::BigInt(-2_147_483_649), overflow(ColumnType::Int));
    let money = ColumnType::Decimal { precision: 5, scale: 2 };
    check(money, decimal(12_345, 3), Ok(decimal(1235, 2)));
    check(money, decimal(-12_345, 3), Ok(decimal(-1235, 2)));
    check(money, decimal(12_344, 3), Ok(decimal(1234, 2)));
    check(money, decimal(999_995, 3), overflow(money));
    check(money, decimal(7, 0), Ok(decimal(700, 2)));
    check(money, Datum::Int(1000), overflow(money));
    check(money, Datum::SmallInt(-999), Ok(decimal(-99_900, 2)));
    check(money, decimal(i128::MAX, 0), overflow(money));
    check(money, decimal(i128::MAX, 200), Ok(decimal(0, 2)));
    check(
        money,
        Datum::Double(1.0),
        Err(RowError::WrongType { column: "v".to_owned(), expected: money, found: "double precision" }),
    );
    check(money, Datum::Null, Ok(Datum::Null));
    let mut out = Vec::new();
    let null = one(money).encode_key(&[Datum::Null, Datum::Null], &mut out);
    assert_eq!(null, Err(RowError::NullNotAllowed { column: "id".to_owned() }));
    let long = one(ColumnType::Text).encode_value(&[Datum::Int(1), text(&"x".repeat(70_000))], &mut out);
    assert_eq!(long, Err(RowError::RowTooLarge { bytes: 70_003, limit: 65_535 }));
}

#[test]
fn schemas_that_make_no_sense() {
    let column = |name: &str, t| Column::new(name, t);
    let refused = |columns: Vec<Column>, key: Vec<usize>, reason: &str| match Schema::new(columns, key) {
        Err(RowError::InvalidSchema { reason: found }) => assert!(found.contains(reason), "{found}"),
        other => panic!("{other:?}"),
    };
    refused(vec![column("a", ColumnType::Int)], vec![], "needs a primary key");
    refused(vec![column("a", ColumnType::Int)], vec![1], "names column 1 of 1");
    refused(vec![column("a", ColumnType::Int)], vec![0, 0], "twice");
    refused(vec![column("a", ColumnType::Int), column("a", ColumnType::Int)], vec![0], "more than once");
    refused(vec![column("", ColumnType::Int)], vec![0], "name of 0 bytes");
    refused(vec![column("a", ColumnType::Decimal { precision: 39, scale: 0 })], vec![0], "precision");
    refused(vec![column("a", ColumnType::Char(0))], vec![0], "length 0");
}

/// The accessors see what the codec wrote, and a built value is an encoded one.
#[test]
fn accessors_and_codec_agree() {
    let columns = vec![
        Column::new("w", ColumnType::Int),
        Column::new("name", ColumnType::Varchar(10)),
        Column::new("tax", ColumnType::Decimal { precision: 4, scale: 4 }),
        Column::new("d", ColumnType::SmallInt),
        Column::new("carrier", ColumnType::Int).nullable(),
        Column::new("zip", ColumnType::Char(9)).nullable(),
        Column::new("at", ColumnType::Timestamp),
    ];
    let schema = Schema::new(columns, vec![0, 3]).unwrap();
    let text = |s: &str| Datum::Text(s.to_owned());
    let row = [
        Datum::Int(-5),
        text("abc"),
        decimal(1234, 4),
        Datum::SmallInt(9),
        Datum::Null,
        text("1234"),
        Datum::Timestamp(77),
    ];
    let (mut key, mut value, mut built) = (Vec::new(), Vec::new(), Vec::new());
    schema.encode_key(&row, &mut key).unwrap();
    schema.encode_value(&row, &mut value).unwrap();
    assert_eq!(StackKey::<6>::new().with(-5_i32).with(9_i16).as_slice(), key);
    assert_eq!(schema.key_field::<i32>("w").unwrap().get(&key), -5);
    assert_eq!(schema.key_field::<i16>("d").unwrap().get(&key), 9);
    let layout = schema.layout();
    let (tax, carrier, at) =
        (layout.i32("tax").unwrap(), layout.nullable_field::<i32>("carrier").unwrap(), layout.i64("at").unwrap());
    let (name, zip) = (layout.bytes("name").unwrap(), layout.bytes("zip").unwrap());
    assert_eq!((tax.get(&value), carrier.get(&value), at.get(&value)), (1234, None, 77));
    assert_eq!((name.get(&value), zip.get(&value), zip.is_null(&value)), (&b"abc"[..], &b"1234"[..], false));
    let mut builder = layout.build(&mut built);
    builder.set(tax, 1234).set_nullable(carrier, None).set(at, 77).push(b"abc").push(b"1234");
    assert_eq!(builder.finish(), value);
    carrier.set(&mut value, Some(3));
    name.get_mut(&mut value).copy_from_slice(b"xyz");
    assert_eq!(schema.decode_value_column(&value, 4).unwrap(), Datum::Int(3));
    assert_eq!(schema.decode_value_column(&value, 1).unwrap(), text("xyz"));
    let mut replaced = Vec::new();
    name.replace(&value, &[b"long", b"er"], &mut replaced);
    assert_eq!((name.get(&replaced), zip.get(&replaced)), (&b"longer"[..], &b"1234"[..]));
    name.replace(&replaced, &[b"xyz"], &mut built);
    assert_eq!(built, value);
    for wrong in [
        layout.i32("at").err(),
        layout.i32("carrier").err(),
        layout.i32("w").err(),
        layout.i32("name").err(),
        layout.i32("nix").err(),
        layout.bytes("tax").err(),
    ] {
        assert!(matches!(wrong, Some(RowError::WrongAccessor { .. } | RowError::NoSuchColumn { .. })));
    }
}

/// The tags of types are kept on disk: a definition of one column of each moment, byte by byte.
#[test]
fn tags_of_moments_stay() {
    for (tag, data_type) in [(12, ColumnType::Date), (13, ColumnType::Timestamp), (14, ColumnType::Timestamptz)] {
        let bytes = [b'F', 1, 1, 0, 1, b'a', tag, 0, 1, 0, 0, 0, 0, 0];
        let (schema, indexes, rest) = decode_definition(&bytes).unwrap();
        assert_eq!((schema.columns(), indexes.len(), rest.len()), (&[Column::new("a", data_type)][..], 0, 0));
        let mut again = Vec::new();
        encode_definition(&schema, &[], &mut again).unwrap();
        assert_eq!(again, bytes);
    }
}

#[test]
fn prefix_ends() {
    let check = |from: &[u8], to: Option<&[u8]>| {
        let mut key = from.to_vec();
        assert_eq!(next_prefix(&mut key).then_some(&key[..]), to);
    };
    check(&[1, 2], Some(&[1, 3]));
    check(&[1, 0xff, 0xff], Some(&[2]));
    check(&[0xff, 0xff], None);
    check(&[], None);
    let stack = StackKey::<8>::new().with(1_i16);
    assert_eq!(stack.next_prefix().as_slice(), [0x80, 2]);
    assert_eq!(stack.with(i16::MAX).next_prefix().as_slice(), [0x80, 2]);
    assert_eq!(StackKey::<8>::new().with(i16::MAX).next_prefix().as_slice(), []);
}
