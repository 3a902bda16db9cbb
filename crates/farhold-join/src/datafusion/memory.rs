//! One limit for the joins of all plans, inside DataFusion's own.
//!
//! ```text
//!   DataFusion's memory pool ◀── JoinMemory (all joins) ◀── PlanMemory (the joins of one plan) ◀── MemoryPool ◀── Join
//! ```
//!
//! A join takes what it can get for its build side. So that one that has much does not keep others from beginning, a plan
//! takes the floors of all its joins when the first begins, and an eighth of the limit is for floors only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool as DataFusionPool, MemoryReservation,
};

use crate::{Above, BUDGET_BYTES_MIN, JoinError, MemoryPool, SHARE_BYTES_MIN};

/// What joins may have in all where nobody states a limit: more than there is.
const UNLIMITED: u64 = 1 << 50;

/// The memory of all joins.
#[derive(Debug)]
pub struct JoinMemory {
    limit: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug)]
struct Taken {
    bytes: u64,
    reservation: MemoryReservation,
}

impl JoinMemory {
    /// At most `limit_bytes` of `pool`, or as much as the pool says that it has.
    pub fn new(pool: &Arc<dyn DataFusionPool>, limit_bytes: Option<u64>) -> Arc<Self> {
        let of_pool = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes as u64,
            _ => UNLIMITED,
        };
        let limit = limit_bytes.unwrap_or(UNLIMITED).min(of_pool);
        let reservation = MemoryConsumer::new("joins").with_can_spill(true).register(pool);
        Arc::new(Self { limit, taken: Mutex::new(Taken { bytes: 0, reservation }) })
    }

    /// Bytes that all joins may hold together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that joins hold now.
    pub fn used(&self) -> u64 {
        lock(&self.taken).bytes
    }

    /// Takes bytes of the limit, and of the eighth of it that is kept for joins to begin with if these are `floors`.
    fn try_take(&self, bytes: u64, floors: bool) -> bool {
        let mut taken = lock(&self.taken);
        let limit = if floors { self.limit } else { self.limit - self.limit / 8 };
        let has_room = taken.bytes.checked_add(bytes).is_some_and(|after| after <= limit)
            && taken.reservation.try_grow(bytes as usize).is_ok();
        if has_room {
            taken.bytes += bytes;
        }
        has_room
    }

    fn give_back(&self, bytes: u64) {
        let mut taken = lock(&self.taken);
        taken.bytes -= bytes;
        taken.reservation.shrink(bytes as usize);
    }
}

/// The memory of one plan's joins.
#[derive(Debug)]
pub struct PlanMemory {
    all: Arc<JoinMemory>,
    /// Floors of all its joins.
    floors: u64,
    state: Mutex<PlanState>,
}

#[derive(Debug, Default)]
struct PlanState {
    /// Joins that have begun and not ended.
    running: usize,
    used: u64,
    /// Floors of joins that have not begun.
    waiting: u64,
    /// Taken of the limit: `used + waiting` at least.
    held: u64,
}

impl PlanMemory {
    /// For `joins` joins that are each split into `shares`.
    pub fn new(all: Arc<JoinMemory>, joins: usize, shares: usize) -> Arc<Self> {
        Arc::new(Self { all, floors: joins as u64 * floor_bytes(shares), state: Mutex::default() })
    }

    /// The limit of all joins of all plans.
    pub fn limit(&self) -> u64 {
        self.all.limit()
    }

    /// A pool for a join that begins now and needs `floor` bytes at once. [`JoinError::BudgetTooSmall`] if the limit has no
    /// room for the joins of this plan.
    pub fn begin(self: &Arc<Self>, floor: u64) -> Result<(Arc<MemoryPool>, Begun), JoinError> {
        let mut state = lock(&self.state);
        if state.running == 0 {
            let needed_bytes = self.floors.max(floor);
            if !self.all.try_take(needed_bytes, true) {
                let free_bytes = self.limit() - self.all.used().min(self.limit());
                return Err(JoinError::BudgetTooSmall { free_bytes, needed_bytes });
            }
            state.held += needed_bytes;
            state.waiting = needed_bytes;
        }
        state.running += 1;
        state.waiting = state.waiting.saturating_sub(floor);
        let pool = MemoryPool::below(Box::new(FromPlan(Arc::clone(self))), self.limit());
        Ok((pool, Begun(Arc::clone(self))))
    }

