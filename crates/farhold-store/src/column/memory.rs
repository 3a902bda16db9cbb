//! Memory of column chunks: a region of the node, allocated in extents that are written once.
//!
//! ```text
//!   free ── store ──► extent in use ── last owner of this node drops it ──► dropped ── reclaim ──► stamped with an epoch
//!    ▲                                                                                                     │
//!    └───────────────────── no snapshot of any node is open that is as old as the stamp ◄─────────────────┘
//! ```
//!
//! Invariants:
//! - The bytes of an extent never change from [`ColumnMemory::store`] until it is free again.
//! - An extent is free only when no snapshot that could know of it is open: the proof is in docs/design/0030-columns-of-several-nodes.md. Allocation is first
//!   fit over the free extents, in the order of their addresses. A segment is one extent, so there are few. Low addresses are reused first, because the system
//!   provides memory for each byte at its first use. (`offset-allocator` finds an extent in constant time, but is limited to 2^32 units and a fixed number of
//!   extents; making a segment takes milliseconds.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farhold_fabric::RegionMemory;
use farhold_planted::Defect;

/// Extents begin at multiples of this, and so do the parts in them: a cache line.
pub const EXTENT_ALIGN: u64 = 64;

/// There is no room for an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory of columns has no room for {bytes} bytes more")]
pub struct NoMemory {
    /// The requested size.
    pub bytes: u64,
}

/// A node's memory of column chunks.
#[derive(Debug)]
pub struct ColumnMemory {
    memory: Arc<RegionMemory>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Start and bytes of each free extent; no two touch.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
    /// Extents that have no owner any more.
    dropped: Vec<Place>,
    /// Extents without an owner, with the epoch that was read after they had been dropped; in order.
    stamped: VecDeque<(u32, Vec<Place>)>,
    /// How often something has become free.
    frees: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: u64,
    bytes: u64,
}

/// The sizes of a memory's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes without an owner that open snapshots may still read.
    pub held_bytes: u64,
}

impl ColumnMemory {
    /// Manages a whole region that no other value uses.
    #[must_use]
    pub fn new(memory: Arc<RegionMemory>) -> Arc<Self> {
        let bytes = memory.len() / EXTENT_ALIGN * EXTENT_ALIGN;
        let state = State { free: BTreeMap::from([(0, bytes)]), free_bytes: bytes, ..State::default() };
        Arc::new(Self { memory, state: Mutex::new(state) })
    }

