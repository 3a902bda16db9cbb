//! The features from which a scan's time is predicted, and the columns of the linear model.
//!
//! The five features are those of the paper (Dreseler et al., "Adaptive Access Path Selection for Hardware-Accelerated DRAM Loads", section 4), each with a
//! stated unit. A sum of the five alone cannot fit: a byte costs more if it is farther away, so bytes and latency multiply. Plain products do not suffice
//! either: a path runs at the rate of its slowest stage, so latency and traffic cost nothing until they limit that rate. Hence the columns below, with three
//! constants for each path ([`Shape`]):
//!
//! ```text
//!   by latency  l = max(1, latency / knee)            the path has enough lines under way up to the knee
//!   by traffic  t = max(1, (1 - free) / (1 - used))   used = traffic / link
//!   time of a byte = bytes x max(1, l, t) = bytes + bytes (l - 1) + bytes max(0, t - l)
//! ```
//!
//! Each column is multiplied by a typical cost of its path, so it is nanoseconds and its weight is a plain factor of order one. One
//! ridge then suits all columns.

use super::ModelError;

/// What is known about a scan before it starts. Every value is finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Features {
    /// Bytes that the path reads. Paths differ: rows are longer than packed columns.
    pub bytes: f64,
    /// Nanoseconds of one small read between the two nodes, as measured.
    pub latency_ns: f64,
    /// Bytes of the result.
    pub result_bytes: f64,
    /// Bytes a second that other instructions move over the link now, from the fabric's own counters.
    pub traffic_bytes_s: f64,
    /// Bytes that are queued or in progress at the component that executes the path: the mover, or the home agent. 0 for paths without one.
    pub queue_bytes: f64,
}

/// Columns of the linear model.
pub const COLUMNS: usize = 11;

/// The typical cost of a column: nanoseconds for one unit of it. The order is that of [`Features::columns`].
///
/// These are orders of magnitude, not measurements. They make weights comparable; [`Shape::scale`] and the fit correct them.
const TYPICAL_NS: [f64; COLUMNS] = [
    10_000.0, // a start
    0.2,      // a byte at 5 GB/s
    10.0,     // a nanosecond of latency, in ten round trips
    0.5,      // a byte of the result at 2 GB/s
    1e-6,     // a microsecond at 1 GB/s of traffic: small instructions wait behind it
    0.2,      // a byte in the queue at 5 GB/s
    0.2,      // byte x how many times longer it takes because of the latency
    0.2,      // byte x how many times longer yet because of the traffic
    0.2,      // queued byte x the same
    1e-3,     // result byte x latency
    0.2,      // result byte x how many times longer it takes because of the traffic
];

/// The greatest value of each feature. Larger ones are mistakes of the caller, and could overflow products.
const GREATEST: [(&str, f64); 5] =
    [("bytes", 1e18), ("latency_ns", 1e12), ("result_bytes", 1e18), ("traffic_bytes_s", 1e15), ("queue_bytes", 1e18)];

impl Features {
    /// Checks that every value is finite, not negative and below its limit.
    ///
    /// # Errors
    /// [`ModelError::Feature`] names the first one that is not.
    pub fn check(&self) -> Result<(), ModelError> {
        let values = [self.bytes, self.latency_ns, self.result_bytes, self.traffic_bytes_s, self.queue_bytes];
        for (value, (name, greatest)) in values.into_iter().zip(GREATEST) {
            if !(0.0..=greatest).contains(&value) {
                return Err(ModelError::Feature { name, value });
            }
        }
        Ok(())
    }

    /// The columns of the model, in nanoseconds of typical cost.
    pub(super) fn columns(&self, shape: &Shape) -> [f64; COLUMNS] {
        let Self { bytes, latency_ns: latency, result_bytes: result, traffic_bytes_s: traffic, queue_bytes: queue } =
            *self;
        let latency_factor = shape.latency_factor(latency);
        let traffic_factor = shape.traffic_factor(traffic);
        let crowding = (traffic_factor - latency_factor).max(0.0);
        let units = [
            1.0,
            bytes,
            latency,
            result,
            traffic,
            queue,
            bytes * (latency_factor - 1.0),
            bytes * crowding,
            queue * crowding,
            result * latency,
            result * (traffic_factor - 1.0),
        ];
        std::array::from_fn(|at| units[at] * TYPICAL_NS[at] * shape.scale)
    }
}

/// Constants of a path: three in which the time is not linear, and the scale of its costs. A calibration finds them; updates leave
/// them, except that the first observation of a path without a calibration sets the scale.
///
/// A path runs at the rate of its slowest stage. So latency and traffic cost nothing until they limit that rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Traffic with which the link is full, in bytes a second.
    pub link_bytes_s: f64,
    /// Up to this latency, something other than the latency limits the rate: enough lines are under way.
    pub knee_ns: f64,
    /// Up to this share of the link in use, the rest of it does not limit the rate.
    pub free_share: f64,
    /// The path's costs are this many times the typical ones: the median of its first observations.
    pub scale: f64,
}

/// The least and the greatest scale. A path that is a billion times off is a mistake of the caller.
const SCALES: std::ops::RangeInclusive<f64> = 1e-9..=1e9;

impl Shape {
    /// How many times as long a byte takes because of the latency alone.
    fn latency_factor(&self, latency_ns: f64) -> f64 {
        (latency_ns / self.knee_ns).max(1.0)
    }

    /// How many times as long a byte takes because the traffic leaves only the rest of the link.
    fn traffic_factor(&self, traffic: f64) -> f64 {
        let used = (traffic / self.link_bytes_s).min(USED_MAX);
        ((1.0 - self.free_share) / (1.0 - used)).max(1.0)
    }

    /// This shape with the scale of these observations, which are valid.
    pub(super) fn scaled(self, observations: &[(Features, f64)]) -> Self {
        let of_typical = Self { scale: 1.0, ..self };
        let ratio = |(features, ns): &(Features, f64)| ns / features.columns(&of_typical).iter().sum::<f64>();
        let mut ratios: Vec<f64> = observations.iter().map(ratio).collect();
        if ratios.is_empty() {
            return self;
        }
        let middle = ratios.len() / 2;
        let median = *ratios.select_nth_unstable_by(middle, f64::total_cmp).1;
        Self { scale: median.clamp(*SCALES.start(), *SCALES.end()), ..self }
    }

    /// Whether a shape read from a file can be used.
    pub(super) fn is_sound(&self) -> bool {
        (1.0..=1e16).contains(&self.link_bytes_s)
            && (1.0..=1e12).contains(&self.knee_ns)
            && (0.0..=USED_MAX).contains(&self.free_share)
            && SCALES.contains(&self.scale)
    }
}

/// A link counts as at most this full. Measured traffic can exceed what was seen at the calibration.
const USED_MAX: f64 = 0.95;
