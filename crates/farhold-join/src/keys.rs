//! Key columns as one 64-bit key code for each row.
//!
//! Fixed-width columns that fit 64 bits together are packed side by side: the code *is* the key. All others are brought
//! into Arrow's row format and hashed. Equal keys have equal codes, and keys with equal codes are compared again. Once
//! a build side is complete, whole numbers that do not fit by their types may still fit by their values ([`Packing`]).

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::row::{RowConverter, SortField};

use crate::hash::hash;
use crate::widest::widest;
use crate::{JoinError, JoinSpec};
use farhold_planted::Defect;

/// Turns key columns of one side into codes.
#[derive(Debug)]
pub struct Encoder {
    columns: Vec<usize>,
    /// The converter for keys that are not packed.
    converter: Option<RowConverter>,
    null_equals_null: bool,
    /// The seed of the codes that are hashes.
    seed: u64,
}

/// The codes of a batch.
#[derive(Debug)]
pub struct Codes {
    pub codes: Vec<u64>,
    /// Rows whose key can equal another; the others have a null in their key.
    pub valid: Option<NullBuffer>,
}

impl Codes {
    pub fn is_valid(&self, row: usize) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid.is_valid(row))
    }
}

/// The encoders of the build and the probe side; `seed` is the run's.
pub fn encoders(spec: &JoinSpec, seed: u64) -> Result<[Encoder; 2], JoinError> {
    let types: Vec<&DataType> = spec.on.iter().map(|&(build, _)| spec.build.field(build).data_type()).collect();
    if let Some(kind) = types.iter().find(|kind| !is_supported(kind)) {
        return Err(JoinError::KeyUnsupported(kind.to_string()));
    }
    let has_null = spec
        .on
        .iter()
        .any(|&(build, probe)| spec.build.field(build).is_nullable() || spec.probe.field(probe).is_nullable());
    let packs = types.iter().map(|kind| packed_bytes(kind)).sum::<Option<usize>>().is_some_and(|bytes| bytes <= 8);
    let encoder = |columns| -> Result<Encoder, JoinError> {
        let converter = if packs && !(spec.null_equals_null && has_null) {
            None
        } else {
            Some(RowConverter::new(types.iter().map(|&kind| SortField::new(kind.clone())).collect())?)
        };
        Ok(Encoder { columns, converter, null_equals_null: spec.null_equals_null, seed })
    };
    Ok([encoder(spec.on.iter().map(|on| on.0).collect())?, encoder(spec.on.iter().map(|on| on.1).collect())?])
}

pub(crate) fn packed_bytes(kind: &DataType) -> Option<usize> {
    use DataType::{
        Date32, Date64, Decimal32, Decimal64, Duration, Int8, Int16, Int32, Int64, Time32, Time64, Timestamp, UInt8,
        UInt16, UInt32, UInt64,
    };
    match kind {
        Int8 | UInt8 => Some(1),
        Int16 | UInt16 => Some(2),
        Int32 | UInt32 | Date32 | Time32(_) | Decimal32(..) => Some(4),
        Int64 | UInt64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) | Decimal64(..) => Some(8),
        _ => None,
    }
}

/// Whether keys of this type can be joined. Floating-point numbers are left out: the caller decides, by a cast, whether
/// -0 equals 0 and NaN equals itself.
pub(crate) fn is_supported(kind: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, Decimal128, Decimal256, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View,
    };
    packed_bytes(kind).is_some()
        || matches!(
            kind,
            Boolean
                | Decimal128(..)
                | Decimal256(..)
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
                | FixedSizeBinary(_)
        )
}

impl Encoder {
    /// Whether equal codes mean equal keys.
    pub fn is_exact(&self) -> bool {
        self.converter.is_none()
    }

    /// The key columns.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The codes of every row; those of invalid rows have no meaning.
    pub fn encode(&self, batch: &RecordBatch) -> Result<Codes, JoinError> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|&column| batch.column(column).clone()).collect();
        let valid = if self.null_equals_null || farhold_planted::is(Defect::NullsMatch) {
            None
        } else {
            columns
                .iter()
                .fold(None, |valid, column| NullBuffer::union(valid.as_ref(), column.logical_nulls().as_ref()))
        };
        let codes = match &self.converter {
            Some(converter) => {
                let rows = converter.convert_columns(&columns)?;
                let mask = if farhold_planted::is(Defect::WeakCodes) { 15 } else { u64::MAX };
                rows.iter().map(|row| hash_bytes(row.as_ref(), self.seed) & mask).collect()
            }
            None => pack(&columns, batch.num_rows()),
        };
        Ok(Codes { codes, valid })
    }
}

