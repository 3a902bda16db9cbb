//! Renews a node's lease and watches the leases of the others, apart from everything else that the node does.
//!
//! It has a thread of its own ([`LeaseThread`]), as in FaRM. On an overloaded machine, the thread that serves messages
//! and makes changes is now and then busy for longer than a lease, and a living node would be expelled for it. In
//! virtual time it is a task.

use crate::base::error::TxnError;
use crate::cluster::configuration::Configuration;
use crate::cluster::register::{Register, Registered, Renewals};
use crate::cluster::view::Moment;
use crate::node::Node;
use crate::replication::Replication;
use farhold_fabric::{Executor, Handle, NodeId};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// For how many leases the link between two nodes may be cut before one of them is expelled, while neither is alone.
const APART_LEASES: u64 = 8;
/// How often the thread looks whether it must end.
const LOOK_EVERY_NS: u64 = 20_000_000;
/// How many times in a lease the renewing task checks whether the lease has begun. For up to this part of a lease, a
/// node may be a member that cannot commit yet.
const BEGUN_LOOKS: u64 = 64;

/// The two clocks of a machine: the monotonic clock and the time of day. If they differ by more than the bound, the
/// machine was stopped, or one of them is wrong.
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
    /// Which node misses which.
    missing: Vec<Missing>,
    /// What the register has said last.
    configuration: Option<Arc<Configuration>>,
}

/// A node that renews its lease, and which start of another one it misses.
#[derive(Clone, Copy)]
struct Missing {
    by: NodeId,
    whom: NodeId,
    birth: u64,
    /// When it was first seen to miss it.
    since_ns: u64,
}

/// The lease of one node.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The start of the node that holds it; 0 for none.
    birth: u64,
    renewals: u64,
    /// When this node last saw either field change, by its own clock.
    at_ns: u64,
}

impl Leases {
    fn new(expire_ns: u64, now_ns: u64) -> Self {
        Self { seen: Vec::new(), number: 0, expire_ns, looked_ns: now_ns, missing: Vec::new(), configuration: None }
    }

    fn look(&mut self, registered: &Registered, now_ns: u64) {
        let Some(configuration) = &registered.configuration else { return };
        if configuration.number < self.number {
            // An answer that was overtaken by a later one.
            return;
        }
        if self.configuration.as_ref().is_none_or(|known| known.number < configuration.number) {
            self.configuration = Some(Arc::new(configuration.clone()));
        }
        self.number = configuration.number;
        self.seen.resize(configuration.births.len(), Seen::default());
        // An observer that was paused has not heard the others for that reason.
        let stood_still = now_ns > self.looked_ns + self.expire_ns / 2;
        self.looked_ns = now_ns;
        let now = configuration.births.iter().zip(&registered.renewals);
        for (lease, (birth, renewals)) in self.seen.iter_mut().zip(now) {
            let is_first = lease.at_ns == 0;
            if lease.birth == 0 && *birth == 0 && !is_first {
                // A renewal counts only for a node that sees after it that it is a member.
                continue;
            }
            let has_come = *birth != 0 && lease.birth != *birth;
            if is_first || has_come || stood_still || lease.renewals != renewals.count {
                lease.at_ns = now_ns;
            }
            (lease.birth, lease.renewals) = (*birth, renewals.count);
        }
        self.look_who_misses(configuration, &registered.renewals, now_ns);
    }

    fn look_who_misses(&mut self, configuration: &Configuration, renewals: &[Renewals], now_ns: u64) {
        let before = std::mem::take(&mut self.missing);
        for by in configuration.everybody() {
            for whom in renewals.get(usize::from(by.0)).map_or(&[][..], |it| &it.misses) {
                let (whom, birth) = (*whom, self.birth(*whom));
                let is_same = |it: &&Missing| (it.by, it.whom, it.birth) == (by, whom, birth);
                let since_ns = before.iter().find(is_same).map_or(now_ns, |it| it.since_ns);
                if configuration.contains(whom) {
                    self.missing.push(Missing { by, whom, birth, since_ns });
                }
            }
        }
    }

