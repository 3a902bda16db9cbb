//! The cluster's own file: which generations there were, and up to which epoch each of them counts.
//!
//! ```text
//!  "cluster":  magic │ version │ cluster │ nodes │ generation │ first epoch │ cuts │ (generation, epoch) ... │ checksum
//! ```
//! Replaced as a whole, under a lock, by the first node of a new generation. A node that starts later finds its generation begun
//! and takes the same cut.

use super::files::Directory;
use super::journal::{self, Found};
use super::{DurableError, Identity, check_words, seal, unseal, word};
use crate::log::record::hash;
use farhold_fabric::NodeId;

const NAME: &str = "cluster";
const MAGIC: u64 = u64::from_le_bytes(*b"FARHCLU1");
const VERSION: u64 = 1;
const REGION_MAGIC: u64 = u64::from_le_bytes(*b"FARHRGN1");
const FIXED_WORDS: usize = 7;

/// Up to which epoch a generation that is over counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The generation.
    pub generation: u32,
    /// Its last epoch that counts.
    pub epoch: u32,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Whose it is.
    pub identity: Identity,
    /// The generation now.
    pub generation: u32,
    /// Its first epoch, above all epochs before.
    pub epoch_first: u32,
    /// Generations before it.
    pub cuts: Vec<Cut>,
}

/// A node's place in a generation, held while its process lives.
pub struct Begun {
    /// What the node found or wrote.
    pub cluster: Cluster,
    /// Held as long as the node runs.
    pub lock: Box<dyn Send + Sync>,
}

fn lock_name(node: NodeId) -> String {
    format!("node-{}.lock", node.0)
}

impl Cluster {
    /// Up to which epoch a record of this generation counts; `None`: not at all.
    #[must_use]
    pub fn counts_to(&self, generation: u32) -> Option<u32> {
        self.cuts.iter().find(|cut| cut.generation == generation).map(|cut| cut.epoch)
    }

    /// Begins a generation, or joins the one that another node has begun, and makes the node's first journal segment in it so that
    /// the next start knows. `cluster` names a new cluster if there is none here.
    ///
    /// # Errors
    /// [`DurableError::Busy`] if a living process has this node, or runs in the generation that would have to end;
    /// [`DurableError::Foreign`], [`DurableError::Damaged`], [`DurableError::Io`].
    pub fn begin(
        directory: &dyn Directory,
        cluster: u64,
        node: NodeId,
        nodes: u8,
        mark: &dyn Fn(&Cluster) -> Result<(), DurableError>,
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
        let turn = loop {
            // Held for as long as it takes to look at the ends of the journals.
            if let Some(turn) = directory.lock("cluster.lock").map_err(failed("lock"))? {
                break turn;
            }
            std::thread::yield_now();
        };
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
        let mine = journal::segments(&names, node).last().map(|(generation, _)| *generation);
        if mine.is_some_and(|mine| mine > this.generation) {
            let (found, expected) = (u64::from(mine.unwrap_or(0)), u64::from(this.generation));
            let file = format!("a journal of node {}", node.0).into();
            return Err(DurableError::Foreign { file, what: "generation", found, expected });
        }
        if mine == Some(this.generation) {
            this.next_generation(directory, &names)?;
        }
        mark(&this)?;
        drop(turn);
        Ok(Begun { cluster: this, lock })
    }

    fn first(directory: &dyn Directory, identity: Identity) -> Result<Self, DurableError> {
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        if let Some(other) = names.iter().find(|name| name.contains(".journal-") || name.contains(".checkpoint-")) {
            // Journals without the file that says what of them counts.
            return Err(DurableError::damaged(other, 0, "the file \"cluster\" is missing beside it"));
        }
        let this = Self { identity, generation: 1, epoch_first: 1, cuts: Vec::new() };
        this.write(directory)?;
        Ok(this)
    }

    /// Ends the generation: what every node has closed in it counts.
    fn next_generation(&mut self, directory: &dyn Directory, names: &[String]) -> Result<(), DurableError> {
        let me = self.identity.node;
        let mut living = Vec::new();
        for other in (0..self.identity.nodes).map(NodeId).filter(|other| *other != me) {
            // One that waits for its turn has its lock too, and has not begun: it shows no segment of this generation.
            let begun = journal::segments(names, other).last().is_some_and(|(last, _)| *last == self.generation);
            let held = directory.lock(&lock_name(other)).map_err(|error| DurableError::io("lock", &error))?;
            if begun && held.is_none() {
                living.push(other.0.to_string());
            }
        }
        if !living.is_empty() {
            let who = format!(
                "node {} cannot start from {}: nodes {} still run; what they have in memory and this node has lost \
                 must be forgotten by all, so end them first",
                me.0,
                directory.name(),
                living.join(", ")
            );
            return Err(DurableError::Busy { who: who.into() });
        }
        let (mut epoch, mut epoch_max) = (u32::MAX, self.epoch_first);
        for node in (0..self.identity.nodes).map(NodeId) {
            let identity = Identity { node, ..self.identity };
            let found = journal::last(directory, &identity, self.generation, names)?;
            let Found { closed, epoch_max: seen, .. } = found.unwrap_or_default();
            epoch = epoch.min(closed.max(self.epoch_first - 1));
            epoch_max = epoch_max.max(seen).max(closed);
        }
        self.cuts.push(Cut { generation: self.generation, epoch });
        self.generation += 1;
        self.epoch_first = epoch_max + 1;
        self.write(directory)
    }

