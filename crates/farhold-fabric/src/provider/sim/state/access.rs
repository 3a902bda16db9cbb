//! Whether a node executes what another has posted: the way between them, fences, admissions, and the region's key.

use super::{Link, Region, State};
use crate::address::{FarPtr, NodeId};
use crate::error::FabricError;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use crate::provider::sim::model::Hop;
use std::sync::Arc;

impl State {
    #[inline]
    pub fn link(&self, hop: Hop) -> Link {
        if self.links.is_empty() { Link::default() } else { self.links.get(&hop).copied().unwrap_or_default() }
    }

    /// A new start of a node forgets the fences of running starts, whatever its predecessor has fenced: the predecessor may have
    /// paused, and have fenced a start that it had never met.
    pub fn forget_fences_of_the_living(&mut self, node: NodeId) {
        let last: Vec<u64> =
            self.nodes.iter().map(|entry| entry.incarnation.saturating_sub(u64::from(entry.live))).collect();
        if let Some(entry) = self.node_mut(node) {
            for (other, fenced) in &mut entry.fenced {
                *fenced = (*fenced).min(last[usize::from(other.0)]);
            }
        }
    }

    /// Whether the target has fenced the initiator.
    #[inline]
    pub(super) fn is_fenced(&self, hop: Hop, incarnation: u64) -> bool {
        let fenced = self.node(hop.to).and_then(|target| target.fenced.get(&hop.from));
        fenced.is_some_and(|last| incarnation <= *last)
    }

    /// Whether the target executes instructions of this incarnation of the initiator. A target that has started after that
    /// incarnation was expelled has never fenced it.
    #[inline]
    fn is_admitted(&self, hop: Hop, incarnation: u64) -> bool {
        let Some((_, Some(Admitted::Births(births)))) = self.node(hop.to).map(|target| &target.admitted) else {
            return true;
        };
        let birth = self.node(hop.from).and_then(|from| *from.births.get(incarnation as usize - 1)?);
        hop.from == hop.to || births.iter().any(|(node, named)| *node == hop.from && Some(*named) == birth)
    }

    /// The target's side of the checks: is it alive, can it be reached, does the key still open the region?
    #[inline]
    pub(super) fn target(
        &self,
        hop: Hop,
        incarnation: u64,
        at: FarPtr,
        key: u64,
    ) -> Result<Arc<RegionMemory>, FabricError> {
        let (node, region) = (at.node(), at.region());
        let is_out = self.is_fenced(hop, incarnation) || !self.is_admitted(hop, incarnation);
        if self.link(hop).cut || !self.is_live(node) || is_out {
            return Err(FabricError::NodeUnavailable { node });
        }
        match self.node(node).and_then(|entry| entry.region(region)) {
            Some(Region { memory: Some(memory), key: now, is_open: true, .. }) if *now == key => Ok(memory.clone()),
            _ => Err(FabricError::StaleKey { node, region }),
        }
    }
}
