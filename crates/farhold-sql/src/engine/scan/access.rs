//! The source of a scan: the rows of a table, or its column segments.

use std::fmt;
use std::sync::Arc;

use farhold_scan::columns::ColumnFilter;
use farhold_store::column::copy::{ColumnView, ViewPart};
use farhold_txn::{NoColumns, PageTask};

use super::filter::ScanFilter;
use crate::engine::catalog::TableInfo;

/// How a scan reads the rows of a table at a snapshot.
#[derive(Clone)]
pub(crate) enum Access {
    /// Pages of rows, because there are no columns.
    Rows { pages: Arc<[PageTask]>, reason: NoColumns },
    /// Column segments, and the rows that are in none yet.
    Columns(Columns),
}

/// The column segments of a table that a scan reads.
#[derive(Clone)]
pub(crate) struct Columns {
    pub(super) view: Arc<ColumnView>,
    /// Without the segments whose minimum and maximum values show that no row passes the filter.
    pub(super) parts: Arc<[ViewPart]>,
    /// The number of segments left out.
    skipped: usize,
}

impl Access {
    /// No rows.
    pub(super) fn nothing() -> Self {
        Self::Rows { pages: Arc::from([]), reason: NoColumns::NotKept }
    }

    /// The parts of a view that may contain rows that pass the filter.
    pub(super) fn of_columns(view: &Arc<ColumnView>, table: &TableInfo, filter: &ScanFilter) -> Self {
        let mut parts = view.parts();
        let all = parts.len();
        parts.retain(|part| match part {
            ViewPart::Segment(segment) => {
                !ColumnFilter::new(table.schema(), filter.predicate(), &segment.chunks()).is_nothing()
            }
            ViewPart::Delta(_) => true,
        });
        let skipped = all - parts.len();
        Self::Columns(Columns { view: Arc::clone(view), parts: parts.into(), skipped })
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
            (Self::Columns(columns), Self::Columns(others)) => Arc::ptr_eq(&columns.view, &others.view),
            _ => false,
        }
    }
}

/// The text in EXPLAIN.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows { pages, reason: NoColumns::NotKept } => write!(f, "page_tasks={}", pages.len()),
            Self::Rows { pages, reason } => write!(f, "page_tasks={}, no column segments: {reason}", pages.len()),
            Self::Columns(columns) => {
                let is_segment = |part: &&ViewPart| matches!(part, ViewPart::Segment(_));
                let segments = columns.parts.iter().filter(is_segment).count();
                let rows =
                    columns.parts.iter().map(|part| if let ViewPart::Delta(rows) = part { rows.len() } else { 0 });
                let (skipped, rows) = (columns.skipped, rows.sum::<usize>());
                write!(f, "column_segments={segments}, segments_skipped={skipped}, delta_rows={rows}")
            }
        }
    }
}
