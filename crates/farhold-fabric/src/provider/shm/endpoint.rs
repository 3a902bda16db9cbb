//! One thread's endpoint: it executes instructions itself, in the memory that it maps.

use super::super::{Inbox, Posted, Provider, Ticket};
use super::entry::{AT_MAGIC, Entry, MAGIC, OTHER_VERSION};
use super::files::{entry_path, holder, inbox_path, open};
use super::inbox;
use super::member::{Member, REMOVED, map_region};
use crate::address::{Address, FarPtr, NodeId, RegionId, RegionKey};
use crate::batch::Batch;
#[cfg(feature = "libfabric")]
use crate::batch::{Buffer, Op};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::room::{allocate, refusal};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::task::{Context, Poll};
use std::{fs, io};

/// A region of some node as an endpoint knows it.
struct Known {
    /// Dropped when the key is stale: the file may have been removed, and its memory is kept as long as it is mapped.
    memory: Option<Arc<RegionMemory>>,
    key: u64,
}

impl Known {
    /// The memory, if its key is still the region's. Keys never come back.
    #[inline]
    fn open(&mut self, key_now: u64) -> Option<&Arc<RegionMemory>> {
        if self.key != key_now {
            self.memory = None;
        }
        self.memory.as_ref()
    }
}

/// A node as an endpoint knows it.
struct Peer {
    entry: Arc<Entry>,
    regions: Box<[Option<Known>; 256]>,
    /// Lanes in its inboxes, of its incarnation `incarnation`.
    lanes: HashMap<u16, (RegionMemory, inbox::Sender)>,
    incarnation: u64,
}

/// One thread's endpoint.
pub(in crate::provider) struct Shm {
    member: Arc<Member>,
    address: Address,
    /// The word that marks this endpoint's lanes.
    owner: u64,
    inbox: RegionMemory,
    receiver: RefCell<inbox::Receiver>,
    peers: RefCell<Box<[Option<Peer>]>>,
    empty_polls: Cell<u32>,
    /// Turns that tasks have waited since the last message.
    waited: Cell<u32>,
    /// Sleeps so far.
    waits: Cell<u32>,
}

/// Turns of waiting for a message, some 25 ns each, before the thread offers its processor to others, and between two offers.
/// Without the offer a thread that waits for one that is not running keeps it from running until its time slice is over: with
/// more threads than processors, a question and its answer took milliseconds. The offer does not come sooner, because two threads
/// that exchange messages beside many strangers are quickest while both of them run.
const WAITS_BEFORE_YIELD: u32 = 8192;
const WAITS_PER_YIELD: u32 = 2048;
/// Sleeps between two looks whether a region's key has gone stale: some microseconds with many nodes.
pub(super) const WAITS_PER_LOOK_AT_KEYS: u32 = 64;
/// Empty looks between two looks that ignore the ready bits: see [`inbox`].
const EMPTY_POLLS_PER_RESCAN: u32 = 100_000;

impl Shm {
    pub(super) fn new(member: Arc<Member>, address: Address, inbox: RegionMemory) -> Self {
        let serial = member.serial.fetch_add(1, Ordering::Relaxed);
        Self {
            address,
            owner: u64::from(address.node.0) << 56 | (member.incarnation & 0xff_ffff) << 32 | u64::from(serial),
            member,
            inbox,
            receiver: RefCell::default(),
            peers: RefCell::new((0..256).map(|_| None).collect()),
            empty_polls: Cell::new(0),
            waited: Cell::new(0),
            waits: Cell::new(0),
        }
    }