    /// Copies parts into an extent. Each part begins at a multiple of [`EXTENT_ALIGN`].
    ///
    /// # Errors
    /// [`NoMemory`]: the region is full, or the system has no memory for it.
    pub fn store<'p>(
        self: &Arc<Self>,
        parts: impl IntoIterator<Item = &'p [u8], IntoIter: Clone>,
    ) -> Result<Extent, NoMemory> {
        let parts = parts.into_iter();
        let aligned = |part: &[u8]| (part.len() as u64).next_multiple_of(EXTENT_ALIGN);
        let bytes = parts.clone().map(aligned).sum::<u64>().max(EXTENT_ALIGN);
        let place = self.state().take(bytes).ok_or(NoMemory { bytes })?;
        let extent = Extent { of: self.clone(), place };
        // Outside of the lock, because it may clear pages.
        let mut at = place.at;
        let mut copied = self.memory.reserve(at, bytes);
        for part in parts {
            copied = copied.and_then(|()| self.memory.copy_in(at, part));
            at += aligned(part);
        }
        copied.map(|()| extent).map_err(|_| NoMemory { bytes })
    }

    /// Stamps dropped extents with an epoch, and frees those that no open snapshot can know of. `epoch` is read after the last owner has dropped the extents
    /// that it stamps; `oldest` is the [oldest snapshot](crate::Superblock::oldest_snapshot) of any node.
    pub fn reclaim(&self, epoch: impl FnOnce() -> u32, oldest: impl FnOnce() -> u32) {
        let mut state = self.state();
        if state.dropped.is_empty() && state.stamped.is_empty() {
            return;
        }
        if !state.dropped.is_empty() {
            let dropped = std::mem::take(&mut state.dropped);
            state.stamped.push_back((epoch(), dropped));
        }
        let oldest = if farhold_planted::is(Defect::ColumnsNotHeld) { u32::MAX } else { oldest() };
        while let Some((_, places)) = state.stamped.pop_front_if(|(stamp, _)| *stamp < oldest) {
            for place in places {
                state.give(place);
            }
        }
    }

    /// Its region.
    #[must_use]
    pub fn region(&self) -> &RegionMemory {
        &self.memory
    }

    /// The number of times that memory has become free. A caller that found no room need not try again before it grows.
    #[must_use]
    pub fn frees(&self) -> u64 {
        self.state().frees
    }

    /// The sizes of its parts now.
    #[must_use]
    pub fn statistics(&self) -> MemoryStatistics {
        let state = self.state();
        let held = state.dropped.iter().chain(state.stamped.iter().flat_map(|(_, places)| places));
        MemoryStatistics {
            bytes: self.memory.len() / EXTENT_ALIGN * EXTENT_ALIGN,
            free_bytes: state.free_bytes,
            held_bytes: held.map(|place| place.bytes).sum(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, bytes: u64) -> Option<Place> {
        let (&at, &free) = self.free.iter().find(|(_, free)| **free >= bytes)?;
        self.free.remove(&at);
        if free > bytes {
            self.free.insert(at + bytes, free - bytes);
        }
        self.free_bytes -= bytes;
        Some(Place { at, bytes })
    }

    fn give(&mut self, place: Place) {
        let Place { mut at, mut bytes } = place;
        self.free_bytes += bytes;
        self.frees += 1;
        if let Some((&before, &free)) = self.free.range(..at).next_back() {
            debug_assert!(before + free <= at, "freed twice");
            if before + free == at {
                (at, bytes) = (before, free + bytes);
            }
        }
        if let Some(after) = self.free.remove(&(at + bytes)) {
            bytes += after;
        }
        self.free.insert(at, bytes);
    }
}

/// Bytes of a [`ColumnMemory`] that do not change while this value exists.
#[derive(Debug)]
pub struct Extent {
    of: Arc<ColumnMemory>,
    place: Place,
}

impl Extent {
    /// Its bytes, including the padding between its parts.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.place.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where it begins in its region.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.place.at
    }

    /// A part of it, in place.
    ///
    /// # Panics
    /// If it has no such part.
    #[must_use]
    pub fn part(&self, at: u64, bytes: usize) -> &[u8] {
        assert!(bytes as u64 <= self.place.bytes && at <= self.place.bytes - bytes as u64, "outside of the extent");
        // SAFETY: `store` has written the extent before it made this value, and the memory hands an extent out again only after this
        // value is dropped, which the slice borrows. No other process writes to the region, which has one `ColumnMemory`, and whose
        // file only this process, its owner, could make shorter.
        let found = unsafe { self.of.memory.immutable(self.place.at + at, bytes) };
        found.expect("a place of the region")
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.of.state().dropped.push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Holder, Store};
    use farhold_fabric::{FarPtr, NodeId, RegionId};

    fn memory(bytes: u64) -> Arc<ColumnMemory> {
        let origin = FarPtr::new(NodeId(0), RegionId(2), 0);
        ColumnMemory::new(Arc::new(RegionMemory::anonymous(origin, bytes).expect("memory")))
    }

    #[test]
    fn what_is_freed_is_whole_again() {
        let memory = memory(1 << 16);
        let mut random = fastrand::Rng::with_seed(7);
        let mut below = |end: u64| random.u64(..end);
        let mut kept: Vec<(Extent, Vec<u8>)> = Vec::new();
        let mut refused = 0;
        for round in 0..if cfg!(miri) { 200 } else { 20_000_u32 } {
            let bytes: Vec<u8> = (0..below(2_000)).map(|n| (n as u32 ^ round) as u8).collect();
            if let Ok(extent) = memory.store([&bytes[..], &bytes[..]]) {
                kept.push((extent, bytes));
            } else {
                refused += 1;
                kept.truncate(kept.len() / 2);
            }
            if below(3) == 0 && !kept.is_empty() {
                kept.swap_remove(below(kept.len() as u64) as usize);
            }
            memory.reclaim(|| round, || u32::MAX);
            if let Some((extent, bytes)) = kept.last() {
                let second = (bytes.len() as u64).next_multiple_of(EXTENT_ALIGN);
                assert_eq!((extent.part(0, bytes.len()), extent.part(second, bytes.len())), (&bytes[..], &bytes[..]));
            }
        }
        assert!(refused > 0 || cfg!(miri));
        for (extent, bytes) in &kept {
            assert_eq!(extent.part(0, bytes.len()), bytes);
        }
        kept.clear();
        memory.reclaim(|| 0, || u32::MAX);
        let all = memory.statistics();
        assert_eq!((all.free_bytes, all.held_bytes, memory.state().free.len()), (1 << 16, 0, 1));
    }

    /// A snapshot of another node learns of an extent, which then loses its owner here, and another extent is stored. True if the snapshot still finds the
    /// first extent's bytes.
    fn is_kept() -> bool {
        let region = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(region), NodeId(0)).expect("a store");
        let (superblock, memory) = (store.superblock(), memory(4096));
        let holder = Holder { node: NodeId(1), incarnation: 1 };
        let slot = superblock.announce(holder).expect("a slot");
        let epoch = superblock.advance_epoch();
        assert!(superblock.confirm(slot, holder, epoch));
        let extent = memory.store([&[1; 4096][..]]).expect("room");
        let at = extent.offset();
        drop(extent);
        let reclaim = || memory.reclaim(|| superblock.epoch(), || superblock.oldest_snapshot());
        reclaim();
        let other = memory.store([&[2; 4096][..]]);
        let mut found = [0; 4096];
        memory.memory.copy_out(at, &mut found).expect("in the region");
        drop(other);
        // When its holder ends, its claim ends.
        superblock.release_of(|it| it == holder);
        reclaim();
        assert_eq!(memory.statistics().free_bytes, 4096);
        found == [1; 4096]
    }

    #[test]
    fn an_extent_is_kept_for_snapshots_of_other_nodes() {
        assert!(is_kept());
        assert!(!farhold_planted::with(Defect::ColumnsNotHeld, is_kept), "a planted defect is noticed");
    }

    /// A snapshot that is announced and not yet confirmed prevents all frees, and a snapshot whose epoch equals the stamp prevents this one.
    #[test]
    fn a_stamp_is_compared_with_the_oldest() {
        let memory = memory(4096);
        drop(memory.store([&[1][..]]).expect("room"));
        for (oldest, is_freed) in [(0, false), (5, false), (6, true)] {
            memory.reclaim(|| 5, || oldest);
            assert_eq!(memory.statistics().held_bytes == 0, is_freed, "{oldest}");
        }
    }
}
