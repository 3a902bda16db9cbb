//! The transport of requests to agents, and of replies.
//!
//! A database routes them through its home service. [`Messages`] is a line for programs that have none: an agent is an endpoint whose
//! thread runs [`answer`] for each message that it receives.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use farhold_fabric::{Address, Endpoint, FabricError, Message, NodeId};

use super::reply::Reply;
use super::request::Request;
use super::serve::{Home, Serving, Step};

/// The future that a line's methods return.
pub type Waiting<'a, T> = Pin<Box<dyn Future<Output = Result<T, FabricError>> + 'a>>;

/// Carries requests to the agents of home nodes, and their replies back. Several scans of a thread may use one line at a time.
///
/// The implementer keeps the messages of a reply in the order in which the agent sent them, and gives each to the request whose number
/// it has ([`number_of_reply`]). It keeps them until they are received or [forgotten](Self::forget), within a limit of bytes: beyond
/// it, the request whose reply has no room fails. Messages with other numbers are dropped.
pub trait Line {
    /// A number that no other request of the receiver of these replies has had. Its reply is kept from now on.
    fn number(&self) -> u64;

    /// Sends a request to the agent of a node.
    fn send<'a>(&'a self, node: NodeId, request: &'a [u8]) -> Waiting<'a, ()>;

    /// Waits for the next message of the reply to the request of this number.
    ///
    /// It must end with an error when the request's node dies or is expelled, even if nothing arrives: nothing else ends the wait
    /// before [`Settings::reply_ns_max`](super::super::Settings::reply_ns_max).
    fn receive(&self, number: u64) -> Waiting<'_, Vec<u8>>;

    /// The reply to this request is not received any more: what has come of it is dropped, and what still comes.
    fn forget(&self, number: u64);
}

/// The number of the request to whose reply a message belongs; `None`: it belongs to none.
#[must_use]
pub fn number_of_reply(message: &[u8]) -> Option<u64> {
    Reply::number_of(message)
}

/// The number of a request.
#[must_use]
pub fn number_of_request(request: &[u8]) -> u64 {
    Request::number_of(request)
}

/// Bytes of replies that a line of [`Messages`] keeps for scans that do not receive at the moment.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A line by the messages of an endpoint, whose inbox gets nothing but replies. It is for tests and benches:
///
/// - It leads to one agent, and does not hear of its death. A reply that takes longer than the line's time-out is an error.
/// - It has no credits. A scan whose sink takes longer than [`ROOM_NS_MAX`] for a segment, while the rest of the reply does not fit into
///   the inbox, loses that rest, and fails by the time-out.
pub struct Messages<'a> {
    endpoint: &'a Endpoint,
    agent: Address,
    timeout_ns: u64,
    number: Cell<u64>,
    replies: RefCell<Replies>,
}

/// Replies to the requests under way, by number.
#[derive(Default)]
struct Replies {
    of: HashMap<u64, Kept>,
    bytes: usize,
}

#[derive(Default)]
struct Kept {
    messages: VecDeque<Vec<u8>>,
    /// There was no room for one of its messages.
    is_lost: bool,
    waker: Option<Waker>,
}

impl Replies {
    /// Keeps a message for its request.
    fn keep(&mut self, message: Vec<u8>) {
        let Some(kept) = Reply::number_of(&message).and_then(|number| self.of.get_mut(&number)) else { return };
        if self.bytes + message.len() > KEPT_BYTES_MAX {
            self.bytes -= kept.messages.drain(..).map(|message| message.len()).sum::<usize>();
            kept.is_lost = true;
        } else if !kept.is_lost {
            self.bytes += message.len();
            kept.messages.push_back(message);
        }
        kept.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The next message of a reply, or `None` if there is none yet. `Err`: it is lost.
    fn take(&mut self, number: u64, cx: &Context<'_>) -> Result<Option<Vec<u8>>, ()> {
        let Some(kept) = self.of.get_mut(&number).filter(|kept| !kept.is_lost) else { return Err(()) };
        let message = kept.messages.pop_front();
        self.bytes -= message.as_ref().map_or(0, Vec::len);
        kept.waker = message.is_none().then(|| cx.waker().clone());
        Ok(message)
    }
}

impl<'a> Messages<'a> {
    /// A line to one agent. A message of a reply that takes longer than `timeout_ns` is an error.
    #[must_use]
    pub fn new(endpoint: &'a Endpoint, agent: Address, timeout_ns: u64) -> Self {
        // Replies to an earlier line of this endpoint may still arrive.
        let number = Cell::new(endpoint.handle().unrepeated_u64());
        Self { endpoint, agent, timeout_ns, number, replies: RefCell::default() }
    }
}

impl Line for Messages<'_> {
    fn number(&self) -> u64 {
        self.number.set(self.number.get().wrapping_add(1));
        self.replies.borrow_mut().of.insert(self.number.get(), Kept::default());
        self.number.get()
    }

    fn send<'a>(&'a self, node: NodeId, request: &'a [u8]) -> Waiting<'a, ()> {
        Box::pin(async move {
            if node != self.agent.node {
                return Err(FabricError::NodeUnavailable { node });
            }
            send(self.endpoint, self.agent, request, self.timeout_ns).await
        })
    }

    fn receive(&self, number: u64) -> Waiting<'_, Vec<u8>> {
        Box::pin(async move {
            let mut arrival = pin!(self.endpoint.recv_timeout(self.timeout_ns));
            poll_fn(|cx| {
                loop {
                    match self.replies.borrow_mut().take(number, cx) {
                        Ok(None) => {}
                        Ok(Some(message)) => return Poll::Ready(Ok(message)),
                        Err(()) => return Poll::Ready(Err(FabricError::QueueFull { to: self.endpoint.address() })),
                    }
                    match arrival.as_mut().poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Ready(Ok(message)) => {
                            self.replies.borrow_mut().keep(message.bytes);
                            arrival.set(self.endpoint.recv_timeout(self.timeout_ns));
                        }
                    }
                }
            })
            .await
        })
    }

    fn forget(&self, number: u64) {
        let mut replies = self.replies.borrow_mut();
        let messages = replies.of.remove(&number).unwrap_or_default().messages;
        replies.bytes -= messages.iter().map(Vec::len).sum::<usize>();
    }
}

/// Sends a message as soon as there is room for it.
async fn send(endpoint: &Endpoint, to: Address, message: &[u8], timeout_ns: u64) -> Result<(), FabricError> {
    let handle = endpoint.handle();
    let until_ns = handle.now_ns().saturating_add(timeout_ns);
    for turn in 0.. {
        match endpoint.send(to, message) {
            Err(FabricError::QueueFull { .. }) if handle.now_ns() < until_ns => handle.pause(turn).await,
            sent => return sent,
        }
    }
    unreachable!("a loop that only returns")
}

/// How long [`answer`] waits for room in an asker's inbox. An asker that has abandoned its scan may no longer receive replies.
pub const ROOM_NS_MAX: u64 = 1_000_000_000;

/// Answers a message that an agent's endpoint received. Other tasks run after each step ([`Serving::next`]).
///
/// # Errors
/// The asker's inbox does not take the reply for [`ROOM_NS_MAX`]: the rest of it is dropped.
pub async fn answer(endpoint: &Endpoint, home: &dyn Home, message: &Message) -> Result<(), FabricError> {
    let mut serving = Serving::new(&message.bytes);
    while let Some(step) = serving.next(home) {
        match step {
            Step::Message(reply) => send(endpoint, message.from, &reply, ROOM_NS_MAX).await?,
            Step::Nothing => {}
        }
        endpoint.handle().yield_now().await;
    }
    Ok(())
}
