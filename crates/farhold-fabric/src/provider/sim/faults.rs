//! What goes wrong in a simulation, and when.

use super::model::Hop;
use crate::address::NodeId;

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node's process dies. What it has posted still lands; its regions stay; it may join again.
    Kill(NodeId),
    /// The node's machine dies. Of what it has posted some lands, some lands much later, and some never or in part, by the seed.
    Crash(NodeId),
    /// As [`Fault::Crash`]; and of its regions' lines that have not been flushed each has reached the memory or has not, where
    /// [`Sim::keep_durable`](super::Sim::keep_durable) has been asked for.
    PowerCut(NodeId),
    /// The node stands still until this time: no task of its [machine](crate::Handle::of_machine) runs, it hears of nothing,
    /// and what it has posted goes on.
    Pause(NodeId, u64),
    /// Everything this way takes so much longer.
    Delay(Hop, u64),
    /// Times are stretched by up to so many hundredths: instructions and their completions overtake each other.
    Jitter(u64),
    /// Of all instructions, answers and messages one in so many takes up to so much longer, from now on.
    Hiccups(u64, u64),
    /// To shut a node out takes so long from now on: until then what it posts still lands.
    SlowFence(u64),
    /// Nothing gets through this way: messages are lost, instructions are given up; those whose answer would come this way are
    /// done, but their initiator gives them up.
    Cut(Hop),
    /// Of the instructions that a cut loses from now on, so many of a hundred are done all the same, some time after their initiator has given
    /// them up. Not once a later one, or a message, of the same endpoint has come there: a connection keeps its order, and a new one comes
    /// after the end of the old.
    Late(u64),
    /// This way is as new.
    Heal(Hop),
}

/// A plan: (virtual time, fault). Plain data; the order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// What happens when.
    pub plan: Vec<(u64, Fault)>,
}
