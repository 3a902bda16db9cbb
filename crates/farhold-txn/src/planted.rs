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
    /// Who is being shut out counts as shut out.
    FenceBelieved,
    /// What the dead have left in the logs is not redone.
    NoDrain,
    /// Locks of the dead stay.
    LocksStay,
    /// A new mirror gets nothing of what was there before it.
    NoCatchUp,
    /// A node goes on when its lease is over.
    LeaseIgnored,
    /// A new keeper begins with its own epoch.
    EpochFalls,
    /// A founding node begins its mirrors only when it hears that everybody is there.
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
    /// What the dead have left is not written into the journals of those who redo it.
    RedoUnwritten,
    /// A record is of no use to others any more as soon as its rows are written, though its coordinator's journal does not have it.
    FinishedTooEarly,
    /// A node that does not know what has become of a commit goes on closing epochs.
    TailCounts,
    /// A configuration begins before everything of before is in the journals.
    SettledTooEarly,
    /// Who expels a node does not wait until its lease has ended.
    LeaseNotWaitedFor,
    /// What was meant for a node's rows before it left is done to it when it has come back.
    ComesBackTheSame,
    /// A new mirror hears nothing of slots without a row.
    NoTombstones,
    /// Who has read an odd row does not wait until it is even.
    OddReadsForgotten,
    /// Who waits for an odd row waits until it is even, or until he hears that his node is gone, which nobody may tell him.
    OddWaitedForEver,
    /// Who waits behind his commit point waits until his record is at its holders, or until he hears that his node is gone.
    OutcomeWaitedFor,
    /// A node keeps to itself whom it does not reach.
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

    /// Those that one thread cannot show.
    pub const OF_THREADS: [Self; 5] = [
        Self::ValidatedBeforeLocked,
        Self::EpochBeforeLocks,
        Self::UnlockedBeforeWritten,
        Self::LateStamp,
        Self::LockedReadBelieved,
    ];

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
    static PLANTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Switches a defect on for this thread (a simulation is one thread), or all off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect.map_or(0, |defect| defect as u32));
}

#[cfg(feature = "planted")]
std::thread_local! {
    static SHAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A shaken thread stops at one of so many places, on average; a transaction passes some ten.
#[cfg(feature = "planted")]
const PLACES_PER_STOP: u64 = 64;

/// From now on this thread stops, now and then, at places where other threads can come between: those where a defect may be planted, and
/// some more. 0: no more.
#[cfg(feature = "planted")]
pub fn shake(seed: u64) {
    SHAKEN.set(seed);
}

/// A place where other threads can come between: a [shaken](shake) thread stops here now and then.
#[cfg(feature = "planted")]
pub(crate) fn may_stop() {
    let mut random = SHAKEN.get();
    if random == 0 {
        return;
    }
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    SHAKEN.set(random);
    if random.is_multiple_of(PLACES_PER_STOP) {
        // The kernel adds some 50 µs, in which others do ten transactions.
        #[expect(clippy::disallowed_methods, reason = "real threads alone are shaken")]
        std::thread::sleep(std::time::Duration::from_nanos((random >> 32) % 50_000));
    }
}

/// No thread is shaken.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn may_stop() {}

/// Is it switched on?
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    may_stop();
    PLANTED.get() == defect as u32
}

/// Nothing is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}

/// Is one switched on that is planted in the commit by messages alone?
#[cfg(feature = "planted")]
pub(crate) fn is_of_messages() -> bool {
    let planted = PLANTED.get();
    planted != 0 && !Defect::OF_THREADS.iter().any(|defect| *defect as u32 == planted)
}

/// None is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is_of_messages() -> bool {
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
        $crate::planted::is($crate::planted::Defect::$defect)
    };
}
