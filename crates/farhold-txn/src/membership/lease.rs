//! A node's lease is renewed, and those of the others are looked at, apart from everything else that the node does.
//!
//! On a thread of its own ([`LeaseThread`]; so does FaRM): whoever serves messages and brings about changes is at one thing for longer than
//! a lease now and then, on a machine with more to do than processors, and a node that lives would be expelled for it. In virtual time
//! it is a task.

use super::{Register, Registered};
use crate::replication::Replication;
use crate::{Node, NodeId, TxnError};
use farhold_fabric::{Executor, Handle};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A node that has served nobody for so long hangs, though its process lives: it stops renewing, so that others take over.
const HANGS_NS: u64 = 30_000_000_000;
/// How often the thread looks whether it shall end.
const LOOK_EVERY_NS: u64 = 20_000_000;

/// The two clocks of a machine: one that only goes on, and the time of day. When the one has gone another way than the other by
/// more than the bound, the machine was stopped, or one of them is wrong.
struct Clocks {
    apart_ns: i64,
}

impl Clocks {
    fn apart_ns(handle: &Handle) -> i64 {
        handle.wall_ns().wrapping_sub(handle.now_ns()).cast_signed()
    }

    fn new(handle: &Handle) -> Self {
        Self { apart_ns: Self::apart_ns(handle) }
    }

    /// Since the last look.
    fn have_jumped(&mut self, handle: &Handle, bound_ns: u64) -> bool {
        let before = std::mem::replace(&mut self.apart_ns, Self::apart_ns(handle));
        self.apart_ns.abs_diff(before) > bound_ns && !planted!(ClockTrusted)
    }
}

/// What a node remembers of the leases of others.
pub(crate) struct Leases {
    /// By node.
    seen: Vec<Seen>,
    /// Of the last configuration looked at.
    number: u64,
    expire_ns: u64,
    looked_ns: u64,
}

/// One of them.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Of which start of the node; 0: of none any more.
    birth: u64,
    renewals: u64,
    /// When either was seen to have changed, by this node's clock.
    at_ns: u64,
}

impl Leases {
    fn new(expire_ns: u64, now_ns: u64) -> Self {
        Self { seen: Vec::new(), number: 0, expire_ns, looked_ns: now_ns }
    }

    fn look(&mut self, registered: &Registered, now_ns: u64) {
        let Some(configuration) = &registered.configuration else { return };
        if configuration.number < self.number {
            // An answer that was overtaken by a later one.
            return;
        }
        self.number = configuration.number;
        self.seen.resize(configuration.births.len(), Seen::default());
        // Who has stood still himself has not heard the others for that reason.
        let stood_still = now_ns > self.looked_ns + self.expire_ns / 2;
        self.looked_ns = now_ns;
        let now = configuration.births.iter().zip(&registered.renewals);
        for (lease, (birth, renewals)) in self.seen.iter_mut().zip(now) {
            let is_first = lease.at_ns == 0;
            if lease.birth == 0 && *birth == 0 && !is_first {
                // A renewal counts only for who sees after it that he is a member.
                continue;
            }
            let has_come = *birth != 0 && lease.birth != *birth;
            if is_first || has_come || stood_still || lease.renewals != *renewals {
                lease.at_ns = now_ns;
            }
            (lease.birth, lease.renewals) = (*birth, *renewals);
        }
    }

    /// Is the lease of this start of a node over? One that has not been seen yet has just begun.
    pub fn is_over(&self, node: NodeId, birth: u64, now_ns: u64) -> bool {
        let lease = self.seen.get(usize::from(node.0));
        // Nor says anything who has not looked for long: he may have stood still.
        let has_looked = now_ns <= self.looked_ns + self.expire_ns / 2;
        has_looked && lease.is_some_and(|lease| lease.birth == birth && now_ns > lease.at_ns + self.expire_ns)
    }

