//! Ranges of an index.

use crate::base::back_off::Patience;
use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::table::{Index, Table};
use crate::protocol::execute::far::FarRead;
use crate::protocol::execute::near::NearRead;
use crate::protocol::txn::spec::Partition;
use crate::protocol::txn::spec::ScanSpec;
use crate::protocol::txn::state::{RowState, State};
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use crate::rpc::message::{Page, Request};
use farhold_fabric::{FabricError, NodeId};
use farhold_store::ObjectRef;
use std::ops::{Bound, ControlFlow};

/// How far a scan of this node's rows came.
enum Scanned {
    All,
    /// A writer is at work on the row of this key, which has not been read.
    BusyAt(Vec<u8>),
    /// Other tasks get a turn; the row with this key is the next one.
    PausedAt(Vec<u8>),
}

/// How much of a row a scan begins to load before it comes to it: two lines, for header, key and the begin of the value. With the
/// rest of a longer row the processor's own prefetching helps.
const AHEAD_BYTES: u64 = 128;

/// Rows after which the thread's other tasks get a turn: some 0.3 ms.
const ROWS_PER_TURN: usize = 1024;

impl Txn {
    /// The rows of a range of an index, in its order; with this transaction's own changes.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`TxnError::NotFound`] for an index that is not there, [`TxnError::SchemaChanged`] for one that
    /// has been dropped.
    pub async fn scan(&mut self, table: &Table, spec: ScanSpec<'_>) -> Result<Vec<RowHandle>, TxnError> {
        self.scan_while(table, spec, &|| true).await
    }

    /// As [`scan`](Self::scan), while `go_on` returns true; it is called about every thousand rows. A scan that was stopped
    /// returns a part of the rows; only the caller knows that it was stopped.
    ///
    /// # Errors
    /// As there.
    pub async fn scan_while(
        &mut self,
        table: &Table,
        spec: ScanSpec<'_>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<RowHandle>, TxnError> {
        let mut rows = Vec::new();
        self.scan_into_while(table, spec, &mut rows, go_on).await?;
        Ok(rows)
    }

