//! What only a simulation promises: a seed is a run, and faults happen as planned.

use super::*;
use crate::{Admitted, Batch, Endpoint, Executor, FarPtr, RegionId};

const REGION: RegionId = RegionId(1);

fn at(node: u8, offset: u64) -> FarPtr {
    FarPtr::new(NodeId(node), REGION, offset)
}

fn hop(from: u8, to: u8) -> Hop {
    Hop { from: NodeId(from), to: NodeId(to) }
}

async fn write(endpoint: &Endpoint, at: FarPtr, bytes: &[u8]) -> Result<(), FabricError> {
    let mut batch = Batch::new();
    let slot = batch.write(at, bytes);
    endpoint.submit(batch).await.done(slot)
}

async fn read(endpoint: &Endpoint, at: FarPtr, len: usize) -> Result<Vec<u8>, FabricError> {
    let mut batch = Batch::new();
    let slot = batch.read(at, len);
    endpoint.submit(batch).await.bytes(slot).map(<[u8]>::to_vec)
}

/// Three nodes that write, read, count and talk at random. Returns the hash, the lines and how many reads were torn.
fn chatter(seed: u64, model: impl LatencyModel + 'static) -> (u64, Vec<String>, usize) {
    let executor = Executor::virtual_time(seed);
    let sim = Sim::new(&executor.handle(), model, Faults::default());
    sim.record_lines();
    let nodes: Vec<Fabric> = (0..3).map(|node| sim.join(NodeId(node)).unwrap()).collect();
    for node in &nodes {
        node.create_region(REGION, 4096).unwrap();
    }
    let handle = executor.handle();
    let torn = executor.run(async {
        let tasks: Vec<_> = nodes
            .iter()
            .map(|node| {
                let endpoint = node.endpoint(&handle).unwrap();
                handle.spawn(async move {
                    let mut torn = 0;
                    for _ in 0..if cfg!(miri) { 2 } else { 40 } {
                        let random = endpoint.handle().random_u64();
                        let node = (random % 3) as u8;
                        write(&endpoint, at(node, 32), &[random as u8; 400]).await.unwrap();
                        let bytes = read(&endpoint, at((random >> 8) as u8 % 3, 32), 400).await.unwrap();
                        torn += usize::from(bytes.iter().any(|&byte| byte != bytes[0]));
                        endpoint.send(Address::home(NodeId(node)), &random.to_le_bytes()).unwrap();
                    }
                    torn
                })
            })
            .collect();
        let mut torn = 0;
        for task in tasks {
            torn += task.await;
        }
        torn
    });
    (sim.trace_hash(), sim.lines(), torn)
}

/// The same seed is the same run, event by event; another seed is another run; and reads do tear.
#[test]
fn a_seed_is_a_run() {
    let seeds = if cfg!(miri) { 1 } else { 20 };
    let mut torn = 0;
    for seed in 0..seeds {
        let first = chatter(seed, Rdma);
        assert_eq!(first.1, chatter(seed, Rdma).1, "seed {seed}");
        assert_eq!(first.0, chatter(seed, Rdma).0, "seed {seed}");
        assert_ne!(first.0, chatter(seed + 1000, Rdma).0);
        assert_ne!(first.0, chatter(seed, Numa).0);
        torn += first.2;
    }
    assert!(cfg!(miri) || torn > 0, "a simulation without torn reads tests nothing");
}

#[test]
fn time_follows_the_model() {
    let executor = Executor::virtual_time(1);
    let sim = Sim::new(&executor.handle(), Rdma, Faults::default());
    let (a, b) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    b.create_region(REGION, 4096).unwrap();
    let endpoint = a.endpoint(&executor.handle()).unwrap();
    executor.run(async {
        let before_ns = endpoint.handle().now_ns();
        read(&endpoint, at(1, 0), 64).await.unwrap();
        let took_ns = endpoint.handle().now_ns() - before_ns;
        assert!((1_800..=2_400).contains(&took_ns), "{took_ns}");
    });
}