    /// Has the lease of a node that has been expelled ended? It may have renewed it between the last look of whoever expelled it
    /// and the expulsion; such a renewal shows in the first look after the expulsion, and no later one counts.
    pub fn has_ended(&self, node: NodeId, now_ns: u64) -> bool {
        let lease = self.seen.get(usize::from(node.0));
        planted!(LeaseNotWaitedFor)
            || lease.is_some_and(|lease| lease.birth == 0 && now_ns > lease.at_ns + self.expire_ns)
    }
}

/// The lease of one start of a node, and what it sees of the others'.
pub(crate) struct Lease {
    node: Arc<Node>,
    birth: u64,
    others: Mutex<Leases>,
    /// When whoever serves the node's messages last came round; [`u64::MAX`]: nobody says.
    served_ns: AtomicU64,
}

pub(super) fn replication_of(node: &Node) -> Result<&Arc<Replication>, TxnError> {
    let missing = || TxnError::NotFound { what: "replication on this node".into() };
    node.replication.as_ref().ok_or_else(missing)
}

impl Lease {
    /// # Errors
    /// [`TxnError::NotFound`] for a node without replication.
    pub fn new(node: &Arc<Node>, handle: &Handle) -> Result<Self, TxnError> {
        let config = &replication_of(node)?.config;
        let birth = node.start.or(node.fabric.birth()).unwrap_or_else(|| handle.random_u64() | 1);
        let others = Leases::new(config.lease_ns + config.clock_skew_ns_max, handle.now_ns());
        Ok(Self { node: node.clone(), birth, others: Mutex::new(others), served_ns: AtomicU64::new(u64::MAX) })
    }

    /// Which start of the node this is.
    pub fn birth(&self) -> u64 {
        self.birth
    }

    /// The node serves its messages.
    pub fn serves(&self, now_ns: u64) {
        self.served_ns.store(now_ns, Relaxed);
    }

    fn hangs(&self, now_ns: u64) -> bool {
        now_ns > self.served_ns.load(Relaxed).saturating_add(HANGS_NS)
    }

    /// What has been seen of the leases of others.
    pub fn of_others(&self) -> MutexGuard<'_, Leases> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something new about them, from the register.
    pub fn look(&self, registered: &Registered, now_ns: u64) {
        self.of_others().look(registered, now_ns);
    }

    /// Renews it until the node is gone, or its journal is over.
    pub async fn keep(&self, register: &dyn Register, handle: &Handle) {
        let Ok(replication) = replication_of(&self.node) else { return };
        let (me, view) = (self.node.id(), &replication.view);
        let (lease_ns, skew_ns) = (replication.config.lease_ns, replication.config.clock_skew_ns_max);
        // Not before this start is in the register: it would renew the lease of an earlier start, or of another process of the same name.
        let mut is_in = false;
        let mut clocks = Clocks::new(handle);
        while !view.is_gone() && self.node.journal_failure().is_none() {
            let began_ns = handle.now_ns();
            let renews = is_in && !self.hangs(began_ns);
            let (renewed, was_in) = (renews && register.renew(me).await.is_ok(), is_in);
            if clocks.have_jumped(handle, skew_ns) {
                view.void_lease(handle.now_ns());
                continue;
            }
            if let Ok(registered) = register.load().await {
                // The register takes renewals of the expelled as well: they are worth nothing.
                let births = registered.configuration.as_ref().map(|now| &now.births);
                is_in = births.is_some_and(|births| births.get(usize::from(me.0)) == Some(&self.birth));
                if renewed && is_in {
                    view.set_lease(began_ns, lease_ns - skew_ns);
                }
                self.look(&registered, handle.now_ns());
            }
            if is_in && !was_in {
                continue;
            }
            handle.sleep_ns(lease_ns / 4).await;
        }
    }
}

