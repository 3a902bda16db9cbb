//! A simulated node's membership.

use super::World;
use super::endpoint::SimEndpoint;
use super::state::{InboxState, Node, Region, State};
use super::trace::What;
use crate::address::{Address, FarPtr, NodeId, RegionId};
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use crate::provider::{Membership, Provider};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A simulated node's membership.
pub(super) struct Member {
    pub world: Arc<World>,
    pub node: NodeId,
    pub incarnation: u64,
}

impl Member {
    /// This node's entry, if this is still the node.
    pub fn entry<'a>(&self, state: &'a mut State) -> Result<&'a mut Node, FabricError> {
        let node = self.node;
        state
            .node_mut(node)
            .filter(|entry| entry.live && entry.incarnation == self.incarnation)
            .ok_or(FabricError::NodeUnavailable { node })
    }
}

impl Membership for Member {
    fn node(&self) -> NodeId {
        self.node
    }

    fn provider(&self) -> &'static str {
        "sim"
    }

    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let mut state = self.world.lock();
        let keeps_durable = state.keeps_durable;
        let entry = self.entry(&mut state)?;
        let last_key = match entry.region(region) {
            Some(Region { memory: Some(_), .. }) => return Err(FabricError::RegionExists { node: self.node, region }),
            Some(Region { key, .. }) => *key,
            None => 0,
        };
        let memory = Arc::new(RegionMemory::anonymous(FarPtr::new(self.node, region, 0), len)?);
        let durable = keeps_durable.then(|| vec![0; memory.len() as usize]);
        entry.regions.retain(|(number, _)| *number != region);
        entry
            .regions
            .push((region, Region { memory: Some(memory.clone()), key: last_key + 1, is_open: false, durable }));
        Ok(memory)
    }

    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        let mut state = self.world.lock();
        match self.entry(&mut state)?.region_mut(region) {
            Some(Region { memory: Some(memory), key, is_open, .. }) => {
                (*key, *is_open) = (*key + 1, false);
                Ok(memory.clone())
            }
            _ => Err(FabricError::NoSuchRegion { node: self.node, region }),
        }
    }

    fn open_region(&self, region: RegionId) -> Result<(), FabricError> {
        let mut state = self.world.lock();
        match self.entry(&mut state)?.region_mut(region) {
            Some(Region { memory: Some(_), is_open, .. }) => {
                *is_open = true;
                Ok(())
            }
            _ => Err(FabricError::NoSuchRegion { node: self.node, region }),
        }
    }

    fn remove_region(&self, region: RegionId) -> Result<(), FabricError> {
        let mut state = self.world.lock();
        let entry = self.entry(&mut state)?.region_mut(region);
        let memory = entry.and_then(|region| region.memory.take());
        memory.map(drop).ok_or(FabricError::NoSuchRegion { node: self.node, region })
    }

    fn endpoint(self: Arc<Self>, handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError> {
        assert!(handle.is_virtual(), "a simulated node's endpoints live on the simulation's executor");
        let port = {
            let mut state = self.world.lock();
            let entry = self.entry(&mut state)?;
            let used: BTreeSet<u16> = entry.inboxes.keys().copied().collect();
            let next = entry.next_port;
            let free = || (0..u16::MAX).map(|step| next.wrapping_add(step).max(1)).find(|port| !used.contains(port));
            let port = port.or_else(free).ok_or(FabricError::PortInUse { port: u16::MAX })?;
            if used.contains(&port) {
                return Err(FabricError::PortInUse { port });
            }
            entry.next_port = port.wrapping_add(1);
            entry.inboxes.insert(port, InboxState::default());
            port
        };
        let address = Address { node: self.node, port };
        Ok(Box::new(SimEndpoint::new(self, address, handle)))
    }

    fn node_is_live(&self, node: NodeId) -> bool {
        self.world.lock().is_live(node)
    }

    fn fence(&self, node: NodeId, _birth: u64) -> Result<bool, FabricError> {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let last = state.node(node).map_or(0, |entry| entry.incarnation);
        state.trace.event(now_ns, What::Fence, [u64::from(self.node.0), u64::from(node.0), last]);
        let done_ns = now_ns + state.fence_ns;
        let entry = self.entry(&mut state)?;
        let fencing = entry.fencing.entry(node).or_insert((last, done_ns));
        if fencing.0 != last {
            // It has come back since.
            *fencing = (last, done_ns);
        }
        let (of, done_ns) = *fencing;
        if now_ns < done_ns {
            return Ok(false);
        }
        entry.fenced.insert(node, of);
        Ok(true)
    }

    fn birth(&self) -> Option<u64> {
        self.entry(&mut self.world.lock()).ok()?.births.last().copied()?
    }

    fn set_birth(&self, birth: u64) {
        if let Some(last) = self.entry(&mut self.world.lock()).ok().and_then(|entry| entry.births.last_mut()) {
            *last = Some(birth);
        }
    }

    fn admit(&self, number: u64, admitted: Admitted) {
        if let Ok(entry) = self.entry(&mut self.world.lock())
            && number >= entry.admitted.0
        {
            entry.admitted = (number, Some(admitted));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Ok(mut state) = self.world.state.lock()
            && let Ok(entry) = self.entry(&mut state)
        {
            entry.live = false;
            entry.inboxes.clear();
        }
    }
}
