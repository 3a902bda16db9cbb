//! The processor that a thread runs on, and the lines that it prefetches.

/// The processors that this process may use, in order; none if the system does not tell.
#[must_use]
pub fn usable() -> Vec<usize> {
    // The system refuses a set that is shorter than its own, and does not say how long that is.
    let mut set = vec![0_u64; PROCESSORS_MAX / 64 / 64];
    // SAFETY: the set is writable memory of the size that the call is told.
    while unsafe { libc::sched_getaffinity(0, size_of_val(&*set), set.as_mut_ptr().cast()) } != 0 {
        if set.len() >= PROCESSORS_MAX / 64 {
            return Vec::new();
        }
        set.resize(2 * set.len(), 0);
    }
    (0..set.len() * 64).filter(|processor| set[processor / 64] >> (processor % 64) & 1 == 1).collect()
}

/// More than Linux can be built for.
const PROCESSORS_MAX: usize = 1 << 16;

/// Binds this thread to a processor. A processor that does not exist leaves it where it is.
pub fn bind_this_thread(processor: usize) {
    bind(Thread(0), processor);
}

/// Binds this thread, and the threads that it starts from now on, to some processors. It stays where it is if none of them
/// exists.
pub fn bind_this_thread_to(processors: &[usize]) {
    bind_to(Thread(0), processors);
}

/// A thread of this process, by the system's number; zero means the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(libc::pid_t);

/// The threads of this process; none if the system does not tell.
#[must_use]
pub fn threads() -> Vec<Thread> {
    let named = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|entry| entry.file_name());
    named.filter_map(|name| name.to_str()?.parse().ok().map(Thread)).collect()
}

/// Binds a thread to a processor. A thread that has ended, or a processor that does not exist, changes nothing.
pub fn bind(thread: Thread, processor: usize) {
    bind_to(thread, &[processor]);
}

fn bind_to(thread: Thread, processors: &[usize]) {
    let there = processors.iter().filter(|processor| **processor < PROCESSORS_MAX);
    let mut set = vec![0_u64; there.clone().max().map_or(1, |last| last / 64 + 1)];
    there.for_each(|processor| set[processor / 64] |= 1 << (processor % 64));
    // SAFETY: the set is readable memory of the size that the call is told; the number names a thread of this process or none, and
    // where a thread runs changes nothing of what it does. The system refuses a set without a processor.
    unsafe { libc::sched_setaffinity(thread.0, size_of_val(&*set), set.as_ptr().cast()) };
}

/// Lets threads of normal priority run before this thread and those that it starts from now on: raises Linux's nice value by
/// `by`, up to 19. Nothing changes while there are processors for all of them. The system does not let a thread take it back.
pub fn stand_back(by: u8) {
    // SAFETY: both calls read and write only this thread's priority; zero means this thread.
    unsafe {
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, (now + i32::from(by)).min(19));
    }
}

/// Starts loading the cache lines of `what`, for a caller that will use them some 100 ns later. A hint: it reads nothing.
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
    fn only_the_thread_that_stands_back_is_behind_others() {
        // SAFETY: reads this thread's priority.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let behind = std::thread::spawn(move || {
            stand_back(3);
            let three = nice();
            stand_back(u8::MAX);
            (three, nice())
        });
        assert_eq!(behind.join().expect("no panic"), ((before + 3).min(19), 19));
        assert_eq!(nice(), before);
    }

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

    #[test]
    fn a_thread_that_is_started_has_the_processors_of_who_starts_it() {
        let all = usable();
        let some = all[all.len() / 2..].to_vec();
        let wanted = some.clone();
        let found = std::thread::spawn(move || {
            bind_this_thread_to(&some);
            bind_this_thread_to(&[]);
            std::thread::spawn(usable).join().expect("no panic")
        });
        assert_eq!(found.join().expect("no panic"), wanted);
    }

    #[test]
    fn a_thread_is_bound_by_another() {
        let last = *usable().last().expect("we run on one");
        let (tell, told) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            // SAFETY: a call without arguments that always works.
            tell.send(Thread(unsafe { libc::gettid() })).expect("somebody listens");
            wait.recv().map(|()| usable())
        });
        let thread = told.recv().expect("it runs");
        assert!(threads().contains(&thread));
        bind(thread, last);
        go.send(()).expect("it waits");
        assert_eq!(other.join().expect("no panic"), Ok(vec![last]));
    }
}