/// Keys of several whole numbers as one: each column's distance from its least build value, times the size of the
/// intervals of the columns behind it. It is exact where the build side's intervals together fit in 64 bits. It has no
/// code for values outside of them.
#[derive(Debug, Default)]
pub struct Packing(Vec<Packed>);

#[derive(Debug)]
struct Packed {
    min: i128,
    last: u64,
    stride: u64,
}

impl Packing {
    /// The packing of a build side's keys, where [`Encoder`] has to hash them; `None` if they cannot be packed.
    pub fn of(encoder: &Encoder, batches: &[RecordBatch]) -> Option<Self> {
        let first = batches.first()?;
        let mut types = encoder.columns.iter().map(|&column| first.column(column).data_type());
        if encoder.is_exact()
            || encoder.null_equals_null
            || farhold_planted::is(Defect::WeakCodes)
            || !types.all(is_number)
        {
            return None;
        }
        let mut packed = Vec::new();
        let mut room = 1_u128;
        for &column in encoder.columns.iter().rev() {
            let bounds = batches.iter().filter_map(|batch| bounds(batch.column(column)));
            let bounds = bounds.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            let (min, max) = bounds.unwrap_or((0, 0));
            let last = u64::try_from(max.checked_sub(min)?).ok()?;
            packed.push(Packed { min, last, stride: u64::try_from(room).ok()? });
            room = room.checked_mul(u128::from(last) + 1).filter(|&room| room <= 1 << 64)?;
        }
        Some(Self(packed))
    }

    /// The codes of a batch of the side whose encoder this is.
    pub fn encode(&self, encoder: &Encoder, batch: &RecordBatch) -> Codes {
        let mut codes = vec![0_u64; batch.num_rows()];
        let mut valid = vec![true; batch.num_rows()];
        for (packed, &column) in self.0.iter().zip(encoder.columns.iter().rev()) {
            packed.add(batch.column(column), &mut codes, &mut valid);
        }
        Codes { codes, valid: valid.contains(&false).then(|| NullBuffer::from(valid)) }
    }
}

impl Packed {
    fn add(&self, column: &ArrayRef, codes: &mut [u64], valid: &mut [bool]) {
        let data = column.to_data();
        match (packed_bytes(column.data_type()), i64::try_from(self.min)) {
            (Some(1), Ok(min)) => self.add_narrow::<i8>(&data, min, codes, valid),
            (Some(2), Ok(min)) => self.add_narrow::<i16>(&data, min, codes, valid),
            (Some(4), Ok(min)) => self.add_narrow::<i32>(&data, min, codes, valid),
            (Some(_), Ok(min)) => self.add_narrow::<i64>(&data, min, codes, valid),
            _ => each_number(column, |row, number| {
                let distance = number.wrapping_sub(self.min);
                valid[row] &= (0..=i128::from(self.last)).contains(&distance);
                codes[row] = codes[row].wrapping_add((distance as u64).wrapping_mul(self.stride));
            }),
        }
        if let Some(nulls) = column.nulls() {
            valid.iter_mut().zip(nulls).for_each(|(valid, is_valid)| *valid &= is_valid);
        }
    }

    /// The same in 64 bits. A value below the interval wraps around to beyond its end, since the interval itself is one
    /// of such numbers.
    fn add_narrow<T: ArrowNativeType + Into<i64>>(
        &self,
        data: &ArrayData,
        min: i64,
        codes: &mut [u64],
        valid: &mut [bool],
    ) {
        let values = ScalarBuffer::<T>::new(data.buffers()[0].clone(), data.offset(), data.len());
        widest!(|_| {
            for ((&value, code), valid) in values.iter().zip(codes).zip(valid) {
                let distance = value.into().wrapping_sub(min) as u64;
                *valid &= distance <= self.last;
                *code = code.wrapping_add(distance.wrapping_mul(self.stride));
            }
        });
    }
}

