//! The value codec: all columns that are not in the primary key.

use super::datum::Fitted;
use super::layout::{END_BYTES, FixedScalar, Place};
use super::schema::check_part;
use super::types::Physical;
use super::{ColumnType, Datum, RowError, Schema};

impl Schema {
    /// Encodes the value part of `row` (all columns of the table) into `out`, which is cleared first.
    ///
    /// # Errors
    /// The row does not fit the table.
    pub fn encode_value(&self, row: &[Datum], out: &mut Vec<u8>) -> Result<(), RowError> {
        self.check_count(row)?;
        let layout = self.layout();
        out.clear();
        out.resize(layout.fixed_bytes(), 0);
        for &i in layout.fixed() {
            let Place::Fixed { offset, null } = layout.place(i) else { continue };
            let to = &mut out[offset as usize..];
            match row[i].fit(&self.columns()[i])? {
                Fitted::Null => {
                    if let Some(bit) = null {
                        bit.set(out, true);
                    }
                }
                Fitted::Bool(v) => v.store(to),
                Fitted::I16(v) => v.store(to),
                Fitted::I32(v) => v.store(to),
                Fitted::I64(v) => v.store(to),
                Fitted::I128(v) => v.store(to),
                Fitted::F32(v) => v.store(to),
                Fitted::F64(v) => v.store(to),
                Fitted::Text(_) | Fitted::Bytes(_) => {}
            }
        }
        for (slot, &i) in layout.variable().iter().enumerate() {
            let Place::Variable { null, .. } = layout.place(i) else { continue };
            match row[i].fit(&self.columns()[i])? {
                Fitted::Text(v) => out.extend_from_slice(v.as_bytes()),
                Fitted::Bytes(v) => out.extend_from_slice(v),
                _ => {
                    if let Some(bit) = null {
                        bit.set(out, true);
                    }
                }
            }
            check_part(out)?;
            let end = u16::try_from(out.len() - layout.fixed_bytes()).unwrap_or(u16::MAX);
            let at = layout.ends_at() + slot * END_BYTES;
            out[at..at + END_BYTES].copy_from_slice(&end.to_le_bytes());
        }
        Ok(())
    }

    /// Checks that `value` has the shape of this table's values: long enough, its end offsets ascending and the last one
    /// at its end. The accessors of [`super::Layout`] do not panic on a value that passes.
    ///
    /// # Errors
    /// [`RowError::Corrupt`].
    pub fn check_value(&self, value: &[u8]) -> Result<(), RowError> {
        let layout = self.layout();
        let Some(variable) = value.len().checked_sub(layout.fixed_bytes()) else {
            return Err(RowError::Corrupt { what: "value is too short" });
        };
        let mut start = 0;
        for end in value[layout.ends_at()..layout.fixed_bytes()].chunks_exact(END_BYTES) {
            let end = usize::from(u16::from_le_bytes([end[0], end[1]]));
            if end < start {
                return Err(RowError::Corrupt { what: "end offsets of a value descend" });
            }
            start = end;
        }
        if start == variable {
            Ok(())
        } else {
            Err(RowError::Corrupt { what: "value is not as long as its end offsets say" })
        }
    }

    /// Puts the value's columns into `row`, which has one datum a column.
    pub(super) fn decode_value_columns(&self, value: &[u8], row: &mut [Datum]) -> Result<(), RowError> {
        self.check_value(value)?;
        for (i, datum) in row.iter_mut().enumerate() {
            if !matches!(self.layout().place(i), Place::Key { .. }) {
                *datum = self.decode_value_column_checked(value, i)?;
            }
        }
        Ok(())
    }

    /// The datum of column `column`, which must not be a key column, in `value`.
    ///
    /// # Errors
    /// [`RowError::Corrupt`].
    ///
    /// # Panics
    /// When there is no such column.
    pub fn decode_value_column(&self, value: &[u8], column: usize) -> Result<Datum, RowError> {
        self.check_value(value)?;
        self.decode_value_column_checked(value, column)
    }

    fn decode_value_column_checked(&self, value: &[u8], column: usize) -> Result<Datum, RowError> {
        let data_type = self.columns()[column].data_type;
        match self.layout().place(column) {
            Place::Key { .. } => Err(RowError::Corrupt { what: "a key column is not in the value" }),
            Place::Fixed { null: Some(bit), .. } | Place::Variable { null: Some(bit), .. } if bit.is_set(value) => {
                Ok(Datum::Null)
            }
            Place::Fixed { offset, .. } => decode_fixed(&value[offset as usize..], data_type),
            Place::Variable { slot, null } => {
                let bytes = self.layout().variable_slot(slot, null).get(value);
                if data_type == ColumnType::Bytea {
                    return Ok(Datum::Bytea(bytes.to_vec()));
                }
                let text = std::str::from_utf8(bytes).map_err(|_| RowError::Corrupt { what: "text is not UTF-8" })?;
                Ok(Datum::Text(text.to_owned()))
            }
        }
    }
}

fn decode_fixed(from: &[u8], data_type: ColumnType) -> Result<Datum, RowError> {
    let integer = match data_type.physical() {
        Physical::Bool => {
            return match from[0] {
                0 => Ok(Datum::Boolean(false)),
                1 => Ok(Datum::Boolean(true)),
                _ => Err(RowError::Corrupt { what: "boolean neither 0 nor 1" }),
            };
        }
        Physical::F32 => return Ok(Datum::Real(f32::load(from))),
        Physical::F64 => return Ok(Datum::Double(f64::load(from))),
        Physical::I16 => i128::from(i16::load(from)),
        Physical::I32 => i128::from(i32::load(from)),
        Physical::I64 => i128::from(i64::load(from)),
        Physical::I128 => i128::load(from),
        Physical::Text | Physical::Bytes => {
            return Err(RowError::Corrupt { what: "a variable column has no fixed place" });
        }
    };
    Datum::from_integer(integer, data_type)
        .ok_or(RowError::Corrupt { what: "number out of its column's range in a value" })
}
