//! Planted defects, one at a time: the mutation tests switch one on and demand that the checks notice it.
//!
//! Only with the feature `planted`; without it every question is `false` at compile time. No other module asks for the
//! feature: the code that runs with it is the code that ships. It adds a number for each commit, places where threads
//! of tests may stop, and, once planted, the defect itself.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Rows that were read are not validated.
    NoValidation,
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
    /// Records go to one holder alone.
    OneHolder,
    /// The marks are written before the bodies.
    MarkFirst,
    /// Bodies and marks go out together.
    OneRound,
    /// No records are sent.
    NoReplication,
    /// A commit does not wait until its marks are there.
    AckBeforeMarks,
    /// A ring without room is written all the same.
    RingOverrun,
    /// A mirror takes what comes, older or newer.
    MirrorAnyOrder,
    /// A mirror patches what it has, of whatever version.
    PatchAnyVersion,
    /// A mirror forgets a patch of a version that it does not have yet.
    PatchForgotten,
    /// Odd rows count as committed.
    OddCommits,
    /// A change of the configuration does not wait for commits on their way, nor stop new ones.
    NoFreeze,
    /// The dead are not fenced.
    NoFence,
    /// A node that is being fenced counts as fenced.
    FenceBelieved,
    /// What dead nodes have left in the logs is not redone.
    NoDrain,
    /// Locks of dead owners stay.
    LocksStay,
    /// A new mirror gets nothing of what was there before it.
    NoCatchUp,
    /// A node goes on when its lease is over.
    LeaseIgnored,
    /// A new keeper begins with its own epoch.
    EpochFalls,
    /// A founding node begins its mirrors only when it hears that all members are there.
    LateMirrors,
    /// A record names the rows that its transaction deletes first.
    DeletesFirst,
    /// A node comes back while the rows of its earlier start are in nothing but mirrors.
    JoinsTooEarly,
    /// Leases go by one clock alone, though it may have stood.
    ClockTrusted,
    /// A counter's word is believed after it was lost.
    WordBelieved,
    /// Commits are acknowledged before the journal has them.
    AckBeforeDurable,
    /// The journal closes an epoch while commits of it are open.
    OpenIgnored,
    /// A record goes into the journal when its rows are written and its epoch may be closed.
    LateRecord,
    /// Records of dead nodes are not written into the journals of the nodes that redo them.
    RedoUnwritten,
    /// A record is of no use to others any more as soon as its rows are written, though its coordinator's journal does not have it.
    FinishedTooEarly,
    /// A node that does not know what has become of a commit goes on closing epochs.
    TailCounts,
    /// A configuration begins before everything of before is in the journals.
    SettledTooEarly,
    /// The node that expels another does not wait until its lease has ended.
    LeaseNotWaitedFor,
    /// What was meant for a node's rows before it left is done to it when it has come back.
    ComesBackTheSame,
    /// A new mirror hears nothing of slots without a row.
    NoTombstones,
    /// A reader of an odd row does not wait until the row is even.
    OddReadsForgotten,
    /// A reader of an odd row waits until the row is even or its node hears that it has been expelled; it has no
    /// deadline.
    OddWaitedForEver,
    /// A commit past its commit point waits until its record is at its holders or its node hears that it has been
    /// expelled; it has no deadline.
    OutcomeWaitedFor,
    /// A node does not report which nodes it cannot reach.
    MissedUntold,
    /// A row between two parts of a mirror that is promoted is in neither.
    PartsApart,
    /// The rows of a mirror are served before all of them have become rows.
    ServedTooEarly,
    /// The section validates before it locks.
    ValidatedBeforeLocked,
    /// The section reads the epoch before it locks.
    EpochBeforeLocks,
    /// The section unlocks before it writes.
    UnlockedBeforeWritten,
    /// The stamp of a key that is not there is of a later look than the one that did not find it.
    LateStamp,
    /// A read of one row that was locked is not validated.
    LockedReadBelieved,
    /// A locked object without a row counts as none.
    LockedAbsenceBelieved,
    /// The mark of a record is in a mapped ring before its body.
    MarkBeforeBody,
    /// A snapshot is announced after the epoch has been raised.
    AnnouncedLate,
    /// A commit does not ask whether an index has been begun since its transaction began.
    IndexUnseen,
    /// The pages of a dropped table go although a snapshot is open.
    PagesUnderSnapshot,
    /// Older copies of rows are freed although a snapshot is open.
    CopiesNotHeld,
    /// A worker takes slots for a table from its stock for a dropped one.
    StaleCache,
    /// A run of pages is given up although one of its slots is in use.
    PagesInUse,
    /// No defect: near commits run the body of the hardware transaction as it is, which one thread alone may do.
    SoftRtm,
}

