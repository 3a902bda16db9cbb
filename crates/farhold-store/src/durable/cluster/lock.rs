//! Which locks do the nodes of a cluster take in its directory, and how long does a start wait for one?

use crate::durable::DurableError;
use crate::durable::files::Directory;
use farhold_fabric::NodeId;
use std::time::Duration;

/// The file that a start locks first, and holds while its process lives.
pub(super) fn lock_name(node: NodeId) -> String {
    format!("node-{}.lock", node.0)
}

/// The file that a start locks when it has begun. While a start waits for its turn it does not count as running, because all
/// nodes may be started at once.
pub(super) fn running_name(node: NodeId) -> String {
    format!("node-{}.running", node.0)
}

/// The lock under which the file is changed. It is held as long as it takes to read the ends of the journals.
pub(super) const TURN: &str = "cluster.lock";

/// How many times a lock is tried, and the time between two tries: a minute. A holder reads the ends of all journals; if it takes
/// longer, its disk does not answer.
const LOCK_LOOKS: u32 = 60_000;
const LOCK_LOOK: Duration = Duration::from_millis(1);

/// Waits for a lock that is never held for long.
pub(super) fn wait_for(directory: &dyn Directory, name: &str) -> Result<Box<dyn Send + Sync>, DurableError> {
    for _ in 0..LOCK_LOOKS {
        let lock = directory.lock(name);
        if let Some(lock) = lock.map_err(|error| DurableError::io(&format!("lock {}", directory.name()), &error))? {
            return Ok(lock);
        }
        std::thread::park_timeout(LOCK_LOOK);
    }
    let who = format!("{name} of {} has been held by a living process for a minute", directory.name());
    Err(DurableError::Busy { who: who.into() })
}
