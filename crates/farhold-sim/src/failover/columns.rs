//! Clients that compare columns with rows: those of their own node and of others, at snapshots that stay open for a while.
//!
//! ```text
//!   snapshot ─► rows, sometimes ─► views of all nodes' columns ─► time passes: merges, deaths ─► their rows ─► rows once more
//!                                                                                                  └── the same, if the snapshot still stands
//! ```
//! A view of the node's own rows never changes, whatever happens to the cluster. Data read from another node counts only if the snapshot was still valid
//! afterwards, which the rows that are read last show.

use crate::cluster::is_expected;
use crate::workload::is_of_a_death;
use farhold_fabric::{Batch, Endpoint, FabricError, NodeId};
use farhold_store::column::copy::{ColumnView, FarViewSegment, ViewPart};
use farhold_store::column::{BLOCK_ROWS, Chunk};
use farhold_store::row::{Datum, Schema};
use farhold_txn::{FarColumns, KeptColumns, NoColumns, NodeColumns, Snapshot, Table, TxnError, Worker};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The tables that are kept as columns; the first one is read more often.
pub(super) const TABLES: [&str; 2] = ["spread", "copied"];
/// One comparison in this many changes which columns are kept.
const CHANGES_ONE_IN: u64 = 20;
/// The longest pause between two comparisons, and the pause after one that was refused.
const PAUSE_NS: u64 = 200_000;
/// The longest time for which views are held: some are held for less than a merge, some for more than a change of the configuration.
const HOLDS_NS: [u64; 4] = [1, 50_000, 500_000, 5_000_000];

/// The results of the comparisons of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Views of a node's own columns that were compared with rows.
    pub own: u64,
    /// Views of another node's columns that were compared with rows.
    pub far: u64,
    /// Segments of those.
    pub far_segments: u64,
    /// A node's own views that were read after their snapshot had ended, and still had its rows.
    pub outlived: u64,
    /// Comparisons in which a view had any rows.
    pub with_rows: u64,
    /// The number of skipped comparisons, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl std::ops::AddAssign<&Self> for Compared {
    fn add_assign(&mut self, other: &Self) {
        self.own += other.own;
        self.far += other.far;
        self.far_segments += other.far_segments;
        self.outlived += other.outlived;
        self.with_rows += other.with_rows;
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
    }
}

/// The state that the clients of a run share.
#[derive(Debug, Default)]
pub(super) struct Looks {
    pub compared: RefCell<Compared>,
    pub broken: RefCell<Vec<String>>,
    /// They may begin.
    pub has_begun: Cell<bool>,
    /// They must end.
    pub is_over: Cell<bool>,
}

/// A value, of any type of the tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Integer(i64),
    Bytes(Vec<u8>),
}

/// A row, or its columns that are kept.
type Row = Vec<Value>;
type Rows = BTreeMap<NodeId, Vec<Row>>;

/// Why there are no rows.
#[derive(Debug)]
enum Unread {
    /// They cannot be reached.
    Lost,
    /// The data that was read is invalid.
    Wrong(String),
}

/// A client.
pub(super) struct Looker {
    name: String,
    worker: Worker,
    endpoint: Endpoint,
    looks: Rc<Looks>,
    alive: Rc<Cell<bool>>,
}

impl Looker {
    /// A client of a worker, as long as its process is alive.
    pub fn new(number: u32, worker: &Worker, looks: &Rc<Looks>, alive: &Rc<Cell<bool>>) -> Result<Self, FabricError> {
        let name = format!("looker {number} of {}", worker.node().id());
        let endpoint = worker.node().fabric().endpoint(worker.handle())?;
        Ok(Self { name, worker: worker.clone(), endpoint, looks: looks.clone(), alive: alive.clone() })
    }

    fn dice(&self, limit: u64) -> u64 {
        self.worker.handle().random_u64() % limit
    }

    async fn pause(&self, ns_max: u64) {
        let ns = self.dice(ns_max);
        self.worker.handle().sleep_ns(ns).await;
    }

    fn is_dead(&self) -> bool {
        !self.alive.get() || self.worker.node().is_expelled()
    }

    fn tell_broken(&self, what: &str) {
        // The findings of an ended process do not count.
        if !self.alive.get() {
            return;
        }
        let us = self.worker.handle().now_ns() / 1_000;
        self.looks.broken.borrow_mut().push(format!("{} at {us} µs: {what}", self.name));
    }

    fn note_refusal(&self, whose: &str, reason: &str) {
        *self.looks.compared.borrow_mut().refused.entry(format!("{whose}: {reason}")).or_default() += 1;
    }

