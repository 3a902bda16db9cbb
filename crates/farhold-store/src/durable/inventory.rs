//! The list of a node's files. A start that does not find one of them is refused. Otherwise the database would look older than it
//! is, and acknowledged commits would be lost without a message.
//!
//! ```text
//!  "node-N.files":  two slots, written in turns, so that one is always whole
//!  slot  magic │ version │ cluster │ node │ sequence │ checkpoint: start, epoch │ starts │ (start │ first, last segment) ... │ checksum
//! ```
//!
//! A file is listed when it is durable, and is taken off the list before it is removed: there may be more files than are listed,
//! never fewer. A later checkpoint stands for the one that is listed. The list takes no more room as it changes, so that a full
//! disk can be emptied.

use super::files::{Directory, DurableFile};
use super::{DurableError, Identity, check_words, checkpoint, journal, seal, unseal_words, word};
use farhold_fabric::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const MAGIC: u64 = u64::from_le_bytes(*b"FARHINV1");
const VERSION: u64 = 1;
const SLOT_BYTES: usize = 4096;
const HEAD_WORDS: usize = 7;
/// The number of starts that a slot has room for. A checkpoint forgets the starts before it, so there are more only after that
/// many starts without a checkpoint.
const STARTS_MAX: usize = (SLOT_BYTES / 8 - HEAD_WORDS - 1) / 2;

fn name(node: NodeId) -> String {
    format!("node-{}.files", node.0)
}

/// The files that must be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    /// A checkpoint of this start and epoch, or a later one; zeros: none.
    checkpoint: (u32, u32),
    /// For each start the first and the last segment of its journal.
    starts: BTreeMap<u32, (u32, u32)>,
}

impl Listed {
    fn add_segment(&mut self, start: u32, number: u32) {
        self.starts.entry(start).or_insert((number, number)).1 = number;
        if self.starts.len() > STARTS_MAX {
            // The oldest has rows that no checkpoint has, and the last one runs. Most others were refused, and have one empty
            // segment.
            let between = self.starts.iter().skip(1).rev().skip(1);
            if let Some((&shortest, _)) = between.min_by_key(|(_, (_, last))| *last) {
                self.starts.remove(&shortest);
            }
        }
    }

    fn encode(&self, identity: &Identity, sequence: u64) -> Vec<u8> {
        let (start, epoch) = self.checkpoint;
        let mut words = vec![MAGIC, VERSION, identity.cluster, u64::from(identity.node.0), sequence];
        words.extend([pair(start, epoch), self.starts.len() as u64]);
        for (start, (first, last)) in &self.starts {
            words.extend([u64::from(*start), pair(*first, *last)]);
        }
        seal(&words)
    }

    /// The sequence number and the list; `None`: the slot is not whole.
    fn decode(slot: &[u8], identity: &Identity) -> Result<Option<(u64, Self)>, DurableError> {
        let count = word(slot, 48) as usize;
        if word(slot, 0) != MAGIC || count > STARTS_MAX {
            return Ok(None);
        }
        let Some(words) = unseal_words(slot, HEAD_WORDS + 2 * count) else { return Ok(None) };
        let node = u64::from(identity.node.0);
        let expected = [("version", VERSION), ("cluster", identity.cluster), ("node", node)];
        check_words(&name(identity.node), &words[1..], &expected)?;
        let starts = words[HEAD_WORDS..].chunks_exact(2).map(|start| (start[0] as u32, halves(start[1]))).collect();
        Ok(Some((words[4], Self { checkpoint: halves(words[5]), starts })))
    }
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// The list of a node that runs.
#[derive(Debug)]
pub struct Inventory {
    identity: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Arc<dyn DurableFile>,
    /// The number of the last durable change; its parity gives the slot.
    sequence: u64,
    listed: Listed,
}

impl State {
    fn write(&self, identity: &Identity, sequence: u64, listed: &Listed) -> io::Result<()> {
        self.file.write_at(sequence % 2 * SLOT_BYTES as u64, &listed.encode(identity, sequence))?;
        self.file.sync()
    }
}

impl Inventory {
    /// A node's list, an empty one if there is none yet. No other process has it: the caller holds the node's lock.
    ///
    /// # Errors
    /// [`DurableError`].
    pub fn open(directory: &dyn Directory, identity: &Identity) -> Result<Self, DurableError> {
        let state = match read(directory, identity)? {
            // The previous process may have ended between a write and its sync.
            Some(found) => found.write(identity, found.sequence, &found.listed).map(|()| found),
            None => create(directory, identity),
        };
        let state = state.map_err(|error| DurableError::io(&format!("write {}", name(identity.node)), &error))?;
        Ok(Self { identity: *identity, state: Mutex::new(state) })
    }

