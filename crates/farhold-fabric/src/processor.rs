//! Which processor a thread runs on, and what it loads ahead.

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

/// Starts loading the cache lines of `what`, for who will use them some 100 ns later. A hint: it reads nothing.
#[inline(always)]
pub fn prefetch<T>(what: &[T]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE_BYTES: usize = 64;
        let start = what.as_ptr().cast::<i8>();
        let misplaced = start.addr() % LINE_BYTES;
        for at in (0..size_of_val(what) + misplaced).step_by(LINE_BYTES) {
            // SAFETY: a prefetch reads nothing and faults on nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at)) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = what;
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
