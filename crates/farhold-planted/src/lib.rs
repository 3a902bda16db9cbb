//! Planted defects, one at a time, and threads that stop on purpose: mutation tests switch a defect on and demand that
//! the checks notice it.
//!
//! Active only with the feature `planted`; without it every query is `false` at compile time. The feature changes
//! nothing else, so the code under test is the code that ships. Defects and shaking belong to a thread (a simulation
//! has one thread, and a join runs on its caller's); [`hand_on`] passes them to the threads that it starts.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    // Of transactions, replication, recovery, journals and the store.
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
    /// The epoch is not read under the locks; a commit uses the epoch that the node's last commit has read.
    EarlyEpoch,
    /// The lock of a validated row is ignored.
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
    /// Records are not sent.
    NoReplication,
    /// A commit does not wait until its marks are there.
    AckBeforeMarks,
    /// A ring without room is written anyway.
    RingOverrun,
    /// A mirror takes every state, older or newer.
    MirrorAnyOrder,
    /// A mirror patches the state that it has, whatever its version.
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
    /// A new mirror gets no rows from before it.
    NoCatchUp,
    /// A node goes on when its lease is over.
    LeaseIgnored,
    /// A new keeper begins with its own epoch.
    EpochFalls,
    /// A founding node begins its mirrors only when it hears that all members are there.
    LateMirrors,
    /// A record names the rows that its transaction deletes first.
    DeletesFirst,
    /// A node comes back while the rows of its earlier start are only in mirrors.
    JoinsTooEarly,
    /// Leases go by one clock alone, although it may have stood still.
    ClockTrusted,
    /// A counter's word is trusted after it was lost.
    WordBelieved,
    /// Commits are acknowledged before the journal has them.
    AckBeforeDurable,
    /// The journal closes an epoch while commits of it are open.
    OpenIgnored,
    /// A record goes into the journal when its rows are written and its epoch may be closed.
    LateRecord,
    /// Records of dead nodes are not written into the journals of the nodes that redo them.
    RedoUnwritten,
    /// A record counts as finished as soon as its rows are written, although its coordinator's journal does not have it.
    FinishedTooEarly,
    /// A node that does not know the outcome of a commit goes on closing epochs.
    TailCounts,
    /// A configuration begins before all earlier records are in the journals.
    SettledTooEarly,
    /// The node that expels another does not wait until its lease has ended.
    LeaseNotWaitedFor,
    /// Changes that were meant for a node's rows before it left are applied after it has come back.
    ComesBackTheSame,
    /// A new mirror gets no state of slots without a row.
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
    /// The stamp of an absent key is read later than the look-up that did not find it.
    LateStamp,
    /// A read of one row that was locked is not validated.
    LockedReadBelieved,
    /// A locked object without a row counts as absent.
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
    /// Memory of column chunks is used again although a snapshot of another node may read them.
    ColumnsNotHeld,
    /// Column copies go on when the configuration changes.
    ColumnsNotForgotten,
    /// A merge of columns loses the epochs that ended rows of its segments after the epoch for which it makes them.
    MergedEndsLost,
    /// A commit without a journal does not ask whether a copy of columns has begun since it began.
    CopyBegunUnseen,
    /// A worker takes slots for a table from its stock for a dropped one.
    StaleCache,
    /// A run of pages is given up although one of its slots is in use.
    PagesInUse,
    /// A mechanism of atomic reads uses what it has read without a check.
    Unchecked,
    /// No defect: near commits run the body of the hardware transaction without the transaction, which is safe only
    /// with one thread.
    SoftRtm,
    // Of joins.
    /// Spilled build rows are missing in the Bloom filter that probe rows are tested against.
    EarlyFilter,
    /// Lines of the write-combining buffers that are not full at the end are forgotten.
    LostLines,
    /// A spilled partition without probe rows is dropped, also where rows without a match are wanted.
    DroppedPair,
    /// A pass over a probe partition does not know which rows had a match in an earlier one.
    ForgottenFlags,
    /// A null equals a null, always.
    NullsMatch,
    /// Keys with equal codes are taken for equal (seen only beside [`Defect::WeakCodes`]).
    CodesTrusted,
    /// A key that occurs twice in a perfect table overwrites itself.
    DuplicateOverwritten,
    /// An enumeration that stopped because its output was full continues one candidate too far.
    SkippedCandidate,
    /// Rows count as matched before the residual condition is evaluated.
    EarlyMatch,
    /// The match of a representative is not spread to the other rows with its key.
    MatchesNotSpread,
    /// Rows of a batch that had no room in a block are lost.
    LostCarry,
    /// Pairs that threads keep for the end are lost.
    LostPair,
    /// Build rows that wait to be distributed with others are lost at the end.
    LostGroup,
    /// Probe rows that wait to be distributed with others are lost at the end.
    LostProbeRows,
    /// No defect: hashed codes have four bits, so that different keys collide.
    WeakCodes,
    /// [`Defect::WeakCodes`] and [`Defect::CodesTrusted`].
    WeakCodesTrusted,
}