    /// Compares until the run or the node has ended.
    pub async fn run(self, running: Rc<Cell<u32>>) {
        let node = self.worker.node().clone();
        running.update(|running| running + 1);
        while !self.looks.is_over.get() && !self.is_dead() {
            if self.looks.has_begun.get() && node.is_member() {
                let looked = if self.dice(CHANGES_ONE_IN) == 0 { self.change().await } else { self.look().await };
                if let Err(error) = looked
                    && !may_come_right(&error)
                {
                    self.tell_broken(&error.to_string());
                    break;
                }
            }
            self.pause(PAUSE_NS).await;
        }
        running.update(|running| running - 1);
    }

    /// Changes which columns of a table are kept.
    async fn change(&self) -> Result<(), TxnError> {
        let Some(table) = self.table() else { return Ok(()) };
        let kept = [KeptColumns::All, KeptColumns::These(vec![0, 1, 4]), KeptColumns::None];
        self.worker.keep_columns(&table, kept[self.dice(3) as usize].clone()).await
    }

    fn table(&self) -> Option<Table> {
        self.worker.node().table(TABLES[usize::from(self.dice(3) == 0)])
    }

    /// Compares the columns of all nodes with their rows, at one snapshot.
    async fn look(&self) -> Result<(), TxnError> {
        let Some(table) = self.table() else { return Ok(()) };
        let snapshot = Arc::new(self.worker.snapshot().await?);
        let before = if self.dice(2) == 0 { Some(self.rows(&snapshot, &table).await?) } else { None };
        let columns = self.worker.columns_by_node(&snapshot, &table).await;
        let mut reads = Vec::new();
        // Some are read twice.
        for _ in 0..=self.dice(2) {
            self.pause(HOLDS_NS[self.dice(4) as usize]).await;
            for (node, found) in &columns {
                reads.push((*node, self.read(&table, found).await));
            }
        }
        let after = self.rows(&snapshot, &table).await;
        match &after {
            Err(error) if !may_come_right(error) => return after.map(drop),
            _ => {}
        }
        if let (Some(before), Ok(after)) = (&before, &after)
            && before != after
        {
            self.tell_broken(&format!("a snapshot of {:?} has {after:?}, and had {before:?}", table.name()));
        }
        for (node, read) in reads {
            self.compare(&table, snapshot.epoch(), (node, read), (before.as_ref(), after.as_ref().ok()));
        }
        Ok(())
    }

    /// At the end, when nothing changes any more: compares the columns of all nodes, of each table. False: some of them do not exist yet.
    pub async fn look_at_all(&self) -> Result<bool, TxnError> {
        let mut are_all = true;
        for name in TABLES {
            let Some(table) = self.worker.node().table(name) else { return Ok(false) };
            let snapshot = Arc::new(self.worker.snapshot().await?);
            let columns = self.worker.columns_by_node(&snapshot, &table).await;
            let rows = self.rows(&snapshot, &table).await?;
            for (node, found) in columns {
                are_all &= found.is_ok();
                let read = self.read(&table, &found).await;
                self.compare(&table, snapshot.epoch(), (node, read), (None, Some(&rows)));
            }
        }
        Ok(are_all)
    }

    async fn read(&self, table: &Table, found: &Result<NodeColumns, NoColumns>) -> Read {
        let of = table.schema().columns().len();
        match found {
            Err(reason) => Read { is_own: false, segments: 0, columns: Vec::new(), rows: Err(*reason) },
            Ok(columns) => {
                let kept: Vec<usize> = (0..of).filter(|column| columns.has(*column)).collect();
                let (is_own, segments, rows) = match columns {
                    NodeColumns::Own(view) => {
                        (true, 0, rows_of_view(view, table.schema(), &kept).map_err(Unread::Wrong))
                    }
                    NodeColumns::Far(far) => {
                        (false, far.segments().len(), rows_of_far(&self.endpoint, far, table.schema(), &kept).await)
                    }
                };
                Read { is_own, segments, columns: kept, rows: Ok(rows) }
            }
        }
    }

