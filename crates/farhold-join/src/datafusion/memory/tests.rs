use super::*;
use crate::memory::Reservation;
use crate::pages::Pages;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use futures::FutureExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Wake;

const MIB: u64 = 1 << 20;

/// A join that begins, if it need not wait.
fn begin(plan: &Arc<PlanMemory>) -> Option<Result<(Arc<MemoryPool>, Begun), JoinError>> {
    plan.begin(MIB, true).now_or_never()
}

fn begun(plan: &Arc<PlanMemory>) -> (Arc<MemoryPool>, Begun) {
    begin(plan).expect("there is room").unwrap()
}

#[test]
fn joins_begin_whatever_others_hold_and_one_limit_holds_for_all() {
    let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
    let memory = JoinMemory::new(&pool, None);
    let plan = PlanMemory::new(Arc::clone(&memory), 2 * MIB);
    let (first, first_begun) = begun(&plan);
    let mut one = Reservation::new(&first, MIB).unwrap();
    assert_eq!(memory.used(), 2 * MIB, "the floor of the second is kept for it");
    assert!(!one.try_grow(14 * MIB), "an eighth is for floors");
    assert_eq!(first.limit(), 14 * MIB, "and the join knows");
    assert!(one.try_grow(13 * MIB) && pool.reserved() as u64 == 14 * MIB);
    let (second, second_begun) = begun(&plan);
    let mut two = Reservation::new(&second, MIB).unwrap();
    assert!(two.try_grow(MIB) && !two.try_grow(1));
    let other = PlanMemory::new(Arc::clone(&memory), 2 * MIB);
    let (_, other_begun) = begun(&other);
    let third = PlanMemory::new(Arc::clone(&memory), MIB);
    assert!(begin(&third).is_none(), "it waits");
    let refused = third.begin(MIB, false).now_or_never();
    assert!(matches!(refused, Some(Err(JoinError::BudgetTooSmall { .. }))), "it does not wait");
    let too_big = PlanMemory::new(Arc::clone(&memory), 17 * MIB);
    assert!(matches!(begin(&too_big), Some(Err(JoinError::BudgetTooSmall { .. }))), "no wait would help");
    drop((one, two));
    drop((first_begun, second_begun, other_begun));
    assert_eq!((memory.used(), pool.reserved()), (0, 0));
    pool_is_full_without_joins(&pool, &third);
    drop(begun(&third));
    assert_eq!((memory.used(), pool.reserved()), (0, 0));
}

#[test]
fn a_floor_is_there_from_the_begin_of_its_join() {
    let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
    let memory = JoinMemory::new(&pool, None);
    let plan = PlanMemory::new(Arc::clone(&memory), 2 * MIB);
    let (first, first_begun) = begun(&plan);
    let mut one = Reservation::new(&first, MIB).unwrap();
    assert!(one.try_grow(13 * MIB));
    let (second, second_begun) = begun(&plan);
    assert!(!one.try_grow(1), "the floor is promised");
    one.shrink(MIB);
    assert!(one.try_grow(MIB) && !one.try_grow(1), "and stays so");
    let two = Reservation::new(&second, MIB).unwrap();
    drop((one, two));
    assert_eq!(memory.used(), 2 * MIB, "until they end");
    drop((first_begun, second_begun));
    assert_eq!((memory.used(), pool.reserved()), (0, 0));
}

#[test]
fn a_join_that_begins_again_leaves_others_their_floors() {
    let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
    let memory = JoinMemory::new(&pool, None);
    let plan = PlanMemory::new(Arc::clone(&memory), 3 * MIB);
    let (first, first_begun) = begun(&plan);
    let mut one = Reservation::new(&first, MIB).unwrap();
    for _ in 0..3 {
        let (second, _begun) = begun(&plan);
        let mut two = Reservation::new(&second, MIB).unwrap();
        assert!(two.try_grow(2 * MIB));
    }
    assert!(one.try_grow(12 * MIB) && !one.try_grow(1));
    let (second, second_begun) = begun(&plan);
    let two = Reservation::new(&second, MIB).unwrap();
    let (third, third_begun) = begun(&plan);
    let three = Reservation::new(&third, MIB).unwrap();
    drop((one, two, three));
    drop((first_begun, second_begun, third_begun));
    assert_eq!((memory.used(), pool.reserved()), (0, 0));
}

