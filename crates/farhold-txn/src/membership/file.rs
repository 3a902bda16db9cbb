//! The register of a cluster of one host: two files beside the regions.
//!
//! ```text
//!  register            magic │ version │ settled │ configuration │ checksum      replaced as a whole, under a lock
//!  register.renewals   8 bytes a node, written by that node alone
//! ```
//!
//! The kernel knows which process runs, so a death is known at once and for certain. Leases are for processes that are
//! stopped.

use crate::base::wire::{Reader, Writer};
use crate::cluster::configuration::Configuration;
use crate::cluster::register::{Register, RegisterError, RegisterFuture, Registered, Renewals};
use farhold_fabric::{Fabric, NodeId, private};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"FARHREG4");

/// A register in a directory.
pub struct FileRegister {
    register: PathBuf,
    lock: PathBuf,
    renewals: PathBuf,
    fabric: Fabric,
    nodes: u8,
}

impl FileRegister {
    /// The register of the cluster in this directory, whose nodes `fabric` knows.
    #[must_use]
    pub fn new(cluster: &Path, fabric: &Fabric, nodes: u8) -> Self {
        let file = |name| cluster.join(name);
        let (register, lock, renewals) = (file("register"), file("register.lock"), file("register.renewals"));
        Self { register, lock, renewals, fabric: fabric.clone(), nodes }
    }

    /// What is written in the register of the cluster in this directory, and the number of the last configuration that all its
    /// nodes have installed; `None` if it has none yet.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn peek(cluster: &Path) -> Result<Option<(Configuration, u64)>, RegisterError> {
        read(&cluster.join("register"))
    }

    /// The last status of a node, as lines of a name and a value; `None` if it has reported nothing yet.
    #[must_use]
    pub fn status(cluster: &Path, node: NodeId) -> Option<String> {
        std::fs::read_to_string(status_path(cluster, node)).ok()
    }

    /// Reports a status of this node, for [`status`](Self::status).
    pub(crate) fn tell_status(cluster: &Path, node: NodeId, status: &str) -> io::Result<()> {
        let path = status_path(cluster, node);
        let fresh = path.with_extension("fresh");
        private::write(&fresh, status.as_bytes())?;
        std::fs::rename(&fresh, &path)
    }

    /// May the process of this node start? Not while the others may still be about to fence its earlier start.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn is_free(cluster: &Path, node: NodeId) -> Result<bool, RegisterError> {
        match read(&cluster.join("register"))? {
            None => Ok(true),
            Some((now, settled)) => {
                let is_there = now.births.get(usize::from(node.0)).is_some_and(|birth| *birth != 0);
                // No node is fenced in a cluster that is not founded.
                Ok(!now.is_founded() || (!is_there && settled == now.number))
            }
        }
    }

    /// Changes what is written, under the lock.
    fn change<T>(&self, change: impl FnOnce(&mut Option<Configuration>, &mut u64) -> T) -> Result<T, RegisterError> {
        let lock = private::open(&self.lock, OpenOptions::new().create(true).truncate(false).write(true));
        let lock = lock.map_err(unavailable)?;
        take(&lock)?;
        let (mut now, mut settled) = match read(&self.register)? {
            None => (None, 0),
            Some((now, settled)) => (Some(now), settled),
        };
        let before = (now.clone(), settled);
        let result = change(&mut now, &mut settled);
        if let Some(after) = now.as_ref().filter(|_| before != (now.clone(), settled)) {
            let fresh = self.register.with_extension("fresh");
            private::write(&fresh, &encode(after, settled)).map_err(unavailable)?;
            std::fs::rename(&fresh, &self.register).map_err(unavailable)?;
        }
        Ok(result)
    }

    fn open_renewals(&self) -> io::Result<File> {
        private::open(&self.renewals, OpenOptions::new().create(true).truncate(false).read(true).write(true))
    }
}

/// Looks at the lock, and the time between two: it is held for some 100 µs. The waiting task's node has messages to
/// answer meanwhile.
const LOCK_LOOKS: u32 = 100;
const LOCK_LOOK: Duration = Duration::from_micros(100);