    /// Compares the columns read from a node with the rows of the same snapshot, which were read before and afterwards.
    fn compare(
        &self,
        table: &Table,
        epoch: u32,
        (node, read): (NodeId, Read),
        (before, after): (Option<&Rows>, Option<&Rows>),
    ) {
        let whose = if node == self.worker.node().id() { "own" } else { "far" };
        let what = || format!("columns of {:?} on {node} at epoch {epoch}", table.name());
        let Read { is_own, segments, columns, rows: found } = read;
        let found = match found {
            Ok(found) => found,
            Err(reason) => {
                // A node may have started again meanwhile, with other memory: the snapshot is then no longer valid.
                let is_damaged = reason == NoColumns::Damaged && after.is_some();
                // While snapshots keep much memory, a node describes no more views; its own need none.
                let is_odd = reason == NoColumns::NoRoom && whose == "own"
                    || matches!(reason, NoColumns::NoJournal | NoColumns::NotWanted);
                if is_damaged || is_odd {
                    self.tell_broken(&format!("{}: {reason}", what()));
                }
                return self.note_refusal(whose, &refusal(reason));
            }
        };
        // A view of the node's own rows always counts; data of another node counts only if the snapshot was still valid afterwards.
        let Some(rows) = after.or(before.filter(|_| is_own)) else {
            return self.note_refusal(whose, "the snapshot is gone");
        };
        let mut found = match found {
            Ok(found) => found,
            Err(Unread::Lost) => return self.note_refusal(whose, "not reached"),
            Err(Unread::Wrong(wrong)) => return self.tell_broken(&format!("{}: {wrong}", what())),
        };
        let rows = rows.get(&node).map_or(&[][..], Vec::as_slice);
        let mut rows: Vec<Row> =
            rows.iter().map(|row| columns.iter().map(|column| row[*column].clone()).collect()).collect();
        rows.sort();
        found.sort();
        if rows != found {
            let more: Vec<_> = found.iter().filter(|row| !rows.contains(row)).map(brief).collect();
            let less: Vec<_> = rows.iter().filter(|row| !found.contains(row)).map(brief).collect();
            let (has, had) = (found.len(), rows.len());
            return self.tell_broken(&format!(
                "{} have {has} rows, its pages {had}; alone in the columns {more:?}, alone in the pages {less:?}",
                what()
            ));
        }
        let mut compared = self.looks.compared.borrow_mut();
        compared.with_rows += u64::from(!rows.is_empty());
        compared.outlived += u64::from(after.is_none());
        if is_own {
            compared.own += 1;
        } else {
            compared.far += 1;
            compared.far_segments += segments as u64;
        }
    }

    /// The rows of a snapshot, by the nodes whose pages have them.
    async fn rows(&self, snapshot: &Snapshot, table: &Table) -> Result<Rows, TxnError> {
        let mut rows = Rows::new();
        let mut wrong = None;
        for task in self.worker.snapshot_pages(snapshot, table).await? {
            let of_node = rows.entry(task.node()).or_default();
            let mut visit = |key: &[u8], value: &[u8]| match row_of(table.schema(), key, value) {
                Ok(row) => of_node.push(row),
                Err(what) => wrong = Some(what),
            };
            self.worker.scan_page(snapshot, &task, &mut visit).await?;
        }
        // A page may have come meanwhile, without rows of the snapshot.
        rows.retain(|_, of_node| !of_node.is_empty());
        for of_node in rows.values_mut() {
            of_node.sort();
        }
        if let Some(wrong) = wrong {
            self.tell_broken(&format!("a row of {:?}: {wrong}", table.name()));
        }
        Ok(rows)
    }
}

/// The data that was read from a node's columns.
#[derive(Debug)]
struct Read {
    is_own: bool,
    segments: usize,
    /// Those that they have.
    columns: Vec<usize>,
    rows: Result<Result<Vec<Row>, Unread>, NoColumns>,
}

/// Without its epoch.
fn refusal(reason: NoColumns) -> String {
    match reason {
        NoColumns::Behind(_) => "behind".to_owned(),
        NoColumns::Past(_) => "past".to_owned(),
        other => other.to_string(),
    }
}

/// Nodes die, and the configuration changes.
pub(super) fn may_come_right(error: &TxnError) -> bool {
    is_expected(error) || is_of_a_death(error) || matches!(error, TxnError::SchemaChanged)
}

/// A row without its padding.
fn brief(row: &Row) -> Vec<i64> {
    let integer = |value: &Value| if let Value::Integer(value) = value { Some(*value) } else { None };
    row.iter().filter_map(integer).collect()
}

fn value_of(datum: Datum) -> Value {
    match datum {
        Datum::Int(value) => Value::Integer(i64::from(value)),
        Datum::BigInt(value) => Value::Integer(value),
        Datum::Bytea(bytes) => Value::Bytes(bytes),
        other => Value::Bytes(format!("{other:?}").into_bytes()),
    }
}

fn row_of(schema: &Schema, key: &[u8], value: &[u8]) -> Result<Row, String> {
    let mut row = Vec::new();
    schema.decode_row(key, value, &mut row).map_err(|error| error.to_string())?;
    Ok(row.into_iter().map(value_of).collect())
}

