//! Objects in a region, read in place: one state, or [`FabricError::Torn`].

use super::RegionMemory;
use crate::copy;
use crate::error::FabricError;
use crate::object::{self, Meta, ObjectHeader, Version};
use std::sync::atomic::{Ordering, fence};

impl RegionMemory {
    /// One state of the object at `offset`: its header, and its payload in `to[..payload_len]`. It ignores the lock.
    ///
    /// # Errors
    /// [`FabricError::Torn`] if a writer is or was at work; [`FabricError::ObjectTooLong`] if `to` is too short;
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn read_object(&self, offset: u64, to: &mut [u8]) -> Result<ObjectHeader, FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        unsafe { self.read_object_unchecked(offset, to) }
    }

    /// As [`Self::read_object`], without the checks of the offset. (The payload is still checked against the region.)
    ///
    /// # Errors
    /// As [`Self::read_object`].
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and `offset + 32 <= len`.
    #[inline]
    pub unsafe fn read_object_unchecked(&self, offset: u64, to: &mut [u8]) -> Result<ObjectHeader, FabricError> {
        // SAFETY: the caller promises the same.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() {
            return Err(self.torn(offset));
        }
        let payload_len = header.meta.payload_len();
        let fits = payload_len <= to.len() && payload_len as u64 <= self.len - offset - object::PAYLOAD;
        if fits {
            // SAFETY: `fits` says that the payload ends inside the region and inside `to`.
            unsafe { self.copy_out_unchecked(offset + object::PAYLOAD, to.get_unchecked_mut(..payload_len)) };
        }
        // SAFETY: the caller's promise, again.
        if unsafe { self.version_now_unchecked(offset) } != header.version {
            return Err(self.torn(offset));
        }
        if fits { Ok(header) } else { Err(self.object_too_long(offset, payload_len, to.len())) }
    }

    /// Uses an object's payload in place: its header, and the sum of the payload's words (without an incomplete last one), of one
    /// state. It is the cost of `read_object`'s promise for a reader that needs no copy.
    ///
    /// # Errors
    /// As [`Self::read_object`].
    #[inline]
    pub fn sum_object(&self, offset: u64, payload_len_max: usize) -> Result<(ObjectHeader, u64), FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() {
            return Err(self.torn(offset));
        }
        let payload_len = header.meta.payload_len();
        let fits = payload_len <= payload_len_max && payload_len as u64 <= self.len - offset - object::PAYLOAD;
        let start = self.base.as_ptr().wrapping_add((offset + object::PAYLOAD) as usize);
        // SAFETY: `fits` says that the payload ends inside the region; it starts at a multiple of 8.
        let sum = if fits { unsafe { copy::sum_shared(start, payload_len / 8) } } else { 0 };
        // SAFETY: checked in the first lines.
        if unsafe { self.version_now_unchecked(offset) } != header.version {
            return Err(self.torn(offset));
        }
        if fits { Ok((header, sum)) } else { Err(self.object_too_long(offset, payload_len, payload_len_max)) }
    }

    /// The first step of reading an object: its header, unless a writer is at work.
    pub(crate) fn read_header(&self, offset: u64) -> Result<ObjectHeader, FabricError> {
        self.check(offset, object::PAYLOAD)?;
        if !offset.is_multiple_of(object::ALIGN) {
            return Err(self.misaligned(offset, object::ALIGN));
        }
        // SAFETY: checked in the lines above.
        let header = unsafe { self.header_unchecked(offset) };
        if header.version.is_writing() { Err(self.torn(offset)) } else { Ok(header) }
    }

    /// Whether a payload of that length may be read into that much room.
    pub(crate) fn payload_fits(&self, offset: u64, payload_len: usize, room: usize) -> Result<(), FabricError> {
        let inside = payload_len as u64 <= self.len - offset - object::PAYLOAD;
        if inside && payload_len <= room { Ok(()) } else { Err(self.object_too_long(offset, payload_len, room)) }
    }

    /// The last step of reading an object: whether it still has the version of its header.
    pub(crate) fn recheck_version(&self, offset: u64, version: Version) -> Result<(), FabricError> {
        self.check(offset, object::PAYLOAD)?;
        // SAFETY: checked in the line above; aligned because `read_header` came before with the same offset.
        if unsafe { self.version_now_unchecked(offset) } == version { Ok(()) } else { Err(self.torn(offset)) }
    }

    /// # Safety
    /// As [`Self::read_object_unchecked`].
    #[inline]
    unsafe fn header_unchecked(&self, offset: u64) -> ObjectHeader {
        // SAFETY: all four words are inside and aligned by the caller's promise.
        let [lock, version, meta, prev] = unsafe {
            [object::LOCK, object::VERSION, object::META, object::PREV].map(|at| self.word_unchecked(offset + at))
        };
        // The version first: what is loaded after it is at least as new.
        let version = Version(version.load(Ordering::Acquire));
        ObjectHeader {
            lock: lock.load(Ordering::Relaxed),
            version,
            meta: Meta(meta.load(Ordering::Relaxed)),
            prev: prev.load(Ordering::Relaxed),
        }
    }

    /// The version after everything read so far: if one of the loads met a writer, this load meets the writer's mark.
    ///
    /// # Safety
    /// As [`Self::read_object_unchecked`].
    #[inline]
    unsafe fn version_now_unchecked(&self, offset: u64) -> Version {
        fence(Ordering::Acquire);
        // SAFETY: inside and aligned by the caller's promise.
        Version(unsafe { self.word_unchecked(offset + object::VERSION) }.load(Ordering::Relaxed))
    }

    #[cold]
    fn torn(&self, offset: u64) -> FabricError {
        FabricError::Torn { at: self.name(offset) }
    }

    #[cold]
    fn object_too_long(&self, offset: u64, payload_len: usize, payload_len_max: usize) -> FabricError {
        if payload_len as u64 > self.len - offset - object::PAYLOAD {
            return self.out_of_bounds(offset + object::PAYLOAD, payload_len as u64);
        }
        FabricError::ObjectTooLong { at: self.name(offset), payload_len, payload_len_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::FarPtr;
    use std::sync::atomic::AtomicBool;

    /// Two threads on the memory itself: a reader of an object gets one state of it or `Torn`. Miri runs it with the
    /// portable copies, which shows that they and the fences are enough for Rust's memory model.
    #[test]
    fn a_racing_reader_sees_one_state() {
        let memory = RegionMemory::anonymous(FarPtr::default(), 4096).unwrap();
        let rounds = if cfg!(miri) { 12 } else { 50_000u64 };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let version = memory.word(object::VERSION).unwrap();
                for round in 1..=rounds {
                    let number = round * Version::ONE;
                    version.store((number - Version::ONE) | Version::WRITING, Ordering::Relaxed);
                    fence(Ordering::Release);
                    let len = 8 + (round % 5) as usize * 24;
                    memory.word(object::META).unwrap().store(Meta::new(1, Meta::ROW, 0, len).0, Ordering::Relaxed);
                    memory.copy_in(object::PAYLOAD, &number.to_le_bytes().repeat(len / 8)).unwrap();
                    version.store(number, Ordering::Release);
                }
                done.store(true, Ordering::Release);
            });
            let mut last = 0;
            loop {
                let finished = done.load(Ordering::Acquire);
                let mut payload = [0; 128];
                match memory.read_object(0, &mut payload) {
                    Ok(header) => {
                        assert!(header.version.0 >= last);
                        last = header.version.0;
                        let expected = if last == 0 { 0 } else { 8 + (last / Version::ONE % 5) as usize * 24 };
                        assert_eq!(header.meta.payload_len(), expected);
                        assert!(payload[..expected].chunks(8).all(|word| word == last.to_le_bytes()), "a mix");
                    }
                    Err(error) => assert!(matches!(error, FabricError::Torn { .. }), "{error}"),
                }
                if finished {
                    break;
                }
            }
            assert_eq!(last, rounds * Version::ONE);
        });
    }
}
