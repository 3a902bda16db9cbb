//! The control flow around the body, by a script of aborts: no processor is asked for anything but its registers.

use super::*;
use crate::base::definition::TableDef;
use crate::base::error::TxnError;
use crate::base::processor::QUESTIONS;
use crate::base::slots::Hardware;
use crate::base::table::Table;
use crate::node::{Node, NodeConfig};
use crate::protocol::commit::near::is_plain;
use crate::protocol::txn::spec::ScanSpec;
use crate::protocol::txn::{CommitInfo, Txn};
use crate::protocol::worker::Worker;
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, NodeId};
use farhold_store::Owner;
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Statuses as the processor's manual defines them.
const CONFLICT: u32 = 1 << 1 | 1 << 2;
const CAPACITY: u32 = 1 << 3;
const NO_CAUSE: u32 = 0;

/// Aborts with some statuses, one after the other, then never.
#[derive(Default)]
struct Script {
    statuses: RefCell<VecDeque<u32>>,
    begins: Cell<u32>,
}

impl Script {
    fn of(statuses: impl IntoIterator<Item = u32>) -> Self {
        Self { statuses: RefCell::new(statuses.into_iter().collect()), ..Self::default() }
    }
}

impl Instructions for Script {
    fn begin(&self) -> u32 {
        self.begins.set(self.begins.get() + 1);
        self.statuses.borrow_mut().pop_front().unwrap_or(STARTED)
    }

    fn end(&self) {}

    fn abort<const CODE: u8>(&self) {}
}

/// `hardware_transactions`: whether its own commits may be such, on a processor that has them.
fn open(sim: &Sim, node: u8, hardware_transactions: bool) -> Arc<Node> {
    let config = NodeConfig { region_bytes: 8 << 20, hardware_transactions, ..NodeConfig::default() };
    Node::open(sim.join(NodeId(node)).expect("a fabric"), config).expect("a node")
}

/// Runs a test on a worker with a table (id BIGINT PRIMARY KEY, note TEXT) whose row 1 has the note "old". Its own commits are by
/// latches.
fn with_row(test: impl AsyncFnOnce(Worker, Table)) {
    with_row_of(false, test);
}

fn with_row_of(hardware_transactions: bool, test: impl AsyncFnOnce(Worker, Table)) {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let worker =
        open(&Sim::new(&handle, Rdma, Faults::default()), 0, hardware_transactions).worker(&handle).expect("a worker");
    executor.run(async move {
        let columns = vec![Column::new("id", ColumnType::BigInt), Column::new("note", ColumnType::Text)];
        let def = TableDef::new("notes", Schema::new(columns, vec![0]).expect("a schema"));
        let table = worker.create_table(def).await.expect("a table");
        let mut txn = worker.begin();
        txn.insert(&table, &key(1_i64), &value(&table, "old")).await.expect("inserted");
        txn.commit().await.expect("committed");
        test(worker, table).await;
    });
}

fn value(table: &Table, note: &str) -> Vec<u8> {
    let mut value = Vec::new();
    table.schema().encode_value(&[Datum::BigInt(0), Datum::Text(note.into())], &mut value).expect("a value");
    value
}

/// A transaction that has given row 1 another note.
async fn change(worker: &Worker, table: &Table, note: &str) -> Txn {
    let mut txn = worker.begin();
    let row = txn.get(table, &key(1_i64)).await.expect("a read").expect("a row");
    txn.update(row, &value(table, note)).expect("a change");
    txn
}

async fn note(worker: &Worker, table: &Table) -> Vec<u8> {
    let mut txn = worker.begin();
    let row = txn.get(table, &key(1_i64)).await.expect("a read").expect("a row");
    txn.value(row).to_vec()
}

/// The near commit, in the form under test alone.
fn commit_by(instructions: &impl Instructions, txn: &mut Txn) -> Option<Result<u32, Refused>> {
    txn.prepare().expect("no row moves");
    txn.order_writes();
    let (core, version) = (txn.core.clone(), txn.indexes_version);
    let near = txn.all_near(&core, 0);
    let epoch = || core.epoch.near().expect("its own word");
    let done = commit(instructions, &near, &core.slot, &core.trust, epoch, || is_plain(&core, version));
    if let Some(Ok(epoch)) = done {
        txn.tidy_up(epoch);
        txn.ended(&Ok(CommitInfo::default()));
    }
    done
}

