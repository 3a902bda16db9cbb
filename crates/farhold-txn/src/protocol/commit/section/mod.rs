//! The near part of a commit: from "nothing has changed" to "everything has", for the rows of this node.
//!
//! It has two forms. Both do the same in between: [`validate`], then [`write`].
//!
//! - [`latch`]: lock the rows to write one by one in address order, validate and write, then unlock.
//! - [`rtm`]: both as one hardware transaction, where the CPU has them; it locks nothing, it only asks whether another
//!   transaction has. Where it does not commit, the caller takes `latch`.
//!
//! A transaction that must ask another node between validation and write calls the parts of `latch` itself: a hardware
//! transaction cannot wait.

pub(crate) mod latch;
pub(crate) mod rtm;

use crate::node::Node;
use crate::protocol::txn::state::{Row, RowState, State};
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
    /// A row to write is half written, by a dead owner.
    Damaged,
}

/// What a section works on.
pub(crate) struct Near<'a> {
    pub store: &'a Store,
    pub node: NodeId,
    pub state: &'a State,
    /// The near rows to write, in address order.
    pub order: &'a [u32],
    pub owner: Owner,
    /// [`Version::ODD`] if the rows are replicated after they have been written, else 0.
    pub odd: u64,
}

impl<'a> Near<'a> {
    #[inline(always)]
    fn object(&self, row: &crate::protocol::txn::state::Row) -> Object<'a> {
        self.store.object(row.ident.reference())
    }

    /// The rows to write.
    #[inline]
    fn writes(&self) -> impl Iterator<Item = &'a Row> {
        let (state, order) = (self.state, self.order);
        order.iter().map(move |&position| &state.rows[position as usize])
    }

    /// Makes the pages present that inserts may be the first to use: the reservation has written the header alone.
    #[inline]
    fn touch_inserts(&self) {
        for row in self.writes().filter(|row| row.state == RowState::Inserted) {
            self.object(row).touch_behind(self.payload_len(row));
        }
    }

    /// Makes every page of the rows to write present and marked as written. All else has been read by the transaction.
    #[cold]
    fn touch_all(&self) {
        self.writes().for_each(|row| self.object(row).touch(self.payload_len(row)));
    }

    /// Whether the transaction writes at least half of its rows.
    #[cold]
    fn is_mostly_writes(&self) -> bool {
        2 * self.order.len() >= self.state.rows.len()
    }

    /// What the commit will write of a row, at most.
    #[inline]
    fn payload_len(&self, row: &crate::protocol::txn::state::Row) -> usize {
        if row.state.leaves_nothing() { 0 } else { row.key_len as usize + self.state.value(row).len() }
    }
}

/// Is everything near that was read as it was? The rows to write are locked, at their versions, or the hardware transaction
/// in which this runs checks them.
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
    if ranges_stand(near) { Ok(()) } else { Err(Refused::Changed) }
}

/// Are all near ranges, and all near keys that were absent, as they were?
#[inline(always)]
pub(crate) fn ranges_stand(near: &Near<'_>) -> bool {
    for group in near.state.groups().iter().filter(|group| group.node == near.node) {
        let table = group.table();
        let Some(index) = table.store.index(group.index.number()) else { return false };
        if !group.leaves.as_slice().iter().all(|leaf| index.validate(*leaf)) {
            return false;
        }
    }
    let memory = near.store.memory();
    near.state.buckets.as_slice().iter().all(|(node, bucket)| *node != near.node || bucket.is_still(memory))
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
        crate::base::planted::may_stop();
        let row = &near.state.rows[position as usize];
        near.object(row).settle(new_version(row.state, row.version, epoch));
    }
}

/// Writes the near rows.
#[inline]
pub(crate) fn write(near: &Near<'_>, epoch: u32) {
    if near.state.replacing.is_empty() {
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is of one lifetime, the closure of all"
        )]
        write_by(near, epoch, |object, value, version| object.write(value, version));
    } else {
        write_moving(near, epoch);
    }
}

/// As [`write`], inside of a hardware transaction, where no row takes another's place.
#[inline]
fn write_narrow(near: &Near<'_>, epoch: u32) {
    debug_assert!(near.state.replacing.is_empty());
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime, the closure of all")]
    write_by(near, epoch, |object, value, version| object.write_narrow(value, version));
}

#[inline(always)]
fn write_by(near: &Near<'_>, epoch: u32, write: impl Fn(&Object<'_>, &[u8], Version)) {
    near.writes().for_each(|row| write_one(near, row, epoch, &write));
}

#[inline(always)]
fn write_one(near: &Near<'_>, row: &Row, epoch: u32, write: impl Fn(&Object<'_>, &[u8], Version)) {
    crate::base::planted::may_stop();
    let object = near.object(row);
    let version = new_version(row.state, row.version, epoch).with(near.odd);
    if row.has_new_value() && !row.state.leaves_nothing() {
        write(&object, near.state.value(row), version);
    } else {
        object.restamp(version);
    }
}

/// Where rows replace others, the replaced rows are written after the new ones, and the new ones stay reserved until
/// then: the process may end at any moment. Its next start (`farhold-store`'s `table/rebuild.rs`) rolls back while a
/// reservation of this owner is no row yet, and rolls forward from then on.
#[cold]
fn write_moving(near: &Near<'_>, epoch: u32) {
    let with = |is_one: fn(&RowState) -> bool| near.writes().filter(move |row| is_one(&row.state));
    let is_new = |state: &RowState| *state == RowState::Inserted;
    // A reservation that will not become a row must not look like one that still will.
    for row in with(|state| *state == RowState::Gone) {
        near.object(row).give_up();
    }
    for row in with(is_new) {
        crate::base::planted::may_stop();
        let (object, version) = (near.object(row), new_version(row.state, row.version, epoch).with(near.odd));
        if row.has_new_value() {
            object.write_reserved(near.state.value(row), version);
        } else {
            object.restamp_reserved(version);
        }
    }
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime, the closure of all")]
    for row in with(|state| *state != RowState::Inserted) {
        write_one(near, row, epoch, |object, value, version| object.write(value, version));
    }
    for row in with(is_new) {
        crate::base::planted::may_stop();
        near.object(row).end_reservation();
    }
}

impl Node {
    /// The form of its commits' near part: `rtm` where the CPU has hardware transactions, else `latch`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        if self.hardware.is_some() { rtm::NAME } else { latch::NAME }
    }
}
