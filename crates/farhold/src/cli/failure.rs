//! A failure in the middle of a run: what is done to a node and when, and what was seen of it from outside.

use std::path::Path;
use std::time::Duration;

use farhold_txn::FileRegister;

use super::clock::Stopwatch;
use super::cluster::Cluster;

/// What is done to a node.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    /// Which one.
    pub node: usize,
    /// When, from the beginning of the run.
    pub after: Duration,
    /// It is made to stand still, instead of being killed.
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

/// How far a cluster has come with a failure, as its register tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Nothing,
    /// The node has been killed or stopped.
    Struck,
    /// All others have installed a configuration without it.
    Expelled,
    /// All its rows are served by somebody else.
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

    /// Is nothing left to be done, nor to be seen but the copies?
    pub fn is_over(&self) -> bool {
        let Some(failure) = self.failure else { return true };
        self.seen >= if failure.return_after.is_some() { Seen::Whole } else { Seen::TakenOver }
    }

    /// Does what is due, and notes what has changed.
    pub fn step(&mut self, cluster: &mut Cluster) -> Result<(), String> {
        let Some(failure) = self.failure else { return Ok(()) };
        let at = self.clock.seconds();
        match self.seen {
            Seen::Nothing if at >= failure.after.as_secs_f64() => {
                let what = if failure.freeze { "stopped" } else { "killed" };
                if failure.freeze {
                    cluster.freeze(failure.node)?;
                } else {
                    cluster.kill(failure.node)?;
                }
                self.mark(Seen::Struck, format!("node {} {what}", failure.node));
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

    fn look(&mut self, dir: &Path, failure: Failure) -> Result<(), String> {
        let registered = FileRegister::peek(dir).map_err(|error| error.to_string())?;
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
        self.seen = seen;
        self.marks.push(Mark { at: self.clock.seconds(), what });
    }
}