/// A thread that keeps a lease. Stopped and joined on drop.
pub(crate) struct LeaseThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseThread {
    /// # Errors
    /// The system has no thread left.
    pub fn start(lease: &Arc<Lease>, register: &Arc<impl Register + Send + Sync + 'static>) -> Result<Self, TxnError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, lease, register) = (stop.clone(), lease.clone(), register.clone());
        let keep = move || {
            let executor = Executor::real(RandomState::new().build_hasher().finish());
            let handle = executor.handle();
            executor.run(async {
                let inner = handle.clone();
                let keeping = handle.spawn(async move { lease.keep(&*register, &inner).await });
                while !stopped.load(Acquire) && keeping.try_take().is_none() {
                    handle.sleep_ns(LOOK_EVERY_NS).await;
                }
            });
        };
        let thread = std::thread::Builder::new().name("farhold-lease".into()).spawn(keep);
        let thread = thread.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for LeaseThread {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Configuration, RegisterError, RegisterFuture};
    use crate::{NodeConfig, ReplicationConfig};
    use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
    use std::cell::Cell;
    use std::rc::Rc;

    /// Counts renewals; its only configuration is the first.
    struct Counting {
        configuration: Configuration,
        renewals: Cell<u64>,
    }

    impl Register for Counting {
        fn load(&self) -> RegisterFuture<'_, Registered> {
            let renewals = vec![self.renewals.get(); self.configuration.births.len()];
            Box::pin(async { Ok(Registered { configuration: Some(self.configuration.clone()), settled: 1, renewals }) })
        }

        fn compare_and_set<'a>(&'a self, _: u64, _: &'a Configuration) -> RegisterFuture<'a, bool> {
            Box::pin(async { Err(RegisterError::Unavailable { reason: "not asked for".into() }) })
        }

        fn settle(&self, _: u64) -> RegisterFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }

        fn renew(&self, _: NodeId) -> RegisterFuture<'_, ()> {
            self.renewals.set(self.renewals.get() + 1);
            Box::pin(async { Ok(()) })
        }
    }

    #[test]
    fn a_node_that_hangs_lets_its_lease_go() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let sim = Sim::new(&handle, Rdma, Faults::default());
        let lease_ns = 1_000_000_000;
        let replication =
            ReplicationConfig { replicas: 2, lease_ns, rings: 3, ring_bytes: 16 << 10, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 4 << 20, replication, ..NodeConfig::default() };
        let node = Node::open(sim.join(NodeId(0)).expect("not running"), config).expect("a node");
        let lease = Arc::new(Lease::new(&node, &handle).expect("replication"));
        let mut configuration = Configuration::first(2, 2);
        configuration.births = vec![lease.birth(); 2];
        let register = Rc::new(Counting { configuration, renewals: Cell::new(0) });
        executor.run(async {
            let (keeping, by, inner) = (lease.clone(), register.clone(), handle.clone());
            drop(handle.spawn(async move { keeping.keep(&*by, &inner).await }));
            let renewed_in = async |ns| {
                let before = register.renewals.get();
                handle.sleep_ns(ns).await;
                register.renewals.get() - before
            };
            assert!(renewed_in(2 * HANGS_NS).await > 200, "nobody says whether it serves");
            lease.serves(handle.now_ns());
            assert!(renewed_in(HANGS_NS).await > 100, "it has not served for a while");
            assert!(renewed_in(HANGS_NS).await <= 1, "it hangs");
            lease.serves(handle.now_ns());
            assert!(renewed_in(HANGS_NS).await > 100, "it serves again");
            node.replication.as_ref().expect("replication").view.set_gone();
            assert!(renewed_in(HANGS_NS).await <= 1, "it is gone");
        });
    }

    #[test]
    fn a_clock_that_jumps_is_noticed_and_one_that_drifts_is_not() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        executor.run(async {
            let bound_ns = 20_000_000;
            let mut clocks = Clocks::new(&handle);
            for _ in 0..5 {
                handle.sleep_ns(50_000_000).await;
                handle.jump_wall_ns(1_000_000);
                assert!(!clocks.have_jumped(&handle, bound_ns), "a drift within the bound");
            }
            for by_ns in [3_600_000_000_000, -21_000_000, 25_000_000] {
                handle.sleep_ns(50_000_000).await;
                handle.jump_wall_ns(by_ns);
                assert!(clocks.have_jumped(&handle, bound_ns), "{by_ns}");
                assert!(!clocks.have_jumped(&handle, bound_ns), "once");
            }
        });
    }
}
