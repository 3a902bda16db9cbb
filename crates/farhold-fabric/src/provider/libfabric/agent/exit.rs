//! When a session ends, and what is given back then: its lanes, its frames and its peer.

use super::Home;
use super::lanes::Lane;
use super::session::{STRANGER, Session, State};
use crate::provider::libfabric::Shared;
use crate::provider::libfabric::channel::Channel;

impl Home {
    /// Ends the session of a frame that did not arrive, if that session still exists.
    pub(super) fn lose(&mut self, channel: &Channel, tag: u64) {
        let index = (tag & !STRANGER) as u32 as usize;
        if self.sessions.get(index).and_then(Option::as_ref).is_some_and(|session| session.tag(index) == tag) {
            self.end(channel, index);
        }
    }

    pub(super) fn end(&mut self, channel: &Channel, index: usize) {
        let Some(session) = self.sessions.get_mut(index).and_then(Option::take) else { return };
        let tag = session.tag(index);
        session.lanes.into_values().for_each(Lane::close);
        self.packing.forget(tag);
        self.unsent.forget(tag);
        if let Some((peer, uses)) = self.peers.get_mut(&session.name) {
            *uses -= 1;
            if *uses == 0 {
                channel.forget(*peer);
                self.peers.remove(&session.name);
            }
        }
    }

    /// Ends the sessions of nodes that are to be fenced.
    pub(super) fn shut_out(&mut self, shared: &Shared, channel: &Channel) {
        let mut seen = self.fences_seen;
        shared.fence.work(&mut seen, |node, birth| {
            for index in 0..self.sessions.len() {
                let is_out = |it: &Session| it.is_known && it.node == node && it.birth == birth;
                if self.sessions[index].as_ref().is_some_and(is_out) {
                    self.end(channel, index);
                }
            }
        });
        self.fences_seen = seen;
    }

    /// Ends the sessions that are not live and whose time is over.
    pub(super) fn show_out(&mut self, channel: &Channel, now_ns: u64) {
        for index in 0..self.sessions.len() {
            let is_over = self.sessions[index].as_ref().is_some_and(|session| match session.state {
                State::Entering { until_ns, .. } | State::Leaving { until_ns } => now_ns > until_ns,
                State::Live => false,
            });
            if is_over {
                self.end(channel, index);
            }
        }
    }
}
