//! The choice of a path, and which scans explore.
//!
//! A path that is never taken is never observed, and the model would not learn that the link has changed in its favour. A few scans therefore take a path that
//! is not the best one:
//! - Every [`Settings::explore_every`]-th choice may explore. A counter decides, independently of the size of the scan.
//! - It takes the usable path that has not been observed for the longest time, if that is [`Settings::stale_after`] choices or more.
//! - *For one scan*, the predicted extra time is at most the predicted best time, or [`EXTRA_NS_FREE`] if that is more. A long exploring scan is therefore
//!   predicted to take at most twice as long as the best one. A path without a model has no predicted time; only scans with a best time of at most
//!   `EXTRA_NS_FREE` try it.
//! - *In sum*, each choice earns [`Settings::explore_share`] of its predicted best time. An exploring scan needs as much credit as its extra time, and pays it
//!   at once. When it has finished, the payment is corrected to the actual time. Exploration therefore costs at most that share of all scans' time, plus the
//!   time by which the latest exploring scans exceeded their predictions. A path that is predicted to be more than twice as slow is thus explored on short
//!   scans only. A node without such scans keeps its model of that path until the next calibration.

use super::estimator::Estimator;
use super::features::Features;
use super::{ModelError, PATHS, PathKind};

/// The allowed factors by which each later observation multiplies an observation's weight. At 1 the sums would grow without limit, and the model would not
/// follow a machine that has changed.
pub const FORGETS: std::ops::RangeInclusive<f64> = 0.01..=0.999_999;
/// The greatest credit and the greatest debt of exploring: the longest time that a scan may have.
const CREDIT_NS_MAX: f64 = 1e15;
/// Extra nanoseconds that a scan may always spend on exploring, if there is credit.
pub const EXTRA_NS_FREE: f64 = 1e6;

/// The features of a scan for each path, in the order of [`PathKind::ALL`]; `None`: this scan cannot use the path.
pub type Candidates = [Option<Features>; PATHS];

/// How the model learns and explores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Whether scans change the model.
    pub learns: bool,
    /// The factor by which each later observation of its path multiplies an observation's weight: within [`FORGETS`].
    pub forget: f64,
    /// One of this many choices may explore; 0: none.
    pub explore_every: u64,
    /// Choices since its last observation after which a path is worth exploring.
    pub stale_after: u64,
    /// The share of all scans' time that exploring may cost: 0 to 1.
    pub explore_share: f64,
}

impl Settings {
    /// Checks that each setting is within its limits.
    ///
    /// # Errors
    /// [`ModelError::Setting`] names the first one that is not.
    pub fn check(&self) -> Result<(), ModelError> {
        let limits = [("forget", self.forget, FORGETS), ("explore_share", self.explore_share, 0.0..=1.0)];
        for (name, value, range) in limits {
            if !range.contains(&value) {
                let (least, greatest) = range.into_inner();
                return Err(ModelError::Setting { name, value, least, greatest });
            }
        }
        Ok(())
    }
}

impl Default for Settings {
    /// - `forget` 0.98: the memory is 50 observations, some five for each weight. After 200 observations the old machine has a weight of 2 %. On the synthetic
    ///   machine of `benches/model.rs`, choices then take up to 0.8 % longer than the best ones while nothing changes. With 0.995 it is 0.5 %, but changes are
    ///   followed after 600 to 2,000 scans instead of 200 to 600.
    /// - `explore_share` 0.005: half of the 1 % by which choices may be worse than the best.
    /// - `explore_every` 16 and `stale_after` 64: each of four paths that are never the best is tried once in 64 choices.
    fn default() -> Self {
        Self { learns: true, forget: 0.98, explore_every: 16, stale_after: 64, explore_share: 0.005 }
    }
}

/// Why a path was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its predicted time is the least.
    Least,
    /// The caller required it.
    Forced,
    /// It has not been observed for a long time.
    Explored,
    /// No usable path has a model; it is the first one.
    Unknown,
}

