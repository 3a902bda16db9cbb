//! What survives a power cut: a journal of commits and checkpoints of rows, in files.
//!
//! ```text
//!  commits ── records ──► journal/       batches of records, each closed by an epoch          ┐
//!  rows ────────────────► checkpoint.rs  the rows of a region, run of pages by run of pages   ├─► restore.rs ─► region
//!  starts ──────────────► cluster/       which epochs of which start of a node count           ┘
//!                         region.rs      how long a node's region is
//!                         inventory.rs   which of these files a start must find
//!                         files.rs       what is asked of a file system; `power.rs`: one that can be cut off
//! ```
//!
//! A node's files hold the records of the transactions that it coordinated, and checkpoints of its own region. A **generation**
//! is the time between two starts of the whole cluster; with replicas, one node may start several times in it. A batch says which
//! epoch it **closes**: all records of this node up to that epoch are in this batch or before. What all nodes have closed is
//! durable and may be acknowledged (Silo's epoch group commit, Tu et al., SOSP 2013, 4.10; Zheng et al., OSDI 2014). The set of
//! durable transactions is closed under "has read from", because epochs never fall along dependencies. At the next start the
//! records up to that epoch count, and no others.
//!
//! Rows are restored into their former slots, each at the newest version that counts, so the order in which files are read does
//! not matter. Everything in a file carries a checksum, and its place, cluster, node and generation.

pub mod checkpoint;
mod cluster;
pub mod files;
mod inventory;
pub mod journal;
pub mod nvm;
mod pages;
pub mod power;
mod region;
mod restore;

pub use cluster::{Begun, Cluster, Cut};
pub use inventory::Inventory;
pub use journal::Standing;
pub use region::region_bytes;
pub use restore::{Plan, Progress, Restored, Run as Parallel, SlotState, plan};

use crate::log::record::hash;
use farhold_fabric::NodeId;
use std::io;

/// The owner of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Drawn at random when the cluster's directory was made.
    pub cluster: u64,
    /// The node.
    pub node: NodeId,
    /// How many nodes the cluster has.
    pub nodes: u8,
}

/// Why files could not be written, or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurableError {
    /// The file system refused an operation.
    #[error("{what}: {reason}")]
    Io {
        /// What was to be done, with the file's name.
        what: Box<str>,
        /// In the system's words.
        reason: Box<str>,
        /// For lack of room.
        is_full: bool,
    },
    /// A file that was once whole is damaged: nothing is restored from it.
    #[error("{file} is damaged at byte {at}: {what}; nothing was restored, journals and checkpoints are as they were")]
    Damaged {
        /// The file.
        file: Box<str>,
        /// Where, in bytes from its start.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A file of another cluster or node, or of another version of this program.
    #[error("{file} is not this node's: its {what} is {found:#x} instead of {expected:#x}")]
    Foreign {
        /// The file.
        file: Box<str>,
        /// What differs.
        what: &'static str,
        /// As found.
        found: u64,
        /// As expected.
        expected: u64,
    },
    /// A living process runs the node, or other nodes of the cluster still run where all must end first, or the directory is
    /// listed as it was some time ago. A later start may succeed.
    #[error("{who}")]
    Busy {
        /// The holder, or the reason.
        who: Box<str>,
    },
}

impl DurableError {
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        let is_full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        Self::Io { what: what.into(), reason: error.to_string().into(), is_full }
    }

    fn damaged(file: &str, at: u64, what: &'static str) -> Self {
        Self::Damaged { file: file.into(), at, what }
    }
}

/// Words with a checksum behind them.
fn seal(words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(hash(0, &bytes).to_le_bytes());
    bytes
}

/// The words of [`seal`], if they are whole.
fn unseal<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    unseal_words(bytes, N)?.try_into().ok()
}

fn unseal_words(bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let (content, rest) = bytes.split_at_checked(count * 8)?;
    let is_whole = rest.get(..8)? == hash(0, content).to_le_bytes();
    is_whole.then(|| (0..count).map(|number| word(content, number * 8)).collect())
}

/// Checks the head of a file: a magic number, then words that must have these values, each with its name.
fn check_words(file: &str, found: &[u64], expected: &[(&'static str, u64)]) -> Result<(), DurableError> {
    for (found, (what, expected)) in found.iter().zip(expected) {
        if found != expected {
            return Err(DurableError::Foreign { file: file.into(), what, found: *found, expected: *expected });
        }
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
