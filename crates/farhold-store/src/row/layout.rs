//! The place of each column, computed once per schema, and typed accessors that compile to one load or store.

use super::schema::Column;
use super::types::Physical;
use super::{ColumnType, RowError};
use std::marker::PhantomData;

/// A null bit of a value: set = NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NullBit {
    /// The byte of the value that holds it.
    pub byte: u32,
    /// The bit's mask in that byte.
    pub mask: u8,
}

impl NullBit {
    /// The column is NULL in `value`.
    ///
    /// # Panics
    /// When `value` is too short to be a value of this table.
    #[inline]
    #[must_use]
    pub fn is_set(self, value: &[u8]) -> bool {
        value[self.byte as usize] & self.mask != 0
    }

    /// Makes the column NULL in `value`, or not.
    ///
    /// # Panics
    /// When `value` is too short to be a value of this table.
    #[inline]
    pub fn set(self, value: &mut [u8], null: bool) {
        let byte = &mut value[self.byte as usize];
        *byte = if null { *byte | self.mask } else { *byte & !self.mask };
    }
}

/// Where a column lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the key.
    Key {
        /// Which column of the key.
        part: u32,
        /// Its offset in the key, when every column before it has a fixed width.
        offset: Option<u32>,
    },
    /// In the value, at a fixed offset.
    Fixed {
        /// Offset of the little-endian bytes.
        offset: u32,
        /// Its null bit, when nullable.
        null: Option<NullBit>,
    },
    /// In the value, among the variable bytes.
    Variable {
        /// Which variable column, counted from 0.
        slot: u32,
        /// Its null bit, when nullable.
        null: Option<NullBit>,
    },
}

/// A scalar stored little-endian at a fixed offset of a value.
pub trait FixedScalar: Copy {
    /// Its bytes in a value.
    const BYTES: usize;
    /// Its name, for messages.
    const NAME: &'static str;
    /// Reads it from the first `BYTES` of `from`.
    fn load(from: &[u8]) -> Self;
    /// Writes it to the first `BYTES` of `to`.
    fn store(self, to: &mut [u8]);
    /// A column held as `physical` is read by this scalar. (The type's name is private, so the trait is sealed.)
    #[doc(hidden)]
    fn reads(physical: Physical) -> bool;
}

macro_rules! fixed {
    ($($scalar:ty => $physical:ident),*) => {$(
        impl FixedScalar for $scalar {
            const BYTES: usize = size_of::<$scalar>();
            const NAME: &'static str = stringify!($scalar);
            #[inline]
            fn load(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$scalar>()];
                bytes.copy_from_slice(&from[..size_of::<$scalar>()]);
                Self::from_le_bytes(bytes)
            }
            #[inline]
            fn store(self, to: &mut [u8]) {
                to[..size_of::<$scalar>()].copy_from_slice(&self.to_le_bytes());
            }
            fn reads(physical: Physical) -> bool {
                physical == Physical::$physical
            }
        }
    )*};
}
fixed!(i16 => I16, i32 => I32, i64 => I64, i128 => I128, f32 => F32, f64 => F64);

impl FixedScalar for bool {
    const BYTES: usize = 1;
    const NAME: &'static str = "bool";
    #[inline]
    fn load(from: &[u8]) -> Self {
        from[0] != 0
    }
    #[inline]
    fn store(self, to: &mut [u8]) {
        to[0] = u8::from(self);
    }
    fn reads(physical: Physical) -> bool {
        physical == Physical::Bool
    }
}

/// A NOT NULL column at a fixed offset of the value.
///
/// Reading and writing panic when the slice is too short to be a value of this table.
#[derive(Debug, Clone, Copy)]
pub struct Field<T> {
    offset: u32,
    scalar: PhantomData<T>,
}

impl<T: FixedScalar> Field<T> {
    /// The column's value.
    #[inline]
    #[must_use]
    pub fn get(self, value: &[u8]) -> T {
        let at = self.offset as usize;
        T::load(&value[at..at + T::BYTES])
    }

