//! Machines with a network between them, by libfabric 1.17 or newer: verbs, EFA, TCP, and libfabric's own shared memory.
//!
//! ```text
//!   node 1                                                        node 2
//!   worker ── Endpoint ─┬─ Shm: own regions and inboxes              ┌── regions (files, as of `shm`)
//!                       └─ Caller ── channel ═══ libfabric ═══ channel ── home agent ──┤
//!                                       └──── bulk, by the NIC ──────────┘   └── inboxes
//! ```
//!
//! - **A node's own memory is shared memory**, with the files of the [`shm`] provider: near rows are accessed by loads and
//!   stores, and regions survive a process's death.
//! - **Everything far goes to the home agent**, a thread of the node that owns the memory, in one round trip for all of a
//!   batch's instructions there. What NICs cannot do at all (`read_object`), or not everywhere (atomics on TCP, EFA and
//!   `ofi_rxm`), it does with the CPU: an object is read whole where it lies, as SABRes do (*"SABRes: Atomic Object
//!   Reads for In-Memory Rack-Scale Computing"*).
//! - **Words have one master.** A NIC's atomics and a CPU's on one word are undefined together, so the NIC's are never used: near
//!   words are accessed by this CPU, and far words by the home agent's CPU. The same holds for small reads and writes, because a
//!   network's copies tear words: over TCP even eight aligned bytes arrived in halves.
//! - **Bulk goes by the NIC** where the provider does remote reads and writes: those of `bulk_bytes_min` bytes and more. Writes
//!   go by the NIC only where the end of a key stops them (verbs; libfabric's `shm`, where fencing ends the process). `tcp` and
//!   `efa` check a key once, so what a fenced node had begun would arrive afterwards. Such a copy may tear words that change
//!   meanwhile; a caller that needs one state must read objects. Remote writes are complete when their bytes are in place
//!   (`FI_DELIVERY_COMPLETE`).
//! - **Keys.** A region's key changes with each registration and each start; the agent compares it before each instruction. The
//!   NIC's key is random, and goes with the region's: an old one gives no access. libfabric's `shm` alone checks no key: its
//!   processes copy with the kernel's permission (`process_vm_readv`), which it gives to processes of the same user.
//! - **Admission.** A session requires the cluster's [`Secret`]; without a session nothing is read or written. Frames are not
//!   encrypted: the network must do that.
//! - **Time-outs** are this provider's own. A node that dies without notice is [`FabricError::NodeUnavailable`] within
//!   `request_timeout_ns`, on one host within a few 10 ms. An instruction with that outcome may have been executed or not.
//!
//! The provider's capabilities are queried when a channel is opened. Progress comes from the threads that poll: always from the
//! home agent, and from a worker when it waits for something.

mod admission;
mod agent;
mod caller;
mod channel;
mod endpoint;
mod fence;
mod frame;
mod packing;
mod rendezvous;
#[doc(hidden)]
pub mod rival;
mod secret;
#[cfg(test)]
mod tests;
mod url;

pub use rendezvous::Rendezvous;
pub use secret::Secret;

use super::{Doer, Here, Membership, Provider, shm};
use crate::address::{Address, NodeId, RegionId};
use crate::batch::OpKind;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use admission::Admission;
use agent::Agent;
use channel::{Bell, Channel, Registrar, Registration};
use fence::Fence;
use rendezvous::{Publication, Record};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// The port of the home agent's own endpoint: no sender uses it.
const AGENT_PORT: u16 = u16::MAX;
/// How long an answer whether a node lives is valid: the kernel's, and that of another host.
const LIVE_NS: u64 = 20_000_000;
const LIVE_ELSEWHERE_NS: u64 = 100_000_000;

/// How a node takes part in a fabric of libfabric.
#[derive(Clone, Debug)]
pub struct Config {
    /// libfabric's name of the provider: `tcp;ofi_rxm`, `verbs;ofi_rxm`, `efa`, `shm`.
    pub provider: String,
    /// What all nodes of the cluster know.
    pub secret: Secret,
    /// How nodes find each other.
    pub rendezvous: Rendezvous,
    /// How long a node may take to answer a hello.
    pub connect_timeout_ns: u64,
    /// How long a request may take.
    pub request_timeout_ns: u64,
    /// Reads and writes of this many bytes and more go by the NIC, where it can. A NIC that never tears words (most on PCI
    /// Express; none promises it) allows less.
    pub bulk_bytes_min: usize,
    /// The home agent never sleeps: a microsecond less for each request, at the price of a core. Otherwise it sleeps when nothing
    /// has come for a while, and waking it costs system calls with every frame.
    pub agent_spins: bool,
}

