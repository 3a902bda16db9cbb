//! What a node does for its membership: renews its lease, looks after the others, and does its part of changes.

use super::{Configuration, Register, Registered, Serving};
use crate::durability::GONE;
use crate::{NodeId, Progress, TxnError, Worker};
use farhold_fabric::{Admitted, Handle, JoinHandle};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Something that goes on beside the watch.
type Task = JoinHandle<Result<(), TxnError>>;

/// What this node is doing beside the watch.
#[derive(Default)]
struct Work {
    promoting: Option<(NodeId, Task)>,
    /// To which node, and which start of it.
    copying: Option<(NodeId, u64, Task)>,
}

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

/// What the watch remembers of the leases of others.
struct Leases {
    /// By node.
    seen: Vec<Lease>,
    /// Of the last configuration looked at.
    number: u64,
    expire_ns: u64,
    looked_ns: u64,
}

/// A node's lease.
#[derive(Clone, Copy, Default)]
struct Lease {
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
        self.seen.resize(configuration.births.len(), Lease::default());
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
    fn is_over(&self, node: NodeId, birth: u64, now_ns: u64) -> bool {
        let lease = self.seen.get(usize::from(node.0));
        // Nor says anything who has not looked for long: he may have stood still.
        let has_looked = now_ns <= self.looked_ns + self.expire_ns / 2;
        has_looked && lease.is_some_and(|lease| lease.birth == birth && now_ns > lease.at_ns + self.expire_ns)
    }

    /// Has the lease of a node that has been expelled ended? It may have renewed it between the last look of whoever expelled it
    /// and the expulsion; such a renewal shows in the first look after the expulsion, and no later one counts.
    fn has_ended(&self, node: NodeId, now_ns: u64) -> bool {
        let lease = self.seen.get(usize::from(node.0));
        planted!(LeaseNotWaitedFor)
            || lease.is_some_and(|lease| lease.birth == 0 && now_ns > lease.at_ns + self.expire_ns)
    }
}

/// Writes a configuration without some nodes. It is led into from the next look on, when the leases of the expelled have ended.
async fn write(register: &dyn Register, next: &Configuration) -> Result<bool, TxnError> {
    let written = register.compare_and_set(next.number - 1, next).await;
    if written == Ok(true) { Ok(true) } else { Err(TxnError::Conflict) }
}

impl Worker {
    /// Makes this node a member of its cluster and keeps it one: founds the cluster with the others, or joins it if it has been
    /// founded before; then renews the lease and does what changes of the configuration ask of this node. Runs until the
    /// node is expelled, which it then tells by returning; it can come back only by starting again.
    ///
    /// To be run as a task of its own, beside tasks that [serve](Self::serve).
    ///
    /// # Errors
    /// [`TxnError::Corrupt`] if the register is not this cluster's; [`TxnError::NotFound`] for a node without replication.
    pub async fn keep_membership(&self, register: Rc<dyn Register>) -> Result<(), TxnError> {
        let node = self.node().clone();
        let Some(replication) = node.replication.clone() else {
            return Err(TxnError::NotFound { what: "replication on this node".into() });
        };
        let lease_ns = replication.config.lease_ns;
        let every_ns = lease_ns / 4;
        let handle = self.handle().clone();
        let birth = node.start.or(node.fabric.birth()).unwrap_or_else(|| handle.random_u64() | 1);
        let expire_ns = lease_ns + replication.config.clock_skew_ns_max;
        let leases = Rc::new(RefCell::new(Leases::new(expire_ns, handle.now_ns())));
        // A member whose journal is over would have to be waited for by everybody: it goes.
        let has_failed = {
            let node = node.clone();
            move || node.journal_failure().is_some()
        };
        // Apart from what changes of the configuration ask of this node, which may take longer than a lease.
        let renewing = {
            let (register, replication, leases) = (register.clone(), replication.clone(), leases.clone());
            let (me, skew_ns) = (self.core.me, replication.config.clock_skew_ns_max);
            let inner = handle.clone();
            let has_failed = has_failed.clone();
            handle.spawn(async move {
                // Not before this start is in the register: it would renew the lease of an earlier start, or of another process
                // of the same name.
                let mut is_in = false;
                let view = &replication.view;
                let mut clocks = Clocks::new(&inner);
                while !view.is_gone() && !has_failed() {
                    let began_ns = inner.now_ns();
                    let (renewed, was_in) = (is_in && register.renew(me).await.is_ok(), is_in);
                    if clocks.have_jumped(&inner, skew_ns) {
                        view.void_lease(inner.now_ns());
                        continue;
                    }
                    if let Ok(registered) = register.load().await {
                        // The register takes renewals of the expelled as well: they are worth nothing.
                        is_in = registered
                            .configuration
                            .as_ref()
                            .is_some_and(|now| now.births.get(usize::from(me.0)) == Some(&birth));
                        if renewed && is_in {
                            view.set_lease(began_ns, lease_ns - skew_ns);
                        }
                        leases.borrow_mut().look(&registered, inner.now_ns());
                    }
                    if is_in && !was_in {
                        continue;
                    }
                    inner.sleep_ns(every_ns).await;
                }
            })
        };
        self.found_or_join(&*register, birth, every_ns).await?;
        let mut work = Work::default();
        while !has_failed() {
            if let Ok(registered) = register.load().await {
                leases.borrow_mut().look(&registered, handle.now_ns());
                let settled = registered.settled;
                let Some(configuration) = registered.configuration else { break };
                if configuration.births.get(usize::from(self.core.me.0)) != Some(&birth) {
                    break;
                }
                // What fails is tried again, from what the register says then.
                if self.look_after(&*register, &configuration, settled, &leases, &mut work).await == Ok(true) {
                    continue;
                }
            }
            handle.sleep_ns(every_ns).await;
        }
        replication.view.set_gone();
        if planted!(TailCounts) {
            self.handle().sleep_ns(lease_ns).await;
        }
        // Whoever waits for it hears that he will never know.
        if let Some(journaling) = &node.journaling {
            journaling.fail(GONE);
        }
        drop(renewing);
        Ok(())
    }

