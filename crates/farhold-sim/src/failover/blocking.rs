//! Code that waits for a disk, in virtual time: it runs on a thread of its own, and never beside the simulation.
//!
//! ```text
//!   simulation  ── work ──► · · · · · · · · ·  time passes  ── go on ──► · · · · · · · · · ·
//!   thread                  runs ── so long ──►  · · · · · · · · · · · · runs ── done ──►
//! ```
//!
//! At any moment one of the two runs and the other waits for it, so a run is what its seed says, as if there were one thread. In return
//! nobody in the simulation may wait for a lock that the thread holds while it waits for its disk: that would be for ever.

use farhold_fabric::Handle;
use farhold_txn::{plant, planted};
use std::cell::RefCell;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

enum Order {
    Work(Box<dyn FnOnce() + Send>),
    GoOn,
}

enum Answer {
    WaitsNs(u64),
    Done,
}

/// A thread's way to the simulation.
struct Way {
    orders: Receiver<Order>,
    answers: Sender<Answer>,
}

thread_local! {
    /// Of a thread that runs blocking code.
    static WAY: RefCell<Option<Way>> = const { RefCell::new(None) };
}

/// Lets so much virtual time pass, for blocking code. For the simulation itself none does.
///
/// # Errors
/// The simulation has ended: the code is to come to its end too.
pub(super) fn wait_ns(ns: u64) -> io::Result<()> {
    WAY.with_borrow(|way| {
        let Some(way) = way else { return Ok(()) };
        let _ = way.answers.send(Answer::WaitsNs(ns));
        match way.orders.recv() {
            Ok(Order::GoOn) => Ok(()),
            _ => Err(io::Error::other("the simulation has ended")),
        }
    })
}

/// The thread. Dropped, it lets what it runs come to its end.
pub(super) struct BlockingThread {
    orders: Option<Sender<Order>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl BlockingThread {
    /// Starts it, with the defect that is planted here.
    pub fn start() -> Self {
        let ((orders, orders_there), (answers_there, answers)) = (channel(), channel());
        let defect = planted();
        let thread = std::thread::spawn(move || {
            plant(defect);
            WAY.set(Some(Way { orders: orders_there, answers: answers_there }));
            let next = || WAY.with_borrow(|way| way.as_ref()?.orders.recv().ok());
            while let Some(Order::Work(work)) = next() {
                work();
                let _ = WAY.with_borrow(|way| way.as_ref().map(|way| way.answers.send(Answer::Done)));
            }
        });
        Self { orders: Some(orders), answers, thread: Some(thread) }
    }

    /// Runs blocking code; what it waits for takes time of `handle`.
    ///
    /// # Panics
    /// If the code does.
    pub async fn run<T: Send + 'static>(&self, handle: &Handle, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.order(Order::Work(Box::new(move || drop(tell.send(work())))));
        while let Answer::WaitsNs(ns) = self.answers.recv().expect("blocking code has panicked") {
            handle.sleep_ns(ns).await;
            self.order(Order::GoOn);
        }
        told.recv().expect("it is done")
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for BlockingThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
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
                BlockingThread::start().run(&handle, work).await;
            })
        });
        executor.run(async {
            for task in tasks {
                task.await;
            }
        });
        assert_eq!((handle.now_ns(), &order.lock().expect("at rest")[..]), (600, &[200, 300, 200, 300][..]));
    }

    /// A run ends while a journal waits for its disk: the thread is told so, and ends.
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
            BlockingThread::start().run(&handle, work).await;
        }));
        let clock = executor.handle();
        executor.run(async { clock.sleep_ns(10).await });
        drop(executor);
        assert_eq!(*heard.lock().expect("at rest"), Some(true));
    }
}
