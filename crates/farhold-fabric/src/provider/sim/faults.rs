//! The faults of a simulation, and when they happen.

use super::model::Hop;
use crate::address::NodeId;

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node's process dies. What it has posted still lands; its regions stay; it may join again.
    Kill(NodeId),
    /// The node's machine dies. Of what it has posted some lands, some lands much later, and some never or in part, by the seed.
    Crash(NodeId),
    /// As [`Fault::Crash`]; in addition each line of its regions that has not been flushed has reached the memory or has not, if
    /// [`Sim::keep_durable`](super::Sim::keep_durable) has been called.
    PowerCut(NodeId),
    /// The node is paused until this time: no task of its [machine](crate::Handle::of_machine) runs, it receives nothing, and
    /// what it has posted goes on.
    Pause(NodeId, u64),
    /// Everything in this direction takes this much longer.
    Delay(Hop, u64),
    /// Times are stretched by up to this many hundredths: instructions and their completions overtake each other.
    Jitter(u64),
    /// From now on, of all instructions, answers and messages one in the first number takes longer, by up to the second.
    Hiccups(u64, u64),
    /// From now on fencing a node takes this long: until then what it posts still takes effect.
    SlowFence(u64),
    /// Nothing passes this way: messages are lost, and instructions are given up. Instructions whose answer would come this way
    /// are executed, but their initiator gives them up.
    Cut(Hop),
    /// Of the instructions that a cut loses from now on, this percentage is executed anyway, some time after the initiator has
    /// given them up. They are not executed once a later instruction or message of the same endpoint has arrived there: a
    /// connection keeps its order, and a new connection comes after the end of the old.
    Late(u64),
    /// This direction has no fault any more.
    Heal(Hop),
}

/// A plan: (virtual time, fault). Plain data; the order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// What happens when.
    pub plan: Vec<(u64, Fault)>,
}