/// The other nodes learn of it, the dead one cannot go on, its posted write still takes effect, and it may come back.
#[test]
fn a_killed_node() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let plan = vec![(1_000_000, Fault::Kill(NodeId(1)))];
    let sim = Sim::new(&handle, Rdma, Faults { plan });
    let (a, b) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    let memory = a.create_region(REGION, 4096).unwrap();
    b.create_region(REGION, 4096).unwrap();
    executor.run(async {
        let (alive, dying) = (a.endpoint(&handle).unwrap(), b.endpoint(&handle).unwrap());
        let dead = Err(FabricError::NodeUnavailable { node: NodeId(1) });
        write(&alive, at(1, 0), b"kept").await.unwrap();
        let last_write = handle.spawn(async move {
            dying.handle().sleep_until_ns(999_900).await;
            let result = write(&dying, at(0, 0), b"late").await;
            (dying, result)
        });
        handle.sleep_until_ns(1_000_100).await;
        let (dying, result) = last_write.await;
        assert_eq!(result, dead);
        assert_eq!(memory.word(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0, "on its way");
        assert_eq!(dying.send(Address::home(NodeId(0)), b"?"), dead);
        assert_eq!(write(&alive, at(1, 0), b"lost").await, dead);
        assert_eq!(alive.send(Address::home(NodeId(1)), b"?"), dead);
        let mut late = [0; 4];
        memory.copy_out(0, &mut late).unwrap();
        assert_eq!(&late, b"late", "nobody called the write back");

        let b = sim.join(NodeId(1)).unwrap();
        b.attach_region(REGION).unwrap();
        alive.refresh(NodeId(1), REGION).unwrap();
        assert_eq!(read(&alive, at(1, 0), 4).await.unwrap(), b"kept");
        assert_eq!(write(&dying, at(0, 0), b"more").await, dead, "the new node is not the old one");
    });
}

#[test]
fn links_can_be_slow_and_cut() {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Numa, Faults::default());
    let (a, b) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    b.create_region(REGION, 4096).unwrap();
    executor.run(async {
        let (a, b) = (a.endpoint(&handle).unwrap(), b.endpoint(&handle).unwrap());
        sim.inject(Fault::Delay(hop(0, 1), 50_000));
        let before_ns = handle.now_ns();
        a.send(b.address(), b"slow").unwrap();
        assert_eq!(b.recv().await.bytes, b"slow");
        assert!(handle.now_ns() - before_ns >= 50_000);
        sim.inject(Fault::Cut(hop(0, 1)));
        assert_eq!(read(&a, at(1, 0), 8).await, Err(FabricError::NodeUnavailable { node: NodeId(1) }));
        a.send(b.address(), b"lost").unwrap();
        b.send(a.address(), b"the other way").unwrap();
        assert_eq!(a.recv().await.bytes, b"the other way");
        assert!(b.recv_timeout(1_000_000).await.is_err());
        sim.inject(Fault::Heal(hop(0, 1)));
        assert_eq!(read(&a, at(1, 0), 8).await.unwrap(), [0; 8]);
        a.send(b.address(), b"again").unwrap();
        assert_eq!(b.recv().await.bytes, b"again");
    });
}