impl Config {
    /// For one host: TCP, files in the cluster's directory.
    #[must_use]
    pub fn new(provider: &str, secret: Secret) -> Self {
        Self {
            provider: provider.to_owned(),
            secret,
            rendezvous: Rendezvous::Directory,
            connect_timeout_ns: 2_000_000_000,
            request_timeout_ns: 2_000_000_000,
            bulk_bytes_min: 64 << 10,
            agent_spins: false,
        }
    }
}

/// The clock of time-outs.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "a network's time-outs are real time, whatever the executor's clock says"
    )]
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Closed ports of other nodes, as reported by those nodes.
#[derive(Default)]
struct Closings {
    count: AtomicU64,
    last: Mutex<HashMap<Address, u64>>,
}

impl Closings {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn note(&self, port: Address) {
        let mut last = lock(&self.last);
        let number = self.count() + 1;
        last.insert(port, number);
        self.count.store(number, Ordering::Release);
    }

    /// Whether the port has been closed since `seen` closings. If not, `seen` is brought up to date.
    fn has_closed(&self, port: Address, seen: &mut u64) -> bool {
        let now = self.count();
        if now == *seen {
            return false;
        }
        let closed = lock(&self.last).get(&port).is_some_and(|number| *number > *seen);
        if !closed {
            *seen = now;
        }
        closed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a node lives, as far as is known.
#[derive(Clone, Copy)]
struct Life {
    is_live: bool,
    good_until_ns: u64,
    /// How often it has shown that it lives: an earlier refusal does not count any more.
    shown: u64,
}

/// What the threads of a node share.
struct Shared {
    near: Arc<shm::Member>,
    cluster: PathBuf,
    config: Config,
    clock: Clock,
    /// The provider's full name.
    provider: String,
    /// The home agent's libfabric address.
    home_name: Vec<u8>,
    registrar: Option<Registrar>,
    /// NICs may write as well as read: what they have begun ends with their key.
    nics_write: bool,
    /// Random, added to a region's key: a node that restarts without its directory has no key that it had before.
    key_base: u64,
    /// Grows with each start of this node.
    start: u64,
    /// Random: no other start of any node has it, even if a directory was lost or a clock set back.
    birth: AtomicU64,
    admission: Admission,
    fence: Fence,
    /// Regions that the NIC may read and write, with the key that they had when opened.
    open: Mutex<HashMap<RegionId, (u64, Registration)>>,
    closings: Closings,
    /// Nodes that have lanes into this node's ports.
    senders: Mutex<HashMap<u16, HashSet<NodeId>>>,
    /// What is known of the life of nodes.
    lives: Mutex<HashMap<NodeId, Life>>,
    stop: AtomicBool,
}

impl Shared {
    fn node(&self) -> NodeId {
        self.near.node()
    }

    fn secret(&self) -> &Secret {
        &self.config.secret
    }

    /// The local address to bind to, for providers that have such.
    fn local_address(&self) -> Option<&str> {
        local_address(&self.config)
    }

    /// Whether the node's process runs, as far as is known without waiting. For other hosts: as of the last answer.
    fn is_live(&self, node: NodeId) -> bool {
        match self.config.rendezvous {
            Rendezvous::Directory => self.near.node_is_live(node),
            Rendezvous::Hosts { .. } => lock(&self.lives).get(&node).is_none_or(|it| it.is_live),
        }
    }

    /// Asks another host, on a thread of its own: a host that is cut off would block the caller, and with it perhaps the renewal
    /// of a lease. A host that does not answer may live.
    fn ask_live(this: &Arc<Self>, node: NodeId) {
        let now_ns = this.clock.now_ns();
        let mut lives = lock(&this.lives);
        let known = lives.get(&node).copied();
        if node == this.node() || known.is_some_and(|it| now_ns < it.good_until_ns) {
            return;
        }
        // Until it has answered it may live: an expired answer may have been about an earlier start.
        let shown = known.map_or(0, |it| it.shown);
        let good_until_ns = now_ns + this.config.connect_timeout_ns;
        lives.insert(node, Life { is_live: true, good_until_ns, shown });
        drop(lives);
        let (config, shared) = (this.config.clone(), Arc::downgrade(this));
        let ask = move || {
            let is_live = !rendezvous::has_ended(&config.rendezvous, node, config.connect_timeout_ns);
            let Some(shared) = shared.upgrade() else { return };
            let good_until_ns = shared.clock.now_ns() + LIVE_ELSEWHERE_NS;
            let mut lives = lock(&shared.lives);
            if lives.get(&node).is_none_or(|it| it.shown == shown) {
                lives.insert(node, Life { is_live, good_until_ns, shown });
            }
        };
        // Without a thread there is no answer.
        drop(std::thread::Builder::new().name("farhold-asks".into()).spawn(ask));
    }

    /// Another host has answered, or has proved its identity: any known refusal was about an earlier start.
    fn show_live(&self, node: NodeId) {
        if matches!(self.config.rendezvous, Rendezvous::Hosts { .. }) {
            let good_until_ns = self.clock.now_ns() + LIVE_ELSEWHERE_NS;
            let mut lives = lock(&self.lives);
            let life = lives.entry(node).or_insert(Life { is_live: true, good_until_ns, shown: 0 });
            *life = Life { is_live: true, good_until_ns, shown: life.shown + 1 };
        }
    }

    /// As [`Self::is_live`], but asked at most once in the time for which an answer is valid.
    fn was_live(&self, node: NodeId, now_ns: u64) -> bool {
        let known = lock(&self.lives).get(&node).copied();
        match known {
            Some(it) if now_ns < it.good_until_ns => it.is_live,
            _ => {
                let is_live = self.is_live(node);
                lock(&self.lives).insert(node, Life { is_live, good_until_ns: now_ns + LIVE_NS, shown: 0 });
                is_live
            }
        }
    }

    fn note_sender(&self, port: u16, node: NodeId) {
        lock(&self.senders).entry(port).or_default().insert(node);
    }

    fn take_senders(&self, port: u16) -> HashSet<NodeId> {
        lock(&self.senders).remove(&port).unwrap_or_default()
    }

    /// The present key of a region of this node.
    fn key(&self, region: RegionId) -> Option<u64> {
        self.near.key(region).map(|key| self.key_base.wrapping_add(key))
    }

    /// That key, and the memory that it opens.
    fn registered(&self, region: RegionId) -> Option<(u64, Arc<RegionMemory>)> {
        self.near.registered(region).map(|(key, memory)| (self.key_base.wrapping_add(key), memory))
    }

    /// Opens a region to NICs, if it still has that key and the provider can. Returns its NIC's key and base.
    fn open_to_nics(&self, region: RegionId, key: u64, memory: &Arc<RegionMemory>) -> Option<(u64, u64)> {
        let registrar = self.registrar.as_ref()?;
        let mut open = lock(&self.open);
        if self.key(region) != Some(key) {
            return None;
        }
        if open.get(&region).is_none_or(|(opened, _)| *opened != key) {
            open.insert(region, (key, registrar.open_to_peers(memory, secret::random_u64(), self.nics_write).ok()?));
        }
        open.get(&region).map(|(_, registration)| (registration.key, registration.base))
    }

    /// Closes a region to NICs.
    fn close_to_nics(&self, region: RegionId) {
        lock(&self.open).remove(&region);
    }

    /// Closes all regions to all NICs. A peer that may still use one asks for its new key before each transfer.
    fn close_all_to_nics(&self) {
        lock(&self.open).clear();
    }
}

/// The local address that a provider's endpoints are bound to: `shm` has names of its own.
fn local_address(config: &Config) -> Option<&str> {
    (config.provider != "shm").then(|| rendezvous::local_address(&config.rendezvous))
}

/// This process's membership as one node.
pub(crate) struct Member {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
    agent: Option<JoinHandle<()>>,
    publication: Option<Publication>,
}

impl Member {
    pub(crate) fn join(cluster: &Path, node: NodeId, config: Config) -> Result<Arc<Self>, FabricError> {
        let near = shm::Member::join(cluster, node)?;
        let channel = Channel::open(&config.provider, local_address(&config), agent::SIZE, !config.agent_spins)?;
        let shared = Arc::new(Shared {
            cluster: cluster.to_owned(),
            clock: Clock::start(),
            provider: channel.traits().provider.clone(),
            home_name: channel.name()?,
            registrar: channel.traits().has_rma.then(|| channel.registrar()),
            nics_write: channel.traits().stops_writes,
            key_base: secret::random_u64(),
            start: match config.rendezvous {
                Rendezvous::Directory => near.incarnation(),
                // Also of a node that has lost its directory.
                Rendezvous::Hosts { .. } => fence::unix_us(),
            },
            birth: AtomicU64::new(secret::random_u64() | 1),
            admission: Admission::default(),
            fence: Fence::default(),
            open: Mutex::default(),
            closings: Closings::default(),
            senders: Mutex::default(),
            lives: Mutex::default(),
            stop: AtomicBool::new(false),
            near,
            config,
        });
        let endpoint = shared.near.clone().open(Some(AGENT_PORT))?;
        let bell = Arc::new(Bell::new()?);
        let agent = Agent::new(shared.clone(), channel, endpoint);
        let its_bell = bell.clone();
        let thread = std::thread::Builder::new().name("farhold-agent".into()).spawn(move || agent.run(&its_bell));
        let thread = thread.map_err(|error| FabricError::io("start", "the home agent", &error))?;
        let mut member = Self { shared, bell, agent: Some(thread), publication: None };
        let shared = &member.shared;
        let record = Record {
            version: frame::VERSION,
            node,
            incarnation: shared.start,
            pid: std::process::id(),
            provider: shared.provider.clone(),
            name: shared.home_name.clone(),
        };
        member.publication = Some(Publication::new(cluster, &shared.config.rendezvous, &record)?);
        Ok(Arc::new(member))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.publication = None;
        self.shared.stop.store(true, Ordering::Release);
        self.bell.ring();
        drop(self.agent.take().map(JoinHandle::join));
    }
}

impl Membership for Member {
    fn node(&self) -> NodeId {
        self.shared.node()
    }

    fn provider(&self) -> &'static str {
        KIND.name
    }

    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        self.shared.near.create_region(region, len)
    }

    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        let attached = self.shared.near.attach_region(region);
        self.shared.close_to_nics(region);
        attached
    }

    fn open_region(&self, region: RegionId) -> Result<(), FabricError> {
        self.shared.near.open_region(region)
    }

    fn remove_region(&self, region: RegionId) -> Result<(), FabricError> {
        let removed = self.shared.near.remove_region(region);
        self.shared.close_to_nics(region);
        removed
    }

    fn endpoint(self: Arc<Self>, _handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError> {
        let near = self.shared.near.clone().open(port)?;
        Ok(Box::new(endpoint::Endpoint::new(near, self)))
    }

    fn node_is_live(&self, node: NodeId) -> bool {
        match self.shared.config.rendezvous {
            Rendezvous::Directory => {}
            Rendezvous::Hosts { .. } => Shared::ask_live(&self.shared, node),
        }
        self.shared.is_live(node)
    }

    fn fence(&self, node: NodeId, birth: u64) -> Result<bool, FabricError> {
        fence::shut_out(&self.shared, &self.bell, node, birth)
    }

    fn birth(&self) -> Option<u64> {
        Some(self.shared.birth.load(Ordering::Relaxed))
    }

    fn set_birth(&self, birth: u64) {
        self.shared.birth.store(birth, Ordering::Relaxed);
        self.shared.near.set_birth(birth);
    }

    fn admit(&self, number: u64, admitted: Admitted) {
        self.shared.admission.change(number, admitted);
    }
}

