//! One suite over [`super::ALL`]: whatever a writer does meanwhile, a reader gets one complete state or none.

use super::{ALL, Busy, FarRead, LINE, Mechanism, Seen, Unread, View, Writing, read_far};
use crate::object::Owner;
use farhold_fabric::provider::sim;
use farhold_fabric::{Batch, Executor, Fabric, FabricError, FarPtr, Handle, NodeId, RegionId, RegionMemory};
use farhold_planted::Defect;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const REGION: RegionId = RegionId(3);
const ROOM: usize = 4096;
/// Lengths around every boundary: of a line, of a line less its version, of line 0, of words.
const LENGTHS: &[usize] =
    &[0, 1, 7, 8, 31, 32, 33, 39, 40, 41, 63, 64, 65, 95, 96, 97, 152, 153, 1000, 1024, 2047, 4096];

/// The payload of a state: its number in each byte, plus which line the byte is in.
fn payload(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number as u8).wrapping_add(at as u8 / 64)).collect()
}

fn owner(worker: u8) -> Owner {
    Owner::new(1, NodeId(0), worker, 1)
}

fn anonymous() -> RegionMemory {
    RegionMemory::anonymous(FarPtr::new(NodeId(0), REGION, 0), 64 << 10).expect("memory")
}

/// Reads in place until it is not torn, which must end soon: no thread writes.
fn read_quietly(mechanism: &dyn Mechanism, memory: &RegionMemory, at: u64, clock: &Handle) -> (Seen, Vec<u8>) {
    let mut into = vec![0; ROOM];
    let seen = (0..3).find_map(|_| mechanism.read(memory, at, &mut into, clock).ok()).expect("nobody writes");
    (seen, into[..seen.len].to_vec())
}

/// A whole write, as soon as no lease prevents it.
async fn write_patiently(
    mechanism: &dyn Mechanism,
    memory: &RegionMemory,
    at: u64,
    payload: &[u8],
    clock: &Handle,
) -> u64 {
    loop {
        if let Ok(version) = mechanism.write(memory, at, payload, owner(1), clock) {
            return version;
        }
        clock.sleep_ns(super::LEASE_NS).await;
    }
}

/// Runs a test with a clock that stops while it reads: under Miri, or on a busy machine, a read may outlast a lease.
fn in_virtual_time<T>(test: impl AsyncFnOnce(&Handle) -> T) -> T {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    executor.run(test(&handle))
}

#[test]
fn names_are_sorted_and_unique() {
    assert!(ALL.is_sorted_by(|a, b| a.name() < b.name()));
}

/// Every length reads back, with growing versions, and the bytes around an object do not change.
#[test]
fn what_is_written_is_read_and_nothing_else_changes() {
    for mechanism in ALL {
        in_virtual_time(async |clock| comes_back_at_every_length(*mechanism, clock).await);
    }
}

