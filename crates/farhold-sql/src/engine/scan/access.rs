//! The source of a scan: the rows of a table, or its column segments, and the path by which those of other nodes are read.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use farhold_scan::columns::ColumnFilter;
use farhold_scan::model::{Choice, PathKind};
use farhold_store::column::Chunk;
use farhold_store::column::copy::{ColumnView, DELTA_RUN_ROWS, FarViewSegment, Segment, ViewPart};
use farhold_txn::{FarColumns, NoColumns, NodeColumns, NodeId, PageTask, TxnError};

use super::filter::ScanFilter;
use super::paths::{FarPart, Grid, Meter, Paths};
use super::provider::TableAt;
use crate::SqlError;
use crate::engine::catalog::TableInfo;

/// How a scan reads the rows of a table at a snapshot.
#[derive(Clone)]
pub(crate) enum Access {
    /// Pages of rows, because there are no columns.
    Rows { pages: Arc<[PageTask]>, reason: NoColumns },
    /// Column segments, the rows that are in no segment yet, and the pages of nodes without columns.
    Columns(Columns),
}

/// The parts of a table that a scan reads, some of them as columns.
#[derive(Clone)]
pub(crate) struct Columns {
    /// Of all nodes.
    of: Arc<[(NodeId, Result<NodeColumns, NoColumns>)]>,
    /// Without the segments whose minimum and maximum values show that no row passes the filter.
    pub(super) parts: Arc<[Part]>,
    /// The number of segments left out.
    skipped: usize,
    /// Why the rows of some nodes are read from their pages, a reason a node.
    without: Arc<[NoColumns]>,
    /// Other nodes' columns, and the path by which they are read.
    far: Arc<[FarRead]>,
    /// The nodes that aggregate their segments, which are not in the scan.
    pub(super) aggregating: Arc<[NodeId]>,
}

/// Columns of another node that a scan reads.
#[derive(Clone)]
pub(super) struct FarRead {
    pub(super) far: Arc<FarColumns>,
    /// The segments that may have a row that passes.
    pub(super) segments: Arc<[usize]>,
    meter: Arc<Meter>,
}

impl FarRead {
    pub(super) fn choice(&self) -> &Choice {
        &self.meter.choice
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.meter.paths
    }
}

/// Columns that another node aggregates.
#[derive(Clone)]
pub(super) struct Aggregated {
    pub(super) far: Arc<FarColumns>,
    /// The segments of each request.
    pub(super) runs: Vec<Vec<usize>>,
    pub(super) meter: Arc<Meter>,
}

/// A part for one thread to read.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) source: Source,
    /// The meter of a scan of another node's columns, if the model has chosen a path for it.
    pub(super) meter: Option<Arc<Meter>>,
}

/// The rows that a part reads.
#[derive(Clone)]
pub(super) enum Source {
    /// Rows of a node.
    Pages(PageTask),
    /// The rows of a segment that belong to the view.
    Segment(Arc<ColumnView>, Arc<Segment>),
    /// Some rows that are in no segment.
    Delta(Arc<ColumnView>, Range<usize>),
    /// The number of a segment of another node, in place.
    FarSegment(Arc<FarColumns>, usize),
    /// Some segments of another node, by the meter's path, which copies.
    FarRun(Arc<FarColumns>, Range<usize>),
    /// Some rows of another node that are in no segment.
    FarDelta(Arc<FarColumns>, Range<usize>),
}

/// The number of segments that one part copies, and keeps until they are decoded, so that the path can run ahead.
const RUN_SEGMENTS: usize = 4;
/// The most bytes of all columns of such segments, if there is more than one segment.
const RUN_BYTES: u64 = 16 << 20;
/// Segments that another node aggregates at a time. If it refuses, all of them are read.
const AGGREGATED_SEGMENTS: usize = 16;

/// The columns and the filter of a scan, and its number of threads.
pub(super) struct Wanted<'a> {
    pub(super) filter: &'a ScanFilter,
    /// The columns that the query needs.
    pub(super) columns: &'a [usize],
    pub(super) threads: usize,
}

impl Access {
    /// No rows.
    pub(super) fn nothing() -> Self {
        Self::Rows { pages: Arc::from([]), reason: NoColumns::NotKept }
    }