    fn change(&self, change: impl FnOnce(&mut Listed)) -> Result<(), DurableError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = state.listed.clone();
        change(&mut next);
        if next == state.listed {
            return Ok(());
        }
        let sequence = state.sequence + 1;
        let written = state.write(&self.identity, sequence, &next);
        written.map_err(|error| DurableError::io(&format!("write {}", name(self.identity.node)), &error))?;
        // If that fails, the next change is written over it, and the previous slot stays.
        (state.sequence, state.listed) = (sequence, next);
        Ok(())
    }

    /// A segment of this start is there.
    pub(super) fn add_segment(&self, start: u32, number: u32) -> Result<(), DurableError> {
        self.change(|listed| listed.add_segment(start, number))
    }

    /// Segments of this start before `number` are about to be removed.
    pub(super) fn forget_segments(&self, start: u32, number: u32) -> Result<(), DurableError> {
        self.change(|listed| {
            if let Some((first, _)) = listed.starts.get_mut(&start) {
                *first = number.max(*first);
            }
        })
    }

    /// The journals of all starts before this one are about to be removed.
    pub(super) fn forget_starts(&self, start: u32) -> Result<(), DurableError> {
        self.change(|listed| listed.starts.retain(|listed, _| *listed >= start))
    }

    /// A checkpoint exists; those before it are about to be removed, also if this fails.
    pub(super) fn set_checkpoint(&self, start: u32, epoch: u32) -> Result<(), DurableError> {
        self.change(|listed| listed.checkpoint = (start, epoch))
    }
}

fn create(directory: &dyn Directory, identity: &Identity) -> io::Result<State> {
    let name = name(identity.node);
    let fresh = format!("{name}.fresh");
    let file = directory.create(&fresh)?;
    file.write_at(0, &[0; 2 * SLOT_BYTES])?;
    let state = State { file, sequence: 0, listed: Listed::default() };
    state.write(identity, 0, &state.listed)?;
    directory.rename(&fresh, &name)?;
    directory.sync()?;
    Ok(state)
}

fn read(directory: &dyn Directory, identity: &Identity) -> Result<Option<State>, DurableError> {
    let name = name(identity.node);
    let io = |error: io::Error| DurableError::io(&format!("read {name}"), &error);
    let file = match directory.open(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?,
    };
    let mut bytes = vec![0; 2 * SLOT_BYTES];
    if file.len().map_err(io)? != bytes.len() as u64 {
        return Err(DurableError::damaged(&name, 0, "its length is another"));
    }
    file.read_at(0, &mut bytes).map_err(io)?;
    let (one, other) = bytes.split_at(SLOT_BYTES);
    let newest = [Listed::decode(one, identity)?, Listed::decode(other, identity)?].into_iter().flatten();
    let newest = newest.max_by_key(|(sequence, _)| *sequence);
    let (sequence, listed) = newest.ok_or_else(|| DurableError::damaged(&name, 0, "neither of its slots is whole"))?;
    Ok(Some(State { file, sequence, listed }))
}