    /// As [`scan`](Self::scan), appending to `rows`.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub async fn scan_into(
        &mut self,
        table: &Table,
        spec: ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
    ) -> Result<(), TxnError> {
        self.scan_into_while(table, spec, rows, &|| true).await
    }

    #[inline]
    async fn scan_into_while(
        &mut self,
        table: &Table,
        spec: ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), TxnError> {
        let shared = self.enter(table)?;
        shared.check_readable(spec.index)?;
        let node = self.node_of(shared, &spec);
        let before = rows.len();
        let scanned = if node == Some(self.me()) {
            match self.scan_near(shared, &spec, rows) {
                Ok(Scanned::All) => Ok(()),
                Ok(at) => Box::pin(self.scan_near_patiently(shared, &spec, at, rows, before, go_on)).await,
                Err(error) => Err(error),
            }
        } else {
            Box::pin(self.scan_far(shared, &spec, node, rows, go_on)).await
        };
        let scanned = scanned.and_then(|()| self.add_changed_rows(shared, &spec, rows, before));
        self.note(scanned)
    }

    /// The one node to ask, `None` for all.
    #[inline]
    fn node_of(&self, table: SharedTable, spec: &ScanSpec<'_>) -> Option<NodeId> {
        if let Partition::Node(node) = spec.partition {
            return Some(node);
        }
        if table.route.is_local_only() {
            return Some(self.me());
        }
        let bytes = table.route.integer_bytes().filter(|_| table.begins_with_placement(spec.index))?;
        let (Bound::Included(lo) | Bound::Excluded(lo), Bound::Included(hi) | Bound::Excluded(hi)) = (spec.lo, spec.hi)
        else {
            return None;
        };
        let (first, last) = (lo.get(..bytes)?, hi.get(..bytes)?);
        // An end just behind the last key of one integer, as the end of a prefix is written, still means that integer.
        let next = |first: &[u8]| {
            first
                .iter()
                .rev()
                .zip(last.iter().rev())
                .scan(true, |carry, (a, b)| {
                    let (sum, over) = a.overflowing_add(u8::from(*carry));
                    *carry = over;
                    Some(sum == *b)
                })
                .all(|same| same)
        };
        let ends_before = matches!(spec.hi, Bound::Excluded(hi) if hi.len() == bytes) && next(first);
        (first == last || ends_before).then(|| table.route.by_integer(first))
    }

    /// The rows of this node.
    #[inline]
    fn scan_near(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
    ) -> Result<Scanned, TxnError> {
        self.check_room(0)?;
        let me = self.me();
        let (mut left, mut turn) = (spec.limit, ROWS_PER_TURN);
        if left == 0 {
            return Ok(Scanned::All);
        }
        let mut leaves = std::mem::take(&mut self.state.leaves);
        let state: &mut State = &mut self.state;
        let mut scanned = Ok(Scanned::All);
        let mut visit = |key: &[u8], word: u64| {
            if turn == 0 {
                scanned = Ok(Scanned::PausedAt(key.to_vec()));
                return ControlFlow::Break(());
            }
            turn -= 1;
            match state.visit(table, spec.index, key, Ident::new(me, ObjectRef::from_bits(word))) {
                Ok(Visited::Row(row)) => {
                    rows.push(row);
                    left -= 1;
                }
                Ok(Visited::Nothing) => {}
                Ok(Visited::Busy) => {
                    scanned = Ok(Scanned::BusyAt(key.to_vec()));
                    return ControlFlow::Break(());
                }
                Err(error) => {
                    scanned = Err(error);
                    return ControlFlow::Break(());
                }
            }
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if let Some(index) = table.store.index(spec.index.number()) {
            // For a scan that wants few rows, the rows after them are not loaded.
            let (memory, mut wanted) = (table.store.store().memory(), spec.limit);
            let mut ahead = |word: u64| {
                if wanted > 0 {
                    wanted -= 1;
                    memory.prefetch(ObjectRef::from_bits(word).offset(), AHEAD_BYTES);
                }
            };
            if spec.descending {
                index.scan_rev_ahead(spec.lo, spec.hi, &mut visit, &mut ahead, &mut leaves);
            } else {
                index.scan_ahead(spec.lo, spec.hi, &mut visit, &mut ahead, &mut leaves);
            }
        }
        let held = &mut self.state.group(table.0, spec.index, me).leaves;
        leaves.drain(..).for_each(|leaf| held.push(leaf));
        self.state.leaves = leaves;
        scanned
    }

    /// Goes on from where a scan has stopped, letting others run; of `rows`, the first `before` were there before the scan.
    async fn scan_near_patiently(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        mut at: Scanned,
        rows: &mut Vec<RowHandle>,
        before: usize,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), TxnError> {
        let core = self.core.clone();
        let (mut patience, mut waited_at) = (Patience::default(), Vec::new());
        loop {
            let key = match at {
                Scanned::All => return Ok(()),
                Scanned::BusyAt(key) => {
                    if key != waited_at {
                        (patience, waited_at) = (Patience::default(), key.clone());
                    }
                    if !patience.wait(&core.handle).await {
                        return Err(TxnError::Conflict);
                    }
                    key
                }
                Scanned::PausedAt(key) => {
                    if !go_on() {
                        return Ok(());
                    }
                    core.handle.yield_now().await;
                    key
                }
            };
            let from = Bound::Included(&key[..]);
            let (lo, hi) = if spec.descending { (spec.lo, from) } else { (from, spec.hi) };
            let rest = ScanSpec { lo, hi, limit: spec.limit - (rows.len() - before).min(spec.limit), ..*spec };
            at = self.scan_near(table, &rest, rows)?;
        }
    }

    /// Rows that this transaction has changed are in a secondary index under their old keys until the commit: takes them
    /// from where they no longer belong and adds them where they do.
    #[inline]
    fn add_changed_rows(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
        before: usize,
    ) -> Result<(), TxnError> {
        if spec.index == Index::Primary || !self.state.written_with_indexes {
            return Ok(());
        }
        self.add_changed_rows_cold(table, spec, rows, before)
    }

    #[cold]
    fn add_changed_rows_cold(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
        before: usize,
    ) -> Result<(), TxnError> {
        let keys = table.keys_of(spec.index)?;
        let mut keyed = Vec::with_capacity(rows.len() - before);
        let mut made = Vec::new();
        let candidates = (0..self.state.rows.len() as u32).map(RowHandle).filter(|handle| {
            let row = self.state.row(*handle);
            row.table == table.0 && row.has_new_value() && row.state.is_live()
        });
        for handle in rows.drain(before..) {
            let row = self.state.row(handle);
            keys.make(&table.schema, self.state.key(row), self.state.value(row), &mut made)?;
            keyed.push((made.clone(), handle));
        }
        for handle in candidates {
            let row = self.state.row(handle);
            let home = table.route.home(self.state.key(row));
            let asked = !matches!(spec.partition, Partition::Node(node) if node != home);
            keys.make(&table.schema, self.state.key(row), self.state.value(row), &mut made)?;
            if asked && spec.contains(&made) && !keyed.iter().any(|(_, known)| *known == handle) {
                keyed.push((made.clone(), handle));
            }
        }
        keyed.sort();
        if spec.descending {
            keyed.reverse();
        }
        keyed.truncate(spec.limit);
        rows.extend(keyed.into_iter().map(|(_, handle)| handle));
        Ok(())
    }

    /// Rows of another node, or of all.
    async fn scan_far(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        node: Option<NodeId>,
        rows: &mut Vec<RowHandle>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), TxnError> {
        if let Some(node) = node {
            return self.scan_node(table, spec, node, rows, go_on).await;
        }
        if table.route.has_unserved() {
            return Err(TxnError::Recovering { node: self.me() });
        }
        let mut found = Vec::new();
        let core = self.core.clone();
        for node in core.node.everybody() {
            let before = found.len();
            if node == self.me() {
                let at = self.scan_near(table, spec, &mut found)?;
                self.scan_near_patiently(table, spec, at, &mut found, before, go_on).await?;
            } else {
                self.scan_node(table, spec, node, &mut found, go_on).await?;
            }
        }
        let mut keyed = Vec::with_capacity(found.len());
        for handle in found {
            keyed.push((self.index_key(spec.index, handle)?, handle));
        }
        keyed.sort();
        if spec.descending {
            keyed.reverse();
        }
        keyed.truncate(spec.limit);
        rows.extend(keyed.into_iter().map(|(_, handle)| handle));
        Ok(())
    }

    /// The row's key in an index, as the index has it: by the value that was read.
    fn index_key(&self, index: Index, handle: RowHandle) -> Result<Vec<u8>, TxnError> {
        let row = self.state.row(handle);
        let mut made = Vec::new();
        if index == Index::Primary {
            made.extend(self.state.key(row));
        } else {
            let (key, value) = (self.state.key(row), self.state.old_value(row));
            row.table().keys_of(index)?.make(&row.table().schema, key, value, &mut made)?;
        }
        Ok(made)
    }

    /// The rows of one other node, page by page: its home names the objects, and they are read from afar.
    async fn scan_node(
        &mut self,
        table: SharedTable,
        spec: &ScanSpec<'_>,
        node: NodeId,
        rows: &mut Vec<RowHandle>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), TxnError> {
        self.state.far = true;
        let core = self.core.clone();
        core.check_served(node)?;
        core.touch(node).await?;
        let (mut left, mut last) = (spec.limit, None::<Vec<u8>>);
        while left > 0 && go_on() {
            self.check_room(0)?;
            let from = last.as_deref().map(Bound::Excluded);
            let (lo, hi) =
                if spec.descending { (spec.lo, from.unwrap_or(spec.hi)) } else { (from.unwrap_or(spec.lo), spec.hi) };
            let request = Request::Scan {
                table: table.store.id(),
                index: spec.index.number() as u16,
                lo,
                hi,
                descending: spec.descending,
                limit: u32::try_from(left).unwrap_or(u32::MAX),
            };
            let page = core.ask(node, &request, Page::decode).await?;
            let held = &mut self.state.group(table.0, spec.index, node).leaves;
            page.leaves.iter().for_each(|leaf| held.push(*leaf));
            self.read_ahead(table, node, &page.rows).await?;
            for (reference, payload_len) in page.rows {
                let visited =
                    match self.read_object_far(table, Ident::new(node, reference), payload_len as usize).await? {
                        FarRead::Row(handle) => {
                            let key = self.index_key(spec.index, handle)?;
                            self.state.visit_known(table, spec.index, &key, handle)?
                        }
                        // Stale: the row was removed after its home had named it; the leaf's stamp will show that.
                        FarRead::Absent | FarRead::Stale => Visited::Nothing,
                    };
                if let Visited::Row(handle) = visited {
                    rows.push(handle);
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
            }
            match page.last {
                Some(key) => last = Some(key),
                None => break,
            }
        }
        Ok(())
    }

    /// Reads all objects of a page that are not known yet, in one batch; those that are being written are left for later.
    async fn read_ahead(
        &mut self,
        table: SharedTable,
        node: NodeId,
        page: &[(ObjectRef, u32)],
    ) -> Result<(), TxnError> {
        let core = self.core.clone();
        let mut batch = core.take_batch();
        let mut wanted = Vec::with_capacity(page.len());
        for (reference, payload_len) in page {
            let ident = Ident::new(node, *reference);
            if self.state.find(ident).is_none() {
                wanted.push((ident, batch.read_object(ident.far(), *payload_len as usize)));
            }
        }
        if wanted.is_empty() {
            core.give_batch(batch);
            return Ok(());
        }
        let batch = core.endpoint.submit(batch).await;
        let mut outcome = Ok(());
        for (ident, slot) in wanted {
            match batch.object(slot) {
                Ok(view) if view.lock == 0 => drop(self.state.take_far(table.0, ident, &view)),
                Ok(_) | Err(FabricError::Torn { .. } | FabricError::ObjectTooLong { .. }) => {}
                Err(error) => outcome = Err(core.far_error(error, node)),
            }
        }
        core.give_batch(batch);
        outcome
    }
}

/// What a scan makes of an index entry.
pub(crate) enum Visited {
    Row(RowHandle),
    Nothing,
    Busy,
}

impl State {
    /// Brings the row of an index entry into the read set.
    #[inline]
    fn visit(&mut self, table: SharedTable, index: Index, key: &[u8], ident: Ident) -> Result<Visited, TxnError> {
        if let Some(known) = self.find(ident) {
            return self.visit_known(table, index, key, known);
        }
        Ok(match self.read_near(table.0, ident, table.store.store().object(ident.reference())) {
            NearRead::Row(handle) => Visited::Row(handle),
            // Stale: the row was removed after the leaf was copied; the leaf's stamp will show that.
            NearRead::Absent | NearRead::Stale => Visited::Nothing,
            NearRead::Busy => Visited::Busy,
            NearRead::Damaged => return Err(TxnError::HALF_WRITTEN),
        })
    }

    pub(crate) fn visit_known(
        &self,
        table: SharedTable,
        index: Index,
        key: &[u8],
        known: RowHandle,
    ) -> Result<Visited, TxnError> {
        Ok(self.own_view(table, index, key, known)?.map_or(Visited::Nothing, Visited::Row))
    }

    /// What the transaction itself sees where an index names a row that it has read: that row, its replacement, or nothing.
    #[inline]
    pub(crate) fn own_view(
        &self,
        table: SharedTable,
        index: Index,
        key: &[u8],
        known: RowHandle,
    ) -> Result<Option<RowHandle>, TxnError> {
        let row = self.row(known);
        let seen = match row.state {
            RowState::Absent | RowState::Skipped => None,
            RowState::Deleted | RowState::Gone => self.own_replacement(table.0, row.ident.node(), index, key)?,
            RowState::Read | RowState::Written | RowState::Inserted => Some(known),
        };
        let Some(seen) = seen else { return Ok(None) };
        let row = self.row(seen);
        // In a secondary index this may be the old place, which the transaction's change removes.
        let has_left = index != Index::Primary && row.has_new_value() && !self.is_at(row, index, key)?;
        Ok((!has_left).then_some(seen))
    }

    #[cold]
    fn is_at(&self, row: &crate::protocol::txn::state::Row, index: Index, key: &[u8]) -> Result<bool, TxnError> {
        let mut made = Vec::new();
        row.table().keys_of(index)?.make(&row.table().schema, self.key(row), self.value(row), &mut made)?;
        Ok(made == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::TableDef;
    use crate::node::{Node, NodeConfig};
    use crate::protocol::txn::state::BYTES_MAX;
    use farhold_fabric::Executor;
    use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
    use farhold_store::row::{Column, ColumnType, Datum, Schema};

    /// Reads count as writes do: places in the arena have 32 bits, and beyond them rows would have each other's bytes.
    #[test]
    fn a_transaction_that_reads_too_much_is_refused() {
        const ROWS: i64 = 3_000;
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let sim = Sim::new(&handle, Rdma, Faults::default());
        let config = NodeConfig { region_bytes: 32 << 20, ..NodeConfig::default() };
        let node = Node::open(sim.join(NodeId(0)).expect("a fabric"), config).expect("a node");
        let worker = node.worker(&handle).expect("a worker");
        executor.run(async move {
            let columns = vec![Column::new("id", ColumnType::BigInt), Column::new("note", ColumnType::Text)];
            let def = TableDef::new("notes", Schema::new(columns, vec![0]).expect("a schema"));
            let table = worker.create_table(def).await.expect("a table");
            let key = |id: i64| (id.cast_unsigned() ^ 1 << 63).to_be_bytes();
            let mut value = Vec::new();
            let note = Datum::Text("x".repeat(1_000));
            table.schema().encode_value(&[Datum::BigInt(0), note], &mut value).expect("a value");
            for id in 0..ROWS {
                let mut txn = worker.begin();
                txn.insert(&table, &key(id), &value).await.expect("inserted");
                txn.commit().await.expect("committed");
            }
            let is_too_large =
                |error: &TxnError| matches!(error, TxnError::TooLarge { bytes, .. } if *bytes > BYTES_MAX);
            let mut txn = worker.begin();
            let scanned = txn.scan(&table, ScanSpec::all()).await;
            assert!(scanned.as_ref().is_err_and(is_too_large), "{scanned:?}");
            let mut txn = worker.begin();
            let mut read = 0;
            let refused = loop {
                match txn.get(&table, &key(read)).await {
                    Ok(_) => read += 1,
                    Err(error) => break error,
                }
                assert!(read < ROWS, "it has read 3 MB");
            };
            assert!(is_too_large(&refused), "{refused}");
            // Another one has room.
            let mut txn = worker.begin();
            assert!(txn.get(&table, &key(1)).await.is_ok_and(|row| row.is_some()));
        });
    }
}
