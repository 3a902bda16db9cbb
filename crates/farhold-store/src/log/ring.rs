//! Rings: their place in a region, the state of their writer, the work of their reader.

use super::GRANULE;
#[cfg(test)]
use super::RecordWriter;
use super::record::{self, HEADER_BYTES, LogError, Record, Records};
use farhold_fabric::{FabricError, NodeId, RegionMemory};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"FARHLOG1");
const VERSION: u64 = 1;
const FIRST_RING: u64 = 4096;
const CONTROL_BYTES: u64 = 64;

/// The layout of a log region. It is the same on every node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Nodes that write here.
    pub nodes: u8,
    /// Rings of each of them: one for each worker that writes.
    pub rings: u8,
    /// Bytes of a ring, a multiple of 4096.
    pub ring_bytes: u64,
}

impl RingLayout {
    /// Bytes of the region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        FIRST_RING + u64::from(self.nodes) * u64::from(self.rings) * (CONTROL_BYTES + self.ring_bytes)
    }

    /// Longest record: together with the rest of a lap that it does not fit into, it is at most a ring.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.ring_bytes / 2
    }

    fn ring(&self, writer: NodeId, ring: u8) -> u64 {
        let number = u64::from(writer.0) * u64::from(self.rings) + u64::from(ring);
        FIRST_RING + number * (CONTROL_BYTES + self.ring_bytes)
    }

    /// Offset of the word with the reader's progress in a ring.
    #[must_use]
    pub fn applied(&self, writer: NodeId, ring: u8) -> u64 {
        self.ring(writer, ring)
    }

    /// Offset of the record at `lsn` of a ring.
    #[must_use]
    pub fn record(&self, writer: NodeId, ring: u8, lsn: u64) -> u64 {
        self.ring(writer, ring) + CONTROL_BYTES + lsn % self.ring_bytes
    }
}

/// A node's log region: its rings, for their readers.
#[derive(Clone, Debug)]
pub struct LogRegion {
    memory: Arc<RegionMemory>,
    layout: RingLayout,
}

impl LogRegion {
    /// Makes empty rings in a new region, which is all zero. `cluster` tells this cluster's logs from those of others.
    ///
    /// # Errors
    /// The region is too short, or the system has no memory for it.
    pub fn format(
        memory: Arc<RegionMemory>,
        node: NodeId,
        layout: RingLayout,
        cluster: u64,
    ) -> Result<Self, FabricError> {
        memory.reserve(0, layout.region_bytes())?;
        let this = Self { memory, layout };
        for (at, value) in (8..).step_by(8).zip(this.header(node, cluster)) {
            this.memory.word(at)?.store(value, Relaxed);
        }
        this.memory.word(0)?.store(MAGIC, Release);
        Ok(this)
    }

    /// The rings that an earlier start of this node has left.
    ///
    /// # Errors
    /// [`LogError::Foreign`] for a region that is none, or of another node, shape, cluster or version.
    pub fn attach(memory: Arc<RegionMemory>, node: NodeId, layout: RingLayout, cluster: u64) -> Result<Self, LogError> {
        let this = Self { memory, layout };
        let names = ["magic number", "version", "node", "number of nodes", "number of rings", "ring length", "cluster"];
        let expected = std::iter::once(MAGIC).chain(this.header(node, cluster));
        for ((at, what), expected) in (0..).step_by(8).zip(names).zip(expected) {
            let found = this.memory.word(at).map_or(0, |word| word.load(Acquire));
            if found != expected {
                return Err(LogError::Foreign { what, found, expected });
            }
        }
        if this.memory.len() < layout.region_bytes() {
            let (found, expected) = (this.memory.len(), layout.region_bytes());
            return Err(LogError::Foreign { what: "length", found, expected });
        }
        Ok(this)
    }

    fn header(&self, node: NodeId, cluster: u64) -> [u64; 6] {
        let RingLayout { nodes, rings, ring_bytes } = self.layout;
        [VERSION, u64::from(node.0), u64::from(nodes), u64::from(rings), ring_bytes, cluster]
    }

