//! Scans of another node's columns by an access path that copies, for threads that have no worker. The thread of far reads runs the access path, and keeps the
//! passing rows of each segment until all segments of the scan have been read. A scan should therefore have few segments. The caller decodes them while the
//! next scan runs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::node::far_reads::FarTools;
use crate::protocol::far_columns::FarColumns;
use farhold_fabric::{Batch, Endpoint, FabricError};
use farhold_scan::access_path::{
    self, AccessPath, Aggregate, Counters, FarSegment, Found, Reader, Scan, ScanError, Settings, Value, Values, Wanted,
};
use farhold_scan::kernels::Bits;
use farhold_scan::model::PathKind;
use farhold_scan::predicate::Predicate;
use farhold_store::column::copy::FarViewSegment;

/// Bytes of the read that measures the latency.
const PROBE_BYTES: usize = 8;

/// The definition of a scan.
#[derive(Clone, Debug)]
pub struct FarScan {
    /// The columns of another node.
    pub columns: Arc<FarColumns>,
    /// Their table.
    pub table: Table,
    /// Some of their segments, by number.
    pub segments: Vec<usize>,
    /// Which rows pass.
    pub predicate: Arc<Predicate>,
    /// What is wanted of them.
    pub wanted: FarWanted,
    /// The access path.
    pub path: &'static AccessPath,
    /// Its tunable values.
    pub settings: Settings,
    /// The caller sets this if it no longer needs the result, which is then empty. A home that scans receives no further request.
    pub is_given_up: Arc<AtomicBool>,
}

/// The wanted values or aggregates of the rows that pass.
#[derive(Clone, Debug)]
pub enum FarWanted {
    /// The values of these columns. They include rows that have ended at the snapshot ([`FarViewSegment::select`]).
    Columns(Arc<[usize]>),
    /// For each segment, aggregates over its rows that pass and have not ended.
    Aggregates(Arc<[Aggregate]>),
}

/// The result of a scan.
#[derive(Clone, Debug, Default)]
pub struct FarScanned {
    /// The segments with passing rows, in order.
    pub segments: Vec<ScannedSegment>,
    /// Whether the home has scanned. With `pushdown` it may have refused, and then the segments were read.
    pub is_of_home: bool,
    /// Bytes that the fabric's instructions have moved for it: none if a mover copies, or the home scans.
    pub fabric_bytes: u64,
    /// How long a small read took just before, in nanoseconds.
    pub latency_ns: u64,
}

/// The passing rows of a segment.
#[derive(Clone, Debug)]
pub struct ScannedSegment {
    /// Its number in the columns.
    pub segment: usize,
    /// The rows that pass: one bit per row, one array of words per block. They include rows that have ended at the snapshot ([`FarViewSegment::select`]). Empty
    /// if aggregates are wanted.
    pub bits: Vec<Bits>,
    /// The number of rows that pass.
    pub passing: usize,
    /// One chunk per wanted column.
    pub chunks: Vec<Vec<u8>>,
    /// Whether the chunks have only the rows that pass, not all rows of the segment.
    pub is_of_passing: bool,
    /// The wanted aggregates, in order.
    pub aggregates: Vec<Value>,
}

