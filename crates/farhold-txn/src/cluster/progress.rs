//! What the recovery of a node is doing, for operators.

use farhold_fabric::NodeId;
use std::fmt;

/// A step of leading the members into another configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leading {
    /// Waits until this member has no commit on its way.
    Freezing(NodeId),
    /// Brings what dead nodes have left at this member to all members.
    Redoing(NodeId),
    /// Makes this member release the locks of dead owners.
    Settling(NodeId),
    /// Has this member go on.
    Installing(NodeId),
}

/// Rows on their way from one place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moving {
    /// Done.
    pub rows: u64,
    /// Of, as far as is known.
    pub rows_total: u64,
}

/// What the recovery of a node is doing; nothing, most of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Why it cannot read the cluster's register.
    pub register: Option<Box<str>>,
    /// It hears nothing of this node, which alone has some rows: no node goes on without it.
    pub waiting: Option<NodeId>,
    /// It leads all members into the configuration with this number.
    pub leading: Option<(u64, Leading)>,
    /// It makes the rows of its mirror of this node its own.
    pub promoting: Option<(NodeId, Moving)>,
    /// It fills its mirror on this node.
    pub mirroring: Option<(NodeId, Moving)>,
    /// It gets its copies of replicated tables.
    pub joining: Option<Moving>,
    /// Why its last attempt to get its copies of replicated tables, or to make rows its own, failed. It keeps trying.
    pub refused: Option<Box<str>>,
    /// An earlier start of it still belongs to the cluster: it waits until the others go on without that start.
    pub replacing: bool,
}

impl Progress {
    /// Is there nothing to do?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rows", self.rows, self.rows_total.max(self.rows))
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(reason) = &self.register {
            parts.push(reason.to_string());
        }
        if let Some(node) = self.waiting {
            parts.push(format!("waits for {node}, which is silent and alone has some rows"));
        }
        if let Some((number, step)) = self.leading {
            parts.push(match step {
                Leading::Freezing(node) => format!("configuration {number}: waits for the commits of {node}"),
                Leading::Redoing(node) => format!("configuration {number}: redoes what the dead have left at {node}"),
                Leading::Settling(node) => format!("configuration {number}: releases locks of the dead at {node}"),
                Leading::Installing(node) => format!("configuration {number}: starts {node} again"),
            });
        }
        if let Some((of, rows)) = self.promoting {
            parts.push(format!("takes over the rows of {of}: {rows}"));
        }
        if let Some((on, rows)) = self.mirroring {
            parts.push(format!("copies its rows to {on}: {rows}"));
        }
        if let Some(rows) = self.joining {
            parts.push(format!("joins: {} rows of replicated tables", rows.rows));
        }
        if let Some(reason) = &self.refused {
            parts.push(format!("tries again: {reason}"));
        }
        if self.replacing {
            parts.push("waits until the others go on without its earlier start".to_owned());
        }
        if parts.is_empty() {
            parts.push("nothing".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}
