//! How is a journal written? Batch by batch, each durable before the next one, in one segment after the other.

use super::segment::{Segment, Shape, segment_name};
use super::{BATCH, BATCH_HEADER, Closing, GRANULE, HEADER_BYTES, MARK_AT, TAIL};
use crate::durable::{DurableError, seal};
use crate::log::record::hash;

/// Bytes of a batch of such items.
const fn batch_bytes(items_bytes: u64) -> u64 {
    (BATCH_HEADER as u64 + items_bytes + 8).next_multiple_of(GRANULE as u64)
}

/// Writes a journal. One thread does.
#[derive(Debug)]
pub struct Journal {
    shape: Shape,
    /// The tests cut it off, and flip its bits, up to its end.
    pub(super) segment: Segment,
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
