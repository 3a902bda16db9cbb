//! How requests come to agents, and replies back.
//!
//! A database routes them through its home service. [`Messages`] is a line for programs that have none: an agent is an endpoint whose
//! thread runs [`answer`] for each message that it receives.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;

use farhold_fabric::{Address, Endpoint, FabricError, Message, NodeId};

use super::serve::{Home, Serving};

/// What a line's methods return.
pub type Waiting<'a, T> = Pin<Box<dyn Future<Output = Result<T, FabricError>> + 'a>>;

/// Carries requests to the agents of home nodes, and their replies back. The replies of one agent arrive in the order in which it sent
/// them. A line may also bring replies to requests of scans that have been given up.
pub trait Line {
    /// A number that no other request of the receiver of these replies has had.
    fn number(&self) -> u64;

    /// Sends a request to the agent of a node.
    fn send<'a>(&'a self, node: NodeId, request: &'a [u8]) -> Waiting<'a, ()>;

    /// Waits for the next message of a reply.
    fn receive(&self) -> Waiting<'_, Vec<u8>>;
}

/// A line by the messages of an endpoint, whose inbox gets nothing but replies.
pub struct Messages<'a> {
    endpoint: &'a Endpoint,
    agent: Address,
    timeout_ns: u64,
    number: Cell<u64>,
}

impl<'a> Messages<'a> {
    /// A line to one agent. A reply that takes longer than `timeout_ns` is an error.
    #[must_use]
    pub fn new(endpoint: &'a Endpoint, agent: Address, timeout_ns: u64) -> Self {
        // Replies to an earlier line of this endpoint may still be on their way.
        let number = Cell::new(endpoint.handle().unrepeated_u64());
        Self { endpoint, agent, timeout_ns, number }
    }
}

impl Line for Messages<'_> {
    fn number(&self) -> u64 {
        self.number.set(self.number.get().wrapping_add(1));
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

    fn receive(&self) -> Waiting<'_, Vec<u8>> {
        Box::pin(async { Ok(self.endpoint.recv_timeout(self.timeout_ns).await?.bytes) })
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

/// How long an agent waits for room in an asker's inbox. An asker that has given its scan up may not take replies any more.
const ROOM_NS_MAX: u64 = 1_000_000_000;

/// Answers a message that an agent's endpoint received.
///
/// # Errors
/// The asker's inbox does not take the reply: the rest of it is dropped.
pub async fn answer(endpoint: &Endpoint, home: &dyn Home, message: &Message) -> Result<(), FabricError> {
    let mut serving = Serving::new(&message.bytes);
    while let Some(reply) = serving.next(home) {
        send(endpoint, message.from, &reply, ROOM_NS_MAX).await?;
    }
    Ok(())
}
