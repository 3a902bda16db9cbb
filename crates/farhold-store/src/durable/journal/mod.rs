//! A node's journal: batches of records, in segments of one length.
//!
//! ```text
//!  segment   +0    magic │ version │ cluster │ node │ nodes │ start │ number │ segment bytes │ checksum
//!            +512  mark: all before this position was durable │ checksum       written after the batches before it are
//!            +4096 batches
//!  batch     +0    size u32, magic u32 │ lsn │ lsn of the batch before │ closed u32, epoch max u32 │ configuration
//!                  │ start u32, number u32 │ body checksum │ checksum of this header
//!            +64   items: records (`log/record.rs`) and page events, each a multiple of 64 bytes
//!            end   size u32, magic u32
//! ```
//!
//! A batch is written and synced before the next one is written. So there are two kinds of bytes that are no batch. The first
//! kind lies behind the last batch: a power cut may have left it half written, and it was never acknowledged. The second kind is
//! damage: it lies before the mark, or has a whole batch behind it, or a later segment says that it was whole. The first kind is
//! the end of the journal; the second is refused.

mod follow;
mod read;

use super::files::{Directory, DurableFile};
use super::{DurableError, Identity, Inventory, seal, word};
use crate::error::TableId;
use crate::log::record::hash;
use crate::object::size_class::SizeClass;
use crate::slab::{PageEvent, PageKind, Run};
use farhold_fabric::NodeId;
use std::sync::Arc;

pub use follow::Follower;
pub(super) use read::has_standing;
pub use read::{Found, Visit, first_closed, last, read_segment, segment_bytes, settle};

const MAGIC: u64 = u64::from_le_bytes(*b"FARHJRN1");
const VERSION: u64 = 1;
const BATCH: u32 = u32::from_le_bytes(*b"FBAT");
const TAIL: u32 = u32::from_le_bytes(*b"TABF");
const EVENT: u32 = u32::from_le_bytes(*b"FPAG");
const STANDING: u32 = u32::from_le_bytes(*b"FCFG");
const HEADER_BYTES: u64 = 4096;
const MARK_AT: u64 = 512;
const BATCH_HEADER: usize = 64;
const GRANULE: usize = 64;
const EVENT_BYTES: usize = 64;
/// Shortest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// A node's segments: start and number, ascending.
#[must_use]
pub fn segments(names: &[String], node: NodeId) -> Vec<(u32, u32)> {
    let prefix = format!("node-{}.journal-", node.0);
    let parse = |name: &String| {
        let (start, number) = name.strip_prefix(&prefix)?.split_once('-')?;
        Some((start.parse().ok()?, number.parse().ok()?))
    };
    let mut found: Vec<(u32, u32)> = names.iter().filter_map(parse).collect();
    found.sort_unstable();
    found
}

/// Bytes of a batch of such items.
const fn batch_bytes(items_bytes: u64) -> u64 {
    (BATCH_HEADER as u64 + items_bytes + 8).next_multiple_of(GRANULE as u64)
}

pub(super) fn segment_name(node: NodeId, start: u32, number: u32) -> String {
    format!("node-{}.journal-{start:08}-{number:08}", node.0)
}

/// A segment that can be written.
#[derive(Debug)]
pub struct Segment {
    file: Arc<dyn DurableFile>,
    number: u32,
    at: u64,
}

/// How the segments of a journal are made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Where.
    pub directory: Arc<dyn Directory>,
    /// The node and its cluster.
    pub identity: Identity,
    /// Of which start.
    pub start: u32,
    /// Bytes of each.
    pub segment_bytes: u64,
    /// Lists them.
    pub inventory: Arc<Inventory>,
}

impl Shape {
    /// The most bytes that one item may have.
    #[must_use]
    pub fn item_bytes_max(&self) -> u64 {
        self.segment_bytes / 4
    }

    /// The most bytes of items that may wait for [`Journal::write`] and still fit in a spare segment.
    #[must_use]
    pub fn pending_bytes_max(&self) -> u64 {
        self.segment_bytes / 2
    }

