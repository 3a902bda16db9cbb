//! The cluster's own file: its generations, the epoch up to which each start of a node counts, and the members of the cluster.
//!
//! ```text
//!  "cluster":  magic │ version │ cluster │ nodes │ generation │ last start │ first epoch │ cuts │ standing words
//!              │ begun nodes: 4 words of a bit a node │ (node, start │ epoch) ... │ standing │ checksum
//! ```
//! The first node of a new generation replaces the file as a whole, under a lock. A node that starts later finds its generation
//! begun, and takes the same cuts. `begin.rs` gives a start its place, `end.rs` makes the cuts, and `lock.rs` has the locks.
//!
//! Each start of a node writes a journal of its own. In a cluster without replicas all nodes start together, once a generation.
//! With replicas a node may end and restart while the others go on; its start number is then above those of all starts before.

mod begin;
mod end;
mod lock;
#[cfg(test)]
mod tests;

use super::files::Directory;
use super::journal::Standing;
use super::{DurableError, Identity, check_words, seal, word};
use crate::log::record::hash;
use farhold_fabric::NodeId;

pub use begin::Begun;

const NAME: &str = "cluster";
const MAGIC: u64 = u64::from_le_bytes(*b"FARHCLU1");
const VERSION: u64 = 3;
const FIXED_WORDS: usize = 9 + BEGUN_WORDS;
const BEGUN_WORDS: usize = 4;
const CUT_WORDS: usize = 2;

/// The epoch up to which the journal of an ended start counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The node.
    pub node: NodeId,
    /// The start.
    pub start: u32,
    /// Its last epoch that counts.
    pub epoch: u32,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster, and the node that reads the file.
    pub identity: Identity,
    /// The present generation: the number of the first starts in it.
    pub generation: u32,
    /// The last number that was given to a start.
    pub start_last: u32,
    /// Its first epoch, above all epochs before.
    pub epoch_first: u32,
    /// The nodes that have files, a bit each.
    pub begun: [u64; BEGUN_WORDS],
    /// Starts before it.
    pub cuts: Vec<Cut>,
    /// The members of the cluster when its last generation ended; `None`: all nodes, with one copy of each row.
    pub standing: Option<Standing>,
}

impl Cluster {
    /// The epoch up to which the journal of this start counts; `None`: it does not count.
    #[must_use]
    pub fn counts_to(&self, node: NodeId, start: u32) -> Option<u32> {
        self.cuts.iter().find(|cut| (cut.node, cut.start) == (node, start)).map(|cut| cut.epoch)
    }

    /// The start in which the node's rows that count began; 0: it has none.
    #[must_use]
    pub fn rows_since(&self, node: NodeId) -> u32 {
        self.standing.as_ref().map_or(1, |standing| standing.rows_since.get(usize::from(node.0)).copied().unwrap_or(0))
    }

    fn has_begun(&self, node: NodeId) -> bool {
        self.begun[usize::from(node.0 / 64)] >> (node.0 % 64) & 1 != 0
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// [`DurableError::Damaged`], [`DurableError::Foreign`], [`DurableError::Io`].
    pub fn read(directory: &dyn Directory) -> Result<Option<Self>, DurableError> {
        let io = |error: std::io::Error| DurableError::io("read the file \"cluster\"", &error);
        // Opened, not looked up in a list: the list of a network's file system may be from before the file was made.
        let file = match directory.open(NAME) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(io)?,
        };
        let mut bytes = vec![0; file.len().map_err(io)? as usize];
        file.read_at(0, &mut bytes).map_err(io)?;
        Self::decode(&bytes).map(Some)
    }

    fn decode(bytes: &[u8]) -> Result<Self, DurableError> {
        let damaged = |what| DurableError::damaged(NAME, 0, what);
        if bytes.len() < 16 {
            return Err(damaged("it is cut off"));
        }
        // Another version's length says nothing.
        check_words(NAME, &[word(bytes, 0), word(bytes, 8)], &[("magic number", MAGIC), ("version", VERSION)])?;
        if bytes.len() < (FIXED_WORDS + 1) * 8 || !bytes.len().is_multiple_of(8) {
            return Err(damaged("it is cut off"));
        }
        let (content, sum) = bytes.split_at(bytes.len() - 8);
        if word(sum, 0) != hash(0, content) {
            return Err(damaged("its checksum is another"));
        }
        let (cuts, standing) = (word(bytes, 56) as usize, word(bytes, 64) as usize);
        if content.len() != (FIXED_WORDS + cuts * CUT_WORDS + standing) * 8 {
            return Err(damaged("its length is another"));
        }
        let identity = Identity { cluster: word(bytes, 16), node: NodeId(0), nodes: word(bytes, 24) as u8 };
        let cut = |at: usize| {
            let (whose, epoch) = (word(bytes, at), word(bytes, at + 8) as u32);
            Cut { node: NodeId((whose >> 32) as u8), start: whose as u32, epoch }
        };
        let at = (FIXED_WORDS + cuts * CUT_WORDS) * 8;
        let cuts = (0..cuts).map(|position| cut((FIXED_WORDS + position * CUT_WORDS) * 8)).collect();
        let standing = match &content[at..] {
            [] => None,
            bytes => Some(Standing::decode(bytes).ok_or_else(|| damaged("its standing makes no sense"))?),
        };
        let [generation, start_last, epoch_first] = [32, 40, 48].map(|at| word(bytes, at) as u32);
        let begun = [72, 80, 88, 96].map(|at| word(bytes, at));
        Ok(Self { identity, generation, start_last, epoch_first, begun, cuts, standing })
    }

    fn encode(&self) -> Vec<u8> {
        let Identity { cluster, nodes, .. } = self.identity;
        let standing = self.standing.as_ref().map(Standing::encode).unwrap_or_default();
        let mut words = vec![MAGIC, VERSION, cluster, u64::from(nodes)];
        words.extend([self.generation, self.start_last, self.epoch_first].map(u64::from));
        words.extend([self.cuts.len() as u64, standing.len() as u64 / 8]);
        words.extend(self.begun);
        for cut in &self.cuts {
            words.extend([u64::from(cut.node.0) << 32 | u64::from(cut.start), u64::from(cut.epoch)]);
        }
        words.extend(standing.chunks_exact(8).map(|bytes| word(bytes, 0)));
        seal(&words)
    }

    fn write(&self, directory: &dyn Directory) -> Result<(), DurableError> {
        let io = |error: std::io::Error| DurableError::io("write the file \"cluster\"", &error);
        // A name of its own: nodes of one generation may write the same file at the same time.
        let fresh = format!("cluster.fresh-{}", self.identity.node.0);
        let file = directory.create(&fresh).map_err(io)?;
        file.write_at(0, &self.encode()).map_err(io)?;
        file.sync().map_err(io)?;
        directory.rename(&fresh, NAME).map_err(io)?;
        directory.sync().map_err(io)
    }
}
