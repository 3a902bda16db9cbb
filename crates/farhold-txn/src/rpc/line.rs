//! Asking other nodes.

use crate::base::error::TxnError;
use crate::base::wire::Reader;
use crate::node::Node;
use crate::rpc::message::Request;
use crate::rpc::recovery;
use crate::rpc::reply::{ASK_AGAIN, Answer, decode_reply, error_of};
use farhold_fabric::{Address, Endpoint, FabricError, Handle, Message, NodeId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Weak;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// What came back.
pub(crate) type Body = Vec<u8>;

/// The questions of one worker that wait for an answer.
pub(crate) struct Pending {
    /// The number of the last question.
    last: u64,
    answers: HashMap<u64, Waiting>,
    /// Questions that were given up before their answer came.
    given_up: u64,
}

impl Pending {
    /// `random` belongs to this worker only. An answer that another node has kept for an earlier start, whose inbox was at the same port,
    /// then matches none of this worker's questions.
    pub fn new(random: u64) -> Self {
        // A message with the number 0 wants no answer; counting from here never reaches 0.
        Self { last: random >> 1, answers: HashMap::default(), given_up: 0 }
    }
}

/// One question.
#[derive(Default)]
struct Waiting {
    answer: Option<Answer>,
    /// Nothing more will come.
    is_answered: bool,
    /// The task that asked: another task of the worker may be the one that finds the answer in the inbox.
    asker: Option<Waker>,
}

/// A worker's way to other nodes: its requests and its notifications.
pub(crate) struct Line {
    pub node: Arc<Node>,
    pub me: NodeId,
    pub endpoint: Endpoint,
    pub handle: Handle,
    /// Questions that wait for an answer.
    pending: RefCell<Pending>,
    /// A message's memory.
    pub inbox: Cell<Message>,
    /// Serves this node's own inbox while the worker waits.
    server: Weak<dyn Serve>,
}

/// The server of a node's inbox.
pub(crate) trait Serve {
    /// Answers the next request to the node, if there is one; true if there was.
    fn serve_one(&self) -> bool;
}

/// Takes a question out when no task waits for its answer any more.
struct Asked<'c> {
    line: &'c Line,
    number: u64,
    is_posted: &'c Cell<bool>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut pending = self.line.pending.borrow_mut();
        let is_open = pending.answers.remove(&self.number).is_some_and(|waiting| !waiting.is_answered);
        if is_open && self.is_posted.get() {
            pending.given_up += 1;
        }
    }
}

/// How long an answer may take before the kernel is asked whether the other node still runs.
const LOOK_AFTER_NS: u64 = 5_000_000;

impl Line {
    pub fn new(node: &Arc<Node>, endpoint: Endpoint, handle: &Handle, server: Weak<dyn Serve>) -> Self {
        Self {
            node: node.clone(),
            me: node.id(),
            endpoint,
            handle: handle.clone(),
            pending: RefCell::new(Pending::new(handle.unrepeated_u64())),
            inbox: Cell::default(),
            server,
        }
    }

    /// Serves this node's own inbox, one step; true if there was a request.
    #[inline]
    pub fn serve_one(&self) -> bool {
        self.server.upgrade().is_some_and(|server| server.serve_one())
    }

    /// Asks a node and waits for its answer, serving this node's own inbox meanwhile.
    ///
    /// # Errors
    /// What the other node answered; [`TxnError::NodeUnavailable`] if it is dead or does not answer in time.
    pub async fn call(&self, node: NodeId, request: &Request<'_>) -> Result<Body, TxnError> {
        self.call_noting(node, request, &Cell::new(false)).await
    }

