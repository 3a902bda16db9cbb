//! The contract of a provider, and the list of them.

pub mod shm;

use crate::address::{Address, NodeId, RegionId, RegionKey};
use crate::batch::Batch;
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::RegionMemory;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Names of all providers.
pub const ALL: &[&str] = &["shm"];

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u64);

pub(crate) enum Posted {
    /// All results are in the batch.
    Done,
    /// The batch's content is with the provider; `poll` gives it back.
    #[allow(dead_code, reason = "not on shm")]
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
    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError>;
    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError>;
    fn remove_region(&self, region: RegionId) -> Result<(), FabricError>;
    fn endpoint(self: Arc<Self>, handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError>;
    fn node_is_live(&self, node: NodeId) -> bool;
}

/// One thread's end of a provider. The caller stays on one thread. The implementer checks key, bounds and alignment of every
/// instruction before it touches memory, and gives every instruction its own outcome.
pub(crate) trait Provider {
    fn address(&self) -> Address;
    /// Starts the instructions. What is under way belongs to the provider, with the batch's buffers.
    fn post(&self, batch: &mut Batch) -> Posted;
    /// Puts the results into `batch` once all are there.
    fn poll(&self, ticket: Ticket, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()>;
    /// Nobody will poll for this any more; the instructions still happen.
    fn abandon(&self, ticket: Ticket);
    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>>;
    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError>;
    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError>;
    fn message_len_max(&self) -> usize;
    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool;
    fn wait(&self, timeout_ns: u64) -> bool;
}
