//! What each fault of a plan does to the cluster, and what ends it.

use super::Cluster;
use crate::failover::plan::{Blow, Way};
use farhold_fabric::NodeId;
use farhold_fabric::provider::sim::{Fault, Hop};
use std::rc::Rc;

impl Cluster {
    pub(super) fn strike(self: &Rc<Self>, blow: Blow) {
        self.tell(&format!("{blow:?}"));
        let later = |for_ns: u64, what: Box<dyn FnOnce(&Self)>| {
            let this = self.clone();
            drop(self.handle.spawn(async move {
                this.handle.sleep_ns(for_ns).await;
                what(&this);
            }));
        };
        let hop = |from: u8, to: u8| Hop { from: NodeId(from), to: NodeId(to) };
        match blow {
            Blow::Kill(node) => self.kill(node, Fault::Kill(NodeId(node))),
            Blow::Crash(node) => self.kill(node, Fault::Crash(NodeId(node))),
            Blow::Pause(node, for_ns) => self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns)),
            Blow::Stop(node, for_ns) => {
                self.sim().inject(Fault::Pause(NodeId(node), self.handle.now_ns() + for_ns));
                self.machine(node).stand_clock_ns(for_ns);
            }
            Blow::SetDay(node, by_ns) => self.machine(node).jump_wall_ns(by_ns),
            Blow::Cut(from, to, both, for_ns) => {
                let hops = if both { vec![hop(from, to), hop(to, from)] } else { vec![hop(from, to)] };
                for hop in &hops {
                    self.sim().inject(Fault::Cut(*hop));
                }
                later(
                    for_ns,
                    Box::new(move |this| {
                        for hop in &hops {
                            this.sim().inject(Fault::Heal(*hop));
                        }
                        this.tell(&format!("{from} and {to} are together again"));
                    }),
                );
            }
            Blow::Slow(from, to, delay_ns, for_ns) => {
                self.sim().inject(Fault::Delay(hop(from, to), delay_ns));
                later(for_ns, Box::new(move |this| this.sim().inject(Fault::Heal(hop(from, to)))));
            }
            Blow::Disorder(percent, for_ns) => {
                self.sim().inject(Fault::Jitter(percent));
                later(for_ns, Box::new(move |this| this.sim().inject(Fault::Jitter(0))));
            }
            Blow::SlowRegister(slow_ns_max, for_ns) => {
                self.register().slow(slow_ns_max);
                later(for_ns, Box::new(|this| this.register().slow(0)));
            }
            Blow::SlowFence(fence_ns) => self.sim().inject(Fault::SlowFence(fence_ns)),
            Blow::Late(percent) => self.sim().inject(Fault::Late(percent)),
            Blow::Lose(node, way) | Blow::Isolate(node, way) => {
                self.register().cut(NodeId(node), matches!(blow, Blow::Lose(..)));
                for other in (0..self.setup.nodes).filter(|other| *other != node) {
                    let hops = [(Way::Out, hop(node, other)), (Way::In, hop(other, node))];
                    for (_, hop) in hops.into_iter().filter(|(it, _)| way == Way::Both || way == *it) {
                        self.sim().inject(Fault::Cut(hop));
                    }
                }
            }
            Blow::FailDisk(node) => {
                if let Some(disk) = &self.process(node).disk {
                    disk.fail();
                }
            }
            Blow::FillDisks(for_ns) => {
                let disks = self.disks.borrow().clone();
                disks.fill(true);
                later(for_ns, Box::new(move |_| disks.fill(false)));
            }
            Blow::NoRegister(node, for_ns) => {
                self.register().cut(NodeId(node), true);
                later(for_ns, Box::new(move |this| this.register().cut(NodeId(node), false)));
            }
        }
    }
}
