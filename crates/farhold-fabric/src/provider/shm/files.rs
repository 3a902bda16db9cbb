//! The files of a cluster: their names, and the locks on nodes' entries.

use super::entry::{AT_BIRTH, AT_NAMESPACE, AT_PID, AT_STARTED};
use super::fence;
use super::fence::Recorded;
use crate::address::{Address, NodeId, RegionId};
use crate::error::FabricError;
use crate::private;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The file in a cluster's directory with the secret that its nodes share, if its provider requires one.
pub(crate) const SECRET: &str = "secret";

/// Removes a cluster with all its regions.
///
/// # Errors
/// [`FabricError::NodeInUse`] if a process still runs one of its nodes; [`FabricError::Io`]. A cluster that does not exist
/// counts as removed.
pub fn remove(cluster: &Path) -> Result<(), FabricError> {
    let entries = match fs::read_dir(cluster) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FabricError::io("list", cluster, &error)),
    };
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let ours: Vec<&String> = names.iter().filter(|name| node_of_file(name).is_some()).collect();
    for name in &ours {
        if let Some((node, "")) = node_of_file(name)
            && let Some(holder) =
                holder(cluster, node).map_err(|error| FabricError::io("look at", cluster.join(name), &error))?
        {
            return Err(FabricError::NodeInUse { node, holder_pid: holder.pid, path: cluster.join(name).into() });
        }
    }
    for name in ours {
        let path = cluster.join(name);
        fs::remove_file(&path).map_err(|error| FabricError::io("remove", path, &error))?;
    }
    let _ = fs::remove_file(cluster.join(SECRET));
    fs::remove_dir(cluster).map_err(|error| FabricError::io("remove", cluster, &error))
}

/// `node-003.rest` -> (node 3, "rest").
pub(super) fn node_of_file(name: &str) -> Option<(NodeId, &str)> {
    let (number, rest) = name.strip_prefix("node-")?.split_at_checked(3)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix('.')? };
    Some((NodeId(number.parse().ok()?), rest))
}

pub(super) fn entry_path(cluster: &Path, node: NodeId) -> PathBuf {
    cluster.join(format!("node-{:03}", node.0))
}

pub(super) fn region_path(cluster: &Path, node: NodeId, region: RegionId) -> PathBuf {
    cluster.join(format!("node-{:03}.region-{:03}", node.0, region.0))
}

pub(super) fn inbox_path(cluster: &Path, of: Address, incarnation: u64) -> PathBuf {
    cluster.join(format!("node-{:03}.inbox-{incarnation}-{}", of.node.0, of.port))
}

pub(super) fn open(path: &Path, create_new: bool) -> io::Result<File> {
    private::open(path, OpenOptions::new().read(true).write(true).create_new(create_new))
}

/// Takes the lock of an open node entry; false if another has it.
pub(super) fn lock(file: &File, how: libc::c_int) -> io::Result<bool> {
    // SAFETY: the descriptor is open as long as `file`; flock touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// The process that runs this node, if one lives. A process that is ending, and touches nothing any more, does not count. A lock
/// that is held after the end of the process that the entry names belongs to another process, or to a start which has not touched
/// anything yet. An error does not tell whether the node lives.
pub(super) fn holder(cluster: &Path, node: NodeId) -> io::Result<Option<Recorded>> {
    let Some(process) = locked_by(cluster, node)? else { return Ok(None) };
    let touches_nothing = process.has_ended()? || process.is_ending()?;
    Ok((!touches_nothing).then_some(process))
}

/// What the node's entry names as its process, if the node's lock is held.
pub(super) fn locked_by(cluster: &Path, node: NodeId) -> io::Result<Option<Recorded>> {
    let file = match open(&entry_path(cluster, node), false) {
        Ok(file) => file,
        Err(error) if fence::is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if lock(&file, libc::LOCK_SH)? {
        return Ok(None);
    }
    let mut words = [0; (AT_BIRTH + 8 - AT_PID) as usize];
    match std::os::unix::fs::FileExt::read_exact_at(&file, &mut words, AT_PID) {
        Ok(()) => {}
        // A first start that has not written its entry yet.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => words.fill(0),
        Err(error) => return Err(error),
    }
    let word = |at: u64| {
        let bytes = words[(at - AT_PID) as usize..].first_chunk().expect("eight bytes");
        u64::from_le_bytes(*bytes)
    };
    let (pid, started) = (word(AT_PID) as u32, word(AT_STARTED));
    Ok(Some(Recorded { pid, started, namespace: word(AT_NAMESPACE), birth: word(AT_BIRTH) }))
}
