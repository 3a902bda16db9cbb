//! The sources of records for a node's column copies: its own journal's steps, and the files of the other nodes' journals.
//!
//! ```text
//!   heard: the others' closed epochs ──► ends ──► copies looked at ──► each journal is read to its end ──► complete up to the least
//! ```
//! A transaction's record is only in its coordinator's journal, whichever node has the rows. With replicas, copies and followers belong to one configuration:
//! to its nodes, and to the starts that it names. Why no record is missed: `docs/design/0030-columns-of-several-nodes.md`.

use crate::base::error::TxnError;
use crate::cluster::configuration::Configuration;
use crate::durability::journaling::{Journaling, held};
use crate::durability::open::refused;
use farhold_fabric::NodeId;
use farhold_store::durable::journal::{Follower, Item, items};
use farhold_store::durable::{DurableError, Identity};
use farhold_store::log::Record;
use std::sync::atomic::Ordering::SeqCst;

/// How long closed epochs of a node may be invisible in its files, on a file system that other hosts share.
const UNSEEN_NS_MAX: u64 = 10_000_000_000;

/// The followers of all other nodes' journals, while there are copies.
pub(super) struct Followers {
    /// The number of the configuration whose nodes they follow.
    of: u64,
    all: Vec<Follower>,
    /// The time since which a closed epoch has been invisible.
    unseen_since_ns: Option<u64>,
}

/// Whether all closed epochs have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// All have been applied.
    All,
    /// A file does not show a closed epoch of its node yet: the caller should try again soon.
    Some,
}

impl Journaling {
    /// Begins to follow the journals of the other nodes of a configuration, if that has not begun; of all nodes, if there are no configurations. It must be
    /// called after a copy has been added, and before the copy's first snapshot is taken: records of later epochs are then read.
    ///
    /// # Errors
    /// [`TxnError::Durable`]: a journal cannot be read; [`TxnError::Recovering`]: a journal has a later configuration already.
    pub fn follow(&self, configuration: Option<&Configuration>) -> Result<(), TxnError> {
        let of = configuration.map_or(0, |configuration| configuration.number);
        let mut others = held(&self.others);
        if others.as_ref().is_some_and(|followers| followers.of == of) {
            return Ok(());
        }
        let mut all = Vec::new();
        for node in (0..self.nodes).map(NodeId).filter(|node| *node != self.me) {
            if configuration.is_some_and(|it| !it.contains(node)) {
                continue;
            }
            let follower = self.follow_node(node, configuration).map_err(refused)?;
            if configuration.is_some() && follower.configuration() > of {
                return Err(TxnError::Recovering { node });
            }
            all.push(follower);
        }
        *others = Some(Followers { of, all, unseen_since_ns: None });
        Ok(())
    }

    fn follow_node(&self, node: NodeId, configuration: Option<&Configuration>) -> Result<Follower, DurableError> {
        let heard = &self.heard[usize::from(node.0)];
        // Without configurations: once a node has been met, its last start is the one that takes part in this generation.
        let start = configuration.map(|it| it.births[usize::from(node.0)] as u32);
        if start.is_none() && !heard.is_met() {
            return Err(DurableError::Busy { who: format!("{node} has not started yet").into() });
        }
        let identity = Identity { node, ..self.shape.identity };
        Follower::at_end(self.shape.directory.clone(), identity, start, heard.closed.load(SeqCst))
    }

    /// Applies all records up to the epoch that each node has closed, as far as this node has heard. Only one thread calls this.
    pub fn apply_to_columns(&self, now_ns: u64) -> Applied {
        let mut others = held(&self.others);
        // Under the lock: a copy is added first, and then followed.
        if !self.feed.is_wanted() {
            *others = None;
        }
        // Before the list of copies is read: a copy that begins later needs no epoch that was closed before.
        let ends: Vec<u32> = self.heard.iter().map(|heard| heard.closed.load(SeqCst)).collect();
        let mut taken = self.feed.take();
        taken.apply_own(self.me);
        let Some(of) = taken.configuration else {
            *others = None;
            return Applied::All;
        };
        others.take_if(|followers| followers.of != of);
        let mut closed = taken.closed;
        let (mut is_all, mut is_whole) = (true, true);
        match others.as_mut() {
            Some(followers) => {
                for follower in &mut followers.all {
                    let end = ends[usize::from(follower.node().0)];
                    let read = follower.read(end, &mut |body, closing| {
                        // An expelled node may not know of its expulsion. Later commits of the others do not concern its rows.
                        if of != 0 && closing.configuration > of {
                            return Err("its node is in a later configuration");
                        }
                        is_whole &= taken.apply(self.me, records(body));
                        Ok(())
                    });
                    let Some(is_read) = read.ok().filter(|_| is_whole) else {
                        return self.lose(&mut others);
                    };
                    is_all &= is_read;
                    closed = closed.min(follower.closed());
                }
                if is_all {
                    followers.unseen_since_ns = None;
                } else if now_ns > *followers.unseen_since_ns.get_or_insert(now_ns) + UNSEEN_NS_MAX {
                    return self.lose(&mut others);
                }
            }
            None if self.nodes > 1 => closed = 0,
            None => {}
        }
        self.feed.complete(&taken, closed);
        if is_all { Applied::All } else { Applied::Some }
    }

    /// Handles missing records. The followers are dropped first: a copy that is not dropped here gets new followers.
    fn lose(&self, others: &mut Option<Followers>) -> Applied {
        *others = None;
        self.feed.lose();
        Applied::All
    }
}

/// The records of a batch whose checksum is right; `None` for bytes that are still not a record.
fn records(body: &[u8]) -> impl Iterator<Item = Option<Record<'_>>> {
    items(body).filter_map(|item| match item {
        Ok(Item::Record(bytes)) => Some(Record::check(bytes, 0).ok()),
        Ok(_) => None,
        Err(_) => Some(None),
    })
}