    /// Forgets generations that no journal is left of.
    ///
    /// # Errors
    /// [`DurableError::Io`].
    pub fn forget(&mut self, directory: &dyn Directory) -> Result<(), DurableError> {
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        let is_left = |cut: &Cut| {
            let mut nodes = (0..self.identity.nodes).map(NodeId);
            nodes
                .any(|node| journal::segments(&names, node).iter().any(|(generation, _)| *generation == cut.generation))
        };
        let (before, kept): (usize, Vec<Cut>) = (self.cuts.len(), self.cuts.iter().copied().filter(is_left).collect());
        if kept.len() == before {
            return Ok(());
        }
        self.cuts = kept;
        self.write(directory)
    }

    /// What is there.
    ///
    /// # Errors
    /// [`DurableError::Damaged`], [`DurableError::Foreign`], [`DurableError::Io`].
    pub fn read(directory: &dyn Directory) -> Result<Option<Self>, DurableError> {
        let io = |error: std::io::Error| DurableError::io("read the file \"cluster\"", &error);
        if !directory.list().map_err(io)?.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let file = directory.open(NAME).map_err(io)?;
        let mut bytes = vec![0; file.len().map_err(io)? as usize];
        file.read_at(0, &mut bytes).map_err(io)?;
        Self::decode(&bytes).map(Some)
    }

    fn decode(bytes: &[u8]) -> Result<Self, DurableError> {
        let damaged = |what| DurableError::damaged(NAME, 0, what);
        if bytes.len() < (FIXED_WORDS + 1) * 8 || !bytes.len().is_multiple_of(8) {
            return Err(damaged("it is cut off"));
        }
        check_words(NAME, &[word(bytes, 0), word(bytes, 8)], &[("magic number", MAGIC), ("version", VERSION)])?;
        let (content, sum) = bytes.split_at(bytes.len() - 8);
        if word(sum, 0) != hash(0, content) {
            return Err(damaged("its checksum is another"));
        }
        let count = word(bytes, 48) as usize;
        if content.len() != (FIXED_WORDS + count) * 8 {
            return Err(damaged("its length is another"));
        }
        let identity = Identity { cluster: word(bytes, 16), node: NodeId(0), nodes: word(bytes, 24) as u8 };
        let cut = |at: usize| Cut { generation: (word(bytes, at) >> 32) as u32, epoch: word(bytes, at) as u32 };
        let cuts = (0..count).map(|position| cut((FIXED_WORDS + position) * 8)).collect();
        Ok(Self { identity, generation: word(bytes, 32) as u32, epoch_first: word(bytes, 40) as u32, cuts })
    }

    fn encode(&self) -> Vec<u8> {
        let Identity { cluster, nodes, .. } = self.identity;
        let mut words = vec![MAGIC, VERSION, cluster, u64::from(nodes), u64::from(self.generation)];
        words.extend([u64::from(self.epoch_first), self.cuts.len() as u64]);
        words.extend(self.cuts.iter().map(|cut| u64::from(cut.generation) << 32 | u64::from(cut.epoch)));
        seal(&words)
    }

    fn write(&self, directory: &dyn Directory) -> Result<(), DurableError> {
        let io = |error: std::io::Error| DurableError::io("write the file \"cluster\"", &error);
        // A name of its own: nodes of one generation may write the same at the same time.
        let fresh = format!("cluster.fresh-{}", self.identity.node.0);
        let file = directory.create(&fresh).map_err(io)?;
        file.write_at(0, &self.encode()).map_err(io)?;
        file.sync().map_err(io)?;
        directory.rename(&fresh, NAME).map_err(io)?;
        directory.sync().map_err(io)
    }
}

/// Bytes of a node's region: those of its first start, because rows come back to the places that they had. `wanted` counts if there
/// was none.
///
/// ```text
///  "node-N.region":  magic │ cluster │ node │ bytes │ checksum
/// ```
///
/// # Errors
/// [`DurableError`].
pub fn region_bytes(directory: &dyn Directory, identity: &Identity, wanted: u64) -> Result<u64, DurableError> {
    let name = format!("node-{}.region", identity.node.0);
    let io = |error: std::io::Error| DurableError::io(&format!("the file {name}"), &error);
    let (cluster, node) = (identity.cluster, u64::from(identity.node.0));
    if directory.list().map_err(io)?.contains(&name) {
        let mut bytes = [0; 40];
        directory.open(&name).and_then(|file| file.read_at(0, &mut bytes)).map_err(io)?;
        let words = unseal::<4>(&bytes).ok_or_else(|| DurableError::damaged(&name, 0, "its checksum is another"))?;
        check_words(&name, &words, &[("magic number", REGION_MAGIC), ("cluster", cluster), ("node", node)])?;
        return Ok(words[3]);
    }
    let fresh = format!("{name}.fresh");
    let file = directory.create(&fresh).map_err(io)?;
    file.write_at(0, &seal(&[REGION_MAGIC, cluster, node, wanted])).map_err(io)?;
    file.sync().and_then(|()| directory.rename(&fresh, &name)).and_then(|()| directory.sync()).map_err(io)?;
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_refused() {
        let identity = Identity { cluster: 7, node: NodeId(0), nodes: 3 };
        let cuts = vec![Cut { generation: 1, epoch: 8 }, Cut { generation: 2, epoch: 90 }];
        let cluster = Cluster { identity, generation: 3, epoch_first: 93, cuts };
        let bytes = cluster.encode();
        assert_eq!(Cluster::decode(&bytes), Ok(cluster));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            Cluster::decode(&other).expect_err("a flipped bit");
            Cluster::decode(&bytes[..at]).expect_err("cut off");
        }
    }
}
