//! Checkpoints of a node that goes on meanwhile.

use crate::durability::journaling::{Journaling, held};
use farhold_store::durable::{Cluster, DurableError, checkpoint};
use farhold_store::{Store, Superblock};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

/// When another node has made this many checkpoints, this node makes one as well. Its own journal may hardly grow, but the
/// segments of all nodes stay until the checkpoints of all nodes are later. The number must be above one; otherwise two nodes
/// would make checkpoints for ever because of each other.
const CHECKPOINTS_OWED: u32 = 2;

/// This node's checkpoints, and what those of all contain.
pub(super) struct Checkpointing {
    /// The epoch that a waiting checkpoint needs to be durable.
    pub(super) wanted: AtomicU32,
    /// All records of this start are of later epochs.
    pub(super) before: AtomicU32,
    /// The thread that makes segments is busy with one.
    is_running: AtomicBool,
    /// The least epoch that a checkpoint of each node contains.
    pub(super) of_all: AtomicU32,
}

impl Checkpointing {
    /// The state of a start before which everything up to `closed` was durable.
    pub(super) fn after(closed: u32) -> Self {
        let of = AtomicU32::new;
        Self { wanted: of(0), before: of(closed), is_running: AtomicBool::new(false), of_all: of(0) }
    }
}

/// A checkpoint that has been written, and has no name yet.
#[derive(Debug)]
pub(crate) struct Checkpointed {
    written: checkpoint::Written,
    /// What it contains.
    epoch: u32,
    /// It is good when this is durable.
    pub(super) until: u32,
}

impl Journaling {
    /// Makes a checkpoint of the node's rows; false if `go_on` has ended it. May run beside everything else, once at a time.
    pub fn checkpoint(&self, store: &Store, go_on: &mut dyn FnMut() -> bool) -> Result<bool, DurableError> {
        self.checkpointing.is_running.store(true, SeqCst);
        let made = self.make_checkpoint(store, go_on);
        self.checkpointing.is_running.store(false, SeqCst);
        made
    }

    /// Makes the next segment if the thread that usually does so is waiting for a disk that writes a checkpoint, which
    /// may wait for this segment.
    pub fn make_spare_if_nobody_does(&self) {
        if self.checkpointing.is_running.load(SeqCst) && !self.spare.is_made() {
            // Why it could not be made is in `refused`.
            let _ = self.make_spare();
        }
    }

    /// Do others wait for a checkpoint of this node, to forget what they have written?
    pub fn owes_checkpoint(&self) -> bool {
        self.heard.iter().any(|heard| heard.checkpoints.load(SeqCst) >= CHECKPOINTS_OWED)
    }

    /// A checkpoint was made, or an attempt failed. The next one is due when the others have made that many again.
    pub fn owe_no_checkpoint(&self) {
        self.heard.iter().for_each(|heard| heard.checkpoints.store(0, SeqCst));
    }

    fn make_checkpoint(&self, store: &Store, go_on: &mut dyn FnMut() -> bool) -> Result<bool, DurableError> {
        let Some(written) = self.write_checkpoint(store, go_on)? else { return Ok(false) };
        while !self.is_good(&written) {
            if !go_on() || self.given_up.is_so() {
                return Ok(false);
            }
            self.step_or_wait(store);
        }
        self.publish_checkpoint(&written).map(|()| true)
    }

    /// Writes one that [is good](Self::is_good) later; `None`: `go_on` has ended it, or there is nothing to write yet.
    pub fn write_checkpoint(
        &self,
        store: &Store,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Checkpointed>, DurableError> {
        let is_known = !self.generation.comes_back() || held(&self.members).rows_since(self.me).is_some();
        if !self.has_begun.load(SeqCst) || !is_known {
            return Ok(None);
        }
        self.check_rows()?;
        // Closed on all nodes: so every change up to it has been made here, also by commits of others.
        let epoch = self.durable().max(self.checkpointing.before.load(SeqCst));
        let what = (self.shape.identity, self.shape.start, epoch);
        let Some(written) = checkpoint::write(store, &*self.config.directory, what, go_on)? else { return Ok(None) };
        let until = self.epoch().max(written.epoch_max);
        self.checkpointing.wanted.store(until, SeqCst);
        Ok(Some(Checkpointed { written, epoch, until }))
    }

    /// A checkpoint ends what earlier starts have left. The checkpoint of a region that began empty may do so only if
    /// the configuration says that the node's rows began with this start: other nodes have the earlier rows. If not,
    /// the journal is given up, and the files stay.
    fn check_rows(&self) -> Result<(), DurableError> {
        let since = held(&self.members).rows_since(self.me).unwrap_or(0);
        if !self.generation.comes_back() || since == 0 || since == self.shape.start {
            return Ok(());
        }
        let file = format!("the empty region of node {}", self.me.0).into();
        let (found, expected) = (u64::from(self.shape.start), u64::from(since));
        let error = DurableError::Foreign { file, what: "start in which its rows began", found, expected };
        self.fail(&error.to_string());
        Err(error)
    }

    /// Is everything durable that is in it?
    pub fn is_good(&self, checkpoint: &Checkpointed) -> bool {
        self.durable() >= checkpoint.until
    }

    /// Gives it its name.
    pub fn publish_checkpoint(&self, Checkpointed { written, epoch, .. }: &Checkpointed) -> Result<(), DurableError> {
        self.check_rows()?;
        let directory = &*self.config.directory;
        checkpoint::publish(directory, &self.shape.inventory, written)?;
        self.word(Superblock::CHECKPOINTED, |word| word.store(u64::from(*epoch), SeqCst));
        self.owe_no_checkpoint();
        self.publish();
        if self.checkpointing.of_all.load(SeqCst) >= self.checkpointing.before.load(SeqCst) {
            Cluster::forget(directory)
        } else {
            Ok(())
        }
    }

    fn step_or_wait(&self, store: &Store) {
        if self.has_thread.load(SeqCst) {
            self.bell.ring();
            std::thread::park_timeout(Duration::from_millis(1));
        } else {
            self.step(store);
        }
    }
}