/// A choice, for EXPLAIN and for [`Model::finished`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The path to take.
    pub path: PathKind,
    /// Why.
    pub reason: Reason,
    /// Its features.
    pub features: Features,
    /// Predicted nanoseconds of each path, in the order of [`PathKind::ALL`]; `None`: unusable, or no observation yet.
    pub predicted_ns: [Option<f64>; PATHS],
    /// The credit that was paid for exploring it.
    paid_ns: f64,
}

impl Choice {
    /// A path that no model has chosen, without features.
    #[must_use]
    pub fn forced(path: PathKind) -> Self {
        Self { path, reason: Reason::Forced, features: Features::default(), predicted_ns: [None; PATHS], paid_ns: 0.0 }
    }

    /// The least of the predicted times.
    #[must_use]
    pub fn best_ns(&self) -> Option<f64> {
        self.predicted_ns.iter().flatten().copied().min_by(f64::total_cmp)
    }
}

/// The models of all paths of a node, or of a pair of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    settings: Settings,
    pub(super) paths: [Estimator; PATHS],
    /// Choices so far, and their number at the last observation of each path.
    pub(super) choices: u64,
    pub(super) observed_at: [u64; PATHS],
    /// The time that exploration may still cost. Negative after a scan that took longer than predicted.
    pub(super) credit_ns: f64,
}

impl Model {
    /// A model without observations.
    ///
    /// # Errors
    /// [`ModelError::Setting`].
    pub fn new(settings: Settings) -> Result<Self, ModelError> {
        settings.check()?;
        Ok(Self { settings, paths: Default::default(), choices: 0, observed_at: [0; PATHS], credit_ns: 0.0 })
    }

    /// Replaces the model of a path by that of these observations, each of features and nanoseconds.
    ///
    /// # Errors
    /// [`ModelError`] for the first observation that is not valid.
    pub fn calibrate(&mut self, path: PathKind, observations: &[(Features, f64)]) -> Result<(), ModelError> {
        let mut estimator = Estimator::fit(observations)?;
        estimator.count_as(1.0 / (1.0 - self.settings.forget));
        self.paths[path.index()] = estimator;
        self.observed_at[path.index()] = self.choices;
        Ok(())
    }

    /// The model of a path.
    #[must_use]
    pub fn path(&self, path: PathKind) -> &Estimator {
        &self.paths[path.index()]
    }

    /// The path of the least predicted time: what [`choose`](Self::choose) takes unless it explores. Changes nothing.
    ///
    /// Of equal predictions, the first in the order of [`PathKind::ALL`] is taken. A path without observations is taken only if no
    /// usable path has any; then it is the first usable one.
    ///
    /// # Errors
    /// [`ModelError`] if no path is usable, or a feature is not valid.
    pub fn best(&self, candidates: &Candidates) -> Result<Choice, ModelError> {
        for features in candidates.iter().flatten() {
            features.check()?;
        }
        let predicted_ns = std::array::from_fn(|at| candidates[at].and_then(|it| self.paths[at].predict_ns(&it)));
        let usable = || PathKind::ALL.into_iter().filter(|path| candidates[path.index()].is_some());
        let known = |path: PathKind| predicted_ns[path.index()].map(|ns| (path, ns));
        let least = usable().filter_map(known).min_by(|left, right| left.1.total_cmp(&right.1));
        let (path, reason) = match (least, usable().next()) {
            (Some((path, _)), _) => (path, Reason::Least),
            (None, Some(path)) => (path, Reason::Unknown),
            (None, None) => return Err(ModelError::NonePossible),
        };
        let features = candidates[path.index()].unwrap_or_default();
        Ok(Choice { path, reason, features, predicted_ns, paid_ns: 0.0 })
    }

