//! The execution state of one partition of a scan: which part comes next, and how its rows get into batches.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use farhold_scan::columns::ColumnFilter;
use farhold_scan::kernels::Bits;
use farhold_scan::model::PathKind;
use farhold_scan::predicate::Predicate;
use farhold_scan::rows::RowFilter;
use farhold_store::column::{BLOCK_ROWS, Chunk};
use farhold_txn::{PageTask, Snapshot, TxnError};

use super::super::access::{self, Access, Columns, Source, far_chunks};
use super::super::decode::BatchDecoder;
use super::super::far::{FarRuns, Run};
use super::super::keys::KeySets;
use super::super::paths::now;
use super::super::runtime::RuntimeFilters;
use super::SnapshotScan;
use super::metrics::PathMetrics;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;
use crate::engine::error;

/// The result of one turn of a partition.
pub(super) enum Turn {
    Batch(RecordBatch),
    /// No full batch yet: it goes on in the next turn.
    Pause,
    End,
}

/// The execution state of one partition.
pub(super) struct Part {
    decoder: BatchDecoder,
    /// The number of bytes to read from the start of each row's value.
    value_bytes: usize,
    room: Vec<u8>,
    scratch: Vec<u8>,
    snapshot: Arc<Snapshot>,
    table: Arc<TableInfo>,
    access: Access,
    /// The next part.
    next: usize,
    /// The next block of that part.
    block: usize,
    /// Runs of other nodes' segments.
    runs: FarRuns,
    reads_ahead: bool,
    /// The time that the part has taken so far.
    spent_ns: u64,
    /// For EXPLAIN ANALYZE.
    pub(super) metrics: Option<PathMetrics>,
    /// The conditions that rows must pass, for columns and for rows: the query's own predicate, and the filters that joins have published.
    predicate: Arc<Predicate>,
    filter: Arc<RowFilter>,
    of_query: Arc<Predicate>,
    columns: Arc<[usize]>,
    runtime: RuntimeFilters,
    keys: KeySets,
    step: usize,
    left: usize,
    cancel: CancelHandle,
}

impl Part {
    /// The state before the first turn. `room`: the reservation that counts the runs of other nodes' segments.
    pub(super) fn new(
        scan: &SnapshotScan,
        partition: usize,
        batch_rows: usize,
        snapshot: Arc<Snapshot>,
        room: Option<MemoryReservation>,
    ) -> Self {
        let decoder = BatchDecoder::new(&scan.table, &scan.columns, Arc::clone(&scan.schema), batch_rows);
        Self {
            value_bytes: decoder.value_bytes().max(scan.filter.value_bytes()),
            room: Vec::new(),
            scratch: Vec::new(),
            decoder,
            snapshot,
            table: Arc::clone(&scan.table),
            access: scan.access.clone(),
            block: 0,
            runs: FarRuns::new(room),
            reads_ahead: scan.limit.is_none(),
            spent_ns: 0,
            metrics: None,
            predicate: Arc::clone(&scan.predicate),
            next: partition,
            step: scan.properties.partitioning.partition_count(),
            filter: Arc::clone(&scan.filter),
            of_query: Arc::clone(&scan.predicate),
            columns: Arc::clone(&scan.columns),
            runtime: RuntimeFilters::new(Arc::clone(&scan.runtime)),
            keys: KeySets::default(),
            left: scan.limit.unwrap_or(usize::MAX),
            cancel: scan.cancel.clone(),
        }
    }

    /// Reads parts until a batch is full, and returns it; after `turn` at the end of a part.
    pub(super) fn take_turn(&mut self, turn: Duration) -> Result<Turn> {
        let since = now();
        while self.left > 0 && !self.decoder.is_full() {
            self.cancel.check().map_err(|e| DataFusionError::External(Box::new(e)))?;
            self.add_keys_of_joins()?;
            let has_more = match &self.access {
                Access::Rows { pages, .. } => self.read_pages(&Arc::clone(pages))?,
                Access::Columns(columns) => self.read_columns(&columns.clone())?,
            };
            if !has_more {
                break;
            }
            if since.elapsed() >= turn && !self.decoder.is_full() {
                return Ok(Turn::Pause);
            }
        }
        if self.decoder.rows() == 0 || self.left == 0 {
            return Ok(Turn::End);
        }
        let batch = self.decoder.finish()?;
        let kept = batch.num_rows().min(self.left);
        self.left -= kept;
        Ok(Turn::Batch(if kept < batch.num_rows() { batch.slice(0, kept) } else { batch }))
    }

    /// Adds the filters that joins have published since the last part.
    fn add_keys_of_joins(&mut self) -> Result<()> {
        let has_bounds = matches!(self.access, Access::Columns(_));
        let Some((filter, keys)) = self.runtime.refresh(&self.table, &self.columns, has_bounds)? else { return Ok(()) };
        let mut predicate = self.of_query.as_ref().clone();
        predicate.push_all(filter.predicate());
        self.keys = keys;
        self.filter = Arc::new(RowFilter::new(self.table.schema(), &predicate));
        self.value_bytes = self.value_bytes.max(self.filter.value_bytes());
        self.predicate = Arc::new(predicate);
        self.access.shorten();
        Ok(())
    }

    /// Reads the next page task; returns false if there is none. A task has only a few pages, so a batch exceeds its
    /// capacity only slightly.
    fn read_pages(&mut self, pages: &[PageTask]) -> Result<bool> {
        let Some(task) = pages.get(self.next) else { return Ok(false) };
        self.next += self.step;
        self.read_task(task)?;
        Ok(true)
    }

