//! What has reached the memory behind the caches: by a flush, or by chance when the power fails.

use super::State;
use crate::address::{FarPtr, NodeId};
use crate::provider::sim::touch::LINE_BYTES;

impl State {
    /// Of each line that is not as it was flushed last, decides whether it had left the caches.
    pub(super) fn lose_lines(&mut self, node: NodeId) {
        let mut random = self.random_u64();
        let Some(entry) = self.node_mut(node) else { return };
        let mut line = [0; LINE_BYTES as usize];
        for (_, region) in &mut entry.regions {
            let (Some(memory), Some(durable)) = (&region.memory, &mut region.durable) else { continue };
            for (number, kept) in durable.chunks_exact_mut(line.len()).enumerate() {
                let at = number as u64 * LINE_BYTES;
                if memory.copy_out(at, &mut line).is_err() || line == kept {
                    continue;
                }
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ at;
                if random.is_multiple_of(2) {
                    kept.copy_from_slice(&line);
                } else {
                    memory.copy_in(at, kept).expect("a line of the region");
                }
            }
        }
    }

    pub(super) fn make_durable(&mut self, at: FarPtr, len: usize) {
        let Some(region) = self.node_mut(at.node()).and_then(|node| node.region_mut(at.region())) else { return };
        let (Some(memory), Some(durable)) = (&region.memory, &mut region.durable) else { return };
        let from = at.offset() / LINE_BYTES * LINE_BYTES;
        let to = (at.offset() + len as u64).next_multiple_of(LINE_BYTES).min(memory.len());
        if from < to {
            let _ = memory.copy_out(from, &mut durable[from as usize..to as usize]);
        }
    }
}
