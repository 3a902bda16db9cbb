//! What a node does for its membership: it watches the others, and does its part of configuration changes.

use crate::base::error::TxnError;
use crate::cluster::configuration::{Configuration, Mirror, Serving};
use crate::cluster::progress::Progress;
use crate::cluster::register::{Register, RegisterError, Registered};
use crate::membership::lease::{Lease, replication_of};
use crate::node::start::other_shape;
use crate::protocol::commit::durable::GONE;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use crate::rpc::recovery::Message;
use farhold_fabric::{Admitted, JoinHandle, NodeId};
use std::rc::Rc;
use std::sync::Arc;

/// How long the watch sleeps at most while this node promotes a mirror.
const PROMOTING_LOOK_NS: u64 = 5_000_000;

/// How long a node sleeps at most between two looks at the register before it is a member, however long leases are.
const ENTRY_LOOK_NS: u64 = 50_000_000;

/// Something that goes on beside the watch.
type Task = JoinHandle<Result<(), TxnError>>;

/// What this node is doing beside the watch.
#[derive(Default)]
struct Work {
    promoting: Option<(NodeId, Task)>,
    copying: Option<(Mirror, Task)>,
}

/// Writes a configuration without some nodes. From the next look on, when the leases of the expelled have ended, this
/// node leads the members into it.
async fn write(register: &dyn Register, next: &Configuration) -> Result<bool, TxnError> {
    let written = register.compare_and_set(next.number - 1, next).await;
    if written == Ok(true) { Ok(true) } else { Err(TxnError::Conflict) }
}

/// A start with its rows may not join: the others have these rows by now, or know that they do not.
fn left_behind(me: NodeId) -> TxnError {
    let reason = format!(
        "{me} was about to found the cluster with its rows, and the others have gone on without it: start it again"
    );
    TxnError::OtherCluster { reason: reason.into() }
}

/// A start without rows may not found: they would be taken for gone.
fn unfounded(me: NodeId) -> TxnError {
    let reason = format!(
        "the journals say that the cluster has gone on since {me} was in it, and the register knows nothing of that: end all nodes, \
         and start them again from the journals"
    );
    TxnError::OtherCluster { reason: reason.into() }
}

impl Worker {
    /// Makes this node a member of its cluster and keeps it one. It founds the cluster with the others, or joins it if
    /// it has been founded before. Then it renews the lease and does this node's part in changes of the configuration.
    /// Runs until the node is expelled, and then returns; the node can come back only by starting again.
    ///
    /// To be run as a task of its own, beside tasks that [serve](Self::serve).
    ///
    /// # Errors
    /// [`TxnError::OtherCluster`] if the register is not this cluster's, which [`Node::refusal`](crate::Node::refusal) then says too;
    /// [`TxnError::NotFound`] for a node without replication.
    pub async fn keep_membership(&self, register: Rc<dyn Register>) -> Result<(), TxnError> {
        let lease = Arc::new(Lease::new(self.node(), self.handle())?);
        let (renewing, handle) = (lease.clone(), self.handle().clone());
        let renewed_by = register.clone();
        drop(self.handle().spawn(async move { renewing.keep(&*renewed_by, &handle).await }));
        self.watch(&*register, &lease).await
    }

