//! The source of a scan: the rows of a table, or its column segments.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use farhold_scan::columns::ColumnFilter;
use farhold_store::column::Chunk;
use farhold_store::column::copy::{ColumnView, DELTA_RUN_ROWS, FarViewSegment, Segment, ViewPart};
use farhold_txn::{FarColumns, NoColumns, NodeColumns, NodeId, PageTask, TxnError};

use super::filter::ScanFilter;
use super::provider::TableAt;
use crate::engine::catalog::TableInfo;

/// How a scan reads the rows of a table at a snapshot.
#[derive(Clone)]
pub(crate) enum Access {
    /// Pages of rows, because there are no columns.
    Rows { pages: Arc<[PageTask]>, reason: NoColumns },
    /// Column segments, the rows that are in none yet, and the pages of nodes without columns.
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
}

/// A part for one thread to read.
#[derive(Clone)]
pub(super) enum Part {
    /// Rows of a node without columns.
    Pages(PageTask),
    /// The rows of a segment that belong to the view.
    Segment(Arc<ColumnView>, Arc<Segment>),
    /// Some rows that are in no segment.
    Delta(Arc<ColumnView>, Range<usize>),
    /// The same, of another node: the number of the segment.
    FarSegment(Arc<FarColumns>, usize),
    FarDelta(Arc<FarColumns>, Range<usize>),
}

impl Access {
    /// No rows.
    pub(super) fn nothing() -> Self {
        Self::Rows { pages: Arc::from([]), reason: NoColumns::NotKept }
    }

    /// The parts of a table at a snapshot that may contain rows that pass the filter. `columns`: those that the query
    /// needs.
    pub(super) fn of(at: &TableAt, table: &TableInfo, filter: &ScanFilter, columns: &[usize]) -> Self {
        let needed = filter.predicate().columns();
        let has_all = |found: &NodeColumns| columns.iter().chain(&needed).all(|column| found.has(*column));
        let is_readable = |found: &NodeColumns| match found {
            NodeColumns::Own(_) => true,
            NodeColumns::Far(far) => far.is_mapped(),
        };
        let (mut parts, mut skipped, mut reasons) = (Vec::new(), 0, Vec::new());
        for (node, found) in at.columns.iter() {
            let readable = match found {
                Ok(found) if !has_all(found) => Err(NoColumns::Lacking),
                Ok(found) if !is_readable(found) => Err(NoColumns::Unreachable),
                Ok(found) => Ok(found),
                Err(reason) => Err(*reason),
            };
            match readable {
                Ok(found) => skipped += add_columns(found, table, filter, &mut parts),
                Err(reason) => {
                    parts.extend(at.pages.iter().filter(|task| task.node() == *node).cloned().map(Part::Pages));
                    reasons.push(reason);
                }
            }
        }
        if reasons.len() == at.columns.len() {
            let reason = reasons.iter().find(|reason| **reason != NoColumns::NotKept).or(reasons.first());
            return Self::Rows { pages: Arc::clone(&at.pages), reason: *reason.unwrap_or(&NoColumns::NotKept) };
        }
        Self::Columns(Columns { of: Arc::clone(&at.columns), parts: parts.into(), skipped })
    }

    /// The number of page tasks or column parts.
    pub(super) fn part_count(&self) -> usize {
        match self {
            Self::Rows { pages, .. } => pages.len(),
            Self::Columns(columns) => columns.parts.len(),
        }
    }

    /// Whether both read the same rows in the same parts, given equal filters.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rows { pages, .. }, Self::Rows { pages: others, .. }) => Arc::ptr_eq(pages, others),
            (Self::Columns(columns), Self::Columns(others)) => Arc::ptr_eq(&columns.of, &others.of),
            _ => false,
        }
    }
}

/// Adds the parts of a node's columns, and returns how many segments are left out.
fn add_columns(found: &NodeColumns, table: &TableInfo, filter: &ScanFilter, parts: &mut Vec<Part>) -> usize {
    let before = parts.len();
    let mut segments = 0;
    match found {
        NodeColumns::Own(view) => {
            for part in view.parts() {
                match part {
                    ViewPart::Segment(segment) => {
                        segments += 1;
                        let chunks = segment.chunks();
                        if !ColumnFilter::new(table.schema(), filter.predicate(), &chunks).is_nothing() {
                            parts.push(Part::Segment(Arc::clone(view), segment));
                        }
                    }
                    ViewPart::Delta(rows) => parts.push(Part::Delta(Arc::clone(view), rows)),
                }
            }
        }
        NodeColumns::Far(far) => {
            for (number, segment) in far.segments().iter().enumerate() {
                segments += 1;
                // What cannot be read is an error of the scan.
                let is_nothing = far_chunks(far, segment, table).is_ok_and(|chunks| {
                    let of_some = chunks.of_some();
                    ColumnFilter::of_some(table.schema(), filter.predicate(), segment.rows(), of_some).is_nothing()
                });
                if !is_nothing {
                    parts.push(Part::FarSegment(Arc::clone(far), number));
                }
            }
            let rows = far.view().delta_rows();
            let runs = (0..rows).step_by(DELTA_RUN_ROWS).map(|from| from..(from + DELTA_RUN_ROWS).min(rows));
            parts.extend(runs.map(|run| Part::FarDelta(Arc::clone(far), run)));
        }
    }
    let kept = parts[before..].iter().filter(|part| matches!(part, Part::Segment(..) | Part::FarSegment(..))).count();
    segments - kept
}

/// The chunks of a segment of another node.
pub(super) struct FarChunks<'a> {
    /// One for each column of the table; those that the node has not sent are another column's.
    pub(super) all: Vec<Chunk<'a>>,
    has: Vec<bool>,
}

impl<'a> FarChunks<'a> {
    /// Without those that the node has not sent.
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
            let bytes = far.chunk(&segment.chunks()[place])?;
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
                    match part {
                        Part::Segment(..) => own += 1,
                        Part::FarSegment(..) => far += 1,
                        Part::Delta(_, delta) | Part::FarDelta(_, delta) => rows += delta.len(),
                        Part::Pages(_) => pages += 1,
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
                Ok(())
            }
        }
    }
}
