//! Which access path a scan takes, by the least predicted time, and how the predictions learn from each scan.
//!
//! ```text
//!   statistics, latency, counters ──► Features, one for each usable path ──► Model::choose ──► Choice: path, predicted times
//!                                                                               ▲                     │ the scan runs
//!   a grid of scans at the first start ──► Model::calibrate ──► Estimator       │                     ▼
//!   file of the node ◄──► file.rs                one a path ────────────────────┴── Model::finished(choice, time)
//! ```
//!
//! - `features`: what a time is predicted from, with units, and the columns of the linear model.
//! - `estimator`: one path's model; its weighting, forgetting and treatment of outliers. `least_squares` has its arithmetic.
//! - `choice`: the decision, and which scans explore.
//! - `file`: how a node keeps the model.
//!
//! Invariants: predictions are positive and finite. An invalid observation changes nothing. Equal models make equal choices: there
//! is no randomness, and time is passed in. Exploring costs at most a stated share of the time of all scans.
//!
//! A model is not synchronised: the caller holds a lock for a choice or an update, which takes some microseconds at most.
//!
//! Design and rejected variants: `docs/design/0028-scan-choice.md`.

mod choice;
mod estimator;
mod features;
pub mod file;
mod least_squares;
#[cfg(test)]
#[path = "../../benches/synthetic/mod.rs"]
mod synthetic;
#[cfg(test)]
mod tests;

pub use choice::{Candidates, Choice, EXTRA_NS_FREE, FORGETS, Model, Reason, Settings};
pub use estimator::{Estimator, OFF_MAX};
pub use features::{COLUMNS, Features, Shape};

/// An access path, as the model names it. The names are those of the paths themselves, and of EXPLAIN.
///
/// The order decides ties: of equal predictions the first wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathKind {
    /// The snapshot of live rows.
    Rows,
    /// Loads from mapped memory.
    Direct,
    /// An asynchronous copy, scanned behind the copy.
    Offload,
    /// The home agent filters.
    Pushdown,
    /// Bulk reads of immutable pages.
    Relaxed,
}

/// Number of access paths.
pub const PATHS: usize = PathKind::ALL.len();

impl PathKind {
    /// All paths, in the order that decides ties.
    pub const ALL: [Self; 5] = [Self::Rows, Self::Direct, Self::Offload, Self::Pushdown, Self::Relaxed];

    /// Its name. A file of the model contains it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Direct => "direct",
            Self::Offload => "offload",
            Self::Pushdown => "pushdown",
            Self::Relaxed => "relaxed",
        }
    }

    /// The path of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// Why the model refused a call. It is unchanged then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A feature is negative, too large or not a number.
    #[error("the feature {name} of a scan is {value}: it must be a finite number that is not negative")]
    Feature {
        /// The feature.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A time is less than a nanosecond, too long or not a number.
    #[error("the time of a scan is {ns} ns: it must be between 1 ns and 1e15 ns")]
    Time {
        /// The time.
        ns: f64,
    },
    /// A setting is out of its limits.
    #[error("the setting {name} of the scan model is {value}: it must be between {least} and {greatest}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The least that it may be.
        least: f64,
        /// The greatest.
        greatest: f64,
    },
    /// The path that the scan must take cannot be used.
    #[error("the access path {} cannot be used for this scan; choose another one, or let the model choose", path.name())]
    Unusable {
        /// The path.
        path: PathKind,
    },
    /// No path can be used.
    #[error("no access path can be used for this scan")]
    NonePossible,
}
