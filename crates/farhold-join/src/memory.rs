//! The memory budget: one pool, shared by several joins, each with a reservation of its own.

use std::fmt;
use std::fs;
use std::panic::RefUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::JoinError;

/// The least bytes that a join asks of its pool. Spilling needs room for batches in flight on both sides, for a block
/// of build rows, and for its table.
pub const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// The least bytes that each of the joins that share a build side ([`Join::split`](crate::Join::split)) asks for, for
/// as long as the build side may have been spilled: batches in flight of its own probe rows.
pub const SHARE_BYTES_MIN: u64 = 256 << 10;

/// Memory of which a pool must ask for its bytes, so that a limit above that of the joins holds as well.
pub trait Above: Send + Sync + RefUnwindSafe {
    /// Takes `bytes`, or nothing. Returns whether it took them.
    fn try_take(&self, bytes: u64) -> bool;

    /// Gives back bytes that were taken.
    fn give_back(&self, bytes: u64);
}

/// Bytes that joins may hold together.
pub struct MemoryPool {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    above: Option<Box<dyn Above>>,
    gives_back: bool,
}

impl MemoryPool {
    /// A pool of `limit` bytes. Where the kernel allows the process less than twice that, it is as
    /// [`MemoryPool::giving_back`].
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self::with(limit, None, is_near(limit, kernel_limit())))
    }

    /// A pool of `limit` bytes that takes them from another. Its joins leave freed memory to the allocator, whatever
    /// the kernel's limit is.
    pub fn below(above: Box<dyn Above>, limit: u64) -> Arc<Self> {
        Arc::new(Self::with(limit, Some(above), false))
    }

    /// A pool of `limit` bytes for a process that the kernel ends when it takes much more. Memory that its joins free
    /// returns to the kernel at once instead of staying in the allocator's heap, which takes time.
    pub fn giving_back(limit: u64) -> Arc<Self> {
        Arc::new(Self::with(limit, None, true))
    }

    fn with(limit: u64, above: Option<Box<dyn Above>>, gives_back: bool) -> Self {
        Self { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0), above, gives_back }
    }

    /// Whether freed memory returns to the kernel.
    pub(crate) fn gives_back(&self) -> bool {
        self.gives_back
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

    /// Takes `bytes`, or nothing. Returns whether it took them.
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= self.limit)
        });
        let Ok(before) = taken else { return false };
        if bytes > 0 && self.above.as_ref().is_some_and(|above| !above.try_take(bytes)) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        true
    }

    /// Gives back bytes that were taken.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(above) = self.above.as_ref().filter(|_| bytes > 0) {
            above.give_back(bytes);
        }
    }
}

/// Whether the kernel's limit leaves a heap no room for free memory beside the budget. For a budget beyond the kernel's
/// limit nothing is promised.
fn is_near(budget: u64, kernel: Option<u64>) -> bool {
    kernel.is_some_and(|kernel| (kernel / 2..=kernel).contains(&budget))
}

/// The least limit of the process's memory cgroup (v1 or v2) and of the cgroups around it.
fn kernel_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let place = match controllers {
            "" => Some(("/sys/fs/cgroup", "memory.max")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
            }
            _ => None,
        };
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups.filter_map(move |group| place.map(|(root, file)| Path::new(root).join(group).join(file)))
    });
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryPool {{ limit: {}, used: {}, peak: {} }}", self.limit, self.used(), self.peak())
    }
}

/// One join's part of a pool. Its drop returns it.
///
/// The join keeps the floor taken at the start until its end. So it can always continue, whatever the other joins hold.
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

    /// A reservation of nothing, with no floor.
    pub fn empty(pool: &Arc<MemoryPool>) -> Self {
        Self { pool: Arc::clone(pool), floor: 0, used: 0 }
    }

    /// Takes everything out of this reservation, which is empty then.
    pub fn take(&mut self) -> Self {
        let empty = Self::empty(&self.pool);
        std::mem::replace(self, empty)
    }

    /// Bytes in use.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes `bytes` more, from the floor first. False, with nothing taken, if the pool does not have them.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let (before, after) = (self.used.max(self.floor), self.used.saturating_add(bytes).max(self.floor));
        let has_room = after == before || self.pool.try_take(after - before);
        if has_room {
            self.used += bytes;
        }
        has_room
    }

    /// The bytes that could be taken now; other joins may take them first.
    pub fn room(&self) -> u64 {
        self.pool.limit.saturating_sub(self.pool.used()) + self.floor.saturating_sub(self.used)
    }

    /// Gives `bytes` back.
    pub fn shrink(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.used);
        let before = self.used.max(self.floor);
        self.used = self.used.saturating_sub(bytes);
        self.pool.give_back(before - self.used.max(self.floor));
    }
}

impl Reservation {
    /// Gives everything back, including the floor.
    pub fn release(&mut self) {
        let held = self.used.max(self.floor);
        (self.used, self.floor) = (0, 0);
        self.pool.give_back(held);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_near_the_kernels_limit_gives_back() {
        assert!(is_near(100, Some(125)) && is_near(100, Some(200)) && is_near(100, Some(100)));
        assert!(!is_near(100, Some(202)) && !is_near(100, Some(99)) && !is_near(100, None));
    }

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
        assert_eq!((one.room(), two.room()), (0, 300));
        assert!(two.try_grow(300), "the floor is there whatever the others hold");
        one.shrink(500);
        assert_eq!((one.used(), pool.used()), (200, 600));
        assert!(!one.try_grow(u64::MAX), "no overflow");
        drop(one);
        drop(two);
        assert_eq!((pool.used(), pool.peak()), (0, 1000));
    }
}
