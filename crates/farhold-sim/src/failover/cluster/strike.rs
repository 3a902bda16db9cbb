//! The effect of each fault of a plan on the cluster, and its end.

use super::Cluster;
use crate::failover::plan::{Blow, Way};
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::{Fault, Hop};
use std::rc::Rc;

fn hop(from: u8, to: u8) -> Hop {
    Hop { from: NodeId(from), to: NodeId(to) }
}

impl Cluster {
    pub(super) fn strike(self: &Rc<Self>, blow: Blow) {
        self.tell(&format!("{blow:?}"));
        self.begin(blow);
        if !blow.is_lasting() {
            return;
        }
        let number = self.blows_begun.get();
        self.blows_begun.set(number + 1);
        self.lasting.borrow_mut().push((number, blow));
        if let Some(for_ns) = blow.ends_ns() {
            let this = self.clone();
            drop(self.handle.spawn(async move {
                this.handle.sleep_ns(for_ns).await;
                this.end(number);
            }));
        }
    }

    /// Ends the fault that was begun under this number, unless it ended with a life of the cluster. Other lasting faults go on, even if
    /// they had the same effect.
    fn end(&self, number: u64) {
        let ended = self.lasting.borrow_mut().extract_if(.., |(begun, _)| *begun == number).next();
        let Some((_, blow)) = ended else { return };
        match blow {
            Blow::Cut(..) | Blow::Slow(..) | Blow::Lose(..) | Blow::Isolate(..) => {
                for hop in self.hops(blow) {
                    self.sim().inject(Fault::Heal(hop));
                }
            }
            Blow::Disorder(..) => self.sim().inject(Fault::Jitter(0)),
            Blow::SlowRegister(..) => self.register().slow(0),
            Blow::FillDisks(_) => self.disks.borrow().fill(false),
            _ => {}
        }
        if let Blow::NoRegister(node, _) | Blow::Lose(node, _) | Blow::Isolate(node, _) = blow {
            self.register().cut(NodeId(node), false);
        }
        if let Blow::Cut(from, to, ..) = blow {
            self.tell(&format!("{from} and {to} are together again"));
        }
        for (_, other) in self.lasting.borrow().iter() {
            self.begin(*other);
        }
    }

    /// The host of this node is replaced: nothing cuts it off any more.
    pub(super) fn end_loss_of(&self, node: u8) {
        let is_of = |blow: &Blow| matches!(blow, Blow::Lose(lost, _) | Blow::Isolate(lost, _) if *lost == node);
        let of_it = self.lasting.borrow().iter().find(|(_, blow)| is_of(blow)).map(|(number, _)| *number);
        if let Some(number) = of_it {
            self.end(number);
        }
    }

    /// The links that a fault affects.
    fn hops(&self, blow: Blow) -> Vec<Hop> {
        match blow {
            Blow::Cut(from, to, true, _) => vec![hop(from, to), hop(to, from)],
            Blow::Cut(from, to, false, _) | Blow::Slow(from, to, ..) => vec![hop(from, to)],
            Blow::Lose(node, way) | Blow::Isolate(node, way) => {
                let others = (0..self.setup.nodes).filter(|other| *other != node);
                let both = others.flat_map(|other| [(Way::Out, hop(node, other)), (Way::In, hop(other, node))]);
                both.filter(|(it, _)| way == Way::Both || way == *it).map(|(_, hop)| hop).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Begins a fault. Beginning a lasting fault again changes nothing.
    fn begin(&self, blow: Blow) {
        match blow {
            Blow::Kill(node) => self.kill(node, Fault::Kill(NodeId(node))),
            Blow::Crash(node) => self.kill(node, Fault::Crash(NodeId(node))),
            Blow::Pause(node, for_ns) => self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns)),
            Blow::Stop(node, for_ns) => {
                self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns));
                self.machine(node).stand_clock_ns(for_ns);
            }
            Blow::SetDay(node, by_ns) => self.machine(node).jump_wall_ns(by_ns),
            Blow::Cut(..) | Blow::Isolate(..) => self.cut(blow),
            Blow::Slow(from, to, delay_ns, _) => self.sim().inject(Fault::Delay(hop(from, to), delay_ns)),
            Blow::Disorder(percent, _) => self.sim().inject(Fault::Jitter(percent)),
            Blow::SlowRegister(slow_ns_max, _) => self.register().slow(slow_ns_max),
            Blow::SlowFence(fence_ns) => self.sim().inject(Fault::SlowFence(fence_ns)),
            Blow::Late(percent) => self.sim().inject(Fault::Late(percent)),
            Blow::Lose(node, _) => {
                self.register().cut(NodeId(node), true);
                self.cut(blow);
            }
            Blow::FailDisk(node) => {
                if let Some(disk) = &self.process(node).disk {
                    disk.fail();
                }
            }
            Blow::FillDisks(_) => self.disks.borrow().fill(true),
            Blow::NoRegister(node, _) => self.register().cut(NodeId(node), true),
        }
    }

    fn cut(&self, blow: Blow) {
        for hop in self.hops(blow) {
            self.sim().inject(Fault::Cut(hop));
        }
    }
}
