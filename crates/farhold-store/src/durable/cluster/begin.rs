//! Which generation and which start does a node get?
//!
//! While a process of the node lives, it gets none. If no process of the present generation runs, the node ends that generation and
//! begins the next one; otherwise it enters the present one. With replicas a node may enter a generation again, as a later start.

use super::lock::{TURN, lock_name, running_name, wait_for};
use super::{BEGUN_WORDS, Cluster, NAME};
use crate::durable::files::Directory;
use crate::durable::{DurableError, Identity, inventory, journal};
use farhold_fabric::NodeId;

/// A node's place in a generation, held while its process lives.
pub struct Begun {
    /// What the node found or wrote.
    pub cluster: Cluster,
    /// The number of this start.
    pub start: u32,
    /// The node was in this generation before, and the generation was founded: other nodes have the node's rows now.
    pub is_late: bool,
    /// Held as long as the node runs.
    pub lock: Box<dyn Send + Sync>,
}

/// Whether it is the name of an unfinished file: a segment of a journal, a checkpoint, or the file with a region's length.
fn is_unfinished(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("fresh" | "part"))
}

impl Cluster {
    /// Begins a generation, or enters the one that other nodes have begun. It makes the start's first journal segment by `mark`,
    /// so that the next start knows of this one. `cluster` names a new cluster if there is none here. `comes_back`: with
    /// replicas, a node may restart while others run.
    ///
    /// # Errors
    /// [`DurableError::Busy`] if a living process has this node, or runs in the generation that would have to end, or the file
    /// system lists the directory as it was before a file was made;
    /// [`DurableError::Foreign`], [`DurableError::Damaged`], [`DurableError::Io`].
    pub fn begin(
        directory: &dyn Directory,
        cluster: u64,
        (node, nodes): (NodeId, u8),
        comes_back: bool,
        mark: &dyn Fn(&Cluster, u32) -> Result<(), DurableError>,
    ) -> Result<Begun, DurableError> {
        let failed = |what: &str| {
            let what = format!("{what} {}", directory.name());
            move |error| DurableError::io(&what, &error)
        };
        let lock = directory.lock(&lock_name(node)).map_err(failed("lock a node of"))?;
        let Some(lock) = lock else {
            let who = format!("node {} of {} is held by a living process", node.0, directory.name());
            return Err(DurableError::Busy { who: who.into() });
        };
        let turn = wait_for(directory, TURN)?;
        let mut this = match Self::read(directory)? {
            Some(found) => found,
            None => Self::first(directory, Identity { cluster, node, nodes })?,
        };
        this.identity.node = node;
        if this.identity.nodes != nodes {
            let (found, expected) = (u64::from(this.identity.nodes), u64::from(nodes));
            return Err(DurableError::Foreign { file: NAME.into(), what: "number of nodes", found, expected });
        }
        let names = directory.list().map_err(failed("list"))?;
        let last_of = |node| journal::segments(&names, node).last().map_or(0, |(start, _)| *start);
        let mine = last_of(node);
        if mine > this.start_last {
            let (found, expected) = (u64::from(mine), u64::from(this.start_last));
            let file = format!("a journal of node {}", node.0).into();
            return Err(DurableError::Foreign { file, what: "start", found, expected });
        }
        let is_begun = (0..nodes).map(NodeId).any(|node| last_of(node) >= this.generation);
        let mut start = this.generation;
        let living = if is_begun { this.living(directory)? } else { Vec::new() };
        let is_over = is_begun && living.is_empty();
        // A node that has ended since the names were listed may have made and removed files until then.
        let names = if is_begun { directory.list().map_err(failed("list"))? } else { names };
        let is_late = !is_over && mine >= this.generation && comes_back && this.is_founded(directory, &names)?;
        // The list of a running node's files changes meanwhile. A node that has ended does nothing before it is its turn. A late
        // start needs no other node's files.
        let has_ended = |other: NodeId| !is_late && !living.contains(&other);
        let checked = (0..nodes).map(NodeId).filter(|other| *other == node || has_ended(*other));
        for other in checked.filter(|other| this.has_begun(*other)) {
            inventory::check(directory, &Identity { node: other, ..this.identity }, &names)?;
        }
        if is_over {
            // Also for a node that was not there.
            this.next_generation(directory, &names)?;
            start = this.generation;
        } else if mine >= this.generation && comes_back {
            this.start_last += 1;
            this.write(directory)?;
            start = this.start_last;
        } else if mine >= this.generation {
            let who = format!(
                "node {} cannot start from {}: nodes {} still run; what they have in memory and this node has lost \
                 must be forgotten by all, so end them first",
                node.0,
                directory.name(),
                living.iter().map(|other| other.0.to_string()).collect::<Vec<_>>().join(", ")
            );
            return Err(DurableError::Busy { who: who.into() });
        }
        // Files that an earlier start of the node was about to make; the lock says that this start has ended.
        let prefix = format!("node-{}.", node.0);
        for name in names.iter().filter(|name| name.starts_with(&prefix) && is_unfinished(name)) {
            directory.remove(name).map_err(failed("remove what was not finished from"))?;
        }
        mark(&this, start)?;
        if !this.has_begun(node) {
            this.begun[usize::from(node.0 / 64)] |= 1 << (node.0 % 64);
            this.write(directory)?;
        }
        // The process of the previous start may be about to end: the system releases its locks one by one, and this one last.
        let running = wait_for(directory, &running_name(node))?;
        drop(turn);
        Ok(Begun { cluster: this, start, is_late, lock: Box::new((lock, running)) })
    }

    fn first(directory: &dyn Directory, identity: Identity) -> Result<Self, DurableError> {
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        let is_left = |name: &&String| [".journal-", ".checkpoint-", ".files"].iter().any(|part| name.contains(part));
        if let Some(other) = names.iter().find(is_left) {
            // A node's files, without the file that says what of them counts.
            return Err(DurableError::damaged(other, 0, "the file \"cluster\" is missing beside it"));
        }
        let (begun, cuts) = ([0; BEGUN_WORDS], Vec::new());
        let this = Self { identity, generation: 1, start_last: 1, epoch_first: 1, begun, cuts, standing: None };
        this.write(directory)?;
        Ok(this)
    }

    /// The other nodes whose processes run in this generation.
    fn living(&self, directory: &dyn Directory) -> Result<Vec<NodeId>, DurableError> {
        let mut living = Vec::new();
        for other in (0..self.identity.nodes).map(NodeId).filter(|other| *other != self.identity.node) {
            let free = directory.lock(&running_name(other)).map_err(|error| DurableError::io("lock", &error))?;
            if free.is_none() {
                living.push(other);
            }
        }
        Ok(living)
    }

    /// Whether a configuration of this generation has been installed. It is in the journal of a node before a commit of the
    /// generation is durable.
    fn is_founded(&self, directory: &dyn Directory, names: &[String]) -> Result<bool, DurableError> {
        for node in (0..self.identity.nodes).map(NodeId) {
            let identity = Identity { node, ..self.identity };
            for segment in journal::segments(names, node).into_iter().filter(|(start, _)| *start >= self.generation) {
                if journal::has_standing(directory, &identity, segment)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