impl Defect {
    /// All real defects that need no replication and show in a simulation.
    pub const OF_TRANSACTIONS: [Self; 10] = [
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

    /// Those of column copies that show in a simulation.
    pub const OF_COLUMNS: [Self; 3] = [Self::ColumnsNotHeld, Self::ColumnsNotForgotten, Self::MergedEndsLost];

    /// Those that one thread cannot show, or that need what only clusters of threads do: tables that come and go, pages that are
    /// released.
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

    /// Those of joins. [`Self::WeakCodes`] is none, and [`Self::CodesTrusted`] is a part of
    /// [`Self::WeakCodesTrusted`].
    pub const OF_JOINS: [Self; 14] = [
        Self::EarlyFilter,
        Self::LostLines,
        Self::DroppedPair,
        Self::ForgottenFlags,
        Self::NullsMatch,
        Self::DuplicateOverwritten,
        Self::SkippedCandidate,
        Self::EarlyMatch,
        Self::MatchesNotSpread,
        Self::LostCarry,
        Self::LostPair,
        Self::LostGroup,
        Self::LostProbeRows,
        Self::WeakCodesTrusted,
    ];
}

#[cfg(feature = "planted")]
pub use on::{hand_on, is, may_stop, plant, planted, shake, watch, with};

#[cfg(feature = "planted")]
mod on {
    use std::cell::Cell;
    use std::time::Duration;

    use super::Defect;

    /// A shaken thread stops at one of this many places, on average; a transaction passes some ten.
    const PLACES_PER_STOP: u64 = 64;
    /// Of this many stops one is long.
    const STOPS_PER_LONG_STOP: u64 = 32;
    /// The kernel adds some 50 µs, in which others do ten transactions.
    const STOP_NS_MAX: u64 = 50_000;
    /// A time slice: how long a thread waits on a machine with more threads than processors.
    const LONG_STOP_NS_MAX: u64 = 4_000_000;

    std::thread_local! {
        static PLANTED: Cell<Option<Defect>> = const { Cell::new(None) };
        static SHAKEN: Cell<u64> = const { Cell::new(0) };
        static WATCH: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Switches a defect on for this thread, or all off.
    pub fn plant(defect: Option<Defect>) {
        PLANTED.set(defect);
    }

    /// Runs something with the defect. Afterwards, also after a panic, the earlier defect is planted again.
    pub fn with<R>(defect: Defect, run: impl FnOnce() -> R) -> R {
        struct Restored(Option<Defect>);
        impl Drop for Restored {
            fn drop(&mut self) {
                plant(self.0);
            }
        }
        let _restored = Restored(PLANTED.replace(Some(defect)));
        run()
    }

    /// What is switched on for this thread.
    #[must_use]
    pub fn planted() -> Option<Defect> {
        PLANTED.get()
    }

    /// Whether the defect is switched on.
    #[must_use]
    pub fn is(defect: Defect) -> bool {
        let planted = PLANTED.get();
        let both = planted == Some(Defect::WeakCodesTrusted);
        planted == Some(defect) || both && matches!(defect, Defect::WeakCodes | Defect::CodesTrusted)
    }

    /// From now on this thread calls `look` at the places where a [shaken](shake) one stops, to see what a process leaves if it ends
    /// there.
    pub fn watch(look: Option<fn()>) {
        WATCH.set(look);
    }

    /// From now on this thread stops, now and then, at places where other threads can interfere: those where a defect may be planted,
    /// and some more. 0: it stops no more.
    pub fn shake(seed: u64) {
        SHAKEN.set(seed);
    }

    /// The next random number of a shaken thread, 0 of another.
    fn next_random() -> u64 {
        let mut random = SHAKEN.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        SHAKEN.set(random);
        random
    }

    /// A place where other threads can interfere: a [shaken](shake) thread stops here now and then.
    pub fn may_stop() {
        if let Some(look) = WATCH.get() {
            look();
        }
        if SHAKEN.get() == 0 {
            return;
        }
        let random = next_random();
        if random.is_multiple_of(PLACES_PER_STOP) {
            let stop = random / PLACES_PER_STOP;
            let ns_max = if stop.is_multiple_of(STOPS_PER_LONG_STOP) { LONG_STOP_NS_MAX } else { STOP_NS_MAX };
            #[expect(clippy::disallowed_methods, reason = "real threads alone are shaken")]
            std::thread::sleep(Duration::from_nanos((random >> 32) % ns_max));
        }
    }

    /// To be called by a thread that this one starts: it then has the same defect, and is shaken if this one is.
    pub fn hand_on() -> impl FnOnce() + Send + 'static {
        // An odd factor gives another sequence, and never 0 for a shaken thread.
        let (planted, shaken) = (PLANTED.get(), next_random().wrapping_mul(0x9e37_79b9_7f4a_7c15));
        move || {
            PLANTED.set(planted);
            SHAKEN.set(shaken);
        }
    }
}

/// Whether the defect is switched on: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn is(_: Defect) -> bool {
    false
}

/// A place where other threads can interfere. Without the feature no thread stops.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn may_stop() {}

/// There is nothing to hand on.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub fn hand_on() -> impl FnOnce() + Send + 'static {
    || ()
}