    /// Makes a segment with all of its bytes, so that writing it neither runs out of room nor changes the file's length.
    ///
    /// # Errors
    /// [`DurableError::Io`]; the next call then makes the segment again, over what is left of it.
    pub fn make_segment(&self, number: u32) -> Result<Segment, DurableError> {
        let name = segment_name(self.identity.node, self.start, number);
        let fresh = format!("{name}.fresh");
        let made = self.fill(&fresh).and_then(|file| {
            file.write_at(0, &self.header(number))?;
            file.write_at(MARK_AT, &seal(&[HEADER_BYTES]))?;
            file.sync()?;
            self.directory.rename(&fresh, &name)?;
            self.directory.sync()?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                self.inventory.add_segment(self.start, number)?;
                Ok(Segment { file, number, at: HEADER_BYTES })
            }
            Err(error) => {
                let _ = self.directory.remove(&fresh);
                Err(DurableError::io(&format!("make the journal segment {name} of {}", self.directory.name()), &error))
            }
        }
    }

    /// Removes the journals of earlier starts.
    ///
    /// # Errors
    /// [`DurableError::Io`].
    pub fn remove_before(&self) -> Result<(), DurableError> {
        let Self { directory, identity: Identity { node, .. }, start, inventory, .. } = self;
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        inventory.forget_starts(*start)?;
        for (found, number) in segments(&names, *node).into_iter().filter(|(found, _)| found < start) {
            let name = segment_name(*node, found, number);
            directory.remove(&name).map_err(|error| DurableError::io(&format!("remove {name}"), &error))?;
        }
        Ok(())
    }

    fn fill(&self, name: &str) -> std::io::Result<Arc<dyn DurableFile>> {
        let file = self.directory.create(name)?;
        let zeros = vec![0; (1 << 20).min(self.segment_bytes as usize)];
        let mut at = 0;
        while at < self.segment_bytes {
            let len = zeros.len().min((self.segment_bytes - at) as usize);
            file.write_at(at, &zeros[..len])?;
            at += len as u64;
        }
        Ok(file)
    }

    fn header(&self, number: u32) -> Vec<u8> {
        let Identity { cluster, node, nodes } = self.identity;
        let rest = [u64::from(self.start), u64::from(number), self.segment_bytes];
        seal(&[&[MAGIC, VERSION, cluster, u64::from(node.0), u64::from(nodes)][..], &rest].concat())
    }

    fn lsn(&self, number: u32, at: u64) -> u64 {
        u64::from(number) * self.segment_bytes + at
    }
}

/// The journals that count together: a configuration of a cluster with replicas, as far as a restart has to know it.
///
/// ```text
///  item:  0 │ size u32, magic u32 │ words;   words:  number │ nodes u32, bytes u32 │ (start u32, rows since u32) a node │ bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Grows with each configuration.
    pub number: u64,
    /// For each node, the start of it that belongs to the cluster; 0: none does.
    pub starts: Vec<u32>,
    /// For each node, the start in which its rows began, with nothing; 0: it has none that the cluster needs.
    pub rows_since: Vec<u32>,
    /// The configuration as the layer above writes it.
    pub bytes: Box<[u8]>,
}

impl Standing {
    /// As words.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.number.to_le_bytes().to_vec();
        out.extend((self.starts.len() as u64 | (self.bytes.len() as u64) << 32).to_le_bytes());
        for (start, since) in self.starts.iter().zip(&self.rows_since) {
            out.extend((u64::from(*start) | u64::from(*since) << 32).to_le_bytes());
        }
        out.extend_from_slice(&self.bytes);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    /// Back from [`Self::encode`]; bytes behind it are ignored.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(16)?;
        let (nodes, len) = (word(head, 8) as u32 as usize, (word(head, 8) >> 32) as usize);
        let (pairs, rest) = rest.split_at_checked(nodes * 8)?;
        let pairs = pairs.chunks_exact(8).map(|pair| (word(pair, 0) as u32, (word(pair, 0) >> 32) as u32));
        let (starts, rows_since) = pairs.unzip();
        Some(Self { number: word(head, 0), starts, rows_since, bytes: rest.get(..len)?.into() })
    }

    /// As an item of a batch.
    pub fn push(&self, out: &mut Vec<u8>) {
        let words = self.encode();
        let size = (16 + words.len()).next_multiple_of(GRANULE);
        let end = out.len() + size;
        out.extend([0; 8]);
        out.extend((size as u64 | u64::from(STANDING) << 32).to_le_bytes());
        out.extend_from_slice(&words);
        out.resize(end, 0);
    }
}

