//! The real clock of the command line: progress and durations shown to a person.

use std::time::Instant;

/// Measures a span of real time.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts.
    #[expect(clippy::disallowed_methods, reason = "shown to a person; nothing replayed depends on it")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the start.
    pub fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    /// Microseconds since the start.
    pub fn micros(self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

/// Microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "dates of orders; a run's inputs do not depend on it")]
pub fn unix_us() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
}
