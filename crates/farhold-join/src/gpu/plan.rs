//! Divides the device's memory, and decides the radix bits of each pass. Pure arithmetic: it asks no device.
//!
//! ```text
//!   ring (3 chunks) | second-level buffers | 2 x workspace of a pair (staging, output, rows) | cache: the rest
//! ```

use super::device::{GpuError, Properties};
use super::options::{GpuOptions, Partitioner, Scheme};

/// Slots of the ring that the copy engine fills: one being copied, one being read, one in reserve.
pub const RING_SLOTS: u64 = 3;
/// Pairs of partitions in flight (paper, section 5.1).
pub const PAIRS_IN_FLIGHT: u64 = 2;
/// The most radix bits of a pass: 2048 partitions.
pub const BITS_MAX: u32 = 11;
const TRANSACTION_BYTES: u64 = 128;
/// Room for rows of the smallest piece, unless the tuning wants less: a megabyte avoids halving.
const RESULT_ROWS_MIN: u64 = 1 << 16;
const SECOND_LEVEL_TUPLES_MAX: u64 = 256;

/// The division of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Payload words a tuple.
    pub words: u32,
    /// Bytes a tuple.
    pub tuple_bytes: u64,
    /// Blocks of a launch.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Radix bits of the first pass.
    pub first_bits: u32,
    /// Radix bits of the second pass.
    pub second_bits: u32,
    /// Tuples of a chunk.
    pub chunk_tuples: u64,
    /// First-level buffer of the first pass, in tuples.
    pub first_buffer_tuples: u32,
    /// First-level buffer of the second pass, in tuples.
    pub second_buffer_tuples: u32,
    /// Second-level buffer, in tuples.
    pub second_level_tuples: u32,
    /// The most tuples of one side of a pair that is in flight.
    pub piece_tuples: u64,
    /// The most rows that a pair may give.
    pub result_rows: u64,
    /// Device memory for everything else than partitions.
    pub needed_bytes: u64,
    /// Device memory for partitions.
    pub cache_bytes: u64,
    /// Shared memory that a block may have.
    pub shared_bytes: u64,
}

impl Plan {
    /// Divides the memory that `properties` says is free.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] if not even a small join has room.
    pub fn new(
        properties: &Properties,
        options: &GpuOptions,
        words: u32,
        build: u64,
        probe: u64,
    ) -> Result<Self, GpuError> {
        let tuning = &options.tuning;
        let tuple_bytes = 8 * (u64::from(words) + 1);
        let threads = if words == 1 { tuning.threads } else { tuning.threads.min(512) };
        let blocks = options.multiprocessors_max.unwrap_or(u32::MAX).clamp(1, properties.multiprocessors);
        let budget = options.device_bytes_max.unwrap_or(properties.free_bytes / 20 * 19).min(properties.free_bytes);
        let larger = build.max(probe).max(1);
        let chunk_tuples = tuning.chunk_tuples.min(larger).next_multiple_of(TRANSACTION_BYTES / 8);
        let ring_bytes = RING_SLOTS * chunk_tuples * tuple_bytes;

        // The ring and the pairs in flight (staging and output of both sides, and rows) take at most half of the
        // budget: pieces are halved until they do.
        let mut piece_tuples = tuning.piece_tuples_max.min(larger).max(64);
        let result_rows = |piece: u64| {
            if options.materialize {
                tuning.result_rows_max.min((piece * 2).max(RESULT_ROWS_MIN)).max(piece)
            } else {
                0
            }
        };
        let pair_bytes = |piece: u64| {
            let page_bytes = tuple_bytes << tuning.page_shift;
            let side = 2 * (piece * tuple_bytes) + 2 * page_bytes + (2048 * 8 * 5) + (2048 * TRANSACTION_BYTES);
            PAIRS_IN_FLIGHT * (2 * side + result_rows(piece) * 16 * u64::from(words) + (4 << 10) + 24 * (2048 + piece))
        };
        while piece_tuples > 64 && ring_bytes + pair_bytes(piece_tuples) > budget / 2 {
            piece_tuples /= 2;
        }
        // Two passes must be enough for tables in shared memory, also where the workspace alone needs less.
        let entries = match options.scheme {
            Scheme::Perfect { key_min, key_max } => key_max.wrapping_sub(key_min).saturating_add(1),
            _ => build + build / 4,
        };
        let all_bits =
            (0..2 * BITS_MAX).find(|&bits| entries >> bits <= u64::from(tuning.table_tuples)).unwrap_or(2 * BITS_MAX);
        let first_bits = bits_for(larger + larger / 4, piece_tuples).max(all_bits.saturating_sub(BITS_MAX)).max(1);
        let first_bits = options.first_bits.map_or(first_bits, |bits| bits.clamp(1, BITS_MAX));
        let partitions = 1u64 << first_bits;
        let second_bits = bits_for(entries >> first_bits, u64::from(tuning.table_tuples)).max(1);

        let warps = u64::from(threads / 32);
        let second_level_buffers = u64::from(blocks) * (partitions + warps);
        let left = budget.saturating_sub(ring_bytes + pair_bytes(piece_tuples));
        let per_buffer = left / 2 / second_level_buffers / tuple_bytes;
        let first_buffer_tuples = buffer_tuples(properties.shared_bytes_max, partitions, tuple_bytes, 12);
        let second_level_tuples =
            floor_power_of_two(per_buffer.clamp(1, SECOND_LEVEL_TUPLES_MAX)).max(u64::from(first_buffer_tuples));
        let second_level_bytes = match options.partitioner {
            Partitioner::Hierarchical => second_level_buffers * (second_level_tuples * tuple_bytes + 4),
            _ => 0,
        };
        let needed = ring_bytes + pair_bytes(piece_tuples) + second_level_bytes + (4 << 20).min(budget / 8);
        if needed > budget {
            return Err(GpuError::OutOfMemory { wanted_bytes: needed, free_bytes: budget });
        }
        Ok(Self {
            words,
            tuple_bytes,
            blocks,
            threads,
            first_bits,
            second_bits,
            chunk_tuples,
            first_buffer_tuples,
            second_buffer_tuples: buffer_tuples(properties.shared_bytes_max, 1 << second_bits, tuple_bytes, 8),
            second_level_tuples: second_level_tuples as u32,
            piece_tuples,
            result_rows: result_rows(piece_tuples),
            needed_bytes: needed,
            cache_bytes: options.cache_bytes_max.unwrap_or(u64::MAX).min(budget - needed),
            shared_bytes: properties.shared_bytes_max,
        })
    }

