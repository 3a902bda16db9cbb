//! The register of a simulated cluster, from which nodes can be cut off.

use farhold_fabric::{Handle, NodeId};
use farhold_txn::{Configuration, Register, RegisterError, RegisterFuture, Registered, Renewals, Serving};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long a call takes, there and back.
const CALL_NS: u64 = 8_000;

struct Shared {
    /// A clock that belongs to no machine and shows the true time.
    clock: Handle,
    registered: Registered,
    cut: BTreeSet<NodeId>,
    slow_ns_max: u64,
    /// What has been written there, in words, each with the true time.
    story: Vec<(u64, String)>,
}

/// The register, outside of any node.
#[derive(Clone)]
pub struct SimRegister(Rc<RefCell<Shared>>);

impl SimRegister {
    /// An empty register for `nodes` nodes.
    #[must_use]
    pub fn new(nodes: u8, clock: &Handle) -> Self {
        let registered =
            Registered { renewals: vec![Renewals::default(); usize::from(nodes)], ..Registered::default() };
        let (clock, cut, story) = (clock.clone(), BTreeSet::new(), Vec::new());
        Self(Rc::new(RefCell::new(Shared { clock, registered, cut, slow_ns_max: 0, story })))
    }

    /// What is written there.
    #[must_use]
    pub fn configuration(&self) -> Option<Configuration> {
        self.0.borrow().registered.configuration.clone()
    }

    /// What has been written there since the last call, in words, each with its true time in nanoseconds.
    #[must_use]
    pub fn take_story(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.0.borrow_mut().story)
    }

    /// Whether the last change is complete and this node is not part of it. Only then may its process start: the others may still be about to fence its
    /// predecessor.
    #[must_use]
    pub fn is_free(&self, node: NodeId) -> bool {
        let shared = self.0.borrow();
        let now = shared.registered.configuration.as_ref();
        now.is_some_and(|now| !now.contains(node) && now.number == shared.registered.settled)
    }

    /// Cuts a node off, or heals its link.
    pub fn cut(&self, node: NodeId, is_cut: bool) {
        let mut shared = self.0.borrow_mut();
        if is_cut {
            shared.cut.insert(node)
        } else {
            shared.cut.remove(&node)
        };
    }

    /// On average, every second write and every fourth read takes up to `slow_ns_max` longer to arrive; 0: none does.
    pub fn slow(&self, slow_ns_max: u64) {
        self.0.borrow_mut().slow_ns_max = slow_ns_max;
    }

    /// A node's access to it, while its process lives.
    #[must_use]
    pub fn of(&self, node: NodeId, handle: &Handle, alive: &Rc<Cell<bool>>) -> RegisterOf {
        RegisterOf { shared: self.clone(), node, handle: handle.clone(), alive: alive.clone() }
    }
}

/// One node's access to the register.
pub struct RegisterOf {
    shared: SimRegister,
    node: NodeId,
    handle: Handle,
    alive: Rc<Cell<bool>>,
}

impl RegisterOf {
    /// The way of a call to the register; while that is slow, one call in `slow_every` takes longer.
    async fn way_there(&self, slow_every: u64) -> Result<(), RegisterError> {
        let slow_ns_max = self.shared.0.borrow().slow_ns_max;
        if slow_ns_max > 0 && self.handle.random_u64().is_multiple_of(slow_every) {
            self.handle.sleep_ns(self.handle.random_u64() % slow_ns_max).await;
        }
        self.way().await
    }

    async fn way_of_write(&self) -> Result<(), RegisterError> {
        self.way_there(2).await
    }

    /// Half of a call; an error if the way is cut.
    async fn way(&self) -> Result<(), RegisterError> {
        self.handle.sleep_ns(CALL_NS / 2 + self.handle.random_u64() % CALL_NS).await;
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
            self.way_there(4).await?;
            let found = self.shared.0.borrow().registered.clone();
            self.way().await?;
            Ok(found)
        })
    }

    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool> {
        Box::pin(async move {
            self.way_of_write().await?;
            let is_set = {
                let mut shared = self.shared.0.borrow_mut();
                let number = shared.registered.configuration.as_ref().map_or(0, |found| found.number);
                let expects = number == expected;
                if expects {
                    let before = shared.registered.configuration.replace(next.clone());
                    let what = before.map_or("the register is founded".into(), |before| difference(&before, next));
                    let at_ns = shared.clock.now_ns();
                    shared.story.push((at_ns, format!("configuration {}: {what}", next.number)));
                }
                expects
            };
            self.way().await?;
            Ok(is_set)
        })
    }

    fn settle(&self, number: u64) -> RegisterFuture<'_, ()> {
        Box::pin(async move {
            self.way_of_write().await?;
            {
                let mut shared = self.shared.0.borrow_mut();
                if number > shared.registered.settled {
                    shared.registered.settled = number;
                    let at_ns = shared.clock.now_ns();
                    shared.story.push((at_ns, format!("configuration {number} is installed everywhere")));
                }
            }
            self.way().await
        })
    }

    fn renew<'a>(&'a self, node: NodeId, misses: &'a [NodeId]) -> RegisterFuture<'a, ()> {
        Box::pin(async move {
            self.way_of_write().await?;
            {
                let renewals = &mut self.shared.0.borrow_mut().registered.renewals[usize::from(node.0)];
                *renewals = renewals.next(misses);
            }
            self.way().await
        })
    }
}

/// A description of a change of the configuration.
fn difference(before: &Configuration, next: &Configuration) -> String {
    let (leader, mut words) = (next.leader, Vec::new());
    for node in before.everybody().filter(|node| !next.contains(*node)) {
        words.push(format!("{leader} expels {node}"));
    }
    for node in next.joining.iter().filter(|node| !before.contains(**node)) {
        words.push(format!("{node} begins to join"));
    }
    for node in next.members.iter().filter(|node| !before.members.contains(node)) {
        words.push(format!("{node} is a member again"));
    }
    for (partition, (was, is)) in before.partitions.iter().zip(&next.partitions).enumerate() {
        if let (Serving::From(_), Serving::By(node)) = (was, is) {
            words.push(format!("{node} serves partition {partition}"));
        }
    }
    for mirror in next.mirrors.iter().filter(|mirror| mirror.whole) {
        if before.mirrors.iter().any(|was| (was.of, was.on, was.whole) == (mirror.of, mirror.on, false)) {
            words.push(format!("{} has a whole copy of the rows of {}", mirror.on, mirror.of));
        }
    }
    for (node, _) in before.births.iter().zip(&next.births).enumerate().filter(|(_, (was, is))| **was == 0 && **is != 0)
    {
        if before.members.contains(&NodeId(node as u8)) {
            words.push(format!("{} is here", NodeId(node as u8)));
        }
    }
    if words.is_empty() { format!("{leader} leads on") } else { words.join(", ") }
}
