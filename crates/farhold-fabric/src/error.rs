//! The errors of the fabric. Two errors differ only if a caller would act differently.

use crate::address::{Address, FarPtr, NodeId, RegionId};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Why an instruction, a message or a registration failed. Nothing was changed when one is returned, with one exception: after
/// `NodeUnavailable` and `Timeout` an instruction may have been executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The bytes do not lie inside the region.
    #[error(
        "{bytes} bytes at {at} lie outside the region, which has {region_bytes} bytes; the pointer is wrong or \
         the region was made smaller"
    )]
    OutOfBounds {
        /// First byte asked for.
        at: FarPtr,
        /// How many.
        bytes: u64,
        /// How many bytes the region has.
        region_bytes: u64,
    },
    /// A word instruction at an address that is not a multiple of `align`.
    #[error("{at} is not a multiple of {align}; word instructions and objects need that alignment")]
    Misaligned {
        /// The address.
        at: FarPtr,
        /// What it must be a multiple of.
        align: u64,
    },
    /// The region was registered again since this endpoint learned its key.
    #[error(
        "{region} of {node} was registered again, so the key of this endpoint no longer opens it; refresh the \
         key, and check what else you remember of that region"
    )]
    StaleKey {
        /// The region's node.
        node: NodeId,
        /// The region.
        region: RegionId,
    },
    /// The node has no such region now.
    #[error("{node} has no {region}; it was never registered there or has been removed")]
    NoSuchRegion {
        /// The node.
        node: NodeId,
        /// The region.
        region: RegionId,
    },
    /// The region exists already.
    #[error("{region} of {node} exists already; attach to it, or remove it first")]
    RegionExists {
        /// The node.
        node: NodeId,
        /// The region.
        region: RegionId,
    },
    /// The node never joined, is dead, or cannot be reached.
    #[error("{node} is unavailable: it never joined this fabric, died, or cannot be reached")]
    NodeUnavailable {
        /// The node.
        node: NodeId,
    },
    /// Another process is this node.
    #[error("{node} is already run by process {holder_pid}, which holds {}; stop that process, or start this one as \
         another node", .path.display())]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// Its process.
        holder_pid: u32,
        /// The file that it holds locked.
        path: Box<Path>,
    },
    /// No endpoint has that inbox open.
    #[error("no endpoint listens at {to}; it was dropped or never opened")]
    NoSuchPort {
        /// The inbox.
        to: Address,
    },
    /// Another endpoint of this node has taken the port.
    #[error("port {port} is in use by another endpoint of this node; choose another, or let the fabric choose")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// A message above the limit of the provider.
    #[error(
        "a message of {bytes} bytes is longer than the {bytes_max} that an inbox takes; split it, or put it in a \
         region and send its address"
    )]
    MessageTooLong {
        /// Length of the message.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// A batch or a transfer above the limit of a batch.
    #[error("{bytes} bytes are more than the {bytes_max} allowed in one batch; split the transfer")]
    TooLong {
        /// Length asked for.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The object's payload is longer than the room that `read_object` was given.
    #[error(
        "the object at {at} has a payload of {payload_len} bytes, more than the {payload_len_max} asked for; ask \
         again with more"
    )]
    ObjectTooLong {
        /// The object.
        at: FarPtr,
        /// What it has.
        payload_len: usize,
        /// What the caller allowed.
        payload_len_max: usize,
    },
    /// The inbox has no room: its owner does not keep up.
    #[error("the inbox at {to} is full; its owner does not keep up: wait and send again")]
    QueueFull {
        /// The inbox.
        to: Address,
    },
    /// The inbox has no lane left for another endpoint.
    #[error("the inbox at {to} has no lane left for another sender; close endpoints that are not in use")]
    TooManySenders {
        /// The inbox.
        to: Address,
    },
    /// A writer changed the object while it was read.
    #[error("the object at {at} was being written while it was read; read it again")]
    Torn {
        /// The object.
        at: FarPtr,
    },
    /// Nothing arrived in the given time.
    #[error("nothing came in {waited_ns} ns")]
    Timeout {
        /// The time given.
        waited_ns: u64,
    },
    /// The node speaks another version of the protocol between nodes.
    #[error("{node} speaks version {theirs} of the protocol, this node version {ours}; run one version on all nodes")]
    VersionMismatch {
        /// The node.
        node: NodeId,
        /// The version of this node.
        ours: u16,
        /// The version of the other node.
        theirs: u16,
    },
    /// One of the two does not know the cluster's secret.
    #[error("{node} and this node do not share the cluster's secret; give both the same")]
    NotAdmitted {
        /// The node that was asked.
        node: NodeId,
    },
    /// There is no such provider, or it lacks a needed capability.
    #[error("the provider {} cannot be used: {}; `fi_info -l` lists what libfabric has on this machine", .0.provider, .0.reason)]
    ProviderUnfit(Box<UnfitProvider>),
    /// A file of the cluster's directory has unexpected content.
    #[error("{} is not usable: {}; remove the cluster's directory if nothing in it is needed", .0.path.display(), .0.reason)]
    BadFormat(Box<BadFile>),
    /// The file system of the cluster's directory has no room left.
    #[error("no room for {} more bytes of {}: its file system has {} bytes left; give it more (docker: --shm-size), \
         or choose another directory for the cluster", .0.wanted_bytes, .0.path.display(), .0.free_bytes)]
    FileSystemFull(Box<FullFileSystem>),
    /// The provider has no way to do this.
    #[error("this provider cannot do that: {what}")]
    Unsupported {
        /// What, and of which provider.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("could not {} {}: {}", .0.action, .0.path.display(), .0.reason)]
    Io(Box<IoFailure>),
}

/// A provider that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitProvider {
    /// Its name.
    pub provider: String,
    /// What it lacks, or how a call to it failed.
    pub reason: String,
}

/// A file that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Cow<'static, str>,
}

/// A file that could not get memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullFileSystem {
    /// The file.
    pub path: PathBuf,
    /// Bytes that it was to get.
    pub wanted_bytes: u64,
    /// Bytes that the file system had left.
    pub free_bytes: u64,
}

/// What the operating system refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFailure {
    /// What was tried.
    pub action: &'static str,
    /// On which file.
    pub path: PathBuf,
    /// The kind of refusal.
    pub kind: std::io::ErrorKind,
    /// The system's words.
    pub reason: String,
}

// An error is part of every instruction's result, so it stays small: the long ones are boxed.
const _: () = assert!(size_of::<FabricError>() <= 32);

impl FabricError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::Io(Box::new(IoFailure { action, path: path.into(), kind: error.kind(), reason: error.to_string() }))
    }

    pub(crate) fn file_system_full(path: impl Into<PathBuf>, wanted_bytes: u64, free_bytes: u64) -> Self {
        Self::FileSystemFull(Box::new(FullFileSystem { path: path.into(), wanted_bytes, free_bytes }))
    }

    pub(crate) fn unfit_provider(provider: &str, reason: impl Into<String>) -> Self {
        Self::ProviderUnfit(Box::new(UnfitProvider { provider: provider.to_owned(), reason: reason.into() }))
    }

    pub(crate) fn bad_format(path: impl Into<PathBuf>, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::BadFormat(Box::new(BadFile { path: path.into(), reason: reason.into() }))
    }
}
