//! What goes wrong in a simulation, and when.

use super::model::Hop;
use crate::address::NodeId;

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node's process dies. What it has posted still lands; its regions stay; it may join again.
    Kill(NodeId),
    /// The node stands still until this time: it hears of nothing before, and what it has posted goes on.
    Pause(NodeId, u64),
    /// Everything this way takes so much longer.
    Delay(Hop, u64),
    /// Nothing gets through this way: messages are lost, instructions are given up; those whose answer would come this way are
    /// done, but their initiator gives them up.
    Cut(Hop),
    /// This way is as new.
    Heal(Hop),
}

/// A plan: (virtual time, fault). Plain data; the order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// What happens when.
    pub plan: Vec<(u64, Fault)>,
}
