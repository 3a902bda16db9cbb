//! Gathers rows into batches.
//!
//! Arrow's coalescer gathers a fixed number of rows, however long they are, and no memory pool counts them: 8192 rows
//! of 60 KB are half a gigabyte. Here a batch also ends with the row that brings it to a number of bytes.

use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::blocks::batch_bytes;

/// See the module.
#[derive(Debug)]
pub struct Batches {
    coalescer: BatchCoalescer,
    bytes_max: usize,
    /// Bytes of the rows that are not a batch yet.
    bytes: usize,
}

impl Batches {
    /// Batches of `rows` rows, or of fewer rows that have `bytes_max` bytes. A batch of more than half as many rows is
    /// handed on as it is.
    pub fn new(schema: SchemaRef, rows: usize, bytes_max: usize) -> Self {
        let coalescer = BatchCoalescer::new(schema, rows).with_biggest_coalesce_batch_size(Some(rows / 2));
        Self { coalescer, bytes_max, bytes: 0 }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// Rows of another schema.
    pub fn push(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        let bytes = batch_bytes(&batch) as usize;
        self.coalescer.push_batch(batch)?;
        self.bytes = if self.coalescer.has_completed_batch() { 0 } else { self.bytes + bytes };
        if self.bytes >= self.bytes_max {
            self.finish()?;
        }
        Ok(())
    }

    /// Makes a batch from the remaining rows.
    ///
    /// # Errors
    /// Those of Arrow's coalescer.
    pub fn finish(&mut self) -> Result<(), ArrowError> {
        self.bytes = 0;
        self.coalescer.finish_buffered_batch()
    }

    /// The next batch that is full, or that [`Self::finish`] has made.
    pub fn next_full(&mut self) -> Option<RecordBatch> {
        self.coalescer.next_completed_batch()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringViewArray};

    use super::*;

    fn batch(texts: &[String]) -> RecordBatch {
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
        RecordBatch::try_from_iter([("t", texts)]).unwrap()
    }

    #[test]
    fn a_batch_ends_with_the_row_that_brings_it_to_its_bytes() {
        let long = batch(&["x".repeat(1 << 20)]);
        let mut batches = Batches::new(long.schema(), 100, 2 << 20);
        let mut rows = Vec::new();
        for _ in 0..5 {
            batches.push(long.clone()).unwrap();
            rows.extend(std::iter::from_fn(|| batches.next_full()).map(|batch| batch.num_rows()));
        }
        batches.finish().unwrap();
        rows.extend(std::iter::from_fn(|| batches.next_full()).map(|batch| batch.num_rows()));
        assert_eq!(rows, [2, 2, 1]);
        // A batch of short rows has the wanted number of rows.
        let short = batch(&vec!["x".to_owned(); 40]);
        for _ in 0..5 {
            batches.push(short.clone()).unwrap();
        }
        assert_eq!(batches.next_full().map(|batch| batch.num_rows()), Some(100));
    }
}
