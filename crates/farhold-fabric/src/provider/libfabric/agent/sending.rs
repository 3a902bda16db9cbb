//! How answers leave: in the frames of this turn, or later if the provider does not take them at once.

use super::Home;
use crate::provider::libfabric::channel::{self, Channel};
use crate::provider::libfabric::frame::{self, Header};
use crate::provider::libfabric::packing::Filled;

/// Frames kept for a worker that does not take them, and for all workers: beyond that the worker counts as dead. A worker asks
/// for a quarter of its part at a time ([`ANSWERING_MAX`](crate::provider::libfabric::caller::ANSWERING_MAX)).
const UNSENT_PER_SESSION_MAX: usize = 1024;
const UNSENT_MAX: usize = 16_384;

impl Home {
    /// Puts a body into the frames of this turn. A worker that cannot be reached is gone.
    pub(super) fn say(&mut self, channel: &Channel, index: usize, header: Header, body: &[u8]) {
        for (head, part) in frame::split(header, body) {
            // Sending may have ended it.
            let Some(session) = self.sessions[index].as_ref() else { return };
            let (peer, tag) = (session.peer, session.tag(index));
            for full in self.packing.add(peer, tag, &head, part).into_iter().flatten() {
                self.send(channel, full);
            }
        }
    }

    pub(super) fn send_packed(&mut self, channel: &Channel) {
        while let Some(filled) = self.packing.take() {
            self.send(channel, filled);
        }
    }

    /// Sends a frame, or keeps it for later.
    fn send(&mut self, channel: &Channel, filled: Filled) {
        let tag = filled.tag;
        let kept = self.unsent.count_of(tag);
        let sent = if kept > 0 { Err((channel::Refusal::Again, filled)) } else { self.packing.send(channel, filled) };
        match sent {
            Ok(()) => {}
            Err((channel::Refusal::Again, filled))
                if kept < UNSENT_PER_SESSION_MAX && self.unsent.len() < UNSENT_MAX =>
            {
                self.unsent.push(filled, 0);
            }
            Err(_) => self.lose(channel, tag),
        }
    }

    pub(super) fn send_kept(&mut self, channel: &Channel) {
        if self.unsent.is_empty() {
            return;
        }
        let Self { packing, unsent, .. } = self;
        for tag in unsent.send_all(0, |filled| packing.send(channel, filled)) {
            self.lose(channel, tag);
        }
    }
}
