//! Bulk transfers: remote reads and writes that the NIC does by itself.

use super::registration::Registration;
use super::shim::farhold_rma;
use super::{AGAIN, Channel, Peer, Refusal};
use std::ffi::c_int;

/// Where a bulk transfer goes, in the terms of the peer's registration.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::provider::libfabric) struct BulkTarget {
    pub remote: u64,
    pub key: u64,
}

impl Channel {
    /// Starts a bulk transfer; its end is an [`Event::Bulk`](super::Event::Bulk).
    ///
    /// # Safety
    /// `local` points to `len` bytes that stay where they are. No other code writes them (for a write) or touches them (for a
    /// read) until the event has come or the channel is dropped. For a channel that [is never closed](Self::is_never_closed),
    /// only the event counts.
    pub unsafe fn bulk(
        &self,
        is_write: bool,
        local: *mut u8,
        len: u64,
        registration: Option<&Registration>,
        peer: Peer,
        target: BulkTarget,
    ) -> Result<u32, Refusal> {
        let slot = self.open.free_bulk.borrow_mut().pop().ok_or(Refusal::Again)?;
        let mr = registration.map_or(std::ptr::null_mut(), |it| it.mr.as_ptr());
        // SAFETY: the slot was free; the memory is as the caller promises; the rest are numbers that the peer checks.
        let done = unsafe {
            let BulkTarget { remote, key } = target;
            farhold_rma(
                self.open.raw.channel.as_ptr(),
                c_int::from(is_write),
                slot,
                local,
                len,
                mr,
                peer.0,
                remote,
                key,
            )
        };
        if done < 0 {
            self.open.free_bulk.borrow_mut().push(slot);
            return Err(if done == AGAIN { Refusal::Again } else { Refusal::Broken });
        }
        Ok(slot)
    }
}
