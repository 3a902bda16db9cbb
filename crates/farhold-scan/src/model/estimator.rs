//! The time of one access path: a linear model, fitted at once or scan by scan.
//!
//! ```text
//!   time = sum of weight x column        no weight is negative, so no prediction is, and none falls when a feature grows
//!
//!   an observation (columns x, time y):  row z = x / y, target t = 1
//!       sums    := f sums    + (1 - f) ridge   + z z'
//!       moments := f moments + (1 - f) ridge w + z t
//!       w       := argmin of w' sums w / 2 - moments' w, with w >= 0
//! ```
//!
//! **Weighting.** Times span seven orders of magnitude, and the noise is proportional to the time. The squares are therefore those of relative errors: a scan
//! of 10 us counts as much as one of 10 s. With noise of 10 % predictions are some 2 % too low, equally for each path, so choices do not change.
//!
//! **Forgetting.** An observation counts `f` times as much with each later one. What is forgotten is replaced by the ridge at the present weights, so the sums
//! never fall below the ridge. If features stay constant, the sums do not decay: the weights of the other features are kept, and the next observation of
//! another kind moves them by a bounded step. With `f` = 1 the sums are those of the batch fit.
//!
//! **Changes.** If predictions err to the same side for some scans (a running mean of relative errors above [`DRIFT_MAX`]), the
//! machine has changed. Until they no longer do, each observation forgets as much as [`DRIFT_FORGETS`] would.
//!
//! **The first observations.** The ridge is centred on the typical costs times the path's [scale](Shape::scale), which is the median of a calibration or the
//! first observation. Weights that few observations do not determine are therefore typical for this path. With a ridge at 0 such costs would be predicted as
//! free. For a path a thousand times slower than typical, even the observed costs would be.
//!
//! **Outliers.** Once there is a model, an observation counts as differing from its prediction by at most a factor of [`OFF_MAX`]. A single one therefore moves
//! the prediction by less than that factor. One that is much faster than predicted would count for more than others, by 1 / y^2; so y and its row are divided
//! by no less than half the prediction. If the machine has really changed that much, the prediction follows geometrically.

use super::ModelError;
use super::features::{COLUMNS, Features, Shape};
use super::least_squares::{Row, Square, dot, is_positive, solve};

/// An observation counts as at most this many times slower or faster than predicted. Noise of 10 % is far inside. Untested on a
/// busy machine, where a scan that loses its processor may take ten times as long.
pub const OFF_MAX: f64 = 4.0;
/// The number of observations from which that rule applies: twice the number of weights. Before, the prediction is not reliable.
const TRUSTED_FROM: u64 = 2 * COLUMNS as u64;
/// The relative error, as a mean over the last scans, above which the machine has changed; the number of those scans; and how much
/// faster the model then forgets. Noise of 10 % gives means of 2.6 %, and knees that the model does not follow up to some 10 %.
/// With these values, two outliers of eight scans may pass for a change; that costs memory, not more.
const DRIFT_MAX: f64 = 0.2;
const DRIFT_SCANS: f64 = 8.0;
const DRIFT_FORGETS: i32 = 8;
/// The prior: each weight is 1, with this information. With noise of 10 %, that is a standard deviation of three typical costs,
/// so a few observations suffice to overrule it, and collinear columns share a cost evenly.
const RIDGE: f64 = 1e-3;
/// The greatest norm of a row. A row is longer only if typical costs are a hundred times the observed time; it then counts less.
/// With [`RIDGE`] this bounds the condition of the sums.
const ROW_MAX: f64 = 100.0;
/// The shape without a calibration.
const SHAPE: Shape = Shape { link_bytes_s: 10e9, knee_ns: 200.0, free_share: 0.0, scale: 1.0 };
/// Shapes that a calibration tries: latencies, and multiples of the greatest traffic observed.
const KNEES_NS: [f64; 9] = [50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 12800.0, 1e9];
const FREE_SHARES: [f64; 8] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];
const LINKS: [f64; 8] = [1.06, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 6.0];
/// The longest time that an observation may have: eleven days.
const NS_MAX: f64 = 1e15;
/// Predictions are at least this.
const NS_MIN: f64 = 1.0;
/// The greatest sum or moment that a file may contain. `ROW_MAX^2 / (1 - f)`, for forgetting slower than any that is sensible.
const SUM_MAX: f64 = 1e12;

/// The model of one path's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimator {
    pub(super) shape: Shape,
    pub(super) sums: Square,
    pub(super) moments: Row,
    pub(super) weights: Row,
    /// Running mean of relative errors.
    pub(super) drift: f64,
    pub(super) observations: u64,
}

