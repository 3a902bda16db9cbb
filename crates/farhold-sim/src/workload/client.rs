//! One client: its random transactions, each recorded if it commits.

use super::{BY_ATTRIBUTE, COPIED, Persistent, Recorder, Row, SPREAD, Tables, Workload};
use crate::cluster::is_expected;
use crate::history::{By, Key, RangeRead, Read, Record, Saw, Write};
use farhold_fabric::Handle;
use farhold_store::row::Datum;
use farhold_txn::{CommitInfo, Retry, RowHandle, ScanSpec, Txn, TxnError, Worker, last_unknown};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

/// Attempts at one transaction; afterwards the client draws another.
const ATTEMPTS: u32 = 4;
/// How often the final read is tried. Two attempts are up to a millisecond apart, so a change of the configuration is over
/// by the last one.
const LOOKS_MAX: u32 = 1_000;

/// A client of one worker.
pub struct Client {
    name: String,
    worker: Worker,
    handle: Handle,
    tables: Tables,
    workload: Workload,
    recorder: Rc<RefCell<Recorder>>,
    /// Whether its transactions are all the one of [`Self::try_everything`].
    scripted: bool,
    /// Whether regions may be full now and then.
    in_small_regions: bool,
    cut_short: CutShort,
}

/// The outcome of a commit whose caller learns that it is committed, but that a node became unavailable while it was being
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutShort {
    /// It is written in the end: nodes are paused or cut off, and go on.
    #[default]
    Late,
    /// After the next power cut it is there or not, depending on whether a journal has it.
    InDoubt,
    /// Rows of nodes that have died may be as they were: rows have one copy.
    Half,
}

/// A transaction with what it has seen and done.
struct Running<'c> {
    client: &'c Client,
    txn: Txn,
    record: Record,
    /// What it has written: the row's attribute, or nothing.
    own: BTreeMap<Key, Option<i64>>,
    /// Contradictions between reads. Reads need not be of one moment until the commit succeeds.
    doubts: Vec<String>,
    read_only: bool,
}

impl Client {
    /// A client of this worker.
    #[must_use]
    pub fn new(number: usize, worker: &Worker, workload: &Workload, recorder: Rc<RefCell<Recorder>>) -> Self {
        Self {
            name: format!("client {number} of {}", worker.node().id()),
            worker: worker.clone(),
            handle: worker.handle().clone(),
            tables: Tables::of(worker),
            workload: workload.clone(),
            recorder,
            scripted: false,
            in_small_regions: false,
            cut_short: CutShort::default(),
        }
    }

    /// The outcome of commits that miss a node.
    #[must_use]
    pub fn with_cut_short(self, cut_short: CutShort) -> Self {
        Self { cut_short, ..self }
    }

    /// Other clients fill the regions now and then: a transaction that finds no room is tried again.
    #[must_use]
    pub fn in_small_regions(self) -> Self {
        Self { in_small_regions: true, ..self }
    }

    /// Its transactions are not drawn: each updates, deletes and inserts a row of every node, and updates a replicated row.
    #[must_use]
    pub fn scripted(self) -> Self {
        Self { scripted: true, ..self }
    }

    /// Runs `transactions` transactions, each until it commits or has failed a few times.
    pub async fn run(self, transactions: usize) {
        for _ in 0..transactions {
            if self.below(100) < self.workload.snapshots {
                self.look_at_snapshot().await;
                continue;
            }
            for attempt in 1..=ATTEMPTS {
                match self.try_one().await {
                    Ok(()) => break,
                    Err(error) if self.expects(&error) => self.worker.back_off(Retry::default(), attempt).await,
                    Err(error) => {
                        self.broken(&format!("{}: {error}", self.name));
                        return;
                    }
                }
            }
        }
    }

    /// Reads the rows of [`SPREAD`] but these, each by itself: a transaction that met one of these would be refused.
    pub async fn look_at_all_but(&self, damaged: &BTreeSet<Key>) {
        for key in 1..=self.workload.keys {
            let name = Key { table: SPREAD, key: u64::from(key) };
            if !damaged.contains(&name) {
                self.look_until_settled(&name.to_string(), async || self.look_at_row(key).await).await;
            }
        }
    }

