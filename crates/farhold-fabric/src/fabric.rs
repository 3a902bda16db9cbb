//! The membership of a node in a fabric.

use crate::address::{NodeId, RegionId};
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::RegionMemory;
use crate::provider::{self, Membership, shm};
use crate::traffic::Traffic;
use std::path::Path;
use std::sync::Arc;

/// The starts that may use a node's regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Every node that knows the cluster's secret.
    Everybody,
    /// These starts of these nodes, each with its [`Fabric::birth`].
    Births(Vec<(NodeId, u64)>),
}

/// What can be joined by this build.
fn known_here() -> String {
    let known: Vec<&str> = provider::ALL.iter().filter_map(|kind| Some(kind.join.as_ref()?.usage)).collect();
    let more = if cfg!(feature = "libfabric") { "" } else { "; it was built without the feature `libfabric`" };
    format!("this build knows {}{more}", known.join(" and "))
}

/// A node's membership: it registers the node's regions and opens endpoints. Clones are the same membership, which ends with
/// the last clone and endpoint.
#[derive(Clone)]
pub struct Fabric {
    membership: Arc<dyn Membership>,
    traffic: Arc<Traffic>,
}

impl Fabric {
    pub(crate) fn new(membership: Arc<dyn Membership>) -> Self {
        Self { membership, traffic: Arc::default() }
    }

    /// Joins the cluster of processes that share the directory `cluster`, as `node`. See [`shm`].
    ///
    /// # Errors
    /// [`FabricError::NodeInUse`] if a living process is that node; [`FabricError::Io`], [`FabricError::BadFormat`].
    pub fn join_shm(cluster: impl AsRef<Path>, node: NodeId) -> Result<Self, FabricError> {
        Ok(Self::new(shm::Member::join(cluster.as_ref(), node)?))
    }

