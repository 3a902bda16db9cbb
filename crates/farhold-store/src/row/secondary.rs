//! Secondary index keys.
//!
//! A key is the index columns, and then the primary key, so that it is unique; a unique index leaves the primary key out,
//! unless one of the columns is NULL: NULLs are distinct in a unique index.

use super::key::{NULL_MARKER, VALUE_MARKER, decode_column, put_bytes, put_fitted, split_column};
use super::layout::{FixedScalar, Place};
use super::schema::{check_column_list, check_name, check_part};
use super::types::Physical;
use super::{ColumnType, Datum, KeyScalar, RowError, Schema};

/// The definition of a secondary index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondaryIndex {
    /// Its name, unique in the database.
    pub name: String,
    /// The positions of its columns in the table, in index order.
    pub columns: Vec<usize>,
    /// No two rows with the same columns (rows with a NULL among them excepted).
    pub unique: bool,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    data_type: ColumnType,
    place: Place,
    /// Nullable columns have a marker byte in front.
    marked: bool,
}

/// Makes and reads the keys of one secondary index of one table.
#[derive(Debug, Clone)]
pub struct SecondaryKeys {
    parts: Vec<Part>,
    columns: Vec<usize>,
    unique: bool,
}

impl SecondaryKeys {
    /// The key maker of `index` over tables of `schema`.
    ///
    /// # Errors
    /// [`RowError::InvalidSchema`] when the definition does not fit the schema.
    pub fn new(schema: &Schema, index: &SecondaryIndex) -> Result<Self, RowError> {
        check_name(&index.name)?;
        check_column_list(&index.columns, schema.columns().len(), "index")?;
        let part = |&i: &usize| {
            let column = &schema.columns()[i];
            Part { data_type: column.data_type, place: schema.layout().place(i), marked: column.nullable }
        };
        let parts = index.columns.iter().map(part).collect();
        Ok(Self { parts, columns: index.columns.clone(), unique: index.unique })
    }

    /// Writes the index key of the row (`key`, `value`) into `out`, which is cleared first. Allocates only when `out` grows.
    /// Two rows whose index columns are equal differ in the key unless the index is unique.
    ///
    /// # Errors
    /// [`RowError::Corrupt`] when the bytes are no row of the table; [`RowError::RowTooLarge`].
    pub fn make(&self, schema: &Schema, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), RowError> {
        out.clear();
        schema.check_value(value)?;
        let mut any_null = false;
        for part in &self.parts {
            any_null |= part.append(schema, key, value, out)?;
        }
        if !self.unique || any_null {
            out.extend_from_slice(key);
        }
        check_part(out)
    }

    /// The two rows have the same index key; for finding out whether an update touches the index.
    ///
    /// # Errors
    /// As for [`SecondaryKeys::make`].
    pub fn same(&self, schema: &Schema, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool, RowError> {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        self.make(schema, key, old, &mut a)?;
        self.make(schema, key, new, &mut b)?;
        Ok(a == b)
    }

    /// Encodes the first `parts.len()` columns into `out`, which is cleared first: a prefix of the index keys of exactly
    /// the rows with these columns.
    ///
    /// # Errors
    /// Too many parts, or one that does not fit its column.
    pub fn encode_parts(&self, schema: &Schema, parts: &[Datum], out: &mut Vec<u8>) -> Result<(), RowError> {
        if parts.len() > self.columns.len() {
            return Err(RowError::ColumnCount { expected: self.columns.len(), found: parts.len() });
        }
        out.clear();
        for (datum, &i) in parts.iter().zip(&self.columns) {
            let column = &schema.columns()[i];
            put_fitted(&datum.fit(column)?, column, column.nullable, out);
        }
        check_part(out)
    }

    /// Splits an index key into its columns' datums and the appended primary key (empty when there is none).
    ///
    /// # Errors
    /// [`RowError::Corrupt`].
    pub fn decode<'k>(&self, key: &'k [u8]) -> Result<(Vec<Datum>, &'k [u8]), RowError> {
        let mut rest = key;
        let mut datums = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let (column, tail) = split_column(rest, part.data_type, part.marked)?;
            datums.push(decode_column(column, part.data_type, part.marked)?);
            rest = tail;
        }
        let appended = !self.unique || datums.iter().any(Datum::is_null);
        if appended == rest.is_empty() {
            return Err(RowError::Corrupt { what: "index key with or without a primary key against its definition" });
        }
        Ok((datums, rest))
    }

    /// The positions of the index columns in the table.
    #[must_use]
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The index is unique.
    #[must_use]
    pub const fn unique(&self) -> bool {
        self.unique
    }
}

impl Part {
    /// Appends this column's key form; true when it is NULL.
    fn append(&self, schema: &Schema, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<bool, RowError> {
        let null = match self.place {
            Place::Key { .. } => None,
            Place::Fixed { null, .. } | Place::Variable { null, .. } => null,
        };
        if self.marked {
            let is_null = null.is_some_and(|bit| bit.is_set(value));
            out.push(if is_null { NULL_MARKER } else { VALUE_MARKER });
            if is_null {
                return Ok(true);
            }
        }
        match self.place {
            Place::Key { part, offset } => out.extend_from_slice(key_part(schema, key, part, offset)?),
            Place::Fixed { offset, .. } => self.append_fixed(&value[offset as usize..], out),
            Place::Variable { slot, null } => {
                let bytes = schema.layout().variable_slot(slot, null).get(value);
                if self.data_type == ColumnType::Bytea {
                    put_bytes(bytes, out);
                } else if bytes.contains(&0) {
                    return Err(RowError::Corrupt { what: "text holds a NUL" });
                } else {
                    out.extend_from_slice(bytes);
                    out.push(0);
                }
            }
        }
        Ok(false)
    }

    fn append_fixed(&self, from: &[u8], out: &mut Vec<u8>) {
        fn put<T: KeyScalar>(scalar: T, out: &mut Vec<u8>) {
            let mut bytes = [0; 16];
            scalar.put(&mut bytes);
            out.extend_from_slice(&bytes[..T::BYTES]);
        }
        let widened = self.data_type.key_physical() == Physical::I64;
        match self.data_type.physical() {
            Physical::Bool => put(bool::load(from), out),
            Physical::I16 => put(i16::load(from), out),
            Physical::I32 if widened => put(i64::from(i32::load(from)), out),
            Physical::I32 => put(i32::load(from), out),
            Physical::I64 => put(i64::load(from), out),
            Physical::I128 => put(i128::load(from), out),
            Physical::F32 => put(f32::load(from), out),
            Physical::F64 => put(f64::load(from), out),
            Physical::Text | Physical::Bytes => {}
        }
    }
}

/// The bytes of one column of a primary key.
fn key_part<'k>(schema: &Schema, key: &'k [u8], part: u32, offset: Option<u32>) -> Result<&'k [u8], RowError> {
    let type_of = |p: usize| schema.columns()[schema.key()[p]].data_type;
    let part = part as usize;
    let mut rest = key;
    if let Some(offset) = offset {
        rest = key.get(offset as usize..).ok_or(RowError::Corrupt { what: "key is too short" })?;
    } else {
        for before in 0..part {
            rest = split_column(rest, type_of(before), false)?.1;
        }
    }
    Ok(split_column(rest, type_of(part), false)?.0)
}
