//! The cluster's own file: its generations, the epoch up to which each start of a node counts, and the members of the cluster.
//!
//! ```text
//!  "cluster":  magic │ version │ cluster │ nodes │ generation │ last start │ first epoch │ cuts │ standing words
//!              │ begun nodes: 4 words of a bit a node │ (node, start │ epoch) ... │ standing │ checksum
//! ```
//! The first node of a new generation replaces the file as a whole, under a lock. A node that starts later finds its generation
//! begun, and takes the same cuts.
//!
//! Each start of a node writes a journal of its own. In a cluster without replicas all nodes start together, once a generation.
//! With replicas a node may end and restart while the others go on; its start number is then above those of all starts before.

use super::files::Directory;
use super::journal::{self, Standing};
use super::{DurableError, Identity, check_words, inventory, seal, unseal, word};
use crate::log::record::hash;
use farhold_fabric::NodeId;
use std::time::Duration;

const NAME: &str = "cluster";
const MAGIC: u64 = u64::from_le_bytes(*b"FARHCLU1");
const VERSION: u64 = 3;
const REGION_MAGIC: u64 = u64::from_le_bytes(*b"FARHRGN1");
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

fn lock_name(node: NodeId) -> String {
    format!("node-{}.lock", node.0)
}

/// The file that a start locks when it has begun. While a start waits for its turn it does not count as running, because all
/// nodes may be started at once.
fn running_name(node: NodeId) -> String {
    format!("node-{}.running", node.0)
}

/// The lock under which the file is changed. It is held as long as it takes to read the ends of the journals.
const TURN: &str = "cluster.lock";

/// How many times a lock is tried, and the time between two tries: a minute. A holder reads the ends of all journals; if it takes
/// longer, its disk does not answer.
const LOCK_LOOKS: u32 = 60_000;
const LOCK_LOOK: Duration = Duration::from_millis(1);

