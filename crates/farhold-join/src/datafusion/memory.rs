//! One limit for the joins of all plans, inside DataFusion's own.
//!
//! ```text
//!   DataFusion's memory pool ◀── JoinMemory (all joins) ◀── PlanMemory (the joins of one plan) ◀── MemoryPool ◀── Join
//! ```
//! A join takes as much memory as it can get for its build side, but it must not prevent others from beginning. A plan therefore takes the floors of all its
//! joins when the first is executed, before the operators below have taken any of DataFusion's pool, and an eighth of the limit is reserved for floors. Where
//! there is no room yet, the first join that begins waits for it.
//!
//! Pages that joins have touched are kept for later joins, of other plans too, since the kernel clears each page that is touched first. They count against the
//! limit and DataFusion's pool like all other memory. They are released when a join finds the limit reached and, by [`GivingWay`], when any consumer finds the
//! pool empty.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool as DataFusionPool, MemoryReservation,
};

use crate::{Above, BUDGET_BYTES_MIN, JoinError, MemoryPool, PageStore, SHARE_BYTES_MIN};

/// The limit of all joins if none is stated: more than any machine has.
const UNLIMITED: u64 = 1 << 50;

/// The most bytes of unused pages that are kept: an eighth of the limit, but not more than this.
const KEPT_BYTES_MAX: u64 = 512 << 20;

/// The memory of all joins.
#[derive(Debug)]
pub struct JoinMemory {
    limit: u64,
    taken: Arc<Mutex<Taken>>,
    pages: PageStore,
}

#[derive(Debug)]
struct Taken {
    /// DataFusion's.
    pool: Arc<dyn DataFusionPool>,
    by_joins: u64,
    /// Bytes of kept pages that are not in use.
    kept: u64,
    /// The reservation of both.
    reservation: MemoryReservation,
    /// Plans that wait for others to give memory back.
    waiting: Vec<Waker>,
}

impl Taken {
    /// Reserves `bytes` beside what is taken, if the sum is at most `limit`.
    fn try_reserve(&mut self, bytes: u64, limit: u64) -> bool {
        let after = self.by_joins.saturating_add(self.kept).saturating_add(bytes);
        after <= limit && self.reservation.try_grow(bytes as usize).is_ok()
    }
}

/// The limit without the eighth that is reserved for joins to begin with.
fn without_floors(limit: u64) -> u64 {
    limit - limit / 8
}

