//! The version is checked where the data lives: `read_object`, the database's own rows.
//!
//! One round: the answer says whether it is one state, and its payload is used in place (it is not copied or cleaned).
//! Daglis et al., section 3.1, "destination-side concurrency control". Layout and protocol: [`crate::object`].

use super::{Busy, FarRead, LINE, Mechanism, Seen, Unread, View, Writing, clean_bytes};
use crate::object::{self, Object, Owner, Words};
use farhold_fabric::object::{HEADER_BYTES, META, VERSION};
use farhold_fabric::{Batch, FabricError, Handle, Meta, RegionMemory, Version};
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// `read_object`: the version is checked where the data lives.
pub struct Destination;

const INCARNATION: u32 = 1;

impl Mechanism for Destination {
    fn name(&self) -> &'static str {
        "destination"
    }

    fn about(&self) -> &'static str {
        "version checked where the data lives; clean layout"
    }

    fn bytes(&self, payload_len: usize) -> usize {
        (HEADER_BYTES + payload_len).next_multiple_of(LINE as usize)
    }

    fn create(&self, memory: &RegionMemory, at: u64, payload: &[u8]) -> Result<(), FabricError> {
        memory.copy_in(at + HEADER_BYTES as u64, payload)?;
        memory.word(at + META)?.store(Meta::new(INCARNATION, Meta::ROW, 0, payload.len()).0, Relaxed);
        memory.word(at + VERSION)?.store(Version::of_epoch(1).0, Release);
        Ok(())
    }

    #[inline]
    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], _: &Handle) -> Result<Seen, Unread> {
        let header = memory.read_object(at, into)?;
        Ok(Seen { version: header.version.0, len: header.meta.payload_len() })
    }

    #[inline]
    fn total(&self, memory: &RegionMemory, at: u64, into: &mut [u8], _: &Handle) -> Result<(Seen, u64), Unread> {
        let (header, sum) = memory.sum_object(at, into.len())?;
        Ok((Seen { version: header.version.0, len: header.meta.payload_len() }, sum))
    }

    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, _: &Handle) {
        read.slot = Some(batch.read_object(read.at, read.payload_len_max));
    }

    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        _: &'b mut [u8],
        _: &Handle,
    ) -> Result<Option<View<'b>>, Unread> {
        let object = batch.object(read.slot.expect("posted"))?;
        Ok(Some(View { version: object.version, payload: object.payload }))
    }

    fn begin_write(&self, memory: &RegionMemory, at: u64, owner: Owner, _: &Handle) -> Result<Writing, Busy> {
        let object = Object::at(memory, at);
        let version = object.lock(INCARNATION, owner).map_err(|_| Busy)?;
        object::begin_write(&object);
        Ok(Writing { version: version.0 })
    }

    fn fill(&self, memory: &RegionMemory, at: u64, _: &Writing, payload: &[u8], pieces: Range<usize>) {
        let bytes = clean_bytes(&pieces, payload.len());
        Object::at(memory, at).copy_in(bytes.start, &payload[bytes]);
    }

    fn end_write(&self, memory: &RegionMemory, at: u64, writing: Writing, payload: &[u8]) -> u64 {
        let object = Object::at(memory, at);
        let version = Version(writing.version).next(1);
        object::end_write(&object, Meta::new(INCARNATION, Meta::ROW, 0, payload.len()), version);
        object.unlock();
        version.0
    }
}
