//! A worker's lanes: how its messages come into this node's inboxes.

use super::Place;
use super::session::Session;
use crate::address::Address;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::provider::MESSAGE_BYTES_MAX;
use crate::provider::libfabric::AGENT_PORT;
use crate::provider::libfabric::frame::{Assembly, Header};
use crate::provider::shm::inbox;

const LANES_PER_SESSION_MAX: usize = 4096;

/// A worker's lane into one of this node's inboxes.
pub(super) struct Lane {
    from: Address,
    to: Address,
    memory: RegionMemory,
    sender: inbox::Sender,
    message: Assembly,
}

impl Lane {
    /// Gives the lane back; messages in it stay.
    pub(super) fn close(self) {
        self.sender.release(&self.memory);
    }
}

impl Session {
    /// A lane from the worker's port to one of this node's: `lane | bytes put so far | taken so far`.
    pub(super) fn open_lane(&mut self, place: &Place<'_>, to: u16, from: u16) -> Result<Vec<u8>, FabricError> {
        let to = Address { node: place.shared.node(), port: to };
        // Lanes into inboxes that have ended would keep their memory, and their places among the lanes.
        self.lanes.retain(|_, lane| lane.sender.taken(&lane.memory).is_some());
        if self.lanes.len() >= LANES_PER_SESSION_MAX || self.lanes_opened > u64::from(u32::MAX) || to.port == AGENT_PORT
        {
            return Err(FabricError::NoSuchPort { to });
        }
        let (memory, sender) = place.near.own_lane(to)?;
        // An inbox is closed before its port's senders are listed: either this one is among them, or the end is seen here.
        place.shared.note_sender(to.port, self.node);
        let Some(taken) = sender.taken(&memory) else { return Err(FabricError::NoSuchPort { to }) };
        let (index, put) = (self.lanes_opened, sender.position());
        self.lanes_opened += 1;
        let words = [index, put, taken];
        let from = Address { node: self.node, port: from };
        self.lanes.insert(index, Lane { from, to, memory, sender, message: Assembly::default() });
        Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    /// How much the owner of the inbox has taken out of a lane.
    pub(super) fn taken(&mut self, place: &Place<'_>, index: u64) -> Result<Vec<u8>, FabricError> {
        let to = Address { node: place.shared.node(), port: 0 };
        let lane = self.lanes.get(&index).ok_or(FabricError::NoSuchPort { to })?;
        let taken = lane.sender.taken(&lane.memory);
        if taken.is_none() {
            self.close_lane(index);
        }
        taken.map(|taken| taken.to_le_bytes().to_vec()).ok_or(FabricError::NoSuchPort { to })
    }

    pub(super) fn close_lane(&mut self, index: u64) {
        if let Some(lane) = self.lanes.remove(&index) {
            lane.close();
        }
    }

    pub(super) fn message(&mut self, place: &Place<'_>, header: &Header, part: &[u8]) {
        let index = header.number;
        let Some(lane) = self.lanes.get_mut(&index) else { return };
        if header.total as usize > MESSAGE_BYTES_MAX {
            return self.close_lane(index);
        }
        let Some(message) = lane.message.add(header, part) else { return };
        match lane.sender.put(&lane.memory, lane.from, lane.to, message) {
            Ok(()) => place.shared.near.ring(),
            // Its inbox is closed, and the sender learns of it. It cannot be full: senders count.
            Err(_) => self.close_lane(index),
        }
    }
}
