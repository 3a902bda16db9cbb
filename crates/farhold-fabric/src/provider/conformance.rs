//! One suite over [`super::ALL`]: everything that the crate promises, for each provider.

use super::{LANE_BYTES_MAX, LANES, MESSAGE_BYTES_MAX, sim};
use crate::object::{self, Meta, Version};
use crate::{Address, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, Handle, NodeId, RegionId};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Somewhere to test: a cluster of one provider.
pub(crate) struct Bed {
    pub(crate) executor: Executor,
    place: Place,
    seed: u64,
}

enum Place {
    Directory(PathBuf),
    #[cfg(feature = "libfabric")]
    Libfabric(PathBuf, super::libfabric::Config),
    Sim(sim::Sim),
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;
pub(crate) type Start = Box<dyn FnOnce(Endpoint) -> Task + Send>;

impl Bed {
    pub(crate) fn shm(seed: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cluster = super::shm::default_cluster(&name);
        super::shm::remove(&cluster).unwrap();
        Self { executor: Executor::real(seed), place: Place::Directory(cluster), seed }
    }

    #[cfg(feature = "libfabric")]
    pub(crate) fn libfabric_tcp(seed: u64) -> Self {
        Self::libfabric("tcp;ofi_rxm", seed)
    }

    #[cfg(feature = "libfabric")]
    pub(crate) fn libfabric_shm(seed: u64) -> Self {
        Self::libfabric("shm", seed)
    }

    #[cfg(feature = "libfabric")]
    fn libfabric(provider: &str, seed: u64) -> Self {
        use super::libfabric::{Config, Secret};
        println!("libfabric's {provider}");
        let mut bed = Self::shm(seed);
        let Place::Directory(cluster) = &bed.place else { unreachable!("of shm") };
        let mut config = Config::new(provider, Secret::new(b"the tests' own secret").unwrap());
        // Dead nodes are known by their processes; a late answer here means a thread that waits for a processor.
        (config.connect_timeout_ns, config.request_timeout_ns) = (30_000_000_000, 30_000_000_000);
        bed.place = Place::Libfabric(cluster.clone(), config);
        bed
    }

    pub(crate) fn sim(seed: u64) -> Self {
        let executor = Executor::virtual_time(seed);
        let place = Place::Sim(sim::Sim::new(&executor.handle(), sim::Rdma, sim::Faults::default()));
        Self { executor, place, seed }
    }