    fn read_task(&mut self, task: &PageTask) -> Result<()> {
        let (decoder, filter, scratch) = (&mut self.decoder, &self.filter, &mut self.scratch);
        let (snapshot, bytes, room) = (&self.snapshot, self.value_bytes, &mut self.room);
        let scanned = if filter.is_empty() {
            snapshot.scan_page_part(task, bytes, room, &mut |key, value| decoder.append(key, value))
        } else {
            snapshot.scan_page_part(task, bytes, room, &mut |key, value| {
                if filter.matches(key, value, scratch) {
                    decoder.append(key, value);
                }
            })
        };
        scanned.map_err(|error| failed(&error))
    }

    /// Reads blocks of the next part until the batch is full or the part ends; returns false if there is no part.
    fn read_columns(&mut self, columns: &Columns) -> Result<bool> {
        let Some(part) = columns.parts.get(self.next) else { return Ok(false) };
        let since = now();
        let (filter, scratch) = (&self.filter, &mut self.scratch);
        let mut has_more = false;
        match &part.source {
            Source::Pages(task) => self.read_task(task)?,
            Source::Delta(view, rows) => view.visit_delta(rows.clone(), &mut |key, value| {
                if filter.matches(key, value, scratch) {
                    self.decoder.append(key, value);
                }
            }),
            Source::FarDelta(far, rows) => {
                for (key, value) in far.view().delta_part(rows.clone()) {
                    if filter.matches(key, value, scratch) {
                        self.decoder.append(key, value);
                    }
                }
            }
            Source::Segment(view, segment) => {
                let chunks = segment.chunks();
                let predicate = Arc::clone(&self.predicate);
                let filter = ColumnFilter::new(self.table.schema(), &predicate, &chunks);
                let select = |block, bits: &mut Bits| view.select(segment, block, bits);
                has_more = self.read_blocks(segment.rows(), &chunks, &filter, select);
            }
            Source::FarSegment(far, number)
                if self.block == 0 && !far.may_pass(*number, self.table.schema(), &self.predicate) =>
            {
                self.count_skipped(1);
            }
            Source::FarSegment(far, number) => {
                let segment = &far.segments()[*number];
                let table = Arc::clone(&self.table);
                let chunks = far_chunks(far, segment, &table).map_err(|error| failed(&error))?;
                let predicate = Arc::clone(&self.predicate);
                let filter = ColumnFilter::of_some(table.schema(), &predicate, segment.rows(), chunks.of_some());
                let select = |block, bits: &mut Bits| segment.select(block, bits);
                has_more = self.read_blocks(segment.rows(), &chunks.all, &filter, select);
                // The data that was read counts only if it was kept until now.
                far.pin().check().map_err(|error| failed(&error))?;
            }
            Source::FarRun(far, _) => {
                if !self.runs.is_decoding() {
                    self.read_run(columns)?;
                }
                has_more = self.runs.decode(far, &self.table, &self.columns, &mut self.keys, &mut self.decoder)?;
            }
        }
        self.spent_ns += since.elapsed().as_nanos() as u64;
        if !has_more {
            self.next += self.step;
            self.block = 0;
            let ns = std::mem::take(&mut self.spent_ns);
            let path = match (&part.meter, &part.source) {
                (Some(meter), Source::Pages(_) | Source::FarSegment(..) | Source::FarRun(..)) => {
                    meter.add(ns);
                    meter.choice.path
                }
                (_, Source::Pages(_)) => PathKind::Rows,
                _ => PathKind::Direct,
            };
            if let Some(metrics) = &mut self.metrics {
                metrics.add_time(path, ns);
            }
        }
        Ok(true)
    }

    /// Waits for the next part, which is a run, and starts the one after it. A limit may be reached before that.
    fn read_run(&mut self, columns: &Columns) -> Result<()> {
        let ahead = self.reads_ahead.then_some(self.next + self.step);
        for number in iter::once(self.next).chain(ahead) {
            let Some(access::Part { source: Source::FarRun(far, segments), meter: Some(meter) }) =
                columns.parts.get(number)
            else {
                continue;
            };
            let run = Run { far, segments: segments.clone(), meter };
            let is_needed = number == self.next;
            let skipped = self.runs.ask(number, is_needed, &run, &self.table, &self.predicate, &self.columns)?;
            self.count_skipped(skipped);
        }
        match columns.parts.get(self.next) {
            Some(access::Part { source: Source::FarRun(far, _), meter: Some(meter) }) => {
                self.runs.receive(far, meter, &self.cancel)
            }
            _ => Ok(()),
        }
    }

    fn count_skipped(&mut self, segments: usize) {
        if let Some(metrics) = self.metrics.as_mut().filter(|_| segments > 0) {
            metrics.add_skipped(segments);
        }
    }

    /// Reads the next blocks of a segment until the batch is full; returns whether some are left.
    fn read_blocks(
        &mut self,
        rows: usize,
        chunks: &[Chunk<'_>],
        filter: &ColumnFilter<'_>,
        select: impl Fn(usize, &mut Bits),
    ) -> bool {
        let blocks = rows.div_ceil(BLOCK_ROWS);
        while self.block < blocks && !self.decoder.is_full() {
            let mut bits = [0; BLOCK_ROWS / 64];
            filter.select(self.block, &mut bits);
            select(self.block, &mut bits);
            self.keys.select(chunks, self.block, &mut bits);
            if bits.iter().any(|word| *word != 0) {
                self.decoder.append_block(chunks, self.block, &bits);
            }
            self.block += 1;
        }
        self.block < blocks
    }
}

fn failed(error: &TxnError) -> DataFusionError {
    DataFusionError::External(Box::new(error::from_txn(error)))
}