    /// Chooses the path of a scan that is about to run. `forced`: the scan must take this path.
    ///
    /// # Errors
    /// [`ModelError`] if the forced path or every path is unusable, or a feature is not valid.
    pub fn choose(&mut self, candidates: &Candidates, forced: Option<PathKind>) -> Result<Choice, ModelError> {
        let mut choice = self.best(candidates)?;
        if let Some(path) = forced {
            choice.features = candidates[path.index()].ok_or(ModelError::Unusable { path })?;
            (choice.path, choice.reason) = (path, Reason::Forced);
            return Ok(choice);
        }
        self.choices += 1;
        let Some(best_ns) = choice.best_ns() else { return Ok(choice) };
        self.earn(self.settings.explore_share * best_ns);
        let may_explore = self.settings.learns
            && self.settings.explore_every > 0
            && self.choices.is_multiple_of(self.settings.explore_every);
        let explored = if may_explore { self.worth_exploring(candidates, &choice, best_ns) } else { None };
        if let Some((path, extra_ns)) = explored {
            choice.features = candidates[path.index()].unwrap_or_default();
            (choice.path, choice.reason, choice.paid_ns) = (path, Reason::Explored, extra_ns);
            self.earn(-extra_ns);
        }
        Ok(choice)
    }

    /// Chooses again, now that the features of a path are known better. A forced or exploring choice is kept.
    ///
    /// # Errors
    /// [`ModelError::Feature`].
    pub fn reconsider(&self, choice: &Choice, path: PathKind, features: Features) -> Result<Choice, ModelError> {
        features.check()?;
        let mut again = *choice;
        again.predicted_ns[path.index()] = self.paths[path.index()].predict_ns(&features);
        let [taken_ns, ns] = [choice.path, path].map(|path| again.predicted_ns[path.index()]);
        let is_less = choice.reason == Reason::Least && ns.zip(taken_ns).is_some_and(|(ns, taken_ns)| ns < taken_ns);
        if is_less || choice.path == path {
            (again.path, again.features) = (path, features);
        }
        Ok(again)
    }

    /// The path that has been unobserved for the longest time, of those that this scan can afford, and its extra time.
    fn worth_exploring(&self, candidates: &Candidates, choice: &Choice, best_ns: f64) -> Option<(PathKind, f64)> {
        PathKind::ALL
            .into_iter()
            .filter(|&path| path != choice.path && candidates[path.index()].is_some())
            .filter(|&path| self.is_stale(path))
            .filter_map(|path| match choice.predicted_ns[path.index()] {
                Some(ns) => Some((path, ns - best_ns)).filter(|&(_, extra_ns)| extra_ns <= best_ns.max(EXTRA_NS_FREE)),
                None => (best_ns <= EXTRA_NS_FREE).then_some((path, best_ns)),
            })
            .filter(|&(_, extra_ns)| extra_ns <= self.credit_ns)
            .min_by_key(|&(path, _)| self.observed_at[path.index()])
    }

    /// Changes the time that exploration may still cost.
    pub(super) fn earn(&mut self, ns: f64) {
        self.credit_ns = (self.credit_ns + ns).clamp(-CREDIT_NS_MAX, CREDIT_NS_MAX);
    }

    fn is_stale(&self, path: PathKind) -> bool {
        let unobserved = self.choices.saturating_sub(self.observed_at[path.index()]);
        self.path(path).observations() == 0 || unobserved >= self.settings.stale_after
    }

    /// Learns from a chosen scan that has finished after `ns` nanoseconds. A scan that was stopped early must not be reported.
    ///
    /// # Errors
    /// [`ModelError::Time`] if the time is not valid.
    pub fn finished(&mut self, choice: &Choice, ns: f64) -> Result<(), ModelError> {
        self.observe(choice.path, &choice.features, ns)?;
        if choice.reason == Reason::Explored {
            let extra_ns = choice.best_ns().map_or(0.0, |best_ns| (ns - best_ns).max(0.0));
            self.earn(choice.paid_ns - extra_ns);
        }
        Ok(())
    }

    /// Learns from a scan that the model did not choose.
    ///
    /// # Errors
    /// [`ModelError`] if a feature or the time is not valid.
    pub fn observe(&mut self, path: PathKind, features: &Features, ns: f64) -> Result<(), ModelError> {
        if self.settings.learns {
            self.paths[path.index()].update(features, ns, self.settings.forget)?;
            self.observed_at[path.index()] = self.choices;
        }
        Ok(())
    }
}
