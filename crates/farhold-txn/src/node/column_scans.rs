//! Scans of this node's columns that other nodes have asked for, between two of their questions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::error::TxnError;
use crate::base::table::Table;
use farhold_fabric::{FarPtr, NodeId};
use farhold_scan::access_path::FarChunk;
use farhold_scan::access_path::pushdown::{Home, Serving};
use farhold_store::column::copy::PlacedChunks;
use farhold_store::row::Schema;
use farhold_store::{Holder, Superblock};

/// How many there may be: each holds what passes of one segment.
const SCANS_MAX: usize = 16;

/// The scans.
#[derive(Default)]
pub(crate) struct ColumnScans(Mutex<HashMap<(NodeId, u64), ColumnScan>>);

/// One of them.
pub(crate) struct ColumnScan {
    /// The snapshot for which it scans.
    pub holder: Holder,
    pub epoch: u32,
    pub serving: Serving,
    pub home: ScannedHome,
    /// The last question about it, by the clock that all threads share.
    pub asked_ns: u64,
}

/// The columns that it scans. It owns their segments, so they stay whatever becomes of the snapshot.
pub(crate) struct ScannedHome {
    pub table: Table,
    pub chunks: PlacedChunks,
    /// Where the region of column memory begins.
    pub origin: FarPtr,
}

impl Home for ScannedHome {
    fn schema(&self) -> &Schema {
        self.table.schema()
    }

    fn chunk(&self, chunk: FarChunk) -> Option<&[u8]> {
        let is_here = chunk.at.is_with(self.origin) && chunk.at.offset() >= self.origin.offset();
        is_here.then(|| self.chunks.chunk(chunk.at.offset() - self.origin.offset(), chunk.bytes)).flatten()
    }
}

impl ColumnScan {
    /// Whether somebody may still ask for it.
    pub fn is_wanted(&self, superblock: Superblock<'_>, now_ns: u64, timeout_ns: u64) -> bool {
        self.asked_ns >= now_ns.saturating_sub(2 * timeout_ns) && superblock.has_open(self.holder, self.epoch)
    }
}

impl ColumnScans {
    fn all(&self) -> MutexGuard<'_, HashMap<(NodeId, u64), ColumnScan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up those for which `stays` does not hold. Each owns the segments of its table.
    pub fn retain(&self, stays: impl Fn(&ColumnScan) -> bool) {
        self.all().retain(|_, scan| stays(scan));
    }

    /// Takes out the scan of this number that a node has asked for: only one thread goes on with it.
    pub fn take(&self, node: NodeId, number: u64) -> Option<ColumnScan> {
        self.all().remove(&(node, number))
    }

    /// Keeps one until it is asked for again. Those for which `stays` does not hold make room.
    pub fn keep(&self, number: u64, scan: ColumnScan, stays: impl Fn(&ColumnScan) -> bool) -> Result<(), TxnError> {
        let mut all = self.all();
        if all.len() >= SCANS_MAX {
            all.retain(|_, scan| stays(scan));
        }
        if all.len() >= SCANS_MAX {
            return Err(TxnError::TooMany { what: "scans for other nodes", limit: SCANS_MAX });
        }
        all.insert((scan.holder.node, number), scan);
        Ok(())
    }
}
