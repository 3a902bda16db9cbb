//! Real time, for what EXPLAIN shows.

use std::time::Instant;

/// Measures what EXPLAIN shows beside the prediction; decides nothing.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the time that EXPLAIN shows is the real one")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
