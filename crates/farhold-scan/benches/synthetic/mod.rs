//! A machine whose access paths are not linear: what the model must cope with. The tests of `model` and `benches/model.rs` share it.
//!
//! Rates and latencies have the orders of magnitude of the papers' machines and of a network. The knees: a copy has a start and
//! fills a pipeline; the slowest stage of a path decides; traffic leaves a path only the rest of the link; a mover or an agent works
//! off its queue first. Nothing here is measured.

use super::{Candidates, Features, PATHS, PathKind};

/// Numbers of a seed, the same on every machine (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Below 1, from 0 on.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[(self.next() % items.len() as u64) as usize]
    }

    /// As many values a factor as the next.
    pub fn log_between(&mut self, least: f64, greatest: f64) -> f64 {
        least * (greatest / least).powf(self.unit())
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// What a scan of one column meets: the same for all paths.
#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub bytes: f64,
    pub latency_ns: f64,
    pub result_bytes: f64,
    pub traffic_bytes_s: f64,
    pub mover_queue_bytes: f64,
    pub agent_queue_bytes: f64,
}

/// Rows have this many bytes for each byte of the column.
const ROW_BYTES: f64 = 8.0;

impl Configuration {
    pub fn random(random: &mut Random, link: &Link) -> Self {
        let bytes = random.log_between(4096.0, 4e9);
        let queue = |random: &mut Random| {
            if random.unit() < 0.5 { 0.0 } else { random.log_between(65_536.0, 2e9) }
        };
        Self {
            bytes,
            latency_ns: random.one_of(&[100.0, 200.0, 500.0, 1500.0, 5000.0]),
            result_bytes: bytes * random.log_between(1e-6, 0.5),
            traffic_bytes_s: if random.unit() < 0.3 { 0.0 } else { random.unit() * 0.8 * link.bytes_s },
            mover_queue_bytes: queue(random),
            agent_queue_bytes: queue(random),
        }
    }

    /// The features of each path.
    pub fn candidates(&self) -> Candidates {
        let features = |bytes, queue_bytes| Features {
            bytes,
            latency_ns: self.latency_ns,
            result_bytes: self.result_bytes,
            traffic_bytes_s: self.traffic_bytes_s,
            queue_bytes,
        };
        PathKind::ALL.map(|path| {
            Some(match path {
                PathKind::Rows => features(self.bytes * ROW_BYTES, 0.0),
                PathKind::Direct | PathKind::Relaxed => features(self.bytes, 0.0),
                PathKind::Offload => features(self.bytes, self.mover_queue_bytes),
                PathKind::Pushdown => features(self.bytes, self.agent_queue_bytes),
            })
        })
    }
}

/// The machine. It changes in the drift experiments.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes a second of the link.
    pub bytes_s: f64,
    /// The latency is this many times the measured one.
    pub latency_factor: f64,
    /// The home agent takes this many times as long.
    pub agent_factor: f64,
}

impl Default for Link {
    fn default() -> Self {
        Self { bytes_s: 11.5e9, latency_factor: 1.0, agent_factor: 1.0 }
    }
}

impl Link {
    /// True nanoseconds of each path, without noise.
    pub fn true_ns(&self, it: &Configuration) -> [f64; PATHS] {
        let latency_ns = it.latency_ns * self.latency_factor;
        let free = (self.bytes_s - it.traffic_bytes_s).max(0.1 * self.bytes_s) / 1e9;
        // The slowest stage decides, and the others disturb it: a soft knee.
        let slowest = |rates: &[f64]| rates.iter().map(|rate| rate.powi(-5)).sum::<f64>().powf(-0.2);
        // Bytes a nanosecond with so many lines of 64 bytes under way.
        let lines = |count: f64| count * 64.0 / latency_ns;
        let write_ns = it.result_bytes * 0.3;
        PathKind::ALL.map(|path| match path {
            PathKind::Rows => {
                3e3 + 4.0 * latency_ns + it.bytes * ROW_BYTES / slowest(&[2.0, lines(16.0), free]) + write_ns
            }
            PathKind::Direct => 1e3 + latency_ns + it.bytes / slowest(&[8.0, lines(27.0), free]) + write_ns,
            PathKind::Offload => {
                let copy = slowest(&[7.0, lines(400.0), free]);
                let fill_ns = it.bytes.min(262_144.0) / copy;
                15e3 + 2.0 * latency_ns
                    + fill_ns
                    + it.mover_queue_bytes / copy
                    + it.bytes / slowest(&[copy, 9.0])
                    + write_ns
            }
            PathKind::Pushdown => {
                let agent = 4.0 / self.agent_factor;
                let sent_ns = it.result_bytes / slowest(&[lines(100.0), free]);
                25e3 + 4.0 * latency_ns + it.agent_queue_bytes / agent + (it.bytes / agent).max(sent_ns) + write_ns
            }
            PathKind::Relaxed => {
                60e3 + 4.0 * latency_ns + it.bytes / slowest(&[9.0, lines(250.0), free * 0.9]) + write_ns * 1.2
            }
        })
    }

    /// One measurement of each path, with noise of 10 % of the time.
    pub fn measured_ns(&self, configuration: &Configuration, random: &mut Random) -> [f64; PATHS] {
        self.true_ns(configuration).map(|ns| ns * (1.0 + 0.1 * random.normal()).max(0.3))
    }
}
