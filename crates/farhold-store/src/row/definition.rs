//! A schema as bytes, for the catalog.
//!
//! ```text
//! 'F' │ version u8 │ columns u16 │ { name, type, nullable u8 }* │ key columns u16 │ u16* │ indexes u16 │ { name, unique u8, columns u16, u16* }*
//! name = length u8 │ UTF-8        type = tag u8 │ u32 parameter (CHAR, VARCHAR: length; DECIMAL: precision << 8 | scale; else none)
//! ```
//! All integers little-endian. A decoder that meets a version it does not know refuses it.

use super::{Column, ColumnType, RowError, Schema, SecondaryIndex, SecondaryKeys};

const MAGIC: u8 = b'F';
const VERSION: u8 = 1;

/// Appends `schema` and its `indexes` to `out`.
///
/// # Errors
/// [`RowError::InvalidSchema`] when an index does not fit the schema.
pub fn encode_definition(schema: &Schema, indexes: &[SecondaryIndex], out: &mut Vec<u8>) -> Result<(), RowError> {
    for index in indexes {
        SecondaryKeys::new(schema, index)?;
    }
    out.extend_from_slice(&[MAGIC, VERSION]);
    put_count(schema.columns().len(), out);
    for column in schema.columns() {
        put_name(&column.name, out);
        put_type(column.data_type, out);
        out.push(u8::from(column.nullable));
    }
    put_list(schema.key(), out);
    put_count(indexes.len(), out);
    for index in indexes {
        put_name(&index.name, out);
        out.push(u8::from(index.unique));
        put_list(&index.columns, out);
    }
    Ok(())
}

/// Reads what [`encode_definition`] wrote from the start of `bytes`; also gives the bytes behind it.
///
/// # Errors
/// [`RowError::Corrupt`] for bytes that are no definition, [`RowError::InvalidSchema`] for one that makes no sense.
pub fn decode_definition(bytes: &[u8]) -> Result<(Schema, Vec<SecondaryIndex>, &[u8]), RowError> {
    let mut from = Reader(bytes);
    if from.byte()? != MAGIC {
        return Err(RowError::Corrupt { what: "not a table definition" });
    }
    if from.byte()? != VERSION {
        return Err(RowError::Corrupt { what: "table definition of an unknown version" });
    }
    let count = from.count()?;
    let mut columns = Vec::new();
    for _ in 0..count {
        columns.push(Column { name: from.name()?, data_type: from.data_type()?, nullable: from.flag()? });
    }
    let schema = Schema::new(columns, from.list()?)?;
    let mut indexes = Vec::new();
    for _ in 0..from.count()? {
        let index = SecondaryIndex { name: from.name()?, unique: from.flag()?, columns: from.list()? };
        SecondaryKeys::new(&schema, &index)?;
        indexes.push(index);
    }
    Ok((schema, indexes, from.0))
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
}

fn put_list(list: &[usize], out: &mut Vec<u8>) {
    put_count(list.len(), out);
    for item in list {
        put_count(*item, out);
    }
}

fn put_name(name: &str, out: &mut Vec<u8>) {
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
}

fn put_type(data_type: ColumnType, out: &mut Vec<u8>) {
    let (tag, parameter) = match data_type {
        ColumnType::Boolean => (1, None),
        ColumnType::SmallInt => (2, None),
        ColumnType::Int => (3, None),
        ColumnType::BigInt => (4, None),
        ColumnType::Real => (5, None),
        ColumnType::Double => (6, None),
        ColumnType::Decimal { precision, scale } => (7, Some(u32::from(precision) << 8 | u32::from(scale))),
        ColumnType::Char(n) => (8, Some(n)),
        ColumnType::Varchar(n) => (9, Some(n)),
        ColumnType::Text => (10, None),
        ColumnType::Bytea => (11, None),
        ColumnType::Date => (12, None),
        ColumnType::Timestamp => (13, None),
        ColumnType::Timestamptz => (14, None),
    };
    out.push(tag);
    if let Some(parameter) = parameter {
        out.extend_from_slice(&parameter.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], RowError> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or(RowError::Corrupt { what: "table definition is cut off" })?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, RowError> {
        Ok(self.take(1)?[0])
    }

    fn flag(&mut self) -> Result<bool, RowError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RowError::Corrupt { what: "flag neither 0 nor 1" }),
        }
    }

    fn count(&mut self) -> Result<usize, RowError> {
        let bytes = self.take(2)?;
        Ok(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    }

    fn list(&mut self) -> Result<Vec<usize>, RowError> {
        let count = self.count()?;
        (0..count).map(|_| self.count()).collect()
    }

    fn name(&mut self) -> Result<String, RowError> {
        let len = usize::from(self.byte()?);
        let bytes = self.take(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| RowError::Corrupt { what: "name is not UTF-8" })
    }

    fn parameter(&mut self) -> Result<u32, RowError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn data_type(&mut self) -> Result<ColumnType, RowError> {
        Ok(match self.byte()? {
            1 => ColumnType::Boolean,
            2 => ColumnType::SmallInt,
            3 => ColumnType::Int,
            4 => ColumnType::BigInt,
            5 => ColumnType::Real,
            6 => ColumnType::Double,
            7 => {
                let [scale, precision, 0, 0] = self.parameter()?.to_le_bytes() else {
                    return Err(RowError::Corrupt { what: "decimal type of an impossible precision" });
                };
                ColumnType::Decimal { precision, scale }
            }
            8 => ColumnType::Char(self.parameter()?),
            9 => ColumnType::Varchar(self.parameter()?),
            10 => ColumnType::Text,
            11 => ColumnType::Bytea,
            12 => ColumnType::Date,
            13 => ColumnType::Timestamp,
            14 => ColumnType::Timestamptz,
            _ => return Err(RowError::Corrupt { what: "unknown column type" }),
        })
    }
}
