//! A failure in the middle of a run: what is done to nodes and when, and what is seen of it from outside.

use std::path::Path;
use std::time::Duration;

use farhold_txn::FileRegister;

use super::clock::Stopwatch;
use super::cluster::Cluster;
use crate::database::register_of;

/// What is done, and when, from the beginning of the run.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// To one node.
    One(LostNode),
    /// All nodes are killed at this time, their regions are removed, and they start again from their journals.
    All(Duration),
}

/// What is done to a node.
#[derive(Debug, Clone, Copy)]
pub struct LostNode {
    /// Which one.
    pub node: usize,
    /// When, from the beginning of the run.
    pub after: Duration,
    /// It is paused, instead of being killed.
    pub freeze: bool,
    /// When it is started again.
    pub return_after: Option<Duration>,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Seconds from the beginning of the run.
    pub at: f64,
    /// What, in a few words.
    pub what: String,
}

/// The progress of a cluster after a failure, as its register shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Nothing,
    /// The node, or all of them, has been killed or stopped.
    Struck,
    /// All others have installed a configuration without it.
    Expelled,
    /// Other nodes serve all its partitions.
    TakenOver,
    /// It has been started again.
    Started,
    /// It is a member again.
    Returned,
    /// Every row has all its copies again.
    Whole,
}

/// Does it and watches.
pub struct Story {
    failure: Option<Failure>,
    clock: Stopwatch,
    seen: Seen,
    /// What has happened.
    pub marks: Vec<Mark>,
}

/// How often the register is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Story {
    /// At the beginning of a run.
    pub fn begin(failure: Option<Failure>) -> Self {
        Self { failure, clock: Stopwatch::start(), seen: Seen::Nothing, marks: Vec::new() }
    }

    /// Seconds since then.
    pub fn seconds(&self) -> f64 {
        self.clock.seconds()
    }

    /// Whether nothing is left to do, and nothing to see except the replicas.
    pub fn is_over(&self) -> bool {
        match self.failure {
            None => true,
            Some(Failure::One(lost)) if lost.return_after.is_none() => self.seen >= Seen::TakenOver,
            Some(_) => self.seen >= Seen::Whole,
        }
    }

    /// Does what is due, and notes what has changed. True: all nodes have been killed just now.
    pub fn step(&mut self, cluster: &mut Cluster) -> Result<bool, String> {
        match self.failure {
            None => Ok(false),
            Some(Failure::One(lost)) => self.step_with_one(cluster, lost).map(|()| false),
            Some(Failure::All(after)) => {
                let is_due = self.seen == Seen::Nothing && self.clock.seconds() >= after.as_secs_f64();
                if is_due {
                    cluster.kill_all()?;
                    self.mark(Seen::Struck, "all nodes killed, their rows' memory given up".to_owned());
                    cluster.start_all_again()?;
                }
                Ok(is_due)
            }
        }
    }

    /// All nodes are there again, after all were killed.
    pub fn all_returned(&mut self) {
        self.mark(Seen::Whole, "every row is there again, from the journals".to_owned());
    }

    fn step_with_one(&mut self, cluster: &mut Cluster, failure: LostNode) -> Result<(), String> {
        let at = self.clock.seconds();
        match self.seen {
            Seen::Nothing if at >= failure.after.as_secs_f64() => {
                let what = if failure.freeze { "stopped" } else { "killed" };
                if failure.freeze {
                    cluster.freeze(failure.node)?;
                } else {
                    cluster.kill(failure.node)?;
                }
                // From before the kill: the end of a large process takes long, and the others need not wait for it.
                self.mark_at(at, Seen::Struck, format!("node {} {what}", failure.node));
            }
            Seen::Struck | Seen::Expelled | Seen::Started | Seen::Returned => self.look(cluster.dir(), failure)?,
            Seen::TakenOver => {
                let is_due = failure.return_after.is_some_and(|after| at >= after.as_secs_f64());
                if is_due {
                    cluster.start_again(failure.node)?;
                    self.mark(Seen::Started, format!("node {} started again", failure.node));
                }
            }
            Seen::Nothing | Seen::Whole => {}
        }
        Ok(())
    }

    fn look(&mut self, dir: &Path, failure: LostNode) -> Result<(), String> {
        let registered = FileRegister::peek(&register_of(dir)).map_err(|error| error.to_string())?;
        let Some((configuration, settled)) = registered else { return Ok(()) };
        let is_there = configuration.everybody().any(|node| usize::from(node.0) == failure.node);
        let is_member = configuration.members.iter().any(|node| usize::from(node.0) == failure.node);
        let is_settled = settled == configuration.number;
        let node = failure.node;
        match self.seen {
            Seen::Struck if !is_there && (is_settled || configuration.unserved().is_empty()) => {
                self.mark(Seen::Expelled, format!("the others go on without node {node}"));
            }
            Seen::Expelled if configuration.unserved().is_empty() && is_settled => {
                self.mark(Seen::TakenOver, format!("node {node}'s rows are served again"));
            }
            Seen::Started if is_member && is_settled => {
                self.mark(Seen::Returned, format!("node {node} is a member again"));
            }
            Seen::Returned if configuration.mirrors.iter().all(|mirror| mirror.whole) => {
                self.mark(Seen::Whole, "every row has all its copies again".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn mark(&mut self, seen: Seen, what: String) {
        self.mark_at(self.clock.seconds(), seen, what);
    }

    fn mark_at(&mut self, at: f64, seen: Seen, what: String) {
        self.seen = seen;
        self.marks.push(Mark { at, what });
    }
}
