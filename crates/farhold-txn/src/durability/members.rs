//! The nodes whose journals must have closed an epoch for it to be durable, while the cluster changes.
//!
//! A restart believes the last configuration that it finds in any journal, and what all of its nodes have closed. So
//! until a configuration is in this node's own journal, the nodes of the one before count too, because that one may be
//! found. The nodes of a later configuration that is known of count at once, because that one may already be in another
//! node's journal.

use crate::base::epoch::KEEPER;
use crate::base::error::TxnError;
use crate::cluster::configuration::Configuration;
use farhold_fabric::NodeId;
use farhold_store::durable::Standing;

/// What this node's journal knows of the cluster.
#[derive(Debug)]
pub(super) struct Members {
    /// The nodes whose journals count.
    counted: Vec<NodeId>,
    /// Configurations that are known and not in this node's journal yet: numbers and nodes.
    known: Vec<(u64, Vec<NodeId>)>,
    /// The configuration that the node is in.
    installed: Option<Standing>,
    /// The number of the last one that is in its journal.
    written: u64,
    /// The epoch keeper, unless the node is frozen.
    keeper: NodeId,
    frozen: bool,
    /// No node serves the rows of some node: a restart would need all records of them.
    is_unserved: bool,
    /// The last starts of all nodes that are known; 0: none is.
    births: Vec<u64>,
    /// Counts changes.
    pub changes: u64,
}

impl Members {
    /// Before anything is known; with copies of its rows the node is frozen until it has installed a configuration.
    pub fn new(nodes: u8, replicated: bool) -> Self {
        Self {
            counted: (0..nodes).map(NodeId).collect(),
            known: Vec::new(),
            installed: None,
            written: 0,
            keeper: KEEPER,
            frozen: replicated,
            is_unserved: false,
            births: vec![0; usize::from(nodes)],
            changes: 0,
        }
    }

    /// The epoch keeper; none, while the configuration changes.
    pub fn keeper(&self) -> Option<NodeId> {
        (!self.frozen).then_some(self.keeper)
    }

    pub fn counted(&self) -> &[NodeId] {
        &self.counted
    }

    /// May records be forgotten that all nodes' checkpoints contain?
    pub fn may_forget(&self) -> bool {
        !self.is_unserved && !self.has_news()
    }

    /// The node is frozen for this configuration. Returns the nodes that have started again since the last one that was known.
    pub fn freeze(&mut self, next: &Configuration) -> Vec<NodeId> {
        self.frozen = true;
        self.changes += 1;
        self.learn(next)
    }

    fn learn(&mut self, next: &Configuration) -> Vec<NodeId> {
        if self.known.iter().all(|(number, _)| *number != next.number) {
            self.known.push((next.number, next.everybody().collect()));
        }
        self.count();
        let mut again = Vec::new();
        for node in next.everybody() {
            let place = usize::from(node.0);
            if let (Some(known), Some(birth)) = (self.births.get_mut(place), next.births.get(place)) {
                again.extend((*known != 0 && *known != *birth).then_some(node));
                *known = *birth;
            }
        }
        again
    }

    /// The node goes on in this configuration. As [`Self::freeze`].
    pub fn install(&mut self, next: &Configuration) -> Vec<NodeId> {
        let again = self.learn(next);
        (self.frozen, self.keeper) = (false, next.keeper);
        self.is_unserved = !next.unserved().is_empty();
        self.changes += 1;
        self.installed = Some(standing(next));
        again
    }

    /// The start in which a node's rows began, by the installed configuration; 0 if it has none; `None`: no
    /// configuration is installed.
    pub fn rows_since(&self, node: NodeId) -> Option<u32> {
        let installed = self.installed.as_ref()?;
        Some(installed.rows_since.get(usize::from(node.0)).copied().unwrap_or(0))
    }

    /// Is there a configuration that the journal does not have yet?
    pub fn has_news(&self) -> bool {
        self.installed.as_ref().is_some_and(|standing| standing.number > self.written)
    }

    /// What the next batch must record about the cluster; each segment records it once.
    pub fn to_write(&self, is_first: bool) -> Option<&Standing> {
        self.installed.as_ref().filter(|_| is_first || self.has_news())
    }