    /// The configuration that the register had at the last look. It may not be installed everywhere yet.
    pub fn registered(&self) -> Option<Arc<Configuration>> {
        self.configuration.clone()
    }

    /// Which start of a node is there; 0: none.
    fn birth(&self, node: NodeId) -> u64 {
        self.seen.get(usize::from(node.0)).map_or(0, |seen| seen.birth)
    }

    /// A node that renews its lease and cannot reach others, if there is one. It is the node that more than half of the
    /// others miss. Where links are cut in another pattern for long, it is the node that most others miss; of several, one
    /// that is joining. Nodes whose leases are over neither miss nor are missed.
    pub fn cut_off(&self, configuration: &Configuration, silent: &[NodeId], now_ns: u64) -> Option<NodeId> {
        let speaking: Vec<NodeId> = configuration.everybody().filter(|node| !silent.contains(node)).collect();
        let is_for = |it: &&Missing, ns| now_ns >= it.since_ns + ns;
        let between = |it: &&Missing| speaking.contains(&it.by) && speaking.contains(&it.whom);
        let heard: Vec<&Missing> =
            self.missing.iter().filter(between).filter(|it| is_for(it, self.expire_ns)).collect();
        let missed_by = |node: NodeId| heard.iter().filter(|it| it.whom == node).count();
        let is_joining = |node: NodeId| configuration.joining.contains(&node);
        let by_most = speaking.iter().copied().max_by_key(|node| (missed_by(*node), is_joining(*node), *node))?;
        let is_alone = missed_by(by_most) * 2 > speaking.len() - 1;
        let is_long = heard.iter().any(|it| it.whom == by_most && is_for(it, APART_LEASES * self.expire_ns));
        (is_alone || is_long).then_some(by_most)
    }

    /// Is the lease of this start of a node over? One that has not been seen yet has just begun.
    pub fn is_over(&self, node: NodeId, birth: u64, now_ns: u64) -> bool {
        let lease = self.seen.get(usize::from(node.0));
        // An observer that has not looked for long must not declare leases expired: it may have been paused.
        let has_looked = now_ns <= self.looked_ns + self.expire_ns / 2;
        has_looked && lease.is_some_and(|lease| lease.birth == birth && now_ns > lease.at_ns + self.expire_ns)
    }

