//! What a node makes of its configuration: a few words that commits look at.

use crate::base::catalog::Catalog;
use crate::base::nodes::{NOBODY, NodeSet, ServingMap};
use crate::base::slots::WORKERS_MAX;
use crate::cluster::configuration::{Configuration, Serving};
use farhold_fabric::{Handle, NodeId};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A time by both clocks of a machine. Leases go by the first. A virtual machine may be stopped together with that
/// clock; this shows in the second clock once it has been corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    now_ns: u64,
    /// The time of day.
    day_ns: u64,
}

impl Moment {
    /// For callers that tolerate an older time: the time of day is as of the last tick, which costs a fifth.
    #[inline]
    pub fn now(handle: &Handle) -> Self {
        Self { now_ns: handle.now_ns(), day_ns: handle.coarse_wall_ns() }
    }

    /// A tick may be as long as a lease, and what begins a tick too early would be over.
    pub fn exactly_now(handle: &Handle) -> Self {
        Self { day_ns: handle.wall_ns(), ..Self::now(handle) }
    }
}

/// A node's view of its cluster. Before it has installed a configuration it is frozen.
pub(crate) struct View {
    installed: RwLock<Arc<Configuration>>,
    /// The configuration of all nodes that may have founded the cluster.
    founders: Arc<Configuration>,
    /// The configuration that it is frozen for.
    proposed: Mutex<Option<Arc<Configuration>>>,
    frozen: AtomicBool,
    /// It has been expelled, for good.
    gone: AtomicBool,
    /// The nodes of the latest configuration that this node knows of, installed or proposed.
    pub present: NodeSet,
    /// For each node, the number of the first configuration without it, the last time that it left.
    left_at: [AtomicU64; 256],
    /// `left_at` as it was when the node's present start came: what belongs to an earlier configuration is about an
    /// earlier start.
    began_after: [AtomicU64; 256],
    /// The first configuration that this node's present start was in; 0 if it founded the cluster.
    own_start: AtomicU64,
    pub serving: Arc<ServingMap>,
    keeper: AtomicU8,
    /// Commits between their admission and their marks, by worker.
    in_flight: Box<[InFlight]>,
    /// The highest epoch that a commit here has read.
    epoch_seen: AtomicU32,
    /// Until when this node may commit, by its own clock and by the time of day. The lease is over when either says so.
    lease_until_ns: AtomicU64,
    lease_until_day_ns: AtomicU64,
    /// How often the clock has been seen to jump.
    clock_jumps: AtomicU64,
}

/// A worker's commits between their admission and their marks. Only the worker writes the word, so to count one out is
/// a plain store, which does not wait until the stores of its record are in the cache. No two workers change one line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct InFlight(AtomicU64);

impl InFlight {
    /// The swap's full barrier orders the count before the look at the flag.
    #[inline]
    fn begin(&self) {
        self.0.swap(self.0.load(Relaxed) + 1, SeqCst);
    }

    #[inline]
    fn end(&self) {
        self.0.store(self.0.load(Relaxed) - 1, Release);
    }
}

