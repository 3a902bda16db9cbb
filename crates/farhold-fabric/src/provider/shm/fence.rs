//! Ending a process for certain: by a descriptor of it, which no other process can come to stand for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A process of this host.
pub(super) struct Process(OwnedFd);

impl Process {
    /// `None`: there is no such process any more.
    pub fn open(pid: u32) -> io::Result<Option<Self>> {
        let Ok(pid) = libc::pid_t::try_from(pid) else { return Ok(None) };
        // SAFETY: the call takes two integers and touches no memory of ours.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })))
    }

    /// Kills it, and returns when it has ended: its threads run no instruction any more.
    pub fn kill_and_wait(&self) -> io::Result<()> {
        let no_info: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open; without a siginfo the kernel makes one.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, no_info, 0) };
        if sent < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) };
        }
        let mut wanted = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: one valid `pollfd`, borrowed for the call.
            match unsafe { libc::poll(&raw mut wanted, 1, -1) } {
                1.. => return Ok(()),
                0 => {}
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}