async fn comes_back_at_every_length(mechanism: &'static dyn Mechanism, clock: &Handle) {
    let memory = anonymous();
    for &len in LENGTHS.iter().step_by(if cfg!(miri) { 6 } else { 1 }) {
        let (at, bytes) = (8 * LINE, mechanism.bytes(len));
        assert!(bytes.is_multiple_of(LINE as usize) && bytes >= len);
        memory.copy_in(0, &vec![0; 16 << 10]).unwrap();
        memory.copy_in(at - LINE, &[0xee; LINE as usize]).unwrap();
        memory.copy_in(at + bytes as u64, &[0xee; LINE as usize]).unwrap();
        mechanism.create(&memory, at, &payload(1, len)).unwrap();
        let (first, read) = read_quietly(mechanism, &memory, at, clock);
        assert_eq!(read, payload(1, len), "{mechanism:?}, {len} bytes");
        let version = write_patiently(mechanism, &memory, at, &payload(2, len), clock).await;
        let (second, read) = read_quietly(mechanism, &memory, at, clock);
        assert_eq!((second.version, &read), (version, &payload(2, len)), "{mechanism:?}, {len} bytes");
        assert!(second.version > first.version);
        let mut around = [0; 2 * LINE as usize];
        memory.copy_out(at - LINE, &mut around[..LINE as usize]).unwrap();
        memory.copy_out(at + bytes as u64, &mut around[LINE as usize..]).unwrap();
        assert_eq!(around, [0xee; 2 * LINE as usize], "{mechanism:?}, {len} bytes");
        let expected = read.as_chunks().0.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
        let mut into = vec![0; ROOM];
        let used = (0..3).find_map(|_| mechanism.total(&memory, at, &mut into, clock).ok());
        assert_eq!(used, Some((second, expected)), "{mechanism:?}, {len} bytes used where they lie");
        if len > 0 {
            let short = mechanism.read(&memory, at, &mut vec![0; len - 1], clock);
            assert_eq!(short, Err(Unread::TooShort { payload_len: len }), "{mechanism:?}");
            let short = mechanism.total(&memory, at, &mut vec![0; len - 1], clock);
            assert_eq!(short, Err(Unread::TooShort { payload_len: len }), "{mechanism:?}");
        }
    }
}

/// A writer that has the object excludes others until it ends.
#[test]
fn writers_exclude_each_other() {
    for mechanism in ALL {
        in_virtual_time(async |clock| {
            let memory = anonymous();
            mechanism.create(&memory, 0, b"first").unwrap();
            let writing = mechanism.begin_write(&memory, 0, owner(1), clock).unwrap();
            assert_eq!(mechanism.write(&memory, 0, b"no", owner(2), clock), Err(Busy), "{mechanism:?}");
            mechanism.fill(&memory, 0, &writing, b"second", 0..mechanism.pieces(6));
            mechanism.end_write(&memory, 0, writing, b"second");
            mechanism.write(&memory, 0, b"third", owner(2), clock).unwrap();
            assert_eq!(read_quietly(*mechanism, &memory, 0, clock).1, b"third");
        });
    }
}

/// A writer stops after each piece, forwards and backwards: readers, near and far, get nothing, or exactly the old state.
fn stops_at_every_line(mechanism: &'static dyn Mechanism, len: usize) {
    let executor = Executor::virtual_time(5);
    let handle = executor.handle();
    let sim = sim::Sim::new(&handle, sim::Rdma, sim::Faults::default());
    let (home, away) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    let memory = home.create_region(REGION, 16 << 10).unwrap();
    let endpoint = away.endpoint(&handle).unwrap();
    executor.run(async {
        let (old, new) = (payload(1, len), payload(9, len));
        let pieces = mechanism.pieces(len);
        for (nth, backwards) in (0..=pieces).flat_map(|stop| [(stop, false), (stop, true)]) {
            let at = (nth as u64 % 2) * (8 << 10);
            memory.copy_in(at, &vec![0; mechanism.bytes(len)]).unwrap();
            mechanism.create(&memory, at, &old).unwrap();
            let writing = mechanism.begin_write(&memory, at, owner(1), &handle).unwrap();
            let done = if backwards { pieces - nth..pieces } else { 0..nth };
            mechanism.fill(&memory, at, &writing, &new, done.clone());
            let mut into = vec![0; ROOM];
            if let Ok(seen) = mechanism.read(&memory, at, &mut into, &handle) {
                assert_eq!(into[..seen.len], old, "{mechanism:?} in place, pieces {done:?} of {pieces} written");
            }
            if let Ok((_, sum)) = mechanism.total(&memory, at, &mut into, &handle) {
                let old = farhold_fabric::sum_words(&old);
                assert_eq!(sum, old, "{mechanism:?} used in place, pieces {done:?} of {pieces} written");
            }
            let mut read = FarRead::new(FarPtr::new(NodeId(0), REGION, at), len);
            let check = |view: View<'_>| {
                assert_eq!(view.payload, old, "{mechanism:?} from afar, pieces {done:?} of {pieces} written");
            };
            match read_far(mechanism, &endpoint, &mut read, &mut Batch::new(), &mut into, check).await {
                Ok(()) | Err(Unread::Torn) => {}
                Err(error) => panic!("{error}"),
            }
            let rest = if backwards { 0..pieces - nth } else { nth..pieces };
            mechanism.fill(&memory, at, &writing, &new, rest);
            let version = mechanism.end_write(&memory, at, writing, &new);
            let take = |view: View<'_>| assert_eq!((view.version, view.payload), (version, &new[..]), "{mechanism:?}");
            read_far(mechanism, &endpoint, &mut read, &mut Batch::new(), &mut into, take).await.expect("written");
        }
    });
}