fn counted(worker: &Worker) -> Hardware {
    worker.core.node.statistics().hardware
}

#[test]
fn a_conflict_is_tried_again() {
    with_row(async |worker, table| {
        let script = Script::of([CONFLICT; 3]);
        let done = commit_by(&script, &mut change(&worker, &table, "new").await);
        assert!(matches!(done, Some(Ok(_))), "{done:?}");
        assert_eq!(note(&worker, &table).await, value(&table, "new"));
        assert_eq!(counted(&worker), Hardware { commits: 1, aborts_conflict: 3, ..Hardware::default() });
    });
}

#[test]
fn after_some_conflicts_the_latches_do_it() {
    with_row(async |worker, table| {
        let script = Script::of([CONFLICT; 100]);
        let mut txn = change(&worker, &table, "new").await;
        assert_eq!(commit_by(&script, &mut txn), None);
        assert_eq!(script.begins.get(), ATTEMPTS_MAX);
        assert_eq!(note(&worker, &table).await, value(&table, "old"));
        txn.commit().await.expect("latched");
        assert_eq!(note(&worker, &table).await, value(&table, "new"));
        assert_eq!(counted(&worker).attempts(), u64::from(ATTEMPTS_MAX));
    });
}

#[test]
fn an_abort_without_a_cause_is_answered_by_touching_the_rows_twice() {
    with_row(async |worker, table| {
        let twice = Script::of([NO_CAUSE; 2]);
        let done = commit_by(&twice, &mut change(&worker, &table, "new").await);
        assert!(matches!(done, Some(Ok(_))), "{done:?}");
        let ever = Script::of([NO_CAUSE; 100]);
        assert_eq!(commit_by(&ever, &mut change(&worker, &table, "newer").await), None);
        assert_eq!(ever.begins.get(), 1 + TOUCHES_MAX);
        assert_eq!(note(&worker, &table).await, value(&table, "new"));
        assert_eq!(counted(&worker).aborts_unexplained, 2 + 1 + u64::from(TOUCHES_MAX));
    });
}

#[test]
fn what_does_not_fit_is_not_tried_again() {
    with_row(async |worker, table| {
        let script = Script::of([CAPACITY | CONFLICT; 2]);
        assert_eq!(commit_by(&script, &mut change(&worker, &table, "new").await), None);
        assert_eq!((script.begins.get(), counted(&worker).aborts_capacity), (1, 1));
    });
}

/// One row is changed among many that are read: the cache has no room for those, and this is no reason to give up on one row.
#[test]
fn rows_that_are_only_read_say_nothing_of_the_room_for_writes() {
    with_row(async |worker, table| {
        let mut filled = worker.begin();
        for id in 2..10_i64 {
            filled.insert(&table, &key(id), &value(&table, "read")).await.expect("inserted");
        }
        filled.commit().await.expect("committed");
        let mut txn = change(&worker, &table, "new").await;
        for id in 2..10_i64 {
            txn.get(&table, &key(id)).await.expect("a read").expect("a row");
        }
        assert_eq!(commit_by(&Script::of([CAPACITY]), &mut txn), None);
        assert!(worker.core.trust.is_given(1) && worker.core.trust.is_given(100));
        assert_eq!(commit_by(&Script::of([CAPACITY]), &mut change(&worker, &table, "new").await), None);
        assert!(!worker.core.trust.is_given(1), "of this one all is written");
    });
}

#[test]
fn a_locked_row_is_waited_for_by_the_latches() {
    with_row(async |worker, table| {
        let (script, mut txn) = (Script::default(), change(&worker, &table, "new").await);
        let core = worker.core.clone();
        let reference = txn.state.rows[0].ident.reference();
        let object = core.node.store.object(reference);
        object.lock(reference.incarnation(), Owner::new(1, NodeId(0), 200, 1)).expect("free");
        assert_eq!(commit_by(&script, &mut txn), None);
        assert_eq!(counted(&worker), Hardware { aborts_locked: u64::from(ATTEMPTS_MAX), ..Hardware::default() });
        object.unlock();
        assert_eq!(note(&worker, &table).await, value(&table, "old"));
        txn.commit().await.expect("free now");
    });
}

