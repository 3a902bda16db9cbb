//! Copies of far bytes to local buffers. A copy is started, then awaited or cancelled.
//!
//! ```text
//!   start(pieces) ──> Running ── progress ── finish ──> Filled ──> recycle
//!                        └─ dropped: given up
//! ```
//! A [`Mover`](farhold_fabric::mover::Mover) copies from mapped memory, and the fabric copies everything else. The component that copies owns the buffer while
//! it is filled. Adjoining pieces are one read.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use farhold_fabric::bytes::Bytes;
use farhold_fabric::mover::{Piece, Transfer};
use farhold_fabric::{Batch, FabricError, Slot, Submit};

use super::{Counters, FarChunk, Reader, ScanError};

/// Bytes that a batch may lose between two reads.
const GAP_BYTES_MAX: usize = 128;

/// How bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// By the mover where memory is mapped, otherwise by the fabric as any bytes.
    Moved,
    /// By the fabric, as bytes that never change.
    Immutable,
}

/// Starts copies, and keeps their buffers for the next ones.
pub(super) struct Copies<'a> {
    reader: &'a Reader<'a>,
    reads: Reads,
    buffers: Vec<Bytes>,
    batches: Vec<Batch>,
}

/// A running copy. It is cancelled when it is dropped.
pub(super) struct Running<'a> {
    what: What<'a>,
    places: Vec<Place>,
}

enum What<'a> {
    Mover(Transfer<'a>),
    Fabric(Pin<Box<Submit<'a>>>, Vec<Slot>),
    Over(Data),
}

/// A piece's place: in which read, from which byte on, and how many.
#[derive(Clone, Copy)]
struct Place {
    read: usize,
    start: usize,
    len: usize,
}

/// The bytes of a copy.
#[derive(Default)]
pub(super) struct Filled {
    data: Data,
    places: Vec<Place>,
}

#[derive(Default)]
enum Data {
    #[default]
    Nothing,
    /// The reads' bytes, and where each begins.
    Bytes(Bytes, Vec<usize>),
    Batch(Batch, Vec<Slot>),
}

impl Filled {
    /// The bytes of the `n`th piece.
    pub(super) fn piece(&self, n: usize) -> &[u8] {
        let Place { read, start, len } = self.places[n];
        match &self.data {
            Data::Nothing => &[],
            Data::Bytes(bytes, starts) => &bytes[starts[read] + start..][..len],
            Data::Batch(batch, slots) => {
                &batch.bytes(slots[read]).expect("every read has been seen to be done")[start..][..len]
            }
        }
    }
}

/// Pieces that adjoin become one read.
fn merge(pieces: &[FarChunk]) -> (Vec<FarChunk>, Vec<Place>) {
    let (mut reads, mut places): (Vec<FarChunk>, Vec<Place>) = (Vec::new(), Vec::with_capacity(pieces.len()));
    for piece in pieces {
        let len = piece.bytes as usize;
        let joins = reads.last_mut().and_then(|last| {
            let end = last.at.offset() + u64::from(last.bytes);
            let joins = last.at.is_with(piece.at) && end == piece.at.offset();
            let bytes = last.bytes.checked_add(piece.bytes).filter(|_| joins)?;
            Some(std::mem::replace(&mut last.bytes, bytes) as usize)
        });
        let start = joins.unwrap_or(0);
        if joins.is_none() {
            reads.push(*piece);
        }
        places.push(Place { read: reads.len() - 1, start, len });
    }
    (reads, places)
}

impl<'a> Copies<'a> {
    pub(super) fn new(reader: &'a Reader<'a>, reads: Reads) -> Self {
        Self { reader, reads, buffers: Vec::new(), batches: Vec::new() }
    }

    /// Starts to copy pieces. The copies are in progress when it returns.
    pub(super) async fn start(
        &mut self,
        pieces: &[FarChunk],
        counters: &mut Counters,
    ) -> Result<Running<'a>, ScanError> {
        let (reads, places) = merge(pieces);
        let bytes: usize = reads.iter().map(|read| read.bytes as usize).sum();
        if bytes + reads.len() * GAP_BYTES_MAX > Batch::BYTES_MAX {
            let bytes_max = Batch::BYTES_MAX as u64;
            return Err(FabricError::TooLong { bytes: bytes as u64, bytes_max }.into());
        }
        counters.reads += reads.len() as u64;
        counters.bytes_moved += bytes as u64;
        if bytes == 0 {
            let places = places.into_iter().map(|place| Place { start: 0, ..place }).collect();
            return Ok(Running { what: What::Over(Data::Nothing), places });
        }
        let what = match self.mapped(&reads) {
            Some(pieces) => self.move_bytes(pieces, bytes).await,
            None => self.submit(&reads),
        };
        let mut running = Running { what, places };
        // A provider may hold posted reads until its second poll, so that reads posted meanwhile travel with them.
        for _ in 0..2 {
            running.progress().await?;
        }
        Ok(running)
    }

    /// The reads' memory, if it is mapped and a mover copies.
    fn mapped(&self, reads: &[FarChunk]) -> Option<Vec<Piece>> {
        let endpoint = self.reader.endpoint;
        if self.reads != Reads::Moved || self.reader.mover.is_none() || endpoint.handle().is_virtual() {
            return None;
        }
        let piece = |read: &FarChunk| {
            let memory = endpoint.mapped(read.at.node(), read.at.region())?;
            Some(Piece { memory, offset: read.at.offset(), bytes: read.bytes as usize })
        };
        reads.iter().map(piece).collect()
    }

    async fn move_bytes(&mut self, pieces: Vec<Piece>, bytes: usize) -> What<'a> {
        let mover = self.reader.mover.expect("memory is taken as mapped only with a mover");
        let fits = self.buffers.iter().position(|buffer| buffer.len() >= bytes);
        let mut buffer = if let Some(at) = fits {
            self.buffers.swap_remove(at)
        } else {
            // One that is too short is replaced.
            self.buffers.pop();
            Bytes::zeroed(bytes)
        };
        loop {
            match mover.copy(pieces.clone(), buffer) {
                Ok(transfer) => return What::Mover(transfer),
                Err(back) => buffer = back,
            }
            self.reader.endpoint.handle().yield_now().await;
        }
    }

    fn submit(&mut self, reads: &[FarChunk]) -> What<'a> {
        let mut batch = self.batches.pop().unwrap_or_default();
        batch.clear();
        let read = |read: &FarChunk| match self.reads {
            Reads::Moved => batch.read(read.at, read.bytes as usize),
            Reads::Immutable => batch.read_immutable(read.at, read.bytes as usize),
        };
        let slots = reads.iter().map(read).collect();
        What::Fabric(Box::pin(self.reader.endpoint.submit(batch)), slots)
    }

    /// Waits for a copy.
    pub(super) async fn finish(&self, mut running: Running<'a>, counters: &mut Counters) -> Result<Filled, ScanError> {
        let handle = self.reader.endpoint.handle();
        let since_ns = handle.now_ns();
        poll_fn(|cx| running.poll(cx)).await?;
        counters.waited_ns += handle.now_ns().saturating_sub(since_ns);
        let What::Over(data) = running.what else { unreachable!("a copy that was waited for is over") };
        Ok(Filled { data, places: running.places })
    }

    /// Copies pieces, and waits for them.
    pub(super) async fn read(&mut self, pieces: &[FarChunk], counters: &mut Counters) -> Result<Filled, ScanError> {
        let running = self.start(pieces, counters).await?;
        self.finish(running, counters).await
    }

    /// Keeps the buffer for later.
    pub(super) fn recycle(&mut self, filled: Filled) {
        match filled.data {
            Data::Nothing => {}
            Data::Bytes(bytes, _) => self.buffers.push(bytes),
            Data::Batch(batch, _) => self.batches.push(batch),
        }
    }
}

