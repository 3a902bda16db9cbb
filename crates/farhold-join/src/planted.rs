//! Defects on purpose, one at a time: what the tests of the tests switch on to see whether they notice.
//!
//! Only with the feature `planted`; without it every question is `false` at compile time.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// Spilled build rows are missing in the Bloom filter that probe rows are asked by.
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
    /// An enumeration that stopped because its output was full goes on one candidate too far.
    SkippedCandidate,
    /// Rows count as matched before the residual condition is asked.
    EarlyMatch,
    /// What is known of a representative stays with it.
    MatchesNotSpread,
    /// Rows of a batch that had no room in a block are lost.
    LostCarry,
    /// Pairs that threads leave for the end are lost.
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
    /// All true ones.
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

/// Switches a defect on for this thread (a join on one thread runs on its caller's), or all off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect.map_or(0, |defect| defect as u32));
}

/// Is it switched on?
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    let planted = PLANTED.get();
    let both = planted == Defect::WeakCodesTrusted as u32;
    planted == defect as u32 || both && matches!(defect, Defect::WeakCodes | Defect::CodesTrusted)
}

/// Is it switched on? Never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}
