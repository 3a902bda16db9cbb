//! What an open channel owns: the objects of libfabric, and the memory of the frames.

use super::shim::farhold_close;
use crate::error::FabricError;
use std::ffi::c_void;
use std::ptr::NonNull;

/// The objects of libfabric, and the frames: closed together.
pub(super) struct Raw {
    pub(super) channel: NonNull<c_void>,
    pub(super) arena: Arena,
}

// SAFETY: the domain is opened FI_THREAD_SAFE, and the only calls made through a shared `Raw` from other threads are
// registering and unregistering memory; the arena is touched by the `Channel`'s thread alone.
unsafe impl Send for Raw {}
// SAFETY: as for `Send`.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: opened by `farhold_open`, closed once; registrations hold this value, so none is left.
        unsafe { farhold_close(self.channel.as_ptr()) }
    }
}

/// Zeroed, page-aligned memory that the provider reads and writes.
pub(super) struct Arena {
    pub(super) base: NonNull<u8>,
    bytes: usize,
}

impl Arena {
    pub(super) fn new(bytes: usize) -> Result<Self, FabricError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(FabricError::io(
                "map memory for",
                "the frames of an endpoint",
                &std::io::Error::last_os_error(),
            ));
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED"), bytes })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by `new`; the endpoint that used it is closed (field order and `Raw::drop`).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