    async fn look_at_row(&self, key: u32) -> Result<(), TxnError> {
        let mut running = self.begin(true);
        running.read(SPREAD, key).await?;
        running.commit().await
    }

    /// Reads both tables in one transaction each, when no other client runs. Cached locations may be out of date, and a
    /// cluster that has just started still fills its mirrors, which changes its configuration. Such a read is soon
    /// repeated.
    pub async fn look_at_everything(&self) {
        for number in [SPREAD, COPIED] {
            self.look_until_settled(&format!("table {number}"), async || self.look_at_table(number).await).await;
        }
        self.look_until_settled("a snapshot", async || self.try_snapshot().await).await;
    }

    async fn look_until_settled(&self, at: &str, look: impl AsyncFn() -> Result<(), TxnError>) {
        if let Err(error) = self.look_while(is_expected, look).await {
            self.broken(&format!("a look at {at} after the run: {error}"));
        }
    }

    /// Repeats the read, for some time, after temporary errors.
    async fn look_while(
        &self,
        passes: impl Fn(&TxnError) -> bool,
        look: impl AsyncFn() -> Result<(), TxnError>,
    ) -> Result<(), TxnError> {
        for attempt in 1..LOOKS_MAX {
            match look().await {
                Err(error) if passes(&error) => self.worker.back_off(Retry::default(), attempt).await,
                done => return done,
            }
        }
        look().await
    }

    async fn look_at_table(&self, number: u32) -> Result<(), TxnError> {
        let mut running = self.begin(true);
        running.range_by_key(number, 1, self.workload.keys, usize::MAX, false).await?;
        running.commit().await
    }

    fn expects(&self, error: &TxnError) -> bool {
        is_expected(error) || (self.in_small_regions && matches!(error, TxnError::OutOfMemory { .. }))
    }

    fn below(&self, limit: u32) -> u32 {
        (self.handle.random_u64() % u64::from(limit.max(1))) as u32
    }

    fn now(&self) -> u64 {
        self.recorder.borrow().now()
    }

    fn broken(&self, what: &str) {
        self.recorder.borrow_mut().broken.push(what.to_owned());
    }