    /// Overwrites the column.
    #[inline]
    pub fn set(self, value: &mut [u8], scalar: T) {
        let at = self.offset as usize;
        scalar.store(&mut value[at..at + T::BYTES]);
    }
}

/// A nullable column at a fixed offset of the value.
///
/// Reading and writing panic when the slice is too short to be a value of this table.
#[derive(Debug, Clone, Copy)]
pub struct NullableField<T> {
    field: Field<T>,
    null: NullBit,
}

impl<T: FixedScalar + Default> NullableField<T> {
    /// The column's value, `None` for NULL.
    #[inline]
    #[must_use]
    pub fn get(self, value: &[u8]) -> Option<T> {
        (!self.null.is_set(value)).then(|| self.field.get(value))
    }

    /// Overwrites the column; `None` makes it NULL.
    #[inline]
    pub fn set(self, value: &mut [u8], scalar: Option<T>) {
        self.null.set(value, scalar.is_none());
        self.field.set(value, scalar.unwrap_or_default());
    }
}

/// A variable column of the value.
///
/// Reading panics when the slice is no value of this table.
#[derive(Debug, Clone, Copy)]
pub struct VarField {
    /// Offset of this column's end offset.
    end: u32,
    /// Offset of the first variable byte.
    base: u32,
    first: bool,
    null: Option<NullBit>,
}

impl VarField {
    /// The column's bytes; empty for NULL.
    #[inline]
    #[must_use]
    pub fn get(self, value: &[u8]) -> &[u8] {
        let end_at = self.end as usize;
        let end = load_end(value, end_at);
        let start = if self.first { 0 } else { load_end(value, end_at - END_BYTES) };
        let base = self.base as usize;
        &value[base + start..base + end]
    }

    /// The bytes, to be overwritten by others of the same length.
    #[inline]
    #[must_use]
    pub fn get_mut(self, value: &mut [u8]) -> &mut [u8] {
        let end_at = self.end as usize;
        let end = load_end(value, end_at);
        let start = if self.first { 0 } else { load_end(value, end_at - END_BYTES) };
        let base = self.base as usize;
        &mut value[base + start..base + end]
    }

    /// Copies `value` to `out` (cleared first) with this column's bytes replaced by `parts`, one after the other. Null bits
    /// stay as they are.
    ///
    /// # Panics
    /// When the variable bytes pass 64 KiB.
    pub fn replace(self, value: &[u8], parts: &[&[u8]], out: &mut Vec<u8>) {
        let (base, old) = (self.base as usize, self.get(value).len());
        let end = base + load_end(value, self.end as usize);
        out.clear();
        out.extend_from_slice(&value[..end - old]);
        for part in parts {
            out.extend_from_slice(part);
        }
        let new = out.len() - (end - old);
        out.extend_from_slice(&value[end..]);
        for at in (self.end as usize..base).step_by(END_BYTES) {
            let moved = u16::try_from(load_end(value, at) + new - old).expect("a row is shorter than 64 KiB");
            out[at..at + END_BYTES].copy_from_slice(&moved.to_le_bytes());
        }
    }

    /// The column is NULL.
    #[inline]
    #[must_use]
    pub fn is_null(self, value: &[u8]) -> bool {
        self.null.is_some_and(|bit| bit.is_set(value))
    }
}

/// Bytes of an end offset.
pub(super) const END_BYTES: usize = 2;

#[inline]
fn load_end(value: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([value[at], value[at + 1]]))
}

/// Where each column of a table lives:
///
/// ```text
/// value:  null bits │ fixed columns, packed │ u16 end of each variable column │ variable bytes
///                                           └ ends count from here ───────────┴▶
/// ```
/// The ends count from the first variable byte; both are little-endian.
#[derive(Debug, Clone)]
pub struct Layout {
    /// One a column: name (for messages), type, place.
    columns: Vec<(String, ColumnType, Place)>,
    /// Positions of the value columns: first the fixed, then the variable ones, in value order.
    fixed: Vec<usize>,
    variable: Vec<usize>,
    null_bytes: usize,
    /// Offset of the first end offset.
    ends_at: usize,
    /// Offset of the first variable byte.
    variable_at: usize,
}

