//! Reads the journal of another node while that node writes it.
//!
//! A batch that closes an epoch is synced before its node says that it has closed the epoch. A follower therefore reads batches in order, up to the first one
//! that closes the announced epoch, and none after it: everything that it reads is whole and synced. A file system that several hosts share may show a write
//! late. The expected batch is then missing, and the caller asks again. Each batch names its predecessor. The follower therefore misses none, even if a segment
//! has been removed behind it.

use super::read::{batch, batch_size, check_header};
use super::{BATCH_HEADER, Closing, HEADER_BYTES, Visit, segment_name, segments};
use crate::durable::files::{Directory, DurableFile};
use crate::durable::{DurableError, Identity};
use farhold_fabric::NodeId;
use std::io::ErrorKind::NotFound;
use std::sync::Arc;

/// Bytes that are read at a time. A longer batch is read whole.
const READ_BYTES: u64 = 64 << 10;

/// A place in the journal of a node's start.
#[derive(Debug)]
pub struct Follower {
    directory: Arc<dyn Directory>,
    identity: Identity,
    start: u32,
    /// Of the segment.
    number: u32,
    /// Where the next batch begins in it.
    at: u64,
    /// The lsn of the last batch, 0 before the first.
    last: u64,
    closed: u32,
    /// The latest of the batches.
    configuration: u64,
    bytes: Vec<u8>,
}

/// A segment, if it exists.
enum Found {
    Gone,
    There { file: Arc<dyn DurableFile>, bytes: u64 },
}

impl Follower {
    /// A follower near the end of the journal of a node's start, which has closed `closed`. If `of` names no start, it is the last one. Batches that it skips
    /// were written before this call. `identity` is the followed node's.
    ///
    /// # Errors
    /// As [`Self::read`]; or the node has no journal.
    pub fn at_end(
        directory: Arc<dyn Directory>,
        identity: Identity,
        of: Option<u32>,
        closed: u32,
    ) -> Result<Self, DurableError> {
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        let mut all = segments(&names, identity.node);
        all.retain(|(start, _)| of.is_none_or(|of| *start == of));
        let Some(&(start, number)) = all.last() else {
            return Err(DurableError::Busy { who: format!("{} has no journal", identity.node).into() });
        };
        let (at, bytes) = (HEADER_BYTES, Vec::new());
        let mut this = Self { directory, identity, start, number, at, last: 0, closed: 0, configuration: 0, bytes };
        // The last segments may be empty. The last batch of all closes that epoch or a later one.
        for (_, number) in all.into_iter().rev().filter(|(found, _)| *found == start) {
            this.number = number;
            if this.first_previous(number)?.is_some() {
                break;
            }
        }
        this.read(closed, &mut |_, _| Ok(()))?;
        Ok(this)
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.identity.node
    }

    /// All records of the node up to this epoch have been read, or are before the place where the follower began.
    #[must_use]
    pub fn closed(&self) -> u32 {
        self.closed
    }

    /// The latest configuration that a batch names among those that have been read or passed over: the first batch of each segment names
    /// the one that its node is in, and so does the first batch after each change. 0: none does.
    #[must_use]
    pub fn configuration(&self) -> u64 {
        self.configuration
    }

