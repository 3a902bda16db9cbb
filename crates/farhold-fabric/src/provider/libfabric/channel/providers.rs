//! Which of libfabric's providers this machine has.

use super::shim::{RawFound, farhold_found, farhold_provider_exists, text_of};
use std::ffi::CStr;

const FOUND_MAX: usize = 32;

/// A provider that this machine has, with reliable messages in order.
pub(in crate::provider::libfabric) struct Found {
    pub provider: String,
    pub has_rma: bool,
    pub has_atomics: bool,
}

/// libfabric's version (major in the upper half), and what it offers here, by name.
pub(in crate::provider::libfabric) fn found() -> (u32, Vec<Found>) {
    let mut raw = [RawFound { provider: [0; 64], has_rma: 0, has_atomics: 0 }; FOUND_MAX];
    let mut version = 0;
    // SAFETY: there is room for FOUND_MAX.
    let count = unsafe { farhold_found(raw.as_mut_ptr(), FOUND_MAX as u32, &raw mut version) };
    let read = |raw: &RawFound| Found {
        provider: text_of(&raw.provider),
        has_rma: raw.has_rma != 0,
        has_atomics: raw.has_atomics != 0,
    };
    let mut found: Vec<Found> = raw[..usize::try_from(count).unwrap_or(0)].iter().map(read).collect();
    found.sort_by(|a, b| a.provider.cmp(&b.provider));
    (version, found)
}

/// Whether libfabric knows a provider of this name, whatever its capabilities.
pub(super) fn provider_exists(provider: &CStr) -> bool {
    // SAFETY: a terminated string that lives through the call.
    unsafe { farhold_provider_exists(provider.as_ptr()) != 0 }
}