    /// The parts of a table at a snapshot that may contain rows that pass the filter.
    pub(super) fn of(
        at: &TableAt,
        table: &Arc<TableInfo>,
        wanted: &Wanted<'_>,
        (paths, forced): (&Arc<Paths>, Option<PathKind>),
    ) -> Result<Self, SqlError> {
        let needed = wanted.filter.predicate().columns();
        let has_all = |found: &NodeColumns| wanted.columns.iter().chain(&needed).all(|column| found.has(*column));
        let (mut parts, mut reasons) = (Parts::default(), Vec::new());
        for (node, found) in at.columns.iter() {
            let pages = || at.pages.iter().filter(|task| task.node() == *node).cloned();
            let readable = match found {
                Ok(_) if forced == Some(PathKind::Rows) => Err(NoColumns::NotWanted),
                Ok(found) if !has_all(found) => Err(NoColumns::Lacking),
                Ok(found) => Ok(found),
                Err(reason) => Err(*reason),
            };
            match readable {
                Ok(NodeColumns::Own(view)) => parts.add_own(view, table, wanted.filter),
                Ok(NodeColumns::Far(far)) => {
                    let segments = may_pass(far, table, wanted.filter);
                    parts.skipped += far.segments().len() - segments.len();
                    let page_bytes = pages().map(|task| task.bytes()).sum();
                    let (columns, predicate) = (wanted.columns, wanted.filter.predicate());
                    let threads = wanted.threads.min(segments.len()).max(1);
                    let part = FarPart { far, segments: &segments, page_bytes, columns, predicate, threads };
                    let choice = paths.choose(part, forced)?;
                    paths.calibrate(far, || Grid {
                        table: Arc::clone(table),
                        far: Arc::clone(far),
                        pages: pages().collect(),
                    });
                    let meter = Meter::new(paths, choice, *node);
                    parts.add_far(far, &segments, meter, wanted, pages());
                }
                Err(reason) => {
                    parts.all.extend(pages().map(|task| Part { source: Source::Pages(task), meter: None }));
                    reasons.push(reason);
                }
            }
        }
        if reasons.len() == at.columns.len() {
            let reason = reasons.iter().find(|reason| **reason != NoColumns::NotKept).or(reasons.first());
            return Ok(Self::Rows { pages: Arc::clone(&at.pages), reason: *reason.unwrap_or(&NoColumns::NotKept) });
        }
        let Parts { all, skipped, far } = parts;
        let of = Arc::clone(&at.columns);
        let (parts, without, aggregating) = (all.into(), reasons.into(), Arc::from([]));
        Ok(Self::Columns(Columns { of, parts, skipped, without, far: far.into(), aggregating }))
    }

    /// Some segments of another node by a path, or the pages of their rows.
    pub(super) fn of_grid(
        paths: &Arc<Paths>,
        far: &Arc<FarColumns>,
        path: PathKind,
        segments: &[usize],
        pages: &[PageTask],
    ) -> Self {
        let sources = sources(far, path, segments, pages.iter().cloned());
        // The meter expects no part and therefore reports nothing: the grid measures its own times.
        let meter = Arc::new(Meter::new(paths, Choice::forced(path), far.pin().node()));
        let part = |source| Part { source, meter: Some(Arc::clone(&meter)) };
        let parts = sources.into_iter().map(part).collect();
        let (of, without, far, aggregating) = (Arc::from([]), Arc::from([]), Arc::from([]), Arc::from([]));
        Self::Columns(Columns { of, parts, skipped: 0, without, far, aggregating })
    }

    /// The number of page tasks or column parts.
    pub(super) fn part_count(&self) -> usize {
        match self {
            Self::Rows { pages, .. } => pages.len(),
            Self::Columns(columns) => columns.parts.len(),
        }
    }

    /// Notes that joins above make the scan shorter than predicted.
    pub(super) fn shorten(&self) {
        if let Self::Columns(columns) = self {
            columns.far.iter().for_each(|read| read.meter.shorten());
        }
    }