    /// The configuration with this number is in the journal.
    pub fn has_written(&mut self, number: u64) {
        if number <= self.written {
            return;
        }
        self.written = number;
        let those = self.known.iter().find(|(known, _)| *known == number).map(|(_, nodes)| nodes.clone());
        self.counted = those.unwrap_or_default();
        self.known.retain(|(known, _)| *known > number);
        self.count();
    }

    fn count(&mut self) {
        self.counted.extend(self.known.iter().flat_map(|(_, nodes)| nodes));
        self.counted.sort_unstable();
        self.counted.dedup();
    }
}

/// A configuration as journals have it. Births are numbers of starts.
fn standing(configuration: &Configuration) -> Standing {
    let unserved = configuration.unserved();
    let nodes = (0..configuration.births.len()).map(|node| NodeId(node as u8));
    let start = |node: NodeId| configuration.births[usize::from(node.0)] as u32;
    let since = |node: NodeId| {
        let has_rows = configuration.members.contains(&node) || unserved.contains(&node);
        if has_rows { configuration.rows_since[usize::from(node.0)] as u32 } else { 0 }
    };
    Standing {
        number: configuration.number,
        starts: nodes.clone().map(|node| if configuration.contains(node) { start(node) } else { 0 }).collect(),
        rows_since: nodes.map(since).collect(),
        bytes: configuration.encode().into(),
    }
}

/// The configuration with which a generation begins whose last one was this.
pub(super) fn restarted(standing: Option<&Standing>, nodes: u8, replicas: u8) -> Result<Configuration, TxnError> {
    match standing {
        Some(standing) => Configuration::decode(&standing.bytes).map(|last| last.restarted(replicas)),
        // One copy of each row until now, or none.
        None => Ok(Configuration { number: 0, ..Configuration::first(nodes, replicas) }.restarted(replicas)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

    #[test]
    fn whoever_may_be_found_to_belong_counts() {
        let founded = Configuration { births: vec![1, 1, 1], ..Configuration::first(3, 3) };
        let mut members = Members::new(3, true);
        assert_eq!(members.keeper(), None);
        members.install(&founded);
        assert!(members.has_news());
        members.has_written(founded.number);
        assert_eq!((members.counted(), members.keeper()), (&N[..], Some(N[0])));

        // A node leaves: it counts until this is in the journal.
        let without = founded.without(&[N[0]], N[1]);
        members.freeze(&without);
        members.install(&without);
        assert_eq!(members.counted(), N);
        assert!(!members.may_forget());
        members.has_written(without.number);
        assert_eq!((members.counted(), members.keeper()), (&N[1..], Some(N[1])));
        assert!(!members.may_forget(), "its rows are served by nobody");

        // It comes back: it counts as soon as this is known, also when that comes to nothing.
        let served = without.promoted(N[0], N[1]);
        members.install(&served);
        members.has_written(served.number);
        assert!(members.may_forget());
        let joining = served.with_joining(N[0], 2);
        assert_eq!(members.freeze(&joining), [N[0]], "what was heard of its earlier start is not true of this one");
        assert!(members.freeze(&joining).is_empty());
        assert_eq!(members.counted(), N);
        let again = joining.without(&[N[0]], N[1]);
        members.freeze(&again);
        members.install(&again);
        assert_eq!(members.counted(), N, "another's journal may have it");
        members.has_written(again.number);
        assert_eq!(members.counted(), &N[1..]);
    }

    #[test]
    fn a_restart_begins_with_who_belonged_at_the_end() {
        let founded = Configuration { births: vec![1, 1, 1], ..Configuration::first(3, 3) };
        let end = founded.without(&[N[0]], N[1]);
        let standing = standing(&end);
        assert_eq!((&standing.starts[..], &standing.rows_since[..]), (&[0, 1, 1][..], &[1, 1, 1][..]));
        let again = restarted(Some(&standing), 3, 3).expect("a configuration");
        assert_eq!((again.number, &again.members[..], again.keeper), (end.number + 1, &N[1..], N[1]));
        assert_eq!((again.unserved(), again.successor(N[0])), (vec![N[0]], Some(N[1])), "its rows are in the journals");
        assert!(again.mirrors.iter().all(|mirror| mirror.of == N[0] || !mirror.whole));
        let served = restarted(Some(&super::standing(&end.promoted(N[0], N[1]))), 3, 3).expect("a configuration");
        assert!(served.unserved().is_empty() && served.mirrors.iter().all(|mirror| mirror.of != N[0]));
    }
}