    /// The peer, got to know on first use.
    #[inline]
    fn peer<'a>(&self, peers: &'a mut [Option<Peer>], node: NodeId) -> Result<&'a mut Peer, FabricError> {
        let slot = &mut peers[usize::from(node.0)];
        if slot.is_none() {
            *slot = Some(self.meet(node)?);
        }
        Ok(slot.as_mut().expect("just filled"))
    }

    #[cold]
    fn meet(&self, node: NodeId) -> Result<Peer, FabricError> {
        let entry = if node == self.address.node {
            self.member.entry.clone()
        } else {
            let file = open(&entry_path(&self.member.cluster, node), false)
                .map_err(|_| FabricError::NodeUnavailable { node })?;
            let entry =
                Entry::map(&self.member.cluster, node, &file).map_err(|_| FabricError::NodeUnavailable { node })?;
            match entry.word(AT_MAGIC).load(Ordering::Acquire) {
                MAGIC => Arc::new(entry),
                // It has never been there, or is just coming.
                0 => return Err(FabricError::NodeUnavailable { node }),
                _ => {
                    let path = entry_path(&self.member.cluster, node);
                    return Err(FabricError::bad_format(path, OTHER_VERSION));
                }
            }
        };
        let incarnation = entry.incarnation();
        Ok(Peer { entry, regions: Box::new([const { None }; 256]), lanes: HashMap::new(), incarnation })
    }

    /// The memory of a region, if the known key still opens it.
    #[inline]
    fn region<'a>(&self, peers: &'a mut [Option<Peer>], at: FarPtr) -> Result<&'a RegionMemory, FabricError> {
        let (node, region) = (at.node(), at.region());
        let peer = self.peer(peers, node)?;
        let slot = &mut peer.regions[usize::from(region.0)];
        if slot.is_none() {
            *slot = Some(self.learn(&peer.entry, node, region)?);
        }
        let known = slot.as_mut().expect("just filled");
        let open = known.open(peer.entry.key(region).load(Ordering::Acquire));
        open.map(|memory| &**memory).ok_or(FabricError::StaleKey { node, region })
    }

    #[cold]
    fn learn(&self, entry: &Entry, node: NodeId, region: RegionId) -> Result<Known, FabricError> {
        let key = entry.key(region).load(Ordering::Acquire);
        if key == 0 || key & REMOVED != 0 {
            return Err(FabricError::NoSuchRegion { node, region });
        }
        let own = if node == self.address.node {
            self.member.own.lock().expect("the regions").get(&region).cloned()
        } else {
            None
        };
        let memory = match own {
            Some(memory) => memory,
            None => Arc::new(map_region(&self.member.cluster, node, region, false)?),
        };
        Ok(Known { memory: Some(memory), key })
    }

    /// Drops regions with stale keys, for a thread that does not touch them any more.
    #[cold]
    fn let_go_stale(&self) {
        for peer in self.peers.borrow_mut().iter_mut().flatten() {
            let Peer { entry, regions, .. } = peer;
            for (known, region) in regions.iter_mut().zip(0..=u8::MAX) {
                if let Some(known) = known {
                    known.open(entry.key(RegionId(region)).load(Ordering::Acquire));
                }
            }
        }
    }

    /// Takes no message any more.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn close(&self) {
        inbox::close(&self.inbox);
    }

    /// Executes one instruction on a region of this node.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn execute(&self, op: &mut Op, data: &mut Buffer) -> Result<(), FabricError> {
        op.execute(data, self.region(&mut self.peers.borrow_mut(), op.at)?)
    }

    /// A lane into an inbox of this node, for messages that come from elsewhere.
    #[cfg(feature = "libfabric")]
    pub(in crate::provider) fn own_lane(&self, to: Address) -> Result<(RegionMemory, inbox::Sender), FabricError> {
        let mut peers = self.peers.borrow_mut();
        self.open_lane(self.peer(&mut peers, self.address.node)?, to)
    }

    fn open_lane(&self, peer: &Peer, to: Address) -> Result<(RegionMemory, inbox::Sender), FabricError> {
        let path = inbox_path(&self.member.cluster, to, peer.incarnation);
        let file = open(&path, false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FabricError::NoSuchPort { to },
            _ => FabricError::io("open the inbox", &path, &error),
        })?;
        let len = file.metadata().map_err(|error| FabricError::io("look at", &path, &error))?.len();
        if len < inbox::INBOX_BYTES {
            return Err(FabricError::NoSuchPort { to });
        }
        let memory = RegionMemory::file(inbox::origin(to), len, &file)
            .map_err(|error| FabricError::io("map the inbox", &path, &error))?;
        if !inbox::check(&memory) {
            return Err(FabricError::NoSuchPort { to });
        }
        let lane = inbox::Sender::claim(&memory, self.owner, |owner| self.owner_is_dead(owner));
        let lane = lane.ok_or(FabricError::TooManySenders { to })?;
        let (start, bytes) = lane.ring();
        match allocate(&file, start, bytes) {
            Ok(()) => Ok((memory, lane)),
            Err(error) => {
                lane.release(&memory);
                Err(refusal(&error, &file, &path, bytes))
            }
        }
    }

    /// Whether the endpoint that wrote this owner word is gone for good.
    fn owner_is_dead(&self, owner: u64) -> bool {
        let node = NodeId((owner >> 56) as u8);
        let incarnation = owner >> 32 & 0xff_ffff;
        let now = if node == self.address.node {
            self.member.incarnation
        } else {
            match holder(&self.member.cluster, node) {
                Ok(None) => return true,
                Ok(Some(_)) => match self.meet(node) {
                    Ok(peer) => peer.incarnation,
                    Err(_) => return false,
                },
                Err(_) => return false,
            }
        };
        now & 0xff_ffff != incarnation
    }
}

impl Provider for Shm {
    fn address(&self) -> Address {
        self.address
    }

    #[inline]
    fn post(&self, batch: &mut Batch) -> Posted {
        let Some(content) = &mut batch.content else { return Posted::Done };
        let mut peers = self.peers.borrow_mut();
        let (mut ops, data, errors) = content.parts();
        while let Some(first) = ops.first() {
            // One look at the directory for all neighbours in the same region: the batch is one instant.
            let (at, count) = (first.at, ops.iter().take_while(|op| op.at.is_with(first.at)).count());
            let (run, rest) = ops.split_at_mut(count);
            let region = self.region(&mut peers, at);
            for op in run {
                let done = match &region {
                    Ok(memory) => op.execute(data, memory),
                    Err(error) => Err(error.clone()),
                };
                if let Err(error) = done {
                    op.fail(errors, error);
                }
            }
            ops = rest;
        }
        Posted::Done
    }

