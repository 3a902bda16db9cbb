//! The clocks of the machine.

use std::sync::OnceLock;

/// The machine's clock: it counts from the machine's start, sleep included, so that a lease does not outlive a sleep.
pub(super) fn machine_ns() -> u64 {
    clock_ns(if cfg!(miri) { libc::CLOCK_MONOTONIC } else { libc::CLOCK_BOOTTIME })
}

pub(super) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is exclusively ours; the clocks that are asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// The real time at which the clocks of this process's executors are 0: the same for all, so that threads can compare their
/// times.
pub(super) fn process_start() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(machine_ns)
}
