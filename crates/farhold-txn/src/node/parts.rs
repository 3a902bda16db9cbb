//! What a snapshot asks nodes for: a state, the start of a node that has it, and runs of pages.

use farhold_fabric::NodeId;
use farhold_store::slab::Run;

/// Which state a snapshot is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsOf {
    pub epoch: u32,
    /// Its configuration. The rows of a node that has died since then are on other nodes, under later epochs.
    pub configuration: u64,
}

/// The start of a node that keeps older copies of rows for a snapshot: the node's next start has none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub node: NodeId,
    pub incarnation: u16,
}

/// A run of pages, as a snapshot has to look at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub run: Run,
    /// Slots to look at: behind them are none that have held a row of the snapshot's time.
    pub slots: u32,
}