    fn begin(&self, read_only: bool) -> Running<'_> {
        let id = self.recorder.borrow_mut().next_id();
        let label = format!("{}{}", self.name, if read_only { ", read-only" } else { "" });
        let record = Record { id, label, began: self.now(), ..Record::default() };
        let txn = if read_only { self.worker.begin_read_only() } else { self.worker.begin() };
        Running { client: self, txn, record, own: BTreeMap::new(), doubts: Vec::new(), read_only }
    }

    async fn try_one(&self) -> Result<(), TxnError> {
        let read_only = self.below(100) < self.workload.read_only;
        let mut running = self.begin(read_only);
        for _ in 0..=self.below(self.workload.operations) {
            running.operation().await?;
            if self.below(4) == 0 {
                self.handle.sleep_ns(u64::from(self.below(3_000))).await;
            }
        }
        if self.below(20) == 0 {
            running.txn.abort();
            return Ok(());
        }
        running.commit().await
    }

    /// Of each node: an update, a delete and an insert.
    async fn try_everything(&self) -> Result<(), TxnError> {
        let mut running = self.begin(false);
        for node in 0..3 {
            running.update(SPREAD, 1 + node).await?;
            running.delete(SPREAD, 4 + node).await?;
            running.insert(SPREAD, self.workload.rows + 1 + node).await?;
        }
        running.update(COPIED, 1).await?;
        running.commit().await
    }

    /// One state of everything, without a transaction. While mirrors are filled at the start none can be taken, as after a run.
    async fn look_at_snapshot(&self) {
        let is_changing = |error: &TxnError| matches!(error, TxnError::Recovering { .. });
        let look = async || self.try_snapshot().await;
        if let Err(error) = self.look_while(is_changing, look).await {
            self.broken(&format!("{}, snapshot: {error}", self.name));
        }
    }

    async fn try_snapshot(&self) -> Result<(), TxnError> {
        let id = self.recorder.borrow_mut().next_id();
        let began = self.now();
        let snapshot = self.worker.snapshot().await?;
        let mut record = Record {
            id,
            label: format!("{}, snapshot of epoch {}", self.name, snapshot.epoch()),
            began,
            snapshot: Some(snapshot.epoch()),
            ..Record::default()
        };
        self.handle.sleep_ns(u64::from(self.below(5_000))).await;
        for number in [SPREAD, COPIED] {
            let table = self.tables.get(number);
            let mut saw = Vec::new();
            let mut rows = Vec::new();
            for task in self.worker.snapshot_pages(&snapshot, table).await? {
                let mut visit = |key: &[u8], value: &[u8]| rows.push((key.to_vec(), value.to_vec()));
                self.worker.scan_page(&snapshot, &task, &mut visit).await?;
            }
            for (key, value) in rows {
                let key = Row::key_of(&key).unwrap_or(0);
                match Row::of(table, key, &value) {
                    Ok(row) => {
                        let key = Key { table: number, key: u64::from(key) };
                        record.reads.push(Read { key, saw: row.saw() });
                        saw.push(key.key);
                    }
                    Err(what) => self.broken(&format!("{}, row {key} of table {number}: {what}", record.label)),
                }
            }
            record.ranges.push(RangeRead { table: number, by: By::Key, lo: 0, hi: i64::MAX, saw });
        }
        record.ended = self.now();
        self.recorder.borrow_mut().add(record);
        Ok(())
    }
}

impl Persistent for Client {
    type Asked = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }

    fn draw(&mut self) {}

    async fn attempt(&mut self, (): &()) -> Result<(), TxnError> {
        if self.scripted {
            self.try_everything().await
        } else if Self::below(self, 100) < self.workload.snapshots {
            self.try_snapshot().await
        } else {
            self.try_one().await
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        u64::from(Self::below(self, limit as u32))
    }

    fn broken(&mut self, what: String) {
        Self::broken(self, &what);
    }
}

/// Errors of a node that loses its cluster, another node, or its journal.
#[must_use]
pub fn is_of_a_death(error: &TxnError) -> bool {
    matches!(
        error,
        TxnError::NodeUnavailable { .. }
            | TxnError::OutcomeUnknown
            | TxnError::DiskFull { .. }
            | TxnError::NotDurable { .. }
    )
}