/// libfabric's providers that this one is written for.
const WRITTEN_FOR: [&str; 4] = ["efa", "shm", "tcp;ofi_rxm", "verbs;ofi_rxm"];

/// Those of them that this machine has.
fn here() -> Vec<Here> {
    let (version, found) = channel::found();
    let written_for = found.into_iter().filter(|it| WRITTEN_FOR.contains(&&*it.provider));
    let describe = |it: channel::Found| {
        let has = |has, what| if has { what } else { "" };
        let about = format!(
            "libfabric {}.{}: messages{}{}",
            version >> 16,
            version & 0xffff,
            has(it.has_rma, ", remote reads and writes (long ones go by them)"),
            has(it.has_atomics, ", atomics (unused: words have one master, the CPU of their node)"),
        );
        Here { name: format!("{}:{}", KIND.name, it.provider), about }
    };
    written_for.map(describe).collect()
}

/// See [`super::ALL`].
pub(super) const KIND: super::Kind = super::Kind {
    name: "libfabric",
    about: "machines with a network between them, by libfabric: verbs, EFA, TCP, shared memory",
    does: |op| match op {
        OpKind::Read | OpKind::Write => Doer::Library,
        _ => Doer::HomeAgent,
    },
    here,
    join: Some(super::Join {
        usage: "libfabric:NAME[?listen=..&peer=..]",
        member: |directory, node, settings| {
            let Some(url) = settings else {
                return Err(FabricError::unfit_provider(
                    "libfabric",
                    "the name of one of libfabric's providers is to follow, as in libfabric:tcp;ofi_rxm",
                ));
            };
            Ok(Member::join(directory, node, Config::of_url(url, directory)?)?)
        },
    }),
    #[cfg(test)]
    beds: &[super::conformance::Bed::libfabric_tcp, super::conformance::Bed::libfabric_shm],
};
