//! Asking other nodes.

use super::message::{Answer, Request, decode_reply, error_of};
use super::wire::Reader;
use crate::worker::Core;
use crate::{NodeId, TxnError};
use farhold_fabric::{Address, FabricError, Message};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

/// What came back.
pub(crate) type Body = Vec<u8>;

/// The questions of one worker that wait for an answer.
#[derive(Default)]
pub(crate) struct Pending {
    last: u64,
    answers: HashMap<u64, Waiting>,
}

/// One question.
#[derive(Default)]
struct Waiting {
    answer: Option<Answer>,
    /// Who asked: another task of the worker may be the one that finds the answer in the inbox.
    asker: Option<Waker>,
}

/// Takes a question out when nobody waits for its answer any more.
struct Asked<'c> {
    core: &'c Core,
    number: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.core.pending.borrow_mut().answers.remove(&self.number);
    }
}

/// Tries to get a message into a full inbox without waiting.
const TRIES_MAX: u32 = 1_000;
/// How long an answer may take before the kernel is asked whether the other node still runs.
const LOOK_AFTER_NS: u64 = 5_000_000;

impl Core {
    /// Asks a node and waits for its answer, serving this node's own inbox meanwhile.
    ///
    /// # Errors
    /// What the other node answered; [`TxnError::NodeUnavailable`] if it is dead or does not answer in time.
    pub async fn call(&self, node: NodeId, request: &Request<'_>) -> Result<Body, TxnError> {
        let unavailable = TxnError::NodeUnavailable { node, committed: false };
        let number = {
            let mut pending = self.pending.borrow_mut();
            pending.last += 1;
            let number = pending.last;
            pending.answers.insert(number, Waiting::default());
            number
        };
        let asked = Asked { core: self, number };
        let until_ns = self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns);
        self.post(node, &request.encode(number), until_ns).await?;
        let mut look_ns = self.handle.now_ns() + LOOK_AFTER_NS;
        loop {
            self.receive();
            let answer = self.pending.borrow_mut().answers.get_mut(&number).and_then(|it| it.answer.take());
            if let Some(answer) = answer {
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

    /// Waits until the answer is there, or something else is in an inbox, or the time is over.
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
        let body = self.call(node, request).await?;
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

    /// As [`Self::tell`], at once: for those who cannot wait. May be lost if the inbox stays full.
    pub fn tell_now(&self, node: NodeId, request: &Request<'_>) {
        let message = request.encode(0);
        for _ in 0..TRIES_MAX {
            match self.endpoint.send(Address::home(node), &message) {
                Err(FabricError::QueueFull { .. }) => self.receive(),
                _ => return,
            }
        }
    }

    async fn post(&self, node: NodeId, message: &[u8], until_ns: u64) -> Result<(), TxnError> {
        loop {
            match self.endpoint.send(Address::home(node), message) {
                Ok(()) => return Ok(()),
                Err(FabricError::QueueFull { .. }) if self.handle.now_ns() < until_ns => {
                    self.receive();
                    if !self.serve_one() {
                        self.handle.yield_now().await;
                    }
                }
                Err(FabricError::MessageTooLong { bytes, bytes_max }) => {
                    return Err(TxnError::TooLarge { what: "a row for another node", bytes, bytes_max });
                }
                Err(FabricError::QueueFull { .. }) => {
                    return Err(TxnError::NodeUnavailable { node, committed: false });
                }
                Err(error) => return Err(TxnError::far(error, node)),
            }
        }
    }

    /// Takes the answers that have come to those who wait for them.
    pub fn receive(&self) {
        let mut message = self.inbox.take();
        while self.endpoint.try_recv_into(&mut message) {
            self.take_answer(&message);
        }
        self.inbox.set(message);
    }

    fn take_answer(&self, message: &Message) {
        // Garbage, and answers that came too late, find nobody waiting.
        if let Ok((number, answer)) = decode_reply(&message.bytes)
            && let Some(waiting) = self.pending.borrow_mut().answers.get_mut(&number)
        {
            waiting.answer = Some(answer);
            if let Some(asker) = waiting.asker.take() {
                asker.wake();
            }
        }
    }
}
