//! Which memory a key opens now, to this CPU and to NICs.

use super::{Home, Place};
use crate::address::RegionId;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::provider::libfabric::Shared;
use crate::provider::libfabric::admission::Standing;
use crate::provider::libfabric::frame::{self, WireOp};
use std::sync::Arc;

/// A region as of the last look: its key, and its memory.
pub(super) type Seen = Option<(u64, Arc<RegionMemory>)>;

impl Home {
    /// The memory that an instruction's key opens now.
    pub(super) fn memory(&mut self, place: &Place<'_>, op: &WireOp) -> Result<&Arc<RegionMemory>, FabricError> {
        let (node, region) = (place.shared.node(), op.region);
        let now = place.shared.key(region);
        if now != Some(op.key) {
            return Err(FabricError::StaleKey { node, region });
        }
        let seen = &mut self.seen[usize::from(region.0)];
        if seen.as_ref().map(|(key, _)| *key) != now {
            *seen = place.shared.registered(region).filter(|(key, _)| Some(*key) == now);
        }
        seen.as_ref().map(|(_, memory)| memory).ok_or(FabricError::StaleKey { node, region })
    }

    /// Drops regions that have been removed or registered again: their memory would be kept until the next instruction there.
    pub(super) fn let_go_stale(&mut self, shared: &Shared) {
        for (seen, region) in self.seen.iter_mut().zip(0..=u8::MAX) {
            seen.take_if(|(key, _)| shared.key(RegionId(region)) != Some(*key));
        }
    }
}

/// Regions are for members.
pub(super) fn check_member(place: &Place<'_>, standing: Standing) -> Result<(), FabricError> {
    let unavailable = FabricError::NodeUnavailable { node: place.shared.node() };
    if standing == Standing::Member { Ok(()) } else { Err(unavailable) }
}

/// Checks the bounds, and answers how the NIC reaches the bytes now. The key has been checked before.
pub(super) fn open_to_nic(
    place: &Place<'_>,
    op: &WireOp,
    memory: &Arc<RegionMemory>,
    answer: &mut Vec<u8>,
) -> Result<(), FabricError> {
    memory.check(op.offset, u64::from(op.len))?;
    match place.shared.open_to_nics(op.region, op.key, memory) {
        Some((key, base)) => frame::put_done(answer, &[key.to_le_bytes(), base.to_le_bytes()].concat()),
        None => frame::put_done(answer, &[]),
    }
    Ok(())
}

/// A region's key and length, and whether the NIC reaches it.
pub(super) fn learn(place: &Place<'_>, standing: Standing, region: RegionId) -> Result<Vec<u8>, FabricError> {
    check_member(place, standing)?;
    let node = place.shared.node();
    let (key, memory) = place.shared.registered(region).ok_or(FabricError::NoSuchRegion { node, region })?;
    let nic = match place.shared.open_to_nics(region, key, &memory) {
        None => 0,
        Some(_) if place.shared.nics_write => frame::NIC_READS | frame::NIC_WRITES,
        Some(_) => frame::NIC_READS,
    };
    let words = [key, memory.len(), nic];
    Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
}
