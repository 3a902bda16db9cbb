//! The required order of transactions, and whether it is possible.
//!
//! Real-time order would be an edge between any two transactions that did not overlap. Instead each end of a
//! transaction is a node, and these nodes form a chain. One edge leads from a transaction to its own end, another from
//! the last end before its begin to it.

use super::versions::Versions;
use super::{Anomaly, Edge, EdgeKind, History, Saw, TxnIndex};
use std::collections::{HashSet, VecDeque};

pub(super) struct Graph {
    /// Outgoing edges of each node; transactions first, then ends.
    edges: Vec<Vec<(usize, EdgeKind)>>,
}

impl Graph {
    pub fn new(history: &History, versions: &Versions) -> Result<Self, Box<Anomaly>> {
        let mut graph = Self { edges: vec![Vec::new(); history.records.len()] };
        for (key, all) in &versions.by_key {
            for pair in all.windows(2) {
                if let [Some(first), Some(second)] = [pair[0].writer, pair[1].writer] {
                    graph.add(first, second, EdgeKind::WriteWrite(*key));
                }
            }
        }
        for (reader, record) in history.records.iter().enumerate().filter(|(_, it)| it.snapshot.is_none()) {
            for read in &record.reads {
                let position = versions.seen(history, reader, read.key, read.saw)?;
                let next = Some(position + 1);
                graph.add_read(versions, reader, read.key, position, next, false);
            }
            for range in &record.ranges {
                for (key, position, next) in versions.unseen(history, reader, range) {
                    let position = position.ok_or_else(|| Anomaly::unknown(history, reader, key, Saw::Absent))?;
                    graph.add_read(versions, reader, key, position, next, true);
                }
            }
        }
        graph.add_time(history);
        Ok(graph)
    }

    fn add(&mut self, from: usize, to: usize, kind: EdgeKind) {
        if from != to {
            self.edges[from].push((to, kind));
        }
    }

    /// A read of the version at `position`, before that at `next`.
    fn add_read(
        &mut self,
        versions: &Versions,
        reader: TxnIndex,
        key: super::Key,
        position: usize,
        next: Option<usize>,
        range: bool,
    ) {
        let Some(all) = versions.by_key.get(&key) else { return };
        if let Some(writer) = all[position].writer {
            self.add(writer, reader, EdgeKind::WriteRead(key));
        }
        // A reader that wrote the key itself is ordered by its own write.
        if let Some(next) = next.and_then(|next| all.get(next)).and_then(|version| version.writer) {
            self.add(reader, next, if range { EdgeKind::Phantom(key) } else { EdgeKind::ReadWrite(key) });
        }
    }

    fn add_time(&mut self, history: &History) {
        let mut ends: Vec<(u64, TxnIndex)> =
            history.records.iter().enumerate().map(|(i, record)| (record.ended, i)).collect();
        ends.sort_unstable();
        let base = self.edges.len();
        self.edges.resize(base + ends.len(), Vec::new());
        for (position, &(_, txn)) in ends.iter().enumerate() {
            self.add(txn, base + position, EdgeKind::Time);
            if position > 0 {
                self.add(base + position - 1, base + position, EdgeKind::Time);
            }
        }
        for (txn, record) in history.records.iter().enumerate().filter(|(_, record)| record.snapshot.is_none()) {
            let before = ends.partition_point(|(ended, _)| *ended < record.began);
            if before > 0 {
                self.add(base + before - 1, txn, EdgeKind::Time);
            }
        }
    }

    pub fn check(&self, history: &History) -> Result<(), Box<Anomaly>> {
        self.check_epochs(history)?;
        let Some(component) = self.cyclic_component() else { return Ok(()) };
        let inside: HashSet<usize> = component.iter().copied().collect();
        let transactions = component.iter().copied().filter(|node| *node < history.records.len());
        let shortest =
            transactions.filter_map(|start| self.cycle_from(start, &inside)).min_by_key(|cycle| weight(cycle));
        let cycle = shortest.expect("a component of more than one node has a cycle through a transaction");
        Err(Anomaly::cycle(history, fold_time(&cycle, history.records.len())))
    }