/// What closes a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// All records of this node up to this epoch are in this batch or before.
    pub closed: u32,
    /// The latest epoch of a record in it.
    pub epoch_max: u32,
    /// The configuration that the node is in.
    pub configuration: u64,
}

impl Closing {
    /// As the words of a batch's header have it.
    const fn of(words: &[u64; 7]) -> Self {
        Self { closed: words[3] as u32, epoch_max: (words[3] >> 32) as u32, configuration: words[4] }
    }
}

/// Writes a journal. One thread does.
#[derive(Debug)]
pub struct Journal {
    shape: Shape,
    segment: Segment,
    previous: u64,
    epoch_max: u32,
    /// Segments that are full: number and latest epoch.
    full: Vec<(u32, u32)>,
    bytes: Vec<u8>,
}

impl Journal {
    /// A new journal, beginning with this segment.
    #[must_use]
    pub fn new(shape: Shape, first: Segment) -> Self {
        Self { shape, segment: first, previous: 0, epoch_max: 0, full: Vec::new(), bytes: Vec::new() }
    }

    /// Bytes that it takes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.full.len() as u64 + 1) * self.shape.segment_bytes
    }

    /// Whether the segment has room for this many bytes of items in one batch. An empty batch takes room as well.
    #[must_use]
    pub fn fits(&self, items_bytes: u64) -> bool {
        self.segment.at + batch_bytes(items_bytes) <= self.shape.segment_bytes
    }

    /// Is nothing in the segment yet?
    #[must_use]
    pub fn is_at_beginning(&self) -> bool {
        self.segment.at == HEADER_BYTES
    }

    /// Number of the segment after this one.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.segment.number + 1
    }

    /// Goes on in the next segment.
    ///
    /// # Panics
    /// If it is another.
    pub fn switch(&mut self, spare: Segment) {
        assert_eq!(spare.number, self.next_number(), "segments follow each other");
        self.full.push((self.segment.number, self.epoch_max));
        self.segment = spare;
    }

    /// Writes items as one batch, and returns when they are durable.
    ///
    /// # Errors
    /// [`DurableError::Io`]: whether the items are durable is unknown, and the caller must give the journal up.
    pub fn write(&mut self, items: &[&[u8]], closing: Closing) -> Result<(), DurableError> {
        let len: usize = items.iter().map(|some| some.len()).sum();
        debug_assert!(len.is_multiple_of(GRANULE) && self.fits(len as u64));
        let size = batch_bytes(len as u64) as usize;
        let (at, number) = (self.segment.at, self.segment.number);
        let lsn = self.shape.lsn(number, at);
        self.bytes.clear();
        self.bytes.resize(BATCH_HEADER, 0);
        for some in items {
            self.bytes.extend_from_slice(some);
        }
        self.bytes.resize(size, 0);
        self.bytes[size - 8..].copy_from_slice(&(size as u64 | u64::from(TAIL) << 32).to_le_bytes());
        let words = [
            size as u64 | u64::from(BATCH) << 32,
            lsn,
            self.previous,
            u64::from(closing.closed) | u64::from(closing.epoch_max) << 32,
            closing.configuration,
            u64::from(self.shape.start) | u64::from(number) << 32,
            hash(lsn, &self.bytes[BATCH_HEADER..]),
        ];
        self.bytes[..BATCH_HEADER].copy_from_slice(&seal(&words));
        let file = &self.segment.file;
        let written = file.write_at(at, &self.bytes).and_then(|()| file.sync());
        // The mark is written by the next sync, or by the page cache if only the process ends.
        let written = written.and_then(|()| file.write_at(MARK_AT, &seal(&[at + size as u64])));
        let name = || segment_name(self.shape.identity.node, self.shape.start, number);
        written.map_err(|error| DurableError::io(&format!("write the journal segment {}", name()), &error))?;
        self.segment.at += size as u64;
        self.previous = lsn;
        self.epoch_max = self.epoch_max.max(closing.epoch_max);
        Ok(())
    }

    /// Makes the mark durable as well: the end of the journal can then always be told from damage.
    ///
    /// # Errors
    /// [`DurableError::Io`].
    pub fn close(&self) -> Result<(), DurableError> {
        self.segment.file.sync().map_err(|error| DurableError::io("sync the journal", &error))
    }

    /// Removes full segments of this start that hold nothing later than `epoch`. The one with the last batch stays: it says
    /// what this node has closed.
    ///
    /// # Errors
    /// [`DurableError::Io`].
    pub fn forget(&mut self, epoch: u32) -> Result<(), DurableError> {
        let shape = &self.shape;
        let with_last = usize::from(self.is_at_beginning());
        let gone_max = self.full.len().saturating_sub(with_last);
        let gone = self.full.iter().take(gone_max).take_while(|(_, epoch_max)| *epoch_max <= epoch).count();
        let stays = self.full.get(gone).map_or(self.segment.number, |(number, _)| *number);
        shape.inventory.forget_segments(shape.start, stays)?;
        for _ in 0..gone {
            let name = segment_name(shape.identity.node, shape.start, self.full[0].0);
            match shape.directory.remove(&name) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    // It is still the first of the existing segments: if one behind it were missing, no start would accept them.
                    return Err(DurableError::io(&format!("remove {name}"), &error));
                }
                _ => drop(self.full.remove(0)),
            }
        }
        Ok(())
    }
}