#[test]
fn a_row_that_has_changed_refuses_the_transaction() {
    with_row(async |worker, table| {
        let (script, mut txn) = (Script::default(), change(&worker, &table, "new").await);
        change(&worker, &table, "another").await.commit().await.expect("committed");
        assert_eq!(commit_by(&script, &mut txn), Some(Err(Refused::Changed)));
        assert_eq!((script.begins.get(), counted(&worker).aborts_changed), (1, 1));
        assert_eq!(txn.commit().await, Err(TxnError::Conflict));
        assert_eq!(note(&worker, &table).await, value(&table, "another"));
    });
}

#[test]
fn an_open_snapshot_is_for_the_latches() {
    with_row(async |worker, table| {
        let (script, mut txn) = (Script::default(), change(&worker, &table, "new").await);
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(commit_by(&script, &mut txn), None);
        assert_eq!((script.begins.get(), counted(&worker).aborts_not_plain), (1, 1));
        txn.commit().await.expect("with an older copy");
        drop(snapshot);
    });
}

#[test]
fn statuses_mean_what_the_manual_says() {
    let explicit = |code: u8| 1 | u32::from(code) << 24;
    for (status, expected) in [
        (explicit(LOCKED), Stopped::Locked),
        (explicit(CHANGED), Stopped::Changed),
        (explicit(NOT_PLAIN), Stopped::NotPlain),
        (explicit(77), Stopped::Unexplained),
        (1 << 1, Stopped::Conflict),
        (1 << 2, Stopped::Conflict),
        (CAPACITY, Stopped::Capacity),
        (NO_CAUSE, Stopped::Unexplained),
        (1 << 4, Stopped::Unexplained),
    ] {
        assert_eq!(Stopped::of(status), expected, "{status:#x}");
    }
}