/// Waits for a lock that is never held for long.
fn wait_for(directory: &dyn Directory, name: &str) -> Result<Box<dyn Send + Sync>, DurableError> {
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

    /// Ends the generation. What every member at its end has closed counts. Of a start that had ended before, what it had closed
    /// itself counts: all of that was durable, and the others have the rest of its durable transactions in their journals.
    fn next_generation(&mut self, directory: &dyn Directory, names: &[String]) -> Result<(), DurableError> {
        let (mut ends, mut epoch_max) = (Vec::new(), self.epoch_first);
        let mut without_end = Vec::new();
        for node in (0..self.identity.nodes).map(NodeId) {
            let identity = Identity { node, ..self.identity };
            let mut starts: Vec<u32> = journal::segments(names, node).into_iter().map(|(start, _)| start).collect();
            starts.retain(|start| *start >= self.generation);
            starts.dedup();
            for start in starts {
                let (found, standing) = journal::last(directory, &identity, start, names)?;
                journal::settle(directory, &identity, start, &found)?;
                epoch_max = epoch_max.max(found.epoch_max).max(found.closed);
                let cut = Cut { node, start, epoch: found.closed.max(self.epoch_first - 1) };
                ends.push(cut);
                if found.segments_gone > 0 {
                    without_end.push(cut);
                }
                let number = |standing: &Option<Standing>| standing.as_ref().map_or(0, |standing| standing.number);
                if number(&standing) > number(&self.standing) {
                    self.standing = standing;
                }
            }
        }
        let belongs = |cut: &Cut| match &self.standing {
            Some(standing) => standing.starts.get(usize::from(cut.node.0)) == Some(&cut.start),
            None => cut.start == self.generation,
        };
        // Of a member's journal the segment with the last batch is never removed; of one whose node has come back since, all are.
        if let Some(cut) = without_end.iter().find(|cut| belongs(cut)) {
            let file = format!("the journal of node {}", cut.node.0);
            return Err(DurableError::damaged(&file, 0, "it has no batch, and its first segments are missing"));
        }
        let all = match &self.standing {
            Some(standing) => standing.starts.iter().filter(|start| **start != 0).count(),
            None => usize::from(self.identity.nodes),
        };
        let those: Vec<u32> = ends.iter().filter(|cut| belongs(cut)).map(|cut| cut.epoch).collect();
        // A member without a journal has closed nothing.
        let least = if those.len() < all { None } else { those.into_iter().min() };
        let epoch = least.unwrap_or(self.epoch_first - 1);
        self.cuts.extend(ends.iter().map(|cut| Cut { epoch: cut.epoch.min(epoch), ..*cut }));
        self.generation = self.start_last + 1;
        self.start_last = self.generation;
        self.epoch_first = epoch_max + 1;
        if let Some(standing) = &mut self.standing {
            // They belong to the new generation with their first starts in it.
            standing.starts.iter_mut().filter(|start| **start != 0).for_each(|start| *start = self.generation);
        }
        self.write(directory)
    }

    /// Removes starts that have no journal left.
    ///
    /// # Errors
    /// [`DurableError::Io`], [`DurableError::Damaged`].
    pub fn forget(directory: &dyn Directory) -> Result<(), DurableError> {
        let _turn = wait_for(directory, TURN)?;
        let Some(mut this) = Self::read(directory)? else { return Ok(()) };
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        let before = this.cuts.len();
        this.cuts.retain(|cut| journal::segments(&names, cut.node).iter().any(|(start, _)| *start == cut.start));
        if this.cuts.len() == before { Ok(()) } else { this.write(directory) }
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

/// Bytes of a node's region: those of its first start, because rows are restored to their former places. `wanted` counts if there
/// was no start.
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
    match directory.open(&name) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        found => {
            let file = found.map_err(io)?;
            let mut bytes = [0; 40];
            let len = file.len().map_err(io)?;
            if len != bytes.len() as u64 {
                let what = "it ends there and not at byte 40; put it back from a copy";
                return Err(DurableError::damaged(&name, len, what));
            }
            file.read_at(0, &mut bytes).map_err(io)?;
            let words =
                unseal::<4>(&bytes).ok_or_else(|| DurableError::damaged(&name, 0, "its checksum is another"))?;
            check_words(&name, &words, &[("magic number", REGION_MAGIC), ("cluster", cluster), ("node", node)])?;
            return Ok(words[3]);
        }
    }
    let fresh = format!("{name}.fresh");
    let file = directory.create(&fresh).map_err(io)?;
    file.write_at(0, &seal(&[REGION_MAGIC, cluster, node, wanted])).map_err(io)?;
    file.sync().and_then(|()| directory.rename(&fresh, &name)).and_then(|()| directory.sync()).map_err(io)?;
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::super::power::Volatile;
    use super::*;
    use crate::durable::files::DurableFile;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::{Arc, Mutex};
    use std::{fmt, io};

    fn shape(directory: &Volatile, cluster: &Cluster, node: NodeId, start: u32) -> journal::Shape {
        let identity = Identity { node, ..cluster.identity };
        let segment_bytes = journal::SEGMENT_BYTES_MIN;
        let inventory = Arc::new(inventory::Inventory::open(directory, &identity).expect("a list"));
        journal::Shape { directory: Arc::new(directory.clone()), identity, start, segment_bytes, inventory }
    }

    /// A start of one of two nodes with copies.
    fn begin(directory: &Volatile, node: u8) -> Begun {
        begin_of(directory, (NodeId(node), 2), true).expect("a start")
    }

    fn begin_of_three(directory: &Volatile, node: u8, comes_back: bool) -> Result<Begun, DurableError> {
        begin_of(directory, (NodeId(node), 3), comes_back)
    }

    fn begin_of(directory: &Volatile, (node, nodes): (NodeId, u8), comes_back: bool) -> Result<Begun, DurableError> {
        let mark = |cluster: &Cluster, start| shape(directory, cluster, node, start).make_segment(0).map(drop);
        Cluster::begin(directory, 7, (node, nodes), comes_back, &mark)
    }

    /// A start writes the first configuration of its generation.
    fn found(directory: &Volatile, begun: &Begun, number: u64) {
        let cluster = &begun.cluster;
        let shape = shape(directory, cluster, cluster.identity.node, begun.start);
        let standing = Standing { number, starts: vec![begun.start; 2], rows_since: vec![1; 2], bytes: [0; 8].into() };
        let mut item = Vec::new();
        standing.push(&mut item);
        let mut journal = journal::Journal::new(shape.clone(), shape.make_segment(1).expect("a segment"));
        let closing = journal::Closing { closed: cluster.epoch_first, epoch_max: 0, configuration: number };
        journal.write(&[&item], closing).expect("written");
    }

    /// With replicas a node that starts while others run comes back to them. But all nodes may be started at once after a power
    /// cut, and a node that waits for its turn does not run.
    #[test]
    fn those_who_start_at_once_begin_a_generation_together() {
        let directory = Volatile::default();
        let begin = |node| {
            let begun = begin(&directory, node);
            (begun.cluster.generation, begun.start, begun.lock)
        };
        let first = [begin(0), begin(1)];
        assert!(first.iter().all(|(generation, start, _)| (*generation, *start) == (1, 1)));
        let [ended, other] = first;
        drop(ended);
        let back = begin(0);
        assert_eq!((back.0, back.1), (1, 2), "the other runs");
        drop((other, back));
        let waits = directory.lock("node-0.lock").expect("a lock");
        let begun = begin(1);
        assert_eq!((begun.0, begun.1), (3, 3), "nobody runs");
        drop(waits);
        let last = begin(0);
        assert_eq!((last.0, last.1), (3, 3));
    }

    /// Of a member's journal some segment has a batch. Were there none, it would look as if the node had closed nothing.
    #[test]
    fn a_member_whose_journal_has_lost_all_batches_is_refused() {
        let directory = Volatile::default();
        let begun = [begin(&directory, 0), begin(&directory, 1)];
        found(&directory, &begun[0], 1);
        let shape = shape(&directory, &begun[1].cluster, NodeId(1), begun[1].start);
        shape.make_segment(1).expect("a segment");
        shape.inventory.forget_segments(begun[1].start, 1).expect("forgotten");
        directory.remove("node-1.journal-00000001-00000000").expect("removed");
        drop(begun);
        let refused = begin_of(&directory, (NodeId(0), 2), true).map(drop);
        assert!(matches!(refused, Err(DurableError::Damaged { .. })), "{refused:?}");
    }

    /// Node 0 begins a generation and node 1 enters it; both end. Then one of them begins the next generation and ends, and the
    /// other takes its turn: the generation that it finds has ended, although it was not in it.
    #[test]
    fn a_generation_in_which_nobody_runs_is_entered_by_nobody() {
        let directory = Volatile::default();
        let begin = |node| begin(&directory, node);
        drop([begin(0), begin(1)]);
        drop(begin(0));
        let other = begin(1);
        assert_eq!((other.cluster.generation, other.start), (3, 3), "the second is over");
        let first = begin(0);
        assert_eq!((first.cluster.generation, first.start, first.is_late), (3, 3, false));
    }

    /// The process of a start ends, and still has one of its two locks. The next start does not go on without that lock, because
    /// others would take it for a node that does not run.
    #[test]
    fn a_start_waits_until_the_one_before_has_ended() {
        let directory = Volatile::default();
        drop([begin(&directory, 0), begin(&directory, 1)]);
        let left = directory.lock(&running_name(NodeId(0))).expect("a lock").expect("free");
        let has_ended = AtomicBool::new(false);
        let (has_waited, begun) = std::thread::scope(|scope| {
            let start = scope.spawn(|| {
                let begun = begin(&directory, 0);
                (has_ended.load(SeqCst), begun)
            });
            for _ in 0..10_000 {
                if start.is_finished() {
                    break;
                }
                std::thread::yield_now();
            }
            has_ended.store(true, SeqCst);
            drop(left);
            start.join().expect("a start")
        });
        assert!(has_waited && directory.lock(&running_name(NodeId(0))).is_ok_and(|lock| lock.is_none()));
        drop(begun);
    }

    /// A crash in the middle of making a segment leaves its bytes under another name; they would take room for ever.
    #[test]
    fn what_an_earlier_start_has_not_finished_goes() {
        let directory = Volatile::default();
        let first = begin(&directory, 0);
        let unfinished = ["node-0.journal-00000001-00000007.fresh", "node-0.checkpoint.part"];
        let others = ["node-1.journal-00000001-00000007.fresh", "node-00.fresh"];
        for name in unfinished.iter().chain(&others) {
            directory.create(name).expect("a file");
        }
        let has = |name: &&str| directory.list().expect("names").iter().any(|found| found == name);
        drop(first);
        drop(begin(&directory, 0));
        assert!(!unfinished.iter().any(has) && others.iter().all(has), "{:?}", directory.list());
    }

    /// A node without any of its files looks like one that has never been there, and nothing of the generation would count.
    #[test]
    fn without_the_files_of_a_node_nobody_starts() {
        let directory = Volatile::default();
        drop([begin(&directory, 0), begin(&directory, 1)]);
        for name in directory.list().expect("names").iter().filter(|name| name.starts_with("node-1.")) {
            directory.remove(name).expect("removed");
        }
        let start = |node, comes_back| {
            Cluster::begin(&directory, 7, (NodeId(node), 2), comes_back, &|_, _| panic!("it begins")).map(drop)
        };
        for (node, comes_back) in [(0, false), (0, true), (1, false), (1, true)] {
            let error = start(node, comes_back).expect_err("a refusal").to_string();
            assert!(error.contains("node-1.files"), "{error}");
        }
    }

    /// A disk on which something happens just before the first look whether node 1 runs, or which is listed as it was some time
    /// ago.
    #[derive(Default)]
    struct Meanwhile {
        disk: Volatile,
        happens: Mutex<Option<Box<dyn FnOnce() + Send>>>,
        names_before: Option<Vec<String>>,
    }

    impl fmt::Debug for Meanwhile {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.disk.fmt(f)
        }
    }

    impl Directory for Meanwhile {
        fn list(&self) -> io::Result<Vec<String>> {
            self.names_before.clone().map_or_else(|| self.disk.list(), Ok)
        }

        fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
            self.disk.create(name)
        }

        fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
            self.disk.open(name)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.disk.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.disk.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.disk.sync()
        }

        fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
            if name == running_name(NodeId(1)) {
                let happens = self.happens.lock().expect("no panic").take();
                if let Some(happens) = happens {
                    happens();
                }
            }
            self.disk.lock(name)
        }

        fn name(&self) -> String {
            self.disk.name()
        }
    }

    /// All nodes are killed and started at once. A node makes its last segment, with the last epoch that it has closed, and ends,
    /// after another starting node has listed the files. A third node has ended as well, or runs.
    #[test]
    fn what_a_node_has_done_to_its_end_counts() {
        for third_runs in [false, true] {
            let disk = Volatile::default();
            let [ended, lives, third] = [0, 1, 2].map(|node| begin_of_three(&disk, node, true).expect("a start"));
            drop(ended);
            let third = third_runs.then_some(third);
            let shape = shape(&disk, &lives.cluster, NodeId(1), lives.start);
            let happens = move || {
                let mut journal = journal::Journal::new(shape.clone(), shape.make_segment(1).expect("a segment"));
                let closing = journal::Closing { closed: 40, ..journal::Closing::default() };
                journal.write(&[], closing).expect("written");
                drop(lives);
            };
            let disk = Meanwhile { disk, happens: Mutex::new(Some(Box::new(happens))), names_before: None };
            let begun = Cluster::begin(&disk, 7, (NodeId(0), 3), true, &|_, _| Ok(())).expect("nothing is missing");
            let expected = if third.is_some() { (1, 1, 2) } else { (2, 41, 2) };
            assert_eq!((begun.cluster.generation, begun.cluster.epoch_first, begun.start), expected);
        }
    }

    /// A node has ended while another one runs, and one of its files is missing: a third node that has rows to restore does not
    /// start without it.
    #[test]
    fn while_others_run_the_files_of_those_who_have_ended_must_be_there() {
        let disk = Volatile::default();
        drop([0, 1, 2].map(|node| begin_of_three(&disk, node, false).expect("a start")));
        let [_lives, ended] = [0, 1].map(|node| begin_of_three(&disk, node, false).expect("a start"));
        drop(ended);
        let missing = journal::segment_name(NodeId(1), 1, 0);
        let bytes = disk.bytes(&missing);
        disk.remove(&missing).expect("removed");
        let error = begin_of_three(&disk, 2, false).map(drop).expect_err("a refusal").to_string();
        assert!(error.contains(&missing), "{error}");
        disk.create(&missing).and_then(|file| file.write_at(0, &bytes)).expect("there again");
        begin_of_three(&disk, 2, false).expect("nothing is missing");
    }

    /// A start that gets its rows from the others reads no journals: a missing file of those does not prevent it.
    #[test]
    fn a_late_start_needs_no_files_of_others() {
        let disk = Volatile::default();
        let [lives, ended, late] = [0, 1, 2].map(|node| begin_of_three(&disk, node, true).expect("a start"));
        found(&disk, &lives, 4);
        drop([ended, late]);
        disk.remove(&journal::segment_name(NodeId(1), 1, 0)).expect("removed");
        assert!(begin_of_three(&disk, 2, true).expect("nothing is missing").is_late);
        begin_of_three(&disk, 1, true).map(drop).expect_err("its own file is missing");
    }

    /// Another host has begun the cluster, or goes on with it, and this host does not see its files yet.
    #[test]
    fn a_directory_that_is_listed_as_it_was_begins_nothing() {
        for generations in [1, 2] {
            let disk = Volatile::default();
            let mut names = Vec::new();
            for _ in 1..generations {
                drop([begin(&disk, 0), begin(&disk, 1)]);
                names = disk.list().expect("names");
            }
            let lives = begin(&disk, 0);
            let disk = Meanwhile { disk, names_before: Some(names), ..Meanwhile::default() };
            let start = || Cluster::begin(&disk, 8, (NodeId(1), 2), true, &|_, _| panic!("it begins")).map(drop);
            assert!(matches!(start(), Err(DurableError::Busy { .. })), "{:?}", start());
            assert_eq!(Cluster::read(&disk).map(|found| found.map(|it| it.generation)), Ok(Some(generations)));
            assert_eq!(lives.cluster.generation, generations);
        }
    }

    /// With a new cluster beside it, a list would be foreign, and the old cluster's files would be foreign as well.
    #[test]
    fn no_cluster_begins_beside_what_is_left_of_another() {
        for left in ["node-1.files", "node-1.journal-00000001-00000000", "node-1.checkpoint-00000001-0000000007"] {
            let directory = Volatile::default();
            directory.create(left).expect("a file");
            let error = Cluster::begin(&directory, 7, (NodeId(0), 2), true, &|_, _| panic!("it begins")).map(drop);
            assert!(error.expect_err("a refusal").to_string().contains(left));
            assert!(!directory.list().expect("names").contains(&NAME.to_owned()));
        }
    }

    #[test]
    fn what_says_how_long_a_region_is_names_itself_when_it_is_cut_off() {
        let directory = Volatile::default();
        let identity = Identity { cluster: 7, node: NodeId(1), nodes: 2 };
        for wanted in [9 << 20, 5 << 20] {
            assert_eq!(region_bytes(&directory, &identity, wanted), Ok(9 << 20));
        }
        let bytes = directory.bytes("node-1.region");
        for len in [0, 39, 41] {
            let other = [&bytes[..], &[0; 8]].concat();
            directory.create("node-1.region").and_then(|file| file.write_at(0, &other[..len])).expect("another length");
            let error = region_bytes(&directory, &identity, 9 << 20).expect_err("a refusal").to_string();
            let says =
                ["node-1.region".to_owned(), format!("at byte {len}:"), "at byte 40".to_owned(), "copy".to_owned()];
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    /// Rows of a generation that was never founded are in no mirror: a start that ends before the founding leaves its place to
    /// the next.
    #[test]
    fn a_start_in_a_generation_that_is_not_founded_restores_its_rows() {
        let directory = Volatile::default();
        let begin = |node| begin(&directory, node);
        drop([begin(0), begin(1)]);
        let (ended, other) = (begin(0), begin(1));
        assert_eq!((ended.start, other.start), (2, 2));
        drop(ended);
        let again = begin(0);
        assert_eq!((again.cluster.generation, again.start, again.is_late), (2, 3, false));
        // After the founding the others have what the node had.
        found(&directory, &other, 4);
        drop(again);
        let back = begin(0);
        assert_eq!((back.cluster.generation, back.start, back.is_late), (2, 4, true));
        drop((back, other));
        let next = begin(0);
        assert_eq!((next.cluster.generation, next.start, next.is_late), (5, 5, false));
    }

    fn standing() -> Standing {
        Standing {
            number: 5,
            starts: vec![1, 0, 4],
            rows_since: vec![1, 2, 4],
            bytes: b"configuration".as_slice().into(),
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let identity = Identity { cluster: 7, node: NodeId(0), nodes: 3 };
        let cuts = vec![Cut { node: NodeId(0), start: 1, epoch: 8 }, Cut { node: NodeId(2), start: 2, epoch: 90 }];
        for standing in [None, Some(standing())] {
            let cuts = cuts.clone();
            let begun = [5, 0, 0, 1];
            let cluster = Cluster { identity, generation: 3, start_last: 4, epoch_first: 93, begun, cuts, standing };
            let bytes = cluster.encode();
            assert_eq!(Cluster::decode(&bytes), Ok(cluster));
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 4;
                Cluster::decode(&other).expect_err("a flipped bit");
                Cluster::decode(&bytes[..at]).expect_err("cut off");
            }
            let mut older = bytes[..16].to_vec();
            older[8] -= 1;
            assert!(matches!(Cluster::decode(&older), Err(DurableError::Foreign { what: "version", .. })));
        }
    }
}