/// Checks that everything is there that a node has listed. The node does not run. `names` are those of the directory.
///
/// # Errors
/// [`DurableError::Damaged`] with the name of a missing file; [`DurableError::Busy`] if a file is there that `names` lack: a
/// directory on a network may be listed as it was some time ago; [`DurableError::Foreign`], [`DurableError::Io`].
pub(super) fn check(directory: &dyn Directory, identity: &Identity, names: &[String]) -> Result<(), DurableError> {
    let missing = |name: &str| DurableError::damaged(name, 0, "it is missing");
    let not_named = |name: &str| match directory.open(name) {
        Ok(_) => DurableError::Busy {
            who: format!(
                "the file system lists {} as it was before {name} was made, which is there: start again in a minute",
                directory.name()
            )
            .into(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(name),
        Err(error) => DurableError::io(&format!("open {name}"), &error),
    };
    let Some(State { listed, .. }) = read(directory, identity)? else { return Err(missing(&name(identity.node))) };
    let (start, epoch) = listed.checkpoint;
    let last = checkpoint::checkpoints(names, identity.node).pop().unwrap_or_default();
    if last < listed.checkpoint {
        return Err(not_named(&checkpoint::name(identity.node, start, epoch)));
    }
    let there = journal::segments(names, identity.node);
    let mut due =
        listed.starts.iter().flat_map(|(start, (first, last))| (*first..=*last).map(|number| (*start, number)));
    match due.find(|segment| there.binary_search(segment).is_err()) {
        Some((start, number)) => Err(not_named(&journal::segment_name(identity.node, start, number))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::power::Volatile;
    use super::*;

    const IDENTITY: Identity = Identity { cluster: 9, node: NodeId(1), nodes: 2 };

    fn listed(directory: &Volatile) -> Listed {
        read(directory, &IDENTITY).expect("whole").expect("a list").listed
    }

    /// The power fails in the middle of any change: the list is then that from before the change or that from after it.
    #[test]
    fn a_cut_leaves_the_list_of_before_or_after() {
        for seed in 0..300_u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut random = move || random.u64(..);
            let directory = Volatile::default();
            let inventory = Inventory::open(&directory, &IDENTITY).expect("a list");
            let changes = 1 + random() % 9;
            for number in 0..changes as u32 {
                inventory.add_segment(3, number).expect("listed");
            }
            let before = listed(&directory);
            directory.cut_after(random() % 3, random());
            let _ = inventory.set_checkpoint(3, 77);
            let survivor = directory.survivor().unwrap_or(directory);
            let found = listed(&survivor);
            let after = Listed { checkpoint: (3, 77), ..before.clone() };
            assert!([&before, &after].contains(&&found), "seed {seed}: {found:?}");
            // And the next start goes on with it.
            let again = Inventory::open(&survivor, &IDENTITY).expect("a list");
            again.forget_segments(3, changes as u32 - 1).expect("listed");
            let last = changes as u32 - 1;
            assert_eq!(listed(&survivor), Listed { starts: BTreeMap::from([(3, (last, last))]), ..found });
        }
    }

    /// A write that failed may be there or not; the previous slot stays until a write has not failed.
    #[test]
    fn a_full_disk_takes_every_change() {
        let directory = Volatile::default();
        let inventory = Inventory::open(&directory, &IDENTITY).expect("a list");
        directory.limit(1);
        for start in 1..=STARTS_MAX as u32 + 20 {
            inventory.add_segment(start, 0).expect("no more room is taken");
        }
        let found = listed(&directory).starts;
        assert_eq!((found.len(), found.keys().next()), (STARTS_MAX, Some(&1)));
        inventory.forget_starts(200).expect("no more room is taken");
        assert_eq!(listed(&directory).starts.keys().next(), Some(&200));
    }

    /// A start that writes, and many that are refused; one of them, between others, has written as well. What was written stays
    /// listed.
    #[test]
    fn of_too_many_starts_those_that_wrote_and_the_present_one_stay() {
        let directory = Volatile::default();
        let present = 3 * STARTS_MAX as u32;
        for start in 1..=present {
            let inventory = Inventory::open(&directory, &IDENTITY).expect("a list");
            let segments = if start == 200 { 3 } else { 1 };
            (0..segments).for_each(|number| inventory.add_segment(start, number).expect("listed"));
            let found = listed(&directory).starts;
            assert_eq!((found.get(&1), found.get(&start)), (Some(&(0, 0)), Some(&(0, segments - 1))));
        }
        let found = listed(&directory).starts;
        assert_eq!((found.len(), found.get(&200)), (STARTS_MAX, Some(&(0, 2))));
    }

    /// A network's file system may list a directory as it was before a file was made: a file that can be opened is not missing.
    #[test]
    fn a_file_that_is_there_and_not_named_is_not_missing() {
        let directory = Volatile::default();
        let inventory = Inventory::open(&directory, &IDENTITY).expect("a list");
        inventory.add_segment(3, 0).expect("listed");
        inventory.set_checkpoint(3, 77).expect("listed");
        let files = [checkpoint::name(IDENTITY.node, 3, 77), journal::segment_name(IDENTITY.node, 3, 0)];
        for name in &files {
            directory.create(name).expect("a file");
        }
        assert_eq!(check(&directory, &IDENTITY, &files), Ok(()));
        for lacking in &files {
            let names: Vec<String> = files.iter().filter(|name| *name != lacking).cloned().collect();
            let there = check(&directory, &IDENTITY, &names).expect_err("a list of before");
            assert!(matches!(&there, DurableError::Busy { who } if who.contains(lacking)), "{there}");
            directory.remove(lacking).expect("removed");
            let gone = check(&directory, &IDENTITY, &names).expect_err("a missing file");
            assert!(matches!(&gone, DurableError::Damaged { file, .. } if **file == **lacking), "{gone}");
            directory.create(lacking).expect("there again");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let directory = Volatile::default();
        drop(Inventory::open(&directory, &IDENTITY).expect("a list"));
        for at in 0..(HEAD_WORDS + 1) * 8 {
            directory.flip("node-1.files", at, 4);
            read(&directory, &IDENTITY).expect_err("the only slot that is whole");
            directory.flip("node-1.files", at, 4);
        }
        let other = read(&directory, &Identity { cluster: 8, ..IDENTITY }).expect_err("another's");
        assert!(matches!(other, DurableError::Foreign { what: "cluster", .. }), "{other}");
        directory.open("node-1.files").and_then(|file| file.write_at(2 * SLOT_BYTES as u64, &[1])).expect("longer");
        read(&directory, &IDENTITY).expect_err("longer");
    }
}
