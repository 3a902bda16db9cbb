//! A configuration: plain data, and how one follows from another.

use crate::base::error::TxnError;
use crate::base::nodes::NOBODY;
use crate::base::wire::{GARBAGE, Reader, Writer};
use farhold_fabric::{Admitted, NodeId};

/// The node that serves a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// This node.
    By(NodeId),
    /// No node yet: its rows are in the mirrors of this node, which is gone.
    From(NodeId),
}

/// A copy of one node's rows on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The node whose rows it holds.
    pub of: NodeId,
    /// Where the copy is.
    pub on: NodeId,
    /// Has it all rows? Only then may it take over.
    pub whole: bool,
    /// The number of the configuration that first wanted it. A mirror that is wanted again after a gap counts as a new
    /// one and begins empty, because it has no records of the time between.
    pub since: u64,
}

/// The state of the cluster between two changes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Grows by one with each change.
    pub number: u64,
    /// The number of copies of each row.
    pub replicas: u8,
    /// The node that makes every member install it.
    pub leader: NodeId,
    /// The full members, ascending.
    pub members: Vec<NodeId>,
    /// Nodes that are being given what members have.
    pub joining: Vec<NodeId>,
    /// For each node number: which start of it is meant, 0 for none. A node that starts draws it at random.
    pub births: Vec<u64>,
    /// For each node number: the start with which its rows began; there are none from before. 1 for a founder.
    pub rows_since: Vec<u64>,
    /// For each partition.
    pub partitions: Vec<Serving>,
    /// All mirrors, in the order in which they may take over.
    pub mirrors: Vec<Mirror>,
    /// The epoch keeper: the node whose epoch word is authoritative.
    pub keeper: NodeId,
    /// The epoch is at least this.
    pub epoch_min: u32,
}

/// The first bytes of an encoded configuration. The letter changes with each change of the format.
const MAGIC: u32 = u32::from_le_bytes(*b"CONB");

impl Configuration {
    /// The first one: every node is a member, no node has started.
    #[must_use]
    pub fn first(nodes: u8, replicas: u8) -> Self {
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let mut this = Self {
            number: 1,
            replicas,
            leader: NodeId(0),
            births: vec![0; usize::from(nodes)],
            rows_since: vec![1; usize::from(nodes)],
            partitions: members.iter().map(|node| Serving::By(*node)).collect(),
            members,
            joining: Vec::new(),
            mirrors: Vec::new(),
            keeper: NodeId(0),
            epoch_min: 0,
        };
        this.renew_mirrors();
        // There are no rows yet.
        this.mirrors.iter_mut().for_each(|mirror| mirror.whole = true);
        this
    }

    /// Has every node of the first configuration started?
    #[must_use]
    pub fn is_founded(&self) -> bool {
        self.members.iter().all(|node| self.births[usize::from(node.0)] != 0)
    }

    /// Has every node of `first` started, and nothing happened since? All of them then begin with this one, each by itself.
    #[must_use]
    pub fn is_founding_of(&self, first: &Self) -> bool {
        let claimed = Self { number: self.number, births: self.births.clone(), ..first.clone() };
        self.is_founded() && *self == claimed
    }

    /// Members and joining nodes.
    pub fn everybody(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().chain(&self.joining).copied()
    }

