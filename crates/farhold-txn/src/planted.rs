//! Defects on purpose, one at a time: what the tests of the tests switch on to see whether they notice.
//!
//! Only with the feature `planted`; without it every question is `false` at compile time.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// Rows that were read are not validated.
    NoValidation = 1,
    /// Far rows are written without a lock.
    NoFarLock,
    /// A row found through the location cache is not checked for its key and incarnation.
    StaleLocation,
    /// A far row that was torn is taken as it came.
    TornRead,
    /// Stamps of ranges are not validated.
    NoPhantomCheck,
    /// Near rows are written without a lock.
    NoNearLock,
    /// The epoch is not read under the locks: it is what the node's last commit has read.
    EarlyEpoch,
    /// The lock of a validated row is not looked at.
    LockIgnored,
    /// Far rows are unlocked before they are written.
    EarlyUnlock,
    /// Writers do not save older copies for snapshots.
    NoUndo,
    /// No defect: near commits run the body of the hardware transaction as it is, which one thread alone may do.
    SoftRtm,
}

impl Defect {
    /// All true ones.
    pub const ALL: [Self; 10] = [
        Self::NoValidation,
        Self::NoFarLock,
        Self::StaleLocation,
        Self::TornRead,
        Self::NoPhantomCheck,
        Self::NoNearLock,
        Self::EarlyEpoch,
        Self::LockIgnored,
        Self::EarlyUnlock,
        Self::NoUndo,
    ];
}

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Switches a defect on for this thread (a simulation is one thread), or all off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect.map_or(0, |defect| defect as u32));
}

/// Is it switched on?
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    PLANTED.get() == defect as u32
}

/// Nothing is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}

/// The epoch that a node's last commit has read, when this one has read `now`.
#[cfg(feature = "planted")]
pub(crate) fn last_epoch(node: crate::NodeId, now: u32) -> u32 {
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
pub(crate) fn last_epoch(_: crate::NodeId, now: u32) -> u32 {
    now
}

/// The next serial number of a commit.
#[cfg(feature = "planted")]
pub(crate) fn next_serial() -> u64 {
    static SERIALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    SERIALS.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
}

/// Serial numbers are for tests.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn next_serial() -> u64 {
    0
}

/// `planted!(Name)`: is this defect switched on?
macro_rules! planted {
    ($defect:ident) => {
        $crate::planted::is($crate::planted::Defect::$defect)
    };
}
