//! What only the mutation tests ask of transactions: serial numbers of commits, and the outcome that was called unknown.
//! The defects themselves: [`farhold_planted`].

pub(crate) use farhold_planted::{Defect, hand_on, may_stop};

/// Is it switched on? A shaken thread may stop here.
#[inline(always)]
pub(crate) fn is(defect: Defect) -> bool {
    may_stop();
    farhold_planted::is(defect)
}

/// The epoch that the node's last commit has read, where this commit has read `now`.
#[cfg(feature = "planted")]
pub(crate) fn last_epoch(node: farhold_fabric::NodeId, now: u32) -> u32 {
    std::thread_local! {
        static LAST: std::cell::RefCell<std::collections::HashMap<u8, u32>> = std::cell::RefCell::default();
    }
    if !is(Defect::EarlyEpoch) {
        return now;
    }
    LAST.with_borrow_mut(|last| last.insert(node.0, now).filter(|last| *last <= now).unwrap_or(now))
}

/// The epoch as it is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn last_epoch(_: farhold_fabric::NodeId, now: u32) -> u32 {
    now
}

/// The next serial number of a commit. Relaxed, so that it orders nothing that is not ordered without it: two commits that write one row
/// draw theirs one after the other, because the row's lock is between them.
#[cfg(feature = "planted")]
pub(crate) fn next_serial() -> u64 {
    static SERIALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    SERIALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(feature = "planted")]
std::thread_local! {
    static UNKNOWN: std::cell::Cell<(u64, u32)> = const { std::cell::Cell::new((0, 0)) };
}

/// Serial number and epoch of the commit whose outcome has just been called unknown on this thread.
#[cfg(feature = "planted")]
#[must_use]
pub fn last_unknown() -> (u64, u32) {
    UNKNOWN.get()
}

/// For [`last_unknown`].
#[cfg(feature = "planted")]
pub(crate) fn set_unknown(serial: u64, epoch: u32) {
    UNKNOWN.set((serial, epoch));
}

/// For tests.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn set_unknown(_: u64, _: u32) {}

/// Serial numbers are for tests.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn next_serial() -> u64 {
    0
}

/// `planted!(Name)`: is this defect switched on?
macro_rules! planted {
    ($defect:ident) => {
        $crate::base::planted::is($crate::base::planted::Defect::$defect)
    };
}