    /// As [`keep_membership`](Self::keep_membership), where another thread keeps the lease.
    pub(crate) async fn watch(&self, register: &dyn Register, lease: &Arc<Lease>) -> Result<(), TxnError> {
        let node = self.node().clone();
        let replication = replication_of(&node)?;
        let (handle, birth) = (self.handle(), lease.birth());
        let every_ns = replication.config.lease_ns / 4;
        // Also while it joins: a node that reaches the register and not the others would hold up their changes for ever.
        let (asking, asking_lease) = (self.clone(), lease.clone());
        drop(handle.spawn(async move { asking.ask_the_others(&asking_lease).await }));
        if let Err(error) = self.found_or_join(register, lease, every_ns.min(ENTRY_LOOK_NS)).await {
            if matches!(error, TxnError::OtherCluster { .. }) {
                let _ = node.refusal.set(error.clone());
            }
            replication.view.set_gone();
            return Err(error);
        }
        let mut work = Work::default();
        // All members would have to wait for a member whose journal is over, or that cannot finish a commit, so it leaves.
        while node.journal_failure().is_none() && !replication.view.is_gone() {
            let registered = register.load().await;
            self.note_register(registered.as_ref().err());
            if let Ok(registered) = registered {
                lease.look(&registered, handle.now_ns());
                let settled = registered.settled;
                let Some(configuration) = registered.configuration else { break };
                if configuration.births.get(usize::from(self.core.me.0)) != Some(&birth) {
                    break;
                }
                // What fails is tried again, from what the register says then.
                if self.look_after(register, &configuration, settled, lease, &mut work).await == Ok(true) {
                    continue;
                }
            }
            // The promoted rows are not served until this task has seen the end of the promotion.
            handle.sleep_ns(if work.promoting.is_some() { every_ns.min(PROMOTING_LOOK_NS) } else { every_ns }).await;
        }
        replication.view.set_gone();
        if planted!(TailCounts) {
            self.handle().sleep_ns(replication.config.lease_ns).await;
        }
        // A caller that waits for the journal hears that the outcome stays unknown.
        if let Some(journaling) = &node.journaling {
            journaling.fail(GONE);
        }
        Ok(())
    }

    /// The first nodes claim their numbers and begin together; later ones are let in by those that are there.
    async fn found_or_join(&self, register: &dyn Register, lease: &Lease, every_ns: u64) -> Result<(), TxnError> {
        let node = self.node().clone();
        let (me, birth) = (self.core.me, lease.birth());
        let Some(replication) = &node.replication else { return Ok(()) };
        // With a journal a start has its rows or is empty, and found or join accordingly. Without, none has rows.
        let comes_back = node.journaling.as_ref().map(|journaling| journaling.generation().comes_back());
        let (is_founder, is_late) = (comes_back == Some(false), comes_back == Some(true));
        loop {
            let registered = register.load().await;
            self.note_register(registered.as_ref().err());
            let settled = registered.as_ref().map_or(0, |registered| registered.settled);
            match registered.map(|registered| registered.configuration) {
                Ok(None) if is_late && node.founding.contains(me) => return Err(unfounded(me)),
                Ok(None) => {
                    if register.compare_and_set(0, &node.founding).await.is_ok() {
                        continue;
                    }
                }
                Ok(Some(configuration)) => {
                    let (nodes, replicas) = (configuration.births.len(), configuration.replicas);
                    if nodes != usize::from(node.config.nodes) || replicas != node.config.replication.replicas {
                        return Err(other_shape("register", nodes, replicas, &node.config));
                    }
                    let mine = configuration.births.get(usize::from(me.0)).copied();
                    match mine {
                        Some(found) if found == birth => {
                            lease.begin();
                            self.note(|progress| progress.replacing = false);
                            // A claim that took effect is in the register even if its answer was lost. A founder is a
                            // member at once.
                            if !configuration.members.contains(&me) {
                                return self.join(register, birth, every_ns).await;
                            }
                            if configuration.is_founding_of(&node.founding) {
                                let _ = register.settle(configuration.number).await;
                                let body = Message::Install(Arc::new(configuration)).encode();
                                let mut answer = crate::base::wire::Writer::default();
                                return match self.core.answer_recovery(me, &body, &mut answer) {
                                    // They have gone on already, and this node with them, as far as a freeze.
                                    Err(TxnError::Conflict) => Ok(()),
                                    done => done,
                                };
                            }
                            if configuration.is_founded() {
                                // The others have gone on: their leader makes this node install the configuration that
                                // they have reached.
                                return Ok(());
                            }
                        }
                        Some(0) if is_founder && !configuration.contains(me) => return Err(left_behind(me)),
                        // Expelled before it was a member: the others have fenced this start.
                        Some(0) if lease.has_begun() && !configuration.contains(me) => {
                            return Err(TxnError::Recovering { node: me });
                        }
                        Some(0) if !configuration.contains(me) && settled < configuration.number => {}
                        // The mirrors of what it was before are still needed, and must not be taken for its new rows'.
                        Some(0) if configuration.unserved().contains(&me) && !planted!(JoinsTooEarly) => {}
                        Some(0) if !configuration.contains(me) => {
                            let next = configuration.with_joining(me, birth);
                            let written = register.compare_and_set(configuration.number, &next).await;
                            if written == Ok(true) {
                                // Leading the others takes as long as their slowest disk, and this node's lease goes on
                                // meanwhile.
                                lease.begin();
                                let _ = self.lead_and_settle(register, &next).await;
                            }
                            if written.is_ok() {
                                continue;
                            }
                        }
                        Some(0) if is_late => return Err(unfounded(me)),
                        // A journal has one living process: an earlier start that has claimed the place is over.
                        Some(found) if found == 0 || (is_founder && !configuration.is_founded()) => {
                            let mut next = Configuration { number: configuration.number + 1, ..configuration.clone() };
                            next.births[usize::from(me.0)] = birth;
                            // The node that installs it first may commit at once, and only mirrors that are there take
                            // its records.
                            if !planted!(LateMirrors) {
                                replication.applier().begin_mirrors(&next, me);
                            }
                            // The others may learn of the founding first. No node has left a cluster that is not
                            // founded.
                            node.fabric.admit(next.number, Admitted::Everybody);
                            // The next look shows whether it took effect.
                            if register.compare_and_set(configuration.number, &next).await.is_ok() {
                                continue;
                            }
                        }
                        // An earlier start of this node, which must be expelled first.
                        _ => self.note(|progress| progress.replacing = true),
                    }
                }
                Err(error @ RegisterError::Foreign { .. }) => {
                    return Err(TxnError::OtherCluster { reason: error.to_string().into() });
                }
                Err(RegisterError::Unavailable { .. }) => {}
            }
            self.handle().sleep_ns(every_ns).await;
        }
    }