impl Layout {
    pub(super) fn new(columns: &[Column], key: &[usize], key_offsets: &[Option<u32>]) -> Self {
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let is_key = |i: &usize| key.contains(i);
        let (fixed, variable): (Vec<usize>, Vec<usize>) =
            (0..columns.len()).filter(|i| !is_key(i)).partition(|i| columns[*i].data_type.value_bytes().is_some());
        let nullable = (0..columns.len()).filter(|i| !is_key(i) && columns[*i].nullable).collect::<Vec<_>>();
        let null_bytes = nullable.len().div_ceil(8);
        let null_bit = |i: usize| {
            let n = nullable.iter().position(|j| *j == i)?;
            Some(NullBit { byte: to_u32(n / 8), mask: 1 << (n % 8) })
        };
        let mut places = vec![Place::Key { part: 0, offset: None }; columns.len()];
        for (part, (&i, &offset)) in key.iter().zip(key_offsets).enumerate() {
            places[i] = Place::Key { part: to_u32(part), offset };
        }
        let mut at = null_bytes;
        for &i in &fixed {
            places[i] = Place::Fixed { offset: to_u32(at), null: null_bit(i) };
            at += columns[i].data_type.value_bytes().unwrap_or(0);
        }
        for (slot, &i) in variable.iter().enumerate() {
            places[i] = Place::Variable { slot: to_u32(slot), null: null_bit(i) };
        }
        let variable_at = at + variable.len() * END_BYTES;
        let columns = columns.iter().zip(places).map(|(c, place)| (c.name.clone(), c.data_type, place)).collect();
        Self { columns, fixed, variable, null_bytes, ends_at: at, variable_at }
    }

    /// Where column `column` lives.
    ///
    /// # Panics
    /// When there is no such column.
    #[must_use]
    pub fn place(&self, column: usize) -> Place {
        self.columns[column].2
    }

    /// Bytes of a value without its variable bytes: the whole value when no column varies.
    #[must_use]
    pub const fn fixed_bytes(&self) -> usize {
        self.variable_at
    }

    /// Bytes of null bits at the start of a value.
    #[must_use]
    pub const fn null_bytes(&self) -> usize {
        self.null_bytes
    }

    /// Offset of the first end offset in a value.
    #[must_use]
    pub const fn ends_at(&self) -> usize {
        self.ends_at
    }

    /// How many variable columns a value has.
    #[must_use]
    pub fn variable_columns(&self) -> usize {
        self.variable.len()
    }

    /// Value columns of fixed width, in value order.
    pub(super) fn fixed(&self) -> &[usize] {
        &self.fixed
    }

    /// Value columns of variable width, in value order.
    pub(super) fn variable(&self) -> &[usize] {
        &self.variable
    }

    fn find(&self, name: &str, accessor: &'static str) -> Result<(ColumnType, Place, RowError), RowError> {
        let found = self.columns.iter().find(|(n, _, _)| n == name);
        let (_, data_type, place) = found.ok_or_else(|| RowError::NoSuchColumn { column: name.to_owned() })?;
        Ok((*data_type, *place, RowError::WrongAccessor { column: name.to_owned(), accessor }))
    }

    /// The accessor of a NOT NULL value column of fixed width. `T` is `i16` for `SMALLINT`; `i32` for `INT`, `DATE` and
    /// decimals up to 9 digits; `i64` for `BIGINT`, timestamps and decimals up to 18 digits; `i128` for longer ones;
    /// `f32`, `f64`, `bool`.
    ///
    /// # Errors
    /// [`RowError::NoSuchColumn`] or [`RowError::WrongAccessor`].
    pub fn field<T: FixedScalar>(&self, name: &str) -> Result<Field<T>, RowError> {
        match self.find(name, T::NAME)? {
            (data_type, Place::Fixed { offset, null: None }, _) if T::reads(data_type.physical()) => {
                Ok(Field { offset, scalar: PhantomData })
            }
            (_, _, error) => Err(error),
        }
    }