    pub(crate) fn join(&self, node: u8) -> Result<Fabric, FabricError> {
        match &self.place {
            Place::Directory(cluster) => Fabric::join_shm(cluster, NodeId(node)),
            #[cfg(feature = "libfabric")]
            Place::Libfabric(cluster, config) => Fabric::join_libfabric(cluster, NodeId(node), config.clone()),
            Place::Sim(sim) => sim.join(NodeId(node)),
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.executor.handle()
    }

    /// Runs all bodies truly beside each other, each with an endpoint: on threads of their own, or as tasks in virtual time.
    pub(crate) fn together(&self, bodies: Vec<(Fabric, Start)>) {
        if let Place::Sim(_) = &self.place {
            self.executor.run(async {
                let handle = self.handle();
                let start = |(fabric, start): (Fabric, Start)| handle.spawn(start(fabric.endpoint(&handle).unwrap()));
                let tasks: Vec<_> = bodies.into_iter().map(start).collect();
                for task in tasks {
                    task.await;
                }
            });
            return;
        }
        std::thread::scope(|scope| {
            for (number, (fabric, start)) in bodies.into_iter().enumerate() {
                let seed = self.seed + number as u64;
                scope.spawn(move || {
                    let executor = Executor::real(seed);
                    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
                    executor.run(start(endpoint));
                });
            }
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        match &self.place {
            Place::Directory(cluster) => drop(std::fs::remove_dir_all(cluster)),
            #[cfg(feature = "libfabric")]
            Place::Libfabric(cluster, _) => drop(std::fs::remove_dir_all(cluster)),
            Place::Sim(_) => {}
        }
    }
}

pub(crate) fn check(test: impl Fn(&Bed)) {
    for kind in super::ALL.iter().filter(|kind| !cfg!(miri) || kind.name == "sim") {
        for bed in kind.beds {
            for seed in 0..if cfg!(miri) { 1 } else { 3 } {
                println!("provider {}, seed {seed}", kind.name);
                test(&bed(seed));
            }
        }
    }
}

const REGION: RegionId = RegionId(7);

fn at(node: u8, offset: u64) -> FarPtr {
    FarPtr::new(NodeId(node), REGION, offset)
}

/// One instruction by itself.
async fn one<T>(
    endpoint: &Endpoint,
    add: impl FnOnce(&mut Batch) -> crate::Slot,
    get: impl FnOnce(&Batch, crate::Slot) -> T,
) -> T {
    let mut batch = Batch::new();
    let slot = add(&mut batch);
    let batch = endpoint.submit(batch).await;
    get(&batch, slot)
}

async fn word(endpoint: &Endpoint, add: impl FnOnce(&mut Batch) -> crate::Slot) -> Result<u64, FabricError> {
    one(endpoint, add, Batch::word).await
}

async fn bytes(endpoint: &Endpoint, add: impl FnOnce(&mut Batch) -> crate::Slot) -> Result<Vec<u8>, FabricError> {
    one(endpoint, add, |batch, slot| batch.bytes(slot).map(<[u8]>::to_vec)).await
}

#[test]
fn names_are_sorted_and_unique() {
    assert!(super::ALL.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn a_cancelled_instruction_does_nothing() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let memory = b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            let kept = batch.fetch_add(at(2, 0), 1);
            let cancelled = [batch.fetch_add(at(2, 8), 1), batch.write(at(2, 16), b"bytes"), batch.read(at(2, 0), 64)];
            for slot in cancelled {
                batch.cancel(slot);
            }
            let batch = endpoint.submit(batch).await;
            assert_eq!(batch.word(kept), Ok(0));
            assert!(cancelled.into_iter().all(|slot| batch.done(slot).is_ok()));
            let words: Vec<u64> = (0..4).map(|i| memory.word(i * 8).unwrap().load(Ordering::SeqCst)).collect();
            assert_eq!(words, [1, 0, 0, 0]);
        });
    });
}

#[test]
fn every_instruction() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let e = &endpoint;
            assert_eq!(word(e, |b| b.fetch_add(at(2, 8), 5)).await, Ok(0));
            assert_eq!(word(e, |b| b.fetch_add(at(2, 8), u64::MAX)).await, Ok(5));
            assert_eq!(word(e, |b| b.compare_swap(at(2, 8), 5, 9)).await, Ok(4), "not as expected: unchanged");
            assert_eq!(word(e, |b| b.compare_swap(at(2, 8), 4, 0b1100)).await, Ok(4));
            assert_eq!(word(e, |b| b.and(at(2, 8), 0b0110)).await, Ok(0b1100));
            assert_eq!(word(e, |b| b.or(at(2, 8), 0b0011)).await, Ok(0b0100));
            assert_eq!(word(e, |b| b.xor(at(2, 8), 0b0101)).await, Ok(0b0111));
            assert_eq!(word(e, |b| b.swap(at(2, 8), 77)).await, Ok(0b0010));
            assert_eq!(word(e, |b| b.clear_word(at(2, 8))).await, Ok(77));
            assert_eq!(bytes(e, |b| b.read(at(2, 0), 24)).await, Ok(vec![0; 24]));
            let text: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
            assert_eq!(bytes(e, |b| b.write(at(2, 101), &text)).await, Ok(vec![]));
            assert_eq!(bytes(e, |b| b.read(at(2, 101), 1000)).await.as_deref(), Ok(&text[..]));
            assert_eq!(bytes(e, |b| b.read(at(2, 100), 1)).await, Ok(vec![0]), "the byte before is untouched");
            assert_eq!(bytes(e, |b| b.read(at(2, 1101), 1)).await, Ok(vec![0]), "the byte behind is untouched");
            assert_eq!(bytes(e, |b| b.read(at(2, 4096), 0)).await, Ok(vec![]), "nothing, at the end");
            assert_eq!(bytes(e, |b| b.flush(at(2, 0), 4096)).await, Ok(vec![]));
        });
    });
}

