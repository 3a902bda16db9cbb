//! The near part of a commit: from "nothing has changed" to "everything has", for the rows of this node.
//!
//! Two forms of one thing. The body, [`validate`] and [`write`], is the same code in both:
//!
//! - [`latch`]: lock the rows to write one by one in address order, then the body, then unlock.
//! - [`rtm`]: the body as one hardware transaction, where the CPU has them; it locks nothing, it only asks whether anybody
//!   else has. After a bounded number of failures it falls back to `latch`.
//!
//! [`Section::commit`] is the whole of it. A transaction that has to ask another node between validation and write calls
//! the parts of `latch` itself: a hardware transaction cannot wait.

pub(crate) mod latch;
pub(crate) mod rtm;

use crate::txn::state::{RowState, State};
use farhold_fabric::NodeId;
use farhold_store::{Object, Owner, Store, Version};

/// Why a section left everything as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A row to write is locked by another.
    Locked,
    /// A row or a leaf is not as it was read.
    Changed,
    /// There is no memory for the older copies that open snapshots need.
    Memory,
}

/// What a section works on.
pub(crate) struct Near<'a> {
    pub store: &'a Store,
    pub node: NodeId,
    pub state: &'a State,
    /// The near rows to write, in address order.
    pub order: &'a [u32],
    pub owner: Owner,
    /// [`Version::ODD`] if the rows are to be replicated after they have been written, else 0.
    pub odd: u64,
}

impl<'a> Near<'a> {
    #[inline(always)]
    fn object(&self, row: &crate::txn::state::Row) -> Object<'a> {
        self.store.object(row.ident.reference())
    }
}

/// A form of the section.
pub(crate) trait Section {
    /// Its name, for statistics and settings.
    const NAME: &'static str;

    /// Validates and writes, all or nothing; returns the epoch. `epoch` is called while all rows to write are locked (or
    /// inside of the hardware transaction), `before_write` after validation: the last that can refuse, and what a form may leave
    /// out while `is_plain` says that it has nothing to do.
    fn commit(
        near: &Near<'_>,
        epoch: impl Fn() -> u32,
        is_plain: impl Fn() -> bool,
        before_write: impl FnMut(u32) -> Result<(), Refused>,
    ) -> Result<u32, Refused>;
}

/// Is everything near that was read as it was? The rows to write are locked, by their versions, or about to be looked at by
/// the hardware transaction that this runs in.
#[inline]
pub(crate) fn validate(near: &Near<'_>) -> Result<(), Refused> {
    for row in &near.state.rows {
        if row.ident.node() == near.node && matches!(row.state, RowState::Read | RowState::Absent) {
            let object = near.object(row);
            let unchanged = object.is_still(row.version, near.owner)
                || planted!(NoValidation)
                || (planted!(LockIgnored) && object.version() == row.version);
            if !unchanged {
                return Err(Refused::Changed);
            }
        }
    }
    if planted!(NoPhantomCheck) {
        return Ok(());
    }
    for group in near.state.groups().iter().filter(|group| group.node == near.node) {
        let table = group.table();
        let Some(index) = table.store.index(group.index.number()) else { return Err(Refused::Changed) };
        if !group.leaves.iter().all(|leaf| index.validate(*leaf)) {
            return Err(Refused::Changed);
        }
    }
    let memory = near.store.memory();
    let unchanged = near.state.buckets.iter().all(|(node, bucket)| *node != near.node || bucket.is_still(memory));
    if unchanged { Ok(()) } else { Err(Refused::Changed) }
}

/// The version that a row gets.
#[inline]
pub(crate) fn new_version(state: RowState, old: Version, epoch: u32) -> Version {
    let version = old.next(epoch);
    if state.leaves_nothing() { version.with(Version::ABSENT) } else { version }
}

/// The near rows, written odd before, are replicated.
pub(crate) fn settle(near: &Near<'_>, epoch: u32) {
    for &position in near.order {
        let row = &near.state.rows[position as usize];
        near.object(row).settle(new_version(row.state, row.version, epoch));
    }
}

/// Writes the near rows.
#[inline]
pub(crate) fn write(near: &Near<'_>, epoch: u32) {
    for &position in near.order {
        let row = &near.state.rows[position as usize];
        let object = near.object(row);
        let version = new_version(row.state, row.version, epoch).with(near.odd);
        if row.has_new_value() && !row.state.leaves_nothing() {
            object.write(near.state.value(row), version);
        } else {
            object.restamp(version);
        }
    }
}