impl Running<'_> {
    fn id(&self) -> u64 {
        self.record.id
    }

    async fn operation(&mut self) -> Result<(), TxnError> {
        let client = self.client;
        let workload = &client.workload;
        let number = if client.below(100) < workload.on_copies { COPIED } else { SPREAD };
        let key = 1 + client.below(workload.keys);
        let dice = client.below(100);
        let kinds = [workload.reads, workload.updates, workload.inserts, workload.deletes, workload.ranges];
        let mut until = 0;
        let kind = kinds.iter().position(|share| {
            until += share;
            dice < until
        });
        match kind {
            Some(1) if !self.read_only => self.update(number, key).await,
            Some(2) if !self.read_only => self.insert(number, key).await,
            Some(3) if !self.read_only => self.delete(number, key).await,
            Some(4) => {
                let hi = key + client.below(workload.keys / 2);
                let limit = if client.below(2) == 0 { usize::MAX } else { 1 + client.below(4) as usize };
                self.range_by_key(number, key, hi, limit, client.below(2) == 0).await
            }
            None => self.range_by_attribute(number).await,
            _ => self.read(number, key).await.map(|_| ()),
        }
    }

    /// Notes what a read saw, unless it saw a row of the transaction's own.
    fn note(&mut self, key: Key, saw: Saw) {
        if !self.own.contains_key(&key) {
            self.record.reads.push(Read { key, saw });
        }
    }

    /// The row of a handle; notes it.
    fn see(&mut self, number: u32, handle: RowHandle) -> Option<(u32, Row)> {
        let table = self.client.tables.get(number);
        let key = Row::key_of(self.txn.key(handle)).unwrap_or(0);
        match Row::of(table, key, self.txn.value(handle)) {
            Ok(row) => {
                self.note(Key { table: number, key: u64::from(key) }, row.saw());
                Some((key, row))
            }
            Err(what) => {
                self.client.broken(&format!("{}, row {key} of table {number}: {what}", self.record.label));
                None
            }
        }
    }

    async fn read(&mut self, number: u32, key: u32) -> Result<Option<(RowHandle, Row)>, TxnError> {
        let name = Key { table: number, key: u64::from(key) };
        let found = self.txn.get(self.client.tables.get(number), &Row::key(key)).await?;
        let Some(handle) = found else {
            if matches!(self.own.get(&name), Some(Some(_))) {
                self.doubts.push(format!("{}: its own row {name} is not there", self.record.label));
            }
            self.note(name, Saw::Absent);
            return Ok(None);
        };
        let seen = self.see(number, handle);
        if let Some((other, _)) = seen
            && other != key
        {
            self.client.broken(&format!("{}: asked for row {key}, got row {other}", self.record.label));
        }
        if let (Some(own), Some((_, row))) = (self.own.get(&name), seen)
            && *own != Some(i64::from(row.attribute))
        {
            self.doubts.push(format!("{}: read {row:?} after it wrote {own:?} to {name}", self.record.label));
        }
        Ok(seen.map(|(_, row)| (handle, row)))
    }

    fn new_row(&self, padding: u32) -> Row {
        let attribute = self.client.below(self.client.workload.attributes).cast_signed();
        Row { writer: self.id(), attribute, padding }
    }

    fn some_padding(&self) -> u32 {
        let Workload { padding, padding_min, .. } = self.client.workload;
        padding_min + self.client.below(padding - padding_min + 1)
    }

    async fn update(&mut self, number: u32, key: u32) -> Result<(), TxnError> {
        let Some((handle, old)) = self.read(number, key).await? else { return Ok(()) };
        let in_place = self.client.below(2) == 0;
        let row = self.new_row(if in_place { old.padding } else { self.some_padding() });
        let value = row.value(self.client.tables.get(number), key);
        if in_place {
            self.txn.value_mut(handle).copy_from_slice(&value);
        } else {
            self.txn.update(handle, &value)?;
        }
        self.own.insert(Key { table: number, key: u64::from(key) }, Some(i64::from(row.attribute)));
        Ok(())
    }

    async fn insert(&mut self, number: u32, key: u32) -> Result<(), TxnError> {
        let name = Key { table: number, key: u64::from(key) };
        let row = self.new_row(self.some_padding());
        let table = self.client.tables.get(number);
        match self.txn.insert(table, &Row::key(key), &row.value(table, key)).await {
            Ok(_) => {
                self.note(name, Saw::Absent);
                self.own.insert(name, Some(i64::from(row.attribute)));
                Ok(())
            }
            Err(TxnError::DuplicateKey { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn delete(&mut self, number: u32, key: u32) -> Result<(), TxnError> {
        let Some((handle, _)) = self.read(number, key).await? else { return Ok(()) };
        self.txn.delete(handle)?;
        self.own.insert(Key { table: number, key: u64::from(key) }, None);
        Ok(())
    }

    async fn range_by_key(
        &mut self,
        number: u32,
        lo: u32,
        hi: u32,
        limit: usize,
        descending: bool,
    ) -> Result<(), TxnError> {
        let (first, last) = (Row::key(lo), Row::key(hi));
        let bounds = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        let spec = ScanSpec { lo: bounds.0, hi: bounds.1, limit, descending, ..ScanSpec::all() };
        let handles = self.txn.scan(self.client.tables.get(number), spec).await?;
        let mut saw = Vec::new();
        for handle in &handles {
            saw.extend(self.see(number, *handle).map(|(key, _)| key));
        }
        if saw.windows(2).any(|pair| if descending { pair[0] <= pair[1] } else { pair[0] >= pair[1] }) {
            self.doubts.push(format!("{}: a range in disorder: {saw:?}", self.record.label));
        }
        if handles.len() > limit {
            self.client.broken(&format!("{}: {} rows of at most {limit}", self.record.label, handles.len()));
        }
        let (mut lo, mut hi) = (lo, hi);
        if handles.len() == limit {
            match (saw.last(), descending) {
                (Some(last), false) => hi = *last,
                (Some(last), true) => lo = *last,
                (None, _) => return Ok(()),
            }
        }
        self.note_range(number, By::Key, (i64::from(lo), i64::from(hi)), &saw);
        Ok(())
    }

    async fn range_by_attribute(&mut self, number: u32) -> Result<(), TxnError> {
        let table = self.client.tables.get(number);
        let attribute = self.client.below(self.client.workload.attributes).cast_signed();
        let width = self.client.below(2).cast_signed();
        let keys = table.keys_of(BY_ATTRIBUTE)?;
        let (mut lo, mut hi) = (Vec::new(), Vec::new());
        keys.encode_parts(table.schema(), &[Datum::Int(attribute)], &mut lo)?;
        keys.encode_parts(table.schema(), &[Datum::Int(attribute + width + 1)], &mut hi)?;
        let handles = self.txn.scan(table, ScanSpec::range(&lo, &hi).index(BY_ATTRIBUTE)).await?;
        let mut saw = Vec::new();
        for handle in handles {
            let Some((key, row)) = self.see(number, handle) else { continue };
            if !(attribute..=attribute + width).contains(&row.attribute) {
                self.doubts.push(format!("{}: {row:?} in a range of {attribute}", self.record.label));
            }
            saw.push(key);
        }
        self.note_range(number, By::Attribute, (i64::from(attribute), i64::from(attribute + width)), &saw);
        Ok(())
    }

    /// Rows that it has written itself count as seen: whether they are in the range is its own doing.
    fn note_range(&mut self, number: u32, by: By, (lo, hi): (i64, i64), saw: &[u32]) {
        let own = self.own.keys().filter(|key| key.table == number).map(|key| key.key);
        let saw = saw.iter().map(|key| u64::from(*key)).chain(own).collect();
        self.record.ranges.push(RangeRead { table: number, by, lo, hi, saw });
    }

    async fn commit(self) -> Result<(), TxnError> {
        let Self { client, txn, mut record, own, doubts, .. } = self;
        let committed = txn.commit().await;
        let is_cut_short = matches!(committed, Err(TxnError::NodeUnavailable { committed: true, .. }));
        let info = match committed {
            Err(
                TxnError::OutcomeUnknown
                | TxnError::NotDurable { committed: true, .. }
                | TxnError::NodeUnavailable { committed: true, .. },
            ) => {
                let (serial, epoch) = last_unknown();
                record.in_doubt = !is_cut_short || client.cut_short == CutShort::InDoubt;
                CommitInfo { serial, epoch, rows_written: 0 }
            }
            committed => committed?,
        };
        client.recorder.borrow_mut().broken.extend(doubts);
        record.ended = if is_cut_short { Record::NEVER } else { client.now() };
        record.serial = info.serial;
        record.epoch = info.epoch;
        // A row inserted and deleted again was never there for others.
        let absent = |key: &Key| record.reads.iter().any(|read| read.key == *key && read.saw == Saw::Absent);
        let writes = own.iter().filter(|(key, row)| row.is_some() || !absent(key));
        record.writes = writes.map(|(key, row)| Write { key: *key, row: *row }).collect();
        let mut recorder = client.recorder.borrow_mut();
        if is_cut_short && client.cut_short == CutShort::Half {
            recorder.cut_short.push((record.id, client.worker.node().id()));
        }
        recorder.add(record);
        Ok(())
    }
}