#[test]
fn a_batch_has_a_result_for_each_and_is_used_again() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        for node in [&a, &b] {
            node.create_region(REGION, 4096).unwrap();
        }
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            for round in 0..20u64 {
                batch.clear();
                let near = batch.fetch_add(at(1, 0), 1);
                let bad = batch.fetch_add(at(2, 4096), 1);
                let text = batch.read(at(2, 64), 100);
                let far = batch.fetch_add(at(2, 8), 2);
                batch = endpoint.submit(batch).await;
                assert_eq!(batch.word(near), Ok(round));
                assert!(matches!(batch.word(bad), Err(FabricError::OutOfBounds { .. })));
                assert_eq!(batch.bytes(text), Ok(&[0; 100][..]));
                assert_eq!(batch.word(far), Ok(round * 2));
                assert_eq!(batch.all_done(), Err(batch.word(bad).unwrap_err()));
            }
        });
    });
}

#[test]
fn wrong_pointers_are_refused() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let e = &endpoint;
            let outside = |offset, bytes| FabricError::OutOfBounds { at: at(2, offset), bytes, region_bytes: 4096 };
            assert_eq!(bytes(e, |b| b.read(at(2, 4090), 7)).await, Err(outside(4090, 7)));
            assert_eq!(bytes(e, |b| b.write(at(2, 4095), b"ab")).await, Err(outside(4095, 2)));
            assert_eq!(bytes(e, |b| b.flush(at(2, 4095), 2)).await, Err(outside(4095, 2)));
            let last = FarPtr::OFFSET_MAX;
            assert_eq!(bytes(e, |b| b.read(at(2, last), 1)).await, Err(outside(last, 1)));
            assert_eq!(word(e, |b| b.swap(at(2, 4096), 1)).await, Err(outside(4096, 8)));
            assert_eq!(word(e, |b| b.swap(at(2, 4092), 1)).await, Err(outside(4092, 8)));
            let misaligned = FabricError::Misaligned { at: at(2, 12), align: 8 };
            assert_eq!(word(e, |b| b.fetch_add(at(2, 12), 1)).await, Err(misaligned));
            let object =
                |offset| one(e, move |b| b.read_object(at(2, offset), 8), |b, s| b.object(s).map(|o| o.version));
            assert_eq!(object(8).await, Err(FabricError::Misaligned { at: at(2, 8), align: 16 }));
            assert_eq!(object(4080).await, Err(outside(4080, 32)));
            let nowhere = FarPtr::new(NodeId(2), RegionId(9), 0);
            let missing = FabricError::NoSuchRegion { node: NodeId(2), region: RegionId(9) };
            assert_eq!(bytes(e, |b| b.read(nowhere, 1)).await, Err(missing));
            assert_eq!(
                bytes(e, |b| b.read(at(99, 0), 1)).await,
                Err(FabricError::NodeUnavailable { node: NodeId(99) })
            );
            assert!(endpoint.mapped(NodeId(99), REGION).is_none());
        });
    });
}

/// A refused instruction changes nothing, in the batch's other instructions and in memory, and the endpoint goes on.
#[test]
fn what_is_refused_leaves_no_trace() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let memory = b.create_region(REGION, 4096).unwrap();
        let content: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        memory.copy_in(0, &content).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            for round in 0..3_u8 {
                batch.clear();
                let wrong = [
                    batch.write(at(2, 4090), &[0xee; 7]),
                    batch.write(at(2, FarPtr::OFFSET_MAX), &[0xee]),
                    batch.write(FarPtr::new(NodeId(2), RegionId(9), 0), &[0xee]),
                    batch.write(at(77, 0), &[0xee]),
                    // A word of which only its half is aligned: what an atomic of four bytes would be.
                    batch.swap(at(2, 4), 0xeeee_eeee),
                    batch.fetch_add(at(2, 4092), 1),
                    batch.compare_swap(at(2, 3), 0, 0xee),
                    batch.clear_word(at(2, 4096)),
                    batch.read_object(at(2, 4080), 64),
                ];
                let right = batch.write(at(2, 64), &[round; 8]);
                batch = endpoint.submit(batch).await;
                for slot in wrong {
                    assert!(batch.done(slot).is_err());
                }
                assert_eq!(batch.done(right), Ok(()));
                let mut now = vec![0; 4096];
                memory.copy_out(0, &mut now).unwrap();
                let expected = [&content[..64], &[round; 8], &content[72..]].concat();
                assert!(now == expected, "round {round}: something else was written");
            }
        });
    });
}

