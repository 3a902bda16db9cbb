//! The contract of a provider, and the list of them.
//!
//! A provider is a folder here and a line in [`ALL`]. By that line `Fabric::join` finds it by its name, and `conformance` checks it
//! against everything that this crate promises.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(feature = "libfabric")]
pub mod libfabric;
pub mod shm;
pub mod sim;

use crate::address::{Address, NodeId, RegionId, RegionKey};
use crate::batch::{Batch, OpKind};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A provider, as configuration and documents name it.
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The component that executes an instruction on another node's memory.
    pub does: fn(OpKind) -> Doer,
    /// The ways in which it is available on this machine.
    pub here: fn() -> Vec<Here>,
    /// How a process joins a cluster by it.
    pub(crate) join: Option<Join>,
    /// Clusters to test it on, made of a seed.
    #[cfg(test)]
    beds: &'static [fn(u64) -> conformance::Bed],
}

type Joined = Result<Arc<dyn Membership>, FabricError>;

/// How a process becomes a node of a cluster by a provider.
pub(crate) struct Join {
    /// The text that [`Fabric::join`](crate::Fabric::join) takes for it, with its settings.
    pub usage: &'static str,
    /// Joins, given the directory, the node, and the settings behind the name and a colon.
    pub member: fn(&Path, NodeId, Option<&str>) -> Joined,
}

/// A way in which a provider is available on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its name for [`Fabric::join`](crate::Fabric::join).
    pub name: String,
    /// What there is to say about it, in one line.
    pub about: String,
}

/// The component that executes an instruction on another node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doer {
    /// The calling thread's processor, by loads, stores and locked instructions.
    Cpu,
    /// The network card of the memory's node: native.
    Nic,
    /// A progress thread of the memory's node: emulated.
    HomeAgent,
    /// Many bytes by libfabric's provider (the network card, where it has one), few by a progress thread of the memory's node.
    Library,
    /// The simulation.
    Simulation,
}

impl Doer {
    /// Whether the machine itself does it, without a program of the memory's node.
    #[must_use]
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Cpu | Self::Nic)
    }
}

/// All providers, by name.
pub const ALL: &[Kind] = &[
    #[cfg(feature = "libfabric")]
    libfabric::KIND,
    shm::KIND,
    sim::KIND,
];

/// Longest message: 64 KiB, which is the longest row of a store, and room for a header. Longer ones belong in a region, with
/// their address in the message.
pub const MESSAGE_BYTES_MAX: usize = (64 << 10) + (1 << 10);
/// Bytes that one sender may have under way to one inbox: three longest messages. More would only spread a busy lane over more
/// cache.
pub const LANE_BYTES_MAX: u64 = 256 << 10;
/// Senders of an inbox: 16 nodes with 16 threads each.
pub const LANES: usize = 256;

/// Identifies a batch that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u64);

pub(crate) enum Posted {
    /// All results are in the batch.
    Done,
    /// The batch's content is with the provider; `poll` gives it back.
    UnderWay(Ticket),
}

/// Which inbox to look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbox {
    Own,
    Home,
}

/// A node's membership, shared by its threads.
pub(crate) trait Membership: Send + Sync {
    fn node(&self) -> NodeId;
    fn provider(&self) -> &'static str;
    /// Closed until it is opened, as the next.
    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError>;
    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError>;
    /// Others get keys of it from here on.
    fn open_region(&self, region: RegionId) -> Result<(), FabricError>;
    fn remove_region(&self, region: RegionId) -> Result<(), FabricError>;
    fn endpoint(self: Arc<Self>, handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError>;
    fn node_is_live(&self, node: NodeId) -> bool;
    /// See [`crate::Fabric::fence`].
    fn fence(&self, _node: NodeId, _birth: u64) -> Result<bool, FabricError> {
        Err(FabricError::Unsupported { what: "shutting another node out" })
    }
    /// See [`crate::Fabric::birth`].
    fn birth(&self) -> Option<u64> {
        None
    }
    /// See [`crate::Fabric::set_birth`].
    fn set_birth(&self, _birth: u64) {}
    /// See [`crate::Fabric::admit`].
    fn admit(&self, _number: u64, _admitted: Admitted) {}
}

/// One thread's end of a provider. The caller stays on one thread. The implementer checks key, bounds and alignment of every
/// instruction before it touches memory, and gives every instruction its own outcome.
pub(crate) trait Provider {
    fn address(&self) -> Address;
    /// Starts the instructions. What is under way belongs to the provider, with the batch's buffers.
    fn post(&self, batch: &mut Batch) -> Posted;
    /// Puts the results into `batch` once all are there.
    fn poll(&self, ticket: Ticket, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()>;
    /// The caller will not poll for this any more; the instructions still happen.
    fn abandon(&self, ticket: Ticket);
    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>>;
    /// Whether `mapped` ever returns a region of another node.
    fn maps_others(&self) -> bool {
        false
    }
    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError>;
    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError>;
    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool;
    /// Whether a message is there, as far as can be seen without taking it.
    fn has_arrived(&self) -> bool;
    /// Blocks the thread until a message may be there.
    fn wait(&self, timeout_ns: u64) -> bool;
    /// Wakes the task when a message may have come to either inbox. It may wake too often.
    fn wake_on_arrival(&self, cx: &mut Context<'_>);
}
