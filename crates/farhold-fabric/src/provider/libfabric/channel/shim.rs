//! The functions of shim.c, the layouts that they share with it, and the words for their errors.

use crate::error::FabricError;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Most completions of one poll; shim.c takes no more than its own number.
pub(super) const COMPLETIONS_MAX: usize = 16;

#[repr(C)]
pub(super) struct Options {
    pub(super) provider: *const c_char,
    pub(super) address: *const c_char,
    pub(super) arena: *mut u8,
    pub(super) frame_bytes: u64,
    pub(super) rx: u32,
    pub(super) tx: u32,
    pub(super) rma: u32,
    pub(super) wants_rma: u32,
    pub(super) wants_wait: u32,
}

#[repr(C)]
pub(super) struct RawTraits {
    pub(super) provider: [u8; 64],
    pub(super) mr_mode: u64,
    pub(super) max_msg_size: u64,
    pub(super) has_rma: u32,
    pub(super) has_wait: u32,
    pub(super) wants_local_mr: u32,
    pub(super) api_version: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) slot: u32,
    pub(super) error: i32,
    pub(super) len: u64,
}

#[repr(C)]
pub(super) struct RawRegion {
    pub(super) mr: *mut c_void,
    pub(super) key: u64,
    pub(super) base: u64,
}

// Layouts that shim.c has too.
const _: () = assert!(size_of::<Options>() == 56 && size_of::<RawTraits>() == 96);
const _: () = assert!(size_of::<Completion>() == 16 && size_of::<RawRegion>() == 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawFound {
    pub(super) provider: [u8; 64],
    pub(super) has_rma: u32,
    pub(super) has_atomics: u32,
}
const _: () = assert!(size_of::<RawFound>() == 72);

unsafe extern "C" {
    pub(super) fn farhold_found(found: *mut RawFound, count_max: u32, version: *mut u32) -> c_int;
    pub(super) fn farhold_provider_exists(provider: *const c_char) -> c_int;
    pub(super) fn farhold_open(
        options: *const Options,
        opened: *mut *mut c_void,
        traits: *mut RawTraits,
        failed: *mut *const c_char,
    ) -> c_int;
    pub(super) fn farhold_close(channel: *mut c_void);
    pub(super) fn farhold_name(channel: *mut c_void, name: *mut u8, len: *mut usize) -> c_int;
    pub(super) fn farhold_meet(channel: *mut c_void, name: *const u8, peer: *mut u64) -> c_int;
    pub(super) fn farhold_forget(channel: *mut c_void, peer: u64) -> c_int;
    pub(super) fn farhold_recv(channel: *mut c_void, slot: u32) -> i64;
    pub(super) fn farhold_send(channel: *mut c_void, slot: u32, len: u64, peer: u64) -> i64;
    pub(super) fn farhold_rma(
        channel: *mut c_void,
        is_write: c_int,
        slot: u32,
        local: *mut u8,
        len: u64,
        local_mr: *mut c_void,
        peer: u64,
        remote: u64,
        key: u64,
    ) -> i64;
    pub(super) fn farhold_register(
        channel: *mut c_void,
        memory: *mut u8,
        len: u64,
        wanted_key: u64,
        peers_read: c_int,
        peers_write: c_int,
        region: *mut RawRegion,
    ) -> c_int;
    pub(super) fn farhold_unregister(mr: *mut c_void) -> c_int;
    pub(super) fn farhold_poll(channel: *mut c_void, completions: *mut Completion, most: usize) -> i64;
    pub(super) fn farhold_wait(channel: *mut c_void, bell: c_int, timeout: *const libc::timespec);
    pub(super) fn farhold_reason(error: c_int) -> *const c_char;
}

/// The system's words for an error of libfabric.
pub(super) fn reason(error: i64) -> String {
    // SAFETY: libfabric returns a constant string for every number.
    unsafe { CStr::from_ptr(farhold_reason(error as c_int)) }.to_string_lossy().into_owned()
}

pub(super) fn failure(provider: &str, call: &str, reason: &str) -> FabricError {
    FabricError::unfit_provider(provider, format!("{call} failed: {reason}"))
}

/// A terminated string in an array.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
