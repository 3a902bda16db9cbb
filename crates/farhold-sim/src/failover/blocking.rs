//! Code that waits for a disk, or is suspended between two of its steps, in virtual time. It runs on its own stack, and never at the same time as the
//! simulation.
//!
//! ```text
//!   simulation  ── work ──► · · · · · · · · ·  time passes  ── go on ──► · · · · · · · · · ·
//!   its stack               runs ── so long ──►  · · · · · · · · · · · · runs ── done ──►
//! ```
//!
//! Both run on one thread, so the seed determines the run. In return, no task of the simulation may wait for a lock
//! that the code holds while it waits for its disk: that wait would never end.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use farhold_fabric::Handle;
use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;

/// The longest suspension.
const ASIDE_NS_MAX: u64 = 200_000;

/// The value that blocking code receives when it continues.
enum Order {
    GoOn,
    /// The simulation has ended.
    End,
}

/// How blocking code returns to the simulation: with a number of nanoseconds to wait.
type Way = Yielder<Order, u64>;

thread_local! {
    /// The running blocking code's way back to the simulation.
    static WAY: Cell<Option<NonNull<Way>>> = const { Cell::new(None) };
    /// Decides when blocking code is [suspended](Aside).
    static ASIDE: Cell<u64> = const { Cell::new(1) };
    /// Stacks of code that has ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Lets `ns` of virtual time pass, in blocking code. In the simulation itself no time passes.
///
/// # Errors
/// The simulation has ended, and the code must end too.
pub(super) fn wait_ns(ns: u64) -> io::Result<()> {
    let Some(way) = WAY.take() else { return Ok(()) };
    // SAFETY: `WAY` has it only while the code runs to which it belongs, on whose stack it lies. `run` sets it when the
    // code begins. It is taken before the code is suspended and set when that goes on. A guard takes it when the code
    // ends.
    let order = unsafe { way.as_ref() }.suspend(ns);
    WAY.set(Some(way));
    match order {
        Order::GoOn => Ok(()),
        Order::End => Err(io::Error::other("the simulation has ended")),
    }
}

/// While this value exists, blocking code of this thread is suspended at random where other threads could interfere with it; tasks of the simulation run
/// meanwhile. The code must hold no lock there that one of them waits for.
pub(super) struct Aside;

impl Aside {
    /// As the seed determines.
    pub fn begin(seed: u64) -> Self {
        ASIDE.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        farhold_planted::watch(Some(step_aside));
        Self
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        farhold_planted::watch(None);
    }
}

/// Not in the simulation itself.
fn step_aside() {
    let Some(way) = WAY.take() else { return };
    WAY.set(Some(way));
    let mut random = ASIDE.get();
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    ASIDE.set(random);
    if random.is_multiple_of(2) {
        // When this guard ends, the code continues without suspensions.
        let _ = wait_ns((random >> 32) % ASIDE_NS_MAX);
    }
}

/// Blocking code that has begun. Its drop lets the code run to its end.
struct Running<T>(Option<Coroutine<Order, u64, T>>);

impl<T: 'static> Running<T> {
    fn begin(work: impl FnOnce() -> T + 'static) -> Self {
        /// The code ends, also by a panic.
        struct Ending;
        impl Drop for Ending {
            fn drop(&mut self) {
                WAY.set(None);
            }
        }
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| DefaultStack::new(2 << 20).expect("a stack"));
        Self(Some(Coroutine::with_stack(stack, |way: &Way, _| {
            WAY.set(Some(NonNull::from(way)));
            let _ending = Ending;
            work()
        })))
    }

    fn resume(&mut self, order: Order) -> CoroutineResult<u64, T> {
        self.0.as_mut().expect("it is there until it is dropped").resume(order)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        let Some(mut code) = self.0.take() else { return };
        while !code.done() {
            let _ = code.resume(Order::End);
        }
        // A thread that ends does not need it.
        let _ = STACKS.try_with(|stacks| stacks.borrow_mut().push(code.into_stack()));
    }
}

/// Runs blocking code; its waits take time of `handle`.
///
/// # Panics
/// If the code does.
pub(super) async fn run<T: 'static>(handle: &Handle, work: impl FnOnce() -> T + 'static) -> T {
    let mut running = Running::begin(work);
    loop {
        match running.resume(Order::GoOn) {
            CoroutineResult::Yield(ns) => handle.sleep_ns(ns).await,
            CoroutineResult::Return(done) => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::Executor;
    use std::sync::{Arc, Mutex};

    #[test]
    fn blocking_code_takes_virtual_time() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks = [300, 200].map(|ns| {
            let (handle, order) = (handle.clone(), order.clone());
            executor.handle().spawn(async move {
                let work = move || {
                    for _ in 0..2 {
                        wait_ns(ns).expect("the simulation goes on");
                        order.lock().expect("one at a time").push(ns);
                    }
                };
                run(&handle, work).await;
            })
        });
        executor.run(async {
            for task in tasks {
                task.await;
            }
        });
        assert_eq!((handle.now_ns(), &order.lock().expect("at rest")[..]), (600, &[200, 300, 200, 300][..]));
    }

    /// A run ends while a journal waits for its disk: the code receives the end, and ends too.
    #[test]
    fn blocking_code_comes_to_its_end_with_the_simulation() {
        let executor = Executor::virtual_time(1);
        let (handle, heard) = (executor.handle(), Arc::new(Mutex::new(None)));
        let hears = heard.clone();
        drop(executor.handle().spawn(async move {
            let work = move || {
                let has_ended = wait_ns(1_000_000).is_err();
                *hears.lock().expect("one at a time") = Some(has_ended);
            };
            run(&handle, work).await;
        }));
        let clock = executor.handle();
        executor.run(async { clock.sleep_ns(10).await });
        drop(executor);
        assert_eq!(*heard.lock().expect("at rest"), Some(true));
    }
}
