//! Tasks, timers and wakers, in real and in virtual time.

use super::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Time stamps that one thread of a process leaves for another may come from either thread's executor.
#[test]
fn all_executors_of_a_process_go_by_one_clock() {
    let first = Executor::real(1).handle();
    while first.now_ns() < 1_000_000 {
        std::hint::spin_loop();
    }
    let before_ns = first.now_ns();
    let of_thread = || Executor::real(2).handle().now_ns();
    let on_another = std::thread::scope(|scope| scope.spawn(of_thread).join().expect("a time"));
    let standalone_ns = Handle::standalone(3).now_ns();
    assert!(before_ns <= on_another && on_another <= standalone_ns && standalone_ns <= first.now_ns());
}

/// Two threads on one processor that wait for each other by turns: neither waits until the other's time slice is over.
#[test]
#[cfg_attr(miri, ignore = "processors")]
fn who_waits_lets_others_have_the_processor() {
    const ROUNDS: u64 = 200;
    let processor = crate::processor::usable()[0];
    let (turn, waits) = (AtomicU64::new(0), AtomicU64::new(0));
    let waits_of = |me: u64, sleeps: bool| {
        crate::processor::bind_this_thread(processor);
        let executor = Executor::real(me);
        let handle = executor.handle();
        executor.run(async {
            for round in 0..ROUNDS {
                while turn.load(Ordering::SeqCst) != 2 * round + me {
                    waits.fetch_add(1, Ordering::Relaxed);
                    if sleeps { handle.sleep_ns(1000).await } else { handle.yield_now().await }
                }
                turn.fetch_add(1, Ordering::SeqCst);
            }
        });
    };
    for (sleeps, waits_max) in [(false, 20_000), (true, 500)] {
        turn.store(0, Ordering::SeqCst);
        waits.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| waits_of(0, sleeps));
            scope.spawn(|| waits_of(1, sleeps));
        });
        let each = waits.load(Ordering::Relaxed) / (2 * ROUNDS);
        assert!(each < waits_max, "{each} waits for each turn");
    }
}