    /// Empties all rings of a writer that is gone: its next start begins at 0 again.
    pub fn clear(&self, writer: NodeId) {
        for ring in 0..self.layout.rings {
            let start = self.layout.ring(writer, ring);
            for at in (start..start + CONTROL_BYTES + self.layout.ring_bytes).step_by(8) {
                let word = self.memory.word(at).expect("a ring lies inside of its region");
                // Untouched memory stays untouched.
                if word.load(Relaxed) != 0 {
                    word.store(0, Relaxed);
                }
            }
        }
    }

    /// The reader of a ring, at its beginning.
    #[must_use]
    pub fn reader(&self, writer: NodeId, ring: u8) -> RingReader {
        let layout = self.layout;
        RingReader {
            region: self.clone(),
            writer,
            start: layout.record(writer, ring, 0),
            ring,
            applied: 0,
            finished: 0,
        }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> RingLayout {
        self.layout
    }
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    region: LogRegion,
    writer: NodeId,
    ring: u8,
    start: u64,
    applied: u64,
    finished: u64,
}

impl RingReader {
    /// The node that writes it.
    #[must_use]
    pub fn writer(&self) -> NodeId {
        self.writer
    }

    /// How far it has come.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Is there perhaps a record? One load.
    #[must_use]
    #[inline]
    pub fn is_marked(&self) -> bool {
        let at = self.start + self.applied % self.region.layout.ring_bytes;
        self.region.memory.word(at).is_ok_and(|word| word.load(Acquire) != 0)
    }

