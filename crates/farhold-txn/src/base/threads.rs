//! Threads for one job.

/// Runs a job on `threads` threads, this one included.
pub(crate) fn on_threads(threads: usize, job: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| {
        for number in 1..threads {
            scope.spawn(move || job(number));
        }
        job(0);
    });
}