    /// Visits the items of the batches up to the one that closes an epoch, which the node has said to be closed. False: some of them
    /// cannot be seen yet, and the caller tries again.
    ///
    /// # Errors
    /// [`DurableError`]: a segment was removed before it was read, or the files cannot be read. The follower has then missed the records that it had not read.
    pub fn read(&mut self, closed: u32, visit: &mut Visit<'_>) -> Result<bool, DurableError> {
        while self.closed < closed {
            let is_gone = match self.open(self.number)? {
                Found::There { file, bytes } => {
                    self.read_segment(&*file, bytes, closed, visit)?;
                    false
                }
                Found::Gone => true,
            };
            if self.closed >= closed {
                break;
            }
            match self.first_previous(self.number + 1)? {
                Some(previous) if previous == self.last => {
                    (self.number, self.at) = (self.number + 1, HEADER_BYTES);
                }
                _ if is_gone => {
                    return Err(DurableError::damaged(
                        &self.name(self.number),
                        self.at,
                        "it was removed before it was read",
                    ));
                }
                // The writer may have written to this segment and the next since this one was read.
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads batches of the segment that the follower is in.
    fn read_segment(
        &mut self,
        file: &dyn DurableFile,
        segment_bytes: u64,
        closed: u32,
        visit: &mut Visit<'_>,
    ) -> Result<(), DurableError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut wanted = READ_BYTES;
        while self.closed < closed && self.at < segment_bytes {
            bytes.resize(wanted.min(segment_bytes - self.at) as usize, 0);
            file.read_at(self.at, &mut bytes).map_err(|error| self.unread(self.number, &error))?;
            let mut used = 0;
            while self.closed < closed
                && let lsn = self.lsn(segment_bytes, used)
                && let Some((size, words)) = batch(&bytes, used, lsn, self.start)
            {
                let damaged = |what| DurableError::damaged(&self.name(self.number), lsn % segment_bytes, what);
                if self.last != 0 && words[2] != self.last {
                    return Err(damaged("a batch before it is missing"));
                }
                let closing = Closing::of(&words);
                visit(&bytes[used + BATCH_HEADER..used + size], closing).map_err(damaged)?;
                (self.last, self.closed) = (lsn, self.closed.max(closing.closed));
                self.configuration = self.configuration.max(closing.configuration);
                used += size;
            }
            if used > 0 {
                (self.at, wanted) = (self.at + used as u64, READ_BYTES);
                continue;
            }
            let size = batch_size(&bytes, self.lsn(segment_bytes, 0)).unwrap_or(0);
            if size <= bytes.len() as u64 || size > segment_bytes - self.at {
                break;
            }
            wanted = size;
        }
        // A long batch is rare.
        bytes.truncate(READ_BYTES as usize);
        bytes.shrink_to(READ_BYTES as usize);
        self.bytes = bytes;
        Ok(())
    }

    fn lsn(&self, segment_bytes: u64, behind: usize) -> u64 {
        u64::from(self.number) * segment_bytes + self.at + behind as u64
    }

    /// What the first batch of a segment says about the one before it; `None`: there is no batch, or no such segment.
    fn first_previous(&self, number: u32) -> Result<Option<u64>, DurableError> {
        let Found::There { file, bytes: segment_bytes } = self.open(number)? else { return Ok(None) };
        let lsn = u64::from(number) * segment_bytes + HEADER_BYTES;
        let mut bytes = vec![0; BATCH_HEADER];
        let unread = |error| self.unread(number, &error);
        file.read_at(HEADER_BYTES, &mut bytes).map_err(unread)?;
        let size = batch_size(&bytes, lsn).filter(|size| *size <= segment_bytes - HEADER_BYTES);
        let Some(size) = size.filter(|size| *size >= BATCH_HEADER as u64) else { return Ok(None) };
        bytes.resize(size as usize, 0);
        file.read_at(HEADER_BYTES, &mut bytes).map_err(unread)?;
        Ok(batch(&bytes, 0, lsn, self.start).map(|(_, words)| words[2]))
    }

    /// Opens a segment anew each time: a file system of several hosts shows what others have written when a file is opened.
    fn open(&self, number: u32) -> Result<Found, DurableError> {
        let name = self.name(number);
        let file = match self.directory.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == NotFound => return Ok(Found::Gone),
            Err(error) => return Err(self.unread(number, &error)),
        };
        let bytes = file.len().map_err(|error| self.unread(number, &error))?;
        let mut head = vec![0; bytes.min(HEADER_BYTES) as usize];
        file.read_at(0, &mut head).map_err(|error| self.unread(number, &error))?;
        check_header(&name, &head, &self.identity, (self.start, number), bytes)?;
        Ok(Found::There { file, bytes })
    }

    fn name(&self, number: u32) -> String {
        segment_name(self.identity.node, self.start, number)
    }

    fn unread(&self, number: u32, error: &std::io::Error) -> DurableError {
        DurableError::io(&format!("follow {}", self.name(number)), error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Item, Journal, SEGMENT_BYTES_MIN, Shape, items};
    use super::*;
    use crate::durable::power::Volatile;
    use crate::durable::{Inventory, word};

    const IDENTITY: Identity = Identity { cluster: 9, node: NodeId(1), nodes: 2 };

    /// Writes a journal and follows it.
    struct Pair {
        directory: Volatile,
        shape: Shape,
        journal: Journal,
        written: Vec<u64>,
        follower: Follower,
        read: Vec<u64>,
    }

    impl Pair {
        fn new() -> Self {
            let directory = Volatile::default();
            let inventory = Arc::new(Inventory::open(&directory, &IDENTITY).expect("a list"));
            let shared: Arc<dyn Directory> = Arc::new(directory.clone());
            let segment_bytes = SEGMENT_BYTES_MIN;
            let shape = Shape { directory: shared.clone(), identity: IDENTITY, start: 3, segment_bytes, inventory };
            let journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
            let follower = Follower::at_end(shared, IDENTITY, None, 0).expect("a journal");
            Self { directory, shape, journal, written: Vec::new(), follower, read: Vec::new() }
        }

        /// A batch of items of these lengths, in units of 64 bytes.
        fn write(&mut self, closed: u32, lens: &[usize]) {
            let mut body = Vec::new();
            for &len in lens {
                let number = self.written.len() as u64 + 1;
                let begin = body.len();
                body.resize(begin + 64 * len, number as u8);
                body[begin..begin + 8].copy_from_slice(&number.to_le_bytes());
                body[begin + 8..begin + 16].copy_from_slice(&((64 * len as u64) | (5 << 32)).to_le_bytes());
                self.written.push(number);
            }
            if !self.journal.fits(body.len() as u64) {
                let next = self.shape.make_segment(self.journal.next_number()).expect("a segment");
                self.journal.switch(next);
            }
            self.journal.write(&[&body], Closing { closed, epoch_max: closed, configuration: 0 }).expect("written");
        }

        fn follow(&mut self, closed: u32) -> Result<bool, DurableError> {
            let read = &mut self.read;
            self.follower.read(closed, &mut |body, _| {
                for item in items(body) {
                    if let Item::Record(bytes) = item? {
                        read.push(word(bytes, 0));
                    }
                }
                Ok(())
            })
        }
    }

    #[test]
    fn all_that_is_closed_is_read_and_nothing_behind_it() {
        let mut pair = Pair::new();
        let mut random = fastrand::Rng::with_seed(7);
        let mut below = |end: u64| random.u64(..end);
        let (mut closed, mut ends) = (0, vec![0]);
        for _ in 0..400 {
            // Some batches close nothing, some are longer than what is read at once.
            closed += below(3) as u32;
            let long = if below(20) == 0 { 900 } else { 1 + below(40) as usize };
            let lens: Vec<usize> = (0..below(4)).map(|_| long.min(1000 / 4)).collect();
            pair.write(closed, &lens);
            ends.resize(closed as usize + 1, usize::MAX);
            for end in ends.iter_mut().rev().take_while(|end| **end == usize::MAX) {
                *end = pair.written.len();
            }
            if below(5) == 0 {
                let upto = pair.follower.closed().max(below(u64::from(closed) + 1) as u32);
                assert_eq!(pair.follow(upto), Ok(true));
                assert!(pair.follower.closed() >= upto);
                let end = if upto == 0 { 0 } else { ends[upto as usize] };
                assert!(pair.read == pair.written[..pair.read.len()] && pair.read.len() >= end, "{closed} {upto}");
                assert!(pair.read.len() <= ends[pair.follower.closed() as usize], "{closed} {upto}");
            }
        }
        assert_eq!(pair.follow(closed + 1), Ok(false), "it is not closed");
        assert_eq!(pair.read, pair.written);
        assert!(pair.journal.next_number() > 10);
        // One that begins now reads what comes. Batches that close nothing would be read again, so the last one closes something.
        closed += 1;
        pair.write(closed, &[]);
        pair.follower = Follower::at_end(pair.shape.directory.clone(), IDENTITY, Some(3), closed).expect("a journal");
        assert_eq!(pair.follower.closed(), closed);
        pair.read.clear();
        pair.write(closed + 1, &[1, 2]);
        assert_eq!(pair.follow(closed + 1), Ok(true));
        assert_eq!(pair.read, pair.written[pair.written.len() - 2..]);
    }

    #[test]
    fn what_was_removed_is_missed_unless_it_was_read() {
        let mut pair = Pair::new();
        // One batch a segment.
        let write = |pair: &mut Pair, closed| pair.write(closed, &[200, 200, 200]);
        (1..3).for_each(|closed| write(&mut pair, closed));
        assert_eq!(pair.follow(2), Ok(true));
        (3..7).for_each(|closed| write(&mut pair, closed));
        pair.journal.forget(2).expect("removed");
        assert!(pair.directory.open(&segment_name(NodeId(1), 3, 1)).is_err(), "the follower is at its end");
        assert_eq!(pair.follow(3), Ok(true), "the next one begins where it ended");
        assert_eq!(pair.read, pair.written[..9]);
        pair.journal.forget(5).expect("removed");
        assert!(matches!(pair.follow(6), Err(DurableError::Damaged { .. })));
        assert_eq!(pair.read.len(), 9);
    }

    /// A node has started again, which the reader has not heard of: what it follows is the start that it has asked for.
    #[test]
    fn a_follower_is_of_one_start() {
        let mut pair = Pair::new();
        pair.write(1, &[3]);
        let later = Shape { start: 4, ..pair.shape.clone() };
        let mut other = Journal::new(later.clone(), later.make_segment(0).expect("a segment"));
        let closing = Closing { closed: 9, epoch_max: 9, configuration: 7 };
        other.write(&[], closing).expect("written");
        let at_end = |of, closed| Follower::at_end(pair.shape.directory.clone(), IDENTITY, of, closed);
        let closed = |of, closed| at_end(of, closed).map(|it| (it.closed(), it.configuration()));
        assert_eq!((closed(Some(3), 1), closed(None, 9)), (Ok((1, 0)), Ok((9, 7))));
        assert_eq!(closed(Some(3), 9), Ok((1, 0)), "what the other start has closed is not there");
        assert!(matches!(closed(Some(5), 0), Err(DurableError::Busy { .. })));
    }

    #[test]
    fn a_batch_that_cannot_be_seen_yet_is_waited_for() {
        let mut pair = Pair::new();
        pair.write(1, &[3]);
        pair.write(2, &[4]);
        let name = segment_name(NodeId(1), 3, 0);
        let at = (HEADER_BYTES + 64 * 5) as usize;
        pair.directory.flip(&name, at + 100, 1);
        assert_eq!(pair.follow(2), Ok(false));
        assert_eq!((pair.follower.closed(), pair.read.len()), (1, 1));
        pair.directory.flip(&name, at + 100, 1);
        assert_eq!(pair.follow(2), Ok(true));
        assert_eq!(pair.read, pair.written);
    }
}