/// Takes the lock, unless its holder has been stopped in the middle.
fn take(lock: &File) -> Result<(), RegisterError> {
    for _ in 0..LOCK_LOOKS {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCK_LOOK),
            Err(TryLockError::Error(error)) => return Err(unavailable(error)),
        }
    }
    Err(RegisterError::Unavailable { reason: "another process has held its lock for 10 ms".into() })
}

fn status_path(cluster: &Path, node: NodeId) -> PathBuf {
    cluster.join(format!("status-{:03}", node.0))
}

#[allow(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn unavailable(error: io::Error) -> RegisterError {
    RegisterError::Unavailable { reason: error.to_string().into() }
}

/// FNV-1a: the file is replaced as a whole, so this guards against another program's file and a damaged disk.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn encode(configuration: &Configuration, settled: u64) -> Vec<u8> {
    let mut w = Writer::default();
    w.u64(MAGIC).u64(settled).bytes(&configuration.encode());
    let sum = checksum(&w.0);
    w.u64(sum);
    w.0
}

fn read(path: &Path) -> Result<Option<(Configuration, u64)>, RegisterError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unavailable(error)),
    };
    let foreign = |reason: &str| RegisterError::Foreign { reason: format!("{}: {reason}", path.display()).into() };
    let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Err(foreign("too short")) };
    let mut r = Reader(content);
    if r.u64() != Ok(MAGIC) {
        return Err(foreign("not a register of this version"));
    }
    if u64::from_le_bytes(*sum) != checksum(content) {
        return Err(foreign("its checksum is another"));
    }
    let parts = r.u64().and_then(|settled| Ok((Configuration::decode(r.bytes()?)?, settled)));
    parts.map(Some).map_err(|_| foreign("its configuration makes no sense"))
}

/// Of a node; none yet where the file ends before.
fn renewals_at(file: &File, node: NodeId) -> Result<Renewals, RegisterError> {
    let mut bytes = [0; Renewals::BYTES];
    let _ = file.read_at(&mut bytes, u64::from(node.0) * Renewals::BYTES as u64).map_err(unavailable)?;
    Ok(Renewals::decode(&bytes).unwrap_or_default())
}

impl Register for FileRegister {
    fn load(&self) -> RegisterFuture<'_, Registered> {
        Box::pin(async move {
            let found = read(&self.register)?;
            let file = self.open_renewals().map_err(unavailable)?;
            let mut renewals = Vec::with_capacity(usize::from(self.nodes));
            for node in 0..self.nodes {
                renewals.push(renewals_at(&file, NodeId(node))?);
            }
            let (configuration, settled) = found.map_or((None, 0), |(now, settled)| (Some(now), settled));
            Ok(Registered { configuration, settled, renewals })
        })
    }

    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool> {
        Box::pin(async move {
            self.change(|now, _| {
                let is_expected = now.as_ref().map_or(0, |now| now.number) == expected;
                if is_expected {
                    *now = Some(next.clone());
                }
                is_expected
            })
        })
    }

    fn settle(&self, number: u64) -> RegisterFuture<'_, ()> {
        Box::pin(async move { self.change(|_, settled| *settled = number.max(*settled)) })
    }

    fn renew<'a>(&'a self, node: NodeId, misses: &'a [NodeId]) -> RegisterFuture<'a, ()> {
        Box::pin(async move {
            let file = self.open_renewals().map_err(unavailable)?;
            let next = renewals_at(&file, node)?.next(misses);
            file.write_all_at(&next.encode(), u64::from(node.0) * Renewals::BYTES as u64).map_err(unavailable)
        })
    }

    fn is_dead(&self, node: NodeId) -> bool {
        !self.fabric.node_is_live(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_no_register() {
        let path = std::env::temp_dir().join(format!("farhold-register-{}", std::process::id()));
        let configuration = Configuration::first(3, 2);
        let bytes = encode(&configuration, 7);
        std::fs::write(&path, &bytes).expect("a file");
        assert_eq!(read(&path), Ok(Some((configuration, 7))));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            std::fs::write(&path, &other).expect("a file");
            assert!(matches!(read(&path), Err(RegisterError::Foreign { .. })), "byte {at}");
            std::fs::write(&path, &bytes[..at]).expect("a file");
            assert!(matches!(read(&path), Err(RegisterError::Foreign { .. })), "{at} bytes");
        }
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(read(&path), Ok(None));
    }
}
