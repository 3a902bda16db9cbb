//! From the buffers into segments, and the segment that comes next.

use crate::base::error::TxnError;
use crate::durability::journaling::{EVENTS_BYTES, Journaling, held};
use farhold_store::Store;
use farhold_store::durable::DurableError;
use farhold_store::durable::journal::{Closing, Journal, Segment, Shape};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What a step has taken but found no segment for. The next step begins with it.
#[derive(Default)]
pub(super) struct Unwritten {
    items: Vec<u8>,
    /// Bytes of records that are given back to what may be pending when all of it is written.
    records_bytes: u64,
    epoch_max: u32,
}

/// The segment that comes next.
pub(crate) struct Spare {
    segment: Mutex<Option<Segment>>,
    /// Whether there is one.
    is_made: AtomicBool,
    next_number: AtomicU32,
    /// Why there is no room at the moment.
    refused: Mutex<Option<TxnError>>,
}

impl Spare {
    /// None yet; the first will have this number.
    pub fn new(next_number: u32) -> Self {
        Self {
            segment: Mutex::default(),
            is_made: AtomicBool::new(false),
            next_number: AtomicU32::new(next_number),
            refused: Mutex::default(),
        }
    }

    pub fn is_made(&self) -> bool {
        self.is_made.load(SeqCst)
    }

    /// Why none can be made.
    pub fn refused(&self) -> Option<TxnError> {
        held(&self.refused).clone()
    }

    fn take(&self) -> Option<Segment> {
        let spare = held(&self.segment).take()?;
        self.is_made.store(false, SeqCst);
        Some(spare)
    }

    /// Makes one if there is none; true if it has.
    fn make(&self, shape: &Shape) -> Result<bool, DurableError> {
        let mut spare = held(&self.segment);
        if spare.is_some() {
            return Ok(false);
        }
        // The journal may be held by the caller; its next number only changes with the spare.
        let number = self.next_number.load(SeqCst);
        match shape.make_segment(number) {
            Ok(segment) => {
                self.next_number.store(number + 1, SeqCst);
                *spare = Some(segment);
                self.is_made.store(true, SeqCst);
                *held(&self.refused) = None;
                Ok(true)
            }
            Err(error) => {
                let reason = error.to_string().into();
                let is_full = matches!(error, DurableError::Io { is_full: true, .. });
                let refused = if is_full {
                    TxnError::DiskFull { reason }
                } else {
                    TxnError::NotDurable { reason, committed: false }
                };
                *held(&self.refused) = Some(refused);
                Err(error)
            }
        }
    }
}

impl Journaling {
    /// Takes what is in the buffers and writes it. Returns the bytes of records; `None` if there is no segment for it yet, and
    /// then it stays where it is.
    pub(super) fn write(&self, store: &Store, closed: u32) -> Result<Option<u64>, DurableError> {
        let mut journal = held(&self.journal);
        // What is taken now must fit: the spare segment takes all that may be pending.
        if !self.spare.is_made() && !journal.fits(self.shape.pending_bytes_max() + EVENTS_BYTES) {
            drop(journal);
            self.make_spare_or_wait();
            return Ok(None);
        }
        let mut unwritten = held(&self.unwritten);
        let Unwritten { mut items, mut records_bytes, mut epoch_max } = std::mem::take(&mut *unwritten);
        let events_from = items.len();
        store.take_page_events(&mut items);
        if items.len() > events_from {
            // A checkpoint without these events is of an epoch before this one, so their segment stays until a later checkpoint.
            epoch_max = epoch_max.max(closed + 1);
        }
        for mut buffer in self.desks.buffers() {
            items.extend_from_slice(&buffer.bytes);
            // Under the lock of the buffer: a record that is in none of them has been offered.
            self.feed.offer(&buffer.bytes);
            records_bytes += buffer.bytes.len() as u64;
            buffer.bytes.clear();
            epoch_max = epoch_max.max(std::mem::take(&mut buffer.epoch_max));
        }
        let mut rest = &items[..];
        let mut head = Vec::new();
        loop {
            // The standing must fit together with what follows it.
            let standing = self.standing_to_write(&journal, &mut head);
            if !journal.fits((head.len() + rest.len()) as u64) && !journal.is_at_beginning() {
                if self.switch(&mut journal) || (self.make_spare().is_ok() && self.switch(&mut journal)) {
                    continue;
                }
                // The disk is full (`refused` says so), or the journal has been given up.
                *unwritten = Unwritten { items: rest.to_vec(), records_bytes, epoch_max };
                return Ok(None);
            }
            // Page events, and what dead nodes have left, were promised no room: there may be more than a segment of
            // them.
            let now = first_items(rest, head.len(), &journal);
            let (now, later) = rest.split_at(now);
            let closed = if later.is_empty() { closed } else { self.closed() };
            let configuration = standing.unwrap_or(0);
            journal.write(&[&head, now], Closing { closed, epoch_max, configuration })?;
            if let Some(number) = standing {
                held(&self.members).has_written(number);
            }
            rest = later;
            if rest.is_empty() {
                return Ok(Some(records_bytes));
            }
        }
    }

    /// What the next batch must record about the cluster, as an item; the number of that configuration.
    fn standing_to_write(&self, journal: &Journal, item: &mut Vec<u8>) -> Option<u64> {
        item.clear();
        let members = held(&self.members);
        let standing = members.to_write(journal.is_at_beginning())?;
        standing.push(item);
        Some(standing.number)
    }

    pub(super) fn make_spare_or_wait(&self) {
        if self.has_thread.load(SeqCst) {
            self.bell.ring();
        } else {
            // Why it could not be made is in `refused`.
            let _ = self.make_spare();
        }
    }

    fn switch(&self, journal: &mut Journal) -> bool {
        let Some(spare) = self.spare.take() else { return false };
        journal.switch(spare);
        self.bell.ring();
        true
    }

    /// Makes the next segment if there is none.
    pub fn make_spare(&self) -> Result<(), DurableError> {
        if !self.given_up.is_so() && self.spare.make(&self.shape)? {
            self.bell.ring();
        }
        Ok(())
    }
}

/// Bytes of the first items that fit what is left of a segment, behind `before` bytes of others.
fn first_items(items: &[u8], before: usize, journal: &Journal) -> usize {
    if journal.fits((before + items.len()) as u64) {
        return items.len();
    }
    let mut end = 0;
    while end < items.len() {
        let size = u32::from_le_bytes(items[end + 8..end + 12].try_into().expect("4 bytes")) as usize;
        if !journal.fits((before + end + size) as u64) {
            break;
        }
        end += size;
    }
    end
}