fn pool_is_full_without_joins(pool: &Arc<dyn DataFusionPool>, plan: &Arc<PlanMemory>) {
    let sort = MemoryConsumer::new("sort").register(pool);
    sort.try_grow(16 << 20).unwrap();
    assert!(matches!(begin(plan), Some(Err(JoinError::BudgetTooSmall { .. }))), "there is no join to wait for");
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_plan_that_waits_is_woken_by_what_is_given_back() {
    let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
    let memory = JoinMemory::new(&pool, None);
    let (first, second) = (PlanMemory::new(Arc::clone(&memory), 9 * MIB), PlanMemory::new(memory, 9 * MIB));
    let holder = begun(&first);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = Box::pin(second.begin(MIB, true));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(waits.as_mut().poll(&mut context).is_pending() && !woken.0.load(Relaxed));
    drop(holder);
    assert!(woken.0.load(Relaxed), "it is woken");
    assert!(waits.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_plan_that_waits_is_woken_by_what_others_give_back() {
    let inner: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(16 << 20));
    let memory = JoinMemory::new(&inner, None);
    let pool: Arc<dyn DataFusionPool> = Arc::new(GivingWay { pool: inner, memory: Arc::clone(&memory) });
    let sort = MemoryConsumer::new("sort").register(&pool);
    sort.try_grow(8 << 20).unwrap();
    let (first, second) = (PlanMemory::new(Arc::clone(&memory), MIB), PlanMemory::new(memory, 9 * MIB));
    let _holder = begun(&first);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = Box::pin(second.begin(MIB, true));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(waits.as_mut().poll(&mut context).is_pending() && !woken.0.load(Relaxed));
    drop(sort);
    assert!(woken.0.load(Relaxed), "it is woken");
    assert!(waits.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_full_pool_of_the_database_is_a_full_pool_of_the_joins() {
    let pool: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(4 << 20));
    let sort = MemoryConsumer::new("sort").register(&pool);
    sort.try_grow(2 << 20).unwrap();
    let plan = PlanMemory::new(JoinMemory::new(&pool, None), MIB);
    let (joins, _begun) = begun(&plan);
    let mut join = Reservation::new(&joins, MIB).unwrap();
    assert!(join.try_grow(2 * MIB) && !join.try_grow(1));
    drop(sort);
    assert!(join.try_grow(MIB));
}

/// Keeps pages of `bytes` bytes that have been used.
fn keep(memory: &Arc<JoinMemory>, bytes: u64) {
    drop(Pages::<u64>::stale(bytes as usize / 8, &memory.pages).unwrap());
}

#[test]
fn pages_are_kept_inside_the_limit_and_give_way() {
    let inner: Arc<dyn DataFusionPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
    let memory = JoinMemory::new(&inner, None);
    let pool: Arc<dyn DataFusionPool> = Arc::new(GivingWay { pool: Arc::clone(&inner), memory: Arc::clone(&memory) });
    keep(&memory, 10 * MIB);
    assert_eq!(memory.kept(), 0, "more than an eighth");
    keep(&memory, 8 * MIB);
    assert_eq!((memory.kept(), memory.used(), inner.reserved() as u64), (8 * MIB, 0, 8 * MIB));
    drop(Pages::<u64>::stale((6 << 20) / 8, &memory.pages).unwrap());
    assert_eq!((memory.kept(), inner.reserved() as u64), (8 * MIB, 8 * MIB), "used again, and back");

    let sort = MemoryConsumer::new("sort").register(&pool);
    sort.try_grow(56 << 20).unwrap();
    assert_eq!(memory.kept(), 8 * MIB, "there is room for both");
    sort.try_grow(1).unwrap();
    assert_eq!((memory.kept(), inner.reserved()), (0, (56 << 20) + 1));
    keep(&memory, 8 * MIB);
    assert_eq!(memory.kept(), 0, "no room");
    assert!(sort.try_grow(8 << 20).is_err());
    drop(sort);

    keep(&memory, 8 * MIB);
    let plan = PlanMemory::new(Arc::clone(&memory), MIB);
    let (joins, begun) = begun(&plan);
    let mut join = Reservation::new(&joins, MIB).unwrap();
    assert!(join.try_grow(48 * MIB) && memory.kept() == 8 * MIB);
    assert!(join.try_grow(8 * MIB) && memory.kept() == 0, "a join has what it would have if nothing had been kept");
    assert!(!join.try_grow(1));
    keep(&memory, 4 * MIB);
    assert_eq!(memory.kept(), 0, "the eighth is for floors");
    drop((join, begun));
    keep(&memory, 4 * MIB);
    drop((memory, plan, joins, pool));
    assert_eq!(inner.reserved(), 0, "what is kept ends with the joins' memory");
}