impl JoinMemory {
    /// At most `limit_bytes` of `pool`, or, without a limit, as much as the pool says that it has.
    pub fn new(pool: &Arc<dyn DataFusionPool>, limit_bytes: Option<u64>) -> Arc<Self> {
        let of_pool = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes as u64,
            _ => UNLIMITED,
        };
        let limit = limit_bytes.unwrap_or(UNLIMITED).min(of_pool);
        let reservation = MemoryConsumer::new("joins").with_can_spill(true).register(pool);
        let taken = Arc::new(Mutex::new(Taken {
            pool: Arc::clone(pool),
            by_joins: 0,
            kept: 0,
            reservation,
            waiting: Vec::new(),
        }));
        let keeping = Keeping { limit: without_floors(limit), taken: Arc::clone(&taken) };
        let pages = PageStore::of(MemoryPool::below(Box::new(keeping), (limit / 8).min(KEPT_BYTES_MAX)));
        Arc::new(Self { limit, taken, pages })
    }

    /// Bytes that all joins may hold together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that joins hold now.
    pub fn used(&self) -> u64 {
        lock(&self.taken).by_joins
    }

    /// Bytes that joins can still take: of the limit, and of DataFusion's pool.
    fn free(&self) -> u64 {
        let taken = lock(&self.taken);
        let of_limit = self.limit.saturating_sub(taken.by_joins);
        match taken.pool.memory_limit() {
            MemoryLimit::Finite(bytes) => of_limit.min(bytes.saturating_sub(taken.pool.reserved()) as u64),
            _ => of_limit,
        }
    }

    /// Bytes of DataFusion's pool that are kept for later joins. They are released when any consumer finds the pool empty.
    pub fn kept(&self) -> u64 {
        self.pages.bytes()
    }

    /// Returns kept pages to the system. True if there were any.
    pub fn give_up_kept(&self) -> bool {
        self.pages.clear()
    }

    /// The result of `attempt`, which is repeated as long as it fails and kept pages can be given up.
    fn giving_way<T, E>(&self, mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        loop {
            match attempt() {
                Err(_) if self.give_up_kept() => {}
                // Another thread may have given them up meanwhile.
                Err(_) => return attempt(),
                done => return done,
            }
        }
    }

    /// Takes bytes of the limit. If they are `floors`, they may come from the reserved eighth.
    fn try_take(&self, bytes: u64, floors: bool) -> bool {
        let limit = if floors { self.limit } else { without_floors(self.limit) };
        let taken = self.giving_way(|| {
            let mut taken = lock(&self.taken);
            let has_room = taken.try_reserve(bytes, limit);
            taken.by_joins += if has_room { bytes } else { 0 };
            has_room.then_some(()).ok_or(())
        });
        taken.is_ok()
    }

    fn give_back(&self, bytes: u64) {
        let mut taken = lock(&self.taken);
        taken.by_joins -= bytes;
        taken.reservation.shrink(bytes as usize);
        drop(taken);
        self.wake();
    }

    /// Wakes plans that wait, so that they try again after memory has been given back.
    fn wake(&self) {
        let waiting = std::mem::take(&mut lock(&self.taken).waiting);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The limit as the pool of kept pages sees it.
struct Keeping {
    limit: u64,
    taken: Arc<Mutex<Taken>>,
}

impl Above for Keeping {
    fn try_take(&self, bytes: u64) -> bool {
        let mut taken = lock(&self.taken);
        let has_room = taken.try_reserve(bytes, self.limit);
        taken.kept += if has_room { bytes } else { 0 };
        has_room
    }

    fn give_back(&self, bytes: u64) {
        let mut taken = lock(&self.taken);
        taken.kept -= bytes;
        taken.reservation.shrink(bytes as usize);
    }
}

/// DataFusion's pool, for which kept pages make room. It wakes plans that wait when memory goes back to it.
#[derive(Debug)]
pub struct GivingWay {
    pub pool: Arc<dyn DataFusionPool>,
    pub memory: Arc<JoinMemory>,
}

impl fmt::Display for GivingWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl DataFusionPool for GivingWay {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
        self.memory.wake();
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionResult<()> {
        self.memory.giving_way(|| self.pool.try_grow(reservation, additional))
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

/// The memory of one plan's joins.
#[derive(Debug)]
pub struct PlanMemory {
    all: Arc<JoinMemory>,
    state: Mutex<PlanState>,
}

#[derive(Debug, Default)]
struct PlanState {
    /// The floors of all joins of the plan.
    floors: u64,
    /// Joins that have begun and not ended.
    running: usize,
    used: u64,
    /// Floors of joins that have not begun, or may begin again.
    waiting: u64,
    /// The unused part of the floors of joins that have begun.
    unclaimed: u64,
    /// Bytes taken of the limit.
    held: u64,
}

impl PlanState {
    fn needed(&self) -> u64 {
        self.used + self.waiting + self.unclaimed
    }
}

impl PlanMemory {
    /// The memory of joins that together need at least `floors` bytes.
    pub fn new(all: Arc<JoinMemory>, floors: u64) -> Arc<Self> {
        Arc::new(Self { all, state: Mutex::new(PlanState { floors, ..PlanState::default() }) })
    }

    /// Sets the bytes that the joins need at least, once the plan is known.
    pub fn set_floors(&self, bytes: u64) {
        lock(&self.state).floors = bytes;
    }

    /// The limit of all joins of all plans.
    pub fn limit(&self) -> u64 {
        self.all.limit()
    }

    /// The store from which the joins' arrays get their memory.
    pub fn pages(&self) -> PageStore {
        self.all.pages.clone()
    }

    /// A pool for a join that begins now and needs `floor` bytes at once.
    ///
    /// The first join of a plan waits until other plans have left room for the floors of all its joins. The plan holds
    /// nothing of the limit meanwhile, and the plans that hold some can end without more. The wait ends with them, or
    /// with the query when that is cancelled.
    /// [`JoinError::BudgetTooSmall`] if there is no room and the join may not wait (`waits`), no join runs, or the
    /// floors exceed the limit.
    pub async fn begin(self: &Arc<Self>, floor: u64, waits: bool) -> Result<(Arc<MemoryPool>, Begun), JoinError> {
        poll_fn(|context| {
            for is_waiting in [false, true] {
                // Registered before the second attempt: memory that is given back after it wakes this task.
                if is_waiting {
                    lock(&self.all.taken).waiting.push(context.waker().clone());
                }
                let was_busy = self.all.used() > 0;
                let begun = self.try_begin(floor);
                let is_worth_waiting = waits && (was_busy || self.all.used() > 0) && self.needed(floor) <= self.limit();
                if begun.is_ok() || !is_worth_waiting {
                    return Poll::Ready(begun);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the floors of all joins if there is room for them, for a join that begins later. They are kept until then at least.
    pub fn reserve(self: &Arc<Self>) -> Option<Begun> {
        self.try_begin(0).ok().map(|(_, begun)| begun)
    }

    /// The bytes that are taken when the first join begins.
    fn needed(&self, floor: u64) -> u64 {
        lock(&self.state).floors.max(floor)
    }

    fn try_begin(self: &Arc<Self>, floor: u64) -> Result<(Arc<MemoryPool>, Begun), JoinError> {
        let mut state = lock(&self.state);
        if state.running == 0 {
            let needed_bytes = state.floors.max(floor);
            if !self.all.try_take(needed_bytes, true) {
                return Err(JoinError::BudgetTooSmall { free_bytes: self.all.free(), needed_bytes });
            }
            state.held += needed_bytes;
            state.waiting = needed_bytes;
        }
        state.running += 1;
        // The join gets no more than this, whatever else is free. With a greater limit it would keep room that does not
        // exist.
        let limit = without_floors(self.limit()).max(floor);
        let floor = floor.min(state.waiting);
        state.waiting -= floor;
        state.unclaimed += floor;
        let share = Arc::new(Share { plan: Arc::clone(self), claim: Mutex::new(Claim { floor, used: 0 }) });
        let pool = MemoryPool::below(Box::new(FromPlan(Arc::clone(&share))), limit);
        Ok((pool, Begun(share)))
    }

    /// Returns the bytes that are not needed.
    fn settle(&self, state: &mut PlanState) {
        let needed = state.needed();
        if state.held > needed {
            self.all.give_back(state.held - needed);
            state.held = needed;
        }
    }
}

/// The part of a plan's memory that one of its joins has.
#[derive(Debug)]
struct Share {
    plan: Arc<PlanMemory>,
    /// Locked after the plan's state.
    claim: Mutex<Claim>,
}

#[derive(Debug)]
struct Claim {
    /// No other join takes these bytes before this one ends.
    floor: u64,
    used: u64,
}

impl Claim {
    fn unclaimed(&self) -> u64 {
        self.floor.saturating_sub(self.used)
    }
}

/// A join that has begun; dropped when it ends.
#[derive(Debug)]
pub struct Begun(Arc<Share>);

impl Drop for Begun {
    /// A join that ends while others of its plan run may begin again, as in a recursive query. Its floor therefore stays with the plan.
    fn drop(&mut self) {
        let Share { plan, claim } = &*self.0;
        let (mut state, mut claim) = (lock(&plan.state), lock(claim));
        let unclaimed = claim.unclaimed();
        claim.floor = 0;
        state.unclaimed -= unclaimed;
        state.running -= 1;
        state.waiting = if state.running > 0 { state.waiting + unclaimed } else { 0 };
        plan.settle(&mut state);
    }
}

/// A join's share as its pool sees it.
struct FromPlan(Arc<Share>);

impl Above for FromPlan {
    fn try_take(&self, bytes: u64) -> bool {
        let Share { plan, claim } = &*self.0;
        let (mut state, mut claim) = (lock(&plan.state), lock(claim));
        let claimed = claim.unclaimed().min(bytes);
        let missing = state.needed().saturating_add(bytes - claimed).saturating_sub(state.held);
        if missing > 0 && !plan.all.try_take(missing, false) {
            return false;
        }
        state.held += missing;
        state.used += bytes;
        state.unclaimed -= claimed;
        claim.used += bytes;
        true
    }

    fn give_back(&self, bytes: u64) {
        let Share { plan, claim } = &*self.0;
        let (mut state, mut claim) = (lock(&plan.state), lock(claim));
        let unclaimed = claim.unclaimed();
        claim.used -= bytes;
        state.used -= bytes;
        state.unclaimed += claim.unclaimed() - unclaimed;
        plan.settle(&mut state);
    }
}

/// The bytes that a join split into this many shares takes at its start.
pub fn floor_bytes(shares: usize) -> u64 {
    BUDGET_BYTES_MIN + if shares > 1 { shares as u64 * SHARE_BYTES_MIN } else { 0 }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