    /// Whether both read the same rows in the same parts, given equal filters.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rows { pages, .. }, Self::Rows { pages: others, .. }) => Arc::ptr_eq(pages, others),
            (Self::Columns(columns), Self::Columns(others)) => {
                Arc::ptr_eq(&columns.of, &others.of) && columns.aggregating == others.aggregating
            }
            _ => false,
        }
    }

    /// Removes the segments that other nodes will aggregate. `choose`: the path of such segments; `None` if they are not aggregated there.
    pub(super) fn split(&self, choose: impl Fn(&FarRead) -> Option<Choice>) -> Option<(Self, Vec<Aggregated>)> {
        let Self::Columns(columns) = self else { return None };
        let (mut parts, mut left, mut aggregated) = (columns.parts.to_vec(), Vec::new(), Vec::new());
        for read in columns.far.iter() {
            let Some(choice) = choose(read).filter(|_| !read.segments.is_empty()) else {
                left.push(read.clone());
                continue;
            };
            parts.retain(|part| part.meter.as_ref().is_none_or(|meter| !Arc::ptr_eq(meter, &read.meter)));
            if read.choice().path == PathKind::Rows {
                // Rows that are in no segment were among the pages.
                parts.extend(deltas(&read.far));
            }
            let runs: Vec<Vec<usize>> = read.segments.chunks(AGGREGATED_SEGMENTS).map(<[usize]>::to_vec).collect();
            let meter = Meter::new(&read.meter.paths, choice, read.meter.node).of_parts(runs.len(), 1);
            aggregated.push(Aggregated { far: Arc::clone(&read.far), runs, meter: Arc::new(meter) });
        }
        let aggregating = aggregated.iter().map(|aggregated| aggregated.meter.node).collect();
        let access = Columns { parts: parts.into(), far: left.into(), aggregating, ..columns.clone() };
        (!aggregated.is_empty()).then_some((Self::Columns(access), aggregated))
    }
}

/// The segments of another node that may have a row that passes, according to their zone maps and, if their memory is mapped, their dictionaries.
fn may_pass(far: &FarColumns, table: &TableInfo, filter: &ScanFilter) -> Vec<usize> {
    let (schema, predicate) = (table.schema(), filter.predicate());
    let may_pass = |number: &usize| {
        let segment = &far.segments()[*number];
        // If it cannot be read, the scan reports the error.
        let has_none = || {
            far_chunks(far, segment, table).is_ok_and(|chunks| {
                ColumnFilter::of_some(schema, predicate, segment.rows(), chunks.of_some()).is_nothing()
            })
        };
        far.may_pass(*number, schema, predicate) && !(far.is_mapped() && has_none())
    };
    (0..far.segments().len()).filter(may_pass).collect()
}

/// The source that a path reads for some segments of another node: these segments, or the pages of all rows.
fn sources(
    far: &Arc<FarColumns>,
    path: PathKind,
    segments: &[usize],
    pages: impl Iterator<Item = PageTask>,
) -> Vec<Source> {
    match path {
        PathKind::Rows => pages.map(Source::Pages).collect(),
        PathKind::Direct => segments.iter().map(|number| Source::FarSegment(Arc::clone(far), *number)).collect(),
        PathKind::Offload | PathKind::Pushdown | PathKind::Relaxed => {
            runs(far, segments).into_iter().map(|run| Source::FarRun(Arc::clone(far), run)).collect()
        }
    }
}

/// Groups of neighbours among these segments, each as long as a run may be.
fn runs(far: &FarColumns, segments: &[usize]) -> Vec<Range<usize>> {
    let bytes = |number: usize| far.segments()[number].bytes();
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut run_bytes = 0;
    for &number in segments {
        run_bytes += bytes(number);
        let joins = |run: &&mut Range<usize>| run.end == number && run.len() < RUN_SEGMENTS && run_bytes <= RUN_BYTES;
        if let Some(run) = runs.last_mut().filter(joins) {
            run.end += 1;
        } else {
            run_bytes = bytes(number);
            runs.push(number..number + 1);
        }
    }
    runs
}

#[derive(Default)]
struct Parts {
    all: Vec<Part>,
    skipped: usize,
    far: Vec<FarRead>,
}

/// The rows of another node that are in no segment.
fn deltas(far: &Arc<FarColumns>) -> impl Iterator<Item = Part> {
    let rows = far.view().delta_rows();
    let runs = (0..rows).step_by(DELTA_RUN_ROWS).map(move |from| from..(from + DELTA_RUN_ROWS).min(rows));
    runs.map(move |run| Part { source: Source::FarDelta(Arc::clone(far), run), meter: None })
}

