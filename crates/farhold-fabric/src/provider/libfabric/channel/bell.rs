//! How a thread sleeps until there may be something to poll for, and how another thread wakes it.

use super::Channel;
use super::shim::farhold_wait;
use crate::error::FabricError;
use std::ffi::c_int;
use std::time::Duration;

/// Wakes a thread from [`Channel::wait`], which silences it: an eventfd.
pub(in crate::provider::libfabric) struct Bell(c_int);

impl Bell {
    pub fn new() -> Result<Self, FabricError> {
        // SAFETY: makes a descriptor, touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(FabricError::io("make", "an eventfd", &std::io::Error::last_os_error()));
        }
        Ok(Self(fd))
    }

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: an open descriptor and 8 bytes.
        unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
    }

    /// Would a wait end at once?
    #[cfg(test)]
    fn is_rung(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        unsafe { libc::poll(&raw mut fd, 1, 0) > 0 }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: opened by `new`, closed once.
        unsafe { libc::close(self.0) };
    }
}

impl Channel {
    /// Sleeps until there may be something to poll for, the bell rings, or the time is over. If the provider has no wait, only
    /// the last two.
    pub fn wait(&self, bell: &Bell, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: an open descriptor and a time that lives through the call.
        unsafe { farhold_wait(self.open.raw.channel.as_ptr(), bell.0, &raw const timeout) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::Size;
    use super::super::kept::NEVER_CLOSED;
    use super::*;

    /// Regression: a bell that stayed rung made the home agent look without a pause from its first ring on.
    #[test]
    fn a_wait_silences_the_bell() {
        for provider in ["tcp;ofi_rxm", "shm"] {
            let address = (provider != NEVER_CLOSED).then_some("127.0.0.1");
            let channel = Channel::open(provider, address, Size { rx: 8, tx: 8, bulk: 0 }, true).unwrap();
            let bell = Bell::new().unwrap();
            bell.ring();
            bell.ring();
            // Other reasons than the bell may end a wait.
            for _ in 0..100 {
                if bell.is_rung() {
                    channel.wait(&bell, Duration::from_mins(1));
                }
            }
            assert!(!bell.is_rung(), "{provider}");
            bell.ring();
            assert!(bell.is_rung(), "and it rings again");
        }
    }
}