    fn poll(&self, _: Ticket, _: &mut Batch, _: &mut Context<'_>) -> Poll<()> {
        unreachable!("nothing is ever under way")
    }

    fn abandon(&self, _: Ticket) {}

    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        let mut peers = self.peers.borrow_mut();
        self.region(&mut peers, FarPtr::new(node, region, 0)).ok()?;
        peers[usize::from(node.0)].as_ref()?.regions[usize::from(region.0)].as_ref()?.memory.clone()
    }

    fn maps_others(&self) -> bool {
        true
    }

    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        let mut peers = self.peers.borrow_mut();
        let peer = self.peer(&mut peers, node)?;
        let slot = &mut peer.regions[usize::from(region.0)];
        let learned = self.learn(&peer.entry, node, region);
        match learned {
            Ok(known) => Ok(RegionKey(slot.insert(known).key)),
            Err(error) => {
                slot.take_if(|_| matches!(error, FabricError::NoSuchRegion { .. }));
                Err(error)
            }
        }
    }

    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        let mut peers = self.peers.borrow_mut();
        let peer = self.peer(&mut peers, to.node)?;
        let incarnation = peer.entry.incarnation();
        if peer.incarnation != incarnation {
            peer.lanes.clear();
            peer.incarnation = incarnation;
        }
        if peer.lanes.get(&to.port).is_none_or(|(memory, _)| inbox::is_closed(memory)) {
            // An ended inbox keeps its memory as long as it is mapped, and receives nothing any more.
            peer.lanes.retain(|_, (memory, _)| !inbox::is_closed(memory));
            let lane = self.open_lane(peer, to)?;
            peer.lanes.insert(to.port, lane);
        }
        let (memory, lane) = peer.lanes.get_mut(&to.port).expect("just there");
        let put = lane.put(memory, self.address, to, message);
        match put {
            Ok(()) => peer.entry.ring(),
            Err(FabricError::NoSuchPort { .. }) => drop(peer.lanes.remove(&to.port)),
            Err(_) => {}
        }
        put
    }

    #[inline]
    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool {
        let polls = self.empty_polls.get() + 1;
        self.empty_polls.set(polls % EMPTY_POLLS_PER_RESCAN);
        let rescan = polls >= EMPTY_POLLS_PER_RESCAN - 1;
        if rescan {
            self.let_go_stale();
        }
        let take = |receiver: &mut inbox::Receiver, memory: &RegionMemory| {
            if rescan {
                receiver.rescan();
            }
            receiver.take(memory, &mut message.from, &mut message.bytes)
        };
        let mut take = take;
        let taken = match inbox {
            Inbox::Own => take(&mut self.receiver.borrow_mut(), &self.inbox),
            Inbox::Home => {
                self.member.home.try_lock().is_ok_and(|mut receiver| take(&mut receiver, &self.member.home_memory))
            }
        };
        if taken {
            self.waited.set(0);
        }
        taken
    }

    fn has_arrived(&self) -> bool {
        inbox::has_ready(&self.inbox)
            || inbox::has_ready(&self.member.home_memory)
            || self.receiver.borrow().is_pending()
            || match self.member.home.try_lock() {
                Ok(receiver) => receiver.is_pending(),
                // Another thread has taken the ready bits, and may leave before it has looked at all of their lanes.
                Err(TryLockError::WouldBlock) => true,
                Err(TryLockError::Poisoned(_)) => false,
            }
    }

    fn wait(&self, timeout_ns: u64) -> bool {
        self.has_arrived() || {
            let waits = self.waits.get().wrapping_add(1);
            self.waits.set(waits);
            if waits.is_multiple_of(WAITS_PER_LOOK_AT_KEYS) {
                self.let_go_stale();
            }
            self.member.entry.park(timeout_ns, || self.has_arrived());
            self.has_arrived()
        }
    }

    fn wake_on_arrival(&self, cx: &mut Context<'_>) {
        // Senders are in other processes and only wake threads: look again next turn.
        let waited = self.waited.get() + 1;
        self.waited.set(if waited >= WAITS_BEFORE_YIELD { WAITS_BEFORE_YIELD - WAITS_PER_YIELD } else { waited });
        if waited >= WAITS_BEFORE_YIELD {
            std::thread::yield_now();
        }
        cx.waker().wake_by_ref();
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        inbox::close(&self.inbox);
        let _ = fs::remove_file(inbox_path(&self.member.cluster, self.address, self.member.incarnation));
        self.member.ports.lock().expect("the ports").give_back(self.address.port);
        for peer in self.peers.get_mut().iter_mut().flatten() {
            for (_, (memory, lane)) in peer.lanes.drain() {
                lane.release(&memory);
            }
        }
    }
}