    /// Has the lease of a node that has been expelled ended? The node may have renewed it between the last look of the
    /// expelling node and the expulsion. Such a renewal shows in the first look after the expulsion; no later renewal
    /// counts.
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
    /// This start of the node is in the register.
    begun: AtomicBool,
    others: Mutex<Leases>,
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
        let birth = node.birth(handle);
        node.fabric.set_birth(birth);
        let others = Leases::new(config.lease_ns + config.clock_skew_ns_max, handle.now_ns());
        Ok(Self { node: node.clone(), birth, begun: AtomicBool::new(false), others: Mutex::new(others) })
    }

    /// Which start of the node this is.
    pub fn birth(&self) -> u64 {
        self.birth
    }

    /// This start is in the register, so its lease must be renewed. Before that, a renewal would count for an earlier
    /// start, or for another process of the same name.
    pub fn begin(&self) {
        self.begun.store(true, Release);
    }

    /// Has this start been in the register?
    pub fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }

    /// What has been seen of the leases of others.
    pub fn of_others(&self) -> MutexGuard<'_, Leases> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something new about them, from the register.
    pub fn look(&self, registered: &Registered, now_ns: u64) {
        self.of_others().look(registered, now_ns);
    }

    /// The present nodes that this node does not reach.
    fn misses(&self, replication: &Replication, now_ns: u64) -> Vec<NodeId> {
        let missed = replication.reach.missed(now_ns, replication.config.lease_ns);
        let others = self.of_others();
        let is_there = |(node, birth): &(NodeId, u64)| others.birth(*node) == *birth && !planted!(MissedUntold);
        missed.into_iter().filter(is_there).map(|(node, _)| node).collect()
    }

    /// Renews it until the node is gone, or its journal is over.
    pub async fn keep(&self, register: &dyn Register, handle: &Handle) {
        let Ok(replication) = replication_of(&self.node) else { return };
        let (me, view) = (self.node.id(), &replication.view);
        let (lease_ns, skew_ns) = (replication.config.lease_ns, replication.config.clock_skew_ns_max);
        let is_over = || {
            if let Some(journaling) = &self.node.journaling {
                journaling.fail_if_hung(handle.now_ns());
            }
            view.is_gone() || self.node.journal_failure().is_some()
        };
        while !is_over() && !self.begun.load(Acquire) {
            handle.sleep_ns(LOOK_EVERY_NS.min(lease_ns / BEGUN_LOOKS)).await;
        }
        let mut is_in = true;
        let mut clocks = Clocks::new(handle);
        while !is_over() {
            let began = Moment::exactly_now(handle);
            let misses = self.misses(replication, handle.now_ns());
            let renewed = is_in && register.renew(me, &misses).await.is_ok();
            if clocks.have_jumped(handle, skew_ns) {
                view.void_lease();
                continue;
            }
            if let Ok(registered) = register.load().await {
                // The register takes renewals of expelled nodes as well, but they have no effect.
                let births = registered.configuration.as_ref().map(|now| &now.births);
                is_in = births.is_some_and(|births| births.get(usize::from(me.0)) == Some(&self.birth));
                if renewed && is_in {
                    view.set_lease(began, lease_ns - skew_ns);
                }
                self.look(&registered, handle.now_ns());
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
    use crate::cluster::register::RegisterFuture;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A look at three nodes that have all renewed; some of them miss others.
    fn look(leases: &mut Leases, births: [u64; 3], missing: &[(u8, u8)], now_ns: u64) -> Option<NodeId> {
        let mut configuration = Configuration::first(3, 2);
        configuration.births = births.to_vec();
        let misses = |by| missing.iter().filter(|it| it.0 == by).map(|it| NodeId(it.1)).collect();
        let renewals = (0..3).map(|node| Renewals { count: now_ns, misses: misses(node) }).collect();
        let registered = Registered { configuration: Some(configuration.clone()), settled: 1, renewals };
        leases.look(&registered, now_ns);
        leases.cut_off(&configuration, &[], now_ns)
    }

    #[test]
    fn who_is_alone_goes_and_of_two_who_miss_each_other_for_long_one() {
        let births = [5, 6, 7];
        let mut leases = Leases::new(10, 0);
        assert_eq!(look(&mut leases, births, &[(2, 0), (2, 1)], 1), None);
        assert_eq!(look(&mut leases, births, &[(2, 0), (2, 1)], 12), None, "it says so alone");
        assert_eq!(look(&mut leases, births, &[(2, 0), (2, 1), (0, 2), (1, 2)], 13), None, "just said");
        assert_eq!(look(&mut leases, births, &[(2, 0), (2, 1), (0, 2), (1, 2)], 23), Some(NodeId(2)));
        assert_eq!(look(&mut leases, [5, 6, 8], &[(0, 2), (1, 2)], 24), None, "another start of it");
        let mut leases = Leases::new(10, 0);
        assert_eq!(look(&mut leases, births, &[(0, 1), (1, 0)], 1), None);
        assert_eq!(look(&mut leases, births, &[(0, 1), (1, 0)], 80), None, "the third reaches both");
        assert_eq!(look(&mut leases, births, &[(0, 1), (1, 0)], 81), Some(NodeId(1)));
        assert_eq!(look(&mut leases, births, &[], 82), None, "together again");
        assert_eq!(look(&mut leases, births, &[(0, 1), (1, 0)], 83), None);
    }

    #[test]
    fn of_two_nodes_the_one_that_does_not_answer_goes() {
        let mut configuration = Configuration::first(2, 2);
        configuration.births = vec![5, 6];
        for whom in [NodeId(0), NodeId(1)] {
            let mut leases = Leases::new(10, 0);
            let mut renewals = vec![Renewals::default(); 2];
            renewals[usize::from(1 - whom.0)].misses.push(whom);
            let registered = Registered { configuration: Some(configuration.clone()), settled: 1, renewals };
            leases.look(&registered, 1);
            assert_eq!(leases.cut_off(&configuration, &[], 10), None);
            assert_eq!(leases.cut_off(&configuration, &[], 11), Some(whom));
            assert_eq!(
                leases.cut_off(&configuration, &[NodeId(1 - whom.0)], 11),
                None,
                "whose lease is over says nothing"
            );
        }
    }

    /// A register in which the clock jumps while a lease is renewed, and which then looks whether the node believes in its lease.
    struct Jumping {
        handle: Handle,
        node: Arc<Node>,
        birth: u64,
        by_ns: Cell<i64>,
        /// Of each renewal after a jump: whether the node might commit meanwhile.
        believed: RefCell<Vec<bool>>,
    }

    impl Register for Jumping {
        fn load(&self) -> RegisterFuture<'_, Registered> {
            let mut configuration = Configuration::first(2, 2);
            configuration.births = vec![self.birth, 7];
            let renewals = vec![Renewals::default(); 2];
            Box::pin(async { Ok(Registered { configuration: Some(configuration), settled: 1, renewals }) })
        }

        fn compare_and_set<'a>(&'a self, _: u64, _: &'a Configuration) -> RegisterFuture<'a, bool> {
            Box::pin(async { Ok(false) })
        }

        fn settle(&self, _: u64) -> RegisterFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }

        fn renew<'a>(&'a self, _: NodeId, _: &'a [NodeId]) -> RegisterFuture<'a, ()> {
            Box::pin(async {
                let view = &replication_of(&self.node).expect("copies").view;
                if view.clock_jumps() > 0 {
                    self.believed.borrow_mut().push(view.is_settled(Moment::now(&self.handle)));
                }
                self.handle.jump_wall_ns(self.by_ns.take());
                self.handle.sleep_ns(1_000_000).await;
                Ok(())
            })
        }
    }

    #[test]
    fn a_renewal_in_which_the_clock_jumps_is_no_lease() {
        let dir = tempfile::tempdir().expect("a directory");
        let fabric = farhold_fabric::Fabric::join_shm(dir.path(), NodeId(0)).expect("the fabric");
        let replication =
            crate::cluster::settings::ReplicationConfig { replicas: 2, ring_bytes: 64 << 10, ..Default::default() };
        let config = crate::node::NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..Default::default() };
        let node = Node::open(fabric, config).expect("a node");
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        executor.run(async {
            let lease = Lease::new(&node, &handle).expect("a lease");
            lease.begin();
            let register = Rc::new(Jumping {
                handle: handle.clone(),
                node: node.clone(),
                birth: lease.birth(),
                by_ns: Cell::new(0),
                believed: RefCell::default(),
            });
            let view = &replication_of(&node).expect("copies").view;
            view.install(&Arc::new(Configuration::first(2, 2)), &node.catalog);
            let (kept_by, inner) = (register.clone(), handle.clone());
            drop(handle.spawn(async move { lease.keep(&*kept_by, &inner).await }));
            handle.sleep_ns(200_000_000).await;
            assert!(view.is_settled(Moment::now(&handle)) && view.clock_jumps() == 0);
            register.by_ns.set(3_600_000_000_000);
            handle.sleep_ns(200_000_000).await;
            assert!(view.is_settled(Moment::now(&handle)) && view.clock_jumps() == 1, "renewed since");
            let believed = register.believed.borrow();
            assert!(!believed[0] && believed[1..].iter().all(|it| *it), "{believed:?}");
            view.set_gone();
        });
        node.close();
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
