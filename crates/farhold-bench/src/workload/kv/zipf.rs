//! The choice of keys: uniform, or few of them most of the time.

use crate::random::Random;

/// How often keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// All alike.
    Uniform,
    /// The nth most popular in proportion to n^-theta, theta between 0 and 1 (YCSB's is 0.99).
    Zipf(f64),
}

/// Draws keys. The method is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), as in
/// YCSB; popular keys are scattered over all of them, so that they are not neighbours in memory.
#[derive(Clone, Debug)]
pub struct Zipf {
    keys: u64,
    skew: Option<Skew>,
}

#[derive(Clone, Copy, Debug)]
struct Skew {
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Over keys 0 to `keys` - 1. Takes a step a key.
    ///
    /// # Panics
    /// If there are no keys, or theta is not between 0 and 1.
    #[must_use]
    pub fn new(spread: Spread, keys: u64) -> Self {
        assert!(keys > 0, "no keys");
        let skew = match spread {
            Spread::Uniform => None,
            Spread::Zipf(theta) => {
                assert!(theta > 0.0 && theta < 1.0, "theta {theta} is not between 0 and 1");
                let zeta_to = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
                let zeta = zeta_to(keys);
                let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - theta)) / (1.0 - zeta_to(2.min(keys)) / zeta);
                Some(Skew { theta, zeta, alpha: 1.0 / (1.0 - theta), eta })
            }
        };
        Self { keys, skew }
    }

    /// The next key.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        let Some(skew) = self.skew else { return random.below(self.keys) };
        let rank = self.rank(skew, random);
        // Scattered by a multiplication with a large odd number: two ranks may share a key.
        ((u128::from(rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * u128::from(self.keys)) >> 64) as u64
    }

    /// 0 is the most popular.
    fn rank(&self, skew: Skew, random: &mut Random) -> u64 {
        let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = uniform * skew.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(skew.theta) {
            1.min(self.keys - 1)
        } else {
            let rank = self.keys as f64 * (skew.eta * uniform - skew.eta + 1.0).powf(skew.alpha);
            (rank as u64).min(self.keys - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most popular of 1000 keys at 0.99 has 1 / zeta of all, about 13 %; the second half as much.
    #[test]
    fn popularity_follows_the_law() {
        let zipf = Zipf::new(Spread::Zipf(0.99), 1000);
        let mut random = Random::new(3);
        let mut hits = vec![0_u32; 1000];
        for _ in 0..200_000 {
            hits[zipf.rank(zipf.skew.unwrap(), &mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1, 2] {
            let (wanted, found) = (f64::from(rank).powf(-0.99) / zeta, f64::from(hits[rank as usize - 1]) / 200_000.0);
            assert!((found / wanted - 1.0).abs() < 0.05, "rank {rank}: {found} instead of {wanted}");
        }
        let tail: u32 = hits[500..].iter().sum();
        let wanted: f64 = (501..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum::<f64>() / zeta;
        assert!((f64::from(tail) / 200_000.0 / wanted - 1.0).abs() < 0.15, "{tail}");
    }

    #[test]
    fn every_key_is_in_range() {
        for (spread, keys) in [(Spread::Uniform, 3), (Spread::Zipf(0.5), 1), (Spread::Zipf(0.99), 7)] {
            let zipf = Zipf::new(spread, keys);
            let mut random = Random::new(1);
            assert!((0..10_000).all(|_| zipf.draw(&mut random) < keys), "{spread:?}");
        }
    }
}