/// The least and the greatest value of a column for which [`is_number`] holds; `None` without any.
pub(crate) fn bounds(column: &ArrayRef) -> Option<(i128, i128)> {
    #[inline(always)]
    fn of<T: Copy + Ord>(values: &[T]) -> Option<(T, T)> {
        let first = *values.first()?;
        Some(values.iter().fold((first, first), |(min, max), &value| (min.min(value), max.max(value))))
    }
    fn all<T: ArrowNativeType + Ord + Into<i128>>(data: &ArrayData) -> Option<(i128, i128)> {
        let values = ScalarBuffer::<T>::new(data.buffers()[0].clone(), data.offset(), data.len());
        let bounds = match data.nulls() {
            None => widest!(|_| of(&values)),
            Some(nulls) => {
                let valid = nulls.valid_slices().filter_map(|(start, end)| of(&values[start..end]));
                valid.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
            }
        };
        bounds.map(|(min, max)| (min.into(), max.into()))
    }
    let data = column.to_data();
    match packed_bytes(column.data_type()) {
        Some(1) => all::<i8>(&data),
        Some(2) => all::<i16>(&data),
        Some(4) => all::<i32>(&data),
        Some(_) => all::<i64>(&data),
        None => all::<i128>(&data),
    }
}

/// Whether columns of this type hold whole numbers, or values that are stored as such. An unsigned number above the
/// greatest signed one stands for a negative one: different numbers stay different.
pub(crate) fn is_number(kind: &DataType) -> bool {
    packed_bytes(kind).is_some() || matches!(kind, DataType::Decimal128(..))
}

/// Calls `each(row, number)` for every row of a column for which [`is_number`] holds; the number of a null is
/// arbitrary.
#[inline(always)]
pub(crate) fn each_number(column: &ArrayRef, each: impl FnMut(usize, i128)) {
    fn all<T: ArrowNativeType + Into<i128>>(data: &ArrayData, mut each: impl FnMut(usize, i128)) {
        let values = ScalarBuffer::<T>::new(data.buffers()[0].clone(), data.offset(), data.len());
        values.iter().enumerate().for_each(|(row, &value)| each(row, value.into()));
    }
    let data = column.to_data();
    match packed_bytes(column.data_type()) {
        Some(1) => all::<i8>(&data, each),
        Some(2) => all::<i16>(&data, each),
        Some(4) => all::<i32>(&data, each),
        Some(_) => all::<i64>(&data, each),
        None => all::<i128>(&data, each),
    }
}

/// The values' bit patterns side by side, the last column lowest.
fn pack(columns: &[ArrayRef], rows: usize) -> Vec<u64> {
    if let [column] = columns
        && packed_bytes(column.data_type()) == Some(8)
    {
        let data = column.to_data();
        return data.buffers()[0].typed_data::<u64>()[data.offset()..][..rows].to_vec();
    }
    let mut codes = vec![0_u64; rows];
    for column in columns {
        let data = column.to_data();
        let (values, offset) = (&data.buffers()[0], data.offset());
        match packed_bytes(column.data_type()) {
            Some(1) => push(&mut codes, &values.typed_data::<u8>()[offset..]),
            Some(2) => push(&mut codes, &values.typed_data::<u16>()[offset..]),
            Some(4) => push(&mut codes, &values.typed_data::<u32>()[offset..]),
            _ => codes.iter_mut().zip(&values.typed_data::<u64>()[offset..]).for_each(|(code, &value)| *code = value),
        }
    }
    codes
}

fn push<T: Copy + Into<u64>>(codes: &mut [u64], values: &[T]) {
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = *code << (8 * size_of::<T>()) | value.into();
    }
}

