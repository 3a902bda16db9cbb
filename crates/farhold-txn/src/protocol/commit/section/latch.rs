//! The section with latches: the rows' own lock words, taken in address order.

use crate::protocol::commit::section::{Near, Refused, validate, write};
use farhold_store::{LockError, Owner};

/// How often a lock is looked at before the transaction gives up. A local owner is in its section for 0.1 to 2 µs; 64
/// pauses are about 2 µs on Zen 3. Not tuned on other CPUs.
const LOOKS_MAX: u32 = 64;

/// The name of this form in statistics.
pub(crate) const NAME: &str = "latch";

/// Validates and writes, all or nothing; returns the epoch. `epoch` is called while all rows to write are locked, `before_write`
/// after validation; it is the last step that can refuse.
#[inline]
pub(crate) fn commit(
    near: &Near<'_>,
    epoch: impl Fn() -> u32,
    mut before_write: impl FnMut(u32) -> Result<(), Refused>,
) -> Result<u32, Refused> {
    let early = if planted!(EpochBeforeLocks) { Some(epoch()) } else { None };
    if planted!(ValidatedBeforeLocked) {
        validate(near)?;
    }
    lock(near)?;
    let epoch = early.unwrap_or_else(epoch);
    let validate = |near: &Near<'_>| if planted!(ValidatedBeforeLocked) { Ok(()) } else { validate(near) };
    if let Err(refused) = validate(near).and_then(|()| before_write(epoch)) {
        unlock(near);
        return Err(refused);
    }
    if planted!(UnlockedBeforeWritten) {
        unlock(near);
    }
    write(near, epoch);
    unlock(near);
    Ok(epoch)
}

/// Locks the rows to write, all at the versions that were read, or none.
#[inline]
pub(crate) fn lock(near: &Near<'_>) -> Result<(), Refused> {
    for (count, &position) in near.order.iter().enumerate() {
        let row = &near.state.rows[position as usize];
        let refused = match lock_one(near, row) {
            Ok(()) => continue,
            Err(refused) => refused,
        };
        unlock_first(near, count);
        return Err(refused);
    }
    Ok(())
}

#[inline]
fn lock_one(near: &Near<'_>, row: &crate::protocol::txn::state::Row) -> Result<(), Refused> {
    let object = near.object(row);
    let mut looks = 0;
    loop {
        if planted!(NoNearLock) {
            return if object.version() == row.version { Ok(()) } else { Err(Refused::Changed) };
        }
        match object.lock(row.ident.reference().incarnation(), near.owner) {
            Ok(version) if version == row.version => return Ok(()),
            Ok(_) => {
                object.unlock();
                return Err(Refused::Changed);
            }
            Err(LockError::Stale) => return Err(Refused::Changed),
            Err(LockError::Held(holder)) => {
                if holder == Owner::DAMAGED.word() {
                    return Err(Refused::Damaged);
                }
                // A holder on this thread cannot proceed while this loop runs.
                let ours = Owner::from_word(holder)
                    .is_some_and(|holder| holder.node() == near.owner.node() && holder.worker() == near.owner.worker());
                if ours || looks == LOOKS_MAX || object.version() != row.version {
                    return Err(Refused::Locked);
                }
                looks += 1;
                std::hint::spin_loop();
            }
        }
    }
}

/// Unlocks the rows to write.
#[inline]
pub(crate) fn unlock(near: &Near<'_>) {
    unlock_first(near, near.order.len());
}

#[inline]
fn unlock_first(near: &Near<'_>, count: usize) {
    for &position in &near.order[..count] {
        near.object(&near.state.rows[position as usize]).unlock();
    }
}