    /// The first nodes claim their numbers and begin together; later ones are let in by those that are there.
    async fn found_or_join(&self, register: &dyn Register, birth: u64, every_ns: u64) -> Result<(), TxnError> {
        let node = self.node().clone();
        let me = self.core.me;
        let Some(replication) = &node.replication else { return Ok(()) };
        let mut founding = false;
        loop {
            let registered = register.load().await;
            let settled = registered.as_ref().map_or(0, |registered| registered.settled);
            match registered.map(|registered| registered.configuration) {
                Ok(None) => {
                    let _ = register.compare_and_set(0, &node.founding).await;
                    continue;
                }
                Ok(Some(configuration)) => {
                    let mine = configuration.births.get(usize::from(me.0)).copied();
                    match mine {
                        Some(found) if found == birth => {
                            if founding && configuration.is_founded() {
                                let _ = register.settle(configuration.number).await;
                                let body = super::super::recovery::Message::Install(Arc::new(configuration)).encode();
                                return self.core.answer_recovery(me, &body, &mut crate::home::wire::Writer::default());
                            }
                            if !founding {
                                return self.join(register, birth).await;
                            }
                        }
                        Some(0) if !configuration.contains(me) && settled < configuration.number => {}
                        // The mirrors of what it was before are still needed, and must not be taken for its new rows'.
                        Some(0) if configuration.unserved().contains(&me) && !planted!(JoinsTooEarly) => {}
                        Some(0) if !configuration.contains(me) => {
                            let next = configuration.with_joining(me, birth);
                            let _ = self.change_to(register, &next).await;
                            continue;
                        }
                        Some(0) => {
                            let mut next = Configuration { number: configuration.number + 1, ..configuration.clone() };
                            next.births[usize::from(me.0)] = birth;
                            // Whoever installs it first may commit at once, and his records are taken only by mirrors that are there.
                            if !planted!(LateMirrors) {
                                replication.applier().begin_mirrors(&next, me);
                            }
                            // The others may hear of the founding first. Nobody has left a cluster that is not founded.
                            node.fabric.admit(next.number, Admitted::Everybody);
                            founding |= register.compare_and_set(configuration.number, &next).await == Ok(true);
                            continue;
                        }
                        // An earlier start of this node, which has to be expelled first.
                        _ => {}
                    }
                }
                Err(super::RegisterError::Foreign { .. }) => {
                    return Err(TxnError::Corrupt { what: "the register is not this cluster's" });
                }
                Err(super::RegisterError::Unavailable { .. }) => {}
            }
            self.handle().sleep_ns(every_ns).await;
        }
    }

