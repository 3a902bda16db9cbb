//! The cost of an instruction: the latency models.

use crate::address::NodeId;
use crate::batch::OpKind;

/// The source and the target of an instruction or a message; the same node twice for a node's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    /// The initiator.
    pub from: NodeId,
    /// The node of the memory or inbox.
    pub to: NodeId,
}

impl Hop {
    fn is_local(self) -> bool {
        self.from == self.to
    }
}

/// The times of a machine. All times are virtual nanoseconds; the simulation adds the jitter.
pub trait LatencyModel: Send + Sync {
    /// Name for traces and figures.
    fn name(&self) -> &'static str;
    /// From the post until the first byte is touched.
    fn request_ns(&self, hop: Hop, kind: OpKind, bytes: usize) -> u64;
    /// From one 64-byte line of a transfer to the next, where the data is.
    fn line_ns(&self, hop: Hop) -> u64;
    /// From the last byte touched until the initiator has the result.
    fn response_ns(&self, hop: Hop, kind: OpKind, bytes: usize) -> u64;
    /// From `send` until the message is in the inbox.
    fn message_ns(&self, hop: Hop, bytes: usize) -> u64;
    /// Between two instructions of one batch at the initiator.
    fn post_gap_ns(&self) -> u64;
    /// Until an instruction towards a dead or unreachable node is given up.
    fn give_up_ns(&self) -> u64;
    /// Each of these times is stretched by up to this many hundredths, at random.
    fn jitter_percent(&self) -> u64;
}

/// One-sided access over a 100 Gb/s RDMA network with one switch.
///
/// Round figures in the order of magnitude of Kalia, Kaminsky and Andersen, "Design Guidelines for High Performance RDMA
/// Systems" (USENIX ATC 2016) and of their `FaSST` (OSDI 2016): a small read takes about 2 µs there and back, a message a little more
/// than half of it one way, the wire carries 12.5 bytes a nanosecond (64 bytes in 5), atomics pay a read and a write over
/// the target's bus. Not calibrated against any machine here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rdma;

impl Rdma {
    fn wire_ns(bytes: usize) -> u64 {
        bytes as u64 * 2 / 25
    }
}

impl LatencyModel for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn request_ns(&self, hop: Hop, kind: OpKind, bytes: usize) -> u64 {
        if hop.is_local() {
            return 80;
        }
        match kind {
            OpKind::Read | OpKind::ReadObject | OpKind::Flush => 900,
            OpKind::Write => 900 + Self::wire_ns(bytes),
            _ => 1_150,
        }
    }

    fn line_ns(&self, _: Hop) -> u64 {
        5
    }

    fn response_ns(&self, hop: Hop, kind: OpKind, bytes: usize) -> u64 {
        if hop.is_local() {
            return 10;
        }
        match kind {
            OpKind::Read | OpKind::ReadObject => 900 + Self::wire_ns(bytes),
            _ => 900,
        }
    }

    fn message_ns(&self, hop: Hop, bytes: usize) -> u64 {
        if hop.is_local() { 200 } else { 1_300 + Self::wire_ns(bytes) }
    }

    fn post_gap_ns(&self) -> u64 {
        15
    }

    fn give_up_ns(&self) -> u64 {
        100_000
    }

    fn jitter_percent(&self) -> u64 {
        30
    }
}

/// Loads, stores and atomics between the sockets of one machine.
///
/// Round figures of the shape that memory latency checkers print for two-socket servers: 90 ns to local memory, 140 ns to
/// the other socket; one core moves about 16 bytes a nanosecond locally (4 ns a line) and half of that across. A message is
/// two lines that change their owner. Not calibrated against any machine here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numa;

impl LatencyModel for Numa {
    fn name(&self) -> &'static str {
        "numa"
    }

    fn request_ns(&self, hop: Hop, _: OpKind, _: usize) -> u64 {
        if hop.is_local() { 45 } else { 70 }
    }

    fn line_ns(&self, hop: Hop) -> u64 {
        if hop.is_local() { 4 } else { 8 }
    }

    fn response_ns(&self, hop: Hop, _: OpKind, _: usize) -> u64 {
        if hop.is_local() { 45 } else { 70 }
    }

    fn message_ns(&self, hop: Hop, bytes: usize) -> u64 {
        let lines = bytes.div_ceil(64) as u64;
        if hop.is_local() { 120 + lines * 4 } else { 280 + lines * 8 }
    }

    fn post_gap_ns(&self) -> u64 {
        2
    }

    fn give_up_ns(&self) -> u64 {
        10_000
    }

    fn jitter_percent(&self) -> u64 {
        20
    }
}