/// Two tasks that take turns by hand: everything spawned runs, and results arrive.
#[test]
fn tasks_run_and_join() {
    for executor in [Executor::real(1), Executor::virtual_time(1)] {
        let handle = executor.handle();
        let sum = executor.run(async {
            let tasks: Vec<_> = (0..100u64)
                .map(|number| {
                    let inner = handle.clone();
                    handle.spawn(async move {
                        for _ in 0..number % 7 {
                            inner.yield_now().await;
                        }
                        number
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await;
            }
            sum
        });
        assert_eq!(sum, 4950);
    }
}

/// However often a future is woken, it is in the queue once.
#[test]
fn wakes_do_not_pile_up() {
    let executor = Executor::real(1);
    executor.run(async {
        for _ in 0..100 {
            let mut polled = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        assert!(executor.core.ready.borrow().len() <= 1);
    });
}

#[test]
fn virtual_time_jumps_and_is_ordered() {
    let executor = Executor::virtual_time(3);
    let handle = executor.handle();
    let order = Rc::new(RefCell::new(Vec::new()));
    executor.run(async {
        let hour_ns = 3_600_000_000_000;
        for number in [3u64, 1, 2] {
            let (order, inner) = (order.clone(), handle.clone());
            drop(handle.spawn(async move {
                inner.sleep_ns(number * hour_ns).await;
                order.borrow_mut().push((number, inner.now_ns()));
            }));
        }
        handle.sleep_ns(4 * hour_ns).await;
        assert_eq!(*order.borrow(), [1, 2, 3].map(|number| (number, number * hour_ns)));
    });
}

/// In virtual time the order of ready tasks is the seed's; another seed gives another order.
#[test]
fn a_seed_is_a_schedule() {
    let order = |seed| {
        let executor = Executor::virtual_time(seed);
        let handle = executor.handle();
        let order = Rc::new(RefCell::new(Vec::new()));
        executor.run(async {
            for number in 0..20 {
                let (order, inner) = (order.clone(), handle.clone());
                drop(handle.spawn(async move {
                    inner.yield_now().await;
                    order.borrow_mut().push(number);
                }));
            }
            handle.sleep_ns(1_000).await;
        });
        Rc::into_inner(order).map(RefCell::into_inner)
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}

/// A waker works from another thread, after its task is gone, and after its executor is gone.
#[test]
fn wakers_go_anywhere() {
    let executor = Executor::real(1);
    let mut kept = None;
    executor.run(async {
        let mut thread = None;
        poll_once_woken(|waker| {
            kept = Some(waker.clone());
            thread = Some(std::thread::spawn(move || waker.wake()));
        })
        .await;
        thread.unwrap().join().unwrap();
    });
    let kept = kept.unwrap();
    kept.wake_by_ref();
    assert_eq!(executor.run(async { 5 }), 5, "a stale wake does no harm");
    drop(executor);
    kept.wake();
}

async fn poll_once_woken(mut give: impl FnMut(Waker)) {
    let mut given = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        give(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

#[test]
#[should_panic(expected = "nothing will ever wake")]
fn waiting_for_nothing_is_a_bug() {
    Executor::virtual_time(1).run(std::future::pending::<()>());
}

/// A foreign executor: polls its two tasks when they have been woken, and tells whether one was.
struct Foreign(AtomicBool);

impl std::task::Wake for Foreign {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A task panics beside others of a foreign executor.
#[test]
fn a_task_that_panics_ends_alone() {
    let handle = Handle::standalone(1);
    let mut driver = Box::pin(handle.drive());
    let mut cx = Context::from_waker(Waker::noop());
    let own = handle.clone();
    let going = handle.spawn(async move {
        own.yield_now().await;
        7
    });
    let mut failing = Box::pin(handle.spawn(async { panic!("a task of a test") }));
    let value = loop {
        assert!(driver.as_mut().poll(&mut cx).is_pending());
        if let Some(value) = going.try_take() {
            break value;
        }
    };
    let mut look = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| failing.as_mut().poll(&mut cx)));
    assert!(look().is_err(), "who waits for it learns of it");
    assert_eq!((value, handle.tasks()), (7, 0));
}

/// Numbers come again after 2^24 executors.
#[test]
fn a_living_executor_keeps_its_number() {
    let first = Executor::real(1);
    let id = first.core.id;
    scheduler::EXECUTOR_COUNT.store(id, Ordering::Relaxed);
    let next = Executor::real(2);
    assert_ne!(next.core.id, id);
    drop(next);
    let woken = first.run(async {
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        std::thread::spawn(move || waker.wake()).join().is_ok()
    });
    assert!(woken);
    assert!(scheduler::registry().lock().expect("the registry").contains_key(&id));
}

/// Under a foreign executor waits end, and spawned tasks run, as often as it is woken, also by other threads.
#[test]
fn standalone_needs_no_executor() {
    let handle = Handle::standalone(1);
    let mut driver = Box::pin(handle.drive());
    let foreign = Arc::new(Foreign(AtomicBool::new(false)));
    let waker = Waker::from(foreign.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(driver.as_mut().poll(&mut cx).is_pending() && !foreign.0.load(Ordering::SeqCst), "nothing to do");

    let (inner, (told, mut hears)) = (handle.clone(), tokens());
    let task = handle.spawn(async move {
        inner.yield_now().await;
        inner.sleep_ns(10).await;
        std::future::poll_fn(|cx| hears.poll(cx)).await;
        3
    });
    let mut run = || {
        let mut polls = 0;
        while foreign.0.swap(false, Ordering::SeqCst) {
            assert!(driver.as_mut().poll(&mut cx).is_pending());
            polls += 1;
        }
        polls
    };
    assert!(run() > 1, "the spawn woke the driver, and the waits did");
    assert!(task.try_take().is_none());
    std::thread::spawn(move || told.tell()).join().expect("told");
    assert!(run() > 0, "another thread woke it");
    assert_eq!(task.try_take(), Some(3));

    let dropped = Rc::new(());
    let held = (dropped.clone(), handle.clone());
    drop(handle.spawn(async move {
        std::future::pending::<()>().await;
        drop(held);
    }));
    drop(driver);
    assert_eq!(Rc::strong_count(&dropped), 1, "with the driver its tasks go");
}

/// One thread sends another task a value, once.
fn tokens() -> (Token, Token) {
    let shared = Arc::new((AtomicBool::new(false), Mutex::new(None::<Waker>)));
    (Token(shared.clone()), Token(shared))
}

struct Token(Arc<(AtomicBool, Mutex<Option<Waker>>)>);

impl Token {
    fn tell(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.lock().expect("a waker").take().expect("somebody waits").wake();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        *self.0.1.lock().expect("a waker") = Some(cx.waker().clone());
        if self.0.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A paused machine runs nothing, and misses nothing.
#[test]
fn a_machine_stands_still() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let machine = handle.of_machine(3, 0);
    let (steps, inner) = (Rc::new(Cell::new(0)), machine.clone());
    let counted = steps.clone();
    executor.run(async {
        drop(machine.spawn(async move {
            loop {
                inner.sleep_ns(1_000).await;
                counted.set(counted.get() + 1);
            }
        }));
        handle.sleep_ns(10_500).await;
        assert_eq!(steps.get(), 10);
        handle.pause_machine(3, handle.now_ns() + 50_000);
        handle.sleep_ns(49_000).await;
        assert_eq!(steps.get(), 10);
        handle.sleep_ns(10_000).await;
        assert!((18..=20).contains(&steps.get()), "{}", steps.get());
    });
}

/// A machine's clock runs at its own speed, and its sleeps follow it.
#[test]
fn clocks_drift() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    executor.run(async {
        for drift_ppm in [100_000, -200_000, 0, 3] {
            let (machine, began_ns) = (handle.of_machine(1, drift_ppm), handle.now_ns());
            let began_there_ns = machine.now_ns();
            machine.sleep_ns(1_000_000).await;
            assert!((1_000_000..1_000_003).contains(&(machine.now_ns() - began_there_ns)), "{drift_ppm}");
            let took = (handle.now_ns() - began_ns) as f64 * (1.0 + f64::from(drift_ppm) / 1e6);
            assert!((took - 1e6).abs() < 4.0, "{drift_ppm}: {took}");
        }
    });
}

/// While a machine is paused its clock may stop: its sleeps take that much longer, but its time of day does not.
#[test]
fn a_clock_stands_while_its_machine_does() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let (machine, other) = (handle.of_machine(3, 0), handle.of_machine(4, 0));
    executor.run(async {
        let (before_ns, day_ns) = (machine.now_ns(), machine.wall_ns());
        let (ended_ns, inner) = (Rc::new(Cell::new(0)), machine.clone());
        let ended = ended_ns.clone();
        drop(machine.spawn(async move {
            inner.sleep_ns(10_000).await;
            ended.set(inner.true_now_ns());
        }));
        handle.sleep_ns(4_000).await;
        handle.pause_machine(3, handle.now_ns() + 50_000);
        machine.stand_clock_ns(50_000);
        handle.sleep_ns(100_000).await;
        assert!((60_000..60_010).contains(&ended_ns.get()), "{}", ended_ns.get());
        assert_eq!((machine.now_ns() - before_ns, machine.wall_ns() - day_ns), (54_000, 104_000));
        assert_eq!(other.now_ns(), handle.now_ns());
        machine.jump_wall_ns(-1_000_000);
        assert_eq!(other.wall_ns() - machine.wall_ns(), 1_000_000);
        assert_eq!(machine.coarse_wall_ns(), machine.wall_ns());
    });
}

/// A dropped executor drops its tasks, also those that wait, and they may use it while they go.
#[test]
fn tasks_go_with_their_executor() {
    struct Spawns(Handle, Rc<Cell<u32>>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
            drop(self.0.spawn(async {}));
        }
    }
    let executor = Executor::real(1);
    let (handle, count) = (executor.handle(), Rc::new(Cell::new(0)));
    for _ in 0..3 {
        let guard = Spawns(handle.clone(), count.clone());
        drop(handle.spawn(async move {
            guard.0.sleep_ns(u64::MAX).await;
        }));
    }
    executor.run(handle.yield_now());
    drop(executor);
    assert_eq!(count.get(), 3);
}