impl Parts {
    fn add_own(&mut self, view: &Arc<ColumnView>, table: &TableInfo, filter: &ScanFilter) {
        for part in view.parts() {
            let source = match part {
                ViewPart::Segment(segment) => {
                    let chunks = segment.chunks();
                    if ColumnFilter::new(table.schema(), filter.predicate(), &chunks).is_nothing() {
                        self.skipped += 1;
                        continue;
                    }
                    Source::Segment(Arc::clone(view), segment)
                }
                ViewPart::Delta(rows) => Source::Delta(Arc::clone(view), rows),
            };
            self.all.push(Part { source, meter: None });
        }
    }

    fn add_far(
        &mut self,
        far: &Arc<FarColumns>,
        segments: &[usize],
        meter: Meter,
        wanted: &Wanted<'_>,
        pages: impl Iterator<Item = PageTask>,
    ) {
        let sources = sources(far, meter.choice.path, segments, pages);
        let meter = Arc::new(meter.of_parts(sources.len(), wanted.threads));
        self.all.extend(sources.into_iter().map(|source| Part { source, meter: Some(Arc::clone(&meter)) }));
        if meter.choice.path != PathKind::Rows {
            self.all.extend(deltas(far));
        }
        self.far.push(FarRead { far: Arc::clone(far), segments: segments.into(), meter });
    }
}

/// The chunks of a segment of another node.
pub(super) struct FarChunks<'a> {
    /// One chunk for each column of the table. In place of a column that the node has not sent, there is a chunk of another column.
    pub(super) all: Vec<Chunk<'a>>,
    has: Vec<bool>,
}

impl<'a> FarChunks<'a> {
    /// The same without the columns that the node has not sent.
    pub(super) fn of_some(&self) -> Vec<Option<Chunk<'a>>> {
        self.all.iter().zip(&self.has).map(|(chunk, has)| has.then_some(*chunk)).collect()
    }
}

/// The chunks of a segment of another node whose memory is mapped here. They are bytes of that node, so they are
/// checked.
pub(super) fn far_chunks<'a>(
    far: &'a FarColumns,
    segment: &FarViewSegment,
    table: &TableInfo,
) -> Result<FarChunks<'a>, TxnError> {
    let mut found: Vec<Option<Chunk<'a>>> = Vec::new();
    for (number, column) in table.schema().columns().iter().enumerate() {
        let chunk = far.place_of(number).map(|place| {
            let bytes = far.chunk(segment.chunks()[place])?;
            let chunk = Chunk::open_for(column.data_type, segment.rows(), bytes);
            chunk.map_err(|_| TxnError::Corrupt { what: "a chunk of a column of another node" })
        });
        found.push(chunk.transpose()?);
    }
    let missing = TxnError::Corrupt { what: "a segment without columns" };
    let any = *found.iter().flatten().next().ok_or(missing)?;
    let has = found.iter().map(Option::is_some).collect();
    Ok(FarChunks { all: found.into_iter().map(|chunk| chunk.unwrap_or(any)).collect(), has })
}

/// The text in EXPLAIN.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows { pages, reason: NoColumns::NotKept } => write!(f, "page_tasks={}", pages.len()),
            Self::Rows { pages, reason } => write!(f, "page_tasks={}, no column segments: {reason}", pages.len()),
            Self::Columns(columns) => {
                let [mut own, mut far, mut rows, mut pages] = [0; 4];
                for part in columns.parts.iter() {
                    match &part.source {
                        Source::Segment(..) => own += 1,
                        Source::FarSegment(..) => far += 1,
                        Source::FarRun(_, run) => far += run.len(),
                        Source::Delta(_, delta) | Source::FarDelta(_, delta) => rows += delta.len(),
                        Source::Pages(_) => pages += 1,
                    }
                }
                let (segments, skipped) = (own + far, columns.skipped);
                write!(f, "column_segments={segments}, segments_skipped={skipped}, delta_rows={rows}")?;
                if far > 0 {
                    write!(f, ", far_segments={far}")?;
                }
                if pages > 0 {
                    write!(f, ", page_tasks={pages}")?;
                }
                // Small tables have none, and nothing is said of it.
                let mut without = columns.without.iter().filter(|reason| **reason != NoColumns::NotKept);
                if let Some(reason) = without.next() {
                    write!(f, ", no column segments of {} nodes: {reason}", 1 + without.count())?;
                }
                for FarRead { meter, .. } in columns.far.iter() {
                    write!(f, ", {}", meter.describe())?;
                }
                Ok(())
            }
        }
    }
}
