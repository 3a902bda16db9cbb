//! One thread's endpoint: near memory and inboxes as on shared memory, far ones by a [`Caller`].
//!
//! All endpoints of a node on one thread share the thread's caller, because a channel is expensive: `tcp;ofi_rxm` takes 50 to 80
//! MiB for its buffers.

use super::caller::{Caller, Look};
use super::{Member, Shared};
use crate::address::{Address, NodeId, RegionId, RegionKey};
use crate::batch::Batch;
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::provider::shm::Shm;
use crate::provider::{Inbox, Posted, Provider, Ticket};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

/// Polls without an answer between two offers of the core to others: some microseconds.
const POLLS_PER_YIELD: u32 = 16;
/// After this time without an answer the thread sleeps instead, for the same time at once, or until a message comes. With more
/// threads than cores, those that offer their core get it back as often as an agent gets one, and an agent's share may be too
/// small for its leases. The sleep delays an answer that has taken this long by at most a tenth.
const SLEEP_AFTER_NS: u64 = 1_000_000;
const SLEEP_NS: u64 = 50_000;
/// How long a message may take to leave before the thread sleeps.
const FLUSH_NS_MAX: u64 = 10_000_000;

thread_local! {
    /// The callers of this thread, one a membership.
    static CALLERS: RefCell<Vec<Weak<RefCell<Caller>>>> = const { RefCell::new(Vec::new()) };
}

/// This thread's caller of a membership, opened if there is none.
fn caller_of(shared: &Arc<Shared>) -> Result<Rc<RefCell<Caller>>, FabricError> {
    CALLERS.with_borrow_mut(|callers| {
        callers.retain(|caller| caller.strong_count() > 0);
        let known = callers.iter().filter_map(Weak::upgrade).find(|caller| caller.borrow().is_of(shared));
        if let Some(caller) = known {
            return Ok(caller);
        }
        let caller = Rc::new(RefCell::new(Caller::open(shared.clone())?));
        callers.push(Rc::downgrade(&caller));
        Ok(caller)
    })
}

/// See the module.
pub(super) struct Endpoint {
    near: Shm,
    /// Looked up at the first contact with another node: many endpoints never have one.
    far: OnceCell<Rc<RefCell<Caller>>>,
    member: Arc<Member>,
    empty_polls: Cell<u32>,
    /// The time since which there has been no answer, no message and no new request, as far as polls could tell.
    empty_since_ns: Cell<Option<u64>>,
}

impl Endpoint {
    pub fn new(near: Shm, member: Arc<Member>) -> Self {
        Self { near, far: OnceCell::new(), member, empty_polls: Cell::new(0), empty_since_ns: Cell::new(None) }
    }

    fn with_far<T>(&self, act: impl FnOnce(&mut Caller) -> Result<T, FabricError>) -> Result<T, FabricError> {
        if self.far.get().is_none() {
            let opened = caller_of(&self.member.shared)?;
            let _ = self.far.set(opened);
        }
        act(&mut self.far().expect("just opened"))
    }

    /// The caller, if there has been a contact.
    fn far(&self) -> Option<std::cell::RefMut<'_, Caller>> {
        self.far.get().map(|far| far.borrow_mut())
    }

    fn is_near(&self, node: NodeId) -> bool {
        node == self.near.address().node
    }

    /// On a machine with more threads than cores, the thread that is waited for may wait for this very core.
    fn count_empty_poll(&self) {
        let polls = self.empty_polls.get() + 1;
        self.empty_polls.set(polls % POLLS_PER_YIELD);
        if polls < POLLS_PER_YIELD {
            return;
        }
        let now_ns = self.member.shared.clock.now_ns();
        let since_ns = self.empty_since_ns.get().unwrap_or(now_ns);
        self.empty_since_ns.set(Some(since_ns));
        let sleeps = now_ns - since_ns >= SLEEP_AFTER_NS;
        if !sleeps || self.near.wait(SLEEP_NS) {
            std::thread::yield_now();
        }
        if let Some(mut far) = self.far() {
            far.look_at_clock();
        }
    }

    /// What was waited for is there, or something new is waited for.
    fn begin_wait(&self) {
        self.empty_polls.set(0);
        self.empty_since_ns.set(None);
    }

    /// Brings on what is under way.
    fn turn(&self) {
        if let Some(mut far) = self.far()
            && far.is_busy()
        {
            far.turn();
        }
    }
}

impl Provider for Endpoint {
    fn address(&self) -> Address {
        self.near.address()
    }

    fn post(&self, batch: &mut Batch) -> Posted {
        let Some(content) = &batch.content else { return Posted::Done };
        if content.ops.iter().all(|op| self.is_near(op.at.node())) {
            return self.near.post(batch);
        }
        let kept = &mut batch.content;
        match self.with_far(|far| Ok(far.post(&self.near, kept))) {
            Ok(Some(flight)) => {
                // What was waited for until now may have been abandoned; the wait for this one begins.
                self.begin_wait();
                Posted::UnderWay(Ticket(flight))
            }
            Ok(None) => Posted::Done,
            Err(error) => {
                if let Some(content) = kept {
                    **content = content.all_failed(&error);
                }
                Posted::Done
            }
        }
    }

    fn poll(&self, Ticket(flight): Ticket, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()> {
        let look = self.far().map_or(Look::Polled, |mut far| far.look(flight));
        match look {
            Look::Over(content) => {
                batch.content = Some(content);
                self.begin_wait();
                return Poll::Ready(());
            }
            Look::Polled => self.count_empty_poll(),
            Look::Waits => {}
        }
        // No waker is called when the answer arrives: look again next turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn abandon(&self, Ticket(flight): Ticket) {
        if let Some(mut far) = self.far() {
            far.abandon(flight);
        }
    }

    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        if self.is_near(node) { self.near.mapped(node, region) } else { None }
    }

    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        if self.is_near(node) {
            return self.near.refresh(node, region);
        }
        self.with_far(|far| far.refresh(node, region))
    }

    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        if self.is_near(to.node) {
            return self.near.send(to, message);
        }
        let from = self.near.address().port;
        self.with_far(|far| far.send(from, to, message))
    }

    #[inline]
    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool {
        self.turn();
        let has_come = self.near.try_recv(inbox, message);
        if has_come {
            self.begin_wait();
        }
        has_come
    }

    fn has_arrived(&self) -> bool {
        self.near.has_arrived()
    }

    fn wait(&self, timeout_ns: u64) -> bool {
        if let Some(mut far) = self.far() {
            far.flush(FLUSH_NS_MAX);
        }
        self.near.wait(timeout_ns)
    }

    fn wake_on_arrival(&self, cx: &mut Context<'_>) {
        self.turn();
        self.count_empty_poll();
        self.near.wake_on_arrival(cx);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let port = self.near.address().port;
        if let Some(mut far) = self.far() {
            far.leave_lanes(port);
        }
        // In this order: see `Session::open_lane`.
        self.near.close();
        let senders = self.member.shared.take_senders(port);
        if !senders.is_empty() {
            let _ = self.with_far(|far| {
                far.tell_closed(port, senders.into_iter());
                Ok(())
            });
        }
    }
}