fn projected(schema: &Schema, columns: &[usize], key: &[u8], value: &[u8]) -> Result<Row, String> {
    let row = row_of(schema, key, value)?;
    Ok(columns.iter().map(|column| row[*column].clone()).collect())
}

/// A row of some chunks.
fn row_at(chunks: &[Chunk<'_>], row: usize) -> Result<Row, String> {
    let value = |chunk: &Chunk<'_>| {
        let bytes = || chunk.text(row).map(|bytes| Value::Bytes(bytes.to_vec()));
        chunk.integer(row).map(Value::Integer).or_else(bytes)
    };
    chunks.iter().map(|chunk| value(chunk).ok_or_else(|| "a chunk without a value".to_owned())).collect()
}

/// The rows of a segment that `select` keeps.
fn rows_of_chunks(
    chunks: &[Chunk<'_>],
    rows: usize,
    select: impl Fn(usize, &mut [u64; BLOCK_ROWS / 64]),
) -> Result<Vec<Row>, String> {
    let mut found = Vec::new();
    for block in 0..rows.div_ceil(BLOCK_ROWS) {
        let mut bits = [u64::MAX; BLOCK_ROWS / 64];
        select(block, &mut bits);
        let here = (rows - block * BLOCK_ROWS).min(BLOCK_ROWS);
        for row in (0..here).filter(|row| bits[row / 64] >> (row % 64) & 1 == 1) {
            found.push(row_at(chunks, block * BLOCK_ROWS + row)?);
        }
    }
    Ok(found)
}

fn rows_of_view(view: &ColumnView, schema: &Schema, columns: &[usize]) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for part in view.parts() {
        match part {
            ViewPart::Segment(segment) => {
                let all = segment.chunks();
                let chunks: Vec<Chunk<'_>> = columns.iter().map(|column| all[*column]).collect();
                rows.extend(rows_of_chunks(&chunks, segment.rows(), |block, bits| view.select(&segment, block, bits))?);
            }
            ViewPart::Delta(part) => {
                let mut found = Vec::new();
                view.visit_delta(part, &mut |key, value| found.push(projected(schema, columns, key, value)));
                for row in found {
                    rows.push(row?);
                }
            }
        }
    }
    Ok(rows)
}

async fn rows_of_far(
    endpoint: &Endpoint,
    far: &FarColumns,
    schema: &Schema,
    columns: &[usize],
) -> Result<Vec<Row>, Unread> {
    let mut rows = Vec::new();
    for segment in far.segments() {
        let bytes = read_segment(endpoint, far, segment, columns).await?;
        let chunks: Result<Vec<Chunk<'_>>, _> = bytes.iter().map(|bytes| Chunk::open(bytes)).collect();
        let chunks = chunks.map_err(|error| Unread::Wrong(error.to_string()))?;
        if chunks.iter().any(|chunk| chunk.rows() != segment.rows() || chunk.verify().is_err()) {
            return Err(Unread::Wrong("another chunk where one was described".to_owned()));
        }
        let of_segment = rows_of_chunks(&chunks, segment.rows(), |block, bits| segment.select(block, bits));
        rows.extend(of_segment.map_err(Unread::Wrong)?);
    }
    for (key, value) in far.view().delta() {
        rows.push(projected(schema, columns, key, value).map_err(Unread::Wrong)?);
    }
    Ok(rows)
}

/// The chunks of some columns of a segment.
async fn read_segment(
    endpoint: &Endpoint,
    far: &FarColumns,
    segment: &FarViewSegment,
    columns: &[usize],
) -> Result<Vec<Vec<u8>>, Unread> {
    let places = columns.iter().filter_map(|column| far.place_of(*column));
    let chunks: Vec<_> = places.map(|place| segment.chunks()[place]).collect();
    // The endpoint may not have met this start of the node yet.
    for _ in 0..2 {
        let mut batch = Batch::new();
        let slots: Vec<_> = chunks.iter().map(|chunk| batch.read_immutable(chunk.at, chunk.bytes as usize)).collect();
        let batch = endpoint.submit(batch).await;
        let read: Result<Vec<_>, _> = slots.iter().map(|slot| batch.bytes(*slot).map(<[u8]>::to_vec)).collect();
        if let Ok(read) = read {
            return Ok(read);
        }
        if let Some(chunk) = chunks.first() {
            let _ = endpoint.refresh(chunk.at.node(), chunk.at.region());
        }
    }
    Err(Unread::Lost)
}