/// The key of a region changes whenever it is registered, and the old one gives no access.
#[test]
fn keys_go_stale() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let stale = Err(FabricError::StaleKey { node: NodeId(2), region: REGION });
            let add = || word(&endpoint, |b| b.fetch_add(at(2, 0), 1));
            assert_eq!(add().await, Ok(0));
            let first = endpoint.refresh(NodeId(2), REGION).unwrap();
            b.attach_region(REGION).unwrap();
            assert_eq!(add().await, stale);
            assert_eq!(add().await, stale, "stale until refreshed");
            let second = endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_ne!(first, second);
            assert_eq!(add().await, Ok(1), "attached with its content");

            assert_eq!(
                b.create_region(REGION, 1).err(),
                Some(FabricError::RegionExists { node: NodeId(2), region: REGION })
            );
            b.remove_region(REGION).unwrap();
            assert_eq!(add().await, stale);
            let missing = || FabricError::NoSuchRegion { node: NodeId(2), region: REGION };
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()));
            let refused = [b.attach_region(REGION).err(), b.remove_region(REGION).err(), b.open_region(REGION).err()];
            assert_eq!(refused, [Some(missing()), Some(missing()), Some(missing())]);

            b.create_closed_region(REGION, 8192).unwrap();
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()), "not open yet");
            b.open_region(REGION).unwrap();
            let third = endpoint.refresh(NodeId(2), REGION).unwrap();
            assert!(third != second && third != first);
            assert_eq!(add().await, Ok(0), "created anew, zeroed");

            // An owner that starts again and has to change what is there before others may look.
            let memory = b.attach_closed_region(REGION).unwrap();
            assert_eq!(add().await, stale, "the key of before opens nothing");
            assert_eq!(endpoint.refresh(NodeId(2), REGION), Err(missing()));
            memory.word(0).unwrap().store(7, Ordering::SeqCst);
            b.open_region(REGION).unwrap();
            endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_eq!(add().await, Ok(7));
        });
    });
}

#[test]
fn a_node_is_one_process() {
    check(|bed| {
        let a = bed.join(1).unwrap();
        match bed.join(1).err().expect("taken") {
            FabricError::NodeInUse { node, holder_pid, .. } => {
                assert_eq!((node, holder_pid), (NodeId(1), std::process::id()));
            }
            other => panic!("{other}"),
        }
        let b = bed.join(2).unwrap();
        assert!(a.node_is_live(NodeId(1)) && a.node_is_live(NodeId(2)) && !a.node_is_live(NodeId(3)));
        drop(b);
        assert!(!a.node_is_live(NodeId(2)));
        bed.join(2).unwrap();
    });
}

/// A node comes back: its regions are as it left them, and its old inboxes are gone.
#[test]
fn regions_outlive_their_node() {
    check(|bed| {
        let a = bed.join(1).unwrap();
        let b = bed.join(2).unwrap();
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            assert_eq!(word(&endpoint, |b| b.swap(at(2, 8), 42)).await, Ok(0));
            endpoint.send(Address::home(NodeId(2)), b"too late").unwrap();
            drop(b);
            let b = bed.join(2).unwrap();
            assert_eq!(b.attach_region(REGION).unwrap().word(8).unwrap().load(Ordering::SeqCst), 42);
            assert!(matches!(word(&endpoint, |b| b.clear_word(at(2, 8))).await, Err(FabricError::StaleKey { .. })));
            endpoint.refresh(NodeId(2), REGION).unwrap();
            assert_eq!(word(&endpoint, |b| b.clear_word(at(2, 8))).await, Ok(42));
            let there = b.endpoint(&bed.handle()).unwrap();
            endpoint.send(Address::home(NodeId(2)), b"hello").unwrap();
            let message = loop {
                assert!(there.arrival(10_000_000_000).await);
                if let Some(message) = there.try_recv_home() {
                    break message;
                }
            };
            assert_eq!(message.bytes, b"hello", "what was sent to the dead is gone");
        });
    });
}