    /// The rest of joining, when the register says that this node is.
    async fn join(&self, register: &dyn Register, birth: u64) -> Result<(), TxnError> {
        let me = self.core.me;
        let replication = self.node().replication.clone().ok_or(TxnError::SchemaChanged)?;
        loop {
            let Ok(Registered { configuration: Some(configuration), settled, .. }) = register.load().await else {
                self.handle().sleep_ns(replication.config.lease_ns / 4).await;
                continue;
            };
            if configuration.births.get(usize::from(me.0)) != Some(&birth) {
                // Too slow: expelled while it was joining.
                replication.view.set_gone();
                return Err(TxnError::Recovering { node: me });
            }
            let installed = replication.view.configuration();
            if configuration.members.contains(&me) {
                if settled < configuration.number && configuration.leader == me {
                    let _ = self.lead_and_settle(register, &configuration).await;
                    continue;
                }
                return Ok(());
            }
            if installed.number < configuration.number || settled < configuration.number {
                if configuration.leader == me {
                    let _ = self.lead_and_settle(register, &configuration).await;
                } else {
                    self.handle().sleep_ns(replication.config.lease_ns / 4).await;
                }
                continue;
            }
            let Some(from) = configuration.members.first().copied() else { continue };
            if self.copy_replicated_tables(from).await.is_ok() {
                let _ = self.change_to(register, &configuration.joined(me)).await;
            }
        }
    }

    /// One look at the cluster, and what follows from it. True: the next look is due at once.
    async fn look_after(
        &self,
        register: &dyn Register,
        configuration: &Configuration,
        settled: u64,
        leases: &RefCell<Leases>,
        work: &mut Work,
    ) -> Result<bool, TxnError> {
        let me = self.core.me;
        let now_ns = self.handle().now_ns();
        let Some(replication) = &self.node().replication else { return Ok(false) };
        let installed = replication.view.configuration();
        let birth_of = |node: NodeId| configuration.births[usize::from(node.0)];
        let is_silent = |node| leases.borrow().is_over(node, birth_of(node), now_ns) || register.is_dead(node);
        let silent: Vec<NodeId> = configuration.everybody().filter(|node| *node != me && is_silent(*node)).collect();
        let lowest = configuration.members.iter().find(|node| !silent.contains(node));
        let gone = configuration.dispensable(&silent, |node| register.is_dead(node));
        let needed = silent.iter().find(|node| !gone.contains(node)).copied();
        self.note(|progress| progress.waiting = needed);
        if !gone.is_empty() {
            if lowest != Some(&me) {
                return Ok(false);
            }
            return write(register, &configuration.without(&gone, me)).await;
        }
        if installed.number < configuration.number || settled < configuration.number {
            if configuration.leader == me {
                let mut expelled = installed.everybody().filter(|node| !configuration.contains(*node));
                let has_ended = |node| leases.borrow().has_ended(node, now_ns) || register.is_dead(node);
                if !expelled.all(has_ended) {
                    return Ok(false);
                }
                return self.lead_and_settle(register, configuration).await.map(|()| false);
            }
            let leader_left = !configuration.contains(configuration.leader);
            if leader_left && lowest == Some(&me) {
                return write(register, &configuration.led_by(me)).await;
            }
            return Ok(false);
        }
        self.do_my_part(register, configuration, work).await.map(|()| false)
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(replication) = &self.node().replication {
            replication.note(change);
        }
    }

    /// Promotes the mirrors that are this node's to promote, and fills those of its own that are not whole.
    async fn do_my_part(
        &self,
        register: &dyn Register,
        configuration: &Configuration,
        work: &mut Work,
    ) -> Result<(), TxnError> {
        let me = self.core.me;
        if let Some((gone, task)) = &work.promoting {
            let (gone, Some(done)) = (*gone, task.try_take()) else { return Ok(()) };
            work.promoting = None;
            self.note(|progress| progress.promoting = None);
            if done.is_ok() && configuration.partitions.contains(&Serving::From(gone)) {
                return self.change_to(register, &configuration.promoted(gone, me)).await;
            }
        }
        let mine = configuration.unserved().into_iter().find(|gone| configuration.successor(*gone) == Some(me));
        if let Some(gone) = mine {
            let (worker, configuration) = (self.clone(), Arc::new(configuration.clone()));
            let task = self.handle().spawn(async move { worker.promote(&configuration, gone).await });
            work.promoting = Some((gone, task));
            return Ok(());
        }
        let birth_of = |node: NodeId| configuration.births[usize::from(node.0)];
        if let Some((on, birth, task)) = &work.copying {
            let (on, birth, Some(done)) = (*on, *birth, task.try_take()) else { return Ok(()) };
            work.copying = None;
            self.note(|progress| progress.mirroring = None);
            let wanted =
                configuration.mirrors.iter().any(|mirror| (mirror.of, mirror.on, mirror.whole) == (me, on, false));
            if done.is_ok() && wanted && birth == birth_of(on) {
                return self.change_to(register, &configuration.mirrored(me, on)).await;
            }
        }
        let missing = configuration.mirrors.iter().find(|mirror| mirror.of == me && !mirror.whole);
        if let Some(mirror) = missing {
            let (worker, on) = (self.clone(), mirror.on);
            let task = self.handle().spawn(async move { worker.copy_to_mirror(on).await });
            work.copying = Some((on, birth_of(on), task));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::Executor;

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
