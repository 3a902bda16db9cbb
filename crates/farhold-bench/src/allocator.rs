//! The allocator of programs that run queries, which constantly make and drop buffers of a hundred kilobytes to hundreds of
//! megabytes. The system's allocator gives such memory back to the kernel and gets it again page by page, cleared.
//!
//! mimalloc gives memory back that has been free for a second. On a virtual machine whose host takes it away at once, as some do,
//! the next query waits for it: in a new process TPC-H's query 18 at scale factor 10 spends two fifths of its processor time on
//! clearing such pages. So this program keeps free memory for ten seconds.

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set};

pub use mimalloc::MiMalloc;

/// `mi_option_purge_delay` in `mimalloc.h`, which has no name in Rust, its default, and this program's value, in milliseconds.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PURGE_DELAY_MS_THEIRS: libc::c_long = 1000;
const PURGE_DELAY_MS: libc::c_long = 10_000;

/// Keeps free memory for ten seconds, unless `MIMALLOC_PURGE_DELAY` says how long. A program with this allocator must call it at
/// its start, before it starts a thread.
pub fn keep_free_memory() {
    // SAFETY: the options are plain words of mimalloc's, and no other thread is there to write them.
    unsafe {
        // Any other number is the user's, or another option's in a mimalloc that numbers them otherwise.
        if mi_option_get(PURGE_DELAY) == PURGE_DELAY_MS_THEIRS {
            mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        }
    }
}

/// Gives back what has been free for that long. mimalloc checks only when a thread allocates, and no thread of an idle server
/// does, so the server must call this now and then.
pub fn give_back() {
    // SAFETY: any thread may call it at any time.
    unsafe { mi_collect(false) };
}