/// Why a scan failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarScanError {
    /// The snapshot is no longer kept, or the node has no thread for the scan.
    #[error(transparent)]
    Txn(#[from] TxnError),
    /// The access path failed.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

impl FarScan {
    /// Begins the scan on the thread of far reads. The result arrives later. The scan ends within the fabric's time-outs.
    ///
    /// # Errors
    /// [`FarScanError::Txn`]: the thread could not be started.
    pub fn start(self) -> Result<Receiver<Result<FarScanned, FarScanError>>, FarScanError> {
        let (answer, answered) = channel();
        let node = self.columns.pin().snapshot().node().clone();
        node.far_reads.run(&node, Box::new(move |tools| Box::pin(self.answer(tools, answer))))?;
        Ok(answered)
    }

    /// If the caller has been dropped, the answer is lost.
    async fn answer(self, tools: FarTools<'_>, answer: Sender<Result<FarScanned, FarScanError>>) {
        let _ = answer.send(self.run(&tools).await);
    }

    async fn run(&self, tools: &FarTools<'_>) -> Result<FarScanned, FarScanError> {
        let FarTools { endpoint, mover, lines } = *tools;
        if self.is_given_up.load(Relaxed) {
            return Ok(FarScanned::default());
        }
        let latency_ns = self.probe(endpoint).await?;
        let all = self.columns.segments();
        let segments: Vec<FarSegment> = self.segments.iter().map(|number| self.far_segment(&all[*number])).collect();
        let snapshot = self.columns.pin().snapshot();
        let line = lines.line(self.table.id(), snapshot.epoch(), snapshot.configuration(), &self.is_given_up);
        let pinned = self.columns.pin();
        let reader = Reader { endpoint, pinned, mover, line: Some(&*line), settings: self.settings };
        let (schema, predicate) = (self.table.schema(), &*self.predicate);
        let wanted = match &self.wanted {
            FarWanted::Columns(columns) => Wanted::Columns(columns),
            FarWanted::Aggregates(aggregates) => Wanted::Aggregates(aggregates),
        };
        let scan = Scan { schema, segments: &segments, predicate, wanted };
        let mut scanned = FarScanned { latency_ns, ..FarScanned::default() };
        let found = &mut scanned.segments;
        let mut path = self.path.kind();
        let mut counters = self.scan_by(self.path, &reader, &scan, found).await;
        if self.is_given_up.load(Relaxed) {
            return Ok(FarScanned::default());
        }
        if path == PathKind::Pushdown && is_refused(&counters) {
            path = PathKind::Relaxed;
            // The home has merged these chunks, or is overloaded. The chunks can still be read.
            found.clear();
            counters = self.scan_by(reading(), &reader, &scan, found).await;
        }
        // The data counts only if the chunks were kept until now. If they were not, that may be the reason for an error.
        snapshot.check_leased(endpoint.handle())?;
        let counters = counters?;
        let is_moved = path == PathKind::Offload && mover.is_some() && self.columns.is_mapped();
        scanned.is_of_home = path == PathKind::Pushdown;
        scanned.fabric_bytes = if is_moved || scanned.is_of_home { 0 } else { counters.bytes_moved };
        Ok(scanned)
    }

    async fn scan_by<'a>(
        &self,
        path: &AccessPath,
        reader: &'a Reader<'a>,
        scan: &'a Scan<'a>,
        found: &mut Vec<ScannedSegment>,
    ) -> Result<Counters, ScanError> {
        let mut sink = |of: &Found<'_>| {
            found.push(ScannedSegment::of(of, self.segments[of.segment]));
            if self.is_given_up.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        path.scan(reader, scan, &mut sink).await
    }

    /// The time of a small read. The read also makes the endpoint notice another start of the home, which has another region.
    async fn probe(&self, endpoint: &Endpoint) -> Result<u64, FarScanError> {
        let first = self.segments.first().and_then(|number| self.columns.segments()[*number].chunks().first());
        let Some(first) = first else { return Ok(0) };
        let mut is_refreshed = false;
        loop {
            let mut batch = Batch::new();
            let since_ns = endpoint.handle().now_ns();
            batch.read(first.at, PROBE_BYTES.min(first.bytes as usize));
            match endpoint.submit(batch).await.all_done() {
                Ok(()) => return Ok(endpoint.handle().now_ns().saturating_sub(since_ns)),
                Err(FabricError::StaleKey { .. } | FabricError::NoSuchRegion { .. }) if !is_refreshed => {
                    is_refreshed = true;
                    let _ = endpoint.refresh(first.at.node(), first.at.region());
                }
                Err(error) => return Err(ScanError::from(error).into()),
            }
        }
    }

    /// The same with a chunk for each column of the table. In place of a column that the home has not sent, there is a chunk of another column, which is never
    /// read.
    fn far_segment(&self, segment: &FarViewSegment) -> FarSegment {
        let chunks = segment.chunks();
        let place = |column: usize| self.columns.place_of(column).unwrap_or(0);
        let far = |column: usize| chunks[place(column)];
        // The receiver of rows itself leaves out those that have ended.
        let ended = match &self.wanted {
            FarWanted::Columns(_) => Vec::new(),
            FarWanted::Aggregates(_) => segment.ended(),
        };
        let chunks = (0..self.table.schema().columns().len()).map(far).collect();
        FarSegment { rows: segment.rows(), chunks, ended }
    }
}

/// Whether the home does not scan, or not in time. Its memory can still be read.
fn is_refused(scanned: &Result<Counters, ScanError>) -> bool {
    use FabricError::{NodeUnavailable, Timeout, Unsupported};
    let refused = matches!(scanned, Err(ScanError::Refused(_) | ScanError::Unusable { .. }));
    refused || matches!(scanned, Err(ScanError::Fabric(Unsupported { .. } | NodeUnavailable { .. } | Timeout { .. })))
}

/// The path that can always be used.
fn reading() -> &'static AccessPath {
    access_path::by_name(PathKind::Relaxed.name()).expect("one of the access paths")
}

impl ScannedSegment {
    fn of(found: &Found<'_>, segment: usize) -> Self {
        let (chunks, is_of_passing, aggregates) = match found.values {
            Values::OfAll(chunks) => (chunks, false, &[][..]),
            Values::OfPassing(chunks) => (chunks, true, &[][..]),
            Values::Aggregates(aggregates) => (&[][..], true, aggregates),
        };
        Self {
            segment,
            bits: found.bits.to_vec(),
            passing: found.passing,
            chunks: chunks.iter().map(|chunk| chunk.as_bytes().to_vec()).collect(),
            is_of_passing,
            aggregates: aggregates.to_vec(),
        }
    }
}