    /// Epochs must not fall along dependencies: else a snapshot could show an effect without its cause.
    fn check_epochs(&self, history: &History) -> Result<(), Box<Anomaly>> {
        for (from, record) in history.records.iter().enumerate().filter(|(_, record)| !record.writes.is_empty()) {
            for &(to, kind) in self.edges[from].iter().filter(|(_, kind)| *kind != EdgeKind::Time) {
                let later = &history.records[to];
                if !later.writes.is_empty() && later.epoch < record.epoch {
                    return Err(Anomaly::epochs(history, Edge { from, to, kind }));
                }
            }
        }
        Ok(())
    }

    /// Tarjan's algorithm, with its own stack: histories are deeper than a thread's stack.
    fn cyclic_component(&self) -> Option<Vec<usize>> {
        const NEW: usize = usize::MAX;
        let count = self.edges.len();
        let (mut number, mut low, mut on_stack) = (vec![NEW; count], vec![0; count], vec![false; count]);
        let (mut stack, mut next) = (Vec::new(), 0);
        for root in 0..count {
            if number[root] != NEW {
                continue;
            }
            let mut calls = vec![(root, 0)];
            while let Some((node, edge)) = calls.pop() {
                if edge == 0 {
                    (number[node], low[node], on_stack[node]) = (next, next, true);
                    stack.push(node);
                    next += 1;
                }
                if let Some(&(to, _)) = self.edges[node].get(edge) {
                    calls.push((node, edge + 1));
                    if number[to] == NEW {
                        calls.push((to, 0));
                    } else if on_stack[to] {
                        low[node] = low[node].min(number[to]);
                    }
                    continue;
                }
                if low[node] == number[node] {
                    let from = stack.iter().rposition(|n| *n == node).expect("it is on the stack");
                    let component = stack.split_off(from);
                    if component.len() > 1 {
                        return Some(component);
                    }
                    on_stack[node] = false;
                }
                if let Some((parent, _)) = calls.last() {
                    low[*parent] = low[*parent].min(low[node]);
                }
            }
        }
        None
    }

    /// The shortest way from `start` back to it.
    fn cycle_from(&self, start: usize, inside: &HashSet<usize>) -> Option<Vec<(usize, EdgeKind)>> {
        let mut came: Vec<Option<(usize, EdgeKind)>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for &(to, kind) in self.edges[node].iter().filter(|(to, _)| inside.contains(to)) {
                if came[to].is_some() {
                    continue;
                }
                came[to] = Some((node, kind));
                if to == start {
                    return Some(walk_back(start, &came));
                }
                queue.push_back(to);
            }
        }
        None
    }
}

/// The nodes of the cycle, each with the edge that leaves it.
fn walk_back(start: usize, came: &[Option<(usize, EdgeKind)>]) -> Vec<(usize, EdgeKind)> {
    let mut cycle = Vec::new();
    let mut node = start;
    while let Some((from, kind)) = came[node] {
        cycle.push((from, kind));
        node = from;
        if node == start {
            break;
        }
    }
    cycle.reverse();
    cycle
}

/// The length of the report for a reader.
fn weight(cycle: &[(usize, EdgeKind)]) -> usize {
    cycle.len()
}

/// Makes one edge of each run through the chain of ends.
fn fold_time(cycle: &[(usize, EdgeKind)], transactions: usize) -> Vec<Edge> {
    let nodes: Vec<_> = cycle.iter().filter(|(node, _)| *node < transactions).collect();
    (0..nodes.len()).map(|i| Edge { from: nodes[i].0, to: nodes[(i + 1) % nodes.len()].0, kind: nodes[i].1 }).collect()
}
