//! Rows on the wire: `RowDescription`, and `DataRow` from datums and from Arrow batches.

mod batch;

pub use batch::BatchEncoder;

use crate::engine::{ColumnType, Datum, OutputColumn};

use super::value::{binary, oid, text};
use super::wire::backend::Output;
use super::wire::frontend::{Format, Formats};

/// The columns of a result as the wire knows them.
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

    /// How many columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Writes `RowDescription`. A statement's formats are not known before Bind; they are told as text.
    pub fn describe(&self, formats: Formats<'_>, output: &mut Output) {
        let message = output.open(b'T');
        output.count(self.columns.len());
        for (index, column) in self.columns.iter().enumerate() {
            output.c_string(&column.name);
            output.u32(0); // the table: not told
            output.i16(0); // its column
            output.u32(column.oid);
            output.i16(column.size);
            output.i32(column.modifier);
            output.i16(formats.of(index).code());
        }
        output.close(&message);
    }

    /// Writes one row of datums.
    pub fn put_row(&self, row: &[Datum], formats: Formats<'_>, output: &mut Output) {
        debug_assert_eq!(row.len(), self.columns.len());
        let message = output.open(b'D');
        output.count(row.len());
        for (index, (datum, column)) in row.iter().zip(&self.columns).enumerate() {
            if datum.is_null() {
                output.i32(-1);
                continue;
            }
            put_value(output.buffer(), |out| match formats.of(index) {
                Format::Text => text::put(datum, column.data_type, out),
                Format::Binary => binary::put(datum, column.data_type, out),
            });
        }
        output.close(&message);
    }
}

/// Writes a value with its length in front.
fn put_value(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out);
    let length = i32::try_from(out.len() - start - 4).expect("a value below 2 GiB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}
