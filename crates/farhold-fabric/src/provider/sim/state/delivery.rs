//! The arrival of a message in its inbox.

use super::{Effects, OnTheWay, State};
use crate::provider::sim::model::Hop;
use crate::provider::sim::trace::What;

impl State {
    pub(super) fn deliver(&mut self, number: u64, effects: &mut Effects) {
        let Some(OnTheWay { from_incarnation, to, incarnation, message }) = self.messages.remove(number) else {
            return;
        };
        let bytes: u64 = message.bytes.chunks(8).fold(0, |sum, chunk| {
            let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        });
        let ends = [message.from, to].map(|end| u64::from(end.node.0) << 16 | u64::from(end.port));
        self.trace.event(self.now_ns, What::Deliver, [ends[0], ends[1], bytes]);
        let is_fenced = self.is_fenced(Hop { from: message.from.node, to: to.node }, from_incarnation);
        if !is_fenced && !self.late.is_empty() {
            self.too_late(message.from, to.node, u64::MAX);
        }
        let Some(node) = self.node_mut(to.node) else { return };
        if !node.live || node.incarnation != incarnation {
            return;
        }
        let Some(inbox) = node.inboxes.get_mut(&to.port) else { return };
        if is_fenced {
            inbox.leave_lane(&message);
            return;
        }
        inbox.queue.push_back(message);
        effects.wakers.append(&mut inbox.waiters);
    }
}
