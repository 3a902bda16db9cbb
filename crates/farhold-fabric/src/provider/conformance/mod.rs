//! One suite over [`super::ALL`]: everything that the crate promises, for each provider.
//!
//! This file has the cluster that a test runs on, of one provider and one seed, and what the tests share.

mod instructions;
mod messages;
mod objects;
mod regions;

use super::sim;
use crate::{Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, Handle, NodeId, RegionId};
use farhold_testkit::{TempDir, memory_directory};
use std::future::Future;
use std::pin::Pin;

/// Somewhere to test: a cluster of one provider.
pub(crate) struct Bed {
    pub(crate) executor: Executor,
    place: Place,
    seed: u64,
}

enum Place {
    Directory(TempDir),
    #[cfg(feature = "libfabric")]
    Libfabric(TempDir, super::libfabric::Config),
    Sim(sim::Sim),
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;
pub(crate) type Start = Box<dyn FnOnce(Endpoint) -> Task + Send>;

impl Bed {
    pub(crate) fn shm(seed: u64) -> Self {
        Self { executor: Executor::real(seed), place: Place::Directory(memory_directory()), seed }
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
        let mut config = Config::new(provider, Secret::new(b"the tests' own secret").unwrap());
        // Dead nodes are known by their processes; a late answer here means a thread that waits for a processor.
        (config.connect_timeout_ns, config.request_timeout_ns) = (30_000_000_000, 30_000_000_000);
        Self { executor: Executor::real(seed), place: Place::Libfabric(memory_directory(), config), seed }
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

    /// Runs all bodies concurrently, each with an endpoint: on threads of their own, or as tasks in virtual time.
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