/// An item: a page of the region has got another use.
pub(crate) fn push_event(event: &PageEvent, out: &mut Vec<u8>) {
    let run = &event.run;
    let words = [
        0,
        EVENT_BYTES as u64 | u64::from(EVENT) << 32,
        event.sequence,
        u64::from(event.epoch) | u64::from(event.taken) << 32,
        u64::from(run.page) | u64::from(run.pages) << 32,
        u64::from(run.table.0) | u64::from(run.class.0) << 32,
        0,
        0,
    ];
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// An item of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record's bytes.
    Record(&'a [u8]),
    /// A change of the page table.
    Page(PageEvent),
    /// A configuration's [`Standing`], encoded.
    Standing(&'a [u8]),
}

/// The items of a batch with a valid checksum.
pub fn items(mut body: &[u8]) -> impl Iterator<Item = Result<Item<'_>, &'static str>> {
    std::iter::from_fn(move || {
        if body.len() < GRANULE {
            return None;
        }
        let size = word(body, 8);
        let (len, magic) = (size as u32 as usize, (size >> 32) as u32);
        if len == 0 {
            // The rest holds the tail alone.
            return None;
        }
        let Some((item, rest)) = body.split_at_checked(len).filter(|_| len >= GRANULE && len.is_multiple_of(8)) else {
            body = &[];
            return Some(Err("an item is cut off"));
        };
        body = rest;
        match magic {
            EVENT => {}
            STANDING => return Some(Ok(Item::Standing(&item[16..]))),
            _ => return Some(Ok(Item::Record(item))),
        }
        let (low, high) = (|at: usize| word(item, at) as u32, |at: usize| (word(item, at) >> 32) as u32);
        let (class, table) = (SizeClass(high(40) as u8), TableId(low(40)));
        let run = Run { page: low(32), pages: high(32), table, class, kind: PageKind::Slots };
        Some(Ok(Item::Page(PageEvent { sequence: word(item, 16), epoch: low(24), taken: high(24) != 0, run })))
    })
}

#[cfg(test)]
mod tests {
    use super::super::power::Volatile;
    use super::read::scan;
    use super::*;

    const IDENTITY: Identity = Identity { cluster: 9, node: NodeId(1), nodes: 2 };

    fn shape(directory: &Volatile) -> Shape {
        let inventory = Arc::new(Inventory::open(directory, &IDENTITY).expect("a list"));
        let directory = Arc::new(directory.clone());
        Shape { directory, identity: IDENTITY, start: 1, segment_bytes: SEGMENT_BYTES_MIN, inventory }
    }

    fn item(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![number as u8; 64 * len];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&((64 * len as u64) | (5 << 32)).to_le_bytes());
        bytes
    }

    /// Numbers of all items, in order.
    fn read(directory: &Volatile) -> Result<Vec<u64>, DurableError> {
        let mut numbers = Vec::new();
        let names = directory.list().expect("names");
        for segment in segments(&names, NodeId(1)) {
            read_segment(directory, &IDENTITY, segment, &mut |body, _| {
                for item in items(body) {
                    if let Item::Record(bytes) = item? {
                        numbers.push(word(bytes, 0));
                    }
                }
                Ok(())
            })?;
        }
        Ok(numbers)
    }

    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        move || random.u64(..)
    }

    fn write_some(directory: &Volatile, seed: u64) -> (Vec<u64>, Journal) {
        let shape = shape(directory);
        let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
        let mut random = random(seed);
        let mut written = Vec::new();
        for batch in 0..40_u64 {
            let mut body = Vec::new();
            for one in 0..random() % 5 {
                body.extend(item(batch * 10 + one, 1 + random() as usize % 40));
                written.push(batch * 10 + one);
            }
            if !journal.fits(body.len() as u64) {
                journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
            }
            journal
                .write(&[&body], Closing { closed: batch as u32, epoch_max: batch as u32, configuration: 0 })
                .expect("written");
        }
        (written, journal)
    }

    #[test]
    fn what_was_synced_survives_every_cut() {
        for seed in 0..200 {
            let directory = Volatile::default();
            let (mut written, mut journal) = write_some(&directory, seed);
            assert_eq!(read(&directory), Ok(written.clone()));
            // A batch that is written and not synced may be there or not; what was acknowledged is.
            let mut random = random(seed + 99);
            let torn = item(777, 1 + random() as usize % 40);
            let before = directory.cut(&mut random);
            if journal.fits(torn.len() as u64) {
                journal.write(&[&torn], Closing::default()).expect("written");
                // The batch, as if its sync had not come.
                let (name, at) = (segment_name(NodeId(1), 1, journal.segment.number), journal.segment.at);
                let bytes = directory.bytes(&name);
                let file = before.open(&name).expect("a file");
                let from = at as usize - torn.len() - 128;
                file.write_at(from as u64, &bytes[from..at as usize]).expect("written");
            }
            let after = read(&before.cut(&mut random)).expect("no damage");
            if after.last() == Some(&777) {
                written.push(777);
            }
            assert_eq!(after, written, "seed {seed}");
        }
    }

    #[test]
    fn every_flipped_bit_of_what_was_durable_is_refused() {
        let directory = Volatile::default();
        let (written, journal) = write_some(&directory, 3);
        journal.close().expect("closed");
        let whole = read(&directory);
        assert_eq!(whole, Ok(written));
        let segments = segments(&directory.list().expect("names"), NodeId(1));
        let names: Vec<String> =
            segments.iter().map(|(start, number)| segment_name(NodeId(1), *start, *number)).collect();
        assert!(names.len() > 1, "more than one segment: {names:?}");
        let mut random = random(1);
        let mut refused = 0;
        for name in &names {
            let end = if *name == names[names.len() - 1] { journal.segment.at as usize } else { 40_000 };
            for _ in 0..400 {
                let (at, bits) = (random() as usize % end, 1 << (random() % 8));
                directory.flip(name, at, bits);
                let found = read(&directory);
                directory.flip(name, at, bits);
                if (72..4096).contains(&at) {
                    // Unused bytes, and the mark; without the mark the batches mean the same.
                    continue;
                }
                assert!(
                    matches!(found, Err(DurableError::Damaged { .. } | DurableError::Foreign { .. })),
                    "{name} {at}"
                );
                refused += 1;
            }
        }
        assert!(refused > 300, "{refused}");
    }

    /// A segment that cannot be removed stays the first of the existing ones: if one behind it were missing, no start would
    /// accept the journal.
    #[test]
    fn what_could_not_be_removed_is_removed_later() {
        let directory = Volatile::default();
        let shape = shape(&directory);
        let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
        for epoch in 1..6 {
            let closing = Closing { closed: epoch - 1, epoch_max: epoch, configuration: 0 };
            journal.write(&[&item(u64::from(epoch), 1)], closing).expect("written");
            journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
        }
        let numbers = || -> Vec<u32> {
            segments(&directory.list().expect("names"), NodeId(1)).into_iter().map(|(_, number)| number).collect()
        };
        directory.keep_files(true);
        journal.forget(2).expect_err("they stay");
        assert_eq!(numbers(), [0, 1, 2, 3, 4, 5]);
        directory.keep_files(false);
        // Another process has removed one.
        directory.remove(&segment_name(NodeId(1), 1, 0)).expect("removed");
        journal.forget(4).expect("removed");
        assert_eq!(numbers(), [4, 5]);
    }

    /// A journal whose segment has no batch yet, because that could not be written, says in the one before what it has closed.
    #[test]
    fn the_segment_of_the_last_batch_stays() {
        let directory = Volatile::default();
        let shape = shape(&directory);
        let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
        let write = |journal: &mut Journal, epoch| {
            journal.write(&[&item(u64::from(epoch), 1)], Closing { closed: epoch, epoch_max: epoch, configuration: 0 })
        };
        for epoch in 1..3 {
            write(&mut journal, epoch).expect("written");
            journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
        }
        let last = || {
            let (found, _) = last(&directory, &IDENTITY, 1, &directory.list().expect("names")).expect("no damage");
            (found.closed, found.segments_gone)
        };
        journal.forget(2).expect("removed");
        assert_eq!(last(), (2, 0));
        write(&mut journal, 3).expect("written");
        journal.forget(2).expect("removed");
        assert_eq!(segments(&directory.list().expect("names"), NodeId(1)), [(1, 2)]);
        assert_eq!(last(), (3, 0));
        // All that have a batch are missing.
        journal.switch(shape.make_segment(3).expect("a segment"));
        directory.remove(&segment_name(NodeId(1), 1, 2)).expect("removed");
        assert_eq!(last(), (0, 3), "a member's start is refused");
    }

    #[test]
    fn garbage_is_no_journal() {
        let mut random = random(5);
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..SEGMENT_BYTES_MIN).map(|_| random() as u8).collect();
            scan("garbage", &bytes, &IDENTITY, (1, 0), &mut |_, _| Ok(())).expect_err("garbage");
            let cut = &bytes[..random() as usize % bytes.len()];
            for _ in items(cut) {}
        }
        // A good header with garbage behind it is an empty journal.
        let directory = Volatile::default();
        shape(&directory).make_segment(0).expect("a segment");
        let mut bytes = directory.bytes(&segment_name(NodeId(1), 1, 0));
        for _ in 0..100 {
            bytes[HEADER_BYTES as usize..].fill_with(|| random() as u8);
            let found = scan("garbage", &bytes, &IDENTITY, (1, 0), &mut |_, _| Ok(()));
            assert_eq!(found.map(|found| (found.last, found.closed)), Ok((0, 0)));
        }
    }

    #[test]
    fn others_journals_are_refused() {
        let directory = Volatile::default();
        let (_, journal) = write_some(&directory, 3);
        drop(journal);
        let open = |identity: Identity| read_segment(&directory, &identity, (1, 0), &mut |_, _| Ok(()));
        open(IDENTITY).expect("its own");
        let foreign = |what| move |error: DurableError| matches!(error, DurableError::Foreign { what: found, .. } if found == what);
        assert!(open(Identity { cluster: 8, ..IDENTITY }).is_err_and(foreign("cluster")));
        assert!(open(Identity { nodes: 3, ..IDENTITY }).is_err_and(foreign("number of nodes")));
        directory.flip(&segment_name(NodeId(1), 1, 0), 8, 2);
        assert!(open(IDENTITY).is_err_and(foreign("version")));
    }

    #[test]
    fn without_room_there_is_no_segment_and_the_others_stay() {
        let directory = Volatile::default();
        let shape = shape(&directory);
        let first = shape.make_segment(0).expect("a segment");
        directory.limit(SEGMENT_BYTES_MIN + 1000);
        let error = shape.make_segment(1).expect_err("no room");
        assert!(matches!(error, DurableError::Io { is_full: true, .. }), "{error}");
        assert_eq!(segments(&directory.list().expect("names"), NodeId(1)), [(1, 0)]);
        Journal::new(shape, first).write(&[&item(1, 10)], Closing::default()).expect("it had its room before");
        assert_eq!(read(&directory), Ok(vec![1]));
    }
}
