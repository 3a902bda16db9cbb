//! In the making.
use farhold_fabric::RegionMemory;

/// A bucket at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketStamp {
    /// Its offset in the region.
    pub offset: u64,
    /// Its version word.
    pub word: u64,
}

impl BucketStamp {
    /// Is the bucket as it was?
    #[must_use]
    #[inline(always)]
    pub fn is_still(&self, memory: &RegionMemory) -> bool {
        memory.word(self.offset).is_ok_and(|word| word.load(std::sync::atomic::Ordering::SeqCst) == self.word)
    }
}

pub(crate) fn clear_directory(_memory: &RegionMemory) {}