    /// Partitions begin at multiples of this many tuples: whole transactions.
    pub fn align_tuples(&self) -> u64 {
        TRANSACTION_BYTES / self.tuple_bytes
    }
}

/// Bits that cut `count` into parts of at most `part`.
fn bits_for(count: u64, part: u64) -> u32 {
    (0..BITS_MAX).find(|&bits| count >> bits <= part).unwrap_or(BITS_MAX)
}

fn floor_power_of_two(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}

/// The largest buffers that fit in shared memory for all partitions, at most 64 tuples: two more transactions gain
/// nothing.
fn buffer_tuples(shared_bytes: u64, partitions: u64, tuple_bytes: u64, words_bytes: u64) -> u32 {
    let room = (shared_bytes / partitions).saturating_sub(words_bytes) / tuple_bytes;
    floor_power_of_two(room.clamp(1, 64)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h100() -> Properties {
        Properties {
            name: "test".into(),
            multiprocessors: 132,
            shared_bytes_max: 227 << 10,
            memory_bytes: 80 << 30,
            free_bytes: 78 << 30,
            is_emulation: false,
        }
    }

    #[test]
    fn the_largest_join_of_the_paper_fits_two_passes() {
        let plan = Plan::new(&h100(), &GpuOptions::default(), 1, 2 << 30, 2 << 30).unwrap();
        assert!(plan.first_bits <= 10 && plan.second_bits <= 11, "{plan:?}");
        assert!((2u64 << 30) >> (plan.first_bits + plan.second_bits) <= 2048, "{plan:?}");
        assert!(plan.cache_bytes > 50 << 30, "{plan:?}");
    }

    #[test]
    fn what_is_planned_fits_and_a_tiny_device_is_refused() {
        for words in [1, 3, 7] {
            for free in [1u64 << 20, 8 << 20, 64 << 20, 1 << 30, 16 << 30] {
                let properties = Properties { free_bytes: free, memory_bytes: free, ..h100() };
                match Plan::new(&properties, &GpuOptions::default(), words, 1 << 24, 1 << 26) {
                    Ok(plan) => assert!(plan.cache_bytes < free && plan.piece_tuples >= 64),
                    Err(error) => {
                        assert!(matches!(error, GpuError::OutOfMemory { .. }) && free < 1 << 30, "{free}: {error}");
                    }
                }
            }
        }
    }
}
