//! The keys of joins above, as bits: which rows of a block have one of them. They are tested after the filter on codes and before anything is decoded, so a
//! join with few keys reduces the scan to one column for most rows. A build side does not show how many rows its keys keep. If they keep most rows, some blocks
//! pass untested before the keys are tried again.

use std::sync::Arc;

use farhold_join::datafusion::Members;
use farhold_scan::kernels::Bits;
use farhold_store::column::{BLOCK_ROWS, Chunk, Encoding};

/// The number of rows after which the usefulness of keys is judged.
const JUDGED_ROWS: u32 = 1 << 15;
/// The most rows of four that keys may keep and still be worth testing.
const KEPT_OF_FOUR_MAX: u32 = 3;
/// Blocks that pass untested before keys are judged again.
const RESTING_BLOCKS: u32 = 512;

/// One for each join whose keys are bits.
#[derive(Default)]
pub(super) struct KeySets(Vec<KeySet>);

struct KeySet {
    /// The table's column.
    column: usize,
    members: Arc<Members>,
    /// Rows since the last judgement, and how many of them were kept.
    seen: u32,
    kept: u32,
    /// Blocks until the keys are tested again.
    resting: u32,
}

impl KeySets {
    pub(super) fn new(sets: impl Iterator<Item = (usize, Arc<Members>)>) -> Self {
        let set = |(column, members)| KeySet { column, members, seen: 0, kept: 0, resting: 0 };
        Self(sets.map(set).collect())
    }

    /// Clears the bits of rows of a block that have no match. There is a chunk for each column of the table.
    pub(super) fn select(&mut self, chunks: &[Chunk<'_>], block: usize, bits: &mut Bits) {
        for set in &mut self.0 {
            let before = count(bits);
            if before == 0 {
                return;
            }
            if set.resting > 0 {
                set.resting -= 1;
                continue;
            }
            let chunk = &chunks[set.column];
            // Decimals of more than 18 digits are left to the join.
            if !matches!(chunk.encoding(), Encoding::Frame | Encoding::Dictionary) {
                continue;
            }
            let mut numbers = [0; BLOCK_ROWS];
            chunk.integers(block, &mut numbers);
            set.members.select(&numbers, bits);
            if let Some(nulls) = chunk.nulls(block) {
                bits.iter_mut().zip(nulls).for_each(|(bits, nulls)| *bits &= !nulls);
            }
            set.judge(before, count(bits));
        }
    }
}

impl KeySet {
    fn judge(&mut self, seen: u32, kept: u32) {
        self.seen += seen;
        self.kept += kept;
        if self.seen >= JUDGED_ROWS {
            if self.kept * 4 > self.seen * KEPT_OF_FOUR_MAX {
                self.resting = RESTING_BLOCKS;
            }
            (self.seen, self.kept) = (0, 0);
        }
    }
}

fn count(bits: &Bits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}
