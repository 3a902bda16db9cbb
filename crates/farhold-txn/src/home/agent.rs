//! A thread that serves the node's inbox when its workers do not.

use crate::base::error::TxnError;
use crate::cluster::register::Register;
use crate::membership::file::FileRegister;
use crate::membership::lease::{Lease, LeaseThread};
use crate::node::Node;
use crate::node::unsent::RETRY_NS;
use crate::protocol::worker::Worker;
use crate::replication::apply::MirrorKeeper;
use farhold_fabric::{Executor, JoinHandle as JoinTask};
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;

/// The home thread. It says hello to the cluster, then sleeps until a message comes, serves it, and sleeps again.
/// Stopped and joined on drop.
///
/// While the node's workers look into the inbox themselves, as they do between transactions, it takes naps instead. A
/// message then wakes no thread; to wake one would cost its sender a system call and the workers a processor.
pub struct HomeAgent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Of a node whose memory mirrors others.
    _mirrors: Option<MirrorKeeper>,
}

/// The longest time that it sleeps, and so how late it may hear that it must stop.
const SLEEP_NS_MAX: u64 = 20_000_000;
/// The same for one that also looks after the membership.
const MEMBER_SLEEP_NS_MAX: u64 = 500_000;
/// How often it looks again before it sleeps: answers come in bursts, and a sleep and its end cost some 10 µs.
const LOOKS: u32 = 200;
/// Requests in a row before it looks after everything else.
const SERVED_MAX: u32 = 1_000;
/// How often it looks whether holders of snapshots have died: each look may ask the kernel about each of them.
const LOOK_FOR_DEAD_EVERY_NS: u64 = 100_000_000;
/// A nap: how late a message is served at worst when the workers have just stopped looking.
const NAP: Duration = Duration::from_millis(1);
/// With this many looks of the workers since the last nap, they count as looking into the inbox themselves.
const WORKERS_LOOKS: u64 = 16;

impl HomeAgent {
    /// Starts the agent of a node.
    ///
    /// # Errors
    /// No worker number or endpoint is left for it.
    pub fn start(node: &Arc<Node>) -> Result<Self, TxnError> {
        Self::start_with(node, None::<(PathBuf, FileRegister)>)
    }

    /// As [`Self::start`], for a node whose rows are replicated. The thread also maintains the node's membership, by the
    /// register in the cluster's directory. The node takes part when [`Node::is_member`] says so.
    ///
    /// # Errors
    /// As there.
    pub fn start_member(node: &Arc<Node>, cluster: &Path) -> Result<Self, TxnError> {
        let register = FileRegister::new(cluster, &node.fabric, node.config.nodes);
        Self::start_member_by(node, cluster, register)
    }

    /// As [`Self::start_member`], by another register; the cluster's directory is for the status of each [`Node`].
    ///
    /// # Errors
    /// As there.
    pub fn start_member_by(
        node: &Arc<Node>,
        cluster: &Path,
        register: impl Register + Send + Sync + 'static,
    ) -> Result<Self, TxnError> {
        Self::start_with(node, Some((cluster.to_owned(), register)))
    }

    fn start_with(
        node: &Arc<Node>,
        member: Option<(PathBuf, impl Register + Send + Sync + 'static)>,
    ) -> Result<Self, TxnError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mirrors = node.replication.as_ref().map(MirrorKeeper::start).transpose()?;
        let (stopped, node) = (stop.clone(), node.clone());
        let (report, started) = std::sync::mpsc::channel();
        let hand_on = crate::base::planted::hand_on();
        let run = move || {
            hand_on();
            // Each start of a node draws another number for itself.
            let executor = Executor::real(RandomState::new().build_hasher().finish());
            let worker = match node.worker(&executor.handle()) {
                Ok(worker) => worker,
                Err(error) => return drop(report.send(Err(error))),
            };
            let handle = executor.handle();
            let begun = member.map(|(cluster, register)| {
                let (lease, register) = (Arc::new(Lease::new(worker.node(), &handle)?), Arc::new(register));
                let thread = LeaseThread::start(&lease, &register)?;
                let (telling, member) = (worker.clone(), worker.clone());
                let told_to = register.clone();
                drop(handle.spawn(async move { tell_status(&telling, &cluster, &told_to).await }));
                drop(handle.spawn(async move {
                    let _ = member.watch(&*register, &lease).await;
                }));
                Ok(thread)
            });
            let _thread = match begun.transpose() {
                Ok(thread) => thread,
                Err(error) => return drop(report.send(Err(error))),
            };
            let _ = report.send(Ok(()));
            executor.run(serve(worker, stopped));
        };
        let spawned = std::thread::Builder::new().name("farhold-home".into()).spawn(run);
        let thread = spawned.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        started.recv().unwrap_or(Err(TxnError::Corrupt { what: "the home agent ended at its start" }))?;
        Ok(Self { stop, thread: Some(thread), _mirrors: mirrors })
    }
}

