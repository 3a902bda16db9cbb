//! Scans of pages that are mapped here.

use super::{MappedPlace, PageTask, Snapshot, TURNS_MIN, TURNS_PER_CHECK};
use crate::base::error::TxnError;
use farhold_fabric::NodeId;
use farhold_store::snapshot::{Blocked, RunScan, Visit};
use std::time::{Duration, Instant};

/// How often a locked row is looked at before the thread gives up its turn; a local commit takes some µs.
const LOOKS_PER_TURN: u32 = 1_000;
impl Snapshot {
    /// Visits (key bytes, value bytes) of every row of this state in these pages, in no order. Pages that are not mapped here are
    /// read by another thread of the node, which this one waits for.
    ///
    /// # Errors
    /// [`TxnError::NodeUnavailable`] if a row stays locked for seconds: its owner is dead; or if the node of the pages is.
    pub fn scan_page(&self, task: &PageTask, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), TxnError> {
        self.scan_page_part(task, usize::MAX, &mut Vec::new(), visit)
    }

    /// As [`scan_page`](Self::scan_page) of pages that are mapped here, with each row's object.
    pub(crate) fn scan_objects(&self, task: &PageTask, visit: &mut Visit<'_>) -> Result<(), TxnError> {
        let Some(mapped) = &self.places[task.place].mapped else {
            return Err(TxnError::NodeUnavailable { node: task.node, committed: false });
        };
        let (mut scan, mut room) = (MappedScan::new(self, mapped, task, usize::MAX), Vec::new());
        while !scan.go_on(&mut room, visit)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// As [`scan_page`](Self::scan_page), with at least the first `value_bytes` bytes of each value that is as long:
    /// for scans that want the first columns of wide rows. `room` is kept between calls.
    ///
    /// # Errors
    /// As [`scan_page`](Self::scan_page).
    pub fn scan_page_part(
        &self,
        task: &PageTask,
        value_bytes: usize,
        room: &mut Vec<u8>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        let place = &self.places[task.place];
        let Some(mapped) = &place.mapped else {
            let rows = self.node.far_reads.rows(&self.node, place.start, task.part, self.as_of);
            rows.map_err(|error| self.node.retryable(error))?.visit(visit);
            return Ok(());
        };
        let mut scan = MappedScan::new(self, mapped, task, value_bytes);
        while !scan.go_on(room, &mut |_, key, value| visit(key, value))? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A scan of pages that are mapped here.
pub(super) struct MappedScan<'s> {
    snapshot: &'s Snapshot,
    node: NodeId,
    rows: RunScan<'s>,
    patience: Patience,
}

impl<'s> MappedScan<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, place: &'s MappedPlace, task: &PageTask, value_bytes: usize) -> Self {
        crate::base::planted::may_stop();
        let rows = RunScan::new(&place.memory, task.part.run, snapshot.as_of.epoch).values_up_to(value_bytes);
        let patience = Patience::new(snapshot.node.config().request_timeout_ns);
        Self { snapshot, node: task.node, rows, patience }
    }

    /// Visits rows up to the end, or until the thread should let others go on because of a locked row: false.
    pub(super) fn go_on(&mut self, room: &mut Vec<u8>, visit: &mut Visit<'_>) -> Result<bool, TxnError> {
        loop {
            let went = self.rows.go_on(room, visit);
            let went = went.map_err(|error| TxnError::store(error, self.node))?;
            let Err(blocked) = went else { return self.snapshot.check().map(|()| true) };
            if self.patience.looks_again(blocked) {
                std::hint::spin_loop();
                continue;
            }
            if self.patience.is_over() {
                let unavailable = TxnError::NodeUnavailable { node: self.node, committed: false };
                return Err(self.snapshot.node.retryable(unavailable));
            }
            if self.patience.looks.is_multiple_of(LOOKS_PER_TURN * TURNS_PER_CHECK) {
                self.snapshot.check()?;
            }
            return Ok(false);
        }
    }
}

/// How long a scan waits for the owner of one row's lock.
struct Patience {
    limit: Duration,
    blocked: Option<Blocked>,
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new(limit_ns: u64) -> Self {
        Self { limit: Duration::from_nanos(limit_ns), blocked: None, looks: 0, since: None }
    }

    /// Another look; false when the owner should be given some time.
    fn looks_again(&mut self, blocked: Blocked) -> bool {
        if self.blocked != Some(blocked) {
            (self.blocked, self.looks, self.since) = (Some(blocked), 0, None);
        }
        self.looks += 1;
        !self.looks.is_multiple_of(LOOKS_PER_TURN)
    }

    /// The owner has had time enough: it is dead.
    fn is_over(&mut self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "mapped memory is only scanned in real time")]
        let since = *self.since.get_or_insert_with(Instant::now);
        self.looks / LOOKS_PER_TURN >= TURNS_MIN && since.elapsed() >= self.limit
    }
}