    /// Adds the next record to `into` and advances behind it; `false`: there is none yet. The end of a lap is passed over, and
    /// adds nothing.
    ///
    /// # Errors
    /// [`LogError::Damaged`]: it is marked, but its bytes are wrong. The reader does not advance.
    pub fn next(&mut self, into: &mut Records) -> Result<bool, LogError> {
        if !self.is_marked() {
            return Ok(false);
        }
        let found = match self.at(self.applied, into) {
            Ok(found) => found,
            Err(LogError::Unmarked) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.applied += found.size;
        self.finished = self.finished.max(found.finished);
        Ok(true)
    }

    /// Reports the reader's progress to the writer. The caller must call it when it has applied what [`next`](Self::next) gave.
    pub fn publish(&self) {
        let at = self.region.layout.applied(self.writer, self.ring);
        if let Ok(word) = self.region.memory.word(at) {
            word.store(self.applied, Release);
        }
    }

    /// Every marked record that may not be finished, read or not, in order: what a dead writer has left. Holes are skipped.
    ///
    /// # Errors
    /// [`LogError::Damaged`].
    pub fn left_behind(&self, visit: &mut dyn FnMut(&Record<'_>)) -> Result<(), LogError> {
        let mut records = Records::default();
        // The writer knew more of what is finished, and less of what is applied. It may have overwritten what lies below its own
        // floor, and is no further than a ring ahead of this reader.
        let (mut at, end) = (self.finished, self.applied.max(self.finished) + self.region.layout.ring_bytes);
        while at < end {
            records.clear();
            match self.at(at, &mut records) {
                Ok(found) => {
                    records.iter().for_each(|record| visit(&record));
                    at += found.size;
                }
                Err(LogError::Unmarked) => at += GRANULE,
                // It was whole when it was read. The writer has finished it since, and overwritten its end, behind a record of
                // which nothing has arrived.
                Err(LogError::Damaged { .. }) if at < self.applied => at += GRANULE,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn at(&self, lsn: u64, into: &mut Records) -> Result<record::Header, LogError> {
        let at = self.start + lsn % self.region.layout.ring_bytes;
        let outside = LogError::Malformed { what: "a position outside of the region" };
        let mut head = [0; HEADER_BYTES];
        self.region.memory.copy_out(at, &mut head).map_err(|_| outside)?;
        let header = record::header(&head, lsn, self.region.layout.ring_bytes)?;
        if header.is_skip() {
            Record::check_skip(&head, lsn)?;
        } else {
            into.add(header.size as usize, lsn, |bytes| self.region.memory.copy_out(at, bytes).map_err(|_| outside))?;
        }
        Ok(header)
    }
}

/// The writer's state of a ring. It writes nothing itself: it says where to write.
///
/// ```text
///   floor = min(applied, finished)            tail
///   ───────┤ still needed ├─ in flight ────────┤  promised  ├──── free ────┤ floor + ring
/// ```
#[derive(Debug)]
pub struct RingWriter {
    ring_bytes: u64,
    tail: u64,
    /// The tail's position in the ring: what a division would give.
    tail_at: u64,
    applied: u64,
    promised: u64,
    /// Ends of records that are not finished, in order, with those that are but have an unfinished one before them.
    in_flight: VecDeque<(u64, bool)>,
    finished: u64,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its position.
    pub lsn: u64,
    /// The end of the lap before it, to be filled by a [`record::skip`]: where, and how many bytes.
    pub skip: Option<(u64, u64)>,
    /// What to say of finished records.
    pub finished: u64,
    /// Bytes from the begin of the ring.
    pub at: u64,
    end: u64,
}

impl RingWriter {
    /// Of an empty ring.
    #[must_use]
    pub fn new(layout: &RingLayout) -> Self {
        let ring_bytes = layout.ring_bytes;
        Self { ring_bytes, tail: 0, tail_at: 0, applied: 0, promised: 0, in_flight: VecDeque::new(), finished: 0 }
    }

    /// A record and the end of the lap that it may not fit into.
    const fn most(size: u64) -> u64 {
        2 * size
    }

    /// Reserves room for a record, if there is some. After that [`take`](Self::take) cannot fail; [`forget`](Self::forget) gives
    /// the room back.
    pub fn promise(&mut self, size: u64) -> bool {
        let fits = self.has_room(size);
        if fits {
            self.promised += Self::most(size);
        }
        fits
    }

    /// Whether there is room for a record, beside what is reserved.
    #[must_use]
    #[inline]
    pub fn has_room(&self, size: u64) -> bool {
        let floor = self.applied.min(self.finished);
        self.tail - floor + self.promised + Self::most(size) <= self.ring_bytes
    }

    /// Whether less than half of it is in use, as far as is known. If not, the writer should ask for the reader's progress.
    #[must_use]
    #[inline]
    pub fn is_half_empty(&self) -> bool {
        self.has_room(self.ring_bytes / 4)
    }

    /// Gives promised room back.
    pub fn forget(&mut self, size: u64) {
        self.promised -= Self::most(size);
    }

    /// Where the next record goes.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The place of a record of `size` bytes; room for it, or for more, was reserved.
    pub fn take(&mut self, promised: u64, size: u64) -> Place {
        self.forget(promised);
        self.take_now(size)
    }

    /// The place of a record for which there [is room](Self::has_room).
    pub fn take_now(&mut self, size: u64) -> Place {
        let place = self.next(size);
        self.in_flight.push_back((place.end, false));
        place
    }

    #[inline]
    fn next(&mut self, size: u64) -> Place {
        let left = self.ring_bytes - self.tail_at;
        let skip = (left < size).then_some((self.tail, left));
        let (lsn, at) = if skip.is_some() { (self.tail + left, 0) } else { (self.tail, self.tail_at) };
        self.tail = lsn + size;
        self.tail_at = if at + size == self.ring_bytes { 0 } else { at + size };
        debug_assert!(self.tail - self.applied.min(self.finished) <= self.ring_bytes, "a ring is never overrun");
        debug_assert_eq!(self.tail_at, self.tail % self.ring_bytes);
        Place { lsn, skip, finished: self.finished, at, end: self.tail }
    }

    /// As [`Self::take_now`], of a record whose transaction has written all its rows before this writer's next one.
    #[inline]
    pub fn take_finished(&mut self, size: u64) -> Place {
        let place = self.next(size);
        if self.in_flight.is_empty() {
            self.finished = place.end;
        } else {
            self.in_flight.push_back((place.end, true));
        }
        place
    }

    /// The transaction of this record has written all its rows.
    pub fn finish(&mut self, place: &Place) {
        if let Ok(found) = self.in_flight.binary_search_by_key(&place.end, |(end, _)| *end) {
            self.in_flight[found].1 = true;
        }
        while let Some((end, _)) = self.in_flight.pop_front_if(|(_, done)| *done) {
            self.finished = end;
        }
    }

    /// The reader has come so far, as it says.
    #[inline]
    pub fn heard(&mut self, applied: u64) {
        // A word of the reader's: used only as far as it makes sense.
        if applied <= self.tail {
            self.applied = self.applied.max(applied);
        }
    }

    /// Whether everything is finished, and read as far as is known.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.promised == 0
    }
}

/// Writes a record into mapped memory, body and mark.
#[cfg(test)]
fn write_record(
    memory: &RegionMemory,
    layout: &RingLayout,
    ring: (NodeId, u8),
    place: &Place,
    record: &mut RecordWriter,
) {
    let put = |lsn: u64, behind: &[u8], mark: u64| {
        let at = layout.record(ring.0, ring.1, lsn);
        memory.copy_in(at + 8, behind).expect("inside");
        memory.word(at).expect("inside").store(mark, Release);
    };
    if let Some((lsn, size)) = place.skip {
        let (behind, mark) = record::skip(lsn, size, place.finished);
        put(lsn, &behind, mark);
    }
    let (behind, mark) = record.place(place.lsn, place.finished);
    put(place.lsn, behind, mark);
}

#[cfg(test)]
mod tests {
    use super::super::{Change, Entry};
    use super::*;
    use crate::error::TableId;
    use crate::object::ObjectRef;
    use farhold_fabric::{FarPtr, RegionId, Version};

    const LAYOUT: RingLayout = RingLayout { nodes: 2, rings: 2, ring_bytes: 4096 };
    const RING: (NodeId, u8) = (NodeId(1), 1);

    fn region() -> LogRegion {
        let origin = FarPtr::new(NodeId(0), RegionId(1), 0);
        let memory = RegionMemory::anonymous(origin, LAYOUT.region_bytes()).expect("memory");
        LogRegion::format(Arc::new(memory), NodeId(0), LAYOUT, 7).expect("rings")
    }

    fn record(number: u64, len: usize) -> RecordWriter {
        let mut writer = RecordWriter::default();
        writer.begin(number, 1, 1);
        let (old, new) = (Version(0), Version(8));
        let (reference, table) = (ObjectRef::new(32, 0), TableId(1));
        let (key, value) = (&[][..], &vec![number as u8; len][..]);
        writer.add(&Entry {
            node: NodeId(0),
            change: Change::Write,
            mirrored: true,
            table,
            reference,
            old,
            new,
            key,
            value,
        });
        writer.end();
        writer
    }

    /// Records of random lengths over many laps: each arrives once, in order, and the writer is held back when the reader
    /// or the transactions do not follow.
    #[test]
    fn a_ring_is_never_overrun() {
        let region = region();
        let (mut writer, mut reader) = (RingWriter::new(&LAYOUT), region.reader(RING.0, RING.1));
        let (mut sent, mut seen, mut held_back) = (0_u64, 0, 0);
        let mut places = VecDeque::new();
        let (mut records, mut random) = (Records::default(), fastrand::Rng::with_seed(1));
        while sent < 5_000 {
            let mut record = record(sent, random.usize(..700));
            match random.u8(..4) {
                0 | 1 => {
                    if writer.promise(record.len()) {
                        let place = writer.take(record.len(), record.len());
                        write_record(&region.memory, &LAYOUT, RING, &place, &mut record);
                        places.push_back(place);
                        sent += 1;
                    } else {
                        held_back += 1;
                    }
                }
                2 => {
                    records.clear();
                    while reader.next(&mut records).expect("whole records") {}
                    for record in records.iter() {
                        assert_eq!(record.owner(), seen);
                        seen += 1;
                    }
                    reader.publish();
                    let applied = region.memory.word(LAYOUT.applied(RING.0, RING.1)).expect("a word");
                    writer.heard(applied.load(Acquire));
                }
                _ => {
                    // Transactions finish in no order.
                    let at = random.usize(..places.len().max(1));
                    if let Some(place) = places.remove(at) {
                        writer.finish(&place);
                    }
                }
            }
        }
        assert!(held_back > 100, "{held_back}");
        // What was not finished is still there, read or not.
        let mut left = Vec::new();
        reader.left_behind(&mut |record| left.push(record.owner())).expect("whole records");
        let unfinished: Vec<u64> = places.iter().map(|place| place.lsn).collect();
        assert!(left.len() >= unfinished.len(), "{left:?}");
        assert_eq!(left.last(), Some(&(sent - 1)));
    }

    #[test]
    fn a_hole_is_skipped_and_a_body_without_mark_is_nothing() {
        let region = region();
        let mut writer = RingWriter::new(&LAYOUT);
        let mut place = |record: &mut RecordWriter| {
            assert!(writer.promise(record.len()));
            writer.take(record.len(), record.len())
        };
        let mut records = [record(1, 100), record(2, 50), record(3, 10), record(4, 0)];
        let places = records.each_mut().map(&mut place);
        // The first never came, the second came without its mark, the fourth is only a mark.
        let (behind, _) = records[1].place(places[1].lsn, 0);
        region.memory.copy_in(LAYOUT.record(RING.0, RING.1, places[1].lsn) + 8, behind).expect("inside");
        write_record(&region.memory, &LAYOUT, RING, &places[2], &mut records[2]);
        let (_, mark) = records[3].place(places[3].lsn, 0);
        region.memory.word(LAYOUT.record(RING.0, RING.1, places[3].lsn)).expect("inside").store(mark, Release);
        let mut reader = region.reader(RING.0, RING.1);
        assert_eq!(reader.next(&mut Records::default()), Ok(false));
        let mut left = Vec::new();
        reader.left_behind(&mut |record| left.push(record.owner())).expect("no damage");
        assert_eq!(left, [3]);
    }

    /// The writer knows of more that is finished than the reader. It takes a place on the next lap of which nothing arrives, and
    /// one behind that is written over the end of a record that was read and finished long ago.
    #[test]
    fn what_was_finished_and_overwritten_in_part_is_no_damage() {
        let region = region();
        let (mut writer, mut reader) = (RingWriter::new(&LAYOUT), region.reader(RING.0, RING.1));
        let put = |writer: &mut RingWriter, number: u64, len: usize, is_written: bool| {
            let mut record = record(number, len);
            let place = writer.take_now(record.len());
            if is_written {
                write_record(&region.memory, &LAYOUT, RING, &place, &mut record);
            }
            (place, record.len())
        };
        // One long record at the beginning; then as many as fill the lap.
        let (long, long_bytes) = put(&mut writer, 1, 700, true);
        let (short_bytes, mut number) = (record(2, 0).len(), 2);
        let mut places = vec![long];
        while writer.tail() + short_bytes <= LAYOUT.ring_bytes {
            places.push(put(&mut writer, number, 0, true).0);
            number += 1;
        }
        let mut records = Records::default();
        while reader.next(&mut records).expect("whole records") {}
        writer.heard(reader.applied());
        for place in &places {
            writer.finish(place);
        }
        let lost = put(&mut writer, number, 0, false).0;
        let there = put(&mut writer, number + 1, 0, true).0;
        assert!(lost.at < there.at && there.at < long_bytes, "over the end of the long one: {there:?}");
        let mut left = Vec::new();
        reader.left_behind(&mut |record| left.push(record.owner())).expect("no damage");
        assert_eq!(left.last(), Some(&(number + 1)));
        assert!(!left.contains(&1), "it cannot be told any more, and is finished");
    }

    #[test]
    fn another_cluster_s_log_is_refused() {
        let region = region();
        let attach = |node, layout, cluster| LogRegion::attach(region.memory.clone(), NodeId(node), layout, cluster);
        attach(0, LAYOUT, 7).expect("its own");
        let foreign =
            |what| move |error: LogError| matches!(error, LogError::Foreign { what: found, .. } if found == what);
        assert!(attach(1, LAYOUT, 7).is_err_and(foreign("node")));
        assert!(attach(0, LAYOUT, 8).is_err_and(foreign("cluster")));
        assert!(attach(0, RingLayout { rings: 3, ..LAYOUT }, 7).is_err_and(foreign("number of rings")));
        region.memory.word(8).expect("inside").store(99, Release);
        assert!(attach(0, LAYOUT, 7).is_err_and(foreign("version")));
    }
}
