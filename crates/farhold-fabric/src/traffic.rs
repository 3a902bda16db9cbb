//! Bytes that the instructions of a node's endpoints move: how busy its links are, without a counter of the hardware.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The bytes of all endpoints of a membership.
#[derive(Default)]
pub(crate) struct Traffic {
    endpoints: Mutex<Vec<Weak<Moved>>>,
    /// Of endpoints that have ended.
    ended: AtomicU64,
}

/// The bytes of one endpoint. Only its thread adds, so that counting costs a load and a store of a line of its own.
#[repr(align(64))]
pub(crate) struct Moved {
    bytes: AtomicU64,
    all: Arc<Traffic>,
}

impl Traffic {
    /// A counter for one more endpoint.
    pub fn endpoint(self: &Arc<Self>) -> Arc<Moved> {
        let moved = Arc::new(Moved { bytes: AtomicU64::new(0), all: self.clone() });
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|it| it.strong_count() > 0);
        endpoints.push(Arc::downgrade(&moved));
        moved
    }

    /// The bytes so far. They may be some too few while an endpoint ends.
    pub fn bytes(&self) -> u64 {
        let endpoints: Vec<_> = {
            let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
            endpoints.iter().filter_map(Weak::upgrade).collect()
        };
        let living: u64 = endpoints.iter().map(|it| it.bytes.load(Relaxed)).sum();
        self.ended.load(Relaxed) + living
    }
}

impl Moved {
    #[inline]
    pub fn add(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Relaxed) + bytes as u64, Relaxed);
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        self.all.ended.fetch_add(self.bytes.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_that_have_ended_count() {
        let traffic = Arc::new(Traffic::default());
        let [one, other] = [traffic.endpoint(), traffic.endpoint()];
        one.add(100);
        other.add(20);
        assert_eq!(traffic.bytes(), 120);
        drop(one);
        other.add(3);
        assert_eq!(traffic.bytes(), 123);
        let third = traffic.endpoint();
        assert_eq!(traffic.endpoints.lock().expect("no panic").len(), 2);
        third.add(7);
        assert_eq!(traffic.bytes(), 130);
    }
}