impl Default for Estimator {
    /// A model without observations.
    fn default() -> Self {
        let sums = std::array::from_fn(|row| std::array::from_fn(|column| if row == column { RIDGE } else { 0.0 }));
        Self { shape: SHAPE, sums, moments: [RIDGE; COLUMNS], weights: [1.0; COLUMNS], drift: 0.0, observations: 0 }
    }
}

impl Estimator {
    /// The model of these observations, each of features and nanoseconds, all with the same weight.
    ///
    /// Few or collinear observations suffice: the ridge decides what they leave open. If there are enough to trust, outliers among
    /// them are limited as later ones are.
    ///
    /// # Errors
    /// [`ModelError`] for the first observation that is not valid.
    pub fn fit(observations: &[(Features, f64)]) -> Result<Self, ModelError> {
        for (features, ns) in observations {
            check(features, *ns)?;
        }
        let greatest = observations.iter().map(|(features, _)| features.traffic_bytes_s).fold(0.0, f64::max);
        let mut model = Self::fit_shape(observations, SHAPE.scaled(observations));
        // One constant at a time, with the others fixed. Three rounds suffice, because the constants depend little on each other.
        for _ in 0..3 {
            let taken: Vec<Taken> = observations.iter().map(|(features, ns)| model.taken(features, *ns)).collect();
            let mut squares = model.squares(observations, &taken);
            let mut attempt = |model: &mut Self, shape: Shape| {
                let other = model.refitted(shape, observations, &taken);
                let squares_of_other = other.squares(observations, &taken);
                if squares_of_other < squares {
                    (*model, squares) = (other, squares_of_other);
                }
            };
            for knee_ns in KNEES_NS {
                let shape = Shape { knee_ns, ..model.shape };
                attempt(&mut model, shape);
            }
            for times in LINKS.into_iter().filter(|_| greatest > 0.0) {
                let shape = Shape { link_bytes_s: (times * greatest).max(1.0), ..model.shape };
                attempt(&mut model, shape);
            }
            for free_share in FREE_SHARES.into_iter().filter(|_| greatest > 0.0) {
                let shape = Shape { free_share, ..model.shape };
                attempt(&mut model, shape);
            }
        }
        Ok(Self::fit_shape(observations, model.shape))
    }

    /// The model of these observations with this shape.
    pub(super) fn fit_shape(observations: &[(Features, f64)], shape: Shape) -> Self {
        let mut model = Self { shape, ..Self::default() };
        // The first pass needs predictions that outliers cannot distort: typical costs, all multiplied by one factor, the median.
        model.weights = [shape.scaled(observations).scale / shape.scale; COLUMNS];
        model.observations = observations.len() as u64;
        // Each pass limits outliers by the pass before. The first three bring the predictions near, the last two settle.
        for _ in 0..5 {
            let taken: Vec<Taken> = observations.iter().map(|(features, ns)| model.taken(features, *ns)).collect();
            model = model.refitted(shape, observations, &taken);
        }
        model
    }

    /// A model of the same observations with another shape. Its weights are the start of the search.
    fn refitted(&self, shape: Shape, observations: &[(Features, f64)], taken: &[Taken]) -> Self {
        let mut next = Self { shape, weights: self.weights, ..Self::default() };
        for ((features, _), taken) in observations.iter().zip(taken) {
            let (row, target) = taken.row(&features.columns(&shape));
            next.add(&row, target, 1.0);
        }
        next.observations = observations.len() as u64;
        solve(&next.sums, &next.moments, &mut next.weights);
        next
    }

    fn squares(&self, observations: &[(Features, f64)], taken: &[Taken]) -> f64 {
        let errors = observations.iter().zip(taken).map(|((features, _), taken)| {
            let (row, target) = taken.row(&features.columns(&self.shape));
            target - dot(&self.weights, &row)
        });
        errors.map(|error| error * error).sum()
    }

    /// Nanoseconds of a scan; `None` before the first observation. The features must have passed [`Features::check`].
    #[must_use]
    pub fn predict_ns(&self, features: &Features) -> Option<f64> {
        (self.observations > 0).then(|| dot(&self.weights, &features.columns(&self.shape)).max(NS_MIN))
    }

