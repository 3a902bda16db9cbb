//! What must be true at the end.

use super::cluster::{Cluster, SERVE_NS};
use super::plan::Load;
use crate::workload::Client;

impl Cluster {
    pub async fn look(&self, broken: &mut Vec<String>) {
        if !broken.is_empty() {
            return;
        }
        // What was told without an answer is on its way.
        self.handle.sleep_ns(2 * SERVE_NS).await;
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
            Load::Shop => {
                let audited = self.books.borrow().audit(&worker);
                if let Err(what) = audited.await {
                    broken.push(what);
                }
            }
        }
        // The others hear that the snapshot of this look is closed.
        self.handle.sleep_ns(2 * SERVE_NS).await;
        let processes = self.processes.borrow();
        for process in processes.iter() {
            broken.extend(process.node.left_behind().into_iter().map(|left| format!("left behind: {left}")));
        }
        let Some(configuration) = self.register().configuration() else { return };
        // A counter's word changes beside its row's copies.
        let mirrors = if self.setup.load == Load::Numbers { &[] } else { &configuration.mirrors[..] };
        for mirror in mirrors {
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
}
