//! The checks at the end of a run.

use super::changing;
use super::cluster::{Cluster, Process, SERVE_NS};
use super::plan::Load;
use crate::workload::{Client, CutShort};

/// The most checks for leaks: drops of tables take several turns of all nodes, a millisecond each.
const LEFT_LOOKS_MAX: usize = 10;

/// Where rows have one copy, a coordinator may end after it has deleted rows of other nodes and before it has told
/// them. These rows stay in their indexes, where other transactions may take their keys, until their node starts again.
fn is_kept_by_the_dead(what: &str) -> bool {
    what.ends_with("a deleted row") || (what.contains(" has ") && what.ends_with(" rows"))
}

impl Cluster {
    pub async fn look(&self, broken: &mut Vec<String>) {
        if !broken.is_empty() {
            return;
        }
        if self.is_damaged() {
            self.check_reported(broken).await;
            self.tell("rows that were being written as a node ended stay locked");
            if let Load::Mixed(workload) = &self.setup.load {
                let last = Client::new(usize::MAX, &self.process(0).worker, workload, self.recorder.clone());
                last.look_at_all_but(&self.damaged_keys()).await;
            }
            return;
        }
        self.look_at_columns(broken).await;
        // Messages without an answer are still on their way.
        self.handle.sleep_ns(2 * SERVE_NS).await;
        broken.extend(self.copies_differ());
        let worker = self.process(0).worker;
        match &self.setup.load {
            Load::Mixed(workload) => {
                let last = Client::new(usize::MAX, &worker, workload, self.recorder.clone());
                last.look_at_everything().await;
            }
            Load::Bank(scale) => {
                let audited = self.ledger.borrow().audit(&worker, *scale);
                if let Err(what) = audited.await {
                    broken.push(what);
                }
            }
            Load::Numbers => {}
            Load::Tables => {
                if let Err(what) = changing::audit(&worker, &self.kept).await {
                    broken.push(what);
                }
            }
            Load::Shop => {
                let audited = self.books.borrow().audit(&worker);
                if let Err(what) = audited.await {
                    broken.push(what);
                }
            }
        }
        broken.extend(self.left().await);
        let processes = self.processes.borrow();
        // A counter's word changes without its row's copies.
        let is_mirrored = self.setup.load != Load::Numbers;
        let configuration = self.register().configuration().filter(|_| is_mirrored);
        let mirrors = configuration.map(|it| it.mirrors).unwrap_or_default();
        for mirror in &mirrors {
            let (of, on) = (&processes[usize::from(mirror.of.0)].node, &processes[usize::from(mirror.on.0)].node);
            broken.extend(on.mirror_differs(of));
        }
        for process in processes.iter() {
            let same = process.node.tables().len() == processes[0].node.tables().len();
            if !same {
                broken.push(format!("{} has other tables", process.node.id()));
            }
        }
    }

    /// Replicated tables have the same rows on all nodes. Where rows have one copy, a death in the middle of a write leaves them
    /// different.
    fn copies_differ(&self) -> Vec<String> {
        let processes = self.processes.borrow();
        let Some((first, others)) = processes.split_first().filter(|_| self.setup.replicas > 1) else {
            return Vec::new();
        };
        others.iter().flat_map(|other| other.node.copies_differ(&first.node)).collect()
    }

    /// The leaks that remain once the other nodes have learned that the snapshot of this check is closed, and which tables are dropped.
    async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for _ in 0..LEFT_LOOKS_MAX {
            self.handle.sleep_ns(2 * SERVE_NS).await;
            left.clear();
            let processes = self.processes.borrow().clone();
            for Process { node, worker, .. } in &processes {
                // The clients have ended; this does what their workers do now and then between transactions.
                worker.serve(0, 0).await;
                left.extend(node.left_behind().into_iter().map(|what| format!("left behind: {what}")));
                left.extend(node.leaks().into_iter().map(|what| format!("{}: {what}", node.id())));
            }
            if self.setup.cut_short() == CutShort::Half {
                left.retain(|what| !is_kept_by_the_dead(what));
            }
            if left.is_empty() {
                break;
            }
        }
        left
    }
}
