//! Rows on the wire: `RowDescription`, and `DataRow` from datums or Arrow batches.

mod batch;

pub use batch::BatchEncoder;

use crate::engine::{ColumnType, Datum, OutputColumn};

use super::wire::backend::{Open, Output};
use super::wire::frontend::{Format, Formats};
use crate::error::{SqlError, SqlState};
use crate::value::{self, Zone, binary, oid};

/// The size limit of a `DataRow`, as in PostgreSQL: the protocol's lengths are signed. It is small in this crate's own
/// tests, so that reaching it is cheap.
const ROW_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { (1 << 30) - 1 };

/// The columns of a result, described for the wire.
#[derive(Debug)]
pub struct Shape {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: String,
    data_type: ColumnType,
    oid: u32,
    size: i16,
    modifier: i32,
}

impl Shape {
    /// The shape of `columns`.
    pub fn new(columns: &[OutputColumn]) -> Self {
        let columns = columns
            .iter()
            .map(|column| {
                let oid = batch::wire_type(column);
                let modifier = if oid == oid::of(column.data_type) { oid::modifier_of(column.data_type) } else { -1 };
                Column {
                    name: column.name.clone(),
                    data_type: column.data_type,
                    oid,
                    size: oid::size_of(oid),
                    modifier,
                }
            })
            .collect();
        Self { columns }
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Writes `RowDescription`. A statement's formats are not known before Bind, and are given as text.
    pub fn describe(&self, formats: Formats<'_>, output: &mut Output) {
        let message = output.open(b'T');
        output.count(self.columns.len());
        for (index, column) in self.columns.iter().enumerate() {
            output.c_string(&column.name);
            output.u32(0); // the table: not reported
            output.i16(0); // its column
            output.u32(column.oid);
            output.i16(column.size);
            output.i32(column.modifier);
            output.i16(formats.of(index).code());
        }
        output.close(&message);
    }

    /// Writes one row of datums, with timestamps in the session's `zone`.
    ///
    /// # Errors
    /// 54000 if the row is longer than a message may be; then it leaves nothing in the output.
    pub fn put_row(
        &self,
        row: &[Datum],
        formats: Formats<'_>,
        zone: Zone,
        output: &mut Output,
    ) -> Result<(), SqlError> {
        debug_assert_eq!(row.len(), self.columns.len());
        let message = output.open(b'D');
        output.count(row.len());
        for (index, (datum, column)) in row.iter().zip(&self.columns).enumerate() {
            if datum.is_null() {
                output.i32(-1);
                continue;
            }
            put_value(&message, output, |out| {
                match formats.of(index) {
                    Format::Text => value::put(datum, column.data_type, zone, out),
                    Format::Binary => binary::put(datum, column.data_type, out),
                }
                Ok(())
            })?;
        }
        output.close(&message);
        Ok(())
    }
}

fn too_long() -> SqlError {
    SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("a row of more than {ROW_BYTES_MAX} bytes cannot be sent"))
}

/// Writes a value of a row. If that makes the row too long, the whole row is removed.
fn put_value(
    message: &Open,
    output: &mut Output,
    put: impl FnOnce(&mut Vec<u8>) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    let written = put_with_length(output.buffer(), put);
    if written.is_ok() && output.length_of(message) <= ROW_BYTES_MAX {
        return Ok(());
    }
    output.drop_unfinished();
    written.and_then(|()| Err(too_long()))
}

/// Writes a value after its length. A value's text may be longer than the protocol's lengths can express.
fn put_with_length(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> Result<(), SqlError>) -> Result<(), SqlError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out)?;
    let length = i32::try_from(out.len() - start - 4).map_err(|_| too_long())?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use arrow::datatypes::DataType;
    use std::sync::Arc;

    #[test]
    fn a_row_whose_value_cannot_be_written_leaves_nothing() {
        let mut output = Output::default();
        let message = output.open(b'D');
        output.count(1);
        let refused = put_value(&message, &mut output, |out| {
            out.push(1);
            put_with_length(out, |_| Err(too_long()))
        });
        assert_eq!((refused.unwrap_err().state.code(), output.bytes().len()), ("54000", 0));
    }

    #[test]
    fn a_row_that_is_too_long_is_an_error() {
        let column = |name: &str| OutputColumn {
            name: name.to_owned(),
            data_type: ColumnType::Text,
            arrow_type: DataType::Utf8,
        };
        let shape = Shape::new(&[column("a"), column("b")]);
        let mut output = Output::default();
        let text = |bytes: usize| "x".repeat(bytes);
        let datums = |bytes: usize| [Datum::Text(text(bytes)), Datum::Text(text(bytes))];
        shape.put_row(&datums(1000), Formats::TEXT, Zone::UTC, &mut output).unwrap();
        let before = output.bytes().len();
        let refused = shape.put_row(&datums(ROW_BYTES_MAX / 2), Formats::TEXT, Zone::UTC, &mut output).unwrap_err();
        assert_eq!((refused.state.code(), output.bytes().len()), ("54000", before));
        let array: ArrayRef = Arc::new(StringArray::from(vec![text(1000), text(ROW_BYTES_MAX)]));
        let batch = RecordBatch::try_from_iter([("a", array.clone()), ("b", array)]).unwrap();
        let mut encoder = BatchEncoder::new(&batch, Zone::UTC).unwrap();
        encoder.put_row(&shape, Formats::TEXT, Zone::UTC, &mut output).unwrap();
        assert_eq!(output.bytes().len(), 2 * before);
        assert_eq!(encoder.put_row(&shape, Formats::TEXT, Zone::UTC, &mut output).unwrap_err().state.code(), "54000");
        assert_eq!(output.bytes().len(), 2 * before);
    }
}