    /// The rest of joining, when the register says that this node is.
    async fn join(&self, register: &dyn Register, birth: u64, every_ns: u64) -> Result<(), TxnError> {
        let me = self.core.me;
        let replication = replication_of(self.node())?;
        loop {
            let Ok(Registered { configuration: Some(configuration), settled, .. }) = register.load().await else {
                self.handle().sleep_ns(every_ns).await;
                continue;
            };
            if configuration.births.get(usize::from(me.0)) != Some(&birth) {
                // Too slow: expelled while it was joining.
                return Err(TxnError::Recovering { node: me });
            }
            let installed = replication.view.configuration();
            // A member leads the others there as any does, and expels a node that does not answer.
            if configuration.members.contains(&me) {
                return Ok(());
            }
            if installed.number < configuration.number || settled < configuration.number {
                let leads = configuration.leader == me;
                if !leads || self.lead_and_settle(register, &configuration).await.is_err() {
                    self.handle().sleep_ns(every_ns).await;
                }
                continue;
            }
            let copied = match configuration.members.first().copied() {
                Some(from) => self.copy_replicated_tables(from).await,
                None => Err(TxnError::Recovering { node: me }),
            };
            let done = match copied {
                Ok(()) => self.change_to(register, &configuration.joined(me)).await,
                // Tried again: from another member, or when there is room.
                Err(error) => {
                    self.note(|progress| progress.refused = Some(error.to_string().into()));
                    Err(error)
                }
            };
            if done.is_err() {
                self.handle().sleep_ns(every_ns).await;
            }
        }
    }

