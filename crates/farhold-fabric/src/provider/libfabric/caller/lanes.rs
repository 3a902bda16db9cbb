//! Messages, by lanes into the inboxes of other nodes.

use super::{Caller, FAREWELL_NS_MAX, FLUSH_NS_MAX, Lane, UNSENT_MAX, What};
use crate::address::{Address, NodeId};
use crate::error::FabricError;
use crate::provider::libfabric::frame::{self, Kind, Reader, Tag};
use crate::provider::shm::inbox::record_bytes;
use crate::provider::{LANE_BYTES_MAX, MESSAGE_BYTES_MAX};

impl Caller {
    pub fn send(&mut self, from: u16, to: Address, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(FabricError::MessageTooLong { bytes: message.len(), bytes_max: MESSAGE_BYTES_MAX });
        }
        self.session(to.node)?;
        let epoch = self.known(to.node).epoch;
        if self.state.unsent.len() >= UNSENT_MAX {
            self.turn();
            return Err(FabricError::QueueFull { to });
        }
        let closings = &self.shared.closings;
        let lane = self.state.nodes.get_mut(&to.node).and_then(|known| known.lanes.get_mut(&(from, to.port)));
        if lane.is_none_or(|lane| closings.has_closed(to, &mut lane.closings)) {
            self.open_lane(from, to)?;
        }
        let need = record_bytes(message.len());
        if self.lane(from, to)?.is_full(need) {
            self.ask_taken(from, to)?;
            if self.lane(from, to)?.is_full(need) {
                return Err(FabricError::QueueFull { to });
            }
        }
        // It may have broken while the lane was looked at. A message that follows would arrive and count as not sent.
        if !self.state.is_live(to.node, epoch) {
            return Err(FabricError::NodeUnavailable { node: to.node });
        }
        let lane = self.lane(from, to)?;
        lane.put += need;
        let index = lane.index;
        self.transmit(to.node, Kind::Message, index, message);
        self.hand_over();
        // A caller that is told that the message is not sent may rely on it. A session that breaks from here on, for what was
        // sent earlier, may have taken it along.
        let is_sent = self.state.is_live(to.node, epoch);
        // A thread may sleep after it has sent, so it must leave nothing behind that only polling would send.
        self.flush_to(|node| node == to.node, FLUSH_NS_MAX);
        if is_sent { Ok(()) } else { Err(FabricError::NodeUnavailable { node: to.node }) }
    }

    pub(super) fn lane(&mut self, from: u16, to: Address) -> Result<&mut Lane, FabricError> {
        self.known(to.node).lanes.get_mut(&(from, to.port)).ok_or(FabricError::NodeUnavailable { node: to.node })
    }

    pub(super) fn open_lane(&mut self, from: u16, to: Address) -> Result<(), FabricError> {
        let shared = self.shared.clone();
        // The lanes into ports that have ended; the home drops them as well.
        self.known(to.node).lanes.retain(|(_, port), lane| {
            !shared.closings.has_closed(Address { node: to.node, port: *port }, &mut lane.closings)
        });
        let closings = shared.closings.count();
        let timeout_ns = self.shared.config.request_timeout_ns;
        let body = self.call(to, Tag::Lane, u32::from(to.port), u32::from(from), timeout_ns)?;
        let mut reader = Reader(&body);
        let mut word = || reader.u64().ok_or(FabricError::NodeUnavailable { node: to.node });
        let (index, put, taken) = (word()?, word()?, word()?);
        self.known(to.node).lanes.insert((from, to.port), Lane { index, put, taken, closings });
        Ok(())
    }

    pub(super) fn ask_taken(&mut self, from: u16, to: Address) -> Result<(), FabricError> {
        let (index, timeout_ns) = (self.lane(from, to)?.index, self.shared.config.request_timeout_ns);
        match self.call(to, Tag::Taken, index as u32, 0, timeout_ns) {
            Ok(body) => {
                self.lane(from, to)?.taken = Reader(&body).u64().unwrap_or(0);
                Ok(())
            }
            Err(error) => {
                self.known(to.node).lanes.remove(&(from, to.port));
                Err(error)
            }
        }
    }

    /// Gives back the lanes of a local port.
    pub fn leave_lanes(&mut self, port: u16) {
        let mut left = Vec::new();
        for (node, known) in &mut self.state.nodes {
            left.extend(known.lanes.extract_if(|(from, _), _| *from == port).map(|(_, lane)| (*node, lane.index)));
        }
        for (node, lane) in left {
            self.transmit(node, Kind::Leave, lane, &[]);
        }
        self.flush(FLUSH_NS_MAX);
    }

    /// Tells nodes that a local port is closed, and waits until they know it, for a short time.
    pub fn tell_closed(&mut self, port: u16, nodes: impl Iterator<Item = NodeId>) {
        let until_ns = self.shared.clock.now_ns() + FAREWELL_NS_MAX;
        let mut numbers = Vec::new();
        for node in nodes {
            if self.shared.clock.now_ns() < until_ns && self.session(node).is_ok() {
                let body = frame::request(Tag::Closed, u32::from(port), 0);
                numbers.push((node, self.ask(node, Kind::Request, &body, What::Call(None), until_ns)));
            }
        }
        for (node, number) in numbers {
            let _ = self.wait_for(number, node);
        }
    }
}

impl Lane {
    pub(super) fn is_full(&self, need: u64) -> bool {
        self.put + need > self.taken + LANE_BYTES_MAX
    }
}
