//! Which processor a thread runs on.

/// The processors that this process may use, in order.
#[must_use]
pub fn usable() -> Vec<usize> {
    // SAFETY: `set` is a valid, zeroed cpu_set_t of this frame, of the size that the call is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the indexes are below the set's number of bits.
    (0..libc::CPU_SETSIZE as usize).filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) }).collect()
}

/// Binds this thread to a processor; one that is not there leaves it where it is.
pub fn bind_this_thread(processor: usize) {
    if processor >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: `set` is a valid, zeroed cpu_set_t of this frame; CPU_SET is given an index below its bits; pid 0 is this
    // thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_has_one_processor() {
        let all = usable();
        let last = *all.last().expect("we run on one");
        let bound = std::thread::spawn(move || {
            bind_this_thread(last);
            bind_this_thread(usize::MAX);
            usable()
        });
        assert_eq!(bound.join().expect("no panic"), [last]);
        assert_eq!(usable(), all);
    }
}