    /// Learns from a scan. `forget` is the factor by which each later observation multiplies an observation's weight: above 0, at most 1.
    ///
    /// # Errors
    /// [`ModelError`] if a feature or the time is not valid. The model is then unchanged.
    pub fn update(&mut self, features: &Features, ns: f64, forget: f64) -> Result<(), ModelError> {
        check(features, ns)?;
        if self.observations == 0 {
            self.shape = self.shape.scaled(&[(*features, ns)]);
        }
        let (row, target) = self.taken(features, ns).row(&features.columns(&self.shape));
        let predicted = dot(&self.weights, &row);
        if self.observations >= TRUSTED_FROM {
            let error = (target - predicted) / target.max(predicted);
            self.drift += (error - self.drift) / DRIFT_SCANS;
        }
        let has_changed = self.drift.abs() > DRIFT_MAX;
        self.add(&row, target, if has_changed { forget.powi(DRIFT_FORGETS) } else { forget });
        self.observations = self.observations.saturating_add(1);
        solve(&self.sums, &self.moments, &mut self.weights);
        Ok(())
    }

    /// Gives the observations so far the weight of at most this many. Otherwise a calibration of hundreds would outweigh later observations for longer than the
    /// memory of the updates.
    pub(super) fn count_as(&mut self, observations: f64) {
        let share = observations / self.observations as f64;
        if share >= 1.0 {
            return;
        }
        let mut sums = self.sums;
        for (at, row) in sums.iter_mut().enumerate() {
            for sum in &mut *row {
                *sum *= share;
            }
            row[at] += (1.0 - share) * RIDGE;
        }
        for ((moment, old), new) in self.moments.iter_mut().zip(&self.sums).zip(&sums) {
            let slope = *moment - dot(old, &self.weights);
            *moment = dot(new, &self.weights) + share * slope;
        }
        self.sums = sums;
        solve(&self.sums, &self.moments, &mut self.weights);
    }

    /// Observations so far.
    #[must_use]
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// The weights of the columns, as factors of their typical costs on this path.
    #[must_use]
    pub fn weights(&self) -> [f64; COLUMNS] {
        self.weights
    }

    fn add(&mut self, row: &Row, target: f64, forget: f64) {
        let (kept, prior) = (forget, (1.0 - forget) * RIDGE);
        let norm = dot(row, row).sqrt();
        let scale = (ROW_MAX / norm).min(1.0);
        for at in 0..COLUMNS {
            for other in 0..=at {
                let sum = kept * self.sums[at][other] + scale * scale * row[at] * row[other];
                (self.sums[at][other], self.sums[other][at]) = (sum, sum);
            }
            self.sums[at][at] += prior;
            self.moments[at] = kept * self.moments[at] + prior * self.weights[at] + scale * scale * row[at] * target;
        }
    }

    /// The time with which an observation counts.
    pub(super) fn taken(&self, features: &Features, ns: f64) -> Taken {
        let predicted_ns = dot(&self.weights, &features.columns(&self.shape));
        if self.observations < TRUSTED_FROM || predicted_ns < NS_MIN {
            return Taken { ns, unit_ns: ns };
        }
        let slowest_ns = predicted_ns * OFF_MAX;
        Taken { ns: ns.clamp(predicted_ns / OFF_MAX, slowest_ns), unit_ns: ns.clamp(predicted_ns / 2.0, slowest_ns) }
    }

    /// Whether a model read from a file can be used.
    pub(super) fn is_sound(&self) -> bool {
        let is_bounded = self.sums.iter().flatten().chain(&self.moments).all(|value| value.abs() <= SUM_MAX);
        let has_ridge = (0..COLUMNS).all(|at| self.sums[at][at] >= RIDGE / 2.0);
        let weights = self.weights.iter().all(|weight| (0.0..=SUM_MAX).contains(weight) && weight.is_sign_positive());
        // The weights follow from the sums; after each update they are the minimum.
        let follow = || {
            let mut again = self.weights;
            solve(&self.sums, &self.moments, &mut again);
            again.iter().zip(&self.weights).all(|(again, weight)| (again - weight).abs() <= 1e-6 * (1.0 + weight))
        };
        self.shape.is_sound()
            && is_bounded
            && has_ridge
            && weights
            && self.drift.abs() <= 1.0
            && is_positive(&self.sums)
            && follow()
    }
}

/// An observation's time, after outliers were limited, and the unit by which it and its row are divided.
pub(super) struct Taken {
    ns: f64,
    unit_ns: f64,
}

impl Taken {
    /// The row, and its target.
    pub(super) fn row(&self, columns: &Row) -> (Row, f64) {
        (columns.map(|column| column / self.unit_ns), self.ns / self.unit_ns)
    }
}

fn check(features: &Features, ns: f64) -> Result<(), ModelError> {
    features.check()?;
    if (NS_MIN..=NS_MAX).contains(&ns) { Ok(()) } else { Err(ModelError::Time { ns }) }
}
