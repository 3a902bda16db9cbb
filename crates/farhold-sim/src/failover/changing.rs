//! Clients that create, index, fill and drop tables, in regions that run full.
//!
//! ```text
//!   shelf    one table a client at a time, which it alone writes: each row is known, except after a commit with an unknown outcome
//!   purse    one table of all: rows that are split, merged and moved, whose sum stays; its indexes come and go
//!   hog      a table on all nodes, filled until a region is full, half emptied and dropped
//!   counters numbers without a transaction, as in `numbers.rs`
//! ```
//! A full region refuses changes, and so does a cluster whose configuration is changing. A client abandons a refused change, and may repeat it at the end.
//! Everything acknowledged must be present, in the table, in its indexes and in snapshots.

use super::numbers::Taker;
use crate::workload::{Persistent, Row, Tables, is_of_a_death};
use farhold_store::row::SecondaryIndex;
use farhold_txn::{Placement, RowHandle, ScanSpec, Snapshot, Table, TableDef, TableIndex, Txn, TxnError, Worker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys of a shelf, and of the purse.
const KEYS: u32 = 24;
const PURSE: &str = "purse";
const PURSE_ROWS: u32 = 8;
/// The first amount of each row of the purse.
const EACH: i32 = 1_000;
/// Few, since rows of each length take pages of their own.
const PADDINGS: [u32; 3] = [10, 400, 3_000];
/// Indexes of a table at a time.
const INDEXES_MAX: usize = 2;
/// A row of a hog takes a page.
const HOG_PADDING: u32 = 16_300;
const HOG_ROWS_MAX: u32 = 200;
/// Tables whose names begin with this are filled completely.
pub(super) const HOG: &str = "hog";

/// The possible states of a row: one, unless the outcome of a commit that wrote it is unknown.
type Possible = Vec<Option<Row>>;
/// Rows by key.
type Rows = BTreeMap<u32, Row>;

/// What the clients know.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The possible rows of each key, by the table's name.
    shelves: BTreeMap<String, BTreeMap<u32, Possible>>,
    /// Operations that have been done.
    pub commits: u64,
    /// The number of clients so far.
    clients: u64,
    pub broken: Vec<String>,
}

impl Kept {
    /// A commit of these rows begins; from here on they may be visible.
    fn begin(&mut self, shelf: &str, wrote: &BTreeMap<u32, Option<Row>>) {
        let Some(rows) = self.shelves.get_mut(shelf) else { return };
        for (key, row) in wrote {
            rows.entry(*key).or_insert_with(|| vec![None]).push(*row);
        }
    }

    /// It has ended.
    fn end<T>(&mut self, shelf: &str, wrote: &BTreeMap<u32, Option<Row>>, outcome: &Result<T, TxnError>) {
        let Some(rows) = self.shelves.get_mut(shelf) else { return };
        for key in wrote.keys() {
            let Some(possible) = rows.get_mut(key) else { continue };
            match (outcome, possible.pop()) {
                (Ok(_), Some(row)) => *possible = vec![row],
                (Err(error), Some(row)) if is_unknown(error) => possible.push(row),
                _ => {}
            }
        }
    }

    /// Checks the rows of a table that a committed read, or a snapshot, has seen.
    fn saw(&mut self, table: &str, rows: &Rows, how: &str) {
        if table == PURSE {
            let sum: i64 = rows.values().map(|row| i64::from(row.attribute)).sum();
            let expected = i64::from(EACH) * i64::from(PURSE_ROWS);
            if sum != expected {
                self.broken.push(format!("{how}: the purse has {sum} of {expected}: {rows:?}"));
            }
        }
        let Some(known) = self.shelves.get_mut(table) else { return };
        for key in 1..=KEYS {
            let (possible, saw) = (known.entry(key).or_insert_with(|| vec![None]), rows.get(&key).copied());
            if possible.contains(&saw) {
                *possible = vec![saw];
            } else {
                self.broken.push(format!("{how}: row {key} of {table:?} is {saw:?}, which may be {possible:?}"));
            }
        }
    }

    /// The shelves that were made, and of which no drop has begun.
    pub fn shelves(&self) -> Vec<String> {
        self.shelves.keys().cloned().collect()
    }
}

/// Is it unknown whether the commit counts?
fn is_unknown(error: &TxnError) -> bool {
    matches!(error, TxnError::OutcomeUnknown | TxnError::NotDurable { committed: true, .. })
}

