//! Rows of one side, held as batches. Row ids name them.

use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::{concat, concat_batches, interleave, take};
use arrow::datatypes::{DataType, SchemaRef};

use crate::pages::{LINE_BYTES, MAPPED_BYTES_MIN, PAGE_BYTES, Pages, buffer_of};
use crate::{JoinError, Run};

/// Batches; row `r` of batch `b` has the id `b << 32 | r`.
#[derive(Debug, Default)]
pub struct Blocks {
    batches: Vec<RecordBatch>,
    /// For each batch, the number of rows before it.
    starts: Vec<usize>,
    rows: usize,
    row_bytes_max: usize,
}

pub fn row_id(block: usize, row: usize) -> u64 {
    (block as u64) << 32 | row as u64
}

fn place(id: u64) -> (usize, usize) {
    ((id >> 32) as usize, (id & u64::from(u32::MAX)) as usize)
}

impl Blocks {
    pub fn push(&mut self, batch: RecordBatch) {
        self.starts.push(self.rows);
        self.rows += batch.num_rows();
        self.row_bytes_max = self.row_bytes_max.max(batch.columns().iter().map(value_bytes_max).sum());
        self.batches.push(batch);
    }

    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// An upper bound of a row's bytes.
    pub fn row_bytes_max(&self) -> usize {
        self.row_bytes_max
    }

    /// The row's number, counted over all batches.
    #[inline(always)]
    pub fn number(&self, id: u64) -> usize {
        let (block, row) = place(id);
        self.starts[block] + row
    }

    /// The ids in order, beginning with that of row number `from`.
    pub fn ids_from(&self, from: usize) -> impl Iterator<Item = u64> + '_ {
        let first = self.starts.partition_point(|&start| start <= from).saturating_sub(1);
        (first..self.batches.len()).flat_map(move |block| {
            let skipped = from.saturating_sub(self.starts[block]);
            (skipped..self.batches[block].num_rows()).map(move |row| row_id(block, row))
        })
    }

    /// The values of `columns` in the rows `ids`. There must be at least one row.
    pub fn gather(&self, ids: &[u64], columns: impl Iterator<Item = usize>) -> Result<Vec<ArrayRef>, JoinError> {
        if let [batch] = &self.batches[..] {
            if ids.len() == batch.num_rows() && ids.iter().zip(0..).all(|(&id, row)| id == row) {
                return Ok(columns.map(|column| batch.column(column).clone()).collect());
            }
            let rows = UInt32Array::from_iter_values(ids.iter().map(|&id| id as u32));
            return columns.map(|column| Ok(take(batch.column(column), &rows, None)?)).collect();
        }
        let places: Vec<(usize, usize)> = ids.iter().map(|&id| place(id)).collect();
        let gathered = columns.map(|column| {
            let arrays: Vec<&dyn Array> = self.batches.iter().map(|batch| batch.column(column).as_ref()).collect();
            Ok(interleave(&arrays, &places)?)
        });
        gathered.collect()
    }
}

/// A batch of `rows` rows, also if it has no column.
pub fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, JoinError> {
    Ok(RecordBatch::try_new_with_options(
        schema.clone(),
        columns,
        &RecordBatchOptions::new().with_row_count(Some(rows)),
    )?)
}

/// Bytes that a batch of its own would take, with half of its last page. Buffers shared with other slices count in
/// part.
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    let bytes = batch.columns().iter().map(|column| array_bytes(column) as u64 + COLUMN_BYTES).sum::<u64>() + 64;
    bytes + if bytes >= MAPPED_BYTES_MIN as u64 { PAGE_BYTES as u64 / 2 } else { 0 }
}

/// The bytes of an array beside its values: itself, the descriptions of its buffers, the allocator's overhead.
const COLUMN_BYTES: u64 = 256;