fn hash_bytes(bytes: &[u8], seed: u64) -> u64 {
    let mut code = bytes.len() as u64 ^ seed;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        code = hash(u64::from_le_bytes(word), code).rotate_left(23);
    }
    hash(code, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JoinKind;
    use arrow::array::{Int16Array, Int32Array, Int64Array, StringArray, UInt8Array};
    use arrow::datatypes::{Field, Schema};
    use std::sync::Arc;

    fn encode(columns: Vec<ArrayRef>, null_equals_null: bool) -> (Codes, bool) {
        let fields: Vec<_> = columns
            .iter()
            .enumerate()
            .map(|(n, c)| Field::new(n.to_string(), c.data_type().clone(), c.is_nullable()))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let on = (0..columns.len()).map(|column| (column, column)).collect();
        let mut spec = JoinSpec::new(schema.clone(), schema.clone(), on, JoinKind::Inner);
        spec.null_equals_null = null_equals_null;
        let [encoder, _] = encoders(&spec, 1).unwrap();
        (encoder.encode(&RecordBatch::try_new(schema, columns).unwrap()).unwrap(), encoder.is_exact())
    }

    #[test]
    fn numbers_are_packed_and_stay_apart() {
        let a: ArrayRef = Arc::new(Int32Array::from(vec![1, -1, 0, 0]));
        let b: ArrayRef = Arc::new(Int16Array::from(vec![0, 0, -1, 1]));
        let c: ArrayRef = Arc::new(UInt8Array::from(vec![0, 255, 255, 0]));
        let (codes, exact) = encode(vec![a.slice(1, 3), b.slice(1, 3), c.slice(1, 3)], false);
        assert!(exact && codes.valid.is_none());
        assert_eq!(codes.codes, [0x00ff_ffff_ff00_00ff, 0x00ff_ffff, 0x100]);
    }

    #[test]
    fn nulls_and_strings_are_hashed_where_they_have_to_be() {
        let nullable: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), None, Some(0), None]));
        let (codes, exact) = encode(vec![nullable.clone()], false);
        assert!(exact && codes.is_valid(0) && !codes.is_valid(1));
        let (codes, exact) = encode(vec![nullable], true);
        assert!(!exact && codes.valid.is_none());
        assert_eq!((codes.codes[0], codes.codes[1]), (codes.codes[2], codes.codes[3]));
        assert_ne!(codes.codes[0], codes.codes[1]);
        let (codes, exact) = encode(vec![Arc::new(StringArray::from(vec!["", "a", "a\0", "a"]))], false);
        assert!(!exact && codes.codes[1] == codes.codes[3]);
        assert!(codes.codes[0] != codes.codes[1] && codes.codes[1] != codes.codes[2]);
    }

    /// Two texts of two words, of which the second reverses the effect of the first on the state: they have one code,
    /// but only under that seed and under the one that swaps the two.
    #[test]
    fn texts_that_collide_under_one_seed_do_not_under_others() {
        let with_words = |words: [u64; 2]| words.map(u64::to_le_bytes).concat();
        let after_first = |word: u64, seed: u64| hash(word, 16 ^ seed).rotate_left(23);
        let chosen = [1_u64, 2].map(|first| with_words([first, after_first(first, 0x4d)]));
        assert_ne!(chosen[0], chosen[1]);
        assert_eq!(hash_bytes(&chosen[0], 0x4d), hash_bytes(&chosen[1], 0x4d));
        for seed in (0..1000).filter(|&seed| seed != 0x4d && seed != 0x4d ^ 1 ^ 2) {
            assert_ne!(hash_bytes(&chosen[0], seed), hash_bytes(&chosen[1], seed), "seed {seed}");
        }
    }

    #[test]
    fn bounds_are_those_of_valid_values() {
        let numbers = [Some(7), None, Some(-3), Some(90), None, Some(5)];
        let columns: [ArrayRef; 4] = [
            Arc::new(Int16Array::from_iter(numbers.map(|number| number.map(|number: i64| number as i16)))),
            Arc::new(Int32Array::from_iter(numbers.map(|number| number.map(|number| number as i32)))),
            Arc::new(Int64Array::from_iter(numbers)),
            Arc::new(arrow::array::Decimal128Array::from_iter(numbers.map(|number| number.map(i128::from)))),
        ];
        for column in columns {
            assert_eq!(bounds(&column), Some((-3, 90)), "{}", column.data_type());
            assert_eq!(bounds(&column.slice(3, 3)), Some((5, 90)), "{}", column.data_type());
            assert_eq!(bounds(&column.slice(2, 2)), Some((-3, 90)), "without nulls, {}", column.data_type());
            assert_eq!(bounds(&column.slice(1, 1)), None, "{}", column.data_type());
            assert_eq!(bounds(&column.slice(0, 0)), None, "{}", column.data_type());
        }
    }
}
