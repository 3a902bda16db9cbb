//! How long everything takes: the model's time, and what chance adds to it.

use super::State;
use crate::provider::sim::model::Hop;

impl State {
    /// splitmix64, as the executor's.
    #[inline]
    pub(super) fn random_u64(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A model's time, stretched by its jitter, and now and then by much more.
    #[inline]
    pub fn jittered(&mut self, ns: u64) -> u64 {
        let most = ns * (self.model.jitter_percent() + self.jitter_percent) / 100;
        let hiccups = self.hiccups;
        let late_ns = match hiccups {
            Some((one_in, ns_max)) if self.random_u64().is_multiple_of(one_in) => self.random_u64() % (ns_max + 1),
            _ => 0,
        };
        ns + self.random_u64() % (most + 1) + late_ns
    }

    /// From one line to the next. Two transfers at one even speed could never overtake each other, so nothing would tear:
    /// each line takes up to twice its time, and one in 32 waits for twenty (another transfer had the bus).
    pub(super) fn next_line_ns(&mut self, hop: Hop) -> u64 {
        let line_ns = self.model.line_ns(hop).max(1);
        let random = self.random_u64();
        let stall_ns = if random.is_multiple_of(32) { 20 * line_ns } else { 0 };
        line_ns + (random >> 32) % (line_ns + 1) + stall_ns
    }
}
