//! The register of a simulated cluster: one word of truth that nodes can be cut off from.

use farhold_fabric::{Handle, NodeId};
use farhold_txn::{Configuration, Register, RegisterError, RegisterFuture, Registered};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long a call takes, there and back.
const CALL_NS: u64 = 8_000;

#[derive(Default)]
struct Shared {
    registered: Registered,
    cut: BTreeSet<NodeId>,
    slow_ns_max: u64,
}

/// The register, outside of any node.
#[derive(Clone, Default)]
pub struct SimRegister(Rc<RefCell<Shared>>);

impl SimRegister {
    /// An empty register for so many nodes.
    #[must_use]
    pub fn new(nodes: u8) -> Self {
        let registered = Registered { renewals: vec![0; usize::from(nodes)], ..Registered::default() };
        Self(Rc::new(RefCell::new(Shared { registered, ..Shared::default() })))
    }

    /// What is written there.
    #[must_use]
    pub fn configuration(&self) -> Option<Configuration> {
        self.0.borrow().registered.configuration.clone()
    }

    /// Has the last change come to its end, and is this node not part of it? Only then may its process start: the others may
    /// still be about to shut its predecessor out.
    #[must_use]
    pub fn is_free(&self, node: NodeId) -> bool {
        let shared = self.0.borrow();
        let now = shared.registered.configuration.as_ref();
        now.is_some_and(|now| !now.contains(node) && now.number == shared.registered.settled)
    }

    /// Cuts a node off, or heals its way.
    pub fn cut(&self, node: NodeId, is_cut: bool) {
        let mut shared = self.0.borrow_mut();
        if is_cut {
            shared.cut.insert(node)
        } else {
            shared.cut.remove(&node)
        };
    }

    /// One call in four takes up to so much longer; 0: none does.
    pub fn slow(&self, slow_ns_max: u64) {
        self.0.borrow_mut().slow_ns_max = slow_ns_max;
    }

    /// A node's way to it, while its process lives.
    #[must_use]
    pub fn of(&self, node: NodeId, handle: &Handle, alive: &Rc<Cell<bool>>) -> RegisterOf {
        RegisterOf { shared: self.clone(), node, handle: handle.clone(), alive: alive.clone() }
    }
}

/// One node's way to the register.
pub struct RegisterOf {
    shared: SimRegister,
    node: NodeId,
    handle: Handle,
    alive: Rc<Cell<bool>>,
}

impl RegisterOf {
    /// Half of a call; an error if the way is cut.
    async fn way(&self) -> Result<(), RegisterError> {
        self.handle.sleep_ns(CALL_NS / 2 + self.handle.random_u64() % CALL_NS).await;
        let slow_ns_max = self.shared.0.borrow().slow_ns_max;
        if slow_ns_max > 0 && self.handle.random_u64().is_multiple_of(4) {
            self.handle.sleep_ns(self.handle.random_u64() % slow_ns_max).await;
        }
        if !self.alive.get() {
            std::future::pending::<()>().await;
        }
        if self.shared.0.borrow().cut.contains(&self.node) {
            return Err(RegisterError::Unavailable { reason: "cut off".into() });
        }
        Ok(())
    }
}

impl Register for RegisterOf {
    fn load(&self) -> RegisterFuture<'_, Registered> {
        Box::pin(async move {
            self.way().await?;
            let found = self.shared.0.borrow().registered.clone();
            self.way().await?;
            Ok(found)
        })
    }

    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool> {
        Box::pin(async move {
            self.way().await?;
            let is_set = {
                let mut shared = self.shared.0.borrow_mut();
                let number = shared.registered.configuration.as_ref().map_or(0, |found| found.number);
                let expects = number == expected;
                if expects {
                    shared.registered.configuration = Some(next.clone());
                }
                expects
            };
            self.way().await?;
            Ok(is_set)
        })
    }

    fn settle(&self, number: u64) -> RegisterFuture<'_, ()> {
        Box::pin(async move {
            self.way().await?;
            {
                let settled = &mut self.shared.0.borrow_mut().registered.settled;
                *settled = number.max(*settled);
            }
            self.way().await
        })
    }

    fn renew(&self, node: NodeId) -> RegisterFuture<'_, ()> {
        Box::pin(async move {
            self.way().await?;
            self.shared.0.borrow_mut().registered.renewals[usize::from(node.0)] += 1;
            self.way().await
        })
    }
}
