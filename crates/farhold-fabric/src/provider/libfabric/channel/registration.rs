//! Registered memory: what peers may read and write, or what this channel's own bulk transfers use.
//!
//! Any thread may make and drop a [`Registration`].

use super::Channel;
use super::raw::Raw;
use super::shim::{RawRegion, failure, farhold_register, farhold_unregister, reason};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that peers may read and write, or that this channel's own bulk transfers use, until dropped.
pub(in crate::provider::libfabric) struct Registration {
    pub(super) mr: NonNull<c_void>,
    /// What a peer must present.
    pub key: u64,
    /// The remote address of its first byte.
    pub base: u64,
    _raw: Arc<Raw>,
    /// Keeps the bytes mapped.
    memory: Option<Arc<RegionMemory>>,
}

// SAFETY: closing a registration is a thread-safe call on a domain opened FI_THREAD_SAFE.
unsafe impl Send for Registration {}
// SAFETY: a shared registration is two numbers.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `farhold_register`, closed once, and its domain lives in `_raw`.
        unsafe { farhold_unregister(self.mr.as_ptr()) };
    }
}

/// Registers memory from any thread.
#[derive(Clone)]
pub(in crate::provider::libfabric) struct Registrar(Arc<Raw>);

impl Registrar {
    /// Opens a region to peers that present a key: `wanted_key` if the provider permits a choice.
    pub fn open_to_peers(
        &self,
        memory: &Arc<RegionMemory>,
        wanted_key: u64,
        can_write: bool,
    ) -> Result<Registration, FabricError> {
        let base = memory.word(0)?.as_ptr().cast();
        // An admitted transfer may be at work after the registration's end.
        memory.keep_addresses();
        let access = if can_write { Access::PeersWrite } else { Access::PeersRead };
        // SAFETY: the registration holds the mapping, which is that long.
        let mut made = unsafe { register(&self.0, base, memory.len(), wanted_key, access)? };
        made.memory = Some(memory.clone());
        Ok(made)
    }
}

impl Channel {
    pub fn registrar(&self) -> Registrar {
        Registrar(self.open.raw.clone())
    }

    /// Registers local memory for bulk transfers, if the provider requires it.
    ///
    /// # Safety
    /// `memory` points to `len` bytes that stay where they are until the registration is dropped.
    pub unsafe fn register_local(&self, memory: *mut u8, len: u64) -> Result<Option<Registration>, FabricError> {
        if !self.open.traits.wants_local_registration {
            return Ok(None);
        }
        // SAFETY: the caller promises the same.
        unsafe { register(&self.open.raw, memory, len, 0, Access::Own).map(Some) }
    }
}

/// The users of registered memory, and their rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Transfers of this channel.
    Own,
    PeersRead,
    /// And read.
    PeersWrite,
}

/// # Safety
/// `memory` points to `len` bytes that stay where they are until the registration is dropped.
unsafe fn register(
    raw: &Arc<Raw>,
    memory: *mut u8,
    len: u64,
    wanted_key: u64,
    access: Access,
) -> Result<Registration, FabricError> {
    let mut region = RawRegion { mr: std::ptr::null_mut(), key: 0, base: 0 };
    let (reads, writes) = (c_int::from(access != Access::Own), c_int::from(access == Access::PeersWrite));
    // SAFETY: the channel is open as long as `raw`; the memory is as the caller promises; `region` is ours.
    let done =
        unsafe { farhold_register(raw.channel.as_ptr(), memory, len, wanted_key, reads, writes, &raw mut region) };
    let mr = NonNull::new(region.mr).filter(|_| done >= 0);
    let mr = mr.ok_or_else(|| failure("libfabric", "register memory", &reason(done.into())))?;
    Ok(Registration { mr, key: region.key, base: region.base, _raw: raw.clone(), memory: None })
}