impl Running<'_> {
    /// Lets the copy make progress, for a fabric that works only while it is polled.
    pub(super) async fn progress(&mut self) -> Result<(), ScanError> {
        poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Whether the copy had ended at the last poll.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.what, What::Over(_))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ScanError>> {
        let data = match &mut self.what {
            What::Over(_) => return Poll::Ready(Ok(())),
            What::Mover(transfer) => match Pin::new(transfer).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(buffer) => buffer.map(|buffer| Data::Bytes(buffer, starts(&self.places))),
            },
            What::Fabric(submit, slots) => match submit.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(batch) => batch.all_done().map(|()| Data::Batch(batch, std::mem::take(slots))),
            },
        };
        match data {
            Ok(data) => {
                self.what = What::Over(data);
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.what = What::Over(Data::Nothing);
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

/// Where the reads of a mover's buffer begin.
fn starts(places: &[Place]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut end = 0;
    for place in places {
        if place.read == starts.len() {
            starts.push(end);
        }
        end = starts[place.read] + place.start + place.len;
    }
    starts
}

#[cfg(test)]
mod tests {
    use farhold_fabric::{FarPtr, NodeId, RegionId};

    use super::*;

    /// Pieces that adjoin in one region are one read, and no others.
    #[test]
    fn neighbours_are_one_read() {
        let piece = |region: u8, offset: u64, bytes: u32| FarChunk {
            at: FarPtr::new(NodeId(1), RegionId(region), offset),
            bytes,
        };
        let pieces = [
            piece(1, 0, 10),
            piece(1, 10, 5),
            piece(1, 16, 4),
            piece(2, 20, 1),
            piece(2, 21, 2),
            piece(2, 21, 2),
            piece(2, 23, 0),
        ];
        let (reads, places) = merge(&pieces);
        assert_eq!(reads, [piece(1, 0, 15), piece(1, 16, 4), piece(2, 20, 3), piece(2, 21, 2)]);
        let places: Vec<_> = places.iter().map(|place| (place.read, place.start, place.len)).collect();
        assert_eq!(places, [(0, 0, 10), (0, 10, 5), (1, 0, 4), (2, 0, 1), (2, 1, 2), (3, 0, 2), (3, 2, 0)]);
    }
}