/// How often a member says what it is doing.
const TELL_EVERY_NS: u64 = 20_000_000;
/// How often it looks at its columns for that, of which some number changes with each commit.
const REPORT_COLUMNS_EVERY_NS: u64 = 200_000_000;
/// How often it says so to the register, which is written by all of them, and may keep what was written before.
const TELL_REGISTER_EVERY_NS: u64 = 1_000_000_000;
/// The same if only what it says of its columns has changed.
const TELL_REGISTER_COLUMNS_EVERY_NS: u64 = 10_000_000_000;

/// Reports what this node is doing, for operators: in a file, which can be read even when the node hangs or is gone,
/// and, for operators on other hosts, in the register.
async fn tell_status(worker: &Worker, cluster: &Path, register: &Arc<impl Register + Send + Sync + 'static>) {
    let (node, handle) = (worker.node().clone(), worker.handle());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (mut told, mut telling) = (String::new(), None::<JoinTask<()>>);
    let (mut columns, mut report_columns_ns) = (String::new(), 0);
    let mut in_register = None::<InRegister>;
    loop {
        let number = node.configuration().map_or(0, |configuration| configuration.number);
        let state = if node.is_expelled() {
            "expelled"
        } else if node.is_member() {
            "member"
        } else {
            "waiting"
        };
        let mut status = format!("pid {}\nhost {}\n", std::process::id(), host.trim());
        let _ = write!(status, "configuration {number}\nstate {state}\n");
        for (holder, bytes) in worker.core.lags().await {
            let _ = writeln!(status, "lag {} {bytes}", holder.0);
        }
        let _ = writeln!(status, "doing {}", node.progress());
        let now_ns = handle.now_ns();
        if now_ns >= report_columns_ns {
            (columns, report_columns_ns) = (node.column_report().to_string(), now_ns + REPORT_COLUMNS_EVERY_NS);
        }
        let words = format!("{status}{columns}");
        if words != told && FileRegister::tell_status(cluster, node.id(), &words).is_ok() {
            told.clone_from(&words);
        }
        let is_due = in_register.as_ref().is_none_or(|it| it.is_due(&status, &columns, now_ns));
        // A register that does not answer does not keep the node from writing the file.
        if is_due && telling.as_ref().is_none_or(|it| it.try_take().is_some()) {
            let (register, me) = (register.clone(), node.id());
            telling = Some(handle.spawn(async move { drop(register.tell(me, &words).await) }));
            in_register = Some(InRegister { status, columns: columns.clone(), told_ns: now_ns });
        }
        handle.sleep_ns(TELL_EVERY_NS).await;
    }
}

/// What a member has said to the register.
struct InRegister {
    status: String,
    columns: String,
    told_ns: u64,
}

impl InRegister {
    /// Is it time to say this instead?
    fn is_due(&self, status: &str, columns: &str, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.told_ns);
        (self.status != status && since_ns >= TELL_REGISTER_EVERY_NS)
            || (self.columns != columns && since_ns >= TELL_REGISTER_COLUMNS_EVERY_NS)
    }
}

async fn serve(worker: Worker, stop: Arc<AtomicBool>) {
    // What this node's earlier starts had locked elsewhere. Until the others have heard, such a lock is only a conflict. A node
    // that does not answer releases them itself when it starts. If one refuses, the node reports that from then on.
    let _ = worker.join_cluster().await;
    let core = &*worker.core;
    // Other tasks of this thread look after the membership: it may not sleep for long.
    let is_member = core.node.replication.is_some();
    let sleep_ns_max = if is_member { MEMBER_SLEEP_NS_MAX } else { SLEEP_NS_MAX };
    let (mut looks, mut looked_ns) = (0, 0);
    while !stop.load(Acquire) {
        worker.finish_drops_if_any();
        worker.handle().yield_now().await;
        if worker.handle().now_ns() >= looked_ns + LOOK_FOR_DEAD_EVERY_NS {
            looked_ns = worker.handle().now_ns();
            core.release_dead_snapshots();
            if let Some(journaling) = &core.node.journaling {
                journaling.wake_the_late();
            }
        }
        let before = std::mem::replace(&mut looks, core.node.slots.inbox_looks());
        if looks.wrapping_sub(before) >= WORKERS_LOOKS {
            // The workers have looked while this thread was away.
            std::thread::park_timeout(NAP);
            continue;
        }
        let (mut idle, mut served) = (0, 0);
        while idle < LOOKS && served < SERVED_MAX && !stop.load(Acquire) {
            crate::base::planted::may_stop();
            if worker.poll() {
                (idle, served) = (0, served + 1);
            } else {
                idle += 1;
                worker.handle().yield_now().await;
            }
        }
        core.alloc.borrow_mut().collect();
        crate::base::planted::may_stop();
        looks = core.node.slots.inbox_looks();
        if idle == LOOKS {
            // Nothing rings when an inbox of another node has room again.
            let is_flushed = core.node.unsent.is_empty();
            let _ = core.endpoint.wait(if is_flushed { sleep_ns_max } else { RETRY_NS });
        }
    }
}

impl Drop for HomeAgent {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
