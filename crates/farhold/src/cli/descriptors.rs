//! The limit of files and connections that the process may have open.

/// As many as this program ever needs. If the system allows more, it does not ask for more.
const WANTED: libc::rlim_t = 1 << 16;

/// Raises the limit as far as the system permits. Shells and service managers give 1024, for programs that wait by `select`,
/// which this one does not use. Connections, threads and files of joins that spill need more on machines with many processors.
pub fn raise() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are written into a structure of this function.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return;
    }
    let most = limit.rlim_max.min(WANTED);
    if limit.rlim_cur < most {
        limit.rlim_cur = most;
        // SAFETY: only reads the structure. If the call is refused, the limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}