#[test]
fn a_write_that_stops_anywhere_is_not_seen() {
    for mechanism in ALL {
        for len in if cfg!(miri) { vec![64] } else { vec![64, 200, 1024] } {
            stops_at_every_line(*mechanism, len);
        }
    }
}

/// Virtual time: a writer that lets time pass after each line, far readers whose reads take lines one by one.
/// Returns (whole, torn).
fn simulated(mechanism: &'static dyn Mechanism, seed: u64) -> (u32, u32) {
    const ROUNDS: u64 = if cfg!(miri) { 8 } else { 60 };
    let executor = Executor::virtual_time(seed);
    let handle = executor.handle();
    let sim = sim::Sim::new(&handle, sim::Rdma, sim::Faults::default());
    let home = sim.join(NodeId(0)).unwrap();
    let memory = home.create_region(REGION, 8 << 10).unwrap();
    let len = |number: u64| 100 + (number as usize * 337) % 900;
    mechanism.create(&memory, 0, &payload(1, len(1))).unwrap();
    let done = Rc::new(Cell::new(false));
    let counts = Rc::new(Cell::new((0, 0)));
    executor.run(async {
        let writer = {
            let (memory, handle, done) = (memory.clone(), handle.clone(), done.clone());
            handle.clone().spawn(async move {
                for number in 2..ROUNDS {
                    let new = payload(number, len(number));
                    let writing = loop {
                        match mechanism.begin_write(&memory, 0, owner(1), &handle) {
                            Ok(writing) => break writing,
                            Err(Busy) => handle.sleep_ns(500).await,
                        }
                    };
                    for piece in 0..mechanism.pieces(new.len()) {
                        mechanism.fill(&memory, 0, &writing, &new, piece..piece + 1);
                        handle.yield_now().await;
                    }
                    mechanism.end_write(&memory, 0, writing, &new);
                    handle.sleep_ns(handle.random_u64() % 4_000).await;
                }
                done.set(true);
            })
        };
        let readers: Vec<_> = (1..4)
            .map(|node| {
                let endpoint = sim.join(NodeId(node)).unwrap().endpoint(&handle).unwrap();
                let (done, counts, handle) = (done.clone(), counts.clone(), handle.clone());
                handle.clone().spawn(async move {
                    let (mut batch, mut into, mut last) = (Batch::new(), vec![0; ROOM], 0);
                    let mut read = FarRead::new(FarPtr::new(NodeId(0), REGION, 0), 1000);
                    while !done.get() {
                        let take = |view: View<'_>| {
                            let number = u64::from(*view.payload.first().expect("no payload is empty"));
                            assert_eq!(view.payload, payload(number, len(number)), "{mechanism:?}, seed {seed}: a mix");
                            view.version
                        };
                        let (whole, torn) = counts.get();
                        match read_far(mechanism, &endpoint, &mut read, &mut batch, &mut into, take).await {
                            Ok(version) => {
                                assert!(version >= last, "{mechanism:?}, seed {seed}: back in time");
                                last = version;
                                counts.set((whole + 1, torn));
                            }
                            Err(Unread::Torn) => counts.set((whole, torn + 1)),
                            Err(Unread::TooShort { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                        // Leases leave the writer its turn.
                        handle.sleep_ns(handle.random_u64() % 3_000).await;
                    }
                })
            })
            .collect();
        writer.await;
        for reader in readers {
            reader.await;
        }
    });
    counts.get()
}

#[test]
fn simulated_reads_tear_and_are_never_used() {
    for mechanism in ALL {
        let (mut whole, mut torn) = (0, 0);
        for seed in 0..if cfg!(miri) { 1 } else { 4 } {
            let counts = simulated(*mechanism, seed);
            (whole, torn) = (whole + counts.0, torn + counts.1);
        }
        let (whole_min, torn_min) = if cfg!(miri) { (1, 0) } else { (50, 5) };
        assert!(whole > whole_min && torn >= torn_min, "{mechanism:?}: {whole} whole, {torn} torn");
    }
}

/// Real threads on shared memory: two writers, a reader in place, a reader through a fabric.
fn threads(mechanism: &'static dyn Mechanism) {
    let cluster = farhold_testkit::memory_directory();
    let home = Fabric::join_shm(&cluster, NodeId(0)).unwrap();
    let memory = home.create_region(REGION, 64 << 10).unwrap();
    let len = |number: u64| 8 + (number as usize * 337) % 2000;
    mechanism.create(&memory, LINE, &payload(1, len(1))).unwrap();
    let (done, whole_reads) = (AtomicBool::new(false), AtomicU32::new(0));
    let check = |bytes: &[u8]| {
        let number = u64::from(bytes[0]);
        // Several numbers have this first byte; their lengths tell them apart.
        let is_state = (0..40).any(|turn| bytes.len() == len(number + turn * 256));
        let is_whole = is_state && bytes == payload(number, bytes.len());
        // A reader that gives up must not make the writers wait for it.
        whole_reads.fetch_add(if is_whole { 1 } else { 1_000 }, Ordering::Relaxed);
        assert!(is_whole, "{mechanism:?}: a mix");
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=2)
            .map(|worker| {
                let (memory, whole_reads) = (&memory, &whole_reads);
                scope.spawn(move || {
                    let clock = Handle::standalone(u64::from(worker));
                    let mut written = 0;
                    // An object under a lease is rarely free: fewer writes in the same time.
                    let wanted = if mechanism.name() == "lock" { 30 } else { 4_000 };
                    // At least this many, and until the readers have met some.
                    while written < wanted || whole_reads.load(Ordering::Relaxed) < 100 {
                        let number = (2 + written * 2 + u64::from(worker)) % 10_000;
                        let bytes = payload(number, len(number));
                        match mechanism.write(memory, LINE, &bytes, owner(worker), &clock) {
                            Ok(_) => written += 1,
                            Err(Busy) => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let clock = Handle::standalone(9);
            let mut into = vec![0; ROOM];
            while !done.load(Ordering::Relaxed) {
                match mechanism.read(&memory, LINE, &mut into, &clock) {
                    Ok(seen) => check(&into[..seen.len]),
                    Err(Unread::Torn | Unread::TooShort { .. }) => std::hint::spin_loop(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        scope.spawn(|| {
            let executor = Executor::real(3);
            let away = Fabric::join_shm(&cluster, NodeId(1)).unwrap();
            let endpoint = away.endpoint(&executor.handle()).unwrap();
            let mapped = endpoint.mapped(NodeId(0), REGION);
            executor.run(async {
                let (mut batch, mut into) = (Batch::new(), vec![0; ROOM]);
                let at = FarPtr::new(NodeId(0), REGION, LINE);
                let mut read = FarRead::new(at, 2100).mapped(mapped.as_deref());
                while !done.load(Ordering::Relaxed) {
                    let take = |view: View<'_>| check(view.payload);
                    match read_far(mechanism, &endpoint, &mut read, &mut batch, &mut into, take).await {
                        Ok(()) | Err(Unread::Torn | Unread::TooShort { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
#[cfg_attr(miri, ignore = "file mappings")]
fn threads_that_race_read_whole_states() {
    for mechanism in ALL {
        threads(*mechanism);
    }
}

/// A lease excludes writers for its time and no longer, whatever happens to the reader.
#[test]
fn a_lease_ends_by_itself() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let memory = anonymous();
    super::Lock.create(&memory, 0, b"first").unwrap();
    executor.run(async {
        super::Lock.read(&memory, 0, &mut [0; 8], &handle).unwrap();
        let leased_ns = handle.now_ns();
        assert_eq!(super::Lock.write(&memory, 0, b"second", owner(1), &handle), Err(Busy));
        while super::Lock.write(&memory, 0, b"second", owner(1), &handle).is_err() {
            handle.sleep_ns(100).await;
        }
        let waited_ns = handle.now_ns() - leased_ns;
        assert!((super::LEASE_NS..super::LEASE_NS + 3_000).contains(&waited_ns), "{waited_ns}");
    });
}

/// A mechanism that checks nothing: plain bytes behind their length.
struct Plain;

impl Mechanism for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
    fn about(&self) -> &'static str {
        "no mechanism at all"
    }
    fn bytes(&self, payload_len: usize) -> usize {
        (8 + payload_len).next_multiple_of(LINE as usize)
    }
    fn create(&self, memory: &RegionMemory, at: u64, payload: &[u8]) -> Result<(), FabricError> {
        memory.word(at)?.store(payload.len() as u64, Ordering::Relaxed);
        memory.copy_in(at + 8, payload)
    }
    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], _: &Handle) -> Result<Seen, Unread> {
        let len = memory.word(at)?.load(Ordering::Relaxed) as usize;
        memory.copy_out(at + 8, &mut into[..len])?;
        Ok(Seen { version: 0, len })
    }
    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, _: &Handle) {
        read.slot = Some(batch.read(read.at, 8 + read.payload_len_max));
    }
    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        _: &'b mut [u8],
        _: &Handle,
    ) -> Result<Option<View<'b>>, Unread> {
        let raw = batch.bytes(read.slot.expect("posted"))?;
        Ok(Some(View { version: 0, payload: &raw[8..][..super::word_of(raw, 0) as usize] }))
    }
    fn begin_write(&self, _: &RegionMemory, _: u64, _: Owner, _: &Handle) -> Result<Writing, Busy> {
        Ok(Writing { version: 0 })
    }
    fn pieces(&self, payload_len: usize) -> usize {
        payload_len.div_ceil(super::PIECE)
    }
    fn fill(&self, memory: &RegionMemory, at: u64, _: &Writing, payload: &[u8], pieces: Range<usize>) {
        let bytes = super::clean_bytes(&pieces, payload.len());
        memory.copy_in(at + 8 + bytes.start as u64, &payload[bytes]).expect("inside");
    }
    fn end_write(&self, memory: &RegionMemory, at: u64, _: Writing, payload: &[u8]) -> u64 {
        memory.word(at).expect("inside").store(payload.len() as u64, Ordering::Release);
        0
    }
}

fn is_caught(run: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
}

/// The suite notices what it must: each check left out, and no check at all.
#[test]
#[cfg_attr(miri, ignore = "too long for it")]
fn planted_defects_are_found() {
    for mechanism in ALL.iter().filter(|mechanism| mechanism.name() != "destination") {
        let stops = is_caught(|| farhold_planted::with(Defect::Unchecked, || stops_at_every_line(*mechanism, 200)));
        assert!(stops, "{mechanism:?} unchecked, and a stopped write went unseen");
        let simulation = is_caught(|| farhold_planted::with(Defect::Unchecked, || _ = simulated(*mechanism, 1)));
        assert!(simulation, "{mechanism:?} unchecked, and the simulation saw nothing");
    }
    assert!(is_caught(|| stops_at_every_line(&Plain, 200)));
    assert!(is_caught(|| _ = simulated(&Plain, 1)));
}