    /// One look at the cluster, and what follows from it. True: the next look is due at once.
    async fn look_after(
        &self,
        register: &dyn Register,
        configuration: &Configuration,
        settled: u64,
        lease: &Lease,
        work: &mut Work,
    ) -> Result<bool, TxnError> {
        let me = self.core.me;
        let now_ns = self.handle().now_ns();
        let Some(replication) = &self.node().replication else { return Ok(false) };
        let installed = replication.view.configuration();
        let birth_of = |node: NodeId| configuration.births[usize::from(node.0)];
        let is_silent = |node| lease.of_others().is_over(node, birth_of(node), now_ns) || register.is_dead(node);
        let mut silent: Vec<NodeId> =
            configuration.everybody().filter(|node| *node != me && is_silent(*node)).collect();
        // This node is left out: if it is the one that is cut off, it will learn so when the others have gone on.
        silent.extend(lease.of_others().cut_off(configuration, &silent, now_ns).filter(|node| *node != me));
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
                // A joining node knows nothing of the nodes that have gone.
                let is_member = configuration.members.contains(&me);
                let before = if is_member { replication.view.configuration_or_founders() } else { installed.clone() };
                let mut expelled = before.everybody().filter(|node| !configuration.contains(*node));
                let has_ended = |node| lease.of_others().has_ended(node, now_ns) || register.is_dead(node);
                if !expelled.all(has_ended) {
                    return Ok(false);
                }
                return self.lead_and_settle(register, configuration).await.map(|()| true);
            }
            let leader_left = !configuration.contains(configuration.leader);
            if leader_left && lowest == Some(&me) {
                return write(register, &configuration.led_by(me)).await;
            }
            return Ok(false);
        }
        self.do_my_part(register, configuration, work).await
    }

    /// Asks every other node that the register names, joining ones too, once a lease whether it answers, and soon again when one
    /// does not.
    async fn ask_the_others(&self, lease: &Lease) {
        let Ok(replication) = replication_of(self.node()) else { return };
        while !replication.view.is_gone() {
            let mut pause_ns = replication.config.lease_ns;
            let configuration = lease.of_others().registered().filter(|_| lease.has_begun());
            let Some(configuration) = configuration else {
                self.handle().sleep_ns(pause_ns / 4).await;
                continue;
            };
            for node in configuration.everybody().filter(|node| *node != self.core.me) {
                let ask = Request::Recovery { body: &Message::Apply.encode() };
                match self.core.call(node, &ask).await {
                    Err(TxnError::NodeUnavailable { .. }) => {
                        let birth = configuration.births[usize::from(node.0)];
                        replication.reach.failed(node, birth, self.handle().now_ns());
                        pause_ns = replication.config.lease_ns / 4;
                    }
                    _ => replication.reach.answered(node),
                }
            }
            self.handle().sleep_ns(pause_ns).await;
        }
    }

    fn note_register(&self, error: Option<&RegisterError>) {
        self.note(|progress| progress.register = error.map(|error| error.to_string().into()));
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(replication) = &self.node().replication {
            replication.note(change);
        }
    }

    /// Promotes the mirrors that are this node's to promote, and fills those of its own that are not whole. True: it has
    /// changed the configuration.
    async fn do_my_part(
        &self,
        register: &dyn Register,
        configuration: &Configuration,
        work: &mut Work,
    ) -> Result<bool, TxnError> {
        let me = self.core.me;
        if let Some((gone, task)) = &work.promoting {
            let (gone, Some(done)) = (*gone, task.try_take()) else { return Ok(false) };
            work.promoting = None;
            let refused = done.as_ref().err().map(|error| error.to_string().into());
            self.note(|progress| (progress.promoting, progress.refused) = (None, refused));
            if done.is_ok() && configuration.partitions.contains(&Serving::From(gone)) {
                return self.change_to(register, &configuration.promoted(gone, me)).await.map(|()| true);
            }
            if done.is_err() {
                // Again at the next look, which is not at once.
                return Ok(false);
            }
        }
        let mine = configuration.unserved().into_iter().find(|gone| configuration.successor(*gone) == Some(me));
        if let Some(gone) = mine {
            let (worker, configuration) = (self.clone(), Arc::new(configuration.clone()));
            let task = self.handle().spawn(async move { worker.promote(&configuration, gone).await });
            work.promoting = Some((gone, task));
            return Ok(false);
        }
        self.note(|progress| progress.refused = None);
        if let Some((filled, task)) = &work.copying {
            let (filled, Some(done)) = (*filled, task.try_take()) else { return Ok(false) };
            work.copying = None;
            self.note(|progress| progress.mirroring = None);
            // Not a mirror that has been wanted anew meanwhile: it has only a part of the rows.
            if done.is_ok() && configuration.mirrors.contains(&filled) {
                return self.change_to(register, &configuration.mirrored(filled)).await.map(|()| true);
            }
        }
        let missing = configuration.mirrors.iter().find(|mirror| mirror.of == me && !mirror.whole).copied();
        if let Some(mirror) = missing {
            let worker = self.clone();
            let task = self.handle().spawn(async move { worker.copy_to_mirror(mirror).await });
            work.copying = Some((mirror, task));
        }
        Ok(false)
    }
}
