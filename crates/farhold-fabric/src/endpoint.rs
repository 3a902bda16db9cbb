//! A thread's access to the fabric.

use crate::address::{Address, NodeId, RegionId, RegionKey};
use crate::batch::Batch;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::RegionMemory;
use crate::provider::{Inbox, Posted, Provider, Ticket};
use crate::traffic::Moved;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A message, and the address of its sender's inbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The sender's own inbox.
    pub from: Address,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// One thread's endpoint: it posts instructions, sends messages, and has an inbox of its own. It stays on its thread.
pub struct Endpoint {
    provider: Box<dyn Provider>,
    handle: Handle,
    /// In virtual time: the time of the timer for a task that waits here, and the task's waker.
    alarm: RefCell<Option<(u64, Waker)>>,
    moved: Arc<Moved>,
    _not_send: PhantomData<*const ()>,
}

impl Endpoint {
    pub(crate) fn new(provider: Box<dyn Provider>, handle: Handle, moved: Arc<Moved>) -> Self {
        Self { provider, handle, alarm: RefCell::default(), moved, _not_send: PhantomData }
    }

    /// The address of this endpoint's inbox.
    #[must_use]
    pub fn address(&self) -> Address {
        self.provider.address()
    }

    /// The node this endpoint belongs to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.address().node
    }

    /// The executor it was opened on.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Executes the instructions and returns the batch with their results; each instruction has its own. On mapped memory this
    /// completes at once, without suspending. Instructions are under way from the first poll; dropping the future does not cancel
    /// them.
    pub fn submit(&self, batch: Batch) -> Submit<'_> {
        Submit { endpoint: self, batch, ticket: None }
    }

    /// The region's memory, if this thread can load and store it in place: always for own regions, on `shm` for all regions. It
    /// checks no key.
    #[must_use]
    pub fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        self.provider.mapped(node, region)
    }

    /// Whether regions of other nodes are ever [mapped](Self::mapped) here. If not, a caller that asks for them one by one may
    /// wait for an answer each time.
    #[must_use]
    pub fn maps_others(&self) -> bool {
        self.provider.maps_others()
    }

    /// Fetches the region's key again; needed after [`FabricError::StaleKey`]. What the caller remembers of the region's content
    /// may be void.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRegion`]: the next access learns the key of one that is there by then. After any other error
    /// ([`FabricError::NodeUnavailable`]) the earlier key stays, and is refused again if it is stale.
    pub fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        self.provider.refresh(node, region)
    }

    /// Sends a message to an inbox. Messages of one endpoint to one inbox arrive in order. A message to a node that is dead or
    /// dies may be lost.
    ///
    /// # Errors
    /// [`FabricError::QueueFull`]: wait, send again. [`FabricError::MessageTooLong`], [`FabricError::NodeUnavailable`],
    /// [`FabricError::NoSuchPort`], [`FabricError::TooManySenders`].
    #[inline]
    pub fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        self.provider.send(to, message)
    }

    /// The next message of this endpoint's inbox, if there is one.
    #[must_use]
    #[inline]
    pub fn try_recv(&self) -> Option<Message> {
        let mut message = Message::default();
        self.try_recv_into(&mut message).then_some(message)
    }

    /// As [`Self::try_recv`], but reuses the memory of `message`. False: there is no message, and `message` is untouched.
    #[inline]
    pub fn try_recv_into(&self, message: &mut Message) -> bool {
        self.provider.try_recv(Inbox::Own, message)
    }

    /// The next message of the node's home inbox (port 0), which all endpoints of the node share. `None` also while another
    /// thread takes one.
    #[must_use]
    #[inline]
    pub fn try_recv_home(&self) -> Option<Message> {
        let mut message = Message::default();
        self.try_recv_home_into(&mut message).then_some(message)
    }

    /// As [`Self::try_recv_home`], but reuses the memory of `message`.
    #[inline]
    pub fn try_recv_home_into(&self, message: &mut Message) -> bool {
        self.provider.try_recv(Inbox::Home, message)
    }

    /// The next message of this endpoint's inbox. Other tasks run meanwhile.
    pub async fn recv(&self) -> Message {
        let mut message = Message::default();
        poll_fn(|cx| self.poll_inbox(cx, |endpoint| endpoint.try_recv_into(&mut message))).await;
        message
    }

    /// As [`Self::recv`], with a time-out.
    ///
    /// # Errors
    /// [`FabricError::Timeout`].
    pub async fn recv_timeout(&self, timeout_ns: u64) -> Result<Message, FabricError> {
        let mut message = Message::default();
        let in_time = self.in_time(timeout_ns, |endpoint| endpoint.try_recv_into(&mut message)).await;
        in_time.then_some(message).ok_or(FabricError::Timeout { waited_ns: timeout_ns })
    }

    /// Waits until a message is in this endpoint's inbox or may be in the home inbox, at most `timeout_ns`. True: look. Other
    /// tasks run meanwhile. It is the async form of [`Self::wait`], for serving loops that must also run in virtual time.
    pub async fn arrival(&self, timeout_ns: u64) -> bool {
        self.in_time(timeout_ns, |endpoint| endpoint.provider.has_arrived()).await
    }

    /// Looks each time that something arrives; false when the time is over.
    async fn in_time(&self, timeout_ns: u64, mut look: impl FnMut(&Self) -> bool) -> bool {
        let until_ns = self.handle.now_ns().saturating_add(timeout_ns);
        poll_fn(|cx| {
            if self.poll_inbox(cx, &mut look).is_ready() {
                return Poll::Ready(true);
            }
            if self.handle.now_ns() >= until_ns {
                return Poll::Ready(false);
            }
            // In real time it is polled again at once anyway, so it sets no timer, which would stay in the heap.
            if self.handle.is_virtual() {
                self.wake_by(until_ns, cx.waker());
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes a task at a time, or earlier. One timer suffices for a task that waits here again and again, because most waits end
    /// by an arrival, long before their time. A task that is woken too early waits again.
    fn wake_by(&self, until_ns: u64, waker: &Waker) {
        let (mut alarm, now_ns) = (self.alarm.borrow_mut(), self.handle.true_now_ns());
        let until_ns = self.handle.true_ns(until_ns);
        let in_time = |(at_ns, whom): &(u64, Waker)| *at_ns > now_ns && *at_ns <= until_ns && whom.will_wake(waker);
        if !alarm.as_ref().is_some_and(in_time) {
            self.handle.wake_at_ns(until_ns, waker);
            *alarm = Some((until_ns, waker.clone()));
        }
    }

    fn poll_inbox(&self, cx: &mut Context<'_>, mut look: impl FnMut(&Self) -> bool) -> Poll<()> {
        if look(self) {
            return Poll::Ready(());
        }
        self.provider.wake_on_arrival(cx);
        Poll::Pending
    }

    /// Puts the thread to sleep until a message may have come to this endpoint's inbox or the home inbox, at most `timeout_ns`.
    /// True: look. It blocks the whole thread, so it is only for threads without other work. In virtual time it returns at once
    /// with what is there.
    #[must_use]
    pub fn wait(&self, timeout_ns: u64) -> bool {
        self.provider.wait(timeout_ns)
    }
}

/// See [`Endpoint::submit`].
#[must_use = "nothing happens until it is awaited"]
pub struct Submit<'a> {
    endpoint: &'a Endpoint,
    batch: Batch,
    ticket: Option<Ticket>,
}

impl Future for Submit<'_> {
    type Output = Batch;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Batch> {
        let this = &mut *self;
        let provider = &*this.endpoint.provider;
        let ticket = if let Some(ticket) = this.ticket {
            ticket
        } else {
            this.endpoint.moved.add(this.batch.bytes_used());
            match provider.post(&mut this.batch) {
                Posted::Done => return Poll::Ready(std::mem::take(&mut this.batch)),
                Posted::UnderWay(ticket) => *this.ticket.insert(ticket),
            }
        };
        match provider.poll(ticket, &mut this.batch, cx) {
            Poll::Ready(()) => {
                this.ticket = None;
                Poll::Ready(std::mem::take(&mut this.batch))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Submit<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.endpoint.provider.abandon(ticket);
        }
    }
}
