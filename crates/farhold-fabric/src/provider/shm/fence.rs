//! Ending a process for certain: by a descriptor of it, which no other process can take over, and only after its start time has
//! shown that its number still is its own.
//!
//! Invariant: a process counts as ended only if the kernel says that it does not know it. A look that fails for any other reason,
//! such as a process that is out of descriptors, is an error, because a living node that is declared dead loses its locks and
//! snapshots.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A process, as a node's entry names it. Its number may be given to another process; its number and its start time together are
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub pid: u32,
    /// Clock ticks from the machine's start to its own; 0: not known.
    pub started: u64,
    /// Where its number means something; 0: not known.
    pub namespace: u64,
    /// The start of the node that it is; 0: it has not been set yet.
    pub birth: u64,
}

impl Recorded {
    /// This process.
    pub fn this() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { pid, started: started(pid)?.unwrap_or(0), namespace: namespace()?, birth: 0 })
    }

    pub fn is_this_process(&self) -> io::Result<bool> {
        Ok(Self { birth: 0, ..*self } == Self::this()?)
    }

    /// Can this process look at it, and end it?
    pub fn is_known(&self) -> io::Result<bool> {
        Ok(self.started != 0 && self.namespace != 0 && self.namespace == namespace()?)
    }

    /// Whether it has ended for certain. If its lock is held now, another process holds it.
    pub fn has_ended(&self) -> io::Result<bool> {
        Ok(self.is_known()? && started(self.pid)? != Some(self.started))
    }

    /// Whether it is ending, for certain: see [`is_ending`].
    pub fn is_ending(&self) -> io::Result<bool> {
        Ok(self.is_known()? && is_ending(self.pid)?)
    }
}

/// Whether the kernel says that there is no such thing, or process.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// The result of a query to the kernel; `None` if its object is gone.
fn look<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The PID namespace of this process; 0 if the system shows none.
fn namespace() -> io::Result<u64> {
    Ok(look(std::fs::metadata("/proc/self/ns/pid"))?.map_or(0, |it| it.ino()))
}

/// When the process with this number started; `None`: there is none.
fn started(pid: u32) -> io::Result<Option<u64>> {
    let Some(stat) = look(std::fs::read_to_string(format!("/proc/{pid}/stat")))? else { return Ok(None) };
    let started = stat_word(&stat, STAT_STARTED);
    started.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a process without a start time"))
}

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
        // SAFETY: the kernel has just returned this descriptor, and no other code has it.
        Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })))
    }

    /// Kills it. It has not ended yet when this returns: freeing the memory of a large process takes the system longer than a
    /// lease.
    pub fn kill(&self) -> io::Result<()> {
        let no_info: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open; without a siginfo the kernel makes one.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, no_info, 0) };
        if sent < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) };
        }
        Ok(())
    }
}

/// Of `/proc/PID/task/TID/stat`, counted behind the name: the flags, the start time and the size of the memory.
const STAT_FLAGS: usize = 6;
const STAT_STARTED: usize = 19;
const STAT_MEMORY: usize = 20;
/// `PF_EXITING` of Linux's `sched.h`.
const EXITING: u64 = 0x4;

/// Whether no thread of a process will touch its memory any more. This holds long before the process has ended: each thread of a
/// dying process first releases the memory, the last of them then frees it, and only then are locks and the process gone.
fn is_ending(pid: u32) -> io::Result<bool> {
    let Some(threads) = look(std::fs::read_dir(format!("/proc/{pid}/task")))? else { return Ok(false) };
    let mut count = 0;
    for thread in threads {
        let stat = look(std::fs::read_to_string(thread?.path().join("stat")))?;
        count += 1;
        // A thread that has gone since it was listed touches nothing either.
        if stat.is_some_and(|stat| !has_let_go(&stat)) {
            return Ok(false);
        }
    }
    Ok(count > 0)
}

fn has_let_go(stat: &str) -> bool {
    stat_word(stat, STAT_FLAGS).is_some_and(|flags| flags & EXITING != 0) && stat_word(stat, STAT_MEMORY) == Some(0)
}

fn stat_word(stat: &str, at: usize) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "processes")]
    fn a_process_is_its_number_and_its_start() {
        let this = Recorded::this().unwrap();
        assert!(this.is_known().unwrap() && !this.has_ended().unwrap());
        assert!(Recorded { started: this.started + 1, ..this }.has_ended().unwrap(), "its number went to this one");
        assert!(!Recorded { started: 0, ..this }.has_ended().unwrap(), "not known");
        let elsewhere = Recorded { started: this.started + 1, namespace: this.namespace + 1, ..this };
        assert!(!elsewhere.has_ended().unwrap());
    }

    #[test]
    fn who_runs_is_not_ending() {
        assert!(!is_ending(std::process::id()).unwrap());
        assert!(!is_ending(u32::MAX).unwrap(), "nobody knows of it");
        // A thread of the kernel has no memory either.
        let idle = "2 (k) thread) S 0 0 0 0 -1 2129984 0 0 0 0 0 7 0 0 20 0 1 0 11 0 0 18446744073709551615";
        assert!(!has_let_go(idle));
        assert!(has_let_go(&idle.replace("2129984", "4194308")));
        assert!(!has_let_go(&idle.replace("2129984", "4194308").replace(" 11 0 0", " 11 4096 1")));
    }
}
