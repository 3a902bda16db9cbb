//! The memory budget: one pool, shared by several joins, each with a reservation of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::JoinError;

/// The least that a join asks of its pool. Spilling needs room for batches in flight on both sides, a block of build rows
/// and its table.
pub const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// Bytes that joins may hold together.
#[derive(Debug)]
pub struct MemoryPool {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl MemoryPool {
    /// A pool of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Bytes in all.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever reserved at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: u64) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= self.limit)
        });
        if let Ok(before) = taken {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

/// One join's part of a pool; it goes back when dropped.
///
/// A floor taken at the start stays with the join until its end, so that it can always go on, whatever the others hold.
#[derive(Debug)]
pub struct Reservation {
    pool: Arc<MemoryPool>,
    floor: u64,
    used: u64,
}

impl Reservation {
    /// Takes the floor; [`JoinError::BudgetTooSmall`] if the pool does not have it.
    pub fn new(pool: &Arc<MemoryPool>, floor: u64) -> Result<Self, JoinError> {
        if !pool.try_take(floor) {
            let free_bytes = pool.limit - pool.used().min(pool.limit);
            return Err(JoinError::BudgetTooSmall { free_bytes, needed_bytes: floor });
        }
        Ok(Self { pool: Arc::clone(pool), floor, used: 0 })
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes `bytes` more, of the floor first; false, and nothing taken, if the pool does not have them.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let (before, after) = (self.used.max(self.floor), self.used.saturating_add(bytes).max(self.floor));
        let has_room = after == before || self.pool.try_take(after - before);
        if has_room {
            self.used += bytes;
        }
        has_room
    }

    /// Gives `bytes` back.
    pub fn shrink(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.used);
        let before = self.used.max(self.floor);
        self.used = self.used.saturating_sub(bytes);
        self.pool.used.fetch_sub(before - self.used.max(self.floor), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.used.max(self.floor), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_share_a_pool_and_keep_their_floors() {
        let pool = MemoryPool::new(1000);
        let mut one = Reservation::new(&pool, 300).unwrap();
        let mut two = Reservation::new(&pool, 300).unwrap();
        assert!(matches!(
            Reservation::new(&pool, 500),
            Err(JoinError::BudgetTooSmall { free_bytes: 400, needed_bytes: 500 })
        ));
        assert!(one.try_grow(700));
        assert_eq!(pool.used(), 1000);
        assert!(!one.try_grow(1) && !two.try_grow(301));
        assert!(two.try_grow(300), "the floor is there whatever the others hold");
        one.shrink(500);
        assert_eq!((one.used(), pool.used()), (200, 600));
        assert!(!one.try_grow(u64::MAX), "no overflow");
        drop(one);
        drop(two);
        assert_eq!((pool.used(), pool.peak()), (0, 1000));
    }
}