    /// Joins a cluster as `node`, by a provider's name: `shm`, or `libfabric:` and the name of one of libfabric's providers. With
    /// nodes on several hosts, their addresses follow
    /// (`libfabric:tcp;ofi_rxm?listen=10.0.0.1:7470&peer=1@10.0.0.2:7470&secret-file=PATH`). The directory holds this node's own
    /// regions.
    ///
    /// # Errors
    /// As [`Self::join_shm`]; [`FabricError::ProviderUnfit`] for an unknown name, or one that this build lacks.
    pub fn join(cluster: impl AsRef<Path>, node: NodeId, provider: &str) -> Result<Self, FabricError> {
        let (name, settings) = match provider.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None => (provider, None),
        };
        let by_name = provider::ALL.iter().find(|kind| kind.name == name);
        match by_name.and_then(|kind| kind.join.as_ref()) {
            Some(join) => Ok(Self::new((join.member)(cluster.as_ref(), node, settings)?)),
            None => Err(FabricError::unfit_provider(provider, known_here())),
        }
    }

    /// Joins a cluster as `node` by libfabric. `directory` holds this node's own regions, and on one host also what the nodes
    /// know of each other. See [`libfabric`](crate::provider::libfabric).
    ///
    /// # Errors
    /// As [`Self::join_shm`]; [`FabricError::ProviderUnfit`] if libfabric has no such provider, or it lacks a needed capability.
    #[cfg(feature = "libfabric")]
    pub fn join_libfabric(
        directory: impl AsRef<Path>,
        node: NodeId,
        config: crate::provider::libfabric::Config,
    ) -> Result<Self, FabricError> {
        Ok(Self::new(crate::provider::libfabric::Member::join(directory.as_ref(), node, config)?))
    }

    /// Which node this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.membership.node()
    }

    /// Name of the provider: one of [`crate::provider::ALL`].
    #[must_use]
    pub fn provider(&self) -> &'static str {
        self.membership.provider()
    }

    /// Registers a new, zeroed region of this node, at least `len` bytes long. Its bytes take memory when they are
    /// [reserved](RegionMemory::reserve), or first touched.
    ///
    /// # Errors
    /// [`FabricError::RegionExists`]: attach to it or remove it. [`FabricError::Io`].
    pub fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let memory = self.membership.create_region(region, len)?;
        self.membership.open_region(region).map(|()| memory)
    }

    /// As [`Self::create_region`], but other nodes find no such region until [`Self::open_region`].
    ///
    /// # Errors
    /// As there.
    pub fn create_closed_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        self.membership.create_region(region, len)
    }

    /// Registers a region of this node again that an earlier process of the node (or this one) has left, with its content and a
    /// new key. Endpoints that knew it get [`FabricError::StaleKey`] until they refresh.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRegion`], [`FabricError::BadFormat`], [`FabricError::Io`].
    pub fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        let memory = self.membership.attach_region(region)?;
        self.membership.open_region(region).map(|()| memory)
    }

    /// As [`Self::attach_region`], but other nodes find no such region until [`Self::open_region`]. It is for an owner that first
    /// changes what its earlier process has left.
    ///
    /// # Errors
    /// As there.
    pub fn attach_closed_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        self.membership.attach_region(region)
    }

    /// Opens a region that this process has created or attached to for other nodes.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRegion`].
    pub fn open_region(&self, region: RegionId) -> Result<(), FabricError> {
        self.membership.open_region(region)
    }

    /// Removes a region of this node. Endpoints that knew it get [`FabricError::StaleKey`]; existing mappings stay readable until
    /// dropped.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRegion`], [`FabricError::Io`].
    pub fn remove_region(&self, region: RegionId) -> Result<(), FabricError> {
        self.membership.remove_region(region)
    }

    /// Bytes that this membership's endpoints have read and written by instructions so far; messages are not counted.
    #[must_use]
    pub fn bytes_moved(&self) -> u64 {
        self.traffic.bytes()
    }

    /// Opens an endpoint for this thread, with an inbox on a free port.
    ///
    /// # Errors
    /// [`FabricError::Io`]; [`FabricError::PortInUse`] if all ports are taken.
    pub fn endpoint(&self, handle: &Handle) -> Result<Endpoint, FabricError> {
        let provider = self.membership.clone().endpoint(handle, None)?;
        Ok(Endpoint::new(provider, handle.clone(), self.traffic.endpoint()))
    }

    /// Opens an endpoint with an inbox on a given port, at least 1.
    ///
    /// # Errors
    /// [`FabricError::PortInUse`], also for port 0, which is the home inbox; [`FabricError::Io`].
    pub fn endpoint_at(&self, handle: &Handle, port: u16) -> Result<Endpoint, FabricError> {
        let provider = self.membership.clone().endpoint(handle, Some(port))?;
        Ok(Endpoint::new(provider, handle.clone(), self.traffic.endpoint()))
    }

    /// Fences the start of a node that has this [birth](Self::birth). When it has returned true, no instruction that this start
    /// has posted, or will post, changes this node's memory, and none of its messages comes to this node's inboxes. Other starts
    /// of the node are not affected. False: fencing is under way, and the caller must ask again. The call does not wait for a
    /// process to end, because that may take longer than the caller's lease. The mechanism is the provider's: `shm` ends the
    /// process, `sim` checks at the target.
    ///
    /// # Errors
    /// [`FabricError::Unsupported`] by a provider that cannot; [`FabricError::Io`].
    pub fn fence(&self, node: NodeId, birth: u64) -> Result<bool, FabricError> {
        self.membership.fence(node, birth)
    }

    /// What tells this start of the node from all other starts of all nodes, for [`Self::admit`]; `None` if the provider has no
    /// such number.
    #[must_use]
    pub fn birth(&self) -> Option<u64> {
        self.membership.birth()
    }

    /// Replaces what tells this start from all others. It must be called before the first request to another node, because
    /// sessions keep the value that they began with.
    pub fn set_birth(&self, birth: u64) {
        self.membership.set_birth(birth);
    }

    /// Says which starts get keys of this node's regions and may execute instructions on them from now on: all nodes that know
    /// the secret (the default), or only some. `number` is that of the configuration that says so; an older configuration no
    /// longer counts. A start that is to be excluded must be [fenced](Self::fence) as well, which waits for what it has begun.
    /// `libfabric` and the simulation check admission; `shm` ends processes instead.
    pub fn admit(&self, number: u64, admitted: Admitted) {
        self.membership.admit(number, admitted);
    }

    /// Whether a living process (or simulated node) runs this node now. It is also true if that cannot be determined; false is
    /// certain. On `shm` it asks the kernel, so it is not for hot paths. Between hosts it is certain as long as no firewall
    /// refuses connections in the place of the node's host (REJECT), because that looks as if no process listened there: let
    /// firewalls drop packets.
    #[must_use]
    pub fn node_is_live(&self, node: NodeId) -> bool {
        self.membership.node_is_live(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_provider_has_is_refused_with_those_that_there_are() {
        let directory = std::env::temp_dir().join(format!("farhold-fabric-names-{}", std::process::id()));
        let refusal = |name: &str| match Fabric::join(&directory, NodeId(0), name).map(drop) {
            Err(error @ FabricError::ProviderUnfit(_)) => error.to_string(),
            other => panic!("{name}: {other:?}"),
        };
        for name in ["", "sim", "Shm", "nvlink:0"] {
            let said = refusal(name);
            assert!(said.contains("this build knows ") && said.contains("shm"), "{said}");
        }
        assert!(refusal("shm:fast").contains("no settings"));
        assert!(!directory.exists(), "refused before anything is made");
        for kind in provider::ALL {
            assert!(kind.join.as_ref().is_none_or(|join| join.usage.starts_with(kind.name)), "{}", kind.name);
        }
    }
}