#[test]
fn counters_lose_nothing() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let (tasks, rounds) = (4, if cfg!(miri) { 4 } else { 200 });
        let body = |number: u64| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    for _ in 0..rounds {
                        word(&endpoint, |b| b.fetch_add(at(0, 0), 1)).await.unwrap();
                        let mut expected = 0;
                        loop {
                            let seen =
                                word(&endpoint, |b| b.compare_swap(at(0, 64), expected, expected + 1)).await.unwrap();
                            if seen == expected {
                                break;
                            }
                            expected = seen;
                        }
                        word(&endpoint, |b| b.xor(at(0, 128), 1 << number)).await.unwrap();
                    }
                })
            })
        };
        let nodes: Vec<Fabric> = (1..=tasks).map(|number| bed.join(number as u8).unwrap()).collect();
        bed.together(nodes.iter().zip(1..).map(|(fabric, number)| (fabric.clone(), body(number))).collect());
        let value = |offset| memory.word(offset).unwrap().load(Ordering::SeqCst);
        assert_eq!((value(0), value(64), value(128)), (tasks * rounds, tasks * rounds, 0));
    });
}

/// Writes one state of the object at 64, as a transaction would: every payload word is the version.
async fn write_object(endpoint: &Endpoint, round: u64, payload_len: usize) {
    let version = round * Version::ONE;
    let base = at(0, 64);
    word(endpoint, |b| b.swap(base.add(object::VERSION), (version - Version::ONE) | Version::WRITING)).await.unwrap();
    word(endpoint, |b| b.swap(base.add(object::META), Meta::new(1, Meta::ROW, 0, payload_len).0)).await.unwrap();
    let payload: Vec<u8> = version.to_le_bytes().into_iter().cycle().take(payload_len).collect();
    bytes(endpoint, |b| b.write(base.add(object::PAYLOAD), &payload)).await.unwrap();
    word(endpoint, |b| b.swap(base.add(object::VERSION), version)).await.unwrap();
}

/// A reader that races with a writer gets one state or `Torn`, never a mix; and it does get both.
#[test]
fn objects_are_whole_or_torn() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        home.create_region(REGION, 8192).unwrap();
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let rounds: u64 = if cfg!(miri) { 30 } else { 1_500 };
        let len = |round: u64| 8 * (1 + round as usize % 130);
        let writer: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for round in 1..=rounds {
                    write_object(&endpoint, round, len(round)).await;
                    for _ in 0..20 {
                        endpoint.handle().yield_now().await;
                    }
                }
            })
        });
        let reader: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                let (mut whole, mut torn, mut last) = (0u32, 0u32, 0);
                let mut batch = Batch::new();
                while last < rounds * Version::ONE {
                    batch.clear();
                    let slot = batch.read_object(at(0, 64), 2048);
                    batch = endpoint.submit(batch).await;
                    match batch.object(slot) {
                        Ok(object) => {
                            assert!(object.version >= last && !Version(object.version).is_writing());
                            last = object.version;
                            let expected = if last == 0 { 0 } else { len(last / Version::ONE) };
                            assert_eq!(object.payload.len(), expected);
                            for word in object.payload.chunks(8) {
                                assert_eq!(word, last.to_le_bytes(), "a mix of two states");
                            }
                            whole += 1;
                        }
                        Err(FabricError::Torn { at: torn_at }) => {
                            assert_eq!(torn_at, at(0, 64));
                            torn += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                assert!(whole > 0);
                println!("{whole} whole, {torn} torn");
            })
        });
        bed.together(vec![(a, writer), (b, reader)]);
    });
}

