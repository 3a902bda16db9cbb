//! Counters and latches under loom: every interleaving of their instructions, on words that loom schedules. The protocols are
//! those of `sync/`, by their own [`Words`].
//!
//! Planted defects show that the model notices errors: words with a compare-and-swap of two steps, and words with such an
//! addition.
#![cfg(not(miri))]

use farhold_fabric::sync::{Counter, Holder, Latch, LatchError, WordOp, Words, counter, latch};
use farhold_fabric::{FabricError, FarPtr, NodeId, RegionId};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use std::future::Future;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll, Waker};

const WORDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    TornSwap,
    TornAdd,
}

/// Words on cache lines: offset 64 n is word n.
#[derive(Clone)]
struct Model {
    words: Arc<[AtomicU64; WORDS]>,
    planted: Planted,
}

impl Model {
    fn new(planted: Planted) -> Self {
        Self { words: Arc::new(std::array::from_fn(|_| AtomicU64::new(0))), planted }
    }
}

impl Words for Model {
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        let word = &self.words[at.offset() as usize / 64];
        Ok(match op {
            WordOp::Load => word.load(SeqCst),
            WordOp::Add(operand) if self.planted == Planted::TornAdd => {
                let old = word.load(SeqCst);
                word.store(old + operand, SeqCst);
                old
            }
            WordOp::CompareSwap { expected, new } if self.planted == Planted::TornSwap => {
                let old = word.load(SeqCst);
                if old == expected {
                    word.store(new, SeqCst);
                }
                old
            }
            WordOp::Add(operand) => word.fetch_add(operand, SeqCst),
            WordOp::CompareSwap { expected, new } => {
                word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
            }
            WordOp::Swap(new) => word.swap(new, SeqCst),
            WordOp::Clear => word.swap(0, SeqCst),
        })
    }

    async fn pause(&self) {
        loom::thread::yield_now();
    }
}

/// Every instruction of the model is done at once, so its futures are ready when polled.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the model never waits"),
    }
}

fn at(word: u64) -> FarPtr {
    FarPtr::new(NodeId(0), RegionId(0), word * 64)
}

fn holder(thread: u16) -> Holder {
    Holder { configuration: 1, node: NodeId(0), thread }
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Two threads, each a number or two: none twice.
fn numbers(planted: Planted, form: counter::Form) {
    check(3, move || {
        let model = Model::new(planted);
        let counter = Counter::new(at(0), form);
        let take = move |model: Model, thread: u32| {
            let mut mine = counter.numbers(thread);
            [(); 2].map(|()| now(mine.next(&model)).expect("the model has no errors"))
        };
        let other = {
            let model = model.clone();
            loom::thread::spawn(move || take(model, 1))
        };
        let mine = take(model.clone(), 0);
        let theirs = other.join().expect("a thread");
        assert!(mine.iter().all(|number| !theirs.contains(number)), "{mine:?} {theirs:?}");
        assert!(mine[0] < mine[1] && theirs[0] < theirs[1]);
    });
}

/// Threads that each hold the latch once, and count plainly while they do.
fn exclusion(planted: Planted, form: latch::Form) {
    const THREADS: u16 = 2;
    check(3, move || {
        let model = Model::new(planted);
        let latch = Latch::new(at(0), form);
        let count = Arc::new(AtomicU64::new(0));
        let hold = move |model: Model, count: Arc<AtomicU64>, thread: u16| {
            let held = now(latch.acquire(&model, holder(thread), u64::MAX)).expect("patience");
            // Not atomic: two at a time would lose one.
            count.store(count.load(Relaxed) + 1, Relaxed);
            now(latch.release(&model, held)).expect("it is ours");
        };
        let others: Vec<_> = (1..THREADS)
            .map(|thread| {
                let (model, count) = (model.clone(), count.clone());
                loom::thread::spawn(move || hold(model, count, thread))
            })
            .collect();
        hold(model.clone(), count.clone(), 0);
        for other in others {
            other.join().expect("a thread");
        }
        assert_eq!(count.load(Relaxed), THREADS.into(), "two held the latch at a time");
        assert_eq!(now(latch.holder(&model)), Ok(None));
    });
}

/// A holder died. One thread frees it while another waits: that one gets the latch, and the dead one's release is refused.
fn freeing(form: latch::Form) {
    check(3, move || {
        let model = Model::new(Planted::Nothing);
        let latch = Latch::new(at(0), form);
        let dead = now(latch.acquire(&model, holder(9), 1)).expect("free");
        let freer = {
            let model = model.clone();
            loom::thread::spawn(move || now(latch.free_dead(&model, |who| who == holder(9))))
        };
        let held = now(latch.acquire(&model, holder(1), u64::MAX)).expect("patience");
        assert_eq!(freer.join().expect("a thread"), Ok(1));
        assert_eq!(now(latch.release(&model, dead)), Err(LatchError::Lost));
        assert_eq!(now(latch.holder(&model)), Ok(Some(holder(1))));
        now(latch.release(&model, held)).expect("it is ours");
    });
}

const FAIR: latch::Form = latch::Form::Fair(2);

#[test]
fn no_number_is_given_twice() {
    for form in [counter::Form::Single, counter::Form::Batched(2), counter::Form::Striped(2)] {
        numbers(Planted::Nothing, form);
    }
}

#[test]
fn one_holds_a_latch_at_a_time() {
    exclusion(Planted::Nothing, latch::Form::Plain);
    exclusion(Planted::Nothing, FAIR);
}

#[test]
fn a_dead_holder_is_freed_once() {
    freeing(latch::Form::Plain);
    freeing(FAIR);
}

#[test]
fn planted_defects_are_found() {
    let found = |run: fn()| std::panic::catch_unwind(run).is_err();
    assert!(found(|| numbers(Planted::TornAdd, counter::Form::Single)));
    assert!(found(|| numbers(Planted::TornAdd, counter::Form::Batched(2))));
    assert!(found(|| exclusion(Planted::TornSwap, latch::Form::Plain)));
    assert!(found(|| exclusion(Planted::TornSwap, FAIR)));
}
