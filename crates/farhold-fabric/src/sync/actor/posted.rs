//! The provider, which executes instructions in its own way.

use super::super::{WordOp, Words};
use crate::{Batch, Endpoint, FabricError, FarPtr};
use std::borrow::Borrow;
use std::cell::Cell;
use std::rc::Rc;

/// See [`super::ALL`].
pub(super) const KIND: super::Kind =
    super::Kind { name: "posted", about: "the provider's own word instructions, by a batch of one" };

/// Executes by posting on an endpoint, anywhere.
pub struct Posted<E = Rc<Endpoint>> {
    endpoint: E,
    /// Used again from one instruction to the next.
    batch: Cell<Batch>,
}

impl Posted {
    /// By an endpoint that it shares.
    #[must_use]
    pub fn by(endpoint: &Rc<Endpoint>) -> Self {
        Self { endpoint: endpoint.clone(), batch: Cell::default() }
    }
}

impl<'e> Posted<&'e Endpoint> {
    /// By an endpoint that it borrows.
    #[must_use]
    pub fn through(endpoint: &'e Endpoint) -> Self {
        Self { endpoint, batch: Cell::default() }
    }
}

impl<E: Borrow<Endpoint>> Words for Posted<E> {
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        let mut batch = self.batch.take();
        batch.clear();
        let slot = match op {
            // Not a read: a read of eight bytes is not atomic to a NIC's atomics on every fabric.
            WordOp::Load => batch.fetch_add(at, 0),
            WordOp::Add(operand) => batch.fetch_add(at, operand),
            WordOp::CompareSwap { expected, new } => batch.compare_swap(at, expected, new),
            WordOp::Swap(new) => batch.swap(at, new),
            WordOp::Clear => batch.clear_word(at),
        };
        let batch = self.endpoint.borrow().submit(batch).await;
        let old = batch.word(slot);
        self.batch.set(batch);
        old
    }

    async fn pause(&self) {
        self.endpoint.borrow().handle().yield_now().await;
    }
}