#[test]
fn an_object_needs_room() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = home.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let object = |offset, room| {
                one(
                    &endpoint,
                    move |b| b.read_object(at(0, offset), room),
                    |b, s| b.object(s).map(|o| (o.version, o.payload.to_vec())),
                )
            };
            memory.word(16).unwrap().store(Meta::new(3, Meta::ROW, 4, 10).0, Ordering::SeqCst);
            memory.word(8).unwrap().store(Version::of_epoch(2).with(Version::ABSENT).0, Ordering::SeqCst);
            memory.copy_in(32, b"keysvalues").unwrap();
            assert_eq!(object(0, 10).await, Ok((2 << 32 | 4, b"keysvalues".to_vec())));
            assert_eq!(
                object(0, 9).await,
                Err(FabricError::ObjectTooLong { at: at(0, 0), payload_len: 10, payload_len_max: 9 })
            );
            memory.word(8).unwrap().store(Version::WRITING, Ordering::SeqCst);
            assert_eq!(object(0, 10).await, Err(FabricError::Torn { at: at(0, 0) }));
            // A meta word that leads out of the region, near its end.
            memory.word(4096 - 48 + 16).unwrap().store(Meta::new(3, Meta::ROW, 4, 17).0, Ordering::SeqCst);
            let outside = FabricError::OutOfBounds { at: at(0, 4080), bytes: 17, region_bytes: 4096 };
            assert_eq!(object(4096 - 48, 100).await, Err(outside));
        });
    });
}

#[test]
fn messages_arrive_in_order() {
    check(|bed| {
        let count = if cfg!(miri) { 20 } else { 2_000u32 };
        let sender = |to: Address| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    for number in 0..count {
                        let mut message = number.to_le_bytes().to_vec();
                        message.resize(4 + number as usize * 37 % 700, number as u8);
                        while let Err(error) = endpoint.send(to, &message) {
                            // Not there yet, or not keeping up.
                            let passes =
                                matches!(error, FabricError::QueueFull { .. } | FabricError::NoSuchPort { .. });
                            assert!(passes, "{error}");
                            endpoint.handle().yield_now().await;
                        }
                    }
                })
            })
        };
        let receiver = |port: u16| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    let mut next = std::collections::BTreeMap::<Address, u32>::new();
                    for _ in 0..2 * count {
                        let message = loop {
                            let message = if port == 0 { endpoint.try_recv_home() } else { endpoint.try_recv() };
                            match message {
                                Some(message) => break message,
                                None => _ = endpoint.arrival(1_000_000).await,
                            }
                        };
                        let number = u32::from_le_bytes(message.bytes[..4].try_into().unwrap());
                        let expected = next.entry(message.from).or_default();
                        assert_eq!(number, *expected);
                        assert_eq!(message.bytes.len(), 4 + number as usize * 37 % 700);
                        assert!(message.bytes[4..].iter().all(|&byte| byte == number as u8));
                        *expected += 1;
                    }
                    assert_eq!(next.len(), 2);
                })
            })
        };
        let senders = bed.join(1).unwrap();
        // Port 1 is the first that a fresh node hands out.
        for (node, port) in [(2, Address::HOME_PORT), (3, 1)] {
            let to = Address { node: NodeId(node), port };
            let bodies = [(bed.join(node).unwrap(), receiver(port))];
            bed.together(bodies.into_iter().chain((0..2).map(|_| (senders.clone(), sender(to)))).collect());
        }
    });
}

#[test]
fn an_inbox_fills_and_empties() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let (a, b) = (a.endpoint(&bed.handle()).unwrap(), b.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let message = vec![7; 1000];
            for _ in 0..3 {
                let mut count = 0;
                let full = loop {
                    match a.send(b.address(), &message) {
                        Ok(()) => count += 1,
                        Err(error) => break error,
                    }
                };
                assert_eq!(full, FabricError::QueueFull { to: b.address() });
                assert_eq!(count, LANE_BYTES_MAX / 1024);
                for _ in 0..count {
                    assert_eq!(b.recv().await, crate::Message { from: a.address(), bytes: message.clone() });
                }
                assert_eq!(b.try_recv(), None);
            }
        });
    });
}