/// An error with which a change of tables may be refused, here or part way on another node. The change may then have been done or not.
fn is_refusal(error: &TxnError) -> bool {
    let is_of_tables = matches!(error, TxnError::SchemaChanged | TxnError::NotFound { .. });
    let is_of_room = matches!(error, TxnError::OutOfMemory { .. });
    is_of_tables || is_of_room || is_of_a_death(error) || error.is_retryable()
}

/// Makes the tables of all.
pub(super) async fn create(worker: &Worker) -> Result<(), TxnError> {
    super::numbers::create(worker).await?;
    let definition = TableDef { indexes: Vec::new(), ..Tables::definition(PURSE, Placement::ByInteger, true) };
    let purse = worker.create_table(definition).await?;
    let mut txn = worker.begin();
    for key in 1..=PURSE_ROWS {
        let row = Row { writer: 0, attribute: EACH, padding: PADDINGS[0] };
        txn.insert(&purse, &Row::key(key), &row.value(&purse, key)).await?;
    }
    txn.commit().await.map(drop)
}

/// A client's next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes some rows of its shelf.
    Write,
    /// Reads its shelf, or the purse, by all indexes.
    Read,
    /// Reads both in a snapshot.
    Look,
    /// Moves something in the purse.
    Pay,
    /// Creates or drops an index.
    Index,
    /// Takes numbers.
    Count,
    /// Drops its shelf and makes another.
    Renew,
    /// Fills a region.
    Fill,
}

impl Step {
    /// In hundredths.
    const SHARES: [(Self, u64); 8] = [
        (Self::Write, 28),
        (Self::Read, 14),
        (Self::Look, 10),
        (Self::Pay, 22),
        (Self::Index, 10),
        (Self::Count, 6),
        (Self::Renew, 8),
        (Self::Fill, 2),
    ];
}

/// A client.
pub(super) struct Changer {
    /// Unique: other clients have had its name in earlier lives of the cluster.
    number: u64,
    name: String,
    worker: Worker,
    kept: Rc<RefCell<Kept>>,
    taker: Taker,
    /// Its table, if it has one.
    shelf: Option<Table>,
    /// Tables that may or may not have been dropped.
    left: Vec<String>,
    /// Distinguishes its tables, indexes and rows.
    last: u64,
}

impl Changer {
    pub fn new(number: usize, worker: &Worker, taker: Taker, kept: Rc<RefCell<Kept>>) -> Self {
        let name = format!("changer {number} of {}", worker.node().id());
        let (shelf, left) = (None, Vec::new());
        let number = {
            let mut kept = kept.borrow_mut();
            kept.clients += 1;
            kept.clients
        };
        Self { number, name, worker: worker.clone(), kept, taker, shelf, left, last: 0 }
    }