    /// As [`Self::call`], and notes when the request has been posted. If it is not posted, the node never receives it.
    async fn call_noting(&self, node: NodeId, request: &Request<'_>, is_posted: &Cell<bool>) -> Result<Body, TxnError> {
        let unavailable = TxnError::NodeUnavailable { node, committed: false };
        let number = {
            let mut pending = self.pending.borrow_mut();
            pending.last += 1;
            let number = pending.last;
            pending.answers.insert(number, Waiting::default());
            number
        };
        let asked = Asked { line: self, number, is_posted };
        let until_ns = self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns);
        let message = request.encode(number);
        self.post(node, &message, until_ns).await?;
        is_posted.set(true);
        let mut look_ns = self.handle.now_ns() + LOOK_AFTER_NS;
        loop {
            self.receive();
            let answer = self.pending.borrow_mut().answers.get_mut(&number).and_then(|it| it.answer.take());
            if let Some(Err((ASK_AGAIN, _))) = answer {
                // This thread has taken all answers that came before.
                self.post(node, &message, until_ns).await?;
            } else if let Some(answer) = answer {
                drop(asked);
                return answer.map_err(|(status, text)| error_of(status, text, node));
            }
            let now_ns = self.handle.now_ns();
            if now_ns >= until_ns {
                return Err(unavailable);
            }
            if now_ns >= look_ns {
                look_ns = now_ns + LOOK_AFTER_NS;
                if !self.node.fabric.node_is_live(node) {
                    return Err(unavailable);
                }
            }
            if !self.serve_one() {
                self.wait_for(number, until_ns.min(look_ns) - now_ns).await;
            }
        }
    }

    /// Waits until the answer is there, another message is in an inbox, or the time is over.
    async fn wait_for(&self, number: u64, timeout_ns: u64) {
        let mut arrival = pin!(self.endpoint.arrival(timeout_ns));
        poll_fn(|cx| {
            if let Some(waiting) = self.pending.borrow_mut().answers.get_mut(&number) {
                if waiting.answer.is_some() {
                    return Poll::Ready(());
                }
                waiting.asker = Some(cx.waker().clone());
            }
            arrival.as_mut().poll(cx).map(|_| ())
        })
        .await;
    }

    /// Asks, and reads the answer with `read`.
    ///
    /// # Errors
    /// As [`Self::call`]; [`TxnError::Corrupt`] for an answer that makes no sense.
    pub async fn ask<T>(
        &self,
        node: NodeId,
        request: &Request<'_>,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        self.ask_noting(node, request, read, &Cell::new(false)).await
    }

    /// As [`Self::ask`], and notes when the request is on its way.
    ///
    /// # Errors
    /// As there.
    pub async fn ask_noting<T>(
        &self,
        node: NodeId,
        request: &Request<'_>,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, TxnError>,
        is_posted: &Cell<bool>,
    ) -> Result<T, TxnError> {
        let body = self.call_noting(node, request, is_posted).await?;
        let mut reader = Reader(&body);
        let answer = read(&mut reader)?;
        reader.end()?;
        Ok(answer)
    }

    /// Tells a node something without wanting an answer.
    ///
    /// # Errors
    /// It is unavailable, or its inbox stays full.
    pub async fn tell(&self, node: NodeId, request: &Request<'_>) -> Result<(), TxnError> {
        let until_ns = self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns);
        self.post(node, &request.encode(0), until_ns).await
    }

    /// As [`Self::tell`], also to a node that is stopped for longer than a request may take: it receives the message
    /// when it goes on.
    pub async fn tell_certainly(&self, node: NodeId, request: &Request<'_>) {
        if self.tell(node, request).await.is_err() {
            self.tell_now(node, request);
        }
    }

    /// As [`Self::tell`], at once: for callers that cannot wait. If the inbox is full it is sent later; only the end of
    /// the node, or of this one, loses it.
    pub fn tell_now(&self, node: NodeId, request: &Request<'_>) {
        let _ = self.send_or_keep(Address::home(node), &request.encode(0));
    }

    /// As [`Self::tell_now`], for messages that are repeated anyway: lost if the inbox is full.
    pub fn hint(&self, node: NodeId, request: &Request<'_>) {
        let _ = self.endpoint.send(Address::home(node), &request.encode(0));
    }

    /// Tells a node something about recovery, if it can be told at once.
    pub fn tell_recovery(&self, node: NodeId, message: &recovery::Message<'_>) {
        self.hint(node, &Request::Recovery { body: &message.encode() });
    }

    /// Sends a message, or has it sent when its inbox has room.
    pub fn send_or_keep(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        self.node.unsent.send_or_keep(to, message, |message| self.endpoint.send(to, message))
    }

    /// Sends what had no room before.
    #[inline]
    pub fn send_unsent(&self) {
        if !self.node.unsent.is_empty() {
            let is_present = |node| self.node.present.contains(node);
            self.node.unsent.send_some(self.handle.now_ns(), is_present, |to, message| self.endpoint.send(to, message));
        }
    }

    /// Sends a message after those for which its home has had no room yet. Only the order of sending is kept: another worker may send a
    /// kept message in its own lane, and two workers of the home may serve two messages at once. What must be done before something else
    /// needs a [call](Self::call).
    async fn post(&self, node: NodeId, message: &[u8], until_ns: u64) -> Result<(), TxnError> {
        let to = Address::home(node);
        loop {
            let is_behind = self.node.unsent.keeps_some(to);
            let sent = if is_behind { Err(FabricError::QueueFull { to }) } else { self.endpoint.send(to, message) };
            match sent {
                Ok(()) => return Ok(()),
                Err(FabricError::QueueFull { .. } | FabricError::TooManySenders { .. })
                    if self.handle.now_ns() < until_ns =>
                {
                    self.receive();
                    if !self.serve_one() {
                        self.handle.yield_now().await;
                    }
                }
                Err(FabricError::MessageTooLong { bytes, bytes_max }) => {
                    return Err(TxnError::TooLarge { what: "a row for another node", bytes, bytes_max });
                }
                Err(FabricError::QueueFull { .. } | FabricError::TooManySenders { .. }) => {
                    return Err(TxnError::NodeUnavailable { node, committed: false });
                }
                Err(error) => return Err(TxnError::far(error, node)),
            }
        }
    }

    /// Takes out answers that no task waits for any more. They would take room in the inbox, and delay other answers of
    /// their sender.
    #[inline]
    pub fn take_late_answers(&self) {
        if self.pending.borrow().given_up > 0 {
            self.receive();
        }
    }

    /// Takes the answers that have come to the tasks that wait for them.
    pub fn receive(&self) {
        let mut message = self.inbox.take();
        while self.endpoint.try_recv_into(&mut message) {
            self.take_answer(&message);
        }
        self.inbox.set(message);
    }

    fn take_answer(&self, message: &Message) {
        let Ok((number, answer)) = decode_reply(&message.bytes) else { return };
        let mut pending = self.pending.borrow_mut();
        let Some(waiting) = pending.answers.get_mut(&number) else {
            // It came too late.
            pending.given_up = pending.given_up.saturating_sub(1);
            return;
        };
        waiting.is_answered = !matches!(answer, Err((ASK_AGAIN, _)));
        waiting.answer = Some(answer);
        if let Some(asker) = waiting.asker.take() {
            asker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Node, NodeConfig};
    use crate::protocol::worker::Worker;
    use farhold_fabric::{Executor, Fabric};
    use farhold_store::TableId;

    /// The home's inbox had no room for a message, and has room when its sender has another one: the first must not come behind it.
    #[test]
    fn messages_that_are_kept_are_not_overtaken() {
        let directory = tempfile::tempdir().expect("a directory");
        let executor = Executor::real(1);
        let open = |node| -> Worker {
            let fabric = Fabric::join_shm(directory.path(), NodeId(node)).unwrap();
            let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
            Node::open(fabric, config).unwrap().worker(&executor.handle()).unwrap()
        };
        let (sender, home) = (open(0), open(1));
        let (core, to) = (&*sender.core, Address::home(NodeId(1)));
        let mut message = Message::default();
        let mut receive = || {
            let mut ids = Vec::new();
            while home.core.endpoint.try_recv_home_into(&mut message) {
                if let Ok((0, Request::DropTable { id })) = Request::decode(&message.bytes) {
                    ids.push(id.0);
                }
            }
            ids
        };
        while core.endpoint.send(to, &[0; 1_000]).is_ok() {}
        core.tell_now(NodeId(1), &Request::DropTable { id: TableId(1) });
        assert_eq!(receive(), []);
        executor.run(core.tell(NodeId(1), &Request::DropTable { id: TableId(2) })).unwrap();
        core.send_unsent();
        assert_eq!(receive(), [1, 2]);
        drop((sender, home));
    }
}