/// Reading CPUID takes microseconds on a virtual machine: a process does it once, however many nodes it opens and commits it makes.
#[test]
fn a_process_asks_its_processor_once() {
    let executor = Executor::virtual_time(1);
    let nodes: Vec<_> = (0..3).map(|_| open(&Sim::new(&executor.handle(), Rdma, Faults::default()), 0, true)).collect();
    assert!(nodes.iter().all(|node| node.hardware.is_some() == nodes[0].hardware.is_some()));
    with_row_of(true, async |worker, table| {
        for round in 0..100 {
            change(&worker, &table, &format!("round {round}")).await.commit().await.expect("committed");
        }
    });
    assert_eq!(QUESTIONS.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_worker_gives_up_on_hardware_that_fails_and_comes_back() {
    let trust = Trust::default();
    let ask = |committed| {
        let given = trust.is_given(3);
        if given {
            trust.note(committed);
        }
        given
    };
    assert!((0..10 * WINDOW).all(|section| ask(section % 2 == 0)), "half of the attempts are enough");
    assert!((0..WINDOW).all(|_| ask(false)), "a window is seen to its end");
    assert!((0..LATCHES).all(|_| !ask(true)));
    assert!((0..10 * WINDOW).all(|_| ask(true)));
}

#[test]
fn a_worker_remembers_what_the_cache_has_no_room_for() {
    let trust = Trust::default();
    let tried = |rows, fits: bool| {
        let given = trust.is_given(rows);
        match (given, fits) {
            (true, true) => trust.committed(rows),
            (true, false) => trust.overflowed(rows),
            (false, _) => {}
        }
        u32::from(given)
    };
    let small = |count: u32| (0..count).map(|_| tried(20, true)).sum::<u32>();
    assert_eq!(tried(130, false) + tried(120, false), 2);
    // What was refused for another transaction's change has written nothing.
    trust.note(true);
    assert_eq!((0..10 * LARGE_PER_TRY).map(|_| tried(120, false) + small(9)).sum::<u32>(), 10 + 90 * LARGE_PER_TRY);
    assert_eq!(tried(119, true), 1, "fewer rows are tried");
    // The cache has become larger, or the rows shorter.
    assert_eq!((0..10 * LARGE_PER_TRY).map(|_| tried(120, true)).sum::<u32>(), 9 * LARGE_PER_TRY + 1);
    assert_eq!(tried(121, true), 0);
}

/// Loads a pattern into the upper halves of all YMM registers when the transaction begins, and looks for it when it ends. Moves of
/// 16 bytes as the compiler makes them leave these halves alone; each VEX instruction clears or changes them, and so does the `vzeroupper`
/// that ends a function with wide moves, such as the C library's `memcpy`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Default)]
struct Halves {
    kept: Cell<bool>,
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Instructions for Halves {
    #[inline(always)]
    fn begin(&self) -> u32 {
        let pattern = [0x5a_u8; 32];
        // SAFETY: reads the pattern; the registers that change are named. The test has asked for AVX.
        unsafe {
            std::arch::asm!(
                "vmovdqu ymm0, [{p}]", "vmovdqu ymm1, [{p}]", "vmovdqu ymm2, [{p}]", "vmovdqu ymm3, [{p}]",
                "vmovdqu ymm4, [{p}]", "vmovdqu ymm5, [{p}]", "vmovdqu ymm6, [{p}]", "vmovdqu ymm7, [{p}]",
                "vmovdqu ymm8, [{p}]", "vmovdqu ymm9, [{p}]", "vmovdqu ymm10, [{p}]", "vmovdqu ymm11, [{p}]",
                "vmovdqu ymm12, [{p}]", "vmovdqu ymm13, [{p}]", "vmovdqu ymm14, [{p}]", "vmovdqu ymm15, [{p}]",
                p = in(reg) pattern.as_ptr(),
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
        STARTED
    }

    #[inline(always)]
    fn end(&self) {
        let mut halves = [0_u8; 256];
        // SAFETY: writes 16 times 16 bytes; the registers that change are named.
        unsafe {
            std::arch::asm!(
                "vextractf128 [{h}], ymm0, 1", "vextractf128 [{h} + 16], ymm1, 1",
                "vextractf128 [{h} + 32], ymm2, 1", "vextractf128 [{h} + 48], ymm3, 1",
                "vextractf128 [{h} + 64], ymm4, 1", "vextractf128 [{h} + 80], ymm5, 1",
                "vextractf128 [{h} + 96], ymm6, 1", "vextractf128 [{h} + 112], ymm7, 1",
                "vextractf128 [{h} + 128], ymm8, 1", "vextractf128 [{h} + 144], ymm9, 1",
                "vextractf128 [{h} + 160], ymm10, 1", "vextractf128 [{h} + 176], ymm11, 1",
                "vextractf128 [{h} + 192], ymm12, 1", "vextractf128 [{h} + 208], ymm13, 1",
                "vextractf128 [{h} + 224], ymm14, 1", "vextractf128 [{h} + 240], ymm15, 1",
                "vzeroupper",
                h = in(reg) halves.as_mut_ptr(),
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
        self.kept.set(halves.iter().all(|byte| *byte == 0x5a));
    }

    fn abort<const CODE: u8>(&self) {}
}

/// The whole body, not the copy alone: rows of each length are changed, inserted and deleted, a row and a range are validated.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_body_uses_no_wide_registers() {
    if !std::arch::is_x86_feature_detected!("avx") {
        farhold_testkit::skipped("this processor has no AVX");
        return;
    }
    with_row(async |worker, table| {
        let note = |table, letter: &str, length| value(table, &letter.repeat(length));
        let mut last = 0;
        for (id, length) in (2_i64..).zip((0..300).chain([1000, 5000, 20_000])) {
            let mut txn = worker.begin();
            txn.get(&table, &key(1_i64)).await.expect("a read").expect("a row");
            txn.scan(&table, ScanSpec::all().limit(3)).await.expect("a range");
            txn.insert(&table, &key(id), &note(&table, "x", length)).await.expect("inserted");
            if let Some(row) = txn.get(&table, &key(id - 2)).await.expect("a read").filter(|_| id > 3) {
                txn.delete(row).expect("deleted");
            }
            if id > 2 {
                let row = txn.get(&table, &key(id - 1)).await.expect("a read").expect("a row");
                txn.update(row, &note(&table, "y", last)).expect("a change");
            }
            last = length;
            let halves = Halves::default();
            let done = commit_by(&halves, &mut txn);
            assert!(matches!(done, Some(Ok(_))), "{length} bytes: {done:?}");
            assert!(halves.kept.get(), "{length} bytes are written by wide moves");
        }
    });
}
