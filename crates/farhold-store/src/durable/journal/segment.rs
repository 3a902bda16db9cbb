//! Which files hold a journal, and how are they made and removed?
//!
//! A segment has all of its bytes, and is in the list of the node's files, before the first batch is written to it.

use super::{HEADER_BYTES, MAGIC, MARK_AT, VERSION};
use crate::durable::files::{Directory, DurableFile};
use crate::durable::{DurableError, Identity, Inventory, seal};
use farhold_fabric::NodeId;
use std::sync::Arc;

/// Shortest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// A node's segments: start and number, ascending.
#[must_use]
pub fn segments(names: &[String], node: NodeId) -> Vec<(u32, u32)> {
    let prefix = format!("node-{}.journal-", node.0);
    let parse = |name: &String| {
        let (start, number) = name.strip_prefix(&prefix)?.split_once('-')?;
        Some((start.parse().ok()?, number.parse().ok()?))
    };
    let mut found: Vec<(u32, u32)> = names.iter().filter_map(parse).collect();
    found.sort_unstable();
    found
}

pub(in crate::durable) fn segment_name(node: NodeId, start: u32, number: u32) -> String {
    format!("node-{}.journal-{start:08}-{number:08}", node.0)
}

/// A segment that can be written.
#[derive(Debug)]
pub struct Segment {
    pub(super) file: Arc<dyn DurableFile>,
    pub(super) number: u32,
    /// Where the next batch goes, in bytes from the start of the file.
    pub(super) at: u64,
}

/// How the segments of a journal are made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Where.
    pub directory: Arc<dyn Directory>,
    /// The node and its cluster.
    pub identity: Identity,
    /// Of which start.
    pub start: u32,
    /// Bytes of each.
    pub segment_bytes: u64,
    /// Lists them.
    pub inventory: Arc<Inventory>,
}

impl Shape {
    /// The most bytes that one item may have.
    #[must_use]
    pub fn item_bytes_max(&self) -> u64 {
        self.segment_bytes / 4
    }

    /// The most bytes of items that may wait for [`Journal::write`](super::Journal::write) and still fit in a spare segment.
    #[must_use]
    pub fn pending_bytes_max(&self) -> u64 {
        self.segment_bytes / 2
    }

    /// Makes a segment with all of its bytes, so that writing it neither runs out of room nor changes the file's length.
    ///
    /// # Errors
    /// [`DurableError::Io`]; the next call then makes the segment again, over what is left of it.
    pub fn make_segment(&self, number: u32) -> Result<Segment, DurableError> {
        let name = segment_name(self.identity.node, self.start, number);
        let fresh = format!("{name}.fresh");
        let made = self.fill(&fresh).and_then(|file| {
            file.write_at(0, &self.header(number))?;
            file.write_at(MARK_AT, &seal(&[HEADER_BYTES]))?;
            file.sync()?;
            self.directory.rename(&fresh, &name)?;
            self.directory.sync()?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                self.inventory.add_segment(self.start, number)?;
                Ok(Segment { file, number, at: HEADER_BYTES })
            }
            Err(error) => {
                let _ = self.directory.remove(&fresh);
                Err(DurableError::io(&format!("make the journal segment {name} of {}", self.directory.name()), &error))
            }
        }
    }

    /// Removes the journals of earlier starts.
    ///
    /// # Errors
    /// [`DurableError::Io`].
    pub fn remove_before(&self) -> Result<(), DurableError> {
        let Self { directory, identity: Identity { node, .. }, start, inventory, .. } = self;
        let names = directory.list().map_err(|error| DurableError::io("list", &error))?;
        inventory.forget_starts(*start)?;
        for (found, number) in segments(&names, *node).into_iter().filter(|(found, _)| found < start) {
            let name = segment_name(*node, found, number);
            directory.remove(&name).map_err(|error| DurableError::io(&format!("remove {name}"), &error))?;
        }
        Ok(())
    }

    fn fill(&self, name: &str) -> std::io::Result<Arc<dyn DurableFile>> {
        let file = self.directory.create(name)?;
        let zeros = vec![0; (1 << 20).min(self.segment_bytes as usize)];
        let mut at = 0;
        while at < self.segment_bytes {
            let len = zeros.len().min((self.segment_bytes - at) as usize);
            file.write_at(at, &zeros[..len])?;
            at += len as u64;
        }
        Ok(file)
    }

    fn header(&self, number: u32) -> Vec<u8> {
        let Identity { cluster, node, nodes } = self.identity;
        let rest = [u64::from(self.start), u64::from(number), self.segment_bytes];
        seal(&[&[MAGIC, VERSION, cluster, u64::from(node.0), u64::from(nodes)][..], &rest].concat())
    }

    pub(super) fn lsn(&self, number: u32, at: u64) -> u64 {
        u64::from(number) * self.segment_bytes + at
    }
}
