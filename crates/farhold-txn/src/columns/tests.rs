use super::*;
use farhold_fabric::{Executor, FarPtr, NodeId, RegionMemory};
use farhold_store::column::copy::CopyConfig;
use farhold_store::row::{Column, ColumnType, Schema};
use std::thread;

const WAIT_NS: u64 = BACKLOG_WAIT.as_nanos() as u64;

/// A feed with a copy and, as far as it knows, a thread that applies records.
fn feed() -> ColumnFeed {
    let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
    let region = RegionMemory::anonymous(FarPtr::new(NodeId(0), crate::base::ident::COLUMNS, 0), 1 << 20);
    let memory = Arc::new(ColumnMemory::new(Arc::new(region.expect("memory"))));
    let feed = ColumnFeed::new(false);
    feed.set_applied(true);
    let copy = ColumnCopy::new(&schema, Kept::All, CopyConfig::default(), &memory);
    assert!(feed.add(TableId(20), Arc::new(copy), 0));
    feed
}

fn waited_ns(feed: &ColumnFeed) -> u64 {
    let clock = Executor::real(1).handle();
    let began_ns = clock.now_ns();
    feed.wait_for_backlog();
    clock.now_ns() - began_ns
}

/// At least one of some waits is short: the system may take the processor away during any of them.
fn waits(feed: &ColumnFeed) -> bool {
    (0..5).all(|_| waited_ns(feed) >= WAIT_NS)
}

/// The worker waits behind more than 16 MiB, also while they have been taken and are not applied yet. It goes on when they are applied.
#[test]
fn a_long_backlog_is_waited_for_until_it_is_applied() {
    let feed = feed();
    feed.offer(&vec![0; BACKLOG_BYTES_MAX]);
    assert!(!waits(&feed), "not more than that");
    feed.offer(&[0; 1]);
    assert!(waited_ns(&feed) >= WAIT_NS);
    feed.offer(&vec![0; 1 << 20]);
    let taken = feed.take();
    assert!(waited_ns(&feed) >= WAIT_NS, "taken, and not applied");
    feed.complete(&taken, 0);
    assert!(!waits(&feed), "applied");
}

#[test]
fn only_a_backlog_that_a_thread_takes_is_waited_for() {
    let feed = feed();
    feed.offer(&vec![0; 17 << 20]);
    assert!(waited_ns(&feed) >= WAIT_NS);
    feed.set_applied(false);
    assert!(!waits(&feed), "no thread");
    feed.set_applied(true);
    assert!(waited_ns(&feed) >= WAIT_NS);
    feed.forget_all();
    assert!(!waits(&feed), "no copies");
    feed.offer(&vec![0; 17 << 20]);
    assert!(!waits(&feed), "without copies nothing is offered");
}

/// A worker that waits is woken by the thread that applies.
#[test]
fn a_wait_for_a_backlog_ends_when_it_is_applied() {
    const ROUNDS: usize = 5;
    let feed = feed();
    let round = |_: &usize| {
        feed.offer(&vec![0; 17 << 20]);
        let (taken, begins) = (feed.take(), AtomicBool::new(false));
        let waited_ns = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                begins.store(true, SeqCst);
                waited_ns(&feed)
            });
            while !begins.load(SeqCst) {
                thread::yield_now();
            }
            // Most likely it waits by then; where it does not, the round proves nothing.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            feed.complete(&taken, 0);
            waiting.join().expect("no panic")
        });
        waited_ns < WAIT_NS
    };
    let woken = (0..ROUNDS).filter(round).count();
    assert!(woken > ROUNDS / 2, "{woken}");
}