    /// Returns what is held without need.
    fn settle(&self, state: &mut PlanState) {
        let needed = state.used + state.waiting;
        if state.held > needed {
            self.all.give_back(state.held - needed);
            state.held = needed;
        }
    }
}

/// A join that has begun; dropped when it ends.
#[derive(Debug)]
pub struct Begun(Arc<PlanMemory>);

impl Drop for Begun {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.running -= 1;
        if state.running == 0 {
            state.waiting = 0;
        }
        self.0.settle(&mut state);
    }
}

/// A plan's memory as a join's pool sees it.
struct FromPlan(Arc<PlanMemory>);

impl Above for FromPlan {
    fn try_take(&self, bytes: u64) -> bool {
        let mut state = lock(&self.0.state);
        let missing = (state.used + state.waiting).saturating_add(bytes).saturating_sub(state.held);
        if missing > 0 && !self.0.all.try_take(missing, false) {
            return false;
        }
        state.held += missing;
        state.used += bytes;
        true
    }

    fn give_back(&self, bytes: u64) {
        let mut state = lock(&self.0.state);
        state.used -= bytes;
        self.0.settle(&mut state);
    }
}

/// What a join that is split into so many takes at its start.
pub fn floor_bytes(shares: usize) -> u64 {
    BUDGET_BYTES_MIN + if shares > 1 { shares as u64 * SHARE_BYTES_MIN } else { 0 }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Reservation;
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    const MIB: u64 = 1 << 20;

    #[test]
    fn joins_begin_whatever_others_hold_and_one_limit_holds_for_all() {
        let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
        let memory = JoinMemory::new(&pool, None);
        let plan = PlanMemory::new(Arc::clone(&memory), 2, 1);
        let (first, first_begun) = plan.begin(MIB).unwrap();
        let mut one = Reservation::new(&first, MIB).unwrap();
        assert_eq!(memory.used(), 2 * MIB, "the floor of the second is kept for it");
        assert!(!one.try_grow(14 * MIB), "an eighth is for floors");
        assert!(one.try_grow(13 * MIB) && pool.reserved() as u64 == 14 * MIB);
        let (second, second_begun) = plan.begin(MIB).unwrap();
        let mut two = Reservation::new(&second, MIB).unwrap();
        assert!(two.try_grow(MIB) && !two.try_grow(1));
        let other = PlanMemory::new(Arc::clone(&memory), 2, 1);
        let (_, other_begun) = other.begin(MIB).unwrap();
        let third = PlanMemory::new(Arc::clone(&memory), 1, 1);
        assert!(matches!(third.begin(MIB), Err(JoinError::BudgetTooSmall { free_bytes: 0, needed_bytes: MIB })));
        drop((one, two));
        drop((first_begun, second_begun, other_begun));
        assert_eq!((memory.used(), pool.reserved()), (0, 0));
    }

    #[test]
    fn a_full_pool_of_the_database_is_a_full_pool_of_the_joins() {
        let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(4 << 20));
        let sort = MemoryConsumer::new("sort").register(&pool);
        sort.try_grow(2 << 20).unwrap();
        let plan = PlanMemory::new(JoinMemory::new(&pool, None), 1, 1);
        let (joins, _begun) = plan.begin(MIB).unwrap();
        let mut join = Reservation::new(&joins, MIB).unwrap();
        assert!(join.try_grow(2 * MIB) && !join.try_grow(1));
        drop(sort);
        assert!(join.try_grow(MIB));
    }
}
