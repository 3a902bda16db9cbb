//! Leading the members into a configuration that is in the register.

use crate::base::error::TxnError;
use crate::base::wire::{Reader, Writer};
use crate::cluster::configuration::Configuration;
use crate::cluster::progress::Leading;
use crate::protocol::core::Core;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use crate::rpc::recovery::{Frozen, Left, LeftEntry, MESSAGE_BYTES, Message, ROW_BYTES};
use farhold_fabric::NodeId;
use std::sync::Arc;

/// How long the leader waits before it asks a member again whether it is quiet.
const AGAIN_NS: u64 = 3_000;
/// How long before it asks again whether everything is in a member's journal, and how long a disk may take for it beyond a lease.
const SETTLED_AGAIN_NS: u64 = 50_000;
const SETTLING_NS: u64 = 1_000_000_000;

impl Core {
    /// Asks a member, or this node itself, something of the recovery.
    async fn ask_member(&self, node: NodeId, message: &Message<'_>) -> Result<Vec<u8>, TxnError> {
        let body = message.encode();
        if node == self.me {
            let mut w = Writer::default();
            self.answer_recovery(self.me, &body, &mut w)?;
            return Ok(w.0);
        }
        self.call(node, &Request::Recovery { body: &body }).await
    }
}

impl Worker {
    /// Makes every member install `next`. Every step may be repeated.
    ///
    /// # Errors
    /// A member did not answer, or knows of a later configuration: look into the register again.
    pub(crate) async fn lead(&self, next: &Configuration) -> Result<(), TxnError> {
        let led = self.lead_through(next).await;
        if let Some(replication) = &self.core.node.replication {
            replication.note(|progress| progress.leading = None);
        }
        led
    }

    async fn lead_through(&self, next: &Configuration) -> Result<(), TxnError> {
        let core = &*self.core;
        let now = |step| {
            if let Some(replication) = &core.node.replication {
                replication.note(|progress| progress.leading = Some((next.number, step)));
            }
        };
        let frozen = Arc::new(next.clone());
        let everybody: Vec<NodeId> = next.everybody().collect();
        let mut epoch = 0;
        let lease_ns = core.node.config.replication.lease_ns;
        let until_ns = core.handle.now_ns() + lease_ns;
        for &node in &everybody {
            now(Leading::Freezing(node));
            loop {
                let answer = core.ask_member(node, &Message::Freeze(frozen.clone())).await?;
                let Frozen { quiet, epoch_seen } = Frozen::decode(&mut Reader(&answer))?;
                epoch = epoch.max(epoch_seen);
                if quiet {
                    break;
                }
                // Its commits may be waiting for a node that has died since: only the leases can tell.
                if core.handle.now_ns() > until_ns {
                    return Err(TxnError::Recovering { node });
                }
                core.handle.sleep_ns(AGAIN_NS).await;
            }
        }
        let number = next.number;
        for &node in &everybody {
            now(Leading::Redoing(node));
            epoch = epoch.max(self.redo_what_is_left_at(node, number, &everybody).await?);
        }
        // No earlier commit has this epoch, and every later commit has this one or a later one: a node that asks any
        // keeper finds at least this.
        let epoch_min = next.epoch_min.max(epoch + 1);
        let until_ns = core.handle.now_ns() + lease_ns + SETTLING_NS;
        for &node in &everybody {
            now(Leading::Settling(node));
            loop {
                let answer = core.ask_member(node, &Message::Settle { number, epoch_min }).await?;
                if Reader(&answer).flag()? {
                    break;
                }
                // It may have died, or its disk may be full: only the leases can tell.
                if core.handle.now_ns() > until_ns {
                    return Err(TxnError::Recovering { node });
                }
                core.handle.sleep_ns(SETTLED_AGAIN_NS).await;
            }
        }
        let installed = Arc::new(Configuration { epoch_min, ..next.clone() });
        // The leader comes last: until then its watch knows that work is left.
        let others = everybody.iter().filter(|node| **node != core.me);
        for &node in others.chain(everybody.iter().filter(|node| **node == core.me)) {
            now(Leading::Installing(node));
            core.ask_member(node, &Message::Install(installed.clone())).await?;
        }
        Ok(())
    }

    /// Brings the rows of every record that dead nodes have left at a member to all members. Returns the highest epoch
    /// of any record there.
    async fn redo_what_is_left_at(&self, node: NodeId, number: u64, everybody: &[NodeId]) -> Result<u32, TxnError> {
        let core = &*self.core;
        let (mut from, mut epoch) = (0, 0);
        loop {
            let answer = core.ask_member(node, &Message::Pull { number, from }).await?;
            let Left { count, epoch_seen, entries } = Left::decode(&mut Reader(&answer))?;
            epoch = epoch.max(epoch_seen);
            from += entries.len() as u32;
            for some in chunks(&entries) {
                let message = Message::Redo { number, left: some.to_vec() };
                for &other in everybody {
                    core.ask_member(other, &message).await?;
                }
            }
            if from >= count || entries.is_empty() {
                return Ok(epoch);
            }
        }
    }
}

/// As many as go into one message.
fn chunks<'e, 'a>(mut entries: &'e [LeftEntry<'a>]) -> impl Iterator<Item = &'e [LeftEntry<'a>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |left: &&LeftEntry<'_>| {
            bytes += left.entry.key.len() + left.entry.value.len() + ROW_BYTES;
            bytes <= MESSAGE_BYTES
        };
        let count = entries.iter().take_while(fits).count().max(1).min(entries.len());
        let (some, rest) = entries.split_at(count);
        entries = rest;
        (!some.is_empty()).then_some(some)
    })
}