    /// Does the node belong to it?
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.everybody().any(|other| other == node)
    }

    /// The nodes that use the regions of its nodes.
    #[must_use]
    pub fn admitted(&self) -> Admitted {
        if planted!(NoFence) || planted!(FenceBelieved) {
            // Where a fabric has both, either one suffices.
            return Admitted::Everybody;
        }
        Admitted::Births(self.everybody().map(|node| (node, self.births[usize::from(node.0)])).collect())
    }

    /// The backups of a node.
    pub fn backups(&self, of: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.mirrors.iter().filter(move |mirror| mirror.of == of).map(|mirror| mirror.on)
    }

    /// The node that takes over the rows of a node that is gone.
    #[must_use]
    pub fn successor(&self, of: NodeId) -> Option<NodeId> {
        self.mirrors.iter().find(|mirror| mirror.of == of && mirror.whole).map(|mirror| mirror.on)
    }

    /// The nodes that are gone and whose rows no node serves yet.
    #[must_use]
    pub fn unserved(&self) -> Vec<NodeId> {
        let mut gone: Vec<NodeId> = self
            .partitions
            .iter()
            .filter_map(|serving| if let Serving::From(node) = serving { Some(*node) } else { None })
            .collect();
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    fn next(&self, leader: NodeId) -> Self {
        Self { number: self.number + 1, leader, ..self.clone() }
    }

    /// The same, led by another node: its leader is gone.
    #[must_use]
    pub fn led_by(&self, leader: NodeId) -> Self {
        self.next(leader)
    }

    /// Without these nodes.
    #[must_use]
    pub fn without(&self, gone: &[NodeId], leader: NodeId) -> Self {
        let mut next = self.next(leader);
        let is_gone = |node: &NodeId| gone.contains(node);
        next.members.retain(|node| !is_gone(node));
        next.joining.retain(|node| !is_gone(node));
        for node in gone {
            next.births[usize::from(node.0)] = 0;
        }
        for serving in &mut next.partitions {
            if let Serving::By(node) = *serving
                && is_gone(&node)
            {
                *serving = Serving::From(node);
            }
        }
        next.mirrors.retain(|mirror| !is_gone(&mirror.on));
        if is_gone(&next.keeper) {
            next.keeper = next.members.first().copied().unwrap_or(leader);
        }
        next.renew_mirrors();
        next
    }

    /// Are there rows in this one that no node would have in `next`?
    #[must_use]
    pub fn loses_rows_in(&self, next: &Self) -> bool {
        let is_somewhere = |node: NodeId| self.members.contains(&node) || self.successor(node).is_some();
        next.unserved().into_iter().any(|node| is_somewhere(node) && next.successor(node).is_none())
    }

    /// The silent nodes that the others can go on without: those that are certainly dead, and as many more as possible
    /// while every row stays on some node.
    #[must_use]
    pub fn dispensable(&self, silent: &[NodeId], is_dead: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut gone: Vec<NodeId> = silent.iter().copied().filter(|node| is_dead(*node)).collect();
        for node in silent.iter().copied().filter(|node| !is_dead(*node)) {
            let with: Vec<NodeId> = gone.iter().copied().chain([node]).collect();
            if !self.without(&gone, self.leader).loses_rows_in(&self.without(&with, self.leader)) {
                gone = with;
            }
        }
        gone
    }

    /// With the partitions of a node that is gone served by another.
    #[must_use]
    pub fn promoted(&self, of: NodeId, to: NodeId) -> Self {
        let mut next = self.next(to);
        for serving in next.partitions.iter_mut().filter(|serving| **serving == Serving::From(of)) {
            *serving = Serving::By(to);
        }
        next.renew_mirrors();
        next
    }

    /// With a mirror of its own that has become whole.
    #[must_use]
    pub fn mirrored(&self, filled: Mirror) -> Self {
        let mut next = self.next(filled.of);
        for mirror in next.mirrors.iter_mut().filter(|mirror| **mirror == filled) {
            mirror.whole = true;
        }
        next.renew_mirrors();
        next
    }

    /// With a node that has begun to join.
    #[must_use]
    pub fn with_joining(&self, node: NodeId, birth: u64) -> Self {
        let mut next = self.next(node);
        next.joining.push(node);
        next.births[usize::from(node.0)] = birth;
        next.rows_since[usize::from(node.0)] = birth;
        next
    }

    /// With a node that has joined.
    #[must_use]
    pub fn joined(&self, node: NodeId) -> Self {
        let mut next = self.next(node);
        next.joining.retain(|other| *other != node);
        next.members.push(node);
        next.members.sort_unstable();
        next.renew_mirrors();
        next
    }

    /// The configuration that follows this one when all nodes of the cluster have ended in this one. Its members have
    /// their rows again, and no copies yet. The rows of a node that had left and that no node served are in the
    /// journals; a successor gets them from there.
    #[must_use]
    pub fn restarted(&self, replicas: u8) -> Self {
        let first = self.members.first().copied().unwrap_or(NodeId(0));
        let mut next = Self { replicas, mirrors: Vec::new(), joining: Vec::new(), keeper: first, ..self.next(first) };
        next.births.fill(0);
        // The node that has begun to insert these rows has to go on.
        let on = |of| self.successor(of).unwrap_or(first);
        let since = next.number;
        next.mirrors = self.unserved().into_iter().map(|of| Mirror { of, on: on(of), whole: true, since }).collect();
        next.renew_mirrors();
        next
    }

    /// Has every node its own partition's rows?
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        (0..).map(NodeId).zip(&self.partitions).all(|(node, serving)| *serving == Serving::By(node))
    }

    /// Every member's rows on the members after it. Whole mirrors elsewhere stay until these are whole: a node that comes
    /// back is to cost no copy. Mirrors of nodes that are gone stay while they are needed.
    fn renew_mirrors(&mut self) {
        let old = std::mem::take(&mut self.mirrors);
        let unserved = self.unserved();
        for (position, of) in self.members.iter().enumerate() {
            let others = self.members.len() - 1;
            for step in 1..=usize::from(self.replicas.saturating_sub(1)).min(others) {
                let on = self.members[(position + step) % self.members.len()];
                let is_same = |mirror: &&Mirror| mirror.of == *of && mirror.on == on;
                let fresh = Mirror { of: *of, on, whole: false, since: self.number };
                self.mirrors.push(old.iter().find(is_same).copied().unwrap_or(fresh));
            }
            let of_it = |mirror: &&Mirror| mirror.of == *of;
            let filling = self.mirrors.iter().filter(of_it).filter(|mirror| !mirror.whole).count();
            let is_wanted = |on: NodeId| self.mirrors.iter().filter(of_it).any(|mirror| mirror.on == on);
            let instead = old.iter().filter(of_it).filter(|mirror| mirror.whole && !is_wanted(mirror.on));
            let instead: Vec<Mirror> = instead.take(filling).copied().collect();
            self.mirrors.extend(instead);
        }
        self.mirrors.extend(old.into_iter().filter(|mirror| unserved.contains(&mirror.of)));
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(MAGIC).u64(self.number).u8(self.replicas).u8(self.leader.0).u8(self.keeper.0).u32(self.epoch_min);
        for nodes in [&self.members, &self.joining] {
            w.list(nodes, |w, node| {
                w.u8(node.0);
            });
        }
        for numbers in [&self.births, &self.rows_since] {
            w.list(numbers, |w, number| {
                w.u64(*number);
            });
        }
        w.list(&self.partitions, |w, serving| {
            match serving {
                Serving::By(node) => w.u8(0).u8(node.0),
                Serving::From(node) => w.u8(1).u8(node.0),
            };
        });
        w.list(&self.mirrors, |w, mirror| {
            w.u8(mirror.of.0).u8(mirror.on.0).u8(u8::from(mirror.whole)).u64(mirror.since);
        });
        w.0
    }

    /// Back from [`Self::encode`].
    ///
    /// # Errors
    /// [`TxnError::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Self, TxnError> {
        let mut r = Reader(bytes);
        if r.u32()? != MAGIC {
            return Err(TxnError::Corrupt { what: "a configuration that another version of the program has written" });
        }
        let node = |r: &mut Reader<'_>| r.u8().map(NodeId);
        let (number, replicas, leader, keeper) = (r.u64()?, r.u8()?, node(&mut r)?, node(&mut r)?);
        let epoch_min = r.u32()?;
        let (members, joining) = (r.list(node)?, r.list(node)?);
        let (births, rows_since) = (r.list(Reader::u64)?, r.list(Reader::u64)?);
        let partitions = r.list(|r| match (r.u8()?, r.u8()?) {
            (0, node) => Ok(Serving::By(NodeId(node))),
            (1, node) => Ok(Serving::From(NodeId(node))),
            _ => Err(GARBAGE),
        })?;
        let mirrors =
            r.list(|r| Ok(Mirror { of: NodeId(r.u8()?), on: NodeId(r.u8()?), whole: r.flag()?, since: r.u64()? }))?;
        r.end()?;
        let this = Self {
            number,
            replicas,
            leader,
            members,
            joining,
            births,
            rows_since,
            partitions,
            mirrors,
            keeper,
            epoch_min,
        };
        let nodes = this.births.len();
        let known = |node: NodeId| usize::from(node.0) < nodes && node.0 != NOBODY;
        let sound = this.partitions.len() == nodes
            && this.rows_since.len() == nodes
            && this.everybody().chain([this.leader, this.keeper]).all(known)
            && this.mirrors.iter().all(|mirror| known(mirror.of) && known(mirror.on));
        if sound { Ok(this) } else { Err(GARBAGE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: [NodeId; 4] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3)];

    #[test]
    fn a_node_dies_is_replaced_and_comes_back() {
        let first = Configuration::first(3, 3);
        assert_eq!(first.backups(N[1]).collect::<Vec<_>>(), [N[2], N[0]]);
        let two = first.without(&[N[0]], N[1]);
        assert_eq!((two.number, two.keeper, two.members.len()), (2, N[1], 2));
        assert_eq!(two.partitions[0], Serving::From(N[0]));
        assert_eq!((two.unserved(), two.successor(N[0])), (vec![N[0]], Some(N[1])));
        // Its successor dies as well, with a part of its work done.
        let one = two.without(&[N[1]], N[2]);
        assert_eq!((one.successor(N[0]), one.successor(N[1])), (Some(N[2]), Some(N[2])));
        let served = one.promoted(N[0], N[2]).promoted(N[1], N[2]);
        assert!(served.unserved().is_empty() && served.mirrors.is_empty());
        let back = served.with_joining(N[0], 7);
        assert!(back.contains(N[0]) && back.mirrors.is_empty());
        let back = back.joined(N[0]);
        assert_eq!(back.members, [N[0], N[2]]);
        assert!(back.mirrors.iter().all(|mirror| !mirror.whole), "nothing has been copied");
        let whole = back.mirrored(back.mirrors[1]);
        assert_eq!(whole.without(&[N[2]], N[0]).successor(N[2]), Some(N[0]));
    }

    /// A report that the earlier mirror is full does not count for the new one.
    #[test]
    fn a_mirror_that_is_wanted_again_is_another_one() {
        let first = Configuration { births: vec![1; 3], ..Configuration::first(3, 2) };
        let of_first = |configuration: &Configuration| {
            let mut found = configuration.mirrors.iter().filter(|mirror| mirror.of == N[0]);
            *found.next().expect("a mirror")
        };
        let dead = first.without(&[N[1]], N[0]).promoted(N[1], N[2]);
        let begun = of_first(&dead);
        assert_eq!(begun, Mirror { of: N[0], on: N[2], whole: false, since: 2 });
        assert_eq!(of_first(&dead.led_by(N[2])), begun, "it goes on");
        let back = dead.with_joining(N[1], 7).joined(N[1]);
        assert_eq!((of_first(&back).on, of_first(&back).since), (N[1], back.number));
        let again = back.without(&[N[1]], N[0]);
        let anew = of_first(&again);
        assert_eq!((anew.on, anew.since), (N[2], again.number));
        assert_eq!(of_first(&again.mirrored(begun)), anew, "filled before");
        assert!(of_first(&again.mirrored(anew)).whole);
    }

    /// Until the mirror on it is whole, the one that was filled in its absence stays.
    #[test]
    fn a_node_that_comes_back_costs_no_copy() {
        let first = Configuration { births: vec![1; 3], ..Configuration::first(3, 2) };
        let of_last = |configuration: &Configuration| {
            let found = configuration.mirrors.iter().filter(|mirror| mirror.of == N[2]);
            found.map(|mirror| (mirror.on, mirror.whole)).collect::<Vec<_>>()
        };
        let served = first.without(&[N[0]], N[1]).promoted(N[0], N[1]);
        assert_eq!(of_last(&served), [(N[1], false)]);
        assert_eq!(of_last(&served.with_joining(N[0], 7).joined(N[0])), [(N[0], false)], "a part of them is no copy");
        let filled = served.mirrors.iter().find(|mirror| mirror.of == N[2]).copied().expect("a mirror");
        let back = served.mirrored(filled).with_joining(N[0], 7).joined(N[0]);
        assert_eq!(of_last(&back), [(N[0], false), (N[1], true)]);
        assert_eq!(back.dispensable(&[N[2]], |_| false), [N[2]], "while the other one is being filled");
        assert_eq!(back.without(&[N[2]], N[1]).successor(N[2]), Some(N[1]));
        assert_eq!(of_last(&back.without(&[N[1]], N[0])), [(N[0], false)], "gone with its node");
        let wanted = back.mirrors.iter().find(|mirror| mirror.of == N[2]).copied().expect("a mirror");
        assert_eq!(of_last(&back.mirrored(wanted)), [(N[0], true)]);
    }

    #[test]
    fn nobody_goes_on_without_the_only_copy_of_a_row() {
        let (nobody, everybody) = (|_| false, |_| true);
        let first = Configuration::first(3, 2);
        assert_eq!(first.dispensable(&[N[1]], nobody), [N[1]]);
        assert_eq!(first.dispensable(&[N[0], N[2]], nobody), [N[0]], "the rows of node 2 are on 2 and 0 alone");
        assert_eq!(first.dispensable(&[N[0], N[2]], everybody), [N[0], N[2]], "what is lost is lost");
        assert_eq!(first.dispensable(&[N[0], N[2]], |node| node == N[2]), [N[2]]);
        // The rows of node 0 are in a mirror on node 1, until they have been promoted and copied.
        let two = first.without(&[N[0]], N[1]);
        assert!(two.dispensable(&[N[1]], nobody).is_empty());
        assert!(two.dispensable(&[N[2]], nobody).is_empty(), "its mirror was on node 0");
        let served = two.promoted(N[0], N[1]);
        assert_eq!(served.dispensable(&[N[1]], nobody), [N[1]]);
        assert!(served.dispensable(&[N[2]], nobody).is_empty(), "nobody has copied them yet");
        assert_eq!(served.mirrored(served.mirrors[1]).dispensable(&[N[2]], nobody), [N[2]]);
    }

    #[test]
    fn bytes_come_back_and_others_are_refused() {
        let configuration = Configuration::first(4, 2).without(&[N[3]], N[0]).with_joining(N[3], 9);
        let bytes = configuration.encode();
        assert_eq!(Configuration::decode(&bytes), Ok(configuration));
        for len in 0..bytes.len() {
            Configuration::decode(&bytes[..len]).expect_err("cut off");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0xff;
            let _ = Configuration::decode(&other);
        }
    }
}