fn array_bytes(array: &ArrayRef) -> usize {
    let views = |bytes: usize| 16 * array.len() + array.len().div_ceil(8) + bytes;
    match array.data_type() {
        DataType::Utf8View => views(array.as_string_view().lengths().map(|bytes| bytes as usize).sum()),
        DataType::BinaryView => views(array.as_binary_view().lengths().map(|bytes| bytes as usize).sum()),
        _ => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

/// An upper bound of the bytes of one value.
fn value_bytes_max(array: &ArrayRef) -> usize {
    fn longest<O: arrow::array::OffsetSizeTrait>(offsets: &[O]) -> usize {
        offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_usize()).max().unwrap_or(0)
    }
    let kind = array.data_type();
    match kind {
        DataType::Utf8 => 4 + longest(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => 8 + longest(array.as_string::<i64>().value_offsets()),
        DataType::Binary => 4 + longest(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => 8 + longest(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => 16 + array.as_string_view().lengths().max().unwrap_or(0) as usize,
        DataType::BinaryView => 16 + array.as_binary_view().lengths().max().unwrap_or(0) as usize,
        DataType::Boolean | DataType::Null => 1,
        DataType::FixedSizeBinary(bytes) => *bytes as usize,
        // For nested values only this is known: a value is not longer than all together.
        _ => kind.primitive_width().unwrap_or_else(|| array_bytes(array)),
    }
}

/// These rows of a batch, as a batch that shares no buffer with it.
pub fn copy_rows(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, JoinError> {
    let numbers = UInt32Array::from(rows.to_vec());
    let copies = batch.columns().iter().map(|column| Ok(compact(&take(column, &numbers, None)?)));
    batch_of(batch.schema_ref(), copies.collect::<Result<_, JoinError>>()?, rows.len())
}

/// These rows of some batches, one after the other, as a batch that shares no buffer with them. `ranges` must not be
/// empty.
pub fn copy_ranges(ranges: &[(&RecordBatch, Range<usize>)]) -> Result<RecordBatch, JoinError> {
    if let [(batch, rows)] = ranges {
        // `concat` of a single array gives a slice of it, so the rows are gathered instead.
        let rows: Vec<u32> = (rows.start as u32..rows.end as u32).collect();
        return copy_rows(batch, &rows);
    }
    let schema = ranges[0].0.schema_ref();
    let copies = (0..schema.fields().len()).map(|column| {
        let slices = ranges.iter().map(|(batch, rows)| batch.column(column).slice(rows.start, rows.len()));
        let slices: Vec<ArrayRef> = slices.collect();
        Ok(compact(&concat(&slices.iter().map(AsRef::as_ref).collect::<Vec<_>>())?))
    });
    let copies = copies.collect::<Result<_, JoinError>>()?;
    batch_of(schema, copies, ranges.iter().map(|(_, rows)| rows.len()).sum())
}

/// Whether rows of several batches can be copied together for the price of their own bytes: a copy of values that refer
/// to others may include all of those.
pub fn copies_alone(schema: &SchemaRef) -> bool {
    let refers = |kind: &DataType| kind.is_nested() || matches!(kind, DataType::Dictionary(..));
    !schema.fields().iter().any(|field| refers(field.data_type()))
}

/// Gives views buffers of their own; otherwise they keep whole buffers alive.
fn compact(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        _ => array.clone(),
    }
}

/// The batch, for a holder that counts its [`batch_bytes`]: its views keep at most twice the bytes alive that they show.
#[cfg(feature = "datafusion")]
pub fn without_idle_bytes(batch: &RecordBatch) -> Result<RecordBatch, JoinError> {
    fn is_idle(buffers: &[Buffer], lengths: impl Iterator<Item = u32>) -> bool {
        buffers.iter().map(Buffer::len).sum::<usize>() > 2 * lengths.map(|bytes| bytes as usize).sum::<usize>()
    }
    let column = |column: &ArrayRef| {
        let is_idle = match column.data_type() {
            DataType::Utf8View => is_idle(column.as_string_view().data_buffers(), column.as_string_view().lengths()),
            DataType::BinaryView => is_idle(column.as_binary_view().data_buffers(), column.as_binary_view().lengths()),
            _ => false,
        };
        if is_idle { compact(column) } else { Arc::clone(column) }
    };
    batch_of(&batch.schema(), batch.columns().iter().map(column).collect(), batch.num_rows())
}

/// Neighbours as one batch, whose views have buffers of their own. `apart`: in pages of its own.
fn join(batches: &[RecordBatch], apart: bool) -> Result<RecordBatch, JoinError> {
    if apart {
        return pack(batches);
    }
    let joined = concat_batches(batches[0].schema_ref(), batches)?;
    batch_of(joined.schema_ref(), joined.columns().iter().map(compact).collect(), joined.num_rows())
}

/// Neighbours as one batch, in pages of its own, which return to the kernel with the batch. The allocator's arrays lie
/// among others, and what is freed between them stays with the process.
pub fn pack(batches: &[RecordBatch]) -> Result<RecordBatch, JoinError> {
    let joined = concat_batches(batches[0].schema_ref(), batches)?;
    let columns: Vec<ArrayData> = joined.columns().iter().map(|column| compact(column).to_data()).collect();
    let mut room = 0;
    for buffer in columns.iter().flat_map(buffers) {
        room += buffer.len().next_multiple_of(LINE_BYTES);
    }
    let mut pages = Pages::<u64>::apart(room / 8)?;
    let (to, mut start) = (pages.bytes_mut(), 0);
    for buffer in columns.iter().flat_map(buffers) {
        to[start..start + buffer.len()].copy_from_slice(buffer);
        start += buffer.len().next_multiple_of(LINE_BYTES);
    }
    let (all, mut start) = (buffer_of(pages, room), 0);
    let mut copy = |buffer: &Buffer| {
        let copy = all.slice_with_length(start, buffer.len());
        start += buffer.len().next_multiple_of(LINE_BYTES);
        copy
    };
    let columns = columns.iter().map(|data| {
        let copies = data.buffers().iter().map(&mut copy).collect();
        let nulls = data
            .nulls()
            .map(|nulls| NullBuffer::new(BooleanBuffer::new(copy(nulls.buffer()), nulls.offset(), nulls.len())));
        // SAFETY: buffers are replaced by equal ones, aligned to a cache line.
        make_array(unsafe { data.clone().into_builder().buffers(copies).nulls(nulls).build_unchecked() })
    });
    batch_of(joined.schema_ref(), columns.collect(), joined.num_rows())
}

/// A column's own buffers, without those of its children.
fn buffers(data: &ArrayData) -> impl Iterator<Item = &Buffer> {
    data.buffers().iter().chain(data.nulls().map(NullBuffer::buffer))
}

/// Splits a batch into slices of about `bytes` bytes each.
pub fn slices(batch: &RecordBatch, bytes: u64) -> impl Iterator<Item = RecordBatch> + '_ {
    let rows = batch.num_rows();
    let parts = (batch_bytes(batch) / bytes.max(1) + 1) as usize;
    let step = rows.div_ceil(parts).max(1);
    (0..rows).step_by(step).map(move |start| batch.slice(start, step.min(rows - start)))
}

/// Batches of about `bytes` bytes, made of neighbours. Their views have buffers of their own: a view into a buffer of
/// rows that are gone keeps all of it alive, and a batch that is gathered from many buffers refers to all of them.
pub fn merge(batches: Vec<RecordBatch>, bytes: u64, apart: bool, run: &Run) -> Result<Vec<RecordBatch>, JoinError> {
    let (mut groups, mut group_bytes) = (Vec::<Vec<RecordBatch>>::new(), u64::MAX);
    for batch in batches {
        let more = batch_bytes(&batch);
        if group_bytes.saturating_add(more) > bytes {
            groups.push(Vec::new());
            group_bytes = 0;
        }
        group_bytes += more;
        groups.last_mut().into_iter().for_each(|group| group.push(batch.clone()));
    }
    let groups: Vec<Mutex<Vec<RecordBatch>>> = groups.into_iter().map(Mutex::new).collect();
    run.on_tasks(groups.len(), |number| {
        run.cancel.check()?;
        let group = mem::take(&mut *groups[number].lock().unwrap_or_else(PoisonError::into_inner));
        match &group[..] {
            [one] => batch_of(one.schema_ref(), one.columns().iter().map(compact).collect(), one.num_rows()),
            _ => join(&group, apart),
        }
    })
}

/// All rows as one batch, whose views have buffers of their own. Each worker takes a column at a time; of a column of
/// numbers without nulls it takes some batches at a time.
pub fn one_block(batches: &[RecordBatch], run: &Run) -> Result<RecordBatch, JoinError> {
    let Some(first) = batches.first() else { return Err(JoinError::Invalid("no batch".into())) };
    let mut starts = vec![0];
    for batch in batches {
        starts.push(starts[starts.len() - 1] + batch.num_rows());
    }
    let rows = starts[batches.len()];
    let width = |column: usize| {
        let is_whole = batches.iter().all(|batch| batch.column(column).null_count() == 0);
        first.column(column).data_type().primitive_width().filter(|width| is_whole && rows * width >= BIG_COLUMN_BYTES)
    };
    let widths: Vec<Option<usize>> = (0..first.num_columns()).map(width).collect();
    let mut numbers = widths
        .iter()
        .map(|width| width.map(|width| Pages::<u64>::stale((rows * width).div_ceil(8), &run.pages)).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    let shared: Vec<_> = numbers.iter_mut().map(|pages| pages.as_mut().map(Pages::shared)).collect();
    let tasks: Vec<(usize, usize)> = (0..first.num_columns())
        .flat_map(|column| {
            let parts = if widths[column].is_some() { batches.len() } else { 1 };
            (0..parts).step_by(BATCHES_A_TASK).map(move |part| (column, part))
        })
        .collect();
    let others = run.on_tasks(tasks.len(), |task| {
        run.cancel.check()?;
        let (column, first) = tasks[task];
        let (Some(width), Some(to)) = (widths[column], shared[column]) else {
            let parts: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(column).as_ref()).collect();
            return Ok(Some(compact(&concat(&parts)?)));
        };
        for number in first..(first + BATCHES_A_TASK).min(batches.len()) {
            let data = batches[number].column(column).to_data();
            let values = &data.buffers()[0].as_slice()[data.offset() * width..][..data.len() * width];
            // SAFETY: the array has room for all rows, and the range of these rows belongs to no other batch.
            unsafe {
                let to = to.at(0).cast::<u8>().add(starts[number] * width);
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
            }
        }
        Ok(None)
    })?;
    let mut others = others.into_iter().flatten();
    let columns = numbers.into_iter().zip(&widths).enumerate().map(|(column, (pages, width))| match (pages, width) {
        (Some(pages), Some(width)) => {
            let kind = first.column(column).data_type().clone();
            let data = ArrayData::builder(kind).len(rows).add_buffer(buffer_of(pages, rows * width));
            Ok(make_array(data.build()?))
        }
        _ => others.next().ok_or_else(|| JoinError::Invalid("a column was not joined".into())),
    });
    batch_of(first.schema_ref(), columns.collect::<Result<_, JoinError>>()?, rows)
}

/// The size from which a column is worth pages of its own, of which it leaves less than a fifth empty.
const BIG_COLUMN_BYTES: usize = 8 << 20;
/// Batches that a worker copies at once.
const BATCHES_A_TASK: usize = 16;

/// Joins neighbouring batches until each has about `bytes` bytes, and hands them to `each`. The batches that it has
/// joined are freed. `apart`: in pages of their own.
pub fn coalesce(
    batches: impl Iterator<Item = RecordBatch>,
    bytes: u64,
    apart: bool,
    mut each: impl FnMut(RecordBatch) -> Result<(), JoinError>,
) -> Result<(), JoinError> {
    let (mut group, mut group_bytes) = (Vec::new(), 0);
    let mut flush = |group: &mut Vec<RecordBatch>| match group.len() {
        0 => Ok(()),
        1 => group.pop().map_or(Ok(()), &mut each),
        _ => {
            let joined = join(group, apart)?;
            group.clear();
            each(joined)
        }
    };
    for batch in batches {
        let more = batch_bytes(&batch);
        if group_bytes + more > bytes {
            flush(&mut group)?;
            group_bytes = 0;
        }
        group_bytes += more;
        group.push(batch);
    }
    flush(&mut group)
}

#[cfg(all(test, feature = "datafusion"))]
mod tests {
    use arrow::array::StringViewArray;

    use super::*;

    #[test]
    fn a_kept_batch_keeps_few_idle_bytes_alive() {
        let texts: Vec<String> = (0..1000).map(|number| format!("a text of some length, number {number}")).collect();
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
        let batch = RecordBatch::try_from_iter([("t", texts)]).unwrap();
        let alive = |batch: &RecordBatch| -> usize {
            batch.column(0).as_string_view().data_buffers().iter().map(Buffer::len).sum()
        };
        for (rows, is_copied) in [(900, false), (600, false), (400, true), (1, true), (0, true)] {
            let part = batch.slice(7, rows);
            let kept = without_idle_bytes(&part).unwrap();
            assert_eq!(kept, part);
            assert_eq!(alive(&kept) < alive(&batch), is_copied, "{rows}");
            assert!(!is_copied || alive(&kept) as u64 <= batch_bytes(&kept), "{rows}");
        }
    }
}
