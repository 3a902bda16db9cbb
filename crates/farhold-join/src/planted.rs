//! Planted defects, one at a time: mutation tests switch them on to see whether the checks notice.
//!
//! Only with the feature `planted`; without it every query is `false` at compile time.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// Spilled build rows are missing in the Bloom filter that probe rows are tested against.
    EarlyFilter = 1,
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
    /// The defects that the tests must notice. [`Self::WeakCodes`] is none, and [`Self::CodesTrusted`] is a part of
    /// [`Self::WeakCodesTrusted`].
    pub const ALL: [Self; 14] = [
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
std::thread_local! {
    static PLANTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Switches a defect on for this thread (a join on one thread runs on its caller's), or all defects off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect.map_or(0, |defect| defect as u32));
}

/// Whether the defect is switched on.
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    let planted = PLANTED.get();
    let both = planted == Defect::WeakCodesTrusted as u32;
    planted == defect as u32 || both && matches!(defect, Defect::WeakCodes | Defect::CodesTrusted)
}

/// Whether the defect is switched on: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}