impl Defect {
    /// Those of replication and recovery.
    pub const OF_REPLICATION: [Self; 31] = [
        Self::OneHolder,
        Self::MarkFirst,
        Self::OneRound,
        Self::NoReplication,
        Self::AckBeforeMarks,
        Self::RingOverrun,
        Self::MirrorAnyOrder,
        Self::PatchAnyVersion,
        Self::PatchForgotten,
        Self::OddCommits,
        Self::NoFreeze,
        Self::NoFence,
        Self::FenceBelieved,
        Self::NoDrain,
        Self::LocksStay,
        Self::NoCatchUp,
        Self::LeaseIgnored,
        Self::EpochFalls,
        Self::LateMirrors,
        Self::DeletesFirst,
        Self::JoinsTooEarly,
        Self::LeaseNotWaitedFor,
        Self::OddReadsForgotten,
        Self::OddWaitedForEver,
        Self::OutcomeWaitedFor,
        Self::MissedUntold,
        Self::PartsApart,
        Self::ServedTooEarly,
        Self::ClockTrusted,
        Self::ComesBackTheSame,
        Self::NoTombstones,
    ];

    /// Those of the journal.
    pub const OF_JOURNAL: [Self; 3] = [Self::AckBeforeDurable, Self::OpenIgnored, Self::LateRecord];

    /// Those of journals of a cluster with copies.
    pub const OF_JOURNALS_WITH_COPIES: [Self; 4] =
        [Self::RedoUnwritten, Self::FinishedTooEarly, Self::TailCounts, Self::SettledTooEarly];

    /// Those that one thread cannot show, or that take what only clusters of threads do: tables that come and go, pages that are released.
    pub const OF_THREADS: [Self; 14] = [
        Self::ValidatedBeforeLocked,
        Self::EpochBeforeLocks,
        Self::UnlockedBeforeWritten,
        Self::LateStamp,
        Self::LockedReadBelieved,
        Self::MarkBeforeBody,
        Self::AnnouncedLate,
        Self::IndexUnseen,
        Self::PagesUnderSnapshot,
        Self::CopiesNotHeld,
        Self::StaleCache,
        Self::PagesInUse,
        Self::OpenIgnored,
        Self::LateRecord,
    ];

    /// The defect of the store that this is.
    #[cfg(feature = "planted")]
    fn of_store(self) -> Option<farhold_store::planted::Defect> {
        use farhold_store::planted::Defect;
        match self {
            Self::CopiesNotHeld => Some(Defect::CopiesNotHeld),
            Self::StaleCache => Some(Defect::StaleCache),
            Self::PagesInUse => Some(Defect::PagesInUse),
            _ => None,
        }
    }

    /// All true ones that need no replication and show in a simulation.
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
    static PLANTED: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Switches a defect on for this thread (a simulation is one thread), or all off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect);
    farhold_store::planted::plant(defect.and_then(Defect::of_store));
}

/// What is switched on for this thread.
#[cfg(feature = "planted")]
#[must_use]
pub fn planted() -> Option<Defect> {
    PLANTED.get()
}

pub(crate) use farhold_store::planted::may_stop;
#[cfg(feature = "planted")]
pub use farhold_store::planted::{shake, watch};

/// To be called by a thread that this one starts: it has the same defect, and is [shaken](shake) if this one is.
#[cfg(feature = "planted")]
pub(crate) fn hand_on() -> impl FnOnce() + Send + 'static {
    let (planted, of_store) = (PLANTED.get(), farhold_store::planted::hand_on());
    move || {
        PLANTED.set(planted);
        of_store();
    }
}

/// There is nothing to hand on.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn hand_on() -> impl FnOnce() + Send + 'static {
    || ()
}

/// Is it switched on?
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    may_stop();
    PLANTED.get() == Some(defect)
}

/// Nothing is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}

/// The epoch that a node's last commit has read, when this one has read `now`.
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
