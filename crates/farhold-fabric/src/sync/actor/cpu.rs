//! The thread itself, on mapped memory.

use super::super::{WordOp, Words};
use crate::{Endpoint, FabricError, FarPtr, Handle, NodeId, RegionId, RegionMemory};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// See [`super::ALL`].
pub(super) const KIND: super::Kind =
    super::Kind { name: "cpu", about: "locked instructions of the thread's own processor, on mapped memory" };

/// Executes on one region, by loads and locked instructions.
pub struct Cpu {
    memory: Arc<RegionMemory>,
    handle: Handle,
    pauses: Cell<u32>,
}

/// Looks between two turns that a waiting thread gives to other tasks: one of them may be the holder that it waits for.
pub(super) const LOOKS_PER_TURN: u32 = 64;

impl Cpu {
    /// On a region; `None` where it is not mapped.
    #[must_use]
    pub fn on(endpoint: &Endpoint, node: NodeId, region: RegionId) -> Option<Self> {
        Some(Self { memory: endpoint.mapped(node, region)?, handle: endpoint.handle().clone(), pauses: Cell::new(0) })
    }
}

impl Words for Cpu {
    #[inline]
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        if !at.is_with(self.memory.origin()) {
            return Err(FabricError::NoSuchRegion { node: at.node(), region: at.region() });
        }
        execute_on(&self.memory, at.offset(), op)
    }

    async fn pause(&self) {
        std::hint::spin_loop();
        self.pauses.set(self.pauses.get().wrapping_add(1));
        if self.pauses.get().is_multiple_of(LOOKS_PER_TURN) {
            std::thread::yield_now();
        }
        self.handle.yield_now().await;
    }
}

/// Executes on a word of mapped memory.
#[inline]
pub(super) fn execute_on(memory: &RegionMemory, offset: u64, op: WordOp) -> Result<u64, FabricError> {
    let word = memory.word(offset)?;
    Ok(match op {
        WordOp::Load => word.load(SeqCst),
        WordOp::Add(operand) => word.fetch_add(operand, SeqCst),
        WordOp::CompareSwap { expected, new } => {
            word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
        }
        WordOp::Swap(new) => word.swap(new, SeqCst),
        WordOp::Clear => word.swap(0, SeqCst),
    })
}
