//! Runs of segments of other nodes. The thread of far reads copies them, and they are decoded here while the next run is copied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use arrow::error::ArrowError;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use farhold_fabric::FabricError;
use farhold_scan::access_path::ScanError;
use farhold_scan::kernels::Bits;
use farhold_scan::predicate::Predicate;
use farhold_store::column::copy::FarViewSegment;
use farhold_store::column::{BLOCK_ROWS, CHUNK_ROWS_MAX, Chunk};
use farhold_txn::{FarColumns, FarScan, FarScanError, FarScanned, FarWanted, NodeId, ScannedSegment, TxnError};

use super::decode::BatchDecoder;
use super::keys::KeySets;
use super::paths::{self, Meter, Queued};
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;
use crate::engine::error;
use crate::{SqlError, SqlState};

/// The segments and columns that a run reads.
pub(super) struct Run<'a> {
    pub(super) far: &'a Arc<FarColumns>,
    pub(super) segments: Range<usize>,
    pub(super) meter: &'a Meter,
}

/// The interval at which a thread that waits for a run checks whether its statement is cancelled.
const LOOK: Duration = Duration::from_millis(10);

/// The runs of one thread.
pub(super) struct FarRuns {
    /// The numbers of the parts that are being read: the next one, and the one after it. For some parts nothing has to be read.
    asked: VecDeque<(usize, Option<Asked>)>,
    current: Option<Decoding>,
    /// Query memory for runs that have been requested and not been decoded.
    room: Option<MemoryReservation>,
}

/// A run that is being read. It is cancelled when it is dropped.
pub(super) struct Asked {
    answer: Receiver<Result<FarScanned, FarScanError>>,
    is_given_up: Arc<AtomicBool>,
    /// Bytes that its result may have.
    pub(super) bytes: usize,
    _queued: Queued,
}

/// A request for a run.
pub(super) struct Wish<'a> {
    pub(super) far: &'a Arc<FarColumns>,
    pub(super) segments: Vec<usize>,
    pub(super) table: &'a TableInfo,
    pub(super) predicate: &'a Arc<Predicate>,
    pub(super) wanted: FarWanted,
    pub(super) meter: &'a Meter,
    /// Bytes that its result may have.
    pub(super) bytes: usize,
}

impl Asked {
    /// Asks the thread of far reads.
    pub(super) fn start(wish: Wish<'_>) -> Result<Self> {
        let Wish { far, segments, table, predicate, wanted, meter, bytes } = wish;
        let path = paths::copying(meter.choice.path);
        let path = path.ok_or_else(|| DataFusionError::Internal("a run by a path that does not copy".to_owned()))?;
        let is_given_up = Arc::new(AtomicBool::new(false));
        let queued = meter.paths.queue(segments.iter().map(|number| far.segments()[*number].bytes()).sum());
        let scan = FarScan {
            columns: Arc::clone(far),
            table: table.table.clone(),
            segments,
            predicate: Arc::clone(predicate),
            wanted,
            path,
            settings: meter.paths.settings,
            is_given_up: Arc::clone(&is_given_up),
        };
        let answer = scan.start().map_err(|error| failed(error, meter.node))?;
        Ok(Self { answer, is_given_up, bytes, _queued: queued })
    }

    /// Waits for the result, or until the statement is cancelled.
    pub(super) fn wait(&self, meter: &Meter, cancel: &CancelHandle) -> Result<FarScanned> {
        let node = meter.node;
        let gone = || FarScanError::Txn(TxnError::NodeUnavailable { node, committed: false });
        let scanned = loop {
            match self.answer.recv_timeout(LOOK) {
                Ok(scanned) => break scanned,
                Err(RecvTimeoutError::Disconnected) => break Err(gone()),
                Err(RecvTimeoutError::Timeout) => {
                    cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
                }
            }
        };
        let scanned = scanned.map_err(|error| failed(error, node))?;
        meter.paths.measured(node, scanned.latency_ns, scanned.fabric_bytes);
        Ok(scanned)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.is_given_up.store(true, Relaxed);
    }
}

/// A run that has been read, and how far it has been decoded.
struct Decoding {
    scanned: FarScanned,
    segment: usize,
    block: usize,
    bytes: usize,
}

impl FarRuns {
    /// `room`: the reservation that counts their memory.
    pub(super) fn new(room: Option<MemoryReservation>) -> Self {
        Self { asked: VecDeque::new(), current: None, room }
    }

    /// Begins to read a part, unless it is being read already. A part that is not `needed` yet is not read if there is no memory for it. Returns the number of
    /// segments that are skipped because no row of them can pass.
    pub(super) fn ask(
        &mut self,
        number: usize,
        is_needed: bool,
        run: &Run<'_>,
        table: &TableInfo,
        predicate: &Arc<Predicate>,
        columns: &Arc<[usize]>,
    ) -> Result<usize> {
        if self.asked.iter().any(|(asked, _)| *asked == number) {
            return Ok(0);
        }
        let (far, all) = (run.far, run.segments.len());
        let may_pass = |number: &usize| far.may_pass(*number, table.schema(), predicate);
        let segments: Vec<usize> = run.segments.clone().filter(may_pass).collect();
        let skipped = all - segments.len();
        if segments.is_empty() {
            self.asked.push_back((number, None));
            return Ok(skipped);
        }
        let bytes = columns.iter().map(|column| bytes_of(far, &segments, *column)).sum::<u64>() as usize;
        if let Some(Err(error)) = self.room.as_ref().map(|room| room.try_grow(bytes)) {
            return if is_needed { Err(error) } else { Ok(0) };
        }
        let (meter, wanted) = (run.meter, FarWanted::Columns(Arc::clone(columns)));
        let asked = Asked::start(Wish { far, segments, table, predicate, wanted, meter, bytes })?;
        self.asked.push_back((number, Some(asked)));
        Ok(skipped)
    }

