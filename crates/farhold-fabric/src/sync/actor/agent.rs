//! An agent: a thread at the word's home node that executes word instructions by message (delegation).
//!
//! ```text
//!   question  number | at | code | operand | second operand          40 bytes
//!   answer    number | 0 and the old value, or what went wrong       24 bytes
//! ```
//!
//! The word stays in the agent's cache. Only messages travel, each in its sender's own lane. Many tasks of a thread may ask at
//! the same time: answers carry the question's number.

use super::super::{WordOp, Words};
use super::cpu::{LOOKS_PER_TURN, execute_on};
use crate::{Address, Endpoint, FabricError, FarPtr, Message, RegionMemory};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// See [`super::ALL`].
pub(super) const KIND: super::Kind =
    super::Kind { name: "agent", about: "a thread of the word's home, asked by message (the GRU's way)" };

/// How long an answer may take.
const TIMEOUT_NS: u64 = if cfg!(test) { 30_000_000_000 } else { 2_000_000_000 };
/// The most questions that one [`WordAgent::poll`] answers.
const ANSWERS_MAX: usize = 64;

fn words_of<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}

fn bytes_of<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn encode(op: WordOp) -> [u64; 3] {
    match op {
        WordOp::Load => [0, 0, 0],
        WordOp::Add(operand) => [1, operand, 0],
        WordOp::CompareSwap { expected, new } => [2, expected, new],
        WordOp::Swap(new) => [3, new, 0],
        WordOp::Clear => [4, 0, 0],
    }
}

fn decode([code, a, b]: [u64; 3]) -> Option<WordOp> {
    Some(match code {
        0 => WordOp::Load,
        1 => WordOp::Add(a),
        2 => WordOp::CompareSwap { expected: a, new: b },
        3 => WordOp::Swap(a),
        4 => WordOp::Clear,
        _ => return None,
    })
}

/// The side of the home node: executes the instructions in its messages on the regions of its own node. It lives on one thread.
/// That thread, or a task, must call [`Self::poll`] again and again.
pub struct WordAgent {
    endpoint: Rc<Endpoint>,
    message: Cell<Message>,
    /// The region of the last question; the next question is mostly for the same.
    region: RefCell<Option<Arc<RegionMemory>>>,
}

impl WordAgent {
    /// An agent that receives questions at the endpoint's own inbox; no other code may receive there.
    #[must_use]
    pub fn at(endpoint: &Rc<Endpoint>) -> Self {
        Self { endpoint: endpoint.clone(), message: Cell::default(), region: RefCell::default() }
    }

    /// The address for questions.
    #[must_use]
    pub fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Answers the questions that have arrived, up to a limit. Returns how many messages there were.
    ///
    /// Messages that are not questions are dropped. So are answers to an endpoint that is gone or takes none; that endpoint's
    /// request ends by its own time-out.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn poll(&self) -> usize {
        let mut message = self.message.take();
        let mut answered = 0;
        while answered < ANSWERS_MAX && self.endpoint.try_recv_into(&mut message) {
            answered += 1;
            let Some([number, at, code, a, b]) = words_of(&message.bytes) else { continue };
            let Some(op) = decode([code, a, b]) else { continue };
            let answer = match self.execute(FarPtr::from_bits(at), op) {
                Ok(old) => [number, 0, old],
                Err(FabricError::OutOfBounds { region_bytes, .. }) => [number, 1, region_bytes],
                Err(FabricError::Misaligned { align, .. }) => [number, 2, align],
                Err(_) => [number, 3, 0],
            };
            let _ = self.endpoint.send(message.from, &bytes_of(answer));
        }
        self.message.set(message);
        answered
    }

    /// Waits for questions: for an agent that shares its thread with others.
    pub async fn arrival(&self, timeout_ns: u64) -> bool {
        self.endpoint.arrival(timeout_ns).await
    }

    fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        let (node, region) = (at.node(), at.region());
        let absent = FabricError::NoSuchRegion { node, region };
        let mut known = self.region.borrow_mut();
        if known.as_ref().is_none_or(|memory| !at.is_with(memory.origin())) {
            *known = (node == self.endpoint.node()).then(|| self.endpoint.mapped(node, region)).flatten();
        }
        execute_on(known.as_ref().ok_or(absent)?, at.offset(), op)
    }
}

/// The caller's side.
pub struct Agent {
    endpoint: Rc<Endpoint>,
    to: Address,
    last: Cell<u64>,
    /// Questions whose callers wait, and the answers that came while another task looked.
    open: RefCell<HashMap<u64, Option<[u64; 2]>>>,
    message: Cell<Message>,
}

/// A question whose caller waits.
struct Open<'a> {
    agent: &'a Agent,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.agent.open.borrow_mut().remove(&self.number);
    }
}

impl Agent {
    /// Sends questions to the agent at `to`. No other code may receive at the endpoint's own inbox.
    #[must_use]
    pub fn asked_at(endpoint: &Rc<Endpoint>, to: Address) -> Self {
        Self { endpoint: endpoint.clone(), to, last: Cell::new(0), open: RefCell::default(), message: Cell::default() }
    }

    fn open(&self, number: u64) -> Open<'_> {
        self.open.borrow_mut().insert(number, None);
        Open { agent: self, number }
    }

    /// The answer to a question, if it has come.
    fn answer(&self, number: u64) -> Option<[u64; 2]> {
        let mut message = self.message.take();
        let mut found = self.open.borrow().get(&number).copied().flatten();
        while found.is_none() && self.endpoint.try_recv_into(&mut message) {
            match words_of(&message.bytes) {
                Some([of, status, value]) if of == number => found = Some([status, value]),
                // It is of another task, or of one that has given up.
                Some([of, status, value]) => {
                    if let Some(answer) = self.open.borrow_mut().get_mut(&of) {
                        *answer = Some([status, value]);
                    }
                }
                None => {}
            }
        }
        self.message.set(message);
        found
    }
}

impl Words for Agent {
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        let number = self.last.get() + 1;
        self.last.set(number);
        let _open = self.open(number);
        let [code, a, b] = encode(op);
        let question = bytes_of([number, at.to_bits(), code, a, b]);
        let handle = self.endpoint.handle();
        let until_ns = handle.now_ns() + TIMEOUT_NS;
        while let Err(error) = self.endpoint.send(self.to, &question) {
            if !matches!(error, FabricError::QueueFull { .. }) {
                return Err(error);
            }
            if handle.now_ns() > until_ns {
                return Err(FabricError::Timeout { waited_ns: TIMEOUT_NS });
            }
            handle.yield_now().await;
        }
        let mut looks = 0_u32;
        let [status, value] = loop {
            if let Some(answer) = self.answer(number) {
                break answer;
            }
            looks += 1;
            // The clock costs as much as a look or two.
            if looks.is_multiple_of(LOOKS_PER_TURN) {
                if handle.now_ns() > until_ns {
                    return Err(FabricError::Timeout { waited_ns: TIMEOUT_NS });
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
            handle.yield_now().await;
        };
        match status {
            0 => Ok(value),
            1 => Err(FabricError::OutOfBounds { at, bytes: 8, region_bytes: value }),
            2 => Err(FabricError::Misaligned { at, align: value }),
            _ => Err(FabricError::NoSuchRegion { node: at.node(), region: at.region() }),
        }
    }

    async fn pause(&self) {
        self.endpoint.handle().yield_now().await;
    }
}