    fn dice(&self, limit: u64) -> u64 {
        self.worker.handle().random_u64() % limit
    }

    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.number << 32 | self.last
    }

    fn key(&self) -> u32 {
        1 + self.dice(u64::from(KEYS)) as u32
    }

    /// A row that no other client writes.
    fn row(&mut self, attribute: i32) -> Row {
        Row { writer: self.fresh(), attribute, padding: PADDINGS[self.dice(PADDINGS.len() as u64) as usize] }
    }

    fn tell_broken(&self, what: &str) {
        self.kept.borrow_mut().broken.push(format!("{}: {what}", self.name));
    }

    /// Its table; another if it has none.
    async fn shelf(&mut self) -> Result<Option<Table>, TxnError> {
        if self.shelf.is_none() {
            self.make_shelf().await?;
        }
        Ok(self.shelf.clone())
    }

    async fn make_shelf(&mut self) -> Result<(), TxnError> {
        let name = format!("shelf {:x}", self.fresh());
        let placement = [Placement::ByInteger, Placement::ByHash, Placement::Replicated][self.dice(3) as usize];
        let mut definition = Tables::definition(&name, placement, self.dice(2) == 0);
        if self.dice(2) == 0 {
            definition.indexes.clear();
        }
        match self.worker.create_table(definition).await {
            Ok(table) => {
                self.kept.borrow_mut().shelves.insert(name, BTreeMap::new());
                self.shelf = Some(table);
                Ok(())
            }
            Err(error) if is_refusal(&error) => {
                self.left.push(name);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Drops a table, or leaves it for later.
    async fn drop_table(&mut self, table: &Table) -> Result<(), TxnError> {
        match self.worker.drop_table(table).await {
            Ok(()) => Ok(()),
            Err(error) if is_refusal(&error) => {
                self.left.push(table.name().to_owned());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn renew(&mut self) -> Result<(), TxnError> {
        for name in std::mem::take(&mut self.left) {
            if let Some(table) = self.worker.node().table(&name) {
                self.drop_table(&table).await?;
            }
        }
        if let Some(table) = self.shelf.take() {
            self.kept.borrow_mut().shelves.remove(table.name());
            match self.worker.drop_table(&table).await {
                Err(TxnError::NotFound { what }) => self.tell_broken(&format!("there is no {what}, which it has made")),
                Err(error) if is_refusal(&error) => self.left.push(table.name().to_owned()),
                dropped => dropped?,
            }
        }
        self.make_shelf().await
    }

    async fn write(&mut self) -> Result<(), TxnError> {
        let Some(table) = self.shelf().await? else { return Ok(()) };
        let mut txn = self.worker.begin();
        let mut wrote = BTreeMap::new();
        for _ in 0..=self.dice(4) {
            let (key, attribute) = (self.key(), self.dice(6) as i32);
            let row = self.row(attribute);
            let value = row.value(&table, key);
            match txn.get(&table, &Row::key(key)).await? {
                None => {
                    txn.insert(&table, &Row::key(key), &value).await?;
                }
                Some(found) if self.dice(3) == 0 => {
                    txn.delete(found)?;
                    wrote.insert(key, None);
                    continue;
                }
                Some(found) => txn.update(found, &value)?,
            }
            wrote.insert(key, Some(row));
        }
        self.kept.borrow_mut().begin(table.name(), &wrote);
        let outcome = txn.commit().await;
        self.kept.borrow_mut().end(table.name(), &wrote, &outcome);
        known(outcome)
    }

    async fn pay(&mut self) -> Result<(), TxnError> {
        let purse = self.purse()?;
        let (one, other) = (self.key(), self.key());
        if one == other {
            return Ok(());
        }
        let mut txn = self.worker.begin();
        let from = txn.get(&purse, &Row::key(one)).await?;
        let to = txn.get(&purse, &Row::key(other)).await?;
        let Some(from) = from else { return txn.commit().await.map(drop) };
        let mut left = self.balance(&txn, &purse, one, from)?;
        let mut there = match to {
            Some(to) => self.balance(&txn, &purse, other, to)?,
            None => 0,
        };
        // All of it: the row goes.
        let amount = if self.dice(3) == 0 { left } else { self.dice(u64::from(left.unsigned_abs()) + 1) as i32 };
        (left, there) = (left - amount, there + amount);
        if left == 0 {
            txn.delete(from)?;
        } else {
            txn.update(from, &self.row(left).value(&purse, one))?;
        }
        let value = self.row(there).value(&purse, other);
        match to {
            Some(to) => txn.update(to, &value)?,
            None => {
                txn.insert(&purse, &Row::key(other), &value).await?;
            }
        }
        known(txn.commit().await)
    }

    fn balance(&self, txn: &Txn, purse: &Table, key: u32, row: RowHandle) -> Result<i32, TxnError> {
        match Row::of(purse, key, txn.value(row)) {
            Ok(row) => Ok(row.attribute),
            Err(what) => {
                self.tell_broken(&format!("row {key} of the purse: {what}"));
                Err(TxnError::Conflict)
            }
        }
    }

    fn purse(&self) -> Result<Table, TxnError> {
        self.worker.node().table(PURSE).ok_or(TxnError::SchemaChanged)
    }

    async fn read(&mut self) -> Result<(), TxnError> {
        let table = if self.dice(2) == 0 { Some(self.purse()?) } else { self.shelf().await? };
        let Some(table) = table else { return Ok(()) };
        let by_key = match read_all(&self.worker, &table).await {
            Ok(read) => read,
            // An index has been dropped meanwhile.
            Err(Unread::Refused(TxnError::SchemaChanged | TxnError::NotFound { .. })) if table.name() == PURSE => {
                return Ok(());
            }
            Err(Unread::Refused(error)) => return Err(error),
            Err(Unread::Wrong(what)) => {
                self.tell_broken(&what);
                return Ok(());
            }
        };
        self.kept.borrow_mut().saw(table.name(), &by_key, &format!("{}, by keys", self.name));
        Ok(())
    }

    async fn look(&mut self) -> Result<(), TxnError> {
        let (shelf, purse) = (self.shelf().await?, self.purse()?);
        let snapshot = self.worker.snapshot().await?;
        for table in shelf.iter().chain([&purse]) {
            match read_snapshot(&self.worker, &snapshot, table).await {
                Ok(rows) => {
                    let how = format!("{}, a snapshot of epoch {}", self.name, snapshot.epoch());
                    self.kept.borrow_mut().saw(table.name(), &rows, &how);
                }
                Err(Unread::Refused(error)) => return Err(error),
                Err(Unread::Wrong(what)) => self.tell_broken(&what),
            }
        }
        Ok(())
    }

    async fn index(&mut self) -> Result<(), TxnError> {
        let table = if self.dice(2) == 0 { Some(self.purse()?) } else { self.shelf().await? };
        let Some(table) = table else { return Ok(()) };
        let indexes = table.indexes();
        let is_full = indexes.len() >= INDEXES_MAX;
        let ready: Vec<TableIndex> = indexes.into_iter().filter(|index| index.ready).collect();
        let done = if is_full || (self.dice(2) == 0 && !ready.is_empty()) {
            let Some(index) = ready.get(self.dice(ready.len().max(1) as u64) as usize) else { return Ok(()) };
            self.worker.drop_index(&table, &index.definition.name).await
        } else {
            // By the attribute, or by the writer's name in the row, which every write changes.
            let columns = vec![[2, 1][self.dice(2) as usize]];
            // Most of these are refused: attributes are few. Elsewhere one node cannot tell.
            let unique = table.placement() == Placement::Replicated && self.dice(3) == 0;
            let index = SecondaryIndex { name: format!("index {:x}", self.fresh()), columns, unique };
            self.worker.create_index(&table, index).await.map(drop)
        };
        match done {
            Err(error) if is_refusal(&error) => Ok(()),
            done => done,
        }
    }

    /// A table on all nodes is filled until there is no room, and a part of it again.
    async fn fill(&mut self) -> Result<(), TxnError> {
        let name = format!("{HOG} {:x}", self.fresh());
        let definition = TableDef { indexes: Vec::new(), ..Tables::definition(&name, Placement::Replicated, false) };
        let table = match self.worker.create_table(definition).await {
            Ok(table) => table,
            Err(error) if is_refusal(&error) => {
                self.left.push(name);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let filled = self.fill_up(&table).await;
        // Other clients need the room, whatever has happened.
        self.drop_table(&table).await?;
        match filled {
            Err(error) if is_refusal(&error) => Ok(()),
            filled => filled,
        }
    }

    async fn fill_up(&mut self, table: &Table) -> Result<(), TxnError> {
        let row = Row { padding: HOG_PADDING, ..self.row(0) };
        let mut filled = 0;
        let full = loop {
            match self.insert(table, filled + 1, &row).await {
                Ok(()) if filled < HOG_ROWS_MAX => filled += 1,
                Ok(()) => return Ok(()),
                Err(error) => break error,
            }
        };
        if !matches!(full, TxnError::OutOfMemory { .. }) {
            return Err(full);
        }
        for key in (1..=filled).step_by(2) {
            let mut txn = self.worker.begin();
            if let Some(found) = txn.get(table, &Row::key(key)).await? {
                txn.delete(found)?;
            }
            txn.commit().await?;
        }
        Ok(())
    }

    async fn insert(&self, table: &Table, key: u32, row: &Row) -> Result<(), TxnError> {
        let mut txn = self.worker.begin();
        txn.insert(table, &Row::key(key), &row.value(table, key)).await?;
        txn.commit().await.map(drop)
    }

    async fn step(&mut self, step: Step) -> Result<(), TxnError> {
        match step {
            Step::Write => self.write().await,
            Step::Read => self.read().await,
            Step::Look => self.look().await,
            Step::Pay => self.pay().await,
            Step::Index => self.index().await,
            Step::Count => self.taker.take_some().await,
            Step::Renew => self.renew().await,
            Step::Fill => self.fill().await,
        }
    }
}

impl Persistent for Changer {
    type Asked = Step;

    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }

    fn draw(&mut self) -> Step {
        let mut dice = self.dice(100);
        for (step, share) in Step::SHARES {
            match dice.checked_sub(share) {
                Some(rest) => dice = rest,
                None => return step,
            }
        }
        Step::Write
    }

    async fn attempt(&mut self, asked: &Step) -> Result<(), TxnError> {
        match self.step(*asked).await {
            // The region is full, or a unique index has the value: that is an answer.
            Ok(()) | Err(TxnError::OutOfMemory { .. } | TxnError::DuplicateKey { .. }) => {
                self.kept.borrow_mut().commits += 1;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.dice(limit)
    }

    fn broken(&mut self, what: String) {
        self.kept.borrow_mut().broken.push(what);
    }
}

/// A commit whose outcome is unknown counts as finished.
fn known<T>(outcome: Result<T, TxnError>) -> Result<(), TxnError> {
    match outcome {
        Err(error) if is_unknown(&error) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Why there is nothing to compare.
enum Unread {
    Refused(TxnError),
    /// What cannot be.
    Wrong(String),
}

impl From<TxnError> for Unread {
    fn from(error: TxnError) -> Self {
        Self::Refused(error)
    }
}

/// The rows of a table as one transaction sees them, by the primary key and by each index alike.
async fn read_all(worker: &Worker, table: &Table) -> Result<Rows, Unread> {
    let mut txn = worker.begin_read_only();
    let by_key = rows_of(&mut txn, table, ScanSpec::all()).await?;
    let mut by_index = Vec::new();
    for index in table.indexes().into_iter().filter(|index| index.ready) {
        let rows = rows_of(&mut txn, table, ScanSpec::all().index(index.index)).await?;
        by_index.push((index.definition.name, rows));
    }
    txn.commit().await?;
    let by_key = by_key.map_err(Unread::Wrong)?;
    for (name, rows) in by_index {
        let rows = rows.map_err(Unread::Wrong)?;
        if rows != by_key {
            let what = format!("{:?}: {name:?} leads to {rows:?}, the primary key to {by_key:?}", table.name());
            return Err(Unread::Wrong(what));
        }
    }
    Ok(by_key)
}

/// The rows of a scan, or the error in them. Before the commit, reads may be inconsistent.
async fn rows_of(txn: &mut Txn, table: &Table, spec: ScanSpec<'_>) -> Result<Result<Rows, String>, TxnError> {
    let handles = txn.scan(table, spec).await?;
    let all = handles.iter().map(|handle| row_of(table, txn.key(*handle), txn.value(*handle)));
    let all: Result<Vec<_>, _> = all.collect();
    Ok(all.and_then(|all| without_doubles(table, all)))
}

fn row_of(table: &Table, key: &[u8], value: &[u8]) -> Result<(u32, Row), String> {
    let key = Row::key_of(key).unwrap_or(0);
    let row = Row::of(table, key, value).map_err(|what| format!("row {key} of {:?}: {what}", table.name()))?;
    Ok((key, row))
}

fn without_doubles(table: &Table, all: Vec<(u32, Row)>) -> Result<Rows, String> {
    let count = all.len();
    let rows: Rows = all.into_iter().collect();
    let name = table.name();
    if rows.len() == count { Ok(rows) } else { Err(format!("{name:?} has {count} rows of {} keys", rows.len())) }
}

async fn read_snapshot(worker: &Worker, snapshot: &Snapshot, table: &Table) -> Result<Rows, Unread> {
    let mut all = Vec::new();
    for task in worker.snapshot_pages(snapshot, table).await? {
        let mut visit = |key: &[u8], value: &[u8]| all.push(row_of(table, key, value));
        worker.scan_page(snapshot, &task, &mut visit).await?;
    }
    let all: Result<Vec<_>, _> = all.into_iter().collect();
    all.and_then(|all| without_doubles(table, all)).map_err(Unread::Wrong)
}

/// Checks that everything acknowledged to a client is there, and drops all tables except the purse.
pub(super) async fn audit(worker: &Worker, kept: &RefCell<Kept>) -> Result<(), String> {
    let node = worker.node();
    let shelves = kept.borrow().shelves();
    for name in shelves.iter().map(String::as_str).chain([PURSE]) {
        let table = node.table(name).ok_or_else(|| format!("table {name:?} is not there"))?;
        match read_all(worker, &table).await {
            Ok(rows) => kept.borrow_mut().saw(name, &rows, "at the end"),
            Err(Unread::Refused(error)) => return Err(format!("table {name:?} at the end: {error}")),
            Err(Unread::Wrong(what)) => return Err(format!("at the end: {what}")),
        }
    }
    for table in node.tables().into_iter().filter(|table| table.name() != PURSE) {
        let dropped = worker.drop_table(&table).await;
        dropped.map_err(|error| format!("drop of {:?} at the end: {error}", table.name()))?;
    }
    Ok(())
}
