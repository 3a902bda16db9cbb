//! Measures of the fabric itself: what its instructions cost on this machine, and what counters and latches do under
//! contention.

pub mod info;
pub mod placement;
pub mod words;

use farhold_fabric::provider::shm;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A cluster's directory that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(shm::default_cluster(&format!("{what}-{}-{number}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