/// A fenced node changes nothing any more, not even by what was under way, and its messages are dropped; messages of its next
/// incarnation arrive.
#[test]
fn a_fenced_node_writes_nothing() {
    let executor = Executor::virtual_time(4);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (one, two) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    let memory = one.create_region(REGION, 4096).unwrap();
    executor.run(async {
        let zombie = two.endpoint(&handle).unwrap();
        write(&zombie, at(0, 0), &[1; 8]).await.unwrap();
        let (late, later) = (handle.clone(), handle.clone());
        let writing = handle.spawn(async move {
            let wrote = write(&zombie, at(0, 0), &[2; 8]).await;
            zombie.send(Address::home(NodeId(0)), b"I am alive").unwrap();
            late.sleep_ns(10_000).await;
            (wrote, zombie)
        });
        // Posted, and not yet there.
        later.sleep_ns(300).await;
        assert!(one.fence(NodeId(1), 0).unwrap());
        let (wrote, zombie) = writing.await;
        assert_eq!(wrote, Err(FabricError::NodeUnavailable { node: NodeId(0) }));
        assert_eq!(memory.word(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0x0101_0101_0101_0101);
        assert!(one.endpoint(&handle).unwrap().try_recv_home().is_none());
        drop((zombie, two));
        let again = sim.join(NodeId(1)).unwrap();
        write(&again.endpoint(&handle).unwrap(), at(0, 0), &[3; 8]).await.unwrap();
    });
}

/// A node executes nothing for a start that it has not admitted, even if it has never fenced that start.
#[test]
fn a_start_that_is_not_admitted_writes_nothing() {
    let executor = Executor::virtual_time(4);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (one, two) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    let memory = one.create_region(REGION, 4096).unwrap();
    two.set_birth(7);
    executor.run(async {
        let endpoint = two.endpoint(&handle).unwrap();
        one.admit(3, Admitted::Births(vec![(NodeId(0), 5), (NodeId(1), 7)]));
        write(&endpoint, at(0, 0), &[1; 8]).await.unwrap();
        one.admit(4, Admitted::Births(vec![(NodeId(0), 5), (NodeId(1), 8)]));
        one.admit(3, Admitted::Everybody);
        let refused = Err(FabricError::NodeUnavailable { node: NodeId(0) });
        assert_eq!(write(&endpoint, at(0, 0), &[2; 8]).await, refused);
        assert_eq!(memory.word(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0x0101_0101_0101_0101);
        // It always executes its own instructions.
        write(&one.endpoint(&handle).unwrap(), at(0, 8), &[3; 8]).await.unwrap();
        two.set_birth(8);
        write(&endpoint, at(0, 0), &[2; 8]).await.unwrap();
    });
}

/// With the way back cut, an instruction is executed but its initiator does not learn so; a paused node learns everything
/// later.
#[test]
fn answers_can_be_lost_or_late() {
    let executor = Executor::virtual_time(5);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (one, two) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
    let memory = one.create_region(REGION, 4096).unwrap();
    executor.run(async {
        let endpoint = two.endpoint(&handle).unwrap();
        sim.inject(Fault::Cut(hop(0, 1)));
        let wrote = write(&endpoint, at(0, 0), &[2; 8]).await;
        assert_eq!(wrote, Err(FabricError::NodeUnavailable { node: NodeId(0) }));
        assert_eq!(memory.word(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0x0202_0202_0202_0202);
        sim.inject(Fault::Heal(hop(0, 1)));
        sim.inject(Fault::Pause(NodeId(1), handle.now_ns() + 1_000_000));
        let began_ns = handle.now_ns();
        write(&endpoint, at(0, 8), &[3; 8]).await.unwrap();
        assert!(handle.now_ns() >= began_ns + 1_000_000);
    });
}

/// What was flushed is there after a power cut; of what was not, each line is the older or the newer one, and both happen.
#[test]
fn unflushed_lines_may_be_lost() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 10 } {
        let executor = Executor::virtual_time(seed);
        let handle = executor.handle();
        let sim = Sim::new(&handle, Rdma, Faults::default());
        sim.keep_durable();
        let (home, other) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
        let memory = home.create_region(REGION, 4096).unwrap();
        executor.run(async {
            let endpoint = other.endpoint(&handle).unwrap();
            write(&endpoint, at(0, 0), &[1; 512]).await.unwrap();
            let mut batch = Batch::new();
            let flushed = batch.flush(at(0, 0), 512);
            endpoint.submit(batch).await.done(flushed).unwrap();
            write(&endpoint, at(0, 0), &[2; 512]).await.unwrap();
            sim.inject(Fault::PowerCut(NodeId(0)));
        });
        let mut bytes = [0; 512];
        memory.copy_out(0, &mut bytes).unwrap();
        for line in bytes.chunks(64) {
            assert!(line.iter().all(|byte| *byte == line[0]), "half a line");
            assert!(matches!(line[0], 1 | 2), "what was flushed is gone");
            *if line[0] == 1 { &mut lost } else { &mut kept } += 1;
        }
    }
    assert!(cfg!(miri) || (lost > 0 && kept > 0), "{lost} lines lost, {kept} kept");
}

/// Instructions that a cut has lost may be executed after they were given up, but not after anything later of the same
/// endpoint.
#[test]
fn what_was_given_up_may_be_done_late_and_never_out_of_order() {
    let (mut late, mut never) = (0, 0);
    for seed in 0..if cfg!(miri) { 2 } else { 40 } {
        let executor = Executor::virtual_time(seed);
        let handle = executor.handle();
        let sim = Sim::new(&handle, Rdma, Faults::default());
        let (home, other) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
        let memory = home.create_region(REGION, 8192).unwrap();
        let word = |offset| memory.word(offset).unwrap().load(std::sync::atomic::Ordering::SeqCst);
        let way = hop(1, 0);
        executor.run(async {
            let (endpoint, another) = (other.endpoint(&handle).unwrap(), other.endpoint(&handle).unwrap());
            let swap = async |endpoint: &Endpoint, offset, value| {
                let mut batch = Batch::new();
                let slot = batch.swap(at(0, offset), value);
                endpoint.submit(batch).await.word(slot)
            };
            sim.inject(Fault::Late(50));
            sim.inject(Fault::Cut(way));
            swap(&endpoint, 0, 1).await.unwrap_err();
            swap(&another, 8, 1).await.unwrap_err();
            assert_eq!((word(0), word(8)), (0, 0), "they were given up");
            sim.inject(Fault::Heal(way));
            // The first insists, the second leaves it.
            swap(&endpoint, 0, 2).await.unwrap();
            handle.sleep_ns(10_000_000).await;
            assert_eq!(word(0), 2, "seed {seed}: what was given up came behind what was done later");
            *if word(8) == 1 { &mut late } else { &mut never } += 1;
        });
    }
    assert!(cfg!(miri) || (late > 0 && never > 0), "{late} late, {never} never");
}

/// Of what a machine has posted when it crashes, some lands at once, some late, some in part, and some never.
#[test]
fn a_crash_loses_and_delays_what_was_posted() {
    // Each line has its fate: four writes of one line, and four of sixteen.
    let bytes_of = |number: u64| if number < 4 { 64 } else { 1024 };
    let (mut landed, mut late, mut partly, mut never) = (0, 0, 0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        let executor = Executor::virtual_time(seed);
        let handle = executor.handle();
        let sim = Sim::new(&handle, Rdma, Faults::default());
        let (home, dying) = (sim.join(NodeId(0)).unwrap(), sim.join(NodeId(1)).unwrap());
        let memory = home.create_region(REGION, 8192).unwrap();
        let count = |number: u64| {
            let mut bytes = [0; 1024];
            memory.copy_out(number * 1024, &mut bytes).unwrap();
            bytes.iter().filter(|byte| **byte != 0).count()
        };
        executor.run(async {
            let endpoint = dying.endpoint(&handle).unwrap();
            drop(handle.spawn(async move {
                let mut batch = Batch::new();
                for number in 0..8 {
                    batch.write(at(0, number * 1024), &[7; 1024][..bytes_of(number)]);
                }
                drop(endpoint.submit(batch).await);
            }));
            handle.sleep_ns(800).await;
            sim.inject(Fault::Crash(NodeId(1)));
            handle.sleep_ns(3_000).await;
            let soon: Vec<usize> = (0..8).map(count).collect();
            handle.sleep_ns(10_000_000).await;
            for (number, soon) in (0..8).zip(soon) {
                match count(number) {
                    all if all == bytes_of(number) && soon == all => landed += 1,
                    all if all == bytes_of(number) => late += 1,
                    0 => never += 1,
                    _ => partly += 1,
                }
            }
        });
    }
    let all = [landed, late, partly, never];
    assert!(cfg!(miri) || all.iter().all(|count| *count > 0), "{all:?}");
}