    /// The accessor of a nullable value column of fixed width; types as for [`Layout::field`].
    ///
    /// # Errors
    /// [`RowError::NoSuchColumn`] or [`RowError::WrongAccessor`].
    pub fn nullable_field<T: FixedScalar>(&self, name: &str) -> Result<NullableField<T>, RowError> {
        match self.find(name, T::NAME)? {
            (data_type, Place::Fixed { offset, null: Some(null) }, _) if T::reads(data_type.physical()) => {
                Ok(NullableField { field: Field { offset, scalar: PhantomData }, null })
            }
            (_, _, error) => Err(error),
        }
    }

    /// [`Layout::field`] as `i16`.
    ///
    /// # Errors
    /// As there.
    pub fn i16(&self, name: &str) -> Result<Field<i16>, RowError> {
        self.field(name)
    }

    /// [`Layout::field`] as `i32`.
    ///
    /// # Errors
    /// As there.
    pub fn i32(&self, name: &str) -> Result<Field<i32>, RowError> {
        self.field(name)
    }

    /// [`Layout::field`] as `i64`.
    ///
    /// # Errors
    /// As there.
    pub fn i64(&self, name: &str) -> Result<Field<i64>, RowError> {
        self.field(name)
    }

    /// The accessor of a value column of variable width: strings and bytes.
    ///
    /// # Errors
    /// [`RowError::NoSuchColumn`] or [`RowError::WrongAccessor`].
    pub fn bytes(&self, name: &str) -> Result<VarField, RowError> {
        match self.find(name, "bytes")? {
            (_, Place::Variable { slot, null }, _) => Ok(self.variable_slot(slot, null)),
            (_, _, error) => Err(error),
        }
    }

    /// The accessor of the variable column in slot `slot`, as [`Layout::place`] gives it.
    #[must_use]
    pub fn variable_slot(&self, slot: u32, null: Option<NullBit>) -> VarField {
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        VarField { end: to_u32(self.ends_at) + slot * 2, base: to_u32(self.variable_at), first: slot == 0, null }
    }

    /// Starts a value of this layout in `buffer`. The content of `buffer` is dropped, and its allocation is kept.
    #[inline]
    pub fn build<'a>(&self, buffer: &'a mut Vec<u8>) -> ValueBuilder<'a> {
        buffer.clear();
        buffer.resize(self.variable_at, 0);
        ValueBuilder { buffer, end_at: self.ends_at, variable_at: self.variable_at }
    }
}

/// A value being written by code that knows its table: fixed columns in any order through their fields, variable ones in
/// column order.
#[derive(Debug)]
pub struct ValueBuilder<'a> {
    buffer: &'a mut Vec<u8>,
    end_at: usize,
    variable_at: usize,
}

impl ValueBuilder<'_> {
    /// Sets a fixed column.
    #[inline]
    pub fn set<T: FixedScalar>(&mut self, field: Field<T>, scalar: T) -> &mut Self {
        field.set(self.buffer, scalar);
        self
    }

    /// Sets a nullable fixed column.
    #[inline]
    pub fn set_nullable<T: FixedScalar + Default>(&mut self, field: NullableField<T>, scalar: Option<T>) -> &mut Self {
        field.set(self.buffer, scalar);
        self
    }

    /// Appends the next variable column's bytes (`CHAR(n)` without trailing blanks).
    ///
    /// # Panics
    /// When all variable columns are there already, or their bytes pass 64 KiB.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> &mut Self {
        assert!(self.end_at < self.variable_at, "the table has no more variable columns");
        self.buffer.extend_from_slice(bytes);
        let end = u16::try_from(self.buffer.len() - self.variable_at).expect("a row is shorter than 64 KiB");
        self.buffer[self.end_at..self.end_at + END_BYTES].copy_from_slice(&end.to_le_bytes());
        self.end_at += END_BYTES;
        self
    }

    /// The finished value.
    ///
    /// # Panics
    /// When variable columns are missing.
    #[inline]
    #[must_use]
    pub fn finish(&self) -> &[u8] {
        assert!(self.end_at == self.variable_at, "variable columns are missing");
        self.buffer
    }
}
