//! Room that is reserved in rings, and records that are in rings.

use crate::base::error::TxnError;
use crate::durability::journaling::Journaling;
use crate::replication::Replication;
use farhold_fabric::NodeId;
use farhold_store::log::Place;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Room in the rings of all holders of a record to be. Dropped unused, it is given back.
pub(crate) struct Promise {
    pub replication: Arc<Replication>,
    pub worker: u8,
    pub size: u64,
    /// The number of the configuration in which it was made: a holder that has left since and come back has other
    /// rings.
    pub number: u64,
    pub holders: Vec<NodeId>,
}

/// A record that is at its holders. It is *finished* when every row has been written, and deleted ones have left the indexes;
/// dropped earlier, because its coordinator is gone, it stays unfinished for ever, for others to find.
pub(crate) struct Sent {
    pub replication: Arc<Replication>,
    pub worker: u8,
    pub places: Vec<(NodeId, Place)>,
    /// As a promise's.
    pub number: u64,
}

/// A record whose rows are all written, and which is not in the journal yet.
pub(crate) struct Unclosed {
    epoch: u32,
    pub places: Vec<(NodeId, Place)>,
    pub number: u64,
}

impl Sent {
    /// All rows are written: they no longer need the record. With a journal, the other nodes need it until this node
    /// has closed the record's epoch: if this node dies before that, they must make it durable.
    pub fn finish(self, journaling: Option<&Journaling>, epoch: u32) {
        let Self { replication, worker, places, number } = self;
        let unclosed = Unclosed { epoch, places, number };
        if journaling.is_some() && !planted!(FinishedTooEarly) {
            replication.unclosed(worker).push_back(unclosed);
        } else {
            replication.finish(worker, &unclosed);
        }
    }
}

impl Replication {
    /// Records of a worker whose rows are written, and their epochs.
    fn unclosed(&self, worker: u8) -> MutexGuard<'_, VecDeque<Unclosed>> {
        self.unclosed[usize::from(worker)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those records go that are in the journal.
    pub fn finish_closed(&self, worker: u8, journaling: &Journaling) {
        let closed = journaling.closed();
        loop {
            // Records wait about in the order of their epochs.
            let next = self.unclosed(worker).pop_front_if(|record| record.epoch <= closed);
            let Some(record) = next else { return };
            self.finish(worker, &record);
        }
    }

    fn finish(&self, worker: u8, record: &Unclosed) {
        let Ok(mut writers) = self.writers(worker) else { return };
        let is_there = |holder: &NodeId| self.view.is_there(*holder, record.number);
        for (holder, place) in record.places.iter().filter(|(holder, _)| is_there(holder)) {
            if let Some(writer) = writers.get_mut(*holder) {
                writer.finish(place);
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.size == 0 {
            return;
        }
        let Ok(mut writers) = self.replication.writers(self.worker) else { return };
        let view = &self.replication.view;
        for holder in self.holders.iter().filter(|holder| view.is_there(**holder, self.number)) {
            if let Some(writer) = writers.get_mut(*holder) {
                writer.forget(self.size);
            }
        }
    }
}

/// Promises room at all holders or at none. If at none, returns the first holder without room.
///
/// # Errors
/// [`TxnError::Recovering`]: a holder is not in the configuration, for example the home of a row that was read before it
/// left; or the configuration has changed since. Knowledge of a ring is about the present start of its node, or is
/// forgotten with the configuration. A ring that is first met while its node is away would be neither.
pub(crate) fn promise_all(
    replication: &Replication,
    worker: u8,
    number: u64,
    holders: &[NodeId],
    size: u64,
) -> Result<Option<NodeId>, TxnError> {
    let mut writers = replication.writers(worker)?;
    // Under the lock that the rings are forgotten under.
    let configuration = replication.view.configuration();
    let away = holders.iter().find(|holder| configuration.number != number || !configuration.contains(**holder));
    if let Some(holder) = away {
        return Err(TxnError::Recovering { node: *holder });
    }
    for (count, holder) in holders.iter().enumerate() {
        let writer = writers.of(*holder, replication);
        if !writer.promise(size) && !planted!(RingOverrun) {
            for holder in &holders[..count] {
                writers.get_mut(*holder).expect("promised before").forget(size);
            }
            return Ok(Some(*holder));
        }
    }
    Ok(None)
}