    /// Whether a run has rows that have not been decoded yet.
    pub(super) fn is_decoding(&self) -> bool {
        self.current.is_some()
    }

    /// Waits for the first requested run.
    pub(super) fn receive(&mut self, far: &FarColumns, meter: &Meter, cancel: &CancelHandle) -> Result<()> {
        let asked = self.asked.pop_front().map(|(_, asked)| asked);
        let asked = asked.ok_or_else(|| DataFusionError::Internal("no run was asked for".to_owned()))?;
        let Some(asked) = asked else { return Ok(()) };
        let mut scanned = asked.wait(meter, cancel)?;
        for found in &mut scanned.segments {
            found.bits = without_ended(found, &far.segments()[found.segment]);
        }
        self.current = Some(Decoding { scanned, segment: 0, block: 0, bytes: asked.bytes });
        Ok(())
    }

    /// Decodes until the batch is full; returns whether the run has more.
    pub(super) fn decode(
        &mut self,
        far: &FarColumns,
        table: &TableInfo,
        columns: &[usize],
        keys: &mut KeySets,
        decoder: &mut BatchDecoder,
    ) -> Result<bool> {
        let Some(at) = &mut self.current else { return Ok(false) };
        while let Some(found) = at.scanned.segments.get(at.segment) {
            if decoder.is_full() {
                return Ok(true);
            }
            let segment = &far.segments()[found.segment];
            let chunks = open(found, segment, table, columns)?;
            let blocks = found.bits.len();
            while at.block < blocks && !decoder.is_full() {
                let mut bits = found.bits[at.block];
                keys.select(&chunks, at.block, &mut bits);
                if bits.iter().any(|word| *word != 0) {
                    decoder.append_block(&chunks, at.block, &bits);
                }
                at.block += 1;
            }
            if at.block < blocks {
                return Ok(true);
            }
            (at.segment, at.block) = (at.segment + 1, 0);
        }
        if let (Some(at), Some(room)) = (self.current.take(), &self.room) {
            room.shrink(at.bytes);
        }
        Ok(false)
    }
}

/// Bytes of a column of some segments.
pub(super) fn bytes_of(far: &FarColumns, segments: &[usize], column: usize) -> u64 {
    let Some(place) = far.place_of(column) else { return 0 };
    segments.iter().map(|number| u64::from(far.segments()[*number].chunks()[place].bytes)).sum()
}

/// The rows of the chunks that pass and have not ended: one bit for each row of the chunks, one array of words per block.
fn without_ended(found: &ScannedSegment, segment: &FarViewSegment) -> Vec<Bits> {
    let mut left = found.bits.clone();
    left.iter_mut().enumerate().for_each(|(block, bits)| segment.select(block, bits));
    if !found.is_of_passing {
        return left;
    }
    // The chunks contain only the rows that pass.
    let mut kept = vec![Bits::default(); found.passing.div_ceil(BLOCK_ROWS)];
    let mut place = 0;
    for (passing, left) in found.bits.iter().zip(&left) {
        for (passing, left) in passing.iter().zip(left) {
            let mut rest = *passing;
            while rest != 0 {
                if left >> rest.trailing_zeros() & 1 == 1 {
                    kept[place / BLOCK_ROWS][place % BLOCK_ROWS / 64] |= 1 << (place % 64);
                }
                rest &= rest - 1;
                place += 1;
            }
        }
    }
    kept
}

/// A chunk for each column of the table. In place of a column that was not requested, there is a chunk of another column.
fn open<'a>(
    found: &'a ScannedSegment,
    segment: &FarViewSegment,
    table: &TableInfo,
    columns: &[usize],
) -> Result<Vec<Chunk<'a>>> {
    let rows = if found.is_of_passing { found.passing } else { segment.rows() };
    debug_assert!(rows <= CHUNK_ROWS_MAX);
    let types = table.schema().columns();
    let mut all: Vec<Chunk<'a>> = Vec::new();
    for (column, bytes) in columns.iter().zip(&found.chunks) {
        let chunk = Chunk::open_for(types[*column].data_type, rows, bytes)
            .map_err(|error| DataFusionError::ArrowError(Box::new(ArrowError::ParseError(error.to_string())), None))?;
        all.resize(all.len().max(types.len()), chunk);
        all[*column] = chunk;
    }
    Ok(all)
}

/// A failed scan, as an error of the statement. If another attempt may succeed, the error asks for a retry.
fn failed(error: FarScanError, node: NodeId) -> DataFusionError {
    let error = match error {
        FarScanError::Txn(error) => error::from_txn(&error),
        // Another start of the node has other memory, and a pin that is no longer valid keeps nothing.
        FarScanError::Scan(ScanError::Fabric(FabricError::StaleKey { .. }) | ScanError::Segment { .. }) => {
            error::from_txn(&TxnError::Recovering { node })
        }
        FarScanError::Scan(ScanError::Fabric(FabricError::NodeUnavailable { .. } | FabricError::Timeout { .. })) => {
            error::from_txn(&TxnError::NodeUnavailable { node, committed: false })
        }
        FarScanError::Scan(error @ ScanError::Unusable { .. }) => {
            SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, error.to_string())
        }
        FarScanError::Scan(error @ ScanError::Fabric(_)) => SqlError::internal(error.to_string()),
        FarScanError::Scan(error) => SqlError::new(SqlState::DATA_CORRUPTED, error.to_string()),
    };
    DataFusionError::External(Box::new(error))
}