#[test]
fn wrong_messages_are_refused() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let (a, b_endpoint) = (a.endpoint(&bed.handle()).unwrap(), b.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let long = vec![1; MESSAGE_BYTES_MAX];
            let to = b_endpoint.address();
            a.send(to, &long).unwrap();
            assert_eq!(b_endpoint.recv().await.bytes, long, "the longest is allowed");
            a.send(to, b"").unwrap();
            assert_eq!(b_endpoint.recv().await.bytes, b"", "the shortest, too");
            let too_long = FabricError::MessageTooLong { bytes: MESSAGE_BYTES_MAX + 1, bytes_max: MESSAGE_BYTES_MAX };
            assert_eq!(a.send(to, &[&long[..], b"x"].concat()), Err(too_long));
            let nobody = Address { node: NodeId(2), port: 999 };
            assert_eq!(a.send(nobody, b"?"), Err(FabricError::NoSuchPort { to: nobody }));
            assert_eq!(a.send(Address::home(NodeId(9)), b"?"), Err(FabricError::NodeUnavailable { node: NodeId(9) }));
            assert_eq!(b.endpoint_at(&bed.handle(), to.port).err(), Some(FabricError::PortInUse { port: to.port }));
            assert_eq!(b.endpoint_at(&bed.handle(), 0).err(), Some(FabricError::PortInUse { port: 0 }));
            drop(b_endpoint);
            assert_eq!(a.send(to, b"?"), Err(FabricError::NoSuchPort { to }));
            let again = b.endpoint_at(&bed.handle(), to.port).unwrap();
            a.send(to, b"!").unwrap();
            assert_eq!(again.recv().await.bytes, b"!");
            assert_eq!(again.recv_timeout(1000).await, Err(FabricError::Timeout { waited_ns: 1000 }));
        });
    });
}

/// An inbox has room for `LANES` senders, and an endpoint that is dropped makes room.
#[test]
fn senders_are_limited() {
    if cfg!(miri) {
        return;
    }
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let b = b.endpoint(&bed.handle()).unwrap();
        let mut senders: Vec<_> = (0..=LANES).map(|_| a.endpoint(&bed.handle()).unwrap()).collect();
        let last = senders.pop().unwrap();
        bed.executor.run(async {
            for sender in &senders {
                sender.send(b.address(), b"x").unwrap();
            }
            assert_eq!(last.send(b.address(), b"y"), Err(FabricError::TooManySenders { to: b.address() }));
            for _ in 0..LANES {
                assert_eq!(b.recv().await.bytes, b"x");
            }
            senders.clear();
            last.send(b.address(), b"y").unwrap();
            assert_eq!(b.recv().await.bytes, b"y");
        });
    });
}

/// A waiting thread is woken by its doorbell: for its own inbox and for the home inbox.
#[test]
fn waiting_ends_with_a_message() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        assert!(!a.endpoint(&bed.handle()).unwrap().wait(1), "nobody sent");
        let receiver: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for number in 0..10u8 {
                    let message = loop {
                        if let Some(message) = endpoint.try_recv_home() {
                            break message;
                        }
                        // In virtual time `wait` returns at once: let time pass.
                        let _ = endpoint.wait(10_000_000_000);
                        endpoint.handle().yield_now().await;
                    };
                    assert_eq!(message.bytes, [number]);
                    endpoint.send(message.from, &message.bytes).unwrap();
                }
            })
        });
        let sender: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for number in 0..10u8 {
                    endpoint.send(Address::home(NodeId(2)), &[number]).unwrap();
                    let back = loop {
                        if let Some(message) = endpoint.try_recv() {
                            break message;
                        }
                        let _ = endpoint.wait(10_000_000_000);
                        endpoint.handle().yield_now().await;
                    };
                    assert_eq!(back.bytes, [number]);
                }
            })
        });
        bed.together(vec![(b, receiver), (a, sender)]);
    });
}

/// An instruction whose future is dropped early is still executed, and nothing is left behind.
#[test]
fn a_dropped_submission_still_happens() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = Rc::new(home.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let mut batch = Batch::new();
            batch.fetch_add(at(0, 0), 1);
            {
                let mut submission = std::pin::pin!(endpoint.submit(batch));
                std::future::poll_fn(|cx| {
                    let _ = submission.as_mut().poll(cx);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            let until_ns = bed.handle().now_ns() + 10_000_000_000;
            while memory.word(0).unwrap().load(Ordering::SeqCst) == 0 && bed.handle().now_ns() < until_ns {
                bed.handle().sleep_ns(1_000_000).await;
            }
            assert_eq!(memory.word(0).unwrap().load(Ordering::SeqCst), 1);
        });
    });
}
