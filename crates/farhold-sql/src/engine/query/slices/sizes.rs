//! Sizes of rows in bytes, and splitting of batches by size.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;

use super::super::BATCH_ROWS;
use super::BATCH_BYTES;
use super::exec::of_columns;

/// A batch for `unnest`, split so that each part makes about [`BATCH_BYTES`] and at most [`BATCH_ROWS`].
pub(super) struct Parts {
    batch: RecordBatch,
    lists: Arc<[usize]>,
    row: usize,
    /// Elements of the row that earlier parts contained.
    done: usize,
}

impl Parts {
    pub(super) fn new(batch: RecordBatch, lists: Arc<[usize]>) -> Self {
        Self { batch, lists, row: 0, done: 0 }
    }

    /// The number of rows that `unnest` makes of a row.
    fn elements(&self, row: usize) -> usize {
        self.lists.iter().map(|&n| list_length(self.batch.column(n), row)).max().unwrap_or(0)
    }

    /// The number of those rows that fit in a batch.
    fn elements_max(&self, row: usize) -> usize {
        (BATCH_BYTES / row_bytes(&self.batch, row, &self.lists)).clamp(1, BATCH_ROWS)
    }

    /// The next `elements` elements of a row, as a row.
    fn part(&self, elements: usize) -> Result<RecordBatch> {
        let end = self.done + elements;
        let part = |(n, column): (usize, &ArrayRef)| -> ArrayRef {
            if !self.lists.contains(&n) {
                return column.slice(self.row, 1);
            }
            match column.data_type() {
                DataType::LargeList(of) => part_of_list(column.as_list::<i64>(), of, self.row, self.done..end),
                DataType::List(of) => part_of_list(column.as_list::<i32>(), of, self.row, self.done..end),
                _ => column.slice(self.row, 1),
            }
        };
        let columns = self.batch.columns().iter().enumerate().map(part).collect();
        of_columns(&self.batch.schema(), columns, 1)
    }
}

impl Iterator for Parts {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        let first = self.row;
        // The filled fraction of a batch.
        let mut full = 0.0;
        while self.row < self.batch.num_rows() {
            let (elements, elements_max) = (self.elements(self.row), self.elements_max(self.row));
            if elements > elements_max {
                if first < self.row {
                    break;
                }
                let part = self.part(elements_max);
                self.done += elements_max;
                if self.done >= elements {
                    (self.row, self.done) = (self.row + 1, 0);
                }
                return Some(part);
            }
            full += elements as f64 / elements_max as f64;
            if full > 1.0 && first < self.row {
                break;
            }
            self.row += 1;
        }
        (first < self.row).then(|| Ok(self.batch.slice(first, self.row - first)))
    }
}

fn list_length(array: &ArrayRef, row: usize) -> usize {
    match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::LargeList(_) => array.as_list::<i64>().value_length(row) as usize,
        _ => array.as_list::<i32>().value_length(row) as usize,
    }
}

/// Some elements of a row's list, as a list; empty for NULL.
fn part_of_list<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    of: &FieldRef,
    row: usize,
    elements: Range<usize>,
) -> ArrayRef {
    let values = list.value(row);
    let length = if list.is_null(row) { 0 } else { values.len() };
    let (start, end) = (elements.start.min(length), elements.end.min(length));
    let offsets = OffsetBuffer::from_lengths([end - start]);
    Arc::new(GenericListArray::<O>::new(Arc::clone(of), offsets, values.slice(start, end - start), None))
}

/// The size of a row's values, except for some columns; at least 1.
pub(super) fn row_bytes(batch: &RecordBatch, row: usize, but: &[usize]) -> usize {
    let columns = batch.columns().iter().enumerate().filter(|(n, _)| !but.contains(n));
    columns.map(|(_, column)| value_bytes(column, row)).sum::<usize>().max(1)
}

/// An upper bound on the size of a batch's longest row; at least 1.
pub(in crate::engine::query) fn longest_row(batch: &RecordBatch) -> usize {
    let longest = |column: &ArrayRef| match column.data_type().primitive_width() {
        Some(bytes) => bytes,
        None => (0..column.len()).map(|row| value_bytes(column, row)).max().unwrap_or(0),
    };
    batch.columns().iter().map(longest).sum::<usize>().max(1)
}

pub(in crate::engine::query) fn value_bytes(array: &ArrayRef, row: usize) -> usize {
    /// The assumed size of other values.
    const BYTES: usize = 16;
    match array.data_type() {
        _ if array.is_null(row) => 1,
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as usize,
        DataType::Utf8View => array.as_string_view().value(row).len(),
        DataType::Binary => array.as_binary::<i32>().value_length(row) as usize,
        DataType::LargeBinary => array.as_binary::<i64>().value_length(row) as usize,
        DataType::BinaryView => array.as_binary_view().value(row).len(),
        DataType::List(_) => elements_bytes(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => elements_bytes(&array.as_list::<i64>().value(row)),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| value_bytes(column, row)).sum(),
        other => other.primitive_width().unwrap_or(BYTES),
    }
}

fn elements_bytes(elements: &ArrayRef) -> usize {
    match elements.data_type().primitive_width() {
        Some(bytes) => bytes * elements.len(),
        None => (0..elements.len()).map(|row| value_bytes(elements, row)).sum(),
    }
}
