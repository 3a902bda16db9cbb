//! What counts of a generation that has ended? The end of each of its starts' journals says so; the file keeps it as a cut until
//! the journal is gone.

use super::lock::{TURN, wait_for};
use super::{Cluster, Cut};
use crate::durable::files::Directory;
use crate::durable::journal::{self, Standing};
use crate::durable::{DurableError, Identity};
use farhold_fabric::NodeId;

impl Cluster {
    /// Ends the generation. What every member at its end has closed counts. Of a start that had ended before, what it had closed
    /// itself counts: all of that was durable, and the others have the rest of its durable transactions in their journals.
    pub(super) fn next_generation(&mut self, directory: &dyn Directory, names: &[String]) -> Result<(), DurableError> {
        let (mut ends, mut epoch_max) = (Vec::new(), self.epoch_first);
        let mut without_end = Vec::new();
        for node in (0..self.identity.nodes).map(NodeId) {
            let identity = Identity { node, ..self.identity };
            let mut starts: Vec<u32> = journal::segments(names, node).into_iter().map(|(start, _)| start).collect();
            starts.retain(|start| *start >= self.generation);
            starts.dedup();
            for start in starts {
                let (found, standing) = journal::last(directory, &identity, start, names)?;
                journal::settle(directory, &identity, start, &found)?;
                epoch_max = epoch_max.max(found.epoch_max).max(found.closed);
                let cut = Cut { node, start, epoch: found.closed.max(self.epoch_first - 1) };
                ends.push(cut);
                if found.segments_gone > 0 {
                    without_end.push(cut);
                }
                let number = |standing: &Option<Standing>| standing.as_ref().map_or(0, |standing| standing.number);
                if number(&standing) > number(&self.standing) {
                    self.standing = standing;
                }
            }
        }
        let belongs = |cut: &Cut| match &self.standing {
            Some(standing) => standing.starts.get(usize::from(cut.node.0)) == Some(&cut.start),
            None => cut.start == self.generation,
        };
        // Of a member's journal the segment with the last batch is never removed; of one whose node has come back since, all are.
        if let Some(cut) = without_end.iter().find(|cut| belongs(cut)) {
            let file = format!("the journal of node {}", cut.node.0);
            return Err(DurableError::damaged(&file, 0, "it has no batch, and its first segments are missing"));
        }
        let all = match &self.standing {
            Some(standing) => standing.starts.iter().filter(|start| **start != 0).count(),
            None => usize::from(self.identity.nodes),
        };
        let those: Vec<u32> = ends.iter().filter(|cut| belongs(cut)).map(|cut| cut.epoch).collect();
        // A member without a journal has closed nothing.
        let least = if those.len() < all { None } else { those.into_iter().min() };
        let epoch = least.unwrap_or(self.epoch_first - 1);
        self.cuts.extend(ends.iter().map(|cut| Cut { epoch: cut.epoch.min(epoch), ..*cut }));
        self.generation = self.start_last + 1;
        self.start_last = self.generation;
        self.epoch_first = epoch_max + 1;
        if let Some(standing) = &mut self.standing {
            // They belong to the new generation with their first starts in it.
            standing.starts.iter_mut().filter(|start| **start != 0).for_each(|start| *start = self.generation);
        }
        self.write(directory)
    }

    /// Removes starts that have no journal left.
    ///
    /// # Errors
    /// [`DurableError::Io`], [`DurableError::Damaged`].
    pub fn forget(directory: &dyn Directory) -> Result<(), DurableError> {
        let _turn = wait_for(directory, TURN)?;
        let Some(mut this) = Self::read(directory)? else { return Ok(()) };
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        let before = this.cuts.len();
        this.cuts.retain(|cut| journal::segments(&names, cut.node).iter().any(|(start, _)| *start == cut.start));
        if this.cuts.len() == before { Ok(()) } else { this.write(directory) }
    }
}