/// The same, for a commit that waits for nothing.
#[derive(Debug)]
pub(crate) struct Passed<'v>(&'v InFlight);

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl View {
    pub fn new(nodes: u8, replicas: u8) -> Self {
        let nobody = (Vec::new(), Vec::new());
        let first = Configuration::first(nodes, replicas);
        let nothing = Configuration { number: 0, members: nobody.0, mirrors: nobody.1, ..first.clone() };
        Self {
            founders: Arc::new(first),
            installed: RwLock::new(Arc::new(nothing)),
            proposed: Mutex::default(),
            frozen: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            present: NodeSet::default(),
            left_at: [const { AtomicU64::new(0) }; 256],
            began_after: [const { AtomicU64::new(0) }; 256],
            own_start: AtomicU64::new(0),
            serving: Arc::new(ServingMap::new()),
            keeper: AtomicU8::new(0),
            in_flight: (0..WORKERS_MAX).map(|_| InFlight::default()).collect(),
            epoch_seen: AtomicU32::new(0),
            lease_until_ns: AtomicU64::new(0),
            lease_until_day_ns: AtomicU64::new(0),
            clock_jumps: AtomicU64::new(0),
        }
    }

    pub fn configuration(&self) -> Arc<Configuration> {
        self.installed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration that the node is frozen for.
    pub fn proposed(&self) -> Option<Arc<Configuration>> {
        self.proposed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one that it has been led into. A founder may hear of its cluster only after the cluster has gone on without
    /// another founder. It begins with all founders.
    pub fn configuration_or_founders(&self) -> Arc<Configuration> {
        let installed = self.configuration();
        if installed.number == 0 { self.founders.clone() } else { installed }
    }

    #[inline]
    pub fn keeper(&self) -> NodeId {
        NodeId(self.keeper.load(Relaxed))
    }

    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(SeqCst)
    }

    /// Has the node learned that it has been expelled?
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }

    pub fn set_gone(&self) {
        self.frozen.store(true, SeqCst);
        self.gone.store(true, SeqCst);
    }

    /// A renewal that began at `began` has been confirmed, so the lease lasts for `lease_ns` from then on. Only one thread calls this
    /// and [`Self::void_lease`].
    pub fn set_lease(&self, began: Moment, lease_ns: u64) {
        self.lease_until_day_ns.store(began.day_ns.saturating_add(lease_ns), SeqCst);
        self.lease_until_ns.store(began.now_ns + lease_ns, SeqCst);
    }

    /// A clock has jumped, so it is unknown how long the lease has lasted: it is over, until it is renewed.
    pub fn void_lease(&self) {
        self.lease_until_ns.store(0, SeqCst);
        self.clock_jumps.fetch_add(1, SeqCst);
    }

    pub fn clock_jumps(&self) -> u64 {
        self.clock_jumps.load(SeqCst)
    }

    /// May what has been validated now count? Asked after validation: the configuration in which the transaction began
    /// still stands on this node.
    #[inline]
    pub fn is_settled(&self, now: Moment) -> bool {
        let is_leased = now.now_ns < self.lease_until_ns.load(SeqCst)
            && (now.day_ns < self.lease_until_day_ns.load(SeqCst) || planted!(ClockTrusted));
        !self.frozen.load(SeqCst) && (is_leased || planted!(LeaseIgnored))
    }

    /// Counts a commit out that has [passed](Self::pass).
    #[inline]
    pub fn leave(&self, worker: u8) {
        self.in_flight[usize::from(worker)].end();
    }

    /// As [`Self::admit`], if `may` says so when the commit has been counted.
    #[inline]
    pub fn pass(&self, worker: u8, may: impl FnOnce() -> bool) -> Option<Passed<'_>> {
        let passed = Passed(self.in_flight.get(usize::from(worker))?);
        passed.0.begin();
        // The count first, then the look: the freezing thread raises the flag first and then looks at the count.
        let may = may() || planted!(NoFreeze);
        may.then_some(passed)
    }

    /// Is the last start of the node that this node knows of the start that was in the configuration with this number?
    /// A node that has come back has an empty region, so what was meant for rows of an earlier start would change other
    /// rows.
    pub fn is_same_start(&self, node: NodeId, since: u64) -> bool {
        self.began_after[usize::from(node.0)].load(SeqCst) <= since || planted!(ComesBackTheSame)
    }

    /// Is the node present, and [the same start](Self::is_same_start)?
    pub fn is_there(&self, node: NodeId, since: u64) -> bool {
        self.present.contains(node) && self.is_same_start(node, since)
    }

    /// Does this node join with the latest configuration that it knows of, installed or proposed? It is no member yet
    /// then.
    pub fn is_joining(&self, me: NodeId) -> bool {
        self.proposed().unwrap_or_else(|| self.configuration()).joining.contains(&me)
    }

    /// This node's start comes into the cluster with this configuration.
    pub fn begin(&self, number: u64) {
        self.own_start.store(number, SeqCst);
    }

    /// Is this configuration earlier than the first one with this node's start? A node that is still in it has been
    /// left behind, and refers to an earlier start.
    pub fn is_before_this_start(&self, number: u64) -> bool {
        number < self.own_start.load(SeqCst)
    }

    /// Notes which nodes leave and which come between two configurations.
    fn note_starts(&self, before: &Configuration, next: &Configuration) {
        for node in before.everybody().filter(|node| !next.contains(*node)) {
            self.left_at[usize::from(node.0)].fetch_max(next.number, SeqCst);
        }
        for node in next.everybody().filter(|node| !before.contains(*node)) {
            let left_at = self.left_at[usize::from(node.0)].load(SeqCst);
            self.began_after[usize::from(node.0)].store(left_at, SeqCst);
        }
    }

    #[inline]
    pub fn saw_epoch(&self, epoch: u32) {
        // It is the same for thousands of commits.
        if self.epoch_seen.load(SeqCst) < epoch {
            self.epoch_seen.fetch_max(epoch, SeqCst);
        }
    }

    pub fn epoch_seen(&self) -> u32 {
        self.epoch_seen.load(SeqCst)
    }

    /// No commit is between its admission and its marks.
    pub fn is_quiet(&self) -> bool {
        self.in_flight.iter().all(|in_flight| in_flight.0.load(SeqCst) == 0)
    }

    /// Stops commits until `next` is installed. False: it is installed already, or a later one is known.
    pub fn freeze(&self, next: &Arc<Configuration>, catalog: &Catalog) -> bool {
        let mut proposed = self.proposed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = proposed.as_ref().map_or(0, |proposed| proposed.number).max(self.configuration().number);
        if next.number < known || next.number == self.configuration().number {
            return false;
        }
        if proposed.as_ref().is_none_or(|proposed| proposed.number < next.number) {
            self.frozen.store(true, SeqCst);
            self.note_starts(&proposed.clone().unwrap_or_else(|| self.configuration_or_founders()), next);
            self.present.set(next.everybody());
            // Everything begun before is refused at its commit.
            catalog.indexes_changed();
            *proposed = Some(next.clone());
        }
        true
    }

    /// Goes on in `next`.
    pub fn install(&self, next: &Arc<Configuration>, catalog: &Catalog) {
        let mut proposed = self.proposed.lock().unwrap_or_else(PoisonError::into_inner);
        if next.number < self.configuration().number || proposed.as_ref().is_some_and(|it| it.number > next.number) {
            return;
        }
        self.note_starts(&proposed.clone().unwrap_or_else(|| self.configuration_or_founders()), next);
        self.present.set(next.everybody());
        let serving = |it: &Serving| if let Serving::By(node) = it { node.0 } else { NOBODY };
        self.serving.set(next.partitions.iter().map(serving));
        self.keeper.store(next.keeper.0, SeqCst);
        *self.installed.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        catalog.indexes_changed();
        *proposed = None;
        if !self.is_gone() {
            self.frozen.store(false, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_void_is_over_until_it_is_renewed() {
        let view = View::new(3, 2);
        let catalog = Catalog::default();
        view.install(&Arc::new(Configuration::first(3, 2)), &catalog);
        let at = |now_ns| Moment { now_ns, day_ns: 1_000 + now_ns };
        assert!(!view.is_settled(at(5)), "it has none yet");
        view.set_lease(at(10), 100);
        assert!(view.is_settled(at(109)) && !view.is_settled(at(110)));
        let stopped = Moment { day_ns: 1_110, ..at(20) };
        assert!(!view.is_settled(stopped), "its clock has stood");
        let set_back = Moment { day_ns: 3, ..at(110) };
        assert!(!view.is_settled(set_back), "a time of day that is set back makes no lease longer");
        view.void_lease();
        assert!(!view.is_settled(at(51)));
        view.set_lease(at(60), 100);
        assert!(view.is_settled(at(61)));
        assert_eq!(view.clock_jumps(), 1);
    }

    #[test]
    fn it_is_quiet_when_no_worker_has_a_commit_on_its_way() {
        let view = View::new(3, 2);
        assert!(view.is_quiet());
        let (one, other) = (view.pass(0, || true), view.pass(7, || true));
        let again = view.pass(7, || true);
        assert!(one.is_some() && !view.is_quiet());
        drop((one, other));
        assert!(again.is_some() && !view.is_quiet(), "the second of one worker");
        drop(again);
        assert!(view.is_quiet());
        let refused = view.pass(1, || {
            assert!(!view.is_quiet(), "counted before the look");
            false
        });
        assert!(refused.is_none() && view.is_quiet());
    }

    /// A founder learns of its cluster when the cluster has gone on without node 1, which then comes back.
    #[test]
    fn who_left_before_this_node_heard_of_its_cluster_is_not_who_comes_back() {
        let (view, catalog) = (View::new(3, 2), Catalog::default());
        let of = |number, there: &[u8]| {
            let members = there.iter().map(|node| NodeId(*node)).collect();
            Arc::new(Configuration { number, members, ..Configuration::first(3, 2) })
        };
        view.freeze(&of(5, &[0, 2]), &catalog);
        view.install(&of(5, &[0, 2]), &catalog);
        view.freeze(&of(6, &[0, 1, 2]), &catalog);
        view.install(&of(6, &[0, 1, 2]), &catalog);
        assert!(!view.is_same_start(NodeId(1), 4) && view.is_same_start(NodeId(1), 6));
        assert!(view.is_same_start(NodeId(2), 4));
    }

    #[test]
    fn who_comes_back_is_not_who_left() {
        let (view, catalog) = (View::new(3, 2), Catalog::default());
        let configuration = |number, there: &[u8]| {
            let members = there.iter().map(|node| NodeId(*node)).collect();
            Arc::new(Configuration { number, members, ..Configuration::first(3, 2) })
        };
        let it = NodeId(1);
        view.install(&configuration(4, &[0, 1, 2]), &catalog);
        assert!(view.is_same_start(it, 4));
        view.freeze(&configuration(5, &[0, 2]), &catalog);
        assert!(view.is_same_start(it, 4), "what it has left is redone into its mirrors");
        view.freeze(&configuration(6, &[0, 2]), &catalog);
        view.install(&configuration(6, &[0, 2]), &catalog);
        assert!(view.is_same_start(it, 4));
        view.freeze(&configuration(7, &[0, 1, 2]), &catalog);
        assert!(!view.is_same_start(it, 4) && view.is_same_start(it, 7));
        // It leaves before all members have installed the configuration with which it came.
        view.freeze(&configuration(8, &[0, 2]), &catalog);
        view.install(&configuration(8, &[0, 2]), &catalog);
        view.install(&configuration(9, &[0, 1, 2]), &catalog);
        assert!(!view.is_same_start(it, 7) && view.is_same_start(it, 9));
    }
}
